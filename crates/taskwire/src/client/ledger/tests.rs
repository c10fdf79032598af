//! Tests of the ledger: several processes, kills, limits, damage.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::{fd::AsFd, unix::fs::PermissionsExt},
    process::{Child, Command, Stdio},
    thread,
};

use serde_json::json;

use super::*;
use crate::testing::TempDir;

const SERVER: &str = "http://127.0.0.1:8787/mcp";
const DAY: i64 = 24 * 3600 * 1000;

impl TempDir {
    fn open(&self) -> Ledger {
        Ledger::open(&self.0).expect("the ledger opens")
    }
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn reference(task: Option<&str>, key: Option<&str>) -> Reference {
    let reference = json!({"server": SERVER, "era": "modern", "task": task, "tool": "build", "key": key});
    serde_json::from_value(reference).expect("a reference")
}

fn call_reference(key: &str) -> Reference {
    reference(None, Some(key))
}

fn task(id: &str) -> Reference {
    reference(Some(id), None)
}

/// The tasks of a ledger, or the keys of calls without one, newest first.
fn names(ledger: &Ledger) -> Vec<String> {
    let entries = ledger.entries().expect("it can be read");
    entries.into_iter().filter_map(|entry| entry.reference.task.or(entry.reference.key)).collect()
}

fn exists(ledger: &Ledger, id: EntryId) -> bool {
    ledger.tracker_path(id.0).exists()
}

#[test]
fn a_call_is_kept_until_it_was_answered() {
    let dir = TempDir::absent();
    let mut sent = call_reference("k1");
    sent.args = Some(json!({"branch": "main"}).into());
    let first = dir.open();
    let id = first.find_or_add(&sent, at(1000)).expect("entered");
    let direct = first.find_or_add(&call_reference("k2"), at(1001)).expect("entered");
    first.remove(direct).expect("removed");
    drop(first);

    let ledger = dir.open();
    assert_eq!(names(&ledger), ["k1"]);
    let entry = ledger.find("k1").expect("it is there");
    assert_eq!((entry.id, &entry.reference), (id, &sent));
    assert_eq!((entry.status, entry.message, entry.ended), (None, None, false));
    assert_eq!((entry.created_at, entry.updated_at), (at(1000), at(1000)));

    ledger.set_task(id, &reference(Some("t1"), Some("k1")), at(2000)).expect("named");
    ledger.update_status(id, Status::InputRequired, Some("which?"), at(3000)).expect("noted");
    let entry = ledger.entry(SERVER, "t1").expect("it can be read").expect("it is there");
    assert_eq!((entry.id, entry.status, entry.message.as_deref()), (id, Some(Status::InputRequired), Some("which?")));
    assert_eq!((entry.created_at, entry.updated_at, entry.ended), (at(1000), at(3000), false));
    assert_eq!((entry.reference.key.as_deref(), entry.reference.args), (Some("k1"), None), "arguments are needed no more");
    assert!(ledger.entry("http://elsewhere", "t1").expect("it can be read").is_none());
}

#[test]
fn the_same_call_is_entered_once() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    let id = ledger.find_or_add(&call_reference("k1"), at(1)).expect("entered");
    assert_eq!(ledger.find_or_add(&call_reference("k1"), at(2)).expect("entered"), id);
    assert_eq!(ledger.find_or_add(&call_reference("k1"), at(3)).expect("found"), id);
    assert_ne!(ledger.find_or_add(&call_reference("k2"), at(4)).expect("entered"), id);
}

#[test]
fn a_task_that_was_started_elsewhere_is_found_or_entered() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    let id = ledger.find_or_add(&task("t1"), at(1)).expect("entered");
    assert_eq!(ledger.find_or_add(&task("t1"), at(2)).expect("found"), id);
    let call = ledger.find_or_add(&call_reference("k2"), at(3)).expect("entered");
    assert_eq!(ledger.find_or_add(&reference(Some("t2"), Some("k2")), at(4)).expect("found"), call, "its call was known");
    assert_eq!(ledger.entry(SERVER, "t2").expect("it can be read").expect("it has its name").id, call);
    assert_eq!(names(&ledger), ["t2", "t1"]);
}

#[test]
fn the_first_end_of_a_task_stays() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    let id = ledger.find_or_add(&task("t1"), at(1)).expect("entered");
    ledger.update_status(id, Status::Completed, Some("done"), at(2)).expect("noted");
    ledger.update_status(id, Status::Working, Some("a late word"), at(3)).expect("noted");
    let entry = ledger.find("t1").expect("it is there");
    assert_eq!((entry.status, entry.message.as_deref(), entry.ended), (Some(Status::Completed), Some("done"), true));
    assert_eq!(entry.updated_at, at(2));
}

