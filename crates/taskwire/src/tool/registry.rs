//! Tools, prompts and resources written in Rust.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use futures_util::future::BoxFuture;
use taskwire_core::{Payload, TaskId};
use tokio::sync::watch;

use super::{
    Prompt, Resource, ResourceTemplate,
    definition::{CheckedTool, Tool},
    provider::{Changes, Completion, CompletionRequest, Provider, ReadyTool},
    schema::InvalidSchema,
};

type Completer = Arc<dyn Fn(CompletionRequest) -> BoxFuture<'static, Option<Completion>> + Send + Sync>;

#[derive(Default)]
struct Lists {
    tools: Vec<Arc<ReadyTool>>,
    prompts: Vec<Prompt>,
    resources: Vec<Resource>,
    templates: Vec<ResourceTemplate>,
    completer: Option<Completer>,
    retired_tool: Option<Arc<ReadyTool>>,
    local_work: Option<Arc<dyn LocalWork>>,
}

/// Work that goes on beside this process, on its machine.
pub(crate) trait LocalWork: Send + Sync {
    /// See [`Provider::has_work_of`].
    fn has_work_of(&self, task: TaskId, checkpoint: Option<&Payload>) -> bool;

    /// Free slots of a tool of this name, if it has slots.
    fn free_slots(&self, tool: &str) -> usize;
}

/// A provider that is filled by code. It may change while it is served; listeners are notified.
#[derive(Clone, Default)]
pub struct Registry {
    lists: Arc<RwLock<Lists>>,
    changes: Arc<watch::Sender<Changes>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("tools", &self.read().tools.len()).finish_non_exhaustive()
    }
}

impl Registry {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn read(&self) -> RwLockReadGuard<'_, Lists> {
        self.lists.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Lists> {
        self.lists.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a tool, or replaces the one of the same name.
    ///
    /// # Errors
    /// When its name or one of its schemas cannot be used.
    pub fn tool(&self, tool: Tool) -> Result<&Self, InvalidSchema> {
        let ready = Arc::new(ReadyTool(CheckedTool::check(tool)?));
        {
            let mut lists = self.write();
            match lists.tools.iter_mut().find(|known| known.0.name == ready.0.name) {
                Some(known) => *known = ready,
                None => lists.tools.push(ready),
            }
        }
        self.changes.send_modify(|changes| changes.tools += 1);
        Ok(self)
    }

    /// Replaces all tools at once, also those whose definition stays the same. Running tasks go on with the old code. If one tool cannot be
    /// used, nothing changes.
    ///
    /// # Errors
    /// When a name or a schema cannot be used.
    pub fn set_tools(&self, tools: Vec<Tool>) -> Result<&Self, InvalidSchema> {
        let ready =
            tools.into_iter().map(|tool| Ok(Arc::new(ReadyTool(CheckedTool::check(tool)?)))).collect::<Result<_, InvalidSchema>>()?;
        self.write().tools = ready;
        self.changes.send_modify(|changes| changes.tools += 1);
        Ok(self)
    }

    /// Removes a tool. Its running tasks go on.
    pub fn remove_tool(&self, name: &str) -> &Self {
        self.write().tools.retain(|tool| &*tool.0.name != name);
        self.changes.send_modify(|changes| changes.tools += 1);
        self
    }

    /// Sets the tool that continues the tasks of tools that were removed.
    ///
    /// # Errors
    /// When its name or one of its schemas cannot be used.
    pub(crate) fn set_retired_tool(&self, tool: Tool) -> Result<&Self, InvalidSchema> {
        self.write().retired_tool = Some(Arc::new(ReadyTool(CheckedTool::check(tool)?)));
        Ok(self)
    }

    pub(crate) fn set_local_work(&self, work: Arc<dyn LocalWork>) {
        self.write().local_work = Some(work);
    }

    /// Adds a prompt, or replaces the one of the same name.
    pub fn prompt(&self, prompt: Prompt) -> &Self {
        {
            let mut lists = self.write();
            lists.prompts.retain(|known| known.name != prompt.name);
            lists.prompts.push(prompt);
        }
        self.changes.send_modify(|changes| changes.prompts += 1);
        self
    }

    /// Removes a prompt.
    pub fn remove_prompt(&self, name: &str) -> &Self {
        self.write().prompts.retain(|prompt| &*prompt.name != name);
        self.changes.send_modify(|changes| changes.prompts += 1);
        self
    }

    /// Adds a resource, or replaces the one of the same URI.
    pub fn resource(&self, resource: Resource) -> &Self {
        {
            let mut lists = self.write();
            lists.resources.retain(|known| known.uri != resource.uri);
            lists.resources.push(resource);
        }
        self.changes.send_modify(|changes| changes.resources += 1);
        self
    }

    /// Adds a resource template.
    pub fn template(&self, template: ResourceTemplate) -> &Self {
        self.write().templates.push(template);
        self.changes.send_modify(|changes| changes.resources += 1);
        self
    }

    /// Notifies listeners that a resource has changed.
    pub fn resource_updated(&self, uri: &str) -> &Self {
        self.changes.send_modify(|changes| *changes.updated.entry(uri.to_owned()).or_default() += 1);
        self
    }

    /// Sets the function that completes arguments.
    pub fn completions<F, Fut>(&self, complete: F) -> &Self
    where
        F: Fn(CompletionRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<Completion>> + Send + 'static,
    {
        self.write().completer = Some(Arc::new(move |request| Box::pin(complete(request))));
        self
    }
}

impl Provider for Registry {
    fn tools(&self) -> Vec<Arc<ReadyTool>> {
        self.read().tools.clone()
    }

    fn tool(&self, name: &str) -> Option<Arc<ReadyTool>> {
        self.read().tools.iter().find(|tool| &*tool.0.name == name).cloned()
    }

    fn retired_tool(&self, _name: &str) -> Option<Arc<ReadyTool>> {
        self.read().retired_tool.clone()
    }

    fn has_work_of(&self, task: TaskId, checkpoint: Option<&Payload>) -> bool {
        let local_work = self.read().local_work.clone();
        local_work.is_some_and(|work| work.has_work_of(task, checkpoint))
    }

    fn free_slots(&self) -> Vec<(String, usize)> {
        let lists = self.read();
        let Some(work) = &lists.local_work else { return Vec::new() };
        let names = lists.tools.iter().map(|tool| &*tool.0.name);
        names.map(|name| (name.to_owned(), work.free_slots(name))).filter(|(_, free)| *free > 0).collect()
    }

    fn prompts(&self) -> Vec<Prompt> {
        self.read().prompts.clone()
    }

    fn resources(&self) -> Vec<Resource> {
        self.read().resources.clone()
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        self.read().templates.clone()
    }

    fn complete(&self, request: CompletionRequest) -> BoxFuture<'_, Option<Completion>> {
        let completer = self.read().completer.clone();
        Box::pin(async move { completer?(request).await })
    }

    fn changes(&self) -> watch::Receiver<Changes> {
        self.changes.subscribe()
    }
}
