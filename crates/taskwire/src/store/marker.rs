//! What a move leaves in its two stores, so that nobody serves one that is not complete, or one whose tasks are elsewhere.

use std::path::Path;

use super::{
    Error,
    data_dir::{MOVED, MOVING},
};

/// How far a move has come with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MoveState {
    /// It is being filled.
    Moving,
    /// Its tasks are in the other one.
    Moved,
}

/// The mark of a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Marker {
    pub(super) state: MoveState,
    /// The same in both stores of one move, and in those of no other.
    pub(super) id: String,
    /// The other store, for people.
    pub(super) other: String,
}

impl Marker {
    /// As it is stored.
    #[cfg(feature = "postgres")]
    pub(super) fn encode(&self) -> String {
        let word = if self.state == MoveState::Moving { MOVING } else { MOVED };
        format!("{word} {}\n{}\n", self.id, self.other.replace(['\n', '\r'], " "))
    }

    /// Reads what [`encode`](Self::encode) writes. A text that is not understood is of a move that was interrupted.
    pub(super) fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let (word, id) = lines.next().unwrap_or_default().split_once(' ').unwrap_or_default();
        let state = if word == MOVED { MoveState::Moved } else { MoveState::Moving };
        let other = lines.next().filter(|other| !other.is_empty()).unwrap_or("another store");
        Self { state, id: id.to_owned(), other: other.to_owned() }
    }

    /// Why a directory is not served that has this mark.
    pub(super) fn in_directory(&self, shown: &Path) -> Error {
        let (dir, other) = (shown.display(), &self.other);
        Error::Moved(match self.state {
            MoveState::Moving => format!(
                "the store in {dir} is not complete, because a move of {other} was interrupted: run `taskwire store move` again, with the \
                 same names; or remove `tasks.db*` and `{MOVING}` in it"
            ),
            MoveState::Moved => format!(
                "the tasks in {dir} were moved to {other}: serve them there (`--store`). To give up what was done there since, and to go \
                 back to what is here, remove `{MOVED}` in it"
            ),
        })
    }

    /// The same of a database whose tables have it.
    #[cfg(feature = "postgres")]
    pub(super) fn in_database(&self, place: &str, schema: &str) -> Error {
        let other = &self.other;
        Error::Moved(match self.state {
            MoveState::Moving => format!(
                "{place} is not complete, because a move of {other} was interrupted: run `taskwire store move` again, with the same names; \
                 or `DROP SCHEMA {schema} CASCADE`"
            ),
            MoveState::Moved => format!(
                "the tasks of {place} were moved to {other}: serve them there (`--data`). To give up what was done there since, and to go \
                 back to what is here, `UPDATE {schema}.meta SET bytes = NULL WHERE key = 'epoch'`"
            ),
        })
    }
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written_and_nonsense_is_of_a_move_that_was_interrupted() {
        for state in [MoveState::Moving, MoveState::Moved] {
            let marker = Marker { state, id: "7f".to_owned(), other: "the schema a of b".to_owned() };
            assert_eq!(Marker::parse(&marker.encode()), marker);
        }
        let lines = Marker { state: MoveState::Moved, id: "7f".to_owned(), other: "a\nb".to_owned() };
        assert_eq!(Marker::parse(&lines.encode()).other, "a b");
        for text in ["", "moved", "\n", "x y\n"] {
            let marker = Marker::parse(text);
            assert_eq!((marker.state, marker.other.as_str()), (MoveState::Moving, "another store"), "{text}");
        }
    }

    #[test]
    fn who_finds_a_mark_is_told_where_the_tasks_are_and_how_to_go_back() {
        let marker = |state| Marker { state, id: "7f".to_owned(), other: "OTHER".to_owned() };
        let (moving, moved) = (marker(MoveState::Moving), marker(MoveState::Moved));
        let dir = Path::new("/data");
        for (error, words) in [
            (moving.in_directory(dir), ["/data", "OTHER", "`moving`"]),
            (moved.in_directory(dir), ["/data", "OTHER", "`moved`"]),
            (moving.in_database("PLACE", "tw"), ["PLACE", "OTHER", "DROP SCHEMA tw"]),
            (moved.in_database("PLACE", "tw"), ["PLACE", "OTHER", "UPDATE tw.meta"]),
        ] {
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    }
}
