//! `taskwire server tasks`: the tasks of all callers.

use serde_json::Value;
use taskwire::{
    client::ApiMethod,
    clock::{Clock, SystemClock},
};
use taskwire_core::Timestamp;

use super::{
    Tasks,
    api::{ServerApi, encoded},
};
use crate::{
    client::exit::{Exit, Problem},
    term::{
        escape,
        paint::{Paint, Terminal, parse_time, short_duration},
        stderr, stdout,
        table::{self, Cell, LastColumn},
    },
};

/// Tasks of one page: a page must fit into one reply.
const PAGE: usize = 100;
/// Pages that are followed at most: one may have no task that fits.
const PAGES_MAX: usize = 10_000;

impl Tasks {
    pub(super) async fn run(self) -> Result<Exit, Problem> {
        if self.limit == 0 {
            return Err(Problem::usage("--limit is at least 1"));
        }
        let filters = [("caller", &self.caller), ("status", &self.status), ("tool", &self.tool)];
        let filters: String = filters.iter().filter_map(|(key, value)| Some(format!("&{key}={}", encoded(value.as_deref()?)))).collect();
        let api = ServerApi::at(self.place)?;
        let (mut tasks, mut cursor): (Vec<Value>, Option<String>) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let limit = PAGE.min(self.limit - tasks.len());
            let from = cursor.map(|cursor| format!("&cursor={}", encoded(&cursor))).unwrap_or_default();
            let page = api.ask(ApiMethod::Get, &format!("/api/tasks?limit={limit}{filters}{from}")).await?;
            tasks.extend(page["tasks"].as_array().into_iter().flatten().cloned());
            cursor = page["nextCursor"].as_str().map(ToOwned::to_owned);
            if cursor.is_none() || tasks.len() >= self.limit {
                break;
            }
        }
        stdout::print(&text(&tasks, self.json))?;
        let hint = match (cursor, tasks.is_empty()) {
            (Some(_), _) => format!("there may be more: --limit says how many are listed ({})", self.limit),
            (None, true) if !self.json => "there are no such tasks".to_owned(),
            (None, _) => return Ok(Exit::Done),
        };
        stderr::write(&format!("taskwire: {hint}\n"));
        Ok(Exit::Done)
    }
}

fn text(tasks: &[Value], is_json: bool) -> String {
    if is_json {
        return tasks.iter().map(|task| escape::json(task.to_string()) + "\n").collect();
    }
    let (now, surroundings) = (SystemClock.now(), Terminal::detect());
    let rows = tasks.iter().map(|task| cells(task, now, surroundings.stdout_paint()));
    table::text(&["AGE", "STATUS", "TOOL", "CALLER", "TASK"], rows, LastColumn::Whole, surroundings)
}

fn cells(task: &Value, now: Timestamp, paint: Paint) -> Vec<Cell> {
    let words = |key: &str| escape::line(task[key].as_str().unwrap_or("?"));
    let age = task["createdAt"].as_str().and_then(parse_time).map_or_else(|| "?".to_owned(), |at| short_duration(now.since(at)));
    let status = words("status");
    let painted = match status.as_str() {
        "failed" => paint.red(&status),
        "input_required" => paint.yellow(&status),
        "working" => paint.green(&status),
        _ => paint.dim(&status),
    };
    vec![age.into(), Cell::painted(&status, painted), words("tool").into(), words("caller").into(), words("id").into()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_task_is_a_row_that_names_its_caller() {
        let task = json!({
            "id": "06g3", "caller": "ci\u{1b}[2J", "tool": "build", "status": "working", "createdAt": "2026-07-28T00:00:00.000Z",
        });
        let now = Timestamp::from_millis(1_785_196_865_000);
        let rows = [cells(&task, now, Paint::plain())];
        assert_eq!(table::lines(&rows, LastColumn::Whole, None, true), ["1m 05s  working  build  ci^[[2J  06g3"]);
        assert!(!text(&[task], true).contains('\u{1b}'), "nor does an object");
    }
}
