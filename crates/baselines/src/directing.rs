//! Common parts of the policies of Hu et al. (SoCC'17, §3.1). They direct pieces that want *one* chunk, as the paper's
//! objects do. Whole blocks, for which any k chunks suffice, are read from the least loaded sites if all queues are
//! known. Other pieces are read normally.
//!
//! The pieces of one query are planned in turn, and each sees the load of those before it: a batch is as good as
//! requests one after the other.

use std::collections::BTreeMap;

use striate_codec::{ChunkSet, CodecError};
use striate_core::SiteId;
use striate_plan::ordered::{ChosenChunks, plan_in_order};
use striate_plan::read::normal::fetched_normally;
use striate_plan::{NodeState, QueryChunk, QueryPiece, QueryPlan, ReadQuery};

/// Whether a piece wants one chunk, which other chunks determine.
pub(crate) fn wants_one_chunk(piece: &QueryPiece<'_>) -> bool {
    piece.wanted.len() == 1 && piece.code.k() > 1
}

/// The wanted chunk of a piece that wants one.
pub(crate) fn wanted_chunk(piece: &QueryPiece<'_>) -> usize {
    piece.wanted.iter().next().expect("one chunk is wanted")
}

/// Known queues while a query is planned.
pub(crate) struct Queues<'a> {
    /// Q_j of the sites whose queues are known.
    reported: &'a dyn Fn(SiteId) -> Option<f64>,
    /// Bytes that the query has asked of each site so far.
    requested_bytes: BTreeMap<SiteId, f64>,
}

impl Queues<'_> {
    fn of(&self, site: SiteId) -> Option<f64> {
        Some((self.reported)(site)? + self.requested_bytes.get(&site).copied().unwrap_or(0.0))
    }

    /// States of the sites of a piece's chunks: of available chunks on sites whose queues are known.
    pub(crate) fn nodes(&self, piece: &QueryPiece<'_>, query: &ReadQuery<'_>) -> Vec<Option<NodeState>> {
        let mut nodes = vec![None; piece.code.n()];
        piece
            .available(query.can_be_asked)
            .for_each(|index| nodes[index] = self.of(piece.sites[index]).map(NodeState::of_queue));
        nodes
    }
}

/// Plans a query. `choose` returns the chunks of a piece that wants one. If it fails, the piece is read normally.
///
/// # Errors
/// [`CodecError::Insufficient`] if the available chunks of a piece do not determine it.
pub(crate) fn plan_pieces(
    query: &ReadQuery<'_>,
    queue: &dyn Fn(SiteId) -> Option<f64>,
    mut choose: impl FnMut(&QueryPiece<'_>, &Queues<'_>) -> Result<ChunkSet, CodecError>,
) -> Result<QueryPlan, CodecError> {
    let mut queues = Queues { reported: queue, requested_bytes: BTreeMap::new() };
    let (mut chosen, mut others): (ChosenChunks, Vec<usize>) = (Vec::new(), Vec::new());
    for (number, piece) in query.pieces.iter().enumerate() {
        if !wants_one_chunk(piece) {
            others.push(number);
            continue;
        }
        let option = choose(piece, &queues).or_else(|_| fetched_normally(piece, query))?;
        for index in option.iter() {
            chosen.push((piece.sites[index], QueryChunk { piece: number, index }));
            *queues.requested_bytes.entry(piece.sites[index]).or_default() += f64::from(piece.len);
        }
    }
    let pieces: Vec<QueryPiece<'_>> = others.iter().map(|&number| query.pieces[number]).collect();
    let other_query = ReadQuery {
        pieces: &pieces,
        purpose: query.purpose,
        can_be_asked: query.can_be_asked,
        cost: query.cost,
        queue: query.queue,
    };
    let plan = plan_in_order(&other_query, 0, |number, order, _| {
        let queue = |&index: &usize| queues.of(pieces[number].sites[index]);
        if order.iter().all(|index| queue(index).is_some()) {
            order.sort_by(|a, b| queue(a).partial_cmp(&queue(b)).expect("queues are numbers"));
        }
    })?;
    chosen.extend(plan.reads.iter().flat_map(|read| {
        read.chunks.iter().map(|chunk| (read.site, QueryChunk { piece: others[chunk.piece], ..*chunk }))
    }));
    Ok(QueryPlan::of_chunks(chosen))
}
