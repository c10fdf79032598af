//! Another caller's task does not exist (I9): a table of all ways to name one, each with Ann's real names and with names that never were.
//!
//! Bob's two answers must be the same, byte for byte, and have nothing of Ann's in them; and nothing of hers may have changed.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures_util::future::join_all;
use serde_json::{Value, json};
use taskwire::{
    clock::SystemClock,
    core::TaskId,
    server::{Authenticate, Config, Denied, Identification, Identity, RequestCredentials},
    tool::{Ctx, Registry, TaskMode, Tool},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use self::ways::{Ask, LegacyAsk, Names, OWN_TAG, WAYS, nonce};
use crate::{
    kit::{Client, HOUR, IDEMPOTENCY, KEY, PARTIALS, Response, TASKS, TestServer, next_chunk, read_head, value_of, with_timeout},
    legacy::kit::{LATEST, LegacySession, Sse},
    nodes::SharedStore,
    tasks::{Gate, accept, name_form, registry, tool},
};

mod ways;

/// How many runs are Ann's: the first ones. Those that follow are Bob's, and are done at once.
const ANN_RUNS: u64 = 8;
/// Ann's request in her session that is not answered yet.
const REQUEST: u64 = 424_242_424_242;
/// The id of each request of Bob.
const BOB_REQUEST: u64 = 7;
/// Ways to reach another caller's task that the table has at least.
const WAYS_MIN: usize = 60;

/// Whoever calls is called as their token says.
#[derive(Debug)]
struct Everybody;

impl Authenticate for Everybody {
    fn is_required(&self) -> bool {
        true
    }

    fn identify<'a>(&'a self, credentials: RequestCredentials<'_>) -> Identification<'a> {
        let token = credentials.authorization().and_then(|value| std::str::from_utf8(value).ok()?.strip_prefix("Bearer "));
        Identification::Ready(token.map(Identity::new).ok_or(Denied::Missing))
    }
}

fn config() -> Config {
    // What Ann's clients wait for stays open for as long as the test runs.
    Config { auth: Arc::new(Everybody), hold: HOUR, ..Config::default() }
}

/// A tool that says something else in each run, so that what is Ann's is known wherever it turns up.
fn work(name: &str, gate: &Gate, runs: &Arc<AtomicU64>) -> Tool {
    tool(name, &(gate.clone(), runs.clone()), |(gate, runs): (Gate, Arc<AtomicU64>), ctx: Ctx| async move {
        let run = runs.fetch_add(1, Ordering::Relaxed) + 1;
        let secret = secret(run);
        if run > ANN_RUNS {
            return Ok(secret);
        }
        let arguments: Value = ctx.arguments().read()?;
        ctx.text(&secret).await?;
        // Now it is a task, whether its caller knows that or not.
        ctx.checkpoint(&secret).await?;
        ctx.status(&secret).await?;
        match arguments["then"].as_str() {
            Some("ask") => {
                ctx.ask("name", name_form(&secret)).await?;
            }
            Some("run") => {
                gate.pass(&ctx).await?;
            }
            _ => {}
        }
        Ok(secret)
    })
}

fn secret(run: u64) -> String {
    format!("secret-{run:04}")
}

fn tools(gate: &Gate) -> Registry {
    let runs = Arc::default();
    registry([work("work", gate, &runs).task(TaskMode::Always), work("shared", gate, &runs).task(TaskMode::Always).dedupe()])
}

/// Ann's tasks, in every state that there is, and all that she has open.
struct Ann {
    /// Of each task what state it is in, and the names that lead to it.
    tasks: Vec<(&'static str, Names)>,
    session: LegacySession,
    /// The stream that waits for the result of the task that asks.
    result: Sse,
    question: Value,
    /// Clients without tasks, whose calls are held.
    _held: Vec<TcpStream>,
}

fn arguments(then: &str, n: u64) -> Value {
    json!({"then": then, "n": n})
}

async fn ids(server: &TestServer) -> Vec<TaskId> {
    server.server.engine().reader().open_tasks(None, 100).await.expect("readable")
}

/// A call of a client without tasks that is held, and its task.
async fn held(server: &TestServer, gate: &Gate, tool: &str, n: u64) -> (TcpStream, String) {
    let before = ids(server).await;
    let client = server.plain_client().with_token("ann");
    let meta = json!({"progressToken": "ann-progress"});
    let params = json!({"name": tool, "arguments": arguments("run", n), "_meta": meta});
    let message = client.message(REQUEST, "tools/call", params);
    let stream = client.send(&client.headers(&message), message.to_string().as_bytes()).await;
    with_timeout("the tool", gate.started.wait()).await;
    let new = ids(server).await.into_iter().find(|id| !before.contains(id)).expect("it has become a task");
    (stream, new.to_string())
}

impl Ann {
    async fn begin(server: &TestServer, gate: &Gate) -> Self {
        let client = server.client().with_token("ann");
        let session = LegacySession::of(server.port, Some("ann"), LATEST, json!({"elicitation": {}})).await;
        let key = "ann-key".to_owned();
        let params = json!({"name": "work", "arguments": arguments("run", 1), "_meta": {KEY: key}});
        let running = client.ok("tools/call", params).await["taskId"].as_str().expect("an id").to_owned();
        with_timeout("the tool", gate.started.wait()).await;
        let asking = session.start("work", arguments("ask", 2)).await;
        with_timeout("the question", client.until(&asking, "input_required")).await;
        let mut result = session.stream_message(&session.message(REQUEST, "tasks/result", json!({"taskId": asking}))).await;
        let question = with_timeout("the question", result.until("elicitation/create")).await;
        let ended = client.start("work", arguments("end", 3)).await;
        with_timeout("the end", client.until(&ended, "completed")).await;
        let cancelled = client.start("work", arguments("run", 4)).await;
        with_timeout("the tool", gate.started.wait()).await;
        client.cancel(&cancelled).await;
        with_timeout("the end", client.until(&cancelled, "cancelled")).await;
        let (call, hidden) = held(server, gate, "work", 5).await;
        let before = ids(server).await;
        let asked = server.plain_client().declaring(json!({"elicitation": {}})).with_token("ann").call("work", arguments("ask", 6)).await;
        let state = asked["requestState"].as_str().unwrap_or_else(|| panic!("it asks: {asked}")).to_owned();
        let hidden_asking = ids(server).await.into_iter().find(|id| !before.contains(id)).expect("it is a task").to_string();
        let (left, lingering) = held(server, gate, "work", 7).await;
        // Its client hangs up.
        drop(left);
        let (shared_call, shared) = held(server, gate, "shared", 8).await;
        let names = |task: String, tool: &'static str, arguments: Value| Names {
            task,
            tool,
            arguments,
            session: session.session().to_owned(),
            idempotency_key: key.clone(),
            progress_token: "ann-progress".to_owned(),
            request: REQUEST,
            request_state: state.clone(),
        };
        let tasks = vec![
            ("running", names(running, "work", arguments("run", 1))),
            ("waiting for an answer", names(asking, "work", arguments("ask", 2))),
            ("completed", names(ended, "work", arguments("end", 3))),
            ("cancelled", names(cancelled, "work", arguments("run", 4))),
            ("hidden", names(hidden, "work", arguments("run", 5))),
            ("hidden and waiting for an answer", names(hidden_asking, "work", arguments("ask", 6))),
            ("lingering", names(lingering, "work", arguments("run", 7))),
            ("shared", names(shared, "shared", arguments("run", 8))),
        ];
        Self { tasks, session, result, question, _held: vec![call, shared_call] }
    }

    /// What Bob must not change.
    async fn stored(&self, server: &TestServer) -> Vec<String> {
        let mut stored = Vec::new();
        for (state, names) in &self.tasks {
            let id: TaskId = names.task.parse().expect("an id");
            let task = server.server.engine().reader().task(id).await.expect("readable").expect("still there");
            stored.push(format!("{state}: {:?} {:?} {:?} {:?}", task.status(), task.outcome, task.questions, task.output));
        }
        stored
    }

    /// What Bob must not be told: the ids of tasks but this one, and what was written.
    fn secrets(&self, but: &str) -> Vec<String> {
        let ids = self.tasks.iter().map(|(_, names)| names.task.clone()).filter(|id| id != but);
        ids.chain((1..=ANN_RUNS).map(secret)).collect()
    }
}

/// The same text with another last character.
fn changed(text: &str) -> String {
    let (rest, last) = text.split_at(text.len() - 1);
    format!("{rest}{}", if last == "0" { "1" } else { "0" })
}

/// Names like these that nothing has.
fn unknown(names: &Names) -> Names {
    let mut arguments = names.arguments.clone();
    arguments["n"] = (arguments["n"].as_u64().expect("a number") + 1_000).into();
    Names {
        task: changed(&names.task),
        tool: names.tool,
        arguments,
        session: changed(&names.session),
        idempotency_key: changed(&names.idempotency_key),
        progress_token: changed(&names.progress_token),
        request: names.request + 1,
        request_state: changed(&names.request_state),
    }
}

/// Bob, who is somebody else in each request, so that no answer depends on the one before.
struct Bob<'a> {
    server: &'a TestServer,
    token: String,
}

