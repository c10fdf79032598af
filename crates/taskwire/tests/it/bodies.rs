//! Bodies that are being read or answered: all of them together have a bound, and small ones need no room.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use taskwire::{
    clock::ManualClock,
    server::{Config, HttpConfig},
    tool::TaskMode,
};
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet};

use crate::{
    http::Connection,
    kit::{Client, Response, TestServer, manual_clock, read_response, with_timeout},
    tasks::{Gate, quick, registry, two_callers},
};

const KIB: usize = 1024;
/// Of one body, and of all of them.
const ROOM: usize = 256 * KIB;

fn with_room(config: Config) -> Config {
    Config { body_bytes: ROOM, http: HttpConfig { all_bodies_bytes: ROOM, ..HttpConfig::default() }, ..config }
}

async fn start(config: Config) -> (TestServer, ManualClock, Gate) {
    let (clock, gate) = (manual_clock(), Gate::new());
    let tools = registry([quick("quick"), gate.tool("slow").task(TaskMode::Never)]);
    (TestServer::start_with(tools, with_room(config), Arc::new(clock.clone())).await, clock, gate)
}

/// A call with so many bytes of arguments.
fn call(tool: &str, bytes: usize) -> Value {
    json!({"name": tool, "arguments": {"text": "x".repeat(bytes)}})
}

/// There was no room for it, and that was said.
#[track_caller]
fn had_no_room(response: &Response) {
    assert_eq!((response.status, response.code(), response.header("retry-after")), (503, -31002, Some("1")));
    let said = response.json()["error"]["message"].as_str().expect("words").to_owned();
    assert!(said.contains("`http.all_bodies_bytes`"), "{said}");
}

/// Sends a body of a hundred KiB but for its last byte, and gives what is said to that.
async fn half(client: Client, chunked: bool) -> Response {
    let message = client.message(client.next_id(), "tools/call", json!({}));
    let mut head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\n".to_owned();
    for (key, value) in client.headers(&message) {
        head.push_str(&format!("{key}: {value}\r\n"));
    }
    head.push_str(&match chunked {
        true => format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", 100 * KIB),
        false => format!("Content-Length: {}\r\n\r\n", 100 * KIB),
    });
    let mut stream = TcpStream::connect(("127.0.0.1", client.port())).await.expect("a connection");
    stream.write_all(head.as_bytes()).await.expect("writable");
    // It may be refused before all has come.
    let _ = stream.write_all(&vec![b' '; 100 * KIB - 1]).await;
    read_response(stream).await
}

/// So many bodies that never end that two of them have most of the room, and there is none for the others.
async fn crowd(client: &Client) -> JoinSet<Response> {
    let mut halves = JoinSet::new();
    for _ in 0..8 {
        halves.spawn(half(client.clone(), false));
    }
    for _ in 0..6 {
        let refused = with_timeout("a refusal", halves.join_next()).await.expect("one of them").expect("no panic");
        had_no_room(&refused);
    }
    assert_eq!(halves.len(), 2);
    halves
}

#[tokio::test]
async fn all_bodies_together_have_a_bound_and_small_ones_are_served_beside_them() {
    let (server, clock, _gate) = start(Config::default()).await;
    let client = server.client();
    let mut halves = crowd(&client).await;
    for _ in 0..10 {
        assert_eq!(client.call("quick", json!({"text": "x".repeat(2 * KIB)})).await["content"][0]["text"], "done");
    }
    had_no_room(&client.raw("tools/call", call("quick", 100 * KIB)).await);
    had_no_room(&with_timeout("a refusal", half(client.clone(), true)).await);
    assert!(halves.try_join_next().is_none(), "those that have room keep it");
    // A body that is on its way for too long does not keep others out.
    clock.advance(Duration::from_secs(1));
    assert_eq!(client.raw("tools/call", call("quick", 100 * KIB)).await.status, 200);
    had_no_room(&with_timeout("a refusal", halves.join_next()).await.expect("the first of them").expect("no panic"));
    assert!(halves.try_join_next().is_none(), "the other one need not go");
}

#[tokio::test]
async fn a_body_that_breaks_off_gives_its_room_back() {
    let (server, _clock, _gate) = start(Config::default()).await;
    let client = server.client();
    crowd(&client).await.shutdown().await;
    let served = async {
        // The server has yet to notice that they are gone.
        while client.raw("tools/call", call("quick", 200 * KIB)).await.status != 200 {}
    };
    with_timeout("the room of those that are gone", served).await;
}

#[tokio::test]
async fn a_call_that_is_being_answered_keeps_its_room_and_gives_it_back() {
    let (server, clock, gate) = start(Config::default()).await;
    let client = server.client();
    let held = tokio::spawn({
        let client = client.clone();
        async move { client.raw("tools/call", call("slow", 200 * KIB)).await }
    });
    with_timeout("the start of the call", gate.started.wait()).await;
    clock.advance(Duration::from_secs(2));
    had_no_room(&client.raw("tools/call", call("quick", 100 * KIB)).await);
    gate.go.send();
    assert_eq!(with_timeout("the answer", held).await.expect("no panic").status, 200);
    assert_eq!(client.raw("tools/call", call("quick", 100 * KIB)).await.status, 200);
}

#[tokio::test]
async fn one_caller_does_not_take_the_room_of_others() {
    let config = Config { body_bytes: 64 * KIB, http: HttpConfig { all_bodies_bytes: ROOM, ..HttpConfig::default() }, ..two_callers() };
    let gate = Gate::new();
    let tools = registry([quick("quick"), gate.tool("slow").task(TaskMode::Never)]);
    let server = TestServer::start_with(tools, config, Arc::new(manual_clock())).await;
    let (ann, bob) = (server.client().with_token("ann-token"), server.client().with_token("bob-token"));
    let mut held = JoinSet::new();
    for n in 0..2 {
        let ann = ann.clone();
        held.spawn(async move { ann.raw("tools/call", call("slow", 60 * KIB + n)).await });
        with_timeout("the start of a call", gate.started.wait()).await;
    }
    had_no_room(&ann.raw("tools/call", call("quick", 60 * KIB)).await);
    assert_eq!(bob.raw("tools/call", call("quick", 60 * KIB)).await.status, 200);
}

#[tokio::test]
async fn a_body_that_comes_byte_by_byte_is_read_as_it_was_sent() {
    let (server, _clock, _gate) = start(Config::default()).await;
    let client = server.client();
    let message = client.message(client.next_id(), "tools/call", call("quick", 10 * KIB));
    let lines: String = client.headers(&message).iter().skip(1).map(|(key, value)| format!("{key}: {value}\r\n")).collect();
    let body = message.to_string();
    let mut connection = Connection::half_sent(&server, &lines, body.len(), &body[..1]).await;
    for piece in body.as_bytes()[1..].chunks(37) {
        connection.send(std::str::from_utf8(piece).expect("plain text")).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(connection.answer(&message).await["result"]["content"][0]["text"], "done");
}
