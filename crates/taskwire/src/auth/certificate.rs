//! What a certificate says: whom it names, and until when it is valid. Whether it can be trusted has been seen to before.

use taskwire_core::Timestamp;

use super::{Denied, Identity, Scopes, named_by};

/// What the names of such callers begin with, so that no certificate can name another kind of caller.
const PREFIX: &str = "cert:";

/// A certificate of an authority that the server trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    name: Option<String>,
    expires: Timestamp,
}

impl Certificate {
    /// Whom it names: the first URI among its alternative names, else the first host, else the first mail address. If it has none of
    /// these, the common name of its subject after `cn:`.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// When it expires.
    #[must_use]
    pub fn expires(&self) -> Timestamp {
        self.expires
    }

    /// The caller whom it names.
    pub(super) fn identify(&self, now: Timestamp) -> Result<Identity, Denied> {
        if self.expires <= now {
            return Err(Denied::Certificate("the client certificate has expired".to_owned()));
        }
        let nobody = || Denied::Certificate("the client certificate names nobody".to_owned());
        let name = self.name().ok_or_else(nobody)?;
        Ok(Identity { caller: named_by(PREFIX, name), scopes: Scopes::All, expires: Some(self.expires), admin: false })
    }
}

#[cfg(feature = "tls")]
mod x509 {
    use taskwire_core::Timestamp;
    use x509_cert::{
        Certificate as X509, TbsCertificate,
        der::{Decode, Tag, Tagged, asn1::ObjectIdentifier},
        ext::pkix::{SubjectAltName, name::GeneralName},
    };

    use super::Certificate;

    /// What a common name begins with: it is free text, and must not look like the alternative name of somebody else.
    const OF_SUBJECT: &str = "cn:";
    const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

    impl Certificate {
        /// Reads a certificate (DER). The error says what is wrong with it.
        pub(crate) fn read(der: &[u8]) -> Result<Self, String> {
            let tbs = X509::from_der(der).map_err(|error| error.to_string())?.tbs_certificate;
            let until = tbs.validity.not_after.to_unix_duration().as_millis();
            let expires = Timestamp::from_millis(i64::try_from(until).unwrap_or(i64::MAX));
            Ok(Self { name: name_of(&tbs)?, expires })
        }
    }

    fn name_of(tbs: &TbsCertificate) -> Result<Option<String>, String> {
        let alternative = tbs.get::<SubjectAltName>().map_err(|error| format!("its alternative names cannot be read: {error}"))?;
        let names = alternative.map(|(_, names)| names.0).unwrap_or_default();
        let kinds: [fn(&GeneralName) -> Option<&str>; 3] = [uri, host, mail];
        let first = |kind: fn(&GeneralName) -> Option<&str>| {
            names.iter().filter_map(kind).find(|name| !name.is_empty() && !name.starts_with(OF_SUBJECT))
        };
        let named = kinds.into_iter().find_map(first).map(ToOwned::to_owned);
        Ok(named.or_else(|| Some(format!("{OF_SUBJECT}{}", common_name(tbs)?))))
    }

    fn uri(name: &GeneralName) -> Option<&str> {
        if let GeneralName::UniformResourceIdentifier(uri) = name { Some(uri.as_str()) } else { None }
    }

    fn host(name: &GeneralName) -> Option<&str> {
        if let GeneralName::DnsName(host) = name { Some(host.as_str()) } else { None }
    }

    fn mail(name: &GeneralName) -> Option<&str> {
        if let GeneralName::Rfc822Name(mail) = name { Some(mail.as_str()) } else { None }
    }

    /// The last one, which is the most specific.
    fn common_name(tbs: &TbsCertificate) -> Option<String> {
        let value = &tbs.subject.0.iter().flat_map(|part| part.0.iter()).rfind(|attribute| attribute.oid == COMMON_NAME)?.value;
        // Other kinds of texts are of former times, and not UTF-8.
        let is_text = matches!(value.tag(), Tag::Utf8String | Tag::PrintableString | Tag::Ia5String);
        let text = std::str::from_utf8(value.value()).ok().filter(|text| is_text && !text.is_empty())?;
        Some(text.to_owned())
    }
}

#[cfg(test)]
impl Certificate {
    pub(super) fn new(name: &str, expires: Timestamp) -> Self {
        Self { name: Some(name.to_owned()), expires }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_named_by_a_certificate_that_names_nobody_or_has_expired() {
        let caller = |certificate: &Certificate| certificate.identify(Timestamp::from_millis(5)).map(|who| who.caller.as_str().to_owned());
        assert_eq!(caller(&Certificate::new("ada", Timestamp::from_millis(6))), Ok("cert:ada".to_owned()));
        assert_eq!(caller(&Certificate::new("proxy:ada", Timestamp::from_millis(6))), Ok("cert:proxy:ada".to_owned()));
        let odd = caller(&Certificate::new("a\nb", Timestamp::from_millis(6))).expect("somebody");
        assert!(odd.starts_with("cert:sha256:"), "{odd}");
        assert!(caller(&Certificate::new("ada", Timestamp::from_millis(5))).is_err());
        assert!(caller(&Certificate { name: None, expires: Timestamp::from_millis(6) }).is_err());
    }

    #[cfg(feature = "tls")]
    #[test]
    fn the_name_is_that_of_a_uri_a_host_a_mail_address_or_the_subject() {
        use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SanType};

        let read = |names: &[SanType], subject: Option<DnValue>| {
            let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
            params.subject_alt_names = names.to_vec();
            params.distinguished_name = rcgen::DistinguishedName::new();
            if let Some(subject) = subject {
                params.distinguished_name.push(DnType::CommonName, subject);
            }
            params.not_after = rcgen::date_time_ymd(2026, 7, 29);
            let signed = params.self_signed(&KeyPair::generate().expect("a key")).expect("a certificate");
            Certificate::read(signed.der()).expect("readable")
        };
        let name = |names: &[SanType], subject: &str| read(names, Some(DnValue::from(subject))).name().map(ToOwned::to_owned);
        let uri = SanType::URI("spiffe://example/ada".try_into().expect("ASCII"));
        let host = SanType::DnsName("ada.example".try_into().expect("ASCII"));
        let mail = SanType::Rfc822Name("ada@example".try_into().expect("ASCII"));
        let address = SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
        assert_eq!(name(&[host.clone(), uri.clone(), mail.clone()], "Ada").as_deref(), Some("spiffe://example/ada"));
        assert_eq!(name(&[mail.clone(), host], "Ada").as_deref(), Some("ada.example"));
        assert_eq!(name(&[mail], "Ada").as_deref(), Some("ada@example"));
        assert_eq!(name(std::slice::from_ref(&address), "Ada Löve").as_deref(), Some("cn:Ada Löve"));
        assert_eq!(name(&[], "spiffe://example/ada").as_deref(), Some("cn:spiffe://example/ada"), "it is no URI");
        let odd = SanType::URI("cn:ada".try_into().expect("ASCII"));
        assert_eq!(name(&[odd], "bob").as_deref(), Some("cn:bob"), "no alternative name looks like a common name");
        let nameless = read(&[address], None);
        assert_eq!((nameless.name(), nameless.expires()), (None, Timestamp::from_millis(1_785_283_200_000)));
        assert!(Certificate::read(b"nothing").is_err());
    }
}
