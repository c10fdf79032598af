//! Scopes: what a caller may do, and which operation needs what.
//!
//! A rule is for a method (`tools/call`), for a group of methods (`tasks/*`), for calls of a tool (`tool:deploy`) or for everything
//! (`*`). An operation needs the scopes of all rules that are for it, and whoever lacks one is told all of them at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The rule for everything.
const EVERYTHING: &str = "*";
/// What begins the rule for a tool.
const TOOL: &str = "tool:";
/// What a client does before it wants anything in particular.
const FIRST_METHODS: [&str; 4] = ["initialize", "server/discover", "tools/list", "tools/call"];
/// A scope that is a matter between a client and its authorization server.
const OFFLINE: &str = "offline_access";

/// What a caller may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scopes {
    /// All that there is.
    All,
    /// What these scopes allow.
    Only(Arc<BTreeSet<String>>),
}

impl Scopes {
    /// These scopes and no others.
    #[must_use]
    pub fn only(scopes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::Only(Arc::new(scopes.into_iter().map(Into::into).collect()))
    }
}

/// Which operation needs which scopes, and which scopes stand for others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScopeRules {
    rules: BTreeMap<String, BTreeSet<String>>,
    /// Each scope with all that it stands for, directly or not.
    includes: BTreeMap<String, BTreeSet<String>>,
    /// The scope that makes a caller an admin.
    admin: Option<String>,
}

impl ScopeRules {
    pub(crate) fn none() -> &'static Self {
        static NONE: ScopeRules = ScopeRules { rules: BTreeMap::new(), includes: BTreeMap::new(), admin: None };
        &NONE
    }

    /// An operation needs these scopes, all of them: a method (`tools/call`), a group (`tasks/*`), calls of a tool (`tool:deploy`), or
    /// everything (`*`).
    #[must_use]
    pub fn with_rule(mut self, operation: &str, scopes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.rules.entry(operation.to_owned()).or_default().extend(scopes.into_iter().map(Into::into));
        self
    }

    /// A scope stands for others, and for what those stand for.
    #[must_use]
    pub fn with_hierarchy(mut self, scope: &str, includes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.includes.entry(scope.to_owned()).or_default().extend(includes.into_iter().map(Into::into));
        loop {
            let before = self.includes.clone();
            for included in self.includes.values_mut() {
                let deeper: Vec<String> = included.iter().filter_map(|scope| before.get(scope)).flatten().cloned().collect();
                included.extend(deeper);
            }
            if self.includes == before {
                return self;
            }
        }
    }

    /// Whoever was granted this scope, or one that stands for it, is an admin.
    #[must_use]
    pub fn with_admin_scope(self, scope: &str) -> Self {
        Self { admin: Some(scope.to_owned()), ..self }
    }

    /// Whether these scopes make their caller an admin. A caller that may do all for want of scopes is none.
    pub(crate) fn make_admin(&self, granted: &Scopes) -> bool {
        match (&self.admin, granted) {
            (Some(admin), Scopes::Only(granted)) => self.satisfies(granted, admin),
            _ => false,
        }
    }

    /// All scopes that an operation needs, if the caller lacks any of them.
    pub(crate) fn lacking(&self, granted: &Scopes, method: &str, tool: Option<&str>) -> Option<String> {
        let Scopes::Only(granted) = granted else { return None };
        if self.rules.is_empty() {
            return None;
        }
        let needed = self.needed(method, tool);
        let lacks = needed.iter().any(|scope| !self.satisfies(granted, scope));
        lacks.then(|| joined(&needed))
    }

    fn needed(&self, method: &str, tool: Option<&str>) -> BTreeSet<&str> {
        let is_for = |operation: &str| match operation.strip_prefix(TOOL) {
            Some(name) => tool == Some(name),
            None => covers(operation, method) || also_is(method, tool).is_some_and(|method| covers(operation, method)),
        };
        let rules = self.rules.iter().filter(|(operation, _)| is_for(operation));
        rules.flat_map(|(_, scopes)| scopes.iter().map(String::as_str)).collect()
    }

    fn satisfies(&self, granted: &BTreeSet<String>, scope: &str) -> bool {
        granted.contains(scope) || granted.iter().any(|granted| self.includes.get(granted).is_some_and(|included| included.contains(scope)))
    }

    /// The scopes to ask for at first: with them a client can see all tools, and call those that need no others.
    pub(crate) fn first(&self) -> String {
        let needed: BTreeSet<&str> = FIRST_METHODS.iter().flat_map(|method| self.needed(method, None)).collect();
        joined(&needed)
    }

    /// All scopes that any operation needs.
    pub(crate) fn all(&self) -> BTreeSet<&str> {
        let scopes = self.rules.values().flatten().map(String::as_str);
        scopes.filter(|scope| *scope != OFFLINE).collect()
    }
}

