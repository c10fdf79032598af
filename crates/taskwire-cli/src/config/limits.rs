//! `[limits]`: the bounds on tasks.

use serde::Deserialize;
use taskwire_core::Limits;

use super::set;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LimitsTable {
    /// One chunk of output, at least 1024; as much may wait to be written. Default: `262144`.
    chunk_bytes: Option<u64>,
    /// One content block such as an image, as JSON; a block that is too large for a chunk becomes a resource with a link.
    /// Default: `8388608`.
    block_bytes: Option<u64>,
    /// All output of one task, as JSON; beyond it a command loses its oldest output and any other tool fails, unless the
    /// tool says otherwise. Default: `67108864`.
    task_output_bytes: Option<u64>,
    /// Output of one task in a second, at least 1024; a tool that writes faster has to wait. Default: `33554432`.
    output_bytes_per_second: Option<u64>,
    /// Questions of one task. Default: `1000`.
    questions_per_task: Option<u64>,
    /// All questions and answers of one task. Default: `4194304`.
    question_bytes_per_task: Option<u64>,
    /// Status messages, questions and answers of one task. Default: `100000`.
    events_per_task: Option<u64>,
    /// One status message. Default: `4096`.
    message_bytes: Option<u64>,
    /// One question, answer or checkpoint. Default: `1048576`.
    value_bytes: Option<u64>,
    /// One final result. Default: `16777216`.
    result_bytes: Option<u64>,
    /// Tasks of one caller that have not ended. Default: `1000`.
    tasks_per_caller: Option<u64>,
    /// Calls of one caller in a second that start work; twice as many if it made none before. One more gets status 429. `0` turns this
    /// off. Default: `0`.
    creates_per_second_per_caller: Option<u64>,
    /// Requests of one caller in a second, calls, polls and whatever else it asks by HTTP included; twice as many if it made none before.
    /// One more gets status 429. `0` turns this off. Default: `0`.
    requests_per_second_per_caller: Option<u64>,
    /// All tasks of one caller in the store, at least 65536; ended tasks count until they are forgotten. Default: `4294967296`.
    stored_bytes_per_caller: Option<u64>,
    /// Free space on the disk. With less, no task is made; with half of it, running tasks write no more; `0` turns this off.
    /// Default: `268435456`.
    disk_reserve_bytes: Option<u64>,
    /// Memory of the server, without what it has mapped from files. With more, calls and streams get status 503, until it is a tenth less;
    /// `0` turns this off. Default: `0`.
    memory_bytes: Option<u64>,
    /// Changes that the stream of a session may be behind; older ones are left out. Default: `4096`.
    changes_per_session: Option<u64>,
}

impl LimitsTable {
    /// Applies the values that are set.
    pub(super) fn apply(&self, limits: &mut Limits) {
        set(&mut limits.chunk_bytes, self.chunk_bytes);
        set(&mut limits.block_bytes, self.block_bytes);
        set(&mut limits.task_output_bytes, self.task_output_bytes);
        set(&mut limits.output_bytes_per_second, self.output_bytes_per_second);
        set(&mut limits.questions_per_task, self.questions_per_task);
        set(&mut limits.question_bytes_per_task, self.question_bytes_per_task);
        set(&mut limits.events_per_task, self.events_per_task);
        set(&mut limits.message_bytes, self.message_bytes);
        set(&mut limits.value_bytes, self.value_bytes);
        set(&mut limits.result_bytes, self.result_bytes);
        set(&mut limits.tasks_per_caller, self.tasks_per_caller);
        set(&mut limits.creates_per_second_per_caller, self.creates_per_second_per_caller);
        set(&mut limits.requests_per_second_per_caller, self.requests_per_second_per_caller);
        set(&mut limits.stored_bytes_per_caller, self.stored_bytes_per_caller);
        set(&mut limits.disk_reserve_bytes, self.disk_reserve_bytes);
        set(&mut limits.memory_bytes, self.memory_bytes);
        set(&mut limits.changes_per_session, self.changes_per_session);
    }
}
