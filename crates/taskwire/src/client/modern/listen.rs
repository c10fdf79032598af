//! One listen stream for all calls of a client: who is subscribed to which task, and how pushed messages reach them.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures_util::{FutureExt, future::BoxFuture};
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};
use taskwire_core::{Payload, wire::code};
use tokio::sync::Notify;

use super::{ModernClient, PARTIALS, object};
use crate::client::{
    inbox::{Inbox, Notice},
    link::{self, RequestError, if_any},
    wire::{Backoff, Exchange, Message, WireError, random},
};

/// The client's listen stream, opened when the first call subscribes.
#[derive(Default)]
pub(crate) struct ListenStream {
    modern: OnceLock<Weak<ModernClient>>,
    subscribers: Arc<Subscribers>,
    running: Mutex<bool>,
}

#[derive(Default)]
struct Subscribers {
    by_task: Mutex<HashMap<String, Vec<Subscriber>>>,
    /// A subscriber came or went.
    changed: Notify,
    /// The server does not push at all.
    off: AtomicBool,
    ids: AtomicU64,
}

struct Subscriber {
    id: u64,
    inbox: Arc<Inbox>,
    /// The first chunk that was not pushed to it yet; none if it wants no output.
    next_seq: Option<u64>,
}

/// A subscription to one task, until it is dropped.
pub(crate) struct Subscription {
    subscribers: Arc<Subscribers>,
    task: String,
    pub(crate) inbox: Arc<Inbox>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut subscribers = self.subscribers.lock();
        if let Some(of_task) = subscribers.get_mut(&self.task) {
            of_task.retain(|member| !Arc::ptr_eq(&member.inbox, &self.inbox));
            if of_task.is_empty() {
                subscribers.remove(&self.task);
            }
        }
        drop(subscribers);
        self.subscribers.changed.notify_one();
    }
}

impl Subscribers {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Vec<Subscriber>>> {
        self.by_task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, task: &str, notice: &Notice) {
        let mut subscribers = self.lock();
        for member in subscribers.get_mut(task).into_iter().flatten() {
            // Not every subscriber wants output.
            if matches!(notice, Notice::Chunk { .. }) && member.next_seq.is_none() {
                continue;
            }
            let taken = member.inbox.push(notice.clone());
            if let (true, Notice::Chunk { seq, .. }, Some(next)) = (taken, notice, &mut member.next_seq) {
                // After a gap `next_seq` stays: the next stream asks for the missing chunk.
                if *next == *seq {
                    *next = seq.saturating_add(1);
                }
            }
        }
    }

    /// Pushes a notice to the subscribers that `of` selects.
    fn push_where(&self, notice: &Notice, of: impl Fn(&Subscriber) -> bool) {
        for member in self.lock().values().flatten().filter(|member| of(member)) {
            member.inbox.push(notice.clone());
        }
    }
}

impl ListenStream {
    pub(super) fn belongs_to(&self, modern: &Arc<ModernClient>) {
        let _ = self.modern.set(Arc::downgrade(modern));
    }

    /// Subscribes to a task, and to its output from `next_seq` on.
    pub(crate) fn subscribe(&self, task: &str, next_seq: Option<u64>) -> Subscription {
        let inbox = Arc::new(Inbox::new(self.buffer()));
        self.subscribers.lock().entry(task.to_owned()).or_default().push(Subscriber {
            id: self.subscribers.ids.fetch_add(1, Ordering::Relaxed),
            inbox: inbox.clone(),
            next_seq,
        });
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *running, true)
            && let Some(modern) = self.modern.get()
        {
            tokio::spawn(listen(modern.clone(), self.subscribers.clone()));
        }
        self.subscribers.changed.notify_one();
        if self.subscribers.off.load(Ordering::Acquire) {
            inbox.push(Notice::StreamDown { reason: "the server does not push".to_owned(), retry_in: None });
        }
        Subscription { subscribers: self.subscribers.clone(), task: task.to_owned(), inbox }
    }

    fn buffer(&self) -> usize {
        self.modern.get().and_then(Weak::upgrade).map_or(0, |modern| modern.link.options.limits.buffer_bytes)
    }
}

impl Drop for ListenStream {
    fn drop(&mut self) {
        // Wakes `listen`, which ends when the client is gone.
        self.subscribers.changed.notify_one();
    }
}

