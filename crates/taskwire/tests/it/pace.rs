//! How fast calls may come, how many tasks a tool may have, and when there is no memory for more.

use std::sync::Arc;

use serde_json::{Value, json};
use taskwire::{core::Limits, server::Config, tool::TaskMode};

use crate::{
    kit::{Client, Response, SECOND, TestServer, manual_clock, with_timeout},
    legacy::kit::LegacySession,
    tasks::{quick, registry, two_callers, with_limits},
    tool_harness::ToolHarness,
};

fn call(tool: &str) -> Value {
    json!({"name": tool, "arguments": {}})
}

/// That it was refused for now, by this limit.
#[track_caller]
fn is_too_fast(response: &Response, key: &str) {
    let answer = response.json();
    let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {answer}"));
    let seen = (response.status, response.header("retry-after"), &answer["error"]["code"]);
    assert_eq!(seen, (429, Some("1"), &json!(-31001)), "{message}");
    assert!(message.contains(&format!("`{key}`")) && message.contains("try again"), "{message}");
}

/// That it was refused by this limit of a tool.
#[track_caller]
fn is_limit_of_tool(response: &Response, key: &str) {
    let answer = response.json();
    let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {answer}"));
    assert_eq!((response.status, &answer["error"]["code"]), (200, &json!(-31001)), "{message}");
    assert!(message.contains("of this tool") && message.contains(&format!("`{key}`")), "{message}");
}

/// How many requests are answered before one is refused by this limit.
async fn answered(client: &Client, method: &str, params: Value, key: &str) -> usize {
    let mut answered = 0;
    loop {
        let response = with_timeout("the answer", client.raw(method, params.clone())).await;
        if response.status != 200 {
            is_too_fast(&response, key);
            return answered;
        }
        answered += 1;
    }
}

#[tokio::test]
async fn a_caller_may_start_so_many_calls_in_a_second_and_others_go_on() {
    let limits = Limits { creates_per_second_per_caller: 3, ..Limits::DEFAULT };
    let (config, clock) = (Config { auth: two_callers().auth, ..with_limits(limits) }, manual_clock());
    let server = TestServer::start_with(registry([quick("quick")]), config, Arc::new(clock.clone())).await;
    let (ann, bob) = (server.client().with_token("ann-token"), server.client().with_token("bob-token"));
    let key = "limits.creates_per_second_per_caller";
    assert_eq!(answered(&ann, "tools/call", call("quick"), key).await, 6, "what comes in two seconds may come at once");
    assert_ne!(ann.call("task_list", json!({})).await["isError"], true, "a follow-up starts nothing");
    ann.ok("tools/list", json!({})).await;
    let session = LegacySession::of(server.port, Some("ann-token"), "2025-11-25", json!({})).await;
    is_too_fast(&session.raw("tools/call", call("quick")).await, key);
    assert_eq!(answered(&bob, "tools/call", call("quick"), key).await, 6);
    clock.advance(SECOND);
    assert_eq!(answered(&ann, "tools/call", call("quick"), key).await, 3);
}

#[tokio::test]
async fn a_tool_may_be_called_so_often_in_a_second_by_all_callers() {
    let (config, clock) = (two_callers(), manual_clock());
    let tools = registry([quick("slow").calls_per_second(2), quick("quick")]);
    let server = TestServer::start_with(tools, config, Arc::new(clock.clone())).await;
    let (ann, bob) = (server.client().with_token("ann-token"), server.client().with_token("bob-token"));
    assert_eq!(answered(&ann, "tools/call", call("slow"), "calls_per_second").await, 4);
    assert_eq!(answered(&bob, "tools/call", call("slow"), "calls_per_second").await, 0);
    bob.call("quick", json!({})).await;
    clock.advance(SECOND);
    assert_eq!(answered(&bob, "tools/call", call("slow"), "calls_per_second").await, 2);
}

#[tokio::test]
async fn a_call_that_comes_too_fast_for_its_tool_does_not_count_for_its_caller() {
    let limits = Limits { creates_per_second_per_caller: 3, ..Limits::DEFAULT };
    let tools = registry([quick("slow").calls_per_second(1), quick("quick")]);
    let server = TestServer::start_with(tools, with_limits(limits), Arc::new(manual_clock())).await;
    let client = server.client();
    assert_eq!(answered(&client, "tools/call", call("slow"), "calls_per_second").await, 2);
    assert_eq!(answered(&client, "tools/call", call("quick"), "limits.creates_per_second_per_caller").await, 4);
}

