//! The caller's tasks as a server lists them: by a method of ours in the modern era, by `tasks/list` in the legacy one.

use serde_json::{Value, json};
use taskwire::client::{Client, Error, Status, TaskPage};

use super::{
    legacy::{awaited, having, joined, options, scripted, shown},
    script::{CAPABILITIES, LIST, ScriptedRequest, ScriptedServer, everything, task, with_members},
};
use crate::kit::{TASKS, with_timeout};

const METHOD: &str = "dev.taskwire/tasks/list";

/// A page of a list.
fn page(tasks: Value, next: Option<&str>) -> Value {
    with_members(json!({"resultType": "complete", "tasks": tasks}), json!({"nextCursor": next}))
}

/// Lists tasks while `server` plays.
async fn listed<T>(client: &Client, cursor: Option<&str>, server: impl Future<Output = T>) -> (Result<TaskPage, Error>, T) {
    with_timeout("the list", async { tokio::join!(client.list_tasks(cursor), server) }).await
}

/// What the client says of itself, and where it wants the list to begin.
fn wanted(asked: &ScriptedRequest) -> (Value, Value) {
    let mut params = asked.params().clone();
    let declared = params["_meta"][CAPABILITIES]["extensions"].clone();
    params.as_object_mut().expect("an object").remove("_meta");
    (declared, params)
}

#[tokio::test]
async fn tasks_are_listed_page_by_page_with_their_tools() {
    let script = ScriptedServer::start().await;
    let client = script.client_with(script.options(), json!({TASKS: {}, LIST: {}})).await;
    assert!(client.server_info().lists_tasks);
    let first = async {
        let asked = script.expect(METHOD).await;
        let (declared, params) = wanted(&asked);
        assert_eq!((&declared[LIST], params), (&json!({}), json!({})), "{asked:?}");
        let newest = with_members(task("t2", "input_required"), json!({"tool": "ask", "statusMessage": "waiting"}));
        asked.result(page(json!([newest, with_members(task("t1", "working"), json!({"tool": "job"}))]), Some("c2"))).await;
    };
    let (page_one, ()) = listed(&client, None, first).await;
    let page_one = page_one.expect("a page");
    let listed_tasks: Vec<_> =
        page_one.tasks.iter().map(|listed| (listed.snapshot.id.as_str(), listed.snapshot.status, listed.tool.as_deref())).collect();
    assert_eq!(listed_tasks, [("t2", Status::InputRequired, Some("ask")), ("t1", Status::Working, Some("job"))]);
    let snapshot = &page_one.tasks[0].snapshot;
    assert_eq!((snapshot.message.as_deref(), snapshot.ttl_ms, snapshot.poll_ms), (Some("waiting"), Some(3_600_000), Some(1_000)));
    assert_eq!(snapshot.created_at, "2026-07-28T00:00:00.000Z");
    let second = async {
        let asked = script.expect(METHOD).await;
        assert_eq!(wanted(&asked).1, json!({"cursor": "c2"}));
        asked.result(page(json!([]), None)).await;
    };
    let (page_two, ()) = listed(&client, page_one.next_cursor.as_deref(), second).await;
    let page_two = page_two.expect("a page");
    assert!(page_two.tasks.is_empty() && page_two.next_cursor.is_none(), "{page_two:?}");
}

#[tokio::test]
async fn a_server_that_lists_no_tasks_is_not_asked_to() {
    let script = ScriptedServer::start().await;
    let client = script.client_with(script.options(), everything()).await;
    let error = client.list_tasks(None).await.map(drop).expect_err("an error");
    assert!(matches!(&error, Error::ListUnsupported { server } if *server == script.url()), "{error:?}");
    assert!(error.to_string().contains("does not list tasks"), "{error}");
    assert_eq!(script.count(METHOD), 0);

    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({"list": null}))).await;
    let error = client.list_tasks(None).await.map(drop).expect_err("an error");
    assert!(matches!(&error, Error::ListUnsupported { .. }), "{error:?}");
    assert_eq!(script.count("tasks/list"), 0);
}

#[tokio::test]
async fn in_a_session_tasks_are_listed_as_that_era_does() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    assert!(client.server_info().lists_tasks);
    for (cursor, params) in [(None, json!({})), (Some("c2"), json!({"cursor": "c2"}))] {
        let playing = async {
            let asked = awaited(&script, "tasks/list").await;
            assert_eq!(*asked.params(), params);
            asked.result(json!({"tasks": [shown("t1", "completed")], "nextCursor": "more"})).await;
        };
        let (listed, ()) = listed(&client, cursor, playing).await;
        let listed = listed.expect("a page");
        assert_eq!((listed.tasks.len(), listed.next_cursor.as_deref()), (1, Some("more")));
        let one = &listed.tasks[0];
        assert_eq!((one.snapshot.id.as_str(), one.snapshot.status, one.tool.as_deref()), ("t1", Status::Completed, None));
        assert_eq!((one.snapshot.ttl_ms, one.snapshot.poll_ms), (Some(3_600_000), Some(1_000)));
    }
}

#[tokio::test]
async fn what_is_no_list_is_an_error_and_so_is_what_the_server_refuses() {
    let script = ScriptedServer::start().await;
    let client = script.client_with(script.options(), json!({TASKS: {}, LIST: {}})).await;
    for broken in [json!({"resultType": "complete"}), page(json!([{"taskId": "t1"}]), None), page(json!([task("t1", "dreaming")]), None)] {
        let (listed, ()) = listed(&client, None, script.answers(METHOD, broken.clone())).await;
        assert!(matches!(listed, Err(Error::Protocol { .. })), "{broken}: {listed:?}");
    }
    let refusing = async { script.expect(METHOD).await.error(400, -32602, "no such cursor", Value::Null).await };
    let (listed, ()) = listed(&client, Some("old"), refusing).await;
    assert!(matches!(&listed, Err(Error::Rpc(error)) if error.code == -32602), "{listed:?}");
}
