//! Volatile buckets, whose objects are in memory only.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use striate_client::{
    ClientError, CompleteUpload, CompletedPart, CreateBucket, CreateUpload, ExpectedDigests, GetRequest,
    ObjectInfo, ReadRange, UploadPartRequest, WriteCondition,
};
use striate_core::SiteId;
use striate_site::ChunkStore;

use crate::fixture::*;

const VOLATILE: &str = "volatile";

impl Gateway {
    async fn make_volatile_bucket(&self, profile: &str) {
        let profile = Some(profile.parse().unwrap());
        let bucket = CreateBucket { name: VOLATILE.to_owned(), profile, ..CreateBucket::default() };
        self.client.create_bucket(bucket).await.unwrap();
    }
}

#[test]
fn a_volatile_bucket_is_in_memory_alone_and_bears_as_many_losses_as_it_has_parities() {
    in_virtual_time(14, async |runtime| {
        let sites = Sites::new(&runtime, 8, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,1)").await;
        for (number, len) in [0, 1, 5_000, 3 * MIB, 9 * MIB + 1].into_iter().enumerate() {
            let (key, whole) = (number.to_string(), noise(len, number as u64));
            gateway.put_in(VOLATILE, &key, &whole).await.unwrap();
            for disk in &sites.disks {
                assert!(disk.list(None, 1).await.unwrap().chunks.is_empty());
            }
            assert_eq!(gateway.get_in(VOLATILE, &key, ReadRange::Whole).await.unwrap(), whole);
            if len > 3 {
                let part = gateway.get_in(VOLATILE, &key, from(len / 3, len / 2)).await.unwrap();
                assert_eq!(part, whole[len / 3..len / 3 + len / 2]);
            }
        }
        // Sites come and go, but rows name the places.
        gateway.use_memory(&sites.memory[1..]);
        assert_eq!(gateway.get_in(VOLATILE, "3", ReadRange::Whole).await.unwrap(), noise(3 * MIB, 3));
        gateway.use_memory(&sites.memory);
        gateway.put_in(VOLATILE, "1", b"again").await.unwrap();
        assert_eq!(gateway.get_in(VOLATILE, "1", ReadRange::Whole).await.unwrap(), b"again");
        gateway.client.delete(VOLATILE, "1", WriteCondition::default()).await.unwrap();
        let gone = gateway.get_in(VOLATILE, "1", ReadRange::Whole).await.unwrap_err();
        assert!(matches!(gone, ClientError::NoSuchKey(_)), "{gone}");
    });
}

#[test]
fn what_is_gone_from_memory_counts_as_absent() {
    in_virtual_time(33, async |runtime| {
        let sites = Sites::new(&runtime, 8, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,1)").await;
        let keys = ["a", "b", "c", "d", "e"].map(str::to_owned);
        for key in &keys {
            let before = sites.cached_splits().await;
            gateway.put_in(VOLATILE, key, &noise(20_000, 1)).await.unwrap();
            let evicted = sites.cached_splits().await.into_iter().filter(|split| !before.contains(split));
            for split in evicted.filter(|_| !["a", "c"].contains(&&**key)) {
                sites.remove(split).await;
            }
        }
        let sizes = async |until_gap| gateway.client.sizes_of(VOLATILE, &keys, until_gap).await.unwrap();
        let there = Some(20_000);
        assert_eq!(sizes(false).await, [there, None, there, None, None]);
        assert_eq!(sizes(true).await, [there]);

        let absent = || WriteCondition { if_absent: true, ..WriteCondition::default() };
        let create = |key: &str| put_request(VOLATILE, key, &noise(5_000, 2), absent());
        let is_refused =
            |put: &Result<ObjectInfo, ClientError>| matches!(put, Err(ClientError::PreconditionFailed(_)));
        assert!(is_refused(&gateway.client.put(create("a")).await));
        gateway.client.put(create("b")).await.unwrap();
        let many = gateway.client.put_many(vec![create("c"), create("d")]).await;
        assert!(is_refused(&many[0]) && many[1].is_ok(), "{many:?}");
        assert_eq!(sizes(false).await, [there, Some(5_000), there, Some(5_000), None]);
        assert_eq!(gateway.get_in(VOLATILE, "d", ReadRange::Whole).await.unwrap(), noise(5_000, 2));

        let any = WriteCondition { if_match: Some(vec!["*".to_owned()]), ..WriteCondition::default() };
        let error = gateway.client.put(put_request(VOLATILE, "e", b"bytes", any)).await.unwrap_err();
        assert!(matches!(error, ClientError::NoSuchKey(_)), "{error}");
        let head = async |key: &str| {
            let (bucket, key) = (VOLATILE.to_owned(), key.to_owned());
            gateway.client.head(GetRequest { bucket, key, ..GetRequest::default() }).await
        };
        assert_eq!(head("d").await.unwrap().0.size, 5_000);
        assert!(matches!(head("e").await.unwrap_err(), ClientError::Evicted(_)));
        sites.settle().await;
        assert!(matches!(head("e").await.unwrap_err(), ClientError::NoSuchKey(_)), "its row is gone too");
    });
}

