//! Work that goes on all the time, and a ledger of what was acknowledged of it.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use serde_json::{Value, json};
use taskwire::{
    server::Config,
    store::PostgresConfig,
    tool::{Content, Registry, TaskMode, Tool},
};
use taskwire_testkit::Server;
use tokio::{
    sync::watch,
    task::{JoinHandle, block_in_place},
    time::{MissedTickBehavior, interval},
};

use super::Node;
use crate::{
    kit::{Client, Events, KEY, MS, Response, with_timeout},
    tasks::{registry, tool},
    tool_harness::{follow, read, text_of, uncoalesced},
};

/// How long a run waits after each chunk, in milliseconds, and a caller before each call.
const CHUNK_PAUSE: u32 = 20;
const CALL_PAUSE: u32 = 200;
/// Callers who make tasks, one after the other.
const CALLERS: usize = 3;
/// Chunks of each task that they make.
const CHUNKS: u64 = 3;

/// What was tried, and what was acknowledged.
#[derive(Default)]
struct Book {
    /// Each text that a run has tried to write. No two are the same.
    tried: HashSet<String>,
    /// What is certainly written: texts, by the name of the task and the number of the chunk.
    written: BTreeMap<String, BTreeMap<u64, String>>,
    /// The tasks that callers have made: ids, by the names.
    made: BTreeMap<String, String>,
    /// How many requests were told to try again.
    refused: u64,
    /// Whether runs and callers are to come to an end.
    may_end: bool,
}

impl Book {
    fn written(&self, name: &str) -> u64 {
        self.written.get(name).map_or(0, |chunks| chunks.len() as u64)
    }
}

#[derive(Clone, Default)]
struct Ledger(Arc<watch::Sender<Book>>);

impl Ledger {
    fn note(&self, change: impl FnOnce(&mut Book)) {
        self.0.send_modify(change);
    }

    async fn until(&self, is_so: impl FnMut(&Book) -> bool) {
        let mut book = self.0.subscribe();
        book.wait_for(is_so).await.map(drop).expect("the ledger is there");
    }

    fn may_end(&self) -> bool {
        self.0.borrow().may_end
    }

    /// A tool that writes numbered chunks with a checkpoint each: so many as it is told, or until the test lets it end. Its result is their
    /// number.
    fn tool(&self) -> Tool {
        tool("writes", self, |ledger, ctx| async move {
            let wanted: Value = ctx.arguments().read()?;
            let (name, chunks) = (wanted["name"].as_str().expect("a name"), wanted["chunks"].as_u64());
            let mut number = ctx.saved::<u64>()?.unwrap_or(0);
            while chunks.map_or_else(|| !ledger.may_end(), |chunks| number < chunks) {
                let mut text = String::new();
                ledger.note(|book| {
                    // If it is lost and written again, it is another text.
                    text = format!("{name} {number} {}", book.tried.len());
                    book.tried.insert(text.clone());
                });
                ctx.step([Content::text(&text)], &(number + 1)).await?;
                ledger.note(|book| {
                    let earlier = book.written.entry(name.to_owned()).or_default().insert(number, text);
                    assert_eq!(earlier, None, "chunk {number} of {name} was written before");
                });
                number += 1;
                ctx.sleep(CHUNK_PAUSE * MS).await?;
            }
            Ok(number.to_string())
        })
        .task(TaskMode::Always)
        .retry_on_interrupt()
    }

    /// The result in a response; none if it says to try again, and nothing else is allowed.
    fn result_of(&self, response: &Response) -> Option<Value> {
        let message = response.messages().pop().expect("a response");
        if response.status == 503 {
            assert!(response.header("retry-after").is_some(), "{message}");
            self.note(|book| book.refused += 1);
            return None;
        }
        assert!(response.status == 200 && message["result"].is_object(), "{} {message}", response.status);
        Some(message["result"].clone())
    }

