//! Who asks, and what they may do: so that a page offers nothing that would be refused.

use serde::Serialize;

use crate::{auth::Identity, protocol::Context};

/// What `GET /api/caller` answers.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CallerObject {
    caller: String,
    /// Whether it sees and stops what others own.
    admin: bool,
    /// What its scopes allow, apart from those that single tools need.
    may: Permissions,
    /// The server's name and version.
    server: String,
    version: String,
}

#[derive(Debug, Serialize)]
struct Permissions {
    list: bool,
    read: bool,
    call: bool,
    answer: bool,
    cancel: bool,
}

impl CallerObject {
    pub(super) fn of(context: &Context, identity: &Identity, admin: bool) -> Self {
        // Not `Context::authorize`, which records that somebody was refused.
        let may = |method| context.config.auth.scope_rules().lacking(&identity.scopes, method, None).is_none();
        Self {
            caller: identity.caller.as_str().to_owned(),
            admin,
            may: Permissions {
                list: admin || may("tasks/list"),
                read: admin || may("tasks/get"),
                call: may("tools/call"),
                answer: may("tasks/update"),
                cancel: admin || may("tasks/cancel"),
            },
            server: context.config.name.clone(),
            version: context.config.version.clone(),
        }
    }
}
