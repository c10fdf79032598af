//! A task server of rmcp, the official Rust SDK: nothing of Taskwire is in it, and `taskwire` is run against it.
//!
//! `rmcp_server` takes a free port and prints "listening URL"; `rmcp_server --stdio` speaks on its standard streams.
//! `interop/servers.py` starts it.

use std::{convert::Infallible, error::Error, process::ExitCode, sync::Arc, time::Duration};

use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ClientCapabilities, ContentBlock, CreateTaskResult,
        ElicitRequest, ElicitRequestParams, ErrorCode, GetTaskParams, GetTaskResult, Implementation, InputRequest, InputRequests,
        InputRequiredResult, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities, ServerConfig, Tool,
        UpdateTaskParams, object,
    },
    service::RequestContext,
    task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions},
    transport::{
        stdio,
        streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager},
    },
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::sleep};

const USAGE: &str = "usage: rmcp_server [--stdio]";
const POLL_INTERVAL_MS: u64 = 200;
const STEP: Duration = Duration::from_millis(250);

/// A form; its fields are asked in this order.
const FORM: &str = r#"{
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Name", "minLength": 1},
        "age": {"type": "integer", "title": "Age", "minimum": 0, "default": 30},
        "color": {"type": "string", "title": "Color", "enum": ["red", "green"]}
    },
    "required": ["name", "color"]
}"#;
const FLAG: &str = r#"{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}"#;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rmcp_server: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => serve_http().await,
        ["--stdio"] => {
            Tools::default().serve(stdio()).await?.waiting().await?;
            Ok(())
        }
        _ => Err(USAGE.into()),
    }
}

async fn serve_http() -> Result<(), Box<dyn Error>> {
    let tools = Tools::default();
    let sessions = Arc::new(LocalSessionManager::default());
    let mcp = StreamableHttpService::new(move || Ok(tools.clone()), sessions, StreamableHttpServerConfig::default());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening http://{}/mcp", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let mcp = mcp.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |request: Request<Incoming>| {
                let mcp = mcp.clone();
                async move { Ok::<_, Infallible>(mcp.handle(request).await) }
            });
            // A client that goes away is no news.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

/// The tools, and the tasks that calls of them have become.
#[derive(Clone, Default)]
struct Tools {
    tasks: TaskManager,
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_tasks().build();
        ServerConfig::new(capabilities).with_server_info(Implementation::new("rmcp", "3.8.0"))
    }

    async fn list_tools(&self, _: Option<PaginatedRequestParams>, _: RequestContext<RoleServer>) -> Result<ListToolsResult, ErrorData> {
        let steps = json!({"type": "object", "properties": {"steps": {"type": "integer"}}, "required": ["steps"]});
        let name = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
        let nothing = json!({"type": "object"});
        let tools = [
            ("quick", "Greets", &name),
            ("held", "Takes steps, and is never a task", &steps),
            ("slow", "Takes steps", &steps),
            ("ask", "Asks for a form", &nothing),
            ("ask_held", "Asks for a form before it starts, and is never a task", &nothing),
            ("ask_twice", "Asks two questions at once", &nothing),
            ("endless", "Works until cancelled", &nothing),
            ("broken", "Ends with a tool error", &nothing),
            ("fault", "Fails with a protocol error", &nothing),
        ];
        let tools = tools.map(|(name, description, schema)| Tool::new(name, description, object(schema.clone())));
        Ok(ListToolsResult::with_all_items(tools.into()))
    }

    async fn call_tool(&self, request: CallToolRequestParams, context: RequestContext<RoleServer>) -> Result<CallToolResponse, ErrorData> {
        let with_tasks = context.client_capabilities().is_some_and(|capabilities| capabilities.supports_tasks());
        let work = match &*request.name {
            "quick" => {
                let Named { name } = arguments(&request)?;
                return Ok(text(format!("Hello, {name}!")).into());
            }
            "held" => return take_steps(arguments(&request)?, &context).await.map(Into::into),
            "slow" if !with_tasks => return take_steps(arguments(&request)?, &context).await.map(Into::into),
            "ask_held" => return ask_first(&request),
            "slow" => Work::Steps(arguments(&request)?),
            "ask" => Work::Ask,
            "ask_twice" => Work::AskTwice,
            "endless" => Work::Endless,
            "broken" => Work::Broken,
            "fault" => Work::Fault,
            name => return Err(ErrorData::invalid_params(format!("unknown tool: {name}"), None)),
        };
        if !with_tasks {
            let tasks = ClientCapabilities::builder().enable_tasks().build();
            return Err(ErrorData::missing_required_client_capability(tasks));
        }
        let options = TaskOptions::new().with_poll_interval_ms(POLL_INTERVAL_MS);
        let task = self.tasks.spawn(options, move |ctx| {
            Box::pin(async move {
                tokio::select! {
                    ended = work.run(&ctx) => ended,
                    () = ctx.cancelled() => Err(TaskExit::Cancelled),
                }
            })
        });
        Ok(CreateTaskResult::new(task).into())
    }

    async fn get_task(&self, request: GetTaskParams, _: RequestContext<RoleServer>) -> Result<GetTaskResult, ErrorData> {
        Ok(GetTaskResult::new(self.tasks.get_task(&request.task_id)?))
    }

    async fn update_task(&self, request: UpdateTaskParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.tasks.update_task(&request.task_id, request.input_responses)
    }

    async fn cancel_task(&self, request: CancelTaskParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.tasks.cancel_task(&request.task_id)
    }
}

