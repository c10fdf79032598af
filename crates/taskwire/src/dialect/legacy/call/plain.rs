//! A call whose caller wants its result, and knows of no task.
//!
//! It is held to its end or, if its caller can come back to it by the follow-up tools, for a while (`call/held`).

use std::{sync::Arc, time::Duration};

use taskwire_core::task::{OnInterrupt, Outcome, Task};
use tokio::sync::mpsc;

use super::{Call, NOTES_MAX};
use crate::{
    clock::Sleep,
    dialect::{
        Fault, Reply,
        call::{
            held::{self, Beat, Hold},
            plan::{Plan, Started},
            wait::{self, CallEra, Settled, Waited, Wake, is_limit},
            waiter::Waiter,
        },
        legacy::{
            live::{CALLED_OFF, Request},
            no_session, outcome,
            place::Kind,
            tail::{self, Tail},
            view,
        },
        notes::Notes,
    },
    engine::{self, End, Note},
};

/// A call that is made once more after so long was given up: calls that are meant twice come together.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(2);

/// What a call hears of its work besides the result.
struct Heard {
    notes: mpsc::Receiver<Note>,
    /// What it heard before there was a stream.
    earlier: Vec<Note>,
    wanted: Notes,
    /// Whether it passes that on as it comes, since there will be no stream to come back to.
    aloud: bool,
}

/// A call while it waits.
struct Hearing<'a> {
    call: &'a Call<'a, 'a>,
    request: &'a Request,
    heard: Heard,
    /// Whether its work is made a task, so that there is a log to be read, as soon as there is something to say or its time is over.
    streams: bool,
    due: Option<Sleep>,
    beat: Option<Beat>,
}

impl CallEra for Hearing<'_> {
    fn notes(&mut self) -> Option<mpsc::Sender<Note>> {
        let (sender, notes) = mpsc::channel(NOTES_MAX);
        self.heard.notes = notes;
        Some(sender)
    }

    /// Joins what the same call left, or what this session called for before and has given up without a word: some clients do, and
    /// call again.
    async fn join(&mut self, waiter: &Waiter) -> Result<Option<Arc<Task>>, engine::Error> {
        if let Some(task) = waiter.join().await? {
            return Ok(Some(task));
        }
        if !waiter.lingers() {
            return Ok(None);
        }
        let cx = self.call.cx;
        let now = cx.shared.engine.clock().now();
        if let Some(earlier) = cx.session.unanswered(waiter, |began| now.since(began) >= GIVEN_UP_AFTER)
            && let Some(task) = waiter.join_unanswered(&earlier).await?
        {
            return Ok(Some(task));
        }
        // It may have been given up with a word just now.
        waiter.join().await
    }

    async fn meanwhile(&mut self) -> Result<Wake, Fault> {
        let (call, cx) = (self.call, self.call.cx);
        let due = self.due.get_or_insert_with(|| cx.shared.engine.clock().sleep(call.patience()));
        let heard = &mut self.heard;
        loop {
            tokio::select! {
                biased;
                () = self.request.off() => return Ok(Wake::Gone),
                () = cx.session.over() => return Err(no_session()),
                Some(note) = heard.notes.recv(), if self.streams || heard.aloud => {
                    if heard.aloud {
                        call.say(&note, &mut heard.wanted);
                    } else if matches!(note, Note::Disconnect(_)) || heard.wanted.message(&note, None).is_some() {
                        heard.earlier.push(note);
                        return Ok(Wake::Due);
                    }
                }
                () = held::due(&mut self.beat) => {
                    if let Some(message) = self.beat.as_mut().and_then(|beat| beat.message(&mut heard.wanted, None)) {
                        cx.out.try_send(&message);
                    }
                }
                () = due.as_mut(), if self.streams => return Ok(Wake::Due),
            }
        }
    }

    /// What it would have heard from the log, it hears as it comes.
    fn no_task(&mut self) {
        let (call, cx, heard) = (self.call, self.call.cx, &mut self.heard);
        self.streams = false;
        if cx.shared.config.followups && cx.events && !heard.aloud {
            heard.aloud = true;
            heard.wanted = call.notes();
            for note in std::mem::take(&mut heard.earlier) {
                call.say(&note, &mut heard.wanted);
            }
            let (clock, began) = (cx.shared.engine.clock(), self.request.made().map(|(began, _)| began));
            let began = began.unwrap_or_else(|| clock.now());
            self.beat = call.token.is_some().then(|| Beat::new(clock, began, began, f64::NEG_INFINITY));
        }
    }
}

