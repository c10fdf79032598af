//! Lists the tasks of a caller page by page, for both eras.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use taskwire_core::{CallerId, TaskId, task::Task};

use super::{Fault, catalog};
use crate::{engine, protocol::Context};

/// One page of tasks, the latest first, and the cursor of the next.
pub(super) struct TaskPage {
    pub(super) tasks: Vec<Arc<Task>>,
    pub(super) next: Option<String>,
}

/// The page that a request asks for, with the calls of clients without tasks if `with_hidden`. A cursor names the last task before it.
pub(super) async fn task_page(context: &Context, caller: &CallerId, params: &str, with_hidden: bool) -> Result<TaskPage, Fault> {
    let mut before = match catalog::page_cursor(params)? {
        None => None,
        Some(cursor) => Some(decode(&cursor).ok_or_else(catalog::invalid_page_cursor)?),
    };
    let engine = &context.engine;
    let len = context.config.page_len.max(1);
    let mut tasks = Vec::new();
    loop {
        let ids = engine.reader().tasks_of(caller, before, len + 1).await.map_err(engine::Error::from)?;
        for id in &ids {
            let Some(task) = engine::skip_corrupt(engine.task(caller, *id).await)?.filter(|task| with_hidden || !task.spec.hidden) else {
                continue;
            };
            if tasks.len() == len {
                let next = before.map(|last| URL_SAFE_NO_PAD.encode(format!("before:{last}")));
                return Ok(TaskPage { tasks, next });
            }
            tasks.push(task);
            before = Some(*id);
        }
        match ids.last() {
            Some(last) if ids.len() > len => before = Some(*last),
            _ => return Ok(TaskPage { tasks, next: None }),
        }
    }
}

fn decode(cursor: &str) -> Option<TaskId> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    text.strip_prefix("before:")?.parse().ok()
}
