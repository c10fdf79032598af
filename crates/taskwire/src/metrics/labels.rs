//! The values that labels can have: all are known before anything is counted, so that nobody can make more of them.

use super::values::Counter;

/// What is none of the known values.
pub(super) const OTHER: &str = "other";

/// The values of a label, as a type and as texts.
macro_rules! labels {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $name { $($(#[$doc])* $value,)+ }

        impl $name {
            pub(super) const LABELS: &'static [&'static str] = &[$($text),+];
        }
    };
}

labels! {
    /// The era of a request.
    Era {
        Modern = "modern",
        Legacy = "legacy",
    }
}

labels! {
    /// How a call was answered.
    Answer {
        /// Nobody waited for an answer any more.
        Gone = "gone",
        /// With what came of work in memory.
        Immediate = "immediate",
        /// With a task.
        Task = "task",
        /// After it had waited for a task: with what came of that, or how to go on.
        Held = "held",
        /// With questions.
        Asked = "asked",
        /// The arguments did not fit the schema.
        Invalid = "invalid",
        /// With an error, before there was work.
        Error = "error",
    }
}

labels! {
    /// How a task ended.
    Ending {
        Completed = "completed",
        /// The tool says that it failed.
        ToolError = "tool_error",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

labels! {
    /// Why a task goes on here that was begun by another node, or before the last start.
    Takeover {
        /// Whoever ran it is gone.
        Interrupted = "interrupted",
        /// It waited for a slot on another node.
        Queued = "queued",
    }
}

labels! {
    /// What readers are woken for.
    Feed {
        Task = "task",
        Session = "session",
    }
}

labels! {
    /// What a stream sends.
    Stream {
        /// What a listen request names.
        Listen = "listen",
        /// The outbox of a session.
        Session = "session",
        /// One task of a session.
        Task = "task",
    }
}

labels! {
    /// Why an HTTP request was refused before anybody looked at its message.
    Refused {
        /// Without a token that is known.
        Auth = "auth",
        /// Addressed to another host, or from a page that is not allowed.
        Host = "host",
        /// Its body is larger than `body_bytes`.
        BodyTooLarge = "body_too_large",
        /// All bodies together are larger than `http.all_bodies_bytes`.
        BodiesTooLarge = "bodies_too_large",
        /// Its body took longer than `http.read_timeout`.
        SlowBody = "slow_body",
        /// Its connection gave way to another one (`http.connections`, `http.idle_connections`).
        Evicted = "evicted",
        /// There was no room for its connection (`http.connections`).
        Connections = "connections",
    }
}

/// The limits that reject something, by their keys in the configuration.
pub(super) const LIMITS: &[&str] = &[
    "calls_per_second",
    "chunk_bytes",
    "creates_per_second_per_caller",
    "disk_reserve_bytes",
    "events_per_task",
    "memory_bytes",
    "message_bytes",
    "question_bytes_per_task",
    "questions_per_task",
    "requests_per_second_per_caller",
    "stored_bytes_per_caller",
    "streams_per_caller",
    "task_output_bytes",
    "tasks_max",
    "tasks_per_caller",
    "tasks_per_caller_max",
    "value_bytes",
    "waiting_requests_per_caller",
    OTHER,
];

/// What a client can send.
pub(super) const METHODS: &[&str] = &[
    "completion/complete",
    "dev.taskwire/partials/read",
    "dev.taskwire/tasks/list",
    "initialize",
    "logging/setLevel",
    "notifications/cancelled",
    "notifications/initialized",
    "notifications/progress",
    "notifications/roots/list_changed",
    "ping",
    "prompts/get",
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/templates/list",
    "resources/unsubscribe",
    // An answer to what the server asked.
    "response",
    "server/discover",
    "subscriptions/listen",
    "tasks/cancel",
    "tasks/get",
    "tasks/list",
    "tasks/result",
    "tasks/update",
    "tools/call",
    "tools/list",
    OTHER,
];

/// A number for each value of a label.
#[derive(Debug)]
pub(crate) struct ByLabel<T> {
    labels: &'static [&'static str],
    values: Box<[T]>,
}

impl<T> ByLabel<T> {
    pub(super) fn new(labels: &'static [&'static str], value: impl Fn() -> T) -> Self {
        Self { labels, values: labels.iter().map(|_| value()).collect() }
    }

    pub(super) fn at(&self, place: usize) -> &T {
        &self.values[place]
    }

    /// That of a text; of what is not known, that of the last label, which is `other`.
    pub(super) fn of(&self, text: &str) -> &T {
        let place = self.labels.iter().position(|label| *label == text);
        &self.values[place.unwrap_or(self.labels.len() - 1)]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &T)> {
        self.labels.iter().copied().zip(self.values.iter())
    }
}

impl ByLabel<Counter> {
    pub(super) fn counters(labels: &'static [&'static str]) -> Self {
        Self::new(labels, Counter::default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_counts_as_other() {
        for labels in [LIMITS, METHODS] {
            assert_eq!(labels.last(), Some(&OTHER));
            let counted = ByLabel::counters(labels);
            counted.of(labels[0]).increment();
            counted.of("no such thing").increment();
            counted.of("").increment();
            let told: Vec<_> = counted.iter().map(|(label, count)| (label, count.get())).filter(|(_, count)| *count > 0).collect();
            assert_eq!(told, [(labels[0], 1), (OTHER, 2)]);
        }
    }

    #[test]
    fn each_value_of_a_label_has_its_text() {
        assert_eq!(Answer::LABELS[Answer::Held as usize], "held");
        assert_eq!(Ending::LABELS[Ending::ToolError as usize], "tool_error");
        assert_eq!(Refused::LABELS[Refused::Evicted as usize], "evicted");
        assert_eq!(Stream::LABELS[Stream::Task as usize], "task");
    }
}
