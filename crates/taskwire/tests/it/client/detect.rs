//! How a client finds out which era a server is of (digest D2), over HTTP and on standard input and output.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use taskwire::{
    client::{Client, Era, Error, Options, Status, Target},
    clock::{Clock, ManualClock},
};

use super::script::{MS, SECOND, ScriptedServer, as_time_passes, complete, completed, discover_result, everything, task};
use crate::kit::{TempDir, manual_clock, with_timeout};

/// What a server says to the first request.
#[derive(Debug, Clone)]
enum Says {
    Result(Value),
    Error(u16, i64, Value),
    /// An error that does not say what it is the answer to.
    Nameless(u16, i64),
    Text(u16, &'static str, &'static str),
    Empty(u16),
}

async fn says(script: &ScriptedServer, says: Says) {
    let asked = script.expect("server/discover").await;
    match says {
        Says::Result(result) => asked.result(result).await,
        Says::Error(status, code, data) => asked.error(status, code, "no", data).await,
        Says::Nameless(status, code) => {
            let error = json!({"code": code, "message": "Bad Request: Unsupported protocol version"});
            asked.json(status, json!({"jsonrpc": "2.0", "id": null, "error": error})).await;
        }
        Says::Text(status, kind, body) => asked.text(status, kind, body).await,
        Says::Empty(status) => asked.empty(status).await,
    }
}

/// What a server of 2025-11-25 says to `initialize`.
fn initialized() -> Value {
    json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "old", "version": "0.1"}})
}

/// Plays a server of 2025-11-25 that has neither sessions nor streams, from the first message of the session on.
async fn legacy(script: &ScriptedServer) {
    script.always_empty("GET", 405);
    let asked = script.expect("initialize").await;
    assert_eq!(asked.params()["protocolVersion"], "2025-11-25");
    assert!(asked.meta().is_null(), "nothing of the modern era is in it: {asked:?}");
    asked.result(initialized()).await;
    script.expect("notifications/initialized").await.empty(202).await;
}

async fn connects(script: &ScriptedServer) -> Result<Client, Error> {
    script.connects(script.options()).await
}

/// Connects to a server that says this first, and is not to be asked for a session.
async fn fails(first: Says) -> Error {
    let script = ScriptedServer::start().await;
    let (client, ()) = tokio::join!(connects(&script), says(&script, first.clone()));
    assert_eq!(script.seen(), ["server/discover"], "{first:?}");
    client.map(drop).expect_err("an error")
}

fn other_version() -> Value {
    json!({"supported": ["2027-01-01"], "requested": "2026-07-28"})
}

#[tokio::test]
async fn a_discovery_makes_a_server_modern() {
    let script = ScriptedServer::start().await;
    let client = script.client().await;
    assert_eq!(client.server_info().era, Era::Modern);
    assert_eq!(script.seen(), ["server/discover"]);
}

#[tokio::test]
async fn a_discovery_may_come_as_events() {
    let script = ScriptedServer::start().await;
    let answering = async { script.expect("server/discover").await.sse().await.result(discover_result(everything())).await };
    let (client, ()) = tokio::join!(connects(&script), answering);
    assert_eq!(client.expect("a connection").server_info().era, Era::Modern);
}

#[tokio::test]
async fn whatever_is_no_modern_answer_makes_a_server_legacy() {
    let answers = [
        Says::Result(json!({})),
        Says::Result(json!({"tools": []})),
        Says::Error(200, -32601, Value::Null),
        Says::Error(404, -32601, Value::Null),
        Says::Error(200, -32602, json!({"why": "initialize first"})),
        Says::Error(400, -32600, Value::Null),
        Says::Error(400, -32603, Value::Null),
        // The codes of drafts mean nothing without their data.
        Says::Error(400, -32003, Value::Null),
        Says::Error(400, -32004, Value::Null),
        Says::Nameless(400, -32000),
        Says::Text(404, "text/html", "<html>nothing here</html>"),
        Says::Text(400, "text/plain", "Bad Request"),
        Says::Text(400, "application/json", "{\"error\": \"no session\"}"),
        Says::Empty(400),
        Says::Empty(404),
        Says::Empty(405),
    ];
    for answer in answers {
        let script = ScriptedServer::start().await;
        let playing = async {
            says(&script, answer.clone()).await;
            legacy(&script).await;
        };
        let (client, ()) = tokio::join!(connects(&script), playing);
        let peer = client.unwrap_or_else(|error| panic!("{answer:?}: {error}")).server_info();
        assert_eq!((peer.era, peer.protocol.as_str(), peer.name.as_str()), (Era::Legacy, "2025-11-25", "old"), "{answer:?}");
        assert_eq!(script.seen()[..2], ["server/discover", "initialize"], "{answer:?}");
    }
}

