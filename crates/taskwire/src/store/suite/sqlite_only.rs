//! What SQLite promises besides: its files, its formats, its rows.

use std::{
    fs::{File, OpenOptions, Permissions},
    os::unix::fs::PermissionsExt,
};

use rusqlite::Connection;

use super::*;

/// Another connection to the database, as any SQLite tool would make it.
fn tool(lab: &Lab<SqliteStore>) -> Connection {
    Connection::open(lab.dir.0.join("tasks.db")).expect("the database opens")
}

#[test]
fn an_expired_task_leaves_no_row() {
    let mut lab = Lab::new(open_sqlite);
    let mut driver = Driver::new(1);
    lab.run(&mut driver, &make(Spec { idempotency_key: Some("k".into()), ..spec() }, vec![Blocks::of(&[text("x")])]));
    for command in [save(json!(1)), ask("a"), append("y"), ends()[0].clone()] {
        lab.run(&mut driver, &command);
    }
    let tool = tool(&lab);
    let rows = || {
        ["task", "log", "chunk", "idempotency"].map(|table| {
            tool.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0)).expect("rows are counted")
        })
    };
    assert_eq!(rows(), [1, 5, 2, 1], "created, said, saved, asked, completed are events");
    driver.now += 1_000;
    lab.run(&mut driver, &Command::Tick);
    assert_eq!(rows(), [0; 4]);
}

#[test]
fn a_second_process_learns_who_has_the_directory() {
    let mut lab = Lab::new(open_sqlite);
    let Err(Error::Locked { path, holder }) = SqliteStore::open(&lab.dir.0) else { panic!("the directory is taken") };
    assert_eq!((path, holder), (lab.dir.0.display().to_string(), format!("process {}", std::process::id())));
    lab.reopen();
}

#[test]
fn nothing_is_acknowledged_by_a_store_that_was_removed_or_replaced() {
    for replaced in [false, true] {
        let mut lab = Lab::new(open_sqlite);
        let mut driver = Driver::new(1);
        lab.run(&mut driver, &make(spec(), vec![]));
        std::fs::remove_dir_all(&lab.dir.0).expect("removed");
        let another = replaced.then(|| SqliteStore::open(&lab.dir.0).expect("the place is free"));
        let write = driver.run(&append("a")).expect("it may write");
        let lost = lab.store().commit_now(slice::from_ref(&write), &[]);
        assert!(matches!(&lost, Err(Error::Tampered { path, .. }) if *path == lab.dir.0.display().to_string()), "{replaced}: {lost:?}");
        drop(another);
    }
}

/// Something that is done to a file of a store.
type Harm = fn(&Path);

fn removed(path: &Path) {
    std::fs::remove_file(path).expect("removed");
}

fn replaced(path: &Path) {
    let copy = path.with_extension("copy");
    std::fs::copy(path, &copy).expect("copied");
    std::fs::rename(copy, path).expect("replaced");
}

/// Cuts a file to a share of its length, given its length.
fn cut(path: &Path, share: fn(u64) -> u64) -> (File, u64) {
    let file = OpenOptions::new().write(true).open(path).expect("it can be written");
    let bytes = file.metadata().expect("there").len();
    file.set_len(share(bytes)).expect("cut");
    (file, bytes)
}

fn emptied(path: &Path) {
    cut(path, |_| 0);
}

fn halved(path: &Path) {
    cut(path, |bytes| bytes / 2);
}

/// As long as it was, with nothing in the second half.
fn hollowed(path: &Path) {
    let (file, bytes) = cut(path, |bytes| bytes / 2);
    file.set_len(bytes).expect("filled up");
}

