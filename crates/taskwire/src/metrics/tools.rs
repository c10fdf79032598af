//! The numbers of each tool, found by its name without a lock.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
    time::Duration,
};

use taskwire_core::task::{Outcome, Status};

use super::{
    labels::{Answer, ByLabel, Ending, Era, OTHER},
    values::{Counted, Counter, Gauge, Histogram},
};

/// Tools with numbers of their own. Those of all further ones are added up as `other`, so that labels have a bound.
const TOOLS_MAX: usize = 200;
/// Places in the table: more than there are tools, so that a search is short.
const PLACES: usize = 512;
/// From a tenth of a second to a day, in microseconds.
const DURATIONS: &[u64] = &[
    100_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    900_000_000,
    3_600_000_000,
    14_400_000_000,
    86_400_000_000,
];
/// What a task that has not ended can be.
pub(super) const OPEN_STATES: [Status; 2] = [Status::Working, Status::InputRequired];

/// What is counted of one tool.
#[derive(Debug)]
pub(crate) struct ToolMetrics {
    name: Box<str>,
    /// Tasks that run here, by their status: as in [`OPEN_STATES`].
    pub(super) open: [Gauge; 2],
    pub(super) created: Counter,
    pub(super) ended: ByLabel<Counter>,
    pub(super) durations: Histogram,
    pub(super) calls: [ByLabel<Counter>; 2],
    pub(super) joined: Counter,
    pub(super) holds_expired: Counter,
    pub(super) output_bytes: Counter,
    pub(super) output_chunks: Counter,
    /// Commands that wait for a slot.
    pub(super) waiting: Arc<Gauge>,
}

impl ToolMetrics {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            open: Default::default(),
            created: Counter::default(),
            ended: ByLabel::counters(Ending::LABELS),
            durations: Histogram::of_times(DURATIONS),
            calls: [ByLabel::counters(Answer::LABELS), ByLabel::counters(Answer::LABELS)],
            joined: Counter::default(),
            holds_expired: Counter::default(),
            output_bytes: Counter::default(),
            output_chunks: Counter::default(),
            waiting: Arc::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn task_created(&self) {
        self.created.increment();
    }

    /// A task ended like this, so long after its work began.
    pub(crate) fn task_ended(&self, outcome: &Outcome, took: Duration) {
        let ending = match outcome {
            Outcome::Completed { is_error: false, .. } => Ending::Completed,
            Outcome::Completed { is_error: true, .. } => Ending::ToolError,
            Outcome::Failed(_) => Ending::Failed,
            Outcome::Cancelled { .. } => Ending::Cancelled,
        };
        self.ended.at(ending as usize).increment();
        self.durations.record_time(took);
    }

    /// A chunk of output is durable.
    pub(crate) fn chunk_written(&self, bytes: u64) {
        self.output_chunks.increment();
        self.output_bytes.add(bytes);
    }

    pub(crate) fn call_joined(&self) {
        self.joined.increment();
    }

    pub(crate) fn hold_expired(&self) {
        self.holds_expired.increment();
    }

    /// A command waits for a slot until the result is dropped.
    pub(crate) fn command_waits(&self) -> Counted {
        self.waiting.count()
    }
}

/// All tools whose names were ever asked for. None is ever removed, so a look takes no lock.
#[derive(Debug)]
pub(super) struct ToolTable {
    places: Box<[OnceLock<Arc<ToolMetrics>>]>,
    len: AtomicUsize,
    /// What the tools share that are beyond [`TOOLS_MAX`].
    other: Arc<ToolMetrics>,
    other_is_used: AtomicBool,
}

impl ToolTable {
    pub(super) fn new() -> Self {
        Self {
            places: (0..PLACES).map(|_| OnceLock::new()).collect(),
            len: AtomicUsize::new(0),
            other: Arc::new(ToolMetrics::new(OTHER)),
            other_is_used: AtomicBool::new(false),
        }
    }

    /// The numbers of the tool of this name.
    pub(super) fn get(&self, name: &str) -> &Arc<ToolMetrics> {
        // A tool that is called `other` would be told twice.
        if name != OTHER
            && let Some(tool) = self.find_or_add(name)
        {
            return tool;
        }
        self.other_is_used.store(true, Ordering::Relaxed);
        &self.other
    }

    /// None if the tool is new, and there may be no further one.
    fn find_or_add(&self, name: &str) -> Option<&Arc<ToolMetrics>> {
        let start = hash(name);
        for step in 0..PLACES {
            let place = &self.places[start.wrapping_add(step) % PLACES];
            let tool = match place.get() {
                Some(tool) => tool,
                None => self.add(place, name)?,
            };
            if *tool.name == *name {
                return Some(tool);
            }
        }
        None
    }

    /// Puts a tool into a place that was empty a moment ago, if there may be one more. Another thread may be faster, with another tool.
    fn add<'a>(&self, place: &'a OnceLock<Arc<ToolMetrics>>, name: &str) -> Option<&'a Arc<ToolMetrics>> {
        if self.len.load(Ordering::Relaxed) >= TOOLS_MAX {
            return None;
        }
        let (mut tool, mut is_added) = (None, false);
        if self.len.fetch_add(1, Ordering::Relaxed) < TOOLS_MAX {
            tool = Some(place.get_or_init(|| {
                is_added = true;
                Arc::new(ToolMetrics::new(name))
            }));
        }
        if !is_added {
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
        tool
    }

    /// All of them, in the order of their names; `other` comes last, if it was needed.
    pub(super) fn all(&self) -> Vec<&ToolMetrics> {
        let mut all: Vec<&ToolMetrics> = self.places.iter().filter_map(|place| place.get().map(|tool| &**tool)).collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all.extend(self.other_is_used.load(Ordering::Relaxed).then_some(&*self.other));
        all
    }
}

