//! The keys of an issuer, fetched when they are first needed and kept.
//!
//! A key that is not known makes the server fetch once, and not again for a while, whatever else comes. Keys that are old are fetched again
//! beside the requests, and before them where nobody has tried for long. When that fails, the old keys stay, but not for ever: an issuer may
//! have withdrawn them.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey,
    jwk::{Jwk, PublicKeyUse},
};
use serde::Deserialize;
use serde_json::Value;
use taskwire_core::Timestamp;

use super::{fetch::Fetch, is_safe, is_same_issuer, jwt::Jwt, signature};

/// How many keys of an issuer count.
const KEYS_MAX: usize = 100;
/// How long keys are used before they are fetched again.
const FRESH_FOR: Duration = Duration::from_secs(600);
/// How long after the last try to fetch keys they are used while they are fetched again. Later, requests wait for that.
const USED_MEANWHILE: Duration = Duration::from_secs(3600);
/// How long keys are used if they cannot be fetched again.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
/// How long no key makes the server fetch again that has just fetched, from the end of that on.
const PAUSE: Duration = Duration::from_secs(30);
/// The same where that has failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);

struct Key {
    id: Option<String>,
    algorithm: Option<Algorithm>,
    key: DecodingKey,
}

impl Key {
    /// A key that can have signed tokens.
    fn read(value: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        if !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
            return None;
        }
        let algorithm = jwk.common.key_algorithm.map(Algorithm::try_from).transpose().ok()?;
        let key = DecodingKey::from_jwk(&jwk).ok().filter(|key| key.family() != AlgorithmFamily::Hmac)?;
        Some(Self { id: jwk.common.key_id, algorithm, key })
    }

    fn may_have_signed(&self, jwt: &Jwt) -> bool {
        let is_named = match (&self.id, &jwt.key_id) {
            (Some(own), Some(named)) => own == named,
            _ => true,
        };
        is_named && self.key.family() == jwt.algorithm.family() && self.algorithm.is_none_or(|algorithm| algorithm == jwt.algorithm)
    }
}

/// What came of a fetch.
type Outcome = Result<(), String>;

/// The last try to fetch.
struct Try {
    /// When it ended.
    at: Timestamp,
    outcome: Outcome,
}

impl Try {
    /// Whether it is too early for another one.
    fn is_recent(&self, now: Timestamp) -> bool {
        age(self.at, now) < if self.outcome.is_ok() { PAUSE } else { PAUSE_AFTER_FAILURE }
    }
}

/// How old something is. Where the clock was set back, it is old.
fn age(at: Timestamp, now: Timestamp) -> Duration {
    now.since(at).max(at.since(now))
}

/// Whether keys may be used as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freshness {
    /// They may.
    Fresh,
    /// They may, while they are fetched again.
    Aging,
    /// They are fetched again first. If that fails, they may still be used.
    Old,
    /// They are fetched again, and not used if that fails.
    Expired,
}

#[derive(Default)]
struct State {
    keys: Arc<[Key]>,
    /// When they were fetched.
    fetched_at: Option<Timestamp>,
    last: Option<Try>,
    /// The fetch that is under way: all who need keys wait for the same.
    running: Option<Shared<BoxFuture<'static, Outcome>>>,
}

/// The keys of one issuer.
pub(super) struct KeySet {
    issuer: String,
    /// Where they are; if absent, the issuer says where.
    url: Option<String>,
    fetch: Arc<dyn Fetch>,
    state: Mutex<State>,
}

impl KeySet {
    pub(super) fn new(issuer: &str, url: Option<String>, fetch: Arc<dyn Fetch>) -> Self {
        Self { issuer: issuer.to_owned(), url, fetch, state: Mutex::default() }
    }

    /// Whether one of the keys has signed this token; none if there is no key that could have.
    pub(super) fn have_signed(&self, jwt: &Jwt) -> Option<bool> {
        let keys = lock(&self.state).keys.clone();
        let mut candidates = keys.iter().filter(|key| key.may_have_signed(jwt)).peekable();
        candidates.peek()?;
        let is_good = candidates.any(|key| signature::is_good(jwt.algorithm, &key.key, jwt.message.as_bytes(), &jwt.signature));
        // A token that names no key may be signed with a new one.
        (is_good || jwt.key_id.is_some()).then_some(is_good)
    }

    /// Whether the keys may be used as they are.
    pub(super) fn freshness(&self, now: Timestamp) -> Freshness {
        let state = lock(&self.state);
        let Some(fetched_at) = state.fetched_at.filter(|at| age(*at, now) < KEPT_FOR) else { return Freshness::Expired };
        match age(state.last.as_ref().map_or(fetched_at, |last| last.at), now) {
            tried if tried < FRESH_FOR => Freshness::Fresh,
            tried if tried < USED_MEANWHILE => Freshness::Aging,
            _ => Freshness::Old,
        }
    }

