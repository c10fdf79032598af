//! The log on standard error: lines for people, or one JSON object a line for programs.

use std::io::IsTerminal;

use clap::ValueEnum;
use serde::Deserialize;
use tracing_subscriber::EnvFilter;

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object a line
    Json,
}

/// Begins to log: what `$RUST_LOG` says or, without it, what is `usual`.
pub(crate) fn begin(format: LogFormat, usual: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| usual.into());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.with_ansi(false).json().flatten_event(true).with_current_span(false).with_span_list(false).init(),
    }
}
