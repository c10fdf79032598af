//! Who comes by the socket: the server, of which the last one counts, and processes of the command.
//!
//! Each connection is served by a task of its own, so that one that is slow, or silent, or gone keeps nobody waiting but itself.

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

/// Connections that have not said who they are, and how long they may take for it.
const UNIDENTIFIED_MAX: usize = 128;
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections of the command's processes.
const COMMAND_CONNECTIONS_MAX: usize = 64;
/// What waits to be looked at.
const QUEUE: usize = 64;
/// The system may have no room for another connection; it is tried again after this.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// What servers are told: only how it is now counts.
#[derive(Debug, Clone, Default)]
pub(super) struct JobState {
    /// Bytes of the journal.
    pub(super) journal_len: u64,
    /// Open questions.
    pub(super) open_questions: Arc<Vec<Arc<OpenQuestion>>>,
}

/// What happens at the door.
pub(super) enum ConnectionEvent {
    /// A server is there.
    Attached(AttachedServer),
    /// It says something.
    Message(ToSupervisor),
    /// It is gone.
    Detached(u64),
    /// A process of the command does not wait for its answer any more.
    AskerGone,
}

/// A server that is attached. Its connection is closed when this is dropped.
pub(super) struct AttachedServer {
    pub(super) id: u64,
    /// How much of the journal it knows of.
    pub(super) known_len: watch::Receiver<u64>,
    _close: oneshot::Sender<()>,
}

/// What a process of the command wants.
pub(super) struct Request {
    pub(super) body: FromCommand,
    pub(super) reply: oneshot::Sender<ToCommand>,
}

/// Where they come from.
pub(super) struct Connections {
    pub(super) events: mpsc::Receiver<ConnectionEvent>,
    pub(super) requests: mpsc::Receiver<Request>,
}

/// What every connection needs.
#[derive(Clone)]
struct ConnectionContext {
    job_state: watch::Receiver<JobState>,
    events: mpsc::Sender<ConnectionEvent>,
    requests: mpsc::Sender<Request>,
    command_slots: Arc<Semaphore>,
}

impl Connections {
    /// Lets them in, until the runtime ends.
    pub(super) fn open(listener: UnixListener, news: watch::Receiver<JobState>) -> Self {
        let (events, events_out) = mpsc::channel(QUEUE);
        let (requests, requests_out) = mpsc::channel(QUEUE);
        let hall =
            ConnectionContext { job_state: news, events, requests, command_slots: Arc::new(Semaphore::new(COMMAND_CONNECTIONS_MAX)) };
        tokio::spawn(accept(listener, hall));
        Self { events: events_out, requests: requests_out }
    }
}

async fn accept(listener: UnixListener, hall: ConnectionContext) {
    let strangers = Arc::new(Semaphore::new(UNIDENTIFIED_MAX));
    let mut id = 0;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Ok(stranger) = strangers.clone().try_acquire_owned() {
                    id += 1;
                    tokio::spawn(hall.clone().identify(id, stream, stranger));
                }
            }
            Err(_) => sleep(ACCEPT_RETRY_PAUSE).await,
        }
    }
}

