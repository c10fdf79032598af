//! SEP-1905 from the client's side: the thirteen rows of its checklist, each test named after its row, and what else the
//! proposal lets a server do. The server is a script that sends segments twice, late or never, and at the end our own.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
};

use serde_json::{Value, json};
use taskwire::{
    client::{Call, Client, Error, Event, Options, Outcome, Status},
    server::{Config, FirstAnswer, LegacyConfig},
    tool::{CallResult, Content, Tool, ToolError},
};

use super::{
    between::Between,
    legacy::{
        answer, awaited, begun, client_of, declared, ended, having, held, impatient, joined, made, options, progress, related, scripted,
        shown, status, stood, waited,
    },
    script::{
        MS, ScriptedRequest, ScriptedServer, Sse, brief, end, last, next, next_briefs, next_notable, response, rest, start_job, text,
        with_members,
    },
};
use crate::{
    kit::{TestServer, with_timeout},
    tasks::{quick, registry},
    tool_harness::{ToolHarness, ToolRun},
};

const ALL: [&str; 3] = ["task", "immediate", "streaming"];
const FIVE: [&str; 5] = ["one", "two", "three", "four", "five"];

/// What a server can do that has these modes, and no other way to show output.
fn modes() -> Value {
    having(json!({"responses": {"modes": ALL}}))
}

/// A client of such a server.
async fn client(script: &ScriptedServer) -> Client {
    joined(script, options(script), modes()).await
}

/// A segment.
fn segment(seq_nr: u64, said: &str) -> Value {
    with_members(text(said), json!({"seqNr": seq_nr}))
}

/// A streaming result of `t1`: these segments.
fn part_of(segments: Vec<Value>, is_complete: bool) -> Value {
    json!({"partial-content": segments, "isError": false, "isComplete": is_complete, "_meta": related("t1")})
}

/// A streaming result of `t1`: segments with these texts from `from` on.
fn part(from: u64, texts: &[&str], is_complete: bool) -> Value {
    part_of((from..).zip(texts).map(|(seq_nr, said)| segment(seq_nr, said)).collect(), is_complete)
}

/// The whole result of `t1`.
fn whole(texts: &[&str]) -> Value {
    let content: Vec<Value> = texts.iter().map(|said| text(said)).collect();
    json!({"content": content, "isError": false, "_meta": related("t1")})
}

/// A call that is answered with a stream, which begins with this result.
async fn begins(script: &ScriptedServer, client: &Client, first: Value) -> (Call, Sse) {
    held(script, client, |call| response(call.id(), first)).await
}

/// One more response to the call.
async fn sends(events: &mut Sse, result: Value) {
    let message = response(&events.id, result);
    events.event(message).await;
}

/// What a server has of the output of `t1`, for who asks for it with `tasks/result`.
struct Log {
    texts: Vec<&'static str>,
    is_complete: bool,
    is_error: bool,
    /// The `lastSeqNr` of each request so far.
    asked: RefCell<Vec<Option<u64>>>,
    /// Who waits for the end.
    waits: RefCell<Vec<Sse>>,
    /// Segments that one answer has at most.
    most: Cell<usize>,
}

