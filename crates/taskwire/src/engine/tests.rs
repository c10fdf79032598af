//! The engine without a wire: what no client could provoke. Failing stores, batches, restarts.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    pin::{Pin, pin},
    task::Poll,
};

use futures_util::future::{join, join_all, join3};
use rusqlite::Connection;
use serde_json::json;
use taskwire_core::{
    CallerId, QuestionKey, Seq, Timestamp,
    task::{Blocks, OnInterrupt, Overflow, Reject, Status},
};
use tokio::{sync::Semaphore, task::yield_now, time::timeout};

use super::*;
use crate::{
    clock::ManualClock,
    store::{Cursor, SqliteStore, TaskWrite, Usage, Written},
    testing::TempDir,
};

mod cluster;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

impl TempDir {
    fn database(&self) -> PathBuf {
        self.0.join("tasks.db")
    }
}

/// Gives `future` ten seconds of real time: a test that hangs should say where.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(10), future).await.unwrap_or_else(|_| panic!("{what} did not happen within ten seconds"))
}

/// Whether a future still waits after one more look at it.
async fn waits<F: Future>(mut future: Pin<&mut F>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

/// Which calls of a store fail.
#[derive(Clone, Default)]
struct Faults {
    load: Arc<AtomicBool>,
    commit: Arc<AtomicBool>,
    tidy: Arc<AtomicBool>,
    /// The store cannot be reached: no commit is carried out.
    away: Arc<AtomicBool>,
    /// The disk is full, for SQLite too.
    full: Arc<AtomicBool>,
    /// The next commit is carried out, and the writer does not learn it.
    in_doubt: Arc<AtomicBool>,
    /// The store cannot be reached to look a task up.
    unreadable: Arc<AtomicBool>,
    /// There is no room to look a task up.
    no_room_to_read: Arc<AtomicBool>,
    /// A task whose writes meet what is damaged.
    damaged: Arc<Mutex<Option<TaskId>>>,
}

/// The test's hand on a store whose commits wait for it.
struct CommitGate {
    began: mpsc::Receiver<usize>,
    go: std::sync::mpsc::Sender<()>,
}

impl CommitGate {
    /// Waits until a commit has begun, and says how many writes it has.
    async fn began(&mut self) -> usize {
        soon("a commit", self.began.recv()).await.expect("the writer lives")
    }

    fn go(&self) {
        self.go.send(()).expect("the writer waits");
    }

    /// Lets one commit pass, and says how many writes it has.
    async fn pass(&mut self) -> usize {
        let writes = self.began().await;
        self.go();
        writes
    }

    /// Lets the one commit pass that `future` needs.
    async fn passing<T>(&mut self, future: impl Future<Output = T>) -> T {
        join(future, self.pass()).await.0
    }
}

/// SQLite, with faults, and in step with the test if it wants so.
struct TestStore {
    store: SqliteStore,
    is_full: bool,
    faults: Faults,
    pace: Option<(mpsc::Sender<usize>, std::sync::mpsc::Receiver<()>)>,
}

impl TestStore {
    fn new(dir: &TempDir, faults: &Faults) -> Self {
        Self { store: SqliteStore::open(&dir.0).expect("a store"), is_full: false, faults: faults.clone(), pace: None }
    }

    fn paced(dir: &TempDir) -> (Self, CommitGate) {
        let (tell, began) = mpsc::channel(64);
        let (go, wait) = std::sync::mpsc::channel();
        (Self { pace: Some((tell, wait)), ..Self::new(dir, &Faults::default()) }, CommitGate { began, go })
    }
}

fn fails(fault: &AtomicBool) -> Result<(), store::Error> {
    if fault.load(Ordering::Acquire) {
        return Err(store::Error::File { path: "the disk".to_owned(), source: std::io::Error::other("it is broken") });
    }
    Ok(())
}

fn is_there(away: &AtomicBool) -> Result<(), store::Error> {
    if away.load(Ordering::Acquire) {
        return Err(store::Error::Away { in_doubt: false, reason: "it is gone".to_owned() });
    }
    Ok(())
}

impl Store for TestStore {
    const BLOCKS: bool = true;

    async fn load(&mut self, id: TaskId) -> Result<Option<Task>, store::Error> {
        fails(&self.faults.load)?;
        is_there(&self.faults.unreadable)?;
        if self.faults.no_room_to_read.load(Ordering::Acquire) {
            return Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL), None).into());
        }
        self.store.load(id).await
    }

    async fn stored_bytes(&mut self, id: TaskId) -> Result<u64, store::Error> {
        self.store.stored_bytes(id).await
    }

    async fn commit(&mut self, writes: &[TaskWrite], sessions: &[SessionChange]) -> Result<Vec<Written>, store::Error> {
        fails(&self.faults.commit)?;
        if let Some((began, go)) = &mut self.pace {
            // Errors mean that the test is over.
            let _ = began.send(writes.len()).await;
            let _ = go.recv();
        }
        is_there(&self.faults.away)?;
        let damaged = *self.faults.damaged.lock().expect("no panic");
        if let Some(id) = damaged.filter(|id| writes.iter().any(|write| write.task.id == *id)) {
            return Err(store::Error::corrupt_task(id, "a page of it is gone"));
        }
        let is_full = self.faults.full.load(Ordering::Acquire);
        if std::mem::replace(&mut self.is_full, is_full) != is_full {
            self.store.set_max_pages(if is_full { 1 } else { u32::MAX - 1 });
        }
        let written = self.store.commit(writes, sessions).await;
        if self.faults.in_doubt.swap(false, Ordering::AcqRel) {
            return Err(store::Error::Away { in_doubt: true, reason: "the answer is lost".to_owned() });
        }
        written
    }

    fn reclaim(&mut self) -> Result<bool, store::Error> {
        fails(&self.faults.tidy)?;
        self.store.reclaim()
    }

    fn epoch(&self) -> Epoch {
        self.store.epoch()
    }

    fn secret(&self) -> [u8; 32] {
        self.store.secret()
    }

    fn usage(&self) -> Result<Vec<(CallerId, Usage)>, store::Error> {
        self.store.usage()
    }

    fn reader(&self) -> Arc<dyn Reader> {
        self.store.reader()
    }
}

