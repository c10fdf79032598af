//! What is added, and that all else stays.

use serde_json::json;

use super::*;

fn item() -> OrderedValue {
    OrderedValue::members([("url", OrderedValue::text("http://h/mcp"))])
}

fn added(text: &str) -> String {
    add(text, &["mcpServers"], "taskwire", &item(), false).expect("it can be added").expect("it was not there")
}

#[test]
fn a_file_without_anything_gets_all_of_it() {
    let expected = "{\n  \"mcpServers\": {\n    \"taskwire\": {\n      \"url\": \"http://h/mcp\"\n    }\n  }\n}\n";
    assert_eq!(added("{}\n"), expected);
    assert_eq!(added(""), expected);
    assert_eq!(added("{ }\n"), expected);
    assert_eq!(value(&added(" \n")).expect("JSON"), json!({"mcpServers": {"taskwire": {"url": "http://h/mcp"}}}));
}

#[test]
fn order_comments_and_indentation_stay() {
    let text = "// mine\n{\n\t\"z\": [1, 2,], // two\n\t\"mcpServers\": {\n\t\t\"b\": {\"command\": \"x\"}, // the first\n\t\t/* off */\n\t\t\"a\": {} // last\n\t},\n\t\"y\": null,\n}\n";
    let expected = "// mine\n{\n\t\"z\": [1, 2,], // two\n\t\"mcpServers\": {\n\t\t\"b\": {\"command\": \"x\"}, // the first\n\t\t/* off */\n\t\t\"a\": {}, // last\n\t\t\"taskwire\": {\n\t\t\t\"url\": \"http://h/mcp\"\n\t\t}\n\t},\n\t\"y\": null,\n}\n";
    assert_eq!(added(text), expected);
}

#[test]
fn a_comma_behind_the_last_member_is_used_and_kept() {
    let text = "{\n    \"mcpServers\": {\n        \"a\": {},\n        // \"off\": {}\n    },\n}";
    let expected = "{\n    \"mcpServers\": {\n        \"a\": {},\n        // \"off\": {}\n        \"taskwire\": {\n            \"url\": \"http://h/mcp\"\n        },\n    },\n}";
    assert_eq!(added(text), expected);
}

#[test]
fn whatever_the_layout_the_rest_stays_byte_for_byte() {
    let texts = [
        "{\"a\":1}",
        "{\"mcpServers\":{}}",
        "{ \"mcpServers\": { \"x\": 1 } }",
        "{\r\n  \"a\": \"\\\"}\",\r\n  \"mcpServers\": {\r\n  }\r\n}\r\n",
        "{\n  \"mcpServers\": {\n    // nothing yet\n  }\n}\n",
        "{\n  \"mcpServers\": { /* nothing yet */ }\n}\n",
        "\u{feff}{\"a\": {\"mcpServers\": {}}} // end",
        "{\n  \"ü\": \"// no comment\" // a } in a comment\n}",
    ];
    for text in texts {
        let new = added(text);
        let (old_value, new_value) = (value(text).expect("JSON"), value(&new).expect("JSON"));
        assert_eq!(new_value["mcpServers"]["taskwire"], item().value(), "{new}");
        let mut without = new_value.clone();
        let servers = without["mcpServers"].as_object_mut().expect("an object");
        servers.remove("taskwire");
        if old_value.get("mcpServers").is_none() {
            without.as_object_mut().expect("an object").remove("mcpServers");
        }
        assert_eq!(without, old_value, "{new}");
        let mut rest = new.chars();
        let is_kept = |c: char| rest.any(|other| other == c);
        assert!(text.chars().filter(|c| !c.is_whitespace()).all(is_kept), "something of {text:?} is gone: {new:?}");
        assert_eq!(new.contains("\r\n"), text.contains("\r\n"), "{new:?}");
        assert_eq!(add(&new, &["mcpServers"], "taskwire", &item(), false), Ok(None), "what is there is not added again");
    }
}

#[test]
fn another_of_that_name_is_replaced_only_if_that_is_wanted() {
    let text = "{\n  \"mcpServers\": {\n    \"taskwire\": {\"url\": \"http://other\"}, // mine\n    \"b\": {}\n  }\n}\n";
    assert_eq!(add(text, &["mcpServers"], "taskwire", &item(), false), Err(AddError::NameTaken));
    let new = add(text, &["mcpServers"], "taskwire", &item(), true).expect("it can be replaced").expect("it was another");
    let expected = "{\n  \"mcpServers\": {\n    \"taskwire\": {\n      \"url\": \"http://h/mcp\"\n    }, // mine\n    \"b\": {}\n  }\n}\n";
    assert_eq!(new, expected);
}

#[test]
fn what_is_not_as_it_should_be_is_refused_with_its_place() {
    let refused = |text: &str| match add(text, &["mcpServers"], "taskwire", &item(), true) {
        Err(AddError::Unusable(reason)) => reason,
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(refused("{\n  \"a\": 1\n  \"b\": 2\n}"), "line 3, column 3: a comma or a `}` is expected here");
    assert_eq!(refused("{\"a\": tru}"), "line 1, column 7: a value is expected here");
    assert!(refused("{\"a\": 1").contains("a comma or a `}`"));
    assert_eq!(refused("{\"a\": \"b}"), "line 1, column 7: a text has no end");
    assert_eq!(refused("{} x"), "line 1, column 4: there is more behind its end");
    assert_eq!(refused("{/* "), "line 1, column 2: a comment has no end");
    assert_eq!(refused("[]"), "what it has is no object");
    assert_eq!(refused("{\"mcpServers\": []}"), "`mcpServers` is no object");
    assert_eq!(refused("{\"mcpServers\": {}, \"mcpServers\": {}}"), "it has `mcpServers` twice");
    let deep = format!("{{\"a\": {}", "[".repeat(100_000));
    assert!(refused(&deep).ends_with("too many objects and lists in each other"));
}
