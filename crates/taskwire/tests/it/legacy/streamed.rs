//! A call in the streaming mode of SEP-1905 as a client follows it: the stream that it opened, and what has come of it.

use std::sync::Arc;

use serde_json::{Value, json};
use taskwire::{
    client::Segments,
    clock::ManualClock,
    server::Config,
    tool::{Content, Tool},
};
use tokio::task::JoinHandle;

use super::kit::{LegacySession, RELATED, Sse};
use crate::{
    kit::{TestServer, manual_clock, passing, with_timeout},
    tasks::{quick, registry},
    tool_harness::{MS, ToolHarness, ToolRun, text_of},
};

/// Every mode that there is.
pub(crate) const ALL: [&str; 3] = ["task", "immediate", "streaming"];
/// What the tool writes where it writes more.
pub(crate) const FIVE: [&str; 5] = ["one", "two", "three", "four", "five"];
/// Says that a mode was used which nobody asked for.
pub(crate) const FALLBACK: &str = "io.modelcontextprotocol/fallback-mode";

/// What a client declares that can handle these modes.
pub(crate) fn capable_of(modes: &[&str]) -> Value {
    json!({"elicitation": {}, "tasks": {"responses": {"modes": modes}}})
}

/// The `task` of a call that asks for these modes.
pub(crate) fn asking(modes: &[&str]) -> Value {
    json!({"responseModes": modes})
}

/// The parameters of a call of `writes` that asks for these modes.
pub(crate) fn calling(modes: &[&str]) -> Value {
    json!({"name": "writes", "arguments": {}, "task": asking(modes)})
}

/// A server whose tool `writes` shows its output while it is produced, and a client that can handle every mode.
pub(crate) async fn staged(config: Config) -> (ToolHarness, LegacySession) {
    let harness = ToolHarness::of(config, Tool::streams).await;
    let legacy = LegacySession::declaring(&harness.server, capable_of(&ALL)).await;
    (harness, legacy)
}

/// A server whose tool `quick` is done at once, and a client that can handle every mode. Time stands still.
pub(crate) async fn ready(config: Config) -> (TestServer, LegacySession) {
    let server = TestServer::start_with(registry([quick("quick")]), config, Arc::new(manual_clock())).await;
    let legacy = LegacySession::declaring(&server, capable_of(&ALL)).await;
    (server, legacy)
}

/// A call on its way, whose answer will be an event stream.
pub(crate) struct Opening {
    legacy: LegacySession,
    id: u64,
    stream: JoinHandle<Sse>,
}

impl Opening {
    /// Calls `writes` with this `task`.
    fn of(legacy: &LegacySession, task: Value) -> Self {
        let (legacy, id) = (legacy.clone(), legacy.next_id());
        let message = legacy.message(id, "tools/call", json!({"name": "writes", "arguments": {}, "task": task}));
        let stream = tokio::spawn({
            let legacy = legacy.clone();
            async move { legacy.stream_message(&message).await }
        });
        Self { legacy, id, stream }
    }

    pub(crate) async fn opened(self) -> Streamed {
        let stream = with_timeout("the stream", self.stream).await.expect("no panic");
        Streamed { legacy: self.legacy, id: self.id, stream, segments: Segments::new() }
    }
}

/// A call in streaming mode, and the run that belongs to it.
pub(crate) async fn call(harness: &mut ToolHarness, legacy: &LegacySession) -> (Opening, ToolRun) {
    call_with(harness, legacy, asking(&["streaming"])).await
}

/// A call with this `task`, and the run that belongs to it.
pub(crate) async fn call_with(harness: &mut ToolHarness, legacy: &LegacySession, task: Value) -> (Opening, ToolRun) {
    let opening = Opening::of(legacy, task);
    (opening, harness.run().await)
}