#[test]
fn a_task_is_found_by_as_much_of_its_name_as_is_unique() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    for (nth, name) in (1..).zip(["abc1", "abc2", "abc", "a_c", "ä100%"]) {
        ledger.find_or_add(&task(name), at(nth)).expect("entered");
    }
    ledger.find_or_add(&call_reference("key-7"), at(9)).expect("entered");
    let found = |prefix: &str| ledger.find(prefix).map(|entry| entry.reference.task.or(entry.reference.key).expect("a name"));
    assert_eq!(found("abc1").expect("one"), "abc1");
    assert_eq!(found("abc").expect("a whole name counts first"), "abc");
    assert_eq!(found("a_").expect("no letter stands for another"), "a_c");
    assert_eq!(found("ä1").expect("one"), "ä100%");
    assert_eq!(found("key").expect("a call without a task"), "key-7");
    for unknown in ["", "abd", "%", "bc1", "key-7x"] {
        assert!(matches!(found(unknown), Err(Error::NoSuchEntry { prefix }) if prefix == unknown), "{unknown}");
    }
    let Err(Error::Ambiguous { prefix, candidates }) = found("ab") else { panic!("it could be three") };
    assert_eq!(prefix, "ab");
    assert_eq!(candidates, ["abc", "abc2", "abc1"].map(|name| format!("{name} (build)")), "by what one types, and what it does");
}

#[test]
fn a_name_that_two_servers_gave_is_ambiguous() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    ledger.find_or_add(&task("t1"), at(1)).expect("entered");
    ledger.find_or_add(&Reference { server: "http://elsewhere".to_owned(), ..task("t1") }, at(2)).expect("entered");
    ledger.find_or_add(&task("t10"), at(3)).expect("entered");
    let Err(Error::Ambiguous { candidates, .. }) = ledger.find("t1") else { panic!("it could be two") };
    assert_eq!(
        candidates,
        ["http://elsewhere#t1 (build)".to_owned(), format!("{SERVER}#t1 (build)")],
        "else there is nothing to choose by"
    );
}

#[test]
fn no_more_than_ten_candidates_are_named() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    for nth in 0..12 {
        ledger.find_or_add(&task(&format!("t{nth}")), at(nth)).expect("entered");
    }
    let Err(Error::Ambiguous { candidates, .. }) = ledger.find("t") else { panic!("it could be any") };
    assert_eq!(candidates.len(), CANDIDATES_MAX);
}

#[test]
fn entries_come_newest_first_and_without_arguments() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    for (key, when) in [("second", 5), ("first", 1), ("third", 9), ("fourth", 9)] {
        ledger.find_or_add(&Reference { args: Some(json!({}).into()), ..call_reference(key) }, at(when)).expect("entered");
    }
    assert_eq!(names(&ledger), ["fourth", "third", "second", "first"]);
    assert!(ledger.entries().expect("it can be read").iter().all(|entry| entry.reference.args.is_none()));
    assert!(ledger.find("first").expect("it is there").reference.args.is_some());
}

#[test]
fn the_first_answer_counts_also_after_a_restart() {
    let dir = TempDir::absent();
    let first = dir.open();
    let id = first.find_or_add(&task("t1"), at(1)).expect("entered");
    let answer = json!({"action": "accept", "content": {"n": 0.1}});
    assert_eq!(first.record_answer(id, "q2", &answer).expect("recorded"), Recorded::New);
    assert_eq!(first.record_answer(id, "q1", &json!({"action": "decline"})).expect("recorded"), Recorded::New);
    drop(first);

    let ledger = dir.open();
    let id = ledger.find_or_add(&task("t1"), at(2)).expect("found");
    let other = json!({"action": "cancel"});
    let before = Recorded::Before { answer: answer.clone(), acknowledged: false };
    assert_eq!(ledger.record_answer(id, "q2", &other).expect("looked up"), before);
    ledger.acknowledge_answer(id, "q2").expect("acknowledged");
    let before = Recorded::Before { answer: answer.clone(), acknowledged: true };
    assert_eq!(ledger.record_answer(id, "q2", &other).expect("looked up"), before);
    let answers = ledger.answers(id).expect("read");
    assert_eq!(answers, [("q2".to_owned(), answer, true), ("q1".to_owned(), json!({"action": "decline"}), false)]);

    let elsewhere = ledger.find_or_add(&task("t2"), at(3)).expect("entered");
    assert_eq!(ledger.record_answer(elsewhere, "q2", &other).expect("recorded"), Recorded::New, "keys are of one task");
}

