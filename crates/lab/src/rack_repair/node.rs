//! The repair of a whole node (ECWide §4.1, Figure 9(f)): many stripes each lose one chunk, and all are repaired at
//! once.
//!
//! Stripes are placed on all sites by the store's rule. Only the local group of each lost chunk is written, because
//! the repair touches nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use striate_codec::Code;
use striate_control::repair::absence::AbsentSites;
use striate_control::repair::pace::{RepairChoice, RepairPace};
use striate_control::repair_stripe;
use striate_core::{Profile, RackId, SiteId, StripeId};
use striate_plan::{Candidate, PlacementRule};
use striate_runtime::Runtime;
use striate_site::Site;
use striate_stripe::Stripes;

use super::{RackRepairError, WrittenStripe, needed, open, write_chunks};
use crate::contents::WRITER;

/// The site whose chunks are lost.
pub const LOST_SITE: SiteId = SiteId(1);
/// Attempts to place a stripe until one of its groups has a chunk on the lost site.
const DRAWS: usize = 10_000;

/// Result of the repair.
#[derive(Clone, Debug)]
pub struct NodeRepairResult {
    /// Time from the start to the last chunk.
    pub took: Duration,
    /// Chunks that each site made.
    pub made: BTreeMap<SiteId, u64>,
}

/// Stripes that have each lost a chunk.
pub struct NodeRepair {
    runtime: Runtime,
    stripes: Stripes,
    ids: Vec<StripeId>,
}

impl NodeRepair {
    /// Places and writes `count` stripes with chunks of `chunk_len` bytes. The same seed gives the same placement.
    ///
    /// # Errors
    /// As [`super::RackRepair::prepare`]; also if the sites have no place for a stripe.
    pub async fn prepare(
        runtime: &Runtime,
        profile: Profile,
        sites: Vec<Arc<dyn Site>>,
        count: usize,
        chunk_len: u32,
        seed: u64,
    ) -> Result<Self, RackRepairError> {
        let code = profile.code.build()?;
        let candidates: Vec<Candidate> = sites.iter().map(candidate).collect();
        let racks: BTreeSet<RackId> = sites.iter().map(|site| site.rack()).collect();
        let rule = PlacementRule::new(&profile, &code, racks.len());
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut written = Vec::new();
        for number in 0..count {
            let id = StripeId::new(WRITER, number as u64);
            let (places, group) = draw(&rule, &code, &candidates, &mut rng)?;
            let stripe_sites: Vec<Arc<dyn Site>> =
                places.iter().map(|site| Arc::clone(&sites[site.0 as usize - 1])).collect();
            let checksums = write_chunks(runtime, id, &code, &stripe_sites, &group, chunk_len).await?;
            written.push(WrittenStripe { id, places, checksums });
        }
        let ids = written.iter().map(|stripe| stripe.id).collect();
        let stripes = open(runtime, profile, &code, sites, &written, chunk_len).await?;
        Ok(Self { runtime: runtime.clone(), stripes, ids })
    }

    /// Repairs all stripes at once. The lost site is not asked for anything.
    ///
    /// # Errors
    /// If a stripe was not repaired.
    pub async fn repair(&self, choice: RepairChoice) -> Result<NodeRepairResult, RackRepairError> {
        let absent = AbsentSites { gone: BTreeSet::from([LOST_SITE]), ..AbsentSites::default() };
        let pace = RepairPace::unlimited().choosing(choice);
        let began = self.runtime.now();
        let repairs = self.ids.iter().map(|&id| repair_stripe(&self.stripes, id, &absent, &pace, false));
        let outcomes = try_join_all(repairs).await?;
        let took = self.runtime.now() - began;
        if let Some(wrong) = outcomes.iter().find(|outcome| outcome.chunks != 1 || !outcome.is_whole()) {
            return Err(RackRepairError::NotRepaired(format!("{wrong:?}")));
        }
        Ok(NodeRepairResult { took, made: self.count_new_chunks().await? })
    }

    /// Counts the new chunks by site: those of a newer generation than the first.
    async fn count_new_chunks(&self) -> Result<BTreeMap<SiteId, u64>, RackRepairError> {
        let mut counts = BTreeMap::new();
        for &id in &self.ids {
            let gone = || RackRepairError::NotRepaired("a stripe is gone".to_owned());
            let stripe = self.stripes.find(id).await?.ok_or_else(gone)?;
            let new = stripe.record.locations.iter().filter(|location| location.generation > 1);
            new.for_each(|location| *counts.entry(SiteId(location.site)).or_default() += 1);
        }
        Ok(counts)
    }
}

fn candidate(site: &Arc<dyn Site>) -> Candidate {
    Candidate { site: site.id(), rack: site.rack(), free_bytes: 1 << 40, queue_requests: 0 }
}

/// Draws a site for each chunk; returns them, and the chunks of the local group that has one on the lost site.
fn draw(
    rule: &PlacementRule,
    code: &Code,
    candidates: &[Candidate],
    rng: &mut SmallRng,
) -> Result<(Vec<SiteId>, Vec<usize>), RackRepairError> {
    for _ in 0..DRAWS {
        let places = rule.draw_sites(rng, candidates, code.n());
        let lost = places.iter().position(|&site| site == LOST_SITE);
        let lost = lost.filter(|&lost| code.local_group_of(lost).is_some() && places.len() == code.n());
        if let Some(lost) = lost {
            return Ok((places, needed(code, lost)));
        }
    }
    Err(RackRepairError::NotRepaired(
        "no stripe has a place with a chunk of a local group on site 1".to_owned(),
    ))
}
