//! Clients without tasks use `task_wait`, `task_output`, `task_answer` and `task_cancel`, and read output that is too large for a
//! result as a resource.

mod answers;
mod resource;

use std::time::Duration;

use serde_json::{Value, json};
use taskwire::{
    server::Config,
    tool::{Answer, CallResult, Content, Json, Progress, Question, TaskMode, ToolError},
};
use tokio::task::JoinHandle;

use crate::{
    kit::{Client, Events, TASKS, with_timeout},
    legacy::kit::LegacySession,
    tasks::{name_form, two_callers},
    tool_harness::{HOUR, MS, SECOND, ToolHarness, ToolRun, large, text_of, uncoalesced},
};

const NAMES: [&str; 5] = ["task_wait", "task_output", "task_answer", "task_cancel", "task_list"];
const HOLD: Duration = Duration::from_secs(45);
const GOING_AWAY: &str = "The server is shutting down or being restarted: give it a few seconds, then call `task_wait` again.";

/// The result of a follow-up tool that did what it was asked.
async fn done(client: &Client, tool: &str, arguments: Value) -> Value {
    let result = with_timeout(tool, client.call(tool, arguments)).await;
    assert_ne!(result["isError"], true, "{result}");
    result
}

/// What is said by a follow-up tool that did what it was asked.
async fn says(client: &Client, tool: &str, arguments: Value) -> String {
    text_of(&done(client, tool, arguments).await["content"])
}

/// What is said by a follow-up tool that did not.
async fn refuses(client: &Client, tool: &str, arguments: Value) -> String {
    let result = with_timeout(tool, client.call(tool, arguments)).await;
    assert_eq!(result["isError"], true, "{result}");
    text_of(&result["content"])
}

fn of(id: &str) -> Value {
    json!({"task_id": id})
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
}

/// What a text gives to copy behind `mark`: the id of a task, or a number.
fn copied<'a>(text: &'a str, mark: &str) -> &'a str {
    let (_, rest) = text.rsplit_once(mark).unwrap_or_else(|| panic!("`{mark}` is not in:\n{text}"));
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
    &rest[..end]
}

fn task_in(text: &str) -> String {
    copied(text, "\"task_id\":\"").to_owned()
}

/// A wait that has surely begun: its client got the task's progress.
async fn waiting(client: &Client, run: &ToolRun, arguments: Value) -> Events {
    run.ctx.progress(Progress::of(1.0, 10.0).message("one")).await.expect("it goes on");
    let params = json!({"name": "task_wait", "arguments": arguments, "_meta": {"progressToken": "p"}});
    let message = client.message(client.next_id(), "tools/call", params);
    let mut events = with_timeout("the first word", client.open(&message)).await;
    let notification = with_timeout("the progress", events.next()).await.expect("it waits");
    assert_eq!(notification["params"], json!({"progressToken": "p", "progress": 1.0, "total": 10.0, "message": "one"}));
    events
}

/// The next progress that a waiting client hears of.
async fn progress(events: &mut Events) -> Value {
    let notification = with_timeout("the progress", events.next()).await.expect("it waits");
    assert_eq!(notification["method"], "notifications/progress", "{notification}");
    notification["params"].clone()
}

/// The result of a call whose notifications do not matter.
async fn result(events: &mut Events) -> Value {
    loop {
        let message = with_timeout("the result", events.next()).await.expect("a result");
        if let Some(result) = message.get("result") {
            return result.clone();
        }
        assert_eq!(message["method"], "notifications/progress", "{message}");
    }
}

/// A task that asks something under the key `k`.
async fn asked(harness: &mut ToolHarness, question: Question) -> (String, ToolRun, JoinHandle<Result<Answer, ToolError>>) {
    let (id, run) = harness.task().await;
    let asking = asks(&run, "k", question);
    with_timeout("the question", harness.client.until(&id, "input_required")).await;
    (id, run, asking)
}

fn asks(run: &ToolRun, key: &'static str, question: Question) -> JoinHandle<Result<Answer, ToolError>> {
    let ctx = run.ctx.clone();
    tokio::spawn(async move { ctx.ask(key, question).await })
}

