//! The state machine under scripts and under random command sequences.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{Attempt, CallerId, Epoch, Limits, Payload, QuestionKey, Seq, SessionId, TaskId, Timestamp, TraceContext, Version};

const LIMITS: Limits = Limits {
    chunk_bytes: 40,
    block_bytes: 80,
    task_output_bytes: 100,
    output_bytes_per_second: 100,
    questions_per_task: 4,
    question_bytes_per_task: 150,
    events_per_task: 20,
    message_bytes: 10,
    value_bytes: 60,
    result_bytes: 60,
    tasks_per_caller: 10,
    stored_bytes_per_caller: 1_000_000,
    disk_reserve_bytes: 0,
    changes_per_session: 100,
    ..Limits::DEFAULT
};

fn spec() -> Spec {
    Spec { attempts_max: 3, retention_ms: Some(1_000), ..Spec::new(CallerId::new("me"), "tool") }
}

fn text(text: &str) -> Payload {
    json!({"type": "text", "text": text}).into()
}

/// A task and all that ever happened to it.
#[derive(Clone)]
struct World {
    now: i64,
    task: Option<Task>,
    log: Vec<(Timestamp, Event)>,
}

impl World {
    fn new(spec: Spec) -> Self {
        let mut world = Self { now: 1_000, task: None, log: Vec::new() };
        let new = NewTask::new(Arc::new(spec), json!({}).into(), Epoch(1));
        world.run(&Authority::Engine, &Command::Create(new)).expect("a new task");
        world
    }

    fn task(&self) -> &Task {
        self.task.as_ref().expect("made in `new`")
    }

    fn status(&self) -> Status {
        self.task().status()
    }

    fn run(&mut self, by: &Authority, command: &Command) -> Result<usize, Reject> {
        let now = Timestamp::from_millis(self.now);
        let events = decide(self.task.as_ref(), by, command, now, &LIMITS)?;
        for event in &events {
            apply(&mut self.task, event, now);
            self.log.push((now, event.clone()));
        }
        Ok(events.len())
    }

    fn work(&mut self, attempt: u64, command: &Command) -> Result<usize, Reject> {
        self.run(&Authority::Attempt(Attempt(attempt)), command)
    }

    fn call(&mut self, command: &Command) -> Result<usize, Reject> {
        self.run(&Authority::Caller(CallerId::new("me")), command)
    }

    fn engine(&mut self, command: &Command) -> usize {
        self.run(&Authority::Engine, command).expect("the engine is never refused")
    }
}

fn apply(task: &mut Option<Task>, event: &Event, at: Timestamp) {
    match (event, &mut *task) {
        (Event::Created { .. }, None) => *task = Some(create(TaskId::new(at, [9; 14]), event, at)),
        (event, Some(task)) => evolve(task, event, at),
        (event, None) => panic!("{event:?} happened to no task"),
    }
}

fn append(s: &str) -> Command {
    Command::Append { chunks: vec![Blocks::of(&[text(s)])] }
}

fn ask(key: &str, question: &str) -> Command {
    Command::Ask { key: QuestionKey::new(key), request: json!({ "q": question }).into() }
}

fn answer(keys: &[&str]) -> Command {
    Command::Answer(keys.iter().map(|key| (QuestionKey::new(key), json!({"action": "accept"}).into())).collect())
}

fn done(text: &str) -> Command {
    Command::finish(Outcome::Completed { result: json!({ "r": text }).into(), is_error: false })
}

const CANCEL: Command = Command::Cancel { reason: None };

#[test]
fn every_end_is_reached_from_every_open_state_and_is_final() {
    let failed = Command::finish(Outcome::Failed(RpcError { code: -32603, message: "no".into(), data: None }));
    let said_error = Command::finish(Outcome::Completed { result: json!({}).into(), is_error: true });
    let ends = [
        (done("x"), Status::Completed),
        (said_error, Status::Completed),
        (failed, Status::Failed),
        (Command::finish(Outcome::Cancelled { reason: None }), Status::Cancelled),
    ];
    for asking in [false, true] {
        for (end, status) in &ends {
            let mut world = World::new(spec());
            if asking {
                world.work(1, &ask("k", "?")).expect("asked");
                assert_eq!(world.status(), Status::InputRequired);
            }
            world.work(1, end).expect("ended");
            assert_eq!(world.status(), *status);
            let before = world.task().clone();
            for late in [done("late"), append("late"), ask("late", "?"), Command::Save { chunks: vec![], checkpoint: json!(1).into() }] {
                assert_eq!(world.work(1, &late), Err(Reject::Ended));
            }
            assert_eq!(world.call(&CANCEL), Ok(0), "cancelling an ended task changes nothing");
            assert_eq!(world.call(&answer(&["k"])), Ok(0));
            assert_eq!(*world.task(), before);
            assert_eq!(world.task().open_questions().count(), 0);
        }
    }
}

