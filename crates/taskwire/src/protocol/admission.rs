//! What is refused before anything of it is done, because its caller or its tool is asked for too much at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use taskwire_core::{CallerId, wire::code};

use super::{Context, Fault, call::hold::is_followup, memory_watch::MemoryWatch, pace::Buckets};
use crate::{metrics, tool::ReadyTool};

/// Failed sign-ins that are recorded in a second; further ones are only counted. Twice as many if there was none before.
const FAILED_SIGN_INS_PER_SECOND: u64 = 10;

/// What is remembered for that.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// Requests of each caller.
    requests: Buckets<CallerId>,
    /// Calls of each caller.
    creates: Buckets<CallerId>,
    /// Calls of each tool.
    calls: Buckets<Arc<str>>,
    /// Failed sign-ins, whoever they are of.
    sign_ins: Buckets<()>,
    /// Those that came too fast since the last one that was recorded.
    unrecorded: AtomicU64,
    memory: MemoryWatch,
}

impl Admission {
    /// Counts a failed sign-in: how many before it were not recorded, or none if this one is not recorded either.
    pub(super) fn admit_failed_sign_in(&self, now: Duration) -> Option<u64> {
        if self.sign_ins.take(&(), FAILED_SIGN_INS_PER_SECOND, now) {
            return Some(self.unrecorded.swap(0, Ordering::Relaxed));
        }
        self.unrecorded.fetch_add(1, Ordering::Relaxed);
        None
    }
}

impl Context {
    /// Counts a request of this caller; refuses it if they come too fast.
    pub(crate) fn admit_request(&self, caller: &CallerId) -> Result<(), Fault> {
        let max = self.engine.limits().requests_per_second_per_caller;
        if max == 0 || self.admission.requests.take(caller, max, self.engine.clock().monotonic()) {
            return Ok(());
        }
        let key = "requests_per_second_per_caller";
        Err(self.too_fast(key, format!("you may make {max} requests in a second (configuration key `limits.{key}`)")))
    }

    /// Refuses what would take more memory for some time, while there is too much in it.
    pub(super) fn admit_to_memory(&self) -> Result<(), Fault> {
        let (max, key) = (self.engine.limits().memory_bytes, "memory_bytes");
        if !self.admission.memory.is_too_much(max, self.engine.clock().monotonic(), metrics::own_memory) {
            return Ok(());
        }
        self.engine.metrics().limit_reached(key);
        let message = format!("the server has more than {max} bytes in memory (configuration key `limits.{key}`): try again in a second");
        Err(Fault::new(503, code::UNAVAILABLE, message))
    }

    /// Counts a call that starts work, of this caller and of this tool; refuses it if such calls come too fast, or there is no room for it.
    pub(super) fn admit_call(&self, caller: &CallerId, tool: &Arc<ReadyTool>) -> Result<(), Fault> {
        if is_followup(self, tool) {
            return Ok(());
        }
        self.admit_to_memory()?;
        let (now, admission) = (self.engine.clock().monotonic(), &self.admission);
        let max = self.engine.limits().creates_per_second_per_caller;
        if max > 0 && !admission.creates.take(caller, max, now) {
            let key = "creates_per_second_per_caller";
            return Err(self.too_fast(key, format!("you may make {max} calls in a second (configuration key `limits.{key}`)")));
        }
        let name = &tool.0.name;
        if let Some(max) = tool.0.policy.calls_per_second
            && !admission.calls.take(name, max, now)
        {
            // It was taken for a call that does not begin.
            admission.creates.give_back(caller, self.engine.limits().creates_per_second_per_caller);
            let key = "calls_per_second";
            let message = format!("the tool `{name}` may be called {max} times in a second, by all callers (configuration key `{key}`)");
            return Err(self.too_fast(key, message));
        }
        Ok(())
    }

    fn too_fast(&self, key: &str, message: String) -> Fault {
        self.engine.metrics().limit_reached(key);
        Fault::busy(format!("{message}: try again in a second"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_sign_ins_are_recorded_for_a_while_and_then_counted() {
        let (admission, now) = (Admission::default(), Duration::from_secs(100));
        let recorded = (0..1_000).filter_map(|_| admission.admit_failed_sign_in(now)).collect::<Vec<_>>();
        assert_eq!(recorded, [0; 2 * 10]);
        assert_eq!(admission.admit_failed_sign_in(now + Duration::from_secs(1)), Some(980));
        assert_eq!(admission.admit_failed_sign_in(now + Duration::from_secs(1)), Some(0), "they are told once");
    }
}
