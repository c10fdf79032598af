//! The tool that writes: its arguments, the gate that it waits at, and the time that it puts into its texts. Taskwire
//! and the bare server have it alike.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::watch,
    time::{Interval, MissedTickBehavior, interval},
};

/// Digits at the beginning of a text that say when it was written.
pub const STAMP_LEN: usize = 20;

/// The arguments of the tool.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Write {
    /// The gate that it waits at before it begins.
    pub gate: String,
    /// How many texts it writes.
    pub texts: usize,
    /// Bytes of each.
    pub size: usize,
    /// Pause between two texts, in microseconds. With one, each text says when it was written; without, the tool is as
    /// fast as it can be.
    pub pause_us: u64,
    /// Whether it waits until each text is durable, and returns how long that took.
    pub flush: bool,
}

impl Write {
    /// Bytes of all texts.
    pub fn text_bytes(&self) -> u64 {
        (self.texts * self.size) as u64
    }

    /// How long it takes, at least.
    pub fn span(&self) -> Duration {
        Duration::from_micros(self.pause_us) * u32::try_from(self.texts).unwrap_or(u32::MAX)
    }

    /// Whether each text says when it was written.
    pub fn is_stamped(&self) -> bool {
        self.pause_us > 0
    }

    /// A text that says when it was written: now.
    pub(super) fn stamped(&self) -> String {
        let stamp = format!("{:0>STAMP_LEN$}", unix_ns());
        format!("{stamp:x<width$}", width = self.size)
    }

    /// A text that says nothing.
    pub(super) fn filler(&self) -> String {
        "x".repeat(self.size)
    }

    /// The pace of its texts, if it has one. It begins now.
    pub(super) fn pace(&self) -> Option<Interval> {
        self.is_stamped().then(|| {
            let mut pace = interval(Duration::from_micros(self.pause_us));
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            pace
        })
    }
}

/// The arguments of the tool that opens a gate.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Open {
    /// Which gate.
    pub(super) gate: String,
}

/// Nanoseconds since 1970: the one clock that two processes share.
pub fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Gates by name, closed at first.
#[derive(Clone, Default)]
pub(super) struct Gates(Arc<Mutex<HashMap<String, watch::Sender<bool>>>>);

impl Gates {
    /// Opens a gate, for good.
    pub(super) fn open(&self, name: &str) {
        self.gate(name).send_replace(true);
    }

    /// Waits until a gate is open.
    pub(super) fn pass(&self, name: &str) -> impl Future<Output = ()> + Send + use<> {
        let mut gate = self.gate(name).subscribe();
        async move {
            // The other end stays in the map, so that this cannot fail.
            let _ = gate.wait_for(|open| *open).await;
        }
    }

    fn gate(&self, name: &str) -> watch::Sender<bool> {
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gates.entry(name.to_owned()).or_insert_with(|| watch::Sender::new(false)).clone()
    }
}
