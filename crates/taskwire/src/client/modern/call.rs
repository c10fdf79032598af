//! `tools/call` in the modern era: sends the call, with retries and rounds of questions, until there is a result or a task.

use std::{collections::BTreeMap, sync::Arc};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use taskwire_core::{Payload, wire::code};
use tokio::sync::mpsc;

use super::{ModernClient, headers, outgoing, result_type, watch};
use crate::client::{
    Error, Event, Outcome, Question, TaskSnapshot,
    call::{AnswerRoute, Driver},
    event::ToolResult,
    link::{self, IDEMPOTENCY_KEY, RequestError},
    wire::{Backoff, Message, WireError},
};

/// A result of type `input_required`.
#[derive(Deserialize)]
struct Round {
    #[serde(default, rename = "inputRequests")]
    requests: BTreeMap<String, Payload>,
    #[serde(default, rename = "requestState")]
    state: Option<Value>,
}

/// Calls a tool and follows it to its end.
pub(crate) async fn drive(modern: Arc<ModernClient>, mut driver: Driver, tool: String, args: Value) -> Result<Outcome, Error> {
    // The schema says which arguments must travel as headers.
    if modern.link.wire.http().is_some() && modern.tools.known().is_none() {
        modern.list_tools().await?;
    }
    let key = driver.shared.reference().key.unwrap_or_default();
    let (mut answers, mut state) = (Map::new(), None);
    for round in 0..=modern.link.options.limits.rounds {
        let mut params = json!({"name": tool, "arguments": args});
        // Each round is a call of its own, so it has a key of its own.
        let key = if round == 0 { key.clone() } else { format!("{key}.{round}") };
        params["_meta"] = json!({IDEMPOTENCY_KEY: key});
        if !answers.is_empty() {
            params["inputResponses"] = Value::Object(std::mem::take(&mut answers));
        }
        if let Some(state) = state.take() {
            params["requestState"] = state;
        }
        let calling = call_until_answered(&modern, &mut driver, &tool, &args, params);
        let Some(result) = calling.await? else { return Ok(Outcome::Cancelled { message: None }) };
        let broken = |reason: String| modern.link.error(RequestError::Protocol(reason));
        match result_type(&result).map_err(|failed| modern.link.error(failed))?.as_str() {
            "complete" => return Ok(Outcome::Result(ToolResult::read(result).map_err(broken)?)),
            "task" => {
                let created = TaskSnapshot::read(&created_task(&result), "ttlMs", "pollIntervalMs").map_err(broken)?;
                // The task's questions have keys of their own.
                driver.clear_questions();
                driver.became_task(&created.id, None).await?;
                return watch::follow(&modern, driver, Some(created)).await;
            }
            "input_required" => {
                let asked: Round = result.read().map_err(|error| broken(format!("a round of questions that cannot be read: {error}")))?;
                if asked.requests.is_empty() && asked.state.is_none() {
                    return Err(broken("it asks for another round, and for nothing".to_owned()));
                }
                let Some(round_answers) = ask(&modern, &mut driver, asked.requests).await? else {
                    return Ok(Outcome::Cancelled { message: None });
                };
                (answers, state) = (round_answers, asked.state);
            }
            other => return Err(broken(format!("a result of type `{other}`, which it must not use with us"))),
        }
    }
    Err(Error::Limit { what: "rounds of questions", max: modern.link.options.limits.rounds, key: "limits.rounds" })
}

/// The task in a result: the result itself, as the extension's schema and examples have it, or its member `task`, as the
/// extension's text says.
fn created_task(result: &Payload) -> Payload {
    #[derive(Deserialize)]
    struct Seed {
        #[serde(default)]
        task: Option<Payload>,
    }
    result.read::<Seed>().ok().and_then(|seed| seed.task).unwrap_or_else(|| result.clone())
}

/// Asks the questions of a round. None if the caller cancelled meanwhile.
async fn ask(modern: &ModernClient, driver: &mut Driver, requests: BTreeMap<String, Payload>) -> Result<Option<Map<String, Value>>, Error> {
    driver.clear_questions();
    let (sender, mut received) = mpsc::channel(requests.len().max(1));
    let mut answers = Map::new();
    let mut open = requests.len();
    for (key, request) in requests {
        if let Some(answer) = known_answer(modern, &request.read().unwrap_or_default()) {
            answers.insert(key, answer);
            open -= 1;
            continue;
        }
        let input = Question::read(&key, request).map_err(|reason| modern.link.error(RequestError::Protocol(reason)))?;
        driver.ask(input, AnswerRoute::NextRound(sender.clone()), None).await?;
    }
    while open > 0 {
        tokio::select! {
            answer = received.recv() => {
                let Some((key, answer)) = answer else { break };
                answers.insert(key, answer);
                open -= 1;
            }
            () = driver.wait_for_cancel() => return Ok(None),
        }
    }
    Ok(Some(answers))
}

