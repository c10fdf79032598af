//! How a server ends: requests under way get their response, streams their result, and what takes too long is left to the next start.
//!
//! A server that listens has a runtime of its own here, which goes away as soon as serving ends: whatever it has not sent
//! by then is never sent, as in a process that exits.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use taskwire::{
    clock::ManualClock,
    core::task::Status,
    server::{Config, Server},
    tool::{Registry, TaskMode},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};

use crate::{
    kit::{Client, MS, SECOND, TASKS, TempDir, manual_clock, server_in, with_timeout},
    pipe::Pipe,
    schema,
    tasks::{Gate, registry, reopened},
};

const DRAIN: Duration = Duration::from_secs(10);

fn config() -> Config {
    Config { drain: DRAIN, ..Config::default() }
}

fn declaring(client: Client) -> Client {
    client.declaring(json!({"elicitation": {}, "extensions": {TASKS: {}}}))
}

/// Lets everything else in this runtime go on for a good while.
pub(crate) async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// The same for what takes several requests of its own, such as a hang-up that the server must notice.
pub(crate) async fn settle_long() {
    for _ in 0..10 {
        settle().await;
    }
}

/// A server that ends like a process.
struct Lone {
    port: u16,
    clock: ManualClock,
    dir: Arc<TempDir>,
    stop: Option<oneshot::Sender<()>>,
    ended: oneshot::Receiver<std::io::Result<()>>,
}

