//! The pure core of Taskwire: what a task is, what may be asked of it, and what follows from that.
//!
//! Nothing here does input or output, reads a clock, draws a random number or spawns anything (invariant I1):
//! time and randomness come in as values, decisions go out as events.
//!
//! # Layout
//! - [`task`]: the state machine — [`decide`](task::decide), [`evolve`](task::evolve), [`wants`](task::wants)
//! - [`id`]: ids and numbers; [`time`]: moments; [`trace`]: places in a trace; [`payload`]: JSON that is carried, not opened
//! - [`limits`]: every limit of the state machine; [`screen`]: text as a terminal shows it
//! - [`wire`]: JSON-RPC shapes shared by every era, and the client's side of streamed results

pub mod id;
pub mod limits;
pub mod payload;
pub mod screen;
pub mod task;
pub mod time;
pub mod trace;
pub mod wire;

pub use id::{Attempt, CallerId, Epoch, QuestionKey, Seq, SessionId, TaskId, Version};
pub use limits::Limits;
pub use payload::Payload;
pub use time::Timestamp;
pub use trace::{TraceContext, TraceParent};
