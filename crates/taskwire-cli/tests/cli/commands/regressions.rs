//! Bugs that were found by trying hard, and fixed: each has a test here.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use super::{
    command_server::{CommandServer, result_text, text_of},
    server_dir::{FoundProcess, ServerDir, tool, until},
};
use crate::{kit::signal, user::User};

/// For scripts: writes something at once, counts its starts, and waits until the test lets it go on.
const KIT: &str = r#"
import json, os, sys, time

def put(data, stream=1):
    while data:
        data = data[os.write(stream, data):]

def line(value):
    put(json.dumps(value).encode() + b"\n")

def note(name):
    os.write(os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), b"start\n")
    return open(name).read().count("start")

def gate(name):
    while not os.path.exists(name):
        time.sleep(0.005)
"#;

/// Rows of eleven bytes.
const ROW_BYTES: usize = 11;
const ROWS: &str = "rows = lambda count: ''.join('row %06d\\n' % n for n in range(count)).encode()\n";

fn row(n: usize) -> String {
    format!("row {n:06}\n")
}

/// The configuration of a tool `run`, which is the script of `server_dir`.
fn run(keys: &str) -> String {
    tool("run", &format!("command = [\"python3\", \"run.py\"]\n{keys}"))
}

/// A server directory with this configuration, and a script for its tool `run`.
fn server_dir(config: &str, script: &str) -> ServerDir {
    let server_dir = ServerDir::new(config);
    server_dir.write("run.py", &format!("{KIT}\n{script}"));
    server_dir
}

/// Where the output of a task's command waits for the server.
fn spool(server_dir: &ServerDir, id: &str, run: usize) -> PathBuf {
    PathBuf::from(server_dir.path(&format!("data/spool/{id}.{run}")))
}

/// Runs it as a task, which must end well: its result, and its output.
#[track_caller]
fn ends_well(server_dir: &ServerDir) -> (Value, Vec<Value>) {
    let server = server_dir.start();
    let id = server.begin("run", json!({}));
    let (result, blocks) = (server.result(&id), server.blocks(&id));
    assert_ne!(result["isError"], true, "{result}");
    server_dir.is_quiet();
    (result, blocks)
}

#[test]
fn what_takes_more_room_as_json_than_as_bytes_is_written_all_the_same() {
    let keys = "task = \"always\"\nstderr = \"apart\"\nredact = ['never there']";
    let server_dir = server_dir(&run(keys), "put(b'\\0' * 200000, 2)\nput(b'done\\n')\nput(b'\\xff' * 150000 + b'\\n', 2)");
    let (_, blocks) = ends_well(&server_dir);
    let (errors, others): (Vec<Value>, Vec<Value>) =
        blocks.into_iter().partition(|block| block["_meta"]["dev.taskwire/stream"] == "stderr");
    assert_eq!(text_of(&others), "done\n");
    let expected = format!("{}{}\n", "\0".repeat(200_000), "\u{fffd}".repeat(150_000));
    assert!(text_of(&errors) == expected, "{} bytes, not what was written", text_of(&errors).len());
}

#[test]
fn a_block_that_redaction_makes_too_large_is_no_reason_to_end_a_command() {
    let script = "
line({'type': 'text', 'text': 'Q' * 100000})
line({'type': 'resource', 'resource': {'uri': 'x:y', 'text': 'Q' * 100000}})
line({'type': 'text', 'text': 'the end'})
";
    let server_dir = server_dir(&run("task = \"always\"\noutput = \"jsonl\"\nredact = ['Q']"), script);
    let (_, blocks) = ends_well(&server_dir);
    let (text, hidden) = (text_of(&blocks), "[redacted]".repeat(100_000));
    let rest = text.strip_prefix(&hidden).unwrap_or_else(|| panic!("the first text is not whole: {} bytes", text.len()));
    assert_eq!(rest, "the end");
    let link = blocks.iter().find(|block| block["type"] == "resource_link").expect("a link in its place");
    assert_eq!((&link["name"], &link["size"]), (&json!("x:y"), &json!(hidden.len())), "{link}");
    let parts: String = blocks.iter().filter_map(|block| block["resource"]["text"].as_str()).collect();
    assert!(parts == hidden, "and all of it before that: {} bytes", parts.len());
}

