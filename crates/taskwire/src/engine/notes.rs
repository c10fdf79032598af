//! Where the notes of a call go whose run has not begun yet.

use taskwire_core::TaskId;
use tokio::sync::mpsc;

use super::{CallNote, Engine};

/// The note sender of a run that has not begun; dropped before [`keep`](Self::keep), it is removed again.
pub(super) struct NoteRegistration<'a> {
    engine: &'a Engine,
    id: Option<TaskId>,
}

impl<'a> NoteRegistration<'a> {
    pub(super) fn new(engine: &'a Engine, id: TaskId, notes: mpsc::Sender<CallNote>) -> Self {
        engine.note_senders().insert(id, notes);
        Self { engine, id: Some(id) }
    }

    /// Leaves the sender for the run, which takes it when it begins.
    pub(super) fn keep(mut self) {
        self.id = None;
    }
}

impl Drop for NoteRegistration<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.engine.note_senders().remove(&id);
        }
    }
}
