//! What a tool may write, and when it goes out: how output is gathered into chunks, what happens to it when a call becomes
//! a task, and what bounds it. Time stands still here unless a test moves it.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::{FutureExt, StreamExt, stream};
use serde_json::{Value, json};
use taskwire::{
    core::Limits,
    server::{Coalesce, Config, EngineConfig},
    tool::{Content, Overflow, Progress, TaskMode, Tool, ToolError},
};

use crate::{
    kit::{Client, TestServer, manual_clock, with_timeout},
    shutdown::settle,
    tasks::{name_form, registry, reopened, tool, until_crash, with_limits},
    tool_harness::{
        MS, SECOND, ToolHarness, ToolRun, brief, follow, follow_output, granted_partials, large, large_chunks, next, next_briefs,
        next_partial, output, page, read, rest, shortened, sixty, text_of, uncoalesced,
    },
};

/// How long output waits for more, by default.
const WINDOW: Duration = Duration::from_millis(20);

/// Writes without waiting until it is in the log.
async fn says(run: &ToolRun, text: &str) {
    with_timeout("room for the output", run.ctx.text(text)).await.expect("it may write");
}

/// How many texts of so many bytes are taken at once, before the tool has to wait.
fn taken_at_once(run: &ToolRun, bytes: usize) -> usize {
    let text = "x".repeat(bytes);
    let taken = std::iter::repeat_with(|| run.ctx.text(&text).now_or_never()).map_while(|taken| taken);
    taken.take(1_000_000).inspect(|taken| assert!(taken.is_ok(), "it may write: {taken:?}")).count()
}

// Gathering.

#[tokio::test]
async fn the_first_output_goes_out_at_once_and_what_follows_is_gathered() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    let mut events = follow_output(&harness.client, &id, 0).await;
    says(&run, "one").await;
    assert_eq!(next_briefs(&mut events, 1).await, ["0 one"]);
    says(&run, "two").await;
    says(&run, "three").await;
    harness.clock.advance(WINDOW - MS);
    says(&run, "four").await;
    harness.clock.advance(MS);
    assert_eq!(next_briefs(&mut events, 1).await, ["1 twothreefour"]);
}

#[tokio::test]
async fn after_a_pause_output_goes_out_at_once_again() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    let mut events = follow_output(&harness.client, &id, 0).await;
    says(&run, "one").await;
    assert_eq!(next_briefs(&mut events, 1).await, ["0 one"]);
    harness.clock.advance(WINDOW);
    says(&run, "two").await;
    assert_eq!(next_briefs(&mut events, 1).await, ["1 two"]);
    says(&run, "three").await;
    says(&run, "four").await;
    harness.clock.advance(WINDOW);
    assert_eq!(next_briefs(&mut events, 1).await, ["2 threefour"]);
}

#[tokio::test]
async fn much_at_once_does_not_hurry_what_follows_it() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    let mut events = follow_output(&harness.client, &id, 0).await;
    let much = "x".repeat(20_000);
    says(&run, &much).await;
    assert_eq!(next_briefs(&mut events, 1).await, [format!("0 {much}")]);
    says(&run, "two").await;
    // Had it gone out by now, it would be in the log before what is said after it.
    settle().await;
    run.ctx.status("said").await.expect("said");
    says(&run, "three").await;
    harness.clock.advance(WINDOW);
    assert_eq!(next_briefs(&mut events, 1).await, ["1 twothree"]);
}

#[tokio::test]
async fn adjacent_text_becomes_one_block_and_other_blocks_stay_apart() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    let mut events = follow_output(&harness.client, &id, 1).await;
    run.writes("-").await;
    says(&run, "a").await;
    says(&run, "b").await;
    for name in ["c", "d"] {
        run.ctx.block(Content::link("test://x", name)).await.expect("taken");
    }
    says(&run, "e").await;
    says(&run, "f").await;
    run.ctx.flush().await.expect("written");
    let link = |name: &str| json!({"type": "resource_link", "uri": "test://x", "name": name});
    let expected = json!([{"type": "text", "text": "ab"}, link("c"), link("d"), {"type": "text", "text": "ef"}]);
    assert_eq!(next_partial(&mut events).await["content"], expected);
}

