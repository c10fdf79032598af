//! Everybody who may call, however they show who they are: a proxy says so, a token is known here, or an issuer has made it.

use super::{
    Authenticate, Denied, Identification, Identity, ProtectedResource, RequestCredentials, ScopeRules, Tokens, TrustedProxy, bearer,
};

/// Everybody who may call a server. The default is everybody who reaches it, as one caller.
#[derive(Debug, Clone, Default)]
pub struct Callers {
    tokens: Tokens,
    proxy: Option<TrustedProxy>,
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
        !self.tokens.is_empty() || self.proxy.is_some() || self.has_issuers()
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
}
