//! Several servers on one data directory: clients that start their servers join the one that runs. When it
//! ends, one of the others becomes the server.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
    thread,
};

use serde_json::{Value, json};

use crate::{
    commands::server_dir::until as look_until,
    kit::{POLLS_MAX, TIMEOUT, TempDir, signal},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_taskwire");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Era {
    Modern,
    Legacy,
}

/// A client that started its own server.
struct Peer {
    era: Era,
    child: Child,
    input: Option<ChildStdin>,
    lines: mpsc::Receiver<Value>,
    errors: mpsc::Receiver<String>,
    /// What it said on standard error so far.
    said: String,
    next: u64,
}

impl Peer {
    fn start(server_dir: &ServerDir, era: Era) -> Self {
        Self::with(server_dir, "taskwire.toml", era)
    }

    fn with(server_dir: &ServerDir, config: &str, era: Era) -> Self {
        let mut child = Command::new(PROGRAM)
            .args(["serve", config, "--stdio"])
            .current_dir(server_dir.0.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let (sender, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        thread::spawn(move || {
            output.lines().map_while(Result::ok).all(|line| sender.send(serde_json::from_str(&line).expect("JSON")).is_ok())
        });
        let (sender, errors) = mpsc::channel();
        let output = BufReader::new(child.stderr.take().expect("a pipe"));
        thread::spawn(move || output.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok()));
        let input = child.stdin.take();
        let mut peer = Self { era, child, input, lines, errors, said: String::new(), next: 1 };
        if era == Era::Legacy {
            let params = json!({"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}},
                "clientInfo": {"name": "test", "version": "1"}});
            let id = peer.send("initialize", params);
            peer.answer(id);
            peer.notify("notifications/initialized", json!({}));
        }
        peer
    }

    fn write(&mut self, message: &Value) {
        writeln!(self.input.as_mut().expect("open"), "{message}").expect("written");
    }

    fn notify(&mut self, method: &str, params: Value) {
        self.write(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    fn send(&mut self, method: &str, mut params: Value) -> u64 {
        let id = self.next;
        self.next += 1;
        if self.era == Era::Modern {
            params["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
        }
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    fn call(&mut self, tool: &str) -> u64 {
        self.send("tools/call", json!({"name": tool, "arguments": {}, "_meta": {"progressToken": "p"}}))
    }

    #[track_caller]
    fn next(&mut self) -> Value {
        self.lines.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("nothing came: {}", self.heard()))
    }

    /// The answer to a request; what comes before it is passed over.
    #[track_caller]
    fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.next();
            if message["id"] == id && message.get("method").is_none() {
                return message;
            }
        }
    }

    #[track_caller]
    fn result(&mut self, id: u64) -> Value {
        let answer = self.answer(id);
        assert!(answer.get("result").is_some(), "{answer}");
        answer["result"].clone()
    }

    #[track_caller]
    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        self.result(id)
    }

    #[track_caller]
    fn text(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.ask("tools/call", json!({"name": tool, "arguments": arguments}));
        result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {result}")).to_owned()
    }

    fn has_tool(&mut self, name: &str) -> bool {
        let list = self.ask("tools/list", json!({}));
        list["tools"].as_array().expect("tools").iter().any(|tool| tool["name"] == name)
    }

    /// What it said on standard error.
    fn heard(&mut self) -> &str {
        while let Ok(line) = self.errors.try_recv() {
            self.said.push_str(&line);
            self.said.push('\n');
        }
        &self.said
    }

    #[track_caller]
    fn hears(&mut self, words: &str) {
        for _ in 0..POLLS_MAX {
            if self.heard().contains(words) {
                return;
            }
            if let Ok(line) = self.errors.recv_timeout(TIMEOUT) {
                self.said.push_str(&line);
                self.said.push('\n');
            }
        }
        panic!("`{words}` was not said: {}", self.said);
    }

    fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it is gone");
    }