/// Work that says which attempt it is, and ends when the test lets it.
struct Gated {
    started: mpsc::Sender<Attempt>,
    go: Arc<Semaphore>,
}

impl Gated {
    fn new() -> (Arc<Self>, mpsc::Receiver<Attempt>) {
        let (started, attempts) = mpsc::channel(64);
        (Arc::new(Self { started, go: Arc::new(Semaphore::new(0)) }), attempts)
    }
}

impl Work for Gated {
    fn run(&self, run: Arc<Run>) -> BoxFuture<'static, RunEnd> {
        let (started, go) = (self.started.clone(), self.go.clone());
        Box::pin(async move {
            started.send(run.attempt()).await.expect("the test listens");
            go.acquire().await.expect("it is never closed").forget();
            RunEnd::Outcome(Outcome::Completed { result: json!({"content": []}).into(), is_error: false })
        })
    }
}

fn clock() -> ManualClock {
    ManualClock::new(Timestamp::from_millis(1_785_196_800_000))
}

/// However full the disk is where the tests run.
fn config() -> Config {
    Config { limits: Limits { disk_reserve_bytes: 0, ..Limits::DEFAULT }, ..Config::default() }
}

fn engine_at(clock: &ManualClock, store: impl Store, config: Config) -> Engine {
    Engine::start(store, Arc::new(clock.clone()), config).expect("an engine")
}

fn engine(store: impl Store) -> Engine {
    engine_at(&clock(), store, config())
}

/// The store of an engine that was dropped: its thread ends in its own time.
async fn freed(dir: &TempDir) -> SqliteStore {
    let free = async {
        loop {
            match SqliteStore::open(&dir.0) {
                Ok(store) => return store,
                Err(_) => yield_now().await,
            }
        }
    };
    soon("the release of the directory", free).await
}

fn me() -> Authority {
    Authority::Caller(CallerId::new("me"))
}

fn spec() -> Spec {
    Spec { attempts_max: 10, ..Spec::new(CallerId::new("me"), "tool") }
}

fn may_be_retried() -> Spec {
    Spec { on_interrupt: OnInterrupt::Retry, ..spec() }
}

/// Kept for a second after its end.
fn under_key() -> Spec {
    Spec { idempotency_key: Some("key".into()), retention_ms: Some(1_000), ..spec() }
}

async fn make_with(engine: &Engine, spec: Spec, request: &str) -> Result<Receipt, Error> {
    let request = Payload::parse(request.to_owned()).expect("JSON");
    engine.create(engine.new_id(), Arc::new(spec), request, &Continuation::default(), None).await
}

async fn make(engine: &Engine, spec: Spec) -> Result<Receipt, Error> {
    make_with(engine, spec, "{}").await
}

async fn made(engine: &Engine, spec: Spec) -> TaskId {
    make(engine, spec).await.expect("a task").task.id
}

async fn cancel(engine: &Engine, id: TaskId) -> Result<Receipt, Error> {
    engine.submit(id, me(), Command::Cancel { reason: None }).await
}

async fn tick(engine: &Engine, id: TaskId) -> Result<Receipt, Error> {
    engine.submit(id, Authority::Engine, Command::Tick).await
}

/// Waits until the task has ended.
async fn ended(engine: &Engine, id: TaskId) -> Arc<Task> {
    let watch = engine.watch(vec![id], true);
    let end = async {
        loop {
            match engine.any_task(id).await.expect("readable") {
                Some(task) if task.ended.is_some() => return task,
                _ => drop(watch.changed().await),
            }
        }
    };
    soon("the end of the task", end).await
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions().mode() & 0o777
}

/// Work of a tool that may have no task.
struct WithoutTasks;

impl Work for WithoutTasks {
    fn task_limits(&self, _tool: &str) -> TaskLimits {
        TaskLimits { all: Some(0), per_caller: None }
    }

    fn run(&self, _run: Arc<Run>) -> BoxFuture<'static, RunEnd> {
        unreachable!("nothing begins")
    }
}

#[tokio::test]
async fn work_that_is_done_is_stored_however_many_tasks_its_tool_has() {
    let dir = TempDir::absent();
    let engine = engine(TestStore::new(&dir, &Faults::default()));
    engine.set_work(Arc::new(WithoutTasks));
    let refused = make(&engine, spec()).await;
    assert!(matches!(refused, Err(Error::Rejected(Reject::Limit { key: "tasks_max", .. }))), "{refused:?}");
    let done = Outcome::Completed { result: json!({"content": []}).into(), is_error: false };
    let stored = engine.create_ended(engine.new_id(), Arc::new(spec()), json!({}).into(), done).await.expect("it is stored");
    assert_eq!(stored.task.status(), Status::Completed);
}