#[test]
fn a_command_whose_directory_is_gone_is_lost_and_not_begun_again() {
    let script = "note('starts')\nput(b'first\\n')\ngate('go')\n";
    let server_dir = server_dir(&run("task = \"always\""), script);
    let server = server_dir.start();
    let id = server.begin("run", json!({}));
    // So a mark is stored too.
    server.wait_for_text(&id, "first\n");
    let supervisor = server_dir.supervisor();
    server.kill();
    signal(supervisor, "KILL");
    server_dir.write("go", "");
    server_dir.is_quiet();
    fs::remove_dir_all(spool(&server_dir, &id, 1)).expect("its directory is there");
    let server = server_dir.start();
    let task = server.ended(&id);
    assert_eq!(task["status"], "failed", "{task}");
    assert!(task["error"]["message"].as_str().is_some_and(|message| message.contains("interrupted")), "{task}");
    assert_eq!((server.text(&id).as_str(), server_dir.read("starts").as_str()), ("first\n", "start\n"));
    server_dir.is_quiet();
}

/// What another user could have put into the spool: a file that they can write to, or that they own.
fn planted(dir: &Path, is_given_away: bool) {
    for path in [dir.join("job.json"), dir.to_owned()] {
        if is_given_away {
            chown(&path, Some(12_345), Some(12_345)).expect("given away");
        } else {
            fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("opened to all");
        }
    }
}

#[test]
fn a_job_that_somebody_else_could_have_put_there_is_not_run() {
    // Only the first user can give something away.
    for is_given_away in [false, true].into_iter().filter(|is_chowned| !is_chowned || rustix::process::geteuid().is_root()) {
        let server_dir = server_dir(&run("task = \"always\""), "note('starts')\nput(b'first\\n')\ngate('go')\n");
        let server = server_dir.start();
        let id = server.begin("run", json!({}));
        server.wait_for_text(&id, "first\n");
        let supervisor = server_dir.supervisor();
        server.kill();
        signal(supervisor, "KILL");
        server_dir.write("go", "");
        server_dir.is_quiet();
        // The same job with another command, which has not begun.
        let dir = spool(&server_dir, &id, 1);
        let mut job: Value = serde_json::from_slice(&fs::read(dir.join("job.json")).expect("a job")).expect("JSON");
        job["argv"] = json!(["touch", server_dir.path("planted")]);
        fs::remove_dir_all(&dir).expect("its directory is there");
        fs::create_dir(&dir).expect("a directory");
        fs::write(dir.join("job.json"), job.to_string()).expect("a file");
        planted(&dir, is_given_away);
        let server = server_dir.start();
        let task = server.ended(&id);
        assert_eq!(task["status"], "failed", "{task}");
        server_dir.is_quiet();
        assert!(!Path::new(&server_dir.path("planted")).exists(), "somebody else's command was run");
    }
}

/// A command that has begun, and written something.
#[track_caller]
fn begun(keys: &str, script: &str) -> (ServerDir, CommandServer, String) {
    let server_dir = server_dir(&run(&format!("task = \"always\"\n{keys}")), script);
    let server = server_dir.start();
    let id = server.begin("run", json!({}));
    // So a mark is stored too.
    server.wait_for_text(&id, "first\n");
    (server_dir, server, id)
}

const BEGINS: &str = "note('starts')\nput(b'first\\n')\ngate('go')\nput(b'last\\n')\n";

