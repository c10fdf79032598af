//! `WWW-Authenticate`: what a client is told that has shown too little (RFC 6750, RFC 9728).

use super::{Authenticate, Denied};

/// The header for a request of which nobody knows who sent it; none if its sender cannot help it.
pub(crate) fn for_denied(auth: &dyn Authenticate, denied: &Denied) -> Option<String> {
    let error = match denied {
        Denied::Missing | Denied::Certificate(_) => None,
        Denied::Malformed(why) => Some(("invalid_request", why.as_str())),
        Denied::Invalid(why) => Some(("invalid_token", why.as_str())),
        Denied::Unavailable(_) => return None,
    };
    Some(header(auth, &auth.scope_rules().first(), error))
}

/// The header for a request whose sender lacks one of the scopes that it needs.
pub(crate) fn for_scopes(auth: &dyn Authenticate, needed: &str) -> String {
    header(auth, needed, Some(("insufficient_scope", "the token lacks a scope that this needs")))
}

fn header(auth: &dyn Authenticate, scope: &str, error: Option<(&str, &str)>) -> String {
    let metadata = auth.resource().map(|resource| ("resource_metadata", resource.metadata_url()));
    let scope = (!scope.is_empty()).then_some(("scope", scope));
    let (error, description) = error.map(|(error, why)| (("error", error), ("error_description", why))).unzip();
    let parameters: Vec<String> = [metadata, scope, error, description]
        .into_iter()
        .flatten()
        .map(|(name, value)| {
            // What may stand in a quoted text of a header, and in an error description.
            let plain: String = value.chars().map(|c| if matches!(c, ' '..='~') && !matches!(c, '"' | '\\') { c } else { '\'' }).collect();
            format!("{name}=\"{plain}\"")
        })
        .collect();
    if parameters.is_empty() { "Bearer".to_owned() } else { format!("Bearer {}", parameters.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Callers, ProtectedResource, ScopeRules, Tokens};

    fn guarded() -> Callers {
        let rules = ScopeRules::default().with_rule("*", ["mcp"]).with_rule("tool:x", ["x"]);
        let resource = ProtectedResource::new("https://host.example/mcp", Vec::new()).expect("a URL");
        Callers::default().with_tokens(Tokens::default().with_token("t", "c")).with_scope_rules(rules).with_resource(resource)
    }

    #[test]
    fn a_challenge_says_where_to_go_what_to_ask_for_and_what_was_wrong() {
        let auth = guarded();
        let start = "Bearer resource_metadata=\"https://host.example/.well-known/oauth-protected-resource/mcp\", scope=";
        assert_eq!(for_denied(&auth, &Denied::Missing), Some(format!("{start}\"mcp\"")));
        let expired = for_denied(&auth, &Denied::invalid("the token has expired"));
        assert_eq!(expired, Some(format!("{start}\"mcp\", error=\"invalid_token\", error_description=\"the token has expired\"")));
        let malformed = for_denied(&auth, &Denied::Malformed("a \"quoted\" … \\\r\nthing".to_owned())).expect("a challenge");
        assert!(malformed.ends_with("error=\"invalid_request\", error_description=\"a 'quoted' ' '''thing\""), "{malformed}");
        assert_eq!(for_denied(&auth, &Denied::Unavailable("x".to_owned())), None);
        let more = for_scopes(&auth, "mcp x");
        assert!(more.starts_with(&format!("{start}\"mcp x\", error=\"insufficient_scope\", ")), "{more}");
    }

    #[test]
    fn where_tokens_are_fixed_a_challenge_leads_nowhere() {
        let auth = Tokens::default().with_token("t", "c");
        assert_eq!(for_denied(&auth, &Denied::Missing).as_deref(), Some("Bearer"));
    }
}
