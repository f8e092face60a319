//! Converts the pieces of a query to the solvers' input, and the solvers' choice to a plan.
//!
//! A piece that wants one chunk is read from that chunk or a copy, from the rest of its local group, or from any k
//! others. A whole block is read from any k chunks. Any other piece is read from its own chunks or any k. A piece with
//! earlier requests has no choice left: it is read as the normal read would.

use striate_codec::{ChunkSet, CodecError};
use striate_core::SiteId;

use super::code_options::{CodeOptions, KnownCodes};
use super::normal::fetched_normally;
use super::piece::{QueryChunk, QueryPiece, QueryPlan};
use super::policy::ReadQuery;
use crate::cost::SiteCost;
use crate::solver::piece_options::{PieceOptions, Slot, UNGROUPED};

/// Returns whether a piece wants one chunk that others determine, with no requests so far.
pub(super) fn wants_one_chunk(piece: &QueryPiece<'_>) -> bool {
    piece.wanted.len() == 1 && piece.code.k() > 1 && piece.requested.is_empty()
}

/// Converts the pieces of queries to options, and choices among them to plans.
#[derive(Debug, Default)]
pub(super) struct QueryOptions {
    codes: KnownCodes,
    /// The sites that have chunks of the query and can be asked, ascending, with their costs.
    pub(super) sites: Vec<(SiteId, SiteCost)>,
    /// Cost that waiting at each site adds to a slot beside its transfer; 0 if this is empty.
    pub(super) waiting: Vec<f64>,
    /// The chunk of each slot.
    chunks: Vec<usize>,
}

impl QueryOptions {
    /// Drops all pieces, and takes the sites of these.
    pub(super) fn reset(&mut self, pieces: &[QueryPiece<'_>], cost: impl Fn(SiteId) -> Option<SiteCost>) {
        self.chunks.clear();
        self.waiting.clear();
        let mut sites: Vec<SiteId> = pieces.iter().flat_map(QueryPiece::all_sites).collect();
        sites.sort_unstable();
        sites.dedup();
        self.sites.clear();
        self.sites.extend(sites.into_iter().filter_map(|site| Some((site, cost(site)?))));
    }

    /// Adds the pieces of a query with their options; whole blocks with up to `extra_reads` (δ) chunks more.
    ///
    /// # Errors
    /// [`CodecError::Insufficient`] if the available chunks of a piece do not determine it.
    pub(super) fn push_all(
        &mut self,
        query: &ReadQuery<'_>,
        extra_reads: usize,
        options: &mut PieceOptions,
    ) -> Result<(), CodecError> {
        for piece in query.pieces {
            options.push_piece();
            let most = piece.code.k() + extra_reads;
            let is_any = piece.requested.is_empty()
                && (piece.code.k()..=most).rev().any(|need| self.push_options(piece, need, options));
            if !is_any {
                self.push_only(piece, &fetched_normally(piece, query)?, options);
            }
        }
        Ok(())
    }

    /// Adds the options of a piece with no requests so far; `need` chunks if it is a whole block. Returns whether there
    /// are any.
    pub(super) fn push_options(
        &mut self,
        piece: &QueryPiece<'_>,
        need: usize,
        options: &mut PieceOptions,
    ) -> bool {
        let is_known = |site: SiteId| self.sites.binary_search_by_key(&site, |(site, _)| *site).is_ok();
        let available: ChunkSet = piece.available(&is_known).collect();
        let (k, available_wanted) = (piece.code.k(), piece.wanted.intersection(&available));
        let code = self.codes.of(piece.code);
        let (sites, waiting) = (&self.sites, &self.waiting);
        let mut slots = Slots { options, chunks: &mut self.chunks, sites, waiting, piece, code };
        if piece.takes_any() {
            return slots.push(need, &available, 0, Decoding::OfParities);
        }
        match piece.wanted.iter().next() {
            Some(index) if piece.wanted.len() == 1 => {
                let mut is_any = slots.push(1, &available_wanted, piece.copies.len(), Decoding::None);
                if let Some(local) = code.local(index).filter(|local| local.difference(&available).is_empty())
                {
                    is_any |= slots.push(local.len(), local, 0, Decoding::OfInputs);
                }
                is_any | slots.push(k, &available.difference(&piece.wanted), 0, Decoding::OfInputs)
            }
            _ => {
                let is_any = slots.push(piece.wanted.len(), &available_wanted, 0, Decoding::None);
                is_any | slots.push(k, &available, 0, Decoding::OfInputs)
            }
        }
    }

    /// Adds these chunks as the only option of a piece.
    pub(super) fn push_only(
        &mut self,
        piece: &QueryPiece<'_>,
        chunks: &ChunkSet,
        options: &mut PieceOptions,
    ) {
        let code = self.codes.of(piece.code);
        let (sites, waiting) = (&self.sites, &self.waiting);
        let mut slots = Slots { options, chunks: &mut self.chunks, sites, waiting, piece, code };
        slots.push(chunks.len(), chunks, 0, Decoding::None);
    }

    /// Returns the plan that reads these slots of each piece. A piece for which they are not enough, by the code's own
    /// judgement, is read normally.
    ///
    /// # Errors
    /// [`CodecError::Insufficient`] if the available chunks of a piece do not determine it.
    pub(super) fn plan<'p>(
        &self,
        query: &ReadQuery<'_>,
        picks_of: impl Fn(usize) -> &'p [u32],
    ) -> Result<QueryPlan, CodecError> {
        let (mut chosen, mut extra_chunks) = (Vec::new(), 0);
        for (number, piece) in query.pieces.iter().enumerate() {
            let indices = picks_of(number).iter().map(|&pick| self.chunks[pick as usize]);
            let chunk = |index: usize| (piece.site_of(index), QueryChunk { piece: number, index });
            if !is_enough(piece, indices.clone()) {
                chosen.extend(fetched_normally(piece, query)?.iter().map(chunk));
                continue;
            }
            if piece.takes_any() && piece.requested.is_empty() {
                extra_chunks += indices.len() - piece.code.k();
            }
            chosen.extend(indices.map(chunk));
        }
        Ok(QueryPlan { extra_chunks, ..QueryPlan::of_chunks(chosen) })
    }
}

