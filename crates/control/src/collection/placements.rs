//! Removes the rows of sets of sites that hold no stripes any more.
//!
//! A set of sites has a row under each of its sites, so that a site leads to the stripes that have chunks on it
//! ([`striate_meta::keys::placement`]). A process writes these rows before it names a stripe there, and relies on
//! them for [`striate_stripe::StripeOptions::placement_known_for`]. Repairs and moves make sets that differ in one
//! site. In a large cluster nearly every stripe ends up with a set of its own, and its old sets are empty. Their rows
//! take space, and repair, drains and levelling read them for nothing.
//!
//! A row is removed when no stripe is named under its set and no process has written it for several times
//! `placement_known_for`. The row's revision gives its age: a row that is no newer than the newest of an earlier
//! round existed at the end of that round. Programs before 0.5.0 rely on rows without a time limit, so none is
//! removed until those can no longer open the store.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use futures::future::BoxFuture;
use striate_core::{SiteId, formats};
use striate_meta::store::limits;
use striate_meta::{Commit, Revision, Row, ScanRange, keys};
use striate_runtime::Instant;
use striate_stripe::{StripeError, Stripes};

use crate::rows::{Rows, sites_where};

/// Safety factor: a row not written for this many times `placement_known_for` is not about to be used.
const SAFETY: u32 = 6;
/// Maximum number of stripes in a slice of the sets, unless a single set has more.
const SLICE: usize = 1_000;
/// Pause between two slices: nothing waits for the sweep.
const PAUSE: Duration = Duration::from_millis(50);
/// Rows removed in one transaction; each takes two operations.
const BATCH: usize = limits::MAX_OPERATIONS / 2;

/// Removes the rows of unused sets. Keep one per process, because it remembers the rows' ages.
#[derive(Debug, Default)]
pub struct PlacementSweep {
    /// End of each round, and the newest revision seen in it.
    rounds: VecDeque<(Instant, Revision)>,
}

/// Sweeps all sets repeatedly until the task is dropped. Run it in one process of a cluster at a time.
pub fn keep_sweeping_placements(stripes: Stripes) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let mut sweep = PlacementSweep::default();
        loop {
            stripes.runtime().sleep(unused_for(&stripes)).await;
            match sweep.round(&stripes).await {
                Ok(0) => {}
                Ok(rows) => tracing::info!(rows, "removed the rows of unused sets of sites"),
                Err(error) => {
                    tracing::warn!(%error, "removing the rows of unused sets of sites failed; will retry")
                }
            }
        }
    })
}

/// Returns the time after which an unwritten row counts as unused.
fn unused_for(stripes: &Stripes) -> Duration {
    stripes.options().placement_known_for * SAFETY
}

impl PlacementSweep {
    /// Sweeps all sets once; returns how many rows were removed. The first round only learns the rows' revisions.
    ///
    /// # Errors
    /// When the metadata store fails; the next round continues.
    pub async fn round(&mut self, stripes: &Stripes) -> Result<u64, StripeError> {
        if stripes.formats().records < formats::WIDE {
            return Ok(0);
        }
        let mut round =
            Round { stripes, unwritten: self.unwritten_since(stripes), newest: Revision(0), removed: 0 };
        let mut sites = sites_where(stripes, |_| true).await?;
        // The sets' own rows.
        sites.insert(SiteId(0));
        let mut from = Some(0);
        while let Some(first) = from {
            let slice = Slice::read(stripes, first).await?;
            for &site in &sites {
                round.sweep(&slice, site).await?;
            }
            from = slice.next;
            stripes.runtime().sleep(PAUSE).await;
        }
        if self.rounds.back().is_some_and(|&(_, newest)| newest > round.newest) {
            // The metadata was restored from an older copy: its revisions are lower.
            self.rounds.clear();
        }
        self.rounds.push_back((stripes.runtime().now(), round.newest));
        Ok(round.removed)
    }

    /// Returns the newest revision that has not been written for long enough; older revisions have not either.
    fn unwritten_since(&mut self, stripes: &Stripes) -> Option<Revision> {
        let (now, unused_for) = (stripes.runtime().now(), unused_for(stripes));
        let is_old = |&(at, _): &(Instant, Revision)| now.duration_since(at) >= unused_for;
        // The latest round that is old enough covers the most rows.
        while self.rounds.len() > 1 && is_old(&self.rounds[1]) {
            self.rounds.pop_front();
        }
        self.rounds.front().filter(|round| is_old(round)).map(|&(_, newest)| newest)
    }
}

/// State of one round.
struct Round<'a> {
    stripes: &'a Stripes,
    /// Rows of this revision or older have not been written for long enough; `None` if no row's age is known yet.
    unwritten: Option<Revision>,
    /// The newest revision seen.
    newest: Revision,
    removed: u64,
}

impl Round<'_> {
    /// Removes a site's rows of the unused sets in a slice.
    async fn sweep(&mut self, slice: &Slice, site: SiteId) -> Result<(), StripeError> {
        let mut rows = Rows::over(slice.rows_of(site));
        while let Some(page) = rows.next(self.stripes).await? {
            self.newest = page.iter().map(|row| row.version).fold(self.newest, Revision::max);
            let is_unused = |row: &Row| {
                self.unwritten.is_some_and(|unwritten| row.version <= unwritten)
                    && keys::placement_number(&row.key).is_some_and(|number| !slice.used.contains(&number))
            };
            let unused: Vec<Row> = page.into_iter().filter(is_unused).collect();
            self.removed += remove(self.stripes, &unused).await?;
        }
        Ok(())
    }
}

/// Sets with consecutive numbers.
struct Slice {
    from: u64,
    /// First set after the slice; `None` if the slice has all that follow.
    next: Option<u64>,
    /// Sets that have stripes.
    used: BTreeSet<u64>,
}

impl Slice {
    async fn read(stripes: &Stripes, from: u64) -> Result<Self, StripeError> {
        let range = ScanRange { start: keys::reverses(from), ..ScanRange::prefix(keys::REVERSES) };
        let rows = stripes.meta().scan(range, SLICE).await?;
        let used: BTreeSet<u64> = rows.iter().filter_map(|row| keys::reverse_placement(&row.key)).collect();
        let is_last = rows.len() < SLICE;
        let next = used.last().filter(|_| !is_last).and_then(|last| last.checked_add(1));
        Ok(Self { from, next, used })
    }

    /// Returns the range of a site's rows of these sets.
    fn rows_of(&self, site: SiteId) -> ScanRange {
        let end = match self.next {
            Some(next) => keys::placement(site, next),
            None => ScanRange::prefix(&keys::placements(site)).end,
        };
        ScanRange { start: keys::placement(site, self.from), end }
    }
}

/// Removes the rows that have not changed since they were read. Returns their number; a batch with a changed row
/// stays for the next round.
async fn remove(stripes: &Stripes, rows: &[Row]) -> Result<u64, StripeError> {
    let mut removed = 0;
    for batch in rows.chunks(BATCH) {
        let mut tx = stripes.transaction();
        for row in batch {
            tx.require_unchanged(row.key.clone(), Some(row)).delete(row.key.clone());
        }
        if let Commit::Done(_) = stripes.meta().commit(tx).await? {
            removed += batch.len() as u64;
        }
    }
    Ok(removed)
}
