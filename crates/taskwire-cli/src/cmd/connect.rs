//! `taskwire connect`: shows the configuration that makes a client use our server, or adds it to the client's own.

mod client;
mod config_value;
mod json_file;
mod toml_file;

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use taskwire::client::Target;

use self::{
    client::{Client, Directories, FileFormat, PLACEHOLDER, Scope, TokenSource, Transport},
    config_value::OrderedValue,
    json_file::AddError,
};
use super::file;
use crate::{
    client::{
        client_config::with_scheme,
        exit::{Exit, Problem, fail},
    },
    config::Config,
    term::{escape, paint::shell_word, stderr, stdout},
};

/// The configuration file that is used where none is named.
const CONFIG: &str = "taskwire.toml";
/// The variable that a client has its token in, if the configuration names none.
const TOKEN_VARIABLE: &str = "TASKWIRE_TOKEN";
/// Characters of a server's name.
const NAME_CHARS_MAX: usize = 64;

const EXAMPLES: &str = "Examples:
  taskwire connect claude-code              what to type or add, and where
  taskwire connect cursor --write           add it to Cursor's own file
  taskwire connect vscode --write --project for this directory: .vscode/mcp.json
  taskwire connect codex tools.toml --stdio as a program that Codex starts
  taskwire connect zed --url https://tools.example/mcp --token-env MY_TOKEN

CONFIG is the server's configuration: its address and tokens are taken from
there, and with --stdio the client starts `taskwire serve --stdio` with it.
Tokens are never shown: the client is told the variable that has them, where it
can be told.
--write changes nothing else in the client's file, comments and order included,
keeps the file as it was beside it (.bak), and does not touch an entry of that
name that is different, unless with --force.

Standard output has the configuration alone. Exit codes:
  0  it was shown or added, or was there already
  2  what was typed, CONFIG or the client's file is wrong: nothing has changed
  3  the file could not be written";

/// Connect a client: show or write its configuration.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Connect {
    /// The client
    #[arg(value_enum)]
    client: Client,
    /// The server's configuration file [default: taskwire.toml]
    config: Option<PathBuf>,
    /// Have the client connect to a server that runs [default, but for claude-desktop]
    #[arg(long, conflicts_with = "stdio")]
    http: bool,
    /// Have the client start the server itself
    #[arg(long, conflicts_with_all = ["url", "token_env"])]
    stdio: bool,
    /// Address of the server [default: where CONFIG listens]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Variable that the client has its token in [default: that of the first token in CONFIG]
    #[arg(long, value_name = "VARIABLE")]
    token_env: Option<String>,
    /// What the client calls the server
    #[arg(long, default_value = "taskwire")]
    name: String,
    /// Add it to the client's own configuration
    #[arg(long)]
    write: bool,
    /// For the current directory, not for all that the user does
    #[arg(long)]
    project: bool,
    /// Replace another entry of that name
    #[arg(long, requires = "write")]
    force: bool,
}

/// What to show or write, worked out beforehand.
struct Plan {
    client: Client,
    name: String,
    scope: Scope,
    transport: Transport,
    server_config: OrderedValue,
    /// The client's file.
    file: PathBuf,
    /// Further notes, a line each.
    notes: Vec<String>,
}

impl Connect {
    pub(crate) fn run(self) -> ExitCode {
        let (write, force) = (self.write, self.force);
        let done = self.plan().and_then(|plan| if write { plan.write(force) } else { plan.show() });
        match done {
            Ok(()) => Exit::Done.into(),
            Err(problem) => fail(false, &problem),
        }
    }

    fn plan(self) -> Result<Plan, Problem> {
        check_name(&self.name)?;
        let client = self.client;
        let scope = if self.project { Scope::Project } else { Scope::User };
        if client.is_stdio_only() && (self.http || self.url.is_some()) {
            return Err(Problem::usage(format!(
                "{} starts its servers: leave out --http and --url (a server at a public https address can be added in its settings, as a \
                 connector)",
                client.title()
            )));
        }
        let mut notes = Vec::new();
        let transport = if self.stdio || client.is_stdio_only() {
            let (file, config) = read_config(self.config.as_deref())?;
            let variables: Vec<String> = config.secret_variables().map(|name| format!("${name}")).collect();
            if !variables.is_empty() {
                notes.push(format!(
                    "the server takes tokens from {}: {} must have that in its environment",
                    variables.join(", "),
                    client.title()
                ));
            }
            let args = vec!["serve".to_owned(), text_of(&file)?, "--stdio".to_owned()];
            Transport::Stdio { program: text_of(&this_program()?)?, args }
        } else {
            self.http_transport(&mut notes)?
        };
        let directories = directories()?;
        let files = client.files(scope, &self.name, &directories);
        let Some(file) = files.iter().find(|file| file.exists()).or(files.first()).cloned() else {
            return Err(Problem::usage(format!("{} has no file for a project: leave out --project", client.title())));
        };
        Ok(Plan { client, scope, server_config: client.server_config(&self.name, &transport), transport, file, notes, name: self.name })
    }

