//! What surrounds the server fails: a disk that cannot be written or returns other bits, few files, processes that stand still for a while.
//! `TASKWIRE_STOP_SECONDS` says how long they do (3).

use std::{
    collections::BTreeSet,
    fs::{self, Permissions},
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::Path,
    process::{Command, Stdio},
};

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::{
    commands::{
        command_server::{CommandServer, message, result_text, text_of},
        server_dir::{ServerDir, tool},
    },
    kit::{Server, TIMEOUT, TempDir, ended, refusal, request, run, signal},
};

/// Bytes of a page of the database, and of what is before a page in its log and before the first one.
const PAGE: usize = 4096;
const FRAME_HEAD: usize = 24;
const LOG_HEAD: usize = 32;
/// A user who has nothing.
const NOBODY: u32 = 12_345;

fn arguments(data: &str) -> [&str; 5] {
    ["serve", "--listen", "127.0.0.1:0", "--data", data]
}

// A disk that cannot be written.

/// Sets the modes of a directory and of all files in it.
fn set_modes(data: &str, dir: u32, file: u32) {
    fs::set_permissions(data, Permissions::from_mode(0o700)).expect("it is ours");
    for entry in fs::read_dir(data).expect("listed").flatten().filter(|entry| entry.path().is_file()) {
        fs::set_permissions(entry.path(), Permissions::from_mode(file)).expect("it is ours");
    }
    fs::set_permissions(data, Permissions::from_mode(dir)).expect("it is ours");
}

/// Gives something away, with all that is in it.
fn give_away(path: &Path) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("listed").flatten() {
            give_away(&entry.path());
        }
    }
    chown(path, Some(NOBODY), Some(NOBODY)).expect("given away");
}

#[test]
fn a_data_directory_that_cannot_be_written_is_refused_with_its_name_and_left_as_it_was() {
    for has_store in [true, false] {
        let dir = TempDir::new();
        let data = dir.join("data");
        drop(Server::start(&data));
        if !has_store {
            fs::remove_dir_all(&data).and_then(|()| fs::create_dir(&data)).expect("emptied");
        }
        let files = || fs::read_dir(&data).expect("listed").flatten().map(|entry| entry.file_name()).collect::<BTreeSet<_>>();
        let before = files();
        set_modes(&data, 0o500, 0o400);
        let (code, _, words) = if rustix::process::geteuid().is_root() {
            // No mode keeps root from writing: so it is somebody else who tries, with a program that they can reach.
            let program = dir.path().join("taskwire");
            let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_taskwire")).arg(&program).status().expect("`cp` can be run");
            assert!(copied.success(), "the program is copied");
            give_away(dir.path());
            let mut command = Command::new(program);
            command.args(arguments(&data)).current_dir(dir.path()).env_remove("RUST_LOG").stdout(Stdio::piped());
            ended(command.uid(NOBODY).gid(NOBODY))
        } else {
            run(&arguments(&data))
        };
        assert_eq!(code, Some(1), "{words}");
        assert!(words.contains(&format!("taskwire: cannot use {data}/lock: Permission denied")), "{words}");
        assert_eq!(files(), before, "nothing was made");
        set_modes(&data, 0o700, 0o600);
    }
}

// A disk that returns other bits.

/// What became of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    Cancelled,
    Working,
    Missing,
    Damaged,
}

fn found(server: &Server, task: &str) -> Found {
    let (status, answer) = server.post("tasks/get", json!({"taskId": task})).expect("an answer");
    assert_eq!(status, 200, "{answer}");
    let error = answer["error"]["message"].as_str().unwrap_or_default();
    match answer["result"]["status"].as_str() {
        Some("cancelled") => Found::Cancelled,
        Some("working") => Found::Working,
        None if error == "Task not found" => Found::Missing,
        None if error.contains("damaged") && error.contains(task) => Found::Damaged,
        _ => panic!("neither as it was, nor as it was before, nor an error: {answer}"),
    }
}

/// Tasks that were made one after the other and then cancelled in that order, in a store whose server was killed.
fn cancelled_tasks(data: &str) -> Vec<String> {
    let server = Server::start(data);
    let tasks: Vec<String> = (0..8).map(|_| server.start_task("count_far")).collect();
    for task in &tasks {
        server.ask("tasks/cancel", json!({"taskId": task}));
    }
    server.process.kill();
    tasks
}