/// The answer to `roots/list`, which the client knows from its options.
pub(super) fn known_answer(modern: &ModernClient, request: &Value) -> Option<Value> {
    let roots = modern.link.options.capabilities.roots.as_ref().filter(|_| request["method"] == "roots/list")?;
    Some(json!({"roots": roots}))
}

/// Sends a call until there is a response. None if the caller cancelled.
async fn call_until_answered(
    modern: &Arc<ModernClient>,
    driver: &mut Driver,
    tool: &str,
    args: &Value,
    params: Value,
) -> Result<Option<Payload>, Error> {
    let mut backoff = Backoff::new(modern.link.options.timing);
    let mut listed = false;
    loop {
        let began = modern.link.options.clock.now();
        let failed = match call_once(modern, driver, tool, args, &params).await {
            Ok(result) => {
                driver.connection_restored();
                return Ok(result);
            }
            // The tool's schema has changed since it was listed.
            Err(RequestError::Rpc(error)) if error.code == code::HEADER_MISMATCH && !listed => {
                listed = true;
                modern.tools.forget();
                modern.list_tools().await?;
                continue;
            }
            Err(failed) => failed,
        };
        if !failed.is_transient() {
            return Err(modern.link.error(failed));
        }
        let again = modern.server_info().idempotency
            || matches!(&failed, RequestError::Wire(lost) if lost.is_unprocessed())
            || modern.tools.known().is_some_and(|tools| tools.iter().any(|known| known.name == tool && known.repeatable()));
        if !again {
            return Err(Error::LostCall { tool: tool.to_owned(), reason: failed.reason() });
        }
        let Some(wait) = backoff.next_since(began, modern.link.options.clock.now(), failed.retry_after()) else {
            return Err(modern.link.error(failed));
        };
        driver.connection_lost(failed.reason(), wait);
        tokio::select! {
            () = modern.link.options.clock.sleep(wait) => {}
            () = driver.wait_for_cancel() => return Ok(None),
        }
    }
}

async fn call_once(
    modern: &Arc<ModernClient>,
    driver: &mut Driver,
    tool: &str,
    args: &Value,
    params: &Value,
) -> Result<Option<Payload>, RequestError> {
    let id = modern.link.next_id();
    let mut params = super::object(params.clone());
    params["_meta"]["progressToken"] = json!(id);
    let schema =
        modern.tools.known().and_then(|tools| tools.iter().find(|known| known.name == tool).map(|known| known.input_schema.clone()));
    let annotated = schema.filter(|_| modern.link.wire.http().is_some()).and_then(|schema| headers::of_schema(&schema).ok());
    let more = annotated.map(|annotated| headers::of_arguments(&annotated, args)).unwrap_or_default();
    let mut cancel_guard = modern.cancel_on_drop(link::cancel_notification(id, &params));
    let request = modern.link.wire.request(outgoing(&modern.link, id, "tools/call", params, Some(tool), more));
    let mut exchange = tokio::select! {
        exchange = request => exchange.inspect_err(|_| cancel_guard.disarm())?,
        () = driver.wait_for_cancel() => return Ok(None),
    };
    loop {
        let message = tokio::select! {
            message = exchange.next() => message.inspect_err(|_| cancel_guard.disarm())?,
            () = driver.wait_for_cancel() => return Ok(None),
        };
        let Some(message) = message else {
            cancel_guard.disarm();
            return Err(link::ended_without_answer(exchange.status()).into());
        };
        match link::match_response(id, message) {
            Ok(outcome) => {
                cancel_guard.disarm();
                return outcome.map(Some).map_err(RequestError::Rpc);
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
                return Err(RequestError::Protocol("it asks us something, which servers of this era must not".to_owned()));
            }
            Err(Message::Response { id: None, .. }) => {
                return Err(RequestError::Wire(WireError::Interrupted("an answer without a name".to_owned())));
            }
            Err(Message::Response { .. }) => {}
        }
    }
}

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