impl Lone {
    async fn start(tools: Registry) -> Self {
        let (clock, dir) = (manual_clock(), Arc::new(TempDir::new()));
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, port) = oneshot::channel();
        let (done, ended) = oneshot::channel();
        let (its_clock, its_dir) = (clock.clone(), dir.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let served = runtime.block_on(async move {
                let server = server_in(&its_dir, tools, config(), Arc::new(its_clock));
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                ready.send(listener.local_addr().expect("an address").port()).expect("the test waits for it");
                let stopped = async {
                    let _ = stopped.await;
                };
                server.serve(listener, stopped).await
            });
            drop(runtime);
            let _ = done.send(served);
        });
        let port = with_timeout("the server", port).await.expect("it has started");
        Self { port, clock, dir, stop: Some(stop), ended }
    }

    fn client(&self) -> Client {
        declaring(Client::new(self.port))
    }

    fn stop(&mut self) {
        self.stop.take().expect("stopped once").send(()).expect("it serves");
    }

    /// Begins to shut down, and waits until that shows. Something must be under way, else it ends at once.
    async fn begin_to_stop(&mut self) {
        let mut events = self.client().listen(json!({})).await;
        self.stop();
        let last = with_timeout("the end of the stream", events.next()).await.expect("a result");
        schema::check_response("subscriptions/listen", &last);
        self.is_draining().await;
    }

    /// Shows that it still serves, and that it has had time for everything else that it might have wanted to do.
    async fn is_draining(&mut self) {
        for _ in 0..5 {
            let ready = with_timeout("a sign of life", self.client().bytes(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
            assert_eq!(ready.status, 503);
        }
        assert!(self.ended.try_recv().is_err(), "something is still under way");
    }

    async fn ended(&mut self) {
        with_timeout("the end of the server", &mut self.ended).await.expect("no panic").expect("a clean end");
    }
}

#[tokio::test]
async fn serving_ends_only_when_calls_under_way_are_answered() {
    let gate = Gate::new();
    let mut lone = Lone::start(registry([gate.tool("slow").task(TaskMode::Never)])).await;
    let client = lone.client();
    let call = tokio::spawn(async move { client.call("slow", json!({})).await });
    with_timeout("the start", gate.started.wait()).await;
    lone.begin_to_stop().await;
    gate.go.send();
    let result = with_timeout("the answer", call).await.expect("it was answered");
    assert_eq!(result["content"][0]["text"], "done");
    lone.ended().await;
}

#[tokio::test]
async fn serving_ends_only_when_every_listener_has_its_result() {
    let mut lone = Lone::start(registry([])).await;
    let client = lone.client();
    let mut streams = Vec::new();
    for _ in 0..20 {
        streams.push(client.listen(json!({"toolsListChanged": true})).await);
    }
    lone.stop();
    for mut events in streams {
        let last = with_timeout("the result", events.next()).await.expect("a result before the end");
        schema::check_response("subscriptions/listen", &last);
        assert_eq!(last["result"]["resultType"], "complete");
        assert_eq!(with_timeout("the end of the stream", events.next()).await, None);
    }
    lone.ended().await;
}

#[tokio::test]
async fn serving_ends_only_when_tasks_have_ended() {
    let gate = Gate::new();
    let mut lone = Lone::start(registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let client = lone.client();
    let id = client.start("slow", json!({})).await;
    with_timeout("the start", gate.started.wait()).await;
    lone.begin_to_stop().await;
    assert_eq!(client.get(&id).await["status"], "working");
    gate.go.send();
    lone.ended().await;
    let server = reopened(&lone.dir, registry([]), Config::default(), &lone.clock).await;
    assert_eq!(server.client().get(&id).await["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn connections_without_a_request_do_not_hold_up_the_end() {
    let mut lone = Lone::start(registry([])).await;
    let _unused = TcpStream::connect(("127.0.0.1", lone.port)).await.expect("a connection");
    let mut used = TcpStream::connect(("127.0.0.1", lone.port)).await.expect("a connection");
    used.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("writable");
    let mut answer = String::new();
    while !answer.ends_with("\r\n\r\nok\n") {
        let mut part = [0; 1024];
        let n = with_timeout("the answer", used.read(&mut part)).await.expect("readable");
        assert!(n > 0, "{answer}");
        answer.push_str(&String::from_utf8_lossy(&part[..n]));
    }
    lone.stop();
    lone.ended().await;
    assert_eq!(with_timeout("the end of the connection", used.read(&mut [0; 1])).await.expect("closed in good order"), 0);
}

#[tokio::test]
async fn serving_ends_after_its_time_whatever_still_runs() {
    let (call, task) = (Gate::new(), Gate::new());
    let mut lone = Lone::start(registry([call.tool("call").task(TaskMode::Never), task.tool("task").task(TaskMode::Always)])).await;
    let client = lone.client();
    client.start("task", json!({})).await;
    let message = client.message(client.next_id(), "tools/call", json!({"name": "call", "arguments": {}}));
    let mut connection = client.send(&client.headers(&message), message.to_string().as_bytes()).await;
    with_timeout("the start of the task", task.started.wait()).await;
    with_timeout("the start of the call", call.started.wait()).await;
    lone.begin_to_stop().await;
    lone.clock.advance(DRAIN - MS);
    lone.is_draining().await;
    lone.clock.advance(MS);
    lone.ended().await;
    let mut answer = Vec::new();
    let _ = with_timeout("the end of the connection", connection.read_to_end(&mut answer)).await;
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn a_task_that_was_left_behind_is_taken_over_by_the_next_start() {
    let gate = Gate::new();
    let tools = || registry([gate.tool("slow").task(TaskMode::Always).retry_on_interrupt()]);
    let mut lone = Lone::start(tools()).await;
    let id = lone.client().start("slow", json!({})).await;
    with_timeout("the start", gate.started.wait()).await;
    lone.begin_to_stop().await;
    lone.clock.advance(DRAIN);
    lone.ended().await;
    let server = reopened(&lone.dir, tools(), Config::default(), &lone.clock).await;
    with_timeout("the second start", gate.started.wait()).await;
    gate.go.send();
    let task = with_timeout("the end", server.client().until(&id, "completed")).await;
    assert_eq!(task["result"]["content"][0]["text"], "done");
    assert_eq!(gate.runs(), 2);
}

// Byte streams.

/// A server and a byte stream to it.
struct Piped {
    server: Server,
    clock: ManualClock,
    pipe: Pipe,
    /// Writes our messages; it never connects.
    client: Client,
    _dir: TempDir,
}

impl Piped {
    fn start(tools: Registry) -> Self {
        Self::with_room(tools, 64 * 1024)
    }

    /// So many bytes can wait for us to read them.
    fn with_room(tools: Registry, room: usize) -> Self {
        let (clock, dir) = (manual_clock(), TempDir::new());
        let server = server_in(&dir, tools, config(), Arc::new(clock.clone()));
        let pipe = Pipe::with_room(&server, 64 * 1024, room);
        Self { server, clock, pipe, client: declaring(Client::new(0)), _dir: dir }
    }

    async fn request(&mut self, id: &str, method: &str, params: Value) {
        let mut message = self.client.message(0, method, params);
        message["id"] = id.into();
        self.pipe.send(&message).await;
    }

    async fn call(&mut self, id: &str, tool: &str) {
        self.request(id, "tools/call", json!({"name": tool, "arguments": {}})).await;
    }

    /// Calls a tool that becomes a task, and gives its id.
    async fn task(&mut self, tool: &str) -> String {
        self.call("task", tool).await;
        self.pipe.message().await["result"]["taskId"].as_str().expect("the handle of a task").to_owned()
    }

    /// Gives the signal to stop, and waits until that shows.
    async fn begin_to_stop(&mut self) {
        self.request("l", "subscriptions/listen", json!({"notifications": {}})).await;
        assert_eq!(self.pipe.message().await["method"], "notifications/subscriptions/acknowledged");
        self.pipe.stop();
        assert_eq!(self.pipe.message().await["id"], "l");
    }
}

#[tokio::test]
async fn the_end_of_the_input_waits_for_calls_but_not_for_tasks() {
    let (call, task) = (Gate::new(), Gate::new());
    let mut piped = Piped::start(registry([call.tool("call").task(TaskMode::Never), task.tool("task").task(TaskMode::Always)]));
    piped.task("task").await;
    piped.call("call", "call").await;
    with_timeout("the start of the task", task.started.wait()).await;
    with_timeout("the start of the call", call.started.wait()).await;
    piped.pipe.end();
    settle().await;
    assert!(piped.pipe.is_served(), "a call is under way");
    call.go.send();
    let answer = piped.pipe.message().await;
    assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!("call"), &json!("done")));
    piped.pipe.ended().await;
    assert_eq!(piped.server.engine().running(), 1, "the task goes on");
}

#[tokio::test]
async fn a_signal_to_stop_a_stream_waits_for_tasks() {
    let gate = Gate::new();
    let mut piped = Piped::start(registry([gate.tool("slow").task(TaskMode::Always)]));
    let id = piped.task("slow").await;
    with_timeout("the start", gate.started.wait()).await;
    piped.begin_to_stop().await;
    settle().await;
    assert!(piped.pipe.is_served(), "a task is running");
    gate.go.send();
    piped.pipe.ended().await;
    let task = piped.server.engine().reader().task(id.parse().expect("an id")).await.expect("readable").expect("still there");
    assert_eq!(task.status(), Status::Completed);
}

#[tokio::test]
async fn a_signal_to_stop_a_stream_waits_for_tasks_only_so_long() {
    let gate = Gate::new();
    let mut piped = Piped::start(registry([gate.tool("slow").task(TaskMode::Always)]));
    piped.task("slow").await;
    with_timeout("the start", gate.started.wait()).await;
    piped.begin_to_stop().await;
    piped.clock.advance(DRAIN - MS);
    settle().await;
    assert!(piped.pipe.is_served(), "it has a millisecond left");
    piped.clock.advance(MS);
    piped.pipe.ended().await;
    assert_eq!(piped.server.engine().running(), 1);
    assert!(!gate.stopped.is_sent(), "the next start takes it over");
}

#[tokio::test]
async fn a_client_that_does_not_read_cannot_keep_the_server_from_ending() {
    for by_signal in [false, true] {
        let mut piped = Piped::with_room(registry([]), 64);
        for id in 0..200 {
            piped.request(&id.to_string(), "server/discover", json!({})).await;
        }
        // Until they have been read: a signal may otherwise come before them.
        settle().await;
        if by_signal {
            piped.pipe.stop();
        } else {
            piped.pipe.end();
        }
        settle().await;
        assert!(piped.pipe.is_served(), "there are answers to be read");
        // When it begins to wait cannot be seen from here, so time passes until it has waited long enough.
        let ended = async {
            while piped.pipe.is_served() {
                piped.clock.advance(SECOND);
                tokio::task::yield_now().await;
            }
        };
        with_timeout("the end of the server", ended).await;
        piped.pipe.ended().await;
    }
}
