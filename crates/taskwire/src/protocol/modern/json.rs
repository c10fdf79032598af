//! What all results of the modern era have: `resultType`, and the server's name and version.

use taskwire_core::Payload;

use crate::protocol::Context;
pub(super) use crate::protocol::json::{Object, text, write};

pub(super) fn typed(kind: &str) -> Object {
    Object::roomy().put("resultType", kind)
}

/// The tool's result, with the members that this era adds.
pub(super) fn complete_result(tool_result: &Payload, context: &Context) -> Object {
    let object = typed("complete");
    // An object may have only one `_meta`, and that of the tool goes before ours.
    if tool_result.as_str().contains("\"_meta\"") {
        object.splice(tool_result.as_str())
    } else {
        with_info(object, context).splice(tool_result.as_str())
    }
}

/// Adds the name and version of this server.
pub(super) fn with_info(object: Object, context: &Context) -> Object {
    object.raw("_meta", &context.server_info_meta)
}

/// What [`with_info`] adds.
pub(crate) fn server_meta(name: &str, version: &str) -> String {
    text(&serde_json::json!({super::SERVER_INFO: {"name": name, "version": version}}))
}
