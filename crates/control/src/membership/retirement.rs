//! Retires a site for good: one that was drained, or whose disk is lost and whose chunks are rebuilt elsewhere.
//!
//! A site may be retired when no stripe has a chunk on it. The reverse index finds such stripes through the sets of
//! sites that contain the site. A write in progress is not in the index yet, and may commit at any time. So the site
//! is *closed* first ([`striate_meta::keys::closed`]), and the own rows of its sets are removed; every commit that
//! names a stripe under a set requires the set's row. A write that was not committed before then never is, and one
//! that was is found.
//!
//! The row of a retired site stays, as a tombstone, so that a disk that comes back is refused: its chunks are stale,
//! and deleted objects would reappear. Garbage does not wait for the site. And if a program that knows no closed
//! sites names it all the same, repair counts the chunk as lost and rebuilds it.
//!
//! Every step may be the last one. Until the site's row says that it is retired, nothing has changed except that some
//! writes were refused; the mark that closes the site counts only as long as its lease.

use std::time::Duration;

use striate_core::SiteId;
use striate_meta::records::{ClosedSite, ClosedSites, Site, site::State};
use striate_meta::store::limits;
use striate_meta::{LeaseId, MetaError, Row, keys, records};

use crate::membership::members::{MAX_ATTEMPTS, Members, MembersError};
use crate::membership::upgrade::{FinalizeError, Gate};
use crate::stripe_counts::StripeCounts;

/// Time after which a site is open again if the process that closed it has died.
const CLOSED_FOR: Duration = Duration::from_secs(60);