/// A call in streaming mode that has written `one`, which has come.
pub(crate) async fn begun(harness: &mut ToolHarness, legacy: &LegacySession) -> (Streamed, ToolRun) {
    let (opening, run) = call(harness, legacy).await;
    run.writes("one").await;
    let mut call = opening.opened().await;
    assert_eq!(call.part().await, json!([["1 one"], false, false]));
    (call, run)
}

/// A call in streaming mode that has written [`FIVE`], which have come, and the results that brought them.
pub(crate) async fn five(harness: &mut ToolHarness, legacy: &LegacySession) -> (Streamed, ToolRun, Vec<Value>) {
    let (opening, run) = call(harness, legacy).await;
    for text in FIVE {
        run.writes(text).await;
    }
    let mut call = opening.opened().await;
    let results = call.until(5).await;
    (call, run, results)
}

/// Writes two segments at once.
pub(crate) async fn writes_both(run: &ToolRun, one: &str, two: &str) {
    with_timeout("the output", run.ctx.step([Content::text(one), Content::text(two)], &1)).await.expect("written");
}

/// A call in streaming mode: its stream, and what has come of it.
pub(crate) struct Streamed {
    pub(crate) legacy: LegacySession,
    /// The id of the request.
    pub(crate) id: u64,
    pub(crate) stream: Sse,
    pub(crate) segments: Segments,
}

impl Streamed {
    /// The result of the next response, which is kept; none when the stream has ended. It must be a response to the call and
    /// go on exactly where the one before it ended.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        let message = loop {
            let message = self.stream.next().await?;
            // Notifications and questions have nothing of the output.
            if message.get("method").is_none() {
                break message;
            }
            assert!(!message.to_string().contains("seqNr"), "{message}");
        };
        assert_eq!(message["id"], self.id, "{message}");
        let result = &message["result"];
        let next = self.segments.received().max().unwrap_or(0) + 1;
        let listed = result["partial-content"].as_array().map_or(0, Vec::len) as u64;
        assert_eq!(self.take(result), Vec::from_iter(next..next + listed), "{result}");
        assert_eq!(result["_meta"][RELATED]["taskId"], self.task(), "{result}");
        Some(result.clone())
    }

    /// The next response in short.
    pub(crate) async fn part(&mut self) -> Value {
        part(&self.next().await.expect("the stream goes on"))
    }

    /// The results of all responses up to the one that has this segment.
    pub(crate) async fn until(&mut self, seq_nr: u64) -> Vec<Value> {
        let mut results = Vec::new();
        while !self.segments.received().any(|received| received == seq_nr) {
            results.push(self.next().await.unwrap_or_else(|| panic!("the stream ended before segment {seq_nr}")));
        }
        results
    }

    /// The results of all responses that still come. Only the last may say that it is.
    pub(crate) async fn rest(&mut self) -> Vec<Value> {
        let mut results: Vec<Value> = Vec::new();
        while let Some(result) = self.next().await {
            assert!(results.iter().all(|earlier| earlier["isComplete"] != true), "{result} came after the last one");
            results.push(result);
        }
        results
    }

    /// The last response, up to which all that still comes is read.
    pub(crate) async fn last(&mut self) -> Value {
        self.rest().await.pop().expect("a last response")
    }

    /// Keeps a result, however it came; gives the numbers of the segments that are new.
    pub(crate) fn take(&mut self, result: &Value) -> Vec<u64> {
        take(&mut self.segments, result)
    }

    pub(crate) fn task(&self) -> &str {
        self.segments.task_id().expect("its task was named")
    }

    /// The texts of the whole result.
    pub(crate) fn merged(&self) -> String {
        merged(&self.segments)
    }

    /// Cuts the connection.
    pub(crate) fn cut(self) -> Cut {
        let last = self.stream.last_id.expect("an event that has an id");
        Cut { legacy: self.legacy, id: self.id, last, segments: self.segments }
    }
}

/// A call whose connection was cut.
pub(crate) struct Cut {
    pub(crate) legacy: LegacySession,
    pub(crate) id: u64,
    /// The last event that came.
    pub(crate) last: String,
    pub(crate) segments: Segments,
}