#[test]
fn a_command_whose_files_were_removed_while_it_ran_is_stopped_by_the_next_server_and_its_task_says_so() {
    for file in ["job.json", "journal"] {
        let (server_dir, server, id) = begun("on_interrupt = \"retry\"", BEGINS);
        server.kill();
        fs::remove_file(spool(&server_dir, &id, 1).join(file)).expect("it is there");
        let server = server_dir.start();
        let task = server.ended(&id);
        assert_eq!(task["status"], "failed", "{task}");
        for message in [&task["error"]["message"], &task["statusMessage"]] {
            let message = message.as_str().unwrap_or_default();
            let is_said = message.starts_with("interrupted: ") && message.contains(&format!("`{file}`"));
            assert!(is_said && !message.contains(&server_dir.path("")), "{file}: {task}");
        }
        assert_eq!((server.text(&id).as_str(), server_dir.read("starts").as_str()), ("first\n", "start\n"), "{file}");
        server_dir.is_quiet();
        until("an empty spool", || fs::read_dir(server_dir.path("data/spool")).is_ok_and(|mut runs| runs.next().is_none()).then_some(()));
    }
}

#[test]
fn a_command_whose_files_were_removed_goes_on_as_long_as_its_server_does() {
    let (server_dir, server, id) = begun("", BEGINS);
    fs::remove_dir_all(spool(&server_dir, &id, 1)).expect("its directory is there");
    server_dir.write("go", "");
    assert_eq!(result_text(&server.result(&id)), "first\nlast\n");
    assert_eq!(server_dir.read("starts"), "start\n");
    server_dir.is_quiet();
}

#[test]
fn a_command_whose_job_was_removed_can_be_run_again_by_the_server_that_knows_it() {
    let script = "if note('starts') == 1:\n    put(b'first\\n')\n    gate('never')\nput(b'second\\n')\n";
    let (server_dir, server, id) = begun("on_interrupt = \"retry\"", script);
    fs::remove_file(spool(&server_dir, &id, 1).join("job.json")).expect("it is there");
    signal(server_dir.supervisor(), "KILL");
    assert_eq!(result_text(&server.result(&id)), "second\n");
    assert_eq!(server_dir.read("starts"), "start\nstart\n");
    server_dir.is_quiet();
}

#[test]
fn a_command_whose_journal_was_removed_is_lost_and_not_begun_again() {
    let (server_dir, server, id) = begun("", BEGINS);
    server.kill();
    fs::remove_file(spool(&server_dir, &id, 1).join("journal")).expect("it is there");
    server_dir.write("go", "");
    server_dir.is_quiet();
    let server = server_dir.start();
    let task = server.ended(&id);
    assert_eq!(task["status"], "failed", "{task}");
    assert!(task["error"]["message"].as_str().is_some_and(|message| message.contains("its files were removed")), "{task}");
    assert_eq!((server.text(&id).as_str(), server_dir.read("starts").as_str()), ("first\n", "start\n"));
    server_dir.is_quiet();
}

/// Is lost in the middle of a line the first time it is run; waits for `go` the second time.
const TWICE: &str = "
if note('starts') == 1:
    put(b'first\\nhalf')
    gate('never')
put(b'second\\n')
gate('go')
put(b'third\\n')
";

/// A server directory where the tool may be run again. Output is gathered, so that some is not yet stored when the server is lost.
fn twice() -> ServerDir {
    let keys = "task = \"always\"\non_interrupt = \"retry\"\nredact = ['never there']";
    server_dir(&format!("coalesce_window = \"300ms\"\n{}", run(keys)), TWICE)
}

/// The task of a command that was lost and runs again.
#[track_caller]
fn again(server_dir: &ServerDir, server: &CommandServer) -> String {
    let id = server.begin("run", json!({}));
    server.wait_for_text(&id, "first\n");
    signal(server_dir.supervisor(), "KILL");
    server.wait_for_text(&id, "second\n");
    id
}

#[test]
fn a_result_has_nothing_of_a_run_that_was_lost() {
    let server_dir = twice();
    let server = server_dir.start();
    let id = again(&server_dir, &server);
    server_dir.write("go", "");
    let result = server.result(&id);
    assert_ne!(result["isError"], true, "{result}");
    assert_eq!(server.text(&id), "first\nhalfsecond\nthird\n", "what it had written stays in the output");
    assert_eq!(result_text(&result), "second\nthird\n");
    server_dir.is_quiet();
}

