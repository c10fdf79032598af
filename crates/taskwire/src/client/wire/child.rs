//! A server that is a child process: its start, its end, and its last lines on standard error.

use std::{
    collections::VecDeque,
    io,
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::AsyncReadExt,
    process::{ChildStdin, ChildStdout, Command},
    sync::watch,
    time::timeout,
};

use crate::clock::Clock;

/// How long a program has to end after its input was closed, and again after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// Last lines of its standard error that are kept, and characters of each.
const LAST_LINES: usize = 5;
const LINE_CHARS: usize = 300;
/// How long to wait for the exit status of a program that has closed its streams.
const EXIT_WAIT: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(super) struct Child {
    exit_report: ExitReport,
    /// Set when it is to end.
    end: watch::Sender<bool>,
}

/// How a program ended, and what it last wrote to its standard error.
#[derive(Clone)]
pub(super) struct ExitReport {
    stderr: StderrTail,
    ended: watch::Receiver<Option<String>>,
    /// Set when its standard error was read to the end.
    stderr_read: watch::Receiver<bool>,
}

impl ExitReport {
    /// Why the connection ended: the program's exit status if it is known, else `otherwise`; and its last lines.
    pub(super) async fn describe(mut self, otherwise: String) -> String {
        let settled = async {
            let _ = self.ended.wait_for(Option::is_some).await;
            let _ = self.stderr_read.wait_for(|is_heard| *is_heard).await;
        };
        // Not for ever: its children may keep its streams open, and it may go on itself.
        let _ = timeout(EXIT_WAIT, settled).await;
        let how = self.ended.borrow().clone();
        let reason = how.map_or(otherwise, |how| format!("the server ended {how}"));
        match self.stderr.tail().as_slice() {
            [] => reason,
            [line] => format!("{reason}; it last said: {line}"),
            lines => format!("{reason}; its last lines:\n  {}", lines.join("\n  ")),
        }
    }
}

#[derive(Clone, Default)]
struct StderrTail(Arc<Mutex<Tail>>);

#[derive(Default)]
struct Tail {
    lines: VecDeque<String>,
    /// The line that has not ended yet.
    open: String,
}

impl Tail {
    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.open);
        if line.trim().is_empty() {
            return;
        }
        tracing::debug!(target: "taskwire::server_stderr", "{line}");
        if self.lines.len() == LAST_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line.trim_end().to_owned());
    }
}

impl StderrTail {
    /// Adds a piece, which may begin and end within a line.
    fn add(&self, piece: &str) {
        let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (nth, part) in piece.split(['\n', '\r']).enumerate() {
            if nth > 0 {
                tail.end_line();
            }
            let room = LINE_CHARS.saturating_sub(tail.open.chars().count());
            tail.open.extend(part.chars().take(room));
        }
    }

    fn tail(&self) -> Vec<String> {
        let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tail.end_line();
        tail.lines.iter().cloned().collect()
    }
}

fn how(status: io::Result<ExitStatus>) -> String {
    match status.map(|status| (status.code(), status.signal())) {
        Ok((Some(code), _)) => format!("with exit code {code}"),
        Ok((None, Some(signal))) => format!("by signal {signal}"),
        Ok((None, None)) | Err(_) => "in an unknown way".to_owned(),
    }
}

impl Child {
    pub(super) fn start(words: &[String], clock: Arc<dyn Clock>) -> Result<(Self, ChildStdin, ChildStdout), String> {
        let (program, args) = words.split_first().ok_or("there is no program to start")?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        // A process group of its own: Ctrl-C at the terminal must reach the client only, which then ends the server.
        command.process_group(0);
        let mut child = command.spawn().map_err(|error| format!("`{program}` cannot be started: {error}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output), Some(errors)) = (input, output, child.stderr.take()) else {
            return Err(format!("`{program}` has no standard streams"));
        };
        let stderr = StderrTail::default();
        let listening = stderr.clone();
        let (stderr_done, stderr_read) = watch::channel(false);
        tokio::spawn(async move {
            let (mut errors, mut piece) = (errors, vec![0; 4096]);
            while let Ok(count @ 1..) = errors.read(&mut piece).await {
                listening.add(&String::from_utf8_lossy(&piece[..count]));
            }
            stderr_done.send_replace(true);
        });
        let (end, mut ending) = watch::channel(false);
        let (over, ended) = watch::channel(None);
        tokio::spawn(async move {
            let grace_period = async {
                // A dropped sender means the end, too.
                let _ = ending.wait_for(|end| *end).await;
                clock.sleep(GRACE).await;
            };
            let status = tokio::select! {
                status = child.wait() => status,
                () = grace_period => {
                    terminate(&child);
                    tokio::select! {
                        status = child.wait() => status,
                        () = clock.sleep(GRACE) => {
                            drop(child.kill().await);
                            child.wait().await
                        }
                    }
                }
            };
            over.send_replace(Some(how(status)));
        });
        Ok((Self { exit_report: ExitReport { stderr, ended, stderr_read }, end }, input, output))
    }

    pub(super) fn exit_report(&self) -> ExitReport {
        self.exit_report.clone()
    }

    /// Waits until it has ended. Its input must be closed.
    pub(super) async fn end(mut self) {
        self.end.send_replace(true);
        let _ = self.exit_report.ended.wait_for(Option::is_some).await;
    }
}

fn terminate(child: &tokio::process::Child) {
    let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()) else { return };
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        // The whole group: a server behind a launcher would stay otherwise.
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::TERM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_wherever_pieces_begin() {
        let said = StderrTail::default();
        for piece in ["one\ntw", "o\r\n\n  three\nfour\nfive", "\nsix\n", &"x".repeat(LINE_CHARS * 2), "y"] {
            said.add(piece);
        }
        assert_eq!(said.tail(), ["  three", "four", "five", "six", "x".repeat(LINE_CHARS).as_str()]);
    }

    #[test]
    fn an_end_is_told_by_its_code_or_its_signal() {
        for (raw, words) in [(3 << 8, "with exit code 3"), (0, "with exit code 0"), (9, "by signal 9")] {
            assert_eq!(how(Ok(ExitStatus::from_raw(raw))), words);
        }
    }
}
