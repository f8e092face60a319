//! Azure-LRC and wide codes: any g+1 losses decode for every accepted parameter set; which larger losses decode;
//! cheapest repair.
//!
//! Sets of at most 20 chunks are tested loss by loss. Larger sets have too many losses. By the argument in `lrc`'s
//! documentation it is enough that row 0 splits into the local parities and that every minor of the matrix (row 0;
//! global rows) is non-zero. The tests check both completely: the matrices of all accepted sets with the same g are
//! prefixes of the largest, and every minor of that one is computed.

use proptest::prelude::*;
use proptest::sample::{Index, subsequence};
use striate_codec::lrc::{
    MAX_K, SMALL_N, for_each_subset, is_decodable_by_any, recoverability, sampled_recoverability,
};
use striate_codec::{ChunkSet, Code, gf256};
use striate_splitmix::SplitMix64;

/// Every (k, l, g) that `Code::lrc` accepts.
fn accepted() -> impl Iterator<Item = (usize, usize, usize, Code)> {
    let parameters =
        (1..=256usize).flat_map(|k| (1..=k).filter(move |l| k.is_multiple_of(*l)).map(move |l| (k, l)));
    parameters
        .flat_map(|(k, l)| (1..=10).map(move |g| (k, l, g)))
        .filter_map(|(k, l, g)| Code::lrc(k, l, g).ok().map(|code| (k, l, g, code)))
}

/// The rows 1..=g of the largest accepted matrix with g global parities.
fn largest_global_rows(g: usize) -> Vec<Vec<u8>> {
    let code = Code::lrc(MAX_K[g - 1], 1, g).unwrap();
    (0..g).map(|global| code.row(MAX_K[g - 1] + 1 + global)).collect()
}

#[test]
fn every_small_set_decodes_every_loss_of_g_plus_1_chunks() {
    let mut sets = 0;
    for (k, l, g, code) in accepted().filter(|(.., code)| code.n() <= SMALL_N) {
        assert_eq!(code.tolerance(), g + 1);
        let all = ChunkSet::first(code.n());
        for_each_subset(code.n(), g + 1, &mut |lost| {
            let rest = all.difference(&lost.iter().copied().collect());
            assert!(code.is_sufficient_set(&rest), "lrc({k},{l},{g}) does not decode the loss of {lost:?}");
        });
        sets += 1;
    }
    assert!(sets > 100, "only {sets} sets");
}

/// Wide codes of at most `n` chunks whose last group is shorter than the others.
fn ragged(n: usize) -> impl Iterator<Item = Code> {
    let names = (3..n).flat_map(|k| (2..k).map(move |r| (k, r))).filter(|(k, r)| !k.is_multiple_of(*r));
    names
        .flat_map(|(k, r)| (2..=9).map(move |f| (k, r, f)))
        .filter_map(|(k, r, f)| Code::wide(k, r, f).ok())
        .filter(move |code| code.n() <= n)
}

#[test]
fn every_small_wide_code_with_a_shorter_last_group_decodes_every_loss_that_it_tolerates() {
    let mut names = Vec::new();
    for code in ragged(18) {
        let all = ChunkSet::first(code.n());
        for_each_subset(code.n(), code.tolerance(), &mut |lost| {
            let rest = all.difference(&lost.iter().copied().collect());
            assert!(code.is_sufficient_set(&rest), "{code} does not decode the loss of {lost:?}");
        });
        names.push(code.to_string());
    }
    assert!(names.contains(&"wide(7,3,3)".to_owned()) && names.contains(&"wide(10,4,4)".to_owned()));
    assert!(names.len() > 100, "only {}", names.len());
}

#[test]
fn the_global_parities_of_wide_codes_are_a_prefix_of_those_whose_minors_are_tested() {
    let largest: Vec<_> = (1..=MAX_K.len()).map(largest_global_rows).collect();
    for (k, r) in (3..=252).flat_map(|k| [2, 5, 27, 100].map(|r| (k, r))) {
        for g in 1..=MAX_K.len() {
            // Codes with equal groups are LRCs, whose points may differ.
            let Ok(code) = Code::wide(k, r, g + 1) else { continue };
            let locals = code.local_groups().len();
            if k.is_multiple_of(locals) && k / locals == code.local_groups()[locals - 1].len() {
                continue;
            }
            let sum = code.local_groups().iter().map(|group| group.len()).sum::<usize>();
            assert_eq!((sum, locals), (k, k.div_ceil(r)), "{code}");
            for (global, row) in largest[g - 1].iter().enumerate() {
                assert_eq!(code.row(k + locals + global), row[..k], "{code}");
            }
        }
    }
}

