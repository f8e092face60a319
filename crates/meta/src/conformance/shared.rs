//! Rules of an engine that several processes share, each through its own handle.

use std::time::Duration;

use striate_runtime::Runtime;

use super::concurrency::{increment, number};
use super::{Store, done, get, put, transaction};
use crate::store::{Commit, Precondition, Revision};

pub(super) async fn what_one_commits_the_other_reads_at_once((one, other): (Store, Store)) {
    let mut last = Revision(0);
    for round in 0..20_u8 {
        let (writer, reader) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let revision = put(writer, "a", vec![round]).await;
        assert!(revision > last, "revisions grow whoever commits");
        last = revision;
        let row = get(reader, b"a").await.expect("it was acknowledged");
        assert_eq!((row.version, &row.value[..]), (revision, &[round][..]));
    }
}

pub(super) async fn one_id_is_applied_once_by_both((one, other): (Store, Store)) {
    let mut tx = transaction();
    tx.require(Precondition::Absent("a".into())).put("a", "1");
    let first = done(one.commit(tx.clone()).await.unwrap());
    put(&other, "a", "2").await;
    assert_eq!(other.commit(tx).await.unwrap(), Commit::Done(first));
    assert_eq!(get(&one, b"a").await.unwrap().value, "2");

    let mut twins = transaction();
    twins.put("twin", "1");
    let (here, there) = tokio::join!(one.commit(twins.clone()), other.commit(twins));
    assert_eq!(here.unwrap(), there.unwrap(), "two submissions of one id have one outcome");
}

pub(super) async fn increments_of_both_lose_nothing(runtime: &Runtime, (one, other): (Store, Store)) {
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let store = if task % 2 == 0 { one.clone() } else { other.clone() };
            runtime.spawn(async move {
                for _ in 0..15 {
                    increment(&store, "shared").await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("an increment does not panic");
    }
    assert_eq!(number(&get(&other, b"shared").await.unwrap().value), 8 * 15);
}

pub(super) async fn of_both_that_create_rows_one_wins_each(runtime: &Runtime, (one, other): (Store, Store)) {
    for round in 0..20_u8 {
        let tasks = [one.clone(), other.clone()].map(|store| {
            runtime.spawn(async move {
                let mut tx = transaction();
                let id = tx.id;
                tx.require(Precondition::Absent(vec![round].into()));
                tx.put(vec![round], id.0.to_be_bytes().to_vec());
                (id, store.commit(tx).await.unwrap())
            })
        });
        let mut winners = Vec::new();
        for task in tasks {
            let (id, commit) = task.await.expect("a creator does not panic");
            if let Commit::Done(_) = commit {
                winners.push(id.0.to_be_bytes().to_vec());
            }
        }
        assert_eq!(winners.len(), 1, "one creation wins");
        assert_eq!(get(&one, &[round]).await.unwrap().value, winners[0]);
    }
}

pub(super) async fn leases_are_one_for_both((one, other): (Store, Store)) {
    let lease = one.grant_lease(Duration::from_secs(60)).await.unwrap();
    assert!(other.is_alive(lease.id).await.unwrap());
    assert!(other.keep_alive(lease.id).await.unwrap());
    let guarded = |value: &'static str| {
        let mut tx = transaction();
        tx.require(Precondition::LeaseAlive(lease.id)).put("guarded", value);
        one.commit(tx)
    };
    done(guarded("alive").await.unwrap());
    other.revoke_lease(lease.id).await.unwrap();
    assert!(!one.is_alive(lease.id).await.unwrap());
    assert_eq!(guarded("ended").await.unwrap(), Commit::Conflict { failed: 0 });
}

pub(super) async fn a_watch_sees_the_commits_of_both_in_order(
    runtime: &Runtime,
    (one, other): (Store, Store),
) {
    let mut watch = one.watch(b"w/").await.unwrap();
    let tasks = [one, other].map(|store| {
        runtime.spawn(async move {
            let mut revisions = Vec::new();
            for round in 0..40_u8 {
                revisions.push(put(&store, vec![b'w', b'/', round % 4], vec![round]).await);
            }
            revisions
        })
    });
    let mut expected = Vec::new();
    for task in tasks {
        expected.extend(task.await.expect("a writer does not panic"));
    }
    expected.sort();
    for revision in expected {
        let event = watch.recv().await.expect("the watch is open");
        assert_eq!(event.revision, revision, "every commit is seen once, in order");
    }
}
