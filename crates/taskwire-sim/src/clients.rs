//! The clients of the workload: they call, read, answer, cancel, vanish and come back, each time on whichever node answers.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use taskwire::{
    client::{Answer, Call, Client, ClientCapabilities, Era, Error, Event, Options, Outcome, Reference, Status, Target, Timing},
    clock::Clock,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};

use crate::{
    observer::{Happening, Observer},
    random::Dice,
    tools::{line, word},
};

/// Opens a connection to a node that is up, if there is one.
pub(crate) type Dial = Arc<dyn Fn() -> DuplexStream + Send + Sync>;

/// All nodes together: each connection is to one of them.
pub(crate) struct AnyNode(pub(crate) Dial);

impl fmt::Debug for AnyNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyNode")
    }
}

impl taskwire::client::Connect for AnyNode {
    fn connect(&self) -> DuplexStream {
        (self.0)()
    }
}

/// One client of the workload.
pub(crate) struct Actor {
    pub(crate) dial: Dial,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) observer: Observer,
    pub(crate) dice: Dice,
    /// The next number of a call.
    pub(crate) calls: Arc<Mutex<u64>>,
    pub(crate) era: Era,
    /// Whether no more calls are to be made.
    pub(crate) is_over: Arc<AtomicBool>,
}

/// When the tool `timed` times out.
pub(crate) const TIMED_MILLIS: u64 = 8_000;

/// A call by a client that knows neither tasks nor keys.
fn plain_message(tool: &str, call: u64, size: u64) -> serde_json::Value {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "plain", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let arguments = json!({"call": call, "size": size, "pace": 300});
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments, "_meta": meta}})
}

/// How a call went for one reader.
enum Reading {
    Done(Outcome),
    /// It stopped reading; this is where it was.
    Left(Reference),
}

impl Actor {
    async fn connect(&self) -> Client {
        loop {
            let timing = Timing { give_up_after: Duration::from_secs(3600), ..Timing::default() };
            let options = Options {
                era: Some(self.era),
                clock: self.clock.clone(),
                capabilities: ClientCapabilities { form: true, ..ClientCapabilities::default() },
                timing,
                ..Options::default()
            };
            match Client::connect(Target::InProcess(Arc::new(AnyNode(self.dial.clone()))), options).await {
                Ok(client) => return client,
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    }

    /// Calls tools, until the world comes to rest.
    pub(crate) async fn run(mut self) {
        while !self.is_over.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(self.dice.between(10, 3_000))).await;
            if self.dice.happens(150_000) {
                self.same_call_twice().await;
            } else if self.dice.happens(100_000) {
                self.one_plain_call().await;
            } else {
                self.one_call().await;
            }
        }
    }

    fn next_call(&self) -> u64 {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls += 1;
        *calls
    }

    /// Makes the same call twice at once, as clients do that know neither tasks nor keys. Both get the result, unless they are cut off.
    async fn same_call_twice(&mut self) {
        let (call, size) = (self.next_call(), self.dice.between(1, 6));
        let message = plain_message("shared", call, size);
        let results = futures_util::future::join(self.plain_call(&message), self.plain_call(&message)).await;
        for result in [results.0, results.1].into_iter().flatten() {
            self.observer.trace(&format!("call {call}: shared of {size} ended: {result}"));
            let text = result["result"]["content"][0]["text"].as_str().unwrap_or_default();
            // A store that cannot be reached is an error, and a call that takes too long is told how to go on.
            let is_done = text == format!("call {call} is done");
            let is_known = is_done || text.contains("task_wait") || result["error"]["code"] == -31002;
            if !is_known && !text.contains("earlier") {
                self.observer.violated(format!("call {call} (shared of {size}) ended as {result}"));
            }
        }
    }

    /// A call without a task and without a key: it is run once at most, and its client learns the result or that it failed.
    async fn one_plain_call(&mut self) {
        let (call, size) = (self.next_call(), self.dice.between(1, 6));
        let Some(result) = self.plain_call(&plain_message("plain", call, size)).await else { return };
        self.observer.count(Happening::PlainCall);
        self.observer.trace(&format!("call {call}: plain of {size} ended: {result}"));
        let text = result["result"]["content"][0]["text"].as_str().unwrap_or_default();
        let is_failure = result["result"]["isError"] == true && (text.contains("interrupted") || text.contains("task_wait"));
        let is_known =
            text == format!("call {call} is done") || text.contains("task_wait") || is_failure || result["error"]["code"] == -31002;
        if !is_known {
            self.observer.violated(format!("call {call} (plain of {size}) ended as {result}"));
        }
    }

