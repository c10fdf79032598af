//! Nodes that share a memory, at a time that the test moves.

use std::sync::atomic::AtomicUsize;

use super::*;
use crate::store::Memory;

const TASKS: usize = 20;

/// Work that another node may go on with when nothing of it is left here. Counts how often it is asked.
#[derive(Default)]
struct Orphaned(AtomicUsize);

impl Work for Orphaned {
    fn can_take(&self, _: &Task, _: Option<&Payload>) -> Takeover {
        self.0.fetch_add(1, Ordering::Relaxed);
        Takeover::WhenOrphaned
    }

    fn run(&self, _: Arc<Run>) -> BoxFuture<'static, RunEnd> {
        Box::pin(std::future::pending())
    }
}

/// A node that is gone and has left tasks, and one that is to take them.
struct Pair {
    clock: ManualClock,
    other: Engine,
    work: Arc<Orphaned>,
    tasks: Vec<TaskId>,
}

impl Pair {
    /// With so many seconds for which commands of each of them go on.
    async fn new(lost: u64, other: u64) -> Self {
        let clock = clock();
        let memory = Memory::with_clock(Arc::new(clock.clone()));
        let node = |name: &str, orphan_after: u64| {
            let config = Config { orphan_after: Duration::from_secs(orphan_after), ..config() };
            engine_at(&clock, memory.open_node(name), config)
        };
        let (lost, other, work) = (node("lost", lost), node("other", other), Arc::new(Orphaned::default()));
        other.set_work(work.clone());
        other.recover();
        let mut tasks = Vec::new();
        for _ in 0..TASKS {
            tasks.push(made(&lost, may_be_retried()).await);
        }
        all_happens().await;
        lost.leave().await;
        Self { clock, other, work, tasks }
    }

    async fn wait(&self, seconds: u64) {
        for _ in 0..seconds {
            self.clock.advance(SECOND);
            all_happens().await;
        }
    }

    /// How many tasks were taken.
    async fn taken(&self) -> usize {
        let mut taken = 0;
        for id in &self.tasks {
            let task = self.other.any_task(*id).await.expect("readable").expect("there");
            taken += usize::from(task.epoch == self.other.epoch());
        }
        taken
    }
}

/// Lets all happen that happens at this moment.
async fn all_happens() {
    for _ in 0..500 {
        yield_now().await;
    }
}

#[tokio::test]
async fn tasks_that_cannot_be_taken_yet_are_looked_at_from_time_to_time() {
    let pair = Pair::new(30, 30).await;
    pair.wait(29).await;
    assert_eq!(pair.taken().await, 0);
    let looks = pair.work.0.load(Ordering::Relaxed);
    assert!((TASKS..=4 * TASKS).contains(&looks), "not each second: {looks}");
    pair.wait(3).await;
    assert_eq!(pair.taken().await, TASKS, "as soon as it can be");
}

#[tokio::test]
async fn tasks_wait_for_the_longest_time_that_commands_of_any_node_go_on() {
    let pair = Pair::new(60, 10).await;
    pair.wait(59).await;
    assert_eq!(pair.taken().await, 0);
    pair.wait(4).await;
    assert_eq!(pair.taken().await, TASKS);
}
