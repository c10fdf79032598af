//! A client that hangs up ends its request, not the work: that goes on for `linger`, and the same call joins it.

use std::sync::Arc;

use super::*;
use crate::{
    kit::{TempDir, manual_clock},
    tasks::until_crash,
};

pub(super) const LINGER: Duration = Duration::from_secs(600);

/// Hangs up, and waits until the call has become a task that goes on without its client.
pub(super) async fn hang_up(fixture: &HoldFixture, mut call: PendingCall) -> TaskId {
    let way = call.way;
    call.lose();
    drop(call);
    if matches!(way, Way::ModernLines | Way::LegacyLines) {
        // Calls that are under way when the input ends get the time of a shutdown.
        fixture.pass(DRAIN).await;
    }
    let id = fixture.until_open(1).await[0];
    left(fixture).await;
    id
}

/// Waits until the server has noticed that somebody hung up.
pub(super) async fn left(_fixture: &HoldFixture) {
    settle_long().await;
}

/// That an answer says that it comes from an earlier call.
pub(super) fn is_joined(result: &Value) -> bool {
    let blocks = result["content"].as_array().expect("content");
    blocks
        .iter()
        .any(|block| block["text"].as_str().is_some_and(|text| text.contains("an earlier call with the same arguments, made at 20")))
}

#[tokio::test]
async fn a_call_goes_on_when_its_client_hangs_up_and_the_same_call_joins_it() {
    for way in WAYS {
        for mode in [TaskMode::Auto, TaskMode::Never] {
            let gate = Gate::new();
            let fixture = HoldFixture::new([gate.tool("slow").task(mode)]).await;
            let caller = Caller::new(way, &fixture).await;
            let call = caller.call("slow", json!({"n": 1})).await;
            with_timeout("the tool", gate.started.wait()).await;
            let id = hang_up(&fixture, call).await;
            assert!(!gate.stopped.is_sent(), "{way:?} {mode:?}");
            let mut again = caller.call("slow", json!({"n": 1.0})).await;
            again.is_quiet().await;
            gate.go.send();
            let result = again.result().await;
            assert_eq!((text(&result), is_joined(&result), gate.runs()), ("done", true, 1), "{way:?} {mode:?}: {result}");
            fixture.until(id, Status::Completed).await;
            // Whoever calls now wants it done again: somebody may have changed what it works on.
            let mut anew = caller.call("slow", json!({"n": 1})).await;
            with_timeout("a run of its own", gate.started.wait()).await;
            gate.go.send();
            let result = anew.result().await;
            assert_eq!((text(&result), is_joined(&result)), ("done", false), "{way:?} {mode:?}");
        }
    }
}

#[tokio::test]
async fn what_nobody_comes_back_for_stops_when_its_time_is_over() {
    for way in WAYS {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow")]).await;
        let caller = Caller::new(way, &fixture).await;
        let call = caller.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        let id = hang_up(&fixture, call).await;
        fixture.pass(LINGER - MS).await;
        left(&fixture).await;
        assert!(!gate.stopped.is_sent(), "{way:?}");
        fixture.pass(MS).await;
        with_timeout("the word to stop", gate.stopped.wait()).await;
        fixture.until(id, Status::Cancelled).await;
        let task = fixture.task(id);
        assert!(format!("{:?}", task.outcome).contains("hung up"), "{way:?}: {task:?}");
    }
}

#[tokio::test]
async fn who_joins_and_hangs_up_again_makes_the_time_begin_anew() {
    for way in WAYS {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow")]).await;
        let caller = Caller::new(way, &fixture).await;
        let call = caller.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        hang_up(&fixture, call).await;
        fixture.pass(LINGER - 20 * SECOND).await;
        let again = caller.call("slow", json!({})).await;
        left(&fixture).await;
        hang_up(&fixture, again).await;
        fixture.pass(LINGER - 20 * SECOND).await;
        left(&fixture).await;
        assert!(!gate.stopped.is_sent(), "{way:?}");
        fixture.pass(20 * SECOND).await;
        with_timeout("the word to stop", gate.stopped.wait()).await;
        assert_eq!(gate.runs(), 1, "{way:?}");
    }
}

#[tokio::test]
async fn what_lingers_for_ever_goes_on_to_its_end() {
    let gate = Gate::new();
    let fixture = HoldFixture::new([gate.tool("slow").linger(Duration::MAX)]).await;
    let caller = Caller::new(Way::ModernHttp, &fixture).await;
    let call = caller.call("slow", json!({})).await;
    with_timeout("the tool", gate.started.wait()).await;
    hang_up(&fixture, call).await;
    for _ in 0..100 {
        fixture.pass(100 * LINGER).await;
    }
    assert!(!gate.stopped.is_sent());
    gate.go.send();
    fixture.until_open(0).await;
}

