//! A query's spans, with their stripes and the pieces that they consist of.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};
use striate_core::{SiteId, StripeId};
use striate_plan::{Policy, QueryPiece, QueryPlan};

use super::cached::ServedFrom;
use super::gathering::{Piece, StripeRead, trim};
use super::span::{MemoryBlock, Span, StoredBytes};
use crate::error::StripeError;
use crate::sites::Sites;
use crate::table::{OpenedStripe, StripeTable};

/// Stripes, pieces and spans of a query.
pub(super) struct LocatedQuery {
    pub(super) stripes: Vec<StripeRead>,
    pub(super) pieces: Vec<Piece>,
    /// Pieces and spans of each stripe.
    members: Vec<Members>,
    /// Parts of each span, in the order of its bytes.
    parts_of: Vec<Parts>,
    is_handed_out: Vec<bool>,
}

/// A part of a span.
struct Part {
    bytes: PartBytes,
    /// Length in bytes.
    len: u32,
}

/// Source of a part's bytes.
enum PartBytes {
    /// The wanted chunks of these pieces, in order, followed by padding.
    Pieces(Positions),
    /// Bytes that arrived from a cached form that lacks others.
    Cached(Bytes),
}

/// Usually one.
type Parts = SmallVec<[Part; 1]>;

/// Pieces and spans that a stripe is read for.
#[derive(Default)]
struct Members {
    pieces: Positions,
    spans: Positions,
    /// True if the stripe provides what cached forms of its spans lack.
    is_fallback: bool,
}

/// Usually one, and rarely more than three.
type Positions = SmallVec<[usize; 3]>;

impl LocatedQuery {
    /// Finds the stripes of all spans. Uses cached forms first, then remembered records whose sites all answer; the
    /// others are looked up together.
    ///
    /// # Errors
    /// When the metadata store fails, or has no stripe for a block.
    pub(super) async fn look_up(
        table: &StripeTable,
        sites: &Sites,
        spans: &[Span],
        cached: &[Option<Arc<OpenedStripe>>],
    ) -> Result<Self, StripeError> {
        let (ids, of_span) = stripes_of(spans, cached)?;
        let sites = sites.snapshot();
        let answers = |stripe: &Arc<OpenedStripe>| {
            let is_there = |index: usize| sites.is_readable(SiteId(stripe.record.locations[index].site));
            (0..stripe.record.locations.len()).all(|index| is_there(index) || !stripe.has_place(index))
        };
        let remembered = |&id: &StripeId| Some(StripeRead::new(table.remembered(id).filter(answers)?, true));
        let mut at_hand: Vec<Option<StripeRead>> = ids.iter().map(remembered).collect();
        // A chunk that was updated in place keeps its old file for the grace period: an older record leads to that
        // file.
        for (span, &stripe) in spans.iter().zip(&of_span) {
            at_hand[stripe].take_if(|read| !span.of.is_in(&read.stripe.record));
        }
        for (form, &stripe) in cached.iter().zip(&of_span) {
            at_hand[stripe] =
                form.clone().map(|form| StripeRead::new(form, false)).or(at_hand[stripe].take());
        }
        let missing = ids.iter().zip(&at_hand).filter(|(_, stripe)| stripe.is_none());
        let unknown: Vec<StripeId> = missing.map(|(&id, _)| id).collect();
        let mut looked_up = table.open_many(&unknown).await?.into_iter();
        let stripe = |at_hand: Option<StripeRead>| {
            at_hand.or_else(|| looked_up.next().map(|stripe| StripeRead::new(stripe, false)))
        };
        Self::new(at_hand.into_iter().filter_map(stripe).collect(), spans, &of_span)
    }

    fn new(stripes: Vec<StripeRead>, spans: &[Span], of_span: &[usize]) -> Result<Self, StripeError> {
        let mut query = Self {
            stripes,
            pieces: Vec::with_capacity(spans.len()),
            members: Vec::new(),
            parts_of: Vec::with_capacity(spans.len()),
            is_handed_out: vec![false; spans.len()],
        };
        query.members.resize_with(query.stripes.len(), Members::default);
        for (number, (span, &stripe)) in spans.iter().zip(of_span).enumerate() {
            let part = query.add_part(number, span, stripe)?;
            query.parts_of.push(smallvec![part]);
            query.members[stripe].spans.push(number);
        }
        Ok(query)
    }

    /// Adds a span, or a part of the span `number`, as pieces of a stripe. Shares pieces that already exist.
    fn add_part(&mut self, number: usize, span: &Span, stripe: usize) -> Result<Part, StripeError> {
        let shapes = span.pieces(&self.stripes[stripe].stripe)?;
        let whole_of = span.is_whole().then_some(number);
        let mut positions = Positions::new();
        for shape in shapes {
            let members = &mut self.members[stripe];
            let existing = members.pieces.iter().find(|&&piece| self.pieces[piece].shape == shape);
            positions.push(existing.copied().unwrap_or_else(|| {
                members.pieces.push(self.pieces.len());
                self.pieces.push(Piece::new(stripe, shape, whole_of));
                self.pieces.len() - 1
            }));
        }
        Ok(Part { bytes: PartBytes::Pieces(positions), len: span.range.len() as u32 })
    }

