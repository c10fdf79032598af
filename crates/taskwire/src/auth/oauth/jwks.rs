//! The keys of an issuer, fetched when they are first needed and kept.
//!
//! A key that is not known makes the server fetch once, and not again for a while, whatever else comes. Keys that are old are fetched again
//! beside the requests. When that fails, the old keys stay.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
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
/// How long no key makes the server fetch again that has just fetched.
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

/// The last try to fetch.
struct Try {
    at: Timestamp,
    outcome: Result<(), String>,
}

impl Try {
    /// Whether it is too early for another one. Where the clock was set back, it is not.
    fn is_recent(&self, now: Timestamp) -> bool {
        let pause = if self.outcome.is_ok() { PAUSE } else { PAUSE_AFTER_FAILURE };
        now.since(self.at) < pause && self.at.since(now) < pause
    }
}

/// The keys of one issuer.
pub(super) struct KeySet {
    issuer: String,
    /// Where they are; if absent, the issuer says where.
    url: Option<String>,
    fetch: Arc<dyn Fetch>,
    keys: Mutex<Arc<[Key]>>,
    /// When keys were last fetched, or began to be because they were old.
    asked_at: Mutex<Option<Timestamp>>,
    last: tokio::sync::Mutex<Option<Try>>,
}

impl KeySet {
    pub(super) fn new(issuer: &str, url: Option<String>, fetch: Arc<dyn Fetch>) -> Self {
        let keys: Arc<[Key]> = Arc::from(Vec::new());
        Self {
            issuer: issuer.to_owned(),
            url,
            fetch,
            keys: Mutex::new(keys),
            asked_at: Mutex::default(),
            last: tokio::sync::Mutex::default(),
        }
    }

    /// Whether one of the keys has signed this token; none if there is no key that could have.
    pub(super) fn have_signed(&self, jwt: &Jwt) -> Option<bool> {
        let keys = lock(&self.keys).clone();
        let mut candidates = keys.iter().filter(|key| key.may_have_signed(jwt)).peekable();
        candidates.peek()?;
        let is_good = candidates.any(|key| signature::is_good(jwt.algorithm, &key.key, jwt.message.as_bytes(), &jwt.signature));
        // A token that names no key may be signed with a new one.
        (is_good || jwt.key_id.is_some()).then_some(is_good)
    }

    /// Fetches the keys again, beside the request, if they are old.
    pub(super) fn keep_fresh(self: &Arc<Self>, now: Timestamp) {
        let mut asked_at = lock(&self.asked_at);
        if asked_at.is_some_and(|asked_at| now.since(asked_at) < FRESH_FOR && asked_at.since(now) < FRESH_FOR) {
            return;
        }
        *asked_at = Some(now);
        let keys = self.clone();
        tokio::spawn(async move { keys.update(now).await });
    }

    /// Fetches the keys, unless that was just done. The fetch goes on if whoever waits for it hangs up.
    pub(super) async fn fetched(self: &Arc<Self>, now: Timestamp) -> Result<(), String> {
        let keys = self.clone();
        let updating = tokio::spawn(async move { keys.update(now).await });
        updating.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    async fn update(&self, now: Timestamp) -> Result<(), String> {
        let mut last = self.last.lock().await;
        if let Some(recent) = last.as_ref().filter(|last| last.is_recent(now)) {
            return recent.outcome.clone();
        }
        let outcome = match self.ask().await {
            Ok(keys) => {
                tracing::debug!(issuer = %self.issuer, keys = keys.len(), "keys of an issuer were fetched");
                *lock(&self.keys) = keys.into();
                *lock(&self.asked_at) = Some(now);
                Ok(())
            }
            Err(why) => {
                tracing::warn!(issuer = %self.issuer, %why, "the keys of an issuer could not be fetched: those of before stay");
                Err(why)
            }
        };
        *last = Some(Try { at: now, outcome: outcome.clone() });
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