#[tokio::test]
async fn a_result_that_nobody_has_had_is_given_to_the_same_call_for_a_while() {
    for way in WAYS {
        for late in [false, true] {
            let gate = Gate::new();
            let fixture = HoldFixture::new([gate.tool("slow")]).await;
            let caller = Caller::new(way, &fixture).await;
            let call = caller.call("slow", json!({})).await;
            with_timeout("the tool", gate.started.wait()).await;
            let id = hang_up(&fixture, call).await;
            gate.go.send();
            fixture.until(id, Status::Completed).await;
            fixture.pass(if late { HOLD + MS } else { HOLD }).await;
            let mut again = caller.call("slow", json!({})).await;
            if late {
                with_timeout("a run of its own", gate.started.wait()).await;
                gate.go.send();
            }
            let result = again.result().await;
            assert_eq!((text(&result), is_joined(&result)), ("done", !late), "{way:?}");
            assert_eq!(gate.runs(), if late { 2 } else { 1 }, "{way:?}");
        }
    }
}

#[tokio::test]
async fn only_the_same_call_of_the_same_caller_joins_and_only_what_was_left() {
    for way in [Way::ModernHttp, Way::LegacyHttp] {
        let gate = Gate::new();
        let fixture = HoldFixture::with(registry([gate.tool("slow")]), two_callers()).await;
        let (ann, bob) = (
            Caller::declaring(way, &fixture, json!({}), Some("ann-token")).await,
            Caller::declaring(way, &fixture, json!({}), Some("bob-token")).await,
        );
        let call = ann.call("slow", json!({"n": 1})).await;
        with_timeout("the tool", gate.started.wait()).await;
        hang_up(&fixture, call).await;
        // Other arguments, another caller; and one that joined is not joined by a third.
        let _other = ann.call("slow", json!({"n": 2})).await;
        with_timeout("a run of its own", gate.started.wait()).await;
        let _bobs = bob.call("slow", json!({"n": 1})).await;
        with_timeout("a run of its own", gate.started.wait()).await;
        let _joined = ann.call("slow", json!({"n": 1})).await;
        left(&fixture).await;
        assert_eq!(gate.runs(), 3, "{way:?}");
        let _third = ann.call("slow", json!({"n": 1})).await;
        with_timeout("a run of its own", gate.started.wait()).await;
        assert_eq!(gate.runs(), 4, "{way:?}");
    }
}

#[tokio::test]
async fn a_client_that_says_that_its_time_is_over_leaves_its_call() {
    for way in [Way::LegacyHttp, Way::ModernLines, Way::LegacyLines] {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow")]).await;
        let caller = Caller::new(way, &fixture).await;
        let mut call = caller.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(2 * SECOND).await;
        caller.cancel(&mut call, "McpError: MCP error -32001: Request timed out").await;
        fixture.until_open(1).await;
        left(&fixture).await;
        assert!(!gate.stopped.is_sent(), "{way:?}");
        let mut again = caller.call("slow", json!({})).await;
        again.is_quiet().await;
        gate.go.send();
        assert_eq!((text(&again.result().await), gate.runs()), ("done", 1), "{way:?}");
    }
}

#[tokio::test]
async fn a_word_to_stop_that_comes_after_the_client_hung_up_stops_the_call() {
    let gate = Gate::new();
    let fixture = HoldFixture::new([gate.tool("slow")]).await;
    let caller = Caller::new(Way::LegacyHttp, &fixture).await;
    let call = caller.call("slow", json!({})).await;
    with_timeout("the tool", gate.started.wait()).await;
    let name = call.id;
    hang_up(&fixture, call).await;
    let legacy = caller.legacy.as_ref().expect("a session");
    legacy.notify("notifications/cancelled", json!({"requestId": name, "reason": "not needed any more"})).await;
    with_timeout("the word to stop", gate.stopped.wait()).await;
}

#[tokio::test]
async fn the_end_of_a_session_leaves_its_calls() {
    let gate = Gate::new();
    let fixture = HoldFixture::new([gate.tool("slow")]).await;
    let mut caller = Caller::new(Way::LegacyHttp, &fixture).await;
    let call = caller.call("slow", json!({})).await;
    with_timeout("the tool", gate.started.wait()).await;
    fixture.pass(2 * SECOND).await;
    call.has_event_id().await;
    assert_eq!(caller.legacy.take().expect("a session").end().await, 200);
    fixture.until_open(1).await;
    left(&fixture).await;
    assert!(!gate.stopped.is_sent());
    let mut again = Caller::new(Way::LegacyHttp, &fixture).await.call("slow", json!({})).await;
    again.is_quiet().await;
    gate.go.send();
    let result = again.result().await;
    assert_eq!((text(&result), is_joined(&result), gate.runs()), ("done", true, 1));
}

