//! `dev.taskwire/tasks/list`: the tasks of a caller, whichever client started them, for a client that declares it.

use serde_json::{Value, json};
use taskwire::{clock::SystemClock, server::Config, tool::TaskMode};

use crate::{
    kit::{Client, TASKS, TestServer, with_timeout},
    legacy::kit::LegacySession,
    tasks::{Gate, quick, registry, two_callers},
};

const LIST: &str = "dev.taskwire/list";
const METHOD: &str = "dev.taskwire/tasks/list";

fn lister(server: &TestServer) -> Client {
    Client::new(server.port).declaring(json!({"extensions": {TASKS: {}, LIST: {}}}))
}

fn ids(page: &Value) -> Vec<String> {
    let tasks = page["tasks"].as_array().expect("tasks");
    tasks.iter().map(|task| task["taskId"].as_str().expect("an id").to_owned()).collect()
}

#[tokio::test]
async fn the_tasks_of_a_caller_are_listed_whoever_started_them_the_latest_first() {
    let gate = Gate::new();
    let server = TestServer::start(registry([gate.tool("slow"), quick("quick").task(TaskMode::Always)])).await;
    let client = lister(&server);
    let first = client.start("quick", json!({})).await;
    with_timeout("the end", client.until(&first, "completed")).await;
    let second = LegacySession::open(&server).await.start("slow", json!({})).await;
    // One that knows no tasks, and waits.
    let plain = server.plain_client();
    let message = plain.message(7, "tools/call", json!({"name": "slow", "arguments": {}}));
    let _connection = plain.send(&plain.headers(&message), message.to_string().as_bytes()).await;
    let all = async {
        loop {
            let page = client.ok(METHOD, json!({})).await;
            if ids(&page).len() == 3 {
                return page;
            }
        }
    };
    let page = with_timeout("all of them", all).await;
    assert_eq!(ids(&page)[1..], [second, first], "{page}");
    assert_eq!((&page["tasks"][0]["tool"], &page["tasks"][0]["status"]), (&json!("slow"), &json!("working")), "{page}");
    assert_eq!((&page["tasks"][2]["tool"], &page["tasks"][2]["status"]), (&json!("quick"), &json!("completed")), "{page}");
    assert!(page["tasks"][0]["createdAt"].is_string() && page.get("nextCursor").is_none() && page["resultType"] == "complete", "{page}");
}

#[tokio::test]
async fn a_list_of_tasks_comes_in_pages() {
    let config = Config { page_len: 2, ..Config::default() };
    let server = TestServer::start_with(registry([quick("quick").task(TaskMode::Always)]), config, std::sync::Arc::new(SystemClock)).await;
    let client = lister(&server);
    let mut made = Vec::new();
    for _ in 0..5 {
        made.insert(0, client.start("quick", json!({})).await);
    }
    let (mut found, mut cursor, mut pages) = (Vec::new(), Value::Null, 0);
    loop {
        let page = client.ok(METHOD, if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) }).await;
        found.extend(ids(&page));
        pages += 1;
        cursor = page["nextCursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    made.sort_by(|a, b| b.cmp(a));
    assert_eq!((found, pages), (made, 3));
    assert_eq!(client.error(METHOD, json!({"cursor": "nonsense"})).await["code"], -32602);
}

#[tokio::test]
async fn somebody_elses_tasks_are_not_listed() {
    let server =
        TestServer::start_with(registry([quick("quick").task(TaskMode::Always)]), two_callers(), std::sync::Arc::new(SystemClock)).await;
    let (ann, bob) = (lister(&server).with_token("ann-token"), lister(&server).with_token("bob-token"));
    let id = ann.start("quick", json!({})).await;
    assert_eq!(ids(&ann.ok(METHOD, json!({})).await), [id]);
    assert_eq!(ids(&bob.ok(METHOD, json!({})).await), Vec::<String>::new());
}

#[tokio::test]
async fn a_list_of_tasks_is_for_who_declares_it_and_told_to_nobody_else() {
    let server = TestServer::start(registry([quick("quick")])).await;
    for client in [server.client(), server.plain_client(), Client::new(server.port).declaring(json!({"extensions": {LIST: {}}}))] {
        let refused = client.raw(METHOD, json!({})).await;
        assert_eq!((refused.status, refused.json()["error"]["code"].clone()), (400, json!(-32021)), "{refused:?}");
    }
    let of = |client: Client| async move { client.ok("server/discover", json!({})).await["capabilities"]["extensions"].clone() };
    assert_eq!(of(lister(&server)).await[LIST], json!({}));
    assert!(of(server.client()).await.get(LIST).is_none());
}
