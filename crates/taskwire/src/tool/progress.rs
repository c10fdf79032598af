//! How far a tool is.

/// How far a tool is: in numbers, and perhaps in words.
///
/// ```
/// use taskwire::tool::Progress;
/// let files = ["a", "b", "c"];
/// let third = Progress::of(2, files.len()).message("copying c");
/// assert_eq!((third.done, third.total), (2.0, Some(3.0)));
/// assert_eq!(Progress::at(41).total, None, "nobody knows how many there will be");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// How much is done. It must grow from one to the next.
    pub done: f64,
    /// How much there is to do, if that is known.
    pub total: Option<f64>,
    /// What is being done.
    pub message: Option<String>,
}

impl Progress {
    /// So much is done of so much.
    #[must_use]
    pub fn of(done: impl Amount, total: impl Amount) -> Self {
        Self { total: Some(total.amount()), ..Self::at(done) }
    }

    /// So much is done, and nobody knows of how much.
    #[must_use]
    pub fn at(done: impl Amount) -> Self {
        Self { done: done.amount(), total: None, message: None }
    }

    /// Says in words what is being done.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }
}

/// A number of any type, as progress is counted. Beyond 2^53 it is not exact.
pub trait Amount {
    /// The number.
    fn amount(self) -> f64;
}

macro_rules! amounts {
    ($($number:ty),*) => {$(
        impl Amount for $number {
            fn amount(self) -> f64 {
                self as f64
            }
        }
    )*};
}
amounts!(f32, i8, i16, i32, i64, isize, u8, u16, u32, u64, usize);

impl Amount for f64 {
    fn amount(self) -> f64 {
        self
    }
}