    /// How to reach a server that runs.
    fn http_transport(&self, notes: &mut Vec<String>) -> Result<Transport, Problem> {
        let client = self.client;
        let mut token = self.token_env.clone();
        if let Some(name) = &token
            && (name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        {
            return Err(Problem::usage(format!("`{name}` is no name of a variable: --token-env wants its name, not the token")));
        }
        let url = match &self.url {
            Some(url) => match with_scheme(url).unwrap_or_else(|| url.clone()).parse::<Target>()? {
                Target::Url(url) => url,
                _ => return Err(Problem::usage(format!("`{url}` is no address: give --url http://… or https://…"))),
            },
            None => String::new(),
        };
        // An address without a file means some other server.
        if self.url.is_some() && self.config.is_none() {
            note_token(client, token.as_deref(), None, notes);
            return Ok(Transport::Http { url, token_variable: token });
        }
        let (file, config) = read_config(self.config.as_deref())?;
        let url = if url.is_empty() { address(&config.listen, config.tls.is_some())? } else { url };
        match config.auth.callers().next().filter(|_| token.is_none()) {
            Some((caller, variable)) => {
                let variable = variable.unwrap_or(TOKEN_VARIABLE).to_owned();
                note_token(client, Some(&variable), Some(caller), notes);
                token = Some(variable);
            }
            None => note_token(client, token.as_deref(), None, notes),
        }
        if self.url.is_none() {
            notes.push(format!("the server must run: taskwire serve {}", shell_word(&text_of(&file)?)));
        }
        Ok(Transport::Http { url, token_variable: token })
    }
}

/// Says where the client's token comes from.
fn note_token(client: Client, variable: Option<&str>, caller: Option<&str>, notes: &mut Vec<String>) {
    let Some(variable) = variable else { return };
    let whose = caller.map(|caller| format!(" of `{caller}`")).unwrap_or_default();
    let title = client.title();
    notes.push(match client.token_source() {
        TokenSource::Variable => format!("the token{whose} comes from ${variable}, which {title} must have in its environment"),
        TokenSource::Prompt => format!("{title} asks for the token{whose}"),
        TokenSource::Literal => format!("put the token{whose} where {PLACEHOLDER} stands: {title} takes none from its environment"),
    });
}

impl Plan {
    /// The configuration as it stands in the client's file.
    fn text(&self) -> String {
        let Self { client, name, server_config: entry, .. } = self;
        match client.file_format(self.scope) {
            FileFormat::Toml => entry.toml(&toml_file::heading(name), "\n"),
            FileFormat::Yaml if *client == Client::Goose => entry.clone().within(["extensions", name.as_str()].into_iter()).yaml(""),
            FileFormat::Yaml => OrderedValue::members([("mcpServers", OrderedValue::List(vec![entry.clone()]))]).yaml(""),
            FileFormat::YamlFile => OrderedValue::members([
                ("name", OrderedValue::text(name)),
                ("version", OrderedValue::text("0.0.1")),
                ("schema", OrderedValue::text("v1")),
                ("mcpServers", OrderedValue::List(vec![entry.clone()])),
            ])
            .yaml(""),
            FileFormat::Json(path) => {
                let mut item = entry.clone().within(path.iter().copied().chain([name.as_str()]));
                if let (OrderedValue::Members(members), Some(input)) = (&mut item, self.token_prompt()) {
                    members.insert(0, ("inputs".to_owned(), OrderedValue::List(vec![input])));
                }
                item.json("", "  ", "\n") + "\n"
            }
        }
    }

