//! A store with 100,000 tasks, as a server that was killed would have left it.

use std::{path::Path, sync::Arc};

use futures_util::FutureExt;
use serde_json::json;
use taskwire::{
    clock::{Clock, SystemClock},
    store::{SqliteStore, Store, TaskWrite, Written},
    tool::Question,
};
use taskwire_core::{
    Attempt, CallerId, Epoch, Limits, Payload, QuestionKey, TaskId, Timestamp, Version,
    task::{AcceptedQuestions, Authority, Command, Event, NewTask, OnInterrupt, Outcome, Spec, Task, create, decide, evolve},
};

use crate::{dice::Dice, model::Kind};

pub(crate) const TASKS: u64 = 100_000;
/// Open tasks at the end that have asked something and must not be run again.
const SIGNS: u64 = 100;
/// Tasks that are stored together.
const BATCH: u64 = 1_000;
const WEEK_MS: u64 = 7 * 24 * 3_600_000;

/// The stored tasks that a test asks for: id and number.
#[derive(Debug, Default)]
pub(crate) struct FilledStore {
    pub(crate) ended: Vec<(String, u64)>,
    /// Open, without a question, must not be run again: 900.
    pub(crate) waits: Vec<(String, u64)>,
    /// Open, with a question, must not be run again: 100, the last to be taken over.
    pub(crate) signs: Vec<(String, u64)>,
    /// Open, to be run again: 100.
    pub(crate) steps: Vec<(String, u64)>,
}

/// Fills a new store in `dir` and closes it.
pub(crate) fn fill(dir: &Path, dice: &mut Dice) -> FilledStore {
    let mut store = SqliteStore::open(dir).expect("a new store");
    let start = SystemClock.now().as_millis() - i64::try_from(TASKS).expect("a small number");
    let mut filled = FilledStore::default();
    for batch in 0..TASKS / BATCH {
        let writes: Vec<TaskWrite> = (batch * BATCH..(batch + 1) * BATCH)
            .map(|n| {
                // One a millisecond: the order of their numbers is that of their ids.
                let at = Timestamp::from_millis(start + i64::try_from(n).expect("a small number"));
                let id = TaskId::new(at, dice.bytes());
                filled.list(n).push((id.to_string(), n));
                write(id, kind(n), n, store.epoch(), at)
            })
            .collect();
        let written = store.commit(&writes, &[]).now_or_never().expect("it does not wait").expect("the tasks are stored");
        assert!(written.iter().all(|written| *written == Written::Done), "{written:?}");
    }
    filled
}

/// Which kind call `n` is; a `quick` has ended, any other is open.
const fn kind(n: u64) -> Kind {
    if n >= TASKS - SIGNS {
        Kind::Sign
    } else if n % 999 == 1 {
        Kind::Steps
    } else if n.is_multiple_of(111) {
        Kind::Wait
    } else {
        Kind::Quick
    }
}

impl FilledStore {
    fn list(&mut self, n: u64) -> &mut Vec<(String, u64)> {
        match kind(n) {
            Kind::Sign => &mut self.signs,
            Kind::Wait => &mut self.waits,
            Kind::Steps => &mut self.steps,
            _ => &mut self.ended,
        }
    }
}

fn spec(kind: Kind) -> Arc<Spec> {
    Arc::new(Spec {
        on_interrupt: if kind.is_retried() { OnInterrupt::Retry } else { OnInterrupt::Fail },
        attempts_max: 1_000_000,
        retention_ms: Some(WEEK_MS),
        answer_timeout_ms: Some(WEEK_MS),
        accepts: AcceptedQuestions { elicit_form: true, ..AcceptedQuestions::default() },
        ..Spec::new(CallerId::new("local"), kind.tool())
    })
}

/// Everything that has happened to the task, in one write.
fn write(id: TaskId, kind: Kind, n: u64, epoch: Epoch, at: Timestamp) -> TaskWrite {
    let request = json!({ "n": n }).into();
    let new = NewTask::new(spec(kind), request, epoch);
    let mut events = decide(None, &Authority::Engine, &Command::Create(new), at, &Limits::DEFAULT).expect("a new task");
    let mut task = create(id, events.first().expect("a task begins with its creation"), at);
    if let Some(command) = then(kind, n) {
        events.extend(apply(&mut task, &command, at));
    }
    let stored_bytes = task.stored_bytes(&Limits::DEFAULT);
    TaskWrite {
        task: Arc::new(task),
        first_version: Version(1),
        at,
        events,
        stale_checkpoints: vec![],
        dropped_bytes: 0,
        outbox_max: 1,
        stored_bytes,
    }
}

/// What its first attempt did before the server was killed.
fn then(kind: Kind, n: u64) -> Option<Command> {
    match kind {
        Kind::Quick => {
            let result: Payload = json!({"content": [{"type": "text", "text": format!("quick-{n}")}]}).into();
            Some(Command::finish(Outcome::Completed { result, is_error: false }))
        }
        Kind::Sign => {
            let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
            let request = Question::form("What is your name?", schema).into_payload();
            Some(Command::Ask { key: QuestionKey::new("name"), request })
        }
        _ => None,
    }
}

fn apply(task: &mut Task, command: &Command, at: Timestamp) -> Vec<Event> {
    let by = Authority::Attempt(Attempt(1));
    let events = decide(Some(&*task), &by, command, at, &Limits::DEFAULT).expect("its first attempt may do that");
    events.iter().for_each(|event| evolve(task, event, at));
    events
}
