//! Clients without tasks, in both eras and on both transports: the server holds their calls for a while and sends progress. A call
//! that takes longer is continued by the follow-up tools.

use std::time::Duration;

use serde_json::{Value, json};
use taskwire::{
    core::{Limits, TaskId, task::Status},
    server::Config,
    tool::{Ctx, InputRequired, Json, Policy, Question, TaskMode, ToolError},
};

use self::kit::{Caller, HoldFixture, PendingCall, asks, config, followed, text, two_callers};
use crate::{
    kit::{MS, SECOND, WAYS, Way, with_timeout},
    legacy::kit::{LATEST, LegacySession},
    shutdown::{settle, settle_long},
    tasks::{Gate, accept, name_form, name_in, quick, registry, tool, with_limits},
    tool_harness::{played, run_of},
};

mod dedupe;
mod kit;
mod linger;
mod linger_on_nodes;
mod progress;

const HOLD: Duration = Duration::from_secs(45);
const BEAT: Duration = Duration::from_secs(5);
const DRAIN: Duration = Duration::from_secs(10);
const NAMES: [&str; 5] = ["task_wait", "task_output", "task_answer", "task_cancel", "task_list"];
// How long a call is held.

#[tokio::test]
async fn a_result_within_the_hold_is_the_answer() {
    for way in WAYS {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow")]).await;
        let mut call = Caller::new(way, &fixture).await.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(HOLD - MS).await;
        call.is_quiet().await;
        gate.go.send();
        assert_eq!(text(&call.result().await), "done", "{way:?}");
        fixture.until_open(0).await;
    }
}

#[tokio::test]
async fn a_call_that_outlives_the_hold_goes_on_and_is_waited_for_with_a_follow_up_tool() {
    for way in WAYS {
        for mode in [TaskMode::Auto, TaskMode::Always] {
            let gate = Gate::new();
            let fixture = HoldFixture::new([gate.tool("slow").task(mode)]).await;
            let caller = Caller::new(way, &fixture).await;
            let mut call = caller.call("slow", json!({})).await;
            with_timeout("the tool", gate.started.wait()).await;
            fixture.pass(HOLD).await;
            let result = call.result().await;
            let id = followed(&result);
            assert!(text(&result).contains("slow") && text(&result).contains("task_wait"), "{result}");
            let open = fixture.open();
            assert_eq!(open.iter().map(ToString::to_string).collect::<Vec<_>>(), [id.as_str()], "{way:?}");
            let spec = fixture.task(open[0]).spec.clone();
            assert!(spec.hidden && spec.findable, "{way:?}");
            // What was answered is not stopped by what becomes of the connection.
            call.lose();
            drop(call);
            let mut waits = caller.call("task_wait", json!({"task_id": id})).await;
            waits.is_quiet().await;
            assert!(!gate.stopped.is_sent(), "{way:?}");
            gate.go.send();
            assert_eq!(text(&waits.result().await), "done", "{way:?}");
            assert_eq!(gate.runs(), 1, "{way:?}");
        }
    }
}

