//! The table: every way by which Bob names something of Ann's, in requests of both eras.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use crate::{
    kit::{KEY, READ},
    legacy::kit::RELATED,
};

/// All that has a name and belongs to one caller.
#[derive(Debug, Clone)]
pub(super) struct Names {
    pub(super) task: String,
    /// The call that became the task.
    pub(super) tool: &'static str,
    pub(super) arguments: Value,
    pub(super) session: String,
    pub(super) idempotency_key: String,
    pub(super) progress_token: String,
    /// The id of a request that is not answered yet.
    pub(super) request: u64,
    pub(super) request_state: String,
}

/// Where Bob writes this, his own session's part of an event id is sent.
pub(super) const OWN_TAG: &str = "OWN-TAG";

/// What Bob sends.
#[derive(Debug)]
pub(super) enum Ask {
    /// A request of a client that declares all there is; `plain`, of one that declares nothing.
    Modern {
        method: &'static str,
        params: Value,
        plain: bool,
    },
    /// A notification of the modern era.
    ModernNote {
        method: &'static str,
        params: Value,
    },
    /// A listen stream with this filter, as far as its acknowledgement.
    Listen(Value),
    Legacy(LegacyAsk),
}

#[derive(Debug)]
pub(super) struct LegacyAsk {
    pub(super) verb: &'static str,
    /// The session that it names, if not Bob's own.
    pub(super) session: Option<String>,
    pub(super) last_event_id: Option<String>,
    pub(super) message: Option<Value>,
    /// Whether he takes an event stream as the answer.
    pub(super) takes_events: bool,
    /// Whether his own session declares the drafts.
    pub(super) drafts: bool,
}

/// How Bob asks, given the names.
pub(super) type Way = (&'static str, fn(&Names) -> Ask);

fn modern(method: &'static str, params: Value) -> Ask {
    Ask::Modern { method, params, plain: false }
}

fn tool(name: &str, arguments: Value) -> Ask {
    Ask::Modern { method: "tools/call", params: json!({"name": name, "arguments": arguments}), plain: true }
}

fn legacy(method: &str, params: Value) -> Ask {
    message(json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}))
}

fn note(method: &str, params: Value) -> Ask {
    message(json!({"jsonrpc": "2.0", "method": method, "params": params}))
}

fn message(message: Value) -> Ask {
    Ask::Legacy(LegacyAsk { verb: "POST", session: None, last_event_id: None, message: Some(message), takes_events: false, drafts: false })
}

fn without_body(verb: &'static str, session: Option<&str>, last_event_id: Option<String>) -> Ask {
    let session = session.map(str::to_owned);
    Ask::Legacy(LegacyAsk { verb, session, last_event_id, message: None, takes_events: true, drafts: false })
}

/// Resumes a stream in Bob's own session.
fn resumes(last_event_id: String) -> Ask {
    without_body("GET", None, Some(last_event_id))
}

/// The same request of a session with something else about it.
fn but(ask: Ask, change: impl FnOnce(LegacyAsk) -> LegacyAsk) -> Ask {
    match ask {
        Ask::Legacy(ask) => Ask::Legacy(change(ask)),
        other => other,
    }
}

/// The same within the session that the names have.
fn within(names: &Names, ask: Ask) -> Ask {
    but(ask, |ask| LegacyAsk { session: Some(names.session.clone()), ..ask })
}

fn with_events(ask: Ask) -> Ask {
    but(ask, |ask| LegacyAsk { takes_events: true, ..ask })
}

fn with_drafts(ask: Ask) -> Ask {
    but(ask, |ask| LegacyAsk { drafts: true, ..ask })
}

fn answers(id: String) -> Ask {
    message(json!({"jsonrpc": "2.0", "id": id, "result": {"action": "accept", "content": {"name": "Bob"}}}))
}

/// The id of the request, as the ids of events have it.
pub(super) fn nonce(names: &Names) -> String {
    URL_SAFE_NO_PAD.encode(names.request.to_string())
}

fn page_cursor(names: &Names) -> String {
    URL_SAFE_NO_PAD.encode(format!("before:{}", names.task))
}

fn output(names: &Names) -> String {
    format!("taskwire://task/{}/output", names.task)
}

/// The first characters of a session's id, which begin the ids of its events.
fn tag(names: &Names) -> &str {
    &names.session[..8]
}

