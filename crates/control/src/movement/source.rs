//! Where the optimiser learns what is asked for, and with what.

use striate_plan::{CoAccess, PartitionReads};
use striate_runtime::Runtime;
use striate_stripe::{HotBlock, Stripes};

use crate::access::GatheredAccess;

/// The statistics that the optimiser goes by. EC-Store has a service for them, which all clients report to (§V-A).
#[derive(Clone, Debug)]
pub enum AccessSource {
    /// The requests of this process.
    Own(Stripes),
    /// Those of all gateways, as they report them.
    Gathered(GatheredAccess),
}

impl AccessSource {
    /// Looks at the statistics as they are now.
    pub(super) async fn look<R: Send + 'static>(
        &self,
        runtime: &Runtime,
        look: impl FnOnce(&CoAccess) -> R + Send + 'static,
    ) -> R {
        match self {
            Self::Own(stripes) => stripes.sampler().with_co_access(look),
            Self::Gathered(gathered) => {
                let (gathered, now) = (gathered.clone(), runtime.now());
                runtime.run_blocking(move || look(&gathered.together(now))).await
            }
        }
    }

    /// The blocks that most requests ask for.
    pub(super) async fn hottest(&self, runtime: &Runtime, most: usize) -> Vec<HotBlock> {
        match self {
            Self::Own(stripes) => stripes.sampler().hottest(most),
            Self::Gathered(gathered) => {
                let (gathered, now) = (gathered.clone(), runtime.now());
                runtime.run_blocking(move || gathered.hottest(now, most)).await
            }
        }
    }

    /// The partitions that are read most.
    pub(crate) fn hottest_partitions(&self, runtime: &Runtime, most: usize) -> Vec<PartitionReads> {
        match self {
            Self::Own(stripes) => stripes.sampler().hottest_partitions(most),
            Self::Gathered(gathered) => gathered.hottest_partitions(runtime.now(), most),
        }
    }

    /// δ: chunks that these requests ask for beyond a sufficient set, where this process knows.
    pub(super) fn extra_reads(&self) -> Option<usize> {
        match self {
            Self::Own(stripes) => Some(stripes.options().read_policy.most_extra_reads()),
            Self::Gathered(_) => None,
        }
    }

    /// Requests until now, sampled or not. Never less than before.
    pub(super) fn requests(&self) -> u64 {
        match self {
            Self::Own(stripes) => stripes.requests(),
            Self::Gathered(gathered) => gathered.requests(),
        }
    }
}
