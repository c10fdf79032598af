//! Asks identity providers over HTTPS: one request, a bounded answer, no redirects. [`Fetch`] is the seam for tests.

use std::{fmt, sync::OnceLock, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use hyper::{
    Method,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use tokio::time::Instant;

use crate::outbound::Outbound;

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

/// Asks over the network.
#[derive(Debug, Default)]
pub(super) struct HttpFetch {
    outbound: Outbound,
    began: OnceLock<Instant>,
}

impl Fetch for HttpFetch {
    fn fetch<'a>(&'a self, url: &'a str, form: Option<Form>) -> BoxFuture<'a, Result<Answer, String>> {
        Box::pin(async move {
            let (method, headers, body) = match form {
                None => (Method::GET, Vec::new(), Bytes::new()),
                Some(Form { body, authorization }) => {
                    let authorization =
                        HeaderValue::from_str(&authorization).map_err(|_| "the header `authorization` cannot be sent".to_owned())?;
                    let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
                    (Method::POST, vec![(CONTENT_TYPE, kind), (AUTHORIZATION, authorization)], Bytes::from(body))
                }
            };
            let answer = self.outbound.exchange(method, url, &headers, body, TIMEOUT).await?;
            Ok(Answer { status: answer.status, body: answer.body })
        })
    }

    fn monotonic(&self) -> Duration {
        self.began.get_or_init(Instant::now).elapsed()
    }
}
