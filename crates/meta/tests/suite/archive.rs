//! Exports and imports.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use striate_core::ClusterId;
use striate_meta::archive::{ArchiveError, ImportOptions, check, export, import};
use striate_meta::conformance::fresh_id;
use striate_meta::embedded::EmbeddedStore;
use striate_meta::{MemoryStore, MetaStore, ScanRange, Transaction};

use crate::cluster::{Cluster, in_virtual_time, put, virtual_runtime};

const CLUSTER: ClusterId = ClusterId(7);
const ANY: ImportOptions = ImportOptions { cluster: None, force: false };

async fn store_of(rows: &[(Bytes, Bytes)]) -> Arc<dyn MetaStore> {
    let store = MemoryStore::new(virtual_runtime());
    for (key, value) in rows {
        let mut tx = Transaction::new(fresh_id());
        tx.put(key.clone(), value.clone());
        store.commit(tx).await.unwrap();
    }
    Arc::new(store)
}

async fn rows_of(store: &dyn MetaStore) -> Vec<(Bytes, Bytes)> {
    let rows = store.scan(ScanRange::prefix(b""), usize::MAX).await.unwrap();
    rows.into_iter().map(|row| (row.key, row.value)).collect()
}

async fn exported(store: &dyn MetaStore) -> Vec<u8> {
    let mut file = Vec::new();
    export(store, CLUSTER, &mut file, &mut |_| {}).await.unwrap();
    file
}

async fn imported(store: &dyn MetaStore, options: ImportOptions, file: &[u8]) -> Result<u64, ArchiveError> {
    let mut last = 0;
    let progress = import(&virtual_runtime(), store, options, &mut &*file, &mut |progress| {
        assert!(progress.rows >= last);
        last = progress.rows;
    })
    .await?;
    assert_eq!(progress.bytes, file.len() as u64);
    assert_eq!(progress.rows, last);
    Ok(progress.rows)
}

fn some_rows(count: u32) -> Vec<(Bytes, Bytes)> {
    (0..count).map(|number| (number.to_be_bytes().to_vec().into(), vec![7; 50].into())).collect()
}

#[test]
fn an_export_is_imported_as_it_was_over_many_pages() {
    in_virtual_time(async {
        let rows = some_rows(3_001);
        let file = exported(&*store_of(&rows).await).await;
        let target = store_of(&[]).await;
        assert_eq!(imported(&*target, ANY, &file).await.unwrap(), 3_001);
        assert_eq!(rows_of(&*target).await, rows);
        assert_eq!(check(&mut &file[..]).await.unwrap().rows, 3_001);
        assert_eq!(exported(&*target).await, file, "one content has one archive");
    });
}

#[test]
fn rows_of_the_greatest_size_travel() {
    in_virtual_time(async {
        use striate_meta::store::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
        let rows: Vec<(Bytes, Bytes)> = (1..6_u8)
            .map(|number| (vec![number; MAX_KEY_BYTES].into(), vec![number; MAX_VALUE_BYTES].into()))
            .collect();
        let file = exported(&*store_of(&rows).await).await;
        let target = store_of(&[]).await;
        imported(&*target, ANY, &file).await.unwrap();
        assert_eq!(rows_of(&*target).await, rows);
    });
}

#[test]
fn what_must_not_be_imported_is_refused_and_leaves_the_store_as_it_was() {
    in_virtual_time(async {
        let file = exported(&*store_of(&some_rows(250)).await).await;
        let text = String::from_utf8(file.clone()).unwrap();

        let target = store_of(&some_rows(1)).await;
        assert!(matches!(imported(&*target, ANY, &file).await, Err(ArchiveError::NotEmpty)));
        let force = ImportOptions { force: true, ..ANY };
        assert_eq!(imported(&*target, force, &file).await.unwrap(), 250);

        let target = store_of(&[]).await;
        let other = ImportOptions { cluster: Some(ClusterId(8)), ..ANY };
        assert!(matches!(imported(&*target, other, &file).await, Err(ArchiveError::OtherCluster { .. })));
        let newer = text.replacen("\"striate_metadata\":1", "\"striate_metadata\":2", 1);
        assert!(matches!(imported(&*target, ANY, newer.as_bytes()).await, Err(ArchiveError::Newer(2))));
        let lines: Vec<_> = text.lines().collect();
        let without_end = lines[..lines.len() - 1].join("\n") + "\n";
        let without_a_row = [&lines[..200], &lines[201..]].concat().join("\n") + "\n";
        for damaged in [&without_end, &without_a_row, &(text.clone() + "{}\n"), &String::new()] {
            let refused = imported(&*target, ANY, damaged.as_bytes()).await;
            assert!(matches!(refused, Err(ArchiveError::Damaged(_))), "{refused:?}");
            assert_eq!(rows_of(&*target).await, [], "what was written was removed");
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_damage_is_noticed(position: prop::sample::Index, bit in 0..8_u32, cut: bool) {
        in_virtual_time(async {
            let mut file = exported(&*store_of(&some_rows(20)).await).await;
            let position = position.index(file.len());
            match cut {
                true => file.truncate(position),
                false => file[position] ^= 1 << bit,
            }
            assert!(check(&mut &file[..]).await.is_err());
        });
    }
}

#[tokio::test]
async fn a_view_exports_one_state_of_an_embedded_store_while_it_changes() {
    let (runtime, cluster) = (striate_runtime::Runtime::real(), Cluster::new(2, 1));
    let store = cluster.create(&runtime).await;
    put(&store, "a", "1").await.unwrap();
    let view = store.view().unwrap();
    put(&store, "b", "2").await.unwrap();
    let mut file = Vec::new();
    assert_eq!(export(&view, CLUSTER, &mut file, &mut |_| {}).await.unwrap().rows, 1);
    let other = Cluster::new(1, 0);
    let target: EmbeddedStore = other.create(&runtime).await;
    import(&runtime, &target, ANY, &mut &file[..], &mut |_| {}).await.unwrap();
    assert_eq!(rows_of(&target).await, [("a".into(), "1".into())]);
}
