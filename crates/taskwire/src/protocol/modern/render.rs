//! A task as this era shows it: `Task` and `DetailedTask` of the Tasks extension.

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

/// A view that is larger than this is written anew for each listener.
const CACHED_BYTES_MAX: usize = 64 * 1024;

/// The members that every view has.
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

/// The members that every view has, and those that go with the status.
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

/// Questions by key.
pub(super) fn requests<'a>(questions: impl Iterator<Item = (&'a str, &'a Payload)>) -> String {
    questions.fold(Object::open(), |object, (key, request)| object.raw(key, request.as_str())).into_text()
}

/// The view that was last shown to a listener: many may be waiting for the same one.
#[derive(Debug, Default)]
pub(crate) struct TaskJsonCache(Mutex<Option<CachedJson>>);

#[derive(Debug)]
struct CachedJson {
    /// Which task, at which version, with which values of what depends on the moment.
    key: (TaskId, Version, Option<Duration>, u64),
    text: Arc<str>,
}

impl TaskJsonCache {
    /// The members of a detailed view, as an object.
    fn text(&self, task: &Task, now: Timestamp, poll: Duration) -> Arc<str> {
        let of = (task.id, task.version, task.ttl(now), poll_interval(task, now, poll));
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(last) if last.key == of => last.text.clone(),
            _ => {
                let text: Arc<str> = detailed_task(Object::open(), task, now, poll).into_text().into();
                // A large result is not kept for the sake of listeners that may not be there.
                *last = (text.len() <= CACHED_BYTES_MAX).then(|| CachedJson { key: of, text: text.clone() });
                text
            }
        }
    }
}

/// A notification with the state of a task.
pub(super) fn task_notification(cache: &TaskJsonCache, task: &Task, subscription: &str, now: Timestamp, poll: Duration) -> Vec<u8> {
    let meta = Object::open().raw(super::SUBSCRIPTION_ID, subscription).into_text();
    let params = Object::open().raw("_meta", &meta).splice(&cache.text(task, now, poll)).into_text();
    Object::open().put("jsonrpc", "2.0").put("method", "notifications/tasks").raw("params", &params).end()
}

/// What the notifications of a task's chunks on one stream have in common, up to the number.
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

/// Notifications of chunks, in their frames, as pieces to be sent one after the other: a large chunk is not even copied,
/// every reader is given the same bytes.
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

/// The subscription id as JSON text.
pub(super) fn subscription(id: &taskwire_core::wire::RequestId) -> String {
    text(id)
}
