//! Headers that repeat the body for proxies: the server checks that they are present and agree with it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hyper::HeaderMap;
use serde_json::{Value, value::RawValue};

use super::meta::Params;
use crate::{
    protocol::{Fault, params::text},
    tool::ReadyTool,
};

/// Which parameter `Mcp-Name` repeats.
fn named_by<'a>(method: &str, params: &Params<'a>) -> Option<(&'static str, Option<&'a RawValue>)> {
    match method {
        "tools/call" | "prompts/get" => Some(("name", params.name)),
        "resources/read" => Some(("uri", params.uri)),
        "tasks/get" | "tasks/update" | "tasks/cancel" | "dev.taskwire/partials/read" => Some(("taskId", params.task_id)),
        _ => None,
    }
}

/// Checks version, method and name. `strict` refuses task requests without a name, which some clients send.
pub(super) fn check(headers: &HeaderMap, method: &str, params: &Params<'_>, version: &str, strict: bool) -> Result<(), Fault> {
    expect(headers, "mcp-protocol-version", version, false)?;
    expect(headers, "mcp-method", method, false)?;
    let Some((key, raw)) = named_by(method, params) else { return Ok(()) };
    if key == "taskId" && !strict && !headers.contains_key("mcp-name") {
        return Ok(());
    }
    expect(headers, "mcp-name", &text(raw, key)?, true)
}

/// Checks the arguments that the tool's schema requires as headers.
pub(super) fn check_arguments(headers: &HeaderMap, tool: &ReadyTool, arguments: &Value) -> Result<(), Fault> {
    for param in &tool.0.headers {
        let value = param.path.iter().try_fold(arguments, |value, key| value.get(key));
        match value {
            None | Some(Value::Null) => {
                if headers.contains_key(&param.header) {
                    return Err(Fault::header(format!("the header `{}` repeats an argument that is not there", param.header)));
                }
            }
            Some(Value::String(text)) => expect(headers, &param.header, text, true)?,
            Some(Value::Bool(flag)) => expect(headers, &param.header, if *flag { "true" } else { "false" }, true)?,
            Some(value) => {
                let actual = one(headers, &param.header)?;
                // Numbers are compared as numbers: 42 and 42.0 are the same.
                if value.as_f64().is_none_or(|number| actual.parse() != Ok(number)) {
                    return Err(mismatch(&param.header, actual, &value.to_string()));
                }
            }
        }
    }
    Ok(())
}

fn expect(headers: &HeaderMap, name: &str, expected: &str, encoded: bool) -> Result<(), Fault> {
    let actual = one(headers, name)?;
    if encoded && let Some(payload) = actual.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) {
        let bytes = STANDARD.decode(payload).map_err(|_| Fault::header(format!("the header `{name}` is not valid base64")))?;
        return if bytes == expected.as_bytes() { Ok(()) } else { Err(mismatch(name, &String::from_utf8_lossy(&bytes), expected)) };
    }
    if actual == expected { Ok(()) } else { Err(mismatch(name, actual, expected)) }
}

/// The only value of a header, trimmed.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, Fault> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or_else(|| Fault::header(format!("the header `{name}` is missing")))?;
    if values.next().is_some() {
        return Err(Fault::header(format!("the header `{name}` comes more than once")));
    }
    let text = value.to_str().map_err(|_| Fault::header(format!("the header `{name}` has characters that are not allowed")))?;
    Ok(text.trim_matches([' ', '\t']))
}

fn mismatch(name: &str, actual: &str, expected: &str) -> Fault {
    Fault::header(format!("the header `{name}` says `{actual}`, but the body says `{expected}`"))
}
