//! `taskwire tools`: what a server can do, and how it is asked to.

use serde_json::{Value, json};
use taskwire::tool::{Ctx, Tool, ToolError};

use crate::{
    fixture::{TestServer, echo},
    kit::{Server, TempDir},
    user::User,
};

#[test]
fn tools_are_a_table() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let ended = user.run(&["tools", &server.url()]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    let lines: Vec<&str> = ended.out.lines().collect();
    assert_eq!(
        lines[0].split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect::<Vec<_>>(),
        ["TOOL", "PARAMETERS", "WHAT IT DOES"]
    );
    assert_eq!(lines.len(), 7, "six tools: {}", ended.out);
    let (parameters, summary) = (lines[0].find("PARAMETERS").expect("a column"), lines[0].find("WHAT").expect("a column"));
    let countdown = lines.iter().find(|line| line.starts_with("countdown ")).expect("a row");
    assert!(countdown[parameters..].starts_with("[from] "), "{countdown}");
    assert_eq!(&countdown[summary..], "Counts down, one number a second");
    assert!(!ended.out.contains('\x1b'), "no colours in a pipe");
}

#[test]
fn a_tool_is_shown_with_all_that_is_needed_to_call_it() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let url = server.url();
    let ended = user.run(&["tools", &url, "countdown"]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    assert!(ended.out.starts_with("countdown\n  Counts down, one number a second\n\nParameters:\n"), "{}", ended.out);
    let from = ended.out.lines().find(|line| line.starts_with("  from  ")).expect("the parameter");
    assert!(from.starts_with("  from  integer, optional, default 10, at least 1, at most 3600"), "{from}");
    assert!(from.ends_with(": Where to begin"), "{from}");
    assert!(ended.out.ends_with(&format!("\nExample:\n  taskwire call {url} countdown from=10\n")), "{}", ended.out);
    user.run(&["tools", &url, "countdwn"])
        .is_refusal(&format!("{url} has no tool `countdwn`; did you mean `countdown`? `taskwire tools {url}` lists them"));
}

#[test]
fn the_example_of_a_tool_can_be_called() {
    let (user, fixture) = (User::new(), TestServer::serve([echo()]));
    let ended = user.run(&["tools", &fixture.url(), "echo"]);
    let example = ended.out.lines().last().and_then(|line| line.trim().strip_prefix("taskwire ")).expect("an example").replace('\'', "");
    let words: Vec<&str> = example.split(' ').collect();
    let called = user.run(&words);
    assert_eq!((called.code, called.out.as_str()), (Some(0), "{\"text\":\"…\"}\n"), "{example}: {called:?}");
}

#[test]
fn programs_get_the_tools_as_the_server_describes_them() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let list = server.ask("tools/list", json!({}));
    let ended = user.run(&["tools", &server.url(), "--json"]);
    assert_eq!(Value::from(ended.json()), list["tools"], "{}", ended.out);
    let one = user.run(&["tools", &server.url(), "bake", "--json"]).json();
    assert_eq!((one.len(), &one[0]["name"]), (1, &json!("bake")));
}

#[test]
fn what_a_server_says_about_its_tools_cannot_touch_a_terminal() {
    let schema = json!({"type": "object", "properties": {"p": {"type": "string", "description": "one\n\x1b[2Jtwo\u{202e}"}}});
    let body = |_: Ctx| async { Ok::<&'static str, ToolError>("") };
    let fixture = TestServer::serve([Tool::raw("evil", "Nice\x1b]0;title\x07 tool\nreally", schema, body)]);
    let user = User::new();
    let table = user.run(&["tools", &fixture.url()]).out;
    assert!(table.ends_with("Nice^[]0;title^G tool\n"), "{table:?}");
    let detail = user.run(&["tools", &fixture.url(), "evil"]).out;
    assert!(detail.contains("  Nice^[]0;title^G tool\n  really\n") && detail.contains(": one ^[[2Jtwo\\u{202e}\n"), "{detail:?}");
}

#[test]
fn a_server_without_tools_says_so_and_one_that_is_not_there_is_an_error() {
    let (user, fixture) = (User::new(), TestServer::serve([]));
    let ended = user.run(&["tools", &fixture.url()]);
    let words = format!("taskwire: {} has no tools\n", fixture.url());
    assert_eq!((ended.code, ended.out.as_str(), ended.err), (Some(0), "", words));
    let ended = user.run(&["tools", "http://127.0.0.1:1/mcp", "--json"]);
    assert_eq!((ended.code, &ended.json()[0]["kind"]), (Some(3), &json!("protocol")), "{ended:?}");
    assert!(ended.err.starts_with("taskwire: cannot reach http://127.0.0.1:1/mcp: "), "{}", ended.err);
}
