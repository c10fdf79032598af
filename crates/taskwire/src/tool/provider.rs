//! Where tools, prompts and resources come from: Rust code, commands, other servers — each is a [`Provider`].

use std::{collections::BTreeMap, fmt, sync::Arc};

use futures_util::future::BoxFuture;
use serde_json::{Map, Value};
use taskwire_core::task::Accepts;
use tokio::sync::watch;

use super::{ToolError, definition::Ready};
use crate::engine::Resumed;

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

/// A request for a prompt.
#[derive(Debug, Clone)]
pub struct PromptCall {
    /// The prompt's arguments.
    pub arguments: Map<String, Value>,
    /// What the caller brought along when it was asked to call again.
    pub resumed: Resumed,
    /// What the caller can be asked.
    pub accepts: Accepts,
}

/// A request for a resource.
#[derive(Debug, Clone)]
pub struct ResourceCall {
    /// Which.
    pub uri: String,
    /// What the caller brought along when it was asked to call again.
    pub resumed: Resumed,
    /// What the caller can be asked.
    pub accepts: Accepts,
}

/// A request for completions of one argument.
#[derive(Debug, Clone)]
pub struct CompletionRequest {
    /// The prompt's name or the template's URI.
    pub of: String,
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

/// A prompt: its definition and what it gives.
#[derive(Clone)]
pub struct Prompt {
    pub(crate) name: Arc<str>,
    pub(crate) wire: Value,
    pub(crate) get: Handler<PromptCall>,
}

impl Prompt {
    /// A prompt. `wire` is its definition (`name`, `description`, `arguments`); `get` returns a `GetPromptResult`.
    pub fn new<F, Fut>(wire: Value, get: F) -> Self
    where
        F: Fn(PromptCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Value, ToolError>> + Send + 'static,
    {
        let name = wire["name"].as_str().unwrap_or_default().into();
        Self { name, wire, get: Arc::new(move |call| Box::pin(get(call))) }
    }
}

/// A resource: its definition and what it contains.
#[derive(Clone)]
pub struct Resource {
    pub(crate) uri: Arc<str>,
    pub(crate) wire: Value,
    pub(crate) read: Handler<ResourceCall>,
}

impl Resource {
    /// A resource. `wire` is its definition (`uri`, `name`, …); `read` returns a `ReadResourceResult`.
    pub fn new<F, Fut>(wire: Value, read: F) -> Self
    where
        F: Fn(ResourceCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Value, ToolError>> + Send + 'static,
    {
        let uri = wire["uri"].as_str().unwrap_or_default().into();
        Self { uri, wire, read: Arc::new(move |call| Box::pin(read(call))) }
    }
}

/// A family of resources, by a URI template with `{variables}` that match anything but a slash.
#[derive(Clone)]
pub struct Template {
    pub(crate) template: Arc<str>,
    pub(crate) wire: Value,
    pub(crate) read: Handler<ResourceCall>,
}

impl Template {
    /// A template. `wire` is its definition (`uriTemplate`, `name`, …); `read` returns a `ReadResourceResult`.
    pub fn new<F, Fut>(wire: Value, read: F) -> Self
    where
        F: Fn(ResourceCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Value, ToolError>> + Send + 'static,
    {
        let template = wire["uriTemplate"].as_str().unwrap_or_default().into();
        Self { template, wire, read: Arc::new(move |call| Box::pin(read(call))) }
    }

    pub(crate) fn matches(&self, uri: &str) -> bool {
        let (mut pattern, mut rest) = (&*self.template, uri);
        while let Some((literal, tail)) = pattern.split_once('{') {
            let (Some(after), Some((_, next))) = (rest.strip_prefix(literal), tail.split_once('}')) else { return false };
            let stop = next.chars().next().filter(|c| *c != '{');
            let end = after.find(|c| Some(c) == stop || c == '/').unwrap_or(after.len());
            if end == 0 {
                return false;
            }
            (pattern, rest) = (next, &after[end..]);
        }
        pattern == rest
    }
}

macro_rules! debug_as_wire {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), " {}"), self.wire)
            }
        }
    )*};
}
debug_as_wire!(Prompt, Resource, Template);

/// A source of tools, prompts and resources.
///
/// Lists are in a stable order. What is looked up by name is in the list, and the other way round.
pub trait Provider: Send + Sync + 'static {
    /// All tools.
    fn tools(&self) -> Vec<Arc<ReadyTool>>;

    /// The tool of this name.
    fn tool(&self, name: &str) -> Option<Arc<ReadyTool>>;

    /// What goes on with the tasks of a tool that is no longer there, if anything can.
    fn retired(&self, name: &str) -> Option<Arc<ReadyTool>> {
        let _ = name;
        None
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
    fn templates(&self) -> Vec<Template> {
        Vec::new()
    }

    /// Values for an argument; `None` if nothing here has it.
    fn complete(&self, request: CompletionRequest) -> BoxFuture<'_, Option<Completion>> {
        let _ = request;
        Box::pin(async { None })
    }

    /// Tells of changes.
    fn changes(&self) -> watch::Receiver<Changes>;
}

/// A tool that has been checked: made by [`Registry`](super::Registry) from a [`Tool`](super::Tool).
#[derive(Debug)]
pub struct ReadyTool(pub(crate) Ready);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_match_whole_uris() {
        let template = Template::new(json!({"uriTemplate": "test://t/{id}/data"}), |_| async { Ok(json!({})) });
        assert!(template.matches("test://t/123/data"));
        for other in ["test://t//data", "test://t/1/2/data", "test://t/1/data/", "test://t/1", "x"] {
            assert!(!template.matches(other), "{other}");
        }
    }
}
