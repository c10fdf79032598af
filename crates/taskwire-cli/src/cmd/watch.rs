//! `taskwire watch`: follows a task again, from where its output was left.

use std::time::Duration;

use clap::Args;
use taskwire::clock::{Clock, SystemClock};

use crate::{
    client::{
        connection::ConnectionArgs,
        exit::{Exit, Problem},
        follow::{CallFollower, FollowOptions},
        signals::unless_stopped,
        user_data::{FoundTask, UserData, id_or_key},
    },
    term::{
        escape,
        paint::{shell_word, short_duration},
        stderr,
    },
};

/// How long every server that knows idempotency keys remembers a call.
const KEY_KNOWN_FOR: Duration = Duration::from_secs(3600);

const EXAMPLES: &str = "Examples:
  taskwire watch                        the latest task that was not seen to end
  taskwire watch 01k3v9x2m4qa           goes on where the output was left
  taskwire watch 01k3v9x2m4qa --from 0  shows all of it
  taskwire watch https://host/mcp#ID    a task that was started elsewhere

TASK is an id, a beginning of it that no other task has (`taskwire tasks`),
or SERVER#ID (`taskwire tasks SERVER`). An id that is not known here is looked
for at the default server, if there is one. Without TASK it is the latest that
was started from here and was not seen to end, else the latest.
The output continues at the exact byte: what `call` printed before it was
killed, followed by what `watch` prints, is the whole output. (Behind `>>`, and
on other systems than Linux, up to 4096 bytes may come twice.) `--from` ignores
and does not move that position; neither does a second `watch` at the same time.
Ctrl-C stops watching and leaves the task as it is: `taskwire cancel` cancels.
Questions, output and exit codes are those of `taskwire call`.";

/// Follow a task again: its output from where it was left, its questions, its result.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Watch {
    /// Id or a unique beginning of it, or SERVER#ID [default: the latest that has not ended]
    task: Option<String>,
    /// Start at this chunk of the output; 0 is the first
    #[arg(long, value_name = "SEQ", conflicts_with = "no_stream")]
    from: Option<u64>,
    /// Print one JSON object a line: task, partial, status, input, result, error
    #[arg(long)]
    pub(crate) json: bool,
    /// Wait for the result without its output on the way
    #[arg(long)]
    no_stream: bool,
    /// Send the call again although its reply was never seen, even if it is older than an hour (the server may run it a second
    /// time)
    #[arg(long)]
    resend: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

impl Watch {
    /// A call whose reply was never seen must be sent again. A server that has forgotten it would run it a second time.
    fn check_resend(&self, found: &FoundTask) -> Result<(), Problem> {
        let Some(entry) = found.entry.as_ref().filter(|entry| entry.reference.task.is_none()) else { return Ok(()) };
        let age = SystemClock.now().since(entry.created_at);
        if self.resend || age <= KEY_KNOWN_FOR {
            return Ok(());
        }
        Err(Problem::usage(format!(
            "this call was sent {} ago and its reply was never seen. The server may have forgotten it and would run it again: \
             `taskwire watch {} --resend` sends it, `taskwire tasks --forget` removes it from the list",
            short_duration(age),
            shell_word(self.task.as_deref().unwrap_or_else(|| id_or_key(&found.reference)))
        )))
    }

    pub(crate) async fn run(self) -> Result<Exit, Problem> {
        let user = UserData::open()?;
        let mut found = match &self.task {
            Some(task) => user.find(task)?,
            None => {
                let found = user.latest()?;
                let (id, tool) = (escape::line(id_or_key(&found.reference)), escape::line(&found.reference.tool));
                if !self.json {
                    stderr::write(&format!("taskwire: task {id} ({tool})\n"));
                }
                found
            }
        };
        self.check_resend(&found)?;
        let client = unless_stopped(user.connect(&mut found, &self.connection, !self.no_stream)).await?;
        let options = FollowOptions {
            json: self.json,
            detach: false,
            result_only: self.no_stream,
            cancel_on_interrupt: false,
            is_attached: true,
            is_unlisted: found.entry.is_none(),
            tracks_output: self.from.is_none(),
        };
        let mut follow = CallFollower::new(&user, &client, &found.reference, options)?;
        found.reference.next = match (self.from, &found.entry) {
            (Some(seq), _) => {
                follow.start_at(seq);
                seq
            }
            (None, Some(entry)) => {
                let tracker = user.ledger()?.output_tracker(entry.id)?;
                let seq = tracker.position().seq;
                follow.resume_from(tracker);
                // The last chunk that was shown comes again: nothing records whether it ended its line.
                seq.saturating_sub(1)
            }
            (None, None) => 0,
        };
        follow.show(client.attach(&found.reference)).await
    }
}
