//! Which era a message belongs to. Each message is looked at anew, because a client may speak both.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use taskwire_core::wire::IncomingMessage;

use super::{
    Fault,
    params::{Members, present},
};

/// The first version that needs no session.
const FIRST_MODERN: &str = "2026-07-28";
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    /// Up to 2025-11-25.
    Legacy,
    /// From 2026-07-28 on.
    Modern,
}

/// Whether a version is one of the modern era, known or not.
pub(crate) fn is_modern(version: &str) -> bool {
    let is_date = version.len() == FIRST_MODERN.len() && version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    is_date && version >= FIRST_MODERN
}

impl Era {
    /// The era of a message that came over HTTP, with this `MCP-Protocol-Version`.
    pub(crate) fn of_http(message: &IncomingMessage, bytes: &[u8], header: Option<&str>) -> Result<Self, Fault> {
        let modern = header.is_some_and(is_modern);
        if message.method.as_deref() == Some("initialize") && message.id.is_some() {
            return match (says_modern(message, bytes), modern) {
                (true, _) => Ok(Self::Modern),
                (false, false) => Ok(Self::Legacy),
                (false, true) => Err(Fault::header(
                    "`initialize` belongs to an earlier protocol than `MCP-Protocol-Version` says: leave one of them out",
                )),
            };
        }
        Ok(if modern || claim(message, bytes).is_some() { Self::Modern } else { Self::Legacy })
    }

    /// The era of a message on a byte stream.
    pub(crate) fn of_line(message: &IncomingMessage, bytes: &[u8]) -> Self {
        let modern = match message.method.as_deref() {
            Some("initialize") => says_modern(message, bytes),
            _ => claim(message, bytes).is_some(),
        };
        if modern { Self::Modern } else { Self::Legacy }
    }
}

/// The version that a message names in `_meta`, as only modern messages do.
fn claim<'a>(message: &IncomingMessage, bytes: &'a [u8]) -> Option<&'a RawValue> {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow, default, rename = "_meta")]
        meta: Option<Members<Meta<'a>>>,
    }
    #[derive(Deserialize)]
    struct Meta<'a> {
        #[serde(borrow, default, rename = "io.modelcontextprotocol/protocolVersion", deserialize_with = "present")]
        version: Option<&'a RawValue>,
    }
    let params = message.params(bytes).filter(|params| params.contains(VERSION))?;
    serde_json::from_str::<Params<'_>>(params).ok()?.meta?.0.version
}

/// Whether a message names a modern version, not just any.
fn says_modern(message: &IncomingMessage, bytes: &[u8]) -> bool {
    let version = claim(message, bytes).and_then(|raw| serde_json::from_str::<Cow<'_, str>>(raw.get()).ok());
    version.is_some_and(|version| is_modern(&version))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn era(message: &str, header: Option<&str>) -> Option<Era> {
        let incoming = IncomingMessage::parse(message.as_bytes()).expect("a message");
        Era::of_http(&incoming, message.as_bytes(), header).ok()
    }

    #[test]
    fn every_message_belongs_to_one_era() {
        let plain = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#;
        let claims = |version: &str, method: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"_meta":{{"{VERSION}":{version}}}}}}}"#)
        };
        assert_eq!(era(plain, None), Some(Era::Legacy));
        assert_eq!(era(plain, Some("2025-11-25")), Some(Era::Legacy));
        assert_eq!(era(plain, Some("nonsense")), Some(Era::Legacy));
        assert_eq!(era(plain, Some("2026-07-28")), Some(Era::Modern));
        assert_eq!(era(plain, Some("2027-01-01")), Some(Era::Modern));
        for version in [r#""2026-07-28""#, r#""2025-11-25""#, "3", "null"] {
            assert_eq!(era(&claims(version, "tools/list"), None), Some(Era::Modern), "{version}");
        }
        let argument = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"arguments":{{"a":"{VERSION}"}}}}}}"#);
        assert_eq!(era(&argument, None), Some(Era::Legacy), "a word among the arguments claims nothing");
        let initialize = claims(r#""2026-07-28""#, "initialize");
        assert_eq!(era(&initialize, None), Some(Era::Modern));
        let initialize = claims(r#""2025-11-25""#, "initialize");
        assert_eq!(era(&initialize, None), Some(Era::Legacy));
        assert_eq!(era(&initialize, Some("2026-07-28")), None, "a contradiction");
        assert_eq!(Era::of_line(&IncomingMessage::parse(plain.as_bytes()).expect("a message"), plain.as_bytes()), Era::Legacy);
    }
}
