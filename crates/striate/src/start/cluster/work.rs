//! How far repair and scrub are, as whoever does them has written down.

use striate_meta::{MetaError, keys, records};

use super::Cluster;
use crate::admin::messages::{RepairState, ScrubCounts, ScrubState, SilentState};

impl Cluster {
    /// The state of repair and scrub. Nothing is known of them as long as no process has begun.
    ///
    /// # Errors
    /// When the metadata cannot be read.
    pub(super) async fn work(&self) -> Result<(Option<RepairState>, Option<ScrubState>), MetaError> {
        let rows = self.inner.meta.get_many(&[keys::repair_work(), keys::scrub_work()]).await?;
        let [repair, scrub] = [0, 1].map(|index| rows.get(index).and_then(Option::as_ref));
        let repair = repair.map(|row| row.record()).transpose()?;
        let scrub = scrub.map(|row| row.record()).transpose()?;
        Ok((repair.map(repair_state), scrub.map(scrub_state)))
    }
}

fn repair_state(work: records::RepairWork) -> RepairState {
    let movable = work.left.saturating_sub(work.waiting);
    // What waits for a site takes no time, and nobody knows when it comes.
    let seconds_left = match (movable, work.rate_stripes_per_ks) {
        (0, _) => Some(0),
        (_, 0) => None,
        (stripes, rate) => Some((stripes as f64 * 1_000.0 / rate as f64).ceil() as u64),
    };
    let silent = work
        .silent
        .iter()
        .map(|silent| SilentState { site: silent.site, rebuilt_after_s: silent.rebuilt_after_s });
    RepairState {
        off: work.off,
        stripes_left: work.left,
        waiting: work.waiting,
        chunks: work.chunks,
        bytes: work.bytes,
        bytes_per_s: work.rate_bytes_per_s,
        seconds_left,
        silent: silent.collect(),
    }
}

fn scrub_state(work: records::ScrubWork) -> ScrubState {
    let counts = |count: records::ScrubCount| ScrubCounts {
        chunks: count.chunks,
        bytes: count.bytes,
        damaged: count.damaged,
        unknown: count.unknown,
        orphans: count.orphans,
        unexplained: count.unexplained,
    };
    ScrubState {
        cycle: work.cycle,
        now: counts(work.count.unwrap_or_default()),
        total_chunks: work.total_chunks,
        seconds_left: work.cycle_s.saturating_sub(work.elapsed_s),
        last: work.last.map(counts),
    }
}
