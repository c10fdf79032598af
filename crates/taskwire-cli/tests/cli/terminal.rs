//! What a person sees: the client in a real terminal.

use std::{fs, os::unix::fs::PermissionsExt, process::Command, sync::mpsc, thread};

use serde_json::{Value, json};
use taskwire::{
    clock::{Clock, SystemClock},
    core::Timestamp,
    tool::{Content, Ctx, Progress, Question, TaskMode, Tool, ToolError},
};

use crate::{
    fixture::{Gate, ScriptedServer, TestServer, asks, proxy_withholding, says, steps},
    kit::{Server, TIMEOUT, TempDir},
    user::User,
    window::{WIDE, Window, is_progress_line},
};

/// A window that is narrower than most lines.
const NARROW: (u16, u16) = (50, 40);
const SEND: &str = "Send? [Y/n/d(ecline)/c(ancel)]";
const OPEN: &str = "Open it in a browser? [y/N/a(ccept without)/c(ancel)]";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

/// A call that is never a task, says how far it is, and waits.
fn knead(gate: &Gate) -> Tool {
    let gate = gate.clone();
    let body = move |ctx: Ctx| {
        let gate = gate.clone();
        async move {
            ctx.progress(Progress::of(5.0, 10.0).message("kneading")).await?;
            gate.pass(&ctx).await?;
            Ok::<&'static str, ToolError>("bread")
        }
    };
    Tool::raw("knead", "Kneads", json!({"type": "object"}), body).task(TaskMode::Never)
}

/// A form with a default, choices and bounds. Its fields are asked in this order.
fn person() -> Question {
    let schema = json!({
        "type": "object",
        "properties": {
            "age": {"type": "integer", "title": "Age", "minimum": 0},
            "colour": {
                "type": "string", "title": "Colour", "default": "green",
                "oneOf": [{"const": "red", "title": "Red"}, {"const": "green", "title": "Green"}],
            },
            "name": {"type": "string", "title": "Name", "description": "What should I call you?"},
        },
        "required": ["name"],
    });
    Question::form("Who are you?", schema)
}

/// The answer that a tool got, and printed last.
#[track_caller]
fn answer_of(window: &Window) -> Value {
    let lines = window.lines();
    serde_json::from_str(lines.last().expect("a line")).unwrap_or_else(|error| panic!("{error}: {lines:?}"))
}

// Something is going on.

#[test]
fn a_line_shows_that_something_is_going_on_and_leaves_no_trace() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["one\n", "two\n"], "done")]);
    let mut window = Window::open(&user, &["call", &fixture.url(), "steps"]);
    let task = window.task();
    let bar = window.is_busy_with("steps");
    assert!(bar.ends_with('s'), "so many seconds: {bar}");
    window.until("it moved", |window| ["⠋", "⠙", "⠹", "⠸"].iter().filter(|frame| window.raw().contains(**frame)).count() > 1);
    gate.open(1);
    window.shows("one");
    window.until(
        "it was below the output",
        |window| matches!(window.lines().as_slice(), [.., output, last] if output == "one" && is_progress_line(last)),
    );
    gate.open(2);
    assert_eq!(window.end(), Some(0));
    assert_eq!(window.lines(), [format!("taskwire: task {task}").as_str(), "one", "two", "done"]);
    assert!(window.raw().contains("\x1b[2mtaskwire: task "), "notices stand back: {:?}", window.raw());
}

#[test]
fn who_watches_a_task_sees_how_long_it_has_been_at_work() {
    let since = Timestamp::from_millis(SystemClock.now().as_millis() - 2 * 24 * 3_600_000);
    let (user, scripted) = (User::new(), ScriptedServer::working("t1", since.to_string()));
    let mut window = Window::open(&user, &["watch", &format!("{}#t1", scripted.url())]);
    let bar = window.is_busy_with("2d 00h");
    assert!(bar.contains("working"), "{bar}");
    window.press(CTRL_C);
    assert_eq!(window.end(), Some(0), "{}", window.text());
}

