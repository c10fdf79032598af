//! A client that does not ask for partial results gets no byte of them: a tool that streams looks like one that does not.

use std::sync::Arc;

use serde_json::{Value, json};
use taskwire::{
    server::Config,
    tool::{Ctx, Progress, Tool, ToolError},
};
use tokio::{io::AsyncReadExt, net::TcpStream};

use crate::{
    kit::{Client, PARTIALS, Response, SECOND, TASKS, TempDir, TestServer, manual_clock, server_in, with_timeout},
    pipe::Pipe,
    tasks::{Gate, registry, tool},
};

/// What all names of ours begin with.
const OURS: &str = "dev.taskwire";

/// A tool that works in two steps, and writes in each if it is one that streams.
fn worker(gate: &Gate, streams: bool) -> Tool {
    let worker = tool("work", &(gate.clone(), streams), |(gate, streams), ctx| async move {
        if streams {
            ctx.text("before it is a task").await?;
        }
        gate.started.send();
        gate.go.wait().await;
        write(&ctx, streams).await?;
        ctx.progress(Progress::of(1.0, 2.0).message("half way")).await?;
        gate.go.wait().await;
        write(&ctx, streams).await?;
        Ok("done")
    });
    if streams { worker.streams() } else { worker }
}

async fn write(ctx: &Ctx, streams: bool) -> Result<(), ToolError> {
    if streams {
        for n in 0..5 {
            ctx.text(format!("chunk {n}")).await?;
            ctx.flush().await?;
        }
        ctx.text("and more").await?;
    }
    Ok(())
}

fn tasks_alone(client: Client) -> Client {
    client.declaring(json!({"extensions": {TASKS: {}}}))
}

/// Everything that a server sent over HTTP, without what differs from one run to the next.
#[derive(Default)]
struct Transcript(String);

impl Transcript {
    async fn ask(&mut self, client: &Client, method: &str, params: Value) {
        let response = with_timeout("the answer", client.raw(method, params)).await;
        self.add(&response);
    }

    fn add(&mut self, response: &Response) {
        let headers: Vec<_> = response.headers.iter().filter(|(key, _)| key != "date").collect();
        let body = String::from_utf8_lossy(&response.body);
        self.0.push_str(&format!("{} {headers:?}\n{body}\n", response.status));
    }

    /// An event stream as it was read from the connection, head and all.
    fn add_stream(&mut self, raw: &[u8]) {
        let text = String::from_utf8_lossy(raw);
        let (head, mut chunks) = text.split_once("\r\n\r\n").expect("a head and a body");
        for line in head.lines().filter(|line| !line.starts_with("date:")) {
            self.0.push_str(&format!("{line}\n"));
        }
        // Where one chunk ends and the next begins is a matter of timing.
        while let Some((size, rest)) = chunks.split_once("\r\n") {
            let size = usize::from_str_radix(size, 16).expect("a chunk size");
            self.0.push_str(&rest[..size]);
            chunks = rest[size..].strip_prefix("\r\n").expect("the end of a chunk");
        }
    }
}

/// Reads until this text has come.
async fn read_until(stream: &mut TcpStream, seen: &mut Vec<u8>, text: &str) {
    while !String::from_utf8_lossy(seen).contains(text) {
        let n = with_timeout(text, stream.read_buf(seen)).await.expect("readable");
        assert!(n > 0, "the stream ended before `{text}`: {}", String::from_utf8_lossy(seen));
    }
}

/// A task from call to result over HTTP, by a client that declares tasks and nothing else.
async fn over_http(streams: bool) -> String {
    let (gate, clock) = (Gate::new(), manual_clock());
    let tools = registry([worker(&gate, streams)]);
    let mut server = TestServer::start_with(tools, Config::default(), Arc::new(clock.clone())).await;
    let (client, mut seen) = (tasks_alone(server.plain_client()), Transcript::default());
    seen.ask(&client, "server/discover", json!({})).await;
    seen.ask(&client, "tools/list", json!({})).await;
    let call = client.raw("tools/call", json!({"name": "work", "arguments": {}}));
    let pass = async {
        gate.started.wait().await;
        clock.advance(SECOND);
    };
    let (created, ()) = with_timeout("the handle", async { tokio::join!(call, pass) }).await;
    seen.add(&created);
    let id = created.json()["result"]["taskId"].as_str().expect("a task").to_owned();
    seen.ask(&client, "tasks/get", json!({"taskId": id})).await;
    let message = client.message(client.next_id(), "subscriptions/listen", json!({"notifications": {"taskIds": [id]}}));
    let mut stream = client.send(&client.headers(&message), message.to_string().as_bytes()).await;
    let mut raw = Vec::new();
    read_until(&mut stream, &mut raw, "\"working\"").await;
    gate.go.send();
    read_until(&mut stream, &mut raw, "half way").await;
    seen.ask(&client, "tasks/get", json!({"taskId": id})).await;
    gate.go.send();
    read_until(&mut stream, &mut raw, "\"completed\"").await;
    seen.ask(&client, "tasks/get", json!({"taskId": id})).await;
    server.stop();
    with_timeout("the end of the stream", stream.read_to_end(&mut raw)).await.expect("readable");
    seen.add_stream(&raw);
    with_timeout("the shutdown", server.stopped()).await;
    seen.0.replace(&id, "the task")
}

