//! A server that is a program of its own.

use std::{
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::AsyncReadExt,
    process::{ChildStdin, ChildStdout, Command},
    sync::watch,
};

use crate::clock::Clock;

/// How long a program has to end by itself after its input has, and again after it was told to.
const GRACE: Duration = Duration::from_secs(2);
/// Characters of its last words that are kept.
const TAIL_CHARS: usize = 400;

/// A program that was started.
#[derive(Clone)]
pub(super) struct Child {
    said: Said,
    /// Set when it is to end.
    end: watch::Sender<bool>,
    /// Set when it has.
    ended: watch::Receiver<bool>,
}

/// What it last wrote to its standard error.
#[derive(Clone, Default)]
pub(super) struct Said(Arc<Mutex<String>>);

impl Said {
    fn add(&self, line: &str) {
        tracing::debug!(target: "taskwire::server_stderr", "{line}");
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !line.trim().is_empty() {
            *said = line.trim().chars().take(TAIL_CHARS).collect();
        }
    }

    pub(super) fn tail(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Child {
    pub(super) fn start(words: &[String], clock: Arc<dyn Clock>) -> Result<(Self, ChildStdin, ChildStdout), String> {
        let (program, args) = words.split_first().ok_or("there is no program to start")?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        // Not of our terminal's group: Ctrl-C is for us, and we tell the server what to do about it.
        command.process_group(0);
        let mut child = command.spawn().map_err(|error| format!("`{program}` cannot be started: {error}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output), Some(errors)) = (input, output, child.stderr.take()) else {
            return Err(format!("`{program}` has no standard streams"));
        };
        let said = Said::default();
        let listening = said.clone();
        tokio::spawn(async move {
            // By pieces: a line may have no end.
            let (mut errors, mut piece) = (errors, vec![0; 4096]);
            while let Ok(count @ 1..) = errors.read(&mut piece).await {
                for line in piece[..count].split(|byte| matches!(byte, b'\n' | b'\r')) {
                    listening.add(&String::from_utf8_lossy(line));
                }
            }
        });
        let (end, mut ending) = watch::channel(false);
        let (over, ended) = watch::channel(false);
        tokio::spawn(async move {
            let patience = async {
                // Dropped without a word is an end, too.
                let _ = ending.wait_for(|end| *end).await;
                clock.sleep(GRACE).await;
            };
            tokio::select! {
                _ = child.wait() => {}
                () = patience => {
                    terminate(&child);
                    tokio::select! {
                        _ = child.wait() => {}
                        () = clock.sleep(GRACE) => drop(child.kill().await),
                    }
                }
            }
            over.send_replace(true);
        });
        Ok((Self { said, end, ended }, input, output))
    }

    pub(super) fn said(&self) -> Said {
        self.said.clone()
    }

    /// Waits until it has ended; its input must have by now.
    pub(super) async fn end(mut self) {
        self.end.send_replace(true);
        let _ = self.ended.wait_for(|ended| *ended).await;
    }
}

fn terminate(child: &tokio::process::Child) {
    let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()) else { return };
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        // All that it started, too: what is started with a launcher would stay.
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::TERM);
    }
}