// Stores that cannot be reached for a while.

/// Moves the clock on until `future` is ready: whoever waits for the store looks again.
async fn meanwhile<T>(clock: &ManualClock, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    soon("the return of the store", async {
        loop {
            tokio::select! {
                biased;
                done = &mut future => return done,
                () = yield_now() => clock.advance(Duration::from_millis(100)),
            }
        }
    })
    .await
}

#[tokio::test]
async fn while_the_store_is_away_callers_are_told_and_work_waits() {
    let (dir, faults, clock) = (TempDir::absent(), Faults::default(), clock());
    let engine = engine_at(&clock, TestStore::new(&dir, &faults), config());
    let id = made(&engine, spec()).await;
    faults.away.store(true, Ordering::Release);
    assert!(matches!(cancel(&engine, id).await, Err(Error::Away)), "a caller can try again");
    assert!(matches!(make(&engine, spec()).await, Err(Error::Away)));
    let chunks = vec![Blocks::of(&[json!("kept").into()])];
    let append = engine.submit(id, Authority::Attempt(Attempt(1)), Command::Append { chunks });
    let mut append = pin!(append);
    assert!(waits(append.as_mut()).await, "the work waits");
    assert!(matches!(make(&engine, spec()).await, Err(Error::Away)), "others need not wait behind it");
    faults.away.store(false, Ordering::Release);
    assert!(meanwhile(&clock, append).await.expect("it is stored").changed);
    let receipt = meanwhile(&clock, async {
        loop {
            match cancel(&engine, id).await {
                Err(Error::Away) => yield_now().await,
                done => return done.expect("the store is back"),
            }
        }
    })
    .await;
    assert_eq!((receipt.task.status(), receipt.task.output.next_seq), (Status::Cancelled, Seq(1)), "it was stored once");
    assert!(!engine.has_failed());
}

#[tokio::test]
async fn while_the_disk_is_full_callers_are_told_and_work_waits() {
    let (dir, faults, clock) = (TempDir::absent(), Faults::default(), clock());
    let engine = engine_at(&clock, TestStore::new(&dir, &faults), config());
    let id = made(&engine, spec()).await;
    let much = json!("x".repeat(200_000));
    faults.full.store(true, Ordering::Release);
    assert!(matches!(make_with(&engine, spec(), &much.to_string()).await, Err(Error::Full)), "a caller can try again");
    assert!(matches!(cancel(&engine, id).await, Err(Error::Full)));
    let chunks = vec![Blocks::of(&[much.into()])];
    let mut append = pin!(engine.submit(id, Authority::Attempt(Attempt(1)), Command::Append { chunks }));
    assert!(waits(append.as_mut()).await, "the work waits");
    clock.advance(Duration::from_secs(1));
    assert!(waits(append.as_mut()).await, "for room, and for nothing else");
    assert_eq!(engine.any_task(id).await.expect("it can be read").expect("it is there").status(), Status::Working);
    faults.full.store(false, Ordering::Release);
    let receipt = meanwhile(&clock, append).await.expect("it is stored");
    assert_eq!(receipt.task.output.next_seq, Seq(1), "it was stored once");
    meanwhile(&clock, async {
        while let Err(error) = make(&engine, spec()).await {
            assert!(error.passes(), "{error}");
            yield_now().await;
        }
    })
    .await;
    assert!(!engine.has_failed());
}

#[tokio::test]
async fn a_disk_that_a_read_finds_full_is_told_as_one() {
    let (dir, faults, clock) = (TempDir::absent(), Faults::default(), clock());
    let engine = engine_at(&clock, TestStore::new(&dir, &faults), config());
    let id = engine.new_id();
    faults.no_room_to_read.store(true, Ordering::Release);
    assert!(matches!(cancel(&engine, id).await, Err(Error::Full)), "a caller can try again");
    let mut ticked = pin!(tick(&engine, id));
    assert!(waits(ticked.as_mut()).await);
    soon("the word that it is full", async {
        while !engine.is_full() {
            yield_now().await;
        }
    })
    .await;
    faults.no_room_to_read.store(false, Ordering::Release);
    let ticked = meanwhile(&clock, ticked).await;
    assert!(matches!(ticked, Err(Error::Rejected(Reject::NotFound))), "{ticked:?}");
}

#[tokio::test]
async fn a_commit_in_doubt_is_looked_up_and_not_repeated() {
    let (dir, faults, clock) = (TempDir::absent(), Faults::default(), clock());
    let engine = engine_at(&clock, TestStore::new(&dir, &faults), config());
    let id = made(&engine, spec()).await;
    let append =
        |text: &str| engine.submit(id, Authority::Attempt(Attempt(1)), Command::Append { chunks: vec![Blocks::of(&[json!(text).into()])] });
    for (n, is_carried_out) in [(1, true), (2, false)] {
        // Carried out, though the writer saw an error; or not.
        faults.in_doubt.store(is_carried_out, Ordering::Release);
        faults.away.store(!is_carried_out, Ordering::Release);
        let mut appended = pin!(append("once"));
        assert!(waits(appended.as_mut()).await);
        faults.away.store(false, Ordering::Release);
        let receipt = meanwhile(&clock, appended).await.expect("it is stored");
        assert_eq!(receipt.task.output.next_seq, Seq(n), "each chunk is there once");
    }
    // A task whose maker was told to try again runs all the same: nobody knows whether it was made.
    faults.in_doubt.store(true, Ordering::Release);
    assert!(matches!(make(&engine, spec()).await, Err(Error::Away)));
    let open = meanwhile(&clock, async {
        loop {
            match engine.reader().open_tasks(None, 10).await.expect("readable") {
                open if open.len() == 2 => return open,
                _ => yield_now().await,
            }
        }
    })
    .await;
    assert!(open.contains(&id));
}

