//! The messages on a supervisor's socket: JSON, one object a line.
//!
//! Whoever connects sends [`Hello`] first. The server then sends [`ToSupervisor`] and receives [`FromSupervisor`]; a process of the command
//! sends [`FromCommand`] and receives one [`ToCommand`] for each.

use std::io::{self, ErrorKind};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use taskwire_core::Payload;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};

use super::supervisor::JobLease;

pub(crate) const SOCKET: &str = "sock";
/// The longest line from or to a process of the command, with its end.
pub(crate) const LINE_BYTES_MAX: usize = 1 << 20;
/// The longest line from the server, which is trusted with more.
pub(crate) const SERVER_LINE_BYTES_MAX: usize = 16 << 20;

/// The first line of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "hello", rename_all = "snake_case")]
pub(crate) enum Hello {
    /// The server. A later one replaces an earlier one.
    Server,
    #[serde(rename = "inside")]
    Command,
}

/// What the server sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToSupervisor {
    /// End the command: first by SIGTERM, after a while by SIGKILL.
    Stop {},
    /// A question was answered.
    Answer {
        key: String,
        /// As in the protocol: `action`, and perhaps `content`.
        value: Payload,
    },
    /// A question cannot be asked.
    Refuse {
        key: String,
        /// Why, for people.
        message: String,
    },
    /// The journal was imported up to this offset.
    Consumed(u64),
    /// The server's node had its lease at this time (`lease_time_ms`): no other node starts the command anew. Sent only for a job with a
    /// `lease`.
    Lease(u64),
    /// From now on the job has this lease: its store is moved to one that nodes share.
    Adopt(JobLease),
}

/// What the server receives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromSupervisor {
    /// The journal has so many bytes.
    Len(u64),
    /// The command asks something. Each server that attaches is sent all open questions.
    Ask(OpenQuestion),
    /// The keys of all open questions, sent after the questions. The command does not ask any other question of the task any more.
    Open(Vec<String>),
    /// The job has the lease that it was given while it ran.
    Adopted {},
}

/// A question that waits for its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OpenQuestion {
    pub(crate) key: String,
    pub(crate) question: Question,
    /// The length of the journal when it was asked: this output comes before it.
    #[serde(rename = "at")]
    pub(crate) journal_offset: u64,
    /// Grows with each question, for the supervisor alone: a key can be asked again after it was refused.
    #[serde(skip)]
    pub(crate) serial: u64,
}

/// A question to the caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// For a person.
    pub(crate) message: String,
    /// The form's fields, in the order in which the command gave them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) schema: Option<Payload>,
    /// A page to open instead of the form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
}

impl Question {
    /// A form for a person: `schema` describes a flat object of texts, numbers, booleans and choices.
    #[must_use]
    pub fn form(message: &str, schema: impl Into<Payload>) -> Self {
        Self { message: message.to_owned(), schema: Some(schema.into()), url: None }
    }

    /// A page that a person should open.
    #[must_use]
    pub fn url(message: &str, url: &str) -> Self {
        Self { message: message.to_owned(), schema: None, url: Some(url.to_owned()) }
    }
}

/// What a process of the command sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromCommand {
    Note(Note),
    Ask {
        /// Without a key the supervisor numbers the question.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        question: Question,
    },
}

/// What a process of the command receives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToCommand {
    /// The note is in the journal.
    Ok {},
    /// The message was not understood, or cannot be handled; for people.
    Error(String),
    /// The answer to a question.
    Answer {
        key: String,
        /// As the server sent it.
        value: Payload,
    },
}

/// A report of a process of the command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Note {
    Progress {
        done: f64,
        #[serde(default)]
        total: Option<f64>,
        #[serde(default)]
        message: Option<String>,
    },
    Status {
        message: String,
    },
    Block {
        /// In its wire shape.
        block: Value,
    },
    /// The result of the call. The last one counts.
    Result {
        /// The structured content; `null` for none.
        #[serde(default)]
        structured: Value,
        /// Whether the tool failed, whatever the exit code.
        #[serde(default)]
        is_error: bool,
    },
}

/// A message as a line, with its end.
pub(crate) fn line<T: Serialize>(message: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("messages have no maps but those of JSON");
    line.push(b'\n');
    line
}

pub(crate) async fn send<T: Serialize>(to: &mut (impl AsyncWrite + Unpin), message: &T) -> io::Result<()> {
    to.write_all(&line(message)).await
}

pub(crate) fn parse<T: DeserializeOwned>(line: &[u8]) -> io::Result<T> {
    serde_json::from_slice(line).map_err(|error| io::Error::new(ErrorKind::InvalidData, format!("this is not understood: {error}")))
}

/// Lines from a connection, of bounded length. Dropping a wait for the next line loses nothing.
#[derive(Debug)]
pub(crate) struct BoundedLines<R> {
    from: BufReader<R>,
    unfinished: Vec<u8>,
    max: usize,
}

