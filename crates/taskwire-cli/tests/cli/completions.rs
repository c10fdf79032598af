//! Completion as somebody types: the scripts in a real bash, and what the program says to them.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use serde_json::json;
use taskwire::{
    client::{CallRecorder, Era, Reference, Status},
    core::Timestamp,
    tool::{Question, TaskMode},
};

use crate::{
    fixture::{ScriptedServer, TestServer, asks, echo},
    kit::{POLLS_MAX, Server, TempDir},
    user::{RunningCommand, User},
    window::{WIDE, Window},
};

/// A server that is not there.
const NOWHERE: &str = "http://127.0.0.1:1/mcp";

/// A shell of this user that finds our program.
fn bash(user: &User, args: &[&str]) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_taskwire")).parent().expect("it is in a directory").to_owned();
    let others = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(program).chain(std::env::split_paths(&others))).expect("a path");
    let mut command = Command::new("bash");
    command.args(["--norc", "--noprofile"]).args(args).stdin(Stdio::null()).env_clear();
    for (name, value) in user.command(&[]).get_envs() {
        command.envs(value.map(|value| (name, value)));
    }
    command.env("PATH", path);
    command
}

/// What bash puts at the end of the line instead of `replaced`.
#[track_caller]
fn replies(user: &User, line: &str, replaced: &str) -> Vec<String> {
    let script = "source <(taskwire completions bash); COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
                  _taskwire taskwire \"$2\" \"\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let ended = RunningCommand::start(&mut bash(user, &["-c", script, "bash", line, replaced])).end();
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{line}: {ended:?}");
    ended.out.lines().filter(|line| !line.is_empty()).map(ToOwned::to_owned).collect()
}

fn joined<'a>(first: &[&'a str], rest: &[&'a str]) -> Vec<&'a str> {
    [first, rest].concat()
}

/// What the last of these words can become, with what is said about each.
#[track_caller]
fn described(user: &User, words: &[&str]) -> Vec<(String, String)> {
    let ended = user.run(&joined(&["complete", "fish", "--", "taskwire"], words));
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{words:?}: {ended:?}");
    let parts = |line: &str| line.split_once('\t').map(|(text, help)| (text.to_owned(), help.to_owned()));
    ended.out.lines().map(|line| parts(line).expect("a text and its help")).collect()
}

#[track_caller]
fn texts(user: &User, words: &[&str]) -> Vec<String> {
    described(user, words).into_iter().map(|(text, _)| text).collect()
}

/// Puts a task into what this user's client remembers.
fn remember(user: &User, server: &str, task: &str, status: Status, millis: i64) {
    let reference = Reference {
        server: server.to_owned(),
        era: Era::Modern,
        task: Some(task.to_owned()),
        tool: "job".to_owned(),
        key: None,
        session: None,
        args: None,
        next: 0,
    };
    let (ledger, at) = (user.ledger(), Timestamp::from_millis(millis));
    let entry = ledger.find_or_add(&reference, at).expect("an entry");
    ledger.update_status(entry, status, None, at).expect("noted");
}

#[test]
fn bash_completes_a_whole_call_from_the_server_to_its_argument() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    user.configure(&format!("[server.demo]\nurl = \"{}\"\n", server.url()));
    let mut shell = bash(&user, &["-i"]);
    shell.env("PS1", "ready> ").env("INPUTRC", "/dev/null");
    let mut window = Window::run(shell, WIDE);
    window.shows("ready>");
    window.enter("source <(taskwire completions bash) && echo com''plete");
    window.shows("complete");
    window.press("taskwire ca\t");
    window.until("there was a choice", |window| window.text().ends_with("taskwire ca"));
    window.press("ll\x20de\t");
    window.shows("taskwire call demo");
    window.press("countd\t");
    window.shows("taskwire call demo countdown");
    window.press("fr\t");
    window.shows("taskwire call demo countdown from=");
    window.enter("1");
    window.shows("Lift-off!");
    assert_eq!(window.effects().iter().filter(|what| *what != "rang").count(), 0);
}

#[test]
fn an_address_is_one_word_though_bash_takes_it_apart() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let url = server.url();
    let call = format!("taskwire call {url} ");
    assert_eq!(replies(&user, &format!("{call}countd"), "countd"), ["countdown "]);
    let mut two = replies(&user, &format!("{call}count"), "count");
    two.sort();
    assert_eq!(two, ["count_far ", "countdown "]);
    assert_eq!(replies(&user, &format!("{call}fail how="), ""), ["tool ", "request ", "panic "], "values without what is typed");
    assert_eq!(replies(&user, &format!("{call}fail 'how=re"), "how=re"), ["how=request"], "within quotes all of it");
    remember(&user, &url, "06gu7m4niaug", Status::Working, 1);
    let end = url.rsplit_once(':').expect("a port").1;
    assert_eq!(replies(&user, &format!("taskwire call {}", &url[..url.len() - 6]), &end[..end.len() - 6]), [format!("{end} ")]);
    assert_eq!(replies(&user, &format!("taskwire get {url}#06"), &format!("{end}#06")), [format!("{end}#06gu7m4niaug ")]);
}