#[test]
fn a_question_that_is_asked_once_is_kept_until_the_server_has_its_answer() {
    let dir = TempDir::absent();
    let first = dir.open();
    let id = first.find_or_add(&task("t1"), at(1)).expect("entered");
    for (key, question) in [("q2", json!({"id": 0})), ("q1", json!({"id": 1})), ("q2", json!({"id": 2}))] {
        first.record_question(id, key, &question).expect("kept");
    }
    drop(first);

    let ledger = dir.open();
    let open =
        || ledger.open_questions(id).expect("read").into_iter().map(|(key, question)| format!("{key} {question}")).collect::<Vec<_>>();
    assert_eq!(open(), [r#"q2 {"id":2}"#, r#"q1 {"id":1}"#]);
    ledger.record_answer(id, "q2", &json!("yes")).expect("recorded");
    assert_eq!(open().len(), 2, "the answer may have to be sent again");
    ledger.acknowledge_answer(id, "q2").expect("acknowledged");
    assert_eq!(open(), [r#"q1 {"id":1}"#]);
    ledger.record_question(id, "q2", &json!({"id": 3})).expect("kept");
    assert_eq!(open(), [r#"q1 {"id":1}"#], "it was answered");
    ledger.update_status(id, Status::Cancelled, None, at(2)).expect("noted");
    assert_eq!(open(), [""; 0], "there is nothing to be answered behind the end");
}

#[test]
fn so_many_questions_of_one_task_are_kept() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    let id = ledger.find_or_add(&task("t1"), at(1)).expect("entered");
    ledger.record_question(id, "large", &json!("x".repeat(QUESTION_BYTES_MAX - 1))).expect("left out");
    assert!(ledger.open_questions(id).expect("read").is_empty());
    ledger.record_question(id, "just", &json!("x".repeat(QUESTION_BYTES_MAX - 2))).expect("kept");
    assert_eq!(ledger.open_questions(id).expect("read").len(), 1);
    let sql = "WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
               INSERT INTO question(entry, key, question) SELECT ?2, 'q' || i, '1' FROM n";
    ledger.lock().execute(sql, params![QUESTIONS_MAX, id.0]).expect("filled");
    let error = ledger.record_question(id, "more", &json!(1)).expect_err("it is full");
    assert!(error.to_string().contains("10000 questions"), "{error}");
    ledger.record_question(id, "just", &json!(2)).expect("it replaces the other");
}

#[test]
fn a_reference_that_changes_is_kept_as_it_is_now() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    let mut reference = call_reference("k1");
    let id = ledger.find_or_add(&reference, at(1)).expect("entered");
    ledger.record_answer(id, "q1", &json!("to the call")).expect("recorded");
    reference.task = Some("t1".to_owned());
    for session in ["s1", "s2"] {
        reference.session = Some(session.to_owned());
        ledger.set_task(id, &reference, at(2)).expect("named");
        assert_eq!(ledger.find("t1").expect("it is there").reference, reference);
        assert_eq!(ledger.answers(id).expect("read").len(), usize::from(session == "s2"), "those of the call are gone");
        ledger.record_answer(id, "q1", &json!("to the task")).expect("recorded");
    }
    reference.task = None;
    let error = ledger.set_task(id, &reference, at(3)).expect_err("it has no name");
    assert!(error.to_string().contains("without a name"), "{error}");
}

#[test]
fn one_of_many_threads_answers() {
    let dir = TempDir::absent();
    let id = dir.open().find_or_add(&task("t1"), at(1)).expect("entered");
    let (one, two) = (dir.open(), dir.open());
    let won: usize = thread::scope(|scope| {
        let ledgers = [&one, &two, &one, &two];
        let threads = ledgers.map(|ledger| scope.spawn(move || (0..25).filter(|nth| answers(ledger, id, *nth)).count()));
        threads.into_iter().map(|thread| thread.join().expect("it ends")).sum()
    });
    assert_eq!(won, 25);
}

/// Whether this one was the first to answer.
fn answers(ledger: &Ledger, id: EntryId, nth: u64) -> bool {
    ledger.record_answer(id, &format!("q{nth}"), &json!(std::process::id())).expect("recorded") == Recorded::New
}

#[test]
fn many_open_a_new_ledger_at_once() {
    let dir = TempDir::absent();
    let ids: Vec<EntryId> = thread::scope(|scope| {
        let open = || dir.open().find_or_add(&task("t1"), at(1)).expect("entered");
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().expect("it ends")).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(names(&dir.open()), ["t1"]);
}

/// Set for a test that runs as the other process, to the ledger's directory.
const OTHER: &str = "TASKWIRE_TEST_LEDGER";

/// Runs one of these tests once more, in a process of its own.
fn other(test: &str, dir: &TempDir) -> Child {
    let (_, module) = module_path!().split_once("::").expect("a path has parts");
    let name = format!("{module}::{test}");
    Command::new(std::env::current_exe().expect("this runs"))
        .args([name.as_str(), "--exact", "--nocapture", "--test-threads=1"])
        .env(OTHER, &dir.0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs again")
}

/// Prints a message of the other process, on a new line because the test harness may have begun one.
fn say(word: &str) {
    println!("\nsays {word}");
}

/// The next message of the other process.
fn heard(lines: &mut impl Iterator<Item = io::Result<String>>) -> String {
    let said = lines.find_map(|line| Some(line.expect("text").strip_prefix("says ")?.to_owned()));
    said.expect("it says something before it ends")
}

#[test]
fn a_process_that_is_killed_loses_nothing() {
    if let Some(dir) = std::env::var_os(OTHER) {
        let ledger = Ledger::open(dir.as_ref()).expect("the ledger opens");
        let id = ledger.find_or_add(&call_reference("k1"), at(1)).expect("entered");
        ledger.set_task(id, &reference(Some("t1"), Some("k1")), at(2)).expect("named");
        ledger.record_answer(id, "q1", &json!("yes")).expect("recorded");
        let mut tracker = ledger.output_tracker(id).expect("a tracker");
        let mut shown = OutputPosition { seq: 3, offset: 7, ..OutputPosition::default() };
        shown.add("one two");
        tracker.set(shown).expect("noted");
        ledger.find_or_add(&call_reference("k2"), at(3)).expect("entered");
        say("ready");
        loop {
            thread::park();
        }
    }
    let dir = TempDir::absent();
    let mut process = other("a_process_that_is_killed_loses_nothing", &dir);
    let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
    assert_eq!(heard(&mut lines), "ready");
    process.kill().expect("it is killed");
    process.wait().expect("it is gone");
    assert!(dir.0.join("ledger.db-wal").exists(), "it had no time to close anything");

    let ledger = dir.open();
    assert_eq!(names(&ledger), ["k2", "t1"]);
    let entry = ledger.find("t1").expect("it is there");
    assert_eq!(entry.reference.next, 3);
    assert_eq!(ledger.answers(entry.id).expect("read"), [("q1".to_owned(), json!("yes"), false)]);
    let shown = ledger.output_tracker(entry.id).expect("a tracker").position();
    assert_eq!((shown.seq, shown.offset, shown.bytes), (3, 7, 7));
}

#[test]
fn one_of_many_processes_answers() {
    const QUESTIONS: u64 = 20;
    if let Some(dir) = std::env::var_os(OTHER) {
        let ledger = Ledger::open(dir.as_ref()).expect("the ledger opens");
        let id = ledger.find_or_add(&task("t1"), at(1)).expect("entered");
        say("ready");
        io::stdin().read_line(&mut String::new()).expect("a line");
        let won = (0..QUESTIONS).filter(|nth| answers(&ledger, id, *nth)).count();
        say(&won.to_string());
        return;
    }
    let dir = TempDir::absent();
    let mut processes: Vec<Child> = (0..3).map(|_| other("one_of_many_processes_answers", &dir)).collect();
    let mut lines: Vec<_> = processes.iter_mut().map(|process| BufReader::new(process.stdout.take().expect("a pipe")).lines()).collect();
    for lines in &mut lines {
        assert_eq!(heard(lines), "ready");
    }
    for process in &mut processes {
        process.stdin.take().expect("a pipe").write_all(b"\n").expect("it listens");
    }
    let won: u64 = lines.iter_mut().map(|lines| heard(lines).parse::<u64>().expect("a number")).sum();
    assert_eq!(won, QUESTIONS);
    for mut process in processes {
        assert!(process.wait().expect("it ends").success());
    }
    let ledger = dir.open();
    assert_eq!(names(&ledger), ["t1"]);
    let id = ledger.find("t1").expect("it is there").id;
    assert_eq!(ledger.answers(id).expect("read").len() as u64, QUESTIONS);
}

#[test]
fn a_call_that_turns_out_to_be_a_known_task_shares_its_answers() {
    let dir = TempDir::absent();
    let (one, two) = (dir.open(), dir.open());
    let call = one.find_or_add(&call_reference("k1"), at(1)).expect("entered");
    assert_eq!(one.record_answer(call, "q1", &json!("to the call")).expect("recorded"), Recorded::New);
    let followed = two.find_or_add(&task("t1"), at(2)).expect("entered");
    assert_eq!(two.record_answer(followed, "q1", &json!("to the task")).expect("recorded"), Recorded::New);
    let named = reference(Some("t1"), Some("k1"));
    one.set_task(call, &named, at(3)).expect("named");
    one.set_task(call, &named, at(4)).expect("named again");

    let before = Recorded::Before { answer: json!("to the task"), acknowledged: false };
    assert_eq!(one.record_answer(call, "q1", &json!("again")).expect("looked up"), before);
    assert_eq!(one.record_answer(call, "q2", &json!("first")).expect("recorded"), Recorded::New);
    assert!(matches!(two.record_answer(followed, "q2", &json!("second")).expect("looked up"), Recorded::Before { .. }));
    one.acknowledge_answer(call, "q2").expect("acknowledged");
    assert!(two.answers(followed).expect("read").contains(&("q2".to_owned(), json!("first"), true)));
    one.update_status(call, Status::Completed, None, at(5)).expect("noted");
    let entries = two.entries().expect("it can be read");
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0].id, entries[0].status), (followed, Some(Status::Completed)));
    assert_eq!(entries[0].reference.key.as_deref(), Some("k1"), "its call is known now");
    assert_eq!(two.find_or_add(&call_reference("k1"), at(6)).expect("found"), followed);
    one.remove(call).expect("forgotten");
    assert!(two.entries().expect("it can be read").is_empty());
}

#[test]
fn a_name_that_a_server_gives_again_is_that_of_the_new_task() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    let old = ledger.find_or_add(&call_reference("k1"), at(1)).expect("entered");
    ledger.set_task(old, &reference(Some("1"), Some("k1")), at(2)).expect("named");
    ledger.record_answer(old, "q1", &json!("old")).expect("recorded");
    ledger.output_tracker(old).expect("a tracker").set(OutputPosition { seq: 5, ..OutputPosition::default() }).expect("noted");
    ledger.update_status(old, Status::Completed, None, at(3)).expect("noted");
    let new = ledger.find_or_add(&call_reference("k2"), at(4)).expect("entered");
    ledger.set_task(new, &reference(Some("1"), Some("k2")), at(5)).expect("named");
    assert_eq!(ledger.record_answer(new, "q1", &json!("new")).expect("recorded"), Recorded::New);
    let entry = ledger.find("1").expect("it is there");
    assert_eq!((entry.id, entry.ended, entry.reference.next), (new, false, 0));
    assert_eq!(names(&ledger), ["1"]);
    assert!(!exists(&ledger, old));
}

#[test]
fn what_is_forgotten_is_gone_and_says_so() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    let id = ledger.find_or_add(&task("t1"), at(1)).expect("entered");
    ledger.record_answer(id, "q1", &json!("yes")).expect("recorded");
    ledger.output_tracker(id).expect("a tracker").set(OutputPosition::default()).expect("noted");
    assert!(exists(&ledger, id));
    ledger.remove(id).expect("forgotten");
    ledger.remove(id).expect("nothing to forget");
    assert!(!exists(&ledger, id));
    assert!(ledger.answers(id).expect("read").is_empty());
    ledger.update_status(id, Status::Working, None, at(2)).expect("nothing to note");
    ledger.acknowledge_answer(id, "q1").expect("nothing to note");
    let gone = format!("does not have entry {id} any more");
    for error in [
        ledger.record_answer(id, "q1", &json!("yes")).expect_err("it is gone"),
        ledger.set_task(id, &task("t1"), at(3)).expect_err("it is gone"),
        ledger.output_tracker(id).expect_err("it is gone"),
    ] {
        assert!(error.to_string().contains(&gone), "{error}");
    }
    assert_ne!(ledger.find_or_add(&task("t1"), at(4)).expect("entered"), id, "no number is given twice");
}

/// Enters `count` tasks at once; every second one has ended.
fn fill(ledger: &Ledger, count: usize) {
    let kept = serde_json::to_string(&reference(None, None)).expect("JSON");
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
               INSERT INTO entry(server, task, created_at, updated_at, ended, reference) SELECT ?2, 'old-' || i, i, i, i % 2, ?3 FROM n";
    ledger.lock().execute(sql, params![count, SERVER, kept]).expect("filled");
}

#[test]
fn a_full_ledger_gives_up_the_oldest_task_that_ended() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    fill(&ledger, LEDGER_ENTRIES);
    let has = |name: &str| ledger.entry(SERVER, name).expect("it can be read").is_some();
    let count = || ledger.lock().query_row("SELECT count(*) FROM entry", [], |row| row.get::<_, usize>(0)).expect("a number");
    assert!(has("old-1") && has("old-3"));
    ledger.find_or_add(&call_reference("k1"), at(20_000)).expect("entered");
    assert_eq!(count(), LEDGER_ENTRIES);
    assert!(!has("old-1") && has("old-2") && has("old-3"));
    ledger.find_or_add(&task("t1"), at(20_001)).expect("entered");
    assert_eq!(count(), LEDGER_ENTRIES);
    assert!(!has("old-3") && has("old-2"));
    assert_eq!(ledger.entries().expect("it can be read").len(), LEDGER_ENTRIES);
}

