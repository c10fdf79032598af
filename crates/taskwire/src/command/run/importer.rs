//! Taking a journal into a task's log.

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

/// Records that are taken before anything else gets a turn.
const RECORDS_PER_TURN: usize = 64;
/// How often a command may say how it is getting on; of what comes in between, the last counts.
const STATUS_INTERVAL: Duration = Duration::from_millis(200);
/// Bytes of the journal that are taken before its supervisor is told.
const REPORT_BYTES: u64 = 256 * 1024;
/// Bytes of the log that are read back at one time.
const READ_BACK_BYTES: usize = 1024 * 1024;

/// In a result: how many blocks at its beginning only repeat what was written, where that had more in it.
const REPEATS: &str = "dev.taskwire/repeats";

/// What taking came to.
pub(super) enum ImportStep {
    /// The command has ended, and all of its output was taken.
    Ended(JobEnd),
    /// There is more.
    More,
    /// That is all there is, for now.
    CaughtUp,
}

/// A structured result that the command gave, kept beside the journal until the end.
#[derive(Debug, Serialize, Deserialize)]
struct ReportedResult {
    structured: Option<Value>,
    is_error: bool,
    #[serde(default)]
    content: Option<Vec<Value>>,
}

/// A reader of a journal, and what it makes of it.
pub(super) struct JournalImporter {
    run: Arc<Run>,
    dir: PathBuf,
    settings: OutputSettings,
    tool: String,
    reader: JournalReader,
    parser: OutputParser,
    excerpt: OutputExcerpt,
    /// Where the journal is to be read from after an interruption, and what was passed since.
    resume_point: JournalCheckpoint,
    /// What is to be passed over, because it was taken before.
    skip: [u64; 3],
    /// How much of the journal its supervisor knows to be taken.
    reported_offset: u64,
    /// How many bytes more make it worth while to tell.
    report_after_bytes: u64,
    status: StatusThrottle,
    /// Output is not written to the log any more, because there is none and can be none.
    unlogged: bool,
    /// Why the log took no more, and so lacks what came last.
    output_limit_error: Option<String>,
}

impl JournalImporter {
    pub(super) fn new(hand: &CommandRun, dir: &Path, job: &Job, mark: &JournalCheckpoint) -> Result<Self, ToolError> {
        let run = hand.run.clone();
        let mut view = OutputParser::new(&job.settings).map_err(ToolError::new)?;
        if *mark != JournalCheckpoint::start(mark.job_number, mark.first_seq) {
            view = view.resume(mark.hidden);
        }
        let mut digest = OutputExcerpt::new(job.settings.inline_bytes);
        if let Phase::Task(id) = run.phase() {
            read_back(run.engine(), id, Seq(mark.first_seq), &mut digest).map_err(from_engine)?;
        }
        let skip = [mark.stdout_bytes, mark.stderr_bytes, mark.notes];
        let anchor = JournalCheckpoint { stdout_bytes: 0, stderr_bytes: 0, notes: 0, ..mark.clone() };
        Ok(Self {
            run,
            dir: dir.to_owned(),
            settings: job.settings.clone(),
            tool: job.tool.clone(),
            reader: JournalReader::open(dir, mark.offset),
            parser: view,
            excerpt: digest,
            resume_point: anchor,
            skip,
            reported_offset: mark.offset,
            report_after_bytes: REPORT_BYTES.min(job.journal_bytes / 2),
            status: StatusThrottle::default(),
            unlogged: false,
            output_limit_error: None,
        })
    }

    /// A question of the command as others may see it.
    pub(super) fn question(&self, question: Question) -> Question {
        self.parser.redact_question(question)
    }

    /// Up to where the journal was taken, as far as its supervisor was told or a checkpoint says.
    pub(super) fn reported_offset(&self) -> u64 {
        self.reported_offset
    }

    /// Whether there is nothing to read, though the command has begun: its journal is gone.
    pub(super) fn is_journal_gone(&self) -> bool {
        !self.reader.is_open() && !self.dir.join(journal::FILE).exists()
    }

    /// The place in the journal up to which it was read.
    pub(super) fn offset(&self) -> u64 {
        self.reader.offset()
    }

