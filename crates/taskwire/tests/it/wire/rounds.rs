//! Questions to a caller without tasks: each is a round of its call.

use taskwire::tool::{InputRequired, Question};

use super::*;
use crate::kit::manual_clock;

/// Asks for a name, and counts how often its body is entered.
fn asking(name: &str, runs: &Arc<AtomicUsize>) -> Tool {
    let runs = runs.clone();
    Tool::raw(name, "Asks for a name", json!({"type": "object"}), move |ctx: Ctx| {
        runs.fetch_add(1, Ordering::Relaxed);
        async move {
            let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
            let answer = ctx.ask("name", Question::form("Who are you?", schema)).await?;
            let content = answer.content.unwrap_or_default();
            Ok::<_, ToolError>(format!("hello {}", content["name"].as_str().unwrap_or_default()))
        }
    })
}

fn forms() -> Value {
    json!({"elicitation": {}})
}

/// The call of a tool that asked, made again with an answer.
fn again(tool: &str, n: u64, state: &str) -> Value {
    let answer = json!({"name": {"action": "accept", "content": {"name": "Ada"}}});
    json!({"name": tool, "arguments": {"n": n}, "requestState": state, "inputResponses": answer})
}

#[tokio::test]
async fn a_question_is_answered_by_a_second_call_that_continues_the_same_run() {
    let runs = Arc::new(AtomicUsize::new(0));
    let server = TestServer::start(registry([asking("ask", &runs)])).await;
    let client = server.plain_client().declaring(forms());
    let asked = with_timeout("a question", client.call("ask", json!({"n": 1}))).await;
    assert_eq!(asked["resultType"], "input_required");
    assert_eq!(asked["inputRequests"]["name"]["method"], "elicitation/create");
    assert_eq!(asked["inputRequests"]["name"]["params"]["message"], "Who are you?");
    let state = asked["requestState"].as_str().expect("a state");
    let done = with_timeout("the result", client.ok("tools/call", again("ask", 1, state))).await;
    assert_eq!((&done["resultType"], &done["content"][0]["text"]), (&json!("complete"), &json!("hello Ada")));
    assert_eq!(runs.load(Ordering::Relaxed), 1, "the body was entered once");
}

