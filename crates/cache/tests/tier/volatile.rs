//! Volatile buckets, whose objects are in memory only.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use striate_client::{
    ClientError, CompleteUpload, CompletedPart, CreateBucket, CreateUpload, ExpectedDigests, GetRequest,
    ObjectInfo, PutBody, ReadRange, UploadPartRequest, WriteCondition,
};
use striate_control::collection::parts::{abandoned_parts, take_down};
use striate_core::{ClusterId, RackId, SiteId};
use striate_site::{ChunkStore, LocalSite, MemoryStore, QueueLimits, Site, SiteIdentity};

use crate::fixture::*;

const VOLATILE: &str = "volatile";

impl Gateway {
    async fn make_volatile_bucket(&self, profile: &str) {
        let profile = Some(profile.parse().unwrap());
        let bucket = CreateBucket { name: VOLATILE.to_owned(), profile, ..CreateBucket::default() };
        self.client.create_bucket(bucket).await.unwrap();
    }

    async fn create_upload(&self, key: &str) -> String {
        let (bucket, key) = (VOLATILE.to_owned(), key.to_owned());
        let upload = CreateUpload { bucket, key, ..CreateUpload::default() };
        self.client.create_upload(upload).await.unwrap().id
    }

    async fn upload_part(&self, key: &str, upload: &str, number: u32, bytes: Vec<u8>) -> CompletedPart {
        let part = UploadPartRequest {
            bucket: VOLATILE.to_owned(),
            key: key.to_owned(),
            upload: upload.to_owned(),
            number,
            content_len: Some(bytes.len() as u64),
            digests: ExpectedDigests::default(),
            body: Box::new(Body(Some(bytes.into()))),
        };
        let etag = self.client.upload_part(part).await.unwrap().etag;
        CompletedPart { number, etag, checksums: Vec::new() }
    }

    async fn complete_upload(&self, key: &str, upload: String, parts: Vec<CompletedPart>) {
        let (bucket, key) = (VOLATILE.to_owned(), key.to_owned());
        let complete = CompleteUpload { bucket, key, upload, parts, ..CompleteUpload::default() };
        self.client.complete_upload(complete).await.unwrap();
    }

    /// Stores an object in parts of 5 MiB, which are two blocks each.
    async fn put_in_parts(&self, key: &str, bytes: &[u8]) {
        let (upload, mut parts) = (self.create_upload(key).await, Vec::new());
        for (number, part) in (1..).zip(bytes.chunks(5 * MIB)) {
            parts.push(self.upload_part(key, &upload, number, part.to_vec()).await);
        }
        self.complete_upload(key, upload, parts).await;
    }

    /// Returns the numbers of blocks in memory only whose objects were deleted, and overwritten.
    fn invalidated(&self) -> (u64, u64) {
        let counts = self.cache.counts();
        (counts.deleted.load(Ordering::Relaxed), counts.overwritten.load(Ordering::Relaxed))
    }
}

/// The time after which memory that nothing names is free.
const FREED_AFTER: Duration = Duration::from_secs(61);

/// Bytes after which no more come, and no end.
struct Stalled(Option<Bytes>);

