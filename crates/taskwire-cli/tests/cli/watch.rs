//! `taskwire watch`: follows a task again, at the exact byte where its output was left.

use serde_json::{Value, json};
use taskwire::client::CallRecorder;

use crate::{
    fixture::{Gate, TestServer, steps},
    kit::{Server, TempDir},
    user::User,
};

const TEXTS: [&str; 4] = ["one ", "two\n", "three ", "four"];

/// A tool that writes the four texts, and says them all at its end.
fn four(gate: &Gate) -> TestServer {
    TestServer::serve([steps("four", gate, TEXTS, &TEXTS.concat())])
}

/// A task of this user that has shown its first two texts and was left.
fn left_in_the_middle(user: &User, fixture: &TestServer, gate: &Gate) -> (String, String) {
    let mut running = user.start(&["call", &fixture.url(), "four"]);
    let task = running.task();
    gate.open(2);
    running.out.until("one two\n");
    running.signal("TERM");
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "one two\n"), "{ended:?}");
    let way_back = ended.err.lines().find_map(|line| line.strip_prefix("taskwire: left running; come back with: taskwire "));
    (task, way_back.unwrap_or_else(|| panic!("no way back: {}", ended.err)).to_owned())
}

#[test]
fn output_goes_on_where_it_was_left() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = four(&gate);
    let (_, way_back) = left_in_the_middle(&user, &fixture, &gate);
    gate.open(1);
    let words: Vec<&str> = way_back.split(' ').collect();
    let mut running = user.start(&words);
    running.out.until("three ");
    gate.open(2);
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "three four\n"), "nothing twice, and the line is ended: {ended:?}");
    assert_eq!(ended.err, "", "who comes back knows the task");
}

#[test]
fn what_was_shown_wholly_is_not_shown_again_unless_one_asks() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = four(&gate);
    let (task, _) = left_in_the_middle(&user, &fixture, &gate);
    gate.open(3);
    assert_eq!(user.run(&["watch", &task]).out, "three four\n");
    let again = user.run(&["watch", &task]);
    let nothing = "taskwire: nothing new: the task has ended (completed) and was shown completely; --from 0 shows it again\n";
    assert_eq!((again.code, again.out.as_str(), again.err.as_str()), (Some(0), "", nothing));
    for (from, expected) in [("0", "one two\nthree four\n"), ("1", "two\nthree four\n"), ("3", "four\n")] {
        let ended = user.run(&["watch", &task, "--from", from]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), expected), "from {from}: {ended:?}");
    }
    let lines = user.run(&["watch", &task, "--json"]).json();
    let events: Vec<&Value> = lines.iter().map(|line| &line["event"]).filter(|event| *event != "status").collect();
    assert_eq!(events, ["task", "result"], "{lines:?}");
}

#[test]
fn looking_elsewhere_does_not_move_the_place() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = four(&gate);
    let (task, _) = left_in_the_middle(&user, &fixture, &gate);
    gate.open(1);
    let mut running = user.start(&["watch", &task, "--from", "0"]);
    running.out.until("one two\nthree ");
    running.signal("TERM");
    assert_eq!(running.end().code, Some(0));
    gate.open(2);
    assert_eq!(user.run(&["watch", &task]).out, "three four\n");
}

#[test]
fn programs_go_on_at_the_same_place() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = four(&gate);
    let (task, _) = left_in_the_middle(&user, &fixture, &gate);
    gate.open(3);
    let ended = user.run(&["watch", &task, "--json"]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    let lines = ended.json();
    let seqs: Vec<&Value> = lines.iter().filter(|line| line["event"] == "partial").map(|line| &line["seq"]).collect();
    assert_eq!(seqs, [&json!(2), &json!(3)], "{lines:?}");
    assert_eq!(lines[0], json!({"event": "task", "taskId": task, "server": fixture.url(), "era": "modern", "tool": "four"}));
    assert_eq!(lines.last().map(|line| &line["event"]), Some(&json!("result")));
}

#[test]
fn only_the_result_can_be_waited_for() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = four(&gate);
    let (task, _) = left_in_the_middle(&user, &fixture, &gate);
    gate.open(3);
    let ended = user.run(&["watch", &task, "--no-stream"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "one two\nthree four\n"), "whole, though some of it was shown: {ended:?}");
    assert_eq!(user.run(&["watch", &task, "--from", "1", "--no-stream"]).code, Some(2), "one or the other");
}

#[test]
fn who_saw_only_the_result_has_seen_it_all() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = four(&gate);
    let mut running = user.start(&["call", &fixture.url(), "four", "--no-stream"]);
    let task = running.task();
    gate.open(5);
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "one two\nthree four\n"), "{ended:?}");
    let again = user.run(&["watch", &task]);
    let nothing = "taskwire: nothing new: the task has ended (completed) and was shown completely; --from 0 shows it again\n";
    assert_eq!((again.code, again.out.as_str(), again.err.as_str()), (Some(0), "", nothing));
}

#[test]
fn who_stops_watching_cancels_nothing() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = four(&gate);
    let (task, _) = left_in_the_middle(&user, &fixture, &gate);
    gate.open(1);
    for (signal, json) in [("INT", false), ("TERM", false), ("INT", true)] {
        let args = ["watch", task.as_str(), "--from", "0", "--json"];
        let mut running = user.start(if json { &args } else { &args[..4] });
        running.out.until("three ");
        running.signal(signal);
        let ended = running.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        if json {
            assert_eq!(ended.json().last(), Some(&json!({"event": "status", "taskId": task, "detached": true})));
        } else {
            assert_eq!(ended.err, format!("taskwire: left running; come back with: taskwire watch {}\n", &task[..12]));
        }
        assert_eq!(user.task(&task)["status"], "working", "{signal}");
    }
}

