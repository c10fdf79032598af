//! Runs a command from its start to its end.
//!
//! One loop looks at everything in turn and never waits for one thing alone: not for a server, not for the command, not for the disk. After
//! a stop each step has a deadline, so the loop always ends.

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
    node_lease::{JobLease, NodeLease},
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

/// How long the rest of the output is read after the command's own process has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// A machine that shuts down ends all processes at once. After a SIGTERM to the command we wait so long for our own.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(250);
/// How long killing may take before the supervisor gives up.
pub(super) const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How often we check whether all processes are gone, and how often we kill those that are not.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
const KILL_INTERVAL: Duration = Duration::from_millis(20);
/// When the disk is full: how often we try to write the end, and how long we wait in between.
const WRITE_TRIES: u32 = 1_200;
const WRITE_PAUSE: Duration = Duration::from_millis(500);
/// How long we wait for the server to read the end.
const END_NOTICE_TIMEOUT: Duration = Duration::from_millis(500);
/// Bytes of each stream that are read before anything else gets a turn.
const TURN_BYTES: usize = 256 * 1024;
/// The most that a pipe holds.
const PIPE_BYTES: usize = 1 << 20;
/// What the journal may have above its limit after the command has ended: a full pipe of each stream.
const LAST_BYTES: u64 = 2 * PIPE_BYTES as u64;
/// SIGTERM, and the exit code of a shell whose command got it.
const TERM: i32 = 15;
const TERM_CODE: i32 = 128 + TERM;

