//! Signs tokens with a key that is made for it. Unit tests share this with the integration tests, which include it by its path.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use serde_json::{Value, json};

/// A key of an issuer.
pub(crate) struct Signer {
    id: String,
    key: EcdsaKeyPair,
}

impl Signer {
    pub(crate) fn new(id: &str) -> Self {
        let (kind, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let document = EcdsaKeyPair::generate_pkcs8(kind, &random).expect("a key");
        Self { id: id.to_owned(), key: EcdsaKeyPair::from_pkcs8(kind, document.as_ref(), &random).expect("the key") }
    }

    /// Its public half, as an issuer shows it.
    pub(crate) fn jwk(&self) -> Value {
        let point = self.key.public_key().as_ref();
        let (x, y) = point[1..].split_at(32);
        json!({"kty": "EC", "crv": "P-256", "use": "sig", "kid": self.id, "x": encoded(x), "y": encoded(y)})
    }

    /// A token with these claims.
    pub(crate) fn sign(&self, claims: &Value) -> String {
        self.sign_with(&json!({"typ": "at+jwt", "alg": "ES256", "kid": self.id}), claims)
    }

    /// The same with a header of the test's own.
    pub(crate) fn sign_with(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", encoded(header.to_string().as_bytes()), encoded(claims.to_string().as_bytes()));
        let signature = self.key.sign(&SystemRandom::new(), message.as_bytes()).expect("a signature");
        format!("{message}.{}", encoded(signature.as_ref()))
    }
}

/// Bytes as they stand in a token.
pub(crate) fn encoded(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}
