//! `subscriptions/listen`: the current state of each task right after the acknowledgement, then every change.
//!
//! For each task the stream keeps a cursor into its log. A wake-up makes it read on; what it reads it folds into the
//! task and shows. A slow reader lags and misses nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use taskwire_core::{
    TaskId, Version,
    task::{Task, evolve},
};
use tokio::sync::watch;

use super::{Cx, Done, SUBSCRIPTION_ID, json::Object, meta::Members, view};
use crate::{dialect::Fault, engine, tool::Changes};

/// Events read at once.
const PAGE: usize = 64;

#[derive(Deserialize)]
struct Listen {
    notifications: Members<Filter>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Filter {
    tools_list_changed: bool,
    prompts_list_changed: bool,
    resources_list_changed: bool,
    resource_subscriptions: Vec<String>,
    task_ids: Option<Vec<String>>,
}

pub(super) async fn listen(cx: &Cx<'_>) -> Result<Done, Fault> {
    let Listen { notifications: Members(mut filter) } = cx.read()?;
    if filter.task_ids.is_some() {
        cx.needs_tasks()?;
    }
    let named = filter.task_ids.as_ref().map_or(0, Vec::len) + filter.resource_subscriptions.len();
    let max = cx.shared.config.tasks_per_listen;
    if named > max {
        return Err(Fault::limit(format!(
            "a stream may name {max} tasks and resources, not {named} (configuration key `tasks_per_listen`)"
        )));
    }
    let max = cx.shared.config.listens_per_caller;
    let _open = cx
        .shared
        .open_listen(cx.caller)
        .ok_or_else(|| Fault::limit(format!("you have {max} listen streams open already (configuration key `listens_per_caller`)")))?;
    let mut changes = cx.shared.provider.changes();
    let seen = changes.borrow_and_update().clone();
    let ids: BTreeSet<TaskId> = filter.task_ids.iter().flatten().filter_map(|text| text.parse().ok()).collect();
    // Watch first, then read: no change can fall between.
    let watch = cx.shared.engine.watch(ids.iter().copied().collect());
    let mut tasks = BTreeMap::new();
    for id in ids {
        // Somebody else's task, and one that never was, are left out alike.
        if let Some(task) = cx.shared.engine.task(cx.caller, id)? {
            tasks.insert(id, task);
        }
    }
    if let Some(asked) = &mut filter.task_ids {
        asked.retain(|text| text.parse().is_ok_and(|id: TaskId| tasks.contains_key(&id)));
    }
    let stream = Stream { cx, filter, subscription: view::subscription(cx.id) };
    match stream.run(tasks, &watch, changes, seen).await {
        Ok(()) | Err(Ended::Gone) => Ok(stream.end().into()),
        Err(Ended::Fault(fault)) => Err(fault),
    }
}

enum Ended {
    /// The client stopped reading; there is nobody to answer.
    Gone,
    Fault(Fault),
}

impl From<engine::Error> for Ended {
    fn from(error: engine::Error) -> Self {
        Self::Fault(error.into())
    }
}

struct Stream<'a, 'c> {
    cx: &'a Cx<'c>,
    filter: Filter,
    /// The name of the listen request, as JSON text.
    subscription: String,
}

impl Stream<'_, '_> {
    async fn run(
        &self,
        mut tasks: BTreeMap<TaskId, Arc<Task>>,
        watch: &crate::feed::Watch,
        mut changes: watch::Receiver<Changes>,
        mut seen: Changes,
    ) -> Result<(), Ended> {
        self.acknowledge().await?;
        for task in tasks.values() {
            self.show(task).await?;
        }
        tasks.retain(|_, task| task.ended.is_none());
        loop {
            tokio::select! {
                changed = watch.changed() => {
                    for id in changed {
                        self.read_on(&mut tasks, id).await?;
                    }
                }
                result = changes.changed() => {
                    if result.is_err() {
                        return Ok(());
                    }
                    let now = changes.borrow_and_update().clone();
                    self.tell_changes(&seen, &now).await?;
                    seen = now;
                }
                () = self.cx.shared.drained() => return Ok(()),
                () = self.cx.out.ending() => return Ok(()),
            }
        }
    }

    /// Shows what happened to a task since the last time. After its end there is nothing more to show.
    async fn read_on(&self, tasks: &mut BTreeMap<TaskId, Arc<Task>>, id: TaskId) -> Result<(), Ended> {
        let Some(task) = tasks.get_mut(&id) else { return Ok(()) };
        loop {
            let events = self.cx.shared.engine.events(id, task.version, PAGE)?;
            let more = events.len() == PAGE;
            for logged in events {
                let task = Arc::make_mut(task);
                // Chunks are not read here, so the version is the logged one, not the next.
                task.version = Version(logged.version.0 - 1);
                evolve(task, &logged.event, logged.at);
                if logged.event.is_visible() {
                    self.show(task).await?;
                }
            }
            if !more {
                break;
            }
        }
        if task.ended.is_some() {
            tasks.remove(&id);
        }
        Ok(())
    }

    async fn show(&self, task: &Task) -> Result<(), Ended> {
        let shared = self.cx.shared;
        let message = view::notification(task, &self.subscription, shared.engine.clock().now(), shared.config.poll_interval);
        self.cx.out.send(message.into()).await.map_err(|_| Ended::Gone)
    }

    async fn acknowledge(&self) -> Result<(), Ended> {
        let filter = &self.filter;
        let mut honoured = Map::new();
        for (key, wanted) in [
            ("toolsListChanged", filter.tools_list_changed),
            ("promptsListChanged", filter.prompts_list_changed),
            ("resourcesListChanged", filter.resources_list_changed),
        ] {
            if wanted {
                honoured.insert(key.to_owned(), true.into());
            }
        }
        if !filter.resource_subscriptions.is_empty() {
            honoured.insert("resourceSubscriptions".to_owned(), filter.resource_subscriptions.clone().into());
        }
        if let Some(ids) = &filter.task_ids {
            honoured.insert("taskIds".to_owned(), ids.clone().into());
        }
        self.notify("notifications/subscriptions/acknowledged", json!({ "notifications": honoured })).await
    }

    async fn tell_changes(&self, before: &Changes, now: &Changes) -> Result<(), Ended> {
        let filter = &self.filter;
        for (wanted, changed, method) in [
            (filter.tools_list_changed, before.tools != now.tools, "notifications/tools/list_changed"),
            (filter.prompts_list_changed, before.prompts != now.prompts, "notifications/prompts/list_changed"),
            (filter.resources_list_changed, before.resources != now.resources, "notifications/resources/list_changed"),
        ] {
            if wanted && changed {
                self.notify(method, json!({})).await?;
            }
        }
        for uri in &filter.resource_subscriptions {
            if before.updated.get(uri) != now.updated.get(uri) {
                self.notify("notifications/resources/updated", json!({ "uri": uri })).await?;
            }
        }
        Ok(())
    }

    async fn notify(&self, method: &str, mut params: Value) -> Result<(), Ended> {
        params["_meta"] = json!({SUBSCRIPTION_ID: self.cx.id});
        self.cx.out.notify(method, &params).await.map_err(|_| Ended::Gone)
    }

    /// The response that ends the stream in good order.
    fn end(&self) -> Object {
        let meta = Object::open().raw(SUBSCRIPTION_ID, &self.subscription).splice(&self.cx.shared.modern_meta);
        Object::result("complete").raw("_meta", &meta.into_text())
    }
}
