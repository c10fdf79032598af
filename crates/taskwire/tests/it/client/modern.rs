//! What a client of the modern era sends, and what it makes of the answers: results, rounds, errors, headers, tools.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use taskwire::client::{
    Answer, Client, ClientCapabilities, Era, Error, Event, Limits, Options, Outcome, Question, QuestionKind, Status, TaskSupport,
    answer_with,
};

use super::script::{
    CAPABILITIES, CLIENT_INFO, IDEMPOTENCY, KEY, LIST, LISTEN, MS, SERVER_INFO, ScriptedServer, VERSION, all, asking, brief, call_job,
    complete, completed, created, decoded, discover_result, end, everything, form, job, last, next, next_briefs, rest, round, start_job,
    task, text, text_result, tool_list, while_waiting, with_members,
};
use crate::kit::{PARTIALS, TASKS, with_timeout};

/// The error of a call that `answer` is the answer to.
async fn refused(script: &ScriptedServer, client: &Client, answer: Value) -> Error {
    let (outcome, ()) = call_job(client, json!({}), script.answers("tools/call", answer)).await;
    outcome.expect_err("an error")
}

/// Who is not to be asked.
async fn nobody(input: Question) -> Answer {
    panic!("{} is not a question for anybody", input.key)
}

// What every request says about itself (digest B2); the kit checks each one besides.

#[tokio::test]
async fn every_request_says_who_sends_it_and_what_it_can_do() {
    let script = ScriptedServer::start().await;
    let headers = vec![("X-Team".to_owned(), "blue".to_owned())];
    let options = Options { name: "tester".to_owned(), version: "9.8".to_owned(), headers, ..script.options() };
    let connecting = async {
        let asked = script.expect("server/discover").await;
        let message = asked.message.clone();
        assert_eq!(asked.header("x-team"), Some("blue"));
        asked.result(discover_result(everything())).await;
        message
    };
    let (client, discover) = tokio::join!(script.connects(options), connecting);
    let client = client.expect("a connection");
    let call = async {
        let asked = script.expect("tools/call").await;
        let message = asked.message.clone();
        assert_eq!(asked.header("x-team"), Some("blue"));
        asked.result(text_result("done")).await;
        message
    };
    let (_, call) = call_job(&client, json!({}), call).await;
    for message in [&discover, &call] {
        let meta = &message["params"]["_meta"];
        assert_eq!(meta[VERSION], "2026-07-28");
        assert_eq!(meta[CLIENT_INFO], json!({"name": "tester", "version": "9.8"}));
        let extensions = json!({TASKS: {}, PARTIALS: {}, IDEMPOTENCY: {}, LIST: {}});
        assert_eq!(meta[CAPABILITIES], json!({"elicitation": {"form": {}, "url": {}}, "extensions": extensions}));
    }
    assert!(call["params"]["_meta"][KEY].as_str().is_some_and(|key| key.len() >= 16), "{call}");
    assert!(!call["params"]["_meta"]["progressToken"].is_null(), "{call}");
}

#[tokio::test]
async fn what_can_be_asked_is_what_is_declared() {
    let script = ScriptedServer::start().await;
    let asks = ClientCapabilities { form: false, url: false, sampling: true, roots: Some(Vec::new()) };
    let client = script.client_with(Options { capabilities: asks, ..script.options() }, everything()).await;
    let call = async {
        let asked = script.expect("tools/call").await;
        let mut declared = asked.meta()[CAPABILITIES].clone();
        declared.as_object_mut().expect("an object").remove("extensions");
        assert_eq!(declared, json!({"sampling": {}, "roots": {}}));
        asked.result(text_result("done")).await;
    };
    call_job(&client, json!({}), call).await.0.expect("a result");
}