    /// Ends its input and waits for its end.
    fn close(mut self) -> Option<i32> {
        self.input = None;
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory with a configuration: `slow` writes a line, waits for the file `go`, and writes another.
struct ServerDir(TempDir);

impl ServerDir {
    fn new() -> Self {
        let server_dir = Self(TempDir::new());
        let slow = "echo $$ >> started; echo one; while [ ! -e go ]; do sleep 0.02; done; echo two";
        let asks = format!("{PROGRAM} ask 'Which region?' --choice eu --choice us");
        let config = format!(
            "data = \"data\"\nhold = \"1h\"\n\n[[tool]]\nname = \"slow\"\ndescription = \"Waits\"\ncommand = [\"sh\", \"-c\", '{slow}']\n\n\
             [[tool]]\nname = \"asks\"\ndescription = \"Asks\"\ncommand = [\"sh\", \"-c\", \"{asks}\"]\n"
        );
        server_dir.write("taskwire.toml", &config);
        server_dir
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("written");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    /// The processes of the command, as it noted them.
    fn started(&self) -> Vec<u32> {
        self.read("started").lines().map(|pid| pid.parse().expect("a number")).collect()
    }
}

/// Looks until it is so.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    look_until(what, || is_so().then_some(()));
}

const ERAS: [Era; 2] = [Era::Modern, Era::Legacy];

#[test]
fn two_clients_share_a_data_directory_and_the_second_goes_on_when_the_first_is_killed() {
    for era in ERAS {
        let server_dir = ServerDir::new();
        let mut first = Peer::start(&server_dir, era);
        assert!(first.has_tool("slow"), "{era:?}");
        let mut second = Peer::start(&server_dir, era);
        second.hears("joined the server of process");
        let mode = fs::metadata(server_dir.0.join("data/join")).expect("a socket").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{era:?}: only its user can open it");
        let call = second.call("slow");
        until("the command", || server_dir.started().len() == 1);
        // It is a task by now, which both see.
        until("the task", || first.text("task_list", json!({})).contains("running"));
        first.kill();
        second.hears("takes its place");
        server_dir.write("go", "");
        let result = second.result(call);
        assert_eq!(result["content"][0]["text"], "one\ntwo\n", "{era:?}: {result}");
        assert_eq!(server_dir.started().len(), 1, "{era:?}: it ran once");
        assert!(second.has_tool("slow"), "{era:?}: its session goes on");
        let mut third = Peer::start(&server_dir, era);
        assert!(third.text("task_list", json!({})).contains("completed"), "{era:?}: nothing that was acknowledged is lost");
        assert_eq!((third.close(), second.close()), (Some(0), Some(0)), "{era:?}");
    }
}

#[test]
fn the_place_of_a_server_is_taken_again_and_again_and_the_call_of_the_last_client_goes_on() {
    for era in ERAS {
        let server_dir = ServerDir::new();
        let first = Peer::start(&server_dir, era);
        let mut last = Peer::start(&server_dir, era);
        let call = last.call("slow");
        until("the command", || server_dir.started().len() == 1);
        until("the task", || last.text("task_list", json!({})).contains("running"));
        first.kill();
        assert!(last.has_tool("slow"), "{era:?}");
        // Those that follow join the new server.
        let others: Vec<Peer> = (0..3).map(|_| Peer::start(&server_dir, era)).collect();
        for mut other in others {
            assert!(other.has_tool("slow"), "{era:?}");
            other.kill();
        }
        server_dir.write("go", "");
        assert_eq!(last.result(call)["content"][0]["text"], "one\ntwo\n", "{era:?}");
        assert_eq!(server_dir.started().len(), 1, "{era:?}");
    }
}

#[test]
fn a_client_whose_server_only_ends_leaves_its_place_to_another_and_calls_go_on() {
    for era in ERAS {
        let server_dir = ServerDir::new();
        let first = Peer::start(&server_dir, era);
        let mut second = Peer::start(&server_dir, era);
        let call = second.call("slow");
        until("the command", || server_dir.started().len() == 1);
        assert_eq!(first.close(), Some(0), "{era:?}");
        server_dir.write("go", "");
        assert_eq!(second.result(call)["content"][0]["text"], "one\ntwo\n", "{era:?}");
        assert_eq!(server_dir.started().len(), 1, "{era:?}: also a call that was no task yet");
    }
}

#[test]
fn a_process_that_takes_over_writes_to_the_audit_log_that_is_there_then() {
    let server_dir = ServerDir::new();
    let config = server_dir.read("taskwire.toml");
    server_dir.write("taskwire.toml", &format!("audit.file = \"audit.jsonl\"\n{config}"));
    let mut first = Peer::start(&server_dir, Era::Modern);
    assert!(first.has_tool("slow"), "it serves");
    let mut second = Peer::start(&server_dir, Era::Modern);
    second.hears("joined the server of process");
    fs::rename(server_dir.0.join("audit.jsonl"), server_dir.0.join("audit.1")).expect("moved");
    first.kill();
    assert!(second.has_tool("slow"), "the next request makes it take over");
    until("a new file", || fs::exists(server_dir.0.join("audit.jsonl")).expect("it can be looked for"));
}

#[test]
fn what_a_killed_client_had_called_for_is_joined_by_another() {
    for era in ERAS {
        let server_dir = ServerDir::new();
        let mut first = Peer::start(&server_dir, era);
        assert!(first.has_tool("slow"));
        let mut second = Peer::start(&server_dir, era);
        second.call("slow");
        until("the command", || server_dir.started().len() == 1);
        second.kill();
        // Whoever calls before the server has noticed that calls for itself.
        first.hears("the client hung up");
        let call = first.call("slow");
        first.hears("joined the work of an earlier one");
        server_dir.write("go", "");
        assert_eq!(first.result(call)["content"][0]["text"], "one\ntwo\n", "{era:?}");
        assert_eq!(server_dir.started().len(), 1, "{era:?}");
    }
}

#[test]
fn a_joined_client_cancels_and_answers_like_any_other() {
    for era in ERAS {
        let server_dir = ServerDir::new();
        let mut first = Peer::start(&server_dir, era);
        assert!(first.has_tool("slow"));
        let mut second = Peer::start(&server_dir, era);
        let call = second.call("slow");
        until("the command", || server_dir.started().len() == 1);
        // The same name on another stream is another call.
        first.notify("notifications/cancelled", json!({"requestId": call, "reason": "not needed any more"}));
        assert!(first.has_tool("slow"));
        let pid = server_dir.started()[0];
        assert!(fs::exists(format!("/proc/{pid}")).expect("readable"), "{era:?}");
        second.notify("notifications/cancelled", json!({"requestId": call, "reason": "not needed any more"}));
        until("the end of the command", || !fs::exists(format!("/proc/{pid}")).expect("readable"));
        let call = second.call("asks");
        if era == Era::Legacy {
            let question = loop {
                let message = second.next();
                if message["method"] == "elicitation/create" {
                    break message;
                }
            };
            second.write(&json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"answer": "eu"}}}));
            assert_eq!(second.result(call)["content"][0]["text"], "eu\n");
        } else {
            let text = second.result(call)["content"][0]["text"].as_str().expect("a text").to_owned();
            assert!(text.contains("task_answer") && text.contains("Which region?"), "{text}");
            let id = text.split(|c: char| !c.is_ascii_alphanumeric()).find(|word| word.len() == 32).expect("the task's id").to_owned();
            second.text("task_answer", json!({"task_id": id, "value": "eu"}));
            assert_eq!(second.text("task_wait", json!({"task_id": id})), "eu\n");
        }
    }
}

