//! A server at a glance, for people.

use std::time::Duration;

use serde_json::Value;

use crate::term::{escape, paint::short_duration, render};

/// A line for each thing that can be wrong with a server.
pub(super) fn text(state: &Value) -> String {
    let lines =
        [("tasks", tasks(state)), ("ended", ended(state)), ("store", store(state)), ("queue", queue(state)), ("clients", clients(state))];
    let mut text = format!("{}\n", head(state));
    text.extend(lines.iter().map(|(name, line)| format!("  {name:<9}{line}\n")));
    text.extend(nodes(state).map(|line| format!("  {:<9}{line}\n", "nodes")));
    text
}

fn words(value: &Value) -> String {
    escape::line(value.as_str().unwrap_or("?"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn head(state: &Value) -> String {
    let up = short_duration(Duration::from_millis(number(&state["uptimeMs"])));
    let node = state["node"].as_str().map(|node| format!(", node {}", escape::line(node))).unwrap_or_default();
    let takes = if state["draining"] == true { "drains" } else { "takes calls" };
    format!("{} {}: {takes}, up {up}, epoch {}{node}", words(&state["name"]), words(&state["version"]), number(&state["epoch"]))
}

fn tasks(state: &Value) -> String {
    let open = &state["tasks"]["open"];
    let asking = counted(number(&open["input_required"]), "waits for an answer", "wait for an answer");
    let waiting = counted(number(&state["commandsWaiting"]), "command waits for a slot", "commands wait for a slot");
    let in_memory = counted(number(&state["runsInMemory"]), "call is no task", "calls are no task");
    format!("{} working, {asking}; {waiting}, {in_memory}", number(&open["working"]))
}

fn ended(state: &Value) -> String {
    let ended: Vec<String> = state["tasks"]["ended"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(how, count)| format!("{} {}", number(count), escape::line(how)))
        .collect();
    let ended = if ended.is_empty() { "none".to_owned() } else { ended.join(", ") };
    format!("{ended}; {} made since the start", number(&state["tasks"]["created"]))
}

fn store(state: &Value) -> String {
    let store = &state["store"];
    let states = [("away", "cannot be reached just now"), ("full", "the disk is full")];
    let states = states.iter().filter(|(key, _)| store[*key] == true).map(|(_, what)| (*what).to_owned());
    let sizes = [("freeBytes", "free"), ("usedBytes", "used")];
    let sizes = sizes.iter().filter_map(|(key, what)| Some(format!("{} {what}", render::size(store[*key].as_u64()?))));
    let parts: Vec<String> = states.chain(sizes).collect();
    if parts.is_empty() { "can be reached".to_owned() } else { parts.join(", ") }
}

fn queue(state: &Value) -> String {
    format!("{} of {} changes wait to be written", number(&state["queue"]["length"]), number(&state["queue"]["capacity"]))
}

fn clients(state: &Value) -> String {
    let streams = state["streams"].as_object().into_iter().flatten().map(|(_, count)| number(count)).sum();
    let parts = [
        counted(number(&state["connections"]), "connection", "connections"),
        counted(streams, "stream", "streams"),
        counted(number(&state["sessions"]), "session", "sessions"),
    ];
    parts.join(", ")
}

/// None where no nodes share the store.
fn nodes(state: &Value) -> Option<String> {
    let nodes = state["nodes"].as_array().filter(|nodes| !nodes.is_empty())?;
    let node = |node: &Value| {
        let state =
            if number(&node["leaseLeftMs"]) == 0 { "expired".to_owned() } else { counted(number(&node["openTasks"]), "task", "tasks") };
        format!("{} ({state})", words(&node["name"]))
    };
    Some(nodes.iter().map(node).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_is_told_in_a_few_lines() {
        let mut state = json!({
            "name": "taskwire", "version": "0.1.0", "draining": false, "uptimeMs": 185_000, "epoch": 4,
            "store": {"away": false, "freeBytes": 4_200_000_000_u64, "usedBytes": 1_200_000},
            "queue": {"length": 1, "capacity": 4096}, "sessions": 1, "connections": 2, "commandsWaiting": 0, "runsInMemory": 1,
            "tasks": {"open": {"working": 2, "input_required": 1}, "created": 8, "ended": {"completed": 5}},
            "streams": {"listen": 1, "session": 2, "task": 0}, "nodes": [],
        });
        let told = text(&state);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(
            lines,
            [
                "taskwire 0.1.0: takes calls, up 3m 05s, epoch 4",
                "  tasks    2 working, 1 waits for an answer; 0 commands wait for a slot, 1 call is no task",
                "  ended    5 completed; 8 made since the start",
                "  store    4.2 GB free, 1.2 MB used",
                "  queue    1 of 4096 changes wait to be written",
                "  clients  2 connections, 3 streams, 1 session",
            ]
        );
        state["draining"] = true.into();
        state["node"] = "a".into();
        state["store"] = json!({"away": true});
        state["nodes"] = json!([{"name": "a", "leaseLeftMs": 5, "openTasks": 1}, {"name": "b\u{1b}[2J", "leaseLeftMs": 0, "openTasks": 3}]);
        let told = text(&state);
        assert!(told.starts_with("taskwire 0.1.0: drains, up 3m 05s, epoch 4, node a\n"), "{told}");
        assert!(told.contains("cannot be reached just now") && told.ends_with("  nodes    a (1 task), b^[[2J (expired)\n"), "{told}");
        state["store"] = json!({"away": false, "full": true, "freeBytes": 0, "usedBytes": 1_200_000});
        let told = text(&state);
        assert!(told.contains("\n  store    the disk is full, 0 B free, 1.2 MB used\n"), "{told}");
        state["store"] = json!({"away": true, "full": false, "usedBytes": 1_200_000});
        assert!(text(&state).contains("\n  store    cannot be reached just now, 1.2 MB used\n"));
    }
}
