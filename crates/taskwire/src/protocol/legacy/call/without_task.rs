//! A call without `task`: its caller wants the result, and does not know the task that the call may become.
//!
//! It waits for its end or, if the follow-up tools can continue it, until its hold expires.

use std::{sync::Arc, time::Duration};

use taskwire_core::{
    TaskId,
    task::{OnInterrupt, Outcome, Spec, Task},
};
use tokio::sync::mpsc;

use super::{Call, NOTES_MAX};
use crate::{
    clock::Sleep,
    engine::{self, CallNote, RunEnd},
    metrics::Answer,
    protocol::{
        Fault, Reply,
        call::{
            hold::{self, Heartbeat, Hold},
            plan::{Plan, Started},
            wait::{self, CallEra, Settled, Waited, Wake, is_limit},
            waiter::Waiter,
        },
        legacy::{
            event_id::StreamKind,
            live::{CANCELLED_BY_CALLER, RequestGuard},
            no_session, outcome, render,
            task_stream::{self, TaskStream},
        },
        notes::NoteEncoder,
    },
};

/// A session that repeats a call after this time has given the first one up. Calls that are meant twice come together.
const GIVE_UP_TIME: Duration = Duration::from_secs(2);

/// The notes of a call's work.
struct NoteInbox {
    notes: mpsc::Receiver<CallNote>,
    /// Received before there was a stream.
    earlier: Vec<CallNote>,
    encoder: NoteEncoder,
    /// Whether notes are sent at once, because there will be no stream to resume.
    forwards_at_once: bool,
}

struct CallNotes<'a> {
    call: &'a Call<'a, 'a>,
    request: &'a RequestGuard,
    inbox: NoteInbox,
    /// Whether the call becomes a task, so that there is a log to send, with its first note or when it is due.
    streams: bool,
    due: Option<Sleep>,
    beat: Option<Heartbeat>,
}

impl CallEra for CallNotes<'_> {
    fn open_notes(&mut self, _id: TaskId) -> Option<mpsc::Sender<CallNote>> {
        let (sender, notes) = mpsc::channel(NOTES_MAX);
        self.inbox.notes = notes;
        Some(sender)
    }

    /// Joins lingering work of the same call, or a call that this session made before and has given up without cancelling it, as some
    /// clients do.
    async fn join_same_call(&mut self, waiter: &Waiter) -> Result<Option<Arc<Task>>, engine::Error> {
        if let Some(task) = waiter.join_lingering().await? {
            return Ok(Some(task));
        }
        if !waiter.lingers() {
            return Ok(None);
        }
        let cx = self.call.cx;
        let now = cx.context.engine.clock().now();
        if let Some(earlier) = cx.session.find_unanswered(waiter, |began| now.since(began) >= GIVE_UP_TIME)
            && let Some(task) = waiter.join_unanswered(&earlier).await?
        {
            return Ok(Some(task));
        }
        // The client may have cancelled it just now.
        waiter.join_lingering().await
    }

    async fn meanwhile(&mut self) -> Result<Wake, Fault> {
        let (call, cx) = (self.call, self.call.cx);
        let due = self.due.get_or_insert_with(|| cx.context.engine.clock().sleep(call.promote_delay()));
        let inbox = &mut self.inbox;
        loop {
            tokio::select! {
                biased;
                () = self.request.cancelled() => return Ok(Wake::Gone),
                () = cx.session.ended() => return Err(no_session()),
                Some(note) = inbox.notes.recv(), if self.streams || inbox.forwards_at_once => {
                    if inbox.forwards_at_once {
                        call.forward_note(&note, &mut inbox.encoder);
                    } else if matches!(note, CallNote::Disconnect(_)) || inbox.encoder.message(&note, None).is_some() {
                        inbox.earlier.push(note);
                        return Ok(Wake::Due);
                    }
                }
                () = hold::heartbeat_due(&mut self.beat) => {
                    if let Some(message) = self.beat.as_mut().and_then(|beat| beat.message(&mut inbox.encoder, None)) {
                        cx.out.try_send(&message);
                    }
                }
                () = due.as_mut(), if self.streams => return Ok(Wake::Due),
            }
        }
    }

    /// There will be no log to send, so notes are sent at once.
    fn no_task(&mut self) {
        let (call, cx, inbox) = (self.call, self.call.cx, &mut self.inbox);
        self.streams = false;
        if cx.context.config.followups && cx.can_stream && !inbox.forwards_at_once {
            inbox.forwards_at_once = true;
            inbox.encoder = call.note_encoder();
            for note in std::mem::take(&mut inbox.earlier) {
                call.forward_note(&note, &mut inbox.encoder);
            }
            let (clock, began) = (cx.context.engine.clock(), self.request.call_start().map(|(began, _)| began));
            let began = began.unwrap_or_else(|| clock.now());
            self.beat = call.progress_token.is_some().then(|| Heartbeat::new(clock, began, began, f64::NEG_INFINITY));
        }
    }
}