#[tokio::test]
async fn a_session_that_the_first_answer_names_is_none() {
    let script = ScriptedServer::start().await;
    let playing = async {
        script.expect("server/discover").await.with("Mcp-Session-Id", "of-the-probe").result(json!({})).await;
        let asked = script.expect("initialize").await;
        assert_eq!(asked.header("mcp-session-id"), None);
        asked.result(initialized()).await;
        let asked = script.expect("notifications/initialized").await;
        assert_eq!(asked.header("mcp-session-id"), None);
        asked.empty(202).await;
    };
    script.always_empty("GET", 405);
    let (client, ()) = tokio::join!(connects(&script), playing);
    assert_eq!(client.expect("a connection").server_info().era, Era::Legacy);
}

#[tokio::test]
async fn a_server_of_another_modern_version_is_not_asked_for_a_session() {
    let answers = [
        Says::Error(400, -32022, other_version()),
        Says::Error(200, -32022, other_version()),
        // A draft had another number for it.
        Says::Error(400, -32004, other_version()),
        Says::Result(json!({"resultType": "complete", "supportedVersions": ["2027-01-01"], "capabilities": {}})),
    ];
    for answer in answers {
        let error = fails(answer.clone()).await;
        assert!(matches!(&error, Error::Version { supported, .. } if supported == "2027-01-01"), "{answer:?}: {error:?}");
    }
}

#[tokio::test]
async fn a_server_that_needs_more_of_its_client_is_not_asked_for_a_session() {
    let data = json!({"requiredCapabilities": {"sampling": {}}});
    // -32003 is the code of a draft: the data say what it means.
    for code in [-32021, -32003] {
        let error = fails(Says::Error(400, code, data.clone())).await;
        assert!(matches!(&error, Error::Capability { needed, .. } if needed == "sampling"), "{code}: {error:?}");
    }
}

#[tokio::test]
async fn a_server_that_misses_headers_is_not_asked_for_a_session() {
    let error = fails(Says::Error(400, -32020, Value::Null)).await;
    assert!(matches!(&error, Error::Rpc(error) if error.code == -32020), "{error:?}");
}

#[tokio::test]
async fn who_is_not_let_in_learns_nothing_about_the_era() {
    for status in [401, 403] {
        let error = fails(Says::Empty(status)).await;
        assert!(matches!(error, Error::Unauthorized { .. }), "{status}: {error:?}");
    }
    let error = fails(Says::Text(500, "text/plain", "out of order")).await;
    assert!(matches!(error, Error::Refused { status: 500, .. }), "{error:?}");
}

#[tokio::test]
async fn a_server_that_is_not_ready_is_asked_again() {
    let script = ScriptedServer::start().await;
    let playing = async {
        script.expect("server/discover").await.empty(503).await;
        script.expect("server/discover").await.cut();
        script.discover(everything()).await;
    };
    let both = async { tokio::join!(connects(&script), playing) };
    let (client, ()) = script.as_time_passes("the connection", 50 * MS, both).await;
    assert_eq!(client.expect("a connection").server_info().era, Era::Modern);
    assert_eq!(script.count("initialize"), 0);
}