#[tokio::test]
async fn a_task_whose_handle_never_came_is_given_to_the_same_call() {
    for mode in [TaskMode::Auto, TaskMode::Always] {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow").task(mode)]).await;
        let client = fixture.tasker();
        let message = client.message(7, "tools/call", json!({"name": "slow", "arguments": {}}));
        let connection = client.send(&client.headers(&message), message.to_string().as_bytes()).await;
        with_timeout("the tool", gate.started.wait()).await;
        drop(connection);
        // Where a task is made at once, its handle may have come after all: then nobody hung up.
        let id = fixture.until_open(1).await[0];
        left(&fixture).await;
        if mode == TaskMode::Always {
            continue;
        }
        let calling = tokio::spawn(async move { client.call("slow", json!({})).await });
        let answered = async {
            // It may begin to wait after any of these.
            while !calling.is_finished() {
                fixture.pass(SECOND).await;
            }
            calling.await.expect("no panic")
        };
        let handle = with_timeout("the handle", answered).await;
        assert_eq!((&handle["resultType"], &handle["taskId"]), (&json!("task"), &json!(id)), "{handle}");
        assert_eq!(gate.runs(), 1);
    }
}

#[tokio::test]
async fn what_somebody_watches_does_not_stop() {
    let gate = Gate::new();
    let fixture = HoldFixture::new([gate.tool("slow")]).await;
    let caller = Caller::new(Way::ModernHttp, &fixture).await;
    let call = caller.call("slow", json!({})).await;
    with_timeout("the tool", gate.started.wait()).await;
    let id = hang_up(&fixture, call).await;
    fixture.pass(LINGER - SECOND).await;
    // By a look at it, and then by a stream.
    assert_eq!(fixture.tasker().get(&id.to_string()).await["status"], "working");
    fixture.pass(LINGER - SECOND).await;
    let listener = fixture.tasker().listen(json!({"taskIds": [id]})).await;
    fixture.pass(LINGER).await;
    fixture.pass(LINGER).await;
    left(&fixture).await;
    assert!(!gate.stopped.is_sent());
    drop(listener);
    left(&fixture).await;
    fixture.pass(LINGER).await;
    with_timeout("the word to stop", gate.stopped.wait()).await;
}

#[tokio::test]
async fn where_there_is_no_room_for_another_task_a_call_stops_with_its_client() {
    let (gate, other) = (Gate::new(), Gate::new());
    let limits = Limits { tasks_per_caller: 1, ..Limits::DEFAULT };
    let config = Config { followups: true, hold: HOLD, ..with_limits(limits) };
    let fixture = HoldFixture::with(registry([gate.tool("slow"), other.tool("other").task(TaskMode::Always)]), config).await;
    fixture.tasker().start("other", json!({})).await;
    let mut call = Caller::new(Way::ModernHttp, &fixture).await.call("slow", json!({})).await;
    with_timeout("the tool", gate.started.wait()).await;
    call.lose();
    with_timeout("the word to stop", gate.stopped.wait()).await;
}

