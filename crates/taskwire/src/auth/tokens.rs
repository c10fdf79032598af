//! Tokens that a configuration names, each with the caller that it stands for. Only their hashes are in memory.

use std::fmt;

use sha2::{Digest, Sha256};

use super::{Authenticate, Denied, Identification, Identity, RequestCredentials, bearer};

/// The tokens that a server accepts, each with the caller that it stands for.
#[derive(Clone, Default)]
pub struct Tokens {
    known: Vec<KnownToken>,
}

#[derive(Clone)]
struct KnownToken {
    sha256: [u8; 32],
    identity: Identity,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.known.iter().map(|known| &known.identity.caller)).finish()
    }
}

impl Tokens {
    /// Accepts a token for a caller, who may do all.
    #[must_use]
    pub fn with_token(self, token: &str, caller: &str) -> Self {
        self.with_sha256(Self::sha256(token), Identity::new(caller))
    }

    /// Accepts the token that has this SHA-256.
    #[must_use]
    pub fn with_sha256(mut self, sha256: [u8; 32], identity: Identity) -> Self {
        self.known.push(KnownToken { sha256, identity });
        self
    }

    /// The hash of a token, for [`with_sha256`](Self::with_sha256).
    #[must_use]
    pub fn sha256(token: &str) -> [u8; 32] {
        Sha256::digest(token.as_bytes()).into()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Whom a token stands for. It takes the same time for every token: all are compared, whichever it is.
    pub(super) fn find(&self, token: &[u8]) -> Option<&Identity> {
        let sent: [u8; 32] = Sha256::digest(token).into();
        self.known.iter().rev().fold(None, |found, known| if equal(&known.sha256, &sent) { Some(&known.identity) } else { found })
    }
}

impl Authenticate for Tokens {
    fn is_required(&self) -> bool {
        !self.is_empty()
    }

    fn identify<'a>(&'a self, credentials: RequestCredentials<'_>) -> Identification<'a> {
        if self.is_empty() {
            return Identification::Ready(Ok(Identity::local()));
        }
        let found = bearer(credentials.authorization()).and_then(|token| {
            let identity = self.find(token).cloned();
            identity.ok_or_else(|| Denied::invalid("the token is not known here"))
        });
        Identification::Ready(found)
    }
}

/// Compares in constant time. They are hashes, so even their first bytes would help nobody to guess a token.
fn equal(known: &[u8; 32], sent: &[u8; 32]) -> bool {
    known.iter().zip(sent).fold(0, |differing, (known, sent)| differing | (known ^ sent)) == 0
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use hyper::{
        HeaderMap,
        header::{AUTHORIZATION, HeaderValue},
    };
    use taskwire_core::Timestamp;

    use super::*;

    /// Who sends a request with this header.
    fn sender(auth: &Tokens, authorization: Option<&'static str>) -> Result<String, Denied> {
        let headers: HeaderMap = authorization.map(|value| (AUTHORIZATION, HeaderValue::from_static(value))).into_iter().collect();
        let identified = auth.identify(RequestCredentials::new(&headers, None, Timestamp::from_millis(1)));
        let outcome = identified.outcome().now_or_never().expect("nobody is asked");
        outcome.map(|identity| identity.caller.as_str().to_owned())
    }

    #[test]
    fn a_token_stands_for_its_caller() {
        let auth = Tokens::default().with_token("s3cret", "ci").with_token("other", "me").with_token("s3cret", "nobody");
        assert_eq!(sender(&auth, Some("Bearer s3cret")), Ok("ci".to_owned()), "the first one counts");
        assert_eq!(sender(&auth, Some("bearer other")), Ok("me".to_owned()));
        for bad in [Some("Bearer wrong"), Some("Bearer s3cre"), Some("Bearer s3cret1")] {
            assert!(matches!(sender(&auth, bad), Err(Denied::Invalid(_))), "{bad:?}");
        }
        for none in [None, Some("s3cret"), Some("Basic s3cret")] {
            assert_eq!(sender(&auth, none), Err(Denied::Missing));
        }
        assert!(matches!(sender(&auth, Some("Bearer")), Err(Denied::Malformed(_))));
        assert_eq!(sender(&Tokens::default(), None), Ok("local".to_owned()));
    }

    #[test]
    fn a_token_is_in_memory_as_its_hash_alone() {
        let auth = Tokens::default().with_token("s3cret", "ci");
        let hash = "1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0";
        let hex: String = Tokens::sha256("s3cret").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, hash, "as `sha256sum` says it");
        let by_hash = Tokens::default().with_sha256(Tokens::sha256("s3cret"), Identity::new("ci"));
        assert_eq!(sender(&by_hash, Some("Bearer s3cret")), sender(&auth, Some("Bearer s3cret")));
        assert_eq!(format!("{auth:?}"), "[CallerId(\"ci\")]", "neither the token nor its hash is for logs");
    }
}
