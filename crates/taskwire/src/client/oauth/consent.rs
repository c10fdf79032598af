//! How a person agrees: they open a URL in a browser, which is redirected to a port of this machine.

use std::{
    fmt,
    net::{Ipv4Addr, TcpListener as StdListener},
    sync::OnceLock,
    time::Duration,
};

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use reqwest::Url;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::parameter;
use crate::{
    client::Error,
    clock::{Clock, SystemClock},
};

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// How long a browser may take to send the head, and to read the page.
const BROWSER: Duration = Duration::from_secs(10);
/// More than one: browsers open connections that they may not use.
const CONNECTIONS_MAX: usize = 16;
const PATH: &str = "/callback";

/// Asks a person to sign in.
pub trait Consent: Send + Sync {
    /// Has the person open `url`, and returns the whole URL that the browser was redirected to. The client drops the future
    /// when the person takes too long.
    fn authorize<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<String, Error>>;

    /// The redirect URI. It should be the same each time: the authorization server remembers it.
    fn redirect_uri(&self) -> String;
}

/// Shows the URL, and waits for the browser on a port of this machine (RFC 8252). It never opens a browser itself.
///
/// It opens the port when it first needs it.
pub struct LoopbackConsent {
    show: Box<dyn Fn(&str) + Send + Sync>,
    port: u16,
    listener: OnceLock<Result<(StdListener, u16), String>>,
}

impl fmt::Debug for LoopbackConsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopbackConsent").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl LoopbackConsent {
    /// On any free port. `show` gets the URL that the person must open.
    pub fn new(show: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { show: Box::new(show), port: 0, listener: OnceLock::new() }
    }

    /// On this port, for a client id that was registered with it: the redirect URI is `http://127.0.0.1:PORT/callback`.
    #[must_use]
    pub fn on_port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    fn listener(&self) -> Result<&(StdListener, u16), Error> {
        let listener = self.listener.get_or_init(|| {
            let bound = StdListener::bind((Ipv4Addr::LOCALHOST, self.port)).and_then(|listener| {
                listener.set_nonblocking(true)?;
                let port = listener.local_addr()?.port();
                Ok((listener, port))
            });
            bound.map_err(|error| error.to_string())
        });
        let failed = |reason: &String| Error::Auth(format!("the browser cannot come back to 127.0.0.1:{}: {reason}", self.port));
        listener.as_ref().map_err(failed)
    }

    async fn wait(&self, url: &str) -> Result<String, Error> {
        let (listener, port) = self.listener()?;
        let failed = |error: std::io::Error| Error::Auth(format!("the browser cannot come back to 127.0.0.1:{port}: {error}"));
        let listener = TcpListener::from_std(listener.try_clone().map_err(failed)?).map_err(failed)?;
        let state = parameter(url, "state").ok_or_else(|| Error::Auth("the address to open names no state".to_owned()))?;
        (self.show)(url);
        let mut visits = FuturesUnordered::new();
        loop {
            tokio::select! {
                accepted = listener.accept(), if visits.len() < CONNECTIONS_MAX => {
                    let (stream, _) = accepted.map_err(failed)?;
                    visits.push(visit(stream, *port, &state));
                }
                Some(redirected) = visits.next(), if !visits.is_empty() => {
                    if let Some(redirected) = redirected {
                        return Ok(redirected);
                    }
                }
            }
        }
    }
}

impl Consent for LoopbackConsent {
    fn authorize<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<String, Error>> {
        Box::pin(self.wait(url))
    }

    fn redirect_uri(&self) -> String {
        // If the port cannot be opened, `wait` returns the error.
        let port = self.listener().map_or(self.port, |(_, port)| *port);
        format!("http://{}:{port}{PATH}", Ipv4Addr::LOCALHOST)
    }
}

/// Serves one connection. Returns the redirect, if it is the expected one.
async fn visit(mut stream: TcpStream, port: u16, state: &str) -> Option<String> {
    let clock = SystemClock;
    let head = tokio::select! {
        head = head(&mut stream) => head?,
        () = clock.sleep(BROWSER) => return None,
    };
    let (reply, redirected) = reply(&head, port, state);
    tokio::select! {
        _ = async {
            stream.write_all(reply.bytes().as_slice()).await?;
            stream.shutdown().await
        } => {}
        () = clock.sleep(BROWSER) => {}
    }
    redirected
}

/// Reads the head of a request, up to a bit more than the limit.
async fn head(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = Vec::with_capacity(1024);
    let mut piece = [0; 1024];
    loop {
        let n = stream.read(&mut piece).await.ok().filter(|n| *n > 0)?;
        head.extend_from_slice(&piece[..n]);
        if head.windows(4).any(|end| end == b"\r\n\r\n") || head.len() > HEAD_BYTES_MAX {
            return Some(head);
        }
    }
}

/// The page that a browser gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    Agreed,
    Refused,
    WrongState,
    NotFound,
    MethodNotAllowed,
    TooLong,
}

impl Reply {
    /// The page has fixed texts only: nothing of the request is in it.
    fn bytes(self) -> Vec<u8> {
        let (status, title, text) = match self {
            Self::Agreed => ("200 OK", "You are signed in", "You can close this window and go back to the program that sent you here."),
            Self::Refused => ("200 OK", "You are not signed in", "The sign-in was refused. The program that sent you here says why."),
            Self::WrongState => ("400 Bad Request", "Wrong sign-in", "The answer belongs to another sign-in. Open the address again."),
            Self::NotFound => ("404 Not Found", "Nothing here", "This port waits for the end of a sign-in only."),
            Self::MethodNotAllowed => ("405 Method Not Allowed", "Method not allowed", "This port waits for the end of a sign-in only."),
            Self::TooLong => ("431 Request Header Fields Too Large", "Too long", "The request is longer than is taken."),
        };
        let page = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><h1>{title}</h1><p>{text}</p></html>\n"
        );
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
             Content-Security-Policy: default-src 'none'\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n{page}",
            page.len()
        )
        .into_bytes()
    }
}

