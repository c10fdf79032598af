//! Who may reach the endpoint by HTTP: requests addressed to this server, and pages that it knows.
//!
//! This is what keeps a web page from talking to a server on the reader's own machine (DNS rebinding).

use std::net::{IpAddr, Ipv6Addr};

use hyper::{
    HeaderMap, Uri,
    header::{
        ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
        AUTHORIZATION, HOST, HeaderName, HeaderValue, ORIGIN, VARY,
    },
};

use crate::config::HttpConfig;

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) message: String,
}

fn malformed(message: impl Into<String>) -> Refusal {
    Refusal { status: 400, message: message.into() }
}

fn forbidden(message: String) -> Refusal {
    Refusal { status: 403, message }
}

/// Checks to which host a request is addressed, and from which page it comes. Each of these headers, and the token, may come only once:
/// a proxy may have looked at the other one.
pub(crate) fn check(target: &Uri, headers: &HeaderMap, config: &HttpConfig) -> Result<(), Refusal> {
    one(headers, AUTHORIZATION)?;
    let host = text(headers, HOST)?.ok_or_else(|| malformed("the header `host` is missing"))?;
    if let Some(other) = target.authority().filter(|other| !other.as_str().eq_ignore_ascii_case(host)) {
        return Err(malformed(format!("the request is for `{other}`, but its header `host` says `{host}`")));
    }
    let name = host_name(host).ok_or_else(|| malformed(format!("`{host}` is no host: it is a name or an address, and may have a port")))?;
    if !is_local(name) && !allowed(&config.allowed_hosts, name) && !allowed(&config.allowed_hosts, host) {
        return Err(forbidden(format!("the host `{host}` is not one of ours (configuration key `http.allowed_hosts`)")));
    }
    if let Some(origin) = text(headers, ORIGIN)? {
        let page = origin.split_once("://").and_then(|(_, host)| host_name(host));
        if !page.is_some_and(is_local) && !allowed(&config.allowed_origins, origin) && !is_own_page(headers, name, host, config) {
            return Err(forbidden(format!("pages from `{origin}` may not call this server (configuration key `http.allowed_origins`)")));
        }
    }
    Ok(())
}

/// Whether a page is the server's own: of a host that the configuration names. A `*` names none, since a page can make any name lead here.
fn is_own_page(headers: &HeaderMap, name: &str, host: &str, config: &HttpConfig) -> bool {
    let named = |value: &str| config.allowed_hosts.iter().any(|entry| entry.eq_ignore_ascii_case(value));
    (named(name) || named(host)) && check_same_origin(headers).is_ok()
}

/// The same for an address that only tells numbers: it may be called by any address, because a page can make only a name lead here.
pub(crate) fn check_unless_by_address(target: &Uri, headers: &HeaderMap, config: &HttpConfig) -> Result<(), Refusal> {
    let is_address = |host: &str| host_name(host).is_some_and(|name| name.parse::<IpAddr>().is_ok());
    let is_from_page = headers.contains_key(ORIGIN);
    match text(headers, HOST)? {
        Some(host) if is_address(host) && !is_from_page && target.authority().is_none() => Ok(()),
        _ => check(target, headers, config),
    }
}

/// Refuses what a page of another origin sends, also of one that may call tools: only a page of this server itself may do this.
pub(crate) fn check_same_origin(headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(origin) = text(headers, ORIGIN)? else { return Ok(()) };
    let (page, host) = (origin.split_once("://").map(|(_, page)| page), text(headers, HOST)?);
    match (page, host) {
        (Some(page), Some(host)) if page.eq_ignore_ascii_case(host) => Ok(()),
        _ => Err(forbidden(format!("pages from `{origin}` may not do this: only pages of this server itself may"))),
    }
}

/// The value of a header that may come only once.
fn one(headers: &HeaderMap, name: HeaderName) -> Result<Option<&HeaderValue>, Refusal> {
    let mut values = headers.get_all(&name).iter();
    let value = values.next();
    if values.next().is_some() {
        return Err(malformed(format!("the header `{name}` comes more than once")));
    }
    Ok(value)
}

fn text(headers: &HeaderMap, name: HeaderName) -> Result<Option<&str>, Refusal> {
    let value = one(headers, name)?.map(HeaderValue::to_str);
    value.transpose().map_err(|_| malformed("`host` and `origin` are headers of plain text"))
}