/// Changes a file as a whole.
fn rewritten(path: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).expect("there");
    change(&mut bytes);
    fs::write(path, bytes).expect("written");
}

#[test]
fn a_flipped_bit_in_the_log_of_the_store_is_reported_and_what_is_left_is_older_and_whole() {
    for is_last in [true, false] {
        let dir = TempDir::new();
        let data = dir.join("data");
        let tasks = cancelled_tasks(&data);
        let log = format!("{data}/tasks.db-wal");
        rewritten(&log, |bytes| {
            let frames = (bytes.len() - LOG_HEAD) / (FRAME_HEAD + PAGE);
            let frame = if is_last { frames - 1 } else { frames / 2 };
            bytes[LOG_HEAD + frame * (FRAME_HEAD + PAGE) + FRAME_HEAD + PAGE / 2] ^= 1;
        });
        let server = Server::start(&data);
        let said = server.process.wait_for_error_line("is not what was written");
        assert!(said.contains(&log) && said.contains(" are missing") && said.contains("put that in its place"), "{said}");
        let after: Vec<Found> = tasks.iter().map(|task| found(&server, task)).collect();
        // All up to some moment happened, and nothing after it.
        assert!(after.is_sorted() && !after.contains(&Found::Damaged), "{is_last}: {after:?}");
        if is_last {
            assert!(after[..7].iter().all(|found| *found == Found::Cancelled), "only the last change is gone: {after:?}");
        }
        let next = server.start_task("count_far");
        server.process.kill();
        assert_eq!(found(&Server::start(&data), &next), Found::Working, "what is acknowledged now is kept");
    }
}

/// Brings the log of a store that nobody uses into its database, and gives the path of that.
fn folded(data: &str) -> (String, Connection) {
    let path = format!("{data}/tasks.db");
    let database = Connection::open(&path).expect("the database");
    let busy: i64 = database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)).expect("folded");
    assert_eq!(busy, 0, "nobody uses it");
    (path, database)
}

#[test]
fn a_flipped_bit_in_any_of_the_last_pages_of_the_database_changes_no_task_unseen() {
    const PAGES: usize = 6;
    for nth in 1..=PAGES {
        let dir = TempDir::new();
        let data = dir.join("data");
        let tasks = cancelled_tasks(&data);
        let (path, database) = folded(&data);
        drop(database);
        // Where SQLite puts rows: at the end of a page.
        rewritten(&path, |bytes| {
            let page = bytes.len() - nth * PAGE;
            bytes[page + PAGE - 40] ^= 1;
        });
        let server = Server::start(&data);
        let after: Vec<Found> = tasks.iter().map(|task| found(&server, task)).collect();
        let whole = after.iter().filter(|found| **found == Found::Cancelled).count();
        assert!(after.iter().all(|found| matches!(found, Found::Cancelled | Found::Damaged)), "page {nth} from the end: {after:?}");
        assert!(whole + 1 >= tasks.len(), "page {nth} from the end: one bit is of one task: {after:?}");
        assert_eq!(found(&server, &server.start_task("count_far")), Found::Working, "it serves");
    }
}

/// Overwrites the page at the root of a table or an index.
fn overwrite_root_of(data: &str, name: &str) {
    let (path, database) = folded(data);
    let sql = "SELECT rootpage FROM sqlite_master WHERE name = ?";
    let page: i64 = database.query_row(sql, [name], |row| row.get(0)).expect("it is there");
    let page = usize::try_from(page).expect("a small number");
    drop(database);
    rewritten(&path, |bytes| bytes[(page - 1) * PAGE..page * PAGE].fill(0x55));
}

#[test]
fn a_database_with_a_page_that_all_need_is_not_served_and_it_is_said_what_to_do() {
    for name in ["meta", "task_ended"] {
        let dir = TempDir::new();
        let data = dir.join("data");
        cancelled_tasks(&data);
        overwrite_root_of(&data, name);
        let words = refusal(1, &arguments(&data));
        assert!(words.contains(&format!("cannot open {data}/tasks.db")), "{name}: {words}");
        assert!(words.contains("put a copy of the whole data directory in its place"), "{name}: {words}");
    }
}

