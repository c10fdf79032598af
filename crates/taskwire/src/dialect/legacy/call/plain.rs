//! A call whose caller wants its result, and knows of no task.
//!
//! It is held to its end or, if its caller can come back to it by the follow-up tools, for a while (`dialect/held`).

use std::{sync::Arc, time::Duration};

use taskwire_core::{
    TaskId,
    task::{OnInterrupt, Outcome, Reject, Task},
};
use tokio::sync::mpsc;

use super::{Call, NOTES_MAX};
use crate::{
    dialect::{
        Fault, Reply,
        called::ms,
        held::{self, Beat, Hold, Settled},
        legacy::{
            live::{CALLED_OFF, Request},
            no_session, outcome,
            place::Kind,
            tail::{self, Tail},
            view,
        },
        notes::Notes,
        waiter::Waiter,
    },
    engine::{self, End, Note, Phase, Resumed, Run},
};

/// How long a call waits for an answer, at most.
const INPUT_TIMEOUT: Duration = Duration::from_secs(3600);

/// A call that is made once more after so long was given up: calls that are meant twice come together.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(2);

/// What a call hears of its work besides the result.
struct Hearing {
    notes: mpsc::Receiver<Note>,
    /// What it heard before there was a stream.
    earlier: Vec<Note>,
    wanted: Notes,
    /// Whether it passes that on as it comes, since there will be no stream to come back to.
    aloud: bool,
}

impl Call<'_, '_> {
    /// A call whose caller wants its result, and knows of no task.
    pub(super) async fn plain(mut self) -> Result<Reply, Fault> {
        let cx = self.cx;
        let engine = &cx.shared.engine;
        self.spec.hidden = true;
        let hold = Hold::begin(cx.shared, &self.tool, self.spec.accepts);
        if let Some(hold) = hold {
            hold.open(&mut self.spec, &self.tool, &self.given);
        }
        if hold.is_none_or(Hold::asks_natively) {
            // Its caller may be gone for good: nobody is waited for as long as in a task that can be found again.
            let input_timeout = ms(INPUT_TIMEOUT);
            self.spec.input_timeout_ms = Some(self.spec.input_timeout_ms.map_or(input_timeout, |span| span.min(input_timeout)));
        }
        let keyed = self.spec.idempotency_key.is_some();
        let waiter = Waiter::new(cx.shared, &cx.session.caller, &self.tool, &self.arguments, true, (cx.id, cx.out));
        self.spec.lingers = waiter.lingers();
        if !(keyed || hold.is_some() || self.spec.lingers || (cx.detaches && cx.events)) {
            // Nobody can come back to it.
            self.spec.on_interrupt = OnInterrupt::Fail;
        }
        // Before it is begun: else it would go on without anybody.
        let (open, request) = (cx.waits()?, cx.begin()?);
        request.is_made(hold.map_or_else(|| engine.clock().now(), |hold| hold.began), self.token.clone());
        let (sender, mut hearing) = self.hearing();
        let mut spec = Arc::new(self.spec.clone());
        if keyed {
            // Its caller will ask again if it does not get this answer, so it must live on.
            let receipt = engine.create(engine.new_id(), spec, self.arguments.clone(), &Resumed::default(), Some(sender)).await?;
            request.makes(&receipt.task);
            return self.follow(&receipt.task, request, hearing, hold, waiter).await;
        }
        request.waits(&waiter);
        if spec.dedupe.is_some() {
            let (sender, hearing) = self.hearing();
            match waiter.join_or_create(spec.clone(), self.arguments.clone(), Resumed::default(), Some(sender)).await {
                Ok(task) => {
                    request.makes(&task);
                    return self.follow(&task, request, hearing, hold, waiter).await;
                }
                // No room for another task: the call is held as one that shares none, whatever becomes of it.
                Err(engine::Error::Rejected(Reject::Limit { .. })) => {
                    self.spec.dedupe = None;
                    spec = Arc::new(self.spec.clone());
                }
                Err(_) if waiter.is_cancelled() => return Ok(Reply::accepted()),
                Err(error) => return Err(error.into()),
            }
        } else if let Some(task) = self.join(&waiter).await? {
            request.makes(&task);
            return self.follow(&task, request, hearing, hold, waiter).await;
        }
        if waiter.is_cancelled() {
            return Ok(Reply::accepted());
        }
        let mut held = engine.launch(engine.new_id(), spec, self.arguments.clone(), Resumed::default(), Some(sender));
        let run = held.run().clone();
        run.keep(Box::new(open));
        request.runs(&run);
        waiter.runs(&run);
        let mut phase = held.start().await;
        let at_once = !matches!(phase, Phase::Loose);
        if !at_once {
            phase = match self.settled(&run, &request, hold, &mut hearing).await? {
                Settled::At(phase) => phase,
                Settled::NoRoom(reject) => {
                    waiter.answered(true);
                    request.answered();
                    return Ok(cx.reply(view::call_result(&held::no_room(cx.shared, &run, &reject), None, None)));
                }
            };
        }
        if request.is_off() {
            return Ok(Reply::accepted());
        }
        match phase {
            Phase::Done(End::Outcome(outcome)) => {
                if at_once {
                    // Who was answered in the same breath cannot have hung up.
                    waiter.clone().answered(true);
                }
                self.finished(outcome, request, hearing, hold, waiter).await
            }
            Phase::Task(id) => {
                let task = engine.task(&cx.session.caller, id)?.ok_or(engine::Error::Rejected(Reject::NotFound))?;
                self.follow(&task, request, hearing, hold, waiter).await
            }
            Phase::Loose | Phase::Done(End::Suspended(_)) => Err(Fault::internal("the tool went away")),
        }
    }