#[tokio::test]
async fn while_a_commit_in_doubt_cannot_be_looked_up_callers_are_told() {
    let (dir, clock) = (TempDir::absent(), clock());
    let (store, mut gate) = TestStore::paced(&dir);
    let faults = store.faults.clone();
    let engine = engine_at(&clock, store, Config { queue_len: 1, ..config() });
    let id = gate.passing(made(&engine, spec())).await;
    faults.in_doubt.store(true, Ordering::Release);
    faults.unreadable.store(true, Ordering::Release);
    let chunks = vec![Blocks::of(&[json!("once").into()])];
    let mut append = pin!(engine.submit(id, Authority::Attempt(Attempt(1)), Command::Append { chunks }));
    assert!(waits(append.as_mut()).await);
    gate.began().await;
    // One of them is in the queue, and the others wait before it.
    let mut callers = pin!(join_all((0..3).map(|_| cancel(&engine, id))));
    assert!(waits(callers.as_mut()).await);
    gate.go();
    let told = meanwhile(&clock, callers).await;
    assert!(told.iter().all(|told| matches!(told, Err(Error::Away))), "{told:?}");
    assert!(waits(append.as_mut()).await, "the work waits");
    faults.unreadable.store(false, Ordering::Release);
    assert_eq!(meanwhile(&clock, append).await.expect("it is stored").task.output.next_seq, Seq(1));
}

#[tokio::test]
async fn a_writer_that_hangs_takes_no_turn_and_one_whose_store_is_away_does() {
    let (dir, clock) = (TempDir::absent(), clock());
    let (store, mut gate) = TestStore::paced(&dir);
    let engine = engine_at(&clock, store, config());
    soon("a turn", engine.turn()).await;
    let mut making = pin!(make(&engine, spec()));
    assert!(waits(making.as_mut()).await);
    gate.began().await;
    let mut turn = pin!(engine.turn());
    for _ in 0..60 {
        assert!(waits(turn.as_mut()).await, "the commit has not ended");
        clock.advance(SECOND);
    }
    gate.go();
    soon("a turn", turn).await;
    making.await.expect("a task");
    engine.0.set_away(true);
    soon("no turn is needed", engine.turn()).await;
}

// Failing stores.

#[tokio::test]
async fn what_is_damaged_is_refused_and_what_shares_its_commit_goes_on() {
    let dir = TempDir::absent();
    let (store, mut gate) = TestStore::paced(&dir);
    let faults = store.faults.clone();
    let engine = engine(store);
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(gate.passing(made(&engine, spec())).await);
    }
    *faults.damaged.lock().expect("no panic") = Some(ids[1]);
    // While one commit goes on, the next one gathers.
    let mut other = pin!(make(&engine, spec()));
    assert!(waits(other.as_mut()).await);
    gate.began().await;
    let mut cancelled = pin!(join_all(ids.iter().map(|id| cancel(&engine, *id))));
    assert!(waits(cancelled.as_mut()).await);
    gate.go();
    other.await.expect("a task");
    let mut writes = Vec::new();
    for _ in 0..5 {
        writes.push(gate.pass().await);
    }
    assert_eq!(writes, [3, 1, 2, 1, 1], "whose write it is, is found out by halves");
    let cancelled = soon("the answers", cancelled).await;
    assert!(matches!(&cancelled[1], Err(Error::Corrupt(why)) if why.contains("a page of it is gone")), "{cancelled:?}");
    assert!([0, 2].iter().all(|n: &usize| cancelled[*n].as_ref().is_ok_and(|receipt| receipt.changed)), "{cancelled:?}");
    assert!(!engine.has_failed());
    assert_eq!(engine.any_task(ids[1]).await.expect("readable").expect("there").status(), Status::Working, "nothing of it was written");
    *faults.damaged.lock().expect("no panic") = None;
    assert!(gate.passing(cancel(&engine, ids[1])).await.expect("nothing is in its way").changed);
}

#[tokio::test]
async fn a_commit_that_fails_ends_the_engine() {
    let (dir, faults) = (TempDir::absent(), Faults::default());
    let engine = engine(TestStore::new(&dir, &faults));
    let kept = made(&engine, spec()).await;
    faults.commit.store(true, Ordering::Release);
    let lost = engine.new_id();
    let failed = engine.create(lost, Arc::new(spec()), json!({}).into(), &Continuation::default(), None).await;
    assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
    let reason = soon("the failure", engine.failed()).await;
    assert!(reason.contains("the disk") && reason.contains("it is broken"), "{reason}");
    assert!(engine.has_failed());
    faults.commit.store(false, Ordering::Release);
    for refused in [make(&engine, spec()).await, cancel(&engine, kept).await] {
        assert!(matches!(&refused, Err(Error::Unavailable(why)) if why.contains("it is broken")), "{refused:?}");
        assert!(!format!("{refused:?}").contains("the disk"), "where that is concerns no caller: {refused:?}");
    }
    assert_eq!(engine.any_task(kept).await.expect("still readable").expect("there").status(), Status::Working);
    assert_eq!(engine.any_task(lost).await.expect("still readable"), None, "what was refused is not there");
}