#[tokio::test]
async fn a_server_that_refuses_the_version_it_speaks_is_asked_once_more() {
    let script = ScriptedServer::start().await;
    let data = json!({"supported": ["2026-07-28"], "requested": "2026-07-28"});
    let playing = async {
        says(&script, Says::Error(400, -32022, data.clone())).await;
        script.discover(everything()).await;
    };
    let (client, ()) = tokio::join!(connects(&script), playing);
    assert_eq!(client.expect("a connection").server_info().era, Era::Modern);
}

#[tokio::test]
async fn a_server_that_always_refuses_the_version_it_speaks_is_given_up() {
    async fn refuses(script: &ScriptedServer) -> Infallible {
        let data = json!({"supported": ["2026-07-28"], "requested": "2026-07-28"});
        loop {
            says(script, Says::Error(400, -32022, data.clone())).await;
        }
    }
    let script = ScriptedServer::start().await;
    let error = tokio::select! {
        client = connects(&script) => client.map(drop).expect_err("an error"),
        never = refuses(&script) => match never {},
    };
    assert!(matches!(error, Error::Protocol { .. } | Error::Version { .. }), "{error:?}");
    assert_eq!(script.count("initialize"), 0);
}

#[tokio::test]
async fn who_knows_the_era_does_not_ask() {
    let script = ScriptedServer::start().await;
    let options = Options { era: Some(Era::Legacy), ..script.options() };
    let (client, ()) = tokio::join!(script.connects(options), legacy(&script));
    assert_eq!(client.expect("a connection").server_info().era, Era::Legacy);
    assert_eq!(script.count("server/discover"), 0);
}

#[tokio::test]
async fn who_wants_the_modern_era_gets_no_other() {
    let script = ScriptedServer::start().await;
    let options = Options { era: Some(Era::Modern), ..script.options() };
    let (client, ()) = tokio::join!(script.connects(options), says(&script, Says::Error(404, -32601, Value::Null)));
    let error = client.map(drop).expect_err("an error");
    assert!(error.to_string().contains(&script.url()), "{error}");
    assert_eq!(script.seen(), ["server/discover"]);
}

#[tokio::test]
async fn the_era_of_an_origin_is_remembered() {
    let script = ScriptedServer::start().await;
    let playing = async {
        says(&script, Says::Empty(404)).await;
        legacy(&script).await;
    };
    let (first, ()) = tokio::join!(connects(&script), playing);
    first.expect("a connection");
    let (second, ()) = tokio::join!(connects(&script), legacy(&script));
    assert_eq!(second.expect("a connection").server_info().era, Era::Legacy);
    assert_eq!(script.count("server/discover"), 1, "{:?}", script.seen());
}

#[tokio::test]
async fn an_era_that_proves_wrong_is_found_out_anew() {
    let script = ScriptedServer::start().await;
    let playing = async {
        says(&script, Says::Empty(404)).await;
        legacy(&script).await;
    };
    tokio::join!(connects(&script), playing).0.expect("a connection");
    // The server was replaced by a modern one.
    let playing = async {
        let data = json!({"supported": ["2026-07-28"], "requested": "2025-11-25"});
        script.expect("initialize").await.error(400, -32022, "no sessions here", data).await;
        script.discover(everything()).await;
    };
    let (client, ()) = tokio::join!(connects(&script), playing);
    assert_eq!(client.expect("a connection").server_info().era, Era::Modern);
}

// On standard input and output.

/// A program that plays scripted steps.
struct Program {
    dir: TempDir,
    clock: ManualClock,
}

impl Program {
    fn new(steps: Value) -> Self {
        let dir = TempDir::new();
        std::fs::write(dir.path().join("script.json"), steps.to_string()).expect("writable");
        Self { dir, clock: manual_clock() }
    }

    fn target(&self) -> Target {
        let words = [binary(), self.dir.path().join("script.json"), self.dir.path().join("log")];
        Target::Command(words.iter().map(|word| word.to_str().expect("UTF-8").to_owned()).collect())
    }

    fn options(&self) -> Options {
        Options { clock: Arc::new(self.clock.clone()), ..Options::default() }
    }