impl Members<'_> {
    /// Retires a site for good. `answers` says whether it answered when it was polled a moment ago. Does nothing for
    /// a retired site.
    ///
    /// # Errors
    /// [`MembersError::NoSuchSite`]; [`MembersError::Refused`] while the site takes chunks, while anything is on it,
    /// and while programs run that would not notice (the message names the cause and the remedy);
    /// [`MembersError::Conflict`] while another process changes the same rows.
    pub async fn retire(&self, site: SiteId, answers: bool) -> Result<(), MembersError> {
        let row = self.meta.get(&keys::site(site)).await?.ok_or(MembersError::NoSuchSite(site))?;
        let record: Site = row.record()?;
        match record.state() {
            State::Retired => return Ok(()),
            State::Active if answers => return Err(takes_chunks(site)),
            State::Active | State::Draining => {}
        }
        self.refuse_old_programs().await?;
        // Check before closing the site, so that no writes are refused for a site that is plainly in use.
        self.refuse_named(site, answers).await?;
        let lease = self.meta.grant_lease(CLOSED_FOR).await?.id;
        let retired = self.retire_under(site, &row, lease, answers).await;
        if retired.is_err()
            && let Err(error) = self.reopen(site, lease).await
        {
            tracing::debug!(%site, %error, "a site that was not retired is open again when a lease has ended");
        }
        // The lease also expires on its own.
        let _ = self.meta.revoke_lease(lease).await;
        retired?;
        self.follow_sites().await
    }

    /// Returns what the metadata names on a site, as text; `None` if nothing.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn contents_of(&self, site: SiteId) -> Result<Option<String>, MetaError> {
        Ok(StripeCounts::count(self, site).await?.describe())
    }

    /// Closes, fences, checks again and retires the site under the lease. Its row must still be `row`.
    async fn retire_under(
        &self,
        site: SiteId,
        row: &Row,
        lease: LeaseId,
        answers: bool,
    ) -> Result<(), MembersError> {
        self.close(site, lease).await?;
        self.fence(site).await?;
        self.refuse_named(site, answers).await?;
        self.commit_retired(site, row, lease).await
    }

    /// Refuses while programs of earlier releases run: they do not check whether a site is closed.
    async fn refuse_old_programs(&self) -> Result<(), MembersError> {
        let view = match Gate::new(self.runtime, self.meta).view(Vec::new()).await {
            Ok(view) => view,
            Err(FinalizeError::Meta(error)) => return Err(error.into()),
            Err(error) => return Err(MembersError::Refused(error.to_string())),
        };
        match view.holding() {
            old if old.is_empty() => Ok(()),
            old => Err(MembersError::Refused(format!(
                "programs run that would not notice that a site is retired. Upgrade these first, or try again in half a minute \
                 if they have just started: {}",
                old.join("; ")
            ))),
        }
    }

    async fn refuse_named(&self, site: SiteId, answers: bool) -> Result<(), MembersError> {
        let named = StripeCounts::count(self, site).await?;
        match named.describe() {
            None => Ok(()),
            Some(contents) => Err(MembersError::Refused(format!(
                "site {site} still has {contents}; {}",
                removal_advice(answers)
            ))),
        }
    }

    /// Closes the site: from now on no row of a set with it is written.
    async fn close(&self, site: SiteId, lease: LeaseId) -> Result<(), MembersError> {
        for _ in 0..MAX_ATTEMPTS {
            let (row, mut closed) = self.closed_sites().await?;
            if let Some(other) = closed.sites.iter().find(|closed| closed.site == site.0)
                && other.is_closed(self.meta).await?
            {
                return Err(MembersError::Conflict);
            }
            closed.sites.retain(|closed| closed.site != site.0);
            closed.sites.push(ClosedSite { site: site.0, lease: lease.0 });
            if self.put(&keys::closed(), row.as_ref(), records::encode(&closed)).await? {
                return Ok(());
            }
        }
        Err(MembersError::Conflict)
    }

    /// Fences writers that rely on having written the rows of a set with this site: their commits fail from now on.
    async fn fence(&self, site: SiteId) -> Result<(), MembersError> {
        let sets = self.rows(&keys::placements(site)).await?;
        let numbers: Vec<u64> = sets.iter().filter_map(|row| keys::placement_number(&row.key)).collect();
        for batch in numbers.chunks(limits::MAX_OPERATIONS) {
            let mut tx = self.transaction();
            for &number in batch {
                tx.delete(keys::set(number));
            }
            self.commit(tx).await?;
        }
        Ok(())
    }

    /// Retires the site's row. The same transaction clears the lease of the mark that closes the site, so that the
    /// mark stays for good.
    async fn commit_retired(&self, site: SiteId, row: &Row, lease: LeaseId) -> Result<(), MembersError> {
        let mut record: Site = row.record()?;
        record.set_state(State::Retired);
        for _ in 0..MAX_ATTEMPTS {
            let (closed_row, mut closed) = self.closed_sites().await?;
            let mark =
                closed.sites.iter_mut().find(|closed| (closed.site, closed.lease) == (site.0, lease.0));
            // Another process has reopened the site: retiring took longer than the lease.
            let Some(mark) = mark else { return Err(MembersError::Conflict) };
            mark.lease = 0;
            let mut tx = self.transaction();
            tx.require_unchanged(row.key.clone(), Some(row)).put(row.key.clone(), records::encode(&record));
            tx.require_unchanged(keys::closed(), closed_row.as_ref());
            tx.put(keys::closed(), records::encode(&closed));
            if self.commit(tx).await? {
                return Ok(());
            }
            let now = self.meta.get(&row.key).await?;
            if now.is_none_or(|now| now.version != row.version) {
                // The site has registered again, or another process has changed its state.
                return Err(MembersError::Conflict);
            }
        }
        Err(MembersError::Conflict)
    }

    /// Removes the mark that closes a site.
    async fn reopen(&self, site: SiteId, lease: LeaseId) -> Result<(), MembersError> {
        for _ in 0..MAX_ATTEMPTS {
            let (row, mut closed) = self.closed_sites().await?;
            let before = closed.sites.len();
            closed.sites.retain(|closed| (closed.site, closed.lease) != (site.0, lease.0));
            if closed.sites.len() == before
                || self.put(&keys::closed(), row.as_ref(), records::encode(&closed)).await?
            {
                return Ok(());
            }
        }
        Err(MembersError::Conflict)
    }

    async fn closed_sites(&self) -> Result<(Option<Row>, ClosedSites), MetaError> {
        let row = self.meta.get(&keys::closed()).await?;
        let record = row.as_ref().map(Row::record).transpose()?.unwrap_or_default();
        Ok((row, record))
    }
}

fn takes_chunks(site: SiteId) -> MembersError {
    MembersError::Refused(format!(
        "site {site} answers and takes chunks. Drain it first: `striate admin site drain {site}`, and wait until \
         `striate status` shows no chunks on it. If its disk is to go at once, stop its process and let repair rebuild what it had"
    ))
}

/// Returns advice on how to empty a site.
fn removal_advice(answers: bool) -> &'static str {
    match answers {
        true => {
            "what it has moves to other sites while it drains, as far as racks and free space allow. Try again when `striate \
             status` shows no chunks on it"
        }
        false => {
            "it does not answer, so repair rebuilds what it had on other sites when it has been silent for --repair-after, as far as \
             racks and free space allow; `striate heal` does so at once. Try again then"
        }
    }
}