#[tokio::test]
async fn enough_text_goes_out_before_the_window_is_over() {
    let coalesce = Coalesce { bytes: 100, ..Coalesce::default() };
    let engine = EngineConfig { coalesce, ..EngineConfig::default() };
    let mut harness = ToolHarness::with(Config { engine, ..Config::default() }).await;
    let (id, run) = harness.task().await;
    let mut events = follow_output(&harness.client, &id, 1).await;
    run.writes("-").await;
    says(&run, &"a".repeat(60)).await;
    says(&run, &"b".repeat(60)).await;
    let mut seen = String::new();
    while seen.len() < 100 {
        seen.push_str(&text_of(&next_partial(&mut events).await["content"]));
    }
    run.ctx.flush().await.expect("written");
    let all = format!("{}{}", "a".repeat(60), "b".repeat(60));
    assert!(all.starts_with(&seen), "{seen}");
    assert_eq!(output(&harness.client, &id).await, format!("-{all}"));
}

#[tokio::test]
async fn without_a_window_each_text_is_a_chunk_of_its_own() {
    let mut harness = ToolHarness::with(uncoalesced()).await;
    let (id, run) = harness.task().await;
    for text in ["a", "b", "c"] {
        says(&run, text).await;
    }
    run.ctx.flush().await.expect("written");
    assert_eq!(page(&read(&harness.client, &id, json!({})).await), json!([["0 a", "1 b", "2 c"], 0, 3, false]));
}

#[tokio::test]
async fn what_is_flushed_can_be_read() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    for n in 0..20 {
        says(&run, "a").await;
        says(&run, "b").await;
        run.ctx.flush().await.expect("written");
        assert_eq!(output(&harness.client, &id).await, "ab".repeat(n + 1));
    }
}

#[tokio::test]
async fn what_waits_goes_out_before_a_checkpoint_a_step_and_a_question() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    run.writes("-").await;
    says(&run, "a").await;
    run.ctx.checkpoint(&1).await.expect("saved");
    assert_eq!(output(&harness.client, &id).await, "-a");
    says(&run, "b").await;
    run.ctx.step([Content::link("test://c", "c")], &2).await.expect("saved");
    // In one chunk or in two: in this order in any case.
    assert_eq!(output(&harness.client, &id).await.replace('+', ""), "-ab<resource_link>");
    let from = read(&harness.client, &id, json!({})).await["nextSeq"].as_u64().expect("a number");
    let mut events = follow(&harness.client, &id, from).await;
    says(&run, "d").await;
    let ctx = run.ctx.clone();
    tokio::spawn(async move { ctx.ask("name", name_form("Name?")).await.map(drop) });
    assert_eq!(next_briefs(&mut events, 3).await, ["working", &format!("{from} d"), "input_required"]);
}

#[tokio::test]
async fn a_status_does_not_wait_for_output() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    let mut events = follow(&harness.client, &id, 0).await;
    run.writes("one").await;
    says(&run, "two").await;
    run.ctx.status("half way").await.expect("said");
    assert_eq!(next_briefs(&mut events, 3).await, ["working", "0 one", "working: half way"]);
    run.ctx.flush().await.expect("written");
    assert_eq!(next_briefs(&mut events, 1).await, ["1 two"]);
}

