//! The tool that pours: the same text again and again, at a set pace or as fast as it can be. Taskwire and the bare
//! server have it alike.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::{Interval, interval};

/// The arguments of the tool.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema, clap::Args)]
pub struct Pour {
    /// The gate that it waits at before it begins.
    #[arg(long)]
    pub gate: String,
    /// How many texts it writes.
    #[arg(long)]
    pub texts: usize,
    /// Bytes of each.
    #[arg(long)]
    pub size: usize,
    /// Pause between two texts, in microseconds; 0 if it is as fast as it can be.
    #[arg(long)]
    pub pause_us: u64,
}

impl Pour {
    /// The same for a command line.
    pub fn arguments(&self) -> Vec<String> {
        let (texts, size, pause_us) = (self.texts.to_string(), self.size.to_string(), self.pause_us.to_string());
        ["--gate", &self.gate, "--texts", &texts, "--size", &size, "--pause-us", &pause_us].map(str::to_owned).into()
    }

    /// The text.
    pub(super) fn text(&self) -> String {
        "x".repeat(self.size)
    }

    /// Pause between two texts; none if it is zero.
    pub(super) fn pause(&self) -> Option<Duration> {
        (self.pause_us > 0).then(|| Duration::from_micros(self.pause_us))
    }

    /// The pace of its texts, if it has one. It begins now. Timers have steps of a millisecond here: several texts may come
    /// at once, and on average the pace is kept.
    pub(super) fn pace(&self) -> Option<Interval> {
        self.pause().map(interval)
    }
}