#[tokio::test]
async fn who_wants_no_partials_neither_declares_them_nor_asks_for_them() {
    let script = ScriptedServer::start().await;
    let client = script.client_with(Options { stream_output: false, ..script.options() }, everything()).await;
    let playing = async {
        let asked = script.expect("tools/call").await;
        assert_eq!(asked.meta()[CAPABILITIES]["extensions"], json!({TASKS: {}, IDEMPOTENCY: {}, LIST: {}}));
        asked.result(created("t1")).await;
    };
    let (mut call, ()) = start_job(&client, playing).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    let mut listen = while_waiting(&mut call, script.listen()).await;
    assert_eq!(listen.wanted, json!({"taskIds": ["t1"]}));
    listen.task(completed("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
}

#[tokio::test]
async fn who_was_offered_no_partials_asks_for_none() {
    let script = ScriptedServer::start().await;
    let client = script.client_with(script.options(), json!({TASKS: {}})).await;
    assert!(!client.server_info().pushes_output);
    let (mut call, mut listen) = script.watched(&client, "t1").await;
    assert_eq!(listen.wanted, json!({"taskIds": ["t1"]}));
    listen.task(completed("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
}

#[tokio::test]
async fn what_a_task_says_when_it_is_made_is_told_once() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let thinking = with_members(created("t1"), json!({"statusMessage": "thinking"}));
    let (mut call, ()) = start_job(&client, script.answers("tools/call", thinking)).await;
    for expected in ["task t1", "working: thinking"] {
        assert_eq!(brief(&next(&mut call).await.expect("an event")), expected);
    }
    let mut listen = while_waiting(&mut call, script.listen()).await;
    listen.task(with_members(task("t1", "working"), json!({"statusMessage": "thinking"}))).await;
    listen.task(completed("t1", "done")).await;
    assert_eq!(all(&mut call).await, ["done: done"]);
}

#[tokio::test]
async fn ids_are_whole_numbers_from_1_and_never_used_again() {
    let script = ScriptedServer::start().await;
    script.stop_answering("tools/list");
    let mut ids = Vec::new();
    let mut seen = |id: &Value| ids.push(id.as_u64().expect("a whole number"));
    let connecting = async {
        let asked = script.expect("server/discover").await;
        seen(asked.id());
        asked.result(discover_result(everything())).await;
    };
    let client = tokio::join!(script.connects(script.options()), connecting).0.expect("a connection");
    let listing = async {
        let asked = script.expect("tools/list").await;
        seen(asked.id());
        asked.result(tool_list(json!([job()]))).await;
    };
    tokio::join!(client.tools(), listing).0.expect("tools");
    for _ in 0..3 {
        let call = async {
            let asked = script.expect("tools/call").await;
            seen(asked.id());
            asked.result(text_result("done")).await;
        };
        call_job(&client, json!({}), call).await.0.expect("a result");
    }
    assert_eq!(ids[0], 1);
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");
}

// Who the server is.

#[tokio::test]
async fn a_server_is_what_its_discovery_says() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let peer = client.server_info();
    assert_eq!((peer.era, peer.protocol.as_str()), (Era::Modern, "2026-07-28"));
    assert_eq!((peer.name.as_str(), peer.version.as_str(), peer.instructions.as_deref()), ("scripted", "1.2.3", Some("Be kind.")));
    assert!(peer.tasks && peer.pushes_output && peer.idempotency, "{:?}", peer.capabilities);
    assert_eq!(peer.capabilities["tools"], json!({"listChanged": true}));
}

#[tokio::test]
async fn a_server_may_say_its_name_beside_the_result_or_not_at_all() {
    for (info, name) in [(json!({"name": "beside", "version": "1"}), "beside"), (Value::Null, "")] {
        let script = ScriptedServer::start().await;
        let result = with_members(discover_result(json!({})), json!({"_meta": null, "instructions": null, "serverInfo": info}));
        let (client, ()) = tokio::join!(script.connects(script.options()), script.answers("server/discover", result));
        let peer = client.expect("a connection").server_info();
        assert_eq!(peer.name, name);
        assert!(peer.instructions.is_none() && !peer.tasks && !peer.pushes_output && !peer.idempotency);
    }
}

// Results (digest B4).

#[tokio::test]
async fn a_result_comes_whatever_the_server_chose() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let direct = script.answers("tools/call", text_result("direct"));
    assert_eq!(end(&call_job(&client, json!({}), direct).await.0.expect("a result")), "done: direct");
    let as_task = async {
        script.answers("tools/call", created("t1")).await;
        let mut listen = script.listen().await;
        listen.task(completed("t1", "as a task")).await;
        listen
    };
    assert_eq!(end(&call_job(&client, json!({}), as_task).await.0.expect("a result")), "done: as a task");
    let in_rounds = async {
        script.answers("tools/call", round(Value::Null, Some("s"))).await;
        script.answers("tools/call", text_result("in rounds")).await;
    };
    assert_eq!(end(&call_job(&client, json!({}), in_rounds).await.0.expect("a result")), "done: in rounds");
}

#[tokio::test]
async fn a_result_is_read_whole() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let result = json!({"resultType": "complete", "content": [text("a"), {"type": "image", "data": "eA==", "mimeType": "image/png"}, text("b")],
        "structuredContent": [1, {"two": 3}], "isError": true, "_meta": {"own/key": 1}});
    let (outcome, ()) = call_job(&client, json!({}), script.answers("tools/call", result.clone())).await;
    let Outcome::Result(finished) = outcome.expect("a result") else { panic!("not a result") };
    assert_eq!((finished.text().as_str(), finished.is_error, finished.content.len()), ("ab", true, 3));
    assert_eq!(finished.structured, Some(json!([1, {"two": 3}])));
    assert_eq!(finished.raw.read::<Value>().expect("JSON")["_meta"], result["_meta"]);
}

#[tokio::test]
async fn a_result_without_a_type_is_complete() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let result = with_members(text_result("done"), json!({"resultType": null}));
    let (outcome, ()) = call_job(&client, json!({}), script.answers("tools/call", result)).await;
    assert_eq!(end(&outcome.expect("a result")), "done: done");
}

#[tokio::test]
async fn a_result_of_an_unknown_type_is_invalid() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let error = refused(&script, &client, with_members(text_result("done"), json!({"resultType": "later"}))).await;
    assert!(matches!(&error, Error::Protocol { reason, .. } if reason.contains("later")), "{error:?}");
}

#[tokio::test]
async fn a_task_is_valid_as_the_answer_to_a_call_alone() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    script.stop_answering("tools/list");
    let (tools, ()) = tokio::join!(client.tools(), script.answers("tools/list", created("t1")));
    let error = tools.expect_err("no list");
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
    let (cancelled, ()) = tokio::join!(client.cancel("t1"), script.answers("tasks/cancel", created("t1")));
    let error = cancelled.expect_err("no acknowledgement");
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
}

#[tokio::test]
async fn a_round_is_valid_as_the_answer_to_a_call_alone() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    script.stop_answering("tools/list");
    let asks = round(json!({"name": form("Name?")}), Some("s"));
    let (tools, ()) = tokio::join!(client.tools(), script.answers("tools/list", asks.clone()));
    let error = tools.expect_err("no list");
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
    let (snapshot, ()) = tokio::join!(client.task("t1"), script.answers("tasks/get", asks));
    let error = snapshot.expect_err("no state");
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
}