    /// Connects, while time stands still: a program may take a while to begin.
    async fn connects(&self) -> Result<Client, Error> {
        with_timeout("the connection", Client::connect(self.target(), self.options())).await
    }

    async fn as_time_passes<T>(&self, what: &str, step: Duration, future: impl Future<Output = T>) -> T {
        as_time_passes(&self.clock, what, step, future).await
    }

    /// The methods of all that it heard.
    fn heard(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        let messages = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        messages.map(|message| message["method"].as_str().unwrap_or("response").to_owned()).collect()
    }
}

/// The example beside this test: `…/target/<profile>/deps/it-…` → `…/target/<profile>/examples/scripted_stdio`.
fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.parent().and_then(Path::parent).expect("a test lies in `target/<profile>/deps`");
    let path = profile.join("examples").join(format!("scripted_stdio{}", std::env::consts::EXE_SUFFIX));
    let missing = "is not there: `cargo build -p taskwire --example scripted_stdio`, in the profile of this test, makes it";
    assert!(path.is_file(), "{} {missing}", path.display());
    path
}

fn discover(answer: Value) -> Value {
    let mut step = json!({"on": "server/discover"});
    for (key, value) in answer.as_object().expect("members") {
        step[key] = value.clone();
    }
    step
}

fn error(code: i64, data: Value) -> Value {
    json!({"error": {"code": code, "message": "no", "data": data}})
}

#[tokio::test]
async fn a_program_that_tells_what_it_is_is_modern() {
    let program = Program::new(json!([discover(json!({"result": discover_result(everything())}))]));
    let client = program.connects().await.expect("a connection");
    assert_eq!((client.server_info().era, client.server_info().name.as_str()), (Era::Modern, "scripted"));
    assert_eq!(program.heard(), ["server/discover"]);
    with_timeout("the end of the program", client.close()).await;
}

#[tokio::test]
async fn what_a_program_prints_besides_messages_is_passed_over() {
    let step = discover(json!({"line": "Listening on standard input", "result": discover_result(everything())}));
    let client = Program::new(json!([step])).connects().await.expect("a connection");
    assert_eq!(client.server_info().era, Era::Modern);
}

#[tokio::test]
async fn any_other_error_makes_a_program_legacy() {
    let answers = [
        error(-32601, Value::Null),
        error(-32602, Value::Null),
        error(-32600, Value::Null),
        error(-32002, Value::Null),
        error(-32004, Value::Null),
        json!({"result": {}}),
    ];
    for answer in answers {
        let program = Program::new(json!([discover(answer.clone()), {"on": "initialize", "result": initialized()}]));
        let client = program.connects().await.unwrap_or_else(|error| panic!("{answer}: {error}"));
        assert_eq!((client.server_info().era, client.server_info().name.as_str()), (Era::Legacy, "old"), "{answer}");
        assert_eq!(program.heard()[..2], ["server/discover", "initialize"], "{answer}");
    }
}

#[tokio::test]
async fn silence_makes_a_program_legacy_after_the_time_of_a_probe() {
    let program = Program::new(json!([{"on": "initialize", "result": initialized()}]));
    let begun = program.clock.now();
    let connecting = Client::connect(program.target(), program.options());
    let client = program.as_time_passes("the connection", 20 * MS, connecting).await.expect("a connection");
    let passed = program.clock.now().since(begun);
    assert!(passed >= 5 * SECOND, "{passed:?}");
    assert_eq!(client.server_info().era, Era::Legacy);
    assert_eq!(program.heard()[..2], ["server/discover", "initialize"]);
}

#[tokio::test]
async fn a_program_of_another_modern_version_is_not_asked_for_a_session() {
    for code in [-32022, -32004] {
        let program = Program::new(json!([discover(error(code, other_version())), {"on": "initialize", "result": initialized()}]));
        let error = program.connects().await.map(drop).expect_err("an error");
        assert!(matches!(&error, Error::Version { supported, .. } if supported == "2027-01-01"), "{code}: {error:?}");
        assert_eq!(program.heard(), ["server/discover"]);
    }
}