#[test]
fn servers_are_those_with_names_and_those_that_were_used() {
    let user = User::new();
    user.configure(&format!("[server.demo]\nurl = \"{NOWHERE}\"\n[server.files]\ncommand = [\"npx\", \"-y\", \"a b\"]\n"));
    remember(&user, NOWHERE, "t1", Status::Working, 1);
    remember(&user, "https://host/mcp", "t2", Status::Completed, 2);
    remember(&user, "https://host/mcp?key=s3cret", "t3", Status::Working, 3);
    remember(&user, "stdio:my-server --flag", "t4", Status::Working, 4);
    let all = ["demo", "files", "stdio:my-server --flag", "https://host/mcp"];
    for command in ["call", "tools"] {
        assert_eq!(texts(&user, &[command, ""]), all, "{command}");
    }
    assert_eq!(described(&user, &["call", "f"]), [("files".to_owned(), "stdio:npx -y 'a b'".to_owned())]);
    assert_eq!(replies(&user, "taskwire call stdio:", ""), ["my-server\\ --flag "], "as bash reads it back");
    user.configure("this is no configuration");
    assert_eq!(texts(&user, &["call", "s"]), ["stdio:my-server --flag"], "a mistake in it is told elsewhere");
}

#[test]
fn arguments_are_those_of_the_tool_that_were_not_given() {
    let (user, fixture) = (User::new(), TestServer::serve([echo()]));
    let url = fixture.url();
    let call = |words: &[&str]| texts(&user, &joined(&["call", &url, "echo"], words));
    assert_eq!(call(&[""]), ["text=", "colour=", "count=", "deep:=", "ratio=", "sure=", "tags="]);
    assert_eq!(call(&["text=x", "tags=a", "colour=red", "--json", ""]), ["count=", "deep:=", "ratio=", "sure=", "tags="]);
    assert_eq!(call(&["colour="]), ["colour=red", "colour=green"]);
    assert_eq!(call(&["sure=f"]), ["sure=false"]);
    let path = user.write("notes.txt", "");
    let beginning = path.strip_suffix("es.txt").expect("its name");
    for sign in ["text@=", "deep:=@", "@"] {
        assert_eq!(call(&[&format!("{sign}{beginning}")]), [format!("{sign}{path}")]);
    }
    let typed = format!("taskwire call {url} echo text=x ta");
    assert_eq!(replies(&user, &typed, "ta"), ["tags="], "no blank where the value belongs");
    let (text, help) = described(&user, &["call", &url, "ec"]).pop().expect("the tool");
    assert_eq!((text.as_str(), help.as_str()), ("echo", "Gives its arguments back"));
}

#[test]
fn tasks_that_go_on_come_before_those_that_ended() {
    let user = User::new();
    user.configure(&format!("[server.demo]\nurl = \"{NOWHERE}\"\n"));
    remember(&user, NOWHERE, "01running", Status::Working, 1);
    remember(&user, NOWHERE, "01asking", Status::InputRequired, 2);
    remember(&user, "http://127.0.0.1:2/mcp", "01ended", Status::Completed, 3);
    for command in ["watch", "get", "cancel", "answer"] {
        assert_eq!(texts(&user, &[command, ""]), ["01asking", "01running", "01ended"], "{command}");
    }
    let helps: Vec<String> = described(&user, &["watch", "01"]).into_iter().map(|(_, help)| help).collect();
    assert_eq!(helps, ["job, input_required, demo", "job, working, demo", "job, completed, http://127.0.0.1:2/mcp"]);
    assert_eq!(texts(&user, &["watch", "demo#01r"]), ["demo#01running"]);
    assert_eq!(texts(&user, &["tasks", "--forget", "01ended", "01"]), ["01asking", "01running"]);
    assert_eq!(replies(&user, "taskwire watch 01e", "01e"), ["01ended "]);
}