#[tokio::test]
async fn a_task_that_nobody_can_find_again_is_invalid() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    for broken in [json!({"taskId": null}), json!({"taskId": 7}), json!({"status": null}), json!({"status": "asleep"})] {
        let error = refused(&script, &client, with_members(created("t1"), broken.clone())).await;
        assert!(matches!(error, Error::Protocol { .. }), "{broken}: {error:?}");
    }
}

// Answers as JSON and as events (digest B7).

#[tokio::test]
async fn a_held_call_tells_its_progress_and_its_log() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let playing = async {
        let asked = script.expect("tools/call").await;
        let token = asked.meta()["progressToken"].clone();
        let mut sse = asked.sse().await;
        sse.comment().await;
        sse.notify("notifications/progress", json!({"progressToken": "somebody else's", "progress": 9})).await;
        sse.notify("notifications/progress", json!({"progressToken": token, "progress": 1, "total": 2, "message": "half"})).await;
        (sse, token)
    };
    let (mut call, (mut sse, token)) = start_job(&client, playing).await;
    assert!(call.reference().is_none(), "it is no task");
    sse.notify("notifications/message", json!({"level": "info", "data": "hello"})).await;
    sse.notify("notifications/progress", json!({"progressToken": token, "progress": 2})).await;
    sse.result(text_result("done")).await;
    assert_eq!(all(&mut call).await, ["progress 1 of 2: half", "log \"hello\"", "progress 2", "done: done"]);
}

#[tokio::test]
async fn events_are_read_in_whatever_pieces_and_lines_they_come() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    for (n, ends) in ["\n", "\r\n", "\r"].into_iter().enumerate() {
        let call = async {
            let asked = script.expect("tools/call").await;
            let answer = json!({"jsonrpc": "2.0", "id": asked.id(), "result": text_result(&format!("é {n}"))}).to_string();
            let (front, back) = answer.split_at(1);
            // A mark at the beginning, a comment, fields nobody knows, and data on two lines.
            let stream =
                format!("\u{feff}: hello\nevent: message\nfoo: bar\nretry: soon\ndata: {front}\ndata:{back}\n\n").replace('\n', ends);
            let mut sse = asked.sse().await;
            for byte in stream.as_bytes() {
                sse.raw(&[*byte]).await;
            }
            sse.end().await;
        };
        assert_eq!(end(&call_job(&client, json!({}), call).await.0.expect("a result")), format!("done: é {n}"));
    }
}

#[tokio::test]
async fn answers_to_other_requests_are_passed_over() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let call = async {
        let asked = script.expect("tools/call").await;
        let mut sse = asked.sse().await;
        sse.event(json!({"jsonrpc": "2.0", "id": 999_999, "result": text_result("of somebody else")})).await;
        sse.event(json!({"jsonrpc": "2.0", "id": sse.id.to_string(), "result": text_result("of a text")})).await;
        sse.result(text_result("mine")).await;
    };
    assert_eq!(end(&call_job(&client, json!({}), call).await.0.expect("a result")), "done: mine");
}

#[tokio::test]
async fn the_answer_ends_the_call_whether_or_not_the_stream_ends() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let call = async {
        let mut sse = script.expect("tools/call").await.sse().await;
        let answer = json!({"jsonrpc": "2.0", "id": sse.id, "result": text_result("done")});
        sse.event(answer).await;
        sse.closed().await;
    };
    assert_eq!(end(&call_job(&client, json!({}), call).await.0.expect("a result")), "done: done");
}

#[tokio::test]
async fn a_session_that_a_modern_server_names_is_ignored() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    for _ in 0..2 {
        let call = async {
            let asked = script.expect("tools/call").await;
            assert_eq!(asked.header("mcp-session-id"), None);
            assert_eq!(asked.last_event_id(), None);
            asked.with("Mcp-Session-Id", "s1").result(text_result("done")).await;
        };
        call_job(&client, json!({}), call).await.0.expect("a result");
    }
}

// Errors (digest B4, C-23, C-29, C-51).

#[tokio::test]
async fn an_error_is_read_whatever_the_http_status() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    for status in [200, 400, 404, 422, 500] {
        let call = async { script.expect("tools/call").await.error(status, -32602, "no such tool", json!({"tool": "job"})).await };
        let error = call_job(&client, json!({}), call).await.0.expect_err("an error");
        let Error::Rpc(error) = error else { panic!("{status}: {error:?}") };
        assert_eq!((error.code, error.message.as_str()), (-32602, "no such tool"), "{status}");
        assert_eq!(error.data.expect("data").read::<Value>().expect("JSON"), json!({"tool": "job"}), "{status}");
    }
    let call = async { script.expect("tools/call").await.sse().await.error(-32603, "as an event", Value::Null).await };
    let error = call_job(&client, json!({}), call).await.0.expect_err("an error");
    assert!(matches!(&error, Error::Rpc(error) if error.code == -32603 && error.data.is_none()), "{error:?}");
}

#[tokio::test]
async fn an_error_without_an_id_is_the_answer_it_came_as() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    for id in [json!({"id": null}), json!({})] {
        let mut body = json!({"jsonrpc": "2.0", "error": {"code": -32600, "message": "unreadable"}});
        if let Some(id) = id.get("id") {
            body["id"] = id.clone();
        }
        let call = async { script.expect("tools/call").await.json(400, body).await };
        let error = call_job(&client, json!({}), call).await.0.expect_err("an error");
        assert!(matches!(&error, Error::Rpc(error) if error.code == -32600), "{error:?}");
    }
}

