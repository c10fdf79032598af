//! How a call ends for its user: cancelled, left, or given up.

use std::time::Duration;

use taskwire::{
    client::{self, Call, CallRecorder, Client, Reference},
    clock::{Clock, Sleep, SystemClock},
};
use tokio::time::timeout;

use super::{CallFollower, await_writer};
use crate::{
    client::{
        connection::CLOSE_TIMEOUT,
        exit::{Exit, Problem},
        signals::Stop,
        user_data::id_or_key,
    },
    term::{
        json_lines::{JsonLine, StatusLine},
        stdout::OutputItem,
    },
};

/// How long after the first Ctrl-C a second one can still cancel.
const SECOND_PRESS_WINDOW: Duration = Duration::from_secs(2);
/// How long the last writes may take when nobody waits for them.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// How long it may take to tell the server that a call is not wanted any more.
const CANCEL_NOTICE_TIMEOUT: Duration = Duration::from_secs(2);

/// What a server on standard input and output means for its tasks.
pub(super) const SERVER_ENDS_WITH_CLIENT: &str = "the server ends with this program; what it can resume is continued by";

/// How showing a call ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct FollowEnd {
    pub(super) exit: Exit,
    pub(super) disconnect: Disconnect,
}

/// The end, to be reported after the last write.
#[derive(Debug)]
pub(super) struct PendingEnd {
    pub(super) ended: FollowEnd,
    pub(super) note: Option<String>,
}

/// How to disconnect from the server.
#[derive(Debug, Clone, Copy)]
pub(super) enum Disconnect {
    /// The call is over.
    Close,
    /// Tell the server that the call is not wanted any more.
    Abandon,
    /// Let the server go on with what was begun.
    Detach,
}

impl Disconnect {
    pub(super) async fn apply(self, client: Client) {
        let limit = match self {
            Self::Close => CLOSE_TIMEOUT,
            Self::Abandon => CANCEL_NOTICE_TIMEOUT,
            Self::Detach => return,
        };
        let _ = timeout(limit, client.close()).await;
    }
}

/// How far leaving, or cancelling, has come.
pub(super) enum Stopping {
    No,
    /// The user leaves and was told how to come back. Until the time is over they can still cancel.
    Leaving(Sleep),
    /// A cancel request is to be sent.
    CancelDue,
    /// It was sent, and has no reply yet.
    Cancelling,
    /// The server accepted it.
    CancelAccepted,
    /// The server refused it.
    CancelRefused,
}

impl Stopping {
    pub(super) fn is_active(&self) -> bool {
        !matches!(self, Self::No | Self::CancelRefused)
    }

    /// Whether the user was told how to come back.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self, Self::Leaving(_))
    }

    /// Waits until something is due: true to leave the call, false to send a cancel request.
    pub(super) async fn due(&mut self) -> bool {
        match self {
            Self::Leaving(timer) => {
                timer.as_mut().await;
                true
            }
            Self::CancelDue => false,
            _ => std::future::pending().await,
        }
    }
}