/// A call over HTTP by a client that declares nothing and waits for the result.
async fn over_http_held(streams: bool) -> String {
    let gate = Gate::new();
    let server = TestServer::start_with(registry([worker(&gate, streams)]), Config::default(), Arc::new(manual_clock())).await;
    let (client, mut seen) = (server.plain_client(), Transcript::default());
    seen.ask(&client, "server/discover", json!({})).await;
    seen.ask(&client, "tools/list", json!({})).await;
    gate.go.send();
    gate.go.send();
    seen.ask(&client, "tools/call", json!({"name": "work", "arguments": {}, "_meta": {"progressToken": "p"}})).await;
    seen.0
}

/// A byte stream, and every line that came of it.
struct Peer {
    client: Client,
    pipe: Pipe,
    seen: Vec<String>,
}

impl Peer {
    async fn send(&mut self, method: &str, params: Value) {
        self.pipe.send(&self.client.message(self.client.next_id(), method, params)).await;
    }

    async fn line(&mut self) -> Option<&str> {
        let line = self.pipe.line().await?;
        self.seen.push(line);
        self.seen.last().map(String::as_str)
    }

    async fn line_with(&mut self, text: &str) {
        let line = self.line().await.expect("the stream goes on");
        assert!(line.contains(text), "not `{text}`: {line}");
    }

    async fn ask(&mut self, method: &str, params: Value) {
        self.send(method, params).await;
        self.line_with("\"result\"").await;
    }
}

/// A task from call to result over a byte stream, by a client that declares tasks and nothing else.
async fn over_a_pipe(streams: bool) -> String {
    let (gate, clock, dir) = (Gate::new(), manual_clock(), TempDir::new());
    let server = server_in(&dir, registry([worker(&gate, streams)]), Config::default(), Arc::new(clock.clone()));
    let mut peer = Peer { client: tasks_alone(Client::new(0)), pipe: Pipe::to(&server), seen: Vec::new() };
    peer.ask("server/discover", json!({})).await;
    peer.ask("tools/list", json!({})).await;
    peer.send("tools/call", json!({"name": "work", "arguments": {}})).await;
    with_timeout("the start", gate.started.wait()).await;
    clock.advance(SECOND);
    let created: Value = serde_json::from_str(peer.line().await.expect("the handle")).expect("JSON");
    let id = created["result"]["taskId"].as_str().expect("a task").to_owned();
    peer.ask("tasks/get", json!({"taskId": id})).await;
    peer.send("subscriptions/listen", json!({"notifications": {"taskIds": [id]}})).await;
    peer.line_with("acknowledged").await;
    peer.line_with("\"working\"").await;
    gate.go.send();
    peer.line_with("half way").await;
    // Its task has changed since the last one, so this poll is not too eager.
    peer.ask("tasks/get", json!({"taskId": id})).await;
    gate.go.send();
    peer.line_with("\"completed\"").await;
    peer.ask("tasks/get", json!({"taskId": id})).await;
    peer.pipe.end();
    while peer.line().await.is_some() {}
    peer.pipe.ended().await;
    peer.seen.join("\n").replace(&id, "the task")
}

/// Both must say these things, say them alike, and nothing of ours.
#[track_caller]
fn assert_alike(streaming: &str, plain: &str, said: &[&str]) {
    for text in said {
        assert!(plain.contains(text), "`{text}` is not in {plain}");
    }
    assert_eq!(streaming, plain);
    assert!(!streaming.contains(OURS), "{streaming}");
    assert!(!streaming.contains("chunk 0") && !streaming.contains("streamPartial"), "{streaming}");
}

#[tokio::test]
async fn who_declares_tasks_alone_gets_the_same_bytes_over_http() {
    let (streaming, plain) = (over_http(true).await, over_http(false).await);
    assert_alike(&streaming, &plain, &["inputSchema", "half way (1/2)", "\"text\":\"done\"", "acknowledged", "the task"]);
}

#[tokio::test]
async fn who_declares_nothing_gets_the_same_bytes_over_http() {
    let (streaming, plain) = (over_http_held(true).await, over_http_held(false).await);
    assert_alike(&streaming, &plain, &["inputSchema", "notifications/progress", "half way", "\"text\":\"done\""]);
}

#[tokio::test]
async fn who_declares_tasks_alone_gets_the_same_bytes_on_a_stream() {
    let (streaming, plain) = (over_a_pipe(true).await, over_a_pipe(false).await);
    assert_alike(&streaming, &plain, &["inputSchema", "acknowledged", "half way (1/2)", "\"text\":\"done\"", "the task"]);
}

#[tokio::test]
async fn who_asks_is_told() {
    let server = TestServer::start(registry([worker(&Gate::new(), true)])).await;
    let client = server.streaming_client();
    let discovered = client.ok("server/discover", json!({})).await;
    assert_eq!(discovered["capabilities"]["extensions"], json!({TASKS: {}, PARTIALS: {}}));
    let listed = client.ok("tools/list", json!({})).await;
    assert_eq!(listed["tools"][0]["_meta"], json!({PARTIALS: {"streamPartial": true}}));
}
