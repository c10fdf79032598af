//! `[audit]`: a record of who did what.

use std::path::PathBuf;

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AuditTable {
    /// The file that gets a line of JSON for each task that somebody makes, cancels or answers, and for each request that is refused. It is
    /// opened again at a reload. Default: none.
    pub(crate) file: Option<PathBuf>,
}
