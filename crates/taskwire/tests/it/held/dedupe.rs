//! Calls that are the same share one run.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::*;
use crate::{
    kit::{TempDir, manual_clock},
    tasks::until_crash,
};

#[tokio::test]
async fn calls_that_are_the_same_share_a_task() {
    for way in WAYS {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow").dedupe()]).await;
        let caller = Caller::new(way, &fixture).await;
        let one = json!({"a": 1, "b": {"x": [1, 2], "y": null}});
        let other: Value = serde_json::from_str(r#"{"b":{"y":null,"x":[1,2]},"a":1}"#).expect("JSON");
        let (mut first, mut second) = (caller.call("slow", one.clone()).await, caller.call("slow", other).await);
        with_timeout("the tool", gate.started.wait()).await;
        settle_long().await;
        let mut different = caller.call("slow", json!({"a": 2})).await;
        with_timeout("another run", gate.started.wait()).await;
        assert_eq!(fixture.open().len(), 2, "{way:?}");
        for _ in 0..2 {
            gate.go.send();
        }
        for call in [&mut first, &mut second, &mut different] {
            assert_eq!(text(&call.result().await), "done", "{way:?}");
        }
        assert_eq!(gate.runs(), 2, "{way:?}");
        // Everybody has heard how it ended: from now on it is another call.
        fixture.until_open(0).await;
        settle().await;
        let mut anew = caller.call("slow", one).await;
        with_timeout("a run of its own", gate.started.wait()).await;
        gate.go.send();
        assert_eq!(text(&anew.result().await), "done", "{way:?}");
        assert_eq!(gate.runs(), 3, "{way:?}");
    }
}

#[tokio::test]
async fn a_call_that_joins_another_has_its_own_hold_and_hears_of_progress() {
    for way in WAYS {
        let (tool, mut runs) = played("plays");
        let fixture = HoldFixture::new([tool.dedupe()]).await;
        let caller = Caller::new(way, &fixture).await;
        let mut first = caller.call("plays", json!({})).await;
        let mut run = run_of(&mut runs).await;
        run.progress(1.0, Some("one")).await;
        fixture.pass(HOLD - SECOND).await;
        let mut second = caller.call_with_progress("plays", json!({})).await;
        assert_eq!(second.progress().await, (1.0, "one".to_owned()), "{way:?}");
        fixture.pass(SECOND).await;
        let id = followed(&first.result().await);
        run.progress(2.0, Some("two")).await;
        assert_eq!(second.progress().await, (2.0, "two".to_owned()), "{way:?}");
        fixture.pass(HOLD - 2 * SECOND).await;
        second.progress().await;
        fixture.pass(SECOND).await;
        assert_eq!(followed(&second.result().await), id, "{way:?}");
        run.ends("done");
        fixture.until_open(0).await;
    }
}

#[tokio::test]
async fn nobody_joins_a_call_of_another_caller() {
    for way in [Way::ModernHttp, Way::LegacyHttp] {
        let gate = Gate::new();
        let fixture = HoldFixture::with(registry([gate.tool("slow").dedupe()]), two_callers()).await;
        let ann = Caller::declaring(way, &fixture, json!({}), Some("ann-token")).await;
        let bob = Caller::declaring(way, &fixture, json!({}), Some("bob-token")).await;
        let mut first = ann.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        let mut second = bob.call("slow", json!({})).await;
        with_timeout("another run", gate.started.wait()).await;
        assert_eq!(fixture.open().len(), 2, "{way:?}");
        fixture.pass(HOLD).await;
        let (its, other) = (followed(&first.result().await), followed(&second.result().await));
        assert_ne!(its, other);
        let unknown = bob.result("task_wait", json!({"task_id": its})).await;
        assert!(unknown["isError"] == true && !text(&unknown).contains("still running"), "{way:?}: {unknown}");
        gate.go.send();
        gate.go.send();
    }
}

#[tokio::test]
async fn who_was_cut_off_and_calls_again_gets_what_is_running() {
    for way in WAYS {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow").dedupe()]).await;
        let caller = Caller::new(way, &fixture).await;
        let mut lost = caller.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        lost.lose();
        drop(lost);
        // On a byte stream the call is let go of after the time of a shutdown.
        fixture.pass(DRAIN).await;
        settle().await;
        assert!(!gate.stopped.is_sent(), "{way:?}");
        let mut again = caller.call("slow", json!({})).await;
        again.is_quiet().await;
        gate.go.send();
        assert_eq!(text(&again.result().await), "done", "{way:?}");
        assert_eq!(gate.runs(), 1, "{way:?}");
    }
}

#[tokio::test]
async fn an_end_that_nobody_heard_of_is_told_to_who_calls_again_for_a_while() {
    for way in WAYS {
        for late in [false, true] {
            let gate = Gate::new();
            let fixture = HoldFixture::new([gate.tool("slow").dedupe()]).await;
            let caller = Caller::new(way, &fixture).await;
            let mut lost = caller.call("slow", json!({})).await;
            with_timeout("the tool", gate.started.wait()).await;
            lost.lose();
            drop(lost);
            fixture.pass(DRAIN).await;
            let id = fixture.until_open(1).await[0];
            gate.go.send();
            fixture.until(id, Status::Completed).await;
            fixture.pass(if late { HOLD + MS } else { HOLD }).await;
            let mut again = caller.call("slow", json!({})).await;
            if late {
                with_timeout("a run of its own", gate.started.wait()).await;
                gate.go.send();
            }
            assert_eq!(text(&again.result().await), "done", "{way:?}");
            assert_eq!(gate.runs(), if late { 2 } else { 1 }, "{way:?}");
            settle().await;
            // Heard once, it is over.
            let mut anew = caller.call("slow", json!({})).await;
            with_timeout("a run of its own", gate.started.wait()).await;
            gate.go.send();
            anew.result().await;
        }
    }
}

#[tokio::test]
async fn an_error_that_was_told_is_not_told_again() {
    let runs = Arc::new(AtomicU64::new(0));
    let refuses = tool("refuses", &runs, |runs: Arc<AtomicU64>, _| async move {
        Err::<String, _>(ToolError::protocol(-32602, format!("no {}", runs.fetch_add(1, Ordering::Relaxed))))
    });
    let fixture = HoldFixture::new([refuses.dedupe()]).await;
    let legacy = LegacySession::of(fixture.server.port, None, LATEST, json!({})).await;
    let mut calls = 0;
    for accept in ["application/json", "application/json, text/event-stream"] {
        let caller = legacy.accepting(accept);
        for _ in 0..3 {
            let error = caller.error("tools/call", json!({"name": "refuses", "arguments": {}})).await;
            assert_eq!(error["message"], format!("no {calls}"), "{accept}");
            calls += 1;
        }
    }
}

#[tokio::test]
async fn an_end_that_was_heard_by_a_follow_up_tool_is_not_told_again() {
    for way in WAYS {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow").dedupe()]).await;
        let caller = Caller::new(way, &fixture).await;
        let mut call = caller.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(HOLD).await;
        let id = followed(&call.result().await);
        gate.go.send();
        // As models write it, now and then.
        let wrapped = format!("`{}`", id.to_uppercase());
        assert_eq!(text(&caller.result("task_wait", json!({"task_id": wrapped})).await), "done", "{way:?}");
        settle().await;
        let mut anew = caller.call("slow", json!({})).await;
        with_timeout("a run of its own", gate.started.wait()).await;
        gate.go.send();
        assert_eq!(text(&anew.result().await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn a_shared_call_is_stopped_by_a_change_of_mind_and_not_by_a_loss_of_patience() {
    // In the modern era over HTTP there is no word to call a request off but its end.
    for way in [Way::LegacyHttp, Way::ModernLines, Way::LegacyLines] {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow").dedupe()]).await;
        let caller = Caller::new(way, &fixture).await;
        let mut first = caller.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        let id = fixture.until_open(1).await[0];
        settle_long().await;
        caller.cancel(&mut first, "McpError: MCP error -32001: Request timed out").await;
        settle_long().await;
        let mut second = caller.call("slow", json!({})).await;
        second.is_quiet().await;
        assert!(!gate.stopped.is_sent(), "{way:?}");
        settle_long().await;
        // Over HTTP the cancel has a connection of its own, and may overtake the call.
        let stopped = async {
            while !gate.stopped.is_sent() {
                caller.cancel(&mut second, "not needed any more").await;
                settle().await;
            }
        };
        with_timeout(&format!("{way:?}: the word to stop"), stopped).await;
        fixture.until(id, Status::Cancelled).await;
        assert_eq!(gate.runs(), 1, "{way:?}");
        // What was called off is not what the next one wants.
        let mut anew = caller.call("slow", json!({})).await;
        with_timeout("a run of its own", gate.started.wait()).await;
        gate.go.send();
        assert_eq!(text(&anew.result().await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn who_calls_again_after_a_change_of_mind_gets_a_run_of_its_own() {
    for way in [Way::LegacyHttp, Way::ModernLines, Way::LegacyLines] {
        for _ in 0..5 {
            let gate = Gate::new();
            let fixture = HoldFixture::new([gate.tool("slow").dedupe()]).await;
            let caller = Caller::new(way, &fixture).await;
            let mut call = caller.call("slow", json!({})).await;
            with_timeout("the tool", gate.started.wait()).await;
            settle_long().await;
            caller.cancel(&mut call, "not needed any more").await;
            caller.call_after(&mut call, "slow", json!({})).await;
            with_timeout("a run of its own", gate.started.wait()).await;
            with_timeout("the word to stop", gate.stopped.wait()).await;
            gate.go.send();
            assert_eq!(text(&call.result().await), "done", "{way:?}");
            assert_eq!(gate.runs(), 2, "{way:?}");
        }
    }
}

#[tokio::test]
async fn a_shared_call_goes_on_for_as_long_as_somebody_has_not_changed_its_mind() {
    for way in [Way::LegacyHttp, Way::ModernLines, Way::LegacyLines] {
        for both in [false, true] {
            let (tool, mut runs) = played("plays");
            let fixture = HoldFixture::new([tool.dedupe()]).await;
            let caller = Caller::new(way, &fixture).await;
            let mut first = caller.call_with_progress("plays", json!({})).await;
            let mut run = run_of(&mut runs).await;
            let mut second = caller.call_with_progress("plays", json!({})).await;
            run.progress(1.0, None).await;
            // Both wait for it by now.
            for call in [&mut first, &mut second] {
                assert_eq!(call.progress().await.0, 1.0, "{way:?}");
            }
            caller.cancel(&mut first, "not needed any more").await;
            settle_long().await;
            assert!(!run.ctx.is_cancelled(), "{way:?}");
            if both {
                caller.cancel(&mut second, "not needed any more").await;
                with_timeout("the word to stop", run.ctx.cancelled()).await;
                continue;
            }
            run.ends("done");
            assert_eq!(text(&second.result().await), "done", "{way:?}");
        }
    }
}

#[tokio::test]
async fn who_came_back_to_a_shared_task_waits_for_it_like_any_other() {
    for both in [false, true] {
        let (tool, mut runs) = played("plays");
        let fixture = HoldFixture::new([tool.dedupe()]).await;
        let (ann, bob) = (Caller::new(Way::LegacyHttp, &fixture).await, Caller::new(Way::LegacyHttp, &fixture).await);
        let mut first = ann.call_with_progress("plays", json!({})).await;
        let mut run = run_of(&mut runs).await;
        let mut second = bob.call_with_progress("plays", json!({})).await;
        run.progress(1.0, None).await;
        for call in [&mut first, &mut second] {
            assert_eq!(call.progress().await.0, 1.0);
        }
        second.has_event_id().await;
        second.lose();
        settle_long().await;
        let mut back = bob.resume(&second).await;
        run.progress(2.0, None).await;
        assert_eq!(back.progress().await.0, 2.0);
        ann.cancel(&mut first, "not needed any more").await;
        settle_long().await;
        assert!(!run.ctx.is_cancelled());
        if both {
            bob.cancel(&mut back, "not needed any more").await;
            with_timeout("the word to stop", run.ctx.cancelled()).await;
            continue;
        }
        run.ends("done");
        assert_eq!(text(&back.result().await), "done");
    }
}

#[tokio::test]
async fn a_call_that_found_no_room_to_share_a_task_shares_none_later() {
    for way in WAYS {
        let (gate, other) = (Gate::new(), Gate::new());
        let limits = Limits { tasks_per_caller: 1, ..Limits::DEFAULT };
        let config = Config { followups: true, hold: HOLD, ..with_limits(limits) };
        let tools = registry([gate.tool("slow").dedupe(), other.tool("other").task(TaskMode::Always)]);
        let fixture = HoldFixture::with(tools, config).await;
        fixture.tasker().start("other", json!({})).await;
        let mut call = Caller::new(way, &fixture).await.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        other.go.send();
        fixture.until_open(0).await;
        fixture.pass(HOLD).await;
        let id: TaskId = followed(&call.result().await).parse().expect("an id");
        let spec = fixture.task(id).spec.clone();
        assert!(spec.findable && spec.fingerprint.is_none(), "{way:?}");
        gate.go.send();
    }
}

#[test]
fn who_calls_again_after_a_crash_gets_what_is_running_then() {
    for way in WAYS {
        let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
        let tools = || registry([gate.tool("slow").dedupe().retry_on_interrupt()]);
        until_crash(async {
            let fixture = HoldFixture::start_in(&dir, tools(), config(), &clock).await;
            let _lost = Caller::new(way, &fixture).await.call("slow", json!({"a": 1})).await;
            with_timeout("the tool", gate.started.wait()).await;
            fixture.until_open(1).await;
        });
        until_crash(async {
            let fixture = HoldFixture::start_in(&dir, tools(), config(), &clock).await;
            with_timeout("the second run", gate.started.wait()).await;
            let mut again = Caller::new(way, &fixture).await.call("slow", json!({"a": 1})).await;
            again.is_quiet().await;
            gate.go.send();
            assert_eq!(text(&again.result().await), "done", "{way:?}");
        });
        assert_eq!(gate.runs(), 2, "{way:?}: one in each life");
    }
}

#[test]
fn what_was_answered_goes_on_after_a_crash() {
    for way in WAYS {
        let (dir, clock, gate) = (Arc::new(TempDir::new()), manual_clock(), Gate::new());
        let tools = || registry([gate.tool("slow").retry_on_interrupt()]);
        let id = until_crash(async {
            let fixture = HoldFixture::start_in(&dir, tools(), config(), &clock).await;
            let mut call = Caller::new(way, &fixture).await.call("slow", json!({})).await;
            with_timeout("the tool", gate.started.wait()).await;
            fixture.pass(HOLD).await;
            followed(&call.result().await)
        });
        until_crash(async {
            let fixture = HoldFixture::start_in(&dir, tools(), config(), &clock).await;
            with_timeout("the second run", gate.started.wait()).await;
            gate.go.send();
            let caller = Caller::new(way, &fixture).await;
            assert_eq!(text(&caller.result("task_wait", json!({"task_id": id})).await), "done", "{way:?}");
        });
    }
}
