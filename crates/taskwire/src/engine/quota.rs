//! Quotas: what each caller has stored, what the disk still takes, and whether a command may add to it.
//!
//! The usage of callers (`Task::stored_bytes`) is read once; from then on each decision adds its difference. At the limit no task
//! is made and none grows, but running ones can end.

use std::collections::HashMap;

use taskwire_core::{
    CallerId, Limits,
    task::{Command, Reject},
};

use crate::store::Usage;

/// What is stored is written twice: to the WAL, then to the database.
const TIMES_WRITTEN: u64 = 2;

const TOO_MANY: &str = "too many of your tasks are still running";
const TOO_MUCH: &str = "your tasks take too many bytes in the store, ended ones included until they are forgotten; \
                        other callers are not affected";
const DISK_SHORT: &str = "the server's disk has less free space than it must keep, so try again later";

/// The reserve of the disk divided by this must stay free after a command that makes a task, adds to one, or ends or answers one.
const CREATE_DIVISOR: u64 = 1;
const ADD_DIVISOR: u64 = 2;
const END_DIVISOR: u64 = 4;

/// The divisor of a command; `None` for commands that are small and always carried out.
const fn reserve_divisor(command: &Command) -> Option<u64> {
    match command {
        Command::Create(_) => Some(CREATE_DIVISOR),
        Command::Append { .. } | Command::Save { .. } | Command::ReportStatus { .. } | Command::Ask { .. } => Some(ADD_DIVISOR),
        Command::Finish { .. } | Command::Answer(_) => Some(END_DIVISOR),
        Command::Cancel { .. }
        | Command::Join { .. }
        | Command::Leave { .. }
        | Command::Touch
        | Command::Abandon { .. }
        | Command::Tick
        | Command::Queue
        | Command::Dequeue
        | Command::TakeQueued { .. }
        | Command::Recover { .. } => None,
    }
}

/// How many tasks of one tool a process may run at a time; any number if absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskLimits {
    /// Of all callers together.
    pub all: Option<u64>,
    /// Of one caller.
    pub per_caller: Option<u64>,
}