/// Tells a browser that a page from this origin, which has been checked, may use the endpoint, with all headers that it asks for,
/// because tools choose names for some. It may read how its request is refused.
pub(crate) fn allow(headers: &mut HeaderMap, origin: HeaderValue, asked: Option<HeaderValue>) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("POST, GET, DELETE"));
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("mcp-session-id, www-authenticate"));
    if let Some(asked) = asked {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked);
    }
    headers.insert(VARY, HeaderValue::from_static("origin"));
}

fn allowed(list: &[String], value: &str) -> bool {
    list.iter().any(|entry| entry == "*" || entry.eq_ignore_ascii_case(value))
}

/// The host in `host` or `host:port`, without the brackets of an IPv6 address; none if it is anything else.
fn host_name(text: &str) -> Option<&str> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').filter(|(address, _)| address.parse::<Ipv6Addr>().is_ok())?,
        None => {
            let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            (!name.is_empty() && name.chars().all(fits)).then_some((name, port))?
        }
    };
    let is_port = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit()) && digits.parse::<u16>().is_ok();
    (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(name)
}

fn is_local(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status with which these headers are refused; none if they are not.
    fn turned_away(target: &'static str, headers: &[(&'static str, &str)], config: &HttpConfig) -> Option<u16> {
        let parsed = |(name, value): &(&'static str, &str)| (HeaderName::from_static(name), HeaderValue::from_str(value).expect("text"));
        let headers: HeaderMap = headers.iter().map(parsed).collect();
        check(&Uri::from_static(target), &headers, config).err().map(|refusal| refusal.status)
    }

    fn asked(host: &str, origin: Option<&str>, config: &HttpConfig) -> Option<u16> {
        let headers: Vec<_> = [("host", host)].into_iter().chain(origin.map(|origin| ("origin", origin))).collect();
        turned_away("/mcp", &headers, config)
    }

    #[test]
    fn only_this_machine_is_let_in_unless_told_otherwise() {
        let plain = HttpConfig::default();
        for host in ["localhost", "localhost:8787", "127.0.0.1:1", "[::1]:80", "[::1]", "LOCALHOST"] {
            assert_eq!(asked(host, None, &plain), None, "{host}");
        }
        for host in ["evil.example.com", "127.0.0.1.evil.com", "localhost.evil.com:80", "192.168.0.1", "localhost.", "[::2]:80", "127.1"] {
            assert_eq!(asked(host, None, &plain), Some(403), "{host}");
        }
        assert_eq!(asked("localhost", Some("http://localhost:3000"), &plain), None);
        assert_eq!(asked("localhost", Some("http://[::1]:3000"), &plain), None);
        for origin in ["http://evil.example.com", "null", "https://127.0.0.1.evil.com", "http://localhost.evil.com"] {
            assert_eq!(asked("localhost", Some(origin), &plain), Some(403), "{origin}");
        }
        let open = HttpConfig {
            allowed_hosts: vec!["tools.example".to_owned(), "fd00::1".to_owned()],
            allowed_origins: vec!["https://app.example".to_owned()],
            ..HttpConfig::default()
        };
        assert_eq!(asked("tools.example:443", Some("https://app.example"), &open), None);
        assert_eq!(asked("[fd00::1]:443", None, &open), None);
        assert_eq!(asked("tools.example", Some("https://other.example"), &open), Some(403));
        assert_eq!(asked("tools.example", Some("https://tools.example"), &open), None, "a page of this server");
        assert_eq!(asked("tools.example", Some("https://tools.example:8443"), &open), Some(403), "another server on that machine");
        let rebound = HttpConfig { allowed_hosts: vec!["*".to_owned()], ..HttpConfig::default() };
        assert_eq!(asked("evil.example", Some("http://evil.example"), &rebound), Some(403), "a name that was made to lead here");
        let any = HttpConfig { allowed_hosts: vec!["*".to_owned()], allowed_origins: vec!["*".to_owned()], ..HttpConfig::default() };
        assert_eq!(asked("whatever", Some("https://whatever"), &any), None);
        assert_eq!(asked("what/ever", None, &any), Some(400), "any host, but a host");
    }

    #[test]
    fn numbers_are_told_to_whoever_calls_by_an_address() {
        let named = HttpConfig { allowed_hosts: vec!["taskwire".to_owned()], ..HttpConfig::default() };
        let refused = |host: &str, origin: Option<&str>| {
            let value = |text: &str| HeaderValue::from_str(text).expect("text");
            let mut headers = HeaderMap::from_iter([(HOST, value(host))]);
            headers.extend(origin.map(|origin| (ORIGIN, value(origin))));
            check_unless_by_address(&Uri::from_static("/metrics"), &headers, &named).err().map(|refusal| refusal.status)
        };
        for host in ["127.0.0.1:9464", "10.1.2.3:9464", "[fd00::1]:9464", "localhost:9464", "taskwire:9464"] {
            assert_eq!(refused(host, None), None, "{host}");
        }
        assert_eq!(refused("rebound.example:9464", None), Some(403));
        assert_eq!(refused("10.1.2.3:9464", Some("http://evil.example")), Some(403), "a page that calls an address");
        assert_eq!(refused("127.1:9464", None), Some(403), "that is a name");
    }

    #[test]
    fn only_a_page_of_the_server_itself_changes_anything() {
        let refused = |host: &str, origin: Option<&str>| {
            let value = |text: &str| HeaderValue::from_str(text).expect("text");
            let mut headers = HeaderMap::from_iter([(HOST, value(host))]);
            headers.extend(origin.map(|origin| (ORIGIN, value(origin))));
            check_same_origin(&headers).err().map(|refusal| refusal.status)
        };
        assert_eq!(refused("localhost:8787", None), None, "no page at all");
        assert_eq!(refused("localhost:8787", Some("http://localhost:8787")), None);
        assert_eq!(refused("tools.example", Some("https://TOOLS.example")), None);
        for origin in ["http://localhost:3000", "http://127.0.0.1:8787", "null", "", "localhost:8787", "https://localhost"] {
            assert_eq!(refused("localhost:8787", Some(origin)), Some(403), "{origin}");
        }
    }

    #[test]
    fn what_only_begins_like_this_machine_is_another() {
        let plain = HttpConfig::default();
        for host in [
            "[::1].evil.com",
            "[::1]evil.com:80",
            "[::1",
            "[localhost]",
            "[::1%25lo]:80",
            "::1",
            "localhost:80@evil.com",
            "localhost@evil.com",
            "user@localhost",
            "localhost:",
            "localhost:+80",
            "localhost:65536",
            "localhost:80:80",
            "localhost/evil.com",
            "localhost,evil.com",
            "localhost evil.com",
            ":80",
            "",
        ] {
            assert_eq!(asked(host, None, &plain), Some(400), "{host}");
            let origin = format!("http://{host}");
            assert_eq!(asked("localhost", Some(&origin), &plain), Some(403), "{origin}");
        }
        assert_eq!(asked("localhost", Some("http://localhost:80/evil.com"), &plain), Some(403));
    }

    #[test]
    fn a_request_names_one_host_one_page_and_one_token() {
        let plain = HttpConfig::default();
        assert_eq!(turned_away("/mcp", &[], &plain), Some(400));
        let host = ("host", "localhost");
        assert_eq!(turned_away("/mcp", &[host, host], &plain), Some(400));
        for header in [("origin", "http://localhost"), ("authorization", "Bearer x")] {
            assert_eq!(turned_away("/mcp", &[host, header], &plain), None, "{header:?}");
            assert_eq!(turned_away("/mcp", &[host, header, header], &plain), Some(400), "{header:?}");
        }
        for (target, host, status) in [
            ("http://localhost:8787/mcp", "localhost:8787", None),
            ("http://LOCALHOST:8787/mcp", "localhost:8787", None),
            ("http://evil.com/mcp", "localhost", Some(400)),
            ("http://localhost/mcp", "evil.com", Some(400)),
            ("http://evil.com/mcp", "evil.com", Some(403)),
            ("http://user@localhost/mcp", "localhost", Some(400)),
            ("http://user@localhost/mcp", "user@localhost", Some(400)),
            ("http://localhost:80/mcp", "localhost", Some(400)),
        ] {
            assert_eq!(turned_away(target, &[("host", host)], &plain), status, "{target} {host}");
        }
        assert_eq!(turned_away("http://localhost/mcp", &[], &plain), Some(400), "also where the target has one");
    }
}
