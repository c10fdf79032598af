//! The configuration file: every key with its default, and errors that say where and what instead.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use serde::{Deserialize, Deserializer, de};
use taskwire::server::{self, Auth, Initial, Mode};
use taskwire_core::Limits;

/// A time span such as `"1s"` or `"10m"`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span(Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_duration(&text)
            .map(Self)
            .map_err(|error| de::Error::custom(format!("`{text}` is not a time span such as \"1s\" or \"10m\": {error}")))
    }
}

/// A time span, or `"forever"`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keep(Option<Duration>);

impl<'de> Deserialize<'de> for Keep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        span_or(deserializer, "forever").map(Self)
    }
}

/// A time span, or nothing if it is `word`.
fn span_or<'de, D: Deserializer<'de>>(deserializer: D, word: &str) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text == word {
        return Ok(None);
    }
    let problem = |error| de::Error::custom(format!("`{text}` is not a time span such as \"1h\", nor \"{word}\": {error}"));
    humantime::parse_duration(&text).map(Some).map_err(problem)
}

/// The file.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) listen: String,
    pub(crate) data: PathBuf,
    pub(crate) demo: bool,
    instructions: Option<String>,
    promote_after: Option<Span>,
    poll_interval: Option<Span>,
    retention: Option<Keep>,
    input_timeout: Option<Keep>,
    attempts_max: Option<u64>,
    grace: Option<Span>,
    coalesce_window: Option<Span>,
    coalesce_bytes: Option<usize>,
    drain: Option<Span>,
    page_len: Option<usize>,
    list_ttl: Option<Span>,
    listens_per_caller: Option<usize>,
    tasks_per_listen: Option<usize>,
    waits_per_caller: Option<usize>,
    wait_max: Option<Span>,
    hold_polls: Option<bool>,
    read_bytes: Option<usize>,
    requests_per_stream: Option<usize>,
    queue_len: Option<usize>,
    cache_bytes: Option<usize>,
    body_bytes: Option<usize>,
    limits: LimitsTable,
    http: HttpTable,
    legacy: LegacyTable,
    pub(crate) auth: AuthTable,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8787".to_owned(),
            data: ".taskwire".into(),
            demo: false,
            instructions: None,
            promote_after: None,
            poll_interval: None,
            retention: None,
            input_timeout: None,
            attempts_max: None,
            grace: None,
            coalesce_window: None,
            coalesce_bytes: None,
            drain: None,
            page_len: None,
            list_ttl: None,
            listens_per_caller: None,
            tasks_per_listen: None,
            waits_per_caller: None,
            wait_max: None,
            hold_polls: None,
            read_bytes: None,
            requests_per_stream: None,
            queue_len: None,
            cache_bytes: None,
            body_bytes: None,
            limits: LimitsTable::default(),
            http: HttpTable::default(),
            legacy: LegacyTable::default(),
            auth: AuthTable::default(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LimitsTable {
    chunk_bytes: Option<u64>,
    task_output_bytes: Option<u64>,
    output_bytes_per_second: Option<u64>,
    inputs_per_task: Option<u64>,
    input_bytes_per_task: Option<u64>,
    events_per_task: Option<u64>,
    message_bytes: Option<u64>,
    value_bytes: Option<u64>,
    result_bytes: Option<u64>,
    tasks_per_caller: Option<u64>,
    session_events: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HttpTable {
    allowed_hosts: Vec<String>,
    allowed_origins: Vec<String>,
    strict_headers: bool,
    connections: Option<usize>,
    keep_alive: Option<Span>,
    read_timeout: Option<Span>,
    write_timeout: Option<Span>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LegacyTable {
    modes: Option<Vec<Mode>>,
    initial: Option<Initial>,
    immediate_task: Option<bool>,
    list_tasks: Option<bool>,
    sessions_per_caller: Option<usize>,
    session_idle: Option<Span>,
    retry: Option<Span>,
    reconnect_after: Option<Never>,
}

/// A time span, or `"never"`.
#[derive(Debug, Clone, Copy)]
struct Never(Option<Duration>);

impl<'de> Deserialize<'de> for Never {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        span_or(deserializer, "never").map(Self)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AuthTable {
    pub(crate) tokens: Vec<Token>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Token {
    token: String,
    caller: String,
}

/// A token is not for logs.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.caller)
    }
}

impl Config {
    /// What holds where there is no file.
    pub(crate) fn demo() -> Self {
        Self { demo: true, ..Self::default() }
    }

    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} cannot be used", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        parse_toml(text)
    }

    /// What the library needs.
    pub(crate) fn server(&self) -> anyhow::Result<server::Config> {
        let mut config = server::Config { instructions: self.instructions.clone(), ..server::Config::default() };
        set(&mut config.promote_after, self.promote_after.map(|span| span.0));
        set(&mut config.poll_interval, self.poll_interval.map(|span| span.0));
        set(&mut config.retention, self.retention.map(|keep| keep.0));
        set(&mut config.input_timeout, self.input_timeout.map(|keep| keep.0));
        set(&mut config.attempts_max, self.attempts_max);
        set(&mut config.engine.grace, self.grace.map(|span| span.0));
        set(&mut config.engine.coalesce.window, self.coalesce_window.map(|span| span.0));
        set(&mut config.engine.coalesce.bytes, self.coalesce_bytes);
        set(&mut config.engine.queue_len, self.queue_len);
        set(&mut config.engine.cache_bytes, self.cache_bytes);
        set(&mut config.drain, self.drain.map(|span| span.0));
        set(&mut config.page_len, self.page_len);
        set(&mut config.list_ttl, self.list_ttl.map(|span| span.0));
        set(&mut config.listens_per_caller, self.listens_per_caller);
        set(&mut config.tasks_per_listen, self.tasks_per_listen);
        set(&mut config.waits_per_caller, self.waits_per_caller);
        set(&mut config.wait_max, self.wait_max.map(|span| span.0));
        set(&mut config.hold_polls, self.hold_polls);
        set(&mut config.read_bytes, self.read_bytes);
        set(&mut config.requests_per_stream, self.requests_per_stream);
        set(&mut config.body_bytes, self.body_bytes);
        self.limits.apply(&mut config.engine.limits);
        config.http.allowed_hosts.clone_from(&self.http.allowed_hosts);
        config.http.allowed_origins.clone_from(&self.http.allowed_origins);
        config.http.strict_headers = self.http.strict_headers;
        set(&mut config.http.connections, self.http.connections);
        set(&mut config.http.keep_alive, self.http.keep_alive.map(|span| span.0));
        set(&mut config.http.read_timeout, self.http.read_timeout.map(|span| span.0));
        set(&mut config.http.write_timeout, self.http.write_timeout.map(|span| span.0));
        set(&mut config.legacy.modes, self.legacy.modes.clone());
        set(&mut config.legacy.initial, self.legacy.initial);
        set(&mut config.legacy.immediate_task, self.legacy.immediate_task);
        set(&mut config.legacy.list_tasks, self.legacy.list_tasks);
        set(&mut config.legacy.sessions_per_caller, self.legacy.sessions_per_caller);
        set(&mut config.legacy.session_idle, self.legacy.session_idle.map(|span| span.0));
        set(&mut config.legacy.retry, self.legacy.retry.map(|span| span.0));
        set(&mut config.legacy.reconnect_after, self.legacy.reconnect_after.map(|span| span.0));
        config.auth = self.auth.resolve(|name| std::env::var(name).ok())?;
        check(&config)?;
        Ok(config)
    }
}

/// Refuses values with which nothing would work.
fn check(config: &server::Config) -> anyhow::Result<()> {
    let counts = [
        ("http.connections", config.http.connections),
        ("page_len", config.page_len),
        ("requests_per_stream", config.requests_per_stream),
        ("legacy.sessions_per_caller", config.legacy.sessions_per_caller),
    ];
    for (key, value) in counts {
        if !(1..=1_000_000).contains(&value) {
            bail!("`{key}` must be between 1 and 1000000, not {value}");
        }
    }
    let sizes = [
        ("queue_len", config.engine.queue_len as u64, 2),
        ("limits.session_events", config.engine.limits.session_events, 1),
        ("body_bytes", config.body_bytes as u64, 1024),
        ("coalesce_bytes", config.engine.coalesce.bytes as u64, 1),
        ("read_bytes", config.read_bytes as u64, 1024),
        ("limits.chunk_bytes", config.engine.limits.chunk_bytes, 1024),
        ("limits.output_bytes_per_second", config.engine.limits.output_bytes_per_second, 1024),
    ];
    for (key, value, least) in sizes {
        if value < least {
            bail!("`{key}` must be at least {least}, not {value}");
        }
    }
    let spans = [
        ("poll_interval", config.poll_interval, Duration::from_millis(10)),
        ("retention", config.retention.unwrap_or(Duration::MAX), Duration::from_secs(1)),
        ("input_timeout", config.input_timeout.unwrap_or(Duration::MAX), Duration::from_secs(1)),
        ("http.keep_alive", config.http.keep_alive, Duration::from_secs(1)),
        ("http.read_timeout", config.http.read_timeout, Duration::from_secs(1)),
        ("http.write_timeout", config.http.write_timeout, Duration::from_secs(1)),
        ("legacy.retry", config.legacy.retry, Duration::from_millis(10)),
        ("legacy.session_idle", config.legacy.session_idle, Duration::from_secs(60)),
        ("legacy.reconnect_after", config.legacy.reconnect_after.unwrap_or(Duration::MAX), Duration::from_secs(1)),
    ];
    for (key, value, least) in spans {
        if value < least {
            bail!("`{key}` must be at least {}, not {}", humantime::format_duration(least), humantime::format_duration(value));
        }
    }
    Ok(())
}

fn set<T>(target: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *target = value;
    }
}