#[tokio::test]
async fn a_refusal_that_is_no_message_is_told_with_its_status() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    for (status, kind, body) in
        [(404, "text/html", "<html>not here</html>"), (500, "text/plain", "out of order"), (418, "application/json", "[")]
    {
        let call = async { script.expect("tools/call").await.text(status, kind, body).await };
        let error = call_job(&client, json!({}), call).await.0.expect_err("an error");
        let Error::Refused { status: expected, reason, server } = error else { panic!("{status}: {error:?}") };
        assert_eq!((expected, server), (status, script.url()));
        assert!(!reason.contains('<'), "{reason}");
    }
}

#[tokio::test]
async fn a_missing_capability_is_known_by_its_data_whatever_its_code() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let data = json!({"requiredCapabilities": {"sampling": {}, "extensions": {"com.example/more": {}}}});
    for (status, code) in [(400, -32021), (200, -32003), (400, -32003)] {
        let call = async { script.expect("tools/call").await.error(status, code, "more is needed", data.clone()).await };
        let error = call_job(&client, json!({}), call).await.0.expect_err("an error");
        assert!(
            matches!(&error, Error::Capability { needed, .. } if needed.contains("sampling") && needed.contains("com.example/more")),
            "{code}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_code_of_a_draft_without_the_data_means_nothing() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    for code in [-32001, -32003, -32004] {
        let call = async { script.expect("tools/call").await.error(400, code, "whatever", Value::Null).await };
        let error = call_job(&client, json!({}), call).await.0.expect_err("an error");
        assert!(matches!(&error, Error::Rpc(error) if error.code == code), "{error:?}");
    }
}

#[tokio::test]
async fn a_version_that_is_no_longer_spoken_is_known_by_its_data() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    for code in [-32022, -32004] {
        let data = json!({"supported": ["2027-01-01"], "requested": "2026-07-28"});
        let call = async { script.expect("tools/call").await.error(400, code, "another version, please", data).await };
        let error = call_job(&client, json!({}), call).await.0.expect_err("an error");
        assert!(matches!(&error, Error::Version { supported, .. } if supported == "2027-01-01"), "{code}: {error:?}");
    }
}

#[tokio::test]
async fn a_task_that_is_not_there_is_not_found() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    for status in [200, 400] {
        let get = async { script.expect("tasks/get").await.error(status, -32602, "Task not found", Value::Null).await };
        let error = tokio::join!(client.task("t9"), get).0.expect_err("an error");
        assert!(matches!(&error, Error::TaskNotFound { task } if task == "t9"), "{error:?}");
        let cancel = async { script.expect("tasks/cancel").await.error(status, -32602, "Task not found", Value::Null).await };
        let error = tokio::join!(client.cancel("t9"), cancel).0.expect_err("an error");
        assert!(matches!(&error, Error::TaskNotFound { task } if task == "t9"), "{error:?}");
    }
}

// One look at a task (digest B15.2).

#[tokio::test]
async fn a_look_at_a_task_tells_what_its_server_says() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let look = async |state: Value| {
        let get = async {
            let asked = script.expect("tasks/get").await;
            assert_eq!(asked.params()["taskId"], "t1");
            asked.result(complete(state)).await;
        };
        with_timeout("the look", async { tokio::join!(client.task("t1"), get).0 }).await
    };
    let state = with_members(task("t1", "working"), json!({"statusMessage": "half way", "pollIntervalMs": null}));
    let snapshot = look(state).await.expect("a view");
    assert_eq!((snapshot.id.as_str(), snapshot.status, snapshot.message.as_deref()), ("t1", Status::Working, Some("half way")));
    assert_eq!((snapshot.created_at.as_str(), snapshot.updated_at.as_str()), ("2026-07-28T00:00:00.000Z", "2026-07-28T00:00:00.000Z"));
    assert_eq!((snapshot.ttl_ms, snapshot.poll_ms), (Some(3_600_000), None));
    assert!(snapshot.outcome.is_none() && snapshot.questions.is_empty());
    assert_eq!(snapshot.raw["statusMessage"], "half way");
    let mut for_ever = task("t1", "working");
    for_ever["ttlMs"] = Value::Null;
    let snapshot = look(for_ever).await.expect("a view");
    assert_eq!((snapshot.ttl_ms, snapshot.poll_ms), (None, Some(1_000)));
    let snapshot = look(asking("t1", json!({"a": form("A?"), "b": form("B?")}))).await.expect("a view");
    let keys: Vec<&str> = snapshot.questions.iter().map(|input| input.key.as_str()).collect();
    assert_eq!((snapshot.status, keys), (Status::InputRequired, vec!["a", "b"]));
    let snapshot = look(completed("t1", "done")).await.expect("a view");
    assert_eq!(snapshot.outcome.as_ref().map(end).as_deref(), Some("done: done"));
    let snapshot = look(with_members(task("t1", "failed"), json!({"error": {"code": -32603, "message": "broken"}}))).await.expect("a view");
    assert_eq!(snapshot.outcome.as_ref().map(end).as_deref(), Some("failed: -32603 broken"));
    let snapshot = look(with_members(task("t1", "cancelled"), json!({"statusMessage": "enough"}))).await.expect("a view");
    assert_eq!(snapshot.outcome.as_ref().map(end).as_deref(), Some("cancelled: enough"));
}