impl Bob<'_> {
    /// What he is answered, and how that names his own session.
    async fn ask(&self, ask: Ask) -> (Response, Option<String>) {
        let client = |capabilities: Value| Client::new(self.server.port).declaring(capabilities).with_token(&self.token);
        let all = json!({"elicitation": {}, "extensions": {TASKS: {}, PARTIALS: {}, IDEMPOTENCY: {}, "dev.taskwire/list": {}}});
        let (client, message, events) = match ask {
            Ask::Legacy(ask) => return self.ask_in_session(ask).await,
            Ask::Modern { method, params, plain } => {
                let client = client(if plain { json!({}) } else { all });
                let message = client.message(BOB_REQUEST, method, params);
                (client, message, usize::MAX)
            }
            Ask::ModernNote { method, params } => {
                let client = client(all);
                let mut message = client.message(BOB_REQUEST, method, params);
                message.as_object_mut().expect("an object").remove("id");
                (client, message, usize::MAX)
            }
            Ask::Listen(filter) => {
                let client = client(all);
                let message = client.message(BOB_REQUEST, "subscriptions/listen", json!({"notifications": filter}));
                (client, message, 1)
            }
        };
        (exchange(self.server.port, "POST", &client.headers(&message), &message.to_string(), events).await, None)
    }

    async fn ask_in_session(&self, ask: LegacyAsk) -> (Response, Option<String>) {
        let mut capabilities = json!({"elicitation": {}});
        if ask.drafts {
            capabilities["tasks"] = json!({"streaming": {"partial": {}}, "responses": {"modes": ["task", "streaming"]}});
        }
        let own = LegacySession::of(self.server.port, Some(&self.token), LATEST, capabilities).await;
        let tag = own.session()[..8].to_owned();
        let mut headers = own.headers();
        for (name, value) in &mut headers {
            match (name.as_str(), &ask.session) {
                ("Accept", _) if ask.verb == "POST" && !ask.takes_events => *value = "application/json".to_owned(),
                ("Mcp-Session-Id", Some(session)) => value.clone_from(session),
                _ => {}
            }
        }
        headers.extend(ask.last_event_id.map(|id| ("Last-Event-ID".to_owned(), id.replace(OWN_TAG, &tag))));
        let body = ask.message.map(|message| message.to_string()).unwrap_or_default();
        (exchange(self.server.port, ask.verb, &headers, &body, 1).await, Some(tag))
    }
}

