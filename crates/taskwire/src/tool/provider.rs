//! Where tools, prompts and resources come from: Rust code, commands, other servers — each is a [`Provider`].

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::BoxFuture;
use serde_json::Value;
use taskwire_core::{Payload, TaskId};
use tokio::sync::watch;

use super::{Prompt, Resource, ResourceTemplate, ToolError, definition::CheckedTool};

/// How often each list has changed, and each resource.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// The list of tools.
    pub tools: u64,
    /// The list of prompts.
    pub prompts: u64,
    /// The list of resources.
    pub resources: u64,
    /// Single resources, by URI.
    pub updated: BTreeMap<String, u64>,
}

/// A request for completions of one argument.
#[derive(Debug, Clone)]
pub struct CompletionRequest {
    /// The prompt's name or the template's URI.
    pub reference: String,
    /// Which argument.
    pub argument: String,
    /// What has been typed so far.
    pub value: String,
}

/// Possible values of an argument.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Completion {
    /// At most 100 are sent.
    pub values: Vec<String>,
}

pub(crate) type Handler<I> = Arc<dyn Fn(I) -> BoxFuture<'static, Result<Value, ToolError>> + Send + Sync>;

/// A source of tools, prompts and resources.
///
/// Lists are in a stable order. A lookup by name finds exactly what is listed.
pub trait Provider: Send + Sync + 'static {
    /// All tools.
    fn tools(&self) -> Vec<Arc<ReadyTool>>;

    /// The tool of this name.
    fn tool(&self, name: &str) -> Option<Arc<ReadyTool>>;

    /// The tool that continues the tasks of a tool that was removed, if there is one.
    fn retired_tool(&self, name: &str) -> Option<Arc<ReadyTool>> {
        let _ = name;
        None
    }

    /// Whether work of this task goes on beside this process, so that this process can go on with it: a command that runs on this
    /// machine, as its last checkpoint says.
    fn has_work_of(&self, task: TaskId, checkpoint: Option<&Payload>) -> bool {
        let _ = (task, checkpoint);
        false
    }

    /// Tools whose work may wait for a slot, and for which there are free ones, with their numbers.
    fn free_slots(&self) -> Vec<(String, usize)> {
        Vec::new()
    }

    /// All prompts.
    fn prompts(&self) -> Vec<Prompt> {
        Vec::new()
    }

    /// All resources.
    fn resources(&self) -> Vec<Resource> {
        Vec::new()
    }

    /// All templates.
    fn templates(&self) -> Vec<ResourceTemplate> {
        Vec::new()
    }

    /// Values for an argument; `None` if this provider does not have it.
    fn complete(&self, request: CompletionRequest) -> BoxFuture<'_, Option<Completion>> {
        let _ = request;
        Box::pin(async { None })
    }

    /// Notifies of changes.
    fn changes(&self) -> watch::Receiver<Changes>;
}

/// A tool that has been checked: made by [`Registry`](super::Registry) from a [`Tool`](super::Tool).
#[derive(Debug)]
pub struct ReadyTool(pub(crate) CheckedTool);
