//! Properties that every code must have, checked on random codes, data and losses against the table-based field
//! arithmetic.

use proptest::prelude::*;
use proptest::sample::Index;
use striate_codec::{ChunkSet, Code, CodecError, MAX_CHUNKS, accumulate, crc32c, gf256};

fn any_code() -> impl Strategy<Value = Code> {
    prop_oneof![
        (1usize..20, 0usize..6).prop_map(|(k, r)| Code::rs(k, r).unwrap()),
        (100usize..129, 1usize..9).prop_map(|(k, r)| Code::rs(k, r).unwrap()),
        (2usize..5, 1usize..5, 1usize..4).prop_map(|(size, l, g)| Code::lrc(size * l, l, g).unwrap()),
        (2usize..20, 2usize..8, 2usize..6).prop_map(|(k, r, f)| Code::wide(k, r, f).unwrap()),
        (1usize..6).prop_map(|n| Code::replica(n).unwrap()),
    ]
}

/// Pseudo-random bytes that differ from chunk to chunk.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn slices(chunks: &[Vec<u8>]) -> Vec<&[u8]> {
    chunks.iter().map(Vec::as_slice).collect()
}

fn slices_mut(chunks: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
    chunks.iter_mut().map(Vec::as_mut_slice).collect()
}

fn data_of(code: &Code, seed: u64, len: usize) -> Vec<Vec<u8>> {
    (0..code.k()).map(|chunk| bytes(seed.wrapping_mul(1000) + chunk as u64 + 1, len)).collect()
}

/// All n chunks by the definition: row of the generator matrix times the data.
fn stripe_by_definition(code: &Code, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    (0..code.n())
        .map(|chunk| {
            let mut sum = vec![0u8; data[0].len()];
            for (index, data) in data.iter().enumerate() {
                gf256::accumulate_reference(code.coefficient(chunk, index), data, &mut sum);
            }
            sum
        })
        .collect()
}

/// `count` distinct numbers of 0..n, chosen by the proptest indices.
fn choose(n: usize, picks: &[Index], count: usize) -> Vec<usize> {
    let mut rest: Vec<usize> = (0..n).collect();
    picks.iter().take(count.min(n)).map(|pick| rest.swap_remove(pick.index(rest.len()))).collect()
}

fn others(n: usize, without: &[usize]) -> Vec<usize> {
    (0..n).filter(|index| !without.contains(index)).collect()
}

/// The rank of the rows of `chunks` by plain Gaussian elimination.
fn rank(code: &Code, chunks: &[usize]) -> usize {
    let mut rows: Vec<Vec<u8>> = chunks.iter().map(|chunk| code.row(*chunk)).collect();
    let mut rank = 0;
    for column in 0..code.k() {
        let Some(pivot) = (rank..rows.len()).find(|row| rows[*row][column] != 0) else { continue };
        rows.swap(rank, pivot);
        let scale = gf256::inv(rows[rank][column]);
        let pivot_row: Vec<u8> = rows[rank].iter().map(|value| gf256::mul(*value, scale)).collect();
        for row in &mut rows[rank + 1..] {
            gf256::accumulate_reference(row[column], &pivot_row, row);
        }
        rank += 1;
    }
    rank
}