#[test]
fn a_ledger_full_of_open_tasks_gives_up_the_oldest() {
    let dir = TempDir::absent();
    let ledger = Ledger::open_bounded(&dir.0, 3).expect("the ledger opens");
    let ids = ["t1", "t2", "t3"].map(|name| ledger.find_or_add(&task(name), at(1)).expect("entered"));
    ledger.output_tracker(ids[1]).expect("a tracker");
    ledger.update_status(ids[0], Status::Working, None, at(5)).expect("noted");
    ledger.find_or_add(&call_reference("k4"), at(6)).expect("entered");
    assert_eq!(names(&ledger), ["k4", "t3", "t1"], "t2 was seen longest ago");
    assert!(!exists(&ledger, ids[1]));
}

#[test]
fn what_ended_is_kept_for_thirty_days() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    let [ended, late, open] = ["ended", "late", "open"].map(|name| ledger.find_or_add(&task(name), at(0)).expect("entered"));
    ledger.update_status(ended, Status::Failed, None, at(DAY)).expect("noted");
    ledger.update_status(late, Status::Cancelled, None, at(2 * DAY)).expect("noted");
    ledger.output_tracker(ended).expect("a tracker");
    ledger.record_answer(ended, "q1", &json!("yes")).expect("recorded");
    ledger.find_or_add(&call_reference("k1"), at(31 * DAY)).expect("entered");
    assert_eq!(names(&ledger), ["k1", "open", "late", "ended"]);
    ledger.find_or_add(&call_reference("k2"), at(31 * DAY + 1)).expect("entered");
    assert_eq!(names(&ledger), ["k2", "k1", "open", "late"]);
    assert!(!exists(&ledger, ended));
    let left: usize = ledger.lock().query_row("SELECT count(*) FROM answer", [], |row| row.get(0)).expect("a number");
    assert_eq!(left, 0);
    assert_eq!(ledger.find("open").expect("it is there").id, open);
}

