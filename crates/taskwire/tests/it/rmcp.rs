//! The official Rust client, unmodified, against this server: each side accepts what the other sends.

use std::{fmt::Debug, sync::Arc, time::Duration};

use rmcp::{
    ClientHandler, ClientLifecycleMode, ErrorData, RoleClient, ServiceError,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ClientConfig, ContentBlock, DetailedTask,
        ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationCapability, ErrorCode, ExtensionCapabilities, GetTaskParams,
        InputRequest, InputResponses, JsonObject, ProtocolVersion, ServerNotification, SubscriptionFilter, TaskPayload, TaskStatus,
        UpdateTaskParams, object,
    },
    serve_client_with_lifecycle,
    service::{RequestContext, RunningService, SubscriptionEnd},
    transport::StreamableHttpClientTransport,
};
use serde_json::{Value, json};
use taskwire::{
    clock::SystemClock,
    server::{Config, HttpConfig},
    tool::{Ctx, Question, TaskMode, Tool, ToolError},
};
use tokio::sync::Notify;

use crate::{
    kit::{TASKS, TestServer, with_timeout},
    tasks::registry,
};

type Client = RunningService<RoleClient, ClientConfig>;

/// A client that declares the Tasks extension and forms.
fn with_tasks() -> ClientConfig {
    let mut config = ClientConfig::default();
    config.capabilities.elicitation = Some(ElicitationCapability::new());
    config.capabilities.extensions = Some(ExtensionCapabilities::from([(TASKS.to_owned(), JsonObject::new())]));
    config
}

/// A client that knows no tasks, and a person who answers its forms.
struct Person;

impl ClientHandler for Person {
    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        match request {
            ElicitRequestParams::FormElicitationParams { message, .. } if message == "Where to?" => Ok(staging()),
            _ => Ok(ElicitResult::new(ElicitationAction::Decline)),
        }
    }

    fn get_info(&self) -> ClientConfig {
        let mut config = ClientConfig::default();
        config.capabilities.elicitation = Some(ElicitationCapability::new());
        config
    }
}

fn staging() -> ElicitResult {
    ElicitResult::new(ElicitationAction::Accept).with_content(json!({"target": "staging"}))
}

/// A tool that says its own name, at once.
fn named(name: &'static str) -> Tool {
    Tool::raw(name, "Says its name", json!({"type": "object"}), move |_ctx: Ctx| async move { Ok(name) })
}

/// A tool that asks one question; each of its calls is a task if it can be.
fn deploy() -> Tool {
    let tool = Tool::raw("deploy", "Asks where to", json!({"type": "object"}), |ctx: Ctx| async move {
        let schema = json!({"type": "object", "properties": {"target": {"type": "string"}}, "required": ["target"]});
        let form: Value = ctx.ask("target", Question::form("Where to?", schema)).await?.read()?;
        Ok(format!("deployed to {}", form["target"].as_str().unwrap_or_default()))
    });
    tool.task(TaskMode::Always)
}

/// Connects in the modern era.
async fn connect<H: ClientHandler>(server: &TestServer, handler: H) -> RunningService<RoleClient, H> {
    connect_by(server, handler, ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }).await
}

async fn connect_by<H: ClientHandler>(server: &TestServer, handler: H, lifecycle: ClientLifecycleMode) -> RunningService<RoleClient, H> {
    // The client of ours does this itself.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let transport = StreamableHttpClientTransport::from_uri(format!("http://127.0.0.1:{}/mcp", server.port));
    with_timeout("the handshake", serve_client_with_lifecycle(handler, transport, lifecycle)).await.expect("a server that rmcp understands")
}

/// Calls a tool that becomes a task, and gives the id of the task.
async fn start(client: &Client, call: CallToolRequestParams) -> String {
    match with_timeout("the call", client.call_tool_once(call)).await.expect("an answer") {
        CallToolResponse::Task(created) => created.task.task_id,
        other => panic!("not a task: {other:?}"),
    }
}

async fn get(client: &Client, task: &str) -> DetailedTask {
    with_timeout("the state of the task", client.get_task(GetTaskParams::new(task))).await.expect("the state of the task").task
}

/// Polls until the task has this status. rmcp leaves the polling to its user.
async fn until(client: &Client, task: &str, status: TaskStatus) -> DetailedTask {
    let polling = async {
        loop {
            let state = get(client, task).await;
            if state.status() == status {
                return state;
            }
            assert!(!state.status().is_terminal(), "the task ended otherwise: {state:?}");
        }
    };
    with_timeout("the awaited status", polling).await
}