#[tokio::test]
async fn a_state_that_lacks_what_its_status_promises_is_invalid() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    for status in ["completed", "failed", "input_required", "asleep"] {
        let get = script.answers("tasks/get", complete(task("t1", status)));
        let error = tokio::join!(client.task("t1"), get).0.expect_err("an error");
        assert!(matches!(error, Error::Protocol { .. }), "{status}: {error:?}");
    }
}

// Rounds (digest B5).

#[tokio::test]
async fn a_round_is_answered_under_a_new_id_with_the_state_as_it_came() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let state = "\u{1f600} é \"quoted\" \\ +/= \n end ";
    let asked = async |answer: Value| {
        let asked = script.expect("tools/call").await;
        let message = asked.message.clone();
        asked.result(answer).await;
        message
    };
    let (mut call, first) = start_job(&client, asked(round(json!({"name": form("Name?")}), Some(state)))).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["asks name: Name?"]);
    let answering = call.answer("name", Answer::accept(json!({"name": "Ada"})));
    let (answered, second) = with_timeout("the second call", async { tokio::join!(answering, asked(text_result("Hello, Ada"))) }).await;
    answered.expect("an answer");
    assert_ne!(second["id"], first["id"]);
    for member in ["name", "arguments"] {
        assert_eq!(second["params"][member], first["params"][member], "{member}");
    }
    assert!(first["params"].get("inputResponses").is_none() && first["params"].get("requestState").is_none(), "{first}");
    assert_eq!(second["params"]["inputResponses"], json!({"name": {"action": "accept", "content": {"name": "Ada"}}}));
    assert_eq!(second["params"]["requestState"], state);
    assert_eq!(last(&mut call).await, "done: Hello, Ada");
}

#[tokio::test]
async fn a_state_that_was_not_given_is_not_sent() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let first = script.answers("tools/call", round(json!({"name": form("Name?")}), None));
    let (mut call, ()) = start_job(&client, first).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["asks name: Name?"]);
    let second = async {
        let asked = script.expect("tools/call").await;
        assert!(asked.params().get("requestState").is_none(), "{asked:?}");
        assert!(asked.params().get("inputResponses").is_some(), "{asked:?}");
        // This state replaces the one that there was not; with nothing to ask, the call is made again at once.
        asked.result(round(Value::Null, Some("two"))).await;
        let asked = script.expect("tools/call").await;
        assert_eq!(asked.params()["requestState"], "two");
        assert!(asked.params().get("inputResponses").is_none(), "what was answered is not sent again: {asked:?}");
        asked.result(text_result("done")).await;
    };
    let answering = call.answer("name", Answer::accept(json!({"name": "Ada"})));
    with_timeout("the rounds", async { tokio::join!(answering, second) }).await.0.expect("an answer");
    assert_eq!(last(&mut call).await, "done: done");
}

#[tokio::test]
async fn a_round_waits_for_all_its_answers() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let questions = json!({"a": form("A?"), "b": form("B?")});
    let (mut call, ()) = start_job(&client, script.answers("tools/call", round(questions, Some("s")))).await;
    assert_eq!(next_briefs(&mut call, 2).await, ["asks a: A?", "asks b: B?"]);
    with_timeout("the first answer", call.answer("a", Answer::decline())).await.expect("taken");
    script.is_quiet();
    let second = async {
        let asked = script.expect("tools/call").await;
        let expected = json!({"a": {"action": "decline"}, "b": {"action": "accept", "content": {"name": "Bo"}}});
        assert_eq!(asked.params()["inputResponses"], expected);
        asked.result(text_result("done")).await;
    };
    let answering = call.answer("b", Answer::accept(json!({"name": "Bo"})));
    with_timeout("the second call", async { tokio::join!(answering, second) }).await.0.expect("an answer");
    assert_eq!(last(&mut call).await, "done: done");
}

#[tokio::test]
async fn keys_of_rounds_and_of_the_task_are_different_questions() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let (mut call, ()) = start_job(&client, script.answers("tools/call", round(json!({"k": form("One?")}), Some("1")))).await;
    let answer = |name: &str| Answer::accept(json!({"name": name}));
    let mut asked = Vec::new();
    for (said_before, next_answer) in [("one", round(json!({"k": form("Two?")}), Some("2"))), ("two", created("t1"))] {
        asked.extend(next_briefs(&mut call, 1).await);
        let playing = async {
            let asked = script.expect("tools/call").await;
            assert_eq!(asked.params()["inputResponses"], json!({"k": {"action": "accept", "content": {"name": said_before}}}));
            asked.result(next_answer).await;
        };
        with_timeout("the next call", async { tokio::join!(call.answer("k", answer(said_before)), playing) }).await.0.expect("an answer");
    }
    assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
    let mut listen = while_waiting(&mut call, script.listen()).await;
    listen.task(asking("t1", json!({"k": form("Three?")}))).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["asks k: Three?"]);
    let update = async {
        let asked = script.expect("tasks/update").await;
        assert!(asked.params().get("requestState").is_none(), "the state of a round is not the task's: {asked:?}");
        assert_eq!(asked.params()["inputResponses"], json!({"k": {"action": "accept", "content": {"name": "three"}}}));
        asked.result(json!({"resultType": "complete"})).await;
    };
    with_timeout("the answer", async { tokio::join!(call.answer("k", answer("three")), update) }).await.0.expect("an answer");
    listen.task(completed("t1", "done")).await;
    assert_eq!(last(&mut call).await, "done: done");
    assert_eq!(asked, ["asks k: One?", "asks k: Two?"]);
}