#[test]
fn questions_open_and_close_one_by_one_and_keys_live_for_ever() {
    let mut world = World::new(spec());
    world.work(1, &ask("a", "A")).expect("asked");
    world.work(1, &ask("b", "B")).expect("asked");
    assert_eq!(world.call(&answer(&["nobody-asked"])), Ok(0));
    assert_eq!(world.call(&answer(&["a", "a"])), Ok(1), "the first answer counts");
    assert_eq!(world.status(), Status::InputRequired);
    assert_eq!(world.task().open_questions().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["b"]);
    world.call(&answer(&["b"])).expect("answered");
    assert_eq!(world.status(), Status::Working);
    assert_eq!(world.work(1, &ask("a", "A")), Ok(0), "asking the same again is no new question");
    assert_eq!(world.work(1, &ask("a", "other")), Err(Reject::QuestionKeyReused("a".into())));
    assert_eq!(world.call(&answer(&["a"])), Ok(0), "an answer is given once");
}

#[test]
fn another_callers_task_does_not_exist() {
    let mut world = World::new(spec());
    let other = Authority::Caller(CallerId::new("somebody else"));
    for command in [CANCEL, answer(&["k"])] {
        assert_eq!(world.run(&other, &command), Err(Reject::NotFound));
    }
    assert_eq!(decide(None, &other, &CANCEL, Timestamp::default(), &LIMITS), Err(Reject::NotFound));
}

#[test]
fn an_interrupted_task_fails_unless_it_may_be_run_again() {
    let mut world = World::new(spec());
    assert_eq!(world.engine(&Command::recover(Epoch(1))), 0, "its own life goes on");
    world.engine(&Command::recover(Epoch(2)));
    assert_eq!(world.status(), Status::Failed);

    let hidden = Spec { on_interrupt: OnInterrupt::Retry, hidden: true, ..spec() };
    let mut world = World::new(hidden.clone());
    world.engine(&Command::recover(Epoch(2)));
    assert_eq!(world.status(), Status::Failed, "a caller that lost its call makes it again");
    let mut world = World::new(Spec { idempotency_key: Some("k".into()), ..hidden.clone() });
    world.engine(&Command::recover(Epoch(2)));
    assert_eq!(world.status(), Status::Working, "unless it can find this one");
    let mut world = World::new(hidden);
    world.work(1, &ask("a", "A")).expect("asked");
    world.engine(&Command::recover(Epoch(2)));
    assert_eq!(world.status(), Status::InputRequired);

    let mut world = World::new(Spec { on_interrupt: OnInterrupt::Retry, ..spec() });
    world.work(1, &Command::Save { chunks: vec![], checkpoint: json!(41).into() }).expect("saved");
    world.work(1, &ask("a", "A")).expect("asked");
    world.engine(&Command::recover(Epoch(2)));
    assert_eq!((world.task().attempt, wants(world.task()).attempt), (Attempt(2), Some(Attempt(2))));
    assert_eq!(world.task().checkpoint_version, Some(Version(2)), "the checkpoint outlives the attempt");
    assert_eq!(world.status(), Status::InputRequired, "so does the question");
    assert_eq!(world.work(1, &append("x")), Err(Reject::Stale(Attempt(1))));
    assert_eq!(world.work(2, &ask("a", "A")), Ok(0));
    world.engine(&Command::recover(Epoch(3)));
    world.engine(&Command::recover(Epoch(4)));
    assert_eq!(world.status(), Status::Failed, "three attempts are enough");
}

#[test]
fn an_attempt_has_its_time_and_waiting_for_answers_does_not_count() {
    let mut world = World::new(Spec { timeout_ms: Some(100), answer_timeout_ms: Some(5_000), ..spec() });
    world.now += 60;
    assert_eq!(world.engine(&Command::Tick), 0);
    world.work(1, &ask("a", "A")).expect("asked");
    world.now += 4_000;
    assert_eq!(world.engine(&Command::Tick), 0);
    world.call(&answer(&["a"])).expect("answered");
    world.now += 39;
    assert_eq!(world.engine(&Command::Tick), 0);
    world.now += 1;
    assert_eq!(world.engine(&Command::Tick), 1);
    let Some(Outcome::Failed(error)) = &world.task().outcome else { panic!("it should have timed out") };
    assert!(error.message.contains("timeout of 100ms"), "{}", error.message);

    let mut world = World::new(Spec { answer_timeout_ms: Some(5_000), ..spec() });
    world.work(1, &ask("a", "A")).expect("asked");
    world.now += 5_000;
    world.engine(&Command::Tick);
    assert_eq!(world.status(), Status::Failed, "a question does not stay open for ever");
}

