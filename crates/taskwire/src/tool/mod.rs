//! Writing tools: what a tool is, what it gets, what it may return. Start with [`Tool`] and [`Ctx`].
//!
//! This folder knows the shapes of MCP that all eras share (content blocks, tool definitions), but no transport and no era.

mod annotations;
mod answer;
mod content;
mod ctx;
mod definition;
mod error;
mod nulls;
mod portable;
mod progress;
mod prompt;
mod provider;
mod question;
mod registry;
mod resource;
mod schema;
mod typed;

pub use crate::engine::Continuation;
pub use annotations::Annotations;
pub(crate) use answer::{answer_constraints, check_answer, check_any_answer};
pub(crate) use content::FAILURE_REASON;
pub use content::{CallResult, Content, IntoResult, Json};
pub use ctx::Ctx;
pub(crate) use definition::is_tool_name;
pub use definition::{Policy, TaskMode, Tool};
pub use error::{InputRequired, ToolError};
pub(crate) use error::{ToolErrorKind, from_engine};
pub use portable::portability;
pub use progress::{Amount, Progress};
pub use prompt::{IntoPrompt, Message, Prompt, PromptCall};
pub(crate) use provider::Handler;
pub use provider::{Changes, Completion, CompletionRequest, Provider, ReadyTool};
pub use question::{Answer, Question};
pub(crate) use question::{REFUSED, missing_capabilities_of};
pub(crate) use registry::LocalWork;
pub use registry::Registry;
pub use resource::{IntoContents, Resource, ResourceCall, ResourceTemplate};
pub use schema::InvalidSchema;
pub(crate) use schema::{header_params, integer};
pub use taskwire_core::task::Overflow;

pub(crate) use crate::schema::Schema;
