//! Where nodes share a store, work that lingers is found by the same call on any node.

use super::{linger::*, *};

/// A caller as each of two nodes has it, and its call of a tool on the first one, which has started.
async fn started(nodes: &[HoldFixture; 2], gate: &Gate, way: Way) -> (PendingCall, Caller, Caller) {
    let here = Caller::new(way, &nodes[0]).await;
    let call = here.call("slow", json!({})).await;
    with_timeout("the tool", gate.started.wait()).await;
    (call, here, Caller::new(way, &nodes[1]).await)
}

#[tokio::test]
async fn the_same_call_on_another_node_joins_what_was_left() {
    for way in WAYS {
        for mode in [TaskMode::Auto, TaskMode::Always] {
            let gate = Gate::new();
            let nodes = HoldFixture::two_nodes(|| registry([gate.tool("slow").task(mode)])).await;
            let (call, _, there) = started(&nodes, &gate, way).await;
            hang_up(&nodes[0], call).await;
            let mut again = there.call("slow", json!({})).await;
            again.is_quiet().await;
            // It has a call that waits now: others are calls of their own.
            let mut other = Caller::new(way, &nodes[0]).await.call("slow", json!({})).await;
            with_timeout("a run of its own", gate.started.wait()).await;
            gate.go.send();
            gate.go.send();
            let result = again.result().await;
            assert_eq!((text(&result), is_joined(&result), gate.runs()), ("done", true, 2), "{way:?} {mode:?}: {result}");
            assert!(!is_joined(&other.result().await), "{way:?} {mode:?}");
        }
    }
}

#[tokio::test]
async fn a_result_that_nobody_has_had_is_given_to_the_same_call_on_another_node_once() {
    let gate = Gate::new();
    let nodes = HoldFixture::two_nodes(|| registry([gate.tool("slow")])).await;
    let (call, _, there) = started(&nodes, &gate, Way::ModernHttp).await;
    let id = hang_up(&nodes[0], call).await;
    gate.go.send();
    nodes[1].until(id, Status::Completed).await;
    let mut again = there.call("slow", json!({})).await;
    let result = again.result().await;
    assert_eq!((text(&result), is_joined(&result), gate.runs()), ("done", true, 1), "{result}");
    for node in &nodes {
        let mut anew = Caller::new(Way::ModernHttp, node).await.call("slow", json!({})).await;
        with_timeout("a run of its own", gate.started.wait()).await;
        gate.go.send();
        assert!(!is_joined(&anew.result().await));
    }
}

#[tokio::test]
async fn the_time_to_linger_counts_from_the_last_call_on_any_node() {
    let gate = Gate::new();
    let nodes = HoldFixture::two_nodes(|| registry([gate.tool("slow")])).await;
    let (call, _, there) = started(&nodes, &gate, Way::ModernHttp).await;
    let id = hang_up(&nodes[0], call).await;
    nodes[0].pass(LINGER - 20 * SECOND).await;
    let again = there.call("slow", json!({})).await;
    left(&nodes[1]).await;
    // The first node has nothing to watch over any more.
    nodes[0].pass(30 * SECOND).await;
    left(&nodes[0]).await;
    assert!(!gate.stopped.is_sent());
    hang_up(&nodes[1], again).await;
    nodes[0].pass(LINGER - 20 * SECOND).await;
    left(&nodes[1]).await;
    assert!(!gate.stopped.is_sent());
    nodes[0].pass(20 * SECOND).await;
    with_timeout("the word to stop", gate.stopped.wait()).await;
    nodes[0].until(id, Status::Cancelled).await;
    assert_eq!(gate.runs(), 1);
}

#[tokio::test]
async fn who_asks_for_it_on_another_node_makes_the_time_to_linger_begin_anew() {
    let gate = Gate::new();
    let nodes = HoldFixture::two_nodes(|| registry([gate.tool("slow")])).await;
    let (call, _, there) = started(&nodes, &gate, Way::ModernHttp).await;
    let id = hang_up(&nodes[0], call).await;
    nodes[0].pass(LINGER - SECOND).await;
    there.result("task_output", json!({"task_id": id})).await;
    nodes[0].pass(LINGER - SECOND).await;
    left(&nodes[0]).await;
    assert!(!gate.stopped.is_sent());
    nodes[0].pass(SECOND).await;
    with_timeout("the word to stop", gate.stopped.wait()).await;
}

#[tokio::test]
async fn shared_work_stops_when_no_call_on_any_node_wants_it() {
    let gate = Gate::new();
    let nodes = HoldFixture::two_nodes(|| registry([gate.tool("slow").dedupe()])).await;
    let (mut call, here, there) = started(&nodes, &gate, Way::LegacyHttp).await;
    let mut other = there.call("slow", json!({})).await;
    other.is_quiet().await;
    nodes[0].until_open(1).await;
    let reason = "not needed any more";
    here.cancel(&mut call, reason).await;
    left(&nodes[0]).await;
    assert!(!gate.stopped.is_sent(), "a call on the other node waits for it");
    there.cancel(&mut other, reason).await;
    with_timeout("the word to stop", gate.stopped.wait()).await;
    assert_eq!(gate.runs(), 1);
}

#[tokio::test]
async fn the_same_call_joins_what_a_node_left_that_is_gone() {
    let gate = Gate::new();
    let [mut gone, other] = HoldFixture::two_nodes(|| registry([gate.tool("slow").retry_on_interrupt()])).await;
    let call = Caller::new(Way::ModernHttp, &gone).await.call("slow", json!({})).await;
    with_timeout("the tool", gate.started.wait()).await;
    gone.pass(SECOND).await;
    gone.until_open(1).await;
    drop(call);
    gone.stop();
    gone.pass(DRAIN).await;
    gone.server.stopped().await;
    // The other node may judge when it has held its lease for as long as a lease lasts.
    for _ in 0..10 {
        other.pass(SECOND).await;
    }
    with_timeout("the second run of the same task", gate.started.wait()).await;
    let mut again = Caller::new(Way::ModernHttp, &other).await.call("slow", json!({})).await;
    again.is_quiet().await;
    gate.go.send();
    let result = again.result().await;
    assert_eq!((text(&result), is_joined(&result), gate.runs()), ("done", true, 2), "{result}");
}
