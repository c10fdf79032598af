//! Questions are requests of the server (A5, A6.8).

use taskwire::client::{QuestionKind, answer_with};

use super::*;

/// On which stream the server asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamKind {
    /// On the stream of a call that is no task.
    Call,
    /// On the stream on which the result of a task is waited for.
    Wait,
    /// On the session stream, about a task.
    Stand,
}

const STREAM_KINDS: [StreamKind; 3] = [StreamKind::Call, StreamKind::Wait, StreamKind::Stand];

/// A call in progress, and the stream on which its server asks.
struct Scene {
    script: ScriptedServer,
    client: Client,
    call: Call,
    asking: Sse,
    /// Where the result is waited for, if that is somewhere else.
    wait: Option<Sse>,
    task: Option<&'static str>,
}

impl Scene {
    async fn at(kind: StreamKind) -> Self {
        Self::able(kind, ClientCapabilities::default()).await
    }

    /// With a client that can be asked these things.
    async fn able(kind: StreamKind, asks: ClientCapabilities) -> Self {
        let script = scripted().await;
        let options = Options { capabilities: asks, ..options(&script) };
        let mut scene = match kind {
            StreamKind::Call => {
                script.always("tools/list", tools_of("forbidden"));
                let client = joined(&script, options, having(json!({}))).await;
                let first = |request: &ScriptedRequest| progress(&request.meta()["progressToken"], json!({"progress": 1}));
                let (call, asking) = held(&script, &client, first).await;
                Self { script, client, call, asking, wait: None, task: None }
            }
            StreamKind::Wait => {
                let client = joined(&script, options, having(json!({}))).await;
                let (call, asking) = begun(&script, &client, "t1").await;
                Self { script, client, call, asking, wait: None, task: Some("t1") }
            }
            StreamKind::Stand => {
                let (client, asking) = stood(&script, options, having(json!({}))).await;
                let (call, wait) = begun(&script, &client, "t1").await;
                Self { script, client, call, asking, wait: Some(wait), task: Some("t1") }
            }
        };
        if kind == StreamKind::Call {
            assert_eq!(next_briefs(&mut scene.call, 1).await, ["progress 1"]);
        }
        scene
    }

    async fn asks(&mut self, id: &Value, what: Value) {
        self.asking.event(question(id, what, self.task)).await;
    }

    /// Asks what the client answers by itself, and gives its reply.
    async fn reply_to(&mut self, id: &Value, what: Value) -> Value {
        self.asks(id, what).await;
        let reply = self.script.expect_reply().await;
        is_ours(&reply);
        let message = reply.message.clone();
        reply.empty(202).await;
        assert_eq!(&message["id"], id, "{message}");
        message
    }

    async fn answers(&mut self, key: &str, answer: Answer) -> Value {
        answers(&self.script, &self.call, key, answer).await
    }

    /// The call has its result; returns the events that still come.
    async fn ends(self) -> Vec<String> {
        let Self { script: _script, client: _client, mut call, asking, wait, task } = self;
        let result = task.map_or_else(|| answer("done"), |task| ended(task, "done"));
        let _asking = match wait {
            Some(wait) => {
                wait.result(result).await;
                Some(asking)
            }
            None => {
                asking.result(result).await;
                None
            }
        };
        unsettled(rest(&mut call).await)
    }
}

/// A page to open.
fn page() -> Value {
    json!({"method": "elicitation/create", "params": {"mode": "url", "message": "Sign in", "url": "https://example.com/sign-in", "elicitationId": "e1"}})
}

/// Something for a model to say.
fn sampling() -> Value {
    json!({"method": "sampling/createMessage", "params": {"messages": [{"role": "user", "content": text("Hi")}], "maxTokens": 10}})
}

