//! Does the disk hang?
//!
//! A disk may take requests and answer none, for minutes or for ever: a drive that retries, a volume whose network is
//! gone. No call returns an error then, so the writer notes when it begins a group. A group that takes longer than
//! [`super::DiskStoreOptions::hung_after`] makes the store suspect until the writer goes on: it says so, and refuses
//! changes at once.
//!
//! What it does not do: it does not look at reads, and while nobody writes it notices nothing.

use parking_lot::Mutex;
use striate_runtime::Instant;

use super::Shared;

/// Since when the writer has been at the present group, if it is at one.
#[derive(Debug, Default)]
pub(super) struct Progress(Mutex<Option<Instant>>);

impl Shared {
    /// The writer begins a group, or begins to wait until a compaction has appended.
    pub(super) fn begin_group(&self) {
        self.note_progress(Some(self.runtime.now()));
    }

    /// The writer has nothing to do.
    pub(super) fn end_groups(&self) {
        self.note_progress(None);
    }

    fn note_progress(&self, now: Option<Instant>) {
        let hung = self.hang();
        *self.progress.0.lock() = now;
        if let Some(reason) = hung {
            tracing::warn!(directory = %self.directory.display(), reason, "the disk has recovered");
        }
    }

    /// Why the disk must be taken for one that hangs, if it must.
    pub(super) fn hang(&self) -> Option<String> {
        let since = (*self.progress.0.lock())?;
        let taken = self.runtime.now().saturating_duration_since(since);
        let hangs = taken >= self.options.hung_after;
        hangs.then(|| format!("the disk hangs: a write has taken {} s so far", taken.as_secs()))
    }
}
