//! Arguments that are made to take long to check: the response names the field, and the check costs next to nothing.

use serde_json::{Value, json};

use super::{
    command_server::{CommandServer, message, refusal, result_text},
    many::memory_peak_mib,
    server_dir::{ServerDir, tool},
};

/// What the answers to all of them may need at most, also in a build that is not optimized.
const MEMORY_MIB: u64 = 16;

/// A recursive enumeration of five kinds with tags, and one of five kinds without.
fn schema() -> Value {
    let inner = |name: &str| json!({"$ref": format!("#/$defs/{name}")});
    let tagged =
        |kind: &str| json!({"type": "object", "properties": {"arg": inner("Expr"), "kind": {"const": kind}}, "required": ["arg", "kind"]});
    let number =
        json!({"type": "object", "properties": {"kind": {"const": "num"}, "value": {"type": "number"}}, "required": ["kind", "value"]});
    let bare = |kind: &str| json!({"type": "object", "properties": {"arg": inner("Bare"), "kind": {"enum": [kind, "?"]}}, "required": ["arg", "kind"]});
    json!({
        "type": "object",
        "properties": {"expr": inner("Expr"), "bare": inner("Bare")},
        "$defs": {
            "Expr": {"oneOf": [tagged("neg"), tagged("abs"), tagged("sin"), tagged("cos"), number]},
            "Bare": {"anyOf": [bare("neg"), bare("abs"), bare("sin"), bare("cos"), {"type": "number"}]},
        },
    })
}

/// Arguments so many levels deep, as text.
fn arguments(name: &str, levels: usize, deepest: &str) -> String {
    format!("{{\"{name}\":{}{deepest}{}}}", "{\"kind\":\"neg\",\"arg\":".repeat(levels), "}".repeat(levels))
}

fn call(server: &CommandServer, arguments: &str) -> Value {
    let body = message("tools/call", json!({"name": "eval", "arguments": "@"})).to_string().replace("\"@\"", arguments);
    server.send_text("tools/call", Some("eval"), &body)
}

#[test]
fn a_recursive_choice_is_answered_with_the_field_within_little_memory() {
    let keys = "command = [\"cat\"]\nstdin = \"{expr}\"\ninput_schema = \"eval.json\"\ntask = \"never\"";
    let server_dir = ServerDir::new(&tool("eval", keys));
    server_dir.write("eval.json", &schema().to_string());
    let server = server_dir.start();
    let taken = |levels: usize| {
        let answer = call(&server, &arguments("expr", levels, "{\"kind\":\"num\",\"value\":1}"));
        assert_eq!(refusal(&answer), None, "{levels}: {answer}");
        assert_eq!(result_text(&answer["result"]).matches("neg").count(), levels, "{levels}: {answer}");
    };
    taken(1);
    let before = memory_peak_mib(server.pid());
    for levels in [11, 14, 100] {
        let why = refusal(&call(&server, &arguments("expr", levels, "{\"kind\":\"num\",\"value\":\"x\"}"))).expect("it is refused");
        assert!(why.contains("- `expr/arg/arg/") && why.ends_with("/arg/value`: \"x\" is not of type \"number\""), "{levels}: {why}");
        let why = refusal(&call(&server, &arguments("bare", levels, "\"x\""))).expect("it is refused");
        assert!(why.contains("- `bare`: {") && why.contains("is not valid under any of the schemas") && why.len() < 500, "{levels}: {why}");
        taken(levels);
    }
    // No JSON is so deep here.
    let why = refusal(&call(&server, &arguments("expr", 1_000, "\"x\""))).expect("it is refused");
    assert!(why.contains("`arguments`"), "{why}");
    taken(11);
    let grown = memory_peak_mib(server.pid()) - before;
    eprintln!("{grown} MiB more than before");
    assert!(grown <= MEMORY_MIB, "{grown} MiB more than before");
}
