//! What must hold of what is stored, when a world has come to rest. It is read as everybody reads it.

use anyhow::Context;
use taskwire::{
    core::{
        Seq, TaskId, Version,
        task::{Event, Task, create, evolve},
    },
    store::{Cursor, LogItem, Reader},
};

use crate::observer::Observer;

/// How many tasks are named that never ended.
const NAMED_MAX: usize = 5;

/// Whether no task is open.
pub(crate) async fn all_have_ended(reader: &dyn Reader) -> Result<bool, anyhow::Error> {
    Ok(reader.open_tasks(None, 1).await?.is_empty())
}

/// Reports tasks that should have ended.
pub(crate) async fn report_open(reader: &dyn Reader, observer: &Observer) -> Result<(), anyhow::Error> {
    for id in reader.open_tasks(None, NAMED_MAX).await? {
        let task = reader.task(id).await?.context("it is open")?;
        observer.violated(format!("task {id} of `{}` never ended: {} in attempt {}", task.spec.tool, task.status(), task.attempt));
    }
    Ok(())
}

/// The log of each of these tasks makes the task.
pub(crate) async fn check_logs(reader: &dyn Reader, ids: &[TaskId], observer: &Observer) -> Result<(), anyhow::Error> {
    for id in ids {
        let stored = reader.task(*id).await?.context("it is listed")?;
        let task = made_by_log(reader, &stored).await?;
        if task.as_ref() != Some(&*stored) {
            observer.violated(format!("the log of task {id} makes another task than the stored one: {task:?} and {stored:?}"));
        }
    }
    Ok(())
}

/// What the log of a task makes, its versions and chunks without a gap.
async fn made_by_log(reader: &dyn Reader, stored: &Task) -> Result<Option<Task>, anyhow::Error> {
    let (mut task, mut cursor) = (None, Cursor { after: Version(0), from: Some(Seq(0)), max_bytes: usize::MAX, max_chunks: usize::MAX });
    while let Some(page) = reader.page(stored.id, cursor).await? {
        for item in page.items {
            let (version, at, event) = match item {
                LogItem::Event(stored) => (stored.version, stored.at, stored.event),
                LogItem::Chunk(chunk) => {
                    cursor.from = Some(chunk.seq.next());
                    let event = Event::Appended { seq: chunk.seq, first_block: chunk.first_block, blocks: chunk.blocks };
                    (chunk.version, stored.created_at, event)
                }
                _ => continue,
            };
            match &mut task {
                None => task = Some(create(stored.id, &event, at)),
                Some(task) => {
                    // What is missing was a checkpoint each.
                    task.saves += version.0 - 1 - task.version.0;
                    task.version = Version(version.0 - 1);
                    evolve(task, &event, at);
                }
            }
        }
        cursor.after = page.upto;
        if !page.more {
            break;
        }
    }
    Ok(task)
}
