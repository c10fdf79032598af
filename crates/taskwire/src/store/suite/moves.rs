//! Moves from a directory to a database and back: all is there, and nobody serves what is not complete, or what is elsewhere.

use std::time::Duration;

use rusqlite::Connection;
use taskwire_testkit::{Installation, Server};

use super::*;
use crate::{
    clock::{Clock, SystemClock},
    store::{Place, PostgresConfig, PostgresStore, StoreMove},
};

const ORPHAN_AFTER: Duration = Duration::from_secs(45);
/// Sessions whose names have what a database does not take.
const SESSIONS: [(&str, &str); 3] = [("one", "me"), ("tw\\o\0", "y\\ou\0"), ("three", "me")];
const CALLERS: [&str; 2] = ["me", "y\\ou\0"];

fn started() -> Server {
    Server::start_fast(&Installation::find(18).unwrap_or_else(|missing| panic!("{missing}")))
}

fn config(server: &Server) -> PostgresConfig {
    PostgresConfig::new(server.url(), "ann")
}

fn database(server: &Server) -> Place {
    Place::Postgres(config(server))
}

fn directory(dir: &TempDir) -> Place {
    Place::Directory(dir.0.clone())
}

fn opened(from: &Place, to: &Place) -> Result<StoreMove, Error> {
    StoreMove::open(from, to).wait()
}

/// A move that has only to turn over. What is damaged is left out.
fn copied(from: &Place, to: &Place) -> Result<StoreMove, Error> {
    let copying = async {
        let mut moving = StoreMove::open(from, to).await?;
        let mut progress = Vec::new();
        let found = moving.check(&mut |seen| progress.push(seen.done)).await?;
        assert_eq!(progress.len() as u64, found.contents.tasks, "whoever looks on sees each task");
        moving.copy(&found, ORPHAN_AFTER, &mut |_| {}).await?;
        Ok(moving)
    };
    copying.wait()
}

fn moved(from: &Place, to: &Place) {
    let moving = copied(from, to).expect("it is copied");
    moving.finish().wait().expect("it turns over");
}

/// Why a move is refused.
#[track_caller]
fn refusal(from: &Place, to: &Place) -> String {
    opened(from, to).expect_err("it is refused").to_string()
}

#[track_caller]
fn assert_says(text: &str, words: &[&str]) {
    assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
}

/// Ends a node as one that is shut down.
fn left(store: PostgresStore) {
    let cluster = store.cluster().expect("nodes share it");
    cluster.leave(store.epoch()).wait().expect("reachable");
}

fn joined(server: &Server) -> PostgresStore {
    PostgresStore::open(config(server)).wait().expect("it opens")
}

/// What these commands lead to.
fn writes(driver: &mut Driver, commands: &[Command]) -> Vec<TaskWrite> {
    let write = |command: &Command| {
        driver.now += 1;
        driver.run(command).unwrap_or_else(|| panic!("{command:?} leads to nothing"))
    };
    commands.iter().map(write).collect()
}

fn of_caller(caller: &str) -> Spec {
    Spec { caller: CallerId::new(caller), ..spec() }
}

