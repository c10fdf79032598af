//! Event ids: each names a stream and a cursor in it. A stream reads a log, so the server remembers nothing of it: a client resumes the
//! stream from an event id, even after a restart.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use taskwire_core::{Seq, SessionId, TaskId, Version, wire::RequestId};

use crate::protocol::json;

/// A longer request id is not repeated in every event, and its stream cannot be resumed.
const REQUEST_CHARS_MAX: usize = 128;

/// How much of the session id an event id contains.
const TAG_CHARS: usize = 8;

/// Which request a task stream responds to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamKind {
    /// A call whose caller does not know the task.
    Call,
    /// `tasks/result`.
    Result,
    /// A call with several responses (SEP-1905).
    Streaming,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TaskStreamId {
    pub(super) kind: StreamKind,
    pub(super) task: TaskId,
    pub(super) request: RequestId,
}

/// How far a task stream was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct StreamCursor {
    /// Whether its beginning was sent: open questions, or the first response.
    pub(super) begun: bool,
    /// The last event that was read.
    pub(super) version: Version,
    /// The next chunk.
    pub(super) seq: Seq,
}

/// How far a session stream was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct SessionCursor {
    /// How many entries of the outbox were sent.
    pub(super) number: u64,
    /// Up to which version the next entry was sent.
    pub(super) version: Version,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EventId {
    Session(SessionCursor),
    Task(TaskStreamId, StreamCursor),
}

impl TaskStreamId {
    /// The part that all event ids of this stream share; none if it cannot be resumed.
    pub(super) fn event_id_prefix(&self, session: &SessionId) -> Option<String> {
        let kind = match self.kind {
            StreamKind::Call => 'c',
            StreamKind::Result => 'r',
            StreamKind::Streaming => 'p',
        };
        let request = URL_SAFE_NO_PAD.encode(json::text(&self.request));
        (request.len() <= REQUEST_CHARS_MAX).then(|| format!("{}.{kind}.{}.{request}", tag(session), self.task))
    }
}

impl StreamCursor {
    /// After the response, where nothing follows.
    pub(super) const END: Self = Self { begun: true, version: Version(u64::MAX), seq: Seq(u64::MAX) };

    pub(super) fn event_id(self, prefix: &str) -> String {
        format!("{prefix}.{}.{}.{}", u8::from(self.begun), self.version, self.seq)
    }
}

impl SessionCursor {
    pub(super) fn event_id(self, session: &SessionId) -> String {
        format!("{}.s.{}.{}", tag(session), self.number, self.version)
    }
}

impl EventId {
    pub(super) fn parse(session: &SessionId, id: &str) -> Option<Self> {
        let parts: Vec<&str> = id.strip_prefix(tag(session))?.strip_prefix('.')?.split('.').collect();
        match parts[..] {
            ["s", number, version] => {
                Some(Self::Session(SessionCursor { number: number.parse().ok()?, version: Version(version.parse().ok()?) }))
            }
            [kind, task, request, begun, version, seq] => {
                let kind = match kind {
                    "c" => StreamKind::Call,
                    "r" => StreamKind::Result,
                    "p" => StreamKind::Streaming,
                    _ => return None,
                };
                let begun = match begun {
                    "0" => false,
                    "1" => true,
                    _ => return None,
                };
                let request = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(request).ok()?).ok()?;
                let at = StreamCursor { begun, version: Version(version.parse().ok()?), seq: Seq(seq.parse().ok()?) };
                Some(Self::Task(TaskStreamId { kind, task: task.parse().ok()?, request }, at))
            }
            _ => None,
        }
    }
}

/// Distinguishes the event ids of one session from those of another.
fn tag(session: &SessionId) -> &str {
    session.as_str().get(..TAG_CHARS).unwrap_or(session.as_str())
}

/// The id of a question as a request to the client: unique, and enough to know what an answer is for. The stream of each request and the
/// session stream use different ids, and each repetition has another one.
pub(super) fn question_id(task: TaskId, request: Option<&RequestId>, times: u32, key: &str) -> String {
    let nonce = request.map_or_else(|| "-".to_owned(), |request| URL_SAFE_NO_PAD.encode(json::text(request)));
    let again = if times > 1 { format!("~{times}") } else { String::new() };
    format!("{task}.{nonce}{again}.{key}")
}

/// The task of a question, how often it has been asked, and its key.
pub(super) fn parse_question_id(id: &RequestId) -> Option<(TaskId, u32, &str)> {
    let RequestId::Text(text) = id else { return None };
    let (task, rest) = text.split_once('.')?;
    let (nonce, key) = rest.split_once('.')?;
    let times = nonce.split_once('~').map_or(Ok(1), |(_, times)| times.parse());
    Some((task.parse().ok()?, times.ok()?, key))
}

#[cfg(test)]
mod tests {
    use taskwire_core::{Timestamp, id::ID_RANDOM_BYTES};

    use super::*;

    fn task() -> TaskId {
        TaskId::new(Timestamp::from_millis(7), [9; ID_RANDOM_BYTES])
    }

    fn session() -> SessionId {
        SessionId::new("0123456789abcdef")
    }

    #[test]
    fn an_event_id_names_stream_and_cursor() {
        for request in [RequestId::Number(-3), RequestId::Text("a.b ü".into())] {
            for kind in [StreamKind::Call, StreamKind::Result, StreamKind::Streaming] {
                let stream = TaskStreamId { kind, task: task(), request: request.clone() };
                let at = StreamCursor { begun: true, version: Version(12), seq: Seq(3) };
                let id = at.event_id(&stream.event_id_prefix(&session()).expect("a short request id"));
                assert_eq!(EventId::parse(&session(), &id), Some(EventId::Task(stream.clone(), at)), "{id}");
                assert_eq!(EventId::parse(&SessionId::new("another"), &id), None, "it belongs to its session");
                for times in [1, 2] {
                    let question = RequestId::Text(question_id(task(), Some(&stream.request), times, "a.key~3").into());
                    assert_eq!(parse_question_id(&question), Some((task(), times, "a.key~3")));
                }
            }
        }
        let cursor = SessionCursor { number: 4, version: Version(2) };
        assert_eq!(EventId::parse(&session(), &cursor.event_id(&session())), Some(EventId::Session(cursor)));
        let long = TaskStreamId { kind: StreamKind::Call, task: task(), request: RequestId::Text("x".repeat(200).into()) };
        assert_eq!(long.event_id_prefix(&session()), None);
    }

    #[test]
    fn other_text_names_nothing() {
        let stream = TaskStreamId { kind: StreamKind::Call, task: task(), request: RequestId::Number(1) };
        let good = StreamCursor::default().event_id(&stream.event_id_prefix(&session()).expect("short"));
        let tagged = ["s", "s.1", "s.x.1", "s.1.-1", "q.1.2"].map(|rest| format!("01234567.{rest}"));
        let changed =
            [good.replace(".c.", ".d."), good.replacen(".0.", ".2.", 1), format!("{good}.1"), good[1..].to_owned(), String::new()];
        for bad in tagged.iter().chain(&changed) {
            assert_eq!(EventId::parse(&session(), bad), None, "{bad}");
        }
        let odd = RequestId::Text(format!("{}.-~x.key", task()).into());
        for bad in [RequestId::Number(1), RequestId::Text("1".into()), RequestId::Text("a.b.c".into()), odd] {
            assert_eq!(parse_question_id(&bad), None, "{bad}");
        }
    }
}
