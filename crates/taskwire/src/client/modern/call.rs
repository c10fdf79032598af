//! `tools/call`: sent until it is answered, in as many rounds as the server wants, until there is a result or a task.

use std::{collections::BTreeMap, sync::Arc};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use taskwire_core::{Payload, wire::code};
use tokio::sync::mpsc;

use super::{Modern, headers, outgoing, result_type, watch};
use crate::client::{
    Error, Event, Input, Outcome, TaskView,
    event::Finished,
    link::{self, Failed, KEY},
    run::{Driver, Way},
    wire::{Backoff, Lost, Message},
};

/// A round that the server asks for.
#[derive(Deserialize)]
struct Round {
    #[serde(default, rename = "inputRequests")]
    requests: BTreeMap<String, Payload>,
    #[serde(default, rename = "requestState")]
    state: Option<Value>,
}

/// Calls a tool and follows what comes of it.
pub(crate) async fn drive(modern: Arc<Modern>, mut driver: Driver, tool: String, args: Value) -> Result<Outcome, Error> {
    // Which arguments travel as headers too must be known before they do.
    if modern.link.wire.http().is_some() && modern.tools.known().is_none() {
        modern.list_tools().await?;
    }
    let key = driver.shared.reference().key.unwrap_or_default();
    let (mut answers, mut state) = (Map::new(), None);
    for round in 0..=modern.link.options.limits.rounds {
        let mut params = json!({"name": tool, "arguments": args});
        // Each round is a call of its own.
        let key = if round == 0 { key.clone() } else { format!("{key}.{round}") };
        params["_meta"] = json!({KEY: key});
        if !answers.is_empty() {
            params["inputResponses"] = Value::Object(std::mem::take(&mut answers));
        }
        if let Some(state) = state.take() {
            params["requestState"] = state;
        }
        let calling = call(&modern, &mut driver, &tool, &args, params);
        let Some(result) = calling.await? else { return Ok(Outcome::Cancelled { message: None }) };
        let broken = |reason: String| modern.link.error(Failed::Broken(reason));
        match result_type(&result).map_err(|failed| modern.link.error(failed))?.as_str() {
            "complete" => return Ok(Outcome::Result(Finished::read(result).map_err(broken)?)),
            "task" => {
                let created = TaskView::read(&seed(&result), "ttlMs", "pollIntervalMs").map_err(broken)?;
                // The task has keys of its own.
                driver.next_round();
                driver.named(&created.id, None).await?;
                return watch::follow(&modern, driver, Some(created)).await;
            }
            "input_required" => {
                let asked: Round = result.read().map_err(|error| broken(format!("a round of questions that is none: {error}")))?;
                if asked.requests.is_empty() && asked.state.is_none() {
                    return Err(broken("it asks for another round, and for nothing".to_owned()));
                }
                let Some(given) = ask(&modern, &mut driver, asked.requests).await? else { return Ok(Outcome::Cancelled { message: None }) };
                (answers, state) = (given, asked.state);
            }
            other => return Err(broken(format!("a result of type `{other}`, which it must not use with us"))),
        }
    }
    Err(Error::Limit { what: "rounds of questions", max: modern.link.options.limits.rounds, key: "limits.rounds" })
}

/// The task that a call has become: the result itself, as the extension defines and shows it, or the `task` that is embedded
/// in it, as its text says.
fn seed(result: &Payload) -> Payload {
    #[derive(Deserialize)]
    struct Seed {
        #[serde(default)]
        task: Option<Payload>,
    }
    result.read::<Seed>().ok().and_then(|seed| seed.task).unwrap_or_else(|| result.clone())
}

/// Asks what a round asks. Nothing if the call was called off meanwhile.
async fn ask(modern: &Modern, driver: &mut Driver, requests: BTreeMap<String, Payload>) -> Result<Option<Map<String, Value>>, Error> {
    driver.next_round();
    let (sender, mut given) = mpsc::channel(requests.len().max(1));
    let mut answers = Map::new();
    let mut open = requests.len();
    for (key, request) in requests {
        if let Some(answer) = known_answer(modern, &request.read().unwrap_or_default()) {
            answers.insert(key, answer);
            open -= 1;
            continue;
        }
        let input = Input::read(&key, request).map_err(|reason| modern.link.error(Failed::Broken(reason)))?;
        driver.ask(input, Way::Round(sender.clone()), None).await?;
    }
    while open > 0 {
        tokio::select! {
            answer = given.recv() => {
                let Some((key, answer)) = answer else { break };
                answers.insert(key, answer);
                open -= 1;
            }
            () = driver.stopped() => return Ok(None),
        }
    }
    Ok(Some(answers))
}

