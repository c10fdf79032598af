//! Nodes that share a database, as who runs them meets them: processes that are listed, killed, stopped for a while and replaced.
//!
//! [`takeover`] has what becomes of the command of a node that is gone, [`waiting`] of one that waits there, [`slots`] where commands run that
//! wait, [`clock`] what a clock does to both that is set, [`output`] what a command's own output does, [`database`] what a database does to its
//! nodes.

mod clock;
mod database;
mod output;
mod slots;
mod takeover;
mod waiting;

use std::{
    collections::BTreeMap,
    io,
    net::{Shutdown, TcpListener, TcpStream},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use taskwire::clock::{Clock, SystemClock};
use taskwire_testkit::{Installation, Server as Database};

use crate::{
    commands::{
        command_server::{CommandServer, result_text, text_of},
        server_dir::{ServerDir, tool, until},
    },
    user::{CommandResult, User},
};

const NAMES: [&str; 3] = ["ann", "ben", "cid"];
/// How long a lease lasts.
const LEASE: Duration = Duration::from_secs(6);
/// How many lines more a command tells that goes on.
const MORE_LINES: usize = 50;
/// Who calls while nodes are replaced, and how often each.
const CALLERS: usize = 4;
const CALLS: usize = 10;

/// Prints a numbered line every 10 ms until it is let go, and notes beside the output that it was started and each line.
///
/// It holds a lock that its child holds too, so that nobody gets it before all its processes are gone, and notes if another run has it.
/// Whoever asks it to end is not obeyed.
const TALLY: &str = r#"
import fcntl, os, signal, sys, time

notes = sys.argv[1]

def opened(name):
    return os.open(os.path.join(notes, name), os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)

def note(name):
    os.write(opened(name), b"%d\n" % os.getpid())

lock = opened("lock")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    note("twice")
signal.signal(signal.SIGTERM, lambda *_: note("asked"))
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    while True:
        time.sleep(3600)
note("starts")
lines = opened("lines")
n = 0
while not os.path.exists(os.path.join(notes, "go")):
    os.write(1, b"line %d\n" % n)
    os.write(lines, b".")
    n += 1
    time.sleep(0.01)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
os.write(1, b"end\n")
"#;

/// Notes on which node it began, and ends when it is let go.
const GATED: &str = r#"
cd "$(dirname "$0")"
echo "$2 on $1" >> begun
while [ ! -e "go-$2" ]; do sleep 0.01; done
echo "$2 is done"
"#;

/// Three nodes and their database. Each has a directory of its own.
struct Cluster {
    nodes: [ServerDir; 3],
    /// What the commands of all nodes note.
    notes: ServerDir,
    // The last, so that it goes when nobody uses it.
    database: Database,
}

impl Cluster {
    /// Starts them, with the demo tools and the commands `tally` and `gated`, of which one runs on each node at a time.
    fn start(orphan_after: &str, on_interrupt: &str) -> (Self, [CommandServer; 3]) {
        let keys = format!("kill_after = \"1s\"\non_interrupt = \"{on_interrupt}\"");
        Self::start_on(Database::start_fast(&Installation::of(18)), orphan_after, &keys)
    }

    /// The same on this database, with these keys of the command.
    fn start_on(database: Database, orphan_after: &str, keys: &str) -> (Self, [CommandServer; 3]) {
        let notes = ServerDir::new("");
        notes.write("tally.py", TALLY);
        notes.write("gated.sh", GATED);
        let command = format!("command = [\"python3\", \"{}\", \"{}\"]", notes.path("tally.py"), notes.path(""));
        let (url, tally) = (database.url(), tool("tally", &format!("{command}\ntask = \"always\"\n{keys}")));
        let shared = format!("store = \"{url}\"\norphan_after = \"{orphan_after}\"\ndrain = \"1s\"\ndemo = true");
        let nodes = NAMES.map(|name| {
            let gated = format!(
                "command = [\"sh\", \"{}\", \"{name}\", \"{{name}}\"]\ninput = {{ name = {{ type = \"string\" }} }}\n\
                 task = \"always\"\nconcurrency = 1\n{keys}",
                notes.path("gated.sh")
            );
            ServerDir::new(&format!("node = \"{name}\"\n{shared}\n{tally}\n{}", tool("gated", &gated)))
        });
        let servers = nodes.each_ref().map(ServerDir::spawn);
        for server in &servers {
            server.ready();
        }
        (Self { nodes, notes, database }, servers)
    }

    /// What is listed, in the order in which the nodes have joined.
    #[track_caller]
    fn listed(&self) -> Vec<Value> {
        let listed = User::new().run(&["nodes", "--store", &self.database.url(), "--json"]);
        assert_eq!(listed.code, Some(0), "{listed:?}");
        listed.json()
    }

    /// The nodes that have a lease, and how many tasks each of them runs.
    #[track_caller]
    fn alive(&self) -> BTreeMap<String, u64> {
        let row = |node: &Value| Some((node["name"].as_str()?.to_owned(), node["tasks"].as_u64()?));
        self.listed().iter().filter(|node| node["leaseLeftMs"] != 0).filter_map(row).collect()
    }

    #[track_caller]
    fn names(&self) -> Vec<String> {
        self.alive().into_keys().collect()
    }

    /// How many lines all runs of the command have written.
    fn written(&self) -> usize {
        self.notes.read("lines").len()
    }

    /// Waits until this node tells lines of the command that were not yet written.
    #[track_caller]
    fn goes_on(&self, node: &CommandServer, id: &str) {
        let next = self.written() + MORE_LINES;
        node.wait_for_text(id, &format!("line {next}\n"));
    }

    /// Waits until another node has started the command again, and sees that the first is over by then.
    #[track_caller]
    fn is_started_again(&self) {
        let starts = self.notes.lines("starts", 2);
        assert!(!Path::new("/proc").join(&starts[0]).exists(), "the first is gone when the second begins");
        assert_eq!(self.notes.read("asked"), format!("{}\n", starts[0]), "it was asked to end before it was killed");
    }

    /// Lets the command come to its end. Gives how many lines each of its runs has told, of which there were never two at once.
    #[track_caller]
    fn end(&self, node: &CommandServer, id: &str) -> Vec<usize> {
        self.notes.write("go", "");
        let result = node.result(id);
        assert_ne!(result["isError"], true, "{result}");
        assert_eq!(self.notes.read("twice"), "", "it ran twice at once");
        let text = node.text(id);
        let lines = text.strip_suffix("end\n").unwrap_or_else(|| panic!("it has not told its end: {text}"));
        let runs = runs(lines);
        assert_eq!(self.notes.read("starts").lines().count(), runs.len(), "each time that it was started shows");
        self.notes.is_quiet();
        runs
    }
}

/// How many lines each run of the command has told. They have numbers: none is missing, and none is there twice.
#[track_caller]
fn runs(text: &str) -> Vec<usize> {
    let mut runs = Vec::new();
    for line in text.lines() {
        let number: Option<usize> = line.strip_prefix("line ").and_then(|number| number.parse().ok());
        if number == Some(0) {
            runs.push(0);
        }
        let run = runs.last_mut().unwrap_or_else(|| panic!("the first line is missing: {text}"));
        assert_eq!(number, Some(*run), "`{line}` in: {text}");
        *run += 1;
    }
    runs
}

/// Waits until this node has told for so many times that the command counts, and gives what it has told.
#[track_caller]
fn counting(node: &CommandServer, id: &str, times: usize) -> String {
    let counts = |text: &str| text.matches("line 50\n").count() == times;
    let text = text_of(&node.blocks_until(id, |blocks| counts(&text_of(blocks))));
    assert!(counts(&text), "it has ended: {text}");
    text
}

/// `count_far` has told each number once, whichever nodes it ran on.
#[track_caller]
fn is_counted(text: &str, to: u32) {
    let numbers: Vec<&str> = text.lines().filter(|line| !line.starts_with("(attempt ")).collect();
    let expected: Vec<String> = (1..=to).map(|number| number.to_string()).collect();
    assert_eq!(numbers, expected, "{text}");
}

/// The program has shown such a call from its beginning to its end.
#[track_caller]
fn is_call_of(called: &CommandResult, to: u32) {
    assert_eq!(called.code, Some(0), "{called:?}");
    let (told, _) = called.out.split_once(&format!("Counted to {to} in ")).unwrap_or_else(|| panic!("no result: {called:?}"));
    is_counted(told, to);
}

/// Where it is, as a host and a port.
fn address(node: &CommandServer) -> String {
    node.url().trim_start_matches("http://").trim_end_matches("/mcp").to_owned()
}

/// One address for all nodes: each connection goes to the next one, whoever makes it.
fn door(nodes: &[CommandServer]) -> String {
    let nodes: Vec<String> = nodes.iter().map(address).collect();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    thread::spawn(move || {
        let mut next = nodes.iter().cycle();
        for client in listener.incoming().map_while(Result::ok) {
            // One that is being replaced takes none.
            let found = next.by_ref().take(nodes.len()).find_map(|node| TcpStream::connect(node).ok());
            let Some(node) = found else { continue };
            let twice = |stream: &TcpStream| stream.try_clone().expect("another handle");
            for (mut from, mut to) in [(twice(&client), twice(&node)), (node, client)] {
                thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    url
}

#[test]
#[ignore = "needs PostgreSQL"]
fn nodes_are_listed_until_they_leave_or_their_lease_is_over() {
    let (cluster, [a, b, c]) = Cluster::start("30s", "retry");
    assert_eq!(cluster.names(), NAMES);
    let (user, file) = (User::new(), cluster.nodes[0].path("taskwire.toml"));
    let shown = user.run(&["nodes", &file]);
    assert!(shown.code == Some(0) && NAMES.iter().all(|name| shown.out.contains(name)), "{shown:?}");
    a.begin("tally", json!({}));
    assert_eq!(cluster.alive()["ann"], 1, "it runs the task");
    b.kill();
    until("the end of a lease", || (cluster.names() == ["ann", "cid"]).then_some(()));
    // Another node notices, and says that it is gone for good.
    until("two nodes", || (cluster.listed().len() == 2).then_some(()));
    assert_eq!(c.stop().code(), Some(0));
    assert_eq!(cluster.listed().len(), 1, "nobody waits for the lease of one that has left");
    assert_eq!(a.stop().code(), Some(0));
    let none = user.run(&["nodes", &file]);
    assert!(none.code == Some(3) && none.err.contains("no node uses this store"), "{none:?}");
    let embedded = user.run(&["nodes"]);
    assert!(embedded.code == Some(2) && embedded.err.contains("only a database has nodes"), "{embedded:?}");
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_node_that_is_told_to_end_hands_over_at_once_what_it_runs() {
    let (cluster, [a, b, _c]) = Cluster::start("30s", "retry");
    let far = a.begin("count_far", json!({"to": 50}));
    let unsafe_to_repeat = a.begin("countdown", json!({"from": 600}));
    b.wait_for_text(&far, "5\n");
    let told_at = SystemClock.monotonic();
    assert_eq!(a.stop().code(), Some(0));
    assert_eq!(cluster.names(), ["ben", "cid"]);
    b.wait_for_text(&far, "(attempt 2: going on with ");
    let failed = b.ended(&unsafe_to_repeat);
    let took = SystemClock.monotonic() - told_at;
    assert!(took < LEASE, "nobody waited for a lease to end: {took:?}");
    assert_eq!(failed["status"], "failed", "{failed}");
    assert!(failed["error"]["message"].as_str().unwrap_or_default().contains("`on_interrupt`"), "it says why: {failed}");
    assert!(b.text(&unsafe_to_repeat).starts_with("600…\n599…\n"), "what it had told stays");
    assert_eq!(result_text(&b.result(&far)), "Counted to 50 in 2 attempts.");
    is_counted(&b.text(&far), 50);
}

#[test]
#[ignore = "needs PostgreSQL"]
fn no_call_fails_while_all_nodes_are_replaced_one_by_one() {
    let (cluster, nodes) = Cluster::start("30s", "retry");
    let (door, ended, mut replaced) = (door(&nodes), AtomicUsize::new(0), Vec::new());
    let call_again_and_again = || {
        let user = User::new();
        for _ in 0..CALLS {
            let called = user.run(&["call", &door, "count_far", "to=10"]);
            is_call_of(&called, 10);
            ended.fetch_add(1, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(call_again_and_again);
        }
        for (dir, node) in cluster.nodes.iter().zip(nodes) {
            let enough = ended.load(Ordering::Relaxed) + CALLERS;
            until("more calls", || (ended.load(Ordering::Relaxed) >= enough).then_some(()));
            assert_eq!(node.stop().code(), Some(0));
            replaced.push(dir.start());
        }
        assert!(ended.load(Ordering::Relaxed) < CALLERS * CALLS, "there were calls all the time");
    });
    assert_eq!(cluster.alive(), BTreeMap::from(NAMES.map(|name| (name.to_owned(), 0))));
}