#[test]
fn the_same_call_joins_what_an_earlier_life_of_the_server_left() {
    let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
    let tools = || registry([gate.tool("slow").retry_on_interrupt()]);
    until_crash(async {
        let fixture = HoldFixture::start_in(&dir, tools(), config(), &clock).await;
        let _call = Caller::new(Way::ModernHttp, &fixture).await.call("slow", json!({"n": 1})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(SECOND).await;
        fixture.until_open(1).await;
    });
    until_crash(async {
        let fixture = HoldFixture::start_in(&dir, tools(), config(), &clock).await;
        with_timeout("the second run of the same task", gate.started.wait()).await;
        let mut again = Caller::new(Way::LegacyHttp, &fixture).await.call("slow", json!({"n": 1})).await;
        again.is_quiet().await;
        gate.go.send();
        let result = again.result().await;
        assert_eq!((text(&result), is_joined(&result), gate.runs()), ("done", true, 2));
    });
}

#[tokio::test]
async fn a_held_call_is_a_task_after_a_moment_so_that_it_outlives_the_server() {
    for way in WAYS {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow")]).await;
        let mut call = Caller::new(way, &fixture).await.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(SECOND).await;
        fixture.until_open(1).await;
        call.is_quiet().await;
        gate.go.send();
        assert_eq!(text(&call.result().await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn who_joined_and_says_that_its_time_is_over_leaves_the_call_again_and_again() {
    let gate = Gate::new();
    let fixture = HoldFixture::new([gate.tool("slow")]).await;
    let caller = Caller::new(Way::LegacyHttp, &fixture).await;
    for nth in 0..5 {
        let mut call = caller.call("slow", json!({})).await;
        if nth == 0 {
            with_timeout("the tool", gate.started.wait()).await;
        }
        fixture.pass(2 * SECOND).await;
        call.has_event_id().await;
        caller.cancel(&mut call, "McpError: MCP error -32001: Request timed out").await;
        left(&fixture).await;
        // Some clients come back to the stream of what they gave up: nothing follows there.
        let event_id = call.last.lock().expect("no panic").clone().expect("a name");
        let over = caller.legacy.as_ref().expect("a session").http("GET", &[("Last-Event-ID", &event_id)]).await;
        assert_eq!(over.status, 204);
    }
    let mut again = caller.call("slow", json!({})).await;
    again.is_quiet().await;
    gate.go.send();
    assert_eq!((text(&again.result().await), gate.runs(), gate.stopped.is_sent()), ("done", 1, false));
}

#[tokio::test]
async fn who_gives_up_without_a_word_and_calls_again_in_its_session_joins_its_own_call() {
    let gate = Gate::new();
    let fixture = HoldFixture::new([gate.tool("slow")]).await;
    let caller = Caller::new(Way::LegacyHttp, &fixture).await;
    let mut first = caller.call("slow", json!({"n": 1})).await;
    with_timeout("the tool", gate.started.wait()).await;
    // Two that come together are meant twice.
    let mut second = caller.call("slow", json!({"n": 1})).await;
    with_timeout("a run of its own", gate.started.wait()).await;
    fixture.pass(3 * SECOND).await;
    fixture.until_open(2).await;
    let mut again = caller.call("slow", json!({"n": 1})).await;
    let _other = caller.call("slow", json!({"n": 2})).await;
    with_timeout("a run for other arguments", gate.started.wait()).await;
    left(&fixture).await;
    assert_eq!(gate.runs(), 3);
    // Another session has not given up its call.
    let stranger = Caller::new(Way::LegacyHttp, &fixture).await;
    let _strange = stranger.call("slow", json!({"n": 1})).await;
    with_timeout("a run for another session", gate.started.wait()).await;
    (0..4).for_each(|_| gate.go.send());
    let result = again.result().await;
    assert_eq!((text(&result), is_joined(&result)), ("done", true));
    for call in [&mut first, &mut second] {
        assert_eq!(text(&call.result().await), "done");
    }
}

#[tokio::test]
async fn who_calls_again_in_the_moment_in_which_it_hangs_up_joins_its_own_call() {
    for way in WAYS {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow")]).await;
        let caller = Caller::new(way, &fixture).await;
        let mut call = caller.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(SECOND).await;
        fixture.until_open(1).await;
        for _ in 0..20 {
            match way {
                // One request at a time on a connection: the end of the one and the beginning of the other race.
                Way::ModernHttp => {
                    call.lose();
                    call = caller.call("slow", json!({})).await;
                }
                _ => {
                    caller.cancel(&mut call, "timed out after 3 s").await;
                    caller.call_after(&mut call, "slow", json!({})).await;
                }
            }
        }
        call.is_quiet().await;
        left(&fixture).await;
        assert_eq!(gate.runs(), 1, "{way:?}");
        gate.go.send();
        assert_eq!(text(&call.result().await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn another_caller_does_not_keep_work_going_that_lingers() {
    let gate = Gate::new();
    let fixture = HoldFixture::with(registry([gate.tool("slow")]), two_callers()).await;
    let caller = Caller::declaring(Way::ModernHttp, &fixture, json!({}), Some("ann-token")).await;
    let call = caller.call("slow", json!({})).await;
    with_timeout("the tool", gate.started.wait()).await;
    let id = hang_up(&fixture, call).await;
    fixture.pass(LINGER - SECOND).await;
    let bob = fixture.tasker().with_token("bob-token");
    assert_eq!(bob.error("tasks/get", json!({"taskId": id})).await["message"], "Task not found");
    let listening = bob.listen(json!({"taskIds": [id]})).await;
    left(&fixture).await;
    fixture.pass(SECOND).await;
    with_timeout("the word to stop", gate.stopped.wait()).await;
    fixture.until(id, Status::Cancelled).await;
    drop(listening);
}