#[test]
fn a_wide_code_repairs_every_chunk_of_a_group_from_it_and_a_global_parity_from_the_data() {
    for (name, group_size) in [("wide(128,27,4)", 27), ("wide(20,5,3)", 5)] {
        let code: Code = name.parse().unwrap();
        for lost in 0..code.n() {
            let equation = code.cheapest_repair(lost, &vec![Some(1.0); code.n()]).unwrap();
            let Some(group) = code.local_group_of(lost) else {
                assert!(equation.sources.len() <= code.k(), "{name}: {lost}");
                continue;
            };
            let members = code.local_groups()[group].clone().chain([code.k() + group]);
            let rest: Vec<(usize, u8)> =
                members.filter(|chunk| *chunk != lost).map(|chunk| (chunk, 1)).collect();
            assert_eq!(equation.sources, rest, "{name}: {lost}");
            assert!(rest.len() == group_size || group == 4 && rest.len() == 20);
        }
    }
    let code: Code = "wide(20,5,3)".parse().unwrap();
    let first = code.cheapest_repair(0, &vec![Some(1.0); code.n()]).unwrap();
    assert_eq!(first.sources, [1, 2, 3, 4, 20].map(|source| (source, 1)), "D1 of ECWide's Figure 2(c)");
}

/// Among `samples` random losses of `size` chunks, counts those that some code with the same groups decodes, and those
/// that this code decodes: (possible, decoded).
fn sampled_losses(code: &Code, size: usize, samples: usize, seed: u64) -> (usize, usize) {
    let mut random = SplitMix64::new(seed);
    let (mut possible, mut decoded) = (0, 0);
    for sample in 0..samples {
        // Every second loss is of chunks in one group, where fewer are decodable.
        let (first, range) = if sample % 2 == 0 { (0, code.n()) } else { (27 * (sample / 2 % 4), 27) };
        let mut lost = ChunkSet::EMPTY;
        while lost.len() < size {
            lost.insert(first + (random.next() % range as u64) as usize);
        }
        if is_decodable_by_any(code, &lost.iter().collect::<Vec<_>>()) {
            possible += 1;
            decoded += usize::from(code.is_sufficient_set(&ChunkSet::first(code.n()).difference(&lost)));
        }
    }
    (possible, decoded)
}

#[test]
fn the_widest_code_decodes_four_losses_and_nearly_all_of_five() {
    let code: Code = "wide(128,27,4)".parse().unwrap();
    assert_eq!(sampled_losses(&code, 4, 4000, 1), (4000, 4000));
    let (possible, decoded) = sampled_losses(&code, 5, 4000, 2);
    // Five losses in one group are one more than its four equations.
    assert!((1500..3000).contains(&possible), "{possible}");
    assert!(decoded * 100 >= possible * 99, "{decoded} of {possible}");
}

#[test]
fn local_parities_of_every_accepted_set_are_the_xor_of_disjoint_groups() {
    for (k, l, _, code) in accepted() {
        for local in 0..l {
            let group = local * k / l..(local + 1) * k / l;
            let expected: Vec<u8> = (0..k).map(|index| u8::from(group.contains(&index))).collect();
            assert_eq!(code.row(k + local), expected);
        }
    }
}

#[test]
fn global_parities_of_every_larger_set_are_a_prefix_of_those_whose_minors_are_tested() {
    let largest: Vec<_> = (1..=MAX_K.len()).map(largest_global_rows).collect();
    for (k, l, g, code) in accepted().filter(|(.., code)| code.n() > SMALL_N) {
        for (global, row) in largest[g - 1].iter().enumerate() {
            assert_eq!(code.row(k + l + global), row[..k], "lrc({k},{l},{g})");
        }
    }
}

