//! How messages get to a server and back: over HTTP, or line by line.

mod backoff;
mod child;
mod http;
mod lines;
mod message;

use std::time::Duration;

pub(crate) use self::{
    backoff::{Backoff, random},
    http::Http,
    lines::{Lines, Spawn},
    message::Message,
};
use super::{Error, error::shortened};

/// A request on its way out.
#[derive(Debug, Clone)]
pub(crate) struct OutgoingRequest {
    /// Its name.
    pub(crate) id: i64,
    /// The whole message.
    pub(crate) body: String,
    /// What HTTP says besides.
    pub(crate) headers: Vec<(String, String)>,
    /// How to tell the server that the answer is not wanted any more, where closing the stream does not.
    pub(crate) cancel: Option<String>,
}

/// Why there is no answer.
#[derive(Debug, Clone)]
pub(crate) enum WireError {
    /// The request cannot have arrived.
    Unsent(String),
    /// It may have arrived.
    Interrupted(String),
    /// The same, and the program that it was for has ended.
    ProgramEnded(String),
    /// An HTTP status that says no more.
    Status { status: u16, reason: String, retry_after: Option<Duration> },
    /// 401 or 403.
    Denied { status: u16, reason: String },
    /// The message is larger than is taken.
    TooLarge { max: usize },
    /// It cannot be sent at all.
    Unsendable(Error),
}

impl WireError {
    /// Whether the server may answer when it is asked again.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unsent(_) | Self::Interrupted(_) | Self::ProgramEnded(_) => true,
            Self::Status { status, .. } => matches!(status, 408 | 425 | 429 | 502 | 503 | 504),
            Self::Denied { .. } | Self::TooLarge { .. } | Self::Unsendable(_) => false,
        }
    }

    /// Whether the request cannot have been acted upon.
    pub(crate) fn is_unprocessed(&self) -> bool {
        match self {
            Self::Unsent(_) => true,
            Self::Status { status, retry_after, .. } => *status == 429 || (*status == 503 && retry_after.is_some()),
            _ => false,
        }
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Unsent(reason) | Self::Interrupted(reason) | Self::ProgramEnded(reason) => reason.clone(),
            Self::Status { status, reason, .. } | Self::Denied { status, reason } if reason.is_empty() => format!("HTTP status {status}"),
            Self::Status { status, reason, .. } | Self::Denied { status, reason } => format!("HTTP status {status}: {reason}"),
            Self::TooLarge { max } => format!("a message has more than {max} bytes"),
            Self::Unsendable(error) => error.to_string(),
        }
    }

    /// As an error of a request to `server`.
    pub(crate) fn into_error(self, server: &str) -> Error {
        let (server, passes) = (server.to_owned(), self.is_transient());
        match self {
            Self::Unsent(reason) | Self::Interrupted(reason) | Self::ProgramEnded(reason) => Error::Unreachable { server, reason },
            Self::Status { status, reason, .. } if passes => {
                Error::Unreachable { server, reason: format!("HTTP status {status} {}", shortened(&reason)).trim().to_owned() }
            }
            Self::Status { status, reason, .. } => Error::Refused { server, status, reason: shortened(&reason) },
            Self::Denied { reason, .. } => Error::Unauthorized { server, reason: shortened(&reason) },
            Self::TooLarge { max } => Error::Limit { what: "bytes in one message", max, key: "limits.message_bytes" },
            Self::Unsendable(error) => error,
        }
    }
}

/// A connection to a server.
pub(crate) enum Wire {
    Http(Http),
    Lines(Lines),
}

impl Wire {
    /// Sends a request. What comes back belongs to it.
    pub(crate) async fn request(&self, outgoing: OutgoingRequest) -> Result<Exchange, WireError> {
        match self {
            Self::Http(http) => http.post(outgoing).await.map(Exchange::Http),
            Self::Lines(lines) => lines.request(outgoing).await.map(Exchange::Lines),
        }
    }

    /// Sends what is not answered: a notification, or an answer.
    pub(crate) async fn send_one_way(&self, body: String, headers: Vec<(String, String)>) -> Result<(), WireError> {
        match self {
            Self::Http(http) => http.send_one_way(body, headers).await,
            Self::Lines(lines) => lines.send_one_way(body).await,
        }
    }

    pub(crate) fn http(&self) -> Option<&Http> {
        match self {
            Self::Http(http) => Some(http),
            Self::Lines(_) => None,
        }
    }

    /// Sees to it that there is another side. Counts how often it had to be started: nothing that it knew outlives that.
    pub(crate) async fn ready(&self) -> Result<u64, WireError> {
        match self {
            Self::Http(_) => Ok(0),
            Self::Lines(lines) => lines.ready().await,
        }
    }

    pub(crate) async fn close(&self) {
        if let Self::Lines(lines) = self {
            lines.close().await;
        }
    }
}

/// What comes back for one request.
pub(crate) enum Exchange {
    Http(http::HttpExchange),
    Lines(lines::LinesExchange),
}

impl Exchange {
    /// The next message, or nothing if there is none to come.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, WireError> {
        match self {
            Self::Http(answer) => answer.next().await,
            Self::Lines(answer) => answer.next().await,
        }
    }

    fn http(&self) -> Option<&http::HttpExchange> {
        match self {
            Self::Http(answer) => Some(answer),
            Self::Lines(_) => None,
        }
    }

    /// The HTTP status; 200 where there is none.
    pub(crate) fn status(&self) -> u16 {
        self.http().map_or(200, |answer| answer.status)
    }

    /// Whether it is there already, as an answer to this request.
    pub(crate) fn answers(&self, id: i64) -> bool {
        self.http().is_some_and(|answer| answer.answers(id))
    }

    /// The session that the server named.
    pub(crate) fn session(&self) -> Option<&str> {
        self.http()?.session.as_deref()
    }

    /// The last event that had a name.
    pub(crate) fn last_event_id(&self) -> Option<&str> {
        self.http()?.last_event_id.as_deref()
    }

    /// How long the server wants us to wait before coming back.
    pub(crate) fn reconnect_delay(&self) -> Option<Duration> {
        self.http()?.reconnect_delay
    }
}
