//! Somebody sets the clock of the database, by which nodes judge each other's leases: a command goes on while its node lives, and is
//! started again neither too early nor too late when that is gone.

use serde_json::json;
use taskwire_testkit::{Installation, Server as Database};

use super::{Cluster, LEASE, NAMES, counting};
use crate::commands::{command_server::CommandServer, server_dir::until};

/// In seconds.
const HOUR: i64 = 3_600;
/// Longer than it takes until a node is said to be dead, so that its commands still run then.
const LONG: &str = "20s";
/// Long enough for a lease to be renewed late.
const SHORT: &str = "8s";

/// Three nodes on a database whose clock can be set, and a command that runs on the first one.
fn counting_on_three_nodes(orphan_after: &str) -> (Cluster, [CommandServer; 3], String) {
    let database = Database::start_fast(&Installation::of(18));
    database.own_clock();
    let keys = "kill_after = \"1s\"\non_interrupt = \"retry\"";
    let (cluster, nodes) = Cluster::start_on(database, orphan_after, keys);
    let id = nodes[0].begin("tally", json!({}));
    counting(&nodes[1], &id, 1);
    (cluster, nodes, id)
}

/// Sets the clock, and waits until each node has a lease of the new time. The command goes on meanwhile.
fn set_clock(cluster: &Cluster, seconds_ahead: i64, node: &CommandServer, id: &str) {
    cluster.database.set_clock(seconds_ahead);
    until("new leases", || {
        let left: Vec<u128> = cluster.listed().iter().filter_map(|row| row["leaseLeftMs"].as_u64()).map(u128::from).collect();
        (left.len() == NAMES.len() && left.iter().all(|left| (1..=LEASE.as_millis()).contains(left))).then_some(())
    });
    cluster.goes_on(node, id);
    assert_eq!(cluster.notes.read("asked"), "", "nobody asks it to end");
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_command_is_not_started_again_early_where_the_clock_of_the_database_is_set_forward() {
    let (cluster, [a, b, _c], id) = counting_on_three_nodes(LONG);
    set_clock(&cluster, HOUR, &b, &id);
    a.kill();
    until("the others say that it is gone", || (cluster.listed().len() == 2).then_some(()));
    // By this clock it is gone for an hour already.
    cluster.database.set_clock(2 * HOUR);
    cluster.is_started_again();
    assert_eq!(cluster.end(&b, &id).len(), 2);
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_node_that_is_lost_after_the_clock_of_the_database_was_set_back_is_replaced_in_time() {
    let (cluster, [a, b, _c], id) = counting_on_three_nodes(SHORT);
    set_clock(&cluster, -HOUR, &b, &id);
    a.kill();
    cluster.is_started_again();
    assert_eq!(cluster.end(&b, &id).len(), 2);
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_node_that_is_lost_before_the_clock_of_the_database_is_set_back_is_replaced_in_time() {
    // Before the others have said that it is dead, and after.
    for nodes_by_then in [3, 2] {
        let (cluster, [a, b, _c], id) = counting_on_three_nodes(SHORT);
        a.kill();
        until("what the others say of it", || (cluster.listed().len() == nodes_by_then).then_some(()));
        cluster.database.set_clock(-HOUR);
        cluster.is_started_again();
        assert_eq!(cluster.end(&b, &id).len(), 2, "{nodes_by_then}");
    }
}