#[test]
fn nothing_is_acknowledged_by_a_store_a_file_of_which_was_removed_replaced_or_cut_short() {
    let of_db: [Harm; 4] = [removed, replaced, halved, emptied];
    let of_wal: [Harm; 5] = [removed, replaced, halved, emptied, hollowed];
    let others: [(&str, Harm); 3] = [("tasks.db-shm", removed), ("lock", removed), ("lock", replaced)];
    let cases = of_db.map(|harm| ("tasks.db", harm)).into_iter().chain(of_wal.map(|harm| ("tasks.db-wal", harm))).chain(others);
    for (n, (file, harm)) in cases.enumerate() {
        let mut lab = Lab::new(open_sqlite);
        let mut driver = Driver::new(1);
        lab.run(&mut driver, &make(spec(), vec![]));
        lab.run(&mut driver, &append("a"));
        harm(&lab.dir.0.join(file));
        let write = driver.run(&append("b")).expect("it may write");
        let lost = lab.store().commit_now(slice::from_ref(&write), &[]);
        assert!(matches!(&lost, Err(Error::Tampered { what, .. }) if what.contains(file)), "{n}: {file}: {lost:?}");
    }
}

#[test]
fn no_reader_is_told_that_a_task_never_was_because_the_database_was_cut_short() {
    let harms: [Harm; 4] = [removed, replaced, halved, emptied];
    for (n, harm) in harms.into_iter().enumerate() {
        let mut lab = Lab::new(open_sqlite);
        let mut driver = Driver::new(1);
        lab.run(&mut driver, &make(spec(), vec![]));
        let reader = lab.reader();
        harm(&lab.dir.0.join("tasks.db"));
        let lost = reader.task(driver.id).wait();
        assert!(matches!(lost, Err(Error::Tampered { .. })), "{n}: {lost:?}");
    }
}

#[test]
fn another_program_may_make_the_database_smaller_and_begin_its_log_anew() {
    let mut lab = Lab::new(open_sqlite);
    let db = lab.dir.0.join("tasks.db");
    let bytes = || std::fs::metadata(&db).expect("there").len();
    let fold = |tool: &Connection| tool.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0)).expect("folded");
    let (mut large, mut small) = (Driver::new(1), Driver::new(2));
    lab.run(&mut small, &make(spec(), vec![]));
    lab.run(&mut large, &make(spec(), vec![]));
    for _ in 0..3 {
        lab.run(&mut large, &append(&"x".repeat(200_000)));
    }
    assert_eq!(fold(&tool(&lab)), 0, "nobody is in the way");
    lab.run(&mut large, &ends()[0]);
    let before = bytes();
    large.now += 1_000;
    lab.run(&mut large, &Command::Tick);
    let tool = tool(&lab);
    tool.execute_batch("VACUUM").expect("made smaller");
    assert_eq!(fold(&tool), 0, "nobody is in the way");
    assert!(bytes() < before, "{} after {before}", bytes());
    lab.check(&small);
    lab.run(&mut small, &append("y"));
    lab.kill();
    lab.check(&small);
}

#[test]
fn a_directory_that_others_can_write_to_is_refused_and_left_as_it_was() {
    for mode in [0o777, 0o770, 0o702] {
        let dir = TempDir::new();
        std::fs::set_permissions(&dir.0, Permissions::from_mode(mode)).expect("opened to others");
        let refused = SqliteStore::open(&dir.0).expect_err("it is not ours alone");
        assert!(matches!(refused, Error::NotOwned(_)), "{refused:?}");
        assert!(refused.to_string().contains(&format!("`chmod 700 {}`", dir.0.display())), "{refused}");
        assert_eq!(std::fs::read_dir(&dir.0).expect("there").count(), 0, "nothing was made");
        assert_eq!(std::fs::metadata(&dir.0).expect("there").permissions().mode() & 0o777, mode);
    }
}

#[test]
fn a_directory_that_others_can_read_is_narrowed_and_one_may_be_named_by_a_link() {
    let (dir, elsewhere) = (TempDir::new(), TempDir::new());
    std::fs::set_permissions(&dir.0, Permissions::from_mode(0o755)).expect("opened to others");
    let link = elsewhere.0.join("link");
    std::os::unix::fs::symlink(&dir.0, &link).expect("linked");
    drop(SqliteStore::open(&link).expect("it is ours"));
    assert_eq!(std::fs::metadata(&dir.0).expect("there").permissions().mode() & 0o777, 0o700);
    assert!(dir.0.join("tasks.db").is_file() && std::fs::symlink_metadata(&link).expect("there").is_symlink());
}