impl Call<'_, '_> {
    pub(super) async fn respond_without_task(mut self) -> Result<Reply, Fault> {
        let cx = self.cx;
        let engine = &cx.context.engine;
        self.spec.hidden = true;
        let hold = Hold::begin(cx.context, &self.tool, self.spec.accepts, cx.out.token_expires());
        let call = (&self.arguments, self.raw_arguments.clone());
        let (mut plan, waiter) = Plan::with_waiter(cx.context, self.spec.clone(), &self.tool, call, hold, (cx.id, cx.out))?;
        let keyed = self.spec.idempotency_key.is_some();
        if !(keyed || hold.is_some() || plan.spec.lingers || (cx.can_reconnect && cx.can_stream)) {
            // Nobody could resume it after a restart.
            Arc::make_mut(&mut plan.spec).on_interrupt = OnInterrupt::Fail;
        }
        // Before the work starts, which would else go on without a reader.
        let (open, request) = (cx.wait_permit()?, cx.register_request()?);
        request.set_call_start(hold.map_or_else(|| engine.clock().now(), |hold| hold.started_at), self.progress_token.clone());
        if !keyed {
            request.set_waiter(&waiter);
        }
        if request.is_cancelled() {
            // The cancel overtook the call. Work that it would have joined stops; a key belongs to a call that may be made again.
            if keyed {
                return Ok(Reply::accepted());
            }
            waiter.cancel();
        }
        let mut call_notes = self.open_notes(&request, None);
        let mut unstarted = match plan.start(false, Some(&waiter), &mut call_notes).await {
            Ok(Started::Task { task, .. }) => {
                let inbox = call_notes.inbox;
                request.set_task(&task);
                return self.wait_for_task(&task, request, inbox, (waiter, hold)).await;
            }
            Ok(Started::Run(_)) | Err(_) if waiter.is_cancelled() => return Ok(Reply::accepted()),
            Ok(Started::Run(unstarted)) => unstarted,
            Err(error) => return Err(error.into()),
        };
        unstarted.run().keep_until_end(Box::new(open));
        request.set_run(unstarted.run());
        let settled = wait::run(cx.context, &mut unstarted, Some(&waiter), hold, &mut call_notes).await?;
        let inbox = call_notes.inbox;
        match settled {
            Settled::TaskLimit(result) => {
                cx.counted.answered(Answer::Held);
                request.responded();
                Ok(cx.reply(render::call_result(&result, None, None)))
            }
            _ if request.is_cancelled() => Ok(Reply::accepted()),
            Settled::Ended { end: RunEnd::Outcome(outcome), .. } => {
                self.reply_with_outcome(outcome, request, inbox, (&plan.spec, waiter, hold)).await
            }
            Settled::Task(task) => self.wait_for_task(&task, request, inbox, (waiter, hold)).await,
            Settled::Ended { end: RunEnd::Suspended(_), .. } | Settled::Gone => Err(Fault::internal("the tool went away")),
        }
    }

    fn open_notes<'a>(&'a self, request: &'a RequestGuard, inbox: Option<NoteInbox>) -> CallNotes<'a> {
        // A follow-up tool needs no log to resume: it is about a task that has one.
        let forwards_at_once = hold::is_followup(self.cx.context, &self.tool);
        let nothing = || NoteInbox { notes: mpsc::channel(1).1, earlier: Vec::new(), encoder: self.note_encoder(), forwards_at_once };
        let inbox = inbox.unwrap_or_else(nothing);
        CallNotes { call: self, request, streams: self.cx.can_stream && !inbox.forwards_at_once, inbox, due: None, beat: None }
    }

    /// Sends a note, or drops it if the queue is full.
    fn forward_note(&self, note: &CallNote, wanted: &mut NoteEncoder) {
        if let Some(message) = wanted.message(note, None) {
            self.cx.out.try_send(&message);
        }
    }

