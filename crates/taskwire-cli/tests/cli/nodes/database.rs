//! The database of nodes: one that cannot be used is refused without showing its password, and one that was away loses nothing.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
};

use serde_json::{Value, json};
use taskwire_testkit::{Installation, Server as Database};

use super::{Cluster, address, counting, is_call_of, is_counted};
use crate::{
    commands::{
        command_server::{CommandServer, message, result_text},
        server_dir::{ServerDir, until},
    },
    kit::{Server, TempDir, run},
    user::User,
};

const ANY_PORT: &str = "127.0.0.1:0";
const PASSWORD: &str = "s3cret";
/// Lines of a command that takes 10 ms for each: together they take longer than a lease.
const LINES_OF_A_LEASE: usize = 800;

/// The program ends with this code and these words, and shows nobody the password.
#[track_caller]
fn is_refused(exit: i32, args: &[&str], expected: &str) {
    let (code, output, errors) = run(args);
    assert_eq!(code, Some(exit), "{args:?}: {output} {errors}");
    assert!(errors.contains(expected), "`{expected}` in: {errors}");
    assert!(!errors.contains(PASSWORD) && !output.contains(PASSWORD), "the password is shown: {output} {errors}");
}

/// The same of a server and of a list of its nodes, for what a file says.
#[track_caller]
fn is_refused_file([of_serve, of_nodes]: [i32; 2], text: &str, expected: &str) {
    let dir = TempDir::new();
    let (file, data) = (dir.join("taskwire.toml"), dir.join("data"));
    fs::write(&file, text).expect("a file");
    is_refused(of_serve, &["serve", &file, "--listen", ANY_PORT, "--data", &data], expected);
    is_refused(of_nodes, &["nodes", &file], "taskwire: ");
}

/// The head of an answer, in small letters.
fn head_of(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.split("\r\n\r\n").next().unwrap_or_default().to_ascii_lowercase()
}