/// FNV-1a: names are short, and come from whoever offers the tools.
fn hash(name: &str) -> usize {
    name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)) as usize
}

/// A task that runs here, counted under its status until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenTask {
    tool: Arc<ToolMetrics>,
    state: usize,
}

impl OpenTask {
    pub(super) fn new(tool: Arc<ToolMetrics>, status: Status) -> Self {
        let state = state_of(status);
        tool.open[state].add(1);
        Self { tool, state }
    }

    pub(crate) fn set_status(&mut self, status: Status) {
        let state = state_of(status);
        if state != self.state {
            self.tool.open[self.state].add(-1);
            self.tool.open[state].add(1);
            self.state = state;
        }
    }
}

impl Drop for OpenTask {
    fn drop(&mut self) {
        self.tool.open[self.state].add(-1);
    }
}

/// The place of a status in [`OPEN_STATES`]. A task that has just ended counts as one that works, for as long as it is stopped.
fn state_of(status: Status) -> usize {
    usize::from(status == Status::InputRequired)
}

/// Counts one call when it is over, by how it was answered first. A request that is no call counts nothing.
#[derive(Debug)]
pub(crate) struct CallCount {
    era: Era,
    tool: OnceLock<Arc<ToolMetrics>>,
    answer: AtomicU8,
}

impl CallCount {
    pub(crate) fn new(era: Era) -> Self {
        Self { era, tool: OnceLock::new(), answer: AtomicU8::new(Answer::Gone as u8) }
    }

    /// The request is a call of this tool.
    pub(super) fn begin(&self, tool: &Arc<ToolMetrics>) {
        let _ = self.tool.set(tool.clone());
    }

    /// The call is answered like this, if it was not answered before.
    pub(crate) fn answered(&self, answer: Answer) {
        let _ = self.answer.compare_exchange(Answer::Gone as u8, answer as u8, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Drop for CallCount {
    fn drop(&mut self) {
        if let Some(tool) = self.tool.get() {
            tool.calls[self.era as usize].at(usize::from(*self.answer.get_mut())).increment();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_other(tools: &ToolTable, name: &str) -> bool {
        Arc::ptr_eq(tools.get(name), &tools.other)
    }

    #[test]
    fn a_tool_is_found_again_by_its_name_and_labels_have_a_bound() {
        let tools = ToolTable::new();
        for round in 1..=2 {
            for n in 0..TOOLS_MAX {
                let name = format!("tool_{n}");
                tools.get(&name).created.increment();
                assert_eq!((&*tools.get(&name).name, tools.get(&name).created.get()), (&*name, round));
            }
        }
        assert_eq!(tools.all().len(), TOOLS_MAX, "nothing is `other` yet");
        assert!(is_other(&tools, "one_more") && is_other(&tools, "and_another"));
        assert!(!is_other(&tools, "tool_7"), "those that are there stay");
        let names: Vec<&str> = tools.all().iter().map(|tool| &*tool.name).collect();
        assert_eq!((names.len(), names[TOOLS_MAX]), (TOOLS_MAX + 1, OTHER));
        assert!(names[..TOOLS_MAX].is_sorted());
    }

    #[test]
    fn a_tool_that_is_called_other_is_told_once() {
        let tools = ToolTable::new();
        assert!(is_other(&tools, OTHER));
        assert_eq!(tools.all().len(), 1);
    }

    #[test]
    fn many_threads_that_ask_for_the_same_names_get_the_same_tools() {
        let tools = ToolTable::new();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..100).for_each(|n| tools.get(&format!("t{n}")).created.increment()));
            }
        });
        let counts: Vec<u64> = tools.all().iter().map(|tool| tool.created.get()).collect();
        assert_eq!(counts, [8; 100]);
        assert_eq!(tools.len.load(Ordering::Relaxed), 100, "each counts once");
    }

    #[test]
    fn an_open_task_is_counted_under_the_status_that_it_has() {
        let tool = Arc::new(ToolMetrics::new("t"));
        let open = || tool.open.each_ref().map(Gauge::get);
        let mut task = OpenTask::new(tool.clone(), Status::Working);
        let asks = OpenTask::new(tool.clone(), Status::InputRequired);
        assert_eq!(open(), [1, 1]);
        task.set_status(Status::InputRequired);
        assert_eq!(open(), [0, 2]);
        task.set_status(Status::Completed);
        assert_eq!(open(), [1, 1], "until it is stopped");
        drop((task, asks));
        assert_eq!(open(), [0, 0]);
    }

    #[test]
    fn a_call_counts_once_by_its_first_answer() {
        let tool = Arc::new(ToolMetrics::new("t"));
        let counted = |era: Era, answer: Answer| tool.calls[era as usize].at(answer as usize).get();
        let call = |answers: &[Answer]| {
            let call = CallCount::new(Era::Legacy);
            call.begin(&tool);
            answers.iter().for_each(|answer| call.answered(*answer));
        };
        call(&[Answer::Held, Answer::Error]);
        call(&[]);
        CallCount::new(Era::Legacy).answered(Answer::Task);
        assert_eq!((counted(Era::Legacy, Answer::Held), counted(Era::Legacy, Answer::Error)), (1, 0));
        assert_eq!(counted(Era::Legacy, Answer::Gone), 1, "who was never answered has gone");
        assert_eq!(counted(Era::Legacy, Answer::Task), 0, "that was no call of a tool");
        assert_eq!(counted(Era::Modern, Answer::Held), 0);
        tool.task_ended(&Outcome::Cancelled { reason: None }, Duration::from_secs(3));
        assert_eq!(tool.ended.at(Ending::Cancelled as usize).get(), 1);
    }
}
