//! What a task is at one moment: the fold of its events.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::event::{Outcome, Progress};
use crate::{
    id::{Attempt, CallerId, Epoch, QuestionKey, Seq, SessionId, TaskId, Version},
    limits::Limits,
    payload::Payload,
    time::Timestamp,
    trace::TraceContext,
};

/// About how many bytes a new task takes in the store.
const TASK_BYTES: u64 = 512;
/// About how many bytes a chunk takes there besides its blocks.
const CHUNK_BYTES: u64 = 64;

/// What happens to a task whose work was interrupted by a crash or a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnInterrupt {
    /// It fails with an error that says so. Work that has side effects must not run twice unasked.
    #[default]
    Fail,
    /// It is run again, from its last checkpoint if it saved one.
    Retry,
    /// Its work goes on without the server: the next attempt finds it again, however many there are.
    Resume,
}

/// What happens when the output of a task reaches its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overflow {
    /// Further output is rejected.
    #[default]
    Fail,
    /// Its oldest chunks are dropped.
    DropOldest,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
pub(super) fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Overflow {
    const fn is_default(&self) -> bool {
        matches!(self, Self::Fail)
    }
}

/// Which questions the caller said it can answer, frozen when the task was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AcceptedQuestions {
    /// Forms to be filled in.
    pub elicit_form: bool,
    /// Links to be opened.
    pub elicit_url: bool,
    /// Completions from the caller's language model.
    pub sampling: bool,
    /// Such completions in which the model may use tools.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sampling_tools: bool,
    /// The caller's root folders.
    pub roots: bool,
}

/// The session whose outbox gets the changes of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutboxTarget {
    /// The session.
    pub session: SessionId,
    /// Whether it gets output, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output: bool,
}

/// What is fixed about a task when it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Who owns it. To anybody else it does not exist.
    pub caller: CallerId,
    /// The tool that does its work.
    pub tool: Arc<str>,
    /// What a crash of the server does to it.
    #[serde(default)]
    pub on_interrupt: OnInterrupt,
    /// How often its work may be started, the first time included.
    pub attempts_max: u64,
    /// How long it is kept after its end; for ever if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_ms: Option<u64>,
    /// How long an attempt may work; time spent waiting for answers does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How long it waits for an answer.
    #[serde(rename = "input_timeout_ms", default, skip_serializing_if = "Option::is_none")]
    pub answer_timeout_ms: Option<u64>,
    /// What happens when its output reaches the limit.
    #[serde(default, skip_serializing_if = "Overflow::is_default")]
    pub overflow: Overflow,
    /// The caller's own key for this call, so that a repeated call finds the first one's task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<Arc<str>>,
    /// What the caller can be asked.
    #[serde(default)]
    pub accepts: AcceptedQuestions,
    /// Whether the caller waits for a result and knows of no task.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// Whether its caller can find a hidden task by its id.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub findable: bool,
    /// Whether it goes on for a while after its client hung up; the same call finds it again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lingers: bool,
    /// The key by which a call that is the same joins this one, if calls are deduped.
    #[serde(rename = "dedupe", default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Arc<str>>,
    /// The key by which the same call finds it on any node after the client hung up, where nodes share the store.
    #[serde(rename = "linger", default, skip_serializing_if = "Option::is_none")]
    pub linger_key: Option<Arc<str>>,
    /// The session that made it, if one did; its outbox gets the changes.
    #[serde(rename = "follower", default, skip_serializing_if = "Option::is_none")]
    pub outbox: Option<OutboxTarget>,
    /// Data of the code that made it; nothing else reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Payload>,
    /// Whether its output is its result: what it returned but did not write is added at its end, and so is the error if it fails.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_is_result: bool,
    /// Where in a trace the call that made it belongs: all attempts do, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceContext>,
}

impl Spec {
    /// A task of `caller` and `tool`: one attempt, no timeouts, kept for ever, and the caller accepts no questions.
    #[must_use]
    pub fn new(caller: CallerId, tool: &str) -> Self {
        Self {
            caller,
            tool: tool.into(),
            on_interrupt: OnInterrupt::default(),
            attempts_max: 1,
            retention_ms: None,
            timeout_ms: None,
            answer_timeout_ms: None,
            overflow: Overflow::default(),
            idempotency_key: None,
            accepts: AcceptedQuestions::default(),
            hidden: false,
            findable: false,
            lingers: false,
            fingerprint: None,
            linger_key: None,
            outbox: None,
            origin: None,
            output_is_result: false,
            trace: None,
        }
    }
}