    /// Sends the result, and before it the notes.
    async fn reply_with_outcome(
        &self,
        outcome: Outcome,
        request: RequestGuard,
        mut inbox: NoteInbox,
        (spec, waiter, hold): (&Arc<Spec>, Waiter, Option<Hold>),
    ) -> Result<Reply, Fault> {
        let cx = self.cx;
        while let Ok(note) = inbox.notes.try_recv() {
            inbox.earlier.push(note);
        }
        if inbox.forwards_at_once {
            for note in std::mem::take(&mut inbox.earlier) {
                self.forward_note(&note, &mut inbox.encoder);
            }
        }
        let mut wanted = self.note_encoder();
        let has_notes = inbox.earlier.iter().any(|note| wanted.message(note, None).is_some());
        if has_notes && cx.can_stream {
            // A client can resume the stream only if there is a task, so the call is stored as one.
            let engine = &cx.context.engine;
            match engine.create_ended(engine.new_id(), spec.clone(), self.raw_arguments.clone(), outcome.clone()).await {
                Ok(receipt) => {
                    waiter.wait_for_task(receipt.task.id);
                    return self.wait_for_task(&receipt.task, request, inbox, (waiter, hold)).await;
                }
                Err(error) if is_limit(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let cancelled = request.is_cancelled();
        if !cancelled {
            cx.counted.answered(Answer::Immediate);
        }
        request.responded();
        if hold::is_followup(cx.context, &self.tool) {
            cx.context.calls.followed_up(cx.context, &cx.session.caller, &self.arguments).await;
        }
        let result = match (hold::loose_failure_result(cx.context, spec, &outcome).filter(|_| !cancelled), outcome) {
            (Some(result), _) | (None, Outcome::Completed { result, .. }) => Ok(result),
            (None, Outcome::Failed(error)) => Err(Err(error.into())),
            (None, Outcome::Cancelled { .. }) if cancelled => Err(Ok(Reply::accepted())),
            (None, Outcome::Cancelled { reason }) => Err(Err(Fault::internal(reason.as_deref().unwrap_or("the call was cancelled")))),
        };
        match result {
            Ok(result) => Ok(cx.reply(render::call_result(&result, None, None)).on_sent(Some(waiter.on_response_sent(true)))),
            Err(without) => {
                waiter.responded(true);
                without
            }
        }
    }

    /// Sends the log of the task that the call became, until it ended or the hold expired.
    async fn wait_for_task(
        &self,
        task: &Arc<Task>,
        request: RequestGuard,
        inbox: NoteInbox,
        (waiter, hold): (Waiter, Option<Hold>),
    ) -> Result<Reply, Fault> {
        let cx = self.cx;
        if !cx.can_stream {
            let mut hearing = self.open_notes(&request, Some(inbox));
            let waited = wait::follow(cx.context, task.id, &waiter, hold, &mut hearing).await;
            if matches!(waited, Ok(Waited::Ended(_) | Waited::HoldExpired(_))) {
                cx.counted.answered(Answer::Held);
            }
            request.responded();
            return match waited? {
                Waited::Ended(task) => match outcome::result(cx.context, &task, false, Some(&waiter)).await {
                    Ok(object) => Ok(cx.reply(object).on_sent(Some(waiter.on_response_sent(true)))),
                    Err(fault) => {
                        waiter.responded(true);
                        Err(fault)
                    }
                },
                Waited::HoldExpired(result) => {
                    Ok(cx.reply(render::call_result(&result, None, None)).on_sent(Some(waiter.on_response_sent(false))))
                }
                Waited::Handle(_) | Waited::Questions(_) | Waited::Gone => Ok(Reply::accepted()),
            };
        }
        waiter.mark_slow();
        let stream = task_stream::task_stream_id(StreamKind::Call, task, cx.id);
        let tail = TaskStream::new(cx.context, cx.session, cx.out, stream, None, task);
        let tail = tail
            .for_request(&request)
            .with_notes(inbox.earlier, inbox.notes)
            .with_hold(hold, self.progress_token.as_ref())
            .for_waiter(waiter);
        let ended = tail.run().await;
        if request.stops_work() {
            cx.context.engine.cancel_in_order(cx.session.caller.clone(), task.id, CANCELLED_BY_CALLER);
        }
        cx.stream_reply(ended, request)
    }
}
