//! Sites that are away: which are waited for, and which count as lost (EC-Store §V-C).
//!
//! Every few seconds each site is asked for its status. One that does not answer, that is not to be found, or whose disk
//! takes no more writes is *silent*. A site that is silent for the whole wait counts as lost, and so does, at once, one
//! that was given up. One good answer ends the silence: what the site has is used again, as far as its generations are
//! still named. The time is this process's monotonic clock; a process that begins to watch waits from its beginning.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use striate_core::SiteId;
use striate_meta::keys;
use striate_meta::records::{self, site::State};
use striate_runtime::Instant;
use striate_site::Site;
use striate_stripe::{StripeError, Stripes};

use crate::rows::{Rows, sites_not_well};

/// A site that is asked must answer within this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Sites that are asked at the same time.
const ASKED_AT_ONCE: usize = 16;

/// The sites that are not here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Absent {
    /// Their chunks count as lost.
    pub gone: BTreeSet<SiteId>,
    /// Their chunks can neither be read nor are they rebuilt: they may come back.
    pub awaited: BTreeSet<SiteId>,
}

impl Absent {
    /// Nothing is waited for: every site that is not well counts as lost. But for sites of other processes that this one has not
    /// learnt of yet: they have just joined, and may have chunks already.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn at_once(stripes: &Stripes) -> Result<Self, StripeError> {
        let (gone, awaited) = sites_not_well(stripes).await?;
        Ok(Self { gone, awaited })
    }

    /// Whether the site is one of them.
    pub fn contains(&self, site: SiteId) -> bool {
        self.gone.contains(&site) || self.awaited.contains(&site)
    }
}

/// How a site answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Well,
    /// It can be read, but its disk takes no writes any more.
    Failing,
    Silent,
}

/// Since when sites are silent.
#[derive(Debug, Default)]
pub struct Silences {
    since: BTreeMap<SiteId, Instant>,
}

impl Silences {
    /// Asks all sites; those that were silent for `wait` are gone.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn look(&mut self, stripes: &Stripes, wait: Duration) -> Result<Absent, StripeError> {
        let (known, retired) = known_sites(stripes).await?;
        let conditions = conditions(stripes).await;
        let now = stripes.runtime().now();
        self.since.retain(|site, _| known.contains(site));
        let mut absent = Absent { gone: retired, awaited: BTreeSet::new() };
        for site in known {
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
        Ok(absent)
    }

    /// The silent sites, each with the rest of its wait.
    pub fn view(&self, now: Instant, wait: Duration) -> Vec<(SiteId, Duration)> {
        let rest = |since: Instant| wait.saturating_sub(now.saturating_duration_since(since));
        self.since.iter().map(|(&site, &since)| (site, rest(since))).collect()
    }
}

/// The sites of the metadata: those in use, and those that were given up.
async fn known_sites(stripes: &Stripes) -> Result<(BTreeSet<SiteId>, BTreeSet<SiteId>), StripeError> {
    let (mut known, mut retired) = (BTreeSet::new(), BTreeSet::new());
    let mut rows = Rows::with_prefix(keys::SITES);
    while let Some(page) = rows.next(stripes).await? {
        for row in page {
            let site: records::Site = row.record()?;
            let is_retired = site.state() == State::Retired;
            if is_retired { &mut retired } else { &mut known }.insert(SiteId(site.id));
        }
    }
    Ok((known, retired))
}

/// How the sites that this process knows answer.
async fn conditions(stripes: &Stripes) -> BTreeMap<SiteId, Condition> {
    let ask = |site: Arc<dyn Site>| async move {
        let answer = stripes.runtime().timeout(ANSWER_WITHIN, site.status()).await;
        let condition = match answer {
            Ok(Ok(status)) if status.store.suspect.is_none() => Condition::Well,
            Ok(Ok(_)) => Condition::Failing,
            Ok(Err(_)) | Err(_) => Condition::Silent,
        };
        (site.id(), condition)
    };
    let asked: Vec<_> = stripes.sites().into_iter().map(|view| ask(view.site)).collect();
    stream::iter(asked).buffer_unordered(ASKED_AT_ONCE).collect().await
}