#[test]
fn progress_is_a_bar() {
    for (locale, expected) in [("C.UTF-8", "knead ━━━━━━╌╌╌╌╌╌ 5/10 · kneading · "), ("C", "knead ======------ 5/10 - kneading - ")]
    {
        let (user, gate) = (User::new(), Gate::closed());
        let fixture = TestServer::serve([knead(&gate)]);
        let mut command = user.command(&["call", &fixture.url(), "knead"]);
        command.env("LC_ALL", locale);
        let mut window = Window::run(command, WIDE);
        let bar = window.is_busy_with("5/10");
        assert!(bar.contains(expected), "{locale}: {bar}");
        gate.open(1);
        assert_eq!(window.end(), Some(0));
        assert_eq!(window.lines(), ["bread"], "{locale}");
    }
}

#[test]
fn progress_goes_on_when_the_call_becomes_a_task() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let mut window = Window::open(&user, &["call", &server.url(), "bake"]);
    window.is_busy_with("mixing");
    window.task();
    let bar = window.is_busy_with("2/10");
    assert!(!bar.contains("0/10") && !bar.contains("1/10"), "how far it was is not how far it is: {bar}");
    window.press(CTRL_C);
    assert_eq!(window.end(), Some(0), "{}", window.text());
}

#[test]
fn a_narrow_window_gets_no_line_that_is_too_wide() {
    let (user, gate) = (User::new(), Gate::closed());
    let message = "a message that has by far more letters than there are columns in a window that is this narrow";
    let tool = says("quite_long", &gate, message, TaskMode::Always);
    let fixture = TestServer::serve([tool, knead(&gate)]);
    let mut window = Window::run(user.command(&["call", &fixture.url(), "quite_long"]), NARROW);
    let task = window.task();
    let bar = window.is_busy_with("a message");
    assert!(bar.chars().count() <= 40 && bar.ends_with('…'), "{bar}");
    // Whatever was drawn over it, nothing of it is left.
    window.until("it was drawn again", |window| window.progress_line().is_some_and(|next| next != bar));
    gate.open(1);
    assert_eq!(window.end(), Some(0));
    assert_eq!(window.text(), format!("taskwire: task {task}\ndone"));

    let url = fixture.url();
    for args in [&["tools", url.as_str()] as &[&str], &["tasks"]] {
        let mut window = Window::run(user.command(args), NARROW);
        assert_eq!(window.end(), Some(0), "{args:?}");
        assert!(!window.has_wide_lines(), "{args:?}: {}", window.text());
    }
    let mut window = Window::run(user.command(&["tasks"]), NARROW);
    window.end();
    assert!(window.lines()[1].ends_with(&format!(" {}", &task[..12])), "what one copies is whole: {}", window.text());
}

#[test]
fn output_in_a_pipe_is_pure_also_beside_a_terminal() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["\x1b[31mone\n", "two"], "done")]);
    let (mut window, mut out) = Window::run_piped(user.command(&["call", &fixture.url(), "steps"]), WIDE);
    let task = window.task();
    window.is_busy_with("steps");
    gate.open(3);
    out.rest();
    assert_eq!(window.end(), Some(0));
    assert_eq!(out.text(), "\x1b[31mone\ntwo\ndone\n");
    assert_eq!(window.lines(), [format!("taskwire: task {task}")]);
}

#[test]
fn who_wants_no_colours_gets_plain_lines() {
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let (user, gate) = (User::new(), Gate::closed());
        let fixture = TestServer::serve([says("say", &gate, "thinking", TaskMode::Always)]);
        let mut command = user.command(&["call", &fixture.url(), "say"]);
        command.env(name, value);
        let mut window = Window::run(command, WIDE);
        let task = window.task();
        window.shows("taskwire: working: thinking");
        gate.open(1);
        assert_eq!(window.end(), Some(0));
        assert!(!window.raw().contains('\x1b'), "{name}: {:?}", window.raw());
        assert_eq!(window.lines(), [format!("taskwire: task {task}").as_str(), "taskwire: working: thinking", "done"], "{name}");
    }
}

