//! The questions of a call, and how answers to them get to the server.

use serde_json::Value;
use taskwire_core::wire::RequestId;
use tokio::sync::mpsc;

use super::{Driver, Shared};
use crate::client::{Answer, Error, Event, Question};

/// How an answer gets to the server.
#[derive(Debug, Clone)]
pub(crate) enum AnswerRoute {
    /// With `tasks/update`.
    TaskUpdate,
    /// With the next round of the call.
    NextRound(mpsc::Sender<(String, Value)>),
    /// As the response to a request of the server, in the session that the request came in. `times` grows when the server asks again
    /// because it refused the answer.
    Response { id: RequestId, session: u64, times: u32 },
}

impl AnswerRoute {
    /// Whether both lead to the same request of the server.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Response { id, session, .. }, Self::Response { id: other, session: other_session, .. }) => {
                id == other && session == other_session
            }
            _ => true,
        }
    }

    /// Whether the server asks by this route because it refused an answer that took the `earlier` one.
    fn refuses(&self, earlier: &Self) -> bool {
        matches!((self, earlier), (Self::Response { times, .. }, Self::Response { times: before, .. }) if times > before)
    }
}

/// A question that the server asked, and what became of it.
pub(super) struct TrackedQuestion {
    question: Question,
    route: AnswerRoute,
    /// Its key in the ledger; none if the ledger does not keep it.
    ledger_key: Option<String>,
    state: Stage,
    /// The answer that was sent as a response. The server may lose it with its session.
    response: Option<Value>,
    /// Whether the ledger has yet to note that the server has the answer.
    is_unacknowledged: bool,
}

impl TrackedQuestion {
    fn new(question: Question, route: AnswerRoute, ledger_key: Option<String>, state: Stage) -> Self {
        Self { question, route, ledger_key, state, response: None, is_unacknowledged: false }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    Sending,
    /// Open, after an answer that did not arrive. If the server asks again, so does the call.
    Failed,
    Answered,
    /// It needs no answer any more. Kept so that its key is not asked again.
    Settled,
}

impl Shared {
    pub(super) async fn answer(&self, key: &str, answer: Answer) -> Result<(), Error> {
        let (mut route, ledger_key) = {
            let mut questions = self.questions();
            let asked = questions.get_mut(key).ok_or_else(|| Error::NoQuestion { key: key.to_owned() })?;
            if !matches!(asked.state, Stage::Open | Stage::Failed) {
                return Err(Error::AlreadyAnswered { key: key.to_owned() });
            }
            asked.question.check(&answer)?;
            asked.state = Stage::Sending;
            (asked.route.clone(), asked.ledger_key.clone())
        };
        // If this future is dropped half way, the question is open again. The ledger makes sure that a second answer is the same.
        let reopen = Reopen { shared: self, key };
        let mut result = self.submit_answer(key, route.clone(), ledger_key.clone(), answer.value()).await;
        while let Some(next) = self.end_sending(key, &route, answer.value(), &result) {
            if next.refuses(&route) {
                self.withdraw_answer(ledger_key.as_deref()).await?;
                self.reopen(key);
                break;
            }
            route = next;
            if result.is_err() {
                result = self.submit_answer(key, route.clone(), ledger_key.clone(), answer.value()).await;
            } else if let Err(error) = self.send(key, route.clone(), answer.value().clone()).await {
                tracing::debug!(key, %error, "an answer could not be sent again: the server will ask again");
            }
        }
        std::mem::forget(reopen);
        result
    }

    /// The server refused an answer while it was being sent, and asked again: so does the call.
    fn reopen(&self, key: &str) {
        if let Some(asked) = self.questions().get_mut(key).filter(|asked| asked.state == Stage::Sending) {
            asked.state = Stage::Open;
            self.try_emit(Event::Question(asked.question.clone()));
        }
    }

    /// Removes an answer that the server refused from the ledger, so that another one can be given.
    async fn withdraw_answer(&self, ledger_key: Option<&str>) -> Result<(), Error> {
        match ledger_key {
            Some(key) => self.entry.withdraw_answer(key).await,
            None => Ok(()),
        }
    }