impl Cut {
    /// Goes on with the stream behind the last event that came.
    pub(crate) async fn resumed(self) -> Streamed {
        let stream = self.legacy.resume(&self.last).await;
        Streamed { legacy: self.legacy, id: self.id, stream, segments: self.segments }
    }
}

/// Keeps a result; gives the numbers of the segments that are new.
pub(crate) fn take(segments: &mut Segments, result: &Value) -> Vec<u64> {
    let fresh = segments.take(result).unwrap_or_else(|error| panic!("{error}: {result}"));
    fresh.iter().map(|segment| segment.seq_nr).collect()
}

/// The texts of a whole result.
pub(crate) fn merged(segments: &Segments) -> String {
    text_of(&Value::Array(segments.merged().expect("it is complete")))
}

/// A result as it is when these segments were lost on the way.
pub(crate) fn without(lost: &[u64], result: &Value) -> Value {
    let mut result = result.clone();
    let is_lost = |segment: &Value| lost.iter().any(|n| segment["seqNr"] == *n);
    result["partial-content"].as_array_mut().expect("segments").retain(|segment| !is_lost(segment));
    result
}

/// A streaming result in short: its segments, whether that was all, and whether it failed.
pub(crate) fn part(result: &Value) -> Value {
    let short = |segment: &Value| format!("{} {}", segment["seqNr"], text_of(&json!([segment])));
    let segments = result.get("partial-content").map(|list| list.as_array().expect("a list").iter().map(short).collect::<Vec<_>>());
    json!([segments, result["isComplete"], result["isError"]])
}

/// The mode in which a call was answered.
pub(crate) fn mode_of(result: &Value) -> &'static str {
    match (result.get("content"), result.get("partial-content"), result.get("task")) {
        (Some(_), None, None) => "immediate",
        (None, Some(_), _) => "streaming",
        (None, None, Some(_)) => "task",
        _ => panic!("in no mode at all: {result}"),
    }
}

/// What `tasks/result` gives behind this segment.
pub(crate) async fn pull(legacy: &LegacySession, task: &str, last: u64) -> Value {
    legacy.ok("tasks/result", json!({"taskId": task, "lastSeqNr": last})).await
}

/// The id of the task that a result brings along.
pub(crate) fn id_in(result: &Value) -> String {
    result["task"]["taskId"].as_str().unwrap_or_else(|| panic!("no task: {result}")).to_owned()
}

/// Asks for a task until it has this status.
pub(crate) async fn polled(legacy: &LegacySession, task: &str, status: &str) -> Value {
    let polling = async {
        loop {
            let state = legacy.get(task).await;
            if state["status"] == status {
                return state;
            }
        }
    };
    with_timeout(status, polling).await
}

/// Asks for a task until it is gone, and gives the error that says so.
pub(crate) async fn gone(legacy: &LegacySession, task: &str) -> Value {
    let asking = async {
        loop {
            let response = legacy.raw("tasks/get", json!({"taskId": task})).await.json();
            if let Some(error) = response.get("error") {
                return error.clone();
            }
        }
    };
    with_timeout("the end of the task's time", asking).await
}

/// All messages of a session stream up to this status of a task.
pub(crate) async fn messages_until(stand: &mut Sse, task: &str, status: &str) -> Vec<Value> {
    let mut messages = Vec::new();
    loop {
        let message = stand.next().await.unwrap_or_else(|| panic!("the stream ended before {status}: {messages:?}"));
        let is_last = message["method"] == "notifications/tasks/status"
            && message["params"]["taskId"] == task
            && message["params"]["status"] == status;
        messages.push(message);
        if is_last {
            return messages;
        }
    }
}

/// Lets time pass, a little at a time, until `future` is there.
pub(crate) async fn as_time_passes<T>(clock: &ManualClock, future: impl Future<Output = T>) -> T {
    with_timeout("what time brings", passing(clock, MS, future)).await
}
