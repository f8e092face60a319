//! A query's spans, with their stripes and the pieces that they are made of.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use striate_core::{SiteId, StripeId};
use striate_plan::{Policy, QueryPiece, QueryPlan};

use super::gathering::{Piece, StripeRead, trim};
use super::span::Span;
use crate::error::StripeError;
use crate::sites::Sites;
use crate::table::{OpenedStripe, StripeTable};

/// What a query reads.
pub(super) struct Located {
    pub(super) stripes: Vec<StripeRead>,
    pub(super) pieces: Vec<Piece>,
    /// Of each stripe.
    members: Vec<Members>,
    /// Of each span, in order.
    pieces_of: Vec<Positions>,
    is_handed_out: Vec<bool>,
}

/// What a stripe is read for.
#[derive(Default)]
struct Members {
    pieces: Positions,
    spans: Positions,
}

/// Mostly one, and rarely more than three.
type Positions = SmallVec<[usize; 3]>;

impl Located {
    /// The stripes of all spans: those that are known and whose sites all answer as they are known, the others looked up
    /// together.
    ///
    /// # Errors
    /// When the metadata store fails, or has no stripe for a block.
    pub(super) async fn look_up(
        table: &StripeTable,
        sites: &Sites,
        spans: &[Span],
    ) -> Result<Self, StripeError> {
        let (ids, of_span) = stripes_of(spans)?;
        let sites = sites.snapshot();
        let answers = |stripe: &Arc<OpenedStripe>| {
            stripe.record.locations.iter().all(|location| sites.is_readable(SiteId(location.site)))
        };
        let known: Vec<_> = ids.iter().map(|&id| table.known(id).filter(answers)).collect();
        let unknown: Vec<StripeId> =
            ids.iter().zip(&known).filter(|(_, known)| known.is_none()).map(|(&id, _)| id).collect();
        let mut looked_up = table.open_many(&unknown).await?.into_iter();
        let stripe = |known: Option<Arc<OpenedStripe>>| match known {
            Some(stripe) => Some(StripeRead::new(stripe, true)),
            None => looked_up.next().map(|stripe| StripeRead::new(stripe, false)),
        };
        Self::new(known.into_iter().filter_map(stripe).collect(), spans, &of_span)
    }

    fn new(stripes: Vec<StripeRead>, spans: &[Span], of_span: &[usize]) -> Result<Self, StripeError> {
        let mut this = Self {
            stripes,
            pieces: Vec::with_capacity(spans.len()),
            members: Vec::new(),
            pieces_of: Vec::with_capacity(spans.len()),
            is_handed_out: vec![false; spans.len()],
        };
        this.members.resize_with(this.stripes.len(), Members::default);
        for (number, (span, &stripe)) in spans.iter().zip(of_span).enumerate() {
            let pieces = this.add_pieces(number, span, stripe)?;
            this.pieces_of.push(pieces);
            this.members[stripe].spans.push(number);
        }
        Ok(this)
    }

    /// The pieces of a span. One that another span has already serves both.
    fn add_pieces(&mut self, number: usize, span: &Span, stripe: usize) -> Result<Positions, StripeError> {
        let shapes = span.pieces(&self.stripes[stripe].stripe)?;
        let whole_of = span.is_whole().then_some(number);
        let mut positions = Positions::new();
        for shape in shapes {
            let members = &mut self.members[stripe];
            let known = members.pieces.iter().find(|&&piece| self.pieces[piece].shape == shape);
            positions.push(known.copied().unwrap_or_else(|| {
                members.pieces.push(self.pieces.len());
                self.pieces.push(Piece::new(stripe, shape, whole_of));
                self.pieces.len() - 1
            }));
        }
        Ok(positions)
    }

