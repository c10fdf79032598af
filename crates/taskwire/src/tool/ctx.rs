//! The context of a run: through it a tool writes, reports, asks, saves, and learns that it must stop.

use std::{sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use taskwire_core::{
    Payload, QuestionKey,
    task::{self, AcceptedQuestions},
};

use super::{
    Progress, ToolError,
    answer::check_answer,
    content::Content,
    error::from_engine,
    question::{Answer, Question, Refusal, missing_capabilities_of},
};
use crate::engine::{CallNote, Continuation, Piece, Run};

/// The context of one run of a tool; cheap to clone.
#[derive(Debug, Clone)]
pub struct Ctx(Arc<Run>);

impl Ctx {
    pub(crate) fn new(run: Arc<Run>) -> Self {
        Self(run)
    }

    pub(crate) fn run(&self) -> &Arc<Run> {
        &self.0
    }

    /// Writes text to the task's output. The server stores and shows it a moment later, together with what is written about the same time;
    /// [`flush`](Self::flush) waits for that. A tool that writes faster than the server can store waits here.
    ///
    /// # Errors
    /// When the tool must stop or a limit is reached.
    pub async fn text(&self, text: impl AsRef<str>) -> Result<(), ToolError> {
        self.0.write(Piece::Text(text.as_ref())).await.map_err(from_engine)
    }

    /// Writes a content block to the task's output, as [`text`](Self::text) does. An image, a sound or a resource that is too large for
    /// one chunk is written in parts, with a link behind them by which it can be read as a resource.
    ///
    /// # Errors
    /// When the tool must stop, the block is too large or another limit is reached.
    pub async fn block(&self, block: Content) -> Result<(), ToolError> {
        self.0.write(Piece::Block(&block.into_payload())).await.map_err(from_engine)
    }

    /// Waits until all that was written is durable and shown. Output of a call that is not a task yet becomes durable with the task, so
    /// until then there is nothing to wait for.
    ///
    /// # Errors
    /// When the tool must stop or a limit is reached.
    pub async fn flush(&self) -> Result<(), ToolError> {
        self.0.flush().await.map_err(from_engine)
    }

    /// Writes content and saves a checkpoint in one step: after an interruption either both are there or neither is. A tool that writes in
    /// such steps, and begins each attempt where [`saved`](Self::saved) says, writes everything exactly once.
    ///
    /// # Errors
    /// When the tool must stop or a limit is reached.
    pub async fn step(&self, content: impl IntoIterator<Item = Content>, checkpoint: &impl Serialize) -> Result<(), ToolError> {
        let blocks: Vec<Payload> = content.into_iter().map(Content::into_payload).collect();
        self.0.save(&blocks, Payload::of(checkpoint)?).await.map_err(from_engine)
    }

    /// Reports in words how the work is getting on.
    ///
    /// # Errors
    /// When the tool must stop or a limit is reached.
    pub async fn status(&self, message: impl AsRef<str>) -> Result<(), ToolError> {
        self.0.report_status(Some(message.as_ref().into()), None).await.map_err(from_engine)
    }

    /// Reports progress in numbers, and perhaps in words: `ctx.progress(Progress::of(3, 10).message("third of ten"))`. What is done must
    /// grow.
    ///
    /// # Errors
    /// When the tool must stop or a limit is reached.
    pub async fn progress(&self, progress: Progress) -> Result<(), ToolError> {
        let Progress { done, total, message } = progress;
        self.0.report_status(message.map(Into::into), Some(task::Progress { done, total })).await.map_err(from_engine)
    }

    /// Asks the caller and waits for the answer, however long that takes. The key names the question for ever: asked
    /// again after an interruption, the same question has the same answer.
    ///
    /// # Errors
    /// When the caller cannot be asked this, the key was used for another question, or the tool must stop.
    pub async fn ask(&self, key: &str, question: Question) -> Result<Answer, ToolError> {
        let question = question.into_payload();
        let answer = self.ask_raw(key, question.clone()).await?;
        let misfit = |why: String| ToolError::new(format!("the answer to `{key}` does not fit the question: {why}"));
        // A program that embeds the engine can submit answers past every other check.
        check_answer(&question, answer).map_err(misfit)?.read().map_err(|error| misfit(error.to_string()))
    }

    /// As [`ask`](Self::ask), in the shapes of the wire.
    pub(crate) async fn ask_raw(&self, key: &str, question: Payload) -> Result<Payload, ToolError> {
        let mut accepts = self.accepts();
        if self.0.spec().findable {
            // Where the client cannot ask a person, a model answers with a follow-up tool, by itself or after it has asked its user.
            (accepts.elicit_form, accepts.elicit_url) = (true, true);
        }
        if let Some(lacking) = missing_capabilities_of(&question, accepts) {
            return Err(ToolError::missing_capability(lacking));
        }
        let answer = self.0.ask(&QuestionKey::new(key), question).await.map_err(from_engine)?;
        match Refusal::of(&answer) {
            Some(refusal) => Err(ToolError::new(format!("the client did not answer `{key}`: {} ({})", refusal.message, refusal.code))),
            None => Ok(answer),
        }
    }

    /// Saves a checkpoint; after an interruption the next attempt finds it with [`saved`](Self::saved). Output that was written before is
    /// durable with it.
    ///
    /// # Errors
    /// When the tool must stop or a limit is reached.
    pub async fn checkpoint(&self, value: &impl Serialize) -> Result<(), ToolError> {
        self.0.save(&[], Payload::of(value)?).await.map_err(from_engine)
    }

    /// The checkpoint that an earlier attempt saved last.
    ///
    /// # Errors
    /// When it has another shape.
    pub fn saved<T: DeserializeOwned>(&self) -> Result<Option<T>, ToolError> {
        Ok(self.0.checkpoint().map(Payload::read).transpose()?)
    }

    /// Which attempt of the task this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u64 {
        self.0.attempt().0
    }

    /// Where in a trace the work belongs, for what it calls in turn: the value of a `traceparent` header (W3C Trace Context). None if the
    /// call belongs to no trace.
    #[must_use]
    pub fn traceparent(&self) -> Option<String> {
        self.0.trace().map(|context| context.parent.to_string())
    }

    /// The `tracestate` that goes with it, if there is one.
    #[must_use]
    pub fn tracestate(&self) -> Option<&str> {
        self.0.trace()?.state.as_deref()
    }

    /// Sends a log line to the caller, if it listens to this level on an open call.
    pub fn log(&self, level: &'static str, data: impl Serialize) {
        if let Ok(data) = Payload::of(&data) {
            self.0.note(CallNote::Log { level, logger: None, data });
        }
    }

    /// Ends the connection, but not the call, of a caller that can reconnect, and asks it to do so after `retry`. Any other caller keeps
    /// waiting.
    pub fn disconnect(&self, retry: Duration) {
        self.0.note(CallNote::Disconnect(retry));
    }

    /// Waits until the tool must stop. Race it against long waits.
    pub async fn cancelled(&self) {
        self.0.stopped().await;
    }

    /// Whether the tool must stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.is_stopped()
    }

    /// Waits for `span`, on the engine's clock.
    ///
    /// # Errors
    /// At once when the tool must stop.
    pub async fn sleep(&self, span: Duration) -> Result<(), ToolError> {
        tokio::select! {
            () = self.0.engine().clock().sleep(span) => Ok(()),
            () = self.cancelled() => Err(ToolError::stopped()),
        }
    }

    /// What the caller can be asked.
    #[must_use]
    pub fn accepts(&self) -> AcceptedQuestions {
        self.0.spec().accepts
    }

    /// What the caller sent along when it was asked to call again.
    #[must_use]
    pub fn resumed(&self) -> Continuation {
        self.0.continuation()
    }

    /// The arguments, as they came.
    #[must_use]
    pub fn arguments(&self) -> &Payload {
        self.0.arguments()
    }
}
