//! What a store promises that several nodes share.

use std::time::Duration;

use super::*;
use crate::{
    clock::ManualClock,
    store::{Changes, Cluster, Lease, NodeInfo, StrandedTask},
};

/// Several openings of one store.
pub(super) trait Shared {
    type Store: Store;

    /// Opens it as a node of this name.
    fn open(&self, name: &str) -> Self::Store;

    /// Lets the leases expire that the nodes of these epochs have.
    fn expire(&self, epochs: &[Epoch]);
}

/// Makes every promise a test of one backend.
macro_rules! shared_suite {
    ($backend:ident, $shared:expr $(, $attribute:meta)?) => {
        shared_suite! { $backend, $shared $(, $attribute)?;
            what_one_node_changed_another_one_is_told_when_it_decides_on_something_older
            a_key_that_one_node_took_is_taken_on_every_other
            a_lease_holds_until_another_node_finds_it_expired
            the_tasks_of_nodes_that_are_gone_are_stranded
            what_waits_for_a_slot_is_found_by_others_until_it_begins
            every_node_knows_how_long_the_commands_of_any_node_go_on
            nodes_have_names_and_tasks
            versions_are_read_in_the_order_in_which_they_were_asked_for
            what_a_node_announces_the_others_hear
            the_same_call_finds_what_runs_or_was_left_without_an_answer
            what_is_due_is_due_on_the_node_that_runs_it
        }
    };
    ($backend:ident, $shared:expr, $attribute:meta; $($promise:ident)+) => {
        mod $backend {
            $(
                #[test]
                #[$attribute]
                fn $promise() {
                    super::$promise(&$shared);
                }
            )+
        }
    };
    ($backend:ident, $shared:expr; $($promise:ident)+) => {
        shared_suite! { $backend, $shared, cfg(test); $($promise)+ }
    };
}

shared_suite!(memory, super::InMemory::new());
#[cfg(feature = "postgres")]
shared_suite!(postgres_15, crate::store::suite::on_postgres::InPostgres::new(15), ignore = "needs PostgreSQL");
#[cfg(feature = "postgres")]
shared_suite!(postgres_18, crate::store::suite::on_postgres::InPostgres::new(18), ignore = "needs PostgreSQL");

struct InMemory {
    memory: Memory,
    clock: ManualClock,
}

impl InMemory {
    fn new() -> Self {
        let clock = ManualClock::new(Timestamp::from_millis(1_000_000));
        Self { memory: Memory::with_clock(Arc::new(clock.clone())), clock }
    }
}

impl Shared for InMemory {
    type Store = MemoryStore;

    fn open(&self, name: &str) -> MemoryStore {
        self.memory.open_node(name)
    }

    fn expire(&self, epochs: &[Epoch]) {
        let all = self.memory.open_node("a witness").cluster().expect("several nodes");
        let others: Vec<Epoch> = all.nodes().wait().expect("readable").iter().map(|node| node.epoch).collect();
        for _ in 0..7 {
            self.clock.advance(Duration::from_secs(1));
            for epoch in others.iter().filter(|epoch| !epochs.contains(epoch)) {
                all.renew(*epoch, Duration::ZERO).wait().expect("reachable");
            }
        }
    }
}

fn cluster(store: &impl Store) -> Arc<dyn Cluster> {
    store.cluster().expect("nodes share it")
}

/// The store's time, as this node learns it.
fn now(cluster: &dyn Cluster, epoch: Epoch) -> Option<Timestamp> {
    Some(renewed(cluster, epoch, Duration::ZERO).expect("it has a lease").now)
}

fn renewed(cluster: &dyn Cluster, epoch: Epoch, orphan_after: Duration) -> Option<Lease> {
    cluster.renew(epoch, orphan_after).wait().expect("reachable")
}

pub(super) fn created(store: &mut impl Store, name: u8, spec: Spec) -> Driver {
    let mut driver = Driver::new(name);
    let new = NewTask::new(Arc::new(spec), json!({}).into(), store.epoch());
    commit(store, &mut driver, &Command::Create(new));
    driver
}

pub(super) fn commit(store: &mut impl Store, driver: &mut Driver, command: &Command) {
    let write = driver.run(command).expect("the command leads to something");
    store.commit_now(&[write], &[]).expect("the write is committed");
}

