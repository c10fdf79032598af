//! What a client reads to find who issues tokens for this server: protected resource metadata (RFC 9728).

use hyper::Uri;
use serde_json::json;

use super::ScopeRules;

/// Where the metadata is, before the path of the resource.
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";
/// The path at which this server has its resource, wherever a proxy shows it.
const OWN_PATH: &str = "/mcp";

/// This server as a resource that tokens are issued for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtectedResource {
    url: String,
    host: String,
    path: String,
    metadata_url: String,
    issuers: Vec<String>,
}

impl ProtectedResource {
    /// The server at this URL, by which clients know it, with the issuers of its tokens.
    ///
    /// # Errors
    /// When that is no URL of a server.
    pub fn new(url: &str, issuers: Vec<String>) -> Result<Self, String> {
        let wrong = || format!("`{url}` is no URL of a server: write one such as \"https://tools.example/mcp\"");
        let uri: Uri = url.parse().ok().filter(|_| canonical(url).is_some()).ok_or_else(wrong)?;
        let (Some(scheme), Some(authority), None) = (uri.scheme_str(), uri.authority(), uri.query()) else { return Err(wrong()) };
        let path = uri.path().strip_suffix('/').unwrap_or(uri.path()).to_owned();
        let metadata_url = format!("{scheme}://{authority}{WELL_KNOWN}{path}");
        Ok(Self { url: url.to_owned(), host: authority.host().to_owned(), path, metadata_url, issuers })
    }

    /// The host by which clients address the server.
    #[must_use]
    pub fn host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Where a client finds the metadata.
    pub(crate) fn metadata_url(&self) -> &str {
        &self.metadata_url
    }

    /// Whether the metadata is at this path of the server: the one that belongs to the resource's URL, to `/mcp`, or to the whole host.
    pub(crate) fn is_described_at(&self, path: &str) -> bool {
        path.strip_prefix(WELL_KNOWN).is_some_and(|rest| rest.is_empty() || rest == OWN_PATH || rest == self.path)
    }

    /// The metadata, as JSON text.
    pub(crate) fn document(&self, name: &str, rules: &ScopeRules) -> String {
        let mut document = json!({
            "resource": self.url,
            "resource_name": name,
            "authorization_servers": self.issuers,
            "bearer_methods_supported": ["header"],
        });
        let scopes = rules.all();
        if !scopes.is_empty() {
            document["scopes_supported"] = scopes.into_iter().collect();
        }
        document.to_string()
    }
}

/// One form for all ways to write the same URL of a server: small letters in scheme and host, no default port, no slash at the end. None
/// if it is anything else.
pub(super) fn canonical(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok().filter(|_| !url.contains('#'))?;
    let (scheme, authority) = (uri.scheme_str()?.to_ascii_lowercase(), uri.authority()?);
    let default_port = match scheme.as_str() {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let host = authority.host().to_ascii_lowercase();
    if host.is_empty() || authority.as_str().contains('@') {
        return None;
    }
    let port = authority.port_u16().filter(|port| *port != default_port).map(|port| format!(":{port}")).unwrap_or_default();
    let path = uri.path().strip_suffix('/').unwrap_or(uri.path());
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    Some(format!("{scheme}://{host}{port}{path}{query}"))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn one_address_has_one_form() {
        let same = ["https://host.example/mcp", "HTTPS://Host.EXAMPLE/mcp", "https://host.example:443/mcp", "https://host.example/mcp/"];
        for url in same {
            assert_eq!(canonical(url).as_deref(), Some("https://host.example/mcp"), "{url}");
        }
        for url in ["http://host.example/mcp", "https://host.example/MCP", "https://host.example:8443/mcp", "https://host.example/mcp?a"] {
            assert_ne!(canonical(url).as_deref(), Some("https://host.example/mcp"), "{url}");
        }
        assert_eq!(canonical("http://[::1]:80/").as_deref(), Some("http://[::1]"));
        for other in ["", "api://guid", "00000000-0000", "/mcp", "https:///mcp", "https://host/mcp#x", "https://me@host/mcp", "ftp://host"]
        {
            assert_eq!(canonical(other), None, "{other}");
        }
    }

    #[test]
    fn the_metadata_is_where_clients_look_for_it() {
        let at = |url: &str| ProtectedResource::new(url, vec!["https://idp.example".to_owned()]).expect("a URL");
        let plain = at("https://host.example/mcp");
        assert_eq!(plain.metadata_url(), "https://host.example/.well-known/oauth-protected-resource/mcp");
        assert_eq!(plain.host(), "host.example");
        let behind = at("https://host.example:8443/tools/mcp/");
        assert_eq!(behind.metadata_url(), "https://host.example:8443/.well-known/oauth-protected-resource/tools/mcp");
        assert_eq!(at("http://[::1]:7/").metadata_url(), "http://[::1]:7/.well-known/oauth-protected-resource");
        assert_eq!(at("http://[::1]:7/").host(), "::1");
        for path in ["", "/mcp"] {
            assert!(plain.is_described_at(&format!("{WELL_KNOWN}{path}")) && behind.is_described_at(&format!("{WELL_KNOWN}{path}")));
        }
        assert!(behind.is_described_at(&format!("{WELL_KNOWN}/tools/mcp")) && !plain.is_described_at(&format!("{WELL_KNOWN}/tools/mcp")));
        assert!(!plain.is_described_at("/mcp") && !plain.is_described_at(&format!("{WELL_KNOWN}x")));
        for bad in ["host.example", "https://host.example/mcp?a=b", "https://host.example/mcp#a", "ftp://host.example", ""] {
            assert!(ProtectedResource::new(bad, Vec::new()).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_metadata_names_the_resource_its_issuers_and_scopes() {
        let resource = ProtectedResource::new("https://host.example/mcp", vec!["https://idp.example".to_owned()]).expect("a URL");
        let read = |rules: &ScopeRules| serde_json::from_str::<Value>(&resource.document("tools", rules)).expect("JSON");
        let plain = read(ScopeRules::none());
        assert_eq!(
            plain,
            json!({
                "resource": "https://host.example/mcp", "resource_name": "tools", "authorization_servers": ["https://idp.example"],
                "bearer_methods_supported": ["header"],
            })
        );
        let rules = ScopeRules::default().with_rule("*", ["mcp", "offline_access"]).with_rule("tool:a", ["a"]);
        assert_eq!(read(&rules)["scopes_supported"], json!(["a", "mcp"]));
    }
}
