//! The resident memory of this process.

use std::time::Duration;

// This links its C library, even where mimalloc is not the allocator.
use mimalloc as _;
use parking_lot::Mutex;
use striate_runtime::{Instant, Runtime};
use striate_site::ProcessMemory;

/// Minimum interval between two releases of memory: a release makes the system unmap pages, and clear those that it
/// hands out again.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(1);

// SAFETY: this is the declaration in `mimalloc.h`. It may be called at any time from any thread: it takes the
// allocator's own locks, and touches only free memory.
unsafe extern "C" {
    /// Returns to the system the free memory that all threads share, and what this thread keeps.
    safe fn mi_collect(force: bool);
}

/// The memory of this process.
#[derive(Debug)]
pub(crate) struct ResidentMemory {
    runtime: Runtime,
    given_back_at: Mutex<Option<Instant>>,
}

impl ResidentMemory {
    /// Creates the view of the process that runs `runtime`.
    pub(crate) fn new(runtime: Runtime) -> Self {
        Self { runtime, given_back_at: Mutex::default() }
    }
}

impl ProcessMemory for ResidentMemory {
    fn resident_bytes(&self) -> Option<u64> {
        resident_bytes()
    }

    fn give_back(&self) -> bool {
        let now = self.runtime.now();
        {
            let mut given_back_at = self.given_back_at.lock();
            if given_back_at.is_some_and(|last| now - last < GIVE_BACK_EVERY) {
                return false;
            }
            *given_back_at = Some(now);
        }
        self.runtime.buffers().drop_kept();
        mi_collect(true);
        true
    }
}

/// Returns the resident bytes of this process; `None` if the system does not report them.
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn memory_is_given_back_once_a_second() {
        let memory = ResidentMemory::new(Runtime::deterministic(1, Duration::ZERO));
        let buffers = memory.runtime.buffers();
        drop(buffers.take(1 << 20));
        assert_eq!(buffers.kept_bytes(), 1 << 20);
        assert!(memory.give_back());
        assert_eq!(buffers.kept_bytes(), 0, "a buffer that nobody uses is free memory too");
        assert!(!memory.give_back());
        memory.runtime.sleep(GIVE_BACK_EVERY).await;
        assert!(memory.give_back());
    }

    #[test]
    fn memory_that_is_written_to_is_resident() {
        const LEN: usize = 64 << 20;
        let before = resident_bytes().unwrap();
        let written = vec![1_u8; LEN];
        let after = resident_bytes().unwrap();
        assert!(after >= before + LEN as u64 * 9 / 10, "{before} and {after} for {} bytes", written.len());
    }
}
