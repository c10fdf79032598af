//! `/api`: what operators see and do, as plain JSON. The same requests come over HTTP and through the control socket of the program.
//!
//! An admin sees the tasks of all callers. Anybody else sees only their own: a task of somebody else is like one that never was, as in
//! every method (invariant I9).

mod caller;
mod log;
mod query;
mod server_state;
mod task_object;

use std::{borrow::Cow, sync::Arc};

use serde::Serialize;
use serde_json::value::to_raw_value;
use taskwire_core::{
    CallerId, Seq, TaskId, Version,
    task::{Authority, Command, Reject, Task},
};

use self::{
    caller::CallerObject,
    log::LogPage,
    query::{Query, TaskFilter},
    server_state::{Draining, ServerState},
    task_object::{Cancelled, OutputPage, TaskObject, TaskPage},
};
use super::{Context, Fault, Reply};
use crate::{
    audit::{self, AuditAction, AuditEntry, shortened},
    auth::Identity,
    engine::{self, Engine, Receipt, skip_corrupt},
    store::{Cursor, LogItem},
};

/// Where it is.
pub(crate) const PREFIX: &str = "/api/";
/// Tasks that are read for one page of a list at most: what does not fit the filter counts, too.
const LOOKED_AT_MAX: usize = 200;
/// Ids of tasks that are read at once.
const BATCH: usize = 100;

/// A request, and what only the transport knows.
#[derive(Debug)]
pub(crate) struct ApiRequest<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
    /// Open connections.
    pub(crate) connections: usize,
}

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
struct ApiError {
    status: u16,
    message: String,
}

impl ApiError {
    fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// The same for a task that never was, and for one of somebody else.
    fn no_task() -> Self {
        Self::new(404, "there is no such task")
    }
}

impl From<engine::Error> for ApiError {
    fn from(error: engine::Error) -> Self {
        let status = match &error {
            engine::Error::Rejected(Reject::NotFound) => return Self::no_task(),
            engine::Error::Rejected(_) => 409,
            engine::Error::Unavailable(_) | engine::Error::Away | engine::Error::Full => 503,
            engine::Error::Corrupt(_) => 500,
        };
        Self::new(status, error.to_string())
    }
}

impl From<Fault> for ApiError {
    fn from(fault: Fault) -> Self {
        Self::new(fault.status, fault.error.message)
    }
}