// Questions.

#[test]
fn a_question_is_asked_and_answered_at_the_prompt() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    for era in ["modern", "legacy"] {
        let mut window = Window::open(&user, &["call", &server.url(), "greet_me", "--era", era]);
        window.asks("  name:");
        assert!(window.text().contains("? What is your name?\n  What should I call you?\n"), "{era}: {}", window.text());
        window.enter("Ada");
        assert_eq!(window.end(), Some(0), "{era}: {}", window.text());
        assert_eq!(window.lines().last().map(String::as_str), Some("Hello, Ada!"), "{era}");
        assert!(!window.text().contains("Send?"), "one field is asked once: {}", window.text());
        assert!(!window.lines().iter().any(|line| is_progress_line(line)), "{era}: {}", window.text());
    }
}

#[test]
fn a_question_for_yes_or_no_is_asked_once() {
    let schema = json!({"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]});
    let tool = asks("delete", "sure", Question::form("Delete 17 files?", schema), TaskMode::Always);
    let (user, fixture) = (User::new(), TestServer::serve([tool]));
    for (word, confirm) in [("y", true), ("n", false)] {
        let mut window = Window::open(&user, &["call", &fixture.url(), "delete"]);
        window.asks("  confirm [y/n]:");
        window.enter(word);
        assert_eq!(window.end(), Some(0), "{}", window.text());
        assert_eq!(answer_of(&window), json!({"action": "accept", "content": {"confirm": confirm}}));
        assert!(!window.text().contains("Send?"), "{}", window.text());
    }
}

#[test]
fn a_form_is_asked_field_by_field_until_it_fits() {
    let (user, fixture) = (User::new(), TestServer::serve([asks("meet", "person", person(), TaskMode::Always)]));
    let mut window = Window::open(&user, &["call", &fixture.url(), "meet"]);
    window.asks("  Age (optional):");
    window.enter("old");
    window.shows("  ! `old` is not a whole number");
    window.asks("  Age (optional):");
    window.enter("-1");
    window.shows("  ! -1 is less than 0");
    window.asks("  Age (optional):");
    window.enter("36");
    window.asks("  Colour [green]:");
    assert!(window.text().contains("    1) Red\n    2) Green\n"), "{}", window.text());
    window.enter("blue");
    window.shows("  ! `blue` is none of the choices: red, green");
    window.asks("  Colour [green]:");
    window.enter("");
    window.asks("  Name:");
    assert!(window.text().contains("  What should I call you?\n"), "{}", window.text());
    window.enter("");
    window.shows("  ! this must be filled in");
    window.asks("  Name:");
    window.enter("Ada");
    window.asks(SEND);
    assert!(window.text().contains("  Age: 36\n  Colour: green\n  Name: Ada\nSend?"), "{}", window.text());
    window.enter("n");
    window.asks("  Age [36]:");
    window.enter("");
    window.asks("  Colour [green]:");
    window.enter("1");
    window.asks("  Name [Ada]:");
    window.enter("");
    window.asks(SEND);
    window.enter("y");
    assert_eq!(window.end(), Some(0), "{}", window.text());
    assert_eq!(answer_of(&window), json!({"action": "accept", "content": {"age": 36, "colour": "red", "name": "Ada"}}));
}

#[test]
fn fields_are_asked_in_the_order_in_which_the_server_names_them() {
    let scripted = ScriptedServer::asking(
        r#"{"person":{"method":"elicitation/create","params":{"mode":"form","message":"Where?","requestedSchema":{"type":"object",
        "properties":{"zip":{"type":"string"},"town":{"type":"string"},"floor":{"type":"integer"}},"required":["floor"]}}}}"#,
    );
    let user = User::new();
    let mut window = Window::open(&user, &["call", &scripted.url(), "ask"]);
    for (prompt, value) in [("  zip (optional):", "08150"), ("  town (optional):", "Delft"), ("  floor:", "3")] {
        window.asks(prompt);
        window.enter(value);
    }
    window.asks(SEND);
    assert!(window.text().contains("  zip: 08150\n  town: Delft\n  floor: 3\nSend?"), "{}", window.text());
    window.enter("");
    assert_eq!(window.end(), Some(0), "{}", window.text());
    assert_eq!(answer_of(&window)["person"]["content"], json!({"zip": "08150", "town": "Delft", "floor": 3}));
}