/// What the task was answered.
async fn answer(asking: JoinHandle<Result<Answer, ToolError>>) -> (String, Value) {
    let answer = with_timeout("the answer", asking).await.expect("no panic").expect("an answer");
    (answer.action.expect("an action"), answer.content.unwrap_or_default())
}

fn order_form() -> Question {
    let fields = json!({
        "size": {"type": "string", "enum": ["small", "large"], "description": "How large"},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "gift": {"type": "boolean", "default": false},
    });
    Question::form("What shall it be?", json!({"type": "object", "properties": fields, "required": ["size", "count"]}))
}

// The way of a call from its hold to its result.

#[tokio::test]
async fn a_slow_call_of_a_client_without_tasks_is_followed_up_to_its_result() {
    let mut harness = ToolHarness::of(uncoalesced(), |tool| tool).await;
    let client = harness.server.plain_client();
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.call("writes", json!({})).await }
    });
    let mut run = harness.run().await;
    run.ctx.text("line one\nline two\n").await.expect("it may write");
    run.ctx.status("half way").await.expect("it may talk");
    harness.clock.advance(HOLD);
    let held = with_timeout("the answer", call).await.expect("no panic");
    assert_ne!(held["isError"], true, "{held}");
    let text = text_of(&held["content"]);
    has(&text, &["`writes` is still running, for 45 s", "Do not call `writes` again", "call the tool `task_wait` with {\"task_id\":\""]);
    has(&text, &["This is not its result", "half way", "line one\nline two\n", "`task_cancel`", "Tell your user"]);
    let id = task_in(&text);
    let mut events = waiting(&client, &run, of(&id)).await;
    run.ends("all done");
    assert_eq!(text_of(&result(&mut events).await["content"]), "all done");
    assert_eq!(says(&client, "task_wait", of(&id)).await, "all done", "a result can be had more than once");
}

#[tokio::test]
async fn a_slow_call_of_a_session_is_followed_up_to_its_result() {
    let mut harness = ToolHarness::of(Config::default(), |tool| tool).await;
    for version in ["2025-06-18", "2025-11-25"] {
        let legacy = LegacySession::of(harness.server.port, None, version, json!({})).await;
        let call = tokio::spawn({
            let legacy = legacy.clone();
            async move { legacy.call("writes", json!({})).await }
        });
        let mut run = harness.run().await;
        harness.clock.advance(HOLD);
        let held = with_timeout("the answer", call).await.expect("no panic");
        let id = task_in(&text_of(&held["content"]));
        let still = legacy.call("task_wait", json!({"task_id": id, "timeout_s": 0})).await;
        has(&text_of(&still["content"]), &["still running", &id]);
        run.ends("all done");
        let ended = with_timeout("the result", legacy.call("task_wait", of(&id))).await;
        assert_eq!(text_of(&ended["content"]), "all done");
    }
}

#[tokio::test]
async fn a_question_comes_back_through_the_call_and_its_answer_through_a_tool() {
    let mut harness = ToolHarness::of(Config::default(), |tool| tool).await;
    let client = harness.server.plain_client();
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.call("writes", json!({})).await }
    });
    let mut run = harness.run().await;
    let asking = asks(&run, "order", order_form());
    let text = text_of(&with_timeout("the question", call).await.expect("no panic")["content"]);
    has(
        &text,
        &["What shall it be?", "`size` (one of \"small\", \"large\"; required): How large", "`count` (whole number from 1 to 9; required)"],
    );
    has(&text, &["`gift` (true or false; default false)", "never make an answer up", "ask your user", "Do not call `writes` again"]);
    let id = task_in(&text);
    has(&text, &[&format!("`task_answer` with {{\"task_id\":\"{id}\",\"key\":\"order\",\"value\":\"{{\\\"")]);
    has(&says(&client, "task_wait", of(&id)).await, &["What shall it be?"]);
    let answered = says(&client, "task_answer", json!({"task_id": id, "value": {"size": "large", "count": 2}})).await;
    has(&answered, &["`order`", "is answered", &format!("`task_wait` with {{\"task_id\":\"{id}\"}}")]);
    assert_eq!(answer(asking).await, ("accept".to_owned(), json!({"size": "large", "count": 2, "gift": false})));
    run.ends("ordered");
    assert_eq!(says(&client, "task_wait", of(&id)).await, "ordered");
}

