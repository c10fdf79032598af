//! TLS where no proxy stands in front: a certificate that can be replaced while the server runs, handshakes that end in time, and the
//! certificates of clients.

use std::{
    convert::Infallible,
    fmt, io,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use http_body_util::{BodyExt, Limited};
use hyper::{Request, StatusCode, body::Incoming as HttpBody, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    time_provider::TimeProvider,
};
use taskwire_core::Timestamp;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{Endpoint, connection_slots::ConnectionSlot, http};
use crate::{
    auth::Certificate,
    clock::{Clock, SystemClock},
    config::HttpConfig,
    protocol::Peer,
};

/// The protocol that is spoken inside.
const ALPN: &[u8] = b"http/1.1";
/// Encrypted bytes that wait for the client to read, about one record: the client has to read so much within `http.write_timeout`.
const UNSENT_BYTES: usize = 16 * 1024;
/// Bytes of a body without TLS that are read before it is answered.
const UNREAD_BYTES: usize = 64 * 1024;
/// The answer to a request without TLS.
const SPEAKS_TLS: &str = "this port speaks TLS: use https:// instead of http://\n";

/// A certificate with its key, and whose certificates clients may show. All of it is PEM.
#[derive(Clone, Default)]
pub struct TlsSettings {
    /// The server's certificate, followed by those that lead from it to its authority.
    pub certificate: Vec<u8>,
    /// The key of the certificate, without a passphrase.
    pub key: Vec<u8>,
    /// The authorities whose certificates clients may show. If absent, clients are not asked for any.
    pub client_ca: Option<Vec<u8>>,
    /// Whether a client must show one.
    pub require_client: bool,
}

impl TlsSettings {
    /// This certificate with this key; clients are not asked for theirs.
    #[must_use]
    pub fn new(certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        Self { certificate: certificate.into(), key: key.into(), ..Self::default() }
    }
}

/// The key must not get into logs.
impl fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSettings").field("require_client", &self.require_client).finish_non_exhaustive()
    }
}

/// Why a server cannot speak TLS with some settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct InvalidTls {
    /// The setting that cannot be used, by its name.
    pub setting: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

fn invalid(setting: &'static str, reason: impl Into<String>) -> InvalidTls {
    InvalidTls { setting, reason: reason.into() }
}

/// What a server speaks TLS with. Clones are one and the same: what is replaced in one is replaced in all.
#[derive(Clone)]
pub struct Tls(Arc<RwLock<Loaded>>);

#[derive(Clone)]
struct Loaded {
    config: Arc<ServerConfig>,
    expires: Timestamp,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("expires", &self.expires()).finish_non_exhaustive()
    }
}

impl Tls {
    /// Checks the settings.
    ///
    /// # Errors
    /// When one of them cannot be used.
    pub fn new(settings: &TlsSettings) -> Result<Self, InvalidTls> {
        Self::with_clock(settings, Arc::new(SystemClock))
    }

    /// As [`new`](Self::new), with another clock, which says whether a client's certificate has expired.
    ///
    /// # Errors
    /// When one of the settings cannot be used.
    pub fn with_clock(settings: &TlsSettings, clock: Arc<dyn Clock>) -> Result<Self, InvalidTls> {
        Ok(Self(Arc::new(RwLock::new(load(settings, clock)?))))
    }

    /// When the server's certificate expires.
    #[must_use]
    pub fn expires(&self) -> Timestamp {
        self.loaded().expires
    }

    /// New connections get what `other` has. Those that are open stay as they are.
    pub fn replace_with(&self, other: &Self) {
        let loaded = other.loaded();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = loaded;
    }

    fn loaded(&self) -> Loaded {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The time as rustls asks for it.
#[derive(Debug)]
struct ClockTime(Arc<dyn Clock>);

impl TimeProvider for ClockTime {
    fn current_time(&self) -> Option<UnixTime> {
        let millis = u64::try_from(self.0.now().as_millis()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_millis(millis)))
    }
}

fn load(settings: &TlsSettings, clock: Arc<dyn Clock>) -> Result<Loaded, InvalidTls> {
    let chain = certificates(&settings.certificate).map_err(|why| invalid("certificate", why))?;
    let own = chain.first().ok_or_else(|| invalid("certificate", "there is no certificate in it"))?;
    let expires = Certificate::read(own).map_err(|why| invalid("certificate", why))?.expires();
    // Nothing of this file is repeated.
    let key = PrivateKeyDer::from_pem_slice(&settings.key)
        .map_err(|_| invalid("key", "there is no private key in it that can be read: it is PEM, without a passphrase"))?;
    let config = ServerConfig::builder_with_details(Arc::new(ring::default_provider()), Arc::new(ClockTime(clock)))
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid("certificate", format!("TLS cannot be used: {error}")))?;
    let config = match &settings.client_ca {
        Some(authorities) => config.with_client_cert_verifier(verifier(authorities, settings.require_client)?),
        None if settings.require_client => return Err(invalid("require_client", "it needs `client_ca`")),
        None => config.with_no_client_auth(),
    };
    let mut config = config.with_single_cert(chain, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => invalid("key", "it is not the key of the certificate"),
        rustls::Error::InvalidCertificate(_) => invalid("certificate", error.to_string()),
        _ => invalid("key", error.to_string()),
    })?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    if settings.client_ca.is_some() {
        // Each connection shows its certificate again, and it is checked again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(Loaded { config: Arc::new(config), expires })
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| format!("it is no PEM: {error}"))
}

