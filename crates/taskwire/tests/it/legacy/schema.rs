//! Checks each message of a session of 2025-11-25 against the published JSON Schema.
//!
//! The published file is a verbatim copy; what it leaves open and the prose fixes, and what the drafts SEP-2679 and SEP-1905
//! add, is in `legacy-rules.json`. A method unknown here panics, so that nothing goes unchecked by accident.

use std::{collections::BTreeMap, sync::OnceLock};

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::schema::{assert_clean, compile, violations_of};

const RULES: &str = include_str!("../../schema/legacy-rules.json");
const CORE: &str = include_str!("../../schema/mcp-2025-11-25.schema.json");

/// The answer to a request for `method`: its envelope, and its result or error.
#[track_caller]
pub(crate) fn check_response(method: &str, message: &Value) {
    assert_clean(&in_response(method, message), message);
}

#[track_caller]
pub(crate) fn check_notification(message: &Value) {
    assert_clean(&in_notification(message), message);
}

/// A question of the server.
#[track_caller]
pub(crate) fn check_request(message: &Value) {
    assert_clean(&in_request(message), message);
}

#[track_caller]
pub(crate) fn check_error(message: &Value) {
    assert_clean(&in_error(message), message);
}

/// Only that it is a message of JSON-RPC: for versions whose schema is not here.
#[track_caller]
pub(crate) fn check_envelope(message: &Value) {
    assert_clean(&in_envelope(message), message);
}

fn in_envelope(message: &Value) -> Vec<String> {
    match (message.get("method"), message.get("id"), message.get("result")) {
        (Some(_), Some(_), None) => violations("JSONRPCRequest", message),
        (Some(_), None, None) => violations("JSONRPCNotification", message),
        (None, Some(_), Some(_)) if message.get("error").is_none() => violations("JSONRPCResultResponse", message),
        (None, _, None) => in_error(message),
        _ => vec!["neither a request nor a notification nor a response".to_owned()],
    }
}

fn in_response(method: &str, message: &Value) -> Vec<String> {
    match (message.get("result"), message.get("error")) {
        (Some(result), None) => {
            let mut found = violations("JSONRPCResultResponse", message);
            found.extend(in_result(method, result));
            found
        }
        (None, Some(_)) if message.get("id").is_none() => vec!["the request's `id` is not echoed".to_owned()],
        (None, Some(_)) => in_error(message),
        _ => vec!["there must be either `result` or `error`".to_owned()],
    }
}

fn in_result(method: &str, result: &Value) -> Vec<String> {
    let has = |member: &str| result.get(member).is_some();
    let def = match method {
        "initialize" => "InitializeResult",
        "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => "EmptyResult",
        "tools/list" => "ListToolsResult",
        "prompts/list" => "ListPromptsResult",
        "prompts/get" => "GetPromptResult",
        "resources/list" => "ListResourcesResult",
        "resources/templates/list" => "ListResourceTemplatesResult",
        "resources/read" => "ReadResourceResult",
        "completion/complete" => "CompleteResult",
        "tasks/get" => "GetTaskResult",
        "tasks/list" => "ListTasksResult",
        "tasks/cancel" => "CancelTaskResult",
        "tools/call" | "tasks/result" if has("partial-content") => "PartialContentResult",
        "tools/call" | "tasks/result" if has("isComplete") => "FailedContentResult",
        "tools/call" if has("task") => "CreateTaskResult",
        "tools/call" => "CallToolResult",
        "tasks/result" => "GetTaskPayloadResult",
        _ => panic!("no schema is known for the result of `{method}`"),
    };
    violations(def, result)
}

fn in_notification(message: &Value) -> Vec<String> {
    let def = match message["method"].as_str().expect("a notification has a method") {
        "notifications/progress" => "ProgressNotification",
        "notifications/message" => "LoggingMessageNotification",
        "notifications/cancelled" => "CancelledNotification",
        "notifications/tools/list_changed" => "ToolListChangedNotification",
        "notifications/prompts/list_changed" => "PromptListChangedNotification",
        "notifications/resources/list_changed" => "ResourceListChangedNotification",
        "notifications/resources/updated" => "ResourceUpdatedNotification",
        "notifications/elicitation/complete" => "ElicitationCompleteNotification",
        "notifications/tasks/status" => "TaskStatusNotification",
        "notifications/tasks/partial" => "TaskPartialNotification",
        method => panic!("no schema is known for `{method}`"),
    };
    let mut found = violations(def, message);
    if message.get("id").is_some() {
        found.push("a notification has no `id`".to_owned());
    }
    found.extend(in_partial(message));
    found
}

