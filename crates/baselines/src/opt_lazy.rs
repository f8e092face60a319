//! Opt Lazy (Hu et al., SoCC'17, §2.3, §3.1). Every four seconds it probes the queues of all sites and solves for a
//! table: the proportions in which the requests for each partition are read normally and degraded. The requests of the
//! last four seconds are the demands ([`DirectionProblem::least_squares`]). Each request draws an option by these
//! proportions.
//!
//! A partition is a data chunk. Its one degraded read is drawn when the table is made (a random one of a Reed–Solomon
//! code, or an LRC's local group), or all degraded reads take part. A partition without requests has no demand, so any
//! proportions solve the problem: its next request is directed by the least marginal load, at the loads that the table
//! expects. As published, all sites are assumed equally fast, and D_i is the bytes of one second. Only this process's
//! own requests are counted: if several processes direct, each table knows its share of the demand and all of the
//! queues.
//!
//! Probes: as many as there are sites, every four seconds.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use rand::RngCore;
use striate_codec::{ChunkSet, Code, CodecError};
use striate_core::{SiteId, StripeId};
use striate_plan::read::options::{degraded_options, one_degraded_option};
use striate_plan::solver::load_direction::draw;
use striate_plan::{
    ChosenChunk, ChunkChoice, DirectionProblem, OptionMetric, Policy, Probe, QueryPiece, QueryPlan,
    ReadPlanner, ReadPurpose, ReadQuery, WantedChunk, plan_normally,
};

use crate::directing::{Queues, plan_pieces, wanted_chunk, wants_one_chunk};

/// T: interval between tables (§4).
const PROBE_EVERY: Duration = Duration::from_secs(4);
/// Time that MOSEK took to solve (§3.1).
const SOLVE_TIME: Duration = Duration::from_millis(100);
/// Maximum number of partitions whose requests are counted between two tables; others count as not requested.
const MOST_PARTITIONS: usize = 1 << 16;

/// Reads by a load direction table.
#[derive(Clone, Copy, Debug, Default)]
pub struct OptLazy {
    /// The degraded reads that take part.
    pub degraded: DegradedReads,
}

/// Which degraded reads of a partition take part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DegradedReads {
    /// One, as published.
    #[default]
    One,
    /// All.
    All,
}

/// A data chunk by its stripe and index.
type Partition = (StripeId, usize);

/// Demand for a partition since the last table.
#[derive(Debug)]
struct PartitionDemand {
    code: Code,
    sites: Vec<SiteId>,
    bytes: f64,
}

/// Proportions of a partition's options in the table.
#[derive(Debug)]
struct OptionShares {
    options: Vec<ChunkSet>,
    shares: Vec<f64>,
}

#[derive(Debug, Default)]
struct OptPlanner {
    degraded: DegradedReads,
    demands: BTreeMap<Partition, PartitionDemand>,
    table: HashMap<Partition, OptionShares>,
    /// L_j + Q_j as the table expects them; empty before the first table.
    totals: BTreeMap<SiteId, f64>,
}

impl Policy for OptLazy {
    fn planner(&self) -> Box<dyn ReadPlanner> {
        Box::new(OptPlanner { degraded: self.degraded, ..OptPlanner::default() })
    }

    fn probe_every(&self) -> Option<Duration> {
        Some(PROBE_EVERY)
    }

    fn solve_time(&self) -> Duration {
        SOLVE_TIME
    }

    fn why(&self, chunk: ChosenChunk) -> ChunkChoice {
        if chunk.is_wanted { ChunkChoice::Systematic } else { ChunkChoice::Drawn }
    }
}

impl fmt::Display for OptLazy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.degraded {
            DegradedReads::One => "opt-lazy",
            DegradedReads::All => "opt-lazy(all)",
        })
    }
}

impl ReadPlanner for OptPlanner {
    fn plan(&mut self, query: &ReadQuery<'_>, rng: &mut dyn RngCore) -> Result<QueryPlan, CodecError> {
        if query.purpose == ReadPurpose::Rest {
            return plan_normally(query);
        }
        query.pieces.iter().filter(|piece| wants_one_chunk(piece)).for_each(|piece| self.count(piece));
        plan_pieces(query, &|site| self.totals.get(&site).copied(), |piece, queues| {
            self.direct(piece, query, queues, rng)
        })
    }

