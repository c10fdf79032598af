//! Asks identity providers over HTTPS: one request, a bounded answer, no redirects. [`Fetch`] is the seam for tests.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, Uri,
    client::conn::http1,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinHandle,
    time::Instant,
};
use tokio_rustls::TlsConnector;

/// The longest answer.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// How long an exchange may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A form that is posted, with the credentials of whoever posts it.
pub(super) struct Form {
    pub(super) body: String,
    pub(super) authorization: String,
}

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Bytes,
}

/// Asks identity providers.
pub(super) trait Fetch: fmt::Debug + Send + Sync {
    /// Gets what is at a URL, or posts a form to it. The error says what went wrong, for the log.
    fn fetch<'a>(&'a self, url: &'a str, form: Option<Form>) -> BoxFuture<'a, Result<Answer, String>>;

    /// The time since some moment, for how long a fetch took.
    fn monotonic(&self) -> Duration;
}

/// Asks over the network. The certificates that the machine trusts are read when they are first needed.
#[derive(Default)]
pub(super) struct HttpFetch {
    tls: OnceLock<Result<TlsConnector, String>>,
    began: OnceLock<Instant>,
}

impl fmt::Debug for HttpFetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpFetch")
    }
}

impl Fetch for HttpFetch {
    fn fetch<'a>(&'a self, url: &'a str, form: Option<Form>) -> BoxFuture<'a, Result<Answer, String>> {
        Box::pin(async move {
            let exchange = tokio::time::timeout(TIMEOUT, self.exchange(url, form));
            exchange.await.unwrap_or_else(|_| Err(format!("no answer within {} seconds", TIMEOUT.as_secs())))
        })
    }

    fn monotonic(&self) -> Duration {
        self.began.get_or_init(Instant::now).elapsed()
    }
}

impl HttpFetch {
    async fn exchange(&self, url: &str, form: Option<Form>) -> Result<Answer, String> {
        let uri: Uri = url.parse().map_err(|_| "it is no URL".to_owned())?;
        let (Some(host), Some(authority)) = (uri.host(), uri.authority()) else { return Err("it names no host".to_owned()) };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let request = request(&uri, authority.as_str(), form)?;
        let stream = TcpStream::connect((host, port)).await.map_err(|error| error.to_string())?;
        if !is_tls {
            return send(stream, request).await;
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let connector = self.tls.get_or_init(connector).as_ref().map_err(Clone::clone)?;
        let stream = connector.connect(name, stream).await.map_err(|error| error.to_string())?;
        send(stream, request).await
    }
}

fn connector() -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be used: {error}"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn request(uri: &Uri, authority: &str, form: Option<Form>) -> Result<Request<Full<Bytes>>, String> {
    let (method, body, authorization) = match form {
        None => (Method::GET, Bytes::new(), None),
        Some(form) => (Method::POST, Bytes::from(form.body), Some(form.authorization)),
    };
    let is_form = authorization.is_some();
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    *request.uri_mut() = target.parse().map_err(|_| "it has no path".to_owned())?;
    let mut add = |name: HeaderName, value: &str| {
        let value = HeaderValue::from_str(value).map_err(|_| format!("the header `{name}` cannot be sent"))?;
        request.headers_mut().insert(name, value);
        Ok::<_, String>(())
    };
    add(HOST, authority)?;
    add(ACCEPT, "application/json")?;
    add(USER_AGENT, concat!("taskwire/", env!("CARGO_PKG_VERSION")))?;
    if is_form {
        add(CONTENT_TYPE, "application/x-www-form-urlencoded")?;
    }
    if let Some(authorization) = authorization {
        add(AUTHORIZATION, &authorization)?;
    }
    Ok(request)
}

/// Ends the connection when its exchange has ended.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn send(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, request: Request<Full<Bytes>>) -> Result<Answer, String> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let _connection = Connection(tokio::spawn(async move {
        let _ = connection.await;
    }));
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|error| error.to_string())?;
    Ok(Answer { status, body: body.to_bytes() })
}
