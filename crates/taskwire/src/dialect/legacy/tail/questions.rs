//! What a task asks on a stream of its own, each question where it is not asked already.

use std::collections::BTreeSet;

use taskwire_core::{InputKey, Payload, task::Event};

use super::{Ended, Tail};
use crate::{
    dialect::legacy::{place::Kind, view},
    store::{Cursor, Entry},
    tool::payload_lacks,
};

impl Tail<'_> {
    /// Asks what was open before the stream began.
    pub(super) async fn ask_open(&mut self) -> Result<(), Ended> {
        if self.stream.kind != Kind::Result || self.at.begun {
            return Ok(());
        }
        let Some(task) = self.task()? else { return Err(self.forgotten()) };
        // What was asked after this place is asked when it is read.
        let later = self.asked_later()?;
        let open = task.open_inputs().filter(|(key, _)| !later.contains(*key));
        let open: Vec<(InputKey, Payload)> = open.map(|(key, asked)| (key.clone(), asked.clone())).collect();
        self.at.begun = true;
        let messages: Vec<_> = open.iter().filter_map(|(key, asked)| self.question(key, asked)).collect();
        self.send_all(&messages).await
    }

    /// What was asked after the place where the stream is.
    fn asked_later(&self) -> Result<BTreeSet<InputKey>, Ended> {
        let (mut later, mut after) = (BTreeSet::new(), self.at.version);
        loop {
            let cursor = Cursor { after, from: None, bytes: 0, chunks: 1 };
            let Some(page) = self.shared.engine.page(self.stream.task, cursor)? else { return Ok(later) };
            for logged in page.entries.into_iter().filter_map(Entry::into_event) {
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

    /// A question as the client is asked here; not if it cannot answer it, or was asked on its standing stream.
    pub(super) fn question(&mut self, key: &InputKey, asked: &Payload) -> Option<Vec<u8>> {
        if payload_lacks(asked, self.agreed.accepts).is_some() {
            return None;
        }
        let (task, request) = (self.stream.task, Some(&self.stream.request));
        if self.stream.kind == Kind::Result {
            if self.session.stands_asked(task, key) {
                self.deferred.push(key.clone());
                return None;
            }
            self.session.asked(task, key, &self.token);
        }
        let again = self.session.again(task, key);
        view::question(task, request, (key, asked), again.as_ref(), &self.agreed, self.meta.as_deref())
    }

    /// Asks what was asked on a standing stream that is gone, and what is to be asked again.
    pub(super) async fn ask_deferred(&mut self) -> Result<(), Ended> {
        self.deferred.extend(self.session.due_again(self.stream.task));
        if self.deferred.is_empty() {
            return Ok(());
        }
        let Some(task) = self.task()? else { return Err(self.forgotten()) };
        let deferred = std::mem::take(&mut self.deferred);
        let open: Vec<_> = task.open_inputs().filter(|(key, _)| deferred.contains(key)).collect();
        let messages: Vec<_> = open.into_iter().filter_map(|(key, asked)| self.question(key, asked)).collect();
        for message in messages {
            self.send(&message, false).await?;
        }
        Ok(())
    }
}
