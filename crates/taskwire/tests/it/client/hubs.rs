//! One stream for many calls: calls that join it late, that ask for more than there is room for, and output that comes on it later
//! than elsewhere.

use serde_json::{Value, json};
use taskwire::{
    client::{Answer, Call, Client, Reference},
    clock::Clock,
};

use super::script::{
    LISTEN, Listen, MS, READ, ScriptedRequest, ScriptedServer, all, asking, brief, complete, completed, form, next, next_briefs, page,
    rest, task, while_waiting, with_members,
};
use crate::kit::with_timeout;

/// Promises all that a listen asks for.
async fn acknowledged(asked: ScriptedRequest) -> Listen {
    let (id, wanted) = (asked.id().clone(), asked.params()["notifications"].clone());
    let mut listen = Listen { sse: asked.sse().await, id, wanted: wanted.clone() };
    listen.notify("notifications/subscriptions/acknowledged", json!({"notifications": wanted})).await;
    listen
}

/// The next event of this call, in short and whatever it is.
async fn exactly(call: &mut Call) -> Option<String> {
    next(call).await.as_ref().map(brief)
}

// One task, two calls.

/// A call that has three chunks of `t1`, another one that needs another stream, and a third one that begins `t1` anew before that
/// stream is there.
struct Late {
    one: Call,
    two: Call,
    other: Call,
    /// The stream that is there.
    first: Listen,
    /// The stream that is asked for.
    asked: ScriptedRequest,
}

impl Late {
    async fn new(script: &ScriptedServer, client: &Client) -> Self {
        let (mut one, mut first) = script.watched(client, "t1").await;
        for (seq, said) in [(0, "a"), (1, "b"), (2, "c")] {
            first.partial("t1", seq, said).await;
        }
        assert_eq!(next_briefs(&mut one, 3).await, ["0 a", "1 b", "2 c"]);
        let mut other = script.run(client, "t2").await;
        assert_eq!(next_briefs(&mut other, 1).await, ["task t2"]);
        let asked = while_waiting(&mut other, script.expect(LISTEN)).await;
        let anew = Reference { next: 0, ..one.reference().expect("a task") };
        let mut two = with_timeout("the task", client.attach(&anew)).await.expect("a run");
        assert_eq!(next_briefs(&mut two, 1).await, ["task t1"]);
        // A call that polls is registered by then.
        let look = while_waiting(&mut two, script.expect_of("tasks/get", "t1")).await;
        look.result(complete(task("t1", "working"))).await;
        Self { one, two, other, first, asked }
    }
}

#[tokio::test]
async fn who_joins_while_a_stream_is_opened_for_others_loses_nothing_of_what_lies_before_it() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let Late { mut one, mut two, other: _other, first: _first, asked } = Late::new(&script, &client).await;
    let _second = acknowledged(asked).await;
    // It was not opened for the late one.
    let mut third = while_waiting(&mut two, script.listen()).await;
    assert_eq!((third.task_ids(), third.asked_from("t1")), (vec!["t1".to_owned(), "t2".to_owned()], Some(0)));
    for (seq, said) in [(0, "a"), (1, "b"), (2, "c"), (3, "d")] {
        third.partial("t1", seq, said).await;
    }
    third.task(completed("t1", "end")).await;
    assert_eq!(rest(&mut two).await, ["0 a", "1 b", "2 c", "3 d", "done: end"]);
    assert_eq!(rest(&mut one).await, ["3 d", "done: end"]);
    assert_eq!(script.count(READ), 0);
}

#[tokio::test]
async fn what_is_pushed_to_who_is_ahead_is_no_loss_for_who_is_behind() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let Late { mut one, mut two, other: _other, mut first, asked } = Late::new(&script, &client).await;
    first.partial("t1", 3, "d").await;
    assert_eq!(next_briefs(&mut one, 1).await, ["3 d"]);
    // It came to both, so one of them knows that it lacks something.
    let read = while_waiting(&mut two, script.expect_of(READ, "t1")).await;
    assert_eq!(read.params()["fromSeq"], 0);
    let _second = acknowledged(asked).await;
    let mut third = while_waiting(&mut two, script.listen()).await;
    assert_eq!(third.asked_from("t1"), Some(0), "what one of them has not is asked for");
    read.result(page(0, &["a", "b", "c"], false)).await;
    for (seq, said) in [(0, "a"), (1, "b"), (2, "c"), (3, "d"), (4, "e")] {
        third.partial("t1", seq, said).await;
    }
    third.task(completed("t1", "end")).await;
    assert_eq!(rest(&mut two).await, ["0 a", "1 b", "2 c", "3 d", "4 e", "done: end"]);
    assert_eq!(rest(&mut one).await, ["4 e", "done: end"]);
}

