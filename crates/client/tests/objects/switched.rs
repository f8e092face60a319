//! Objects whose bytes move while they are read: their rows keep the version, and name another body.

use std::sync::Arc;

use striate_client::{ClientError, CopyRequest, CreateUpload, ReadOrder, ReadRange};
use striate_client::{CopyPartRequest, ReadCondition};
use striate_meta::records::{Object, encode, object::Body};
use striate_meta::{Transaction, TxId, keys};

use crate::cluster::{BUCKET, Cluster, get, in_virtual_time, noise, options};
use crate::engine::Unreliable;

const LEN: usize = 3_000;

/// Runs a test on a cluster with an object `key`. A prepared switch moves its bytes to other stripes right after the
/// next read of its row.
fn with_a_switch(test: impl AsyncFnOnce(Cluster, Switch)) {
    in_virtual_time(1, async |runtime| {
        let engine = Arc::new(Unreliable::punctual(runtime.clone()));
        let cluster = Cluster::open_with(runtime, engine.clone(), options()).await;
        cluster.put("key", &noise(LEN, 1)).await.unwrap();
        test(cluster, Switch { engine, next: 1 }).await;
    });
}

struct Switch {
    engine: Arc<Unreliable>,
    next: u128,
}

impl Switch {
    /// Prepares the next switch.
    async fn prepare(&mut self, cluster: &Cluster) {
        cluster.put("elsewhere", &noise(LEN, 1)).await.unwrap();
        let object = async |key| {
            let row = cluster.meta.get(&keys::object(BUCKET, key)).await.unwrap().unwrap();
            let object: Object = row.record().unwrap();
            object
        };
        let (old, new) = (object("key").await, object("elsewhere").await);
        let mut tx = Transaction::new(TxId(self.next));
        self.next += 1;
        let Some(Body::Blocks(blocks)) = &old.body else { panic!("it has blocks") };
        for block in &blocks.blocks {
            let id: [u8; 16] = block.stripe.as_ref().try_into().unwrap();
            tx.delete(keys::stripe(striate_core::StripeId::from_bytes(id)));
        }
        tx.delete(keys::object(BUCKET, "elsewhere"));
        tx.put(keys::object(BUCKET, "key"), encode(&Object { body: new.body, ..old }));
        self.engine.overtake(keys::object(BUCKET, "key"), tx);
    }
}

#[test]
fn a_read_goes_on_with_the_bytes_in_their_new_place() {
    with_a_switch(async |cluster, mut switch| {
        switch.prepare(&cluster).await;
        assert_eq!(cluster.read("key").await.unwrap(), noise(LEN, 1));
        switch.prepare(&cluster).await;
        let range =
            cluster.read_range(BUCKET, "key", ReadRange::Bytes { first: 1_500, last: Some(2_499) }).await;
        assert_eq!(range.unwrap(), noise(LEN, 1)[1_500..2_500]);
        switch.prepare(&cluster).await;
        let many = cluster.read_many(vec![get(BUCKET, "key")], ReadOrder::Requests).await;
        assert_eq!(many.into_iter().next().unwrap().unwrap().1, noise(LEN, 1));
    });
}

#[test]
fn a_copy_begins_anew_with_the_bytes_in_their_new_place() {
    with_a_switch(async |cluster, mut switch| {
        let copy = |key: &str| CopyRequest {
            source_bucket: BUCKET.to_owned(),
            source_key: "key".to_owned(),
            bucket: BUCKET.to_owned(),
            key: key.to_owned(),
            ..CopyRequest::default()
        };
        switch.prepare(&cluster).await;
        cluster.client.copy(copy("copy")).await.unwrap();
        assert_eq!(cluster.read("copy").await.unwrap(), noise(LEN, 1));
        let create =
            CreateUpload { bucket: BUCKET.to_owned(), key: "parts".to_owned(), ..CreateUpload::default() };
        let upload = cluster.client.create_upload(create).await.unwrap().id;
        switch.prepare(&cluster).await;
        let part = CopyPartRequest {
            bucket: BUCKET.to_owned(),
            key: "parts".to_owned(),
            upload,
            number: 1,
            source_bucket: BUCKET.to_owned(),
            source_key: "key".to_owned(),
            source_condition: ReadCondition::default(),
            source_range: ReadRange::Whole,
        };
        assert_eq!(cluster.client.copy_part(part).await.unwrap().size, LEN as u64);
    });
}

/// If bytes are gone while the row is unchanged, the read fails at once.
#[test]
fn a_read_of_a_row_that_names_nothing_fails() {
    with_a_switch(async |cluster, _| {
        let row = cluster.meta.get(&keys::object(BUCKET, "key")).await.unwrap().unwrap();
        let object: Object = row.record().unwrap();
        let Some(Body::Blocks(blocks)) = &object.body else { panic!("it has blocks") };
        let id: [u8; 16] = blocks.blocks[0].stripe.as_ref().try_into().unwrap();
        let mut tx = Transaction::new(TxId(1));
        tx.delete(keys::stripe(striate_core::StripeId::from_bytes(id)));
        cluster.meta.commit(tx).await.unwrap();
        let error = cluster.read("key").await.unwrap_err();
        assert!(matches!(error, ClientError::Inconsistent { .. }), "{error}");
    });
}