#[test]
fn an_object_of_parts_that_is_gone_from_memory_counts_as_absent() {
    in_virtual_time(35, async |runtime| {
        let sites = Sites::new(&runtime, 8, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,0)").await;
        let upload =
            CreateUpload { bucket: VOLATILE.to_owned(), key: "a".to_owned(), ..CreateUpload::default() };
        let upload = gateway.client.create_upload(upload).await.unwrap().id;
        let part = UploadPartRequest {
            bucket: VOLATILE.to_owned(),
            key: "a".to_owned(),
            upload: upload.clone(),
            number: 1,
            content_len: Some(MIB as u64),
            digests: ExpectedDigests::default(),
            body: Box::new(Body(Some(noise(MIB, 1).into()))),
        };
        let etag = gateway.client.upload_part(part).await.unwrap().etag;
        let complete = CompleteUpload {
            bucket: VOLATILE.to_owned(),
            key: "a".to_owned(),
            upload,
            parts: vec![CompletedPart { number: 1, etag, checksums: Vec::new() }],
            ..CompleteUpload::default()
        };
        gateway.client.complete_upload(complete).await.unwrap();
        let keys = ["a".to_owned()];
        let sizes = async || gateway.client.sizes_of(VOLATILE, &keys, false).await.unwrap();
        assert_eq!(sizes().await, [Some(MIB as u64)]);
        for split in sites.cached_splits().await {
            sites.remove(split).await;
        }
        assert_eq!(sizes().await, [None]);
    });
}

#[test]
fn an_evicted_volatile_object_answers_not_found() {
    in_virtual_time(15, async |runtime| {
        let sites = Sites::new(&runtime, 8, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,1)").await;
        gateway.put_in(VOLATILE, "object", &noise(4 * MIB, 1)).await.unwrap();
        let mut splits = sites.cached_splits().await;
        splits.truncate(2);
        sites.remove(splits[0]).await;
        assert_eq!(gateway.get_in(VOLATILE, "object", ReadRange::Whole).await.unwrap(), noise(4 * MIB, 1));
        sites.remove(splits[1]).await;
        let error = gateway.get_in(VOLATILE, "object", ReadRange::Whole).await.unwrap_err();
        assert!(matches!(error, ClientError::Evicted(_)), "{error}");
        assert_eq!(gateway.reads(), [1, 0, 1, 0, 0], "an evicted object is a miss");
        sites.settle().await;
        let error = gateway.get_in(VOLATILE, "object", ReadRange::Whole).await.unwrap_err();
        assert!(matches!(error, ClientError::NoSuchKey(_)), "its row is gone too: {error}");
    });
}

#[test]
fn without_memory_sites_a_volatile_bucket_takes_nothing() {
    in_virtual_time(16, async |runtime| {
        let sites = Sites::new(&runtime, 1, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,2)").await;
        gateway.put_in(VOLATILE, "object", &noise(MIB, 1)).await.unwrap();
        gateway.use_memory(&[]);
        let error = gateway.put_in(VOLATILE, "other", b"bytes").await.unwrap_err();
        assert!(matches!(error, ClientError::TooFewSites { .. }), "{error}");
        let error = gateway.get_in(VOLATILE, "object", ReadRange::Whole).await.unwrap_err();
        assert!(matches!(error, ClientError::Evicted(_)), "its site is no member any more: {error}");
    });
}