#[tokio::test]
async fn a_form_is_asked_wherever_it_comes_and_answered_under_its_own_id() {
    for kind in STREAM_KINDS {
        for id in [json!(0), json!(7), json!("0"), json!("a-b"), json!(-3), json!(9_007_199_254_740_993_i64)] {
            let mut scene = Scene::at(kind).await;
            scene.asks(&id, form("Name?")).await;
            let input = asked(&mut scene.call).await;
            assert_eq!(input.message, "Name?");
            assert!(matches!(&input.kind, QuestionKind::Form { schema } if schema["required"] == json!(["name"])), "{input:?}");
            let request: Value = input.request.read().expect("JSON");
            assert_eq!((&request["method"], &request["params"]["message"]), (&json!("elicitation/create"), &json!("Name?")));
            let message = scene.answers(&input.key, ada()).await;
            let result = json!({"action": "accept", "content": {"name": "Ada"}});
            assert_eq!(message, json!({"jsonrpc": "2.0", "id": id, "result": result}), "{kind:?}");
            assert_eq!(scene.ends().await, ["done: done"], "{kind:?} {id}");
        }
    }
}

#[tokio::test]
async fn whatever_the_person_does_is_sent() {
    for kind in STREAM_KINDS {
        let actions = [(Answer::decline(), json!({"action": "decline"})), (Answer::cancel(), json!({"action": "cancel"}))];
        for (answer, result) in actions {
            let mut scene = Scene::at(kind).await;
            scene.asks(&json!(1), form("Name?")).await;
            let key = asked(&mut scene.call).await.key;
            assert_eq!(scene.answers(&key, answer).await["result"], result, "{kind:?}");
        }
    }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_not_sent_and_one_is_enough() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.asks(&json!(1), form("Name?")).await;
        let key = asked(&mut scene.call).await.key;
        for misfit in [json!({}), json!({"name": "A"}), json!({"name": 5})] {
            let refusal = scene.call.answer(&key, Answer::accept(misfit)).await.expect_err("it does not fit");
            assert!(matches!(&refusal, Error::InvalidAnswer { key: of, .. } if *of == key), "{refusal}");
        }
        let refusal = scene.call.answer("nobody asked", ada()).await.expect_err("there is no such question");
        assert!(matches!(refusal, Error::NoQuestion { .. }), "{refusal}");
        scene.answers(&key, ada()).await;
        let refusal = scene.call.answer(&key, Answer::decline()).await.expect_err("it was answered");
        assert!(matches!(refusal, Error::AlreadyAnswered { .. }), "{refusal}");
        assert_eq!(scene.script.count("response"), 1, "{kind:?}");
        assert_eq!(scene.ends().await, ["done: done"], "{kind:?}");
    }
}

#[tokio::test]
async fn a_page_is_shown_and_agreed_to() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.asks(&json!("u"), page()).await;
        let input = asked(&mut scene.call).await;
        assert!(matches!(&input.kind, QuestionKind::Url { url } if url == "https://example.com/sign-in"), "{input:?}");
        assert_eq!(scene.answers(&input.key, Answer::accept_url()).await["result"], json!({"action": "accept"}));
        // The server may also send that the person is done there.
        scene.asking.notify("notifications/elicitation/complete", json!({"elicitationId": "e1"})).await;
        scene.asking.notify("notifications/elicitation/complete", json!({"elicitationId": "unknown"})).await;
        assert_eq!(scene.ends().await, ["done: done"], "{kind:?}");
    }
}

#[tokio::test]
async fn a_model_is_asked_for_where_there_is_one() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::able(kind, ClientCapabilities { sampling: true, ..ClientCapabilities::default() }).await;
        scene.asks(&json!(3), sampling()).await;
        let input = asked(&mut scene.call).await;
        assert!(matches!(&input.kind, QuestionKind::Sampling { params } if params["maxTokens"] == 10), "{input:?}");
        let message = json!({"role": "assistant", "content": text("hello"), "model": "m"});
        assert_eq!(scene.answers(&input.key, Answer::result(message.clone())).await["result"], message);
        assert_eq!(scene.ends().await, ["done: done"], "{kind:?}");
    }
}

#[tokio::test]
async fn what_needs_nobody_is_answered_at_once_and_without_a_word() {
    let root = json!({"uri": "file:///a", "name": "a"});
    for kind in STREAM_KINDS {
        let mut scene = Scene::able(kind, ClientCapabilities { roots: Some(vec![root.clone()]), ..ClientCapabilities::default() }).await;
        for id in [json!(0), json!("p")] {
            assert_eq!(scene.reply_to(&id, json!({"method": "ping"})).await["result"], json!({}), "{kind:?}");
        }
        assert_eq!(scene.reply_to(&json!(1), json!({"method": "roots/list"})).await["result"], json!({"roots": [root]}), "{kind:?}");
        assert_eq!(scene.ends().await, ["done: done"], "{kind:?}");
    }
}

