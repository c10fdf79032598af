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
    let seen = Seen::of(&changes.borrow_and_update(), &filter);
    // Watch first, then read: no change can fall between.
    let ids: BTreeSet<TaskId> = filter.task_ids.iter().flatten().filter_map(|text| text.parse().ok()).collect();
    let watch = cx.shared.engine.watch(ids.iter().copied().collect());
    let mut owned = Vec::new();
    for id in ids {
        // Somebody else's task, and one that never was, are left out alike.
        if cx.shared.engine.owner(id)?.is_some_and(|owner| owner == *cx.caller) {
            owned.push(id);
        }
    }
    if let Some(asked) = &mut filter.task_ids {
        asked.retain(|text| text.parse().is_ok_and(|id: TaskId| owned.binary_search(&id).is_ok()));
    }
    let stream = Stream { cx, filter, subscription: view::subscription(cx.id) };
    match stream.run(owned, &watch, changes, seen).await {
        Ok(()) | Err(Ended::Gone) => Ok(stream.end().into()),
        Err(Ended::Fault(fault)) => Err(fault),
    }
}

/// What a stream has seen of the lists and resources that it asked for.
#[derive(PartialEq)]
struct Seen {
    tools: u64,
    prompts: u64,
    resources: u64,
    updated: Vec<u64>,
}

impl Seen {
    fn of(changes: &Changes, filter: &Filter) -> Self {
        let updated = filter.resource_subscriptions.iter().map(|uri| changes.updated.get(uri).copied().unwrap_or(0));
        Self { tools: changes.tools, prompts: changes.prompts, resources: changes.resources, updated: updated.collect() }
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
        owned: Vec<TaskId>,
        watch: &crate::feed::Watch,
        mut changes: watch::Receiver<Changes>,
        mut seen: Seen,
    ) -> Result<(), Ended> {
        self.acknowledge().await?;
        // One at a time, and only the live ones are kept: results can be large.
        let mut tasks = BTreeMap::new();
        for id in owned {
            if let Some(task) = self.cx.shared.engine.task(self.cx.caller, id)? {
                self.show(&task).await?;
                if task.ended.is_none() {
                    tasks.insert(id, task);
                }
            }
        }
        let drained = self.cx.shared.drained();
        let ending = self.cx.out.ending();
        tokio::pin!(drained, ending);
        loop {
            tokio::select! {
                biased;
                changed = watch.changed() => {
                    for id in changed {
                        if !self.read_on(&mut tasks, id).await? {
                            return Ok(());
                        }
                    }
                }
                result = changes.changed() => {
                    if result.is_err() {
                        return Ok(());
                    }
                    let now = Seen::of(&changes.borrow_and_update(), &self.filter);
                    self.tell_changes(&seen, &now).await?;
                    seen = now;
                }
                () = &mut drained => return Ok(()),
                () = &mut ending => return Ok(()),
            }
        }
    }

    /// Shows what happened to a task since the last time. After its end there is nothing more to show. Says `false` if
    /// the task was forgotten before its end could be shown: the stream ends, so that its reader asks anew.
    async fn read_on(&self, tasks: &mut BTreeMap<TaskId, Arc<Task>>, id: TaskId) -> Result<bool, Ended> {
        let Some(task) = tasks.get_mut(&id) else { return Ok(true) };
        let before = task.version;
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
            return Ok(true);
        }
        Ok(task.version != before || self.cx.shared.engine.owner(id)?.is_some())
    }

    async fn show(&self, task: &Task) -> Result<(), Ended> {
        let shared = self.cx.shared;
        let message = view::notification(&shared.shown, task, &self.subscription, shared.engine.clock().now(), shared.config.poll_interval);
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

    async fn tell_changes(&self, before: &Seen, now: &Seen) -> Result<(), Ended> {
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
        let counts = before.updated.iter().zip(&now.updated);
        for (uri, (before, now)) in filter.resource_subscriptions.iter().zip(counts) {
            if before != now {
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
