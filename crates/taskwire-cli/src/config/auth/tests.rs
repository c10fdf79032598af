//! What `[auth]` may say, and what is said about the rest.

use std::path::Path;

use super::*;
use crate::config::Config;

fn parsed(text: &str) -> Config {
    Config::parse(Path::new("taskwire.toml"), text.to_owned()).unwrap_or_else(|error| panic!("{error:#}"))
}

/// Who may call, as a file says that has these lines; `T` and `/run/secret` have secrets.
fn resolved(text: &str) -> Result<(Callers, Option<String>), Misfit> {
    let variable = |name: &str| (name == "T").then(|| "from-variable\n".to_owned());
    let file = |path: &Path| {
        let is_there = path == Path::new("/run/secret");
        is_there.then(|| "from-file\n".to_owned()).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    };
    parsed(text).auth.resolve(&SecretSources { variable: &variable, file: &file }, &["deploy", "build"])
}

/// What is said about a file that cannot be used.
fn complaint(text: &str) -> String {
    format!("{:#}", parsed(text).to_server_config().expect_err("of no use"))
}

#[test]
fn tokens_come_from_the_file_another_file_or_the_environment() {
    let text = "[auth]\ntokens = [{ token = \"env:T\", caller = \"a\" }, { token = \"plain\", caller = \"b\" }, \
                { token = \"file:/run/secret\", caller = \"c\", scopes = [\"x\"] }, \
                { sha256 = \"85738F8F9A7F1B04B5329C590EBCB9E425925C6D0984089C43A022DE4F19C281\", caller = \"d\" }]";
    let (callers, host) = resolved(text).expect("usable");
    assert_eq!(host, None);
    let known = Tokens::default()
        .with_token("from-variable", "a")
        .with_token("plain", "b")
        .with_token("from-file", "c")
        .with_token("whatever has this hash", "d");
    assert!(format!("{callers:?}").contains(&format!("tokens: {known:?}")), "{callers:?}");
    let config = parsed(text);
    assert_eq!(config.auth.variables().collect::<Vec<_>>(), ["T"]);
    assert_eq!(config.auth.callers().collect::<Vec<_>>(), [("a", Some("T")), ("b", None), ("c", None), ("d", None)]);
    let shown = format!("{config:?} {callers:?}");
    assert!(!shown.contains("plain") && !shown.contains("from-"), "tokens are not for logs: {shown}");
}

#[test]
fn a_token_that_cannot_be_had_has_its_place_and_is_not_shown() {
    let error = complaint("[auth]\ntokens = [\n  { token = \"\", caller = \"x\" },\n]");
    assert!(error.starts_with("taskwire.toml cannot be used: line 3, column 3\neach of `auth.tokens`"), "{error}");
    for (entry, why) in [
        ("{ token = \"env:NOT_SET_ANYWHERE\", caller = \"x\" }", "$NOT_SET_ANYWHERE"),
        ("{ token = \"env:\", caller = \"x\" }", "name of a variable"),
        ("{ token = \"file:/nowhere/at/all\", caller = \"x\" }", "/nowhere/at/all"),
        ("{ token = \"file:\", caller = \"x\" }", "name of a file"),
        ("{ token = \"s3cret\", caller = \"\" }", "`caller`"),
        ("{ token = \"s3cret\", sha256 = \"00\", caller = \"x\" }", "either a `token` or its `sha256`"),
        ("{ caller = \"x\" }", "either a `token` or its `sha256`"),
        ("{ sha256 = \"s3cret\", caller = \"x\" }", "64 hexadecimal digits"),
    ] {
        let error = complaint(&format!("[auth]\ntokens = [{entry}]\n"));
        assert!(error.contains(why) && !error.contains("s3cret"), "{entry}: {error}");
    }
    assert!(complaint(&format!("[auth]\ntokens = [{{ token = \"a\", caller = \"{}\" }}]", "x".repeat(501))).contains("500 bytes"));
}

const ISSUER: &str = "[auth]\nresource = \"https://Tools.example:8443/mcp\"\n[[auth.issuers]]\nurl = \"https://idp.example\"\n";

#[test]
fn issuers_are_for_the_resource_that_clients_know() {
    let (callers, host) = resolved(ISSUER).expect("usable");
    assert_eq!(host.as_deref(), Some("Tools.example"));
    assert!(format!("{callers:?}").contains("https://idp.example"));
    assert!(parsed(ISSUER).auth.is_required() && !parsed("").auth.is_required());
    let config = parsed(ISSUER).to_server_config().expect("usable");
    assert_eq!(config.http.allowed_hosts, ["Tools.example"], "clients may address it");
    let full = format!(
        "{ISSUER}audiences = [\"https://tools.example/mcp\", \"api://x\"]\nalgorithms = [\"ES384\"]\ncaller_claim = \"client_id\"\n\
         scope_claim = \"permissions\"\nintrospection = {{ url = \"https://idp.example/ask\", client_id = \"me\", client_secret = \"env:T\" }}\n"
    );
    resolved(&full).expect("usable");
    assert_eq!(parsed(&full).auth.variables().collect::<Vec<_>>(), ["T"], "no command sees it");
    assert!(!format!("{:?}", resolved(&full)).contains("from-variable"));
}

