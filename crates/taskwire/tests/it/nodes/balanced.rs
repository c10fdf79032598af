//! A client before three nodes, to another of which each of its connections leads.

use taskwire::{
    client::{Answer, Client, Era, Event, Options},
    core::Limits,
    tool::Tool,
};

use super::*;
use crate::{
    client::{between::Between, legacy::impatient, script::next},
    kit::{KEY, READ},
    tasks::{quick, registry, with_limits},
    tool_harness::{Runs, ToolRun, played, uncoalesced},
};

on_each_store! {
    a_reader_that_is_cut_thirty_times_and_resumes_on_another_node_has_every_byte_once
    questions_are_answered_on_any_node
    a_call_is_cancelled_on_any_node
    a_call_under_a_key_runs_once_whichever_nodes_hear_of_it
    calls_that_are_the_same_share_a_task_on_any_node
    the_limits_of_a_caller_count_over_all_nodes
    what_was_acknowledged_on_one_node_is_seen_on_every_other_at_once
}

const ERAS: [Era; 2] = [Era::Modern, Era::Legacy];

/// Three nodes with a tool that the test drives, and a proxy before them.
struct Balanced {
    nodes: Vec<TestServer>,
    between: Between,
    runs: Vec<Runs>,
}

impl Balanced {
    async fn new(store: &SharedStore, config: Config, shape: impl Fn(Tool) -> Tool) -> Self {
        let (mut nodes, mut runs) = (Vec::new(), Vec::new());
        for name in ["a", "b", "c"] {
            let (tool, of_node) = played("writes");
            let tools = registry([shape(tool), Tool::new("names", "Asks who somebody is", names), quick("quick")]);
            nodes.push(store.node(name, tools, config.clone()).await);
            runs.push(of_node);
        }
        let between = Between::in_turns(nodes.iter().map(|node| node.port).collect(), b"").await;
        Self { nodes, between, runs }
    }

    async fn client(&self, era: Era) -> Client {
        let options = Options { era: Some(era), ..impatient() };
        with_timeout("the connection", Client::connect(self.between.target(), options)).await.expect("a connection")
    }

    /// The next run of the tool, on whichever node.
    async fn run(&mut self) -> ToolRun {
        let runs = self.runs.iter_mut().map(|runs| Box::pin(runs.recv()));
        with_timeout("the tool", futures_util::future::select_all(runs)).await.0.expect("it runs")
    }

    /// How many runs of the tool wait for the test to take them.
    fn further_runs(&mut self) -> usize {
        self.runs.iter_mut().map(|runs| std::iter::from_fn(|| runs.try_recv().ok()).count()).sum()
    }
}

async fn a_reader_that_is_cut_thirty_times_and_resumes_on_another_node_has_every_byte_once(store: &SharedStore) {
    const CUTS: usize = 30;
    let mut fixture = Balanced::new(store, uncoalesced(), |tool| tool.task(TaskMode::Always)).await;
    for era in ERAS {
        let client = fixture.client(era).await;
        let (call, mut run) = tokio::join!(client.start("writes", json!({})), fixture.run());
        let mut call = call.expect("a run");
        let (mut text, mut next_seq, mut written) = (String::new(), 0, String::new());
        for cut in 0..CUTS {
            for n in 0..3 {
                let words = format!("<{cut}.{n}>");
                run.writes(&words).await;
                written.push_str(&words);
            }
            // Now and then nothing of it has been read.
            while cut % 4 != 3 && text.len() < written.len() {
                if let Event::Chunk(chunk) = next(&mut call).await.expect("it goes on") {
                    assert_eq!(chunk.seq, next_seq, "{era:?}");
                    next_seq += 1;
                    text.push_str(&chunk.text());
                }
            }
            fixture.between.cut();
        }
        run.ends("done");
        let mut ended = false;
        while let Some(event) = next(&mut call).await {
            match event {
                Event::Chunk(chunk) => {
                    assert_eq!((chunk.seq, ended), (next_seq, false), "{era:?}");
                    next_seq += 1;
                    text.push_str(&chunk.text());
                }
                Event::Done(_) => ended = true,
                Event::Gap { .. } => panic!("{era:?}: nothing is lost"),
                _ => {}
            }
        }
        assert_eq!((text, ended), (written, true), "{era:?}");
    }
}

async fn questions_are_answered_on_any_node(store: &SharedStore) {
    let fixture = Balanced::new(store, Config::default(), |tool| tool).await;
    for era in ERAS {
        let client = fixture.client(era).await;
        let mut call = with_timeout("the start", client.start("names", json!({}))).await.expect("a run");
        let (mut asked, mut outcome) = (Vec::new(), None);
        while let Some(event) = next(&mut call).await {
            match event {
                Event::Question(question) => {
                    let name = if asked.is_empty() { "Ada" } else { "Lovelace" };
                    asked.push(question.message.clone());
                    // The answer, and all that follows, goes to another node.
                    fixture.between.cut();
                    with_timeout("the answer", call.answer(&question.key, Answer::accept(json!({"name": name})))).await.expect("taken");
                }
                Event::Done(done) => outcome = Some(done),
                _ => {}
            }
        }
        assert_eq!(asked, ["First name?", "Last name?"], "{era:?}: each is asked once");
        assert!(format!("{outcome:?}").contains("Ada Lovelace"), "{era:?}: {outcome:?}");
    }
}

