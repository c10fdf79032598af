//! A PostgreSQL server of one test.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    Installation,
    process::{Port, Process, ServerDir, command, run},
};

/// Somebody else may be faster at a port. More often than this, and it is no coincidence.
const PORTS_MAX: usize = 10;

/// What every server is set to, besides the defaults.
const SETTINGS: [&str; 4] = [
    "listen_addresses = '127.0.0.1'",
    "unix_socket_directories = ''",
    // In the data directory, where it goes when the server was killed and its directory is removed.
    "dynamic_shared_memory_type = mmap",
    // A standby may be away for a while and needs what was written meanwhile.
    "wal_keep_size = '256MB'",
];

/// How a standby is made within one session. The copy is no part of the database's work, so it is made by a shell.
const BACKUP: [&str; 3] = [
    "SELECT pg_backup_start('standby', fast => true)",
    r#"\! mkdir -m 700 "$TO" && cp -a "$FROM/." "$TO""#,
    "SELECT labelfile FROM pg_backup_stop(wait_for_archive => false)",
];

/// Returns when the server would wait for its standby.
const UNTIL_SYNCHRONOUS: &str = "SET statement_timeout = '30s'; DO $$ BEGIN
    WHILE NOT EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync') LOOP
        PERFORM pg_sleep(0.005);
        PERFORM pg_stat_clear_snapshot();
    END LOOP;
END $$";

/// A clock that stands before that of the system, in every session that begins after this.
const CLOCK: [&str; 2] = [
    "CREATE SCHEMA clock;
    CREATE TABLE clock.step(seconds bigint NOT NULL);
    INSERT INTO clock.step VALUES (0);
    CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql
        AS 'SELECT pg_catalog.clock_timestamp() + (SELECT seconds FROM clock.step) * interval ''1 second'''",
    "ALTER DATABASE postgres SET search_path = clock, pg_catalog",
];

const RUNS: &str = "the server runs";

/// A server on a port of its own. Dropping it ends it and removes what it stored.
#[derive(Debug)]
pub struct Server {
    installation: Installation,
    port: Port,
    process: Option<Process>,
    /// The children that were stopped with it.
    paused: Mutex<Option<Vec<Pid>>>,
    // The last, so that it is removed when nobody uses it.
    dir: ServerDir,
}

impl Server {
    /// A new one that waits for the disk as it would in production.
    pub fn start(installation: &Installation) -> Self {
        Self::start_with(installation, &[])
    }

    /// A new one that does not wait for the disk. What it has committed survives [`kill`](Self::kill) all the same: only the
    /// machine's own end would lose it.
    pub fn start_fast(installation: &Installation) -> Self {
        Self::start_with(installation, &["fsync = off"])
    }

    /// A new one with these lines in its configuration.
    pub fn start_with(installation: &Installation, settings: &[&str]) -> Self {
        let dir = ServerDir::new();
        installation.make_data(&dir);
        dir.append("data/postgresql.conf", &format!("{}\n{}\n", SETTINGS.join("\n"), settings.join("\n")));
        Self::start_in(installation, dir)
    }

    fn start_in(installation: &Installation, dir: ServerDir) -> Self {
        let mut server = Self { installation: installation.clone(), port: Port::new(), process: None, paused: Mutex::default(), dir };
        for _ in 0..PORTS_MAX {
            if server.try_start() {
                return server;
            }
            assert!(server.log().contains("Address already in use"), "the server did not start: {}", server.log());
            server.port = Port::new();
        }
        panic!("{PORTS_MAX} ports were taken: {}", server.log());
    }

    /// Starts it and waits until it accepts connections. Says whether it does.
    fn try_start(&mut self) -> bool {
        let (data, port) = (self.dir.argument("data"), self.port.number.to_string());
        let mut process = Process::start(&self.dir, "QUIT", &self.installation.program("postgres"), &["-D", &data, "-p", &port]);
        // A standby says that it accepts read-only connections.
        let accepts = process.says("database system is ready to accept");
        if accepts {
            self.process = Some(process);
        } else {
            process.is_gone();
        }
        accepts
    }

    /// Starts it where it was stopped or killed, on the same port with the same data.
    pub fn start_again(&mut self) {
        assert!(self.process.is_none(), "it runs already");
        assert!(self.try_start(), "the server did not start again: {}", self.log());
    }

    /// The programs that it runs with.
    pub fn installation(&self) -> &Installation {
        &self.installation
    }

