//! Chance from a seed (xorshift64*): enough to choose, not to guard a secret.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A seed that nobody chose.
pub(crate) fn any_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        // Zero would stay zero for ever.
        Self(seed.max(1))
    }

    pub(crate) fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number from 0 up to, but not including, `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        (self.roll() >> 16) % end
    }

    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of `things`; none if there are none.
    pub(crate) fn pick<'a, T>(&mut self, things: &'a [T]) -> Option<&'a T> {
        if things.is_empty() { None } else { things.get(usize::try_from(self.below(things.len() as u64)).expect("an index")) }
    }

    /// As many random bytes as are asked for.
    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.roll().to_be_bytes()[0])
    }
}
