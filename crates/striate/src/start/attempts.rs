//! Attempts to take a disk back that was away or failed: when the next one is due, and how one ended.
//!
//! Attempts that fail are repeated at growing intervals, and a disk that fails again soon after it was taken back waits
//! longer than before: recovery reads much, and a disk that comes and goes is none to write to.

use std::time::Duration;

use striate_core::ClusterId;
use striate_runtime::Instant;

use super::directories::{DirectoryContents, inspect};
use super::roster::Member;

/// Pause after the first attempt that failed; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10 * 60);
/// A disk that worked for this many pauses since it was taken back starts afresh.
const WORKED_FOR_PAUSES: u32 = 10;

/// Attempts to take one disk back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    /// Attempts that failed, and failures soon after one that succeeded.
    failures: u32,
    /// No attempt before this time.
    not_before: Option<Instant>,
    taken_back: Option<Instant>,
    is_running: bool,
    /// Why the last one failed.
    reason: Option<String>,
}

impl Attempt {
    fn pause(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(16);
        (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE)
    }

    /// Begins an attempt if one is due, and returns whether it is. Call it only while the disk is not used.
    pub fn begin(&mut self, now: Instant) -> bool {
        let begins = self.is_due(now);
        self.is_running |= begins;
        begins
    }

    /// Records how the attempt ended, and logs it.
    pub fn end(&mut self, member: &Member, ending: Ending, now: Instant) {
        self.is_running = false;
        let directory = member.path.display();
        match ending {
            Ending::NotThere => {}
            Ending::TakenBack => {
                self.succeed(now);
                tracing::warn!(%directory, site = %member.site, "a disk is back and used again");
            }
            Ending::Failed(reason) => {
                if self.reason.as_ref() != Some(&reason) {
                    tracing::error!(%directory, site = %member.site, reason, "a disk was not taken back; it is tried again");
                }
                self.fail(now, Some(reason));
            }
        }
    }

    /// Returns why the last attempt failed, if it did.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    fn is_due(&mut self, now: Instant) -> bool {
        if let Some(taken_back) = self.taken_back.take() {
            // It failed again.
            match now.saturating_duration_since(taken_back) > self.pause() * WORKED_FOR_PAUSES {
                true => *self = Self::default(),
                false => self.fail(now, None),
            }
        }
        !self.is_running && self.not_before.is_none_or(|not_before| now >= not_before)
    }

    fn fail(&mut self, now: Instant, reason: Option<String>) {
        self.failures += 1;
        self.not_before = Some(now + self.pause());
        self.reason = reason.or_else(|| self.reason.take());
    }

    fn succeed(&mut self, now: Instant) {
        self.taken_back = Some(now);
        self.not_before = None;
        self.reason = None;
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The directory does not hold the member.
    NotThere,
    /// It is used again.
    TakenBack,
    /// It could not be used, for this reason.
    Failed(String),
}

/// Looks whether the member's directory is there, and not in use by a server that knows more. Blocks.
///
/// # Errors
/// How the attempt ends, if not.
pub fn find_member(member: &Member, cluster: ClusterId, generation: u64) -> Result<(), Ending> {
    match inspect(&member.path).map(|inspected| inspected.found) {
        Ok(DirectoryContents::Member { roster, disk, .. })
            if roster.cluster == cluster && disk == member.disk =>
        {
            match roster.generation > generation {
                true => Err(Ending::Failed(
                    "its roster is newer than this server's: another server has changed it".to_owned(),
                )),
                false => Ok(()),
            }
        }
        // Another disk, or none, or one that a start would leave out, too.
        _ => Err(Ending::NotThere),
    }
}

#[cfg(test)]
mod tests {
    use striate_runtime::Runtime;

    use super::*;

    #[test]
    fn a_disk_that_fails_again_and_again_is_tried_at_growing_intervals() {
        let start = Runtime::deterministic(1, Duration::ZERO).now();
        let (mut attempt, mut now, mut pauses) = (Attempt::default(), start, Vec::new());
        for round in 0..12 {
            assert!(attempt.is_due(now));
            attempt.fail(now, Some(format!("reason {round}")));
            assert!(!attempt.is_due(now));
            pauses.push(attempt.pause());
            now += attempt.pause();
        }
        assert_eq!(pauses[..3], [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]);
        assert!(pauses.is_sorted());
        assert_eq!(pauses.last(), Some(&LONGEST_PAUSE));
        assert_eq!(attempt.reason(), Some("reason 11"));
    }

    #[test]
    fn a_disk_that_was_taken_back_and_fails_soon_waits_longer_and_one_that_worked_does_not() {
        let mut now = Runtime::deterministic(1, Duration::ZERO).now();
        let mut attempt = Attempt::default();
        for _ in 0..3 {
            assert!(attempt.is_due(now), "the first time at once");
            attempt.succeed(now);
            now += Duration::from_secs(1);
            assert!(!attempt.is_due(now), "it failed again");
            now += attempt.pause();
        }
        assert_eq!(attempt.failures, 3);
        assert!(attempt.is_due(now));
        attempt.succeed(now);
        now += attempt.pause() * (WORKED_FOR_PAUSES + 1);
        assert!(attempt.is_due(now));
        assert_eq!(attempt.failures, 0);
    }
}