    /// Its port at 127.0.0.1, the same after every start.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// The database `postgres` as its superuser.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// This database as the superuser.
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port.number)
    }

    /// Makes a database, and gives its address.
    pub fn create_database(&self, name: &str) -> String {
        self.psql(&format!("CREATE DATABASE {name}"));
        self.url_of(name)
    }

    /// Its data directory.
    pub fn data(&self) -> PathBuf {
        self.dir.path("data")
    }

    /// All that it has said so far.
    pub fn log(&self) -> String {
        self.dir.log()
    }

    /// Waits until it says this. What was said before is not looked at twice.
    pub fn wait_for_log(&self, words: &str) {
        let process = self.process.as_ref().expect(RUNS);
        assert!(process.says(words), "the server ended and never said `{words}`: {}", self.log());
    }

    /// Makes or replaces a file in the data directory, such as `pg_hba.conf` or a key, that only the server can read.
    pub fn write_file(&self, name: &str, contents: &str) {
        self.dir.write(&format!("data/{name}"), contents);
    }

    /// Runs SQL in a session of its own: what it returns, unaligned and without headers.
    #[track_caller]
    pub fn psql(&self, sql: &str) -> String {
        match self.try_psql(sql) {
            Ok(said) => said,
            Err(error) => panic!("{sql}: {error}"),
        }
    }

    /// As [`psql`](Self::psql), where an error is expected.
    pub fn try_psql(&self, sql: &str) -> Result<String, String> {
        self.try_psql_at(&self.url(), sql)
    }

    /// As [`try_psql`](Self::try_psql) by way of another address: another database, a pooler, a proxy.
    pub fn try_psql_at(&self, url: &str, sql: &str) -> Result<String, String> {
        run(self.client(url).arg("-c").arg(sql)).map(|said| said.trim_end().to_owned())
    }

    fn client(&self, url: &str) -> Command {
        let mut client = command(&self.installation.psql, &self.dir);
        // A server that is paused takes connections and never answers.
        client.env("PGCONNECT_TIMEOUT", "30");
        client.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url]);
        client
    }

    /// Stops it as an operator does who restarts it: sessions are cut off, and all is stored in order.
    pub fn stop_fast(&mut self) {
        self.end(Signal::INT);
    }

    /// Stops it at once. It recovers at its next start.
    pub fn stop_immediate(&mut self) {
        self.end(Signal::QUIT);
    }

    fn end(&mut self, signal: Signal) {
        assert!(self.paused().is_none(), "a paused server hears nothing");
        let mut process = self.process.take().expect(RUNS);
        assert!(process.signal(signal), "the server had ended by itself: {}", self.log());
        assert!(process.is_gone(), "the server does not end: {}", self.log());
    }

    /// Kills it with all its children, as a power cut would.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect(RUNS);
        self.paused().take();
        assert!(process.is_alive(), "the server had ended by itself: {}", self.log());
        assert!(process.kill(), "the server cannot be killed: {}", self.log());
    }

    /// Kills the process of one session, whose number `pg_backend_pid()` is. The server then restarts all of them.
    pub fn kill_session(&self, pid: i32) {
        let children = self.process.as_ref().expect(RUNS).children();
        let session = children.into_iter().find(|child| child.as_raw_pid() == pid).expect("a session of this server");
        kill_process(session, Signal::KILL).expect("it can be killed");
    }

    /// Stops it and its children without their knowledge. The system still takes connections, and nobody answers.
    pub fn pause(&self) {
        let process = self.process.as_ref().expect(RUNS);
        let mut paused = self.paused();
        assert!(paused.is_none(), "it is paused already");
        assert!(process.is_alive(), "the server had ended by itself: {}", self.log());
        *paused = Some(process.pause());
    }

    /// Lets it go on after a pause.
    pub fn resume(&self) {
        let children = self.paused().take().expect("it is paused");
        self.process.as_ref().expect(RUNS).resume(&children);
    }

    fn paused(&self) -> MutexGuard<'_, Option<Vec<Pid>>> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new standby of this server, which from now on commits nothing that the standby has not stored. If the standby goes away
    /// for good, commits wait until [`forget_standby`](Self::forget_standby).
    pub fn start_standby(&self) -> Self {
        let dir = ServerDir::new();
        let mut client = self.client(&self.url());
        client.env("FROM", self.data()).env("TO", dir.path("data"));
        let said = run(client.args(BACKUP.iter().flat_map(|step| ["-c", *step]))).unwrap_or_else(|error| panic!("no backup: {error}"));
        // The first line says where in the log the backup began; the rest is what the standby needs.
        let (_, label) = said.split_once('\n').unwrap_or_else(|| panic!("no label of the backup: {said}"));
        dir.write("data/backup_label", format!("{}\n", label.trim_end()));
        dir.write("data/standby.signal", "");
        let primary = format!("host=127.0.0.1 port={} user=postgres", self.port.number);
        // It has no standby itself, whatever its primary has.
        dir.append("data/postgresql.auto.conf", &format!("primary_conninfo = '{primary}'\nsynchronous_standby_names = ''\n"));
        let _ = fs::remove_file(dir.path("data/postmaster.pid"));
        let standby = Self::start_in(&self.installation, dir);
        self.psql("ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.psql("SELECT pg_reload_conf()");
        self.psql(UNTIL_SYNCHRONOUS);
        standby
    }

    /// Gives the database `postgres` a clock that [`set_clock`](Self::set_clock) sets, for everybody who connects from now on: it is what
    /// `clock_timestamp()` says.
    pub fn own_clock(&self) {
        for step in CLOCK {
            self.psql(step);
        }
    }

    /// Sets that clock so many seconds ahead of the machine's, or behind it.
    pub fn set_clock(&self, seconds_ahead: i64) {
        self.psql(&format!("UPDATE clock.step SET seconds = {seconds_ahead}"));
    }

    /// Commits without a standby again.
    pub fn forget_standby(&self) {
        self.psql("ALTER SYSTEM SET synchronous_standby_names = ''");
        self.psql("SELECT pg_reload_conf()");
    }

    /// Makes a standby the primary. The old one must not run, or there are two.
    pub fn promote(&self) {
        assert_eq!(self.psql("SELECT pg_promote(true, 30)"), "t", "{}", self.log());
    }

    /// A server that was killed leaves a little of the system's shared memory behind, of which there are few pieces. Its file says
    /// which one it is, and is gone after any other end.
    fn release_memory(&self) {
        let file = fs::read_to_string(self.dir.path("data/postmaster.pid")).unwrap_or_default();
        if let Some(id) = file.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) {
            let _ = Command::new("ipcrm").args(["-m", id]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.resume(&self.paused().take().unwrap_or_default());
            if process.signal(Signal::QUIT) && !process.is_gone() {
                process.kill();
            }
        }
        self.release_memory();
    }
}