    /// What the client asks its user for, where it does that.
    fn token_prompt(&self) -> Option<OrderedValue> {
        let has_token = matches!(self.transport, Transport::Http { token_variable: Some(_), .. });
        (has_token && self.client.token_source() == TokenSource::Prompt).then(|| {
            OrderedValue::members([
                ("type", OrderedValue::text("promptString")),
                ("id", OrderedValue::text(format!("{}-token", self.name))),
                ("description", OrderedValue::text(format!("Token for {}", self.name))),
                ("password", OrderedValue::Flag(true)),
            ])
        })
    }

    fn show(&self) -> Result<(), Problem> {
        if let Some(command) = self.client.command(&self.name, &self.transport, self.scope) {
            say(&format!("type this:\n\n  {command}\n\nor add this to {}:", self.file_label()));
        } else {
            say(&format!("add this to {}:", self.file_label()));
        }
        stdout::print(&escape_lines(&self.text()))?;
        self.say_notes();
        Ok(())
    }

    /// The client's file, for people.
    fn file_label(&self) -> String {
        let file = self.file.display().to_string();
        match self.client.file_format(self.scope) {
            FileFormat::Yaml => file,
            _ if self.must_be_edited() => file,
            _ => format!("{file} (--write does it)"),
        }
    }

    /// Whether a person must fill in something.
    fn must_be_edited(&self) -> bool {
        matches!(self.transport, Transport::Http { token_variable: Some(_), .. }) && self.client.token_source() != TokenSource::Variable
    }

    fn write(&self, force: bool) -> Result<(), Problem> {
        let title = self.client.title();
        let path = &self.file;
        let shown = path.display();
        let without = format!("`taskwire connect {}` without --write shows what to add", self.client.cli_name());
        if self.must_be_edited() {
            return Err(Problem::usage(format!("{title} takes no token from its environment: connect it with --stdio, or {without}")));
        }
        let unread = |error: std::io::Error| Problem::usage(format!("cannot read {shown}: {error}"));
        let old = file::read(path).map_err(unread)?;
        let new = match self.updated_text(old.as_deref().unwrap_or_default(), force) {
            Ok(Some(new)) => new,
            Ok(None) => {
                say(&format!("`{}` is in {shown} already, just so: nothing to do", self.name));
                return Ok(());
            }
            Err(AddError::NameTaken) => {
                let reason = format!("{shown} has another `{}` already: replace it with --force, or choose a --name", self.name);
                return Err(Problem::usage(reason));
            }
            Err(AddError::Unusable(reason)) => {
                let kept = if old.is_some() { format!("{shown} is left as it is: ") } else { String::new() };
                return Err(Problem::usage(format!("{kept}{reason}; {without}")));
            }
        };
        let unwritten = |error: std::io::Error| Problem::protocol(format!("cannot write {shown}: {error}"));
        let backup = match &old {
            Some(old) => Some(file::replace(path, old, &new).map_err(unwritten)?),
            None => {
                path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| file::create(path, &new)).map_err(unwritten)?;
                None
            }
        };
        let before = backup.map(|backup| format!(" (as it was: {})", backup.display())).unwrap_or_default();
        stdout::print(&format!("added `{}` to {}{}\n", self.name, escape::line(&shown.to_string()), escape::line(&before)))?;
        self.say_notes();
        say(&format!("{title} may have to be started again to see it"));
        Ok(())
    }

    /// The client's file with the server in it; `None` if it is there already.
    fn updated_text(&self, old: &str, force: bool) -> Result<Option<String>, AddError> {
        match self.client.file_format(self.scope) {
            FileFormat::Json(path) => {
                let path: &[&str] = if self.client == Client::OpenCode && has_nested_servers(old) { &["mcp", "servers"] } else { path };
                json_file::add(old, path, &self.name, &self.server_config, force)
            }
            FileFormat::Toml => toml_file::add(old, &self.name, &self.server_config, force),
            FileFormat::Yaml => Err(AddError::Unusable(format!("files of {} are shown, not written", self.client.title()))),
            FileFormat::YamlFile if old == self.text() => Ok(None),
            FileFormat::YamlFile if old.is_empty() || force => Ok(Some(self.text())),
            FileFormat::YamlFile => Err(AddError::NameTaken),
        }
    }

    fn say_notes(&self) {
        self.notes.iter().for_each(|note| say(note));
    }
}

/// Writes a notice to standard error.
fn say(text: &str) {
    stderr::write(&format!("taskwire: {}\n", escape::lines(text)));
}

/// Our text with names of others in it, made safe for a terminal.
fn escape_lines(text: &str) -> String {
    escape::lines(text) + "\n"
}

