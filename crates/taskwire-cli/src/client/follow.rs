//! A run as it is shown: output to standard output, the rest to standard error, questions to the person, signals to the task.
//!
//! One loop waits for all of it. Writing happens on a thread of its own, and no event is taken while it lasts: a reader that
//! is slow slows the run down, and still Ctrl-C is heard. How a run is called off or left is in [`ending`].

mod ending;

use std::{io, pin::pin};

use taskwire::client::{self, Answer, Client, Event, Input, InputKind, Link, Outcome, Partial, Place, Reference, Run, Shown};
use tokio::{
    task::JoinHandle,
    time::{Interval, MissedTickBehavior, interval},
};

use self::ending::{ENDS_WITH_US, Ended, Ending, Parting, Stopping};
use super::{
    exit::{Exit, Problem},
    home::{Home, name_of},
    questions::{self, Questions},
    signals::Signals,
};
use crate::term::{
    asking::Step,
    events::Line,
    lines::Typed,
    out::{Job, Out},
    paint::Surroundings,
    render,
    screen::{Screen, TICK},
};

/// So much output is handed to the writer at once, if it is there.
const BATCH_BYTES: usize = 64 * 1024;

/// How a run is to be shown.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Manner {
    /// As lines for programs.
    pub(crate) json: bool,
    /// Only until it is a task.
    pub(crate) detach: bool,
    /// Only its result.
    pub(crate) result_only: bool,
    /// The first Ctrl-C cancels, and not only the second.
    pub(crate) cancels: bool,
    /// The task was started before.
    pub(crate) is_attached: bool,
    /// It was somewhere else: so far nothing here knows of it.
    pub(crate) is_new_here: bool,
    /// Whether it is noted how far the output was shown.
    pub(crate) keeps_place: bool,
}

/// A run that is being shown.
pub(crate) struct Follow<'a> {
    home: &'a Home,
    client: Client,
    /// What was called, or picked up.
    origin: Reference,
    manner: Manner,
    surroundings: Surroundings,
    screen: Screen,
    signals: Signals,
    ticks: Interval,
    /// Away while a thread writes.
    out: Option<Out>,
    writing: Option<JoinHandle<(Out, io::Result<()>)>>,
    queue: Vec<Job>,
    questions: Questions,
    /// An event that was taken too early.
    stash: Option<Option<Result<Event, client::Error>>>,
    task: Option<Reference>,
    stopping: Stopping,
    ending: Option<Ending>,
}

async fn written(writing: &mut Option<JoinHandle<(Out, io::Result<()>)>>) -> (Out, io::Result<()>) {
    let Some(handle) = writing else { return std::future::pending().await };
    let done = handle.await.expect("writing does not panic");
    *writing = None;
    done
}

async fn next(run: &mut Run, stash: &mut Option<Option<Result<Event, client::Error>>>) -> Option<Result<Event, client::Error>> {
    match stash.take() {
        Some(event) => event,
        None => run.next().await,
    }
}