#[test]
fn a_volatile_object_on_silent_members_answers_unavailable() {
    in_virtual_time(17, async |runtime| {
        let sites = Sites::new(&runtime, 4, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,0)").await;
        gateway.put_in(VOLATILE, "object", &noise(4 * MIB, 1)).await.unwrap();
        for number in 101..=104 {
            let mut tx = gateway.client.stripes().transaction();
            tx.put(striate_meta::keys::memory_site(SiteId(number)), Bytes::new());
            gateway.client.meta().commit(tx).await.unwrap();
        }
        for reachable in [&sites.memory[1..], &[]] {
            gateway.use_memory(reachable);
            let error = gateway.get_in(VOLATILE, "object", ReadRange::Whole).await.unwrap_err();
            let is_unavailable =
                matches!(error, ClientError::Unreadable { .. } | ClientError::TooFewSites { .. });
            assert!(is_unavailable, "{error:?}");
            sites.settle().await;
        }
        gateway.use_memory(&sites.memory);
        assert_eq!(gateway.get_in(VOLATILE, "object", ReadRange::Whole).await.unwrap(), noise(4 * MIB, 1));
    });
}

#[test]
fn the_memory_of_a_volatile_object_is_free_when_it_is_replaced_or_deleted() {
    in_virtual_time(18, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,1)").await;
        gateway.put_in(VOLATILE, "kept", &noise(4 * MIB, 1)).await.unwrap();
        let of_one = sites.cached_splits().await.len();
        gateway.put_in(VOLATILE, "replaced", &noise(4 * MIB, 2)).await.unwrap();
        gateway.put_in(VOLATILE, "replaced", &noise(4 * MIB, 3)).await.unwrap();
        gateway.put_in(VOLATILE, "deleted", &noise(4 * MIB, 4)).await.unwrap();
        gateway.client.delete(VOLATILE, "deleted", WriteCondition::default()).await.unwrap();
        assert_eq!(sites.cached_splits().await.len(), 4 * of_one, "reads that have begun may need them");
        runtime.sleep(Duration::from_secs(11)).await;
        assert_eq!(sites.cached_splits().await.len(), 2 * of_one);
        let counts = gateway.cache.counts();
        let [deleted, overwritten] =
            [&counts.deleted, &counts.overwritten].map(|counted| counted.load(Ordering::Relaxed));
        assert_eq!((deleted, overwritten), (1, 1));
        for (key, seed) in [("kept", 1), ("replaced", 3)] {
            assert_eq!(gateway.get_in(VOLATILE, key, ReadRange::Whole).await.unwrap(), noise(4 * MIB, seed));
        }
    });
}

#[test]
fn a_full_memory_keeps_the_parities_of_what_is_in_memory_only() {
    in_virtual_time(19, async |runtime| {
        let sites = Sites::new(&runtime, 6, 32);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,1)").await;
        // Twice as much as memory holds.
        for number in 0..80 {
            gateway.put_in(VOLATILE, &number.to_string(), &noise(4 * MIB, number)).await.unwrap();
        }
        let mut readable = Vec::new();
        for number in 0..80 {
            if gateway.get_in(VOLATILE, &number.to_string(), ReadRange::Whole).await.is_ok() {
                readable.push(number);
            }
        }
        assert!((20..60).contains(&readable.len()), "{} are left", readable.len());
        gateway.use_memory(&sites.memory[1..]);
        let mut lost = 0;
        for &number in &readable {
            let read = gateway.get_in(VOLATILE, &number.to_string(), ReadRange::Whole).await;
            assert!(read.as_ref().is_ok_and(|read| *read == noise(4 * MIB, number)) || read.is_err());
            lost += usize::from(read.is_err());
        }
        // An object that evictions have begun on may lack a split already.
        assert!(lost * 10 <= readable.len(), "{lost} of {} are gone with one site", readable.len());
    });
}
