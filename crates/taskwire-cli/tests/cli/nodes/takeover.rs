//! A command whose node is gone: it goes on if its server comes back in time; if not, it ends before another node runs it again.

use serde_json::json;
use taskwire_testkit::{Installation, Server as Database};

use super::{Cluster, counting, runs};
use crate::{commands::server_dir::until, kit::signal};

/// Long enough for a server to come back, and to be away for longer than its lease.
const LONG: &str = "20s";
/// Long enough for a lease to be renewed late.
const SHORT: &str = "8s";

#[test]
#[ignore = "needs PostgreSQL"]
fn a_command_goes_on_under_its_server_that_was_killed_and_comes_back_while_others_are_there() {
    let (cluster, [mut a, b, _c]) = Cluster::start(LONG, "retry");
    let id = a.begin("tally", json!({}));
    counting(&b, &id, 1);
    for _ in 0..3 {
        a.kill();
        a = cluster.nodes[0].start();
        cluster.goes_on(&b, &id);
    }
    assert_eq!(cluster.end(&a, &id).len(), 1, "it was started once");
    assert_eq!(cluster.notes.read("asked"), "", "nobody asked it to end");
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_command_whose_node_is_gone_ends_before_another_node_runs_it_again() {
    let (cluster, [a, b, _c]) = Cluster::start(SHORT, "retry");
    let id = a.begin("tally", json!({}));
    let told = counting(&b, &id, 1);
    a.kill();
    cluster.is_started_again();
    assert_eq!(cluster.end(&b, &id).len(), 2);
    assert!(b.text(&id).starts_with(&told), "what it had told stays");
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_command_with_more_time_to_end_than_other_nodes_give_it_is_killed_before_one_of_them_runs_it_again() {
    let keys = "kill_after = \"1m\"\non_interrupt = \"retry\"";
    let (cluster, [a, b, _c]) = Cluster::start_on(Database::start_fast(&Installation::of(18)), SHORT, keys);
    let id = a.begin("tally", json!({}));
    counting(&b, &id, 1);
    a.kill();
    cluster.is_started_again();
    assert_eq!(cluster.end(&b, &id).len(), 2);
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_command_that_may_not_run_again_has_failed_when_its_node_is_gone() {
    let (cluster, [a, b, _c]) = Cluster::start(SHORT, "fail");
    let id = a.begin("tally", json!({}));
    let told = counting(&b, &id, 1);
    a.kill();
    let task = b.ended(&id);
    assert_eq!(task["status"], "failed", "{task}");
    let message = task["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("its server was gone for too long") && message.contains("`on_interrupt`"), "it says why: {task}");
    let text = b.text(&id);
    assert!(runs(&text).len() == 1 && text.starts_with(&told), "what it had told stays: {text}");
    assert_eq!(cluster.notes.lines("starts", 1).len(), 1, "it was not started again");
    cluster.notes.is_quiet();
}

#[test]
#[ignore = "needs PostgreSQL"]
fn what_a_node_writes_that_was_stopped_for_too_long_changes_nothing() {
    let (cluster, [a, b, _c]) = Cluster::start(SHORT, "retry");
    let id = a.begin("tally", json!({}));
    counting(&b, &id, 1);
    signal(a.pid(), "STOP");
    cluster.notes.lines("starts", 2);
    // The first command has written much more, which only the node knows that is stopped.
    let told = counting(&b, &id, 2);
    signal(a.pid(), "CONT");
    until("it has another lease", || cluster.alive().contains_key("ann").then_some(()));
    assert_eq!(cluster.end(&b, &id).len(), 2);
    let text = b.text(&id);
    assert!(text.starts_with(&told), "{text}");
    assert_eq!((a.text(&id), a.result(&id)), (text, b.result(&id)), "it tells what the others tell");
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_node_that_comes_back_does_not_run_at_once_what_a_third_one_may_still_run() {
    let (cluster, [a, b, c]) = Cluster::start(SHORT, "retry");
    let id = a.begin("tally", json!({}));
    counting(&b, &id, 1);
    signal(a.pid(), "STOP");
    cluster.notes.lines("starts", 2);
    counting(&b, &id, 2);
    signal(a.pid(), "CONT");
    until("it has another lease", || cluster.alive().contains_key("ann").then_some(()));
    // The first node may still have the files of the first command. The one that runs now is another.
    let (runs_it, other) = if cluster.alive()["ben"] == 1 { (b, c) } else { (c, b) };
    runs_it.kill();
    cluster.notes.lines("starts", 3);
    counting(&other, &id, 3);
    assert_eq!(cluster.end(&other, &id).len(), 3);
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_node_that_was_stopped_for_longer_than_its_lease_goes_on_with_its_command() {
    let (cluster, [a, b, _c]) = Cluster::start(LONG, "retry");
    let id = a.begin("tally", json!({}));
    let told = counting(&b, &id, 1);
    signal(a.pid(), "STOP");
    until("the others say that it is gone", || (cluster.listed().len() == 2).then_some(()));
    signal(a.pid(), "CONT");
    until("it has its task again", || (cluster.alive().get("ann") == Some(&1)).then_some(()));
    cluster.goes_on(&b, &id);
    assert_eq!(cluster.end(&b, &id).len(), 1, "it was started once");
    assert!(b.text(&id).starts_with(&told));
    assert_eq!(cluster.notes.read("asked"), "", "nobody asked it to end");
}
