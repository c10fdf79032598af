//! `subscriptions/listen`: a listener gets everything that it asked for, in order, and nothing else.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::{Value, json};
use taskwire::{
    server::Config,
    tool::{Progress, Prompt, Resource, TaskMode},
};
use tokio::{io::AsyncReadExt, net::TcpStream};

use crate::{
    kit::{Client, Events, SUBSCRIPTION, TASKS, TestServer, manual_clock, with_timeout},
    schema,
    tasks::{Gate, accept, name_form, quick, registry, tool, two_callers},
};

async fn next(events: &mut Events) -> Value {
    with_timeout("the next message", events.next()).await.expect("the stream goes on")
}

/// The next message, which must be the state of a task.
async fn next_task(events: &mut Events) -> Value {
    let message = next(events).await;
    assert_eq!(message["method"], "notifications/tasks", "{message}");
    message["params"].clone()
}

/// What `tasks/get` and `notifications/tasks` have in common.
fn task_of(mut task: Value) -> Value {
    let members = task.as_object_mut().expect("an object");
    members.remove("_meta");
    members.remove("resultType");
    task
}

/// Reads until this text has come.
async fn read_until(stream: &mut TcpStream, seen: &mut String, text: &str) {
    while !seen.contains(text) {
        let mut part = [0; 4096];
        let n = with_timeout(text, stream.read(&mut part)).await.expect("readable");
        assert!(n > 0, "the stream ended before `{text}`: {seen}");
        seen.push_str(&String::from_utf8_lossy(&part[..n]));
    }
}

async fn send_listen(client: &Client, filter: &Value) -> TcpStream {
    let message = client.message(client.next_id(), "subscriptions/listen", json!({"notifications": filter}));
    client.send(&client.headers(&message), message.to_string().as_bytes()).await
}

/// Asks to listen until there is room again: that an earlier stream was closed has reached the server then.
async fn listen_when_there_is_room(client: &Client) {
    let ask = async {
        loop {
            let (mut stream, mut head) = (send_listen(client, &json!({})).await, String::new());
            read_until(&mut stream, &mut head, "\r\n\r\n").await;
            if head.contains("text/event-stream") {
                return;
            }
        }
    };
    with_timeout("room for another stream", ask).await;
}

#[tokio::test]
async fn the_acknowledgement_comes_first_and_names_what_will_be_told() {
    let gate = Gate::new();
    let tools = registry([gate.tool("slow").task(TaskMode::Always)]);
    let server = TestServer::start_with(tools, two_callers(), Arc::new(manual_clock())).await;
    let (ann, bob) = (server.client().with_token("ann-token"), server.client().with_token("bob-token"));
    let mine = ann.start("slow", json!({})).await;
    let foreign = bob.start("slow", json!({})).await;
    let filter = json!({
        "toolsListChanged": true,
        "promptsListChanged": false,
        "resourceSubscriptions": ["test://a"],
        "taskIds": [foreign, mine, "0".repeat(32), "nonsense"],
    });
    let mut events = ann.listen(filter).await;
    let honoured = json!({"toolsListChanged": true, "resourceSubscriptions": ["test://a"], "taskIds": [mine]});
    assert_eq!(events.ack["params"]["notifications"], honoured);
    assert_eq!(next_task(&mut events).await["taskId"], mine);
    bob.cancel(&foreign).await;
    ann.cancel(&mine).await;
    let task = next_task(&mut events).await;
    assert_eq!((&task["taskId"], &task["status"]), (&json!(mine), &json!("cancelled")));
}

#[tokio::test]
async fn the_current_state_comes_right_after_the_acknowledgement() {
    let gate = Gate::new();
    let tools = registry([gate.tool("slow").task(TaskMode::Always), quick("quick").task(TaskMode::Always)]);
    let server = TestServer::start_with(tools, Config::default(), Arc::new(manual_clock())).await;
    let client = server.client();
    let slow = client.start("slow", json!({})).await;
    let working = next_task(&mut client.listen(json!({"taskIds": [slow]})).await).await;
    assert_eq!(task_of(working), task_of(client.get(&slow).await));
    let ended = client.start("quick", json!({})).await;
    with_timeout("the end", client.until(&ended, "completed")).await;
    let completed = next_task(&mut client.listen(json!({"taskIds": [ended]})).await).await;
    assert_eq!(completed["result"]["content"][0]["text"], "done");
    assert_eq!(task_of(completed), task_of(client.get(&ended).await));
}