#[tokio::test]
async fn long_text_is_split_into_chunks_that_fit_and_join_to_the_same() {
    const CHUNK_BYTES: usize = 1_000;
    let limits = Limits { chunk_bytes: CHUNK_BYTES as u64, ..Limits::DEFAULT };
    let mut harness = ToolHarness::with(with_limits(limits)).await;
    let (id, mut run) = harness.task().await;
    // Characters of one to four bytes, and some that take more in JSON.
    let text = "aä€𝄞\"\\\n\u{1}".repeat(5_000);
    says(&run, &text).await;
    run.ends("done");
    let (mut joined, mut count) = (String::new(), 0);
    let mut events = follow_output(&harness.client, &id, 0).await;
    while let Some(message) = next(&mut events).await {
        if message.get("method").is_some() {
            let content = &message["params"]["content"];
            assert!(content.to_string().len() <= CHUNK_BYTES, "{content}");
            joined.push_str(&text_of(content));
            count += 1;
        }
    }
    assert!(joined == text, "{} bytes became {}", text.len(), joined.len());
    assert!(count >= text.len() / CHUNK_BYTES, "{count} chunks");
}

#[tokio::test]
async fn long_text_waits_for_room_like_any_other() {
    let mut harness = ToolHarness::new().await;
    let (id, mut run) = harness.task().await;
    // Ten bytes, so that characters lie across the offsets where it is cut.
    let text = "aä€𝄞".repeat(300_000);
    let mut writing = Box::pin(run.ctx.text(&text));
    assert!(writing.as_mut().now_or_never().is_none(), "three megabytes do not wait in memory");
    with_timeout("room for the output", writing).await.expect("it may write");
    run.ends("done");
    let (mut joined, mut events) = (String::new(), follow_output(&harness.client, &id, 0).await);
    while let Some(message) = next(&mut events).await {
        if message.get("method").is_some() {
            let content = &message["params"]["content"];
            assert!(content.to_string().len() <= 48 * 1024, "chunk {} is large", message["params"]["seq"]);
            joined.push_str(&text_of(content));
        }
    }
    assert!(joined == text, "{} bytes became {}", text.len(), joined.len());
}

#[tokio::test]
async fn a_step_that_is_refused_takes_nothing_away() {
    let limits = Limits { value_bytes: 100, ..Limits::DEFAULT };
    let mut harness = ToolHarness::with(with_limits(limits)).await;
    let (id, mut run) = harness.task().await;
    let mut events = follow_output(&harness.client, &id, 0).await;
    run.writes("one").await;
    says(&run, "two").await;
    let refused = run.ctx.step([Content::text("lost")], &"x".repeat(200)).await.expect_err("it is too large");
    assert!(format!("{refused:?}").contains("`limits.value_bytes`"), "{refused:?}");
    // By itself, when its time has come.
    harness.clock.advance(WINDOW);
    assert_eq!(next_briefs(&mut events, 2).await, ["0 one", "1 two"]);
    says(&run, "three").await;
    run.ctx.step([Content::text("four")], &1).await.expect("saved");
    run.ends("done");
    with_timeout("the end", harness.client.until(&id, "completed")).await;
    assert_eq!(output(&harness.client, &id).await.replace('+', ""), "onetwothreefour");
}

#[tokio::test]
async fn a_tool_may_do_many_things_at_a_time_and_still_wait_for_its_output() {
    const JOBS: u32 = 100;
    // While one job ends and its output is waited for, nobody looks at the others, wherever they are.
    let many = tool("many", &(), |(), ctx| async move {
        let its = ctx.clone();
        let jobs = (0..JOBS).map(move |n| {
            let ctx = its.clone();
            async move {
                for part in 0..=n % 3 {
                    tokio::task::yield_now().await;
                    ctx.progress(Progress::at(n * 3 + part)).await?;
                }
                Ok::<u32, ToolError>(n)
            }
        });
        let mut jobs = stream::iter(jobs).buffer_unordered(8);
        while let Some(n) = jobs.next().await {
            ctx.text(format!("{};", n?)).await?;
            ctx.flush().await?;
            // On its way while the next ones are looked at.
            ctx.text("-;").await?;
        }
        Ok("done")
    });
    let tools = registry([many.task(TaskMode::Always)]);
    let server = TestServer::start_with(tools, uncoalesced(), Arc::new(manual_clock())).await;
    let client = server.streaming_client();
    let id = client.start("many", json!({})).await;
    with_timeout("the end", client.until(&id, "completed")).await;
    let all = output(&client, &id).await;
    let mut done: Vec<u32> = all.split_terminator(';').filter_map(|word| word.parse().ok()).collect();
    done.sort_unstable();
    assert!(done.into_iter().eq(0..JOBS), "{all}");
}

