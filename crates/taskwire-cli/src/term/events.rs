//! What `--json` prints: one object a line, the same in both eras.

use serde::Serialize;
use serde_json::Value;
use taskwire::client::{Event, Finished, Input, InputKind, Link, Outcome, Reference, TaskView};
use taskwire_core::{Payload, task::RpcError};

use super::escape;

/// One line. The last of a call is `result` or `error`.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub(crate) enum Line<'a> {
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
    Status(Standing<'a>),
    Input(Asked<'a>),
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

/// How things stand: of the task, of its work, of the connection, or of this program.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Standing<'a> {
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
    pub(crate) missing: Option<Missing>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) settled: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log: Option<&'a Payload>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cancelling: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detached: Option<bool>,
    /// By which a call is found that was left before it was a task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<&'a str>,
}

/// Chunks that are lost: `from..until`.
#[derive(Debug, Serialize)]
pub(crate) struct Missing {
    from: u64,
    until: u64,
}

/// A question.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Asked<'a> {
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

impl<'a> Asked<'a> {
    pub(crate) fn new(task_id: Option<&'a str>, input: &'a Input) -> Self {
        let mut asked =
            Self { task_id, key: &input.key, kind: "other", message: &input.message, schema: None, url: None, params: None, method: None };
        match &input.kind {
            InputKind::Form { schema } => (asked.kind, asked.schema) = ("form", Some(schema)),
            InputKind::Url { url } => (asked.kind, asked.url) = ("url", Some(url.as_str())),
            InputKind::Sampling { params } => (asked.kind, asked.params) = ("sampling", Some(params)),
            InputKind::Other { method } => asked.method = Some(method),
        }
        asked
    }
}

impl<'a> Line<'a> {
    /// What happened, if it is of interest to programs.
    pub(crate) fn of(task_id: Option<&'a str>, event: &'a Event) -> Option<Self> {
        Some(match event {
            Event::Task(reference) => Self::task(reference),
            Event::Partial(partial) => Self::Partial { task_id, seq: partial.seq, content: &partial.content },
            Event::Gap { from, until } => {
                Self::Status(Standing { task_id, missing: Some(Missing { from: *from, until: *until }), ..Standing::default() })
            }
            Event::Status(view) => Self::Status(Self::standing(task_id, view)),
            Event::Progress { progress, total, message } => Self::Status(Standing {
                task_id,
                progress: Some(*progress),
                total: *total,
                message: message.as_deref(),
                ..Standing::default()
            }),
            Event::Input(input) => Self::Input(Asked::new(task_id, input)),
            Event::Settled { key } => Self::Status(Standing { task_id, settled: Some(key), ..Standing::default() }),
            Event::Link(Link::Lost { reason, again_in }) => Self::Status(Standing {
                task_id,
                link: Some("lost"),
                reason: Some(reason),
                again_in_ms: u64::try_from(again_in.as_millis()).ok(),
                ..Standing::default()
            }),
            Event::Link(Link::Back) => Self::Status(Standing { task_id, link: Some("back"), ..Standing::default() }),
            Event::Log(log) => Self::Status(Standing { task_id, log: Some(log), ..Standing::default() }),
            Event::Done(outcome) => Self::end(task_id, outcome),
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

    fn standing(task_id: Option<&'a str>, view: &'a TaskView) -> Standing<'a> {
        Standing {
            task_id: task_id.or(Some(view.id.as_str())),
            status: Some(view.status.as_str()),
            message: view.message.as_deref(),
            ..Standing::default()
        }
    }

    fn end(task_id: Option<&'a str>, outcome: &'a Outcome) -> Self {
        match outcome {
            Outcome::Result(Finished { is_error, raw, .. }) => Self::Result { task_id, is_error: *is_error, result: raw },
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

    /// As it is printed.
    pub(crate) fn text(&self) -> String {
        escape::json(serde_json::to_string(self).expect("all of it is text, numbers and JSON"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use taskwire::client::{Era, Partial};

    use super::*;

    fn printed(event: &Event) -> String {
        Line::of(Some("t1"), event).expect("of interest").text()
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
        let finished = Finished { content: Vec::new(), structured: None, is_error: true, raw };
        let lost = Link::Lost { reason: "cut".to_owned(), again_in: Duration::from_millis(250) };
        let failed = RpcError { code: -32603, message: "no".to_owned(), data: None };
        for (event, expected) in [
            (Event::Task(reference), r#"{"event":"task","taskId":"t1","server":"http://h/mcp","era":"modern","tool":"job"}"#),
            (
                Event::Partial(Partial { seq: 3, content: json!([{"type": "text"}]).into() }),
                r#"{"event":"partial","taskId":"t1","seq":3,"content":[{"type":"text"}]}"#,
            ),
            (Event::Gap { from: 3, until: 7 }, r#"{"event":"status","taskId":"t1","missing":{"from":3,"until":7}}"#),
            (
                Event::Progress { progress: 1.0, total: Some(10.0), message: None },
                r#"{"event":"status","taskId":"t1","progress":1.0,"total":10.0}"#,
            ),
            (Event::Settled { key: "k".to_owned() }, r#"{"event":"status","taskId":"t1","settled":"k"}"#),
            (Event::Link(lost), r#"{"event":"status","taskId":"t1","link":"lost","reason":"cut","againInMs":250}"#),
            (Event::Link(Link::Back), r#"{"event":"status","taskId":"t1","link":"back"}"#),
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
        let form = InputKind::Form { schema: json!({"type": "object"}) };
        let input = Input { key: "name".to_owned(), kind: form, message: "Who?".to_owned(), request: request.clone() };
        let expected = r#"{"event":"input","taskId":"t1","key":"name","kind":"form","message":"Who?","schema":{"type":"object"}}"#;
        assert_eq!(printed(&Event::Input(input)), expected);
        let url = InputKind::Url { url: "https://h".to_owned() };
        let input = Input { key: "go".to_owned(), kind: url, message: String::new(), request };
        let text = Line::of(None, &Event::Input(input.clone())).expect("of interest").text();
        assert_eq!(text, r#"{"event":"input","key":"go","kind":"url","message":"","url":"https://h"}"#);
    }
}
