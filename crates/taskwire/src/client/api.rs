//! The API of a server of ours, which is no MCP: what an operator asks of it over HTTP.

use super::{Error, wire};

/// The largest response.
const RESPONSE_BYTES: usize = 16 * 1024 * 1024;

/// A request to the API of a server: whether it changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiMethod {
    /// It only reads.
    Get,
    /// It changes something.
    Post,
}

/// Sends a request to the API of the server at `url`, such as `http://127.0.0.1:8787`; the address of its endpoint will do, too. `target` is a
/// path with its query, such as `/api/server`. Gives the status and the body of the response, whatever the status is.
///
/// # Errors
/// When there is no response.
pub async fn request_api(url: &str, token: Option<&str>, method: ApiMethod, target: &str) -> Result<(u16, Vec<u8>), Error> {
    let url = url.trim_end_matches('/');
    let server = url.strip_suffix("/mcp").unwrap_or(url);
    let response = wire::api_request(&format!("{server}{target}"), method == ApiMethod::Post, token, RESPONSE_BYTES).await;
    response.map_err(|error| error.into_error(server))
}
