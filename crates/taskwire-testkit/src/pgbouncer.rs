//! A pooler between a test and its server.

use std::{env, path::PathBuf};

use crate::{
    Server,
    installation::missing,
    process::{Port, Process, ServerDir},
};

/// Somebody else may be faster at a port. More often than this, and it is no coincidence.
const PORTS_MAX: usize = 10;

/// How long a client keeps a connection of the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PoolMode {
    /// Until the client is gone.
    Session,
    /// Until a transaction ends. `LISTEN` and named statements do not work.
    Transaction,
}

/// A pooler on a port of its own, with the databases of one server. Dropping it ends it.
#[derive(Debug)]
pub struct Pgbouncer {
    port: Port,
    process: Process,
    // The last, so that it is removed when nobody uses it.
    dir: ServerDir,
}

impl Pgbouncer {
    /// Starts one before this server.
    pub fn start(server: &Server, mode: PoolMode) -> Self {
        Self::start_with(server, mode, &[])
    }

    /// As [`start`](Self::start), with these lines in its configuration.
    pub fn start_with(server: &Server, mode: PoolMode, settings: &[&str]) -> Self {
        let program = find().unwrap_or_else(|missing| panic!("{missing}"));
        let dir = ServerDir::new();
        dir.write("users", "\"postgres\" \"\"\n");
        let mode = match mode {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
        };
        for _ in 0..PORTS_MAX {
            let port = Port::new();
            let lines = [
                "[databases]".to_owned(),
                format!("* = host=127.0.0.1 port={}", server.port()),
                "[pgbouncer]".to_owned(),
                format!("listen_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =", port.number),
                format!("auth_type = trust\nauth_file = {}\nadmin_users = postgres", dir.argument("users")),
                format!("pool_mode = {mode}"),
                settings.join("\n"),
            ];
            dir.write("pgbouncer.ini", lines.join("\n") + "\n");
            let mut process = Process::start(&dir, "KILL", &program, &[&dir.argument("pgbouncer.ini")]);
            if process.says("process up") {
                return Self { port, process, dir };
            }
            process.is_gone();
            assert!(dir.log().contains("Address already in use"), "the pooler did not start: {}", dir.log());
        }
        panic!("{PORTS_MAX} ports were taken: {}", dir.log());
    }

    /// Its port at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// The database `postgres` as the server's superuser.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port.number)
    }

    /// All that it has said so far.
    pub fn log(&self) -> String {
        self.dir.log()
    }
}

impl Drop for Pgbouncer {
    fn drop(&mut self) {
        self.process.kill();
    }
}

/// Where it is, or what to do about it.
fn find() -> Result<PathBuf, String> {
    let variable = "TASKWIRE_PGBOUNCER";
    let program = env::var_os(variable).map_or_else(|| PathBuf::from("/usr/sbin/pgbouncer"), PathBuf::from);
    if program.is_file() { Ok(program) } else { Err(missing("pgbouncer", variable)) }
}
