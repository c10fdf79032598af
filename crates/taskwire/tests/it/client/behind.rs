//! Readers that are behind: output that had no room while they did not read comes later, or as a gap. And the server's numbers may
//! be nonsense.

use std::{convert::Infallible, time::Duration};

use serde_json::{Value, json};
use taskwire::{
    client::{Limits, Options},
    clock::Clock,
};

use super::{
    legacy::{self, begun, ended, joined, partials, progress, related, scripted},
    script::{LISTEN, MS, READ, SECOND, ScriptedServer, completed, next_briefs, page, rest, text, while_waiting},
    watching::flooded,
};
use crate::kit::PARTIALS;

/// Far beyond the numbers of the output, and far below the largest number.
const FAR: u64 = 1 << 60;

/// Answers reads of a task's output with one chunk each, for as long as there are any.
async fn reads_by_one(script: &ScriptedServer, id: &str, texts: &[String]) -> Infallible {
    loop {
        let asked = script.expect_of(READ, id).await;
        let from = asked.params()["fromSeq"].as_u64().expect("a number");
        let one: Vec<&str> = texts.iter().skip(usize::try_from(from).expect("small")).take(1).map(String::as_str).collect();
        asked.result(page(from, &one, false)).await;
    }
}

/// Runs a test in a thread of its own, which may be left behind: an endless loop cannot be stopped.
fn apart<F: Future<Output = ()>>(play: impl FnOnce() -> F + Send + 'static) {
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(play());
        let _ = ended.send(());
    });
    end.recv_timeout(Duration::from_secs(30)).expect("it ends, and well");
}

// Output that had no room.

#[tokio::test]
async fn output_that_was_left_out_is_fetched_to_its_end_though_the_task_goes_quiet() {
    let script = ScriptedServer::start().await;
    let (_client, [mut one, mut two], mut listen, texts) = flooded(&script).await;
    // All of it has come when this has.
    listen.partial("t2", 0, "free").await;
    assert_eq!(next_briefs(&mut two, 1).await, ["0 free"]);
    let reading = async {
        // Nothing more is pushed while it is read: nothing shows that there is more, but what was left out.
        let output = next_briefs(&mut one, texts.len()).await;
        listen.task(completed("t1", "end")).await;
        (output, rest(&mut one).await)
    };
    let (output, end) = tokio::select! {
        all = reading => all,
        never = reads_by_one(&script, "t1", &texts) => match never {},
    };
    let expected: Vec<String> = texts.iter().enumerate().map(|(seq, said)| format!("{seq} {said}")).collect();
    assert_eq!(output, expected);
    assert_eq!(end, ["done: end"]);
}

#[tokio::test]
async fn output_that_was_left_out_is_fetched_before_the_end_is_told() {
    let script = ScriptedServer::start().await;
    let (_client, [mut one, mut two], mut listen, texts) = flooded(&script).await;
    listen.partial("t2", 0, "free").await;
    assert_eq!(next_briefs(&mut two, 1).await, ["0 free"]);
    let reading = async {
        // Half of it is read when the end comes.
        let mut output = next_briefs(&mut one, 120).await;
        listen.task(completed("t1", "end")).await;
        output.extend(rest(&mut one).await);
        output
    };
    let output = tokio::select! {
        all = reading => all,
        never = reads_by_one(&script, "t1", &texts) => match never {},
    };
    let mut expected: Vec<String> = texts.iter().enumerate().map(|(seq, said)| format!("{seq} {said}")).collect();
    expected.push("done: end".to_owned());
    assert_eq!(output, expected);
}

/// A partial of `t1` as an event of that era.
fn event(seq: u64, said: &str) -> String {
    let params = json!({"taskId": "t1", "seq": seq, "content": [text(said)], "_meta": related("t1")});
    format!("data: {}\n\n", json!({"jsonrpc": "2.0", "method": "notifications/tasks/partial", "params": params}))
}

