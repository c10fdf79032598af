//! Results that are larger than a client wants to read at once, and output that is larger than a task may have.

use serde_json::{Value, json};

use super::{
    command_server::{CommandServer, result_text},
    server_dir::{ServerDir, tool, until},
};

/// Rows of eleven bytes, about a megabyte of them.
const ROWS: usize = 100_000;
const ROW_BYTES: usize = 11;
const INLINE_BYTES: usize = 4096;

fn row(n: usize) -> String {
    format!("row {n:06}\n")
}

fn server_dir(head: &str, keys: &str) -> ServerDir {
    let server_dir =
        ServerDir::new(&format!("{head}\n{}", tool("rows", &format!("command = [\"python3\", \"rows.py\"]\ntask = \"always\"\n{keys}"))));
    server_dir.write("rows.py", &format!("import sys\nsys.stdout.write(''.join('row %06d\\n' % n for n in range({ROWS})))\n"));
    server_dir
}

/// The contents of a resource, and what is said about its range.
#[track_caller]
fn read(server: &CommandServer, uri: &str) -> (String, Value) {
    let result = server.ask("resources/read", json!({"uri": uri}));
    let contents = &result["contents"][0];
    assert_eq!((&contents["mimeType"], result["contents"].as_array().map(Vec::len)), (&json!("text/plain"), Some(1)), "{uri}");
    let range = [&contents["_meta"], &result["_meta"]].into_iter().map(|meta| &meta["dev.taskwire/range"]).find(|range| range.is_object());
    (contents["text"].as_str().expect("text").to_owned(), range.unwrap_or_else(|| panic!("no range: {}", result["_meta"])).clone())
}

#[test]
fn a_large_result_has_its_beginning_and_its_end_and_says_where_the_rest_is() {
    let server_dir = server_dir("", &format!("inline_bytes = {INLINE_BYTES}"));
    let server = server_dir.start();
    let id = server.begin("rows", json!({}));
    let result = server.result(&id);
    let content = result["content"].as_array().expect("content");
    let texts: Vec<&str> = content.iter().filter_map(|block| block["text"].as_str()).collect();
    assert!(texts[0].starts_with(&format!("{}{}", row(0), row(1))), "{:?}", texts[0]);
    assert!(texts.iter().any(|text| text.ends_with(&format!("{}{}", row(ROWS - 2), row(ROWS - 1)))), "its end: {texts:?}");
    let bytes = result_text(&result).len();
    assert!((INLINE_BYTES / 2..INLINE_BYTES + 2000).contains(&bytes), "{bytes} bytes");
    assert!(texts.iter().all(|text| text.starts_with("row ") || text.contains(&format!("taskwire://task/{id}/output"))), "{texts:?}");
    let link = content.iter().find(|block| block["type"] == "resource_link").expect("a link");
    let total = ROWS * ROW_BYTES;
    assert_eq!((&link["uri"], &link["size"]), (&json!(format!("taskwire://task/{id}/output")), &json!(total)), "{link}");
    assert!(server.text(&id).len() == total, "the output has all of it");
    server_dir.is_quiet();
}

#[test]
fn the_output_of_a_task_is_a_resource_that_can_be_read_in_ranges() {
    let server_dir = server_dir("", &format!("inline_bytes = {INLINE_BYTES}"));
    let server = server_dir.start();
    let id = server.begin("rows", json!({}));
    server.result(&id);
    let uri = format!("taskwire://task/{id}/output");
    let templates = server.ask("resources/templates/list", json!({}));
    assert!(templates.to_string().contains("taskwire://task/{id}/output"), "{templates}");
    let range = |query: &str| read(&server, &format!("{uri}{query}"));
    assert_eq!(range("?from=0&bytes=22").0, row(0) + &row(1));
    assert_eq!(range(&format!("?from={}&bytes={ROW_BYTES}", 50_000 * ROW_BYTES)).0, row(50_000));
    let (end, about) = range(&format!("?from=-{ROW_BYTES}"));
    assert_eq!((end, &about["total"], &about["next"]), (row(ROWS - 1), &json!(ROWS * ROW_BYTES), &Value::Null), "{about}");
    // From range to range one comes to the end, and has it all.
    let (mut text, mut about) = read(&server, &uri);
    for _ in 0..ROWS {
        let Some(next) = about["next"].as_str().map(ToOwned::to_owned) else { break };
        let (more, then) = read(&server, &next);
        assert!(!more.is_empty(), "{next}");
        text.push_str(&more);
        about = then;
    }
    assert!(text == (0..ROWS).map(row).collect::<String>(), "{} bytes, not what was written", text.len());
    let beyond = server.send("resources/read", json!({"uri": format!("{uri}?from=999999999")}));
    assert!(beyond["error"].is_object() || beyond["result"]["contents"][0]["text"] == "", "{beyond}");
    for wrong in [format!("taskwire://task/{}/output", "0".repeat(32)), "taskwire://task/output".to_owned(), format!("{uri}?from=x")] {
        assert!(server.send("resources/read", json!({"uri": wrong}))["error"].is_object(), "{wrong}");
    }
    // Without a server in between, too.
    server.kill();
    let server = server_dir.start();
    assert_eq!(read(&server, &format!("{uri}?from=11&bytes=11")).0, row(1));
}

