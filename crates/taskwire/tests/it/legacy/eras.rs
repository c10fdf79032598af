//! One task, two eras: whatever era made it, its caller reads, follows, answers and cancels it in either. Shape, status and
//! errors are those of the era of the request.

use std::sync::Arc;

use serde_json::{Value, json};
use taskwire::{
    server::Config,
    tool::{TaskMode, ToolError},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
};

use crate::{
    kit::{TestServer, manual_clock, read_head, with_timeout},
    legacy::{
        kit::{LATEST, LegacySession, Sse, session_of},
        partials::{next_partial, prime, streaming},
        tasks::{awaiting, id_of, listed, refusal, related, story, until_is},
    },
    tasks::{Gate, accept, name_form, name_in, quick, registry, two_callers},
    tool_harness::{READ, ToolHarness, ToolRun, follow, next_briefs, not_found, page, read, rest, text_of},
};

const ERAS: [Era; 2] = [Era::Legacy, Era::Modern];

/// Which era makes a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Era {
    Legacy,
    Modern,
}

/// A server with a task of one era, and its caller in both.
struct Scene {
    harness: ToolHarness,
    legacy: LegacySession,
    id: String,
    run: ToolRun,
}

impl Scene {
    async fn of(era: Era) -> Self {
        let mut harness = ToolHarness::new().await;
        let legacy = LegacySession::declaring(&harness.server, streaming()).await;
        let (id, run) = match era {
            Era::Legacy => (legacy.start("writes", json!({})).await, harness.run().await),
            Era::Modern => harness.task().await,
        };
        Self { harness, legacy, id, run }
    }

    /// A `tasks/result` of the legacy era that waits for the task.
    async fn awaited(&self) -> Sse {
        let mut events = awaiting(&self.legacy, &self.id).await;
        prime(&mut events).await;
        events
    }

    /// Asks for a name, and gives the answer when it is there.
    fn asks(&self) -> JoinHandle<Result<String, ToolError>> {
        let ctx = self.run.ctx.clone();
        tokio::spawn(async move { ctx.ask("name", name_form("Name?")).await.map(|answer| name_in(&answer)) })
    }
}

// Reading.

#[tokio::test]
async fn a_task_is_shown_in_the_shape_of_the_era_that_asks() {
    for era in ERAS {
        let mut scene = Scene::of(era).await;
        scene.run.ctx.status("half way").await.expect("said");
        let (new, old) = (scene.harness.client.get(&scene.id).await, scene.legacy.get(&scene.id).await);
        let expected = json!({
            "taskId": new["taskId"], "status": "working", "statusMessage": "half way", "createdAt": new["createdAt"],
            "lastUpdatedAt": new["lastUpdatedAt"], "ttl": new["ttlMs"], "pollInterval": new["pollIntervalMs"],
        });
        assert_eq!(old, expected, "{era:?}");
        assert_eq!((&new["resultType"], new.get("ttl"), new.get("pollInterval")), (&json!("complete"), None, None), "{era:?}");
        scene.run.ends("done");
        let result = scene.legacy.result(&scene.id).await;
        let content = json!([{"type": "text", "text": "done"}]);
        assert_eq!(result, json!({"content": content, "_meta": related(&scene.id)}), "{era:?}");
        let inlined = scene.harness.client.get(&scene.id).await["result"].clone();
        assert_eq!(inlined, json!({"resultType": "complete", "content": content}), "{era:?}");
    }
}

#[tokio::test]
async fn a_result_that_says_error_has_failed_in_one_era_and_completed_in_the_other() {
    for era in ERAS {
        let mut scene = Scene::of(era).await;
        let mut events = scene.awaited().await;
        scene.run.ends_with(Err(ToolError::new("no such file")));
        assert_eq!(story(&events.rest().await), ["failed", "= no such file"], "{era:?}");
        let old = scene.legacy.get(&scene.id).await;
        assert_eq!((&old["status"], &old["statusMessage"]), (&json!("failed"), &json!("no such file")), "{era:?}");
        assert_eq!(scene.legacy.ok("tasks/list", json!({})).await["tasks"][0], old, "{era:?}");
        let new = scene.harness.client.get(&scene.id).await;
        assert_eq!((&new["status"], &new["result"]["isError"]), (&json!("completed"), &json!(true)), "{era:?}");
        assert_eq!(new["statusMessage"], "no such file", "{era:?}");
    }
}

