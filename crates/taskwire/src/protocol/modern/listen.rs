//! `subscriptions/listen`: first the current state of each task, then every change, and the output of tasks from any seq on.
//!
//! For each task the stream keeps a cursor into its log. A wake-up makes it read on, and it sends what it reads in the order of the log.
//! A slow reader lags, and misses nothing.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};
use taskwire_core::{
    Seq, TaskId, Version,
    task::{Task, evolve_to},
};
use tokio::sync::watch;

use super::{
    Cx, MethodResult, PARTIALS, SUBSCRIPTION_ID,
    json::{Object, typed},
    render,
};
use crate::{
    engine, metrics,
    protocol::{
        Fault,
        log::{self, AWAY_PAUSE, Next, StreamEnd},
        params::{Members, number, present},
    },
    store::{Chunk, LogItem},
    tool::Changes,
    wakeup::Watch,
};

#[derive(Deserialize)]
struct Listen<'a> {
    #[serde(borrow)]
    notifications: Members<Filter<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Filter<'a> {
    tools_list_changed: bool,
    prompts_list_changed: bool,
    resources_list_changed: bool,
    resource_subscriptions: Vec<String>,
    task_ids: Option<Vec<String>>,
    #[serde(borrow, rename = "dev.taskwire/partials", deserialize_with = "present")]
    partials: Option<&'a RawValue>,
}

impl Filter<'_> {
    /// Whether the client wants nothing but the output of tasks.
    fn is_empty(&self) -> bool {
        let lists = self.tools_list_changed || self.prompts_list_changed || self.resources_list_changed;
        !lists && self.resource_subscriptions.is_empty() && self.task_ids.is_none()
    }
}

/// A task whose output the client wants, and from which seq on.
type Output = (String, Option<Seq>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OutputParam<'a> {
    task_id: String,
    #[serde(borrow, default, deserialize_with = "present")]
    from_seq: Option<&'a RawValue>,
}

pub(super) async fn listen(cx: &Cx<'_>) -> Result<MethodResult, Fault> {
    let Listen { notifications: Members(mut filter) } = cx.read()?;
    if filter.partials.is_some() {
        cx.needs_partials()?;
    }
    if filter.task_ids.is_some() {
        cx.needs_tasks()?;
    }
    let wanted = requested_outputs(filter.partials)?;
    let named = filter.task_ids.as_ref().map_or(0, Vec::len) + wanted.as_ref().map_or(0, Vec::len) + filter.resource_subscriptions.len();
    let max = cx.context.config.subscriptions_per_stream;
    if named > max {
        return Err(Fault::limit(format!(
            "a stream may name {max} tasks and resources, not {named} (configuration key `subscriptions_per_stream`)"
        )));
    }
    cx.context.admit_to_memory()?;
    let max = cx.context.config.streams_per_caller;
    let _open = cx
        .context
        .listen_permit(cx.caller)
        .ok_or_else(|| Fault::limit(format!("you have {max} listen streams open already (configuration key `streams_per_caller`)")))?;
    let _counted = cx.context.engine.metrics().stream(metrics::Stream::Listen);
    let mut changes = cx.context.provider.changes();
    let seen = ListVersions::of(&changes.borrow_and_update(), &filter);
    let status_ids: BTreeSet<TaskId> = filter.task_ids.iter().flatten().filter_map(|text| text.parse().ok()).collect();
    let outputs = wanted.iter().flatten().filter_map(|(text, from)| Some((text.parse().ok()?, *from)));
    let mut outputs: BTreeMap<TaskId, Option<Seq>> = outputs.collect();
    let ids: BTreeSet<TaskId> = status_ids.iter().chain(outputs.keys()).copied().collect();
    let mut own_ids = Vec::new();
    for id in ids {
        // Another caller's task is left out, just like one that does not exist: it is not even watched, because work lingers while it is.
        // What is read here has memory of its own, which a stream that waits does not keep. So below.
        if engine::skip_corrupt(Box::pin(cx.context.engine.is_of(cx.caller, id)).await.map(Some))? == Some(true) {
            own_ids.push(id);
        }
    }
    // Watch first, then read: no change can fall between.
    let watch = cx.context.engine.watch(own_ids.clone(), wanted.is_some());
    let mut owned = BTreeMap::new();
    for id in own_ids {
        // What is seen to be corrupt is left out, too. A client that asks for it by `tasks/get` gets the error.
        let output = match outputs.remove(&id) {
            Some(from) => Box::pin(output_range(cx, id, from)).await.map(Some),
            None => Ok(None),
        };
        if let Some(output) = engine::skip_corrupt(output.map(Some))? {
            owned.insert(id, TaskSubscription { wants_status: status_ids.contains(&id), output });
        }
    }
    if let Some(asked) = &mut filter.task_ids {
        asked.retain(|text| text.parse().is_ok_and(|id: TaskId| owned.contains_key(&id)));
    }
    let outputs = wanted.map(|wanted| {
        let known = wanted.iter().filter_map(|(text, _)| Some((text, owned.get(&text.parse().ok()?)?.output?)));
        known.map(|(text, at)| json!({"taskId": text, "fromSeq": at.from.0, "nextSeq": at.next.0})).collect()
    });
    let stream = ListenStream { cx, filter, outputs, subscription: render::subscription(cx.id) };
    match stream.run(owned, &watch, changes, seen).await {
        Ok(()) | Err(StreamEnd::Gone) => Ok(stream.end().into()),
        Err(StreamEnd::Fault(fault)) => Err(fault),
    }
}

