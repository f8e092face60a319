//! Metadata moved from one engine to another.

use std::sync::Arc;

use striate_meta::conformance::fresh_id;
use striate_meta::migration::{MigrationEnd, MigrationError, Progress, cancel, migrate};
use striate_meta::{Commit, MemoryStore, MetaError, MetaStore, Row, ScanRange, Transaction, keys};
use striate_runtime::Runtime;

use crate::load::{done, put};
use crate::{etcd_server, postgres_server};

const ROWS: u32 = 2_345;

/// Creates a store in memory with some rows, one of them as large as allowed.
async fn filled() -> Arc<dyn MetaStore> {
    let store: Arc<dyn MetaStore> = Arc::new(MemoryStore::new(Runtime::real()));
    for number in 0..ROWS {
        let mut tx = Transaction::new(fresh_id());
        tx.put(number.to_be_bytes().to_vec(), vec![number as u8; number as usize % 300]);
        done(store.commit(tx).await);
    }
    let mut large = Transaction::new(fresh_id());
    large.put("large", vec![7; striate_meta::store::limits::MAX_VALUE_BYTES]);
    done(store.commit(large).await);
    store
}

fn empty() -> Arc<dyn MetaStore> {
    Arc::new(MemoryStore::new(Runtime::real()))
}

fn end<'e>(store: &'e Arc<dyn MetaStore>, name: &'e str) -> MigrationEnd<'e> {
    MigrationEnd { store: &**store, name }
}

async fn moved(from: MigrationEnd<'_>, to: MigrationEnd<'_>) -> Result<u64, MigrationError> {
    migrate(&Runtime::real(), from, to, &mut |_| {}).await
}

async fn contents(store: &Arc<dyn MetaStore>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let rows = store.scan(ScanRange::prefix(b""), usize::MAX).await.expect("a scan is answered");
    let rows = rows.into_iter().filter(|row| row.key != keys::migration());
    rows.map(|Row { key, value, .. }| (key.to_vec(), value.to_vec())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_travel_through_every_engine_and_back() {
    let first = filled().await;
    let etcd = etcd_server::SHARED.open("migration").await;
    let postgres = postgres_server::SHARED.open(&postgres_server::fresh_schema()).await;
    let last = empty();
    let before = contents(&first).await;
    for (from, to) in [(&first, &etcd), (&etcd, &postgres), (&postgres, &last)] {
        let mut seen = Vec::new();
        let on_progress = &mut |progress: Progress| seen.push(progress);
        let rows = migrate(&Runtime::real(), end(from, "from"), end(to, "to"), on_progress).await.unwrap();
        assert_eq!(rows, u64::from(ROWS) + 1);
        assert!(seen.len() >= 4, "progress is told: {seen:?}");
        assert_eq!(contents(to).await, before);
        let refused = from.commit(put("a", "1")).await.unwrap_err();
        assert!(matches!(&refused, MetaError::Moved(reason) if reason.contains("moved to to")), "{refused}");
    }
    done(last.commit(put("a", "1")).await);
}

#[tokio::test]
async fn what_must_not_be_overwritten_is_refused() {
    let (source, target) = (filled().await, empty());
    done(target.commit(put("a", "1")).await);
    let refused = moved(end(&source, "from"), end(&target, "to")).await.unwrap_err();
    assert!(matches!(refused, MigrationError::NotEmpty), "{refused}");
    done(source.commit(put("a", "1")).await);

    let target = empty();
    moved(end(&source, "from"), end(&target, "to")).await.unwrap();
    let refused = moved(end(&source, "from"), end(&target, "to")).await.unwrap_err();
    assert!(refused.to_string().contains("moved to to"), "{refused}");
    let elsewhere = empty();
    let refused = moved(end(&source, "from"), end(&elsewhere, "elsewhere")).await.unwrap_err();
    assert!(refused.to_string().contains("moved to to"), "{refused}");
}

/// The target fails repeatedly, each time after some more commits.
#[tokio::test]
async fn an_interrupted_migration_goes_on_and_one_that_was_given_up_leaves_the_source_in_use() {
    let (runtime, source, target) = (Runtime::real(), filled().await, empty());
    let mut interrupted = 0;
    for after in 1.. {
        let failing = Failing { store: target.clone(), commits: std::sync::atomic::AtomicU64::new(after) };
        let failing: Arc<dyn MetaStore> = Arc::new(failing);
        match moved(end(&source, "from"), end(&failing, "to")).await {
            Ok(_) => break,
            Err(MigrationError::Meta(MetaError::Unavailable(_))) => interrupted += 1,
            Err(other) => panic!("{other}"),
        }
        assert!(matches!(target.commit(put("a", "1")).await, Err(MetaError::Moved(_))), "half is not in use");
        if after == 3 {
            cancel(&runtime, &*source).await.unwrap();
            done(source.commit(put("written in between", "1")).await);
            let mut tx = Transaction::new(fresh_id());
            tx.delete(1_u32.to_be_bytes().to_vec());
            assert!(matches!(source.commit(tx).await, Ok(Commit::Done(_))));
        }
    }
    assert!(interrupted > 5, "interrupted {interrupted} times");
    assert_eq!(contents(&target).await, contents(&source).await);
    done(target.commit(put("a", "1")).await);
    assert!(matches!(source.commit(put("a", "1")).await, Err(MetaError::Moved(_))));
}

/// Refuses all commits after the first ones.
#[derive(Debug)]
struct Failing {
    store: Arc<dyn MetaStore>,
    commits: std::sync::atomic::AtomicU64,
}

#[async_trait::async_trait]
impl MetaStore for Failing {
    async fn get(&self, key: &[u8]) -> Result<Option<Row>, MetaError> {
        self.store.get(key).await
    }

    async fn get_many(&self, keys: &[bytes::Bytes]) -> Result<Vec<Option<Row>>, MetaError> {
        self.store.get_many(keys).await
    }

    async fn scan(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.store.scan(range, limit).await
    }

    async fn scan_back(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.store.scan_back(range, limit).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Commit, MetaError> {
        use std::sync::atomic::Ordering::Relaxed;
        match self.commits.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => self.store.commit(transaction).await,
            Err(_) => Err(MetaError::Unavailable("it fails from here on".to_owned())),
        }
    }

    async fn grant_lease(&self, ttl: std::time::Duration) -> Result<striate_meta::Lease, MetaError> {
        self.store.grant_lease(ttl).await
    }

    async fn keep_alive(&self, lease: striate_meta::LeaseId) -> Result<bool, MetaError> {
        self.store.keep_alive(lease).await
    }

    async fn is_alive(&self, lease: striate_meta::LeaseId) -> Result<bool, MetaError> {
        self.store.is_alive(lease).await
    }

    async fn revoke_lease(&self, lease: striate_meta::LeaseId) -> Result<(), MetaError> {
        self.store.revoke_lease(lease).await
    }

    async fn watch(&self, prefix: &[u8]) -> Result<striate_meta::Watch, MetaError> {
        self.store.watch(prefix).await
    }
}
