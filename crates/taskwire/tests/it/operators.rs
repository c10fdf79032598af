//! `/api`: what an admin sees and stops, what others see of it, and who is kept away.

use std::sync::Arc;

use serde_json::{Value, json};
use taskwire::{
    clock::SystemClock,
    server::{Callers, Config, Identity, ScopeRules, Tokens},
    tool::{Content, Registry, TaskMode, ToolError},
};

use crate::{
    kit::{Client, Response, TestServer, with_timeout},
    tasks::{Gate, accept, name_form, quick, registry, tool, until_open},
};

/// A server whose callers are `ann` and `bob`, and `root`, an admin. Each has a token of that name.
async fn guarded(tools: Registry) -> TestServer {
    let root = (Tokens::sha256("root"), Identity::new("root").as_admin());
    let tokens = Tokens::default().with_token("ann", "ann").with_token("bob", "bob").with_sha256(root.0, root.1);
    TestServer::start_with(tools, Config { auth: Arc::new(tokens), ..Config::default() }, Arc::new(SystemClock)).await
}

async fn request(server: &TestServer, line: &str, headers: &[(&str, &str)]) -> Response {
    let lines: String = headers.iter().map(|(key, value)| format!("{key}: {value}\r\n")).collect();
    let request = format!("{line} HTTP/1.1\r\n{lines}Content-Length: 0\r\nConnection: close\r\n\r\n");
    with_timeout("the response", Client::new(server.port).bytes(request.as_bytes())).await
}

async fn get(server: &TestServer, token: &str, path: &str) -> Response {
    request(server, &format!("GET {path}"), &[("Host", "localhost"), ("Authorization", &format!("Bearer {token}"))]).await
}

async fn post(server: &TestServer, token: &str, path: &str) -> Response {
    let token = format!("Bearer {token}");
    let headers = [("Host", "localhost"), ("Authorization", token.as_str()), ("Content-Type", "application/json")];
    request(server, &format!("POST {path}"), &headers).await
}

#[track_caller]
fn told(response: &Response) -> Value {
    assert!(matches!(response.status, 200 | 202), "{} {}", response.status, String::from_utf8_lossy(&response.body));
    assert_eq!(response.header("content-type"), Some("application/json"));
    response.json()
}

/// The status of a response, and why it refuses.
#[track_caller]
fn refused(response: &Response) -> (u16, String) {
    (response.status, response.json()["error"]["message"].as_str().expect("a reason").to_owned())
}

fn ids(page: &Value) -> Vec<String> {
    let tasks = page["tasks"].as_array().expect("tasks");
    tasks.iter().map(|task| task["id"].as_str().expect("an id").to_owned()).collect()
}