#[test]
fn all_minors_of_the_largest_matrix_are_nonzero_for_every_g() {
    let products: Vec<[u8; 256]> =
        (0..=255).map(|a| std::array::from_fn(|b| gf256::mul(a, b as u8))).collect();
    for g in 1..=MAX_K.len() {
        let mut rows = vec![vec![1u8; MAX_K[g - 1]]];
        rows.extend(largest_global_rows(g));
        for size in 1..=g + 1 {
            for_each_subset(g + 1, size, &mut |chosen| {
                let rows: Vec<Vec<u8>> = chosen.iter().map(|row| rows[*row].clone()).collect();
                assert!(all_minors_are_nonzero(&products, rows), "g = {g}, rows {chosen:?}");
            });
        }
    }
}

/// Whether every choice of as many columns as there are rows is invertible, given that the leading rows alone have that
/// property. Eliminates the first row with each column as pivot, and recurses on the other rows and the columns after
/// the pivot. The pivot is never zero: it is a quotient of minors of the leading rows.
fn all_minors_are_nonzero(products: &[[u8; 256]], mut rows: Vec<Vec<u8>>) -> bool {
    let pivot_row = rows.remove(0);
    if pivot_row.contains(&0) {
        return false;
    }
    if rows.is_empty() {
        return true;
    }
    (0..pivot_row.len().saturating_sub(rows.len())).all(|column| {
        let scale = gf256::inv(pivot_row[column]);
        let scaled: Vec<u8> = pivot_row[column + 1..].iter().map(|x| gf256::mul(*x, scale)).collect();
        let rest = rows.iter().map(|row| {
            let factor = &products[usize::from(row[column])];
            row[column + 1..].iter().zip(&scaled).map(|(x, pivot)| x ^ factor[usize::from(*pivot)]).collect()
        });
        all_minors_are_nonzero(products, rest.collect())
    })
}

#[test]
fn small_sets_are_maximally_recoverable_or_nearly_so() {
    let mut not_maximal = Vec::new();
    for (k, l, g, code) in accepted().filter(|(.., code)| code.n() <= SMALL_N) {
        let found = recoverability(&code);
        assert!(found.possible > 0 && found.fraction() > 0.99, "{code}: {found:?}");
        if g <= 3 && !found.is_maximal() {
            not_maximal.push((k, l, g));
        }
    }
    // With more than 3 global parities there are more losses than a search in such a small field can satisfy.
    assert_eq!(not_maximal, [(12, 3, 3), (14, 2, 3)]);
}