proptest! {
    #[test]
    fn encoding_equals_the_generator_matrix_times_the_data(code in any_code(), seed: u64, len in 0usize..700) {
        let data = data_of(&code, seed, len);
        let mut parity = vec![bytes(1, len); code.parity_count()];
        code.encode(&slices(&data), &mut slices_mut(&mut parity)).unwrap();
        prop_assert_eq!(&stripe_by_definition(&code, &data)[code.k()..], &parity[..]);
    }

    #[test]
    fn checksums_taken_while_encoding_are_those_of_the_chunks(
        code in any_code(), seed: u64, len in 0usize..40_000, granule_len in 1usize..20_000
    ) {
        let len = if code.k() > 50 { len / 20 } else { len };
        let granule_len = granule_len.max(len / 8 + 1);
        let data = data_of(&code, seed, len);
        let mut parity = vec![vec![0u8; len]; code.parity_count()];
        let checksums = code.encode_and_checksum(&slices(&data), &mut slices_mut(&mut parity), granule_len).unwrap();
        let mut expected = vec![vec![0u8; len]; code.parity_count()];
        code.encode(&slices(&data), &mut slices_mut(&mut expected)).unwrap();
        prop_assert_eq!(&parity, &expected);
        for (chunk, bytes) in data.iter().chain(&parity).enumerate() {
            let granules: Vec<u32> = bytes.chunks(granule_len).map(crc32c).collect();
            prop_assert_eq!(checksums.granules(chunk), granules);
            prop_assert_eq!(checksums.chunk_checksum(chunk), crc32c(bytes));
        }
    }

    #[test]
    fn any_loss_within_the_tolerance_decodes_to_the_original(
        code in any_code(), seed: u64, len in 0usize..300, picks in prop::collection::vec(any::<Index>(), 10)
    ) {
        let stripe = stripe_by_definition(&code, &data_of(&code, seed, len));
        let lost = choose(code.n(), &picks, code.tolerance());
        let available = others(code.n(), &lost);
        prop_assert!(code.is_sufficient(&available));
        let plan = code.decode_plan(&available, &lost).unwrap();
        prop_assert!(plan.sources().iter().all(|source| available.contains(source)));
        prop_assert!(plan.sources().len() <= code.k());
        let inputs: Vec<&[u8]> = plan.sources().iter().map(|source| stripe[*source].as_slice()).collect();
        let mut outputs = vec![vec![0xAA; len]; lost.len()];
        plan.apply(&inputs, &mut slices_mut(&mut outputs)).unwrap();
        for (chunk, output) in lost.iter().zip(&outputs) {
            prop_assert_eq!(&stripe[*chunk], output);
        }
    }

    #[test]
    fn a_set_is_sufficient_exactly_if_its_rows_have_full_rank(
        code in any_code(), picks in prop::collection::vec(any::<Index>(), 12), count in 0usize..13
    ) {
        let lost = choose(code.n(), &picks, count);
        let available = others(code.n(), &lost);
        let sufficient = rank(&code, &available) == code.k();
        prop_assert_eq!(code.is_sufficient(&available), sufficient);
        // A chunk has a plan exactly if its row adds nothing to the rank.
        for chunk in &lost {
            let mut with = available.clone();
            with.push(*chunk);
            let determined = rank(&code, &with) == rank(&code, &available);
            prop_assert_eq!(code.decode_plan(&available, &[*chunk]).is_ok(), determined);
            let set: ChunkSet = available.iter().copied().collect();
            prop_assert_eq!(code.determines(&set, &[*chunk].into_iter().collect()), determined);
        }
    }

    #[test]
    fn wanted_chunks_that_are_available_come_out_unchanged(code in any_code(), seed: u64) {
        let stripe = stripe_by_definition(&code, &data_of(&code, seed, 33));
        let all: Vec<usize> = (0..code.n()).collect();
        let plan = code.decode_plan(&all, &all).unwrap();
        let mut outputs = vec![vec![0u8; 33]; code.n()];
        plan.apply(&slices(&stripe), &mut slices_mut(&mut outputs)).unwrap();
        prop_assert_eq!(stripe, outputs);
    }

    #[test]
    fn partial_sums_add_up_to_the_same_in_any_grouping(
        seed: u64, len in 0usize..300, terms in prop::collection::vec((any::<u8>(), 0usize..4), 1..20)
    ) {
        let chunks: Vec<Vec<u8>> = (0..terms.len()).map(|i| bytes(seed.wrapping_add(i as u64), len)).collect();
        let mut expected = vec![0u8; len];
        for ((coefficient, _), chunk) in terms.iter().zip(&chunks) {
            gf256::accumulate_reference(*coefficient, chunk, &mut expected);
        }
        // Each term goes to one of four groups. The groups' sums are then added, the last group first.
        let mut groups = vec![vec![0u8; len]; 4];
        for ((coefficient, group), chunk) in terms.iter().zip(&chunks) {
            accumulate(*coefficient, chunk, &mut groups[*group]);
        }
        let mut total = vec![0u8; len];
        for group in groups.iter().rev() {
            accumulate(1, group, &mut total);
        }
        prop_assert_eq!(total, expected);
    }

    #[test]
    fn a_parity_changes_by_its_coefficient_times_the_difference(
        code in any_code(), seed: u64, len in 0usize..300, changed in any::<Index>()
    ) {
        let mut data = data_of(&code, seed, len);
        let mut parity = stripe_by_definition(&code, &data).split_off(code.k());
        let index = changed.index(code.k());
        let new = bytes(seed ^ 0x55, len);
        let mut difference = new.clone();
        accumulate(1, &data[index], &mut difference);
        for (p, parity) in parity.iter_mut().enumerate() {
            accumulate(code.coefficient(code.k() + p, index), &difference, parity);
        }
        data[index] = new;
        let expected = stripe_by_definition(&code, &data).split_off(code.k());
        prop_assert_eq!(parity, expected);
    }

    #[test]
    fn names_parse_back_to_the_same_code(code in any_code()) {
        let parsed: Code = code.to_string().parse().unwrap();
        prop_assert_eq!(&parsed, &code);
        prop_assert_eq!(parsed.row(code.n() - 1), code.row(code.n() - 1));
    }
}

#[test]
fn parity_row_zero_of_rs_is_a_plain_xor() {
    for (k, r) in [(1, 1), (6, 3), (128, 8), (250, 6)] {
        assert_eq!(Code::rs(k, r).unwrap().row(k), vec![1; k]);
    }
}

