//! The record of who did what: an entry for each thing that somebody does to a task, and for what is refused, with nothing secret in it.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use serde_json::{Value, json};
use taskwire::{
    clock::SystemClock,
    server::{Audit, AuditAction, AuditEntry, Callers, Config, Identity, ScopeRules, Tokens},
    tool::TaskMode,
};

use crate::{
    kit::{Client, IDEMPOTENCY, KEY, TASKS, TestServer, with_timeout},
    legacy::kit::LegacySession,
    tasks::{Gate, accept, name_form, registry, tool, until_open},
};

/// What callers send, and nobody may find in the record.
const SECRETS: [&str; 5] = ["an-argument", "an-answer", "a-result", "-token", "wrong"];

/// All entries, in order.
#[derive(Debug, Default)]
pub(crate) struct Record(Mutex<Vec<AuditEntry>>);

impl Audit for Record {
    fn record(&self, entry: AuditEntry) {
        assert!(!SECRETS.iter().any(|secret| format!("{entry:?}").contains(secret)), "{entry:?}");
        self.0.lock().expect("nobody panicked").push(entry);
    }

    fn lost(&self) -> u64 {
        7
    }
}

impl Record {
    /// Who did what, and what came of it; what was there before is taken away.
    pub(crate) fn take(&self) -> Vec<(AuditAction, Option<String>, String)> {
        let entries = std::mem::take(&mut *self.0.lock().expect("nobody panicked"));
        let brief = |entry: AuditEntry| (entry.action, entry.caller.map(|caller| caller.as_str().to_owned()), entry.outcome.into_owned());
        entries.into_iter().map(brief).collect()
    }

    fn entries(&self) -> Vec<AuditEntry> {
        self.0.lock().expect("nobody panicked").clone()
    }
}

/// A server whose callers are `ann`, who may not list, `bob`, and `root`, an admin; and the record of what they do.
async fn recorded(gate: &Gate) -> (TestServer, Arc<Record>) {
    let record = Arc::new(Record::default());
    let asks = tool("asks", &(), |(), ctx| async move { ctx.ask("name", name_form("Who?")).await.map(|_| "a-result") });
    let tokens = Tokens::default()
        .with_sha256(Tokens::sha256("ann-token"), Identity::new("ann").with_scopes(["mcp"]))
        .with_token("bob-token", "bob")
        .with_sha256(Tokens::sha256("root-token"), Identity::new("root").as_admin());
    let rules = ScopeRules::default().with_rule("tasks/list", ["look"]);
    let auth = Arc::new(Callers::default().with_tokens(tokens).with_scope_rules(rules));
    let mut config = Config { auth, ..Config::default() };
    config.engine.audit = Some(record.clone());
    let tools = registry([gate.tool("slow").task(TaskMode::Always), asks.task(TaskMode::Always)]);
    (TestServer::start_with(tools, config, Arc::new(SystemClock)).await, record)
}

fn entry(action: AuditAction, caller: &str, outcome: &str) -> (AuditAction, Option<String>, String) {
    (action, Some(caller.to_owned()), outcome.to_owned())
}

/// Sends a request to the API.
async fn api(server: &TestServer, line: &str, token: &str) -> u16 {
    let headers = format!("Host: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: 0\r\n");
    let request = format!("{line} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
    with_timeout("the response", Client::new(server.port).bytes(request.as_bytes())).await.status
}

#[tokio::test]
async fn who_makes_cancels_and_answers_a_task_is_recorded_with_its_address() {
    let gate = Gate::new();
    let (server, record) = recorded(&gate).await;
    let ann = server.client().with_token("ann-token");
    let id = ann.start("slow", json!({"text": "an-argument"})).await;
    ann.cancel(&id).await;
    ann.cancel(&id).await;
    let entries = record.entries();
    assert_eq!(entries.len(), 3, "{entries:#?}");
    for entry in &entries {
        assert_eq!((entry.task.map(|task| task.to_string()).as_ref(), entry.tool.as_deref()), (Some(&id), Some("slow")));
        assert!(entry.from.is_some_and(|from| from.is_loopback()), "{entry:?}");
    }
    let expected = [("done", AuditAction::Create), ("done", AuditAction::Cancel), ("unchanged", AuditAction::Cancel)];
    assert_eq!(record.take(), expected.map(|(outcome, action)| entry(action, "ann", outcome)));
    let question = ann.start("asks", json!({})).await;
    until_open(&ann, &question, &["name"]).await;
    ann.answer(&question, json!({"name": accept("an-answer")})).await;
    with_timeout("the end", ann.until(&question, "completed")).await;
    assert_eq!(record.take(), [entry(AuditAction::Create, "ann", "done"), entry(AuditAction::Answer, "ann", "done")]);
    let bob = server.client().with_token("bob-token");
    bob.error("tasks/cancel", json!({"taskId": question})).await;
    assert_eq!(record.take(), [entry(AuditAction::Cancel, "bob", "there is no such task")]);
}

#[tokio::test]
async fn a_call_that_becomes_a_task_later_is_recorded_with_its_address_and_one_that_joins_as_such() {
    let gate = Gate::new();
    let (server, record) = recorded(&gate).await;
    let bob = Client::new(server.port).with_token("bob-token").declaring(json!({"extensions": {TASKS: {}, IDEMPOTENCY: {}}}));
    let call = || bob.ok("tools/call", json!({"name": "slow", "arguments": {}, "_meta": {KEY: "k"}}));
    let (first, second) = (call().await, call().await);
    assert_eq!(first["taskId"], second["taskId"]);
    assert_eq!(record.take(), [entry(AuditAction::Create, "bob", "done"), entry(AuditAction::Create, "bob", "joined")]);
    let late = Gate::new();
    let mut config = Config { promote_after: std::time::Duration::ZERO, ..Config::default() };
    let record = Arc::new(Record::default());
    config.engine.audit = Some(record.clone());
    let server = TestServer::start_with(registry([late.tool("late")]), config, Arc::new(SystemClock)).await;
    server.client().start("late", json!({})).await;
    let entries = record.entries();
    assert!(entries.len() == 1 && entries[0].from.is_some_and(|from| from.is_loopback()), "{entries:?}");
    late.go.send();
}

#[tokio::test]
async fn a_cancel_by_its_key_is_recorded_with_its_address() {
    let gate = Gate::new();
    let (server, record) = recorded(&gate).await;
    let bob = Client::new(server.port).with_token("bob-token").declaring(json!({"extensions": {TASKS: {}, IDEMPOTENCY: {}}}));
    let made = bob.ok("tools/call", json!({"name": "slow", "arguments": {}, "_meta": {KEY: "k"}})).await;
    record.take();
    let message = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 4711, "_meta": {KEY: "k"}}});
    assert_eq!(bob.post(&bob.headers(&message), message.to_string().as_bytes()).await.status, 202);
    with_timeout("the end of the tool", gate.stopped.wait()).await;
    bob.cancel(made["taskId"].as_str().expect("an id")).await;
    let entries = record.entries();
    assert!(entries.iter().all(|entry| entry.from.is_some_and(|from| from.is_loopback())), "{entries:#?}");
    let cancel = |outcome| entry(AuditAction::Cancel, "bob", outcome);
    assert_eq!(record.take(), [cancel("done"), cancel("unchanged")]);
}

