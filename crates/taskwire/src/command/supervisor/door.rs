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

use crate::command::talk::{
    self, Asked, FromInside, FromSupervisor, Hello, LINE_BYTES_MAX, Lines, SERVER_LINE_BYTES_MAX, ToInside, ToSupervisor,
};

/// Connections that have not said who they are, and how long they may take for it.
const STRANGERS_MAX: usize = 128;
const HELLO_MAX: Duration = Duration::from_secs(5);
/// Connections of the command's processes.
const INSIDE_MAX: usize = 64;
/// What waits to be looked at.
const QUEUE: usize = 64;
/// The system may have no room for another connection; it is tried again after this.
const PAUSE: Duration = Duration::from_millis(100);

/// What servers are told: only how it is now counts.
#[derive(Debug, Clone, Default)]
pub(super) struct News {
    /// Bytes of the journal.
    pub(super) len: u64,
    /// Open questions.
    pub(super) open: Arc<Vec<Arc<Asked>>>,
}

/// What happens at the door.
pub(super) enum Event {
    /// A server is there.
    Attached(Server),
    /// It says something.
    Said(ToSupervisor),
    /// It is gone.
    Gone(u64),
    /// A process of the command does not wait for its answer any more.
    GaveUp,
}

/// A server that is attached. Its connection is closed when this is dropped.
pub(super) struct Server {
    pub(super) id: u64,
    /// How much of the journal it knows of.
    pub(super) knows: watch::Receiver<u64>,
    _close: oneshot::Sender<()>,
}

/// What a process of the command wants.
pub(super) struct Request {
    pub(super) body: FromInside,
    pub(super) reply: oneshot::Sender<ToInside>,
}

/// Where they come from.
pub(super) struct Door {
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) requests: mpsc::Receiver<Request>,
}

/// What every connection needs.
#[derive(Clone)]
struct Hall {
    news: watch::Receiver<News>,
    events: mpsc::Sender<Event>,
    requests: mpsc::Sender<Request>,
    seats: Arc<Semaphore>,
}

impl Door {
    /// Lets them in, until the runtime ends.
    pub(super) fn open(listener: UnixListener, news: watch::Receiver<News>) -> Self {
        let (events, events_out) = mpsc::channel(QUEUE);
        let (requests, requests_out) = mpsc::channel(QUEUE);
        let hall = Hall { news, events, requests, seats: Arc::new(Semaphore::new(INSIDE_MAX)) };
        tokio::spawn(accept(listener, hall));
        Self { events: events_out, requests: requests_out }
    }
}

