//! The statistics service: ω_j of every site, kept fresh (EC-Store §V-A).
//!
//! Sites tell their load with every reply. Every 5–10 s what they told last is taken down; who has told nothing since
//! is asked for its status. A site that does not answer has no load until it does. What is known can be lost: it is known
//! again after the next round.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use rand::Rng;
use striate_client::Client;
use striate_core::{LoadReport, SiteId};
use striate_plan::{LoadWeights, SiteLoad, load_imbalances, site_loads};
use striate_site::Site;

/// Pause between two rounds, drawn anew each time so that the clients of a cluster do not ask in step.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 5_000..=10_000;
/// A site that is asked must answer within this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Sites that are asked at the same time.
const ASKED_AT_ONCE: usize = 16;
/// Weight of a round in the mean queue: a queue says little of the next one, and moves stay for long.
const QUEUE_WEIGHT: f64 = 1.0 / 8.0;

/// What is known of the sites' load. A cheap handle.
#[derive(Clone, Debug, Default)]
pub struct SiteStatistics {
    known: Arc<Mutex<BTreeMap<SiteId, Known>>>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// The last report's number.
    sequence: u64,
    load: SiteLoad,
    queue: f64,
}

/// The load of one site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SiteLoadView {
    /// The site.
    pub site: SiteId,
    /// What its load is made of.
    pub load: SiteLoad,
    /// Requests waiting or being served there, in the mean over the last rounds: o_j as it lasts, where asking an idle site
    /// costs 1.
    pub queue: f64,
    /// ω_j.
    pub omega: f64,
    /// Ω_j: how far it is from the average, in parts of the average.
    pub imbalance: f64,
}

impl SiteStatistics {
    /// Runs rounds for ever.
    pub async fn run(self, client: Client) {
        let mut rng = client.runtime().rng();
        loop {
            client.runtime().sleep(Duration::from_millis(rng.random_range(PAUSE_MS))).await;
            self.round(&client).await;
        }
    }

    /// One round over all sites.
    pub async fn round(&self, client: &Client) {
        let before = self.known.lock().clone();
        let sites = client.sites().into_iter().filter(|view| view.readable).map(|view| view.site);
        let looks: Vec<_> = sites
            .map(|site| {
                let known = before.get(&site.id()).copied();
                look(client, site, known)
            })
            .collect();
        let round = stream::iter(looks).buffer_unordered(ASKED_AT_ONCE);
        let now = round.filter_map(std::future::ready).collect::<BTreeMap<_, _>>().await;
        *self.known.lock() = now;
    }

    /// The load of every site that has one, in the order of their numbers.
    pub fn view(&self) -> Vec<SiteLoadView> {
        let known = self.known.lock().clone();
        let loads: Vec<SiteLoad> = known.values().map(|known| known.load).collect();
        let omegas = site_loads(&loads, LoadWeights::default());
        let imbalances = load_imbalances(&omegas);
        let rest = known.into_iter().zip(omegas).zip(imbalances);
        let view = |(((site, known), omega), imbalance): (((SiteId, Known), f64), f64)| {
            let Known { load, queue, .. } = known;
            SiteLoadView { site, load, queue, omega, imbalance }
        };
        rest.map(view).collect()
    }

    /// λ: how much more than the mean the most loaded site bears, in parts of the mean. `None` while nothing is known.
    pub fn imbalance(&self) -> Option<f64> {
        let omegas: Vec<f64> = self.view().iter().map(|view| view.omega).collect();
        let mean = omegas.iter().sum::<f64>() / omegas.len().max(1) as f64;
        let most = omegas.iter().copied().max_by(f64::total_cmp)?;
        Some(if mean > 0.0 { most / mean - 1.0 } else { 0.0 })
    }
}

impl Known {
    fn now(before: Option<Self>, report: &LoadReport) -> Self {
        let (sequence, now) = (report.sequence, f64::from(report.queue_requests));
        let Some(Self { load, queue, .. }) = before else {
            return Self { sequence, load: SiteLoad::of(report), queue: now };
        };
        Self { sequence, load: load.smoothed(report), queue: queue + (now - queue) * QUEUE_WEIGHT }
    }
}

/// What is known of a site after this round: by a report that the last round has not seen, or by what it answers now.
/// `None` if it does not answer.
async fn look(client: &Client, site: Arc<dyn Site>, known: Option<Known>) -> Option<(SiteId, Known)> {
    let last = site.last_load();
    // A site that has told nothing yet has the number 0.
    let report = match last.sequence > known.map_or(0, |known| known.sequence) {
        true => last,
        false => client.runtime().timeout(ANSWER_WITHIN, site.status()).await.ok()?.ok()?.load,
    };
    Some((site.id(), Known::now(known, &report)))
}