#[tokio::test]
async fn a_task_that_cannot_be_read_fails_its_own_command_and_no_other() {
    let (dir, faults) = (TempDir::absent(), Faults::default());
    let engine = engine(TestStore::new(&dir, &faults));
    // Ended, so that the writer does not keep it in memory.
    let id = made(&engine, spec()).await;
    cancel(&engine, id).await.expect("cancelled");
    faults.load.store(true, Ordering::Release);
    let (unreadable, other) = join(cancel(&engine, id), make(&engine, spec())).await;
    assert!(matches!(&unreadable, Err(Error::Unavailable(why)) if why.contains("it is broken")), "{unreadable:?}");
    assert!(!format!("{unreadable:?}").contains("the disk"), "where that is concerns no caller: {unreadable:?}");
    assert!(other.expect("another task is no concern of it").changed);
    assert!(!engine.has_failed());
    faults.load.store(false, Ordering::Release);
    assert!(!cancel(&engine, id).await.expect("readable again").changed);
}

#[tokio::test]
async fn a_task_that_is_corrupt_does_not_keep_others_from_being_taken_over() {
    let dir = TempDir::absent();
    let first = engine(freed(&dir).await);
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(made(&first, spec()).await);
    }
    ids.sort();
    drop(first);
    drop(freed(&dir).await);
    // The first in the order in which they are recovered.
    let connection = Connection::open(dir.database()).expect("the database");
    let changed = connection.execute("UPDATE task SET head = '{' WHERE id = ?", [&ids[0].as_bytes()[..]]).expect("writable");
    assert_eq!(changed, 1);
    drop(connection);
    let second = engine(freed(&dir).await);
    second.recover();
    for id in &ids[1..] {
        assert_eq!(ended(&second, *id).await.status(), Status::Failed);
    }
    assert!(matches!(cancel(&second, ids[0]).await, Err(Error::Corrupt(_))));
    assert!(!second.has_failed());
    made(&second, spec()).await;
}

#[tokio::test]
async fn a_key_whose_task_has_lost_its_beginning_is_an_error() {
    let dir = TempDir::new();
    let engine = engine(freed(&dir).await);
    made(&engine, under_key()).await;
    let connection = Connection::open(dir.database()).expect("the database");
    assert_eq!(connection.execute("UPDATE log SET version = version + 10", []).expect("writable"), 1);
    assert!(matches!(make(&engine, under_key()).await, Err(Error::Corrupt(error)) if error.contains("its beginning is missing")));
    assert!(!engine.has_failed());
}

#[tokio::test]
async fn tasks_that_are_damaged_do_not_keep_others_from_their_time() {
    // More than get their tick together, and all of them due before the one that is whole.
    const DAMAGED: usize = 300;
    let (dir, clock) = (TempDir::absent(), clock());
    let first = engine_at(&clock, freed(&dir).await, config());
    let spec = Spec { retention_ms: Some(1_000), ..spec() };
    let mut ids = Vec::new();
    for made in futures_util::future::join_all((0..=DAMAGED).map(|_| make(&first, spec.clone()))).await {
        ids.push(made.expect("a task").task.id);
    }
    ids.sort();
    for cancelled in futures_util::future::join_all(ids.iter().map(|id| cancel(&first, *id))).await {
        cancelled.expect("cancelled");
    }
    drop(first);
    drop(freed(&dir).await);
    let whole = ids[DAMAGED];
    let connection = Connection::open(dir.database()).expect("the database");
    let damage = "UPDATE task SET head = replace(head, 'tool', 'tokl') WHERE id < ?";
    assert_eq!(connection.execute(damage, [&whole.as_bytes()[..]]).expect("writable"), DAMAGED);
    drop(connection);
    clock.advance(HOUR);
    let second = engine_at(&clock, freed(&dir).await, config());
    let watch = second.watch(vec![whole], false);
    second.recover();
    let forgotten = async {
        while second.any_task(whole).await.expect("readable").is_some() {
            watch.changed().await;
        }
    };
    soon("the end of its retention", forgotten).await;
    assert!(matches!(second.any_task(ids[0]).await, Err(Error::Corrupt(_))), "what is damaged is not forgotten");
    assert!(!second.has_failed());
}