impl CallFollower<'_> {
    /// Handles a signal. True if the call is to be left.
    pub(super) fn stop(&mut self, stop: Stop) -> bool {
        if stop == Stop::Interrupt {
            self.screen.was_interrupted();
        }
        // A user who watches a task stops watching, and nothing else.
        if stop == Stop::Leave || self.options.is_attached || self.ending.is_some() {
            return true;
        }
        match self.stopping {
            Stopping::No if !self.options.cancel_on_interrupt => self.start_leaving(),
            Stopping::No | Stopping::Leaving(_) => {
                self.start_cancelling();
                false
            }
            // The cancel request was sent, or will be: only the waiting can end.
            Stopping::CancelDue | Stopping::Cancelling | Stopping::CancelAccepted | Stopping::CancelRefused => true,
        }
    }

    /// The first Ctrl-C: says how to come back, and how to cancel. True if there is nothing to come back to.
    fn start_leaving(&mut self) -> bool {
        let Some(reference) = self.task.clone().or_else(|| self.resumable_reference()) else { return true };
        self.questions.drop_all();
        self.say_how_to_return(&reference);
        let cancel = match reference.task {
            Some(_) => format!("Ctrl-C again cancels it, and so does: taskwire cancel {}", self.home.short_name(&reference)),
            None => "Ctrl-C again gives it up".to_owned(),
        };
        self.screen.note(&cancel);
        self.stopping = Stopping::Leaving(SystemClock.sleep(SECOND_PRESS_WINDOW));
        false
    }

    /// Whether nothing more is shown: a user who leaves was told how to come back to the rest. Not for a call that is no task: nobody else
    /// would get its result.
    pub(super) fn ignores_events(&self) -> bool {
        self.stopping.is_leaving() && self.task.is_some()
    }

    fn start_cancelling(&mut self) {
        self.stopping = Stopping::CancelDue;
        self.questions.drop_all();
        self.screen.note("cancelling…");
        if self.options.json {
            self.queue_status(StatusLine { cancelling: Some(true), ..StatusLine::default() });
        }
    }

    /// Says how to come back to what goes on.
    fn say_how_to_return(&mut self, reference: &Reference) {
        let how = if self.is_stdio() { SERVER_ENDS_WITH_CLIENT } else { "left running; come back with" };
        let name = self.home.short_name(reference);
        self.screen.note(&format!("{how}: taskwire watch {name}"));
    }

    /// Sends the cancel request. True if the user does not even wait for the reply.
    pub(super) async fn send_cancel(&mut self, call: &Call) -> bool {
        self.stopping = Stopping::Cancelling;
        let asked = tokio::select! {
            biased;
            asked = call.cancel() => asked,
            _ = self.signals.next() => {
                self.screen.was_interrupted();
                return true;
            }
        };
        self.stopping = Stopping::CancelAccepted;
        if let Err(error) = asked {
            self.stopping = Stopping::CancelRefused;
            self.screen.note(&format!("it cannot be cancelled: {error}"));
        }
        false
    }

    /// Leaves. What can be found again goes on, unless its server was asked to cancel it.
    pub(super) async fn leave(&mut self, call: Option<Call>) -> FollowEnd {
        self.questions.drop_all();
        let was_leaving = self.stopping.is_leaving();
        let asked = match self.stopping {
            Stopping::Cancelling => Some("cancel was sent; the server has not replied"),
            Stopping::CancelAccepted => Some("asked to cancel, not waited for"),
            _ => None,
        };
        let task = call.as_ref().and_then(Call::reference);
        let reference = match task {
            // The notice that cancels a call without a task is on its way.
            None if asked.is_some() => None,
            None => self.resumable_reference(),
            task => task,
        };
        let Some(reference) = reference else {
            drop(call);
            return self.give_up().await;
        };
        // Before the call is dropped, which would end it if it has no task yet.
        self.client.detach();
        drop(call);
        if let Some(words) = asked {
            let name = self.home.short_name(&reference);
            return self.end_cancelled(words, &format!("; see: taskwire watch {name}"), Disconnect::Detach).await;
        }
        if self.options.json {
            // The id of a task was printed before.
            let key = reference.key.as_deref().filter(|_| reference.task.is_none());
            self.queue_status(StatusLine { detached: Some(true), key, ..StatusLine::default() });
        }
        self.flush().await;
        if !was_leaving {
            self.say_how_to_return(&reference);
        }
        FollowEnd { exit: Exit::Done, disconnect: Disconnect::Detach }
    }

    /// Gives up a call of which nothing remains.
    pub(super) async fn give_up(&mut self) -> FollowEnd {
        self.end_cancelled("given up", "", Disconnect::Abandon).await
    }

    /// Ends as cancelled, with these words; `more` is for people.
    async fn end_cancelled(&mut self, words: &str, more: &str, parting: Disconnect) -> FollowEnd {
        if self.options.json {
            let line = JsonLine::error(self.task.as_ref().map(id_or_key), "cancelled", words.to_owned(), None).text();
            self.queue.push(OutputItem::Line { line, chunk: None });
        }
        self.flush().await;
        self.screen.note(&format!("{words}{more}"));
        FollowEnd { exit: Exit::Cancelled, disconnect: parting }
    }

    pub(super) fn end(&mut self, ending: PendingEnd) -> FollowEnd {
        self.screen.clear();
        match (ending.note, ending.ended.exit) {
            (Some(note), Exit::Failed) => self.screen.error(&note),
            (Some(note), _) => self.screen.note(&note),
            (None, _) => {}
        }
        ending.ended
    }

    /// Explains why the call broke off; its task may well go on.
    pub(super) async fn explain_failure(&mut self, error: client::Error) -> Problem {
        use client::Error as E;
        self.flush().await;
        let is_open = match &error {
            E::TaskNotFound { .. } | E::Rpc(_) => false,
            // Before there is a task, any other error means that the call was not accepted.
            _ => self.task.is_some() || self.origin.task.is_some() || matches!(error, E::Unreachable { .. } | E::LostCall { .. }),
        };
        if is_open {
            self.say_may_go_on();
        }
        if matches!(error, E::LostCall { .. }) && self.options.is_attached {
            self.forget_call();
        }
        if matches!(error, E::TaskNotFound { .. }) && self.options.is_unlisted {
            self.forget_task();
        }
        error.into()
    }

    pub(super) fn say_may_go_on(&mut self) {
        let Some(reference) = self.task.clone().or_else(|| self.resumable_reference()) else { return };
        let what = if reference.task.is_some() { "the task may go on" } else { "the call may have arrived" };
        let name = self.home.short_name(&reference);
        self.screen.note(&format!("{what}; come back with: taskwire watch {name}"));
    }

    /// How to find the call again before it is known to be a task, if that is possible.
    pub(super) fn resumable_reference(&self) -> Option<Reference> {
        if self.origin.task.is_some() {
            return Some(self.origin.clone());
        }
        let ledger = self.home.ledger_if_any().ok()?;
        let key = self.origin.key.as_deref()?;
        let entries = ledger.entries().ok()?;
        let entry = entries.into_iter().find(|entry| entry.reference.key.as_deref() == Some(key))?;
        if entry.reference.task.is_some() {
            return Some(entry.reference);
        }
        // It is found by sending it again: with its arguments, to a server that knows its key and outlives this process.
        let is_known_there = self.client.server_info().idempotency && !self.is_stdio();
        let kept = ledger.find(key).ok().filter(|_| is_known_there)?;
        kept.reference.args.is_some().then_some(kept.reference)
    }

    /// Removes a call from the ledger that can never be found again.
    fn forget_call(&mut self) {
        let (Ok(ledger), Some(key)) = (self.home.ledger_if_any(), self.origin.key.as_deref()) else { return };
        if ledger.find(key).and_then(|entry| ledger.remove(entry.id)).is_ok() {
            self.screen.note("it cannot be found again, and is no longer listed");
        }
    }

    /// Removes a task from the ledger that never existed: a typo leaves nothing behind.
    fn forget_task(&self) {
        let reference = self.task.as_ref().unwrap_or(&self.origin);
        let (Ok(ledger), Some(task)) = (self.home.ledger_if_any(), &reference.task) else { return };
        if let Ok(Some(entry)) = ledger.entry(&reference.server, task) {
            // An entry that stays is shown as gone.
            let _ = ledger.remove(entry.id);
        }
    }

    /// Whether the server ends with this process.
    pub(super) fn is_stdio(&self) -> bool {
        self.origin.server.starts_with("stdio:")
    }

    /// Queues a line for programs about this program.
    fn queue_status(&mut self, status: StatusLine<'_>) {
        let line = JsonLine::Status(StatusLine { task_id: self.task.as_ref().map(id_or_key), ..status }).text();
        self.queue.push(OutputItem::Line { line, chunk: None });
    }

    /// Writes what is queued, unless nobody reads it.
    async fn flush(&mut self) {
        let flushing = async {
            loop {
                if self.writing.is_some() {
                    let (out, result) = await_writer(&mut self.writing).await;
                    if !matches!(self.finish_writing(out, result), Ok(false)) {
                        return;
                    }
                }
                if self.queue.is_empty() {
                    return;
                }
                self.start_writing();
            }
        };
        let _ = timeout(FLUSH_TIMEOUT, flushing).await;
    }
}
