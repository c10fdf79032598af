//! The known clients: where each keeps its configuration, in which format, and how it describes a server.
//!
//! The sources, and what is not certain, are in `docs/decisions/0054-connecting-clients.md`.

use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::config_value::OrderedValue;
use crate::term::paint::shell_word;

/// Stands for a token that a person must type in.
pub(super) const PLACEHOLDER: &str = "PUT-THE-TOKEN-HERE";
/// Seconds that goose waits for a call.
const GOOSE_TIMEOUT: u32 = 300;

/// A program that uses tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Client {
    /// Claude Code
    #[value(alias = "claude")]
    ClaudeCode,
    /// Claude Desktop (starts its servers: stdio)
    ClaudeDesktop,
    /// Cursor
    Cursor,
    /// Visual Studio Code with Copilot
    #[value(name = "vscode", aliases = ["vs-code", "code", "copilot"])]
    VsCode,
    /// Codex
    Codex,
    /// Gemini CLI
    #[value(alias = "gemini-cli")]
    Gemini,
    /// Windsurf
    Windsurf,
    /// Zed
    Zed,
    /// Cline
    Cline,
    /// Continue (written with --project; else it is shown what to add)
    Continue,
    /// goose (is shown what to add, not written)
    Goose,
    /// opencode
    #[value(name = "opencode", alias = "open-code")]
    OpenCode,
    /// LM Studio
    #[value(alias = "lmstudio")]
    LmStudio,
}

/// How a client reaches the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Transport {
    /// At an address, with a token from this variable if one is needed.
    Http { url: String, token_variable: Option<String> },
    /// As a program that it starts.
    Stdio { program: String, args: Vec<String> },
}

/// Whose configuration is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// That of the user, for all that they do.
    User,
    /// That of the current directory.
    Project,
}

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileFormat {
    /// JSON, with the servers in the object at this path.
    Json(&'static [&'static str]),
    /// Tables of TOML.
    Toml,
    /// YAML, shown but not changed.
    Yaml,
    /// A file of YAML for this server alone.
    YamlFile,
}

/// How a client gets a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TokenSource {
    /// From its environment.
    Variable,
    /// From its user.
    Prompt,
    /// From its file.
    Literal,
}

/// Where things are on this machine.
#[derive(Debug, Clone)]
pub(super) struct Directories {
    pub(super) home: PathBuf,
    /// `$XDG_CONFIG_HOME`, or what it stands for.
    pub(super) config: PathBuf,
    pub(super) current: PathBuf,
    /// Directories that the clients' own variables name.
    pub(super) claude: Option<PathBuf>,
    pub(super) codex: Option<PathBuf>,
    pub(super) is_macos: bool,
}

impl Directories {
    /// Where desktop programs keep their settings.
    fn application(&self, name: &str) -> PathBuf {
        let base = if self.is_macos { self.home.join("Library/Application Support") } else { self.config.clone() };
        base.join(name)
    }
}