#[test]
fn a_form_can_be_declined_at_the_prompt() {
    let (user, fixture) = (User::new(), TestServer::serve([asks("meet", "person", person(), TaskMode::Never)]));
    for (word, action) in [("d", "decline"), ("c", "cancel")] {
        // A call that is no task asks as well.
        let mut window = Window::open(&user, &["call", &fixture.url(), "meet"]);
        window.asks("  Age (optional):");
        window.enter("");
        window.asks("  Colour [green]:");
        window.enter("");
        window.asks("  Name:");
        window.enter("Ada");
        window.asks(SEND);
        window.enter(word);
        assert_eq!(window.end(), Some(0), "{}", window.text());
        assert_eq!(answer_of(&window)["action"], action);
    }
}

#[test]
fn a_question_can_be_left_to_others() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let mut window = Window::open(&user, &["call", &server.url(), "greet_me"]);
    let task = window.task();
    window.asks("  name:");
    window.press(CTRL_D);
    window.shows(&format!("taskwire: left unanswered; answer it with: taskwire answer {} name name=…", &task[..12]));
    assert_eq!(user.run(&["answer", &task, "name", "Ada"]).code, Some(0));
    assert_eq!(window.end(), Some(0));
    assert_eq!(window.lines().last().map(String::as_str), Some("Hello, Ada!"), "{}", window.text());
}

#[test]
fn a_question_that_was_answered_elsewhere_is_not_asked_any_more() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let mut window = Window::open(&user, &["call", &server.url(), "greet_me"]);
    let task = window.task();
    window.asks("  name:");
    assert_eq!(user.run(&["answer", &task, "name", "Eve"]).code, Some(0));
    assert_eq!(window.end(), Some(0), "{}", window.text());
    let lines = window.lines();
    assert_eq!(&lines[lines.len() - 2..], ["taskwire: “name” was answered or withdrawn", "Hello, Eve!"], "{}", window.text());
}

#[test]
fn an_answer_without_values_is_asked_for() {
    let (user, fixture) = (User::new(), TestServer::serve([asks("meet", "person", person(), TaskMode::Always)]));
    let mut running = user.start(&["call", &fixture.url(), "meet"]);
    let task = running.task();
    running.err.until("answer it with");
    let mut window = Window::open(&user, &["answer", &task, "person"]);
    window.asks("  Age (optional):");
    window.enter("36");
    window.asks("  Colour [green]:");
    window.enter("Red");
    window.asks("  Name:");
    window.enter("Ada");
    window.asks(SEND);
    window.enter("");
    assert_eq!(window.end(), Some(0), "{}", window.text());
    assert_eq!(window.lines().last(), Some(&format!("taskwire: answered person of {task}")));
    let answer: Value = serde_json::from_str(&running.end().out).expect("JSON");
    assert_eq!(answer["content"], json!({"age": 36, "colour": "red", "name": "Ada"}));
}

/// A browser that records which pages it is asked to open, and the directory that it is in.
fn browser(user: &User) -> (String, mpsc::Receiver<String>) {
    let (bin, pages) = (user.path("bin"), user.path("pages"));
    fs::create_dir(&bin).expect("a directory");
    assert!(Command::new("mkfifo").arg(&pages).status().expect("`mkfifo` can be run").success());
    for name in ["xdg-open", "open"] {
        let script = user.write(&format!("bin/{name}"), &format!("#!/bin/sh\nprintf '%s' \"$1\" > '{pages}'\n"));
        fs::set_permissions(script, fs::Permissions::from_mode(0o755)).expect("it can be run");
    }
    let (sender, opened) = mpsc::channel();
    thread::spawn(move || sender.send(fs::read_to_string(pages).expect("the page")));
    (bin, opened)
}

