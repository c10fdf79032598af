//! The task state machine. Start with [`decide`], then [`evolve`], then [`wants`].
//!
//! A task is one ordered log of [`Event`]s. [`decide`] turns a [`Command`] into events or a [`Reject`]; [`evolve`] alone
//! changes a [`Task`] (invariant I2); [`wants`] says what the engine must do for it (invariant I8).
//! Must not know: stores, wire formats, protocol eras.

mod blocks;
mod command;
mod decide;
mod event;
mod evolve;
mod state;
mod wants;

#[cfg(test)]
mod tests;

pub use blocks::{Blocks, ChunkBuilder, ESCAPE_MAX};
pub use command::{Authority, Command, NewTask, Reject};
pub use decide::{check_limit, check_status, decide, limit_result, timed_out};
pub use event::{Event, Outcome, Progress, RpcError};
pub use evolve::{create, evolve, evolve_to};
pub use state::{AcceptedQuestions, OnInterrupt, OutboxTarget, OutputTotals, Overflow, QuestionState, Spec, Status, Task, Waiting};
pub use wants::{Wants, wants};
