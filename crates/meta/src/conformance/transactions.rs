//! Rules of a single transaction.

use bytes::Bytes;

use super::{Store, delete, done, fresh_id, get, put, transaction};
use crate::keys;
use crate::store::{Commit, LeaseId, MetaError, Precondition, Revision, Transaction, limits};

pub(super) async fn all_preconditions_hold_or_nothing_is_written(store: Store) {
    let present = put(&store, "present", "1").await;
    let cases = [
        (Precondition::Absent("absent".into()), true),
        (Precondition::Absent("present".into()), false),
        (Precondition::Exists("present".into()), true),
        (Precondition::Exists("absent".into()), false),
        (Precondition::Version("present".into(), present), true),
        (Precondition::Version("present".into(), Revision(present.0 + 1)), false),
        (Precondition::Version("absent".into(), present), false),
        (Precondition::LeaseAlive(LeaseId(u64::MAX)), false),
    ];
    for (number, (precondition, holds)) in cases.into_iter().enumerate() {
        let (first, second) = (format!("written {number} a"), format!("written {number} b"));
        let mut tx = transaction();
        tx.require(precondition.clone()).put(first.clone(), "v").put(second.clone(), "v");
        let committed = matches!(store.commit(tx).await, Ok(Commit::Done(_)));
        assert_eq!(committed, holds, "{precondition:?}");
        assert_eq!(get(&store, first.as_bytes()).await.is_some(), holds, "{precondition:?}");
        assert_eq!(get(&store, second.as_bytes()).await.is_some(), holds, "{precondition:?}");
    }
}

pub(super) async fn the_first_failed_precondition_is_named(store: Store) {
    put(&store, "a", "1").await;
    let mut tx = transaction();
    tx.require(Precondition::Exists("a".into()));
    tx.require(Precondition::Absent("a".into()));
    tx.require(Precondition::Exists("b".into()));
    tx.delete("a");
    assert_eq!(store.commit(tx).await.unwrap(), Commit::Conflict { failed: 1 });
    assert!(get(&store, b"a").await.is_some());
}

pub(super) async fn versions_are_revisions_and_only_grow(store: Store) {
    let mut last = Revision(0);
    for round in 0..20 {
        let mut tx = transaction();
        tx.put("a", vec![round]).put("b", vec![round]);
        let revision = done(store.commit(tx).await.unwrap());
        assert!(revision > last, "revisions grow");
        last = revision;
        for key in [b"a", b"b"] {
            let row = get(&store, key).await.expect("it was written");
            assert_eq!((row.version, &row.value[..]), (revision, &[round][..]));
        }
    }
}

pub(super) async fn a_row_that_was_removed_and_came_back_has_another_version(store: Store) {
    let before = put(&store, "a", "same").await;
    delete(&store, "a").await;
    put(&store, "a", "same").await;
    let mut tx = transaction();
    tx.require(Precondition::Version("a".into(), before)).delete("a");
    assert_eq!(store.commit(tx).await.unwrap(), Commit::Conflict { failed: 0 });
}

/// A transaction that committed returns its first outcome when it is submitted again, even after its preconditions
/// cease to hold. A transaction that conflicted wrote nothing, and may commit later.
pub(super) async fn the_same_id_is_applied_once(store: Store) {
    let id = fresh_id();
    let mut tx = Transaction::new(id);
    tx.require(Precondition::Absent("a".into())).put("a", "1").put("counter", "1");
    let first = done(store.commit(tx.clone()).await.unwrap());
    put(&store, "counter", "2").await;
    assert_eq!(store.commit(tx.clone()).await.unwrap(), Commit::Done(first), "the first outcome");
    assert_eq!(get(&store, b"counter").await.unwrap().value, "2", "nothing was applied again");

    let mut late = transaction();
    late.require(Precondition::Absent("a".into())).put("a", "late");
    assert_eq!(store.commit(late.clone()).await.unwrap(), Commit::Conflict { failed: 0 });
    assert_eq!(get(&store, b"a").await.unwrap().value, "1");

    let both = (store.commit(late.clone()), store.commit(late));
    let both = futures_join(both.0, both.1).await;
    assert_eq!(both, (Commit::Conflict { failed: 0 }, Commit::Conflict { failed: 0 }));

    let mut twins = transaction();
    twins.put("twin", "1");
    let (one, other) = futures_join(store.commit(twins.clone()), store.commit(twins)).await;
    assert_eq!(one, other, "two submissions of one id at once have one outcome");
}