#[tokio::test]
async fn what_is_damaged_is_told_to_its_caller_and_left_out_of_lists() {
    let dir = TempDir::absent();
    let first = engine(freed(&dir).await);
    let (damaged, whole) = (made(&first, spec()).await, made(&first, spec()).await);
    for id in [damaged, whole] {
        cancel(&first, id).await.expect("cancelled");
    }
    drop(first);
    drop(freed(&dir).await);
    let connection = Connection::open(dir.database()).expect("the database");
    connection.execute("UPDATE log SET at = at + 1 WHERE task = ?", [&damaged.as_bytes()[..]]).expect("writable");
    drop(connection);
    let second = engine(freed(&dir).await);
    let (mine, theirs) = (CallerId::new("me"), CallerId::new("you"));
    let found = second.task(&mine, damaged).await;
    assert!(matches!(&found, Err(Error::Corrupt(why)) if why.contains(&damaged.to_string())), "{found:?}");
    assert_eq!(second.task(&theirs, damaged).await.expect("nothing is wrong for others"), None);
    assert_eq!(skip_corrupt(second.task(&mine, damaged).await).expect("others are listed"), None);
    assert!(skip_corrupt(second.task(&mine, whole).await).expect("readable").is_some());
    let is_of = [second.is_of(&mine, damaged).await, second.is_of(&theirs, damaged).await];
    assert_eq!(is_of.map(|read| read.expect("its end is not read")), [true, false]);
}

#[tokio::test]
async fn a_store_that_a_reader_finds_cut_short_ends_the_engine() {
    let dir = TempDir::absent();
    let first = engine(freed(&dir).await);
    let id = made(&first, spec()).await;
    cancel(&first, id).await.expect("cancelled");
    drop(first);
    let second = engine(freed(&dir).await);
    std::fs::OpenOptions::new().write(true).open(dir.database()).and_then(|file| file.set_len(0)).expect("cut");
    let lost = second.any_task(id).await;
    assert!(matches!(&lost, Err(Error::Unavailable(why)) if why.contains("cut short")), "{lost:?}");
    let reason = soon("the failure", second.failed()).await;
    assert!(reason.contains("tasks.db was cut short"), "{reason}");
}

// Restarts.

#[tokio::test]
async fn a_task_that_may_be_retried_is_not_failed_for_the_time_that_nobody_worked_on_it() {
    let (dir, clock) = (TempDir::absent(), clock());
    let first = engine_at(&clock, freed(&dir).await, config());
    let id = made(&first, Spec { timeout_ms: Some(10_000), ..may_be_retried() }).await;
    drop(first);
    clock.advance(HOUR);
    let second = engine_at(&clock, freed(&dir).await, config());
    let (work, mut attempts) = Gated::new();
    second.set_work(work.clone());
    second.recover();
    assert_eq!(soon("the next attempt", attempts.recv()).await, Some(Attempt(2)));
    work.go.add_permits(1);
    let task = ended(&second, id).await;
    assert_eq!((task.status(), task.attempt), (Status::Completed, Attempt(2)));
}

#[tokio::test]
async fn a_retried_task_has_its_whole_time_again_and_no_more() {
    let (dir, clock) = (TempDir::absent(), clock());
    let first = engine_at(&clock, freed(&dir).await, config());
    let id = made(&first, Spec { timeout_ms: Some(10_000), ..may_be_retried() }).await;
    drop(first);
    clock.advance(HOUR);
    let second = engine_at(&clock, freed(&dir).await, config());
    let (work, mut attempts) = Gated::new();
    second.set_work(work);
    second.recover();
    assert_eq!(soon("the next attempt", attempts.recv()).await, Some(Attempt(2)));
    let deadline = second.any_task(id).await.expect("readable").expect("there").deadline.expect("a deadline");
    assert_eq!(deadline, clock.now().after(10 * SECOND));
    clock.advance(10 * SECOND);
    assert_eq!(ended(&second, id).await.status(), Status::Failed);
}

#[tokio::test]
async fn an_answer_does_not_start_the_attempt_of_an_earlier_life() {
    let dir = TempDir::absent();
    let key = QuestionKey::new("question");
    let first = engine(freed(&dir).await);
    let id = made(&first, may_be_retried()).await;
    let ask = Command::Ask { key: key.clone(), request: json!({"method": "roots/list"}).into() };
    first.submit(id, Authority::Attempt(Attempt(1)), ask).await.expect("asked");
    drop(first);
    let second = engine(freed(&dir).await);
    let (work, mut attempts) = Gated::new();
    second.set_work(work);
    let answer = || second.submit(id, me(), Command::Answer(vec![(key.clone(), json!({"roots": []}).into())]));
    assert!(answer().await.expect("taken").changed);
    // The receipt comes from a later batch of the writer, which is done with the first by then.
    assert!(!answer().await.expect("taken").changed);
    assert_eq!(second.running(), 0);
    second.recover();
    assert_eq!(soon("the next attempt", attempts.recv()).await, Some(Attempt(2)), "and not the first");
    let task = second.any_task(id).await.expect("readable").expect("there");
    assert!(task.questions[&key].answer.is_some(), "the answer is kept");
}

#[tokio::test]
async fn an_engine_that_is_dropped_lets_go_of_its_directory() {
    let dir = TempDir::absent();
    let engine = engine(freed(&dir).await);
    engine.recover();
    // Something for the timers to wait for.
    let id = made(&engine, under_key()).await;
    cancel(&engine, id).await.expect("cancelled");
    assert!(SqliteStore::open(&dir.0).is_err(), "the directory is in use");
    drop(engine);
    freed(&dir).await;
}

// Keys.

