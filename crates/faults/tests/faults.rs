//! Fault runs: seeds break no invariant, are reproducible, and find planted defects.

use striate_faults::campaign::Campaign;
use striate_faults::mutation::Mutation;
use striate_faults::run::{RunOptions, run};
use striate_faults::shape::{Shape, ShapeFilter};

fn campaign(from: u64, seeds: u64, mutation: Mutation) -> Campaign {
    Campaign {
        from,
        seeds,
        filter: ShapeFilter::default(),
        operations: 500,
        faults: 20,
        mutation,
        jobs: 2,
        out: None,
        program: String::new(),
    }
}

/// The first seeds of `make faults`. They include all families of profiles and both kinds of end.
#[test]
fn some_seeds_break_no_invariant() {
    let shown = campaign(1, 8, Mutation::None).run(|_| {}).unwrap();
    assert!(shown.failed.is_empty(), "{:#?}", shown.failed);
    assert_eq!(shown.clean, 8);
    assert!(shown.operations >= 8 * 500 && shown.faults >= 8 * 10, "{shown:?}");
}

/// Guards against a campaign that tests less than it claims: codes whose groups fill their racks used to be aborted
/// each time.
#[test]
fn every_wide_code_of_the_campaign_is_sealed_where_nothing_fails() {
    for wide in ["wide(4,2,2)", "wide(6,3,2)", "wide(10,5,3)"] {
        // In some seeds no operation seals.
        let seeds = (1..).filter(|&seed| Shape::of(seed).wide == Some(wide)).take(2);
        let sealed = seeds.map(|seed| {
            let report = run(RunOptions { operations: 200, faults: 0, ..RunOptions::new(seed) });
            assert_eq!(report.broken, None, "seed {seed}");
            report.sealing.sealed
        });
        assert!(sealed.sum::<u64>() > 0, "{wide}");
    }
}

/// I14.
#[test]
fn one_seed_gives_one_trace_and_another_seed_another() {
    let report = run(RunOptions::new(4));
    assert_eq!(report, run(RunOptions::new(4)));
    assert_ne!(report.digest.hash, run(RunOptions::new(8)).digest.hash);
}

/// Each defect breaks a different invariant; `make prove-lab` runs all mutations.
#[test]
fn planted_defects_are_found() {
    for (mutation, invariants) in [
        (Mutation::SkipFsync, &["I7"][..]),
        (Mutation::DeleteBeforeCommit, &["I8"]),
        (Mutation::WrongChecksumScope, &["I1", "I2", "I13"]),
        // A chunk that has moved away and come back is deleted in place of the old one.
        (Mutation::ForgetGeneration, &["I7", "I8", "I13"]),
        // A write that left out chunks of one local group.
        (Mutation::AcknowledgeByCount, &["I7"]),
        // The seed decides which part of a key's history shows it first: values, listings or deletions; or the stripe
        // of a version that two writers replaced and neither released.
        (Mutation::ConditionOutsideTransaction, &["I3", "I4", "I9", "Orphans"]),
        // A packed object was deleted, and no scan finds it.
        (Mutation::DeathUnmarked, &["Orphans"]),
        // A member whose wide stripe would be read at its old place; and a partition that nothing protects.
        (Mutation::MoveForgetsCopy, &["Members"]),
        (Mutation::DropWhileBuilding, &["Protected"]),
    ] {
        let shown = campaign(1, 200, mutation).run(|_| {}).unwrap();
        let found = shown.failed.first().unwrap_or_else(|| panic!("{mutation} was not found"));
        assert!(invariants.contains(&found.invariant.as_str()), "{mutation} broke {found:?}");
    }
}
