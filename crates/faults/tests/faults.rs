//! Fault runs: seeds break nothing, are the same every time, and find defects that are planted.

use striate_faults::campaign::Campaign;
use striate_faults::mutation::Mutation;
use striate_faults::run::{RunOptions, run};
use striate_faults::shape::Shape;

fn campaign(from: u64, seeds: u64, mutation: Mutation) -> Campaign {
    Campaign {
        from,
        seeds,
        family: None,
        operations: 500,
        faults: 20,
        mutation,
        jobs: 2,
        out: None,
        program: String::new(),
    }
}

/// The first of `make faults`' seeds; all families of profiles are among them, and both kinds of end.
#[test]
fn some_seeds_break_no_invariant() {
    let shown = campaign(1, 8, Mutation::None).run(|_| {}).unwrap();
    assert!(shown.failed.is_empty(), "{:#?}", shown.failed);
    assert_eq!(shown.clean, 8);
    assert!(shown.operations >= 8 * 500 && shown.faults >= 8 * 10, "{shown:?}");
}

/// Otherwise the campaign tries less than it says: codes whose groups fill their racks were given up each time.
#[test]
fn every_wide_code_of_the_campaign_is_sealed_where_nothing_fails() {
    for wide in ["wide(4,2,2)", "wide(6,3,2)", "wide(10,5,3)"] {
        let seed =
            (1..).find(|&seed| Shape::of(seed).wide == Some(wide)).expect("there are seeds without end");
        let report = run(RunOptions { operations: 200, faults: 0, ..RunOptions::new(seed) });
        assert_eq!(report.broken, None, "seed {seed}");
        assert!(report.sealing.sealed > 0, "{wide}, seed {seed}: {:?}", report.sealing);
    }
}

/// I14.
#[test]
fn one_seed_gives_one_trace_and_another_seed_another() {
    let report = run(RunOptions::new(4));
    assert_eq!(report, run(RunOptions::new(4)));
    assert_ne!(report.digest.hash, run(RunOptions::new(8)).digest.hash);
}

/// Each by another invariant; `make prove-lab` has all mutations.
#[test]
fn planted_defects_are_found() {
    for (mutation, invariants) in [
        (Mutation::SkipFsync, &["I7"][..]),
        (Mutation::DeleteBeforeCommit, &["I8"]),
        (Mutation::WrongChecksumScope, &["I1", "I2", "I13"]),
        // What has moved away and come back is deleted for the old one.
        (Mutation::ForgetGeneration, &["I7", "I8", "I13"]),
        // A write that left out chunks of one local group.
        (Mutation::AcknowledgeByCount, &["I7"]),
        // Which part of a key's history shows it first depends on the seed: values, listings or deletions; or the stripe of a
        // version that two writers replaced, which nobody released.
        (Mutation::ConditionOutsideTransaction, &["I3", "I4", "I9", "Orphans"]),
        // A packed object that was deleted, and that nobody looks for.
        (Mutation::DeathUnmarked, &["Orphans"]),
        // A member whose wide stripe would be read where it was; and a partition that nothing protects.
        (Mutation::MoveForgetsCopy, &["Members"]),
        (Mutation::DropWhileBuilding, &["Protected"]),
    ] {
        let shown = campaign(1, 200, mutation).run(|_| {}).unwrap();
        let found = shown.failed.first().unwrap_or_else(|| panic!("{mutation} was not found"));
        assert!(invariants.contains(&found.invariant.as_str()), "{mutation} broke {found:?}");
    }
}
