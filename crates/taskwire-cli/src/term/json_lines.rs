//! What `--json` prints: one object a line, the same in both eras.

use serde::Serialize;
use serde_json::Value;
use taskwire::client::{ConnectionState, Event, Outcome, Question, QuestionKind, Reference, TaskSnapshot, ToolResult};
use taskwire_core::{Payload, task::RpcError};

use super::escape;

/// One line. The last of a call is `result` or `error`.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub(crate) enum JsonLine<'a> {
    Task {
        task_id: &'a str,
        server: &'a str,
        era: String,
        tool: &'a str,
    },
    Partial {
        #[serde(skip_serializing_if = "Option::is_none")]
        task_id: Option<&'a str>,
        seq: u64,
        content: &'a Payload,
    },
    Status(StatusLine<'a>),
    Input(QuestionLine<'a>),
    Result {
        #[serde(skip_serializing_if = "Option::is_none")]
        task_id: Option<&'a str>,
        is_error: bool,
        result: &'a Payload,
    },
    Error {
        #[serde(skip_serializing_if = "Option::is_none")]
        task_id: Option<&'a str>,
        kind: &'static str,
        message: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<i64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<&'a Payload>,
    },
}

/// The state of the task, of its work, of the connection, or of this program.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) task_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) progress: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) total: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) again_in_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<LostChunks>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) settled: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log: Option<&'a Payload>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cancelling: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detached: Option<bool>,
    /// Finds a call again that was left before it was a task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<&'a str>,
}

/// Chunks that are lost: `from..until`.
#[derive(Debug, Serialize)]
pub(crate) struct LostChunks {
    from: u64,
    until: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct QuestionLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: Option<&'a str>,
    key: &'a str,
    kind: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
}

impl<'a> QuestionLine<'a> {
    pub(crate) fn new(task_id: Option<&'a str>, input: &'a Question) -> Self {
        let mut asked =
            Self { task_id, key: &input.key, kind: "other", message: &input.message, schema: None, url: None, params: None, method: None };
        match &input.kind {
            QuestionKind::Form { schema } => (asked.kind, asked.schema) = ("form", Some(schema)),
            QuestionKind::Url { url } => (asked.kind, asked.url) = ("url", Some(url.as_str())),
            QuestionKind::Sampling { params } => (asked.kind, asked.params) = ("sampling", Some(params)),
            QuestionKind::Other { method } => asked.method = Some(method),
        }
        asked
    }
}

impl<'a> JsonLine<'a> {
    /// The line for an event, if it is of interest to programs.
    pub(crate) fn of(task_id: Option<&'a str>, event: &'a Event) -> Option<Self> {
        Some(match event {
            Event::Task(reference) => Self::task(reference),
            Event::Chunk(partial) => Self::Partial { task_id, seq: partial.seq, content: &partial.content },
            Event::Gap { from, until } => {
                Self::Status(StatusLine { task_id, missing: Some(LostChunks { from: *from, until: *until }), ..StatusLine::default() })
            }
            Event::Status(task) => Self::Status(Self::status_line(task_id, task)),
            Event::Progress { progress, total, message } => Self::Status(StatusLine {
                task_id,
                progress: Some(*progress),
                total: *total,
                message: message.as_deref(),
                ..StatusLine::default()
            }),
            Event::Question(input) => Self::Input(QuestionLine::new(task_id, input)),
            Event::QuestionSettled { key } => Self::Status(StatusLine { task_id, settled: Some(key), ..StatusLine::default() }),
            Event::Connection(ConnectionState::Lost { reason, retry_in: again_in }) => Self::Status(StatusLine {
                task_id,
                link: Some("lost"),
                reason: Some(reason),
                again_in_ms: u64::try_from(again_in.as_millis()).ok(),
                ..StatusLine::default()
            }),
            Event::Connection(ConnectionState::Restored) => {
                Self::Status(StatusLine { task_id, link: Some("back"), ..StatusLine::default() })
            }
            Event::Log(log) => Self::Status(StatusLine { task_id, log: Some(log), ..StatusLine::default() }),
            Event::Done(outcome) => Self::outcome_line(task_id, outcome),
            _ => return None,
        })
    }

    fn task(reference: &'a Reference) -> Self {
        Self::Task {
            task_id: reference.task.as_deref().unwrap_or_default(),
            server: &reference.server,
            era: reference.era.to_string(),
            tool: &reference.tool,
        }
    }

