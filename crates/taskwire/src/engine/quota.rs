//! What there is room for: how much each caller has stored, and how much the disk still takes.
//!
//! What a caller has follows from its tasks (`Task::stored_bytes`): it is read once, and from then on each decision adds the
//! difference that it makes. At its bound nothing is begun and work adds nothing more, but it can end.

use std::collections::HashMap;

use taskwire_core::{
    CallerId, Limits,
    task::{Command, Reject},
};

use crate::store::Usage;

/// What is stored is written twice: to the log of the database, then to its file.
const TIMES_WRITTEN: u64 = 2;

const TOO_MANY: &str = "too many of your tasks are still running";
const TOO_MUCH: &str = "your tasks take too many bytes in the store, ended ones included until they are forgotten; \
                        other callers are not affected";
const DISK_SHORT: &str = "the server's disk has less free space than it must keep, so try again later";

/// Which part of the disk's reserve must be left after a command that makes a task, that adds to one, and that ends one or answers it.
const CREATE_DIVISOR: u64 = 1;
const ADD_DIVISOR: u64 = 2;
const END_DIVISOR: u64 = 4;

/// The part that goes with a command; nothing for what is small and always done.
const fn reserve_divisor(command: &Command) -> Option<u64> {
    match command {
        Command::Create(_) => Some(CREATE_DIVISOR),
        Command::Append { .. } | Command::Save { .. } | Command::ReportStatus { .. } | Command::Ask { .. } => Some(ADD_DIVISOR),
        Command::Finish { .. } | Command::Answer(_) => Some(END_DIVISOR),
        Command::Cancel { .. } | Command::Tick | Command::Recover(_) => None,
    }
}

#[derive(Debug, Default)]
pub(super) struct Quota {
    used: HashMap<CallerId, Usage>,
    /// What the disk takes, after all that was decided in this batch; nothing if that is not known or does not matter.
    disk: Option<u64>,
    /// Whether it had too little for new tasks.
    disk_short: bool,
}

impl Quota {
    pub(super) fn new(used: Vec<(CallerId, Usage)>) -> Self {
        Self { used: used.into_iter().collect(), ..Self::default() }
    }

    /// A batch begins, and the disk has so much room.
    pub(super) fn begin_batch(&mut self, free: Option<u64>, limits: &Limits) {
        let reserve = limits.disk_reserve_bytes;
        self.disk = free.filter(|_| reserve > 0);
        let short = self.disk.is_some_and(|free| free < reserve);
        match (std::mem::replace(&mut self.disk_short, short), short) {
            (false, true) => tracing::warn!(free, reserve, "the disk is nearly full: no task is made until there is room"),
            (true, false) => tracing::info!(free, reserve, "the disk has room again"),
            _ => {}
        }
    }

    /// Whether a command may do what it leads to: its task counted as `was`, and would as `is`.
    pub(super) fn admit(&self, caller: &CallerId, command: &Command, was: Usage, is: Usage, limits: &Limits) -> Result<(), Reject> {
        let used = self.used.get(caller).copied().unwrap_or_default();
        if is.open > was.open && used.open >= limits.tasks_per_caller {
            return Err(Reject::Limit { what: TOO_MANY, max: limits.tasks_per_caller, key: "tasks_per_caller" });
        }
        let grows = is.bytes.saturating_sub(was.bytes);
        let Some(part) = reserve_divisor(command).filter(|_| grows > 0) else { return Ok(()) };
        if part != END_DIVISOR && used.bytes.saturating_add(grows) > limits.stored_bytes_per_caller {
            return Err(Reject::Limit { what: TOO_MUCH, max: limits.stored_bytes_per_caller, key: "stored_bytes_per_caller" });
        }
        let left = self.disk.map(|disk| disk.saturating_sub(grows.saturating_mul(TIMES_WRITTEN)));
        if left.is_some_and(|left| left < limits.disk_reserve_bytes / part) {
            return Err(Reject::Limit { what: DISK_SHORT, max: limits.disk_reserve_bytes, key: "disk_reserve_bytes" });
        }
        Ok(())
    }

