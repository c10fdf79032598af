//! `tools/call` in the legacy era: asks for a task where the tool allows it, and follows what the server makes of the call.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use taskwire_core::{Payload, wire::RequestId};

use super::{LegacyClient, resumable_stream::ResumableStream, router::Registration, streaming, watch::Watch};
use crate::client::{
    Error, Event, Outcome, TaskSupport,
    call::{AnswerRoute, Driver},
    event::ToolResult,
    inbox::Notice,
    link::{self, CancelOnDrop, IDEMPOTENCY_KEY, RequestError},
    wire::Backoff,
};

/// Calls a tool and follows it to its end.
pub(crate) async fn drive(legacy: Arc<LegacyClient>, mut driver: Driver, tool: String, args: Value) -> Result<Outcome, Error> {
    // The tool says whether its calls may be tasks. A server that cannot list its tools has none that say so.
    let tools = match legacy.list_tools().await {
        Ok(tools) => tools,
        Err(Error::Rpc(_)) => Arc::default(),
        Err(error) => return Err(error),
    };
    let known = tools.iter().find(|known| known.name == tool);
    let repeatable = known.is_some_and(crate::client::ToolInfo::repeatable);
    let peer = legacy.server_info();
    let augmented = peer.tasks && known.is_some_and(|known| matches!(known.task, TaskSupport::Optional | TaskSupport::Required));
    let mut params = json!({"name": tool, "arguments": args, "_meta": {IDEMPOTENCY_KEY: driver.shared.reference().key}});
    legacy.link.options.add_trace(&mut params["_meta"]);
    let mut streamed = false;
    if augmented {
        params["task"] = json!({});
        if !peer.response_modes.is_empty() {
            // Notifications of output are better than segments where the server has both: the result stays the tool's own.
            streamed =
                legacy.link.options.stream_output && !peer.pushes_output && peer.response_modes.iter().any(|mode| mode == "streaming");
            params["task"]["responseModes"] =
                if streamed { json!(["immediate", "streaming", "task"]) } else { json!(["immediate", "task"]) };
        }
    }
    let mut backoff = Backoff::new(legacy.link.options.timing);
    let mut registration = legacy.router.register();
    registration.add_call();
    loop {
        let began = legacy.link.options.clock.now();
        let failed = match call_once(&legacy, &mut driver, &registration, &params).await {
            Ok(None) => return Ok(Outcome::Cancelled { message: None }),
            Ok(Some((stream, result))) => {
                driver.connection_restored();
                return follow_answer(legacy, driver, registration, stream, result, streamed).await;
            }
            Err(failed) => failed,
        };
        if !failed.is_transient() {
            return Err(legacy.link.error(failed));
        }
        if !legacy.server_info().idempotency && !repeatable && !matches!(&failed, RequestError::Wire(lost) if lost.is_unprocessed()) {
            return Err(Error::LostCall { tool, reason: failed.reason() });
        }
        let Some(wait) = backoff.next_since(began, legacy.link.options.clock.now(), failed.retry_after()) else {
            return Err(legacy.link.error(failed));
        };
        driver.connection_lost(failed.reason(), wait);
        tokio::select! {
            () = legacy.link.options.clock.sleep(wait) => {}
            () = driver.wait_for_cancel() => return Ok(Outcome::Cancelled { message: None }),
        }
        // The next one is there before this one goes: the server may have made the task though it said otherwise, and the router keeps
        // what concerns it for as long as there is a call that it may be.
        let next = legacy.router.register();
        next.add_call();
        registration = next;
    }
}

