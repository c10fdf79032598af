//! The numbers of a server at a glance, those of all tools together: the metrics themselves have them by tool.

use std::collections::BTreeMap;

use serde::Serialize;
use taskwire_core::Timestamp;

use super::{Metrics, tools::OPEN_STATES};

/// What a server has counted since it began.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    /// When it began.
    #[serde(skip)]
    pub(crate) began: Timestamp,
    pub(crate) tasks: TaskSummary,
    /// Commands that wait for a slot of their tool.
    pub(crate) commands_waiting: i64,
    /// Calls whose work runs and is no task yet.
    pub(crate) runs_in_memory: i64,
    /// Streams that are open, by kind.
    pub(crate) streams: BTreeMap<&'static str, i64>,
}

/// Tasks of one node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TaskSummary {
    /// Those that run here and have not ended, by status.
    pub(crate) open: BTreeMap<&'static str, i64>,
    /// How many were made here.
    pub(crate) created: u64,
    /// How many ended here, by how they did.
    pub(crate) ended: BTreeMap<&'static str, u64>,
}

impl Metrics {
    pub(crate) fn summary(&self) -> Summary {
        let tools = self.tools.all();
        let mut ended = BTreeMap::new();
        for (outcome, count) in tools.iter().flat_map(|tool| tool.ended.iter()) {
            *ended.entry(outcome).or_default() += count.get();
        }
        let open =
            OPEN_STATES.iter().enumerate().map(|(nth, status)| (status.as_str(), tools.iter().map(|tool| tool.open[nth].get()).sum()));
        Summary {
            began: self.began,
            tasks: TaskSummary { open: open.collect(), created: tools.iter().map(|tool| tool.created.get()).sum(), ended },
            commands_waiting: tools.iter().map(|tool| tool.waiting.get()).sum(),
            runs_in_memory: self.in_memory.get(),
            streams: self.streams.iter().map(|(kind, count)| (kind, count.get())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use taskwire_core::task::{Outcome, Status};

    use super::*;
    use crate::metrics::Stream;

    #[test]
    fn the_numbers_of_all_tools_are_added_up() {
        let metrics = Metrics::new(Timestamp::from_millis(5));
        let _open = [metrics.open_task("a", Status::Working), metrics.open_task("b", Status::Working)];
        let _asks = metrics.open_task("b", Status::InputRequired);
        let _stream = metrics.stream(Stream::Listen);
        metrics.tool("a").task_created();
        metrics.tool("b").task_created();
        metrics.tool("b").task_ended(&Outcome::Cancelled { reason: None }, Duration::ZERO);
        let summary = metrics.summary();
        assert_eq!((summary.tasks.open["working"], summary.tasks.open["input_required"]), (2, 1));
        assert_eq!((summary.tasks.created, summary.tasks.ended["cancelled"], summary.tasks.ended["completed"]), (2, 1, 0));
        assert_eq!((summary.streams["listen"], summary.streams["task"], summary.began.as_millis()), (1, 0, 5));
    }
}