#[tokio::test]
async fn the_tools_are_there_for_who_needs_them() {
    let harness = ToolHarness::new().await;
    let names = |list: Value| -> Vec<String> {
        let tools = list["tools"].as_array().expect("tools").clone();
        tools.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
    };
    let mut all = vec!["writes"];
    all.extend(NAMES);
    assert_eq!(names(harness.server.plain_client().ok("tools/list", json!({})).await), all);
    assert_eq!(names(LegacySession::declaring(&harness.server, json!({})).await.ok("tools/list", json!({})).await), all);
    assert_eq!(names(harness.client.ok("tools/list", json!({})).await), ["writes"], "who has tasks needs none of them");
}

// Listing.

#[tokio::test]
async fn what_runs_and_what_ended_is_listed_the_latest_first() {
    let mut harness = ToolHarness::new().await;
    let client = harness.server.plain_client();
    has(&says(&client, "task_list", json!({})).await, &["no such tasks"]);
    let (first, mut run) = harness.task().await;
    run.ends("done");
    with_timeout("the end", harness.client.until(&first, "completed")).await;
    harness.clock.advance(std::time::Duration::from_secs(1));
    let (second, run) = harness.task().await;
    run.ctx.status("half way").await.expect("it may say so");
    let all = says(&client, "task_list", json!({})).await;
    has(
        &all,
        &[
            &format!("- {second}: `writes`"),
            "running for",
            "it says: `half way`",
            &format!("- {first}: `writes`"),
            "completed",
            "`task_wait`",
        ],
    );
    assert!(all.find(&second) < all.find(&first), "{all}");
    let running = says(&client, "task_list", json!({"state": "running"})).await;
    assert!(running.contains(&second) && !running.contains(&first), "{running}");
    let ended = says(&client, "task_list", json!({"state": "ended"})).await;
    assert!(ended.contains(&first) && !ended.contains(&second), "{ended}");
    let one = says(&client, "task_list", json!({"limit": 1})).await;
    assert!(one.contains(&second) && !one.contains(&first) && one.contains("There are older ones"), "{one}");
    for bad in [json!({"state": "gone"}), json!({"limit": 0}), json!({"limit": 101})] {
        refuses(&client, "task_list", bad).await;
    }
}

