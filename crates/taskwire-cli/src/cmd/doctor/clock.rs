//! The clock: whether it says something sensible, and whether the disk of the data directory has the same time.

use std::{path::Path, time::UNIX_EPOCH};

use taskwire::clock::{Clock, SystemClock};
use taskwire_core::Timestamp;

use super::finding::Finding;

const CLOCK: &str = "clock";
/// 2026 and 2100: no clock that is right says anything before or after.
const YEARS: std::ops::Range<i64> = 1_767_225_600_000..4_102_444_800_000;
/// How far two clocks may be apart. A file's time has steps of some milliseconds, on some disks of two seconds.
const APART_MAX_MS: i64 = 3_000;
const SET_IT: &str = "let the machine keep its time (`timedatectl set-ntp true`): tasks are kept and retried by it";

/// Whether the time can be right.
pub(super) fn check() -> Finding {
    of_time(SystemClock.now())
}

fn of_time(now: Timestamp) -> Finding {
    if YEARS.contains(&now.as_millis()) {
        Finding::ok(CLOCK, format!("it is {now}"))
    } else {
        Finding::fail(CLOCK, format!("it says {now}, which cannot be")).so(SET_IT)
    }
}

/// Whether a file that is made now is of now. Nothing if that cannot be seen.
pub(super) fn of_disk(dir: &Path) -> Option<Finding> {
    let made_at = time_of_new_file(dir)?;
    let ahead = made_at.as_millis() - SystemClock.now().as_millis();
    Some(of_difference("the disk of the data directory", ahead))
}

/// What it means that the clock of `whose` is so far ahead of the one here.
pub(super) fn of_difference(whose: &str, ahead_ms: i64) -> Finding {
    let side = if ahead_ms < 0 { "behind" } else { "ahead" };
    let found = format!("{whose} is {} ms {side}", ahead_ms.unsigned_abs());
    if ahead_ms.abs() > APART_MAX_MS { Finding::warn(CLOCK, found).so(SET_IT) } else { Finding::ok(CLOCK, found) }
}

/// The time that the disk gives to a new file, which has no name and is gone at once.
#[cfg(target_os = "linux")]
fn time_of_new_file(dir: &Path) -> Option<Timestamp> {
    use rustix::fs::{Mode, OFlags, open};
    let file = open(dir, OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR).ok()?;
    let modified = std::fs::File::from(file).metadata().and_then(|found| found.modified()).ok()?;
    let since = modified.duration_since(UNIX_EPOCH).ok()?;
    Some(Timestamp::from_millis(i64::try_from(since.as_millis()).ok()?))
}

#[cfg(not(target_os = "linux"))]
fn time_of_new_file(_dir: &Path) -> Option<Timestamp> {
    None
}

#[cfg(test)]
mod tests {
    use super::{super::finding::Status, *};

    #[test]
    fn a_clock_that_cannot_be_right_is_told() {
        let status = |millis| of_time(Timestamp::from_millis(millis)).status;
        assert_eq!([0, 1_780_000_000_000, 9_000_000_000_000].map(status), [Status::Fail, Status::Ok, Status::Fail]);
        let apart = |millis| of_difference("it", millis).status;
        assert_eq!([-60_000, -3_000, 20, 3_001].map(apart), [Status::Warn, Status::Ok, Status::Ok, Status::Warn]);
        assert!(of_difference("it", -60_000).text().contains("it is 60000 ms behind: "));
    }
}
