//! The embedded engine against the conformance suite and the model, and tests of starting and closing.

use std::pin::Pin;
use std::sync::Arc;

use crate::cluster::{Cluster, get, put, shared, virtual_runtime};
use proptest::prelude::*;
use striate_meta::conformance::{self, Store, model::Model};
use striate_meta::{Commit, LeaseId, MetaError, MetaStore, Transaction, TxId};
use striate_runtime::Runtime;

type StoreFuture = Pin<Box<dyn Future<Output = Store> + Send>>;

fn fresh_store(runtime: Runtime, clusters: Arc<parking_lot::Mutex<Vec<Arc<Cluster>>>>) -> StoreFuture {
    let cluster = Arc::new(Cluster::new(3, 1));
    clusters.lock().push(cluster.clone());
    Box::pin(async move { Arc::new(cluster.create(&runtime).await) as Store })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_engine_conforms_on_threads() {
    let (runtime, clusters) = (Runtime::real(), Arc::default());
    let factory = || fresh_store(runtime.clone(), Arc::clone(&clusters));
    conformance::run_all(&runtime, &factory).await;
}

#[tokio::test(start_paused = true)]
async fn the_embedded_engine_conforms_in_virtual_time() {
    let (runtime, clusters) = (virtual_runtime(), Arc::default());
    let factory = || fresh_store(runtime.clone(), Arc::clone(&clusters));
    conformance::run_all(&runtime, &factory).await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_embedded_engine_is_an_ordered_map_also_after_a_restart(operations in crate::strategy::operations(40)) {
        crate::cluster::in_virtual_time(async move {
            let (runtime, cluster) = (virtual_runtime(), Cluster::new(2, 1));
            let store = cluster.create(&runtime).await;
            let mut model = Model::default();
            let (before, after) = operations.split_at(operations.len() / 2);
            for operation in before {
                model.step(&shared(&store), operation).await;
            }
            store.close().await;
            let store = cluster.open(&runtime, &[]).await.unwrap();
            model.compare(&shared(&store)).await;
            for operation in after {
                model.step(&shared(&store), operation).await;
            }
            model.compare(&shared(&store)).await;
        });
    }
}

#[tokio::test]
async fn a_transaction_is_recognised_after_a_restart() {
    let (runtime, cluster) = (Runtime::real(), Cluster::new(2, 1));
    let store = cluster.create(&runtime).await;
    let mut tx = Transaction::new(TxId(99));
    tx.require(striate_meta::Precondition::Absent("a".into())).put("a", "1");
    let first = store.commit(tx.clone()).await.unwrap();
    store.close().await;
    let store = cluster.open(&runtime, &[]).await.unwrap();
    assert_eq!(store.commit(tx).await.unwrap(), first);
}

#[tokio::test]
async fn leases_end_with_the_run_and_their_ids_never_return() {
    let (runtime, cluster) = (Runtime::real(), Cluster::new(1, 0));
    let mut earlier: Vec<LeaseId> = Vec::new();
    let mut store = cluster.create(&runtime).await;
    for _ in 0..3 {
        let lease = store.grant_lease(std::time::Duration::from_secs(3_600)).await.unwrap();
        assert!(store.is_alive(lease.id).await.unwrap());
        assert!(!earlier.contains(&lease.id));
        for ended in &earlier {
            assert!(!store.is_alive(*ended).await.unwrap());
            assert!(!store.keep_alive(*ended).await.unwrap());
        }
        earlier.push(lease.id);
        store.close().await;
        store = cluster.open(&runtime, &[]).await.unwrap();
    }
}

#[tokio::test]
async fn a_closed_store_says_so_and_another_server_is_refused() {
    let (runtime, cluster) = (Runtime::real(), Cluster::new(2, 1));
    let store = cluster.create(&runtime).await;
    put(&store, "a", "1").await.unwrap();
    let refused = cluster.open(&runtime, &[]).await.unwrap_err();
    assert!(refused.to_string().contains("in use by another server"), "{refused}");
    store.close().await;
    for refused in [put(&store, "a", "2").await.err(), get(&store, "a").await.err()] {
        assert!(matches!(refused, Some(MetaError::Unavailable(reason)) if reason.contains("closed")));
    }
    let store = cluster.open(&runtime, &[]).await.unwrap();
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("1"));
}

#[tokio::test]
async fn a_start_needs_enough_directories_to_know_the_newest_epoch() {
    let (runtime, cluster) = (Runtime::real(), Cluster::new(6, 2));
    let store = cluster.create(&runtime).await;
    put(&store, "a", "1").await.unwrap();
    store.close().await;
    let refused = cluster.open(&runtime, &[3, 4, 5]).await.unwrap_err().to_string();
    assert!(refused.contains("3 of the cluster's 6") && refused.contains("4 are needed"), "{refused}");
    for without in [[0, 1], [0, 5], [4, 5]] {
        let store = cluster.open(&runtime, &without).await.unwrap();
        assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("1"));
        store.restore_mirrors().await.unwrap();
        store.close().await;
    }
}

#[tokio::test]
async fn a_start_without_any_mirror_in_force_names_those_wanted() {
    let (runtime, mut cluster) = (Runtime::real(), Cluster::new(4, 1));
    let store = cluster.create(&runtime).await;
    put(&store, "a", "1").await.unwrap();
    store.close().await;
    // With a tolerance of two, the other two directories are enough to know the epoch, but hold no mirror.
    cluster.layout.tolerance = 2;
    let refused = cluster.open(&runtime, &[0, 1]).await.unwrap_err().to_string();
    let wanted = [Cluster::disk(0), Cluster::disk(1)].map(|disk| refused.contains(&disk.to_string()));
    assert_eq!(wanted, [true, true], "{refused}");
}

#[tokio::test]
async fn directories_of_another_cluster_and_swapped_disks_are_refused() {
    let (runtime, mut cluster) = (Runtime::real(), Cluster::new(3, 1));
    cluster.create(&runtime).await.close().await;
    let mut swapped = cluster.present(&[]);
    swapped[0].disk_id = Cluster::disk(9);
    let opened = striate_meta::EmbeddedStore::open(&runtime, cluster.options, cluster.layout, &swapped).await;
    opened.expect("the two others are enough").close().await;
    let present = cluster.present(&[]);
    let again = striate_meta::EmbeddedStore::create(&runtime, cluster.options, cluster.layout, &present);
    assert!(matches!(again.await, Err(MetaError::Corrupt(_))), "a cluster's metadata is never made anew");
    cluster.layout.cluster = striate_core::ClusterId(8);
    let refused = cluster.open(&runtime, &[]).await.unwrap_err();
    assert!(matches!(&refused, MetaError::Corrupt(reason) if reason.contains("cluster")), "{refused}");
}

#[tokio::test]
async fn open_or_create_creates_once() {
    let (runtime, cluster) = (Runtime::real(), Cluster::new(2, 1));
    let open = async || {
        let present = cluster.present(&[]);
        striate_meta::EmbeddedStore::open_or_create(&runtime, cluster.options, cluster.layout, &present).await
    };
    let store = open().await.unwrap();
    assert!(matches!(put(&store, "a", "1").await, Ok(Commit::Done(_))));
    store.close().await;
    let store = open().await.unwrap();
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("1"));
}
