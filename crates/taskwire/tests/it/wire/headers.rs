//! Headers that repeat the body.

use taskwire::server::HttpConfig;

use super::*;

#[tokio::test]
async fn each_standard_header_must_be_there_once_and_agree() {
    let server = echo_server().await;
    let client = server.client();
    let message = client.message(5, "tools/call", json!({"name": "echo", "arguments": {"text": "x"}}));
    let good = client.headers(&message);
    for (name, value, wrong) in [
        ("MCP-Protocol-Version", "2026-07-28", "2026-07-27"),
        ("Mcp-Method", "tools/call", "Tools/Call"),
        ("Mcp-Method", "tools/call", "tools/list"),
        ("Mcp-Name", "echo", "Echo"),
        ("Mcp-Name", "echo", "other"),
    ] {
        let spoiled: [&[&str]; 6] = [&[], &[""], &[wrong], &[value, value], &[value, wrong], &[wrong, value]];
        for values in spoiled {
            let headers = set(good.clone(), name, values);
            assert_eq!(refusal(&client, &message, &headers).await, (400, -32020, json!(5)), "{name}: {values:?}");
        }
    }
}

#[tokio::test]
async fn the_case_of_header_names_and_blanks_around_values_do_not_matter() {
    let server = echo_server().await;
    let client = server.client();
    let message = client.message(5, "tools/call", json!({"name": "echo", "arguments": {"text": "x"}}));
    let loud = |(key, value): (String, String)| (key.to_uppercase(), format!("  {value}\t"));
    let headers: Headers = client.headers(&message).into_iter().map(loud).collect();
    let response = client.post(&headers, message.to_string().as_bytes()).await;
    assert_eq!((response.status, &response.json()["result"]["content"][0]["text"]), (200, &json!("x")));
}

#[tokio::test]
async fn requests_that_name_something_need_the_name_as_a_header() {
    let server = echo_server().await;
    let client = server.client();
    let named = [
        ("tools/call", json!({"name": "echo", "arguments": {"text": "x"}})),
        ("prompts/get", json!({"name": "hello"})),
        ("resources/read", json!({"uri": URI})),
    ];
    for (method, params) in named {
        let message = client.message(6, method, params);
        let headers = set(client.headers(&message), "Mcp-Name", &[]);
        assert_eq!(refusal(&client, &message, &headers).await, (400, -32020, json!(6)), "{method}");
    }
}

#[tokio::test]
async fn a_task_request_with_another_name_in_its_header_is_refused() {
    let server = TestServer::start(registry([forever()])).await;
    let client = server.client();
    let id = client.start("forever", json!({})).await;
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let message = client.message(8, method, json!({"taskId": id, "inputResponses": {}}));
        let headers = set(client.headers(&message), "Mcp-Name", &[NOBODY]);
        assert_eq!(refusal(&client, &message, &headers).await, (400, -32020, json!(8)), "{method}");
    }
    assert_eq!(client.get(&id).await["status"], "working", "nothing was done");
}

#[tokio::test]
async fn a_task_request_without_its_name_header_is_served_unless_headers_are_strict() {
    for strict_headers in [false, true] {
        let http = HttpConfig { strict_headers, ..HttpConfig::default() };
        let server = start(registry([forever()]), Config { http, ..Config::default() }).await;
        let client = server.client();
        let id = client.start("forever", json!({})).await;
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let message = client.message(9, method, json!({"taskId": id, "inputResponses": {}}));
            let headers = set(client.headers(&message), "Mcp-Name", &[]);
            let response = client.post(&headers, message.to_string().as_bytes()).await;
            schema::check_response(method, &response.json());
            let code = response.json()["error"]["code"].as_i64();
            let expected = if strict_headers { (400, Some(-32020)) } else { (200, None) };
            assert_eq!((response.status, code), expected, "{method}");
        }
    }
}

#[tokio::test]
async fn a_name_that_no_header_can_hold_travels_as_base64() {
    let server = echo_server().await;
    let client = server.client();
    let message = client.message(1, "resources/read", json!({"uri": URI}));
    let headers = set(client.headers(&message), "Mcp-Name", &[&base64(URI)]);
    let response = client.post(&headers, message.to_string().as_bytes()).await;
    schema::check_response("resources/read", &response.json());
    assert_eq!(response.json()["result"]["contents"][0]["text"], "large");
    let plain = client.message(1, "tools/call", json!({"name": "echo", "arguments": {"text": "x"}}));
    let headers = set(client.headers(&plain), "Mcp-Name", &[&base64("echo")]);
    assert_eq!(client.post(&headers, plain.to_string().as_bytes()).await.status, 200, "also where it is not needed");
}