#[test]
fn a_page_is_opened_only_if_the_person_says_so() {
    let page = "https://example.com/sign?in=1";
    let tool = asks("sign", "sign_in", Question::url("Sign in, please", page), TaskMode::Always);
    let (user, fixture) = (User::new(), TestServer::serve([tool]));
    let (bin, opened) = browser(&user);
    let call = || {
        let mut command = user.command(&["call", &fixture.url(), "sign"]);
        command.env("PATH", format!("{bin}:/usr/bin:/bin"));
        let mut window = Window::run(command, WIDE);
        window.asks(OPEN);
        assert!(window.text().contains(&format!("? Sign in, please\n  {page}\n")), "{}", window.text());
        window
    };
    // Each is said in one line: nobody is asked twice.
    for (word, action) in [("", "decline"), ("n", "decline"), ("c", "cancel"), ("a", "accept")] {
        let mut window = call();
        window.enter(word);
        assert_eq!(window.end(), Some(0), "{word}: {}", window.text());
        assert_eq!(answer_of(&window)["action"], action, "{word}");
    }
    assert!(opened.try_recv().is_err(), "nobody said yes");
    let mut window = call();
    window.enter("y");
    assert_eq!(opened.recv_timeout(TIMEOUT).as_deref(), Ok(page));
    assert_eq!(window.end(), Some(0));
    assert_eq!(answer_of(&window)["action"], "accept");
}

#[test]
fn what_was_typed_before_a_page_was_named_does_not_agree_to_it() {
    let gate = Gate::closed();
    let own = gate.clone();
    let body = move |ctx: Ctx| {
        let gate = own.clone();
        async move {
            gate.pass(&ctx).await?;
            let answer = ctx.ask("sign_in", Question::url("Sign in, please", "https://example.com/")).await?;
            Ok::<String, ToolError>(json!({"action": answer.action}).to_string())
        }
    };
    let tool = Tool::raw("sign", "Signs in", json!({"type": "object"}), body).task(TaskMode::Always);
    let (user, fixture) = (User::new(), TestServer::serve([tool]));
    let (bin, opened) = browser(&user);
    let mut command = user.command(&["call", &fixture.url(), "sign"]);
    command.env("PATH", format!("{bin}:/usr/bin:/bin"));
    let mut window = Window::run(command, WIDE);
    window.task();
    window.enter("y");
    window.enter("y");
    window.until("the terminal had it", |window| window.raw().matches("y\r\n").count() == 2);
    gate.open(1);
    window.asks(OPEN);
    window.enter("c");
    assert_eq!(window.end(), Some(0), "{}", window.text());
    assert_eq!(answer_of(&window)["action"], "cancel", "{}", window.text());
    assert!(opened.try_recv().is_err(), "nobody said yes");
}

// Leaving.

/// What the first Ctrl-C says of a task: how to come back, and how to cancel.
fn ways(task: &str) -> [String; 2] {
    let prefix = &task[..12];
    [
        format!("taskwire: left running; come back with: taskwire watch {prefix}"),
        format!("taskwire: Ctrl-C again cancels it, and so does: taskwire cancel {prefix}"),
    ]
}

