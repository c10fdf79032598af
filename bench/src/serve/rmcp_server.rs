//! rmcp: the official SDK, with its in-memory tasks, set up as fast as it can be: stateless, answers as plain JSON,
//! tools dispatched by hand, hyper without a framework in between.

use std::{convert::Infallible, sync::Arc};

use anyhow::Result;
use hyper::{Request, body::Incoming, service::service_fn};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ContentBlock, CreateTaskResult, GetTaskParams,
        GetTaskResult, ServerCapabilities, ServerConfig,
    },
    service::RequestContext,
    task_manager::{TaskContext, TaskExit, TaskFuture, TaskManager, TaskOptions},
    transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService, session::never::NeverSessionManager},
};
use serde_json::Value;
use tokio::net::TcpListener;

/// As long as Taskwire keeps tasks; with rmcp's own five minutes, parked tasks would fail during a long run.
const TTL_MS: u64 = 3_600_000;

pub(super) async fn run(listener: TcpListener) -> Result<()> {
    let handler = Handler { tasks: TaskManager::new() };
    let config = StreamableHttpServerConfig::default().with_legacy_session_mode(false).with_json_response(true).with_sse_keep_alive(None);
    let sessions = Arc::new(NeverSessionManager::default());
    let service = Arc::new(StreamableHttpService::new(move || Ok(handler.clone()), sessions, config));
    let answer = move |request: Request<Incoming>| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(service.handle(request).await) }
    };
    super::accept(listener, service_fn(answer)).await
}

#[derive(Clone)]
struct Handler {
    tasks: TaskManager,
}

impl Handler {
    fn spawn(&self, work: impl FnOnce(TaskContext) -> TaskFuture) -> CallToolResponse {
        let task = self.tasks.spawn(TaskOptions::new().with_ttl_ms(TTL_MS), work);
        CallToolResponse::Task(CreateTaskResult::new(task))
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_tasks().build())
    }

    async fn call_tool(&self, request: CallToolRequestParams, _context: RequestContext<RoleServer>) -> Result<CallToolResponse, ErrorData> {
        match &*request.name {
            "echo" => {
                let text = request.arguments.as_ref().and_then(|arguments| arguments.get("text")).and_then(Value::as_str);
                let text = text.ok_or_else(|| ErrorData::invalid_params("`text` is missing", None))?;
                Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
            }
            "park" => Ok(self.spawn(|task| {
                Box::pin(async move {
                    task.cancelled().await;
                    Err::<CallToolResult, _>(TaskExit::Cancelled)
                })
            })),
            "quick" => Ok(self.spawn(|_| Box::pin(async { Ok(CallToolResult::success(vec![ContentBlock::text("done")])) }))),
            other => Err(ErrorData::invalid_params(format!("there is no tool `{other}`"), None)),
        }
    }

    async fn get_task(&self, request: GetTaskParams, _context: RequestContext<RoleServer>) -> Result<GetTaskResult, ErrorData> {
        Ok(GetTaskResult::new(self.tasks.get_task(&request.task_id)?))
    }

    async fn cancel_task(&self, request: CancelTaskParams, _context: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.tasks.cancel_task(&request.task_id)
    }
}