impl ConnectionContext {
    async fn identify(self, id: u64, stream: UnixStream, stranger: OwnedSemaphorePermit) {
        let (from, to) = stream.into_split();
        let mut lines = BoundedLines::new(from);
        let Ok(Ok(Some(line))) = timeout(HELLO_TIMEOUT, lines.next()).await else { return };
        drop(stranger);
        match messages::parse(&line) {
            Ok(Hello::Server) => self.serve_server(id, lines, to).await,
            Ok(Hello::Command) => self.serve_command(lines, to).await,
            // It cannot be told in words that it knows.
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
        let Ok(_seat) = self.command_slots.clone().try_acquire_owned() else {
            let _ = send_reply(&mut to, ToCommand::Error(format!("{COMMAND_CONNECTIONS_MAX} processes of this command are here already")))
                .await;
            return;
        };
        loop {
            let said = match lines.next().await {
                Ok(None) => return,
                Ok(Some(line)) => match messages::parse(&line) {
                    Ok(body) => match self.forward(body, &mut lines).await {
                        Some(said) => said,
                        None => return,
                    },
                    Err(error) => ToCommand::Error(error.to_string()),
                },
                Err(error) => {
                    let _ = send_reply(&mut to, ToCommand::Error(error.to_string())).await;
                    return;
                }
            };
            if send_reply(&mut to, said).await.is_err() {
                return;
            }
        }
    }

    /// Hands a request over and waits for what comes back; nothing if nobody wants to know any more.
    async fn forward(&self, body: FromCommand, lines: &mut BoundedLines<OwnedReadHalf>) -> Option<ToCommand> {
        // A note is told to the end, but a question can be given up.
        let mut is_watched = matches!(body, FromCommand::Ask { .. });
        let (reply, mut said) = oneshot::channel();
        self.requests.send(Request { body, reply }).await.ok()?;
        loop {
            tokio::select! {
                said = &mut said => return said.ok(),
                is_over = lines.is_closed(), if is_watched => {
                    if is_over {
                        drop(said);
                        let _ = self.events.send(ConnectionEvent::AskerGone).await;
                        return None;
                    }
                    // It has more to say: later.
                    is_watched = false;
                }
            }
        }
    }
}

async fn send_reply(to: &mut OwnedWriteHalf, said: ToCommand) -> io::Result<()> {
    let is_long = messages::line(&said).len() > LINE_BYTES_MAX;
    let said = if is_long { ToCommand::Error("the answer is too long to be passed on".to_owned()) } else { said };
    messages::send(to, &said).await
}

/// Takes what a server says, until it is gone.
async fn receive(lines: &mut BoundedLines<OwnedReadHalf>, events: &mpsc::Sender<ConnectionEvent>) {
    while let Ok(Some(line)) = lines.next().await {
        // A later version may say what this one does not know.
        let Ok(said) = messages::parse(&line) else { continue };
        if events.send(ConnectionEvent::Message(said)).await.is_err() {
            return;
        }
    }
}

/// Tells a server how it is, and again when that changes. One that is slow misses nothing but what was in between.
async fn send_state(mut to: OwnedWriteHalf, mut news: watch::Receiver<JobState>, knows: watch::Sender<u64>) {
    let mut serial = 0;
    let mut len = None;
    let mut open: Option<Vec<String>> = None;
    loop {
        let now = news.borrow_and_update().clone();
        let mut told = Ok(());
        for question in now.open_questions.iter().filter(|question| question.serial > serial) {
            told = messages::send(&mut to, &FromSupervisor::Ask(OpenQuestion::clone(question))).await;
            if told.is_err() {
                break;
            }
        }
        serial = now.open_questions.iter().map(|question| question.serial).fold(serial, u64::max);
        let keys: Vec<String> = now.open_questions.iter().map(|question| question.key.clone()).collect();
        if told.is_ok() && open.as_ref() != Some(&keys) {
            told = messages::send(&mut to, &FromSupervisor::Open(keys.clone())).await;
            open = Some(keys);
        }
        if told.is_ok() && len != Some(now.journal_len) {
            told = messages::send(&mut to, &FromSupervisor::Len(now.journal_len)).await;
            len = Some(now.journal_len);
        }
        if told.is_ok() {
            knows.send_replace(now.journal_len);
        }
        if told.is_err() || news.changed().await.is_err() {
            // It is gone, but what it said before may still be there to be heard.
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

        /// Nothing when the connection was closed.
        async fn hear(&mut self) -> Option<Value> {
            let line = soon(self.from.next_line()).await.ok().flatten();
            line.map(|line| serde_json::from_str(&line).expect("JSON"))
        }
    }

    async fn soon<T>(future: impl Future<Output = T>) -> T {
        timeout(Duration::from_secs(10), future).await.expect("it happens within ten seconds")
    }

    async fn door(dir: &TempDir) -> (Connections, watch::Sender<JobState>) {
        let listener = socket::listen(&dir.0, messages::SOCKET).await.expect("listens");
        let (news, heard) = watch::channel(JobState { journal_len: 8, ..JobState::default() });
        (Connections::open(listener, heard), news)
    }

    async fn attached(door: &mut Connections) -> AttachedServer {
        match soon(door.events.recv()).await {
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
        let (mut door, news) = door(&dir).await;
        news.send_modify(|news| news.open_questions = Arc::new(vec![question(1)]));
        let mut client = Client::new(&dir, Hello::Server).await;
        let mut server = attached(&mut door).await;
        assert_eq!(client.hear().await, Some(json!({"ask": {"key": "k1", "question": {"message": "q"}, "at": 8}})));
        assert_eq!(client.hear().await, Some(json!({"open": ["k1"]})));
        assert_eq!(client.hear().await, Some(json!({"len": 8})));
        news.send_modify(|news| {
            news.journal_len = 20;
            news.open_questions = Arc::new(vec![question(1), question(2)]);
        });
        assert_eq!(client.hear().await.expect("told")["ask"]["key"], "k2");
        assert_eq!(client.hear().await, Some(json!({"open": ["k1", "k2"]})));
        assert_eq!(client.hear().await, Some(json!({"len": 20})));
        news.send_modify(|news| news.journal_len = 30);
        assert_eq!(client.hear().await, Some(json!({"len": 30})));
        soon(server.known_len.wait_for(|known| *known >= 30)).await.expect("attached");
        client.say(&ToSupervisor::Consumed(30)).await;
        client.say(&json!({"from": "the future"})).await;
        client.say(&ToSupervisor::Stop {}).await;
        drop(client);
        assert!(matches!(soon(door.events.recv()).await, Some(ConnectionEvent::Message(ToSupervisor::Consumed(30)))));
        assert!(matches!(soon(door.events.recv()).await, Some(ConnectionEvent::Message(ToSupervisor::Stop {}))));
        assert!(matches!(soon(door.events.recv()).await, Some(ConnectionEvent::Detached(id)) if id == server.id));
    }

    #[tokio::test]
    async fn a_server_that_is_let_go_is_disconnected_and_a_new_one_is_told_all() {
        let dir = TempDir::new();
        let (mut door, _news) = door(&dir).await;
        let mut first = Client::new(&dir, Hello::Server).await;
        let server = attached(&mut door).await;
        assert_eq!(first.hear().await, Some(json!({"open": []})));
        assert_eq!(first.hear().await, Some(json!({"len": 8})));
        let mut second = Client::new(&dir, Hello::Server).await;
        let _second_server = attached(&mut door).await;
        drop(server);
        assert_eq!(first.hear().await, None);
        assert_eq!(second.hear().await, Some(json!({"open": []})));
        assert_eq!(second.hear().await, Some(json!({"len": 8})));
    }

    #[tokio::test]
    async fn each_note_has_its_answer_and_nonsense_has_one_too() {
        let dir = TempDir::new();
        let (mut door, _news) = door(&dir).await;
        let mut client = Client::new(&dir, Hello::Command).await;
        client.say(&status("a")).await;
        client.say(&json!({"dance": 1})).await;
        let request = soon(door.requests.recv()).await.expect("a request");
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
        let (mut door, _news) = door(&dir).await;
        let ask = FromCommand::Ask { key: None, question: Question { message: "q".to_owned(), schema: None, url: None } };
        let mut clients = Vec::new();
        let mut requests = Vec::new();
        for _ in 0..COMMAND_CONNECTIONS_MAX {
            let mut client = Client::new(&dir, Hello::Command).await;
            client.say(&ask).await;
            requests.push(soon(door.requests.recv()).await.expect("a request"));
            clients.push(client);
        }
        let mut one_more = Client::new(&dir, Hello::Command).await;
        assert!(one_more.hear().await.expect("an answer").get("error").is_some());
        let _server = Client::new(&dir, Hello::Server).await;
        attached(&mut door).await;
        // Who goes makes room.
        let mut request = requests.pop().expect("one");
        clients.pop();
        soon(request.reply.closed()).await;
        let mut again = Client::new(&dir, Hello::Command).await;
        again.say(&status("b")).await;
        assert_eq!(soon(door.requests.recv()).await.expect("a request").body, status("b"));
    }
}
