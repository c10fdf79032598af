//! The modern era (2026-07-28): requests without sessions, tasks as an extension.

mod call;
mod headers;
mod listen;
mod watch;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use taskwire_core::{Payload, wire::code};

pub(crate) use self::{
    call::{drive, progress},
    listen::ListenStream,
    watch::attach,
};
use super::{
    Chunk, Era, Error, Outcome, Question, ServerInfo, Status, TaskPage, TaskSnapshot, ToolInfo,
    event::ToolResult,
    link::{self, CancelOnDrop, Link, RequestError},
    tools::ToolCache,
    wire::{Exchange, OutgoingRequest},
};

pub(crate) const VERSION: &str = "2026-07-28";
pub(crate) const TASKS: &str = "io.modelcontextprotocol/tasks";
pub(crate) const PARTIALS: &str = "dev.taskwire/partials";
pub(crate) const IDEMPOTENCY: &str = "dev.taskwire/idempotency";
const LIST: &str = "dev.taskwire/list";
const LIST_TASKS: &str = "dev.taskwire/tasks/list";
const READ: &str = "dev.taskwire/partials/read";
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
/// How often a server may refuse the version that it says it speaks.
const REFUSALS_MAX: usize = 3;

/// A connection to a server of this era.
pub(crate) struct ModernClient {
    pub(crate) link: Arc<Link>,
    pub(crate) server_info: Mutex<Arc<ServerInfo>>,
    pub(crate) tools: ToolCache,
    pub(crate) listen_stream: ListenStream,
}

pub(crate) enum ProbeResult {
    Modern(Box<ServerInfo>),
    /// Why it does not look like a server of this era.
    NotModern(String),
}

/// Asks a server with `server/discover` whether it speaks this era.
pub(crate) async fn probe(link: &Link) -> Result<ProbeResult, RequestError> {
    for _ in 0..REFUSALS_MAX {
        let answer = async {
            let id = link.next_id();
            let mut outgoing = outgoing(link, id, "server/discover", Map::new(), None, Vec::new());
            // A server that does not know the method would not know what is cancelled, either.
            outgoing.cancel = None;
            let mut exchange = link.wire.request(outgoing).await?;
            link::read_response(&mut exchange, id, |_| {}).await
        };
        match answer.await {
            Ok(result) => return read_discovery(link, &result),
            Err(RequestError::Rpc(error)) => match link::supported_versions(&error) {
                // It lists this very version, so it may still be starting: try again.
                Some(versions) if versions.iter().any(|version| version == VERSION) => {}
                Some(versions) => return Err(Error::Version { server: link.server.clone(), supported: versions.join(", ") }.into()),
                None if matches!(error.code, code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION) => {
                    return Err(RequestError::Rpc(error));
                }
                // Drafts had other codes for a missing capability.
                None if link::error_data(&error, "requiredCapabilities").is_some_and(|needed| needed.is_object()) => {
                    return Err(RequestError::Rpc(error));
                }
                // This error says nothing about the era.
                None if matches!(error.code, code::UNAVAILABLE) => return Err(RequestError::Rpc(error)),
                None => return Ok(ProbeResult::NotModern(error.message)),
            },
            Err(RequestError::Wire(super::wire::WireError::Status { status, reason, .. }))
                if (400..500).contains(&status) && !matches!(status, 408 | 425 | 429) =>
            {
                return Ok(ProbeResult::NotModern(format!("HTTP status {status} {reason}").trim().to_owned()));
            }
            Err(failed) => return Err(failed),
        }
    }
    Err(RequestError::Protocol(format!("it refuses version {VERSION} and says that it speaks it")))
}

fn read_discovery(link: &Link, result: &Payload) -> Result<ProbeResult, RequestError> {
    let value: Value = result.read().unwrap_or_default();
    let Some(versions) = value["supportedVersions"].as_array() else {
        return Ok(ProbeResult::NotModern("it does not say which versions it speaks".to_owned()));
    };
    let versions: Vec<&str> = versions.iter().filter_map(Value::as_str).collect();
    if !versions.contains(&VERSION) {
        if versions.iter().any(|version| super::legacy::VERSIONS.contains(version)) {
            return Ok(ProbeResult::NotModern(format!("it does not speak {VERSION}")));
        }
        return Err(Error::Version { server: link.server.clone(), supported: versions.join(", ") }.into());
    }
    let info = [&value["_meta"][SERVER_INFO], &value["serverInfo"]].into_iter().find(|info| info.is_object()).cloned().unwrap_or_default();
    let extensions = &value["capabilities"]["extensions"];
    Ok(ProbeResult::Modern(Box::new(ServerInfo {
        era: Era::Modern,
        protocol: VERSION.to_owned(),
        name: info["name"].as_str().unwrap_or_default().to_owned(),
        version: info["version"].as_str().unwrap_or_default().to_owned(),
        instructions: value["instructions"].as_str().map(str::to_owned),
        tasks: extensions[TASKS].is_object(),
        pushes_output: extensions[PARTIALS].is_object(),
        idempotency: extensions[IDEMPOTENCY].is_object(),
        lists_tasks: extensions[LIST].is_object(),
        response_modes: Vec::new(),
        capabilities: value["capabilities"].clone(),
    })))
}