impl Log {
    fn new(texts: &[&'static str], is_complete: bool) -> Self {
        Self {
            texts: texts.to_vec(),
            is_complete,
            is_error: false,
            asked: RefCell::default(),
            waits: RefCell::default(),
            most: Cell::new(usize::MAX),
        }
    }

    /// Answers as the proposal says. The number before the first segment is none.
    async fn answers(&self, asked: ScriptedRequest) {
        let last = asked.params().get("lastSeqNr").map(|last| {
            let number = last.as_u64().filter(|number| *number > 0);
            number.unwrap_or_else(|| panic!("a `lastSeqNr` that is none: {asked:?}"))
        });
        self.asked.borrow_mut().push(last);
        let error = json!({"isError": self.is_error});
        match last {
            Some(last) => {
                let behind: Vec<&str> = self.texts.iter().copied().skip(usize::try_from(last).expect("small")).collect();
                let some = &behind[..behind.len().min(self.most.get())];
                let is_last = self.is_complete && some.len() == behind.len();
                let part = part(last + 1, some, is_last);
                asked.result(if is_last { with_members(part, error) } else { part }).await;
            }
            None if self.is_complete => asked.result(with_members(whole(&self.texts), error)).await,
            None => {
                let wait = asked.sse().await;
                self.waits.borrow_mut().push(wait);
            }
        }
    }

    /// Answers every request for the result.
    async fn serves<T>(&self, script: &ScriptedServer) -> T {
        loop {
            let asked = script.expect_of("tasks/result", "t1").await;
            self.answers(asked).await;
        }
    }

    /// All events of a call up to its end, while time passes and requests are answered.
    async fn to_the_end(&self, script: &ScriptedServer, call: &mut Call) -> Vec<String> {
        let telling = async {
            tokio::select! {
                briefs = rest(call) => briefs,
                never = self.serves(script) => never,
            }
        };
        script.as_time_passes("the end", 10 * MS, telling).await
    }

    /// The next events of a call, likewise.
    async fn briefs(&self, script: &ScriptedServer, call: &mut Call, count: usize) -> Vec<String> {
        let telling = async {
            tokio::select! {
                briefs = next_briefs(call, count) => briefs,
                never = self.serves(script) => never,
            }
        };
        script.as_time_passes("the next events", 10 * MS, telling).await
    }

    /// The task has ended: who waited has the result.
    async fn completed(mut self) -> Self {
        self.is_complete = true;
        for wait in std::mem::take(self.waits.get_mut()) {
            wait.result(whole(&self.texts)).await;
        }
        self
    }

    /// The segments after which the client asked for more.
    fn resumed_from(&self) -> Vec<u64> {
        self.asked.borrow().iter().copied().flatten().collect()
    }
}

/// The events of a call with these texts, from one of them on, and its end.
fn all_from(from: usize, texts: &[&str]) -> Vec<String> {
    let mut briefs: Vec<String> = texts.iter().enumerate().skip(from).map(|(seq, said)| format!("{seq} {said}")).collect();
    briefs.push(format!("done: {}", texts.concat()));
    briefs
}

/// The next request for what follows an event or a segment.
async fn resumes(script: &ScriptedServer) -> ScriptedRequest {
    let fits = |asked: &ScriptedRequest| asked.last_event_id().is_some() || asked.params().get("lastSeqNr").is_some();
    script.expect_where("a request for the rest", fits).await
}

// The checklist.

#[tokio::test]
async fn row_01_capability_negotiation() {
    let script = scripted().await;
    let declared = declared(&script, options(&script)).await;
    let shown = declared["tasks"]["responses"]["modes"].as_array().unwrap_or_else(|| panic!("no modes in {declared}"));
    let shown: BTreeSet<&str> = shown.iter().filter_map(Value::as_str).collect();
    assert_eq!(shown, BTreeSet::from(ALL));
    // And what the server says of itself is kept.
    let script = scripted().await;
    let peer = client(&script).await.server_info();
    assert_eq!(peer.response_modes.iter().map(String::as_str).collect::<BTreeSet<_>>(), BTreeSet::from(ALL));
}

#[tokio::test]
async fn row_02_mode_specification() {
    let partial = having(json!({"responses": {"modes": ALL}, "streaming": {"partial": {}}}));
    let cases: [(Value, bool, Option<&[&str]>); 4] = [
        (modes(), true, Some(&ALL)),
        // Where output comes by partials, the client does not want it twice.
        (partial, true, Some(&["immediate", "task"])),
        // Who wants no output before the end does not ask for it.
        (modes(), false, Some(&["immediate", "task"])),
        (having(json!({})), true, None),
    ];
    for (capabilities, stream, expected) in cases {
        let script = scripted().await;
        let client = joined(&script, Options { stream_output: stream, ..options(&script) }, capabilities.clone()).await;
        let (mut call, asked) = start_job(&client, async {
            let request = awaited(&script, "tools/call").await;
            let asked = request.params()["task"].clone();
            request.result(answer("done")).await;
            asked
        })
        .await;
        assert_eq!(last(&mut call).await, "done: done");
        assert!(asked.is_object(), "{asked}");
        let named: Option<BTreeSet<&str>> =
            asked.get("responseModes").map(|modes| modes.as_array().expect("a list").iter().filter_map(Value::as_str).collect());
        assert_eq!(named, expected.map(|modes| modes.iter().copied().collect::<BTreeSet<&str>>()), "{stream} at {capabilities}");
    }
}

#[tokio::test]
async fn row_03_immediate_mode() {
    for has_task in [false, true] {
        let script = scripted().await;
        let client = client(&script).await;
        let result = if has_task { ended("t1", "done") } else { answer("done") };
        let (mut call, ()) = start_job(&client, async { awaited(&script, "tools/call").await.result(result).await }).await;
        assert_eq!(last(&mut call).await, "done: done", "has a task: {has_task}");
        assert!(has_task || call.reference().is_none(), "there is no task to name");
        assert_eq!(script.count("tasks/result"), 0, "all is there already");
    }
}

#[tokio::test]
async fn row_04_task_mode() {
    let script = scripted().await;
    script.stop_answering("tasks/get");
    let client = client(&script).await;
    let (mut call, wait) = begun(&script, &client, "t1").await;
    let look = script.as_time_passes("a look", 100 * MS, script.expect_of("tasks/get", "t1")).await;
    look.result(with_members(shown("t1", "working"), json!({"statusMessage": "half way"}))).await;
    while brief(&next(&mut call).await.expect("the run goes on")) != "working: half way" {}
    script.always("tasks/get", shown("t1", "completed"));
    wait.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
}

#[tokio::test]
async fn row_05_streaming_mode() {
    let script = scripted().await;
    let client = client(&script).await;
    let (mut call, mut events) = begins(&script, &client, part(1, &FIVE[..2], false)).await;
    assert_eq!(next_briefs(&mut call, 3).await, ["task t1", "0 one", "1 two"]);
    assert_eq!(call.reference().map(|reference| (reference.task, reference.next)), Some((Some("t1".to_owned()), 2)));
    sends(&mut events, part(3, &FIVE[2..4], false)).await;
    assert_eq!(next_briefs(&mut call, 2).await, ["2 three", "3 four"], "as it comes");
    sends(&mut events, part(5, &FIVE[4..], true)).await;
    events.end().await;
    assert_eq!(Log::new(&FIVE, true).to_the_end(&script, &mut call).await, all_from(4, &FIVE));
    assert_eq!(script.count("tools/call"), 1);
}

#[tokio::test]
async fn row_06_segment_tracking() {
    let script = scripted().await;
    let client = client(&script).await;
    let log = Log::new(&FIVE, false);
    // The last before the first, and two that belong together apart.
    let (mut call, mut events) = begins(&script, &client, part(5, &FIVE[4..], false)).await;
    for result in [part(2, &FIVE[1..2], false), part(4, &FIVE[3..4], false), part(1, &FIVE[..1], false), part(3, &FIVE[2..3], false)] {
        sends(&mut events, result).await;
    }
    let briefs = log.briefs(&script, &mut call, 6).await;
    assert_eq!(briefs, ["task t1", "0 one", "1 two", "2 three", "3 four", "4 five"]);
    sends(&mut events, part(6, &[], true)).await;
    assert_eq!(log.completed().await.to_the_end(&script, &mut call).await, ["done: onetwothreefourfive"]);
}

#[tokio::test]
async fn row_06_segments_of_one_response_may_be_in_any_order() {
    let script = scripted().await;
    let client = client(&script).await;
    let segments = vec![segment(3, "three"), segment(1, "one"), segment(2, "two")];
    let (mut call, events) = begins(&script, &client, part_of(segments, true)).await;
    events.end().await;
    let briefs = Log::new(&FIVE[..3], true).to_the_end(&script, &mut call).await;
    assert_eq!(briefs[1..], all_from(0, &FIVE[..3]));
}

#[tokio::test]
async fn row_07_sse_handling() {
    let script = scripted().await;
    let (client, mut stand) = stood(&script, options(&script), modes()).await;
    let mut token = Value::Null;
    let (mut call, mut events) = held(&script, &client, |request| {
        token = request.meta()["progressToken"].clone();
        response(request.id(), part(1, &FIVE[..1], false))
    })
    .await;
    assert_eq!(next_briefs(&mut call, 2).await, ["task t1", "0 one"]);
    // Named events with ids, other ends of lines, comments, data on several lines, and bytes in any pieces.
    let message = response(&events.id, part(2, &["zwei ü 😀"], false)).to_string();
    let bytes = format!(": hello\r\nevent: message\r\nid: e-1\r\ndata: {message}\r\n\r\n").into_bytes();
    for piece in bytes.chunks(7) {
        events.raw(piece).await;
    }
    assert_eq!(next_briefs(&mut call, 1).await, ["1 zwei ü 😀"]);
    let message = serde_json::to_string_pretty(&response(&events.id, part(3, &FIVE[2..3], false))).expect("JSON");
    let lines: String = message.lines().map(|line| format!("data: {line}\n")).collect();
    events.raw(format!("id:e-2\n{lines}\n").as_bytes()).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["2 three"]);
    // Notifications are another matter, here and elsewhere.
    events.event(status(with_members(shown("t1", "working"), json!({"statusMessage": "here"})))).await;
    events.event(progress(&token, json!({"progress": 3}))).await;
    assert_eq!(next_briefs(&mut call, 1).await, ["progress 3"]);
    stand.event(status(with_members(shown("t1", "working"), json!({"statusMessage": "there"})))).await;
    while brief(&next(&mut call).await.expect("the run goes on")) != "working: there" {}
    // A notification has no result, whatever it looks like.
    events.event(json!({"jsonrpc": "2.0", "method": "notifications/unknown", "params": part(4, &["not this"], false)})).await;
    sends(&mut events, part(4, &FIVE[3..4], true)).await;
    let log = Log::new(&["one", "zwei ü 😀", "three", "four"], true);
    assert_eq!(log.to_the_end(&script, &mut call).await, ["3 four", "done: onezwei ü 😀threefour"]);
}

