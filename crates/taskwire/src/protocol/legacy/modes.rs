//! Chooses the response mode of a call (SEP-1905).

use crate::config::ResponseMode;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) mode: ResponseMode,
    /// Whether a call whose result does not come at once may be streamed.
    pub(super) may_stream: bool,
    /// Whether the client did not name `task`, so that a response with a task must say that it is a fallback.
    pub(super) fallback: bool,
}

/// Chooses the best mode that the server has, the client declared and the call names: a result before a stream before a task. If there
/// is none, or the call names none, it is a task.
pub(super) fn choose(server: &[ResponseMode], client: &[ResponseMode], call: Option<&[ResponseMode]>) -> Choice {
    let task = Choice { mode: ResponseMode::Task, may_stream: false, fallback: false };
    let Some(call) = call else { return task };
    let common =
        |mode: &ResponseMode| (server.contains(mode) || *mode == ResponseMode::Task) && client.contains(mode) && call.contains(mode);
    let best = [ResponseMode::Immediate, ResponseMode::Streaming, ResponseMode::Task].into_iter().find(common);
    Choice {
        mode: best.unwrap_or(ResponseMode::Task),
        may_stream: common(&ResponseMode::Streaming),
        fallback: !common(&ResponseMode::Task),
    }
}

/// A mode by its name; none for one that we do not know.
pub(super) fn mode_of(name: &str) -> Option<ResponseMode> {
    match name {
        "task" => Some(ResponseMode::Task),
        "immediate" => Some(ResponseMode::Immediate),
        "streaming" => Some(ResponseMode::Streaming),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use ResponseMode::{Immediate, Streaming, Task};

    use super::*;

    #[test]
    fn the_best_common_way_is_chosen_and_a_task_is_the_floor() {
        let all = [Task, Immediate, Streaming];
        let chosen = |server: &[ResponseMode], client: &[ResponseMode], call: Option<&[ResponseMode]>| {
            let Choice { mode, may_stream, fallback } = choose(server, client, call);
            (mode, may_stream, fallback)
        };
        assert_eq!(chosen(&all, &all, None), (Task, false, false));
        assert_eq!(chosen(&all, &all, Some(&[Task, Streaming, Immediate])), (Immediate, true, false), "the client's order does not count");
        assert_eq!(chosen(&all, &all, Some(&[Task, Streaming])), (Streaming, true, false));
        assert_eq!(chosen(&all, &all, Some(&[Task, Immediate])), (Immediate, false, false));
        assert_eq!(chosen(&all, &all, Some(&[Immediate])), (Immediate, false, true), "it may become a task that nobody named");
        assert_eq!(chosen(&all, &all, Some(&[Task])), (Task, false, false));
        assert_eq!(chosen(&all, &all, Some(&[])), (Task, false, true));
        assert_eq!(chosen(&[Task], &all, Some(&[Immediate, Streaming])), (Task, false, true));
        assert_eq!(chosen(&[], &all, Some(&[Immediate, Task])), (Task, false, false), "a task is always possible");
        assert_eq!(chosen(&all, &[Task, Streaming], Some(&[Immediate, Streaming])), (Streaming, true, true));
        assert_eq!(chosen(&all, &[Task], Some(&[Immediate])), (Task, false, true));
    }
}