    fn status_line(task_id: Option<&'a str>, task: &'a TaskSnapshot) -> StatusLine<'a> {
        StatusLine {
            task_id: task_id.or(Some(task.id.as_str())),
            status: Some(task.status.as_str()),
            message: task.message.as_deref(),
            ..StatusLine::default()
        }
    }

    fn outcome_line(task_id: Option<&'a str>, outcome: &'a Outcome) -> Self {
        match outcome {
            Outcome::Result(ToolResult { is_error, raw, .. }) => Self::Result { task_id, is_error: *is_error, result: raw },
            Outcome::Failed(error) => Self::error(task_id, "failed", error.message.clone(), Some(error)),
            Outcome::Cancelled { message } => {
                let message = message.clone().unwrap_or_else(|| "cancelled".to_owned());
                Self::error(task_id, "cancelled", message, None)
            }
        }
    }

    pub(crate) fn error(task_id: Option<&'a str>, kind: &'static str, message: String, rpc: Option<&'a RpcError>) -> Self {
        Self::Error { task_id, kind, message, code: rpc.map(|error| error.code), data: rpc.and_then(|error| error.data.as_ref()) }
    }

    pub(crate) fn text(&self) -> String {
        escape::json(serde_json::to_string(self).expect("all of it is text, numbers and JSON"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use taskwire::client::{Chunk, Era};

    use super::*;

    fn printed(event: &Event) -> String {
        JsonLine::of(Some("t1"), event).expect("of interest").text()
    }

    #[test]
    fn every_event_is_one_line_that_begins_with_its_name() {
        let reference = Reference {
            server: "http://h/mcp".to_owned(),
            era: Era::Modern,
            task: Some("t1".to_owned()),
            tool: "job".to_owned(),
            key: None,
            session: None,
            args: None,
            next: 0,
        };
        let raw = Payload::parse("{\"content\": [],\n \"x\": 1.50}".to_owned()).expect("JSON");
        let finished = ToolResult { content: Vec::new(), structured: None, is_error: true, raw };
        let lost = ConnectionState::Lost { reason: "cut".to_owned(), retry_in: Duration::from_millis(250) };
        let failed = RpcError { code: -32603, message: "no".to_owned(), data: None };
        for (event, expected) in [
            (Event::Task(reference), r#"{"event":"task","taskId":"t1","server":"http://h/mcp","era":"modern","tool":"job"}"#),
            (
                Event::Chunk(Chunk { seq: 3, content: json!([{"type": "text"}]).into() }),
                r#"{"event":"partial","taskId":"t1","seq":3,"content":[{"type":"text"}]}"#,
            ),
            (Event::Gap { from: 3, until: 7 }, r#"{"event":"status","taskId":"t1","missing":{"from":3,"until":7}}"#),
            (
                Event::Progress { progress: 1.0, total: Some(10.0), message: None },
                r#"{"event":"status","taskId":"t1","progress":1.0,"total":10.0}"#,
            ),
            (Event::QuestionSettled { key: "k".to_owned() }, r#"{"event":"status","taskId":"t1","settled":"k"}"#),
            (Event::Connection(lost), r#"{"event":"status","taskId":"t1","link":"lost","reason":"cut","againInMs":250}"#),
            (Event::Connection(ConnectionState::Restored), r#"{"event":"status","taskId":"t1","link":"back"}"#),
            (
                Event::Done(Outcome::Result(finished)),
                r#"{"event":"result","taskId":"t1","isError":true,"result":{"content": [],  "x": 1.50}}"#,
            ),
            (Event::Done(Outcome::Failed(failed)), r#"{"event":"error","taskId":"t1","kind":"failed","message":"no","code":-32603}"#),
            (
                Event::Done(Outcome::Cancelled { message: None }),
                r#"{"event":"error","taskId":"t1","kind":"cancelled","message":"cancelled"}"#,
            ),
        ] {
            assert_eq!(printed(&event), expected);
        }
    }

    #[test]
    fn a_question_comes_with_what_is_needed_to_answer_it() {
        let request = Payload::from(json!({}));
        let form = QuestionKind::Form { schema: json!({"type": "object"}) };
        let input = Question { key: "name".to_owned(), kind: form, message: "Who?".to_owned(), request: request.clone() };
        let expected = r#"{"event":"input","taskId":"t1","key":"name","kind":"form","message":"Who?","schema":{"type":"object"}}"#;
        assert_eq!(printed(&Event::Question(input)), expected);
        let url = QuestionKind::Url { url: "https://h".to_owned() };
        let input = Question { key: "go".to_owned(), kind: url, message: String::new(), request };
        let text = JsonLine::of(None, &Event::Question(input.clone())).expect("of interest").text();
        assert_eq!(text, r#"{"event":"input","key":"go","kind":"url","message":"","url":"https://h"}"#);
    }
}