#[tokio::test]
async fn an_admin_sees_and_stops_what_others_own() {
    let gate = Gate::new();
    let server = guarded(registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let (ann, bob) = (server.client().with_token("ann"), server.client().with_token("bob"));
    let (hers, his) = (ann.start("slow", json!({})).await, bob.start("slow", json!({})).await);
    let page = told(&get(&server, "root", "/api/tasks").await);
    let mut expected = vec![hers.clone(), his.clone()];
    expected.sort_by(|a, b| b.cmp(a));
    assert_eq!(ids(&page), expected, "{page}");
    let task = told(&get(&server, "root", &format!("/api/tasks/{hers}")).await);
    assert_eq!((&task["caller"], &task["tool"], &task["status"]), (&json!("ann"), &json!("slow"), &json!("working")), "{task}");
    assert!(task["createdAt"].is_string() && task["attempt"] == 1 && task.get("result").is_none(), "{task}");
    let done = told(&post(&server, "root", &format!("/api/tasks/{hers}/cancel")).await);
    assert_eq!((&done["changed"], &done["task"]["status"]), (&json!(true), &json!("cancelled")), "{done}");
    with_timeout("the tool", gate.stopped.wait()).await;
    let seen = ann.get(&hers).await;
    assert_eq!((&seen["status"], &seen["statusMessage"]), (&json!("cancelled"), &json!("cancelled by an operator")), "{seen}");
    let again = told(&post(&server, "root", &format!("/api/tasks/{hers}/cancel")).await);
    assert_eq!(again["changed"], false, "it stays as it is");
    let own = told(&post(&server, "bob", &format!("/api/tasks/{his}/cancel")).await);
    assert_eq!(own["changed"], true);
    assert_eq!(bob.get(&his).await["statusMessage"], "cancelled by its caller");
}

#[tokio::test]
async fn who_is_no_admin_sees_its_own_and_nothing_of_others() {
    let gate = Gate::new();
    let server = guarded(registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let (ann, bob) = (server.client().with_token("ann"), server.client().with_token("bob"));
    let (hers, his) = (ann.start("slow", json!({})).await, bob.start("slow", json!({})).await);
    assert_eq!(ids(&told(&get(&server, "bob", "/api/tasks").await)), [his.as_str()]);
    assert_eq!(ids(&told(&get(&server, "bob", "/api/tasks?caller=bob&status=open").await)), [his.as_str()]);
    assert_eq!(get(&server, "bob", "/api/tasks?caller=ann").await.status, 403);
    let page = told(&get(&server, "bob", &format!("/api/tasks?cursor={}", "v".repeat(32))).await);
    assert_eq!(ids(&page), [his.as_str()], "a cursor leads to nobody else's");
    let unknown = "0".repeat(32);
    for path in ["", "/output", "/cancel"] {
        let ask = async |id: &str| {
            let path = format!("/api/tasks/{id}{path}");
            if path.ends_with("/cancel") { post(&server, "bob", &path).await } else { get(&server, "bob", &path).await }
        };
        let never = ask(&unknown).await;
        assert_eq!(never.status, 404, "{path}");
        for id in [hers.as_str(), "nonsense", &hers.to_uppercase()] {
            let response = ask(id).await;
            assert_eq!((response.status, &response.body), (404, &never.body), "{path} {id}");
        }
    }
    assert_eq!(ann.get(&hers).await["status"], "working");
    let (status, why) = refused(&get(&server, "bob", "/api/server").await);
    assert!(status == 403 && why.contains("`admin = true`"), "{why}");
    assert_eq!(post(&server, "bob", "/api/server/drain").await.status, 403);
    assert_eq!(told(&get(&server, "root", "/api/server").await)["draining"], false);
}

#[tokio::test]
async fn a_scope_can_make_an_admin() {
    let identity = |caller: &str, scope: &str| Identity::new(caller).with_scopes([scope]);
    let tokens = Tokens::default()
        .with_sha256(Tokens::sha256("plain"), identity("plain", "mcp"))
        .with_sha256(Tokens::sha256("looker"), identity("looker", "look"))
        .with_sha256(Tokens::sha256("boss"), identity("boss", "root"))
        .with_token("all", "all");
    let rules = ScopeRules::default().with_rule("tasks/*", ["look"]).with_admin_scope("operate").with_hierarchy("root", ["operate"]);
    let auth = Callers::default().with_tokens(tokens).with_scope_rules(rules);
    let config = Config { auth: Arc::new(auth), ..Config::default() };
    let server = TestServer::start_with(registry([]), config, Arc::new(SystemClock)).await;
    let statuses = async |token: &str| [get(&server, token, "/api/server").await.status, get(&server, token, "/api/tasks").await.status];
    assert_eq!(statuses("boss").await, [200, 200], "an admin needs no other scope here");
    assert_eq!(statuses("looker").await, [403, 200]);
    assert_eq!(statuses("plain").await, [403, 403], "the list needs what `tasks/list` needs");
    assert_eq!(statuses("all").await, [403, 200], "to need no scopes makes no admin");
    let lacking = get(&server, "plain", "/api/tasks").await;
    assert!(lacking.header("www-authenticate").is_some_and(|value| value.contains("scope=\"look\"")), "{lacking:?}");
}

#[tokio::test]
async fn a_page_on_the_web_and_who_has_no_token_are_kept_away() {
    let gate = Gate::new();
    let server = guarded(registry([gate.tool("slow").task(TaskMode::Always)])).await;
    let id = server.client().with_token("ann").start("slow", json!({})).await;
    let cancel = format!("POST /api/tasks/{id}/cancel");
    let (root, json_type) = (("Authorization", "Bearer root"), ("Content-Type", "application/json"));
    let host = ("Host", "localhost:8787");
    for path in ["GET /api/server", "GET /api/tasks", &format!("GET /api/tasks/{id}")] {
        assert_eq!(request(&server, path, &[host]).await.status, 401, "{path}");
        assert_eq!(request(&server, path, &[host, ("Authorization", "Bearer wrong")]).await.status, 401, "{path}");
        assert_eq!(request(&server, path, &[("Host", "evil.example"), root]).await.status, 403, "{path}");
        assert_eq!(request(&server, path, &[host, root, ("Origin", "http://evil.example")]).await.status, 403, "{path}");
    }
    for (headers, status) in [
        (vec![host, json_type], 401),
        (vec![host, root], 415),
        (vec![host, root, ("Content-Type", "text/plain")], 415),
        (vec![("Host", "evil.example"), root, json_type], 403),
        // A page of another program on this machine may call tools, but not this.
        (vec![host, root, json_type, ("Origin", "http://localhost:3000")], 403),
        (vec![host, root, json_type, ("Origin", "null")], 403),
    ] {
        assert_eq!(request(&server, &cancel, &headers).await.status, status, "{headers:?}");
    }
    assert!(!gate.stopped.is_sent(), "nobody has stopped it");
    let preflight = [host, ("Origin", "http://localhost:3000"), ("Access-Control-Request-Method", "POST")];
    assert_eq!(request(&server, &cancel.replace("POST", "OPTIONS"), &preflight).await.status, 401);
    let own = [host, root, json_type, ("Origin", "http://localhost:8787")];
    assert_eq!(request(&server, &cancel, &own).await.status, 200, "the server's own page");
}

#[tokio::test]
async fn what_cannot_be_asked_is_refused_with_a_reason() {
    let server = guarded(registry([])).await;
    for (path, status, words) in [
        ("/api/", 404, "/api/tasks"),
        ("/api/nothing", 404, "/api/server"),
        ("/api/server/drain", 405, "use POST"),
        ("/api/server?x=1", 400, "no parameter `x`"),
        ("/api/tasks?limit=0", 400, "`limit`"),
        ("/api/tasks?limit=201", 400, "200"),
        ("/api/tasks?status=done", 400, "input_required"),
        ("/api/tasks?cursor=x", 400, "`nextCursor`"),
        ("/api/tasks?tool=%zz", 400, "decoded"),
        ("/api/tasks/x/output?from=y", 400, "`from` is a number"),
    ] {
        let (found, why) = refused(&get(&server, "root", path).await);
        assert!(found == status && why.contains(words), "{path}: {found} {why}");
    }
    assert_eq!(post(&server, "root", "/api/server").await.status, 405);
}

#[tokio::test]
async fn tasks_are_listed_page_by_page_and_by_caller_tool_and_status() {
    let gate = Gate::new();
    let tools = registry([gate.tool("slow").task(TaskMode::Always), quick("quick").task(TaskMode::Always)]);
    let server = guarded(tools).await;
    let (ann, bob) = (server.client().with_token("ann"), server.client().with_token("bob"));
    let mut ended = Vec::new();
    for n in 0..5 {
        let client = if n % 2 == 0 { &ann } else { &bob };
        let id = client.start("quick", json!({})).await;
        with_timeout("the end", client.until(&id, "completed")).await;
        ended.push(id);
    }
    let open = bob.start("slow", json!({})).await;
    let (mut found, mut path) = (Vec::new(), "/api/tasks?limit=2".to_owned());
    loop {
        let page = told(&get(&server, "root", &path).await);
        assert!(ids(&page).len() <= 2, "{page}");
        found.extend(ids(&page));
        let Some(cursor) = page["nextCursor"].as_str() else { break };
        path = format!("/api/tasks?limit=2&cursor={cursor}");
    }
    let mut all = [ended.clone(), vec![open.clone()]].concat();
    all.sort_by(|a, b| b.cmp(a));
    assert_eq!(found, all, "the latest first, each once");
    let list = async |query: &str| ids(&told(&get(&server, "root", &format!("/api/tasks?{query}")).await));
    for query in ["status=open", "status=working", "tool=slow", "caller=bob&status=open", "caller=bob&tool=slow"] {
        assert_eq!(list(query).await, [open.as_str()], "{query}");
    }
    assert_eq!(list("caller=ann").await.len(), 3);
    assert_eq!(list("status=completed&caller=bob").await.len(), 2);
    for query in ["status=input_required", "tool=nothing", "caller=nobody", "status=open&caller=ann"] {
        assert_eq!(list(query).await, Vec::<String>::new(), "{query}");
    }
}

#[tokio::test]
async fn for_one_page_so_many_tasks_are_looked_at_and_the_next_one_goes_on() {
    const LOOKED_AT_MAX: usize = 200;
    let server = guarded(registry([quick("quick").task(TaskMode::Always)])).await;
    let ann = server.client().with_token("ann");
    for _ in 0..=LOOKED_AT_MAX {
        ann.start("quick", json!({})).await;
    }
    let page = told(&get(&server, "root", "/api/tasks?tool=nothing").await);
    let cursor = page["nextCursor"].as_str().unwrap_or_else(|| panic!("all were looked at: {page}"));
    let first = told(&get(&server, "root", &format!("/api/tasks?cursor={cursor}")).await);
    assert_eq!((ids(&page).len(), ids(&first).len()), (0, 1), "{first}");
}

#[tokio::test]
async fn output_result_and_questions_of_a_task_can_be_read() {
    let writes = tool("writes", &(), |(), ctx| async move {
        for text in ["one", "two", "three"] {
            ctx.block(Content::text(text)).await?;
            ctx.flush().await?;
        }
        Ok::<_, ToolError>("done")
    });
    let asks = tool("asks", &(), |(), ctx| async move { ctx.ask("name", name_form("Who?")).await.map(|_| "done") });
    let server = guarded(registry([writes.streams().task(TaskMode::Always), asks.task(TaskMode::Always)])).await;
    let ann = server.client().with_token("ann");
    let id = ann.start("writes", json!({})).await;
    with_timeout("the end", ann.until(&id, "completed")).await;
    let task = told(&get(&server, "root", &format!("/api/tasks/{id}")).await);
    assert_eq!((&task["output"]["chunks"], &task["status"]), (&json!(3), &json!("completed")), "{task}");
    assert!(task["result"]["content"].is_array() && task["endedAt"].is_string(), "{task}");
    let page = told(&get(&server, "root", &format!("/api/tasks/{id}/output?from=1")).await);
    assert_eq!(page["chunks"][0], json!({"seq": 1, "blocks": [{"type": "text", "text": "two"}]}), "{page}");
    assert_eq!((&page["next"], &page["more"], &page["ended"]), (&json!(3), &json!(false), &json!(true)), "{page}");
    let end = told(&get(&server, "root", &format!("/api/tasks/{id}/output?from=3")).await);
    assert_eq!(end, json!({"chunks": [], "next": 3, "more": false, "ended": true}));
    let question = ann.start("asks", json!({})).await;
    until_open(&ann, &question, &["name"]).await;
    let task = told(&get(&server, "root", &format!("/api/tasks/{question}")).await);
    assert_eq!((&task["status"], &task["openQuestions"]), (&json!("input_required"), &json!(1)), "{task}");
    assert!(task["questions"]["name"].to_string().contains("Who?"), "{task}");
    ann.answer(&question, json!({"name": accept("Ada")})).await;
    with_timeout("the end", ann.until(&question, "completed")).await;
    assert_eq!(told(&get(&server, "root", &format!("/api/tasks/{question}")).await)["questions"], json!({}));
}

#[tokio::test]
async fn a_server_says_how_it_is() {
    let gate = Gate::new();
    let server = TestServer::start(registry([gate.tool("slow").task(TaskMode::Always), quick("quick").task(TaskMode::Always)])).await;
    let client = server.client();
    client.start("slow", json!({})).await;
    let ended = client.start("quick", json!({})).await;
    with_timeout("the end", client.until(&ended, "completed")).await;
    // Nobody must show who they are, so there is one caller, and it is an admin.
    let state = told(&request(&server, "GET /api/server", &[("Host", "localhost")]).await);
    assert_eq!((&state["name"], &state["draining"], &state["running"]), (&json!("taskwire"), &json!(false), &json!(1)), "{state}");
    assert_eq!(state["tasks"]["open"], json!({"working": 1, "input_required": 0}), "{state}");
    assert_eq!((&state["tasks"]["created"], &state["tasks"]["ended"]["completed"]), (&json!(2), &json!(1)), "{state}");
    assert_eq!(
        (&state["store"]["away"], &state["queue"]["capacity"], &state["nodes"]),
        (&json!(false), &json!(4096), &json!([])),
        "{state}"
    );
    assert_eq!(state["store"]["full"], false, "{state}");
    assert!(state["connections"].as_u64() >= Some(1) && state["uptimeMs"].is_u64() && state["startedAt"].is_string(), "{state}");
    let (status, body) = server.server.answer_api("GET", "/api/tasks?tool=slow").await;
    let page: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!((status, ids(&page).len(), &page["tasks"][0]["caller"]), (200, 1, &json!("local")), "the same without HTTP");
}

#[tokio::test]
async fn a_server_drains_when_an_admin_wants_it_if_somebody_can_end_it() {
    let server = guarded(registry([])).await;
    let (status, why) = refused(&post(&server, "root", "/api/server/drain").await);
    assert!(status == 409 && why.contains("the program that it is a part of"), "{why}");
    let asked = tokio::spawn(server.server.drain_requested());
    assert_eq!(told(&post(&server, "root", "/api/server/drain").await), json!({"draining": true, "running": 0}));
    assert!(with_timeout("whoever listens", asked).await.expect("no panic"));
    assert_eq!(told(&post(&server, "root", "/api/server/drain").await)["draining"], true, "once is enough");
    assert_eq!(told(&get(&server, "root", "/api/server").await)["draining"], true);
}