/// A listen stream that the server acknowledged.
struct OpenStream {
    id: i64,
    exchange: Exchange,
    /// The subscribers that it was opened for.
    subscriber_ids: Vec<u64>,
}

/// Keeps one stream open while there are subscribers.
async fn listen(modern: Weak<ModernClient>, subscribers: Arc<Subscribers>) {
    let mut current: Option<OpenStream> = None;
    let mut opening: Option<BoxFuture<'static, Result<OpenStream, RequestError>>> = None;
    let mut backoff: Option<Backoff> = None;
    let mut waiting: Option<BoxFuture<'static, ()>> = None;
    let mut changed = true;
    loop {
        if std::mem::take(&mut changed) {
            let Some(client) = modern.upgrade() else { return };
            let ids: Vec<u64> = subscribers.lock().values().flatten().map(|member| member.id).collect();
            if ids.is_empty() {
                (current, opening) = (None, None);
            }
            let covered = current.as_ref().is_some_and(|stream| ids.iter().all(|id| stream.subscriber_ids.contains(id)));
            if !ids.is_empty() && !covered && opening.is_none() && waiting.is_none() {
                opening = Some(open(client.clone(), subscribers.clone()).boxed());
            }
        }
        tokio::select! {
            () = subscribers.changed.notified() => changed = true,
            opened = if_any(&mut opening) => {
                (opening, changed) = (None, true);
                match opened {
                    Ok(stream) => {
                        // The old stream is dropped only now, so that no message is missed between them.
                        current = Some(stream);
                    }
                    Err(failed) => {
                        let Some(client) = modern.upgrade() else { return };
                        // The subscribers of the current stream have lost nothing.
                        let covered = |member: &Subscriber| current.as_ref().is_some_and(|stream| stream.subscriber_ids.contains(&member.id));
                        waiting = retry(&client, &subscribers, &failed, &mut backoff, |member| !covered(member));
                        if waiting.is_none() {
                            subscribers.off.store(true, Ordering::Release);
                            subscribers.push_where(&Notice::StreamDown { reason: failed.reason(), retry_in: None }, |_| true);
                            return;
                        }
                    }
                }
            }
            () = if_any(&mut waiting) => (waiting, changed) = (None, true),
            message = async { match &mut current { Some(stream) => stream.exchange.next().await, None => std::future::pending().await } } => {
                let Some(stream) = &current else { continue };
                let reason = match message {
                    Ok(Some(message)) => match route(stream.id, message, &subscribers) {
                        None => {
                            backoff = None;
                            continue;
                        }
                        Some(reason) => reason,
                    },
                    Ok(None) => "the stream of notifications broke off".to_owned(),
                    Err(lost) => lost.reason(),
                };
                (current, changed) = (None, true);
                let Some(client) = modern.upgrade() else { return };
                waiting = retry(&client, &subscribers, &RequestError::Wire(WireError::Interrupted(reason)), &mut backoff, |_| true);
            }
        }
    }
}

/// Decides what to do without a stream: the wait before the next try, or none if the server never has one.
fn retry(
    client: &ModernClient,
    subscribers: &Subscribers,
    failed: &RequestError,
    backoff: &mut Option<Backoff>,
    whom: impl Fn(&Subscriber) -> bool,
) -> Option<BoxFuture<'static, ()>> {
    let timing = client.link.options.timing;
    // Subscribers poll meanwhile, and give up by themselves; here one more try costs little.
    let endless = crate::client::Timing { give_up_after: std::time::Duration::MAX, ..timing };
    let backoff = backoff.get_or_insert_with(|| Backoff::new(endless));
    // Only an error that says there is no such stream is final: a limit or a fault may pass.
    let never = match failed {
        RequestError::Rpc(error) => matches!(error.code, code::METHOD_NOT_FOUND | code::INVALID_PARAMS | code::MISSING_CAPABILITY),
        RequestError::Wire(WireError::Status { status, .. }) => (400..500).contains(status) && !failed.is_transient(),
        RequestError::Wire(_) => false,
        RequestError::Protocol(_) | RequestError::Local(_) => true,
    };
    let wait = if !never { backoff.next(client.link.options.clock.now(), None, random()) } else { None };
    if wait.is_some() {
        subscribers.push_where(&Notice::StreamDown { reason: failed.reason(), retry_in: wait }, whom);
    }
    wait.map(|wait| client.link.options.clock.sleep(wait) as BoxFuture<'static, ()>)
}