#[tokio::test]
async fn a_name_that_does_not_decode_to_the_body_is_refused() {
    let server = echo_server().await;
    let client = server.client();
    let message = client.message(2, "resources/read", json!({"uri": URI}));
    let shouted = base64(URI).replace("base64", "BASE64");
    for value in ["=?base64?%%%?=", "=?base64?/w==?=", "=?base64??=", "=?base64?", &base64("test://other"), &shouted, URI] {
        let headers = set(client.headers(&message), "Mcp-Name", &[value]);
        assert_eq!(refusal(&client, &message, &headers).await, (400, -32020, json!(2)), "{value}");
    }
}

/// A tool that wants four of its arguments repeated as headers, and a call of it.
fn routed() -> Tool {
    let schema = json!({"type": "object", "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
        "dry": {"type": "boolean", "x-mcp-header": "Dry"},
        "place": {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}},
    }});
    Tool::raw("routed", "Goes somewhere", schema, |_ctx: Ctx| async { Ok::<_, ToolError>("there") })
}

async fn call_routed(client: &Client, arguments: &Value, extra: Option<(&str, &str)>) -> Response {
    let message = client.message(1, "tools/call", json!({"name": "routed", "arguments": arguments}));
    let mut headers = client.headers(&message);
    headers.extend(extra.map(|(name, value)| header(name, value)));
    client.post(&headers, message.to_string().as_bytes()).await
}

#[tokio::test]
async fn arguments_are_repeated_in_the_headers_that_the_schema_names() {
    let server = TestServer::start(registry([routed()])).await;
    let client = server.client();
    let encoded = base64("Köln");
    for (arguments, extra) in [
        (json!({}), None),
        (json!({"region": "eu"}), Some(("Mcp-Param-Region", "eu"))),
        (json!({"region": "eu"}), Some(("mcp-param-REGION", "eu"))),
        (json!({"region": "Köln"}), Some(("Mcp-Param-Region", encoded.as_str()))),
        (json!({"count": 42}), Some(("Mcp-Param-Count", "42"))),
        (json!({"count": -9_007_199_254_740_991_i64}), Some(("Mcp-Param-Count", "-9007199254740991"))),
        (json!({"dry": true}), Some(("Mcp-Param-Dry", "true"))),
        (json!({"dry": false}), Some(("Mcp-Param-Dry", "false"))),
        (json!({"place": {}}), None),
        (json!({"place": {"city": "Ulm"}}), Some(("Mcp-Param-City", "Ulm"))),
    ] {
        let response = call_routed(&client, &arguments, extra).await;
        assert_eq!(response.json()["result"]["content"][0]["text"], "there", "{arguments} {extra:?}");
    }
}

#[tokio::test]
async fn an_argument_whose_header_is_missing_or_different_is_refused() {
    let server = TestServer::start(registry([routed()])).await;
    let client = server.client();
    for (arguments, name, wrong) in [
        (json!({"region": "eu"}), "Mcp-Param-Region", "EU"),
        (json!({"region": "eu"}), "Mcp-Param-Region", "=?base64?%%%?="),
        (json!({"count": 42}), "Mcp-Param-Count", "43"),
        (json!({"count": 42}), "Mcp-Param-Count", "forty-two"),
        (json!({"dry": true}), "Mcp-Param-Dry", "True"),
        (json!({"dry": true}), "Mcp-Param-Dry", "1"),
        (json!({"place": {"city": "Ulm"}}), "Mcp-Param-City", "Bonn"),
    ] {
        for extra in [None, Some((name, wrong))] {
            let response = call_routed(&client, &arguments, extra).await;
            assert_eq!((response.status, response.code()), (400, -32020), "{arguments} {extra:?}");
        }
    }
}

#[tokio::test]
async fn whole_numbers_in_headers_are_compared_as_numbers() {
    let server = TestServer::start(registry([routed()])).await;
    let client = server.client();
    for (arguments, text) in [(json!({"count": 42}), "42.0"), (json!({"count": 42.0}), "42"), (json!({"count": 42.0}), "42.0")] {
        let response = call_routed(&client, &arguments, Some(("Mcp-Param-Count", text))).await;
        assert_eq!(response.json()["result"]["content"][0]["text"], "there", "{arguments} {text}");
    }
}

#[tokio::test]
async fn an_argument_that_is_null_needs_no_header() {
    let server = TestServer::start(registry([routed()])).await;
    let response = call_routed(&server.client(), &json!({"region": null}), None).await;
    assert_eq!(response.json()["result"]["content"][0]["text"], "there", "it counts as left out: {response:?}");
}
