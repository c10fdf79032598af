//! Who does not ask for partial results sees no byte of them: a tool that streams looks like one that does not.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use taskwire::{
    server::{Config, Server},
    store::SqliteStore,
    tool::{Ctx, Progress, Tool, ToolError},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines},
    net::TcpStream,
};

use crate::{
    kit::{Client, PARTIALS, Response, TASKS, TempDir, TestServer, any_disk, manual_clock, soon},
    tasks::{Gate, registry, tool},
};

const SECOND: Duration = Duration::from_secs(1);
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
        let response = soon("the answer", client.raw(method, params)).await;
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
        let n = soon(text, stream.read_buf(seen)).await.expect("readable");
        assert!(n > 0, "the stream ended before `{text}`: {}", String::from_utf8_lossy(seen));
    }
}

/// The life of a task over HTTP, by a client that declares tasks and nothing else.
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
    let (created, ()) = soon("the handle", async { tokio::join!(call, pass) }).await;
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
    soon("the end of the stream", stream.read_to_end(&mut raw)).await.expect("readable");
    seen.add_stream(&raw);
    soon("the shutdown", server.stopped()).await;
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

/// The client's end of a byte stream, and every line that came of it.
struct Pipe {
    client: Client,
    input: DuplexStream,
    output: Lines<BufReader<DuplexStream>>,
    seen: Vec<String>,
}

impl Pipe {
    async fn send(&mut self, method: &str, params: Value) {
        let message = self.client.message(self.client.next_id(), method, params);
        soon("room in the pipe", self.input.write_all(format!("{message}\n").as_bytes())).await.expect("writable");
    }

    async fn line(&mut self) -> Option<&str> {
        let line = soon("the next line", self.output.next_line()).await.expect("readable")?;
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

/// The life of a task over a byte stream, by a client that declares tasks and nothing else.
async fn over_a_pipe(streams: bool) -> String {
    let (gate, clock, dir) = (Gate::new(), manual_clock(), TempDir::new());
    let store = SqliteStore::open(dir.path()).expect("a store");
    let tools = registry([worker(&gate, streams)]);
    let server = Server::start_with_clock(tools, store, any_disk(Config::default()), Arc::new(clock.clone())).expect("a server");
    let (input, server_input) = tokio::io::duplex(64 * 1024);
    let (server_output, output) = tokio::io::duplex(64 * 1024);
    let serving = tokio::spawn(async move { server.serve_stream(server_input, server_output, std::future::pending()).await });
    let output = BufReader::new(output).lines();
    let mut pipe = Pipe { client: tasks_alone(Client::new(0)), input, output, seen: Vec::new() };
    pipe.ask("server/discover", json!({})).await;
    pipe.ask("tools/list", json!({})).await;
    pipe.send("tools/call", json!({"name": "work", "arguments": {}})).await;
    soon("the start", gate.started.wait()).await;
    clock.advance(SECOND);
    let created: Value = serde_json::from_str(pipe.line().await.expect("the handle")).expect("JSON");
    let id = created["result"]["taskId"].as_str().expect("a task").to_owned();
    pipe.ask("tasks/get", json!({"taskId": id})).await;
    pipe.send("subscriptions/listen", json!({"notifications": {"taskIds": [id]}})).await;
    pipe.line_with("acknowledged").await;
    pipe.line_with("\"working\"").await;
    gate.go.send();
    pipe.line_with("half way").await;
    // Its task has changed since the last one, so this poll is not too eager.
    pipe.ask("tasks/get", json!({"taskId": id})).await;
    gate.go.send();
    pipe.line_with("\"completed\"").await;
    pipe.ask("tasks/get", json!({"taskId": id})).await;
    let Pipe { input, mut output, mut seen, .. } = pipe;
    drop(input);
    while let Some(line) = soon("the end of the stream", output.next_line()).await.expect("readable") {
        seen.push(line);
    }
    soon("the end of the server", serving).await.expect("no panic").expect("a clean end");
    seen.join("\n").replace(&id, "the task")
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
