//! Imports a command's journal into the task's log, and makes the call's result of it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use taskwire_core::{
    Limits, Payload, Seq, TaskId, Timestamp,
    task::{Overflow, Progress, Reject},
};

use super::{CommandRun, JournalCheckpoint, SHORTAGE_RETRY_PAUSE, files_unusable, is_shortage, write_atomically};
use crate::{
    clock::Sleep,
    command::{
        excerpt::{OutputExcerpt, OutputLink},
        journal::{self, JobEnd, JournalReader, Record},
        messages::Question,
        parser::{OutputItem, OutputParser, OutputSettings, Stream},
        supervisor::Job,
    },
    engine::{self, Phase, Piece, Run, large_block},
    store::{Cursor, LogItem},
    tool::{CallResult, ToolError, from_engine},
};

/// Records that are imported before anything else gets a turn.
const RECORDS_PER_TURN: usize = 64;
/// The shortest time between two reports of status; of those in between, the last one counts.
const STATUS_INTERVAL: Duration = Duration::from_millis(200);
/// Bytes of the journal that are imported before the supervisor is told.
const REPORT_BYTES: u64 = 256 * 1024;
/// Bytes of the log that are read back in one page.
const READ_BACK_BYTES: usize = 1024 * 1024;

/// In a result's `_meta`: how many blocks at its beginning repeat the output, where a client cannot see that by comparing the two.
const REPEATS: &str = "dev.taskwire/repeats";

pub(super) enum ImportStep {
    /// The command has ended, and all of its output was imported.
    Ended(JobEnd),
    /// There may be more to import.
    More,
    /// Everything that the journal has so far was imported.
    CaughtUp,
}

/// The result that the command reported, kept beside the journal until the command ends.
#[derive(Debug, Serialize, Deserialize)]
struct ReportedResult {
    structured: Option<Value>,
    is_error: bool,
    #[serde(default)]
    content: Option<Vec<Value>>,
}

/// Reads a journal, and writes what it parses to the log.
pub(super) struct JournalImporter {
    run: Arc<Run>,
    dir: PathBuf,
    settings: OutputSettings,
    tool: String,
    reader: JournalReader,
    parser: OutputParser,
    excerpt: OutputExcerpt,
    /// Where to read the journal from after an interruption; its counts say what was read since.
    resume_point: JournalCheckpoint,
    /// What to skip after `resume_point` because it was imported before: bytes of standard output, of standard error, and notes.
    skip: [u64; 3],
    reported_offset: u64,
    /// How many bytes more make a report worth while.
    report_after_bytes: u64,
    status: StatusThrottle,
    /// Set when the call is no task and cannot become one: there is no log to write to.
    unlogged: bool,
    /// Why the log refused the last of the output.
    output_limit_error: Option<String>,
}

impl JournalImporter {
    pub(super) async fn new(command_run: &CommandRun, dir: &Path, job: &Job, checkpoint: &JournalCheckpoint) -> Result<Self, ToolError> {
        let run = command_run.run.clone();
        let mut parser = OutputParser::new(&job.settings).map_err(ToolError::new)?;
        if *checkpoint != checkpoint.beginning() {
            parser = parser.resume(checkpoint.hidden);
        }
        let mut excerpt = OutputExcerpt::new(job.settings.inline_bytes);
        if let Phase::Task(id) = run.phase() {
            read_back(run.engine(), id, Seq(checkpoint.first_seq), &mut excerpt).await.map_err(from_engine)?;
        }
        let skip = [checkpoint.stdout_bytes, checkpoint.stderr_bytes, checkpoint.notes];
        let resume_point = JournalCheckpoint { stdout_bytes: 0, stderr_bytes: 0, notes: 0, ..checkpoint.clone() };
        Ok(Self {
            run,
            dir: dir.to_owned(),
            settings: job.settings.clone(),
            tool: job.tool.clone(),
            reader: JournalReader::open(dir, checkpoint.offset),
            parser,
            excerpt,
            resume_point,
            skip,
            reported_offset: checkpoint.offset,
            report_after_bytes: REPORT_BYTES.min(job.journal_bytes / 2),
            status: StatusThrottle::default(),
            unlogged: false,
            output_limit_error: None,
        })
    }

    pub(super) fn question(&self, question: Question) -> Question {
        self.parser.redact_question(question)
    }

    /// How far the supervisor knows that the journal was imported.
    pub(super) fn reported_offset(&self) -> u64 {
        self.reported_offset
    }

    pub(super) fn is_journal_gone(&self) -> bool {
        !self.reader.is_open() && !self.dir.join(journal::FILE).exists()
    }

