//! What a running call has to say besides its response: how far it is, and lines for the log.

use taskwire_core::{task::Progress, wire::RequestId};

use super::{json::Object, params::level_of};
use crate::engine::Note;

/// What the caller wants to hear.
#[derive(Debug, Clone)]
pub(super) struct Notes {
    /// The name under which it hears of progress.
    pub(super) token: Option<RequestId>,
    /// The least severe log line that it wants.
    pub(super) least: Option<usize>,
    /// The progress last told: it must grow.
    pub(super) done: f64,
}

impl Notes {
    pub(super) fn new(token: Option<RequestId>, least: Option<usize>) -> Self {
        Self { token, least, done: f64::NEG_INFINITY }
    }

    /// Whether there is anything that it wants.
    pub(super) fn wanted(&self) -> bool {
        self.token.is_some() || self.least.is_some()
    }

    /// The notification for a note, if the caller wants it; `meta` goes along.
    pub(super) fn message(&mut self, note: &Note, meta: Option<&str>) -> Option<Vec<u8>> {
        match note {
            Note::Progress { progress, message } => self.progress(*progress, message.as_deref(), meta),
            Note::Log { level, logger, data } => {
                let severe = level_of(level)?;
                self.least.filter(|least| severe >= *least)?;
                let mut params = Object::open().put("level", level);
                if let Some(logger) = logger {
                    params = params.put("logger", logger);
                }
                Some(notification("notifications/message", params.raw("data", data.as_str()), meta))
            }
            Note::Disconnect(_) => None,
        }
    }

    /// The notification for progress, if the caller wants it and it is progress.
    pub(super) fn progress(&mut self, progress: Progress, message: Option<&str>, meta: Option<&str>) -> Option<Vec<u8>> {
        let token = self.token.as_ref().filter(|_| progress.done > self.done)?;
        self.done = progress.done;
        let mut params = Object::open().put("progressToken", token).put("progress", &progress.done);
        if let Some(total) = progress.total {
            params = params.put("total", &total);
        }
        if let Some(message) = message {
            params = params.put("message", message);
        }
        Some(notification("notifications/progress", params, meta))
    }
}

/// A notification with these parameters.
pub(super) fn notification(method: &str, params: Object, meta: Option<&str>) -> Vec<u8> {
    let params = match meta {
        Some(meta) => params.raw("_meta", meta),
        None => params,
    };
    Object::roomy().put("jsonrpc", "2.0").put("method", method).raw("params", &params.into_text()).end()
}
