//! A server in this process, with tools that do what a test wants when it wants it.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{Arc, Mutex, mpsc},
    thread,
};

use serde_json::{Value, json};
use taskwire::{
    server::{Config, Server},
    store::SqliteStore,
    tool::{Content, Ctx, Question, Registry, TaskMode, Tool, ToolError},
};
use tokio::{net::TcpListener, runtime::Runtime, sync::Semaphore};

use crate::kit::TempDir;

/// A server on a port of its own.
#[derive(Debug)]
pub(crate) struct TestServer {
    runtime: Option<Runtime>,
    pub(crate) port: u16,
    _dir: TempDir,
}

impl TestServer {
    pub(crate) fn serve(tools: impl IntoIterator<Item = Tool>) -> Self {
        Self::serve_with(tools, Config::default())
    }

    pub(crate) fn serve_with(tools: impl IntoIterator<Item = Tool>, mut config: Config) -> Self {
        // However full the disk is where the tests run.
        config.engine.limits.disk_reserve_bytes = 0;
        let dir = TempDir::new();
        let registry = Registry::new();
        for tool in tools {
            registry.tool(tool).expect("a tool that can be used");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let port = runtime.block_on(async {
            let store = SqliteStore::open(dir.path()).expect("a store");
            let server = Server::start(registry, store, config).expect("a server");
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let port = listener.local_addr().expect("an address").port();
            tokio::spawn(async move { server.serve(listener, std::future::pending()).await });
            port
        });
        Self { runtime: Some(runtime), port, _dir: dir }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        // Not by dropping it: that would wait for tools that wait for us.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Lets a tool go on step by step.
#[derive(Debug, Clone)]
pub(crate) struct Gate(Arc<Semaphore>);

impl Gate {
    pub(crate) fn closed() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    /// Lets so many steps through.
    pub(crate) fn open(&self, steps: usize) {
        self.0.add_permits(steps);
    }

    /// Waits to be let through.
    pub(crate) async fn pass(&self, ctx: &Ctx) -> Result<(), ToolError> {
        tokio::select! {
            permit = self.0.acquire() => {
                permit.expect("nobody closes it for good").forget();
                Ok(())
            }
            () = ctx.cancelled() => Err(ToolError::stopped()),
        }
    }
}

fn no_parameters() -> Value {
    json!({"type": "object", "properties": {}})
}

/// Writes these texts, each a chunk of its own, and comes to `result`. Each chunk, and the end, is a step.
pub(crate) fn steps<T: Into<String>>(name: &str, gate: &Gate, texts: impl IntoIterator<Item = T>, result: &str) -> Tool {
    let texts: Arc<[String]> = texts.into_iter().map(Into::into).collect();
    let (gate, result) = (gate.clone(), Arc::<str>::from(result));
    let body = move |ctx: Ctx| {
        let (gate, texts, result) = (gate.clone(), texts.clone(), result.clone());
        async move {
            for text in texts.iter() {
                gate.pass(&ctx).await?;
                ctx.block(Content::text(text)).await?;
                ctx.flush().await?;
            }
            gate.pass(&ctx).await?;
            Ok::<String, ToolError>(result.to_string())
        }
    };
    Tool::raw(name, "Writes step by step", no_parameters(), body).streams().task(TaskMode::Always)
}

/// Says how it is getting on, and ends when it is let through.
pub(crate) fn says(name: &str, gate: &Gate, message: &str, mode: TaskMode) -> Tool {
    let (gate, message) = (gate.clone(), Arc::<str>::from(message));
    let body = move |ctx: Ctx| {
        let (gate, message) = (gate.clone(), message.clone());
        async move {
            ctx.status(&message).await?;
            gate.pass(&ctx).await?;
            Ok::<&'static str, ToolError>("done")
        }
    };
    Tool::raw(name, "Says how it is getting on", no_parameters(), body).task(mode)
}

/// Asks this, and comes to the answer.
pub(crate) fn asks(name: &str, key: &'static str, question: Question, mode: TaskMode) -> Tool {
    let body = move |ctx: Ctx| {
        let question = question.clone();
        async move {
            let answer = ctx.ask(key, question).await?;
            Ok::<String, ToolError>(json!({"action": answer.action, "content": answer.content}).to_string())
        }
    };
    Tool::raw(name, "Asks a question", no_parameters(), body).task(mode)
}

/// Gives its arguments back, at once.
pub(crate) fn echo() -> Tool {
    let schema = json!({
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "ratio": {"type": "number"},
            "sure": {"type": "boolean"},
            "colour": {"enum": ["red", "green"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "deep": {"type": "object"},
        },
        "required": ["text"],
    });
    let body = |ctx: Ctx| async move { Ok::<String, ToolError>(ctx.arguments().as_str().to_owned()) };
    Tool::raw("echo", "Gives its arguments back", schema, body).task(TaskMode::Never)
}

/// The script of a server: from a request's method and parameters to the result, or nothing if the server refuses access.
type ScriptFn = dyn Fn(&str, &Value) -> Option<String> + Send + Sync;

/// What a scripted server says about itself.
const DISCOVERED: &str = r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}"#;

/// A server whose responses the test writes, and which records its requests.
#[derive(Debug)]
pub(crate) struct ScriptedServer {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl ScriptedServer {
    fn play(script: Arc<ScriptFn>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let recorded = requests.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (recorded, script) = (recorded.clone(), script.clone());
                thread::spawn(move || answer(&client, &recorded, &*script));
            }
        });
        Self { port, requests }
    }

    /// One that lets nobody in.
    pub(crate) fn closed() -> Self {
        Self::play(Arc::new(|_: &str, _: &Value| None::<String>))
    }

    /// One whose only tool, `hold`, never comes to anything; and that it was called.
    pub(crate) fn silent() -> (Self, mpsc::Receiver<()>) {
        let (sender, called) = mpsc::channel();
        let script = move |method: &str, _: &Value| {
            Some(match method {
                "server/discover" => DISCOVERED.to_owned(),
                "tools/list" => r#"{"resultType":"complete","tools":[{"name":"hold","inputSchema":{"type":"object"}}]}"#.to_owned(),
                _ => {
                    let _ = sender.send(());
                    loop {
                        thread::park();
                    }
                }
            })
        };
        (Self::play(Arc::new(script)), called)
    }

    /// One with a task that works and was begun then.
    pub(crate) fn working(task: &'static str, since: String) -> Self {
        Self::showing(json!({
            "resultType": "complete", "taskId": task, "status": "working", "createdAt": since, "lastUpdatedAt": since,
            "ttlMs": null, "pollIntervalMs": 1000,
        }))
    }

    /// One that says this of its only task, and takes every answer.
    pub(crate) fn showing(state: Value) -> Self {
        Self::play(Arc::new(move |method: &str, _: &Value| {
            Some(match method {
                "server/discover" => {
                    let tasks = r#""extensions":{"io.modelcontextprotocol/tasks":{}}"#;
                    DISCOVERED.replace(r#""tools":{}"#, tasks)
                }
                "tasks/get" => state.to_string(),
                "tasks/update" => r#"{"resultType":"complete"}"#.to_owned(),
                _ => loop {
                    thread::park();
                },
            })
        }))
    }

    /// One whose only tool, `ask`, asks this (`inputRequests`, word for word) and comes to the answers.
    pub(crate) fn asking(questions: &'static str) -> Self {
        Self::play(Arc::new(move |method: &str, params: &Value| {
            Some(match (method, params.get("inputResponses")) {
                ("server/discover", _) => DISCOVERED.to_owned(),
                ("tools/list", _) => r#"{"resultType":"complete","tools":[{"name":"ask","inputSchema":{"type":"object"}}]}"#.to_owned(),
                (_, Some(answers)) => {
                    json!({"resultType": "complete", "content": [{"type": "text", "text": answers.to_string()}]}).to_string()
                }
                (_, None) => format!(r#"{{"resultType":"input_required","inputRequests":{questions}}}"#),
            })
        }))
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }

    /// The methods of all requests since this was asked last.
    pub(crate) fn methods(&self) -> Vec<String> {
        let method = |request: &String| {
            let (_, body) = request.split_once("\r\n\r\n")?;
            serde_json::from_str::<Value>(body).ok()?["method"].as_str().map(str::to_owned)
        };
        self.take_requests().iter().filter_map(method).collect()
    }

    /// All requests since this was asked last, with their headers.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().expect("nobody panics while they hold it"))
    }
}

/// Answers one request, and hangs up.
fn answer(mut client: &TcpStream, requests: &Mutex<Vec<String>>, script: &ScriptFn) -> io::Result<()> {
    let mut reader = BufReader::new(client);
    let mut head = String::new();
    while reader.read_line(&mut head)? > 0 && !head.ends_with("\r\n\r\n") {}
    let lower = head.to_ascii_lowercase();
    let len = lower.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; len.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    requests.lock().expect("nobody panics while they hold it").push(head + &String::from_utf8_lossy(&body));
    let (status, body) = match script(request["method"].as_str().unwrap_or_default(), &request["params"]) {
        Some(result) => ("200 OK", format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, request["id"])),
        None => ("401 Unauthorized", String::new()),
    };
    let kind = "Content-Type: application/json";
    write!(client, "HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

/// Stands between a client and a server, and does not pass on what has these words in it, but says that they came.
pub(crate) fn proxy_withholding(words: &'static str, port: u16) -> (u16, mpsc::Receiver<()>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let own = listener.local_addr().expect("an address").port();
    let (sender, came) = mpsc::channel();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(("127.0.0.1", port)).expect("the server is there");
            let twice = |stream: &TcpStream| stream.try_clone().expect("another handle");
            pass(twice(&client), twice(&server), Some((words, sender.clone())));
            pass(server, client, None);
        }
    });
    (own, came)
}

fn pass(mut from: TcpStream, mut to: TcpStream, but: Option<(&'static str, mpsc::Sender<()>)>) {
    thread::spawn(move || {
        let mut buffer = [0; 64 * 1024];
        while let Ok(len) = from.read(&mut buffer)
            && len > 0
        {
            let text = String::from_utf8_lossy(&buffer[..len]);
            if let Some((_, came)) = but.as_ref().filter(|(words, _)| text.contains(words)) {
                let _ = came.send(());
                // Whoever waits for an answer waits.
                let _ = io::copy(&mut from, &mut io::sink());
                return;
            }
            if to.write_all(&buffer[..len]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}
