//! Source of the optimiser's statistics: which blocks are requested, and with which others.

use striate_plan::{CoAccess, PartitionReads};
use striate_runtime::Runtime;
use striate_stripe::{HotBlock, Stripes};

use crate::access::GatheredAccess;

/// Statistics that the optimiser uses. EC-Store has a service for them, to which all clients report (§V-A).
#[derive(Clone, Debug)]
pub enum AccessSource {
    /// The requests of this process.
    Own(Stripes),
    /// The requests of all gateways, as they report them.
    Gathered(GatheredAccess),
}

impl AccessSource {
    /// Calls `look` with the current statistics.
    pub(super) async fn draw_from<R: Send + 'static>(
        &self,
        runtime: &Runtime,
        draw: impl FnOnce(&CoAccess) -> R + Send + 'static,
    ) -> R {
        match self {
            Self::Own(stripes) => stripes.sampler().with_co_access(draw),
            Self::Gathered(gathered) => {
                let (gathered, now) = (gathered.clone(), runtime.now());
                runtime.run_blocking(move || draw(&gathered.together(now))).await
            }
        }
    }

    /// Returns the most requested blocks.
    pub(super) async fn hottest(&self, runtime: &Runtime, most: usize) -> Vec<HotBlock> {
        match self {
            Self::Own(stripes) => stripes.sampler().hottest(most),
            Self::Gathered(gathered) => {
                let (gathered, now) = (gathered.clone(), runtime.now());
                runtime.run_blocking(move || gathered.hottest(now, most)).await
            }
        }
    }

    /// Returns the most-read partitions.
    pub(crate) fn hottest_partitions(&self, runtime: &Runtime, most: usize) -> Vec<PartitionReads> {
        match self {
            Self::Own(stripes) => stripes.sampler().hottest_partitions(most),
            Self::Gathered(gathered) => gathered.hottest_partitions(runtime.now(), most),
        }
    }

    /// Returns δ, the chunks that these requests ask for beyond a sufficient set, if this process knows it.
    pub(super) fn extra_reads(&self) -> Option<usize> {
        match self {
            Self::Own(stripes) => Some(stripes.options().read_policy.most_extra_reads()),
            Self::Gathered(_) => None,
        }
    }

    /// Returns the number of requests so far, sampled or not. Never decreases.
    pub(super) fn requests(&self) -> u64 {
        match self {
            Self::Own(stripes) => stripes.requests(),
            Self::Gathered(gathered) => gathered.requests(),
        }
    }
}