/// The tasks whose output the client wants, each once.
fn requested_outputs(partials: Option<&RawValue>) -> Result<Option<Vec<Output>>, Fault> {
    let Some(raw) = partials else { return Ok(None) };
    let list: Vec<Members<OutputParam<'_>>> =
        serde_json::from_str(raw.get()).map_err(|error| Fault::params(format!("invalid `{PARTIALS}`: {error}")))?;
    let mut wanted: Vec<Output> = Vec::with_capacity(list.len());
    let mut seen = BTreeSet::new();
    for Members(entry) in list {
        let from = entry.from_seq.map(|raw| number(Some(raw), "fromSeq", 0)).transpose()?.map(Seq);
        if !seen.insert(entry.task_id.clone()) {
            return Err(Fault::params(format!("`{PARTIALS}` names the task `{}` more than once", entry.task_id)));
        }
        wanted.push((entry.task_id, from));
    }
    Ok(Some(wanted))
}

/// From which seq the stream sends a task's output, and the seq that comes next in the log.
#[derive(Clone, Copy)]
struct OutputRange {
    from: Seq,
    next: Seq,
}

async fn output_range(cx: &Cx<'_>, id: TaskId, from: Option<Seq>) -> Result<OutputRange, engine::Error> {
    let span = cx.context.engine.chunk_range(id).await?;
    Ok(OutputRange { from: from.map_or(span.end, |from| from.max(span.start)), next: span.end })
}

/// What the client wants of one task.
struct TaskSubscription {
    wants_status: bool,
    output: Option<OutputRange>,
}

struct FollowedTask {
    /// As it was last read; absent if it had ended before the stream began.
    task: Option<Arc<Task>>,
    read: Version,
    wants_status: bool,
    /// The next chunk to send; none if the client does not want output.
    next_seq: Option<Seq>,
    /// Whether it is in the queue of tasks to read.
    queued: bool,
}

enum Turn {
    /// There is nothing more to read for now.
    Idle,
    /// There is more.
    More,
    /// The store cannot be reached just now.
    Later,
    /// What should come next was removed from the log: the stream ends, so that its client asks anew.
    Lost,
}

/// The versions of lists and resources that the stream has announced.
#[derive(PartialEq)]
struct ListVersions {
    tools: u64,
    prompts: u64,
    resources: u64,
    updated: Vec<u64>,
}

