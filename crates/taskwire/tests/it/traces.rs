//! Whole sessions as they go over the wire, written down for readers in `docs/traces`.
//!
//! Each test plays a session in which every message is the same in each run, and compares what was said with its
//! document. With `TASKWIRE_TRACES=write` it writes the document instead. Sessions of the legacy era are in
//! `legacy/traces.rs`.

use std::{path::Path, sync::Arc};

use serde_json::{Map, Value, json};
use taskwire::{
    server::{Config, Server},
    tool::{Ctx, Tool},
};

use crate::{
    kit::{Client, Events, PARTIALS, TASKS, TestServer, manual_clock, with_timeout},
    pipe::Pipe,
    schema,
    tasks::{Signal, registry},
    tool_harness::READ,
};

pub(crate) const CLIENT: &str = "Client → server";
pub(crate) const SERVER: &str = "Server → client";
/// Columns that a line of a document should not exceed.
const WIDTH: usize = 120;
/// Members that come first, in this order; all others follow by name.
const FIRST: [&str; 12] = ["jsonrpc", "id", "method", "resultType", "_meta", "type", "name", "taskId", "status", "code", "fromSeq", "seq"];

const LEGEND: &str = "Recorded from a real server by `crates/taskwire/tests/it/traces.rs`, which fails when the server says anything else. \
A message is one line on the wire; here it is broken into lines, and its members are put in order. Of the headers only those are \
shown that tell what a request is: each also has `Content-Type: application/json` and `Accept: application/json, text/event-stream`.";

/// A session, written down as Markdown.
pub(crate) struct Recorder {
    text: String,
    steps: usize,
    /// What is different in each run, and what stands for it in the document.
    aliases: Vec<(String, &'static str)>,
    /// Who is speaking, if a block is open.
    speaker: Option<&'static str>,
}

impl Recorder {
    /// A document with this to say before its first step; the legend is how to read it.
    pub(crate) fn new(title: &str, intro: &str, legend: &str) -> Self {
        Self { text: format!("# {title}\n\n{intro}\n\n{legend}\n"), steps: 0, aliases: Vec::new(), speaker: None }
    }

    pub(crate) fn alias(&mut self, real: &str, alias: &'static str) {
        self.aliases.push((real.to_owned(), alias));
    }

    /// Begins a step: its title, and a sentence on what happens.
    pub(crate) fn step(&mut self, title: &str, sentence: &str) {
        self.steps += 1;
        self.paragraph(&format!("## {}. {title}\n\n{sentence}", self.steps));
    }

    /// What happens between two messages.
    pub(crate) fn remark(&mut self, sentence: &str) {
        self.paragraph(&format!("*{sentence}*"));
    }

    fn paragraph(&mut self, text: &str) {
        self.close();
        self.text.push_str(&format!("\n{text}\n"));
    }

    /// Ends the block that is open, if one is.
    fn close(&mut self) {
        if self.speaker.take().is_some() {
            self.text.push_str("```\n");
        }
    }

    /// What one side says; what it says next follows in the same block.
    pub(crate) fn said(&mut self, speaker: &'static str, text: &str) {
        if self.speaker == Some(speaker) {
            self.text.push('\n');
        } else {
            self.paragraph(&format!("{speaker}:\n\n```http"));
            self.speaker = Some(speaker);
        }
        self.text.push_str(&format!("{text}\n"));
    }

    /// A request by HTTP.
    fn request(&mut self, headers: &[(String, String)], message: &Value) {
        let telling = headers.iter().filter(|(key, _)| key.to_ascii_lowercase().starts_with("mcp-"));
        let head: String = telling.map(|(key, value)| format!("{key}: {value}\n")).collect();
        self.said(CLIENT, &format!("POST /mcp\n{head}\n{}", layout(message, 0, 0)));
    }

    /// The head of a response, and its message if it is no stream.
    pub(crate) fn response(&mut self, status: u16, headers: &[(&str, &str)], message: Option<&Value>) {
        let reason = match status {
            200 => "OK",
            202 => "Accepted",
            400 => "Bad Request",
            404 => "Not Found",
            other => panic!("the reason of status {other} is not known here"),
        };
        let head: String = headers.iter().map(|(key, value)| format!("\n{key}: {value}")).collect();
        let body = message.map(|message| format!("\n\n{}", layout(message, 0, 0))).unwrap_or_default();
        self.said(SERVER, &format!("{status} {reason}{head}{body}"));
    }

