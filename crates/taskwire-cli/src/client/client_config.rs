//! The client's configuration, `client.toml`: servers by name, with what is needed to connect.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    net::Ipv6Addr,
    path::{Path, PathBuf},
};

use clap::ValueEnum;
use serde::Deserialize;
use taskwire::client::{Era, Target};

use super::{exit::Problem, schema::nearest};
use crate::config;

/// Which era of the protocol to speak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EraChoice {
    /// Ask the server
    #[default]
    Auto,
    /// 2026-07-28
    Modern,
    /// 2025-11-25 and before
    Legacy,
}

impl EraChoice {
    pub(crate) fn era(self) -> Option<Era> {
        match self {
            Self::Auto => None,
            Self::Modern => Some(Era::Modern),
            Self::Legacy => Some(Era::Legacy),
        }
    }
}

/// The file. The manual's reference is made of what these comments say: a sentence, and the default.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ConfigFile {
    /// The server that is meant where none is named. Default: none.
    default: Option<String>,
    server: BTreeMap<String, ServerSettings>,
}

/// A server of the file.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServerSettings {
    /// The server's address; `host:port` alone means `http://host:port/mcp`. Default: none, there is a `command` then.
    url: Option<String>,
    /// The program that is started, with its arguments; its standard input and output are the connection. Default: none, there is a
    /// `url` then.
    command: Option<Vec<String>>,
    /// The bearer token. `"env:NAME"` is read from that environment variable. Default: none.
    token: Option<String>,
    /// Whether a person signs in to the server, in place of a `token`. Default: `false`.
    pub(crate) oauth: bool,
    /// Headers that are sent with each request. A value `"env:NAME"` is read from that environment variable. Default: `{}`.
    headers: BTreeMap<String, String>,
    /// The certificates (PEM) to trust besides those of the machine, for an https `url`. Default: none.
    ca: Option<PathBuf>,
    /// The certificate (PEM) that is shown to a server which asks for one. Default: none.
    certificate: Option<PathBuf>,
    /// The key of that certificate (PEM). Default: none.
    key: Option<PathBuf>,
    /// Which era of the protocol is spoken: 2026-07-28, 2025-11-25 and before, or what the server turns out to speak.
    /// Default: `"auto"`.
    pub(crate) era: EraChoice,
    #[serde(skip)]
    name: String,
    /// The directory of the file, which paths are relative to.
    #[serde(skip)]
    dir: PathBuf,
}

/// Tokens must not get into logs, and headers may be tokens.
impl fmt::Debug for ServerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerSettings({})", self.name)
    }
}

impl ServerSettings {
    /// Refuses settings that make no sense.
    fn check(&self) -> Result<(), String> {
        self.target()?;
        if let Some(url) = &self.url {
            refuse_password(url).map_err(|reason| format!("`server.{}`: {reason}", self.name))?;
        }
        if self.certificate.is_some() != self.key.is_some() {
            return Err(format!("`server.{}` needs both a `certificate` and its `key`, or neither", self.name));
        }
        match (self.oauth, &self.url, &self.token) {
            (true, None, _) => Err(format!("`server.{}`: `oauth` is for servers with a `url`", self.name)),
            (true, _, Some(_)) => Err(format!("`server.{}` has both a `token` and `oauth`: one is enough", self.name)),
            _ => Ok(()),
        }
    }

    fn target(&self) -> Result<Target, String> {
        match (&self.url, &self.command) {
            (Some(url), None) => {
                let url = with_scheme(url).unwrap_or_else(|| url.clone());
                url.parse().map_err(|error| format!("`server.{}`: {error}", self.name))
            }
            (None, Some(command)) if !command.is_empty() => Ok(Target::Command(command.clone())),
            _ => Err(format!("`server.{}` needs either a `url` or a `command`", self.name)),
        }
    }