    /// Up to where the journal was read.
    pub(super) fn offset(&self) -> u64 {
        self.reader.offset()
    }

    /// Imports what is there, but not so much that nothing else gets a turn.
    pub(super) async fn import(&mut self) -> Result<ImportStep, ToolError> {
        for _ in 0..RECORDS_PER_TURN {
            let (record, range) = match self.reader.next() {
                Ok(Some(next)) => next,
                Ok(None) => return Ok(ImportStep::CaughtUp),
                Err(error) if is_shortage(&error) => {
                    tracing::warn!(%error, "trying again");
                    self.run.engine().clock().sleep(SHORTAGE_RETRY_PAUSE).await;
                    return Ok(ImportStep::More);
                }
                Err(error) => return Err(files_unusable(&self.dir, &error)),
            };
            let (items, stream) = match record {
                Record::Out(bytes) => (self.feed(Stream::Out, &bytes), Some((Stream::Out, bytes.len() as u64))),
                Record::Err(bytes) => (self.feed(Stream::Err, &bytes), Some((Stream::Err, bytes.len() as u64))),
                Record::Note(note) => {
                    self.resume_point.notes += 1;
                    if self.skip[2] > 0 {
                        self.skip[2] -= 1;
                        (Vec::new(), None)
                    } else {
                        (self.parser.note(note), None)
                    }
                }
                Record::Began(_) => (Vec::new(), None),
                Record::Ended(ended) => {
                    let items = self.parser.finish();
                    // After a restart only the end is read again.
                    self.resume_point = JournalCheckpoint { offset: range.start, ..self.resume_point.beginning() };
                    self.write(items).await?;
                    self.status.report(&self.run).await?;
                    return Ok(ImportStep::Ended(ended));
                }
            };
            self.move_resume_point(range.start, range.end, stream);
            self.write(items).await?;
        }
        Ok(ImportStep::More)
    }

    fn feed(&mut self, stream: Stream, bytes: &[u8]) -> Vec<OutputItem> {
        let n = bytes.len() as u64;
        let (passed, skip) = match stream {
            Stream::Out => (&mut self.resume_point.stdout_bytes, &mut self.skip[0]),
            Stream::Err => (&mut self.resume_point.stderr_bytes, &mut self.skip[1]),
        };
        *passed += n;
        let over = n.min(*skip);
        *skip -= over;
        let fresh = bytes.get(usize::try_from(over).unwrap_or(usize::MAX)..).unwrap_or_default();
        if fresh.is_empty() { Vec::new() } else { self.parser.feed(stream, fresh) }
    }

    /// Moves the resume point as far as the parser has nothing pending from before it.
    fn move_resume_point(&mut self, start: u64, end: u64, stream: Option<(Stream, u64)>) {
        if self.skip != [0; 3] {
            return;
        }
        let (out, err) = (self.parser.pending_bytes(Stream::Out), self.parser.pending_bytes(Stream::Err));
        let empty = self.resume_point.beginning();
        match stream {
            _ if out + err == 0 => self.resume_point = JournalCheckpoint { offset: end, ..empty },
            // The pending bytes came with this record.
            Some((Stream::Out, n)) if err == 0 && out <= n => {
                self.resume_point = JournalCheckpoint { offset: start, stdout_bytes: n, ..empty }
            }
            Some((Stream::Err, n)) if out == 0 && err <= n => {
                self.resume_point = JournalCheckpoint { offset: start, stderr_bytes: n, ..empty }
            }
            _ => {}
        }
    }

    fn checkpoint(&self) -> JournalCheckpoint {
        let mut checkpoint = self.resume_point.clone();
        checkpoint.stdout_bytes += self.skip[0];
        checkpoint.stderr_bytes += self.skip[1];
        checkpoint.notes += self.skip[2];
        checkpoint.stdout_bytes -= self.parser.pending_bytes(Stream::Out);
        checkpoint.stderr_bytes -= self.parser.pending_bytes(Stream::Err);
        checkpoint.hidden = self.parser.hidden();
        checkpoint
    }

