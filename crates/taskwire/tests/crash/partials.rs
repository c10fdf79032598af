//! The output of a task, read over the wire: sent on a listen stream, or fetched page by page.
//!
//! A connection that breaks is an error here and nothing more: whoever reads goes on behind the last whole chunk. What a
//! server must never say is a panic.

use std::{io, time::Duration};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    sync::watch,
    time::{sleep, timeout},
};

use crate::{
    SETTLE,
    body::Body,
    client::{Client, PARTIALS, request},
    model::{is_terminal, status},
};

/// The method that fetches a page.
pub(crate) const READ: &str = "dev.taskwire/partials/read";
/// The name of every listen request: each has a connection of its own.
const LISTEN_ID: u64 = 1;
/// Bytes that are read from a connection at once.
const BUFFER_BYTES: usize = 64 * 1024;
/// Between two looks at a task.
const PAUSE: Duration = Duration::from_millis(2);

/// Starts a task of a tool that writes a stream.
pub(crate) async fn begin(client: &mut Client, tool: &str, arguments: Value) -> String {
    let handle = client.until_ok("tools/call", &json!({"name": tool, "arguments": arguments})).await;
    handle["taskId"].as_str().unwrap_or_else(|| panic!("no handle of a task: {handle}")).to_owned()
}

/// Lets the tool write on: waits for the question that it asks before chunk `index`, and answers it.
pub(crate) async fn answer_leg(client: &mut Client, task: &str, index: u64) {
    let (which, key) = (json!({"taskId": task}), format!("leg-{index}"));
    let asked = async {
        loop {
            let state = client.until_ok("tasks/get", &which).await;
            assert!(!is_terminal(status(&state)), "the task has ended before chunk {index}: {state}");
            if !state["inputRequests"][&key].is_null() {
                return;
            }
            sleep(PAUSE).await;
        }
    };
    timeout(SETTLE, asked).await.unwrap_or_else(|_| panic!("chunk {index} is not reached within {SETTLE:?}"));
    let answers = json!({key: {"action": "accept", "content": {}}});
    client.until_ok("tasks/update", &json!({"taskId": task, "inputResponses": answers})).await;
}

/// Waits until a reader has this many chunks.
pub(crate) async fn until_read(has: &mut watch::Receiver<u64>, chunks: u64) {
    let read = timeout(SETTLE, has.wait_for(|has| *has >= chunks)).await;
    let read = read.unwrap_or_else(|_| panic!("a reader does not get {chunks} chunks within {SETTLE:?}"));
    assert!(read.is_ok(), "a reader found a broken promise: its words are above");
}

#[derive(Debug, Deserialize)]
pub(crate) struct Chunk {
    pub(crate) seq: u64,
    content: Vec<Block>,
}

#[derive(Debug, Deserialize)]
struct Block {
    r#type: String,
    text: String,
}

impl Chunk {
    /// Its text: the tools here write nothing else.
    pub(crate) fn text(self) -> String {
        assert!(self.content.iter().all(|block| block.r#type == "text"), "not text alone: {self:?}");
        self.content.into_iter().map(|block| block.text).collect()
    }
}

/// What comes back from [`READ`].
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Page {
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) from_seq: u64,
    pub(crate) next_seq: u64,
    pub(crate) done: bool,
}

/// A listen request that was sent, and of whose answer not a byte has been read.
#[derive(Debug)]
pub(crate) struct ListenRequest {
    stream: TcpStream,
    task: String,
    from: u64,
}

impl ListenRequest {
    /// Asks for the chunks of a task from `from` on.
    pub(crate) async fn send(port: u16, task: &str, from: u64) -> io::Result<Self> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let params = json!({"notifications": {PARTIALS: [{"taskId": task, "fromSeq": from}]}});
        stream.write_all(&request(port, LISTEN_ID, "subscriptions/listen", &params)).await?;
        Ok(Self { stream, task: task.to_owned(), from })
    }

