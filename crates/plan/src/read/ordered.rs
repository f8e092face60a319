//! Plans that take the chunks of each piece in some order, as many as determine it and some more.

use striate_codec::{ChunkSet, Code, CodecError};
use striate_core::SiteId;

use super::normal::fetched_normally;
use super::piece::{QueryChunk, QueryPiece, QueryPlan};
use super::policy::ReadQuery;

/// What was chosen for the pieces so far, each chunk with its site.
pub type Chosen = Vec<(SiteId, QueryChunk)>;

/// Takes of every piece the shortest run of its chunks that determines it, after what is awaited, and `extra_reads` (δ)
/// chunks more. `order` arranges the chunks of a piece that can be had, which come ascending. Pieces that do not take any
/// chunks are read normally.
///
/// # Errors
/// [`CodecError::Insufficient`] when the chunks of a piece that can be had do not determine it.
pub fn plan_in_order(
    query: &ReadQuery<'_>,
    extra_reads: usize,
    mut order: impl FnMut(usize, &mut Vec<usize>, &Chosen),
) -> Result<QueryPlan, CodecError> {
    let mut chosen: Chosen = Vec::with_capacity(query.pieces.len() * 4);
    let (mut chunks, mut extra_chunks) = (Vec::new(), 0);
    for (piece, of) in query.pieces.iter().enumerate() {
        let of_chunk = |index: usize| (of.sites[index], QueryChunk { piece, index });
        if !of.takes_any() {
            chosen.extend(fetched_normally(of, query)?.iter().map(of_chunk));
            continue;
        }
        chunks.clear();
        chunks.extend(of.available(query.can_be_asked));
        order(piece, &mut chunks, &chosen);
        let enough = determining_prefix(of, &chunks)?;
        extra_chunks += chunks.len().min(enough + extra_reads) - enough;
        chosen.extend(chunks.iter().take(enough + extra_reads).map(|&index| of_chunk(index)));
    }
    Ok(QueryPlan { extra_chunks, ..QueryPlan::of_chunks(chosen) })
}

/// How many chunks of `order`, from its front, determine the piece together with what is awaited.
fn determining_prefix(piece: &QueryPiece<'_>, order: &[usize]) -> Result<usize, CodecError> {
    let code: &Code = piece.code;
    let mut had = piece.awaited;
    let mut count = 0;
    while had.len() < code.k() || !code.is_sufficient_set(&had) {
        match order.get(count) {
            Some(&index) => had.insert(index),
            None => return insufficient(code, &had),
        };
        count += 1;
    }
    Ok(count)
}

fn insufficient(code: &Code, had: &ChunkSet) -> Result<usize, CodecError> {
    let wanted: Vec<usize> = (0..code.k()).collect();
    code.decode_plan(&had.iter().collect::<Vec<_>>(), &wanted).map(|_| had.len())
}
