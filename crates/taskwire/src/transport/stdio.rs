//! Serves a byte stream: one message a line, both ways. For standard input and output, and for sockets.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use futures_util::FutureExt;
use serde::Deserialize;
use taskwire_core::wire::{IncomingMessage, RequestId, code};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::{mpsc, watch},
    task::{AbortHandle, JoinHandle, JoinSet},
};

use crate::{
    auth::{Identity, local_caller},
    protocol::{
        ByteStreamId, Context, Era, Fault, Framing, MessageSink, OnSent, Peer, Reply, legacy, modern, on_cancelled,
        router::{self, Channel},
    },
};

/// How many messages wait to be written; then senders wait.
const QUEUE_LEN: usize = 64;
/// How many pieces of listen streams wait to be written; everything else goes first.
const STREAM_LEN: usize = 1;

/// How many replies may go before the next piece of a listen stream.
const AHEAD_MAX: usize = 16;

/// One line or more to write.
struct Line {
    text: Bytes,
    on_sent: Option<OnSent>,
    /// Set when its request was cancelled: nothing more is written for that.
    cancelled: Arc<AtomicBool>,
}

impl Line {
    fn reply(reply: Reply, cancelled: &Arc<AtomicBool>) -> Self {
        Self { text: reply.body, on_sent: reply.on_sent, cancelled: cancelled.clone() }
    }
}

/// A request that is not answered yet.
struct Request {
    handle: AbortHandle,
    cancelled: Arc<AtomicBool>,
}

#[derive(Default)]
struct InFlight(Mutex<HashMap<RequestId, Request>>);