#[test]
fn an_image_that_is_too_large_for_the_output_is_a_resource_that_outlives_the_server() {
    for task in ["always", "auto"] {
        let server_dir =
            ServerDir::new(&tool("draw", &format!("command = [\"python3\", \"draw.py\"]\noutput = \"jsonl\"\ntask = \"{task}\"")));
        let script = "import base64, json\ndata = base64.b64encode(bytes(n % 256 for n in range(900000))).decode()\n\
                      print(json.dumps({'type': 'image', 'data': data, 'mimeType': 'image/png'}))\nprint('drawn')\n";
        server_dir.write("draw.py", script);
        let server = server_dir.start();
        let answer = server.call("draw", json!({}));
        let result = answer["taskId"].as_str().map_or_else(|| answer.clone(), |id| server.result(id));
        let content = result["content"].as_array().expect("content");
        let link = content.iter().find(|block| block["type"] == "resource_link").unwrap_or_else(|| panic!("no link: {result}"));
        assert_eq!((&link["mimeType"], &link["size"]), (&json!("image/png"), &json!(900_000)), "{task}");
        assert!(result_text(&result).contains("drawn") && result.to_string().len() < 2000, "{task}: {} bytes", result.to_string().len());
        server.kill();
        let server = server_dir.start();
        let read = server.ask("resources/read", json!({"uri": link["uri"]}));
        let blob = read["contents"][0]["blob"].as_str().expect("a blob");
        assert_eq!((blob.len(), &blob[..8], &read["contents"][0]["mimeType"]), (1_200_000, "AAECAwQF", &json!("image/png")), "{task}");
        server_dir.is_quiet();
    }
}

#[test]
fn a_result_that_fits_is_whole() {
    let server_dir = server_dir("", "inline_bytes = 2000000");
    let server = server_dir.start();
    let result = server.result(&server.begin("rows", json!({})));
    assert_eq!(result["content"].as_array().map(Vec::len), Some(1));
    assert!(result_text(&result) == (0..ROWS).map(row).collect::<String>(), "not what was written");
}

#[test]
fn too_much_output_ends_the_command_and_leaves_nothing() {
    let server_dir = server_dir("[limits]\ntask_output_bytes = 524288\n", "overflow = \"fail\"");
    server_dir.write("rows.py", "import os\nwhile True:\n    os.write(1, b'row\\n' * 1000)\n");
    let server = server_dir.start();
    let id = server.begin("rows", json!({}));
    let task = server.ended(&id);
    assert_eq!((&task["status"], &task["result"]["isError"]), (&json!("completed"), &json!(true)), "{task}");
    let content = task["result"]["content"].as_array().expect("content");
    assert!(content[0]["text"].as_str().is_some_and(|text| text.starts_with("row\nrow\n")), "what it wrote is not lost: {}", content[0]);
    assert!(content.iter().any(|block| block["uri"] == format!("taskwire://task/{id}/output")), "and can be read: {content:?}");
    let last = content.last().and_then(|block| block["text"].as_str()).expect("a text");
    assert!(last.contains("was stopped") && last.contains("task_output_bytes"), "it says which limit: {last}");
    server_dir.is_quiet();
}