impl TaskLimits {
    /// Whether there may be one more, where there are so many of all callers and of this one.
    pub(super) fn admit(self, all: u64, of_caller: u64) -> Result<(), Reject> {
        for (max, count, what, key) in [
            (self.per_caller, of_caller, "too many of your tasks of this tool are still running", "tasks_per_caller_max"),
            (self.all, all, "too many tasks of this tool are still running", "tasks_max"),
        ] {
            if let Some(max) = max.filter(|max| count >= *max) {
                return Err(Reject::Limit { what, max, key });
            }
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(super) struct Quota {
    used: HashMap<CallerId, Usage>,
    /// Whether other nodes change what callers have: then `used` has only those that this batch looked up.
    is_shared: bool,
    /// Free bytes of the disk after what this batch decided; `None` if unknown or if there is no reserve.
    disk: Option<u64>,
    /// Whether the disk has too little space for new tasks.
    disk_short: bool,
}

impl Quota {
    pub(super) fn new(used: Vec<(CallerId, Usage)>) -> Self {
        Self { used: used.into_iter().collect(), ..Self::default() }
    }

    /// For a store that nodes share.
    pub(super) fn shared() -> Self {
        Self { is_shared: true, ..Self::default() }
    }

    pub(super) fn knows(&self, caller: &CallerId) -> bool {
        self.used.contains_key(caller)
    }

    pub(super) fn set_usage(&mut self, caller: &CallerId, usage: Usage) {
        self.used.insert(caller.clone(), usage);
    }

    /// Begins a batch; the disk has `free` bytes.
    pub(super) fn begin_batch(&mut self, free: Option<u64>, limits: &Limits) {
        if self.is_shared {
            self.used.clear();
        }
        let reserve = limits.disk_reserve_bytes;
        self.disk = free.filter(|_| reserve > 0);
        let short = self.disk.is_some_and(|free| free < reserve);
        match (std::mem::replace(&mut self.disk_short, short), short) {
            (false, true) => tracing::warn!(free, reserve, "the disk is nearly full: no task is made until there is room"),
            (true, false) => tracing::info!(free, reserve, "the disk has room again"),
            _ => {}
        }
    }

    /// Whether a command may be carried out that changes the usage of its task from `was` to `is`.
    pub(super) fn admit(&self, caller: &CallerId, command: &Command, was: Usage, is: Usage, limits: &Limits) -> Result<(), Reject> {
        let used = self.used.get(caller).copied().unwrap_or_default();
        if is.open > was.open && used.open >= limits.tasks_per_caller {
            return Err(Reject::Limit { what: TOO_MANY, max: limits.tasks_per_caller, key: "tasks_per_caller" });
        }
        let grows = is.bytes.saturating_sub(was.bytes);
        let Some(divisor) = reserve_divisor(command).filter(|_| grows > 0) else { return Ok(()) };
        if divisor != END_DIVISOR && used.bytes.saturating_add(grows) > limits.stored_bytes_per_caller {
            return Err(Reject::Limit { what: TOO_MUCH, max: limits.stored_bytes_per_caller, key: "stored_bytes_per_caller" });
        }
        let left = self.disk.map(|disk| disk.saturating_sub(grows.saturating_mul(TIMES_WRITTEN)));
        if left.is_some_and(|left| left < limits.disk_reserve_bytes / divisor) {
            return Err(Reject::Limit { what: DISK_SHORT, max: limits.disk_reserve_bytes, key: "disk_reserve_bytes" });
        }
        Ok(())
    }

    /// A task counts as `is` from now on, and no longer as `was`.
    pub(super) fn record_change(&mut self, caller: &CallerId, was: Usage, is: Usage) {
        if was == is {
            return;
        }
        if self.is_shared && !self.knows(caller) {
            return;
        }
        let used = self.used.entry(caller.clone()).or_default();
        used.open = (used.open + is.open).saturating_sub(was.open);
        used.bytes = (used.bytes + is.bytes).saturating_sub(was.bytes);
        if *used == Usage::default() && !self.is_shared {
            self.used.remove(caller);
        }
        let grows = is.bytes.saturating_sub(was.bytes);
        self.disk = self.disk.map(|disk| disk.saturating_sub(grows.saturating_mul(TIMES_WRITTEN)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use taskwire_core::{
        Epoch,
        task::{Blocks, NewTask, Outcome, Spec},
    };

    use super::*;

    const LIMITS: Limits = Limits { tasks_per_caller: 2, stored_bytes_per_caller: 1_000, disk_reserve_bytes: 400, ..Limits::DEFAULT };

    fn open(bytes: u64) -> Usage {
        Usage { open: 1, bytes }
    }

    fn ended(bytes: u64) -> Usage {
        Usage { open: 0, bytes }
    }

    const NOTHING: Usage = Usage { open: 0, bytes: 0 };

    fn create() -> Command {
        let spec = Arc::new(Spec::new(CallerId::new("me"), "tool"));
        Command::Create(NewTask::new(spec, serde_json::json!({}).into(), Epoch(1)))
    }

    fn append() -> Command {
        Command::Append { chunks: vec![Blocks::of(&[])] }
    }

    fn finish() -> Command {
        Command::finish(Outcome::Cancelled { reason: None })
    }

    /// The key of the limit that is reached, if one is.
    fn reached(quota: &Quota, caller: &str, command: &Command, was: Usage, is: Usage) -> Option<&'static str> {
        match quota.admit(&CallerId::new(caller), command, was, is, &LIMITS) {
            Ok(()) => None,
            Err(Reject::Limit { key, .. }) => Some(key),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_caller_at_its_bound_adds_nothing_more_and_can_end_what_it_began() {
        let (me, mut quota) = (CallerId::new("me"), Quota::new(vec![(CallerId::new("me"), ended(700))]));
        quota.record_change(&me, NOTHING, open(200));
        assert_eq!(reached(&quota, "me", &append(), open(200), open(300)), None, "up to the last byte");
        assert_eq!(reached(&quota, "me", &append(), open(200), open(301)), Some("stored_bytes_per_caller"));
        assert_eq!(reached(&quota, "me", &append(), open(200), open(200)), None, "what makes it no larger is taken");
        assert_eq!(reached(&quota, "you", &append(), NOTHING, open(1_000)), None, "another has room of its own");
        for settles in [finish(), Command::Answer(vec![]), Command::Cancel { reason: None }, Command::Tick] {
            assert_eq!(reached(&quota, "me", &settles, open(200), ended(5_000)), None, "{settles:?}");
        }
        quota.record_change(&me, open(200), ended(5_000));
        assert_eq!(reached(&quota, "me", &append(), NOTHING, open(1)), Some("stored_bytes_per_caller"), "ended tasks count");
        quota.record_change(&me, ended(5_000), NOTHING);
        quota.record_change(&me, ended(700), NOTHING);
        assert!(quota.used.is_empty(), "nothing is left of what is forgotten: {quota:?}");
    }

    #[test]
    fn a_short_disk_is_left_to_what_ends_work_and_last_to_what_is_small() {
        let mut quota = Quota::default();
        for (free, refused) in [
            (420, [false; 3]),
            (419, [true, false, false]),
            (220, [true, false, false]),
            (219, [true, true, false]),
            (120, [true, true, false]),
            (119, [true; 3]),
            (0, [true; 3]),
        ] {
            quota.begin_batch(Some(free), &LIMITS);
            assert_eq!(quota.disk_short, free < 400);
            let is_refused = |command: &Command| reached(&quota, "me", command, open(10), open(20)) == Some("disk_reserve_bytes");
            assert_eq!([create(), append(), finish()].each_ref().map(is_refused), refused, "{free}");
            assert!(!is_refused(&Command::Cancel { reason: None }) && !is_refused(&Command::Tick), "{free}");
        }
        quota.begin_batch(Some(240), &LIMITS);
        quota.record_change(&CallerId::new("me"), NOTHING, open(11));
        assert_eq!(reached(&quota, "me", &append(), NOTHING, open(10)), Some("disk_reserve_bytes"), "what was decided before takes room");
        for unknown in [(None, LIMITS), (Some(0), Limits { disk_reserve_bytes: 0, ..LIMITS })] {
            quota.begin_batch(unknown.0, &unknown.1);
            assert_eq!(quota.disk, None);
            assert_eq!(reached(&quota, "me", &append(), NOTHING, open(10)), None);
        }
    }

    #[test]
    fn the_limits_of_a_tool_count_for_a_caller_and_for_all() {
        let key = |limits: TaskLimits, all, of_caller| match limits.admit(all, of_caller) {
            Ok(()) => None,
            Err(Reject::Limit { key, .. }) => Some(key),
            Err(other) => panic!("{other:?}"),
        };
        let limits = TaskLimits { all: Some(3), per_caller: Some(2) };
        assert_eq!([key(limits, 2, 1), key(limits, 2, 2), key(limits, 3, 1)], [None, Some("tasks_per_caller_max"), Some("tasks_max")]);
        assert_eq!(key(TaskLimits::default(), u64::MAX, u64::MAX), None);
    }

    #[test]
    fn open_tasks_are_counted_apart_from_bytes() {
        let (me, mut quota) = (CallerId::new("me"), Quota::default());
        let new = |quota: &Quota| reached(quota, "me", &Command::Tick, NOTHING, open(1));
        quota.record_change(&me, NOTHING, open(1));
        assert_eq!(new(&quota), None);
        quota.record_change(&me, NOTHING, open(1));
        assert_eq!(new(&quota), Some("tasks_per_caller"));
        quota.record_change(&me, open(1), ended(1));
        assert_eq!(new(&quota), None);
    }
}
