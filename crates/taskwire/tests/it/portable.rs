//! What every client accepts: schemas of the kind that all of them know, and `null` for what may be left out.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use taskwire::tool::{Ctx, Tool, ToolError, portability};

use crate::{
    kit::{TestServer, with_timeout},
    legacy::kit::LegacySession,
    tasks::registry,
    tool_harness::{ToolHarness, text_of},
};

/// How to greet.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Manner {
    /// With a bow.
    Formal,
    Short,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Greeting {
    name: String,
    often: Option<u32>,
    #[serde(default)]
    manner: Option<Manner>,
    #[serde(default)]
    friends: Option<Vec<String>>,
}

/// Returns its arguments, as it parsed them and as `ctx` has them.
fn greet() -> Tool {
    Tool::new("greet", "Greets somebody", |Greeting { name, often, manner, friends }: Greeting, ctx: Ctx| async move {
        Ok::<_, ToolError>(format!("{name} {often:?} {manner:?} {friends:?} of {:?}", ctx.arguments()))
    })
}

#[tokio::test]
async fn every_client_takes_the_schemas_that_we_write() {
    let server = TestServer::start(registry([greet()])).await;
    let modern = server.plain_client().ok("tools/list", json!({})).await;
    let legacy = LegacySession::declaring(&server, json!({})).await.ok("tools/list", json!({})).await;
    for list in [modern, legacy] {
        let tools = list["tools"].as_array().expect("tools");
        assert!(tools.len() >= 5, "one of a Rust type, and the follow-up tools: {list}");
        for tool in tools {
            let (name, description) = (tool["name"].as_str().expect("a name"), tool["description"].as_str().expect("words"));
            assert_eq!(portability(name, description, &tool["inputSchema"]), [""; 0], "{tool}");
        }
    }
}

#[tokio::test]
async fn a_null_for_what_may_be_left_out_is_left_out() {
    let server = TestServer::start(registry([greet()])).await;
    let (modern, legacy) = (server.plain_client(), LegacySession::declaring(&server, json!({})).await);
    let nulls = json!({"name": "Ada", "often": null, "manner": null, "friends": null});
    let expected = "Ada None None None of {\"name\":\"Ada\"}";
    for result in [modern.call("greet", nulls.clone()).await, legacy.call("greet", nulls).await] {
        assert_eq!(text_of(&result["content"]), expected);
    }
    let some = json!({"name": "Ada", "often": 2, "manner": "formal", "friends": null});
    for result in [modern.call("greet", some.clone()).await, legacy.call("greet", some).await] {
        assert!(text_of(&result["content"]).starts_with("Ada Some(2) Some(Formal) None of "), "{result}");
    }
}

#[tokio::test]
async fn a_null_for_what_is_needed_is_refused_by_its_name() {
    let server = TestServer::start(registry([greet()])).await;
    let (modern, legacy) = (server.plain_client(), LegacySession::declaring(&server, json!({})).await);
    let null = json!({"name": null, "often": null});
    for result in [modern.call("greet", null.clone()).await, legacy.call("greet", null).await] {
        assert_eq!(result["isError"], true, "{result}");
        let text = text_of(&result["content"]);
        assert!(text.contains("`name`: null is not of type") && !text.contains("often"), "{text}");
    }
}

#[tokio::test]
async fn the_follow_up_tools_take_nulls_in_both_eras() {
    let mut harness = ToolHarness::new().await;
    let (modern, legacy) = (harness.server.plain_client(), LegacySession::declaring(&harness.server, json!({})).await);
    let (id, mut run) = harness.task().await;
    run.ends("all done");
    with_timeout("the end", harness.client.until(&id, "completed")).await;
    let wait = json!({"task_id": id, "timeout_s": null});
    for result in [modern.call("task_wait", wait.clone()).await, legacy.call("task_wait", wait).await] {
        assert_eq!(text_of(&result["content"]), "all done");
    }
    let output = json!({"task_id": id, "after": null});
    for result in [modern.call("task_output", output.clone()).await, legacy.call("task_output", output).await] {
        assert_ne!(result["isError"], true, "{result}");
    }
    let answer = json!({"task_id": id, "key": null, "value": null, "action": null});
    let result: Value = modern.call("task_answer", answer).await;
    assert!(text_of(&result["content"]).contains("asks nothing any more"), "it is the task that says no: {result}");
}
