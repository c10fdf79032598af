//! Certificates for tests, and the authority that makes them.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// Somebody who signs certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    pub(crate) certificate: String,
}

/// A certificate and its key.
#[derive(Debug, Clone)]
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    /// A certificate of whoever has this common name, with what the test wants besides.
    pub(crate) fn signs(&self, name: &str, adding: impl FnOnce(&mut CertificateParams)) -> Signed {
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        adding(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Signed { certificate, key: key.serialize_pem() }
    }

    /// A certificate of a server on this machine.
    pub(crate) fn server(&self) -> Signed {
        self.signs("server", |params| {
            let names = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("names");
            params.subject_alt_names = names.subject_alt_names;
        })
    }
}
