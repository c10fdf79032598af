//! Sessions of the legacy era under a server that is killed: their clients come back with the session and the id of the last
//! event that they have, miss nothing, and get nothing twice.
//!
//! [`session`](crate::session) is the client. Tools that write do so in legs, as in [`stream`](crate::stream): each leg is
//! allowed only when the kill in the one before it is over, so every kill finds the stream unfinished.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    ALONE, SETTLE,
    client::Client,
    dice,
    dice::Dice,
    model::is_terminal,
    partials::{answer_leg, until_read},
    server::{Server, ServerFiles},
    session::{Follower, RELATED, Session},
};

const KILLS: u64 = 10;
/// Chunks that are written between two questions whether to go on.
const LEG: u64 = 200;
const CHUNKS: u64 = LEG * (KILLS + 1);
/// The same for the session stream, which carries two tasks.
const STANDING_KILLS: u64 = 6;
const STANDING_LEG: u64 = 60;
const STANDING_CHUNKS: u64 = STANDING_LEG * (STANDING_KILLS + 1);
/// What a plain call asks. There is a kill for each question, at one of three moments.
const QUESTIONS: u64 = 9;
/// Sessions that are opened between two kills: together fewer than one caller may have.
const SESSIONS: u64 = 60;
/// Kills beside a stream come within so many milliseconds.
const MOMENT_MS: u64 = 30;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_a_result_survives_ten_kills_without_a_gap_or_a_repeat() {
    let _alone = ALONE.lock().await;
    let (begun, mut dice) = (Instant::now(), dice());
    let server_files = ServerFiles::new(&mut dice);
    let mut server = started(&server_files).await;
    let session = Session::start(server_files.port, &json!({"elicitation": {}, "tasks": {"streaming": {"partial": {}}}})).await;
    let n = dice.below(1_000);
    let task = task_of(&session.ok("tools/call", count(n, LEG, CHUNKS, json!({}))).await);
    let message = session.message("tasks/result", json!({"taskId": task}));
    let follower = Follower::ask(&session, &message, Dice::new(dice.roll())).await;
    let (asks, mut asked) = mpsc::channel(1);
    let (has, mut read) = watch::channel(0);
    let reading = tokio::spawn(Wait { follower, task: task.clone(), id: message["id"].clone(), asks, has }.run());

    for leg in 0..KILLS {
        let question = next_question(&mut asked, leg * LEG).await;
        // Sometimes the server goes down between its question and the answer, else between the answer and the next question.
        let unanswered = dice.one_in(3);
        if unanswered {
            server = restarted(server, &server_files).await;
        }
        session.answer(&question, yes()).await;
        if !unanswered {
            until_read(&mut read, leg * LEG + dice.below(LEG)).await;
            server = restarted(server, &server_files).await;
        }
    }
    let question = next_question(&mut asked, KILLS * LEG).await;
    session.answer(&question, yes()).await;
    let (output, result, resumed) = joined(reading).await;

    assert_eq!(output.next, CHUNKS, "each step is one chunk");
    check_text(&output.text, n, CHUNKS, "");
    assert_eq!(text_of(&result["content"]), format!("count-{n}"), "{result}");
    assert_eq!(result["_meta"][RELATED]["taskId"], task, "{result}");
    assert_eq!(session.ok("tasks/result", json!({"taskId": task})).await, result, "the same result, asked for once more");
    assert_eq!(session.ok("tasks/get", json!({"taskId": task})).await["status"], "completed");
    server.kill();
    eprintln!("crash: a wait of {CHUNKS} partials resumed {resumed} times through {KILLS} kills in {:.1} s", begun.elapsed().as_secs_f64());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_streamed_response_survives_ten_kills_without_a_gap_or_a_repeat() {
    let _alone = ALONE.lock().await;
    let (begun, mut dice) = (Instant::now(), dice());
    let server_files = ServerFiles::new(&mut dice);
    let mut server = started(&server_files).await;
    let modes = json!({"modes": ["task", "immediate", "streaming"]});
    let session = Session::start(server_files.port, &json!({"elicitation": {}, "tasks": {"responses": modes}})).await;
    let n = dice.below(1_000);
    let message = session.message("tools/call", count(n, LEG, CHUNKS, json!({"responseModes": ["streaming"]})));
    let mut follower = Follower::ask(&session, &message, Dice::new(dice.roll())).await;
    // The tool asks before it writes, so the first response is there before any output, and names the task.
    let first = follower.next().await.expect("a first response");
    let task = task_of(&first["result"]);
    let (has, mut read) = watch::channel(0);
    let reading = tokio::spawn(Call { follower, task: task.clone(), id: message["id"].clone(), has }.run(first));

    let mut client = Client::new(server_files.port);
    for leg in 0..KILLS {
        answer_leg(&mut client, &task, leg * LEG).await;
        until_read(&mut read, leg * LEG + dice.below(LEG)).await;
        server = restarted(server, &server_files).await;
    }
    answer_leg(&mut client, &task, KILLS * LEG).await;
    let (output, resumed) = joined(reading).await;

    // Segments are numbered from 1, and what the tool returned is the last one.
    assert_eq!(output.next, CHUNKS + 2, "each step is one segment");
    check_text(&output.text, n, CHUNKS, &format!("count-{n}"));
    let merged = session.ok("tasks/result", json!({"taskId": task})).await;
    assert_eq!(text_of(&merged["content"]), output.text, "the result is what was streamed");
    let rest = session.ok("tasks/result", json!({"taskId": task, "lastSeqNr": CHUNKS})).await;
    let last = json!([{"seqNr": CHUNKS + 1, "type": "text", "text": format!("count-{n}")}]);
    assert_eq!((&rest["partial-content"], &rest["isComplete"]), (&last, &json!(true)), "{rest}");
    server.kill();
    let took = begun.elapsed().as_secs_f64();
    eprintln!("crash: a response of {CHUNKS} segments resumed {resumed} times through {KILLS} kills in {took:.1} s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_questions_of_a_plain_call_survive_kills_and_are_asked_once() {
    let _alone = ALONE.lock().await;
    let mut dice = dice();
    let server_files = ServerFiles::new(&mut dice);
    let mut server = started(&server_files).await;
    let session = Session::start(server_files.port, &json!({"elicitation": {}})).await;
    let n = dice.below(1_000);
    let arguments = json!({"n": n, "questions": QUESTIONS});
    let message = session.message("tools/call", json!({"name": "interview", "arguments": arguments}));
    let mut follower = Follower::ask(&session, &message, Dice::new(dice.roll())).await;

    let mut asked: Vec<Value> = Vec::new();
    for index in 0..QUESTIONS {
        let moment = index % 3;
        if moment == 0 {
            // Before the question has been read, and perhaps before it was asked.
            server = restarted_soon(server, &server_files, &mut dice).await;
        }
        let question = follower.next().await.expect("the call asks on");
        assert_eq!(question["method"], "elicitation/create", "{question}");
        assert_eq!(question["params"]["message"], format!("What is name {index}?"), "asked out of turn: {question}");
        let id = &question["id"];
        assert!(id.is_string() && !asked.contains(id), "a question has an id of its own: {question} after {asked:?}");
        asked.push(id.clone());
        if moment == 1 {
            server = restarted_soon(server, &server_files, &mut dice).await;
        }
        session.answer(&question, name(&format!("name-{index}"))).await;
        if moment == 2 {
            server = restarted_soon(server, &server_files, &mut dice).await;
            // The first answer is the one that counts, also after a restart.
            session.answer(&question, name("somebody else")).await;
        }
    }
    let response = follower.next().await.expect("a call ends with its response");
    assert_eq!(response["id"], message["id"], "{response}");
    let names: Vec<String> = (0..QUESTIONS).map(|index| format!("name-{index}")).collect();
    assert_eq!(text_of(&response["result"]["content"]), format!("interview-{n}: {}", names.join(", ")), "{response}");
    let resumed = follower.resumed;
    follower.ends().await;
    server.kill();
    eprintln!("crash: a plain call asked {QUESTIONS} questions once each, resumed {resumed} times through {QUESTIONS} kills");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_standing_stream_survives_kills_without_a_gap_or_a_repeat() {
    let _alone = ALONE.lock().await;
    let (begun, mut dice) = (Instant::now(), dice());
    let server_files = ServerFiles::new(&mut dice);
    let mut server = started(&server_files).await;
    let session = Session::start(server_files.port, &json!({"elicitation": {}, "tasks": {"streaming": {"partial": {}}}})).await;
    let n = dice.below(1_000);
    // A task that was started before the stream was opened is on it, too.
    let one = task_of(&session.ok("tools/call", count(n, STANDING_LEG, STANDING_CHUNKS, json!({}))).await);
    let follower = Follower::standing(&session, Dice::new(dice.roll())).await;
    let other = task_of(&session.ok("tools/call", count(n + 1, STANDING_LEG, STANDING_CHUNKS, json!({}))).await);
    let (has, mut read) = watch::channel(0);
    let tasks = BTreeMap::from([one.clone(), other.clone()].map(|task| (task, Output::from(0))));
    let reading = tokio::spawn(Standing { follower, tasks, open: 2, has }.run());

    let mut client = Client::new(server_files.port);
    for leg in 0..=STANDING_KILLS {
        answer_leg(&mut client, &one, leg * STANDING_LEG).await;
        answer_leg(&mut client, &other, leg * STANDING_LEG).await;
        if leg < STANDING_KILLS {
            until_read(&mut read, 2 * leg * STANDING_LEG + dice.below(2 * STANDING_LEG)).await;
            server = restarted(server, &server_files).await;
        }
    }
    let Standing { mut follower, tasks, .. } = joined(reading).await;

    for (task, n) in [(&one, n), (&other, n + 1)] {
        assert_eq!(tasks[task].next, STANDING_CHUNKS, "each step of {task} is one chunk");
        check_text(&tasks[task].text, n, STANDING_CHUNKS, "");
    }
    // What comes next is about the next task, so nothing followed the ends of these.
    let quick = session.ok("tools/call", json!({"name": "quick", "arguments": {"n": n}, "task": {}})).await;
    let quick = task_of(&quick);
    loop {
        let message = follower.next().await.expect("a session stream does not end");
        assert_eq!(message["method"], "notifications/tasks/status", "{message}");
        assert_eq!(message["params"]["taskId"], quick, "{message}");
        if message["params"]["status"] == "completed" {
            break;
        }
    }
    server.kill();
    let (resumed, took) = (follower.resumed, begun.elapsed().as_secs_f64());
    eprintln!("crash: a session stream of two tasks resumed {resumed} times through {STANDING_KILLS} kills in {took:.1} s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_outlive_the_server_and_those_that_were_ended_stay_gone() {
    let _alone = ALONE.lock().await;
    let mut dice = dice();
    let server_files = ServerFiles::new(&mut dice);
    let mut known = Known::default();
    for _ in 0..KILLS {
        let server = started(&server_files).await;
        known.check().await;
        let churning = tokio::spawn(known.churn(server_files.port, Dice::new(dice.roll())));
        sleep(Duration::from_millis(20 + dice.below(131))).await;
        server.kill();
        known = joined(churning).await;
    }
    let server = started(&server_files).await;
    known.check().await;
    server.kill();
    assert!(!known.live.is_empty() && !known.gone.is_empty(), "sessions were opened and ended");
    eprintln!("crash: {} sessions are there and {} are gone after {KILLS} kills", known.live.len(), known.gone.len());
}

async fn started(server_files: &ServerFiles) -> Server {
    let mut server = server_files.start();
    server.accepts(server_files.port).await;
    server
}

async fn restarted(server: Server, server_files: &ServerFiles) -> Server {
    server.kill();
    started(server_files).await
}

/// Kills it after a moment.
async fn restarted_soon(server: Server, server_files: &ServerFiles, dice: &mut Dice) -> Server {
    sleep(Duration::from_millis(dice.below(MOMENT_MS))).await;
    restarted(server, server_files).await
}

async fn joined<T>(reading: JoinHandle<T>) -> T {
    let ended = timeout(SETTLE, reading).await.unwrap_or_else(|_| panic!("a reader does not come to an end within {SETTLE:?}"));
    ended.expect("a reader found a broken promise")
}

/// The parameters of a call of `count` as a task.
fn count(n: u64, leg: u64, chunks: u64, task: Value) -> Value {
    json!({"name": "count", "arguments": {"n": n, "chunks": chunks, "leg": leg}, "task": task})
}

/// What `count` writes: `chunks` lines, and then this end.
fn check_text(text: &str, n: u64, chunks: u64, last: &str) {
    let line = |index: u64| format!("{n}-{index} {}\n", "é".repeat(usize::try_from(index % 61).expect("a small number")));
    let expected = (0..chunks).map(line).collect::<String>() + last;
    let differs = text.lines().zip(expected.lines()).position(|(read, written)| read != written);
    assert!(text == expected, "the text is not what the tool writes when nobody kills it, from line {differs:?} on");
}

/// The task that the result of a call names.
fn task_of(result: &Value) -> String {
    result["task"]["taskId"].as_str().unwrap_or_else(|| panic!("no task: {result}")).to_owned()
}

/// The text of content blocks: the tools here write nothing else.
fn text_of(content: &Value) -> String {
    let blocks = content.as_array().unwrap_or_else(|| panic!("no content: {content}"));
    let text = |block: &Value| {
        assert!(block["type"] == "text" && block.get("seqNr").is_none(), "not a block of text: {block}");
        block["text"].as_str().expect("text").to_owned()
    };
    blocks.iter().map(text).collect()
}

/// The answer to a question whether to go on.
fn yes() -> Value {
    json!({"action": "accept", "content": {}})
}

/// The answer to a question for a name.
fn name(name: &str) -> Value {
    json!({"action": "accept", "content": {"name": name}})
}

/// Waits for the question that `count` asks before chunk `index`.
async fn next_question(asked: &mut mpsc::Receiver<Value>, index: u64) -> Value {
    let question = timeout(SETTLE, asked.recv()).await.unwrap_or_else(|_| panic!("no question before chunk {index} within {SETTLE:?}"));
    let question = question.expect("the reader found a broken promise: its words are above");
    assert_eq!(question["params"]["message"], format!("Shall it go on from chunk {index}?"), "asked out of turn: {question}");
    question
}

/// What was read of a task's output, in order.
#[derive(Debug)]
struct Output {
    /// The number of what comes next.
    next: u64,
    text: String,
}

impl Output {
    fn from(first: u64) -> Self {
        Self { next: first, text: String::new() }
    }

    fn take(&mut self, number: &Value, text: &str) {
        assert_eq!(*number, self.next, "a gap or a repeat: {text:?}");
        self.next += 1;
        self.text.push_str(text);
    }

    fn take_partial(&mut self, message: &Value, task: &str) {
        let params = &message["params"];
        assert_eq!((&params["taskId"], &params["_meta"][RELATED]["taskId"]), (&json!(task), &json!(task)), "{message}");
        self.take(&params["seq"], &text_of(&params["content"]));
    }
}

/// A reader of the stream that a `tasks/result` waits on.
#[derive(Debug)]
struct Wait {
    follower: Follower,
    task: String,
    /// The id of the request.
    id: Value,
    /// Where questions go.
    asks: mpsc::Sender<Value>,
    /// Says how many chunks it has.
    has: watch::Sender<u64>,
}

impl Wait {
    /// Reads to the end: what was written, the result, and how often it came back.
    async fn run(mut self) -> (Output, Value, u64) {
        let (mut output, mut status) = (Output::from(0), String::new());
        let mut response = loop {
            let message = self.follower.next().await.expect("a wait ends with its response");
            let params = &message["params"];
            let ended = is_terminal(&status);
            match message["method"].as_str() {
                Some("notifications/tasks/partial") if !ended => {
                    output.take_partial(&message, &self.task);
                    self.has.send_replace(output.next);
                }
                Some("notifications/tasks/status") if !ended => {
                    assert_eq!(params["taskId"], self.task, "{message}");
                    params["status"].as_str().expect("a status").clone_into(&mut status);
                }
                Some("elicitation/create") if !ended => {
                    assert_eq!(params["_meta"][RELATED]["taskId"], self.task, "{message}");
                    self.asks.send(message).await.expect("the test waits for questions");
                }
                None if ended => break message,
                _ => panic!("nobody asked for this when the task was {status:?}: {message}"),
            }
        };
        assert_eq!((response["id"].clone(), status.as_str()), (self.id, "completed"), "{response}");
        let resumed = self.follower.resumed;
        self.follower.ends().await;
        (output, response["result"].take(), resumed)
    }
}

/// A reader of a call that is answered in many responses.
#[derive(Debug)]
struct Call {
    follower: Follower,
    task: String,
    /// The id of the request.
    id: Value,
    /// Says how many segments it has.
    has: watch::Sender<u64>,
}

impl Call {
    /// Reads to the end, from the first response on: what was written, and how often it came back.
    async fn run(mut self, first: Value) -> (Output, u64) {
        let (mut output, mut message) = (Output::from(1), first);
        while !self.take(&mut output, &message) {
            message = self.follower.next().await.expect("a streamed response goes on until it is complete");
        }
        let resumed = self.follower.resumed;
        self.follower.ends().await;
        (output, resumed)
    }

    /// Takes in a message, and says whether it was the last one.
    fn take(&self, output: &mut Output, message: &Value) -> bool {
        match message["method"].as_str() {
            // The questions are answered elsewhere.
            Some("elicitation/create" | "notifications/tasks/status") => return false,
            Some(_) => panic!("nobody asked for this: {message}"),
            None => {}
        }
        let result = &message["result"];
        assert_eq!(message["id"], self.id, "{message}");
        assert_eq!(result["_meta"][RELATED]["taskId"], self.task, "{message}");
        assert_ne!(result["isError"], true, "{message}");
        for segment in result["partial-content"].as_array().into_iter().flatten() {
            assert_eq!(segment["type"], "text", "{message}");
            output.take(&segment["seqNr"], segment["text"].as_str().expect("text"));
        }
        self.has.send_replace(output.next - 1);
        result["isComplete"] == true
    }
}

/// A reader of a session stream that carries these tasks and no others.
#[derive(Debug)]
struct Standing {
    follower: Follower,
    tasks: BTreeMap<String, Output>,
    /// How many of them have not ended.
    open: usize,
    /// Says how many chunks it has.
    has: watch::Sender<u64>,
}

impl Standing {
    /// Reads until the tasks have ended.
    async fn run(mut self) -> Self {
        let mut ended: Vec<String> = Vec::new();
        while self.open > 0 {
            let message = self.follower.next().await.expect("a session stream does not end");
            // Somebody else answers.
            if message["method"] == "elicitation/create" {
                continue;
            }
            let params = &message["params"];
            let task = params["taskId"].as_str().unwrap_or_else(|| panic!("about no task: {message}")).to_owned();
            assert!(!ended.contains(&task), "behind the end of a task: {message}");
            let output = self.tasks.get_mut(&task).unwrap_or_else(|| panic!("about another task: {message}"));
            match message["method"].as_str() {
                Some("notifications/tasks/partial") => {
                    output.take_partial(&message, &task);
                    self.has.send_replace(self.tasks.values().map(|output| output.next).sum());
                }
                Some("notifications/tasks/status") if is_terminal(params["status"].as_str().expect("a status")) => {
                    assert_eq!(params["status"], "completed", "{message}");
                    self.open -= 1;
                    ended.push(task);
                }
                Some("notifications/tasks/status") => {}
                _ => panic!("nobody asked for this: {message}"),
            }
        }
        self
    }
}

/// Sessions of which it is known whether they are there.
#[derive(Debug, Default)]
struct Known {
    live: Vec<Session>,
    gone: Vec<Session>,
}

impl Known {
    /// Opens and ends sessions until the server is gone.
    async fn churn(mut self, port: u16, mut dice: Dice) -> Self {
        let capabilities = json!({});
        for _ in 0..SESSIONS {
            let Ok(session) = Session::open(port, &capabilities).await else { break };
            self.live.push(session);
            if dice.one_in(3) {
                let index = usize::try_from(dice.below(self.live.len() as u64)).expect("an index");
                let session = self.live.swap_remove(index);
                // Where the answer is lost nobody knows whether it is there.
                let Ok(status) = session.end().await else { break };
                assert_eq!(status, 200, "a session that was acknowledged can be ended");
                self.gone.push(session);
            }
        }
        self
    }

    async fn check(&self) {
        for session in &self.live {
            assert!(session.is_there().await, "a session that was acknowledged is gone: {session:?}");
        }
        for session in &self.gone {
            assert!(!session.is_there().await, "a session that was ended is back: {session:?}");
        }
    }
}
