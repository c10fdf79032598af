//! `taskwire get`: shows a task as it is now.

use clap::Args;
use serde::Serialize;
use taskwire::{
    client::{Era, Outcome, Reference, Status, TaskSnapshot},
    clock::{Clock, SystemClock},
};
use taskwire_core::{Payload, Timestamp, task::RpcError};

use super::cancel::id_of;
use crate::{
    client::{
        connection::{ConnectionArgs, close},
        exit::{Exit, Problem},
        questions,
        user_data::{self, UserData},
    },
    term::{
        escape,
        json_lines::QuestionLine,
        paint::{Terminal, parse_time, short_duration},
        render, stderr, stdout,
    },
};

const EXAMPLES: &str = "Examples:
  taskwire get 01k3v9x2m4qa
  taskwire get 01k3v9x2m4qa --json | jq -r .status

TASK is an id, a beginning of it that no other task has (`taskwire tasks`),
or SERVER#ID.
Nothing is waited for, and nothing is shown of the output: that is
`taskwire watch`.

Exit codes:
  0  the task was found, however it is
  2  no such task is known here
  3  the server cannot be reached, refuses, or does not know the task";

/// Show a task as it is now.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Get {
    /// Id or a unique beginning of it, or SERVER#ID
    task: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// A task for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TaskObject<'a> {
    task_id: &'a str,
    server: &'a str,
    era: String,
    tool: Option<&'a str>,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    created_at: &'a str,
    updated_at: &'a str,
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    poll_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inputs: Option<Vec<QuestionLine<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Payload>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RpcError>,
}

impl<'a> TaskObject<'a> {
    /// The task's state, without its questions and its outcome.
    pub(super) fn state(server: &'a str, era: Era, tool: Option<&'a str>, snapshot: &'a TaskSnapshot) -> Self {
        Self {
            task_id: &snapshot.id,
            server,
            era: era.to_string(),
            tool,
            status: snapshot.status.as_str(),
            message: snapshot.message.as_deref(),
            created_at: &snapshot.created_at,
            updated_at: &snapshot.updated_at,
            ttl_ms: snapshot.ttl_ms,
            poll_ms: snapshot.poll_ms,
            inputs: None,
            result: None,
            error: None,
        }
    }

    fn new(reference: &'a Reference, task: &'a TaskSnapshot) -> Self {
        let (result, error) = match &task.outcome {
            Some(Outcome::Result(result)) => (Some(&result.raw), None),
            Some(Outcome::Failed(error)) => (None, Some(error)),
            Some(Outcome::Cancelled { .. }) | None => (None, None),
        };
        let inputs = task.questions.iter().map(|input| QuestionLine::new(None, input)).collect();
        let state = Self::state(&reference.server, reference.era, Some(&reference.tool), task);
        Self { inputs: Some(inputs), result, error, ..state }
    }
}

/// The lines for people. `name` is how the task is called on the command line.
fn lines(reference: &Reference, task: &TaskSnapshot, name: &str, now: Timestamp) -> Vec<String> {
    let when = |time: &str| match age(time, now) {
        Some(age) => format!("{} ({age} ago)", escape::line(time)),
        None => escape::line(time),
    };
    let mut rows = vec![("task", escape::line(&task.id)), ("server", escape::line(&user_data::without_query(&reference.server)))];
    if !reference.tool.is_empty() {
        rows.push(("tool", escape::line(&reference.tool)));
    }
    rows.push(("status", task.status.to_string()));
    rows.extend(task.message.as_deref().map(|message| ("message", escape::line(message))));
    rows.extend([("created", when(&task.created_at)), ("updated", when(&task.updated_at))]);
    for input in &task.questions {
        rows.push(("question", format!("{}: {}", escape::line(&input.key), escape::line(&questions::summary(input)))));
        rows.push(("", questions::answer_command(name, input)));
    }
    if task.status == Status::InputRequired && task.questions.is_empty() {
        // In the legacy era only a client that follows the task gets questions.
        rows.push(("question", format!("taskwire watch {name} asks it")));
    }
    if let Some(Outcome::Failed(error)) = &task.outcome {
        rows.push(("error", format!("{} (code {})", escape::line(&error.message), error.code)));
    }
    rows.into_iter().filter(|(_, text)| !text.is_empty()).map(|(label, text)| format!("{label:<9} {text}")).collect()
}

