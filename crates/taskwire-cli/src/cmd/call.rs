//! `taskwire call`: one call of a tool, from its arguments to its result.

use clap::Args;
use serde_json::Value;
use taskwire::client::ToolInfo;
use taskwire_core::{TraceContext, TraceParent};

use super::tools;
use crate::{
    client::{
        arguments::{self, FilesAndStdin},
        connection::{ConnectionArgs, ConnectionNeeds},
        exit::{Exit, Problem},
        follow::{CallFollower, FollowOptions},
        signals::unless_stopped,
        user_data::UserData,
    },
    term::{paint::shell_word, stderr},
};

const EXAMPLES: &str = "ARGUMENT is one of:
  key=value      text; a number, true/false, list or object where the tool's
                 schema says so (a list element by element: tags=a tags=b)
  key:=json      any JSON value
  key@=FILE      the text of a file; key:=@FILE is its JSON
                 (key@=- and key:=- are standard input)
  {…}            a JSON object with several arguments; also @FILE or -

Server:
  a URL (host:port/path is http), stdio:<command line>, or a name from
  client.toml ($TASKWIRE_CLIENT_CONFIG, else ~/.config/taskwire/client.toml).
  If that has a `default`, SERVER may be left out: a first word that names no
  server is then the TOOL.

    default = \"demo\"

    [server.demo]
    url = \"http://127.0.0.1:8787/mcp\"  # or: command = [\"server\", \"--stdio\"]
    token = \"env:DEMO_TOKEN\"           # or: oauth = true, to sign in
    headers = { X-Team = \"blue\" }
    era = \"modern\"

Examples:
  taskwire call http://127.0.0.1:8787/mcp countdown from=5
  taskwire call demo tell_story > story.txt
  taskwire call 'stdio:taskwire serve --stdio' greet_me
  taskwire call demo count_far to=1000 --detach      prints the task's id only
  taskwire call demo fail how=request --json | jq .  one JSON object a line

Output is written as it comes, and nothing but output goes to standard output.
Questions of the tool are asked here if there is a terminal; otherwise
`taskwire answer` answers them from anywhere.
Ctrl-C leaves the task running and says how to come back, as SIGTERM does;
Ctrl-C again within two seconds cancels it, and with --cancel-on-interrupt the
first one does. A call that is no task yet, and could not be found again, is
given up.
If this program is killed, `taskwire watch` continues at the exact byte.

Exit codes:
  0  there is a result, or the task was left running
  1  the tool said that it failed (isError)
  2  the command line, an argument or the configuration is wrong
  3  the server cannot be reached, refuses, or breaks the protocol
  4  the call was cancelled
  5  the task failed";

/// Call a tool: stream its output, answer its questions, print its result.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Call {
    /// URL, stdio:<command line>, or a name from client.toml; may be left out if client.toml has a `default`
    server: String,
    /// The tool to call; `taskwire tools SERVER` lists them
    tool: Option<String>,
    /// key=value, key:=json or a JSON object
    #[arg(value_name = "ARGUMENT")]
    arguments: Vec<String>,
    /// Print the task's id and return as soon as the call is a task
    #[arg(long)]
    detach: bool,
    /// Print one JSON object a line: task, partial, status, input, result, error
    #[arg(long)]
    pub(crate) json: bool,
    /// Wait for the result without its output on the way
    #[arg(long)]
    no_stream: bool,
    /// Let the first Ctrl-C cancel the call, and not only the second
    #[arg(long)]
    cancel_on_interrupt: bool,
    /// Where in a trace the call belongs, as W3C Trace Context has it [default: $TRACEPARENT, with $TRACESTATE]
    #[arg(long, value_name = "TRACEPARENT")]
    traceparent: Option<TraceParent>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

impl Call {
    pub(crate) async fn run(self) -> Result<Exit, Problem> {
        let user = UserData::open()?;
        let words: Vec<String> = [&self.server].into_iter().chain(&self.tool).chain(&self.arguments).cloned().collect();
        let (server, name, words) = user.config.choose(&words)?;
        let [tool_name, words @ ..] = words else {
            return Err(Problem::usage(format!("which tool? `taskwire tools {}` lists them", shell_word(&name))));
        };
        let ledger = match user.ledger_if_any() {
            Ok(ledger) => Some(ledger.clone()),
            Err(error) => {
                stderr::write(&format!("taskwire: this call will not be remembered: {error}\n"));
                None
            }
        };
        let needs = ConnectionNeeds { ledger, trace: self.trace(), stream: !self.no_stream, ..user.connection_needs() };
        let connecting = async {
            let client = self.connection.open(&server, needs).await?;
            let tools = client.tools().await?;
            let tool = tools::find_tool(&name, &tools, tool_name)?.clone();
            let words = words.to_vec();
            // On a thread: standard input may block.
            let reading = tokio::task::spawn_blocking(move || read_arguments(&tool, &words));
            let args = reading.await.map_err(|error| Problem::protocol(error.to_string()))?.map_err(Problem::usage)?;
            Ok::<_, Problem>((client, args))
        };
        let (client, args) = unless_stopped(connecting).await?;
        let options = FollowOptions {
            json: self.json,
            detach: self.detach,
            result_only: self.no_stream,
            cancel_on_interrupt: self.cancel_on_interrupt,
            tracks_output: true,
            ..FollowOptions::default()
        };
        let call = client.prepare(tool_name, args)?;
        CallFollower::new(&user, &client, &call, options)?.show(client.send(call)).await
    }
}

impl Call {
    /// Where in a trace the call belongs. What the environment says badly counts as nothing: it is not this user's mistake.
    fn trace(&self) -> Option<TraceContext> {
        let variable = |name| std::env::var(name).ok();
        match self.traceparent {
            Some(parent) => Some(parent.into()),
            None => TraceContext::read(&variable("TRACEPARENT")?, variable("TRACESTATE").as_deref()),
        }
    }
}

/// The arguments, if they fit: errors are reported before anything is sent.
fn read_arguments(tool: &ToolInfo, words: &[String]) -> Result<Value, String> {
    let args = arguments::read(&tool.name, words, &tool.input_schema, &mut FilesAndStdin::default())?;
    match tool.check_arguments(&args).as_slice() {
        [] => Ok(args),
        misfits => {
            let reasons: Vec<String> = misfits.iter().map(ToString::to_string).collect();
            Err(format!("the arguments of `{}` do not fit: {}", tool.name, reasons.join("; ")))
        }
    }
}
