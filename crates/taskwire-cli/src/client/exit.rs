//! How the program ends: the exit codes, and errors that know theirs.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use taskwire::client::{self, Outcome};
use taskwire_core::{task::RpcError, wire::code};

use crate::term::{escape, json_lines::JsonLine, stderr};

/// How a client command ended. The numbers are a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// There is a result, or the command did what was asked.
    Done = 0,
    /// The tool said that it failed, or a check did.
    ToolFailed = 1,
    /// The command cannot be understood.
    Usage = 2,
    /// The server cannot be reached or understood, or refuses.
    Protocol = 3,
    /// The call was cancelled.
    Cancelled = 4,
    /// The task failed.
    Failed = 5,
}

impl Exit {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Result(result) if result.is_error => Self::ToolFailed,
            Outcome::Result(_) => Self::Done,
            Outcome::Failed(_) => Self::Failed,
            Outcome::Cancelled { .. } => Self::Cancelled,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Problem {
    exit: Exit,
    message: String,
    rpc: Option<RpcError>,
    is_unauthorized: bool,
}

impl Problem {
    /// The user must change the command.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, message: message.into(), rpc: None, is_unauthorized: false }
    }

    /// The server, the connection or this machine failed.
    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self { exit: Exit::Protocol, message: message.into(), rpc: None, is_unauthorized: false }
    }

    /// The user stopped waiting.
    pub(crate) fn interrupted() -> Self {
        Self { exit: Exit::Cancelled, ..Self::protocol("given up") }
    }

    /// Whether a server refused access.
    pub(crate) fn is_unauthorized(&self) -> bool {
        self.is_unauthorized
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Appends to the message.
    pub(crate) fn and(mut self, more: &str) -> Self {
        self.message.push_str(more);
        self
    }

    fn report(&self, json: bool) {
        stderr::write(&format!("taskwire: {}\n", escape::lines(&self.message)));
        if json {
            let kind = match self.exit {
                Exit::Usage => "usage",
                Exit::Cancelled => "cancelled",
                _ => "protocol",
            };
            let line = JsonLine::error(None, kind, self.message.clone(), self.rpc.as_ref()).text();
            // If nobody reads standard output, there is nobody to tell.
            let _ = writeln!(io::stdout(), "{line}");
        }
    }
}

impl From<client::Error> for Problem {
    fn from(error: client::Error) -> Self {
        use client::Error as E;
        let exit = match &error {
            E::Target(_)
            | E::NoSuchEntry { .. }
            | E::Ambiguous { .. }
            | E::InvalidAnswer { .. }
            | E::AlreadyAnswered { .. }
            | E::NoQuestion { .. } => Exit::Usage,
            // The arguments do not fit, whoever found that.
            E::Rpc(rpc) if rpc.code == code::INVALID_PARAMS => Exit::Usage,
            _ => Exit::Protocol,
        };
        let is_unauthorized = matches!(error, E::Unauthorized { .. });
        let message = match &error {
            E::Unauthorized { server, reason } => {
                let reason = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
                format!("{server} refuses access{reason}: give a token that it accepts with --token, or sign in with --oauth")
            }
            E::NoSuchEntry { prefix } => format!(
                "no task that was started from here begins with `{prefix}`: `taskwire tasks --all` lists them; one that was started elsewhere is SERVER#ID, and `taskwire tasks SERVER` lists those"
            ),
            error => error.to_string(),
        };
        let rpc = if let E::Rpc(rpc) = error { Some(rpc) } else { None };
        Self { exit, message, rpc, is_unauthorized }
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::protocol(error.to_string())
    }
}

/// Runs a client command to its end.
pub(crate) fn run(json: bool, command: impl Future<Output = Result<Exit, Problem>>) -> ExitCode {
    let result = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => {
            let result = runtime.block_on(command);
            // Dropping the runtime would wait for threads that read a silent terminal, or write to a full pipe.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(exit) => exit.into(),
        Err(problem) => fail(json, &problem),
    }
}

/// Reports why a command failed; returns its exit code.
pub(crate) fn fail(json: bool, problem: &Problem) -> ExitCode {
    problem.report(json);
    problem.exit.into()
}

#[cfg(test)]
mod tests {
    use taskwire::client::ToolResult;
    use taskwire_core::Payload;

    use super::*;

    #[test]
    fn each_outcome_has_its_code() {
        let finished = |is_error| {
            let raw = Payload::from(serde_json::json!({}));
            Outcome::Result(ToolResult { content: Vec::new(), structured: None, is_error, raw })
        };
        let failed = RpcError { code: -32603, message: String::new(), data: None };
        let codes = [finished(false), finished(true), Outcome::Cancelled { message: None }, Outcome::Failed(failed)];
        assert_eq!(codes.map(|outcome| Exit::of(&outcome) as u8), [0, 1, 4, 5]);
    }

    #[test]
    fn what_was_typed_wrong_is_told_from_what_went_wrong() {
        let exit = |error: client::Error| Problem::from(error).exit as u8;
        assert_eq!(exit(client::Error::Target("x".to_owned())), 2);
        assert_eq!(exit(client::Error::NoSuchEntry { prefix: "x".to_owned() }), 2);
        assert_eq!(exit(client::Error::NoQuestion { key: "x".to_owned() }), 2);
        assert_eq!(exit(client::Error::TaskNotFound { task: "x".to_owned() }), 3);
        let refused = |code| client::Error::Rpc(RpcError { code, message: "no".to_owned(), data: None });
        assert_eq!((exit(refused(code::INVALID_PARAMS)), exit(refused(code::INTERNAL_ERROR))), (2, 3), "one code for what does not fit");
        assert_eq!(exit(client::Error::Closed), 3);
        assert_eq!(Problem::from(io::Error::other("x")).exit as u8, 3);
    }

    #[test]
    fn who_is_not_let_in_is_told_what_helps() {
        let refused = |reason: &str| Problem::from(client::Error::Unauthorized { server: "S".to_owned(), reason: reason.to_owned() });
        let expected = "S refuses access (no token): give a token that it accepts with --token, or sign in with --oauth";
        assert_eq!((refused("no token").message.as_str(), refused("").exit as u8), (expected, 3));
        assert!(refused("").is_unauthorized() && refused("").message.starts_with("S refuses access: give"));
    }
}