/// Sends a request, and reads its answer: all of it, or so many events.
async fn exchange(port: u16, verb: &str, headers: &[(String, String)], body: &str, events: usize) -> Response {
    let mut head = format!("{verb} /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).await.expect("it is sent");
    let mut buffer = Vec::new();
    let (status, headers) = read_head(&mut stream, &mut buffer).await;
    if value_of(&headers, "transfer-encoding").is_none() {
        let length: usize = value_of(&headers, "content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
        while buffer.len() < length {
            assert!(stream.read_buf(&mut buffer).await.expect("readable") > 0, "the body ended early");
        }
        return Response { status, headers, body: buffer };
    }
    let mut body = Vec::new();
    while end_of(&body, events).is_none()
        && let Some(chunk) = next_chunk(&mut stream, &mut buffer).await
    {
        body.extend_from_slice(&chunk);
    }
    body.truncate(end_of(&body, events).unwrap_or(body.len()));
    Response { status, headers, body }
}

/// Where so many events end.
fn end_of(body: &[u8], events: usize) -> Option<usize> {
    let ends = body.windows(2).enumerate().filter(|(_, end)| **end == *b"\n\n");
    ends.map(|(at, _)| at + 2).nth(events - 1)
}

/// A response as text. What Bob named is replaced, and what is his own; so are times.
fn told(response: &Response, names: &Names, own_tag: Option<&str>) -> String {
    let headers = response.headers.iter().filter(|(name, _)| name != "date");
    let head: String = headers.map(|(name, value)| format!("{name}: {value}\n")).collect();
    let mut text = format!("{}\n{head}\n{}", response.status, String::from_utf8_lossy(&response.body));
    let (in_capitals, request) = (names.task.to_uppercase(), names.request.to_string());
    for (name, stands_for) in [
        (names.task.as_str(), "its-id"),
        (in_capitals.as_str(), "ITS-ID"),
        (&names.task[..31], "part-of-its-id"),
        (names.session.as_str(), "its-session"),
        (names.request_state.as_str(), "its-state"),
        (request.as_str(), "its-request"),
        (nonce(names).as_str(), "its-request-encoded"),
        (own_tag.unwrap_or(OWN_TAG), OWN_TAG),
    ] {
        text = text.replace(name, stands_for);
    }
    let (mut told, mut word) = (String::new(), String::new());
    for c in text.chars().chain(['\n']) {
        if c.is_ascii_alphanumeric() || "-:".contains(c) {
            word.push(c);
            continue;
        }
        told.push_str(without_own(&word));
        told.push(c);
        word.clear();
    }
    told
}

/// What stands for a word that is different in each answer: a time, the id of a task of Bob's, or what that wrote.
fn without_own(word: &str) -> &str {
    let bytes = word.as_bytes();
    let is_second = bytes.len() >= 19 && bytes[4] == b'-' && bytes[10] == b'T' && bytes[16] == b':';
    let is_fraction = bytes.len() == 4 && bytes[3] == b'Z' && bytes[..3].iter().all(u8::is_ascii_digit);
    match word.trim_end_matches(':') {
        _ if is_second || is_fraction => "a-time",
        bare if bare.parse::<TaskId>().is_ok() => "own-id",
        bare if bare.starts_with("secret-") => "own-secret",
        _ => word,
    }
}

/// Tries every way with one of Ann's tasks; says which of them tell something.
async fn try_all(server: &TestServer, ann: &Ann, state: &str, real: &Names) -> Vec<String> {
    let (fake, secrets) = (unknown(real), ann.secrets(&real.task));
    let mut differing = Vec::new();
    for (way, ask) in WAYS {
        let mut answers = Vec::new();
        for (names, who) in [(real, "real"), (&fake, "unknown")] {
            let bob = Bob { server, token: format!("bob {way} {state} {who}").replace(' ', "-").replace(',', "") };
            let (response, tag) = with_timeout(&format!("an answer to {way}, {state}, {who}"), bob.ask(ask(names))).await;
            let raw = String::from_utf8_lossy(&response.body).into_owned();
            let said = secrets.iter().find(|secret| raw.contains(*secret));
            differing.extend(said.map(|secret| format!("{way}, {state}: Bob is told `{secret}`: {raw}")));
            answers.push(told(&response, names, tag.as_deref()));
        }
        if answers[0] != answers[1] {
            differing.push(format!("{way}, {state}: the answers are\n{}\nand\n{}", answers[0], answers[1]));
        }
    }
    differing
}

/// Tries the whole table against a server.
async fn nothing_is_told(server: TestServer, gate: Gate) {
    let mut ann = Ann::begin(&server, &gate).await;
    let before = ann.stored(&server).await;
    let tried = join_all(ann.tasks.iter().map(|(state, names)| try_all(&server, &ann, state, names))).await;
    let differing: Vec<String> = tried.into_iter().flatten().collect();
    assert!(differing.is_empty(), "{} answers tell something:\n{}", differing.len(), differing.join("\n\n"));
    assert_eq!(ann.stored(&server).await, before, "nothing of Ann's has changed");
    // Nor has her session, her request or her question.
    ann.session.answer(&ann.question, accept("Ann")).await;
    let rest = with_timeout("her result", ann.result.rest()).await;
    let result = rest.last().expect("a response");
    assert_eq!((&result["id"], &result["result"]["content"][0]["text"]), (&json!(REQUEST), &json!(secret(2))), "{rest:?}");
}

#[test]
fn the_table_has_many_ways_and_each_once() {
    let mut names: Vec<&str> = WAYS.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() == WAYS.len() && names.len() >= WAYS_MIN, "{} of {}", names.len(), WAYS.len());
}

#[tokio::test]
async fn no_way_tells_another_callers_task_from_one_that_never_was() {
    let gate = Gate::new();
    let server = TestServer::start_with(tools(&gate), config(), Arc::new(SystemClock)).await;
    nothing_is_told(server, gate).await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL"]
async fn no_way_tells_another_callers_task_from_one_that_never_was_on_postgresql() {
    let (gate, store) = (Gate::new(), SharedStore::postgres());
    let server = store.node("here", tools(&gate), config()).await;
    nothing_is_told(server, gate).await;
}
