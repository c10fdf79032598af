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
    Job, Ready, SETTLED, Signals,
    cgroup::{self, Cgroup},
    door::{Door, Event, News, Request, Server},
    kill::Processes,
    questions::Questions,
    start::{self, Started},
};
use crate::{
    command::{
        definition::{KILL_AFTER_MAX, Leftovers, SPOOL_BYTES_MIN},
        journal::{Began, Ended, Journal, OUTPUT_BYTES_MAX, Record},
        talk::{self, FromInside, Note, ToInside, ToSupervisor},
    },
    store::free_bytes,
};

/// How long the output of a command is waited for when its own process has ended.
const DRAIN: Duration = Duration::from_secs(1);
/// A machine that shuts down ends all processes at once: so long we wait whether we are among them.
const LINGER: Duration = Duration::from_millis(250);
/// How long killing may take before what cannot be killed is given up.
pub(super) const KILLING_MAX: Duration = Duration::from_secs(10);
/// How often it is looked whether all are gone, and how often they are killed again.
const LOOK: Duration = Duration::from_millis(100);
const AGAIN: Duration = Duration::from_millis(20);
/// Where the disk is full: how often the end is tried to be written, and how long in between.
const WRITE_TRIES: u32 = 1_200;
const WRITE_PAUSE: Duration = Duration::from_millis(500);
/// How long a server may take to hear of the end.
const FAREWELL: Duration = Duration::from_millis(500);
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
pub(super) async fn run(ready: Ready) -> ExitCode {
    let Ready { dir, job, journal, listener, mut signals, mask, _lock } = ready;
    let (news, heard) = watch::channel(News { len: journal.len(), ..News::default() });
    let mut door = Door::open(listener, heard);
    let started = start::start(&dir, &job, mask);
    let mut run = Run {
        questions: Questions::new(job.run),
        dir,
        job,
        journal,
        news,
        server: None,
        out: None,
        err: None,
        pid: None,
        cgroup: None,
        end: None,
        has_children: true,
        consumed: 0,
        unwritten: VecDeque::new(),
        phase: Phase::Running,
        is_stop_asked: false,
        is_stopped: false,
    };
    let ended = match started {
        Ok(started) => {
            run.begin(started);
            run.follow(&mut signals, &mut door).await
        }
        Err(failed) => {
            // A server that comes now will hear of it from the journal.
            run.settle();
            Ended { failed: Some(failed), ..Ended::default() }
        }
    };
    run.finish(ended).await
}

#[derive(Debug, Clone, Copy)]
enum Phase {
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
enum Wake {
    Child,
    Stop,
    Event(Event),
    Request(Request),
    Output,
    Time,
}

struct Run {
    dir: PathBuf,
    job: Job,
    journal: Journal,
    news: watch::Sender<News>,
    server: Option<Server>,
    out: Option<Receiver>,
    err: Option<Receiver>,
    /// The command's own process; also its group.
    pid: Option<Pid>,
    cgroup: Option<Cgroup>,
    /// How its own process ended.
    end: Option<WaitStatus>,
    /// Whether anything of the command is below us.
    has_children: bool,
    /// How much of the journal the server has taken.
    consumed: u64,
    /// What could not be written; nothing is read before it is.
    unwritten: VecDeque<Record>,
    phase: Phase,
    is_stop_asked: bool,
    /// Whether it was asked before the command's own process ended.
    is_stopped: bool,
    questions: Questions,
}

impl Run {
    fn begin(&mut self, started: Started) {
        let Started { pid, out, err, cgroup } = started;
        let cgroup_path = cgroup.as_ref().map(|cgroup| cgroup.path().to_owned());
        (self.pid, self.out, self.err, self.cgroup) = (Some(pid), Some(out), err, cgroup);
        self.write(Record::Began(Began { pid: number(pid), cgroup: cgroup_path }));
    }