impl Spec {
    /// Bytes of its texts.
    pub(super) fn bytes(&self) -> usize {
        let text = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        let origin = self.origin.as_ref().map_or(0, |origin| origin.as_str().len());
        self.caller.as_str().len()
            + self.tool.len()
            + text(&self.idempotency_key)
            + text(&self.fingerprint)
            + text(&self.linger_key)
            + origin
            + self.trace.as_ref().map_or(0, TraceContext::bytes)
    }
}

/// One question and, once it came, its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuestionState {
    /// The question, as the wire will carry it.
    pub request: Payload,
    /// The answer, as the wire brought it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Payload>,
}

/// How much a task has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutputTotals {
    /// The number that the next chunk will get.
    pub next_seq: Seq,
    /// Blocks so far; the next chunk's first block is this plus one.
    pub blocks: u64,
    /// Bytes of all chunks so far, also of those that are no longer kept.
    pub bytes: u64,
}

/// The states that both protocol eras name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// Its work is going on.
    Working,
    /// At least one question is open.
    InputRequired,
    /// It ended with a result, also with one that says `isError`.
    Completed,
    /// It ended with an error of the protocol, not of the tool.
    Failed,
    /// Its caller cancelled it, or the server for its caller.
    Cancelled,
}

impl Status {
    /// Whether this status never changes again.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// As both eras write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Reads what [`as_str`](Self::as_str) writes.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        [Self::Working, Self::InputRequired, Self::Completed, Self::Failed, Self::Cancelled]
            .into_iter()
            .find(|status| status.as_str() == text)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Who waits for a task, where nodes share the store.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Waiting {
    /// The nodes on which calls wait for it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub nodes: BTreeSet<Epoch>,
    /// Since when no call has waited for it, or asked for it. Absent also while its calls wait on a node that is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_at: Option<Timestamp>,
}

/// A task. Only [`evolve`](super::evolve()) changes one.
///
/// Two fields are not part of the stored head, since the store has them elsewhere: `outcome` is the event that ended
/// the task, `output` follows from its last chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// What is fixed about it.
    pub spec: Arc<Spec>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When something that callers can see last changed; chunks do not count.
    pub updated_at: Timestamp,
    /// How many events it has seen.
    pub version: Version,
    /// The last of them that callers can see, chunks aside.
    #[serde(rename = "changed", default)]
    pub visible_version: Version,
    /// The current attempt; output of earlier ones is rejected.
    pub attempt: Attempt,
    /// The start of the server that runs this attempt.
    pub epoch: Epoch,
    /// Where nodes share the store: since when its work waits for a slot of its tool. It has not begun, so a node that has a slot may take
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<Timestamp>,
    /// Who waits for it, if it has a [`linger_key`](Spec::linger_key).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Box<Waiting>>,
    /// When the current attempt times out; absent while it waits for answers or has no timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// What is left of the attempt's time while it waits for answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_left_ms: Option<u64>,
    /// Its last status message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Arc<str>>,
    /// Its last progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Every question it ever asked: keys are never used again.
    #[serde(rename = "inputs", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub questions: BTreeMap<QuestionKey, QuestionState>,
    /// Since when at least one question has been open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<Timestamp>,
    /// The event that holds its last checkpoint.
    #[serde(rename = "checkpoint", default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_version: Option<Version>,
    /// How many checkpoints it saved: only the last is kept, so they do not count as events.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub saves: u64,
    /// About how many bytes its events take, but for chunks and checkpoints.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub log_bytes: u64,
    /// The same of its last checkpoint.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub checkpoint_bytes: u64,
    /// When it ended, and the event that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<(Timestamp, Version)>,
    /// How it ended.
    #[serde(skip)]
    pub outcome: Option<Outcome>,
    /// How much it has written.
    #[serde(skip)]
    pub output: OutputTotals,
}

