//! What every store promises, one test each, run against every backend in a directory of its own.
//!
//! A [`Driver`] does to a task what the engine would; a [`Lab`] commits it and compares: what is loaded, and what the
//! stored log alone makes, must be the task in memory.
//! What stores promise that nodes share is in `shared`, what only SQLite promises in `sqlite_only` and `damaged_pages`, what moves from store
//! to store promise in `moves`.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashSet},
    path::{Path, PathBuf},
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::{Value, json};
use taskwire_core::{
    CallerId, Epoch, Limits, Payload, QuestionKey, Seq, SessionId, TaskId, Timestamp, Version,
    id::ID_RANDOM_BYTES,
    task::{
        AcceptedQuestions, Authority, Blocks, Command, Event, NewTask, OnInterrupt, OutboxTarget, Outcome, OutputTotals, Overflow,
        Progress, RpcError, Spec, Task, create, decide, evolve,
    },
};

use super::{
    CallKey, Chunk, Cursor, Error, LogItem, Memory, MemoryStore, PAGE_EVENTS, Reader, Session, SessionChange, SqliteStore, Store,
    StoredEvent, TaskWrite, Usage, Written,
};
use crate::testing::TempDir;

mod damaged_pages;
mod lab;
mod shared;
mod sqlite_only;

use lab::*;

/// Makes every promise a test of one backend.
macro_rules! suite {
    ($backend:ident, $open:expr $(, $attribute:meta)?) => {
        suite! { $backend, $open $(, $attribute)?;
            a_created_task_is_read_back_byte_for_byte
            every_kind_of_event_survives_a_reopening
            all_that_was_committed_and_nothing_else_survives_a_crash
            chunks_are_read_from_any_place_within_a_bound
            a_log_is_read_on_from_any_place_in_one_order
            a_page_is_of_one_moment
            chunks_that_came_before_the_task_are_counted
            chunks_of_one_write_keep_their_versions_whatever_is_between_them
            the_oldest_chunks_go_and_the_rest_stays_as_it_was
            only_the_newest_checkpoint_is_kept
            tasks_fall_due_in_order_and_once_more_after_their_end
            open_tasks_are_listed_in_pages_by_id_and_counted_by_caller
            an_idempotency_key_is_its_callers_until_the_task_is_forgotten
            a_dedupe_key_is_taken_until_the_task_ends
            a_write_is_refused_if_its_task_has_changed_and_the_others_are_carried_out
            sessions_are_kept_changed_and_ended
            sessions_that_are_idle_or_too_many_are_named
            a_session_is_told_of_its_tasks_in_one_order
            what_a_session_is_told_is_bounded
            the_tasks_of_a_caller_are_listed_latest_first
            the_tasks_of_all_callers_are_listed_latest_first
            what_each_caller_has_is_added_up
        }
    };
    ($backend:ident, $open:expr, $attribute:meta; $($promise:ident)+) => {
        mod $backend {
            use super::*;
            $(
                #[test]
                #[$attribute]
                fn $promise() {
                    super::$promise(Lab::new($open));
                }
            )+
        }
    };
    ($backend:ident, $open:expr; $($promise:ident)+) => {
        suite! { $backend, $open, cfg(test); $($promise)+ }
    };
}

#[cfg(feature = "postgres")]
mod moves;
#[cfg(feature = "postgres")]
mod on_postgres;

suite!(sqlite, open_sqlite);

fn open_sqlite(dir: &Path) -> Result<SqliteStore, Error> {
    SqliteStore::open(dir)
}

suite!(memory, open_memory);
suite!(memory_of_nodes, open_memory_node);

thread_local! {
    /// What was stored "in" a directory.
    static MEMORIES: RefCell<BTreeMap<PathBuf, Memory>> = RefCell::default();
}

fn open_memory(dir: &Path) -> Result<MemoryStore, Error> {
    Ok(MEMORIES.with_borrow_mut(|memories| memories.entry(dir.to_owned()).or_default().open()))
}

fn open_memory_node(dir: &Path) -> Result<MemoryStore, Error> {
    Ok(MEMORIES.with_borrow_mut(|memories| memories.entry(dir.to_owned()).or_default().open_node("node")))
}

