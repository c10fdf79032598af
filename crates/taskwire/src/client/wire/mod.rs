//! How messages reach a server and come back: over HTTP, or line by line.

mod backoff;
mod child;
mod http;
mod lines;
mod message;

use std::time::Duration;

pub(crate) use self::{
    backoff::{Backoff, random},
    http::{Http, api_request},
    lines::{Lines, Spawn},
    message::Message,
};
use super::{Error, error::shortened};

#[derive(Debug, Clone)]
pub(crate) struct OutgoingRequest {
    pub(crate) id: i64,
    /// The whole message.
    pub(crate) body: String,
    /// The HTTP headers.
    pub(crate) headers: Vec<(String, String)>,
    /// The notification that cancels it, where closing the stream does not.
    pub(crate) cancel: Option<String>,
    /// The start of the server's program that it is meant for, if it belongs to a session: another start does not know that.
    pub(crate) generation: Option<u64>,
}

/// Why there is no response.
#[derive(Debug, Clone)]
pub(crate) enum WireError {
    /// The request cannot have arrived.
    Unsent(String),
    /// It may have arrived.
    Interrupted(String),
    /// It may have arrived, and the server's program has ended.
    ProgramEnded(String),
    /// An HTTP error status without a JSON-RPC message.
    Status { status: u16, reason: String, retry_after: Option<Duration> },
    /// 401 or 403.
    Denied { status: u16, reason: String },
    /// The message exceeds the limit.
    TooLarge { max: usize },
    /// It cannot be sent at all.
    Unsendable(Error),
}

impl WireError {
    /// Whether a retry may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unsent(_) | Self::Interrupted(_) | Self::ProgramEnded(_) => true,
            Self::Status { status, .. } => matches!(status, 408 | 425 | 429 | 502 | 503 | 504),
            Self::Denied { .. } | Self::TooLarge { .. } | Self::Unsendable(_) => false,
        }
    }

    /// Whether the server cannot have acted on the request.
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
    /// Sends a request. The exchange yields the messages that come back.
    pub(crate) async fn request(&self, outgoing: OutgoingRequest) -> Result<Exchange, WireError> {
        match self {
            Self::Http(http) => http.post(outgoing).await.map(Exchange::Http),
            Self::Lines(lines) => lines.request(outgoing).await.map(Exchange::Lines),
        }
    }

    /// Sends a notification or a response.
    pub(crate) async fn send_one_way(
        &self,
        body: String,
        headers: Vec<(String, String)>,
        generation: Option<u64>,
    ) -> Result<(), WireError> {
        match self {
            Self::Http(http) => http.send_one_way(body, headers).await,
            Self::Lines(lines) => lines.send_one_way(body, generation).await,
        }
    }

    pub(crate) fn http(&self) -> Option<&Http> {
        match self {
            Self::Http(http) => Some(http),
            Self::Lines(_) => None,
        }
    }

    /// Starts the server's program unless it runs. Returns how often it was started: a session does not survive a new start.
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

/// The messages that come back for one request.
pub(crate) enum Exchange {
    Http(http::HttpExchange),
    Lines(lines::LinesExchange),
}

impl Exchange {
    /// The next message; none after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, WireError> {
        match self {
            Self::Http(exchange) => exchange.next().await,
            Self::Lines(exchange) => exchange.next().await,
        }
    }

    fn http(&self) -> Option<&http::HttpExchange> {
        match self {
            Self::Http(exchange) => Some(exchange),
            Self::Lines(_) => None,
        }
    }

    /// Ends the byte stream, so that the next request begins another one. Over HTTP each request has a stream of its own.
    pub(crate) fn end_stream(&self, reason: &str) {
        if let Self::Lines(exchange) = self {
            exchange.end_stream(reason);
        }
    }

    /// The HTTP status; 200 where there is none.
    pub(crate) fn status(&self) -> u16 {
        self.http().map_or(200, |exchange| exchange.status)
    }

    /// Whether the response to this request came as the body.
    pub(crate) fn answers(&self, id: i64) -> bool {
        self.http().is_some_and(|exchange| exchange.answers(id))
    }

    /// The `Mcp-Session-Id` of the response.
    pub(crate) fn session(&self) -> Option<&str> {
        self.http()?.session.as_deref()
    }

    pub(crate) fn last_event_id(&self) -> Option<&str> {
        self.http()?.last_event_id.as_deref()
    }

    /// The `retry` of the event stream.
    pub(crate) fn reconnect_delay(&self) -> Option<Duration> {
        self.http()?.reconnect_delay
    }
}