// Calls that become tasks.

#[tokio::test]
async fn what_was_written_before_a_call_became_a_task_is_streamed_too() {
    let mut harness = ToolHarness::of(Config::default(), |tool| tool).await;
    let client = harness.client.clone();
    let calling = tokio::spawn(async move { client.start("writes", json!({})).await });
    let mut run = harness.run().await;
    says(&run, "one ").await;
    says(&run, "two ").await;
    harness.clock.advance(SECOND);
    let id = with_timeout("the handle", calling).await.expect("no panic");
    assert_eq!(output(&harness.client, &id).await, "one two ");
    let mut events = follow_output(&harness.client, &id, 0).await;
    run.writes("three").await;
    run.ends("done");
    let mut seen = String::new();
    let mut seq = 0;
    while let Some(message) = next(&mut events).await {
        if message.get("method").is_some() {
            assert_eq!(message["params"]["seq"], seq);
            seen.push_str(&text_of(&message["params"]["content"]));
            seq += 1;
        }
    }
    assert_eq!(seen, "one two three");
}

#[tokio::test]
async fn a_call_of_a_tool_that_streams_becomes_a_task_with_its_first_output() {
    let mut harness = ToolHarness::of(Config::default(), |tool| tool.streams()).await;
    let client = harness.client.clone();
    let calling = tokio::spawn(async move { client.start("writes", json!({})).await });
    let mut run = harness.run().await;
    says(&run, "one").await;
    let id = with_timeout("the handle, without a wait", calling).await.expect("no panic");
    let mut events = follow(&harness.client, &id, 0).await;
    assert_eq!(next_briefs(&mut events, 2).await, ["working", "0 one"]);
    run.writes("two").await;
    run.ends("done");
    assert_eq!(next_briefs(&mut events, 2).await, ["1 two", "completed"]);
}

#[tokio::test]
async fn other_calls_do_not_become_tasks_for_the_sake_of_their_output() {
    // Whether the tool is said to stream, whether the caller wants to see that, and whether anything is written.
    for (streams, declares, writes) in [(true, false, true), (false, true, true), (true, true, false)] {
        let mut harness = ToolHarness::of(Config::default(), |tool| if streams { tool.streams() } else { tool }).await;
        let client = if declares { harness.client.clone() } else { harness.server.client() };
        let calling = tokio::spawn(async move { client.call("writes", json!({})).await });
        let mut run = harness.run().await;
        if writes {
            says(&run, "one").await;
        }
        run.ends("done");
        let result = with_timeout("the result", calling).await.expect("no panic");
        assert_eq!((&result["resultType"], &result["content"][0]["text"]), (&json!("complete"), &json!("done")));
    }
}

#[tokio::test]
async fn a_call_of_a_tool_that_streams_is_answered_directly_where_there_is_no_room_for_a_task() {
    let limits = Limits { tasks_per_caller: 1, ..Limits::DEFAULT };
    let mut harness = ToolHarness::of(with_limits(limits), |tool| tool.streams()).await;
    let call = |client: Client| tokio::spawn(async move { client.call("writes", json!({})).await });
    let first = call(harness.client.clone());
    let task = harness.run().await;
    says(&task, "one").await;
    assert_eq!(with_timeout("the handle", first).await.expect("no panic")["resultType"], "task");
    let second = call(harness.client.clone());
    let mut run = harness.run().await;
    says(&run, "one").await;
    assert!(run.ctx.text("two").now_or_never().is_some_and(|taken| taken.is_ok()), "it is not tried again with each output");
    run.ctx.flush().await.expect("there is nothing to wait for");
    // When its caller has waited long enough there is still no room.
    harness.clock.advance(SECOND);
    settle().await;
    says(&run, "three").await;
    run.ends("done");
    let result = with_timeout("the result", second).await.expect("no panic");
    assert_eq!((&result["resultType"], &result["content"][0]["text"]), (&json!("complete"), &json!("done")));
    task.writes("two").await;
}