#[test]
fn nothing_of_a_lost_run_is_left_beside_the_next_one_even_if_the_server_dies_in_between() {
    let server_dir = twice();
    let server = server_dir.start();
    let id = again(&server_dir, &server);
    let first = spool(&server_dir, &id, 1);
    assert!(!first.exists(), "its directory is still there");
    let second: Vec<u32> = server_dir.processes_of(&id).iter().map(|found| found.pid).collect();
    assert_eq!(second.len(), 1, "two runs at one time");
    // As if the server had died after it had begun the second run, and before it had ended the first.
    server.kill();
    fs::create_dir(&first).expect("a directory");
    let dir = fs::canonicalize(&first).expect("it is there");
    let mut sleep = Command::new("sleep");
    sleep.arg("3600").env("TASKWIRE_TASK", &id).env("TASKWIRE_TASK_DIR", dir).stdin(Stdio::null()).stdout(Stdio::null());
    let mut left = sleep.spawn().expect("`sleep` can be run");
    let server = server_dir.start();
    until("the end of what was left", || left.try_wait().expect("it can be looked at"));
    until("the end of its directory", || (!first.exists()).then_some(()));
    let after: Vec<u32> = server_dir.processes_of(&id).iter().map(|found| found.pid).collect();
    assert_eq!(after, second, "the second run goes on");
    server_dir.write("go", "");
    assert_eq!(result_text(&server.result(&id)), "second\nthird\n");
    assert_eq!(server_dir.read("starts"), "start\nstart\n");
    server_dir.is_quiet();
}

/// The control groups that were made for a task.
fn groups_of(id: &str) -> Vec<PathBuf> {
    fn find(dir: &Path, name: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_str().is_some_and(|group| group.starts_with(name)) {
                    found.push(entry.path());
                }
                find(&entry.path(), name, found);
            }
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter(|line| line.contains(" - cgroup2 ")).filter_map(|line| line.split(' ').nth(4));
    let mut found = Vec::new();
    for point in points {
        find(Path::new(point), &format!("taskwire-{id}."), &mut found);
    }
    found
}

#[test]
fn what_may_stay_leaves_no_control_group() {
    let script = "
if os.fork() == 0:
    quiet = os.open('/dev/null', os.O_RDWR)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    note('begun-' + sys.argv[1])
    gate('go')
    os._exit(0)
gate('begun-' + sys.argv[1])
gate('end-' + sys.argv[1])
";
    let keys = |leftovers: &str| {
        let keys = format!("command = [\"python3\", \"run.py\", \"{leftovers}\"]\ntask = \"always\"\nleftovers = \"{leftovers}\"");
        tool(leftovers, &keys)
    };
    let server_dir = server_dir(&format!("{}{}", keys("kill"), keys("keep")), script);
    let server = server_dir.start();
    let killed = server.begin("kill", json!({}));
    server_dir.lines("begun-kill", 1);
    if groups_of(&killed).is_empty() {
        eprintln!("skipped: no control group can be made here");
        return;
    }
    let kept = server.begin("keep", json!({}));
    server_dir.lines("begun-keep", 1);
    for (id, name) in [(&killed, "kill"), (&kept, "keep")] {
        server_dir.write(&format!("end-{name}"), "");
        assert_ne!(server.result(id)["isError"], true);
    }
    until("the end of the supervisors", || (!server_dir.processes().iter().any(FoundProcess::is_supervisor)).then_some(()));
    assert!(!server_dir.processes_of(&kept).is_empty(), "it may stay");
    server_dir.write("go", "");
    server_dir.is_quiet();
    assert_eq!([groups_of(&killed), groups_of(&kept)], [Vec::<PathBuf>::new(), Vec::new()]);
}