// Streams that are not to be had.

#[tokio::test]
async fn a_further_stream_that_is_refused_takes_nothing_from_who_has_one() {
    for status in [200, 429] {
        let script = ScriptedServer::start().await;
        // Who has none looks for itself.
        for kind in ["tasks/get", READ] {
            script.may_remain(kind);
        }
        let client = script.client().await;
        let (mut one, mut listen) = script.watched(&client, "t1").await;
        listen.task(with_members(task("t1", "working"), json!({"statusMessage": "begun"}))).await;
        assert_eq!(exactly(&mut one).await.as_deref(), Some("working: begun"));
        let mut two = script.run(&client, "t2").await;
        assert_eq!(next_briefs(&mut two, 1).await, ["task t2"]);
        let refused = while_waiting(&mut two, script.expect(LISTEN)).await;
        refused.error(status, -31001, "too many tasks on one stream", Value::Null).await;
        assert_eq!(exactly(&mut two).await.as_deref(), Some("lost"), "{status}");
        listen.partial("t1", 0, "a").await;
        assert_eq!(exactly(&mut one).await.as_deref(), Some("0 a"), "{status}");
        // There may be room later.
        let mut again = script.as_time_passes("another stream", 20 * MS, script.listen()).await;
        assert_eq!((again.task_ids(), again.asked_from("t1")), (vec!["t1".to_owned(), "t2".to_owned()], Some(1)), "{status}");
        again.partial("t1", 1, "b").await;
        again.task(completed("t1", "one")).await;
        assert_eq!(all(&mut one).await, ["1 b", "done: one"], "{status}");
        again.task(completed("t2", "two")).await;
        assert_eq!(rest(&mut two).await, ["done: two"], "{status}");
    }
}

#[tokio::test]
async fn a_stream_that_ends_as_soon_as_it_is_there_is_opened_less_and_less_often() {
    let script = ScriptedServer::start().await;
    for kind in ["tasks/get", READ] {
        script.may_remain(kind);
    }
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    let mut waits = Vec::new();
    for _ in 0..5 {
        let before = script.clock.now();
        listen.cut();
        let asked = script.as_time_passes("another stream", 20 * MS, while_waiting(&mut call, script.expect(LISTEN))).await;
        waits.push(asked.at.since(before));
        listen = acknowledged(asked).await;
    }
    // Half of each at least: the rest is left to chance.
    for (wait, whole) in waits.iter().zip([250, 500, 1_000, 2_000, 4_000]) {
        assert!(*wait >= whole * MS / 2, "{wait:?} of {whole} ms: {waits:?}");
    }
    // What says something is worth coming back to.
    listen.partial("t1", 0, "a").await;
    assert_eq!(next_briefs(&mut call, 1).await, ["0 a"]);
    let before = script.clock.now();
    listen.cut();
    let asked = script.as_time_passes("another stream", 20 * MS, while_waiting(&mut call, script.expect(LISTEN))).await;
    let wait = asked.at.since(before);
    assert!(wait < 4_000 * MS, "{wait:?}");
}

// What comes later than elsewhere.

#[tokio::test]
async fn a_state_that_was_overtaken_does_not_settle_a_question() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    let at = |state: Value, seconds: u32| with_members(state, json!({"lastUpdatedAt": format!("2026-07-28T00:00:{seconds:02}.000Z")}));
    let asks = || at(asking("t1", json!({"k": form("Name?")})), 5);
    // A look finds the question before the stream has come so far.
    let look = script.as_time_passes("a look", 20 * MS, while_waiting(&mut call, script.expect("tasks/get"))).await;
    look.result(complete(asks())).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["asks k: Name?"]);
    listen.task(at(with_members(task("t1", "working"), json!({"statusMessage": "step 2"})), 3)).await;
    listen.partial("t1", 0, "a").await;
    assert_eq!(exactly(&mut call).await.as_deref(), Some("0 a"), "that state is over");
    listen.task(asks()).await;
    listen.partial("t1", 1, "b").await;
    assert_eq!(next_briefs(&mut call, 1).await, ["1 b"]);
    let update = async {
        let asked = script.expect("tasks/update").await;
        assert_eq!(asked.params()["inputResponses"], json!({"k": {"action": "accept", "content": {"name": "Ada"}}}));
        asked.result(json!({"resultType": "complete"})).await;
    };
    let answering = async { tokio::join!(call.answer("k", Answer::accept(json!({"name": "Ada"}))), update) };
    with_timeout("the answer", answering).await.0.expect("it is open");
    listen.task(at(task("t1", "working"), 6)).await;
    listen.task(at(completed("t1", "end"), 7)).await;
    assert_eq!(rest(&mut call).await, ["settled k", "done: end"]);
}
