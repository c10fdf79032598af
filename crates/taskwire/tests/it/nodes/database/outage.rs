//! The database is away while calls wait and streams are open: they stay, and go on where they were when it is back.

use std::time::Duration;

use serde_json::{Value, json};
use taskwire::{server::Config, store::PostgresConfig, tool::Tool};
use taskwire_testkit::Server;
use tokio::{
    task::{JoinHandle, block_in_place},
    time::{MissedTickBehavior, interval},
};

use super::{Node, started, within_a_minute};
use crate::{
    kit::{Response, with_timeout},
    legacy::{
        kit::{LegacySession, Sse},
        partials::streaming,
        streamed::{ALL, calling, capable_of, part},
        tasks::{awaiting, brief, is_response, story},
    },
    tasks::registry,
    tool_harness::{Runs, ToolRun, played, run_of, text_of, uncoalesced},
};

/// How long a call is held that is not held to its end.
const HOLD: Duration = Duration::from_secs(2);
/// How many requests are told to try again while the database is away, and how often one is sent. Meanwhile each hold expires, and whatever
/// looks from time to time has looked.
const REFUSALS: usize = 20;
const REQUEST_INTERVAL: Duration = Duration::from_millis(200);
/// A task that is not there.
const NO_TASK: &str = "00000000000000000000000000000000";

/// A node with a tool that the test drives, and its database.
struct Fixture {
    database: Server,
    node: Node,
    runs: Runs,
}

impl Fixture {
    async fn new(config: Config, shape: impl FnOnce(Tool) -> Tool) -> Self {
        let database = started(&[]);
        let (tool, runs) = played("writes");
        let node = Node::start_with(PostgresConfig::new(database.url(), "a"), registry([shape(tool)]), config).await;
        Self { database, node, runs }
    }

    async fn session(&self, capabilities: Value) -> LegacySession {
        LegacySession::declaring(&self.node.server, capabilities).await
    }

    async fn run(&mut self) -> ToolRun {
        run_of(&mut self.runs).await
    }

    /// The next run when it has saved something, which makes its call a task.
    async fn saved_run(&mut self) -> ToolRun {
        let run = self.run().await;
        with_timeout("the checkpoint", run.ctx.checkpoint(&1)).await.expect("it is saved");
        run
    }

    /// A call of a client without tasks in each era, and their runs.
    async fn held_calls(&mut self) -> (JoinHandle<Response>, Sse, [ToolRun; 2]) {
        let call = |era: &str| json!({"name": "writes", "arguments": {"era": era}});
        let (client, params) = (self.node.server.plain_client(), call("modern"));
        let modern = tokio::spawn(async move { client.raw("tools/call", params).await });
        let modern_run = self.saved_run().await;
        let session = self.session(json!({})).await;
        let (legacy, legacy_run) = tokio::join!(session.stream("tools/call", call("legacy")), self.saved_run());
        (modern, legacy, [modern_run, legacy_run])
    }

    /// The database is away for a while, in which this happens.
    async fn outage<T>(&mut self, meanwhile: impl FnOnce() -> T) -> T {
        block_in_place(|| self.database.stop_fast());
        let happened = meanwhile();
        let client = self.node.client();
        let mut pace = interval(REQUEST_INTERVAL);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for _ in 0..REFUSALS {
            pace.tick().await;
            let refusal = client.raw("tasks/get", json!({"taskId": NO_TASK})).await;
            assert_eq!(refusal.status, 503, "{}", refusal.json());
        }
        block_in_place(|| self.database.start_again());
        happened
    }
}

/// The texts of both results.
async fn texts(modern: JoinHandle<Response>, mut legacy: Sse) -> [String; 2] {
    let modern = with_timeout("the response", modern).await.expect("no panic").messages().pop().expect("a response");
    let legacy = legacy.rest().await.pop().expect("a response");
    [modern, legacy].map(|response| {
        assert!(response.get("error").is_none(), "{response}");
        text_of(&response["result"]["content"])
    })
}

/// The result in the next response on a stream.
async fn next_result(stream: &mut Sse) -> Value {
    loop {
        let message = stream.next().await.expect("it stays open");
        if is_response(&message) {
            return message["result"].clone();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn a_call_whose_work_ends_while_the_database_is_away_has_its_result_when_it_is_back() {
    within_a_minute(async {
        let mut fixture = Fixture::new(uncoalesced(), |tool| tool).await;
        let (modern, legacy, mut runs) = fixture.held_calls().await;
        fixture.outage(|| runs.iter_mut().for_each(|run| run.ends("done"))).await;
        assert_eq!(texts(modern, legacy).await, ["done", "done"]);
        assert!(fixture.runs.try_recv().is_err(), "each call ran once");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn a_call_whose_hold_expires_while_the_database_is_away_hears_how_to_go_on_when_it_is_back() {
    within_a_minute(async {
        let mut fixture = Fixture::new(Config { hold: HOLD, ..uncoalesced() }, |tool| tool).await;
        let (modern, legacy, mut runs) = fixture.held_calls().await;
        fixture.outage(|| ()).await;
        for text in texts(modern, legacy).await {
            assert!(text.contains("`task_wait`"), "{text}");
        }
        runs.iter_mut().for_each(|run| run.ends("done"));
        assert!(fixture.runs.try_recv().is_err(), "each call ran once");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL"]
async fn streams_of_a_session_stay_open_while_the_database_is_away_and_go_on_where_they_were() {
    within_a_minute(async {
        let mut fixture = Fixture::new(uncoalesced(), Tool::streams).await;
        // One session waits for the result of its task, one has a session stream, and one gets the output in responses to its call.
        let (waits, stands) = (fixture.session(streaming()).await, fixture.session(streaming()).await);
        let calls = fixture.session(capable_of(&ALL)).await;
        let id = waits.start("writes", json!({})).await;
        let mut first = fixture.run().await;
        let mut result = awaiting(&waits, &id).await;
        let mut session_stream = stands.open_session_stream().await;
        stands.start("writes", json!({})).await;
        let mut second = fixture.run().await;
        let (mut responses, mut third) = tokio::join!(calls.stream("tools/call", calling(&["streaming"])), fixture.run());
        for run in [&first, &second, &third] {
            run.writes("<0>").await;
        }
        for stream in [&mut result, &mut session_stream] {
            assert_eq!(brief(&stream.until("notifications/tasks/partial").await), "0 <0>");
        }
        assert_eq!(part(&next_result(&mut responses).await), json!([["1 <0>"], false, false]));

        let contexts = [&first, &second, &third].map(|run| run.ctx.clone());
        let write_all = || {
            contexts.map(|ctx| {
                tokio::spawn(async move {
                    ctx.text("<1>").await?;
                    ctx.flush().await
                })
            })
        };
        for written in fixture.outage(write_all).await {
            with_timeout("the output", written).await.expect("no panic").expect("it is written");
        }
        assert_eq!(part(&next_result(&mut responses).await), json!([["2 <1>"], false, false]));
        first.ends("done");
        second.ends("done");
        third.ends(());
        assert_eq!(part(&next_result(&mut responses).await), json!([[], true, false]));
        assert_eq!(story(&result.rest().await), ["1 <1>", "completed", "= done"]);
        let mut messages = Vec::<Value>::new();
        while messages.last().is_none_or(|last| last["params"]["status"] != "completed") {
            messages.push(session_stream.next().await.expect("it stays open"));
        }
        assert_eq!(story(&messages), ["1 <1>", "completed"]);
    })
    .await;
}