fn a_created_task_is_read_back_byte_for_byte<S: Store>(mut lab: Lab<S>) {
    let request = Payload::parse(r#"{ "b":1.0,  "a" : "\u00e9\/é" , "b": 1E2 }"#.to_owned()).expect("it is JSON");
    let accepts = AcceptedQuestions { elicit_form: true, ..AcceptedQuestions::default() };
    let spec = Arc::new(Spec { timeout_ms: Some(5), answer_timeout_ms: Some(6), accepts, ..spec() });
    let new = NewTask::new(spec.clone(), request.clone(), Epoch(1));
    let (mut driver, nobody) = (Driver::new(1), Driver::new(2));
    lab.run(&mut driver, &Command::Create(new));
    lab.reopen();
    lab.check_all(&[driver.clone(), nobody.clone()]);
    let reader = lab.reader();
    let created = Event::Created { spec, arguments: request, epoch: Epoch(1), continuation: None, spent_ms: 0 };
    assert_eq!(reader.event(driver.id, Version(1)).wait().expect("the event is read"), Some(created));
    assert_eq!(reader.event(driver.id, Version(2)).wait().expect("the event is read"), None);
    assert_eq!(reader.event(nobody.id, Version(1)).wait().expect("the event is read"), None);
    assert_eq!(
        reader.task(driver.id).wait().expect("the head is read").as_deref(),
        driver.task.as_ref(),
        "before any chunk, the head is all"
    );
}

fn every_kind_of_event_survives_a_reopening<S: Store>(mut lab: Lab<S>) {
    let mut kinds = HashSet::new();
    for (name, end) in (1..).zip(ends()) {
        let mut driver = Driver::new(name);
        let half = Progress { done: 0.5, total: Some(1.0) };
        let life = [
            make(
                Spec {
                    retention_ms: Some(100),
                    timeout_ms: Some(9_000),
                    answer_timeout_ms: Some(9_000),
                    linger_key: Some("same".into()),
                    ..spec()
                },
                vec![],
            ),
            Command::Leave { epoch: Epoch(1) },
            append("x"),
            Command::ReportStatus { message: Some("half".into()), progress: Some(half) },
            ask("a"),
            ask("b"),
            answer(&["b", "a"]),
            save(json!({ "at": 1 })),
            save(json!({ "at": 2 })),
            Command::recover(Epoch(2)),
            append("y"),
            append("z"),
            Command::Touch,
            Command::Join { epoch: Epoch(2), gone: vec![], shared: false },
            end,
            Command::Tick,
        ];
        for command in &life {
            driver.now += 100;
            let write = lab.run(&mut driver, command);
            kinds.extend(write.events.iter().map(std::mem::discriminant));
            lab.reopen();
            lab.check(&driver);
        }
        assert_eq!(driver.task, None, "it was forgotten in the end");
    }
    assert_eq!(kinds.len(), 14, "every kind of event was there");
}

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    fn command(&mut self) -> Command {
        let words = "é".repeat(self.roll(30));
        let key = ["a", "b", "c"][self.roll(3)];
        match self.roll(16) {
            0..=4 => Command::Append { chunks: vec![Blocks::of(&vec![text(&words); 1 + self.roll(3)]); 1 + self.roll(2)] },
            5 | 6 => Command::ReportStatus {
                message: Some(words.into()),
                progress: Some(Progress { done: self.roll(9) as f64 / 4.0, total: None }),
            },
            7 | 8 => ask(key),
            9 | 10 => answer(&[key, "c"]),
            11 | 12 => save(json!(words)),
            13 => Command::recover(Epoch(self.roll(6) as u64)),
            14 => ends()[self.roll(3)].clone(),
            _ => Command::Tick,
        }
    }

    /// A few chunks of different sizes, at least so many.
    fn chunks(&mut self, least: usize) -> Vec<Blocks> {
        let count = least + self.roll(3);
        (0..count).map(|_| Blocks::of(&vec![text(&"x".repeat(self.roll(200))); 1 + self.roll(3)])).collect()
    }

    fn birth(&mut self, name: u8) -> Command {
        let on_interrupt = if self.roll(2) == 0 { OnInterrupt::Fail } else { OnInterrupt::Retry };
        let (timeout_ms, input_timeout_ms) = (Some(60 + self.roll(200) as u64), Some(60));
        let idempotency_key = Some(name.to_string().into());
        let spec =
            Spec { on_interrupt, retention_ms: Some(30), timeout_ms, answer_timeout_ms: input_timeout_ms, idempotency_key, ..spec() };
        make(spec, vec![Blocks::of(&[text("early"), text("words")]); self.roll(3)])
    }
}

fn all_that_was_committed_and_nothing_else_survives_a_crash<S: Store>(lab: Lab<S>) {
    // Each seed opens it many times, which takes a database longer.
    for seed in 0..if lab.is_shared() { 10 } else { 200 } {
        println!("seed {seed}");
        let (mut lab, mut dice) = (Lab::new(lab.open), Dice(seed));
        let mut tasks = [1, 2, 3].map(Driver::new);
        let (mut kept, mut batch, mut names) = (tasks.clone(), Vec::new(), 3);
        for now in (1_000..).step_by(7).take(40) {
            let driver = &mut tasks[dice.roll(3)];
            let command = if driver.task.is_some() {
                dice.command()
            } else {
                names += 1;
                *driver = Driver::new(names);
                dice.birth(names)
            };
            driver.now = now;
            batch.extend(driver.run(&command));
            match dice.roll(16) {
                0 => {
                    batch.clear();
                    tasks = kept.clone();
                    lab.kill();
                    lab.check_all(&kept);
                }
                1 => {
                    lab.reopen();
                    lab.check_all(&kept);
                }
                2..=9 => {
                    lab.store().commit_now(&batch, &[]).expect("the batch is committed");
                    batch.clear();
                    kept = tasks.clone();
                    lab.check_all(&kept);
                }
                _ => {}
            }
        }
    }
}

