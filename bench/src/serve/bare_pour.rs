//! The bare server towards a client: just enough of the protocol for one that calls a tool, follows its task and reads what
//! it pours. Events are made as they are sent: at a set pace, each by itself, or as fast as the reader takes them.

use std::{
    collections::HashMap,
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::{
    bare_server::{META, UNREADABLE},
    pour::Pour,
    write::Gates,
};
use crate::http::find;

/// What the names of its tasks begin with, and no other's.
const PREFIX: &str = "019fpour";
/// Events that may wait for a reader that gets them at a pace.
const QUEUE_LEN: usize = 1_024;
/// Bytes that are sent at once to a reader that takes as much as it can.
const FRAME_BYTES: usize = 16 * 1024;
/// Chunks in an answer to who asks for them.
const PAGE_LEN: usize = 1_000;

type Gate = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What the server can do.
pub(super) fn discovered() -> String {
    let extensions = r#"{"io.modelcontextprotocol/tasks":{},"dev.taskwire/partials":{}}"#;
    let capabilities = format!(r#"{{"tools":{{}},"extensions":{extensions}}}"#);
    format!(r#"{{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{capabilities},{META}}}"#)
}

/// The one tool that a client must know of.
pub(super) fn tools() -> String {
    let tool = r#"{"name":"pour","inputSchema":{"type":"object"}}"#;
    format!(r#"{{"resultType":"complete","tools":[{tool}],"ttlMs":3600000,{META}}}"#)
}

/// The tasks that pour.
#[derive(Clone, Default)]
pub(super) struct PourTasks(Arc<Inner>);

#[derive(Default)]
struct Inner {
    gates: Gates,
    count: AtomicUsize,
    by_task: Mutex<HashMap<String, Arc<Task>>>,
}

#[derive(Deserialize)]
struct Request<T> {
    params: T,
}

#[derive(Deserialize)]
struct Listen {
    notifications: Filter,
}

#[derive(Deserialize)]
struct Filter {
    #[serde(rename = "dev.taskwire/partials")]
    outputs: Vec<OutputFrom>,
}

/// A task, and the first chunk of its output that is wanted.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OutputFrom {
    task_id: String,
    from_seq: usize,
}

impl PourTasks {
    /// Whether a task is one of these, or would be.
    pub(super) fn is_pour_task(task: &str) -> bool {
        task.starts_with(PREFIX)
    }

    /// Makes a task that pours once its gate is open.
    pub(super) fn begin(&self, pour: Pour) -> String {
        // As long as a real one.
        let id = format!("{PREFIX}{:024}", self.0.count.fetch_add(1, Ordering::Relaxed));
        let task = Arc::new(Task { id: id.clone(), pour, sent: AtomicUsize::new(0) });
        let result = format!(r#"{{"resultType":"task",{},{META}}}"#, task.state());
        lock(&self.0.by_task).insert(id, task);
        result
    }

    /// Opens a gate.
    pub(super) fn open(&self, gate: &str) {
        self.0.gates.open(gate);
    }

    /// The state of a task.
    pub(super) fn state(&self, task: &str) -> String {
        match self.task(task) {
            Some(task) => format!(r#"{{"resultType":"complete",{},{META}}}"#, task.state()),
            None => UNREADABLE.to_owned(),
        }
    }

    /// Output that was sent before, for who asks for it.
    pub(super) fn page(&self, body: &[u8]) -> String {
        let Some((task, from)) = self.wanted(body) else { return UNREADABLE.to_owned() };
        let until = task.sent.load(Ordering::Relaxed).min(from.saturating_add(PAGE_LEN)).max(from);
        let content = task.content();
        let chunks: Vec<_> = (from..until).map(|seq| format!(r#"{{"seq":{seq},"content":{content}}}"#)).collect();
        let (chunks, done) = (chunks.join(","), until >= task.pour.texts);
        format!(r#"{{"resultType":"complete","chunks":[{chunks}],"fromSeq":{from},"nextSeq":{until},"done":{done},{META}}}"#)
    }

    fn wanted(&self, body: &[u8]) -> Option<(Arc<Task>, usize)> {
        let Request { params } = serde_json::from_slice::<Request<OutputFrom>>(body).ok()?;
        Some((self.task(&params.task_id)?, params.from_seq))
    }

    /// What the listen request `id` is answered with, if it is about such tasks.
    pub(super) fn listen(&self, body: &[u8], id: &str) -> Option<PourBody> {
        // A request about other tasks is recognised without parsing.
        find(body, PREFIX.as_bytes())?;
        let Request { params } = serde_json::from_slice::<Request<Listen>>(body).ok()?;
        let meta = format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}"#);
        let wanted = params.notifications.outputs.iter();
        let lanes = wanted.map(|wanted| Some(Lane::new(self.task(&wanted.task_id)?, wanted.from_seq, &meta)));
        let lanes = lanes.collect::<Option<Vec<_>>>()?;
        // All of them have the same gate and the same pace.
        let pour = &lanes.first()?.task.pour;
        let gate: Gate = Box::pin(self.0.gates.pass(&pour.gate));
        let pause = pour.pause().map(|pause| pause / u32::try_from(lanes.len()).unwrap_or(u32::MAX));
        let begin = begin(&lanes, &meta);
        let left = lanes.iter().map(Lane::left).sum();
        let flow = Flow { lanes, meta, turn: 0, left };
        let feed = match pause {
            None => Feed::Free { gate: Some(gate), flow },
            Some(pause) => Feed::Paced(paced(gate, flow, pause)),
        };
        Some(PourBody { begin: Some(Bytes::from(begin)), feed })
    }

    fn task(&self, id: &str) -> Option<Arc<Task>> {
        lock(&self.0.by_task).get(id).cloned()
    }
}

struct Task {
    id: String,
    pour: Pour,
    /// Texts that a reader was sent.
    sent: AtomicUsize,
}

impl Task {
    fn is_over(&self) -> bool {
        self.sent.load(Ordering::Relaxed) >= self.pour.texts
    }

    /// The members of a JSON object that show it.
    fn state(&self) -> String {
        let times = concat!(
            r#""createdAt":"2026-11-16T00:00:00.000Z","lastUpdatedAt":"2026-11-16T00:00:00.000Z","#,
            r#""ttlMs":3600000,"pollIntervalMs":1000"#,
        );
        let id = &self.id;
        if !self.is_over() {
            return format!(r#""taskId":"{id}","status":"working",{times}"#);
        }
        let result = r#"{"resultType":"complete","content":[{"type":"text","text":"poured"}]}"#;
        format!(r#""taskId":"{id}","status":"completed",{times},"result":{result}"#)
    }

    fn content(&self) -> String {
        format!(r#"[{{"type":"text","text":"{}"}}]"#, self.pour.text())
    }

    /// The event that shows it.
    fn notification(&self, meta: &str) -> String {
        framed(&format!(r#"{{"jsonrpc":"2.0","method":"notifications/tasks","params":{{{},{meta}}}}}"#, self.state()))
    }
}

/// The acknowledgement, and the states of the tasks as a real server shows them right after it.
fn begin(lanes: &[Lane], meta: &str) -> String {
    let ids: Vec<_> = lanes.iter().map(|lane| format!(r#""{}""#, lane.task.id)).collect();
    let outputs: Vec<_> = lanes
        .iter()
        .map(|lane| {
            let sent = lane.task.sent.load(Ordering::Relaxed);
            format!(r#"{{"taskId":"{}","fromSeq":{},"nextSeq":{sent}}}"#, lane.task.id, lane.next)
        })
        .collect();
    let honoured = format!(r#"{{"taskIds":[{}],"dev.taskwire/partials":[{}]}}"#, ids.join(","), outputs.join(","));
    let mut events = framed(&format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"notifications":{honoured},{meta}}}}}"#
    ));
    // The end of a task comes after its output.
    for lane in lanes.iter().filter(|lane| !lane.task.is_over() || lane.left() == 0) {
        events.push_str(&lane.task.notification(meta));
    }
    events
}

/// The output of one task on its way to one reader.
struct Lane {
    task: Arc<Task>,
    /// What stands before the number of a chunk.
    head: String,
    /// What stands behind it.
    tail: String,
    next: usize,
}

impl Lane {
    fn new(task: Arc<Task>, next: usize, meta: &str) -> Self {
        let head =
            format!(r#"data: {{"jsonrpc":"2.0","method":"notifications/tasks/partial","params":{{{meta},"taskId":"{}","seq":"#, task.id);
        let tail = format!(",\"content\":{}}}}}\n\n", task.content());
        Self { task, head, tail, next }
    }

    fn left(&self) -> usize {
        self.task.pour.texts.saturating_sub(self.next)
    }
}

/// The output of some tasks on its way to one reader, a chunk of each in turn.
struct Flow {
    lanes: Vec<Lane>,
    meta: String,
    turn: usize,
    left: usize,
}

impl Flow {
    /// Writes the next event, and the end of its task behind its last one; false if there is none.
    fn write(&mut self, into: &mut Vec<u8>) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        let count = self.lanes.len();
        while self.lanes[self.turn % count].left() == 0 {
            self.turn += 1;
        }
        let lane = &mut self.lanes[self.turn % count];
        self.turn += 1;
        into.extend_from_slice(lane.head.as_bytes());
        into.extend_from_slice(lane.next.to_string().as_bytes());
        into.extend_from_slice(lane.tail.as_bytes());
        lane.next += 1;
        lane.task.sent.fetch_max(lane.next, Ordering::Relaxed);
        if lane.left() == 0 {
            into.extend_from_slice(lane.task.notification(&self.meta).as_bytes());
        }
        true
    }

    /// As many of the next events as are sent at once; none if there are none.
    fn frame(&mut self) -> Option<Bytes> {
        let mut frame = Vec::with_capacity(FRAME_BYTES + 2 * 1024);
        while frame.len() < FRAME_BYTES && self.write(&mut frame) {}
        (!frame.is_empty()).then(|| Bytes::from(frame))
    }
}

/// Hands out one event after each pause, once the gate is open.
fn paced(gate: Gate, mut flow: Flow, pause: Duration) -> mpsc::Receiver<Bytes> {
    let (events, received) = mpsc::channel(QUEUE_LEN);
    tokio::spawn(async move {
        tokio::select! {
            () = gate => {}
            // The reader went away.
            () = events.closed() => return,
        }
        // A thread, because the timers of tokio have steps of a millisecond. One that is late does not make the next ones late.
        std::thread::spawn(move || {
            let mut due = Instant::now();
            let mut event = Vec::new();
            while flow.write(&mut event) {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                if events.blocking_send(Bytes::from(std::mem::take(&mut event))).is_err() {
                    return;
                }
                due += pause;
            }
        });
    });
    received
}

fn framed(message: &str) -> String {
    format!("data: {message}\n\n")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Feed {
    Free { gate: Option<Gate>, flow: Flow },
    Paced(mpsc::Receiver<Bytes>),
}

/// The body of a stream. Like that of a real server it stays open when its tasks have ended.
pub(super) struct PourBody {
    begin: Option<Bytes>,
    feed: Feed,
}

impl PourBody {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        if let Some(begin) = self.begin.take() {
            return Poll::Ready(begin);
        }
        let events = match &mut self.feed {
            Feed::Free { gate, flow } => {
                if let Some(closed) = gate {
                    ready!(closed.as_mut().poll(context));
                    *gate = None;
                }
                flow.frame()
            }
            Feed::Paced(events) => ready!(events.poll_recv(context)),
        };
        events.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Body for PourBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.get_mut().poll(context).map(|events| Some(Ok(Frame::data(events))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(texts: usize, from: &[usize]) -> Flow {
        let lane = |(nth, from): (usize, &usize)| {
            let pour = Pour { gate: "g".to_owned(), texts, size: 1, pause_us: 0 };
            Lane::new(Arc::new(Task { id: format!("t{nth}"), pour, sent: AtomicUsize::new(0) }), *from, r#""_meta":{}"#)
        };
        let lanes: Vec<_> = from.iter().enumerate().map(lane).collect();
        let left = lanes.iter().map(Lane::left).sum();
        Flow { lanes, meta: r#""_meta":{}"#.to_owned(), turn: 0, left }
    }

    #[test]
    fn tasks_take_turns_and_each_end_comes_behind_the_output() {
        let mut flow = flow(3, &[0, 2]);
        let mut bytes = Vec::new();
        while flow.write(&mut bytes) {}
        let text = String::from_utf8(bytes).unwrap();
        let mut events = Vec::new();
        for event in text.split_terminator("\n\n") {
            let message: serde_json::Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
            let params = &message["params"];
            events.push(format!("{} {}{}", params["taskId"], params["seq"], params["status"]).replace('"', "").replace("null", ""));
        }
        assert_eq!(events, ["t0 0", "t1 2", "t1 completed", "t0 1", "t0 2", "t0 completed"]);
    }

    #[test]
    fn what_was_sent_can_be_asked_for() {
        let pours = PourTasks::default();
        let made = pours.begin(Pour { gate: "g".to_owned(), texts: 3, size: 1, pause_us: 0 });
        let made: serde_json::Value = serde_json::from_str(&made).unwrap();
        let id = made["taskId"].as_str().unwrap();
        assert!(PourTasks::is_pour_task(id) && id.len() == 32);
        let task = pours.task(id).unwrap();
        let page = |from: usize| -> serde_json::Value {
            let body = format!(r#"{{"id":1,"method":"dev.taskwire/partials/read","params":{{"taskId":"{id}","fromSeq":{from}}}}}"#);
            serde_json::from_str(&pours.page(body.as_bytes())).unwrap()
        };
        task.sent.store(2, Ordering::Relaxed);
        let first = page(0);
        assert_eq!(first["chunks"].as_array().map(Vec::len), Some(2));
        assert_eq!((first["nextSeq"].as_u64(), first["done"].as_bool()), (Some(2), Some(false)));
        task.sent.store(3, Ordering::Relaxed);
        assert_eq!((page(2)["chunks"][0]["seq"].as_u64(), page(3)["done"].as_bool()), (Some(2), Some(true)));
        let outputs = format!(r#"[{{"taskId":"{id}","fromSeq":3}}]"#);
        let body = format!(r#"{{"id":7,"params":{{"notifications":{{"taskIds":["{id}"],"dev.taskwire/partials":{outputs}}}}}}}"#);
        let begin = pours.listen(body.as_bytes(), "7").unwrap().begin.unwrap();
        assert!(find(&begin, br#""status":"completed""#).is_some());
    }
}