impl From<serde_json::Error> for ApiError {
    fn from(error: serde_json::Error) -> Self {
        Self::new(500, format!("the answer could not be written: {error}"))
    }
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation<'a> {
    ServerState,
    Drain,
    Tasks,
    Task(&'a str),
    Output(&'a str),
    Log(&'a str),
    Cancel(&'a str),
    Caller,
}

impl<'a> Operation<'a> {
    fn of(method: &str, path: &'a str) -> Result<Self, ApiError> {
        let parts: Vec<&str> = path.strip_prefix(PREFIX).unwrap_or_default().split('/').collect();
        let (operation, allowed) = match parts[..] {
            ["server"] => (Self::ServerState, "GET"),
            ["server", "drain"] => (Self::Drain, "POST"),
            ["tasks"] => (Self::Tasks, "GET"),
            ["tasks", id] => (Self::Task(id), "GET"),
            ["tasks", id, "output"] => (Self::Output(id), "GET"),
            ["tasks", id, "log"] => (Self::Log(id), "GET"),
            ["caller"] => (Self::Caller, "GET"),
            ["tasks", id, "cancel"] => (Self::Cancel(id), "POST"),
            _ => return Err(ApiError::new(404, "nothing here: there are /api/server, /api/tasks and /api/caller")),
        };
        match method {
            "HEAD" if allowed == "GET" => Ok(operation),
            method if method == allowed => Ok(operation),
            _ => Err(ApiError::new(405, format!("use {allowed}"))),
        }
    }

    /// The method of the protocol that does the same: whoever may not call that may not do this. Without one it is for admins alone.
    fn method(self) -> Option<&'static str> {
        match self {
            Self::ServerState | Self::Drain => None,
            // For whoever may ask anything at all.
            Self::Caller => Some(""),
            Self::Tasks => Some("tasks/list"),
            Self::Task(_) | Self::Output(_) | Self::Log(_) => Some("tasks/get"),
            Self::Cancel(_) => Some("tasks/cancel"),
        }
    }
}

/// The response to a request of this caller.
pub(crate) async fn respond(context: &Context, request: ApiRequest<'_>) -> Reply {
    let api = Api { context, caller: &request.identity.caller, is_admin: context.is_admin(request.identity) };
    let operation = match Operation::of(request.method, request.path) {
        Ok(operation) => operation,
        Err(error) => return refusal(&error),
    };
    if !api.is_admin {
        let Some(method) = operation.method() else {
            context.engine.audit(AuditAction::Refused, |entry| AuditEntry {
                caller: Some(api.caller.clone()),
                outcome: format!("{} is for admins", shortened(request.path)).into(),
                ..entry
            });
            return refusal(&ApiError::new(403, "this is for admins: a token can have `admin = true`, or the scope `auth.admin_scope`"));
        };
        if let Err(fault) = context.authorize(request.identity, method, None) {
            return Reply::fault(None, &fault);
        }
    }
    api.carry_out(operation, &request).await.unwrap_or_else(|error| refusal(&error))
}

/// An error, in the place where the errors of JSON-RPC have theirs.
fn refusal(error: &ApiError) -> Reply {
    json(error.status, &serde_json::json!({ "error": { "message": error.message } })).unwrap_or_else(|error| refusal_to_write(&error))
}

fn refusal_to_write(error: &ApiError) -> Reply {
    Reply::fault(None, &Fault::new(error.status, taskwire_core::wire::code::INTERNAL_ERROR, error.message.clone()))
}

fn json<T: Serialize + ?Sized>(status: u16, value: &T) -> Result<Reply, ApiError> {
    Ok(Reply::new(status, serde_json::to_vec(value)?))
}

/// Records what an admin did with a task of somebody else.
fn record(engine: &Engine, action: AuditAction, admin: &CallerId, task: &Task, outcome: impl Into<Cow<'static, str>>) {
    engine.audit(action, |entry| AuditEntry {
        caller: Some(admin.clone()),
        task: Some(task.id),
        tool: Some(task.spec.tool.clone()),
        outcome: outcome.into(),
        ..entry
    });
}

/// Cancels a task of somebody else for an admin.
async fn cancel_and_record(engine: Engine, admin: CallerId, task: Arc<Task>) -> Result<Receipt, engine::Error> {
    let cancelled = engine.cancel_for_admin(task.id, "cancelled by an operator").await;
    let outcome: Cow<'static, str> = match &cancelled {
        Ok(receipt) if receipt.changed => "done".into(),
        Ok(_) => "unchanged".into(),
        Err(error) => error.in_a_few_words(),
    };
    record(&engine, AuditAction::Cancel, &admin, &task, outcome);
    cancelled
}

/// What a caller may see and do.
struct Api<'a> {
    context: &'a Context,
    caller: &'a CallerId,
    is_admin: bool,
}

impl Api<'_> {
    async fn carry_out(&self, operation: Operation<'_>, request: &ApiRequest<'_>) -> Result<Reply, ApiError> {
        let query = Query::parse(request.query)?;
        match operation {
            Operation::ServerState => {
                query.takes(&[])?;
                json(200, &ServerState::read(self.context, request.connections).await)
            }
            Operation::Drain => {
                query.takes(&[])?;
                self.drain()
            }
            Operation::Tasks => {
                let filter = TaskFilter::read(&query)?;
                self.tasks(filter).await
            }
            Operation::Task(id) => {
                query.takes(&[])?;
                let task = self.read(id).await?;
                json(200, &TaskObject::whole(&task))
            }
            Operation::Output(id) => {
                query.takes(&["from"])?;
                let from = query.number("from")?.unwrap_or_default();
                self.output(id, Seq(from)).await
            }
            Operation::Log(id) => {
                query.takes(&["after"])?;
                let after = query.number("after")?.unwrap_or_default();
                let task = self.read(id).await?;
                json(200, &LogPage::read(&self.context.engine, task.id, Version(after)).await?)
            }
            Operation::Caller => {
                query.takes(&[])?;
                json(200, &CallerObject::of(self.context, request.identity, self.is_admin))
            }
            Operation::Cancel(id) => {
                query.takes(&[])?;
                self.cancel(id).await
            }
        }
    }

    /// The task of this id, if the caller may see it.
    async fn find(&self, id: &str) -> Result<Arc<Task>, ApiError> {
        let id: TaskId = id.parse().map_err(|_| ApiError::no_task())?;
        let engine = &self.context.engine;
        let task = if self.is_admin { engine.any_task(id).await? } else { engine.task(self.caller, id).await? };
        task.ok_or_else(ApiError::no_task)
    }

    /// The same, to show what is in it.
    async fn read(&self, id: &str) -> Result<Arc<Task>, ApiError> {
        let task = self.find(id).await?;
        if task.spec.caller != *self.caller {
            record(&self.context.engine, AuditAction::ReadOther, self.caller, &task, "done");
        }
        Ok(task)
    }

