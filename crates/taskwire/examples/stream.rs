//! Live output, end to end: `cargo run -p taskwire --example stream`, and with `-- --trace` message by message.
//!
//! A server has a tool that writes token by token, as a language model does. A client calls it over HTTP and shows the
//! text as it comes. In the middle it loses its connection; it comes back, says where it was, and misses nothing. Then it
//! takes the final result, which must be the text that it has shown.

use std::{
    error::Error,
    fmt,
    io::{self, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use taskwire::{
    server::{Config, Server},
    store::SqliteStore,
    tool::{Ctx, Registry, Tool, ToolError},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

const USAGE: &str = "usage: stream [--trace]";
/// The extension for tasks, which is official.
const TASKS: &str = "io.modelcontextprotocol/tasks";
/// The extension for their output while it is written, which is ours.
const PARTIALS: &str = "dev.taskwire/partials";
/// After so many chunks the client loses its connection.
const CHUNKS_BEFORE_THE_CUT: u64 = 12;
/// So long it is away.
const AWAY: Duration = Duration::from_millis(400);

const STORY: &str = "Once there was a lighthouse that answered every ship. One night the lamp went out in the middle of a \
sentence. The keeper lit it again, read in the log where the light had stopped, and finished the word. The ships had waited. \
Nobody was lost, and nobody was told the same thing twice.";

type Failure = Box<dyn Error>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stream: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let trace = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--trace"] => true,
        _ => return Err(USAGE.into()),
    };
    let data = DataDir::new();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let client = Client { address: listener.local_addr()?, trace, last_id: 0 };
    let server = start_server(data.path())?;
    tokio::select! {
        served = server.serve(listener, std::future::pending()) => Ok(served?),
        listened = listen_to_a_story(client) => listened,
    }
}

// The server.

fn start_server(data: &Path) -> Result<Server, Failure> {
    let tools = Registry::new();
    // `streams` tells clients that there is something to see before the end; for them a call becomes a task with its first
    // output.
    tools.tool(Tool::new("tell", "Tells a short story, token by token", tell).streams())?;
    Ok(Server::start(tools, SqliteStore::open(data)?, Config::default())?)
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

async fn tell(_: Nothing, ctx: Ctx) -> Result<String, ToolError> {
    let mut written = String::new();
    for token in STORY.split_inclusive(' ') {
        ctx.text(token).await?; // to the disk, and then to whoever listens
        written.push_str(token);
        ctx.sleep(Duration::from_millis(40)).await?; // the model thinks; ends early when the task is cancelled
    }
    Ok(written)
}

// The client.

async fn listen_to_a_story(mut client: Client) -> Result<(), Failure> {
    let created = client.ask("tools/call", json!({"name": "tell", "arguments": {}})).await?;
    let id = created["taskId"].as_str().ok_or("the call did not become a task")?.to_owned();

    let mut shown = Shown::default();
    let mut stream = client.listen(&id, shown.next_seq).await?;
    while shown.next_seq < CHUNKS_BEFORE_THE_CUT {
        let message = stream.next().await?.ok_or("the stream ended early")?;
        client.show(&mut shown, &message)?;
    }
    drop(stream);
    client.remark("the connection is lost, the story goes on")?;
    tokio::time::sleep(AWAY).await;
    client.remark(&format!("back again: all from number {} on, please", shown.next_seq))?;

    // First comes what was missed, then what is new. The stream ends by itself when the task has.
    let mut stream = client.listen(&id, shown.next_seq).await?;
    while let Some(message) = stream.next().await? {
        client.show(&mut shown, &message)?;
    }

    // What was streamed is for watching. The result is what counts.
    let task = client.ask("tasks/get", json!({"taskId": id})).await?;
    if task["status"] != "completed" || task["result"]["content"][0]["text"] != shown.text.as_str() {
        return Err(format!("the result is not what was streamed: {task}").into());
    }
    client.remark(&format!("done: the result is the text that was streamed in {} chunks", shown.next_seq))
}

/// What the client has shown so far.
#[derive(Default)]
struct Shown {
    text: String,
    /// The number of the chunk that comes next.
    next_seq: u64,
}

/// A client that says everything in each request, and uses a connection for each.
struct Client {
    address: SocketAddr,
    trace: bool,
    last_id: u64,
}

impl Client {
    /// Sends a request and gives its result.
    async fn ask(&mut self, method: &str, params: Value) -> Result<Value, Failure> {
        let response = self.send(method, params).await?.next().await?.ok_or("there was no answer")?;
        match response.get("result") {
            Some(result) => Ok(result.clone()),
            None => Err(format!("{method} failed: {}", response["error"]).into()),
        }
    }

    /// Listens to the output of a task, from this chunk on.
    async fn listen(&mut self, id: &str, from_seq: u64) -> Result<Messages, Failure> {
        let filter = json!({PARTIALS: [{"taskId": id, "fromSeq": from_seq}]});
        self.send("subscriptions/listen", json!({"notifications": filter})).await
    }

    async fn send(&mut self, method: &str, mut params: Value) -> Result<Messages, Failure> {
        // Some headers repeat what the body says, for proxies that do not read it.
        let name = params["name"].as_str().or(params["taskId"].as_str());
        let name = name.map_or(String::new(), |name| format!("Mcp-Name: {name}\r\n"));
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}, PARTIALS: {}}},
        });
        self.last_id += 1;
        let body = json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}).to_string();
        if self.trace {
            print(format_args!("→ {body}\n"))?;
        }
        // HTTP/1.0: what is answered comes as it is, line by line, and ends with the connection.
        let head = format!(
            "POST /mcp HTTP/1.0\r\n\
             Host: {}\r\n\
             Content-Type: application/json\r\n\
             Content-Length: {}\r\n\
             Accept: application/json, text/event-stream\r\n\
             MCP-Protocol-Version: 2026-07-28\r\n\
             Mcp-Method: {method}\r\n\
             {name}\r\n",
            self.address,
            body.len()
        );
        let mut connection = BufReader::new(TcpStream::connect(self.address).await?);
        connection.write_all(format!("{head}{body}").as_bytes()).await?;
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            if connection.read_line(&mut line).await? == 0 {
                return Err("the server closed the connection".into());
            }
        }
        Ok(Messages { connection, trace: self.trace })
    }

    /// Shows a chunk if the message has one. Chunks are numbered from 0 without a gap, so none can be missed unnoticed.
    fn show(&self, shown: &mut Shown, message: &Value) -> Result<(), Failure> {
        if let Some(error) = message.get("error") {
            return Err(format!("the stream failed: {error}").into());
        }
        if message["method"] != "notifications/tasks/partial" {
            return Ok(());
        }
        let params = &message["params"];
        if params["seq"] != shown.next_seq {
            return Err(format!("chunk {} came where {} was expected", params["seq"], shown.next_seq).into());
        }
        shown.next_seq += 1;
        for block in params["content"].as_array().into_iter().flatten() {
            let text = block["text"].as_str().unwrap_or_default();
            shown.text.push_str(text);
            if !self.trace {
                print(format_args!("{text}"))?;
            }
        }
        Ok(())
    }

    fn remark(&self, text: &str) -> Result<(), Failure> {
        let margin = if self.trace { "" } else { "\n" };
        Ok(print(format_args!("{margin}[{text}]\n"))?)
    }
}

/// Shows text at once, also in the middle of a line.
fn print(text: fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_fmt(text)?;
    out.flush()
}

/// The messages of an answer, one by one. Dropping it closes the connection.
struct Messages {
    connection: BufReader<TcpStream>,
    trace: bool,
}

impl Messages {
    /// The next message; none at the end. An event is a line that begins with `data: `, a plain response the line itself.
    async fn next(&mut self) -> Result<Option<Value>, Failure> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.connection.read_line(&mut line).await? == 0 {
                return Ok(None);
            }
            let text = line.trim_end();
            // Blank lines part the events, comments show that the server is alive.
            if text.is_empty() || text.starts_with(':') {
                continue;
            }
            let message = text.strip_prefix("data: ").unwrap_or(text);
            if self.trace {
                print(format_args!("← {message}\n"))?;
            }
            return Ok(Some(serde_json::from_str(message)?));
        }
    }
}

/// A directory that goes away with the example.
struct DataDir(PathBuf);

impl DataDir {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("taskwire-stream-{}", std::process::id())))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
