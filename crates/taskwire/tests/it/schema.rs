//! Checks each message of a modern (2026-07-28) server against the published JSON Schemas.
//!
//! The published files are verbatim copies; what they leave open and the prose fixes is in
//! `rules.json`. A method unknown here panics, so that nothing goes unchecked by accident.

use std::{collections::BTreeMap, sync::OnceLock};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jsonschema::error::{ValidationError, ValidationErrorKind};
use jsonschema::{Draft, Registry, Validator};
use serde_json::{Value, json};

const RULES: &str = include_str!("../schema/rules.json");
const EXT: &str = include_str!("../schema/ext-tasks.schema.json");
const CORE: &str = include_str!("../schema/mcp-2026-07-28.schema.json");

#[track_caller]
pub(crate) fn check_result(method: &str, result: &Value) {
    assert_clean(&in_result(method, result), result);
}

#[track_caller]
pub(crate) fn check_notification(message: &Value) {
    assert_clean(&in_notification(message), message);
}

#[track_caller]
pub(crate) fn check_error(message: &Value) {
    assert_clean(&in_error(message), message);
}

/// The answer to a request for `method`: its envelope, and its result or error.
#[track_caller]
pub(crate) fn check_response(method: &str, message: &Value) {
    assert_clean(&in_response(method, message), message);
}

#[track_caller]
pub(crate) fn assert_clean(found: &[String], message: &Value) {
    let list = found.join("\n  ");
    assert!(found.is_empty(), "schema violations:\n  {list}\nin {message:#}");
}

fn in_response(method: &str, message: &Value) -> Vec<String> {
    let id = message.get("id");
    let subscription = "/result/_meta/io.modelcontextprotocol~1subscriptionId";
    match (message.get("result"), message.get("error")) {
        (Some(result), None) => {
            let mut found = violations("JSONRPCResultResponse", message);
            found.extend(in_result(method, result));
            if method == "subscriptions/listen" && message.pointer(subscription) != id {
                found.push("the subscription id is not the id of the listen request".to_owned());
            }
            found
        }
        (None, Some(_)) if id.is_none() => vec!["the request's `id` is not echoed".to_owned()],
        (None, Some(_)) => in_error(message),
        _ => vec!["there must be either `result` or `error`".to_owned()],
    }
}

/// Goes by `resultType`: the schema's own `anyOf` lets any result pass as `InputRequiredResult`.
fn in_result(method: &str, result: &Value) -> Vec<String> {
    let complete = match method {
        "server/discover" => "DiscoverResult",
        "tools/list" => "ListToolsResult",
        "tools/call" => "CallToolResult",
        "prompts/list" => "ListPromptsResult",
        "prompts/get" => "GetPromptResult",
        "resources/list" => "ListResourcesResult",
        "resources/templates/list" => "ListResourceTemplatesResult",
        "resources/read" => "ReadResourceResult",
        "completion/complete" => "CompleteResult",
        "subscriptions/listen" => "SubscriptionsListenResult",
        "tasks/get" => "GetTaskResult",
        "tasks/update" => "UpdateTaskResult",
        "tasks/cancel" => "CancelTaskResult",
        "dev.taskwire/partials/read" => "ReadPartialsResult",
        "dev.taskwire/tasks/list" => "ListTasksResult",
        _ => panic!("no schema is known for the result of `{method}`"),
    };
    match (method, result.get("resultType").and_then(Value::as_str)) {
        // Where the type is missing, the definition says so among its other findings.
        (_, Some("complete") | None) => violations(complete, result),
        ("tools/call", Some("task")) => violations("CreateTaskResult", result),
        ("tools/call" | "prompts/get" | "resources/read", Some("input_required")) => violations("InputRequiredResult", result),
        (_, Some(other)) => vec![format!("`{method}` may not answer `{other}`")],
    }
}