async fn a_call_is_cancelled_on_any_node(store: &SharedStore) {
    let mut fixture = Balanced::new(store, uncoalesced(), |tool| tool.task(TaskMode::Always)).await;
    for era in ERAS {
        let client = fixture.client(era).await;
        let (call, run) = tokio::join!(client.start("writes", json!({})), fixture.run());
        let mut call = call.expect("a run");
        run.writes("<0>").await;
        while !matches!(next(&mut call).await, Some(Event::Chunk(_))) {}
        fixture.between.cut();
        with_timeout("the word", call.cancel()).await.expect("taken");
        with_timeout("the word to stop", run.ctx.cancelled()).await;
    }
}

async fn a_call_under_a_key_runs_once_whichever_nodes_hear_of_it(store: &SharedStore) {
    let mut fixture = Balanced::new(store, uncoalesced(), |tool| tool).await;
    let keyed = |node: &TestServer| {
        let client = node.client();
        async move {
            let params = json!({"name": "writes", "arguments": {}, "_meta": {KEY: "once"}});
            client.ok("tools/call", params).await["taskId"].as_str().expect("a task").to_owned()
        }
    };
    let calls = futures_util::future::join_all(fixture.nodes.iter().map(keyed)).await;
    assert!(calls.iter().all(|id| *id == calls[0]), "{calls:?}");
    let mut run = fixture.run().await;
    run.ends("done");
    assert_eq!(fixture.further_runs(), 0);
}

async fn calls_that_are_the_same_share_a_task_on_any_node(store: &SharedStore) {
    let mut fixture = Balanced::new(store, uncoalesced(), |tool| tool.task(TaskMode::Always).dedupe()).await;
    let clients: Vec<_> = fixture.nodes.iter().map(TestServer::plain_client).collect();
    let calls: Vec<_> =
        clients.into_iter().map(|client| tokio::spawn(async move { client.call("writes", json!({"n": 1})).await })).collect();
    let mut run = fixture.run().await;
    // Each of them waits for it.
    let awaited = async {
        loop {
            let engine = fixture.nodes[0].server.engine();
            let open = engine.reader().open_tasks(None, 10).await.expect("readable");
            let task = engine.reader().task(open[0]).await.expect("readable").expect("there");
            if task.awaited_by().count() == 3 {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    with_timeout("the calls", awaited).await;
    run.ends("done");
    for call in calls {
        let result = with_timeout("the result", call).await.expect("no panic");
        assert_eq!(result["content"][0]["text"], "done", "{result}");
    }
    assert_eq!(fixture.further_runs(), 0);
}

async fn the_limits_of_a_caller_count_over_all_nodes(store: &SharedStore) {
    let limits = Limits { tasks_per_caller: 4, ..Limits::DEFAULT };
    let mut fixture = Balanced::new(store, with_limits(limits), |tool| tool.task(TaskMode::Always)).await;
    for n in 0..4 {
        fixture.nodes[n % 3].client().start("writes", json!({"n": n})).await;
    }
    for node in &fixture.nodes {
        let error = node.client().error("tools/call", json!({"name": "writes", "arguments": {}})).await;
        assert!(error["message"].as_str().is_some_and(|why| why.contains("too many")), "{error}");
    }
    fixture.run().await.ends("done");
    let there_is_room = async {
        while fixture.nodes[2].client().raw("tools/call", json!({"name": "writes", "arguments": {}})).await.json().get("error").is_some() {}
    };
    with_timeout("room for one more", there_is_room).await;
}

async fn what_was_acknowledged_on_one_node_is_seen_on_every_other_at_once(store: &SharedStore) {
    let mut fixture = Balanced::new(store, uncoalesced(), |tool| tool.task(TaskMode::Always)).await;
    for n in 0..20 {
        let (here, there) = (fixture.nodes[n % 3].client(), fixture.nodes[(n + 1) % 3].client());
        let id = here.start("writes", json!({"n": n})).await;
        assert_eq!(there.get(&id).await["status"], "working");
        let run = fixture.run().await;
        run.writes("<0>").await;
        let read = fixture.nodes[(n + 2) % 3].streaming_client().ok(READ, json!({"taskId": id, "fromSeq": 0})).await;
        assert_eq!(read["nextSeq"], 1, "{read}");
        there.cancel(&id).await;
        assert_eq!(here.get(&id).await["status"], "cancelled");
    }
}