impl ListVersions {
    fn of(changes: &Changes, filter: &Filter<'_>) -> Self {
        let updated = filter.resource_subscriptions.iter().map(|uri| changes.updated.get(uri).copied().unwrap_or(0));
        Self { tools: changes.tools, prompts: changes.prompts, resources: changes.resources, updated: updated.collect() }
    }
}

struct ListenStream<'a, 'c> {
    cx: &'a Cx<'c>,
    filter: Filter<'c>,
    /// The outputs that the stream sends, as the acknowledgement names them.
    outputs: Option<Vec<Value>>,
    /// The id of the listen request, as JSON text.
    subscription: String,
}

impl ListenStream<'_, '_> {
    async fn run(
        &self,
        owned: BTreeMap<TaskId, TaskSubscription>,
        watch: &Watch<TaskId>,
        mut changes: watch::Receiver<Changes>,
        mut seen: ListVersions,
    ) -> Result<(), StreamEnd> {
        Box::pin(self.acknowledge()).await?;
        let (mut tasks, mut queue) = (BTreeMap::new(), VecDeque::new());
        for (id, asked) in owned {
            if let Some(followed) = Box::pin(self.follow(id, &asked)).await? {
                tasks.insert(id, followed);
                enqueue(&mut tasks, &mut queue, id);
            }
        }
        let drained = self.cx.context.shutdown_began();
        let ending = self.cx.out.ending();
        tokio::pin!(drained, ending);
        loop {
            if tasks.is_empty() && self.outputs.is_some() && self.filter.is_empty() {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = &mut drained => return Ok(()),
                () = &mut ending => return Ok(()),
                result = changes.changed() => {
                    if result.is_err() {
                        return Ok(());
                    }
                    let now = ListVersions::of(&changes.borrow_and_update(), &self.filter);
                    Box::pin(self.send_list_changes(&seen, &now)).await?;
                    seen = now;
                }
                changed = watch.changed() => {
                    for id in changed {
                        enqueue(&mut tasks, &mut queue, id);
                    }
                }
                Some(id) = async { queue.pop_front() } => match Box::pin(self.turn(&mut tasks, id)).await? {
                    Turn::Idle => {}
                    Turn::More => enqueue(&mut tasks, &mut queue, id),
                    Turn::Later => {
                        self.cx.context.engine.clock().sleep(AWAY_PAUSE).await;
                        enqueue(&mut tasks, &mut queue, id);
                    }
                    Turn::Lost => return Ok(()),
                },
            }
        }
    }

    /// Begins to follow a task, if there will be anything to send. Only running tasks are kept, because results can be large.
    async fn follow(&self, id: TaskId, asked: &TaskSubscription) -> Result<Option<FollowedTask>, StreamEnd> {
        let Some(task) = engine::skip_corrupt(self.cx.context.engine.task(self.cx.caller, id).await)? else { return Ok(None) };
        let next = asked.output.map(|begin| begin.from);
        let over = task.ended.is_some();
        // The final status comes after the output.
        if asked.wants_status && !(over && next.is_some()) {
            self.send_status(&task).await?;
        }
        // Of a task that has ended, only output is read.
        let read = if over { Version(u64::MAX) } else { task.version };
        let more = !over || next.is_some();
        Ok(more.then(|| FollowedTask {
            task: (!over).then_some(task),
            read,
            wants_status: asked.wants_status,
            next_seq: next,
            queued: false,
        }))
    }

