//! The options of a client: identity, capabilities, limits, timing, credentials, and who answers questions.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use taskwire_core::TraceContext;

use super::{Answer, CallRecorder, Era, Error, Question};
use crate::clock::{Clock, SystemClock};

/// How a client behaves. The defaults suit a person at a terminal.
#[derive(Clone)]
pub struct Options {
    /// What the client calls itself.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The era to speak; the client probes the server if absent.
    pub era: Option<Era>,
    /// A session of the legacy era that the client tries when its own session does not find a task: some servers show a task
    /// only to the session that started it.
    pub session: Option<String>,
    /// Who is calling.
    pub credentials: Option<Arc<dyn Credentials>>,
    /// Sent with each HTTP request.
    pub headers: Vec<(String, String)>,
    /// Certificates that are trusted besides those of the machine, in PEM.
    pub trusted_certificates: Option<Vec<u8>>,
    /// A certificate with its key, in PEM, that is shown to a server which asks for one.
    pub client_certificate: Option<Vec<u8>>,
    /// What a tool may ask the client for.
    pub capabilities: ClientCapabilities,
    /// Answers the questions of [`Client::call`](super::Client::call) and [`Call::finish`](super::Call::finish). Without it,
    /// the client answers "cancel".
    pub question_handler: Option<Arc<dyn QuestionHandler>>,
    /// Whether the client asks for output while the tool runs.
    pub stream_output: bool,
    /// Where in a trace the calls belong: sent with each, so that the server and its tools go on with the trace.
    pub trace: Option<TraceContext>,
    /// Keeps started tasks and sent answers; a `Ledger` (feature `ledger`) is one.
    pub ledger: Option<Arc<dyn CallRecorder>>,
    /// How much the client accepts.
    pub limits: Limits,
    /// How long the client waits.
    pub timing: Timing,
    /// The source of time.
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "taskwire".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            era: None,
            session: None,
            credentials: None,
            headers: Vec::new(),
            trusted_certificates: None,
            client_certificate: None,
            capabilities: ClientCapabilities::default(),
            question_handler: None,
            stream_output: true,
            trace: None,
            ledger: None,
            limits: Limits::default(),
            timing: Timing::default(),
            clock: Arc::new(SystemClock),
        }
    }
}

impl Options {
    /// Adds the place in a trace to the `_meta` of a request.
    pub(crate) fn add_trace(&self, meta: &mut Value) {
        if let Some(TraceContext { parent, state }) = &self.trace {
            meta["traceparent"] = parent.to_string().into();
            if let Some(state) = state {
                meta["tracestate"] = Value::from(&**state);
            }
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("name", &self.name).field("era", &self.era).finish_non_exhaustive()
    }
}

/// What a running tool may ask a client for.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientCapabilities {
    /// To fill in a form.
    pub form: bool,
    /// To visit a page.
    pub url: bool,
    /// A message of a language model.
    pub sampling: bool,
    /// The directories that it works in. The client answers with these by itself, without an event.
    pub roots: Option<Vec<Value>>,
}

impl Default for ClientCapabilities {
    fn default() -> Self {
        Self { form: true, url: true, sampling: false, roots: None }
    }
}

impl ClientCapabilities {
    /// The capabilities that both eras declare alike.
    pub(crate) fn to_json(&self) -> Value {
        let mut capabilities = json!({});
        let mut elicitation = json!({});
        for (name, there) in [("form", self.form), ("url", self.url)] {
            if there {
                elicitation[name] = json!({});
            }
        }
        if elicitation != json!({}) {
            capabilities["elicitation"] = elicitation;
        }
        if self.sampling {
            capabilities["sampling"] = json!({});
        }
        if self.roots.is_some() {
            capabilities["roots"] = json!({});
        }
        capabilities
    }
}

