//! What the other tests rely on: servers really end, pause, recover and replicate, and nothing of them is left.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use taskwire_testkit::{Installation, Pgbouncer, PoolMode, Server};

/// How long to look whether somebody who must not answer does. It is waited for to the end.
const QUIET: Duration = Duration::from_millis(300);
/// How long anything may take.
const TIMEOUT: Duration = Duration::from_secs(30);

fn on_all(test: impl Fn(&Installation)) {
    for installation in Installation::all() {
        eprintln!("PostgreSQL {}", installation.major());
        test(&installation);
    }
}

#[test]
#[ignore = "needs PostgreSQL"]
fn what_is_committed_survives_every_end() {
    on_all(|installation| {
        let mut server = Server::start_fast(installation);
        server.psql("CREATE TABLE t (n int)");
        for (n, end) in (1..).zip([Server::stop_fast, Server::stop_immediate, Server::kill]) {
            server.psql(&format!("INSERT INTO t VALUES ({n})"));
            end(&mut server);
            assert!(server.try_psql("SELECT 1").is_err(), "it is gone");
            server.start_again();
            assert_eq!(server.psql("SELECT count(*) FROM t"), n.to_string());
        }
        let url = server.create_database("other");
        assert_eq!(server.try_psql_at(&url, "SELECT current_database()").as_deref(), Ok("other"));
    });
}

#[test]
#[ignore = "needs PostgreSQL"]
fn the_death_of_a_session_restarts_the_others() {
    on_all(|installation| {
        let server = Server::start_fast(installation);
        // No client's session, but as good as one, and always there.
        let session = server.psql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'");
        server.kill_session(session.parse().expect("a number"));
        server.wait_for_log("database system is ready to accept");
        assert_eq!(server.psql("SELECT 1"), "1");
    });
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_paused_server_answers_when_it_goes_on() {
    on_all(|installation| {
        let server = &Server::start_with(installation, &["fsync = off", "max_connections = 7"]);
        assert_eq!(server.psql("SHOW max_connections"), "7");
        server.pause();
        let (sender, answer) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || sender.send(server.try_psql("SELECT 2")));
            assert_eq!(answer.recv_timeout(QUIET), Err(RecvTimeoutError::Timeout), "nobody answers");
            server.resume();
            assert_eq!(answer.recv_timeout(TIMEOUT).expect("an answer").as_deref(), Ok("2"));
        });
    });
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_standby_is_promoted_with_all_that_was_committed() {
    on_all(|installation| {
        let mut first = Server::start_fast(installation);
        first.psql("CREATE TABLE t (n int)");
        let second = first.start_standby();
        first.psql("INSERT INTO t VALUES (1)");
        first.kill();
        second.promote();
        assert_eq!(second.psql("SELECT count(*) FROM t"), "1");
        let third = second.start_standby();
        second.psql("INSERT INTO t VALUES (2)");
        assert_eq!(third.psql("SELECT pg_is_in_recovery()"), "t");
        drop(third);
        second.forget_standby();
        second.psql("INSERT INTO t VALUES (3)");
    });
}

#[test]
#[ignore = "needs PostgreSQL"]
fn the_clock_of_a_database_is_set() {
    const AHEAD: &str = "SELECT round(extract(epoch FROM clock_timestamp() - pg_catalog.clock_timestamp()) / 3600)";
    on_all(|installation| {
        let server = Server::start_fast(installation);
        assert_eq!(server.psql(AHEAD), "0");
        server.own_clock();
        for (seconds, hours) in [(0, "0"), (3_600, "1"), (-7_200, "-2")] {
            server.set_clock(seconds);
            assert_eq!(server.psql(AHEAD), hours);
        }
    });
}

#[test]
#[ignore = "needs PostgreSQL"]
fn a_pooler_passes_on() {
    on_all(|installation| {
        let server = Server::start_fast(installation);
        for mode in [PoolMode::Session, PoolMode::Transaction] {
            let pooler = Pgbouncer::start_with(&server, mode, &["default_pool_size = 3"]);
            assert_ne!(pooler.port(), server.port());
            assert_eq!(server.try_psql_at(&pooler.url(), "SELECT 1").as_deref(), Ok("1"), "{}", pooler.log());
        }
    });
}

#[test]
#[ignore = "needs PostgreSQL"]
fn nothing_is_left_of_a_server_whose_test_was_killed() {
    const KILLED: &str = "TASKWIRE_TESTKIT_KILLED";
    if std::env::var_os(KILLED).is_some() {
        to_be_killed();
    }
    let mut test = Command::new(std::env::current_exe().expect("this program"));
    test.args(["--exact", "nothing_is_left_of_a_server_whose_test_was_killed", "--ignored", "--nocapture"]).env(KILLED, "1");
    let mut test = test.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(test.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    let data = lines.find_map(|line| line.strip_prefix("data ").map(str::to_owned)).expect("it says where its server is");
    let lock = fs::read_to_string(Path::new(&data).join("postmaster.pid")).expect("a server runs there");
    let process = PathBuf::from(format!("/proc/{}", lock.lines().next().expect("its number")));
    assert!(process.exists());
    test.kill().expect("it can be killed");
    test.wait().expect("it is gone");
    // Nobody is left to say when. A server that was paused takes five seconds.
    let dir = Path::new(&data).parent().expect("a directory");
    for _ in 0..3_000 {
        if !dir.exists() && !process.exists() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{} or {} is left", dir.display(), process.display());
}

/// Has a server that is paused, the hardest to end, and says where.
fn to_be_killed() -> ! {
    let server = Server::start_fast(&Installation::of(15));
    let _pooler = Pgbouncer::start(&server, PoolMode::Session);
    server.pause();
    println!("\ndata {}", server.data().display());
    loop {
        thread::park();
    }
}
