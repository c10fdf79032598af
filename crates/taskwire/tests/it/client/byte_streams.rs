//! The legacy era on byte streams: each has one handshake, and says of no answer that it arrived. The server is in this process and
//! does what its test says, line by line.

use std::sync::Arc;

use serde_json::{Value, json};
use taskwire::{
    client::{Answer, Call, CallRecorder, Client, Connect, Era, Event, Ledger, Options, Question, Reference, Status, Target},
    clock::ManualClock,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream},
    sync::mpsc,
};

use super::{
    legacy::{LATEST, agreed, ended, having, made, question, shown, tools_of, unsettled},
    script::{MS, ada, as_time_passes, brief, form, next, next_briefs, next_notable, response, rest, start_job, while_waiting},
};
use crate::kit::{TempDir, manual_clock, with_timeout};

/// Bytes that wait in each direction.
const ROOM: usize = 64 * 1024;

/// Hands the other end of each stream to the test, as long as that goes on.
#[derive(Debug)]
struct Streams(mpsc::Sender<DuplexStream>);

impl Connect for Streams {
    fn connect(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(ROOM);
        let _ = self.0.try_send(theirs);
        ours
    }
}

/// A server in the hands of its test.
struct Server {
    clock: ManualClock,
    target: Target,
    streams: mpsc::Receiver<DuplexStream>,
}

impl Server {
    fn new() -> Self {
        let (sender, streams) = mpsc::channel(64);
        Self { clock: manual_clock(), target: Target::InProcess(Arc::new(Streams(sender))), streams }
    }

    fn options(&self) -> Options {
        Options { era: Some(Era::Legacy), clock: Arc::new(self.clock.clone()), ..Options::default() }
    }

    /// A client with these options, and its stream.
    async fn client_with(&mut self, options: Options) -> (Client, Stream) {
        let connecting = Client::connect(self.target.clone(), options);
        let (client, stream) = with_timeout("the connection", async { tokio::join!(connecting, self.greets()) }).await;
        (client.expect("a connection"), stream)
    }

    /// The next stream.
    async fn stream(&mut self) -> Stream {
        Stream(BufReader::new(self.streams.recv().await.expect("the client is there")))
    }

    /// The next stream, on which the client has sent `initialize`.
    async fn is_greeted(&mut self) -> Stream {
        let mut stream = self.stream().await;
        stream.expect("initialize").await;
        stream
    }

    /// The next stream, after its handshake, on which the client looks at `t1`.
    async fn is_looked_at(&mut self) -> Stream {
        let mut stream = self.greets().await;
        let look = stream.expect("tasks/get").await;
        stream.result(&look, shown("t1", "working")).await;
        stream
    }

    /// The next stream, after its handshake.
    async fn greets(&mut self) -> Stream {
        let mut stream = self.stream().await;
        let first = stream.expect("initialize").await;
        stream.result(&first, agreed(LATEST, having(json!({})))).await;
        stream.expect("notifications/initialized").await;
        stream
    }
}

/// A stream of a client. Dropping it ends it.
struct Stream(BufReader<DuplexStream>);

impl Stream {
    /// The next message; none after the last.
    async fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.0.read_line(&mut line).await.expect("readable");
        (!line.is_empty()).then(|| serde_json::from_str(&line).expect("JSON"))
    }

    /// The next message, which has this method.
    async fn expect(&mut self, method: &str) -> Value {
        let message = self.next().await.unwrap_or_else(|| panic!("the stream ended before {method}"));
        assert_eq!(message["method"], method, "{message}");
        message
    }

    /// The next request for the result of `t1`. A poll before it shows this status.
    async fn expect_wait(&mut self, status: &str) -> Value {
        loop {
            let message = self.next().await.expect("the stream goes on");
            if message["method"] == "tasks/result" {
                return message;
            }
            self.result(&message, shown("t1", status)).await;
        }
    }

    async fn send(&mut self, message: &Value) {
        self.0.write_all(format!("{message}\n").as_bytes()).await.expect("writable");
    }

    async fn result(&mut self, request: &Value, result: Value) {
        self.send(&response(&request["id"], result)).await;
    }
}

/// A call that has become `t1`, and the request by which the client waits for its result.
async fn begun(client: &Client, stream: &mut Stream) -> (Call, Value) {
    let playing = async {
        let list = stream.expect("tools/list").await;
        stream.result(&list, tools_of("optional")).await;
        let call = stream.expect("tools/call").await;
        stream.result(&call, made("t1")).await;
    };
    let (mut call, ()) = start_job(client, playing).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    let wait = with_timeout("the wait", while_waiting(&mut call, stream.expect_wait("working"))).await;
    (call, wait)
}