// Limits.

#[tokio::test]
async fn a_tool_that_writes_faster_than_its_output_is_stored_waits_for_room() {
    let mut harness = ToolHarness::new().await;
    let (id, mut run) = harness.task().await;
    // Nothing can be stored while this runs, since it gives nobody else a turn.
    let taken = taken_at_once(&run, 1_000);
    assert!((16..1_024).contains(&taken), "{taken} kilobytes waited to be stored");
    says(&run, "the rest").await;
    run.ends("done");
    with_timeout("the end", harness.client.until(&id, "completed")).await;
    let all = output(&harness.client, &id).await;
    assert!(all == format!("{}the rest", "x".repeat(taken * 1_000)), "{} bytes", all.len());
}

#[tokio::test]
async fn a_tool_that_writes_too_much_in_a_second_is_made_to_wait() {
    // The key is `limits.output_bytes_per_second`.
    let limits = Limits { output_bytes_per_second: 10_000, ..Limits::DEFAULT };
    let mut harness = ToolHarness::with(with_limits(limits)).await;
    let (id, run) = harness.task().await;
    let mut taken = taken_at_once(&run, 1_000);
    assert!((10..=12).contains(&taken), "{taken} kilobytes at once");
    assert_eq!(taken_at_once(&run, 1_000), 0, "no time has passed");
    for _ in 0..3 {
        // So that the buffer is no reason to wait.
        run.ctx.flush().await.expect("written");
        harness.clock.advance(SECOND / 2);
        let more = taken_at_once(&run, 1_000);
        assert!((4..=6).contains(&more), "{more} kilobytes in half a second");
        taken += more;
    }
    let ctx = run.ctx.clone();
    let waits = tokio::spawn(async move { ctx.text("x".repeat(1_000)).await });
    run.ctx.flush().await.expect("written");
    assert!(!waits.is_finished(), "it has to wait");
    harness.clock.advance(SECOND);
    with_timeout("the end of the wait", waits).await.expect("no panic").expect("it may write");
    run.ctx.flush().await.expect("written");
    assert_eq!(output(&harness.client, &id).await.len(), (taken + 1) * 1_000, "nothing was lost");
}

#[tokio::test]
async fn a_block_that_is_too_large_is_refused_and_the_tool_may_go_on() {
    let limits = Limits { chunk_bytes: 200, ..Limits::DEFAULT };
    let mut harness = ToolHarness::with(with_limits(limits)).await;
    let (id, mut run) = harness.task().await;
    run.writes("before").await;
    let refused = run.ctx.block(Content::link(&format!("test://{}", "x".repeat(200)), "x")).await.expect_err("it is too large");
    run.writes("after").await;
    run.ends_with(Err(refused));
    let result = with_timeout("the end", harness.client.until(&id, "completed")).await["result"].clone();
    assert_eq!(result["isError"], true);
    let expected = "the chunk is too large: the limit is 200 (configuration key `limits.chunk_bytes`)";
    assert_eq!(result["content"][0]["text"], expected);
    assert_eq!(page(&read(&harness.client, &id, json!({})).await), json!([["0 before", "1 after"], 0, 2, true]));
}

