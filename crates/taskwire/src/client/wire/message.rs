//! Parses the JSON-RPC messages of a server.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use taskwire_core::{Payload, task::RpcError, wire::RequestId};

#[derive(Debug, Clone)]
pub(crate) enum Message {
    /// Without an id if the server could not read the request's.
    Response { id: Option<RequestId>, outcome: Result<Payload, RpcError> },
    /// A question, or a ping (legacy era).
    Request { id: RequestId, method: String, params: Payload },
    /// A notification.
    Notification { method: String, params: Payload },
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(default)]
    id: Option<RequestId>,
    #[serde(default)]
    method: Option<String>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<RpcError>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl Message {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let envelope: Envelope<'_> = serde_json::from_slice(bytes).map_err(|error| format!("not a JSON-RPC message: {error}"))?;
        let params = || envelope.params.map_or_else(|| Payload::from(serde_json::json!({})), Payload::from);
        match (envelope.method, envelope.id) {
            (Some(method), Some(id)) => Ok(Self::Request { id, method, params: params() }),
            (Some(method), None) => Ok(Self::Notification { method, params: params() }),
            (None, id) => match (envelope.error, envelope.result) {
                (Some(error), _) => Ok(Self::Response { id, outcome: Err(error) }),
                (None, Some(result)) => Ok(Self::Response { id, outcome: Ok(result.into()) }),
                (None, None) => Err("a message that is neither a request, a notification nor an answer".to_owned()),
            },
        }
    }
}
