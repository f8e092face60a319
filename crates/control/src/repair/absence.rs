//! Absent sites: which are waited for, and which count as lost (EC-Store §V-C).
//!
//! Every few seconds each site is asked for its status. A site that does not answer, cannot be found, or whose disk
//! takes no more writes is *silent*. A site that is silent for the whole wait counts as lost; a retired one does at
//! once. One good answer ends the silence: the site's chunks are used again, as far as their generations are still
//! named. This process's monotonic clock measures the wait; a process that starts to watch begins it again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use striate_core::SiteId;
use striate_meta::records::{self, site::State};
use striate_plan::LeavingRacks;
use striate_runtime::Instant;
use striate_site::Site;
use striate_stripe::{StripeError, Stripes};

use crate::rows::{leaving_racks, registered_sites};

/// Timeout for a site's status.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Sites polled concurrently.
const ASKED_AT_ONCE: usize = 16;
/// Polls that a site must miss to count as lost at once, and the pause between them.
const POLLS: usize = 3;
const POLL_PAUSE: Duration = Duration::from_secs(1);

/// Sites that are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AbsentSites {
    /// Sites whose chunks count as lost.
    pub gone: BTreeSet<SiteId>,
    /// Sites that may come back: their chunks cannot be read, and are not rebuilt.
    pub awaited: BTreeSet<SiteId>,
    /// Racks of which every site is gone, retired or draining.
    pub leaving: LeavingRacks,
}

impl AbsentSites {
    /// Counts every site as lost that is not well, or misses a few polls in succession. The exception are sites of
    /// other processes that this one does not know yet: they have just joined, and may already have chunks.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn at_once(stripes: &Stripes) -> Result<Self, StripeError> {
        let conditions = conditions_after_polls(stripes).await;
        let mut absent = Self::default();
        for site in registered_sites(stripes).await? {
            let (id, is_retired) = (SiteId(site.id), site.state() == State::Retired);
            match conditions.get(&id) {
                Some(Condition::Well) if !is_retired => {}
                None if !is_retired && !site.peer.is_empty() => drop(absent.awaited.insert(id)),
                _ => drop(absent.gone.insert(id)),
            }
        }
        absent.leaving = leaving_racks(stripes, &absent.gone).await?;
        Ok(absent)
    }

    /// Returns whether the site is absent.
    pub fn contains(&self, site: SiteId) -> bool {
        self.gone.contains(&site) || self.awaited.contains(&site)
    }
}

/// Condition of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Well,
    /// It can be read, but its disk no longer takes writes.
    Failing,
    Silent,
}

/// Start of each site's silence.
#[derive(Debug, Default)]
pub struct SilenceTracker {
    since: BTreeMap<SiteId, Instant>,
}

impl SilenceTracker {
    /// Polls all sites; those that have been silent for `wait` are gone.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn observe(&mut self, stripes: &Stripes, wait: Duration) -> Result<AbsentSites, StripeError> {
        let sites = registered_sites(stripes).await?;
        let is_retired = |site: &&records::Site| site.state() == State::Retired;
        let number = |site: &records::Site| SiteId(site.id);
        let retired: BTreeSet<SiteId> = sites.iter().filter(is_retired).map(number).collect();
        let in_use: BTreeSet<SiteId> =
            sites.iter().map(number).filter(|site| !retired.contains(site)).collect();
        let conditions = conditions(stripes, &BTreeSet::new()).await;
        let now = stripes.runtime().now();
        self.since.retain(|site, _| in_use.contains(site));
        let mut absent = AbsentSites { gone: retired, ..AbsentSites::default() };
        for site in in_use {
            let condition = conditions.get(&site).copied().unwrap_or(Condition::Silent);
            if condition == Condition::Well {
                self.since.remove(&site);
                continue;
            }
            let since = *self.since.entry(site).or_insert(now);
            if now - since >= wait {
                absent.gone.insert(site);
            } else if condition == Condition::Silent {
                absent.awaited.insert(site);
            }
        }
        absent.leaving = leaving_racks(stripes, &absent.gone).await?;
        Ok(absent)
    }

    /// Returns the silent sites, each with the rest of its wait.
    pub fn view(&self, now: Instant, wait: Duration) -> Vec<(SiteId, Duration)> {
        let remaining = |since: Instant| wait.saturating_sub(now.saturating_duration_since(since));
        self.since.iter().map(|(&site, &since)| (site, remaining(since))).collect()
    }
}

/// Polls the sites that this process knows, silent ones several times.
async fn conditions_after_polls(stripes: &Stripes) -> BTreeMap<SiteId, Condition> {
    let mut found = conditions(stripes, &BTreeSet::new()).await;
    for _ in 1..POLLS {
        let (silent, heard): (Vec<_>, Vec<_>) =
            found.iter().partition(|(_, condition)| **condition == Condition::Silent);
        if silent.is_empty() {
            break;
        }
        stripes.runtime().sleep(POLL_PAUSE).await;
        let heard = heard.into_iter().map(|(&site, _)| site).collect();
        found.extend(conditions(stripes, &heard).await);
    }
    found
}

/// Polls the sites that this process knows, except those in `heard`.
async fn conditions(stripes: &Stripes, heard: &BTreeSet<SiteId>) -> BTreeMap<SiteId, Condition> {
    let ask = |site: Arc<dyn Site>| async move {
        let answer = stripes.runtime().timeout(ANSWER_WITHIN, site.status()).await;
        let condition = match answer {
            Ok(Ok(status)) if status.store.suspect.is_none() => Condition::Well,
            Ok(Ok(_)) => Condition::Failing,
            Ok(Err(_)) | Err(_) => Condition::Silent,
        };
        (site.id(), condition)
    };
    let sites = stripes.sites().into_iter().map(|view| view.site);
    let polls: Vec<_> = sites.filter(|site| !heard.contains(&site.id())).map(ask).collect();
    stream::iter(polls).buffer_unordered(ASKED_AT_ONCE).collect().await
}
