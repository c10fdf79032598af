//! Reads and writes JSON-RPC messages; the hot parts are written by hand.

use std::{fmt, ops::Range};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::code;
use crate::task::RpcError;

/// The id of a request: text or a whole number, sent back exactly as it came.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
pub enum RequestId {
    /// A number.
    Number(i64),
    /// Text.
    Text(Box<str>),
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for RequestId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = RequestId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an integer")
            }

            fn visit_i64<E>(self, number: i64) -> Result<RequestId, E> {
                Ok(RequestId::Number(number))
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<RequestId, E> {
                i64::try_from(number).map(RequestId::Number).map_err(|_| E::custom("the number is too large"))
            }

            fn visit_str<E>(self, text: &str) -> Result<RequestId, E> {
                Ok(RequestId::Text(text.into()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A message as it came: a request (`id` and `method`), a notification (`method` alone) or a response (neither).
#[derive(Debug, Clone)]
pub struct IncomingMessage {
    /// The request's id; absent in a notification.
    pub id: Option<RequestId>,
    /// What is asked; absent in a response.
    pub method: Option<Box<str>>,
    /// Where in the bytes the parameters are; an object if present.
    params: Option<Range<usize>>,
}

/// Why bytes are no message, with the id if it could still be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedMessage {
    /// The id of the request that the bytes seem to be.
    pub id: Option<RequestId>,
    /// The error to reply with.
    pub error: RpcError,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// A member that is there counts as there, also when it is `null`.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl IncomingMessage {
    /// Reads one message.
    ///
    /// # Errors
    /// With the JSON-RPC error that the sender should get.
    pub fn parse(bytes: &[u8]) -> Result<Self, MalformedMessage> {
        let fail = |id, code, message: String| MalformedMessage { id, error: RpcError { code, message, data: None } };
        let text = std::str::from_utf8(bytes)
            .map_err(|error| fail(None, code::PARSE_ERROR, format!("the message is not UTF-8 (at byte {})", error.valid_up_to())))?;
        if text.trim_start().starts_with('[') {
            return Err(fail(None, code::INVALID_REQUEST, "batches are not part of this protocol: send one message at a time".to_owned()));
        }
        let envelope: Envelope<'_> = serde_json::from_str(text).map_err(|error| {
            if error.is_data() {
                fail(None, code::INVALID_REQUEST, format!("not a JSON-RPC message: {error}"))
            } else {
                fail(None, code::PARSE_ERROR, format!("the message is not JSON: {error}"))
            }
        })?;
        let id: Option<RequestId> = match envelope.id {
            None => None,
            Some(raw) => Some(
                serde_json::from_str(raw.get())
                    .map_err(|_| fail(None, code::INVALID_REQUEST, "`id` must be a string or an integer".to_owned()))?,
            ),
        };
        let invalid = |message: &str| fail(id.clone(), code::INVALID_REQUEST, message.to_owned());
        if envelope.jsonrpc.is_none_or(|version| version.get() != "\"2.0\"") {
            return Err(invalid("`jsonrpc` must be \"2.0\""));
        }
        let method = match envelope.method {
            Some(raw) => Some(serde_json::from_str::<Box<str>>(raw.get()).map_err(|_| invalid("`method` must be a string"))?),
            None if envelope.result.is_some() || envelope.error.is_some() => None,
            None => return Err(invalid("`method` is missing")),
        };
        if envelope.params.is_some_and(|params| !params.get().starts_with('{')) {
            return Err(fail(id.clone(), code::INVALID_PARAMS, "`params` must be an object".to_owned()));
        }
        let params = envelope.params.map(|params| {
            let start = params.get().as_ptr().addr() - text.as_ptr().addr();
            start..start + params.get().len()
        });
        Ok(Self { id, method, params })
    }

    /// The parameters, given the bytes that the message was read from.
    #[must_use]
    pub fn params<'a>(&self, bytes: &'a [u8]) -> Option<&'a str> {
        std::str::from_utf8(bytes.get(self.params.clone()?)?).ok()
    }
}

