//! A token that can be read: a JWT. What it says is believed only when an issuer's key has signed it.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use jsonwebtoken::Algorithm;
use serde_json::{Map, Value};

use crate::auth::Denied;

/// What the header of an access token may say that it is.
const ACCESS_TOKEN_KINDS: [&str; 3] = ["JWT", "at+jwt", "application/at+jwt"];
/// What some issuers say in the claims of their other tokens.
const OTHER_TOKENS: [&str; 3] = ["ID", "Refresh", "Logout"];

/// What a token says about itself.
pub(super) type Claims = Map<String, Value>;

/// A JWT that nobody has verified yet.
pub(super) struct Jwt {
    pub(super) algorithm: Algorithm,
    pub(super) key_id: Option<String>,
    pub(super) claims: Claims,
    /// What is signed.
    pub(super) message: String,
    pub(super) signature: Vec<u8>,
}

impl Jwt {
    /// Reads a token; none if it is of another kind.
    pub(super) fn read(token: &str) -> Result<Option<Self>, Denied> {
        let parts = token.rsplit_once('.').and_then(|(message, signature)| Some((message, message.split_once('.')?, signature)));
        let Some((message, (header, claims), signature)) = parts else { return Ok(None) };
        let Some(header) = object(header) else { return Ok(None) };
        let Some(algorithm) = header.get("alg").and_then(Value::as_str) else { return Ok(None) };
        let algorithm = algorithm.parse().map_err(|_| Denied::invalid("its algorithm is not accepted here"))?;
        if header.contains_key("crit") {
            return Err(Denied::invalid("the token has conditions that are not known here"));
        }
        let kind = header.get("typ").and_then(Value::as_str).unwrap_or("JWT");
        if !ACCESS_TOKEN_KINDS.iter().any(|known| known.eq_ignore_ascii_case(kind)) {
            return Err(Denied::invalid("the token is no access token"));
        }
        let key_id = header.get("kid").and_then(Value::as_str).map(ToOwned::to_owned);
        let (claims, signature) =
            object(claims).zip(BASE64_URL_SAFE_NO_PAD.decode(signature).ok()).ok_or_else(|| Denied::invalid("the token cannot be read"))?;
        if claims.get("typ").and_then(Value::as_str).is_some_and(|kind| OTHER_TOKENS.contains(&kind)) {
            return Err(Denied::invalid("the token is no access token"));
        }
        Ok(Some(Self { algorithm, key_id, claims, message: message.to_owned(), signature }))
    }

    /// Who has issued it, as it says.
    pub(super) fn issuer(&self) -> Option<&str> {
        self.claims.get("iss").and_then(Value::as_str)
    }
}

fn object(part: &str) -> Option<Map<String, Value>> {
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}
