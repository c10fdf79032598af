//! Lists, prompts, resources and completions of the legacy era, and what a session subscribes to.

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use taskwire_core::{Payload, wire::code};

use super::Cx;
use crate::{
    engine::Continuation,
    protocol::{
        Fault, catalog,
        json::{Object, text},
        params::{level_of, present, text as member},
    },
    tool::{PromptCall, ReadyTool, ResourceCall, TaskMode, ToolError, ToolErrorKind},
};

#[derive(Deserialize, Default)]
#[serde(default)]
struct Params<'a> {
    #[serde(borrow, deserialize_with = "present")]
    name: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    uri: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    level: Option<&'a RawValue>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

fn page<T>(cx: &Cx<'_>, key: &str, all: &[T], wire: impl Fn(&T) -> String) -> Result<Object, Fault> {
    let page = catalog::page(cx.raw_params, all, cx.context.config.page_len, wire)?;
    let object = Object::roomy().raw(key, &page.list);
    Ok(match page.next {
        Some(next) => object.put("nextCursor", &next),
        None => object,
    })
}

pub(super) fn tools(cx: &Cx<'_>) -> Result<Object, Fault> {
    let agreed = cx.session.terms();
    // A client with tasks can also call without them, so all clients see the follow-up tools.
    page(cx, "tools", &catalog::tools(cx.context, false), |tool| {
        catalog::listed_tool(cx.context, tool, &definition(tool, agreed.has_tasks(), agreed.partial), false)
    })
}

/// The definition of a tool. Structured results are objects in this era, so any other `outputSchema` is left out.
fn definition(tool: &ReadyTool, has_tasks: bool, has_partials: bool) -> Payload {
    let (mut wire, policy) = (tool.0.wire.read::<Value>().unwrap_or_default(), &tool.0.policy);
    if let Some(members) = wire.as_object_mut().filter(|members| members.get("outputSchema").is_some_and(|it| it["type"] != "object")) {
        members.remove("outputSchema");
    }
    if has_tasks {
        let support = match policy.task {
            TaskMode::Never => "forbidden",
            TaskMode::Auto | TaskMode::Always => "optional",
            TaskMode::Required => "required",
        };
        wire["execution"] = json!({"taskSupport": support});
        if has_partials && policy.shows_output() {
            wire["execution"]["streamPartial"] = true.into();
        }
    }
    wire.into()
}

/// Any other list.
pub(super) fn list(cx: &Cx<'_>, method: &str) -> Option<Result<Object, Fault>> {
    let (key, entries) = catalog::list(cx.context, method)?;
    Some(page(cx, key, &entries, text))
}

pub(super) async fn complete(cx: &Cx<'_>) -> Result<Object, Fault> {
    Ok(Object::open().put("completion", &catalog::complete(&cx.context.provider, cx.raw_params).await?))
}

pub(super) async fn prompt(cx: &Cx<'_>) -> Result<Object, Fault> {
    let params: Params<'_> = cx.read()?;
    let name = member(params.name, "name")?;
    let value = catalog::arguments(params.arguments)?;
    let (prompt, arguments) = catalog::prompt(&cx.context.provider, &name, &value)?;
    let accepts = cx.session.terms().accepts;
    finish((prompt.get)(PromptCall { arguments, resumed: Continuation::default(), accepts }).await)
}

pub(super) async fn read(cx: &Cx<'_>) -> Result<Object, Fault> {
    let params: Params<'_> = cx.read()?;
    let uri = member(params.uri, "uri")?;
    let not_found = || Fault::new(200, code::RESOURCE_NOT_FOUND, format!("there is no resource `{uri}`")).with_data(json!({"uri": uri}));
    let Some(handler) = catalog::resource(&cx.context.provider, &uri) else {
        let contents = catalog::task_output(cx.context, &cx.session.caller, &uri).await.ok_or_else(not_found)??;
        return Ok(Object::roomy().splice(&text(&contents)));
    };
    let call = ResourceCall { uri: uri.to_string(), resumed: Continuation::default(), accepts: cx.session.terms().accepts };
    finish(handler(call).await)
}

fn finish(outcome: Result<Value, ToolError>) -> Result<Object, Fault> {
    match outcome.map_err(ToolError::into_kind) {
        Ok(value) if !value.is_object() => Err(Fault::internal("the handler gave a result that is not an object")),
        Ok(value) => Ok(Object::roomy().splice(Payload::from(value).as_str())),
        Err(ToolErrorKind::InputRequired(_)) => {
            Err(Fault::internal("this asks for something on the way, for which a client of 2026-07-28 or later is needed"))
        }
        Err(ToolErrorKind::Text(text)) => Err(Fault::internal(text)),
        Err(ToolErrorKind::Protocol(error)) => Err(error.into()),
        Err(ToolErrorKind::Stopped) => Err(Fault::internal("the request was stopped")),
    }
}

pub(super) async fn set_level(cx: &Cx<'_>) -> Result<Object, Fault> {
    let params: Params<'_> = cx.read()?;
    let name = member(params.level, "level")?;
    let level = level_of(&name).ok_or_else(|| Fault::params(format!("`{name}` is no log level")))?;
    cx.session.change_terms(cx.context, |agreed| agreed.level = level).await?;
    Ok(Object::open())
}

pub(super) async fn subscribe(cx: &Cx<'_>, wanted: bool) -> Result<Object, Fault> {
    let params: Params<'_> = cx.read()?;
    let uri = member(params.uri, "uri")?.into_owned();
    let most = cx.context.engine.limits().message_bytes;
    if uri.len() as u64 > most {
        return Err(Fault::params(format!("the URI has more than {most} bytes (configuration key `limits.message_bytes`)")));
    }
    let resources = &cx.session.terms().resources;
    if resources.contains(&uri) == wanted {
        return Ok(Object::open());
    }
    let max = cx.context.config.subscriptions_per_stream;
    if wanted && resources.len() >= max {
        return Err(Fault::limit(format!("a session may subscribe to {max} resources (configuration key `subscriptions_per_stream`)")));
    }
    let change = |agreed: &mut super::session::SessionTerms| {
        if wanted {
            agreed.resources.insert(uri.clone())
        } else {
            agreed.resources.remove(&uri)
        };
    };
    cx.session.change_terms(cx.context, change).await?;
    Ok(Object::open())
}