    /// One request on a connection of its own; nothing if that breaks.
    async fn plain_call(&self, message: &serde_json::Value) -> Option<serde_json::Value> {
        let (input, mut output) = tokio::io::split((self.dial)());
        output.write_all(format!("{message}\n").as_bytes()).await.ok()?;
        let mut lines = BufReader::new(input).lines();
        let read = async {
            while let Ok(Some(line)) = lines.next_line().await {
                let line: serde_json::Value = serde_json::from_str(&line).ok()?;
                if line["id"] == message["id"] {
                    return Some(line);
                }
            }
            None
        };
        tokio::time::timeout(Duration::from_secs(120), read).await.ok()?
    }

    async fn one_call(&mut self) {
        let tool = ["steps", "steps", "fragile", "interview", "endless", "rude", "timed"][usize::try_from(self.dice.below(7)).unwrap_or(0)];
        let (call, size, pace) = (self.next_call(), self.dice.between(1, 20), self.dice.between(1, 800));
        let client = self.connect().await;
        let started = client.start(tool, json!({"call": call, "size": size, "pace": pace})).await;
        let mut running = match started {
            Ok(running) => running,
            Err(error) => return self.observer.trace(&format!("call {call}: {tool} was not started: {error}")),
        };
        let mut text = String::new();
        let mut client = client;
        loop {
            let (cancels, leaves) = (tool == "endless" || self.dice.happens(60_000), self.dice.happens(250_000));
            let outcome = match self.read(&client, running, call, &mut text, cancels, leaves).await {
                Ok(Reading::Done(outcome)) => outcome,
                Ok(Reading::Left(reference)) => {
                    self.observer.count(Happening::ReaderVanished);
                    tokio::time::sleep(Duration::from_millis(self.dice.between(0, 4_000))).await;
                    running = loop {
                        client = self.connect().await;
                        match client.attach(&reference).await {
                            Ok(again) => break again,
                            Err(error @ Error::TaskNotFound { .. }) => {
                                return self.observer.violated(format!("call {call} ({tool}) could not be resumed: {error}"));
                            }
                            // The node was gone before it said anything.
                            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
                        }
                    };
                    self.observer.count(Happening::CallResumedElsewhere);
                    continue;
                }
                // The call must not be sent again, and is not known to be a task: its outcome is lost with its connection.
                Err(error) if matches!(tool, "fragile" | "rude") => {
                    return self.observer.trace(&format!("call {call}: the client gave up: {error}"));
                }
                Err(error) => return self.observer.violated(format!("call {call} ({tool}) was given up: {error}")),
            };
            return self.check(call, tool, size, &text, &outcome);
        }
    }

    /// Reads a call to its end, or for a while.
    async fn read(
        &mut self,
        client: &Client,
        mut running: Call,
        call: u64,
        text: &mut String,
        cancels: bool,
        leaves: bool,
    ) -> Result<Reading, Error> {
        let (cancel_after, leave_after) = (self.dice.between(10, 8_000), self.dice.between(10, 6_000));
        let cancel = tokio::time::sleep(Duration::from_millis(cancel_after));
        let leave = tokio::time::sleep(Duration::from_millis(leave_after));
        // An answer that did not arrive is given again.
        let (retry, mut unanswered) = (tokio::time::sleep(Duration::ZERO), Vec::<String>::new());
        tokio::pin!(cancel, leave, retry);
        let (mut may_cancel, mut may_leave) = (cancels, leaves);
        let mut reference = running.reference();
        loop {
            let event = tokio::select! {
                biased;
                () = &mut cancel, if may_cancel => {
                    may_cancel = false;
                    self.cancel(client, &running, call).await;
                    continue;
                }
                () = &mut leave, if may_leave => {
                    may_leave = false;
                    reference = running.reference().or(reference);
                    match reference.take().filter(|reference| reference.task.is_some()) {
                        Some(reference) => return Ok(Reading::Left(reference)),
                        None => continue,
                    }
                }
                () = &mut retry, if !unanswered.is_empty() => {
                    let key = unanswered.remove(0);
                    let answer = Answer::accept(json!({"word": word(call, &key)}));
                    match running.answer(&key, answer).await {
                        Ok(()) => self.observer.count(Happening::AnswerTaken),
                        Err(error) => {
                            self.observer.trace(&format!("call {call}: the answer to {key} failed: {error}"));
                            unanswered.push(key);
                        }
                    }
                    retry.as_mut().reset(tokio::time::Instant::now() + Duration::from_secs(1));
                    continue;
                }
                event = running.next() => event,
            };
            match event {
                None => return Err(Error::Target("the call ended without an end".to_owned())),
                // A client that knows its task never gives up in these worlds.
                Some(Err(error)) => match running.reference().filter(|reference| reference.task.is_some()) {
                    Some(_) => self.observer.violated(format!("call {call} was given up: {error}")),
                    None => return Err(error),
                },
                Some(Ok(event)) => match event {
                    Event::Chunk(chunk) => text.push_str(&chunk.text()),
                    Event::Gap { from, until } => self.observer.violated(format!("chunks {from} to {until} of call {call} are lost")),
                    Event::Question(question) => {
                        unanswered.push(question.key);
                        retry.as_mut().reset(tokio::time::Instant::now());
                    }
                    Event::QuestionSettled { key } => unanswered.retain(|known| *known != key),
                    Event::Done(outcome) => return Ok(Reading::Done(outcome)),
                    _ => {}
                },
            }
        }
    }

