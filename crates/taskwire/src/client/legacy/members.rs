//! Whom a message of the server is for.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use serde::Deserialize;
use serde_json::Value;
use taskwire_core::{Payload, task::RpcError, wire::RequestId};

use crate::client::inbox::{Fact, Inbox};

/// What is kept of tasks that nobody knows yet: their first messages may come before the answer that names them.
const EARLY_MAX: usize = 1024;

/// Who waits for what.
pub(crate) struct Members {
    state: Mutex<State>,
    /// Bytes of output that are kept for one run.
    buffer: usize,
    /// Whether there is only one stream, on which everything comes in order.
    one_stream: bool,
}

#[derive(Default)]
struct State {
    /// By the name of the request, which is also the token of its progress.
    by_request: HashMap<i64, Arc<Inbox>>,
    by_task: HashMap<String, Vec<Arc<Inbox>>>,
    /// Calls under way that are no tasks (yet), the latest last.
    calls: Vec<Arc<Inbox>>,
    early: VecDeque<(String, Fact)>,
}

/// A place among those who wait; gone with this.
pub(crate) struct Seat {
    members: Arc<Members>,
    pub(crate) inbox: Arc<Inbox>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.members.lock();
        state.by_request.retain(|_, inbox| !Arc::ptr_eq(inbox, &self.inbox));
        state.calls.retain(|inbox| !Arc::ptr_eq(inbox, &self.inbox));
        if state.calls.is_empty() {
            // Whoever it was for knows its name by now.
            state.early.clear();
        }
        state.by_task.retain(|_, inboxes| {
            inboxes.retain(|inbox| !Arc::ptr_eq(inbox, &self.inbox));
            !inboxes.is_empty()
        });
    }
}

impl Seat {
    /// What comes for this request comes here.
    pub(crate) fn request(&self, id: i64) {
        self.members.lock().by_request.insert(id, self.inbox.clone());
    }

    /// A call is under way.
    pub(crate) fn call(&self) {
        self.members.lock().calls.push(self.inbox.clone());
    }

    /// The call is this task now.
    pub(crate) fn task(&self, task: &str) {
        let mut state = self.members.lock();
        state.calls.retain(|inbox| !Arc::ptr_eq(inbox, &self.inbox));
        let seated = state.by_task.entry(task.to_owned()).or_default();
        if !seated.iter().any(|inbox| Arc::ptr_eq(inbox, &self.inbox)) {
            seated.push(self.inbox.clone());
        }
        state.early.retain(|(early, fact)| {
            if early == task {
                self.inbox.push(fact.clone());
            }
            early != task
        });
    }
}

#[derive(Deserialize)]
struct Notified {
    #[serde(default, rename = "taskId")]
    task: Option<String>,
    #[serde(default, rename = "progressToken")]
    token: Option<RequestId>,
    #[serde(default, rename = "requestId")]
    request: Option<RequestId>,
    #[serde(default)]
    seq: Option<u64>,
    #[serde(default)]
    content: Option<Payload>,
    #[serde(default, rename = "_meta")]
    meta: Option<Value>,
}

impl Members {
    pub(super) fn new(buffer: usize, one_stream: bool) -> Self {
        Self { state: Mutex::default(), buffer, one_stream }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn join(self: &Arc<Self>) -> Seat {
        Seat { members: self.clone(), inbox: Arc::new(Inbox::new(self.buffer)) }
    }

    /// The standing stream was lost, or is back.
    pub(super) fn stands(&self, up: bool) {
        for inbox in self.lock().by_task.values().flatten() {
            inbox.push(Fact::Standing(up));
        }
    }

    /// An answer that came on another stream than its request.
    pub(super) fn answer(&self, id: RequestId, outcome: Result<Payload, RpcError>) {
        let RequestId::Number(number) = id else { return };
        if let Some(inbox) = self.lock().by_request.get(&number) {
            inbox.push(Fact::Answer(outcome));
        }
    }

    pub(super) fn notified(&self, method: &str, params: Payload, session: u64, owner: Option<&Arc<Inbox>>) {
        let Ok(notified) = params.read::<Notified>() else { return };
        let own = owner.is_some() || self.one_stream;
        match method {
            "notifications/progress" => {
                let state = self.lock();
                let by_token = match &notified.token {
                    Some(RequestId::Number(token)) => state.by_request.get(token),
                    _ => None,
                };
                let related = notified.meta.as_ref().and_then(|meta| meta[super::RELATED]["taskId"].as_str());
                let by_task = related.and_then(|task| state.by_task.get(task)?.first());
                if let Some(inbox) = by_token.or(by_task) {
                    inbox.push(Fact::Progress(params));
                }
            }
            "notifications/message" => {
                // Nobody says which call a line belongs to: the reader of its stream, or the latest one.
                if let Some(inbox) = owner.or(self.lock().calls.last()) {
                    inbox.push(Fact::Log(params));
                }
            }
            "notifications/tasks/status" => {
                if let Some(task) = &notified.task {
                    self.tell(task, &Fact::View { raw: params, own });
                }
            }
            "notifications/tasks/partial" => {
                if let Notified { task: Some(task), seq: Some(seq), content: Some(content), .. } = notified {
                    self.tell(&task, &Fact::Partial { seq, content, own });
                }
            }
            "notifications/cancelled" => {
                if let Some(id) = notified.request {
                    let state = self.lock();
                    for inbox in state.by_task.values().flatten().chain(&state.calls) {
                        inbox.push(Fact::Withdrawn { id: id.clone(), session });
                    }
                }
            }
            _ => {}
        }
    }

    /// Hands a question to who can answer it; false if there is nobody.
    pub(super) fn asked(&self, task: Option<&str>, fact: Fact, owner: Option<&Arc<Inbox>>) -> bool {
        if let Some(task) = task {
            let known = self.lock().by_task.contains_key(task);
            return self.tell(task, &fact) || (!known && owner.is_some_and(|owner| owner.push(fact)));
        }
        let state = self.lock();
        owner.or(state.calls.last()).is_some_and(|inbox| inbox.push(fact))
    }

    /// Tells who watches the task, or keeps it for who may come.
    fn tell(&self, task: &str, fact: &Fact) -> bool {
        let mut state = self.lock();
        if let Some(inboxes) = state.by_task.get(task) {
            for inbox in inboxes {
                inbox.push(fact.clone());
            }
            return true;
        }
        if state.calls.is_empty() {
            return false;
        }
        let mut bytes: usize = state.early.iter().map(|(_, fact)| fact.size()).sum();
        while state.early.len() >= EARLY_MAX || bytes + fact.size() > self.buffer {
            let Some((_, gone)) = state.early.pop_front() else { break };
            bytes -= gone.size();
        }
        state.early.push_back((task.to_owned(), fact.clone()));
        true
    }
}
