//! What the tests of stores share: a task in memory that makes writes, and a store in a directory that is held against it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    slice,
    sync::Arc,
};

use tokio::runtime::Runtime;

use super::*;

/// Waits for what a store does.
pub(super) trait Wait: Future + Sized {
    fn wait(self) -> Self::Output {
        thread_local! {
            static RUNTIME: Runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        }
        RUNTIME.with(|runtime| runtime.block_on(self))
    }
}

impl<F: Future> Wait for F {}

pub(super) trait StoreNow: Store {
    fn load_now(&mut self, id: TaskId) -> Result<Option<Task>, Error> {
        self.load(id).wait()
    }

    fn stored_bytes_now(&mut self, id: TaskId) -> Result<u64, Error> {
        self.stored_bytes(id).wait()
    }

    /// Commits what nothing stands in the way of.
    fn commit_now(&mut self, writes: &[TaskWrite], sessions: &[SessionChange]) -> Result<(), Error> {
        let written = self.try_commit_now(writes, sessions)?;
        assert_eq!(written, vec![Written::Done; writes.len()]);
        Ok(())
    }

    fn try_commit_now(&mut self, writes: &[TaskWrite], sessions: &[SessionChange]) -> Result<Vec<Written>, Error> {
        self.commit(writes, sessions).wait()
    }
}

impl<S: Store> StoreNow for S {}

/// A task in memory, and the writes that make it.
#[derive(Clone)]
pub(super) struct Driver {
    pub(super) id: TaskId,
    pub(super) now: i64,
    /// Absent before its creation and after its end was forgotten.
    pub(super) task: Option<Task>,
    /// Checkpoints that were replaced by later ones.
    pub(super) stale: BTreeSet<Version>,
    pub(super) limits: Limits,
}

impl Driver {
    /// Drivers sort by `name`.
    pub(super) fn new(name: u8) -> Self {
        let id = TaskId::new(Timestamp::from_millis(1_000), [name; ID_RANDOM_BYTES]);
        Self { id, now: 1_000, task: None, stale: BTreeSet::new(), limits: Limits::DEFAULT }
    }

    /// What the command leads to, if to anything.
    pub(super) fn run(&mut self, command: &Command) -> Option<TaskWrite> {
        let by = match (command, &self.task) {
            (Command::Answer(_) | Command::Cancel { .. } | Command::Join { .. }, Some(task)) => Authority::Caller(task.spec.caller.clone()),
            (Command::Create(_) | Command::Tick | Command::Recover { .. } | Command::Leave { .. } | Command::Touch, _) | (_, None) => {
                Authority::Engine
            }
            (_, Some(task)) => Authority::Attempt(task.attempt),
        };
        let at = Timestamp::from_millis(self.now);
        let events = decide(self.task.as_ref(), &by, command, at, &self.limits).unwrap_or_default();
        let last = events.last()?;
        let first = self.task.as_ref().map_or(Version(1), |task| task.version.next());
        let before = self.task.as_ref().and_then(|task| task.checkpoint_version);
        for event in &events {
            apply(&mut self.task, self.id, event, at);
        }
        let task = self.task.clone().expect("something happened to it");
        let stale_checkpoint = before.filter(|before| task.checkpoint_version != Some(*before));
        self.stale.extend(stale_checkpoint);
        if *last == Event::Expired {
            self.task = None;
        }
        let (dropped_bytes, stored_bytes) = (task.dropped_bytes(&self.limits), task.stored_bytes(&self.limits));
        let told_max = Limits::DEFAULT.changes_per_session;
        Some(TaskWrite {
            task: Arc::new(task),
            first_version: first,
            at,
            events,
            stale_checkpoints: stale_checkpoint.into_iter().collect(),
            dropped_bytes,
            outbox_max: told_max,
            stored_bytes,
        })
    }
}

pub(super) fn apply(task: &mut Option<Task>, id: TaskId, event: &Event, at: Timestamp) {
    match (event, &mut *task) {
        (Event::Created { .. }, None) => *task = Some(create(id, event, at)),
        (event, Some(task)) => evolve(task, event, at),
        (event, None) => panic!("{event:?} happened to no task"),
    }
}

