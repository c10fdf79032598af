//! The dashboard as files: what they are, what browsers are told about them, and who gets none.
//!
//! `scripts/dashboard.sh` looks at it in a browser.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::json;
use taskwire::{
    clock::SystemClock,
    server::{Config, Tokens},
    tool::TaskMode,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    kit::{Client, Response, TestServer, read_head, with_timeout},
    tasks::{accept, name_form, name_in, registry, tool, until_open},
};

async fn request(server: &TestServer, line: &str, headers: &[(&str, &str)]) -> Response {
    let lines: String = headers.iter().map(|(key, value)| format!("{key}: {value}\r\n")).collect();
    let request = format!("{line} HTTP/1.1\r\n{lines}Content-Length: 0\r\nConnection: close\r\n\r\n");
    with_timeout("the response", Client::new(server.port).bytes(request.as_bytes())).await
}

async fn get(server: &TestServer, path: &str) -> Response {
    request(server, &format!("GET {path}"), &[("Host", "localhost")]).await
}

/// What stands between quotes after `before`.
fn quoted(text: &str, before: &str) -> Vec<String> {
    let before = format!("{before}\"");
    let parts = text.split(&before).skip(1);
    parts.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
}

#[tokio::test]
async fn every_file_that_the_page_names_is_there_and_nothing_else_runs_in_it() {
    let server = TestServer::start(registry([])).await;
    let page = get(&server, "/").await;
    let html = String::from_utf8(page.body.clone()).expect("text");
    let mut to_read: Vec<String> = quoted(&html, "href=").into_iter().chain(quoted(&html, "src=")).collect();
    to_read.retain(|path| path.starts_with('/'));
    let mut seen = BTreeSet::from(["/".to_owned()]);
    while let Some(path) = to_read.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let file = get(&server, &path).await;
        assert_eq!(file.status, 200, "{path}");
        let kind = if path.ends_with(".css") { "text/css; charset=utf-8" } else { "text/javascript; charset=utf-8" };
        assert_eq!(file.header("content-type"), Some(kind), "{path}");
        let text = String::from_utf8(file.body).expect("text");
        let imports = quoted(&text, "from ").into_iter().chain(quoted(&text, "import "));
        to_read.extend(imports.filter_map(|name| Some(format!("/dashboard/{}", name.strip_prefix("./")?))));
        for outside in ["eval(", "new Function", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"] {
            assert!(!text.contains(outside), "{path} has {outside}");
        }
    }
    assert!(seen.len() > 15, "{seen:?}");
    for path in &seen {
        let file = get(&server, path).await;
        let policy = file.header("content-security-policy").expect("a policy");
        for part in ["default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'", "form-action 'none'"] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(file.header("referrer-policy"), Some("no-referrer"), "{path}");
        assert_eq!(file.header("cache-control"), Some("no-cache"), "{path}");
    }
}

#[tokio::test]
async fn a_browser_that_has_a_file_is_told_so() {
    let server = TestServer::start(registry([])).await;
    let page = get(&server, "/").await;
    let etag = page.header("etag").expect("a tag").to_owned();
    for known in [etag.clone(), format!("W/{etag}"), format!("\"other\", {etag}"), "*".to_owned()] {
        let again = request(&server, "GET /", &[("Host", "localhost"), ("If-None-Match", &known)]).await;
        assert_eq!((again.status, again.body.len(), again.header("etag")), (304, 0, Some(etag.as_str())), "{known}");
    }
    assert_eq!(request(&server, "GET /", &[("Host", "localhost"), ("If-None-Match", "\"other\"")]).await.status, 200);
    assert_ne!(get(&server, "/dashboard/app.js").await.header("etag"), Some(etag.as_str()));
}

