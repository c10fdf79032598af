//! `[metrics]`: who may read what the server counts.

use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct MetricsTable {
    /// Whether `/metrics` says what the server counts, to whoever may call. Default: `true`.
    enabled: Option<bool>,
    /// An address besides, such as `"127.0.0.1:9464"`, that has nothing but `/metrics` and on which nobody needs a token. It is one of this
    /// machine or of a private network. Default: none.
    pub(crate) listen: Option<String>,
}

impl MetricsTable {
    pub(super) fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    /// The address that has nothing but `/metrics`, if there is one. The error says why it cannot be used.
    pub(crate) fn address(&self) -> Result<Option<SocketAddr>, String> {
        let Some(listen) = &self.listen else { return Ok(None) };
        if !self.is_enabled() {
            return Err("`metrics.listen` serves nothing while `metrics.enabled` is false: leave out one of them".to_owned());
        }
        let example = "such as \"127.0.0.1:9464\"";
        let address: SocketAddr =
            listen.parse().map_err(|_| format!("`metrics.listen` is the number of an address with a port, {example}, not {listen:?}"))?;
        if !is_private(address.ip()) {
            return Err(format!(
                "{address} may be reached from everywhere, and nobody needs a token there: `metrics.listen` is an address of this machine \
                 or of a private network, {example}"
            ));
        }
        Ok(Some(address))
    }
}

/// Whether an address can be reached only from this machine or from a network of its owner.
fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(listen: &str) -> Result<Option<SocketAddr>, String> {
        MetricsTable { enabled: None, listen: Some(listen.to_owned()) }.address()
    }

    #[test]
    fn metrics_without_a_token_are_for_this_machine_and_private_networks() {
        for good in ["127.0.0.1:9464", "10.0.0.1:1", "172.16.3.4:80", "192.168.1.1:80", "169.254.1.1:80", "[::1]:9464", "[fd00::1]:1"] {
            assert_eq!(at(good), Ok(Some(good.parse().expect("an address"))));
        }
        for open in ["0.0.0.0:9464", "[::]:9464", "8.8.8.8:1", "172.32.0.1:1", "[2001:db8::1]:1", "[::ffff:8.8.8.8]:1"] {
            let why = at(open).expect_err(open);
            assert!(why.starts_with(&open.parse::<SocketAddr>().expect("an address").to_string()) && why.contains("token"), "{why}");
        }
        for odd in ["", "9464", "localhost:9464", "127.0.0.1", "127.0.0.1:x"] {
            let why = at(odd).expect_err(odd);
            assert!(why.contains("127.0.0.1:9464") && why.contains(&format!("{odd:?}")), "{why}");
        }
        assert_eq!(MetricsTable::default().address(), Ok(None));
        let off = MetricsTable { enabled: Some(false), listen: Some("127.0.0.1:1".to_owned()) };
        assert!(off.address().expect_err("of no use").contains("`metrics.enabled`"));
    }
}