#[test]
fn arguments_that_are_too_large_are_not_kept() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    // Two quotes belong to the text.
    for (key, bytes, kept) in [("just", ARGS_BYTES_MAX, true), ("more", ARGS_BYTES_MAX + 1, false)] {
        let args: Payload = json!("x".repeat(bytes - 2)).into();
        assert_eq!(args.as_str().len(), bytes);
        ledger.find_or_add(&Reference { args: Some(args), ..call_reference(key) }, at(1)).expect("entered");
        assert_eq!(ledger.find(key).expect("it is there").reference.args.is_some(), kept, "{key}");
    }
}

#[test]
fn only_the_beginning_of_a_long_message_is_kept() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    let id = ledger.find_or_add(&task("t1"), at(1)).expect("entered");
    let message = format!("x{}", "ä".repeat(MESSAGE_BYTES_MAX));
    ledger.update_status(id, Status::Working, Some(&message), at(2)).expect("noted");
    let kept = ledger.find("t1").expect("it is there").message.expect("a message");
    assert_eq!(kept.len(), MESSAGE_BYTES_MAX - 1);
    assert!(message.starts_with(&kept));
}

#[test]
fn one_task_is_given_so_many_answers() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    let id = ledger.find_or_add(&task("t1"), at(1)).expect("entered");
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
               INSERT INTO answer(entry, key, answer) SELECT ?2, 'q' || i, '1' FROM n";
    ledger.lock().execute(sql, params![QUESTIONS_MAX - 1, id.0]).expect("filled");
    assert_eq!(ledger.record_answer(id, "last", &json!(2)).expect("recorded"), Recorded::New);
    let error = ledger.record_answer(id, "more", &json!(3)).expect_err("it is full");
    assert!(error.to_string().contains("10000 answers"), "{error}");
    let before = Recorded::Before { answer: json!(2), acknowledged: false };
    assert_eq!(ledger.record_answer(id, "last", &json!(4)).expect("looked up"), before);
}