#[tokio::test]
async fn a_block_that_is_too_large_for_a_chunk_is_a_resource_with_a_link() {
    let limits = Limits { chunk_bytes: 4096, block_bytes: 40_000, ..Limits::DEFAULT };
    let mut harness = ToolHarness::with(with_limits(limits)).await;
    let (id, mut run) = harness.task().await;
    let bytes: Vec<u8> = (0..20_000_u32).map(|n| u8::try_from(n * 7 % 251).expect("a byte")).collect();
    run.writes("before").await;
    run.ctx.block(Content::image(&bytes, "image/png")).await.expect("it is written in parts");
    run.ctx.flush().await.expect("written");
    let refused = run.ctx.block(Content::image(&[1; 40_000], "image/png")).await.expect_err("it is too large");
    run.writes("after").await;
    let client = harness.server.plain_client();
    let shown = with_timeout("the output", client.call("task_output", json!({"task_id": id}))).await["content"].clone();
    let kinds: Vec<&Value> = shown.as_array().expect("blocks").iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["text", "resource_link", "text", "text"], "{shown}");
    assert_eq!((&shown[1]["mimeType"], &shown[1]["size"]), (&json!("image/png"), &json!(bytes.len())), "{shown}");
    let uri = shown[1]["uri"].as_str().expect("an address").to_owned();
    let read = with_timeout("the resource", client.ok("resources/read", json!({"uri": uri}))).await;
    let blob = STANDARD.encode(&bytes);
    assert!(read["contents"] == json!([{"uri": uri, "mimeType": "image/png", "blob": blob}]), "it is not what was written");
    let error = client.error("resources/read", json!({"uri": format!("{uri}00")})).await;
    assert!(error["message"].as_str().is_some_and(|text| text.contains("not kept")), "{error}");
    run.ends_with(Err(refused));
    let result = with_timeout("the end", harness.client.until(&id, "completed")).await["result"].clone();
    let expected = "the block is too large: the limit is 40000 (configuration key `limits.block_bytes`)";
    assert_eq!(result["content"][0]["text"], expected);
}

/// Bytes of a chunk with [`sixty`] characters.
fn chunk_bytes() -> u64 {
    json!([{"type": "text", "text": sixty(0)}]).to_string().len() as u64
}

#[tokio::test]
async fn output_beyond_what_is_kept_is_refused_to_the_tool() {
    let limits = Limits { task_output_bytes: 3 * chunk_bytes(), ..Limits::DEFAULT };
    let mut harness = ToolHarness::with(with_limits(limits)).await;
    let (id, mut run) = harness.task().await;
    for n in 0..3 {
        run.writes(&sixty(n)).await;
    }
    let refused = run.tries(&sixty(3)).await.expect_err("it is too much");
    assert!(run.tries("a little").await.is_err(), "nothing more is taken");
    run.ends_with(Err(refused));
    let result = with_timeout("the end", harness.client.until(&id, "completed")).await["result"].clone();
    let text = result["content"][0]["text"].as_str().expect("a text");
    assert!(result["isError"] == true && text.contains("(configuration key `limits.task_output_bytes`)"), "{result}");
    let kept: Vec<String> = (0..3).map(|n| format!("{n} {}", sixty(n))).collect();
    assert_eq!(page(&read(&harness.client, &id, json!({})).await), json!([kept, 0, 3, true]));
}

/// A task that has written as much as it may, and has something more on its way.
async fn overfull() -> (ToolHarness, String, ToolRun) {
    let limits = Limits { task_output_bytes: 2 * chunk_bytes(), ..Limits::DEFAULT };
    let mut harness = ToolHarness::with(with_limits(limits)).await;
    let (id, run) = harness.task().await;
    for n in 0..2 {
        run.writes(&sixty(n)).await;
    }
    says(&run, &sixty(2)).await;
    (harness, id, run)
}

/// Saves, by a step or by a checkpoint, which must be refused because too much was written.
async fn saves_too_much(run: &ToolRun, by_step: bool) {
    let saving = async { if by_step { run.ctx.step([Content::text("more")], &1).await } else { run.ctx.checkpoint(&1).await } };
    let refused = with_timeout("a refusal", saving).await.expect_err("it is too much");
    assert!(format!("{refused:?}").contains("`limits.task_output_bytes`"), "{refused:?}");
}

#[tokio::test]
async fn a_tool_that_learns_from_a_step_that_its_output_was_lost_may_end_well() {
    for by_step in [false, true] {
        let (harness, id, mut run) = overfull().await;
        harness.clock.advance(WINDOW);
        settle().await;
        // What is said after the output comes to the log after it: so it has been refused by then.
        run.ctx.status("said").await.expect("said");
        settle().await;
        saves_too_much(&run, by_step).await;
        run.ends("done");
        with_timeout("the end", harness.client.until(&id, "completed")).await;
        assert_eq!(read(&harness.client, &id, json!({})).await["nextSeq"], 2);
    }
}

