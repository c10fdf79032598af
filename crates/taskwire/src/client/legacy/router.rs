//! Routes a message of the server to the inbox of the call that it is for.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use serde::Deserialize;
use serde_json::Value;
use taskwire_core::{Payload, task::RpcError, wire::RequestId};

use crate::client::inbox::{Inbox, Notice};

/// Messages kept for unknown tasks: the first ones may come before the response that names the task.
const EARLY_MAX: usize = 1024;

/// The inboxes of all calls of a client.
pub(crate) struct Router {
    state: Mutex<State>,
    /// Bytes of output that an inbox holds.
    buffer: usize,
    /// Whether all messages come in order on one stream.
    one_stream: bool,
}

#[derive(Default)]
struct State {
    /// By the request id, which is also its progress token.
    by_request: HashMap<i64, Arc<Inbox>>,
    by_task: HashMap<String, Vec<Arc<Inbox>>>,
    /// Calls under way that are no tasks (yet), the latest last.
    calls: Vec<Arc<Inbox>>,
    early: VecDeque<(String, Notice)>,
}

/// A call's inbox in the router, until it is dropped.
pub(crate) struct Registration {
    router: Arc<Router>,
    pub(crate) inbox: Arc<Inbox>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut state = self.router.lock();
        state.by_request.retain(|_, inbox| !Arc::ptr_eq(inbox, &self.inbox));
        state.calls.retain(|inbox| !Arc::ptr_eq(inbox, &self.inbox));
        if state.calls.is_empty() {
            // No call waits to become a task, so nobody needs these.
            state.early.clear();
        }
        state.by_task.retain(|_, inboxes| {
            inboxes.retain(|inbox| !Arc::ptr_eq(inbox, &self.inbox));
            !inboxes.is_empty()
        });
    }
}

impl Registration {
    pub(crate) fn add_request(&self, id: i64) {
        self.router.lock().by_request.insert(id, self.inbox.clone());
    }

    pub(crate) fn add_call(&self) {
        self.router.lock().calls.push(self.inbox.clone());
    }

    pub(crate) fn set_task(&self, task: &str) {
        let mut state = self.router.lock();
        state.calls.retain(|inbox| !Arc::ptr_eq(inbox, &self.inbox));
        let inboxes = state.by_task.entry(task.to_owned()).or_default();
        if !inboxes.iter().any(|inbox| Arc::ptr_eq(inbox, &self.inbox)) {
            inboxes.push(self.inbox.clone());
        }
        state.early.retain(|(early, notice)| {
            if early == task {
                self.inbox.push(notice.clone());
            }
            early != task
        });
    }
}

#[derive(Deserialize)]
struct NotificationParams {
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

impl Router {
    pub(super) fn new(buffer: usize, one_stream: bool) -> Self {
        Self { state: Mutex::default(), buffer, one_stream }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn register(self: &Arc<Self>) -> Registration {
        Registration { router: self.clone(), inbox: Arc::new(Inbox::new(self.buffer)) }
    }

    pub(super) fn session_stream_changed(&self, up: bool) {
        for inbox in self.lock().by_task.values().flatten() {
            inbox.push(Notice::SessionStream(up));
        }
    }

    /// Routes a response that came on another stream than its request.
    pub(super) fn route_response(&self, id: RequestId, outcome: Result<Payload, RpcError>) {
        let RequestId::Number(number) = id else { return };
        if let Some(inbox) = self.lock().by_request.get(&number) {
            inbox.push(Notice::Response(outcome));
        }
    }

    pub(super) fn route_notification(&self, method: &str, params: Payload, session: u64, owner: Option<&Arc<Inbox>>) {
        let Ok(notified) = params.read::<NotificationParams>() else { return };
        let on_own_stream = owner.is_some() || self.one_stream;
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
                    inbox.push(Notice::Progress(params));
                }
            }
            "notifications/message" => {
                // The protocol does not say which call a log line belongs to: take the reader of its stream, or the latest call.
                if let Some(inbox) = owner.or(self.lock().calls.last()) {
                    inbox.push(Notice::Log(params));
                }
            }
            "notifications/tasks/status" => {
                if let Some(task) = &notified.task {
                    self.push_to_task(task, &Notice::Task { raw: params, on_own_stream });
                }
            }
            "notifications/tasks/partial" => {
                if let NotificationParams { task: Some(task), seq: Some(seq), content: Some(content), .. } = notified {
                    self.push_to_task(&task, &Notice::Chunk { seq, content, on_own_stream });
                }
            }
            "notifications/cancelled" => {
                if let Some(id) = notified.request {
                    let state = self.lock();
                    for inbox in state.by_task.values().flatten().chain(&state.calls) {
                        inbox.push(Notice::QuestionWithdrawn { id: id.clone(), session });
                    }
                }
            }
            _ => {}
        }
    }

    /// Routes a question to a call that can answer it; false if there is none.
    pub(super) fn route_question(&self, task: Option<&str>, notice: Notice, owner: Option<&Arc<Inbox>>) -> bool {
        if let Some(task) = task {
            let known = self.lock().by_task.contains_key(task);
            return self.push_to_task(task, &notice) || (!known && owner.is_some_and(|owner| owner.push(notice)));
        }
        let state = self.lock();
        owner.or(state.calls.last()).is_some_and(|inbox| inbox.push(notice))
    }

    /// Pushes a notice to the calls that watch the task, or keeps it for a call that may become the task.
    fn push_to_task(&self, task: &str, notice: &Notice) -> bool {
        let mut state = self.lock();
        if let Some(inboxes) = state.by_task.get(task) {
            for inbox in inboxes {
                inbox.push(notice.clone());
            }
            return true;
        }
        if state.calls.is_empty() {
            return false;
        }
        let mut bytes: usize = state.early.iter().map(|(_, notice)| notice.size()).sum();
        while state.early.len() >= EARLY_MAX || bytes + notice.size() > self.buffer {
            let Some((_, gone)) = state.early.pop_front() else { break };
            bytes -= gone.size();
        }
        state.early.push_back((task.to_owned(), notice.clone()));
        true
    }
}