fn in_notification(message: &Value) -> Vec<String> {
    let method = message["method"].as_str();
    let def = match method.expect("a notification has a method") {
        "notifications/progress" => "ProgressNotification",
        "notifications/message" => "LoggingMessageNotification",
        "notifications/cancelled" => "CancelledNotification",
        "notifications/tools/list_changed" => "ToolListChangedNotification",
        "notifications/prompts/list_changed" => "PromptListChangedNotification",
        "notifications/resources/list_changed" => "ResourceListChangedNotification",
        "notifications/resources/updated" => "ResourceUpdatedNotification",
        "notifications/subscriptions/acknowledged" => "SubscriptionsAcknowledgedNotification",
        "notifications/tasks" => "TaskStatusNotification",
        "notifications/tasks/partial" => "TaskPartialNotification",
        method => panic!("no schema is known for `{method}`"),
    };
    let mut found = violations(def, message);
    if message.get("id").is_some() {
        found.push("a notification has no `id`".to_owned());
    }
    found
}

fn in_error(message: &Value) -> Vec<String> {
    match message.pointer("/error/code").and_then(Value::as_i64) {
        Some(-32020) => violations("HeaderMismatchError", message),
        Some(-32021) => violations("MissingRequiredClientCapabilityError", message),
        Some(-32022) => violations("UnsupportedProtocolVersionError", message),
        Some(-32700 | -32603..=-32600) => violations("JSONRPCErrorResponse", message),
        Some(code @ -32768..=-32000) => vec![format!("error code {code} is reserved")],
        _ => violations("JSONRPCErrorResponse", message),
    }
}

fn violations(def: &str, instance: &Value) -> Vec<String> {
    violations_of(validators(), def, instance)
}

/// Where `instance` breaks the definition, one line each.
pub(crate) fn violations_of(validators: &BTreeMap<String, Validator>, def: &str, instance: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    for error in validators[def].iter_errors(instance) {
        describe(def, &error, &mut lines);
    }
    lines
}

/// Of a failed `anyOf`, reports only the branch that was meant: the one whose `const`s fit.
fn describe(def: &str, error: &ValidationError<'_>, lines: &mut Vec<String>) {
    fn is_const(error: &ValidationError<'_>) -> bool {
        matches!(error.kind(), ValidationErrorKind::Constant { .. })
    }
    if let ValidationErrorKind::AnyOf { context } = error.kind()
        && let Some(meant) = context.iter().min_by_key(|b| (b.iter().any(is_const), b.len()))
        && !meant.is_empty()
    {
        for cause in meant {
            describe(def, cause, lines);
        }
    } else {
        lines.push(format!("{def} at `{}`: {error}", error.instance_path()));
    }
}

fn validators() -> &'static BTreeMap<String, Validator> {
    static VALIDATORS: OnceLock<BTreeMap<String, Validator>> = OnceLock::new();
    VALIDATORS.get_or_init(|| {
        compile(&[
            ("https://taskwire.dev/schema/rules.json", RULES),
            ("https://modelcontextprotocol.io/ext-tasks/schema.json", EXT),
            // The core file has no `$id`; the name is ours.
            ("https://modelcontextprotocol.io/2026-07-28/schema.json", CORE),
        ])
    })
}