/// The next question of a call.
async fn asked(call: &mut Call) -> Question {
    loop {
        match next_notable(call).await {
            Some(Event::Question(input)) => return input,
            Some(Event::QuestionSettled { .. }) => {}
            other => panic!("{other:?} is no question"),
        }
    }
}

/// Answers a question, and gives the message that the server got.
async fn answers(stream: &mut Stream, call: &Call, key: &str, answer: Answer) -> Value {
    let (answered, message) = with_timeout("the answer", async { tokio::join!(call.answer(key, answer), stream.next()) }).await;
    answered.expect("sent");
    message.expect("the stream goes on")
}

// Handshakes.

#[tokio::test]
async fn a_handshake_that_was_given_up_half_way_is_begun_anew_on_another_stream() {
    let mut server = Server::new();
    let (client, first) = server.client_with(server.options()).await;
    drop(first);
    let clock = server.clock.clone();
    // Who asked goes away when the server has read `initialize`.
    let given_up = async {
        tokio::select! {
            looked = client.task("t1") => panic!("too early: {looked:?}"),
            stream = server.is_greeted() => stream,
        }
    };
    let mut second = as_time_passes(&clock, "the second stream", 10 * MS, given_up).await;
    let looking = async { tokio::join!(client.task("t1"), server.is_looked_at()) };
    let (looked, _third) = as_time_passes(&clock, "the look", 10 * MS, looking).await;
    assert_eq!(looked.expect("a task").status, Status::Working);
    assert_eq!(with_timeout("the end of the second stream", second.next()).await, None);
}

#[tokio::test]
async fn a_handshake_without_a_response_is_begun_anew_on_another_stream() {
    let mut server = Server::new();
    let (client, first) = server.client_with(server.options()).await;
    drop(first);
    let clock = server.clock.clone();
    let playing = async {
        // Here nothing is answered, until the time of a request is over.
        let second = server.is_greeted().await;
        (second, server.is_looked_at().await)
    };
    let looking = async { tokio::join!(client.task("t1"), playing) };
    let (looked, (mut second, _third)) = as_time_passes(&clock, "the look", 100 * MS, looking).await;
    assert_eq!(looked.expect("a task").status, Status::Working);
    assert_eq!(with_timeout("the end of the second stream", second.next()).await, None);
}

