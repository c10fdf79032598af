//! Checks what every request of the modern era must have.

use std::{collections::BTreeMap, sync::OnceLock};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jsonschema::Validator;
use serde_json::json;

use super::{CAPABILITIES, CLIENT_INFO, IDEMPOTENCY, LIST, LISTEN, READ, ScriptedRequest, VERSION};
use crate::{kit::TASKS, schema};

fn validators() -> &'static BTreeMap<String, Validator> {
    static VALIDATORS: OnceLock<BTreeMap<String, Validator>> = OnceLock::new();
    VALIDATORS.get_or_init(|| {
        schema::compile(&[
            ("https://modelcontextprotocol.io/ext-tasks/schema.json", include_str!("../../../schema/ext-tasks.schema.json")),
            ("https://modelcontextprotocol.io/2026-07-28/schema.json", include_str!("../../../schema/mcp-2026-07-28.schema.json")),
        ])
    })
}

/// What is wrong with a request.
pub(super) fn faults_of(asked: &ScriptedRequest, is_legacy: bool) -> Vec<String> {
    if asked.meta().get(VERSION).is_none() {
        // A notification says its era in the header alone.
        let is_notification = asked.message.get("id").is_none() && asked.header("mcp-protocol-version") == Some("2026-07-28");
        let is_known = is_legacy || is_notification || asked.http_method != "POST";
        return if is_known { Vec::new() } else { vec![format!("of no era: {asked:?}")] };
    }
    let mut faults = Vec::new();
    let method = asked.kind();
    let def = match method {
        "server/discover" => "DiscoverRequest",
        "tools/list" => "ListToolsRequest",
        "tools/call" => "CallToolRequest",
        LISTEN => "SubscriptionsListenRequest",
        "tasks/get" => "GetTaskRequest",
        "tasks/update" => "UpdateTaskRequest",
        "tasks/cancel" => "CancelTaskRequest",
        _ => "JSONRPCRequest",
    };
    faults.extend(schema::violations_of(validators(), def, &asked.message));
    let mut must = |holds: bool, what: String| {
        if !holds {
            faults.push(format!("{what} in {asked:?} with {:?}", asked.headers));
        }
    };
    let (meta, params) = (asked.meta(), asked.params());
    must(asked.http_method == "POST" && asked.path == "/mcp", "POST to the endpoint".to_owned());
    must(asked.header("content-type") == Some("application/json"), "Content-Type".to_owned());
    let accepts = asked.header("accept").unwrap_or_default();
    must(accepts.contains("application/json") && accepts.contains("text/event-stream"), "Accept".to_owned());
    must(meta[CLIENT_INFO]["name"].is_string() && meta[CLIENT_INFO]["version"].is_string(), "clientInfo".to_owned());
    must(meta[CAPABILITIES]["extensions"][TASKS] == json!({}), "the Tasks extension is declared".to_owned());
    must(meta[CAPABILITIES]["extensions"][IDEMPOTENCY] == json!({}), "idempotency is declared".to_owned());
    must(meta[CAPABILITIES]["extensions"][LIST] == json!({}), "that tasks may be listed is declared".to_owned());
    must(asked.header("mcp-protocol-version") == meta[VERSION].as_str(), "MCP-Protocol-Version".to_owned());
    must(asked.header("mcp-method") == Some(method), "Mcp-Method".to_owned());
    let name = match method {
        "tools/call" => params["name"].as_str(),
        "tasks/get" | "tasks/update" | "tasks/cancel" | READ => params["taskId"].as_str(),
        _ => None,
    };
    let header = asked.header("mcp-name").map(decoded);
    must(header.as_deref() == name, format!("Mcp-Name is {header:?}, not {name:?}"));
    faults
}

/// The value of a header that may have been made safe with base64.
pub(crate) fn decoded(value: &str) -> String {
    match value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) {
        Some(coded) => String::from_utf8(BASE64_STANDARD.decode(coded).expect("base64")).expect("UTF-8"),
        None => value.to_owned(),
    }
}