#[tokio::test]
async fn a_question_that_was_not_answered_is_asked_again() {
    let runs = Arc::new(AtomicUsize::new(0));
    let server = TestServer::start(registry([asking("ask", &runs)])).await;
    let client = server.plain_client().declaring(forms());
    let asked = with_timeout("a question", client.call("ask", json!({"n": 1}))).await;
    let mut state = asked["requestState"].clone();
    for responses in [json!({}), json!({"another": {"action": "accept"}})] {
        let params = json!({"name": "ask", "arguments": {"n": 1}, "requestState": state, "inputResponses": responses});
        let asked_again = with_timeout("the question again", client.ok("tools/call", params)).await;
        assert_eq!(asked_again["inputRequests"], asked["inputRequests"], "{responses}");
        state = asked_again["requestState"].clone();
    }
    let done = with_timeout("the result", client.ok("tools/call", again("ask", 1, state.as_str().expect("a state")))).await;
    assert_eq!(done["content"][0]["text"], "hello Ada");
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_request_state_serves_its_own_call_and_no_other() {
    let runs = Arc::new(AtomicUsize::new(0));
    let server = guarded(registry([asking("ask", &runs), asking("other", &runs)])).await;
    let alice = server.plain_client().declaring(forms()).with_token("a-token");
    let bob = server.plain_client().declaring(forms()).with_token("b-token");
    let asked = with_timeout("a question", alice.call("ask", json!({"n": 1}))).await;
    let state = asked["requestState"].as_str().expect("a state");
    let (body, tag) = state.split_once('.').expect("a signed state");
    let first = if state.starts_with('e') { "f" } else { "e" };
    for (what, who, params) in [
        ("another caller", &bob, again("ask", 1, state)),
        ("another tool", &alice, again("other", 1, state)),
        ("other arguments", &alice, again("ask", 2, state)),
        ("a changed beginning", &alice, again("ask", 1, &format!("{first}{}", &state[1..]))),
        ("something more", &alice, again("ask", 1, &format!("{state}x"))),
        ("no signature", &alice, again("ask", 1, &format!("{body}."))),
        ("only a signature", &alice, again("ask", 1, &format!(".{tag}"))),
        ("nothing", &alice, again("ask", 1, "")),
    ] {
        let error = with_timeout("a refusal", who.error("tools/call", params)).await;
        assert_eq!(error["code"], -32602, "{what}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains("requestState")), "{what}: {error}");
    }
    assert_eq!(runs.load(Ordering::Relaxed), 1, "no refused call ran anything");
    let done = with_timeout("the result", alice.ok("tools/call", again("ask", 1, state))).await;
    assert_eq!(done["content"][0]["text"], "hello Ada", "the right call still can be made");
}

#[tokio::test]
async fn a_request_state_does_not_last_for_ever() {
    let runs = Arc::new(AtomicUsize::new(0));
    let clock = manual_clock();
    let server = TestServer::start_with(registry([asking("ask", &runs)]), Config::default(), Arc::new(clock.clone())).await;
    let client = server.plain_client().declaring(forms());
    let asked = with_timeout("a question", client.call("ask", json!({"n": 1}))).await;
    let state = asked["requestState"].as_str().expect("a state");
    clock.advance(Duration::from_secs(2 * 3600));
    let error = with_timeout("a refusal", client.error("tools/call", again("ask", 1, state))).await;
    assert_eq!(error["code"], -32602, "{error}");
}

#[tokio::test]
async fn what_a_tool_wants_back_comes_back_with_the_answers() {
    let tool = Tool::raw("steps", "Asks in rounds", open("steps"), |ctx: Ctx| async move {
        let step: Option<u64> = ctx.resumed().state.as_ref().map(|state| state.read()).transpose()?;
        match step {
            Some(2) => Ok(ctx.resumed().answers["ok"].as_str().to_owned()),
            step => {
                let form = Question::form("Go on?", json!({"type": "object", "properties": {}}));
                Err(ToolError::input_required(InputRequired::ask("ok", form).with_state(json!(step.unwrap_or(0) + 1))))
            }
        }
    });
    let server = TestServer::start(registry([tool])).await;
    let client = server.client();
    let mut result = client.call("steps", json!({})).await;
    for _ in 0..2 {
        assert_eq!(result["resultType"], "input_required");
        let answer = json!({"ok": {"action": "accept", "content": {}}});
        let params = json!({"name": "steps", "arguments": {}, "requestState": result["requestState"], "inputResponses": answer});
        result = client.ok("tools/call", params).await;
    }
    let text = result["content"][0]["text"].as_str().expect("a text");
    assert_eq!(serde_json::from_str::<Value>(text).expect("JSON"), json!({"action": "accept", "content": {}}));
}

#[tokio::test]
async fn a_caller_is_never_asked_what_it_did_not_declare() {
    let runs = Arc::new(AtomicUsize::new(0));
    let page = Tool::raw("page", "Asks for a visit", open("page"), |_ctx: Ctx| async {
        Err::<&str, _>(ToolError::input_required(InputRequired::ask("k", Question::url("Look", "https://example.com/"))))
    });
    let sample = Tool::raw("sample", "Asks a model", open("sample"), |_ctx: Ctx| async {
        let question = Question::sampling(json!({"messages": [], "maxTokens": 1}));
        Err::<&str, _>(ToolError::input_required(InputRequired::ask("k", question)))
    });
    let server = TestServer::start_without_followups(registry([asking("ask", &runs), page, sample])).await;
    for (declared, tool, required) in [
        (json!({}), "ask", json!({"elicitation": {}})),
        (json!({"elicitation": {"url": {}}}), "ask", json!({"elicitation": {}})),
        (json!({"elicitation": {}}), "page", json!({"elicitation": {"url": {}}})),
        (json!({"elicitation": {"form": {}, "url": {}}}), "sample", json!({"sampling": {}})),
    ] {
        let client = server.plain_client().declaring(declared);
        let response = with_timeout("a refusal", client.raw("tools/call", json!({"name": tool}))).await;
        assert_eq!((response.status, response.code()), (400, -32021), "{tool}");
        assert_eq!(response.json()["error"]["data"], json!({"requiredCapabilities": required}), "{tool}");
    }
}