#[tokio::test]
async fn a_task_is_picked_up_also_if_its_server_ends_meanwhile() {
    let mut server = Server::new();
    let (client, mut stream) = server.client_with(server.options()).await;
    let (clock, reference) = (server.clock.clone(), Reference::of_task("in-process", Era::Legacy, "t1"));
    let playing = async {
        let look = stream.expect("tasks/get").await;
        stream.result(&look, shown("t1", "working")).await;
        drop(stream);
        // The next one ends in the middle of the handshake.
        drop(server.is_greeted().await);
        server.greets().await
    };
    let attaching = async { tokio::join!(client.attach(&reference), playing) };
    let (call, mut stream) = as_time_passes(&clock, "the task", 10 * MS, attaching).await;
    let mut call = call.expect("a run");
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    let wait = with_timeout("the wait", while_waiting(&mut call, stream.expect_wait("working"))).await;
    stream.result(&wait, ended("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
}

// Calls that are sent again.

#[tokio::test]
async fn a_question_of_a_task_that_was_made_though_the_server_said_otherwise_is_not_lost() {
    let mut server = Server::new();
    let (clock, target, options) = (server.clock.clone(), server.target.clone(), server.options());
    let mut capabilities = having(json!({}));
    capabilities["experimental"] = json!({"dev.taskwire/idempotency": {}});
    let greets = async {
        let mut stream = server.stream().await;
        let first = stream.expect("initialize").await;
        stream.result(&first, agreed(LATEST, capabilities)).await;
        stream.expect("notifications/initialized").await;
        stream
    };
    let (client, mut stream) = with_timeout("the connection", async { tokio::join!(Client::connect(target, options), greets) }).await;
    let client = client.expect("a connection");
    let playing = async {
        let list = stream.expect("tools/list").await;
        stream.result(&list, tools_of("optional")).await;
        // It cannot say whether the task was made, and so it says that the client must try again.
        let call = stream.expect("tools/call").await;
        let away = json!({"code": -31_002, "message": "try again"});
        stream.send(&json!({"jsonrpc": "2.0", "id": call["id"], "error": away})).await;
        stream.send(&question(&json!("t1.-.name"), form("Name?"), Some("t1"))).await;
        let again = stream.expect("tools/call").await;
        stream.result(&again, made("t1")).await;
    };
    let starting = async { tokio::join!(client.start("job", json!({})), playing) };
    let (call, ()) = as_time_passes(&clock, "the call", 100 * MS, starting).await;
    let mut call = call.expect("a run");
    let asked = with_timeout("the question", async {
        loop {
            if let Some(Event::Question(question)) = next_notable(&mut call).await {
                break question;
            }
        }
    });
    assert_eq!(asked.await.message, "Name?");
}

// Answers.

#[tokio::test]
async fn a_question_whose_answer_did_not_fit_comes_again() {
    let mut server = Server::new();
    let (client, mut stream) = server.client_with(server.options()).await;
    let (mut call, wait) = begun(&client, &mut stream).await;
    stream.send(&question(&json!("t1.1.name"), form("Name?"), Some("t1"))).await;
    let key = asked(&mut call).await.key;
    assert_eq!(answers(&mut stream, &call, &key, ada()).await["id"], "t1.1.name");
    // Our own servers say in the id that they ask for the second time, because they did not take the answer.
    stream.send(&question(&json!("t1.1~2.name"), form("Another name?"), Some("t1"))).await;
    let again = asked(&mut call).await;
    assert_eq!((again.key.as_str(), again.message.as_str()), (key.as_str(), "Another name?"));
    let message = answers(&mut stream, &call, &key, Answer::accept(json!({"name": "Bob"}))).await;
    assert_eq!((&message["id"], &message["result"]["content"]["name"]), (&json!("t1.1~2.name"), &json!("Bob")));
    stream.result(&wait, ended("t1", "done")).await;
    assert_eq!(unsettled(rest(&mut call).await), ["done: done"]);
}

/// The answers to the questions of `t1` that the ledger in this directory has, and whether the server has each.
fn recorded(dir: &TempDir) -> Vec<(String, Value, bool)> {
    let ledger = Ledger::open(dir.path()).expect("a ledger");
    let entry = ledger.entry("in-process", "t1").expect("readable").expect("an entry");
    ledger.answers(entry.id).expect("readable")
}

/// With the ledger in this directory.
fn with_ledger(server: &Server, dir: &TempDir) -> Options {
    Options { ledger: Some(Arc::new(Ledger::open(dir.path()).expect("a ledger"))), ..server.options() }
}

#[tokio::test]
async fn the_server_has_an_answer_when_its_task_goes_on() {
    let (mut server, dir) = (Server::new(), TempDir::new());
    let (client, mut stream) = server.client_with(with_ledger(&server, &dir)).await;
    let (mut call, wait) = begun(&client, &mut stream).await;
    stream.send(&question(&json!("t1.1.name"), form("Name?"), Some("t1"))).await;
    let key = asked(&mut call).await.key;
    answers(&mut stream, &call, &key, ada()).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["settled name"]);
    let answer = |is_acknowledged| ("name".to_owned(), ada().value().clone(), is_acknowledged);
    assert_eq!(recorded(&dir), [answer(false)], "it was only sent");
    for (status, is_acknowledged) in [("input_required", false), ("working", true)] {
        let looked = async {
            let look = stream.expect("tasks/get").await;
            stream.result(&look, shown("t1", status)).await;
        };
        as_time_passes(&server.clock, "a look", 100 * MS, looked).await;
        assert_eq!(next(&mut call).await.as_ref().map(brief).as_deref(), Some(status));
        assert_eq!(recorded(&dir), [answer(is_acknowledged)], "{status}");
    }
    stream.result(&wait, ended("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
}

#[tokio::test]
async fn an_answer_that_was_only_sent_is_sent_again_by_the_next_process() {
    let (mut server, dir) = (Server::new(), TempDir::new());
    let (client, mut stream) = server.client_with(with_ledger(&server, &dir)).await;
    let (mut call, _) = begun(&client, &mut stream).await;
    stream.send(&question(&json!("t1.1.name"), form("Name?"), Some("t1"))).await;
    let key = asked(&mut call).await.key;
    answers(&mut stream, &call, &key, ada()).await;
    let reference = call.detach().expect("a task");
    drop((client, stream));

    let (client, mut stream) = server.client_with(with_ledger(&server, &dir)).await;
    let found = async {
        let look = stream.expect("tasks/get").await;
        stream.result(&look, shown("t1", "input_required")).await;
    };
    let (call, ()) = with_timeout("the task", async { tokio::join!(client.attach(&reference), found) }).await;
    let mut call = call.expect("a run");
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    let playing = async {
        let wait = stream.expect_wait("input_required").await;
        stream.send(&question(&json!("t1.2.name"), form("Name?"), Some("t1"))).await;
        loop {
            let message = stream.next().await.expect("the stream goes on");
            if message.get("method").is_none() {
                return (message, wait);
            }
            stream.result(&message, shown("t1", "input_required")).await;
        }
    };
    let (message, wait) = with_timeout("the answer", while_waiting(&mut call, playing)).await;
    assert_eq!((&message["id"], &message["result"]), (&json!("t1.2.name"), ada().value()));
    stream.result(&wait, ended("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"], "nobody is asked");
}