#[tokio::test]
async fn rounds_have_an_end() {
    let script = ScriptedServer::start().await;
    let limits = Limits { rounds: 3, ..Limits::default() };
    let client = script.client_with(Options { limits, ..script.options() }, everything()).await;
    script.always("tools/call", round(Value::Null, Some("for ever")));
    let error = with_timeout("the end", client.call("job", json!({}))).await.expect_err("an error");
    assert!(matches!(error, Error::Limit { max: 3, .. }), "{error:?}");
    assert_eq!(script.count("tools/call"), 4, "the call and three rounds");
}

#[tokio::test]
async fn a_round_without_questions_and_state_is_invalid() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let error = refused(&script, &client, round(Value::Null, None)).await;
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
}

#[tokio::test]
async fn roots_are_told_without_asking_anybody() {
    let script = ScriptedServer::start().await;
    let roots = vec![json!({"uri": "file:///home/ada", "name": "home"})];
    let asks = ClientCapabilities { roots: Some(roots.clone()), ..ClientCapabilities::default() };
    let client = script
        .client_with(Options { capabilities: asks, question_handler: Some(answer_with(nobody)), ..script.options() }, everything())
        .await;
    let rounds = async {
        script.answers("tools/call", round(json!({"r": {"method": "roots/list"}}), Some("s"))).await;
        let asked = script.expect("tools/call").await;
        assert_eq!(asked.params()["inputResponses"], json!({"r": {"roots": roots}}));
        asked.result(text_result("done")).await;
    };
    assert_eq!(end(&call_job(&client, json!({}), rounds).await.0.expect("a result")), "done: done");
}

#[tokio::test]
async fn pages_and_models_are_questions_of_their_own_kind() {
    let script = ScriptedServer::start().await;
    let asks = ClientCapabilities { sampling: true, ..ClientCapabilities::default() };
    let client = script.client_with(Options { capabilities: asks, ..script.options() }, everything()).await;
    let sampling = json!({"messages": [{"role": "user", "content": text("Hi")}], "maxTokens": 10});
    let questions = json!({
        "a": {"method": "elicitation/create", "params": {"mode": "url", "message": "Go there", "url": "https://example.com/x"}},
        "b": {"method": "sampling/createMessage", "params": sampling},
        // Without a mode it is a form.
        "c": {"method": "elicitation/create", "params": {"message": "Fill in", "requestedSchema": {"type": "object", "properties": {}}}},
    });
    let (mut call, ()) = start_job(&client, script.answers("tools/call", round(questions, Some("s")))).await;
    let mut kinds = Vec::new();
    for _ in 0..3 {
        let Some(Event::Question(input)) = next(&mut call).await else { panic!("three questions") };
        kinds.push(match input.kind {
            QuestionKind::Url { url } => format!("{} {} {url}", input.key, input.message),
            QuestionKind::Sampling { params } => format!("{} {}", input.key, params["maxTokens"]),
            QuestionKind::Form { schema } => format!("{} {} {}", input.key, input.message, schema["type"]),
            other => format!("{other:?}"),
        });
    }
    assert_eq!(kinds, ["a Go there https://example.com/x", "b 10", "c Fill in \"object\""]);
    let message = json!({"role": "assistant", "content": text("Ho"), "model": "m", "stopReason": "endTurn"});
    let answering = async {
        call.answer("a", Answer::accept_url()).await?;
        call.answer("b", Answer::result(message.clone())).await?;
        call.answer("c", Answer::cancel()).await
    };
    let second = async {
        let asked = script.expect("tools/call").await;
        let expected = json!({"a": {"action": "accept"}, "b": message, "c": {"action": "cancel"}});
        assert_eq!(asked.params()["inputResponses"], expected);
        asked.result(text_result("done")).await;
    };
    with_timeout("the answers", async { tokio::join!(answering, second) }).await.0.expect("answered");
    assert_eq!(last(&mut call).await, "done: done");
}

// Headers (digest B8).

