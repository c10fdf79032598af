//! Several nodes share a store, and a client meets another one with each request.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use taskwire::{
    clock::SystemClock,
    core::{SessionId, task::Status},
    server::Config,
    store::{Memory, PostgresConfig, PostgresStore},
    tool::{Ctx, Registry, TaskMode, Tool, ToolError},
};
use taskwire_testkit::Installation;

use crate::{
    kit::{TempDir, TestServer, with_timeout, without_disk_reserve},
    legacy::kit::{LegacySession, Sse},
    tasks::{accept, name_form, name_in},
};

/// Asks for a first name and, when that is answered, for a last one; writes before and between.
async fn names(_: Value, ctx: Ctx) -> Result<String, ToolError> {
    ctx.text("who are you?\n").await?;
    let first = name_in(&ctx.ask("first", name_form("First name?")).await?);
    ctx.text("and further?\n").await?;
    let last = name_in(&ctx.ask("last", name_form("Last name?")).await?);
    Ok(format!("{first} {last}"))
}

fn tools() -> Registry {
    let tools = Registry::new();
    tools.tool(Tool::new("names", "Asks who somebody is", names).task(TaskMode::Always)).expect("a tool");
    tools.tool(Tool::new("plain_names", "Asks the caller who that is", names)).expect("a tool");
    tools
}

/// A store that nodes share, with what it runs on.
pub(crate) enum SharedStore {
    Memory(Memory),
    Postgres(Box<taskwire_testkit::Server>),
}

impl SharedStore {
    pub(crate) fn postgres() -> Self {
        let installation = Installation::find(18).unwrap_or_else(|missing| panic!("{missing}"));
        Self::Postgres(Box::new(taskwire_testkit::Server::start_fast(&installation)))
    }

    /// A node of this name.
    pub(crate) async fn node(&self, name: &str, tools: Registry, config: Config) -> TestServer {
        let (dir, config) = (Arc::new(TempDir::new()), without_disk_reserve(config));
        match self {
            Self::Memory(memory) => TestServer::start_on(dir, memory.open_node(name), tools, config, Arc::new(SystemClock)).await,
            Self::Postgres(server) => {
                let opened = PostgresStore::open(PostgresConfig::new(server.url(), name)).await;
                TestServer::start_on(dir, opened.expect("a store"), tools, config, Arc::new(SystemClock)).await
            }
        }
    }
}

/// Makes each of these a test on every store that nodes can share.
macro_rules! on_each_store {
    ($($test:ident)+) => {
        mod memory {
            use crate::nodes::SharedStore;
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test(&SharedStore::Memory(taskwire::store::Memory::default())).await;
                }
            )+
        }

        mod postgres {
            use crate::nodes::SharedStore;
            $(
                #[tokio::test]
                #[ignore = "needs PostgreSQL"]
                async fn $test() {
                    super::$test(&SharedStore::postgres()).await;
                }
            )+
        }
    };
}

mod balanced;
mod database;

on_each_store! {
    a_question_is_asked_once_whichever_nodes_have_the_streams
    a_question_is_asked_again_where_it_was_asked_if_another_node_gets_an_answer_that_does_not_fit
    a_call_is_cancelled_by_whichever_node_hears_of_it
    a_later_session_stream_on_another_node_goes_on_where_the_first_one_was
    terms_that_one_node_changes_hold_on_every_other
    a_session_that_one_node_ends_is_over_on_every_other
    nodes_have_names_and_tasks_name_the_node_that_runs_them
}

/// Two nodes, and a session as each of them has it.
async fn session_on_two_nodes(store: &SharedStore) -> ([TestServer; 2], LegacySession, LegacySession) {
    let nodes = [store.node("here", tools(), Config::default()).await, store.node("there", tools(), Config::default()).await];
    let here = LegacySession::open(&nodes[0]).await;
    let there = here.at(nodes[1].port);
    (nodes, here, there)
}

/// The next question on a stream.
async fn question(stream: &mut Sse) -> Value {
    with_timeout("a question", stream.until("elicitation/create")).await
}

/// Answers a question in a way that is refused.
async fn does_not_fit(session: &LegacySession, question: &Value) {
    let response = session.post(&json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "perhaps"}})).await;
    assert_eq!(response.status, 400, "{}", response.json());
}

async fn a_question_is_asked_once_whichever_nodes_have_the_streams(store: &SharedStore) {
    let (_nodes, here, there) = session_on_two_nodes(store).await;
    let mut session_stream = here.open_session_stream().await;
    let id = there.start("names", json!({})).await;
    let mut result = there.stream("tasks/result", json!({"taskId": id})).await;
    let first = question(&mut session_stream).await;
    // The node that gets the answer is not the one that asked.
    there.answer(&first, accept("Ada")).await;
    let last = question(&mut session_stream).await;
    assert_ne!(first["id"], last["id"]);
    // The session stream ends: what it asked is asked where the client still listens.
    drop(session_stream);
    let again = question(&mut result).await;
    assert_eq!(again["params"]["message"], last["params"]["message"], "this stream has asked nothing before");
    here.answer(&again, accept("Lovelace")).await;
    let messages = with_timeout("the result", result.rest()).await;
    let end = messages.last().expect("a response");
    assert_eq!(end["result"]["content"][0]["text"], "Ada Lovelace", "{messages:?}");
}

