//! The client is killed in the middle of its output. What it has written and what the next one writes, joined, is the output.

use std::{fs::File, process::Stdio, thread};

use crate::{
    commands::server_dir::Dice,
    fixture::{Gate, TestServer, steps},
    user::{RunningCommand, User},
};

/// Bytes of a chunk that no pipe takes at once.
const LARGE_BYTES: usize = 100_000;
/// How often to look at a file that grows. Each look is a call of the system.
const LOOKS: usize = 10_000_000;

/// Words of which no two are alike, some of which end a line.
fn words(count: usize) -> Vec<String> {
    let end = |n: usize| if n.is_multiple_of(7) { "\n" } else { " " };
    (0..count).map(|n| format!("wörd-{n}…{}", end(n))).collect()
}

/// Chunks of numbered lines, each longer than `LARGE_BYTES`. Not every one ends with its line.
fn pages(count: usize) -> Vec<String> {
    let page = |n: usize| {
        let lines = (0..).map(|line| format!("page {n} line {line}: the quick brown fox jumps över the lazy dog\n"));
        let mut text = String::new();
        for line in lines {
            text.push_str(&line);
            if text.len() > LARGE_BYTES {
                break;
            }
        }
        text.truncate(text.len() - n % 2);
        text
    };
    (0..count).map(page).collect()
}

/// All that was written so far must be the beginning of the whole.
#[track_caller]
fn check(joined: &[u8], whole: &str, when: &str) {
    let whole = whole.as_bytes();
    if whole.starts_with(joined) {
        return;
    }
    let at = joined.iter().zip(whole).take_while(|(a, b)| a == b).count();
    let around = |bytes: &[u8]| String::from_utf8_lossy(&bytes[at.saturating_sub(30)..bytes.len().min(at + 60)]).into_owned();
    panic!("{when}: it differs from byte {at} of {} on\n  written: {:?}\n  whole:   {:?}", whole.len(), around(joined), around(whole));
}

/// Kills a call, and whoever goes on with it, each after a random share of what is left; the last one may end.
fn kill_again_and_again(url: &str, tool: &str, whole: &str, kills: usize) {
    let (user, mut dice) = (User::new(), Dice::new());
    let mut running = user.start(&["call", url, tool]);
    let task = running.task();
    let mut joined = Vec::<u8>::new();
    for kill in 1..=kills {
        // It may be nothing, and it is in the middle of a page.
        let share = dice.below((whole.len() - joined.len()) * 2 / (kills + 2 - kill) + 1);
        running.out.until_len(share);
        running.kill();
        joined.extend(running.out.rest());
        check(&joined, whole, &format!("kill {kill}, after {share} bytes"));
        running = user.start(&["watch", &task]);
    }
    finish(running, joined, whole);
    assert_eq!(user.run(&["watch", &task]).out, "", "and nothing is left to show");
}

/// Lets the last one show the rest.
fn finish(mut running: RunningCommand, mut joined: Vec<u8>, whole: &str) {
    joined.extend(running.out.rest());
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    check(&joined, whole, "at the end");
    assert_eq!(joined.len(), whole.len(), "the end is missing");
}

/// Kills whoever shows the output as soon as the newest of it was seen, which is before it can have done much else.
fn kill_at_every_word(era: &str) {
    let (user, gate, mut dice) = (User::new(), Gate::closed(), Dice::new());
    let texts = words(120);
    let output = texts.concat();
    let fixture = TestServer::serve([steps("tell", &gate, texts.clone(), &output)]);
    let whole = format!("{}\n", output.trim_end_matches('\n'));
    let mut running = user.start(&["call", &fixture.url(), "tell", "--era", era]);
    let task = running.task();
    let (mut joined, mut opened) = (Vec::<u8>::new(), 0);
    for kill in 1..=10 {
        let more = 1 + dice.below(10);
        gate.open(more);
        opened += more;
        let so_far: usize = texts[..opened].iter().map(String::len).sum();
        running.out.until_len(so_far.saturating_sub(joined.len()));
        running.kill();
        joined.extend(running.out.rest());
        check(&joined, &whole, &format!("{era}, kill {kill}"));
        assert_eq!(joined.len(), so_far, "{era}, kill {kill}: it ended by itself: {}", running.err.text());
        running = user.start(&["watch", &task]);
    }
    gate.open(texts.len() + 1 - opened);
    finish(running, joined, &whole);
}

#[test]
fn killed_as_soon_as_a_word_was_seen_the_next_one_says_the_next_word() {
    kill_at_every_word("modern");
}

#[test]
fn killed_as_soon_as_a_word_was_seen_in_the_legacy_era_the_next_one_says_the_next_word() {
    kill_at_every_word("legacy");
}

#[test]
fn an_uninterrupted_run_is_what_the_killed_ones_make_together() {
    let (user, gate) = (User::new(), Gate::closed());
    let texts = pages(20);
    let fixture = TestServer::serve([steps("print", &gate, texts.clone(), "That was all.")]);
    gate.open(2 * (texts.len() + 1));
    let uninterrupted = user.run(&["call", &fixture.url(), "print"]);
    let end = if texts.concat().ends_with('\n') { "" } else { "\n" };
    assert_eq!(uninterrupted.code, Some(0), "{}", uninterrupted.err);
    check(uninterrupted.out.as_bytes(), &format!("{}{end}That was all.\n", texts.concat()), "uninterrupted");
    kill_again_and_again(&fixture.url(), "print", &uninterrupted.out, 8);
}

#[test]
fn killed_within_a_result_the_next_one_goes_on_within_it() {
    let gate = Gate::closed();
    let result = pages(6).concat();
    let fixture = TestServer::serve([steps("result", &gate, [] as [&str; 0], &result)]);
    gate.open(1);
    let whole = format!("{}\n", result.trim_end_matches('\n'));
    kill_again_and_again(&fixture.url(), "result", &whole, 5);
}

#[test]
fn killed_while_it_writes_to_a_file_the_next_one_goes_on_in_another() {
    let (user, gate, mut dice) = (User::new(), Gate::closed(), Dice::new());
    let texts = pages(20);
    let whole = format!("{}\n", texts.concat().trim_end_matches('\n'));
    let fixture = TestServer::serve([steps("print", &gate, texts.clone(), &texts.concat())]);
    gate.open(texts.len() + 1);
    let task = user.detach(&fixture.url(), "print");
    let mut joined = Vec::<u8>::new();
    for kill in 1..=8 {
        let path = user.path(&format!("part-{kill}"));
        let file = File::create(&path).expect("a file");
        let share = dice.below((whole.len() - joined.len()) / 2 + 1) as u64;
        let mut child = user.command(&["watch", &task]).stdout(file).stderr(Stdio::null()).spawn().expect("the program starts");
        let written = |path: &str| std::fs::metadata(path).expect("the file is there").len();
        let seen = (0..LOOKS).any(|_| {
            thread::yield_now();
            written(&path) >= share || child.try_wait().expect("it can be looked at").is_some()
        });
        assert!(seen, "only {} of {share} bytes were written", written(&path));
        child.kill().expect("it can be killed");
        child.wait().expect("it is gone");
        joined.extend(std::fs::read(&path).expect("the file is there"));
        check(&joined, &whole, &format!("kill {kill}, after {share} bytes"));
    }
    let running = user.start(&["watch", &task]);
    finish(running, joined, &whole);
}
