//! Where the time comes from, so that tests can move it, and fresh random ids.

use std::{
    fmt,
    pin::Pin,
    time::{Duration, SystemTime},
};

use rustix::time::ClockId;
use taskwire_core::Timestamp;
#[cfg(feature = "server")]
use taskwire_core::{SessionId, TaskId, id::ID_RANDOM_BYTES};
use tokio::sync::watch;

/// A wait that can be kept in a struct.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where the time comes from.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Timestamp;

    /// The time since some moment. It never jumps, whatever becomes of [`now`](Self::now).
    fn monotonic(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.now().as_millis()).unwrap_or(0))
    }

    /// Waits until it is `at` or later.
    fn sleep_until(&self, at: Timestamp) -> Sleep;

    /// Waits for `span`.
    fn sleep(&self, span: Duration) -> Sleep {
        self.sleep_until(self.now().after(span))
    }
}

/// The time of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the time")]
fn system_now() -> SystemTime {
    SystemTime::now()
}

/// Counts on while the machine sleeps: a lease expires meanwhile.
fn system_monotonic() -> Duration {
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::Monotonic;
    let now = rustix::time::clock_gettime(CLOCK);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        system_monotonic()
    }

    fn now(&self) -> Timestamp {
        let since = system_now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    fn sleep_until(&self, at: Timestamp) -> Sleep {
        let clock = *self;
        Box::pin(async move {
            // The machine's clock may be set while we wait: look again each hour, and at the end.
            while clock.now() < at {
                tokio::time::sleep(at.since(clock.now()).min(Duration::from_secs(3600))).await;
            }
        })
    }

    fn sleep(&self, span: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(span))
    }
}

/// A clock for tests: it stands still until [`advance`](Self::advance), and can be set wrong.
#[derive(Debug, Clone)]
pub struct ManualClock(watch::Sender<ManualTime>);

#[derive(Debug, Clone, Copy)]
struct ManualTime {
    /// What a clock shows that is right.
    right: Timestamp,
    /// By how many milliseconds this one is ahead of it.
    ahead_ms: i64,
}

impl ManualTime {
    fn shown(self) -> Timestamp {
        Timestamp::from_millis(self.right.as_millis().saturating_add(self.ahead_ms))
    }
}

impl ManualClock {
    /// A clock that stands at `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self(watch::Sender::new(ManualTime { right: now, ahead_ms: 0 }))
    }

    /// Moves the clock on and wakes those who waited for that.
    pub fn advance(&self, span: Duration) {
        self.0.send_modify(|time| time.right = time.right.after(span));
    }

    /// Sets the clock so many milliseconds ahead of the right time, or behind it. No time passes by that.
    pub fn set_ahead(&self, ahead_ms: i64) {
        self.0.send_modify(|time| time.ahead_ms = ahead_ms);
    }

    /// Waits until this holds.
    fn wait_until(&self, holds: impl Fn(ManualTime) -> bool + Send + Sync + 'static) -> Sleep {
        let mut time = self.0.subscribe();
        let keep = self.0.clone();
        Box::pin(async move {
            let _ = time.wait_for(|time| holds(*time)).await;
            drop(keep);
        })
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.0.borrow().shown()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.borrow().right.as_millis()).unwrap_or(0))
    }

    fn sleep_until(&self, at: Timestamp) -> Sleep {
        self.wait_until(move |time| time.shown() >= at)
    }

    fn sleep(&self, span: Duration) -> Sleep {
        let at = self.0.borrow().right.after(span);
        self.wait_until(move |time| time.right >= at)
    }
}

/// Fills `bytes` with what nobody can guess.
///
/// # Panics
/// When the operating system has no randomness to give: nothing safe can be done then.
#[cfg(feature = "server")]
pub(crate) fn random_bytes(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system gives random bytes");
}

/// A fresh, unguessable task id.
#[cfg(feature = "server")]
#[must_use]
pub(crate) fn new_task_id(now: Timestamp) -> TaskId {
    let mut random = [0; ID_RANDOM_BYTES];
    random_bytes(&mut random);
    TaskId::new(now, random)
}

/// A fresh, unguessable session id, of characters that are safe in a header.
#[cfg(feature = "server")]
pub(crate) fn new_session_id() -> SessionId {
    let mut random = [0; 20];
    random_bytes(&mut random);
    let text = random.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    SessionId::new(&text)
}