impl<R: AsyncRead + Unpin> BoundedLines<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from: BufReader::new(from), unfinished: Vec::new(), max: LINE_BYTES_MAX }
    }

    /// Accepts lines of up to `max` bytes from now on.
    pub(crate) fn set_max_bytes(&mut self, max: usize) {
        self.max = max;
    }

    /// The next line, without its end; None when there are no more. A last line without an end was cut off and does not count.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] when it is too long; then nothing more can be read.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let there = self.from.fill_buf().await?;
            if there.is_empty() {
                return Ok(None);
            }
            let end = memchr::memchr(b'\n', there);
            let more = end.map_or(there, |end| &there[..end]);
            if self.unfinished.len() + more.len() >= self.max {
                return Err(io::Error::new(ErrorKind::InvalidData, format!("a line may have {} bytes, and this one has more", self.max)));
            }
            self.unfinished.extend_from_slice(more);
            let used = more.len() + usize::from(end.is_some());
            self.from.consume(used);
            if end.is_some() {
                return Ok(Some(std::mem::take(&mut self.unfinished)));
            }
        }
    }

    /// Waits until there is more to read, or the other side is gone. Returns whether it is gone.
    pub(crate) async fn is_closed(&mut self) -> bool {
        self.from.fill_buf().await.map_or(true, <[u8]>::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn same<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(message: &T, text: &str) {
        let line = line(message);
        assert_eq!(std::str::from_utf8(&line).expect("text"), format!("{text}\n"));
        assert_eq!(&parse::<T>(text.as_bytes()).expect("understood"), message);
    }

    fn payload(text: &str) -> Payload {
        Payload::parse(text.to_owned()).expect("JSON")
    }

    #[test]
    fn messages_look_as_agreed() {
        same(&Hello::Server, r#"{"hello":"server"}"#);
        same(&Hello::Command, r#"{"hello":"inside"}"#);
        same(&ToSupervisor::Stop {}, r#"{"stop":{}}"#);
        let value = payload(r#"{"action":"accept","content":{"z":1,"a":2}}"#);
        same(
            &ToSupervisor::Answer { key: "k".to_owned(), value: value.clone() },
            r#"{"answer":{"key":"k","value":{"action":"accept","content":{"z":1,"a":2}}}}"#,
        );
        same(&ToSupervisor::Refuse { key: "k".to_owned(), message: "no".to_owned() }, r#"{"refuse":{"key":"k","message":"no"}}"#);
        same(&ToSupervisor::Consumed(7), r#"{"consumed":7}"#);
        let lease = JobLease { epoch: 1, held_at_ms: 2, orphan_after_ms: 3 };
        same(&ToSupervisor::Adopt(lease), r#"{"adopt":{"epoch":1,"held_at_ms":2,"orphan_after_ms":3}}"#);
        same(&FromSupervisor::Adopted {}, r#"{"adopted":{}}"#);
        same(&FromSupervisor::Len(8), r#"{"len":8}"#);
        let question = Question { message: "m".to_owned(), schema: Some(payload(r#"{"z":{},"a":{}}"#)), url: None };
        same(
            &FromSupervisor::Ask(OpenQuestion { key: "k".to_owned(), question: question.clone(), journal_offset: 9, serial: 0 }),
            r#"{"ask":{"key":"k","question":{"message":"m","schema":{"z":{},"a":{}}},"at":9}}"#,
        );
        same(&FromCommand::Ask { key: None, question }, r#"{"ask":{"question":{"message":"m","schema":{"z":{},"a":{}}}}}"#);
        same(&ToCommand::Ok {}, r#"{"ok":{}}"#);
        same(&ToCommand::Error("why".to_owned()), r#"{"error":"why"}"#);
        same(
            &ToCommand::Answer { key: "k".to_owned(), value },
            r#"{"answer":{"key":"k","value":{"action":"accept","content":{"z":1,"a":2}}}}"#,
        );
        same(&FromCommand::Note(Note::Status { message: "m".to_owned() }), r#"{"note":{"status":{"message":"m"}}}"#);
        same(&Note::Block { block: json!({"type": "text"}) }, r#"{"block":{"block":{"type":"text"}}}"#);
        same(&Note::Result { structured: json!([1]), is_error: true }, r#"{"result":{"structured":[1],"is_error":true}}"#);
        same(&Note::Progress { done: 0.5, total: None, message: None }, r#"{"progress":{"done":0.5,"total":null,"message":null}}"#);
        let short: Note = parse(br#"{"progress":{"done":1}}"#).expect("understood");
        assert_eq!(short, Note::Progress { done: 1.0, total: None, message: None });
    }

    #[test]
    fn what_is_not_understood_is_said() {
        assert!(parse::<ToSupervisor>(b"{\"dance\":{}}").expect_err("unknown").to_string().contains("dance"));
        assert!(parse::<FromCommand>(b"\xff").is_err());
        assert!(parse::<Note>(br#"{"progress":{"done":1e999}}"#).is_err());
    }

    #[tokio::test]
    async fn lines_are_whole_or_not_there() {
        let mut lines = BoundedLines::new(&b"one\n\ntwo\r\nthr"[..]);
        assert_eq!(lines.next().await.expect("read"), Some(b"one".to_vec()));
        assert_eq!(lines.next().await.expect("read"), Some(Vec::new()));
        assert!(!lines.is_closed().await);
        assert_eq!(lines.next().await.expect("read"), Some(b"two\r".to_vec()));
        assert_eq!(lines.next().await.expect("read"), None);
        assert!(lines.is_closed().await);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_refused() {
        let mut fits = vec![b'x'; LINE_BYTES_MAX - 1];
        fits.push(b'\n');
        assert_eq!(BoundedLines::new(&fits[..]).next().await.expect("read").map(|line| line.len()), Some(LINE_BYTES_MAX - 1));
        let mut long = vec![b'x'; LINE_BYTES_MAX];
        assert_eq!(BoundedLines::new(&long[..]).next().await.expect_err("too long").kind(), ErrorKind::InvalidData);
        long.push(b'\n');
        let mut lines = BoundedLines::new(&long[..]);
        lines.set_max_bytes(SERVER_LINE_BYTES_MAX);
        assert_eq!(lines.next().await.expect("read").map(|line| line.len()), Some(LINE_BYTES_MAX));
    }
}
