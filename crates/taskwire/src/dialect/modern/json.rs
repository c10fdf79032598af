//! What results of this era have in common.

use taskwire_core::Payload;

use crate::dialect::Context;
pub(super) use crate::dialect::json::{Object, text, write};

/// A result of this kind.
pub(super) fn typed(kind: &str) -> Object {
    Object::roomy().put("resultType", kind)
}

/// A result of the protocol, from one that the tool gave: with the members that this era adds.
pub(super) fn complete(given: &Payload, shared: &Context) -> Object {
    let object = typed("complete");
    // A tool's own `_meta` stays as it is; a result may carry only one.
    if given.as_str().contains("\"_meta\"") { object.splice(given.as_str()) } else { with_info(object, shared).splice(given.as_str()) }
}

/// Adds the name and version of this server.
pub(super) fn with_info(object: Object, shared: &Context) -> Object {
    object.raw("_meta", &shared.modern_meta)
}

/// What [`with_info`] adds.
pub(crate) fn server_meta(name: &str, version: &str) -> String {
    text(&serde_json::json!({super::SERVER_INFO: {"name": name, "version": version}}))
}