    /// Cancels a call. What was acknowledged here must be seen on every other node at once.
    async fn cancel(&mut self, client: &Client, running: &Call, call: u64) {
        let Some(id) = running.reference().and_then(|reference| reference.task) else { return };
        self.observer.trace(&format!("call {call} is cancelled"));
        if client.cancel(&id).await.is_err() {
            return;
        }
        self.observer.cancelled(call);
        {
            let other = self.connect().await;
            match other.task(&id).await {
                Ok(task) if matches!(task.status, Status::Working | Status::InputRequired) => {
                    self.observer.violated(format!("call {call} was cancelled, and another node says {}", task.status));
                }
                Ok(_) => {}
                Err(error) => self.observer.trace(&format!("call {call}: its state could not be read: {error}")),
            }
        }
    }

    /// Whether a call ended as it must.
    fn check(&self, call: u64, tool: &str, size: u64, text: &str, outcome: &Outcome) {
        let shown = match outcome {
            Outcome::Result(result) => format!("result {} {}", result.is_error, result.text()),
            Outcome::Failed(error) => format!("failed {}", error.message),
            Outcome::Cancelled { .. } => "cancelled".to_owned(),
        };
        self.observer.trace(&format!("call {call}: {tool} of {size} ended: {shown}"));
        self.observer.ended(call, &shown);
        let all: String = (0..size).map(|n| line(call, n)).collect();
        let is_done = shown == format!("result false call {call} is done");
        let was_cancelled = self.observer.was_cancelled(call);
        let fits = match tool {
            "steps" => (is_done && text == all) || (shown == "cancelled" && was_cancelled && all.starts_with(text)),
            "fragile" if is_done => text == all || text.is_empty(),
            "fragile" => all.starts_with(text) && (shown.contains("interrupted") || (shown == "cancelled" && was_cancelled)),
            "interview" => {
                let words: Vec<String> = (0..=size % 3).map(|n| word(call, &format!("q{n}"))).collect();
                let lines: String = (0..=size % 3).map(|n| line(call, n)).collect();
                (shown == format!("result false {}", words.join(" ")) && text == lines)
                    || (shown == "cancelled" && was_cancelled && lines.starts_with(text))
            }
            // A cancel that comes too late is acknowledged, too.
            "endless" => (shown == "cancelled" && was_cancelled) || shown.contains("nobody cancelled"),
            // A node that is stopped meanwhile notices the timeout too late.
            "timed" if is_done => true,
            "timed" => shown.contains("within its timeout") || (shown == "cancelled" && was_cancelled),
            "rude" if shown == "cancelled" => was_cancelled,
            // A node that is stopped, or has no lease, may begin too late.
            "rude" if shown.contains("interrupted") || shown.contains("within its timeout") => true,
            "rude" => match size % 3 {
                0 => is_done && (text.is_empty() || text == (0..200).map(|n| line(call, n)).collect::<String>()),
                1 => shown.contains("panic"),
                _ => false,
            },
            _ => false,
        };
        if !fits {
            self.observer.violated(format!("call {call} ({tool} of {size}) ended as {shown:?} with the output {text:?}"));
        }
    }
}
