//! `tools/call`: the response is the result, a stream that ends with it, or a task.
//!
//! A call without `task` runs in memory at first. When it has something to send before its result, or takes long, it becomes a hidden
//! task, and its client is sent that task's log, so that it can resume the stream (`without_task`).

mod without_task;

use std::{sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};
use taskwire_core::{
    Payload, Seq, TaskId,
    task::{AcceptedQuestions, OutboxTarget, Outcome, Reject, Spec, Task},
    wire::{RequestId, code},
};
use tokio::sync::mpsc;

use super::{
    Cx,
    event_id::StreamKind,
    live::RequestGuard,
    modes::{Choice, choose, mode_of},
    outcome::TaskOrigin,
    render::{self, FALLBACK_MODE, IMMEDIATE_RESPONSE, RELATED_TASK},
    streaming,
    task_stream::{self, TaskStream},
};
use crate::{
    config::ResponseMode,
    engine::{self, CallNote, Run, RunEnd},
    metrics::Answer,
    protocol::{
        CallerPermit, Fault, OnSent, Reply,
        call::{
            self as calls, CallOptions, find_tool, invalid_arguments,
            plan::{Plan, Started},
            wait::{self, CallEra, Settled, Wake, is_limit},
        },
        json::Object,
        notes::NoteEncoder,
        params::{Members, present, text},
    },
    tool::{ReadyTool, TaskMode},
};

/// The longest progress token, which is stored with the task.
const TOKEN_BYTES_MAX: usize = 256;
/// How many notes wait for a client to read; more are dropped, the newest first.
const NOTES_MAX: usize = 256;
/// From the first output on, a call waits only for a tenth of its promote delay.
const OUTPUT_DELAY_DIVISOR: u32 = 10;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Params<'a> {
    #[serde(borrow, deserialize_with = "present")]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    task: Option<&'a RawValue>,
    #[serde(rename = "_meta")]
    meta: Option<Members<Meta>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Meta {
    #[serde(rename = "progressToken")]
    progress_token: Option<RequestId>,
    #[serde(rename = "dev.taskwire/idempotencyKey")]
    idempotency_key: Option<String>,
}

/// What a client wants of the task that it asks for.
#[derive(Debug, Default)]
struct TaskOptions {
    ttl: Option<u64>,
    modes: Option<Vec<ResponseMode>>,
}

struct Call<'a, 'c> {
    cx: &'a Cx<'c>,
    tool: Arc<ReadyTool>,
    arguments: Value,
    raw_arguments: Payload,
    progress_token: Option<RequestId>,
    spec: Spec,
}

pub(super) async fn call(cx: &Cx<'_>) -> Result<Reply, Fault> {
    let params: Params<'_> = cx.read()?;
    let name = text(params.name, "name")?;
    cx.context.authorize(cx.identity, "tools/call", Some(&name))?;
    let tool = find_tool(cx.context, &name)?;
    cx.context.engine.metrics().begin_call(&cx.counted, &name);
    cx.span.calls(&name);
    let agreed = cx.session.terms();
    let asked = params.task.filter(|_| agreed.has_tasks());
    match (asked.is_some(), tool.0.policy.task) {
        (true, TaskMode::Never) => {
            let message = format!("the tool `{name}` cannot be called as a task: leave `task` out");
            return Err(Fault::new(200, code::METHOD_NOT_FOUND, message));
        }
        (false, TaskMode::Required) => {
            let message = match agreed.has_tasks() {
                true => format!("the tool `{name}` can only be called as a task: add `task` to the parameters"),
                false => format!(
                    "the tool `{name}` can only be called by clients that know tasks (protocol 2025-11-25 with tasks, or 2026-07-28 with \
                     the Tasks extension); who offers it can set `task = \"always\"`, so that every client can call it"
                ),
            };
            return Err(Fault::new(200, code::METHOD_NOT_FOUND, message));
        }
        _ => {}
    }
    let augment = asked.map(|raw| parse_task_options(raw, agreed.modes.is_some())).transpose()?;
    let (arguments, raw_arguments) = calls::arguments(&tool, params.arguments)?;
    if let Some(misfit) = invalid_arguments(&tool, &arguments) {
        cx.counted.answered(Answer::Invalid);
        let Outcome::Completed { result, .. } = misfit.into_outcome() else { return Err(Fault::internal("a misfit is a result")) };
        if augment.is_none() {
            return Ok(cx.reply(render::call_result(&result, None, None)));
        }
        // A result would look like that of a task, but there is none: the caller gets an error.
        let result: Value = result.read()?;
        return Err(Fault::params(result["content"][0]["text"].as_str().unwrap_or_default()));
    }
    let Members(meta) = params.meta.unwrap_or_default();
    if matches!(&meta.progress_token, Some(RequestId::Text(text)) if text.len() > TOKEN_BYTES_MAX) {
        return Err(Fault::params(format!("`progressToken` has more than {TOKEN_BYTES_MAX} bytes")));
    }
    // A task can be asked on any stream of the session, a call only on its own.
    let accepts = if augment.is_some() || cx.can_stream { agreed.accepts } else { AcceptedQuestions::default() };
    let idempotency_key = meta.idempotency_key.as_deref();
    let wanted = CallOptions { caller: &cx.session.caller, accepts, idempotency_key, trace: cx.span.context() };
    let mut spec = calls::spec(cx.context, &tool, &wanted)?;
    spec.origin = TaskOrigin::to_payload(meta.progress_token.clone(), cx.context.engine.is_shared().then(|| cx.id.clone()));
    spec.outbox = Some(OutboxTarget { session: cx.session.id.clone(), output: agreed.partial });
    let mut call = Call { cx, tool, arguments, raw_arguments, progress_token: meta.progress_token, spec };
    let Some(augment) = augment else { return call.respond_without_task().await };
    if let Some(ttl) = augment.ttl {
        call.spec.retention_ms = Some(call.spec.retention_ms.map_or(ttl, |most| ttl.min(most)));
    }
    let choice = choose(&cx.context.config.legacy.modes, agreed.modes.as_deref().unwrap_or_default(), augment.modes.as_deref());
    call.respond_with_task(choice).await
}