#[test]
fn parameters_without_a_code_are_refused_with_the_reason() {
    let refused = |name: &str, because: &str| match name.parse::<Code>() {
        Err(error @ CodecError::Parameters { .. }) => {
            assert!(error.to_string().contains(because), "{name}: {error}");
        }
        other => panic!("{name}: {other:?}"),
    };
    refused("rs(0,2)", "at least one data chunk");
    refused("rs(250,7)", "at most 256");
    refused("rs(18446744073709551615,1)", "at most 256");
    refused("replica(0)", "at least one copy");
    refused("replica(257)", "at most 256");
    refused("lrc(7,2,2)", "equal groups");
    refused("lrc(6,0,2)", "rs(k,r)");
    refused("lrc(6,6,2)", "single data chunk");
    refused("lrc(6,2,0)", "global parity");
    refused("lrc(160,4,4)", "at most 128 data chunks");
    refused("lrc(12,2,9)", "at most 8 global");
    refused("wide(129,27,5)", "at most 128 data chunks");
    refused("wide(253,127,4)", "at most 256");
    refused("wide(253,253,4)", "at most 256");
    refused("wide(12,1,3)", "locality");
    refused("wide(12,4,1)", "at least 2 losses");
    assert_eq!("wide(252,252,4)".parse::<Code>().unwrap().n(), MAX_CHUNKS);
    assert_eq!("rs(250,6)".parse::<Code>().unwrap().n(), MAX_CHUNKS);
    assert_eq!("replica(256)".parse::<Code>().unwrap().tolerance(), 255);
}

#[test]
fn strings_that_name_no_code_are_refused() {
    for text in
        ["", "rs", "rs()", "rs(4)", "rs(4,2", "rs(4,2)x", "rs(a,2)", "xyz(4,2)", "lrc(6,2)", "rs(-1,2)"]
    {
        assert!(matches!(text.parse::<Code>(), Err(CodecError::Syntax { .. })), "{text}");
    }
    for text in [
        "wide(k=128,f=4)",
        "wide(k=128,f=4,redundancy=x)",
        "wide(k=128,4,redundancy=1.1)",
        "wide(k=1,f=2,q=3)",
    ] {
        assert!(matches!(text.parse::<striate_codec::CodeSpec>(), Err(CodecError::Syntax { .. })), "{text}");
    }
    assert_eq!(" rs( 4 , 2 ) ".parse::<Code>().unwrap().to_string(), "rs(4,2)");
}

#[test]
fn wrong_shapes_are_errors_and_not_panics() {
    let code = Code::rs(2, 1).unwrap();
    let (a, b, short) = ([0u8; 4], [0u8; 4], [0u8; 3]);
    let mut parity = [0u8; 4];
    let count = code.encode(&[&a], &mut [&mut parity]).unwrap_err();
    assert_eq!(count, CodecError::ChunkCount { what: "data", expected: 2, actual: 1 });
    assert!(matches!(code.encode(&[&a, &b], &mut []), Err(CodecError::ChunkCount { what: "parity", .. })));
    let length = code.encode(&[&a, &short], &mut [&mut parity]).unwrap_err();
    assert_eq!(length, CodecError::ChunkLength { expected: 4, actual: 3 });
    assert!(matches!(code.decode_plan(&[0, 3], &[1]), Err(CodecError::ChunkIndex { index: 3, limit: 3 })));
    assert!(matches!(
        code.decode_plan(&[0], &[1]),
        Err(CodecError::Insufficient { wanted: 1, available: 1, .. })
    ));
    assert!(!code.is_sufficient(&[0, 0, 7]));
}

#[test]
fn a_wide_code_with_equal_groups_has_the_matrix_of_the_lrc() {
    let wide: Code = "wide(12,6,3)".parse().unwrap();
    let lrc = Code::lrc(12, 2, 2).unwrap();
    assert_eq!((wide.k(), wide.n(), wide.tolerance()), (12, 16, 3));
    assert_eq!(wide.local_groups(), lrc.local_groups());
    assert!((0..16).all(|chunk| wide.row(chunk) == lrc.row(chunk)));
    assert_eq!((wide.to_string(), wide.spec()), ("wide(12,6,3)".to_owned(), "wide(12,6,3)".parse().unwrap()));
}

#[test]
fn the_last_group_of_a_wide_code_takes_what_the_others_leave() {
    let code: Code = "wide(128,27,4)".parse().unwrap();
    assert_eq!((code.k(), code.n(), code.tolerance()), (128, 136, 4));
    assert_eq!(code.local_groups(), [0..27, 27..54, 54..81, 81..108, 108..128]);
    for (local, group) in code.local_groups().iter().enumerate() {
        let xor: Vec<u8> = (0..128).map(|chunk| u8::from(group.contains(&chunk))).collect();
        assert_eq!(code.row(128 + local), xor);
    }
    let groups: Vec<Option<usize>> =
        [0, 26, 27, 127, 128, 132, 133, 135].map(|chunk| code.local_group_of(chunk)).to_vec();
    assert_eq!(groups, [Some(0), Some(0), Some(1), Some(4), Some(0), Some(4), None, None]);
    assert!(Code::rs(4, 2).unwrap().local_groups().is_empty());
}