impl Task {
    /// The nodes on which calls wait for it.
    pub fn awaited_by(&self) -> impl Iterator<Item = Epoch> + '_ {
        self.waiting.iter().flat_map(|waiting| waiting.nodes.iter().copied())
    }

    /// Whether nobody can find it when the server is gone that holds its call: not by an id, not by a key, and not by the state that came
    /// with a question. Its caller will call again.
    #[must_use]
    pub fn is_lost_with_its_call(&self) -> bool {
        let spec = &self.spec;
        let is_found = !spec.hidden || spec.findable || spec.lingers || spec.idempotency_key.is_some() || spec.outbox.is_some();
        !is_found && self.questions.is_empty()
    }

    /// Since when no call has waited for it, or asked for it.
    #[must_use]
    pub fn left_at(&self) -> Option<Timestamp> {
        self.waiting.as_ref()?.left_at
    }

    /// Whether a call that is the same may join it: it runs, and the calls that wait for it do not know it or share it, or no call waits
    /// for it.
    #[must_use]
    pub fn is_joinable(&self) -> bool {
        let runs = self.ended.is_none() && (self.spec.hidden || self.spec.fingerprint.is_some());
        self.spec.linger_key.is_some() && (runs || self.left_at().is_some())
    }

    /// When its work began: the id is made then, and the call may be promoted later.
    #[must_use]
    pub fn began_at(&self) -> Timestamp {
        let id = self.id.as_bytes();
        let millis = i64::from_be_bytes([0, 0, id[0], id[1], id[2], id[3], id[4], id[5]]);
        Timestamp::from_millis(millis).min(self.created_at)
    }

    /// The status, derived: from the outcome, else from the open questions.
    #[must_use]
    pub fn status(&self) -> Status {
        match &self.outcome {
            Some(Outcome::Completed { .. }) => Status::Completed,
            Some(Outcome::Failed(_)) => Status::Failed,
            Some(Outcome::Cancelled { .. }) => Status::Cancelled,
            None if self.asked_at.is_some() => Status::InputRequired,
            None => Status::Working,
        }
    }

    /// Questions that wait for an answer.
    pub fn open_questions(&self) -> impl Iterator<Item = (&QuestionKey, &Payload)> {
        let open = self.outcome.is_none();
        self.questions.iter().filter(move |(_, input)| open && input.answer.is_none()).map(|(key, input)| (key, &input.request))
    }

    /// Bytes of all questions and answers.
    #[must_use]
    pub fn question_bytes(&self) -> u64 {
        let bytes = |input: &QuestionState| input.request.as_str().len() + input.answer.as_ref().map_or(0, |answer| answer.as_str().len());
        self.questions.iter().map(|(key, input)| (key.as_str().len() + bytes(input)) as u64).sum()
    }

    /// Bytes at the beginning of its output that are no longer kept: a chunk that lies within them is gone.
    #[must_use]
    pub fn dropped_bytes(&self, limits: &Limits) -> u64 {
        match self.spec.overflow {
            Overflow::Fail => 0,
            Overflow::DropOldest => self.output.bytes.saturating_sub(limits.task_output_bytes),
        }
    }

    /// About how many bytes it takes where it is stored, with all that happened to it.
    #[must_use]
    pub fn stored_bytes(&self, limits: &Limits) -> u64 {
        let OutputTotals { next_seq, bytes, .. } = self.output;
        let kept = bytes - self.dropped_bytes(limits);
        // The share of chunks that is kept is about that of their bytes.
        let chunks = u128::from(next_seq.0) * u128::from(kept) / u128::from(bytes.max(1));
        let chunks = u64::try_from(chunks).unwrap_or(u64::MAX);
        TASK_BYTES + self.log_bytes + self.checkpoint_bytes + kept + chunks.saturating_mul(CHUNK_BYTES)
    }

    /// How long the task is kept, counted from its creation; `None` is for ever.
    ///
    /// The task is never forgotten earlier: while it runs the value grows in steps of the retention, after its end it is exact.
    #[must_use]
    pub fn ttl(&self, now: Timestamp) -> Option<Duration> {
        let retention = Duration::from_millis(self.spec.retention_ms?.max(1));
        Some(match self.ended {
            Some((at, _)) => at.since(self.created_at) + retention,
            None => {
                let steps = now.since(self.created_at).as_millis() / retention.as_millis() + 1;
                retention.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX))
            }
        })
    }
}