#[test]
fn the_ledger_of_a_newer_release_is_left_alone() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    ledger.find_or_add(&task("t1"), at(1)).expect("entered");
    ledger.lock().pragma_update(None, "user_version", 99).expect("changed");
    drop(ledger);
    let error = Ledger::open(&dir.0).expect_err("it is too new").to_string();
    for part in ["newer release", "format 99", "TASKWIRE_STATE_DIR", &*dir.0.to_string_lossy()] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_damaged_ledger_says_what_to_do() {
    let dir = TempDir::absent();
    fs::create_dir_all(&dir.0).expect("made");
    fs::write(dir.0.join(FILE), "no database ".repeat(1000)).expect("written");
    let error = Ledger::open(&dir.0).expect_err("it is damaged").to_string();
    assert!(error.contains("is damaged") && error.contains("move ledger.db away"), "{error}");
    let file = dir.0.join("file");
    fs::write(&file, "").expect("written");
    let error = Ledger::open(&file.join("below")).expect_err("there is no directory").to_string();
    assert!(error.contains("cannot keep a ledger of tasks in"), "{error}");
}

#[test]
fn nobody_else_can_read_a_ledger() {
    let dir = TempDir::absent();
    let ledger = Ledger::open(&dir.0.join("deep")).expect("the ledger opens");
    let id = ledger.find_or_add(&task("t1"), at(1)).expect("entered");
    let _tracker = ledger.output_tracker(id).expect("a tracker");
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    let made = ledger.dir().to_owned();
    for dir in [&dir.0, &made, &made.join(TRACKERS)] {
        assert_eq!(mode(dir), 0o700, "{}", dir.display());
    }
    let tracker = format!("{TRACKERS}/{id}");
    for name in ["ledger.db", "ledger.db-wal", "ledger.db-shm", "lock", &tracker] {
        assert_eq!(mode(&made.join(name)), 0o600, "{name}");
    }
    drop(ledger);
    fs::set_permissions(made.join(FILE), fs::Permissions::from_mode(0o644)).expect("opened to all");
    let _ledger = Ledger::open(&made).expect("the ledger opens");
    assert_eq!(mode(&made.join(FILE)), 0o600);
}

#[test]
fn a_position_is_as_it_was_set_and_in_the_reference() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    let id = ledger.find_or_add(&task("t1"), at(1)).expect("entered");
    let mut tracker = ledger.output_tracker(id).expect("a tracker");
    assert_eq!(tracker.position(), OutputPosition::default());
    for shown in [
        OutputPosition { seq: u64::MAX, offset: u64::MAX, bytes: u64::MAX, hash: u64::MAX, result_shown: true },
        OutputPosition { seq: 4, offset: 2, bytes: 9, hash: 1, result_shown: false },
    ] {
        tracker.set(shown).expect("noted");
        assert_eq!(tracker.position(), shown);
        assert_eq!(ledger.output_tracker(id).expect("a tracker").position(), shown);
    }
    assert_eq!(ledger.find("t1").expect("it is there").reference.next, 4);
    assert_eq!(ledger.entries().expect("it can be read")[0].reference.next, 4);
}

#[test]
fn a_position_moves_with_every_byte_that_is_sent() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    let id = ledger.find_or_add(&task("t1"), at(1)).expect("entered");
    let mut tracker = ledger.output_tracker(id).expect("a tracker");
    let (mut reader, out) = io::pipe().expect("a pipe");
    let moved = |tracker: &mut OutputTracker, text: &str, to: OutputPosition| {
        tracker.send(out.as_fd(), text.as_bytes()).expect("sent");
        assert_eq!(tracker.position(), to, "after {text}");
        assert_eq!(OutputPosition::peek(&ledger.tracker_path(id.0)), to, "after {text}");
    };
    let shown = |seq, offset| OutputPosition { seq, offset, bytes: seq * 10, hash: seq, result_shown: seq == 9 };
    tracker.begin(5, shown(1, 0)).expect("noted");
    moved(&mut tracker, "", OutputPosition::default());
    moved(&mut tracker, "one", OutputPosition { offset: 3, ..OutputPosition::default() });
    moved(&mut tracker, " 1", shown(1, 0));
    moved(&mut tracker, "of a chunk that is not told yet", shown(1, 31));
    tracker.begin(3, shown(2, 0)).expect("noted");
    moved(&mut tracker, "tw", shown(1, 33));
    moved(&mut tracker, "o", shown(2, 0));
    tracker.begin(0, shown(3, 0)).expect("noted");
    moved(&mut tracker, "", shown(3, 0));
    tracker.begin_whole(4, shown(4, 0)).expect("noted");
    moved(&mut tracker, "{4}", shown(3, 0));
    moved(&mut tracker, "\n", shown(4, 0));
    tracker.begin(9, shown(5, 0)).expect("noted");
    moved(&mut tracker, "given up", shown(4, 8));
    tracker.begin_whole(9, shown(5, 0)).expect("noted");
    moved(&mut tracker, "once more", shown(5, 0));
    tracker.set(shown(9, 7)).expect("noted");
    moved(&mut tracker, "!", shown(9, 8));
    drop(out);
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("text");
    assert_eq!(text, "one 1of a chunk that is not told yettwo{4}\ngiven uponce more!");
}

