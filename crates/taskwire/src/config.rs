//! All settings of a server, with their defaults.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

#[cfg(feature = "traces")]
use crate::traces::Traces;
use crate::{
    auth::{Authenticate, Callers},
    engine,
};

/// How a server behaves.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its name, as clients see it.
    pub name: String,
    /// Its version, as clients see it.
    pub version: String,
    /// What a model should know about its tools.
    pub instructions: Option<String>,
    /// Settings of the engine: limits of tasks, grace period, queue.
    pub engine: engine::Config,
    /// How long a caller waits before its call becomes a task.
    pub promote_after: Duration,
    /// How long the call of a client without tasks is held, before the response says that the work goes on and how to get its result
    /// (`followups`). Zero: not at all, unless the result is there at once.
    pub hold: Duration,
    /// Whether clients without tasks get the follow-up tools (`task_wait`, `task_output`, `task_answer`, `task_cancel`, `task_list`), to
    /// continue calls whose hold expired. If not, their calls wait until the result is there.
    pub followups: bool,
    /// How long a call goes on whose client hung up before it was answered. Meanwhile the same call by the same caller joins it, and the
    /// time starts again. Zero: it stops at once; `Duration::MAX`: it goes on to its end.
    pub linger: Duration,
    /// About how many bytes of output one result of the follow-up tools has.
    pub inline_bytes: usize,
    /// How often a client should poll a task, at first; five times as long for long tasks.
    pub poll_interval: Duration,
    /// How long a task is kept after its end; for ever if absent.
    pub retention: Option<Duration>,
    /// How long a task waits for an answer; for ever if absent.
    pub answer_timeout: Option<Duration>,
    /// How often the work of a task may be started, the first time included.
    pub attempts_max: u64,
    /// How long running work may go on after the server began to shut down.
    pub drain: Duration,
    /// Entries of one page of a list.
    pub page_len: usize,
    /// How long clients may cache lists.
    pub list_ttl: Duration,
    /// Open listen streams of one caller, the streams of its sessions included.
    pub streams_per_caller: usize,
    /// Tasks and resources that one listen stream may name, and resources that a session may subscribe to.
    pub subscriptions_per_stream: usize,
    /// Requests of one caller that may wait at one time.
    pub waiting_requests_per_caller: usize,
    /// How long a request may wait for a change.
    pub wait_max: Duration,
    /// Whether a poll that comes too early waits until something changed, or the poll interval is over.
    pub long_poll: bool,
    /// About how many bytes of output one response has. The rest of a task that has ended comes at once (SEP-1905).
    pub read_bytes: usize,
    /// Requests in flight on one byte stream.
    pub requests_per_stream: usize,
    /// The longest message, in bytes.
    pub body_bytes: usize,
    /// Who may call.
    pub auth: Arc<dyn Authenticate>,
    /// Settings of HTTP.
    pub http: HttpConfig,
    /// Whether callers can read `/metrics`, which says what the server counts.
    pub metrics: bool,
    /// Whether browsers get the dashboard at `/`. What it shows comes from requests that [`Config::auth`] decides about.
    pub dashboard: bool,
    /// Where traces are sent; nowhere if absent.
    #[cfg(feature = "traces")]
    pub traces: Option<Traces>,
    /// Settings for clients that open a session.
    pub legacy: LegacyConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "taskwire".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instructions: None,
            engine: engine::Config::default(),
            promote_after: Duration::from_secs(1),
            hold: Duration::from_secs(45),
            followups: true,
            linger: Duration::from_secs(600),
            inline_bytes: 32 * 1024,
            poll_interval: Duration::from_secs(1),
            retention: Some(Duration::from_secs(3600)),
            answer_timeout: Some(Duration::from_secs(24 * 3600)),
            attempts_max: 10,
            drain: Duration::from_secs(10),
            page_len: 250,
            list_ttl: Duration::from_secs(60),
            streams_per_caller: 100,
            subscriptions_per_stream: 1_000,
            waiting_requests_per_caller: 1_000,
            wait_max: Duration::from_secs(30),
            long_poll: true,
            read_bytes: 1024 * 1024,
            requests_per_stream: 1_000,
            body_bytes: 4 * 1024 * 1024,
            auth: Arc::new(Callers::default()),
            http: HttpConfig::default(),
            metrics: true,
            dashboard: true,
            #[cfg(feature = "traces")]
            traces: None,
            legacy: LegacyConfig::default(),
        }
    }
}

