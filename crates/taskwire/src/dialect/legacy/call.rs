//! `tools/call`: the result, a stream that leads to it, or a task.
//!
//! A call without `task` is run in memory at first. When it has something to say before its result, or takes its time, it
//! becomes a task that its caller does not know of, and its caller reads that task's log: so it can come back to it (`plain`).

mod plain;

use std::{sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};
use taskwire_core::{
    Payload, Seq, TaskId,
    task::{Accepts, Follower, Outcome, Reject, Spec, Task},
    wire::{RequestId, code},
};
use tokio::sync::mpsc;

use super::{
    Cx,
    live::Request,
    modes::{Choice, choose, mode_of},
    outcome::Origin,
    place::Kind,
    streamed,
    tail::{self, Tail},
    view::{self, FALLBACK_MODE, IMMEDIATE_RESPONSE, RELATED_TASK},
};
use crate::{
    config::Mode,
    dialect::{
        Fault, Open, Reply, Sent,
        call::{
            self as calls, Wanted, find_tool, misfit,
            wait::{self, CallEra, Settled, Wake, is_limit},
        },
        notes::Notes,
        params::{Members, present, text},
    },
    engine::{self, End, Note, Resumed, Run},
    tool::{ReadyTool, TaskMode},
};

/// Bytes of a progress token: it is kept with the task.
const TOKEN_BYTES_MAX: usize = 256;
/// Notes that wait for a client to read; more are dropped, the newest first.
const NOTES_MAX: usize = 256;
/// What has output to show is given a part of the time that it would have without, to be done at once: a tenth.
const AT_ONCE_PART: u32 = 10;

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
struct Augment {
    ttl: Option<u64>,
    modes: Option<Vec<Mode>>,
}

/// One call.
struct Call<'a, 'c> {
    cx: &'a Cx<'c>,
    tool: Arc<ReadyTool>,
    /// The arguments, and as they came.
    given: Value,
    arguments: Payload,
    token: Option<RequestId>,
    spec: Spec,
}

pub(super) async fn call(cx: &Cx<'_>) -> Result<Reply, Fault> {
    let params: Params<'_> = cx.read()?;
    let name = text(params.name, "name")?;
    let tool = find_tool(cx.shared, &name)?;
    let agreed = cx.session.agreed();
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
    let augment = asked.map(|raw| augment(raw, agreed.modes.is_some())).transpose()?;
    let (given, arguments) = calls::arguments(&tool, params.arguments)?;
    if let Some(misfit) = misfit(&tool, &given) {
        let Outcome::Completed { result, .. } = misfit.into_outcome() else { return Err(Fault::internal("a misfit is a result")) };
        if augment.is_none() {
            return Ok(cx.reply(view::call_result(&result, None, None)));
        }
        // What is no task at all must not look like one.
        let result: Value = result.read()?;
        return Err(Fault::params(result["content"][0]["text"].as_str().unwrap_or_default()));
    }
    if *cx.shared.draining.borrow() {
        return Err(engine::Error::Unavailable("it is shutting down".into()).into());
    }
    let Members(meta) = params.meta.unwrap_or_default();
    if matches!(&meta.progress_token, Some(RequestId::Text(text)) if text.len() > TOKEN_BYTES_MAX) {
        return Err(Fault::params(format!("`progressToken` has more than {TOKEN_BYTES_MAX} bytes")));
    }
    // A task can be answered elsewhere; a call only where it was made.
    let accepts = if augment.is_some() || cx.events { agreed.accepts } else { Accepts::default() };
    let wanted = Wanted { caller: &cx.session.caller, accepts, idempotency_key: meta.idempotency_key.as_deref() };
    let mut spec = calls::spec(cx.shared, &tool, &wanted)?;
    spec.origin = Origin::keep(meta.progress_token.clone());
    spec.follower = Some(Follower { session: cx.session.id.clone(), output: agreed.partial });
    let mut call = Call { cx, tool, given, arguments, token: meta.progress_token, spec };
    let Some(augment) = augment else { return call.plain().await };
    if let Some(ttl) = augment.ttl {
        call.spec.retention_ms = Some(call.spec.retention_ms.map_or(ttl, |most| ttl.min(most)));
    }
    let choice = choose(&cx.shared.config.legacy.modes, agreed.modes.as_deref().unwrap_or_default(), augment.modes.as_deref());
    match choice.mode {
        Mode::Task => call.with_task(choice).await,
        Mode::Immediate => call.at_once(choice).await,
        Mode::Streaming => call.bit_by_bit(choice).await,
    }
}