    /// A page of tasks, the latest first. How many are read for it is bounded, so it may have fewer than there could be, and a cursor.
    async fn tasks(&self, mut filter: TaskFilter) -> Result<Reply, ApiError> {
        if !self.is_admin && filter.caller.get_or_insert_with(|| self.caller.clone()) != self.caller {
            return Err(ApiError::new(403, "only an admin lists the tasks of other callers"));
        }
        self.context.admit_to_memory()?;
        let engine = &self.context.engine;
        let (mut tasks, mut looked_at, mut before) = (Vec::new(), 0, filter.before);
        loop {
            let ids = self.ids(&filter, before).await?;
            for id in &ids {
                if tasks.len() >= filter.limit || looked_at >= LOOKED_AT_MAX {
                    return json(200, &TaskPage::new(tasks, before));
                }
                (looked_at, before) = (looked_at + 1, Some(*id));
                // A task can have a large result: of each only what a list shows is kept.
                if let Some(task) = skip_corrupt(engine.any_task(*id).await)?.filter(|task| filter.fits(task)) {
                    tasks.push(to_raw_value(&TaskObject::short(&task))?);
                }
                // A store may answer at once each time, and others have their turn meanwhile.
                tokio::task::yield_now().await;
            }
            if ids.len() < BATCH {
                return json(200, &TaskPage::new(tasks, None));
            }
        }
    }

    async fn ids(&self, filter: &TaskFilter, before: Option<TaskId>) -> Result<Vec<TaskId>, engine::Error> {
        let reader = self.context.engine.reader();
        let ids = match &filter.caller {
            Some(caller) => reader.tasks_of(caller, before, BATCH).await,
            None => reader.latest_tasks(filter.is_for_open(), before, BATCH).await,
        };
        Ok(ids?)
    }

    /// The chunks from this one on, as many as one response has.
    async fn output(&self, id: &str, from: Seq) -> Result<Reply, ApiError> {
        let (id, config) = (self.read(id).await?.id, &self.context.config);
        let page = self.context.engine.page(id, Cursor::output(from, config.read_bytes)).await?.ok_or_else(ApiError::no_task)?;
        let (has_more, has_ended) = (page.more, page.ended);
        let chunks: Vec<_> = page.items.into_iter().filter_map(LogItem::into_chunk).collect();
        json(200, &OutputPage::new(&chunks, from, has_more, has_ended))
    }

    async fn cancel(&self, id: &str) -> Result<Reply, ApiError> {
        let (task, engine) = (self.find(id).await?, &self.context.engine);
        let receipt = if task.spec.caller == *self.caller {
            let command = Command::Cancel { reason: Some("cancelled by its caller".into()) };
            engine.submit(task.id, Authority::Caller(self.caller.clone()), command).await?
        } else {
            tracing::info!(admin = self.caller.as_str(), caller = task.spec.caller.as_str(), task = %task.id, "cancelled by an admin");
            // Spawned, so that it is recorded also if the admin hangs up meanwhile.
            let cancelling = cancel_and_record(engine.clone(), self.caller.clone(), task);
            let cancelled = tokio::spawn(audit::sent_from(audit::sender(), cancelling)).await;
            cancelled.map_err(|_| ApiError::new(500, "the task could not be cancelled"))??
        };
        json(200, &Cancelled { changed: receipt.changed, task: TaskObject::short(&receipt.task) })
    }

    fn drain(&self) -> Result<Reply, ApiError> {
        let Context { drain_requested, draining, engine, .. } = self.context;
        let is_known = *draining.borrow() || *drain_requested.borrow();
        if !is_known {
            if drain_requested.receiver_count() == 0 {
                return Err(ApiError::new(409, "this server can only be ended by the program that it is a part of"));
            }
            tracing::info!(admin = self.caller.as_str(), "an admin wants this server to drain");
            engine.audit(AuditAction::Drain, |entry| AuditEntry { caller: Some(self.caller.clone()), ..entry });
            drain_requested.send_replace(true);
        }
        json(202, &Draining { draining: true, running: engine.running() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_method() {
        let of = |method, path| Operation::of(method, path).map_err(|error| error.status);
        assert_eq!(of("GET", "/api/server"), Ok(Operation::ServerState));
        assert_eq!(of("HEAD", "/api/tasks"), Ok(Operation::Tasks));
        assert_eq!(of("GET", "/api/tasks/x/output"), Ok(Operation::Output("x")));
        assert_eq!(of("GET", "/api/tasks/x/log"), Ok(Operation::Log("x")));
        assert_eq!(of("GET", "/api/caller"), Ok(Operation::Caller));
        assert_eq!(of("POST", "/api/tasks/x/cancel"), Ok(Operation::Cancel("x")));
        for (method, path) in
            [("POST", "/api/server"), ("GET", "/api/server/drain"), ("HEAD", "/api/tasks/x/cancel"), ("DELETE", "/api/tasks/x")]
        {
            assert_eq!(of(method, path), Err(405), "{method} {path}");
        }
        for path in ["/api/", "/api/tasks/", "/api/tasks/x/y", "/api/server/", "/apix/server", "server"] {
            // An id can be any text, also none.
            let expected = if path == "/api/tasks/" { Ok(Operation::Task("")) } else { Err(404) };
            assert_eq!(of("GET", path), expected, "{path}");
        }
    }
}
