//! `[auth]`: who may call.

use std::fmt;

use serde::Deserialize;
use taskwire::server::Tokens;

/// The longest name of a caller.
const CALLER_BYTES: usize = 500;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AuthTable {
    /// Who may call: each entry has a `token`, and the `caller` that it stands for. A token `"env:NAME"` is read from that environment
    /// variable. Default: `[]`, and everybody who reaches the server is one caller.
    pub(crate) tokens: Vec<Token>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Token {
    token: String,
    caller: String,
}

/// Tokens must not get into logs.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.caller)
    }
}

impl AuthTable {
    /// The tokens with their values; `env:NAME` stands for an environment variable. The error has the index of the token.
    pub(super) fn resolve(&self, env: impl Fn(&str) -> Option<String>) -> Result<Tokens, (usize, String)> {
        let mut auth = Tokens::default();
        for (n, entry) in self.tokens.iter().enumerate() {
            if entry.variable() == Some("") {
                return Err((n, "`env:` needs the name of a variable after it".to_owned()));
            }
            let missing = |name| (n, format!("the token of `{}` is to come from ${name}, which is not set", entry.caller));
            let token = match entry.variable() {
                None => entry.token.clone(),
                Some(name) => env(name).ok_or_else(|| missing(name))?,
            };
            if token.trim().is_empty() || entry.caller.is_empty() {
                return Err((n, "each of `auth.tokens` needs a `token` and a `caller` that are not empty".to_owned()));
            }
            if entry.caller.len() > CALLER_BYTES {
                return Err((n, format!("the name of a caller has at most {CALLER_BYTES} bytes")));
            }
            auth = auth.with_token(token.trim(), &entry.caller);
        }
        Ok(auth)
    }

    /// The callers, each with the variable that its token comes from, if any.
    pub(crate) fn callers(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.tokens.iter().map(|token| (token.caller.as_str(), token.variable()))
    }

    /// The environment variables that tokens come from.
    pub(crate) fn variables(&self) -> impl Iterator<Item = String> {
        self.tokens.iter().filter_map(Token::variable).map(ToOwned::to_owned)
    }
}

impl Token {
    fn variable(&self) -> Option<&str> {
        self.token.strip_prefix("env:")
    }
}
