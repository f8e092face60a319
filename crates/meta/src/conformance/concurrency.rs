//! Rules of concurrent transactions.

use bytes::Bytes;
use striate_runtime::Runtime;

use super::{Store, done, get, put, transaction};
use crate::store::{Commit, Precondition, ScanRange};

pub(super) fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).expect("the value is a number")
}

/// Adds one to `key`, and retries until there is no conflict.
pub(super) async fn increment(store: &Store, key: &'static str) {
    loop {
        let row = get(store, key.as_bytes()).await;
        let next = row.as_ref().map_or(0, |row| number(&row.value)) + 1;
        let mut tx = transaction();
        tx.require_unchanged(key, row.as_ref()).put(key, next.to_string());
        match store.commit(tx).await.expect("an increment is answered") {
            Commit::Done(_) => return,
            Commit::Conflict { failed } => assert_eq!(failed, 0),
        }
    }
}

pub(super) async fn increments_lose_nothing(runtime: &Runtime, store: Store) {
    const TASKS: u64 = 8;
    const EACH: u64 = 25;
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let store = store.clone();
            runtime.spawn(async move {
                for _ in 0..EACH {
                    increment(&store, "shared").await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("an increment does not panic");
    }
    assert_eq!(number(&get(&store, b"shared").await.unwrap().value), TASKS * EACH);
}

/// One writer keeps two rows equal and moves a third; readers must never see a transaction half done.
pub(super) async fn a_scan_and_a_get_many_see_one_state(runtime: &Runtime, store: Store) {
    let mut first = transaction();
    first.put("a", "0").put("z", "0").put("moving 0", "");
    done(store.commit(first).await.unwrap());
    let writer = runtime.spawn({
        let store = store.clone();
        async move {
            for round in 1..=100_u32 {
                let mut tx = transaction();
                tx.put("a", round.to_string()).put("z", round.to_string());
                tx.delete(format!("moving {}", round - 1)).put(format!("moving {round}"), "");
                done(store.commit(tx).await.unwrap());
                tokio::task::yield_now().await;
            }
        }
    });
    while !writer.is_finished() {
        let both = store.get_many(&[Bytes::from("a"), Bytes::from("z")]).await.unwrap();
        let [Some(a), Some(z)] = &both[..] else { panic!("both rows exist") };
        assert_eq!((&a.value, a.version), (&z.value, z.version), "get_many is from one state");
        let rows = store.scan(ScanRange::prefix(b""), 10).await.unwrap();
        assert_eq!(rows.len(), 3, "the moving row is seen exactly once: {rows:?}");
        assert_eq!(rows[0].version, rows[2].version, "a scan is from one state");
        tokio::task::yield_now().await;
    }
    writer.await.expect("the writer does not panic");
}

pub(super) async fn of_many_that_create_a_row_one_wins(runtime: &Runtime, store: Store) {
    let tasks: Vec<_> = (0..16_u8)
        .map(|task| {
            let store = store.clone();
            runtime.spawn(async move {
                let mut tx = transaction();
                tx.require(Precondition::Absent("winner".into())).put("winner", vec![task]);
                matches!(store.commit(tx).await, Ok(Commit::Done(_)))
            })
        })
        .collect();
    let mut winners = Vec::new();
    for (task, handle) in tasks.into_iter().enumerate() {
        if handle.await.expect("a creator does not panic") {
            winners.push(task);
        }
    }
    assert_eq!(winners.len(), 1, "one creation wins");
    assert_eq!(get(&store, b"winner").await.unwrap().value[0] as usize, winners[0]);
}

/// Two transactions read both rows and each writes a different one: without checks on the rows that were only read,
/// both would commit. A phantom is the same with an absent row.
pub(super) async fn write_skew_is_prevented(runtime: &Runtime, store: Store) {
    for round in 0..20 {
        let keys = [format!("{round} a"), format!("{round} b")];
        put(&store, keys[0].clone(), "1").await;
        let rows = [get(&store, keys[0].as_bytes()).await, get(&store, keys[1].as_bytes()).await];
        assert_eq!(rows[1], None);
        let tasks: Vec<_> = (0..2)
            .map(|mine| {
                let mut tx = transaction();
                for (key, row) in keys.iter().zip(&rows) {
                    tx.require_unchanged(key.clone(), row.as_ref());
                }
                tx.put(keys[mine].clone(), "2");
                let store = store.clone();
                runtime.spawn(async move { store.commit(tx).await.unwrap() })
            })
            .collect();
        let mut commits = 0;
        for task in tasks {
            commits += usize::from(matches!(task.await.unwrap(), Commit::Done(_)));
        }
        assert_eq!(commits, 1, "one of two transactions that exclude each other commits");
    }
}
