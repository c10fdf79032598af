//! One listen stream for all runs of a client.

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

use super::{Modern, PARTIALS, object};
use crate::client::{
    inbox::{Fact, Inbox},
    link::{self, Failed, if_any},
    wire::{Backoff, Exchange, Lost, Message, random},
};

/// Who watches what.
#[derive(Default)]
pub(crate) struct Hub {
    modern: OnceLock<Weak<Modern>>,
    members: Arc<Members>,
    running: Mutex<bool>,
}

#[derive(Default)]
struct Members {
    by_task: Mutex<HashMap<String, Vec<Member>>>,
    /// Somebody came.
    came: Notify,
    /// The server does not push at all.
    off: AtomicBool,
    ids: AtomicU64,
}

struct Member {
    id: u64,
    inbox: Arc<Inbox>,
    /// The first piece of output that was not pushed to it yet; none if it wants none.
    next: Option<u64>,
}

/// A place among those who watch; gone with this.
pub(crate) struct Seat {
    members: Arc<Members>,
    task: String,
    pub(crate) inbox: Arc<Inbox>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut members = self.members.lock();
        if let Some(seated) = members.get_mut(&self.task) {
            seated.retain(|member| !Arc::ptr_eq(&member.inbox, &self.inbox));
            if seated.is_empty() {
                members.remove(&self.task);
            }
        }
        drop(members);
        self.members.came.notify_one();
    }
}

impl Members {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Vec<Member>>> {
        self.by_task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, task: &str, fact: &Fact) {
        let mut members = self.lock();
        for member in members.get_mut(task).into_iter().flatten() {
            // Output is for who asked for it.
            if matches!(fact, Fact::Partial { .. }) && member.next.is_none() {
                continue;
            }
            let taken = member.inbox.push(fact.clone());
            if let (true, Fact::Partial { seq, .. }, Some(next)) = (taken, fact, &mut member.next) {
                // Only without a gap: what is missing is asked for.
                if *next == *seq {
                    *next = seq.saturating_add(1);
                }
            }
        }
    }

    /// Tells those whom `of` names.
    fn tell_those(&self, fact: &Fact, of: impl Fn(&Member) -> bool) {
        for member in self.lock().values().flatten().filter(|member| of(member)) {
            member.inbox.push(fact.clone());
        }
    }
}

impl Hub {
    pub(super) fn belongs_to(&self, modern: &Arc<Modern>) {
        let _ = self.modern.set(Arc::downgrade(modern));
    }

    /// Watches a task, and its output from `next` on.
    pub(crate) fn join(&self, task: &str, next: Option<u64>) -> Seat {
        let inbox = Arc::new(Inbox::new(self.buffer()));
        self.members.lock().entry(task.to_owned()).or_default().push(Member {
            id: self.members.ids.fetch_add(1, Ordering::Relaxed),
            inbox: inbox.clone(),
            next,
        });
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *running, true)
            && let Some(modern) = self.modern.get()
        {
            tokio::spawn(listen(modern.clone(), self.members.clone()));
        }
        self.members.came.notify_one();
        if self.members.off.load(Ordering::Acquire) {
            inbox.push(Fact::Down { reason: "the server does not push".to_owned(), again_in: None });
        }
        Seat { members: self.members.clone(), task: task.to_owned(), inbox }
    }

    fn buffer(&self) -> usize {
        self.modern.get().and_then(Weak::upgrade).map_or(0, |modern| modern.link.options.limits.buffer_bytes)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // So that nobody keeps a stream open for a client that is gone.
        self.members.came.notify_one();
    }
}

/// A stream that was acknowledged.
struct Stream {
    id: i64,
    exchange: Exchange,
    /// Whom it was opened for.
    members: Vec<u64>,
}