#[test]
fn questions_and_their_answers_are_asked_of_the_server() {
    let schema = json!({"type": "object", "properties": {"region": {"enum": ["eu", "us"]}}, "required": ["region"]});
    let tool = asks("deploy", "where", Question::form("Which region?", schema), TaskMode::Always);
    let (user, fixture) = (User::new(), TestServer::serve([tool]));
    let task = user.detach(&fixture.url(), "deploy");
    // The call is answered before its tool has come to its question.
    assert!((0..POLLS_MAX).any(|_| user.task(&task)["status"] == "input_required"), "it asks");
    let found = described(&user, &["answer", &task, ""]);
    assert_eq!(found.first(), Some(&("where".to_owned(), "Which region?".to_owned())), "{found:?}");
    assert_eq!(texts(&user, &["answer", &task[..12], "w"]), ["where"]);
    assert_eq!(texts(&user, &["answer", &task, "where", ""]), ["eu", "us", "region="]);
    assert_eq!(texts(&user, &["answer", &task, "where", "region="]), ["region=eu", "region=us"]);
}

#[test]
fn commands_options_and_files_are_completed_too() {
    let user = User::new();
    let commands = texts(&user, &[""]);
    for command in ["serve", "call", "watch", "answer", "completions"] {
        assert!(commands.iter().any(|name| name == command), "{command} in {commands:?}");
    }
    assert!(!commands.iter().any(|name| name == "supervise" || name == "complete"), "{commands:?}");
    assert_eq!(texts(&user, &["watch", "--no"]), ["--no-stream"]);
    assert_eq!(texts(&user, &["call", "--era", ""]), ["auto", "modern", "legacy"]);
    assert_eq!(texts(&user, &["tools", "--json", "--js"]), Vec::<String>::new(), "it was given");
    user.write("taskwire.toml", "");
    user.configure("");
    let home = |words: &[&str]| {
        let mut command = user.command(&joined(&["complete", "fish", "--", "taskwire"], words));
        RunningCommand::start(command.current_dir(user.path("."))).end().out
    };
    assert_eq!(home(&["serve", "t"]), "taskwire.toml\t\n");
    assert_eq!(home(&["serve", "~/t"]), "~/taskwire.toml\t\n");
    assert_eq!(home(&["serve", "--data", ""]), "config/\t\n", "only directories");
    assert_eq!(home(&["serve", "--data=con"]), "--data=config/\t\n");
    assert_eq!(home(&["emit", "--image", "t"]), "taskwire.toml\t\n");
}

#[test]
fn nothing_is_written_started_or_asked_for_a_completion() {
    let (user, closed) = (User::new(), ScriptedServer::closed());
    let trace = user.path("started");
    let configured = format!(
        "[server.program]\ncommand = [\"touch\", \"{trace}\"]\n[server.signed]\nurl = \"{}\"\noauth = true\n[server.closed]\nurl = \"{}\"\n",
        closed.url(),
        closed.url()
    );
    user.configure(&configured);
    for server in ["program", "signed", NOWHERE, "nonsense"] {
        assert_eq!(texts(&user, &["call", server, ""]), Vec::<String>::new(), "{server}");
        assert_eq!(texts(&user, &["call", server, "tool", ""]), Vec::<String>::new(), "{server}");
    }
    assert!(closed.take_requests().is_empty(), "who is signed in to is left alone");
    assert_eq!(texts(&user, &["call", "closed", ""]), Vec::<String>::new());
    assert!(!closed.take_requests().is_empty(), "it was asked, and nobody was asked to sign in");
    for command in ["watch", "answer", "call"] {
        texts(&user, &[command, ""]);
    }
    assert!(!Path::new(&trace).exists(), "a server on stdio is not started");
    assert!(!Path::new(&user.path("state")).exists(), "and nothing is kept");

    remember(&user, &format!("stdio:touch {trace}"), "t1", Status::Completed, 1);
    assert_eq!(texts(&user, &["call", "program", ""]), ["job"], "what was called there before is known all the same");
    assert!(!Path::new(&trace).exists());
}

#[test]
fn a_server_that_says_nothing_does_not_keep_anybody_waiting() {
    let user = User::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/mcp", silent.local_addr().expect("an address"));
    // Others of our commands wait for half a minute.
    let script = "timeout 10 taskwire complete fish -- taskwire call \"$1\" ''";
    let ended = RunningCommand::start(&mut bash(&user, &["-c", script, "bash", &url])).end();
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), "", ""));
}

#[test]
fn what_a_script_should_not_ask_is_answered_with_nothing() {
    let user = User::new();
    for words in [&["bash"] as &[&str], &["bash", "--", "one word"], &["zsh"], &["fish", "--"], &["zsh", "--", "taskwire"]] {
        let ended = user.run(&joined(&["complete"], words));
        assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), "", ""), "{words:?}");
    }
    let ended = user.run(&["complete", "zsh", "--", "taskwire", "call", "--er"]);
    assert_eq!(ended.out, "whole\t--era\tWhich generation of MCP the server speaks\n");
}
