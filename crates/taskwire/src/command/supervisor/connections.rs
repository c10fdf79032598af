//! Connections to the supervisor's socket: from the server, of which the last one counts, and from processes of the command.
//!
//! Each connection has a task of its own, so that one that is slow, silent or gone holds up nothing but itself.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch},
    time::{sleep, timeout},
};

use crate::command::messages::{
    self, BoundedLines, FromCommand, FromSupervisor, Hello, LINE_BYTES_MAX, OpenQuestion, SERVER_LINE_BYTES_MAX, ToCommand, ToSupervisor,
};

/// Connections that have not sent their hello, and how long they may take for it.
const UNIDENTIFIED_MAX: usize = 128;
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
const COMMAND_CONNECTIONS_MAX: usize = 64;
/// Events or requests that may wait for the supervisor's loop.
const QUEUE: usize = 64;
/// How long to wait when the system has no room for another connection.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// What servers are sent. Only the latest state counts.
#[derive(Debug, Clone, Default)]
pub(super) struct JobState {
    pub(super) journal_len: u64,
    pub(super) open_questions: Arc<Vec<Arc<OpenQuestion>>>,
    /// Whether the job was given a lease while it ran.
    pub(super) is_adopted: bool,
}

/// What a connection reports to the supervisor's loop.
pub(super) enum ConnectionEvent {
    /// A server has connected.
    Attached(AttachedServer),
    /// The server sent a message.
    Message(ToSupervisor),
    /// The connection of this server is closed.
    Detached(u64),
    /// A process of the command does not wait for its answer any more.
    AskerGone,
}

/// A server that is attached. Dropping this closes its connection.
pub(super) struct AttachedServer {
    pub(super) id: u64,
    /// How much of the journal it was told of.
    pub(super) known_len: watch::Receiver<u64>,
    _close: oneshot::Sender<()>,
}

/// A request of a process of the command.
pub(super) struct Request {
    pub(super) body: FromCommand,
    pub(super) reply: oneshot::Sender<ToCommand>,
}

/// What all connections report, in two queues.
pub(super) struct Connections {
    pub(super) events: mpsc::Receiver<ConnectionEvent>,
    pub(super) requests: mpsc::Receiver<Request>,
}

#[derive(Clone)]
struct ConnectionContext {
    job_state: watch::Receiver<JobState>,
    events: mpsc::Sender<ConnectionEvent>,
    requests: mpsc::Sender<Request>,
    command_slots: Arc<Semaphore>,
}

impl Connections {
    /// Accepts connections until the runtime ends.
    pub(super) fn open(listener: UnixListener, job_state: watch::Receiver<JobState>) -> Self {
        let (events, events_out) = mpsc::channel(QUEUE);
        let (requests, requests_out) = mpsc::channel(QUEUE);
        let context = ConnectionContext { job_state, events, requests, command_slots: Arc::new(Semaphore::new(COMMAND_CONNECTIONS_MAX)) };
        tokio::spawn(accept(listener, context));
        Self { events: events_out, requests: requests_out }
    }
}

async fn accept(listener: UnixListener, context: ConnectionContext) {
    let unidentified = Arc::new(Semaphore::new(UNIDENTIFIED_MAX));
    let mut id = 0;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Ok(permit) = unidentified.clone().try_acquire_owned() {
                    id += 1;
                    tokio::spawn(context.clone().identify(id, stream, permit));
                }
            }
            Err(_) => sleep(ACCEPT_RETRY_PAUSE).await,
        }
    }
}

impl ConnectionContext {
    async fn identify(self, id: u64, stream: UnixStream, permit: OwnedSemaphorePermit) {
        let (from, to) = stream.into_split();
        let mut lines = BoundedLines::new(from);
        let Ok(Ok(Some(line))) = timeout(HELLO_TIMEOUT, lines.next()).await else { return };
        drop(permit);
        match messages::parse(&line) {
            Ok(Hello::Server) => self.serve_server(id, lines, to).await,
            Ok(Hello::Command) => self.serve_command(lines, to).await,
            // It may not understand any reply.
            Err(_) => {}
        }
    }