#[tokio::test]
async fn a_call_that_its_client_left_is_listed_with_its_arguments() {
    let mut harness = ToolHarness::new().await;
    let client = harness.server.plain_client();
    let message = client.message(7, "tools/call", json!({"name": "writes", "arguments": {"region": "eu"}}));
    let connection = client.send(&client.headers(&message), message.to_string().as_bytes()).await;
    let _run = harness.run().await;
    drop(connection);
    let listed = async {
        loop {
            let text = says(&client, "task_list", json!({})).await;
            if text.contains("running for") {
                return text;
            }
        }
    };
    has(&with_timeout("the list", listed).await, &[r#"`writes` with `{"region":"eu"}`"#]);
}

// Waiting.

#[tokio::test]
async fn a_wait_ends_with_the_tasks_own_result() {
    let mut harness = ToolHarness::new().await;
    let client = harness.server.plain_client();
    let (id, mut run) = harness.task().await;
    let mut events = waiting(&client, &run, of(&id)).await;
    run.ends(Json(json!({"n": 42})));
    let ended = result(&mut events).await;
    assert_eq!((&ended["structuredContent"], text_of(&ended["content"]).as_str()), (&json!({"n": 42}), "{\"n\":42}"));
    let (id, mut run) = harness.task().await;
    run.ends(CallResult::error("no such file"));
    with_timeout("the end", harness.client.until(&id, "completed")).await;
    assert_eq!(refuses(&client, "task_wait", of(&id)).await, "no such file", "an error of the tool is its result, too");
}

#[tokio::test]
async fn a_task_without_a_result_is_an_error_that_says_why() {
    let mut harness = ToolHarness::new().await;
    let client = harness.server.plain_client();
    let (id, mut run) = harness.task().await;
    run.writes("one").await;
    run.ends_with(Err(ToolError::protocol(-32603, "the disk is gone")));
    with_timeout("the end", harness.client.until(&id, "failed")).await;
    has(&refuses(&client, "task_wait", of(&id)).await, &["failed: the disk is gone", "`task_output`", &id]);
    let (id, _run) = harness.task().await;
    harness.client.cancel(&id).await;
    has(&refuses(&client, "task_wait", of(&id)).await, &["was cancelled", "gives no result", &id]);
}

#[tokio::test]
async fn a_wait_lasts_as_long_as_it_was_told_and_no_longer_than_it_may() {
    let mut harness = ToolHarness::with(Config { hold: SECOND * 3, ..Config::default() }).await;
    let client = harness.server.plain_client();
    for (timeout, lasts) in [(json!(2), SECOND * 2), (json!(0.5), MS * 500), (json!(100_000), SECOND * 3), (json!(null), SECOND * 3)] {
        let (id, run) = harness.task().await;
        let mut arguments = of(&id);
        if !timeout.is_null() {
            arguments["timeout_s"] = timeout;
        }
        let mut events = waiting(&client, &run, arguments).await;
        harness.clock.advance(lasts - MS);
        run.ctx.progress(Progress::at(2.0)).await.expect("it goes on");
        assert_eq!(progress(&mut events).await["progress"], 2.0, "it is still waiting");
        harness.clock.advance(MS);
        let text = text_of(&result(&mut events).await["content"]);
        has(&text, &["still running", "call the tool `task_wait`", &id, "one (2 done)"]);
        assert!(!text.contains("shutting down"), "{text}");
    }
    let (id, _run) = harness.task().await;
    has(&says(&client, "task_wait", json!({"task_id": id, "timeout_s": 0})).await, &["still running, for 0 s"]);
    has(&refuses(&client, "task_wait", json!({"task_id": id, "timeout_s": -1})).await, &["timeout_s"]);
    has(&refuses(&client, "task_wait", json!({})).await, &["task_id"]);
}

#[tokio::test]
async fn who_waits_hears_of_progress_and_that_the_wait_goes_on() {
    let mut harness = ToolHarness::new().await;
    let client = harness.server.plain_client();
    let (id, mut run) = harness.task().await;
    let mut events = waiting(&client, &run, of(&id)).await;
    harness.clock.advance(SECOND * 5);
    let beat = progress(&mut events).await;
    let done = beat["progress"].as_f64().expect("a number");
    assert!(done > 1.0 && done < 1.1, "it grows a little: {beat}");
    run.ctx.progress(Progress::of(2.0, 10.0).message("two")).await.expect("it goes on");
    let mut last = done;
    loop {
        let update = progress(&mut events).await;
        let done = update["progress"].as_f64().expect("a number");
        assert!(done > last, "it must grow: {update}");
        last = done;
        if done >= 2.0 {
            assert_eq!((&update["progress"], &update["message"]), (&json!(2.0), &json!("two")), "its own numbers are not in the way");
            break;
        }
    }
    run.ends("done");
    assert_eq!(text_of(&result(&mut events).await["content"]), "done");
}

#[tokio::test]
async fn a_question_ends_a_wait_unless_only_the_client_can_answer_it() {
    let mut harness = ToolHarness::new().await;
    let client = harness.server.plain_client();
    let (id, run) = harness.task().await;
    let mut events = waiting(&client, &run, of(&id)).await;
    let _asking = asks(&run, "who", name_form("Who are you?"));
    has(&text_of(&result(&mut events).await["content"]), &["Question `who`: Who are you?", "\"key\":\"who\",\"value\":\"<text>\"}"]);
    let able = harness.server.client().declaring(json!({"sampling": {}, "extensions": {TASKS: {}}}));
    let (id, run) = harness.task_of(&able).await;
    let mut events = waiting(&client, &run, of(&id)).await;
    let _asking = asks(&run, "model", Question::sampling(json!({"messages": [], "maxTokens": 1})));
    with_timeout("the question", able.until(&id, "input_required")).await;
    run.ctx.progress(Progress::at(2.0)).await.expect("it goes on");
    assert_eq!(progress(&mut events).await["progress"], 2.0, "it is still waiting");
    harness.clock.advance(HOLD);
    has(&text_of(&result(&mut events).await["content"]), &["only by the client", "`sampling/createMessage`", "`task_wait`"]);
    has(&refuses(&client, "task_answer", json!({"task_id": id, "value": "hello"})).await, &["only by the client"]);
}

#[tokio::test]
async fn nobody_is_kept_waiting_by_a_server_that_shuts_down() {
    let mut harness = ToolHarness::new().await;
    let client = harness.server.plain_client();
    let (id, mut run) = harness.task().await;
    let mut events = waiting(&client, &run, of(&id)).await;
    harness.server.stop();
    has(&text_of(&result(&mut events).await["content"]), &["still running", GOING_AWAY, &id]);
    run.ends("done");
}

#[tokio::test]
async fn who_is_held_by_a_server_that_shuts_down_is_told_to_come_back() {
    let mut harness = ToolHarness::of(Config::default(), |tool| tool).await;
    let client = harness.server.plain_client();
    let call = tokio::spawn(async move { client.call("writes", json!({})).await });
    let mut run = harness.run().await;
    harness.server.stop();
    let text = text_of(&with_timeout("the answer", call).await.expect("no panic")["content"]);
    has(&text, &["`writes` is still running", "`task_wait` with {\"task_id\":\"", GOING_AWAY]);
    run.ends("done");
}

// Output.

#[tokio::test]
async fn output_is_read_on_from_where_the_last_answer_ended() {
    let mut harness = ToolHarness::with(uncoalesced()).await;
    let client = harness.server.plain_client();
    let (id, mut run) = harness.task().await;
    has(&says(&client, "task_output", of(&id)).await, &["has written nothing so far", "still running", "`task_wait`"]);
    run.writes("a\n").await;
    run.writes("b\n").await;
    let first = done(&client, "task_output", of(&id)).await;
    assert_eq!(first["content"][0]["text"], "a\nb\n", "text that belongs together is together");
    let text = text_of(&first["content"]);
    has(&text, &["That is all so far", "still running"]);
    assert_eq!(copied(&text, "\"after\":"), "2");
    let nothing = says(&client, "task_output", json!({"task_id": id, "after": 2})).await;
    has(&nothing, &["nothing after 2 so far", "\"after\":2"]);
    run.ctx.block(Content::image(b"png", "image/png")).await.expect("it may write");
    run.writes("c\n").await;
    let second = says(&client, "task_output", json!({"task_id": id, "after": 2})).await;
    assert!(second.starts_with("<image>+c\n+---\n"), "{second}");
    assert_eq!(copied(&second, "\"after\":"), "4");
    has(&says(&client, "task_output", json!({"task_id": id, "after": 99})).await, &["nothing after 99", "\"after\":4"]);
    run.ends("the result");
    with_timeout("the end", harness.client.until(&id, "completed")).await;
    let over = says(&client, "task_output", json!({"task_id": id, "after": 2})).await;
    has(&over, &["<image>+c\n", "That is all of the output", "ended (completed)", "`task_wait`", "gives its result"]);
    assert!(!over.contains("the result"), "the result is not output: {over}");
    assert_eq!(says(&client, "task_output", json!({"task_id": id, "after": 2.0})).await, over, "some clients write whole numbers so");
    for after in [json!(-1), json!(1.5), json!(u64::MAX), json!(1.8e19)] {
        let refused = refuses(&client, "task_output", json!({"task_id": id, "after": after})).await;
        has(&refused, &["`after`: "]);
        assert!(!refused.contains("u64") && !refused.contains("column"), "{refused}");
    }
    has(&says(&client, "task_output", json!({"task_id": id, "after": (1_u64 << 53) - 1})).await, &["nothing after 9007199254740991"]);
}

#[tokio::test]
async fn the_output_of_a_task_that_has_no_result_promises_none() {
    let mut harness = ToolHarness::with(uncoalesced()).await;
    let client = harness.server.plain_client();
    let (id, run) = harness.task().await;
    run.writes("a\n").await;
    harness.client.cancel(&id).await;
    let text = says(&client, "task_output", of(&id)).await;
    has(&text, &["a\n", "ended (cancelled)", "says what came of it"]);
    assert!(!text.contains("its result"), "{text}");
}

#[tokio::test]
async fn much_output_comes_in_pages_that_have_everything_once() {
    let mut harness = ToolHarness::with(uncoalesced()).await;
    let client = harness.server.plain_client();
    let (id, run) = harness.task().await;
    let all: String = (0..5).map(large).collect();
    for n in 0..5 {
        run.writes(&large(n)).await;
    }
    let (mut read, mut after, mut pages) = (String::new(), "0".to_owned(), 0);
    loop {
        let page = done(&client, "task_output", json!({"task_id": id, "after": after.parse::<u64>().expect("a number")})).await;
        let (standing, output) = page["content"].as_array().expect("blocks").split_last().expect("one at least");
        read.push_str(&text_of(&json!(output)));
        assert!(read.len() < 40_000 * (pages + 1), "a page is not too large");
        let standing = standing["text"].as_str().expect("text");
        after = copied(standing, "\"after\":").to_owned();
        pages += 1;
        if !standing.contains("There is more") {
            has(standing, &["That is all so far"]);
            break;
        }
    }
    assert!(pages >= 2 && read == all, "{pages} pages, {} of {} bytes", read.len(), all.len());
    let still = says(&client, "task_wait", json!({"task_id": id, "timeout_s": 0})).await;
    assert!(still.len() < 4_000 && still.ends_with("xxxx"), "only the end of it goes along: {} bytes", still.len());
}

#[tokio::test]
async fn progress_that_is_drawn_over_is_told_as_a_terminal_shows_it() {
    let mut harness = ToolHarness::with(uncoalesced()).await;
    let client = harness.server.plain_client();
    let (id, run) = harness.task().await;
    let mut parts = vec!["copying\n".to_owned()];
    for n in 0..50 {
        // Cut in the middle of what sets a colour.
        parts.extend(["\r\u{1b}[3".to_owned(), format!("2m{n} of 50\u{1b}[0m")]);
    }
    parts.push("\r\n\u{1b}]0;title\u{7}copied\n".to_owned());
    for part in &parts {
        run.writes(part).await;
    }
    let seen = "copying\n49 of 50\ncopied\n";
    assert_eq!(done(&client, "task_output", of(&id)).await["content"][0]["text"], seen);
    for after in 1..parts.len() {
        let page = done(&client, "task_output", json!({"task_id": id, "after": after})).await;
        let text = page["content"][0]["text"].as_str().expect("text");
        let is_plain = !text.contains(['\u{1b}', '\r']) && !text.contains("2m") && text.ends_with("copied\n");
        assert!(is_plain && text.lines().count() <= 2, "after {after}: {text:?}");
    }
    let still = says(&client, "task_wait", json!({"task_id": id, "timeout_s": 0})).await;
    assert!(still.ends_with(&format!("so far:\n{seen}")), "{still:?}");
    let all = with_timeout("the resource", client.ok("resources/read", json!({"uri": format!("taskwire://task/{id}/output")}))).await;
    assert_eq!(all["contents"][0]["text"], parts.concat(), "the resource has what was written");
}

// The end of a task by its caller, and tasks that are not there.

#[tokio::test]
async fn a_task_is_cancelled_once_and_says_so() {
    let mut harness = ToolHarness::new().await;
    let client = harness.server.plain_client();
    let (id, run) = harness.task().await;
    has(&says(&client, "task_cancel", of(&id)).await, &["is cancelled", "no result", &id]);
    with_timeout("the stop", run.ctx.cancelled()).await;
    assert_eq!(harness.client.get(&id).await["status"], "cancelled");
    has(&says(&client, "task_cancel", of(&id)).await, &["had already ended (cancelled)"]);
    let (id, mut run) = harness.task().await;
    run.ends("done");
    with_timeout("the end", harness.client.until(&id, "completed")).await;
    has(&says(&client, "task_cancel", of(&id)).await, &["had already ended (completed)", "`task_wait`"]);
    assert_eq!(says(&client, "task_wait", of(&id)).await, "done", "its result stays");
}

#[tokio::test]
async fn somebody_elses_task_is_no_other_than_one_that_never_was() {
    let mut harness = ToolHarness::with(two_callers()).await;
    let (ann, bob) = (harness.server.client().with_token("ann-token"), harness.server.client().with_token("bob-token"));
    let (of_ann, _run) = harness.task_of(&ann).await;
    let (of_bob, _bobs) = harness.task_of(&bob).await;
    let never: String = of_ann.chars().rev().collect();
    let client = harness.server.plain_client().with_token("bob-token");
    // The list names no task.
    for tool in &NAMES[..4] {
        let refusal_of = |id: String| {
            let client = client.clone();
            async move { refuses(&client, tool, of(&id)).await.replace(&id, "IT") }
        };
        let (foreign, unknown) = (refusal_of(of_ann.clone()).await, refusal_of(never.clone()).await);
        assert_eq!(foreign, unknown, "{tool}");
        has(&foreign, &["There is no task `IT` of yours", &format!("{of_bob}: `writes`, running for 0 s")]);
        assert_eq!(foreign.matches("IT").count(), 1, "it is in no list: {foreign}");
        has(&refusal_of("the last one\u{7}`".to_owned()).await, &["There is no task", &of_bob]);
    }
    let uris = [of_ann.as_str(), never.as_str()].map(|id| format!("taskwire://task/{id}/output"));
    let mut errors = Vec::new();
    for uri in &uris {
        let error = bob.error("resources/read", json!({"uri": uri})).await;
        errors.push(error.to_string().replace(uri.as_str(), "IT"));
    }
    assert_eq!(errors[0], errors[1]);
    bob.cancel(&of_bob).await;
    has(&refuses(&client, "task_wait", of(&of_ann)).await, &["You have no running task"]);
    assert_eq!(ann.get(&of_ann).await["status"], "working", "nothing happened to it");
}

#[tokio::test]
async fn no_more_than_ten_running_tasks_are_listed_the_latest_first() {
    let mut harness = ToolHarness::new().await;
    let (mut ids, mut runs) = (Vec::new(), Vec::new());
    for _ in 0..12 {
        let (id, run) = harness.task().await;
        ids.push(id);
        runs.push(run);
        harness.clock.advance(SECOND);
    }
    let text = refuses(&harness.server.plain_client(), "task_wait", of("?")).await;
    let listed: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("- ")?.split(':').next()).collect();
    let latest: Vec<&str> = ids.iter().rev().take(10).map(String::as_str).collect();
    assert_eq!(listed, latest);
    has(&text, &["running for 1 s", "running for 10 s"]);
}

#[tokio::test]
async fn a_task_that_is_no_longer_kept_is_unknown() {
    let mut harness = ToolHarness::of(Config::default(), |tool| tool.task(TaskMode::Always).retention(HOUR)).await;
    let (id, mut run) = harness.task().await;
    run.ends("done");
    with_timeout("the end", harness.client.until(&id, "completed")).await;
    let client = harness.server.plain_client();
    harness.clock.advance(HOUR * 2);
    loop {
        let result = with_timeout("the answer", client.call("task_wait", of(&id))).await;
        if result["isError"] == true {
            has(&text_of(&result["content"]), &["There is no task", "You have no running task"]);
            break;
        }
        assert_eq!(text_of(&result["content"]), "done");
        tokio::task::yield_now().await;
    }
}