/// The result of a completed task, as rmcp reads it.
fn result(task: DetailedTask) -> CallToolResult {
    match task.payload {
        TaskPayload::Completed { result } => serde_json::from_value(Value::Object(result)).expect("a tool result"),
        other => panic!("not completed: {other:?}"),
    }
}

fn text(result: &CallToolResult) -> &str {
    &result.content.first().and_then(ContentBlock::as_text).expect("a text").text
}

/// The JSON-RPC error that a request came back with.
fn refusal<T: Debug>(answer: Result<T, ServiceError>) -> ErrorData {
    match answer.expect_err("a refusal") {
        ServiceError::McpError(error) => error,
        other => panic!("not an error of the server: {other}"),
    }
}

async fn end<H: ClientHandler>(client: RunningService<RoleClient, H>, server: TestServer) {
    with_timeout("the end of the client", client.cancel()).await.expect("no panic");
    with_timeout("the end of the server", server.stopped()).await;
}

#[tokio::test]
async fn rmcp_discovers_the_modern_era_and_the_tasks_extension() {
    let server = TestServer::start(registry([])).await;
    let client = connect(&server, with_tasks()).await;
    let info = client.peer_info().expect("what was discovered");
    assert_eq!(info.protocol_version, ProtocolVersion::V_2026_07_28);
    assert!(info.capabilities.supports_tasks(), "{:?}", info.capabilities);
    assert_eq!(info.server_info.as_ref().expect("a name").name, "taskwire");
    end(client, server).await;
}

#[tokio::test]
async fn rmcp_opens_a_session_is_asked_in_it_and_comes_back_to_a_call() {
    let leaves = Tool::raw("leaves", "Sends its caller away, then asks", json!({"type": "object"}), |ctx: Ctx| async move {
        ctx.disconnect(Duration::from_millis(10));
        let schema = json!({"type": "object", "properties": {"target": {"type": "string"}}});
        let form: Value = ctx.ask("target", Question::form("Where to?", schema)).await?.read()?;
        Ok(format!("went to {}", form["target"].as_str().unwrap_or_default()))
    });
    let server = TestServer::start_without_followups(registry([named("a"), deploy(), leaves])).await;
    let client = connect_by(&server, Person, ClientLifecycleMode::Initialize).await;
    let info = client.peer_info().expect("what was agreed on");
    assert_eq!(info.protocol_version, ProtocolVersion::V_2025_11_25);
    let tools = with_timeout("the list", client.list_all_tools()).await.expect("tools");
    assert_eq!(tools.iter().map(|tool| &*tool.name).collect::<Vec<_>>(), ["a", "deploy", "leaves"]);
    for (tool, said) in [("a", "a"), ("deploy", "deployed to staging"), ("leaves", "went to staging")] {
        let result = with_timeout(tool, client.call_tool(CallToolRequestParams::new(tool))).await.expect("an answer");
        assert_eq!(text(&result), said);
    }
    end(client, server).await;
}

#[tokio::test]
async fn rmcp_lists_every_page_of_tools() {
    let config = Config { page_len: 1, ..Config::default() };
    let server = TestServer::start_with(registry([named("a"), named("b"), named("c")]), config, Arc::new(SystemClock)).await;
    let client = connect(&server, with_tasks()).await;
    let tools = with_timeout("the list", client.list_all_tools()).await.expect("tools");
    let names: Vec<&str> = tools.iter().map(|tool| &*tool.name).collect();
    assert_eq!(names, ["a", "b", "c"]);
    end(client, server).await;
}

#[tokio::test]
async fn rmcp_gets_the_result_of_a_quick_tool_directly() {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    let greet = Tool::raw("greet", "Greets", schema, |ctx: Ctx| async move {
        let arguments: Value = ctx.arguments().read()?;
        Ok(format!("Hello, {}", arguments["name"].as_str().unwrap_or_default()))
    });
    let server = TestServer::start(registry([greet])).await;
    let client = connect(&server, with_tasks()).await;
    let call = CallToolRequestParams::new("greet").with_arguments(object(json!({"name": "Ada"})));
    let result = with_timeout("the call", client.call_tool(call)).await.expect("a result");
    assert_eq!(text(&result), "Hello, Ada");
    end(client, server).await;
}