#[tokio::test]
async fn what_the_client_did_not_declare_is_refused_and_nobody_is_bothered() {
    let nothing = ClientCapabilities { form: false, url: false, sampling: false, roots: None };
    let cases: [(ClientCapabilities, Value, &[i64]); 6] = [
        (ClientCapabilities::default(), sampling(), &[-32601, -32602]),
        (ClientCapabilities::default(), json!({"method": "roots/list"}), &[-32601]),
        (ClientCapabilities { url: false, ..ClientCapabilities::default() }, page(), &[-32602]),
        (ClientCapabilities { form: false, ..ClientCapabilities::default() }, form("Name?"), &[-32602]),
        (nothing, form("Name?"), &[-32601, -32602]),
        (ClientCapabilities::default(), json!({"method": "something/else", "params": {"a": 1}}), &[-32601]),
    ];
    for kind in STREAM_KINDS {
        for (asks, what, codes) in cases.clone() {
            let mut scene = Scene::able(kind, asks).await;
            let reply = scene.reply_to(&json!("q"), what.clone()).await;
            let code = reply["error"]["code"].as_i64().unwrap_or_else(|| panic!("{kind:?}: {reply} to {what}"));
            assert!(codes.contains(&code), "{kind:?}: {reply} to {what}");
            assert!(reply["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{reply}");
            assert_eq!(scene.ends().await, ["done: done"], "{kind:?}: {what}");
        }
    }
}

#[tokio::test]
async fn a_question_that_is_withdrawn_needs_no_answer() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.asks(&json!(4), form("Name?")).await;
        let key = asked(&mut scene.call).await.key;
        scene.asking.notify("notifications/cancelled", json!({"requestId": 4, "reason": "never mind"})).await;
        until(&mut scene.call, "it is settled", |event| matches!(event, Event::QuestionSettled { key: of } if *of == key)).await;
        let refusal = scene.call.answer(&key, ada()).await.expect_err("nobody waits for it");
        assert!(matches!(refusal, Error::NoQuestion { .. } | Error::AlreadyAnswered { .. }), "{refusal}");
        assert_eq!(scene.script.count("response"), 0);
        assert_eq!(scene.ends().await, ["done: done"], "{kind:?}");
    }
}

#[tokio::test]
async fn a_question_that_comes_on_two_streams_is_asked_and_answered_once() {
    for first_on_wait in [true, false] {
        let mut scene = Scene::at(StreamKind::Stand).await;
        let mut wait = scene.wait.take().expect("a wait");
        let same = question(&json!("q1"), form("Name?"), Some("t1"));
        for on_wait in [first_on_wait, !first_on_wait, first_on_wait] {
            let stream = if on_wait { &mut wait } else { &mut scene.asking };
            stream.event(same.clone()).await;
        }
        let key = asked(&mut scene.call).await.key;
        scene.answers(&key, ada()).await;
        // And again, when it was answered.
        wait.event(same.clone()).await;
        scene.asking.event(same).await;
        scene.wait = Some(wait);
        assert_eq!(scene.script.count("response"), 1);
        assert_eq!(scene.ends().await, ["done: done"], "it is not asked again");
    }
}

#[tokio::test]
async fn a_question_that_a_new_wait_repeats_is_not_asked_again() {
    let script = scripted().await;
    // A server that asks under two names may be answered under either, or under both.
    script.may_remain("response");
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut call, mut wait) = begun(&script, &client, "t1").await;
    // Our own servers say in the id of a request which question it is; with others the client cannot know.
    let (first, again) = (json!("t1.1.name"), json!("t1.2.name"));
    wait.event(question(&first, form("Name?"), Some("t1"))).await;
    let key = asked(&mut call).await.key;
    wait.cut();
    let mut wait = script.as_time_passes("another wait", 10 * MS, awaited(&script, "tasks/result")).await.sse().await;
    wait.event(question(&again, form("Name?"), Some("t1"))).await;
    // What follows was read behind it.
    wait.event(status(with_members(shown("t1", "input_required"), json!({"statusMessage": "asked"})))).await;
    let mut briefs = Vec::new();
    while briefs.last().is_none_or(|brief| brief != "input_required: asked") {
        briefs.push(brief(&next(&mut call).await.expect("the run goes on")));
    }
    assert!(!briefs.iter().any(|brief| brief.starts_with("asks")), "{briefs:?}");
    let message = answers(&script, &call, &key, ada()).await;
    assert!(message["id"] == first || message["id"] == again, "{message}");
    assert_eq!(message["result"], json!({"action": "accept", "content": {"name": "Ada"}}));
    wait.result(ended("t1", "done")).await;
    assert_eq!(unsettled(rest(&mut call).await), ["done: done"]);
}

