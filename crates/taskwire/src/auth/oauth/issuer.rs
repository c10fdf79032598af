//! One issuer: how its tokens are checked, as a configuration says, and the checks of what a token claims.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use jsonwebtoken::{Algorithm, AlgorithmFamily};
use serde_json::Value;
use taskwire_core::Timestamp;

use super::{fetch::Fetch, introspection::Introspector, is_safe, is_same_issuer, jwks::KeySet, jwt::Claims};
use crate::auth::{Denied, Identity, Scopes, metadata::canonical, named_by};

/// The audience that stands for every token of an issuer, also one for nobody in particular.
const ANY_AUDIENCE: &str = "*";
/// After which time an issuer is asked again about a token without an end: until then its streams stay open.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(3600);
/// The longest address of an issuer: the names of its callers begin with it.
const URL_BYTES_MAX: usize = 300;
/// How tokens may be signed if nothing else is said.
const ALGORITHMS: [&str; 4] = ["RS256", "PS256", "ES256", "EdDSA"];
/// The claims that have scopes if nothing else is said.
const SCOPE_CLAIMS: [&str; 2] = ["scope", "scp"];

/// An issuer of tokens, and how its tokens are checked.
#[derive(Debug, Clone)]
pub struct Issuer {
    /// Its address, as its tokens say it (`iss`).
    pub url: String,
    /// Whom its tokens must be for (`aud`): any one of these. `*` takes every token of the issuer.
    pub audiences: Vec<String>,
    /// How its tokens may be signed: `RS256`, `PS256`, `ES256`, `EdDSA` and the like, but with no shared secret.
    pub algorithms: Vec<String>,
    /// Where its keys are; if absent, it says so itself.
    pub jwks: Option<String>,
    /// Where to ask about tokens, in place of checking them by keys.
    pub introspection: Option<Introspection>,
    /// The claim that names the caller.
    pub caller_claim: String,
    /// The claim that has the scopes; `scope` or `scp` if absent.
    pub scope_claim: Option<String>,
}

impl Issuer {
    /// An issuer at this URL, of tokens for these audiences.
    #[must_use]
    pub fn new(url: &str, audiences: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            url: url.to_owned(),
            audiences: audiences.into_iter().map(Into::into).collect(),
            algorithms: ALGORITHMS.map(ToOwned::to_owned).to_vec(),
            jwks: None,
            introspection: None,
            caller_claim: "sub".to_owned(),
            scope_claim: None,
        }
    }
}

/// Where an issuer tells what a token is worth (RFC 7662).
#[derive(Clone)]
pub struct Introspection {
    /// Its endpoint for that.
    pub url: String,
    /// As whom the server asks.
    pub client_id: String,
    /// The secret that belongs to it.
    pub client_secret: String,
}

/// Secrets must not get into logs.
impl fmt::Debug for Introspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Introspection").field("url", &self.url).field("client_id", &self.client_id).finish_non_exhaustive()
    }
}

/// An issuer whose tokens cannot be checked as it is described.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct InvalidIssuer {
    /// Which one of the issuers.
    pub index: usize,
    /// Which of its fields.
    pub key: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

/// How it is known what a token is worth.
pub(super) enum Proof {
    Keys(Arc<KeySet>),
    Introspection(Arc<Introspector>),
}

/// An issuer that was checked itself.
pub(super) struct ReadyIssuer {
    pub(super) url: String,
    pub(super) proof: Proof,
    audiences: BTreeSet<String>,
    algorithms: Vec<Algorithm>,
    caller_claim: String,
    scope_claims: Vec<String>,
    leeway: Duration,
}

