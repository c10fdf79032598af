//! Tokens by OAuth: who is asked for what, and how often.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use futures_util::future::BoxFuture;
use reqwest::Url;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use taskwire::{
    client::{Challenge, Consent, Credentials, Error, Grant, OAuth, OAuthSettings},
    clock::ManualClock,
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinHandle,
};

use super::script::Request;
use crate::kit::{Client, HOUR, TempDir, manual_clock, value_of, with_timeout};

type Form = BTreeMap<String, String>;

/// What an authorization server does; the defaults are those of a good one.
#[derive(Default)]
struct Inside {
    /// What was asked, as `path` and what it carried.
    seen: Vec<(String, Form)>,
    /// The authorization server that the resource names, if it is not this one.
    moved_to: Option<String>,
    /// What is added to, or replaces something of, its description of itself.
    metadata: Value,
    /// What is added to each token.
    issued: Value,
    /// What the answer to the browser has besides `code` and `state`, or instead.
    redirect: Form,
    challenges: BTreeMap<String, String>,
}

/// A resource and its authorization server, on one port. Tokens live an hour; each can be renewed, once.
struct Fake {
    port: u16,
    inside: Arc<Mutex<Inside>>,
    serving: JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Fake {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let inside = Arc::new(Mutex::new(Inside::default()));
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

    fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn url(&self) -> String {
        format!("{}/mcp", self.origin())
    }

    /// What was asked of this path.
    fn asked(&self, path: &str) -> Vec<Form> {
        self.inside().seen.iter().filter(|(seen, _)| seen == path).map(|(_, form)| form.clone()).collect()
    }

    /// What the token endpoint was asked for.
    fn grants(&self) -> Vec<String> {
        self.asked("/token").iter().map(|form| form["grant_type"].clone()).collect()
    }

    /// The server wants a token, or a better one than `bearer`.
    fn challenge(&self, status: u16, parameters: &str, bearer: Option<&str>) -> Challenge {
        let header = format!("Bearer resource_metadata=\"{}/.well-known/oauth-protected-resource/mcp\"{parameters}", self.origin());
        Challenge { url: self.url(), status, www_authenticate: Some(header), bearer: bearer.map(str::to_owned) }
    }

    fn refuses(&self, bearer: Option<&str>) -> Challenge {
        self.challenge(401, "", bearer)
    }
}

async fn serve(mut stream: TcpStream, port: u16, inside: Arc<Mutex<Inside>>) {
    let Some(request) = Request::read(&mut stream).await else { return };
    let (status, location, body) = answer(port, &request, &mut inside.lock().unwrap_or_else(PoisonError::into_inner));
    let location = location.map(|url| format!("Location: {url}\r\n")).unwrap_or_default();
    let body = body.to_string();
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{location}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(response.as_bytes()).await;
}

fn pairs(url: &Url) -> Form {
    url.query_pairs().map(|(key, value)| (key.into_owned(), value.into_owned())).collect()
}

fn answer(port: u16, request: &Request, inside: &mut Inside) -> (&'static str, Option<String>, Value) {
    let origin = format!("http://127.0.0.1:{port}");
    let url = Url::parse(&format!("{origin}{}", request.path)).expect("a URL");
    let body = String::from_utf8_lossy(&request.body);
    let mut form = match url.path() {
        "/token" => pairs(&Url::parse(&format!("{origin}/?{body}")).expect("a form")),
        "/register" => Form::from([("body".to_owned(), body.into_owned())]),
        _ => pairs(&url),
    };
    if let Some(authorization) = value_of(&request.headers, "authorization") {
        form.insert("authorization".to_owned(), authorization.to_owned());
    }
    inside.seen.push((url.path().to_owned(), form.clone()));
    let asked = |path: &str| inside.seen.iter().filter(|(seen, _)| seen == path).count();
    match url.path() {
        "/.well-known/oauth-protected-resource/mcp" => {
            let server = inside.moved_to.clone().unwrap_or_else(|| origin.clone());
            ("200 OK", None, json!({"resource": format!("{origin}/mcp"), "authorization_servers": [server], "scopes_supported": ["read"]}))
        }
        "/.well-known/oauth-authorization-server" => {
            let mut metadata = json!({
                "issuer": origin,
                "authorization_endpoint": format!("{origin}/authorize"),
                "token_endpoint": format!("{origin}/token"),
                "registration_endpoint": format!("{origin}/register"),
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": true,
            });
            for (key, value) in inside.metadata.as_object().cloned().unwrap_or_default() {
                metadata[key] = value;
            }
            ("200 OK", None, metadata)
        }
        "/register" => {
            let client = format!("client-{}", asked("/register"));
            ("201 Created", None, json!({"client_id": client, "client_secret": "s3cret", "redirect_uris": ["http://127.0.0.1:1/callback"]}))
        }
        "/authorize" => {
            let code = format!("code-{}", asked("/authorize"));
            inside.challenges.insert(code.clone(), form["code_challenge"].clone());
            let mut back = Url::parse(&form["redirect_uri"]).expect("a URL");
            let mut answer =
                Form::from([("code".to_owned(), code), ("state".to_owned(), form["state"].clone()), ("iss".to_owned(), origin)]);
            answer.extend(inside.redirect.clone());
            back.query_pairs_mut().extend_pairs(answer.iter().filter(|(_, value)| !value.is_empty()));
            ("302 Found", Some(back.into()), Value::Null)
        }
        "/token" => {
            let n = asked("/token");
            let mut issued =
                json!({"access_token": format!("t{n}"), "token_type": "Bearer", "expires_in": 3600, "refresh_token": format!("r{n}")});
            for (key, value) in inside.issued.as_object().cloned().unwrap_or_default() {
                issued[key] = value;
            }
            let good = match form["grant_type"].as_str() {
                "authorization_code" => {
                    let challenge = inside.challenges.remove(&form["code"]);
                    challenge == Some(BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"])))
                }
                // Only the last refresh token is good, and only for who it was issued to.
                "refresh_token" => form["refresh_token"] == format!("r{}", n - 1) && form.contains_key("authorization"),
                "client_credentials" => form.contains_key("client_secret") || form.contains_key("authorization"),
                _ => false,
            };
            if good { ("200 OK", None, issued) } else { ("400 Bad Request", None, json!({"error": "invalid_grant"})) }
        }
        _ => ("404 Not Found", None, Value::Null),
    }
}

/// A person with a browser, who does what the authorization server says.
#[derive(Default)]
struct Person {
    asked: AtomicU32,
    /// Never comes back.
    away: bool,
    reached: Notify,
}

impl Person {
    fn asked(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }
}

struct Asks(Arc<Person>);

impl Consent for Asks {
    fn authorize<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<String, Error>> {
        Box::pin(async move {
            self.0.asked.fetch_add(1, Ordering::Relaxed);
            self.0.reached.notify_one();
            if self.0.away {
                return std::future::pending().await;
            }
            let url = Url::parse(url).expect("a URL");
            let target = format!("{}?{}", url.path(), url.query().unwrap_or_default());
            let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            let response = Client::new(url.port().expect("a port")).bytes(request.as_bytes()).await;
            Ok(response.header("location").expect("sent on").to_owned())
        })
    }

    fn redirect_uri(&self) -> String {
        "http://127.0.0.1:1/callback".to_owned()
    }
}

/// Somebody who wants to use a server.
struct Stage {
    fake: Fake,
    person: Arc<Person>,
    clock: ManualClock,
}

impl Stage {
    async fn new() -> Self {
        Self { fake: Fake::start().await, person: Arc::default(), clock: manual_clock() }
    }

    fn settings(&self) -> OAuthSettings {
        OAuthSettings { clock: Arc::new(self.clock.clone()), ..OAuthSettings::with_consent(Asks(self.person.clone())) }
    }

    fn oauth(&self) -> OAuth {
        OAuth::new(&self.fake.url(), self.settings()).expect("settings that work")
    }

    fn kept_in(&self, directory: PathBuf) -> OAuth {
        OAuth::new(&self.fake.url(), OAuthSettings { directory: Some(directory), ..self.settings() }).expect("settings that work")
    }
}

async fn bearer(oauth: &OAuth) -> Option<String> {
    with_timeout("a token", oauth.bearer()).await.expect("no error")
}

async fn better(oauth: &OAuth, challenge: &Challenge) -> bool {
    with_timeout("an end of the flow", oauth.challenged(challenge)).await.expect("no error")
}

async fn refused(oauth: &OAuth, challenge: &Challenge) -> Error {
    with_timeout("an end of the flow", oauth.challenged(challenge)).await.expect_err("an error")
}

fn words(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

#[tokio::test]
async fn a_person_is_asked_once_and_the_token_is_renewed_without_them() {
    let stage = Stage::new().await;
    let oauth = stage.oauth();
    assert_eq!(bearer(&oauth).await, None, "nobody is asked before the server wants a token");
    assert!(better(&oauth, &stage.fake.refuses(None)).await);
    assert_eq!(bearer(&oauth).await.as_deref(), Some("t1"));

    let asked = &stage.fake.asked("/authorize")[0];
    assert_eq!((asked["scope"].as_str(), asked["resource"].as_str()), ("read", stage.fake.url().as_str()));
    assert_eq!((asked["client_id"].as_str(), asked["code_challenge_method"].as_str()), ("client-1", "S256"));
    let registered: Value = serde_json::from_str(&stage.fake.asked("/register")[0]["body"]).expect("JSON");
    assert_eq!((&registered["client_name"], &registered["application_type"]), (&json!("Taskwire"), &json!("native")));

    stage.clock.advance(HOUR - Duration::from_secs(10));
    assert_eq!(bearer(&oauth).await.as_deref(), Some("t2"));
    assert_eq!(bearer(&oauth).await.as_deref(), Some("t2"));
    assert_eq!(stage.fake.grants(), ["authorization_code", "refresh_token"]);
    assert_eq!(stage.fake.asked("/token")[1]["resource"], stage.fake.url());
    assert_eq!(stage.person.asked(), 1);
}

#[tokio::test]
async fn a_sign_in_outlives_the_process_with_the_secret_of_the_client() {
    let (stage, dir) = (Stage::new().await, TempDir::new());
    let first = stage.kept_in(dir.path().to_owned());
    assert!(better(&first, &stage.fake.refuses(None)).await);
    drop(first);

    let second = stage.kept_in(dir.path().to_owned());
    assert_eq!(bearer(&second).await.as_deref(), Some("t1"));
    stage.clock.advance(HOUR);
    assert_eq!(bearer(&second).await.as_deref(), Some("t2"));

    // A third one that read the file before would use up a refresh token that is not good any more.
    let third = stage.kept_in(dir.path().to_owned());
    assert_eq!(bearer(&third).await.as_deref(), Some("t2"));
    stage.clock.advance(HOUR);
    assert_eq!(bearer(&second).await.as_deref(), Some("t3"));
    assert_eq!(bearer(&third).await.as_deref(), Some("t3"), "what the other one renewed");
    assert_eq!(stage.fake.grants().len(), 3);
    assert_eq!((stage.person.asked(), stage.fake.asked("/register").len()), (1, 1));
}

#[tokio::test]
async fn a_renewal_asks_for_what_was_granted_and_for_nothing_else() {
    let (stage, dir) = (Stage::new().await, TempDir::new());
    stage.fake.inside().metadata = json!({"scopes_supported": ["read", "offline_access"]});
    stage.fake.inside().issued = json!({"scope": "read"});
    let oauth = stage.kept_in(dir.path().to_owned());
    assert!(better(&oauth, &stage.fake.refuses(None)).await);
    assert_eq!(words(&stage.fake.asked("/authorize")[0]["scope"]), ["read", "offline_access"]);
    stage.clock.advance(HOUR);
    assert_eq!(bearer(&oauth).await.as_deref(), Some("t2"));
    stage.clock.advance(HOUR);
    assert_eq!(bearer(&stage.kept_in(dir.path().to_owned())).await.as_deref(), Some("t3"));
    let renewals = stage.fake.asked("/token").into_iter().skip(1).map(|form| form["scope"].clone());
    assert_eq!(renewals.collect::<Vec<_>>(), ["read", "read"], "offline access was offered and not granted");
}

#[tokio::test]
async fn a_token_that_the_server_does_not_take_any_more_is_renewed() {
    let stage = Stage::new().await;
    let oauth = stage.oauth();
    assert!(better(&oauth, &stage.fake.refuses(None)).await);
    for _ in 0..3 {
        assert_eq!(bearer(&oauth).await.as_deref(), Some("t1"));
    }
    assert!(better(&oauth, &stage.fake.refuses(Some("t1"))).await);
    assert_eq!(bearer(&oauth).await.as_deref(), Some("t2"));
    assert_eq!(stage.person.asked(), 1);

    // A refusal of the old one that comes late says nothing about the new one.
    assert!(better(&oauth, &stage.fake.refuses(Some("t1"))).await);
    assert_eq!(stage.fake.grants().len(), 2);

    // The renewed one is refused at its first use: another one of the kind would not help, but a person may.
    assert!(better(&oauth, &stage.fake.refuses(Some("t2"))).await);
    assert_eq!(bearer(&oauth).await.as_deref(), Some("t3"));
    assert_eq!(stage.fake.grants(), ["authorization_code", "refresh_token", "authorization_code"]);
    assert_eq!((stage.person.asked(), stage.fake.asked("/register").len()), (2, 1), "we are still who we were");
}

#[tokio::test]
async fn a_server_that_takes_no_token_at_all_is_given_up() {
    let stage = Stage::new().await;
    let oauth = stage.oauth();
    assert!(better(&oauth, &stage.fake.refuses(None)).await);
    assert_eq!(bearer(&oauth).await.as_deref(), Some("t1"));
    let error = refused(&oauth, &stage.fake.refuses(Some("t1"))).await;
    assert!(matches!(error, Error::Unauthorized { .. }), "{error}");
    assert_eq!(stage.person.asked(), 1);
}

#[tokio::test]
async fn a_server_that_wants_more_is_given_more_but_not_twice_the_same() {
    let stage = Stage::new().await;
    let oauth = stage.oauth();
    let wants =
        |scope: &str, bearer: &str| stage.fake.challenge(403, &format!(", error=\"insufficient_scope\", scope=\"{scope}\""), Some(bearer));
    assert!(better(&oauth, &stage.fake.refuses(None)).await);
    assert!(better(&oauth, &wants("write", "t1")).await);
    assert_eq!(bearer(&oauth).await.as_deref(), Some("t2"));
    assert!(better(&oauth, &wants("delete write", "t2")).await);
    let asked: Vec<String> = stage.fake.asked("/authorize").iter().map(|form| form["scope"].clone()).collect();
    assert_eq!(words(&asked[1]), ["read", "write"]);
    assert_eq!(words(&asked[2]), ["read", "write", "delete"]);

    assert!(!better(&oauth, &wants("write delete", "t3")).await);
    assert!(!better(&oauth, &stage.fake.challenge(403, "", Some("t3"))).await, "no scope would help");
    assert!(!better(&oauth, &stage.fake.challenge(403, ", error=\"insufficient_scope\"", Some("t3"))).await);
    assert_eq!((stage.person.asked(), stage.fake.asked("/register").len()), (3, 1));
}

#[tokio::test]
async fn requests_that_are_refused_together_ask_a_person_once() {
    let stage = Stage::new().await;
    let oauth = stage.oauth();
    let challenge = stage.fake.refuses(None);
    let all = with_timeout("all flows", async { tokio::join!(oauth.challenged(&challenge), oauth.challenged(&challenge)) }).await;
    assert!(matches!(all, (Ok(true), Ok(true))), "{all:?}");
    assert_eq!(stage.person.asked(), 1);
}

#[tokio::test]
async fn who_says_no_is_not_asked_again_for_what_is_under_way() {
    let stage = Stage::new().await;
    let no = [("code", ""), ("error", "access_denied"), ("error_description", "not today")];
    stage.fake.inside().redirect = no.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let oauth = stage.oauth();
    let challenge = stage.fake.refuses(None);
    let (one, two) = with_timeout("all flows", async { tokio::join!(oauth.challenged(&challenge), oauth.challenged(&challenge)) }).await;
    for error in [one.expect_err("a refusal"), two.expect_err("a refusal")] {
        assert!(error.to_string().contains("access_denied: not today"), "{error}");
    }
    assert_eq!(stage.person.asked(), 1);
    assert_eq!(stage.fake.grants().len(), 0);

    // The next request may ask again.
    stage.fake.inside().redirect.clear();
    assert!(better(&oauth, &challenge).await);
    assert_eq!(bearer(&oauth).await.as_deref(), Some("t1"));
}

#[tokio::test]
async fn who_does_not_come_back_is_waited_for_five_minutes() {
    let mut stage = Stage::new().await;
    stage.person = Arc::new(Person { away: true, ..Person::default() });
    let oauth = stage.oauth();
    let challenge = stage.fake.refuses(None);
    let waits = async {
        stage.person.reached.notified().await;
        stage.clock.advance(Duration::from_secs(300));
    };
    let (waited, ()) = with_timeout("an end", async { tokio::join!(oauth.challenged(&challenge), waits) }).await;
    let error = waited.expect_err("an end").to_string();
    assert!(error.contains("300 seconds"), "{error}");
}

#[tokio::test]
async fn an_answer_that_comes_from_elsewhere_is_not_exchanged() {
    let stage = Stage::new().await;
    let oauth = stage.oauth();
    for (key, value) in [("iss", "https://evil.example"), ("iss", ""), ("state", "other")] {
        stage.fake.inside().redirect = Form::from([(key.to_owned(), value.to_owned())]);
        let error = refused(&oauth, &stage.fake.refuses(None)).await;
        assert!(matches!(error, Error::Auth(_)), "{key}={value}: {error}");
    }
    assert_eq!(stage.fake.grants().len(), 0);
    assert_eq!(bearer(&oauth).await, None);
}

#[tokio::test]
async fn metadata_of_somebody_else_is_not_used() {
    let stage = Stage::new().await;
    stage.fake.inside().metadata = json!({"issuer": "https://evil.example"});
    let error = refused(&stage.oauth(), &stage.fake.refuses(None)).await;
    assert!(error.to_string().contains("evil.example"), "{error}");
    stage.fake.inside().metadata = json!({"code_challenge_methods_supported": ["plain"]});
    let error = refused(&stage.oauth(), &stage.fake.refuses(None)).await;
    assert!(error.to_string().contains("PKCE") || error.to_string().contains("S256"), "{error}");
    assert_eq!(stage.person.asked(), 0);
}

#[tokio::test]
async fn a_new_authorization_server_gets_nothing_of_the_old_one() {
    let (stage, new) = (Stage::new().await, Fake::start().await);
    let oauth = stage.oauth();
    assert!(better(&oauth, &stage.fake.refuses(None)).await);
    for _ in 0..2 {
        assert_eq!(bearer(&oauth).await.as_deref(), Some("t1"));
    }
    // The first client that it registers must not be mistaken for the old one.
    new.inside().seen.push(("/register".to_owned(), Form::new()));
    stage.fake.inside().moved_to = Some(new.origin());
    assert!(better(&oauth, &stage.fake.refuses(Some("t1"))).await);
    assert_eq!(stage.fake.grants(), ["authorization_code"], "the old one is not asked to renew");
    assert_eq!(new.grants(), ["authorization_code"]);
    assert_eq!(new.asked("/authorize")[0]["client_id"], "client-2");
    let old = |value: &String| value == "r1" || value == "client-1";
    assert!(new.inside().seen.iter().all(|(_, form)| !form.values().any(old)));
}

#[tokio::test]
async fn a_known_client_is_not_registered() {
    let stage = Stage::new().await;
    let settings = OAuthSettings { client_id: Some("me".to_owned()), client_secret: Some("mine".to_owned()), ..stage.settings() };
    let oauth = OAuth::new(&stage.fake.url(), settings).expect("settings that work");
    assert!(better(&oauth, &stage.fake.refuses(None)).await);
    assert_eq!(stage.fake.asked("/authorize")[0]["client_id"], "me");
    assert!(stage.fake.asked("/token")[0]["authorization"].starts_with("Basic "));

    stage.fake.inside().metadata = json!({"client_id_metadata_document_supported": true});
    let url = "https://client.example/metadata.json";
    let settings = OAuthSettings { client_metadata_url: Some(url.to_owned()), ..stage.settings() };
    let oauth = OAuth::new(&stage.fake.url(), settings).expect("settings that work");
    assert!(better(&oauth, &stage.fake.refuses(None)).await);
    assert_eq!(stage.fake.asked("/authorize")[1]["client_id"], url);
    assert_eq!(stage.fake.asked("/register").len(), 0);
}

#[tokio::test]
async fn a_client_that_speaks_for_itself_asks_nobody() {
    let (stage, dir) = (Stage::new().await, TempDir::new());
    let settings = OAuthSettings {
        grant: Grant::ClientSecret,
        client_id: Some("me".to_owned()),
        client_secret: Some("mine".to_owned()),
        directory: Some(dir.path().to_owned()),
        ..stage.settings()
    };
    let oauth = OAuth::new(&stage.fake.url(), settings).expect("settings that work");
    assert!(better(&oauth, &stage.fake.refuses(None)).await);
    assert_eq!(bearer(&oauth).await.as_deref(), Some("t1"));
    let asked = &stage.fake.asked("/token")[0];
    assert_eq!((asked["grant_type"].as_str(), asked["resource"].as_str()), ("client_credentials", stage.fake.url().as_str()));
    assert_eq!(stage.person.asked(), 0);
    assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0, "nothing is kept that costs nobody anything");
}