#[tokio::test]
async fn a_question_that_is_repeated_after_its_answer_is_answered_there_too() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut call, mut wait) = begun(&script, &client, "t1").await;
    let first = json!("t1.1.name");
    wait.event(question(&first, form("Name?"), Some("t1"))).await;
    let key = asked(&mut call).await.key;
    assert_eq!(answers(&script, &call, &key, ada()).await["id"], first);
    for again in [json!("t1.2.name"), json!("t1.-.name")] {
        // What comes on two streams is answered once.
        for _ in 0..2 {
            wait.event(question(&again, form("Name?"), Some("t1"))).await;
        }
        let reply = script.expect_reply().await;
        is_ours(&reply);
        let result = json!({"action": "accept", "content": {"name": "Ada"}});
        assert_eq!((&reply.message["id"], &reply.message["result"]), (&again, &result));
        reply.empty(202).await;
    }
    wait.result(ended("t1", "done")).await;
    assert_eq!(unsettled(rest(&mut call).await), ["done: done"], "nobody is asked again");
    assert_eq!(script.count("response"), 3);
}

#[tokio::test]
async fn an_answer_that_is_on_its_way_goes_to_the_repeated_question_too() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({}))).await;
    let (mut call, mut wait) = begun(&script, &client, "t1").await;
    let (first, again) = (json!("t1.1.name"), json!("t1.2.name"));
    wait.event(question(&first, form("Name?"), Some("t1"))).await;
    let key = asked(&mut call).await.key;
    let playing = async {
        let taken = script.expect_reply().await;
        wait.event(question(&again, form("Name?"), Some("t1"))).await;
        // What is answered now was read behind it.
        wait.event(question(&json!("p"), json!({"method": "ping", "params": {}}), None)).await;
        script.expect_where("the response to the ping", |asked| asked.message["id"] == "p").await.empty(202).await;
        let repeated = async {
            let repeated = script.expect_reply().await;
            let message = repeated.message.clone();
            repeated.empty(202).await;
            message
        };
        let message = taken.message.clone();
        let ((), repeated) = tokio::join!(taken.empty(202), repeated);
        (message, repeated)
    };
    let (answered, messages) = with_timeout("the answer", async { tokio::join!(call.answer(&key, ada()), playing) }).await;
    answered.expect("taken");
    for (message, id) in [(messages.0, first), (messages.1, again)] {
        assert_eq!(message, json!({"jsonrpc": "2.0", "id": id, "result": {"action": "accept", "content": {"name": "Ada"}}}));
    }
    wait.result(ended("t1", "done")).await;
    assert_eq!(unsettled(rest(&mut call).await), ["done: done"]);
}

#[tokio::test]
async fn the_same_words_asked_twice_on_one_stream_are_two_questions() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        let mut keys = Vec::new();
        for (id, name) in [(1, "Ada"), (2, "Grace")] {
            scene.asks(&json!(id), form("Name?")).await;
            let key = asked(&mut scene.call).await.key;
            let message = scene.answers(&key, Answer::accept(json!({"name": name}))).await;
            assert_eq!((&message["id"], &message["result"]["content"]["name"]), (&json!(id), &json!(name)), "{kind:?}");
            assert!(!keys.contains(&key), "{key} and {keys:?}");
            keys.push(key);
        }
        assert_eq!(scene.ends().await, ["done: done"], "{kind:?}");
    }
}

