//! One tool: how it is described, when its calls become tasks, and what it does.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use taskwire_core::{
    Payload,
    task::{OnInterrupt, Overflow},
};

use super::{
    Annotations, Ctx, Schema, ToolError,
    content::{CallResult, IntoResult},
    nulls::drop_nulls,
    portable::portability,
    schema::{HeaderParam, InvalidSchema, header_params},
    typed::schema_of,
};

/// When a call becomes a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TaskMode {
    /// Never: every caller waits for the result.
    Never,
    /// When it takes longer than `promote_after` and the caller can handle tasks.
    #[default]
    Auto,
    /// At once, for every caller that can handle tasks.
    Always,
    /// At once; a caller that cannot handle tasks is refused.
    Required,
}

/// How calls of a tool are treated.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// When a call becomes a task.
    pub task: TaskMode,
    /// How long a caller waits before its call becomes a task; the server's default if absent.
    pub promote_after: Option<Duration>,
    /// How long an attempt may work; for ever if absent.
    pub timeout: Option<Duration>,
    /// What a crash of the server does to a task.
    pub on_interrupt: OnInterrupt,
    /// How long a task is kept after its end; the server's default if absent.
    pub retention: Option<Duration>,
    /// What happens when a task has written as much as is kept.
    pub overflow: Overflow,
    /// Whether the tool streams its output: a hint for clients.
    pub streams: bool,
    /// What a model may be told at once when a call has become a task.
    pub immediate_response: Option<Arc<str>>,
    /// Whether the same call, repeated by a caller without tasks while the first one runs, joins that one.
    pub dedupe: bool,
    /// How long a call goes on after its client hung up (`Duration::MAX`: to its end); the server's default if absent.
    pub linger: Option<Duration>,
    /// Whether the tool may write more than its result has, so that callers need a way to read the rest.
    pub output_exceeds_result: bool,
    /// How many calls of it may come in a second, from all callers together; twice as many if there were none before.
    pub calls_per_second: Option<u64>,
    /// How many of its tasks this node may run.
    pub tasks_max: Option<u64>,
    /// How many of its tasks this node may run for one caller.
    pub tasks_per_caller_max: Option<u64>,
}

impl Policy {
    /// Whether clients are told that the tool streams its output: only a task's output is streamed.
    pub(crate) fn shows_output(&self) -> bool {
        self.streams && self.task != TaskMode::Never
    }
}

type Body = Arc<dyn Fn(Ctx) -> BoxFuture<'static, Result<CallResult, ToolError>> + Send + Sync>;