/// The task that the stored log alone makes. Replaced checkpoints, and only they, are missing from it.
pub(super) fn fold(reader: &dyn Reader, driver: &Driver) -> Option<Task> {
    let mut log = Vec::new();
    let mut after = Version(0);
    loop {
        let page = reader.events(driver.id, after, 8).wait().expect("events are read");
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 8 && page[0].version > after, "a page is bounded and goes on after the one before");
        after = last.version;
        log.extend(page.into_iter().map(|logged| (logged.version, logged.at, logged.event)));
    }
    for chunk in reader.chunks(driver.id, Seq(0), usize::MAX, usize::MAX).wait().expect("chunks are read") {
        let blocks = chunk.blocks;
        // When it was written makes no difference to the task.
        log.push((chunk.version, Timestamp::default(), Event::Appended { seq: chunk.seq, first_block: chunk.first_block, blocks }));
    }
    log.sort_by_key(|(version, ..)| *version);
    let mut task: Option<Task> = None;
    for (version, at, event) in &log {
        assert!(!driver.stale.contains(version), "the replaced checkpoint {version} is still there");
        while let Some(task) = task.as_mut().filter(|task| task.version.next() < *version) {
            assert!(driver.stale.contains(&task.version.next()), "event {} is missing", task.version.next());
            evolve(task, &Event::Saved { checkpoint: json!("replaced").into() }, *at);
        }
        apply(&mut task, driver.id, event, *at);
        assert_eq!(task.as_ref().map(|task| task.version), Some(*version), "each event has a version of its own");
    }
    task
}

/// A store in a directory, to be closed and opened at will.
pub(super) struct Lab<S> {
    pub(super) store: Option<S>,
    pub(super) open: fn(&Path) -> Result<S, Error>,
    pub(super) dir: TempDir,
}

impl<S: Store> Lab<S> {
    pub(super) fn new(open: fn(&Path) -> Result<S, Error>) -> Self {
        let dir = TempDir::new();
        Self { store: Some(open(&dir.0).expect("a new store opens")), open, dir }
    }

    pub(super) fn store(&mut self) -> &mut S {
        self.store.as_mut().expect("the store is open")
    }

    /// Whether nodes can share it.
    pub(super) fn is_shared(&self) -> bool {
        self.store.as_ref().expect("the store is open").cluster().is_some()
    }

    pub(super) fn reader(&self) -> Arc<dyn Reader> {
        self.store.as_ref().expect("the store is open").reader()
    }

    /// Closes the store and opens it again, in `dir` if the store has moved.
    pub(super) fn reopen_in(&mut self, dir: Option<TempDir>) {
        let (epoch, secret) = (self.store().epoch(), self.store().secret());
        self.store = None;
        if let Some(dir) = dir {
            self.dir = dir;
        }
        self.store = Some((self.open)(&self.dir.0).expect("the store opens again"));
        assert!(self.store().epoch() > epoch, "each opening is a later life");
        assert_eq!(self.store().secret(), secret, "the secret stays");
    }

    pub(super) fn reopen(&mut self) {
        self.reopen_in(None);
    }

    /// Goes on with the files as they are at this moment: nothing was closed or cleaned up.
    pub(super) fn kill(&mut self) {
        let dir = TempDir::new();
        for entry in std::fs::read_dir(&self.dir.0).expect("the directory is listed") {
            let entry = entry.expect("the directory is listed");
            std::fs::copy(entry.path(), dir.0.join(entry.file_name())).expect("a file is copied");
        }
        MEMORIES.with_borrow_mut(|memories| {
            if let Some(memory) = memories.get(&self.dir.0).cloned() {
                memories.insert(dir.0.clone(), memory);
            }
        });
        #[cfg(feature = "postgres")]
        on_postgres::moved(&self.dir.0, &dir.0);
        self.reopen_in(Some(dir));
    }

    /// Does what a command leads to, which must be something, and checks it.
    pub(super) fn run(&mut self, driver: &mut Driver, command: &Command) -> TaskWrite {
        let write = driver.run(command).expect("the command leads to something");
        self.store().commit_now(slice::from_ref(&write), &[]).expect("the write is committed");
        self.check(driver);
        write
    }

