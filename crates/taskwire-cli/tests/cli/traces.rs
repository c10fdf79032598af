//! A trace from the client through the server into a command, in the log, and across the end of a server.

use serde_json::{Value, json};

use self::collector::{Collector, attribute, named};
use crate::{
    kit::Server,
    user::{CommandResult, RunningCommand, User},
};

#[path = "../../../taskwire/tests/it/spans/collector.rs"]
mod collector;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A server with one tool that runs this script, beside its configuration.
fn serve(user: &User, collector: &Collector, script: &str) -> Server {
    let traces = format!("[traces]\nendpoint = \"{}\"\ninterval = \"10ms\"\n", collector.url());
    let tool = format!("[[tool]]\nname = \"tells\"\ncommand = [\"sh\", \"-c\", \"{script}\"]\n");
    let file = user.write("taskwire.toml", &format!("log_format = \"json\"\n\n{traces}\n{tool}"));
    Server::configured(&file, &user.path("data"))
}

fn call_in(user: &User, server: &Server, args: &[&str], environment: &[(&str, &str)]) -> CommandResult {
    let url = server.url();
    let args: Vec<&str> = ["call", url.as_str(), "tells"].into_iter().chain(args.iter().copied()).collect();
    RunningCommand::start(user.command(&args).envs(environment.iter().copied())).end()
}

#[test]
fn a_trace_goes_from_the_environment_of_the_client_into_that_of_a_command() {
    let (collector, user) = (Collector::start(&[]), User::new());
    let server = serve(&user, &collector, "echo $TRACEPARENT $TRACESTATE");
    for (n, era) in (1..).zip(["modern", "legacy"]) {
        let ended = call_in(&user, &server, &["--era", era], &[("TRACEPARENT", PARENT), ("TRACESTATE", "a=1")]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let (span, rest) = ended
            .out
            .strip_prefix(&format!("00-{TRACE}-"))
            .and_then(|rest| rest.split_at_checked(16))
            .unwrap_or_else(|| panic!("no traceparent of the same trace: {ended:?}"));
        assert_eq!(rest.trim_end(), "-01 a=1", "{ended:?}");
        let runs = collector.wait("the work", |spans| named(spans, "run tells", n));
        let calls = collector.wait("the call", |spans| named(spans, "tools/call tells", n));
        let (run, call) = (&runs[n - 1], &calls[n - 1]);
        assert_eq!((run["spanId"].as_str(), &run["parentSpanId"]), (Some(span), &call["spanId"]), "the command is below its attempt");
        assert_eq!((&call["traceId"], &call["parentSpanId"]), (&json!(TRACE), &json!(SPAN)));
        let line = server.process.wait_for_error_line("call ended");
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(said["trace"], TRACE, "{said}");
    }
}

#[test]
fn what_the_environment_says_badly_is_passed_over_and_what_an_option_says_badly_is_refused() {
    let (collector, user) = (Collector::start(&[]), User::new());
    let server = serve(&user, &collector, "echo =$TRACEPARENT=");
    let ended = call_in(&user, &server, &[], &[("TRACEPARENT", "nonsense")]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.starts_with("=00-") && !ended.out.contains(TRACE), "the server begins a trace: {ended:?}");
    let ended = call_in(&user, &server, &["--traceparent", PARENT], &[("TRACEPARENT", "nonsense")]);
    assert!(ended.out.contains(TRACE), "{ended:?}");
    let refused = call_in(&user, &server, &["--traceparent", "nonsense"], &[]);
    assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""), "{refused:?}");
    assert!(refused.err.contains("not a traceparent"), "{refused:?}");
}

#[test]
fn a_later_attempt_goes_on_with_the_trace_of_the_call_after_a_server_was_killed() {
    let (collector, user) = (Collector::start(&[]), User::new());
    let script = "while [ ! -e go ]; do sleep 0.05; done; echo $TRACEPARENT";
    let first = serve(&user, &collector, script);
    let started = call_in(&user, &first, &["--detach", "--traceparent", PARENT], &[]);
    assert_eq!(started.code, Some(0), "{started:?}");
    let calls = collector.wait("the call", |spans| named(spans, "tools/call tells", 1));
    first.process.kill();
    let _second = serve(&user, &collector, script);
    user.write("go", "");
    let runs = collector.wait("a later attempt", |spans| named(spans, "run tells", 1));
    let run = &runs[0];
    assert_eq!(attribute(run, "taskwire.attempt"), Some("2"), "{run}");
    assert_eq!((&run["traceId"], &run["parentSpanId"]), (&json!(TRACE), &calls[0]["spanId"]), "{run}");
    assert_eq!((attribute(run, "taskwire.task.id"), attribute(run, "taskwire.outcome")), (Some(started.out.trim_end()), Some("completed")));
}