/// Reads `task`; its `responseModes` count only for clients that declared them.
fn parse_task_options(raw: &RawValue, modes: bool) -> Result<TaskOptions, Fault> {
    #[derive(Deserialize, Default)]
    #[serde(default, rename_all = "camelCase")]
    struct Task<'a> {
        #[serde(borrow, deserialize_with = "present")]
        ttl: Option<&'a RawValue>,
        #[serde(borrow, deserialize_with = "present")]
        response_modes: Option<&'a RawValue>,
    }
    let Members(task): Members<Task<'_>> =
        serde_json::from_str(raw.get()).map_err(|error| Fault::params(format!("`task` must be an object: {error}")))?;
    let ttl = match task.ttl.filter(|raw| raw.get() != "null") {
        None => None,
        Some(raw) => {
            let ttl: Option<u64> = serde_json::from_str(raw.get()).ok().filter(|ttl| *ttl > 0);
            Some(ttl.ok_or_else(|| Fault::params("`task.ttl` must be a whole number of milliseconds, at least 1"))?)
        }
    };
    let modes = match task.response_modes.filter(|_| modes) {
        None => None,
        Some(raw) => {
            let names: Vec<String> =
                serde_json::from_str(raw.get()).map_err(|_| Fault::params("`task.responseModes` must be a list of strings"))?;
            Some(names.iter().filter_map(|name| mode_of(name)).collect())
        }
    };
    Ok(TaskOptions { ttl, modes })
}

impl Call<'_, '_> {
    fn promote_delay(&self) -> Duration {
        super::promote_after(self.cx.context, &self.tool.0.name)
    }

    fn note_encoder(&self) -> NoteEncoder {
        NoteEncoder::new(self.progress_token.clone(), Some(self.cx.session.terms().level))
    }

    /// Sends nothing about a task until the client has its id.
    fn withhold_until_announced(&self, id: TaskId) -> OnSent {
        let session = self.cx.session.clone();
        session.withhold(id);
        OnSent::new(move |_| session.announce(id))
    }

    /// Opens a channel for a task's log messages, which go to the stream that sends the task.
    fn open_log_notes(&self, id: TaskId) -> mpsc::Sender<CallNote> {
        let (sender, mut notes) = mpsc::channel(NOTES_MAX);
        let session = self.cx.session.clone();
        tokio::spawn(async move {
            let meta = render::related(id);
            while let Some(note) = notes.recv().await {
                let mut wanted = NoteEncoder::new(None, Some(session.terms().level));
                if let Some(message) = wanted.message(&note, Some(&meta)) {
                    session.send_unlogged(id, message);
                }
            }
        });
        sender
    }

    fn task_reply(&self, task: &Task, choice: Choice, on_announced: Option<OnSent>) -> Reply {
        self.cx.counted.answered(Answer::Task);
        let mut meta = Map::new();
        if let Some(text) = &self.tool.0.policy.immediate_response {
            meta.insert(IMMEDIATE_RESPONSE.to_owned(), (&**text).into());
        }
        if choice.fallback {
            meta.insert(FALLBACK_MODE.to_owned(), "task".into());
        }
        self.cx.reply(streaming::create_task_result(self.cx.context, task, &Value::Object(meta))).on_sent(on_announced)
    }