#[test]
fn wide_sets_decode_nearly_all_sampled_losses_that_any_code_with_their_groups_could() {
    for (k, l, g) in [(24, 4, 2), (64, 8, 3), (128, 16, 4)] {
        let code = Code::lrc(k, l, g).unwrap();
        let found = sampled_recoverability(&code, 2000, 1);
        assert!(found.possible > 500 && found.fraction() > 0.98, "{code}: {found:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn wide_sets_decode_random_losses_of_g_plus_1_chunks(
        (k, l, g) in prop_oneof![Just((60, 5, 2)), Just((128, 16, 4)), Just((240, 8, 3)), Just((32, 4, 8))],
        picks in prop::collection::vec(any::<Index>(), 9)
    ) {
        let code = Code::lrc(k, l, g).unwrap();
        let mut rest: Vec<usize> = (0..code.n()).collect();
        for pick in &picks[..=g] {
            rest.swap_remove(pick.index(rest.len()));
        }
        prop_assert!(code.is_sufficient(&rest));
    }
}

/// The cost of the cheapest equation, by trying all sets of sources.
fn cheapest_by_enumeration(code: &Code, lost: usize, costs: &[Option<f64>]) -> Option<f64> {
    let others: Vec<usize> =
        (0..code.n()).filter(|index| *index != lost && costs[*index].is_some()).collect();
    (0u32..1 << others.len())
        .map(|mask| -> Vec<usize> {
            (0..others.len()).filter(|bit| mask >> bit & 1 == 1).map(|bit| others[bit]).collect()
        })
        .filter(|sources| code.decode_plan(sources, &[lost]).is_ok())
        .map(|sources| sources.iter().filter_map(|source| costs[*source]).sum::<f64>())
        .min_by(f64::total_cmp)
}

fn any_small_code() -> impl Strategy<Value = Code> {
    prop::sample::select(vec![
        "rs(4,2)",
        "rs(6,3)",
        "replica(4)",
        "lrc(4,2,1)",
        "lrc(6,2,2)",
        "lrc(6,3,2)",
        "lrc(6,1,2)",
        "wide(5,3,3)",
        "wide(7,3,2)",
    ])
    .prop_map(|name| name.parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_cheapest_repair_is_the_cheapest_of_all_equations(
        code in any_small_code(), lost in any::<Index>(),
        costs in prop::collection::vec(prop::option::weighted(0.85, prop_oneof![Just(0.0), 0.1f64..10.0]), 11)
    ) {
        let lost = lost.index(code.n());
        let costs = &costs[..code.n()];
        match (code.cheapest_repair(lost, costs), cheapest_by_enumeration(&code, lost, costs)) {
            (Ok(found), Some(cheapest)) => prop_assert!((found.cost - cheapest).abs() < 1e-9, "{} {}", found.cost, cheapest),
            (Err(_), None) => {}
            (found, cheapest) => prop_assert!(false, "{found:?} but {cheapest:?}"),
        }
    }

    #[test]
    fn every_repair_equation_is_an_identity_of_the_matrix_and_reads_only_what_it_may(
        code in prop_oneof![any_small_code(), prop::sample::select(vec!["rs(128,8)", "lrc(8,2,3)", "lrc(128,16,4)", "lrc(12,2,4)", "wide(128,27,4)", "wide(10,4,4)"])
            .prop_map(|name| name.parse().unwrap())],
        lost in any::<Index>(), seed: u64
    ) {
        let lost = lost.index(code.n());
        let cost = |chunk: usize| {
            let word = (seed ^ chunk as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            (!word.is_multiple_of(11)).then_some((word % 7) as f64)
        };
        let costs: Vec<Option<f64>> = (0..code.n()).map(cost).collect();
        let available: Vec<usize> = (0..code.n()).filter(|i| *i != lost && costs[*i].is_some()).collect();
        let Ok(equation) = code.cheapest_repair(lost, &costs) else {
            prop_assert!(code.decode_plan(&available, &[lost]).is_err());
            return Ok(());
        };
        let mut row = vec![0u8; code.k()];
        for (source, coefficient) in &equation.sources {
            prop_assert!(available.contains(source) && *coefficient != 0);
            gf256::accumulate_reference(*coefficient, &code.row(*source), &mut row);
        }
        prop_assert_eq!(row, code.row(lost));
        let sum: f64 = equation.sources.iter().filter_map(|(source, _)| costs[*source]).sum();
        prop_assert_eq!(sum, equation.cost);
        // Never more expensive than plain decoding.
        let plan = code.decode_plan(&available, &[lost]).unwrap();
        let plain: f64 = plan.sources().iter().filter_map(|source| costs[*source]).sum();
        prop_assert!(equation.cost <= plain + 1e-9 || !code.to_string().starts_with("rs"));
    }

    #[test]
    fn evaluating_a_repair_equation_gives_the_lost_chunk(
        code in any_small_code(), lost in any::<Index>(), bytes in subsequence((0..=255u8).collect::<Vec<_>>(), 60)
    ) {
        let lost = lost.index(code.n());
        let data: Vec<Vec<u8>> = (0..code.k()).map(|i| bytes.iter().map(|b| b.rotate_left(i as u32) ^ i as u8).collect()).collect();
        let mut stripe = data.clone();
        stripe.resize(code.n(), vec![0; bytes.len()]);
        let (data, parity) = stripe.split_at_mut(code.k());
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        code.encode(&data, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>()).unwrap();
        let equation = code.cheapest_repair(lost, &vec![Some(1.0); code.n()]).unwrap();
        let inputs: Vec<&[u8]> = equation.sources.iter().map(|(source, _)| stripe[*source].as_slice()).collect();
        let mut output = vec![0u8; bytes.len()];
        equation.apply(&inputs, &mut output).unwrap();
        prop_assert_eq!(&output, &stripe[lost]);
    }
}

#[test]
fn an_lrc_repairs_a_data_chunk_from_its_group_unless_that_is_dearer() {
    let code = Code::lrc(12, 2, 2).unwrap();
    let mut costs = vec![Some(1.0); code.n()];
    let local = code.cheapest_repair(1, &costs).unwrap();
    assert_eq!(local.sources, [0, 2, 3, 4, 5, 12].map(|source| (source, 1)));
    costs[12] = Some(100.0);
    let global = code.cheapest_repair(1, &costs).unwrap();
    assert!(global.cost <= 12.0 && global.sources.iter().all(|(source, _)| *source != 12));
    costs[0] = None;
    assert!(code.cheapest_repair(1, &costs).is_ok());
}