#[tokio::test]
async fn other_hosts_paths_and_methods_get_nothing() {
    let server = TestServer::start(registry([])).await;
    assert_eq!(request(&server, "GET /", &[("Host", "evil.example")]).await.status, 403);
    assert_eq!(request(&server, "GET /", &[]).await.status, 400);
    for path in ["/dashboard", "/dashboard/", "/dashboard/index.html", "/dashboard/../Cargo.toml", "/dashboard/x.js", "/app.js", "//"] {
        assert_eq!(get(&server, path).await.status, 404, "{path}");
    }
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(request(&server, &format!("{method} /"), &[("Host", "localhost")]).await.status, 404, "{method}");
    }
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).await.expect("a connection");
    stream.write_all(b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.expect("sent");
    let mut rest = Vec::new();
    let (status, headers) = with_timeout("the head", read_head(&mut stream, &mut rest)).await;
    assert_eq!(status, 200);
    assert!(headers.iter().any(|(name, _)| name == "etag"), "{headers:?}");
    with_timeout("the end", stream.read_to_end(&mut rest)).await.expect("readable");
    assert!(rest.is_empty(), "a head alone");
}

#[tokio::test]
async fn it_can_be_turned_off_and_needs_no_token() {
    let config = Config { dashboard: false, ..Config::default() };
    let off = TestServer::start_with(registry([]), config, Arc::new(SystemClock)).await;
    for path in ["/", "/dashboard/app.js"] {
        assert_eq!(get(&off, path).await.status, 404, "{path}");
    }
    let auth = Arc::new(Tokens::default().with_token("ann", "ann"));
    let guarded = TestServer::start_with(registry([]), Config { auth, ..Config::default() }, Arc::new(SystemClock)).await;
    assert_eq!(get(&guarded, "/").await.status, 200);
    assert_eq!(get(&guarded, "/api/caller").await.status, 401);
    let who = request(&guarded, "GET /api/caller", &[("Host", "localhost"), ("Authorization", "Bearer ann")]).await.json();
    assert_eq!((&who["caller"], &who["admin"]), (&json!("ann"), &json!(false)), "{who}");
    assert_eq!(who["may"], json!({"list": true, "read": true, "call": true, "answer": true, "cancel": true}));
}

#[tokio::test]
async fn a_log_tells_what_happened_and_nothing_that_was_said() {
    let greets = tool("greet", &(), |(), ctx| async move { Ok(name_in(&ctx.ask("who", name_form("Who is there?")).await?)) });
    let auth = Tokens::default().with_token("ann", "ann").with_token("bob", "bob");
    let config = Config { auth: Arc::new(auth), ..Config::default() };
    let server = TestServer::start_with(registry([greets.task(TaskMode::Always)]), config, Arc::new(SystemClock)).await;
    let ann = server.client().with_token("ann");
    let id = ann.start("greet", json!({})).await;
    until_open(&ann, &id, &["who"]).await;
    let log = async |token: &str, after: u64| {
        let path = format!("GET /api/tasks/{id}/log?after={after}");
        request(&server, &path, &[("Host", "localhost"), ("Authorization", &format!("Bearer {token}"))]).await
    };
    let kinds = |page: &serde_json::Value| -> Vec<String> {
        let events = page["events"].as_array().expect("events");
        events.iter().map(|event| event["kind"].as_str().expect("a kind").to_owned()).collect()
    };
    let page = log("ann", 0).await.json();
    assert_eq!(kinds(&page), ["created", "asked"], "{page}");
    assert_eq!((&page["events"][0]["arguments"], &page["events"][0]["attempt"], &page["more"]), (&json!({}), &json!(1), &json!(false)));
    assert_eq!(page["events"][1]["key"], "who");
    let next = page["next"].as_u64().expect("a number");
    ann.answer(&id, json!({"who": accept("Ada")})).await;
    with_timeout("the end", ann.until(&id, "completed")).await;
    let rest = log("ann", next).await.json();
    assert_eq!(kinds(&rest), ["answered", "completed"], "{rest}");
    assert!(!rest.to_string().contains("Ada") && !page.to_string().contains("Who is there"), "no content");
    let never =
        request(&server, &format!("GET /api/tasks/{}/log", "0".repeat(32)), &[("Host", "localhost"), ("Authorization", "Bearer bob")])
            .await;
    let others = log("bob", 0).await;
    assert_eq!((others.status, &others.body), (404, &never.body), "the task of somebody else is like one that never was");
}