#[test]
fn the_time_to_live_is_truthful_and_never_ends_live_work() {
    let mut world = World::new(spec());
    let ttl = |world: &World| world.task().ttl(Timestamp::from_millis(world.now)).expect("finite").as_millis();
    assert_eq!(ttl(&world), 1_000);
    world.now += 3_500;
    assert_eq!(world.engine(&Command::Tick), 0, "live work goes on");
    assert_eq!(ttl(&world), 4_000, "grows while it is alive");
    world.work(1, &done("x")).expect("ended");
    assert_eq!(ttl(&world), 4_500, "exact after its end");
    world.now += 999;
    assert_eq!(world.engine(&Command::Tick), 0);
    world.now += 1;
    assert_eq!(world.engine(&Command::Tick), 1);
    assert_eq!(world.log.last().map(|(_, event)| event), Some(&Event::Expired));
    assert_eq!(World::new(Spec { retention_ms: None, ..spec() }).task().ttl(Timestamp::default()), None);
}

#[test]
fn only_what_callers_see_changes_the_time_of_update() {
    let mut world = World::new(spec());
    world.now += 10;
    world.work(1, &append("x")).expect("appended");
    world.work(1, &Command::Save { chunks: vec![], checkpoint: json!(1).into() }).expect("saved");
    assert_eq!(world.task().updated_at, world.task().created_at);
    let say = Command::ReportStatus { message: Some("hi".into()), progress: None };
    assert_eq!(world.work(1, &say), Ok(1));
    assert_eq!(world.task().updated_at, Timestamp::from_millis(world.now));
    let changed = world.task().visible_version;
    assert_eq!(changed, world.task().version);
    assert_eq!(world.work(1, &say), Ok(0), "saying the same again is no news");
    world.work(1, &append("x")).expect("appended");
    assert_eq!(world.task().visible_version, changed, "output is no change");
}

#[test]
fn every_limit_is_reached_and_named() {
    let key = |result: Result<usize, Reject>| match result {
        Err(Reject::Limit { key, .. }) => key,
        other => panic!("expected a limit, got {other:?}"),
    };
    let mut world = World::new(spec());
    assert_eq!(key(world.work(1, &append(&"x".repeat(60)))), "chunk_bytes");
    assert_eq!(world.work(1, &Command::Append { chunks: vec![] }), Err(Reject::EmptyChunk));
    assert_eq!(world.work(1, &Command::Append { chunks: vec![Blocks::of(&[])] }), Err(Reject::EmptyChunk));
    for _ in 0..3 {
        world.work(1, &append("xxxxx")).expect("fits");
    }
    assert_eq!(key(world.work(1, &append("xxxxx"))), "task_output_bytes");
    let nan = Command::ReportStatus { message: None, progress: Some(Progress { done: f64::NAN, total: None }) };
    assert_eq!(world.work(1, &nan), Err(Reject::NotANumber), "it could not be stored");
    let long = Payload::from(json!("x".repeat(60)));
    assert_eq!(key(world.work(1, &Command::ReportStatus { message: Some("x".repeat(11).into()), progress: None })), "message_bytes");
    assert_eq!(key(world.work(1, &Command::Save { chunks: vec![], checkpoint: long.clone() })), "value_bytes");
    assert_eq!(key(world.work(1, &ask("k", &"x".repeat(60)))), "value_bytes");
    assert_eq!(key(world.call(&Command::Answer(vec![(QuestionKey::new("k"), long)]))), "value_bytes");
    for n in 0..4 {
        world.work(1, &ask(&n.to_string(), "?")).expect("fits");
    }
    assert_eq!(key(world.work(1, &ask("4", "?"))), "questions_per_task");
    let half = |k: &str| Command::Answer(vec![(QuestionKey::new(k), json!("x".repeat(50)).into())]);
    world.call(&half("0")).expect("fits");
    world.call(&half("1")).expect("fits");
    assert_eq!(key(world.call(&half("2"))), "question_bytes_per_task");
    assert_eq!(key(World::clone(&world).work(1, &ask("0123456789", &"x".repeat(40)))), "question_bytes_per_task");
    for n in 0..100 {
        world
            .work(1, &Command::Save { chunks: vec![], checkpoint: json!(n).into() })
            .expect("only the last is kept, so there may be any number");
    }
    let full = (0..100)
        .map(|n| world.work(1, &Command::ReportStatus { message: Some(format!("{n}").into()), progress: None }))
        .find(Result::is_err);
    assert_eq!(key(full.expect("there is an end")), "events_per_task");
    assert_eq!(world.work(1, &done(&"x".repeat(60))), Ok(1), "a task always ends");
    let Some(Outcome::Failed(error)) = &world.task().outcome else { panic!("the result is too large to keep") };
    assert!(error.message.contains("limits.result_bytes"), "{}", error.message);
    let chunks = vec![Blocks::of(&[text("xxxxx")]); 4];
    let new = NewTask { chunks, ..NewTask::new(Arc::new(spec()), json!({}).into(), Epoch(1)) };
    let made = decide(None, &Authority::Engine, &Command::Create(new), Timestamp::default(), &LIMITS);
    assert_eq!(key(made.map(|events| events.len())), "task_output_bytes");
}