#[tokio::test]
async fn what_is_refused_is_recorded() {
    let gate = Gate::new();
    let (server, record) = recorded(&gate).await;
    let list = async |token: &str| {
        let message: Value = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}});
        let client = server.client().with_token(token);
        client.post(&client.headers(&message), message.to_string().as_bytes()).await.status
    };
    assert_eq!(list("wrong").await, 401);
    assert_eq!(server.client().raw("tools/list", json!({})).await.status, 401, "who shows nothing has not tried");
    assert_eq!(record.take(), [(AuditAction::Refused, None, "sign-in: the token is not known here".to_owned())]);
    assert_eq!(api(&server, "GET /api/tasks", "ann-token").await, 403);
    assert_eq!(api(&server, "POST /api/server/drain", "bob-token").await, 403);
    assert_eq!(
        record.take(),
        [
            entry(AuditAction::Refused, "ann", "tasks/list needs the scopes look"),
            entry(AuditAction::Refused, "bob", "/api/server/drain is for admins")
        ]
    );
}

#[tokio::test]
async fn what_an_admin_does_with_tasks_of_others_is_recorded_as_its_own_doing() {
    let gate = Gate::new();
    let (server, record) = recorded(&gate).await;
    let bob = server.client().with_token("bob-token");
    let id = bob.start("slow", json!({})).await;
    for (line, status) in [
        (format!("GET /api/tasks/{id}"), 200),
        (format!("GET /api/tasks/{id}/output"), 200),
        (format!("POST /api/tasks/{id}/cancel"), 200),
        (format!("POST /api/tasks/{id}/cancel"), 200),
    ] {
        assert_eq!(api(&server, &line, "root-token").await, status, "{line}");
    }
    assert_eq!(api(&server, &format!("GET /api/tasks/{id}"), "bob-token").await, 200, "its own");
    let root = |action, outcome| entry(action, "root", outcome);
    assert_eq!(
        record.take(),
        [
            entry(AuditAction::Create, "bob", "done"),
            root(AuditAction::ReadOther, "done"),
            root(AuditAction::ReadOther, "done"),
            root(AuditAction::Cancel, "done"),
            root(AuditAction::Cancel, "unchanged"),
        ]
    );
    let _asked = server.server.drain_requested();
    assert_eq!(api(&server, "POST /api/server/drain", "root-token").await, 202);
    assert_eq!(record.take(), [root(AuditAction::Drain, "done")]);
    with_timeout("the end", server.stopped()).await;
    assert!(record.take().is_empty(), "the wish is recorded already");
}

#[tokio::test]
async fn what_an_admin_cancels_is_recorded_also_if_nobody_waits_for_the_answer() {
    let gate = Gate::new();
    let (server, record) = recorded(&gate).await;
    let id = server.client().with_token("bob-token").start("slow", json!({})).await;
    record.take();
    // It is asked, and whoever asked is gone at once.
    drop(server.server.answer_api("POST", &format!("/api/tasks/{id}/cancel")).now_or_never());
    with_timeout("the end of the tool", gate.stopped.wait()).await;
    let recorded = async {
        while record.entries().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    with_timeout("the record", recorded).await;
    assert_eq!(record.take(), [entry(AuditAction::Cancel, "local", "done")]);
}

#[tokio::test]
async fn a_session_and_a_server_that_is_told_to_end_are_recorded_too() {
    let gate = Gate::new();
    let record = Arc::new(Record::default());
    let mut config = Config::default();
    config.engine.audit = Some(record.clone());
    let server = TestServer::start_with(registry([gate.tool("slow").task(TaskMode::Always)]), config, Arc::new(SystemClock)).await;
    LegacySession::open(&server).await.start("slow", json!({})).await;
    assert_eq!(record.take(), [entry(AuditAction::Create, "local", "done")]);
    let metrics = Client::new(server.port).bytes(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert!(String::from_utf8_lossy(&metrics.body).contains("\ntaskwire_audit_lost_total 7\n"), "what is lost is counted");
    gate.go.send();
    with_timeout("the end", server.stopped()).await;
    assert_eq!(record.take(), [(AuditAction::Drain, None, "the process was told to end".to_owned())]);
}