fn chunks_are_read_from_any_place_within_a_bound<S: Store>(mut lab: Lab<S>) {
    let mut driver = Driver::new(1);
    lab.run(&mut driver, &make(spec(), vec![]));
    let written: Vec<Blocks> = (0..12).map(|n| Blocks::of(&vec![text(&"x".repeat(n * 5)); 1 + n % 3])).collect();
    for chunks in written.chunks(5) {
        lab.run(&mut driver, &Command::Append { chunks: chunks.to_vec() });
    }
    let reader = lab.reader();
    let all = reader.chunks(driver.id, Seq(0), usize::MAX, usize::MAX).wait().expect("chunks are read");
    assert_eq!(all.len(), written.len());
    let mut first_block = 1;
    for (seq, (chunk, blocks)) in (0..).zip(all.iter().zip(&written)) {
        assert_eq!((chunk.seq, chunk.first_block), (Seq(seq), first_block), "numbers are dense");
        assert_eq!(chunk.blocks, *blocks);
        first_block += blocks.count();
    }
    let sizes: Vec<usize> = all.iter().map(|chunk| chunk.blocks.as_str().len()).collect();
    for bound in [0, 1, sizes[0], sizes[0] + sizes[1], 300, 700, usize::MAX] {
        for from in 0..all.len() {
            let page = reader.chunks(driver.id, Seq(from as u64), bound, usize::MAX).wait().expect("chunks are read");
            let end = from + page.len();
            assert!(!page.is_empty(), "at least one");
            assert_eq!(page[..], all[from..end], "in order, without a gap");
            assert!(page.len() == 1 || sizes[from..end].iter().sum::<usize>() <= bound, "no more than asked for");
            assert!(end == all.len() || sizes[from..=end].iter().sum::<usize>() > bound, "no less than fits");
            let few = reader.chunks(driver.id, Seq(from as u64), bound, 2).wait().expect("chunks are read");
            assert_eq!(few[..], page[..page.len().min(2)], "no more than so many");
        }
        assert!(reader.chunks(driver.id, Seq(12), bound, usize::MAX).wait().expect("chunks are read").is_empty(), "none after the last");
    }
}

/// A task that has seen so many commands, some of which wrote several chunks, and what its log has. By its name it has
/// ended or not, and keeps all its chunks or only the last.
fn filled<S: Store>(lab: &mut Lab<S>, name: u8, commands: u32, dice: &mut Dice) -> (Driver, Vec<LogItem>) {
    let mut driver = Driver::new(name);
    let overflow = if name.is_multiple_of(2) { Overflow::DropOldest } else { Overflow::Fail };
    if overflow == Overflow::DropOldest {
        driver.limits.task_output_bytes = 2_000;
    }
    let mut writes = vec![driver.run(&make(Spec { overflow, ..spec() }, dice.chunks(0))).expect("it is new")];
    for n in 0..commands {
        driver.now += 1;
        let command = match dice.roll(4) {
            0 => Command::Append { chunks: dice.chunks(1) },
            1 => Command::Save { chunks: dice.chunks(0), checkpoint: json!(n).into() },
            _ => Command::ReportStatus { message: Some(n.to_string().into()), progress: None },
        };
        writes.push(driver.run(&command).expect("it is open, and this is new"));
    }
    if name.is_multiple_of(3) {
        writes.push(driver.run(&ends()[0]).expect("it is open"));
    }
    lab.store().commit_now(&writes, &[]).expect("the writes are committed");
    let kept = lab.reader().chunk_range(driver.id).wait().expect("the span is read");
    let mut log = Vec::new();
    for TaskWrite { first_version: first, at, events, .. } in writes {
        for (version, event) in (first.0..).map(Version).zip(events) {
            match event {
                Event::Appended { seq, first_block, blocks } if seq >= kept.start => {
                    log.push(LogItem::Chunk(Chunk { seq, version, first_block, blocks }));
                }
                Event::Appended { .. } => {}
                _ if driver.stale.contains(&version) => {}
                event => log.push(LogItem::Event(StoredEvent { version, at, event })),
            }
        }
    }
    (driver, log)
}

/// All that follows a cursor, read page by page; each page is checked against what was asked for.
fn read_on(reader: &dyn Reader, driver: &Driver, mut cursor: Cursor) -> Vec<LogItem> {
    let task = driver.task.as_ref().expect("it is there");
    let mut read = Vec::new();
    loop {
        let page = reader.page(driver.id, cursor).wait().expect("the page is read").expect("it is there");
        assert_eq!((page.next_seq, page.ended), (task.output.next_seq, task.ended.is_some()), "{cursor:?}");
        assert!(page.upto >= cursor.after, "a place never goes back: {cursor:?} {page:?}");
        let mut sizes = Vec::new();
        for entry in &page.items {
            match entry {
                LogItem::Event(logged) => assert!(logged.version > cursor.after && logged.version <= page.upto, "{cursor:?} {logged:?}"),
                LogItem::Chunk(chunk) => {
                    sizes.push(chunk.blocks.as_str().len());
                    cursor.from = Some(chunk.seq.next());
                }
            }
        }
        assert!(sizes.len() <= cursor.max_chunks, "no more than so many: {cursor:?}");
        assert!(sizes.len() <= 1 || sizes.iter().sum::<usize>() <= cursor.max_bytes, "no more than asked for: {cursor:?}");
        assert!(!page.more || !page.items.is_empty(), "it goes on: {cursor:?}");
        cursor.after = page.upto;
        read.extend(page.items);
        if !page.more {
            assert!(page.upto >= task.version, "there is nothing beyond it: {cursor:?}");
            let after = reader.page(driver.id, cursor).wait().expect("the page is read").expect("it is there");
            assert!(after.items.is_empty() && !after.more, "it was the last one: {cursor:?}");
            return read;
        }
    }
}

/// What follows a cursor in a log.
fn following(log: &[LogItem], cursor: Cursor) -> Vec<LogItem> {
    let follows = |entry: &&LogItem| match entry {
        LogItem::Event(logged) => logged.version > cursor.after,
        LogItem::Chunk(chunk) => cursor.from.is_some_and(|from| chunk.seq >= from),
    };
    log.iter().filter(follows).cloned().collect()
}

