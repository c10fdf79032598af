//! A collector of OpenTelemetry on a real socket: it takes spans as OTLP has them in JSON, and checks their form.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use serde_json::Value;

/// How long anything may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A collector, until the test ends.
#[derive(Debug, Clone)]
pub(crate) struct Collector {
    port: u16,
    spans: Arc<(Mutex<Vec<Value>>, Condvar)>,
}

impl Collector {
    /// Answers the first batches with these status lines and headers, and takes those that come later.
    pub(crate) fn start(refusals: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let collector = Self { port, spans: Arc::default() };
        let (taking, mut refusals) = (collector.clone(), refusals.iter().copied());
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // Whoever hangs up in between sends its spans again.
                let _ = taking.take(&client, refusals.next());
            }
        });
        collector
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn take(&self, mut client: &TcpStream, refusal: Option<&str>) -> io::Result<()> {
        client.set_read_timeout(Some(TIMEOUT))?;
        let mut reader = BufReader::new(client);
        let mut head = String::new();
        while reader.read_line(&mut head)? > 0 && !head.ends_with("\r\n\r\n") {}
        let lower = head.to_ascii_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body)?;
        assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n") && lower.contains("content-type: application/json\r\n"), "{head}");
        if refusal.is_none() {
            let message: Value = serde_json::from_slice(&body).expect("JSON");
            let mut spans = self.spans.0.lock().expect("nobody panics while they hold it");
            spans.extend(spans_of(&message));
            self.spans.1.notify_all();
        }
        let status = refusal.unwrap_or("200 OK");
        write!(client, "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}")
    }

    /// Waits until what came is what is looked for.
    #[track_caller]
    pub(crate) fn wait<T>(&self, what: &str, look: impl Fn(&[Value]) -> Option<T>) -> T {
        let mut spans = self.spans.0.lock().expect("nobody panics while they hold it");
        loop {
            if let Some(found) = look(&spans) {
                return found;
            }
            let (more, waited) = self.spans.1.wait_timeout(spans, TIMEOUT).expect("nobody panics while they hold it");
            assert!(!waited.timed_out(), "{what} never came, only: {more:#?}");
            spans = more;
        }
    }
}

/// The spans of a message, checked.
fn spans_of(message: &Value) -> Vec<Value> {
    let mut found = Vec::new();
    for of_resource in message["resourceSpans"].as_array().expect("a list") {
        assert_eq!(attribute(&of_resource["resource"], "service.name"), Some("taskwire"), "{of_resource}");
        for of_scope in of_resource["scopeSpans"].as_array().expect("a list") {
            for span in of_scope["spans"].as_array().expect("a list") {
                let is_hex = |key: &str, len: usize| {
                    span[key].as_str().is_some_and(|id| id.len() == len && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
                };
                assert!(is_hex("traceId", 32) && is_hex("spanId", 16), "{span}");
                assert!(span.get("parentSpanId").is_none() || is_hex("parentSpanId", 16), "{span}");
                let at = |key: &str| span[key].as_str().and_then(|nanos| nanos.parse::<u64>().ok()).expect("a time");
                assert!(at("startTimeUnixNano") <= at("endTimeUnixNano"), "{span}");
                found.push(span.clone());
            }
        }
    }
    found
}

/// The value of an attribute, as a text.
pub(crate) fn attribute<'a>(of: &'a Value, key: &str) -> Option<&'a str> {
    let attribute = of["attributes"].as_array()?.iter().find(|attribute| attribute["key"] == key)?;
    attribute["value"]["stringValue"].as_str().or_else(|| attribute["value"]["intValue"].as_str())
}

/// The spans of this name, if there are so many.
pub(crate) fn named(spans: &[Value], name: &str, count: usize) -> Option<Vec<Value>> {
    let found: Vec<Value> = spans.iter().filter(|span| span["name"] == name).cloned().collect();
    (found.len() >= count).then_some(found)
}