#[tokio::test]
async fn every_change_of_a_task_is_told_in_order() {
    let gate = Gate::new();
    let busy = tool("busy", &gate, |gate, ctx| async move {
        gate.go.wait().await;
        for n in 1..=20 {
            ctx.status(n.to_string()).await?;
            ctx.text("not a change").await?;
        }
        ctx.ask("name", name_form("Name?")).await?;
        Ok("done")
    });
    let server = TestServer::start_with(registry([busy.task(TaskMode::Always)]), Config::default(), Arc::new(manual_clock())).await;
    let client = server.client();
    let id = client.start("busy", json!({})).await;
    let mut events = client.listen(json!({"taskIds": [id]})).await;
    assert_eq!(next_task(&mut events).await.get("statusMessage"), None);
    gate.go.send();
    for n in 1..=20 {
        let task = next_task(&mut events).await;
        assert_eq!((&task["status"], &task["statusMessage"]), (&json!("working"), &json!(n.to_string())));
    }
    let asked = next_task(&mut events).await;
    assert_eq!(asked["status"], "input_required");
    assert_eq!(asked["inputRequests"]["name"]["params"]["message"], "Name?");
    client.answer(&id, json!({"name": accept("Ada")})).await;
    let answered = next_task(&mut events).await;
    assert_eq!((&answered["status"], answered.get("inputRequests")), (&json!("working"), None));
    let completed = next_task(&mut events).await;
    assert_eq!(completed["status"], "completed");
    assert_eq!(task_of(completed), task_of(client.get(&id).await));
}

#[tokio::test]
async fn neither_progress_nor_log_lines_of_a_task_come_on_its_stream() {
    let gate = Gate::new();
    let busy = tool("busy", &gate, |gate, ctx| async move {
        gate.go.wait().await;
        ctx.progress(Progress::of(1.0, 2.0).message("half way")).await?;
        ctx.log("error", json!({"at": "half way"}));
        Ok("done")
    });
    let server = TestServer::start_with(registry([busy.task(TaskMode::Always)]), Config::default(), Arc::new(manual_clock())).await;
    let client = server.client();
    // Both were asked for with the call, which is over when its handle is there.
    let meta = json!({"progressToken": "p", "io.modelcontextprotocol/logLevel": "debug"});
    let created = client.ok("tools/call", json!({"name": "busy", "arguments": {}, "_meta": meta})).await;
    let id = created["taskId"].as_str().expect("a task").to_owned();
    let mut events = client.listen(json!({"taskIds": [id]})).await;
    next_task(&mut events).await;
    gate.go.send();
    // Any other message would be taken for the state of a task, and is none.
    assert_eq!(next_task(&mut events).await["statusMessage"], "half way (1/2)");
    assert_eq!(next_task(&mut events).await["status"], "completed");
}

