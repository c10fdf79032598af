//! Who may reach the endpoint by HTTP: requests addressed to this server, and pages that it knows.
//!
//! This is what keeps a web page from talking to a server on the reader's own machine (DNS rebinding).

use hyper::{
    HeaderMap,
    header::{
        ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, HOST,
        HeaderValue, ORIGIN, VARY,
    },
};

use crate::server::HttpConfig;

/// Why a request is turned away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Forbidden(pub(crate) String);

/// Checks `Host` and `Origin`.
pub(crate) fn check(headers: &HeaderMap, config: &HttpConfig) -> Result<(), Forbidden> {
    let text = |name| headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("?")).collect::<Vec<_>>();
    for host in text(HOST) {
        if !is_local(host_name(host)) && !allowed(&config.allowed_hosts, host_name(host)) && !allowed(&config.allowed_hosts, host) {
            return Err(Forbidden(format!("the host `{host}` is not one of ours (configuration key `http.allowed_hosts`)")));
        }
    }
    for origin in text(ORIGIN) {
        let host = origin.split_once("://").map(|(_, rest)| host_name(rest));
        if !host.is_some_and(is_local) && !allowed(&config.allowed_origins, origin) {
            return Err(Forbidden(format!("pages from `{origin}` may not call this server (configuration key `http.allowed_origins`)")));
        }
    }
    Ok(())
}

/// Tells a browser that a page from this origin, which has been checked, may use the endpoint, with the headers that it
/// asks for: tools choose names for some.
pub(crate) fn allow(headers: &mut HeaderMap, origin: HeaderValue, asked: Option<HeaderValue>) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("POST, GET, DELETE"));
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("mcp-session-id"));
    if let Some(asked) = asked {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked);
    }
    headers.insert(VARY, HeaderValue::from_static("origin"));
}

fn allowed(list: &[String], value: &str) -> bool {
    list.iter().any(|entry| entry == "*" || entry.eq_ignore_ascii_case(value))
}

/// A host without its port.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((v6, _)) => v6,
        None => host.split_once(':').map_or(host, |(name, _)| name),
    }
}

fn is_local(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(host: &str, origin: Option<&str>, config: &HttpConfig) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().expect("a header value"));
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().expect("a header value"));
        }
        check(&headers, config).is_ok()
    }

    #[test]
    fn only_this_machine_is_let_in_unless_told_otherwise() {
        let plain = HttpConfig::default();
        for host in ["localhost", "localhost:8787", "127.0.0.1:1", "[::1]:80", "LOCALHOST"] {
            assert!(ok(host, None, &plain), "{host}");
        }
        for host in ["evil.example.com", "127.0.0.1.evil.com", "localhost.evil.com:80", "192.168.0.1"] {
            assert!(!ok(host, None, &plain), "{host}");
        }
        assert!(ok("localhost", Some("http://localhost:3000"), &plain));
        for origin in ["http://evil.example.com", "null", "https://127.0.0.1.evil.com", "http://localhost.evil.com"] {
            assert!(!ok("localhost", Some(origin), &plain), "{origin}");
        }
        let open = HttpConfig {
            allowed_hosts: vec!["tools.example".to_owned()],
            allowed_origins: vec!["https://app.example".to_owned()],
            ..HttpConfig::default()
        };
        assert!(ok("tools.example:443", Some("https://app.example"), &open));
        assert!(!ok("tools.example", Some("https://other.example"), &open));
        let any = HttpConfig { allowed_hosts: vec!["*".to_owned()], allowed_origins: vec!["*".to_owned()], ..HttpConfig::default() };
        assert!(ok("whatever", Some("https://whatever"), &any));
    }
}