#[tokio::test]
async fn two_calls_under_one_key_at_one_time_are_one_task() {
    let dir = TempDir::absent();
    let (store, mut hand) = TestStore::paced(&dir);
    let engine = engine(store);
    // Holds the writer up, so that what comes now is decided together.
    let mut before = pin!(make(&engine, spec()));
    assert!(waits(before.as_mut()).await);
    assert_eq!(hand.began().await, 1);
    let release = async {
        hand.go();
        hand.pass().await
    };
    let (one, two, writes) = join3(make(&engine, under_key()), make(&engine, under_key()), release).await;
    let (one, two) = (one.expect("a task"), two.expect("the same task"));
    assert_eq!(one.task.id, two.task.id);
    assert_eq!((one.changed, two.changed, writes), (true, false, 1));
    before.await.expect("another task");
    assert_eq!(engine.reader().open_tasks(None, 10).await.expect("readable").len(), 2);
}

#[tokio::test]
async fn the_same_arguments_in_another_order_are_the_same_call() {
    let dir = TempDir::absent();
    let engine = engine(freed(&dir).await);
    let first = make_with(&engine, under_key(), r#"{"a": 1, "b": {"c": [2], "d": null}}"#).await.expect("a task");
    let again = make_with(&engine, under_key(), r#"{"b":{"d":null,"c":[2]},"a":1}"#).await.expect("the same task");
    assert_eq!((again.task.id, again.changed), (first.task.id, false));
    for other in [r#"{"a":1,"b":{"c":[2]}}"#, r#"{"a":2,"b":{"c":[2],"d":null}}"#, r#"{"a":1,"b":{"c":[2,2],"d":null}}"#, "{}"] {
        let refused = make_with(&engine, under_key(), other).await;
        assert!(matches!(refused, Err(Error::Rejected(Reject::IdempotencyKeyReused(_)))), "{other}: {refused:?}");
    }
}

#[tokio::test]
async fn a_key_can_be_used_anew_when_its_task_is_forgotten() {
    let (dir, clock) = (TempDir::absent(), clock());
    let engine = engine_at(&clock, freed(&dir).await, config());
    let first = made(&engine, under_key()).await;
    cancel(&engine, first).await.expect("cancelled");
    assert_eq!(make(&engine, under_key()).await.expect("the first").task.id, first, "it is still known");
    clock.advance(SECOND);
    assert!(tick(&engine, first).await.expect("forgotten").changed);
    let second = make(&engine, under_key()).await.expect("a task");
    assert!(second.changed && second.task.id != first);
    assert_eq!(make(&engine, under_key()).await.expect("the second").task.id, second.task.id);
}

#[tokio::test]
async fn a_key_can_be_used_anew_in_the_batch_that_forgets_its_task() {
    let (dir, clock) = (TempDir::absent(), clock());
    let (store, mut hand) = TestStore::paced(&dir);
    let engine = engine_at(&clock, store, config());
    let first = hand.passing(made(&engine, under_key())).await;
    hand.passing(cancel(&engine, first)).await.expect("cancelled");
    clock.advance(SECOND);
    let mut before = pin!(make(&engine, spec()));
    assert!(waits(before.as_mut()).await);
    assert_eq!(hand.began().await, 1);
    let release = async {
        hand.go();
        hand.pass().await
    };
    let (forgotten, second, writes) = join3(tick(&engine, first), make(&engine, under_key()), release).await;
    assert_eq!(writes, 2, "both were decided together");
    assert!(forgotten.expect("forgotten").changed);
    let second = second.expect("a task");
    assert!(second.changed && second.task.id != first);
    before.await.expect("another task");
    assert_eq!(make(&engine, under_key()).await.expect("the second").task.id, second.task.id);
    assert_eq!(engine.reader().task(first).await.expect("readable"), None);
}

// Bounds.

#[tokio::test]
async fn commands_beyond_the_length_of_the_queue_wait_outside() {
    let dir = TempDir::absent();
    let (store, mut hand) = TestStore::paced(&dir);
    let engine = engine_at(&clock(), store, Config { queue_len: 1, ..config() });
    let mut first = pin!(make(&engine, spec()));
    let mut second = pin!(make(&engine, spec()));
    let mut third = pin!(make(&engine, spec()));
    assert!(waits(first.as_mut()).await);
    assert_eq!(hand.began().await, 1, "the first is being stored");
    assert!(waits(second.as_mut()).await);
    assert_eq!(engine.0.queue.capacity(), 0, "the second fills the queue");
    assert!(waits(third.as_mut()).await);
    hand.go();
    assert_eq!(hand.began().await, 1, "the second alone: the third was not in the queue");
    hand.go();
    let (third, writes) = join(third, hand.pass()).await;
    assert_eq!(writes, 1);
    for receipt in [first.await, second.await, third] {
        assert!(receipt.expect("a task").changed);
    }
}

/// A caller may have 50,000 bytes, a task so many of output.
fn little_room(task_output_bytes: u64) -> Config {
    let limits = Limits { stored_bytes_per_caller: 50_000, task_output_bytes, ..config().limits };
    Config { limits, ..config() }
}

async fn make_of(engine: &Engine, bytes: usize) -> Result<Receipt, Error> {
    make_with(engine, spec(), &format!("\"{}\"", "x".repeat(bytes))).await
}

async fn write(engine: &Engine, id: TaskId, bytes: usize) -> Result<Receipt, Error> {
    let chunks = vec![Blocks::of(&[json!("x".repeat(bytes)).into()])];
    engine.submit(id, Authority::Attempt(Attempt(1)), Command::Append { chunks }).await
}

fn has_too_much(refused: &Result<Receipt, Error>) -> bool {
    matches!(refused, Err(Error::Rejected(Reject::Limit { key: "stored_bytes_per_caller", max: 50_000, .. })))
}

#[tokio::test]
async fn what_is_forgotten_is_taken_off_as_it_was_counted_whatever_the_limits_are_by_then() {
    let (dir, clock) = (TempDir::absent(), clock());
    let first = engine_at(&clock, freed(&dir).await, little_room(40_000));
    let id = made(&first, Spec { overflow: Overflow::DropOldest, ..under_key() }).await;
    for _ in 0..6 {
        write(&first, id, 10_000).await.expect("the oldest goes, so that there is room");
    }
    cancel(&first, id).await.expect("cancelled");
    assert!(has_too_much(&make_of(&first, 9_000).await));
    drop(first);
    let second = engine_at(&clock, freed(&dir).await, little_room(1_000));
    assert!(has_too_much(&make_of(&second, 9_000).await), "it counts as it did at its end");
    clock.advance(SECOND);
    assert!(tick(&second, id).await.expect("forgotten").changed);
    for _ in 0..5 {
        make_of(&second, 9_000).await.expect("there is room for all of these");
    }
    assert!(has_too_much(&make_of(&second, 9_000).await));
}

#[tokio::test]
async fn tasks_that_an_earlier_life_left_count_when_they_are_taken_over() {
    let dir = TempDir::absent();
    let first = engine_at(&clock(), freed(&dir).await, little_room(100_000));
    let id = made(&first, may_be_retried()).await;
    write(&first, id, 45_000).await.expect("written");
    assert!(has_too_much(&write(&first, id, 9_000).await) && has_too_much(&make_of(&first, 9_000).await));
    drop(first);
    let second = engine_at(&clock(), freed(&dir).await, little_room(100_000));
    let (work, mut attempts) = Gated::new();
    second.set_work(work.clone());
    second.recover();
    assert_eq!(soon("the next attempt", attempts.recv()).await, Some(Attempt(2)));
    assert!(has_too_much(&make_of(&second, 9_000).await));
    work.go.add_permits(1);
    ended(&second, id).await;
    assert!(has_too_much(&make_of(&second, 9_000).await), "and after their end");
}

#[tokio::test]
async fn a_store_that_fails_while_it_reclaims_space_ends_the_engine() {
    let (dir, faults) = (TempDir::absent(), Faults::default());
    faults.tidy.store(true, Ordering::Release);
    let engine = engine(TestStore::new(&dir, &faults));
    let reason = soon("the failure", engine.failed()).await;
    assert!(reason.contains("it is broken"), "{reason}");
    assert!(matches!(make(&engine, spec()).await, Err(Error::Unavailable(_))));
}

// Files.

#[tokio::test]
async fn what_is_stored_is_for_this_user_alone() {
    let dir = TempDir::absent();
    let engine = engine(freed(&dir).await);
    made(&engine, spec()).await;
    assert_eq!(mode(&dir.0), 0o700);
    assert_eq!(mode(&dir.database()), 0o600);
    for entry in std::fs::read_dir(&dir.0).expect("readable") {
        let path = entry.expect("readable").path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_was_acknowledged_keeps_the_engine_from_being_idle() {
    struct Parked;
    impl Work for Parked {
        fn run(&self, _run: Arc<Run>) -> BoxFuture<'static, RunEnd> {
            Box::pin(std::future::pending())
        }
    }
    let dir = TempDir::absent();
    let engine = engine(TestStore::new(&dir, &Faults::default()));
    engine.set_work(Arc::new(Parked));
    for n in 1..=200 {
        made(&engine, spec()).await;
        assert_eq!(engine.running(), n, "a shutdown right now would wait for it");
    }
}

#[tokio::test]
async fn what_is_kept_in_memory_is_what_the_store_has() {
    struct Talks;
    impl Work for Talks {
        fn run(&self, run: Arc<Run>) -> BoxFuture<'static, RunEnd> {
            Box::pin(async move {
                for n in 0..40 {
                    run.write(Piece::Text(&n.to_string())).await.expect("it may write");
                    if n % 3 == 0 {
                        run.flush().await.expect("it may write");
                    }
                    if n % 10 == 0 {
                        run.report_status(Some(n.to_string().into()), None).await.expect("it may talk");
                    }
                }
                run.save(&[json!("last").into()], json!(1).into()).await.expect("it may save");
                RunEnd::Outcome(Outcome::Cancelled { reason: None })
            })
        }
    }
    let dir = TempDir::absent();
    let engine = engine(TestStore::new(&dir, &Faults::default()));
    engine.set_work(Arc::new(Talks));
    let task = ended(&engine, made(&engine, spec()).await).await;
    let (versions, seqs) = (task.version.0, task.output.next_seq.0);
    let mut compared = 0;
    for after in 0..=versions + 1 {
        for from in std::iter::once(None).chain((0..=seqs + 1).map(|seq| Some(Seq(seq)))) {
            for (bytes, chunks) in [(1, 1), (100, 3), (usize::MAX, usize::MAX)] {
                let cursor = Cursor { after: taskwire_core::Version(after), from, max_bytes: bytes, max_chunks: chunks };
                if let Some(kept) = engine.0.recent.page(task.id, cursor) {
                    assert_eq!(Some(kept), engine.reader().page(task.id, cursor).await.expect("readable"), "{cursor:?}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 500, "{compared}");
}