impl LimitsTable {
    fn apply(&self, limits: &mut Limits) {
        set(&mut limits.chunk_bytes, self.chunk_bytes);
        set(&mut limits.task_output_bytes, self.task_output_bytes);
        set(&mut limits.output_bytes_per_second, self.output_bytes_per_second);
        set(&mut limits.inputs_per_task, self.inputs_per_task);
        set(&mut limits.input_bytes_per_task, self.input_bytes_per_task);
        set(&mut limits.events_per_task, self.events_per_task);
        set(&mut limits.message_bytes, self.message_bytes);
        set(&mut limits.value_bytes, self.value_bytes);
        set(&mut limits.result_bytes, self.result_bytes);
        set(&mut limits.tasks_per_caller, self.tasks_per_caller);
        set(&mut limits.session_events, self.session_events);
    }
}

impl AuthTable {
    /// Tokens with their values; `env:NAME` stands for an environment variable.
    fn resolve(&self, env: impl Fn(&str) -> Option<String>) -> anyhow::Result<Auth> {
        let mut auth = Auth::default();
        for entry in &self.tokens {
            let token = match entry.token.strip_prefix("env:") {
                None => entry.token.clone(),
                Some(name) => {
                    env(name).with_context(|| format!("the token of `{}` is to come from ${name}, which is not set", entry.caller))?
                }
            };
            if token.trim().is_empty() || entry.caller.is_empty() {
                bail!("each of `auth.tokens` needs a `token` and a `caller` that are not empty");
            }
            auth = auth.with_token(token.trim(), &entry.caller);
        }
        Ok(auth)
    }
}

