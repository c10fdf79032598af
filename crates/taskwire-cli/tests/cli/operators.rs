//! What operators do while a server runs: they look at it and its tasks, cancel some, and let it drain, over its socket and over HTTP.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::{
    kit::POLLS_MAX,
    user::{CommandResult, RunningCommand, User},
};

/// The demo tools, and one that is done at once and is a task.
const DEMO: &str = "demo = true\ndrain = \"1s\"\n";
const SAYS: &str = "[[tool]]\nname = \"says\"\ncommand = [\"echo\", \"done\"]\ntask = \"always\"\n";

/// A call that goes on until it is stopped.
const LONG: [&str; 2] = ["countdown", "from=600"];

/// Who may call: `ann`, and `root`, an admin. Each has a token of that name.
const CALLERS: &str =
    "[auth]\ntokens = [{ token = \"ann-token\", caller = \"ann\" }, { token = \"root-token\", caller = \"root\", admin = true }]\n";

/// A server that runs as this file says, and its user.
struct Served {
    user: User,
    running: RunningCommand,
    url: String,
}

impl Served {
    fn begin() -> Self {
        Self::with("")
    }

    /// With these lines in its file, too.
    fn with(lines: &str) -> Self {
        let user = User::new();
        let file = user.write("taskwire.toml", &format!("{DEMO}\n{lines}\n{CALLERS}\n{SAYS}"));
        let mut running = user.start(&["serve", &file, "--listen", "127.0.0.1:0", "--data", &user.path("data")]);
        let url = running.out.line_with("  endpoint  ");
        Self { user, running, url }
    }

    /// Runs `taskwire server` on the socket.
    fn operate(&self, args: &[&str]) -> CommandResult {
        let data = self.user.path("data");
        self.user.run(&[&["server"][..], args, &["--data", &data]].concat())
    }

    /// The same over HTTP, with this token.
    fn operate_with(&self, token: &str, args: &[&str]) -> CommandResult {
        self.user.run(&[&["server"][..], args, &["--url", &self.url, "--token", token]].concat())
    }

    /// Starts a task as `ann`, and leaves it alone.
    fn start(&self, call: &[&str]) {
        let ended = self.user.run(&[&["call", &self.url][..], call, &["--detach", "--token", "ann-token"]].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }

    /// What is known of tasks.
    fn tasks(&self, args: &[&str]) -> Vec<Value> {
        let ended = self.operate(&[&["tasks", "--json"][..], args].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.json()
    }

    /// The lines of the audit log in this file, which must have so many.
    fn audit(&self, name: &str, count: usize) -> Vec<Value> {
        let path = self.user.path(name);
        for _ in 0..POLLS_MAX {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).collect();
            if lines.len() >= count {
                assert!(!["ann-token", "root-token", "Ada", "wrong"].iter().any(|secret| text.contains(secret)), "{text}");
                assert_eq!(lines.len(), count, "{text}");
                return lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
            }
            // It is written beside the requests.
            assert_eq!(self.operate(&["status"]).code, Some(0));
        }
        panic!("{path} never had {count} lines: {:?}", std::fs::read_to_string(&path));
    }

    /// The id of the only countdown that is open.
    fn countdown(&self) -> String {
        let open = self.tasks(&["--status", "open", "--tool", "countdown"]);
        assert_eq!(open.len(), 1, "{open:?}");
        open[0]["id"].as_str().expect("an id").to_owned()
    }
}

#[test]
fn a_server_says_how_it_is_over_its_socket_and_over_http() {
    let served = Served::begin();
    served.start(&LONG);
    for ended in [served.operate(&["status"]), served.operate_with("root-token", &["status"])] {
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
        assert!(ended.out.starts_with("taskwire ") && ended.out.contains(": takes calls, up "), "{ended:?}");
        assert!(ended.out.contains("  tasks    1 working, 0 wait for an answer"), "{ended:?}");
    }
    let state = served.operate(&["status", "--json"]).json().pop().expect("an object");
    assert_eq!((&state["draining"], &state["tasks"]["open"]["working"]), (&json!(false), &json!(1)), "{state}");
}

#[test]
fn tasks_of_all_callers_are_listed_and_cancelled() {
    let served = Served::begin();
    served.start(&["says"]);
    served.start(&LONG);
    let id = served.countdown();
    for ended in [
        served.operate(&["tasks", "--tool", "countdown"]),
        served.operate_with("root-token", &["tasks", "--caller", "ann", "--tool", "countdown"]),
    ] {
        let lines: Vec<Vec<&str>> = ended.out.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 2, "{ended:?}");
        assert_eq!(lines[0], ["AGE", "STATUS", "TOOL", "CALLER", "TASK"], "{ended:?}");
        assert_eq!(lines[1][lines[1].len() - 4..], ["working", "countdown", "ann", id.as_str()], "{ended:?}");
    }
    assert_eq!(served.tasks(&[]).len(), 2);
    let one = served.operate(&["tasks", "--limit", "1"]);
    assert!(one.err.starts_with("taskwire: there may be more: --limit"), "{one:?}");
    served
        .operate(&["tasks", "--status", "done"])
        .is_refusal("`status` is open, working, input_required, completed, failed or cancelled, not `done`");
    let ended = served.operate_with("root-token", &["cancel", &id]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), format!("taskwire: {id} is cancelled\n").as_str()));
    let again = served.operate(&["cancel", &id]);
    assert_eq!((again.code, again.err.as_str()), (Some(0), format!("taskwire: {id} had ended before: cancelled\n").as_str()));
    let unknown = "0".repeat(32);
    let missing = served.operate(&["cancel", &unknown]);
    assert_eq!((missing.code, missing.err.as_str()), (Some(3), format!("taskwire: {unknown}: there is no such task\n").as_str()));
    let of_two = served.operate(&["cancel", &unknown, &id]);
    assert_eq!(of_two.code, Some(3), "{of_two:?}");
    assert!(of_two.err.ends_with("taskwire: 1 of 2 tasks were not cancelled\n"), "{of_two:?}");
}

