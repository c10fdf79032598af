//! Everybody who may call, however they show who they are: a proxy says so, a token is known here, an issuer has made it, or the
//! connection has a certificate.

use super::{
    Authenticate, Denied, Identification, Identity, ProtectedResource, RequestCredentials, ScopeRules, Tokens, TrustedProxy, bearer,
};

/// Everybody who may call a server. The default is everybody who reaches it, as one caller.
#[derive(Debug, Clone, Default)]
pub struct Callers {
    tokens: Tokens,
    proxy: Option<TrustedProxy>,
    client_certificates: bool,
    #[cfg(feature = "oauth-server")]
    issuers: Option<std::sync::Arc<super::Issuers>>,
    scope_rules: ScopeRules,
    resource: Option<ProtectedResource>,
}

impl Callers {
    /// Those with one of these tokens may call.
    #[must_use]
    pub fn with_tokens(self, tokens: Tokens) -> Self {
        Self { tokens, ..self }
    }

    /// Those whom this proxy names may call.
    #[must_use]
    pub fn with_proxy(self, proxy: TrustedProxy) -> Self {
        Self { proxy: Some(proxy), ..self }
    }

    /// Those whom the certificate of their connection names may call, as `cert:NAME`. The server must speak TLS, and ask for certificates.
    #[must_use]
    pub fn with_client_certificates(self) -> Self {
        Self { client_certificates: true, ..self }
    }

    /// Those with a token of one of these issuers may call. Set the [resource](Self::with_resource) too: clients find the issuers there.
    #[cfg(feature = "oauth-server")]
    #[must_use]
    pub fn with_issuers(self, issuers: super::Issuers) -> Self {
        Self { issuers: Some(std::sync::Arc::new(issuers)), ..self }
    }

    /// Operations need scopes.
    #[must_use]
    pub fn with_scope_rules(self, scope_rules: ScopeRules) -> Self {
        Self { scope_rules, ..self }
    }

    /// The server tells clients who issues tokens for it.
    #[must_use]
    pub fn with_resource(self, resource: ProtectedResource) -> Self {
        Self { resource: Some(resource), ..self }
    }

    /// Whom the certificate of the connection names, if that counts for a request without a token.
    fn identify_by_certificate(&self, credentials: RequestCredentials<'_>) -> Option<Result<Identity, Denied>> {
        // A certificate of the proxy names the proxy, not those behind it.
        let is_proxy = self.proxy.as_ref().is_some_and(|proxy| proxy.has_sent(credentials));
        if !self.client_certificates || is_proxy {
            return None;
        }
        match credentials.certificate() {
            Some(certificate) => Some(certificate.identify(credentials.now())),
            None if self.tokens.is_empty() && !self.has_issuers() => {
                Some(Err(Denied::Certificate("this connection has no client certificate".to_owned())))
            }
            None => None,
        }
    }