    /// Compares what was said with the document, or makes it the document.
    pub(crate) fn finish(mut self, name: &str) {
        self.close();
        for (real, alias) in &self.aliases {
            self.text = self.text.replace(real.as_str(), alias);
        }
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/traces");
        let path = dir.join(name);
        if std::env::var("TASKWIRE_TRACES").is_ok_and(|value| value == "write") {
            std::fs::create_dir_all(&dir).expect("a directory for traces");
            std::fs::write(&path, &self.text).expect("a trace that can be written");
            return;
        }
        let known = std::fs::read_to_string(&path).unwrap_or_default();
        if known != self.text {
            let same = known.lines().zip(self.text.lines()).take_while(|(was, is)| was == is).count();
            let line = |text: &str| text.lines().nth(same).unwrap_or("(the end)").trim().to_owned();
            panic!(
                "docs/traces/{name} has in line {}:\n  {}\nnow it is:\n  {}\nIf that is meant, write it anew: \
                 TASKWIRE_TRACES=write cargo test -p taskwire --test it traces",
                same + 1,
                line(&known),
                line(&self.text)
            );
        }
    }
}

/// JSON for readers: on one line if there is room for it, else a line for each member. So many columns are taken.
pub(crate) fn layout(value: &Value, indent: usize, taken: usize) -> String {
    let line = one_line(value);
    if taken + line.chars().count() <= WIDTH {
        return line;
    }
    let inner = indent + 2;
    let (open, parts, close) = match value {
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| {
                let key = format!("{}: ", json!(key));
                let value = layout(value, inner, inner + key.len());
                format!("{key}{value}")
            };
            ("{", in_order(members).into_iter().map(member).collect::<Vec<_>>(), "}")
        }
        Value::Array(items) => ("[", items.iter().map(|item| layout(item, inner, inner)).collect(), "]"),
        _ => return line,
    };
    let (pad, gap) = (" ".repeat(indent), " ".repeat(inner));
    format!("{open}\n{gap}{}\n{pad}{close}", parts.join(format!(",\n{gap}").as_str()))
}

