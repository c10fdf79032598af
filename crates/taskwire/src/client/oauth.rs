//! OAuth tokens: obtained when a server asks for one, kept, and renewed.
//!
//! rmcp implements the protocol. This decides when a flow runs, one at a time, and remembers between two flows: our client
//! id at each authorization server, the granted scopes, the refused tokens.

mod consent;
#[cfg(feature = "oauth-extensions")]
mod extensions;
#[cfg(test)]
mod tests;
mod token_store;

use std::{
    collections::BTreeSet,
    fmt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use reqwest::Url;
use rmcp::transport::{
    AuthError, AuthorizationManager, ClientCredentialsConfig, WWWAuthenticateParams,
    auth::{AuthorizationCallback, AuthorizationMetadata, OAuthClientConfig},
};
use serde_json::Value;
use tokio::sync::Mutex;

pub use self::consent::{Consent, LoopbackConsent};
use self::token_store::{Identity, TokenStore};
use super::{Challenge, Credentials, Error, error::shortened};
use crate::clock::{Clock, SystemClock};

/// The default time that a person has to agree.
const CONSENT: Duration = Duration::from_secs(300);
/// How many different sets of additional scopes a server may ask for.
const STEP_UPS_MAX: usize = 16;
/// The scope that asks for a refresh token.
const OFFLINE: &str = "offline_access";

/// How the client gets a token.
#[derive(Clone)]
#[non_exhaustive]
pub enum Grant {
    /// A person agrees, in a browser.
    AuthorizationCode(Arc<dyn Consent>),
    /// The client authenticates itself with `client_id` and `client_secret`.
    ClientSecret,
    /// The client authenticates itself with `client_id` and a signed token.
    #[cfg(feature = "oauth-extensions")]
    PrivateKey {
        /// The key: PKCS#8 (or, for RSA, PKCS#1) in PEM.
        pem: String,
        /// How it signs: `ES256`, `ES384`, `RS256`, `RS384` or `RS512`.
        algorithm: String,
    },
    /// An identity provider vouches for a person; `client_id` and `client_secret` of the settings are for the authorization
    /// server.
    #[cfg(feature = "oauth-extensions")]
    Enterprise {
        /// The identity provider's issuer.
        issuer: String,
        /// Its token endpoint.
        token_endpoint: String,
        /// Our client id there.
        client_id: String,
        /// The identity token of the person.
        id_token: String,
    },
}

/// How to sign in. Most servers need no more than a [`Consent`].
#[derive(Clone)]
pub struct OAuthSettings {
    /// How the client gets a token.
    pub grant: Grant,
    /// The name that the client registers with, which the authorization server shows to the person.
    pub client_name: String,
    /// A client id that the authorization server knows already. Goes before all else.
    pub client_id: Option<String>,
    /// The secret that belongs to it.
    pub client_secret: Option<String>,
    /// The URL (`https://…`) of a document about this client, which is then its id. Goes before registration.
    pub client_metadata_url: Option<String>,
    /// The scopes to ask for. Empty: those that the server says it needs.
    pub scopes: Vec<String>,
    /// The directory of `tokens.json`, which keeps the tokens of persons. None: in memory only.
    pub directory: Option<PathBuf>,
    /// How long a person may take to agree.
    pub consent_timeout: Duration,
    /// Whether a server may name an authorization server in a private network. A server whose own address is private always
    /// may.
    pub allow_private_addresses: bool,
    /// The source of time.
    pub clock: Arc<dyn Clock>,
}

impl OAuthSettings {
    /// The defaults, with this grant.
    #[must_use]
    pub fn new(grant: Grant) -> Self {
        Self {
            grant,
            client_name: "Taskwire".to_owned(),
            client_id: None,
            client_secret: None,
            client_metadata_url: None,
            scopes: Vec::new(),
            directory: None,
            consent_timeout: CONSENT,
            allow_private_addresses: false,
            clock: Arc::new(SystemClock),
        }
    }

    /// The defaults, with the consent of a person.
    #[must_use]
    pub fn with_consent(consent: impl Consent + 'static) -> Self {
        Self::new(Grant::AuthorizationCode(Arc::new(consent)))
    }
}

/// Tokens for one server.
pub struct OAuth {
    server: Url,
    settings: OAuthSettings,
    store: TokenStore,
    /// One flow at a time: the second request finds the token that the first one got.
    flow: Mutex<Flow>,
    /// Counts the flows that ended, also by failure.
    ended: AtomicU64,
}

#[derive(Default)]
struct Flow {
    /// Has the metadata of the authorization server and our client id there.
    manager: Option<AuthorizationManager>,
    origin: Origin,
    /// The additional scopes that were asked for already. To ask again would not help.
    stepped_up: BTreeSet<String>,
    /// The error of the last flow, if it failed.
    failure: Option<Error>,
}

/// Where the current token comes from.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Origin {
    #[default]
    Stored,
    Renewed,
    Granted,
}

