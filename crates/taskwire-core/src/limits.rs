//! Every limit of the state machine, with its default. A command beyond one gets a [`Reject`](crate::task::Reject) that names
//! the configuration key.

/// Bounds on tasks, most of which [`decide`](crate::task::decide) enforces. Each field is a key under `[limits]` in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one chunk, its blocks together.
    pub chunk_bytes: u64,
    /// Bytes of one content block; one that is too large for a chunk is written in parts.
    pub block_bytes: u64,
    /// Bytes of all chunks of one task; then its tool's [`Overflow`](crate::task::Overflow) decides.
    pub task_output_bytes: u64,
    /// Bytes that one task may write in a second; a tool that is faster is made to wait.
    pub output_bytes_per_second: u64,
    /// Questions that one task may ask.
    pub questions_per_task: u64,
    /// Bytes of all questions and answers of one task.
    pub question_bytes_per_task: u64,
    /// Events that one task may have besides its chunks; the ends of a task are always allowed.
    pub events_per_task: u64,
    /// Bytes of one status message.
    pub message_bytes: u64,
    /// Bytes of one question, one answer, or one checkpoint.
    pub value_bytes: u64,
    /// Bytes of a final result.
    pub result_bytes: u64,
    /// Tasks of one caller that have not ended.
    pub tasks_per_caller: u64,
    /// Calls of one caller in a second that start work; twice as many if it made none before. Zero turns it off.
    pub creates_per_second_per_caller: u64,
    /// Requests of one caller in a second; twice as many if it made none before. Zero turns it off.
    pub requests_per_second_per_caller: u64,
    /// Bytes that all tasks of one caller take in the store, also those that have ended, until they are forgotten. The end of a task is
    /// stored beyond it.
    pub stored_bytes_per_caller: u64,
    /// Bytes that are to stay free on the disk: with less, no task is made; with less than half of it, running ones write no more. Zero
    /// turns it off.
    pub disk_reserve_bytes: u64,
    /// Bytes that the server may have in memory; with more, no call and no stream begins. Zero turns it off.
    pub memory_bytes: u64,
    /// Changes that the outbox of a session keeps; older ones are dropped.
    pub changes_per_session: u64,
}

impl Limits {
    /// The defaults of the configuration.
    pub const DEFAULT: Self = Self {
        chunk_bytes: 256 * 1024,
        block_bytes: 8 * 1024 * 1024,
        task_output_bytes: 64 * 1024 * 1024,
        output_bytes_per_second: 32 * 1024 * 1024,
        questions_per_task: 1_000,
        question_bytes_per_task: 4 * 1024 * 1024,
        events_per_task: 100_000,
        message_bytes: 4 * 1024,
        value_bytes: 1024 * 1024,
        result_bytes: 16 * 1024 * 1024,
        tasks_per_caller: 1_000,
        creates_per_second_per_caller: 0,
        requests_per_second_per_caller: 0,
        stored_bytes_per_caller: 4 * 1024 * 1024 * 1024,
        disk_reserve_bytes: 256 * 1024 * 1024,
        memory_bytes: 0,
        changes_per_session: 4_096,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const _: () = assert!(Limits::DEFAULT.chunk_bytes <= Limits::DEFAULT.block_bytes);
const _: () = assert!(Limits::DEFAULT.block_bytes * 2 <= Limits::DEFAULT.task_output_bytes);
const _: () = assert!(Limits::DEFAULT.chunk_bytes <= Limits::DEFAULT.output_bytes_per_second);
const _: () = assert!(Limits::DEFAULT.message_bytes <= Limits::DEFAULT.value_bytes);
const _: () = assert!(Limits::DEFAULT.value_bytes <= Limits::DEFAULT.question_bytes_per_task);
const _: () = assert!(Limits::DEFAULT.questions_per_task * 2 <= Limits::DEFAULT.events_per_task);
const _: () = assert!(Limits::DEFAULT.task_output_bytes * 2 <= Limits::DEFAULT.stored_bytes_per_caller);
const _: () = assert!(Limits::DEFAULT.result_bytes * 4 <= Limits::DEFAULT.disk_reserve_bytes);