fn a_log_is_read_on_from_any_place_in_one_order<S: Store>(mut lab: Lab<S>) {
    let mut dice = Dice(7);
    // The last two have more than one page takes.
    let mut tasks: Vec<_> = (1..=8).map(|name| filled(&mut lab, name, if name <= 6 { 12 } else { 300 }, &mut dice)).collect();
    lab.reopen();
    let reader = lab.reader();
    for (driver, log) in &tasks {
        let task = driver.task.as_ref().expect("it is there");
        let afters: Vec<Version> = (0..task.version.0 + 2).chain([u64::MAX]).map(Version).collect();
        let seqs = (0..task.output.next_seq.0 + 2).chain([u64::MAX]).map(Seq);
        let froms: Vec<Option<Seq>> = seqs.map(Some).chain([None]).collect();
        // Every cursor in a short log, some in a long one.
        let cursors: Vec<(Version, Option<Seq>)> = if log.len() < 100 {
            afters.iter().flat_map(|after| froms.iter().map(move |from| (*after, *from))).collect()
        } else {
            (0..50).map(|_| (afters[dice.roll(afters.len())], froms[dice.roll(froms.len())])).collect()
        };
        for (after, from) in cursors {
            let (bytes, chunks) = ([0, 1, 300, 3_000, usize::MAX][dice.roll(5)], [1, 2, 7, usize::MAX][dice.roll(4)]);
            let cursor = Cursor { after, from, max_bytes: bytes, max_chunks: chunks };
            assert_eq!(read_on(&*reader, driver, cursor), following(log, cursor), "{cursor:?}");
        }
    }
    let all = Cursor { after: Version(0), from: Some(Seq(0)), max_bytes: usize::MAX, max_chunks: usize::MAX };
    let page = |id| reader.page(id, all).wait().expect("the page is read");
    assert_eq!(page(Driver::new(9).id), None, "it never was");
    let (mut driver, _) = tasks.remove(0);
    lab.run(&mut driver, &ends()[0]);
    assert!(page(driver.id).is_some_and(|page| page.ended));
    driver.now += 1_000;
    lab.run(&mut driver, &Command::Tick);
    assert_eq!(page(driver.id), None, "it was forgotten");
}

fn chunks_that_came_before_the_task_are_counted<S: Store>(mut lab: Lab<S>) {
    let chunks = vec![Blocks::of(&[text("a"), text("bb")]), Blocks::of(&[text("ccc")]), Blocks::of(&vec![text("d"); 3])];
    let bytes = chunks.iter().map(Blocks::bytes).sum();
    let mut driver = Driver::new(1);
    assert_eq!(lab.run(&mut driver, &make(spec(), chunks)).events.len(), 5, "created, three chunks, said");
    let loaded = lab.store().load_now(driver.id).expect("the task is loaded").expect("it is there");
    assert_eq!(loaded.output, OutputTotals { next_seq: Seq(3), blocks: 6, bytes });
    lab.run(&mut driver, &append("e"));
    let chunks = lab.reader().chunks(driver.id, Seq(0), usize::MAX, usize::MAX).wait().expect("chunks are read");
    assert_eq!(chunks.iter().map(|chunk| chunk.first_block).collect::<Vec<_>>(), [1, 3, 4, 7]);
    assert_eq!(chunks.iter().map(|chunk| chunk.version.0).collect::<Vec<_>>(), [2, 3, 4, 6]);
}

fn chunks_of_one_write_keep_their_versions_whatever_is_between_them<S: Store>(mut lab: Lab<S>) {
    let mut driver = Driver::new(1);
    lab.run(&mut driver, &make(spec(), vec![]));
    // What a batch makes of several commands is one write.
    let mut write = driver.run(&append("a")).expect("it is open");
    for command in [ask("between"), append("b"), append("c"), ask("again"), append("d")] {
        let next = driver.run(&command).expect("it is open");
        write.events.extend(next.events);
        (write.task, write.stored_bytes) = (next.task, next.stored_bytes);
    }
    lab.store().commit_now(&[write], &[]).expect("it is committed");
    lab.reopen();
    lab.check(&driver);
    let chunks = lab.reader().chunks(driver.id, Seq(0), usize::MAX, usize::MAX).wait().expect("chunks are read");
    assert_eq!(chunks.iter().map(|chunk| chunk.version.0).collect::<Vec<_>>(), [2, 4, 5, 7]);
}

fn the_oldest_chunks_go_and_the_rest_stays_as_it_was<S: Store>(mut lab: Lab<S>) {
    let mut driver = Driver::new(1);
    driver.limits.task_output_bytes = 200;
    lab.run(&mut driver, &make(Spec { overflow: Overflow::DropOldest, ..spec() }, vec![]));
    assert_eq!(lab.reader().chunk_range(driver.id).wait().expect("the span is read"), Seq(0)..Seq(0));
    for n in 0..20u64 {
        let write = driver.run(&append(&"x".repeat(n as usize))).expect("it is never refused");
        lab.store().commit_now(&[write], &[]).expect("the chunk is committed");
        let span = lab.reader().chunk_range(driver.id).wait().expect("the span is read");
        let kept = lab.reader().chunks(driver.id, Seq(0), usize::MAX, usize::MAX).wait().expect("chunks are read");
        assert_eq!(span, kept[0].seq..Seq(n + 1));
        assert!(kept.iter().zip(span.start.0..).all(|(chunk, seq)| chunk.seq == Seq(seq)), "without a gap");
        let bytes = |chunks: &[Chunk]| chunks.iter().map(|chunk| chunk.blocks.bytes()).sum::<u64>();
        assert!(bytes(&kept[1..]) < 200, "no more is kept than the limit and the chunk that crosses it");
        assert!(span.start == Seq(0) || bytes(&kept) >= 200, "no less is kept than the limit");
    }
    let loaded = lab.store().load_now(driver.id).expect("the task is loaded").expect("it is there");
    assert_eq!(Some(loaded.output), driver.task.as_ref().map(|task| task.output), "numbers go on");
}