/// One validator per definition, from the first file that has it: our rules narrow the published
/// definition of the same name, and what both published files define, they define alike.
pub(crate) fn compile(files: &[(&'static str, &'static str)]) -> BTreeMap<String, Validator> {
    let parsed = files.iter().map(|(uri, text)| {
        let file: Value = serde_json::from_str(text).expect("a schema file is JSON");
        (*uri, file)
    });
    let files: Vec<(&'static str, Value)> = parsed.collect();
    let registry = Registry::new()
        .extend(files.iter().map(|(uri, file)| (*uri, file)))
        .and_then(|builder| builder.prepare())
        .expect("the schema files form a registry");
    let mut validators = BTreeMap::new();
    for (uri, file) in &files {
        let defs = file["$defs"].as_object();
        for def in defs.expect("a schema file has definitions").keys() {
            validators.entry(def.clone()).or_insert_with(|| {
                jsonschema::options()
                    .with_draft(Draft::Draft202012)
                    .with_registry(&registry)
                    .should_validate_formats(true)
                    .with_format("byte", |text: &str| BASE64_STANDARD.decode(text).is_ok())
                    .build(&json!({"$ref": format!("{uri}#/$defs/{def}")}))
                    .unwrap_or_else(|error| panic!("`{def}` does not compile: {error}"))
            });
        }
    }
    validators
}

/// A `tasks/get` result with `more` laid over it; a null removes the member.
fn task(more: Value) -> Value {
    let mut task = json!({"resultType": "complete", "taskId": "t1", "status": "working",
        "createdAt": "2026-07-28T12:00:00Z", "lastUpdatedAt": "2026-07-28T12:00:00Z", "ttlMs": 1});
    let members = task.as_object_mut().expect("a task is an object");
    for (key, value) in more.as_object().expect("members come as an object") {
        members.insert(key.clone(), value.clone());
    }
    members.retain(|_, value| !value.is_null());
    task
}

/// A partial with `more` laid over its parameters.
fn partial(more: Value) -> Value {
    let meta = json!({"io.modelcontextprotocol/subscriptionId": 7});
    let mut params = json!({"_meta": meta, "taskId": "t1", "seq": 0, "content": [{"type": "text", "text": "a"}]});
    for (key, value) in more.as_object().expect("members come as an object") {
        params[key] = value.clone();
    }
    json!({"jsonrpc": "2.0", "method": "notifications/tasks/partial", "params": params})
}

/// What `dev.taskwire/partials/read` answers, with `more` laid over it.
fn read_partials(more: Value) -> Value {
    let meta = json!({"io.modelcontextprotocol/serverInfo": {"name": "taskwire", "version": "1"}});
    let mut result = json!({"resultType": "complete", "_meta": meta, "fromSeq": 0, "nextSeq": 1, "done": false,
        "chunks": [{"seq": 0, "content": [{"type": "text", "text": "a"}]}]});
    for (key, value) in more.as_object().expect("members come as an object") {
        result[key] = value.clone();
    }
    result
}

/// An acknowledgement of these partials.
fn acknowledged(partials: Value) -> Value {
    let params = json!({"_meta": {"io.modelcontextprotocol/subscriptionId": 7}, "notifications": {"dev.taskwire/partials": partials}});
    json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params})
}

#[test]
fn good_messages_pass() {
    let hello = json!({"resultType": "complete", "content": [{"type": "text", "text": "hello"}]});
    let done = task(json!({"status": "completed", "result": hello}));
    check_result("tools/call", &hello);
    check_result("tools/call", &task(json!({"resultType": "task"})));
    check_result("tasks/get", &done);
    let ack = json!({"jsonrpc": "2.0", "id": 1, "result": {"resultType": "complete"}});
    check_response("tasks/cancel", &ack);
    let meta = json!({"io.modelcontextprotocol/subscriptionId": 7});
    check_notification(&json!({"jsonrpc": "2.0", "method": "notifications/tasks",
        "params": task(json!({"resultType": null, "_meta": meta}))}));
    check_error(&json!({"jsonrpc": "2.0", "error": {"code": -32700, "message": "not JSON"}}));
    check_notification(&partial(json!({})));
    check_notification(&partial(json!({"seq": 1, "content": [{"type": "text", "text": ""},
        {"type": "resource_link", "uri": "test://a", "name": "a"}]})));
    check_result("dev.taskwire/partials/read", &read_partials(json!({})));
    check_result("dev.taskwire/partials/read", &read_partials(json!({"chunks": [], "done": true})));
    check_notification(&acknowledged(json!([])));
    check_notification(&acknowledged(json!([{"taskId": "t1", "fromSeq": 3, "nextSeq": 5}])));
    check_result("tasks/get", &task(json!({"_meta": {"dev.taskwire/version": 3}})));
}

