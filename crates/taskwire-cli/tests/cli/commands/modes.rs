//! A client of 2025-11-25 that knows the drafts of that era (SEP-1905, SEP-2679), and commands as its tools, in raw requests.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use serde_json::{Value, json};

use super::{
    command_server::{CommandServer, result_text},
    server_dir::{ServerDir, tool},
};
use crate::kit::TIMEOUT;

const RELATED: &str = "io.modelcontextprotocol/related-task";
const FALLBACK: &str = "io.modelcontextprotocol/fallback-mode";

/// A session.
struct Session<'a> {
    server: &'a CommandServer,
    id: Option<String>,
}

impl<'a> Session<'a> {
    /// Opens one in which this is declared of `tasks`; and what the server says of its own.
    #[track_caller]
    fn open(server: &'a CommandServer, tasks: Value) -> (Self, Value) {
        let mut session = Self { server, id: None };
        let client = json!({"name": "raw", "version": "1"});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {"tasks": tasks}, "clientInfo": client});
        let (head, answers) = session.post("initialize", params);
        let id = head.lines().filter_map(|line| line.split_once(": ")).find(|(key, _)| key.eq_ignore_ascii_case("mcp-session-id"));
        session.id = Some(id.unwrap_or_else(|| panic!("no session: {head}\n{answers:?}")).1.to_owned());
        let capabilities = answers[0]["result"]["capabilities"]["tasks"].clone();
        (session, capabilities)
    }

    /// The head of the answer to a request, and its messages.
    fn post(&self, method: &str, params: Value) -> (String, Vec<Value>) {
        let url = self.server.url();
        let address = url.trim_start_matches("http://").trim_end_matches("/mcp");
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let session = self.id.as_ref().map(|id| format!("Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: 2025-11-25\r\n"));
        let mut stream = TcpStream::connect(address).expect("the server is there");
        stream.set_read_timeout(Some(TIMEOUT)).expect("it can have a time");
        write!(
            stream,
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{}Content-Length: {}\r\n\r\n{body}",
            session.unwrap_or_default(),
            body.len()
        )
        .expect("it is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let read = |text: &str| -> Value { serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}")) };
        let messages = if head.to_ascii_lowercase().contains("text/event-stream") {
            body.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| !data.is_empty()).map(read).collect()
        } else {
            vec![read(body)]
        };
        (head.to_owned(), messages)
    }

    /// What a call in these modes is answered with, one result or several.
    #[track_caller]
    fn call(&self, tool: &str, modes: &[&str]) -> Vec<Value> {
        let params = json!({"name": tool, "arguments": {}, "task": {"responseModes": modes}});
        let (_, answers) = self.post("tools/call", params);
        assert!(answers.iter().all(|answer| answer["error"].is_null()), "{answers:?}");
        answers.into_iter().map(|answer| answer["result"].clone()).collect()
    }
}

fn both_drafts() -> Value {
    json!({"responses": {"modes": ["task", "immediate", "streaming"]}, "streaming": {"partial": {}}})
}

#[test]
fn a_command_that_ends_at_once_is_answered_at_once_and_a_task_that_nobody_named_is_told_as_such() {
    // A command has a tenth of this to end, once it has written something.
    let quick = tool("quick", "command = [\"echo\", \"done\"]\npromote_after = \"60s\"");
    let slow = tool("slow", "command = [\"sleep\", \"600\"]\npromote_after = \"100ms\"");
    let server_dir = ServerDir::new(&(quick + &slow));
    let server = server_dir.start();
    let (session, _) = Session::open(&server, both_drafts());
    for modes in [&["immediate", "task", "streaming"][..], &["immediate", "streaming"][..], &["immediate"][..]] {
        let results = session.call("quick", modes);
        assert_eq!((results.len(), &results[0]["isError"]), (1, &json!(false)), "{modes:?}: {results:?}");
        assert_eq!((result_text(&results[0]), results[0].get("_meta")), ("done\n".to_owned(), None), "{modes:?}: {results:?}");
    }
    for (modes, fallback) in [(&["immediate"][..], json!("task")), (&["immediate", "task"][..], Value::Null)] {
        let results = session.call("slow", modes);
        assert_eq!((results.len(), &results[0]["task"]["status"]), (1, &json!("working")), "{modes:?}: {results:?}");
        assert_eq!(results[0]["_meta"][FALLBACK], fallback, "{modes:?}: {results:?}");
    }
}

#[test]
fn the_last_answer_to_a_streamed_command_that_fails_says_why() {
    let server_dir = ServerDir::new(&tool("late", "command = [\"sh\", \"late.sh\"]\ntimeout = \"3s\""));
    server_dir.write("late.sh", "echo one\nsleep 600\n");
    let server = server_dir.start();
    let (session, _) = Session::open(&server, both_drafts());
    let results = session.call("late", &["streaming"]);
    let segments: Vec<&Value> = results.iter().flat_map(|result| result["partial-content"].as_array().into_iter().flatten()).collect();
    assert_eq!(segments[0], &json!({"seqNr": 1, "type": "text", "text": "one\n"}), "{results:?}");
    let last = results.last().expect("an answer");
    assert_eq!((&last["isComplete"], &last["isError"], &last["task"]["status"]), (&json!(true), &json!(true), &json!("failed")));
    let why = &last["partial-content"][0];
    assert_eq!((&why["seqNr"], segments.len()), (&json!(2), 2), "{results:?}");
    assert!(why["text"].as_str().is_some_and(|text| text.contains("did not finish within its timeout of 3s")), "{last}");
    assert_eq!(why["text"], last["task"]["statusMessage"]);
    assert!(last["_meta"][RELATED]["taskId"].is_string(), "{last}");
}

#[test]
fn a_command_that_cannot_be_a_task_has_no_hint_that_it_streams() {
    let never = tool("never", "command = [\"echo\", \"done\"]\ntask = \"never\"");
    let server_dir = ServerDir::new(&(never + &tool("auto", "command = [\"echo\", \"done\"]")));
    let server = server_dir.start();
    let (session, _) = Session::open(&server, both_drafts());
    let (_, answers) = session.post("tools/list", json!({}));
    let tools = answers[0]["result"]["tools"].as_array().expect("tools").iter();
    let execution = |name: &str| tools.clone().find(|tool| tool["name"] == name).map(|tool| tool["execution"].clone());
    assert_eq!(execution("never"), Some(json!({"taskSupport": "forbidden"})));
    assert_eq!(execution("auto"), Some(json!({"taskSupport": "optional", "streamPartial": true})));
}

#[test]
fn a_handshake_with_malformed_members_of_drafts_opens_a_session_without_them() {
    let server_dir = ServerDir::new(&tool("quick", "command = [\"echo\", \"done\"]"));
    let server = server_dir.start();
    for tasks in [json!({"responses": {"modes": 7}, "streaming": "yes"}), json!({"responses": [], "streaming": {"partial": true}})] {
        let (session, capabilities) = Session::open(&server, tasks.clone());
        assert_eq!(
            (&capabilities["cancel"], capabilities.get("responses"), capabilities.get("streaming")),
            (&json!({}), None, None),
            "{tasks}: {capabilities}"
        );
        let (_, answers) = session.post("tools/call", json!({"name": "quick", "arguments": {}}));
        assert_eq!(result_text(&answers[0]["result"]), "done\n", "{tasks}");
    }
}