#[tokio::test]
async fn row_08_deduplication() {
    let script = scripted().await;
    let client = client(&script).await;
    let log = Log::new(&FIVE, true);
    let (mut call, mut events) = begins(&script, &client, part(1, &FIVE[..2], false)).await;
    // Once more as it was, once more with other words, and within one response.
    sends(&mut events, part(1, &FIVE[..2], false)).await;
    sends(&mut events, part(2, &["another two", "three"], false)).await;
    sends(&mut events, part_of(vec![segment(4, "four"), segment(4, "another four"), segment(1, "another one")], false)).await;
    assert_eq!(log.briefs(&script, &mut call, 5).await, ["task t1", "0 one", "1 two", "2 three", "3 four"]);
    // By another way: the stream is cut, and the server sends all from the beginning.
    events.cut();
    let playing = async {
        resumes(&script).await.result(part(1, &FIVE, true)).await;
        log.serves(&script).await
    };
    let telling = async {
        tokio::select! {
            briefs = rest(&mut call) => briefs,
            never = playing => never,
        }
    };
    assert_eq!(script.as_time_passes("the end", 10 * MS, telling).await, all_from(4, &FIVE));
}

#[tokio::test]
async fn row_09_gap_detection() {
    let script = scripted().await;
    let client = client(&script).await;
    let log = Log::new(&FIVE, false);
    let (mut call, mut events) = begins(&script, &client, part(1, &FIVE[..1], false)).await;
    sends(&mut events, part(3, &FIVE[2..3], false)).await;
    sends(&mut events, part(5, &FIVE[4..], false)).await;
    let briefs = log.briefs(&script, &mut call, 6).await;
    assert_eq!(briefs, ["task t1", "0 one", "1 two", "2 three", "3 four", "4 five"]);
    assert_eq!(log.resumed_from().first(), Some(&1), "behind the last one before the gap");
    sends(&mut events, part(6, &[], true)).await;
    assert_eq!(log.completed().await.to_the_end(&script, &mut call).await, ["done: onetwothreefourfive"]);
}

