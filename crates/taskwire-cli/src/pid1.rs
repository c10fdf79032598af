//! `taskwire serve` as the first process of a container, where no init is. It starts the server as a child and does no more than
//! what falls to process 1: it waits for orphans, which would stay as zombies otherwise, passes signals on, and ends when the
//! server does.

use std::{
    fs::File,
    future::poll_fn,
    io,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
    task::Poll,
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait},
    termios::{tcgetpgrp, tcsetpgrp},
};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

use crate::term::{escape, stderr};

/// Signals that are passed on to the server.
const FORWARDED_SIGNALS: [(SignalKind, Signal); 6] = [
    (SignalKind::terminate(), Signal::TERM),
    (SignalKind::interrupt(), Signal::INT),
    (SignalKind::hangup(), Signal::HUP),
    (SignalKind::quit(), Signal::QUIT),
    (SignalKind::user_defined1(), Signal::USR1),
    (SignalKind::user_defined2(), Signal::USR2),
];
/// Signals by which a terminal stops a process.
const STOP_SIGNALS: [Signal; 3] = [Signal::TSTP, Signal::TTIN, Signal::TTOU];
/// For which process something is that a service manager has given.
const PROCESS_VARIABLES: [&str; 2] = ["LISTEN_PID", "WATCHDOG_PID"];
/// What a shell adds to the number of the signal that ended a process.
const SIGNAL_EXIT_BASE: i32 = 128;

/// Whether this is process 1.
pub(crate) fn is_pid1() -> bool {
    std::process::id() == 1
}

/// Starts a child that serves, with the same arguments, and waits for its end; returns its exit code.
pub(crate) fn run() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.and_then(|runtime| runtime.block_on(run_server())).unwrap_or_else(|error| {
        let error = escape::lines(&error.to_string());
        stderr::write(&format!("taskwire: as process 1 it cannot start the server: {error}\n"));
        ExitCode::FAILURE
    })
}

async fn run_server() -> io::Result<ExitCode> {
    // Before the child starts: its end must not be missed, however soon it comes.
    let mut children = signal(SignalKind::child())?;
    let mut forwarded = Vec::with_capacity(FORWARDED_SIGNALS.len());
    for (kind, name) in FORWARDED_SIGNALS {
        forwarded.push((signal(kind)?, name));
    }
    let server = ServerProcess::start()?;
    loop {
        if let Some(exit) = server.reap() {
            return Ok(exit);
        }
        if let Some(name) = next(&mut children, &mut forwarded).await {
            // The pid stays the child's until it has been reaped.
            let _ = kill_process(server.pid, name);
        }
    }
}

/// Waits for a signal to pass on, or for a change of a child.
async fn next(children: &mut Signals, forwarded: &mut [(Signals, Signal)]) -> Option<Signal> {
    poll_fn(|context| {
        let came = forwarded.iter_mut().find_map(|(signals, name)| signals.poll_recv(context).is_ready().then_some(*name));
        match came {
            Some(name) => Poll::Ready(Some(name)),
            None => children.poll_recv(context).map(|_| None),
        }
    })
    .await
}

/// The child that serves.
#[derive(Debug)]
struct ServerProcess {
    pid: Pid,
    /// Whether the terminal's keys go to it.
    has_terminal: bool,
}

impl ServerProcess {
    fn start() -> io::Result<Self> {
        let mut args = std::env::args_os();
        let mut command = Command::new(std::env::current_exe()?);
        if let Some(name) = args.next() {
            command.arg0(name);
        }
        // What the service manager has given to this process is for the child.
        for name in PROCESS_VARIABLES {
            if std::env::var(name).is_ok_and(|pid| pid == std::process::id().to_string()) {
                command.env_remove(name);
            }
        }
        // In its own process group: else Ctrl-C would reach it twice, from the terminal and from us.
        let pid = command.args(args).process_group(0).spawn().map(|child| Pid::from_child(&child))?;
        Ok(Self { pid, has_terminal: hand_over_terminal(pid) })
    }

    /// Reaps all that have ended; returns how the server ended, if it has.
    fn reap(&self) -> Option<ExitCode> {
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if pid == self.pid => match status.stopping_signal() {
                    Some(halt) => self.resume(halt),
                    None => return Some(exit(status)),
                },
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return None,
                // There are no children at all.
                Err(_) => return Some(ExitCode::FAILURE),
            }
        }
    }

    /// No shell would continue it after Ctrl-Z. A SIGSTOP stays in effect: somebody wants it so.
    fn resume(&self, halt: i32) {
        if self.has_terminal && STOP_SIGNALS.iter().any(|signal| signal.as_raw() == halt) {
            let _ = kill_process(self.pid, Signal::CONT);
        }
    }
}

/// Gives the terminal to the server's process group, if there is a terminal and it is ours.
fn hand_over_terminal(group: Pid) -> bool {
    let Ok(terminal) = File::open("/dev/tty") else { return false };
    // Not `getpgrp`: our group may be from outside the container, where it has no number here.
    tcgetpgrp(&terminal).is_ok_and(Pid::is_init) && tcsetpgrp(&terminal, group).is_ok()
}

/// The exit code that a shell would report.
fn exit(status: WaitStatus) -> ExitCode {
    let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| SIGNAL_EXIT_BASE + signal));
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
