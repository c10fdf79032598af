//! Whether the database keeps what it has acknowledged. That depends on settings, which may change while nodes run, and another server may
//! take over that has others: each new connection looks at them, and upkeep makes one each hour.

use std::sync::{Mutex, PoisonError};

use tokio_postgres::SimpleQueryMessage;

/// Asks for the settings.
pub(super) const SETTINGS: &str = "SELECT current_setting('fsync', true), current_setting('synchronous_commit', true),
    current_setting('synchronous_standby_names', true)";

const NO_FSYNC: &str = "the database has fsync = off: a crash of its machine may lose and damage what was acknowledged";
const LOOSE_COMMITS: &str = "the database has synchronous_commit = off since this node was started: a crash may lose what was \
     acknowledged, until that is on again or the node is started anew";
const LOCAL_COMMITS: &str = "the database has synchronous_commit = local: a standby (synchronous_standby_names) that takes over may not \
     have what was acknowledged";

/// What is wrong with these settings.
fn problems(fsync: &str, synchronous_commit: &str, standbys: &str) -> Vec<&'static str> {
    let no_fsync = (fsync == "off").then_some(NO_FSYNC);
    let commits = match synchronous_commit {
        "off" => Some(LOOSE_COMMITS),
        "local" if !standbys.is_empty() => Some(LOCAL_COMMITS),
        _ => None,
    };
    no_fsync.into_iter().chain(commits).collect()
}

/// The problems that were found last; none before the first look.
#[derive(Default)]
pub(super) struct Durability(Mutex<Option<Vec<&'static str>>>);

impl Durability {
    /// Looks at the answer to [`SETTINGS`], and says in the log what is wrong that was not before.
    pub(super) fn look_at(&self, answer: &[SimpleQueryMessage]) {
        let rows = answer.iter().filter_map(|message| if let SimpleQueryMessage::Row(row) = message { Some(row) } else { None });
        for row in rows {
            let setting = |index: usize| row.try_get(index).ok().flatten().unwrap_or_default();
            for problem in self.new_ones(problems(setting(0), setting(1), setting(2))) {
                tracing::warn!("{problem}");
            }
        }
    }

    /// Those of these problems that are to be said.
    fn new_ones(&self, found: Vec<&'static str>) -> Vec<&'static str> {
        let before = self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(found.clone());
        // At a start `schema` says the others.
        let is_new = |problem: &&'static str| before.as_ref().map_or(*problem == LOCAL_COMMITS, |before| !before.contains(problem));
        found.into_iter().filter(is_new).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_with_which_a_crash_or_a_standby_loses_what_was_acknowledged_are_problems() {
        for (settings, expected) in [
            (["on", "on", ""], vec![]),
            (["on", "remote_apply", "*"], vec![]),
            (["on", "local", ""], vec![]),
            (["on", "local", "*"], vec![LOCAL_COMMITS]),
            (["off", "off", "*"], vec![NO_FSYNC, LOOSE_COMMITS]),
            // The server did not say.
            (["", "", ""], vec![]),
        ] {
            let [fsync, synchronous_commit, standbys] = settings;
            assert_eq!(problems(fsync, synchronous_commit, standbys), expected, "{settings:?}");
        }
    }

    #[test]
    fn a_problem_is_said_when_it_begins_and_not_again_while_it_lasts() {
        let durability = Durability::default();
        assert_eq!(durability.new_ones(vec![NO_FSYNC, LOCAL_COMMITS]), [LOCAL_COMMITS], "the other one was said when the store was opened");
        assert!(durability.new_ones(vec![NO_FSYNC, LOCAL_COMMITS]).is_empty());
        assert_eq!(durability.new_ones(vec![NO_FSYNC, LOOSE_COMMITS]), [LOOSE_COMMITS]);
        assert!(durability.new_ones(vec![]).is_empty());
        assert_eq!(durability.new_ones(vec![NO_FSYNC]), [NO_FSYNC]);
    }
}
