//! Renders tasks, their output and their questions for the legacy era.

use std::collections::BTreeMap;

use serde_json::{Value, json, value::RawValue};
use taskwire_core::{
    Payload, QuestionKey, TaskId, Timestamp,
    task::{Outcome, Status, Task},
    wire::RequestId,
};

use super::{event_id::question_id, live::Reask, session::SessionTerms};
use crate::{
    config::Config,
    protocol::{
        json::{Object, text},
        notes::notification,
        task_status::{poll_interval, status_message},
    },
    store::Chunk,
};

pub(super) const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";
pub(super) const FALLBACK_MODE: &str = "io.modelcontextprotocol/fallback-mode";
pub(super) const IMMEDIATE_RESPONSE: &str = "io.modelcontextprotocol/model-immediate-response";

/// The status. In this era a result with `isError` counts as failed.
pub(super) fn status(task: &Task) -> Status {
    match &task.outcome {
        Some(Outcome::Completed { is_error: true, .. }) => Status::Failed,
        _ => task.status(),
    }
}

pub(super) fn task(object: Object, task: &Task, now: Timestamp, config: &Config) -> Object {
    let ttl = task.ttl(now).map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    let mut object = object.put("taskId", &task.id).put("status", status(task).as_str());
    if let Some(message) = status_message(task) {
        object = object.put("statusMessage", &message);
    }
    object
        .put("createdAt", &task.created_at.to_string())
        .put("lastUpdatedAt", &task.updated_at.to_string())
        .put("ttl", &ttl)
        .put("pollInterval", &poll_interval(task, now, config.poll_interval))
}

/// `_meta` that names the task to which a message belongs.
pub(super) fn related(id: TaskId) -> String {
    text(&json!({RELATED_TASK: {"taskId": id}}))
}

pub(super) fn status_notification(shown: &Task, now: Timestamp, config: &Config) -> Vec<u8> {
    notification("notifications/tasks/status", task(Object::open(), shown, now, config), None)
}

/// A chunk as a partial (SEP-2679).
pub(super) fn partial(id: TaskId, chunk: &Chunk, meta: &str) -> Vec<u8> {
    let params = Object::roomy().put("taskId", &id).put("seq", &chunk.seq.0).raw("content", chunk.blocks.as_str());
    notification("notifications/tasks/partial", params, Some(meta))
}

/// Content blocks, each as JSON text.
pub(super) fn blocks(json: &str) -> Vec<&RawValue> {
    serde_json::from_str(json).unwrap_or_default()
}

/// Content blocks with the numbers of SEP-1905, without those before `from`: the text of a list that is not closed yet.
#[derive(Debug, Default)]
pub(super) struct Segments(String);

impl Segments {
    pub(super) fn add(&mut self, chunk: &Chunk, from: u64) {
        for (number, block) in (chunk.first_block..).zip(blocks(chunk.blocks.as_str())) {
            if number >= from {
                self.push(&Object::open().put("seqNr", &number).splice(block.get()).into_text());
            }
        }
    }

    pub(super) fn append(&mut self, more: &Self) {
        if let Some(segments) = more.0.strip_prefix('[') {
            self.push(segments);
        }
    }

    fn push(&mut self, segments: &str) {
        let before = if self.is_empty() { '[' } else { ',' };
        self.0.push(before);
        self.0.push_str(segments);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn into_json(mut self) -> String {
        let end = if self.is_empty() { "[]" } else { "]" };
        self.0.push_str(end);
        self.0
    }
}

/// A question as a request to the client. If it is asked `again`, it says why.
pub(super) fn question(
    task: TaskId,
    request: Option<&RequestId>,
    (key, asked): (&QuestionKey, &Payload),
    again: Option<&Reask>,
    agreed: &SessionTerms,
    meta: Option<&str>,
) -> Option<Vec<u8>> {
    let key = key.as_str();
    let mut asked: Value = asked.read().ok()?;
    let method = asked["method"].as_str()?.to_owned();
    let params = asked.get_mut("params")?.as_object_mut()?;
    if method == "elicitation/create" {
        if let (Some(again), Some(Value::String(message))) = (again, params.get_mut("message")) {
            message.push_str(&format!("\n\n(The last answer was not taken: {})", again.why));
        }
        if params.get("mode").is_some_and(|mode| mode == "url") {
            // The question has another id on each stream, but what the person opens stays the same.
            params.entry("elicitationId").or_insert_with(|| format!("{task}.{key}").into());
        } else if !agreed.has_tasks() {
            params.remove("mode");
        }
    }
    if let Some(meta) = meta.and_then(|meta| serde_json::from_str::<Value>(meta).ok()) {
        let own = params.remove("_meta");
        params.insert("_meta".to_owned(), merged_meta(own, &meta));
    }
    let (object, times) = (Object::open().splice(&text(params)), again.map_or(1, |again| again.times));
    let message = Object::roomy().put("jsonrpc", "2.0").put("id", &question_id(task, request, times, key)).put("method", &method);
    Some(message.raw("params", &object.into_text()).end())
}

/// A tool's result for this era: structured content that is no object is left out, `meta` is added, `content` replaces its own.
pub(super) fn call_result(result: &Payload, meta: Option<&Value>, content: Option<&str>) -> Object {
    let Ok(members) = result.read::<BTreeMap<String, Box<RawValue>>>() else { return Object::open().splice(result.as_str()) };
    let mut object = Object::roomy();
    for (key, value) in &members {
        object = match (key.as_str(), content) {
            ("content", Some(content)) => object.raw("content", content),
            ("structuredContent", _) if !value.get().starts_with('{') => object,
            ("_meta", _) if meta.is_some() => object,
            _ => object.raw(key, value.get()),
        };
    }
    let Some(meta) = meta else { return object };
    let own = members.get("_meta").and_then(|own| serde_json::from_str::<Value>(own.get()).ok());
    object.put("_meta", &merged_meta(own, meta))
}

fn merged_meta(own: Option<Value>, more: &Value) -> Value {
    let mut joined = own.filter(Value::is_object).unwrap_or_else(|| json!({}));
    for (key, value) in more.as_object().into_iter().flatten() {
        joined[key] = value.clone();
    }
    joined
}

pub(super) fn response(id: &RequestId, result: Object) -> Vec<u8> {
    Object::roomy().put("jsonrpc", "2.0").put("id", id).raw("result", &result.into_text()).end()
}
