//! `[auth]`: who may call.

use std::{collections::BTreeMap, fmt, io, path::Path, time::Duration};

use serde::Deserialize;
use taskwire::server::{
    Callers, Identity, Introspection, Issuer, Issuers, METHODS, Network, ProtectedResource, ScopeRules, Scopes, Tokens, TrustedProxy,
};
use taskwire_core::CallerId;

use super::{store::Secret, time::Span};
use crate::client::schema::nearest;

/// The longest name of a caller.
const CALLER_BYTES: usize = 500;
/// How much clocks may differ if nothing else is said.
const LEEWAY: Duration = Duration::from_secs(60);
/// The most that they may.
const LEEWAY_MAX: Duration = Duration::from_secs(600);
/// The rule for everything.
const EVERYTHING: &str = "*";
/// What begins the rule for a tool.
const TOOL: &str = "tool:";

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AuthTable {
    tokens: Vec<TokenTable>,
    issuers: Vec<IssuerTable>,
    trusted_proxy: Option<TrustedProxyTable>,
    /// Whether the certificate that a client shows says who calls: `cert:` and its name. Needs `tls.client_ca`. Default: `false`.
    pub(crate) client_certificates: bool,
    /// The URL by which clients know this server, with `issuers`. Its host may be addressed. Default: none.
    resource: Option<String>,
    /// How much the clocks of issuers may differ, at most `"10m"`. Default: `"60s"`.
    leeway: Option<Span>,
    /// Which scopes an operation needs: a method (`"tools/call"`), a group of methods (`"tasks/*"`), calls of a tool (`"tool:deploy"`) or
    /// everything (`"*"`). Default: `{}`.
    scopes: BTreeMap<String, Vec<String>>,
    /// Which scopes a scope stands for, besides itself. Default: `{}`.
    scope_includes: BTreeMap<String, Vec<String>>,
    /// The scope that makes its caller an admin, who sees and stops what other callers own. Default: none.
    admin_scope: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenTable {
    /// The token. `"env:NAME"` is read from that environment variable, `"file:PATH"` from that file. Default: none, there is a `sha256` then.
    #[serde(default)]
    token: Option<Secret>,
    /// In place of the token: its SHA-256 in hexadecimal digits, as `sha256sum` prints it. Default: none, there is a `token` then.
    #[serde(default)]
    sha256: Option<String>,
    /// The caller that the token stands for. Required.
    caller: String,
    /// What the caller may do. Default: everything.
    #[serde(default)]
    scopes: Option<Vec<String>>,
    /// Whether the caller is an admin, who sees and stops what other callers own. Default: `false`.
    #[serde(default)]
    admin: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IssuerTable {
    /// The issuer, as its tokens name it (`iss`). Required.
    url: String,
    /// Whom a token must be for (`aud`): any one of these. `"*"` takes every token of the issuer. Default: `resource`.
    #[serde(default)]
    audiences: Vec<String>,
    /// How tokens may be signed. Default: `["RS256", "PS256", "ES256", "EdDSA"]`.
    #[serde(default)]
    algorithms: Option<Vec<String>>,
    /// The URL of the issuer's keys. Default: where the issuer says that they are.
    #[serde(default)]
    jwks: Option<String>,
    #[serde(default)]
    introspection: Option<IntrospectionTable>,
    /// The claim that names the caller. Default: `"sub"`.
    #[serde(default)]
    caller_claim: Option<String>,
    /// The claim that has the scopes: a text of words, or a list. Default: `"scope"` or `"scp"`.
    #[serde(default)]
    scope_claim: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IntrospectionTable {
    /// The endpoint that says what a token is worth (RFC 7662). Required.
    url: String,
    /// As whom the server asks. Required.
    client_id: String,
    /// The secret that belongs to it. `"env:NAME"` is read from that environment variable, `"file:PATH"` from that file. Required.
    client_secret: Secret,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TrustedProxyTable {
    /// The header that names the caller. The proxy must remove it from what comes to it. Required.
    header: String,
    /// The addresses of the proxy, such as `"127.0.0.1"` or `"10.0.0.0/8"`. Required.
    from: Vec<String>,
}

/// Tokens must not get into logs.
impl fmt::Debug for TokenTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenTable({})", self.caller)
    }
}

/// Something that cannot be used: the keys that lead to it, below `auth`, and what is wrong with it.
#[derive(Debug)]
pub(super) struct Misfit {
    pub(super) path: Vec<String>,
    pub(super) message: String,
}

fn misfit(path: &[&str], message: impl Into<String>) -> Misfit {
    Misfit { path: path.iter().map(|step| (*step).to_owned()).collect(), message: message.into() }
}

/// Where secrets come from that are not in the file itself.
pub(super) struct SecretSources<'a> {
    pub(super) variable: &'a dyn Fn(&str) -> Option<String>,
    pub(super) file: &'a dyn Fn(&Path) -> io::Result<String>,
}

impl SecretSources<'_> {
    /// The secret that a text stands for: itself, a variable's value or a file's content. The error does not repeat a secret.
    pub(super) fn read(&self, text: &str) -> Result<String, String> {
        let secret = match text.split_once(':') {
            Some(("env", "")) => return Err("`env:` needs the name of a variable after it".to_owned()),
            Some(("env", name)) => (self.variable)(name).ok_or_else(|| format!("it is to come from ${name}, which is not set"))?,
            Some(("file", "")) => return Err("`file:` needs the name of a file after it".to_owned()),
            Some(("file", path)) => (self.file)(Path::new(path)).map_err(|error| format!("it is to come from {path}: {error}"))?,
            _ => text.to_owned(),
        };
        let secret = secret.trim();
        if secret.is_empty() { Err("it is empty".to_owned()) } else { Ok(secret.to_owned()) }
    }
}

