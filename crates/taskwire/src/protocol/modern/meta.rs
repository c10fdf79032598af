//! Reads the parameters of a request once: `_meta`, and the members that several methods share.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use taskwire_core::{task::AcceptedQuestions, wire::RequestId};

use super::unsupported;
use crate::protocol::{
    Fault,
    params::{Anything, Elicitation, Members, Sampling, accepts, level_of, present, text},
};

/// The members of `params` that more than one method has, not parsed yet.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Params<'a> {
    #[serde(borrow, rename = "_meta")]
    meta: Option<Members<RawMeta<'a>>>,
    #[serde(borrow, deserialize_with = "present")]
    pub(super) name: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub(super) uri: Option<&'a RawValue>,
    #[serde(borrow, rename = "taskId", deserialize_with = "present")]
    pub(super) task_id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) arguments: Option<&'a RawValue>,
    #[serde(borrow, rename = "inputResponses", deserialize_with = "present")]
    pub(super) input_responses: Option<&'a RawValue>,
    #[serde(borrow, rename = "requestState", deserialize_with = "present")]
    pub(super) request_state: Option<&'a RawValue>,
    /// Only in the legacy `initialize`.
    #[serde(borrow, rename = "protocolVersion", deserialize_with = "present")]
    protocol_version: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawMeta<'a> {
    #[serde(borrow, default, rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<Cow<'a, str>>,
    #[serde(default, rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Option<Members<Capabilities>>,
    #[serde(borrow, default, rename = "io.modelcontextprotocol/logLevel")]
    log_level: Option<Cow<'a, str>>,
    #[serde(default, rename = "progressToken")]
    progress_token: Option<RequestId>,
    #[serde(default, rename = "dev.taskwire/idempotencyKey")]
    idempotency_key: Option<String>,
    #[serde(borrow, default, rename = "dev.taskwire/waitMs", deserialize_with = "present")]
    wait_ms: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "dev.taskwire/version", deserialize_with = "present")]
    known: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Capabilities {
    extensions: Option<Members<Extensions>>,
    elicitation: Option<Members<Elicitation>>,
    sampling: Option<Members<Sampling>>,
    roots: Option<Members<Anything>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Extensions {
    #[serde(rename = "io.modelcontextprotocol/tasks")]
    tasks: Option<Members<Anything>>,
    #[serde(rename = "dev.taskwire/partials")]
    partials: Option<Members<Anything>>,
    #[serde(rename = "dev.taskwire/idempotency")]
    idempotency: Option<Members<Anything>>,
    #[serde(rename = "dev.taskwire/list")]
    list: Option<Members<Anything>>,
}

/// What a request declares in `_meta`.
#[derive(Debug, Clone)]
pub(super) struct Meta<'a> {
    pub(super) version: Cow<'a, str>,
    pub(super) tasks: bool,
    pub(super) partials: bool,
    pub(super) idempotency: bool,
    pub(super) list: bool,
    /// How long the request may wait until something changed.
    pub(super) wait_ms: Option<&'a RawValue>,
    /// The version of the task that the client has.
    pub(super) known: Option<&'a RawValue>,
    pub(super) accepts: AcceptedQuestions,
    pub(super) progress_token: Option<RequestId>,
    /// The least severe log level that the client wants.
    pub(super) log_level: Option<usize>,
    pub(super) idempotency_key: Option<String>,
}

impl<'a> Params<'a> {
    pub(super) fn read(params: &'a str) -> Result<Self, Fault> {
        serde_json::from_str(params).map_err(|error| Fault::bad_request(format!("invalid params: {error}")))
    }

    /// What the request declares in `_meta`; a fault if that is incomplete.
    pub(super) fn meta(&mut self, method: &str) -> Result<Meta<'a>, Fault> {
        let Some(Members(meta)) = self.meta.take() else {
            return Err(self.undeclared(method, "_meta"));
        };
        let version = meta.version.ok_or_else(|| self.undeclared(method, "io.modelcontextprotocol/protocolVersion"))?;
        let Members(capabilities) = meta.capabilities.ok_or_else(|| missing("io.modelcontextprotocol/clientCapabilities"))?;
        let log_level = match meta.log_level {
            None => None,
            Some(level) => Some(level_of(&level).ok_or_else(|| Fault::bad_request(format!("`{level}` is no log level")))?),
        };
        let extensions = capabilities.extensions.as_ref().map(|Members(extensions)| extensions);
        let partials = extensions.is_some_and(|extensions| extensions.partials.is_some());
        Ok(Meta {
            version,
            tasks: extensions.is_some_and(|extensions| extensions.tasks.is_some()),
            partials,
            idempotency: extensions.is_some_and(|extensions| extensions.idempotency.is_some()),
            list: extensions.is_some_and(|extensions| extensions.list.is_some()),
            // Our own keys count only if the client declared the extension.
            wait_ms: meta.wait_ms.filter(|_| partials),
            known: meta.known.filter(|_| partials),
            accepts: accepts(capabilities.elicitation.as_ref(), capabilities.sampling.as_ref(), capabilities.roots.is_some()),
            progress_token: meta.progress_token,
            log_level,
            idempotency_key: meta.idempotency_key,
        })
    }

    /// The fault for a request without a version. A legacy client's `initialize` gets the list of supported versions.
    fn undeclared(&self, method: &str, key: &str) -> Fault {
        if method == "initialize" {
            return unsupported(&text(self.protocol_version, "protocolVersion").unwrap_or("unknown".into()));
        }
        missing(key)
    }
}

fn missing(key: &str) -> Fault {
    Fault::bad_request(format!(
        "`{key}` is missing: each request needs `_meta` with `io.modelcontextprotocol/protocolVersion` (such as \"{}\") and \
         `io.modelcontextprotocol/clientCapabilities`",
        super::VERSIONS[0]
    ))
}
