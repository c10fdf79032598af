//! How a run ends for its user: called off, left, or given up. What is said about it is true when it is said.

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

/// After the first Ctrl-C, so long a second one can still cancel.
const SECOND_PRESS_WINDOW: Duration = Duration::from_secs(2);
/// So long what is left to write may take when nobody waits for it any more.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the word may take that a call is not wanted any more.
const CANCEL_NOTICE_TIMEOUT: Duration = Duration::from_secs(2);

/// What a server on standard input and output means for its tasks.
pub(super) const SERVER_ENDS_WITH_CLIENT: &str = "the server ends with this program; what it can resume is continued by";

/// How showing a run ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct FollowEnd {
    pub(super) exit: Exit,
    pub(super) disconnect: Disconnect,
}

/// What is to be said after the last write.
#[derive(Debug)]
pub(super) struct PendingEnd {
    pub(super) ended: FollowEnd,
    pub(super) note: Option<String>,
}

/// How the server is parted from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Disconnect {
    /// All is said.
    Close,
    /// It must still hear that the call is not wanted any more.
    Abandon,
    /// What was begun there goes on.
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

/// How far going away, or calling off, has come.
pub(super) enum Stopping {
    No,
    /// The user goes away and was told how to come back. Until then they can still cancel.
    Leaving(Sleep),
    /// The server is to be asked to cancel.
    CancelDue,
    /// It is being asked, and has not answered.
    Cancelling,
    /// It has heard it.
    CancelAccepted,
    /// It was asked, and does not do it.
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

    /// Waits until something is to be done: true if the run is to be left, false if the server is to be asked to cancel.
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
    /// A signal has come. True if the run is to be left.
    pub(super) fn stop(&mut self, stop: Stop) -> bool {
        if stop == Stop::Interrupt {
            self.screen.was_interrupted();
        }
        // Who watches a task stops watching, and nothing else.
        if stop == Stop::Leave || self.options.is_attached || self.ending.is_some() {
            return true;
        }
        match self.stopping {
            Stopping::No if !self.options.cancel_on_interrupt => self.start_leaving(),
            Stopping::No | Stopping::Leaving(_) => {
                self.start_cancelling();
                false
            }
            // The server was asked, or will be: all that can be ended is the waiting.
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

    /// Whether nothing more is shown: who goes away was told last how to come back to the rest. The result of a call that is no
    /// task may come meanwhile, and would come to nobody else.
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

    /// Says where what goes on is found again.
    fn say_how_to_return(&mut self, reference: &Reference) {
        let how = if self.is_stdio() { SERVER_ENDS_WITH_CLIENT } else { "left running; come back with" };
        let name = self.home.short_name(reference);
        self.screen.note(&format!("{how}: taskwire watch {name}"));
    }

    /// Asks the server to cancel. True if the user does not even wait for that.
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

    /// Goes away. What can be found again goes on without us, unless its server was asked to end it.
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
            // The word that ends a call without a task is on its way.
            None if asked.is_some() => None,
            None => self.resumable_reference(),
            task => task,
        };
        let Some(reference) = reference else {
            drop(call);
            return self.give_up().await;
        };
        // Before the run is dropped, which would end a call that has no task yet.
        self.client.detach();
        drop(call);
        if let Some(words) = asked {
            let name = self.home.short_name(&reference);
            return self.end_cancelled(words, &format!("; see: taskwire watch {name}"), Disconnect::Detach).await;
        }
        if self.options.json {
            // A task has said its name before.
            let key = reference.key.as_deref().filter(|_| reference.task.is_none());
            self.queue_status(StatusLine { detached: Some(true), key, ..StatusLine::default() });
        }
        self.flush().await;
        if !was_leaving {
            self.say_how_to_return(&reference);
        }
        FollowEnd { exit: Exit::Done, disconnect: Disconnect::Detach }
    }

    /// Nothing is left of the call.
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

    /// The run broke off; what it showed may well go on.
    pub(super) async fn explain_failure(&mut self, error: client::Error) -> Problem {
        use client::Error as E;
        self.flush().await;
        let is_open = match &error {
            E::TaskNotFound { .. } | E::Rpc(_) => false,
            // Before there was a task, all else means that the call was not taken.
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

    /// What finds the call again before it has said that it is a task, if anything does.
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
        // It must be sent again to be found: with its arguments, to a server that knows it by its key and outlives us.
        let is_known_there = self.client.server_info().idempotency && !self.is_stdio();
        let kept = ledger.find(key).ok().filter(|_| is_known_there)?;
        kept.reference.args.is_some().then_some(kept.reference)
    }

    /// The call can never be found again.
    fn forget_call(&mut self) {
        let (Ok(ledger), Some(key)) = (self.home.ledger_if_any(), self.origin.key.as_deref()) else { return };
        if ledger.find(key).and_then(|entry| ledger.remove(entry.id)).is_ok() {
            self.screen.note("it cannot be found again, and is no longer listed");
        }
    }

    /// There is no such task, and there never was one here: a slip leaves nothing behind.
    fn forget_task(&self) {
        let reference = self.task.as_ref().unwrap_or(&self.origin);
        let (Ok(ledger), Some(task)) = (self.home.ledger_if_any(), &reference.task) else { return };
        if let Ok(Some(entry)) = ledger.entry(&reference.server, task) {
            // One that stays is shown as gone.
            let _ = ledger.remove(entry.id);
        }
    }

    /// Whether the server lives as long as we do.
    pub(super) fn is_stdio(&self) -> bool {
        self.origin.server.starts_with("stdio:")
    }

    /// A line for programs about ourselves.
    fn queue_status(&mut self, status: StatusLine<'_>) {
        let line = JsonLine::Status(StatusLine { task_id: self.task.as_ref().map(id_or_key), ..status }).text();
        self.queue.push(OutputItem::Line { line, chunk: None });
    }

    /// Writes what is left, unless nobody reads it.
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