#[tokio::test]
async fn row_09_a_gap_before_the_end_is_filled_before_the_end_is_told() {
    let script = scripted().await;
    let client = client(&script).await;
    let log = Log::new(&FIVE, true);
    // It takes several answers to fill it.
    log.most.set(1);
    let (mut call, mut events) = begins(&script, &client, part(1, &FIVE[..1], false)).await;
    sends(&mut events, part(5, &FIVE[4..], true)).await;
    events.end().await;
    assert_eq!(log.to_the_end(&script, &mut call).await[1..], all_from(0, &FIVE));
    assert!(log.resumed_from().contains(&1), "{:?}", log.asked);
}

#[tokio::test]
async fn row_10_segment_merging() {
    let script = scripted().await;
    let client = client(&script).await;
    let image = json!({"type": "image", "data": "eA==", "mimeType": "image/png", "annotations": {"priority": 1}});
    let link = json!({"type": "resource_link", "uri": "test://b", "name": "b", "_meta": {"k": "v"}});
    let other = json!({"type": "video", "url": "https://example.com/v.mp4", "text": "seqNr"});
    let blocks = [text("one"), image, link, other];
    let numbered: Vec<Value> = (1..).zip(&blocks).map(|(n, block)| with_members(block.clone(), json!({"seqNr": n}))).collect();
    let (mut call, mut events) = begins(&script, &client, part_of(vec![numbered[2].clone(), numbered[0].clone()], false)).await;
    let mut end = part_of(vec![numbered[3].clone(), numbered[1].clone()], true);
    end["structuredContent"] = json!({"count": 4});
    sends(&mut events, end).await;
    let mut briefs = Vec::new();
    let telling = async {
        loop {
            match next_notable(&mut call).await.expect("an end") {
                Event::Chunk(partial) => briefs.push((partial.seq, partial.blocks())),
                Event::Done(Outcome::Result(finished)) => return finished,
                Event::Done(outcome) => panic!("{outcome:?}"),
                _ => {}
            }
        }
    };
    let playing = async {
        loop {
            let asked = script.expect_of("tasks/result", "t1").await;
            let is_whole = asked.params().get("lastSeqNr").is_none();
            let whole = json!({"content": blocks, "structuredContent": {"count": 4}, "isError": false, "_meta": related("t1")});
            let rest = with_members(part_of(numbered[1..].to_vec(), true), json!({"structuredContent": {"count": 4}}));
            asked.result(if is_whole { whole } else { rest }).await;
        }
    };
    let finished = script
        .as_time_passes("the end", 10 * MS, async {
            tokio::select! {
                finished = telling => finished,
                never = playing => never,
            }
        })
        .await;
    assert_eq!(briefs, (0_u64..).zip(blocks.iter().map(|block| vec![block.clone()])).collect::<Vec<_>>(), "in order, without numbers");
    assert_eq!((finished.content, finished.structured), (blocks.to_vec(), Some(json!({"count": 4}))));
}

#[tokio::test]
async fn row_11_completion_detection() {
    // The stream ends, properly or not, and nobody said that this was all.
    for is_cut in [true, false] {
        let script = scripted().await;
        let client = client(&script).await;
        let (mut call, events) = begins(&script, &client, part(1, &FIVE[..1], false)).await;
        assert_eq!(next_briefs(&mut call, 2).await, ["task t1", "0 one"]);
        if is_cut {
            events.cut();
        } else {
            events.end().await;
        }
        let log = Log::new(&FIVE[..2], true);
        let playing = async {
            // Nothing new, and it goes on.
            let first = resumes(&script).await;
            assert_eq!(first.params()["lastSeqNr"], 1);
            first.result(part(2, &[], false)).await;
            log.serves(&script).await
        };
        let telling = async {
            tokio::select! {
                briefs = rest(&mut call) => briefs,
                never = playing => never,
            }
        };
        let briefs = script.as_time_passes("the end", 100 * MS, telling).await;
        assert_eq!(briefs, all_from(1, &FIVE[..2]), "cut: {is_cut}");
    }
}

#[tokio::test]
async fn row_11_what_comes_behind_the_last_response_is_nobodys() {
    let script = scripted().await;
    let client = client(&script).await;
    let (mut call, mut events) = begins(&script, &client, part(1, &FIVE[..1], false)).await;
    sends(&mut events, part(2, &FIVE[1..2], true)).await;
    sends(&mut events, part(3, &["late"], false)).await;
    sends(&mut events, part(4, &["later"], true)).await;
    let briefs = Log::new(&FIVE[..2], true).to_the_end(&script, &mut call).await;
    assert_eq!(briefs[1..], all_from(0, &FIVE[..2]));
}

