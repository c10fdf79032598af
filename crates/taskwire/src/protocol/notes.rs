//! Encodes what a running call sends besides its response: progress, heartbeats and log messages.

use taskwire_core::{task::Progress, wire::RequestId};

use super::{json::Object, params::level_of};
use crate::engine::CallNote;

/// How much a heartbeat adds to the progress: so little that the tool's own next progress is still more.
pub(super) const HEARTBEAT_STEP: f64 = 1.0 / HEARTBEATS_PER_UNIT;
const HEARTBEATS_PER_UNIT: f64 = 10_000.0;

/// Encodes the notes that one caller wants, as notifications.
#[derive(Debug, Clone)]
pub(super) struct NoteEncoder {
    pub(super) progress_token: Option<RequestId>,
    /// The least severe log level that the caller wants.
    pub(super) min_level: Option<usize>,
    /// The progress sent last. MCP requires that it grows.
    pub(super) last_progress: f64,
    /// The last total and text that the tool reported.
    last_total_and_text: (Option<f64>, Option<String>),
}

impl NoteEncoder {
    pub(super) fn new(token: Option<RequestId>, least: Option<usize>) -> Self {
        Self { progress_token: token, min_level: least, last_progress: f64::NEG_INFINITY, last_total_and_text: (None, None) }
    }

    pub(super) fn wants_any(&self) -> bool {
        self.progress_token.is_some() || self.min_level.is_some()
    }

    /// The notification for a note, with this `_meta`; none if the caller does not want it.
    pub(super) fn message(&mut self, note: &CallNote, meta: Option<&str>) -> Option<Vec<u8>> {
        match note {
            CallNote::Progress { progress, message } => self.progress(*progress, message.as_deref(), meta),
            CallNote::Log { level, logger, data } => {
                let severe = level_of(level)?;
                self.min_level.filter(|least| severe >= *least)?;
                let mut params = Object::open().put("level", level);
                if let Some(logger) = logger {
                    params = params.put("logger", logger);
                }
                Some(notification("notifications/message", params.raw("data", data.as_str()), meta))
            }
            // The next heartbeat carries it.
            CallNote::Status(words) => {
                self.last_total_and_text.1 = Some(words.to_string());
                None
            }
            CallNote::Disconnect(_) => None,
        }
    }

    /// The notification for progress; none if the caller does not want it, or it did not grow.
    pub(super) fn progress(&mut self, progress: Progress, words: Option<&str>, meta: Option<&str>) -> Option<Vec<u8>> {
        // A number without a total does not say what it counts.
        let counted = progress.total.is_none().then(|| format!("{} done", progress.done));
        let message = self.progress_notification(progress, words.or(counted.as_deref()), meta)?;
        self.last_total_and_text = (progress.total, words.map(str::to_owned).or(self.last_total_and_text.1.take()));
        Some(message)
    }

    /// A heartbeat above `floor`, with this text, else the tool's last text, else `otherwise`.
    pub(super) fn heartbeat(&mut self, floor: f64, words: Option<&str>, otherwise: &str) -> Option<Vec<u8>> {
        let last = self.last_progress.max(floor);
        let last = if last.is_finite() { last } else { 0.0 };
        let more = ((last + HEARTBEAT_STEP) * HEARTBEATS_PER_UNIT).round() / HEARTBEATS_PER_UNIT;
        // The step is lost in a very large number: then the next number that a float can represent.
        let done = if more > last && more.is_finite() { more } else { last.next_up() };
        if !done.is_finite() {
            return None;
        }
        let (total, said) = self.last_total_and_text.clone();
        let words = words.or(said.as_deref()).unwrap_or(otherwise);
        self.progress_notification(Progress { done, total: total.filter(|total| done < *total) }, Some(words), None)
    }

    fn progress_notification(&mut self, progress: Progress, message: Option<&str>, meta: Option<&str>) -> Option<Vec<u8>> {
        let token = self.progress_token.as_ref().filter(|_| progress.done > self.last_progress)?;
        self.last_progress = progress.done;
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

pub(super) fn notification(method: &str, params: Object, meta: Option<&str>) -> Vec<u8> {
    let params = match meta {
        Some(meta) => params.raw("_meta", meta),
        None => params,
    };
    Object::roomy().put("jsonrpc", "2.0").put("method", method).raw("params", &params.into_text()).end()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn notes() -> NoteEncoder {
        NoteEncoder::new(Some(RequestId::Number(1)), None)
    }

    fn params(message: Option<Vec<u8>>) -> Value {
        let message: Value = serde_json::from_slice(&message.expect("a notification")).expect("JSON");
        message["params"].clone()
    }

    fn heartbeat(notes: &mut NoteEncoder) -> Value {
        params(notes.heartbeat(f64::NEG_INFINITY, None, "running"))
    }

    #[test]
    fn a_heartbeat_grows_and_leaves_room_for_the_tools_own_progress() {
        let mut notes = notes();
        assert_eq!((&heartbeat(&mut notes)["progress"], &heartbeat(&mut notes)["progress"]), (&0.0001.into(), &0.0002.into()));
        let three = Progress { done: 3.0, total: Some(10.0) };
        assert_eq!(params(notes.progress(three, Some("unpacking"), None))["progress"], 3.0);
        let sent = heartbeat(&mut notes);
        assert_eq!((&sent["progress"], &sent["total"], &sent["message"]), (&3.0001.into(), &10.0.into(), &"unpacking".into()));
        assert!(notes.progress(three, None, None).is_none(), "it was told");
        assert_eq!(params(notes.progress(Progress { done: 4.0, total: None }, None, None))["progress"], 4.0);
    }

    #[test]
    fn a_number_without_a_total_is_sent_with_a_text() {
        let mut notes = notes();
        let bare = |done| Progress { done, total: None };
        assert_eq!(params(notes.progress(bare(3.0), None, None))["message"], "3 done");
        assert_eq!(params(notes.progress(bare(4.5), Some("files"), None))["message"], "files");
        assert_eq!(heartbeat(&mut notes)["message"], "files", "words of ours are not the work's own");
        let of_ten = Progress { done: 5.0, total: Some(10.0) };
        assert_eq!(params(notes.progress(of_ten, None, None)).get("message"), None, "with a total the numbers say enough");
    }

    #[test]
    fn a_heartbeat_grows_however_large_or_small_the_numbers_are() {
        for done in [-5.0, -0.00005, 0.333_38, 1e13, 1e300] {
            let mut notes = notes();
            notes.progress(Progress { done, total: None }, None, None).expect("it is told");
            let sent = heartbeat(&mut notes)["progress"].as_f64().expect("a number");
            assert!(sent > done && sent - done <= 0.0002_f64.max(done.abs() * f64::EPSILON * 2.0), "{done} {sent}");
        }
        let mut notes = notes();
        notes.progress(Progress { done: f64::MAX, total: None }, None, None).expect("it is told");
        assert!(notes.heartbeat(0.0, None, "running").is_none(), "there is nothing more");
    }

    #[test]
    fn a_heartbeat_never_claims_that_all_is_done() {
        let mut notes = notes();
        notes.progress(Progress { done: 10.0, total: Some(10.0) }, None, None).expect("it is told");
        assert_eq!(heartbeat(&mut notes).get("total"), None);
    }

    #[test]
    fn who_wants_no_progress_gets_no_heartbeat() {
        assert!(NoteEncoder::new(None, Some(0)).heartbeat(0.0, None, "running").is_none());
    }
}
