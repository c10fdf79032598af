//! What goes wrong in a real world, and when: that follows from the seed alone.

use std::time::Duration;

use super::NODES;
use crate::{random::Dice, store::CommitFault};

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A node is killed.
    Kill,
    /// This happens to the next commit of a node.
    Commit(CommitFault),
    /// A node shuts down.
    Leave,
    /// A node is stopped, and goes on later.
    Stop,
    /// A node cannot reach the database.
    CutOff,
    /// No node can.
    CutOffAll,
    /// The clock of a machine is wrong from now on.
    ClockJump,
    /// All connections of a node end. It can make new ones.
    EndConnections,
    /// The database ends, and is started again later.
    EndDatabase,
}

/// How long a node is away that ended, in milliseconds.
const AWAY: (u64, u64) = (200, 2_000);
/// A moment.
const SHORT: (u64, u64) = (50, 2_000);
/// Longer than a lease lasts, and than it takes another node to notice that.
const LONG: (u64, u64) = (7_000, 10_000);
/// Milliseconds by which a clock can be wrong: an hour, to either side.
const CLOCK: (u64, u64) = (0, 7_200_000);

/// What is dealt before anything is dealt again, and how long it lasts, in milliseconds.
const DECK: [(Fault, (u64, u64)); 17] = [
    (Fault::Kill, AWAY),
    (Fault::Commit(CommitFault::CrashBefore), AWAY),
    (Fault::Commit(CommitFault::CrashWithin), AWAY),
    (Fault::Commit(CommitFault::CrashAfter), AWAY),
    // Of some of them the answer is lost, as it should be.
    (Fault::Commit(CommitFault::CutOff), SHORT),
    (Fault::Commit(CommitFault::CutOff), SHORT),
    (Fault::Commit(CommitFault::CutOff), SHORT),
    (Fault::Leave, AWAY),
    (Fault::Stop, SHORT),
    (Fault::Stop, LONG),
    (Fault::Stop, LONG),
    (Fault::CutOff, SHORT),
    (Fault::CutOff, LONG),
    (Fault::CutOffAll, SHORT),
    (Fault::ClockJump, CLOCK),
    (Fault::EndConnections, SHORT),
    (Fault::EndDatabase, (0, 7_000)),
];

/// Worlds that go on for less than this are dealt all of it, too, with less time between.
const LONG_WORLD: Duration = Duration::from_secs(60);
/// From one fault to the next, in milliseconds.
const GAP: (u64, u64) = (1_000, 3_000);
const GAP_IN_SHORT_WORLDS: (u64, u64) = (600, 1_600);
/// When the first one comes.
const FIRST_AT: i64 = 1_500;

/// One thing that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) fault: Fault,
    /// Which node it happens to. If that one does not run just now, it is the next one that does.
    pub(crate) node: usize,
    /// How long it lasts, or how far it goes.
    pub(crate) millis: u64,
}

/// Deals what goes wrong.
#[derive(Debug)]
pub(crate) struct Plan {
    dice: Dice,
    deck: Vec<(Fault, (u64, u64))>,
    gap: (u64, u64),
    next_at: i64,
}

impl Plan {
    /// That of a world that goes on for so long.
    pub(crate) fn new(dice: Dice, span: Duration) -> Self {
        let gap = if span < LONG_WORLD { GAP_IN_SHORT_WORLDS } else { GAP };
        Self { dice, deck: Vec::new(), gap, next_at: FIRST_AT }
    }

    /// What goes wrong next, if it is time for that.
    pub(crate) fn due(&mut self, now: i64) -> Option<Planned> {
        if now < self.next_at {
            return None;
        }
        if self.deck.is_empty() {
            self.deck = DECK.to_vec();
            self.dice.shuffle(&mut self.deck);
        }
        let (fault, (shortest, longest)) = self.deck.pop()?;
        let node = usize::try_from(self.dice.below(NODES as u64)).unwrap_or(0);
        let millis = self.dice.between(shortest, longest);
        self.next_at += i64::try_from(self.dice.between(self.gap.0, self.gap.1)).unwrap_or(0);
        Some(Planned { fault, node, millis })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is dealt within so many milliseconds of a short world, when somebody looks so often.
    fn dealt(seed: u64, millis: i64, step: usize) -> Vec<Planned> {
        let mut plan = Plan::new(Dice::new(seed), Duration::from_secs(30));
        (0..millis).step_by(step).filter_map(|now| plan.due(now)).collect()
    }

    #[test]
    fn a_seed_gives_one_plan_however_often_the_world_looks() {
        let first = |seed, step| dealt(seed, 200_000, step).into_iter().take(100).collect::<Vec<_>>();
        assert_eq!(first(7, 1).len(), 100);
        assert_eq!(first(7, 1), first(7, 100));
        assert_ne!(first(7, 1), first(8, 1));
    }

    #[test]
    fn all_of_it_goes_wrong_within_half_a_minute() {
        for seed in 0..100 {
            let faults: Vec<Fault> = dealt(seed, 30_000, 10).iter().map(|planned| planned.fault).collect();
            assert!(DECK.iter().all(|(fault, _)| faults.contains(fault)), "seed {seed}: {faults:?}");
        }
    }
}
