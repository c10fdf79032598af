//! Asks an issuer what a token is worth (RFC 7662), and remembers that for a moment, by the token's hash.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
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
/// Tokens that are remembered; at this number those whose time is over are forgotten, and then all.
const REMEMBERED_MAX: usize = 10_000;
/// Tokens that are asked about at one time.
const ASKED_MAX: usize = 32;

/// The SHA-256 of a token.
pub(super) type Hash = [u8; 32];

struct Remembered {
    until: Timestamp,
    outcome: Result<Identity, Denied>,
}

/// Asks one issuer.
pub(super) struct Introspector {
    url: String,
    authorization: String,
    fetch: Arc<dyn Fetch>,
    remembered: Mutex<HashMap<Hash, Remembered>>,
    asking: Semaphore,
}

impl Introspector {
    pub(super) fn new(settings: Introspection, fetch: Arc<dyn Fetch>) -> Self {
        let Introspection { url, client_id, client_secret } = settings;
        let credentials = BASE64_STANDARD.encode(format!("{}:{}", form_encoded(&client_id), form_encoded(&client_secret)));
        let authorization = format!("Basic {credentials}");
        Self { url, authorization, fetch, remembered: Mutex::default(), asking: Semaphore::new(ASKED_MAX) }
    }

    /// What came of this token a moment ago.
    pub(super) fn remembered(&self, hash: &Hash, now: Timestamp) -> Option<Result<Identity, Denied>> {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.get(hash).filter(|remembered| now < remembered.until).map(|remembered| remembered.outcome.clone())
    }

    pub(super) fn remember(&self, hash: Hash, now: Timestamp, outcome: &Result<Identity, Denied>) {
        let until = match outcome {
            Ok(identity) => now.after(GOOD_FOR).min(identity.expires.unwrap_or(Timestamp::from_millis(i64::MAX))),
            Err(Denied::Unavailable(_)) => return,
            Err(_) => now.after(BAD_FOR),
        };
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= REMEMBERED_MAX {
            remembered.retain(|_, remembered| now < remembered.until);
            if remembered.len() >= REMEMBERED_MAX {
                remembered.clear();
            }
        }
        remembered.insert(hash, Remembered { until, outcome: outcome.clone() });
    }

    /// What the issuer says of a token that is good.
    pub(super) async fn ask(&self, token: &str) -> Result<Claims, Denied> {
        let Ok(_permit) = self.asking.try_acquire() else {
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