#[tokio::test]
async fn a_tool_has_so_many_tasks_and_another_one_when_one_has_ended() {
    let mut harness = ToolHarness::of(two_callers(), |tool| tool.task(TaskMode::Always).tasks_max(3).tasks_per_caller_max(2)).await;
    let [ann, bob] = ["ann-token", "bob-token"].map(|token| harness.server.client().with_token(token));
    let (first, mut run) = harness.task_of(&ann).await;
    let _second = harness.task_of(&ann).await;
    is_limit_of_tool(&ann.raw("tools/call", call("writes")).await, "tasks_per_caller_max");
    let _third = harness.task_of(&bob).await;
    is_limit_of_tool(&bob.raw("tools/call", call("writes")).await, "tasks_max");
    run.ends("done");
    with_timeout("the end", ann.until(&first, "completed")).await;
    let _fourth = harness.task_of(&bob).await;
    is_limit_of_tool(&bob.raw("tools/call", call("writes")).await, "tasks_per_caller_max");
    is_limit_of_tool(&ann.raw("tools/call", call("writes")).await, "tasks_max");
}

#[tokio::test]
async fn a_caller_may_make_so_many_requests_in_a_second_in_both_eras() {
    let limits = Limits { requests_per_second_per_caller: 5, ..Limits::DEFAULT };
    let (config, clock) = (Config { auth: two_callers().auth, long_poll: false, ..with_limits(limits) }, manual_clock());
    let server = TestServer::start_with(registry([quick("quick").task(TaskMode::Always)]), config, Arc::new(clock.clone())).await;
    let (ann, bob) = (server.client().with_token("ann-token"), server.client().with_token("bob-token"));
    let key = "limits.requests_per_second_per_caller";
    let task = ann.start("quick", json!({})).await;
    assert_eq!(answered(&ann, "tasks/get", json!({"taskId": task}), key).await, 9, "what comes in two seconds may come at once");
    bob.ok("tools/list", json!({})).await;
    clock.advance(SECOND);
    let session = LegacySession::of(server.port, Some("ann-token"), "2025-11-25", json!({})).await;
    assert_eq!(answered(&ann, "tasks/get", json!({"taskId": task}), key).await, 4, "a notification does not count");
    is_too_fast(&session.raw("tools/list", json!({})).await, key);
    clock.advance(SECOND);
    assert_eq!(session.raw("tools/list", json!({})).await.status, 200);
}

#[tokio::test]
async fn whatever_a_caller_asks_by_http_counts_as_a_request() {
    let limits = Limits { requests_per_second_per_caller: 2, ..Limits::DEFAULT };
    let (config, clock) = (Config { auth: two_callers().auth, ..with_limits(limits) }, manual_clock());
    let server = TestServer::start_with(registry([]), config, Arc::new(clock.clone())).await;
    let client = Client::new(server.port);
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
    let batch = format!("[{ping}]");
    let session = "MCP-Protocol-Version: 2025-03-26\r\nMcp-Session-Id: nobody\r\nContent-Type: application/json\r\n";
    for (line, body, status) in [
        ("GET /api/tasks", "", 200),
        ("GET /metrics", "", 200),
        ("DELETE /mcp", "", 404),
        ("POST /mcp", ping.as_str(), 404),
        ("POST /mcp", note.as_str(), 404),
        ("POST /mcp", batch.as_str(), 404),
    ] {
        let head = format!("Host: localhost\r\nAuthorization: Bearer ann-token\r\nContent-Length: {}\r\n{session}", body.len());
        let request = format!("{line} HTTP/1.1\r\n{head}Connection: close\r\n\r\n{body}");
        let ask = || with_timeout("the answer", client.bytes(request.as_bytes()));
        assert_eq!(ask().await.status, status, "{line} {body}");
        for _ in 1..4 {
            ask().await;
        }
        is_too_fast(&ask().await, "limits.requests_per_second_per_caller");
        clock.advance(2 * SECOND);
    }
}

#[tokio::test]
async fn with_too_much_in_memory_no_call_and_no_stream_begins() {
    let limits = Limits { memory_bytes: 1, ..Limits::DEFAULT };
    let server = TestServer::start_with(registry([quick("quick")]), with_limits(limits), Arc::new(manual_clock())).await;
    let client = server.client();
    let session = LegacySession::declaring(&server, json!({})).await;
    for response in [
        client.raw("tools/call", call("quick")).await,
        client.raw("subscriptions/listen", json!({"notifications": {"toolsListChanged": true}})).await,
        session.raw("tools/call", call("quick")).await,
    ] {
        let answer = response.json();
        let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {answer}"));
        let seen = (response.status, response.header("retry-after"), &answer["error"]["code"]);
        assert_eq!(seen, (503, Some("1"), &json!(-31002)), "{message}");
        assert!(message.contains("`limits.memory_bytes`"), "{message}");
    }
    let list = client.bytes(b"GET /api/tasks HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert_eq!((list.status, list.header("retry-after")), (503, Some("1")), "tasks are read for it");
    client.ok("tools/list", json!({})).await;
    assert_eq!(session.raw("tools/list", json!({})).await.status, 200, "what takes no memory for long is answered");
}
