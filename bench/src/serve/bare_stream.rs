//! Partial results of the bare server: the bytes that a real server would send, made beforehand, one frame for each
//! event, as fast as the reader takes them; or made at a set pace and handed to each reader through a queue.

use std::{
    collections::HashMap,
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;

use super::write::{Gates, Write};
use crate::wire::READER_ID;

/// Events that may wait for a reader that gets them at a pace.
const QUEUE_LEN: usize = 1_024;

/// The tasks that write.
#[derive(Clone, Default)]
pub(super) struct WriteTasks(Arc<Inner>);

#[derive(Default)]
struct Inner {
    gates: Gates,
    count: AtomicUsize,
    by_task: Mutex<HashMap<String, Source>>,
}

struct Source {
    gate: String,
    output: Output,
}

#[derive(Clone)]
enum Output {
    /// All events, made beforehand.
    Ready(Arc<[Bytes]>),
    /// Whom to hand each event to.
    Paced(Arc<Mutex<Vec<mpsc::Sender<Bytes>>>>),
}

impl WriteTasks {
    /// Makes a task that writes once its gate is open; its name.
    pub(super) fn write(&self, write: Write) -> String {
        // As long as a real one.
        let task = format!("019f{:028}", self.0.count.fetch_add(1, Ordering::Relaxed));
        let gate = write.gate.clone();
        let output = if write.is_stamped() {
            let readers = Arc::new(Mutex::new(Vec::new()));
            tokio::spawn(paced(self.0.gates.clone(), task.clone(), write, readers.clone()));
            Output::Paced(readers)
        } else {
            let text = write.filler();
            Output::Ready((0..write.texts).map(|seq| event(&task, seq, &text)).collect())
        };
        lock(&self.0.by_task).insert(task.clone(), Source { gate, output });
        task
    }

    /// Opens a gate.
    pub(super) fn open(&self, gate: &str) {
        self.0.gates.open(gate);
    }

    /// What the listen request `id` is answered with, if there is such a task.
    pub(super) fn read(&self, task: &str, id: &str) -> Option<Events> {
        let tasks = lock(&self.0.by_task);
        let source = tasks.get(task)?;
        let feed = match &source.output {
            Output::Ready(events) => Feed::Ready { gate: Some(Box::pin(self.0.gates.pass(&source.gate))), events: events.clone(), next: 0 },
            Output::Paced(readers) => {
                let (sender, events) = mpsc::channel(QUEUE_LEN);
                lock(readers).push(sender);
                Feed::Paced(events)
            }
        };
        let meta = format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}"#);
        let honoured = format!(r#"{{"dev.taskwire/partials":[{{"taskId":"{task}","fromSeq":0,"nextSeq":0}}]}}"#);
        let begin = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"notifications":{honoured},{meta}}}}}"#
        );
        let end = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete",{meta}}}}}"#);
        Some(Events { begin: Some(framed(&begin)), feed, end: Some(framed(&end)) })
    }
}

/// Hands an event to each reader that is there when the gate opens, again and again, at the pace of `write`.
async fn paced(gates: Gates, task: String, write: Write, readers: Arc<Mutex<Vec<mpsc::Sender<Bytes>>>>) {
    gates.pass(&write.gate).await;
    let readers = std::mem::take(&mut *lock(&readers));
    let mut pace = write.pace();
    for seq in 0..write.texts {
        if let Some(pace) = &mut pace {
            pace.tick().await;
        }
        let event = event(&task, seq, &write.stamped());
        for reader in &readers {
            // An error means that the reader went away.
            let _ = reader.send(event.clone()).await;
        }
    }
}

fn event(task: &str, seq: usize, text: &str) -> Bytes {
    let meta = format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{READER_ID}}}"#);
    let params = format!(r#"{{{meta},"taskId":"{task}","seq":{seq},"content":[{{"type":"text","text":"{text}"}}]}}"#);
    framed(&format!(r#"{{"jsonrpc":"2.0","method":"notifications/tasks/partial","params":{params}}}"#))
}

fn framed(message: &str) -> Bytes {
    Bytes::from(format!("data: {message}\n\n"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Feed {
    Ready { gate: Option<Pin<Box<dyn Future<Output = ()> + Send>>>, events: Arc<[Bytes]>, next: usize },
    Paced(mpsc::Receiver<Bytes>),
}

/// The body of a stream: the acknowledgement, the events, the response.
pub(super) struct Events {
    begin: Option<Bytes>,
    feed: Feed,
    end: Option<Bytes>,
}

impl Events {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(begin) = self.begin.take() {
            return Poll::Ready(Some(begin));
        }
        let event = match &mut self.feed {
            Feed::Ready { gate, events, next } => {
                if let Some(closed) = gate {
                    ready!(closed.as_mut().poll(context));
                    *gate = None;
                }
                *next += 1;
                events.get(*next - 1).cloned()
            }
            Feed::Paced(events) => ready!(events.poll_recv(context)),
        };
        Poll::Ready(event.or_else(|| self.end.take()))
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.get_mut().poll(context).map(|event| event.map(|bytes| Ok(Frame::data(bytes))))
    }
}
