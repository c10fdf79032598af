//! How a run ends for its user: called off, left, or given up. What is said about it is true when it is said.

use std::time::Duration;

use taskwire::{
    client::{self, CallRecorder, Client, Reference, Run},
    clock::{Clock, Sleep, SystemClock},
};
use tokio::time::timeout;

use super::{Follow, written};
use crate::{
    client::{
        connection::CLOSE_TIMEOUT,
        exit::{Exit, Problem},
        home::name_of,
        signals::Stop,
    },
    term::{
        events::{Line, Standing},
        out::Job,
    },
};

/// After the first Ctrl-C, so long a second one can still cancel.
const SECOND_PRESS: Duration = Duration::from_secs(2);
/// So long what is left to write may take when nobody waits for it any more.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);
/// How long the word may take that a call is not wanted any more.
const LAST_WORD_PATIENCE: Duration = Duration::from_secs(2);

/// What a server on standard input and output means for its tasks.
pub(super) const ENDS_WITH_US: &str = "the server ends with this program; what it can resume is continued by";

/// How showing a run ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) exit: Exit,
    pub(super) parting: Parting,
}

/// What is to be said after the last write.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) ended: Ended,
    pub(super) note: Option<String>,
}

/// How the server is parted from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Parting {
    /// All is said.
    Closing,
    /// It must still hear that the call is not wanted any more.
    GivingUp,
    /// What was begun there goes on.
    Leaving,
}

impl Parting {
    pub(super) async fn say(self, client: Client) {
        let patience = match self {
            Self::Closing => CLOSE_TIMEOUT,
            Self::GivingUp => LAST_WORD_PATIENCE,
            Self::Leaving => return,
        };
        let _ = timeout(patience, client.close()).await;
    }
}

/// How far going away, or calling off, has come.
pub(super) enum Stopping {
    No,
    /// The user goes away and was told how to come back. Until then they can still cancel.
    Leaving(Sleep),
    /// The server is to be asked to cancel.
    Due,
    /// It is being asked, and has not answered.
    Asking,
    /// It has heard it.
    Asked,
    /// It was asked, and does not do it.
    Refused,
}

impl Stopping {
    pub(super) fn is_on(&self) -> bool {
        !matches!(self, Self::No | Self::Refused)
    }

    /// Whether the user was told how to come back.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self, Self::Leaving(_))
    }

    /// Waits until something is to be done: true if the run is to be left, false if the server is to be asked to cancel.
    pub(super) async fn due(&mut self) -> bool {
        match self {
            Self::Leaving(patience) => {
                patience.as_mut().await;
                true
            }
            Self::Due => false,
            _ => std::future::pending().await,
        }
    }
}

