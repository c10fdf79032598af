//! What numbers and times of the file must be within.

use std::time::Duration;

use taskwire::server;

/// Refuses values with which nothing would work; the error has the key and the reason.
pub(super) fn check(config: &server::Config) -> Result<(), (&'static str, String)> {
    let counts = [
        ("http.connections", config.http.connections),
        ("http.idle_connections", config.http.idle_connections),
        ("page_len", config.page_len),
        ("requests_per_stream", config.requests_per_stream),
        ("legacy.sessions_per_caller", config.legacy.sessions_per_caller),
    ];
    for (key, value) in counts {
        if !(1..=1_000_000).contains(&value) {
            return Err((key, format!("must be between 1 and 1000000, not {value}")));
        }
    }
    let sizes = [
        ("queue_len", config.engine.queue_len as u64, 2),
        ("limits.changes_per_session", config.engine.limits.changes_per_session, 1),
        ("body_bytes", config.body_bytes as u64, 1024),
        ("http.head_bytes", config.http.head_bytes as u64, 8192),
        ("http.all_bodies_bytes", config.http.all_bodies_bytes as u64, config.body_bytes as u64),
        ("coalesce_bytes", config.engine.coalesce.bytes as u64, 1),
        ("read_bytes", config.read_bytes as u64, 1024),
        ("inline_bytes", config.inline_bytes as u64, 256),
        ("limits.chunk_bytes", config.engine.limits.chunk_bytes, 1024),
        ("limits.output_bytes_per_second", config.engine.limits.output_bytes_per_second, 1024),
        ("limits.stored_bytes_per_caller", config.engine.limits.stored_bytes_per_caller, 64 * 1024),
    ];
    for (key, value, least) in sizes {
        if value < least {
            return Err((key, format!("must be at least {least}, not {value}")));
        }
    }
    let spans = [
        ("hold", config.hold, Duration::from_secs(1)),
        ("orphan_after", config.engine.orphan_after, Duration::from_secs(8)),
        ("poll_interval", config.poll_interval, Duration::from_millis(10)),
        ("retention", config.retention.unwrap_or(Duration::MAX), Duration::from_secs(1)),
        ("answer_timeout", config.answer_timeout.unwrap_or(Duration::MAX), Duration::from_secs(1)),
        ("http.keep_alive", config.http.keep_alive, Duration::from_secs(1)),
        ("http.read_timeout", config.http.read_timeout, Duration::from_secs(1)),
        ("http.write_timeout", config.http.write_timeout, Duration::from_secs(1)),
        ("legacy.retry", config.legacy.retry, Duration::from_millis(10)),
        ("legacy.session_idle", config.legacy.session_idle, Duration::from_secs(60)),
        ("legacy.reconnect_after", config.legacy.reconnect_after.unwrap_or(Duration::MAX), Duration::from_secs(1)),
    ];
    for (key, value, least) in spans {
        if value < least {
            let (least, value) = (humantime::format_duration(least), humantime::format_duration(value));
            return Err((key, format!("must be at least {least}, not {value}")));
        }
    }
    Ok(())
}