#[async_trait]
impl PutBody for Stalled {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        match self.0.take() {
            Some(bytes) => Some(Ok(bytes)),
            None => std::future::pending().await,
        }
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
fn parities_have_sites_of_their_own_however_few_there_are() {
    for (memory_sites, parities) in [(2, 1), (3, 1), (4, 1), (5, 2), (3, 2)] {
        in_virtual_time(62, async |runtime| {
            let sites = Sites::new(&runtime, memory_sites, 64);
            let gateway = sites.gateway().await;
            gateway.make_volatile_bucket(&format!("cache rs(10,{parities})")).await;
            gateway.put_in(VOLATILE, "object", &noise(4 * MIB, 1)).await.unwrap();
            for first in 0..memory_sites as usize {
                let is_away =
                    |at: usize| (at + memory_sites as usize - first) % (memory_sites as usize) < parities;
                gateway.let_answer(&sites, |at| !is_away(at));
                let read = gateway.get_in(VOLATILE, "object", ReadRange::Whole).await;
                assert_eq!(read.unwrap(), noise(4 * MIB, 1), "{parities} of {memory_sites} are away");
            }
        });
    }
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
        gateway.put_in_parts("a", &noise(MIB, 1)).await;
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
        runtime.sleep(FREED_AFTER).await;
        assert_eq!(sites.cached_splits().await.len(), 2 * of_one);
        assert_eq!(gateway.invalidated(), (1, 1));
        for (key, seed) in [("kept", 1), ("replaced", 3)] {
            assert_eq!(gateway.get_in(VOLATILE, key, ReadRange::Whole).await.unwrap(), noise(4 * MIB, seed));
        }
    });
}

/// It takes 50 seconds. The gateway holds only some 13 MiB ahead of its client.
#[test]
fn a_slow_read_ends_although_its_object_is_replaced_or_deleted() {
    in_virtual_time(40, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,1)").await;
        let (whole, duration) = (noise(32 * MIB, 1), Duration::from_secs(50));
        for is_deleted in [false, true] {
            gateway.put_in(VOLATILE, "object", &whole).await.unwrap();
            let (bucket, key) = (VOLATILE.to_owned(), "object".to_owned());
            let get = GetRequest { bucket, key, ..GetRequest::default() };
            let mut body = gateway.client.get(get).await.unwrap().body;
            if is_deleted {
                gateway.client.delete(VOLATILE, "object", WriteCondition::default()).await.unwrap();
            } else {
                gateway.put_in(VOLATILE, "object", b"other").await.unwrap();
            }
            let (began, mut read) = (runtime.now(), Vec::new());
            while let Some(piece) = body.next().await {
                read.extend_from_slice(&piece.unwrap());
                let share = read.len() as f64 / whole.len() as f64;
                runtime.sleep_until(began + duration.mul_f64(share)).await;
            }
            assert!(read == whole, "deleted: {is_deleted}");
        }
    });
}

#[test]
fn the_memory_of_an_object_of_parts_is_free_when_it_is_replaced_or_deleted() {
    in_virtual_time(36, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,1)").await;
        gateway.put_in_parts("kept", &noise(6 * MIB, 1)).await;
        let of_one = sites.cached_splits().await.len();
        gateway.put_in_parts("replaced", &noise(6 * MIB, 2)).await;
        gateway.put_in_parts("replaced", &noise(6 * MIB, 3)).await;
        gateway.put_in_parts("deleted", &noise(6 * MIB, 4)).await;
        gateway.client.delete(VOLATILE, "deleted", WriteCondition::default()).await.unwrap();
        assert_eq!(sites.cached_splits().await.len(), 4 * of_one, "reads that have begun may need them");
        runtime.sleep(FREED_AFTER).await;
        assert_eq!(sites.cached_splits().await.len(), 2 * of_one);
        for abandoned in abandoned_parts(gateway.client.stripes(), None, 10).await.unwrap() {
            take_down(gateway.client.stripes(), &abandoned).await.unwrap();
        }
        runtime.sleep(FREED_AFTER).await;
        assert_eq!(gateway.invalidated(), (3, 3), "no block counts twice");
        for (key, seed) in [("kept", 1), ("replaced", 3)] {
            assert_eq!(gateway.get_in(VOLATILE, key, ReadRange::Whole).await.unwrap(), noise(6 * MIB, seed));
        }
    });
}