impl InFlight {
    fn with<T>(&self, act: impl FnOnce(&mut HashMap<RequestId, Request>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Serves one client until its input ends, `shutdown` is ready, or it closes its end of the output.
pub(crate) async fn run(
    context: Arc<Context>,
    input: impl AsyncRead + Send + Unpin,
    output: impl AsyncWrite + Send + Unpin + 'static,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let (lines, queue) = mpsc::channel::<Line>(QUEUE_LEN);
    let (streams, stream_queue) = mpsc::channel::<Line>(STREAM_LEN);
    let mut writer = tokio::spawn(write(output, queue, stream_queue));
    let ending = watch::Sender::new(false);
    let mut client = Client {
        context: context.clone(),
        lines,
        streams,
        in_flight: Arc::default(),
        peer: Arc::default(),
        byte_stream: crate::clock::new_session_id().as_str().into(),
        session: None,
        requests: JoinSet::new(),
        ending: ending.subscribe(),
    };
    let mut input = Lines::new(input, context.config.body_bytes);
    let stopped = tokio::select! {
        read = client.read(&mut input) => {
            read?;
            Some(false)
        }
        () = shutdown => Some(true),
        // The client closed its end.
        _ = &mut writer => None,
    };
    // Listen streams end, open calls get their response, and after a signal running tasks get their time too.
    ending.send_replace(true);
    let Client { lines, streams, mut requests, session, .. } = client;
    let result = match stopped {
        Some(stopped) => finish(&context, &mut requests, session, (lines, streams), &mut writer, stopped).await,
        None => Ok(()),
    };
    writer.abort();
    // Calls that were not answered linger, and must be durable before the process ends.
    requests.shutdown().await;
    context.calls.lingering_saved().await;
    result
}

/// Waits for open calls, at most for the drain time.
async fn finish(
    context: &Arc<Context>,
    requests: &mut JoinSet<()>,
    session: Option<Arc<legacy::Session>>,
    queues: (mpsc::Sender<Line>, mpsc::Sender<Line>),
    writer: &mut JoinHandle<std::io::Result<()>>,
    stopped: bool,
) -> std::io::Result<()> {
    let drain_timeout = context.engine.clock().sleep(context.config.drain);
    let finish = async {
        while requests.join_next().await.is_some() {}
        if let Some(session) = session {
            legacy::end_session(context, &session).await;
        }
        drop(queues);
        if stopped {
            context.engine.idle().await;
        }
        writer.await.map_err(std::io::Error::other)?
    };
    tokio::select! {
        result = finish => result,
        () = drain_timeout => {
            tracing::warn!("the client did not take all answers in time");
            Ok(())
        }
    }
}

pub(super) enum LineRead {
    Line(Vec<u8>),
    TooLong,
    End,
}

/// Reads line by line. If a read is dropped halfway, what was read of the line stays here.
pub(super) struct Lines<R> {
    input: BufReader<R>,
    line: Vec<u8>,
    too_long: bool,
    max: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(input: R, max: usize) -> Self {
        Self { input: BufReader::new(input), line: Vec::new(), too_long: false, max }
    }

    /// The longest line, in bytes.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// The next line that is not blank. One that is too long is skipped without being kept.
    pub(super) async fn next(&mut self) -> std::io::Result<LineRead> {
        loop {
            let available = self.input.fill_buf().await?;
            let at_end = available.is_empty();
            let (part, ended) = match available.iter().position(|byte| *byte == b'\n') {
                Some(end) => (&available[..end], true),
                None => (available, at_end),
            };
            self.too_long |= self.line.len() + part.len() > self.max;
            if self.too_long {
                self.line.clear();
            } else {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(ended && !at_end);
            self.input.consume(used);
            if ended {
                if std::mem::take(&mut self.too_long) {
                    return Ok(LineRead::TooLong);
                }
                let line = std::mem::take(&mut self.line);
                if !line.trim_ascii().is_empty() {
                    return Ok(LineRead::Line(line));
                }
                if at_end {
                    return Ok(LineRead::End);
                }
            }
        }
    }
}

/// Writes lines, replies before listen streams.
async fn write(
    mut output: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Line>,
    mut streams: mpsc::Receiver<Line>,
) -> std::io::Result<()> {
    let mut ahead = 0;
    loop {
        let line = if ahead < AHEAD_MAX {
            tokio::select! {
                biased;
                Some(line) = queue.recv() => { ahead += 1; line }
                Some(line) = streams.recv() => { ahead = 0; line }
                else => break,
            }
        } else {
            ahead = 0;
            match streams.try_recv() {
                Ok(line) => line,
                Err(_) => continue,
            }
        };
        let is_wanted = !line.cancelled.load(Ordering::Acquire);
        if is_wanted {
            output.write_all(&line.text).await?;
            if line.text.last() != Some(&b'\n') {
                output.write_all(b"\n").await?;
            }
        }
        if queue.is_empty() && streams.is_empty() {
            output.flush().await?;
        }
        if let Some(sent) = line.on_sent.filter(|_| is_wanted) {
            sent.sent();
        }
    }
    output.flush().await
}

struct Client {
    context: Arc<Context>,
    lines: mpsc::Sender<Line>,
    streams: mpsc::Sender<Line>,
    in_flight: Arc<InFlight>,
    peer: Arc<Peer>,
    /// Distinguishes this byte stream from others.
    byte_stream: ByteStreamId,
    /// The session that the client opened, if it is one of the legacy era.
    session: Option<Arc<legacy::Session>>,
    requests: JoinSet<()>,
    ending: watch::Receiver<bool>,
}

#[derive(Deserialize)]
struct Cancelled {
    #[serde(rename = "requestId")]
    request_id: RequestId,
}

impl Client {
    async fn read(&mut self, input: &mut Lines<impl AsyncRead + Unpin>) -> std::io::Result<()> {
        loop {
            match input.next().await? {
                LineRead::End => return Ok(()),
                LineRead::TooLong => self.refuse_long_line().await,
                LineRead::Line(line) => self.handle_line(line).await,
            }
            while self.requests.try_join_next().is_some() {}
        }
    }

    async fn refuse_long_line(&self) {
        let max = self.context.config.body_bytes;
        let message = format!("the message has more than {max} bytes (configuration key `body_bytes`)");
        self.send(Reply::fault(None, &Fault::new(400, code::INVALID_REQUEST, message))).await;
    }

    async fn send(&self, reply: Reply) {
        if !reply.body.is_empty() {
            let _ = self.lines.send(Line::reply(reply, &Arc::default())).await;
        }
    }

    async fn handle_line(&mut self, line: Vec<u8>) {
        if line.trim_ascii_start().starts_with(b"[") {
            if self.requests.len() > self.context.config.requests_per_stream {
                let fault = Fault::limit("too many requests are waiting for an answer already (configuration key `requests_per_stream`)");
                return self.send(Reply::fault(None, &fault)).await;
            }
            return self.take_batch(line);
        }
        let (id, message) = match IncomingMessage::parse(&line) {
            Err(malformed) => {
                self.send(Reply::fault(malformed.id.as_ref(), &Fault::of(400, malformed.error))).await;
                return;
            }
            Ok(message) => match (&message.id, message.method.as_deref()) {
                (Some(id), Some(_)) => (id.clone(), message),
                (None, Some("notifications/cancelled")) => {
                    if let Some(params) = message.params(&line) {
                        on_cancelled(&self.context, &local_caller(), Some(&self.byte_stream), params);
                    }
                    let cancelled = message.params(&line).and_then(|params| serde_json::from_str::<Cancelled>(params).ok());
                    if let Some(request) = cancelled.and_then(|cancelled| self.in_flight.with(|map| map.remove(&cancelled.request_id))) {
                        request.cancelled.store(true, Ordering::Release);
                        request.handle.abort();
                    }
                    return;
                }
                // The answer to a question, which may never have been asked.
                (_, None) => return self.take_answer(message, line).await,
                // Other notifications mean nothing here.
                (None, Some(_)) => return,
            },
        };
        let max = self.context.config.requests_per_stream;
        let (known, count) = self.in_flight.with(|map| (map.contains_key(&id), map.len()));
        if known {
            let fault = Fault::new(400, code::INVALID_REQUEST, format!("the id `{id}` is in use by a request that is not answered yet"));
            return self.send(Reply::fault(Some(&id), &fault)).await;
        }
        if count >= max {
            let fault = Fault::limit(format!("{max} requests are waiting for an answer already (configuration key `requests_per_stream`)"));
            return self.send(Reply::fault(Some(&id), &fault)).await;
        }
        if legacy::is_initialize(&message) && Era::of_line(&message, &line) == Era::Legacy {
            return self.initialize(&message, &line).await;
        }
        self.spawn_request(id, message, line);
    }

    /// Begins a session before anything else is read, because what comes next may belong to it.
    async fn initialize(&mut self, message: &IncomingMessage, line: &[u8]) {
        let (identity, out) = (Identity::local(), MessageSink::closed());
        let origin = legacy::MessageSource { identity: &identity, channel: legacy::Channel::ByteStream(self.session.as_ref()), out: &out };
        let (reply, session) = legacy::initialize(&self.context, message, line, origin).await;
        self.send(reply).await;
        let Some(session) = session else { return };
        self.session = Some(session.clone());
        let (context, streams, ending) = (self.context.clone(), self.streams.clone(), self.ending.clone());
        self.requests.spawn(async move {
            let (sender, messages) = mpsc::channel(STREAM_LEN);
            let sink = MessageSink::new(sender, Framing::LINES).with_ending(ending);
            let send = async move { legacy::run_session_stream(&context, &session, &sink).await };
            let cancelled = Arc::default();
            futures_util::future::join(relay(messages, &streams, &cancelled), send).await;
        });
    }

    /// Responds to a batch, if the session's version has batches.
    fn take_batch(&mut self, line: Vec<u8>) {
        let (context, session, lines) = (self.context.clone(), self.session.clone(), self.lines.clone());
        self.requests.spawn(async move {
            let identity = Identity::local();
            let batch = legacy::batch(&context, &identity, legacy::Channel::ByteStream(session.as_ref()), &line);
            let reply = AssertUnwindSafe(batch).catch_unwind().await.unwrap_or_else(|_| Reply::panicked(None));
            if !reply.body.is_empty() {
                let _ = lines.send(Line::reply(reply, &Arc::default())).await;
            }
        });
    }

    async fn take_answer(&self, message: IncomingMessage, line: Vec<u8>) {
        if self.session.is_none() {
            return;
        }
        let (identity, out) = (Identity::local(), MessageSink::closed());
        let origin = legacy::MessageSource { identity: &identity, channel: legacy::Channel::ByteStream(self.session.as_ref()), out: &out };
        let reply = legacy::handle(&self.context, &message, &line, origin).await;
        if !reply.body.is_empty() {
            tracing::debug!(reason = %String::from_utf8_lossy(&reply.body), "a response was not taken");
        }
    }

    fn spawn_request(&mut self, id: RequestId, message: IncomingMessage, line: Vec<u8>) {
        let (context, in_flight, peer) = (self.context.clone(), self.in_flight.clone(), self.peer.clone());
        let era = Era::of_line(&message, &line);
        let streams = match era {
            Era::Modern => modern::response_kind(&message, &line) == modern::ResponseKind::Stream,
            Era::Legacy => message.method.as_deref() == Some("tasks/result"),
        };
        let session = self.session.clone();
        let (lines, len) = if streams { (self.streams.clone(), STREAM_LEN) } else { (self.lines.clone(), QUEUE_LEN) };
        let (ending, stream) = (self.ending.clone(), self.byte_stream.clone());
        let (go, mut ready) = watch::channel(false);
        let (key, cancelled) = (id.clone(), Arc::<AtomicBool>::default());
        let request_cancelled = cancelled.clone();
        let handle = self.requests.spawn(async move {
            // Waits until the request is in the table; else a quick response could leave its entry behind.
            let _ = ready.wait_for(|go| *go).await;
            let (sender, messages) = mpsc::channel(len);
            let respond = async move {
                let identity = Identity::local();
                let out = MessageSink::new(sender, Framing::LINES).with_ending(ending).on_byte_stream(Some(stream));
                let origin =
                    router::MessageSource { identity: &identity, peer: &peer, channel: Channel::ByteStream(session.as_ref()), out: &out };
                let answer = router::respond(&context, era, &message, &line, origin);
                AssertUnwindSafe(answer).catch_unwind().await.unwrap_or_else(|_| Reply::panicked(message.id.as_ref()))
            };
            let ((), reply) = futures_util::future::join(relay(messages, &lines, &cancelled), respond).await;
            in_flight.with(|map| map.remove(&key));
            // Empty if the stream has sent the response.
            if !reply.body.is_empty() {
                let _ = lines.send(Line::reply(reply, &cancelled)).await;
            }
        });
        self.in_flight.with(|map| map.insert(id, Request { handle, cancelled: request_cancelled }));
        go.send_replace(true);
    }
}

/// Forwards messages until there are no more.
async fn relay(mut messages: mpsc::Receiver<Bytes>, lines: &mpsc::Sender<Line>, cancelled: &Arc<AtomicBool>) {
    while let Some(text) = messages.recv().await {
        if lines.send(Line { text, on_sent: None, cancelled: cancelled.clone() }).await.is_err() {
            break;
        }
    }
}