#[tokio::test]
async fn a_result_that_says_error_says_why_in_the_place_of_what_was_said_before() {
    for era in ERAS {
        let mut scene = Scene::of(era).await;
        scene.run.ctx.status("half way").await.expect("said");
        let text = "é".repeat(2000);
        scene.run.ends_with(Err(ToolError::new(&text)));
        let new = with_timeout("the end", scene.harness.client.until(&scene.id, "completed")).await;
        let old = scene.legacy.get(&scene.id).await;
        for task in [&new, &old] {
            let message = task["statusMessage"].as_str().expect("a message");
            assert!(message.len() <= 1024 && message.starts_with("éé") && message.ends_with("é…"), "{era:?}: {message}");
        }
        assert_eq!(new["result"]["content"][0]["text"], text, "the result has all of it");
    }
}

#[tokio::test]
async fn an_error_of_the_protocol_is_the_same_in_both_eras() {
    for era in ERAS {
        let mut scene = Scene::of(era).await;
        scene.run.ends_with(Err(ToolError::protocol(-31_999, "broken")));
        let error = scene.legacy.error("tasks/result", json!({"taskId": scene.id})).await;
        assert_eq!(error, json!({"code": -31_999, "message": "broken"}), "{era:?}");
        let (new, old) = (scene.harness.client.get(&scene.id).await, scene.legacy.get(&scene.id).await);
        assert_eq!((&new["status"], &new["error"]), (&json!("failed"), &error), "{era:?}");
        assert_eq!((&old["status"], &old["statusMessage"]), (&json!("failed"), &json!("broken")), "{era:?}");
    }
}

#[tokio::test]
async fn a_list_has_the_tasks_of_both_eras_and_no_calls_that_are_none() {
    let gate = Gate::new();
    let saves = gate.saves();
    let tools = registry([saves, Gate::new().tool("slow").task(TaskMode::Always)]);
    let server = TestServer::start_with(tools, Config::default(), Arc::new(manual_clock())).await;
    let (legacy, client, plain) = (LegacySession::open(&server).await, server.client(), server.plain_client());
    let mut made = vec![legacy.start("slow", json!({})).await, client.start("slow", json!({})).await];
    let calling = tokio::spawn(async move { plain.call("saves", json!({})).await });
    with_timeout("the start", gate.started.wait()).await;
    assert_eq!(server.server.engine().reader().open_tasks(None, 10).await.expect("readable").len(), 3, "there is one to hide");
    let mut shown = listed(&legacy.ok("tasks/list", json!({})).await);
    made.sort();
    shown.sort();
    assert_eq!(shown, made);
    gate.go.send();
    with_timeout("the result", calling).await.expect("no panic");
}

// Following, cancelling, answering.

#[tokio::test]
async fn a_task_is_followed_in_both_eras_and_cancelled_in_either() {
    for era in ERAS {
        for cancelled_by in ERAS {
            let mut scene = Scene::of(era).await;
            let mut waiting = scene.awaited().await;
            let mut listening = follow(&scene.harness.client, &scene.id, 0).await;
            scene.run.writes("one").await;
            assert_eq!(next_briefs(&mut listening, 2).await, ["working", "0 one"], "{era:?}");
            match cancelled_by {
                Era::Legacy => assert_eq!(scene.legacy.cancel(&scene.id).await["status"], "cancelled"),
                Era::Modern => assert_eq!(scene.harness.client.cancel(&scene.id).await, json!({"resultType": "complete"})),
            }
            with_timeout("the word to stop", scene.run.ctx.cancelled()).await;
            assert_eq!(story(&waiting.rest().await), ["0 one", "cancelled", "error -32603"], "{era:?} {cancelled_by:?}");
            let new = scene.harness.client.get(&scene.id).await;
            let old = scene.legacy.get(&scene.id).await;
            assert_eq!((&new["status"], &old["status"]), (&json!("cancelled"), &json!("cancelled")), "{era:?} {cancelled_by:?}");
            assert!(next_briefs(&mut listening, 1).await[0].starts_with("cancelled"), "{era:?} {cancelled_by:?}");
            scene.harness.server.stop();
            assert_eq!(rest(&mut listening).await, ["end"]);
        }
    }
}