impl Client {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::ClaudeCode => "Claude Code",
            Self::ClaudeDesktop => "Claude Desktop",
            Self::Cursor => "Cursor",
            Self::VsCode => "VS Code",
            Self::Codex => "Codex",
            Self::Gemini => "Gemini CLI",
            Self::Windsurf => "Windsurf",
            Self::Zed => "Zed",
            Self::Cline => "Cline",
            Self::Continue => "Continue",
            Self::Goose => "goose",
            Self::OpenCode => "opencode",
            Self::LmStudio => "LM Studio",
        }
    }

    /// Its name on our command line.
    pub(super) fn cli_name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Whether it supports only servers that it starts.
    pub(super) fn is_stdio_only(self) -> bool {
        self == Self::ClaudeDesktop
    }

    pub(super) fn file_format(self, scope: Scope) -> FileFormat {
        match (self, scope) {
            (Self::VsCode, _) => FileFormat::Json(&["servers"]),
            (Self::Zed, _) => FileFormat::Json(&["context_servers"]),
            (Self::OpenCode, _) => FileFormat::Json(&["mcp"]),
            (Self::Codex, _) => FileFormat::Toml,
            (Self::Continue, Scope::Project) => FileFormat::YamlFile,
            (Self::Continue | Self::Goose, _) => FileFormat::Yaml,
            _ => FileFormat::Json(&["mcpServers"]),
        }
    }

    /// The files that it may read: use one that exists, or the first. Empty if it has none of this scope.
    pub(super) fn files(self, scope: Scope, name: &str, directories: &Directories) -> Vec<PathBuf> {
        let Directories { home, config, current, claude, codex, is_macos } = directories;
        let cline = "cline_mcp_settings.json";
        match (self, scope) {
            (Self::ClaudeCode, Scope::User) => vec![claude.as_ref().unwrap_or(home).join(".claude.json")],
            (Self::ClaudeCode, Scope::Project) => vec![current.join(".mcp.json")],
            (Self::ClaudeDesktop, Scope::User) => vec![directories.application("Claude/claude_desktop_config.json")],
            (Self::Cursor, Scope::User) => vec![home.join(".cursor/mcp.json")],
            (Self::Cursor, Scope::Project) => vec![current.join(".cursor/mcp.json")],
            (Self::VsCode, Scope::User) => vec![directories.application("Code/User/mcp.json")],
            (Self::VsCode, Scope::Project) => vec![current.join(".vscode/mcp.json")],
            (Self::Codex, Scope::User) => vec![codex.clone().unwrap_or_else(|| home.join(".codex")).join("config.toml")],
            (Self::Codex, Scope::Project) => vec![current.join(".codex/config.toml")],
            (Self::Gemini, Scope::User) => vec![home.join(".gemini/settings.json")],
            (Self::Gemini, Scope::Project) => vec![current.join(".gemini/settings.json")],
            (Self::Windsurf, Scope::User) => vec![home.join(".codeium/windsurf/mcp_config.json")],
            (Self::Zed, Scope::User) => {
                let base = if *is_macos { home.join(".config") } else { config.clone() };
                vec![base.join("zed/settings.json")]
            }
            (Self::Cline, Scope::User) => vec![
                home.join(".cline/data/settings").join(cline),
                directories.application("Code/User/globalStorage/saoudrizwan.claude-dev/settings").join(cline),
            ],
            (Self::Continue, Scope::User) => vec![home.join(".continue/config.yaml")],
            (Self::Continue, Scope::Project) => vec![current.join(format!(".continue/mcpServers/{name}.yaml"))],
            (Self::Goose, Scope::User) => vec![config.join("goose/config.yaml")],
            (Self::OpenCode, Scope::User) => opencode_files(&config.join("opencode")),
            (Self::OpenCode, Scope::Project) => opencode_files(current),
            (Self::LmStudio, Scope::User) => vec![home.join(".lmstudio/mcp.json")],
            (Self::ClaudeDesktop | Self::Windsurf | Self::Zed | Self::Cline | Self::Goose | Self::LmStudio, Scope::Project) => Vec::new(),
        }
    }

    pub(super) fn token_source(self) -> TokenSource {
        match self {
            Self::VsCode => TokenSource::Prompt,
            Self::Zed | Self::Cline | Self::LmStudio | Self::ClaudeDesktop => TokenSource::Literal,
            _ => TokenSource::Variable,
        }
    }

    /// The header that names the token, or stands for it.
    fn authorization(self, variable: &str, name: &str) -> String {
        let token = match self {
            Self::ClaudeCode | Self::Gemini | Self::Goose => format!("${{{variable}}}"),
            Self::Cursor | Self::Windsurf => format!("${{env:{variable}}}"),
            Self::VsCode => format!("${{input:{name}-token}}"),
            Self::Continue => format!("${{{{ secrets.{variable} }}}}"),
            Self::OpenCode => format!("{{env:{variable}}}"),
            // Codex has its own key for it.
            Self::Codex | Self::ClaudeDesktop | Self::Zed | Self::Cline | Self::LmStudio => PLACEHOLDER.to_owned(),
        };
        format!("Bearer {token}")
    }

    /// The server in the client's own terms.
    pub(super) fn server_config(self, name: &str, transport: &Transport) -> OrderedValue {
        let mut members: Vec<(&str, OrderedValue)> = Vec::new();
        if self == Self::Goose {
            members.extend([
                ("enabled", OrderedValue::Flag(true)),
                ("name", OrderedValue::text(name)),
                ("description", OrderedValue::text("Tools of Taskwire")),
            ]);
        } else if self == Self::Continue {
            members.push(("name", OrderedValue::text(name)));
        }
        match transport {
            Transport::Http { url, token_variable: token } => {
                let kind = match self {
                    Self::ClaudeCode | Self::VsCode => Some("http"),
                    Self::Cline => Some("streamableHttp"),
                    Self::Continue => Some("streamable-http"),
                    Self::Goose => Some("streamable_http"),
                    Self::OpenCode => Some("remote"),
                    _ => None,
                };
                members.extend(kind.map(|kind| ("type", OrderedValue::text(kind))));
                let address = match self {
                    Self::Gemini => "httpUrl",
                    Self::Windsurf => "serverUrl",
                    Self::Goose => "uri",
                    _ => "url",
                };
                members.push((address, OrderedValue::text(url)));
                if let Some(variable) = token {
                    let headers = OrderedValue::members([("Authorization", OrderedValue::text(self.authorization(variable, name)))]);
                    match self {
                        Self::Codex => members.push(("bearer_token_env_var", OrderedValue::text(variable))),
                        Self::Continue => members.push(("requestOptions", OrderedValue::members([("headers", headers)]))),
                        Self::Goose => members.extend([("headers", headers), ("env_keys", OrderedValue::texts([variable.as_str()]))]),
                        _ => members.push(("headers", headers)),
                    }
                }
            }
            Transport::Stdio { program, args } => {
                let kind = match self {
                    Self::ClaudeCode | Self::VsCode | Self::Continue | Self::Goose => Some("stdio"),
                    Self::OpenCode => Some("local"),
                    _ => None,
                };
                members.extend(kind.map(|kind| ("type", OrderedValue::text(kind))));
                if self == Self::OpenCode {
                    let words = [program].into_iter().chain(args).map(String::as_str);
                    members.push(("command", OrderedValue::texts(words)));
                } else {
                    let command = if self == Self::Goose { "cmd" } else { "command" };
                    members
                        .extend([(command, OrderedValue::text(program)), ("args", OrderedValue::texts(args.iter().map(String::as_str)))]);
                }
            }
        }
        if self == Self::Goose {
            members.push(("timeout", OrderedValue::Number(GOOSE_TIMEOUT)));
        }
        OrderedValue::members(members)
    }

    /// The client's own command that adds the server, if it has one.
    pub(super) fn command(self, name: &str, transport: &Transport, scope: Scope) -> Option<String> {
        let scope_word = if scope == Scope::User { "user" } else { "project" };
        let header = |variable: &String| format!("Authorization: {}", self.authorization(variable, name));
        let mut words: Vec<String> = Vec::new();
        let mut push = |more: &[&str]| words.extend(more.iter().map(|word| (*word).to_owned()));
        match (self, transport) {
            (Self::ClaudeCode, Transport::Http { url, token_variable: token }) => {
                push(&["claude", "mcp", "add", "--transport", "http", "--scope", scope_word, name, url]);
                if let Some(header) = token.as_ref().map(header) {
                    // Last: this option takes all words that follow.
                    push(&["--header", &header]);
                }
            }
            (Self::ClaudeCode, Transport::Stdio { program, args }) => {
                push(&["claude", "mcp", "add", "--scope", scope_word, name, "--", program]);
                words.extend(args.iter().cloned());
            }
            (Self::Codex, _) if scope == Scope::Project => return None,
            (Self::Codex, Transport::Http { url, token_variable: token }) => {
                push(&["codex", "mcp", "add", name, "--url", url]);
                if let Some(variable) = token {
                    push(&["--bearer-token-env-var", variable]);
                }
            }
            (Self::Codex, Transport::Stdio { program, args }) => {
                push(&["codex", "mcp", "add", name, "--", program]);
                words.extend(args.iter().cloned());
            }
            (Self::Gemini, Transport::Http { url, token_variable: token }) => {
                push(&["gemini", "mcp", "add", "--scope", scope_word, "--transport", "http"]);
                if let Some(header) = token.as_ref().map(header) {
                    push(&["--header", &header]);
                }
                push(&[name, url]);
            }
            (Self::Gemini, Transport::Stdio { program, args }) => {
                // Words that look like options go behind `--`.
                let (options, plain): (Vec<&str>, Vec<&str>) = args.iter().map(String::as_str).partition(|word| word.starts_with('-'));
                push(&["gemini", "mcp", "add", "--scope", scope_word, name, program]);
                push(&plain);
                push(&["--"]);
                push(&options);
            }
            (Self::VsCode, Transport::Http { token_variable: Some(_), .. }) => return None,
            (Self::VsCode, _) if scope == Scope::Project => return None,
            (Self::VsCode, _) => {
                let OrderedValue::Members(mut members) = self.server_config(name, transport) else { return None };
                members.insert(0, ("name".to_owned(), OrderedValue::text(name)));
                let json = OrderedValue::Members(members).value().to_string();
                push(&["code", "--add-mcp", &json]);
            }
            _ => return None,
        }
        Some(words.iter().map(|word| shell_or_plain(word)).collect::<Vec<_>>().join(" "))
    }
}

/// A word for a shell; an option needs no quotes.
fn shell_or_plain(word: &str) -> String {
    let is_option = word.starts_with('-') && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if is_option { word.to_owned() } else { shell_word(word) }
}

/// opencode reads either.
fn opencode_files(dir: &Path) -> Vec<PathBuf> {
    vec![dir.join("opencode.json"), dir.join("opencode.jsonc")]
}

#[cfg(test)]
mod tests;
