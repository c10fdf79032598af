//! All randomness of a simulated world comes from its seed: that of its own dice, and that of the program under test, which asks the
//! operating system. So the order of maps, the ids of tasks and the choices of `select!` are the same for the same seed. A real world seeds
//! each of its threads, so that no two of them make the same ids.

use std::cell::Cell;

thread_local! {
    static SYSTEM: Cell<u64> = const { Cell::new(0) };
}

/// Splitmix64.
fn next(state: u64) -> (u64, u64) {
    let state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut value = state;
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (state, value ^ (value >> 31))
}

/// Makes what the operating system gives to this thread depend on `seed` alone.
pub(crate) fn seed_system(seed: u64) {
    SYSTEM.set(seed);
}

/// Stands in for the function of the same name in the C library, from which the standard library and `getrandom` take their randomness.
///
/// # Safety
/// As there: `buffer` must have room for `len` bytes.
#[expect(unsafe_code, reason = "the program under test must get its randomness from the seed, and asks the C library for it")]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getrandom(buffer: *mut u8, len: usize, _flags: u32) -> isize {
    for at in 0..len {
        let (state, value) = next(SYSTEM.get());
        SYSTEM.set(state);
        // SAFETY: the caller promises room for `len` bytes.
        unsafe { buffer.add(at).write(value.to_le_bytes()[0]) };
    }
    len.cast_signed()
}

/// The dice of a world.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn roll(&mut self) -> u64 {
        let (state, value) = next(self.0);
        self.0 = state;
        value
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.roll() % end.max(1)
    }

    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// Whether something happens that happens so many times in a million.
    pub(crate) fn happens(&mut self, per_million: u64) -> bool {
        self.below(1_000_000) < per_million
    }

    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            let other = self.below(at as u64 + 1);
            list.swap(at, usize::try_from(other).unwrap_or(0));
        }
    }

    /// Dice of their own for a part of the world.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.roll())
    }
}
