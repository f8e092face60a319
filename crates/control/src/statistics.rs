//! The statistics service: ω_j of every site, kept fresh (EC-Store §V-A).
//!
//! Every 5–10 s it polls the status of all sites. A site that does not answer has no load until it does. These
//! statistics may be lost: the next round restores them.
//!
//! Sites report disk load in two ways: the share of its workers' time that the disk takes, and the bytes read from
//! it. EC-Store's I/O load is the latter (§VI-C1). Bytes say more about where requests go: a site under many
//! concurrent requests spends less time per byte, and a busy one stays busy whatever else it is asked. So a view's
//! share is the mean share of all sites, scaled by this site's bytes read over their mean.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use rand::Rng;
use striate_core::SiteId;
use striate_plan::{LoadWeights, SiteLoad, load_imbalances, site_loads};
use striate_site::{Site, SiteStatus};
use striate_stripe::Stripes;

/// Interval between two rounds, drawn at random each time so that the clients of a cluster do not poll in step.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 5_000..=10_000;
/// Timeout for a site's status.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Sites polled concurrently.
const ASKED_AT_ONCE: usize = 16;
/// Weight of a round in the mean queue: one queue length predicts the next poorly, and moves last long.
const QUEUE_WEIGHT: f64 = 1.0 / 8.0;

/// Current load of the sites. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct SiteStatistics {
    latest: Arc<Mutex<BTreeMap<SiteId, KnownSite>>>,
}

#[derive(Clone, Copy, Debug)]
struct KnownSite {
    load: SiteLoad,
    /// Bytes read per second, smoothed like the load.
    read: Option<f64>,
    queue: f64,
}

/// The load of one site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SiteLoadView {
    /// Number of the site.
    pub site: SiteId,
    /// The components of its load.
    pub load: SiteLoad,
    /// Requests waiting or being served there, averaged over the last rounds: the lasting o_j, in units where asking
    /// an idle site costs 1.
    pub queue: f64,
    /// ω_j.
    pub omega: f64,
    /// Ω_j: deviation from the average, as a fraction of the average.
    pub imbalance: f64,
}

impl SiteStatistics {
    /// Polls the sites until the task is dropped.
    pub fn run(self, stripes: Stripes) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut rng = stripes.runtime().rng();
            loop {
                stripes.runtime().sleep(Duration::from_millis(rng.random_range(PAUSE_MS))).await;
                self.round(&stripes).await;
            }
        })
    }

    /// Polls all sites once.
    pub async fn round(&self, stripes: &Stripes) {
        let before = self.latest.lock().clone();
        let sites = stripes.sites().into_iter().filter(|view| view.readable).map(|view| view.site);
        let looks: Vec<_> = sites
            .map(|site| {
                let earlier = before.get(&site.id()).copied();
                sample(stripes, site, earlier)
            })
            .collect();
        let round = stream::iter(looks).buffer_unordered(ASKED_AT_ONCE);
        let now = round.filter_map(std::future::ready).collect::<BTreeMap<_, _>>().await;
        *self.latest.lock() = now;
    }

    /// Returns the load of every site that has one, in the order of their numbers.
    pub fn view(&self) -> Vec<SiteLoadView> {
        let latest = self.latest.lock().clone();
        let loads = loads_by_bytes(&latest.values().copied().collect::<Vec<_>>());
        let omegas = site_loads(&loads, LoadWeights::default());
        let imbalances = load_imbalances(&omegas);
        let view = |(place, (site, latest)): (usize, (SiteId, KnownSite))| SiteLoadView {
            site,
            load: loads[place],
            queue: latest.queue,
            omega: omegas[place],
            imbalance: imbalances[place],
        };
        latest.into_iter().enumerate().map(view).collect()
    }

    /// Returns λ: by how much the most loaded site exceeds the mean, as a fraction of the mean. `None` while no load
    /// is known.
    pub fn imbalance(&self) -> Option<f64> {
        let omegas: Vec<f64> = self.view().iter().map(|view| view.omega).collect();
        let mean = omegas.iter().sum::<f64>() / omegas.len().max(1) as f64;
        let most = omegas.iter().copied().max_by(f64::total_cmp)?;
        Some(if mean > 0.0 { most / mean - 1.0 } else { 0.0 })
    }
}

impl KnownSite {
    fn now(before: Option<Self>, status: &SiteStatus) -> Self {
        let (report, queue) = (&status.load, f64::from(status.load.queue_requests));
        let read = status.read_bytes_per_s.map(|rate| rate as f64);
        let Some(before) = before else { return Self { load: SiteLoad::of(report), read, queue } };
        Self {
            load: before.load.smoothed(report),
            read: read.map(|now| before.read.map_or(now, |before| f64::midpoint(before, now))),
            queue: before.queue + (queue - before.queue) * QUEUE_WEIGHT,
        }
    }
}

/// Spreads the disks' mean share of time over the sites in proportion to the bytes they read. Returns the reported
/// loads if a site does not report bytes, or nothing is read.
fn loads_by_bytes(sites: &[KnownSite]) -> Vec<SiteLoad> {
    let count = sites.len().max(1) as f64;
    let io = sites.iter().map(|site| site.load.io).sum::<f64>() / count;
    let read: Option<f64> = sites.iter().map(|site| site.read).sum();
    let spread = |site: &KnownSite| match (site.read, read) {
        (Some(own), Some(all)) if all > 0.0 => SiteLoad { io: io * own / (all / count), ..site.load },
        _ => site.load,
    };
    sites.iter().map(spread).collect()
}

/// Polls a site and merges its status with the earlier ones. `None` if it does not answer.
async fn sample(
    stripes: &Stripes,
    site: Arc<dyn Site>,
    earlier: Option<KnownSite>,
) -> Option<(SiteId, KnownSite)> {
    let status = stripes.runtime().timeout(ANSWER_WITHIN, site.status()).await.ok()?.ok()?;
    Some((site.id(), KnownSite::now(earlier, &status)))
}