    /// Fetches the keys, unless that was just done or is under way. The fetch goes on if whoever waits for it hangs up, or does not wait.
    pub(super) fn refresh(self: &Arc<Self>, now: Timestamp) -> Shared<BoxFuture<'static, Outcome>> {
        let mut state = lock(&self.state);
        if let Some(running) = &state.running {
            return running.clone();
        }
        if let Some(recent) = state.last.as_ref().filter(|last| last.is_recent(now)) {
            return std::future::ready(recent.outcome.clone()).boxed().shared();
        }
        let keys = self.clone();
        let updating = tokio::spawn(async move { keys.update(now).await });
        let keys = self.clone();
        let running = async move {
            updating.await.unwrap_or_else(|error| {
                lock(&keys.state).running = None;
                Err(error.to_string())
            })
        };
        let running = running.boxed().shared();
        state.running = Some(running.clone());
        running
    }

    async fn update(&self, now: Timestamp) -> Outcome {
        let began = self.fetch.monotonic();
        let asked = self.ask().await;
        // Whole seconds are exact enough.
        let took = Duration::from_secs(self.fetch.monotonic().saturating_sub(began).as_secs());
        let mut state = lock(&self.state);
        let outcome = match asked {
            Ok(keys) => {
                tracing::debug!(issuer = %self.issuer, keys = keys.len(), "keys of an issuer were fetched");
                state.keys = keys.into();
                // They may have been withdrawn since.
                state.fetched_at = Some(now);
                Ok(())
            }
            Err(why) => {
                tracing::warn!(issuer = %self.issuer, %why, "the keys of an issuer could not be fetched: those of before stay for a day");
                Err(why)
            }
        };
        state.last = Some(Try { at: now.after(took), outcome: outcome.clone() });
        state.running = None;
        outcome
    }

    async fn ask(&self) -> Result<Vec<Key>, String> {
        #[derive(Deserialize)]
        struct Document {
            keys: Vec<Value>,
        }
        let url = match &self.url {
            Some(url) => url.clone(),
            None => self.discover().await?,
        };
        let document: Document = serde_json::from_slice(&self.get(&url).await?).map_err(|error| format!("{url}: {error}"))?;
        let keys: Vec<Key> = document.keys.into_iter().take(KEYS_MAX).filter_map(Key::read).collect();
        if keys.is_empty() { Err(format!("{url} has no key that can be used")) } else { Ok(keys) }
    }

    /// Where the issuer says that its keys are, as an OpenID provider or as an OAuth server (RFC 8414).
    async fn discover(&self) -> Result<String, String> {
        #[derive(Deserialize)]
        struct Metadata {
            issuer: String,
            jwks_uri: String,
        }
        let mut failure = String::new();
        for url in metadata_urls(&self.issuer) {
            let read: Result<Metadata, String> =
                self.get(&url).await.and_then(|body| serde_json::from_slice(&body).map_err(|error| format!("{url}: {error}")));
            match read {
                Ok(Metadata { issuer, .. }) if !is_same_issuer(&issuer, &self.issuer) => {
                    return Err(format!("{url} describes another issuer, {issuer}"));
                }
                Ok(Metadata { jwks_uri, .. }) if !is_safe(&jwks_uri) => {
                    return Err(format!("{url} has keys at {jwks_uri}, which is not https"));
                }
                Ok(Metadata { jwks_uri, .. }) => return Ok(jwks_uri),
                Err(why) => failure = why,
            }
        }
        Err(failure)
    }

    async fn get(&self, url: &str) -> Result<Vec<u8>, String> {
        let answer = self.fetch.fetch(url, None).await.map_err(|why| format!("{url}: {why}"))?;
        if answer.status == 200 { Ok(answer.body.into()) } else { Err(format!("{url}: status {}", answer.status)) }
    }
}

/// Where an issuer may describe itself.
fn metadata_urls(issuer: &str) -> [String; 2] {
    let issuer = issuer.strip_suffix('/').unwrap_or(issuer);
    let path_at = issuer.find("://").and_then(|at| issuer[at + 3..].find('/').map(|slash| at + 3 + slash)).unwrap_or(issuer.len());
    let (origin, path) = issuer.split_at(path_at);
    [format!("{issuer}/.well-known/openid-configuration"), format!("{origin}/.well-known/oauth-authorization-server{path}")]
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issuer_describes_itself_below_its_url_or_at_its_host() {
        let urls = ["https://idp.example/.well-known/openid-configuration", "https://idp.example/.well-known/oauth-authorization-server"];
        assert_eq!(metadata_urls("https://idp.example"), urls);
        assert_eq!(metadata_urls("https://idp.example/"), urls);
        assert_eq!(
            metadata_urls("https://idp.example/realms/a"),
            [
                "https://idp.example/realms/a/.well-known/openid-configuration",
                "https://idp.example/.well-known/oauth-authorization-server/realms/a"
            ]
        );
    }
}