#[tokio::test]
async fn a_task_that_asks_is_answered_in_either_era() {
    for era in ERAS {
        for answered_by in ERAS {
            let mut scene = Scene::of(era).await;
            let mut waiting = scene.awaited().await;
            let asking = scene.asks();
            let question = waiting.until("elicitation/create").await;
            assert_eq!(question["params"]["_meta"], related(&scene.id), "{era:?}");
            let asked = with_timeout("the question", scene.harness.client.until(&scene.id, "input_required")).await;
            let request = &asked["inputRequests"]["name"];
            assert_eq!((&request["method"], &request["params"]["message"]), (&question["method"], &question["params"]["message"]));
            match answered_by {
                Era::Legacy => scene.legacy.answer(&question, accept("Ada")).await,
                Era::Modern => drop(scene.harness.client.answer(&scene.id, json!({"name": accept("Ada")})).await),
            }
            // The other era's answer comes too late, which nobody minds.
            scene.legacy.answer(&question, accept("Eve")).await;
            scene.harness.client.answer(&scene.id, json!({"name": accept("Eve")})).await;
            let name = with_timeout("the answer", asking).await.expect("no panic").expect("an answer");
            scene.run.ends(name);
            let result = waiting.rest().await.pop().expect("a response")["result"].clone();
            assert_eq!(text_of(&result["content"]), "Ada", "{era:?} {answered_by:?}");
            assert_eq!(text_of(&scene.harness.client.get(&scene.id).await["result"]["content"]), "Ada", "{era:?} {answered_by:?}");
        }
    }
}

#[tokio::test]
async fn who_waits_and_cannot_be_asked_waits_for_the_answer_of_another() {
    let mut scene = Scene::of(Era::Modern).await;
    let mute = LegacySession::declaring(&scene.harness.server, json!({})).await;
    let asking = scene.asks();
    until_is(&mute, &scene.id, "input_required").await;
    let mut waiting = awaiting(&mute, &scene.id).await;
    prime(&mut waiting).await;
    scene.harness.client.answer(&scene.id, json!({"name": accept("Ada")})).await;
    scene.run.ends(with_timeout("the answer", asking).await.expect("no panic").expect("an answer"));
    let rest = waiting.rest().await;
    assert!(!rest.iter().any(|message| message["method"] == "elicitation/create"), "{rest:?}");
    assert_eq!(story(&rest).last().map(String::as_str), Some("= Ada"));
}

// Partial results.

#[tokio::test]
async fn partials_of_a_task_come_in_the_way_of_the_era_that_asks() {
    for era in ERAS {
        let mut scene = Scene::of(era).await;
        scene.run.writes("one").await;
        let mut waiting = scene.awaited().await;
        assert_eq!(next_partial(&mut waiting).await["seq"], 0, "{era:?}");
        let mut listening = follow(&scene.harness.client, &scene.id, 0).await;
        scene.run.writes("two").await;
        let pulled = page(&read(&scene.harness.client, &scene.id, json!({"fromSeq": 1})).await);
        assert_eq!(pulled, json!([["1 two"], 1, 2, false]), "{era:?}");
        scene.run.ends("done");
        assert_eq!(story(&waiting.rest().await), ["1 two", "completed", "= done"], "{era:?}");
        assert_eq!(next_briefs(&mut listening, 4).await, ["working", "0 one", "1 two", "completed"], "{era:?}");
        scene.harness.server.stop();
        assert_eq!(rest(&mut listening).await, ["end"], "{era:?}");
    }
}