/// Opens a stream and waits until it is acknowledged.
async fn open(modern: Arc<ModernClient>, subscribers: Arc<Subscribers>) -> Result<OpenStream, RequestError> {
    let streams = modern.streams();
    let (tasks, ids): (Vec<String>, Vec<u64>) = {
        let subscribers = subscribers.lock();
        (subscribers.keys().cloned().collect(), subscribers.values().flatten().map(|member| member.id).collect())
    };
    let mut wanted: Map<String, Value> = Map::new();
    wanted.insert("taskIds".to_owned(), json!(tasks));
    let mut asked_from = HashMap::new();
    if streams {
        let subscribers = subscribers.lock();
        let from = |task: &String| subscribers.get(task).and_then(|of_task| of_task.iter().filter_map(|member| member.next_seq).min());
        asked_from = tasks.iter().filter_map(|task| Some((task.clone(), from(task)?))).collect();
        let output: Vec<Value> = asked_from.iter().map(|(task, from)| json!({"taskId": task, "fromSeq": from})).collect();
        if !output.is_empty() {
            wanted.insert(PARTIALS.to_owned(), json!(output));
        }
    }
    let id = modern.link.next_id();
    let opening = async {
        let mut exchange = modern.send(id, "subscriptions/listen", object(json!({"notifications": wanted})), None).await?;
        loop {
            let message = exchange.next().await?.ok_or_else(|| link::ended_without_answer(exchange.status()))?;
            match link::match_response(id, message) {
                Ok(Err(error)) => return Err(RequestError::Rpc(error)),
                // Some servers respond to any request, and so end the stream at once.
                Ok(Ok(_)) => return Err(RequestError::Protocol("it does not keep a stream of notifications open".to_owned())),
                Err(Message::Notification { method, params }) if method == "notifications/subscriptions/acknowledged" => {
                    return Ok((exchange, params));
                }
                Err(_) => {}
            }
        }
    };
    let (exchange, acknowledged) = modern.link.with_timeout(modern.link.options.timing.request, opening).await?;
    let honoured: Value = acknowledged.read().unwrap_or_default();
    let honoured = &honoured["notifications"];
    for task in &tasks {
        let pushed = honoured["taskIds"].as_array().is_some_and(|ids| ids.iter().any(|id| id == task));
        let output = honoured[PARTIALS].as_array().and_then(|list| list.iter().find(|entry| entry["taskId"] == **task));
        let begins = output.and_then(|entry| entry["fromSeq"].as_u64());
        let asked = asked_from.get(task).copied();
        let notice = if pushed {
            Notice::StreamUp { output: output.is_some(), first_seq: begins.filter(|begins| asked.is_some_and(|asked| *begins > asked)) }
        } else {
            Notice::StreamDown { reason: "the server does not push this task".to_owned(), retry_in: None }
        };
        let here =
            subscribers.lock().get(task).map(|of_task| of_task.iter().map(|member| member.id).collect::<Vec<_>>()).unwrap_or_default();
        subscribers.push_where(&notice, |member| here.contains(&member.id) && ids.contains(&member.id));
    }
    Ok(OpenStream { id, exchange, subscriber_ids: ids })
}

#[derive(Deserialize)]
struct TaskNotification<'a> {
    #[serde(borrow, rename = "taskId")]
    task: Cow<'a, str>,
    #[serde(default)]
    seq: Option<u64>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

/// Pushes a message to the subscribers of its task. Returns the reason if the message ends the stream.
fn route(id: i64, message: Message, subscribers: &Subscribers) -> Option<String> {
    let message = match link::match_response(id, message) {
        Ok(Ok(_)) => return Some("the server ended the stream of notifications".to_owned()),
        Ok(Err(error)) => return Some(error.message),
        Err(message) => message,
    };
    let Message::Notification { method, params } = message else { return None };
    match method.as_str() {
        "notifications/tasks/partial" => {
            let Ok(TaskNotification { task, seq: Some(seq), content: Some(content) }) = params.read() else { return None };
            subscribers.push(&task, &Notice::Chunk { seq, content: Payload::from(content), on_own_stream: true });
        }
        "notifications/tasks" => {
            let Ok(TaskNotification { task, .. }) = params.read() else { return None };
            subscribers.push(&task, &Notice::Task { raw: params.clone(), on_own_stream: true });
        }
        "notifications/cancelled" => return Some("the server ended the stream of notifications".to_owned()),
        _ => {}
    }
    None
}
