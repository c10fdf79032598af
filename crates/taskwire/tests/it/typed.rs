//! What authors in Rust write with types of their own: prompts, resources, questions, progress and hints.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use taskwire::tool::{
    Annotations, Ctx, Json, Message, Progress, Prompt, PromptCall, Question, Registry, Resource, ResourceCall, ResourceTemplate, Tool,
    ToolError,
};

use crate::{
    kit::{TestServer, with_timeout},
    legacy::kit::LegacySession,
    tasks::{registry, until_open},
    tool_harness::ToolHarness,
};

#[derive(Deserialize, JsonSchema)]
struct Review {
    /// The file to look at
    file: String,
    lines: Option<u32>,
}

async fn review(args: Review, _call: PromptCall) -> Result<Vec<Message>, ToolError> {
    let lines = args.lines.map_or_else(|| "all".to_owned(), |lines| lines.to_string());
    Ok(vec![Message::user(format!("Review {lines} lines of {}.", args.file)), Message::assistant("Gladly.")])
}

#[derive(Deserialize, Serialize, JsonSchema)]
struct Month {
    region: String,
    month: u32,
}

async fn sales(args: Month, _call: ResourceCall) -> Result<Json<Month>, ToolError> {
    Ok(Json(args))
}

async fn notes(_call: ResourceCall) -> Result<&'static str, ToolError> {
    Ok("# Notes")
}

fn catalog() -> Registry {
    let tools = registry([]);
    tools.prompt(Prompt::new("review", "Reviews a file", review).title("Review"));
    tools.resource(Resource::new("notes://all", "notes", notes).mime_type("text/markdown").description("What was noted"));
    tools.template(ResourceTemplate::new("sales://{region}/{month}", "sales", sales).title("Sales"));
    tools
}

#[tokio::test]
async fn the_arguments_of_a_prompt_are_a_type() {
    let server = TestServer::start(catalog()).await;
    let (modern, legacy) = (server.client(), LegacySession::open(&server).await);
    let lists = [modern.ok("prompts/list", json!({})).await, legacy.ok("prompts/list", json!({})).await];
    for list in lists {
        let prompt = &list["prompts"][0];
        assert_eq!((&prompt["name"], &prompt["title"]), (&json!("review"), &json!("Review")));
        let arguments = prompt["arguments"].as_array().expect("arguments");
        assert!(arguments.contains(&json!({"name": "file", "description": "The file to look at", "required": true})), "{prompt}");
        assert!(arguments.contains(&json!({"name": "lines", "required": false})), "{prompt}");
    }
    let asks = |arguments: Value| json!({"name": "review", "arguments": arguments});
    let params = asks(json!({"file": "a.rs", "lines": "7"}));
    for prompt in [modern.ok("prompts/get", params.clone()).await, legacy.ok("prompts/get", params).await] {
        assert_eq!(prompt["messages"][0], json!({"role": "user", "content": {"type": "text", "text": "Review 7 lines of a.rs."}}));
        assert_eq!(prompt["messages"][1]["role"], "assistant");
    }
    let all = modern.ok("prompts/get", asks(json!({"file": "a.rs"}))).await;
    assert_eq!(all["messages"][0]["content"]["text"], "Review all lines of a.rs.");
    for wrong in [json!({"file": "a.rs", "lines": "many"}), json!({})] {
        assert_eq!(modern.error("prompts/get", asks(wrong.clone())).await["code"], -32602, "{wrong}");
        assert_eq!(legacy.error("prompts/get", asks(wrong.clone())).await["code"], -32602, "{wrong}");
    }
}