    /// Waits until the answer has begun to come. It is looked at and left where it is.
    pub(crate) async fn answered(&self) -> io::Result<()> {
        match self.stream.peek(&mut [0]).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Reads the head of the answer and the acknowledgement, which must say that nothing is left out.
    pub(crate) async fn begin(self) -> io::Result<ListenStream> {
        let stream = BufReader::with_capacity(BUFFER_BYTES, self.stream);
        let mut listening = ListenStream { body: Body::of(stream), task: self.task };
        listening.read_head().await?;
        let message = listening.message().await?;
        let acknowledges = |message: &&Message| message.method.as_deref() == Some("notifications/subscriptions/acknowledged");
        let begins = message.as_ref().filter(acknowledges).and_then(|message| message.params.as_ref()?.notifications.as_ref());
        let begins = begins.unwrap_or_else(|| panic!("a stream that does not begin with its acknowledgement: {message:?}"));
        let next = begins[PARTIALS][0]["nextSeq"].as_u64().filter(|next| *next >= self.from);
        let expected = json!({PARTIALS: [{"taskId": listening.task, "fromSeq": self.from, "nextSeq": next}]});
        assert_eq!(*begins, expected, "asked for chunks from {} on", self.from);
        Ok(listening)
    }
}

/// An open listen stream: a chunked HTTP body of server-sent events.
#[derive(Debug)]
pub(crate) struct ListenStream {
    body: Body,
    task: String,
}

/// Any message on a listen stream.
#[derive(Debug, Deserialize)]
struct Message {
    id: Option<u64>,
    method: Option<String>,
    params: Option<Params>,
    result: Option<Value>,
    error: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params {
    #[serde(rename = "_meta")]
    meta: Meta,
    notifications: Option<Value>,
    task_id: Option<String>,
    seq: Option<u64>,
    content: Option<Vec<Block>>,
}

#[derive(Debug, Deserialize)]
struct Meta {
    #[serde(rename = "io.modelcontextprotocol/subscriptionId")]
    subscription: u64,
}

impl ListenStream {
    /// The next chunk; none when the stream has ended in good order.
    pub(crate) async fn chunk(&mut self) -> io::Result<Option<Chunk>> {
        let message = self.message().await?.expect("a stream ends with its response");
        if message.method.is_none() {
            let complete = message.result.as_ref().is_some_and(|result| result["resultType"] == "complete");
            assert!(message.id == Some(LISTEN_ID) && complete && message.error.is_none(), "not the end of a stream: {message:?}");
            let more = self.message().await?;
            assert!(more.is_none(), "a message behind the end of a stream: {more:?}");
            return Ok(None);
        }
        match message {
            Message {
                method: Some(method),
                params: Some(Params { meta, task_id: Some(id), seq: Some(seq), content: Some(content), .. }),
                ..
            } if method == "notifications/tasks/partial" && meta.subscription == LISTEN_ID && id == self.task => {
                Ok(Some(Chunk { seq, content }))
            }
            other => panic!("nobody asked for {other:?}"),
        }
    }

    async fn read_head(&mut self) -> io::Result<()> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.body.stream.read_line(&mut head).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        head.make_ascii_lowercase();
        let streams = ["content-type: text/event-stream\r\n", "transfer-encoding: chunked\r\n"].into_iter().all(|line| head.contains(line));
        let body = String::from_utf8_lossy(self.body.stream.buffer());
        assert!(head.starts_with("http/1.1 200 ") && streams, "no stream of events: {head}{body}");
        Ok(())
    }

    /// The next message; none at the end of the body.
    async fn message(&mut self) -> io::Result<Option<Message>> {
        // Other lines are comments, or the empty ones that end an event.
        while let Some(line) = self.body.line().await? {
            if let Some(data) = line.strip_prefix(b"data: ") {
                let message: Result<Message, _> = serde_json::from_slice(data);
                return Ok(Some(message.unwrap_or_else(|error| panic!("{error} in an event: {}", String::from_utf8_lossy(data)))));
            }
        }
        Ok(None)
    }
}
