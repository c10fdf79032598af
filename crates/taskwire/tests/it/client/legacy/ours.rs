//! The client against our own server, by HTTP and in this process.

use taskwire::{
    client::answer_with,
    server::Config,
    tool::{Progress, TaskMode, Tool, ToolError},
};

use super::*;
use crate::{
    client::between::Between,
    tasks::{Gate, name_form, name_in, quick, registry, tool},
    tool_harness::ToolHarness,
};

/// Asks for a name, and says it.
fn asks() -> Tool {
    tool("asks", &(), |(), ctx| async move {
        let answer = ctx.ask("name", name_form("Name?")).await?;
        Ok(name_in(&answer))
    })
}

/// Starts a tool.
async fn starts(client: &Client, tool: &str) -> Call {
    with_timeout("the start", client.start(tool, json!({}))).await.expect("a run")
}

#[tokio::test]
async fn a_call_has_its_result_as_a_task_or_not() {
    let modes = [("never", TaskMode::Never), ("auto", TaskMode::Auto), ("always", TaskMode::Always), ("required", TaskMode::Required)];
    let server = TestServer::start(registry(modes.map(|(name, mode)| quick(name).task(mode)))).await;
    for target in ways(&server) {
        let client = client_of(target, Options::default()).await;
        assert_eq!((client.server_info().era, client.server_info().protocol.as_str()), (Era::Legacy, LATEST));
        assert!(client.server_info().tasks && client.server_info().pushes_output);
        for (name, _) in modes {
            let outcome = with_timeout("the result", client.call(name, json!({}))).await.expect("a result");
            assert_eq!(end(&outcome), "done: done", "{name}");
        }
        with_timeout("the end", client.close()).await;
    }
}

#[tokio::test]
async fn output_comes_as_it_is_made() {
    for way in 0..2 {
        let mut harness = ToolHarness::of(Config::default(), Tool::streams).await;
        let client = client_of(ways(&harness.server)[way].clone(), Options::default()).await;
        let (mut call, mut run) = tokio::join!(starts(&client, "writes"), harness.run());
        let Some(Event::Task(reference)) = next_notable(&mut call).await else { panic!("it is a task") };
        assert_eq!((reference.era, reference.tool.as_str(), reference.next), (Era::Legacy, "writes", 0));
        for (n, text) in ["one", "two", "three"].into_iter().enumerate() {
            run.writes(text).await;
            assert_eq!(next_briefs(&mut call, 1).await, [format!("{n} {text}")]);
        }
        assert_eq!(call.reference().map(|reference| reference.next), Some(3));
        run.writes("four").await;
        run.ends("done");
        assert_eq!(rest(&mut call).await, ["3 four", "done: done"]);
    }
}

#[tokio::test]
async fn asks_and_is_answered() {
    for mode in [TaskMode::Auto, TaskMode::Never] {
        let server = TestServer::start(registry([asks().task(mode)])).await;
        for target in ways(&server) {
            let client = client_of(target.clone(), Options::default()).await;
            let mut call = starts(&client, "asks").await;
            let input = asked(&mut call).await;
            assert_eq!(input.message, "Name?");
            with_timeout("the answer", call.answer(&input.key, ada())).await.expect("taken");
            assert_eq!(last(&mut call).await, "done: Ada", "{mode:?} at {target}");
            // And by who was named to answer.
            let options = Options { question_handler: Some(answer_with(|_: Question| async { ada() })), ..Options::default() };
            let client = client_of(target.clone(), options).await;
            let outcome = with_timeout("the result", client.call("asks", json!({}))).await.expect("a result");
            assert_eq!(end(&outcome), "done: Ada", "{mode:?} at {target}");
        }
    }
}

#[tokio::test]
async fn is_answered_by_somebody_else_and_picked_up_again() {
    let server = TestServer::start(registry([asks()])).await;
    let [target, _] = ways(&server);
    let client = client_of(target.clone(), Options::default()).await;
    let mut call = starts(&client, "asks").await;
    let key = asked(&mut call).await.key;
    let reference = call.detach().expect("it is a task");
    let task = reference.task.clone().expect("a name");
    let other = client_of(target, Options::default()).await;
    with_timeout("the answer", other.answer(&task, &key, ada())).await.expect("taken");
    let mut call = with_timeout("the run", other.attach(&reference)).await.expect("a run");
    assert_eq!(last(&mut call).await, "done: Ada");
}

#[tokio::test]
async fn is_cancelled() {
    for way in 0..2 {
        let gate = Gate::new();
        let server = TestServer::start(registry([gate.tool("slow")])).await;
        let client = client_of(ways(&server)[way].clone(), Options::default()).await;
        let mut call = starts(&client, "slow").await;
        with_timeout("the tool", gate.started.wait()).await;
        let task = call.reference().and_then(|reference| reference.task).expect("it is a task");
        with_timeout("the answer", call.cancel()).await.expect("asked for");
        assert!(last(&mut call).await.starts_with("cancelled"));
        with_timeout("the word to stop", gate.stopped.wait()).await;
        let snapshot = with_timeout("a look", client.task(&task)).await.expect("it is there");
        assert_eq!(snapshot.status, Status::Cancelled);
        with_timeout("the answer", client.cancel(&task)).await.expect("it is off already");
    }
}

#[tokio::test]
async fn stops_a_held_call_that_nobody_wants_any_more() {
    for way in 0..2 {
        let gate = Gate::new();
        let slow = tool("slow", &gate, |gate, ctx| async move {
            ctx.progress(Progress::of(1.0, 2.0).message("half")).await?;
            ctx.cancelled().await;
            gate.stopped.send();
            Err::<(), _>(ToolError::stopped())
        });
        let server = TestServer::start(registry([slow.task(TaskMode::Never)])).await;
        let client = client_of(ways(&server)[way].clone(), Options::default()).await;
        let mut call = starts(&client, "slow").await;
        assert_eq!(next_briefs(&mut call, 1).await, ["progress 1 of 2: half"]);
        drop(call);
        with_timeout("the word to stop", gate.stopped.wait()).await;
    }
}

#[tokio::test]
async fn fails_in_either_way_and_is_understood() {
    let says = tool("says", &(), |(), _ctx| async move { Err::<(), _>(ToolError::new("bad")) });
    let fails = tool("fails", &(), |(), _ctx| async move { Err::<(), _>(ToolError::protocol(-31999, "broken")) });
    let server = TestServer::start(registry([says, fails])).await;
    for target in ways(&server) {
        let client = client_of(target, Options::default()).await;
        for (name, expected) in [("says", "tool failed: bad"), ("fails", "failed: -31999 broken")] {
            let mut call = starts(&client, name).await;
            assert_eq!(last(&mut call).await, expected);
        }
    }
}

#[tokio::test]
async fn a_call_that_was_cut_off_again_and_again_has_everything_once() {
    let mut harness = ToolHarness::of(Config::default(), Tool::streams).await;
    let between = Between::new(harness.server.port, b"").await;
    let client = client_of(between.target(), impatient()).await;
    let (mut call, mut run) = tokio::join!(starts(&client, "writes"), harness.run());
    next_briefs(&mut call, 1).await;
    for n in 0..8 {
        // Before it is read, while it is, and when nothing is going on.
        if n % 3 == 0 {
            between.cut();
        }
        run.writes(&format!("<{n}>")).await;
        if n % 3 == 1 {
            between.cut();
        }
        assert_eq!(next_briefs(&mut call, 1).await, [format!("{n} <{n}>")]);
    }
    between.cut();
    run.ends("done");
    assert_eq!(rest(&mut call).await, ["done: done"]);
}