/// Reads a file of ours; an unknown key is an error that names the nearest.
pub(crate) fn parse_toml<T: de::DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    toml::from_str(text).map_err(|error| {
        let hint = nearest(error.message()).map(|key| format!("\ndid you mean `{key}`?")).unwrap_or_default();
        anyhow!("{}{hint}", error.to_string().trim_end())
    })
}

/// The key that an unknown one was probably meant to be, from the words in which serde complains about it.
fn nearest(message: &str) -> Option<String> {
    let mut quoted = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    let unknown = quoted.next()?;
    let distance = |known: &str| strsim::damerau_levenshtein(unknown, known);
    quoted.min_by_key(|known| distance(known)).filter(|known| distance(known) <= known.len().max(unknown.len()) / 2).map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(text: &str) -> String {
        format!("{:#}", Config::parse(text).expect_err(text))
    }

    #[test]
    fn every_key_of_the_readme_is_known_and_has_the_default_that_it_says() {
        let readme = include_str!("../../../README.md");
        let (_, rest) = readme.split_once("```toml\n").expect("the README shows a configuration");
        let (toml, _) = rest.split_once("```").expect("the block ends");
        let shown = Config::parse(toml).expect("the README's configuration is valid");
        let mut shown = shown.server().expect("usable");
        let defaults = server::Config::default();
        shown.auth = defaults.auth.clone();
        assert_eq!(format!("{shown:#?}"), format!("{defaults:#?}"), "the README shows the defaults");
        for key in toml::from_str::<toml::Table>(toml).expect("a table").keys() {
            assert!(readme.contains(key.as_str()));
        }
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_the_nearest() {
        let text = complaint("lisen = \"127.0.0.1:1\"");
        assert!(text.contains("line 1") && text.contains("did you mean `listen`?"), "{text}");
        assert!(complaint("[limits]\nchunk_byte = 1").contains("did you mean `chunk_bytes`?"));
        assert!(!complaint("zzzzzzzzzzzz = 1").contains("did you mean"));
    }

    #[test]
    fn values_are_checked() {
        assert!(complaint("promote_after = \"soon\"").contains("not a time span"));
        assert!(complaint("retention = \"never\"").contains("forever"));
        assert!(complaint("body_bytes = -1").contains("line 1"));
        assert_eq!(Config::parse("retention = \"forever\"").expect("valid").server().expect("usable").retention, None);
        for (text, key) in [
            ("queue_len = 0", "queue_len"),
            ("page_len = 0", "page_len"),
            ("body_bytes = 1", "body_bytes"),
            ("coalesce_bytes = 0", "coalesce_bytes"),
            ("read_bytes = 1", "read_bytes"),
            ("limits.chunk_bytes = 10", "limits.chunk_bytes"),
            ("limits.output_bytes_per_second = 0", "limits.output_bytes_per_second"),
            ("retention = \"0s\"", "retention"),
            ("http.keep_alive = \"0s\"", "http.keep_alive"),
            ("http.connections = 99999999", "http.connections"),
            ("legacy.session_idle = \"1s\"", "legacy.session_idle"),
            ("legacy.reconnect_after = \"1ms\"", "legacy.reconnect_after"),
            ("legacy.retry = \"0s\"", "legacy.retry"),
            ("limits.session_events = 0", "limits.session_events"),
            ("queue_len = 1", "queue_len"),
            ("legacy.sessions_per_caller = 0", "legacy.sessions_per_caller"),
        ] {
            let error = Config::parse(text).expect("valid").server().expect_err("of no use");
            assert!(error.to_string().contains(key), "{error}");
        }
    }

    #[test]
    fn tokens_come_from_the_file_or_the_environment() {
        let table = "[auth]\ntokens = [{ token = \"env:T\", caller = \"ci\" }, { token = \"plain\", caller = \"me\" }]";
        let config = Config::parse(table).expect("valid");
        let auth = config.auth.resolve(|name| (name == "T").then(|| "secret\n".to_owned())).expect("resolved");
        assert_eq!(auth.caller(Some(b"Bearer secret")).expect("known").as_str(), "ci");
        assert_eq!(auth.caller(Some(b"Bearer plain")).expect("known").as_str(), "me");
        let missing = config.auth.resolve(|_| None).expect_err("not set");
        assert!(missing.to_string().contains("$T"), "{missing}");
        assert!(!format!("{config:?}").contains("plain"), "tokens are not for logs");
    }
}