#[test]
fn output_beyond_the_limit_drops_the_oldest_where_the_tool_says_so() {
    let mut world = World::new(Spec { overflow: Overflow::DropOldest, ..spec() });
    for n in 0..10 {
        world.work(1, &append("xxxxx")).expect("it is never refused");
        assert_eq!(world.task().dropped_bytes(&LIMITS), (32 * (n + 1u64)).saturating_sub(100), "what is kept stays within the limit");
    }
    assert_eq!(world.task().output, OutputTotals { next_seq: Seq(10), blocks: 10, bytes: 320 });
    assert!(matches!(world.work(1, &append(&"x".repeat(60))), Err(Reject::Limit { key: "chunk_bytes", .. })));
}

#[test]
fn output_and_checkpoint_are_written_together_or_not_at_all() {
    let mut world = World::new(spec());
    let save = |texts: &[&str]| Command::Save {
        chunks: texts.iter().map(|s| Blocks::of(&[text(s)])).collect(),
        checkpoint: json!(texts.len()).into(),
    };
    assert_eq!(world.work(1, &save(&["a", "b"])), Ok(3));
    assert_eq!(world.task().checkpoint_version, Some(world.task().version), "the checkpoint comes last");
    let before = world.task().clone();
    assert!(matches!(world.work(1, &save(&["xxxxx", "xxxxx", "xxxxx"])), Err(Reject::Limit { key: "task_output_bytes", .. })));
    assert_eq!(*world.task(), before);
}

#[test]
fn the_last_output_and_the_end_are_one_step() {
    let end = |texts: &[&str], outcome| Command::Finish { chunks: texts.iter().map(|s| Blocks::of(&[text(s)])).collect(), outcome };
    let completed = || Outcome::Completed { result: json!({}).into(), is_error: false };
    let mut world = World::new(spec());
    assert_eq!(world.work(1, &end(&["a"], completed())), Ok(2));
    assert_eq!((world.status(), world.task().output.next_seq), (Status::Completed, Seq(1)));
    let mut world = World::new(spec());
    assert_eq!(world.work(1, &end(&["xxxxx"; 4], completed())), Ok(1), "a task always ends");
    let Some(Outcome::Failed(error)) = &world.task().outcome else { panic!("output was lost, so it has not gone well") };
    assert!(error.message.contains("limits.task_output_bytes"), "{}", error.message);
    let mut world = World::new(spec());
    world.work(1, &end(&["xxxxx"; 4], Outcome::Cancelled { reason: None })).expect("a task always ends");
    assert_eq!(world.status(), Status::Cancelled);
}

#[test]
fn what_made_a_task_fail_is_the_last_of_its_output_where_that_is_its_result() {
    let streamed = |spec: Spec| World::new(Spec { output_is_result: true, ..spec });
    let said = |blocks: &Blocks| serde_json::from_str::<serde_json::Value>(blocks.as_str()).expect("JSON");
    let last = |world: &World| match &world.log[world.log.len() - 2].1 {
        Event::Appended { seq, first_block, blocks } => (seq.0, *first_block, said(blocks)),
        event => panic!("{event:?}"),
    };
    let end = |texts: &[&str], message: &str| {
        let error = RpcError { code: -32603, message: message.into(), data: None };
        Command::Finish { chunks: texts.iter().map(|s| Blocks::of(&[text(s)])).collect(), outcome: Outcome::Failed(error) }
    };
    let mut world = streamed(spec());
    world.work(1, &append("a")).expect("appended");
    assert_eq!(world.work(1, &end(&["b"], "no")), Ok(3));
    assert_eq!(last(&world), (2, 3, json!([{"type": "text", "text": "no"}])));
    assert_eq!((world.status(), world.task().output.blocks), (Status::Failed, 3));
    // However it failed.
    let mut world = streamed(Spec { timeout_ms: Some(1), ..spec() });
    world.work(1, &append("a")).expect("appended");
    world.now += 1;
    let limits = Limits { chunk_bytes: 1_000, task_output_bytes: 1_000, ..LIMITS };
    for command in [Command::Tick, Command::recover(Epoch(2))] {
        let events = decide(world.task.as_ref(), &Authority::Engine, &command, Timestamp::from_millis(world.now), &limits);
        let Ok([Event::Appended { seq: Seq(1), blocks, .. }, Event::Failed(error)]) = events.as_deref() else { panic!("{events:?}") };
        assert_eq!(said(blocks), json!([{"type": "text", "text": error.message}]));
    }
    // An error is all there is where nothing was written, and an error like any other where output is only output.
    assert_eq!(streamed(spec()).work(1, &end(&[], "no")), Ok(1));
    assert_eq!(World::new(spec()).work(1, &end(&["a"], "no")), Ok(2));
    let mut world = streamed(spec());
    assert_eq!(world.work(1, &end(&["xxxxx"; 3], "no")), Ok(4), "there is no room for it, and the task ends all the same");
    assert_eq!(world.status(), Status::Failed);
}

