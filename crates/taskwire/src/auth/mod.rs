//! Who calls. A request shows who sent it, and [`Authenticate`] says which caller that is, what that caller may do, and until when.
//!
//! Where nobody must show who they are, everybody is `local`, so such a server listens on loopback only. Start with [`Callers`], which a
//! configuration becomes. Of what a request shows, nothing is kept or logged but the caller's name.

mod callers;
mod certificate;
pub(crate) mod challenge;
mod metadata;
#[cfg(feature = "oauth-server")]
mod oauth;
mod proxy;
mod scopes;
mod tokens;

use std::{fmt, net::IpAddr};

use futures_util::future::BoxFuture;
use hyper::{
    HeaderMap,
    header::{AUTHORIZATION, HeaderName, HeaderValue},
};
use sha2::{Digest, Sha256};
use taskwire_core::{CallerId, Timestamp};

#[cfg(feature = "oauth-server")]
pub use self::oauth::{Introspection, InvalidIssuer, Issuer, Issuers};
pub use self::{
    callers::Callers,
    certificate::Certificate,
    metadata::ProtectedResource,
    proxy::{Network, TrustedProxy},
    scopes::{ScopeRules, Scopes},
    tokens::Tokens,
};

/// The caller of a server whose callers need not show who they are.
const LOCAL: &str = "local";
/// The longest name of a caller, which is what a database takes.
const CALLER_BYTES_MAX: usize = 500;

/// A caller, what it may do, and until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Who calls. The name has at most 500 bytes.
    pub caller: CallerId,
    /// What it may do.
    pub scopes: Scopes,
    /// When its token or certificate expires, with which its streams and waiting calls end; never if absent.
    pub expires: Option<Timestamp>,
    /// Whether it is an admin, who sees and stops what other callers own. A scope can make one of it, too
    /// ([`ScopeRules::with_admin_scope`]).
    pub admin: bool,
}

impl Identity {
    /// A caller that may do all, for ever.
    #[must_use]
    pub fn new(caller: &str) -> Self {
        Self { caller: CallerId::new(caller), scopes: Scopes::All, expires: None, admin: false }
    }

    /// The same caller with these scopes and no others.
    #[must_use]
    pub fn with_scopes(self, scopes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { scopes: Scopes::only(scopes), ..self }
    }

    /// The same caller as an admin.
    #[must_use]
    pub fn as_admin(self) -> Self {
        Self { admin: true, ..self }
    }

    /// The caller on a byte stream or socket that only this process's user has, and everybody's where nobody must show who they are: there
    /// is no other caller whose tasks could be seen.
    pub(crate) fn local() -> Self {
        Self::new(LOCAL).as_admin()
    }
}

/// The caller on a byte stream or socket that only this process's user has.
pub(crate) fn local_caller() -> CallerId {
    CallerId::new(LOCAL)
}

/// What a name begins with that is a hash.
const HASHED: &str = "sha256:";

/// The name of a caller whom somebody else knows as `name`: with a prefix that says who does, so that nobody can take the name of another
/// one's caller. A name that is too long, or that no log and no database takes, becomes its hash.
fn named_by(prefix: &str, name: &str) -> CallerId {
    // Nor can anybody be called like the hash of another one's name.
    let fits = prefix.len() + name.len() <= CALLER_BYTES_MAX && !name.chars().any(char::is_control) && !name.starts_with(HASHED);
    if fits {
        return CallerId::new(&format!("{prefix}{name}"));
    }
    let hash: String = Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    CallerId::new(&format!("{prefix}{HASHED}{hash}"))
}

/// What a request shows of who sent it: its headers, where it comes from, and the certificate of its connection.
#[derive(Clone, Copy)]
pub struct RequestCredentials<'a> {
    headers: &'a HeaderMap,
    address: Option<IpAddr>,
    certificate: Option<&'a Certificate>,
    now: Timestamp,
}

/// Headers must not get into logs.
impl fmt::Debug for RequestCredentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestCredentials").field("address", &self.address).field("now", &self.now).finish_non_exhaustive()
    }
}

impl<'a> RequestCredentials<'a> {
    pub(crate) fn new(headers: &'a HeaderMap, address: Option<IpAddr>, now: Timestamp) -> Self {
        Self { headers, address, certificate: None, now }
    }

    /// On a connection whose client has shown this certificate.
    pub(crate) fn with_certificate(self, certificate: Option<&'a Certificate>) -> Self {
        Self { certificate, ..self }
    }

    /// The header `Authorization`.
    #[must_use]
    pub fn authorization(&self) -> Option<&'a [u8]> {
        self.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes)
    }

    /// The values of a header, in their order.
    fn values(&self, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
        self.headers.get_all(name).iter().map(HeaderValue::as_bytes)
    }

    /// The address of whoever is at the other end of the connection.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// The certificate that the client has shown, if any: one of an authority that the server trusts.
    #[must_use]
    pub fn certificate(&self) -> Option<&'a Certificate> {
        self.certificate
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }
}