/// Each commit has a chunk and an event: no page has one without the other.
fn a_page_is_of_one_moment<S: Store>(mut lab: Lab<S>) {
    let over = Arc::new(AtomicBool::new(false));
    for name in 1..=20 {
        let mut driver = Driver::new(name);
        let birth = driver.run(&make(spec(), vec![])).expect("it is new");
        lab.store().commit_now(&[birth], &[]).expect("the birth is committed");
        let (reader, id, done) = (lab.reader(), driver.id, over.clone());
        let looks = std::thread::spawn(move || {
            while !done.load(Ordering::Acquire) {
                let cursor = Cursor { after: Version(1), from: Some(Seq(0)), max_bytes: usize::MAX, max_chunks: usize::MAX };
                let page = reader.page(id, cursor).wait().expect("the page is read").expect("it is there");
                let chunks = page.items.iter().filter(|entry| matches!(entry, LogItem::Chunk(_))).count();
                assert_eq!((chunks * 2, page.next_seq), (page.items.len(), Seq(chunks as u64)), "{page:?}");
            }
        });
        for n in 0..PAGE_EVENTS as u64 {
            let said = Command::ReportStatus { message: Some(n.to_string().into()), progress: None };
            let pair = [append("x"), said].map(|command| driver.run(&command).expect("it is open"));
            lab.store().commit_now(&pair, &[]).expect("the pair is committed");
        }
        over.store(true, Ordering::Release);
        looks.join().expect("no page has one without the other");
        over.store(false, Ordering::Release);
    }
}

fn only_the_newest_checkpoint_is_kept<S: Store>(mut lab: Lab<S>) {
    let mut driver = Driver::new(1);
    lab.run(&mut driver, &make(spec(), vec![]));
    for n in 0..3 {
        lab.run(&mut driver, &save(json!(n)));
        lab.run(&mut driver, &append("between"));
    }
    lab.run(&mut driver, &Command::recover(Epoch(2)));
    assert_eq!(driver.stale, BTreeSet::from([Version(2), Version(4)]));
    let event = |version| lab.reader().event(driver.id, Version(version)).wait().expect("the event is read");
    assert_eq!((event(2), event(4)), (None, None));
    assert_eq!(event(6), Some(Event::Saved { checkpoint: json!(2).into() }));
}

fn tasks_fall_due_in_order_and_once_more_after_their_end<S: Store>(mut lab: Lab<S>) {
    let due =
        |lab: &Lab<S>, now, limit| lab.reader().due_tasks(Timestamp::from_millis(now), None, limit).wait().expect("due tasks are listed");
    let next =
        |lab: &Lab<S>| lab.reader().next_due(Timestamp::default()).wait().expect("the next moment is read").map(Timestamp::as_millis);
    let [mut a, mut b, mut c] = [1, 2, 3].map(Driver::new);
    lab.run(&mut c, &make(spec(), vec![]));
    assert_eq!((next(&lab), due(&lab, i64::MAX, 9)), (None, vec![]), "without a limit nothing is due");
    lab.run(&mut a, &make(Spec { timeout_ms: Some(300), ..spec() }, vec![]));
    lab.run(&mut b, &make(Spec { timeout_ms: Some(100), answer_timeout_ms: Some(1_000), ..spec() }, vec![]));
    assert_eq!((next(&lab), due(&lab, 1_099, 9), due(&lab, 1_100, 9)), (Some(1_100), vec![], vec![b.id]));
    assert_eq!((due(&lab, 9_999, 9), due(&lab, 9_999, 1)), (vec![b.id, a.id], vec![b.id]));
    b.now = 1_010;
    lab.run(&mut b, &ask("a"));
    assert_eq!((next(&lab), due(&lab, 9_999, 9)), (Some(1_300), vec![a.id, b.id]), "a question has another time");
    c.now = 1_020;
    lab.run(&mut c, &ends()[0]);
    a.now = 1_300;
    lab.run(&mut a, &Command::Tick);
    lab.reopen();
    assert_eq!((next(&lab), due(&lab, 9_999, 9)), (Some(2_010), vec![b.id, c.id, a.id]), "ended tasks are due by retention");
    c.now = 2_020;
    lab.run(&mut c, &Command::Tick);
    assert_eq!(due(&lab, 9_999, 9), [b.id, a.id], "what is forgotten is not due");
}

fn open_tasks_are_listed_in_pages_by_id_and_counted_by_caller<S: Store>(mut lab: Lab<S>) {
    let mut drivers = [4, 1, 5, 3, 2].map(Driver::new);
    for (driver, caller) in drivers.iter_mut().zip(["me", "you", "me", "they", "me"]) {
        lab.run(driver, &make(Spec { caller: CallerId::new(caller), ..spec() }, vec![]));
    }
    lab.run(&mut drivers[3], &ends()[0]);
    lab.reopen();
    lab.check_all(&drivers);
    let [four, one, five, _, two] = drivers.map(|driver| driver.id);
    let page = |after| lab.reader().open_tasks(after, 2).wait().expect("open tasks are listed");
    assert_eq!([page(None), page(Some(two)), page(Some(five))], [vec![one, two], vec![four, five], vec![]]);
}

