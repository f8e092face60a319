//! Sequences of operations for the model tests.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use striate_meta::conformance::model::{Check, Operation};

fn key() -> impl Strategy<Value = Bytes> {
    vec(prop_oneof![Just(0_u8), Just(b'a'), Just(b'b'), Just(0xff)], 1..4).prop_map(Bytes::from)
}

fn value() -> impl Strategy<Value = Bytes> {
    prop_oneof![4 => vec(any::<u8>(), 0..20), 1 => vec(any::<u8>(), 3_000..9_000)].prop_map(Bytes::from)
}

fn check() -> impl Strategy<Value = Check> {
    prop_oneof![
        6 => Just(Check::Unchanged),
        1 => Just(Check::Absent),
        1 => Just(Check::Exists),
        1 => Just(Check::WrongVersion),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let bound = || prop_oneof![1 => Just(Bytes::new()), 3 => key()];
    prop_oneof![
        6 => (vec((key(), check()), 0..3), vec((key(), proptest::option::weighted(0.7, value())), 0..4))
            .prop_map(|(checks, writes)| Operation::Commit { checks, writes }),
        1 => (0..6_usize).prop_map(Operation::Resubmit),
        2 => vec(key(), 0..4).prop_map(Operation::Get),
        2 => (bound(), bound(), 0..8_usize).prop_map(|(start, end, limit)| Operation::Scan(start, end, limit)),
    ]
}

/// Generates sequences of fewer than `longest` operations.
pub fn operations(longest: usize) -> impl Strategy<Value = Vec<Operation>> {
    vec(operation(), 1..longest)
}