fn in_region(header: &str) -> Value {
    let place_schema = json!({"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}});
    json!({"name": "job", "inputSchema": {"type": "object", "properties": {
        "region": {"type": "string", "x-mcp-header": header}, "count": {"type": "integer", "x-mcp-header": "Count"},
        "sure": {"type": "boolean", "x-mcp-header": "Sure"}, "place": place_schema, "other": {"type": "string"}}}})
}

#[tokio::test]
async fn arguments_go_into_headers_where_their_tool_says_so() {
    let script = ScriptedServer::start().await;
    script.tools(json!([in_region("Region")]));
    let client = script.client().await;
    for (value, header) in [
        ("us-east 1", Some("us-east 1")),
        ("", Some("")),
        ("Zürich", Some("=?base64?WsO8cmljaA==?=")),
        (" padded ", Some("=?base64?IHBhZGRlZCA=?=")),
        ("two\nlines", Some("=?base64?dHdvCmxpbmVz?=")),
        ("a\tb", Some("=?base64?YQli?=")),
        ("=?base64?eA==?=", Some("=?base64?PT9iYXNlNjQ/ZUE9PT89?=")),
    ] {
        let args = json!({"region": value, "count": -42, "sure": true, "place": {"city": "Ulm"}, "other": "o"});
        let call = async {
            let asked = script.expect("tools/call").await;
            assert_eq!(asked.header("mcp-param-region"), header, "{value:?}");
            assert_eq!(asked.header("mcp-param-region").map(decoded).as_deref(), Some(value));
            assert_eq!(asked.header("mcp-param-count"), Some("-42"));
            assert_eq!(asked.header("mcp-param-sure"), Some("true"));
            assert_eq!(asked.header("mcp-param-city"), Some("Ulm"));
            assert_eq!(asked.headers.iter().filter(|(name, _)| name.starts_with("mcp-param-")).count(), 4);
            assert_eq!(asked.params()["arguments"], args);
            asked.result(text_result("done")).await;
        };
        call_job(&client, args.clone(), call).await.0.expect("a result");
    }
}

#[tokio::test]
async fn what_is_null_or_not_there_has_no_header_and_stays_as_it_is() {
    let script = ScriptedServer::start().await;
    script.tools(json!([in_region("Region")]));
    let client = script.client().await;
    let args = json!({"region": null, "place": {"city": null}});
    let call = async {
        let asked = script.expect("tools/call").await;
        assert!(!asked.headers.iter().any(|(name, _)| name.starts_with("mcp-param-")), "{:?}", asked.headers);
        assert_eq!(asked.params()["arguments"], args);
        asked.result(text_result("done")).await;
    };
    call_job(&client, args.clone(), call).await.0.expect("a result");
}

#[tokio::test]
async fn a_name_that_no_header_can_carry_is_coded() {
    let script = ScriptedServer::start().await;
    script.tools(json!([{"name": "größe", "inputSchema": {"type": "object"}}]));
    let client = script.client().await;
    let call = async {
        let asked = script.expect("tools/call").await;
        assert_eq!(asked.header("mcp-name"), Some("=?base64?Z3LDtsOfZQ==?="));
        asked.result(text_result("done")).await;
    };
    with_timeout("the call", async { tokio::join!(client.call("größe", json!({})), call) }).await.0.expect("a result");
}

#[tokio::test]
async fn tools_that_misuse_headers_are_left_out_and_the_others_stay() {
    let script = ScriptedServer::start().await;
    let tool = |name: &str, properties: Value| json!({"name": name, "inputSchema": {"type": "object", "properties": properties}});
    let with = |kind: &str, header: Value| json!({"a": {"type": kind, "x-mcp-header": header}});
    let nested = json!({"type": "string", "x-mcp-header": "A"});
    let bad = [
        tool("empty", with("string", json!(""))),
        tool("a-number", with("string", json!(7))),
        tool("with-a-blank", with("string", json!("My Region"))),
        tool("with-a-colon", with("string", json!("Region:"))),
        tool("with-an-accent", with("string", json!("Région"))),
        tool("with-a-tab", with("string", json!("Re\tgion"))),
        tool("on-a-number", with("number", json!("A"))),
        tool("on-an-object", with("object", json!("A"))),
        tool("on-an-array", with("array", json!("A"))),
        tool("on-null", with("null", json!("A"))),
        tool("twice", json!({"a": {"type": "string", "x-mcp-header": "A"}, "b": {"type": "string", "x-mcp-header": "a"}})),
        tool("in-items", json!({"a": {"type": "array", "items": nested}})),
        tool("in-any-of", json!({"a": {"anyOf": [{"type": "object", "properties": {"b": nested}}]}})),
    ];
    let mut tools = vec![in_region("Region")];
    tools.extend(bad);
    tools.push(tool("plain", json!({"a": {"type": "number"}})));
    script.tools(Value::Array(tools));
    let client = script.client().await;
    let listed = with_timeout("the list", client.tools()).await.expect("tools");
    let names: Vec<&str> = listed.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["job", "plain"]);
}

#[tokio::test]
async fn after_a_header_mismatch_the_tools_are_read_again_and_the_call_is_made_again() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    with_timeout("the list", client.tools()).await.expect("tools");
    script.tools(json!([in_region("Region")]));
    let listed = script.count("tools/list");
    let calls = async {
        let first = script.expect("tools/call").await;
        assert_eq!(first.header("mcp-param-region"), None);
        let (id, key) = (first.id().clone(), first.meta()[KEY].clone());
        first.error(400, -32020, "Mcp-Param-Region is missing", Value::Null).await;
        let second = script.expect("tools/call").await;
        assert_eq!(second.header("mcp-param-region"), Some("eu"));
        assert_ne!(second.id(), &id);
        assert_eq!(second.meta()[KEY], key);
        second.result(text_result("done")).await;
    };
    let (outcome, ()) = call_job(&client, json!({"region": "eu"}), calls).await;
    assert_eq!(end(&outcome.expect("a result")), "done: done");
    assert_eq!(script.count("tools/list"), listed + 1);
}

#[tokio::test]
async fn a_header_mismatch_that_stays_is_an_error() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let calls = async {
        for _ in 0..2 {
            script.expect("tools/call").await.error(400, -32020, "no", Value::Null).await;
        }
    };
    let error = call_job(&client, json!({}), calls).await.0.expect_err("an error");
    assert!(matches!(&error, Error::Rpc(error) if error.code == -32020), "{error:?}");
}

// Tools (digest B11, B12).