/// What needs nobody to be asked.
pub(super) fn known_answer(modern: &Modern, request: &Value) -> Option<Value> {
    let roots = modern.link.options.asks.roots.as_ref().filter(|_| request["method"] == "roots/list")?;
    Some(json!({"roots": roots}))
}

/// Sends a call until it is answered. Nothing if it was called off.
async fn call(modern: &Arc<Modern>, driver: &mut Driver, tool: &str, args: &Value, params: Value) -> Result<Option<Payload>, Error> {
    let mut backoff = Backoff::new(modern.link.options.timing);
    let mut listed = false;
    loop {
        let began = modern.link.options.clock.now();
        let failed = match once(modern, driver, tool, args, &params).await {
            Ok(result) => {
                driver.back();
                return Ok(result);
            }
            // The tool has changed since it was listed.
            Err(Failed::Rpc(error)) if error.code == code::HEADER_MISMATCH && !listed => {
                listed = true;
                modern.tools.forget();
                modern.list_tools().await?;
                continue;
            }
            Err(failed) => failed,
        };
        if !failed.passes() {
            return Err(modern.link.error(failed));
        }
        let again = modern.peer().idempotency
            || matches!(&failed, Failed::Lost(lost) if lost.unheard())
            || modern.tools.known().is_some_and(|tools| tools.iter().any(|known| known.name == tool && known.repeatable()));
        if !again {
            return Err(Error::LostCall { tool: tool.to_owned(), reason: failed.reason() });
        }
        let Some(wait) = backoff.next_since(began, modern.link.options.clock.now(), failed.retry_after()) else {
            return Err(modern.link.error(failed));
        };
        driver.lost(failed.reason(), wait);
        tokio::select! {
            () = modern.link.options.clock.sleep(wait) => {}
            () = driver.stopped() => return Ok(None),
        }
    }
}

async fn once(modern: &Arc<Modern>, driver: &mut Driver, tool: &str, args: &Value, params: &Value) -> Result<Option<Payload>, Failed> {
    let id = modern.link.id();
    let mut params = super::object(params.clone());
    params["_meta"]["progressToken"] = json!(id);
    let schema =
        modern.tools.known().and_then(|tools| tools.iter().find(|known| known.name == tool).map(|known| known.input_schema.clone()));
    let annotated = schema.filter(|_| modern.link.wire.http().is_some()).and_then(|schema| headers::of_schema(&schema).ok());
    let more = annotated.map(|annotated| headers::of_arguments(&annotated, args)).unwrap_or_default();
    let mut held = modern.cancel_on_drop(link::cancelled(id, &params));
    let request = modern.link.wire.request(outgoing(&modern.link, id, "tools/call", params, Some(tool), more));
    let mut exchange = tokio::select! {
        exchange = request => exchange.inspect_err(|_| held.disarm())?,
        () = driver.stopped() => return Ok(None),
    };
    loop {
        let message = tokio::select! {
            message = exchange.next() => message.inspect_err(|_| held.disarm())?,
            () = driver.stopped() => return Ok(None),
        };
        let Some(message) = message else {
            held.disarm();
            return Err(link::ended(exchange.status()).into());
        };
        match link::answer_to(id, message) {
            Ok(outcome) => {
                held.disarm();
                return outcome.map(Some).map_err(Failed::Rpc);
            }
            Err(Message::Notification { method, params }) => match method.as_str() {
                "notifications/progress" => {
                    let ours = params.read::<Value>().is_ok_and(|params| params["progressToken"] == id);
                    if let Some(event) = progress(&params).filter(|_| ours) {
                        driver.emit(event).await;
                    }
                }
                "notifications/message" => driver.emit(Event::Log(params)).await,
                _ => {}
            },
            Err(Message::Request { .. }) => {
                return Err(Failed::Broken("it asks us something, which servers of this era must not".to_owned()));
            }
            Err(Message::Response { id: None, .. }) => return Err(Failed::Lost(Lost::Cut("an answer without a name".to_owned()))),
            Err(Message::Response { .. }) => {}
        }
    }
}

/// Reads how far the work is.
pub(crate) fn progress(params: &Payload) -> Option<Event> {
    #[derive(Deserialize)]
    struct Read {
        progress: f64,
        #[serde(default)]
        total: Option<f64>,
        #[serde(default)]
        message: Option<String>,
    }
    let Read { progress, total, message } = params.read().ok()?;
    Some(Event::Progress { progress, total, message })
}