#[test]
fn nothing_in_a_directory_is_reached_by_a_link() {
    for name in ["lock", "tasks.db", "tasks.db-wal", "tasks.db-shm", "tasks.db-journal", "tasks.db-end", "spool", "control", "join"] {
        let (dir, elsewhere) = (TempDir::new(), TempDir::new());
        let precious = elsewhere.0.join("precious");
        std::fs::write(&precious, "precious").expect("written");
        std::os::unix::fs::symlink(&precious, dir.0.join(name)).expect("linked");
        let refused = SqliteStore::open(&dir.0).expect_err("it leads elsewhere").to_string();
        assert!(refused.contains(&format!("{name} is a symbolic link")), "{refused}");
        assert_eq!(std::fs::read(&precious).expect("there"), b"precious");
        assert_eq!(std::fs::read_dir(&dir.0).expect("there").count(), 1, "nothing was made beside {name}");
    }
}

#[test]
fn a_store_of_a_newer_release_is_refused() {
    let mut lab = Lab::new(open_sqlite);
    lab.store = None;
    tool(&lab).pragma_update(None, "user_version", 99).expect("the format is set");
    let refused = SqliteStore::open(&lab.dir.0);
    assert!(matches!(refused, Err(Error::TooNew { found: 99, known: 7, .. })), "{refused:?}");
}

#[test]
fn a_store_of_the_first_format_is_taken_over() {
    let mut lab = Lab::new(open_sqlite);
    let mut driver = Driver::new(1);
    lab.run(&mut driver, &make(spec(), vec![Blocks::of(&[text("a"), text("b")])]));
    lab.run(&mut driver, &append("c"));
    let mut over = Driver::new(2);
    lab.run(&mut over, &make(spec(), vec![Blocks::of(&[text(&"x".repeat(10_000))])]));
    lab.run(&mut over, &ends()[0]);
    let counted = usage(&[over.clone()], false)[&CallerId::new("me")].bytes;
    let old = "DROP INDEX task_ended; ALTER TABLE task DROP COLUMN bytes; DROP INDEX task_caller; DROP TABLE session; DROP TABLE told; DROP INDEX chunk_at; ALTER TABLE chunk RENAME TO chunk_2; \
         ALTER TABLE task DROP COLUMN sum; ALTER TABLE log DROP COLUMN sum; ALTER TABLE idempotency DROP COLUMN sum; \
         CREATE TABLE chunk(task BLOB NOT NULL, seq INTEGER NOT NULL, version INTEGER NOT NULL, at INTEGER NOT NULL, \
             first_block INTEGER NOT NULL, blocks_total INTEGER NOT NULL, bytes_total INTEGER NOT NULL, blocks TEXT NOT NULL, \
             PRIMARY KEY(task, seq)) WITHOUT ROWID; \
         INSERT INTO chunk SELECT task, seq, version, at, first_block, blocks_total, bytes_total, blocks FROM chunk_2; \
         DROP TABLE chunk_2; PRAGMA user_version = 1;";
    tool(&lab).execute_batch(FORMAT_5).and_then(|()| tool(&lab).execute_batch(old)).expect("the store is as it once was");
    tool(&lab).execute_batch("PRAGMA auto_vacuum = none; VACUUM;").expect("nothing is given back");
    lab.reopen();
    lab.check(&driver);
    assert_eq!(pragma(&lab, "auto_vacuum"), 2, "pages are given back from now on");
    let bytes = lab.usage()[&CallerId::new("me")].bytes;
    assert!((counted / 2..counted * 2).contains(&bytes), "what ended before is counted, if not to the byte: {bytes}, {counted}");
    over.now += 1_000;
    lab.run(&mut over, &Command::Tick);
    assert_eq!(lab.usage()[&CallerId::new("me")], Usage { open: 1, bytes: 0 });
    lab.run(&mut driver, &append("d"));
    let older = "UPDATE task SET head = json_remove(head, '$.changed'), checksum = NULL";
    tool(&lab).execute(older, []).expect("the head is as it once was");
    let loaded = lab.store().load_now(driver.id).expect("the task is loaded").expect("it is there");
    assert_eq!((loaded.visible_version, loaded.version), (Version(0), driver.task.as_ref().expect("it is there").version));
    let kept = lab.reader().chunks(driver.id, Seq(0), usize::MAX, usize::MAX).wait().expect("chunks are read");
    assert_eq!(kept.iter().map(|chunk| (chunk.seq.0, chunk.first_block)).collect::<Vec<_>>(), [(0, 1), (1, 3), (2, 4)]);
}

