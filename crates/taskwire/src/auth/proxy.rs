//! A proxy that knows its callers and names them in a header. Only requests from its addresses are believed.

use std::{net::IpAddr, str::FromStr};

use hyper::header::HeaderName;

use super::{Denied, Identity, RequestCredentials, Scopes, named_by};

/// What the names of such callers begin with, so that nobody behind the proxy can take the name of another kind of caller.
const PREFIX: &str = "proxy:";

/// A proxy that says in a header who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedProxy {
    header: HeaderName,
    from: Vec<Network>,
}

impl TrustedProxy {
    /// A proxy with one of these addresses, which names the caller in this header. The caller is `proxy:NAME`.
    ///
    /// # Errors
    /// When that is no name of a header.
    pub fn new(header: &str, from: Vec<Network>) -> Result<Self, String> {
        let header = HeaderName::from_str(header).map_err(|_| format!("`{header}` is no name of a header"))?;
        Ok(Self { header, from })
    }

    /// Whether a request comes from the proxy.
    pub(super) fn has_sent(&self, credentials: RequestCredentials<'_>) -> bool {
        let address = credentials.address().map(|address| address.to_canonical());
        address.is_some_and(|address| self.from.iter().any(|network| network.contains(address)))
    }

    /// The caller that the proxy names; none if it names none, or if the request does not come from it.
    pub(super) fn identify(&self, credentials: RequestCredentials<'_>) -> Option<Result<Identity, Denied>> {
        if !self.has_sent(credentials) {
            return None;
        }
        let mut values = credentials.values(&self.header);
        let name = values.next().map(<[u8]>::trim_ascii).filter(|name| !name.is_empty())?;
        if values.next().is_some() {
            return Some(Err(Denied::Malformed(format!("the header `{}` comes more than once", self.header))));
        }
        Some(match std::str::from_utf8(name) {
            Ok(name) => Ok(Identity { caller: named_by(PREFIX, name), scopes: Scopes::All, expires: None, admin: false }),
            Err(_) => Err(Denied::Malformed(format!("the header `{}` is no text", self.header))),
        })
    }
}

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    /// How many bits of it count.
    bits: u8,
}

impl Network {
    fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                network.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                network.to_bits() & mask == address.to_bits() & mask
            }
            _ => false,
        }
    }
}

/// An address (`127.0.0.1`), or as many of its bits as count (`10.0.0.0/8`).
impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is neither an address such as \"127.0.0.1\" nor a range such as \"10.0.0.0/8\"");
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let all: u8 = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(all), |bits| bits.parse().map_err(|_| wrong()))?;
        if bits > all {
            return Err(wrong());
        }
        Ok(Self { address, bits })
    }
}

#[cfg(test)]
mod tests {
    use hyper::{HeaderMap, header::HeaderValue};
    use taskwire_core::Timestamp;

    use super::*;

    #[test]
    fn a_range_has_the_addresses_that_begin_like_it() {
        let has = |network: &str, address: &str| {
            let network: Network = network.parse().expect("a range");
            network.contains(address.parse::<IpAddr>().expect("an address").to_canonical())
        };
        assert!(has("127.0.0.1", "127.0.0.1") && !has("127.0.0.1", "127.0.0.2"));
        assert!(has("10.0.0.0/8", "10.255.0.1") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("0.0.0.0/0", "203.0.113.9") && !has("0.0.0.0/0", "::1"));
        assert!(has("::1", "::1") && has("fd00::/8", "fdff::2") && !has("fd00::/8", "fe80::1") && has("::/0", "2001:db8::1"));
        assert!(has("127.0.0.1/32", "::ffff:127.0.0.1"), "as a socket for both kinds shows it");
        for bad in ["", "localhost", "127.0.0.1/33", "127.0.0.1/", "::1/129", "127.0.0.1/-1", "127.0.0"] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_the_proxy_is_believed_and_it_names_one_caller() {
        let proxy = TrustedProxy::new("X-Forwarded-User", vec!["10.0.0.0/8".parse().expect("a range")]).expect("a header");
        let named = |from: &str, values: &[&'static [u8]]| {
            let header = HeaderName::from_static("x-forwarded-user");
            let value = |bytes: &&'static [u8]| HeaderValue::from_bytes(bytes).expect("a value");
            let headers: HeaderMap = values.iter().map(|bytes| (header.clone(), value(bytes))).collect();
            let from = (!from.is_empty()).then(|| from.parse().expect("an address"));
            let identified = proxy.identify(RequestCredentials::new(&headers, from, Timestamp::from_millis(1)));
            identified.map(|identified| identified.map(|identity| identity.caller.as_str().to_owned()).map_err(|_| "refused"))
        };
        assert_eq!(named("10.1.2.3", &[b"ada"]), Some(Ok("proxy:ada".to_owned())));
        assert_eq!(named("11.1.2.3", &[b"ada"]), None, "somebody else says so");
        assert_eq!(named("", &[b"ada"]), None);
        assert_eq!(named("10.1.2.3", &[]), None);
        assert_eq!(named("10.1.2.3", &[b" "]), None);
        assert_eq!(named("10.1.2.3", &[b"ada", b"bob"]), Some(Err("refused")));
        assert_eq!(named("10.1.2.3", &[b"\xff"]), Some(Err("refused")));
        assert!(TrustedProxy::new("x user", Vec::new()).is_err());
    }
}