#[test]
fn what_is_sent_arrives_wherever_it_goes() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    let id = ledger.find_or_add(&task("t1"), at(1)).expect("entered");
    let text: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let send = |tracker: &mut OutputTracker, out: &dyn AsFd| {
        tracker.set(OutputPosition::default()).expect("noted");
        tracker.begin(text.len() + 1, OutputPosition { seq: 1, ..OutputPosition::default() }).expect("noted");
        tracker.send(out.as_fd(), &text).expect("sent");
    };
    let path = dir.0.join("out");
    let mut file = OpenOptions::new();
    let files = [file.write(true).create_new(true).clone(), file.create_new(false).append(true).clone()];
    for (nth, file) in (1..).zip(files) {
        // A new tracker each time: it remembers whether `sendfile` works.
        let mut tracker = ledger.output_tracker(id).expect("a tracker");
        send(&mut tracker, &file.open(&path).expect("a file"));
        assert_eq!(tracker.position(), OutputPosition { offset: text.len() as u64, ..OutputPosition::default() });
        assert!(fs::read(&path).expect("the file") == text.repeat(nth), "file {nth}");
    }
    for mut tracker in [ledger.output_tracker(id).expect("a tracker"), OutputTracker::untracked()] {
        // A pipe that does not wait for its reader.
        let (mut reader, out) = io::pipe().expect("a pipe");
        rustix::fs::fcntl_setfl(&out, rustix::fs::OFlags::NONBLOCK).expect("set");
        let mut read = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| reader.read_to_end(&mut read).expect("read"));
            send(&mut tracker, &out);
            drop(out);
        });
        assert!(read == text);
    }
    let (reader, out) = io::pipe().expect("a pipe");
    drop(reader);
    let error = ledger.output_tracker(id).expect("a tracker").send(out.as_fd(), b"x").expect_err("nobody reads");
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn who_comes_second_tracks_nothing() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    let id = ledger.find_or_add(&task("t1"), at(1)).expect("entered");
    let shown = |seq| OutputPosition { seq, ..OutputPosition::default() };
    let mut first = ledger.output_tracker(id).expect("a tracker");
    first.set(shown(1)).expect("noted");
    let mut second = dir.open().output_tracker(id).expect("a tracker");
    first.set(shown(2)).expect("noted");
    second.begin(1, shown(7)).expect("nothing is noted");
    let (mut reader, out) = io::pipe().expect("a pipe");
    second.send(out.as_fd(), b"x").expect("written");
    reader.read_exact(&mut [0]).expect("it is shown");
    assert_eq!((second.position(), first.position()), (shown(1), shown(2)));
    drop((first, second));
    let mut third = ledger.output_tracker(id).expect("a tracker");
    assert_eq!(third.position(), shown(2));
    third.set(shown(3)).expect("noted");
    drop(third);
    assert_eq!(ledger.output_tracker(id).expect("a tracker").position(), shown(3));
}

