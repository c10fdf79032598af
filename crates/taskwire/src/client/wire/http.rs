//! Streamable HTTP, from the client's side.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};
use reqwest::{
    Method, Response,
    header::{HeaderMap, HeaderName, HeaderValue},
    redirect::{Action, Attempt, Policy},
};
use taskwire_core::wire::{RequestId, SseReader};

use super::{Message, OutgoingRequest, WireError};
use crate::client::{Challenge, Error, Options, error::shortened};

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
/// How often a server may ask for another token for one request.
const CHALLENGES_MAX: usize = 3;
/// How often a server may redirect a request within its origin.
const REDIRECTS_MAX: usize = 5;
/// The reason for a server that does not speak TLS at an https URL.
const NO_TLS: &str = "it does not speak https there, but probably plain http: use http:// instead";
/// How long a request to the API of a server may take.
const API_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of an error's body that are read.
const REASON_BYTES: usize = 64 * 1024;

/// The connection to one URL.
pub(crate) struct Http {
    client: reqwest::Client,
    url: String,
    options: Arc<Options>,
    fixed: HeaderMap,
    /// The number of requests that wait for a person to sign in.
    signing: AtomicUsize,
}

impl Http {
    pub(crate) fn new(url: &str, options: Arc<Options>) -> Result<Self, Error> {
        let mut fixed = HeaderMap::new();
        for (name, value) in &options.headers {
            let (name, value) = header(name, value).map_err(|reason| Error::Target(format!("the header `{name}` {reason}")))?;
            fixed.append(name, value);
        }
        Ok(Self { client: client(&options)?, url: url.to_owned(), options, fixed, signing: AtomicUsize::new(0) })
    }

    /// Whether a person is signing in, which has no request timeout.
    pub(crate) fn signs_in(&self) -> bool {
        self.signing.load(Ordering::Relaxed) > 0
    }

    pub(crate) async fn post(&self, outgoing: OutgoingRequest) -> Result<HttpExchange, WireError> {
        let response = self.send(Method::POST, outgoing.headers, Some(outgoing.body)).await?;
        self.read_response(response).await
    }

    pub(crate) async fn send_one_way(&self, body: String, headers: Vec<(String, String)>) -> Result<(), WireError> {
        let response = self.send(Method::POST, headers, Some(body)).await?;
        if response.status().is_success() { Ok(()) } else { Err(self.refused(response).await) }
    }

    /// Opens an event stream.
    pub(crate) async fn get(&self, headers: Vec<(String, String)>) -> Result<HttpExchange, WireError> {
        let response = self.send(Method::GET, headers, None).await?;
        if !response.status().is_success() {
            return Err(self.refused(response).await);
        }
        self.read_response(response).await
    }

    /// Ends a session.
    pub(crate) async fn delete(&self, headers: Vec<(String, String)>) -> Result<(), WireError> {
        self.send(Method::DELETE, headers, None).await.map(drop)
    }

    async fn send(&self, method: Method, headers: Vec<(String, String)>, body: Option<String>) -> Result<Response, WireError> {
        let mut all = self.fixed.clone();
        let accept = if method == Method::GET { EVENTS } else { "application/json, text/event-stream" };
        all.insert(reqwest::header::ACCEPT, HeaderValue::from_static(accept));
        if body.is_some() {
            all.insert(reqwest::header::CONTENT_TYPE, HeaderValue::from_static(JSON));
        }
        for (name, value) in &headers {
            let (name, value) = header(name, value).map_err(|reason| {
                WireError::Unsendable(Error::Target(format!("`{value}` cannot be sent as header `{name}`: it {reason}")))
            })?;
            all.insert(name, value);
        }
        let body = body.map(Bytes::from);
        for _ in 0..=CHALLENGES_MAX {
            let mut request = self.client.request(method.clone(), &self.url).headers(all.clone());
            let bearer = match &self.options.credentials {
                Some(credentials) => credentials.bearer().await.map_err(WireError::Unsendable)?,
                None => None,
            };
            if let Some(token) = &bearer {
                request = request.bearer_auth(token);
            }
            if let Some(body) = &body {
                request = request.body(body.clone());
            }
            let response = request.send().await.map_err(send_error)?;
            let status = response.status().as_u16();
            let asked: Vec<&str> =
                response.headers().get_all(reqwest::header::WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok()).collect();
            let asked = (!asked.is_empty()).then(|| asked.join(", "));
            if status != 401 && !(status == 403 && asked.is_some()) {
                return Ok(response);
            }
            let challenge = Challenge { url: self.url.clone(), status, www_authenticate: asked, bearer };
            let again = match &self.options.credentials {
                Some(credentials) => {
                    let _signing = Signing::begin(&self.signing);
                    credentials.challenged(&challenge).await.map_err(WireError::Unsendable)?
                }
                None => false,
            };
            if !again {
                return Err(self.refused(response).await);
            }
        }
        Err(WireError::Denied { status: 401, reason: format!("none of {CHALLENGES_MAX} tokens was good enough") })
    }