async fn futures_join<A, B>(a: A, b: B) -> (Commit, Commit)
where
    A: Future<Output = Result<Commit, MetaError>>,
    B: Future<Output = Result<Commit, MetaError>>,
{
    let (a, b) = tokio::join!(a, b);
    (a.unwrap(), b.unwrap())
}

pub(super) async fn limits_are_refused_and_their_bounds_accepted(store: Store) {
    let refused = |tx: &Transaction| {
        let (store, tx) = (store.clone(), tx.clone());
        async move {
            assert!(matches!(store.commit(tx).await, Err(MetaError::TooLarge(_))));
            assert!(store.scan(crate::ScanRange::prefix(b""), 1).await.unwrap().is_empty());
        }
    };
    let mut too_many = transaction();
    for number in 0..=limits::MAX_OPERATIONS {
        too_many.put(format!("{number}"), "");
    }
    refused(&too_many).await;
    let mut long_key = transaction();
    long_key.put(vec![b'k'; limits::MAX_KEY_BYTES + 1], "");
    refused(&long_key).await;
    let mut no_key = transaction();
    no_key.put("", "v");
    refused(&no_key).await;
    let mut long_value = transaction();
    long_value.put("k", vec![0; limits::MAX_VALUE_BYTES + 1]);
    refused(&long_value).await;
    let mut too_large = transaction();
    for number in 0..=limits::MAX_TRANSACTION_BYTES / limits::MAX_VALUE_BYTES {
        too_large.put(format!("{number}"), vec![0; limits::MAX_VALUE_BYTES]);
    }
    refused(&too_large).await;
    refused(&long_preconditions()).await;

    let value = Bytes::from(vec![7; limits::MAX_VALUE_BYTES]);
    let key = vec![b'k'; limits::MAX_KEY_BYTES];
    put(&store, key.clone(), value.clone()).await;
    assert_eq!(get(&store, &key).await.unwrap().value, value);
    let mut many = transaction();
    for number in 0..limits::MAX_OPERATIONS {
        many.put(format!("many {number}"), "");
    }
    done(store.commit(many).await.unwrap());
    done(store.commit(largest()).await.unwrap());
}

/// A transaction that its preconditions make too large.
fn long_preconditions() -> Transaction {
    let mut tx = transaction();
    for number in 0..3_u8 {
        tx.put(vec![number], vec![0; limits::MAX_VALUE_BYTES]);
    }
    for number in 0..64_u8 {
        tx.require(Precondition::Absent(vec![number; limits::MAX_KEY_BYTES].into()));
    }
    tx
}

/// A transaction with the maximum number of operations and of bytes; as many bytes as possible are in the keys of
/// preconditions.
fn largest() -> Transaction {
    const WRITES: usize = 3;
    let mut tx = transaction();
    let mut left = limits::MAX_TRANSACTION_BYTES;
    for number in 0..limits::MAX_OPERATIONS - WRITES {
        let mut key = vec![b'q'; limits::MAX_KEY_BYTES];
        key[0] = number as u8;
        left -= key.len();
        tx.require(Precondition::Absent(key.into()));
    }
    for number in 0..WRITES {
        let len = (left - 2).min(limits::MAX_VALUE_BYTES);
        left -= 2 + len;
        tx.put(vec![b'p', number as u8], vec![5; len]);
    }
    assert_eq!(left, 0);
    tx
}

pub(super) async fn the_mark_of_a_migration_refuses_all_others(store: Store) {
    let before = fresh_id();
    let mut known = Transaction::new(before);
    known.put("a", "1");
    let revision = done(store.commit(known.clone()).await.unwrap());
    let mut mark = transaction();
    mark.put(keys::migration(), "mark").put("beside the mark", "1");
    done(store.commit(mark.clone()).await.unwrap());

    let mut refused = transaction();
    refused.put("a", "2");
    assert!(matches!(store.commit(refused.clone()).await, Err(MetaError::Moved(_))));
    let mut conflicting = transaction();
    conflicting.require(Precondition::Absent("a".into())).put("b", "2");
    assert!(matches!(store.commit(conflicting).await, Err(MetaError::Moved(_))));
    assert_eq!(store.commit(known).await.unwrap(), Commit::Done(revision), "what was committed stays so");
    assert_eq!(get(&store, b"a").await.unwrap().value, "1", "reads go on");

    let mut unmark = transaction();
    unmark.delete(keys::migration());
    done(store.commit(unmark).await.unwrap());
    done(store.commit(refused).await.unwrap());
}
