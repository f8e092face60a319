//! Reading one block: which chunks to fetch, and what to decode from them.
//!
//! In the split layout the data chunks laid end to end are the block, so the *normal read* fetches exactly
//! the data chunks that a range touches and computes nothing. When one of them cannot be had, the others that
//! are fetched anyway count as free and the cheapest chunks are added until the missing ones are determined:
//! an LRC then reads its local group, a Reed–Solomon code any k.
//!
//! Cost: one repair equation or decode plan of the codec; nothing on the normal path.

use striate_codec::{Code, CodecError, DecodePlan};

/// What to fetch for a block, and how to compute what is missing.
#[derive(Clone, Debug)]
pub struct BlockRead {
    /// Chunk indices to fetch, ascending.
    pub fetch: Vec<usize>,
    /// How to compute the wanted chunks that are not fetched; `None` for a normal read.
    pub decode: Option<DecodePlan>,
}

/// Plans the read of the chunks `wanted` of one stripe. `costs` holds the cost of fetching each of the n
/// chunks, in any unit; `None` for a chunk that cannot be had.
///
/// # Errors
/// [`CodecError::Insufficient`] when the chunks that can be had do not determine the wanted ones.
pub fn plan_block_read(
    code: &Code,
    wanted: &[usize],
    costs: &[Option<f64>],
) -> Result<BlockRead, CodecError> {
    if code.k() == 1 {
        return plan_replica_read(code, costs);
    }
    let is_available = |&chunk: &usize| costs.get(chunk).is_some_and(Option::is_some);
    let (mut fetch, missing): (Vec<usize>, Vec<usize>) = wanted.iter().partition(|chunk| is_available(chunk));
    if missing.is_empty() {
        fetch.sort_unstable();
        return Ok(BlockRead { fetch, decode: None });
    }
    let mut marginal = costs.to_vec();
    fetch.iter().for_each(|&chunk| marginal[chunk] = Some(0.0));
    let sources = match missing.as_slice() {
        &[lost] => {
            let equation = code.cheapest_repair(lost, &marginal)?;
            equation.sources.iter().map(|&(chunk, _)| chunk).collect()
        }
        _ => cheapest_sufficient(code, &missing, &marginal)?,
    };
    let decode = code.decode_plan(&sources, &missing)?;
    fetch.extend_from_slice(decode.sources());
    fetch.sort_unstable();
    fetch.dedup();
    Ok(BlockRead { fetch, decode: Some(decode) })
}

/// Every copy is as good: the cheapest one is read.
fn plan_replica_read(code: &Code, costs: &[Option<f64>]) -> Result<BlockRead, CodecError> {
    let available = costs.iter().enumerate().filter_map(|(chunk, cost)| Some((chunk, (*cost)?)));
    let cheapest = available.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(chunk, _)| chunk);
    match cheapest {
        Some(0) => Ok(BlockRead { fetch: vec![0], decode: None }),
        Some(copy) => Ok(BlockRead { fetch: vec![copy], decode: Some(code.decode_plan(&[copy], &[0])?) }),
        None => {
            code.decode_plan(&[], &[0]).map(|decode| BlockRead { fetch: Vec::new(), decode: Some(decode) })
        }
    }
}

/// The shortest run of the chunks in order of cost that determines `missing`.
fn cheapest_sufficient(
    code: &Code,
    missing: &[usize],
    costs: &[Option<f64>],
) -> Result<Vec<usize>, CodecError> {
    let mut order: Vec<(usize, f64)> =
        costs.iter().enumerate().filter_map(|(chunk, cost)| Some((chunk, (*cost)?))).collect();
    order.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let chunks: Vec<usize> = order.into_iter().map(|(chunk, _)| chunk).collect();
    let enough =
        (missing.len()..=chunks.len()).find(|&count| code.decode_plan(&chunks[..count], missing).is_ok());
    Ok(chunks[..enough.unwrap_or(chunks.len())].to_vec())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn codes() -> Vec<Code> {
        ["rs(4,2)", "rs(2,1)", "rs(10,4)", "lrc(6,2,2)", "replica(3)"]
            .map(|text| text.parse().expect("a code"))
            .to_vec()
    }

    proptest! {
        /// Executes the plan on real bytes: what it fetches and decodes is what was encoded.
        #[test]
        fn plans_deliver_the_wanted_chunks_or_the_losses_are_truly_too_many(
            which in 0usize..5, lost_bits: u16, bytes in proptest::collection::vec(any::<u8>(), 10),
            cost in proptest::collection::vec(0.0f64..10.0, 14),
        ) {
            let code = &codes()[which];
            let data: Vec<Vec<u8>> = (0..code.k()).map(|i| vec![bytes[i]; 3]).collect();
            let mut parity = vec![vec![0; 3]; code.parity_count()];
            let data_refs: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            code.encode(&data_refs, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>()).unwrap();
            let stripe: Vec<Vec<u8>> = data.iter().cloned().chain(parity).collect();
            let costs: Vec<_> = (0..code.n()).map(|i| (lost_bits >> i & 1 == 0).then_some(cost[i])).collect();
            let available: Vec<usize> = (0..code.n()).filter(|&i| costs[i].is_some()).collect();
            let wanted: Vec<usize> = (0..code.k()).collect();
            match plan_block_read(code, &wanted, &costs) {
                Err(_) => prop_assert!(!code.is_sufficient(&available)),
                Ok(plan) => {
                    prop_assert!(plan.fetch.iter().all(|chunk| available.contains(chunk)));
                    let mut got = vec![None; code.n()];
                    plan.fetch.iter().for_each(|&chunk| got[chunk] = Some(stripe[chunk].clone()));
                    if let Some(decode) = &plan.decode {
                        let inputs: Vec<&[u8]> = decode.sources().iter().map(|&i| stripe[i].as_slice()).collect();
                        let mut outputs = vec![vec![0; 3]; decode.wanted().len()];
                        let mut refs: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
                        decode.apply(&inputs, &mut refs).unwrap();
                        decode.wanted().iter().zip(outputs).for_each(|(&i, bytes)| got[i] = Some(bytes));
                    }
                    for chunk in wanted {
                        prop_assert_eq!(got[chunk].as_ref(), Some(&stripe[chunk]));
                    }
                }
            }
        }
    }

    #[test]
    fn a_normal_read_fetches_what_is_wanted_and_nothing_else() {
        let code: Code = "rs(4,2)".parse().unwrap();
        let plan = plan_block_read(&code, &[1, 2], &[Some(1.0); 6]).unwrap();
        assert_eq!((plan.fetch, plan.decode.is_none()), (vec![1, 2], true));
    }

    #[test]
    fn a_lost_chunk_of_an_lrc_is_read_from_its_local_group() {
        let code: Code = "lrc(6,2,2)".parse().unwrap();
        let mut costs = vec![Some(1.0); 10];
        costs[0] = None;
        assert_eq!(plan_block_read(&code, &[0], &costs).unwrap().fetch, vec![1, 2, 6]);
    }

    #[test]
    fn the_cheapest_copy_is_read() {
        let code: Code = "replica(3)".parse().unwrap();
        assert_eq!(plan_block_read(&code, &[0], &[Some(3.0), Some(1.0), None]).unwrap().fetch, vec![1]);
    }
}