/// How long ago a timestamp of the protocol was.
fn age(time: &str, now: Timestamp) -> Option<String> {
    parse_time(time).map(|moment| short_duration(now.since(moment)))
}

impl Get {
    pub(crate) async fn run(self) -> Result<Exit, Problem> {
        let user = UserData::open()?;
        let mut found = user.find(&self.task)?;
        let id = id_of(&found, &user)?;
        let client = user.connect(&mut found, &self.connection, false).await?;
        let task = client.task(&id).await?;
        let text = if self.json {
            let object = TaskObject::new(&found.reference, &task);
            escape::json(serde_json::to_string(&object).map_err(|error| Problem::protocol(error.to_string()))?) + "\n"
        } else {
            let name = user.short_name(&found.reference);
            let mut text = lines(&found.reference, &task, &name, SystemClock.now()).join("\n") + "\n";
            match &task.outcome {
                Some(Outcome::Result(result)) => text.push_str(&format!("\n{}", for_terminal(&render::result_text(result)))),
                None if task.status.is_terminal() => stderr::write(&format!("taskwire: its result: taskwire watch {name}\n")),
                _ => {}
            }
            text
        };
        stdout::print(&text)?;
        close(client).await;
        Ok(Exit::Done)
    }
}

/// The result, made safe for a terminal.
fn for_terminal(text: &str) -> String {
    let surroundings = Terminal::detect();
    if !surroundings.stdout {
        return text.to_owned();
    }
    let mut filter = escape::Filter::new(surroundings.colours);
    filter.pass(text) + &filter.end()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use taskwire::client::{Question, QuestionKind};

    use super::*;

    fn reference() -> Reference {
        Reference {
            server: "http://h/mcp".to_owned(),
            era: Era::Modern,
            task: Some("t1".to_owned()),
            tool: "greet_me".to_owned(),
            key: None,
            session: None,
            args: None,
            next: 0,
        }
    }

    fn task() -> TaskSnapshot {
        let kind = QuestionKind::Url { url: "https://h".to_owned() };
        let input = Question { key: "go".to_owned(), kind, message: "Go\nthere".to_owned(), request: json!({}).into() };
        TaskSnapshot {
            id: "t1".to_owned(),
            status: Status::InputRequired,
            message: Some("waiting\x1b[2J".to_owned()),
            created_at: "2026-07-28T00:00:00.000Z".to_owned(),
            updated_at: "soon".to_owned(),
            ttl_ms: None,
            poll_ms: Some(1000),
            questions: vec![input],
            outcome: None,
            raw: json!({}),
        }
    }

    #[test]
    fn a_task_is_told_in_lines() {
        let now = Timestamp::from_millis(1_785_196_800_000 + 185_000);
        let expected = [
            "task      t1",
            "server    http://h/mcp",
            "tool      greet_me",
            "status    input_required",
            "message   waiting^[[2J",
            "created   2026-07-28T00:00:00.000Z (3m 05s ago)",
            "updated   soon",
            "question  go: Go there",
            "          taskwire answer t1 go --accept",
        ];
        assert_eq!(lines(&reference(), &task(), "t1", now), expected);
        let unseen = lines(&reference(), &TaskSnapshot { questions: Vec::new(), ..task() }, "t1", now);
        assert_eq!(unseen.last().map(String::as_str), Some("question  taskwire watch t1 asks it"));
    }

    #[test]
    fn for_programs_it_is_an_object() {
        let (reference, task) = (reference(), task());
        let text = serde_json::to_string(&TaskObject::new(&reference, &task)).expect("JSON");
        let expected = concat!(
            r#"{"taskId":"t1","server":"http://h/mcp","era":"modern","tool":"greet_me","status":"input_required","#,
            r#""message":"waiting\u001b[2J","createdAt":"2026-07-28T00:00:00.000Z","updatedAt":"soon","ttlMs":null,"pollMs":1000,"#,
            r#""inputs":[{"key":"go","kind":"url","message":"Go\nthere","url":"https://h"}]}"#
        );
        assert_eq!(text, expected);
    }
}
