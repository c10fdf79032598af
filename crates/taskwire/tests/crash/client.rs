//! A client that keeps one connection and reconnects when it breaks, and says honestly when an answer was lost.

use std::{io, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

const TASKS: &str = "io.modelcontextprotocol/tasks";
/// The extension for the output of tasks; only requests that are about output declare it.
pub(crate) const PARTIALS: &str = "dev.taskwire/partials";
/// How long one answer may take; later than this it counts as lost.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait after a lost answer.
const PAUSE: Duration = Duration::from_millis(3);
/// How long a request is repeated.
const RETRY_TIMEOUT: Duration = Duration::from_secs(120);

/// The result of a request, or its error.
pub(crate) type Reply = Result<Value, Value>;

#[derive(Debug)]
pub(crate) struct Client {
    port: u16,
    stream: Option<TcpStream>,
    last_id: u64,
}

impl Client {
    pub(crate) fn new(port: u16) -> Self {
        Self { port, stream: None, last_id: 0 }
    }

    /// Sends a request once. None if its answer was lost: then nobody knows whether it was carried out.
    pub(crate) async fn try_once(&mut self, method: &str, params: &Value) -> Option<Reply> {
        self.last_id += 1;
        let id = self.last_id;
        let request = request(self.port, id, method, params);
        match timeout(RESPONSE_TIMEOUT, self.exchange(&request)).await {
            Ok(Ok(body)) => Some(reply(id, &body)),
            Ok(Err(_)) | Err(_) => {
                sleep(PAUSE).await;
                None
            }
        }
    }

    /// Sends the same request again and again until it is answered.
    pub(crate) async fn until_answered(&mut self, method: &str, params: &Value) -> Reply {
        let answered = async {
            loop {
                if let Some(reply) = self.try_once(method, params).await {
                    return reply;
                }
            }
        };
        timeout(RETRY_TIMEOUT, answered).await.unwrap_or_else(|_| panic!("{method} was not answered within {RETRY_TIMEOUT:?}: {params}"))
    }

    /// As [`until_answered`](Self::until_answered), for a request that cannot be refused.
    pub(crate) async fn until_ok(&mut self, method: &str, params: &Value) -> Value {
        self.until_answered(method, params).await.unwrap_or_else(|error| panic!("{method} was refused: {error} for {params}"))
    }

    /// The connection is kept only if the whole answer came.
    async fn exchange(&mut self, request: &[u8]) -> io::Result<Vec<u8>> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => TcpStream::connect(("127.0.0.1", self.port)).await?,
        };
        stream.write_all(request).await?;
        let body = read_body(&mut stream).await?;
        self.stream = Some(stream);
        Ok(body)
    }
}

/// One request as it goes over the wire.
pub(crate) fn request(port: u16, id: u64, method: &str, params: &Value) -> Vec<u8> {
    let mut params = params.clone();
    let name = params["name"].as_str().or(params["taskId"].as_str());
    let name = name.map(|name| format!("Mcp-Name: {name}\r\n")).unwrap_or_default();
    let mut extensions = json!({TASKS: {}});
    if method == "subscriptions/listen" || method.starts_with(PARTIALS) {
        extensions[PARTIALS] = json!({});
    }
    let meta = &mut params["_meta"];
    if meta.is_null() {
        *meta = json!({});
    }
    meta["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
    meta["io.modelcontextprotocol/clientCapabilities"] = json!({"elicitation": {}, "extensions": extensions});
    let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: {method}\r\n{name}Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body.into_bytes()].concat()
}

fn reply(id: u64, body: &[u8]) -> Reply {
    let mut message: Value =
        serde_json::from_slice(body).unwrap_or_else(|error| panic!("{error} in an answer: {}", String::from_utf8_lossy(body)));
    assert_eq!(message["id"], id, "the answer to another request: {message}");
    match message.get_mut("result") {
        Some(result) => Ok(result.take()),
        None => Err(message["error"].take()),
    }
}

/// Reads one response. Any that is not `200` with a length is a failure of the server, not of the connection.
async fn read_body(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut buffer = Vec::new();
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        read_more(stream, &mut buffer).await?;
    };
    let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    let length = length.unwrap_or_else(|| panic!("a response without a length: {head}"));
    while buffer.len() < end + length {
        read_more(stream, &mut buffer).await?;
    }
    if head.starts_with("http/1.1 503 ") && head.contains("\r\nretry-after: ") {
        // A node that cannot reach its database, or lost its lease: the client may try again.
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    assert!(head.starts_with("http/1.1 200 "), "the server refuses to serve: {}", String::from_utf8_lossy(&buffer));
    assert_eq!(buffer.len(), end + length, "more than one response: {}", String::from_utf8_lossy(&buffer));
    Ok(buffer.split_off(end))
}

async fn read_more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<()> {
    let mut part = [0; 4096];
    match stream.read(&mut part).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        n => {
            buffer.extend_from_slice(&part[..n]);
            Ok(())
        }
    }
}