#[tokio::test]
async fn notifications_carry_the_id_of_their_request_as_it_came() {
    let gate = Gate::new();
    let server = TestServer::start(registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let client = server.client();
    let task = client.start("slow", json!({})).await;
    for id in [json!("listen-1"), json!("7"), json!(7), json!(0)] {
        let mut message = client.message(1, "subscriptions/listen", json!({"notifications": {"taskIds": [task]}}));
        message["id"] = id.clone();
        let mut events = client.open(&message).await;
        for method in ["notifications/subscriptions/acknowledged", "notifications/tasks"] {
            let received = next(&mut events).await;
            assert_eq!((&received["method"], &received["params"]["_meta"][SUBSCRIPTION]), (&json!(method), &id));
        }
    }
}

#[tokio::test]
async fn listening_to_tasks_needs_the_extension_and_listening_to_other_things_does_not() {
    let tools = registry([]);
    let server = TestServer::start(tools.clone()).await;
    let client = server.plain_client();
    let refused = client.raw("subscriptions/listen", json!({"notifications": {"taskIds": ["0".repeat(32)]}})).await;
    assert_eq!((refused.status, refused.code()), (400, -32021));
    assert_eq!(refused.json()["error"]["data"]["requiredCapabilities"]["extensions"], json!({TASKS: {}}));
    let mut events = client.listen(json!({"toolsListChanged": true})).await;
    assert_eq!(events.ack["params"]["notifications"], json!({"toolsListChanged": true}));
    tools.tool(quick("new")).expect("a tool");
    assert_eq!(next(&mut events).await["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn one_stream_tells_of_several_tasks() {
    let (left, right) = (Gate::new(), Gate::new());
    let tools = [left.tool("left").task(TaskMode::Always), right.tool("right").task(TaskMode::Always)];
    let server = TestServer::start(registry(tools)).await;
    let client = server.client();
    let (one, two) = (client.start("left", json!({})).await, client.start("right", json!({})).await);
    let mut events = client.listen(json!({"taskIds": [one, two]})).await;
    let mut current = BTreeSet::new();
    for _ in 0..2 {
        current.insert(next_task(&mut events).await["taskId"].as_str().expect("an id").to_owned());
    }
    assert_eq!(current, BTreeSet::from([one.clone(), two.clone()]));
    for (gate, id) in [(right, two), (left, one)] {
        gate.go.send();
        let task = next_task(&mut events).await;
        assert_eq!((&task["taskId"], &task["status"]), (&json!(id), &json!("completed")));
    }
}

#[tokio::test]
async fn several_streams_tell_the_same_of_one_task() {
    let gate = Gate::new();
    let talks = tool("talks", &gate, |gate, ctx| async move {
        gate.go.wait().await;
        ctx.status("half way").await?;
        Ok("done")
    });
    let server = TestServer::start(registry([talks.task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("talks", json!({})).await;
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(client.listen(json!({"taskIds": [id]})).await);
    }
    gate.go.send();
    for events in &mut streams {
        let mut statuses = Vec::new();
        for _ in 0..3 {
            let task = next_task(events).await;
            statuses.push((task["status"].clone(), task["statusMessage"].clone()));
        }
        let expected = json!([["working", null], ["working", "half way"], ["completed", "half way"]]);
        assert_eq!(json!(statuses), expected);
    }
}

#[tokio::test]
async fn a_changed_list_is_told_to_those_who_asked_for_it() {
    let tools = registry([]);
    let server = TestServer::start(tools.clone()).await;
    let client = server.client();
    let prompt = || Prompt::raw(json!({"name": "p"}), |_| async { Ok(json!({"messages": []})) });
    let resource = || Resource::raw(json!({"uri": "test://r", "name": "r"}), |_| async { Ok(json!({"contents": []})) });
    let change_all = || {
        tools.prompt(prompt()).resource(resource()).tool(quick("t")).expect("a tool");
    };
    for kind in ["tools", "prompts", "resources"] {
        let mut events = client.listen(json!({(format!("{kind}ListChanged")): true})).await;
        // Twice, so that anything that was not asked for would come in between.
        for _ in 0..2 {
            change_all();
            assert_eq!(next(&mut events).await["method"], format!("notifications/{kind}/list_changed"));
        }
    }
}

#[tokio::test]
async fn a_changed_resource_is_told_to_those_who_subscribed_to_it() {
    let tools = registry([]);
    let server = TestServer::start(tools.clone()).await;
    let mut events = server.client().listen(json!({"resourceSubscriptions": ["test://a"], "toolsListChanged": false})).await;
    for _ in 0..2 {
        tools.resource_updated("test://b").resource_updated("test://a").tool(quick("t")).expect("a tool");
        let message = next(&mut events).await;
        assert_eq!(message["method"], "notifications/resources/updated");
        assert_eq!(message["params"]["uri"], "test://a");
    }
}

#[tokio::test]
async fn a_caller_may_have_so_many_streams_and_another_when_one_is_closed() {
    let config = Config { streams_per_caller: 2, ..two_callers() };
    let server = TestServer::start_with(registry([]), config, Arc::new(manual_clock())).await;
    let (ann, bob) = (server.client().with_token("ann-token"), server.client().with_token("bob-token"));
    let first = ann.listen(json!({})).await;
    let second = ann.listen(json!({})).await;
    let error = ann.error("subscriptions/listen", json!({"notifications": {}})).await;
    assert_eq!(error["code"], -31001);
    assert!(error["message"].as_str().expect("a text").contains("`streams_per_caller`"), "{error}");
    bob.listen(json!({})).await;
    drop(first);
    listen_when_there_is_room(&ann).await;
    drop(second);
}

#[tokio::test]
async fn a_stream_may_name_so_many_tasks() {
    let gate = Gate::new();
    let config = Config { subscriptions_per_stream: 2, ..Config::default() };
    let server = TestServer::start_with(registry([gate.tool("slow").task(TaskMode::Always)]), config, Arc::new(manual_clock())).await;
    let client = server.client();
    let mut ids = vec![client.start("slow", json!({})).await, client.start("slow", json!({})).await];
    assert_eq!(client.listen(json!({"taskIds": ids})).await.ack["params"]["notifications"]["taskIds"], json!(ids));
    ids.push("0".repeat(32));
    let error = client.error("subscriptions/listen", json!({"notifications": {"taskIds": ids}})).await;
    assert_eq!(error["code"], -31001);
    assert!(error["message"].as_str().expect("a text").contains("`subscriptions_per_stream`"), "{error}");
}

#[tokio::test]
async fn a_shutdown_ends_each_stream_with_its_response() {
    let gate = Gate::new();
    let mut server = TestServer::start(registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("slow", json!({})).await;
    let mut message = client.message(1, "subscriptions/listen", json!({"notifications": {"taskIds": [id]}}));
    message["id"] = json!("listen-1");
    let mut events = client.open(&message).await;
    assert_eq!(next(&mut events).await["method"], "notifications/subscriptions/acknowledged");
    next_task(&mut events).await;
    server.stop();
    let last = next(&mut events).await;
    schema::check_response("subscriptions/listen", &last);
    assert_eq!((&last["id"], &last["result"]["_meta"][SUBSCRIPTION]), (&json!("listen-1"), &json!("listen-1")));
    assert_eq!(with_timeout("the end of the stream", events.next()).await, None);
    gate.go.send();
    with_timeout("the shutdown", server.stopped()).await;
}

#[tokio::test]
async fn closing_a_stream_does_not_touch_its_tasks() {
    let gate = Gate::new();
    let config = Config { streams_per_caller: 1, ..Config::default() };
    let server = TestServer::start_with(registry([gate.tool("slow").task(TaskMode::Always)]), config, Arc::new(manual_clock())).await;
    let client = server.client();
    let id = client.start("slow", json!({})).await;
    drop(client.listen(json!({"taskIds": [id]})).await);
    listen_when_there_is_room(&client).await;
    assert_eq!(client.get(&id).await["status"], "working");
    assert!(!gate.stopped.is_sent());
    gate.go.send();
    let ended = async { while client.get(&id).await["status"] != "completed" {} };
    with_timeout("the end", ended).await;
}

#[tokio::test]
async fn streams_of_the_same_request_id_do_not_disturb_each_other() {
    let (left, right) = (Gate::new(), Gate::new());
    let tools = [left.tool("left").task(TaskMode::Always), right.tool("right").task(TaskMode::Always)];
    let server = TestServer::start(registry(tools)).await;
    let client = server.client();
    let (one, two) = (client.start("left", json!({})).await, client.start("right", json!({})).await);
    let open = async |id: &str| {
        let mut events = client.open(&client.message(7, "subscriptions/listen", json!({"notifications": {"taskIds": [id]}}))).await;
        let ack = next(&mut events).await;
        assert_eq!(ack["params"]["notifications"]["taskIds"], json!([id]));
        assert_eq!(next_task(&mut events).await["taskId"], id);
        events
    };
    let (first, mut second) = (open(&one).await, open(&two).await);
    left.go.send();
    with_timeout("the end of the other", client.until(&one, "completed")).await;
    drop(first);
    right.go.send();
    let task = next_task(&mut second).await;
    assert_eq!((&task["taskId"], &task["_meta"][SUBSCRIPTION]), (&json!(two), &json!(7)));
}

#[tokio::test]
async fn a_reader_that_is_slow_misses_nothing_and_holds_nobody_up() {
    let gate = Gate::new();
    let talks = tool("talks", &gate, |gate, ctx| async move {
        gate.go.wait().await;
        for n in 0..500 {
            ctx.status(format!("{n} {}", "x".repeat(3_000))).await?;
        }
        gate.started.send();
        gate.go.wait().await;
        Ok("done")
    });
    let server = TestServer::start(registry([talks.task(TaskMode::Always)])).await;
    let client = server.client();
    let id = client.start("talks", json!({})).await;
    let mut events = client.listen(json!({"taskIds": [id]})).await;
    gate.go.send();
    with_timeout("the last of 500 messages, read by nobody", gate.started.wait()).await;
    gate.go.send();
    with_timeout("the end", client.until(&id, "completed")).await;
    assert_eq!(next_task(&mut events).await.get("statusMessage"), None);
    for n in 0..500 {
        let task = next_task(&mut events).await;
        let message = task["statusMessage"].as_str().expect("a message");
        assert_eq!(message.split(' ').next(), Some(n.to_string().as_str()));
    }
    assert_eq!(next_task(&mut events).await["status"], "completed");
}

#[tokio::test]
async fn a_quiet_stream_is_given_signs_of_life() {
    let clock = manual_clock();
    let server = TestServer::start_with(registry([]), Config::default(), Arc::new(clock.clone())).await;
    let (mut stream, mut seen) = (send_listen(&server.client(), &json!({})).await, String::new());
    read_until(&mut stream, &mut seen, "acknowledged").await;
    assert!(!seen.contains(": keep-alive"), "{seen}");
    for _ in 0..2 {
        seen.clear();
        clock.advance(Duration::from_secs(15));
        read_until(&mut stream, &mut seen, ": keep-alive\n").await;
        assert!(!seen.contains("\n\n"), "a blank line would end an event that is none: {seen:?}");
        assert_eq!(seen.matches(": keep-alive").count(), 1);
    }
}