fn read_output(it: &Names, more: Value) -> Ask {
    let mut params = json!({"taskId": it.task});
    for (key, value) in more.as_object().into_iter().flatten() {
        params[key] = value.clone();
    }
    modern(READ, params)
}

/// A call with these members beside its name, by a client that knows tasks.
fn call(it: &Names, arguments: &Value, more: Value) -> Value {
    let mut params = json!({"name": it.tool, "arguments": arguments});
    for (key, value) in more.as_object().into_iter().flatten() {
        params[key] = value.clone();
    }
    params
}

pub(super) const WAYS: &[Way] = &[
    // Task methods.
    ("tasks/get", |it| modern("tasks/get", json!({"taskId": it.task}))),
    ("tasks/get in capitals", |it| modern("tasks/get", json!({"taskId": it.task.to_uppercase()}))),
    ("tasks/get with spaces around the id", |it| modern("tasks/get", json!({"taskId": format!(" {} ", it.task)}))),
    ("tasks/get with more behind the id", |it| modern("tasks/get", json!({"taskId": format!("{}0", it.task)}))),
    ("tasks/get with a part of the id", |it| modern("tasks/get", json!({"taskId": it.task[..31]}))),
    ("tasks/get of a list", |it| modern("tasks/get", json!({"taskId": [it.task]}))),
    ("tasks/get that waits", |it| modern("tasks/get", json!({"taskId": it.task, "_meta": {"dev.taskwire/waitMs": 20_000}}))),
    ("tasks/get that waits for a later version", |it| {
        let meta = json!({"dev.taskwire/waitMs": 20_000, "dev.taskwire/version": 3});
        modern("tasks/get", json!({"taskId": it.task, "_meta": meta}))
    }),
    ("tasks/get with a version that is none", |it| {
        modern("tasks/get", json!({"taskId": it.task, "_meta": {"dev.taskwire/version": "x", "dev.taskwire/waitMs": "y"}}))
    }),
    ("tasks/get with a progress token", |it| {
        modern("tasks/get", json!({"taskId": it.task, "_meta": {"progressToken": it.progress_token}}))
    }),
    ("tasks/get of a client without tasks", |it| Ask::Modern { method: "tasks/get", params: json!({"taskId": it.task}), plain: true }),
    ("tasks/update with an answer", |it| {
        let answer = json!({"name": {"action": "accept", "content": {"name": "Bob"}}});
        modern("tasks/update", json!({"taskId": it.task, "inputResponses": answer}))
    }),
    ("tasks/update with a refusal", |it| {
        modern("tasks/update", json!({"taskId": it.task, "inputResponses": {"name": {"action": "decline"}}}))
    }),
    ("tasks/update with an answer that fits nothing", |it| {
        modern("tasks/update", json!({"taskId": it.task, "inputResponses": {"name": {"action": "perhaps"}}}))
    }),
    ("tasks/update with an answer that is no object", |it| {
        modern("tasks/update", json!({"taskId": it.task, "inputResponses": {"name": 7}}))
    }),
    ("tasks/update without answers", |it| modern("tasks/update", json!({"taskId": it.task, "inputResponses": {}}))),
    ("tasks/update in capitals", |it| modern("tasks/update", json!({"taskId": it.task.to_uppercase(), "inputResponses": {}}))),
    ("tasks/cancel", |it| modern("tasks/cancel", json!({"taskId": it.task}))),
    ("tasks/cancel in capitals", |it| modern("tasks/cancel", json!({"taskId": it.task.to_uppercase()}))),
    ("tasks/cancel with spaces around the id", |it| modern("tasks/cancel", json!({"taskId": format!(" {} ", it.task)}))),
    ("tasks/result, which this era has not", |it| modern("tasks/result", json!({"taskId": it.task}))),
    ("tasks/list, which this era has not", |it| modern("tasks/list", json!({"cursor": page_cursor(it)}))),
    // Output.
    ("a read of its output", |it| read_output(it, json!({}))),
    ("a read of its output from a chunk on", |it| read_output(it, json!({"fromSeq": 1}))),
    ("a read of its output behind all chunks", |it| read_output(it, json!({"fromSeq": 1_000_000}))),
    ("a read of one chunk", |it| read_output(it, json!({"limit": 1}))),
    ("a read of no chunk", |it| read_output(it, json!({"limit": 0}))),
    ("a read that waits", |it| read_output(it, json!({"waitMs": 20_000}))),
    ("a read that waits behind all chunks", |it| read_output(it, json!({"fromSeq": 1_000_000, "limit": 3, "waitMs": 20_000}))),
    ("a read in capitals", |it| modern(READ, json!({"taskId": it.task.to_uppercase()}))),
    // Listening.
    ("listening to it", |it| Ask::Listen(json!({"taskIds": [it.task]}))),
    ("listening to it in capitals", |it| Ask::Listen(json!({"taskIds": [it.task.to_uppercase()]}))),
    ("listening to it and something else", |it| Ask::Listen(json!({"taskIds": ["x", it.task], "toolsListChanged": true}))),
    ("listening to its output", |it| Ask::Listen(json!({"dev.taskwire/partials": [{"taskId": it.task}]}))),
    ("listening to its output from the beginning", |it| Ask::Listen(json!({"dev.taskwire/partials": [{"taskId": it.task, "fromSeq": 0}]}))),
    ("listening to its output from far behind", |it| {
        Ask::Listen(json!({"dev.taskwire/partials": [{"taskId": it.task, "fromSeq": 1_000_000}], "taskIds": []}))
    }),
    ("listening to it and its output", |it| {
        Ask::Listen(json!({"taskIds": [it.task], "dev.taskwire/partials": [{"taskId": it.task, "fromSeq": 0}]}))
    }),
    ("listening to its output as a resource", |it| Ask::Listen(json!({"resourceSubscriptions": [output(it)]}))),
    // Lists.
    ("a list of tasks", |_| modern("dev.taskwire/tasks/list", json!({}))),
    ("a list of tasks from behind it", |it| modern("dev.taskwire/tasks/list", json!({"cursor": page_cursor(it)}))),
    ("a list of tasks whose cursor is its id", |it| modern("dev.taskwire/tasks/list", json!({"cursor": it.task}))),
    ("a list of tools from behind it", |it| modern("tools/list", json!({"cursor": page_cursor(it)}))),
    ("a list of resources", |_| modern("resources/list", json!({}))),
    // Resources.
    ("its output as a resource", |it| modern("resources/read", json!({"uri": output(it)}))),
    ("a part of its output as a resource", |it| modern("resources/read", json!({"uri": format!("{}?from=0&bytes=1", output(it))}))),
    ("the end of its output as a resource", |it| modern("resources/read", json!({"uri": format!("{}?from=-5", output(it))}))),
    ("a part that is none", |it| modern("resources/read", json!({"uri": format!("{}?from=x", output(it))}))),
    ("a large block of its output", |it| modern("resources/read", json!({"uri": format!("taskwire://task/{}/block/0a1f", it.task)}))),
    ("its output as a resource in capitals", |it| {
        modern("resources/read", json!({"uri": format!("taskwire://task/{}/output", it.task.to_uppercase())}))
    }),
    ("a completion of its id", |it| {
        let of = json!({"type": "ref/resource", "uri": "taskwire://task/{id}/output{?from,bytes}"});
        modern("completion/complete", json!({"ref": of, "argument": {"name": "id", "value": it.task[..8]}}))
    }),
    // Calls.
    ("a call under its key", |it| modern("tools/call", call(it, &it.arguments, json!({"_meta": {KEY: it.idempotency_key}})))),
    ("another call under its key", |it| modern("tools/call", call(it, &json!({"other": 1}), json!({"_meta": {KEY: it.idempotency_key}})))),
    ("a call under its key without tasks", |it| Ask::Modern {
        method: "tools/call",
        params: call(it, &it.arguments, json!({"_meta": {KEY: it.idempotency_key}})),
        plain: true,
    }),
    ("the same call", |it| modern("tools/call", call(it, &it.arguments, json!({})))),
    ("the same call without tasks", |it| tool(it.tool, it.arguments.clone())),
    ("the same call with its progress token", |it| Ask::Modern {
        method: "tools/call",
        params: call(it, &it.arguments, json!({"_meta": {"progressToken": it.progress_token}})),
        plain: true,
    }),
    ("the same call with its state", |it| Ask::Modern {
        method: "tools/call",
        params: call(it, &it.arguments, json!({"requestState": it.request_state})),
        plain: true,
    }),
    ("the same call with its state and an answer", |it| {
        let answer = json!({"name": {"action": "accept", "content": {"name": "Bob"}}});
        modern("tools/call", call(it, &it.arguments, json!({"requestState": it.request_state, "inputResponses": answer})))
    }),
    ("a call that says it is related", |it| {
        let meta = json!({RELATED: {"taskId": it.task}});
        Ask::Modern { method: "tools/call", params: call(it, &it.arguments, json!({"_meta": meta})), plain: true }
    }),
    ("a cancellation under its key", |it| Ask::ModernNote {
        method: "notifications/cancelled",
        params: json!({"_meta": {KEY: it.idempotency_key}}),
    }),
    ("a cancellation of its request", |it| Ask::ModernNote {
        method: "notifications/cancelled",
        params: json!({"requestId": it.request, "reason": "not needed"}),
    }),
    // Follow-up tools.
    ("task_wait", |it| tool("task_wait", json!({"task_id": it.task}))),
    ("task_wait for no time", |it| tool("task_wait", json!({"task_id": it.task, "timeout_s": 0}))),
    ("task_wait in quotes and capitals", |it| tool("task_wait", json!({"task_id": format!(" `{}`", it.task.to_uppercase())}))),
    ("task_output", |it| tool("task_output", json!({"task_id": it.task}))),
    ("task_output from a chunk on", |it| tool("task_output", json!({"task_id": it.task, "after": 1}))),
    ("task_answer", |it| tool("task_answer", json!({"task_id": it.task, "value": "Bob"}))),
    ("task_answer to a question by its key", |it| tool("task_answer", json!({"task_id": it.task, "key": "name", "value": "Bob"}))),
    ("task_answer that declines", |it| tool("task_answer", json!({"task_id": it.task, "action": "decline"}))),
    ("task_cancel", |it| tool("task_cancel", json!({"task_id": it.task}))),
    ("task_list", |_| tool("task_list", json!({}))),
    ("task_list of what runs", |_| tool("task_list", json!({"state": "running", "limit": 100}))),
    // Within a session of his own.
    ("tasks/get in a session", |it| legacy("tasks/get", json!({"taskId": it.task}))),
    ("tasks/get in a session in capitals", |it| legacy("tasks/get", json!({"taskId": it.task.to_uppercase()}))),
    ("tasks/get in a session with spaces around the id", |it| legacy("tasks/get", json!({"taskId": format!(" {} ", it.task)}))),
    ("tasks/result", |it| legacy("tasks/result", json!({"taskId": it.task}))),
    ("tasks/result as a stream", |it| with_events(legacy("tasks/result", json!({"taskId": it.task})))),
    ("tasks/result after a block", |it| with_drafts(legacy("tasks/result", json!({"taskId": it.task, "lastSeqNr": 1})))),
    ("tasks/result after a block that is none", |it| with_drafts(legacy("tasks/result", json!({"taskId": it.task, "lastSeqNr": 0})))),
    ("tasks/cancel in a session", |it| legacy("tasks/cancel", json!({"taskId": it.task}))),
    ("tasks/list", |_| legacy("tasks/list", json!({}))),
    ("tasks/list from behind it", |it| legacy("tasks/list", json!({"cursor": page_cursor(it)}))),
    ("tasks/list whose cursor is its id", |it| legacy("tasks/list", json!({"cursor": it.task}))),
    ("an answer to its question", |it| answers(format!("{}.-.name", it.task))),
    ("an answer to its question on a stream", |it| answers(format!("{}.{}.name", it.task, nonce(it)))),
    ("an answer to its question that was repeated", |it| answers(format!("{}.-~2.name", it.task))),
    ("an answer to a question that it never asked", |it| answers(format!("{}.-.other", it.task))),
    ("an error as the answer to its question", |it| {
        let error = json!({"code": -1, "message": "no"});
        message(json!({"jsonrpc": "2.0", "id": format!("{}.-.name", it.task), "error": error}))
    }),
    ("an answer to its question that fits nothing", |it| {
        message(json!({"jsonrpc": "2.0", "id": format!("{}.-.name", it.task), "result": {"action": "perhaps"}}))
    }),
    ("an answer to its request", |it| message(json!({"jsonrpc": "2.0", "id": it.request, "result": {}}))),
    ("a cancellation of its request in a session", |it| note("notifications/cancelled", json!({"requestId": it.request}))),
    ("a cancellation under its key in a session", |it| {
        note("notifications/cancelled", json!({"requestId": 7, "_meta": {KEY: it.idempotency_key}}))
    }),
    ("progress with its token", |it| note("notifications/progress", json!({"progressToken": it.progress_token, "progress": 1}))),
    ("the same call as a task in a session", |it| legacy("tools/call", call(it, &it.arguments, json!({"task": {}})))),
    ("a call under its key in a session", |it| {
        legacy("tools/call", call(it, &it.arguments, json!({"task": {}, "_meta": {KEY: it.idempotency_key}})))
    }),
    ("the same call with its progress token in a session", |it| {
        legacy("tools/call", call(it, &it.arguments, json!({"task": {}, "_meta": {"progressToken": it.progress_token}})))
    }),
    ("a call that says it is related in a session", |it| {
        legacy("tools/call", call(it, &it.arguments, json!({"task": {}, "_meta": {RELATED: {"taskId": it.task}}})))
    }),
    ("its output as a resource in a session", |it| legacy("resources/read", json!({"uri": output(it)}))),
    ("a subscription to its output", |it| legacy("resources/subscribe", json!({"uri": output(it)}))),
    ("the end of a subscription to its output", |it| legacy("resources/unsubscribe", json!({"uri": output(it)}))),
    ("task_wait in a session", |it| legacy("tools/call", json!({"name": "task_wait", "arguments": {"task_id": it.task}}))),
    ("task_output in a session", |it| legacy("tools/call", json!({"name": "task_output", "arguments": {"task_id": it.task}}))),
    ("task_answer in a session", |it| {
        legacy("tools/call", json!({"name": "task_answer", "arguments": {"task_id": it.task, "value": "Bob"}}))
    }),
    ("task_cancel in a session", |it| legacy("tools/call", json!({"name": "task_cancel", "arguments": {"task_id": it.task}}))),
    ("task_list in a session", |_| legacy("tools/call", json!({"name": "task_list", "arguments": {}}))),
    // Coming back to a stream.
    ("the stream of its call", |it| resumes(format!("{OWN_TAG}.c.{}.{}.0.0.0", it.task, nonce(it)))),
    ("the stream of its result", |it| resumes(format!("{OWN_TAG}.r.{}.{}.0.0.0", it.task, nonce(it)))),
    ("the stream of its segments", |it| resumes(format!("{OWN_TAG}.p.{}.{}.0.0.0", it.task, nonce(it)))),
    ("the stream of its result from far behind", |it| resumes(format!("{OWN_TAG}.r.{}.{}.1.1000000.1000000", it.task, nonce(it)))),
    ("the stream of its result behind its end", |it| {
        resumes(format!("{OWN_TAG}.r.{}.{}.1.{max}.{max}", it.task, nonce(it), max = u64::MAX))
    }),
    ("the stream of its result in capitals", |it| resumes(format!("{OWN_TAG}.r.{}.{}.0.0.0", it.task.to_uppercase(), nonce(it)))),
    ("an event of its stream", |it| resumes(format!("{}.r.{}.{}.0.0.0", tag(it), it.task, nonce(it)))),
    ("an event of its session stream", |it| resumes(format!("{}.s.0.0", tag(it)))),
    // Within the session of another caller.
    ("ping in its session", |it| within(it, legacy("ping", json!({})))),
    ("tasks/get in its session", |it| within(it, legacy("tasks/get", json!({"taskId": it.task})))),
    ("tasks/result in its session", |it| within(it, with_events(legacy("tasks/result", json!({"taskId": it.task}))))),
    ("tasks/list in its session", |it| within(it, legacy("tasks/list", json!({})))),
    ("tasks/cancel in its session", |it| within(it, legacy("tasks/cancel", json!({"taskId": it.task})))),
    ("the same call in its session", |it| within(it, legacy("tools/call", call(it, &it.arguments, json!({}))))),
    ("an answer in its session", |it| within(it, answers(format!("{}.-.name", it.task)))),
    ("a cancellation in its session", |it| within(it, note("notifications/cancelled", json!({"requestId": it.request})))),
    ("another beginning of its session", |it| {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bob", "version": "1"}});
        within(it, legacy("initialize", params))
    }),
    ("a batch in its session", |it| within(it, message(json!([{"jsonrpc": "2.0", "id": 7, "method": "ping"}])))),
    ("its session stream", |it| without_body("GET", Some(&it.session), None)),
    ("its session stream from an event on", |it| without_body("GET", Some(&it.session), Some(format!("{}.s.0.0", tag(it))))),
    ("the stream of its result in its session", |it| {
        without_body("GET", Some(&it.session), Some(format!("{}.r.{}.{}.0.0.0", tag(it), it.task, nonce(it))))
    }),
    ("its end", |it| without_body("DELETE", Some(&it.session), None)),
];
