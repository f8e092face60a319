//! The background services that keep a store whole and clean: repair, scrub, collection, packing, hot copies. One
//! process of a cluster runs them.

use std::time::Duration;

use futures::future::BoxFuture;
use striate_stripe::Stripes;

use crate::collection::abandoned::{COLLECT_EVERY, keep_collecting};
use crate::collection::placements::keep_sweeping_placements;
use crate::collection::volatile::keep_sweeping;
use crate::hot_copies::{HotCopies, HotCopiesOptions};
use crate::movement::AccessSource;
use crate::packing::service::{PackingOptions, PackingService};
use crate::repair::scrub::keep_scrubbing;
use crate::repair::service::{RepairOptions, RepairService};

/// Configuration of the background services.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpkeepOptions {
    /// Repair.
    pub repair: RepairOptions,
    /// Time within which every chunk is verified; `None`: only on request.
    pub scrub_cycle: Option<Duration>,
    /// Which buckets are packed, and how.
    pub packing: PackingOptions,
    /// Copies of the most-read partitions.
    pub copies: HotCopiesOptions,
}

impl Default for UpkeepOptions {
    fn default() -> Self {
        let month = Duration::from_secs(30 * 24 * 3_600);
        Self {
            repair: RepairOptions::default(),
            scrub_cycle: Some(month),
            packing: PackingOptions::default(),
            copies: HotCopiesOptions::default(),
        }
    }
}

impl UpkeepOptions {
    /// Repairs, scrubs, packs and copies only on request.
    pub fn by_hand() -> Self {
        Self {
            repair: RepairOptions { limits: None, ..RepairOptions::default() },
            scrub_cycle: None,
            packing: PackingOptions::off(),
            copies: HotCopiesOptions { share: 0.0 },
        }
    }
}

/// The services that keep a store whole. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Upkeep {
    repair: RepairService,
    scrub_cycle: Option<Duration>,
    packing: PackingService,
    copies: HotCopies,
}

impl Upkeep {
    /// Creates the services without starting them.
    pub fn new(options: UpkeepOptions) -> Self {
        Self {
            repair: RepairService::new(options.repair),
            scrub_cycle: options.scrub_cycle,
            packing: PackingService::new(options.packing),
            copies: HotCopies::new(options.copies),
        }
    }

    /// Returns the repair service.
    pub fn repair(&self) -> &RepairService {
        &self.repair
    }

    /// Returns the packing service.
    pub fn packing(&self) -> &PackingService {
        &self.packing
    }

    /// Runs the services until the task is dropped. `source` says what is read. Run it in one process of a cluster at a
    /// time.
    pub fn run(self, stripes: Stripes, source: AccessSource) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let scrub = async {
                if let Some(cycle) = self.scrub_cycle {
                    keep_scrubbing(stripes.clone(), cycle).await;
                }
            };
            let collecting = keep_collecting(stripes.clone(), COLLECT_EVERY);
            let packing = self.packing.run(stripes.clone(), source.clone());
            let keeping =
                futures::future::join4(collecting, self.repair.run(stripes.clone()), scrub, packing);
            let sweeping = keep_sweeping_placements(stripes.clone());
            let copying = self.copies.run(stripes.clone(), source);
            futures::future::join4(keeping, keep_sweeping(stripes.clone()), sweeping, copying).await;
        })
    }
}