fn what_each_caller_has_is_added_up<S: Store>(mut lab: Lab<S>) {
    let mut drivers: Vec<Driver> = (1..=6).map(Driver::new).collect();
    drivers[5].limits.task_output_bytes = 300;
    for (driver, caller) in drivers.iter_mut().zip(["me", "you", "me", "you", "me", "me"]) {
        let overflow = if driver.limits == Limits::DEFAULT { Overflow::Fail } else { Overflow::DropOldest };
        lab.run(driver, &make(Spec { caller: CallerId::new(caller), overflow, ..spec() }, vec![Blocks::of(&[text("x")])]));
        for n in 0..10 {
            let write = driver.run(&append(&"x".repeat(n * 10))).expect("it may write");
            lab.store().commit_now(&[write], &[]).expect("the chunk is committed");
        }
    }
    for driver in &mut drivers[1..] {
        let write = driver.run(&ends()[0]).expect("it is open");
        lab.store().commit_now(&[write], &[]).expect("the end is committed");
    }
    for _ in 0..2 {
        lab.check_usage(&drivers);
        for driver in &drivers[1..] {
            let task = driver.task.as_ref().expect("it is there");
            let bytes = lab.store().stored_bytes_now(task.id).expect("it is read");
            assert_eq!(bytes, task.stored_bytes(&driver.limits), "each counts as it did at its end");
        }
        lab.kill();
    }
    let last = drivers.last_mut().expect("there are some");
    last.now += 1_000;
    let write = last.run(&Command::Tick).expect("it is due");
    lab.store().commit_now(&[write], &[]).expect("it is forgotten");
    lab.check_usage(&drivers);
    assert_eq!(lab.store().stored_bytes_now(Driver::new(6).id).expect("it is read"), 0);
}

fn an_idempotency_key_is_its_callers_until_the_task_is_forgotten<S: Store>(mut lab: Lab<S>) {
    let keyed = |caller| make(Spec { caller: CallerId::new(caller), idempotency_key: Some("k".into()), ..spec() }, vec![]);
    let find =
        |lab: &Lab<S>, caller, key| lab.reader().by_key(CallKey::Idempotency(&CallerId::new(caller), key)).wait().expect("the key is read");
    let [mut mine, mut yours, mut again] = [1, 2, 3].map(Driver::new);
    lab.run(&mut mine, &keyed("me"));
    assert_eq!(lab.reader().owner(mine.id).wait().expect("the owner is read"), Some(CallerId::new("me")));
    assert_eq!(lab.reader().owner(yours.id).wait().expect("the owner is read"), None);
    let is_there = |caller, id| lab.reader().task_of(&CallerId::new(caller), id).wait().expect("the task is read").is_some();
    assert_eq!([("me", mine.id), ("you", mine.id), ("me", yours.id)].map(|(caller, id)| is_there(caller, id)), [true, false, false]);
    let is_of = |caller, id| lab.reader().is_of(&CallerId::new(caller), id).wait().expect("the owner is read");
    assert_eq!([("me", mine.id), ("you", mine.id), ("me", yours.id)].map(|(caller, id)| is_of(caller, id)), [true, false, false]);
    assert_eq!((find(&lab, "me", "k"), find(&lab, "you", "k"), find(&lab, "me", "j")), (Some(mine.id), None, None));
    lab.run(&mut yours, &keyed("you"));
    lab.run(&mut mine, &ends()[0]);
    lab.reopen();
    assert_eq!((find(&lab, "me", "k"), find(&lab, "you", "k")), (Some(mine.id), Some(yours.id)), "an ended task is still found");
    mine.now += 1_000;
    lab.run(&mut mine, &Command::Tick);
    assert_eq!((find(&lab, "me", "k"), find(&lab, "you", "k")), (None, Some(yours.id)));
    lab.run(&mut again, &keyed("me"));
    assert_eq!(find(&lab, "me", "k"), Some(again.id), "a key that was let go can be used again");
}

fn a_dedupe_key_is_taken_until_the_task_ends<S: Store>(mut lab: Lab<S>) {
    let deduped = |hidden| make(Spec { fingerprint: Some("f".into()), hidden, ..spec() }, vec![]);
    let find =
        |lab: &Lab<S>, hidden| lab.reader().by_key(CallKey::Dedupe(&CallerId::new("me"), hidden, "f")).wait().expect("the key is read");
    let [mut known, mut hidden, mut again] = [1, 2, 3].map(Driver::new);
    lab.run(&mut known, &deduped(false));
    assert_eq!((find(&lab, false), find(&lab, true)), (Some(known.id), None), "whether the caller knows the task makes a difference");
    lab.run(&mut hidden, &deduped(true));
    lab.reopen();
    assert_eq!((find(&lab, false), find(&lab, true)), (Some(known.id), Some(hidden.id)));
    let birth = again.clone().run(&deduped(false)).expect("it is new");
    let written = lab.store().try_commit_now(&[birth], &[]).expect("the store works");
    assert_eq!(written, [Written::KeyTaken(known.id)]);
    lab.check(&Driver::new(3));
    lab.run(&mut known, &ends()[0]);
    assert_eq!((find(&lab, false), find(&lab, true)), (None, Some(hidden.id)), "nobody joins what has ended");
    lab.run(&mut again, &deduped(false));
    known.now += 1_000;
    lab.run(&mut known, &Command::Tick);
    assert_eq!(find(&lab, false), Some(again.id), "who took the key since keeps it");
}

