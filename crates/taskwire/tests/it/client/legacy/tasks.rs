//! Core tasks (A6).

use taskwire::client::TaskSupport;

use super::*;

#[tokio::test]
async fn a_call_is_made_a_task_only_where_server_and_tool_allow_it() {
    let without = json!({"tools": {}});
    let elsewhere = json!({"tools": {}, "tasks": {"list": {}, "cancel": {}, "requests": {"sampling": {"createMessage": {}}}}});
    for (capabilities, can) in [(having(json!({})), true), (without, false), (elsewhere, false)] {
        for (support, wants) in [(None, false), (Some("forbidden"), false), (Some("optional"), true), (Some("required"), true)] {
            let script = scripted().await;
            let mut tools = tools_of("optional");
            match support {
                Some(support) => tools["tools"][0]["execution"]["taskSupport"] = support.into(),
                None => drop(tools["tools"][0].as_object_mut().expect("a tool").remove("execution")),
            }
            script.always("tools/list", tools);
            let client = joined(&script, options(&script), capabilities.clone()).await;
            let (outcome, task) = call_job(&client, json!({"a": 1}), async {
                let call = awaited(&script, "tools/call").await;
                assert_eq!((&call.params()["name"], &call.params()["arguments"]), (&json!("job"), &json!({"a": 1})));
                assert_eq!(call.meta().get(RELATED), None, "{call:?}");
                let task = call.params().get("task").cloned();
                if task.is_some() {
                    call.result(made("t1")).await;
                    script.expect_of("tasks/result", "t1").await.result(ended("t1", "done")).await;
                } else {
                    call.result(answer("done")).await;
                }
                task
            })
            .await;
            assert_eq!(end(&outcome.expect("a result")), "done: done");
            assert_eq!(task, (can && wants).then(|| json!({})), "{support:?} at {capabilities}");
        }
    }
}

#[tokio::test]
async fn what_a_tool_says_of_tasks_is_shown() {
    let script = scripted().await;
    let said = ["forbidden", "optional", "required"];
    let mut tools: Vec<Value> =
        said.iter().map(|support| with_members(tools_of(support)["tools"][0].clone(), json!({"name": support}))).collect();
    let silent = with_members(tools[0].clone(), json!({"name": "silent", "execution": null}));
    tools.push(silent);
    tools[1]["execution"]["streamPartial"] = true.into();
    script.always("tools/list", json!({"tools": tools}));
    let client = joined(&script, options(&script), having(json!({}))).await;
    let listed = with_timeout("the tools", client.tools()).await.expect("tools");
    let tool = |name: &str| listed.iter().find(|tool| tool.name == name).unwrap_or_else(|| panic!("no {name}"));
    for name in said {
        assert_eq!(tool(name).streams, name == "optional");
    }
    assert!(matches!(tool("forbidden").task, TaskSupport::Forbidden));
    assert!(matches!(tool("optional").task, TaskSupport::Optional));
    assert!(matches!(tool("required").task, TaskSupport::Required));
    assert!(matches!(tool("silent").task, TaskSupport::Forbidden), "that is what silence means");
}

#[tokio::test]
async fn the_result_is_waited_for_and_the_state_asked_for_beneath() {
    let script = scripted().await;
    script.stop_answering("tasks/get");
    let client = joined(&script, options(&script), having(json!({}))).await;
    let slow = json!({"task": with_members(shown("t1", "working"), json!({"pollInterval": 5_000}))});
    let (mut call, ()) = start_job(&client, async { awaited(&script, "tools/call").await.result(slow).await }).await;
    let wait = waited(&script, &mut call, "t1").await;
    assert_eq!(wait.params().get("lastSeqNr"), None);
    let wait = wait.sse().await;
    // The server pushes nothing: the client polls, and not more often than the server wants.
    let mut looks = Vec::new();
    for said in ["one", "two", "three"] {
        let look = script.as_time_passes("a look", 100 * MS, script.expect_of("tasks/get", "t1")).await;
        is_ours(&look);
        looks.push(look.at);
        look.result(with_members(shown("t1", "working"), json!({"pollInterval": 5_000, "statusMessage": said}))).await;
        until(&mut call, said, |event| matches!(event, Event::Status(snapshot) if snapshot.message.as_deref() == Some(said))).await;
    }
    for pair in looks.windows(2) {
        assert!(pair[1].since(pair[0]) >= 5 * SECOND, "{:?}", pair[1].since(pair[0]));
    }
    script.may_remain("tasks/get");
    wait.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
}

