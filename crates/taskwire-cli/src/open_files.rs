//! How many files the server may have open, and how many connections that allows: each is a file.

use rlimit::Resource;
use taskwire::server::HttpConfig;

/// What is kept for the store, commands and everything else: this part of all files, and at least so many.
const RESERVE_DIVISOR: u64 = 4;
const RESERVE_MIN: u64 = 48;
/// Even where that leaves nothing.
const CONNECTIONS_MIN: u64 = 4;

/// Raises the soft limit as far as it goes, for the usual one of 1024 is soon reached. Says how many files may be open.
pub(crate) fn raise_limit() -> Option<u64> {
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
    rlimit::getrlimit(Resource::NOFILE).ok().map(|(soft, _)| soft)
}

/// Lowers the number of connections to what so many files allow.
pub(crate) fn bound_connections(http: &mut HttpConfig, files: u64) {
    let (wanted, allowed) = (http.connections, allowed(files));
    if wanted > allowed {
        tracing::warn!(
            "`http.connections` is {wanted}, but with {files} open files there is room for {allowed} connections: raise that limit \
             (`ulimit -Hn`, or `LimitNOFILE=` where systemd starts the server)"
        );
        http.connections = allowed;
    }
}

fn allowed(files: u64) -> usize {
    let left = files.saturating_sub((files / RESERVE_DIVISOR).max(RESERVE_MIN));
    usize::try_from(left.max(CONNECTIONS_MIN)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_to_everything_else() {
        assert_eq!([0, 10, 64, 256, 1_024, 20_000].map(allowed), [4, 4, 16, 192, 768, 15_000]);
        for (files, expected) in [(64, 16), (1_000_000, 10_000), (u64::MAX, 10_000)] {
            let mut http = HttpConfig::default();
            bound_connections(&mut http, files);
            assert_eq!(http.connections, expected, "{files}");
        }
    }
}