#[test]
fn what_is_wrong_with_an_issuer_is_said_where_it_stands() {
    let of_issuer = |line: &str| complaint(&format!("{ISSUER}{line}\n"));
    for (line, place, why) in [
        ("algorithms = [\"HS256\"]", "line 5, column 14", "`HS256`"),
        ("jwks = \"http://idp.example/keys\"", "line 5, column 8", "https://"),
        ("caller_claim = \"\"", "line 5, column 16", "claim"),
    ] {
        let error = of_issuer(line);
        assert!(error.contains(place) && error.contains(why), "{line}: {error}");
    }
    let secret = of_issuer("introspection = { url = \"https://idp.example/ask\", client_id = \"me\", client_secret = \"\" }");
    assert!(secret.contains("`client_secret` cannot be had: it is empty") && !secret.contains("client_id ="), "{secret}");
    assert!(complaint("[[auth.issuers]]\nurl = \"https://idp.example\"\n").contains("needs `auth.resource`"));
    assert!(complaint("[auth]\nresource = \"https://tools.example/mcp\"\n").contains("is for `auth.issuers`"));
    assert!(complaint(&ISSUER.replace("https://Tools.example:8443/mcp", "tools.example")).contains("is no URL of a server"));
    assert!(complaint(&ISSUER.replace("[auth]", "[auth]\nleeway = \"1h\"")).contains("`auth.leeway` must be at most 10m"));
    let unknown = format!("{:#}", Config::parse(Path::new("taskwire.toml"), format!("{ISSUER}audience = [\"a\"]\n")).expect_err("unknown"));
    assert!(unknown.contains("did you mean `audiences`?"), "{unknown}");
}

#[test]
fn a_rule_for_scopes_guards_something_that_is_there() {
    let rules = |lines: &str| resolved(&format!("[auth.scopes]\n{lines}\n")).map_err(|misfit| (misfit.path, misfit.message));
    rules("\"*\" = [\"mcp\"]\n\"tools/call\" = [\"call\"]\n\"tasks/*\" = [\"tasks\"]\n\"tool:deploy\" = [\"deploy\", \"production\"]")
        .expect("usable");
    for (line, key, why) in [
        ("\"tool/call\" = [\"a\"]", "tool/call", "no method `tool/call`: did you mean \"tools/call\"?"),
        ("\"tool:deploi\" = [\"a\"]", "tool:deploi", "no tool `deploi`: did you mean \"tool:deploy\"?"),
        ("\"zzzzzzzzzzzzzzzz/*\" = [\"a\"]", "zzzzzzzzzzzzzzzz/*", "write a method such as"),
        ("\"tools*\" = [\"a\"]", "tools*", "no method `tools*`"),
        ("\"*\" = []", "*", "at least one scope"),
        ("\"*\" = [\"a b\"]", "*", "`a b` is no scope"),
        ("\"*\" = [\"\"]", "*", "is no scope"),
    ] {
        let (path, message) = rules(line).expect_err(line);
        assert_eq!(path, ["scopes", key]);
        assert!(message.contains(why), "{line}: {message}");
    }
    let error = complaint("demo = true\n[auth.scopes]\n\"tool:bakery\" = [\"a\"]\n");
    assert!(error.contains("line 3") && error.contains("did you mean \"tool:bake\"?"), "{error}");
    parsed("demo = true\n[auth.scopes]\n\"tool:bake\" = [\"a\"]\n\"tool:task_cancel\" = [\"b\"]\n").to_server_config().expect("usable");
    assert!(resolved("[auth]\nscope_includes = { admin = [] }").is_err());
    resolved("[auth]\nscope_includes = { admin = [\"mcp\"] }").expect("usable");
}

#[test]
fn an_admin_is_a_token_or_a_scope() {
    let (callers, _) =
        resolved("[auth]\ntokens = [{ token = \"plain\", caller = \"a\", admin = true }, { token = \"other\", caller = \"b\" }]")
            .expect("usable");
    let known = Tokens::default().with_sha256(Tokens::sha256("plain"), Identity::new("a").as_admin()).with_token("other", "b");
    assert!(format!("{callers:?}").contains(&format!("tokens: {known:?}")), "{callers:?}");
    assert!(resolved("[auth]\nadmin_scope = \"operate\"").is_ok());
    let misfit = resolved("[auth]\nadmin_scope = \"two words\"").expect_err("no scope");
    assert_eq!(misfit.path, ["admin_scope"]);
}

#[test]
fn a_proxy_is_trusted_where_it_is() {
    resolved("[auth]\ntrusted_proxy = { header = \"x-user\", from = [\"127.0.0.1\", \"fd00::/8\"] }").expect("usable");
    for (table, key) in [
        ("{ header = \"x user\", from = [\"127.0.0.1\"] }", "header"),
        ("{ header = \"x-user\", from = [] }", "from"),
        ("{ header = \"x-user\", from = [\"localhost\"] }", "from"),
    ] {
        let misfit = resolved(&format!("[auth]\ntrusted_proxy = {table}")).expect_err(table);
        assert_eq!(misfit.path, ["trusted_proxy", key]);
    }
}