/// Makes one of everything, and gives the tasks that are there.
fn filled(store: &mut impl Store) -> Vec<Driver> {
    let begin = |(name, caller)| SessionChange::Begin(session(name, caller, 7));
    store.commit_now(&[], &SESSIONS.map(begin)).expect("sessions begin");
    let mut drivers: Vec<Driver> = (1..=12).map(Driver::new).collect();
    drivers[4].limits.task_output_bytes = 2_000;
    // The others are older than any store.
    drivers[11].id = TaskId::new(SystemClock.now(), [12; ID_RANDOM_BYTES]);
    let half = Command::ReportStatus { message: Some("half\\".into()), progress: Some(Progress { done: 0.5, total: Some(1.0) }) };
    let life = |spec: Spec, end: Option<Command>| -> Vec<Command> {
        let early = vec![Blocks::of(&[text("early"), text("wörds\n")])];
        let commands = [make(spec, early), half.clone(), ask("a"), ask("b"), append("x"), answer(&["b"]), save(json!({"at": 1}))];
        let more = [append("y\0\\"), save(json!({"at": [2]})), Command::recover(Epoch(9)), append("z"), answer(&["a"])];
        commands.into_iter().chain(more).chain(end).collect()
    };
    let [completed, failed, cancelled] = ends().map(Some);
    let keyed = Spec { idempotency_key: Some("k\\0\0".into()), fingerprint: Some("f".into()), ..of_caller(CALLERS[1]) };
    let lingering = Spec { linger_key: Some("l\0".into()), hidden: true, ..spec() };
    let overflowing = Spec { overflow: Overflow::DropOldest, ..spec() };
    let status = |n: usize| Command::ReportStatus { message: Some(n.to_string().into()), progress: None };
    let many = (0..1_200).map(|n| if n % 2 == 0 { append(&n.to_string()) } else { status(n) });
    let large = (0..30).map(|_| append(&"large ".repeat(30_000)));
    let lives: [Vec<Command>; 12] = [
        life(spec(), completed.clone()),
        life(of_caller(CALLERS[1]), failed),
        life(Spec { timeout_ms: Some(90_000), ..keyed.clone() }, cancelled),
        [make(following_spec("one", true), vec![]), append("a"), ask("open"), save(json!(1)), append("b")].into(),
        [make(overflowing, vec![])].into_iter().chain((0..100).map(|n| append(&"o".repeat(n)))).collect(),
        [make(Spec { idempotency_key: Some("other".into()), ..keyed.clone() }, vec![])].into(),
        [make(lingering.clone(), vec![]), Command::Leave { epoch: Epoch(1) }].into_iter().chain(completed.clone()).collect(),
        [make(Spec { timeout_ms: Some(60_000), ..spec() }, vec![]), Command::Queue].into(),
        [make(spec(), vec![])].into_iter().chain(many).collect(),
        [make(spec(), vec![])].into_iter().chain(large).chain(completed.clone()).collect(),
        [make(following_spec(SESSIONS[1].0, true), vec![])].into_iter().chain((0..10).map(|n| append(&n.to_string()))).collect(),
        [make(lingering, vec![Blocks::of(&[text("today")])]), append("later")].into(),
    ];
    for (driver, life) in drivers.iter_mut().zip(lives) {
        for write in writes(driver, &life) {
            store.commit_now(&[TaskWrite { outbox_max: 3, ..write }], &[]).expect("it is committed");
        }
    }
    let mut forgotten = Driver::new(13);
    for write in writes(&mut forgotten, &life(spec(), completed)) {
        store.commit_now(&[write], &[]).expect("it is committed");
    }
    forgotten.now += 10_000;
    let write = forgotten.run(&Command::Tick).expect("it is due");
    store.commit_now(&[write], &[]).expect("it is forgotten");
    drivers
}

/// All that a reader says.
fn everything(store: &impl Store, drivers: &[Driver]) -> Vec<String> {
    let (reader, mut said) = (store.reader(), Vec::new());
    let cursor = Cursor { after: Version(0), from: Some(Seq(0)), max_bytes: 100_000, max_chunks: 400 };
    for driver in drivers {
        let (id, task) = (driver.id, driver.task.as_ref().expect("it is there"));
        assert_eq!(reader.task(id).wait().expect("it is read").as_deref(), Some(task));
        said.push(format!("{:?} {:?}", reader.owner(id).wait(), reader.chunk_range(id).wait()));
        said.extend(read_on(&*reader, driver, cursor).iter().map(|item| format!("{item:?}")));
        said.extend(CallKey::of(&task.spec).map(|key| format!("{key:?} {:?}", reader.by_key(key).wait())));
    }
    for caller in CALLERS.map(CallerId::new) {
        said.push(format!("{:?}", reader.tasks_of(&caller, None, 100).wait()));
    }
    for id in SESSIONS.map(|(name, _)| SessionId::new(name)) {
        let (outbox, end) = (reader.outbox(&id, 0, 100).wait(), reader.outbox_end(&id).wait());
        said.push(format!("{:?} {outbox:?} {end:?}", reader.session(&id).wait()));
    }
    let due = reader.due_tasks(Timestamp::from_millis(i64::MAX), None, 100).wait();
    said.push(format!("{due:?} {:?} {:?}", reader.next_due(Timestamp::default()).wait(), reader.open_tasks(None, 100).wait()));
    said
}

