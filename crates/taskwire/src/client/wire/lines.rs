//! One message a line: a program that the client starts, or a server in this process.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use serde::Deserialize;
use taskwire_core::wire::RequestId;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    sync::mpsc,
    task::JoinHandle,
};

use super::{
    Message, OutgoingRequest, WireError,
    child::{Child, ExitReport},
};
use crate::client::{Connect, Error, Options};

/// Messages that wait to be written, or to be read by the request that they are for.
const QUEUE: usize = 256;

/// How the server is started.
#[derive(Debug, Clone)]
pub(crate) enum Spawn {
    Command(Vec<String>),
    InProcess(Arc<dyn Connect>),
}

/// A connection that starts the server when it is needed, and again when it has ended.
pub(crate) struct Lines {
    spawn: Spawn,
    options: Arc<Options>,
    pipe: tokio::sync::Mutex<Option<Arc<Pipe>>>,
    generation: AtomicU64,
    closed: AtomicBool,
    unsolicited: UnsolicitedHandler,
}

/// Takes messages that belong to no request; drops them until a handler is set.
#[derive(Clone, Default)]
struct UnsolicitedHandler(Arc<OnceLock<Take>>);

type Take = Box<dyn Fn(Message) + Send + Sync>;

impl UnsolicitedHandler {
    fn take(&self, message: Message) {
        if let Some(take) = self.0.get() {
            take(message);
        }
    }
}

/// One start of the server.
struct Pipe {
    writer: mpsc::Sender<String>,
    routes: Arc<Routes>,
    child: Option<Child>,
    reader: JoinHandle<()>,
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // A server in this process ends by itself when its input does.
        self.reader.abort();
    }
}

#[derive(Default)]
struct Routes {
    /// The queues of open requests, by id; none once the server has ended.
    open: Mutex<Option<HashMap<i64, mpsc::Sender<Message>>>>,
    /// Why it ended.
    reason: Mutex<String>,
    /// Whether it is a program, which can end by itself.
    is_program: bool,
}

impl Routes {
    fn of(&self, id: i64) -> Option<mpsc::Sender<Message>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(&id).cloned()
    }

    fn end(&self, reason: String) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
        self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// The error of requests that were open when it ended.
    fn lost(&self) -> WireError {
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if self.is_program { WireError::ProgramEnded(reason) } else { WireError::Interrupted(reason) }
    }

    fn ended(&self) -> bool {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

impl Lines {
    pub(crate) fn new(spawn: Spawn, options: Arc<Options>) -> Self {
        Self {
            spawn,
            options,
            pipe: tokio::sync::Mutex::new(None),
            generation: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            unsolicited: UnsolicitedHandler::default(),
        }
    }

    /// Sets the handler of messages that belong to no request. It runs before the next message is read.
    pub(crate) fn on_unsolicited(&self, handler: impl Fn(Message) + Send + Sync + 'static) {
        let _ = self.unsolicited.0.set(Box::new(handler));
    }

    pub(crate) async fn ready(&self) -> Result<u64, WireError> {
        self.pipe(None).await?;
        Ok(self.generation.load(Ordering::Relaxed))
    }

    /// The pipe to the server, which is started unless it runs. Fails if it is not the start that is `wanted`.
    async fn pipe(&self, wanted: Option<u64>) -> Result<Arc<Pipe>, WireError> {
        let mut current = self.pipe.lock().await;
        let running = current.as_ref().filter(|pipe| !pipe.routes.ended());
        if wanted.is_some_and(|wanted| running.is_none() || wanted != self.generation.load(Ordering::Relaxed)) {
            return Err(WireError::Unsent("the server has ended, and the session with it".to_owned()));
        }
        if let Some(pipe) = running {
            return Ok(pipe.clone());
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(WireError::Unsendable(Error::Closed));
        }
        let pipe = Arc::new(self.start().map_err(WireError::Unsent)?);
        self.generation.fetch_add(1, Ordering::Relaxed);
        *current = Some(pipe.clone());
        Ok(pipe)
    }

    fn start(&self) -> Result<Pipe, String> {
        let is_program = matches!(self.spawn, Spawn::Command(_));
        let routes = Arc::new(Routes { open: Mutex::new(Some(HashMap::new())), reason: Mutex::default(), is_program });
        let (writer, queue) = mpsc::channel(QUEUE);
        let max = self.options.limits.message_bytes;
        match &self.spawn {
            Spawn::Command(words) => {
                let (child, input, output) = Child::start(words, self.options.clock.clone())?;
                tokio::spawn(write(input, queue, routes.clone(), Some(child.exit_report())));
                let reader = tokio::spawn(read(output, max, routes.clone(), self.unsolicited.clone(), Some(child.exit_report())));
                Ok(Pipe { writer, routes, child: Some(child), reader })
            }
            Spawn::InProcess(server) => {
                let (output, input) = tokio::io::split(server.connect());
                tokio::spawn(write(input, queue, routes.clone(), None));
                let reader = tokio::spawn(read(output, max, routes.clone(), self.unsolicited.clone(), None));
                Ok(Pipe { writer, routes, child: None, reader })
            }
        }
    }

    pub(crate) async fn request(&self, outgoing: OutgoingRequest) -> Result<LinesExchange, WireError> {
        let pipe = self.pipe(outgoing.generation).await?;
        let (sender, messages) = mpsc::channel(QUEUE);
        match pipe.routes.open.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            Some(open) => drop(open.insert(outgoing.id, sender)),
            None => return Err(pipe.routes.lost()),
        }
        let exchange = LinesExchange { id: outgoing.id, messages, cancel: outgoing.cancel, pipe };
        if exchange.pipe.writer.send(outgoing.body).await.is_err() {
            return Err(exchange.pipe.routes.lost());
        }
        Ok(exchange)
    }

    pub(crate) async fn send_one_way(&self, body: String, generation: Option<u64>) -> Result<(), WireError> {
        let pipe = self.pipe(generation).await?;
        pipe.writer.send(body).await.map_err(|_| pipe.routes.lost())
    }

    /// Ends the program: closes its input, then terminates it, then kills it.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let Some(pipe) = self.pipe.lock().await.take() else { return };
        pipe.routes.end("the client was closed".to_owned());
        if let Some(child) = &pipe.child {
            let child = child.clone();
            drop(pipe);
            child.end().await;
        }
    }
}

