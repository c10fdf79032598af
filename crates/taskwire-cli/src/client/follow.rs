//! Shows a call: output on standard output, the rest on standard error; questions go to the person, signals to the task.
//!
//! One loop waits for all of it. A thread writes, and the loop takes no event meanwhile: a slow reader slows the call down, and Ctrl-C
//! still works. How a call is cancelled or left is in [`ending`].

mod ending;

use std::{io, pin::pin};

use taskwire::client::{
    self, Answer, Call, Chunk, Client, ConnectionState, Event, Outcome, OutputPosition, OutputTracker, Question, QuestionKind, Reference,
};
use tokio::{
    task::JoinHandle,
    time::{Interval, MissedTickBehavior, interval},
};

use self::ending::{Disconnect, FollowEnd, PendingEnd, SERVER_ENDS_WITH_CLIENT, Stopping};
use super::{
    exit::{Exit, Problem},
    questions::{self, Questions},
    signals::Signals,
    user_data::{UserData, id_or_key},
};
use crate::term::{
    json_lines::JsonLine,
    paint::Terminal,
    question_dialog::Step,
    render,
    stderr::{StatusDisplay, TICK},
    stdin_lines::TypedLine,
    stdout::{OutputItem, OutputWriter},
};

/// Bytes of output that the writer gets at once, if there are as many.
const BATCH_BYTES: usize = 64 * 1024;

/// How to show a call.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FollowOptions {
    /// Print lines for programs.
    pub(crate) json: bool,
    /// Stop as soon as the call is a task.
    pub(crate) detach: bool,
    /// Show only the result.
    pub(crate) result_only: bool,
    /// The first Ctrl-C cancels, and not only the second.
    pub(crate) cancel_on_interrupt: bool,
    /// The task was started before.
    pub(crate) is_attached: bool,
    /// The task was started elsewhere: the ledger has no entry of it yet.
    pub(crate) is_unlisted: bool,
    /// Whether the ledger tracks how far the output was shown.
    pub(crate) tracks_output: bool,
}

/// A call that is being shown.
pub(crate) struct CallFollower<'a> {
    home: &'a UserData,
    client: Client,
    /// What was called or resumed.
    origin: Reference,
    options: FollowOptions,
    terminal: Terminal,
    screen: StatusDisplay,
    signals: Signals,
    ticks: Interval,
    /// `None` while a thread writes.
    out: Option<OutputWriter>,
    writing: Option<JoinHandle<(OutputWriter, io::Result<()>)>>,
    queue: Vec<OutputItem>,
    questions: Questions,
    /// An event that was read ahead.
    pending_event: Option<Option<Result<Event, client::Error>>>,
    task: Option<Reference>,
    stopping: Stopping,
    ending: Option<PendingEnd>,
}

async fn await_writer(writing: &mut Option<JoinHandle<(OutputWriter, io::Result<()>)>>) -> (OutputWriter, io::Result<()>) {
    let Some(handle) = writing else { return std::future::pending().await };
    let done = handle.await.expect("writing does not panic");
    *writing = None;
    done
}

async fn next(call: &mut Call, stash: &mut Option<Option<Result<Event, client::Error>>>) -> Option<Result<Event, client::Error>> {
    match stash.take() {
        Some(event) => event,
        None => call.next().await,
    }
}

