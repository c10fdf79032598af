//! Where spans are sent, and of which requests there are any.

use std::{fmt, time::Duration};

use hyper::{
    Uri,
    header::{HeaderName, HeaderValue},
};

/// Traces for a collector of OpenTelemetry, which takes them as JSON over HTTP (OTLP).
#[derive(Clone)]
#[non_exhaustive]
pub struct Traces {
    /// The collector, such as `http://127.0.0.1:4318`: spans are posted to `/v1/traces` below it.
    pub endpoint: String,
    /// Which share of requests is traced, from 0 to 1, where whoever sends them has not decided that.
    pub sample: f64,
    /// Sent with each batch of spans. The values may be secrets.
    pub headers: Vec<(String, String)>,
    /// What this server is called in traces.
    pub service_name: String,
    /// How long a span waits for others that are sent with it.
    pub interval: Duration,
}

impl Traces {
    /// All requests, for the collector at this URL.
    #[must_use]
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            sample: 1.0,
            headers: Vec::new(),
            service_name: "taskwire".to_owned(),
            interval: Duration::from_secs(5),
        }
    }

    /// What cannot be used, by the name of its field, and why.
    ///
    /// # Errors
    /// When spans could not be sent like this.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let uri: Option<Uri> = self.endpoint.parse().ok();
        let is_url = uri.is_some_and(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty()) && uri.query().is_none()
        });
        if is_url && self.endpoint.contains('@') {
            return Err(("endpoint", "must have no user and no password in it: set the header `Authorization` in `headers`".to_owned()));
        }
        if !is_url {
            return Err(("endpoint", "must be the URL of a collector, such as \"http://127.0.0.1:4318\"".to_owned()));
        }
        if !(0.0..=1.0).contains(&self.sample) {
            return Err(("sample", format!("must be between 0 and 1, not {}", self.sample)));
        }
        let is_header = |(name, value): &(String, String)| name.parse::<HeaderName>().is_ok() && HeaderValue::from_str(value).is_ok();
        match self.headers.iter().find(|&header| !is_header(header)) {
            Some((name, _)) => {
                Err(("headers", format!("must be headers of HTTP, and `{name}` is none or has a value that cannot be sent")))
            }
            None => Ok(()),
        }
    }

    /// Where spans are posted to.
    pub(super) fn url(&self) -> String {
        format!("{}/v1/traces", self.endpoint.trim_end_matches('/'))
    }

    /// The headers that can be sent.
    pub(super) fn header_map(&self) -> Vec<(HeaderName, HeaderValue)> {
        let header = |(name, value): &(String, String)| {
            let mut value = HeaderValue::from_str(value).ok()?;
            value.set_sensitive(true);
            Some((name.parse::<HeaderName>().ok()?, value))
        };
        self.headers.iter().filter_map(header).collect()
    }
}

/// Values of headers may be secrets, and so may what stands before the host of a URL.
impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        let endpoint = self.endpoint.rsplit('@').next().unwrap_or_default();
        let mut shown = f.debug_struct("Traces");
        shown.field("endpoint", &endpoint).field("sample", &self.sample).field("headers", &names);
        shown.field("service_name", &self.service_name).field("interval", &self.interval).finish()
    }
}