    /// Responds to a call with `task`: at once or with a stream, or, in the mode `immediate`, with the result if that comes soon.
    async fn respond_with_task(mut self, choice: Choice) -> Result<Reply, Fault> {
        let cx = self.cx;
        let immediate = choice.mode == ResponseMode::Immediate;
        let streams = choice.mode == ResponseMode::Streaming || (immediate && choice.may_stream && self.tool.0.policy.streams);
        // The same key must find the call again, so it is a task from the beginning.
        let must_be_task = !immediate || self.spec.idempotency_key.is_some();
        if streams {
            self.set_output_is_result();
        }
        let reserved = if streams { self.reserve_stream()? } else { None };
        let open = if must_be_task || reserved.is_some() { None } else { Some(cx.wait_permit()?) };
        let mut plan = Plan::new(cx.context, self.spec.clone(), &self.tool, self.raw_arguments.clone())?;
        let mut task_call = TaskCall { call: &self, on_announced: None, run: None, streams, over: false };
        let task = match plan.start(must_be_task, None, &mut task_call).await? {
            Started::Task { task, .. } if task.spec.hidden => {
                let key = self.spec.idempotency_key.clone().unwrap_or_default();
                return Err(engine::Error::Rejected(Reject::IdempotencyKeyReused(key.to_string())).into());
            }
            Started::Task { task, .. } => task,
            Started::Run(mut unstarted) => {
                let run = unstarted.run().clone();
                run.keep_until_end(Box::new(open));
                task_call.run = Some(run.clone());
                let settled = wait::run(cx.context, &mut unstarted, None, None, &mut task_call).await.inspect_err(|_| {
                    run.cancel("the task could not be made");
                })?;
                if matches!(settled, Settled::Ended { .. }) {
                    cx.counted.answered(Answer::Immediate);
                }
                match settled {
                    Settled::Task(task) => {
                        // A task counts against its own limit, and no longer as a waiting request.
                        run.keep_until_end(Box::new(()));
                        task
                    }
                    Settled::Ended { end: RunEnd::Outcome(Outcome::Completed { result, is_error }), .. } => {
                        let object = self.immediate_result(run.id(), &plan.spec, result, is_error).await?;
                        return Ok(cx.reply(object).on_sent(task_call.on_announced));
                    }
                    Settled::Ended { end: RunEnd::Outcome(Outcome::Failed(error)), .. } => return Err(error.into()),
                    Settled::Ended { .. } | Settled::TaskLimit(_) | Settled::Gone => return Err(Fault::internal("the tool went away")),
                }
            }
        };
        let on_announced = task_call.on_announced;
        if streams {
            self.stream_answers(&task, choice, reserved, on_announced).await
        } else {
            Ok(self.task_reply(&task, choice, on_announced))
        }
    }