impl<'a> CallFollower<'a> {
    /// For a call to send, or a task to resume.
    pub(crate) fn new(home: &'a UserData, client: &Client, origin: &Reference, options: FollowOptions) -> Result<Self, Problem> {
        let terminal = Terminal::detect();
        let mut out = OutputWriter::stdout(terminal.stdout, terminal.colours);
        if options.result_only {
            out.set_result_only();
        }
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            home,
            client: client.clone(),
            origin: origin.clone(),
            options,
            terminal,
            screen: StatusDisplay::new(terminal, options.json, &origin.tool),
            signals: Signals::catch()?,
            ticks,
            out: Some(out),
            writing: None,
            queue: Vec::new(),
            questions: Questions::default(),
            pending_event: None,
            task: None,
            stopping: Stopping::No,
            ending: None,
        })
    }

    /// Continues where the user stopped.
    pub(crate) fn resume_from(&mut self, tracker: OutputTracker) {
        let shown = tracker.position();
        if let Some(out) = &mut self.out {
            // With `result_only` the result is shown whole, but not twice.
            out.resume_from(if self.options.result_only {
                OutputPosition { result_shown: shown.result_shown, ..OutputPosition::default() }
            } else {
                shown
            });
            out.set_tracker(Box::new(tracker));
        }
    }

    /// Begins at this chunk, whatever was shown before.
    pub(crate) fn start_at(&mut self, seq: u64) {
        if let Some(out) = &mut self.out {
            out.start_at(seq);
        }
    }

    /// Shows the call from the server's first reply to its end, or until the user leaves, and disconnects.
    pub(crate) async fn show(mut self, starting: impl Future<Output = Result<Call, client::Error>>) -> Result<Exit, Problem> {
        let ended = match self.wait_for_start(starting).await {
            Ok(Ok(call)) => self.drive(call).await,
            Ok(Err(ended)) => Ok(ended),
            Err(problem) => Err(problem),
        };
        let client = self.client.clone();
        drop(self);
        ended.as_ref().map_or(Disconnect::Abandon, |ended| ended.disconnect).apply(client).await;
        Ok(ended?.exit)
    }

    /// Waits for the server's first reply.
    async fn wait_for_start(
        &mut self,
        starting: impl Future<Output = Result<Call, client::Error>>,
    ) -> Result<Result<Call, FollowEnd>, Problem> {
        let mut starting = pin!(starting);
        let mut needs_call = false;
        loop {
            tokio::select! {
                biased;
                stop = self.signals.next() => {
                    if self.stop(stop) {
                        return Ok(Err(self.leave(None).await));
                    }
                }
                call = &mut starting => {
                    return match call {
                        Ok(call) => Ok(Ok(call)),
                        Err(error) => Err(self.explain_failure(error).await),
                    };
                }
                is_leaving = self.stopping.due(), if !needs_call => {
                    if is_leaving {
                        return Ok(Err(self.leave(None).await));
                    }
                    if self.resumable_reference().is_none_or(|reference| reference.task.is_none()) {
                        return Ok(Err(self.give_up().await));
                    }
                    // To stop listening would not stop the task: only the call can cancel it.
                    needs_call = true;
                }
                _ = self.ticks.tick(), if self.screen.draws() && !self.stopping.is_leaving() => self.screen.tick(),
            }
        }
    }

    async fn drive(&mut self, mut call: Call) -> Result<FollowEnd, Problem> {
        loop {
            if self.writing.is_none() {
                if !self.queue.is_empty() {
                    self.start_writing();
                } else if let Some(ending) = self.ending.take() {
                    return Ok(self.end(ending));
                }
            }
            let is_leaving = tokio::select! {
                biased;
                stop = self.signals.next() => self.stop(stop),
                is_leaving = self.stopping.due(), if self.ending.is_none() => is_leaving || self.send_cancel(&call).await,
                (out, result) = await_writer(&mut self.writing) => self.finish_writing(out, result)?,
                typed = self.questions.lines.next() => self.handle_line(&call, typed).await,
                event = next(&mut call, &mut self.pending_event), if self.writing.is_none() && self.ending.is_none() && !self.ignores_events() => {
                    self.handle_event(&mut call, event).await?;
                    false
                }
                _ = self.ticks.tick(), if self.screen.draws() && !self.questions.is_asking() && !self.stopping.is_leaving() => {
                    self.screen.tick();
                    false
                }
            };
            if is_leaving {
                // The call may have ended, and only its last output has found no reader.
                return Ok(match self.ending.take() {
                    Some(ending) => ending.ended,
                    None => self.leave(Some(call)).await,
                });
            }
        }
    }

    // Events.

    async fn handle_event(&mut self, call: &mut Call, event: Option<Result<Event, client::Error>>) -> Result<(), Problem> {
        let event = match event {
            Some(Ok(event)) => event,
            Some(Err(error)) => return Err(self.explain_failure(error).await),
            None => return Err(Problem::protocol("the call ended without a result")),
        };
        if self.options.json && !matches!(event, Event::Chunk(_)) {
            let line = JsonLine::of(self.task.as_ref().map(id_or_key), &event).map(|line| line.text());
            self.queue.extend(line.map(|line| OutputItem::Line { line, chunk: None }));
        }
        match event {
            Event::Task(reference) => self.became_task(reference),
            Event::Chunk(chunk) => self.queue_chunks(call, chunk).await,
            Event::Gap { from, until } => {
                let from = from.max(self.out.as_ref().map_or(0, |out| out.shown().seq));
                if from < until {
                    self.screen.note(&format!("output {from} to {} is lost: the server no longer has it", until - 1));
                }
            }
            Event::Status(snapshot) if snapshot.status.is_terminal() => {}
            Event::Status(snapshot) => {
                if self.options.is_attached {
                    self.screen.set_start(&snapshot.created_at);
                }
                self.screen.set_status(snapshot.status.as_str(), snapshot.message.as_deref());
            }
            Event::Progress { progress, total, message } => self.screen.progress(progress, total, message.as_deref()),
            Event::Question(input) => self.handle_question(call, input).await?,
            Event::QuestionSettled { key } if self.questions.settle(&key) => {
                self.screen.note(&format!("“{key}” was answered or withdrawn"));
                self.questions.ask_next(&mut self.screen);
            }
            Event::QuestionSettled { .. } => {}
            Event::Connection(ConnectionState::Lost { reason, retry_in: again_in }) => {
                self.screen.note(&format!("connection lost ({reason}); trying again in {again_in:.0?}"));
                self.screen.set_connected(false);
            }
            Event::Connection(ConnectionState::Restored) => {
                self.screen.note("connected again");
                self.screen.set_connected(true);
            }
            Event::Log(log) => self.screen.note(&log_line(&log.read().unwrap_or_default())),
            Event::Done(outcome) => self.finish(&outcome),
            _ => {}
        }
        Ok(())
    }

    /// The call is a task: from now on the user can leave it and come back.
    fn became_task(&mut self, reference: Reference) {
        if self.options.tracks_output
            && let Err(error) = self.track_output(&reference)
        {
            self.screen.note(&format!("how far this was shown cannot be noted: {error}"));
        }
        let id = id_or_key(&reference).to_owned();
        if self.options.detach {
            let back = if self.is_stdio() { SERVER_ENDS_WITH_CLIENT } else { "come back with" };
            let note = self.terminal.stderr.then(|| format!("{back}: taskwire watch {}", self.home.short_name(&reference)));
            if !self.options.json {
                self.queue.push(OutputItem::Line { line: id, chunk: None });
            }
            self.ending = Some(PendingEnd { ended: FollowEnd { exit: Exit::Done, disconnect: Disconnect::Detach }, note });
        } else if !self.options.is_attached {
            self.screen.note(&format!("task {id}"));
        }
        self.screen.became_task();
        self.task = Some(reference);
    }

    fn track_output(&mut self, reference: &Reference) -> Result<(), client::Error> {
        let (Some(out), Ok(ledger), Some(task)) = (&mut self.out, self.home.ledger_if_any(), &reference.task) else { return Ok(()) };
        if !out.has_tracker()
            && let Some(entry) = ledger.entry(&reference.server, task)?
        {
            let mut tracker = ledger.output_tracker(entry.id)?;
            // Nothing was shown here yet, even if this call joined one of which something was shown.
            tracker.set(out.shown())?;
            out.set_tracker(Box::new(tracker));
        }
        Ok(())
    }

    /// Queues this chunk, and those that are ready.
    async fn queue_chunks(&mut self, call: &mut Call, first: Chunk) {
        let mut bytes = first.content.as_str().len();
        self.queue_chunk(&first);
        while bytes < BATCH_BYTES {
            let event = tokio::select! {
                biased;
                event = call.next() => event,
                () = std::future::ready(()) => break,
            };
            match event {
                Some(Ok(Event::Chunk(chunk))) => {
                    bytes += chunk.content.as_str().len();
                    self.queue_chunk(&chunk);
                }
                other => {
                    self.pending_event = Some(other);
                    break;
                }
            }
        }
    }

    /// Queues a chunk, unless the result was shown: it contains the output.
    fn queue_chunk(&mut self, chunk: &Chunk) {
        if self.out.as_ref().is_none_or(|out| !out.shown().result_shown) {
            self.queue.push(self.chunk_item(chunk));
        }
    }

    fn chunk_item(&self, chunk: &Chunk) -> OutputItem {
        let text = render::chunk_text(&chunk.blocks());
        if !self.options.json {
            return OutputItem::Chunk { seq: chunk.seq, text };
        }
        let line = JsonLine::Partial { task_id: self.task.as_ref().map(id_or_key), seq: chunk.seq, content: &chunk.content };
        OutputItem::Line { line: line.text(), chunk: Some((chunk.seq, text)) }
    }

    fn finish(&mut self, outcome: &Outcome) {
        self.clear_for_output();
        self.questions.drop_all();
        let Some(out) = &self.out else { return };
        let mut note = match outcome {
            Outcome::Result(_) => None,
            Outcome::Failed(error) => Some(format!("the task failed: {} (code {})", error.message, error.code)),
            Outcome::Cancelled { message: None } => Some("cancelled".to_owned()),
            Outcome::Cancelled { message: Some(message) } => Some(format!("cancelled: {message}")),
        };
        if self.options.json {
            self.queue.push(OutputItem::Last(String::new()));
        } else if out.shown().result_shown {
            let how = match outcome {
                Outcome::Result(_) => "completed",
                Outcome::Failed(_) => "failed",
                Outcome::Cancelled { .. } => "cancelled",
            };
            note = Some(format!("nothing new: the task has ended ({how}) and was shown completely; --from 0 shows it again"));
        } else {
            let words = match outcome {
                Outcome::Result(result) => render::unshown_end(out.shown_so_far(), result),
                _ if out.line_open() => "\n".to_owned(),
                _ => String::new(),
            };
            self.queue.push(OutputItem::Last(words));
        }
        self.ending = Some(PendingEnd { ended: FollowEnd { exit: Exit::of(outcome), disconnect: Disconnect::Close }, note });
    }

    // Questions.

    async fn handle_question(&mut self, call: &Call, input: Question) -> Result<(), Problem> {
        if self.stopping.is_active() {
            return Ok(());
        }
        if self.terminal.can_ask && !self.options.json && self.questions.can_ask(&input, self.screen.paint()) {
            self.questions.push(input);
            self.questions.ask_next(&mut self.screen);
            return Ok(());
        }
        if self.can_be_answered_elsewhere() {
            self.screen.note(&format!("the task asks: {}", questions::summary(&input)));
            self.say_how_to_answer(&input, "answer it with");
            return Ok(());
        }
        // Such a request has no answer that says that nobody is here.
        if let QuestionKind::Sampling { .. } | QuestionKind::Other { .. } = &input.kind {
            let (server, what) = (&self.origin.server, questions::summary(&input));
            return Err(Problem::protocol(format!("{server} asks for {what}, which this client does not offer")));
        }
        self.screen.note(&format!("the tool asks: {}", questions::summary(&input)));
        self.cancel_question(call, &input).await;
        Ok(())
    }

    /// Whether somebody else can answer: not for a call without a task, nor on a server that only this process can reach.
    fn can_be_answered_elsewhere(&self) -> bool {
        self.task.is_some() && !self.is_stdio()
    }

    async fn cancel_question(&mut self, call: &Call, input: &Question) {
        self.screen.note("nobody can be asked here: answered with `cancel`");
        if let Err(error) = call.answer(&input.key, Answer::cancel()).await {
            self.screen.note(&format!("the answer could not be given: {error}"));
        }
    }

    /// Says how somebody else can answer.
    fn say_how_to_answer(&mut self, input: &Question, how: &str) {
        if let QuestionKind::Url { url } = &input.kind {
            self.screen.note(url);
        }
        if let Some(task) = &self.task {
            let name = self.home.short_name(task);
            self.screen.note(&format!("{how}: {}", questions::answer_command(&name, input)));
        }
    }

    /// Handles a line that the person typed. True if the call is to be left.
    async fn handle_line(&mut self, call: &Call, typed: TypedLine) -> bool {
        let Ok(Some(line)) = typed else {
            for input in self.questions.close_input() {
                if self.can_be_answered_elsewhere() {
                    self.say_how_to_answer(&input, "left unanswered; answer it with");
                } else {
                    self.cancel_question(call, &input).await;
                }
            }
            return false;
        };
        self.screen.line_was_ended();
        let Some(asking) = self.questions.dialog() else { return false };
        match asking.enter_line(&line) {
            Step::Ask(text) => {
                self.screen.say(&text);
                self.questions.prompt(&mut self.screen);
                false
            }
            Step::Open(url, answer) => {
                if let Err(error) = questions::open_in_browser(&url) {
                    self.screen.note(&format!("no browser can be opened ({error}): go there by yourself"));
                }
                self.send_answer(call, answer).await
            }
            Step::Answer(answer) => self.send_answer(call, answer).await,
        }
    }

    /// Sends the person's answer. True if the call is to be left.
    async fn send_answer(&mut self, call: &Call, answer: Answer) -> bool {
        let Some((mut asking, input)) = self.questions.take() else { return false };
        let sent = tokio::select! {
            biased;
            result = call.answer(&input.key, answer) => result,
            stop = self.signals.next() => return self.stop(stop),
        };
        match sent {
            Ok(()) => {}
            Err(client::Error::InvalidAnswer { reason, .. }) => {
                self.screen.say(&asking.refused(&reason));
                self.questions.ask_again((asking, input));
                self.questions.prompt(&mut self.screen);
            }
            Err(client::Error::AlreadyAnswered { key } | client::Error::NoQuestion { key }) => {
                self.screen.note(&format!("“{key}” was answered or withdrawn"));
            }
            Err(error) => {
                self.screen.note(&format!("the answer could not be given: {error}"));
                if self.can_be_answered_elsewhere() {
                    self.say_how_to_answer(&input, "try again with");
                }
            }
        }
        self.questions.ask_next(&mut self.screen);
        false
    }

    // Output.

    fn start_writing(&mut self) {
        let Some(mut out) = self.out.take() else { return };
        if self.terminal.stdout {
            self.clear_for_output();
        }
        let jobs = std::mem::take(&mut self.queue);
        self.writing = Some(tokio::task::spawn_blocking(move || {
            let result = jobs.into_iter().try_for_each(|job| out.write_item(job));
            (out, result)
        }));
    }

    /// Clears what must not stand before output on the same terminal.
    fn clear_for_output(&mut self) {
        if self.questions.is_asking() {
            self.screen.fresh_line();
        } else {
            self.screen.clear();
        }
    }

    /// True if the call is to be left.
    fn finish_writing(&mut self, mut out: OutputWriter, result: io::Result<()>) -> Result<bool, Problem> {
        if let Some(error) = out.take_tracker_error() {
            self.screen.note(&format!("how far this was shown cannot be noted: {error}"));
        }
        if self.terminal.stdout {
            self.screen.output_written(out.line_open() && !self.options.json);
            self.questions.prompt(&mut self.screen);
        }
        self.out = Some(out);
        match result {
            Ok(()) => Ok(false),
            // Nobody reads any more, as after `| head`: leave, unless the call has ended.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(self.ending.is_none()),
            Err(error) => {
                self.say_may_go_on();
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