    pub(crate) fn token(&self) -> Result<Option<String>, Problem> {
        self.token.as_deref().map(|token| self.secret("token", token, env)).transpose()
    }

    pub(crate) fn headers(&self) -> Result<Vec<(String, String)>, Problem> {
        let header = |(name, value): (&String, &String)| -> Result<_, Problem> {
            Ok((name.clone(), self.secret(&format!("header {name}"), value, env)?))
        };
        self.headers.iter().map(header).collect()
    }

    /// The certificates to trust besides those of the machine, in PEM.
    pub(crate) fn trusted_certificates(&self) -> Result<Option<Vec<u8>>, Problem> {
        self.ca.as_deref().map(|path| self.read("ca", path)).transpose()
    }

    /// The certificate to show, with its key, in PEM.
    pub(crate) fn client_certificate(&self) -> Result<Option<Vec<u8>>, Problem> {
        let (Some(certificate), Some(key)) = (&self.certificate, &self.key) else { return Ok(None) };
        let files = [self.read("certificate", certificate)?, self.read("key", key)?];
        Ok(Some(files.join(&b'\n')))
    }

    fn read(&self, key: &str, path: &Path) -> Result<Vec<u8>, Problem> {
        let path = self.dir.join(path);
        let unreadable =
            |error: std::io::Error| Problem::usage(format!("`server.{}.{key}`: {} cannot be read: {error}", self.name, path.display()));
        std::fs::read(&path).map_err(unreadable)
    }

    /// A value, or the content of the variable that it names.
    fn secret(&self, what: &str, value: &str, env: impl Fn(&str) -> Option<String>) -> Result<String, Problem> {
        let Some(name) = value.strip_prefix("env:") else { return Ok(value.to_owned()) };
        let missing = || Problem::usage(format!("the {what} of `{}` is to come from ${name}, which is not set", self.name));
        env(name).map(|value| value.trim().to_owned()).ok_or_else(missing)
    }
}

fn is_address(text: &str) -> bool {
    ["http://", "https://", "stdio:"].iter().any(|scheme| text.starts_with(scheme))
}

fn did_you_mean(word: &str, servers: &BTreeMap<String, ServerSettings>) -> String {
    nearest(word, servers.keys().map(String::as_str)).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

/// The URL that `host:port` stands for, with or without a path: plain http, and at `/mcp` unless it has a path.
pub(crate) fn with_scheme(text: &str) -> Option<String> {
    let (authority, path) = text.split_once('/').unwrap_or((text, "mcp"));
    let (host, port) = authority.rsplit_once(':')?;
    let is_host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()),
        None => !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)),
    };
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    (is_host && is_port).then(|| format!("http://{authority}/{path}"))
}

/// Addresses are stored with the tasks, and shown, so they must not have a password.
fn refuse_password(address: &str) -> Result<(), String> {
    let Some((scheme, rest)) = address.split_once("://").filter(|(scheme, _)| scheme.starts_with("http")) else { return Ok(()) };
    let authority = rest.split(['/', '\\', '?', '#']).next().unwrap_or_default();
    match authority.rsplit_once('@') {
        None => Ok(()),
        Some((_, host)) => {
            Err(format!("{scheme}://…@{host} has a name or a password in it, which would be kept and shown: use --token or --header"))
        }
    }
}

fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// A server that was named on the command line, or by a task.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) target: Target,
    pub(crate) settings: Option<ServerSettings>,
}

impl Server {
    /// Its name for people.
    pub(crate) fn name(&self) -> String {
        self.settings.as_ref().map_or_else(|| self.target.to_string(), |known| known.name.clone())
    }
}

/// The servers that this user has given names.
#[derive(Debug)]
pub(crate) struct ClientConfig {
    path: PathBuf,
    servers: BTreeMap<String, ServerSettings>,
    /// The name of the server that is used where none is named.
    default: Option<String>,
}