    /// Makes tasks, one after the other. Each request meets another node, and is sent again until it is acknowledged.
    async fn make_tasks(self, caller: usize, clients: Vec<Client>) {
        let mut pace = interval(CALL_PAUSE * MS);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut clients = clients.iter().cycle().skip(caller);
        let mut next_client = || clients.next().expect("there are some");
        for n in 0.. {
            let name = format!("task {n} of caller {caller}");
            let params = json!({"name": "writes", "arguments": {"name": name, "chunks": CHUNKS}, "_meta": {KEY: name}});
            let id = loop {
                pace.tick().await;
                let response = next_client().raw("tools/call", params.clone()).await;
                if let Some(task) = self.result_of(&response) {
                    break task["taskId"].as_str().expect("an id").to_owned();
                }
            };
            self.note(|book| drop(book.made.insert(name, id.clone())));
            // What one node has acknowledged is known to another one.
            let seen = self.result_of(&next_client().raw("tasks/get", json!({"taskId": id})).await);
            assert!(seen.is_none_or(|task| task["taskId"] == id));
            if self.may_end() {
                return;
            }
        }
    }
}

/// Reads all output of a task from a stream that stays open, to the end of the task. Returns the number of chunks.
async fn follow_to_end(mut stream: Events, name: String) -> u64 {
    let mut number = 0;
    loop {
        let message = stream.next().await.unwrap_or_else(|| panic!("the stream of {name} has ended after {number} chunks"));
        match message["method"].as_str() {
            Some("notifications/tasks/partial") => {
                assert_eq!(message["params"]["seq"], number, "{name}: {message}");
                number += 1;
            }
            Some("notifications/tasks") if message["params"]["status"] == "completed" => return number,
            Some("notifications/tasks") if message["params"]["status"] == "working" => {}
            _ => panic!("the stream of {name}: {message}"),
        }
    }
}

/// A task that writes until the test lets it end.
struct Long {
    name: String,
    id: String,
}

/// Nodes on which a task writes all the time, each followed by a stream of another node, and callers who make further tasks on all of them.
pub(super) struct Load {
    pub(super) nodes: Vec<Node>,
    ledger: Ledger,
    client: Client,
    long: Vec<Long>,
    streams: Vec<JoinHandle<u64>>,
    callers: Vec<JoinHandle<()>>,
}

impl Load {
    pub(super) async fn begin(configs: impl IntoIterator<Item = PostgresConfig>) -> Self {
        let mut load = Self::idle(configs).await;
        load.start().await;
        load
    }

    /// Nodes that have nothing to do yet.
    pub(super) async fn idle(configs: impl IntoIterator<Item = PostgresConfig>) -> Self {
        let (ledger, mut nodes) = (Ledger::default(), Vec::new());
        // Nothing is forgotten, whatever the clock of the database says.
        let config = Config { retention: None, ..uncoalesced() };
        for at in configs {
            nodes.push(Node::start_with(at, registry([ledger.tool()]), config.clone()).await);
        }
        let client = nodes.last().expect("there are some").client();
        Self { nodes, ledger, client, long: Vec::new(), streams: Vec::new(), callers: Vec::new() }
    }

    /// Gives them something to do.
    pub(super) async fn start(&mut self) {
        let clients: Vec<Client> = self.nodes.iter().map(Node::client).collect();
        for (n, client) in clients.iter().enumerate() {
            let name = format!("long task {n}");
            let id = client.start("writes", json!({"name": name})).await;
            let stream = follow(&clients[(n + 1) % clients.len()], &id, 0).await;
            self.streams.push(tokio::spawn(follow_to_end(stream, name.clone())));
            self.long.push(Long { name, id });
        }
        let callers = (0..CALLERS).map(|caller| tokio::spawn(self.ledger.clone().make_tasks(caller, clients.clone())));
        self.callers.extend(callers);
    }

    /// The tool of these nodes, for another one.
    pub(super) fn tools(&self) -> Registry {
        registry([self.ledger.tool()])
    }