impl ReadyIssuer {
    /// The error has the field, and what is wrong with it.
    pub(super) fn new(issuer: Issuer, leeway: Duration, fetch: &Arc<dyn Fetch>) -> Result<Self, (&'static str, String)> {
        let Issuer { url, audiences, algorithms, jwks, introspection, caller_claim, scope_claim } = issuer;
        let unsafe_url = |url: &str| format!("`{url}` is no URL that begins with https:// (or with http:// on this machine)");
        if !is_safe(&url) || url.len() > URL_BYTES_MAX || url.contains(['?', '#']) {
            return Err(("url", unsafe_url(&url)));
        }
        if audiences.is_empty() {
            return Err(("audiences", "tokens must be for somebody: name at least one audience".to_owned()));
        }
        if caller_claim.is_empty() {
            return Err(("caller_claim", "it needs the name of a claim, such as \"sub\"".to_owned()));
        }
        let known = |name: &String| {
            let algorithm = name.parse::<Algorithm>().ok().filter(|algorithm| algorithm.family() != AlgorithmFamily::Hmac);
            algorithm.ok_or_else(|| ("algorithms", format!("`{name}` is no signature with a public key, such as \"RS256\" or \"ES256\"")))
        };
        let algorithms = algorithms.iter().map(known).collect::<Result<Vec<_>, _>>()?;
        if algorithms.is_empty() {
            return Err(("algorithms", "tokens must be signed: name at least one algorithm".to_owned()));
        }
        let proof = match (jwks, introspection) {
            (Some(_), Some(_)) => return Err(("jwks", "tokens are checked by `jwks` or by `introspection`, not by both".to_owned())),
            (Some(jwks), None) if !is_safe(&jwks) => return Err(("jwks", unsafe_url(&jwks))),
            (_, Some(introspection)) if !is_safe(&introspection.url) => return Err(("introspection", unsafe_url(&introspection.url))),
            (_, Some(introspection)) => Proof::Introspection(Arc::new(Introspector::new(introspection, fetch.clone()))),
            (jwks, None) => Proof::Keys(Arc::new(KeySet::new(&url, jwks, fetch.clone()))),
        };
        Ok(Self {
            proof,
            audiences: audiences.iter().map(|audience| comparable(audience)).collect(),
            algorithms,
            caller_claim,
            scope_claims: scope_claim.map_or_else(|| SCOPE_CLAIMS.map(ToOwned::to_owned).to_vec(), |claim| vec![claim]),
            leeway,
            url,
        })
    }

    pub(super) fn accepts(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }

    /// Whom a token with these claims stands for, if somebody vouches for them. A token without an end must be `asked_about`, and ends when
    /// it must be asked about again.
    pub(super) fn identity(&self, claims: &Claims, now: Timestamp, asked_about: bool) -> Result<Identity, Denied> {
        let issuer = claims.get("iss");
        if issuer.is_some_and(|issuer| issuer.as_str().is_none_or(|issuer| !is_same_issuer(issuer, &self.url))) {
            return Err(Denied::invalid("the token comes from another issuer"));
        }
        if !self.is_for_us(claims.get("aud")) {
            return Err(Denied::invalid("the token is for another audience"));
        }
        let expires = match moment(claims, "exp")?.map(|end| end.after(self.leeway)) {
            Some(end) if end <= now => return Err(Denied::invalid("the token has expired")),
            None if !asked_about => return Err(Denied::invalid("the token has no end (`exp`)")),
            end => end.unwrap_or(now.after(ASKED_AGAIN_AFTER)),
        };
        if moment(claims, "nbf")?.is_some_and(|begin| now.after(self.leeway) < begin) {
            return Err(Denied::invalid("the token is not valid yet"));
        }
        let name = claims.get(&self.caller_claim).and_then(Value::as_str).filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| Denied::invalid(format!("the token does not say who calls (`{}`)", self.caller_claim)))?;
        let scopes = self.scope_claims.iter().filter_map(|claim| claims.get(claim)).flat_map(words);
        Ok(Identity {
            caller: named_by(&format!("{}#", self.url), name),
            scopes: Scopes::only(scopes),
            expires: Some(expires),
            admin: false,
        })
    }

    fn is_for_us(&self, audience: Option<&Value>) -> bool {
        self.audiences.contains(ANY_AUDIENCE) || list(audience).any(|audience| self.audiences.contains(&comparable(audience)))
    }
}

/// An audience in the form in which two ways to write one address are the same.
fn comparable(audience: &str) -> String {
    canonical(audience).unwrap_or_else(|| audience.to_owned())
}

/// A claim that is one text or several.
fn list(claim: Option<&Value>) -> impl Iterator<Item = &str> {
    let texts: &[Value] = match claim {
        Some(Value::Array(several)) => several,
        Some(one) => std::slice::from_ref(one),
        None => &[],
    };
    texts.iter().filter_map(Value::as_str)
}

/// The scopes of a claim: a text of words, or a list.
fn words(claim: &Value) -> impl Iterator<Item = String> {
    list(Some(claim)).flat_map(str::split_whitespace).map(ToOwned::to_owned)
}

/// A claim that is a moment, in seconds.
fn moment(claims: &Claims, name: &str) -> Result<Option<Timestamp>, Denied> {
    match claims.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            // What is too large for a moment becomes the last one.
            Some(seconds) => Ok(Some(Timestamp::from_millis((seconds * 1000.0) as i64))),
            None => Err(Denied::invalid(format!("the token says no time in `{name}`"))),
        },
    }
}