fn one_line(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let members: Vec<String> =
                in_order(members).into_iter().map(|(key, value)| format!("{}: {}", json!(key), one_line(value))).collect();
            format!("{{{}}}", members.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(one_line).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

fn in_order(members: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let rank = |key: &str| FIRST.iter().position(|first| *first == key).unwrap_or(FIRST.len());
    let mut members: Vec<(&String, &Value)> = members.iter().collect();
    members.sort_by(|(a, _), (b, _)| rank(a).cmp(&rank(b)).then_with(|| a.cmp(b)));
    members
}

/// A client by HTTP whose every message is written down.
struct Session {
    client: Client,
    recorder: Recorder,
}

impl Session {
    async fn ask(&mut self, method: &str, params: Value) -> Value {
        let message = self.client.message(self.client.next_id(), method, params);
        let headers = self.client.headers(&message);
        self.recorder.request(&headers, &message);
        let response = with_timeout(method, self.client.post(&headers, message.to_string().as_bytes())).await;
        let answer = response.json();
        schema::check_response(method, &answer);
        let kind = response.header("content-type").expect("a content type");
        self.recorder.response(response.status, &[("Content-Type", kind)], Some(&answer));
        answer
    }

    async fn listen(&mut self, filter: Value) -> Events {
        let message = self.client.message(self.client.next_id(), "subscriptions/listen", json!({"notifications": filter}));
        self.recorder.request(&self.client.headers(&message), &message);
        let events = with_timeout("the stream", self.client.open(&message)).await;
        self.recorder.response(200, &[("Content-Type", "text/event-stream")], None);
        events
    }

    /// The next events of a stream, in short.
    async fn hear(&mut self, events: &mut Events, count: usize) -> Vec<String> {
        let mut heard = Vec::new();
        for _ in 0..count {
            let message = with_timeout("the next event", events.next()).await.expect("the stream goes on");
            self.recorder.said(SERVER, &format!("data: {}", layout(&message, 0, 6)));
            heard.push(in_short(&message));
        }
        heard
    }
}

/// What a message on a stream is: `acknowledged`, the status of a task, the number of a chunk, or the `response`.
fn in_short(message: &Value) -> String {
    let params = &message["params"];
    match message["method"].as_str() {
        Some("notifications/subscriptions/acknowledged") => "acknowledged".to_owned(),
        Some("notifications/tasks") => params["status"].as_str().expect("a status").to_owned(),
        Some("notifications/tasks/partial") => params["seq"].to_string(),
        Some(other) => panic!("nobody asked for `{other}`"),
        None => {
            schema::check_response("subscriptions/listen", message);
            "response".to_owned()
        }
    }
}

/// Sends a listen request on a byte stream and writes down every line up to its response.
async fn listen_by_lines(server: &Server, message: &Value, recorder: &mut Recorder) -> Vec<String> {
    let mut pipe = Pipe::to(server);
    recorder.said(CLIENT, &layout(message, 0, 0));
    pipe.send(message).await;
    let mut heard: Vec<String> = Vec::new();
    while heard.last().is_none_or(|last| last != "response") {
        let message = pipe.message().await;
        if message.get("method").is_some() {
            schema::check_notification(&message);
        }
        recorder.said(SERVER, &layout(&message, 0, 0));
        heard.push(in_short(&message));
    }
    pipe.end();
    pipe.ended().await;
    heard
}

pub(crate) const TOKENS: [&str; 6] = ["The keeper", " lit the lamp", " again", " and finished", " the", " word."];

/// A tool that its test controls: it writes one token at a time, and ends when the test lets it.
struct Story {
    go: Signal,
    written: Signal,
}

impl Story {
    fn tool(&self) -> Tool {
        let state = (self.go.clone(), self.written.clone());
        let tool = Tool::raw("tell", "Tells a story, token by token", json!({"type": "object"}), move |ctx: Ctx| {
            let (go, written) = state.clone();
            async move {
                for token in TOKENS {
                    go.wait().await;
                    ctx.text(token).await?;
                    ctx.flush().await?;
                    written.send();
                }
                go.wait().await;
                Ok(TOKENS.concat())
            }
        });
        tool.streams()
    }

    /// Waits for the token that the test let the tool write.
    async fn written(&self) {
        with_timeout("the token", self.written.wait()).await;
    }

    async fn write(&self) {
        self.go.send();
        self.written().await;
    }
}

#[tokio::test]
async fn partial_results_go_over_the_wire_as_the_document_shows() {
    let story = Story { go: Signal::new(), written: Signal::new() };
    let config = Config { name: "storyteller".to_owned(), version: "1.0.0".to_owned(), ..Config::default() };
    let server = TestServer::start_with(registry([story.tool()]), config, Arc::new(manual_clock())).await;
    let mut session = Session {
        client: Client::new(server.port).declaring(json!({"extensions": {TASKS: {}, PARTIALS: {}}})),
        recorder: Recorder::new(
            "Partial results, message by message",
            "A tool tells a story of six tokens. A client watches, loses its connection, comes back, and takes the result. Output \
             that is written while a task runs is the extension `dev.taskwire/partials`; the body of its notification is that of SEP-2679.",
            LEGEND,
        ),
    };

    session
        .recorder
        .step("Discovery", "A request that declares the extension is told that the server has it; any other sees nothing of it.");
    session.ask("server/discover", json!({})).await;

    session.recorder.step("The tool", "The tool carries a hint that its calls have something to show before they end.");
    session.ask("tools/list", json!({})).await;

    session.recorder.step("The call", "The call becomes a task with its first output, and the answer is its handle.");
    story.go.send();
    let called = session.ask("tools/call", json!({"name": "tell", "arguments": {}})).await;
    let task = called["result"]["taskId"].as_str().expect("the call is a task").to_owned();
    session.recorder.alias(&task, "task-1");
    story.written().await;
    story.write().await;

    session.recorder.step(
        "Listening from the beginning",
        "The acknowledgement says where the stream begins and which number the next chunk will have; then come the state of the task and \
         the two chunks that are stored already.",
    );
    let mut events = session.listen(json!({"taskIds": [task], PARTIALS: [{"taskId": task, "fromSeq": 0}]})).await;
    assert_eq!(session.hear(&mut events, 4).await, ["acknowledged", "working", "0", "1"]);
    session.recorder.remark("The tool writes its third token, and the chunk comes as soon as it is stored.");
    story.write().await;
    assert_eq!(session.hear(&mut events, 1).await, ["2"]);
    session.recorder.remark("The connection breaks. The task goes on: two more tokens are written while nobody listens.");
    drop(events);
    story.write().await;
    story.write().await;

    session.recorder.step("Listening on", "The client has seen number 2, so it asks from 3 on and gets what it missed.");
    let mut events = session.listen(json!({"taskIds": [task], PARTIALS: [{"taskId": task, "fromSeq": 3}]})).await;
    assert_eq!(session.hear(&mut events, 4).await, ["acknowledged", "working", "3", "4"]);

    session.recorder.step("Reading without a stream", "A client that cannot keep a stream open reads the same chunks page by page.");
    session.ask(READ, json!({"taskId": task, "fromSeq": 0, "limit": 2})).await;

    session.recorder.step("Waiting for more", "With `waitMs` the answer comes when there is something new, here the last token.");
    tokio::join!(session.ask(READ, json!({"taskId": task, "fromSeq": 5, "waitMs": 10_000})), story.write());

    session
        .recorder
        .step("The end", "The stream of step 5 is still open: it has the last chunk too, then the task's end, and nothing after it.");
    assert_eq!(session.hear(&mut events, 1).await, ["5"]);
    story.go.send();
    assert_eq!(session.hear(&mut events, 1).await, ["completed"]);
    drop(events);

    session.recorder.step("The result", "What was streamed is for watching; the result that counts is that of the task.");
    let ended = session.ask("tasks/get", json!({"taskId": task})).await;
    assert_eq!(ended["result"]["result"]["content"][0]["text"], TOKENS.concat());

    session.recorder.step(
        "A late reader",
        "What was written can be read as long as the task is kept; a stream that asks for nothing but output ends with its \
         response once all is told.",
    );
    let mut events = session.listen(json!({PARTIALS: [{"taskId": task, "fromSeq": 4}]})).await;
    assert_eq!(session.hear(&mut events, 4).await, ["acknowledged", "4", "5", "response"]);
    assert_eq!(with_timeout("the end of the stream", events.next()).await, None);

    session.recorder.step("On a byte stream", "On stdio the messages are the same, one a line, without headers and `data:`.");
    let filter = json!({"notifications": {PARTIALS: [{"taskId": task, "fromSeq": 5}]}});
    let message = session.client.message(session.client.next_id(), "subscriptions/listen", filter);
    let heard = listen_by_lines(&server.server, &message, &mut session.recorder).await;
    assert_eq!(heard, ["acknowledged", "5", "response"]);

    session.recorder.step("Without the extension", "A request that declares tasks alone is told what it lacks, whatever came before it.");
    session.client = session.client.clone().declaring(json!({"extensions": {TASKS: {}}}));
    let refused = session.ask(READ, json!({"taskId": task})).await;
    assert_eq!(refused["error"]["code"], -32021);

    session.recorder.finish("partials.md");
}

#[test]
fn short_json_stays_on_its_line_and_long_json_gets_more() {
    let short = json!({"b": [1, {}], "a": null, "method": "m", "jsonrpc": "2.0"});
    assert_eq!(layout(&short, 0, 0), r#"{"jsonrpc": "2.0", "method": "m", "a": null, "b": [1, {}]}"#);
    let long = json!({"text": "x".repeat(WIDTH), "id": 7, "list": [short]});
    let line = r#"{"jsonrpc": "2.0", "method": "m", "a": null, "b": [1, {}]}"#;
    let expected = format!("{{\n  \"id\": 7,\n  \"list\": [{line}],\n  \"text\": \"{}\"\n}}", "x".repeat(WIDTH));
    assert_eq!(layout(&long, 0, 0), expected);
}