#[test]
fn what_a_task_counts_as_may_be_damaged_and_nothing_else_is_lost_by_it() {
    let mut lab = Lab::new(open_sqlite);
    let mut drivers = [1, 2, 3].map(Driver::new);
    for driver in &mut drivers {
        lab.run(driver, &make(spec(), vec![]));
        lab.run(driver, &ends()[0]);
    }
    let damages = [("9223372036854775807", i64::MAX.unsigned_abs()), ("-1", 0), ("'x'", 0)];
    for (driver, (damage, counted)) in drivers.iter_mut().zip(damages) {
        let id = &driver.id.as_bytes()[..];
        tool(&lab).execute(&format!("UPDATE task SET bytes = {damage} WHERE id = ?"), [id]).expect("it is damaged");
        lab.usage();
        assert_eq!(lab.store().stored_bytes_now(driver.id).expect("it is read"), counted, "{damage}");
        driver.now += 1_000;
        lab.run(driver, &Command::Tick);
    }
    assert_eq!(lab.usage(), BTreeMap::new());
}

fn pragma(lab: &Lab<SqliteStore>, name: &str) -> u64 {
    tool(lab).pragma_query_value(None, name, |row| row.get(0)).expect("it is read")
}

#[test]
fn the_file_becomes_smaller_when_tasks_are_forgotten() {
    let mut lab = Lab::new(open_sqlite);
    let mut drivers: Vec<Driver> = (1..=10).map(Driver::new).collect();
    let chunks = vec![Blocks::of(&[text(&"x".repeat(200_000))]); 20];
    for driver in &mut drivers {
        let life = [make(spec(), vec![]), Command::Append { chunks: chunks.clone() }, ends()[0].clone()];
        let writes: Vec<TaskWrite> = life.iter().map(|command| driver.run(command).expect("it may")).collect();
        lab.store().commit_now(&writes, &[]).expect("its life is committed");
    }
    let large = pragma(&lab, "page_count");
    // The first stays, and is in the way of what comes after it.
    for driver in &mut drivers[1..] {
        driver.now += 1_000;
        let write = driver.run(&Command::Tick).expect("it is due");
        lab.store().commit_now(&[write], &[]).expect("it is forgotten");
    }
    assert!(pragma(&lab, "freelist_count") > large / 2, "there is much that nothing needs");
    let steps = (0..).take_while(|_| lab.store().reclaim().expect("it is tidied up")).count();
    assert!(steps > 10, "it is done in small steps: {steps}");
    let (small, free) = (pragma(&lab, "page_count"), pragma(&lab, "freelist_count"));
    assert!(small < large / 3 && free < large / 4, "of {large} pages {small} are left, of which {free} are free");
    let bytes = std::fs::metadata(lab.dir.0.join("tasks.db")).expect("it is there").len();
    assert!(bytes <= (small + 1) * pragma(&lab, "page_size"), "the file is cut: {bytes} bytes");
    lab.check(&drivers[0]);
    lab.reopen();
    lab.check_all(&drivers);
    assert!(!lab.store().reclaim().expect("it is tidied up"), "nothing is left to be done");
}

#[test]
fn what_callers_have_is_added_up_without_a_look_at_each_task() {
    let lab = Lab::new(open_sqlite);
    let plan = "EXPLAIN QUERY PLAN SELECT caller, total(bytes) FROM task WHERE open = 0 GROUP BY caller";
    let plan: String = tool(&lab).query_row(plan, [], |row| row.get("detail")).expect("a plan");
    assert!(plan.contains("USING COVERING INDEX task_ended"), "{plan}");
}

