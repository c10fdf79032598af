//! An identity provider on a port of its own, and a server that takes its tokens.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use taskwire::server::{Callers, Config, Introspection, Issuer, Issuers, ProtectedResource, ScopeRules, Tokens};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::signing::Signer;

/// The URL of the server, as its clients and its issuer know it.
pub(super) const RESOURCE: &str = "http://127.0.0.1/mcp";
/// When the clock of the tests begins, in seconds.
pub(super) const NOW: i64 = 1_785_196_800;

struct Inside {
    signers: Vec<Signer>,
    is_down: bool,
    /// What was asked for, by path.
    asked: Vec<String>,
    /// What it says of opaque tokens.
    opaque: BTreeMap<String, Value>,
}

/// An identity provider. It signs with the last of its keys.
pub(super) struct Provider {
    port: u16,
    inside: Arc<Mutex<Inside>>,
    serving: JoinHandle<()>,
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Provider {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let inside = Inside { signers: vec![Signer::new("first")], is_down: false, asked: Vec::new(), opaque: BTreeMap::new() };
        let inside = Arc::new(Mutex::new(inside));
        let serving = tokio::spawn({
            let inside = inside.clone();
            async move {
                loop {
                    let (stream, _) = listener.accept().await.expect("a connection");
                    tokio::spawn(serve(stream, port, inside.clone()));
                }
            }
        });
        Self { port, inside, serving }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The claims of a good token, with these instead of some of them; `null` takes one away.
    pub(super) fn claims(&self, other: Value) -> Value {
        let mut claims = json!({"iss": self.url(), "aud": RESOURCE, "sub": "ada", "exp": NOW + 3600});
        for (name, value) in other.as_object().cloned().unwrap_or_default() {
            claims[name] = value;
        }
        claims.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
        claims
    }

    /// A token with these claims instead of some of a good one.
    pub(super) fn token(&self, other: Value) -> String {
        let claims = self.claims(other);
        self.inside().signers.last().expect("a key").sign(&claims)
    }

    /// The same with a header of the test's own.
    pub(super) fn token_with(&self, header: &Value, other: Value) -> String {
        let claims = self.claims(other);
        self.inside().signers.last().expect("a key").sign_with(header, &claims)
    }

    /// From now on it signs with another key. The old one is still shown if it `stays`.
    pub(super) fn rotate(&self, name: &str, stays: bool) {
        let mut inside = self.inside();
        if !stays {
            inside.signers.clear();
        }
        inside.signers.push(Signer::new(name));
    }

    pub(super) fn is_down(&self, is_down: bool) {
        self.inside().is_down = is_down;
    }

    /// What it says of an opaque token.
    pub(super) fn knows(&self, token: &str, said: Value) {
        self.inside().opaque.insert(token.to_owned(), said);
    }

    /// How often this path was asked for.
    pub(super) fn asked(&self, path: &str) -> usize {
        self.inside().asked.iter().filter(|asked| *asked == path).count()
    }

    /// A server that takes its tokens, and one that is fixed. Clocks may not differ, so that tests can count in seconds.
    pub(super) fn guards(&self, rules: ScopeRules, config: Config) -> Config {
        self.guards_as(Issuer::new(&self.url(), [RESOURCE]), rules, config)
    }

    /// The same for tokens that cannot be read: it asks the provider.
    pub(super) fn guards_by_asking(&self, config: Config) -> Config {
        let url = format!("{}/introspect", self.url());
        let introspection = Introspection { url, client_id: "taskwire".to_owned(), client_secret: "s3cret".to_owned() };
        let issuer = Issuer { introspection: Some(introspection), ..Issuer::new(&self.url(), [RESOURCE]) };
        self.guards_as(issuer, ScopeRules::default(), config)
    }

    fn guards_as(&self, issuer: Issuer, rules: ScopeRules, config: Config) -> Config {
        let issuers = Issuers::new(vec![issuer], Duration::ZERO).expect("an issuer");
        let resource = ProtectedResource::new(RESOURCE, vec![self.url()]).expect("a URL");
        let tokens = Tokens::default().with_token("fixed-token", "robot");
        let callers = Callers::default().with_tokens(tokens).with_issuers(issuers).with_resource(resource).with_scope_rules(rules);
        Config { auth: Arc::new(callers), ..config }
    }
}

async fn serve(stream: TcpStream, port: u16, inside: Arc<Mutex<Inside>>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let inside = inside.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let mut inside = inside.lock().unwrap_or_else(PoisonError::into_inner);
            let (status, answer) = answer(port, parts.uri.path(), &String::from_utf8_lossy(&body), &mut inside);
            let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
            *response.status_mut() = status.try_into().expect("a status");
            Ok::<_, Infallible>(response)
        }
    });
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

fn answer(port: u16, path: &str, form: &str, inside: &mut Inside) -> (u16, Value) {
    inside.asked.push(path.to_owned());
    let url = format!("http://127.0.0.1:{port}");
    match path {
        _ if inside.is_down => (503, Value::Null),
        "/.well-known/openid-configuration" => (200, json!({"issuer": url, "jwks_uri": format!("{url}/keys")})),
        "/keys" => (200, json!({"keys": inside.signers.iter().map(Signer::jwk).collect::<Vec<_>>()})),
        "/introspect" => {
            let token = form.split('&').find_map(|pair| pair.strip_prefix("token=")).unwrap_or_default();
            (200, inside.opaque.get(token).cloned().unwrap_or_else(|| json!({"active": false})))
        }
        _ => (404, Value::Null),
    }
}
