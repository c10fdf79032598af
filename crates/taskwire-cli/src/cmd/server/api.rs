//! Asks a server of ours what operators ask: through the socket in its data directory, or over HTTP.

use std::{io, path::PathBuf};

use serde_json::Value;
use taskwire::client::{ApiMethod, request_api};

use super::Place;
use crate::{
    client::{connection::token_for, exit::Problem},
    cmd::reload::no_reply_message,
    config::Config,
    control::{self, Reply, Request},
    term::escape,
};

/// How a server is reached.
pub(super) enum ServerApi {
    /// Through the socket in this directory.
    Socket(PathBuf),
    Http {
        url: String,
        token: Option<String>,
    },
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// There is no server.
    Gone(Problem),
    /// The server does not want to.
    Refused(Problem),
}

impl From<Unanswered> for Problem {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Gone(problem) | Unanswered::Refused(problem) => problem,
        }
    }
}

impl ServerApi {
    pub(super) fn at(place: Place) -> Result<Self, Problem> {
        let Some(url) = place.url else {
            let data = place.data.unwrap_or_else(|| Config::default().data);
            return Ok(Self::Socket(std::path::absolute(data)?));
        };
        if !(url.starts_with("http://") || url.starts_with("https://")) {
            return Err(Problem::usage(format!("`{}` is no URL of a server, such as http://127.0.0.1:8787", escape::line(&url))));
        }
        let token = token_for(&url, place.token.as_ref());
        Ok(Self::Http { url, token })
    }

    /// The answer to a request.
    pub(super) async fn ask(&self, method: ApiMethod, target: &str) -> Result<Value, Unanswered> {
        let (status, body) = match self {
            Self::Socket(data) => ask_socket(data.clone(), method, target.to_owned()).await?,
            Self::Http { url, token } => {
                let response = request_api(url, token.as_deref(), method, target).await;
                let (status, body) = response.map_err(|error| Unanswered::Gone(error.into()))?;
                (status, serde_json::from_slice(&body).unwrap_or_default())
            }
        };
        if (200..300).contains(&status) { Ok(body) } else { Err(Unanswered::Refused(self.refusal(status, &body))) }
    }

    fn refusal(&self, status: u16, body: &Value) -> Problem {
        let reason = body["error"]["message"].as_str();
        match (status, reason) {
            (400, Some(reason)) => Problem::usage(reason),
            (401, Some(reason)) => Problem::protocol(format!("{reason} (here: with --token)")),
            (_, Some(reason)) => Problem::protocol(reason),
            (_, None) => {
                let name = if let Self::Http { url, .. } = self { url.as_str() } else { "the server" };
                Problem::protocol(format!("{name} answered with HTTP status {status}: is it a server of Taskwire?"))
            }
        }
    }
}

async fn ask_socket(data: PathBuf, method: ApiMethod, target: String) -> Result<(u16, Value), Unanswered> {
    let method = match method {
        ApiMethod::Get => "GET",
        ApiMethod::Post => "POST",
    };
    let request = Request::Api { method: method.to_owned(), target };
    let asked = tokio::task::spawn_blocking({
        let data = data.clone();
        move || control::send_request(&data, &request)
    });
    match asked.await.map_err(io::Error::other).flatten() {
        Ok(Reply::Api { status, body }) => Ok((status, body)),
        Ok(Reply::Refused(reason)) => Err(Unanswered::Refused(Problem::protocol(reason))),
        Ok(Reply::Done(_) | Reply::Described(_)) => Err(Unanswered::Refused(Problem::protocol("the server answered something else"))),
        Err(error) => Err(Unanswered::Gone(Problem::protocol(no_reply_message(&data, "", &error)))),
    }
}

/// Text as a part of a path or a query.
pub(super) fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_in_a_path_is_its_bytes() {
        assert_eq!(encoded("https://idp#ada é"), "https%3A%2F%2Fidp%23ada%20%C3%A9");
        assert_eq!(encoded("06g3-x_y.z~"), "06g3-x_y.z~");
    }
}