    /// Joins what the same call left, or what this session called for before and has given up without a word: some clients do, and
    /// call again.
    async fn join(&self, waiter: &Waiter) -> Result<Option<Arc<Task>>, engine::Error> {
        if let Some(task) = waiter.join().await? {
            return Ok(Some(task));
        }
        if !waiter.lingers() {
            return Ok(None);
        }
        let now = self.cx.shared.engine.clock().now();
        if let Some(earlier) = self.cx.session.unanswered(waiter, |began| now.since(began) >= GIVEN_UP_AFTER)
            && let Some(task) = waiter.join_unanswered(&earlier).await?
        {
            return Ok(Some(task));
        }
        // It may have been given up with a word just now.
        waiter.join().await
    }

    fn hearing(&self) -> (mpsc::Sender<Note>, Hearing) {
        let (sender, notes) = mpsc::channel(NOTES_MAX);
        // A follow-up tool has nothing to come back to: what it is about is a task already.
        let aloud = held::is_followup(self.cx.shared, &self.tool);
        (sender, Hearing { notes, earlier: Vec::new(), wanted: self.notes(), aloud })
    }

    /// Waits until a run has ended or become a task. It is made one, so that there is a log to be read, when it has
    /// something to say that its caller wants to hear, or has had its time; where there is no room for it, its caller waits until then.
    async fn settled(&self, run: &Arc<Run>, request: &Request, hold: Option<Hold>, hearing: &mut Hearing) -> Result<Settled, Fault> {
        let cx = self.cx;
        let clock = cx.shared.engine.clock();
        let began = hold.map_or_else(|| clock.now(), |hold| hold.began);
        let (patience, held) = (clock.sleep(self.patience()), held::over(hold, cx.shared));
        tokio::pin!(patience, held);
        let (mut streams, mut over) = (cx.events && !hearing.aloud, false);
        let mut beat: Option<Beat> = None;
        loop {
            tokio::select! {
                biased;
                phase = run.settled() => return Ok(Settled::At(phase)),
                () = request.off() => return Ok(Settled::At(run.phase())),
                () = cx.session.over() => return Err(no_session()),
                Some(note) = hearing.notes.recv(), if streams || hearing.aloud => {
                    if hearing.aloud {
                        self.say(&note, &mut hearing.wanted);
                        continue;
                    }
                    if !matches!(note, Note::Disconnect(_)) && hearing.wanted.message(&note, None).is_none() {
                        continue;
                    }
                    hearing.earlier.push(note);
                }
                () = held::due(&mut beat) => {
                    if let Some(message) = beat.as_mut().and_then(|beat| beat.message(&mut hearing.wanted, None)) {
                        cx.out.try_send(&message);
                    }
                    continue;
                }
                () = &mut patience, if streams => {}
                () = &mut held, if !over => over = true,
            }
            match run.promote().await {
                // A server that shuts down gives it the time that there is.
                Err(engine::Error::Rejected(reject @ Reject::Limit { .. })) if over && !*cx.shared.draining.borrow() => {
                    return Ok(Settled::NoRoom(reject));
                }
                Err(engine::Error::Rejected(Reject::Limit { .. })) => {
                    streams = false;
                    if cx.shared.config.followups && cx.events && !hearing.aloud {
                        // What it would have heard from the log, it hears as it comes.
                        hearing.aloud = true;
                        hearing.wanted = self.notes();
                        for note in std::mem::take(&mut hearing.earlier) {
                            self.say(&note, &mut hearing.wanted);
                        }
                        beat = self.token.is_some().then(|| Beat::new(clock, began, began, f64::NEG_INFINITY));
                    }
                }
                promoted => return Ok(Settled::At(promoted?)),
            }
        }
    }