fn probed(node: &CommandServer, path: &str) -> String {
    let mut stream = TcpStream::connect(address(node)).expect("the node is there");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it takes requests");
    head_of(stream)
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_database_that_cannot_be_used_is_refused_with_the_reason_and_without_the_password() {
    let database = Database::start_fast(&Installation::of(18));
    database.psql(&format!(
        "CREATE ROLE node LOGIN PASSWORD '{PASSWORD}'; CREATE SCHEMA newer;
        CREATE TABLE newer.meta(key text PRIMARY KEY, number bigint, bytes bytea); INSERT INTO newer.meta VALUES ('format', 99)"
    ));
    database.write_file("pg_hba.conf", "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n");
    database.psql("SELECT pg_reload_conf()");
    let url = |user: &str, name: &str| format!("postgres://{user}@127.0.0.1:{}/{name}", database.port());
    let known = url(&format!("node:{PASSWORD}"), "postgres");
    let wrong = url(&format!("node:{PASSWORD}-not"), "postgres");
    until("passwords count", || database.try_psql_at(&wrong, "SELECT 1").is_err().then_some(()));
    let (plain, schema) = (String::new(), |name: &str| format!("[postgres]\nschema = \"{name}\""));
    for (store, more, expected) in [
        (&format!("postgres://node:{PASSWORD}@127.0.0.1:1/tasks"), &plain, "cannot be reached: 127.0.0.1:1/tasks: "),
        (&wrong, &plain, "password authentication failed for user \"node\""),
        (&url(&format!("node:{PASSWORD}"), "none"), &plain, "database \"none\" does not exist"),
        (&url(&format!("node:@{PASSWORD}"), "postgres"), &plain, "it has more than one `@`: write `%40`"),
        (&format!("{known}?sslmode=require"), &plain, "server does not support TLS"),
        (&format!("{known}?speed=high"), &plain, "unknown option `speed`"),
        (&known, &plain, "permission denied for database postgres"),
        (&known, &schema("Mine"), "`Mine` cannot be the name of the schema"),
        (&database.url(), &schema("newer"), "has format 99, this release knows up to"),
    ] {
        is_refused_file([1, 3], &format!("store = \"{store}\"\n{more}\n"), expected);
    }
    // With the right to make its tables it serves, and writes no password anywhere.
    database.psql("GRANT CREATE ON DATABASE postgres TO node");
    let dir = ServerDir::new(&format!("store = \"{known}\"\ndemo = true\n"));
    let server = dir.start();
    let id = server.begin("count_far", json!({"to": 1}));
    assert_eq!(result_text(&server.result(&id)), "Counted to 1 in 1 attempts.");
    assert_eq!(server.stop().code(), Some(0));
    assert!(!dir.read("server.log").contains(PASSWORD), "{}", dir.read("server.log"));
}

#[test]
fn a_store_that_is_mistyped_is_refused_without_its_password() {
    for scheme in ["mysql://", "postgres:/", "Postgres://"] {
        let store = format!("{scheme}node:{PASSWORD}@db.example/tasks");
        is_refused(2, &["serve", "--store", &store], "`postgres://");
        is_refused(2, &["nodes", "--store", &store], "`postgres://");
        is_refused_file([2, 2], &format!("store = \"{store}\"\n"), "`postgres://");
        let listen_url = format!("store = \"postgres://db.example/tasks\"\n[postgres]\nlisten_url = \"{store}\"\n");
        is_refused_file([2, 2], &listen_url, "`postgres://");
    }
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_data_directory_of_another_server_is_refused_before_anything_is_stored() {
    let database = Database::start_fast(&Installation::of(18));
    let dir = TempDir::new();
    let data = dir.join("data");
    drop(Server::start(&data));
    let serve = |data: &str, expected: &str| {
        is_refused(1, &["serve", "--listen", ANY_PORT, "--data", data, "--store", &database.url()], expected);
    };
    serve(&data, &format!("{data} has tasks that are kept: choose another directory"));
    assert_eq!(database.psql("SELECT to_regnamespace('taskwire') IS NULL"), "t", "nothing was made");
    let node = ServerDir::new(&format!("store = \"{}\"\ndemo = true\n", database.url()));
    let server = node.start();
    serve(&node.path("data"), &format!("is in use by process {}", server.pid()));
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_database_that_may_lose_what_it_has_acknowledged_is_complained_of_also_when_that_begins_later() {
    /// Ends every connection of a node, which then makes new ones.
    const END_ALL: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'taskwire %'";
    let settings = ["fsync = off", "synchronous_commit = local", "synchronous_standby_names = 'nobody'"];
    let database = Database::start_with(&Installation::of(18), &settings);
    let dir = ServerDir::new(&format!("store = \"{}\"\ndemo = true\n", database.url()));
    let server = dir.start();
    let complaints = |words: &str| dir.read("server.log").matches(words).count();
    let (of_disk, of_standby, of_commits) = ("fsync = off", "synchronous_commit = local", "synchronous_commit = off");
    assert_eq!([of_disk, of_standby, of_commits].map(complaints), [1, 1, 0], "each once, however many connections there are");
    database.psql("ALTER SYSTEM SET synchronous_commit = off");
    database.psql("SELECT pg_reload_conf()");
    until("the new setting", || (database.psql("SHOW synchronous_commit") == "off").then_some(()));
    assert_ne!(database.psql(END_ALL), "0");
    until("the complaint", || (complaints(of_commits) == 1).then_some(()));
    assert_eq!([of_disk, of_standby].map(complaints), [1, 1], "what was said before is not said again");
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_database_that_was_away_for_longer_than_a_lease_loses_nothing() {
    let (mut cluster, [a, b, c]) = Cluster::start("30s", "retry");
    let (id, far) = (a.begin("tally", json!({})), a.begin("count_far", json!({"to": 60})));
    counting(&b, &id, 1);
    let epochs = |cluster: &Cluster| -> Vec<Value> { cluster.listed().iter().map(|node| node["epoch"].clone()).collect() };
    let before = epochs(&cluster);
    cluster.database.stop_fast();
    let enough = cluster.written() + LINES_OF_A_LEASE;
    until("the command has gone on", || (cluster.written() >= enough).then_some(()));
    let call = json!({"name": "count_far", "arguments": {}});
    for node in [&a, &b, &c] {
        for (method, name, params) in [("tasks/get", &*id, json!({"taskId": id})), ("tools/call", "count_far", call.clone())] {
            let head = head_of(node.open(method, Some(name), &message(method, params).to_string()).expect("the node is there"));
            assert!(head.starts_with("http/1.1 503 ") && head.contains("\r\nretry-after: 1"), "{method}: {head}");
        }
        assert!(probed(node, "/healthz").starts_with("http/1.1 200 "), "it is well");
    }
    is_refused(3, &["nodes", "--store", &cluster.database.url()], "the store cannot be reached");
    let user = User::new();
    let mut calling = user.start(&["call", &b.url(), "count_far", "to=3"]);
    calling.err.until("connection lost");
    cluster.database.start_again();
    is_call_of(&calling.end(), 3);
    for node in [&a, &b, &c] {
        until("an answer", || node.send("tasks/get", json!({"taskId": id}))["error"].is_null().then_some(()));
        assert!(probed(node, "/readyz").starts_with("http/1.1 200 "), "it takes calls again");
    }
    assert_eq!(epochs(&cluster), before, "nobody was declared dead who was cut off with all others");
    cluster.goes_on(&b, &id);
    assert_eq!(cluster.end(&b, &id).len(), 1, "it was started once");
    assert_eq!(cluster.notes.read("asked"), "", "nobody asked it to end");
    b.result(&far);
    is_counted(&b.text(&far), 60);
}