/// Reads `task`; what it says about modes counts only for clients that know of them.
fn augment(raw: &RawValue, modes: bool) -> Result<Augment, Fault> {
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
    Ok(Augment { ttl, modes })
}

impl Call<'_, '_> {
    fn patience(&self) -> Duration {
        super::promote_after(self.cx.shared, &self.tool.0.name)
    }

    fn notes(&self) -> Notes {
        Notes::new(self.token.clone(), Some(self.cx.session.agreed().level))
    }

    /// Says nothing of a task until the client knows its name.
    fn hush(&self, id: TaskId) -> Sent {
        let session = self.cx.session.clone();
        session.hush(id);
        Sent::new(move |_| session.speak(id))
    }

    /// Where log lines of a task go: to the standing stream, if there is one.
    fn aside(&self, id: TaskId) -> mpsc::Sender<Note> {
        let (sender, mut notes) = mpsc::channel(NOTES_MAX);
        let session = self.cx.session.clone();
        tokio::spawn(async move {
            let meta = view::related(id);
            while let Some(note) = notes.recv().await {
                let mut wanted = Notes::new(None, Some(session.agreed().level));
                if let Some(message) = wanted.message(&note, Some(&meta)) {
                    session.aside(id, message);
                }
            }
        });
        sender
    }

    /// Makes a task at once.
    async fn make(&self, spec: Spec) -> Result<(Arc<Task>, Sent), Fault> {
        let engine = &self.cx.shared.engine;
        let id = engine.new_id();
        let hush = self.hush(id);
        let key = spec.idempotency_key.clone();
        let receipt = engine.create(id, Arc::new(spec), self.arguments.clone(), &Resumed::default(), Some(self.aside(id))).await?;
        if receipt.task.spec.hidden {
            return Err(engine::Error::Rejected(Reject::IdempotencyKeyReused(key.as_deref().unwrap_or_default().to_owned())).into());
        }
        Ok((receipt.task, hush))
    }

    /// The answer that has a task and nothing else.
    fn created(&self, task: &Task, choice: Choice, hush: Sent) -> Reply {
        let mut meta = Map::new();
        if let Some(text) = &self.tool.0.policy.immediate_response {
            meta.insert(IMMEDIATE_RESPONSE.to_owned(), (&**text).into());
        }
        if choice.fallback {
            meta.insert(FALLBACK_MODE.to_owned(), "task".into());
        }
        self.cx.reply(streamed::created(self.cx.shared, task, &Value::Object(meta))).then(Some(hush))
    }

    async fn with_task(self, choice: Choice) -> Result<Reply, Fault> {
        let (task, hush) = self.make(self.spec.clone()).await?;
        Ok(self.created(&task, choice, hush))
    }

