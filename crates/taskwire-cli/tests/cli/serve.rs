//! `taskwire serve` on HTTP: from its first line to its end, and over again.

use std::path::Path;

use serde_json::{Value, json};

use crate::{
    kit::{POLLS_MAX, Server, TempDir},
    user::{RunningCommand, User},
};

#[test]
fn the_demo_tools_are_served_until_a_signal_ends_it_in_good_order() {
    let dir = TempDir::new();
    let server = Server::start(&dir.join("data"));
    assert_eq!(server.probe("/readyz"), (200, "ok\n".to_owned()));
    let list = server.ask("tools/list", json!({}));
    let mut names: Vec<&str> = list["tools"].as_array().expect("a list").iter().filter_map(|tool| tool["name"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["bake", "count_far", "countdown", "fail", "greet_me", "tell_story"]);
    server.process.terminate();
    assert_eq!(server.process.ended().code(), Some(0));
}

#[test]
fn it_says_what_to_try_and_that_works() {
    let dir = TempDir::new();
    let server = Server::start(&dir.join("data"));
    assert_eq!(server.process.line(), Some(format!("  dashboard http://127.0.0.1:{}/", server.port)));
    let hint = server.process.line().expect("one more line");
    let command = hint.strip_prefix("  try it    taskwire ").unwrap_or_else(|| panic!("nothing to try: {hint}"));
    assert_eq!(command, format!("call {} countdown from=5", server.url()));
    let words: Vec<&str> = command.split(' ').map(|word| if word == "from=5" { "from=1" } else { word }).collect();
    assert_eq!(User::new().run(&words).out, "1…\nLift-off!\n");
}

#[test]
fn a_second_signal_ends_at_once() {
    let dir = TempDir::new();
    let server = Server::start(&dir.join("data"));
    server.start_task("count_far");
    server.process.terminate();
    let draining = (0..POLLS_MAX).any(|_| server.try_probe("/readyz") == Some(503));
    assert!(draining, "the first signal shows");
    server.process.terminate();
    assert_eq!(server.process.ended().code(), Some(130));
}

/// The number that the counting task has come to, if it has begun.
fn counted(task: &Value) -> Option<u64> {
    assert_eq!(task["status"], "working", "{task}");
    let (n, total) = task["statusMessage"].as_str()?.split_once('/').expect("progress");
    assert_eq!(total, "600");
    Some(n.parse().expect("a number"))
}

#[test]
fn a_task_goes_on_where_it_was_after_the_server_was_killed() {
    let dir = TempDir::new();
    let data = dir.join("data");
    let first = Server::start(&data);
    let id = first.start_task("count_far");
    let get = |server: &Server| server.ask("tasks/get", json!({"taskId": id}));
    let before = (0..POLLS_MAX).find_map(|_| counted(&get(&first)).filter(|n| *n >= 2)).expect("it counts");
    first.process.kill();
    let second = Server::start(&data);
    let taken_over = counted(&get(&second)).expect("what it had come to is not forgotten");
    let mut last = before;
    let further = (0..POLLS_MAX).find(|_| {
        let n = counted(&get(&second)).expect("what it had come to is not forgotten");
        assert!(n >= last && taken_over >= before, "{n} after {last}: it began anew");
        last = n;
        n >= taken_over + 2
    });
    assert!(further.is_some(), "it counts on");
    assert_eq!(second.ask("tasks/cancel", json!({"taskId": id})), json!({"resultType": "complete"}));
    assert_eq!(get(&second)["status"], "cancelled");
}

#[test]
fn a_configuration_has_its_tasks_beside_it_wherever_the_server_is_started() {
    let (user, elsewhere) = (User::new(), TempDir::new());
    let file = user.write("taskwire.toml", "listen = \"127.0.0.1:0\"\ndemo = true\n");
    let serve = |dir: &Path, file: &str| {
        let mut running = RunningCommand::start(user.command(&["serve", file]).current_dir(dir));
        let url = running.out.line_with("  endpoint  ");
        (running, url)
    };
    let (mut first, url) = serve(Path::new(&user.path("")), "taskwire.toml");
    assert!(first.out.text().contains(" tools, tasks in .taskwire\n"), "{}", first.out.text());
    let task = user.detach(&url, "count_far");
    first.kill();
    let (_second, url) = serve(elsewhere.path(), &file);
    assert_eq!(user.task(&format!("{url}#{task}"))["status"], "working", "it was taken over");
    assert!(!elsewhere.path().join(".taskwire").exists(), "nothing is left where it was started");
    let reloaded = user.run(&["reload", &file]);
    assert_eq!((reloaded.code, reloaded.out.as_str()), (Some(0), "unchanged: 6\n"), "{reloaded:?}");
}

#[test]
fn what_is_probably_not_meant_so_is_said_and_served() {
    let user = User::new();
    let tools = [
        "[[tool]]\nname = \"gone\"\ncommand = [\"./nope\"]\n",
        "[[tool]]\nname = \"shell\"\ncommand = [\"sh\", \"-c\", \"echo $1\", \"{x}\"]\ninput = { x = { type = \"string\" } }\n",
        "[[tool]]\nname = \"idle\"\ncommand = [\"true\"]\ninput = { y = { type = \"string\" } }\n",
        "[[tool]]\nname = \"evals\"\ncommand = [\"sh\", \"-c\", 'eval \"$1\"', \"sh\", \"{x}\"]\ninput = { x = { type = \"string\" } }\n",
        "[[tool]]\nname = \"file\"\ncommand = [\"sh\", \"{x}\"]\ninput = { x = { type = \"string\" } }\n",
        "[[tool]]\nname = \"builds\"\ncommand = [\"make\", \"V={x}\"]\ninput = { x = { type = \"string\" } }\n",
        "[[tool]]\nname = \"script\"\ncommand = [\"sh\", \"run.sh\", \"{x}\"]\ninput = { x = { type = \"string\" } }\n",
        "[[tool]]\nname = \"picky\"\ncommand = [\"echo\", \"{z}\"]\ninput = { z = { type = [\"string\", \"integer\"] } }\n",
    ];
    let file = user.write("taskwire.toml", &tools.concat());
    user.write("run.sh", "set -e\n. \"$1\"\n");
    let mut running = user.start(&["serve", &file, "--listen", "127.0.0.1:0", "--data", &user.path("data")]);
    running.out.line_with("  endpoint  ");
    for (tool, words) in [
        ("gone", "the program "),
        ("shell", "the first argument after the script is $0"),
        ("evals", "\"eval \\\"$1\\\"\": so the script runs a value of the caller"),
        ("file", "\"{x}\": whoever calls chooses the file that sh runs"),
        ("builds", "\"V={x}\": make expands the value"),
        ("script", "run.sh: \". \\\"$1\\\"\": so the script runs a value of the caller"),
        ("idle", "nothing uses the parameter `y`"),
        ("picky", "`/properties/z` has a list of types: Gemini, AutoGen and CrewAI refuse such a tool"),
    ] {
        running.err.until(&format!("warning: {file}: tool `{tool}`: {words}"));
    }
}