/// The page for this request, and the redirect, if it is the expected one.
fn reply(head: &[u8], port: u16, state: &str) -> (Reply, Option<String>) {
    if head.len() > HEAD_BYTES_MAX {
        return (Reply::TooLong, None);
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = std::str::from_utf8(line).unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let redirected = format!("http://{}:{port}{target}", Ipv4Addr::LOCALHOST);
    let Some(url) = Url::parse(&redirected).ok().filter(|url| target.starts_with('/') && url.path() == PATH) else {
        return (Reply::NotFound, None);
    };
    if method != "GET" {
        return (Reply::MethodNotAllowed, None);
    }
    // Any page and any program can send a request here, but only the authorization server knows the state.
    if parameter(&redirected, "state").as_deref() != Some(state) {
        return (Reply::WrongState, None);
    }
    let has = |name: &str| url.query_pairs().any(|(key, _)| key == name);
    let reply = if has("code") && !has("error") { Reply::Agreed } else { Reply::Refused };
    (reply, Some(redirected))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn get(target: &str) -> (Reply, Option<String>) {
        reply(format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1:7\r\n\r\n").as_bytes(), 7, "s1")
    }

    #[test]
    fn only_what_was_waited_for_counts() {
        let (response, redirected) = get("/callback?code=a%20b&state=s1&iss=https%3A%2F%2Fas");
        assert_eq!(response, Reply::Agreed);
        assert_eq!(redirected.as_deref(), Some("http://127.0.0.1:7/callback?code=a%20b&state=s1&iss=https%3A%2F%2Fas"));
        assert_eq!(get("/callback?error=access_denied&state=s1").0, Reply::Refused);
        assert!(get("/callback?error=access_denied&state=s1").1.is_some(), "a refusal ends the waiting, too");
        for target in ["/callback?code=a&state=s2", "/callback?code=a", "/callback"] {
            assert_eq!(get(target), (Reply::WrongState, None), "{target}");
        }
        for target in ["/", "/favicon.ico", "/callback/more?state=s1", "callback?state=s1", "@evil/callback?state=s1", ""] {
            assert_eq!(get(target), (Reply::NotFound, None), "{target}");
        }
        assert_eq!(reply(b"POST /callback?code=a&state=s1 HTTP/1.1\r\n\r\n", 7, "s1").0, Reply::MethodNotAllowed);
        assert_eq!(reply(b"\xff\xfe", 7, "s1").0, Reply::NotFound);
    }

    #[test]
    fn a_head_of_just_the_limit_is_taken_and_one_byte_more_is_not() {
        let line = "GET /callback?code=a&state=s1 HTTP/1.1\r\nX: ";
        let head = |bytes: usize| [line.as_bytes(), "x".repeat(bytes - line.len() - 4).as_bytes(), b"\r\n\r\n".as_slice()].concat();
        assert_eq!(reply(&head(HEAD_BYTES_MAX), 7, "s1").0, Reply::Agreed);
        assert_eq!(reply(&head(HEAD_BYTES_MAX + 1), 7, "s1").0, Reply::TooLong);
    }

    async fn browse(port: u16, target: &str) -> String {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("a connection");
        stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").as_bytes()).await.expect("sent");
        let mut page = String::new();
        stream.read_to_string(&mut page).await.expect("a page");
        page
    }

    #[tokio::test]
    async fn the_browser_comes_back_past_idle_connections_and_strangers() {
        let shown = Arc::new(Mutex::new(Vec::new()));
        let consent = LoopbackConsent::new({
            let shown = shown.clone();
            move |url| shown.lock().expect("no panic").push(url.to_owned())
        });
        let uri = Url::parse(&consent.redirect_uri()).expect("a URL");
        assert_eq!((uri.host_str(), uri.path()), (Some("127.0.0.1"), PATH));
        assert_eq!(consent.redirect_uri(), uri.as_str(), "it stays the same");
        let port = uri.port().expect("a port");

        let idle = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("a connection");
        let browser = async {
            assert!(browse(port, "/favicon.ico").await.starts_with("HTTP/1.1 404 "));
            assert!(browse(port, "/callback?code=x&state=wrong").await.starts_with("HTTP/1.1 400 "));
            browse(port, "/callback?code=c1&state=s1").await
        };
        let (redirected, page) = tokio::join!(consent.authorize("https://as.example/authorize?state=s1"), browser);
        assert_eq!(redirected.expect("redirected"), format!("http://127.0.0.1:{port}/callback?code=c1&state=s1"));
        assert!(page.starts_with("HTTP/1.1 200 ") && page.contains("close this window"), "{page}");
        assert_eq!(*shown.lock().expect("no panic"), ["https://as.example/authorize?state=s1"]);
        drop(idle);

        // And a second time, on the same port.
        let (redirected, page) = tokio::join!(
            consent.authorize("https://as.example/authorize?state=s2"),
            browse(port, "/callback?error=access_denied&state=s2")
        );
        assert!(redirected.expect("redirected").contains("access_denied"));
        assert!(page.contains("not signed in"), "{page}");
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_named() {
        let taken = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = taken.local_addr().expect("an address").port();
        let consent = LoopbackConsent::new(|_| panic!("there is nothing to show")).on_port(port);
        assert_eq!(consent.redirect_uri(), format!("http://127.0.0.1:{port}/callback"));
        let refused = consent.authorize("https://as.example/authorize?state=s1").await.expect_err("a refusal");
        assert!(refused.to_string().contains(&port.to_string()), "{refused}");
    }
}