/// Asks, and does not wait for the answer for long; then has much to do.
const GIVES_UP: &str = "
taskwire ask --key sure 'Sure?' > /dev/null &
asker=$!
while [ ! -e give-up ]; do sleep 0.01; done
kill $asker
wait $asker
echo gone > gave-up
exec sleep 3600
";

/// A question that nobody waits for any more, with one server or with a second one after a kill.
#[track_caller]
fn is_given_up(is_killed: bool) {
    let keys = "command = [\"sh\", \"asks.sh\"]\ntask = \"always\"\ntimeout = \"3s\"\nkill_after = \"1s\"";
    let server_dir = ServerDir::new(&tool("asks", keys));
    server_dir.write("asks.sh", GIVES_UP);
    let server = server_dir.start();
    let id = server.begin("asks", json!({}));
    server.poll_until(&id, "a question", |task| {
        (task["status"] == "input_required" && task["inputRequests"]["sure"].is_object()).then_some(())
    });
    let give_up = || {
        server_dir.write("give-up", "");
        server_dir.lines("gave-up", 1);
    };
    let server = if is_killed {
        server.kill();
        give_up();
        server_dir.start()
    } else {
        give_up();
        server
    };
    let task = server.poll_until(&id, "work", |task| (task["status"] == "working").then(|| task.clone()));
    assert!(task["inputRequests"]["sure"].is_null(), "it is not asked any more: {task}");
    // Its time runs again.
    let task = server.ended(&id);
    assert_eq!(task["status"], "failed", "{task}");
    assert!(task["error"]["message"].as_str().is_some_and(|message| message.contains("3s")), "{task}");
    server_dir.is_quiet();
}

#[test]
fn who_gives_up_a_question_goes_on_and_has_no_more_time_than_others() {
    is_given_up(false);
}

#[test]
fn who_gives_up_a_question_while_no_server_is_there_does_so_too() {
    is_given_up(true);
}

/// What a client without tasks gets for a call.
#[track_caller]
fn plain_call(server: &CommandServer, tool: &str, arguments: &Value) -> Value {
    let meta = json!({"io.modelcontextprotocol/clientCapabilities": {}});
    server.ask("tools/call", json!({"name": tool, "arguments": arguments, "_meta": meta}))
}

#[test]
fn a_call_that_cannot_become_a_task_has_both_ends_of_much_output() {
    let hog = tool("hog", "command = [\"python3\", \"-c\", \"import time; time.sleep(3600)\"]\ntask = \"always\"");
    let config = format!("[limits]\ntasks_per_caller = 1\n\n{hog}{}", run("inline_bytes = 4096"));
    let server_dir = server_dir(&config, &format!("{ROWS}put(rows(100000))\nnote('ends')"));
    let server = server_dir.start();
    let id = server.begin("hog", json!({}));
    let result = plain_call(&server, "run", &json!({}));
    assert_ne!(result["isError"], true, "{result}");
    let content = result["content"].as_array().expect("content");
    let texts: Vec<&str> = content.iter().filter_map(|block| block["text"].as_str()).collect();
    assert!(texts[0].starts_with(&row(0)) && texts.iter().any(|text| text.ends_with(&row(99_999))), "{texts:?}");
    assert!(result_text(&result).contains(&format!("of {} bytes", 100_000 * ROW_BYTES)), "it says how much is left out: {texts:?}");
    assert!(!result.to_string().contains("taskwire://") && texts.len() == content.len(), "there is nothing to read on from: {result}");
    assert_eq!(server_dir.read("ends"), "start\n", "it came to its end");
    server.cancel(&id);
    server_dir.is_quiet();
}

