//! One HTTP exchange with another server: a request, a bounded answer, no redirects. The connection ends with it.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, Uri,
    client::conn::http1,
    header::{ACCEPT, HOST, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinHandle,
};
use tokio_rustls::TlsConnector;

/// The longest answer.
const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// What a server answered.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// How many seconds the server asks to wait (`Retry-After`), where it says that as a number.
    #[cfg_attr(not(feature = "traces"), expect(dead_code, reason = "only spans are sent again"))]
    pub(crate) retry_after: Option<u64>,
    pub(crate) body: Bytes,
}

/// Sends requests over the network. The certificates that the machine trusts are read when they are first needed.
#[derive(Default)]
pub(crate) struct Outbound {
    tls: OnceLock<Result<TlsConnector, String>>,
}

impl fmt::Debug for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outbound")
    }
}

impl Outbound {
    /// Sends a request to a URL and reads the answer, within this time. The error says what went wrong, for the log.
    pub(crate) async fn exchange(
        &self,
        method: Method,
        url: &str,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
        timeout: Duration,
    ) -> Result<Answer, String> {
        let exchange = tokio::time::timeout(timeout, self.send(method, url, headers, body));
        exchange.await.unwrap_or_else(|_| Err(format!("no answer within {} seconds", timeout.as_secs())))
    }

    async fn send(&self, method: Method, url: &str, headers: &[(HeaderName, HeaderValue)], body: Bytes) -> Result<Answer, String> {
        let uri: Uri = url.parse().map_err(|_| "it is no URL".to_owned())?;
        let host = uri.host().ok_or("it names no host")?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let request = request(method, &uri, headers, body)?;
        let stream = TcpStream::connect((host, port)).await.map_err(|error| error.to_string())?;
        if !is_tls {
            return answer(stream, request).await;
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let connector = self.tls.get_or_init(connector).as_ref().map_err(Clone::clone)?;
        let stream = connector.connect(name, stream).await.map_err(|error| error.to_string())?;
        answer(stream, request).await
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

fn request(method: Method, uri: &Uri, headers: &[(HeaderName, HeaderValue)], body: Bytes) -> Result<Request<Full<Bytes>>, String> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    *request.uri_mut() = target.parse().map_err(|_| "it has no path".to_owned())?;
    // Not the whole authority: a password may stand before the host.
    let port = uri.port().map(|port| format!(":{port}")).unwrap_or_default();
    let host = format!("{}{port}", uri.host().unwrap_or_default());
    let host = HeaderValue::from_str(&host).map_err(|_| "its host cannot be sent".to_owned())?;
    request.headers_mut().insert(HOST, host);
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
    request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(concat!("taskwire/", env!("CARGO_PKG_VERSION"))));
    for (name, value) in headers {
        request.headers_mut().insert(name.clone(), value.clone());
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

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, request: Request<Full<Bytes>>) -> Result<Answer, String> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let _connection = Connection(tokio::spawn(async move {
        let _ = connection.await;
    }));
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let status = response.status().as_u16();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|error| error.to_string())?;
    Ok(Answer { status, retry_after, body: body.to_bytes() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_header_has_host_and_port_and_no_password() {
        for (url, host) in [
            ("http://collector:4318/v1", "collector:4318"),
            ("https://collector/v1", "collector"),
            ("http://ada:secret@collector:4318/v1", "collector:4318"),
            ("http://ada:secret@[::1]:4318/v1", "[::1]:4318"),
        ] {
            let uri: Uri = url.parse().expect("a URL");
            let request = request(Method::POST, &uri, &[], Bytes::new()).expect("it can be sent");
            assert_eq!((request.headers()[HOST].to_str().ok(), request.uri().path()), (Some(host), "/v1"), "{url}");
        }
    }
}