#[test]
fn ctrl_c_leaves_the_task_running_and_says_how_to_come_back_and_how_to_cancel() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["one\n"], "done")]);
    let mut window = Window::open(&user, &["call", &fixture.url(), "steps"]);
    let task = window.task();
    window.is_busy_with("steps");
    window.press(CTRL_C);
    let [back, cancel] = ways(&task);
    window.shows(&cancel);
    // What comes from now on is not shown: it would push away what was just said.
    gate.open(1);
    assert_eq!(window.end(), Some(0), "{}", window.text());
    let lines: Vec<String> = window.lines().into_iter().filter(|line| line != "^C").collect();
    assert_eq!(lines, [format!("taskwire: task {task}"), back, cancel], "nothing is left of what was drawn");
    assert_eq!(user.task(&task)["status"], "working", "the server was asked for nothing");
    gate.open(1);
    assert_eq!(user.run(&["watch", &task[..12]]).out, "one\ndone\n");
}

#[test]
fn ctrl_c_twice_cancels_the_task() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["one\n"], "done")]);
    let mut window = Window::open(&user, &["call", &fixture.url(), "steps"]);
    let task = window.task();
    window.press(CTRL_C);
    window.shows(&ways(&task)[1]);
    window.press(CTRL_C);
    assert_eq!(window.end(), Some(4), "{}", window.text());
    let lines: Vec<String> = window.lines().into_iter().filter(|line| line != "^C").collect();
    assert_eq!((lines.len(), lines[3].as_str()), (5, "taskwire: cancelling…"), "{lines:?}");
    assert!(lines[4].starts_with("taskwire: cancelled"), "{lines:?}");
    assert_eq!(user.task(&task)["status"], "cancelled");
}

#[test]
fn the_first_ctrl_c_of_who_said_so_cancels_the_task() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["one\n"], "done")]);
    let mut window = Window::open(&user, &["call", &fixture.url(), "steps", "--cancel-on-interrupt"]);
    let task = window.task();
    window.is_busy_with("steps");
    window.press(CTRL_C);
    assert_eq!(window.end(), Some(4), "{}", window.text());
    assert!(!window.text().contains("left running"), "{}", window.text());
    assert_eq!(user.task(&task)["status"], "cancelled");
}

#[test]
fn ctrl_c_once_the_server_was_asked_to_cancel_only_stops_waiting() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["one\n"], "done")]);
    let (port, asked) = proxy_withholding("tasks/cancel", fixture.port);
    let mut window = Window::open(&user, &["call", &format!("http://127.0.0.1:{port}/mcp"), "steps"]);
    let task = window.task();
    window.press(CTRL_C);
    window.shows(&ways(&task)[1]);
    window.press(CTRL_C);
    window.shows("taskwire: cancelling…");
    asked.recv_timeout(TIMEOUT).expect("the server is asked");
    window.press(CTRL_C);
    assert_eq!(window.end(), Some(4), "{}", window.text());
    let words = format!("taskwire: cancel was sent; the server has not replied; see: taskwire watch {}", &task[..12]);
    assert_eq!(window.lines().last(), Some(&words), "{}", window.text());
}

#[test]
fn ctrl_c_stops_watching_and_leaves_the_task_as_it_is() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["one\n"], "done")]);
    let task = user.detach(&fixture.url(), "steps");
    let mut window = Window::open(&user, &["watch", &task]);
    window.is_busy_with("steps");
    window.press(CTRL_C);
    assert_eq!(window.end(), Some(0), "{}", window.text());
    let lines: Vec<String> = window.lines().into_iter().filter(|line| line != "^C").collect();
    assert_eq!(lines, [format!("taskwire: left running; come back with: taskwire watch {}", &task[..12])]);
    assert_eq!(user.task(&task)["status"], "working");
}

#[test]
fn ctrl_c_at_a_prompt_leaves_the_question_open() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let mut window = Window::open(&user, &["call", &server.url(), "greet_me"]);
    let task = window.task();
    window.asks("  name:");
    window.press("half a na");
    window.press(CTRL_C);
    assert_eq!(window.end(), Some(0), "{}", window.text());
    assert_eq!(user.task(&task)["status"], "input_required");
}