    /// Writes parsed output to the log, with the checkpoint after it.
    async fn write(&mut self, parsed: Vec<OutputItem>) -> Result<(), ToolError> {
        enum Item {
            Text(String),
            Block(Payload),
        }
        let mut items = Vec::with_capacity(parsed.len());
        for item in parsed {
            match item {
                OutputItem::Text(text) => {
                    self.excerpt.text(&text);
                    items.push(Item::Text(text));
                }
                OutputItem::Block(block) => {
                    for block in fit_block(block, self.run.id(), self.run.engine().limits()) {
                        self.excerpt.block(&block);
                        items.push(Item::Block(block.into()));
                    }
                }
                OutputItem::Progress { done, total, message } => self.status.progress(Progress { done, total }, message),
                OutputItem::Status(message) => self.status.message = Some(message),
                OutputItem::Result { structured, is_error, content } => {
                    // A result without a value says only that the command failed.
                    let structured = Some(structured).filter(|structured| !structured.is_null());
                    self.store_result(ReportedResult { structured, is_error, content })?;
                }
            }
        }
        let pieces: Vec<Piece<'_>> = items
            .iter()
            .map(|item| match item {
                Item::Text(text) => Piece::Text(text),
                Item::Block(block) => Piece::Block(block),
            })
            .collect();
        if self.unlogged {
            return Ok(());
        }
        match self.run.write_with_checkpoint(&pieces, &Payload::of(&self.checkpoint())?).await {
            // The output is too large for a call, and the store has no room for another task. The caller gets the two ends of the output.
            Err(engine::Error::Rejected(reject)) if reject.is_no_room_for_task() && matches!(self.run.phase(), Phase::Loose) => {
                self.unlogged = true;
                Ok(())
            }
            written => written.map_err(|error| self.note_output_limit(error)),
        }
    }

    /// Remembers that the log refused output, for the result to say so.
    fn note_output_limit(&mut self, error: engine::Error) -> ToolError {
        if matches!(&error, engine::Error::Rejected(reject) if reject.is_no_room_for_output()) {
            self.output_limit_error = Some(error.to_string());
        }
        from_engine(error)
    }

    /// The result of a command that was stopped because it wrote too much, if it was.
    pub(super) async fn output_limit_result(&mut self) -> Option<CallResult> {
        let why = self.output_limit_error.clone()?;
        let mut content = self.excerpt_content().await;
        let text = format!("The command was stopped, because {why}. What it wrote after that is not kept.");
        content.push(json!({"type": "text", "text": text}));
        let meta = self.repeats(content.len() - 1);
        let mut result =
            CallResult { content: content.into_iter().map(Payload::from).collect(), is_error: true, meta, ..CallResult::default() };
        result.set_failure_reason(&format!("stopped, because {why}"));
        Some(result)
    }

    /// Writes all output to the log first if the last of it may not fit, so that the result can say so. Otherwise it is written with the
    /// result.
    async fn flush_if_nearly_full(&mut self) -> Result<(), ToolError> {
        let (engine, Phase::Task(id)) = (self.run.engine(), self.run.phase()) else { return Ok(()) };
        let Some(task) = engine.any_task(id).await.map_err(from_engine)? else { return Ok(()) };
        if !is_nearly_full(task.output.bytes, engine.limits()) {
            return Ok(());
        }
        match self.run.flush().await.map_err(|error| self.note_output_limit(error)) {
            Err(_) if self.output_limit_error.is_some() => Ok(()),
            flushed => flushed,
        }
    }

    /// The excerpt of the output that goes into the result.
    async fn excerpt_content(&mut self) -> Vec<Value> {
        if let (Some(_), Phase::Task(id)) = (&self.output_limit_error, self.run.phase()) {
            // What was on the way to the log is lost, so only what the log has is shown.
            let mut kept = OutputExcerpt::new(self.settings.inline_bytes);
            match read_back(self.run.engine(), id, Seq(self.resume_point.first_seq), &mut kept).await {
                Ok(()) => self.excerpt = kept,
                Err(error) => tracing::warn!(%error, "what a command wrote cannot be read back"),
            }
        }
        self.excerpt.finish();
        // Readers get what the result leaves out from the task. If there is no room for a task, it is lost.
        let kept = !self.unlogged && self.excerpt.needs_task() && matches!(self.run.promote().await, Ok(Phase::Task(_)));
        // Offsets count from the task's first output, so the link may name them only if this job wrote that and none of it is dropped.
        let is_whole = self.resume_point.first_seq == 0 && !Self::may_be_dropped(&self.run).await;
        let (uri, name) = (crate::followup::resource::uri(self.run.id()), format!("output of {}", self.tool));
        let link = kept.then_some(OutputLink { uri, name, is_whole });
        let content = self.excerpt.content(link.as_ref());
        self.run.set_repeated_blocks(content.len());
        content
    }

    /// Whether the beginning of the output was dropped, or will be when the last of it is written.
    async fn may_be_dropped(run: &Run) -> bool {
        let (engine, Phase::Task(id)) = (run.engine(), run.phase()) else { return false };
        if run.spec().overflow == Overflow::Fail {
            return false;
        }
        // If that is unknown, the result names no offset.
        let Ok(Some(task)) = engine.any_task(id).await else { return true };
        let is_begun_late = !engine.chunk_range(id).await.is_ok_and(|kept| kept.start == Seq(0));
        is_begun_late || is_nearly_full(task.output.bytes, engine.limits())
    }

