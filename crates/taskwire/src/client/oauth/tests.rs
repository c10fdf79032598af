//! Tests of the parts that need no server: redirects, scopes, settings.

use super::*;

const ASKED: &str = "https://as.example/authorize?response_type=code&state=s1&scope=a";

fn refusal(redirected: &str) -> String {
    read_redirect(ASKED, redirected, Some("https://as.example")).err().map(|refusal| refusal.error.to_string()).unwrap_or_default()
}

#[test]
fn an_answer_counts_only_for_what_was_asked() {
    let answer =
        read_redirect(ASKED, "http://127.0.0.1:1/callback?code=c1&state=s1&iss=https%3A%2F%2Fas.example", None).ok().expect("agreed");
    assert_eq!((answer.code.as_str(), answer.issuer.as_deref()), ("c1", Some("https://as.example")));
    assert!(refusal("http://127.0.0.1:1/callback?code=c1&state=s2").contains("another request"));
    assert!(refusal("http://127.0.0.1:1/callback?code=c1").contains("another request"));
    assert!(refusal("nonsense").contains("another request"));
}

#[test]
fn who_refuses_is_quoted_unless_it_is_a_stranger() {
    let refused = refusal("http://127.0.0.1:1/callback?error=access_denied&error_description=not+you&state=s1");
    assert!(refused.contains("access_denied: not you"), "{refused}");
    let stranger = refusal("http://127.0.0.1:1/callback?error=x&error_description=call+me&state=s1&iss=https%3A%2F%2Fevil.example");
    assert!(!stranger.contains("call me"), "{stranger}");
    assert!(read_redirect(ASKED, "http://127.0.0.1:1/callback?error=invalid_scope&state=s1", None).is_err_and(|refusal| refusal.scope));
}

#[test]
fn scopes_are_added_up_and_never_repeated() {
    let scopes = |list: &[&str]| list.iter().map(|scope| (*scope).to_owned()).collect::<Vec<_>>();
    assert_eq!(merge_scopes(scopes(&["a", "b"]), scopes(&["b", "c"]), false), scopes(&["a", "b", "c"]));
    assert_eq!(merge_scopes(scopes(&[]), scopes(&["a"]), true), scopes(&["a", OFFLINE]));
    assert_eq!(merge_scopes(scopes(&[OFFLINE]), scopes(&["a"]), true), scopes(&[OFFLINE, "a"]));
    assert_eq!(merge_scopes(scopes(&[]), scopes(&[]), true), scopes(&[]), "who asks for nothing asks for nothing");
}

#[test]
fn settings_that_cannot_work_are_refused_at_once() {
    let none = || OAuthSettings::new(Grant::ClientSecret);
    assert!(OAuth::new("https://host/mcp", none()).is_err());
    assert!(OAuth::new("https://host/mcp", OAuthSettings { client_id: Some("me".to_owned()), ..none() }).is_err());
    let whole = OAuthSettings { client_id: Some("me".to_owned()), client_secret: Some("s".to_owned()), ..none() };
    assert!(OAuth::new("stdio:server", whole.clone()).is_err());
    assert!(
        OAuth::new("https://host/mcp", OAuthSettings { client_metadata_url: Some("https://host/".to_owned()), ..whole.clone() }).is_err()
    );
    let oauth = OAuth::new("https://host/mcp", whole).expect("settings that work");
    assert!(!format!("{oauth:?}").contains("secret"), "{oauth:?}");
}

#[test]
fn private_addresses_are_known() {
    for (url, private) in [("http://10.1.2.3/", true), ("http://[fd00::1]/", true), ("http://127.0.0.1/", false), ("http://host/", false)] {
        assert_eq!(is_private(&Url::parse(url).expect("a URL")), private, "{url}");
    }
}