    /// Takes what is there, but not so much that nothing else gets a turn.
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
            let (said, stream) = match record {
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
                    let said = self.parser.finish();
                    // The end is read again, and nothing before it.
                    self.resume_point = JournalCheckpoint {
                        offset: range.start,
                        ..JournalCheckpoint::start(self.resume_point.job_number, self.resume_point.first_seq)
                    };
                    self.write(said).await?;
                    self.status.report(&self.run).await?;
                    return Ok(ImportStep::Ended(ended));
                }
            };
            self.move_resume_point(range.start, range.end, stream);
            self.write(said).await?;
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

    /// Moves the anchor as far as nothing before it is needed any more.
    fn move_resume_point(&mut self, start: u64, end: u64, stream: Option<(Stream, u64)>) {
        if self.skip != [0; 3] {
            return;
        }
        let (out, err) = (self.parser.pending_bytes(Stream::Out), self.parser.pending_bytes(Stream::Err));
        let empty = JournalCheckpoint::start(self.resume_point.job_number, self.resume_point.first_seq);
        match stream {
            _ if out + err == 0 => self.resume_point = JournalCheckpoint { offset: end, ..empty },
            // What is held back came with this record.
            Some((Stream::Out, n)) if err == 0 && out <= n => {
                self.resume_point = JournalCheckpoint { offset: start, stdout_bytes: n, ..empty }
            }
            Some((Stream::Err, n)) if out == 0 && err <= n => {
                self.resume_point = JournalCheckpoint { offset: start, stderr_bytes: n, ..empty }
            }
            _ => {}
        }
    }

    /// How far everything was taken.
    fn checkpoint(&self) -> JournalCheckpoint {
        let mut mark = self.resume_point.clone();
        mark.stdout_bytes += self.skip[0];
        mark.stderr_bytes += self.skip[1];
        mark.notes += self.skip[2];
        mark.stdout_bytes -= self.parser.pending_bytes(Stream::Out);
        mark.stderr_bytes -= self.parser.pending_bytes(Stream::Err);
        mark.hidden = self.parser.hidden();
        mark
    }

    /// Writes what was said, with the mark that it leads to.
    async fn write(&mut self, said: Vec<OutputItem>) -> Result<(), ToolError> {
        enum Item {
            Text(String),
            Block(Payload),
        }
        let mut items = Vec::with_capacity(said.len());
        for said in said {
            match said {
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
                    // Without a result, it says only that the command failed.
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
            // Too much for a call, and no room for another task: its caller gets the two ends of the output.
            Err(engine::Error::Rejected(reject)) if reject.is_no_room_for_task() && matches!(self.run.phase(), Phase::Loose) => {
                self.unlogged = true;
                Ok(())
            }
            put => put.map_err(|error| self.note_output_limit(error)),
        }
    }

    /// Remembers that there was too much output, for the result to say so.
    fn note_output_limit(&mut self, error: engine::Error) -> ToolError {
        if matches!(&error, engine::Error::Rejected(reject) if reject.is_no_room_for_output()) {
            self.output_limit_error = Some(error.to_string());
        }
        from_engine(error)
    }

    /// The result of a command that was stopped because it wrote too much.
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

    /// Sees to it that the log has all of the output, where there may be no room for the last of it. Elsewhere that is written with
    /// the result.
    async fn flush_if_nearly_full(&mut self) -> Result<(), ToolError> {
        let (engine, Phase::Task(id)) = (self.run.engine(), self.run.phase()) else { return Ok(()) };
        let Some(task) = engine.any_task(id).map_err(from_engine)? else { return Ok(()) };
        if !is_nearly_full(task.output.bytes, engine.limits()) {
            return Ok(());
        }
        match self.run.flush().await.map_err(|error| self.note_output_limit(error)) {
            Err(_) if self.output_limit_error.is_some() => Ok(()),
            flushed => flushed,
        }
    }

    /// What the command wrote, as far as a result has room for it.
    async fn excerpt_content(&mut self) -> Vec<Value> {
        if let (Some(_), Phase::Task(id)) = (&self.output_limit_error, self.run.phase()) {
            // What was on its way is lost.
            let mut kept = OutputExcerpt::new(self.settings.inline_bytes);
            match read_back(self.run.engine(), id, Seq(self.resume_point.first_seq), &mut kept) {
                Ok(()) => self.excerpt = kept,
                Err(error) => tracing::warn!(%error, "what a command wrote cannot be read back"),
            }
        }
        self.excerpt.finish();
        // What the result leaves out can be read from a task; where there is no room for one, it is lost.
        let kept = !self.unlogged && self.excerpt.needs_task() && matches!(self.run.promote().await, Ok(Phase::Task(_)));
        // Places in it are those of the whole output: of this run only where there was no other.
        let is_whole = self.resume_point.first_seq == 0 && !self.may_be_dropped();
        let (uri, name) = (crate::followup::resource::uri(self.run.id()), format!("output of {}", self.tool));
        let link = kept.then_some(OutputLink { uri, name, is_whole });
        let content = self.excerpt.content(link.as_ref());
        self.run.set_repeated_blocks(content.len());
        content
    }

    /// Whether the beginning of the output is gone, or goes when the last of it is written.
    fn may_be_dropped(&self) -> bool {
        let (engine, Phase::Task(id)) = (self.run.engine(), self.run.phase()) else { return false };
        if self.run.spec().overflow == Overflow::Fail {
            return false;
        }
        // Where that cannot be known, no place in it is named.
        let Ok(Some(task)) = engine.any_task(id) else { return true };
        let is_begun_late = !engine.chunk_range(id).is_ok_and(|kept| kept.start == Seq(0));
        is_begun_late || is_nearly_full(task.output.bytes, engine.limits())
    }

    /// That so many blocks of the result repeat the output. Where there was no other run, and it was not drawn over, that can be seen
    /// from the two.
    fn repeats(&self, blocks: usize) -> Option<Map<String, Value>> {
        (self.resume_point.first_seq > 0 || self.excerpt.is_collapsed()).then(|| Map::from_iter([(REPEATS.to_owned(), blocks.into())]))
    }

    fn store_result(&self, mut given: ReportedResult) -> Result<(), ToolError> {
        // That it failed is not taken back by a result that comes later.
        given.is_error |= self.stored_result()?.is_some_and(|earlier| earlier.structured.is_none() && earlier.is_error);
        write_atomically(&self.dir.join("result.json"), &serde_json::to_vec(&given)?).map_err(|error| files_unusable(&self.dir, &error))
    }

    /// The result that the command gave so far.
    fn stored_result(&self) -> Result<Option<ReportedResult>, ToolError> {
        match fs::read(self.dir.join("result.json")) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(files_unusable(&self.dir, &error)),
        }
    }

    /// Up to where the journal need not wait any more, if that is so much further than its supervisor knows that it should
    /// be told.
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
        // A call that is no task ends with this process, so nothing of it need be kept for another.
        self.reported_offset = position;
        Ok(Some(position))
    }

    /// Waits until it is time to say how the command is getting on, and says it; for ever if there is nothing to say.
    pub(super) async fn report_status_when_due(&mut self) {
        self.status.wait_until_due(&self.run).await;
        // Limits are no reason to stop a command, and that it must stop is noticed elsewhere.
        let _ = self.status.report(&self.run).await;
    }

    /// The command is lost: writes what was held back.
    pub(super) async fn write_pending(&mut self) -> Result<(), ToolError> {
        let said = self.parser.finish();
        self.write(said).await
    }

    /// What the call comes to.
    pub(super) async fn result(&mut self, ended: &JobEnd) -> Result<CallResult, ToolError> {
        let given = self.stored_result()?;
        self.flush_if_nearly_full().await?;
        let mut content = self.excerpt_content().await;
        let mut result = CallResult { meta: self.repeats(content.len()), ..CallResult::default() };
        if let Some(given) = given {
            match (given.content, &given.structured) {
                (Some(blocks), _) => content.extend(blocks),
                (None, Some(structured)) => content.push(json!({"type": "text", "text": structured.to_string()})),
                (None, None) => {}
            }
            result.structured_content = given.structured.map(Payload::from);
            result.is_error = given.is_error;
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
            // Models, and some clients, take nothing at all for a fault. People need not read it.
            let code = ended.code.unwrap_or(0);
            let nothing = if self.excerpt.written_bytes() == 0 { "nothing" } else { "nothing that can be seen" };
            let text = format!("The command ended with exit code {code} and wrote {nothing}.");
            content.push(json!({"type": "text", "text": text, "annotations": {"audience": ["assistant"]}}));
        }
        result.content = content.into_iter().map(Payload::from).collect();
        Ok(result)
    }
}

