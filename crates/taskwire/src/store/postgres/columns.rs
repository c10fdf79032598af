//! Values as PostgreSQL takes them: columns for statements that write many rows at once.

use std::{borrow::Cow, mem};

use sha2::{Digest, Sha256};
use taskwire_core::{TaskId, Timestamp, task::wants};

use super::connection::{Call, Sql, number};
use crate::store::{CallKey, TaskWrite};

/// Text that one statement takes; what comes beyond it is another statement's.
const STATEMENT_BYTES: usize = 8 * 1024 * 1024;

/// A text as it is stored: PostgreSQL takes no zero in a text. Two texts never become the same.
pub(super) fn to_text(text: &str) -> Cow<'_, str> {
    if text.contains(['\0', '\\']) { text.replace('\\', "\\\\").replace('\0', "\\0").into() } else { text.into() }
}

/// The text that was stored so.
pub(super) fn from_text(stored: &str) -> Cow<'_, str> {
    if !stored.contains('\\') {
        return stored.into();
    }
    let (mut text, mut chars) = (String::with_capacity(stored.len()), stored.chars());
    while let Some(c) = chars.next() {
        text.push(if c != '\\' || chars.next() == Some('\\') { c } else { '\0' });
    }
    text.into()
}

/// The kind of a key as it is stored.
pub(super) const fn kind_of(key: CallKey<'_>) -> i16 {
    match key {
        CallKey::Idempotency(..) => 0,
        CallKey::Dedupe(_, false, _) => 1,
        CallKey::Dedupe(_, true, _) => 2,
    }
}

/// The longest text that is a part of a key as it is. An index takes no more than 2,704 bytes for all of them.
const KEY_TEXT_BYTES: usize = 1_024;

/// A key's text as it is stored. Of a long one only its hash is, behind what no escaped text has.
fn to_key_text(text: &str) -> Cow<'_, str> {
    let escaped = to_text(text);
    if escaped.len() <= KEY_TEXT_BYTES { escaped } else { format!("\\#{:x}", Sha256::digest(escaped.as_bytes())).into() }
}

/// A key as it is stored: caller, kind, key.
pub(super) fn key_columns(key: CallKey<'_>) -> (Cow<'_, str>, i16, Cow<'_, str>) {
    let (CallKey::Idempotency(caller, text) | CallKey::Dedupe(caller, _, text)) = key;
    (to_text(caller.as_str()), kind_of(key), to_key_text(text))
}

/// Keys with the tasks that have them.
#[derive(Default, Clone)]
pub(super) struct KeyColumns<'a> {
    pub(super) caller: Vec<Cow<'a, str>>,
    pub(super) kind: Vec<i16>,
    pub(super) key: Vec<Cow<'a, str>>,
    pub(super) task: Vec<&'a [u8]>,
}

impl<'a> KeyColumns<'a> {
    pub(super) fn push(&mut self, key: CallKey<'a>, task: &'a TaskId) {
        let (caller, kind, key) = key_columns(key);
        self.caller.push(caller);
        self.kind.push(kind);
        self.key.push(key);
        self.task.push(task.as_bytes());
    }

    pub(super) fn into_call(self, sql: &'static Sql) -> Option<Call<'a>> {
        let Self { caller, kind, key, task } = self;
        (!task.is_empty()).then(|| Call::new(sql, vec![Box::new(caller), Box::new(kind), Box::new(key), Box::new(task)]))
    }
}

/// Rows of `task`.
#[derive(Default)]
pub(super) struct TaskColumns<'a> {
    id: Vec<&'a [u8]>,
    /// `ended`, `due`.
    optional: [Vec<Option<i64>>; 2],
    /// `epoch`, `version`, `next_seq`, `blocks`, `output_bytes`, `stored_bytes`.
    numbers: [Vec<i64>; 6],
    queued: Vec<Option<Cow<'a, str>>>,
    caller: Vec<Cow<'a, str>>,
}

impl<'a> TaskColumns<'a> {
    pub(super) fn push(&mut self, write: &'a TaskWrite) {
        let task = &*write.task;
        self.id.push(task.id.as_bytes());
        let ended = task.ended.map(|(_, version)| number(version.0));
        let due = wants(task).due.map(Timestamp::as_millis);
        self.optional.iter_mut().zip([ended, due]).for_each(|(column, value)| column.push(value));
        let output = &task.output;
        let numbers = [task.epoch.0, task.version.0, output.next_seq.0, output.blocks, output.bytes, write.stored_bytes];
        self.numbers.iter_mut().zip(numbers).for_each(|(column, value)| column.push(number(value)));
        self.queued.push(task.queued_at.map(|_| to_text(&task.spec.tool)));
        self.caller.push(to_text(task.spec.caller.as_str()));
    }

    pub(super) fn into_call(self, sql: &'static Sql, with_caller: bool) -> Option<Call<'a>> {
        if self.id.is_empty() {
            return None;
        }
        let mut call = Call::new(sql, vec![Box::new(self.id)]);
        self.optional.into_iter().for_each(|column| call.params.push(Box::new(column)));
        self.numbers.into_iter().for_each(|column| call.params.push(Box::new(column)));
        call.params.push(Box::new(self.queued));
        if with_caller {
            call.params.push(Box::new(self.caller));
        }
        Some(call)
    }
}

/// Rows with a text and up to seven numbers, of `head`, `log` and `chunk`. There can be too many for one statement.
pub(super) struct TextColumns<'a, const N: usize> {
    sql: &'static Sql,
    task: Vec<&'a [u8]>,
    numbers: [Vec<i64>; N],
    text: Vec<Cow<'a, str>>,
    bytes: usize,
    full: Vec<Call<'a>>,
}

impl<'a, const N: usize> TextColumns<'a, N> {
    pub(super) fn new(sql: &'static Sql) -> Self {
        let numbers = std::array::from_fn(|_| Vec::new());
        Self { sql, task: Vec::new(), numbers, text: Vec::new(), bytes: 0, full: Vec::new() }
    }

    pub(super) fn push(&mut self, task: &'a TaskId, numbers: [i64; N], text: Cow<'a, str>) {
        if self.bytes + text.len() > STATEMENT_BYTES {
            self.close();
        }
        self.bytes += text.len();
        self.task.push(task.as_bytes());
        self.numbers.iter_mut().zip(numbers).for_each(|(column, value)| column.push(value));
        self.text.push(text);
    }

    fn close(&mut self) {
        if !self.task.is_empty() {
            let mut call = Call::new(self.sql, vec![Box::new(mem::take(&mut self.task))]);
            self.numbers.iter_mut().for_each(|column| call.params.push(Box::new(mem::take(column))));
            call.params.push(Box::new(mem::take(&mut self.text)));
            self.full.push(call);
        }
        self.bytes = 0;
    }

    pub(super) fn into_calls(mut self) -> Vec<Call<'a>> {
        self.close();
        self.full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_can_be_stored_and_no_two_become_the_same() {
        let texts = ["", "plain", "\0", "\\0", "\\", "\\\0", "a\\\\b", "é\0ü"];
        let stored: Vec<String> = texts.iter().map(|text| to_text(text).into_owned()).collect();
        assert!(stored.iter().all(|text| !text.contains('\0')), "{stored:?}");
        assert!(stored.iter().zip(texts).all(|(stored, text)| from_text(stored) == text), "{stored:?}");
    }
}
