//! Sets of sites: the rows that lead from a site to its stripes, and how a site about to be retired is kept out of
//! them.
//!
//! A set has a row under each of its sites, and one of its own. Separate transactions write them before a stripe is
//! named there, and again if the last write was long ago: rows that no process has written for long, and that lead to
//! no stripe, are removed. A process remembers what it has written. So a commit that names a stripe *requires* the
//! set's own row ([`require_placement`]):
//!
//! - The process that retires a site closes it ([`keys::closed`]). Every write of a set requires the row of closed
//!   sites unchanged, so from then on no row of a set with this site is written.
//! - Then it removes the own rows of all sets with this site, which fences commits that rely on having written them.
//! - Stripes that name the site afterwards were committed before, and the reverse index has them.
//!
//! A process that closed a site and died leaves a lease that ends; the process that finds it reopens the site.

use std::collections::{BTreeSet, HashMap};

use parking_lot::{Mutex, RwLock};
use striate_core::SiteId;
use striate_meta::records::{self, ClosedSites};
use striate_meta::{Commit, MetaError, Precondition, Row, Transaction, keys};
use striate_runtime::Instant;

use super::writes::Writes;
use crate::error::StripeError;

/// Maximum number of sets of sites remembered; beyond it, all are forgotten.
const MOST_PLACEMENTS: usize = 1 << 16;
/// Number of rows of a set written together.
const BATCH: usize = 64;
/// Attempts of a write while the closed sites keep changing.
const ATTEMPTS: usize = 16;

/// Sets of sites as this process knows them.
#[derive(Default)]
pub(super) struct Placements {
    /// Sets whose rows this process has written, and when.
    written: RwLock<HashMap<u64, Instant>>,
    closed: Mutex<Option<ClosedRow>>,
}

/// Row of the closed sites as last read.
#[derive(Clone)]
struct ClosedRow {
    row: Option<Row>,
    record: ClosedSites,
}

impl ClosedRow {
    /// Returns the first of these sites that is closed, with its lease.
    fn find(&self, sites: &BTreeSet<SiteId>) -> Option<records::ClosedSite> {
        self.record.sites.iter().find(|closed| sites.contains(&SiteId(closed.site))).copied()
    }

    /// Returns the record without one of its sites.
    fn without(mut self, site: u32) -> ClosedSites {
        self.record.sites.retain(|closed| closed.site != site);
        self.record
    }
}

/// Adds to `tx`, which names a stripe on a set of sites, the requirement that none of them was retired since the
/// set's rows were written.
pub(super) fn require_placement(tx: &mut Transaction, placement: u64) {
    tx.require(Precondition::Exists(keys::set(placement)));
}

impl Writes {
    /// Makes sure that the rows of a set of sites exist, and returns the set's number. Call it shortly before the
    /// commit that puts a stripe there; that commit must require the set ([`require_placement`]).
    ///
    /// # Errors
    /// When the metadata store fails, and when one of the sites is closed.
    pub(crate) async fn ensure_placement(&self, sites: &[SiteId]) -> Result<u64, StripeError> {
        let placement = keys::placement_of(sites.iter().copied());
        let (now, known_for) = (self.shared.runtime.now(), self.shared.options.placement_known_for);
        let written = self.shared.placements.written.read().get(&placement).copied();
        if written.is_some_and(|written| now.duration_since(written) < known_for) {
            return Ok(placement);
        }
        let record = records::Placement { sites: sites.iter().map(|site| site.0).collect() };
        let value = records::encode(&record);
        let distinct: BTreeSet<SiteId> = sites.iter().copied().collect();
        let mut rows = vec![keys::set(placement)];
        rows.extend(distinct.iter().map(|&site| keys::placement(site, placement)));
        for batch in rows.chunks(BATCH) {
            let write = |tx: &mut Transaction| {
                for key in batch {
                    tx.put(key.clone(), value.clone());
                }
            };
            self.commit_open(&distinct, write).await?;
        }
        let mut written = self.shared.placements.written.write();
        if written.len() >= MOST_PLACEMENTS {
            written.clear();
        }
        written.insert(placement, now);
        Ok(placement)
    }

    /// Forgets a set after a commit that required it failed: its rows may be gone.
    pub(super) fn forget_placement(&self, placement: u64) {
        self.shared.placements.written.write().remove(&placement);
    }

    /// Adds to `tx` the requirement that `site` is not closed, for a commit that names the site outside any set.
    ///
    /// # Errors
    /// When the metadata store fails, and when the site is closed.
    pub(super) async fn require_open(&self, tx: &mut Transaction, site: SiteId) -> Result<(), StripeError> {
        let closed = self.open_sites(&BTreeSet::from([site])).await?;
        tx.require_unchanged(keys::closed(), closed.row.as_ref());
        Ok(())
    }

    /// Commits what `write` adds to a transaction, while none of the sites is closed.
    async fn commit_open(
        &self,
        sites: &BTreeSet<SiteId>,
        write: impl Fn(&mut Transaction),
    ) -> Result<(), StripeError> {
        for _ in 0..ATTEMPTS {
            let closed = self.open_sites(sites).await?;
            let mut tx = self.shared.table.transaction();
            tx.require_unchanged(keys::closed(), closed.row.as_ref());
            write(&mut tx);
            if let Commit::Done(_) = self.shared.table.meta().commit(tx).await? {
                return Ok(());
            }
            self.forget_closed();
        }
        Err(StripeError::Busy)
    }

    /// Forgets the closed sites: they have changed, or may have.
    pub(super) fn forget_closed(&self) {
        *self.shared.placements.closed.lock() = None;
    }

    /// Returns the closed sites as last read, provided that none of `sites` is among them.
    async fn open_sites(&self, sites: &BTreeSet<SiteId>) -> Result<ClosedRow, StripeError> {
        let known = self.shared.placements.closed.lock().clone();
        if let Some(known) = known.filter(|known| known.find(sites).is_none()) {
            return Ok(known);
        }
        for _ in 0..ATTEMPTS {
            let closed = self.read_closed().await?;
            let Some(found) = closed.find(sites) else { return Ok(closed) };
            if found.is_closed(&**self.shared.table.meta()).await? {
                return Err(closed_site(SiteId(found.site)));
            }
            // The process that closed it has died.
            let mut tx = self.shared.table.transaction();
            tx.require_unchanged(keys::closed(), closed.row.as_ref());
            tx.put(keys::closed(), records::encode(&closed.without(found.site)));
            self.shared.table.meta().commit(tx).await?;
        }
        Err(StripeError::Busy)
    }

    async fn read_closed(&self) -> Result<ClosedRow, StripeError> {
        let row = self.shared.table.meta().get(&keys::closed()).await?;
        let record = row.as_ref().map(Row::record).transpose()?.unwrap_or_default();
        let closed = ClosedRow { row, record };
        *self.shared.placements.closed.lock() = Some(closed.clone());
        Ok(closed)
    }
}

/// Returns the error of a write with a chunk on a site that is retired, or about to be.
fn closed_site(site: SiteId) -> StripeError {
    MetaError::Unavailable(format!(
        "site {site} is being retired: it takes no chunks any more; send it again"
    ))
    .into()
}
