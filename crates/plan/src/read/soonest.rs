//! The chunks of which the last comes soonest, at little added load: [`crate::makespan`] for the pieces of a query.
//!
//! A piece that wants one chunk is read from that chunk or a copy of it, from the rest of its local group, or from any k others;
//! one that wants a whole block from any k chunks; any other from its own chunks or any k. Times are in units of what asking
//! an idle site takes, so that c is 1, and the queue of a site is the requests that wait there for each worker and the bytes before
//! a new request, at m_j each.
//!
//! The only piece of a query counts in X for how long it stays at each of its sites, waiting included: for so long it is in
//! the way of what comes next. Least latency first is T alone, and of the sets that end together takes any: the local group of
//! an LRC, say, although its sites are as loaded as the chunk's own. In queries of several pieces the waiting changes nothing
//! that a smaller w would not.
//!
//! What was asked for before is no longer a choice: such pieces are read as the normal read would, and their chunks count
//! as load.

use rand::{Rng, RngCore};
use striate_codec::{ChunkSet, CodecError};
use striate_core::SiteId;

use super::code_options::{CodeOptions, KnownCodes};
use super::normal::{fetched_normally, plan_normally};
use super::piece::{PlanCost, QueryChunk, QueryPiece, QueryPlan};
use super::policy::ReadQuery;
use crate::cost::{SiteCost, SiteQueue};
use crate::makespan::{self, MakespanProblem, MakespanSlot, MakespanWorkspace, UNGROUPED};

/// Asking an idle site.
const REQUEST: f64 = 1.0;
/// Queues are drawn within so much of themselves and of a request: clients that see the same loads shall not all choose the same of
/// sites that are equal.
const DRAWN: f64 = 0.001;

/// Finds the soonest chunks of queries.
#[derive(Debug, Default)]
pub(super) struct SoonestChunks {
    problem: MakespanProblem,
    workspace: MakespanWorkspace,
    codes: KnownCodes,
    /// The problem's sites, ascending, with their costs.
    sites: Vec<(SiteId, SiteCost)>,
    /// Of each of them: what waiting there counts in X.
    waits: Vec<f64>,
    /// The chunk of each of the problem's slots.
    chunks: Vec<usize>,
}

/// Whether a piece wants one chunk, which others determine, and nothing of it was asked for.
pub(super) fn wants_one_chunk(piece: &QueryPiece<'_>) -> bool {
    piece.wanted.len() == 1 && piece.code.k() > 1 && piece.asked.is_empty()
}

/// Whether a piece that wants one chunk may better be read from others: what waiting for its site is worth is more than what any
/// other option adds to the load.
pub(super) fn may_read_around(piece: &QueryPiece<'_>, query: &ReadQuery<'_>, weight: f64) -> bool {
    let site = piece.wanted.iter().next().map_or(SiteId(0), |index| piece.sites[index]);
    let Some(queue) = (query.queue)(site).filter(|_| site.0 != 0) else { return true };
    if queue == SiteQueue::default() {
        return false;
    }
    (query.cost)(site).is_none_or(|cost| {
        let added = if piece.copies.is_empty() { REQUEST + cost.transfer(piece.len) } else { 0.0 };
        (1.0 + weight) * time_of(queue, cost) > weight * added
    })
}

/// How long a request waits that comes now.
fn time_of(queue: SiteQueue, cost: SiteCost) -> f64 {
    queue.waiting * REQUEST + queue.bytes * cost.per_byte
}

impl SoonestChunks {
    /// The plan that minimises T + w X, `weight` being w.
    ///
    /// # Errors
    /// [`CodecError::Insufficient`] when the chunks of a piece that can be had do not determine it.
    pub(super) fn plan(
        &mut self,
        query: &ReadQuery<'_>,
        weight: f64,
        rng: &mut dyn RngCore,
    ) -> Result<QueryPlan, CodecError> {
        self.set_up(query, weight, rng);
        for piece in query.pieces {
            self.problem.push_piece();
            if !self.push_options(piece, query) {
                self.push_normal(piece, query)?;
            }
        }
        let Self { problem, workspace, chunks, .. } = self;
        // A site may have stopped answering since it was looked at.
        let Ok(plan) = makespan::solve(problem, workspace) else { return plan_normally(query) };
        debug_assert_eq!(makespan::check_makespan(problem, &plan), Ok(()));
        let mut chosen = Vec::with_capacity(plan.picks.len());
        for (piece, of) in query.pieces.iter().enumerate() {
            let indices = plan.picks_of(piece).iter().map(|&pick| chunks[pick as usize]);
            let chunk = |index: usize| (of.site_of(index), QueryChunk { piece, index });
            if is_enough(of, indices.clone()) {
                chosen.extend(indices.map(chunk));
            } else {
                chosen.extend(fetched_normally(of, query)?.iter().map(chunk));
            }
        }
        let cost = Some(PlanCost { cost: plan.cost, lower_bound: plan.lower_bound });
        Ok(QueryPlan { cost, ..QueryPlan::of_chunks(chosen) })
    }

