//! The server as process 1 of a container without an init: who waits for orphans, who gets signals, what its exit code is.

use std::{
    fs::{self, File},
    process::{Command, Stdio},
};

use serde_json::json;

use super::{
    command_server::{CommandServer, result_text},
    server_dir::{ServerDir, free_port, tool, until},
};
use crate::{
    kit::signal,
    user::User,
    window::{WIDE, Window},
};

const TASKWIRE: &str = env!("CARGO_BIN_EXE_taskwire");
/// For root, and for others where these may have namespaces.
const WAYS: [&[&str]; 2] = [&[], &["--map-root-user"]];
const ORPHANS: usize = 3;
const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// What makes the program that is named next process 1. Both end together.
fn unshare(way: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(way).args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"]).env_remove("RUST_LOG");
    command
}

fn works(way: &[&str]) -> bool {
    let mut command = unshare(way);
    command.arg("true").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The same in a way that works; nothing if this user has none.
fn container() -> Option<Command> {
    let way = WAYS.into_iter().find(|way| works(way));
    if way.is_none() {
        eprintln!("skipped: this user cannot make a namespace of processes");
    }
    way.map(unshare)
}

/// Starts a server in this directory as process 1.
fn serve(server_dir: &ServerDir) -> Option<CommandServer> {
    let (mut command, port) = (container()?, free_port());
    command.args([TASKWIRE, "serve", &server_dir.path("taskwire.toml"), "--data", &server_dir.path("data")]);
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    command.stdin(Stdio::null()).stderr(File::create(server_dir.path("server.log")).expect("a file"));
    let server = CommandServer::spawn(&mut command, port);
    server.ready();
    Some(server)
}

/// A process, also one that has ended and that nobody has waited for.
#[derive(Debug)]
struct Seen {
    pid: u32,
    name: String,
    state: String,
    parent: u32,
}

impl Seen {
    fn is_zombie(&self) -> bool {
        self.state == "Z"
    }
}

fn look(pid: u32) -> Option<Seen> {
    let stat = String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?).into_owned();
    // A name may have anything in it, and what follows has no brackets.
    let (head, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let (state, parent) = (fields.next()?.to_owned(), fields.next()?.parse().ok()?);
    Some(Seen { pid, name: head.split_once(" (")?.1.to_owned(), state, parent })
}

/// All that come from a process.
fn below(root: u32) -> Vec<Seen> {
    let pids = fs::read_dir("/proc").expect("processes can be seen").flatten();
    let mut others: Vec<Seen> = pids.filter_map(|entry| look(entry.file_name().to_str()?.parse().ok()?)).collect();
    let (mut found, mut open) = (Vec::new(), vec![root]);
    while let Some(pid) = open.pop() {
        let (children, rest) = others.into_iter().partition::<Vec<_>, _>(|one| one.parent == pid);
        others = rest;
        open.extend(children.iter().map(|child| child.pid));
        found.extend(children);
    }
    found
}

/// Process 1 of a server that runs.
#[track_caller]
fn first(server: &CommandServer) -> u32 {
    let all = below(server.pid());
    all.iter().find(|one| one.parent == server.pid()).unwrap_or_else(|| panic!("nobody is first: {all:?}")).pid
}

/// The only process besides the first, when that is so.
#[track_caller]
fn server_pid(first: u32) -> u32 {
    until("process 1 and the server, and no zombies", || match below(first).as_slice() {
        [one] if one.parent == first && !one.is_zombie() => Some(one.pid),
        _ => None,
    })
}

/// Waits until all of it has ended, and gives its exit code.
#[track_caller]
fn end(server: CommandServer) -> Option<i32> {
    until("its end", || look(server.pid()).filter(Seen::is_zombie));
    // There is nobody left who could be asked: this only fetches the code.
    server.stop().code()
}

/// Has commands leave processes behind, and waits until these are nobody's but process 1's.
#[track_caller]
fn leave_orphans(server: &CommandServer, first: u32) -> Vec<Seen> {
    for _ in 0..ORPHANS {
        let id = server.begin("leaves", json!({}));
        assert_eq!(result_text(&server.result(&id)), "left\n");
    }
    until("orphans", || {
        let mut all = below(first);
        all.retain(|one| one.parent == first && one.name == "sleep");
        (all.len() == ORPHANS).then_some(all)
    })
}

#[test]
fn orphans_leave_no_zombies_and_a_signal_ends_all_in_good_order() {
    let leaves = "command = [\"sh\", \"-c\", \"sleep 600 > /dev/null 2>&1 & echo left\"]\nleftovers = \"keep\"\ntask = \"always\"";
    let server_dir =
        ServerDir::new(&format!("{}{}", tool("quick", "command = [\"echo\", \"hi\"]\ntask = \"always\""), tool("leaves", leaves)));
    let Some(server) = serve(&server_dir) else { return };
    let first = first(&server);
    for _ in 0..ORPHANS {
        let id = server.begin("quick", json!({}));
        assert_eq!(result_text(&server.result(&id)), "hi\n");
    }
    for orphan in leave_orphans(&server, first) {
        signal(orphan.pid, "KILL");
    }
    server_pid(first);
    leave_orphans(&server, first);
    let before = below(server.pid());
    assert!(before.len() >= ORPHANS + 2, "{before:?}");
    signal(first, "TERM");
    assert_eq!(end(server), Some(0));
    let left: Vec<Seen> = before.iter().filter_map(|one| look(one.pid)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_exit_code_is_that_of_the_server() {
    let server_dir = ServerDir::new("demo = true\n");
    let Some(mut command) = container() else { return };
    // As soon as it has begun.
    let ended = command.args([TASKWIRE, "serve", &server_dir.path("missing.toml")]).output().expect("it can be run");
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{errors}");
    assert!(errors.starts_with("taskwire: ") && errors.contains("missing.toml"), "{errors}");
    let Some(server) = serve(&server_dir) else { return };
    signal(server_pid(first(&server)), "KILL");
    assert_eq!(end(server), Some(128 + 9));
}

#[test]
fn the_server_hears_a_key_of_the_terminal_once() {
    // Only root can take over the terminal of another session.
    if !works(WAYS[0]) {
        eprintln!("skipped: this user cannot make a namespace of processes with a terminal");
        return;
    }
    let (server_dir, user, port) = (ServerDir::new("demo = true\ndrain = \"500ms\"\n"), User::new(), free_port());
    let mut command = unshare(WAYS[0]);
    // Process 1 of a container leads a session.
    command.args(["setsid", "--ctty", TASKWIRE, "serve", &server_dir.path("taskwire.toml"), "--data", &server_dir.path("data")]);
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    let mut window = Window::run(command, WIDE);
    window.shows(&format!("call http://127.0.0.1:{port}/mcp"));
    // Keeps it from ending before a second signal could come.
    user.detach(&format!("http://127.0.0.1:{port}/mcp"), "count_far");
    // There is no shell that would let it go on.
    window.press(CTRL_Z);
    window.press(CTRL_C);
    window.shows("draining; send the signal again to stop at once");
    assert_eq!(window.end(), Some(0), "{}", window.text());
}