    /// A task counts as `is` from now on, and no longer as `was`.
    pub(super) fn record_change(&mut self, caller: &CallerId, was: Usage, is: Usage) {
        if was == is {
            return;
        }
        let used = self.used.entry(caller.clone()).or_default();
        used.open = (used.open + is.open).saturating_sub(was.open);
        used.bytes = (used.bytes + is.bytes).saturating_sub(was.bytes);
        if *used == Usage::default() {
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

    /// The key of the bound that is reached, if one is.
    fn reached(room: &Quota, caller: &str, command: &Command, was: Usage, is: Usage) -> Option<&'static str> {
        match room.admit(&CallerId::new(caller), command, was, is, &LIMITS) {
            Ok(()) => None,
            Err(Reject::Limit { key, .. }) => Some(key),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_caller_at_its_bound_adds_nothing_more_and_can_end_what_it_began() {
        let (me, mut room) = (CallerId::new("me"), Quota::new(vec![(CallerId::new("me"), ended(700))]));
        room.record_change(&me, NOTHING, open(200));
        assert_eq!(reached(&room, "me", &append(), open(200), open(300)), None, "up to the last byte");
        assert_eq!(reached(&room, "me", &append(), open(200), open(301)), Some("stored_bytes_per_caller"));
        assert_eq!(reached(&room, "me", &append(), open(200), open(200)), None, "what makes it no larger is taken");
        assert_eq!(reached(&room, "you", &append(), NOTHING, open(1_000)), None, "another has room of its own");
        for settles in [finish(), Command::Answer(vec![]), Command::Cancel { reason: None }, Command::Tick] {
            assert_eq!(reached(&room, "me", &settles, open(200), ended(5_000)), None, "{settles:?}");
        }
        room.record_change(&me, open(200), ended(5_000));
        assert_eq!(reached(&room, "me", &append(), NOTHING, open(1)), Some("stored_bytes_per_caller"), "ended tasks count");
        room.record_change(&me, ended(5_000), NOTHING);
        room.record_change(&me, ended(700), NOTHING);
        assert!(room.used.is_empty(), "nothing is left of what is forgotten: {room:?}");
    }

    #[test]
    fn a_short_disk_is_left_to_what_ends_work_and_last_to_what_is_small() {
        let mut room = Quota::default();
        for (free, refused) in [
            (420, [false; 3]),
            (419, [true, false, false]),
            (220, [true, false, false]),
            (219, [true, true, false]),
            (120, [true, true, false]),
            (119, [true; 3]),
            (0, [true; 3]),
        ] {
            room.begin_batch(Some(free), &LIMITS);
            assert_eq!(room.disk_short, free < 400);
            let is_refused = |command: &Command| reached(&room, "me", command, open(10), open(20)) == Some("disk_reserve_bytes");
            assert_eq!([create(), append(), finish()].each_ref().map(is_refused), refused, "{free}");
            assert!(!is_refused(&Command::Cancel { reason: None }) && !is_refused(&Command::Tick), "{free}");
        }
        room.begin_batch(Some(240), &LIMITS);
        room.record_change(&CallerId::new("me"), NOTHING, open(11));
        assert_eq!(reached(&room, "me", &append(), NOTHING, open(10)), Some("disk_reserve_bytes"), "what was decided before takes room");
        for unknown in [(None, LIMITS), (Some(0), Limits { disk_reserve_bytes: 0, ..LIMITS })] {
            room.begin_batch(unknown.0, &unknown.1);
            assert_eq!(room.disk, None);
            assert_eq!(reached(&room, "me", &append(), NOTHING, open(10)), None);
        }
    }

    #[test]
    fn open_tasks_are_counted_apart_from_bytes() {
        let (me, mut room) = (CallerId::new("me"), Quota::default());
        let new = |room: &Quota| reached(room, "me", &Command::Tick, NOTHING, open(1));
        room.record_change(&me, NOTHING, open(1));
        assert_eq!(new(&room), None);
        room.record_change(&me, NOTHING, open(1));
        assert_eq!(new(&room), Some("tasks_per_caller"));
        room.record_change(&me, open(1), ended(1));
        assert_eq!(new(&room), None);
    }
}
