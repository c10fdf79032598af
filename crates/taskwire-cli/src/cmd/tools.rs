//! `taskwire tools`: lists a server's tools, and how to call them.

use clap::Args;
use serde_json::Value;
use taskwire::client::{TaskSupport, ToolInfo};

use crate::{
    client::{
        connection::{ConnectionArgs, close},
        exit::{Exit, Problem},
        schema::{Parameter, Parameters, nearest},
        user_data::UserData,
    },
    term::{
        escape,
        paint::{Paint, Terminal, shell_word},
        stderr, stdout,
        table::{self, Cell, LastColumn},
    },
};

const EXAMPLES: &str = "Examples:
  taskwire tools http://127.0.0.1:8787/mcp
  taskwire tools demo countdown                one tool, with an example
  taskwire tools                               those of the default server
  taskwire tools 'stdio:taskwire serve --stdio'
  taskwire tools demo --json | jq -r .name

SERVER is a URL, stdio:<command line>, or a name from client.toml, and may be
left out if that has a `default` (`taskwire call --help`): a first word that
names no server is then the tool.

Exit codes:
  0  there they are
  2  there is no such server or tool
  3  the server cannot be reached, refuses, or breaks the protocol";

/// List the tools of a server, or show one of them.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Tools {
    /// URL, stdio:<command line>, or a name from client.toml; may be left out if client.toml has a `default`
    server: Option<String>,
    /// Only this one, in detail
    #[arg(value_name = "TOOL")]
    name: Option<String>,
    /// Print the tools as the server describes them, one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// The tool of this name.
pub(super) fn find_tool<'a>(server: &str, tools: &'a [ToolInfo], name: &str) -> Result<&'a ToolInfo, Problem> {
    tools.iter().find(|tool| tool.name == name).ok_or_else(|| {
        let hint = nearest(name, tools.iter().map(|tool| tool.name.as_str())).map(|name| format!("; did you mean `{name}`?"));
        let hint = hint.unwrap_or_else(|| ":".to_owned());
        Problem::usage(format!("{server} has no tool `{name}`{hint} `taskwire tools {}` lists them", shell_word(server)))
    })
}

impl Tools {
    pub(crate) async fn run(self) -> Result<Exit, Problem> {
        let user = UserData::open()?;
        let words: Vec<String> = self.server.iter().chain(&self.name).cloned().collect();
        let (server, server_name, rest) = user.config.choose(&words)?;
        let name = match rest {
            [] => None,
            [name] => Some(name),
            [first, ..] => return Err(user.config.unknown_server(first)),
        };
        let client = self.connection.open(&server, user.connection_needs()).await?;
        let tools = client.tools().await?;
        let chosen = match name {
            Some(name) => vec![find_tool(&server_name, &tools, name)?],
            None => tools.iter().collect(),
        };
        let surroundings = Terminal::detect();
        let text: String = match (self.json, name.is_some()) {
            (true, _) => chosen.iter().map(|tool| escape::json(format!("{}\n", tool.raw))).collect(),
            (false, true) => chosen.iter().map(|tool| detail(&server_name, tool, surroundings.stdout_paint())).collect(),
            (false, false) => {
                if chosen.is_empty() {
                    stderr::write(&format!("taskwire: {server_name} has no tools\n"));
                }
                overview(&chosen, surroundings)
            }
        };
        stdout::print(&text)?;
        close(client).await;
        Ok(Exit::Done)
    }
}

fn overview(tools: &[&ToolInfo], surroundings: Terminal) -> String {
    let row = |tool: &&ToolInfo| {
        let parameters: Vec<String> = Parameters::new(&tool.input_schema).all().iter().map(short).collect();
        [escape::line(&tool.name), parameters.join(" "), summary(tool)].map(Cell::from).to_vec()
    };
    table::text(&["TOOL", "PARAMETERS", "WHAT IT DOES"], tools.iter().map(row), LastColumn::Cut, surroundings)
}

