//! The life of a task as its caller sees it.

use std::time::Duration;

use serde_json::json;
use taskwire::tool::{Ctx, Registry, TaskMode, Tool};

use crate::kit::{TestServer, soon};

#[tokio::test]
async fn a_slow_call_becomes_a_task_and_ends_with_its_result() {
    let tools = Registry::new();
    let slow = Tool::raw("slow", "Waits", json!({"type": "object"}), |ctx: Ctx| async move {
        ctx.sleep(Duration::from_millis(50)).await?;
        Ok("done")
    });
    tools.tool(slow.task(TaskMode::Always)).expect("a tool");
    let server = TestServer::start(tools).await;
    let client = server.client();
    let id = client.start("slow", json!({})).await;
    let task = soon("the end", client.until(&id, "completed")).await;
    assert_eq!(task["result"]["content"][0]["text"], "done");
    assert_eq!(client.get(&id).await["result"], task["result"]);
    server.stopped().await;
}