/// The response to a call that may become a task (SEP-1905).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ResponseMode {
    /// A task.
    Task,
    /// The output, part by part.
    Streaming,
    /// The result.
    Immediate,
}

/// What the first response to a streamed call contains (SEP-1905).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum FirstAnswer {
    /// The task, and the output so far.
    #[default]
    Both,
    /// The task alone.
    Task,
    /// The output so far; only `_meta` names the task.
    Partial,
}

/// How a server behaves towards clients of 2025-11-25 and before, which open a session.
#[derive(Debug, Clone)]
pub struct LegacyConfig {
    /// The response modes for clients that declare them; a task is always possible.
    pub modes: Vec<ResponseMode>,
    /// What the first response to a streamed call contains.
    pub initial: FirstAnswer,
    /// Whether a call that is answered with its result is recorded as a task.
    pub record_immediate: bool,
    /// Whether callers may list their tasks.
    pub list_tasks: bool,
    /// Sessions of one caller; one more ends the one that was idle longest.
    pub sessions_per_caller: usize,
    /// How long a session may be idle before it ends.
    pub session_idle: Duration,
    /// How long a client should wait before it resumes a stream.
    pub retry: Duration,
    /// How long a stream may last before its client has to reconnect; for ever if absent.
    pub reconnect_after: Option<Duration>,
}

impl Default for LegacyConfig {
    fn default() -> Self {
        Self {
            modes: vec![ResponseMode::Task, ResponseMode::Immediate, ResponseMode::Streaming],
            initial: FirstAnswer::default(),
            record_immediate: false,
            list_tasks: true,
            sessions_per_caller: 1_000,
            session_idle: Duration::from_secs(24 * 3600),
            retry: Duration::from_secs(1),
            reconnect_after: None,
        }
    }
}

/// How a server behaves on HTTP.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Names by which clients may address it (`Host`), besides this machine's own; `*` allows any.
    pub allowed_hosts: Vec<String>,
    /// Web pages that may use it (`Origin`), besides this machine's own; `*` allows any.
    pub allowed_origins: Vec<String>,
    /// Refuses task requests without `Mcp-Name`, which the protocol demands but some clients leave out.
    pub strict_headers: bool,
    /// Connections at one time. One more closes the one that has been idle longest: on which no request is being answered. If none is
    /// idle, it is refused with 503.
    pub connections: usize,
    /// Idle connections at one time; one more closes the one that was idle longest.
    pub idle_connections: usize,
    /// About how many bytes the first line and the headers of a request may have together; at least 8 KiB.
    pub head_bytes: usize,
    /// Bytes of all messages together that are being read or answered; at least one message ([`Config::body_bytes`]). The first 4 KiB of
    /// each do not count. If callers need tokens, one of them can have half of it.
    pub all_bodies_bytes: usize,
    /// How often an idle stream is sent a comment.
    pub keep_alive: Duration,
    /// How long a client may take to send a request.
    pub read_timeout: Duration,
    /// How long a client may read nothing before its connection is closed.
    pub write_timeout: Duration,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            strict_headers: false,
            connections: 10_000,
            idle_connections: 4_000,
            head_bytes: 16 * 1024,
            all_bodies_bytes: 48 * 1024 * 1024,
            keep_alive: Duration::from_secs(15),
            read_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(60),
        }
    }
}
