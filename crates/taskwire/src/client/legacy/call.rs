//! `tools/call`: as a task where the tool can be one, and followed as whatever the server makes of it.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use taskwire_core::{Payload, wire::RequestId};

use super::{Legacy, members::Seat, stream::Stream, streamed, watch::Watch};
use crate::client::{
    Error, Event, Outcome, TaskSupport,
    event::Finished,
    inbox::Fact,
    link::{self, CancelOnDrop, Failed, KEY},
    run::{Driver, Way},
    wire::Backoff,
};

/// Calls a tool and follows what comes of it.
pub(crate) async fn drive(legacy: Arc<Legacy>, mut driver: Driver, tool: String, args: Value) -> Result<Outcome, Error> {
    // Whether the call may be a task is up to the tool. A server that cannot list its tools has none that can.
    let tools = match legacy.list_tools().await {
        Ok(tools) => tools,
        Err(Error::Rpc(_)) => Arc::default(),
        Err(error) => return Err(error),
    };
    let known = tools.iter().find(|known| known.name == tool);
    let repeatable = known.is_some_and(crate::client::ToolInfo::repeatable);
    let peer = legacy.peer();
    let augmented = peer.tasks && known.is_some_and(|known| matches!(known.task, TaskSupport::Optional | TaskSupport::Required));
    let mut params = json!({"name": tool, "arguments": args, "_meta": {KEY: driver.shared.reference().key}});
    let mut streamed = false;
    if augmented {
        params["task"] = json!({});
        if !peer.modes.is_empty() {
            // Where output is also pushed as notifications, those are the better way: the result stays the tool's own.
            streamed = legacy.link.options.stream && !peer.partials && peer.modes.iter().any(|mode| mode == "streaming");
            params["task"]["responseModes"] =
                if streamed { json!(["immediate", "streaming", "task"]) } else { json!(["immediate", "task"]) };
        }
    }
    let mut backoff = Backoff::new(legacy.link.options.timing);
    loop {
        let began = legacy.link.options.clock.now();
        let seat = legacy.members.join();
        seat.call();
        let failed = match once(&legacy, &mut driver, &seat, &params).await {
            Ok(None) => return Ok(Outcome::Cancelled { message: None }),
            Ok(Some((stream, result))) => {
                driver.back();
                return answered(legacy, driver, seat, stream, result, streamed).await;
            }
            Err(failed) => failed,
        };
        if !failed.passes() {
            return Err(legacy.link.error(failed));
        }
        if !legacy.peer().idempotency && !repeatable && !matches!(&failed, Failed::Lost(lost) if lost.unheard()) {
            return Err(Error::LostCall { tool, reason: failed.reason() });
        }
        let Some(wait) = backoff.next_since(began, legacy.link.options.clock.now(), failed.retry_after()) else {
            return Err(legacy.link.error(failed));
        };
        driver.lost(failed.reason(), wait);
        tokio::select! {
            () = legacy.link.options.clock.sleep(wait) => {}
            () = driver.stopped() => return Ok(Outcome::Cancelled { message: None }),
        }
    }
}

/// Sends the call and waits for the first answer to it. Nothing if it was called off.
async fn once(legacy: &Arc<Legacy>, driver: &mut Driver, seat: &Seat, params: &Value) -> Result<Option<(Stream, Payload)>, Failed> {
    let id = legacy.link.id();
    seat.request(id);
    let mut params = params.clone();
    params["_meta"]["progressToken"] = json!(id);
    let cancelled = link::cancelled(id, params.as_object().unwrap_or(&Map::new()));
    let me = legacy.clone();
    let mut held = CancelOnDrop::new(&legacy.link, async move { drop(me.say(cancelled).await) });
    let mut stream = tokio::select! {
        stream = legacy.send(id, "tools/call", &params, true) => stream.inspect_err(|_| held.disarm())?,
        () = driver.stopped() => return Ok(None),
    };
    loop {
        let outcome = tokio::select! {
            biased;
            () = seat.inbox.ready() => {
                let mut outcome = None;
                while let Some(fact) = seat.inbox.try_next() {
                    match fact {
                        Fact::Answer(answer) => outcome = Some(answer),
                        fact => plain(driver, fact).await?,
                    }
                }
                outcome
            }
            message = stream.next(Some(&seat.inbox)) => match link::answer_to(id, message.inspect_err(|_| held.disarm())?) {
                Ok(outcome) => {
                    // What was told on the way comes before the answer.
                    while let Some(fact) = seat.inbox.try_next() {
                        plain(driver, fact).await?;
                    }
                    Some(outcome)
                }
                Err(message) => {
                    legacy.aside(message, Some(&seat.inbox));
                    None
                }
            },
            () = driver.stopped() => return Ok(None),
        };
        if let Some(outcome) = outcome {
            held.disarm();
            return outcome.map(|result| Some((stream, result))).map_err(Failed::Rpc);
        }
    }
}

/// Something that happens to a call before it is answered.
async fn plain(driver: &mut Driver, fact: Fact) -> Result<(), Failed> {
    match fact {
        Fact::Question { id, session, method, params } => {
            let request = json!({"method": method, "params": params});
            let input = crate::client::Input::read(&named(&id, session), Payload::from(request)).map_err(Failed::Broken)?;
            driver.ask(input, Way::Respond(id, session), None).await?;
        }
        fact => told(driver, fact).await,
    }
    Ok(())
}

/// The name of a question: each session counts its requests from the first on.
pub(super) fn named(id: &RequestId, session: u64) -> String {
    if session == 0 { id.to_string() } else { format!("{id}@{session}") }
}

/// What is told of any call.
pub(super) async fn told(driver: &mut Driver, fact: Fact) {
    match fact {
        Fact::Progress(params) => {
            if let Some(event) = crate::client::modern::progress(&params) {
                driver.emit(event).await;
            }
        }
        Fact::Log(params) => driver.emit(Event::Log(params)).await,
        Fact::Withdrawn { id, session } => driver.withdraw(&named(&id, session)).await,
        Fact::Up { .. } => driver.back(),
        Fact::Down { reason, again_in } => driver.lost(reason, again_in.unwrap_or_default()),
        Fact::View { .. } | Fact::Standing(_) | Fact::Partial { .. } | Fact::Question { .. } | Fact::Answer(_) => {}
    }
}

/// What the first answer to a call means.
async fn answered(
    legacy: Arc<Legacy>,
    mut driver: Driver,
    seat: Seat,
    stream: Stream,
    result: Payload,
    streamed: bool,
) -> Result<Outcome, Error> {
    let broken = |reason: String| legacy.link.error(Failed::Broken(reason));
    let value: Value = result.read().map_err(|error| broken(format!("a result that is none: {error}")))?;
    let has = |key: &str| value.get(key).is_some_and(|member| !member.is_null());
    if has("partial-content") || (streamed && has("task") && !has("content")) {
        return streamed::follow(legacy, driver, seat, stream, value).await;
    }
    if !has("task") || has("content") {
        return Finished::read(result).map(Outcome::Result).map_err(broken);
    }
    let created = super::view(&Payload::from(value["task"].clone())).map_err(broken)?;
    let session = stream.session.id.clone();
    drop(stream);
    seat.task(&created.id);
    legacy.began(&created.id);
    driver.named(&created.id, session).await?;
    Watch::new(legacy, driver, seat, created.id.clone()).run(Some(created)).await
}