async fn accept(listener: UnixListener, hall: Hall) {
    let strangers = Arc::new(Semaphore::new(STRANGERS_MAX));
    let mut id = 0;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Ok(stranger) = strangers.clone().try_acquire_owned() {
                    id += 1;
                    tokio::spawn(hall.clone().greet(id, stream, stranger));
                }
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

impl Hall {
    async fn greet(self, id: u64, stream: UnixStream, stranger: OwnedSemaphorePermit) {
        let (from, to) = stream.into_split();
        let mut lines = Lines::new(from);
        let Ok(Ok(Some(line))) = timeout(HELLO_MAX, lines.next()).await else { return };
        drop(stranger);
        match talk::parse(&line) {
            Ok(Hello::Server) => self.server(id, lines, to).await,
            Ok(Hello::Inside) => self.inside(lines, to).await,
            // It cannot be told in words that it knows.
            Err(_) => {}
        }
    }

    async fn server(self, id: u64, mut lines: Lines<OwnedReadHalf>, to: OwnedWriteHalf) {
        lines.allow(SERVER_LINE_BYTES_MAX);
        let (close, closed) = oneshot::channel();
        let (knows, known) = watch::channel(0);
        if self.events.send(Event::Attached(Server { id, knows: known, _close: close })).await.is_err() {
            return;
        }
        tokio::select! {
            _ = closed => {}
            () = hear(&mut lines, &self.events) => {}
            () = tell(to, self.news, knows) => {}
        }
        let _ = self.events.send(Event::Gone(id)).await;
    }

    async fn inside(self, mut lines: Lines<OwnedReadHalf>, mut to: OwnedWriteHalf) {
        let Ok(_seat) = self.seats.clone().try_acquire_owned() else {
            let _ = answer(&mut to, ToInside::Error(format!("{INSIDE_MAX} processes of this command are here already"))).await;
            return;
        };
        loop {
            let said = match lines.next().await {
                Ok(None) => return,
                Ok(Some(line)) => match talk::parse(&line) {
                    Ok(body) => match self.request(body, &mut lines).await {
                        Some(said) => said,
                        None => return,
                    },
                    Err(error) => ToInside::Error(error.to_string()),
                },
                Err(error) => {
                    let _ = answer(&mut to, ToInside::Error(error.to_string())).await;
                    return;
                }
            };
            if answer(&mut to, said).await.is_err() {
                return;
            }
        }
    }

    /// Hands a request over and waits for what comes back; nothing if nobody wants to know any more.
    async fn request(&self, body: FromInside, lines: &mut Lines<OwnedReadHalf>) -> Option<ToInside> {
        // A note is told to the end, but a question can be given up.
        let mut is_watched = matches!(body, FromInside::Ask { .. });
        let (reply, mut said) = oneshot::channel();
        self.requests.send(Request { body, reply }).await.ok()?;
        loop {
            tokio::select! {
                said = &mut said => return said.ok(),
                is_over = lines.is_over(), if is_watched => {
                    if is_over {
                        drop(said);
                        let _ = self.events.send(Event::GaveUp).await;
                        return None;
                    }
                    // It has more to say: later.
                    is_watched = false;
                }
            }
        }
    }
}

async fn answer(to: &mut OwnedWriteHalf, said: ToInside) -> io::Result<()> {
    let is_long = talk::line(&said).len() > LINE_BYTES_MAX;
    let said = if is_long { ToInside::Error("the answer is too long to be passed on".to_owned()) } else { said };
    talk::send(to, &said).await
}

/// Takes what a server says, until it is gone.
async fn hear(lines: &mut Lines<OwnedReadHalf>, events: &mpsc::Sender<Event>) {
    while let Ok(Some(line)) = lines.next().await {
        // A later version may say what this one does not know.
        let Ok(said) = talk::parse(&line) else { continue };
        if events.send(Event::Said(said)).await.is_err() {
            return;
        }
    }
}

/// Tells a server how it is, and again when that changes. One that is slow misses nothing but what was in between.
async fn tell(mut to: OwnedWriteHalf, mut news: watch::Receiver<News>, knows: watch::Sender<u64>) {
    let mut serial = 0;
    let mut len = None;
    let mut open: Option<Vec<String>> = None;
    loop {
        let now = news.borrow_and_update().clone();
        let mut told = Ok(());
        for question in now.open.iter().filter(|question| question.serial > serial) {
            told = talk::send(&mut to, &FromSupervisor::Ask(Asked::clone(question))).await;
            if told.is_err() {
                break;
            }
        }
        serial = now.open.iter().map(|question| question.serial).fold(serial, u64::max);
        let keys: Vec<String> = now.open.iter().map(|question| question.key.clone()).collect();
        if told.is_ok() && open.as_ref() != Some(&keys) {
            told = talk::send(&mut to, &FromSupervisor::Open(keys.clone())).await;
            open = Some(keys);
        }
        if told.is_ok() && len != Some(now.len) {
            told = talk::send(&mut to, &FromSupervisor::Len(now.len)).await;
            len = Some(now.len);
        }
        if told.is_ok() {
            knows.send_replace(now.len);
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
        socket,
        talk::{Note, Question},
    };
    use crate::testing::TempDir;

    struct Client {
        from: tokio::io::Lines<BufReader<OwnedReadHalf>>,
        to: OwnedWriteHalf,
    }

    impl Client {
        async fn new(dir: &TempDir, hello: Hello) -> Self {
            let stream = socket::connect(&dir.0, talk::SOCKET).await.expect("connected");
            let (from, to) = stream.into_split();
            let mut client = Self { from: BufReader::new(from).lines(), to };
            client.say(&hello).await;
            client
        }

        async fn say(&mut self, what: &impl serde::Serialize) {
            self.to.write_all(&talk::line(what)).await.expect("sent");
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

    async fn door(dir: &TempDir) -> (Door, watch::Sender<News>) {
        let listener = socket::listen(&dir.0, talk::SOCKET).await.expect("listens");
        let (news, heard) = watch::channel(News { len: 8, ..News::default() });
        (Door::open(listener, heard), news)
    }

    async fn attached(door: &mut Door) -> Server {
        match soon(door.events.recv()).await {
            Some(Event::Attached(server)) => server,
            _ => panic!("not a server that attaches"),
        }
    }

    fn status(message: &str) -> FromInside {
        FromInside::Note(Note::Status { message: message.to_owned() })
    }

    fn question(serial: u64) -> Arc<Asked> {
        let question = Question { message: "q".to_owned(), schema: None, url: None };
        Arc::new(Asked { key: format!("k{serial}"), question, at: 8, serial })
    }

    #[tokio::test]
    async fn a_server_is_told_how_it_is_and_each_question_once() {
        let dir = TempDir::new();
        let (mut door, news) = door(&dir).await;
        news.send_modify(|news| news.open = Arc::new(vec![question(1)]));
        let mut client = Client::new(&dir, Hello::Server).await;
        let mut server = attached(&mut door).await;
        assert_eq!(client.hear().await, Some(json!({"ask": {"key": "k1", "question": {"message": "q"}, "at": 8}})));
        assert_eq!(client.hear().await, Some(json!({"open": ["k1"]})));
        assert_eq!(client.hear().await, Some(json!({"len": 8})));
        news.send_modify(|news| {
            news.len = 20;
            news.open = Arc::new(vec![question(1), question(2)]);
        });
        assert_eq!(client.hear().await.expect("told")["ask"]["key"], "k2");
        assert_eq!(client.hear().await, Some(json!({"open": ["k1", "k2"]})));
        assert_eq!(client.hear().await, Some(json!({"len": 20})));
        news.send_modify(|news| news.len = 30);
        assert_eq!(client.hear().await, Some(json!({"len": 30})));
        soon(server.knows.wait_for(|known| *known >= 30)).await.expect("attached");
        client.say(&ToSupervisor::Consumed(30)).await;
        client.say(&json!({"from": "the future"})).await;
        client.say(&ToSupervisor::Stop {}).await;
        drop(client);
        assert!(matches!(soon(door.events.recv()).await, Some(Event::Said(ToSupervisor::Consumed(30)))));
        assert!(matches!(soon(door.events.recv()).await, Some(Event::Said(ToSupervisor::Stop {}))));
        assert!(matches!(soon(door.events.recv()).await, Some(Event::Gone(id)) if id == server.id));
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
        let mut client = Client::new(&dir, Hello::Inside).await;
        client.say(&status("a")).await;
        client.say(&json!({"dance": 1})).await;
        let request = soon(door.requests.recv()).await.expect("a request");
        assert_eq!(request.body, status("a"));
        request.reply.send(ToInside::Ok {}).expect("it waits");
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
        let ask = FromInside::Ask { key: None, question: Question { message: "q".to_owned(), schema: None, url: None } };
        let mut clients = Vec::new();
        let mut requests = Vec::new();
        for _ in 0..INSIDE_MAX {
            let mut client = Client::new(&dir, Hello::Inside).await;
            client.say(&ask).await;
            requests.push(soon(door.requests.recv()).await.expect("a request"));
            clients.push(client);
        }
        let mut one_more = Client::new(&dir, Hello::Inside).await;
        assert!(one_more.hear().await.expect("an answer").get("error").is_some());
        let _server = Client::new(&dir, Hello::Server).await;
        attached(&mut door).await;
        // Who goes makes room.
        let mut request = requests.pop().expect("one");
        clients.pop();
        soon(request.reply.closed()).await;
        let mut again = Client::new(&dir, Hello::Inside).await;
        again.say(&status("b")).await;
        assert_eq!(soon(door.requests.recv()).await.expect("a request").body, status("b"));
    }
}