/// Writes a response.
pub fn write_result<T: Serialize + ?Sized>(out: &mut Vec<u8>, id: &RequestId, result: &T) -> Result<(), serde_json::Error> {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    serde_json::to_writer(&mut *out, id)?;
    out.extend_from_slice(b",\"result\":");
    serde_json::to_writer(&mut *out, result)?;
    out.push(b'}');
    Ok(())
}

/// Writes an error response; without an id if none could be read.
pub fn write_error(out: &mut Vec<u8>, id: Option<&RequestId>, error: &RpcError) -> Result<(), serde_json::Error> {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",");
    if let Some(id) = id {
        out.extend_from_slice(b"\"id\":");
        serde_json::to_writer(&mut *out, id)?;
        out.push(b',');
    }
    out.extend_from_slice(b"\"error\":");
    serde_json::to_writer(&mut *out, error)?;
    out.push(b'}');
    Ok(())
}

/// Writes a notification.
pub fn write_notification<T: Serialize + ?Sized>(out: &mut Vec<u8>, method: &str, params: &T) -> Result<(), serde_json::Error> {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"method\":");
    serde_json::to_writer(&mut *out, method)?;
    out.extend_from_slice(b",\"params\":");
    serde_json::to_writer(&mut *out, params)?;
    out.push(b'}');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(text: &str) -> (Option<RequestId>, i64) {
        let malformed = IncomingMessage::parse(text.as_bytes()).expect_err(text);
        (malformed.id, malformed.error.code)
    }

    #[test]
    fn tells_requests_notifications_and_responses_apart() {
        let bytes = br#"{"jsonrpc":"2.0","id":"1","method":"m","params":{"a":1}}"#;
        let request = IncomingMessage::parse(bytes).expect("a request");
        assert_eq!((&request.id, request.method.as_deref()), (&Some(RequestId::Text("1".into())), Some("m")));
        assert_eq!(request.params(bytes), Some(r#"{"a":1}"#));
        let notification = IncomingMessage::parse(br#"{"jsonrpc":"2.0","method":"m\u0041"}"#).expect("a notification");
        assert_eq!((notification.id, notification.method.as_deref()), (None, Some("mA")));
        let response = IncomingMessage::parse(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#).expect("a response");
        assert_eq!((response.id, response.method), (Some(RequestId::Number(1)), None));
    }

    #[test]
    fn refuses_what_is_no_message_and_keeps_the_id() {
        let seven = Some(RequestId::Number(7));
        assert_eq!(code_of("{"), (None, code::PARSE_ERROR));
        assert_eq!(code_of(r#"{"jsonrpc":"2.0","id":7,"method":"m"} x"#), (None, code::PARSE_ERROR));
        assert_eq!(code_of("[]"), (None, code::INVALID_REQUEST));
        assert_eq!(code_of("3"), (None, code::INVALID_REQUEST));
        assert_eq!(code_of(r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#), (None, code::INVALID_REQUEST));
        assert_eq!(code_of(r#"{"jsonrpc":"2.0","id":1.5,"method":"m"}"#), (None, code::INVALID_REQUEST));
        assert_eq!(code_of(r#"{"jsonrpc":"1.0","id":7,"method":"m"}"#), (seven.clone(), code::INVALID_REQUEST));
        assert_eq!(code_of(r#"{"id":7,"method":"m"}"#), (seven.clone(), code::INVALID_REQUEST));
        assert_eq!(code_of(r#"{"jsonrpc":"2.0","id":7,"method":5}"#), (seven.clone(), code::INVALID_REQUEST));
        assert_eq!(code_of(r#"{"jsonrpc":"2.0","id":7}"#), (seven.clone(), code::INVALID_REQUEST));
        assert_eq!(code_of(r#"{"jsonrpc":"2.0","id":7,"method":"m","params":[]}"#), (seven, code::INVALID_PARAMS));
        assert_eq!(code_of(r#"{"jsonrpc":"2.0","id":7,"id":8,"method":"m"}"#), (None, code::INVALID_REQUEST));
        let not_utf8 = IncomingMessage::parse(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}").expect_err("not UTF-8");
        assert_eq!(not_utf8.error.code, code::PARSE_ERROR);
    }
}
