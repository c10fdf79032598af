//! `/metrics`: what the server counts, as text for Prometheus. Callers get it from the endpoint, and everybody from an address of its own.

use std::{convert::Infallible, sync::Arc, time::Duration};

use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming as HttpBody,
    header::{CONTENT_TYPE, HeaderValue},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use taskwire_core::wire::code;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use super::{
    Endpoint,
    accept_failures::ACCEPT_PAUSE,
    guard,
    http::{plain, refuse},
    reply_body::ReplyBody,
};
use crate::metrics;

/// Connections to the address of their own at one time; further ones wait.
const CONNECTIONS_MAX: usize = 16;
/// How long one of them may take, from its first byte to the last of its response.
const CONNECTION_TIME: Duration = Duration::from_secs(30);

/// The response that has everything.
pub(super) async fn respond(endpoint: &Endpoint) -> Response<ReplyBody> {
    let (connections, body_bytes) = (*endpoint.connections.borrow(), endpoint.body_budget.used());
    let text = endpoint.context.metrics_text(connections, body_bytes).await;
    let mut response = Response::new(ReplyBody::Whole(Some(text.into()), None));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
    response
}

/// Serves nothing but `/metrics`, and asks nobody for a token.
pub(crate) async fn accept(endpoint: Arc<Endpoint>, listener: TcpListener) -> Infallible {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // It is never closed.
        let slot = slots.clone().acquire_owned().await.ok();
        match listener.accept().await {
            Ok((stream, _)) => {
                let endpoint = endpoint.clone();
                tokio::spawn(async move {
                    let _slot = slot;
                    connection(endpoint, stream).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection for metrics could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// One request and its response.
async fn connection(endpoint: Arc<Endpoint>, stream: TcpStream) {
    let (clock, http) = (endpoint.context.engine.clock().clone(), &endpoint.context.config.http);
    let service = service_fn(|request| {
        let endpoint = endpoint.clone();
        async move { Ok::<_, Infallible>(route(&endpoint, request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(http.read_timeout)
        .max_header_size(http.head_bytes)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        result = connection => {
            if let Err(error) = result {
                tracing::debug!(%error, "a connection for metrics ended");
            }
        }
        () = clock.sleep(CONNECTION_TIME) => tracing::debug!("a connection for metrics took too long"),
    }
}

async fn route(endpoint: &Endpoint, request: Request<HttpBody>) -> Response<ReplyBody> {
    if let Err(refusal) = guard::check_unless_by_address(request.uri(), request.headers(), &endpoint.context.config.http) {
        return refuse(refusal.status, code::INVALID_REQUEST, refusal.message);
    }
    match (request.uri().path(), request.method()) {
        ("/metrics", &Method::GET | &Method::HEAD) => respond(endpoint).await,
        _ => plain(StatusCode::NOT_FOUND, "nothing here: there is /metrics\n"),
    }
}
