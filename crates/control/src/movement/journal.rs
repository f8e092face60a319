//! The journal of moves, kept in one row that every process shows: the rate of moves, what sites being emptied still
//! hold, how evenly the sites are loaded over time, and the hottest blocks.

use std::time::Duration;

use futures::future::BoxFuture;
use striate_meta::records::MovementWork;
use striate_meta::records::movement_work::{Giver, HotBlock, Moves, Sample};
use striate_meta::{keys, records};
use striate_runtime::Instant;
use striate_stripe::Stripes;

use super::optimiser::Optimiser;
use super::rebalancer::Rebalancer;
use super::source::AccessSource;
use crate::recent::RecentWork;
use crate::rows::find_record;
use crate::statistics::SiteStatistics;

/// Interval between two updates.
const PASS_EVERY: Duration = Duration::from_secs(5);
/// Updates per sample of the imbalance: one sample a minute.
const ROUNDS_PER_SAMPLE: u32 = 12;
/// Maximum number of samples: two hours of a store whose load changes all the time, more of others.
const SAMPLES: usize = 120;
/// Number of hottest blocks shown.
const HOTTEST: usize = 10;

/// Records the movers' progress.
#[derive(Clone, Debug)]
pub struct MovementJournal {
    rebalancer: Rebalancer,
    optimiser: Optimiser,
    statistics: SiteStatistics,
    source: AccessSource,
}

/// Moves of one kind.
#[derive(Debug, Default)]
struct MoveHistory {
    moves: Moves,
    recent: RecentWork,
}

impl MovementJournal {
    /// Creates the journal of these movers and their inputs.
    pub fn new(
        rebalancer: &Rebalancer,
        optimiser: &Optimiser,
        statistics: &SiteStatistics,
        source: AccessSource,
    ) -> Self {
        let (rebalancer, optimiser) = (rebalancer.clone(), optimiser.clone());
        Self { rebalancer, optimiser, statistics: statistics.clone(), source }
    }

    /// Updates the journal until the task is dropped. Run it in the one process of a cluster that moves chunks.
    pub fn run(self, stripes: Stripes) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let (mut levelling, mut optimising) = (MoveHistory::default(), MoveHistory::default());
            // The samples of the previous process are continued.
            let mut published: MovementWork = loop {
                match find_record(&stripes, &keys::movement_work()).await {
                    Ok(work) => break work.unwrap_or_default(),
                    Err(error) => {
                        tracing::debug!(%error, "how evenly sites were loaded before cannot be read yet")
                    }
                }
                stripes.runtime().sleep(PASS_EVERY).await;
            };
            let begin = stripes.runtime().now();
            [&mut levelling, &mut optimising].into_iter().for_each(|counted| counted.recent.begin(begin));
            for round in 1u32.. {
                stripes.runtime().sleep(PASS_EVERY).await;
                let (now, level, optimise) =
                    (stripes.runtime().now(), self.rebalancer.progress(), self.optimiser.progress());
                levelling.note(now, self.rebalancer.is_paused(), level.chunks, level.bytes);
                optimising.note(now, self.optimiser.is_paused(), optimise.chunks, optimise.bytes);
                let mut work = MovementWork {
                    levelling: Some(levelling.moves),
                    optimising: Some(optimising.moves),
                    givers: level.givers.iter().map(|&(site, bytes)| Giver { site: site.0, bytes }).collect(),
                    imbalance: published.imbalance.clone(),
                    hottest: self.hottest(&stripes).await,
                };
                if work.imbalance.is_empty() || round % ROUNDS_PER_SAMPLE == 0 {
                    self.sample(&stripes, &mut work.imbalance);
                }
                if work != published && publish(&stripes, &work).await {
                    published = work;
                }
            }
        })
    }

    async fn hottest(&self, stripes: &Stripes) -> Vec<HotBlock> {
        let hot = self.source.hottest(stripes.runtime(), HOTTEST).await.into_iter();
        let record = |hot: striate_stripe::HotBlock| HotBlock {
            stripe: hot.block.to_bytes().to_vec().into(),
            popularity_ppm: (hot.popularity * 1e6) as u32,
            object: hot.object.as_deref().unwrap_or_default().to_owned(),
        };
        hot.map(record).collect()
    }

    /// Records how evenly the sites are loaded, if that is known and has changed.
    fn sample(&self, stripes: &Stripes, samples: &mut Vec<Sample>) {
        let Some(imbalance) = self.statistics.imbalance() else { return };
        let permille = (imbalance * 1_000.0) as u32;
        if samples.last().is_none_or(|last| last.permille != permille) {
            samples.push(Sample { unix_ms: stripes.runtime().wall_time().as_millis() as u64, permille });
            let surplus = samples.len().saturating_sub(SAMPLES);
            samples.drain(..surplus);
        }
    }
}

impl MoveHistory {
    fn note(&mut self, now: Instant, off: bool, chunks: u64, bytes: u64) {
        self.recent.add(now, chunks - self.moves.chunks, bytes - self.moves.bytes);
        let (rate_chunks_per_ks, rate_bytes_per_s) = self.recent.rates(now);
        self.moves = Moves { off, chunks, bytes, rate_chunks_per_ks, rate_bytes_per_s };
    }
}

/// Returns `false` if the journal could not be written.
async fn publish(stripes: &Stripes, work: &MovementWork) -> bool {
    let mut tx = stripes.transaction();
    tx.put(keys::movement_work(), records::encode(work));
    let published = stripes.meta().commit(tx).await;
    if let Err(error) = &published {
        tracing::debug!(%error, "what is moved could not be published");
    }
    published.is_ok()
}