    /// An answer was sent by `route`, or could not be. If the server asked again meanwhile, returns where: unless the server refused the
    /// answer, it must go there, too, because the one that was sent may be lost. It is the same question: where a key is valid in its
    /// session only, no other request has it.
    fn end_sending(&self, key: &str, route: &AnswerRoute, answer: &Value, result: &Result<(), Error>) -> Option<AnswerRoute> {
        let mut questions = self.questions();
        let asked = questions.get_mut(key).filter(|asked| asked.state == Stage::Sending)?;
        let may_be_lost = matches!(result, Ok(()) | Err(Error::AlreadyAnswered { .. } | Error::NoQuestion { .. }));
        if asked.route.refuses(route) || (may_be_lost && !asked.route.is_same(route)) {
            return Some(asked.route.clone());
        }
        // A response settles its question at once. After an update the task's state shows it, and a round ends with its questions.
        asked.state = match (result, &asked.route) {
            (Err(_), _) => Stage::Failed,
            (Ok(()), AnswerRoute::Response { .. }) => Stage::Settled,
            (Ok(()), _) => Stage::Answered,
        };
        if asked.state == Stage::Settled {
            asked.response = Some(answer.clone());
            self.try_emit(Event::QuestionSettled { key: key.to_owned() });
        }
        None
    }

    fn keep_response(&self, key: &str, answer: Value) {
        if let Some(asked) = self.questions().get_mut(key).filter(|asked| matches!(asked.route, AnswerRoute::Response { .. })) {
            asked.response = Some(answer);
        }
    }

    async fn submit_answer(&self, key: &str, route: AnswerRoute, ledger_key: Option<String>, answer: &Value) -> Result<(), Error> {
        match ledger_key {
            Some(kept) => self.entry.answer_once(&kept, key, answer, |answer| self.send(key, route, answer)).await,
            None => self.send(key, route, answer.clone()).await.map(drop),
        }
    }

    /// Sends an answer. True if the server has acknowledged it.
    async fn send(&self, key: &str, route: AnswerRoute, answer: Value) -> Result<bool, Error> {
        match route {
            AnswerRoute::NextRound(round) => {
                round.send((key.to_owned(), answer)).await.map_err(|_| Error::NoQuestion { key: key.to_owned() })?;
            }
            AnswerRoute::TaskUpdate => {
                let task = self.reference().task.ok_or_else(|| Error::NoQuestion { key: key.to_owned() })?;
                self.client.update(&task, key, &answer).await?;
            }
            AnswerRoute::Response { id, session, .. } => {
                let is_acknowledged = self.client.respond(&id, session, &answer).await?;
                if let Some(asked) = self.questions().get_mut(key) {
                    asked.is_unacknowledged = !is_acknowledged;
                }
                return Ok(is_acknowledged);
            }
        }
        Ok(true)
    }
}

/// Whether the server received the request and refused it.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Rpc(_) | Error::Refused { .. } | Error::TaskNotFound { .. })
}

/// Opens a question again whose answer was not sent.
struct Reopen<'a> {
    shared: &'a Shared,
    key: &'a str,
}

impl Drop for Reopen<'_> {
    fn drop(&mut self) {
        if let Some(asked) = self.shared.questions().get_mut(self.key).filter(|asked| asked.state == Stage::Sending) {
            asked.state = Stage::Open;
        }
    }
}

impl Driver {
    /// Emits a question, each key once. An answer that an earlier process recorded is sent again instead, if the server may
    /// not have it.
    pub(crate) async fn ask(&mut self, question: Question, route: AnswerRoute, ledger_key: Option<String>) -> Result<(), Error> {
        let key = question.key.clone();
        if self.shared.questions().contains_key(&key) {
            return Ok(());
        }
        let before = match &ledger_key {
            Some(ledger_key) => self.shared.entry.recorded_answer(ledger_key).await?,
            None => None,
        };
        let state = if before.is_some() { Stage::Settled } else { Stage::Open };
        let tracked = TrackedQuestion::new(question.clone(), route.clone(), ledger_key.clone(), state);
        self.shared.questions().insert(key.clone(), tracked);
        match before {
            None => self.emit(Event::Question(question)).await,
            Some((_, true)) => {}
            Some((answer, false)) => {
                let sent = self.shared.submit_answer(&key, route, ledger_key, &answer).await;
                self.sent_again(question, answer, sent).await?;
            }
        }
        Ok(())
    }

