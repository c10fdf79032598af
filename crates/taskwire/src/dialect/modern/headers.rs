//! The headers that repeat what the body says, for proxies: they must be there, and they must agree with it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hyper::HeaderMap;
use serde::Deserialize;
use serde_json::Value;

use crate::{dialect::Fault, tool::ReadyTool};

/// Which parameter `Mcp-Name` repeats.
fn named_by(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" => Some("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => Some("taskId"),
        _ => None,
    }
}

#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    name: Option<Value>,
    #[serde(default)]
    uri: Option<Value>,
    #[serde(default, rename = "taskId")]
    task_id: Option<Value>,
}

/// Checks version, method and name. `strict` refuses task requests without a name, which some clients send.
pub(super) fn check(headers: &HeaderMap, method: &str, params: &str, version: &str, strict: bool) -> Result<(), Fault> {
    expect(headers, "MCP-Protocol-Version", version, false)?;
    expect(headers, "Mcp-Method", method, false)?;
    let Some(parameter) = named_by(method) else { return Ok(()) };
    if parameter == "taskId" && !strict && !headers.contains_key("mcp-name") {
        return Ok(());
    }
    let named: Named = serde_json::from_str(params).map_err(|error| Fault::params(format!("invalid params: {error}")))?;
    let value = match parameter {
        "name" => named.name,
        "uri" => named.uri,
        _ => named.task_id,
    };
    let Some(Value::String(value)) = value else { return Err(Fault::params(format!("`{parameter}` must be a string"))) };
    expect(headers, "Mcp-Name", &value, true)
}

/// Checks the arguments that the tool wants repeated as headers.
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
                let given = one(headers, &param.header)?;
                let same = match (value.as_i64(), given.parse::<i64>()) {
                    (Some(number), Ok(given)) => number == given,
                    _ => false,
                };
                if !same {
                    return Err(mismatch(&param.header, &given, &value.to_string()));
                }
            }
        }
    }
    Ok(())
}

fn expect(headers: &HeaderMap, name: &str, expected: &str, encoded: bool) -> Result<(), Fault> {
    let given = one(headers, name)?;
    let given = match given.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")).filter(|_| encoded) {
        None => given,
        Some(payload) => {
            let bytes = STANDARD.decode(payload).map_err(|_| Fault::header(format!("the header `{name}` is not valid base64")))?;
            String::from_utf8(bytes).map_err(|_| Fault::header(format!("the header `{name}` is not UTF-8")))?
        }
    };
    if given == expected { Ok(()) } else { Err(mismatch(name, &given, expected)) }
}

/// The one value of a header, without blanks around it.
fn one(headers: &HeaderMap, name: &str) -> Result<String, Fault> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or_else(|| Fault::header(format!("the header `{name}` is missing")))?;
    if values.next().is_some() {
        return Err(Fault::header(format!("the header `{name}` comes more than once")));
    }
    let text = value.to_str().map_err(|_| Fault::header(format!("the header `{name}` has characters that are not allowed")))?;
    Ok(text.trim_matches([' ', '\t']).to_owned())
}

fn mismatch(name: &str, given: &str, expected: &str) -> Fault {
    Fault::header(format!("the header `{name}` says `{given}`, but the body says `{expected}`"))
}