impl ClientConfig {
    /// Reads the file. It may be missing, unless it was named.
    pub(crate) fn read() -> Result<Self, Problem> {
        let (path, must_exist) = config_path(|name| std::env::var_os(name));
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(path, &text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => {
                Ok(Self { path, servers: BTreeMap::new(), default: None })
            }
            Err(error) => Err(Problem::usage(format!("cannot read {}: {error}", path.display()))),
        }
    }

    fn parse(path: PathBuf, text: &str) -> Result<Self, Problem> {
        let problem = |reason: &str| Problem::usage(format!("{} cannot be used: {reason}", path.display()));
        let ConfigFile { default, server: mut servers } = config::parse_toml(text).map_err(|error| problem(&error.to_string()))?;
        for (name, settings) in &mut servers {
            settings.name.clone_from(name);
            settings.dir = path.parent().unwrap_or(Path::new("")).to_owned();
            settings.check().map_err(|reason| problem(&reason))?;
        }
        if let Some(name) = default.as_ref().filter(|name| !servers.contains_key(*name)) {
            let hint = did_you_mean(name, &servers);
            return Err(problem(&format!("`default` is `{name}`, and there is no `[server.{name}]`{hint}")));
        }
        Ok(Self { path, servers, default })
    }

    /// The server that is used where none is named, if the file has one.
    pub(crate) fn default_server(&self) -> Option<Server> {
        self.find(self.default.as_deref()?).ok()
    }

    /// Whether a word names a server.
    fn is_server(&self, word: &str) -> bool {
        is_address(word) || self.servers.contains_key(word) || with_scheme(word).is_some()
    }

    /// The server that the first word names, or else the default one; its name; and the words behind it.
    pub(crate) fn choose<'a>(&self, words: &'a [String]) -> Result<(Server, String, &'a [String]), Problem> {
        match (words, &self.default) {
            ([first, rest @ ..], _) if self.is_server(first) => Ok((self.find(first)?, first.clone(), rest)),
            (_, Some(default)) => Ok((self.find(default)?, default.clone(), words)),
            ([first, ..], None) => Err(self.unknown_server(first)),
            ([], None) => Err(Problem::usage(format!("which server? Name one, or set `default = \"NAME\"` in {}", self.path.display()))),
        }
    }

    /// The error for a word that names no server.
    pub(crate) fn unknown_server(&self, word: &str) -> Problem {
        let (path, hint) = (self.path.display(), did_you_mean(word, &self.servers));
        Problem::usage(format!("`{word}` is neither a URL, nor stdio:<command line>, nor a server in {path}{hint}"))
    }

    /// All servers of the file.
    pub(crate) fn servers(&self) -> impl Iterator<Item = Server> {
        self.servers.values().filter_map(|known| Some(Server { target: known.target().ok()?, settings: Some(known.clone()) }))
    }

    /// The server that a URL, a command line or a name means.
    pub(crate) fn find(&self, text: &str) -> Result<Server, Problem> {
        if is_address(text) {
            refuse_password(text).map_err(Problem::usage)?;
            return Ok(self.with_target(text.parse()?));
        }
        if let Some(settings) = self.servers.get(text) {
            let target = settings.target().map_err(Problem::usage)?;
            return Ok(Server { target, settings: Some(settings.clone()) });
        }
        if let Some(address) = with_scheme(text) {
            return Ok(self.with_target(address.parse()?));
        }
        Err(self.unknown_server(text))
    }

    /// A server by its address, with the file's settings for it.
    fn with_target(&self, target: Target) -> Server {
        let text = target.to_string();
        let is_it = |known: &&ServerSettings| known.target().is_ok_and(|target| target.to_string() == text);
        Server { settings: self.servers.values().find(is_it).cloned(), target }
    }
}

