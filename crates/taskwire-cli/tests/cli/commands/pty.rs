//! Commands on a pseudo-terminal: what they write comes at once, and nothing else is different.

use serde_json::json;

use super::{
    command_server::result_text,
    server_dir::{ServerDir, tool},
};

/// A server directory with one tool, `run`, which is a task at once and runs this script on a terminal.
fn server_dir(keys: &str, script: &str) -> ServerDir {
    let server_dir = ServerDir::new(&tool("run", &format!("command = [\"python3\", \"run.py\"]\ntask = \"always\"\npty = true\n{keys}")));
    server_dir.write("run.py", script);
    server_dir
}

/// What it writes, when it has ended.
#[track_caller]
fn run(keys: &str, script: &str) -> String {
    let server_dir = server_dir(keys, script);
    let server = server_dir.start();
    let result = server.result(&server.begin("run", json!({})));
    assert_ne!(result["isError"], true, "{result}");
    server_dir.is_quiet();
    result_text(&result)
}

#[test]
fn a_program_that_keeps_its_output_back_is_seen_live() {
    // Without a terminal Python writes what it prints when it ends.
    let script = "import os, time\nprint('first')\nwhile not os.path.exists('go'):\n    time.sleep(0.005)\nprint('second')\n";
    let server_dir = server_dir("", script);
    let server = server_dir.start();
    let id = server.begin("run", json!({}));
    server.wait_for_text(&id, "first\n");
    server_dir.write("go", "");
    assert_eq!((result_text(&server.result(&id)), server.text(&id)), ("first\nsecond\n".to_owned(), "first\nsecond\n".to_owned()));
    server_dir.is_quiet();
}

const LOOK: &str = r#"
import os, sys
print(os.isatty(0), os.isatty(1), os.isatty(2), os.environ["TERM"], tuple(os.get_terminal_size(1)))
try:
    os.open("/dev/tty", os.O_RDWR)
except OSError:
    print("nobody to ask")
os.write(2, b"an error\n")
print("read", repr(sys.stdin.read()))
"#;

#[test]
fn a_command_writes_to_a_wide_terminal_that_cannot_draw_and_nobody_can_be_asked_on() {
    let dumb = "False True True dumb (200, 50)\nnobody to ask\nan error\nread ''\n";
    assert_eq!(run("", LOOK), dumb);
    let other = run("env = { TERM = \"xterm-256color\" }\nstdin = \"what it is given\\n\"\nstderr = \"drop\"", LOOK);
    assert_eq!(other, "False True False xterm-256color (200, 50)\nnobody to ask\nread 'what it is given\\n'\n");
}

#[test]
fn much_that_is_written_to_a_terminal_is_all_there() {
    let script = "import sys\nfor n in range(20000):\n    sys.stdout.write('row %06d\\n' % n)\n";
    let expected: String = (0..20_000).map(|n| format!("row {n:06}\n")).collect();
    assert!(run("inline_bytes = 1000000", script) == expected, "something is missing, or there twice");
}

#[test]
fn what_ends_with_an_error_says_so_from_a_terminal_too() {
    let server_dir = server_dir("", "import sys\nprint('words')\nsys.exit(3)\n");
    let server = server_dir.start();
    let result = server.result(&server.begin("run", json!({})));
    assert_eq!((result_text(&result).as_str(), &result["isError"]), ("words\nThe command ended with exit code 3.", &json!(true)));
    server_dir.is_quiet();
}
