//! A server in this process, with tools that do what a test wants when it wants it.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    sync::Arc,
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
pub(crate) struct Fixture {
    runtime: Option<Runtime>,
    pub(crate) port: u16,
    _dir: TempDir,
}

impl Fixture {
    pub(crate) fn serve(tools: impl IntoIterator<Item = Tool>) -> Self {
        Self::serve_with(tools, Config::default())
    }

    pub(crate) fn serve_with(tools: impl IntoIterator<Item = Tool>, config: Config) -> Self {
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

impl Drop for Fixture {
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

/// Stands between a client and a server, and does not pass on what has these words in it.
pub(crate) fn deaf_to(words: &'static str, port: u16) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let own = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(("127.0.0.1", port)).expect("the server is there");
            let twice = |stream: &TcpStream| stream.try_clone().expect("another handle");
            pass(twice(&client), twice(&server), Some(words));
            pass(server, client, None);
        }
    });
    own
}

fn pass(mut from: TcpStream, mut to: TcpStream, but: Option<&'static str>) {
    thread::spawn(move || {
        let mut buffer = [0; 64 * 1024];
        while let Ok(len) = from.read(&mut buffer)
            && len > 0
        {
            let text = String::from_utf8_lossy(&buffer[..len]);
            if but.is_some_and(|but| text.contains(but)) {
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
