//! Checksums of rows: they show whether a disk or another program changed what was written.
//!
//! Each covers its whole row, keys included, so that no row can stand in for another. They do not protect against forgery. The
//! numbers are stored, so the algorithm never changes: XXH64, little-endian.

use std::hash::Hasher;

use taskwire_core::TaskId;
use twox_hash::XxHash64;

/// A checksum that is being computed.
pub(super) struct Checksum(XxHash64);

impl Checksum {
    /// Begins the checksum of a kind of row: equal rows of two kinds have different checksums.
    pub(super) fn new(kind: u64) -> Self {
        Self(XxHash64::with_seed(kind))
    }

    pub(super) fn number(mut self, number: i64) -> Self {
        self.0.write(&number.to_le_bytes());
        self
    }

    /// Adds bytes and their length: bytes that are moved from one value to the next show.
    pub(super) fn bytes(self, bytes: &[u8]) -> Self {
        let mut sum = self.number(bytes.len().cast_signed() as i64);
        sum.0.write(bytes);
        sum
    }

    /// As the database stores it.
    pub(super) fn finish(self) -> i64 {
        self.0.finish().cast_signed()
    }
}

/// A task's head.
pub(super) fn of_task(id: TaskId, caller: &str, open: i64, due: Option<i64>, head: &str) -> i64 {
    let sum = Checksum::new(1).bytes(id.as_bytes()).bytes(caller.as_bytes()).number(open);
    sum.number(due.is_some().into()).number(due.unwrap_or(0)).bytes(head.as_bytes()).finish()
}

/// An event of a task.
pub(super) fn of_event(id: TaskId, version: i64, at: i64, event: &str) -> i64 {
    Checksum::new(2).bytes(id.as_bytes()).number(version).number(at).bytes(event.as_bytes()).finish()
}

/// The text of a row of chunks. The numbers have a checksum of their own: they are often read without the text.
pub(super) fn of_text(text: &str) -> i64 {
    Checksum::new(3).bytes(text.as_bytes()).finish()
}

/// The numbers of such a row, the checksum of its text included.
pub(super) fn of_chunk_header(id: TaskId, numbers: [i64; 8]) -> i64 {
    numbers.into_iter().fold(Checksum::new(4).bytes(id.as_bytes()), Checksum::number).finish()
}

/// An idempotency key and its task.
pub(super) fn of_key(caller: &str, key: &str, id: TaskId) -> i64 {
    Checksum::new(5).bytes(caller.as_bytes()).bytes(key.as_bytes()).bytes(id.as_bytes()).finish()
}

/// A session.
pub(super) fn of_session(id: &str, caller: &str, seen: i64, data: &str) -> i64 {
    Checksum::new(6).bytes(id.as_bytes()).bytes(caller.as_bytes()).number(seen).bytes(data.as_bytes()).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_that_are_stored_are_the_same_for_ever() {
        assert_eq!(Checksum::new(1).bytes(b"").finish(), 2_506_089_352_882_295_055);
        assert_eq!(Checksum::new(1).number(-1).bytes(b"hello").bytes(b"12345678x").finish(), -4_927_263_071_708_105_600);
    }

    #[test]
    fn every_flipped_bit_shows() {
        for len in [1, 7, 8, 9, 64, 65] {
            let bytes: Vec<u8> = (0..len).collect();
            let sum = Checksum::new(0).bytes(&bytes).finish();
            for bit in 0..bytes.len() * 8 {
                let mut other = bytes.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(Checksum::new(0).bytes(&other).finish(), sum, "bit {bit} of {len} bytes");
            }
        }
    }

    #[test]
    fn what_is_moved_from_one_value_to_the_next_shows() {
        let sum = |a: &str, b: &str| Checksum::new(0).bytes(a.as_bytes()).bytes(b.as_bytes()).finish();
        assert_ne!(sum("ab", "c"), sum("a", "bc"));
        assert_ne!(sum("a\0", ""), sum("a", "\0"));
        assert_ne!(sum("", ""), Checksum::new(0).bytes(b"").finish());
        assert_ne!(Checksum::new(0).bytes(b"a").finish(), Checksum::new(1).bytes(b"a").finish());
    }
}