fn a_write_is_refused_if_its_task_has_changed_and_the_others_are_carried_out<S: Store>(mut lab: Lab<S>) {
    let ([mut old, mut other], mut new) = ([1, 2].map(Driver::new), Driver::new(3));
    lab.run(&mut old, &make(spec(), vec![]));
    lab.run(&mut other, &make(spec(), vec![]));
    for reopened in [false, true] {
        // Two nodes decide on the same version; one of them is first.
        let mut late = old.clone();
        let lost = late.run(&append("lost")).expect("it is open");
        let first = old.run(&ask(if reopened { "b" } else { "a" })).expect("it is open");
        lab.store().commit_now(&[first], &[]).expect("it is committed");
        if reopened {
            lab.reopen();
        }
        let kept = other.run(&append("kept")).expect("it is open");
        let written = lab.store().try_commit_now(&[lost, kept], &[]).expect("the store works");
        assert_eq!(written, [Written::Conflict(old.task.clone().map(Box::new)), Written::Done]);
        lab.check_all(&[old.clone(), other.clone()]);
    }
    let keyed = || make(Spec { idempotency_key: Some("k".into()), ..spec() }, vec![]);
    let birth = new.run(&keyed()).expect("it is new");
    let same = Driver::new(4).run(&keyed()).expect("it is new");
    let written = lab.store().try_commit_now(&[birth.clone(), same], &[]).expect("the store works");
    assert_eq!(written, [Written::Done, Written::KeyTaken(new.id)]);
    let written = lab.store().try_commit_now(&[birth], &[]).expect("the store works");
    assert_eq!(written, [Written::Conflict(new.task.clone().map(Box::new))], "a task is created once");
    lab.check_all(&[old.clone(), other, new, Driver::new(4)]);
    old.now += 1;
    let end = old.run(&ends()[0]).expect("it is open");
    let mut stale = old.clone();
    stale.now += 1_000;
    let forgotten = stale.run(&Command::Tick).expect("it is due");
    lab.store().commit_now(&[end], &[]).expect("it is committed");
    lab.store().commit_now(slice::from_ref(&forgotten), &[]).expect("it is committed");
    assert_eq!(lab.store().try_commit_now(&[forgotten], &[]).expect("the store works"), [Written::Conflict(None)], "it is gone");
}

fn session(name: &str, caller: &str, seen: i64) -> Session {
    let data = json!({ "of": name }).into();
    Session { id: SessionId::new(name), caller: CallerId::new(caller), last_used: Timestamp::from_millis(seen), data }
}

impl<S: Store> Lab<S> {
    fn change(&mut self, changes: &[SessionChange]) {
        self.store().commit_now(&[], changes).expect("the changes are committed");
    }

    fn session(&self, name: &str) -> Option<Session> {
        self.reader().session(&SessionId::new(name)).wait().expect("the session is read")
    }

    /// The outbox of a session after `after`: which task, which events, which chunks.
    fn outbox(&self, name: &str, after: u64) -> Vec<(u64, TaskId, u64, u64, u64, u64)> {
        let items = self.reader().outbox(&SessionId::new(name), after, 100).wait().expect("it is read");
        items
            .iter()
            .map(|item| (item.position, item.task, item.first_version.0, item.last_version.0, item.first_seq.0, item.end_seq.0))
            .collect()
    }
}

fn sessions_are_kept_changed_and_ended<S: Store>(mut lab: Lab<S>) {
    let (one, two) = (session("one", "me", 1), session("two", "you", 2));
    lab.change(&[SessionChange::Begin(one.clone()), SessionChange::Begin(two.clone())]);
    lab.kill();
    assert_eq!((lab.session("one"), lab.session("two"), lab.session("three")), (Some(one.clone()), Some(two.clone()), None));
    let later = Session { data: json!([1]).into(), ..session("one", "me", 9) };
    let update =
        |session: &Session, before: &Session| SessionChange::Update { session: session.clone(), before: Some(before.data.clone()) };
    lab.change(&[update(&later, &one), SessionChange::End(two.id.clone())]);
    let three = session("three", "me", 1);
    lab.change(&[update(&two, &two), update(&three, &three)]);
    // Another node has changed it since.
    lab.change(&[update(&session("one", "me", 10), &one)]);
    lab.reopen();
    assert_eq!((lab.session("one"), lab.session("two"), lab.session("three")), (Some(later), None, None), "what is gone stays gone");
}

fn sessions_that_are_idle_or_too_many_are_named<S: Store>(mut lab: Lab<S>) {
    let all = [("a", "me", 1), ("b", "me", 5), ("c", "me", 3), ("d", "you", 2), ("e", "you", 9)];
    lab.change(&all.map(|(name, caller, seen)| SessionChange::Begin(session(name, caller, seen))));
    let idle = |caller: &str, before, keep| {
        let ids = lab.reader().idle_sessions(&CallerId::new(caller), Timestamp::from_millis(before), keep).wait().expect("they are read");
        ids.iter().map(|id| id.as_str().to_owned()).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join("")
    };
    assert_eq!(idle("me", 0, 3), "");
    assert_eq!(idle("me", 3, 3), "ad", "whoever's they are");
    assert_eq!(idle("me", 0, 1), "ac", "the latest stays");
    assert_eq!(idle("you", 2, 0), "ade");
    assert_eq!(idle("nobody", 0, 0), "");
}

fn following_spec(session: &str, output: bool) -> Spec {
    Spec { outbox: Some(OutboxTarget { session: SessionId::new(session), output }), ..spec() }
}

