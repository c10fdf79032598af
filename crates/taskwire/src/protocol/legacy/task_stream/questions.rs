//! Asks a task's questions on its own stream, unless the session stream has asked them.

use std::collections::BTreeSet;

use taskwire_core::{Payload, QuestionKey, task::Event};

use super::{StreamEnd, TaskStream};
use crate::{
    protocol::legacy::{event_id::StreamKind, render},
    store::{Cursor, LogItem},
    tool::missing_capabilities_of,
};

impl TaskStream<'_> {
    /// Asks what was open before the stream began.
    pub(super) async fn ask_open(&mut self) -> Result<(), StreamEnd> {
        if self.id.kind != StreamKind::Result || self.cursor.begun {
            return Ok(());
        }
        let Some(task) = self.task().await? else { return Err(self.expired()) };
        // What was asked after the cursor is asked when the stream reads it.
        let later = self.asked_later().await?;
        let open = task.open_questions().filter(|(key, _)| !later.contains(*key));
        let open: Vec<(QuestionKey, Payload)> = open.map(|(key, asked)| (key.clone(), asked.clone())).collect();
        self.cursor.begun = true;
        let mut messages = Vec::new();
        for (key, asked) in &open {
            messages.extend(self.question(key, asked).await?);
        }
        self.send_all(&messages).await
    }

    /// The questions that the log has after the cursor.
    async fn asked_later(&self) -> Result<BTreeSet<QuestionKey>, StreamEnd> {
        let (mut later, mut after) = (BTreeSet::new(), self.cursor.version);
        loop {
            let cursor = Cursor { after, from: None, max_bytes: 0, max_chunks: 1 };
            let (engine, id) = (&self.context.engine, self.id.task);
            let Some(page) = engine.read_when_back(|| engine.page(id, cursor)).await? else { return Ok(later) };
            for logged in page.items.into_iter().filter_map(LogItem::into_event) {
                if let Event::Asked { key, .. } = logged.event {
                    later.insert(key);
                }
            }
            if !page.more {
                return Ok(later);
            }
            after = page.upto;
        }
    }

    /// A question as a request to the client; none if the client does not accept it, or the session stream asked it.
    pub(super) async fn question(&mut self, key: &QuestionKey, asked: &Payload) -> Result<Option<Vec<u8>>, StreamEnd> {
        if missing_capabilities_of(asked, self.agreed.accepts).is_some() {
            return Ok(None);
        }
        let (task, request) = (self.id.task, Some(&self.id.request));
        if self.id.kind == StreamKind::Result {
            if !self.session.record_question_of_task_stream(task, key, &self.stream_token) {
                self.deferred.push(key.clone());
                return Ok(None);
            }
            // It counts as asked from here on, so this waits while the store cannot be reached.
            let (context, session) = (self.context, self.session);
            if !context.engine.read_when_back(|| session.is_still_open(context, task, key)).await? {
                return Ok(None);
            }
        }
        let again = self.session.reask(task, key);
        Ok(render::question(task, request, (key, asked), again.as_ref(), &self.agreed, self.meta.as_deref()))
    }

    /// Asks what a session stream asked that has ended, and what is to be asked again.
    pub(super) async fn ask_deferred(&mut self) -> Result<(), StreamEnd> {
        self.deferred.extend(self.session.take_due_reasks(self.id.task));
        if self.deferred.is_empty() {
            return Ok(());
        }
        let Some(task) = self.task().await? else { return Err(self.expired()) };
        let deferred = std::mem::take(&mut self.deferred);
        let open: Vec<_> = task.open_questions().filter(|(key, _)| deferred.contains(key)).collect();
        for (key, asked) in open {
            if let Some(message) = self.question(key, asked).await? {
                self.send(&message, false).await?;
            }
        }
        Ok(())
    }
}