#[tokio::test]
async fn a_standing_stream_tells_only_of_tasks_that_its_session_made() {
    let mut scene = Scene::of(Era::Modern).await;
    let mut standing = scene.legacy.open_session_stream().await;
    scene.run.writes("one").await;
    scene.run.ctx.status("half way").await.expect("said");
    scene.run.ends("done");
    until_is(&scene.legacy, &scene.id, "completed").await;
    let mine = scene.legacy.start("writes", json!({})).await;
    let mut run = scene.harness.run().await;
    run.writes("mine").await;
    run.ends("done");
    loop {
        let message = standing.next().await.expect("the stream goes on");
        assert_eq!(message["params"]["taskId"], mine, "{message}");
        if message["params"]["status"] == "completed" {
            break;
        }
    }
}

// Errors, callers, connections, versions.

#[tokio::test]
async fn errors_are_those_of_the_era_that_asks() {
    let server = TestServer::start(registry([quick("quick").task(TaskMode::Always)])).await;
    let (legacy, client) = (LegacySession::open(&server).await, server.client());
    for id in [legacy.start("quick", json!({})).await, client.start("quick", json!({})).await] {
        legacy.result(&id).await;
        assert_eq!(client.cancel(&id).await, json!({"resultType": "complete"}), "what has ended");
        assert_eq!(refusal(&legacy, "tasks/cancel", json!({"taskId": id})).await, -32602);
        for method in ["tasks/result", "tasks/list", "ping"] {
            let refused = client.raw(method, json!({"taskId": id})).await;
            assert_eq!((refused.status, refused.code()), (404, -32601), "{method}");
        }
        for method in ["tasks/update", "subscriptions/listen", "server/discover", READ] {
            let params = json!({"taskId": id, "inputResponses": {}, "notifications": {"taskIds": [id]}});
            assert_eq!(refusal(&legacy, method, params).await, -32601, "{method}");
        }
        let refused = server.plain_client().raw("tasks/get", json!({"taskId": id})).await;
        assert_eq!((refused.status, refused.code()), (400, -32021), "each request of the modern era declares what it needs");
    }
    let unknown = "0".repeat(32);
    for id in [&*unknown, "nonsense"] {
        for method in ["tasks/get", "tasks/cancel"] {
            assert_eq!(client.error(method, json!({"taskId": id})).await, not_found(), "{method} {id}");
            assert_eq!(legacy.error(method, json!({"taskId": id})).await, not_found(), "{method} {id}");
        }
    }
}

#[tokio::test]
async fn another_callers_task_is_not_there_in_either_era() {
    let tools = registry([Gate::new().tool("slow").task(TaskMode::Always)]);
    let server = TestServer::start_with(tools, two_callers(), Arc::new(manual_clock())).await;
    let (ann, bob) = (session_of(&server, "ann-token").await, session_of(&server, "bob-token").await);
    let (new_ann, new_bob) = (server.client().with_token("ann-token"), server.client().with_token("bob-token"));
    let (hers, his) = (ann.start("slow", json!({})).await, new_bob.start("slow", json!({})).await);
    for method in ["tasks/get", "tasks/cancel"] {
        assert_eq!(new_bob.error(method, json!({"taskId": hers})).await, not_found(), "{method}");
    }
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        assert_eq!(ann.error(method, json!({"taskId": his})).await, not_found(), "{method}");
    }
    let ack = new_bob.listen(json!({"taskIds": [hers, his]})).await.ack;
    assert_eq!(ack["params"]["notifications"]["taskIds"], json!([his]));
    assert_eq!(listed(&ann.ok("tasks/list", json!({})).await), [&*hers]);
    assert_eq!(listed(&bob.ok("tasks/list", json!({})).await), [&*his]);
    assert_eq!(new_ann.get(&hers).await["status"], "working");
    assert_eq!(bob.get(&his).await["status"], "working");
}

/// Sends a request on a connection that stays open, and gives the status and the message of its answer.
async fn exchange(connection: &mut TcpStream, headers: &[(String, String)], message: &Value) -> (u16, Value) {
    let body = message.to_string();
    let lines: String = headers.iter().map(|(key, value)| format!("{key}: {value}\r\n")).collect();
    let text = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n{lines}\r\n{body}", body.len());
    connection.write_all(text.as_bytes()).await.expect("writable");
    let mut buffer = Vec::new();
    let (status, headers) = with_timeout("the head of the response", read_head(connection, &mut buffer)).await;
    let length = headers.iter().find(|(key, _)| key == "content-length").and_then(|(_, value)| value.parse::<usize>().ok());
    let length = length.expect("a length");
    while buffer.len() < length {
        let n = with_timeout("the response", connection.read_buf(&mut buffer)).await.expect("readable");
        assert!(n > 0, "the body ended early");
    }
    assert_eq!(buffer.len(), length, "one answer to one request");
    (status, serde_json::from_slice(&buffer).expect("JSON"))
}