#[test]
fn who_is_no_admin_is_told_so() {
    let served = Served::begin();
    served.start(&LONG);
    for args in [&["status"][..], &["drain"]] {
        let ended = served.operate_with("ann-token", args);
        assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""), "{ended:?}");
        assert!(ended.err.starts_with("taskwire: this is for admins: "), "{ended:?}");
    }
    let unknown = served.operate_with("wrong", &["status"]);
    assert_eq!(unknown.code, Some(3), "{unknown:?}");
    assert!(unknown.err.contains("the token is not known here") && unknown.err.contains("--token"), "{unknown:?}");
    let own = served.operate_with("ann-token", &["tasks", "--json"]);
    assert_eq!(own.json().len(), 1, "its own tasks: {own:?}");
    assert!(!served.user.run(&["server", "status", "--url", "tools.example"]).err.is_empty());
}

#[test]
fn a_server_that_is_told_to_drain_takes_no_calls_and_ends() {
    for over_http in [false, true] {
        let served = Served::begin();
        served.start(&LONG);
        let ended = if over_http { served.operate_with("root-token", &["drain"]) } else { served.operate(&["drain"]) };
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{ended:?}");
        assert!(
            ended.err.contains("taskwire: the server drains: 1 tool runs\n") && ended.err.ends_with("taskwire: the server has ended\n"),
            "{ended:?}"
        );
        let Served { running, user, .. } = served;
        let server = running.end();
        assert_eq!(server.code, Some(0), "as after SIGTERM: {server:?}");
        let nobody = user.run(&["server", "status", "--data", &user.path("data")]);
        assert_eq!(nobody.code, Some(3), "{nobody:?}");
        assert!(nobody.err.contains("no server has its tasks in "), "{nobody:?}");
    }
}

#[test]
fn a_signal_after_an_admin_wanted_the_end_does_not_stop_a_server_at_once() {
    let served = Served::begin();
    served.start(&LONG);
    let Served { user, running, .. } = served;
    let mut drain = user.start(&["server", "drain", "--data", &user.path("data")]);
    drain.err.until("taskwire: the server drains: 1 tool runs\n");
    running.signal("TERM");
    let server = running.end();
    assert_eq!(server.code, Some(0), "a service manager sends one besides: {server:?}");
    assert_eq!(drain.end().code, Some(0));
}

/// Where the audit log goes.
const AUDIT: &str = "audit.file = \"audit.jsonl\"\n";