fn what_one_node_changed_another_one_is_told_when_it_decides_on_something_older<S: Shared>(shared: &S) {
    let (mut here, mut there) = (shared.open("here"), shared.open("there"));
    let mut driver = created(&mut here, 1, spec());
    assert_eq!(there.load_now(driver.id).expect("readable"), driver.task, "at once");
    let mut other = driver.clone();
    for n in 0..10 {
        commit(&mut there, &mut driver, &append(&n.to_string()));
        let late = other.run(&append("late")).expect("it is open");
        let written = here.try_commit_now(&[late], &[]).expect("reachable");
        assert_eq!(written, [Written::Conflict(driver.task.clone().map(Box::new))]);
        other = driver.clone();
        std::mem::swap(&mut here, &mut there);
    }
    let chunks = here.reader().chunks(driver.id, Seq(0), usize::MAX, usize::MAX).wait().expect("readable");
    assert_eq!(chunks.iter().map(|chunk| chunk.seq.0).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
}

fn a_key_that_one_node_took_is_taken_on_every_other<S: Shared>(shared: &S) {
    let (mut here, mut there) = (shared.open("here"), shared.open("there"));
    let both = || Spec { idempotency_key: Some("k".into()), fingerprint: Some("f".into()), ..spec() };
    let mut first = created(&mut here, 1, both());
    let birth = Driver::new(2).run(&make(both(), vec![])).expect("it is new");
    let free = Driver::new(3).run(&make(Spec { idempotency_key: Some("free".into()), ..spec() }, vec![])).expect("it is new");
    let written = there.try_commit_now(&[birth, free], &[]).expect("reachable");
    assert_eq!(written, [Written::KeyTaken(first.id), Written::Done], "the rest of the batch stands");
    // Of two keys one is free: nothing is taken.
    let half = Spec { idempotency_key: Some("half".into()), fingerprint: Some("f".into()), ..spec() };
    let birth = Driver::new(4).run(&make(half.clone(), vec![])).expect("it is new");
    assert_eq!(there.try_commit_now(&[birth], &[]).expect("reachable"), [Written::KeyTaken(first.id)]);
    let me = CallerId::new("me");
    assert_eq!(here.reader().by_key(CallKey::Idempotency(&me, "half")).wait().expect("readable"), None);
    commit(&mut there, &mut first, &ends()[0]);
    let other = created(&mut here, 4, half);
    assert_eq!(there.reader().by_key(CallKey::Dedupe(&me, false, "f")).wait().expect("readable"), Some(other.id));
    // Of two with the same key in one batch the first gets it.
    let twice = |name| Driver::new(name).run(&make(Spec { fingerprint: Some("g".into()), ..spec() }, vec![])).expect("it is new");
    let written = there.try_commit_now(&[twice(6), twice(5)], &[]).expect("reachable");
    assert_eq!(written, [Written::Done, Written::KeyTaken(Driver::new(6).id)]);
}

fn a_lease_holds_until_another_node_finds_it_expired<S: Shared>(shared: &S) {
    let (here, there) = (shared.open("here"), shared.open("there"));
    let (lost, finder) = (cluster(&here), cluster(&there));
    assert!(here.epoch() != there.epoch() && here.epoch().0 > 0);
    for _ in 0..3 {
        // One that has expired can be renewed, until another node has looked.
        shared.expire(&[here.epoch()]);
        let lease = renewed(&*lost, here.epoch(), Duration::ZERO).expect("nobody has looked");
        assert_eq!(lease.lasts, lost.first_lease().0.lasts);
        assert!(finder.stranded_tasks(now(&*finder, there.epoch()), None, 10).wait().expect("readable").is_empty());
        assert!(finder.is_alive(here.epoch()).wait().expect("readable"));
    }
    shared.expire(&[here.epoch()]);
    finder.stranded_tasks(now(&*finder, there.epoch()), None, 10).wait().expect("readable");
    assert!(!finder.is_alive(here.epoch()).wait().expect("readable"));
    assert_eq!(renewed(&*lost, here.epoch(), Duration::ZERO), None, "it was declared dead");
    let next = lost.rejoin().wait().expect("reachable");
    assert!(next > there.epoch(), "an epoch is never used again");
    assert!(renewed(&*lost, next, Duration::ZERO).is_some());
    lost.leave(next).wait().expect("reachable");
    assert!(!finder.is_alive(next).wait().expect("readable"), "a node that leaves is gone at once");
    assert!(finder.is_alive(there.epoch()).wait().expect("readable"));
}

fn the_tasks_of_nodes_that_are_gone_are_stranded<S: Shared>(shared: &S) {
    let (mut here, mut there) = (shared.open("here"), shared.open("there"));
    let finder = cluster(&there);
    let mut drivers: Vec<Driver> = (1..=5).map(|name| created(&mut here, name, spec())).collect();
    let own = created(&mut there, 6, spec());
    commit(&mut here, &mut drivers[4], &ends()[0]);
    assert!(finder.stranded_tasks(now(&*finder, there.epoch()), None, 10).wait().expect("readable").is_empty());
    shared.expire(&[here.epoch()]);
    let epoch = there.epoch();
    let found = |judge, after, limit| -> Vec<StrandedTask> {
        let judge_at = if judge { now(&*finder, epoch) } else { None };
        finder.stranded_tasks(judge_at, after, limit).wait().expect("readable")
    };
    assert!(found(false, None, 10).is_empty(), "nobody has said that the node is dead");
    let stranded = found(true, None, 10);
    let left = |drivers: &[Driver]| drivers.iter().map(|driver| (driver.id, here.epoch())).collect::<Vec<_>>();
    let named = |stranded: &[StrandedTask]| stranded.iter().map(|task| (task.id, task.epoch)).collect::<Vec<_>>();
    assert_eq!(named(&stranded), left(&drivers[..4]), "no ended one, and none of a node that is there");
    // Its lease was over a moment ago.
    assert!(stranded.iter().all(|task| task.gone_for < cluster(&there).first_lease().0.lasts), "{stranded:?}");
    let [first, second] = [0, 2].map(|at| stranded.get(at).map(|task| (task.epoch, task.id)));
    assert_eq!(named(&found(false, None, 2)), left(&drivers[..2]), "what was said stays said");
    assert_eq!(named(&found(false, first, 2)), left(&drivers[1..3]));
    assert_eq!(named(&found(false, second, 2)), left(&drivers[3..4]));
    // Who takes one over has it.
    let recover = Command::Recover { lost: here.epoch()..here.epoch().next(), epoch: there.epoch() };
    commit(&mut there, &mut drivers[0], &recover);
    assert_eq!(named(&found(true, None, 10)), left(&drivers[1..4]));
    let open = there.reader().open_tasks(None, 10).wait().expect("readable");
    assert!(open.contains(&own.id) && open.len() == 5);
    // A node that leaves has said it itself.
    let third = shared.open("third");
    finder.leave(there.epoch()).wait().expect("reachable");
    let left_behind = cluster(&third).stranded_tasks(None, None, 10).wait().expect("readable");
    assert!(named(&left_behind).contains(&(own.id, there.epoch())) && left_behind.len() == 5);
}

fn what_waits_for_a_slot_is_found_by_others_until_it_begins<S: Shared>(shared: &S) {
    let (mut here, there) = (shared.open("here"), shared.open("there"));
    let of_tool = |tool: &str| Spec { tool: tool.into(), ..spec() };
    let mut drivers: Vec<Driver> =
        [(1, "dig"), (2, "dig"), (3, "dig"), (4, "saw\0\\")].map(|(name, tool)| created(&mut here, name, of_tool(tool))).into();
    let (finder, epoch, from_epoch) = (cluster(&there), there.epoch(), here.epoch());
    let found = |free: &[(&str, usize)]| -> Vec<TaskId> {
        let free: Vec<_> = free.iter().map(|(tool, free)| ((*tool).to_owned(), *free)).collect();
        let found = finder.queued_tasks(epoch, &free).wait().expect("readable");
        assert!(found.iter().all(|(_, from)| *from == from_epoch));
        found.into_iter().map(|(id, _)| id).collect()
    };
    let ids: Vec<TaskId> = drivers.iter().map(|driver| driver.id).collect();
    assert!(found(&[("dig", 9), ("saw\0\\", 9)]).is_empty(), "they run");
    for driver in &mut drivers {
        commit(&mut here, driver, &Command::Queue);
    }
    assert_eq!(found(&[("dig", 2)]), ids[..2], "the oldest ones, as many as there is room for");
    assert_eq!(found(&[("cut", 9), ("dig", 9), ("saw\0\\", 9)]), ids);
    commit(&mut here, &mut drivers[0], &Command::Dequeue);
    commit(&mut here, &mut drivers[1], &ends()[0]);
    assert_eq!(found(&[("dig", 9)]), ids[2..3], "not what has begun or ended");
    assert!(cluster(&here).queued_tasks(here.epoch(), &[("dig".to_owned(), 9)]).wait().expect("readable").is_empty(), "a node has its own");
    shared.expire(&[here.epoch()]);
    finder.stranded_tasks(now(&*finder, epoch), None, 10).wait().expect("readable");
    assert!(found(&[("dig", 9)]).is_empty(), "of a node that is gone they are stranded");
}

fn every_node_knows_how_long_the_commands_of_any_node_go_on<S: Shared>(shared: &S) {
    let (here, there, third) = (shared.open("here"), shared.open("there"), shared.open("third"));
    let longest = |store: &S::Store, own: u64| {
        let lease = renewed(&*cluster(store), store.epoch(), Duration::from_secs(own));
        lease.expect("it has a lease").orphan_after.as_secs()
    };
    assert_eq!((longest(&here, 60), longest(&third, 90), longest(&there, 30)), (60, 90, 90));
    cluster(&here).leave(here.epoch()).wait().expect("reachable");
    assert_eq!(longest(&third, 30), 60, "its commands may go on");
    longest(&third, 90);
    shared.expire(&[third.epoch()]);
    cluster(&there).stranded_tasks(now(&*cluster(&there), there.epoch()), None, 10).wait().expect("readable");
    assert_eq!(longest(&there, 30), 90, "so may those of a node that was declared dead");
    assert_eq!(longest(&there, 100), 100);
}

fn nodes_have_names_and_tasks<S: Shared>(shared: &S) {
    let (mut here, there) = (shared.open("here"), shared.open("there"));
    created(&mut here, 1, spec());
    let mut ended = created(&mut here, 2, spec());
    commit(&mut here, &mut ended, &ends()[0]);
    let nodes = || -> Vec<NodeInfo> { cluster(&there).nodes().wait().expect("readable") };
    let known = nodes();
    let shown: Vec<_> = known.iter().map(|node| (&*node.name, node.epoch, node.open_tasks)).collect();
    assert_eq!(shown, [("here", here.epoch(), 1), ("there", there.epoch(), 0)]);
    let lasts = cluster(&there).first_lease().0.lasts;
    assert!(known.iter().all(|node| node.lease_left > Duration::ZERO && node.lease_left <= lasts), "{known:?}");
    shared.expire(&[here.epoch()]);
    assert!(nodes().iter().any(|node| node.epoch == here.epoch() && node.lease_left.is_zero()), "{:?}", nodes());
}

fn versions_are_read_in_the_order_in_which_they_were_asked_for<S: Shared>(shared: &S) {
    let mut store = shared.open("here");
    let mut drivers: Vec<Driver> = (1..=3).map(|name| created(&mut store, name, spec())).collect();
    commit(&mut store, &mut drivers[1], &append("x"));
    let [one, two, three] = [0, 1, 2].map(|n: usize| drivers[n].id);
    let versions = cluster(&store).versions(&[three, Driver::new(9).id, two, one, two]).wait().expect("readable");
    assert_eq!(versions, [Some(1), None, Some(2), Some(1), Some(2)].map(|version| version.map(Version)));
    assert_eq!(cluster(&store).versions(&[]).wait().expect("readable"), []);
}

fn what_a_node_announces_the_others_hear<S: Shared>(shared: &S) {
    let (here, there) = (shared.open("here"), shared.open("there"));
    let (here, there) = (cluster(&here), cluster(&there));
    let ids = [1, 2].map(|name| Driver::new(name).id);
    let heard = async |from: &dyn Cluster, by: &dyn Cluster, id: TaskId| {
        // What was announced before may come with it, or as "look at everything".
        from.announce(Changes::Of(vec![id], vec![]));
        loop {
            match by.next_changes().await {
                Changes::Of(tasks, _) if !tasks.contains(&id) => {}
                Changes::Of(..) | Changes::Unknown => return,
            }
        }
    };
    let both = async {
        for _ in 0..3 {
            heard(&*here, &*there, ids[0]).await;
            heard(&*there, &*here, ids[1]).await;
        }
    };
    async { tokio::time::timeout(Duration::from_secs(10), both).await.expect("both are told") }.wait();
}

fn the_same_call_finds_what_runs_or_was_left_without_an_answer<S: Shared>(shared: &S) {
    let (mut here, mut there) = (shared.open("here"), shared.open("there"));
    let same = |key: &str, caller: &str| Spec { linger_key: Some(key.into()), hidden: true, caller: CallerId::new(caller), ..spec() };
    let mut drivers: Vec<Driver> = (1..=4).map(|name| created(&mut here, name, same("k", "me"))).collect();
    created(&mut here, 5, same("other", "me"));
    created(&mut here, 6, same("k", "you"));
    let leave = Command::Leave { epoch: here.epoch() };
    let found = |store: &S::Store, hidden, limit| {
        let read = store.reader().same_calls(&CallerId::new("me"), hidden, "k", limit).wait().expect("readable");
        read.iter().map(|task| task.id).collect::<Vec<_>>()
    };
    let find = |store: &S::Store, limit| found(store, true, limit);
    let ids = |drivers: &[Driver]| drivers.iter().map(|driver| driver.id).collect::<Vec<_>>();
    assert_eq!((find(&there, 10), find(&there, 2)), (ids(&drivers), ids(&drivers[..2])), "the earliest first");
    // The first ended, and its caller got the outcome; the second was left, and ended; the third was left.
    let (end, join) = (&ends()[0], Command::Join { epoch: there.epoch(), gone: vec![], shared: false });
    commit(&mut there, &mut drivers[0], end);
    commit(&mut here, &mut drivers[1], &leave);
    commit(&mut there, &mut drivers[1], end);
    commit(&mut here, &mut drivers[2], &leave);
    assert_eq!(find(&there, 10), ids(&drivers[1..]));
    // Its outcome is fetched, and the other one joined.
    commit(&mut there, &mut drivers[1], &join);
    commit(&mut there, &mut drivers[2], &join);
    assert_eq!(find(&here, 10), ids(&drivers[2..]));
    commit(&mut here, &mut drivers[3], &leave);
    commit(&mut here, &mut drivers[3], end);
    drivers[3].now += 1_000;
    commit(&mut here, &mut drivers[3], &Command::Tick);
    assert_eq!(find(&here, 10), ids(&drivers[2..3]), "what is forgotten is not found");
    // A caller that knows its task does not look for it, unless the call was left or is shared.
    let known = || Spec { hidden: false, ..same("k", "me") };
    let mut known_to_caller = created(&mut here, 7, known());
    assert!(found(&there, false, 10).is_empty());
    let mut shared = created(&mut here, 8, Spec { fingerprint: Some("k".into()), ..known() });
    assert_eq!(found(&there, false, 10), [shared.id]);
    commit(&mut here, &mut known_to_caller, &leave);
    assert_eq!(found(&there, false, 10), [known_to_caller.id, shared.id]);
    commit(&mut there, &mut known_to_caller, &join);
    commit(&mut here, &mut shared, end);
    assert!(found(&there, false, 10).is_empty());
}

fn what_is_due_is_due_on_the_node_that_runs_it<S: Shared>(shared: &S) {
    let (mut here, mut there) = (shared.open("here"), shared.open("there"));
    let timed = || Spec { timeout_ms: Some(50), ..spec() };
    let (own, others) = (created(&mut here, 1, timed()), created(&mut there, 2, timed()));
    let mut ended = created(&mut there, 3, timed());
    commit(&mut there, &mut ended, &ends()[0]);
    let due = |of| here.reader().due_tasks(Timestamp::from_millis(10_000), of, 10).wait().expect("readable");
    assert_eq!(due(Some(here.epoch())), [own.id, ended.id]);
    assert_eq!(due(Some(there.epoch())), [others.id, ended.id]);
    assert_eq!(due(None).len(), 3);
}