/// Returns the cost of a plan's chunks of a piece, beyond asking their sites.
pub(super) fn cost_of_chunks(
    piece: &QueryPiece<'_>,
    chunks: &[usize],
    cost: impl Fn(SiteId) -> Option<SiteCost>,
) -> f64 {
    let obtained: ChunkSet = chunks.iter().copied().chain(piece.awaited.iter()).collect();
    let has_wanted =
        piece.wanted.difference(&obtained).is_empty() || chunks.iter().any(|&index| index >= piece.code.n());
    let decoding = match (piece.takes_any(), has_wanted) {
        (true, _) => Decoding::OfParities,
        (false, true) => Decoding::None,
        (false, false) => Decoding::OfInputs,
    };
    let of_chunk = |&index: &usize| {
        cost(piece.site_of(index))
            .map_or(0.0, |cost| cost.transfer(piece.len) + decoding.cost(piece, index, cost))
    };
    chunks.iter().map(of_chunk).sum()
}

/// Returns whether these chunks complete a piece. A copy is equivalent to the chunk.
fn is_enough(piece: &QueryPiece<'_>, indices: impl Iterator<Item = usize>) -> bool {
    let mut obtained = piece.awaited;
    for index in indices {
        if index >= piece.code.n() {
            return true;
        }
        obtained.insert(index);
    }
    piece.code.determines(&obtained, &piece.wanted)
}

/// What is decoded from an option's chunks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Decoding {
    /// Nothing: they are the wanted chunks.
    None,
    /// One data chunk from k others, for each parity.
    OfParities,
    /// The wanted chunks, from all of the option's chunks.
    OfInputs,
}

impl Decoding {
    /// Returns a chunk's part of the cost.
    fn cost(self, piece: &QueryPiece<'_>, index: usize, site_cost: SiteCost) -> f64 {
        match self {
            Self::None => 0.0,
            Self::OfParities => piece.decoding_cost(index, site_cost),
            Self::OfInputs => site_cost.decode_per_byte * f64::from(piece.len),
        }
    }
}

/// Destination of a piece's options.
struct Slots<'a> {
    options: &'a mut PieceOptions,
    chunks: &'a mut Vec<usize>,
    sites: &'a [(SiteId, SiteCost)],
    waiting: &'a [f64],
    piece: &'a QueryPiece<'a>,
    code: &'a CodeOptions,
}

impl Slots<'_> {
    /// Adds an option of these chunks and the piece's first `copies`, of which any `need` suffice within the code's
    /// caps. Returns whether it is one.
    fn push(&mut self, need: usize, indices: &ChunkSet, copies: usize, decoding: Decoding) -> bool {
        let Self { options, chunks, sites, waiting, piece, code } = self;
        let n = piece.code.n();
        // Caps say which sets of k chunks suffice. Of larger sets nearly all do, and the final plan is checked.
        let is_capped = need == piece.code.k() && decoding != Decoding::None;
        let len_before = chunks.len();
        let slots = indices.iter().chain(n..n + copies).filter_map(|index| {
            let place = sites.binary_search_by_key(&piece.site_of(index), |(site, _)| *site).ok()?;
            let cost = sites[place].1;
            chunks.push(index);
            Some(Slot {
                site: place,
                transfer: cost.transfer(piece.len),
                extra: decoding.cost(piece, index, cost) + waiting.get(place).copied().unwrap_or(0.0),
                group: if is_capped { code.group(index) } else { UNGROUPED },
            })
        });
        let is_option = options.push_option(need, code.cap, slots);
        if !is_option {
            chunks.truncate(len_before);
        }
        is_option
    }
}