/// What a line says: who did what to which tool's task, and what came of it.
fn brief(line: &Value) -> [&str; 4] {
    ["caller", "action", "tool", "outcome"].map(|key| line[key].as_str().unwrap_or("-"))
}

#[test]
fn who_did_what_is_in_the_audit_log_and_nothing_secret() {
    let served = Served::with(AUDIT);
    served.start(&LONG);
    let id = served.countdown();
    assert_eq!(served.operate_with("root-token", &["cancel", &id]).code, Some(0));
    let mut greeting = served.user.start(&["call", &served.url, "greet_me", "--token", "ann-token"]);
    let task = greeting.task();
    greeting.err.until("taskwire: answer it with: ");
    let answered = served.user.run(&["answer", &task, "name", "name=Ada", "--token", "ann-token"]);
    assert_eq!(answered.code, Some(0), "{answered:?}");
    assert_eq!(greeting.end().out, "Hello, Ada!\n");
    assert_eq!(served.operate_with("wrong", &["status"]).code, Some(3));
    assert_eq!(served.operate_with("ann-token", &["status"]).code, Some(3));
    let lines = served.audit("audit.jsonl", 6);
    let briefs: Vec<_> = lines.iter().map(brief).collect();
    assert_eq!(
        briefs,
        [
            ["ann", "create", "countdown", "done"],
            ["root", "cancel", "countdown", "done"],
            ["ann", "create", "greet_me", "done"],
            ["ann", "answer", "greet_me", "done"],
            ["-", "refused", "-", "sign-in: the token is not known here"],
            ["ann", "refused", "-", "/api/server is for admins"],
        ]
    );
    assert_eq!((&lines[1]["task"], &lines[1]["from"]), (&json!(id), &json!("127.0.0.1")));
    assert!(lines.iter().all(|line| line["time"].as_str().is_some_and(|time| time.ends_with('Z'))), "{lines:?}");
    let mode = std::fs::metadata(served.user.path("audit.jsonl")).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "for its user alone");
    served.running.signal("TERM");
    let Served { running, user, url } = served;
    assert_eq!(running.end().code, Some(0));
    let text = std::fs::read_to_string(user.path("audit.jsonl")).expect("a file");
    let last: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    assert_eq!(brief(&last), ["-", "drain", "-", "the process was told to end"], "{url}");
}

#[test]
fn the_audit_log_can_be_moved_away_and_a_reload_begins_a_new_one() {
    let served = Served::with(AUDIT);
    served.start(&LONG);
    served.audit("audit.jsonl", 1);
    std::fs::rename(served.user.path("audit.jsonl"), served.user.path("audit.1")).expect("moved");
    assert_eq!(served.user.run(&["reload", "--data", &served.user.path("data")]).code, Some(0));
    assert_eq!(brief(&served.audit("audit.jsonl", 1)[0]), ["-", "reload", "-", "done"]);
    served.start(&LONG);
    assert_eq!(brief(&served.audit("audit.jsonl", 2)[1]), ["ann", "create", "countdown", "done"]);
    std::fs::rename(served.user.path("audit.jsonl"), served.user.path("audit.2")).expect("moved");
    served.running.signal("HUP");
    served.audit("audit.jsonl", 1);
    assert_eq!((served.audit("audit.1", 1).len(), served.audit("audit.2", 2).len()), (1, 2), "nothing more was added to them");
}

#[test]
fn an_audit_log_that_cannot_be_written_is_told_once_and_stops_nobody() {
    let mut served = Served::with("audit.file = \"later/audit.jsonl\"\n");
    served.running.err.until("the audit log cannot be written, and the server goes on without it: ");
    served.start(&LONG);
    served.start(&LONG);
    std::fs::create_dir(served.user.path("later")).expect("a directory");
    served.start(&LONG);
    let log = served.running.err.until("the audit log can be written again: ");
    assert_eq!(log.matches("the audit log cannot be written").count(), 1, "{log}");
    let lines = served.audit("later/audit.jsonl", 2);
    assert_eq!(brief(&lines[0]), ["-", "lost", "-", "2 entries before this one were lost"]);
    assert_eq!(brief(&lines[1]), ["ann", "create", "countdown", "done"]);
}
