//! Clients at work while the server dies under them: they create, look, answer and cancel, repeat what was lost, and
//! put every acknowledged fact into the model.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use taskwire::clock::{Clock, SystemClock};
use tokio::time::sleep;

use crate::{
    client::{Client, Reply},
    dice::Dice,
    model::{Call, Kind, Model, answer_of, call_params, is_terminal, status},
};

/// Tasks that one worker has open at a time: more would only wait for their turn between two kills.
const OPEN_MAX: usize = 6;
/// Calls of one worker are numbered from its own number times this.
const CALLS_MAX: u64 = 1_000_000;
/// Between two things that a client does.
const PAUSE: Duration = Duration::from_millis(2);

/// Looks at a task and holds it against what is known. None if the answer was lost.
pub(crate) async fn look(client: &mut Client, model: &Model, id: &str) -> Option<Value> {
    let before = model.facts(id);
    let reply = client.try_once("tasks/get", &json!({"taskId": id})).await?;
    let state = reply.unwrap_or_else(|error| panic!("{id} was acknowledged and is lost: {error}; known is {before:?}"));
    model.observed(id, &before, &state);
    Some(state)
}

/// Answers the question of a task, until that is acknowledged.
pub(crate) async fn answer(client: &mut Client, model: &Model, id: &str, n: u64) {
    client.until_ok("tasks/update", &answer_params(id, n)).await;
    model.answered(id);
}

pub(crate) fn answer_params(id: &str, n: u64) -> Value {
    json!({"taskId": id, "inputResponses": {"name": {"action": "accept", "content": {"name": answer_of(n)}}}})
}

/// Cancels a task, until that is acknowledged.
pub(crate) async fn cancel(client: &mut Client, model: &Model, id: &str) {
    client.until_ok("tasks/cancel", &json!({"taskId": id})).await;
    model.cancelled(id, SystemClock.now().to_string());
}

/// Looks at acknowledged tasks of all clients, whoever made them, until it is stopped.
pub(crate) async fn read(port: u16, model: Arc<Model>, mut dice: Dice, stop: Arc<AtomicBool>) {
    let mut client = Client::new(port);
    while !stop.load(Ordering::Relaxed) {
        if let Some(id) = model.any(&mut dice) {
            look(&mut client, &model, &id).await;
        }
        sleep(PAUSE).await;
    }
}

/// One client with tasks of its own.
#[derive(Debug)]
pub(crate) struct Worker {
    client: Client,
    /// For the same call at the same time on another connection.
    second_client: Client,
    model: Arc<Model>,
    dice: Dice,
    next_n: u64,
    open: Vec<String>,
}

impl Worker {
    pub(crate) fn new(number: u64, port: u16, model: Arc<Model>, dice: Dice) -> Self {
        let (client, second_client) = (Client::new(port), Client::new(port));
        Self { client, second_client, model, dice, next_n: number * CALLS_MAX, open: Vec::new() }
    }

    /// Works until it is stopped, and ends what it has begun by then.
    pub(crate) async fn run(mut self, stop: Arc<AtomicBool>) {
        while !stop.load(Ordering::Relaxed) {
            match self.dice.below(8) {
                0 => self.call_directly().await,
                1..4 if self.open.len() < OPEN_MAX => self.create().await,
                _ => self.advance_task().await,
            }
            sleep(PAUSE).await;
        }
    }

    /// A new call. Half of them have a key: these are repeated until acknowledged. A call without one is given up if
    /// its answer is lost, since nobody can know whether it made a task.
    async fn create(&mut self) {
        let kind = *self.dice.pick(&Kind::ALL).expect("there are kinds");
        let (n, key) = self.number();
        let call = Call { kind, n, key };
        let params = call.params();
        if call.key.is_none() {
            if let Some(reply) = self.client.try_once("tools/call", &params).await {
                let id = self.acknowledged(&call, reply);
                self.open.push(id);
            }
            return;
        }
        if self.dice.one_in(4) {
            let (one, other) =
                tokio::join!(self.client.try_once("tools/call", &params), self.second_client.try_once("tools/call", &params));
            for reply in [one, other].into_iter().flatten() {
                self.acknowledged(&call, reply);
            }
        }
        let reply = self.client.until_answered("tools/call", &params).await;
        let id = self.acknowledged(&call, reply);
        self.open.push(id);
    }

    fn acknowledged(&self, call: &Call, reply: Reply) -> String {
        let handle = reply.unwrap_or_else(|error| panic!("{call:?} was refused: {error}"));
        self.model.created(call, &handle)
    }

    /// A call that never becomes a task that its caller knows. With a key, its end is the same whenever it is repeated.
    async fn call_directly(&mut self) {
        let (n, key) = self.number();
        let params = call_params("direct", n, key.as_deref());
        let is_echo = |reply: &Reply| reply.as_ref().is_ok_and(|result| result["content"][0]["text"] == format!("direct-{n}"));
        if key.is_none() {
            if let Some(reply) = self.client.try_once("tools/call", &params).await {
                assert!(is_echo(&reply), "direct {n}: {reply:?}");
            }
            return;
        }
        let first = self.client.until_answered("tools/call", &params).await;
        let says_interrupted = |result: &Value| result["content"][0]["text"].as_str().is_some_and(|text| text.contains("interrupted: "));
        let is_interrupted = |reply: &Reply| reply.as_ref().is_ok_and(|result| result["isError"] == true && says_interrupted(result));
        assert!(is_echo(&first) || is_interrupted(&first), "direct {n}: {first:?}");
        let again = self.client.until_answered("tools/call", &params).await;
        assert_eq!(first, again, "direct {n} ended in two ways");
    }

    /// Looks at one of its open tasks and does what it needs.
    async fn advance_task(&mut self) {
        let Some(id) = self.dice.pick(&self.open).cloned() else { return };
        let Some(state) = look(&mut self.client, &self.model, &id).await else { return };
        let call = self.model.facts(&id).call;
        if is_terminal(status(&state)) {
            self.open.retain(|open| *open != id);
        } else if status(&state) == "input_required" {
            answer(&mut self.client, &self.model, &id, call.n).await;
        } else if call.kind == Kind::Wait && self.dice.one_in(3) {
            cancel(&mut self.client, &self.model, &id).await;
        }
    }

    /// The number of a new call and, for half of the calls, a key.
    fn number(&mut self) -> (u64, Option<String>) {
        self.next_n += 1;
        (self.next_n, self.dice.one_in(2).then(|| format!("key-{}", self.next_n)))
    }
}