/// The messages that come back for one request.
pub(crate) struct LinesExchange {
    id: i64,
    messages: mpsc::Receiver<Message>,
    cancel: Option<String>,
    pipe: Arc<Pipe>,
}

impl LinesExchange {
    pub(super) async fn next(&mut self) -> Result<Option<Message>, WireError> {
        match self.messages.recv().await {
            Some(message) => {
                if matches!(message, Message::Response { .. }) {
                    self.cancel = None;
                }
                Ok(Some(message))
            }
            None => Err(self.pipe.routes.lost()),
        }
    }

    /// Ends the stream: the next request begins another one, and drops this one with its program. Other requests on it are lost.
    pub(super) fn end_stream(&self, reason: &str) {
        // The reason why it ended by itself says more.
        if !self.pipe.routes.ended() {
            self.pipe.routes.end(reason.to_owned());
        }
        self.pipe.reader.abort();
    }
}

impl Drop for LinesExchange {
    fn drop(&mut self) {
        if let Some(open) = self.pipe.routes.open.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            open.remove(&self.id);
        }
        if let Some(cancel) = self.cancel.take() {
            // If the queue is full, the server goes on in vain, and its response is ignored.
            let _ = self.pipe.writer.try_send(cancel);
        }
    }
}

async fn write(
    mut input: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<String>,
    routes: Arc<Routes>,
    exit_report: Option<ExitReport>,
) {
    while let Some(mut line) = queue.recv().await {
        line.push('\n');
        let written = async {
            input.write_all(line.as_bytes()).await?;
            input.flush().await
        };
        if let Err(error) = written.await {
            let reason = format!("the server cannot be written to: {error}");
            routes.end(match exit_report {
                Some(exit_report) => exit_report.describe(reason).await,
                None => reason,
            });
            break;
        }
    }
    let _ = input.shutdown().await;
}

async fn read(
    output: impl AsyncRead + Unpin,
    max: usize,
    routes: Arc<Routes>,
    unsolicited: UnsolicitedHandler,
    exit_report: Option<ExitReport>,
) {
    let mut output = BufReader::with_capacity(64 * 1024, output);
    let mut line = Vec::new();
    let reason = loop {
        line.clear();
        let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
        match (&mut output).take(limit).read_until(b'\n', &mut line).await {
            Ok(0) => break None,
            Ok(_) if line.len() > max => break Some(format!("the server sent a line of more than {max} bytes")),
            Ok(_) => {}
            Err(error) => break Some(format!("the server cannot be read: {error}")),
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match Message::parse(&line) {
            Ok(message) => route(message, &routes, &unsolicited).await,
            Err(reason) => tracing::debug!(%reason, "a line of the server is passed over"),
        }
    };
    routes.end(match (reason, exit_report) {
        (Some(reason), _) => reason,
        (None, Some(exit_report)) => exit_report.describe("the server closed its standard output".to_owned()).await,
        (None, None) => "the server ended".to_owned(),
    });
}

#[derive(Deserialize)]
struct RoutingParams {
    #[serde(default, rename = "progressToken")]
    token: Option<RequestId>,
    #[serde(default, rename = "_meta")]
    meta: Option<Meta>,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(default, rename = "io.modelcontextprotocol/subscriptionId")]
    subscription: Option<RequestId>,
}

async fn route(message: Message, routes: &Routes, unsolicited: &UnsolicitedHandler) {
    let number = |id: &RequestId| match id {
        RequestId::Number(number) => Some(*number),
        RequestId::Text(_) => None,
    };
    match &message {
        Message::Response { id: Some(id), .. } => {
            if let Some(sender) = number(id).and_then(|id| routes.of(id)) {
                let _ = sender.try_send(message);
            }
        }
        Message::Response { id: None, .. } => tracing::debug!("an answer without a name is passed over"),
        Message::Notification { params, .. } => {
            let routing = params.read::<RoutingParams>().ok();
            let subscription = routing.as_ref().and_then(|routing| routing.meta.as_ref()?.subscription.as_ref()).and_then(number);
            let token = routing.as_ref().and_then(|routing| routing.token.as_ref()).and_then(number);
            match (subscription.and_then(|id| routes.of(id)), token.and_then(|id| routes.of(id))) {
                (Some(sender), _) => drop(sender.send(message).await),
                // A call that is not read must not block the others, so its progress is dropped when the queue is full.
                // One slot always stays free for its response.
                (None, Some(sender)) if sender.capacity() > 1 => drop(sender.try_send(message)),
                (None, Some(_)) => {}
                (None, None) => unsolicited.take(message),
            }
        }
        Message::Request { .. } => unsolicited.take(message),
    }
}
