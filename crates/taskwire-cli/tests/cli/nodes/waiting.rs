//! A command that waits for its turn on a node that dies has never run, so another node starts it for the first time.

use serde_json::json;
use taskwire_testkit::{Installation, Server as Database};

use crate::commands::{
    command_server::{CommandServer, result_text},
    server_dir::{ServerDir, tool},
};

/// Notes on which node it was started, and runs until it is let go.
const HOLD: &str = r#"
import os, sys, time

notes, name = sys.argv[1:]
with open(os.path.join(notes, "starts"), "a") as starts:
    starts.write("%s on %s\n" % (name, os.environ["NODE"]))
while not os.path.exists(os.path.join(notes, "go " + name)):
    time.sleep(0.01)
print("done: " + name)
"#;

/// The command for a node, of which one may run there at a time, and each only once.
fn hold(node: &str, notes: &ServerDir) -> String {
    let command = format!("command = [\"python3\", \"{}\", \"{}\", \"{{name}}\"]", notes.path("hold.py"), notes.path(""));
    let keys = "input = { name = { type = \"string\" } }\ntask = \"always\"\nkill_after = \"1s\"\nconcurrency = 1\non_interrupt = \"fail\"";
    tool("hold", &format!("{command}\nenv = {{ NODE = \"{node}\" }}\n{keys}"))
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_command_that_waits_on_a_node_that_dies_is_started_for_the_first_time_on_another_that_has_it() {
    let database = Database::start_fast(&Installation::of(18));
    let notes = ServerDir::new("");
    notes.write("hold.py", HOLD);
    let node = |name: &str, tools: &str| {
        let url = database.url();
        ServerDir::new(&format!("node = \"{name}\"\nstore = \"{url}\"\norphan_after = \"8s\"\ndrain = \"1s\"\n{tools}"))
    };
    let dirs = [node("ann", &hold("ann", &notes)), node("ben", &hold("ben", &notes)), node("cid", "demo = true\n")];
    let [a, b, c] = dirs.each_ref().map(ServerDir::start);
    let begin = |node: &CommandServer, name: &str| node.begin("hold", json!({"name": name}));
    let let_go = |name: &str| notes.write(&format!("go {name}"), "");
    let first = begin(&a, "first");
    notes.lines("starts", 1);
    let third = begin(&b, "third");
    notes.lines("starts", 2);
    // Both have one already.
    let second = begin(&a, "second");
    a.message_with(&second, "waiting for its turn");
    a.kill();
    let failed = b.ended(&first);
    assert_eq!(failed["status"], "failed", "what has run must not run again: {failed}");
    assert_eq!(c.ask("tasks/get", json!({"taskId": second}))["status"], "working");
    let_go("third");
    assert!(result_text(&b.result(&third)).contains("done: third"));
    notes.lines("starts", 3);
    let_go("second");
    assert!(result_text(&c.result(&second)).contains("done: second"));
    assert_eq!(notes.read("starts"), "first on ann\nthird on ben\nsecond on ben\n");
    notes.is_quiet();
}