#[tokio::test]
async fn tools_are_listed_to_the_last_page_and_kept_while_they_are_fresh() {
    let script = ScriptedServer::start().await;
    script.stop_answering("tools/list");
    let client = script.client().await;
    let annotations = json!({"readOnlyHint": true});
    let schema = json!({"type": "object", "$defs": {"x": {"$anchor": "y"}}, "additionalProperties": false});
    let first = json!({"name": "one", "title": "One", "description": "The first", "inputSchema": schema, "outputSchema": {"type": "object"},
        "annotations": annotations, "_meta": {PARTIALS: {"streamPartial": true}}});
    let pages = async || {
        let asked = script.expect("tools/list").await;
        assert!(asked.params().get("cursor").is_none(), "{asked:?}");
        let page = with_members(tool_list(json!([first])), json!({"nextCursor": "c 1", "ttlMs": 60_000}));
        asked.result(page).await;
        let asked = script.expect("tools/list").await;
        assert_eq!(asked.params()["cursor"], "c 1");
        asked.result(with_members(tool_list(json!([job()])), json!({"ttlMs": 60_000}))).await;
    };
    let (tools, ()) = with_timeout("the pages", async { tokio::join!(client.tools(), pages()) }).await;
    let tools = tools.expect("tools");
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["one", "job"]);
    assert_eq!((tools[0].title.as_deref(), tools[0].description.as_deref()), (Some("One"), Some("The first")));
    assert_eq!((&tools[0].input_schema, &tools[0].output_schema), (&schema, &Some(json!({"type": "object"}))));
    assert_eq!((&tools[0].annotations, tools[0].streams, tools[1].streams), (&annotations, true, false));
    assert!(tools.iter().all(|tool| matches!(tool.task, TaskSupport::Unknown)));
    assert_eq!(tools[0].raw, first);
    script.clock.advance(60_000 * MS - MS);
    assert_eq!(with_timeout("what is kept", client.tools()).await.expect("tools").len(), 2);
    script.clock.advance(MS);
    with_timeout("the pages again", async { tokio::join!(client.tools(), pages()) }).await.0.expect("tools");
}

#[tokio::test]
async fn a_list_that_is_stale_at_once_is_read_each_time() {
    let script = ScriptedServer::start().await;
    script.always("tools/list", with_members(tool_list(json!([job()])), json!({"ttlMs": 0})));
    let client = script.client().await;
    with_timeout("the list", client.tools()).await.expect("tools");
    let listed = script.count("tools/list");
    with_timeout("the list", client.tools()).await.expect("tools");
    assert_eq!(script.count("tools/list"), listed + 1);
}

#[tokio::test]
async fn a_server_has_so_many_tools_and_no_more() {
    let script = ScriptedServer::start().await;
    let limits = Limits { tools: 5, ..Limits::default() };
    let client = script.client_with(Options { limits, ..script.options() }, everything()).await;
    // A cursor that leads in a circle never ends by itself.
    script.always("tools/list", with_members(tool_list(json!([job(), job()])), json!({"nextCursor": "again"})));
    let error = with_timeout("the end", client.tools()).await.expect_err("an error");
    assert!(matches!(error, Error::Limit { max: 5, key, .. } if key.contains("tools")), "{error:?}");
    // Nor does one that leads from nothing to nothing.
    script.always("tools/list", with_members(tool_list(json!([])), json!({"nextCursor": "again"})));
    let error = with_timeout("the end", client.tools()).await.expect_err("an error");
    assert!(matches!(error, Error::Limit { .. } | Error::Protocol { .. }), "{error:?}");
}

#[tokio::test]
async fn a_tool_that_is_not_listed_can_be_called_all_the_same() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let call = script.answers("tools/call", text_result("done"));
    with_timeout("the call", async { tokio::join!(client.call("hidden", json!({})), call) }).await.0.expect("a result");
}

// How large a message may be.

#[tokio::test]
async fn a_message_has_so_many_bytes_and_no_more() {
    let script = ScriptedServer::start().await;
    let limits = Limits { message_bytes: 10_000, ..Limits::default() };
    let client = script.client_with(Options { limits, ..script.options() }, everything()).await;
    let fits = script.answers("tools/call", text_result(&"x".repeat(9_000)));
    call_job(&client, json!({}), fits).await.0.expect("it fits");
    let too_large = text_result(&"x".repeat(10_000));
    let error = refused(&script, &client, too_large.clone()).await;
    assert!(matches!(error, Error::Limit { max: 10_000, key, .. } if key.contains("message_bytes")), "{error:?}");
    let events = async { script.expect("tools/call").await.sse().await.result(too_large).await };
    let error = call_job(&client, json!({}), events).await.0.expect_err("an error");
    assert!(matches!(error, Error::Limit { max: 10_000, .. }), "{error:?}");
}

// Acknowledgements (digest B6, B15.3): an empty result with `_meta`, without, or nothing at all.

#[tokio::test]
async fn acknowledgements_come_with_and_without_metadata() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    let info = json!({"_meta": {SERVER_INFO: {"name": "scripted", "version": "1.2.3"}}});
    for ack in [json!({"resultType": "complete"}), with_members(json!({"resultType": "complete"}), info), json!({})] {
        let (cancelled, ()) = tokio::join!(client.cancel("t1"), script.answers("tasks/cancel", ack.clone()));
        cancelled.unwrap_or_else(|error| panic!("{ack}: {error}"));
    }
}

#[tokio::test]
async fn a_stream_is_acknowledged_with_and_without_metadata() {
    for with_meta in [true, false] {
        let script = ScriptedServer::start().await;
        let client = script.client().await;
        let mut call = script.run(&client, "t1").await;
        assert_eq!(next_briefs(&mut call, 1).await, ["task t1"]);
        let asked = while_waiting(&mut call, script.expect(LISTEN)).await;
        let mut params = json!({"notifications": asked.params()["notifications"]});
        if with_meta {
            params["_meta"] = json!({"io.modelcontextprotocol/subscriptionId": asked.id()});
        }
        let mut sse = asked.sse().await;
        sse.notify("notifications/subscriptions/acknowledged", params).await;
        // On HTTP the stream itself says which subscription it is.
        sse.notify("notifications/tasks", completed("t1", "done")).await;
        assert_eq!(rest(&mut call).await, ["done: done"], "{with_meta}");
    }
}
