//! What the server has: discovery, lists, prompts, resources, completions.

use std::{borrow::Cow, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use taskwire_core::{Payload, wire::parse_strict};

use super::{
    Cx, PARTIALS, TASKS, VERSIONS,
    call::{ask_again, carried},
    json::{Object, complete as complete_result, text, with_info},
    meta::{Members, text as member},
    sealed::Binding,
};
use crate::{
    dialect::Fault,
    tool::{CompletionRequest, PromptCall, Resource, ResourceCall, ToolError},
};

/// Values that one completion may have, by the protocol.
const COMPLETIONS_MAX: usize = 100;

fn cached(cx: &Cx<'_>, object: Object) -> Object {
    let ttl = u64::try_from(cx.shared.config.list_ttl.as_millis()).unwrap_or(u64::MAX);
    // What a caller may see can depend on who it is, so nobody else may be given it.
    object.put("ttlMs", &ttl).put("cacheScope", "private")
}

fn result(cx: &Cx<'_>) -> Object {
    with_info(Object::result("complete"), cx.shared)
}

pub(super) fn discover(cx: &Cx<'_>) -> Object {
    let mut capabilities = json!({
        "tools": {"listChanged": true},
        "prompts": {"listChanged": true},
        "resources": {"listChanged": true, "subscribe": true},
        "completions": {},
        "logging": {},
        "extensions": {TASKS: {}},
    });
    if cx.meta.partials {
        capabilities["extensions"][PARTIALS] = json!({});
    }
    let mut object = result(cx).put("supportedVersions", &VERSIONS).put("capabilities", &capabilities);
    if let Some(instructions) = &cx.shared.config.instructions {
        object = object.put("instructions", instructions);
    }
    cached(cx, object)
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow, default)]
    cursor: Option<Cow<'a, str>>,
}

/// One page of `all`. A cursor is the number of entries before it.
fn page<T>(cx: &Cx<'_>, key: &str, all: &[T], wire: impl Fn(&T) -> String) -> Result<Object, Fault> {
    let from = match cx.read::<Page<'_>>()?.cursor {
        None => 0,
        Some(cursor) => decode(&cursor).filter(|from| *from <= all.len()).ok_or_else(|| Fault::params("the cursor is not one of ours"))?,
    };
    let to = all.len().min(from + cx.shared.config.page_len.max(1));
    let entries: Vec<String> = all[from..to].iter().map(wire).collect();
    let mut object = result(cx).raw(key, &format!("[{}]", entries.join(",")));
    if to < all.len() {
        object = object.put("nextCursor", &URL_SAFE_NO_PAD.encode(format!("from:{to}")));
    }
    Ok(cached(cx, object))
}

fn decode(cursor: &str) -> Option<usize> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    text.strip_prefix("from:")?.parse().ok()
}

pub(super) fn tools(cx: &Cx<'_>) -> Result<Object, Fault> {
    page(cx, "tools", &cx.shared.provider.tools(), |tool| {
        let hinted = tool.0.hinted.as_ref().filter(|_| cx.meta.partials);
        hinted.unwrap_or(&tool.0.wire).as_str().to_owned()
    })
}

pub(super) fn prompts(cx: &Cx<'_>) -> Result<Object, Fault> {
    page(cx, "prompts", &cx.shared.provider.prompts(), |prompt| text(&prompt.wire))
}

pub(super) fn resources(cx: &Cx<'_>) -> Result<Object, Fault> {
    page(cx, "resources", &cx.shared.provider.resources(), |resource| text(&resource.wire))
}

pub(super) fn templates(cx: &Cx<'_>) -> Result<Object, Fault> {
    page(cx, "resourceTemplates", &cx.shared.provider.templates(), |template| text(&template.wire))
}