#[tokio::test]
async fn row_12_error_handling_a_task_that_fails() {
    let script = scripted().await;
    let client = client(&script).await;
    // After some output.
    let (mut call, mut events) = begins(&script, &client, part(1, &FIVE[..1], false)).await;
    script.always("tasks/get", shown("t1", "failed"));
    sends(&mut events, with_members(part(2, &["bad"], true), json!({"isError": true}))).await;
    let log = Log { is_error: true, ..Log::new(&["one", "bad"], true) };
    assert_eq!(log.to_the_end(&script, &mut call).await, ["task t1", "0 one", "1 bad", "tool failed: onebad"]);
    // Without any.
    let message = with_members(whole(&["bad"]), json!({"isError": true, "isComplete": true}));
    let (mut call, events) = begins(&script, &client, message).await;
    events.end().await;
    let log = Log { is_error: true, ..Log::new(&["bad"], true) };
    assert_eq!(log.to_the_end(&script, &mut call).await.pop().as_deref(), Some("tool failed: bad"));
}

#[tokio::test]
async fn row_12_error_handling_a_task_that_is_cancelled() {
    for (has_last, names_task) in [(true, true), (true, false), (false, false)] {
        let script = scripted().await;
        let client = client(&script).await;
        let (mut call, mut events) = begins(&script, &client, part(1, &FIVE[..1], false)).await;
        assert_eq!(next_briefs(&mut call, 2).await, ["task t1", "0 one"]);
        let off = with_members(shown("t1", "cancelled"), json!({"statusMessage": "as you wish"}));
        let playing = async {
            script.always("tasks/get", off.clone());
            script.expect_of("tasks/cancel", "t1").await.result(off.clone()).await;
        };
        let (cancelled, ()) = with_timeout("the answer", async { tokio::join!(call.cancel(), playing) }).await;
        cancelled.expect("asked for");
        if has_last {
            let task = if names_task { off } else { Value::Null };
            sends(&mut events, with_members(part(2, &[], true), json!({"isError": true, "task": task}))).await;
        }
        events.end().await;
        let log = Log { is_error: true, ..Log::new(&FIVE[..1], true) };
        let briefs = log.to_the_end(&script, &mut call).await;
        assert!(
            briefs.len() == 1 && briefs[0].starts_with("cancelled"),
            "a last response: {has_last}, with the task: {names_task}: {briefs:?}"
        );
    }
}

#[tokio::test]
async fn row_12_error_handling_a_task_whose_time_is_over() {
    let script = scripted().await;
    let client = client(&script).await;
    let (mut call, events) = begins(&script, &client, part(1, &FIVE[..2], false)).await;
    script.stop_answering("tasks/get");
    script.may_remain("tasks/get");
    assert_eq!(next_briefs(&mut call, 3).await, ["task t1", "0 one", "1 two"], "what came is there");
    events.cut();
    let gone = async {
        loop {
            let asked = script.expect_where("a question about the task", |asked| asked.kind().starts_with("tasks/")).await;
            asked.error(200, -32602, "Task not found", Value::Null).await;
        }
    };
    let ending = async {
        tokio::select! {
            ended = ended_with(&mut call) => ended,
            never = gone => never,
        }
    };
    match script.as_time_passes("the end", 100 * MS, ending).await {
        Err(Error::TaskNotFound { task }) => assert_eq!(task, "t1"),
        Ok(Outcome::Failed(error)) => assert_eq!(error.code, -32602),
        other => panic!("it is known not to be all: {other:?}"),
    }
}

/// How a call ended.
async fn ended_with(call: &mut Call) -> Result<Outcome, Error> {
    loop {
        match call.next().await.expect("a last word") {
            Ok(Event::Done(outcome)) => return Ok(outcome),
            Ok(Event::Chunk(partial)) => panic!("nobody sent {partial:?}"),
            Ok(_) => {}
            Err(error) => return Err(error),
        }
    }
}

#[tokio::test]
async fn row_13_resume_support() {
    let script = scripted().await;
    let client = client(&script).await;
    let (mut call, mut events) = begins(&script, &client, part(1, &FIVE[..2], false)).await;
    sends(&mut events, part(3, &FIVE[2..3], false)).await;
    assert_eq!(next_briefs(&mut call, 4).await, ["task t1", "0 one", "1 two", "2 three"]);
    // Its events had no names, so there is one way to go on.
    events.cut();
    let log = Log::new(&FIVE, true);
    assert_eq!(log.to_the_end(&script, &mut call).await, all_from(3, &FIVE));
    assert_eq!(log.asked.borrow().first(), Some(&Some(3)));
    assert_eq!(script.count("tools/call"), 1, "it is not called again");
}

#[tokio::test]
async fn row_13_a_stream_whose_events_have_names_may_go_on_in_either_way() {
    let script = scripted().await;
    let client = client(&script).await;
    let (mut call, mut events) = begins(&script, &client, part(1, &FIVE[..1], false)).await;
    let id = events.id.clone();
    let two = response(&id, part(2, &FIVE[1..2], false));
    events.event_with_id("s:2", two).await;
    assert_eq!(next_briefs(&mut call, 3).await, ["task t1", "0 one", "1 two"]);
    events.cut();
    let log = Log::new(&FIVE, true);
    let playing = async {
        let again = resumes(&script).await;
        if again.http_method == "GET" {
            assert_eq!(again.last_event_id(), Some("s:2"));
            let mut events = again.sse().await;
            // Some of it again, and the rest.
            events.event_with_id("s:3", response(&id, part(2, &FIVE[1..3], false))).await;
            events.event_with_id("s:4", response(&id, part(4, &FIVE[3..], true))).await;
            events.end().await;
        } else {
            assert_eq!(again.params()["lastSeqNr"], 2);
            log.answers(again).await;
        }
        log.serves(&script).await
    };
    let telling = async {
        tokio::select! {
            briefs = rest(&mut call) => briefs,
            never = playing => never,
        }
    };
    assert_eq!(script.as_time_passes("the end", 10 * MS, telling).await, all_from(2, &FIVE));
    assert_eq!(script.count("tools/call"), 1);
}