/// The variable that a text names instead of a secret.
pub(super) fn variable(text: &str) -> Option<&str> {
    text.strip_prefix("env:")
}

impl AuthTable {
    /// Whether callers must show who they are.
    pub(crate) fn is_required(&self) -> bool {
        !self.tokens.is_empty() || !self.issuers.is_empty() || self.trusted_proxy.is_some() || self.client_certificates
    }

    /// Who may call, and the host by which they may address the server besides others. `tools` are those that rules can be for.
    pub(super) fn resolve(&self, sources: &SecretSources<'_>, tools: &[&str]) -> Result<(Callers, Option<String>), Misfit> {
        let mut callers = Callers::default().with_tokens(self.known_tokens(sources)?).with_scope_rules(self.scope_rules(tools)?);
        if self.client_certificates {
            callers = callers.with_client_certificates();
        }
        if let Some(proxy) = &self.trusted_proxy {
            callers = callers.with_proxy(proxy.resolve()?);
        }
        if self.leeway() > LEEWAY_MAX {
            return Err(misfit(&["leeway"], "`auth.leeway` must be at most 10m"));
        }
        let resource = match (&self.resource, self.issuers.is_empty()) {
            (None, true) => return Ok((callers, None)),
            (Some(_), true) => return Err(misfit(&["resource"], "`auth.resource` is for `auth.issuers`, and there are none")),
            (None, false) => {
                let example = "such as \"https://tools.example/mcp\"";
                return Err(misfit(&["issuers"], format!("`auth.issuers` needs `auth.resource`: the URL of this server, {example}")));
            }
            (Some(resource), false) => resource,
        };
        let issuers = self.known_issuers(resource, sources)?;
        let urls = self.issuers.iter().map(|issuer| issuer.url.clone()).collect();
        let resource = ProtectedResource::new(resource, urls).map_err(|why| misfit(&["resource"], why))?;
        let host = resource.host().to_owned();
        Ok((callers.with_issuers(issuers).with_resource(resource), Some(host)))
    }