impl Follow<'_> {
    /// A signal has come. True if the run is to be left.
    pub(super) fn stop(&mut self, stop: Stop) -> bool {
        if stop == Stop::Interrupt {
            self.screen.was_interrupted();
        }
        // Who watches a task stops watching, and nothing else.
        if stop == Stop::Leave || self.manner.is_attached || self.ending.is_some() {
            return true;
        }
        match self.stopping {
            Stopping::No if !self.manner.cancels => self.go_away(),
            Stopping::No | Stopping::Leaving(_) => {
                self.begin_to_cancel();
                false
            }
            // The server was asked, or will be: all that can be ended is the waiting.
            Stopping::Due | Stopping::Asking | Stopping::Asked | Stopping::Refused => true,
        }
    }

    /// The first Ctrl-C: says how to come back, and how to cancel. True if there is nothing to come back to.
    fn go_away(&mut self) -> bool {
        let Some(reference) = self.task.clone().or_else(|| self.found_again()) else { return true };
        self.questions.drop_all();
        self.say_where(&reference);
        let cancel = match reference.task {
            Some(_) => format!("Ctrl-C again cancels it, and so does: taskwire cancel {}", self.home.short_name(&reference)),
            None => "Ctrl-C again gives it up".to_owned(),
        };
        self.screen.note(&cancel);
        self.stopping = Stopping::Leaving(SystemClock.sleep(SECOND_PRESS));
        false
    }

    /// Whether nothing more is shown: who goes away was told last how to come back to the rest. The result of a call that is no
    /// task may come meanwhile, and would come to nobody else.
    pub(super) fn looks_away(&self) -> bool {
        self.stopping.is_leaving() && self.task.is_some()
    }

    fn begin_to_cancel(&mut self) {
        self.stopping = Stopping::Due;
        self.questions.drop_all();
        self.screen.note("cancelling…");
        if self.manner.json {
            self.tell(Standing { cancelling: Some(true), ..Standing::default() });
        }
    }

    /// Says where what goes on is found again.
    fn say_where(&mut self, reference: &Reference) {
        let how = if self.is_stdio() { ENDS_WITH_US } else { "left running; come back with" };
        let name = self.home.short_name(reference);
        self.screen.note(&format!("{how}: taskwire watch {name}"));
    }

    /// Asks the server to cancel. True if the user does not even wait for that.
    pub(super) async fn call_off(&mut self, run: &Run) -> bool {
        self.stopping = Stopping::Asking;
        let asked = tokio::select! {
            biased;
            asked = run.cancel() => asked,
            _ = self.signals.next() => {
                self.screen.was_interrupted();
                return true;
            }
        };
        self.stopping = Stopping::Asked;
        if let Err(error) = asked {
            self.stopping = Stopping::Refused;
            self.screen.note(&format!("it cannot be cancelled: {error}"));
        }
        false
    }

    /// Goes away. What can be found again goes on without us, unless its server was asked to end it.
    pub(super) async fn leave(&mut self, run: Option<Run>) -> Ended {
        self.questions.drop_all();
        let was_told = self.stopping.is_leaving();
        let asked = match self.stopping {
            Stopping::Asking => Some("cancel was sent; the server has not replied"),
            Stopping::Asked => Some("asked to cancel, not waited for"),
            _ => None,
        };
        let task = run.as_ref().and_then(Run::reference);
        let reference = match task {
            // The word that ends a call without a task is on its way.
            None if asked.is_some() => None,
            None => self.found_again(),
            task => task,
        };
        let Some(reference) = reference else {
            drop(run);
            return self.give_up().await;
        };
        // Before the run is dropped, which would end a call that has no task yet.
        self.client.leave();
        drop(run);
        if let Some(words) = asked {
            let name = self.home.short_name(&reference);
            return self.end_with(words, &format!("; see: taskwire watch {name}"), Parting::Leaving).await;
        }
        if self.manner.json {
            // A task has said its name before.
            let key = reference.key.as_deref().filter(|_| reference.task.is_none());
            self.tell(Standing { detached: Some(true), key, ..Standing::default() });
        }
        self.flush().await;
        if !was_told {
            self.say_where(&reference);
        }
        Ended { exit: Exit::Done, parting: Parting::Leaving }
    }

    /// Nothing is left of the call.
    pub(super) async fn give_up(&mut self) -> Ended {
        self.end_with("given up", "", Parting::GivingUp).await
    }

    /// Ends as cancelled, with these words; `more` is for people.
    async fn end_with(&mut self, words: &str, more: &str, parting: Parting) -> Ended {
        if self.manner.json {
            let line = Line::error(self.task.as_ref().map(name_of), "cancelled", words.to_owned(), None).text();
            self.queue.push(Job::Line { line, chunk: None });
        }
        self.flush().await;
        self.screen.note(&format!("{words}{more}"));
        Ended { exit: Exit::Cancelled, parting }
    }

    pub(super) fn end(&mut self, ending: Ending) -> Ended {
        self.screen.clear();
        match (ending.note, ending.ended.exit) {
            (Some(note), Exit::Failed) => self.screen.alarm(&note),
            (Some(note), _) => self.screen.note(&note),
            (None, _) => {}
        }
        ending.ended
    }

    /// The run broke off; what it showed may well go on.
    pub(super) async fn broken(&mut self, error: client::Error) -> Problem {
        use client::Error as E;
        self.flush().await;
        let is_open = match &error {
            E::NotFound { .. } | E::Rpc(_) => false,
            // Before there was a task, all else means that the call was not taken.
            _ => self.task.is_some() || self.origin.task.is_some() || matches!(error, E::Unreachable { .. } | E::LostCall { .. }),
        };
        if is_open {
            self.way_back();
        }
        if matches!(error, E::LostCall { .. }) && self.manner.is_attached {
            self.strike_out();
        }
        if matches!(error, E::NotFound { .. }) && self.manner.is_new_here {
            self.unlist();
        }
        error.into()
    }

    pub(super) fn way_back(&mut self) {
        let Some(reference) = self.task.clone().or_else(|| self.found_again()) else { return };
        let what = if reference.task.is_some() { "the task may go on" } else { "the call may have arrived" };
        let name = self.home.short_name(&reference);
        self.screen.note(&format!("{what}; come back with: taskwire watch {name}"));
    }

    /// What finds the call again before it has said that it is a task, if anything does.
    pub(super) fn found_again(&self) -> Option<Reference> {
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
        let is_known_there = self.client.peer().idempotency && !self.is_stdio();
        let kept = ledger.find(key).ok().filter(|_| is_known_there)?;
        kept.reference.args.is_some().then_some(kept.reference)
    }

    /// The call can never be found again.
    fn strike_out(&mut self) {
        let (Ok(ledger), Some(key)) = (self.home.ledger_if_any(), self.origin.key.as_deref()) else { return };
        if ledger.find(key).and_then(|entry| ledger.forget(entry.id)).is_ok() {
            self.screen.note("it cannot be found again, and is no longer listed");
        }
    }

    /// There is no such task, and there never was one here: a slip leaves nothing behind.
    fn unlist(&self) {
        let reference = self.task.as_ref().unwrap_or(&self.origin);
        let (Ok(ledger), Some(task)) = (self.home.ledger_if_any(), &reference.task) else { return };
        if let Ok(Some(entry)) = ledger.entry(&reference.server, task) {
            // One that stays is shown as gone.
            let _ = ledger.forget(entry.id);
        }
    }

    /// Whether the server lives as long as we do.
    pub(super) fn is_stdio(&self) -> bool {
        self.origin.server.starts_with("stdio:")
    }

    /// A line for programs about ourselves.
    fn tell(&mut self, standing: Standing<'_>) {
        let line = Line::Status(Standing { task_id: self.task.as_ref().map(name_of), ..standing }).text();
        self.queue.push(Job::Line { line, chunk: None });
    }

    /// Writes what is left, unless nobody reads it.
    async fn flush(&mut self) {
        let flushing = async {
            loop {
                if self.writing.is_some() {
                    let (out, result) = written(&mut self.writing).await;
                    if !matches!(self.wrote(out, result), Ok(false)) {
                        return;
                    }
                }
                if self.queue.is_empty() {
                    return;
                }
                self.write();
            }
        };
        let _ = timeout(FLUSH_PATIENCE, flushing).await;
    }
}
