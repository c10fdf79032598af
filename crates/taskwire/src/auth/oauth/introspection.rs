//! Asks an issuer what a token is worth (RFC 7662), and remembers that for a moment, by the token's hash.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;
use taskwire_core::Timestamp;
use tokio::sync::Semaphore;

use super::{
    fetch::{Fetch, Form},
    issuer::Introspection,
    jwt::Claims,
};
use crate::auth::{Denied, Identity};

/// How long a token that is good is not asked about again.
const GOOD_FOR: Duration = Duration::from_secs(60);
/// The same of one that is not.
const BAD_FOR: Duration = Duration::from_secs(10);
/// How long a token is known to have been good: it need not wait for those that nobody knows.
const KNOWN_FOR: Duration = Duration::from_secs(600);
/// Good tokens that are remembered, and as many others; at this number those whose time is over are forgotten, and then all of their kind.
const REMEMBERED_MAX: usize = 10_000;
/// Tokens that are asked about at one time, and as many more that were good before.
const ASKED_MAX: usize = 32;

/// The SHA-256 of a token.
pub(super) type Hash = [u8; 32];

/// What was said of tokens of one kind.
struct Memory<T> {
    /// How long a token is kept when its answer holds no longer.
    kept_for: Duration,
    /// With each token until when its answer holds.
    answers: HashMap<Hash, (Timestamp, T)>,
}

impl<T: Clone> Memory<T> {
    fn new(kept_for: Duration) -> Self {
        Self { kept_for, answers: HashMap::new() }
    }

    fn get(&self, hash: &Hash, now: Timestamp) -> Option<T> {
        self.answers.get(hash).filter(|(until, _)| now < *until).map(|(_, answer)| answer.clone())
    }

    fn has(&self, hash: &Hash, now: Timestamp) -> bool {
        self.answers.get(hash).is_some_and(|(until, _)| now < until.after(self.kept_for))
    }

    fn insert(&mut self, hash: Hash, now: Timestamp, until: Timestamp, answer: T) {
        if self.answers.len() >= REMEMBERED_MAX && !self.answers.contains_key(&hash) {
            let kept_for = self.kept_for;
            self.answers.retain(|_, (until, _)| now < until.after(kept_for));
            if self.answers.len() >= REMEMBERED_MAX {
                self.answers.clear();
            }
        }
        self.answers.insert(hash, (until, answer));
    }
}

/// Asks one issuer.
pub(super) struct Introspector {
    url: String,
    authorization: String,
    fetch: Arc<dyn Fetch>,
    /// Apart from the others, so that those cannot displace them.
    good: Mutex<Memory<Identity>>,
    bad: Mutex<Memory<Denied>>,
    asking: Semaphore,
    asking_again: Semaphore,
}

impl Introspector {
    pub(super) fn new(settings: Introspection, fetch: Arc<dyn Fetch>) -> Self {
        let Introspection { url, client_id, client_secret } = settings;
        let credentials = BASE64_STANDARD.encode(format!("{}:{}", form_encoded(&client_id), form_encoded(&client_secret)));
        let authorization = format!("Basic {credentials}");
        let (good, bad) = (Mutex::new(Memory::new(KNOWN_FOR)), Mutex::new(Memory::new(Duration::ZERO)));
        Self { url, authorization, fetch, good, bad, asking: Semaphore::new(ASKED_MAX), asking_again: Semaphore::new(ASKED_MAX) }
    }

    /// What came of this token a moment ago.
    pub(super) fn remembered(&self, hash: &Hash, now: Timestamp) -> Option<Result<Identity, Denied>> {
        if let Some(identity) = lock(&self.good).get(hash, now) {
            return Some(Ok(identity));
        }
        lock(&self.bad).get(hash, now).map(Err)
    }

    pub(super) fn remember(&self, hash: Hash, now: Timestamp, outcome: &Result<Identity, Denied>) {
        match outcome {
            Ok(identity) => {
                let until = now.after(GOOD_FOR).min(identity.expires.unwrap_or(Timestamp::from_millis(i64::MAX)));
                lock(&self.good).insert(hash, now, until, identity.clone());
            }
            Err(Denied::Unavailable(_)) => {}
            Err(denied) => {
                lock(&self.good).answers.remove(&hash);
                lock(&self.bad).insert(hash, now, now.after(BAD_FOR), denied.clone());
            }
        }
    }

    /// What the issuer says of a token that is good.
    pub(super) async fn ask(&self, token: &str, hash: &Hash, now: Timestamp) -> Result<Claims, Denied> {
        let was_good = lock(&self.good).has(hash, now);
        let places = if was_good { &self.asking_again } else { &self.asking };
        let Ok(_permit) = places.try_acquire() else {
            return Err(Denied::Unavailable("too many tokens are being asked about".to_owned()));
        };
        let body = format!("token={}&token_type_hint=access_token", form_encoded(token));
        let failed = |why: String| {
            tracing::warn!(url = %self.url, %why, "an issuer could not be asked about a token");
            Denied::Unavailable("the issuer of the token does not answer".to_owned())
        };
        let form = Form { body, authorization: self.authorization.clone() };
        let answer = self.fetch.fetch(&self.url, Some(form)).await.map_err(failed)?;
        if answer.status != 200 {
            return Err(failed(format!("status {}", answer.status)));
        }
        let claims: Claims = serde_json::from_slice(&answer.body).map_err(|error| failed(error.to_string()))?;
        match claims.get("active") {
            Some(Value::Bool(true)) => Ok(claims),
            _ => Err(Denied::invalid("the token is unknown to its issuer, or has expired")),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A text as a value of a form.
fn form_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_form_would_misread_is_encoded() {
        assert_eq!(form_encoded("aZ0-._~"), "aZ0-._~");
        assert_eq!(form_encoded("a b&c=d+ü"), "a%20b%26c%3Dd%2B%C3%BC");
    }
}