#[tokio::test]
async fn a_call_that_saved_something_is_held_no_longer_than_any_other() {
    for way in WAYS {
        let gate = Gate::new();
        let saves = gate.saves();
        let fixture = HoldFixture::new([saves]).await;
        let mut call = Caller::new(way, &fixture).await.call("saves", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(HOLD - MS).await;
        call.is_quiet().await;
        fixture.pass(MS).await;
        followed(&call.result().await);
        gate.go.send();
        fixture.until_open(0).await;
    }
}

#[tokio::test]
async fn a_tool_that_is_never_a_task_is_held_to_its_end() {
    for way in WAYS {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow").task(TaskMode::Never)]).await;
        let mut call = Caller::new(way, &fixture).await.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(HOLD * 3).await;
        call.is_quiet().await;
        gate.go.send();
        assert_eq!(text(&call.result().await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn a_tool_that_must_be_a_task_is_refused() {
    for way in WAYS {
        let fixture = HoldFixture::new([quick("quick").task(TaskMode::Required)]).await;
        let error = Caller::new(way, &fixture).await.call("quick", json!({})).await.error().await;
        assert!(error["code"].is_i64(), "{way:?}: {error}");
    }
}

#[tokio::test]
async fn where_no_task_can_be_made_a_call_is_answered_after_the_hold_and_its_work_stops() {
    for way in WAYS {
        let (gate, other) = (Gate::new(), Gate::new());
        let limits = Limits { tasks_per_caller: 1, ..Limits::DEFAULT };
        let config = Config { followups: true, hold: HOLD, ..with_limits(limits) };
        let slow = if way.is_modern() { gate.tool("slow") } else { gate.tool("slow").dedupe() };
        let fixture = HoldFixture::with(registry([slow, other.tool("other").task(TaskMode::Always)]), config).await;
        fixture.tasker().start("other", json!({})).await;
        let caller = Caller::new(way, &fixture).await;
        // A result within that time is the answer, room or not.
        let mut call = caller.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(SECOND).await;
        call.is_quiet().await;
        gate.go.send();
        assert_eq!(text(&call.result().await), "done", "{way:?}");
        let mut call = caller.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(SECOND).await;
        call.is_quiet().await;
        fixture.pass(HOLD).await;
        let result = call.result().await;
        assert_eq!(result["isError"], true, "{way:?}: {result}");
        for word in ["`slow` was stopped after 45 s", "the limit is 1", "`limits.tasks_per_caller`", "`task_list`", "`task_cancel`"] {
            assert!(text(&result).contains(word), "{way:?}: no {word}: {result}");
        }
        with_timeout("the word to stop", gate.stopped.wait()).await;
        assert_eq!(fixture.open().len(), 1, "{way:?}");
        // With room, it is as ever.
        other.go.send();
        fixture.until_open(0).await;
        let mut call = caller.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(HOLD).await;
        followed(&call.result().await);
        gate.go.send();
        assert_eq!(gate.runs(), 3, "{way:?}");
    }
}

#[tokio::test]
async fn a_client_that_takes_no_stream_is_held_alike() {
    let gate = Gate::new();
    let fixture = HoldFixture::new([gate.tool("slow"), asks("asks")]).await;
    let legacy = LegacySession::of(fixture.server.port, None, LATEST, json!({"elicitation": {}})).await.accepting("application/json");
    let calling = tokio::spawn({
        let legacy = legacy.clone();
        async move { legacy.call("slow", json!({})).await }
    });
    with_timeout("the tool", gate.started.wait()).await;
    fixture.pass(HOLD).await;
    let id = followed(&with_timeout("the answer", calling).await.expect("no panic"));
    gate.go.send();
    assert_eq!(text(&legacy.call("task_wait", json!({"task_id": id})).await), "done");
    // Nobody can be asked where nothing but the response is sent.
    assert!(text(&legacy.call("asks", json!({})).await).contains("Who are you?"));
}

#[tokio::test]
async fn a_call_under_a_key_is_held_alike_and_found_again_by_its_key() {
    for way in WAYS {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow")]).await;
        let caller = Caller::new(way, &fixture).await;
        let params = json!({"name": "slow", "arguments": {}, "_meta": {"dev.taskwire/idempotencyKey": "k"}});
        let mut call = caller.request("tools/call", params.clone()).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(HOLD).await;
        followed(&call.result().await);
        let mut again = caller.request("tools/call", params).await;
        again.is_quiet().await;
        gate.go.send();
        assert_eq!(text(&again.result().await), "done", "{way:?}");
        assert_eq!(gate.runs(), 1, "{way:?}");
    }
}

#[tokio::test]
async fn turned_off_a_call_is_held_to_its_end_and_there_are_no_tools_to_follow_up() {
    for way in WAYS {
        let gate = Gate::new();
        let config = Config { followups: false, ..config() };
        let shaped = quick("shaped").output_schema(json!({"type": "object"}));
        let fixture = HoldFixture::with(registry([gate.tool("slow").dedupe(), asks("asks"), shaped]), config).await;
        let caller = Caller::new(way, &fixture).await;
        assert_eq!(names(&caller).await, ["slow", "asks", "shaped"], "{way:?}");
        let listed = caller.request("tools/list", json!({})).await.result().await;
        assert!(listed["tools"][2].get("outputSchema").is_some(), "{listed}");
        let unknown = caller.call("task_wait", json!({"task_id": "x"})).await.error().await;
        assert!(unknown["message"].as_str().is_some_and(|text| text.contains("no tool")), "{way:?}: {unknown}");
        let refused = caller.call("asks", json!({})).await.error().await;
        assert!(refused["message"].as_str().is_some_and(|text| text.contains("elicitation")), "{way:?}: {refused}");
        let mut call = caller.call_with_progress("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(SECOND).await;
        fixture.pass(HOLD * 2).await;
        call.is_quiet().await;
        let other = Caller::new(way, &fixture).await.call("slow", json!({})).await;
        with_timeout("another run", gate.started.wait()).await;
        gate.go.send();
        gate.go.send();
        call.response().await;
        drop(other);
        assert_eq!(gate.runs(), 2, "{way:?}: every call runs");
    }
}

// Questions.

#[tokio::test]
async fn a_client_that_cannot_be_asked_answers_with_a_follow_up_tool() {
    for way in WAYS {
        let fixture = HoldFixture::new([asks("asks")]).await;
        let caller = Caller::new(way, &fixture).await;
        let asked = caller.result("asks", json!({})).await;
        let id = followed(&asked);
        assert!(text(&asked).contains("Who are you?") && text(&asked).contains("task_answer"), "{way:?}: {asked}");
        assert_ne!(asked["resultType"], "input_required", "{way:?}");
        let answered = caller.result("task_answer", json!({"task_id": id, "value": "Ada"})).await;
        assert_ne!(answered["isError"], true, "{way:?}: {answered}");
        assert_eq!(text(&caller.result("task_wait", json!({"task_id": id})).await), "hello Ada", "{way:?}");
    }
}

#[tokio::test]
async fn a_question_that_a_tool_asks_in_a_round_is_answered_alike() {
    for way in WAYS {
        let rounds = tool("rounds", &(), |(), ctx: Ctx| async move {
            match ctx.resumed().answers.get("name") {
                None => Err(ToolError::input_required(InputRequired::ask("name", name_form("Who are you?")))),
                Some(answer) => Ok(format!("hello {}", name_in(&answer.read()?))),
            }
        });
        let fixture = HoldFixture::new([rounds]).await;
        let caller = Caller::new(way, &fixture).await;
        let asked = caller.result("rounds", json!({})).await;
        let id = followed(&asked);
        assert!(text(&asked).contains("Who are you?"), "{way:?}: {asked}");
        caller.result("task_answer", json!({"task_id": id, "value": {"name": "Ada"}})).await;
        assert_eq!(text(&caller.result("task_wait", json!({"task_id": id})).await), "hello Ada", "{way:?}");
    }
}

#[tokio::test]
async fn a_client_that_can_be_asked_is_asked_as_ever() {
    for way in WAYS {
        let fixture = HoldFixture::new([asks("asks")]).await;
        let caller = Caller::declaring(way, &fixture, json!({"elicitation": {}}), None).await;
        let params = json!({"name": "asks", "arguments": {}});
        let mut call = caller.request("tools/call", params.clone()).await;
        if way.is_modern() {
            let asked = call.result().await;
            assert_eq!(asked["resultType"], "input_required", "{way:?}: {asked}");
            let mut params = params;
            params["requestState"] = asked["requestState"].clone();
            params["inputResponses"] = json!({"name": accept("Ada")});
            let mut again = caller.request("tools/call", params).await;
            assert_eq!(text(&again.result().await), "hello Ada", "{way:?}");
            continue;
        }
        let question = call.next().await.expect("a question");
        assert_eq!(question["method"], "elicitation/create", "{way:?}: {question}");
        // Nobody who thinks about an answer is cut short.
        fixture.pass(HOLD * 2).await;
        call.is_quiet().await;
        match &caller.legacy {
            Some(legacy) => legacy.answer(&question, accept("Ada")).await,
            None => call.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": accept("Ada")})).await,
        }
        // The hold expired long ago. After an answer the call is held anew, and not answered with a follow-up.
        assert_eq!(text(&call.result().await), "hello Ada", "{way:?}");
    }
}

#[tokio::test]
async fn a_call_is_held_anew_when_its_question_is_answered() {
    for way in [Way::LegacyHttp, Way::LegacyLines] {
        let gate = Gate::new();
        let asks = tool("asks", &gate, |gate, ctx: Ctx| async move {
            ctx.ask("name", name_form("Who are you?")).await?;
            gate.started.send();
            gate.go.wait().await;
            Ok("done")
        });
        let fixture = HoldFixture::new([asks]).await;
        let caller = Caller::declaring(way, &fixture, json!({"elicitation": {}}), None).await;
        let mut call = caller.call("asks", json!({})).await;
        let question = call.next().await.expect("a question");
        fixture.pass(HOLD * 2).await;
        match &caller.legacy {
            Some(legacy) => legacy.answer(&question, accept("Ada")).await,
            None => call.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": accept("Ada")})).await,
        }
        with_timeout("the tool", gate.started.wait()).await;
        settle_long().await;
        fixture.pass(HOLD - MS).await;
        call.is_quiet().await;
        fixture.pass(MS).await;
        let id = followed(&call.result().await);
        gate.go.send();
        assert_eq!(text(&caller.result("task_wait", json!({"task_id": id})).await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn nobody_is_waited_for_longer_than_an_hour_who_is_asked_while_the_call_waits() {
    const HOUR_MS: u64 = 3_600_000;
    for way in WAYS {
        for (capabilities, most) in [(json!({}), 24 * HOUR_MS), (json!({"sampling": {}}), HOUR_MS), (json!({"roots": {}}), HOUR_MS)] {
            let gate = Gate::new();
            let fixture = HoldFixture::new([gate.tool("slow")]).await;
            let caller = Caller::declaring(way, &fixture, capabilities.clone(), None).await;
            let mut call = caller.call("slow", json!({})).await;
            with_timeout("the tool", gate.started.wait()).await;
            fixture.pass(HOLD).await;
            let id: TaskId = followed(&call.result().await).parse().expect("an id");
            assert_eq!(fixture.task(id).spec.answer_timeout_ms, Some(most), "{way:?}: {capabilities}");
            gate.go.send();
        }
    }
}

#[tokio::test]
async fn what_only_a_program_can_answer_is_still_refused() {
    for way in WAYS {
        let samples = tool("samples", &(), |(), ctx| async move {
            ctx.ask("model", Question::sampling(json!({"messages": [], "maxTokens": 1}))).await?;
            Ok("done")
        });
        let fixture = HoldFixture::new([samples]).await;
        let error = Caller::new(way, &fixture).await.call("samples", json!({})).await.error().await;
        assert!(error["message"].as_str().is_some_and(|text| text.contains("sampling")), "{way:?}: {error}");
    }
}

// What stops a call.

#[tokio::test]
async fn a_held_call_is_stopped_at_once_when_its_connection_is_lost_where_nothing_lingers() {
    for way in WAYS {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow").linger(Duration::ZERO)]).await;
        let mut call = Caller::new(way, &fixture).await.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        call.lose();
        drop(call);
        match way {
            Way::ModernHttp | Way::LegacyHttp => {}
            // Calls that are under way get the time of a shutdown.
            Way::ModernLines | Way::LegacyLines => fixture.pass(DRAIN).await,
        }
        with_timeout("the word to stop", gate.stopped.wait()).await;
    }
}

#[tokio::test]
async fn a_held_call_that_became_a_task_by_itself_is_stopped_when_its_connection_is_lost_where_nothing_lingers() {
    let gate = Gate::new();
    let saves = tool("saves", &gate, |gate, ctx| async move {
        ctx.checkpoint(&1).await?;
        gate.started.send();
        ctx.cancelled().await;
        gate.stopped.send();
        Err::<&str, _>(ToolError::stopped())
    });
    let fixture = HoldFixture::new([saves.linger(Duration::ZERO)]).await;
    let mut call = Caller::new(Way::ModernHttp, &fixture).await.call("saves", json!({})).await;
    with_timeout("the tool", gate.started.wait()).await;
    let id = fixture.until_open(1).await[0];
    call.lose();
    with_timeout("the word to stop", gate.stopped.wait()).await;
    fixture.until(id, Status::Cancelled).await;
}

#[tokio::test]
async fn a_held_call_is_stopped_at_once_when_it_is_cancelled() {
    // In the modern era over HTTP there is no word to cancel a request but its end.
    for way in [Way::LegacyHttp, Way::ModernLines, Way::LegacyLines] {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow")]).await;
        let caller = Caller::new(way, &fixture).await;
        let mut call = caller.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(2 * SECOND).await;
        caller.cancel(&mut call, "not needed any more").await;
        with_timeout("the word to stop", gate.stopped.wait()).await;
    }
}

#[tokio::test]
async fn what_was_answered_is_cancelled_with_a_follow_up_tool() {
    for way in WAYS {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow")]).await;
        let caller = Caller::new(way, &fixture).await;
        let mut call = caller.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(HOLD).await;
        let id = followed(&call.result().await);
        caller.result("task_cancel", json!({"task_id": id})).await;
        with_timeout("the word to stop", gate.stopped.wait()).await;
        let ended = caller.result("task_wait", json!({"task_id": id})).await;
        assert_eq!(ended["isError"], true, "{way:?}: {ended}");
    }
}

// Ends without a result.

/// The text for a model when a held call has no result.
fn failure_text(result: &Value) -> &str {
    assert_eq!(result["isError"], true, "{result}");
    text(result)
}

#[tokio::test]
async fn a_held_call_that_has_no_time_left_is_answered_with_what_a_model_can_act_on() {
    for way in WAYS {
        for (mode, writes) in [(TaskMode::Auto, false), (TaskMode::Auto, true), (TaskMode::Never, false), (TaskMode::Never, true)] {
            let (tool, mut runs) = played("plays");
            let fixture = HoldFixture::new([tool.task(mode).timeout(20 * SECOND)]).await;
            let caller = Caller::new(way, &fixture).await;
            let mut call = caller.call("plays", json!({})).await;
            let run = run_of(&mut runs).await;
            if writes {
                run.ctx.text("one\ntwo\n").await.expect("it may");
            }
            fixture.pass(20 * SECOND).await;
            let result = call.result().await;
            let message = failure_text(&result);
            assert!(message.starts_with("`plays`") && message.contains("did not finish within its timeout of 20s"), "{way:?}: {message}");
            let last = if writes { json!("The last lines that it wrote:\none\ntwo\n") } else { Value::Null };
            assert_eq!(result["content"][1]["text"], last, "{way:?} {mode:?}");
            let can_be_read = writes && mode == TaskMode::Auto;
            assert_eq!(message.contains("`task_output`"), can_be_read, "{way:?} {mode:?}: {message}");
            if can_be_read {
                let id = message.split(|c: char| !c.is_ascii_alphanumeric()).find(|word| word.parse::<TaskId>().is_ok());
                let whole = caller.result("task_output", json!({"task_id": id.expect("a task")})).await;
                assert!(whole.to_string().contains("one\\ntwo"), "{way:?}: {whole}");
            }
        }
    }
}

#[tokio::test]
async fn a_held_call_that_breaks_is_answered_with_the_last_that_it_wrote() {
    for way in WAYS {
        for mode in [TaskMode::Auto, TaskMode::Never] {
            let breaks = tool("breaks", &(), |(), ctx| async move {
                ctx.text("one\ntwo\n").await?;
                Err::<String, _>(ToolError::protocol(-32603, "it is lost"))
            });
            let fixture = HoldFixture::new([breaks.task(mode)]).await;
            let result = Caller::new(way, &fixture).await.result("breaks", json!({})).await;
            assert!(failure_text(&result).contains("failed: it is lost"), "{way:?} {mode:?}: {result}");
            assert_eq!(result["content"][1]["text"], "The last lines that it wrote:\none\ntwo\n", "{way:?} {mode:?}");
        }
    }
}

#[tokio::test]
async fn a_held_call_that_somebody_else_cancels_says_so() {
    for way in WAYS {
        let (tool, mut runs) = played("plays");
        let fixture = HoldFixture::new([tool]).await;
        let caller = Caller::new(way, &fixture).await;
        let mut call = caller.call("plays", json!({})).await;
        let run = run_of(&mut runs).await;
        run.ctx.checkpoint(&1).await.expect("it may");
        let id = fixture.until_open(1).await[0];
        Caller::new(way, &fixture).await.result("task_cancel", json!({"task_id": id})).await;
        let result = call.result().await;
        let message = failure_text(&result);
        assert!(
            message.contains(&format!("`plays` (task {id}) was cancelled")) && message.contains("gives no result"),
            "{way:?}: {message}"
        );
    }
}

#[tokio::test]
async fn an_error_that_a_tool_has_for_the_client_is_one() {
    for way in WAYS {
        for mode in [TaskMode::Auto, TaskMode::Always] {
            let refuses = tool("refuses", &(), |(), _| async move { Err::<String, _>(ToolError::protocol(-32602, "no such thing")) });
            let fixture = HoldFixture::new([refuses.task(mode)]).await;
            let error = Caller::new(way, &fixture).await.call("refuses", json!({})).await.error().await;
            assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!("no such thing")), "{way:?} {mode:?}");
        }
    }
}

#[tokio::test]
async fn turned_off_a_call_without_a_result_is_an_error_as_ever() {
    for way in WAYS {
        for mode in [TaskMode::Auto, TaskMode::Always] {
            let gate = Gate::new();
            let tools = registry([gate.tool("slow").task(mode).timeout(20 * SECOND)]);
            let fixture = HoldFixture::with(tools, Config { followups: false, ..config() }).await;
            let mut call = Caller::new(way, &fixture).await.call("slow", json!({})).await;
            with_timeout("the tool", gate.started.wait()).await;
            fixture.pass(20 * SECOND).await;
            assert_eq!(call.error().await["code"], -32603, "{way:?} {mode:?}");
        }
    }
}

// Lists.

/// The names of all tools, in the order of the list.
async fn names(caller: &Caller) -> Vec<String> {
    let listed = caller.request("tools/list", json!({})).await.result().await;
    listed["tools"].as_array().expect("tools").iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test]
async fn the_follow_up_tools_come_last_in_the_list_of_who_has_no_tasks() {
    let fixture = HoldFixture::new([quick("b"), quick("a")]).await;
    for way in WAYS {
        let expected: Vec<&str> = ["b", "a"].into_iter().chain(NAMES).collect();
        assert_eq!(names(&Caller::new(way, &fixture).await).await, expected, "{way:?}");
    }
    let listed = fixture.tasker().ok("tools/list", json!({})).await;
    let listed: Vec<&str> = listed["tools"].as_array().expect("tools").iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(listed, ["b", "a"], "who has tasks needs no others");
    // But they can be called by anybody.
    let called = fixture.tasker().call("task_wait", json!({"task_id": "nonsense"})).await;
    assert_eq!((&called["resultType"], &called["isError"]), (&json!("complete"), &json!(true)), "{called}");
}

#[tokio::test]
async fn a_list_in_pages_has_the_follow_up_tools_on_the_last() {
    let fixture = HoldFixture::with(registry([quick("b"), quick("a")]), Config { page_len: 3, ..config() }).await;
    for way in WAYS {
        let caller = Caller::new(way, &fixture).await;
        let (mut found, mut cursor) = (Vec::new(), Value::Null);
        loop {
            let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
            let page = caller.request("tools/list", params).await.result().await;
            found.extend(page["tools"].as_array().expect("tools").iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()));
            cursor = page["nextCursor"].clone();
            if cursor.is_null() {
                break;
            }
        }
        assert_eq!(found, ["b", "a", "task_wait", "task_output", "task_answer", "task_cancel", "task_list"], "{way:?}");
    }
}

#[tokio::test]
async fn a_tool_of_the_same_name_goes_before_one_of_the_server() {
    let fixture = HoldFixture::new([quick("task_wait"), quick("other")]).await;
    for way in WAYS {
        let caller = Caller::new(way, &fixture).await;
        assert_eq!(names(&caller).await, ["task_wait", "other", "task_output", "task_answer", "task_cancel", "task_list"], "{way:?}");
        assert_eq!(text(&caller.result("task_wait", json!({})).await), "done", "{way:?}");
    }
}

#[tokio::test]
async fn no_shape_is_promised_of_a_result_that_may_be_something_else() {
    let schema = || json!({"type": "object", "properties": {"n": {"type": "number"}}});
    let shaped = |name: &str, mode| tool(name, &(), |(), _ctx| async move { Ok(Json(json!({"n": 1}))) }).output_schema(schema()).task(mode);
    let modes = [("auto", TaskMode::Auto), ("always", TaskMode::Always), ("never", TaskMode::Never), ("required", TaskMode::Required)];
    let fixture = HoldFixture::new(modes.map(|(name, mode)| shaped(name, mode))).await;
    for way in WAYS {
        let caller = Caller::new(way, &fixture).await;
        let listed = caller.request("tools/list", json!({})).await.result().await;
        let promised: Vec<bool> =
            listed["tools"].as_array().expect("tools")[..4].iter().map(|tool| tool.get("outputSchema").is_some()).collect();
        assert_eq!(promised, [false, false, true, true], "{way:?}: {listed}");
        assert!(listed["tools"][0].get("inputSchema").is_some(), "{way:?}: nothing else is left out");
        assert_eq!(caller.result("auto", json!({})).await["structuredContent"], json!({"n": 1}), "{way:?}");
    }
    let listed = fixture.tasker().ok("tools/list", json!({})).await;
    assert!(listed["tools"].as_array().expect("tools").iter().all(|tool| tool.get("outputSchema").is_some()), "{listed}");
}

// Output as a resource.

#[tokio::test]
async fn the_output_of_a_task_is_a_resource_of_its_caller_alone() {
    let writes = |name: &str| {
        tool(name, &(), |(), ctx: Ctx| async move {
            ctx.text("all that it wrote").await?;
            ctx.checkpoint(&1).await?;
            ctx.cancelled().await;
            Ok("done")
        })
    };
    let spills = writes("spills").policy(Policy { output_exceeds_result: true, ..Policy::default() });
    let fixture = HoldFixture::with(registry([spills]), two_callers()).await;
    for way in [Way::ModernHttp, Way::LegacyHttp] {
        let ann = Caller::declaring(way, &fixture, json!({}), Some("ann-token")).await;
        let bob = Caller::declaring(way, &fixture, json!({}), Some("bob-token")).await;
        let mut call = ann.call("spills", json!({})).await;
        fixture.until_open(1).await;
        fixture.pass(HOLD).await;
        let id = followed(&call.result().await);
        let uri = format!("taskwire://task/{id}/output");
        let read = ann.request("resources/read", json!({"uri": uri})).await.result().await;
        assert_eq!(read["contents"][0]["text"], "all that it wrote", "{way:?}: {read}");
        let refused = bob.request("resources/read", json!({"uri": uri})).await.error().await;
        let unknown = bob.request("resources/read", json!({"uri": "taskwire://task/nonsense/output"})).await.error().await;
        assert_eq!(refused["code"], unknown["code"], "{way:?}: somebody else's does not exist");
        let listed = ann.request("resources/templates/list", json!({})).await.result().await;
        let template = listed["resourceTemplates"][0]["uriTemplate"].as_str().unwrap_or_default().to_owned();
        assert!(template.starts_with("taskwire://task/"), "{way:?}: {listed}");
        ann.result("task_cancel", json!({"task_id": id})).await;
        fixture.until_open(0).await;
    }
}

#[tokio::test]
async fn who_has_no_tool_that_spills_is_shown_no_template() {
    let fixture = HoldFixture::new([quick("quick")]).await;
    for way in WAYS {
        let listed = Caller::new(way, &fixture).await.request("resources/templates/list", json!({})).await.result().await;
        assert_eq!(listed["resourceTemplates"], json!([]), "{way:?}");
    }
}

// The end of a server, and coming back.

#[tokio::test]
async fn a_held_call_is_answered_when_the_server_shuts_down() {
    for way in WAYS {
        let gate = Gate::new();
        let mut fixture = HoldFixture::new([gate.tool("slow")]).await;
        let mut call = Caller::new(way, &fixture).await.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(SECOND).await;
        settle().await;
        fixture.stop();
        let result = call.result().await;
        let id = followed(&result);
        assert!(result.to_string().contains("shutting down"), "{way:?}: {result}");
        assert_eq!(fixture.open().iter().map(ToString::to_string).collect::<Vec<_>>(), [id], "{way:?}");
        assert!(!gate.stopped.is_sent(), "{way:?}: it has its time to finish");
        gate.go.send();
        fixture.until_open(0).await;
    }
}

#[tokio::test]
async fn a_call_that_asks_is_answered_when_the_server_shuts_down_however_long_it_has_been_held() {
    for late in [false, true] {
        let mut fixture = HoldFixture::new([asks("asks")]).await;
        let caller = Caller::declaring(Way::LegacyLines, &fixture, json!({"elicitation": {}}), None).await;
        let mut call = caller.call("asks", json!({})).await;
        let question = call.next().await.expect("a question");
        assert_eq!(question["method"], "elicitation/create", "{question}");
        fixture.pass(if late { HOLD * 2 } else { SECOND }).await;
        call.is_quiet().await;
        fixture.stop();
        let result = call.result().await;
        assert_eq!(followed(&result), fixture.open()[0].to_string());
        assert!(text(&result).contains("Who are you?"), "{result}");
    }
}

#[tokio::test]
async fn who_is_told_how_to_get_on_when_it_came_back_has_its_place_free() {
    let gate = Gate::new();
    let config = Config { waiting_requests_per_caller: 2, ..config() };
    let fixture = HoldFixture::with(registry([gate.tool("slow")]), config).await;
    let caller = Caller::new(Way::LegacyHttp, &fixture).await;
    let mut lost = Vec::new();
    for n in 0..2 {
        let call = caller.call("slow", json!({"n": n})).await;
        with_timeout("the tool", gate.started.wait()).await;
        lost.push(call);
    }
    fixture.pass(SECOND).await;
    let mut back = Vec::new();
    for call in &mut lost {
        call.has_event_id().await;
        call.lose();
        settle().await;
        back.push(caller.resume(call).await);
    }
    fixture.pass(HOLD).await;
    for call in &mut back {
        let id = followed(&call.result().await);
        // There is room for this, although both go on.
        let waited = caller.result("task_wait", json!({"task_id": id, "timeout_s": 0})).await;
        assert_eq!(followed(&waited), id);
    }
    assert_eq!(fixture.open().len(), 2);
    gate.go.send();
    gate.go.send();
    fixture.until_open(0).await;
}

#[tokio::test]
async fn who_comes_back_to_a_shared_task_has_its_own_hold_and_hears_of_progress_under_its_own_name() {
    let (tool, mut runs) = played("plays");
    let fixture = HoldFixture::new([tool.dedupe()]).await;
    let (ann, bob) = (Caller::new(Way::LegacyHttp, &fixture).await, Caller::new(Way::LegacyHttp, &fixture).await);
    let params = json!({"name": "plays", "arguments": {}, "_meta": {"progressToken": "another"}});
    let mut first = ann.request("tools/call", params).await;
    let mut run = run_of(&mut runs).await;
    fixture.pass(HOLD / 2).await;
    run.progress(1.0, None).await;
    let mut second = bob.call_with_progress("plays", json!({})).await;
    assert_eq!(second.progress().await.0, 1.0);
    second.has_event_id().await;
    second.lose();
    settle().await;
    let mut back = bob.resume(&second).await;
    run.progress(2.0, None).await;
    assert_eq!(back.progress().await.0, 2.0);
    fixture.pass(HOLD / 2).await;
    let id = followed(&first.result().await);
    settle_long().await;
    while let Ok(message) = back.messages.try_recv() {
        assert!(message.get("method").is_some(), "it was answered too early: {message}");
    }
    fixture.pass(HOLD / 2).await;
    assert_eq!(followed(&back.result().await), id);
    run.ends("done");
    fixture.until_open(0).await;
}

#[tokio::test]
async fn who_comes_back_to_a_stream_after_the_hold_gets_the_result_or_is_told_how_to_get_on() {
    for over in [false, true] {
        let gate = Gate::new();
        let fixture = HoldFixture::new([gate.tool("slow")]).await;
        let caller = Caller::new(Way::LegacyHttp, &fixture).await;
        let mut call = caller.call("slow", json!({})).await;
        with_timeout("the tool", gate.started.wait()).await;
        fixture.pass(SECOND).await;
        call.has_event_id().await;
        let id = fixture.until_open(1).await[0];
        call.lose();
        fixture.pass(HOLD * 2).await;
        if over {
            gate.go.send();
            fixture.until(id, Status::Completed).await;
        }
        let legacy = caller.legacy.as_ref().expect("a session");
        let mut back = caller.resume(&call).await;
        let result = back.result().await;
        if over {
            assert_eq!(text(&result), "done");
        } else {
            let id = followed(&result);
            assert!(!gate.stopped.is_sent());
            gate.go.send();
            assert_eq!(text(&caller.result("task_wait", json!({"task_id": id})).await), "done");
        }
        // Nothing follows that answer.
        let end = back.last.lock().expect("no panic").clone().expect("a name");
        assert_eq!(legacy.http("GET", &[("Last-Event-ID", end.as_str())]).await.status, 204);
    }
}