/// How much a client accepts. More is an error that says what to raise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one message.
    pub message_bytes: usize,
    /// Bytes of unread output for each call. The client drops more, and reads it from the server later where it can.
    pub buffer_bytes: usize,
    /// Tools of one server.
    pub tools: usize,
    /// Rounds of questions before the result of a call.
    pub rounds: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { message_bytes: 64 * 1024 * 1024, buffer_bytes: 16 * 1024 * 1024, tools: 10_000, rounds: 32 }
    }
}

/// How long a client waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// The timeout of a request that needs no work.
    pub request: Duration,
    /// The timeout of the probe on standard input, after which the client speaks the legacy era.
    pub probe: Duration,
    /// How long the client retries a server that does not respond, before it gives up.
    pub give_up_after: Duration,
    /// Between two polls of a task that the server also pushes.
    pub safety_poll: Duration,
    /// How long the server may wait for news before it responds to a poll.
    pub long_poll: Duration,
    /// The wait before the first retry; it doubles with each.
    pub backoff: Duration,
    /// The longest wait before a retry.
    pub backoff_max: Duration,
    /// The shortest time between two polls, whatever the server says.
    pub poll_min: Duration,
    /// The longest time between two polls.
    pub poll_max: Duration,
    /// How long a chunk that came too early waits for the ones before it, where the client cannot ask for those.
    pub reorder: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(60),
            probe: Duration::from_secs(5),
            give_up_after: Duration::from_secs(300),
            safety_poll: Duration::from_secs(30),
            long_poll: Duration::from_secs(20),
            backoff: Duration::from_millis(250),
            backoff_max: Duration::from_secs(10),
            poll_min: Duration::from_millis(100),
            poll_max: Duration::from_secs(60),
            reorder: Duration::from_secs(1),
        }
    }
}

/// Provides tokens that prove who is calling.
pub trait Credentials: fmt::Debug + Send + Sync {
    /// The token for the next request; none to send it without.
    fn bearer(&self) -> BoxFuture<'_, Result<Option<String>, Error>>;

    /// The server refused the request. True if the client should retry it, with another token.
    fn challenged<'a>(&'a self, challenge: &'a Challenge) -> BoxFuture<'a, Result<bool, Error>>;
}

/// How a server asked for a token, or for a better one.
#[derive(Clone, PartialEq, Eq)]
pub struct Challenge {
    /// The URL of the request.
    pub url: String,
    /// 401 or 403.
    pub status: u16,
    /// The `WWW-Authenticate` headers, joined.
    pub www_authenticate: Option<String>,
    /// The token that the server refused, if there was one.
    pub bearer: Option<String>,
}

impl fmt::Debug for Challenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Challenge").field("url", &self.url).field("status", &self.status).finish_non_exhaustive()
    }
}

/// A token that never changes.
#[derive(Clone, PartialEq, Eq)]
pub struct Bearer(pub String);

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer(…)")
    }
}

impl Credentials for Bearer {
    fn bearer(&self) -> BoxFuture<'_, Result<Option<String>, Error>> {
        Box::pin(async { Ok(Some(self.0.clone())) })
    }

    fn challenged<'a>(&'a self, _: &'a Challenge) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async { Ok(false) })
    }
}

/// Answers questions.
pub trait QuestionHandler: Send + Sync {
    /// The answer to `input`.
    fn answer<'a>(&'a self, input: &'a Question) -> BoxFuture<'a, Answer>;
}

/// A handler that answers with a function.
pub fn answer_with<F, T>(answer: F) -> Arc<dyn QuestionHandler>
where
    F: Fn(Question) -> T + Send + Sync + 'static,
    T: Future<Output = Answer> + Send + 'static,
{
    struct With<F>(F);
    impl<F, T> QuestionHandler for With<F>
    where
        F: Fn(Question) -> T + Send + Sync,
        T: Future<Output = Answer> + Send + 'static,
    {
        fn answer<'a>(&'a self, input: &'a Question) -> BoxFuture<'a, Answer> {
            Box::pin((self.0)(input.clone()))
        }
    }
    Arc::new(With(answer))
}