    /// Returns the stripe that durably holds what a stripe of the query is the cached form of; otherwise its own id.
    pub(super) fn durable_stripe(&self, stripe: usize, spans: &[Span]) -> Result<StripeId, StripeError> {
        let read = &self.stripes[stripe];
        match self.members[stripe].spans.first() {
            Some(&span) if read.stripe.is_cached() => spans[span].of.stripe(),
            _ => Ok(read.stripe.id),
        }
    }

    /// Returns whether a span came from its cached form, from its durable copy, or partly from each.
    pub(super) fn served_from(&self, span: usize, stripe: usize) -> ServedFrom {
        let cached_len = |part: &Part| match &part.bytes {
            PartBytes::Cached(bytes) => Some(bytes.len() as u64),
            PartBytes::Pieces(_) => None,
        };
        if self.stripes[stripe].stripe.is_cached() {
            return ServedFrom::Cache { missing: self.stripes[stripe].missing_data() };
        }
        match self.members[stripe].is_fallback {
            true => ServedFrom::Both { cached: self.parts_of[span].iter().filter_map(cached_len).sum() },
            false => ServedFrom::Store,
        }
    }

    /// Replaces the missing parts of a cached form by pieces of `durable`, which has the durable copy. Returns the
    /// number of pieces added and of open pieces replaced.
    ///
    /// # Errors
    /// [`StripeError::Inconsistent`] if `durable` does not hold them.
    pub(super) fn fall_back(
        &mut self,
        stripe: usize,
        durable: StripeRead,
        spans: &[Span],
    ) -> Result<(usize, usize), StripeError> {
        let (new_stripe, first_piece) = (self.stripes.len(), self.pieces.len());
        self.stripes.push(durable);
        self.members.push(Members { is_fallback: true, ..Members::default() });
        let waiting = self.members[stripe].spans.iter().copied();
        let waiting: Positions = waiting.filter(|&span| !self.is_handed_out[span]).collect();
        for &span in &waiting {
            let mut parts = Parts::new();
            for (range, arrived) in self.stripes[stripe].arrived_parts(&spans[span].range) {
                parts.push(match arrived {
                    Some(bytes) => Part { len: bytes.len() as u32, bytes: PartBytes::Cached(bytes) },
                    None => self.add_part(span, &Span { of: spans[span].of.clone(), range }, new_stripe)?,
                });
            }
            self.parts_of[span] = parts;
        }
        let open: Vec<usize> = self.open_pieces_of(stripe).collect();
        open.iter().for_each(|&piece| self.pieces[piece].is_replaced = true);
        self.members[stripe].spans.retain(|span| !waiting.contains(span));
        self.members[new_stripe].spans = waiting;
        Ok((self.pieces.len() - first_piece, open.len()))
    }

