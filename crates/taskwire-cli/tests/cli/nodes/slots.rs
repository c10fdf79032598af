//! Where commands run that wait for a slot: first on the node that was called, then wherever there is room.

use std::collections::BTreeSet;

use serde_json::json;

use super::{Cluster, NAMES};
use crate::commands::{command_server::result_text, server_dir::until};

/// The node on which a command has begun that is named so.
fn place(cluster: &Cluster, name: &str) -> String {
    until("it begins", || {
        let begun = cluster.notes.read("begun");
        begun.lines().find_map(|line| line.strip_prefix(&format!("{name} on ")).map(str::to_owned))
    })
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_command_beyond_the_concurrency_of_its_node_runs_where_there_is_room() {
    let (cluster, [a, b, c]) = Cluster::start("30s", "fail");
    let names = ["one", "two", "three"];
    let ids = names.map(|name| a.begin("gated", json!({"name": name})));
    assert_eq!(place(&cluster, "one"), "ann", "the node that was called is the first");
    let places: BTreeSet<String> = names.iter().map(|name| place(&cluster, name)).collect();
    assert_eq!(places, NAMES.map(str::to_owned).into(), "each has room for one");
    // Now there is no room anywhere.
    let last = c.begin("gated", json!({"name": "four"}));
    assert!(b.message_with(&last, "waiting").contains("`concurrency`"));
    cluster.notes.write("go-two", "");
    assert_eq!(place(&cluster, "four"), place(&cluster, "two"), "wherever there is room first");
    for name in ["one", "three", "four"] {
        cluster.notes.write(&format!("go-{name}"), "");
    }
    for (id, name) in ids.iter().chain([&last]).zip(["one", "two", "three", "four"]) {
        assert_eq!(result_text(&c.result(id)), format!("{name} is done\n"));
    }
    assert_eq!(cluster.notes.read("begun").lines().count(), 4, "each began once");
    cluster.notes.is_quiet();
}

#[test]
#[ignore = "needs PostgreSQL"]
fn what_waits_for_a_slot_of_a_node_that_ends_begins_on_another_one() {
    let (cluster, [a, b, c]) = Cluster::start("30s", "fail");
    let occupied = [(&b, "ben"), (&c, "cid")].map(|(node, name)| {
        let id = node.begin("gated", json!({"name": name}));
        assert_eq!(place(&cluster, name), name);
        id
    });
    let runs = a.begin("gated", json!({"name": "one"}));
    assert_eq!(place(&cluster, "one"), "ann");
    let waits = a.begin("gated", json!({"name": "two"}));
    assert!(a.message_with(&waits, "waiting").contains("`concurrency`"));
    assert_eq!(a.stop().code(), Some(0));
    cluster.notes.write("go-ben", "");
    assert_eq!(place(&cluster, "two"), "ben");
    for name in ["two", "cid"] {
        cluster.notes.write(&format!("go-{name}"), "");
    }
    assert_eq!(result_text(&c.result(&waits)), "two is done\n");
    // What had begun there goes on when its server is back.
    let a = cluster.nodes[0].start();
    cluster.notes.write("go-one", "");
    assert_eq!(result_text(&a.result(&runs)), "one is done\n");
    for id in &occupied {
        c.result(id);
    }
    cluster.notes.is_quiet();
}
