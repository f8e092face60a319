//! Objects whose bytes a newer program has packed into a shared partition.

use striate_client::{ClientError, CopyRequest, ListRequest, ReadOrder, WriteCondition};
use striate_meta::records::{Extent, Object, encode, object::Body};
use striate_meta::{Transaction, TxId, keys};

use crate::cluster::{BUCKET, Cluster, get, in_virtual_time, noise};

/// Puts an object, and makes its row name an extent in the place of its own stripe.
async fn pack(cluster: &Cluster, key: &str) {
    cluster.put(key, &noise(3_000, 1)).await.unwrap();
    let row = cluster.meta.get(&keys::object(BUCKET, key)).await.unwrap().unwrap();
    let mut object: Object = row.record().unwrap();
    let Some(Body::Blocks(list)) = object.body.take() else { panic!("it has blocks") };
    let extent = Extent { stripe: list.blocks[0].stripe.clone(), len: 3_000, ..Extent::default() };
    object.body = Some(Body::Extent(extent));
    let mut tx = Transaction::new(TxId(1));
    tx.put(row.key.clone(), encode(&object));
    cluster.meta.commit(tx).await.unwrap();
}

#[test]
fn packed_objects_are_described_and_listed_and_neither_read_nor_replaced() {
    in_virtual_time(1, async |runtime| {
        let cluster = Cluster::open(runtime).await;
        let client = &cluster.client;
        pack(&cluster, "packed").await;
        cluster.put("other", b"x").await.unwrap();
        let before = cluster.chunk_count();

        assert_eq!(client.head(get(BUCKET, "packed")).await.unwrap().0.size, 3_000);
        let list = ListRequest { bucket: BUCKET.to_owned(), max_keys: 10, ..ListRequest::default() };
        assert_eq!(client.list(list).await.unwrap().objects.len(), 2);
        let tags = [("a".to_owned(), "b".to_owned())].into();
        client.set_object_tags(BUCKET, "packed", tags).await.expect("a description leaves the body as it is");

        let read_many =
            cluster.read_many(vec![get(BUCKET, "packed"), get(BUCKET, "other")], ReadOrder::Requests);
        let mut answers = read_many.await.into_iter();
        let copy = CopyRequest {
            source_bucket: BUCKET.to_owned(),
            source_key: "packed".to_owned(),
            bucket: BUCKET.to_owned(),
            key: "copy".to_owned(),
            ..CopyRequest::default()
        };
        let refused = [
            cluster.read("packed").await.map(drop),
            cluster.put("packed", b"y").await.map(drop),
            client.delete(BUCKET, "packed", WriteCondition::default()).await.map(drop),
            client.blocks_of(BUCKET, "packed").await.map(drop),
            client.copy(copy).await.map(drop),
            answers.next().unwrap().map(drop),
        ];
        for refused in refused {
            let error = refused.unwrap_err();
            let says_so = error.to_string().contains("needs a newer program");
            assert!(says_so && matches!(error, ClientError::NeedsNewerProgram { .. }), "{error}");
        }
        assert_eq!(answers.next().unwrap().unwrap().1, b"x"[..]);
        // Its stripe may hold the bytes of others.
        assert_eq!(cluster.chunk_count(), before);
        assert!(client.head(get(BUCKET, "packed")).await.is_ok());
    });
}