impl<'a> Follow<'a> {
    /// For a call that is to be sent, or a task that is to be picked up.
    pub(crate) fn new(home: &'a Home, client: &Client, origin: &Reference, manner: Manner) -> Result<Self, Problem> {
        let surroundings = Surroundings::look();
        let mut out = Out::stdout(surroundings.stdout, surroundings.colours);
        if manner.result_only {
            out.only_the_result();
        }
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            home,
            client: client.clone(),
            origin: origin.clone(),
            manner,
            surroundings,
            screen: Screen::new(surroundings, manner.json, &origin.tool),
            signals: Signals::catch()?,
            ticks,
            out: Some(out),
            writing: None,
            queue: Vec::new(),
            questions: Questions::default(),
            stash: None,
            task: None,
            stopping: Stopping::No,
            ending: None,
        })
    }

    /// Goes on where the user stopped.
    pub(crate) fn go_on(&mut self, place: Place) {
        let shown = place.read();
        if let Some(out) = &mut self.out {
            // Who wants only the result gets it whole, but not twice.
            out.go_on(if self.manner.result_only { Shown { ended: shown.ended, ..Shown::default() } } else { shown });
            out.note_in(Box::new(place));
        }
    }

    /// Begins at this chunk, whatever was shown before.
    pub(crate) fn begin_at(&mut self, seq: u64) {
        if let Some(out) = &mut self.out {
            out.begin_at(seq);
        }
    }

    /// Shows it from the server's first word to its end, or until the user leaves, and says goodbye.
    pub(crate) async fn show(mut self, starting: impl Future<Output = Result<Run, client::Error>>) -> Result<Exit, Problem> {
        let ended = match self.begin(starting).await {
            Ok(Ok(run)) => self.run(run).await,
            Ok(Err(ended)) => Ok(ended),
            Err(problem) => Err(problem),
        };
        let client = self.client.clone();
        drop(self);
        ended.as_ref().map_or(Parting::GivingUp, |ended| ended.parting).say(client).await;
        Ok(ended?.exit)
    }

    /// Waits for the server's first word.
    async fn begin(&mut self, starting: impl Future<Output = Result<Run, client::Error>>) -> Result<Result<Run, Ended>, Problem> {
        let mut starting = pin!(starting);
        let mut needs_run = false;
        loop {
            tokio::select! {
                biased;
                stop = self.signals.next() => {
                    if self.stop(stop) {
                        return Ok(Err(self.leave(None).await));
                    }
                }
                run = &mut starting => {
                    return match run {
                        Ok(run) => Ok(Ok(run)),
                        Err(error) => Err(self.broken(error).await),
                    };
                }
                is_leaving = self.stopping.due(), if !needs_run => {
                    if is_leaving {
                        return Ok(Err(self.leave(None).await));
                    }
                    if self.found_again().is_none_or(|reference| reference.task.is_none()) {
                        return Ok(Err(self.give_up().await));
                    }
                    // To stop listening would not stop the task: that needs the run.
                    needs_run = true;
                }
                _ = self.ticks.tick(), if self.screen.draws() && !self.stopping.is_leaving() => self.screen.tick(),
            }
        }
    }

    async fn run(&mut self, mut run: Run) -> Result<Ended, Problem> {
        loop {
            if self.writing.is_none() {
                if !self.queue.is_empty() {
                    self.write();
                } else if let Some(ending) = self.ending.take() {
                    return Ok(self.end(ending));
                }
            }
            let is_leaving = tokio::select! {
                biased;
                stop = self.signals.next() => self.stop(stop),
                is_leaving = self.stopping.due(), if self.ending.is_none() => is_leaving || self.call_off(&run).await,
                (out, result) = written(&mut self.writing) => self.wrote(out, result)?,
                typed = self.questions.lines.next() => self.typed(&run, typed).await,
                event = next(&mut run, &mut self.stash), if self.writing.is_none() && self.ending.is_none() && !self.looks_away() => {
                    self.happened(&mut run, event).await?;
                    false
                }
                _ = self.ticks.tick(), if self.screen.draws() && !self.questions.is_asking() && !self.stopping.is_leaving() => {
                    self.screen.tick();
                    false
                }
            };
            if is_leaving {
                // It may be over, and only its last words have not found a reader.
                return Ok(match self.ending.take() {
                    Some(ending) => ending.ended,
                    None => self.leave(Some(run)).await,
                });
            }
        }
    }

    // Events.

    async fn happened(&mut self, run: &mut Run, event: Option<Result<Event, client::Error>>) -> Result<(), Problem> {
        let event = match event {
            Some(Ok(event)) => event,
            Some(Err(error)) => return Err(self.broken(error).await),
            None => return Err(Problem::protocol("the call ended without a result")),
        };
        if self.manner.json && !matches!(event, Event::Partial(_)) {
            let line = Line::of(self.task.as_ref().map(name_of), &event).map(|line| line.text());
            self.queue.extend(line.map(|line| Job::Line { line, chunk: None }));
        }
        match event {
            Event::Task(reference) => self.named(reference),
            Event::Partial(partial) => self.chunks(run, partial).await,
            Event::Gap { from, until } => {
                let from = from.max(self.out.as_ref().map_or(0, |out| out.shown().seq));
                if from < until {
                    self.screen.note(&format!("output {from} to {} is lost: the server no longer has it", until - 1));
                }
            }
            Event::Status(view) if view.status.is_terminal() => {}
            Event::Status(view) => {
                if self.manner.is_attached {
                    self.screen.began(&view.created_at);
                }
                self.screen.state(view.status.as_str(), view.message.as_deref());
            }
            Event::Progress { progress, total, message } => self.screen.progress(progress, total, message.as_deref()),
            Event::Input(input) => self.asked(run, input).await?,
            Event::Settled { key } if self.questions.settle(&key) => {
                self.screen.note(&format!("“{key}” was answered or withdrawn"));
                self.questions.ask_next(&mut self.screen);
            }
            Event::Settled { .. } => {}
            Event::Link(Link::Lost { reason, again_in }) => {
                self.screen.note(&format!("connection lost ({reason}); trying again in {again_in:.0?}"));
                self.screen.link(false);
            }
            Event::Link(Link::Back) => {
                self.screen.note("connected again");
                self.screen.link(true);
            }
            Event::Log(log) => self.screen.note(&log_line(&log.read().unwrap_or_default())),
            Event::Done(outcome) => self.done(&outcome),
            _ => {}
        }
        Ok(())
    }

    /// The call is a task: from here on it can be left and come back to.
    fn named(&mut self, reference: Reference) {
        if self.manner.keeps_place
            && let Err(error) = self.keep_place(&reference)
        {
            self.screen.note(&format!("how far this was shown cannot be noted: {error}"));
        }
        let id = name_of(&reference).to_owned();
        if self.manner.detach {
            let back = if self.is_stdio() { ENDS_WITH_US } else { "come back with" };
            let note = self.surroundings.stderr.then(|| format!("{back}: taskwire watch {}", self.home.short_name(&reference)));
            if !self.manner.json {
                self.queue.push(Job::Line { line: id, chunk: None });
            }
            self.ending = Some(Ending { ended: Ended { exit: Exit::Done, parting: Parting::Leaving }, note });
        } else if !self.manner.is_attached {
            self.screen.note(&format!("task {id}"));
        }
        self.screen.became_task();
        self.task = Some(reference);
    }

    fn keep_place(&mut self, reference: &Reference) -> Result<(), client::Error> {
        let (Some(out), Ok(ledger), Some(task)) = (&mut self.out, self.home.ledger_if_any(), &reference.task) else { return Ok(()) };
        if !out.has_place()
            && let Some(entry) = ledger.entry(&reference.server, task)?
        {
            let mut place = ledger.place(entry.id)?;
            // Nothing was shown yet, whatever another call showed that turned out to be the same one.
            place.set(out.shown())?;
            out.note_in(Box::new(place));
        }
        Ok(())
    }

    /// Output: this, and what else is there already.
    async fn chunks(&mut self, run: &mut Run, first: Partial) {
        let mut bytes = first.content.as_str().len();
        self.take(&first);
        while bytes < BATCH_BYTES {
            let event = tokio::select! {
                biased;
                event = run.next() => event,
                () = std::future::ready(()) => break,
            };
            match event {
                Some(Ok(Event::Partial(partial))) => {
                    bytes += partial.content.as_str().len();
                    self.take(&partial);
                }
                other => {
                    self.stash = Some(other);
                    break;
                }
            }
        }
    }

    /// Has a chunk shown, unless all was: who saw only the result has seen it.
    fn take(&mut self, partial: &Partial) {
        if self.out.as_ref().is_none_or(|out| !out.shown().ended) {
            self.queue.push(self.chunk(partial));
        }
    }

    fn chunk(&self, partial: &Partial) -> Job {
        let text = render::inline(&partial.blocks());
        if !self.manner.json {
            return Job::Chunk { seq: partial.seq, text };
        }
        let line = Line::Partial { task_id: self.task.as_ref().map(name_of), seq: partial.seq, content: &partial.content };
        Job::Line { line: line.text(), chunk: Some((partial.seq, text)) }
    }

    fn done(&mut self, outcome: &Outcome) {
        self.make_room();
        self.questions.drop_all();
        let Some(out) = &self.out else { return };
        let mut note = match outcome {
            Outcome::Result(_) => None,
            Outcome::Failed(error) => Some(format!("the task failed: {} (code {})", error.message, error.code)),
            Outcome::Cancelled { message: None } => Some("cancelled".to_owned()),
            Outcome::Cancelled { message: Some(message) } => Some(format!("cancelled: {message}")),
        };
        if self.manner.json {
            self.queue.push(Job::Last(String::new()));
        } else if out.shown().ended {
            let how = match outcome {
                Outcome::Result(_) => "completed",
                Outcome::Failed(_) => "failed",
                Outcome::Cancelled { .. } => "cancelled",
            };
            note = Some(format!("nothing new: the task has ended ({how}) and was shown completely; --from 0 shows it again"));
        } else {
            let words = match outcome {
                Outcome::Result(result) => render::last_words(out.before(), result),
                _ if out.line_open() => "\n".to_owned(),
                _ => String::new(),
            };
            self.queue.push(Job::Last(words));
        }
        self.ending = Some(Ending { ended: Ended { exit: Exit::of(outcome), parting: Parting::Closing }, note });
    }

    // Questions.

    async fn asked(&mut self, run: &Run, input: Input) -> Result<(), Problem> {
        if self.stopping.is_on() {
            return Ok(());
        }
        if self.surroundings.prompts && !self.manner.json && self.questions.can_ask(&input, self.screen.paint()) {
            self.questions.push(input);
            self.questions.ask_next(&mut self.screen);
            return Ok(());
        }
        if self.can_be_answered_elsewhere() {
            self.screen.note(&format!("the task asks: {}", questions::gist(&input)));
            self.unanswered(&input, "answer it with");
            return Ok(());
        }
        // What is no question to a person has no answer that says that nobody is here.
        if let InputKind::Sampling { .. } | InputKind::Other { .. } = &input.kind {
            let (server, what) = (&self.origin.server, questions::gist(&input));
            return Err(Problem::protocol(format!("{server} asks for {what}, which this client does not offer")));
        }
        self.screen.note(&format!("the tool asks: {}", questions::gist(&input)));
        self.nobody_answers(run, &input).await;
        Ok(())
    }

    /// A call that is no task has nobody but us, and neither has a server that only we can reach.
    fn can_be_answered_elsewhere(&self) -> bool {
        self.task.is_some() && !self.is_stdio()
    }

    async fn nobody_answers(&mut self, run: &Run, input: &Input) {
        self.screen.note("nobody can be asked here: answered with `cancel`");
        if let Err(error) = run.answer(&input.key, Answer::cancel()).await {
            self.screen.note(&format!("the answer could not be given: {error}"));
        }
    }

    /// Says how somebody else can answer.
    fn unanswered(&mut self, input: &Input, how: &str) {
        if let InputKind::Url { url } = &input.kind {
            self.screen.note(url);
        }
        if let Some(task) = &self.task {
            let name = self.home.short_name(task);
            self.screen.note(&format!("{how}: {}", questions::command(&name, input)));
        }
    }

    /// The person typed a line. True if the run is to be left.
    async fn typed(&mut self, run: &Run, typed: Typed) -> bool {
        let Ok(Some(line)) = typed else {
            for input in self.questions.end() {
                if self.can_be_answered_elsewhere() {
                    self.unanswered(&input, "left unanswered; answer it with");
                } else {
                    self.nobody_answers(run, &input).await;
                }
            }
            return false;
        };
        self.screen.line_was_ended();
        let Some(asking) = self.questions.asking() else { return false };
        match asking.line(&line) {
            Step::Ask(text) => {
                self.screen.say(&text);
                self.questions.prompt(&mut self.screen);
                false
            }
            Step::Open(url, answer) => {
                if let Err(error) = questions::open(&url) {
                    self.screen.note(&format!("no browser can be opened ({error}): go there by yourself"));
                }
                self.give(run, answer).await
            }
            Step::Answer(answer) => self.give(run, answer).await,
        }
    }

    /// Gives the person's answer. True if the run is to be left.
    async fn give(&mut self, run: &Run, answer: Answer) -> bool {
        let Some((mut asking, input)) = self.questions.take() else { return false };
        let given = tokio::select! {
            biased;
            given = run.answer(&input.key, answer) => given,
            stop = self.signals.next() => return self.stop(stop),
        };
        match given {
            Ok(()) => {}
            Err(client::Error::Answer { reason, .. }) => {
                self.screen.say(&asking.refused(&reason));
                self.questions.give_back((asking, input));
                self.questions.prompt(&mut self.screen);
            }
            Err(client::Error::Answered { key } | client::Error::NoQuestion { key }) => {
                self.screen.note(&format!("“{key}” was answered or withdrawn"));
            }
            Err(error) => {
                self.screen.note(&format!("the answer could not be given: {error}"));
                if self.can_be_answered_elsewhere() {
                    self.unanswered(&input, "try again with");
                }
            }
        }
        self.questions.ask_next(&mut self.screen);
        false
    }

    // Output.

    fn write(&mut self) {
        let Some(mut out) = self.out.take() else { return };
        if self.surroundings.stdout {
            self.make_room();
        }
        let jobs = std::mem::take(&mut self.queue);
        self.writing = Some(tokio::task::spawn_blocking(move || {
            let result = jobs.into_iter().try_for_each(|job| out.run(job));
            (out, result)
        }));
    }

    /// Takes away what must not stand before output on the same terminal.
    fn make_room(&mut self) {
        if self.questions.is_asking() {
            self.screen.fresh_line();
        } else {
            self.screen.clear();
        }
    }

    /// True if the run is to be left.
    fn wrote(&mut self, mut out: Out, result: io::Result<()>) -> Result<bool, Problem> {
        if let Some(error) = out.trouble() {
            self.screen.note(&format!("how far this was shown cannot be noted: {error}"));
        }
        if self.surroundings.stdout {
            self.screen.was_written(out.line_open() && !self.manner.json);
            self.questions.prompt(&mut self.screen);
        }
        self.out = Some(out);
        match result {
            Ok(()) => Ok(false),
            // Nobody reads any more, as after `| head`. If it is over, it is over.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(self.ending.is_none()),
            Err(error) => {
                self.way_back();
                Err(Problem::protocol(format!("cannot write to standard output: {error}")))
            }
        }
    }
}

/// A line of the server's log.
fn log_line(log: &serde_json::Value) -> String {
    let data = log["data"].as_str().map_or_else(|| log["data"].to_string(), ToOwned::to_owned);
    format!("[{}] {data}", log["level"].as_str().unwrap_or("log"))
}