#[test]
fn the_memory_of_parts_that_are_in_no_object_is_freed() {
    in_virtual_time(37, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,1)").await;
        let (upload, aborted) = (gateway.create_upload("a").await, gateway.create_upload("b").await);
        gateway.upload_part("a", &upload, 1, noise(MIB, 1)).await;
        let of_one = sites.cached_splits().await.len();
        let part = gateway.upload_part("a", &upload, 1, noise(MIB, 2)).await;
        gateway.upload_part("a", &upload, 2, noise(MIB, 3)).await;
        gateway.upload_part("b", &aborted, 1, noise(MIB, 4)).await;
        assert_eq!(sites.cached_splits().await.len(), 4 * of_one);
        runtime.sleep(FREED_AFTER).await;
        assert_eq!(sites.cached_splits().await.len(), 3 * of_one, "one was replaced");
        gateway.complete_upload("a", upload, vec![part]).await;
        gateway.client.abort_upload(VOLATILE, "b", &aborted).await.unwrap();
        for abandoned in abandoned_parts(gateway.client.stripes(), None, 10).await.unwrap() {
            take_down(gateway.client.stripes(), &abandoned).await.unwrap();
        }
        assert_eq!(sites.cached_splits().await.len(), 3 * of_one, "reads that have begun may need them");
        runtime.sleep(FREED_AFTER).await;
        assert_eq!(sites.cached_splits().await.len(), of_one);
        assert_eq!(gateway.get_in(VOLATILE, "a", ReadRange::Whole).await.unwrap(), noise(MIB, 2));
    });
}

#[test]
fn the_memory_of_a_put_that_fails_is_freed() {
    in_virtual_time(38, async |runtime| {
        let sites = Sites::new(&runtime, 6, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,1)").await;
        let put = |condition| put_request(VOLATILE, "object", &noise(9 * MIB, 1), condition);
        let mut damaged = put(WriteCondition::default());
        damaged.digests.md5 = Some([0; 16]);
        let error = gateway.client.put(damaged).await.unwrap_err();
        assert!(matches!(error, ClientError::BadDigest(_)), "{error}");
        let mut stalled = put(WriteCondition::default());
        stalled.body = Box::new(Stalled(Some(noise(8 * MIB, 1).into())));
        let second = Duration::from_secs(1);
        assert!(runtime.timeout(second, gateway.client.put(stalled)).await.is_err(), "its sender goes away");
        assert!(!sites.cached_splits().await.is_empty());
        runtime.sleep(FREED_AFTER).await;
        assert!(sites.cached_splits().await.is_empty());
        // Both begin before there is an object; the commit refuses one.
        let create =
            || gateway.client.put(put(WriteCondition { if_absent: true, ..WriteCondition::default() }));
        let (one, other) = futures::join!(create(), create());
        assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
        let of_both = sites.cached_splits().await.len();
        runtime.sleep(FREED_AFTER).await;
        assert_eq!(sites.cached_splits().await.len(), of_both / 2);
        assert_eq!(gateway.get_in(VOLATILE, "object", ReadRange::Whole).await.unwrap(), noise(9 * MIB, 1));
        assert_eq!(gateway.invalidated(), (0, 0));
    });
}

#[test]
fn the_splits_of_a_block_that_does_not_fit_are_freed() {
    in_virtual_time(39, async |runtime| {
        let sites = Sites::new(&runtime, 1, 64);
        let gateway = sites.gateway().await;
        gateway.make_volatile_bucket("cache rs(10,0)").await;
        let identity =
            SiteIdentity { cluster: ClusterId(1), site: SiteId(102), rack: RackId("full".to_owned()) };
        let store = Arc::new(MemoryStore::new(1));
        let full: Arc<dyn Site> =
            Arc::new(LocalSite::new(runtime.clone(), identity, store, QueueLimits::default()));
        gateway.use_memory(&[sites.memory[0].clone(), full]);
        let error = gateway.put_in(VOLATILE, "object", &noise(4 * MIB, 1)).await.unwrap_err();
        assert!(matches!(error, ClientError::TooFewSites { available: 1, .. }), "{error}");
        assert_eq!(sites.cached_splits().await.len(), 1);
        runtime.sleep(FREED_AFTER).await;
        assert!(sites.cached_splits().await.is_empty());
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