#[test]
fn a_call_that_cannot_become_a_task_is_answered_when_it_was_held_long_enough() {
    let sleeps = "command = [\"python3\", \"-c\", \"import time; time.sleep(3600)\"]";
    let (hog, slow) = (tool("hog", &format!("{sleeps}\ntask = \"always\"")), tool("slow", sleeps));
    let server_dir = ServerDir::new(&format!("hold = \"1s\"\n\n[limits]\ntasks_per_caller = 1\n\n{hog}{slow}"));
    let server = server_dir.start();
    let id = server.begin("hog", json!({}));
    let result = plain_call(&server, "slow", &json!({}));
    assert_eq!(result["isError"], true, "{result}");
    for word in ["`slow` was stopped after 1 s", "`limits.tasks_per_caller`", "`task_list`", "`task_cancel`"] {
        assert!(result_text(&result).contains(word), "no {word}: {result}");
    }
    // There is room again.
    server.cancel(&id);
    assert_eq!(server.ended(&id)["status"], "cancelled");
    let result = plain_call(&server, "slow", &json!({}));
    assert!(result["isError"] != true && result_text(&result).contains("`slow` is still running"), "{result}");
    let text = result_text(&result);
    let id = text.split("\"task_id\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("an id");
    plain_call(&server, "task_cancel", &json!({"task_id": id}));
    server_dir.is_quiet();
}

#[test]
fn a_terminal_shows_all_of_a_long_output_however_quickly_it_came() {
    let server_dir = ServerDir::new(&tool("lines", "command = [\"cat\", \"lines\"]"));
    let lines: String = (0..5000).map(|n| format!("line {n} of a long and quick output\n")).collect();
    server_dir.write("lines", &lines);
    let (server, user) = (server_dir.start(), User::new());
    for round in 0..10 {
        let ended = user.run(&["call", &server.url(), "lines"]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert!(ended.out == lines, "round {round}: {} lines", ended.out.lines().count());
    }
    server_dir.is_quiet();
}

#[test]
fn a_result_that_is_not_as_promised_is_an_error_with_all_that_was_written() {
    let schema = "output_schema = { type = \"object\", properties = { n = { type = \"integer\" } }, required = [\"n\"] }";
    let command = "command = [\"python3\", \"run.py\", \"{last}\"]\ninput = { last = { type = \"string\" } }";
    let keys = format!("{command}\noutput = \"jsonl\"\n{schema}");
    let config = format!("{}{}", tool("now", &keys), tool("later", &format!("{keys}\ntask = \"always\"")));
    let server_dir = server_dir(&config, "put(b'some words\\n' + sys.argv[1].encode() + b'\\n')");
    let server = server_dir.start();
    let lines = [("{\"result\": {\"n\": \"x\"}}", "`n`"), ("{\"result\": {}}", "\"n\""), ("no result", "gave none")];
    for (last, words) in lines {
        let arguments = json!({"last": last});
        let results = [plain_call(&server, "now", &arguments), server.result(&server.begin("later", arguments))];
        for result in results {
            assert_eq!((&result["isError"], &result["structuredContent"]), (&json!(true), &Value::Null), "{last}: {result}");
            let text = result_text(&result);
            assert!(text.starts_with("some words\n"), "what it wrote is there: {text}");
            assert!(text.contains("output schema") && text.contains(words), "it says what is wrong: {text}");
        }
    }
    let fits = plain_call(&server, "now", &json!({"last": "{\"result\": {\"n\": 1}}"}));
    assert_eq!((fits["isError"] == true, &fits["structuredContent"]), (false, &json!({"n": 1})), "{fits}");
}

#[test]
fn a_silent_command_says_something_to_models_and_nothing_to_people() {
    let server_dir = server_dir(&run(""), "");
    let server = server_dir.start();
    let result = plain_call(&server, "run", &json!({}));
    assert_ne!(result["isError"], true, "{result}");
    assert_eq!(result["content"].as_array().map(Vec::len), Some(1), "{result}");
    assert!(result_text(&result).contains("exit code 0"), "{result}");
    let ended = User::new().run(&["call", &server.url(), "run"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{ended:?}");
}

/// All that the server has on the disk, outside of what runs.
fn stored(server_dir: &ServerDir) -> String {
    let files = fs::read_dir(server_dir.path("data")).expect("a directory").flatten().filter(|file| file.path().is_file());
    files.map(|file| String::from_utf8_lossy(&fs::read(file.path()).unwrap_or_default()).into_owned()).collect()
}

#[test]
fn secrets_are_in_no_question() {
    let form = "{\"type\": \"object\", \"properties\": {\"word\": {\"type\": \"string\", \"title\": \"sk-title\", \"description\": \"sk-hint it is\"}}}";
    let server_dir = ServerDir::new(&tool("asks", "command = [\"sh\", \"asks.sh\"]\ntask = \"always\"\nredact = ['sk-\\w+']"));
    server_dir.write("asks.sh", &format!("taskwire ask 'Use sk-question?' --key form --schema '{form}'\n"));
    let server = server_dir.start();
    let id = server.begin("asks", json!({}));
    let asked = server.poll_until(&id, "a question", |task| task["inputRequests"]["form"]["params"].as_object().cloned());
    let asked = Value::Object(asked);
    assert_eq!(asked["message"], "Use [redacted]?", "{asked}");
    let field = &asked["requestedSchema"]["properties"]["word"];
    assert_eq!((&field["title"], &field["description"]), (&json!("[redacted]"), &json!("[redacted] it is")), "{asked}");
    assert_eq!(field["type"], "string", "what is no text for people stays: {asked}");
    let answer = json!({"form": {"action": "accept", "content": {"word": "yes"}}});
    server.ask("tasks/update", json!({"taskId": id, "inputResponses": answer}));
    let answered: Value = serde_json::from_str(&result_text(&server.result(&id))).expect("a line of JSON");
    assert_eq!(answered, json!({"word": "yes"}), "it is asked and answered all the same");
    server_dir.is_quiet();
    let stored = stored(&server_dir);
    assert!(["sk-question", "sk-title", "sk-hint"].iter().all(|secret| !stored.contains(secret)), "it is stored");
}

#[test]
fn secrets_are_no_numbers_and_no_names_of_programs() {
    let numbers = run("output = \"jsonl\"\nredact = ['4242']");
    let missing = tool("missing", "command = [\"./sk-program\"]\nredact = ['sk-\\w+']");
    let server_dir = server_dir(&format!("{numbers}{missing}"), "line({'result': {'pin': 4242, 'deep': [4.4242, 42, None, True]}})");
    let server = server_dir.start();
    let result = plain_call(&server, "run", &json!({}));
    let expected = json!({"pin": "[redacted]", "deep": ["[redacted]", 42, null, true]});
    assert_eq!(result["structuredContent"], expected, "{result}");
    assert!(!result_text(&result).contains("4242"), "{result}");
    let result = plain_call(&server, "missing", &json!({}));
    assert_eq!(result["isError"], true, "{result}");
    let text = result_text(&result);
    assert!(text.contains("cannot run") && text.contains("[redacted]") && !text.contains("sk-program"), "{text}");
}

#[test]
fn a_result_that_may_have_everything_has_no_more_than_results_may_have() {
    const COUNT: usize = 5_000_000 / ROW_BYTES;
    let config = format!("[limits]\nresult_bytes = 1048576\n\n{}", run("task = \"always\"\ninline_bytes = 99999999999"));
    let server_dir = server_dir(&config, &format!("{ROWS}put(rows({COUNT}))"));
    let server = server_dir.start();
    let id = server.begin("run", json!({}));
    let result = server.result(&id);
    assert_ne!(result["isError"], true, "{result}");
    let content = result["content"].as_array().expect("content");
    let texts: Vec<&str> = content.iter().filter_map(|block| block["text"].as_str()).collect();
    assert!(texts[0].starts_with(&row(0)) && texts.iter().any(|text| text.ends_with(&row(COUNT - 1))), "both ends are there");
    let link = content.iter().find(|block| block["type"] == "resource_link").expect("a link to the rest");
    assert_eq!(link["size"], COUNT * ROW_BYTES, "{link}");
    server_dir.is_quiet();
}
