//! The requests of the 2026-07-28 protocol that are measured, and what their answers must look like.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};

use crate::{
    http::{Response, find},
    serve::{Pour, Write, token},
};

/// What `echo` is asked to return.
pub const ECHO_TEXT: &str = "The quick brown fox jumps over the lazy dog, again and again, 0123";

/// What every request says about itself.
const META: &str = concat!(
    r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
    r#""io.modelcontextprotocol/clientInfo":{"name":"taskwire-bench","version":"0.1.0"},"#,
    r#""io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#,
);

/// What every request about partial results says about itself.
const PARTIALS_META: &str = concat!(
    r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
    r#""io.modelcontextprotocol/clientInfo":{"name":"taskwire-bench","version":"0.1.0"},"#,
    r#""io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{},"dev.taskwire/partials":{}}}}"#,
);

/// Readers of partial results are numbered from here, so that events to any of them have the same length.
pub const READER_ID: usize = 100_000;

/// A call of `echo`.
pub fn echo(addr: SocketAddr, id: usize) -> Vec<u8> {
    let params = format!(r#""name":"echo","arguments":{{"text":"{ECHO_TEXT}"}}"#);
    request(addr, id, "tools/call", Some("echo"), &params)
}

/// A call of a tool without arguments.
pub fn call(addr: SocketAddr, id: usize, tool: &str) -> Vec<u8> {
    call_with(addr, id, tool, "{}")
}

/// A call of the tool that writes.
pub fn write(addr: SocketAddr, write: &Write) -> Result<Vec<u8>> {
    Ok(call_with(addr, 0, "write", &serde_json::to_string(write)?))
}

/// A call of the tool that pours.
pub fn pour(addr: SocketAddr, id: usize, pour: &Pour) -> Result<Vec<u8>> {
    Ok(call_with(addr, id, "pour", &serde_json::to_string(pour)?))
}

/// A call of the tool that ticks: so often, and for the first time after so long.
pub fn tick(addr: SocketAddr, every: Duration, after: Duration) -> Vec<u8> {
    call_with(addr, 0, "tick", &format!(r#"{{"every_ms":{},"after_ms":{}}}"#, every.as_millis(), after.as_millis()))
}

/// The same request, of the caller that has this number.
pub fn authorized(request: &[u8], caller: usize) -> Vec<u8> {
    let line_end = find(request, b"\r\n").map_or(0, |end| end + 2);
    let (line, rest) = request.split_at(line_end);
    [line, format!("Authorization: Bearer {}\r\n", token(caller)).as_bytes(), rest].concat()
}

/// A call of the tool that opens a gate.
pub fn open(addr: SocketAddr, gate: &str) -> Vec<u8> {
    call_with(addr, 0, "open", &format!(r#"{{"gate":"{gate}"}}"#))
}

fn call_with(addr: SocketAddr, id: usize, tool: &str, arguments: &str) -> Vec<u8> {
    request(addr, id, "tools/call", Some(tool), &format!(r#""name":"{tool}","arguments":{arguments}"#))
}

/// The state of a task.
pub fn get(addr: SocketAddr, id: usize, task: &str) -> Vec<u8> {
    request(addr, id, "tasks/get", Some(task), &format!(r#""taskId":"{task}""#))
}

/// The first 100 chunks of a task's output.
pub fn page(addr: SocketAddr, id: usize, task: &str) -> Vec<u8> {
    let params = format!(r#""taskId":"{task}","fromSeq":0,"limit":100"#);
    request_as(addr, id, "dev.taskwire/partials/read", Some(task), &params, PARTIALS_META)
}

/// The end of a task.
pub fn cancel(addr: SocketAddr, id: usize, task: &str) -> Vec<u8> {
    request(addr, id, "tasks/cancel", Some(task), &format!(r#""taskId":"{task}""#))
}

/// A stream about tasks.
pub fn listen(addr: SocketAddr, id: usize, tasks: &[String]) -> Vec<u8> {
    let tasks: Vec<_> = tasks.iter().map(|task| format!(r#""{task}""#)).collect();
    let params = format!(r#""notifications":{{"taskIds":[{}]}}"#, tasks.join(","));
    request(addr, id, "subscriptions/listen", None, &params)
}

/// A stream of a task's partial results, from the first one on, for the given reader.
pub fn partials(addr: SocketAddr, reader: usize, task: &str) -> Vec<u8> {
    let params = format!(r#""notifications":{{"dev.taskwire/partials":[{{"taskId":"{task}","fromSeq":0}}]}}"#);
    request_as(addr, READER_ID + reader, "subscriptions/listen", None, &params, PARTIALS_META)
}

/// The message that asks for one stream about some tasks as a client does: their states, and their output from the first
/// chunk on.
pub fn follow(id: usize, tasks: &[String]) -> String {
    let ids: Vec<_> = tasks.iter().map(|task| format!(r#""{task}""#)).collect();
    let outputs: Vec<_> = tasks.iter().map(|task| format!(r#"{{"taskId":"{task}","fromSeq":0}}"#)).collect();
    let params = format!(r#""notifications":{{"taskIds":[{}],"dev.taskwire/partials":[{}]}}"#, ids.join(","), outputs.join(","));
    message(id, "subscriptions/listen", &params, PARTIALS_META)
}

fn request(addr: SocketAddr, id: usize, method: &str, name: Option<&str>, params: &str) -> Vec<u8> {
    request_as(addr, id, method, name, params, META)
}

fn request_as(addr: SocketAddr, id: usize, method: &str, name: Option<&str>, params: &str, meta: &str) -> Vec<u8> {
    let body = message(id, method, params, meta);
    let name = name.map(|name| format!("Mcp-Name: {name}\r\n")).unwrap_or_default();
    let length = body.len();
    let mut request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {addr}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: {method}\r\n{name}Content-Length: {length}\r\n\r\n"
    );
    request.push_str(&body);
    request.into_bytes()
}

fn message(id: usize, method: &str, params: &str, meta: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{params},"_meta":{meta}}}}}"#)
}

/// Checks that a response is a success that contains `text`.
pub fn expect(response: &Response, text: &str) -> Result<()> {
    let fits = response.status == 200 && find(&response.body, br#""result":"#).is_some() && find(&response.body, text.as_bytes()).is_some();
    ensure!(fits, "`{text}` is not in the response: {}", shown(response));
    Ok(())
}

/// The task in a response.
pub fn task_id(response: &Response) -> Result<String> {
    expect(response, r#""taskId":"#)?;
    string_after(&response.body, br#""taskId":""#).with_context(|| format!("no task in {}", shown(response)))
}

/// The status of the task in a response.
pub fn status(response: &Response) -> Result<String> {
    expect(response, r#""status":"#)?;
    string_after(&response.body, br#""status":""#).with_context(|| format!("no status in {}", shown(response)))
}

/// The text of the result in a response.
pub fn result_text(response: &Response) -> Result<String> {
    expect(response, r#""content":"#)?;
    string_after(&response.body, br#""text":""#).with_context(|| format!("no text in {}", shown(response)))
}

/// Whether an event says that `task` was cancelled.
pub fn is_cancelled_event(event: &[u8], task: &str) -> bool {
    find(event, br#""notifications/tasks""#).is_some()
        && find(event, br#""status":"cancelled""#).is_some()
        && find(event, task.as_bytes()).is_some()
}

/// Whether an event acknowledges a stream.
pub fn is_acknowledgement(event: &[u8]) -> bool {
    find(event, br#""notifications/subscriptions/acknowledged""#).is_some()
}

fn string_after(body: &[u8], key: &[u8]) -> Option<String> {
    let rest = &body[find(body, key)? + key.len()..];
    let end = rest.iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(&rest[..end]).ok().map(str::to_owned)
}

fn shown(response: &Response) -> String {
    let start = &response.body[..response.body.len().min(300)];
    format!("status {}, {}", response.status, String::from_utf8_lossy(start))
}