#[tokio::test]
async fn resources_and_the_variables_of_templates_are_types() {
    let server = TestServer::start(catalog()).await;
    let (modern, legacy) = (server.client(), LegacySession::open(&server).await);
    let notes = json!({"uri": "notes://all", "name": "notes", "mimeType": "text/markdown", "description": "What was noted"});
    assert_eq!(modern.ok("resources/list", json!({})).await["resources"], json!([notes]));
    let templates = modern.ok("resources/templates/list", json!({})).await;
    assert_eq!(templates["resourceTemplates"], json!([{"uriTemplate": "sales://{region}/{month}", "name": "sales", "title": "Sales"}]));
    let read = |uri: &str| json!({ "uri": uri });
    for contents in [modern.ok("resources/read", read("notes://all")).await, legacy.ok("resources/read", read("notes://all")).await] {
        assert_eq!(contents["contents"], json!([{"uri": "notes://all", "mimeType": "text/markdown", "text": "# Notes"}]));
    }
    let uri = "sales://north%20sea/7";
    for contents in [modern.ok("resources/read", read(uri)).await, legacy.ok("resources/read", read(uri)).await] {
        let text = r#"{"region":"north sea","month":7}"#;
        assert_eq!(contents["contents"], json!([{"uri": uri, "mimeType": "application/json", "text": text}]));
    }
    let wrong = modern.error("resources/read", read("sales://north/july")).await;
    assert_eq!(wrong["code"], -32602, "{wrong}");
    assert!(wrong["message"].as_str().is_some_and(|why| why.contains("`sales://north/july` does not fit")), "{wrong}");
}

#[tokio::test]
async fn a_yes_and_a_choice_are_asked_in_one_line_each() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    let asking = tokio::spawn({
        let ctx = run.ctx.clone();
        async move {
            if !ctx.ask("sure", Question::confirm("Delete 3 files?")).await?.confirmed() {
                return Err(ToolError::new("nobody agreed"));
            }
            ctx.ask("region", Question::choice("Which region?", ["eu", "us"])).await?.choice()
        }
    });
    let answer = |key: &str, content: Value| json!({"taskId": id, "inputResponses": {key: {"action": "accept", "content": content}}});
    with_timeout("the question", harness.client.until(&id, "input_required")).await;
    assert_eq!(harness.client.error("tasks/update", answer("sure", json!({"confirm": "yes"}))).await["code"], -32602);
    harness.client.ok("tasks/update", answer("sure", json!({"confirm": true}))).await;
    until_open(&harness.client, &id, &["region"]).await;
    let refused = harness.client.error("tasks/update", answer("region", json!({"answer": "moon"}))).await;
    assert!(refused["message"].as_str().is_some_and(|why| why.contains("moon") && why.contains("eu")), "{refused}");
    harness.client.ok("tasks/update", answer("region", json!({"answer": "eu"}))).await;
    assert_eq!(with_timeout("the answer", asking).await.expect("no panic").expect("a choice"), "eu");
}

#[tokio::test]
async fn progress_and_hints_are_built() {
    let bake = |ctx: Ctx| async move {
        ctx.progress(Progress::of(1, 4_u64).message("kneading")).await?;
        ctx.progress(Progress::at(2.5)).await?;
        Ok::<_, ToolError>("a cake")
    };
    let hints = Annotations::default().title("Bake").read_only(false).destructive(false).idempotent(true).open_world(false);
    let tool = Tool::raw("bake", "Bakes", json!({"type": "object", "properties": {}}), bake).annotations(hints);
    let server = TestServer::start(registry([tool])).await;
    let client = server.plain_client();
    let params = json!({"name": "bake", "arguments": {}, "_meta": {"progressToken": "p"}});
    let messages = client.messages("tools/call", params).await;
    assert_eq!(messages[0]["params"], json!({"progressToken": "p", "progress": 1.0, "total": 4.0, "message": "kneading"}));
    assert_eq!((&messages[1]["params"]["progress"], messages[1]["params"].get("total")), (&json!(2.5), None));
    let listed = client.ok("tools/list", json!({})).await;
    let hints = json!({"title": "Bake", "readOnlyHint": false, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false});
    assert_eq!(listed["tools"][0]["annotations"], hints);
}