fn bytes_of(store: &mut impl Store, drivers: &[Driver]) -> Vec<u64> {
    drivers.iter().map(|driver| store.stored_bytes_now(driver.id).expect("it is read")).collect()
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_store_that_moved_to_a_database_and_back_is_what_it_was() {
    let (server, dir, back) = (started(), TempDir::new(), TempDir::absent());
    let mut store = SqliteStore::open(&dir.0).expect("it opens");
    let drivers = filled(&mut store);
    let (before, bytes, secret) = (everything(&store, &drivers), bytes_of(&mut store, &drivers), store.secret());
    let (epoch, used) = (store.epoch(), usage_of(&store));
    drop(store);
    moved(&directory(&dir), &database(&server));
    let mut store = joined(&server);
    assert_eq!(everything(&store, &drivers), before);
    assert_eq!((bytes_of(&mut store, &drivers), store.secret()), (bytes.clone(), secret));
    assert!(store.epoch() > epoch.max(Epoch(9)), "it is a later start than any that a task names");
    let same = store.reader().same_calls(&CallerId::new("me"), true, "l\0", 10).wait().expect("they are read");
    let same: Vec<_> = same.iter().map(|task| task.id).collect();
    assert_eq!(same, [drivers[6].id, drivers[11].id], "the same call finds what was left");
    let cluster = store.cluster().expect("nodes share it");
    let lease = cluster.renew(store.epoch(), Duration::ZERO).wait().expect("reachable").expect("it has a lease");
    assert_eq!(lease.orphan_after, ORPHAN_AFTER, "nodes wait for commands that may have been handed over");
    let stranded = cluster.stranded_tasks(None, None, 100).wait().expect("they are read");
    let open = drivers.iter().filter(|driver| driver.task.as_ref().is_some_and(|task| task.ended.is_none())).count();
    assert_eq!(stranded.len(), open, "they are taken over");
    for caller in CALLERS.map(CallerId::new) {
        let usage = cluster.usage_of(&caller).wait().expect("it is read");
        assert_eq!(usage.open, used[&caller].open);
        assert!(usage.bytes >= used[&caller].bytes, "those of open tasks count, too");
    }
    let epoch = store.epoch();
    drop(cluster);
    left(store);
    moved(&database(&server), &directory(&back));
    let mut store = SqliteStore::open(&back.0).expect("it opens");
    assert_eq!(everything(&store, &drivers), before);
    assert_eq!((bytes_of(&mut store, &drivers), store.secret(), usage_of(&store)), (bytes, secret, used));
    assert!(store.epoch() > epoch);
}

fn usage_of(store: &SqliteStore) -> BTreeMap<CallerId, Usage> {
    store.usage().expect("it is added up").into_iter().collect()
}

#[test]
#[ignore = "needs PostgreSQL"]
fn what_was_moved_goes_on_until_nothing_is_left_of_it() {
    let (server, dir, back) = (started(), TempDir::new(), TempDir::new());
    let mut store = SqliteStore::open(&dir.0).expect("it opens");
    let mut drivers = filled(&mut store);
    drop(store);
    moved(&directory(&dir), &database(&server));
    let mut store = joined(&server);
    go_on(&mut store, &mut drivers, 1);
    left(store);
    moved(&database(&server), &directory(&back));
    let mut store = SqliteStore::open(&back.0).expect("it opens");
    go_on(&mut store, &mut drivers, 2);
    drop(store);
    // What a directory has that was moved there can be moved on.
    server.psql("DROP SCHEMA taskwire CASCADE");
    moved(&directory(&back), &database(&server));
    let mut store = joined(&server);
    for driver in &mut drivers {
        if driver.task.as_ref().is_some_and(|task| task.ended.is_none()) {
            let end = driver.run(&ends()[0]).expect("it ends");
            store.commit_now(&[end], &[]).expect("it is committed");
        }
        driver.now += 100_000;
        let forgotten = driver.run(&Command::Tick).expect("it is due");
        store.commit_now(&[forgotten], &[]).expect("it is committed");
        assert_eq!(fold(&*store.reader(), driver), None);
    }
    let cluster = store.cluster().expect("nodes share it");
    for caller in CALLERS.map(CallerId::new) {
        assert_eq!(cluster.usage_of(&caller).wait().expect("it is read"), Usage::default(), "what was counted is given back");
    }
    let reader = store.reader();
    assert_eq!(reader.by_key(CallKey::Idempotency(&CallerId::new(CALLERS[1]), "k\\0\0")).wait().expect("it is read"), None);
    assert_eq!(reader.same_calls(&CallerId::new("me"), true, "l\0", 10).wait().expect("they are read"), []);
}

/// Adds to each open task, and sees that its log is still whole.
fn go_on(store: &mut impl Store, drivers: &mut [Driver], round: u64) {
    let works = |driver: &&mut Driver| driver.task.as_ref().is_some_and(|task| task.ended.is_none() && task.queued_at.is_none());
    for driver in drivers.iter_mut().filter(works) {
        for command in [append("more"), save(json!({ "round": round })), append("and more")] {
            driver.now += 1;
            let write = driver.run(&command).expect("it is open");
            store.commit_now(&[write], &[]).expect("it is committed");
        }
        assert_eq!(store.load_now(driver.id).expect("it is loaded"), driver.task);
    }
    // The output of one was dropped in part, so its log alone does not make it.
    for driver in drivers.iter().filter(|driver| driver.limits == Limits::DEFAULT) {
        assert_eq!(fold(&*store.reader(), driver), driver.task, "the log alone makes the task");
    }
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_store_that_somebody_uses_is_not_moved_and_names_who() {
    let (server, dir, empty) = (started(), TempDir::new(), TempDir::absent());
    let store = SqliteStore::open(&dir.0).expect("it opens");
    let process = format!("process {}", std::process::id());
    assert_says(&refusal(&directory(&dir), &database(&server)), &["is in use by", &process]);
    drop(store);
    let node = joined(&server);
    assert_says(&refusal(&database(&server), &directory(&empty)), &["is in use by ann", "stop these nodes"]);
    assert_says(&refusal(&directory(&dir), &database(&server)), &["is in use by ann"]);
    left(node);
    assert!(!empty.0.exists(), "nothing was made");
    // Somebody joins while it is moved.
    let moving = copied(&database(&server), &directory(&empty)).expect("nobody is there");
    left(joined(&server));
    assert_says(&moving.finish().wait().expect_err("it is not what was copied").to_string(), &["has begun to use", "again"]);
    assert!(matches!(SqliteStore::open(&empty.0), Err(Error::Moved(_))), "it is not complete");
    left(joined(&server));
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_place_that_has_tasks_is_not_filled_and_stays_as_it_was() {
    let (server, dir, other) = (started(), TempDir::new(), TempDir::new());
    for dir in [&dir, &other] {
        let mut store = SqliteStore::open(&dir.0).expect("it opens");
        let write = Driver::new(1).run(&make(spec(), vec![])).expect("it is new");
        store.commit_now(&[write], &[]).expect("it is committed");
    }
    moved(&directory(&dir), &database(&server));
    assert_says(&refusal(&directory(&other), &database(&server)), &["has tasks already", "--schema"]);
    assert_says(&refusal(&database(&server), &directory(&other)), &["has tasks already"]);
    assert_says(&refusal(&database(&server), &directory(&dir)), &["that were moved to", "`moved`"]);
    drop(SqliteStore::open(&other.0).expect("it is as it was"));
    left(joined(&server));
    let elsewhere = Place::Postgres(PostgresConfig { schema: "elsewhere".to_owned(), ..config(&server) });
    moved(&directory(&other), &elsewhere);
    assert_says(&refusal(&directory(&other), &database(&server)), &["were moved to the schema elsewhere"]);
    // There is nothing, or nothing that could be moved.
    let absent = TempDir::absent();
    assert_says(&refusal(&directory(&absent), &database(&server)), &["no tasks in"]);
    let nowhere = Place::Postgres(PostgresConfig { schema: "nowhere".to_owned(), ..config(&server) });
    assert_says(&refusal(&nowhere, &directory(&absent)), &["no tasks in the schema nowhere"]);
    assert_says(&refusal(&directory(&dir), &directory(&absent)), &["both are directories", "mv"]);
    assert_says(&refusal(&database(&server), &nowhere), &["both are databases", "pg_dump"]);
    assert!(!absent.0.exists(), "nothing was made");
    assert_eq!(server.psql("SELECT to_regnamespace('nowhere') IS NULL"), "t");
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_move_that_was_interrupted_is_served_by_nobody_and_begins_anew() {
    let (server, dir, back) = (started(), TempDir::new(), TempDir::new());
    let mut store = SqliteStore::open(&dir.0).expect("it opens");
    let mut driver = Driver::new(1);
    let birth = driver.run(&make(spec(), vec![])).expect("it is new");
    store.commit_now(&[birth], &[]).expect("it is committed");
    drop(store);
    drop(copied(&directory(&dir), &database(&server)).expect("it is copied"));
    let refused = PostgresStore::open(config(&server)).wait().expect_err("it is not complete").to_string();
    assert_says(&refused, &["the schema taskwire", "is not complete", "`taskwire store move` again"]);
    assert_says(&refusal(&database(&server), &directory(&back)), &["is not complete"]);
    // The first store goes on meanwhile.
    let mut store = SqliteStore::open(&dir.0).expect("it is as it was");
    let more = driver.run(&append("more")).expect("it is open");
    store.commit_now(&[more], &[]).expect("it is committed");
    drop(store);
    moved(&directory(&dir), &database(&server));
    let mut store = joined(&server);
    assert_eq!(store.load_now(driver.id).expect("it is loaded"), driver.task, "also what was added since");
    left(store);
    // The other way round.
    drop(copied(&database(&server), &directory(&back)).expect("it is copied"));
    let refused = SqliteStore::open(&back.0).expect_err("it is not complete").to_string();
    assert_says(&refused, &["is not complete", "`moving`"]);
    let refused = PostgresStore::open_in(config(&server), &back.0).wait().expect_err("it is not complete").to_string();
    assert_says(&refused, &["is not complete"]);
    let mut store = joined(&server);
    let more = driver.run(&append("and more")).expect("it is open");
    store.commit_now(&[more], &[]).expect("it is committed");
    left(store);
    moved(&database(&server), &directory(&back));
    let mut store = SqliteStore::open(&back.0).expect("it opens");
    assert_eq!(store.load_now(driver.id).expect("it is loaded"), driver.task);
}

#[test]
#[ignore = "needs PostgreSQL"]
fn of_two_stores_at_most_one_is_served_and_an_interrupted_end_is_made_up_for() {
    let (server, dir, back) = (started(), TempDir::new(), TempDir::new());
    let mut store = SqliteStore::open(&dir.0).expect("it opens");
    let mut driver = Driver::new(1);
    let birth = driver.run(&make(spec(), vec![])).expect("it is new");
    store.commit_now(&[birth], &[]).expect("it is committed");
    drop(store);
    let (here, there, home) = (directory(&dir), database(&server), directory(&back));
    for (from, to) in [(&here, &there), (&there, &home)] {
        let mut moving = copied(from, to).expect("it is copied");
        moving.leave().wait().expect("it is left");
        drop(moving);
        let none = [SqliteStore::open(&dir.0).err(), PostgresStore::open(config(&server)).wait().err()];
        assert!(none.iter().all(|error| matches!(error, Some(Error::Moved(_)))), "{none:?}");
        let moving = opened(from, to).expect("it goes on");
        assert!(moving.is_copied(), "only the end is left");
        moving.finish().wait().expect("it turns over");
        assert_says(&refusal(from, to), &["were moved to"]);
    }
    let mut store = SqliteStore::open(&back.0).expect("it opens");
    assert_eq!(store.load_now(driver.id).expect("it is loaded"), driver.task);
    // Whoever removes the mark goes back to what was there.
    let refused = SqliteStore::open(&dir.0).expect_err("its tasks are elsewhere").to_string();
    assert_says(&refused, &["were moved to the schema taskwire", "remove `moved`"]);
    std::fs::remove_file(dir.0.join("moved")).expect("it is there");
    drop(SqliteStore::open(&dir.0).expect("it opens"));
    server.psql("UPDATE taskwire.meta SET bytes = NULL WHERE key = 'epoch'");
    left(joined(&server));
    // A node may have the directory whose tasks were moved to its database: the files of their commands are there.
    std::fs::write(back.0.join("moved"), "").expect("written");
    drop(store);
    left(PostgresStore::open_in(config(&server), &back.0).wait().expect("it opens"));
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_damaged_task_is_named_and_can_be_left_out() {
    let (server, dir, back) = (started(), TempDir::new(), TempDir::new());
    let mut store = SqliteStore::open(&dir.0).expect("it opens");
    let drivers = filled(&mut store);
    drop(store);
    let tool = Connection::open(dir.0.join("tasks.db")).expect("it opens");
    let harm = |sql: &str, driver: &Driver| {
        assert_ne!(tool.execute(sql, [&driver.id.as_bytes()[..]]).expect("it is changed"), 0);
    };
    harm("UPDATE task SET head = replace(head, 'tool', 'tokl') WHERE id = ?", &drivers[0]);
    harm("UPDATE log SET event = 'x' WHERE version = 3 AND task = ?", &drivers[1]);
    harm("UPDATE chunk SET blocks = replace(blocks, '5', '6') WHERE seq = 25 AND task = ?", &drivers[8]);
    harm("DELETE FROM log WHERE version = 1 AND task = ?", &drivers[3]);
    assert_ne!(tool.execute("UPDATE session SET data = '[]' WHERE id = 'three'", []).expect("it is changed"), 0);
    tool.close().expect("closed");
    let moving = opened(&directory(&dir), &database(&server)).expect("nobody is there");
    let found = moving.check(&mut |_| {}).wait().expect("the others are read");
    let named: Vec<TaskId> = found.damaged.iter().map(|(id, _)| *id).collect();
    assert_eq!(named, [0, 1, 3, 8].map(|n: usize| drivers[n].id));
    assert!(found.damaged_sessions == 1 && found.is_damaged(), "{found:?}");
    drop(moving);
    assert_eq!(server.psql("SELECT to_regnamespace('taskwire') IS NULL"), "t", "nothing was made");
    moved(&directory(&dir), &database(&server));
    let store = joined(&server);
    let reader = store.reader();
    for (n, driver) in drivers.iter().enumerate() {
        let task = driver.task.as_ref().filter(|_| ![0, 1, 3, 8].contains(&n));
        assert_eq!(reader.task(driver.id).wait().expect("it is read").as_deref(), task);
    }
    left(store);
    // A database has no checksums, but what cannot be read is noticed there, too.
    let id: String = drivers[9].id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    server.psql(&format!("DELETE FROM taskwire.chunk WHERE seq = 7 AND task = '\\x{id}'"));
    let moving = opened(&database(&server), &directory(&back)).expect("nobody is there");
    let found = moving.check(&mut |_| {}).wait().expect("the others are read");
    assert_eq!(found.damaged.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [drivers[9].id]);
    assert_says(&found.damaged[0].1, &["from chunk 7 on"]);
}
