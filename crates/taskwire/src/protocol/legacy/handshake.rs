//! `initialize`: negotiates the version, and what both sides can do.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};

use super::{VERSIONS, modes::mode_of, session::SessionTerms};
use crate::{
    config::ResponseMode,
    protocol::{
        Context, Fault, IDEMPOTENCY, PARTIALS, catalog,
        json::Object,
        params::{Anything, Elicitation, Members, Sampling, accepts, level_of, text},
    },
};

/// The log level for a client that did not set one.
const LEVEL: &str = "info";

#[derive(Deserialize)]
struct Initialize<'a> {
    #[serde(borrow, default, rename = "protocolVersion")]
    version: Option<&'a RawValue>,
    #[serde(default)]
    capabilities: Option<Members<Capabilities>>,
    #[serde(default, rename = "clientInfo")]
    client: Option<Members<Anything>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Capabilities {
    elicitation: Option<Members<Elicitation>>,
    sampling: Option<Members<Sampling>>,
    roots: Option<Members<Anything>>,
    tasks: Option<Members<Tasks>>,
    experimental: Option<Members<Experimental>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Experimental {
    #[serde(rename = "dev.taskwire/idempotency")]
    idempotency: Option<Members<Anything>>,
    #[serde(rename = "dev.taskwire/partials")]
    partials: Option<Members<Anything>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Tasks {
    #[serde(deserialize_with = "draft")]
    streaming: Option<Members<Streaming>>,
    #[serde(deserialize_with = "draft")]
    responses: Option<Members<Responses>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Streaming {
    #[serde(deserialize_with = "draft")]
    partial: Option<Members<Anything>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Responses {
    #[serde(deserialize_with = "draft")]
    modes: Option<Vec<String>>,
}

/// A member that only a draft defines. If it has another form than in the draft, it declares nothing.
fn draft<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Option<T>, D::Error> {
    let raw = <&RawValue>::deserialize(deserializer)?;
    Ok(serde_json::from_str(raw.get()).ok())
}

/// The terms for a client with these parameters.
pub(super) fn negotiate(params: &str) -> Result<SessionTerms, Fault> {
    let asked: Initialize<'_> = serde_json::from_str(params).map_err(|error| Fault::params(format!("invalid params: {error}")))?;
    let version = text(asked.version, "protocolVersion")?;
    let Members(capabilities) = asked.capabilities.ok_or_else(|| Fault::params("`capabilities` is missing"))?;
    if asked.client.is_none() {
        return Err(Fault::params("`clientInfo` is missing"));
    }
    let version = VERSIONS.into_iter().find(|known| *known == version).unwrap_or(VERSIONS[0]);
    // Tasks, and what builds on them, came with the latest version.
    let tasks = capabilities.tasks.filter(|_| version == VERSIONS[0]).map(|Members(tasks)| tasks).unwrap_or_default();
    let mut accepts = accepts(capabilities.elicitation.as_ref(), capabilities.sampling.as_ref(), capabilities.roots.is_some());
    accepts.elicit_url &= version == VERSIONS[0];
    accepts.elicit_form &= version != VERSIONS[2];
    let experimental = capabilities.experimental.map(|Members(experimental)| experimental).unwrap_or_default();
    let modes = tasks.responses.and_then(|Members(responses)| responses.modes);
    Ok(SessionTerms {
        version: version.to_owned(),
        accepts,
        partial: tasks.streaming.is_some_and(|Members(streaming)| streaming.partial.is_some()),
        // Each mode once, however often the client names it.
        modes: modes.map(|modes| modes.iter().filter_map(|mode| mode_of(mode)).collect::<BTreeSet<_>>().into_iter().collect()),
        idempotency: experimental.idempotency.is_some(),
        reads_output: experimental.partials.is_some(),
        level: level_of(LEVEL).unwrap_or_default(),
        resources: BTreeSet::new(),
        had_session_stream: false,
        stream: None,
        delivered: 0,
        reasks: Vec::new(),
    })
}

pub(super) fn result(context: &Context, agreed: &SessionTerms) -> Object {
    let config = &context.config;
    let info = json!({"name": config.name, "version": config.version});
    let object = Object::roomy()
        .put("protocolVersion", &agreed.version)
        .put("capabilities", &capabilities(context, agreed))
        .put("serverInfo", &info);
    match &config.instructions {
        Some(instructions) => object.put("instructions", instructions),
        None => object,
    }
}

/// Whether the server has this response mode; it always has tasks.
fn has(context: &Context, mode: ResponseMode) -> bool {
    mode == ResponseMode::Task || context.config.legacy.modes.contains(&mode)
}

fn capabilities(context: &Context, agreed: &SessionTerms) -> Value {
    let mut capabilities = catalog::capabilities();
    if agreed.has_tasks() {
        let mut tasks = json!({"cancel": {}, "requests": {"tools": {"call": {}}}});
        if context.config.legacy.list_tasks {
            tasks["list"] = json!({});
        }
        // Drafts are shown only to clients that declare them.
        if agreed.partial {
            tasks["streaming"] = json!({"partial": {}});
        }
        if agreed.modes.is_some() {
            let modes: Vec<ResponseMode> = [ResponseMode::Task, ResponseMode::Immediate, ResponseMode::Streaming]
                .into_iter()
                .filter(|mode| has(context, *mode))
                .collect();
            tasks["responses"] = json!({"modes": modes});
        }
        capabilities["tasks"] = tasks;
    }
    // The server names these extensions only to a client that declares them.
    for (name, _) in [(IDEMPOTENCY, agreed.idempotency), (PARTIALS, agreed.reads_output)].into_iter().filter(|(_, asked)| *asked) {
        capabilities["experimental"][name] = json!({});
    }
    capabilities
}
