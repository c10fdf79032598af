//! TLS by the server itself: who is served, what a new certificate changes, and whom the certificates of clients name.

use std::{io, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, RootCertStore, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    version::{TLS12, TLS13},
};
use serde_json::json;
use taskwire::{
    clock::{Clock, ManualClock, SystemClock},
    core::{CallerId, TaskId},
    server::{AuditAction, Callers, Config, HttpConfig, Server, Tls, TlsSettings},
    tool::{Registry, TaskMode},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use self::authority::{Authority, Signed};
use crate::{
    audit::Record,
    kit::{Client, HOUR, SECOND, TASKS, TempDir, manual_clock, passing, server_in, with_timeout},
    tasks::{Gate, Signal, quick, registry, tool},
};

mod authority;

const BOTH: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

/// A server that speaks TLS, on a port of its own.
struct TlsServer {
    server: Server,
    port: u16,
    _dir: TempDir,
}

impl TlsServer {
    async fn start(tls: &Tls, tools: Registry, config: Config, clock: Arc<dyn Clock>) -> Self {
        let dir = TempDir::new();
        let server = server_in(&dir, tools, config, clock);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn({
            let (server, tls) = (server.clone(), tls.clone());
            async move { server.serve_tls(listener, tls, std::future::pending()).await }
        });
        Self { server, port, _dir: dir }
    }

    async fn connect(&self, connector: &TlsConnector) -> io::Result<TlsStream<TcpStream>> {
        connect(self.port, connector).await
    }

    /// A port that leads to the server by TLS, for clients that know nothing of it.
    async fn tunnel(&self, connector: TlsConnector) -> u16 {
        let (server, listener) = (self.port, TcpListener::bind("127.0.0.1:0").await.expect("a port"));
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((mut plain, _)) = listener.accept().await {
                let connector = connector.clone();
                tokio::spawn(async move {
                    let Ok(mut secured) = connect(server, &connector).await else { return };
                    let _ = tokio::io::copy_bidirectional(&mut plain, &mut secured).await;
                });
            }
        });
        port
    }

    /// A client that knows tasks, and comes by TLS.
    async fn client(&self, connector: TlsConnector) -> Client {
        Client::new(self.tunnel(connector).await).declaring(json!({"extensions": {TASKS: {}}}))
    }

    /// All that a request is answered with on a connection of its own.
    async fn ask(&self, connector: &TlsConnector, path: &str) -> io::Result<String> {
        ask(self.connect(connector).await?, path).await
    }

    async fn probe(&self, connector: &TlsConnector) -> io::Result<String> {
        self.ask(connector, "/healthz").await
    }
}

async fn connect(port: u16, connector: &TlsConnector) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    connector.connect(ServerName::try_from("localhost").expect("a name"), stream).await
}

/// All that a request is answered with, to the end of the connection.
async fn ask(mut stream: TlsStream<TcpStream>, path: &str) -> io::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")
}