    /// What a plan for the rest of a piece starts from.
    pub(super) fn for_plan(&self, piece: usize) -> QueryPiece<'_> {
        let piece = &self.pieces[piece];
        self.stripes[piece.stripe].for_plan(&piece.shape)
    }

    /// Pieces that are neither complete nor given up.
    pub(super) fn open_pieces(&self) -> impl Iterator<Item = usize> {
        (0..self.pieces.len()).filter(|&piece| self.pieces[piece].is_open())
    }

    /// The open pieces of a stripe.
    pub(super) fn open_pieces_of(&self, stripe: usize) -> impl Iterator<Item = usize> {
        self.members[stripe].pieces.iter().copied().filter(|&piece| self.pieces[piece].is_open())
    }

    /// Whether an open piece can use the answer to a request.
    pub(super) fn needs(&self, stripe: usize, position: usize) -> bool {
        let serves = |piece: usize| self.stripes[stripe].serves(position, &self.pieces[piece].shape);
        self.open_pieces_of(stripe).any(serves)
    }

    /// Chunks that are asked for in the place of the answer to a request: as many as chunks determine a part of another.
    pub(super) fn price_of_hedge(&self, stripe: usize, position: usize) -> usize {
        let k = self.stripes[stripe].stripe.code.k();
        let is_block = |piece: usize| {
            let shape = &self.pieces[piece].shape;
            self.stripes[stripe].serves(position, shape) && shape.wanted.len() == k
        };
        let serves_block = self.open_pieces_of(stripe).any(is_block);
        if serves_block { 1 } else { k }
    }

    /// The spans of a stripe that are complete since the last look, each with its bytes.
    pub(super) fn take_complete(&mut self, stripe: usize, spans: &[Span]) -> Vec<(usize, Vec<Bytes>)> {
        let mut complete = Vec::new();
        for &span in &self.members[stripe].spans {
            let pieces = &self.pieces_of[span];
            if self.is_handed_out[span] || pieces.iter().any(|&piece| self.pieces[piece].chunks.is_none()) {
                continue;
            }
            self.is_handed_out[span] = true;
            let chunks = pieces.iter().filter_map(|&piece| self.pieces[piece].chunks.as_ref()).flatten();
            complete.push((span, trim(chunks.cloned().collect(), spans[span].range.len() as u32)));
        }
        complete
    }

    /// The error of the first span that cannot be had.
    pub(super) fn first_error(&self) -> Option<StripeError> {
        let pieces = self.pieces_of.iter().flatten();
        pieces.filter_map(|&piece| self.pieces[piece].error.clone()).next()
    }

    /// Bytes that count for all pieces: of a part whose chunks cannot all be had, the same columns of k others too.
    pub(super) fn bytes_in_memory(
        &self,
        policy: &dyn Policy,
        can_be_asked: impl Fn(SiteId) -> bool,
    ) -> usize {
        let of_piece =
            |piece: &Piece| self.chunks_counted(piece, policy, &can_be_asked) * piece.shape.columns.len();
        self.pieces.iter().map(of_piece).sum()
    }

    /// Bytes that a plan of the pieces `of` asks for beyond those that count for them: it reads around chunks that can be had.
    pub(super) fn bytes_beyond(
        &self,
        plan: &QueryPlan,
        of: &[usize],
        policy: &dyn Policy,
        can_be_asked: impl Fn(SiteId) -> bool,
    ) -> usize {
        let mut asked: SmallVec<[usize; 3]> = SmallVec::from_elem(0, of.len());
        plan.reads.iter().flat_map(|read| &read.chunks).for_each(|chunk| asked[chunk.piece] += 1);
        let beyond = |(&number, &asked): (&usize, &usize)| {
            let piece = &self.pieces[number];
            if asked <= piece.shape.wanted.len() {
                return 0;
            }
            let counted = self.chunks_counted(piece, policy, &can_be_asked);
            asked.saturating_sub(counted) * piece.shape.columns.len()
        };
        of.iter().zip(&asked).map(beyond).sum()
    }

    /// How many chunks of a piece count.
    fn chunks_counted(
        &self,
        piece: &Piece,
        policy: &dyn Policy,
        can_be_asked: &impl Fn(SiteId) -> bool,
    ) -> usize {
        let stripe = &self.stripes[piece.stripe];
        let (code, wanted) = (&stripe.stripe.code, &piece.shape.wanted);
        let can_be_had = wanted.iter().all(|index| stripe.has(index, can_be_asked));
        let chunks = match can_be_had {
            _ if wanted.len() == code.k() => code.k() + policy.most_extra_reads(),
            true => wanted.len(),
            false => code.k() + wanted.len(),
        };
        chunks.min(code.n())
    }
}

/// The stripes of spans, each once, and of every span which it is.
fn stripes_of(spans: &[Span]) -> Result<(Vec<StripeId>, Vec<usize>), StripeError> {
    if let [span] = spans {
        return Ok((vec![span.of.stripe()?], vec![0]));
    }
    let mut known = HashMap::with_capacity(spans.len());
    let (mut ids, mut of_span) = (Vec::with_capacity(spans.len()), Vec::with_capacity(spans.len()));
    for span in spans {
        let id = span.of.stripe()?;
        of_span.push(*known.entry(id).or_insert_with(|| {
            ids.push(id);
            ids.len() - 1
        }));
    }
    Ok((ids, of_span))
}