    /// An answer that was given before was sent again. If the server refused it, the question is open again.
    async fn sent_again(&mut self, question: Question, answer: Value, sent: Result<(), Error>) -> Result<(), Error> {
        match sent {
            // When its session has ended, the server asks again in the next one, and the answer is sent there.
            Ok(()) | Err(Error::AlreadyAnswered { .. } | Error::NoQuestion { .. }) => {
                self.shared.keep_response(&question.key, answer);
            }
            Err(error) if is_refusal(&error) => {
                if let Some(asked) = self.shared.questions().get_mut(&question.key) {
                    (asked.state, asked.response) = (Stage::Open, None);
                }
                self.emit(Event::Question(question)).await;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Answers a question whose answer the client knows.
    pub(crate) async fn answer_without_asking(
        &mut self,
        question: Question,
        route: AnswerRoute,
        ledger_key: Option<String>,
        answer: Value,
    ) -> Result<(), Error> {
        let key = question.key.clone();
        if self.shared.questions().contains_key(&key) {
            return Ok(());
        }
        let tracked = TrackedQuestion::new(question, route.clone(), ledger_key.clone(), Stage::Settled);
        self.shared.questions().insert(key.clone(), tracked);
        match self.shared.submit_answer(&key, route, ledger_key, &answer).await {
            Err(Error::AlreadyAnswered { .. }) | Ok(()) => {
                self.shared.keep_response(&key, answer);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// The server asks a question again: an answer takes the new route. One that was sent before may be lost, and is sent again. If there
    /// is none, the server refused it, or its sender knows that it did not arrive, the question is asked anew.
    pub(crate) async fn asked_again(&mut self, question: Question, route: AnswerRoute, ledger_key: Option<String>) -> Result<(), Error> {
        let (lost, is_refused) = {
            let mut questions = self.shared.questions();
            let Some(asked) = questions.get_mut(&question.key) else { return Ok(()) };
            let before = std::mem::replace(&mut asked.route, route.clone());
            asked.question = question.clone();
            match asked.state {
                // Whoever sends an answer just now sees that, and sends it there, too.
                Stage::Open | Stage::Sending | Stage::Answered => return Ok(()),
                Stage::Failed => (None, false),
                // It came on two streams.
                Stage::Settled if route.is_same(&before) => return Ok(()),
                Stage::Settled if route.refuses(&before) => (None, true),
                Stage::Settled => (asked.response.clone(), false),
            }
        };
        if is_refused {
            self.shared.withdraw_answer(ledger_key.as_deref()).await?;
        }
        let Some(answer) = lost else {
            self.shared.questions().remove(&question.key);
            return self.ask(question, route, ledger_key).await;
        };
        let sent = self.shared.send(&question.key, route, answer.clone()).await.map(drop);
        if let Err(error) = self.sent_again(question, answer, sent).await {
            tracing::debug!(%error, "an answer could not be sent again: the server will ask again");
        }
        Ok(())
    }

    /// The keys of the questions whose answers were sent, and of which nothing has shown yet that the server has them.
    pub(crate) fn unacknowledged_answers(&self) -> Vec<String> {
        let questions = self.shared.questions();
        let sent = questions.iter().filter(|(_, asked)| asked.state == Stage::Settled && asked.is_unacknowledged);
        sent.map(|(key, _)| key.clone()).collect()
    }

    /// The task goes on or has ended, which shows that the server has the answers to these questions. A failure is only logged.
    pub(crate) async fn acknowledge_answers(&self, keys: Vec<String>) {
        for key in keys {
            let ledger_key = self.shared.questions().get_mut(&key).and_then(|asked| {
                let is_news = std::mem::take(&mut asked.is_unacknowledged);
                asked.ledger_key.clone().filter(|_| is_news)
            });
            if let Some(ledger_key) = ledger_key
                && let Err(error) = self.shared.entry.acknowledge_answer(&ledger_key).await
            {
                tracing::warn!(%error, "it could not be written down that the server has an answer");
            }
        }
    }

    /// Whether the question has come before.
    pub(crate) fn knows(&self, key: &str) -> bool {
        self.shared.questions().contains_key(key)
    }

    pub(crate) async fn withdraw(&mut self, key: &str) {
        let open = self.shared.questions().get(key).is_some_and(|asked| matches!(asked.state, Stage::Open | Stage::Failed));
        if open {
            self.retain_questions(|other| other != key).await;
        }
    }

    /// Settles all questions but these.
    pub(crate) async fn retain_questions(&mut self, still: impl Fn(&str) -> bool) {
        let mut gone = Vec::new();
        for (key, asked) in self.shared.questions().iter_mut() {
            if asked.state != Stage::Settled && !still(key) {
                asked.state = Stage::Settled;
                gone.push(key.clone());
            }
        }
        for key in gone {
            self.emit(Event::QuestionSettled { key }).await;
        }
    }

    /// The next round may use the same keys for other questions.
    pub(crate) fn clear_questions(&self) {
        self.shared.questions().clear();
    }
}