/// Whether a rule for this operation is for this method.
fn covers(operation: &str, method: &str) -> bool {
    let group = operation.strip_suffix('*').filter(|group| group.ends_with('/'));
    operation == EVERYTHING || operation == method || group.is_some_and(|group| method.starts_with(group))
}

/// The method of the protocol that does the same, for what has a name of its own: a rule for one is a rule for the other.
fn also_is(method: &str, tool: Option<&str>) -> Option<&'static str> {
    match (method, tool) {
        ("notifications/cancelled", _) | ("tools/call", Some("task_cancel")) => Some("tasks/cancel"),
        ("tools/call", Some("task_answer")) => Some("tasks/update"),
        ("tools/call", Some("task_wait" | "task_output")) | ("dev.taskwire/partials/read", _) => Some("tasks/get"),
        ("tools/call", Some("task_list")) | ("dev.taskwire/tasks/list", _) => Some("tasks/list"),
        _ => None,
    }
}

fn joined(scopes: &BTreeSet<&str>) -> String {
    scopes.iter().copied().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_the_same_under_another_name_needs_the_same() {
        let rules = ScopeRules::default().with_rule("tasks/cancel", ["stop"]).with_rule("tasks/list", ["look"]);
        let granted = Scopes::only(["mcp"]);
        for (method, tool, needed) in [
            ("tasks/cancel", None, Some("stop")),
            ("notifications/cancelled", None, Some("stop")),
            ("tools/call", Some("task_cancel"), Some("stop")),
            ("tools/call", Some("task_list"), Some("look")),
            ("dev.taskwire/tasks/list", None, Some("look")),
            ("tools/call", Some("other"), None),
            ("tools/call", None, None),
        ] {
            assert_eq!(rules.lacking(&granted, method, tool).as_deref(), needed, "{method} {tool:?}");
        }
    }

    fn rules() -> ScopeRules {
        ScopeRules::default()
            .with_rule("*", ["mcp"])
            .with_rule("tools/call", ["call"])
            .with_rule("tasks/*", ["tasks"])
            .with_rule("tool:deploy", ["deploy", "production"])
    }

    #[test]
    fn whoever_lacks_one_scope_is_told_all_of_the_operation() {
        let lacking = |granted: &[&str], method: &str, tool| rules().lacking(&Scopes::only(granted.iter().copied()), method, tool);
        let deploy = Some("deploy");
        assert_eq!(lacking(&[], "tools/list", None).as_deref(), Some("mcp"));
        assert_eq!(lacking(&["mcp"], "tools/list", None), None);
        assert_eq!(lacking(&["mcp"], "tasks/get", None).as_deref(), Some("mcp tasks"));
        assert_eq!(lacking(&["mcp"], "tasksx", None), None, "no group of it");
        assert_eq!(lacking(&["mcp", "call"], "tools/call", Some("build")), None);
        assert_eq!(lacking(&["mcp", "call", "deploy"], "tools/call", deploy).as_deref(), Some("call deploy mcp production"));
        assert_eq!(lacking(&["mcp", "call", "deploy", "production"], "tools/call", deploy), None);
        assert_eq!(lacking(&["mcp", "call"], "tools/call", Some("deploy2")), None, "another tool");
        assert_eq!(rules().lacking(&Scopes::All, "tools/call", deploy), None);
        assert_eq!(ScopeRules::none().lacking(&Scopes::only([""; 0]), "tools/call", deploy), None);
    }

    #[test]
    fn a_scope_that_stands_for_others_is_as_good_as_they() {
        let rules =
            rules().with_hierarchy("admin", ["user", "tasks"]).with_hierarchy("user", ["mcp", "call"]).with_hierarchy("mcp", ["admin"]);
        let may = |granted: &str, method: &str| rules.lacking(&Scopes::only([granted]), method, None).is_none();
        assert!(may("admin", "tasks/get") && may("admin", "tools/call"));
        assert!(may("mcp", "tasks/get"), "around the ring");
        assert!(may("user", "tools/call") && !may("call", "tools/call"));
    }

    #[test]
    fn a_scope_makes_an_admin_and_so_does_one_that_stands_for_it() {
        let rules = ScopeRules::default().with_admin_scope("operate").with_hierarchy("root", ["operate"]);
        let admin = |scope: &str| rules.make_admin(&Scopes::only([scope]));
        assert!(admin("operate") && admin("root") && !admin("mcp"));
        assert!(!rules.make_admin(&Scopes::All), "to need no scopes makes no admin");
        assert!(!ScopeRules::none().make_admin(&Scopes::only(["operate"])));
        assert_eq!((rules.first(), rules.all().len()), (String::new(), 0), "no client is told to ask for it");
    }

    #[test]
    fn a_client_is_told_first_what_it_needs_first() {
        assert_eq!(rules().first(), "call mcp");
        assert_eq!(ScopeRules::none().first(), "");
        let rules = rules().with_rule("*", ["offline_access"]);
        assert_eq!(rules.all().into_iter().collect::<Vec<_>>(), ["call", "deploy", "mcp", "production", "tasks"]);
    }
}