    /// Says how many blocks of the result repeat the output. A client sees that by itself if there was one job and nothing was drawn over.
    fn repeats(&self, blocks: usize) -> Option<Map<String, Value>> {
        (self.resume_point.first_seq > 0 || self.excerpt.is_collapsed()).then(|| Map::from_iter([(REPEATS.to_owned(), blocks.into())]))
    }

    fn store_result(&self, mut reported: ReportedResult) -> Result<(), ToolError> {
        // A later result does not take back an earlier report of failure.
        reported.is_error |= self.stored_result()?.is_some_and(|earlier| earlier.structured.is_none() && earlier.is_error);
        write_atomically(&self.dir.join("result.json"), &serde_json::to_vec(&reported)?).map_err(|error| files_unusable(&self.dir, &error))
    }

    fn stored_result(&self) -> Result<Option<ReportedResult>, ToolError> {
        match fs::read(self.dir.join("result.json")) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(files_unusable(&self.dir, &error)),
        }
    }

    /// How far the journal was imported, if that is enough more than what the supervisor knows.
    pub(super) async fn offset_to_report(&mut self) -> Result<Option<u64>, ToolError> {
        let position = self.offset();
        if position < self.reported_offset + self.report_after_bytes {
            return Ok(None);
        }
        if matches!(self.run.phase(), Phase::Task(_)) {
            let flushed = self.run.flush().await;
            flushed.map_err(|error| self.note_output_limit(error))?;
            journal::free_before(&self.dir, self.resume_point.offset);
        }
        // A call that is no task ends with this process, so nothing of it is kept for a restart.
        self.reported_offset = position;
        Ok(Some(position))
    }

    /// Waits until a status is due and reports it; waits for ever if there is none.
    pub(super) async fn report_status_when_due(&mut self) {
        self.status.wait_until_due(&self.run).await;
        // A limit is no reason to stop the command. If the run must stop, `follow` notices it.
        let _ = self.status.report(&self.run).await;
    }

    /// Writes the pending output of a command that was lost.
    pub(super) async fn write_pending(&mut self) -> Result<(), ToolError> {
        let items = self.parser.finish();
        self.write(items).await
    }

    pub(super) async fn result(&mut self, ended: &JobEnd) -> Result<CallResult, ToolError> {
        let reported = self.stored_result()?;
        self.flush_if_nearly_full().await?;
        let mut content = self.excerpt_content().await;
        let mut result = CallResult { meta: self.repeats(content.len()), ..CallResult::default() };
        if let Some(reported) = reported {
            match (reported.content, &reported.structured) {
                (Some(blocks), _) => content.extend(blocks),
                (None, Some(structured)) => content.push(json!({"type": "text", "text": structured.to_string()})),
                (None, None) => {}
            }
            result.structured_content = reported.structured.map(Payload::from);
            result.is_error = reported.is_error;
        }
        let mut why = result.is_error.then(|| "it says that it failed".to_owned());
        if let Some(problem) = exit_problem(ended, &self.settings) {
            why = Some(self.parser.redact_text(&problem.short).into_owned());
            content.push(json!({"type": "text", "text": self.parser.redact_text(&problem.text)}));
            result.is_error = true;
        }
        if let Some(too_much) = &self.output_limit_error {
            content.push(json!({"type": "text", "text": format!("What it wrote last is not kept, because {too_much}.")}));
            why.get_or_insert_with(|| too_much.clone());
            result.is_error = true;
        }
        if let Some(why) = why {
            let last = self.excerpt.last_line().filter(|_| ended.start_error.is_none());
            result.set_failure_reason(&last.map_or_else(|| why.clone(), |last| format!("{why}: {last}")));
        }
        if content.is_empty() {
            // Models and some clients take an empty result for a fault. People need not read this text.
            let code = ended.code.unwrap_or(0);
            let nothing = if self.excerpt.written_bytes() == 0 { "nothing" } else { "nothing that can be seen" };
            let text = format!("The command ended with exit code {code} and wrote {nothing}.");
            content.push(json!({"type": "text", "text": text, "annotations": {"audience": ["assistant"]}}));
        }
        result.content = content.into_iter().map(Payload::from).collect();
        Ok(result)
    }
}

