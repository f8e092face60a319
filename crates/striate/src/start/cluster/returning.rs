//! Takes disks back while the server runs: one that was away, and one that failed and is tried again.
//!
//! Every second the server looks at the directories of members that are not open, or whose store takes no writes until it
//! is reopened. Once a directory holds its member again, it is locked again and opened as at a start
//! ([`striate_site::disk::ReopenableStore`] says what must be there). Then its roster is brought up to date, its
//! metadata mirror joins again, and its chunks are compared with those that the metadata names there. Until then the
//! disk counts as suspect.
//!
//! Attempts that fail are repeated at growing intervals (module [`crate::start::attempts`]).

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use striate_commands::failure::{Failure, Outcome};
use striate_core::SiteId;

use super::{Cluster, LiveMember};
use crate::start::attempts::{Attempt, Ending, find_member};
use crate::start::roster::{Member, Roster};
use crate::start::site::DiskSite;

/// Interval between two looks at the directories.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The attempts to take disks back.
#[derive(Debug, Default)]
pub(in crate::start) struct Attempts(Mutex<BTreeMap<SiteId, Attempt>>);

impl Cluster {
    /// Looks for disks that can be taken back, as long as the server runs.
    pub(super) async fn take_disks_back(self) {
        loop {
            self.inner.runtime.sleep(LOOK_EVERY).await;
            let now = self.inner.runtime.now();
            for (member, site) in self.members_to_take_back() {
                if self.inner.attempts.0.lock().entry(member.site).or_default().begin(now) {
                    // Each in a task of its own: a disk that hangs holds up no other.
                    drop(self.inner.runtime.spawn(self.clone().attempt(member, site)));
                }
            }
        }
    }

    /// Returns the members that are not open or whose store failed, with their sites.
    fn members_to_take_back(&self) -> Vec<(Member, Option<DiskSite>)> {
        let state = self.inner.state.lock();
        let failed = |member: &Member| match state.live.get(&member.site) {
            Some(live) => live.site.failure().map(|_| (live.member.clone(), Some(live.site.clone()))),
            None => Some((member.clone(), None)),
        };
        state.roster.members.iter().filter_map(failed).collect()
    }

    async fn attempt(self, member: Member, site: Option<DiskSite>) {
        let number = member.site;
        let ending = self.take_back(&member, site).await;
        let now = self.inner.runtime.now();
        self.inner.attempts.0.lock().entry(number).or_default().end(&member, ending, now);
    }

    /// Returns why the last attempt to take a site's disk back failed.
    pub(super) fn why_not_taken_back(&self, site: SiteId) -> Option<String> {
        self.inner.attempts.0.lock().get(&site)?.reason().map(str::to_owned)
    }

    async fn take_back(&self, member: &Member, site: Option<DiskSite>) -> Ending {
        let (cluster, generation) = {
            let state = self.inner.state.lock();
            (state.roster.cluster, state.roster.generation)
        };
        let looked_for = member.clone();
        let found =
            self.inner.runtime.run_blocking(move || find_member(&looked_for, cluster, generation)).await;
        if let Err(ending) = found {
            return ending;
        }
        let reopened = match site {
            Some(site) => self.reopen(member, &site).await,
            None => self.open_late(member).await,
        };
        match reopened {
            Ok(()) => Ending::TakenBack,
            Err(failure) => Ending::Failed(failure.to_string()),
        }
    }

    /// Reopens the store of a member.
    async fn reopen(&self, member: &Member, site: &DiskSite) -> Outcome {
        let locked = self.inner.state.lock().live.get(&member.site).map(|live| live.lock.locked());
        let lock = self.lock_again(&member.path, locked).await?;
        site.reopen(&self.inner.runtime, self.id(), member).await.map_err(Failure::failed)?;
        let _one_change = self.inner.changing.lock().await;
        let roster = {
            let mut state = self.inner.state.lock();
            let Some(live) = state.live.get_mut(&member.site).filter(|live| live.member.disk == member.disk)
            else {
                return Err(Failure::failed("it was replaced meanwhile"));
            };
            if let Some(lock) = lock {
                live.lock = lock;
            }
            state.compared.insert(member.site);
            state.roster.clone()
        };
        self.join_again(member.site, roster).await
    }

    /// Opens a member that was not there, or could not be used, when the server started.
    async fn open_late(&self, member: &Member) -> Outcome {
        let lock = self.lock(&member.path).await?;
        let formats = &self.client().stripes().options().formats;
        let site = DiskSite::open(&self.inner.runtime, self.id(), member, formats).await;
        let site = site.map_err(Failure::failed)?;
        self.introduce(&site);
        let _one_change = self.inner.changing.lock().await;
        let roster = {
            let mut state = self.inner.state.lock();
            let is_wanted =
                state.roster.member(member.disk).is_some() && !state.live.contains_key(&member.site);
            if !is_wanted {
                return Err(Failure::failed("it was replaced meanwhile"));
            }
            state.live.insert(member.site, LiveMember { member: member.clone(), site, lock });
            state.compared.insert(member.site);
            state.roster.clone()
        };
        self.join_again(member.site, roster).await
    }

    /// Brings the rosters, the mirrors and the client's sites up to date, and compares the site's chunks with the metadata.
    async fn join_again(&self, site: SiteId, roster: Roster) -> Outcome {
        let published = self.publish(roster).await;
        let compared = match &published {
            Ok(()) => self.compare(site).await,
            Err(_) => Ok(()),
        };
        self.inner.state.lock().compared.remove(&site);
        published?;
        // The mirrors that are missing are restored in the background, too.
        if let Err(error) = self.restore_mirrors().await {
            tracing::warn!(%error, "the metadata is not mirrored again yet");
        }
        compared
    }

    /// Puts stripes in debt that should have a chunk on `site` and have none there.
    async fn compare(&self, site: SiteId) -> Outcome {
        let report =
            striate_control::compare_site(self.client().stripes(), site).await.map_err(Failure::failed)?;
        if report.missing > 0 {
            tracing::warn!(%site, chunks = report.chunks, missing = report.missing, "a disk came back without some of its chunks; they are rebuilt");
        } else {
            tracing::info!(%site, chunks = report.chunks, "a disk came back with all of its chunks");
        }
        Ok(())
    }
}