/// Whether a file of opencode nests its servers as its second version does; both versions read the first form.
fn has_nested_servers(text: &str) -> bool {
    json_file::value(text).is_ok_and(|value| value.pointer("/mcp/servers").is_some_and(|servers| servers.get("type").is_none()))
}

/// Refuses a name that some client or shell could not use.
fn check_name(name: &str) -> Result<(), Problem> {
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if name.is_empty() || name.len() > NAME_CHARS_MAX || !is_plain || name.starts_with('-') {
        return Err(Problem::usage(format!(
            "`{name}` is no name for a server: letters, digits, `-` and `_`, at most {NAME_CHARS_MAX}, and no `-` first"
        )));
    }
    Ok(())
}

/// Reads and checks the server's configuration; returns it with its path.
fn read_config(named: Option<&Path>) -> Result<(PathBuf, Config), Problem> {
    let path = named.unwrap_or(Path::new(CONFIG));
    if named.is_none() && !path.exists() {
        return Err(Problem::usage(format!(
            "there is no {CONFIG} here: make one with `taskwire init`, name the server's file, or give --url"
        )));
    }
    let unusable = |error: anyhow::Error| Problem::usage(format!("{error:#}"));
    let config = Config::read(path).map_err(unusable)?;
    config.check().map_err(unusable)?;
    config.definitions(&[]).map_err(unusable)?;
    Ok((std::path::absolute(path)?, config))
}

/// The URL by which this machine reaches a server that listens there.
fn address(listen: &str, speaks_tls: bool) -> Result<String, Problem> {
    let scheme = if speaks_tls { "https" } else { "http" };
    let Ok(address) = listen.parse::<SocketAddr>() else { return Ok(format!("{scheme}://{listen}/mcp")) };
    if address.port() == 0 {
        return Err(Problem::usage("the server listens on a port that is chosen at its start: name one in `listen`, or give --url"));
    }
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    Ok(format!("{scheme}://{}/mcp", SocketAddr::new(ip, address.port())))
}

/// The path of this program, for others to start.
fn this_program() -> Result<PathBuf, Problem> {
    let program = std::env::current_exe()?;
    if !program.exists() {
        return Err(Problem::protocol(format!("{} is not there any more: start the one that took its place", program.display())));
    }
    Ok(program)
}

/// A path as text: clients' files can have nothing else.
fn text_of(path: &Path) -> Result<String, Problem> {
    let unreadable = || Problem::usage(format!("{} is no text, and a client's file can have only that", path.display()));
    path.to_str().map(ToOwned::to_owned).ok_or_else(unreadable)
}

fn directories() -> Result<Directories, Problem> {
    let directory = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let homeless = || Problem::usage("it is not known where your home is: set $HOME");
    let home = directory("HOME").ok_or_else(homeless)?;
    let config = directory("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
    Ok(Directories {
        config,
        home,
        current: std::env::current_dir()?,
        claude: directory("CLAUDE_CONFIG_DIR"),
        codex: directory("CODEX_HOME"),
        is_macos: cfg!(target_os = "macos"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_means_all_of_them_is_this_machine() {
        let at = |listen: &str| address(listen, false).map_err(|_| ());
        assert_eq!(at("127.0.0.1:8787"), Ok("http://127.0.0.1:8787/mcp".to_owned()));
        assert_eq!(at("0.0.0.0:80"), Ok("http://127.0.0.1:80/mcp".to_owned()));
        assert_eq!(at("[::]:80"), Ok("http://[::1]:80/mcp".to_owned()));
        assert_eq!(at("localhost:80"), Ok("http://localhost:80/mcp".to_owned()));
        assert_eq!(at("127.0.0.1:0"), Err(()));
        assert_eq!(address("0.0.0.0:443", true).ok().as_deref(), Some("https://127.0.0.1:443/mcp"));
    }

    #[test]
    fn names_are_plain_words() {
        for name in ["taskwire", "my_tools-2", "A"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", "-x", "a b", "a/b", "ü", "a.b", "x".repeat(65).as_str()] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn the_form_of_opencode_that_its_file_has_is_kept() {
        assert!(has_nested_servers("{\"mcp\": {\"servers\": {}}}"));
        assert!(!has_nested_servers("{\"mcp\": {\"servers\": {\"type\": \"remote\"}}}"), "one that is called so");
        assert!(!has_nested_servers("{\"mcp\": {\"x\": {}}}") && !has_nested_servers("") && !has_nested_servers("nothing"));
    }
}
