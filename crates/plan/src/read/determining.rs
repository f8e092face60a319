//! The cheapest chunks that determine others.
//!
//! In the split layout, the data chunks laid end to end are the block. A read requests exactly the data chunks that it
//! wants and computes nothing. If one of them is unavailable, the others that are fetched anyway count as free, and the
//! cheapest chunks are added until they determine the missing ones: an LRC then reads its local group, a Reed–Solomon
//! code any k.
//!
//! Cost: one repair equation or a few decode plans of the codec; nothing if all wanted chunks are available.

use striate_codec::{ChunkSet, Code, CodecError};

/// Returns the chunks of one stripe to fetch for the data chunks `wanted`. `costs` holds the cost of fetching each of
/// the n chunks, in any unit: 0 for chunks that are present or under way, `None` for unavailable ones.
///
/// # Errors
/// [`CodecError::Insufficient`] if the available chunks do not determine the wanted ones.
pub(crate) fn cheapest_determining(
    code: &Code,
    wanted: &ChunkSet,
    costs: &[Option<f64>],
) -> Result<ChunkSet, CodecError> {
    if code.k() == 1 {
        return cheapest_copy(code, costs);
    }
    let available: ChunkSet =
        wanted.iter().filter(|&chunk| costs.get(chunk).is_some_and(Option::is_some)).collect();
    let missing: Vec<usize> = wanted.difference(&available).iter().collect();
    if missing.is_empty() {
        return Ok(available);
    }
    let mut marginal = costs.to_vec();
    available.iter().for_each(|chunk| marginal[chunk] = Some(0.0));
    let mut fetch = available;
    match missing.as_slice() {
        &[lost] => {
            let equation = code.cheapest_repair(lost, &marginal)?;
            equation.sources.iter().for_each(|&(chunk, _)| {
                fetch.insert(chunk);
            });
        }
        _ => {
            let order = cheapest_sufficient(code, &missing, &marginal)?;
            code.decode_plan(&order, &missing)?.sources().iter().for_each(|&chunk| {
                fetch.insert(chunk);
            });
        }
    }
    Ok(fetch)
}

/// Returns the cheapest copy; all copies are equivalent.
fn cheapest_copy(code: &Code, costs: &[Option<f64>]) -> Result<ChunkSet, CodecError> {
    let available = costs.iter().enumerate().filter_map(|(chunk, cost)| Some((chunk, (*cost)?)));
    match available.min_by(|a, b| a.1.total_cmp(&b.1)) {
        Some((copy, _)) => Ok([copy].into_iter().collect()),
        None => code.decode_plan(&[], &[0]).map(|_| ChunkSet::EMPTY),
    }
}

/// Returns the shortest prefix of the chunks in order of cost that determines `missing`.
fn cheapest_sufficient(
    code: &Code,
    missing: &[usize],
    costs: &[Option<f64>],
) -> Result<Vec<usize>, CodecError> {
    let mut order: Vec<(usize, f64)> =
        costs.iter().enumerate().filter_map(|(chunk, cost)| Some((chunk, (*cost)?))).collect();
    order.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let chunks: Vec<usize> = order.into_iter().map(|(chunk, _)| chunk).collect();
    let wanted: ChunkSet = missing.iter().copied().collect();
    let mut prefix = ChunkSet::EMPTY;
    for (count, &chunk) in chunks.iter().enumerate() {
        prefix.insert(chunk);
        if count + 1 >= missing.len() && code.determines(&prefix, &wanted) {
            return Ok(chunks[..=count].to_vec());
        }
    }
    Ok(chunks)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CODES: [&str; 7] =
        ["rs(4,2)", "rs(2,1)", "rs(10,4)", "lrc(6,2,2)", "lrc(12,3,2)", "lrc(4,2,3)", "replica(3)"];

    proptest! {
        /// The fetched chunks are available and, by the code's own judgement, determine the wanted ones; or the losses
        /// are truly too many. Available wanted chunks are always fetched, unless any copy will do.
        #[test]
        fn plans_determine_the_wanted_chunks_or_the_losses_are_truly_too_many(
            which in 0usize..7, lost_bits: u32, wanted_bits: u16, cost in proptest::collection::vec(0.0f64..10.0, 17),
        ) {
            let code: Code = CODES[which].parse().expect("a code");
            let mut wanted: ChunkSet = (0..code.k()).filter(|i| wanted_bits >> i & 1 == 1).collect();
            if wanted.is_empty() {
                wanted.insert(0);
            }
            let costs: Vec<_> = (0..code.n()).map(|i| (lost_bits >> i & 1 == 0).then_some(cost[i])).collect();
            let available: ChunkSet = (0..code.n()).filter(|&i| costs[i].is_some()).collect();
            match cheapest_determining(&code, &wanted, &costs) {
                Err(_) => prop_assert!(!code.determines(&available, &wanted)),
                Ok(fetch) => {
                    prop_assert!(fetch.difference(&available).is_empty());
                    prop_assert!(code.determines(&fetch, &wanted));
                    if code.k() > 1 {
                        prop_assert!(wanted.intersection(&available).difference(&fetch).is_empty());
                    }
                    if wanted.difference(&available).is_empty() && code.k() > 1 {
                        prop_assert_eq!(fetch, wanted);
                    }
                }
            }
        }
    }

    fn fetched(code: &str, wanted: &[usize], costs: &[Option<f64>]) -> Vec<usize> {
        let wanted = wanted.iter().copied().collect();
        cheapest_determining(&code.parse().expect("a code"), &wanted, costs).expect("a plan").iter().collect()
    }

    #[test]
    fn a_normal_read_fetches_what_is_wanted_and_nothing_else() {
        assert_eq!(fetched("rs(4,2)", &[1, 2], &[Some(1.0); 6]), [1, 2]);
    }

    #[test]
    fn a_lost_chunk_of_an_lrc_is_read_from_its_local_group() {
        let mut costs = vec![Some(1.0); 10];
        costs[0] = None;
        assert_eq!(fetched("lrc(6,2,2)", &[0], &costs), [1, 2, 6]);
    }

    #[test]
    fn the_cheapest_copy_is_read() {
        assert_eq!(fetched("replica(3)", &[0], &[Some(3.0), Some(1.0), None]), [1]);
    }
}