    async fn serve_server(self, id: u64, mut lines: BoundedLines<OwnedReadHalf>, to: OwnedWriteHalf) {
        lines.set_max_bytes(SERVER_LINE_BYTES_MAX);
        let (close, closed) = oneshot::channel();
        let (knows, known) = watch::channel(0);
        if self.events.send(ConnectionEvent::Attached(AttachedServer { id, known_len: known, _close: close })).await.is_err() {
            return;
        }
        tokio::select! {
            _ = closed => {}
            () = receive(&mut lines, &self.events) => {}
            () = send_state(to, self.job_state, knows) => {}
        }
        let _ = self.events.send(ConnectionEvent::Detached(id)).await;
    }

    async fn serve_command(self, mut lines: BoundedLines<OwnedReadHalf>, mut to: OwnedWriteHalf) {
        let Ok(_slot) = self.command_slots.clone().try_acquire_owned() else {
            let error = format!("{COMMAND_CONNECTIONS_MAX} processes of this command are connected already");
            let _ = send_reply(&mut to, ToCommand::Error(error)).await;
            return;
        };
        loop {
            let reply = match lines.next().await {
                Ok(None) => return,
                Ok(Some(line)) => match messages::parse(&line) {
                    Ok(body) => match self.forward(body, &mut lines).await {
                        Some(reply) => reply,
                        None => return,
                    },
                    Err(error) => ToCommand::Error(error.to_string()),
                },
                Err(error) => {
                    let _ = send_reply(&mut to, ToCommand::Error(error.to_string())).await;
                    return;
                }
            };
            if send_reply(&mut to, reply).await.is_err() {
                return;
            }
        }
    }

    /// Hands a request to the loop and waits for the reply; None if the process is gone.
    async fn forward(&self, body: FromCommand, lines: &mut BoundedLines<OwnedReadHalf>) -> Option<ToCommand> {
        // A process cannot take back a note, but it can give up a question.
        let mut is_watched = matches!(body, FromCommand::Ask { .. });
        let (reply, mut replied) = oneshot::channel();
        self.requests.send(Request { body, reply }).await.ok()?;
        loop {
            tokio::select! {
                reply = &mut replied => return reply.ok(),
                is_over = lines.is_closed(), if is_watched => {
                    if is_over {
                        drop(replied);
                        let _ = self.events.send(ConnectionEvent::AskerGone).await;
                        return None;
                    }
                    // The process has sent its next request. It is read later, and this one is answered first.
                    is_watched = false;
                }
            }
        }
    }
}

async fn send_reply(to: &mut OwnedWriteHalf, reply: ToCommand) -> io::Result<()> {
    let is_long = messages::line(&reply).len() > LINE_BYTES_MAX;
    let reply = if is_long { ToCommand::Error("the answer is too long to be passed on".to_owned()) } else { reply };
    messages::send(to, &reply).await
}

/// Passes on what a server sends, until it is gone.
async fn receive(lines: &mut BoundedLines<OwnedReadHalf>, events: &mpsc::Sender<ConnectionEvent>) {
    while let Ok(Some(line)) = lines.next().await {
        // A later version may send what this one does not know.
        let Ok(message) = messages::parse(&line) else { continue };
        if events.send(ConnectionEvent::Message(message)).await.is_err() {
            return;
        }
    }
}