    /// Returns the state of a piece, as the input of a plan for the rest of it.
    pub(super) fn for_plan(&self, piece: usize) -> QueryPiece<'_> {
        let piece = &self.pieces[piece];
        self.stripes[piece.stripe].for_plan(&piece.shape)
    }

    /// Returns the pieces that are neither complete nor given up.
    pub(super) fn open_pieces(&self) -> impl Iterator<Item = usize> {
        (0..self.pieces.len()).filter(|&piece| self.pieces[piece].is_open())
    }

    /// Returns the open pieces of a stripe.
    pub(super) fn open_pieces_of(&self, stripe: usize) -> impl Iterator<Item = usize> {
        self.members[stripe].pieces.iter().copied().filter(|&piece| self.pieces[piece].is_open())
    }

    /// Whether an open piece can use the reply to a request.
    pub(super) fn needs(&self, stripe: usize, position: usize) -> bool {
        let serves = |piece: usize| self.stripes[stripe].serves(position, &self.pieces[piece].shape);
        self.open_pieces_of(stripe).any(serves)
    }

    /// Returns the number of chunks that replace a request: one if a whole block needs it, otherwise k.
    pub(super) fn price_of_hedge(&self, stripe: usize, position: usize) -> usize {
        let k = self.stripes[stripe].stripe.code.k();
        let is_block = |piece: usize| {
            let shape = &self.pieces[piece].shape;
            self.stripes[stripe].serves(position, shape) && shape.wanted.len() == k
        };
        let serves_block = self.open_pieces_of(stripe).any(is_block);
        if serves_block { 1 } else { k }
    }

    /// Returns the spans of a stripe completed since the last call, each with its bytes.
    pub(super) fn take_complete(&mut self, stripe: usize) -> Vec<(usize, Vec<Bytes>)> {
        let mut complete = Vec::new();
        for &span in &self.members[stripe].spans {
            let parts = &self.parts_of[span];
            if self.is_handed_out[span] || !parts.iter().all(|part| self.is_complete(part)) {
                continue;
            }
            self.is_handed_out[span] = true;
            let bytes = match &parts[..] {
                [part] => self.bytes_of(part),
                parts => parts.iter().flat_map(|part| self.bytes_of(part)).collect(),
            };
            complete.push((span, bytes));
        }
        complete
    }

    fn is_complete(&self, part: &Part) -> bool {
        match &part.bytes {
            PartBytes::Cached(_) => true,
            PartBytes::Pieces(pieces) => pieces.iter().all(|&piece| self.pieces[piece].chunks.is_some()),
        }
    }

    fn bytes_of(&self, part: &Part) -> Vec<Bytes> {
        match &part.bytes {
            PartBytes::Cached(bytes) => vec![bytes.clone()],
            PartBytes::Pieces(pieces) => {
                let chunks = pieces.iter().filter_map(|&piece| self.pieces[piece].chunks.as_ref()).flatten();
                trim(chunks.cloned().collect(), part.len)
            }
        }
    }

    /// Returns the error of the first unavailable span.
    pub(super) fn first_error(&self) -> Option<StripeError> {
        let pieces = |part: &Part| match &part.bytes {
            PartBytes::Pieces(pieces) => pieces.clone(),
            PartBytes::Cached(_) => Positions::new(),
        };
        let pieces = self.parts_of.iter().flatten().flat_map(pieces);
        pieces.into_iter().find_map(|piece| self.pieces[piece].error.clone())
    }

    /// Returns the bytes to reserve for all pieces. A part whose chunks are not all available also needs the same
    /// columns of k others.
    pub(super) fn bytes_in_memory(
        &self,
        policy: &dyn Policy,
        can_be_asked: impl Fn(SiteId) -> bool,
    ) -> usize {
        let of_piece =
            |piece: &Piece| self.chunks_counted(piece, policy, &can_be_asked) * piece.shape.columns.len();
        self.pieces.iter().map(of_piece).sum()
    }

    /// Returns the bytes that a plan of these pieces requests beyond the reserved ones, because it reads around
    /// available chunks.
    pub(super) fn bytes_beyond(
        &self,
        plan: &QueryPlan,
        piece_numbers: &[usize],
        policy: &dyn Policy,
        can_be_asked: impl Fn(SiteId) -> bool,
    ) -> usize {
        let mut requested: SmallVec<[usize; 3]> = SmallVec::from_elem(0, piece_numbers.len());
        plan.reads.iter().flat_map(|read| &read.chunks).for_each(|chunk| requested[chunk.piece] += 1);
        let beyond = |(&number, &requested): (&usize, &usize)| {
            let piece = &self.pieces[number];
            if requested <= piece.shape.wanted.len() {
                return 0;
            }
            let counted = self.chunks_counted(piece, policy, &can_be_asked);
            requested.saturating_sub(counted) * piece.shape.columns.len()
        };
        piece_numbers.iter().zip(&requested).map(beyond).sum()
    }

    /// Returns the number of chunks of a piece that are reserved for.
    fn chunks_counted(
        &self,
        piece: &Piece,
        policy: &dyn Policy,
        can_be_asked: &impl Fn(SiteId) -> bool,
    ) -> usize {
        let stripe = &self.stripes[piece.stripe];
        let (code, wanted) = (&stripe.stripe.code, &piece.shape.wanted);
        let are_available = wanted.iter().all(|index| stripe.has(index, can_be_asked));
        let chunks = match are_available {
            _ if wanted.len() == code.k() => code.k() + policy.most_extra_reads(),
            true => wanted.len(),
            false => code.k() + wanted.len(),
        };
        chunks.min(code.n())
    }
}

/// Returns the error of a block whose row names its splits, while no memory site can be asked: it is not known to be
/// gone.
fn out_of_reach(stored: &StoredBytes) -> Option<StripeError> {
    let StoredBytes::Memory(MemoryBlock { content, placed: Some(placed), .. }) = stored else { return None };
    let (stripe, needed) = (StripeId(*content), placed.splits);
    let reason = "no memory site answers".to_owned();
    Some(StripeError::Unreadable { stripe, needed, available: 0, reason })
}

/// Returns the distinct stripes of the spans, cached forms where they exist, and for each span the position of its
/// stripe.
fn stripes_of(
    spans: &[Span],
    cached: &[Option<Arc<OpenedStripe>>],
) -> Result<(Vec<StripeId>, Vec<usize>), StripeError> {
    let id_of = |number: usize| match cached.get(number) {
        Some(Some(cached)) => Ok(cached.id),
        _ => spans[number].of.stripe().map_err(|error| out_of_reach(&spans[number].of).unwrap_or(error)),
    };
    if spans.len() == 1 {
        return Ok((vec![id_of(0)?], vec![0]));
    }
    let mut positions = HashMap::with_capacity(spans.len());
    let (mut ids, mut of_span) = (Vec::with_capacity(spans.len()), Vec::with_capacity(spans.len()));
    for number in 0..spans.len() {
        let id = id_of(number)?;
        of_span.push(*positions.entry(id).or_insert_with(|| {
            ids.push(id);
            ids.len() - 1
        }));
    }
    Ok((ids, of_span))
}
