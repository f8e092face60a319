//! ECWide's codes: local groups may differ in size, any f losses decode, and a chunk is repaired from its group.

use striate_codec::lrc::{SMALL_N, for_each_subset};
use striate_codec::{ChunkSet, Code, gf256};
use striate_splitmix::SplitMix64;

fn wide(k: usize, r: usize, f: usize) -> Code {
    format!("wide({k},{r},{f})").parse().unwrap()
}

#[test]
fn every_small_set_decodes_every_loss_of_f_chunks() {
    let mut ragged = 0;
    for (k, r, f) in (2..=13).flat_map(|k| (2..=k).flat_map(move |r| (2..=4).map(move |f| (k, r, f)))) {
        let Ok(code) = Code::wide(k, r, f) else { continue };
        if code.n() > SMALL_N.min(17) {
            continue;
        }
        ragged += usize::from(!k.is_multiple_of(r));
        assert_eq!((code.n(), code.tolerance()), (k + k.div_ceil(r) + f - 1, f));
        let all = ChunkSet::first(code.n());
        for_each_subset(code.n(), f, &mut |lost| {
            let rest = all.difference(&lost.iter().copied().collect());
            assert!(code.is_sufficient_set(&rest), "wide({k},{r},{f}) does not decode the loss of {lost:?}");
        });
    }
    assert!(ragged > 50, "only {ragged} sets have groups that differ");
}

#[test]
fn a_code_of_equal_groups_is_the_lrc() {
    for (k, r, f) in [(12, 6, 3), (10, 5, 4), (120, 24, 4), (6, 3, 3)] {
        let (wide, lrc) = (wide(k, r, f), Code::lrc(k, k / r, f - 1).unwrap());
        assert!((0..lrc.n()).all(|chunk| wide.row(chunk) == lrc.row(chunk)));
    }
}

#[test]
fn any_four_losses_of_the_widest_decode_and_most_of_five_do() {
    let (code, mut random) = (wide(128, 27, 4), SplitMix64::new(1));
    assert_eq!((code.n(), code.k(), code.tolerance()), (136, 128, 4));
    let all = ChunkSet::first(code.n());
    let mut decodes = |losses: usize| {
        let mut lost = ChunkSet::EMPTY;
        while lost.len() < losses {
            lost.insert((random.next() % 136) as usize);
        }
        code.is_sufficient_set(&all.difference(&lost))
    };
    assert!((0..300).all(|_| decodes(4)));
    // Five losses are too many only if one local and three global parities are not enough: mostly, if all five are in
    // one group.
    assert!((0..300).filter(|_| decodes(5)).count() > 290);
    let without = |lost: [usize; 5]| all.difference(&lost.into_iter().collect());
    assert!(!code.is_sufficient_set(&without([0, 1, 2, 3, 4])));
    assert!(!code.is_sufficient_set(&without([0, 1, 133, 134, 135])));
    assert!(code.is_sufficient_set(&without([0, 27, 54, 81, 108])));
}

#[test]
fn a_chunk_of_a_group_is_repaired_from_it_and_a_global_parity_from_all_data() {
    let code = wide(128, 27, 4);
    let costs = vec![Some(1.0); 136];
    for lost in 0..136 {
        let equation = code.cheapest_repair(lost, &costs).unwrap();
        let expected = match lost {
            0..108 | 128..132 => 27,
            108..128 | 132 => 20,
            _ => 109,
        };
        match lost {
            133.. => assert!((expected..=128).contains(&equation.sources.len()), "chunk {lost}"),
            _ => assert_eq!(equation.sources.len(), expected, "chunk {lost}"),
        }
        let mut sum = vec![0; 128];
        for &(source, by) in &equation.sources {
            gf256::accumulate_reference(by, &code.row(source), &mut sum);
        }
        assert_eq!(sum, code.row(lost), "chunk {lost}");
    }
}

#[test]
fn fig_2_parity_locality_reads_few_chunks_and_combined_locality_few_racks() {
    // (26, 20, 5): repairing D1 cancels out D2 to D5 from P1.
    let equation = wide(20, 5, 3).cheapest_repair(0, &vec![Some(1.0); 26]).unwrap();
    assert_eq!(equation.sources, [(1, 1), (2, 1), (3, 1), (4, 1), (20, 1)]);
    // (32, 20, 2).
    let equation = wide(20, 2, 3).cheapest_repair(0, &vec![Some(1.0); 32]).unwrap();
    assert_eq!(equation.sources, [(1, 1), (20, 1)]);
}

#[test]
fn the_matrices_of_stored_codes_never_change() {
    let hash = |text: &str| {
        let code: Code = text.parse().unwrap();
        (code.k()..code.n())
            .flat_map(|chunk| code.row(chunk))
            .fold(0, |sum: u64, byte| striate_splitmix::hash(sum ^ u64::from(byte)))
    };
    let codes = ["rs(4,2)", "rs(10,4)", "lrc(6,2,2)", "lrc(12,2,2)", "wide(48,15,4)", "wide(128,27,4)"];
    let found: Vec<u64> = codes.iter().map(|code| hash(code)).collect();
    let expected = [
        4910000642911356349u64,
        10144441994321653502,
        7341391992618373405,
        3702428640549290044,
        18112076194486543405,
        13130121034818382437,
    ];
    assert_eq!(found, expected);
}