impl Call<'_, '_> {
    /// A call whose caller wants its result, and knows of no task.
    pub(super) async fn plain(mut self) -> Result<Reply, Fault> {
        let cx = self.cx;
        let engine = &cx.shared.engine;
        self.spec.hidden = true;
        let hold = Hold::begin(cx.shared, &self.tool, self.spec.accepts);
        let call = (&self.given, self.arguments.clone());
        let mut plan = Plan::new(cx.shared, self.spec.clone(), &self.tool, call, hold, (cx.id, cx.out))?;
        let keyed = self.spec.idempotency_key.is_some();
        if !(keyed || hold.is_some() || plan.spec.lingers || (cx.detaches && cx.events)) {
            // Nobody can come back to it.
            Arc::make_mut(&mut plan.spec).on_interrupt = OnInterrupt::Fail;
        }
        // Before it is begun: else it would go on without anybody.
        let (open, request) = (cx.waits()?, cx.begin()?);
        request.is_made(hold.map_or_else(|| engine.clock().now(), |hold| hold.began), self.token.clone());
        if !keyed {
            request.waits(&plan.waiter);
        }
        let mut hearing = self.hearing(&request, None);
        let mut held = match plan.start(false, &mut hearing).await {
            Ok(Started::Task { task, .. }) => {
                let heard = hearing.heard;
                request.makes(&task);
                return self.follow(&task, request, heard, &plan).await;
            }
            Ok(Started::Run(_)) | Err(_) if plan.waiter.is_cancelled() => return Ok(Reply::accepted()),
            Ok(Started::Run(held)) => held,
            Err(error) => return Err(error.into()),
        };
        held.run().keep(Box::new(open));
        request.runs(held.run());
        let settled = wait::run(cx.shared, &mut held, Some(&plan.waiter), hold, &mut hearing).await?;
        let heard = hearing.heard;
        match settled {
            Settled::NoRoom(result) => {
                request.answered();
                Ok(cx.reply(view::call_result(&result, None, None)))
            }
            _ if request.is_off() => Ok(Reply::accepted()),
            Settled::Ended { end: End::Outcome(outcome), .. } => self.finished(outcome, request, heard, &plan).await,
            Settled::Task(task) => self.follow(&task, request, heard, &plan).await,
            Settled::Ended { end: End::Suspended(_), .. } | Settled::Gone => Err(Fault::internal("the tool went away")),
        }
    }

    fn hearing<'a>(&'a self, request: &'a Request, heard: Option<Heard>) -> Hearing<'a> {
        // A follow-up tool has nothing to come back to: what it is about is a task already.
        let aloud = held::is_followup(self.cx.shared, &self.tool);
        let nothing = || Heard { notes: mpsc::channel(1).1, earlier: Vec::new(), wanted: self.notes(), aloud };
        let heard = heard.unwrap_or_else(nothing);
        Hearing { call: self, request, streams: self.cx.events && !heard.aloud, heard, due: None, beat: None }
    }

    /// Passes a note on, if there is room for it.
    fn say(&self, note: &Note, wanted: &mut Notes) {
        if let Some(message) = wanted.message(note, None) {
            self.cx.out.try_send(&message);
        }
    }

    /// The result is there: what was noted on the way goes before it.
    async fn finished(&self, outcome: Outcome, request: Request, mut heard: Heard, plan: &Plan) -> Result<Reply, Fault> {
        let (cx, waiter) = (self.cx, plan.waiter.clone());
        while let Ok(note) = heard.notes.try_recv() {
            heard.earlier.push(note);
        }
        if heard.aloud {
            for note in std::mem::take(&mut heard.earlier) {
                self.say(&note, &mut heard.wanted);
            }
        }
        let mut wanted = self.notes();
        let told = heard.earlier.iter().any(|note| wanted.message(note, None).is_some());
        if told && cx.events {
            // A stream leads to something that is kept, so that its reader can come back.
            let engine = &cx.shared.engine;
            match engine.record(engine.new_id(), plan.spec.clone(), self.arguments.clone(), outcome.clone()).await {
                Ok(receipt) => {
                    waiter.waits_for(receipt.task.id);
                    return self.follow(&receipt.task, request, heard, plan).await;
                }
                Err(error) if is_limit(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let off = request.is_off();
        request.answered();
        if held::is_followup(cx.shared, &self.tool) {
            cx.shared.calls.followed_up(cx.shared, &cx.session.caller, &self.given);
        }
        let result = match (held::failed_at_once(cx.shared, &plan.spec, &outcome).filter(|_| !off), outcome) {
            (Some(result), _) | (None, Outcome::Completed { result, .. }) => Ok(result),
            (None, Outcome::Failed(error)) => Err(Err(error.into())),
            (None, Outcome::Cancelled { .. }) if off => Err(Ok(Reply::accepted())),
            (None, Outcome::Cancelled { reason }) => Err(Err(Fault::internal(reason.as_deref().unwrap_or("the call was cancelled")))),
        };
        match result {
            Ok(result) => Ok(cx.reply(view::call_result(&result, None, None)).then(Some(waiter.answering(true)))),
            Err(without) => {
                waiter.answered(true);
                without
            }
        }
    }

    /// Reads the log of the task that the call became, to its end or for as long as the call is held.
    async fn follow(&self, task: &Arc<Task>, request: Request, heard: Heard, plan: &Plan) -> Result<Reply, Fault> {
        let (cx, waiter) = (self.cx, plan.waiter.clone());
        if !cx.events {
            let mut hearing = self.hearing(&request, Some(heard));
            let waited = wait::follow(cx.shared, task.id, &waiter, plan.hold, &mut hearing).await;
            request.answered();
            return match waited? {
                Waited::Ended(task) => match outcome::result(cx.shared, &task, false, Some(&waiter)) {
                    Ok(object) => Ok(cx.reply(object).then(Some(waiter.answering(true)))),
                    Err(fault) => {
                        waiter.answered(true);
                        Err(fault)
                    }
                },
                Waited::HoldExpired(result) => Ok(cx.reply(view::call_result(&result, None, None)).then(Some(waiter.answering(false)))),
                Waited::Handle(_) | Waited::Questions(_) | Waited::Gone => Ok(Reply::accepted()),
            };
        }
        waiter.mark_slow();
        let stream = tail::stream(Kind::Call, task, cx.id);
        let tail = Tail::new(cx.shared, cx.session, cx.out, stream, None, task);
        let tail = tail.of(&request).hearing(heard.earlier, heard.notes).holding(plan.hold, self.token.as_ref()).answering(waiter);
        let ended = tail.run().await;
        if request.stops() {
            cx.shared.engine.call_off(cx.session.caller.clone(), task.id, CALLED_OFF);
        }
        cx.streamed(ended, request)
    }
}
