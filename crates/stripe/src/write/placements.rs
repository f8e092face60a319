//! Sets of sites: the rows that lead from a site to its stripes, and what keeps a site out of them that is about to be retired.
//!
//! A set has a row under each of its sites, and one of its own. They are written before a stripe is named there, in transactions of
//! their own, and again when that was a while ago: rows that nobody has written for long, and that lead to no stripe, are removed. A
//! process remembers what it has written. So a commit that names a stripe *requires* the set's own row ([`require_placement`]):
//!
//! - Whoever retires a site closes it ([`keys::closed`]), which every write of a set requires to be as it was read. From then on
//!   no row of a set with this site is written.
//! - Then the own rows of all sets with this site are removed, which fences the commits that rely on having written them.
//! - What names the site after that was committed before that, and the reverse index has it.
//!
//! A process that closed a site and died leaves a lease that ends: who finds it opens the site again.

use std::collections::{BTreeSet, HashMap};

use parking_lot::{Mutex, RwLock};
use striate_core::SiteId;
use striate_meta::records::{self, ClosedSites};
use striate_meta::{Commit, MetaError, Precondition, Row, Transaction, keys};
use striate_runtime::Instant;

use super::writes::Writes;
use crate::error::StripeError;

/// Most sets of sites that are remembered; one more, and all are forgotten.
const MOST_PLACEMENTS: usize = 1 << 16;
/// Rows of a set that are written together.
const BATCH: usize = 64;
/// So often a write is tried while the closed sites change.
const ATTEMPTS: usize = 16;

/// What a process knows of sets of sites.
#[derive(Default)]
pub(super) struct Placements {
    /// Those whose rows it has written, and when.
    written: RwLock<HashMap<u64, Instant>>,
    closed: Mutex<Option<Closed>>,
}

/// The row of the closed sites as it was read.
#[derive(Clone)]
struct Closed {
    row: Option<Row>,
    record: ClosedSites,
}

impl Closed {
    /// The first of these sites that is closed, and under which lease.
    fn find(&self, sites: &BTreeSet<SiteId>) -> Option<records::ClosedSite> {
        self.record.sites.iter().find(|closed| sites.contains(&SiteId(closed.site))).copied()
    }

    /// The record without one of its sites.
    fn without(mut self, site: u32) -> ClosedSites {
        self.record.sites.retain(|closed| closed.site != site);
        self.record
    }
}

/// Adds to `tx`, which names a stripe under a set of sites, that nobody has given up one of them since the set's rows were written.
pub(super) fn require_placement(tx: &mut Transaction, placement: u64) {
    tx.require(Precondition::Exists(keys::set(placement)));
}

impl Writes {
    /// Makes sure that the rows of a set of sites exist, and answers the set's number. To be called shortly before the commit that puts a
    /// stripe there, which is to require the set ([`require_placement`]).
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

    /// A commit that required the set did not happen: its rows may be gone.
    pub(super) fn forget_placement(&self, placement: u64) {
        self.shared.placements.written.write().remove(&placement);
    }

    /// Adds to `tx` that `site` is not closed: for what names it and is in no set.
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

    /// The closed sites as they were read last have changed, or may have.
    pub(super) fn forget_closed(&self) {
        *self.shared.placements.closed.lock() = None;
    }

    /// The closed sites as they were read last, none of `sites` among them.
    async fn open_sites(&self, sites: &BTreeSet<SiteId>) -> Result<Closed, StripeError> {
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
            // Whoever closed it has died.
            let mut tx = self.shared.table.transaction();
            tx.require_unchanged(keys::closed(), closed.row.as_ref());
            tx.put(keys::closed(), records::encode(&closed.without(found.site)));
            self.shared.table.meta().commit(tx).await?;
        }
        Err(StripeError::Busy)
    }

    async fn read_closed(&self) -> Result<Closed, StripeError> {
        let row = self.shared.table.meta().get(&keys::closed()).await?;
        let record = row.as_ref().map(Row::record).transpose()?.unwrap_or_default();
        let closed = Closed { row, record };
        *self.shared.placements.closed.lock() = Some(closed.clone());
        Ok(closed)
    }
}

/// The answer to a write that has a chunk on a site that is retired, or about to be.
fn closed_site(site: SiteId) -> StripeError {
    MetaError::Unavailable(format!(
        "site {site} is being retired: it takes no chunks any more; send it again"
    ))
    .into()
}