    fn take_probe(&mut self, probe: &Probe, rng: &mut dyn RngCore) {
        let demands = std::mem::take(&mut self.demands);
        let mut problem = DirectionProblem::new(probe.sites.iter().map(|site| (site.bytes, 1.0)));
        let node = |site: SiteId| probe.sites.binary_search_by_key(&site, |probed| probed.site).ok();
        let mut partitions: Vec<(Partition, Vec<ChunkSet>)> = Vec::with_capacity(demands.len());
        let seconds = probe.since_last.as_secs_f64();
        for (partition, demand) in demands.into_iter().filter(|_| seconds > 0.0) {
            let available: ChunkSet =
                (0..demand.code.n()).filter(|&index| node(demand.sites[index]).is_some()).collect();
            let options = self.options(&demand.code, partition.1, &available, rng);
            if options.is_empty() {
                continue;
            }
            let nodes: Vec<Vec<usize>> = options
                .iter()
                .map(|option| option.iter().filter_map(|index| node(demand.sites[index])).collect())
                .collect();
            problem.push_partition(demand.bytes / seconds, nodes.iter().map(Vec::as_slice));
            partitions.push((partition, options));
        }
        let direction = problem.least_squares();
        let directed = partitions.into_iter().enumerate().map(|(number, (partition, options))| {
            (partition, OptionShares { options, shares: direction.shares(number).to_vec() })
        });
        self.table = directed.collect();
        self.totals = probe.sites.iter().map(|probed| probed.site).zip(direction.totals).collect();
    }
}

impl OptPlanner {
    /// Adds a request to its partition's demand.
    fn count(&mut self, piece: &QueryPiece<'_>) {
        let partition = (piece.stripe, wanted_chunk(piece));
        if self.demands.len() >= MOST_PARTITIONS && !self.demands.contains_key(&partition) {
            return;
        }
        let demand = self.demands.entry(partition).or_insert_with(|| PartitionDemand {
            code: piece.code.clone(),
            sites: piece.sites.to_vec(),
            bytes: 0.0,
        });
        demand.bytes += f64::from(piece.len);
    }

    /// The available options of a partition, the normal read first.
    fn options(
        &self,
        code: &Code,
        index: usize,
        available: &ChunkSet,
        rng: &mut dyn RngCore,
    ) -> Vec<ChunkSet> {
        let mut options = Vec::new();
        if available.contains(index) {
            options.push(std::iter::once(index).collect());
        }
        match self.degraded {
            DegradedReads::One => options.extend(one_degraded_option(code, index, available, rng)),
            DegradedReads::All => options.extend(degraded_options(code, index, available)),
        }
        options
    }

    /// The option of a request: by the table if it has the partition and the drawn option is available.
    fn direct(
        &self,
        piece: &QueryPiece<'_>,
        query: &ReadQuery<'_>,
        queues: &Queues<'_>,
        rng: &mut dyn RngCore,
    ) -> Result<ChunkSet, CodecError> {
        let index = wanted_chunk(piece);
        if let Some(direction) = self.table.get(&(piece.stripe, index)) {
            let available: ChunkSet = piece.available(query.can_be_asked).collect();
            let option = direction.options[draw(&direction.shares, rng)];
            if option.difference(&available).is_empty() {
                return Ok(option);
            }
        }
        let mut nodes = queues.nodes(piece, query);
        if self.degraded == DegradedReads::One {
            let reported: ChunkSet = (0..nodes.len()).filter(|&chunk| nodes[chunk].is_some()).collect();
            let degraded = one_degraded_option(piece.code, index, &reported, rng).unwrap_or_default();
            let is_option = |chunk: usize| chunk == index || degraded.contains(chunk);
            nodes
                .iter_mut()
                .enumerate()
                .filter(|(chunk, _)| !is_option(*chunk))
                .for_each(|(_, node)| *node = None);
        }
        let wanted = WantedChunk { code: piece.code, index, bytes: f64::from(piece.len), nodes: &nodes };
        wanted.least_option(OptionMetric::MarginalLoad)
    }
}