fn short(parameter: &Parameter<'_>) -> String {
    let name = escape::line(parameter.name);
    if parameter.is_required { name } else { format!("[{name}]") }
}

/// The first line of a tool's description.
fn summary(tool: &ToolInfo) -> String {
    let text = tool.description.as_deref().or(tool.title.as_deref()).unwrap_or_default();
    escape::line(text.trim().lines().next().unwrap_or_default())
}

fn detail(server: &str, tool: &ToolInfo, paint: Paint) -> String {
    let mut text = paint.bold(&escape::line(&tool.name));
    if let Some(title) = tool.title.as_deref().filter(|title| *title != tool.name) {
        text.push_str(&format!(" - {}", escape::line(title)));
    }
    text.push('\n');
    for line in tool.description.as_deref().unwrap_or_default().trim().lines() {
        text.push_str(format!("  {}", escape::line(line)).trim_end());
        text.push('\n');
    }
    let parameters = Parameters::new(&tool.input_schema).all();
    text.push_str(&format!("\n{}\n", paint.bold("Parameters:")));
    let rows: Vec<Vec<Cell>> = parameters.iter().map(|parameter| parameter_row(parameter).map(Cell::from).to_vec()).collect();
    if rows.is_empty() {
        text.push_str("  none\n");
    }
    for line in table::lines(&rows, LastColumn::Cut, None, true) {
        text.push_str(&format!("  {line}\n"));
    }
    let notes: Vec<&str> = notes(tool).collect();
    if !notes.is_empty() {
        text.push_str(&format!("\n{}\n", notes.join("\n")));
    }
    text.push_str(&format!("\n{}\n  {}\n", paint.bold("Example:"), example(server, tool)));
    text
}

/// A table row about a parameter.
fn parameter_row(parameter: &Parameter<'_>) -> [String; 2] {
    let mut facts = vec![parameter.kind(), if parameter.is_required { "required" } else { "optional" }.to_owned()];
    facts.extend(parameter.default().filter(|default| !default.is_null()).map(|default| format!("default {default}")));
    let bounds = [("minimum", "at least"), ("maximum", "at most"), ("format", "format"), ("pattern", "pattern")];
    facts.extend(bounds.iter().filter_map(|(keyword, words)| Some(format!("{words} {}", plain(parameter.keyword(keyword)?)))));
    let facts = escape::line(&facts.join(", "));
    let what = parameter.description().map(|text| format!(": {}", escape::line(text.trim()))).unwrap_or_default();
    [escape::line(parameter.name), format!("{facts}{what}")]
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// What else is good to know before a call.
fn notes(tool: &ToolInfo) -> impl Iterator<Item = &'static str> {
    let task = match tool.task {
        TaskSupport::Unknown => None,
        TaskSupport::Forbidden => Some("Calls are never tasks."),
        TaskSupport::Optional => Some("Calls can be tasks."),
        TaskSupport::Required => Some("Calls are always tasks."),
    };
    let hint = |name: &str, text: &'static str| (tool.annotations[name] == true).then_some(text);
    let all = [
        task,
        tool.streams.then_some("Output is streamed."),
        hint("readOnlyHint", "It says that it changes nothing."),
        hint("destructiveHint", "It says that it may destroy something."),
        hint("idempotentHint", "It says that calling it twice does no more than once."),
    ];
    all.into_iter().flatten()
}

/// An example of a command line.
fn example(server: &str, tool: &ToolInfo) -> String {
    let parameters = Parameters::new(&tool.input_schema).all();
    let required: Vec<&Parameter<'_>> = parameters.iter().filter(|parameter| parameter.is_required).collect();
    let shown = if required.is_empty() { parameters.iter().take(1).collect() } else { required };
    let mut words = vec!["taskwire call".to_owned(), shell_word(server), shell_word(&escape::line(&tool.name))];
    words.extend(shown.into_iter().map(|parameter| shell_word(&example_argument(parameter))));
    words.join(" ")
}

