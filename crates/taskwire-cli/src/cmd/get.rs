//! `taskwire get`: one look at a task.

use clap::Args;
use serde::Serialize;
use taskwire::{
    client::{Era, Outcome, Reference, Status, TaskView},
    clock::{Clock, SystemClock},
};
use taskwire_core::{Payload, Timestamp, task::RpcError};

use super::cancel::id_of;
use crate::{
    client::{
        connection::{Connection, close},
        exit::{Exit, Problem},
        home::{self, Home},
        questions,
    },
    term::{
        escape,
        events::Asked,
        out,
        paint::{Surroundings, moment, span},
        render, screen,
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
    connection: Connection,
}

/// A task for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Object<'a> {
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
    inputs: Option<Vec<Asked<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Payload>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RpcError>,
}

impl<'a> Object<'a> {
    /// Its state, without its questions and its end.
    pub(super) fn state(server: &'a str, era: Era, tool: Option<&'a str>, view: &'a TaskView) -> Self {
        Self {
            task_id: &view.id,
            server,
            era: era.to_string(),
            tool,
            status: view.status.as_str(),
            message: view.message.as_deref(),
            created_at: &view.created_at,
            updated_at: &view.updated_at,
            ttl_ms: view.ttl_ms,
            poll_ms: view.poll_ms,
            inputs: None,
            result: None,
            error: None,
        }
    }

    fn new(reference: &'a Reference, view: &'a TaskView) -> Self {
        let (result, error) = match &view.outcome {
            Some(Outcome::Result(result)) => (Some(&result.raw), None),
            Some(Outcome::Failed(error)) => (None, Some(error)),
            Some(Outcome::Cancelled { .. }) | None => (None, None),
        };
        let inputs = view.inputs.iter().map(|input| Asked::new(None, input)).collect();
        let state = Self::state(&reference.server, reference.era, Some(&reference.tool), view);
        Self { inputs: Some(inputs), result, error, ..state }
    }
}

/// The lines for people. `name` is how the task is called on the command line.
fn lines(reference: &Reference, view: &TaskView, name: &str, now: Timestamp) -> Vec<String> {
    let when = |time: &str| match age(time, now) {
        Some(age) => format!("{} ({age} ago)", escape::line(time)),
        None => escape::line(time),
    };
    let mut rows = vec![("task", escape::line(&view.id)), ("server", escape::line(&home::shown(&reference.server)))];
    if !reference.tool.is_empty() {
        rows.push(("tool", escape::line(&reference.tool)));
    }
    rows.push(("status", view.status.to_string()));
    rows.extend(view.message.as_deref().map(|message| ("message", escape::line(message))));
    rows.extend([("created", when(&view.created_at)), ("updated", when(&view.updated_at))]);
    for input in &view.inputs {
        rows.push(("question", format!("{}: {}", escape::line(&input.key), escape::line(&questions::gist(input)))));
        rows.push(("", questions::command(name, input)));
    }
    if view.status == Status::InputRequired && view.inputs.is_empty() {
        // In the legacy era a question is told only to who follows the task.
        rows.push(("question", format!("taskwire watch {name} asks it")));
    }
    if let Some(Outcome::Failed(error)) = &view.outcome {
        rows.push(("error", format!("{} (code {})", escape::line(&error.message), error.code)));
    }
    rows.into_iter().filter(|(_, text)| !text.is_empty()).map(|(label, text)| format!("{label:<9} {text}")).collect()
}

/// How long ago a time of the wire was.
fn age(time: &str, now: Timestamp) -> Option<String> {
    moment(time).map(|moment| span(now.since(moment)))
}

impl Get {
    pub(crate) async fn run(self) -> Result<Exit, Problem> {
        let home = Home::open()?;
        let mut found = home.find(&self.task)?;
        let id = id_of(&found, &home)?;
        let client = home.reach(&mut found, &self.connection, false).await?;
        let view = client.task(&id).await?;
        let text = if self.json {
            let object = Object::new(&found.reference, &view);
            escape::json(serde_json::to_string(&object).map_err(|error| Problem::protocol(error.to_string()))?) + "\n"
        } else {
            let name = home.short_name(&found.reference);
            let mut text = lines(&found.reference, &view, &name, SystemClock.now()).join("\n") + "\n";
            match &view.outcome {
                Some(Outcome::Result(result)) => text.push_str(&format!("\n{}", shown(&render::whole(result)))),
                None if view.status.is_terminal() => screen::write(&format!("taskwire: its result: taskwire watch {name}\n")),
                _ => {}
            }
            text
        };
        out::print(&text)?;
        close(client).await;
        Ok(Exit::Done)
    }
}

/// The result, as far as a terminal may see it.
fn shown(text: &str) -> String {
    let surroundings = Surroundings::look();
    if !surroundings.stdout {
        return text.to_owned();
    }
    let mut filter = escape::Filter::new(surroundings.colours);
    filter.pass(text) + &filter.end()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use taskwire::client::{Input, InputKind};

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

    fn view() -> TaskView {
        let kind = InputKind::Url { url: "https://h".to_owned() };
        let input = Input { key: "go".to_owned(), kind, message: "Go\nthere".to_owned(), request: json!({}).into() };
        TaskView {
            id: "t1".to_owned(),
            status: Status::InputRequired,
            message: Some("waiting\x1b[2J".to_owned()),
            created_at: "2026-07-28T00:00:00.000Z".to_owned(),
            updated_at: "soon".to_owned(),
            ttl_ms: None,
            poll_ms: Some(1000),
            inputs: vec![input],
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
        assert_eq!(lines(&reference(), &view(), "t1", now), expected);
        let unseen = lines(&reference(), &TaskView { inputs: Vec::new(), ..view() }, "t1", now);
        assert_eq!(unseen.last().map(String::as_str), Some("question  taskwire watch t1 asks it"));
    }

    #[test]
    fn for_programs_it_is_an_object() {
        let (reference, view) = (reference(), view());
        let text = serde_json::to_string(&Object::new(&reference, &view)).expect("JSON");
        let expected = concat!(
            r#"{"taskId":"t1","server":"http://h/mcp","era":"modern","tool":"greet_me","status":"input_required","#,
            r#""message":"waiting\u001b[2J","createdAt":"2026-07-28T00:00:00.000Z","updatedAt":"soon","ttlMs":null,"pollMs":1000,"#,
            r#""inputs":[{"key":"go","kind":"url","message":"Go\nthere","url":"https://h"}]}"#
        );
        assert_eq!(text, expected);
    }
}
