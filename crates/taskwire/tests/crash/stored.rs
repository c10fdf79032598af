//! What the killed server left on disk, read without it: each acknowledged task's log, whole and sealed.

use serde_json::Value;
use taskwire::store::{self, Chunk, Read, Reader, Store, StoredEvent};
use taskwire_core::{
    Seq, TaskId, Timestamp, Version,
    task::{Event, Task, create, evolve},
};

use crate::model::{Facts, Kind};

/// How many steps `steps` takes.
const STEPS: u64 = 20;
/// Pages are small, so that reading on is tested too.
const PAGE_EVENTS: usize = 8;
const PAGE_BYTES: usize = 256;

/// What was read, on whichever store.
fn wait<T>(read: Read<'_, T>) -> Result<T, store::Error> {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(read))
}

/// Checks every acknowledged task in the store.
pub(crate) fn check(store: &impl Store, tasks: &[(String, Facts)]) {
    let (reader, is_shared) = (store.reader(), store.cluster().is_some());
    for (id, facts) in tasks {
        check_task(&*reader, is_shared, id.parse().expect("an id"), facts.call.kind);
    }
}

fn check_task(reader: &dyn Reader, is_shared: bool, id: TaskId, kind: Kind) {
    let (events, chunks) = (events(reader, id), chunks(reader, id));
    for (seq, chunk) in (0..).map(Seq).zip(&chunks) {
        assert_eq!(chunk.seq, seq, "the chunks of {id} are not dense");
    }
    let interruptions = check_attempts(id, is_shared, kind, &events);
    check_end(id, &events, &chunks);
    if kind == Kind::Steps {
        check_steps(id, &chunks, interruptions);
    }
    let stored = wait(reader.task(id)).expect("readable").unwrap_or_else(|| panic!("{id} was acknowledged and is lost"));
    assert_eq!(fold(id, &events, &chunks), *stored, "the log of {id} makes another task than the stored one");
}

fn events(reader: &dyn Reader, id: TaskId) -> Vec<StoredEvent> {
    let mut events: Vec<StoredEvent> = Vec::new();
    loop {
        let after = events.last().map_or(Version(0), |last| last.version);
        let page = wait(reader.events(id, after, PAGE_EVENTS)).expect("events can be read");
        if page.is_empty() {
            return events;
        }
        events.extend(page);
    }
}

fn chunks(reader: &dyn Reader, id: TaskId) -> Vec<Chunk> {
    let mut chunks: Vec<Chunk> = Vec::new();
    loop {
        let from = chunks.last().map_or(Seq(0), |last| last.seq.next());
        let page = wait(reader.chunks(id, from, PAGE_BYTES, usize::MAX)).expect("chunks can be read");
        if page.is_empty() {
            return chunks;
        }
        chunks.extend(page);
    }
}

/// Attempts follow each other, each under a later start of the server than the one before, or, where nodes share the store, under another
/// node, which may have started earlier; only retried tasks have more than one.
fn check_attempts(id: TaskId, is_shared: bool, kind: Kind, events: &[StoredEvent]) -> usize {
    let Some(Event::Created { epoch, .. }) = events.first().map(|first| &first.event) else {
        panic!("the log of {id} does not begin with its creation: {events:?}");
    };
    let (mut last_attempt, mut last_epoch, mut count) = (1, *epoch, 0);
    for logged in events {
        if let Event::Started { attempt, epoch } = &logged.event {
            assert!(kind.is_retried(), "{id} was run again, which must not be: {events:?}");
            let is_next = if is_shared { *epoch != last_epoch } else { *epoch > last_epoch };
            assert!(attempt.0 == last_attempt + 1 && is_next, "attempts of {id} are out of order: {events:?}");
            (last_attempt, last_epoch, count) = (attempt.0, *epoch, count + 1);
        }
    }
    count
}

/// One event ended the task, and nothing came after it.
fn check_end(id: TaskId, events: &[StoredEvent], chunks: &[Chunk]) {
    let ends: Vec<Version> = events.iter().filter(|logged| logged.event.outcome().is_some()).map(|logged| logged.version).collect();
    let [end] = ends[..] else { panic!("{id} ended {} times: {events:?}", ends.len()) };
    assert!(events.iter().all(|logged| logged.version <= end), "{id} has events after its end: {events:?}");
    assert!(chunks.iter().all(|chunk| chunk.version < end), "{id} has output after its end: {chunks:?}");
}

/// No step is missing, and none was written again but for an interruption.
fn check_steps(id: TaskId, chunks: &[Chunk], interruptions: usize) {
    let blocks = chunks.iter().flat_map(|chunk| serde_json::from_str::<Vec<Value>>(chunk.blocks.as_str()).expect("a chunk is an array"));
    let text: String = blocks.map(|block| block["text"].as_str().expect("steps are text").to_owned()).collect();
    let number = |line: &str| line.strip_prefix("step ").and_then(|number| number.parse::<u64>().ok());
    let steps: Vec<u64> = text.lines().map(|line| number(line).unwrap_or_else(|| panic!("{id} wrote {line:?}"))).collect();
    let again = steps.windows(2).filter(|pair| pair[1] == pair[0]).count();
    let orderly = steps.windows(2).all(|pair| pair[1] == pair[0] || pair[1] == pair[0] + 1);
    assert!(orderly && steps.first() == Some(&1) && steps.last() == Some(&STEPS), "the steps of {id} are not in order: {steps:?}");
    assert!(again <= interruptions, "{id} took {again} steps again after {interruptions} interruptions: {steps:?}");
}

/// The task that the log alone makes. Replaced checkpoints are not in the log any more.
fn fold(id: TaskId, events: &[StoredEvent], chunks: &[Chunk]) -> Task {
    let mut log: Vec<(Version, Timestamp, Event)> = events.iter().map(|logged| (logged.version, logged.at, logged.event.clone())).collect();
    for chunk in chunks {
        let blocks = chunk.blocks.clone();
        // When a chunk was written makes no difference to the task.
        let event = Event::Appended { seq: chunk.seq, first_block: chunk.first_block, blocks };
        log.push((chunk.version, Timestamp::default(), event));
    }
    log.sort_by_key(|(version, ..)| *version);
    let Some(((_, at, created @ Event::Created { .. }), rest)) = log.split_first() else {
        panic!("the log of {id} does not begin with its creation: {log:?}");
    };
    let mut task = create(id, created, *at);
    for (version, at, event) in rest {
        assert!(task.version < *version, "two events made version {version} of {id}: {log:?}");
        // What is missing was a checkpoint each.
        task.saves += version.0 - 1 - task.version.0;
        task.version = Version(version.0 - 1);
        evolve(&mut task, event, *at);
    }
    task
}
