//! Reads what a person types, line by line, on a thread of its own, so that signals and events are handled meanwhile.

use std::{io, sync::mpsc as blocking, thread};

use rustix::termios::{QueueSelector, tcflush};
use tokio::sync::mpsc;

/// A line that was typed; `None` at the end of the input.
pub(crate) type TypedLine = io::Result<Option<String>>;

/// Standard input.
#[derive(Debug, Default)]
pub(crate) struct StdinLines {
    reader: Option<Reader>,
    /// A line was requested and has not come.
    is_waiting: bool,
}

#[derive(Debug)]
struct Reader {
    requests: blocking::SyncSender<()>,
    lines: mpsc::Receiver<TypedLine>,
}

impl StdinLines {
    /// Requests a line. A request that is still open is used again.
    pub(crate) fn request_line(&mut self) {
        if !self.is_waiting {
            self.is_waiting = true;
            let reader = self.reader.get_or_insert_with(start);
            // If the thread has ended, `next` reports it.
            let _ = reader.requests.send(());
        }
    }

    /// Discards what was typed before a question was shown: it is no answer to it.
    pub(crate) fn discard_typed(&mut self) {
        // Without a terminal nobody types ahead, and an error does not matter.
        let _ = tcflush(io::stdin(), QueueSelector::IFlush);
        if self.is_waiting && self.reader.as_mut().is_some_and(|reader| reader.lines.try_recv().is_ok()) {
            self.is_waiting = false;
        }
    }

    /// The requested line. No line is lost if this future is dropped.
    pub(crate) async fn next(&mut self) -> TypedLine {
        let Some(reader) = self.reader.as_mut().filter(|_| self.is_waiting) else { return std::future::pending().await };
        let line = reader.lines.recv().await.unwrap_or(Ok(None));
        self.is_waiting = false;
        line
    }
}

fn start() -> Reader {
    let (wants, wanted) = blocking::sync_channel(1);
    let (sender, lines) = mpsc::channel(1);
    thread::spawn(move || {
        while wanted.recv().is_ok() {
            let mut line = String::new();
            let typed = io::stdin().read_line(&mut line).map(|len| (len > 0).then_some(line));
            if sender.blocking_send(typed).is_err() {
                break;
            }
        }
    });
    Reader { requests: wants, lines }
}