#[test]
fn an_ended_task_ends_the_watch_with_its_own_code() {
    let (dir, user) = (TempDir::new(), User::new());
    let server = Server::start(&dir.join("data"));
    let url = server.url();
    let mut shown = user.start(&["call", &url, "fail", "how=request"]);
    let (tool, called_off) = (user.detach(&url, "fail"), user.detach(&url, "count_far"));
    assert_eq!(user.run(&["cancel", &called_off, "--wait"]).code, Some(0));
    assert_eq!(user.run(&["watch", &called_off]).code, Some(4));
    let ended = user.run(&["watch", &tool]);
    let expected = "Everything is going well so far.\nThe bridge is out: choose another way.\n";
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), expected), "{ended:?}");
    let failed = shown.task();
    assert_eq!(shown.end().code, Some(5));
    let again = user.run(&["watch", &failed]);
    assert_eq!((again.code, again.out.as_str()), (Some(5), ""), "{again:?}");
    assert!(again.err.contains("nothing new: the task has ended (failed)"), "{}", again.err);
}

#[test]
fn a_task_is_named_by_a_beginning_of_its_id_that_no_other_has() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = four(&gate);
    let (first, second) = (user.detach(&fixture.url(), "four"), user.detach(&fixture.url(), "four"));
    let common = first.chars().zip(second.chars()).take_while(|(a, b)| a == b).count();
    assert_eq!(user.task(&first[..=common])["taskId"], first.as_str());
    assert_eq!(user.task(&format!("{}#{}", fixture.url(), &second[..=common]))["taskId"], second.as_str());
    let ended = user.run(&["watch", &first[..common]]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended:?}");
    for name in [&first, &second] {
        assert!(ended.err.contains(&format!("{name} (four)")), "{}", ended.err);
    }
    assert!(!ended.err.contains("http"), "where they are helps nobody: {}", ended.err);
    let ended = user.run(&["watch", "zzz"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.starts_with("taskwire: no task that was started from here begins with `zzz`"), "{}", ended.err);
}

#[test]
fn who_names_no_task_watches_the_latest_that_was_not_seen_to_end() {
    let (user, gate) = (User::new(), Gate::closed());
    let none = user.run(&["watch"]);
    none.is_refusal("no task was started from here: `taskwire call SERVER TOOL` starts one");
    let fixture = TestServer::serve([steps("four", &gate, TEXTS, &TEXTS.concat()), steps("none", &gate, [] as [&str; 0], "done")]);
    let task = user.detach(&fixture.url(), "four");
    gate.open(5);
    assert_eq!(user.run(&["watch", &task]).code, Some(0));
    let second = user.detach(&fixture.url(), "four");
    let third = user.detach(&fixture.url(), "none");
    assert_eq!(user.run(&["cancel", &third, "--wait"]).code, Some(0));
    gate.open(5);
    let ended = user.run(&["watch"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "one two\nthree four\n"), "{ended:?}");
    assert!(ended.err.starts_with(&format!("taskwire: task {second} (four)\n")), "{ended:?}");
    let ended = user.run(&["watch"]);
    assert!(ended.err.starts_with(&format!("taskwire: task {third} (none)\n")), "all have ended: the latest: {ended:?}");
    assert_eq!(ended.code, Some(4), "{ended:?}");
}

#[test]
fn a_slip_in_the_name_of_a_task_leaves_nothing_behind() {
    let (user, gate) = (User::new(), Gate::closed());
    let fixture = four(&gate);
    let (typo, nobody) = (format!("{}#typo", fixture.url()), format!("{}#{}", fixture.url(), "0".repeat(32)));
    let (typo, nobody) = (typo.as_str(), nobody.as_str());
    for args in [vec![typo], vec![nobody], vec![nobody, "--from", "0"], vec![nobody, "--no-stream"]] {
        let args: Vec<&str> = ["watch"].into_iter().chain(args).collect();
        let ended = user.run(&args);
        assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""), "{ended:?}");
        assert!(ended.err.contains("the server does not know the task"), "{ended:?}");
        let listed = user.ledger().entries().expect("a ledger");
        assert!(listed.is_empty(), "{args:?}: {listed:?}");
    }
    let task = user.detach(&fixture.url(), "four");
    user.ledger().remove(user.ledger().find(&task).expect("listed").id).expect("forgotten");
    gate.open(5);
    assert_eq!(user.run(&["watch", &format!("{}#{task}", fixture.url())]).code, Some(0));
    assert_eq!(user.ledger().entries().expect("a ledger").len(), 1, "one that is there is known from now on");
}

#[test]
fn a_task_that_was_started_elsewhere_is_named_with_its_server() {
    let (owner, other, gate) = (User::new(), User::new(), Gate::closed());
    let fixture = four(&gate);
    let (task, _) = left_in_the_middle(&owner, &fixture, &gate);
    gate.open(3);
    let ended = other.run(&["watch", &format!("{}#{task}", fixture.url())]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "one two\nthree four\n"), "all of it: {ended:?}");
    let again = other.run(&["watch", &task[..12]]);
    assert_eq!((again.code, again.out.as_str()), (Some(0), ""), "from now on it is known here: {again:?}");
    other.configure(&format!("[server.demo]\nurl = \"{}\"\n", fixture.url()));
    assert_eq!(other.task(&format!("demo#{task}"))["status"], "completed");
    assert_eq!(owner.run(&["watch", &task]).out, "three four\n", "others have a place of their own");
    let nobody = "0".repeat(32);
    let ended = other.run(&["watch", &format!("{}#{nobody}", fixture.url())]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""), "{ended:?}");
    assert!(ended.err.contains(&format!("taskwire: the server does not know the task `{nobody}`")), "{}", ended.err);
}