    /// The task is stored as it is in memory, whichever way it is read.
    pub(super) fn check(&mut self, driver: &Driver) {
        assert_eq!(self.store().load_now(driver.id).expect("the task is loaded"), driver.task, "the task is loaded as it was committed");
        let reader = self.reader();
        assert_eq!(fold(&*reader, driver), driver.task, "the log alone makes the task");
        assert_eq!(
            reader.task(driver.id).wait().expect("the task is read").as_deref(),
            driver.task.as_ref(),
            "a reader sees the task as it was committed"
        );
    }

    /// These tasks are stored, and no other is open.
    pub(super) fn check_all(&mut self, drivers: &[Driver]) {
        drivers.iter().for_each(|driver| self.check(driver));
        let tasks = drivers.iter().filter_map(|driver| driver.task.as_ref());
        let mut open: Vec<TaskId> = tasks.filter(|task| task.ended.is_none()).map(|task| task.id).collect();
        open.sort();
        assert_eq!(self.reader().open_tasks(None, 1_000).wait().expect("open tasks are listed"), open, "nothing else is there");
        self.check_usage(drivers);
    }

    /// It is known what each caller has.
    pub(super) fn check_usage(&self, drivers: &[Driver]) {
        match self.store.as_ref().expect("the store is open").cluster() {
            None => assert_eq!(self.usage(), usage(drivers, false)),
            Some(cluster) => {
                for (caller, expected) in usage(drivers, true) {
                    assert_eq!(cluster.usage_of(&caller).wait().expect("it is added up"), expected, "{caller:?}");
                }
            }
        }
    }

    pub(super) fn usage(&self) -> BTreeMap<CallerId, Usage> {
        self.store.as_ref().expect("the store is open").usage().expect("it is added up").into_iter().collect()
    }
}

/// What each caller has: how many open tasks, and the bytes of those that have ended, or of all.
pub(super) fn usage(drivers: &[Driver], bytes_of_open: bool) -> BTreeMap<CallerId, Usage> {
    let mut used = BTreeMap::<CallerId, Usage>::new();
    for (driver, task) in drivers.iter().filter_map(|driver| Some((driver, driver.task.as_ref()?))) {
        let usage = used.entry(task.spec.caller.clone()).or_default();
        usage.open += u64::from(task.ended.is_none());
        if bytes_of_open || task.ended.is_some() {
            usage.bytes += task.stored_bytes(&driver.limits);
        }
    }
    used
}

pub(super) fn spec() -> Spec {
    Spec { on_interrupt: OnInterrupt::Retry, attempts_max: 3, retention_ms: Some(1_000), ..Spec::new(CallerId::new("me"), "tool") }
}

pub(super) fn make(spec: Spec, chunks: Vec<Blocks>) -> Command {
    let said = (!chunks.is_empty()).then(|| (Some("early".into()), None));
    Command::Create(NewTask { chunks, status_report: said, ..NewTask::new(Arc::new(spec), json!({}).into(), Epoch(1)) })
}

pub(super) fn text(text: &str) -> Payload {
    json!({ "type": "text", "text": text }).into()
}

pub(super) fn append(words: &str) -> Command {
    Command::Append { chunks: vec![Blocks::of(&[text(words)])] }
}

pub(super) fn ask(key: &str) -> Command {
    Command::Ask { key: QuestionKey::new(key), request: json!({ "question": key }).into() }
}

pub(super) fn answer(keys: &[&str]) -> Command {
    Command::Answer(keys.iter().map(|key| (QuestionKey::new(key), json!({ "action": "accept" }).into())).collect())
}

pub(super) fn save(checkpoint: Value) -> Command {
    Command::Save { chunks: vec![], checkpoint: checkpoint.into() }
}

pub(super) fn ends() -> [Command; 3] {
    [
        Command::finish(Outcome::Completed { result: json!({ "content": [] }).into(), is_error: true }),
        Command::finish(Outcome::Failed(RpcError { code: -32_603, message: "no".into(), data: Some(json!([1]).into()) })),
        Command::Cancel { reason: Some("enough".into()) },
    ]
}