/// The path of the file, and whether it must exist.
fn config_path(env: impl Fn(&str) -> Option<OsString>) -> (PathBuf, bool) {
    let env = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = env("TASKWIRE_CLIENT_CONFIG") {
        return (path, true);
    }
    let config = env("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let config = config.or_else(|| env("HOME").map(|home| home.join(".config"))).unwrap_or_else(|| Path::new(".config").to_owned());
    (config.join("taskwire").join("client.toml"), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<ClientConfig, String> {
        ClientConfig::parse("client.toml".into(), text).map_err(|problem| format!("{problem:?}"))
    }

    const TWO: &str = "[server.demo]\nurl = \"http://127.0.0.1:8787/mcp\"\ntoken = \"env:T\"\nera = \"legacy\"\n\
                       headers = { X-Team = \"blue\" }\n[server.files]\ncommand = [\"npx\", \"-y\", \"a b\"]\n";

    #[test]
    fn a_server_is_found_by_its_name_and_by_where_it_is() {
        let config = config(TWO).expect("valid");
        let demo = config.find("demo").expect("known");
        assert_eq!((demo.target.to_string(), demo.name()), ("http://127.0.0.1:8787/mcp".to_owned(), "demo".to_owned()));
        assert_eq!(config.find("http://127.0.0.1:8787/mcp").expect("a URL").name(), "demo");
        assert_eq!(config.find("files").expect("known").target.to_string(), "stdio:npx -y 'a b'");
        assert_eq!(config.find("stdio:npx -y 'a b'").expect("a command").name(), "files");
        let other = config.find("https://elsewhere/mcp").expect("a URL");
        assert!(other.settings.is_none());
        let known = demo.settings.expect("of the file");
        assert_eq!(known.headers().ok(), Some(vec![("X-Team".to_owned(), "blue".to_owned())]));
        assert_eq!(known.era.era(), Some(Era::Legacy));
    }

    #[test]
    fn a_name_that_is_not_known_is_refused_with_the_nearest() {
        let config = config(TWO).expect("valid");
        let complaint = |name: &str| format!("{:?}", config.find(name).expect_err(name));
        assert!(complaint("demp").contains("nor a server in client.toml; did you mean `demo`?"));
        assert!(!complaint("localhost:http").contains("did you mean"));
        assert!(complaint("stdio:").contains("needs a command line"));
        assert!(!complaint("ftp://x").contains("did you mean"));
        let secret = complaint("https://me:s3cret@h/mcp");
        assert!(secret.contains("https://…@h has a name or a password in it") && !secret.contains("s3cret"), "{secret}");
    }

    #[test]
    fn a_server_that_is_not_named_is_the_default_one() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let chosen = |config: &ClientConfig, args: &[&str]| {
            let args = words(args);
            let chosen = config.choose(&args).map(|(server, name, rest)| format!("{} {name} {}", server.target, rest.join(" ")));
            chosen.map_err(|problem| problem.message().to_owned())
        };
        let with = config(&format!("default = \"demo\"\n{TWO}")).expect("valid");
        let (demo, files) = ("http://127.0.0.1:8787/mcp demo", "stdio:npx -y 'a b' files");
        assert_eq!(chosen(&with, &["echo", "text=x"]), Ok(format!("{demo} echo text=x")));
        assert_eq!(chosen(&with, &["demo", "echo"]), Ok(format!("{demo} echo")));
        assert_eq!(chosen(&with, &["files", "demo"]), Ok(format!("{files} demo")), "a name of the file counts first");
        assert_eq!(chosen(&with, &["h:1/x", "echo"]), Ok("http://h:1/x h:1/x echo".to_owned()));
        assert_eq!(chosen(&with, &[]), Ok(format!("{demo} ")));
        assert_eq!(with.default_server().map(|server| server.name()).as_deref(), Some("demo"));
        let without = config(TWO).expect("valid");
        assert!(without.default_server().is_none());
        assert!(chosen(&without, &["echo"]).is_err_and(|message| message.starts_with("`echo` is neither a URL")));
        assert_eq!(chosen(&without, &[]), Err("which server? Name one, or set `default = \"NAME\"` in client.toml".to_owned()));
        let wrong = config(&format!("default = \"dmeo\"\n{TWO}")).expect_err("no such server");
        assert!(wrong.contains("`default` is `dmeo`, and there is no `[server.dmeo]`; did you mean `demo`?"), "{wrong}");
    }

    #[test]
    fn an_address_needs_no_scheme() {
        let config = config(TWO).expect("valid");
        for (text, expected) in [
            ("localhost:8787/mcp", "http://localhost:8787/mcp"),
            ("localhost:8787", "http://localhost:8787/mcp"),
            ("build-1.example:80/a/b?c=d", "http://build-1.example:80/a/b?c=d"),
            ("localhost:8787/", "http://localhost:8787/"),
            ("[::1]:8787/mcp", "http://[::1]:8787/mcp"),
        ] {
            assert_eq!(config.find(text).expect(text).target.to_string(), expected);
        }
        assert_eq!(config.find("127.0.0.1:8787").expect("an address").name(), "demo", "it is the one of the file");
        for text in ["localhost", "localhost/mcp", ":8787", "h:", "h:99999", "h:+1", "a b:1", "me@h:1", "[::1:8787", "ftp://h:1"] {
            assert!(config.find(text).is_err(), "{text}");
        }
    }

    #[test]
    fn mistakes_in_the_file_are_told_with_what_would_be_right() {
        for (text, expected) in [
            ("[server.a]\nurll = \"http://h\"", "did you mean `url`?"),
            ("[servers.a]\nurl = \"http://h\"", "did you mean `server`?"),
            ("[server.a]", "`server.a` needs either a `url` or a `command`"),
            ("[server.a]\nurl = \"http://h\"\ncommand = [\"x\"]", "needs either"),
            ("[server.a]\nurl = \"ftp://h\"", "`server.a`: "),
            ("[server.a]\nurl = \"http://h\"\noauth = true\ntoken = \"t\"", "has both a `token` and `oauth`"),
            ("[server.a]\ncommand = [\"x\"]\noauth = true", "`oauth` is for servers with a `url`"),
            ("[server.a]\nurl = \"http://h\"\nera = \"old\"", "line 3"),
        ] {
            let complaint = config(text).expect_err(text);
            assert!(complaint.contains(expected) && complaint.contains("client.toml cannot be used"), "{complaint}");
        }
    }

    #[test]
    fn secrets_come_from_the_file_or_the_environment_and_are_not_for_logs() {
        let known = ServerSettings { name: "demo".to_owned(), token: Some("plain".to_owned()), ..ServerSettings::default() };
        let env = |name: &str| (name == "T").then(|| "secret\n".to_owned());
        assert_eq!(known.secret("token", "env:T", env).ok().as_deref(), Some("secret"));
        assert_eq!(known.secret("token", "plain", env).ok().as_deref(), Some("plain"));
        let missing = known.secret("token", "env:U", env).expect_err("not set");
        assert!(format!("{missing:?}").contains("the token of `demo` is to come from $U, which is not set"));
        assert!(!format!("{known:?}").contains("plain"));
    }

    #[test]
    fn the_file_is_where_it_was_said_or_where_such_files_are() {
        let at = |variables: &[(&str, &str)]| {
            let found = config_path(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value)));
            (found.0.display().to_string(), found.1)
        };
        assert_eq!(at(&[("TASKWIRE_CLIENT_CONFIG", "/a.toml"), ("HOME", "/h")]), ("/a.toml".to_owned(), true));
        assert_eq!(at(&[("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")]), ("/x/taskwire/client.toml".to_owned(), false));
        assert_eq!(at(&[("XDG_CONFIG_HOME", "x"), ("HOME", "/h")]), ("/h/.config/taskwire/client.toml".to_owned(), false));
    }
}