impl fmt::Debug for OAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OAuth").field("server", &self.server.as_str()).finish_non_exhaustive()
    }
}

impl Credentials for OAuth {
    fn bearer(&self) -> BoxFuture<'_, Result<Option<String>, Error>> {
        Box::pin(self.token())
    }

    fn challenged<'a>(&'a self, challenge: &'a Challenge) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.answer_challenge(challenge))
    }
}

impl OAuth {
    /// For the server at this URL. It sends and asks nothing before the server wants a token.
    ///
    /// # Errors
    /// If the address or a setting cannot be used.
    pub fn new(server: &str, settings: OAuthSettings) -> Result<Self, Error> {
        let mut server =
            Url::parse(server).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host()).ok_or_else(|| {
                Error::Target(format!("`{server}` is no address to sign in to: give one that begins with http:// or https://"))
            })?;
        server.set_fragment(None);
        if let Some(url) = &settings.client_metadata_url {
            let good = Url::parse(url).is_ok_and(|url| url.scheme() == "https" && url.has_host() && url.path() != "/");
            if !good {
                return Err(Error::Auth(format!("`{url}` cannot be a client's id: it must be https:// with a path")));
            }
        }
        let alone = !matches!(settings.grant, Grant::AuthorizationCode(_));
        if settings.client_id.is_none() && (alone || settings.client_secret.is_some()) {
            return Err(Error::Auth("a client id is needed".to_owned()));
        }
        if matches!(settings.grant, Grant::ClientSecret) && settings.client_secret.is_none() {
            return Err(Error::Auth("a client secret is needed".to_owned()));
        }
        // rmcp's HTTP clients need one. If another provider is installed already, that one is used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // A token that needs no person is not worth a secret on disk.
        let directory = settings.directory.clone().filter(|_| !alone);
        let store = TokenStore::new(server.as_str(), directory, settings.client_id.clone(), settings.clock.clone());
        Ok(Self { server, settings, store, flow: Mutex::default(), ended: AtomicU64::new(0) })
    }

    /// The token for the next request.
    async fn token(&self) -> Result<Option<String>, Error> {
        self.store.open().await?;
        if self.store.token().is_none_or(|token| token.is_good()) {
            return Ok(self.store.hand_out());
        }
        let mut flow = self.flow.lock().await;
        let Some(token) = self.store.token().filter(|token| !token.is_good()) else { return Ok(self.store.hand_out()) };
        match self.renew(&mut flow, None, false).await {
            // The old token is still valid for some seconds.
            Ok(false) | Err(_) if !token.expired => {}
            // Send the request without a token: the server will challenge it.
            Ok(false) => self.store.forget_token().await,
            Ok(true) => {}
            Err(error) => return Err(error),
        }
        Ok(self.store.hand_out())
    }

    /// The server refused the token. True if there is another one now.
    async fn answer_challenge(&self, challenge: &Challenge) -> Result<bool, Error> {
        self.store.open().await?;
        let header = challenge.www_authenticate.as_deref();
        let asked = header.map(|header| WWWAuthenticateParams::parse(header, &self.server)).unwrap_or_default();
        let step_up = match challenge.status {
            401 => false,
            403 if asked.is_insufficient_scope() => true,
            _ => return Ok(false),
        };
        let ended = self.ended.load(Ordering::Acquire);
        let mut flow = self.flow.lock().await;
        let token = self.store.token();
        if token.as_ref().is_some_and(|token| challenge.bearer.as_ref() != Some(&token.access)) {
            // The server refused an older token than the current one.
            return Ok(true);
        }
        if let Some(error) = flow.failure.as_ref().filter(|_| self.ended.load(Ordering::Acquire) != ended) {
            // The flow that we waited for failed. The person is not asked again for each pending request.
            return Err(error.clone());
        }
        if step_up {
            let wanted: BTreeSet<String> = asked.scope.unwrap_or_default().split_whitespace().map(str::to_owned).collect();
            let key = wanted.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
            if wanted.is_empty() || flow.stepped_up.len() >= STEP_UPS_MAX || !flow.stepped_up.insert(key) {
                return Ok(false);
            }
            return self.obtain(&mut flow, header, Some(wanted)).await.map(|()| true);
        }
        if let Some(token) = token {
            let at_once = token.uses <= 1;
            if at_once && flow.origin == Origin::Granted {
                let reason = "it refuses the token that was issued for it just now".to_owned();
                return Err(Error::Unauthorized { server: self.server.to_string(), reason });
            }
            let renewable = token.renewable && !(at_once && flow.origin == Origin::Renewed);
            if renewable && self.renew(&mut flow, header, true).await? {
                return Ok(true);
            }
            self.store.forget_token().await;
        }
        self.obtain(&mut flow, header, None).await.map(|()| true)
    }

    /// Gets a new token with the refresh token. False if the refresh token is not valid any more.
    ///
    /// If the old token was `refused`, the server may use another authorization server now: `header` says which.
    async fn renew(&self, flow: &mut Flow, header: Option<&str>, refused: bool) -> Result<bool, Error> {
        // Other processes renew, too, and a refresh token is often valid for one use only.
        let _alone = self.store.lock_renewal().await?;
        if self.store.reload().await? && self.store.token().is_some_and(|token| token.is_good()) {
            flow.origin = Origin::Stored;
            return Ok(true);
        }
        let (Some(token), Some(identity)) = (self.store.token(), self.store.identity()) else { return Ok(false) };
        if !token.renewable {
            return Ok(false);
        }
        if refused {
            flow.manager = None;
        }
        let manager = match flow.manager.take() {
            Some(manager) => manager,
            None => {
                let (mut manager, metadata) = self.discover(header).await?;
                if metadata.issuer != identity.issuer {
                    // Another authorization server must not see the tokens of the earlier one.
                    return Ok(false);
                }
                manager.configure_client(self.config(&identity)).map_err(auth_error)?;
                self.renew_as_granted(&mut manager, &metadata);
                manager
            }
        };
        let renewed = manager.refresh_token().await;
        flow.manager = Some(manager);
        match renewed {
            Ok(_) => {
                flow.origin = Origin::Renewed;
                Ok(true)
            }
            Err(AuthError::AuthorizationRequired | AuthError::TokenRefreshRejected(_)) => Ok(false),
            Err(error) => Err(auth_error(error)),
        }
    }

    /// Gets a token from scratch, with `more` scopes than before.
    async fn obtain(&self, flow: &mut Flow, header: Option<&str>, more: Option<BTreeSet<String>>) -> Result<(), Error> {
        let obtained = self.grant(flow, header, more).await;
        flow.failure = obtained.as_ref().err().cloned();
        self.ended.fetch_add(1, Ordering::AcqRel);
        obtained
    }

    async fn grant(&self, flow: &mut Flow, header: Option<&str>, more: Option<BTreeSet<String>>) -> Result<(), Error> {
        let (mut manager, metadata) = self.discover(header).await?;
        let scopes = self.scopes(&manager, &metadata, more).await;
        match &self.settings.grant {
            Grant::AuthorizationCode(consent) => self.by_consent(&mut manager, &metadata, &scopes, consent.as_ref()).await?,
            Grant::ClientSecret => {
                let config = ClientCredentialsConfig::ClientSecret {
                    client_id: self.settings.client_id.clone().unwrap_or_default(),
                    client_secret: self.settings.client_secret.clone().unwrap_or_default(),
                    scopes,
                    resource: Some(self.resource(&mut manager, &metadata).await),
                };
                self.by_client_credentials(&mut manager, &metadata, &config).await?;
            }
            #[cfg(feature = "oauth-extensions")]
            Grant::PrivateKey { pem, algorithm } => {
                let resource = self.resource(&mut manager, &metadata).await;
                let config = extensions::private_key(self, pem, algorithm, scopes, resource)?;
                self.by_client_credentials(&mut manager, &metadata, &config).await?;
            }
            #[cfg(feature = "oauth-extensions")]
            Grant::Enterprise { issuer, token_endpoint, client_id, id_token } => {
                let resource = self.resource(&mut manager, &metadata).await;
                let provider = extensions::IdentityProvider { issuer, token_endpoint, client_id, id_token };
                extensions::by_enterprise(self, &metadata, scopes, &resource, provider).await?;
            }
        }
        if let Some(kind) = self.store.token().map(|token| token.kind).filter(|kind| !kind.eq_ignore_ascii_case("bearer")) {
            self.store.forget_token().await;
            return Err(Error::Auth(format!("the authorization server issues tokens of the kind `{kind}`, which cannot be used here")));
        }
        self.renew_as_granted(&mut manager, &metadata);
        flow.manager = Some(manager);
        flow.origin = Origin::Granted;
        Ok(())
    }

    /// Makes renewals ask for the scopes that were granted. rmcp adds the one for refresh tokens wherever it is offered, and some servers
    /// refuse what they did not grant.
    fn renew_as_granted(&self, manager: &mut AuthorizationManager, metadata: &AuthorizationMetadata) {
        let is_granted = self.store.scopes().iter().any(|scope| scope == OFFLINE);
        let mut metadata = metadata.clone();
        if let Some(offered) = metadata.scopes_supported.as_mut().filter(|_| !is_granted) {
            offered.retain(|scope| scope != OFFLINE);
            manager.set_metadata(metadata);
        }
    }

    async fn by_consent(
        &self,
        manager: &mut AuthorizationManager,
        metadata: &AuthorizationMetadata,
        scopes: &[String],
        consent: &dyn Consent,
    ) -> Result<(), Error> {
        let identity = self.identify(manager, metadata, consent.redirect_uri(), scopes).await?;
        manager.configure_client(self.config(&identity)).map_err(auth_error)?;
        let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
        let asked = manager.get_authorization_url(&scopes).await.map_err(auth_error)?;
        let waited = self.settings.clock.sleep(self.settings.consent_timeout);
        let redirected = tokio::select! {
            redirected = consent.authorize(&asked) => redirected?,
            () = waited => {
                let waited = self.settings.consent_timeout.as_secs();
                return Err(Error::Auth(format!("nobody agreed within {waited} seconds: try again, and open the address that is shown")));
            }
        };
        let answer = match read_redirect(&asked, &redirected, metadata.issuer.as_deref()) {
            Ok(answer) => answer,
            Err(Refusal { scope, error }) => {
                if scope {
                    // A scope that was granted before may not exist any more.
                    self.store.forget_scopes();
                }
                return Err(error);
            }
        };
        let before = self.store.set_identity(Some(identity));
        let exchanged = manager.exchange_code_for_token_with_issuer(&answer.code, &answer.csrf_token, answer.issuer.as_deref()).await;
        if let Err(error) = exchanged {
            self.store.set_identity(before);
            return Err(auth_error(error));
        }
        Ok(())
    }

    async fn by_client_credentials(
        &self,
        manager: &mut AuthorizationManager,
        metadata: &AuthorizationMetadata,
        config: &ClientCredentialsConfig,
    ) -> Result<(), Error> {
        manager.validate_client_credentials_metadata(config).map_err(auth_error)?;
        manager.configure_client_credentials(config).map_err(auth_error)?;
        self.store.set_identity(Some(self.configured_identity(metadata, String::new())));
        manager.exchange_client_credentials(config).await.map_err(auth_error)?;
        Ok(())
    }

    /// Finds the authorization server, from the challenge or from the well-known metadata.
    async fn discover(&self, header: Option<&str>) -> Result<(AuthorizationManager, AuthorizationMetadata), Error> {
        let manager = if self.settings.allow_private_addresses || is_private(&self.server) {
            AuthorizationManager::new_allowing_private_addresses(self.server.clone()).await
        } else {
            AuthorizationManager::new(self.server.clone()).await
        };
        let mut manager = manager.map_err(auth_error)?;
        manager.set_credential_store(self.store.clone());
        let metadata = manager.resolve_metadata_from_challenge(header).await.map_err(auth_error)?.metadata;
        manager.set_metadata(metadata.clone());
        Ok((manager, metadata))
    }

    /// The server's resource identifier, letter by letter. rmcp shows it only as a parameter of an authorization URL.
    async fn resource(&self, manager: &mut AuthorizationManager, metadata: &AuthorizationMetadata) -> String {
        let identity = self.configured_identity(metadata, self.server.to_string());
        let shown = match manager.configure_client(self.config(&identity)) {
            Ok(()) => manager.get_authorization_url(&[]).await.ok(),
            Err(_) => None,
        };
        shown.and_then(|url| parameter(&url, "resource")).unwrap_or_else(|| self.server.to_string())
    }

    /// Our client id at an authorization server: from the settings, the metadata URL, an earlier flow, or a new registration.
    async fn identify(
        &self,
        manager: &mut AuthorizationManager,
        metadata: &AuthorizationMetadata,
        redirect_uri: String,
        scopes: &[String],
    ) -> Result<Identity, Error> {
        if self.settings.client_id.is_some() {
            return Ok(self.configured_identity(metadata, redirect_uri));
        }
        let issuer = metadata.issuer.clone();
        let documents = metadata.additional_fields.get("client_id_metadata_document_supported").and_then(Value::as_bool) == Some(true);
        if let Some(url) = self.settings.client_metadata_url.as_ref().filter(|_| documents) {
            return Ok(Identity { id: url.clone(), secret: None, redirect_uri, issuer });
        }
        if let Some(known) = self.store.identity()
            && known.issuer == issuer
            && known.redirect_uri == redirect_uri
        {
            return Ok(known);
        }
        let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
        let config = manager.register_client(&self.settings.client_name, &redirect_uri, &scopes).await.map_err(auth_error)?;
        Ok(Identity { id: config.client_id, secret: config.client_secret, redirect_uri, issuer })
    }

    /// The client id of the settings. Its secret comes with the settings each time and is not stored.
    fn configured_identity(&self, metadata: &AuthorizationMetadata, redirect_uri: String) -> Identity {
        let id = self.settings.client_id.clone().unwrap_or_default();
        Identity { id, secret: None, redirect_uri, issuer: metadata.issuer.clone() }
    }

    fn config(&self, identity: &Identity) -> OAuthClientConfig {
        let config = OAuthClientConfig::new(&identity.id, &identity.redirect_uri);
        let configured = self.settings.client_id.as_ref().and(self.settings.client_secret.as_ref());
        match configured.or(identity.secret.as_ref()) {
            Some(secret) => config.with_client_secret(secret),
            None => config,
        }
    }

    /// The scopes to ask for: those that the server wants, and those granted before, so that none is lost.
    async fn scopes(
        &self,
        manager: &AuthorizationManager,
        metadata: &AuthorizationMetadata,
        more: Option<BTreeSet<String>>,
    ) -> Vec<String> {
        let same = self.store.identity().is_some_and(|identity| identity.issuer == metadata.issuer);
        let before = if same { self.store.scopes() } else { Vec::new() };
        let wanted = match more {
            Some(more) => more.into_iter().collect(),
            None if self.settings.scopes.is_empty() => manager.select_initial_scopes(&[]).await,
            None => self.settings.scopes.clone(),
        };
        let offline = metadata.scopes_supported.as_ref().is_some_and(|scopes| scopes.iter().any(|scope| scope == OFFLINE));
        merge_scopes(before, wanted, offline && matches!(self.settings.grant, Grant::AuthorizationCode(_)))
    }
}