#[tokio::test]
async fn row_13_a_task_is_picked_up_behind_what_was_read() {
    let script = scripted().await;
    let client = client(&script).await;
    let (mut call, events) = begins(&script, &client, part(1, &FIVE[..3], false)).await;
    assert_eq!(next_briefs(&mut call, 3).await, ["task t1", "0 one", "1 two"]);
    let reference = call.detach().expect("it is a task");
    assert_eq!(reference.next, 2, "the third was not handed out");
    drop(events);
    let mut call = with_timeout("the run", client.attach(&reference)).await.expect("a run");
    let briefs = Log::new(&FIVE, true).to_the_end(&script, &mut call).await;
    assert_eq!(briefs.first().map(String::as_str), Some("task t1"));
    assert_eq!(briefs.last().map(String::as_str), Some("done: onetwothreefourfive"));
    // Whether the rest comes bit by bit is the server's affair; nothing comes twice.
    let again = ["0 one".to_owned(), "1 two".to_owned()];
    assert!(!briefs.iter().any(|brief| again.contains(brief)), "{briefs:?}");
}

// How a stream may begin.

/// The three forms of the first response.
fn initial_forms() -> [(&'static str, Value, usize); 3] {
    let both = with_members(part(1, &FIVE[..1], false), json!({"task": shown("t1", "working"), "_meta": null}));
    [("a", both, 1), ("b", made("t1"), 0), ("c", part(1, &FIVE[..1], false), 1)]
}

#[tokio::test]
async fn initial_forms_a_b_and_c_begin_a_stream() {
    for (form, first, has) in initial_forms() {
        let script = scripted().await;
        let client = client(&script).await;
        let (mut call, mut events) = begins(&script, &client, first).await;
        let running = Log::new(&FIVE, false);
        let expected: Vec<&str> = ["task t1", "0 one"][..=has].to_vec();
        assert_eq!(running.briefs(&script, &mut call, 1 + has).await, expected, "{form}");
        for (n, said) in (1..).zip(FIVE).skip(has) {
            sends(&mut events, part(n, &[said], false)).await;
            assert_eq!(running.briefs(&script, &mut call, 1).await, [format!("{} {said}", n - 1)], "{form}");
        }
        sends(&mut events, part(6, &[], true)).await;
        assert_eq!(running.completed().await.to_the_end(&script, &mut call).await, ["done: onetwothreefourfive"], "{form}");
    }
}

#[tokio::test]
async fn initial_forms_a_b_and_c_may_be_all_that_comes_by_itself() {
    for (form, first, _) in initial_forms() {
        let script = scripted().await;
        let client = client(&script).await;
        let (mut call, ()) = start_job(&client, async { awaited(&script, "tools/call").await.result(first).await }).await;
        // The rest has to be asked for, and comes in pieces.
        let log = Log::new(&FIVE, true);
        log.most.set(2);
        let briefs = log.to_the_end(&script, &mut call).await;
        assert_eq!(briefs.first().map(String::as_str), Some("task t1"), "{form}");
        assert_eq!(briefs.last().map(String::as_str), Some("done: onetwothreefourfive"), "{form}");
        if form == "b" {
            assert_eq!(log.resumed_from(), [0; 0], "there is no segment to go on behind");
        } else {
            assert_eq!(briefs[1..], all_from(0, &FIVE), "{form}");
        }
    }
}

#[tokio::test]
async fn initial_response_that_is_complete_is_the_result() {
    for as_json in [true, false] {
        let script = scripted().await;
        let client = client(&script).await;
        let first = part(1, &FIVE[..2], true);
        let (mut call, events) = if as_json {
            (start_job(&client, async { awaited(&script, "tools/call").await.result(first).await }).await.0, None)
        } else {
            let (call, events) = begins(&script, &client, first).await;
            (call, Some(events))
        };
        let briefs = Log::new(&FIVE[..2], true).to_the_end(&script, &mut call).await;
        assert_eq!(briefs[1..], all_from(0, &FIVE[..2]), "as JSON: {as_json}");
        drop(events);
    }
}

#[tokio::test]
async fn a_fallback_to_a_task_is_followed_like_any_other_task() {
    let script = scripted().await;
    let client = client(&script).await;
    let created = with_members(made("t1"), json!({"_meta": {"io.modelcontextprotocol/fallback-mode": "task"}}));
    let (mut call, ()) = start_job(&client, async { awaited(&script, "tools/call").await.result(created).await }).await;
    let wait = waited(&script, &mut call, "t1").await;
    assert_eq!(wait.params().get("lastSeqNr"), None);
    wait.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
}

#[tokio::test]
async fn a_server_that_only_has_tasks_makes_one() {
    let script = scripted().await;
    let client = joined(&script, options(&script), having(json!({"responses": {"modes": ["task"]}}))).await;
    let (mut call, wait) = begun(&script, &client, "t1").await;
    wait.result(ended("t1", "done")).await;
    assert_eq!(rest(&mut call).await, ["done: done"]);
}

// What a server may not be able to do.

#[tokio::test]
async fn a_server_that_cannot_resume_is_asked_for_the_whole() {
    let script = scripted().await;
    let client = client(&script).await;
    let (mut call, events) = begins(&script, &client, part(1, &FIVE[..2], false)).await;
    assert_eq!(next_briefs(&mut call, 3).await, ["task t1", "0 one", "1 two"]);
    events.cut();
    script.always("tasks/get", shown("t1", "completed"));
    let log = Log::new(&FIVE, true);
    let playing = async {
        loop {
            let asked = script.expect_of("tasks/result", "t1").await;
            if asked.params().get("lastSeqNr").is_some() {
                asked.error(200, -32603, "Resumption is not supported", Value::Null).await;
            } else {
                log.answers(asked).await;
            }
        }
    };
    let telling = async {
        tokio::select! {
            briefs = rest(&mut call) => briefs,
            never = playing => never,
        }
    };
    let briefs = script.as_time_passes("the end", 10 * MS, telling).await;
    assert_eq!(briefs.last().map(String::as_str), Some("done: onetwothreefourfive"), "{briefs:?}");
    assert!(!briefs.iter().any(|brief| brief == "0 one" || brief == "1 two"), "nothing comes twice: {briefs:?}");
}

#[tokio::test]
async fn a_stream_whose_first_segment_is_lost_is_never_asked_for_behind_number_zero() {
    for is_cut in [true, false] {
        let script = scripted().await;
        let client = client(&script).await;
        let (mut call, mut events) = begins(&script, &client, part(2, &FIVE[1..3], false)).await;
        script.always("tasks/get", shown("t1", "completed"));
        if is_cut {
            events.cut();
        } else {
            sends(&mut events, part(4, &FIVE[3..], true)).await;
            events.end().await;
        }
        // The log fails the test if it is asked so.
        let log = Log::new(&FIVE, true);
        let briefs = log.to_the_end(&script, &mut call).await;
        assert_eq!(briefs.last().map(String::as_str), Some("done: onetwothreefourfive"), "cut: {is_cut}: {briefs:?}");
        assert!(log.asked.borrow().contains(&None), "only the whole can be asked for: {:?}", log.asked);
    }
}

#[tokio::test]
async fn a_stream_that_ends_before_anything_came_is_asked_for_in_the_way_of_its_task() {
    let script = scripted().await;
    let client = client(&script).await;
    let (mut call, events) = begins(&script, &client, made("t1")).await;
    events.cut();
    let log = Log::new(&FIVE[..1], true);
    let briefs = log.to_the_end(&script, &mut call).await;
    assert_eq!(briefs.last().map(String::as_str), Some("done: one"));
    assert_eq!(log.resumed_from(), [0; 0], "there is nothing to go on behind");
}

#[tokio::test]
async fn a_result_in_standard_form_at_the_end_of_a_stream_is_the_whole() {
    let script = scripted().await;
    let client = client(&script).await;
    let (mut call, mut events) = begins(&script, &client, part(1, &FIVE[..2], false)).await;
    assert_eq!(next_briefs(&mut call, 3).await, ["task t1", "0 one", "1 two"]);
    sends(&mut events, whole(&FIVE[..2])).await;
    events.end().await;
    let briefs = Log::new(&FIVE[..2], true).to_the_end(&script, &mut call).await;
    assert_eq!(briefs, ["done: onetwo"]);
}

#[tokio::test]
async fn segments_that_make_no_sense_do_not_become_output() {
    let bad = [
        part_of(vec![segment(0, "zero")], false),
        part_of(vec![json!({"type": "text", "text": "no number"})], false),
        part_of(vec![with_members(text("text"), json!({"seqNr": "2"}))], false),
        part_of(vec![with_members(text("half"), json!({"seqNr": 2.5}))], false),
        part_of(vec![json!("no block")], false),
        with_members(part(2, &["of another task"], false), json!({"_meta": related("t2")})),
        json!({"partial-content": "none", "isComplete": false, "_meta": related("t1")}),
    ];
    for result in bad {
        let script = scripted().await;
        let client = client(&script).await;
        let (mut call, mut events) = begins(&script, &client, part(1, &FIVE[..1], false)).await;
        sends(&mut events, result.clone()).await;
        sends(&mut events, part(2, &FIVE[1..2], true)).await;
        let log = Log::new(&FIVE[..2], true);
        let telling = async {
            let mut briefs = Vec::new();
            while let Some(event) = call.next().await {
                match event {
                    Ok(event) => briefs.push(brief(&event)),
                    // It may well say that the server broke the protocol.
                    Err(Error::Protocol { .. }) => briefs.push("error".to_owned()),
                    Err(error) => panic!("{error}"),
                }
            }
            briefs
        };
        let telling = async {
            tokio::select! {
                briefs = telling => briefs,
                never = log.serves(&script) => never,
            }
        };
        let mut briefs = script.as_time_passes("the end", 10 * MS, telling).await;
        let last = briefs.pop().unwrap_or_default();
        assert!(last == "error" || last == "done: onetwo", "{last} after {result}");
        briefs.retain(|brief| brief.starts_with(|c: char| c.is_ascii_digit()));
        assert!(briefs == ["0 one", "1 two"] || briefs == ["0 one"], "{briefs:?} after {result}");
    }
}

// Our own server. It must not see that the client knows partial results, or it would send its output as such.

const UNHEARD: &[u8] = b"\"streaming\":{";

/// A call of `writes`, which has written `one`.
async fn writing(harness: &mut ToolHarness, client: &Client) -> (Call, ToolRun) {
    let playing = async {
        let run = harness.run().await;
        run.writes("one").await;
        run
    };
    let (call, run) = with_timeout("the start", async { tokio::join!(client.start("writes", json!({})), playing) }).await;
    (call.expect("a run"), run)
}

#[tokio::test]
async fn ours_streams_its_result_however_it_begins() {
    for initial in [FirstAnswer::Both, FirstAnswer::Task, FirstAnswer::Partial] {
        let config = Config { legacy: LegacyConfig { initial, ..LegacyConfig::default() }, ..Config::default() };
        let mut harness = ToolHarness::of(config, Tool::streams).await;
        let between = Between::new(harness.server.port, UNHEARD).await;
        let client = client_of(between.target(), Options::default()).await;
        let peer = client.server_info();
        assert!(!peer.pushes_output && peer.response_modes.iter().any(|mode| mode == "streaming"), "{:?}", peer.response_modes);
        let (mut call, mut run) = writing(&mut harness, &client).await;
        assert!(matches!(next_notable(&mut call).await, Some(Event::Task(_))), "{initial:?}");
        assert_eq!(next_briefs(&mut call, 1).await, ["0 one"], "{initial:?}");
        run.writes("two").await;
        assert_eq!(next_briefs(&mut call, 1).await, ["1 two"], "{initial:?}");
        run.ctx.block(Content::link("test://three", "three")).await.expect("taken");
        run.ends(CallResult::of([Content::text("four")]));
        let Some(Event::Chunk(three)) = next_notable(&mut call).await else { panic!("the third") };
        assert_eq!((three.seq, &three.blocks()[0]["type"]), (2, &json!("resource_link")));
        assert_eq!(next_briefs(&mut call, 1).await, ["3 four"], "{initial:?}");
        let Some(Event::Done(Outcome::Result(finished))) = next_notable(&mut call).await else { panic!("the end") };
        let kinds: Vec<&str> = finished.content.iter().filter_map(|block| block["type"].as_str()).collect();
        assert_eq!((finished.text().as_str(), kinds), ("onetwofour", vec!["text", "text", "resource_link", "text"]));
        assert!(finished.content.iter().all(|block| block.get("seqNr").is_none()));
    }
}

#[tokio::test]
async fn ours_streams_on_when_it_was_cut_off() {
    let mut harness = ToolHarness::of(Config::default(), Tool::streams).await;
    let between = Between::new(harness.server.port, UNHEARD).await;
    let client = client_of(between.target(), impatient()).await;
    let (mut call, mut run) = writing(&mut harness, &client).await;
    assert!(matches!(next_notable(&mut call).await, Some(Event::Task(_))));
    assert_eq!(next_briefs(&mut call, 1).await, ["0 one"]);
    for (n, said) in FIVE.iter().enumerate().skip(1) {
        // Before it is written, or before it is read.
        if n % 2 == 0 {
            between.cut();
        }
        run.writes(said).await;
        if n % 2 == 1 {
            between.cut();
        }
        assert_eq!(next_briefs(&mut call, 1).await, [format!("{n} {said}")]);
    }
    between.cut();
    run.ends(());
    assert_eq!(rest(&mut call).await, ["done: onetwothreefourfive"]);
}

#[tokio::test]
async fn ours_streams_to_an_end_that_is_not_good() {
    let cases: [(&str, &[&str]); 3] =
        // What an error of the protocol leaves behind is output, and a word about its end.
        [("says", &["tool failed: onebad"]), ("fails", &["failed: -31999 broken", "tool failed: onebroken"]), ("stops", &["cancelled"])];
    for (how, expected) in cases {
        let mut harness = ToolHarness::of(Config::default(), Tool::streams).await;
        let between = Between::new(harness.server.port, UNHEARD).await;
        let client = client_of(between.target(), Options::default()).await;
        let (mut call, mut run) = writing(&mut harness, &client).await;
        match how {
            "says" => run.ends_with(Err(ToolError::new("bad"))),
            "fails" => run.ends_with(Err(ToolError::protocol(-31999, "broken"))),
            _ => with_timeout("the answer", call.cancel()).await.expect("asked for"),
        }
        let mut outcome = None;
        while let Some(event) = next_notable(&mut call).await {
            if let Event::Done(ended) = event {
                outcome = Some(ended);
            }
        }
        let outcome = outcome.expect("an end");
        assert!(expected.iter().any(|expected| end(&outcome).starts_with(expected)), "{how}: {}", end(&outcome));
        let task = call.reference().and_then(|reference| reference.task).expect("it is a task");
        let snapshot = with_timeout("a look", client.task(&task)).await.expect("it is there");
        assert_eq!(snapshot.status, if how == "stops" { Status::Cancelled } else { Status::Failed }, "{how}");
    }
}

#[tokio::test]
async fn ours_answers_a_tool_that_does_not_stream_with_a_task() {
    let server = TestServer::start(registry([quick("quick")])).await;
    let between = Between::new(server.port, UNHEARD).await;
    let client = client_of(between.target(), Options::default()).await;
    let outcome = with_timeout("the result", client.call("quick", json!({}))).await.expect("a result");
    assert_eq!(end(&outcome), "done: done");
}