#[test]
fn a_server_that_cannot_find_the_tasks_that_were_running_ends_and_says_what_to_do() {
    let dir = TempDir::new();
    let data = dir.join("data");
    cancelled_tasks(&data);
    overwrite_root_of(&data, "task_open");
    let (code, words) = Server::start(&data).process.end_with_errors();
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("taskwire: the store failed: "), "{words}");
    assert!(words.contains("put a copy of the whole data directory in its place"), "{words}");
}

// Few files.

/// Ticks of processor time that a process has used; there are a hundred in a second.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the kernel tells");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    [11, 12].iter().map(|nth| fields[*nth].parse::<u64>().expect("a number")).sum()
}

/// Opens a stream about a task.
fn listen(server: &Server, task: &str) -> BufReader<TcpStream> {
    let body = request(1, "subscriptions/listen", json!({"notifications": {"taskIds": [task]}})).to_string();
    let kinds = "Content-Type: application/json\r\nAccept: application/json, text/event-stream";
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("a connection");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a patience");
    write!(
        stream,
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\n{kinds}\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: subscriptions/listen\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("sent");
    BufReader::new(stream)
}

/// Waits until so many more changes were told.
fn changes(stream: &mut BufReader<TcpStream>, count: usize) {
    let is_change = |line: &String| line.starts_with("data: ") && line.contains("\"notifications/tasks\"");
    let lines = stream.lines().map(|line| line.expect("the stream goes on"));
    assert_eq!(lines.filter(is_change).take(count).count(), count, "the stream goes on");
}

#[test]
fn with_few_files_streams_go_on_beside_more_connections_than_there_is_room_for_and_others_come_in_later() {
    let dir = TempDir::new();
    let data = dir.join("data");
    let few = "ulimit -n 100; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", few, env!("CARGO_BIN_EXE_taskwire")]).args(arguments(&data));
    command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::piped());
    let server = Server::started(&mut command);
    let task = server.start_task("count_far");
    let mut stream = listen(&server, &task);
    changes(&mut stream, 2);
    let connect = |_| TcpStream::connect(("127.0.0.1", server.port)).expect("the system takes it");
    let silent: Vec<TcpStream> = (0..200).map(connect).collect();
    changes(&mut stream, 2);
    // Two seconds in which it could try again and again.
    let before = ticks(server.process.id());
    changes(&mut stream, 10);
    let used = ticks(server.process.id()) - before;
    assert!(used < 100, "it is busy with connections that it cannot take: {used} ticks");
    drop(silent);
    assert_eq!(server.ask("tasks/get", json!({"taskId": task}))["status"], "working");
    changes(&mut stream, 2);
    server.process.kill();
    assert_eq!(found(&Server::start(&data), &task), Found::Working, "and nothing is lost");
}

// Processes that stand still.

/// Lines that the command prints.
const LINES: usize = 300;

/// A command that prints a line each 20 ms.
fn counting() -> ServerDir {
    let count = format!("echo started >> starts; for n in $(seq {LINES}); do echo line $n; sleep 0.02; done");
    let keys = format!("command = [\"sh\", \"-c\", \"{count}\"]\ntask = \"always\"\ntimeout = \"10m\"\ninline_bytes = 1048576");
    ServerDir::new(&tool("count", &keys))
}

fn numbered() -> String {
    (1..=LINES).map(|n| format!("line {n}\n")).collect()
}

/// Lets a process stand still for a while, and does something at the end of it.
fn stopped<T>(pid: u32, meanwhile: impl FnOnce() -> T) -> T {
    let seconds = std::env::var("TASKWIRE_STOP_SECONDS").unwrap_or_else(|_| "3".to_owned());
    signal(pid, "STOP");
    let waited = Command::new("sleep").arg(&seconds).status().expect("`sleep` can be run");
    assert!(waited.success(), "TASKWIRE_STOP_SECONDS must be a number, not {seconds:?}");
    let done = meanwhile();
    signal(pid, "CONT");
    done
}