    /// Passes a note on, if there is room for it.
    fn say(&self, note: &Note, wanted: &mut Notes) {
        if let Some(message) = wanted.message(note, None) {
            self.cx.out.try_send(&message);
        }
    }

    /// The result is there: what was noted on the way goes before it.
    async fn finished(
        &self,
        outcome: Outcome,
        request: Request,
        mut hearing: Hearing,
        hold: Option<Hold>,
        waiter: Waiter,
    ) -> Result<Reply, Fault> {
        let cx = self.cx;
        while let Ok(note) = hearing.notes.try_recv() {
            hearing.earlier.push(note);
        }
        if hearing.aloud {
            for note in std::mem::take(&mut hearing.earlier) {
                self.say(&note, &mut hearing.wanted);
            }
        }
        let mut wanted = self.notes();
        let told = hearing.earlier.iter().any(|note| wanted.message(note, None).is_some());
        if told && cx.events {
            // A stream leads to something that is kept, so that its reader can come back.
            let engine = &cx.shared.engine;
            let spec = Arc::new(self.spec.clone());
            match engine.record(engine.new_id(), spec, self.arguments.clone(), outcome.clone()).await {
                Ok(receipt) => {
                    waiter.waits_for(receipt.task.id);
                    return self.follow(&receipt.task, request, hearing, hold, waiter).await;
                }
                Err(engine::Error::Rejected(Reject::Limit { .. })) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let off = request.is_off();
        request.answered();
        if held::is_followup(cx.shared, &self.tool) {
            cx.shared.calls.followed_up(cx.shared, &cx.session.caller, &self.given);
        }
        if let Some(result) = held::failed_at_once(cx.shared, &self.spec, &outcome).filter(|_| !off) {
            return Ok(cx.reply(view::call_result(&result, None, None)).then(Some(waiter.answering(true))));
        }
        if let Outcome::Completed { result, .. } = outcome {
            return Ok(cx.reply(view::call_result(&result, None, None)).then(Some(waiter.answering(true))));
        }
        waiter.answered(true);
        match outcome {
            Outcome::Completed { .. } => Err(Fault::internal("the result was not answered")),
            Outcome::Failed(error) => Err(error.into()),
            Outcome::Cancelled { .. } if off => Ok(Reply::accepted()),
            Outcome::Cancelled { reason } => Err(Fault::internal(reason.as_deref().unwrap_or("the call was cancelled"))),
        }
    }

    /// Reads the log of the task that the call became, to its end or for as long as the call is held.
    async fn follow(
        &self,
        task: &Arc<Task>,
        request: Request,
        hearing: Hearing,
        hold: Option<Hold>,
        waiter: Waiter,
    ) -> Result<Reply, Fault> {
        let cx = self.cx;
        waiter.mark_slow();
        if !cx.events {
            let answer = self.until_answer(task.id, &request, hold, waiter).await;
            request.answered();
            return answer.map(|answer| answer.unwrap_or_else(Reply::accepted));
        }
        let stream = tail::stream(Kind::Call, task, cx.id);
        let tail = Tail::new(cx.shared, cx.session, cx.out, stream, None, task);
        let tail = tail.of(&request).hearing(hearing.earlier, hearing.notes).holding(hold, self.token.as_ref()).answering(waiter);
        let ended = tail.run().await;
        if request.stops() {
            cx.shared.engine.call_off(cx.session.caller.clone(), task.id, CALLED_OFF);
        }
        cx.streamed(ended, request)
    }

    /// The answer to a call that gets nothing else; nothing if it was called off before.
    async fn until_answer(&self, id: TaskId, request: &Request, hold: Option<Hold>, waiter: Waiter) -> Result<Option<Reply>, Fault> {
        let cx = self.cx;
        let engine = &cx.shared.engine;
        let watch = engine.watch(vec![id], false);
        let held = held::over(hold, cx.shared);
        tokio::pin!(held);
        let mut over = false;
        loop {
            let task = engine.task(&cx.session.caller, id)?.ok_or(engine::Error::Rejected(Reject::NotFound))?;
            if task.ended.is_some() {
                return match outcome::result(cx.shared, &task, false, Some(&waiter)) {
                    Ok(object) => Ok(Some(cx.reply(object).then(Some(waiter.answering(true))))),
                    Err(fault) => {
                        waiter.answered(true);
                        Err(fault)
                    }
                };
            }
            if let Some(result) = held::instead(cx.shared, hold, &task, over) {
                let result = view::call_result(&waiter.noting(result), None, None);
                return Ok(Some(cx.reply(result).then(Some(waiter.answering(false)))));
            }
            tokio::select! {
                _ = watch.changed() => {}
                () = request.off() => return Ok(None),
                () = cx.session.over() => return Err(no_session()),
                () = &mut held, if !over => over = true,
            }
        }
    }
}