pub(super) async fn prompt(cx: &Cx<'_>) -> Result<Object, Fault> {
    let name = member(cx.params.name, "name")?;
    let raw = cx.params.arguments.map_or("{}", RawValue::get);
    let prompts = cx.shared.provider.prompts();
    let prompt = prompts.iter().find(|prompt| *prompt.name == *name);
    let prompt = prompt.ok_or_else(|| Fault::params(format!("there is no prompt `{name}`")))?;
    let given = parse_strict(raw).map_err(|error| Fault::params(format!("invalid `arguments`: {error}")))?;
    let arguments = given.as_object().ok_or_else(|| Fault::params("`arguments` must be an object"))?.clone();
    let wanted = prompt.wire["arguments"].as_array().into_iter().flatten().filter(|argument| argument["required"] == true);
    for name in wanted.filter_map(|argument| argument["name"].as_str()) {
        if !arguments.contains_key(name) {
            return Err(Fault::params(format!("the argument `{name}` is missing")));
        }
    }
    let binding = binding(cx, "prompts/get", &name, &given);
    let (resumed, _) = carried(cx, &binding)?;
    let call = PromptCall { arguments, resumed, accepts: cx.meta.accepts };
    finish(cx, &binding, (prompt.get)(call).await, false)
}

pub(super) async fn read(cx: &Cx<'_>) -> Result<Object, Fault> {
    let uri = member(cx.params.uri, "uri")?;
    let provider = &cx.shared.provider;
    let handler = provider
        .resources()
        .into_iter()
        .find(|resource: &Resource| *resource.uri == *uri)
        .map(|resource| resource.read)
        .or_else(|| provider.templates().into_iter().find(|template| template.matches(&uri)).map(|template| template.read));
    let not_found = || Fault::params(format!("there is no resource `{uri}`")).with_data(json!({"uri": uri}));
    let handler = handler.ok_or_else(not_found)?;
    let binding = binding(cx, "resources/read", &uri, &Value::Null);
    let (resumed, _) = carried(cx, &binding)?;
    let call = ResourceCall { uri: uri.to_string(), resumed, accepts: cx.meta.accepts };
    finish(cx, &binding, handler(call).await, true)
}

fn binding<'a>(cx: &'a Cx<'_>, method: &'a str, name: &'a str, arguments: &'a Value) -> Binding<'a> {
    Binding { secret: cx.shared.engine.secret(), caller: cx.caller, method, name, arguments }
}

fn finish(cx: &Cx<'_>, binding: &Binding<'_>, outcome: Result<Value, ToolError>, cache: bool) -> Result<Object, Fault> {
    use crate::tool::Kind;
    match outcome.map_err(ToolError::into_kind) {
        Ok(value) if !value.is_object() => Err(Fault::internal("the handler gave a result that is not an object")),
        Ok(value) => {
            let object = complete_result(&Payload::from(value), cx.shared);
            // What depends on answers is for this call alone.
            let again = cx.params.input_responses.is_some() || cx.params.request_state.is_some();
            Ok(match (cache, again) {
                (true, true) => object.put("ttlMs", &0).put("cacheScope", "private"),
                (true, false) => cached(cx, object),
                (false, _) => object,
            })
        }
        Err(Kind::Round(round)) => ask_again(cx, binding, &round.questions, round.state),
        Err(Kind::Said(text)) => Err(Fault::internal(text)),
        Err(Kind::Protocol(error)) => Err(error.into()),
        Err(Kind::Stopped) => Err(Fault::internal("the request was stopped")),
    }
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

pub(super) async fn complete(cx: &Cx<'_>) -> Result<Object, Fault> {
    let Complete { of: Members(of), argument: Members(argument) } = cx.read()?;
    let of = match (of.r#type.as_str(), of.name, of.uri) {
        ("ref/prompt", Some(name), _) => name,
        ("ref/resource", _, Some(uri)) => uri,
        (kind, _, _) => return Err(Fault::params(format!("`ref` of type `{kind}` does not name a prompt or a resource"))),
    };
    let provider: &Arc<_> = &cx.shared.provider;
    let known = provider.prompts().iter().any(|prompt| *prompt.name == *of) || provider.templates().iter().any(|t| *t.template == *of);
    if !known {
        return Err(Fault::params(format!("there is no prompt or resource template `{of}`")));
    }
    let request = CompletionRequest { of, argument: argument.name, value: argument.value };
    let values = provider.complete(request).await.unwrap_or_default().values;
    let shown = &values[..values.len().min(COMPLETIONS_MAX)];
    let completion = json!({"values": shown, "total": values.len(), "hasMore": values.len() > COMPLETIONS_MAX});
    Ok(result(cx).put("completion", &completion))
}
