//! Hostile clients that can reach the port of a server: how it responds, that other clients are served, and how much memory it takes.

use std::{io::Write, net::TcpStream};

use serde_json::json;

use crate::kit::{Server, TIMEOUT, TempDir, request};

/// A good request but for these lines at its head, instead of `Host`.
fn addressed(server: &Server, target: &str, lines: &str) -> (u16, String) {
    let body = request(1, "tools/list", json!({})).to_string();
    let kinds = "Content-Type: application/json\r\nAccept: application/json, text/event-stream";
    let names = "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/list\r\nConnection: close";
    server.exchange(&format!("POST {target} HTTP/1.1\r\n{lines}{kinds}\r\n{names}\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
}

#[test]
fn what_is_not_clearly_addressed_to_the_server_is_turned_away() {
    let dir = TempDir::new();
    let server = Server::start(&dir.join("data"));
    for (target, lines) in
        [("/mcp", "Host: localhost\r\n"), ("/mcp", "Host: [::1]:80\r\n"), ("http://localhost/mcp", "Host: localhost\r\n")]
    {
        assert_eq!(addressed(&server, target, lines).0, 200, "{target} {lines}");
    }
    for (target, lines, words) in [
        ("/mcp", "", "`host` is missing"),
        ("/mcp", "Host: [::1].evil.com\r\n", "is no host"),
        ("/mcp", "Host: localhost:80@evil.com\r\n", "is no host"),
        ("/mcp", "Host: localhost\r\nHost: evil.com\r\n", "`host` comes more than once"),
        ("http://evil.com/mcp", "Host: localhost\r\n", "is for `evil.com`"),
        ("/mcp", "Host: localhost\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n", "`authorization` comes more than once"),
    ] {
        let (status, body) = addressed(&server, target, lines);
        assert_eq!(status, 400, "{target} {lines}: {body}");
        assert!(body.contains(words), "{target} {lines}: {body}");
    }
    assert_eq!(addressed(&server, "/mcp", "Host: evil.com\r\n").0, 403);
}

#[test]
fn silent_connections_keep_nobody_out() {
    let dir = TempDir::new();
    let file = dir.join("taskwire.toml");
    let tokens = "tokens = [{ token = \"secret\", caller = \"me\" }]";
    std::fs::write(&file, format!("demo = true\n[http]\nconnections = 20\n[auth]\n{tokens}\n")).expect("a file");
    let server = Server::configured(&file, &dir.join("data"));
    let connect = |sent: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("a connection");
        stream.write_all(sent.as_bytes()).expect("writable");
        stream
    };
    let silent: Vec<TcpStream> = ["", "POST /mcp HTTP/1.1\r\nHost: loc"].into_iter().cycle().take(40).map(connect).collect();
    let known = "Host: localhost\r\nAuthorization: Bearer secret\r\n";
    for _ in 0..40 {
        assert_eq!(addressed(&server, "/mcp", known).0, 200);
    }
    drop(silent);
}

#[test]
fn a_server_that_may_open_few_files_says_so_and_serves_on() {
    let dir = TempDir::new();
    let server = Server::with_open_files(64, &dir.join("data"));
    let warning = server.process.wait_for_error_line("http.connections");
    assert!(warning.contains("64 open files") && warning.contains("ulimit"), "{warning}");
    let connect = |_| TcpStream::connect(("127.0.0.1", server.port)).expect("a connection");
    let mut silent: Vec<TcpStream> = Vec::new();
    for _ in 0..4 {
        silent.extend((0..50).map(connect));
        for _ in 0..5 {
            assert_eq!(server.probe("/readyz").0, 200, "after {} silent connections", silent.len());
        }
    }
    server.ask("tools/call", json!({"name": "countdown", "arguments": {"from": 1}}));
}

/// Kilobytes of memory that a process has.
#[cfg(target_os = "linux")]
fn resident(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("the kernel tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[cfg(target_os = "linux")]
#[test]
fn bodies_that_never_end_take_so_much_memory_and_no_more() {
    const SENT: usize = 1 << 20;
    let dir = TempDir::new();
    let server = Server::start(&dir.join("data"));
    let small = || server.ask("tools/list", json!({}));
    small();
    let before = resident(server.process.id());
    let head = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", 4 * SENT);
    let (piece, mut most) = (vec![b' '; SENT], before);
    let mut connections = Vec::new();
    for n in 0..400 {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("a connection");
        stream.set_write_timeout(Some(TIMEOUT)).expect("a patience");
        // It is refused when there is no more room, before it has sent all.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&piece));
        connections.push(stream);
        if n % 20 == 0 {
            most = most.max(resident(server.process.id()));
            small();
        }
    }
    most = most.max(resident(server.process.id()));
    // 48 MiB of bodies (`http.all_bodies_bytes`), a little for each connection, and what the allocator has not returned. All would be 400 MiB and more.
    let grown = most - before;
    assert!(grown < 160 * 1024, "{grown} kB more than before");
    small();
}