pub(super) async fn run_job(ready: PreparedJob) -> ExitCode {
    let PreparedJob { dir, job, journal, listener, mut signals, mask, _lock } = ready;
    let (state, state_out) = watch::channel(JobState { journal_len: journal.len(), ..JobState::default() });
    let mut connections = Connections::open(listener, state_out);
    let lease = NodeLease::new(&job);
    // Its server may have been stopped before it came to this, so long that another node runs the command.
    let started = if lease.time_left_if_orphaned().is_some() { None } else { Some(start::start(&dir, &job, mask)) };
    let mut run = RunningJob {
        questions: Questions::new(job.number),
        lease,
        dir,
        job,
        journal,
        state,
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
        None => {
            run.mark_clean();
            JobEnd { stopped: true, ..JobEnd::default() }
        }
        Some(Ok(started)) => {
            run.begin(started);
            run.supervise(&mut signals, &mut connections).await
        }
        Some(Err(failed)) => {
            // A server that attaches now finds this in the journal.
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
    /// The command's own process has ended. The rest of the output is read until `until`.
    Draining { until: Instant, not_before: Instant },
    /// The processes that are left got SIGTERM.
    Ending { until: Instant },
    /// They get SIGKILL.
    Killing { until: Instant },
    /// All processes are gone, or given up.
    Over,
}

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
    /// The command's own process, and the process group that it leads.
    pid: Option<Pid>,
    cgroup: Option<Cgroup>,
    /// Of the command's own process.
    exit_status: Option<WaitStatus>,
    /// Whether we have child processes: some of the command are left.
    has_children: bool,
    /// Bytes of the journal that the server has imported.
    consumed: u64,
    /// Records that could not be written. No output is read before they are.
    unwritten: VecDeque<Record>,
    phase: JobPhase,
    is_stop_asked: bool,
    /// Whether the stop was asked for before the command's own process ended.
    is_stopped: bool,
    questions: Questions,
    lease: NodeLease,
}

impl RunningJob {
    fn begin(&mut self, started: StartedCommand) {
        let StartedCommand { pid, out, err, cgroup } = started;
        let cgroup_path = cgroup.as_ref().map(|cgroup| cgroup.path().to_owned());
        (self.pid, self.out, self.err, self.cgroup) = (Some(pid), Some(out), err, cgroup);
        self.write(Record::Began(JobStart { pid: number(pid), cgroup: cgroup_path }));
    }

    async fn supervise(&mut self, signals: &mut Signals, connections: &mut Connections) -> JobEnd {
        loop {
            self.retry_unwritten();
            self.reap();
            let now = Instant::now();
            self.end_if_orphaned(now);
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
                Some(event) = connections.events.recv() => Trigger::Event(event),
                // Before the output, which may never end. Handling a request reads the output written before it.
                Some(request) = connections.requests.recv(), if may_write => Trigger::Request(request),
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
                    // Connections get a turn, however much there is to read.
                    tokio::task::yield_now().await;
                }
            }
        }
        // The processes that were killed just now may have written something.
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

    /// Goes to the next phase when it is time.
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

    /// When the loop must run again even if nothing happens.
    fn deadline(&self, now: Instant) -> Option<Instant> {
        let next = match self.phase {
            JobPhase::Running => None,
            JobPhase::Draining { until, not_before } if self.out.is_none() && self.err.is_none() => Some(until.min(not_before)),
            JobPhase::Draining { until, .. } => Some(until),
            JobPhase::Ending { until } => Some(until.min(now + CHECK_INTERVAL)),
            JobPhase::Killing { until } => Some(until.min(now + KILL_INTERVAL)),
            JobPhase::Over => Some(now),
        };
        let orphan = self.lease.next_check(now).filter(|_| !matches!(self.phase, JobPhase::Killing { .. } | JobPhase::Over));
        let write = (!self.unwritten.is_empty() || self.is_disk_short()).then_some(now + WRITE_PAUSE);
        next.into_iter().chain(write).chain(orphan).min()
    }

    fn stop(&mut self) {
        // The command may have ended by itself in this moment.
        self.reap();
        self.is_stop_asked = true;
        match self.phase {
            JobPhase::Running if self.exit_status.is_none() => {
                self.is_stopped = true;
                self.phase = self.terminate(Instant::now());
            }
            // A SIGTERM to the command and a stop for us come from the same shutdown.
            JobPhase::Running | JobPhase::Draining { .. } => self.is_stopped |= self.is_ended_by_term(),
            JobPhase::Ending { .. } | JobPhase::Killing { .. } | JobPhase::Over => {}
        }
    }

    /// Ends the command when it is too long ago that a server had its lease: another node may start it anew. However it ends, it is over by
    /// then.
    fn end_if_orphaned(&mut self, now: Instant) {
        let Some(time_left) = self.lease.time_left_if_orphaned() else { return };
        match &mut self.phase {
            JobPhase::Running => self.stop(),
            JobPhase::Draining { until, not_before } => (*until, *not_before) = (now, now),
            JobPhase::Ending { .. } | JobPhase::Killing { .. } | JobPhase::Over => {}
        }
        if let JobPhase::Ending { until } = &mut self.phase {
            *until = (*until).min(now + time_left);
        }
    }

    /// From now on the command ends if no server has its lease.
    fn adopt(&mut self, lease: JobLease) {
        self.job.lease = Some(lease);
        self.lease = NodeLease::new(&self.job);
        self.state.send_modify(|state| state.is_adopted = true);
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

    /// Reaps all processes that have ended. Orphans are our children too.
    fn reap(&mut self) {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.pid => self.exit_status = Some(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => {
                    self.has_children = true;
                    return;
                }
                Err(_) => {
                    self.has_children = false;
                    return;
                }
            }
        }
    }

    /// Whether no process of the command runs, as [`Self::reap`] found last.
    fn has_no_processes(&self) -> bool {
        // On these systems orphans are not our children, but they are still in the process group.
        #[cfg(not(target_os = "linux"))]
        if self.pid.is_some_and(|pid| rustix::process::test_kill_process_group(pid).is_ok()) {
            return false;
        }
        !self.has_children && self.cgroup.as_ref().is_none_or(|cgroup| cgroup::is_empty(cgroup.path()))
    }

    fn handle_event(&mut self, event: ConnectionEvent) {
        match event {
            // The server before it is disconnected.
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
            ConnectionEvent::Message(ToSupervisor::Lease(at)) => self.lease.held_at(at),
            ConnectionEvent::Message(ToSupervisor::Adopt(lease)) => self.adopt(lease),
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

    /// Handles a request of a process of the command, after reading the output that was written before it.
    fn handle_request(&mut self, request: Request) {
        self.read(PIPE_BYTES);
        match request.body {
            FromCommand::Note(note) => {
                let reply = self.note(note).map_or_else(ToCommand::Error, |()| ToCommand::Ok {});
                // The process may be gone.
                let _ = request.reply.send(reply);
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

    /// Bytes of the journal that the server has not imported.
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

    /// Whether the disk is so full that the command must wait. After its end all output is read in any case.
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
        let mut read = 0;
        while read < most && self.may_write() {
            let stream = pipe_of(self);
            let Some(pipe) = stream else { return };
            // We do not ask the runtime: what it knows of the pipe may be out of date.
            match rustix::io::read(&*pipe, &mut buffer[..]) {
                Ok(n) if n > 0 => {
                    read += n;
                    self.write(record(buffer[..n].to_vec()));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // Tells the runtime that the pipe is empty.
                    let _ = pipe.try_io(|| Err::<(), _>(io::ErrorKind::WouldBlock.into()));
                    return;
                }
                Ok(_) | Err(_) => {
                    *stream = None;
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

    /// Tries to write the kept records. Returns whether all are written.
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
        self.state.send_modify(|state| state.journal_len = len);
    }

    fn publish_questions(&self) {
        let open = Arc::new(self.questions.open());
        self.state.send_modify(|state| state.open_questions = open);
    }

    /// Marks that the next server need not look for processes.
    fn mark_clean(&self) {
        // If this fails, the server looks and finds nothing.
        let _ = fs::write(self.dir.join(CLEAN_MARKER), "");
    }

    /// Tries for a while to write the kept records. Returns whether all are written.
    async fn flush(&mut self) -> bool {
        for _ in 0..WRITE_TRIES {
            if self.retry_unwritten() {
                return true;
            }
            sleep(WRITE_PAUSE).await;
        }
        self.retry_unwritten()
    }

    /// Writes the end to the journal.
    async fn finish(mut self, ended: JobEnd) -> ExitCode {
        if let Some(cgroup) = &self.cgroup {
            cgroup::remove(cgroup.path());
        }
        // Output that could not be read while the disk was full comes before the end.
        if self.flush().await {
            self.read(PIPE_BYTES);
        }
        self.unwritten.push_back(Record::Ended(ended));
        if !self.flush().await {
            // The server finds no end in the journal, and takes the command for lost.
            return ExitCode::FAILURE;
        }
        let len = self.journal.len();
        match &mut self.server {
            Some(server) => {
                let _ = timeout(END_NOTICE_TIMEOUT, server.known_len.wait_for(|known| *known >= len)).await;
            }
            // It may be long until a server reads this.
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

async fn readable(pipe: Option<&Receiver>) {
    match pipe {
        // If waiting fails, reading reports why.
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}