/// Both lists, each scope once; with the scope for refresh tokens if it is offered and there is any other scope.
fn merge_scopes(before: Vec<String>, wanted: Vec<String>, offline: bool) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut scopes: Vec<String> = before.into_iter().chain(wanted).filter(|scope| seen.insert(scope.clone())).collect();
    if offline && !scopes.is_empty() && !seen.contains(OFFLINE) {
        scopes.push(OFFLINE.to_owned());
    }
    scopes
}

/// Whether the host is an IP address of a private network.
fn is_private(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    match host.trim_start_matches('[').trim_end_matches(']').parse() {
        Ok(std::net::IpAddr::V4(ip)) => ip.is_private(),
        Ok(std::net::IpAddr::V6(ip)) => ip.is_unique_local(),
        Err(_) => false,
    }
}

/// A query parameter of a URL.
fn parameter(url: &str, name: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

struct Refusal {
    /// Whether the requested scopes are the reason.
    scope: bool,
    error: Error,
}

/// Reads the redirect of a browser, if it belongs to the URL that was opened and the person agreed.
///
/// rmcp checks the issuer of a positive answer when it exchanges the code.
fn read_redirect(asked: &str, redirected: &str, issuer: Option<&str>) -> Result<AuthorizationCallback, Refusal> {
    let refused = |reason: String| Refusal { scope: false, error: Error::Auth(reason) };
    let state = parameter(redirected, "state");
    if state.is_none() || state != parameter(asked, "state") {
        return Err(refused("the answer belongs to another request".to_owned()));
    }
    let Some(code) = parameter(redirected, "error") else {
        return AuthorizationCallback::from_redirect_url(redirected).map_err(|error| Refusal { scope: false, error: auth_error(error) });
    };
    if let (Some(from), Some(issuer)) = (parameter(redirected, "iss"), issuer)
        && from != issuer
    {
        // The text of another issuer is not shown.
        return Err(refused(format!("the answer does not come from {issuer}")));
    }
    let reason = match parameter(redirected, "error_description") {
        Some(description) => format!("{code}: {description}"),
        None => code.clone(),
    };
    let error = Error::Auth(format!("the authorization server refused ({})", shortened(&reason)));
    Err(Refusal { scope: code == "invalid_scope", error })
}

/// Words an error of rmcp so that the user knows what to do.
fn auth_error(error: AuthError) -> Error {
    let plain = |text: &str| shortened(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    Error::Auth(match error {
        AuthError::NoAuthorizationSupport => "the server wants one, but does not say where to get it".to_owned(),
        AuthError::PkceUnsupported => "the authorization server does not offer PKCE with S256, and without it nobody is safe".to_owned(),
        AuthError::RegistrationFailed(reason) => {
            format!("the authorization server does not register us ({}): give the id of a client that it knows", plain(&reason))
        }
        AuthError::AuthorizationServerMismatch { expected_issuer, received_issuer } => {
            format!("what should come from {expected_issuer} says that it comes from {received_issuer}: it is not trusted")
        }
        AuthError::AuthorizationServerMissingIssuer { expected_issuer } => {
            format!("what should come from {expected_issuer} does not say where it comes from: it is not trusted")
        }
        AuthError::TokenExchangeFailed(reason) | AuthError::TokenRefreshFailed(reason) if reason == "Request failed" => {
            "the authorization server did not answer: try again later".to_owned()
        }
        AuthError::TokenExchangeFailed(reason) | AuthError::TokenRefreshFailed(reason) | AuthError::ClientCredentialsError(reason) => {
            format!("the authorization server issues none ({})", plain(&reason))
        }
        AuthError::MetadataError(reason) => plain(&reason),
        other => plain(&other.to_string()),
    })
}
