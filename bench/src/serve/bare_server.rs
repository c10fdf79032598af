//! The limit: a hyper server that reads the request and answers a constant of the size that a real server would send.

use std::convert::Infallible;

use anyhow::Result;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt as _, Either, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response,
    body::{Frame, Incoming},
    header::{CONTENT_TYPE, HeaderMap},
    service::service_fn,
};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::{net::TcpListener, sync::broadcast};

use super::{
    bare_pour::{self, PourTasks},
    bare_stream::WriteTasks,
    pour::Pour,
    write::{Open, Write},
};
use crate::{http::find, wire::ECHO_TEXT};

/// Ends that a listen stream may be behind.
const FEED_LEN: usize = 1_024;
/// The one task that there is.
const TASK: &str = concat!(
    r#""taskId":"019f00000000abcdefghijklmnopqrst","createdAt":"2026-11-16T00:00:00.000Z","#,
    r#""lastUpdatedAt":"2026-11-16T00:00:00.000Z","ttlMs":3600000,"pollIntervalMs":1000"#,
);
/// A result that is none.
pub(super) const UNREADABLE: &str = r#"{"resultType":"unreadable"}"#;
pub(super) const META: &str = r#""_meta":{"io.modelcontextprotocol/serverInfo":{"name":"bare","version":"0.1.0"}}"#;

type Reply = Either<Full<Bytes>, UnsyncBoxBody<Bytes, Infallible>>;

pub(super) async fn run(listener: TcpListener) -> Result<()> {
    let (ends, _) = broadcast::channel(FEED_LEN);
    let (sources, pours) = (WriteTasks::default(), PourTasks::default());
    let answer = move |request: Request<Incoming>| answer(request, ends.clone(), sources.clone(), pours.clone());
    super::accept(listener, service_fn(answer)).await
}

async fn answer(
    request: Request<Incoming>,
    ends: broadcast::Sender<Bytes>,
    sources: WriteTasks,
    pours: PourTasks,
) -> Result<Response<Reply>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let id = id_of(&body);
    let result = match (header(&head.headers, "mcp-method"), header(&head.headers, "mcp-name")) {
        ("tools/call", "echo") => {
            format!(r#"{{"resultType":"complete","content":[{{"type":"text","text":"{ECHO_TEXT}"}}],{META}}}"#)
        }
        ("tools/call", "write") => match arguments::<Write>(&body) {
            Some(write) => format!(r#"{{"resultType":"task","status":"working","taskId":"{}",{META}}}"#, sources.write(write)),
            None => UNREADABLE.to_owned(),
        },
        ("tools/call", "open") => match arguments::<Open>(&body) {
            Some(open) => {
                sources.open(&open.gate);
                pours.open(&open.gate);
                format!(r#"{{"resultType":"complete","content":[{{"type":"text","text":"opened"}}],{META}}}"#)
            }
            None => UNREADABLE.to_owned(),
        },
        ("tools/call", "pour") => match arguments::<Pour>(&body) {
            Some(pour) => pours.begin(pour),
            None => UNREADABLE.to_owned(),
        },
        ("tools/call", _) => format!(r#"{{"resultType":"task","status":"working",{TASK},{META}}}"#),
        ("subscriptions/listen", _) => {
            if let Some(poured) = pours.listen(&body, id) {
                return Ok(respond("text/event-stream", Either::Right(poured.boxed_unsync())));
            }
            return Ok(match task_of(&body).and_then(|task| sources.read(task, id)) {
                Some(events) => respond("text/event-stream", Either::Right(events.boxed_unsync())),
                None => listen(id, &ends),
            });
        }
        ("tasks/cancel", _) => {
            // Nobody listening is no error.
            let _ = ends.send(Bytes::from(end()));
            r#"{"resultType":"complete"}"#.to_owned()
        }
        ("server/discover", _) => bare_pour::discovered(),
        ("tools/list", _) => bare_pour::tools(),
        ("tasks/get", task) if PourTasks::is_pour_task(task) => pours.state(task),
        ("dev.taskwire/partials/read", _) => pours.page(&body),
        _ => format!(r#"{{"resultType":"complete","status":"working",{TASK},{META}}}"#),
    };
    let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
    Ok(respond("application/json", Either::Left(Full::new(Bytes::from(text)))))
}

/// A stream that begins with an acknowledgement and then sends the end of every task.
fn listen(id: &str, ends: &broadcast::Sender<Bytes>) -> Response<Reply> {
    let begin = format!(
        "data: {}\n\n",
        format_args!(
            r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"id":{id},"notifications":{{}}}}}}"#
        )
    );
    let events = stream::unfold((Some(Bytes::from(begin)), ends.subscribe()), |(begin, mut ends)| async move {
        let event = match begin {
            Some(begin) => begin,
            None => ends.recv().await.ok()?,
        };
        Some((Ok::<_, Infallible>(Frame::data(event)), (None, ends)))
    });
    respond("text/event-stream", Either::Right(StreamBody::new(events).boxed_unsync()))
}

fn end() -> String {
    let subscription = r#""_meta":{"io.modelcontextprotocol/subscriptionId":1}"#;
    let message = format!(r#"{{"jsonrpc":"2.0","method":"notifications/tasks","params":{{"status":"cancelled",{TASK},{subscription}}}}}"#);
    format!("data: {message}\n\n")
}

fn respond(content_type: &'static str, body: Reply) -> Response<Reply> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(content_type));
    response
}

/// The arguments of a call, if they are what they should be.
fn arguments<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    #[derive(Deserialize)]
    struct Call<T> {
        params: Params<T>,
    }
    #[derive(Deserialize)]
    struct Params<T> {
        arguments: T,
    }
    serde_json::from_slice::<Call<T>>(body).ok().map(|call| call.params.arguments)
}

/// The task whose partial results a listen request asks for, found without parsing.
fn task_of(body: &[u8]) -> Option<&str> {
    let key = br#""taskId":""#;
    let rest = &body[find(body, key)? + key.len()..];
    let end = rest.iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(&rest[..end]).ok()
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The request's id, found without parsing.
fn id_of(body: &[u8]) -> &str {
    let key = br#""id":"#;
    let rest = find(body, key).map_or(&body[..0], |at| &body[at + key.len()..]);
    let end = rest.iter().position(|byte| matches!(byte, b',' | b'}')).unwrap_or(0);
    match std::str::from_utf8(&rest[..end]) {
        Ok(id) if !id.is_empty() => id,
        _ => "null",
    }
}