#[tokio::test]
async fn output_that_had_no_room_and_cannot_be_asked_for_is_told_as_a_gap() {
    let script = scripted().await;
    // There is always room for one, and never for two.
    let limits = Limits { buffer_bytes: 1, ..Limits::default() };
    let client = joined(&script, Options { limits, ..legacy::options(&script) }, partials()).await;
    let (mut call, mut wait) = begun(&script, &client, "t1").await;
    // In one piece, so that all are there at once.
    let all: String = (0..10).map(|seq| event(seq, "x")).collect();
    wait.raw(all.as_bytes()).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["0 x"]);
    wait.result(ended("t1", "done")).await;
    let briefs = script.as_time_passes("the end", 100 * MS, rest(&mut call)).await;
    assert_eq!(briefs, ["gap 1..10", "done: done"]);
}

#[tokio::test]
async fn word_of_progress_does_not_hide_that_output_is_missing() {
    let script = scripted().await;
    let client = joined(&script, legacy::options(&script), partials()).await;
    let (mut call, mut wait) = begun(&script, &client, "t1").await;
    wait.raw(format!("{}{}", event(0, "a"), event(2, "c")).as_bytes()).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["0 a"]);
    // More often than output that came too early waits for what belongs before it.
    let mut heard = Vec::new();
    for n in 1..=6 {
        wait.event(progress(&json!("t"), json!({"progress": n, "_meta": related("t1")}))).await;
        while heard.last() != Some(&format!("progress {n}")) {
            heard.extend(next_briefs(&mut call, 1).await);
        }
        script.clock.advance(400 * MS);
    }
    heard.retain(|brief| !brief.starts_with("progress"));
    assert_eq!(heard, ["gap 1..2", "2 c"]);
    wait.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
}

// Servers that say what cannot be.

#[test]
fn an_acknowledgement_from_far_beyond_all_output_ends_well() {
    apart(|| async {
        let script = ScriptedServer::start().await;
        let client = script.client().await;
        let mut call = script.run(&client, "t1").await;
        assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
        let honoured = json!({"taskIds": ["t1"], PARTIALS: [{"taskId": "t1", "fromSeq": FAR, "nextSeq": FAR}]});
        let mut listen = while_waiting(&mut call, script.listen_as(|_| honoured)).await;
        listen.task(completed("t1", "end")).await;
        let briefs = rest(&mut call).await;
        assert!(briefs[0].starts_with("gap 0.."), "{briefs:?}");
        assert_eq!(briefs[1..], ["done: end"]);
    });
}

#[test]
fn a_page_from_far_beyond_all_output_ends_well() {
    apart(|| async {
        let script = ScriptedServer::start().await;
        let client = script.client().await;
        let (mut call, mut listen) = script.watched(&client, "t1").await;
        listen.partial("t1", 0, "a").await;
        listen.partial("t1", 2, "c").await;
        assert_eq!(next_briefs(&mut call, 1).await, ["0 a"]);
        let far = json!({"resultType": "complete", "chunks": [], "fromSeq": FAR, "nextSeq": FAR, "done": false});
        while_waiting(&mut call, script.expect_of(READ, "t1")).await.result(far).await;
        listen.task(completed("t1", "end")).await;
        let briefs = rest(&mut call).await;
        // What has come is not lost.
        assert_eq!(briefs[..2], ["gap 1..2", "2 c"]);
        assert!(briefs[2].starts_with("gap 3.."), "{briefs:?}");
        assert_eq!(briefs[3..], ["done: end"]);
    });
}

#[tokio::test]
async fn a_server_that_does_not_hold_a_read_is_not_asked_as_fast_as_it_answers() {
    let script = ScriptedServer::start().await;
    for kind in ["tasks/get", READ] {
        script.may_remain(kind);
    }
    let client = script.client().await;
    let mut call = script.run(&client, "t1").await;
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    while_waiting(&mut call, script.expect(LISTEN)).await.error(404, -32601, "no such method", Value::Null).await;
    let mut read = while_waiting(&mut call, script.expect_of(READ, "t1")).await;
    for n in 0..4 {
        assert_eq!(read.params()["waitMs"], 20_000);
        let before = script.clock.now();
        read.result(page(0, &[], false)).await;
        read = script.as_time_passes("another read", 50 * MS, while_waiting(&mut call, script.expect_of(READ, "t1"))).await;
        let passed = read.at.since(before);
        assert!(passed >= SECOND, "read {n} after {passed:?}");
    }
    // The client delivers what is there at once, and asks for more.
    read.result(page(0, &["a"], false)).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["0 a"]);
    assert_eq!(while_waiting(&mut call, script.expect_of(READ, "t1")).await.params()["fromSeq"], 1);
}