/// Some are empty, some larger than what a pipe takes.
#[cfg(target_os = "linux")]
fn chunk(seq: u64) -> Vec<u8> {
    let len = [5, 4096, 0, 200_000, 1, 70_000, 2][seq as usize % 7];
    (0..len).map(|n| (seq + n) as u8).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_that_is_killed_while_it_writes_has_counted_every_byte() {
    if let Some(dir) = std::env::var_os(OTHER) {
        let ledger = Ledger::open(dir.as_ref()).expect("the ledger opens");
        let id = ledger.find_or_add(&task("t1"), at(1)).expect("entered");
        let mut tracker = ledger.output_tracker(id).expect("a tracker");
        say("ready");
        for seq in 0.. {
            let text = chunk(seq);
            tracker.begin(text.len(), OutputPosition { seq: seq + 1, ..OutputPosition::default() }).expect("noted");
            tracker.send(io::stdout().as_fd(), &text).expect("sent");
        }
    }
    for nth in 0..20 {
        let dir = TempDir::absent();
        let mut process = other("a_process_that_is_killed_while_it_writes_has_counted_every_byte", &dir);
        let mut output = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut line = String::new();
        while line != "says ready\n" {
            line.clear();
            assert_ne!(output.read_line(&mut line).expect("text"), 0, "it says something before it ends");
        }
        // Killed right after this process has read something, so while the other one is writing.
        let mut bytes = vec![0; nth * nth * 3333];
        output.read_exact(&mut bytes).expect("it goes on");
        process.kill().expect("it is killed");
        output.read_to_end(&mut bytes).expect("what is left");
        process.wait().expect("it is gone");
        let ledger = dir.open();
        let shown = ledger.output_tracker(ledger.find("t1").expect("it is there").id).expect("a tracker").position();
        let before: usize = (0..shown.seq).map(|seq| chunk(seq).len()).sum();
        assert_eq!(before as u64 + shown.offset, bytes.len() as u64, "{shown:?}");
        assert!((0..=shown.seq).flat_map(chunk).take(bytes.len()).eq(bytes), "it arrived as it was");
    }
}

#[test]
fn what_is_shown_piece_by_piece_counts_as_if_shown_at_once() {
    let (mut once, mut pieces) = (OutputPosition::default(), OutputPosition::default());
    once.add("foobar");
    for piece in ["", "foo", "", "bar"] {
        pieces.add(piece);
    }
    assert_eq!(once, pieces);
    assert_eq!((once.bytes, once.hash), (6, 0x8594_4171_f739_67e8), "FNV-1a");
}

#[test]
fn a_tracker_file_that_is_torn_or_changed_is_damaged() {
    let dir = TempDir::absent();
    let ledger = dir.open();
    let id = ledger.find_or_add(&task("t1"), at(1)).expect("entered");
    ledger
        .output_tracker(id)
        .expect("a tracker")
        .set(OutputPosition { seq: 12, offset: 3, bytes: 99, hash: 7, result_shown: false })
        .expect("noted");
    let path = ledger.tracker_path(id.0);
    let whole = fs::read(&path).expect("it is there");
    let torn = (1..whole.len()).map(|end| whole[..end].to_vec());
    // No checksum covers the first eight bytes, which the kernel advances.
    let changed = (8..whole.len()).map(|nth| {
        let mut bytes = whole.clone();
        bytes[nth] ^= 1;
        bytes
    });
    let longer = [[&whole[..], &b"x"[..]].concat(), vec![0; 101], vec![0xff; 1 << 16]];
    for bytes in torn.chain(changed).chain(longer) {
        fs::write(&path, &bytes).expect("written");
        let error = ledger.output_tracker(id).expect_err("it is damaged").to_string();
        assert!(error.contains("is damaged: remove it") && error.contains(&*path.to_string_lossy()), "{error}");
        assert_eq!(ledger.find("t1").expect("it is listed all the same").reference.next, 0);
    }
    fs::remove_file(&path).expect("removed");
    assert_eq!(ledger.output_tracker(id).expect("a tracker").position(), OutputPosition::default());
}

#[test]
fn the_ledger_of_a_user_is_where_such_things_are() {
    let dir = |variables: &[(&str, &str)], home: Option<&str>| {
        let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        state_dir(variable, home.map(PathBuf::from))
    };
    let home = if cfg!(target_os = "macos") { "/home/me/Library/Application Support/taskwire" } else { "/home/me/.local/state/taskwire" };
    let (ours, theirs) = (("TASKWIRE_STATE_DIR", "here"), ("XDG_STATE_HOME", "/var/state"));
    assert_eq!(dir(&[ours, theirs], Some("/home/me")), Some("here".into()));
    assert_eq!(dir(&[theirs], Some("/home/me")), Some("/var/state/taskwire".into()));
    assert_eq!(dir(&[("TASKWIRE_STATE_DIR", ""), ("XDG_STATE_HOME", "relative")], Some("/home/me")), Some(home.into()));
    assert_eq!(dir(&[], Some("/home/me")), Some(home.into()));
    assert_eq!(dir(&[], Some("")), None);
    assert_eq!(dir(&[], None), None);
}

/// All that is in a directory, and how long each is.
fn listing(dir: &Path) -> Vec<(String, u64)> {
    let entries = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry"));
    let mut found: Vec<(String, u64)> =
        entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.metadata().expect("its size").len())).collect();
    found.sort();
    found
}

#[test]
fn who_only_looks_sees_all_and_changes_nothing() {
    let dir = TempDir::absent();
    assert!(Ledger::open_read_only(&dir.0).expect("there is none").is_none());
    assert!(!dir.0.exists(), "and none was made");
    let writer = dir.open();
    writer.find_or_add(&task("t1"), at(1)).expect("entered");

    let before = listing(&dir.0);
    let reader = Ledger::open_read_only(&dir.0).expect("it can be read").expect("it is there");
    writer.find_or_add(&task("t2"), at(2)).expect("nobody is in the way");
    assert_eq!(names(&reader), ["t2", "t1"], "what others write is seen");
    assert!(reader.find_or_add(&task("t3"), at(3)).is_err());
    drop(reader);
    let names_of = |listing: &[(String, u64)]| listing.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names_of(&listing(&dir.0)), names_of(&before));

    drop(writer);
    let before = listing(&dir.0);
    let reader = Ledger::open_read_only(&dir.0).expect("it can be read").expect("it is there");
    assert_eq!(names(&reader), ["t2", "t1"]);
    assert!(reader.remove(reader.find("t1").expect("it is there").id).is_err());
    drop(reader);
    assert_eq!(listing(&dir.0), before, "no file was made, none has grown");
}

#[test]
fn a_ledger_is_read_wherever_it_is() {
    let dir = TempDir::absent();
    let odd = dir.0.join("100% #1? of it");
    Ledger::open(&odd).expect("the ledger opens").find_or_add(&task("t1"), at(1)).expect("entered");
    assert_eq!(names(&Ledger::open_read_only(&odd).expect("it can be read").expect("it is there")), ["t1"]);
    fs::write(odd.join(FILE), "no database").expect("written");
    assert!(Ledger::open_read_only(&odd).is_err_and(|error| error.to_string().contains("is damaged")));
}