#[tokio::test]
async fn two_questions_at_once_are_answered_in_any_order() {
    for kind in STREAM_KINDS {
        let mut scene = Scene::at(kind).await;
        scene.asks(&json!(1), form("First name?")).await;
        scene.asks(&json!(2), form("Last name?")).await;
        let (first, second) = (asked(&mut scene.call).await, asked(&mut scene.call).await);
        assert_eq!((first.message.as_str(), second.message.as_str()), ("First name?", "Last name?"));
        assert_ne!(first.key, second.key);
        assert_eq!(scene.answers(&second.key, ada()).await["id"], 2);
        assert_eq!(scene.answers(&first.key, ada()).await["id"], 1);
        assert_eq!(scene.ends().await, ["done: done"], "{kind:?}");
    }
}

#[tokio::test]
async fn a_question_on_the_standing_stream_goes_to_the_task_that_it_names() {
    let script = scripted().await;
    script.stop_answering("tasks/get");
    script.may_remain("tasks/get");
    let (client, mut stand) = stood(&script, options(&script), having(json!({}))).await;
    let (mut one, one_wait) = begun(&script, &client, "t1").await;
    let (mut two, two_wait) = begun(&script, &client, "t2").await;
    stand.event(question(&json!(1), form("Of two?"), Some("t2"))).await;
    stand.event(question(&json!(2), form("Of one?"), Some("t1"))).await;
    let (of_two, of_one) = (asked(&mut two).await, asked(&mut one).await);
    assert_eq!((of_one.message.as_str(), of_two.message.as_str()), ("Of one?", "Of two?"));
    assert_eq!(answers(&script, &one, &of_one.key, ada()).await["id"], 2);
    assert_eq!(answers(&script, &two, &of_two.key, ada()).await["id"], 1);
    one_wait.result(ended("t1", "one")).await;
    two_wait.result(ended("t2", "two")).await;
    assert_eq!(unsettled(rest(&mut one).await), ["done: one"]);
    assert_eq!(unsettled(rest(&mut two).await), ["done: two"]);
}

#[tokio::test]
async fn a_question_on_the_standing_stream_that_names_nothing_belongs_to_the_only_call() {
    let script = scripted().await;
    script.always("tools/list", tools_of("forbidden"));
    let (client, mut stand) = stood(&script, options(&script), having(json!({}))).await;
    let (mut call, events) = start_job(&client, async {
        let request = script.expect("tools/call").await;
        let mut events = request.sse().await;
        events.prime("c:1").await;
        stand.event(question(&json!(0), form("Name?"), None)).await;
        events
    })
    .await;
    let key = asked(&mut call).await.key;
    assert_eq!(answers(&script, &call, &key, ada()).await["id"], 0);
    events.result(answer("done")).await;
    assert_eq!(unsettled(rest(&mut call).await), ["done: done"]);
}

#[tokio::test]
async fn a_call_asks_who_was_named_to_answer_or_says_that_nobody_is_there() {
    for is_somebody in [true, false] {
        for kind in [StreamKind::Call, StreamKind::Wait] {
            let script = scripted().await;
            let somebody = answer_with(|input: Question| async move { Answer::accept(json!({"name": input.message})) });
            let options = Options { question_handler: is_somebody.then_some(somebody), ..options(&script) };
            let client = joined(&script, options, having(json!({}))).await;
            let playing = async {
                let call = awaited(&script, "tools/call").await;
                let (mut events, result) = if kind == StreamKind::Call {
                    (call.sse().await, answer("done"))
                } else {
                    call.result(made("t1")).await;
                    (script.expect_of("tasks/result", "t1").await.sse().await, ended("t1", "done"))
                };
                let task = (kind == StreamKind::Wait).then_some("t1");
                events.event(question(&json!(5), form("Name?"), task)).await;
                let reply = script.expect_reply().await;
                let message = reply.message.clone();
                reply.empty(202).await;
                events.result(result).await;
                message
            };
            let (outcome, message) = call_job(&client, json!({}), playing).await;
            assert_eq!(end(&outcome.expect("a result")), "done: done");
            let expected =
                if is_somebody { json!({"action": "accept", "content": {"name": "Name?"}}) } else { json!({"action": "cancel"}) };
            assert_eq!((&message["id"], &message["result"]), (&json!(5), &expected), "{kind:?}");
        }
    }
}