    /// The result that came soon. It is recorded as a task if the configuration says so.
    async fn immediate_result(&self, id: TaskId, spec: &Spec, result: Payload, is_error: bool) -> Result<Object, Fault> {
        let context = self.cx.context;
        let mut meta = None;
        if context.config.legacy.record_immediate {
            let spec = Arc::new(Spec { output_is_result: false, ..spec.clone() });
            let outcome = Outcome::Completed { result: result.clone(), is_error };
            match context.engine.create_ended(id, spec, self.raw_arguments.clone(), outcome).await {
                Ok(_) => meta = Some(json!({RELATED_TASK: {"taskId": id}})),
                // The result matters more than its record.
                Err(error) if is_limit(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let object = render::call_result(&result, meta.as_ref(), None);
        Ok(if is_error { object } else { object.put("isError", &false) })
    }

    /// The output is the result, and is sent in responses to the call.
    fn set_output_is_result(&mut self) {
        self.spec.output_is_result = true;
        let pushes = self.can_answer_repeatedly();
        if let Some(follower) = &mut self.spec.outbox {
            // The outbox does not send what the responses carry.
            follower.output &= !pushes;
        }
    }

    /// Whether the call can get several responses.
    fn can_answer_repeatedly(&self) -> bool {
        self.cx.can_stream && self.cx.out.framing().has_event_ids
    }

    /// Takes the permit and the request id of a call with several responses. This comes before the work starts, which would else go on
    /// without a reader.
    fn reserve_stream(&self) -> Result<Option<(CallerPermit, RequestGuard)>, Fault> {
        if self.can_answer_repeatedly() { Ok(Some((self.cx.wait_permit()?, self.cx.register_request()?))) } else { Ok(None) }
    }

    async fn stream_answers(
        &self,
        task: &Arc<Task>,
        choice: Choice,
        reserved: Option<(CallerPermit, RequestGuard)>,
        on_announced: Option<OnSent>,
    ) -> Result<Reply, Fault> {
        let cx = self.cx;
        if !task.spec.output_is_result {
            // An earlier call under the same key wanted no stream.
            return Ok(self.task_reply(task, choice, on_announced));
        }
        cx.counted.answered(Answer::Task);
        if let Some((_open, request)) = reserved {
            let stream = task_stream::task_stream_id(StreamKind::Streaming, task, cx.id);
            let tail = TaskStream::new(cx.context, cx.session, cx.out, stream, None, task).for_request(&request).on_announced(on_announced);
            return cx.stream_reply(tail.run().await, request);
        }
        let (task, part) = if cx.session.terms().partial {
            // The outbox sends all output as partials, from the first chunk on.
            (task.clone(), streaming::OutputPart::nothing())
        } else {
            self.first_part(task.id).await?
        };
        let (object, _) = streaming::first_result(cx.context, &task, part);
        Ok(cx.reply(object).on_sent(on_announced))
    }

    /// The first output of a task, within the promote delay.
    async fn first_part(&self, id: TaskId) -> Result<(Arc<Task>, streaming::OutputPart), Fault> {
        let engine = &self.cx.context.engine;
        let watch = engine.watch(vec![id], true);
        let promote_delay = engine.clock().sleep(self.promote_delay());
        tokio::pin!(promote_delay);
        let mut waited = false;
        loop {
            let gone = || engine::Error::Rejected(Reject::NotFound);
            let mut part = streaming::read(engine, id, Seq(0), 0, self.cx.context.config.read_bytes).await?.ok_or_else(gone)?;
            let task = engine.task(&self.cx.session.caller, id).await?.ok_or_else(gone)?;
            part.complete &= task.ended.is_some();
            if waited || part.complete || !part.segments.is_empty() {
                return Ok((task, part));
            }
            tokio::select! {
                _ = watch.changed() => {}
                () = &mut promote_delay => waited = true,
            }
        }
    }
}

/// A call with `task`.
struct TaskCall<'a> {
    call: &'a Call<'a, 'a>,
    on_announced: Option<OnSent>,
    /// Its work in memory, in the mode `immediate`.
    run: Option<Arc<Run>>,
    streams: bool,
    over: bool,
}

impl CallEra for TaskCall<'_> {
    fn open_notes(&mut self, id: TaskId) -> Option<mpsc::Sender<CallNote>> {
        self.on_announced = Some(self.call.withhold_until_announced(id));
        Some(self.call.open_log_notes(id))
    }

    /// Waits for the promote delay, or for a tenth of it after the first output.
    async fn meanwhile(&mut self) -> Result<Wake, Fault> {
        if self.over {
            return std::future::pending().await;
        }
        let (clock, promote_delay) = (self.call.cx.context.engine.clock(), self.call.promote_delay());
        let has_shown = async {
            match self.run.as_ref().filter(|_| self.streams) {
                Some(run) => run.wait_for_output().await,
                None => std::future::pending().await,
            }
            clock.sleep(promote_delay / OUTPUT_DELAY_DIVISOR).await;
        };
        tokio::select! {
            () = clock.sleep(promote_delay) => {}
            () = has_shown => {}
        }
        self.over = true;
        Ok(Wake::Due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Option<u64>, Option<usize>), i64> {
        let raw: &RawValue = serde_json::from_str(text).expect("JSON");
        parse_task_options(raw, true).map(|augment| (augment.ttl, augment.modes.map(|modes| modes.len()))).map_err(|fault| fault.error.code)
    }

    #[test]
    fn what_a_client_wants_of_a_task_is_read_with_care() {
        assert_eq!(read("{}"), Ok((None, None)));
        assert_eq!(read(r#"{"ttl":null}"#), Ok((None, None)));
        assert_eq!(read(r#"{"ttl":60000,"responseModes":["task","new","streaming"]}"#), Ok((Some(60_000), Some(2))));
        for bad in ["[]", "null", "3", r#"{"ttl":0}"#, r#"{"ttl":-1}"#, r#"{"ttl":1.5}"#, r#"{"ttl":"1"}"#, r#"{"responseModes":"task"}"#] {
            assert_eq!(read(bad), Err(code::INVALID_PARAMS), "{bad}");
        }
    }
}
