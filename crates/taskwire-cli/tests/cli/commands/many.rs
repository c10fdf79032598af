//! A thousand command tasks at once: they wait for their turn, all complete, and the server stays small.

use std::{fs, sync::Mutex, thread};

use serde_json::json;

use super::{
    command_server::result_text,
    server_dir::{ServerDir, tool},
};

const TASKS: usize = 1000;
const CONCURRENCY: usize = 4;
/// Who start them.
const CALLERS: usize = 20;
/// What the server may need at most, also in a build that is not optimized.
const MEMORY_MIB: u64 = 200;

/// The most memory that a process has ever had.
pub(super) fn memory_peak_mib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the server is there");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its memory");
    peak.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}

#[test]
fn a_thousand_tasks_wait_for_their_turn_and_all_complete_within_little_memory() {
    let keys = format!(
        "command = [\"sh\", \"short.sh\", \"{{n}}\"]\ninput = {{ n = {{ type = \"integer\" }} }}\ntask = \"always\"\nconcurrency = {CONCURRENCY}"
    );
    let server_dir = ServerDir::new(&format!("[limits]\ntasks_per_caller = {}\n\n{}", 2 * TASKS, tool("short", &keys)));
    server_dir.write("short.sh", "echo begin >> notes\necho \"this is $1\"\necho end >> notes\n");
    let server = server_dir.start();
    let (queue, ids) = (Mutex::new(0..TASKS), Mutex::new(Vec::with_capacity(TASKS)));
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                let next = || queue.lock().expect("nobody panics while they hold it").next();
                while let Some(n) = next() {
                    let id = server.begin("short", json!({"n": n}));
                    ids.lock().expect("nobody panics while they hold it").push((n, id));
                }
            });
        }
    });
    for (n, id) in ids.into_inner().expect("nobody panicked") {
        assert_eq!(result_text(&server.result(&id)), format!("this is {n}\n"));
    }
    server_dir.is_quiet();
    let (mut running, mut most) = (0_usize, 0);
    let notes = server_dir.lines("notes", 2 * TASKS);
    for note in &notes {
        running = if note == "begin" { running + 1 } else { running - 1 };
        most = most.max(running);
    }
    assert_eq!((notes.len(), running), (2 * TASKS, 0), "each was run once");
    assert!(most <= CONCURRENCY, "{most} at one time");
    assert!(most > 1, "only one at a time");
    let peak = memory_peak_mib(server.pid());
    eprintln!("at most {most} commands at one time, at most {peak} MiB");
    assert!(peak < MEMORY_MIB, "{peak} MiB");
}
