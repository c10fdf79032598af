//! What every request says about itself, in `params._meta`.

use std::{borrow::Cow, collections::HashMap};

use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;
use taskwire_core::{task::Accepts, wire::RequestId};

use super::{TASKS, unsupported};
use crate::dialect::Fault;

/// Log levels, from least to most severe.
const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// What a request says about itself.
#[derive(Debug, Clone)]
pub(super) struct Meta {
    pub(super) version: String,
    /// Whether it declares the Tasks extension.
    pub(super) tasks: bool,
    /// What its sender can be asked.
    pub(super) accepts: Accepts,
    pub(super) progress_token: Option<RequestId>,
    /// The least severe log line that the sender wants.
    pub(super) log_level: Option<usize>,
    pub(super) idempotency_key: Option<String>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<&'a RawValue>,
    /// Only to tell an old `initialize` apart.
    #[serde(borrow, default, rename = "protocolVersion")]
    protocol_version: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow, default, rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "io.modelcontextprotocol/logLevel")]
    log_level: Option<Cow<'a, str>>,
    #[serde(default, rename = "progressToken")]
    progress_token: Option<RequestId>,
    #[serde(default, rename = "dev.taskwire/idempotencyKey")]
    idempotency_key: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Capabilities<'a> {
    #[serde(borrow)]
    extensions: HashMap<Cow<'a, str>, IgnoredAny>,
    elicitation: Option<Elicitation>,
    sampling: Option<IgnoredAny>,
    roots: Option<IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Elicitation {
    form: Option<IgnoredAny>,
    url: Option<IgnoredAny>,
}

impl Meta {
    pub(super) fn read(method: &str, params: &str) -> Result<Self, Fault> {
        let outer: Params<'_> = serde_json::from_str(params).map_err(|error| Fault::meta(format!("invalid params: {error}")))?;
        let raw: Raw<'_> = match outer.meta {
            Some(meta) => serde_json::from_str(meta.get()).map_err(|error| Fault::meta(format!("invalid `_meta`: {error}")))?,
            None if method == "initialize" => return Err(unsupported(outer.protocol_version.as_deref().unwrap_or("unknown"))),
            None => return Err(missing("_meta")),
        };
        let version = raw.version.ok_or_else(|| missing("io.modelcontextprotocol/protocolVersion"))?;
        let version: String =
            serde_json::from_str(version.get()).map_err(|_| Fault::meta("`io.modelcontextprotocol/protocolVersion` must be a string"))?;
        let capabilities = raw.capabilities.ok_or_else(|| missing("io.modelcontextprotocol/clientCapabilities"))?;
        let capabilities: Capabilities<'_> = serde_json::from_str(capabilities.get())
            .map_err(|error| Fault::meta(format!("`io.modelcontextprotocol/clientCapabilities` is invalid: {error}")))?;
        let log_level = match raw.log_level {
            None => None,
            Some(level) => Some(level_of(&level).ok_or_else(|| Fault::meta(format!("`{level}` is no log level")))?),
        };
        Ok(Self {
            version,
            tasks: capabilities.extensions.contains_key(TASKS),
            accepts: capabilities.accepts(),
            progress_token: raw.progress_token,
            log_level,
            idempotency_key: raw.idempotency_key,
        })
    }
}

impl Capabilities<'_> {
    fn accepts(&self) -> Accepts {
        let (form, url) = match &self.elicitation {
            None => (false, false),
            // An empty object means forms, as it did before there was anything else.
            Some(Elicitation { form: None, url: None }) => (true, false),
            Some(Elicitation { form, url }) => (form.is_some(), url.is_some()),
        };
        Accepts { elicit_form: form, elicit_url: url, sampling: self.sampling.is_some(), roots: self.roots.is_some() }
    }
}

fn missing(key: &str) -> Fault {
    Fault::meta(format!(
        "`{key}` is missing: each request needs `_meta` with `io.modelcontextprotocol/protocolVersion` (such as \"{}\") and \
         `io.modelcontextprotocol/clientCapabilities`",
        super::VERSIONS[0]
    ))
}

/// How severe a log level is.
pub(super) fn level_of(name: &str) -> Option<usize> {
    LEVELS.iter().position(|level| *level == name)
}