#[tokio::test]
async fn rmcp_polls_a_task_from_working_to_its_result() {
    let gate = Arc::new(Notify::new());
    let slow = Tool::raw("slow", "Waits at a gate", json!({"type": "object"}), {
        let gate = gate.clone();
        move |_ctx: Ctx| {
            let gate = gate.clone();
            async move {
                gate.notified().await;
                Ok("done")
            }
        }
    });
    let server = TestServer::start(registry([slow.task(TaskMode::Always)])).await;
    let client = connect(&server, with_tasks()).await;
    let id = start(&client, CallToolRequestParams::new("slow")).await;
    let working = get(&client, &id).await;
    assert_eq!(working.status(), TaskStatus::Working);
    assert!(working.task.poll_interval_ms.is_some(), "it says when to ask again: {working:?}");
    gate.notify_one();
    let completed = result(until(&client, &id, TaskStatus::Completed).await);
    assert_eq!(text(&completed), "done");
    assert_ne!(completed.is_error, Some(true));
    end(client, server).await;
}

#[tokio::test]
async fn rmcp_answers_a_question_of_a_task() {
    let server = TestServer::start(registry([deploy()])).await;
    let client = connect(&server, with_tasks()).await;
    let id = start(&client, CallToolRequestParams::new("deploy")).await;
    let asking = until(&client, &id, TaskStatus::InputRequired).await;
    let TaskPayload::InputRequired { input_requests } = asking.payload else { panic!("no questions: {:?}", asking.task) };
    let Some(InputRequest::Elicitation(question)) = input_requests.get("target") else { panic!("no form: {input_requests:?}") };
    let ElicitRequestParams::FormElicitationParams { message, .. } = &question.params else { panic!("no form: {question:?}") };
    assert_eq!(message, "Where to?");
    let answer = serde_json::to_value(staging()).expect("JSON");
    let update = UpdateTaskParams::new(&*id, InputResponses::from([("target".to_owned(), answer)]));
    with_timeout("the acknowledgement", client.update_task(update)).await.expect("an acknowledgement");
    assert_ne!(get(&client, &id).await.status(), TaskStatus::InputRequired, "what is acknowledged shows at once");
    assert_eq!(text(&result(until(&client, &id, TaskStatus::Completed).await)), "deployed to staging");
    end(client, server).await;
}

#[tokio::test]
async fn rmcp_cancels_a_task_and_its_tool_is_told() {
    let (started, saw_stop) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let endless = Tool::raw("endless", "Works until it is stopped", json!({"type": "object"}), {
        let (started, saw_stop) = (started.clone(), saw_stop.clone());
        move |ctx: Ctx| {
            let (started, saw_stop) = (started.clone(), saw_stop.clone());
            async move {
                started.notify_one();
                ctx.cancelled().await;
                saw_stop.notify_one();
                Err::<(), _>(ToolError::stopped())
            }
        }
    });
    let server = TestServer::start(registry([endless.task(TaskMode::Always)])).await;
    let client = connect(&server, with_tasks()).await;
    let id = start(&client, CallToolRequestParams::new("endless")).await;
    with_timeout("the start of the tool", started.notified()).await;
    with_timeout("the acknowledgement", client.cancel_task(CancelTaskParams::new(&*id))).await.expect("an acknowledgement");
    with_timeout("the end of the tool", saw_stop.notified()).await;
    let cancelled = until(&client, &id, TaskStatus::Cancelled).await;
    assert_eq!(cancelled.payload, TaskPayload::Cancelled);
    end(client, server).await;
}

#[tokio::test]
async fn a_tool_that_says_it_failed_is_a_completed_task_to_rmcp() {
    let failing = Tool::raw("failing", "Fails", json!({"type": "object"}), |_ctx: Ctx| async move {
        Err::<(), _>(ToolError::new("there is no such city"))
    });
    let server = TestServer::start(registry([failing.task(TaskMode::Always)])).await;
    let client = connect(&server, with_tasks()).await;
    let id = start(&client, CallToolRequestParams::new("failing")).await;
    let completed = result(until(&client, &id, TaskStatus::Completed).await);
    assert_eq!(completed.is_error, Some(true));
    assert_eq!(text(&completed), "there is no such city");
    end(client, server).await;
}

#[tokio::test]
async fn a_protocol_error_is_a_failed_task_to_rmcp() {
    let broken = Tool::raw("broken", "Breaks", json!({"type": "object"}), |_ctx: Ctx| async move {
        Err::<(), _>(ToolError::protocol(-32603, "the disk is full"))
    });
    let server = TestServer::start(registry([broken.task(TaskMode::Always)])).await;
    let client = connect(&server, with_tasks()).await;
    let id = start(&client, CallToolRequestParams::new("broken")).await;
    let failed = until(&client, &id, TaskStatus::Failed).await;
    let TaskPayload::Failed { error } = failed.payload else { panic!("no error: {:?}", failed.task) };
    assert_eq!(Value::Object(error), json!({"code": -32603, "message": "the disk is full"}));
    end(client, server).await;
}