#[test]
fn it_is_known_how_much_the_disk_still_takes() {
    let mut lab = Lab::new(open_sqlite);
    assert!(lab.store().free_bytes().is_some_and(|free| free > 0), "the disk of the tests is not full");
}

#[test]
fn damaged_data_is_an_error_that_names_its_task() {
    let mut lab = Lab::new(open_sqlite);
    let (mut driver, mut other) = (Driver::new(1), Driver::new(2));
    lab.run(&mut driver, &make(spec(), vec![]));
    lab.run(&mut other, &make(spec(), vec![]));
    let id = &driver.id.as_bytes()[..];
    tool(&lab).execute("UPDATE task SET head = '{\"id\":' WHERE id = ?", [id]).expect("the head is damaged");
    tool(&lab).execute("UPDATE log SET event = 'x' WHERE task = ?", [id]).expect("the event is damaged");
    let errors = [
        lab.store().load_now(driver.id).expect_err("no task"),
        lab.reader().task(driver.id).wait().expect_err("no head"),
        lab.reader().event(driver.id, Version(1)).wait().expect_err("no event"),
    ];
    for error in errors {
        assert!(matches!(&error, Error::Corrupt { subject, .. } if *subject == format!("task {}", driver.id)), "{error}");
    }
    lab.check(&other);
}

/// Takes the names of format 6 back, and the table of format 7.
const FORMAT_5: &str = "DROP TABLE dedupe; ALTER TABLE outbox RENAME TO told; ALTER TABLE told RENAME COLUMN position TO number; \
     ALTER TABLE told RENAME COLUMN first_version TO first; ALTER TABLE told RENAME COLUMN last_version TO last; \
     ALTER TABLE told RENAME COLUMN first_seq TO from_seq; DROP INDEX session_last_used; ALTER TABLE session RENAME COLUMN last_used TO seen; \
     CREATE INDEX session_seen ON session(seen); ALTER TABLE task RENAME COLUMN checksum TO sum; ALTER TABLE log RENAME COLUMN checksum TO sum; \
     ALTER TABLE idempotency RENAME COLUMN checksum TO sum; ALTER TABLE session RENAME COLUMN checksum TO sum; \
     ALTER TABLE chunk RENAME COLUMN checksum TO sum; ALTER TABLE chunk RENAME COLUMN text_checksum TO text_sum;";

/// Makes a store what it was before there were checksums, and before bytes were counted.
const FORMAT_3: &str = "DROP INDEX task_ended; ALTER TABLE task DROP COLUMN bytes; ALTER TABLE task DROP COLUMN sum; ALTER TABLE log DROP COLUMN sum; ALTER TABLE idempotency DROP COLUMN sum; \
     ALTER TABLE session DROP COLUMN sum; ALTER TABLE chunk DROP COLUMN text_sum; ALTER TABLE chunk DROP COLUMN sum; PRAGMA user_version = 3;";

#[test]
fn rows_of_format_3_are_taken_over_and_have_a_checksum_from_their_next_change_on() {
    let mut lab = Lab::new(open_sqlite);
    let (mut driver, mut done) = (Driver::new(1), Driver::new(2));
    lab.change(&[SessionChange::Begin(session("one", "me", 1))]);
    lab.run(&mut driver, &make(Spec { idempotency_key: Some("k".into()), ..spec() }, vec![Blocks::of(&[text("a"), text("b")])]));
    lab.run(&mut done, &make(spec(), vec![]));
    lab.run(&mut done, &ends()[0]);
    lab.store = None;
    tool(&lab).execute_batch(FORMAT_5).and_then(|()| tool(&lab).execute_batch(FORMAT_3)).expect("the store is as it once was");
    lab.store = Some(SqliteStore::open(&lab.dir.0).expect("an older store opens"));
    for driver in [&driver, &done] {
        lab.check(driver);
    }
    let counted = lab.usage()[&CallerId::new("me")];
    assert!(counted.open == 1 && counted.bytes > 0, "they count, if only by and large: {counted:?}");
    assert_eq!(lab.session("one"), Some(session("one", "me", 1)));
    assert_eq!(lab.reader().by_key(CallKey::Idempotency(&CallerId::new("me"), "k")).wait().expect("the key is read"), Some(driver.id));
    let unsummed = |lab: &Lab<SqliteStore>, table: &str| -> u64 {
        tool(lab)
            .query_row(&format!("SELECT count(*) FROM {table} WHERE checksum IS NULL"), [], |row| row.get(0))
            .expect("rows are counted")
    };
    assert_eq!(["task", "log", "chunk", "session"].map(|table| unsummed(&lab, table)), [2, 4, 1, 1]);
    lab.run(&mut driver, &append("c"));
    lab.run(&mut driver, &ask("a"));
    lab.change(&[SessionChange::Update { before: None, session: session("one", "me", 2) }]);
    assert_eq!(["task", "log", "chunk", "session"].map(|table| unsummed(&lab, table)), [1, 4, 1, 0]);
    lab.reopen();
    lab.check(&driver);
}

