//! The clock of the machine is set back and forth by an hour: nothing is lost, nothing waits for it, and who sees a task sees its time grow.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use taskwire::{
    clock::{Clock, ManualClock},
    core::Timestamp,
    server::Config,
    tool::TaskMode,
};

use crate::{
    kit::{HOUR, SECOND, TestServer, manual_clock, with_timeout},
    tasks::{Gate, gone, quick, registry, reopened},
    tool_harness::{ToolHarness, follow, next, next_briefs, output, text_of},
};

const AN_HOUR_MS: i64 = 3_600_000;

/// Who polls again at once is answered at once.
fn keeping(retention: Duration) -> Config {
    Config { retention: Some(retention), long_poll: false, ..Config::default() }
}

#[tokio::test]
async fn work_goes_on_while_the_clock_is_set_back_and_forth_by_an_hour() {
    let mut harness = ToolHarness::with(keeping(24 * HOUR)).await;
    let (first, mut run) = harness.task().await;
    let mut stream = follow(&harness.client, &first, 0).await;
    assert_eq!(next_briefs(&mut stream, 1).await, ["working"]);
    let (mut last, mut ids) = (String::new(), vec![first.clone()]);
    for (nth, ahead_ms) in [0, -AN_HOUR_MS, AN_HOUR_MS, 0, -AN_HOUR_MS].into_iter().enumerate() {
        harness.clock.set_ahead(ahead_ms);
        // Output comes at once, however long ago the last was by this clock, and it comes in order.
        run.writes(&format!("{nth}")).await;
        let partial = next(&mut stream).await.expect("the stream goes on");
        assert_eq!(text_of(&partial["params"]["content"]), format!("{nth}"), "{partial}");
        run.progress(f64::from(u8::try_from(nth).expect("small")) + 1.0, Some(&format!("step {nth}"))).await;
        let state = next(&mut stream).await.expect("the stream goes on");
        let updated = state["params"]["lastUpdatedAt"].as_str().expect("a time").to_owned();
        assert!(updated >= last && *updated >= *state["params"]["createdAt"].as_str().expect("a time"), "after {last}: {state}");
        last = updated;
        // New tasks, too, are found, and are others.
        let (id, mut other) = harness.task().await;
        assert!(!ids.contains(&id), "{id}");
        other.writes("other").await;
        other.ends("done");
        with_timeout("the end", harness.client.until(&id, "completed")).await;
        ids.push(id);
    }
    run.ends("done");
    with_timeout("the end", harness.client.until(&first, "completed")).await;
    assert_eq!(output(&harness.client, &first).await, "01234");
    for id in &ids {
        assert_eq!(harness.client.get(id).await["status"], "completed", "{id}");
    }
}

#[tokio::test]
async fn nothing_is_forgotten_early_while_the_clock_is_set_by_less_than_the_retention_or_back() {
    let mut harness = ToolHarness::with(keeping(2 * HOUR)).await;
    let (id, mut run) = harness.task().await;
    run.ends("done");
    with_timeout("the end", harness.client.until(&id, "completed")).await;
    for ahead_ms in [AN_HOUR_MS, -AN_HOUR_MS, 0] {
        harness.clock.set_ahead(ahead_ms);
        harness.clock.advance(10 * SECOND);
        assert_eq!(harness.client.get(&id).await["status"], "completed", "{ahead_ms}");
    }
    harness.clock.advance(2 * HOUR - 31 * SECOND);
    assert_eq!(harness.client.get(&id).await["status"], "completed", "a second is left");
    harness.clock.advance(2 * SECOND);
    gone(&harness.client, &id).await;
}

#[tokio::test]
async fn a_server_that_starts_an_hour_before_its_last_end_has_all_and_goes_on() {
    let (clock, gate) = (manual_clock(), Gate::new());
    let tools = || registry([quick("quick").task(TaskMode::Always), gate.tool("slow").task(TaskMode::Always)]);
    let server = TestServer::start_with(tools(), keeping(HOUR), Arc::new(clock.clone())).await;
    let before = server.client().start("quick", json!({})).await;
    let ended = with_timeout("the end", server.client().until(&before, "completed")).await;
    let dir = server.dir();
    server.stopped().await;
    let earlier = ManualClock::new(Timestamp::from_millis(clock.now().as_millis() - AN_HOUR_MS));
    let server = reopened(&dir, tools(), keeping(HOUR), &earlier).await;
    let client = server.client();
    assert_eq!(client.get(&before).await["result"], ended["result"]);
    let after = client.start("slow", json!({})).await;
    with_timeout("the start", gate.started.wait()).await;
    assert_ne!(after, before);
    gate.go.send();
    with_timeout("the end", client.until(&after, "completed")).await;
    // Two hours from the end of the first, by the clock that is right again.
    earlier.advance(2 * HOUR + SECOND);
    gone(&client, &before).await;
    gone(&client, &after).await;
}