#[test]
fn a_different_configuration_is_said_with_what_differs() {
    let server_dir = ServerDir::new();
    let mut first = Peer::start(&server_dir, Era::Modern);
    assert!(first.has_tool("slow"));
    let other = server_dir.read("taskwire.toml").replace("name = \"asks\"", "name = \"begs\"").replace("hold = \"1h\"", "hold = \"2h\"");
    server_dir.write("other.toml", &other);
    let mut second = Peer::with(&server_dir, "other.toml", Era::Modern);
    second.hears("has another configuration");
    let said = second.heard().to_owned();
    for words in ["tools only there: asks", "tools only here: begs", "keys that differ: `hold`"] {
        assert!(said.contains(words), "{said}");
    }
    assert!(second.has_tool("asks") && !second.has_tool("begs"));
    let mut same = Peer::start(&server_dir, Era::Modern);
    assert!(same.has_tool("slow"));
    assert!(!same.heard().contains("another configuration"), "{}", same.heard());
}

#[test]
fn a_client_joins_a_server_on_http_and_takes_its_place() {
    let server_dir = ServerDir::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let mut server = Command::new(PROGRAM)
        .args(["serve", "taskwire.toml", "--listen", &format!("127.0.0.1:{port}")])
        .current_dir(server_dir.0.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the server starts");
    let mut banner = BufReader::new(server.stdout.take().expect("a pipe")).lines();
    assert!(banner.any(|line| line.is_ok_and(|line| line.contains("endpoint"))));
    let mut client = Peer::start(&server_dir, Era::Legacy);
    let call = client.call("slow");
    until("the command", || server_dir.started().len() == 1);
    signal(server.id(), "TERM");
    server.wait().expect("it ends");
    server_dir.write("go", "");
    assert_eq!(client.result(call)["content"][0]["text"], "one\ntwo\n");
    assert_eq!(server_dir.started().len(), 1);
}

#[test]
fn each_call_that_ends_is_logged_and_each_task_that_is_taken_over() {
    let server_dir = ServerDir::new();
    server_dir.write("go", "");
    let mut first = Peer::start(&server_dir, Era::Modern);
    let call = first.call("slow");
    first.result(call);
    first.hears("call ended caller=\"local\" tool=\"slow\"");
    assert!(first.heard().contains("how=\"completed\""), "{}", first.heard());
    fs::remove_file(server_dir.0.join("go")).expect("removed");
    first.call("slow");
    until("the task", || first.text("task_list", json!({"state": "running"})).contains("`slow`"));
    first.kill();
    let mut second = Peer::start(&server_dir, Era::Modern);
    second.hears("task recovered: it goes on caller=\"local\" tool=\"slow\"");
    server_dir.write("go", "");
    second.hears("call ended caller=\"local\" tool=\"slow\"");
}

#[test]
fn a_cancel_that_comes_while_the_server_is_replaced_stops_the_work() {
    for era in ERAS {
        let server_dir = ServerDir::new();
        let first = Peer::start(&server_dir, era);
        let mut second = Peer::start(&server_dir, era);
        let call = second.call("slow");
        until("the command", || server_dir.started().len() == 1);
        until("the task", || second.text("task_list", json!({})).contains("running"));
        let pid = server_dir.started()[0];
        first.kill();
        second.notify("notifications/cancelled", json!({"requestId": call, "reason": "not needed any more"}));
        until("the end of the command", || !fs::exists(format!("/proc/{pid}")).expect("readable"));
        assert_eq!(server_dir.started().len(), 1, "{era:?}");
        assert!(second.has_tool("slow"), "{era:?}: its client goes on");
    }
}

#[test]
fn a_name_that_is_in_use_is_refused_and_listeners_do_not_hold_up_the_end() {
    let server_dir = ServerDir::new();
    let _first = Peer::start(&server_dir, Era::Modern);
    let mut second = Peer::start(&server_dir, Era::Modern);
    assert!(second.has_tool("slow"));
    let call = second.call("slow");
    until("the command", || server_dir.started().len() == 1);
    second.next = call;
    second.send("tools/list", json!({}));
    let refused = second.answer(call);
    assert!(refused["error"]["message"].as_str().is_some_and(|text| text.contains("in use")), "{refused}");
    server_dir.write("go", "");
    second.result(call);
    second.send("subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    assert_eq!(second.next()["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(second.close(), Some(0));
}

#[test]
fn a_call_of_a_joined_client_runs_once_also_where_nothing_lingers() {
    for era in ERAS {
        let server_dir = ServerDir::new();
        server_dir.write("taskwire.toml", &server_dir.read("taskwire.toml").replace("hold = \"1h\"", "hold = \"1h\"\nlinger = \"0s\""));
        let first = Peer::start(&server_dir, era);
        let mut second = Peer::start(&server_dir, era);
        let call = second.call("slow");
        until("the command", || server_dir.started().len() == 1);
        until("the task", || second.text("task_list", json!({})).contains("running"));
        first.kill();
        assert!(second.has_tool("slow"), "{era:?}");
        server_dir.write("go", "");
        assert_eq!(second.result(call)["content"][0]["text"], "one\ntwo\n", "{era:?}");
        assert_eq!(server_dir.started().len(), 1, "{era:?}");
    }
}