    /// The error of a response that refuses the request.
    async fn refused(&self, response: Response) -> WireError {
        let status = response.status().as_u16();
        let retry_after = self.retry_after(&response);
        if response.status().is_redirection() {
            let to = response.headers().get(reqwest::header::LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
            let reason = format!("it redirects to {}, which is not followed: the request was meant for this server only", shortened(to));
            return WireError::Status { status, reason, retry_after };
        }
        let body = whole(response, REASON_BYTES).await.unwrap_or_default();
        let reason = match Message::parse(&body) {
            Ok(Message::Response { outcome: Err(error), .. }) => error.message,
            _ => String::from_utf8_lossy(&body).into_owned(),
        };
        let reason = if reason.trim_start().starts_with('<') { String::new() } else { shortened(&reason) };
        match status {
            401 | 403 => WireError::Denied { status, reason },
            _ => WireError::Status { status, reason, retry_after },
        }
    }

    fn retry_after(&self, response: &Response) -> Option<Duration> {
        let value = response.headers().get(reqwest::header::RETRY_AFTER)?.to_str().ok()?;
        if let Ok(seconds) = value.trim().parse() {
            return Some(Duration::from_secs(seconds));
        }
        let at = httpdate::parse_http_date(value).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
        let now = Duration::from_millis(u64::try_from(self.options.clock.now().as_millis()).unwrap_or_default());
        Some(at.saturating_sub(now))
    }

    /// Reads a response of any status: the body of an error may be a JSON-RPC message.
    async fn read_response(&self, response: Response) -> Result<HttpExchange, WireError> {
        let status = response.status().as_u16();
        let kind = response.headers().get(reqwest::header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let session = response.headers().get("mcp-session-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let passing = WireError::Status { status, reason: String::new(), retry_after: None }.is_transient();
        let max = self.options.limits.message_bytes;
        let mut exchange =
            HttpExchange { status, session, last_event_id: None, reconnect_delay: None, ready: VecDeque::new(), events: None };
        match kind.as_str() {
            EVENTS if response.status().is_success() => {
                exchange.events = Some(Events { bytes: response.bytes_stream().boxed(), reader: SseReader::new(max) });
            }
            JSON if !passing => {
                let body = whole(response, max).await?;
                match messages(&body) {
                    Ok(messages) => exchange.ready = messages,
                    Err(_) if status >= 400 => {
                        let reason = shortened(&String::from_utf8_lossy(&body));
                        return Err(WireError::Status { status, reason, retry_after: None });
                    }
                    Err(reason) => return Err(WireError::Interrupted(reason)),
                }
            }
            _ if response.status().is_success() => {
                // 202 and 204 have no body. Another kind of body, such as HTML, is an error.
                if !kind.is_empty() && status == 200 {
                    return Err(WireError::Status {
                        status,
                        reason: format!("it answered with `{kind}`, which is no MCP"),
                        retry_after: None,
                    });
                }
            }
            _ => return Err(self.refused(response).await),
        }
        Ok(exchange)
    }
}

struct Signing<'a>(&'a AtomicUsize);

impl<'a> Signing<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Signing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Parses one message, or a batch of them, which 2025-03-26 had.
fn messages(body: &[u8]) -> Result<VecDeque<Message>, String> {
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'[') {
        return Message::parse(body).map(|message| VecDeque::from([message]));
    }
    let list: Vec<&serde_json::value::RawValue> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    list.into_iter().map(|one| Message::parse(one.get().as_bytes())).collect()
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), &'static str> {
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "is no name of a header")?;
    let value = HeaderValue::from_str(value).map_err(|_| "has characters that a header must not have")?;
    Ok((name, value))
}

/// Follows redirects within the server's origin only: another origin must not get our headers and arguments. Statuses other than
/// 307 and 308 would change the method.
fn redirect(attempt: Attempt<'_>) -> Action {
    let first = attempt.previous().first();
    let same = first.is_some_and(|first| first.origin() == attempt.url().origin());
    if same && matches!(attempt.status().as_u16(), 307 | 308) && attempt.previous().len() <= REDIRECTS_MAX {
        attempt.follow()
    } else {
        attempt.stop()
    }
}