    /// Sends what the log has after the cursor, in its order: status and output, as much as one task may in its turn. Nothing follows the
    /// task's end.
    async fn turn(&self, tasks: &mut BTreeMap<TaskId, FollowedTask>, id: TaskId) -> Result<Turn, StreamEnd> {
        let Some(followed) = tasks.get_mut(&id) else { return Ok(Turn::Idle) };
        followed.queued = false;
        let engine = &self.cx.context.engine;
        let (now, page) = match log::read(engine, self.cx.caller, id, followed.read, followed.next_seq).await {
            Ok(Next::Page(task, page)) => (task, page),
            Ok(Next::Behind) => return Ok(Turn::Idle),
            // Removed before its end could be sent.
            Ok(Next::Expired) => return Ok(Turn::Lost),
            Err(engine::Error::Corrupt(error)) => {
                tracing::error!(%error, "a stream tells nothing more of a task");
                tasks.remove(&id);
                return Ok(Turn::Idle);
            }
            Err(engine::Error::Away) => return Ok(Turn::Later),
            Err(error) => return Err(error.into()),
        };
        let mut chunks = Vec::new();
        for entry in page.items {
            match entry {
                LogItem::Chunk(chunk) if followed.next_seq != Some(chunk.seq) => return Ok(Turn::Lost),
                LogItem::Chunk(chunk) => {
                    followed.next_seq = Some(chunk.seq.next());
                    chunks.push(chunk);
                }
                LogItem::Event(logged) => {
                    self.send_output(id, &mut chunks).await?;
                    let Some(task) = followed.task.as_mut().map(Arc::make_mut) else { continue };
                    evolve_to(task, logged.version, &logged.event, logged.at);
                    if followed.wants_status && logged.event.is_visible() {
                        self.send_status(task).await?;
                    }
                }
            }
        }
        self.send_output(id, &mut chunks).await?;
        followed.read = page.upto;
        if page.more {
            return Ok(Turn::More);
        }
        match &followed.task {
            Some(task) if task.ended.is_none() => return Ok(Turn::Idle),
            Some(_) => {}
            // A wake-up is on its way.
            None if !page.ended || now.ended.is_none() => return Ok(Turn::Idle),
            None if followed.wants_status => self.send_status(&now).await?,
            None => {}
        }
        tasks.remove(&id);
        Ok(Turn::Idle)
    }

    /// Sends chunks that follow each other.
    async fn send_output(&self, id: TaskId, chunks: &mut Vec<Chunk>) -> Result<(), StreamEnd> {
        if !chunks.is_empty() {
            let pieces = render::partials(&render::partial_head(&self.subscription, id), chunks, self.cx.out.framing());
            chunks.clear();
            for piece in pieces {
                self.cx.out.send_framed(piece).await?;
            }
        }
        Ok(())
    }

    async fn send_status(&self, task: &Task) -> Result<(), StreamEnd> {
        let context = self.cx.context;
        let message = render::task_notification(
            &context.task_json_cache,
            task,
            &self.subscription,
            context.engine.clock().now(),
            context.config.poll_interval,
        );
        Ok(self.cx.out.send(&message).await?)
    }

    async fn acknowledge(&self) -> Result<(), StreamEnd> {
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
        if let Some(outputs) = &self.outputs {
            honoured.insert(PARTIALS.to_owned(), outputs.clone().into());
        }
        self.notify("notifications/subscriptions/acknowledged", json!({ "notifications": honoured })).await
    }

    async fn send_list_changes(&self, before: &ListVersions, now: &ListVersions) -> Result<(), StreamEnd> {
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

    async fn notify(&self, method: &str, mut params: Value) -> Result<(), StreamEnd> {
        params["_meta"] = json!({SUBSCRIPTION_ID: self.cx.id});
        self.cx.out.notify(method, &params).await.map_err(|_| StreamEnd::Gone)
    }

    fn end(&self) -> Object {
        let meta = Object::open().raw(SUBSCRIPTION_ID, &self.subscription).splice(&self.cx.context.server_info_meta);
        typed("complete").raw("_meta", &meta.into_text())
    }
}

/// Queues a task to be read, unless it is queued already.
fn enqueue(tasks: &mut BTreeMap<TaskId, FollowedTask>, queue: &mut VecDeque<TaskId>, id: TaskId) {
    if let Some(followed) = tasks.get_mut(&id).filter(|followed| !followed.queued) {
        followed.queued = true;
        queue.push_back(id);
    }
}