    /// Looks after the command until it is over.
    async fn follow(&mut self, signals: &mut Signals, door: &mut Door) -> Ended {
        loop {
            self.rewrite();
            self.reap();
            let now = Instant::now();
            self.advance(now);
            if matches!(self.phase, Phase::Over) {
                break;
            }
            let deadline = self.deadline(now);
            let may_write = self.may_write();
            let wake = tokio::select! {
                biased;
                _ = signals.terminate.recv() => Wake::Stop,
                _ = signals.child.recv() => Wake::Child,
                Some(event) = door.events.recv() => Wake::Event(event),
                // Before the output, which may never end; it takes what output there is along.
                Some(request) = door.requests.recv(), if may_write => Wake::Request(request),
                () = readable(self.out.as_ref()), if may_write => Wake::Output,
                () = readable(self.err.as_ref()), if may_write => Wake::Output,
                () = sleep_until(deadline.unwrap_or(now)), if deadline.is_some() => Wake::Time,
            };
            match wake {
                Wake::Child | Wake::Time => {}
                Wake::Stop => self.stop(),
                Wake::Event(event) => self.hear(event),
                Wake::Request(request) => self.grant(request),
                Wake::Output => {
                    self.read(TURN_BYTES);
                    // Those at the door have a turn, however much there is to read.
                    tokio::task::yield_now().await;
                }
            }
        }
        // What those that were killed just now had written.
        self.read(PIPE_BYTES);
        let is_kept = matches!(self.job.leftovers, Leftovers::Keep) && !self.is_stop_asked;
        let left = if is_kept || self.is_nobody_left() { Vec::new() } else { self.processes().map(|all| all.left()).unwrap_or_default() };
        if left.is_empty() {
            self.settle();
        }
        Ended {
            code: self.end.and_then(WaitStatus::exit_status),
            signal: self.end.and_then(WaitStatus::terminating_signal),
            failed: None,
            stopped: self.is_stopped,
            left,
        }
    }

    /// Takes the next steps, if it is time for them.
    fn advance(&mut self, now: Instant) {
        loop {
            self.phase = match self.phase {
                Phase::Running if self.end.is_some() => {
                    let not_before = if self.is_ended_by_term() { now + LINGER } else { now };
                    Phase::Draining { until: now + DRAIN, not_before }
                }
                Phase::Draining { until, not_before } => {
                    let is_read = self.out.is_none() && self.err.is_none() && now >= not_before;
                    let is_full = self.unwritten.is_empty() && self.waiting() > self.room();
                    if !(is_read || is_full || now >= until || self.is_stop_asked) {
                        return;
                    }
                    if self.is_nobody_left() || (matches!(self.job.leftovers, Leftovers::Keep) && !self.is_stop_asked) {
                        Phase::Over
                    } else {
                        self.terminate(now)
                    }
                }
                Phase::Ending { .. } | Phase::Killing { .. } if self.is_nobody_left() => Phase::Over,
                Phase::Ending { until } if now >= until => Phase::Killing { until: now + KILLING_MAX },
                Phase::Killing { until } if now >= until => Phase::Over,
                Phase::Killing { .. } => {
                    if let Some(all) = self.processes() {
                        all.kill();
                    }
                    return;
                }
                Phase::Running | Phase::Ending { .. } | Phase::Over => return,
            };
        }
    }

    /// When the loop must look again, whatever happens.
    fn deadline(&self, now: Instant) -> Option<Instant> {
        let next = match self.phase {
            Phase::Running => None,
            Phase::Draining { until, not_before } if self.out.is_none() && self.err.is_none() => Some(until.min(not_before)),
            Phase::Draining { until, .. } => Some(until),
            Phase::Ending { until } => Some(until.min(now + LOOK)),
            Phase::Killing { until } => Some(until.min(now + AGAIN)),
            Phase::Over => Some(now),
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
            Phase::Running if self.end.is_none() => {
                self.is_stopped = true;
                self.phase = self.terminate(Instant::now());
            }
            // Who ended it ends us too.
            Phase::Running | Phase::Draining { .. } => self.is_stopped |= self.is_ended_by_term(),
            Phase::Ending { .. } | Phase::Killing { .. } | Phase::Over => {}
        }
    }

    fn terminate(&self, now: Instant) -> Phase {
        if let Some(all) = self.processes() {
            all.terminate();
        }
        Phase::Ending { until: now + Duration::from_millis(self.job.kill_after_ms).min(KILL_AFTER_MAX) }
    }

    fn is_ended_by_term(&self) -> bool {
        self.end.is_some_and(|end| end.terminating_signal() == Some(TERM) || end.exit_status() == Some(TERM_CODE))
    }

    fn processes(&self) -> Option<Processes<'_>> {
        let group = number(self.pid?);
        Some(Processes { group, is_leader_there: self.end.is_none(), cgroup: self.cgroup.as_ref().map(Cgroup::path) })
    }

