//! The output of a task as a resource.

use serde_json::{Value, json};
use taskwire::tool::Content;

use super::{has, of, says};
use crate::{
    kit::{Client, with_timeout},
    legacy::kit::LegacySession,
    tool_harness::{ToolHarness, large, shortened, uncoalesced},
};

/// The contents of a resource that must be there.
async fn read(client: &Client, uri: &str) -> Value {
    let result = with_timeout("the resource", client.ok("resources/read", json!({"uri": uri}))).await;
    assert_eq!(result["contents"].as_array().map(Vec::len), Some(1), "{result}");
    result["contents"][0].clone()
}

/// A range in short: its text, and what is said of it.
async fn range(client: &Client, uri: &str) -> (String, Value) {
    let contents = read(client, uri).await;
    assert_eq!(contents["mimeType"], "text/plain", "{contents}");
    (contents["text"].as_str().expect("text").to_owned(), contents["_meta"]["dev.taskwire/range"].clone())
}

#[tokio::test]
async fn output_is_a_resource_that_is_read_by_ranges() {
    let mut harness = ToolHarness::with(uncoalesced()).await;
    let client = harness.server.plain_client();
    let (id, mut run) = harness.task().await;
    let uri = format!("taskwire://task/{id}/output");
    assert_eq!(range(&client, &uri).await, (String::new(), json!({"from": 0, "bytes": 0, "total": 0, "ended": false})));
    run.writes("0123").await;
    run.ctx.block(Content::image(b"png", "image/png")).await.expect("it may write");
    // Two bytes each.
    run.writes("éñ").await;
    run.writes("89").await;
    assert_eq!(range(&client, &uri).await, ("0123éñ89".to_owned(), json!({"from": 0, "bytes": 10, "total": 10, "ended": false})));
    assert_eq!(read(&client, &uri).await["uri"], uri, "all of it has the name by which it was asked for");
    run.ends("the result");
    with_timeout("the end", harness.client.until(&id, "completed")).await;
    for (query, text, from) in [
        ("from=2", "23éñ89", 2),
        ("from=-3", "ñ89", 6),
        ("from=-2", "89", 8),
        ("from=-1000", "0123éñ89", 0),
        ("from=5", "éñ89", 4),
        ("from=10", "", 10),
        ("from=99999", "", 10),
    ] {
        let (found, meta) = range(&client, &format!("{uri}?{query}")).await;
        assert_eq!((found.as_str(), &meta), (text, &json!({"from": from, "bytes": text.len(), "total": 10, "ended": true})), "{query}");
    }
    let (found, meta) = range(&client, &format!("{uri}?from=1&bytes=4")).await;
    assert_eq!((found.as_str(), &meta["bytes"], &meta["next"]), ("123", &json!(3), &json!(format!("{uri}?from=4&bytes=4"))), "no half é");
    let contents = read(&client, &format!("{uri}?bytes=1&from=5")).await;
    assert_eq!((&contents["text"], &contents["uri"]), (&json!("é"), &json!(format!("{uri}?from=4&bytes=2"))), "a character at least");
    for wrong in ["from=x", "bytes=0", "bytes=-3", "upto=4", "from=1&from=2"] {
        let error = client.error("resources/read", json!({"uri": format!("{uri}?{wrong}")})).await;
        assert_eq!(error["code"], -32602, "{error}");
    }
    for other in [format!("taskwire://task/{id}"), format!("{uri}/more"), "taskwire://task/x/output".to_owned()] {
        client.error("resources/read", json!({"uri": other})).await;
    }
}

#[tokio::test]
async fn a_large_output_is_read_whole_by_following_its_links() {
    let mut harness = ToolHarness::with(uncoalesced()).await;
    let (id, run) = harness.task().await;
    let mut all = String::new();
    for n in 0..60 {
        all.push_str(&large(n));
        run.writes(&large(n)).await;
    }
    let client = harness.server.plain_client();
    for first in [String::new(), "?bytes=400001".to_owned()] {
        let (mut text, mut next, mut reads) = (String::new(), format!("taskwire://task/{id}/output{first}"), 0);
        loop {
            let (part, meta) = range(&client, &next).await;
            assert_eq!((&meta["from"], &meta["total"]), (&json!(text.len()), &json!(all.len())));
            text.push_str(&part);
            reads += 1;
            match meta["next"].as_str() {
                Some(uri) => uri.clone_into(&mut next),
                None => break,
            }
        }
        assert!(text == all && reads > 1, "{} of {} bytes in {reads} reads", text.len(), all.len());
    }
    let (end, meta) = range(&client, &format!("taskwire://task/{id}/output?from=-7")).await;
    assert_eq!((end.as_str(), &meta["from"]), ("xxxxxxx", &json!(all.len() - 7)));
}

#[tokio::test]
async fn sessions_read_the_output_too_and_lists_do_not_name_it_where_no_tool_writes_so_much() {
    let mut harness = ToolHarness::new().await;
    let (id, run) = harness.task().await;
    run.writes("hello\n").await;
    let legacy = LegacySession::declaring(&harness.server, json!({})).await;
    let read = legacy.ok("resources/read", json!({"uri": format!("taskwire://task/{id}/output?from=-3")})).await;
    assert_eq!(read["contents"][0]["text"], "lo\n");
    for templates in [
        harness.server.plain_client().ok("resources/templates/list", json!({})).await,
        legacy.ok("resources/templates/list", json!({})).await,
    ] {
        assert_eq!(templates["resourceTemplates"], json!([]));
    }
}

#[tokio::test]
async fn output_that_is_no_longer_kept_is_not_passed_over_in_silence() {
    let (harness, id, _run) = shortened().await;
    let client = harness.server.plain_client();
    let text = says(&client, "task_output", of(&id)).await;
    has(&text, &["no longer kept", "\"after\":10"]);
    assert!(!text.contains(&format!("{:060}", 0)) && text.contains(&format!("{:060}", 9)), "{text}");
    let contents = read(&client, &format!("taskwire://task/{id}/output")).await;
    assert_eq!(contents["_meta"]["dev.taskwire/range"]["dropped"], true, "{contents}");
    assert!(contents["text"].as_str().expect("text").ends_with(&format!("{:060}", 9)), "{contents}");
}