#[tokio::test]
async fn rmcp_is_told_that_there_is_no_such_task() {
    let server = TestServer::start(registry([])).await;
    let client = connect(&server, with_tasks()).await;
    let got = with_timeout("tasks/get", client.get_task(GetTaskParams::new("nobody"))).await;
    assert_eq!(refusal(got).code, ErrorCode::INVALID_PARAMS);
    let updated = with_timeout("tasks/update", client.update_task(UpdateTaskParams::new("nobody", InputResponses::new()))).await;
    assert_eq!(refusal(updated).code, ErrorCode::INVALID_PARAMS);
    let cancelled = with_timeout("tasks/cancel", client.cancel_task(CancelTaskParams::new("nobody"))).await;
    assert_eq!(refusal(cancelled).code, ErrorCode::INVALID_PARAMS);
    end(client, server).await;
}

#[tokio::test]
async fn rmcp_without_the_extension_gets_results_and_never_tasks() {
    let server = TestServer::start(registry([named("always").task(TaskMode::Always)])).await;
    let client = connect(&server, ClientConfig::default()).await;
    let result = with_timeout("the call", client.call_tool(CallToolRequestParams::new("always"))).await.expect("a result");
    assert_eq!(text(&result), "always");
    end(client, server).await;
}

#[tokio::test]
async fn rmcp_without_the_extension_learns_which_capability_tasks_need() {
    let server = TestServer::start(registry([])).await;
    let client = connect(&server, ClientConfig::default()).await;
    let error = refusal(with_timeout("tasks/get", client.get_task(GetTaskParams::new("nobody"))).await);
    assert_eq!(error.code, ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY);
    let data = error.data.expect("what is missing");
    assert_eq!(data["requiredCapabilities"], json!({"extensions": {TASKS: {}}}));
    end(client, server).await;
}

#[tokio::test]
async fn rmcp_without_the_extension_answers_questions_by_its_own_handler() {
    let server = TestServer::start(registry([deploy()])).await;
    let client = connect(&server, Person).await;
    let result = with_timeout("the call", client.call_tool(CallToolRequestParams::new("deploy"))).await.expect("a result");
    assert_eq!(text(&result), "deployed to staging");
    end(client, server).await;
}

#[tokio::test]
async fn the_headers_of_rmcp_satisfy_a_strict_server() {
    let schema = json!({"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}});
    let routed = Tool::raw("routed", "Is routed by a header", schema, |_ctx: Ctx| async move { Ok("done") });
    let config = Config { http: HttpConfig { strict_headers: true, ..HttpConfig::default() }, ..Config::default() };
    let server = TestServer::start_with(registry([routed.task(TaskMode::Always)]), config, Arc::new(SystemClock)).await;
    let client = connect(&server, with_tasks()).await;
    // Only a tool that was listed has its arguments repeated as headers.
    with_timeout("the list", client.list_all_tools()).await.expect("tools");
    let call = CallToolRequestParams::new("routed").with_arguments(object(json!({"region": "Zürich"})));
    let id = start(&client, call).await;
    assert_eq!(text(&result(until(&client, &id, TaskStatus::Completed).await)), "done");
    end(client, server).await;
}

#[tokio::test]
async fn a_new_tool_reaches_rmcp_while_it_listens() {
    let tools = registry([named("old")]);
    let server = TestServer::start(tools.clone()).await;
    let client = connect(&server, with_tasks()).await;
    assert_eq!(with_timeout("the list", client.list_all_tools()).await.expect("tools").len(), 1);
    let filter = SubscriptionFilter::builder().tools_list_changed().build();
    let mut subscription = with_timeout("the stream", client.listen(filter)).await.expect("a stream");
    tools.tool(named("new")).expect("a tool");
    let notification = with_timeout("the notification", subscription.next()).await.expect("no error");
    assert!(matches!(notification, Some(ServerNotification::ToolListChangedNotification(_))), "{notification:?}");
    assert_eq!(with_timeout("the list", client.list_all_tools()).await.expect("tools").len(), 2);
    drop(subscription);
    end(client, server).await;
}

#[tokio::test]
async fn a_shutdown_ends_a_stream_of_rmcp_in_good_order() {
    let mut server = TestServer::start(registry([])).await;
    let client = connect(&server, with_tasks()).await;
    let filter = SubscriptionFilter::builder().tools_list_changed().build();
    let mut subscription = with_timeout("the stream", client.listen(filter)).await.expect("a stream");
    server.stop();
    assert!(with_timeout("the end", subscription.next()).await.expect("no error").is_none(), "nothing but the end");
    assert!(matches!(subscription.end(), Some(SubscriptionEnd::Graceful(_))), "{:?}", subscription.end());
    end(client, server).await;
}