    /// The result if it is there at once; else a stream or a task.
    async fn at_once(mut self, choice: Choice) -> Result<Reply, Fault> {
        let cx = self.cx;
        let engine = &cx.shared.engine;
        let streams = choice.may_stream && self.tool.0.policy.streams;
        if self.spec.idempotency_key.is_some() {
            // One that may be repeated must be found again: it is a task from the beginning.
            return if streams { self.bit_by_bit(choice).await } else { self.with_task(choice).await };
        }
        if streams {
            self.streams();
        }
        let place = if streams { self.place()? } else { None };
        let open = if place.is_none() { Some(cx.waits()?) } else { None };
        let spec = Arc::new(self.spec.clone());
        let id = engine.new_id();
        let hush = self.hush(id);
        let mut held = engine.launch(id, spec.clone(), self.arguments.clone(), Resumed::default(), Some(self.aside(id)));
        let run = held.run().clone();
        run.keep(Box::new(open));
        let mut immediate = Immediate { call: &self, run: &run, streams, over: false };
        let settled = wait::run(cx.shared, &mut held, None, None, &mut immediate).await.inspect_err(|_| {
            run.call_off("the task could not be made");
        })?;
        match settled {
            Settled::Ended { end: End::Outcome(Outcome::Completed { result, is_error }), .. } => {
                let mut meta = None;
                if cx.shared.config.legacy.immediate_task {
                    let spec = Arc::new(Spec { output_is_result: false, ..Spec::clone(&spec) });
                    let outcome = Outcome::Completed { result: result.clone(), is_error };
                    match engine.record(id, spec, self.arguments.clone(), outcome).await {
                        Ok(_) => meta = Some(json!({RELATED_TASK: {"taskId": id}})),
                        // The result is what counts.
                        Err(error) if is_limit(&error) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                let object = view::call_result(&result, meta.as_ref(), None);
                let object = if is_error { object } else { object.put("isError", &false) };
                Ok(cx.reply(object).then(Some(hush)))
            }
            Settled::Ended { end: End::Outcome(Outcome::Failed(error)), .. } => Err(error.into()),
            Settled::Task(task) => {
                // A task is found again, and counts as one.
                run.keep(Box::new(()));
                if streams { self.stream(&task, choice, place, hush).await } else { Ok(self.created(&task, choice, hush)) }
            }
            Settled::Ended { .. } | Settled::NoRoom(_) | Settled::Gone => Err(Fault::internal("the tool went away")),
        }
    }

    /// Its output is its result, and is sent in answer to the call.
    fn streams(&mut self) {
        self.spec.output_is_result = true;
        let pushes = self.pushes();
        if let Some(follower) = &mut self.spec.follower {
            // What is sent as an answer is not told as well.
            follower.output &= !pushes;
        }
    }

    /// Whether more than one answer can be given.
    fn pushes(&self) -> bool {
        self.cx.events && self.cx.out.framing().named
    }

    async fn bit_by_bit(mut self, choice: Choice) -> Result<Reply, Fault> {
        self.streams();
        let place = self.place()?;
        let (task, hush) = self.make(self.spec.clone()).await?;
        self.stream(&task, choice, place, hush).await
    }

    /// A place among the requests that wait, for a call that is answered more than once. Before it is begun: else it would
    /// go on without anybody.
    fn place(&self) -> Result<Option<(Open, Request)>, Fault> {
        if self.pushes() { Ok(Some((self.cx.waits()?, self.cx.begin()?))) } else { Ok(None) }
    }

    async fn stream(&self, task: &Arc<Task>, choice: Choice, place: Option<(Open, Request)>, hush: Sent) -> Result<Reply, Fault> {
        let cx = self.cx;
        if !task.spec.output_is_result {
            // An earlier call under the same key wanted no stream.
            return Ok(self.created(task, choice, hush));
        }
        if let Some((_open, request)) = place {
            let stream = tail::stream(Kind::Streamed, task, cx.id);
            let tail = Tail::new(cx.shared, cx.session, cx.out, stream, None, task).of(&request).naming(hush);
            return cx.streamed(tail.run().await, request);
        }
        let (task, part) = if cx.session.agreed().partial {
            // Partials tell the output, all of it: they count from the first on.
            (task.clone(), streamed::Part::nothing())
        } else {
            self.first_part(task.id).await?
        };
        let (object, _) = streamed::first(cx.shared, &task, part)?;
        Ok(cx.reply(object).then(Some(hush)))
    }

    /// What a task writes first, within the time that a call may take.
    async fn first_part(&self, id: TaskId) -> Result<(Arc<Task>, streamed::Part), Fault> {
        let engine = &self.cx.shared.engine;
        let watch = engine.watch(vec![id], true);
        let patience = engine.clock().sleep(self.patience());
        tokio::pin!(patience);
        let mut waited = false;
        loop {
            let gone = || engine::Error::Rejected(Reject::NotFound);
            let mut part = streamed::read(engine, id, Seq(0), 0, self.cx.shared.config.read_bytes)?.ok_or_else(gone)?;
            let task = engine.task(&self.cx.session.caller, id)?.ok_or_else(gone)?;
            part.over &= task.ended.is_some();
            if waited || part.over || !part.segments.is_empty() {
                return Ok((task, part));
            }
            tokio::select! {
                _ = watch.changed() => {}
                () = &mut patience => waited = true,
            }
        }
    }
}

/// A call whose result is wanted at once, if it is there soon.
struct Immediate<'a> {
    call: &'a Call<'a, 'a>,
    run: &'a Run,
    streams: bool,
    over: bool,
}

impl CallEra for Immediate<'_> {
    /// Waits for as long as a result may take to count as there at once. Output that could be shown does not wait for it much longer.
    async fn meanwhile(&mut self) -> Result<Wake, Fault> {
        if self.over {
            return std::future::pending().await;
        }
        let (clock, patience) = (self.call.cx.shared.engine.clock(), self.call.patience());
        let has_shown = async {
            if !self.streams {
                std::future::pending::<()>().await;
            }
            self.run.wrote().await;
            clock.sleep(patience / AT_ONCE_PART).await;
        };
        tokio::select! {
            () = clock.sleep(patience) => {}
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
        augment(raw, true).map(|augment| (augment.ttl, augment.modes.map(|modes| modes.len()))).map_err(|fault| fault.error.code)
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
