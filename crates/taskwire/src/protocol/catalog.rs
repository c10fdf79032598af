//! Lists, prompts, resources and completions, as far as both eras share them.

use std::{borrow::Cow, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};
use taskwire_core::{CallerId, Payload, wire::parse_strict};

use super::{Fault, call::hold, json, params::Members};
use crate::{
    followup::resource::{self as output, ReadError},
    protocol::Context,
    tool::{CompletionRequest, Handler, Prompt, Provider, ReadyTool, Resource, ResourceCall},
};

/// The protocol's limit of values in one completion.
const COMPLETIONS_MAX: usize = 100;

#[derive(Deserialize)]
struct PageParams<'a> {
    #[serde(borrow, default)]
    cursor: Option<Cow<'a, str>>,
}

pub(super) fn page_cursor(params: &str) -> Result<Option<Cow<'_, str>>, Fault> {
    let asked: PageParams<'_> = serde_json::from_str(params).map_err(|error| Fault::params(format!("invalid params: {error}")))?;
    Ok(asked.cursor)
}

pub(super) fn invalid_page_cursor() -> Fault {
    Fault::params("the cursor was not issued here")
}

/// One page of a list as JSON text, and the cursor of the next.
pub(super) struct ListPage {
    pub(super) list: String,
    pub(super) next: Option<String>,
}

/// One page of `all`. A cursor is the number of entries before it.
pub(super) fn page<T>(params: &str, all: &[T], len: usize, wire: impl Fn(&T) -> String) -> Result<ListPage, Fault> {
    let from = match page_cursor(params)? {
        None => 0,
        Some(cursor) => decode(&cursor).filter(|from| *from <= all.len()).ok_or_else(invalid_page_cursor)?,
    };
    let to = all.len().min(from + len.max(1));
    let entries: Vec<String> = all[from..to].iter().map(wire).collect();
    let next = (to < all.len()).then(|| URL_SAFE_NO_PAD.encode(format!("from:{to}")));
    Ok(ListPage { list: format!("[{}]", entries.join(",")), next })
}

fn decode(cursor: &str) -> Option<usize> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    text.strip_prefix("from:")?.parse().ok()
}

/// The tools that a caller sees: those of the provider and, if the caller has no tasks, the follow-up tools.
pub(super) fn tools(context: &Context, has_tasks: bool) -> Vec<Arc<ReadyTool>> {
    let mut tools = context.provider.tools();
    if !has_tasks {
        let others = context.followups.iter().filter(|ours| !tools.iter().any(|tool| tool.0.name == ours.0.name));
        let others: Vec<_> = others.cloned().collect();
        tools.extend(others);
    }
    tools
}

/// A tool in a list. If the hold of its calls can expire, the result may differ from `outputSchema`, so that is left out.
pub(super) fn listed_tool(context: &Context, tool: &ReadyTool, wire: &Payload, has_tasks: bool) -> String {
    if !has_tasks
        && hold::hold_can_expire(context, tool)
        && wire.as_str().contains("\"outputSchema\"")
        && let Ok(mut members) = wire.read::<Map<String, Value>>()
        && members.remove("outputSchema").is_some()
    {
        return json::text(&members);
    }
    wire.as_str().to_owned()
}

/// The key and entries of a list that both eras have; none for another method.
pub(super) fn list(context: &Context, method: &str) -> Option<(&'static str, Vec<Value>)> {
    let provider = &context.provider;
    Some(match method {
        "prompts/list" => ("prompts", provider.prompts().into_iter().map(|prompt| prompt.wire).collect()),
        "resources/list" => ("resources", provider.resources().into_iter().map(|resource| resource.wire).collect()),
        "resources/templates/list" => {
            let mut templates: Vec<Value> = provider.templates().into_iter().map(|template| template.wire).collect();
            // The output of any task can be read, but the template is listed only if a tool points to it.
            if provider.tools().iter().any(|tool| tool.0.policy.output_exceeds_result) {
                templates.push(output::template());
            }
            ("resourceTemplates", templates)
        }
        _ => return None,
    })
}