/// A block as the log accepts it. A long text is split; another large block is stored in parts with a link; what is too large even for that
/// is named.
fn fit_block(mut block: Value, id: TaskId, limits: &Limits) -> Vec<Value> {
    let (bytes, most) = (block.to_string().len() as u64, limits.chunk_bytes);
    // A chunk is a JSON list: two bytes more.
    if bytes + 2 <= most {
        return vec![block];
    }
    let Some(text) = block["text"].as_str().filter(|_| block["type"] == "text").map(ToOwned::to_owned) else {
        return large_block::split(id, &block, limits)
            .unwrap_or_else(|why| vec![json!({"type": "text", "text": format!("[A block of {bytes} bytes was left out: {why}.]\n")})]);
    };
    // A byte of text takes at most six in JSON.
    let part = usize::try_from(most / 8).unwrap_or(usize::MAX).max(4);
    let (mut parts, mut rest) = (Vec::new(), text.as_str());
    while !rest.is_empty() {
        let (first, after) = rest.split_at(rest.floor_char_boundary(part));
        block["text"] = first.into();
        parts.push(block.clone());
        rest = after;
    }
    parts
}

/// Whether output that is still on the way may not fit into the log.
fn is_nearly_full(bytes: u64, limits: &Limits) -> bool {
    // That is about a chunk of text, and JSON may make six times as much of it.
    bytes.saturating_add(limits.chunk_bytes.saturating_mul(8)) >= limits.task_output_bytes
}

/// What is wrong with how a command ended: as a sentence, and in short.
struct ExitProblem {
    text: String,
    short: String,
}

fn exit_problem(ended: &JobEnd, settings: &OutputSettings) -> Option<ExitProblem> {
    let (text, short) = match (&ended.start_error, ended.code, ended.signal) {
        (Some(why), ..) => (why.clone(), why.clone()),
        (None, Some(code), _) if settings.ok_codes.contains(&code) => return None,
        (None, Some(code), _) => (format!("The command ended with exit code {code}."), format!("exit code {code}")),
        (None, None, Some(signal)) => (format!("The command was ended by signal {signal}."), format!("ended by signal {signal}")),
        (None, None, None) => ("How the command ended is not known.".to_owned(), "how it ended is not known".to_owned()),
    };
    Some(ExitProblem { text, short })
}

/// Feeds what the log has of this job to the excerpt.
async fn read_back(engine: &engine::Engine, id: TaskId, mut from: Seq, excerpt: &mut OutputExcerpt) -> Result<(), engine::Error> {
    let begin = from;
    loop {
        let cursor = Cursor::output(from, READ_BACK_BYTES);
        let Some(page) = engine.page(id, cursor).await? else { return Ok(()) };
        let more = page.more;
        for chunk in page.items.into_iter().filter_map(LogItem::into_chunk) {
            if from == begin && chunk.seq > begin {
                excerpt.lost_beginning();
            }
            from = chunk.seq.next();
            for block in serde_json::from_str::<Vec<Value>>(chunk.blocks.as_str()).unwrap_or_default() {
                excerpt.block(&block);
            }
        }
        if !more {
            return Ok(());
        }
    }
}

/// Reports status and progress, but not too often.
#[derive(Default)]
struct StatusThrottle {
    message: Option<String>,
    progress: Option<Progress>,
    last: Option<Timestamp>,
    timer: Option<Sleep>,
}

impl StatusThrottle {
    fn progress(&mut self, progress: Progress, message: Option<String>) {
        self.progress = Some(progress);
        self.message = message.or(self.message.take());
    }

    fn is_empty(&self) -> bool {
        self.message.is_none() && self.progress.is_none()
    }

    async fn wait_until_due(&mut self, run: &Run) {
        if self.is_empty() {
            return std::future::pending().await;
        }
        let clock = run.engine().clock();
        let last = self.last;
        let timer = self.timer.get_or_insert_with(|| match last {
            Some(last) => clock.sleep_until(last.after(STATUS_INTERVAL)),
            None => Box::pin(std::future::ready(())),
        });
        timer.await;
        self.timer = None;
    }

    async fn report(&mut self, run: &Arc<Run>) -> Result<(), ToolError> {
        self.timer = None;
        if self.is_empty() {
            return Ok(());
        }
        self.last = Some(run.engine().clock().now());
        let max = usize::try_from(run.engine().limits().message_bytes).unwrap_or(usize::MAX);
        let message = self.message.take().map(|mut message| {
            message.truncate(message.floor_char_boundary(max));
            message.into()
        });
        match run.report_status(message, self.progress.take()).await {
            Err(engine::Error::Rejected(Reject::Limit { .. } | Reject::NotANumber)) => Ok(()),
            reported => reported.map_err(from_engine),
        }
    }
}