/// Opens a stream about the state and the output of a task.
fn follow(server: &CommandServer, task: &str) -> TcpStream {
    let wants = json!({"extensions": {"io.modelcontextprotocol/tasks": {}, "dev.taskwire/partials": {}}});
    let output = json!([{"taskId": task, "fromSeq": 0}]);
    let params = json!({
        "notifications": {"taskIds": [task], "dev.taskwire/partials": output},
        "_meta": {"io.modelcontextprotocol/clientCapabilities": wants},
    });
    server.open("subscriptions/listen", None, &message("subscriptions/listen", params).to_string()).expect("the server is there")
}

/// What a chunked body has so far.
fn unchunked(bytes: &[u8]) -> String {
    let (mut rest, mut body) = (bytes, Vec::new());
    while let Some(line_end) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&rest[..line_end]).expect("ASCII");
        let (begin, size) = (line_end + 2, usize::from_str_radix(size, 16).expect("the size of a chunk"));
        if size == 0 || rest.len() < begin + size + 2 {
            break;
        }
        body.extend_from_slice(&rest[begin..begin + size]);
        rest = &rest[begin + size + 2..];
    }
    String::from_utf8_lossy(&body).into_owned()
}

/// Reads a stream up to the end of its task: all events.
fn events_told(mut stream: TcpStream) -> String {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 16 * 1024]);
    loop {
        let count = stream.read(&mut buffer).expect("the stream goes on");
        bytes.extend_from_slice(&buffer[..count]);
        let head = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let events = head.map_or_else(String::new, |end| unchunked(&bytes[end + 4..]));
        if events.contains("\"status\":\"completed\"") && events.ends_with("\n\n") {
            return events;
        }
        assert!(count > 0, "the stream ended before its task: {events}");
    }
}

/// The text that a stream tells up to the end of its task, in chunks without a gap or a repeat.
fn text_told(stream: TcpStream) -> String {
    let events = events_told(stream);
    let messages = events.lines().filter_map(|line| line.strip_prefix("data: "));
    let messages = messages.map(|data| serde_json::from_str::<Value>(data).unwrap_or_else(|error| panic!("{error}: {data}")));
    let (mut text, mut next) = (String::new(), 0_u64);
    for message in messages.filter(|message| message["method"] == "notifications/tasks/partial") {
        assert_eq!(message["params"]["seq"], next, "a gap or a repeat: {message}");
        next += 1;
        text.push_str(&text_of(message["params"]["content"].as_array().expect("blocks")));
    }
    text
}

#[track_caller]
fn is_whole(server: &CommandServer, task: &str) {
    let result = server.result(task);
    assert_ne!(result["isError"], true, "{result}");
    assert_eq!(result_text(&result), numbered(), "the result is whole");
    assert_eq!(server.text(task), numbered(), "each line is there once");
}

#[test]
fn a_server_that_stands_still_for_a_while_goes_on_with_its_streams_its_commands_and_what_it_was_sent_meanwhile() {
    let server_dir = counting();
    let server = server_dir.start();
    let task = server.begin("count", json!({}));
    let stream = follow(&server, &task);
    server.wait_for_text(&task, "line 1\n");
    let call = message("tools/call", json!({"name": "count", "arguments": {}})).to_string();
    let mut sent = stopped(server.pid(), || server.open("tools/call", Some("count"), &call).expect("the system takes it"));
    let mut answer = String::new();
    sent.read_to_string(&mut answer).expect("an answer");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let answer: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    let other = answer["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no task: {answer}"));
    assert_eq!(text_told(stream), numbered(), "who listened has each line once");
    for task in [task.as_str(), other] {
        is_whole(&server, task);
    }
    assert_eq!(server_dir.read("starts"), "started\nstarted\n", "each call was carried out once");
    server_dir.is_quiet();
}

#[test]
fn a_supervisor_that_stands_still_for_a_while_loses_nothing_and_holds_nobody_up() {
    let server_dir = counting();
    let server = server_dir.start();
    let task = server.begin("count", json!({}));
    let stream = follow(&server, &task);
    server.wait_for_text(&task, "line 1\n");
    stopped(server_dir.supervisor(), || {
        assert_eq!(server.ask("tasks/get", json!({"taskId": task}))["status"], "working");
        assert!(server.ask("tools/list", json!({}))["tools"].is_array(), "others are served");
    });
    assert_eq!(text_told(stream), numbered(), "who listened has each line once");
    is_whole(&server, &task);
    assert_eq!(server_dir.read("starts"), "started\n", "it was started once");
    server_dir.is_quiet();
}