    /// Those who issue tokens, if anybody does.
    pub(super) fn issuers(&self, sources: &SecretSources<'_>) -> Result<Option<Issuers>, Misfit> {
        let resource = self.resource.as_ref().filter(|_| !self.issuers.is_empty());
        resource.map(|resource| self.known_issuers(resource, sources)).transpose()
    }

    fn known_issuers(&self, resource: &str, sources: &SecretSources<'_>) -> Result<Issuers, Misfit> {
        let issuers = self.issuers.iter().enumerate().map(|(n, issuer)| issuer.resolve(n, resource, sources));
        Issuers::new(issuers.collect::<Result<_, _>>()?, self.leeway())
            .map_err(|invalid| misfit(&["issuers", &invalid.index.to_string(), invalid.key], invalid.reason.clone()))
    }

    fn leeway(&self) -> Duration {
        self.leeway.map_or(LEEWAY, |span| span.0)
    }

    fn known_tokens(&self, sources: &SecretSources<'_>) -> Result<Tokens, Misfit> {
        let mut tokens = Tokens::default();
        for (n, entry) in self.tokens.iter().enumerate() {
            let wrong = |message: String| misfit(&["tokens", &n.to_string()], message);
            if entry.caller.is_empty() {
                return Err(wrong("each of `auth.tokens` needs a `caller` that is not empty".to_owned()));
            }
            if entry.caller.len() > CALLER_BYTES {
                return Err(wrong(format!("the name of a caller has at most {CALLER_BYTES} bytes")));
            }
            let sha256 = match (&entry.token, &entry.sha256) {
                (Some(token), None) => {
                    let token = sources.read(&token.0).map_err(|why| {
                        wrong(format!("each of `auth.tokens` needs a token, and that of `{}` cannot be had: {why}", entry.caller))
                    })?;
                    Tokens::sha256(&token)
                }
                (None, Some(hex)) => digest(hex).ok_or_else(|| wrong("`sha256` has 64 hexadecimal digits".to_owned()))?,
                _ => return Err(wrong("each of `auth.tokens` needs either a `token` or its `sha256`".to_owned())),
            };
            let scopes = entry.scopes.clone().map_or(Scopes::All, Scopes::only);
            let identity = Identity { caller: CallerId::new(&entry.caller), scopes, expires: None, admin: entry.admin };
            tokens = tokens.with_sha256(sha256, identity);
        }
        Ok(tokens)
    }

    fn scope_rules(&self, tools: &[&str]) -> Result<ScopeRules, Misfit> {
        let mut rules = ScopeRules::default();
        for (operation, scopes) in &self.scopes {
            check_operation(operation, tools).map_err(|message| misfit(&["scopes", operation], message))?;
            check_scopes(scopes).map_err(|message| misfit(&["scopes", operation], message))?;
            rules = rules.with_rule(operation, scopes);
        }
        for (scope, includes) in &self.scope_includes {
            check_scopes(std::slice::from_ref(scope)).map_err(|message| misfit(&["scope_includes", scope], message))?;
            check_scopes(includes).map_err(|message| misfit(&["scope_includes", scope], message))?;
            rules = rules.with_hierarchy(scope, includes);
        }
        if let Some(scope) = &self.admin_scope {
            check_scopes(std::slice::from_ref(scope)).map_err(|message| misfit(&["admin_scope"], message))?;
            rules = rules.with_admin_scope(scope);
        }
        Ok(rules)
    }

    /// Whether `new` has a rule for this tool that is not the one here.
    pub(crate) fn has_other_rule(&self, new: &Self, tool: &str) -> bool {
        let operation = format!("{TOOL}{tool}");
        new.scopes.get(&operation).is_some_and(|rule| self.scopes.get(&operation) != Some(rule))
    }

    /// The callers with tokens, each with the variable that its token comes from, if any.
    pub(crate) fn callers(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.tokens.iter().map(|entry| (entry.caller.as_str(), entry.token.as_ref().and_then(|token| variable(&token.0))))
    }

