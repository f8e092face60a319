//! Input of the search for movement plans: drawn blocks, where their chunks are, and the sites' loads.

use std::collections::BTreeMap;

use striate_core::{SiteId, StripeId};
use striate_meta::records::Stripe;
use striate_plan::movement::{
    MovementBlock, MovementCandidate, MovementCandidates, MovementSample, MovementSite, MovementState,
    Traffic, draw_candidates,
};
use striate_plan::{CoAccess, CoAccessTotals, LoadWeights, PlacementRule, SiteCost, SiteLoad};
use striate_stripe::{StripeError, Stripes, wide_of};

use super::optimiser::OptimiserOptions;
use super::source::AccessSource;
use crate::statistics::{SiteLoadView, SiteStatistics};

/// Stripe rows read together.
const BATCH: usize = 256;

/// A state, and the candidates to search it for.
pub(super) struct SearchInput {
    pub state: MovementState,
    /// Drawn blocks, in the order of the draws.
    pub candidates: Vec<StripeId>,
    /// Mean number of bytes that a request reads.
    pub request_bytes: f64,
}

/// Draws candidates and looks up their stripes and those of their partners. `None` if too few requests were sampled,
/// or no drawn block exists any more.
pub(super) async fn gather(
    stripes: &Stripes,
    source: &AccessSource,
    statistics: &SiteStatistics,
    options: &OptimiserOptions,
) -> Result<Option<SearchInput>, StripeError> {
    let objective = options.objective;
    let Some((MovementCandidates { blocks: candidates, requests }, totals)) =
        draw(stripes, source, options).await
    else {
        return Ok(None);
    };
    let records = records_of(stripes, &candidates).await?;
    let extra_reads = match objective.counts_requests() {
        true => source.extra_reads().unwrap_or(options.extra_reads),
        false => 0,
    };
    let blocks = blocks_of(stripes, candidates.iter(), &records, extra_reads);
    let drawn =
        |candidate: &&MovementCandidate| candidate.draws > 0 && records.contains_key(&candidate.block);
    let found: usize = candidates.iter().filter(drawn).map(|candidate| candidate.draws).sum();
    if found == 0 || totals.requests == 0 {
        return Ok(None);
    }
    // Blocks are drawn in proportion to their requests.
    let draws: BTreeMap<StripeId, usize> =
        candidates.iter().map(|candidate| (candidate.block, candidate.draws)).collect();
    let of_request = |bytes: &dyn Fn(&MovementBlock) -> f64| {
        let drawn = |block: &MovementBlock| draws.get(&block.id).map_or(0.0, |&draws| draws as f64);
        let sum: f64 = blocks.iter().map(|block| drawn(block) * bytes(block)).sum();
        sum / found as f64 * totals.accesses as f64 / totals.requests as f64
    };
    let request_bytes = of_request(&|block| records.get(&block.id).map_or(0.0, |record| record.len as f64));
    let asked_bytes = of_request(&|block| block.need as f64 * f64::from(block.chunk_len));
    let traffic = Traffic { request_bytes: asked_bytes, weights: LoadWeights::default() };
    let state = objective.state(sites(stripes, statistics), blocks, &requests, traffic);
    let candidates = candidates.iter().filter(drawn).map(|candidate| candidate.block).collect();
    Ok(Some(SearchInput { state, candidates, request_bytes }))
}

/// Draws candidates. Returns them with the totals of the sampled requests; `None` if too few were sampled.
async fn draw(
    stripes: &Stripes,
    source: &AccessSource,
    options: &OptimiserOptions,
) -> Option<(MovementCandidates, CoAccessTotals)> {
    let OptimiserOptions { objective, draws, partners, requests, least_requests, .. } = *options;
    let sample = match objective.counts_requests() {
        true => MovementSample { partners: 0, requests },
        false => MovementSample { partners, requests: 0 },
    };
    let mut rng = stripes.runtime().rng();
    let drawn = move |co_access: &CoAccess| {
        let totals = co_access.totals();
        let is_enough = totals.requests >= least_requests;
        is_enough.then(|| (draw_candidates(co_access, &mut rng, draws, sample), totals))
    };
    source.draw_from(stripes.runtime(), drawn).await
}

/// Returns the existing stripes of the candidates and their partners.
async fn records_of(
    stripes: &Stripes,
    candidates: &[MovementCandidate],
) -> Result<BTreeMap<StripeId, Stripe>, StripeError> {
    let partners = candidates.iter().flat_map(|candidate| &candidate.partners).map(|partner| partner.block);
    let mut ids: Vec<StripeId> = candidates.iter().map(|candidate| candidate.block).chain(partners).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut records = BTreeMap::new();
    for batch in ids.chunks(BATCH) {
        records.extend(stripes.records_of(batch).await?);
    }
    Ok(records)
}

/// Returns the candidates with their statistics, and blocks that are only partners.
fn blocks_of<'a>(
    stripes: &Stripes,
    candidates: impl Iterator<Item = &'a MovementCandidate>,
    records: &BTreeMap<StripeId, Stripe>,
    extra_reads: usize,
) -> Vec<MovementBlock> {
    let candidates_by_id: BTreeMap<StripeId, &MovementCandidate> =
        candidates.map(|candidate| (candidate.block, candidate)).collect();
    let racks = stripes.rack_sizes();
    let block = |(&id, record): (&StripeId, &Stripe)| {
        let profile = stripes.profiles().parse(&record.profile).ok()?;
        let code = stripes.code(&profile).ok()?;
        // Chunks under wide stripes are cold: moving them is left to the rebalancer.
        if record.locations.iter().any(|at| wide_of(at).is_some()) {
            return None;
        }
        let candidate = candidates_by_id.get(&id);
        Some(MovementBlock {
            id,
            data_chunks: code.k(),
            need: (code.k() + extra_reads).min(code.n()),
            rule: PlacementRule::new(&profile, &code, racks.clone()),
            chunk_len: record.chunk_len,
            sites: record.locations.iter().map(|at| SiteId(at.site)).collect(),
            popularity: candidate.map_or(0.0, |candidate| candidate.popularity),
            partners: candidate.map_or_else(Vec::new, |candidate| candidate.partners.clone()),
            requests: candidate.map_or_else(Vec::new, |candidate| candidate.requests.clone()),
        })
    };
    records.iter().filter_map(block).collect()
}

/// Returns the sites with smoothed loads, because a move outlives a queue. A site without a known load counts as one
/// that does not answer.
fn sites(stripes: &Stripes, statistics: &SiteStatistics) -> Vec<MovementSite> {
    let loads: BTreeMap<SiteId, SiteLoadView> =
        statistics.view().into_iter().map(|view| (view.site, view)).collect();
    let costs: BTreeMap<SiteId, SiteCost> = stripes.site_costs().into_iter().collect();
    let site = |view: striate_stripe::SiteView| {
        let site = view.site.id();
        let load = loads.get(&site);
        MovementSite {
            site,
            rack: view.site.rack(),
            cost: load.and_then(|load| Some(SiteCost { asking: 1.0 + load.queue, ..*costs.get(&site)? })),
            load: load.map_or_else(SiteLoad::default, |load| load.load),
            free_bytes: view.site.last_load().free_bytes,
            takes_chunks: view.writable,
        }
    };
    stripes.sites().into_iter().map(site).collect()
}