#[tokio::test]
async fn a_tool_whose_step_is_the_first_to_be_refused_for_its_output_may_end_well() {
    for by_step in [false, true] {
        let (harness, id, mut run) = overfull().await;
        saves_too_much(&run, by_step).await;
        run.ends("done");
        with_timeout("the end", harness.client.until(&id, "completed")).await;
        assert_eq!(read(&harness.client, &id, json!({})).await["nextSeq"], 2);
    }
}

#[tokio::test]
async fn a_task_whose_output_was_lost_unnoticed_does_not_end_well() {
    for wait in [Duration::ZERO, WINDOW] {
        let limits = Limits { task_output_bytes: 2 * chunk_bytes(), ..Limits::DEFAULT };
        let mut harness = ToolHarness::with(with_limits(limits)).await;
        let (id, mut run) = harness.task().await;
        for n in 0..2 {
            run.writes(&sixty(n)).await;
        }
        says(&run, &sixty(2)).await;
        // Either the end is the first to see it, or it was refused when its time had come.
        harness.clock.advance(wait);
        run.ends("done");
        let task = with_timeout("the failure", harness.client.until(&id, "failed")).await;
        assert_eq!(task["error"]["code"], -31001);
        assert!(task["error"]["message"].as_str().expect("a text").contains("`limits.task_output_bytes`"), "{task}");
        assert_eq!(read(&harness.client, &id, json!({})).await["nextSeq"], 2);
    }
}

#[tokio::test]
async fn where_the_oldest_chunks_go_readers_are_told_where_the_rest_begins() {
    let (harness, id, mut run) = shortened().await;
    let answer = read(&harness.client, &id, json!({})).await;
    let first = answer["fromSeq"].as_u64().expect("a number");
    let kept = |from: u64| (from..10).map(|n| format!("{n} {}", sixty(n))).collect::<Vec<String>>();
    assert_eq!(page(&answer), json!([kept(first), first, 10, false]));
    let bytes = (10 - first) * chunk_bytes();
    assert!(first > 0 && bytes < 250 + chunk_bytes() && bytes + chunk_bytes() > 250, "{bytes} bytes from {first} on");
    run.ends("done");
    // Also of one that has ended, and from within what is there.
    for from in [0, first - 1, first, first + 1] {
        let begins = from.max(first);
        let mut events = follow_output(&harness.client, &id, from).await;
        assert_eq!(granted_partials(&events), &json!([{"taskId": id, "fromSeq": begins, "nextSeq": 10}]));
        assert_eq!(rest(&mut events).await, [kept(begins), vec!["end".to_owned()]].concat(), "from {from}");
        assert_eq!(page(&read(&harness.client, &id, json!({"fromSeq": from})).await), json!([kept(begins), begins, 10, true]));
    }
}

#[tokio::test]
async fn nothing_goes_before_there_is_too_much() {
    let limits = Limits { task_output_bytes: 3 * chunk_bytes(), ..Limits::DEFAULT };
    let mut harness = ToolHarness::of(with_limits(limits), |tool| tool.task(TaskMode::Always).overflow(Overflow::DropOldest)).await;
    let (id, run) = harness.task().await;
    for n in 0..3 {
        run.writes(&sixty(n)).await;
    }
    assert_eq!(read(&harness.client, &id, json!({})).await["fromSeq"], 0);
    run.writes(&sixty(3)).await;
    assert_eq!(read(&harness.client, &id, json!({})).await["fromSeq"], 1);
}

