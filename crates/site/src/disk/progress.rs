//! Detection of a hung disk.
//!
//! A disk may accept requests and complete none, for minutes or forever: a drive that retries, a volume whose network
//! is down. No call returns an error then, so the writer notes when it begins a group. A group that takes longer than
//! [`super::DiskStoreOptions::hung_after`] makes the store suspect until the writer continues: the store reports it,
//! and refuses changes at once.
//!
//! It does not watch reads, and detects nothing while there are no writes: module `probe` does, and reports sooner.

use parking_lot::Mutex;
use striate_runtime::Instant;

use super::Shared;

/// When the writer began its current group, if it has one.
#[derive(Debug, Default)]
pub(super) struct Progress(Mutex<Option<Instant>>);

impl Shared {
    /// Notes that the writer begins a group, or begins to wait for a compaction that appends.
    pub(super) fn begin_group(&self) {
        self.note_progress(Some(self.runtime.now()));
    }

    /// Notes that the writer is idle.
    pub(super) fn end_groups(&self) {
        self.note_progress(None);
    }

    fn note_progress(&self, now: Option<Instant>) {
        let hung = self.hang();
        if std::mem::replace(&mut *self.progress.0.lock(), now).is_some() {
            self.probe.note_completion(self.runtime.now());
        }
        if let Some(reason) = hung {
            tracing::warn!(directory = %self.directory.display(), reason, "the disk has recovered");
        }
    }

    /// Returns why the disk counts as hung, if it does.
    pub(super) fn hang(&self) -> Option<String> {
        let since = (*self.progress.0.lock())?;
        let elapsed = self.runtime.now().saturating_duration_since(since);
        let hangs = elapsed >= self.options.hung_after;
        hangs.then(|| format!("the disk hangs: a write has taken {} s so far", elapsed.as_secs()))
    }
}