    /// Waits until each long task has written more, and callers have made more tasks.
    pub(super) async fn goes_on(&self) {
        const MORE: u64 = 5;
        let counts = |book: &Book| (book.made.len(), self.long.iter().map(|long| book.written(&long.name)).collect::<Vec<_>>());
        let (made, written) = counts(&self.ledger.0.borrow());
        let is_more = |book: &Book| {
            let now = counts(book);
            now.0 >= made + CALLERS && now.1.iter().zip(&written).all(|(now, before)| *now >= before + MORE)
        };
        self.ledger.until(is_more).await;
    }

    /// Waits until so many more requests were told to try again.
    pub(super) async fn is_refused(&self, more: u64) {
        let before = self.ledger.0.borrow().refused;
        self.ledger.until(|book| book.refused >= before + more).await;
    }

    /// Waits until so many more chunks are written, of whichever tasks.
    pub(super) async fn writes(&self, more: usize) {
        let count = |book: &Book| book.written.values().map(BTreeMap::len).sum::<usize>();
        let before = count(&self.ledger.0.borrow());
        self.ledger.until(|book| count(book) >= before + more).await;
    }

    /// How much the long tasks of three nodes have written, as soon as that `is_enough`.
    pub(super) async fn written_when(&self, is_enough: impl Fn([u64; 3]) -> bool) -> [u64; 3] {
        let counts = |book: &Book| [0usize, 1, 2].map(|n| self.long.get(n).map_or(0, |long: &Long| book.written(&long.name)));
        let mut found = [0; 3];
        self.ledger
            .until(|book| {
                found = counts(book);
                is_enough(found)
            })
            .await;
        found
    }

    /// Lets all come to an end, and looks whether what was acknowledged is there, once.
    pub(super) async fn ends(&mut self, database: &Server) {
        self.ledger.note(|book| book.may_end = true);
        for caller in self.callers.drain(..) {
            with_timeout("the last task of a caller", caller).await.expect("it was told nothing but to try again");
        }
        let streams: Vec<JoinHandle<u64>> = self.streams.drain(..).collect();
        for (Long { name, id }, stream) in self.long.iter().zip(streams) {
            let count = self.chunks_of(name, id).await;
            assert_eq!(with_timeout("the end of the stream", stream).await.expect("it stays open"), count, "{name}");
        }
        let made = self.ledger.0.borrow().made.clone();
        for (name, id) in &made {
            assert_eq!(self.chunks_of(name, id).await, CHUNKS, "{name}");
        }
        let stored = block_in_place(|| database.psql("SELECT count(*) FROM taskwire.task"));
        assert_eq!(stored, (self.long.len() + made.len()).to_string(), "each task was made once");
    }

    /// Waits for the end of a task, and looks whether it has what was acknowledged, each chunk once. Returns their number.
    async fn chunks_of(&self, name: &str, id: &str) -> u64 {
        let ended = async {
            loop {
                let task = self.client.get(id).await;
                if task["status"] != "working" {
                    return task;
                }
            }
        };
        let task = with_timeout("the end of a task", ended).await;
        assert_eq!(task["status"], "completed", "{name}: {task}");
        let mut chunks = Vec::new();
        loop {
            let page = read(&self.client, id, json!({"fromSeq": chunks.len()})).await;
            for chunk in page["chunks"].as_array().expect("chunks") {
                assert_eq!(chunk["seq"], chunks.len(), "{name}: {chunk}");
                chunks.push(text_of(&chunk["content"]));
            }
            if page["done"] == true {
                break;
            }
        }
        assert_eq!(text_of(&task["result"]["content"]), chunks.len().to_string(), "{name}: what its runs know");
        let book = self.ledger.0.borrow();
        for (number, text) in (0..).zip(&chunks) {
            assert!(text.starts_with(&format!("{name} {number} ")) && book.tried.contains(text), "{name}: chunk {number} is `{text}`");
        }
        for (number, text) in book.written.get(name).into_iter().flatten() {
            let stored = usize::try_from(*number).ok().and_then(|number| chunks.get(number));
            assert_eq!(stored, Some(text), "{name}: chunk {number}");
        }
        chunks.len() as u64
    }
}
