//! The manual's configuration reference, made of the structs that read the files: of what the comments on their fields say, and of what
//! the parser itself says about keys and words.

use std::path::Path;

use serde::de::DeserializeOwned;
use taskwire::{command::Definition, server};

use super::{
    Config, HttpTable, LegacyTable,
    audit::AuditTable,
    auth::{AuthTable, IntrospectionTable, IssuerTable, TokenTable, TrustedProxyTable},
    limits::LimitsTable,
    metrics::MetricsTable,
    postgres::PostgresTable,
    tls::TlsTable,
    tool::ToolTable,
    traces::TracesTable,
};
use crate::{
    client::client_config::{ConfigFile, ServerSettings},
    manual::keep,
};

const SERVER_SOURCE: &str = include_str!("../../src/config/mod.rs");
const AUTH_SOURCE: &str = include_str!("../../src/config/auth.rs");
const CLIENT_SOURCE: &str = include_str!("../../src/client/client_config.rs");

const HEAD: &str = "# Configuration reference

<!-- A test makes this page of the source: TASKWIRE_WRITE_DOCS=1 cargo test -p taskwire-cli --bin taskwire reference -->

The server reads `taskwire.toml`: `taskwire serve taskwire.toml`. The client reads [client.toml](#the-client). Both are TOML. The
program refuses a file with a mistake. It says the line, the column and what to write instead.

| type | how it is written |
|---|---|
| text | `\"in double quotes\"`, or `'in single quotes'`, where a backslash is a backslash |
| time | a number with a unit, as text: `\"20ms\"`, `\"45s\"`, `\"10m\"`, `\"1h 30m\"`, `\"1day\"` |
| bytes | a whole number, in bytes: `32768` |
| number | a whole number: `250` |

Paths are relative to the file that has them. `taskwire reload` and SIGHUP take over changes of `demo`, `[[tool]]` and `[tls]`; all
other keys need a restart, and `reload` says which.
";

const SERVER: &str = "
## The server

All keys are optional. They stand above the first table and the first `[[tool]]`.
";

const LIMITS: &str = "
## `[limits]`

A task or a caller that reaches a limit gets an error that names the key.
";

const POSTGRES: &str = "
## `[postgres]`

Where `store` is the URL of a database. [Many nodes](cluster.md) says more.
";

const HTTP: &str = "
## `[http]`
";

const LEGACY: &str = "
## `[legacy]`

For clients of 2025-11-25 and before, which [open a session](sessions.md).
";

const AUTH: &str = "
## `[auth]`

```toml
[auth]
tokens = [{ token = \"env:TASKWIRE_TOKEN\", caller = \"ci\" }]
```

Without any of `tokens`, `issuers`, `trusted_proxy` and `client_certificates`, everybody who reaches the server is one caller.
[Operating](operating.md#who-may-call) has examples, and says what a caller may see.
";

const TOKENS: &str = "
### `[[auth.tokens]]`

Each is a token that the server knows. They can stand in one line, as above.
";

const ISSUERS: &str = "
### `[[auth.issuers]]`

Each is an authorization server whose tokens the server takes (OAuth 2.1).
";

const INTROSPECTION: &str = "
### `[auth.issuers.introspection]`

For an issuer that is asked about each token, in place of checking signatures.
";

const TRUSTED_PROXY: &str = "
### `[auth.trusted_proxy]`

For a proxy that knows its callers. The caller is `proxy:` and the name that the proxy gives.
";

const METRICS: &str = "
## `[metrics]`

[Operating](operating.md#metrics) says what there is to read.
";

const TLS: &str = "
## `[tls]`

```toml
[tls]
certificate = \"cert.pem\"
key = \"key.pem\"
```

For a server that speaks TLS itself, because no proxy stands in front of it. [Operating](operating.md#tls) says how.
";

const AUDIT: &str = "
## `[audit]`

[Operating](operating.md#audit-log) says what is in it.
";

const TRACES: &str = "
## `[traces]`

[Operating](operating.md#traces) says what is traced.
";

const TOOL: &str = "
## `[[tool]]`

Each `[[tool]]` makes a tool of a command. [Commands as tools](commands.md) shows how.
";

const CLIENT: &str = "
## The client

`client.toml` gives servers names. The client reads the file that `$TASKWIRE_CLIENT_CONFIG` names. Without that variable it reads
`taskwire/client.toml` in `$XDG_CONFIG_HOME`, which is `~/.config` if it is not set.

```toml
default = \"demo\"

[server.demo]
url = \"http://127.0.0.1:8787/mcp\"
token = \"env:DEMO_TOKEN\"
headers = { X-Team = \"blue\" }

[server.files]
command = [\"npx\", \"-y\", \"some-mcp-server\"]
```
";

const KNOWN: &str = "
### `[server.NAME]`
";

/// A key of a file: a field of the struct that reads it.
struct Key {
    name: String,
    kind: String,
    about: String,
    /// A value as the file has it, in backticks, or words.
    default: String,
}

impl Key {
    /// A field with this Rust type, and the comment on it.
    #[track_caller]
    fn new<T: DeserializeOwned>(name: &str, field: &str, comment: &str) -> Self {
        let comment = comment.trim();
        let (about, default) = match comment.split_once(" Default: ") {
            Some((about, default)) => (about, default.strip_suffix('.').unwrap_or(default)),
            None => (comment.strip_suffix(" Required.").unwrap_or_default(), "required"),
        };
        assert!(!about.is_empty(), "the comment on `{name}` must be a sentence, and then `Default: ….` or `Required.`");
        Self { name: name.to_owned(), kind: kind::<T>(name, field), about: about.to_owned(), default: default.to_owned() }
    }

    /// The default as a line of the file, if there is a value for it.
    fn line(&self) -> Option<String> {
        let (value, _) = self.default.strip_prefix('`')?.split_once('`')?;
        Some(format!("{} = {value}\n", self.name))
    }
}

/// The keys that a struct of this source reads. They are those that the parser knows, in the same order.
#[track_caller]
fn keys<T: DeserializeOwned>(source: &str, name: &str) -> Vec<Key> {
    let body = source.split_once(&format!("struct {name} {{\n")).and_then(|(_, rest)| rest.split_once("\n}\n"));
    let (body, _) = body.unwrap_or_else(|| panic!("`{name}` is not in this source"));
    let (mut keys, mut names) = (Vec::new(), Vec::new());
    let (mut comment, mut is_skipped) = (String::new(), false);
    for line in body.lines().map(str::trim) {
        if let Some(words) = line.strip_prefix("///") {
            comment.push_str(words);
        } else if line.starts_with('#') {
            is_skipped |= line == "#[serde(skip)]";
        } else if let Some((name, field)) = line.trim_start_matches("pub(crate) ").trim_end_matches(',').split_once(": ") {
            if !is_skipped {
                names.push(name.to_owned());
                // Other tables have sections of their own.
                if !field.contains("Table") && !field.contains("ServerSettings") {
                    keys.push(Key::new::<T>(name, field, &comment));
                }
            }
            comment.clear();
            is_skipped = false;
        }
    }
    assert_eq!(names, in_backticks(&complaint::<T>("\"?\" = 0")), "the keys of `{name}` in the source, and those that the parser knows");
    keys
}

/// What the parser says about a text that it cannot use.
#[track_caller]
fn complaint<T: DeserializeOwned>(text: &str) -> String {
    toml::from_str::<T>(text).map(drop).expect_err(text).message().to_owned()
}

/// What a message offers instead of what it complains about.
fn in_backticks(complaint: &str) -> Vec<String> {
    complaint.split('`').skip(1).step_by(2).skip(1).map(ToOwned::to_owned).collect()
}

/// What a field of this Rust type takes, for people.
#[track_caller]
fn kind<T: DeserializeOwned>(name: &str, field: &str) -> String {
    let field = field.strip_prefix("Option<").and_then(|inner| inner.strip_suffix('>')).unwrap_or(field);
    let kind = match field {
        "bool" => "`true` or `false`",
        "String" | "PathBuf" => "text",
        "Span" => "time",
        "SpanOrForever" => "time, or `\"forever\"`",
        "SpanOrNever" => "time, or `\"never\"`",
        "usize" | "u64" if name.contains("bytes") && name.ends_with("_per_second") => "bytes per second",
        "usize" | "u64" if name.contains("bytes") => "bytes",
        "usize" | "u64" => "number",
        "f64" => "number from 0 to 1",
        "Value" => "several kinds",
        "Secret" if name == "store" => "`\"\"`, `\"memory:\"` or a URL",
        "Secret" if name.ends_with("url") => "URL",
        "Secret" => "text",
        "Vec<String>" => "list of texts",
        "Vec<i32>" => "list of numbers",
        "Vec<Value>" => "list",
        "BTreeMap<String, Vec<String>>" => "table of lists",
        "Map<String, Value>" | "BTreeMap<String, String>" | "BTreeMap<String, Secret>" => "table",
        words => return words_of::<T>(name, words),
    };
    kind.to_owned()
}

/// The words that can stand for a value of this type, as the parser lists them.
#[track_caller]
fn words_of<T: DeserializeOwned>(name: &str, field: &str) -> String {
    let is_list = field.starts_with("Vec<");
    let complaint = complaint::<T>(&format!("{name} = {}", if is_list { "[\"?\"]" } else { "\"?\"" }));
    assert!(complaint.starts_with("unknown variant "), "say in `kind` what `{field}` takes: {complaint}");
    let words: Vec<String> = in_backticks(&complaint).iter().map(|word| format!("`\"{word}\"`")).collect();
    format!("{}{}", if is_list { "list of " } else { "" }, words.join(", "))
}

/// A section of the page: its words, and its keys.
fn add(page: &mut String, words: &str, keys: &[Key]) {
    page.push_str(words);
    page.push_str("\n| key | type | default | |\n|---|---|---|---|\n");
    for Key { name, kind, about, default } in keys {
        page.push_str(&format!("| `{name}` | {kind} | {default} | {about} |\n"));
    }
}

/// The tables of the server's file, each with the words before it and the line that opens it.
fn server_tables() -> [(&'static str, &'static str, Vec<Key>); 9] {
    [
        (SERVER, "", keys::<Config>(SERVER_SOURCE, "Config")),
        (LIMITS, "[limits]\n", keys::<LimitsTable>(include_str!("../../src/config/limits.rs"), "LimitsTable")),
        (POSTGRES, "[postgres]\n", keys::<PostgresTable>(include_str!("../../src/config/postgres.rs"), "PostgresTable")),
        (HTTP, "[http]\n", keys::<HttpTable>(SERVER_SOURCE, "HttpTable")),
        (LEGACY, "[legacy]\n", keys::<LegacyTable>(SERVER_SOURCE, "LegacyTable")),
        (METRICS, "[metrics]\n", keys::<MetricsTable>(include_str!("../../src/config/metrics.rs"), "MetricsTable")),
        (AUDIT, "[audit]\n", keys::<AuditTable>(include_str!("../../src/config/audit.rs"), "AuditTable")),
        (TRACES, "[traces]\n", keys::<TracesTable>(include_str!("../../src/config/traces.rs"), "TracesTable")),
        (AUTH, "[auth]\n", keys::<AuthTable>(AUTH_SOURCE, "AuthTable")),
    ]
}

fn tool_keys() -> Vec<Key> {
    keys::<ToolTable>(include_str!("../../src/config/tool.rs"), "ToolTable")
}

fn lines(keys: &[Key]) -> String {
    keys.iter().filter_map(Key::line).collect()
}

#[track_caller]
fn parsed(text: String) -> Config {
    Config::parse(Path::new("taskwire.toml"), text).unwrap_or_else(|error| panic!("{error:#}"))
}

#[test]
fn the_configuration_reference_is_what_the_source_says() {
    let mut page = HEAD.to_owned();
    for (words, _, keys) in server_tables() {
        add(&mut page, words, &keys);
    }
    add(&mut page, TOKENS, &keys::<TokenTable>(AUTH_SOURCE, "TokenTable"));
    add(&mut page, ISSUERS, &keys::<IssuerTable>(AUTH_SOURCE, "IssuerTable"));
    add(&mut page, INTROSPECTION, &keys::<IntrospectionTable>(AUTH_SOURCE, "IntrospectionTable"));
    add(&mut page, TRUSTED_PROXY, &keys::<TrustedProxyTable>(AUTH_SOURCE, "TrustedProxyTable"));
    add(&mut page, TLS, &keys::<TlsTable>(include_str!("../../src/config/tls.rs"), "TlsTable"));
    add(&mut page, TOOL, &tool_keys());
    add(&mut page, CLIENT, &keys::<ConfigFile>(CLIENT_SOURCE, "ConfigFile"));
    add(&mut page, KNOWN, &keys::<ServerSettings>(CLIENT_SOURCE, "ServerSettings"));
    keep("configuration.md", &page);
}

#[test]
fn every_key_of_the_server_has_the_default_that_the_reference_says() {
    let text: String = server_tables().iter().map(|(_, table, keys)| format!("{table}{}", lines(keys))).collect();
    let (shown, defaults) = (parsed(text), Config::default());
    assert_eq!((&shown.listen, &shown.data, shown.demo), (&defaults.listen, &defaults.data, defaults.demo));
    assert_eq!(shown.inline_bytes, Some(Definition::new("x", "", Vec::new()).inline_bytes), "of a command as of the server");
    let shown = shown.to_server_config().expect("the defaults can be used");
    assert_eq!(format!("{shown:#?}"), format!("{:#?}", server::Config::default()));
}

#[test]
fn every_key_of_a_tool_has_the_default_that_the_reference_says() {
    let tool = |keys: &str| {
        let config = parsed(format!("[[tool]]\nname = \"t\"\ncommand = [\"true\"]\n{keys}"));
        format!("{:#?}", config.definitions(&[]).expect("the defaults can be used"))
    };
    assert_eq!(tool(&lines(&tool_keys())), tool(""));
}

#[test]
fn the_examples_of_the_manual_can_be_used() {
    for page in [include_str!("../../../../docs/manual/commands.md"), include_str!("../../../../docs/manual/operating.md")] {
        for text in page.split("```toml\n").skip(1) {
            let config = parsed(text.split("```").next().unwrap_or_default().to_owned());
            config.check().and_then(|_| config.definitions(&[]).map(drop)).unwrap_or_else(|error| panic!("{error:#}\n{text}"));
        }
    }
}