/// A tool.
#[derive(Clone)]
pub struct Tool {
    name: Arc<str>,
    wire: Map<String, Value>,
    /// The schema of accepted arguments, if it is wider than the listed one.
    accepted_schema: Option<Value>,
    policy: Policy,
    body: Body,
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("name", &self.name).field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Tool {
    /// A tool whose arguments are a Rust type. A field that may be left out (`Option`, or with a default) is listed without `null`,
    /// and `null` for it counts as left out: most clients know no other way.
    pub fn new<A, R, F, Fut>(name: &str, description: &str, body: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send,
        R: IntoResult,
        F: Fn(A, Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
    {
        let body = Arc::new(body);
        Self::raw(name, description, schema_of::<A>(), move |ctx: Ctx| {
            let body = body.clone();
            async move {
                let args = ctx.arguments().read().map_err(|error| ToolError::new(format!("the arguments do not fit: {error}")))?;
                body(args, ctx).await
            }
        })
    }

    /// A tool whose arguments are described by a JSON Schema; it reads them from [`Ctx::arguments`].
    pub fn raw<R, F, Fut>(name: &str, description: &str, input_schema: Value, body: F) -> Self
    where
        R: IntoResult,
        F: Fn(Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, ToolError>> + Send + 'static,
    {
        let mut wire = Map::new();
        wire.insert("name".to_owned(), name.into());
        wire.insert("description".to_owned(), description.into());
        wire.insert("inputSchema".to_owned(), input_schema);
        Self {
            name: name.into(),
            wire,
            accepted_schema: None,
            policy: Policy::default(),
            body: Arc::new(move |ctx| {
                let result = body(ctx);
                Box::pin(async move { result.await.map(IntoResult::into_result) })
            }),
        }
    }

    /// A title for people.
    #[must_use]
    pub fn title(self, title: &str) -> Self {
        self.with("title", title.into())
    }

    /// The schema of the structured result.
    #[must_use]
    pub fn output_schema(self, schema: Value) -> Self {
        self.with("outputSchema", schema)
    }

    /// Hints about what it does.
    #[must_use]
    pub fn annotations(self, annotations: Annotations) -> Self {
        self.raw_annotations(serde_json::to_value(annotations).expect("hints can always be written"))
    }

    /// Hints in their wire shape, which may have members that we do not know.
    #[must_use]
    pub(crate) fn raw_annotations(self, annotations: Value) -> Self {
        self.with("annotations", annotations)
    }

    /// Accepts arguments by this schema; the listed one is the part of it that every client can send.
    #[must_use]
    pub(crate) fn accepts_schema(mut self, schema: Value) -> Self {
        self.accepted_schema = Some(schema);
        self
    }

    /// When a call becomes a task.
    #[must_use]
    pub fn task(mut self, mode: TaskMode) -> Self {
        self.policy.task = mode;
        self
    }

    /// How long a caller waits before its call becomes a task.
    #[must_use]
    pub fn promote_after(mut self, span: Duration) -> Self {
        self.policy.promote_after = Some(span);
        self
    }

    /// How long an attempt may work.
    #[must_use]
    pub fn timeout(mut self, span: Duration) -> Self {
        self.policy.timeout = Some(span);
        self
    }

    /// How long a task is kept after its end.
    #[must_use]
    pub fn retention(mut self, span: Duration) -> Self {
        self.policy.retention = Some(span);
        self
    }

    /// What happens when a task has written as much as is kept (`limits.task_output_bytes`).
    #[must_use]
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.policy.overflow = overflow;
        self
    }

    /// Declares that the tool streams its output. This is a hint for clients. The call of a client that wants to see output becomes a task
    /// with the first output.
    #[must_use]
    pub fn streams(mut self) -> Self {
        self.policy.streams = true;
        self
    }

    /// What a model may be told at once when a call has become a task, by clients that know how (2025-11-25).
    #[must_use]
    pub fn immediate_response(mut self, text: &str) -> Self {
        self.policy.immediate_response = Some(text.into());
        self
    }

    /// Lets the tool be run again after a crash of the server, from its last checkpoint if it saves any.
    #[must_use]
    pub fn retry_on_interrupt(mut self) -> Self {
        self.policy.on_interrupt = OnInterrupt::Retry;
        self
    }

    /// Lets the same call, repeated by a caller without tasks while the first one runs, join that one.
    #[must_use]
    pub fn dedupe(mut self) -> Self {
        self.policy.dedupe = true;
        self
    }

    /// How long a call goes on after its client hung up; zero stops it at once, `Duration::MAX` lets it go on to its end.
    #[must_use]
    pub fn linger(mut self, span: Duration) -> Self {
        self.policy.linger = Some(span);
        self
    }

    /// How many calls of it may come in a second, from all callers together; twice as many if there were none before.
    #[must_use]
    pub fn calls_per_second(mut self, max: u64) -> Self {
        self.policy.calls_per_second = Some(max);
        self
    }

    /// How many of its tasks this node may run.
    #[must_use]
    pub fn tasks_max(mut self, max: u64) -> Self {
        self.policy.tasks_max = Some(max);
        self
    }

    /// How many of its tasks this node may run for one caller.
    #[must_use]
    pub fn tasks_per_caller_max(mut self, max: u64) -> Self {
        self.policy.tasks_per_caller_max = Some(max);
        self
    }

    /// Sets the whole policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// What widely used clients or models would refuse about it: see [`portability`].
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        portability(&self.name, self.wire["description"].as_str().unwrap_or_default(), &self.wire["inputSchema"])
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        self.wire.insert(key.to_owned(), value);
        self
    }
}

/// Whether a tool can have this name.
pub(crate) fn is_tool_name(name: &str) -> bool {
    (1..=128).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

/// A tool that has been checked and is ready to be listed and called.
pub(crate) struct CheckedTool {
    pub(crate) name: Arc<str>,
    /// The definition as lists show it, without what an era adds.
    pub(crate) wire: Payload,
    pub(crate) policy: Policy,
    pub(crate) headers: Vec<HeaderParam>,
    /// The schema of the arguments as it is listed, and the compiled one that checks them.
    listed_schema: Value,
    input: Schema,
    output: Option<Schema>,
    body: Body,
}

impl fmt::Debug for CheckedTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready").field("name", &self.name).finish_non_exhaustive()
    }
}

impl CheckedTool {
    pub(crate) fn check(tool: Tool) -> Result<Self, InvalidSchema> {
        let invalid = |what, why| InvalidSchema { tool: tool.name.to_string(), what, why };
        if !is_tool_name(&tool.name) {
            return Err(invalid("the name", "it needs 1 to 128 of A-Z a-z 0-9 _ . -".to_owned()));
        }
        let schema = &tool.wire["inputSchema"];
        if schema.get("type") != Some(&json!("object")) {
            return Err(invalid("the input schema", "its `type` must be \"object\"".to_owned()));
        }
        let mut input = Schema::compile(schema).map_err(|why| invalid("the input schema", why))?;
        if let Some(taken) = &tool.accepted_schema {
            input = Schema::compile(taken).map_err(|why| invalid("the input schema", why))?;
        }
        let headers = header_params(schema).map_err(|why| invalid("the input schema", why))?;
        let output = match tool.wire.get("outputSchema") {
            None => None,
            Some(schema) => Some(Schema::compile(schema).map_err(|why| invalid("the output schema", why))?),
        };
        let listed = schema.clone();
        let (name, policy, body) = (tool.name, tool.policy, tool.body);
        Ok(Self { name, wire: Value::Object(tool.wire).into(), policy, headers, listed_schema: listed, input, output, body })
    }

    /// Removes each `null` from `arguments` that stands for an omitted one; returns whether there was any.
    pub(crate) fn drop_nulls(&self, arguments: &mut Value) -> bool {
        drop_nulls(&self.listed_schema, arguments)
    }

    /// What is wrong with `arguments`, one line each.
    pub(crate) fn problems(&self, arguments: &Value) -> Vec<String> {
        self.input.problems(arguments)
    }

    /// Runs the tool, and checks that its result is what its output schema promises.
    pub(crate) async fn run(&self, ctx: Ctx) -> Result<CallResult, ToolError> {
        let result = (self.body)(ctx).await?;
        if let Some(schema) = self.output.as_ref().filter(|_| !result.is_error) {
            let value = match &result.structured_content {
                Some(value) => value.read::<Value>()?,
                None => return Err(ToolError::protocol(taskwire_core::wire::code::INTERNAL_ERROR, self.broken("it is missing"))),
            };
            if let Some(problem) = schema.problems(&value).first() {
                return Err(ToolError::protocol(taskwire_core::wire::code::INTERNAL_ERROR, self.broken(problem)));
            }
        }
        Ok(result)
    }

    fn broken(&self, why: &str) -> String {
        format!("the structured result of tool `{}` does not conform to its output schema: {why}", self.name)
    }
}