/// Checks that a client's certificate is one of these authorities, and has not expired.
fn verifier(authorities: &[u8], is_required: bool) -> Result<Arc<dyn ClientCertVerifier>, InvalidTls> {
    let wrong = |why: String| invalid("client_ca", why);
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authorities).map_err(wrong)? {
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("there is no certificate in it".to_owned()));
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()));
    let builder = if is_required { builder } else { builder.allow_unauthenticated() };
    builder.build().map_err(|error| wrong(error.to_string()))
}

pub(crate) async fn accept(endpoint: Arc<Endpoint>, listener: TcpListener, tls: Tls) -> Infallible {
    let serve = move |endpoint, stream, peer, slot| connection(tls.clone(), endpoint, stream, peer, slot);
    http::accept_for(endpoint, listener, serve).await
}

async fn connection(tls: Tls, endpoint: Arc<Endpoint>, stream: TcpStream, peer: Peer, slot: Arc<ConnectionSlot>) {
    let opened = in_time(&tls, &endpoint, stream, &slot).await;
    match opened {
        Ok(Some((stream, certificate))) => http::connection(endpoint, stream, peer.with_certificate(certificate), slot).await,
        Ok(None) => {}
        Err(error) => tracing::debug!(%error, "a TLS handshake failed"),
    }
}

/// A connection after its handshake, and the certificate that the client has shown; none if it was closed before.
type Opened = Option<(TlsStream<TcpStream>, Option<Certificate>)>;

/// Begins a connection, unless that takes too long, others need its slot, or the server shuts down.
async fn in_time(tls: &Tls, endpoint: &Endpoint, stream: TcpStream, slot: &ConnectionSlot) -> io::Result<Opened> {
    let context = &endpoint.context;
    let http = &context.config.http;
    let draining = *context.draining.borrow();
    tokio::select! {
        opened = open(tls, stream, http) => opened,
        () = context.engine.clock().sleep(http.read_timeout) => Err(io::ErrorKind::TimedOut.into()),
        () = slot.evicted() => {
            tracing::debug!("a connection before its handshake was closed for a new one");
            Ok(None)
        }
        () = context.shutdown_began(), if !draining => Ok(None),
    }
}

/// Shakes hands with a client that speaks TLS, and tells another one that it has to.
async fn open(tls: &Tls, stream: TcpStream, http: &HttpConfig) -> io::Result<Opened> {
    let mut first = [0];
    // The first record of TLS begins with 22, a request with the letters of its method.
    if stream.peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
        refuse(stream, http).await;
        return Ok(None);
    }
    let acceptor = TlsAcceptor::from(tls.loaded().config);
    let stream = acceptor.accept_with(stream, |session| session.set_buffer_limit(Some(UNSENT_BYTES))).await?;
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = shown.map(|shown| Certificate::read(shown)).transpose().map_err(io::Error::other)?;
    Ok(Some((stream, certificate)))
}

async fn refuse(stream: TcpStream, http: &HttpConfig) {
    let service = service_fn(|request: Request<HttpBody>| async {
        // A connection that is closed with something unread in it may lose the answer.
        let _ = Limited::new(request.into_body(), UNREAD_BYTES).collect().await;
        Ok::<_, Infallible>(http::plain(StatusCode::BAD_REQUEST, SPEAKS_TLS))
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(http.read_timeout)
        .max_header_size(http.head_bytes)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection without TLS ended");
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    use super::*;

    fn made() -> (String, String) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        (params.self_signed(&key).expect("a certificate").pem(), key.serialize_pem())
    }

    #[test]
    fn what_is_wrong_is_said_of_the_setting_and_nothing_of_the_key() {
        let ((certificate, key), (_, other)) = (made(), made());
        let settings = TlsSettings::new(certificate.clone(), key.clone());
        Tls::new(&settings).expect("they fit");
        Tls::new(&TlsSettings { client_ca: Some(certificate.clone().into()), require_client: true, ..settings.clone() }).expect("they fit");
        let broken = key.replace("END PRIVATE", "END");
        for (wrong, setting, why) in [
            (TlsSettings::new(key.clone(), key.clone()), "certificate", "no certificate"),
            (TlsSettings::new("", key.clone()), "certificate", "no certificate"),
            (TlsSettings::new("-----BEGIN CERTIFICATE-----\n", key.clone()), "certificate", "no PEM"),
            (TlsSettings::new(certificate.clone(), ""), "key", "no private key"),
            (TlsSettings::new(certificate.clone(), broken), "key", "no private key"),
            (TlsSettings::new(certificate, other), "key", "not the key of the certificate"),
            (TlsSettings { client_ca: Some(Vec::new()), ..settings.clone() }, "client_ca", "no certificate"),
            (TlsSettings { require_client: true, ..settings.clone() }, "require_client", "`client_ca`"),
        ] {
            let error = Tls::new(&wrong).expect_err(why);
            assert!(error.setting == setting && error.reason.contains(why), "{error:?}");
            assert!(!error.reason.contains("BEGIN"), "{error}");
        }
        assert!(!format!("{settings:?}").contains("PRIVATE"), "the key is not for logs");
    }
}
