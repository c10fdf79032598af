//! How a client behaves.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::{Answer, CallRecorder, Era, Error, Question};
use crate::clock::{Clock, SystemClock};

/// How a client behaves. The defaults are good for a person at a terminal.
#[derive(Clone)]
pub struct Options {
    /// What the client calls itself.
    pub name: String,
    /// Its version.
    pub version: String,
    /// How to speak to the server; found out if absent.
    pub era: Option<Era>,
    /// A session of the legacy era that a task may be bound to: some servers show a task only to the session that started it.
    /// Tried for a task that is not found in a session of our own.
    pub session: Option<String>,
    /// Who is calling.
    pub credentials: Option<Arc<dyn Credentials>>,
    /// Sent with each HTTP request.
    pub headers: Vec<(String, String)>,
    /// What the client can be asked.
    pub capabilities: ClientCapabilities,
    /// Who answers the questions of [`Client::call`](super::Client::call) and [`Run::finish`](super::Run::finish). Without
    /// it they are answered with "cancel": nobody is there.
    pub question_handler: Option<Arc<dyn QuestionHandler>>,
    /// Whether output is wanted while it is made.
    pub stream_output: bool,
    /// Where started tasks and given answers are kept; with the feature `ledger`, a `Ledger` does that.
    pub ledger: Option<Arc<dyn CallRecorder>>,
    /// How much is taken.
    pub limits: Limits,
    /// How long to wait for what.
    pub timing: Timing,
    /// Where the time comes from.
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
            capabilities: ClientCapabilities::default(),
            question_handler: None,
            stream_output: true,
            ledger: None,
            limits: Limits::default(),
            timing: Timing::default(),
            clock: Arc::new(SystemClock),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("name", &self.name).field("era", &self.era).finish_non_exhaustive()
    }
}

/// What a client can be asked by a running tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientCapabilities {
    /// To fill in a form.
    pub form: bool,
    /// To visit a page.
    pub url: bool,
    /// For a message of a language model.
    pub sampling: bool,
    /// Which directories it works in. Answered from here, without an event.
    pub roots: Option<Vec<Value>>,
}

impl Default for ClientCapabilities {
    fn default() -> Self {
        Self { form: true, url: true, sampling: false, roots: None }
    }
}

impl ClientCapabilities {
    /// As capabilities of a client say it, in either era.
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

/// How much a client takes. More is an error that says what to raise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one message.
    pub message_bytes: usize,
    /// Bytes of output that came and nobody has read, for each run. What is more is fetched later, where the server lets it.
    pub buffer_bytes: usize,
    /// Tools of one server.
    pub tools: usize,
    /// Rounds of questions before a call is answered.
    pub rounds: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { message_bytes: 64 * 1024 * 1024, buffer_bytes: 16 * 1024 * 1024, tools: 10_000, rounds: 32 }
    }
}

/// How long a client waits for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// For the answer to a request that needs no work.
    pub request: Duration,
    /// For an answer to the first question on standard input, before the server is taken for one of the legacy era.
    pub probe: Duration,
    /// For a server that does not answer at all, before it is given up.
    pub give_up_after: Duration,
    /// Between two looks at a task that is also pushed.
    pub safety_poll: Duration,
    /// How long the server may hold a question about something new.
    pub long_poll: Duration,
    /// Before something is tried for the second time; doubled from there on.
    pub backoff: Duration,
    /// The longest of these.
    pub backoff_max: Duration,
    /// The shortest time between two looks, whatever the server says.
    pub poll_min: Duration,
    /// The longest.
    pub poll_max: Duration,
    /// How long output that came too early waits for what belongs before it, where that cannot be asked for.
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

/// A way to prove who is calling.
pub trait Credentials: fmt::Debug + Send + Sync {
    /// The token for the next request; none if it goes without.
    fn bearer(&self) -> BoxFuture<'_, Result<Option<String>, Error>>;

    /// The server wants another one. True if it is worth trying again.
    fn challenged<'a>(&'a self, challenge: &'a Challenge) -> BoxFuture<'a, Result<bool, Error>>;
}

/// How a server asked for a token, or for a better one.
#[derive(Clone, PartialEq, Eq)]
pub struct Challenge {
    /// The address that was asked.
    pub url: String,
    /// 401: who are you? 403: you may not do that.
    pub status: u16,
    /// The headers of that name, joined.
    pub www_authenticate: Option<String>,
    /// The token that was not good enough, if there was one.
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

/// Who answers questions.
pub trait QuestionHandler: Send + Sync {
    /// The answer to `input`.
    fn answer<'a>(&'a self, input: &'a Question) -> BoxFuture<'a, Answer>;
}

/// Answers questions with a function.
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