#[test]
fn bad_messages_are_named() {
    let results = json!([
        ["tools/call", task(json!({"resultType": "task", "ttlMs": null})), "\"ttlMs\" is"],
        ["tools/call", {"content": []}, "\"resultType\" is a required"],
        ["tools/call", {"resultType": "input_required"}, "\"inputRequests\" is a required"],
        ["tools/call", {"resultType": "input_required", "requestState": "s", "ttlMs": 0}, "ttlMs"],
        ["tools/call", {"resultType": "complete", "content": [
            {"type": "image", "data": "%", "mimeType": "image/png"}]}, "/content/0/data"],
        ["tasks/get", task(json!({"status": "completed"})), "\"result\" is a required"],
        ["tasks/get", task(json!({"resultType": "task"})), "may not answer"],
        ["tools/list", task(json!({"resultType": "task"})), "may not answer"],
        ["tasks/get", task(json!({"result": {"resultType": "complete", "content": []}})), "completed"],
        ["tasks/get", task(json!({"error": {"code": 1, "message": "no"}})), "failed"],
        ["tasks/get", task(json!({"createdAt": "today"})), "date-time"],
        ["tasks/cancel", {"resultType": "complete", "status": "working"}, "\"status\""],
        ["tasks/get", task(json!({"_meta": {"dev.taskwire/version": "3"}})), "/_meta/dev.taskwire~1version"],
        ["tasks/get", task(json!({"_meta": {"dev.taskwire/other": 3}})), "dev.taskwire/other"],
        ["dev.taskwire/partials/read", read_partials(json!({"chunks": [{"seq": 0, "content": []}]})), "/chunks/0/content"],
        ["dev.taskwire/partials/read", read_partials(json!({"chunks": [{"content": [{"type": "text", "text": "a"}]}]})), "\"seq\" is"],
        ["dev.taskwire/partials/read", read_partials(json!({"nextSeq": -1})), "/nextSeq"],
        ["dev.taskwire/partials/read", read_partials(json!({"done": null})), "/done"],
        ["dev.taskwire/partials/read", read_partials(json!({"more": true})), "'more'"],
        ["dev.taskwire/partials/read", read_partials(json!({"_meta": {}})), "serverInfo"],
    ]);
    for case in results.as_array().expect("the cases are an array") {
        let method = case[0].as_str().expect("a case starts with its method");
        let part = case[2].as_str().expect("a case ends with its finding");
        let found = in_result(method, &case[1]);
        assert!(found.iter().any(|line| line.contains(part)), "{case:#}\n{found:#?}");
    }
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    assert!(!in_notification(&changed).is_empty(), "a subscription id is required");
    let bad = [
        (partial(json!({"content": []})), "at least one block"),
        (partial(json!({"content": [{"type": "text"}]})), "blocks of the published kinds"),
        (partial(json!({"seq": -1})), "numbers from 0"),
        (partial(json!({"seq": 0.5})), "whole numbers"),
        (partial(json!({"done": true})), "nothing else"),
        (partial(json!({"_meta": {}})), "a subscription id"),
        (partial(json!({"taskId": 5})), "a task"),
        (acknowledged(json!([{"taskId": "t1", "fromSeq": 0}])), "where the next chunk will be"),
        (acknowledged(json!([{"taskId": "t1", "fromSeq": null, "nextSeq": 0}])), "where the stream begins"),
        (acknowledged(json!([{"taskId": "t1", "fromSeq": 0, "nextSeq": 0, "seq": 0}])), "nothing else"),
        (acknowledged(json!({"taskId": "t1", "fromSeq": 0, "nextSeq": 0})), "a list"),
    ];
    for (message, needs) in &bad {
        assert!(!in_notification(message).is_empty(), "{needs}: {message}");
    }
    let old = json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32022, "message": "old"}});
    assert!(!in_error(&old).is_empty(), "the supported versions are required");
    let error = |code: i64| json!({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "no"}});
    for code in [-32768, -32099, -32050, -32003, -32002, -32000] {
        assert!(!in_error(&error(code)).is_empty(), "{code} is reserved, and not defined here");
    }
    for code in [-32603, -31002, -31001, 0, 1001] {
        assert!(in_error(&error(code)).is_empty(), "{code} is defined, or nobody's");
    }
    let neither = json!({"jsonrpc": "2.0", "id": 1});
    assert!(!in_response("tools/call", &neither).is_empty(), "a result or an error");
}

#[test]
#[should_panic(expected = "no schema is known")]
fn an_unknown_method_panics() {
    check_result("tasks/list", &json!({"resultType": "complete"}));
}