/// The output of one of the caller's tasks; none if the URI does not name one.
pub(super) async fn task_output(context: &Context, caller: &CallerId, uri: &str) -> Option<Result<Value, Fault>> {
    if !output::is_task_uri(uri) {
        return None;
    }
    match output::read(&context.engine, caller, uri, context.config.read_bytes).await {
        Ok(contents) => Some(Ok(contents)),
        Err(ReadError::NotFound) => None,
        Err(ReadError::Invalid(why)) => Some(Err(Fault::params(why))),
        Err(ReadError::Engine(error)) => Some(Err(error.into())),
    }
}

/// The server capabilities that both eras share.
pub(super) fn capabilities() -> Value {
    json!({
        "tools": {"listChanged": true},
        "prompts": {"listChanged": true},
        "resources": {"listChanged": true, "subscribe": true},
        "completions": {},
        "logging": {},
    })
}

pub(super) fn arguments(raw: Option<&RawValue>) -> Result<Value, Fault> {
    let arguments =
        parse_strict(raw.map_or("{}", RawValue::get)).map_err(|error| Fault::params(format!("invalid `arguments`: {error}")))?;
    if arguments.is_object() { Ok(arguments) } else { Err(Fault::params("`arguments` must be an object")) }
}

/// The prompt of this name and its arguments; a fault if a required one is missing.
pub(super) fn prompt(provider: &Arc<dyn Provider>, name: &str, arguments: &Value) -> Result<(Prompt, Map<String, Value>), Fault> {
    let prompt = provider.prompts().into_iter().find(|prompt| *prompt.name == *name);
    let prompt = prompt.ok_or_else(|| Fault::params(format!("there is no prompt `{name}`")))?;
    let arguments = arguments.as_object().cloned().unwrap_or_default();
    let wanted = prompt.wire["arguments"].as_array().into_iter().flatten().filter(|argument| argument["required"] == true);
    for name in wanted.filter_map(|argument| argument["name"].as_str()) {
        if !arguments.contains_key(name) {
            return Err(Fault::params(format!("the argument `{name}` is missing")));
        }
    }
    Ok((prompt, arguments))
}

/// The handler that reads the resource of this URI.
pub(super) fn resource(provider: &Arc<dyn Provider>, uri: &str) -> Option<Handler<ResourceCall>> {
    let known = provider.resources().into_iter().find(|resource: &Resource| *resource.uri == *uri).map(|resource| resource.read);
    known.or_else(|| provider.templates().into_iter().find(|template| template.matches(uri)).map(|template| template.read))
}

#[derive(Deserialize)]
struct Complete {
    #[serde(rename = "ref")]
    of: Members<Reference>,
    argument: Members<Argument>,
}

#[derive(Deserialize)]
struct Reference {
    r#type: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    uri: Option<String>,
}

#[derive(Deserialize)]
struct Argument {
    name: String,
    value: String,
}

/// Completes an argument of a prompt or a template.
pub(super) async fn complete(provider: &Arc<dyn Provider>, params: &str) -> Result<Value, Fault> {
    let Complete { of: Members(of), argument: Members(argument) } =
        serde_json::from_str(params).map_err(|error| Fault::params(format!("invalid params: {error}")))?;
    let of = match (of.r#type.as_str(), of.name, of.uri) {
        ("ref/prompt", Some(name), _) => name,
        ("ref/resource", _, Some(uri)) => uri,
        (kind, _, _) => return Err(Fault::params(format!("`ref` of type `{kind}` does not name a prompt or a resource"))),
    };
    let known = provider.prompts().iter().any(|prompt| *prompt.name == *of)
        || provider.templates().iter().any(|t| *t.template == *of)
        || output::template()["uriTemplate"] == *of;
    if !known {
        return Err(Fault::params(format!("there is no prompt or resource template `{of}`")));
    }
    let request = CompletionRequest { reference: of, argument: argument.name, value: argument.value };
    let values = provider.complete(request).await.unwrap_or_default().values;
    let shown = &values[..values.len().min(COMPLETIONS_MAX)];
    Ok(json!({"values": shown, "total": values.len(), "hasMore": values.len() > COMPLETIONS_MAX}))
}