/// All ways to look at a task, its session and its key: what each says, or that it is damaged.
fn looks(lab: &mut Lab<SqliteStore>, id: TaskId) -> Vec<(&'static str, Result<String, Error>)> {
    let reader = lab.reader();
    let (me, one) = (CallerId::new("me"), SessionId::new("one"));
    vec![
        ("load", lab.store().load_now(id).map(|task| format!("{task:?}"))),
        ("key", reader.by_key(CallKey::Idempotency(&me, "k")).wait().map(|key| format!("{key:?}"))),
        ("task", reader.task(id).wait().map(|task| format!("{task:?}"))),
        ("owner", reader.owner(id).wait().map(|owner| format!("{owner:?}"))),
        ("created", reader.event(id, Version(1)).wait().map(|event| format!("{event:?}"))),
        (
            "page",
            reader
                .page(id, Cursor { after: Version(0), from: Some(Seq(0)), max_bytes: usize::MAX, max_chunks: 9 })
                .wait()
                .map(|page| format!("{page:?}")),
        ),
        ("span", reader.chunk_range(id).wait().map(|span| format!("{span:?}"))),
        ("session", reader.session(&one).wait().map(|session| format!("{session:?}"))),
    ]
}

#[test]
fn a_value_that_was_changed_is_an_error_and_never_another_value() {
    let mut lab = Lab::new(open_sqlite);
    let (mut driver, mut other) = (Driver::new(1), Driver::new(2));
    lab.change(&[SessionChange::Begin(session("one", "me", 1)), SessionChange::Begin(session("two", "me", 1))]);
    for (driver, key) in [(&mut driver, "k"), (&mut other, "l")] {
        lab.run(driver, &make(Spec { idempotency_key: Some(key.into()), ..spec() }, vec![Blocks::of(&[text("a")])]));
        lab.run(driver, &append("b"));
        lab.run(driver, &ends()[0]);
    }
    let whole = looks(&mut lab, driver.id);
    assert!(whole.iter().all(|(_, said)| said.is_ok()), "{whole:?}");
    let changes = [
        ("task", "caller = 'you'"),
        ("task", "open = 1"),
        ("task", "due = due + 1"),
        ("task", "head = replace(head, 'tool', 'tokl')"),
        ("task", "head = CAST(head AS BLOB)"),
        ("task", "checksum = checksum + 1"),
        ("log", "at = at + 1"),
        ("log", "event = replace(event, 'content', 'contenu')"),
        ("log", "event = replace(event, '{}', '[]')"),
        ("log", "event = (SELECT event FROM log WHERE version = 3 LIMIT 1)"),
        ("chunk", "blocks = replace(blocks, 'b', 'c')"),
        ("chunk", "text_checksum = text_checksum + 1"),
        ("chunk", "count = 2"),
        ("chunk", "version = version + 1"),
        ("chunk", "at = at + 1"),
        ("chunk", "first_block = first_block + 1"),
        ("chunk", "blocks_total = blocks_total + 1"),
        ("chunk", "bytes_total = bytes_total - 1"),
        ("chunk", "seq = seq + 10"),
        ("chunk", "seq = -seq - 1"),
        ("idempotency", "task = (SELECT max(id) FROM task)"),
        ("idempotency", "task = x'00'"),
        ("session", "caller = 'you'"),
        ("session", "last_used = last_used + 1"),
        ("session", "data = '[]'"),
        ("session", "data = (SELECT data FROM session WHERE id = 'two')"),
    ];
    for (table, change) in changes {
        let mut tool = tool(&lab);
        let rows = match table {
            "task" => "id = (SELECT min(id) FROM task)",
            "idempotency" => "key = 'k'",
            "session" => "id = 'one'",
            _ => "task = (SELECT min(id) FROM task)",
        };
        let keep = tool.transaction().expect("a transaction");
        keep.execute(&format!("CREATE TABLE kept AS SELECT * FROM {table} WHERE {rows}"), []).expect("the rows are kept");
        keep.execute(&format!("UPDATE {table} SET {change} WHERE {rows}"), []).expect("a value is changed");
        keep.commit().expect("it is changed");
        let found = looks(&mut lab, driver.id);
        let mut damaged = 0;
        for ((look, before), (_, after)) in whole.iter().zip(&found) {
            match after {
                Err(Error::Corrupt { .. }) => damaged += 1,
                Ok(after) => assert_eq!(Some(after), before.as_ref().ok(), "{table} {change}: {look}"),
                Err(error) => panic!("{table} {change}: {look}: {error}"),
            }
        }
        assert!(damaged > 0, "{table} {change}: nobody sees it");
        lab.check(&other);
        let undo = match table {
            "chunk" | "log" => format!("DELETE FROM {table} WHERE {rows}; INSERT INTO {table} SELECT * FROM kept; DROP TABLE kept;"),
            _ => format!("INSERT OR REPLACE INTO {table} SELECT * FROM kept; DROP TABLE kept;"),
        };
        tool.execute_batch(&undo).expect("the rows are as they were");
    }
    let again = looks(&mut lab, driver.id);
    assert!(again.iter().all(|(_, said)| said.is_ok()), "{again:?}");
    // Under another number they are not found, and missed.
    tool(&lab).execute("UPDATE log SET version = version + 10 WHERE task = ?", [&driver.id.as_bytes()[..]]).expect("they are moved");
    for (look, said) in looks(&mut lab, driver.id) {
        if ["load", "task", "page"].contains(&look) {
            assert!(matches!(said, Err(Error::Corrupt { .. })), "{look}: {said:?}");
        }
    }
    lab.check(&other);
}