async fn a_question_is_asked_again_where_it_was_asked_if_another_node_gets_an_answer_that_does_not_fit(store: &SharedStore) {
    let (_nodes, here, there) = session_on_two_nodes(store).await;
    // On the stream of a plain call, and on the session stream.
    let mut call = here.stream("tools/call", json!({"name": "plain_names", "arguments": {}})).await;
    let first = question(&mut call).await;
    does_not_fit(&there, &first).await;
    let again = question(&mut call).await;
    assert_ne!(first["id"], again["id"]);
    there.answer(&again, accept("Ada")).await;
    let last = question(&mut call).await;
    there.answer(&last, accept("Lovelace")).await;
    let messages = with_timeout("the result", call.rest()).await;
    assert_eq!(messages.last().expect("a response")["result"]["content"][0]["text"], "Ada Lovelace", "{messages:?}");

    let mut session_stream = here.open_session_stream().await;
    there.start("names", json!({})).await;
    let first = question(&mut session_stream).await;
    does_not_fit(&there, &first).await;
    let again = question(&mut session_stream).await;
    assert_ne!(first["id"], again["id"]);
}

async fn a_call_is_cancelled_by_whichever_node_hears_of_it(store: &SharedStore) {
    let (nodes, here, there) = session_on_two_nodes(store).await;
    let id = here.next_id();
    let message = here.message(id, "tools/call", json!({"name": "plain_names", "arguments": {}}));
    let mut call = here.stream_message(&message).await;
    question(&mut call).await;
    let task = *nodes[0].server.engine().reader().open_tasks(None, 1).await.expect("readable").first().expect("a task waits for an answer");
    there.notify("notifications/cancelled", json!({"requestId": id})).await;
    with_timeout("the end of the call", call.rest()).await;
    let task = nodes[1].server.engine().reader().task(task).await.expect("readable").expect("there");
    assert_eq!(task.status(), Status::Cancelled);
}

async fn a_later_session_stream_on_another_node_goes_on_where_the_first_one_was(store: &SharedStore) {
    let (_nodes, here, there) = session_on_two_nodes(store).await;
    let mut first = here.open_session_stream().await;
    let id = here.start("names", json!({})).await;
    let asked = question(&mut first).await;
    let mut second = there.open_session_stream().await;
    with_timeout("the end of the first", async { while first.next().await.is_some() {} }).await;
    // Whoever opens a stream without resuming may have seen nothing: what is open is asked there.
    let again = question(&mut second).await;
    assert_eq!(again["params"]["message"], asked["params"]["message"]);
    there.answer(&again, accept("Ada")).await;
    let last = question(&mut second).await;
    here.answer(&last, accept("Lovelace")).await;
    let end = with_timeout("the end", async {
        loop {
            let message = second.next().await.expect("the stream is open");
            if message["params"]["status"] == "completed" {
                break message;
            }
        }
    });
    assert_eq!(end.await["params"]["taskId"], id);
}

async fn terms_that_one_node_changes_hold_on_every_other(store: &SharedStore) {
    let (nodes, here, there) = session_on_two_nodes(store).await;
    // Both nodes know the session.
    there.ok("ping", json!({})).await;
    let set = |session: LegacySession, level: &'static str| async move { session.ok("logging/setLevel", json!({"level": level})).await };
    for level in ["debug", "error", "warning", "info"] {
        // At the same time another change, on the other node.
        let uri = format!("taskwire://nothing/{level}");
        let subscribed = there.raw("resources/subscribe", json!({"uri": uri}));
        let (_, subscribed) = tokio::join!(set(here.clone(), level), subscribed);
        assert!(subscribed.status < 500, "{}", subscribed.status);
    }
    let reader = nodes[0].server.engine().reader();
    let row = reader.session(&SessionId::new(here.session())).await.expect("readable").expect("there");
    let terms: Value = row.data.read().expect("JSON");
    assert_eq!(terms["level"], 1, "{terms}");
}

async fn a_session_that_one_node_ends_is_over_on_every_other(store: &SharedStore) {
    let (_nodes, here, there) = session_on_two_nodes(store).await;
    let mut stream = there.open_session_stream().await;
    assert_eq!(here.clone().end().await, 200);
    assert_eq!(there.raw("ping", json!({})).await.status, 404);
    with_timeout("the end of its stream", async { while stream.next().await.is_some() {} }).await;
}

async fn nodes_have_names_and_tasks_name_the_node_that_runs_them(store: &SharedStore) {
    let (nodes, here, _) = session_on_two_nodes(store).await;
    let mut stream = here.open_session_stream().await;
    here.start("names", json!({})).await;
    question(&mut stream).await;
    for node in &nodes {
        let known = node.server.engine().nodes().await.expect("readable");
        let known: Vec<_> = known.iter().map(|node| (&*node.name, node.open_tasks, node.lease_left > Duration::ZERO)).collect();
        assert_eq!(known, [("here", 1, true), ("there", 0, true)]);
    }
}