/// Stored bytes are a promise: what was written by an earlier release is read by a later one.
#[test]
fn stored_shapes_stay_as_they_are() {
    let full = Spec {
        on_interrupt: OnInterrupt::Retry,
        timeout_ms: Some(5),
        answer_timeout_ms: Some(6),
        idempotency_key: Some("i".into()),
        overflow: Overflow::DropOldest,
        hidden: true,
        ..spec()
    };
    let followed = Spec {
        outbox: Some(OutboxTarget { session: SessionId::new("s"), output: true }),
        origin: Some(json!({"o": 1}).into()),
        output_is_result: true,
        accepts: AcceptedQuestions { sampling: true, sampling_tools: true, ..AcceptedQuestions::default() },
        ..spec()
    };
    let traced = Spec { trace: TraceContext::read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Some("a=1")), ..spec() };
    let events = [
        (
            Event::Created { spec: Arc::new(traced), arguments: json!({}).into(), epoch: Epoch(1), continuation: None, spent_ms: 0 },
            r#"{"created":{"spec":{"caller":"me","tool":"tool","on_interrupt":"fail","attempts_max":3,"retention_ms":1000,"accepts":{"elicit_form":false,"elicit_url":false,"sampling":false,"roots":false},"trace":{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","tracestate":"a=1"}},"request":{},"epoch":1}}"#,
        ),
        (
            Event::Created { spec: Arc::new(followed), arguments: json!({}).into(), epoch: Epoch(1), continuation: None, spent_ms: 0 },
            r#"{"created":{"spec":{"caller":"me","tool":"tool","on_interrupt":"fail","attempts_max":3,"retention_ms":1000,"accepts":{"elicit_form":false,"elicit_url":false,"sampling":true,"sampling_tools":true,"roots":false},"follower":{"session":"s","output":true},"origin":{"o":1},"output_is_result":true},"request":{},"epoch":1}}"#,
        ),
        (
            Event::Created {
                spec: Arc::new(full),
                arguments: json!({"a": 1}).into(),
                epoch: Epoch(1),
                continuation: Some(json!(0).into()),
                spent_ms: 7,
            },
            r#"{"created":{"spec":{"caller":"me","tool":"tool","on_interrupt":"retry","attempts_max":3,"retention_ms":1000,"timeout_ms":5,"input_timeout_ms":6,"overflow":"drop_oldest","idempotency_key":"i","accepts":{"elicit_form":false,"elicit_url":false,"sampling":false,"roots":false},"hidden":true},"request":{"a":1},"epoch":1,"carried":0,"spent_ms":7}}"#,
        ),
        (Event::Started { attempt: Attempt(2), epoch: Epoch(3) }, r#"{"started":{"attempt":2,"epoch":3}}"#),
        (
            Event::Appended { seq: Seq(0), first_block: 1, blocks: Blocks::of(&[text("x")]) },
            r#"{"appended":{"seq":0,"first_block":1,"blocks":[{"text":"x","type":"text"}]}}"#,
        ),
        (
            Event::StatusReported { message: Some("m".into()), progress: Some(Progress { done: 1.5, total: None }) },
            r#"{"said":{"message":"m","progress":{"done":1.5}}}"#,
        ),
        (Event::Asked { key: QuestionKey::new("k"), request: json!({}).into() }, r#"{"asked":{"key":"k","request":{}}}"#),
        (Event::Answered { key: QuestionKey::new("k"), answer: json!({}).into() }, r#"{"answered":{"key":"k","answer":{}}}"#),
        (Event::Saved { checkpoint: json!(1).into() }, r#"{"saved":{"checkpoint":1}}"#),
        (Event::Completed { result: json!({}).into(), is_error: false }, r#"{"completed":{"result":{},"is_error":false}}"#),
        (
            Event::Failed(RpcError { code: -1, message: "m".into(), data: Some(json!(2).into()) }),
            r#"{"failed":{"code":-1,"message":"m","data":2}}"#,
        ),
        (Event::Cancelled { reason: None }, r#"{"cancelled":{}}"#),
        (Event::Joined { epoch: Epoch(2), gone: vec![] }, r#"{"joined":{"epoch":2}}"#),
        (Event::Joined { epoch: Epoch(2), gone: vec![Epoch(1)] }, r#"{"joined":{"epoch":2,"gone":[1]}}"#),
        (Event::Left { epoch: Epoch(2) }, r#"{"left":{"epoch":2}}"#),
        (Event::Touched, r#""touched""#),
        (Event::Expired, r#""expired""#),
    ];
    for (event, stored) in events {
        assert_eq!(serde_json::to_string(&event).expect("writes"), stored);
        assert_eq!(serde_json::from_str::<Event>(stored).expect("reads"), event);
    }
}

#[test]
fn a_task_knows_the_nodes_whose_calls_wait_for_it() {
    let join = |epoch: u64, shared: bool, gone: &[u64]| {
        let gone = gone.iter().copied().map(Epoch).collect();
        Command::Join { epoch: Epoch(epoch), gone, shared }
    };
    let leave = |epoch: u64| Command::Leave { epoch: Epoch(epoch) };
    let abandon = |epoch: u64| Command::Abandon { epoch: Epoch(epoch), reason: "hung up".into() };
    let new = |hidden: bool| World::new(Spec { linger_key: Some("same".into()), hidden, ..spec() });
    // One call at a time has it, unless calls share it.
    let mut world = new(true);
    assert_eq!(world.call(&join(2, false, &[])), Err(Reject::Awaited), "the call that made it waits");
    assert_eq!(world.engine(&leave(2)), 0, "who does not wait does not leave");
    assert_eq!((world.engine(&leave(1)), world.task().left_at()), (1, Some(Timestamp::from_millis(1_000))));
    assert_eq!(world.call(&join(2, false, &[])), Ok(1));
    assert_eq!(world.task().left_at(), None);
    assert_eq!(world.call(&join(3, false, &[])), Err(Reject::Awaited));
    assert_eq!(world.call(&join(3, false, &[2])), Ok(1), "the node of the call that waited is gone");
    assert_eq!(world.call(&join(4, true, &[])), Ok(1), "calls that share it");
    assert_eq!(world.call(&join(4, true, &[])), Ok(0));
    // It stops when the last of them does not want it any longer.
    assert_eq!((world.call(&abandon(3)), world.status()), (Ok(1), Status::Working));
    assert_eq!((world.call(&abandon(4)), world.status()), (Ok(1), Status::Cancelled));
    assert_eq!(world.call(&join(5, true, &[])), Err(Reject::Ended), "a cancelled task has no outcome to fetch");
    // Its outcome is fetched once, by a call that nobody has answered.
    let mut world = new(true);
    world.work(1, &done("it")).expect("done");
    assert_eq!(world.call(&join(2, true, &[])), Err(Reject::Ended), "the call that waited may have it");
    assert_eq!(world.engine(&leave(1)), 1);
    assert_eq!(world.call(&join(2, false, &[])), Ok(1));
    assert_eq!(world.call(&join(3, false, &[])), Err(Reject::Ended));
    // A caller that has the id of the task needs no other way to it, unless its call ended without an answer.
    let mut world = new(false);
    assert_eq!(world.call(&join(2, false, &[1])), Err(Reject::Awaited));
    world.engine(&leave(1));
    // Whoever asks for it is noted, but not each time.
    world.now += 999;
    assert_eq!(world.engine(&Command::Touch), 0);
    world.now += 1;
    assert_eq!((world.engine(&Command::Touch), world.task().left_at()), (1, Some(Timestamp::from_millis(2_000))));
    assert_eq!(world.call(&join(2, false, &[])), Ok(1));
    world.now += 5_000;
    assert_eq!(world.engine(&Command::Touch), 0, "a call waits for it");
}

#[test]
fn what_waits_for_a_slot_goes_to_one_other_node_and_not_once_it_has_begun() {
    let take = |from, epoch| Command::TakeQueued { from: Epoch(from), epoch: Epoch(epoch), after: Duration::from_secs(1) };
    let mut world = World::new(spec());
    assert_eq!(world.engine(&take(1, 2)), 0, "it runs");
    world.work(1, &Command::Queue).expect("queued");
    world.now += 999;
    assert_eq!(world.engine(&take(1, 2)), 0, "its own node is the first that may begin it");
    world.now += 1;
    assert_eq!((world.engine(&take(1, 2)), world.engine(&take(1, 3))), (2, 0), "one gets it");
    assert_eq!((world.task().epoch, world.task().attempt), (Epoch(2), Attempt(2)));
    assert_eq!(world.work(1, &Command::Dequeue), Err(Reject::Stale(Attempt(1))), "it cannot begin where it was");
    assert_eq!(world.engine(&take(2, 3)), 0, "its wait began again");
    world.work(2, &Command::Dequeue).expect("it begins");
    world.now += 5_000;
    assert_eq!(world.engine(&take(2, 3)), 0, "it has begun");
}

#[derive(Debug, Clone)]
enum Step {
    Work(u64, Command),
    Call(bool, Command),
    Engine(Command),
    Wait(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let keys = prop_oneof![Just("a"), Just("b"), Just("c")];
    let work = prop_oneof![
        4 => "[a-z]{0,40}".prop_map(|s| append(&s)),
        2 => ("[a-z]{0,12}", any::<bool>()).prop_map(|(s, said)| Command::ReportStatus {
            message: said.then(|| s.as_str().into()),
            progress: Some(Progress { done: s.len() as f64, total: None }),
        }),
        3 => (keys.clone(), any::<bool>()).prop_map(|(key, other)| ask(key, if other { "x" } else { "y" })),
        2 => any::<u8>().prop_map(|n| Command::Save { chunks: vec![], checkpoint: json!(n).into() }),
        1 => Just(Command::Queue),
        1 => Just(Command::Dequeue),
        1 => "[a-z]{0,70}".prop_map(|s| done(&s)),
    ];
    let call = prop_oneof![
        4 => prop::collection::vec(keys, 0..4).prop_map(|keys| answer(&keys)),
        1 => Just(CANCEL),
        1 => (1..6u64, any::<bool>(), prop::collection::vec((1..6u64).prop_map(Epoch), 0..3))
            .prop_map(|(epoch, shared, gone)| Command::Join { epoch: Epoch(epoch), gone, shared }),
        1 => (1..6u64).prop_map(|epoch| Command::Abandon { epoch: Epoch(epoch), reason: "not wanted".into() }),
    ];
    let epoch = || (1..6u64).prop_map(Epoch);
    let engine = prop_oneof![
        2 => Just(Command::Tick),
        1 => epoch().prop_map(Command::recover),
        1 => epoch().prop_map(|epoch| Command::Leave { epoch }),
        1 => Just(Command::Touch),
        1 => (epoch(), epoch()).prop_map(|(from, epoch)| Command::TakeQueued { from, epoch, after: Duration::from_millis(100) }),
    ];
    let step = prop_oneof![
        8 => (1..4u64, work).prop_map(|(attempt, command)| Step::Work(attempt, command)),
        4 => (any::<bool>(), call).prop_map(|(owner, command)| Step::Call(owner, command)),
        2 => engine.prop_map(Step::Engine),
        3 => (0..400i64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..60)
}

fn check_log(world: &World, owner_retries: bool) {
    let mut seqs = 0;
    let mut blocks = 0;
    let mut ended = false;
    let mut attempt = 1;
    let mut is_queued = false;
    let mut asked: BTreeMap<&QuestionKey, bool> = BTreeMap::new();
    for (_, event) in &world.log {
        let may_follow = matches!(event, Event::Expired | Event::Joined { .. } | Event::Left { .. });
        assert!(!ended || may_follow, "nothing happens after the end but that its outcome is fetched: {event:?}");
        match event {
            Event::Appended { seq, first_block, blocks: written } => {
                assert_eq!((seq.0, *first_block), (seqs, blocks + 1), "chunks and blocks are numbered without a gap");
                assert!(written.count() > 0);
                seqs += 1;
                blocks += written.count();
            }
            Event::Asked { key, .. } => assert_eq!(asked.insert(key, false), None, "a key is never used again"),
            Event::Answered { key, .. } => assert_eq!(asked.insert(key, true), Some(false), "answered once, after being asked"),
            Event::Started { attempt: next, .. } => {
                assert!(owner_retries || is_queued, "run again only where allowed, or where nothing has begun");
                attempt += 1;
                assert_eq!(next.0, attempt);
            }
            Event::Queued => is_queued = true,
            Event::Dequeued => is_queued = false,
            event => ended |= event.outcome().is_some(),
        }
    }
    assert_eq!(world.task().queued_at.is_some(), is_queued && !ended);
    assert_eq!(world.task().ended.is_some(), ended);
    assert_eq!(wants(world.task()).attempt, (!ended).then_some(Attempt(attempt)), "an open task has its run, an ended one none");
}

/// What a task takes in a store that has a row for each entry of its log, of which of all checkpoints only the last is kept.
fn taken(world: &World) -> u64 {
    const ROW_BYTES: usize = 48;
    let last = world.log.iter().rposition(|(_, event)| matches!(event, Event::Saved { .. }));
    let kept = world.log.iter().enumerate().filter(|(at, (_, event))| Some(*at) == last || !matches!(event, Event::Saved { .. }));
    let rows = kept.map(|(_, (_, event))| ROW_BYTES + serde_json::to_string(event).expect("writes").len()).sum::<usize>();
    (rows + serde_json::to_string(world.task()).expect("writes").len()) as u64
}

#[test]
fn what_a_task_takes_is_known_and_shrinks_only_with_what_is_not_kept() {
    let size = |world: &World| world.task().stored_bytes(&LIMITS);
    let mut world = World::new(spec());
    let born = size(&world);
    world.work(1, &append("xxxxx")).expect("written");
    let written = size(&world);
    assert!(written >= born + 32, "what it writes counts");
    let save = |n: usize| Command::Save { chunks: vec![], checkpoint: json!("x".repeat(n)).into() };
    world.work(1, &save(40)).expect("saved");
    let saved = size(&world);
    assert!(saved >= written + 40);
    for _ in 0..20 {
        world.work(1, &save(40)).expect("saved");
        assert_eq!(size(&world), saved, "only the last checkpoint is kept");
    }
    world.work(1, &save(10)).expect("saved");
    assert_eq!(size(&world), saved - 30);
    world.work(1, &ask("k", &"q".repeat(20))).expect("asked");
    world.call(&answer(&["k"])).expect("answered");
    let before = size(&world);
    world.work(1, &done(&"x".repeat(40))).expect("ended");
    assert!(size(&world) >= before + 40, "its end counts, and it still counts after its end");

    let mut world = World::new(Spec { overflow: Overflow::DropOldest, ..spec() });
    let born = size(&world);
    for _ in 0..100 {
        world.work(1, &append("xxxxx")).expect("it is never refused");
    }
    let kept = size(&world) - born;
    assert!((100..400).contains(&kept), "what is dropped does not count: {kept}");
    let lower = Limits { task_output_bytes: 50, ..LIMITS };
    assert!(world.task().stored_bytes(&lower) < size(&world));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn random_commands_never_break_an_invariant(steps in steps(), retry in any::<bool>(), timeout in prop::option::of(1..500u64)) {
        let on_interrupt = if retry { OnInterrupt::Retry } else { OnInterrupt::Fail };
        let mut world = World::new(Spec { on_interrupt, timeout_ms: timeout, answer_timeout_ms: timeout, linger_key: Some("k".into()), ..spec() });
        for step in steps {
            if matches!(world.log.last(), Some((_, Event::Expired))) {
                break;
            }
            let before = world.task().clone();
            let result = match &step {
                Step::Work(attempt, command) => {
                    let current = before.attempt.0 == *attempt && before.ended.is_none();
                    let result = world.work(*attempt, command);
                    prop_assert!(current || result.is_err(), "a stale attempt or an ended task takes nothing");
                    result
                }
                Step::Call(owner, command) => {
                    let caller = CallerId::new(if *owner { "me" } else { "other" });
                    let result = world.run(&Authority::Caller(caller), command);
                    prop_assert!(*owner || result == Err(Reject::NotFound));
                    result
                }
                Step::Engine(command) => Ok(world.engine(command)),
                Step::Wait(ms) => {
                    world.now += ms;
                    Ok(0)
                }
            };
            if !matches!(result, Ok(1..)) {
                prop_assert_eq!(&before, world.task(), "what is refused changes nothing");
            }
            let task = world.task();
            let now = Timestamp::from_millis(world.now);
            prop_assert_eq!(before.status().is_terminal() && task.status() != before.status(), false);
            prop_assert_eq!(task.status() == Status::InputRequired, task.open_questions().next().is_some());
            prop_assert!(task.output.bytes <= LIMITS.task_output_bytes);
            prop_assert!(task.created_at.after(task.ttl(now).expect("finite")) >= now || task.ended.is_some());
            prop_assert!(task.ended.is_some() || task.ttl(now) <= Some(now.since(task.created_at) + Duration::from_millis(1_000)));
        }
        check_log(&world, retry);

        let mut again = None;
        for (at, event) in &world.log {
            apply(&mut again, event, *at);
        }
        prop_assert_eq!(&again, &world.task, "the log alone makes the task");

        let (counted, taken) = (world.task().stored_bytes(&LIMITS), taken(&world));
        prop_assert!(counted <= 3 * taken && taken <= 2 * counted, "it takes {taken} bytes, and is counted as {counted}");

        let stored = serde_json::to_string(world.task()).expect("writes");
        let mut read: Task = serde_json::from_str(&stored).expect("reads");
        prop_assert_eq!((&read.outcome, read.output), (&None, OutputTotals::default()));
        read.outcome = world.task().outcome.clone();
        read.output = world.task().output;
        prop_assert_eq!(&read, world.task(), "the stored head is the task");
    }
}