/// `key=value` with a value of the right kind.
fn example_argument(parameter: &Parameter<'_>) -> String {
    let name = escape::line(parameter.name);
    let example = parameter.default().or_else(|| parameter.keyword("examples").and_then(|examples| examples.get(0)));
    match example {
        Some(Value::String(text)) => return format!("{name}={}", escape::line(text)),
        Some(Value::Null) | None => {}
        Some(value @ (Value::Array(_) | Value::Object(_))) => return format!("{name}:={value}"),
        Some(value) => return format!("{name}={value}"),
    }
    if let Some(choice) = parameter.choices().and_then(|choices| choices.first().copied()) {
        return format!("{name}={}", escape::line(choice));
    }
    let least = parameter.keyword("minimum").map(plain);
    match parameter.kind().as_str() {
        "integer" | "number" => format!("{name}={}", least.unwrap_or_else(|| "1".to_owned())),
        "boolean" => format!("{name}=true"),
        "array" => format!("{name}:=[]"),
        "object" => format!("{name}:={{}}"),
        _ => format!("{name}=…"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str, schema: Value) -> ToolInfo {
        ToolInfo {
            name: name.to_owned(),
            title: None,
            description: Some("Counts words\nin a file".to_owned()),
            input_schema: schema,
            output_schema: None,
            annotations: json!({"readOnlyHint": true}),
            task: TaskSupport::Optional,
            streams: true,
            raw: json!({}),
        }
    }

    fn counter() -> ToolInfo {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "file to read"},
                "lines": {"type": "integer", "default": 10, "minimum": 1, "maximum": 99},
            },
            "required": ["path"],
        });
        tool("word_count", schema)
    }

    #[test]
    fn a_tool_is_one_line_of_the_list() {
        let surroundings = Terminal { stdout: false, stderr: false, can_ask: false, colours: false, unicode: true };
        let expected = "TOOL        PARAMETERS    WHAT IT DOES\nword_count  path [lines]  Counts words\n";
        assert_eq!(overview(&[&counter()], surroundings), expected);
    }

    #[test]
    fn one_tool_is_shown_with_all_that_is_needed_to_call_it() {
        let expected = "word_count\n  Counts words\n  in a file\n\nParameters:\n  \
                        path   string, required: file to read\n  \
                        lines  integer, optional, default 10, at least 1, at most 99\n\n\
                        Calls can be tasks.\nOutput is streamed.\nIt says that it changes nothing.\n\n\
                        Example:\n  taskwire call demo word_count 'path=…'\n";
        assert_eq!(detail("demo", &counter(), Paint::plain()), expected);
    }

    #[test]
    fn the_example_has_values_of_the_right_kind() {
        for (schema, expected) in [
            (json!({"type": "integer", "default": 10}), "p=10"),
            (json!({"type": "integer", "minimum": 3}), "p=3"),
            (json!({"enum": ["tool", "request"]}), "p=tool"),
            (json!({"type": "boolean"}), "p=true"),
            (json!({"type": "object"}), "p:={}"),
        ] {
            let tool = tool("t", json!({"properties": {"p": schema}}));
            let line = example("http://h/mcp", &tool);
            assert_eq!(line, format!("taskwire call http://h/mcp t {}", shell_word(expected)));
        }
        assert_eq!(example("demo", &tool("t", json!({}))), "taskwire call demo t");
    }

    #[test]
    fn a_tool_that_is_not_there_is_refused_with_the_nearest() {
        let tools = [counter()];
        assert!(find_tool("demo", &tools, "word_count").is_ok());
        let problem = format!("{:?}", find_tool("demo", &tools, "wordcount").expect_err("not there"));
        assert!(problem.contains("demo has no tool `wordcount`; did you mean `word_count`? `taskwire tools demo` lists them"), "{problem}");
        let problem = format!("{:?}", find_tool("demo", &tools, "zzz").expect_err("not there"));
        assert!(problem.contains("demo has no tool `zzz`: `taskwire tools demo` lists them"), "{problem}");
    }
}