#[tokio::test]
async fn a_program_that_needs_more_of_its_client_is_not_asked_for_a_session() {
    for code in [-32021, -32003] {
        let needs = error(code, json!({"requiredCapabilities": {"sampling": {}}}));
        let program = Program::new(json!([discover(needs), {"on": "initialize", "result": initialized()}]));
        let error = program.connects().await.map(drop).expect_err("an error");
        assert!(matches!(&error, Error::Capability { .. }), "{code}: {error:?}");
        assert_eq!(program.heard(), ["server/discover"]);
    }
}

/// Connects to a program that does not serve, while time stands still; the message of the error.
async fn connect_error(words: &[&str], era: Option<Era>) -> String {
    let options = Options { clock: Arc::new(manual_clock()), era, ..Options::default() };
    let target = Target::Command(words.iter().map(|word| (*word).to_owned()).collect());
    let error = with_timeout("the error", Client::connect(target, options)).await.map(drop).expect_err("an error");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    error.to_string()
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_told_at_once() {
    for era in [None, Some(Era::Modern), Some(Era::Legacy)] {
        let message = connect_error(&["/nowhere/no-such-program"], era).await;
        assert!(message.contains("`/nowhere/no-such-program` cannot be started"), "{era:?}: {message}");
    }
}

#[tokio::test]
async fn a_program_that_ends_is_told_at_once_with_how_and_with_its_last_lines() {
    let script = "echo early >&2; for n in 1 2 3 4 5; do echo \"line $n\" >&2; done; exit 3";
    for era in [None, Some(Era::Modern), Some(Era::Legacy)] {
        let message = connect_error(&["sh", "-c", script], era).await;
        let expected = ": the server ended with exit code 3; its last lines:\n  line 1\n  line 2\n  line 3\n  line 4\n  line 5";
        assert!(message.starts_with("cannot reach stdio:sh -c ") && message.ends_with(expected), "{era:?}: {message}");
    }
    let message = connect_error(&["sh", "-c", "echo no module named mcp >&2; kill -9 $$"], None).await;
    assert!(message.ends_with(": the server ended by signal 9; it last said: no module named mcp"), "{message}");
    let message = connect_error(&["sh", "-c", "exit 0"], None).await;
    assert!(message.ends_with(": the server ended with exit code 0"), "{message}");
}

#[tokio::test]
async fn a_program_that_ends_whenever_it_is_asked_is_given_up() {
    let modern = discover(json!({"result": discover_result(everything())}));
    let ends = json!({"on": "tasks/get", "exit": true});
    let program = Program::new(json!([modern, modern, modern, modern, ends, ends, ends]));
    let client = program.connects().await.expect("a connection");
    let error = program.as_time_passes("the error", 5 * MS, client.task("t1")).await.map(drop).expect_err("an error");
    assert!(error.to_string().contains("the server ended with exit code 0"), "{error}");
    assert_eq!(program.heard().iter().filter(|method| *method == "tasks/get").count(), 3);
}

#[tokio::test]
async fn a_program_that_has_ended_is_started_again_and_asked_again() {
    let program = Program::new(json!([
        discover(json!({"result": discover_result(everything())})),
        discover(json!({"result": discover_result(everything())})),
        {"on": "tasks/get", "exit": true},
        {"on": "tasks/get", "result": complete(task("t1", "working"))},
        {"on": "tasks/get", "result": complete(completed("t1", "done"))},
    ]));
    let client = program.connects().await.expect("a connection");
    let snapshot = program.as_time_passes("the second life", 5 * MS, client.task("t1")).await.expect("a view");
    assert_eq!(snapshot.status, Status::Working);
    let snapshot = program.as_time_passes("the same life", 5 * MS, client.task("t1")).await.expect("a view");
    assert_eq!(snapshot.status, Status::Completed);
    assert_eq!(program.heard().iter().filter(|method| *method == "tasks/get").count(), 3);
}
