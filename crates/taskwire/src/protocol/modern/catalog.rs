//! Discovery, lists, prompts, resources and completions of the modern era.

use serde_json::{Value, json};
use taskwire_core::Payload;

use super::{
    Cx, PARTIALS, TASKS, VERSIONS,
    call::{ask_to_call_again, read_request_state},
    json::{Object, complete_result, text, typed, with_info},
    request_state::Binding,
};
use crate::{
    protocol::{Fault, IDEMPOTENCY, LIST, catalog, params::text as member},
    tool::{PromptCall, ResourceCall, ToolError},
};

fn cached(cx: &Cx<'_>, object: Object) -> Object {
    let ttl = u64::try_from(cx.context.config.list_ttl.as_millis()).unwrap_or(u64::MAX);
    // What a caller sees can depend on who it is, so a cache must not share it.
    object.put("ttlMs", &ttl).put("cacheScope", "private")
}

fn result(cx: &Cx<'_>) -> Object {
    with_info(typed("complete"), cx.context)
}

pub(super) fn discover(cx: &Cx<'_>) -> Object {
    let mut capabilities = catalog::capabilities();
    capabilities["extensions"] = json!({TASKS: {}});
    if cx.meta.partials {
        capabilities["extensions"][PARTIALS] = json!({});
    }
    if cx.meta.idempotency {
        capabilities["extensions"][IDEMPOTENCY] = json!({});
    }
    if cx.meta.list {
        capabilities["extensions"][LIST] = json!({});
    }
    let mut object = result(cx).put("supportedVersions", &VERSIONS).put("capabilities", &capabilities);
    if let Some(instructions) = &cx.context.config.instructions {
        object = object.put("instructions", instructions);
    }
    cached(cx, object)
}

fn page<T>(cx: &Cx<'_>, key: &str, all: &[T], wire: impl Fn(&T) -> String) -> Result<Object, Fault> {
    let page = catalog::page(cx.raw_params, all, cx.context.config.page_len, wire)?;
    let mut object = result(cx).raw(key, &page.list);
    if let Some(next) = page.next {
        object = object.put("nextCursor", &next);
    }
    Ok(cached(cx, object))
}

pub(super) fn tools(cx: &Cx<'_>) -> Result<Object, Fault> {
    let has_tasks = cx.meta.tasks;
    page(cx, "tools", &catalog::tools(cx.context, has_tasks), |tool| {
        let wire = &tool.0.wire;
        let hinted = (cx.meta.partials && tool.0.policy.shows_output()).then(|| hinted(wire));
        catalog::listed_tool(cx.context, tool, hinted.as_ref().unwrap_or(wire), has_tasks)
    })
}

/// The definition of a tool, with the hint that it streams its output.
fn hinted(definition: &Payload) -> Payload {
    let mut wire: Value = definition.read().unwrap_or_default();
    wire["_meta"][PARTIALS] = json!({"streamPartial": true});
    wire.into()
}

/// Any other list.
pub(super) fn list(cx: &Cx<'_>, method: &str) -> Option<Result<Object, Fault>> {
    let (key, entries) = catalog::list(cx.context, method)?;
    Some(page(cx, key, &entries, text))
}

pub(super) async fn prompt(cx: &Cx<'_>) -> Result<Object, Fault> {
    let name = member(cx.params.name, "name")?;
    let value = catalog::arguments(cx.params.arguments)?;
    let (prompt, arguments) = catalog::prompt(&cx.context.provider, &name, &value)?;
    let binding = binding(cx, "prompts/get", &name, &value);
    let (resumed, _) = read_request_state(cx, &binding)?;
    let call = PromptCall { arguments, resumed, accepts: cx.meta.accepts };
    finish(cx, &binding, (prompt.get)(call).await, false)
}

pub(super) async fn read(cx: &Cx<'_>) -> Result<Object, Fault> {
    let uri = member(cx.params.uri, "uri")?;
    let not_found = || Fault::params(format!("there is no resource `{uri}`")).with_data(json!({"uri": uri}));
    let Some(handler) = catalog::resource(&cx.context.provider, &uri) else {
        let contents = catalog::task_output(cx.context, cx.caller, &uri).await.ok_or_else(not_found)??;
        // The output may grow at any time.
        return Ok(result(cx).splice(&text(&contents)).put("ttlMs", &0).put("cacheScope", "private"));
    };
    let binding = binding(cx, "resources/read", &uri, &Value::Null);
    let (resumed, _) = read_request_state(cx, &binding)?;
    let call = ResourceCall { uri: uri.to_string(), resumed, accepts: cx.meta.accepts };
    finish(cx, &binding, handler(call).await, true)
}

fn binding<'a>(cx: &'a Cx<'_>, method: &'a str, name: &'a str, arguments: &'a Value) -> Binding<'a> {
    Binding { secret: cx.context.engine.secret(), caller: cx.caller, method, name, arguments }
}

fn finish(cx: &Cx<'_>, binding: &Binding<'_>, outcome: Result<Value, ToolError>, cache: bool) -> Result<Object, Fault> {
    use crate::tool::ToolErrorKind;
    match outcome.map_err(ToolError::into_kind) {
        Ok(value) if !value.is_object() => Err(Fault::internal("the handler gave a result that is not an object")),
        Ok(value) => {
            let object = complete_result(&Payload::from(value), cx.context);
            // A result that depends on answers is for this call alone.
            let again = cx.params.input_responses.is_some() || cx.params.request_state.is_some();
            Ok(match (cache, again) {
                (true, true) => object.put("ttlMs", &0).put("cacheScope", "private"),
                (true, false) => cached(cx, object),
                (false, _) => object,
            })
        }
        Err(ToolErrorKind::InputRequired(round)) => ask_to_call_again(cx, binding, &round.questions, round.state),
        Err(ToolErrorKind::Text(text)) => Err(Fault::internal(text)),
        Err(ToolErrorKind::Protocol(error)) => Err(error.into()),
        Err(ToolErrorKind::Stopped) => Err(Fault::internal("the request was stopped")),
    }
}

pub(super) async fn complete(cx: &Cx<'_>) -> Result<Object, Fault> {
    Ok(result(cx).put("completion", &catalog::complete(&cx.context.provider, cx.raw_params).await?))
}