#[test]
fn where_the_oldest_chunks_went_they_are_not_promised_by_a_life_that_would_keep_more() {
    let (dir, clock, id, first) = until_crash(async {
        let (harness, id, _run) = shortened().await;
        let first = read(&harness.client, &id, json!({})).await["fromSeq"].as_u64().expect("a number");
        (harness.server.dir(), harness.clock.clone(), id, first)
    });
    assert!((1..10).contains(&first), "{first}");
    let kept: Vec<String> = (first..10).map(|n| format!("{n} {}", sixty(n))).collect();
    until_crash(async {
        let server = reopened(&dir, registry([]), Config::default(), &clock).await;
        let client = server.streaming_client();
        with_timeout("the end", client.until(&id, "failed")).await;
        for from in [0, first - 1, first] {
            let mut events = follow_output(&client, &id, from).await;
            assert_eq!(granted_partials(&events), &json!([{"taskId": id, "fromSeq": first, "nextSeq": 10}]));
            assert_eq!(rest(&mut events).await, [kept.clone(), vec!["end".to_owned()]].concat(), "from {from}");
        }
        assert_eq!(page(&read(&client, &id, json!({})).await), json!([kept, first, 10, true]));
    });
}

#[tokio::test]
async fn a_reader_that_lags_behind_what_is_kept_is_told_so_and_can_listen_again() {
    const CHUNKS: u64 = 400;
    let limits = Limits { task_output_bytes: 1 << 20, ..Limits::DEFAULT };
    let shape = |tool: Tool| tool.task(TaskMode::Always).overflow(Overflow::DropOldest);
    let mut harness = ToolHarness::of(large_chunks(limits), shape).await;
    let (id, mut run) = harness.task().await;
    // Twelve megabytes are more than the sockets take in, and more than is kept.
    let mut events = follow_output(&harness.client.clone().with_receive_buffer(128 * 1024), &id, 0).await;
    for n in 0..CHUNKS {
        run.writes(&large(n)).await;
    }
    let mut seen = 0;
    let last: Value = loop {
        let message = next(&mut events).await.expect("a response at the end");
        if message.get("method").is_none() {
            break message;
        }
        assert_eq!(message["params"]["seq"], seen, "what comes has no gap");
        seen += 1;
    };
    assert_eq!(brief(&last), "end");
    assert_eq!(next(&mut events).await, None);
    let mut again = follow_output(&harness.client, &id, seen).await;
    let from = granted_partials(&again)[0]["fromSeq"].as_u64().expect("a number");
    assert!(from > seen && from < CHUNKS, "it had {seen} and goes on at {from}");
    run.ends("done");
    for n in from..CHUNKS {
        let partial = next_partial(&mut again).await;
        assert_eq!((&partial["seq"], text_of(&partial["content"])), (&json!(n), large(n)));
    }
    assert_eq!(rest(&mut again).await, ["end"]);
}

#[tokio::test]
async fn a_tool_whose_output_was_refused_may_still_save_where_it_is() {
    let limits = Limits { task_output_bytes: 200, ..Limits::DEFAULT };
    let mut harness = ToolHarness::with(with_limits(limits)).await;
    let (id, mut run) = harness.task().await;
    run.writes(&"x".repeat(100)).await;
    run.tries(&"x".repeat(100)).await.expect_err("it is too much");
    run.ctx.text("x").await.expect_err("nothing more is taken");
    with_timeout("the checkpoint", run.ctx.checkpoint(&1)).await.expect("it may save all the same");
    run.ends("as far as it went");
    let end = with_timeout("the end", harness.client.until(&id, "completed")).await;
    assert_eq!(end["result"]["content"][0]["text"], "as far as it went");
}

#[tokio::test]
async fn no_text_is_no_output() {
    let mut harness = ToolHarness::of(Config::default(), Tool::streams).await;
    let client = harness.client.clone();
    let call = tokio::spawn(async move { client.call("writes", json!({})).await });
    let mut run = harness.run().await;
    run.ctx.text("").await.expect("it may say nothing");
    run.ends("done");
    let result = with_timeout("the result", call).await.expect("no panic");
    assert_eq!(result["resultType"], "complete", "it did not become a task: {result}");
}