/// Keeps one stream open for whoever watches.
async fn listen(modern: Weak<Modern>, members: Arc<Members>) {
    let mut current: Option<Stream> = None;
    let mut opening: Option<BoxFuture<'static, Result<Stream, Failed>>> = None;
    let mut backoff: Option<Backoff> = None;
    let mut waiting: Option<BoxFuture<'static, ()>> = None;
    let mut changed = true;
    loop {
        if std::mem::take(&mut changed) {
            let Some(client) = modern.upgrade() else { return };
            let seated: Vec<u64> = members.lock().values().flatten().map(|member| member.id).collect();
            if seated.is_empty() {
                (current, opening) = (None, None);
            }
            let covered = current.as_ref().is_some_and(|stream| seated.iter().all(|id| stream.members.contains(id)));
            if !seated.is_empty() && !covered && opening.is_none() && waiting.is_none() {
                opening = Some(open(client.clone(), members.clone()).boxed());
            }
        }
        tokio::select! {
            () = members.came.notified() => changed = true,
            opened = if_any(&mut opening) => {
                (opening, changed) = (None, true);
                match opened {
                    Ok(stream) => {
                        // Only now the old one may go: nothing falls between them.
                        current = Some(stream);
                    }
                    Err(failed) => {
                        let Some(client) = modern.upgrade() else { return };
                        // Who is on the stream that is there has lost nothing.
                        let covered = |member: &Member| current.as_ref().is_some_and(|stream| stream.members.contains(&member.id));
                        waiting = retry(&client, &members, &failed, &mut backoff, |member| !covered(member));
                        if waiting.is_none() {
                            members.off.store(true, Ordering::Release);
                            members.tell_those(&Fact::Down { reason: failed.reason(), again_in: None }, |_| true);
                            return;
                        }
                    }
                }
            }
            () = if_any(&mut waiting) => (waiting, changed) = (None, true),
            message = async { match &mut current { Some(stream) => stream.exchange.next().await, None => std::future::pending().await } } => {
                let Some(stream) = &current else { continue };
                let reason = match message {
                    Ok(Some(message)) => match route(stream.id, message, &members) {
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
                waiting = retry(&client, &members, &Failed::Lost(Lost::Cut(reason)), &mut backoff, |_| true);
            }
        }
    }
}

/// What to do about a stream that is not there: wait, or do without.
fn retry(
    client: &Modern,
    members: &Members,
    failed: &Failed,
    backoff: &mut Option<Backoff>,
    whom: impl Fn(&Member) -> bool,
) -> Option<BoxFuture<'static, ()>> {
    let timing = client.link.options.timing;
    // Those who watch look for themselves and give up when it is time; here one more try costs little.
    let patient = crate::client::Timing { patience: std::time::Duration::MAX, ..timing };
    let backoff = backoff.get_or_insert_with(|| Backoff::new(patient));
    // Only what says that there is no such thing is the last word: a place may become free, and a fault may pass.
    let never = match failed {
        Failed::Rpc(error) => matches!(error.code, code::METHOD_NOT_FOUND | code::INVALID_PARAMS | code::MISSING_CAPABILITY),
        Failed::Lost(Lost::Status { status, .. }) => (400..500).contains(status) && !failed.passes(),
        Failed::Lost(_) => false,
        Failed::Broken(_) | Failed::Ours(_) => true,
    };
    let wait = if !never { backoff.next(client.link.options.clock.now(), None, random()) } else { None };
    if wait.is_some() {
        members.tell_those(&Fact::Down { reason: failed.reason(), again_in: wait }, whom);
    }
    wait.map(|wait| client.link.options.clock.sleep(wait) as BoxFuture<'static, ()>)
}

/// Opens a stream and waits until it is acknowledged.
async fn open(modern: Arc<Modern>, members: Arc<Members>) -> Result<Stream, Failed> {
    let streams = modern.streams();
    let (tasks, seated): (Vec<String>, Vec<u64>) = {
        let members = members.lock();
        (members.keys().cloned().collect(), members.values().flatten().map(|member| member.id).collect())
    };
    let mut wanted: Map<String, Value> = Map::new();
    wanted.insert("taskIds".to_owned(), json!(tasks));
    let mut asked_from = HashMap::new();
    if streams {
        let members = members.lock();
        let from = |task: &String| members.get(task).and_then(|seated| seated.iter().filter_map(|member| member.next).min());
        asked_from = tasks.iter().filter_map(|task| Some((task.clone(), from(task)?))).collect();
        let output: Vec<Value> = asked_from.iter().map(|(task, from)| json!({"taskId": task, "fromSeq": from})).collect();
        if !output.is_empty() {
            wanted.insert(PARTIALS.to_owned(), json!(output));
        }
    }
    let id = modern.link.id();
    let opening = async {
        let mut exchange = modern.send(id, "subscriptions/listen", object(json!({"notifications": wanted})), None).await?;
        loop {
            let message = exchange.next().await?.ok_or_else(|| link::ended(exchange.status()))?;
            match link::answer_to(id, message) {
                Ok(Err(error)) => return Err(Failed::Rpc(error)),
                // Ended before it began; some servers answer anything with something.
                Ok(Ok(_)) => return Err(Failed::Broken("it does not keep a stream of notifications open".to_owned())),
                Err(Message::Notification { method, params }) if method == "notifications/subscriptions/acknowledged" => {
                    return Ok((exchange, params));
                }
                Err(_) => {}
            }
        }
    };
    let (exchange, acknowledged) = modern.link.within(modern.link.options.timing.request, opening).await?;
    let honoured: Value = acknowledged.read().unwrap_or_default();
    let honoured = &honoured["notifications"];
    for task in &tasks {
        let pushed = honoured["taskIds"].as_array().is_some_and(|ids| ids.iter().any(|id| id == task));
        let output = honoured[PARTIALS].as_array().and_then(|list| list.iter().find(|entry| entry["taskId"] == **task));
        let begins = output.and_then(|entry| entry["fromSeq"].as_u64());
        let asked = asked_from.get(task).copied();
        let fact = if pushed {
            Fact::Up { output: output.is_some(), from: begins.filter(|begins| asked.is_some_and(|asked| *begins > asked)) }
        } else {
            Fact::Down { reason: "the server does not push this task".to_owned(), again_in: None }
        };
        let here = members.lock().get(task).map(|seated| seated.iter().map(|member| member.id).collect::<Vec<_>>()).unwrap_or_default();
        members.tell_those(&fact, |member| here.contains(&member.id) && seated.contains(&member.id));
    }
    Ok(Stream { id, exchange, members: seated })
}

#[derive(Deserialize)]
struct Pushed<'a> {
    #[serde(borrow, rename = "taskId")]
    task: Cow<'a, str>,
    #[serde(default)]
    seq: Option<u64>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

/// Hands a message to who watches its task; says why if it ends the stream.
fn route(id: i64, message: Message, members: &Members) -> Option<String> {
    let message = match link::answer_to(id, message) {
        Ok(Ok(_)) => return Some("the server ended the stream of notifications".to_owned()),
        Ok(Err(error)) => return Some(error.message),
        Err(message) => message,
    };
    let Message::Notification { method, params } = message else { return None };
    match method.as_str() {
        "notifications/tasks/partial" => {
            let Ok(Pushed { task, seq: Some(seq), content: Some(content) }) = params.read() else { return None };
            members.tell(&task, &Fact::Partial { seq, content: Payload::from(content), own: true });
        }
        "notifications/tasks" => {
            let Ok(Pushed { task, .. }) = params.read() else { return None };
            members.tell(&task, &Fact::View { raw: params.clone(), own: true });
        }
        "notifications/cancelled" => return Some("the server ended the stream of notifications".to_owned()),
        _ => {}
    }
    None
}