/// Sends the call and waits for its first response. None if the caller cancelled.
async fn call_once(
    legacy: &Arc<LegacyClient>,
    driver: &mut Driver,
    registration: &Registration,
    params: &Value,
) -> Result<Option<(ResumableStream, Payload)>, RequestError> {
    let id = legacy.link.next_id();
    registration.add_request(id);
    let mut params = params.clone();
    params["_meta"]["progressToken"] = json!(id);
    let cancelled = link::cancel_notification(id, params.as_object().unwrap_or(&Map::new()));
    let me = legacy.clone();
    let mut guard = CancelOnDrop::new(&legacy.link, async move { drop(me.send_one_way(cancelled).await) });
    let mut stream = tokio::select! {
        stream = legacy.send(id, "tools/call", &params, true) => stream.inspect_err(|_| guard.disarm())?,
        () = driver.wait_for_cancel() => return Ok(None),
    };
    loop {
        let outcome = tokio::select! {
            biased;
            () = registration.inbox.ready() => {
                let mut outcome = None;
                while let Some(notice) = registration.inbox.try_next() {
                    match notice {
                        Notice::Response(answer) => outcome = Some(answer),
                        notice => take_notice(driver, notice).await?,
                    }
                }
                outcome
            }
            message = stream.next(Some(&registration.inbox)) => match link::match_response(id, message.inspect_err(|_| guard.disarm())?) {
                Ok(outcome) => {
                    // Notices that came before the response go first.
                    while let Some(notice) = registration.inbox.try_next() {
                        take_notice(driver, notice).await?;
                    }
                    Some(outcome)
                }
                Err(message) => {
                    legacy.dispatch(message, Some(&registration.inbox));
                    None
                }
            },
            () = driver.wait_for_cancel() => return Ok(None),
        };
        if let Some(outcome) = outcome {
            guard.disarm();
            return outcome.map(|result| Some((stream, result))).map_err(RequestError::Rpc);
        }
    }
}

/// Takes a notice that comes before the response to a call.
async fn take_notice(driver: &mut Driver, notice: Notice) -> Result<(), RequestError> {
    match notice {
        Notice::Question { id, session, method, params } => {
            let request = json!({"method": method, "params": params});
            let input =
                crate::client::Question::read(&question_key(&id, session), Payload::from(request)).map_err(RequestError::Protocol)?;
            driver.ask(input, AnswerRoute::Response { id, session, times: 1 }, None).await?;
        }
        notice => forward_notice(driver, notice).await,
    }
    Ok(())
}

/// The key of a question: its request id, with the session if it is not the first, because each session counts anew.
pub(super) fn question_key(id: &RequestId, session: u64) -> String {
    if session == 0 { id.to_string() } else { format!("{id}@{session}") }
}

/// Forwards a notice that any call may get.
pub(super) async fn forward_notice(driver: &mut Driver, notice: Notice) {
    match notice {
        Notice::Progress(params) => {
            if let Some(event) = crate::client::modern::progress(&params) {
                driver.emit(event).await;
            }
        }
        Notice::Log(params) => driver.emit(Event::Log(params)).await,
        Notice::QuestionWithdrawn { id, session } => driver.withdraw(&question_key(&id, session)).await,
        Notice::StreamUp { .. } => driver.connection_restored(),
        Notice::StreamDown { reason, retry_in: again_in } => driver.connection_lost(reason, again_in.unwrap_or_default()),
        Notice::Task { .. } | Notice::SessionStream(_) | Notice::Chunk { .. } | Notice::Question { .. } | Notice::Response(_) => {}
    }
}

/// Reads the first response to a call, and follows the call from there.
async fn follow_answer(
    legacy: Arc<LegacyClient>,
    mut driver: Driver,
    registration: Registration,
    stream: ResumableStream,
    result: Payload,
    streamed: bool,
) -> Result<Outcome, Error> {
    let broken = |reason: String| legacy.link.error(RequestError::Protocol(reason));
    let value: Value = result.read().map_err(|error| broken(format!("a result that cannot be read: {error}")))?;
    let has = |key: &str| value.get(key).is_some_and(|member| !member.is_null());
    if has("partial-content") || (streamed && has("task") && !has("content")) {
        return streaming::follow(legacy, driver, registration, stream, value).await;
    }
    if !has("task") || has("content") {
        return ToolResult::read(result).map(Outcome::Result).map_err(broken);
    }
    let created = super::read_snapshot(&Payload::from(value["task"].clone())).map_err(broken)?;
    let session = stream.session.id.clone();
    drop(stream);
    registration.set_task(&created.id);
    legacy.task_started(&created.id);
    driver.became_task(&created.id, session).await?;
    Watch::new(legacy, driver, registration, created.id.clone()).run(Some(created)).await
}
