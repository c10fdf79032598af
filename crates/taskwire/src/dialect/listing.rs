//! The tasks of a caller, page by page, as both eras list them.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use taskwire_core::{CallerId, TaskId, task::Task};

use super::{Fault, catalog};
use crate::{dialect::Context, engine};

/// One page of tasks, the latest first, and the cursor of the next.
pub(super) struct Listing {
    pub(super) tasks: Vec<Arc<Task>>,
    pub(super) next: Option<String>,
}

/// The page that a request asks for; with the calls of clients that know no tasks, if they are not to be left out. A cursor is the
/// last task before it.
pub(super) fn tasks(shared: &Context, caller: &CallerId, params: &str, with_hidden: bool) -> Result<Listing, Fault> {
    let mut before = match catalog::cursor(params)? {
        None => None,
        Some(cursor) => Some(decode(&cursor).ok_or_else(catalog::bad_cursor)?),
    };
    let engine = &shared.engine;
    let len = shared.config.page_len.max(1);
    let mut tasks = Vec::new();
    loop {
        let ids = engine.reader().tasks_of(caller, before, len + 1).map_err(engine::Error::from)?;
        for id in &ids {
            let Some(task) = engine::legible(engine.task(caller, *id))?.filter(|task| with_hidden || !task.spec.hidden) else { continue };
            if tasks.len() == len {
                let next = before.map(|last| URL_SAFE_NO_PAD.encode(format!("before:{last}")));
                return Ok(Listing { tasks, next });
            }
            tasks.push(task);
            before = Some(*id);
        }
        match ids.last() {
            Some(last) if ids.len() > len => before = Some(*last),
            _ => return Ok(Listing { tasks, next: None }),
        }
    }
}

fn decode(cursor: &str) -> Option<TaskId> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    text.strip_prefix("before:")?.parse().ok()
}