#[test]
fn a_key_whose_task_is_gone_is_no_reason_to_end_the_server() {
    let mut lab = Lab::new(open_sqlite);
    let keyed = || make(Spec { idempotency_key: Some("k".into()), ..spec() }, vec![]);
    let (mut gone, mut next) = (Driver::new(1), Driver::new(2));
    lab.run(&mut gone, &keyed());
    tool(&lab).execute_batch("DELETE FROM task; DELETE FROM log;").expect("its rows are gone");
    lab.run(&mut next, &keyed());
    assert_eq!(lab.reader().by_key(CallKey::Idempotency(&CallerId::new("me"), "k")).wait().expect("the key is read"), Some(next.id));
}

#[test]
fn a_reader_neither_waits_for_an_open_transaction_nor_sees_it() {
    let mut lab = Lab::new(open_sqlite);
    let mut driver = Driver::new(1);
    lab.run(&mut driver, &make(spec(), vec![]));
    let writer = tool(&lab);
    writer.execute_batch("BEGIN IMMEDIATE; UPDATE task SET head = '{}'; DELETE FROM log;").expect("a transaction is open");
    lab.check(&driver);
    writer.execute_batch("ROLLBACK").expect("the transaction ends");
    lab.run(&mut driver, &append("x"));
}

#[test]
fn what_finds_the_disk_full_is_not_written_and_can_be_written_when_there_is_room() {
    let mut lab = Lab::new(open_sqlite);
    let (mut small, mut large) = (Driver::new(1), Driver::new(2));
    lab.run(&mut small, &make(spec(), vec![]));
    lab.run(&mut large, &make(spec(), vec![]));
    let before = [small.clone(), large.clone()];
    let writes = [(&mut small, "little".to_owned()), (&mut large, "x".repeat(200_000))]
        .map(|(driver, words)| driver.run(&append(&words)).expect("it may write"));
    lab.store().set_max_pages(1);
    let find_it_full = |lab: &mut Lab<SqliteStore>| {
        let full = lab.store().try_commit_now(&writes, &[]);
        assert!(matches!(&full, Err(error @ Error::Full(_)) if error.kind() == crate::store::ErrorKind::Away), "{full:?}");
    };
    for _ in 0..3 {
        find_it_full(&mut lab);
        lab.check_all(&before);
    }
    find_it_full(&mut lab);
    // And right after that, before anything is read.
    lab.store().set_max_pages(u32::MAX - 1);
    lab.store().commit_now(&writes, &[]).expect("there is room again");
    lab.check_all(&[small.clone(), large.clone()]);
    lab.kill();
    lab.check_all(&[small, large]);
}

