//! What happens between the start of a command and its end.
//!
//! One loop looks at everything in turn and never waits for one thing alone: not for a server, not for the command, not for
//! the disk. From a stop on there is a last moment for each step, so it always comes to an end.

use std::{collections::VecDeque, fs, io, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use rustix::{
    io::Errno,
    process::{Pid, WaitOptions, WaitStatus, wait},
};
use tokio::{
    net::unix::pipe::Receiver,
    sync::{oneshot, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    CLEAN_MARKER, Job, PreparedJob, Signals,
    cgroup::{self, Cgroup},
    connections::{AttachedServer, ConnectionEvent, Connections, JobState, Request},
    kill::Processes,
    questions::Questions,
    start::{self, StartedCommand},
};
use crate::{
    command::{
        definition::{KILL_AFTER_MAX, Leftovers, SPOOL_BYTES_MIN},
        journal::{JobEnd, JobStart, JournalWriter, OUTPUT_BYTES_MAX, Record},
        messages::{self, FromCommand, Note, ToCommand, ToSupervisor},
    },
    store::free_bytes,
};

/// How long the output of a command is waited for when its own process has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// A machine that shuts down ends all processes at once: so long we wait whether we are among them.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(250);
/// How long killing may take before what cannot be killed is given up.
pub(super) const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How often it is looked whether all are gone, and how often they are killed again.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
const KILL_INTERVAL: Duration = Duration::from_millis(20);
/// Where the disk is full: how often the end is tried to be written, and how long in between.
const WRITE_TRIES: u32 = 1_200;
const WRITE_PAUSE: Duration = Duration::from_millis(500);
/// How long a server may take to hear of the end.
const END_NOTICE_TIMEOUT: Duration = Duration::from_millis(500);
/// Bytes of each stream that are read before anything else gets a turn.
const TURN_BYTES: usize = 256 * 1024;
/// The most that a pipe holds.
const PIPE_BYTES: usize = 1 << 20;
/// What may come on top of that when it goes to the end, for both streams: nobody will take anything before the end is there.
const LAST_BYTES: u64 = 2 * PIPE_BYTES as u64;
/// SIGTERM, and how a shell says that one of its commands got it.
const TERM: i32 = 15;
const TERM_CODE: i32 = 128 + TERM;

/// Runs the command.
pub(super) async fn run_job(ready: PreparedJob) -> ExitCode {
    let PreparedJob { dir, job, journal, listener, mut signals, mask, _lock } = ready;
    let (news, heard) = watch::channel(JobState { journal_len: journal.len(), ..JobState::default() });
    let mut door = Connections::open(listener, heard);
    let started = start::start(&dir, &job, mask);
    let mut run = RunningJob {
        questions: Questions::new(job.number),
        dir,
        job,
        journal,
        state: news,
        server: None,
        out: None,
        err: None,
        pid: None,
        cgroup: None,
        exit_status: None,
        has_children: true,
        consumed: 0,
        unwritten: VecDeque::new(),
        phase: JobPhase::Running,
        is_stop_asked: false,
        is_stopped: false,
    };
    let ended = match started {
        Ok(started) => {
            run.begin(started);
            run.supervise(&mut signals, &mut door).await
        }
        Err(failed) => {
            // A server that comes now will hear of it from the journal.
            run.mark_clean();
            JobEnd { start_error: Some(failed), ..JobEnd::default() }
        }
    };
    run.finish(ended).await
}

#[derive(Debug, Clone, Copy)]
enum JobPhase {
    /// The command's own process runs.
    Running,
    /// It has ended: what it and its children wrote is read to the end, but not for ever.
    Draining { until: Instant, not_before: Instant },
    /// All that are left were asked to end.
    Ending { until: Instant },
    /// They are killed.
    Killing { until: Instant },
    /// That was all.
    Over,
}

/// What woke the loop.
enum Trigger {
    Child,
    Stop,
    Event(ConnectionEvent),
    Request(Request),
    Output,
    Time,
}

struct RunningJob {
    dir: PathBuf,
    job: Job,
    journal: JournalWriter,
    state: watch::Sender<JobState>,
    server: Option<AttachedServer>,
    out: Option<Receiver>,
    err: Option<Receiver>,
    /// The command's own process; also its group.
    pid: Option<Pid>,
    cgroup: Option<Cgroup>,
    /// How its own process ended.
    exit_status: Option<WaitStatus>,
    /// Whether anything of the command is below us.
    has_children: bool,
    /// How much of the journal the server has taken.
    consumed: u64,
    /// What could not be written; nothing is read before it is.
    unwritten: VecDeque<Record>,
    phase: JobPhase,
    is_stop_asked: bool,
    /// Whether it was asked before the command's own process ended.
    is_stopped: bool,
    questions: Questions,
}

impl RunningJob {
    fn begin(&mut self, started: StartedCommand) {
        let StartedCommand { pid, out, err, cgroup } = started;
        let cgroup_path = cgroup.as_ref().map(|cgroup| cgroup.path().to_owned());
        (self.pid, self.out, self.err, self.cgroup) = (Some(pid), Some(out), err, cgroup);
        self.write(Record::Began(JobStart { pid: number(pid), cgroup: cgroup_path }));
    }

    /// Looks after the command until it is over.
    async fn supervise(&mut self, signals: &mut Signals, door: &mut Connections) -> JobEnd {
        loop {
            self.retry_unwritten();
            self.reap();
            let now = Instant::now();
            self.advance(now);
            if matches!(self.phase, JobPhase::Over) {
                break;
            }
            let deadline = self.deadline(now);
            let may_write = self.may_write();
            let wake = tokio::select! {
                biased;
                _ = signals.terminate.recv() => Trigger::Stop,
                _ = signals.child.recv() => Trigger::Child,
                Some(event) = door.events.recv() => Trigger::Event(event),
                // Before the output, which may never end; it takes what output there is along.
                Some(request) = door.requests.recv(), if may_write => Trigger::Request(request),
                () = readable(self.out.as_ref()), if may_write => Trigger::Output,
                () = readable(self.err.as_ref()), if may_write => Trigger::Output,
                () = sleep_until(deadline.unwrap_or(now)), if deadline.is_some() => Trigger::Time,
            };
            match wake {
                Trigger::Child | Trigger::Time => {}
                Trigger::Stop => self.stop(),
                Trigger::Event(event) => self.handle_event(event),
                Trigger::Request(request) => self.handle_request(request),
                Trigger::Output => {
                    self.read(TURN_BYTES);
                    // Those at the door have a turn, however much there is to read.
                    tokio::task::yield_now().await;
                }
            }
        }
        // What those that were killed just now had written.
        self.read(PIPE_BYTES);
        let is_kept = matches!(self.job.leftovers, Leftovers::Keep) && !self.is_stop_asked;
        let left =
            if is_kept || self.has_no_processes() { Vec::new() } else { self.processes().map(|all| all.remaining()).unwrap_or_default() };
        if left.is_empty() {
            self.mark_clean();
        }
        JobEnd {
            code: self.exit_status.and_then(WaitStatus::exit_status),
            signal: self.exit_status.and_then(WaitStatus::terminating_signal),
            start_error: None,
            stopped: self.is_stopped,
            unkilled: left,
        }
    }

    /// Takes the next steps, if it is time for them.
    fn advance(&mut self, now: Instant) {
        loop {
            self.phase = match self.phase {
                JobPhase::Running if self.exit_status.is_some() => {
                    let not_before = if self.is_ended_by_term() { now + SHUTDOWN_GRACE } else { now };
                    JobPhase::Draining { until: now + DRAIN_TIMEOUT, not_before }
                }
                JobPhase::Draining { until, not_before } => {
                    let is_read = self.out.is_none() && self.err.is_none() && now >= not_before;
                    let is_full = self.unwritten.is_empty() && self.unconsumed_bytes() > self.spool_limit();
                    if !(is_read || is_full || now >= until || self.is_stop_asked) {
                        return;
                    }
                    if self.has_no_processes() || (matches!(self.job.leftovers, Leftovers::Keep) && !self.is_stop_asked) {
                        JobPhase::Over
                    } else {
                        self.terminate(now)
                    }
                }
                JobPhase::Ending { .. } | JobPhase::Killing { .. } if self.has_no_processes() => JobPhase::Over,
                JobPhase::Ending { until } if now >= until => JobPhase::Killing { until: now + KILL_TIMEOUT },
                JobPhase::Killing { until } if now >= until => JobPhase::Over,
                JobPhase::Killing { .. } => {
                    if let Some(all) = self.processes() {
                        all.kill();
                    }
                    return;
                }
                JobPhase::Running | JobPhase::Ending { .. } | JobPhase::Over => return,
            };
        }
    }

    /// When the loop must look again, whatever happens.
    fn deadline(&self, now: Instant) -> Option<Instant> {
        let next = match self.phase {
            JobPhase::Running => None,
            JobPhase::Draining { until, not_before } if self.out.is_none() && self.err.is_none() => Some(until.min(not_before)),
            JobPhase::Draining { until, .. } => Some(until),
            JobPhase::Ending { until } => Some(until.min(now + CHECK_INTERVAL)),
            JobPhase::Killing { until } => Some(until.min(now + KILL_INTERVAL)),
            JobPhase::Over => Some(now),
        };
        let write = (!self.unwritten.is_empty() || self.is_disk_short()).then_some(now + WRITE_PAUSE);
        next.into_iter().chain(write).min()
    }

    /// Ends the command, whatever it does.
    fn stop(&mut self) {
        // It may have ended by itself in this moment.
        self.reap();
        self.is_stop_asked = true;
        match self.phase {
            JobPhase::Running if self.exit_status.is_none() => {
                self.is_stopped = true;
                self.phase = self.terminate(Instant::now());
            }
            // Who ended it ends us too.
            JobPhase::Running | JobPhase::Draining { .. } => self.is_stopped |= self.is_ended_by_term(),
            JobPhase::Ending { .. } | JobPhase::Killing { .. } | JobPhase::Over => {}
        }
    }

    fn terminate(&self, now: Instant) -> JobPhase {
        if let Some(all) = self.processes() {
            all.terminate();
        }
        JobPhase::Ending { until: now + Duration::from_millis(self.job.kill_after_ms).min(KILL_AFTER_MAX) }
    }

    fn is_ended_by_term(&self) -> bool {
        self.exit_status.is_some_and(|end| end.terminating_signal() == Some(TERM) || end.exit_status() == Some(TERM_CODE))
    }

    fn processes(&self) -> Option<Processes<'_>> {
        let group = number(self.pid?);
        Some(Processes { group, is_leader_unreaped: self.exit_status.is_none(), cgroup: self.cgroup.as_ref().map(Cgroup::path) })
    }

    /// Takes note of all that have ended. Orphans are our children too.
    fn reap(&mut self) {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.pid => self.exit_status = Some(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => {
                    self.has_children = true;
                    return;
                }
                // There are none.
                Err(_) => {
                    self.has_children = false;
                    return;
                }
            }
        }
    }

    /// Whether nothing of the command runs any more, by the last look at our children.
    fn has_no_processes(&self) -> bool {
        // Where orphans do not fall to us, they are still of the group.
        #[cfg(not(target_os = "linux"))]
        if self.pid.is_some_and(|pid| rustix::process::test_kill_process_group(pid).is_ok()) {
            return false;
        }
        !self.has_children && self.cgroup.as_ref().is_none_or(|cgroup| cgroup::is_empty(cgroup.path()))
    }

    fn handle_event(&mut self, event: ConnectionEvent) {
        match event {
            // The one before it is disconnected.
            ConnectionEvent::Attached(server) => self.server = Some(server),
            ConnectionEvent::Detached(id) => {
                if self.server.as_ref().is_some_and(|server| server.id == id) {
                    self.server = None;
                }
            }
            ConnectionEvent::AskerGone => {
                if self.questions.drop_unawaited() {
                    self.publish_questions();
                }
            }
            ConnectionEvent::Message(ToSupervisor::Stop {}) => self.stop(),
            ConnectionEvent::Message(ToSupervisor::Consumed(bytes)) => self.consumed = self.consumed.max(bytes.min(self.journal.len())),
            ConnectionEvent::Message(ToSupervisor::Answer { key, value }) => {
                if self.questions.answer(&key, &value) {
                    self.publish_questions();
                }
            }
            ConnectionEvent::Message(ToSupervisor::Refuse { key, message }) => {
                if self.questions.refuse(&key, &message) {
                    self.publish_questions();
                }
            }
        }
    }

    /// Does what a process of the command wants. What the command wrote before comes before.
    fn handle_request(&mut self, request: Request) {
        self.read(PIPE_BYTES);
        match request.body {
            FromCommand::Note(note) => {
                let said = self.note(note).map_or_else(ToCommand::Error, |()| ToCommand::Ok {});
                // Who is gone need not know.
                let _ = request.reply.send(said);
            }
            FromCommand::Ask { key, question } => self.ask(key, question, request.reply),
        }
    }

    fn note(&mut self, note: Note) -> Result<(), String> {
        if let Note::Block { block } = &note {
            let (bytes, max) = (messages::line(block).len() as u64 - 1, self.job.block_bytes);
            if bytes > max {
                return Err(format!(
                    "the block has {bytes} bytes, and at most {max} are taken at once (`limits.block_bytes` of the server): emit it in \
                     parts, or a link to it"
                ));
            }
        }
        let written =
            if self.unwritten.is_empty() { self.journal.append(&Record::Note(note)) } else { Err(io::ErrorKind::StorageFull.into()) };
        written.map_err(|error| format!("it cannot be written down: {error}"))?;
        self.publish_len();
        Ok(())
    }

    fn ask(&mut self, key: Option<String>, question: messages::Question, reply: oneshot::Sender<ToCommand>) {
        if self.questions.ask(key, question, self.journal.len(), reply) {
            self.publish_questions();
        }
    }

    /// Bytes of the journal that nobody has taken.
    fn unconsumed_bytes(&self) -> u64 {
        self.journal.len() - self.consumed
    }

    fn spool_limit(&self) -> u64 {
        let room = self.job.journal_bytes.max(SPOOL_BYTES_MIN);
        if matches!(self.phase, JobPhase::Running) { room } else { room.saturating_add(LAST_BYTES) }
    }

    fn may_write(&self) -> bool {
        self.unwritten.is_empty() && self.unconsumed_bytes() <= self.spool_limit() && !self.is_disk_short()
    }

    /// Whether the disk is so full that the command has to wait with what it writes. What it wrote before its end is always read.
    fn is_disk_short(&self) -> bool {
        let reserve = self.job.disk_reserve_bytes;
        reserve > 0 && matches!(self.phase, JobPhase::Running) && free_bytes(&self.dir).is_some_and(|free| free < reserve)
    }

    /// Reads what the command has written, up to `most` bytes of each stream.
    fn read(&mut self, most: usize) {
        self.read_stream(|run| &mut run.out, Record::Out, most);
        self.read_stream(|run| &mut run.err, Record::Err, most);
    }

    fn read_stream(&mut self, pipe_of: fn(&mut Self) -> &mut Option<Receiver>, record: fn(Vec<u8>) -> Record, most: usize) {
        let mut buffer = [0; OUTPUT_BYTES_MAX];
        let mut taken = 0;
        while taken < most && self.may_write() {
            let place = pipe_of(self);
            let Some(pipe) = place else { return };
            // Not by way of the runtime: what it knows of the pipe may be older than what brought us here.
            match rustix::io::read(&*pipe, &mut buffer[..]) {
                Ok(n) if n > 0 => {
                    taken += n;
                    self.write(record(buffer[..n].to_vec()));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // Now the runtime knows too.
                    let _ = pipe.try_io(|| Err::<(), _>(io::ErrorKind::WouldBlock.into()));
                    return;
                }
                Ok(_) | Err(_) => {
                    *place = None;
                    return;
                }
            }
        }
    }

    /// Writes a record, or keeps it until it can be written.
    fn write(&mut self, record: Record) {
        if self.unwritten.is_empty() && self.journal.append(&record).is_ok() {
            self.publish_len();
        } else {
            self.unwritten.push_back(record);
        }
    }

    /// Tries again what could not be written. Says whether it is written now.
    fn retry_unwritten(&mut self) -> bool {
        while let Some(record) = self.unwritten.front() {
            if self.journal.append(record).is_err() {
                return false;
            }
            self.unwritten.pop_front();
            self.publish_len();
        }
        true
    }

    fn publish_len(&self) {
        let len = self.journal.len();
        self.state.send_modify(|news| news.journal_len = len);
    }

    fn publish_questions(&self) {
        let open = Arc::new(self.questions.open());
        self.state.send_modify(|news| news.open_questions = open);
    }

    /// Leaves word that nobody has to clear up after us.
    fn mark_clean(&self) {
        // Without it somebody looks, and finds nothing.
        let _ = fs::write(self.dir.join(CLEAN_MARKER), "");
    }

    /// Tries for a while to write what could not be written. Says whether it is written.
    async fn flush(&mut self) -> bool {
        for _ in 0..WRITE_TRIES {
            if self.retry_unwritten() {
                return true;
            }
            sleep(WRITE_PAUSE).await;
        }
        self.retry_unwritten()
    }

    /// Writes down how it ended.
    async fn finish(mut self, ended: JobEnd) -> ExitCode {
        if let Some(cgroup) = &self.cgroup {
            cgroup::remove(cgroup.path());
        }
        // What could not be read because the disk was full comes before the end.
        if self.flush().await {
            self.read(PIPE_BYTES);
        }
        self.unwritten.push_back(Record::Ended(ended));
        if !self.flush().await {
            // Then the server finds that we are gone without a word.
            return ExitCode::FAILURE;
        }
        let len = self.journal.len();
        match &mut self.server {
            Some(server) => {
                let _ = timeout(END_NOTICE_TIMEOUT, server.known_len.wait_for(|known| *known >= len)).await;
            }
            // It may be long until somebody reads this.
            None => {
                let _ = self.journal.sync();
            }
        }
        let _ = fs::remove_file(self.dir.join(messages::SOCKET));
        ExitCode::SUCCESS
    }
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

/// Waits until there is something to read.
async fn readable(pipe: Option<&Receiver>) {
    match pipe {
        // Also when it cannot be waited for: then reading says why.
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}
