//! Renders tasks for the modern era: `Task` and `DetailedTask` of the Tasks extension, and notifications.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use taskwire_core::{
    Payload, TaskId, Timestamp, Version,
    task::{Outcome, Task},
};

use super::json::{Object, text, typed};
use crate::{
    protocol::{
        Framing,
        task_status::{poll_interval, status_message},
    },
    store::Chunk,
};

/// Larger JSON is rendered for each listener, and not cached.
const CACHED_BYTES_MAX: usize = 64 * 1024;

/// Adds the members of `Task`.
pub(super) fn task(object: Object, task: &Task, now: Timestamp, poll: Duration) -> Object {
    let ttl = task.ttl(now).map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    let mut object = object.put("taskId", &task.id).put("status", task.status().as_str());
    if let Some(message) = status_message(task) {
        object = object.put("statusMessage", &message);
    }
    object
        .put("createdAt", &task.created_at.to_string())
        .put("lastUpdatedAt", &task.updated_at.to_string())
        .put("ttlMs", &ttl)
        .put("pollIntervalMs", &poll_interval(task, now, poll))
}

/// Adds the members of `DetailedTask`: those of `Task`, and those that go with the status.
pub(super) fn detailed_task(object: Object, shown: &Task, now: Timestamp, poll: Duration) -> Object {
    let object = task(object, shown, now, poll);
    match &shown.outcome {
        Some(Outcome::Completed { result, .. }) => object.raw("result", &typed("complete").splice(result.as_str()).into_text()),
        Some(Outcome::Failed(error)) => object.put("error", error),
        Some(Outcome::Cancelled { .. }) => object,
        None if shown.asked_at.is_some() => {
            object.raw("inputRequests", &requests(shown.open_questions().map(|(key, request)| (key.as_str(), request))))
        }
        None => object,
    }
}

/// The questions as `inputRequests`.
pub(super) fn requests<'a>(questions: impl Iterator<Item = (&'a str, &'a Payload)>) -> String {
    questions.fold(Object::open(), |object, (key, request)| object.raw(key, request.as_str())).into_text()
}

/// The `DetailedTask` that was rendered last: many listeners may be sent the same one.
#[derive(Debug, Default)]
pub(crate) struct TaskJsonCache(Mutex<Option<CachedJson>>);

#[derive(Debug)]
struct CachedJson {
    /// The task, its version, and the values that depend on the time.
    key: (TaskId, Version, Option<Duration>, u64),
    text: Arc<str>,
}

impl TaskJsonCache {
    /// The `DetailedTask` as JSON text.
    fn text(&self, task: &Task, now: Timestamp, poll: Duration) -> Arc<str> {
        let of = (task.id, task.version, task.ttl(now), poll_interval(task, now, poll));
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(last) if last.key == of => last.text.clone(),
            _ => {
                let text: Arc<str> = detailed_task(Object::open(), task, now, poll).into_text().into();
                // A large result is not kept in memory for other listeners that may not exist.
                *last = (text.len() <= CACHED_BYTES_MAX).then(|| CachedJson { key: of, text: text.clone() });
                text
            }
        }
    }
}

pub(super) fn task_notification(cache: &TaskJsonCache, task: &Task, subscription: &str, now: Timestamp, poll: Duration) -> Vec<u8> {
    let meta = Object::open().raw(super::SUBSCRIPTION_ID, subscription).into_text();
    let params = Object::open().raw("_meta", &meta).splice(&cache.text(task, now, poll)).into_text();
    Object::open().put("jsonrpc", "2.0").put("method", "notifications/tasks").raw("params", &params).end()
}

/// The beginning of all notifications of a task's chunks on one stream, up to the seq.
pub(super) fn partial_head(subscription: &str, id: TaskId) -> Vec<u8> {
    let meta = Object::open().raw(super::SUBSCRIPTION_ID, subscription).into_text();
    let params = Object::open().raw("_meta", &meta).put("taskId", &id);
    Object::open()
        .put("jsonrpc", "2.0")
        .put("method", "notifications/tasks/partial")
        .raw("params", &params.raw("seq", "").begun())
        .begun()
        .into()
}

/// Notifications of chunks, framed, in pieces to be sent one after the other. A large chunk is not copied: all readers share its bytes.
pub(super) fn partials(head: &[u8], chunks: &[Chunk], framing: Framing) -> Vec<Bytes> {
    const CONTENT: &[u8] = b",\"content\":";
    const END: &[u8] = b"}}";
    let around = framing.before.len() + head.len() + 20 + CONTENT.len() + END.len() + framing.after.len();
    let size = |chunk: &Chunk| chunk.blocks.as_str().len();
    let copied = chunks.iter().map(size).filter(|size| *size <= framing.unsplit_bytes_max).sum::<usize>();
    let (mut pieces, mut piece) = (Vec::new(), Vec::with_capacity(copied + chunks.len() * around));
    for chunk in chunks {
        piece.extend_from_slice(framing.before);
        piece.extend_from_slice(head);
        super::json::write(&mut piece, &chunk.seq.0);
        piece.extend_from_slice(CONTENT);
        if size(chunk) <= framing.unsplit_bytes_max {
            piece.extend_from_slice(chunk.blocks.as_ref());
        } else {
            pieces.push(std::mem::take(&mut piece).into());
            pieces.push(Bytes::from_owner(chunk.blocks.clone()));
        }
        piece.extend_from_slice(END);
        piece.extend_from_slice(framing.after);
    }
    pieces.push(piece.into());
    pieces
}

pub(super) fn subscription(id: &taskwire_core::wire::RequestId) -> String {
    text(id)
}
