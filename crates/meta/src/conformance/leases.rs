//! Rules of leases. In a deterministic runtime, leases expire in virtual time.

use std::time::Duration;

use striate_runtime::Runtime;

use super::{Store, get, transaction};
use crate::store::{Commit, Precondition};

/// Long enough that no lease expires because the machine is loaded, and short enough to wait for.
fn ttl(runtime: &Runtime) -> Duration {
    match runtime.is_deterministic() {
        true => Duration::from_secs(60),
        false => Duration::from_secs(2),
    }
}

pub(super) async fn a_lease_ends_unless_it_is_kept_alive(runtime: &Runtime, store: Store) {
    let ttl = ttl(runtime);
    let kept = store.grant_lease(ttl).await.unwrap();
    let left = store.grant_lease(ttl).await.unwrap();
    assert_eq!(kept.ttl, ttl);
    for _ in 0..3 {
        runtime.sleep(ttl / 2).await;
        assert!(store.keep_alive(kept.id).await.unwrap(), "it was kept alive in time");
    }
    // A remote engine may expire it a little late.
    while store.is_alive(left.id).await.unwrap() {
        assert!(store.keep_alive(kept.id).await.unwrap());
        runtime.sleep(ttl / 20).await;
    }
    assert!(!store.keep_alive(left.id).await.unwrap(), "what has ended stays ended");
    assert!(!store.is_alive(left.id).await.unwrap());
    store.revoke_lease(kept.id).await.unwrap();
    assert!(!store.is_alive(kept.id).await.unwrap(), "it was revoked");
    assert!(!store.keep_alive(kept.id).await.unwrap());
    store.revoke_lease(kept.id).await.expect("ending it twice is no error");
}

pub(super) async fn a_lease_guards_a_transaction(runtime: &Runtime, store: Store) {
    let lease = store.grant_lease(ttl(runtime) * 10).await.unwrap();
    let guarded = |value: &'static str| {
        let mut tx = transaction();
        tx.require(Precondition::LeaseAlive(lease.id)).put("guarded", value);
        store.commit(tx)
    };
    assert!(matches!(guarded("alive").await.unwrap(), Commit::Done(_)));
    store.revoke_lease(lease.id).await.unwrap();
    assert_eq!(guarded("ended").await.unwrap(), Commit::Conflict { failed: 0 });
    assert_eq!(get(&store, b"guarded").await.unwrap().value, "alive");
}

pub(super) async fn lease_ids_are_never_the_same(store: Store) {
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let lease = store.grant_lease(Duration::from_secs(60)).await.unwrap();
        assert!(seen.insert(lease.id), "{lease:?} was granted before");
        store.revoke_lease(lease.id).await.unwrap();
    }
}