// Calls that are answered at once, or held.

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct Steps {
    steps: u32,
}

fn arguments<T: DeserializeOwned>(request: &CallToolRequestParams) -> Result<T, ErrorData> {
    let arguments = Value::Object(request.arguments.clone().unwrap_or_default());
    serde_json::from_value(arguments).map_err(|error| ErrorData::invalid_params(error.to_string(), None))
}

fn text(text: impl Into<String>) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

async fn take_steps(Steps { steps }: Steps, context: &RequestContext<RoleServer>) -> Result<CallToolResult, ErrorData> {
    for step in 1..=steps {
        if let Some(token) = context.meta.get_progress_token() {
            let progress = ProgressNotificationParam::new(token, f64::from(step))
                .with_total(f64::from(steps))
                .with_message(format!("step {step} of {steps}"));
            // Whoever does not hear it misses the progress, not the result.
            let _ = context.peer.notify_progress(progress).await;
        }
        sleep(STEP).await;
    }
    Ok(text(format!("{steps} steps taken")))
}

/// Answers a call with a question, and the call that comes back with a result.
fn ask_first(request: &CallToolRequestParams) -> Result<CallToolResponse, ErrorData> {
    match request.input_responses.as_ref().and_then(|answers| answers.get("who")) {
        Some(answer) => {
            let state = request.request_state.as_deref().unwrap_or("no state");
            Ok(text(format!("{}, {state}", answer_text(answer))).into())
        }
        None => {
            let asked = InputRequests::from([("who".to_owned(), form("Who are you?", FORM)?)]);
            Ok(InputRequiredResult::new(Some(asked), Some("asked".to_owned())).into())
        }
    }
}

// Tasks.

/// What a task does.
enum Work {
    Steps(Steps),
    Ask,
    AskTwice,
    Endless,
    Broken,
    Fault,
}

impl Work {
    async fn run(&self, ctx: &TaskContext) -> Result<CallToolResult, TaskExit> {
        match self {
            Self::Steps(Steps { steps }) => {
                for step in 1..=*steps {
                    ctx.set_status_message(format!("step {step} of {steps}"));
                    sleep(STEP).await;
                }
                Ok(text(format!("{steps} steps taken")))
            }
            Self::Ask => {
                let answer = ctx.request_input("who", form("Who are you?", FORM)?).await?;
                Ok(text(answer_text(&answer)))
            }
            Self::AskTwice => {
                let first = ctx.request_input("first", form("First?", FLAG)?);
                let second = ctx.request_input("second", form("Second?", FLAG)?);
                let (first, second) = tokio::try_join!(first, second)?;
                Ok(text(format!("{} {}", first["content"]["ok"], second["content"]["ok"])))
            }
            Self::Endless => std::future::pending().await,
            Self::Broken => {
                sleep(STEP).await;
                Ok(CallToolResult::error(vec![ContentBlock::text("it broke")]))
            }
            Self::Fault => {
                sleep(STEP).await;
                Err(ErrorData::new(ErrorCode(-32050), "out of order", Some(json!({"part": 7}))).into())
            }
        }
    }
}

fn form(message: &str, schema: &str) -> Result<InputRequest, ErrorData> {
    let requested_schema = serde_json::from_str(schema).map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
    let params = ElicitRequestParams::FormElicitationParams { meta: None, message: message.to_owned(), requested_schema };
    Ok(InputRequest::Elicitation(ElicitRequest::new(params)))
}

/// The answer to the form in a line.
fn answer_text(answer: &Value) -> String {
    if answer["action"] != "accept" {
        return format!("no answer: {}", answer["action"].as_str().unwrap_or_default());
    }
    let content = &answer["content"];
    let word = |field: &str| content[field].as_str().unwrap_or_default().to_owned();
    format!("{}, {}, {}", word("name"), content["age"], word("color"))
}