    /// Whom a token that is not one of ours stands for.
    #[cfg(feature = "oauth-server")]
    fn ask_issuers(&self, token: &[u8], credentials: RequestCredentials<'_>) -> Option<Identification<'_>> {
        self.issuers.as_ref().map(|issuers| issuers.identify(token, credentials.now()))
    }

    #[cfg(not(feature = "oauth-server"))]
    fn ask_issuers(&self, _token: &[u8], _credentials: RequestCredentials<'_>) -> Option<Identification<'_>> {
        None
    }

    #[cfg(feature = "oauth-server")]
    fn has_issuers(&self) -> bool {
        self.issuers.is_some()
    }

    #[cfg(not(feature = "oauth-server"))]
    fn has_issuers(&self) -> bool {
        false
    }
}

impl Authenticate for Callers {
    fn is_required(&self) -> bool {
        !self.tokens.is_empty() || self.proxy.is_some() || self.client_certificates || self.has_issuers()
    }

    fn identify<'a>(&'a self, credentials: RequestCredentials<'_>) -> Identification<'a> {
        if !self.is_required() {
            return Identification::Ready(Ok(Identity::local()));
        }
        if let Some(named) = self.proxy.as_ref().and_then(|proxy| proxy.identify(credentials)) {
            return Identification::Ready(named);
        }
        let token = match bearer(credentials.authorization()) {
            Ok(token) => token,
            Err(Denied::Missing) => {
                let identified = self.identify_by_certificate(credentials);
                return Identification::Ready(identified.unwrap_or(Err(Denied::Missing)));
            }
            Err(denied) => return Identification::Ready(Err(denied)),
        };
        if let Some(identity) = self.tokens.find(token) {
            return Identification::Ready(Ok(identity.clone()));
        }
        let asked = self.ask_issuers(token, credentials);
        asked.unwrap_or_else(|| Identification::Ready(Err(Denied::invalid("the token is not known here"))))
    }

    fn scope_rules(&self) -> &ScopeRules {
        &self.scope_rules
    }

    fn resource(&self) -> Option<&ProtectedResource> {
        self.resource.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use hyper::{
        HeaderMap,
        header::{AUTHORIZATION, HeaderName, HeaderValue},
    };
    use taskwire_core::Timestamp;

    use super::*;
    use crate::auth::Certificate;

    #[test]
    fn whoever_has_one_of_several_ways_gets_in() {
        let proxy = TrustedProxy::new("x-user", vec!["127.0.0.1".parse().expect("an address")]).expect("a header");
        let auth = Callers::default().with_tokens(Tokens::default().with_token("t", "ci")).with_proxy(proxy);
        let sender = |user: Option<&'static str>, authorization: Option<&'static str>, from: &str| {
            let named = |name: HeaderName, value: Option<&'static str>| value.map(|value| (name, HeaderValue::from_static(value)));
            let pairs = [named(HeaderName::from_static("x-user"), user), named(AUTHORIZATION, authorization)];
            let headers: HeaderMap = pairs.into_iter().flatten().collect();
            let credentials = RequestCredentials::new(&headers, from.parse().ok(), Timestamp::from_millis(1));
            let outcome = auth.identify(credentials).outcome().now_or_never().expect("nobody is asked");
            outcome.map(|identity| identity.caller.as_str().to_owned()).map_err(|denied| denied == Denied::Missing)
        };
        assert_eq!(sender(Some("ada"), None, "127.0.0.1"), Ok("proxy:ada".to_owned()));
        assert_eq!(sender(Some("ada"), Some("Bearer wrong"), "127.0.0.1"), Ok("proxy:ada".to_owned()), "the proxy has seen to it");
        assert_eq!(sender(Some("ada"), Some("Bearer t"), "10.0.0.1"), Ok("ci".to_owned()));
        assert_eq!(sender(Some("ada"), None, "10.0.0.1"), Err(true));
        assert_eq!(sender(None, None, "127.0.0.1"), Err(true), "the proxy lets everybody through, and we do not");
        assert_eq!(sender(None, Some("Bearer wrong"), "127.0.0.1"), Err(false));
        assert!(auth.is_required() && !Callers::default().is_required());
    }

    #[test]
    fn a_certificate_counts_for_requests_that_show_nothing_else_and_do_not_come_from_the_proxy() {
        let proxy = TrustedProxy::new("x-user", vec!["127.0.0.1".parse().expect("an address")]).expect("a header");
        let only = Callers::default().with_client_certificates();
        let all = only.clone().with_tokens(Tokens::default().with_token("t", "ci")).with_proxy(proxy);
        let certificate = Certificate::new("ada", Timestamp::from_millis(9));
        let identified = |auth: &Callers, from: &str, authorization: Option<&'static str>, shown: bool, now: i64| {
            let headers: HeaderMap = authorization.map(|value| (AUTHORIZATION, HeaderValue::from_static(value))).into_iter().collect();
            let credentials = RequestCredentials::new(&headers, from.parse().ok(), Timestamp::from_millis(now));
            let credentials = credentials.with_certificate(shown.then_some(&certificate));
            let outcome = auth.identify(credentials).outcome().now_or_never().expect("nobody is asked");
            outcome.map(|identity| (identity.caller.as_str().to_owned(), identity.expires))
        };
        let ada = Ok(("cert:ada".to_owned(), Some(Timestamp::from_millis(9))));
        assert_eq!(identified(&only, "10.0.0.1", None, true, 8), ada);
        assert_eq!(identified(&all, "10.0.0.1", None, true, 8), ada);
        assert!(matches!(identified(&all, "10.0.0.1", None, true, 9), Err(Denied::Certificate(_))), "it has expired");
        assert_eq!(identified(&all, "10.0.0.1", Some("Bearer t"), true, 8), Ok(("ci".to_owned(), None)));
        assert!(matches!(identified(&all, "10.0.0.1", Some("Bearer wrong"), true, 8), Err(Denied::Invalid(_))));
        assert_eq!(identified(&all, "127.0.0.1", None, true, 8), Err(Denied::Missing), "it is that of the proxy");
        assert_eq!(identified(&all, "10.0.0.1", None, false, 8), Err(Denied::Missing));
        assert!(matches!(identified(&only, "10.0.0.1", None, false, 8), Err(Denied::Certificate(_))));
        let without = Callers::default().with_tokens(Tokens::default().with_token("t", "ci"));
        assert_eq!(identified(&without, "10.0.0.1", None, true, 8), Err(Denied::Missing), "certificates name nobody here");
        assert!(only.is_required());
    }
}
