//! Who is calling. Without tokens every caller is `local`, so such a server listens on loopback only.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use taskwire_core::CallerId;

/// The caller of a server without tokens.
const LOCAL: &str = "local";

/// Decides who sent a request.
pub trait Authenticate: std::fmt::Debug + Send + Sync {
    /// Whether callers must prove who they are.
    fn is_required(&self) -> bool;

    /// The caller that an `Authorization` header stands for. Its name has at most 500 bytes, which is what a database takes.
    ///
    /// # Errors
    /// When callers must prove who they are, and this header does not.
    fn caller(&self, authorization: Option<&[u8]>) -> Result<CallerId, Unauthorized>;
}

/// The caller on a byte stream or socket that only this process's user has.
pub(crate) fn local_caller() -> CallerId {
    CallerId::new(LOCAL)
}

/// The tokens that a server accepts, each with the caller that it stands for.
#[derive(Clone, Default)]
pub struct Tokens {
    tokens: Vec<(Vec<u8>, CallerId)>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.tokens.iter().map(|(_, caller)| caller)).finish()
    }
}

/// No token, or an unknown one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("send a known token as `Authorization: Bearer …`")]
pub struct Unauthorized;

impl Tokens {
    /// Accepts a token for a caller.
    #[must_use]
    pub fn with_token(mut self, token: &str, caller: &str) -> Self {
        self.tokens.push((token.as_bytes().to_vec(), CallerId::new(caller)));
        self
    }
}

impl Authenticate for Tokens {
    fn is_required(&self) -> bool {
        !self.tokens.is_empty()
    }

    fn caller(&self, authorization: Option<&[u8]>) -> Result<CallerId, Unauthorized> {
        if self.tokens.is_empty() {
            return Ok(local_caller());
        }
        let header = authorization.ok_or(Unauthorized)?;
        let (scheme, token) = header.split_at_checked(7).ok_or(Unauthorized)?;
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return Err(Unauthorized);
        }
        self.tokens.iter().find(|(known, _)| equal(known, token.trim_ascii())).map(|(_, caller)| caller.clone()).ok_or(Unauthorized)
    }
}

/// Compares in constant time, so that nobody can guess a token piece by piece.
fn equal(known: &[u8], sent: &[u8]) -> bool {
    let mac = |text: &[u8]| Hmac::<Sha256>::new_from_slice(known).expect("any key length will do").chain_update(text);
    mac(known).verify(&mac(sent).finalize().into_bytes()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_stands_for_its_caller() {
        let auth = Tokens::default().with_token("s3cret", "ci").with_token("other", "me");
        assert_eq!(auth.caller(Some(b"Bearer s3cret")), Ok(CallerId::new("ci")));
        assert_eq!(auth.caller(Some(b"bearer other")), Ok(CallerId::new("me")));
        for bad in [None, Some(&b"Bearer wrong"[..]), Some(b"Bearer "), Some(b"s3cret"), Some(b"Basic s3cret"), Some(b"Bearer s3cre")] {
            assert_eq!(auth.caller(bad), Err(Unauthorized));
        }
        assert_eq!(Tokens::default().caller(None), Ok(CallerId::new("local")));
    }
}