/// A store that a server of format 6 left when it was killed: tasks in every state, one under a key, one that is deduped, and a session.
const STORE_OF_FORMAT_6: &[u8] = include_bytes!("../../../tests/fixtures/stores/format-6.db");

#[test]
fn a_store_that_an_earlier_program_wrote_is_taken_over() {
    let dir = TempDir::new();
    std::fs::write(dir.0.join("tasks.db"), STORE_OF_FORMAT_6).expect("the file is written");
    let mut store = SqliteStore::open(&dir.0).expect("it opens");
    assert!(store.epoch() > Epoch(1), "this is a later start");
    let reader = store.reader();
    let me = CallerId::new("local");
    let ids = reader.tasks_of(&me, None, 100).wait().expect("tasks are listed");
    let mut seen = Vec::new();
    for id in ids.iter().rev() {
        let task = store.load_now(*id).expect("it is loaded").expect("it is listed");
        assert_eq!(reader.task(*id).wait().expect("it is read").as_deref(), Some(&task));
        let chunks = reader.chunks(*id, Seq(0), usize::MAX, usize::MAX).wait().expect("output is read");
        assert_eq!(chunks.len() as u64, task.output.next_seq.0, "all of its output is there");
        seen.push((task.spec.tool.to_string(), task.status().as_str(), chunks.len()));
    }
    let expected = [
        ("work", "completed", 3),
        ("work", "working", 1),
        ("work", "input_required", 0),
        ("work", "failed", 0),
        ("work", "completed", 3),
        ("shared", "working", 1),
        ("work", "completed", 3),
    ];
    assert_eq!(seen, expected.map(|(tool, status, chunks)| (tool.to_owned(), status, chunks)));
    assert_eq!(reader.by_key(CallKey::Idempotency(&me, "key-4")).wait().expect("the key is read"), Some(ids[2]));
    let shared = store.load_now(ids[1]).expect("it is loaded").expect("it is there");
    let fingerprint = shared.spec.fingerprint.as_deref().expect("it is deduped");
    let key = CallKey::Dedupe(&me, shared.spec.hidden, fingerprint);
    assert_eq!(reader.by_key(key).wait().expect("the key is read"), Some(shared.id), "what runs can be joined");
    let saved = store.load_now(ids[5]).expect("it is loaded").expect("it is there").checkpoint_version.expect("it has a checkpoint");
    assert_eq!(reader.event(ids[5], saved).wait().expect("it is read"), Some(Event::Saved { checkpoint: json!({"at": 7}).into() }));
    assert_eq!(reader.open_tasks(None, 100).wait().expect("open tasks are listed").len(), 3);
}

#[test]
fn a_damaged_task_of_an_earlier_program_does_not_keep_its_store_closed() {
    let dir = TempDir::new();
    std::fs::write(dir.0.join("tasks.db"), STORE_OF_FORMAT_6).expect("the file is written");
    Connection::open(dir.0.join("tasks.db"))
        .expect("it opens")
        .execute("UPDATE task SET head = 'no JSON' WHERE open = 1", [])
        .expect("damaged");
    let store = SqliteStore::open(&dir.0).expect("it opens");
    assert_eq!(store.reader().open_tasks(None, 10).wait().expect("open tasks are listed").len(), 3, "and the others can be read");
}