#[tokio::test]
async fn one_connection_serves_both_eras() {
    let server = TestServer::start(registry([Gate::new().tool("slow").task(TaskMode::Always)])).await;
    let (legacy, client) = (LegacySession::open(&server).await, server.client());
    let mut connection = TcpStream::connect(("127.0.0.1", server.port)).await.expect("a connection");
    let (mut old_ids, mut new_ids) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let call = json!({"name": "slow", "arguments": {}, "task": {}});
        let message = legacy.message(legacy.next_id(), "tools/call", call.clone());
        let (status, answer) = exchange(&mut connection, &legacy.headers(), &message).await;
        assert_eq!((status, &answer["id"]), (200, &message["id"]), "{answer}");
        old_ids.push(id_of(&answer["result"]));
        let message = client.message(client.next_id(), "tools/call", call);
        let (status, answer) = exchange(&mut connection, &client.headers(&message), &message).await;
        assert_eq!((status, &answer["id"], &answer["result"]["resultType"]), (200, &message["id"], &json!("task")), "{answer}");
        new_ids.push(answer["result"]["taskId"].as_str().expect("an id").to_owned());
    }
    for (old, new) in old_ids.iter().zip(&new_ids) {
        let message = client.message(client.next_id(), "tasks/get", json!({"taskId": old}));
        let (status, answer) = exchange(&mut connection, &client.headers(&message), &message).await;
        assert_eq!((status, &answer["result"]["taskId"], answer["result"].get("ttlMs").is_some()), (200, &json!(old), true), "{answer}");
        let message = legacy.message(legacy.next_id(), "tasks/get", json!({"taskId": new}));
        let (status, answer) = exchange(&mut connection, &legacy.headers(), &message).await;
        assert_eq!((status, &answer["result"]["taskId"], answer["result"].get("ttl").is_some()), (200, &json!(new), true), "{answer}");
    }
}

#[tokio::test]
async fn tasks_are_declared_to_clients_of_the_version_that_has_them() {
    let server = TestServer::start(registry([])).await;
    let declared = async |version: &str| {
        let legacy = LegacySession::of(server.port, None, version, json!({})).await;
        legacy.init()["capabilities"].get("tasks").cloned()
    };
    assert_eq!(declared(LATEST).await, Some(json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}})));
    for older in ["2025-06-18", "2025-03-26"] {
        assert_eq!(declared(older).await, None, "{older}");
    }
    let modern = server.client().ok("server/discover", json!({})).await;
    assert_eq!(modern["capabilities"].get("tasks"), None, "there it is an extension");
}

#[tokio::test]
async fn older_versions_ignore_the_parameter_and_have_no_methods_for_tasks() {
    let server = TestServer::start(registry([quick("quick"), quick("never").task(TaskMode::Never)])).await;
    let id = LegacySession::open(&server).await.start("quick", json!({})).await;
    for older in ["2025-06-18", "2025-03-26"] {
        let legacy = LegacySession::of(server.port, None, older, json!({})).await;
        for (tool, task) in [("quick", json!({})), ("quick", json!({"ttl": -1})), ("quick", json!(5)), ("never", json!({}))] {
            let result = legacy.task(tool, json!({}), task).await;
            assert_eq!((text_of(&result["content"]), result.get("task")), ("done".to_owned(), None), "{older} {tool}");
        }
        for method in ["tasks/get", "tasks/result", "tasks/list", "tasks/cancel"] {
            assert_eq!(refusal(&legacy, method, json!({"taskId": id})).await, -32601, "{older} {method}");
        }
        let tools = legacy.ok("tools/list", json!({})).await;
        assert!(!tools.to_string().contains("execution"), "{older}: {tools}");
    }
}
