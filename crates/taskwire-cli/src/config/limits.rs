//! `[limits]`: the bounds on tasks.

use serde::Deserialize;
use taskwire_core::Limits;

use super::set;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LimitsTable {
    chunk_bytes: Option<u64>,
    block_bytes: Option<u64>,
    task_output_bytes: Option<u64>,
    output_bytes_per_second: Option<u64>,
    inputs_per_task: Option<u64>,
    input_bytes_per_task: Option<u64>,
    events_per_task: Option<u64>,
    message_bytes: Option<u64>,
    value_bytes: Option<u64>,
    result_bytes: Option<u64>,
    tasks_per_caller: Option<u64>,
    stored_bytes_per_caller: Option<u64>,
    disk_reserve_bytes: Option<u64>,
    session_events: Option<u64>,
}

impl LimitsTable {
    /// Puts what is set in its place.
    pub(super) fn apply(&self, limits: &mut Limits) {
        set(&mut limits.chunk_bytes, self.chunk_bytes);
        set(&mut limits.block_bytes, self.block_bytes);
        set(&mut limits.task_output_bytes, self.task_output_bytes);
        set(&mut limits.output_bytes_per_second, self.output_bytes_per_second);
        set(&mut limits.inputs_per_task, self.inputs_per_task);
        set(&mut limits.input_bytes_per_task, self.input_bytes_per_task);
        set(&mut limits.events_per_task, self.events_per_task);
        set(&mut limits.message_bytes, self.message_bytes);
        set(&mut limits.value_bytes, self.value_bytes);
        set(&mut limits.result_bytes, self.result_bytes);
        set(&mut limits.tasks_per_caller, self.tasks_per_caller);
        set(&mut limits.stored_bytes_per_caller, self.stored_bytes_per_caller);
        set(&mut limits.disk_reserve_bytes, self.disk_reserve_bytes);
        set(&mut limits.session_events, self.session_events);
    }
}
