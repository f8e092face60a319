//! Plans that take the chunks of each piece in a given order: as many as determine it, and some extra.

use striate_codec::{ChunkSet, Code, CodecError};
use striate_core::SiteId;

use super::normal::fetched_normally;
use super::piece::{QueryChunk, QueryPiece, QueryPlan};
use super::policy::ReadQuery;

/// The chunks chosen for the pieces so far, each with its site.
pub type ChosenChunks = Vec<(SiteId, QueryChunk)>;

/// Takes the shortest prefix of every piece's chunks that determines it together with the awaited ones, and
/// `extra_reads` (δ) chunks more. `order` sorts the available chunks of a piece, which come ascending. Pieces that do
/// not take any chunks are read normally.
///
/// # Errors
/// [`CodecError::Insufficient`] if the available chunks of a piece do not determine it.
pub fn plan_in_order(
    query: &ReadQuery<'_>,
    extra_reads: usize,
    mut order: impl FnMut(usize, &mut Vec<usize>, &ChosenChunks),
) -> Result<QueryPlan, CodecError> {
    let mut chosen: ChosenChunks = Vec::with_capacity(query.pieces.len() * 4);
    let (mut chunks, mut extra_chunks) = (Vec::new(), 0);
    for (number, piece) in query.pieces.iter().enumerate() {
        let of_chunk = |index: usize| (piece.sites[index], QueryChunk { piece: number, index });
        if !piece.takes_any() {
            chosen.extend(fetched_normally(piece, query)?.iter().map(of_chunk));
            continue;
        }
        chunks.clear();
        chunks.extend(piece.available(query.can_be_asked));
        order(number, &mut chunks, &chosen);
        let enough = determining_prefix(piece, &chunks)?;
        extra_chunks += chunks.len().min(enough + extra_reads) - enough;
        chosen.extend(chunks.iter().take(enough + extra_reads).map(|&index| of_chunk(index)));
    }
    Ok(QueryPlan { extra_chunks, ..QueryPlan::of_chunks(chosen) })
}

/// Returns the length of the shortest prefix of `order` that determines the piece together with the awaited chunks.
fn determining_prefix(piece: &QueryPiece<'_>, order: &[usize]) -> Result<usize, CodecError> {
    let code: &Code = piece.code;
    let mut chunks = piece.awaited;
    let mut count = 0;
    while chunks.len() < code.k() || !code.is_sufficient_set(&chunks) {
        match order.get(count) {
            Some(&index) => chunks.insert(index),
            None => return insufficient(code, &chunks),
        };
        count += 1;
    }
    Ok(count)
}

fn insufficient(code: &Code, chunks: &ChunkSet) -> Result<usize, CodecError> {
    let wanted: Vec<usize> = (0..code.k()).collect();
    code.decode_plan(&chunks.iter().collect::<Vec<_>>(), &wanted).map(|_| chunks.len())
}