#[tokio::test]
async fn what_a_task_says_when_it_is_made_is_told_once() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let thinking = json!({"task": with_members(shown("t1", "working"), json!({"statusMessage": "thinking"}))});
    let (mut call, ()) = start_job(&client, async { awaited(&script, "tools/call").await.result(thinking).await }).await;
    for expected in ["task t1", "working: thinking"] {
        assert_eq!(brief(&next(&mut call).await.expect("an event")), expected);
    }
    let wait = waited(&script, &mut call, "t1").await;
    wait.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
}

#[tokio::test]
async fn a_wait_that_says_nothing_does_not_hide_the_end() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut call, _silent) = begun(&script, &client, "t1").await;
    script.always("tasks/get", shown("t1", "completed"));
    let again = script.as_time_passes("another wait", 100 * MS, awaited(&script, "tasks/result")).await;
    again.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
}

#[tokio::test]
async fn a_state_that_is_told_is_shown_and_not_relied_upon() {
    let script = scripted().await;
    let (client, mut stand) = stood(&script, options(&script), having(json!({}))).await;
    // Of a task that nobody knows yet, or never will.
    stand.event(status(shown("t1", "working"))).await;
    stand.event(status(shown("unknown", "failed"))).await;
    let (mut call, wait) = begun(&script, &client, "t1").await;
    stand.event(status(shown("unknown", "cancelled"))).await;
    stand.event(status(with_members(shown("t1", "working"), json!({"statusMessage": "half way"})))).await;
    until(&mut call, "the state", |event| matches!(event, Event::Status(snapshot) if snapshot.message.as_deref() == Some("half way")))
        .await;
    // It is over when its result says so; until then whoever says so may be wrong.
    stand.event(status(with_members(shown("t1", "working"), json!({"statusMessage": "not yet"})))).await;
    until(&mut call, "the state", |event| matches!(event, Event::Status(snapshot) if snapshot.message.as_deref() == Some("not yet"))).await;
    wait.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
}

#[tokio::test]
async fn a_task_may_be_made_in_another_state_than_at_work() {
    for state in ["input_required", "completed"] {
        let script = scripted().await;
        script.always("tasks/get", shown("t1", state));
        let client = joined(&script, options(&script), having(json!({}))).await;
        let (mut call, ()) = start_job(&client, async {
            awaited(&script, "tools/call").await.result(json!({"task": shown("t1", state)})).await;
        })
        .await;
        waited(&script, &mut call, "t1").await.result(ended("t1", "done")).await;
        assert_eq!(rest(&mut call).await, ["done: done"], "{state}");
    }
}

#[tokio::test]
async fn a_tool_that_failed_is_a_failed_task_with_a_result() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut call, wait) = begun(&script, &client, "t1").await;
    script.always("tasks/get", shown("t1", "failed"));
    let result = with_members(ended("t1", "no such file"), json!({"isError": true, "structuredContent": {"line": 3}}));
    wait.result(result.clone()).await;
    let event = until(&mut call, "the end", |event| matches!(event, Event::Done(_))).await;
    let Event::Done(Outcome::Result(finished)) = event else { panic!("{event:?}") };
    assert_eq!((finished.is_error, finished.text().as_str()), (true, "no such file"));
    assert_eq!(finished.structured, Some(json!({"line": 3})));
    // A client that gets the task may get its result, too.
    let snapshot = tokio::select! {
        snapshot = client.task("t1") => snapshot,
        never = answering(&script, "tasks/result", result) => never,
    };
    let snapshot = snapshot.expect("it is there");
    assert_eq!((snapshot.status, snapshot.status.is_terminal()), (Status::Failed, true));
}

#[tokio::test]
async fn the_error_of_a_task_passes_as_it_is() {
    for as_json in [true, false] {
        let script = scripted().await;
        let client = joined(&script, options(&script), having(json!({}))).await;
        let mut call = made_by(&script, &client, "t1").await;
        script.always("tasks/get", with_members(shown("t1", "failed"), json!({"statusMessage": "shorter"})));
        let wait = waited(&script, &mut call, "t1").await;
        let data = json!({"why": ["a", 1]});
        if as_json {
            wait.error(200, -31999, "broken in two", data.clone()).await;
        } else {
            wait.sse().await.error(-31999, "broken in two", data.clone()).await;
        }
        let event = until(&mut call, "the end", |event| matches!(event, Event::Done(_))).await;
        let Event::Done(Outcome::Failed(error)) = event else { panic!("{event:?}") };
        assert_eq!((error.code, error.message.as_str()), (-31999, "broken in two"));
        assert_eq!(error.data.map(|data| data.read::<Value>().expect("JSON")), Some(data));
    }
}