/// How a client connects that trusts this authority, and shows this certificate if it has one.
fn trusting_by(versions: &[&'static SupportedProtocolVersion], authority: &Authority, shown: Option<&Signed>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(certificate(&authority.certificate)).expect("an authority");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .expect("versions")
        .with_root_certificates(roots);
    let config = match shown {
        None => config.with_no_client_auth(),
        Some(Signed { certificate: chain, key }) => {
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
            config.with_client_auth_cert(vec![certificate(chain)], key).expect("they fit")
        }
    };
    TlsConnector::from(Arc::new(config))
}

fn trusting(authority: &Authority, shown: Option<&Signed>) -> TlsConnector {
    trusting_by(&BOTH, authority, shown)
}

fn settings(signed: Signed) -> TlsSettings {
    TlsSettings::new(signed.certificate, signed.key)
}

/// TLS with a certificate of this authority, which also says who clients are.
fn mutual(authority: &Authority, require_client: bool, clock: Arc<dyn Clock>) -> Tls {
    let client_ca = Some(authority.certificate.clone().into());
    Tls::with_clock(&TlsSettings { client_ca, require_client, ..settings(authority.server()) }, clock).expect("usable")
}

/// Only certificates say who calls.
fn by_certificate() -> Config {
    Config { auth: Arc::new(Callers::default().with_client_certificates()), ..Config::default() }
}

#[tokio::test]
async fn calls_come_by_tls_1_2_and_1_3_and_a_client_trusts_its_own_authority_only() {
    let (authority, other) = (Authority::new("ours"), Authority::new("theirs"));
    let tls = Tls::new(&settings(authority.server())).expect("usable");
    let server = TlsServer::start(&tls, registry([quick("quick")]), Config::default(), Arc::new(SystemClock)).await;
    for version in BOTH {
        let client = server.client(trusting_by(&[version], &authority, None)).await;
        assert_eq!(client.call("quick", json!({})).await["content"][0]["text"], "done", "{version:?}");
    }
    let refused = server.connect(&trusting(&other, None)).await.expect_err("the client refuses");
    assert!(refused.to_string().contains("UnknownIssuer"), "{refused}");
}

#[tokio::test]
async fn a_request_without_tls_is_told_to_use_it() {
    let tls = Tls::new(&settings(Authority::new("ours").server())).expect("usable");
    let server = TlsServer::start(&tls, registry([quick("quick")]), Config::default(), Arc::new(SystemClock)).await;
    let client = Client::new(server.port);
    for method in ["GET", "POST"] {
        let request = format!("{method} /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let answer = with_timeout("an answer", client.bytes(request.as_bytes())).await;
        assert_eq!(answer.status, 400);
        assert!(String::from_utf8_lossy(&answer.body).contains("use https://"), "{answer:?}");
    }
}

#[tokio::test]
async fn a_handshake_that_stands_still_is_ended_and_keeps_nobody_waiting() {
    let (authority, clock) = (Authority::new("ours"), manual_clock());
    let tls = Tls::with_clock(&settings(authority.server()), Arc::new(clock.clone())).expect("usable");
    let config = Config::default();
    let limit = config.http.read_timeout;
    let server = TlsServer::start(&tls, registry([quick("quick")]), config, Arc::new(clock.clone())).await;
    let mut silent = TcpStream::connect(("127.0.0.1", server.port)).await.expect("a connection");
    let mut slow = TcpStream::connect(("127.0.0.1", server.port)).await.expect("a connection");
    slow.write_all(&[22, 3, 1]).await.expect("the beginning of a handshake");
    let answer = with_timeout("an answer", server.probe(&trusting(&authority, None))).await.expect("others are served");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let began = clock.now();
    for stalled in [&mut silent, &mut slow] {
        let mut buffer = [0];
        let read = with_timeout("the end of it", passing(&clock, SECOND, stalled.read(&mut buffer))).await;
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    assert!(clock.now().since(began) + SECOND >= limit, "it had its time");
}

#[tokio::test]
async fn many_who_never_shake_hands_give_way_to_those_who_come() {
    let authority = Authority::new("ours");
    let tls = Tls::new(&settings(authority.server())).expect("usable");
    let config = Config { http: HttpConfig { connections: 2, ..HttpConfig::default() }, ..Config::default() };
    let server = TlsServer::start(&tls, registry([quick("quick")]), config, Arc::new(SystemClock)).await;
    let mut stalled = Vec::new();
    for _ in 0..5 {
        stalled.push(TcpStream::connect(("127.0.0.1", server.port)).await.expect("a connection"));
    }
    let answer = with_timeout("an answer", server.probe(&trusting(&authority, None))).await.expect("there is room");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let read = with_timeout("the end of the first", stalled[0].read(&mut [0])).await;
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

#[tokio::test]
async fn a_client_that_reads_nothing_by_tls_gives_its_place_to_others() {
    const BYTES: usize = 12 * 1024 * 1024;
    let (authority, clock, started) = (Authority::new("ours"), manual_clock(), Signal::new());
    let tls = Tls::with_clock(&settings(authority.server()), Arc::new(clock.clone())).expect("usable");
    // The clock runs while others shake hands.
    let http = HttpConfig { connections: 1, read_timeout: 1_000 * HOUR, ..HttpConfig::default() };
    let large = tool("large", &started, |started, _ctx| async move {
        started.send();
        Ok("x".repeat(BYTES))
    });
    let tools = registry([large.task(TaskMode::Never)]);
    let server = TlsServer::start(&tls, tools, Config { http, ..Config::default() }, Arc::new(clock.clone())).await;
    let connector = trusting(&authority, None);
    let mut silent = server.connect(&connector).await.expect("a connection");
    let client = Client::new(server.port);
    let message = client.message(1, "tools/call", json!({"name": "large", "arguments": {}}));
    let lines: String = client.headers(&message).iter().map(|(key, value)| format!("{key}: {value}\r\n")).collect();
    let body = message.to_string();
    let request = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n{lines}\r\n{body}", body.len());
    silent.write_all(request.as_bytes()).await.expect("it is sent");
    with_timeout("the work", started.wait()).await;
    for (path, status) in [("/", "503"), ("/readyz", "200")] {
        let answer = with_timeout("a refusal by TLS", server.ask(&connector, path)).await.expect("an answer");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    let place = async {
        // Who is refused may be cut off.
        while !server.ask(&connector, "/nothing").await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 404")) {}
    };
    with_timeout("a place", passing(&clock, SECOND, place)).await;
    drop(silent);
}

#[tokio::test]
async fn a_new_certificate_is_for_new_connections_and_a_stream_of_before_goes_on() {
    let (authority, gate) = (Authority::new("ours"), Gate::new());
    let (first, second) = (authority.server(), authority.server());
    let tls = Tls::new(&settings(first.clone())).expect("usable");
    let tools = registry([gate.tool("slow").task(TaskMode::Always)]);
    let server = TlsServer::start(&tls, tools, Config::default(), Arc::new(SystemClock)).await;
    let connector = trusting(&authority, None);
    let shown = async || {
        let connected = server.connect(&connector).await.expect("a connection");
        connected.get_ref().1.peer_certificates().expect("certificates")[0].clone()
    };
    let client = server.client(connector.clone()).await;
    let task = client.start("slow", json!({})).await;
    let mut stream = client.listen(json!({"taskIds": [task]})).await;
    assert_eq!(shown().await, certificate(&first.certificate));
    tls.replace_with(&Tls::new(&settings(second.clone())).expect("usable"));
    assert_eq!(shown().await, certificate(&second.certificate));
    gate.go.send();
    loop {
        let message = with_timeout("the end of the task", stream.next()).await.expect("the stream goes on");
        if message["params"]["status"] == "completed" {
            break;
        }
    }
}

#[tokio::test]
async fn a_certificate_names_its_caller_and_others_do_not_see_what_is_hers() {
    let (authority, gate) = (Authority::new("ours"), Gate::new());
    let tls = mutual(&authority, false, Arc::new(SystemClock));
    let tools = registry([gate.tool("slow").task(TaskMode::Always)]);
    let server = TlsServer::start(&tls, tools, by_certificate(), Arc::new(SystemClock)).await;
    let ada = authority.signs("Ada", |params| {
        params.subject_alt_names = vec![rcgen::SanType::URI("spiffe://example/ada".try_into().expect("ASCII"))];
    });
    let bob = authority.signs("bob", |_| {});
    let (ada, bob) = (server.client(trusting(&authority, Some(&ada))).await, server.client(trusting(&authority, Some(&bob))).await);
    let task = ada.start("slow", json!({})).await;
    assert_eq!(ada.get(&task).await["status"], "working", "on another connection");
    assert_eq!(bob.error("tasks/get", json!({"taskId": task})).await["message"], "Task not found");
    let of_bob = bob.start("slow", json!({})).await;
    for (name, task) in [("cert:spiffe://example/ada", task), ("cert:cn:bob", of_bob)] {
        let (caller, task) = (CallerId::new(name), task.parse::<TaskId>().expect("an id"));
        assert!(server.server.engine().task(&caller, task).await.expect("readable").is_some(), "{name}");
    }
    let nobody = server.client(trusting(&authority, None)).await.raw("tools/list", json!({})).await;
    assert_eq!(nobody.status, 401);
    assert!(nobody.json()["error"]["message"].as_str().is_some_and(|why| why.contains("client certificate")), "{nobody:?}");
    assert!(server.probe(&trusting(&authority, None)).await.expect("a probe needs none").starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn whoever_has_to_show_a_certificate_and_has_none_of_ours_does_not_get_in() {
    let (authority, other) = (Authority::new("ours"), Authority::new("theirs"));
    let tls = mutual(&authority, true, Arc::new(SystemClock));
    let server = TlsServer::start(&tls, registry([quick("quick")]), Config::default(), Arc::new(SystemClock)).await;
    let (ours, theirs) = (authority.signs("ada", |_| {}), other.signs("ada", |_| {}));
    for version in BOTH {
        let probe = async |shown: Option<&Signed>| {
            let connector = trusting_by(&[version], &authority, shown);
            with_timeout("the end of it", server.probe(&connector)).await
        };
        assert!(probe(Some(&ours)).await.expect("it is known").starts_with("HTTP/1.1 200"), "{version:?}");
        assert!(probe(None).await.is_err(), "{version:?}");
        assert!(probe(Some(&theirs)).await.is_err(), "{version:?}");
    }
}

#[tokio::test]
async fn what_streams_for_a_certificate_ends_when_that_expires() {
    let (authority, gate, clock) = (Authority::new("ours"), Gate::new(), manual_clock());
    let shared: Arc<ManualClock> = Arc::new(clock.clone());
    let tls = mutual(&authority, false, shared.clone());
    let tools = registry([gate.tool("slow").task(TaskMode::Always)]);
    let (record, mut config) = (Arc::new(Record::default()), by_certificate());
    config.engine.audit = Some(record.clone());
    let server = TlsServer::start(&tls, tools, config, shared).await;
    // The clock stands a day before that.
    let ada = authority.signs("ada", |params| params.not_after = rcgen::date_time_ymd(2026, 7, 29));
    let client = server.client(trusting(&authority, Some(&ada))).await;
    let task = client.start("slow", json!({})).await;
    let mut stream = client.listen(json!({"taskIds": [task]})).await;
    // With TLS 1.2 the server has seen the certificate when the client is connected.
    let early = trusting_by(&[&TLS12], &authority, Some(&ada));
    let kept = server.connect(&early).await.expect("it is valid");
    clock.advance(24 * HOUR + Duration::from_secs(1));
    while with_timeout("the end of the stream", stream.next()).await.is_some() {}
    let answer = with_timeout("an answer", ask(kept, "/metrics")).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("has expired"), "{answer}");
    let recorded = record.take().pop();
    assert_eq!(recorded, Some((AuditAction::Refused, None, "sign-in: the client certificate has expired".to_owned())));
    assert!(server.connect(&early).await.is_err(), "a new connection is refused");
    assert!(!gate.stopped.is_sent(), "its work goes on");
}