#[test]
fn ctrl_c_leaves_a_call_that_is_no_task_where_it_is_known_by_its_key_and_twice_gives_it_up() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([knead(&gate)]);
    let mut window = Window::open(&user, &["call", &fixture.url(), "knead"]);
    window.is_busy_with("5/10");
    window.press(CTRL_C);
    window.shows("taskwire: left running; come back with: taskwire watch ");
    window.shows("taskwire: Ctrl-C again gives it up");
    window.press(CTRL_C);
    assert_eq!(window.end(), Some(4), "{}", window.text());
    assert!(window.lines().last().is_some_and(|line| line.starts_with("taskwire: cancelled")), "{}", window.text());
}

#[test]
fn a_window_that_is_closed_leaves_the_task_running() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["one\n"], "done")]);
    for signal in ["TERM", "HUP"] {
        let mut window = Window::open(&user, &["call", &fixture.url(), "steps"]);
        let task = window.task();
        window.is_busy_with("steps");
        window.signal(signal);
        assert_eq!(window.end(), Some(0), "{signal}: {}", window.text());
        let lines = window.lines();
        let prefix = lines[1].strip_prefix("taskwire: left running; come back with: taskwire watch ");
        assert!(lines.len() == 2 && prefix.is_some_and(|prefix| task.starts_with(prefix)), "{signal}: {lines:?}");
        assert_eq!(user.task(&task)["status"], "working", "{signal}");
    }
}

#[test]
fn a_detached_call_says_how_to_come_back() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = TestServer::serve([steps("steps", &gate, ["one\n"], "done")]);
    let mut window = Window::open(&user, &["call", &fixture.url(), "steps", "--detach"]);
    assert_eq!(window.end(), Some(0));
    let lines = window.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[1], format!("taskwire: come back with: taskwire watch {}", &lines[0][..12]));
}

// Servers that mean no good.

#[test]
fn what_a_server_says_cannot_touch_the_terminal() {
    const EVIL: &str = "\x1b[2J\x1b]0;evil\x07\x1b]52;c;ZXZpbA==\x07\u{9b}2J\u{202e}";
    let shown = r"^[[2J^[]0;evil^G^[]52;c;ZXZpbA==^G\u{9b}2J\u{202e}";
    let gate = Gate::closed();
    let schema = json!({"type": "object", "properties": {"name": {"type": "string", "title": format!("Name{EVIL}")}}});
    let question = Question::form(&format!("Who?{EVIL}"), schema);
    let own = gate.clone();
    let body = move |ctx: Ctx| {
        let (gate, question) = (own.clone(), question.clone());
        async move {
            ctx.status(format!("busy{EVIL}")).await?;
            gate.pass(&ctx).await?;
            ctx.block(Content::text(format!("out{EVIL}\x1b[31mRED\x1b[0m\n"))).await?;
            ctx.flush().await?;
            ctx.ask("name", question).await?;
            Ok::<String, ToolError>(format!("result{EVIL}"))
        }
    };
    let fixture = TestServer::serve([Tool::raw("evil", "Does no good", json!({"type": "object"}), body).task(TaskMode::Always)]);
    let user = User::new();
    let mut window = Window::open(&user, &["call", &fixture.url(), "evil"]);
    window.is_busy_with(&format!("busy{shown}"));
    gate.open(1);
    window.asks(&format!("  Name{shown} (optional):"));
    assert!(window.text().contains(&format!("\nout{shown}RED\n")), "{}", window.text());
    assert_eq!(window.colour_of("RED"), Some(vt100::Color::Idx(1)), "colours are let through");
    assert!(window.text().contains(&format!("? Who?{shown}\n")), "{}", window.text());
    window.enter("");
    assert_eq!(window.end(), Some(0), "{}", window.text());
    assert_eq!(window.lines().last(), Some(&format!("result{shown}")));
    assert_eq!(window.effects(), [] as [&str; 0]);
    for harm in ["\x1b[2J", "\x1b]", "\x07", "\u{9b}", "\u{202e}"] {
        assert!(!window.raw().contains(harm), "{harm:?} in {:?}", window.raw());
    }
}