fn a_session_is_told_of_its_tasks_in_one_order<S: Store>(mut lab: Lab<S>) {
    lab.change(&[SessionChange::Begin(session("one", "me", 1)), SessionChange::Begin(session("two", "me", 1))]);
    let [mut loud, mut quiet, mut other, mut hidden, mut orphan] = [1, 2, 3, 4, 5].map(Driver::new);
    lab.run(&mut loud, &make(following_spec("one", true), vec![Blocks::of(&[text("early")])]));
    lab.run(&mut quiet, &make(following_spec("one", false), vec![]));
    lab.run(&mut other, &make(spec(), vec![]));
    lab.run(&mut hidden, &make(Spec { hidden: true, ..following_spec("one", true) }, vec![]));
    lab.run(&mut orphan, &make(following_spec("nobody", true), vec![]));
    for driver in [&mut loud, &mut quiet, &mut other, &mut hidden, &mut orphan] {
        lab.run(driver, &append("a"));
        lab.run(driver, &ask("k"));
        lab.run(driver, &save(json!(1)));
    }
    let expected = [(1, loud.id, 1, 3, 0, 1), (2, loud.id, 4, 4, 1, 2), (3, loud.id, 5, 5, 2, 2), (4, quiet.id, 3, 3, 1, 1)];
    assert_eq!(lab.outbox("one", 0), expected, "its own, and of output only where it wants to hear of it");
    assert_eq!((lab.outbox("one", 2), lab.outbox("two", 0), lab.outbox("nobody", 0)), (expected[2..].to_vec(), vec![], vec![]));
    lab.kill();
    assert_eq!(lab.outbox("one", 0), expected);
    let end = |lab: &Lab<S>, name: &str| lab.reader().outbox_end(&SessionId::new(name)).wait().expect("it is read");
    assert_eq!((end(&lab, "one"), end(&lab, "two")), (4, 0));
    lab.change(&[SessionChange::End(SessionId::new("one"))]);
    lab.run(&mut loud, &answer(&["k"]));
    assert_eq!((lab.outbox("one", 0), end(&lab, "one")), (vec![], 0), "nobody is there to be told");
}

fn what_a_session_is_told_is_bounded<S: Store>(mut lab: Lab<S>) {
    lab.change(&[SessionChange::Begin(session("one", "me", 1))]);
    let mut driver = Driver::new(1);
    lab.run(&mut driver, &make(following_spec("one", true), vec![]));
    for _ in 0..10 {
        let write = TaskWrite { outbox_max: 3, ..driver.run(&append("a")).expect("it is written") };
        lab.store().commit_now(&[write], &[]).expect("the chunk is committed");
    }
    let numbers: Vec<u64> = lab.outbox("one", 0).iter().map(|item| item.0).collect();
    assert_eq!(numbers, [8, 9, 10], "the latest are kept");
}

fn the_tasks_of_a_caller_are_listed_latest_first<S: Store>(mut lab: Lab<S>) {
    let mut mine: Vec<Driver> = (1..=5).map(Driver::new).collect();
    let mut theirs = Driver::new(9);
    for driver in &mut mine {
        lab.run(driver, &make(spec(), vec![]));
    }
    lab.run(&mut theirs, &make(Spec { caller: CallerId::new("you"), ..spec() }, vec![]));
    lab.run(&mut mine[2], &ends()[0]);
    let list = |lab: &Lab<S>, before: Option<TaskId>, limit| {
        lab.reader().tasks_of(&CallerId::new("me"), before, limit).wait().expect("they are listed")
    };
    let latest: Vec<TaskId> = mine.iter().rev().map(|driver| driver.id).collect();
    assert_eq!(list(&lab, None, 100), latest, "also those that have ended");
    assert_eq!(list(&lab, None, 2), latest[..2]);
    assert_eq!(list(&lab, Some(latest[1]), 2), latest[2..4]);
    assert_eq!(list(&lab, Some(latest[4]), 2), []);
    let expiry = &mut mine[2];
    expiry.now += 10_000;
    lab.run(expiry, &Command::Tick);
    assert_eq!(list(&lab, None, 100).len(), 4, "what is forgotten is not listed");
}

fn the_tasks_of_all_callers_are_listed_latest_first<S: Store>(mut lab: Lab<S>) {
    let mut drivers: Vec<Driver> = (1..=5).map(Driver::new).collect();
    for (driver, caller) in drivers.iter_mut().zip(["me", "you", "me", "somebody", "you"]) {
        lab.run(driver, &make(Spec { caller: CallerId::new(caller), ..spec() }, vec![]));
    }
    lab.run(&mut drivers[2], &ends()[0]);
    let list =
        |lab: &Lab<S>, open, before: Option<TaskId>, limit| lab.reader().latest_tasks(open, before, limit).wait().expect("they are listed");
    let latest: Vec<TaskId> = drivers.iter().rev().map(|driver| driver.id).collect();
    assert_eq!(list(&lab, false, None, 100), latest, "also those that have ended");
    assert_eq!(list(&lab, false, None, 2), latest[..2]);
    assert_eq!(list(&lab, false, Some(latest[1]), 2), latest[2..4]);
    assert_eq!(list(&lab, false, Some(latest[4]), 2), []);
    let open: Vec<TaskId> = latest.iter().copied().filter(|id| *id != latest[2]).collect();
    assert_eq!(list(&lab, true, None, 100), open);
    assert_eq!(list(&lab, true, Some(open[0]), 2), open[1..3]);
    let expiry = &mut drivers[2];
    expiry.now += 10_000;
    lab.run(expiry, &Command::Tick);
    assert_eq!(list(&lab, false, None, 100), open, "what is forgotten is not listed");
}
