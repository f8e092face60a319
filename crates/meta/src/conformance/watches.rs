//! Rules of watches.

use super::{Store, delete, done, put, transaction};
use crate::store::{Revision, WatchEvent};
use crate::watch::WATCH_BUFFER_EVENTS;

pub(super) async fn events_come_in_commit_order(store: Store) {
    put(&store, "w/0", "before").await;
    let mut watch = store.watch(b"w/").await.unwrap();
    let first = put(&store, "w/1", "a").await;
    put(&store, "x/1", "another prefix").await;
    let second = put(&store, "w/1", "b").await;
    let third = delete(&store, "w/1").await;
    delete(&store, "w/1").await;
    let mut tx = transaction();
    tx.put("w/2", "c").put("y", "").delete("w/0");
    let fourth = done(store.commit(tx).await.unwrap());

    let mut events = Vec::new();
    while events.len() < 5 {
        events.push(watch.recv().await.expect("the watch is open"));
    }
    let event = |key: &'static str, value: Option<&'static str>, revision: Revision| WatchEvent {
        key: key.into(),
        value: value.map(Into::into),
        revision,
    };
    assert_eq!(
        events[..3],
        [event("w/1", Some("a"), first), event("w/1", Some("b"), second), event("w/1", None, third)]
    );
    let mut last = events.split_off(3);
    last.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(last, [event("w/0", None, fourth), event("w/2", Some("c"), fourth)]);
    assert!(watch.try_recv().is_err(), "nothing else happened");
}

/// If the receiver does not read, an engine must not buffer without bound (I12): the channel ends after some first
/// events, none of them missing. An engine that keeps events elsewhere may deliver all of them instead. Other watches
/// keep working.
pub(super) async fn a_watcher_that_lags_misses_nothing_without_being_told(store: Store) {
    let mut lagging = store.watch(b"").await.unwrap();
    let commits = WATCH_BUFFER_EVENTS / 50 + 2;
    let mut number = 0_u32;
    for _ in 0..commits {
        let mut tx = transaction();
        for _ in 0..50 {
            tx.put(number.to_be_bytes().to_vec(), "");
            number += 1;
        }
        done(store.commit(tx).await.unwrap());
    }
    let mut seen = 0_u32;
    while seen < number
        && let Some(event) = lagging.recv().await
    {
        assert_eq!(event.key[..], seen.to_be_bytes(), "no event is missing before the end");
        seen += 1;
    }
    let mut watch = store.watch(b"").await.unwrap();
    put(&store, "again", "").await;
    assert_eq!(watch.recv().await.unwrap().key, "again");
}