/// The result says of an output that was too large exactly what is kept of it.
#[track_caller]
fn is_what_is_kept(server: &CommandServer, id: &str, result: &Value) {
    let content = result["content"].as_array().expect("content");
    let kept = server.text(id);
    let (link, at) = content.iter().zip(0..).find(|(block, _)| block["type"] == "resource_link").expect("a link");
    assert_eq!(link["size"], kept.len(), "{link}");
    assert_eq!(read(server, &format!("taskwire://task/{id}/output?from=-11")).1["total"], kept.len());
    let texts: Vec<&str> = content[..at].iter().filter_map(|block| block["text"].as_str()).collect();
    let (first, last) = (texts[0], texts[texts.len() - 1]);
    assert!(kept.starts_with(first) && kept.ends_with(last), "{first:?} … {last:?}");
}

#[test]
fn output_that_is_too_much_is_told_as_it_is_kept() {
    let head = "[limits]\ntask_output_bytes = 200000\nchunk_bytes = 16384\n";
    // Stopped in the middle, and with little or nothing after what found no room.
    for (rows, code) in [(100_000, 0), (17_500, 0), (17_500, 3), (17_800, 0), (17_800, 3)] {
        let server_dir = server_dir(head, "overflow = \"fail\"\ninline_bytes = 4096");
        let script = format!(
            "import sys\nsys.stdout.write(''.join('row %06d\\n' % n for n in range({rows})))\nsys.stdout.flush()\nsys.exit({code})\n"
        );
        server_dir.write("rows.py", &script);
        let server = server_dir.start();
        let id = server.begin("rows", json!({}));
        let task = server.ended(&id);
        assert_eq!((&task["status"], &task["result"]["isError"]), (&json!("completed"), &json!(true)), "{rows} {code}: {task}");
        let text = result_text(&task["result"]);
        assert!(text.contains("limits.task_output_bytes") && text.contains("is not kept"), "{rows} {code}: {}", &text[text.len() - 500..]);
        is_what_is_kept(&server, &id, &task["result"]);
        server_dir.is_quiet();
    }
}

#[test]
fn too_much_output_loses_its_oldest() {
    for keys in ["", "overflow = \"drop_oldest\"\n"] {
        let server_dir = server_dir("[limits]\ntask_output_bytes = 524288\n", &format!("{keys}inline_bytes = 4096"));
        let server = server_dir.start();
        let id = server.begin("rows", json!({}));
        let result = server.result(&id);
        assert_ne!(result["isError"], true, "{result}");
        let content = result["content"].as_array().expect("content");
        assert!(content.iter().any(|block| block["text"].as_str().is_some_and(|text| text.ends_with(&row(ROWS - 1)))), "its end: {result}");
        let link = content.iter().find(|block| block["type"] == "resource_link").expect("a link");
        let (written, reported) = (json!(ROWS * ROW_BYTES), &link["_meta"]["dev.taskwire/written"]);
        assert_eq!((&link["size"], reported), (&Value::Null, &written), "less is kept than that: {link}");
        server_dir.is_quiet();
    }
}

#[test]
fn what_was_lost_before_the_server_was_killed_is_told() {
    let server_dir = server_dir("[limits]\ntask_output_bytes = 524288\n", "inline_bytes = 4096");
    let script = "import os, time\nfor n in range(100000):\n    os.write(1, b'row %06d\\n' % n)\nwhile not os.path.exists('go'):\n    \
                  time.sleep(0.01)\nos.write(1, b'the end\\n')\n";
    server_dir.write("rows.py", script);
    let server = server_dir.start();
    let id = server.begin("rows", json!({}));
    let uri = format!("taskwire://task/{id}/output?from=-11");
    until("the last row", || (read(&server, &uri).0 == row(ROWS - 1)).then_some(()));
    server.kill();
    let server = server_dir.start();
    server_dir.write("go", "");
    let result = server.result(&id);
    let content = result["content"].as_array().expect("content");
    assert!(content[0]["text"].as_str().is_some_and(|text| text.contains("no longer kept")), "{}", content[0]);
    assert!(result_text(&result).contains("the end\n"), "{result}");
    server_dir.is_quiet();
}