    /// The environment variables that secrets come from.
    pub(crate) fn variables(&self) -> impl Iterator<Item = String> {
        let tokens = self.tokens.iter().filter_map(|entry| entry.token.as_ref());
        let issuers = self.issuers.iter().filter_map(|issuer| Some(&issuer.introspection.as_ref()?.client_secret));
        tokens.chain(issuers).filter_map(|secret| variable(&secret.0)).map(ToOwned::to_owned)
    }
}

impl IssuerTable {
    fn resolve(&self, n: usize, resource: &str, sources: &SecretSources<'_>) -> Result<Issuer, Misfit> {
        let audiences = if self.audiences.is_empty() { vec![resource.to_owned()] } else { self.audiences.clone() };
        let mut issuer = Issuer::new(&self.url, audiences);
        issuer.jwks.clone_from(&self.jwks);
        issuer.scope_claim.clone_from(&self.scope_claim);
        super::set(&mut issuer.algorithms, self.algorithms.clone());
        super::set(&mut issuer.caller_claim, self.caller_claim.clone());
        if let Some(table) = &self.introspection {
            let secret = sources.read(&table.client_secret.0).map_err(|why| {
                misfit(&["issuers", &n.to_string(), "introspection"], format!("the `client_secret` cannot be had: {why}"))
            })?;
            issuer.introspection =
                Some(Introspection { url: table.url.clone(), client_id: table.client_id.clone(), client_secret: secret });
        }
        Ok(issuer)
    }
}

impl TrustedProxyTable {
    fn resolve(&self) -> Result<TrustedProxy, Misfit> {
        let wrong = |key: &str, message: String| misfit(&["trusted_proxy", key], message);
        if self.from.is_empty() {
            return Err(wrong("from", "the proxy needs an address, or anybody could say who they are".to_owned()));
        }
        let from = self.from.iter().map(|range| range.parse::<Network>().map_err(|why| wrong("from", why)));
        let from = from.collect::<Result<Vec<_>, _>>()?;
        TrustedProxy::new(&self.header, from).map_err(|why| wrong("header", why))
    }
}

/// Refuses rules for what is not there: they would guard nothing.
fn check_operation(operation: &str, tools: &[&str]) -> Result<(), String> {
    let group = operation.strip_suffix('*').filter(|group| group.ends_with('/'));
    if operation == EVERYTHING || METHODS.contains(&operation) || group.is_some_and(|group| METHODS.iter().any(|it| it.starts_with(group)))
    {
        return Ok(());
    }
    let (what, name, near) = match operation.strip_prefix(TOOL) {
        Some(tool) if tools.contains(&tool) => return Ok(()),
        Some(tool) => ("tool", tool, nearest(tool, tools.iter().copied()).map(|near| format!("{TOOL}{near}"))),
        None => ("method", operation, nearest(operation, METHODS.into_iter()).map(ToOwned::to_owned)),
    };
    let hint = match near {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => "write a method such as \"tools/call\", a group such as \"tasks/*\", \"tool:NAME\" or \"*\"".to_owned(),
    };
    Err(format!("there is no {what} `{name}`: {hint}"))
}

/// Refuses what could not be named in a challenge.
fn check_scopes(scopes: &[String]) -> Result<(), String> {
    let is_scope = |scope: &String| !scope.is_empty() && scope.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\'));
    match scopes.iter().find(|scope| !is_scope(scope)) {
        _ if scopes.is_empty() => Err("name at least one scope".to_owned()),
        Some(wrong) => Err(format!("`{wrong}` is no scope: that is one word, without quotes")),
        None => Ok(()),
    }
}

/// The bytes of a hash in hexadecimal digits.
fn digest(hex: &str) -> Option<[u8; 32]> {
    let hex = hex.trim();
    if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let bytes = (0..32).map(|n| u8::from_str_radix(&hex[2 * n..2 * n + 2], 16).ok()).collect::<Option<Vec<u8>>>()?;
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests;