/// A partial is related to the task that it names.
fn in_partial(message: &Value) -> Option<String> {
    let is_partial = message["method"] == "notifications/tasks/partial";
    let related = message.pointer("/params/_meta/io.modelcontextprotocol~1related-task/taskId");
    (is_partial && related != message.pointer("/params/taskId")).then(|| "it is related to another task".to_owned())
}

fn in_request(message: &Value) -> Vec<String> {
    let def = match message["method"].as_str().expect("a request has a method") {
        "elicitation/create" => "ElicitRequest",
        "sampling/createMessage" => "CreateMessageRequest",
        "roots/list" => "ListRootsRequest",
        "ping" => "PingRequest",
        method => panic!("no schema is known for `{method}`"),
    };
    violations(def, message)
}

fn in_error(message: &Value) -> Vec<String> {
    match message.pointer("/error/code").and_then(Value::as_i64) {
        Some(-32042) => violations("URLElicitationRequiredError", message),
        Some(-32700 | -32603..=-32600 | -32002) => violations("JSONRPCErrorResponse", message),
        Some(code @ -32768..=-32000) => vec![format!("error code {code} is not one of this era")],
        _ => violations("JSONRPCErrorResponse", message),
    }
}

fn violations(def: &str, instance: &Value) -> Vec<String> {
    static VALIDATORS: OnceLock<BTreeMap<String, Validator>> = OnceLock::new();
    let validators = VALIDATORS.get_or_init(|| {
        compile(&[
            ("https://taskwire.dev/schema/legacy-rules.json", RULES),
            // The published file has no `$id`; the name is ours.
            ("https://modelcontextprotocol.io/2025-11-25/schema.json", CORE),
        ])
    });
    violations_of(validators, def, instance)
}

/// An object with `more` laid over it; a null removes the member.
fn with(mut object: Value, more: Value) -> Value {
    let members = object.as_object_mut().expect("an object");
    for (key, value) in more.as_object().expect("members come as an object") {
        members.insert(key.clone(), value.clone());
    }
    members.retain(|_, value| !value.is_null());
    object
}

fn task(more: Value) -> Value {
    let task = json!({"taskId": "t1", "status": "working", "createdAt": "2025-11-25T12:00:00Z",
        "lastUpdatedAt": "2025-11-25T12:00:00Z", "ttl": 60_000, "pollInterval": 1_000});
    with(task, more)
}

fn related() -> Value {
    json!({"io.modelcontextprotocol/related-task": {"taskId": "t1"}})
}

fn partial(more: Value) -> Value {
    let params = json!({"_meta": related(), "taskId": "t1", "seq": 0, "content": [{"type": "text", "text": "a"}]});
    json!({"jsonrpc": "2.0", "method": "notifications/tasks/partial", "params": with(params, more)})
}

/// A streamed response.
fn streamed(more: Value) -> Value {
    let result = json!({"partial-content": [{"type": "text", "text": "a", "seqNr": 1}], "isError": false, "isComplete": false,
        "_meta": related()});
    with(result, more)
}

fn question(more: Value) -> Value {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    let params = json!({"mode": "form", "message": "Name?", "requestedSchema": schema});
    with(json!({"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": params}), more)
}

fn handshake(tasks: Value) -> Value {
    let capabilities = json!({"tools": {"listChanged": true}, "logging": {}, "tasks": tasks});
    json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": {"name": "a", "version": "1"}})
}

fn tools(execution: Value) -> Value {
    json!({"tools": [{"name": "a", "inputSchema": {"type": "object"}, "execution": execution}]})
}

#[test]
fn good_messages_of_this_era_pass() {
    let hello = json!({"content": [{"type": "text", "text": "hello"}], "isError": false});
    let core = json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
    let drafts = json!({"streaming": {"partial": {}}, "responses": {"modes": ["task", "immediate", "streaming"]}});
    let failed = json!({"content": [{"type": "text", "text": "no"}], "isError": true, "isComplete": true, "_meta": related()});
    let fallback = json!({"io.modelcontextprotocol/fallback-mode": "task"});
    for (method, result) in [
        ("initialize", handshake(core.clone())),
        ("initialize", handshake(with(core, drafts))),
        ("ping", json!({})),
        ("tools/list", tools(json!({"taskSupport": "forbidden"}))),
        ("tools/list", tools(json!({"taskSupport": "optional", "streamPartial": true}))),
        ("tools/call", hello.clone()),
        ("tools/call", json!({"task": task(json!({}))})),
        ("tools/call", json!({"task": task(json!({"ttl": 1, "pollInterval": null})), "_meta": fallback})),
        ("tools/call", streamed(json!({}))),
        ("tools/call", streamed(json!({"task": task(json!({})), "partial-content": []}))),
        ("tools/call", streamed(json!({"isComplete": true, "structuredContent": {}}))),
        ("tools/call", failed),
        ("tasks/result", with(hello, json!({"_meta": related()}))),
        ("tasks/result", streamed(json!({"isComplete": true, "isError": true}))),
        ("tasks/get", task(json!({"status": "input_required", "statusMessage": "a name"}))),
        ("tasks/cancel", task(json!({"status": "cancelled"}))),
        ("tasks/list", json!({"tasks": [task(json!({}))], "nextCursor": "c"})),
    ] {
        check_response(method, &json!({"jsonrpc": "2.0", "id": 1, "result": result}));
    }
    check_notification(&partial(json!({})));
    check_notification(&json!({"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": task(json!({}))}));
    check_request(&question(json!({})));
    check_error(&json!({"jsonrpc": "2.0", "error": {"code": -32600, "message": "no session"}}));
    check_error(&json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -31001, "message": "too many"}}));
    check_envelope(&json!({"jsonrpc": "2.0", "method": "notifications/whatever"}));
    check_envelope(&json!({"jsonrpc": "2.0", "id": 1, "result": {"anything": true}}));
}