    /// The sites of the query's chunks and their queues, and no pieces yet.
    fn set_up(&mut self, query: &ReadQuery<'_>, weight: f64, rng: &mut dyn RngCore) {
        self.sites.clear();
        self.chunks.clear();
        let mut sites: Vec<SiteId> = query.pieces.iter().flat_map(QueryPiece::all_sites).collect();
        sites.sort_unstable();
        sites.dedup();
        let cost = |site: SiteId| Some((site, (query.cost)(site)?));
        self.sites.extend(sites.into_iter().filter(|&site| (query.can_be_asked)(site)).filter_map(cost));
        let queue = |&(site, cost): &(SiteId, SiteCost)| {
            let time = (query.queue)(site).map_or(cost.asking - REQUEST, |queue| time_of(queue, cost));
            time.max(0.0) + (time.max(0.0) + REQUEST) * rng.random_range(0.0..DRAWN)
        };
        self.problem.reset(weight, REQUEST, self.sites.iter().map(queue));
        self.waits.clear();
        let counts = if query.pieces.len() == 1 { 1.0 } else { 0.0 };
        self.waits.extend(self.problem.queues().iter().map(|waiting| counts * waiting));
    }

    /// Adds the options of a piece. Answers whether there are any.
    fn push_options(&mut self, piece: &QueryPiece<'_>, query: &ReadQuery<'_>) -> bool {
        if !piece.asked.is_empty() {
            return false;
        }
        let code = self.codes.of(piece.code);
        let mut slots = Slots {
            problem: &mut self.problem,
            chunks: &mut self.chunks,
            sites: &self.sites,
            waits: &self.waits,
            piece,
            code,
        };
        let available: ChunkSet = piece.available(query.can_be_asked).collect();
        let k = piece.code.k();
        if piece.takes_any() {
            return slots.push(k, &available, 0, Decoding::OfParities);
        }
        let others = available.difference(&piece.wanted);
        let mut is_any = false;
        match piece.wanted.iter().next() {
            Some(index) if piece.wanted.len() == 1 => {
                let own = piece.wanted.intersection(&available);
                is_any |= slots.push(1, &own, piece.copies.len(), Decoding::None);
                if let Some(local) = code.local(index).filter(|local| local.difference(&available).is_empty())
                {
                    is_any |= slots.push(local.len(), local, 0, Decoding::OfInputs);
                }
                is_any |= slots.push(k, &others, 0, Decoding::OfInputs);
            }
            _ => {
                is_any |=
                    slots.push(piece.wanted.len(), &piece.wanted.intersection(&available), 0, Decoding::None);
                is_any |= slots.push(k, &available, 0, Decoding::OfInputs);
            }
        }
        is_any
    }

    /// The chunks of the normal read as the only option.
    fn push_normal(&mut self, piece: &QueryPiece<'_>, query: &ReadQuery<'_>) -> Result<(), CodecError> {
        let fetched = fetched_normally(piece, query)?;
        let code = self.codes.of(piece.code);
        let mut slots = Slots {
            problem: &mut self.problem,
            chunks: &mut self.chunks,
            sites: &self.sites,
            waits: &self.waits,
            piece,
            code,
        };
        slots.push(fetched.len(), &fetched, 0, Decoding::None);
        Ok(())
    }
}

/// Whether these chunks are what a piece still needs. Copies are as good as the chunk.
fn is_enough(piece: &QueryPiece<'_>, indices: impl Iterator<Item = usize>) -> bool {
    let mut had = piece.awaited;
    for index in indices {
        if index >= piece.code.n() {
            return true;
        }
        had.insert(index);
    }
    piece.code.determines(&had, &piece.wanted)
}

/// What is computed of an option's chunks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Decoding {
    /// Nothing: they are what is wanted.
    None,
    /// A data chunk from k others, for each parity.
    OfParities,
    /// What is wanted, from all of them.
    OfInputs,
}

/// Where a piece's options go.
struct Slots<'a> {
    problem: &'a mut MakespanProblem,
    chunks: &'a mut Vec<usize>,
    sites: &'a [(SiteId, SiteCost)],
    waits: &'a [f64],
    piece: &'a QueryPiece<'a>,
    code: &'a CodeOptions,
}

impl Slots<'_> {
    /// Adds an option of these chunks and the piece's first `copies`, of which any `need` do within the code's caps. Answers whether
    /// it is one.
    fn push(&mut self, need: usize, indices: &ChunkSet, copies: usize, decoding: Decoding) -> bool {
        let Self { problem, chunks, sites, waits, piece, code } = self;
        let n = piece.code.n();
        let known = chunks.len();
        let slots = indices.iter().chain(n..n + copies).filter_map(|index| {
            let place = sites.binary_search_by_key(&piece.site_of(index), |(site, _)| *site).ok()?;
            let cost = sites[place].1;
            chunks.push(index);
            let inputs = match decoding {
                Decoding::None => 0,
                Decoding::OfParities => {
                    if index < piece.code.k() {
                        0
                    } else {
                        piece.code.k()
                    }
                }
                Decoding::OfInputs => 1,
            };
            Some(MakespanSlot {
                site: place,
                transfer: cost.transfer(piece.len),
                decoding: waits[place] + cost.decode_per_byte * f64::from(piece.len) * inputs as f64,
                group: if need == 1 || decoding == Decoding::None { UNGROUPED } else { code.group(index) },
            })
        });
        let is_option = problem.push_option(need, code.cap, slots);
        if !is_option {
            chunks.truncate(known);
        }
        is_option
    }
}

#[cfg(test)]
mod tests;