/// Builds a request with the version, client info and capabilities that each must carry.
fn outgoing(
    link: &Link,
    id: i64,
    method: &str,
    mut params: Map<String, Value>,
    name: Option<&str>,
    more: Vec<(String, String)>,
) -> OutgoingRequest {
    let options = &link.options;
    let mut capabilities = options.capabilities.to_json();
    capabilities["extensions"] = json!({TASKS: {}, IDEMPOTENCY: {}, LIST: {}});
    if options.stream_output {
        capabilities["extensions"][PARTIALS] = json!({});
    }
    let meta = params.entry("_meta").or_insert_with(|| json!({}));
    meta["io.modelcontextprotocol/protocolVersion"] = json!(VERSION);
    meta["io.modelcontextprotocol/clientInfo"] = json!({"name": options.name, "version": options.version});
    meta["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    options.add_trace(meta);
    let mut headers = vec![("MCP-Protocol-Version".to_owned(), VERSION.to_owned()), ("Mcp-Method".to_owned(), method.to_owned())];
    headers.extend(name.map(|name| ("Mcp-Name".to_owned(), headers::value(name))));
    headers.extend(more);
    let cancel = link::cancel_notification(id, &params);
    OutgoingRequest { id, body: link::request(id, method, &params), headers, cancel: Some(cancel), generation: None }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Whether a tool can be called over HTTP: its header annotations must be valid.
fn has_sound_headers(tool: &Value) -> bool {
    let sound = headers::of_schema(&tool["inputSchema"]).is_ok();
    if !sound {
        tracing::warn!(tool = %tool["name"], "the tool is left out: its `x-mcp-header` annotations are not allowed");
    }
    sound
}

/// A page of `dev.taskwire/partials/read`.
#[derive(Deserialize)]
pub(crate) struct OutputPage {
    #[serde(default)]
    pub(crate) chunks: Vec<Chunk>,
    #[serde(default, rename = "fromSeq")]
    pub(crate) from: Option<u64>,
    #[serde(default)]
    pub(crate) done: bool,
}

impl ModernClient {
    pub(crate) fn new(link: Arc<Link>, peer: ServerInfo) -> Arc<Self> {
        let modern = Arc::new(Self {
            link,
            server_info: Mutex::new(Arc::new(peer)),
            tools: ToolCache::default(),
            listen_stream: ListenStream::default(),
        });
        modern.listen_stream.belongs_to(&modern);
        modern
    }

    pub(crate) fn server_info(&self) -> Arc<ServerInfo> {
        self.server_info.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the client wants output and the server streams it.
    pub(crate) fn streams(&self) -> bool {
        self.link.options.stream_output && self.server_info().pushes_output
    }

    async fn send(&self, id: i64, method: &str, params: Map<String, Value>, name: Option<&str>) -> Result<Exchange, RequestError> {
        Ok(self.link.wire.request(outgoing(&self.link, id, method, params, name, Vec::new())).await?)
    }

    /// Cancels a call when it is dropped. Closing the stream cancels it, too, unless the server knows idempotency keys: then it keeps
    /// the call, which the client may send again.
    fn cancel_on_drop(&self, cancelled: String) -> CancelOnDrop {
        let link = self.link.clone();
        let mut on_drop = CancelOnDrop::new(&self.link, async move {
            let headers = [("MCP-Protocol-Version", VERSION), ("Mcp-Method", "notifications/cancelled")];
            let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
            let _ = link.wire.send_one_way(cancelled, headers, None).await;
        });
        if !self.server_info().idempotency {
            on_drop.disarm();
        }
        on_drop
    }

    /// Sends a request until there is a response. Only for requests that may be repeated.
    pub(crate) async fn request(&self, method: &str, params: Value, name: Option<&str>) -> Result<Payload, RequestError> {
        self.link.retry(|| request_once(&self.link, method, params.clone(), name, Duration::ZERO), |_, _| {}).await
    }

    pub(crate) async fn list_tools(&self) -> Result<Arc<Vec<ToolInfo>>, Error> {
        if let Some(known) = self.tools.fresh(self.link.options.clock.now()) {
            return Ok(known);
        }
        // Only HTTP carries arguments as headers.
        let is_sound: fn(&Value) -> bool = if self.link.wire.http().is_some() { has_sound_headers } else { |_| true };
        self.tools.list(&self.link, Era::Modern, is_sound, |params| self.request("tools/list", params, None)).await
    }

    pub(crate) async fn task(&self, id: &str) -> Result<TaskSnapshot, Error> {
        let result = self.request("tasks/get", json!({"taskId": id}), Some(id)).await.map_err(|failed| self.link.task_error(id, failed))?;
        read_snapshot_of(id, &result).map_err(|failed| self.link.error(failed))
    }

    pub(crate) async fn list_tasks(&self, cursor: Option<&str>) -> Result<TaskPage, Error> {
        let params = cursor.map_or_else(|| json!({}), |cursor| json!({"cursor": cursor}));
        let page = self.request(LIST_TASKS, params, None).await.map_err(|failed| self.link.error(failed))?;
        TaskPage::read(&page, "ttlMs", "pollIntervalMs").map_err(|reason| self.link.error(RequestError::Protocol(reason)))
    }

    pub(crate) async fn cancel(&self, id: &str) -> Result<(), Error> {
        self.request("tasks/cancel", json!({"taskId": id}), Some(id)).await.map(drop).map_err(|failed| self.link.task_error(id, failed))
    }

    pub(crate) async fn update(&self, id: &str, key: &str, answer: &Value) -> Result<(), Error> {
        let params = json!({"taskId": id, "inputResponses": {key: answer}});
        self.request("tasks/update", params, Some(id)).await.map(drop).map_err(|failed| self.link.task_error(id, failed))
    }
}

/// Sends a request once. The timeout is that of a request without work, and `wait`.
async fn request_once(link: &Link, method: &str, params: Value, name: Option<&str>, wait: Duration) -> Result<Payload, RequestError> {
    let asking = async {
        let id = link.next_id();
        let mut exchange = link.wire.request(outgoing(link, id, method, object(params), name, Vec::new())).await?;
        let result = link::read_response(&mut exchange, id, |_| {}).await?;
        complete(method, &result).map(|()| result)
    };
    link.with_timeout(link.options.timing.request.saturating_add(wait), asking).await
}

/// Reads a page of output from chunk `from` on; the server waits up to `wait` for the first. Taskwire servers accept this request
/// from clients of the legacy era, too.
pub(crate) async fn read_output(link: &Link, id: &str, from: u64, wait: Duration) -> Result<OutputPage, RequestError> {
    let mut params = json!({"taskId": id, "fromSeq": from});
    if !wait.is_zero() {
        params["waitMs"] = json!(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    }
    let page = request_once(link, READ, params, Some(id), wait).await?;
    page.read().map_err(|error| RequestError::Protocol(format!("a page of output cannot be read: {error}")))
}

/// Checks that a result is of type `complete`: only calls have other types. For `tasks/get` the extension's text says
/// `complete`, but its examples say `task`.
fn complete(method: &str, result: &Payload) -> Result<(), RequestError> {
    match result_type(result)?.as_str() {
        "complete" => Ok(()),
        "task" if method == "tasks/get" => Ok(()),
        other => Err(RequestError::Protocol(format!("a result of type `{other}` where none can be"))),
    }
}

fn result_type(result: &Payload) -> Result<String, RequestError> {
    #[derive(Deserialize)]
    struct Typed {
        #[serde(default, rename = "resultType")]
        kind: Option<String>,
    }
    let typed: Typed = result.read().map_err(|error| RequestError::Protocol(format!("a result that cannot be read: {error}")))?;
    Ok(typed.kind.unwrap_or_else(|| "complete".to_owned()))
}

/// Reads a snapshot and checks that it is of task `id`.
fn read_snapshot_of(id: &str, raw: &Payload) -> Result<TaskSnapshot, RequestError> {
    let snapshot = read_snapshot(raw).map_err(RequestError::Protocol)?;
    if snapshot.id != id {
        return Err(RequestError::Protocol(format!("it was asked for task `{id}` and told of `{}`", snapshot.id)));
    }
    Ok(snapshot)
}

/// Reads a task with its questions or its outcome.
pub(crate) fn read_snapshot(raw: &Payload) -> Result<TaskSnapshot, String> {
    let mut task = TaskSnapshot::read(raw, "ttlMs", "pollIntervalMs")?;
    match task.status {
        Status::InputRequired => {
            // Kept as text: a form's fields keep their order.
            #[derive(Deserialize)]
            struct Asking {
                #[serde(rename = "inputRequests")]
                requests: BTreeMap<String, Payload>,
            }
            let asking: Asking = raw.read().map_err(|_| "a task that waits for answers has no `inputRequests`")?;
            task.questions = asking.requests.into_iter().map(|(key, request)| Question::read(&key, request)).collect::<Result<_, _>>()?;
        }
        Status::Completed => {
            let result = task.raw.get("result").filter(|result| result.is_object()).ok_or("a task that is completed has no `result`")?;
            task.outcome = Some(Outcome::Result(ToolResult::read(Payload::from(result.clone()))?));
        }
        Status::Failed => {
            let error = task.raw.get("error").cloned().ok_or("a task that failed has no `error`")?;
            let error = serde_json::from_value(error).map_err(|error| format!("the error of a task cannot be read: {error}"))?;
            task.outcome = Some(Outcome::Failed(error));
        }
        Status::Cancelled => task.outcome = Some(Outcome::Cancelled { message: task.message.clone() }),
        Status::Working => {}
    }
    Ok(task)
}