/// A block as the log takes it: text that is too long in parts, as anything else that is too large with a link to the whole, or a word on
/// what is too large even for that.
fn fit_block(mut block: Value, id: TaskId, limits: &Limits) -> Vec<Value> {
    let (bytes, most) = (block.to_string().len() as u64, limits.chunk_bytes);
    // A chunk is a list.
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

/// Whether what is still on its way into the log may be too much for it.
fn is_nearly_full(bytes: u64, limits: &Limits) -> bool {
    // That is about a chunk of text, of which JSON may make six times as much.
    bytes.saturating_add(limits.chunk_bytes.saturating_mul(8)) >= limits.task_output_bytes
}

/// What is wrong with how a command ended: in a sentence, and in short.
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

/// What the log has of this run.
fn read_back(engine: &engine::Engine, id: TaskId, mut from: Seq, digest: &mut OutputExcerpt) -> Result<(), engine::Error> {
    let begin = from;
    loop {
        let cursor = Cursor::output(from, READ_BACK_BYTES);
        let Some(page) = engine.page(id, cursor)? else { return Ok(()) };
        let more = page.more;
        for chunk in page.items.into_iter().filter_map(LogItem::into_chunk) {
            if from == begin && chunk.seq > begin {
                digest.lost_beginning();
            }
            from = chunk.seq.next();
            for block in serde_json::from_str::<Vec<Value>>(chunk.blocks.as_str()).unwrap_or_default() {
                digest.block(&block);
            }
        }
        if !more {
            return Ok(());
        }
    }
}

/// How a command says it is getting on, not too often.
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
            said => said.map_err(from_engine),
        }
    }
}
