//! Whether a signature is that of a key: by ring, which TLS brings along anyway.
//!
//! `jsonwebtoken` can verify too, but only by a library that is chosen once for the whole process. That is for whoever owns the process.

use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters,
    RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};

/// Whether this algorithm with this public key made this signature. A key of another kind made none, least of all one with a shared
/// secret.
pub(super) fn is_good(algorithm: Algorithm, key: &DecodingKey, message: &[u8], signature: &[u8]) -> bool {
    if key.family() != algorithm.family() {
        return false;
    }
    match (key.family(), key.kind()) {
        (AlgorithmFamily::Rsa, DecodingKeyKind::RsaModulusExponent { n, e }) => rsa(algorithm).is_some_and(|parameters| {
            let key = RsaPublicKeyComponents { n: without_zeros(n), e: without_zeros(e) };
            key.verify(parameters, message, signature).is_ok()
        }),
        (AlgorithmFamily::Ec | AlgorithmFamily::Ed, DecodingKeyKind::SecretOrDer(point)) => {
            curve(algorithm).is_some_and(|curve| UnparsedPublicKey::new(curve, point).verify(message, signature).is_ok())
        }
        _ => false,
    }
}

fn rsa(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        Algorithm::RS256 => &RSA_PKCS1_2048_8192_SHA256,
        Algorithm::RS384 => &RSA_PKCS1_2048_8192_SHA384,
        Algorithm::RS512 => &RSA_PKCS1_2048_8192_SHA512,
        Algorithm::PS256 => &RSA_PSS_2048_8192_SHA256,
        Algorithm::PS384 => &RSA_PSS_2048_8192_SHA384,
        Algorithm::PS512 => &RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

fn curve(algorithm: Algorithm) -> Option<&'static dyn VerificationAlgorithm> {
    let curve: &'static dyn VerificationAlgorithm = match algorithm {
        Algorithm::ES256 => &ECDSA_P256_SHA256_FIXED,
        Algorithm::ES384 => &ECDSA_P384_SHA384_FIXED,
        Algorithm::EdDSA => &ED25519,
        _ => return None,
    };
    Some(curve)
}

/// Some providers write a number with zeros before it, which ring refuses.
fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}