    /// Takes note of all that have ended. Orphans are our children too.
    fn reap(&mut self) {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.pid => self.end = Some(status),
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
    fn is_nobody_left(&self) -> bool {
        // Where orphans do not fall to us, they are still of the group.
        #[cfg(not(target_os = "linux"))]
        if self.pid.is_some_and(|pid| rustix::process::test_kill_process_group(pid).is_ok()) {
            return false;
        }
        !self.has_children && self.cgroup.as_ref().is_none_or(|cgroup| cgroup::is_empty(cgroup.path()))
    }

    fn hear(&mut self, event: Event) {
        match event {
            // The one before it is disconnected.
            Event::Attached(server) => self.server = Some(server),
            Event::Gone(id) => {
                if self.server.as_ref().is_some_and(|server| server.id == id) {
                    self.server = None;
                }
            }
            Event::GaveUp => {
                if self.questions.give_up() {
                    self.tell_questions();
                }
            }
            Event::Said(ToSupervisor::Stop {}) => self.stop(),
            Event::Said(ToSupervisor::Consumed(bytes)) => self.consumed = self.consumed.max(bytes.min(self.journal.len())),
            Event::Said(ToSupervisor::Answer { key, value }) => {
                if self.questions.answer(&key, &value) {
                    self.tell_questions();
                }
            }
            Event::Said(ToSupervisor::Refuse { key, message }) => {
                if self.questions.refuse(&key, &message) {
                    self.tell_questions();
                }
            }
        }
    }

    /// Does what a process of the command wants. What the command wrote before comes before.
    fn grant(&mut self, request: Request) {
        self.read(PIPE_BYTES);
        match request.body {
            FromInside::Note(note) => {
                let said = self.note(note).map_or_else(ToInside::Error, |()| ToInside::Ok {});
                // Who is gone need not know.
                let _ = request.reply.send(said);
            }
            FromInside::Ask { key, question } => self.ask(key, question, request.reply),
        }
    }

    fn note(&mut self, note: Note) -> Result<(), String> {
        if let Note::Block { block } = &note {
            let (bytes, max) = (talk::line(block).len() as u64 - 1, self.job.block_bytes);
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
        self.tell_len();
        Ok(())
    }

    fn ask(&mut self, key: Option<String>, question: talk::Question, reply: oneshot::Sender<ToInside>) {
        if self.questions.ask(key, question, self.journal.len(), reply) {
            self.tell_questions();
        }
    }

    /// Bytes of the journal that nobody has taken.
    fn waiting(&self) -> u64 {
        self.journal.len() - self.consumed
    }

    fn room(&self) -> u64 {
        let room = self.job.spool_bytes.max(SPOOL_BYTES_MIN);
        if matches!(self.phase, Phase::Running) { room } else { room.saturating_add(LAST_BYTES) }
    }

    fn may_write(&self) -> bool {
        self.unwritten.is_empty() && self.waiting() <= self.room() && !self.is_disk_short()
    }

    /// Whether the disk is so full that the command has to wait with what it writes. What it wrote before its end is always read.
    fn is_disk_short(&self) -> bool {
        let reserve = self.job.disk_reserve_bytes;
        reserve > 0 && matches!(self.phase, Phase::Running) && free_bytes(&self.dir).is_some_and(|free| free < reserve)
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
            self.tell_len();
        } else {
            self.unwritten.push_back(record);
        }
    }

    /// Tries again what could not be written. Says whether it is written now.
    fn rewrite(&mut self) -> bool {
        while let Some(record) = self.unwritten.front() {
            if self.journal.append(record).is_err() {
                return false;
            }
            self.unwritten.pop_front();
            self.tell_len();
        }
        true
    }

    fn tell_len(&self) {
        let len = self.journal.len();
        self.news.send_modify(|news| news.len = len);
    }

    fn tell_questions(&self) {
        let open = Arc::new(self.questions.open());
        self.news.send_modify(|news| news.open = open);
    }

    /// Leaves word that nobody has to clear up after us.
    fn settle(&self) {
        // Without it somebody looks, and finds nothing.
        let _ = fs::write(self.dir.join(SETTLED), "");
    }

    /// Tries for a while to write what could not be written. Says whether it is written.
    async fn flush(&mut self) -> bool {
        for _ in 0..WRITE_TRIES {
            if self.rewrite() {
                return true;
            }
            sleep(WRITE_PAUSE).await;
        }
        self.rewrite()
    }

    /// Writes down how it ended.
    async fn finish(mut self, ended: Ended) -> ExitCode {
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
                let _ = timeout(FAREWELL, server.knows.wait_for(|known| *known >= len)).await;
            }
            // It may be long until somebody reads this.
            None => {
                let _ = self.journal.sync();
            }
        }
        let _ = fs::remove_file(self.dir.join(talk::SOCKET));
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