#[tokio::test]
async fn a_task_is_cancelled_and_ends_so() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut call, wait) = begun(&script, &client, "t1").await;
    let off = with_members(shown("t1", "cancelled"), json!({"statusMessage": "as you wish"}));
    let playing = async {
        script.always("tasks/get", off.clone());
        script.expect_of("tasks/cancel", "t1").await.result(off.clone()).await;
    };
    let (cancelled, ()) = tokio::join!(call.cancel(), playing);
    cancelled.expect("asked for");
    // What a server says to who waits for the result of such a task is its own affair.
    wait.error(-32603, "Task t1 has no result stored", Value::Null).await;
    assert_eq!(rest(&mut call).await, ["cancelled: as you wish"]);
}

#[tokio::test]
async fn a_task_that_has_ended_can_be_cancelled_without_effect() {
    for state in ["completed", "failed", "cancelled"] {
        let script = scripted().await;
        script.always("tasks/get", shown("t1", state));
        let client = joined(&script, options(&script), having(json!({}))).await;
        let playing = async {
            let cancel = script.expect_of("tasks/cancel", "t1").await;
            cancel.error(200, -32602, &format!("Cannot cancel task in terminal status: {state}"), Value::Null).await;
        };
        let (cancelled, ()) = with_timeout("the answer", async { tokio::join!(client.cancel("t1"), playing) }).await;
        cancelled.unwrap_or_else(|error| panic!("{state}: {error}"));
    }
}

#[tokio::test]
async fn a_task_that_nobody_knows_is_not_found() {
    let script = scripted().await;
    script.stop_answering("tasks/get");
    let client = joined(&script, options(&script), having(json!({}))).await;
    let snapshot = tokio::select! {
        snapshot = client.task("gone") => snapshot.map(drop),
        never = never_known(&script) => never,
    };
    let cancelled = tokio::select! {
        cancelled = client.cancel("gone") => cancelled,
        never = never_known(&script) => never,
    };
    for answer in [snapshot, cancelled] {
        assert!(matches!(&answer, Err(Error::TaskNotFound { task }) if task == "gone"), "{answer:?}");
    }
    assert_eq!(script.count("tasks/cancel"), 1);
}

/// Knows no task at all.
async fn never_known<T>(script: &ScriptedServer) -> T {
    loop {
        let asked = script.expect_where("a question about a task", |asked| asked.kind().starts_with("tasks/")).await;
        asked.error(200, -32602, "Task not found", Value::Null).await;
    }
}

#[tokio::test]
async fn a_task_whose_time_is_over_while_it_is_waited_for_is_not_waited_for_any_longer() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut call, wait) = begun(&script, &client, "t1").await;
    script.stop_answering("tasks/get");
    script.may_remain("tasks/get");
    wait.error(-32602, "Task has expired", Value::Null).await;
    let ending = async {
        loop {
            match call.next().await.expect("a last word") {
                Ok(Event::Done(outcome)) => return Ok(outcome),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
    };
    let ending = async {
        tokio::select! {
            end = ending => end,
            never = never_known(&script) => never,
        }
    };
    match script.as_time_passes("the end", 100 * MS, ending).await {
        Err(Error::TaskNotFound { task }) => assert_eq!(task, "t1"),
        Ok(Outcome::Failed(error)) => assert_eq!(error.code, -32602),
        other => panic!("{other:?}"),
    }
    assert!(with_timeout("the end", call.next()).await.is_none());
}

#[tokio::test]
async fn progress_of_a_task_comes_under_the_name_of_its_call() {
    let script = scripted().await;
    let (client, mut stand) = stood(&script, options(&script), having(json!({}))).await;
    let (mut call, token) = start_job(&client, async {
        let request = awaited(&script, "tools/call").await;
        let token = request.meta()["progressToken"].clone();
        request.result(made("t1")).await;
        token
    })
    .await;
    let mut wait = waited(&script, &mut call, "t1").await.sse().await;
    wait.event(progress(&token, json!({"progress": 1, "total": 2, "_meta": related("t1")}))).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["progress 1 of 2"]);
    stand.event(progress(&token, json!({"progress": 2, "total": 2, "_meta": related("t1")}))).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["progress 2 of 2"]);
    wait.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
}

#[tokio::test]
async fn a_task_is_picked_up_by_its_reference() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (call, wait) = begun(&script, &client, "t1").await;
    let reference = call.reference().expect("it is a task");
    drop((call, wait));
    // It is data, and outlives a process.
    let text = serde_json::to_string(&reference).expect("JSON");
    let reference = serde_json::from_str(&text).expect("the same");
    let mut call = with_timeout("the run", client.attach(&reference)).await.expect("a run");
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    waited(&script, &mut call, "t1").await.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
    assert_eq!(script.count("tools/call"), 1);
}