#[test]
fn bad_messages_of_this_era_are_named() {
    let results = [
        ("initialize", handshake(json!({"cancel": {}, "requests": {"tools": {"call": {}}}, "more": {}})), "more"),
        ("initialize", handshake(json!({"cancel": {}, "requests": {}})), "/capabilities/tasks/requests"),
        ("ping", json!({"a": 1}), "EmptyResult"),
        ("tools/list", tools(json!({})), "taskSupport"),
        ("tools/list", tools(json!({"taskSupport": "optional", "streamPartial": false})), "streamPartial"),
        ("tools/call", json!({"content": [], "resultType": "complete"}), "resultType"),
        ("tools/call", json!({"content": [{"type": "text", "text": "a", "seqNr": 1}]}), "/content/0"),
        ("tools/call", json!({"task": task(json!({"ttl": 0}))}), "/task/ttl"),
        ("tools/call", json!({"task": task(json!({"ttlMs": 1}))}), "ttlMs"),
        ("tools/call", json!({"task": task(json!({"createdAt": "today"}))}), "date-time"),
        ("tools/call", json!({"task": task(json!({})), "content": []}), "content"),
        ("tools/call", streamed(json!({"_meta": null})), "_meta"),
        ("tools/call", streamed(json!({"isComplete": null})), "isComplete"),
        ("tools/call", streamed(json!({"isError": true})), "/isError"),
        ("tools/call", streamed(json!({"content": []})), "content"),
        ("tools/call", streamed(json!({"partial-content": [{"type": "text", "text": "a"}]})), "seqNr"),
        ("tools/call", streamed(json!({"partial-content": [{"type": "text", "text": "a", "seqNr": 0}]})), "seqNr"),
        ("tasks/result", json!({"content": []}), "_meta"),
        ("tasks/get", task(json!({"_meta": related()})), "_meta"),
        ("tasks/get", task(json!({"result": {}})), "result"),
        ("tasks/cancel", task(json!({})), "/status"),
        ("tasks/list", json!({"tasks": [task(json!({"taskId": null}))]}), "taskId"),
    ];
    for (method, result, part) in results {
        let found = in_result(method, &result);
        assert!(found.iter().any(|line| line.contains(part)), "{part} in {method}: {result:#}\n{found:#?}");
    }
    let notifications = [
        (partial(json!({"content": []})), "at least one block"),
        (partial(json!({"seq": -1})), "numbers from 0"),
        (partial(json!({"_meta": null})), "the task it is related to"),
        (partial(json!({"taskId": "t2"})), "one task"),
        (partial(json!({"done": true})), "nothing else"),
        (json!({"jsonrpc": "2.0", "method": "notifications/tasks/status", "params": task(json!({"_meta": related()}))}), "no relation"),
    ];
    for (message, needs) in &notifications {
        assert!(!in_notification(message).is_empty(), "{needs}: {message}");
    }
    assert!(!in_request(&question(json!({"id": 1}))).is_empty(), "ids of ours are text");
    assert!(!in_request(&question(json!({"params": {"mode": "form", "message": "Name?"}}))).is_empty(), "a schema");
    for code in [-32020, -32021, -32022, -32003] {
        assert!(!in_error(&json!({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "no"}})).is_empty(), "{code}");
    }
    for envelope in [json!({"jsonrpc": "2.0", "id": 1}), json!({"id": 1, "result": {}}), json!({"jsonrpc": "2.0", "result": {}}), json!([])]
    {
        assert!(!in_envelope(&envelope).is_empty(), "{envelope}");
    }
}

#[test]
#[should_panic(expected = "no schema is known")]
fn a_method_that_this_era_does_not_know_panics() {
    check_response("server/discover", &json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
}