/// Who calls: known at once, or when somebody else has been asked.
pub enum Identification<'a> {
    /// It is known.
    Ready(Result<Identity, Denied>),
    /// Somebody is being asked, such as an identity provider.
    Asking(BoxFuture<'a, Result<Identity, Denied>>),
}

impl fmt::Debug for Identification<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(outcome) => f.debug_tuple("Ready").field(outcome).finish(),
            Self::Asking(_) => f.write_str("Asking"),
        }
    }
}

impl Identification<'_> {
    /// What came of it.
    ///
    /// # Errors
    /// When the request does not show who sent it.
    pub async fn outcome(self) -> Result<Identity, Denied> {
        match self {
            Self::Ready(outcome) => outcome,
            Self::Asking(asking) => asking.await,
        }
    }
}

/// Why it is not known who sent a request. No text has anything of a token in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Denied {
    /// It shows nothing.
    #[error("send a known token as `Authorization: Bearer …`")]
    Missing,
    /// What it shows has no shape that anybody could read.
    #[error("{0}")]
    Malformed(String),
    /// Its token is unknown or expired, or not meant for this server.
    #[error("{0}: send a known token as `Authorization: Bearer …`")]
    Invalid(String),
    /// Its connection has no certificate that says who calls.
    #[error("{0}: connect with a client certificate that is valid here")]
    Certificate(String),
    /// Somebody has to be asked who does not answer just now.
    #[error("{0}: try again in a moment")]
    Unavailable(String),
}

impl Denied {
    fn invalid(why: impl Into<String>) -> Self {
        Self::Invalid(why.into())
    }
}

/// Decides who sent a request, and says what callers need to know of that.
pub trait Authenticate: fmt::Debug + Send + Sync {
    /// Whether callers must show who they are.
    fn is_required(&self) -> bool;

    /// Who sent a request that shows this.
    fn identify<'a>(&'a self, credentials: RequestCredentials<'_>) -> Identification<'a>;

    /// Which operation needs which scopes. By default none needs any.
    fn scope_rules(&self) -> &ScopeRules {
        ScopeRules::none()
    }

    /// What clients read to find who issues tokens for this server (RFC 9728); nothing if nobody does.
    fn resource(&self) -> Option<&ProtectedResource> {
        None
    }
}

/// The token of an `Authorization` header.
fn bearer(authorization: Option<&[u8]>) -> Result<&[u8], Denied> {
    let header = authorization.map(<[u8]>::trim_ascii).filter(|header| !header.is_empty()).ok_or(Denied::Missing)?;
    let (scheme, token) = header.split_at(header.iter().position(u8::is_ascii_whitespace).unwrap_or(header.len()));
    if !scheme.eq_ignore_ascii_case(b"bearer") {
        return Err(Denied::Missing);
    }
    let token = token.trim_ascii();
    if token.is_empty() || token.iter().any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control()) {
        return Err(Denied::Malformed("after `Bearer`, the header `authorization` has one token and nothing else".to_owned()));
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_no_token_or_one_or_makes_no_sense() {
        for good in [&b"Bearer t"[..], b"bearer t", b"BEARER   t ", b"Bearer\tt"] {
            assert_eq!(bearer(Some(good)), Ok(&b"t"[..]));
        }
        for none in [None, Some(&b""[..]), Some(b"  "), Some(b"t"), Some(b"Basic dDp0"), Some(b"Bearert t")] {
            assert_eq!(bearer(none), Err(Denied::Missing), "{none:?}");
        }
        for bad in [&b"Bearer"[..], b"Bearer ", b"Bearer a b", b"Bearer a\x01b"] {
            assert!(matches!(bearer(Some(bad)), Err(Denied::Malformed(_))), "{bad:?}");
        }
    }

    #[test]
    fn a_name_that_nobody_can_keep_becomes_a_hash_and_stays_one_callers() {
        assert_eq!(named_by("https://idp#", "ada").as_str(), "https://idp#ada");
        let long = "x".repeat(CALLER_BYTES_MAX);
        for name in [long.as_str(), "a\0b", "a\nb"] {
            let caller = named_by("https://idp#", name);
            assert!(caller.as_str().starts_with("https://idp#sha256:") && caller.as_str().len() <= CALLER_BYTES_MAX, "{caller:?}");
            assert_eq!(caller, named_by("https://idp#", name));
            let claimed = caller.as_str().trim_start_matches("https://idp#");
            assert_ne!(caller, named_by("https://idp#", claimed), "nobody can be called like it");
            assert_ne!(caller, named_by("https://idp#", &format!("{name}.")));
        }
        let just = "x".repeat(CALLER_BYTES_MAX - 2);
        assert_eq!(named_by("p:", &just).as_str(), format!("p:{just}"));
    }

    #[test]
    fn what_a_request_shows_is_not_for_logs() {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static("Bearer s3cret"))]);
        let credentials = RequestCredentials::new(&headers, None, Timestamp::from_millis(1));
        assert_eq!(credentials.authorization(), Some(&b"Bearer s3cret"[..]));
        assert!(!format!("{credentials:?}").contains("s3cret"));
    }
}
