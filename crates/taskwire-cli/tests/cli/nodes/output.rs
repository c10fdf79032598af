//! A command that writes all the time: whatever its server has to do with that, the supervisor hears that the server is there.

use serde_json::json;
use taskwire_testkit::{Installation, Server as Database};

use super::Cluster;
use crate::commands::{
    command_server::result_text,
    server_dir::{ServerDir, tool, until},
};

/// The least that a server takes.
const ORPHAN_AFTER: &str = "8s";
/// Twice as long, in seconds.
const TWICE: &str = "16";
/// Lines of a command that takes 10 ms for each: together they take even longer.
const LINES_OF_TWICE: usize = 1_800;

/// Writes for so many seconds as fast as somebody reads.
const FLOOD: &str = r#"
import os, signal, sys, time

notes, seconds = sys.argv[1], float(sys.argv[2])

def note(name):
    with open(os.path.join(notes, name), "a") as file:
        file.write("%d\n" % os.getpid())

signal.signal(signal.SIGTERM, lambda *_: note("asked"))
note("starts")
end = time.monotonic() + seconds
while time.monotonic() < end:
    os.write(1, b"x" * 4095 + b"\n")
os.write(1, b"that was all\n")
"#;

#[test]
#[ignore = "needs PostgreSQL"]
fn a_command_that_writes_a_line_again_and_again_goes_on_under_its_server() {
    let (cluster, [a, b, _c]) = Cluster::start(ORPHAN_AFTER, "retry");
    let id = a.begin("tally", json!({}));
    until("enough lines", || (cluster.written() >= LINES_OF_TWICE).then_some(()));
    assert_eq!(cluster.end(&b, &id).len(), 1, "it was started once");
    assert_eq!(cluster.notes.read("asked"), "", "nobody asked it to end");
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_command_that_writes_faster_than_its_output_is_taken_goes_on_under_its_server() {
    let database = Database::start_fast(&Installation::of(18));
    let keys = format!(
        "command = [\"python3\", \"@DIR@/flood.py\", \"@DIR@\", \"{TWICE}\"]\ntask = \"always\"\nkill_after = \"1s\"\njournal_bytes = 65536"
    );
    let shared = format!("store = \"{}\"\norphan_after = \"{ORPHAN_AFTER}\"\nlimits.output_bytes_per_second = 1048576", database.url());
    let dir = ServerDir::new(&format!("{shared}\n{}", tool("flood", &keys)));
    dir.write("flood.py", FLOOD);
    let node = dir.start();
    let id = node.begin("flood", json!({}));
    let result = node.result(&id);
    assert_ne!(result["isError"], true, "{result}");
    assert!(result_text(&result).contains("that was all"), "{result}");
    assert_eq!(dir.read("starts").lines().count(), 1, "it was started once");
    assert_eq!(dir.read("asked"), "", "nobody asked it to end");
}