fn client(options: &Options) -> Result<reqwest::Client, Error> {
    // If another provider is installed already, that one is used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder().redirect(Policy::custom(redirect)).tcp_nodelay(true);
    let mut builder = builder.tcp_keepalive(Duration::from_secs(30)).connect_timeout(Duration::from_secs(10));
    if let Some(pem) = &options.trusted_certificates {
        let unusable = |error| Error::Target(format!("the certificates to trust cannot be used: {}", innermost_cause(&error)));
        let certificates = reqwest::Certificate::from_pem_bundle(pem).map_err(unusable)?;
        if certificates.is_empty() {
            return Err(Error::Target("there is no certificate to trust in what was given for it".to_owned()));
        }
        builder = builder.tls_certs_merge(certificates);
    }
    if let Some(pem) = &options.client_certificate {
        let unusable = |error| Error::Target(format!("the client's certificate cannot be used: {}", innermost_cause(&error)));
        builder = builder.identity(reqwest::Identity::from_pem(pem).map_err(unusable)?);
    }
    builder.build().map_err(|error| Error::Target(format!("HTTP cannot be used: {}", innermost_cause(&error))))
}

/// Sends a request that is no message of MCP: the status and the body of its response.
pub(crate) async fn api_request(url: &str, is_post: bool, token: Option<&str>, max: usize) -> Result<(u16, Vec<u8>), WireError> {
    let client = client(&Options::default()).map_err(WireError::Unsendable)?;
    let mut request = if is_post {
        client.post(url).header(reqwest::header::CONTENT_TYPE, HeaderValue::from_static(JSON)).body("{}")
    } else {
        client.get(url)
    };
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let response = request.timeout(API_TIMEOUT).send().await.map_err(send_error)?;
    let status = response.status().as_u16();
    Ok((status, whole(response, max).await?))
}

fn send_error(error: reqwest::Error) -> WireError {
    if error.is_builder() {
        return WireError::Unsendable(Error::Target(innermost_cause(&error)));
    }
    let reason = if is_without_tls(&error) { NO_TLS.to_owned() } else { innermost_cause(&error) };
    if error.is_connect() { WireError::Unsent(reason) } else { WireError::Interrupted(reason) }
}

/// Whether the server replied with something that is not TLS.
fn is_without_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    if let Some(rustls::Error::InvalidMessage(_)) = error.downcast_ref::<rustls::Error>() {
        return true;
    }
    // `source` of an I/O error skips the error that it wraps.
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    wrapped.is_some_and(|inner| is_without_tls(inner)) || error.source().is_some_and(is_without_tls)
}

fn innermost_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

async fn whole(response: Response, max: usize) -> Result<Vec<u8>, WireError> {
    let mut bytes = response.bytes_stream();
    let mut body = Vec::new();
    while let Some(piece) = bytes.next().await {
        let piece = piece.map_err(|error| WireError::Interrupted(innermost_cause(&error)))?;
        if body.len() + piece.len() > max {
            return Err(WireError::TooLarge { max });
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

struct Events {
    bytes: BoxStream<'static, reqwest::Result<Bytes>>,
    reader: SseReader,
}

/// A response: one body, or a stream of events.
pub(crate) struct HttpExchange {
    pub(super) status: u16,
    pub(super) session: Option<String>,
    pub(super) last_event_id: Option<String>,
    pub(super) reconnect_delay: Option<Duration>,
    ready: VecDeque<Message>,
    events: Option<Events>,
}

impl HttpExchange {
    pub(super) fn answers(&self, id: i64) -> bool {
        matches!(self.ready.front(), Some(Message::Response { id: Some(RequestId::Number(number)), .. }) if *number == id)
    }

    pub(super) async fn next(&mut self) -> Result<Option<Message>, WireError> {
        if let Some(message) = self.ready.pop_front() {
            return Ok(Some(message));
        }
        let Some(events) = &mut self.events else { return Ok(None) };
        loop {
            while let Some(event) = events.reader.next().map_err(|large| WireError::TooLarge { max: large.max })? {
                if let Some(id) = event.id {
                    self.last_event_id = (!id.is_empty()).then(|| id.into());
                }
                if let Some(retry) = event.retry_ms {
                    self.reconnect_delay = Some(Duration::from_millis(retry));
                }
                if event.data.is_empty() {
                    continue;
                }
                let mut messages = match messages(&event.data) {
                    Ok(messages) => messages,
                    Err(reason) => {
                        tracing::debug!(%reason, "an event is passed over");
                        continue;
                    }
                };
                if let Some(first) = messages.pop_front() {
                    self.ready = messages;
                    return Ok(Some(first));
                }
            }
            match events.bytes.next().await {
                None => {
                    self.events = None;
                    return Ok(None);
                }
                Some(Ok(bytes)) => events.reader.feed(&bytes),
                Some(Err(error)) => {
                    self.events = None;
                    return Err(WireError::Interrupted(innermost_cause(&error)));
                }
            }
        }
    }
}