/// Sends the state to a server, and again when it changes. A slow server misses only states in between.
async fn send_state(mut to: OwnedWriteHalf, mut state: watch::Receiver<JobState>, knows: watch::Sender<u64>) {
    let mut serial = 0;
    let mut len = None;
    let mut open: Option<Vec<String>> = None;
    let mut is_adopted = false;
    loop {
        let now = state.borrow_and_update().clone();
        let mut sent = Ok(());
        for question in now.open_questions.iter().filter(|question| question.serial > serial) {
            sent = messages::send(&mut to, &FromSupervisor::Ask(OpenQuestion::clone(question))).await;
            if sent.is_err() {
                break;
            }
        }
        serial = now.open_questions.iter().map(|question| question.serial).fold(serial, u64::max);
        let keys: Vec<String> = now.open_questions.iter().map(|question| question.key.clone()).collect();
        if sent.is_ok() && open.as_ref() != Some(&keys) {
            sent = messages::send(&mut to, &FromSupervisor::Open(keys.clone())).await;
            open = Some(keys);
        }
        if sent.is_ok() && now.is_adopted && !is_adopted {
            sent = messages::send(&mut to, &FromSupervisor::Adopted {}).await;
            is_adopted = true;
        }
        if sent.is_ok() && len != Some(now.journal_len) {
            sent = messages::send(&mut to, &FromSupervisor::Len(now.journal_len)).await;
            len = Some(now.journal_len);
        }
        if sent.is_ok() {
            knows.send_replace(now.journal_len);
        }
        if sent.is_err() || state.changed().await.is_err() {
            // The server is gone, but messages that it sent before may still be there to be received.
            return std::future::pending().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    use super::*;
    use crate::command::{
        messages::{Note, Question},
        socket,
    };
    use crate::testing::TempDir;

    struct Client {
        from: tokio::io::Lines<BufReader<OwnedReadHalf>>,
        to: OwnedWriteHalf,
    }

    impl Client {
        async fn new(dir: &TempDir, hello: Hello) -> Self {
            let stream = socket::connect(&dir.0, messages::SOCKET).await.expect("connected");
            let (from, to) = stream.into_split();
            let mut client = Self { from: BufReader::new(from).lines(), to };
            client.say(&hello).await;
            client
        }

        async fn say(&mut self, what: &impl serde::Serialize) {
            self.to.write_all(&messages::line(what)).await.expect("sent");
        }

        /// None when the connection was closed.
        async fn hear(&mut self) -> Option<Value> {
            let line = soon(self.from.next_line()).await.ok().flatten();
            line.map(|line| serde_json::from_str(&line).expect("JSON"))
        }
    }

    async fn soon<T>(future: impl Future<Output = T>) -> T {
        timeout(Duration::from_secs(10), future).await.expect("it happens within ten seconds")
    }

    async fn connections(dir: &TempDir) -> (Connections, watch::Sender<JobState>) {
        let listener = socket::listen(&dir.0, messages::SOCKET).await.expect("listens");
        let (state, state_out) = watch::channel(JobState { journal_len: 8, ..JobState::default() });
        (Connections::open(listener, state_out), state)
    }

    async fn attached(connections: &mut Connections) -> AttachedServer {
        match soon(connections.events.recv()).await {
            Some(ConnectionEvent::Attached(server)) => server,
            _ => panic!("not a server that attaches"),
        }
    }

    fn status(message: &str) -> FromCommand {
        FromCommand::Note(Note::Status { message: message.to_owned() })
    }

    fn question(serial: u64) -> Arc<OpenQuestion> {
        let question = Question { message: "q".to_owned(), schema: None, url: None };
        Arc::new(OpenQuestion { key: format!("k{serial}"), question, journal_offset: 8, serial })
    }

    #[tokio::test]
    async fn a_server_is_told_how_it_is_and_each_question_once() {
        let dir = TempDir::new();
        let (mut connections, state) = connections(&dir).await;
        state.send_modify(|state| state.open_questions = Arc::new(vec![question(1)]));
        let mut client = Client::new(&dir, Hello::Server).await;
        let mut server = attached(&mut connections).await;
        assert_eq!(client.hear().await, Some(json!({"ask": {"key": "k1", "question": {"message": "q"}, "at": 8}})));
        assert_eq!(client.hear().await, Some(json!({"open": ["k1"]})));
        assert_eq!(client.hear().await, Some(json!({"len": 8})));
        state.send_modify(|state| {
            state.journal_len = 20;
            state.open_questions = Arc::new(vec![question(1), question(2)]);
        });
        assert_eq!(client.hear().await.expect("told")["ask"]["key"], "k2");
        assert_eq!(client.hear().await, Some(json!({"open": ["k1", "k2"]})));
        assert_eq!(client.hear().await, Some(json!({"len": 20})));
        state.send_modify(|state| state.journal_len = 30);
        assert_eq!(client.hear().await, Some(json!({"len": 30})));
        state.send_modify(|state| state.is_adopted = true);
        assert_eq!(client.hear().await, Some(json!({"adopted": {}})));
        soon(server.known_len.wait_for(|known| *known >= 30)).await.expect("attached");
        client.say(&ToSupervisor::Consumed(30)).await;
        client.say(&json!({"from": "the future"})).await;
        client.say(&ToSupervisor::Stop {}).await;
        drop(client);
        assert!(matches!(soon(connections.events.recv()).await, Some(ConnectionEvent::Message(ToSupervisor::Consumed(30)))));
        assert!(matches!(soon(connections.events.recv()).await, Some(ConnectionEvent::Message(ToSupervisor::Stop {}))));
        assert!(matches!(soon(connections.events.recv()).await, Some(ConnectionEvent::Detached(id)) if id == server.id));
    }

    #[tokio::test]
    async fn a_server_that_is_let_go_is_disconnected_and_a_new_one_is_told_all() {
        let dir = TempDir::new();
        let (mut connections, _state) = connections(&dir).await;
        let mut first = Client::new(&dir, Hello::Server).await;
        let server = attached(&mut connections).await;
        assert_eq!(first.hear().await, Some(json!({"open": []})));
        assert_eq!(first.hear().await, Some(json!({"len": 8})));
        let mut second = Client::new(&dir, Hello::Server).await;
        let _second_server = attached(&mut connections).await;
        drop(server);
        assert_eq!(first.hear().await, None);
        assert_eq!(second.hear().await, Some(json!({"open": []})));
        assert_eq!(second.hear().await, Some(json!({"len": 8})));
    }

    #[tokio::test]
    async fn each_note_has_its_answer_and_nonsense_has_one_too() {
        let dir = TempDir::new();
        let (mut connections, _state) = connections(&dir).await;
        let mut client = Client::new(&dir, Hello::Command).await;
        client.say(&status("a")).await;
        client.say(&json!({"dance": 1})).await;
        let request = soon(connections.requests.recv()).await.expect("a request");
        assert_eq!(request.body, status("a"));
        request.reply.send(ToCommand::Ok {}).expect("it waits");
        assert_eq!(client.hear().await, Some(json!({"ok": {}})));
        assert!(client.hear().await.expect("an answer")["error"].as_str().expect("words").contains("dance"));
        client.to.write_all(&vec![b'x'; LINE_BYTES_MAX]).await.expect("sent");
        assert!(client.hear().await.expect("an answer").get("error").is_some());
        assert_eq!(client.hear().await, None);
    }

    #[tokio::test]
    async fn who_waits_keeps_nobody_else_waiting_and_there_is_an_end_to_them() {
        let dir = TempDir::new();
        let (mut connections, _state) = connections(&dir).await;
        let ask = FromCommand::Ask { key: None, question: Question { message: "q".to_owned(), schema: None, url: None } };
        let mut clients = Vec::new();
        let mut requests = Vec::new();
        for _ in 0..COMMAND_CONNECTIONS_MAX {
            let mut client = Client::new(&dir, Hello::Command).await;
            client.say(&ask).await;
            requests.push(soon(connections.requests.recv()).await.expect("a request"));
            clients.push(client);
        }
        let mut one_more = Client::new(&dir, Hello::Command).await;
        assert!(one_more.hear().await.expect("an answer").get("error").is_some());
        let _server = Client::new(&dir, Hello::Server).await;
        attached(&mut connections).await;
        // A process that disconnects frees its slot.
        let mut request = requests.pop().expect("one");
        clients.pop();
        soon(request.reply.closed()).await;
        let mut again = Client::new(&dir, Hello::Command).await;
        again.say(&status("b")).await;
        assert_eq!(soon(connections.requests.recv()).await.expect("a request").body, status("b"));
    }
}
