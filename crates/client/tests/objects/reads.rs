//! Reads: the byte budget, overwritten objects, concurrent reads.

use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use striate_client::{ClientError, CopyRequest, ObjectInfo, ReadCondition, ReadRange};

use crate::cluster::{BUCKET, Cluster, get, in_virtual_time, noise, put};
use crate::invariants;

/// Puts, gets and copies of bodies larger than the whole budget run concurrently over one budget.
#[test]
fn a_small_budget_never_stops_anybody() {
    in_virtual_time(1, async |runtime| {
        let cluster = Cluster::open(runtime.clone()).await;
        cluster.put("source", &noise(40_000, 0)).await.unwrap();
        let puts = (0..12).map(async |n| {
            cluster.put(&format!("put-{n}"), &noise(40_000, n)).await.unwrap();
        });
        let gets = (0..12).map(async |_| {
            assert_eq!(cluster.read("source").await.unwrap(), noise(40_000, 0));
        });
        let copies = (0..12).map(async |n| {
            let copy = CopyRequest {
                source_bucket: BUCKET.to_owned(),
                source_key: "source".to_owned(),
                bucket: BUCKET.to_owned(),
                key: format!("copy-{n}"),
                ..CopyRequest::default()
            };
            cluster.client.copy(copy).await.unwrap();
        });
        let everything = async { futures::join!(join_all(puts), join_all(gets), join_all(copies)) };
        let finished = runtime.timeout(Duration::from_secs(600), everything).await;
        assert!(finished.is_ok(), "somebody waits for ever");
        for n in 0..12 {
            assert_eq!(cluster.read(&format!("put-{n}")).await.unwrap(), noise(40_000, n));
            assert_eq!(cluster.read(&format!("copy-{n}")).await.unwrap(), noise(40_000, 0));
        }
        invariants::check(&cluster).await;
    });
}

/// Receivers that stall keep one block each; other requests continue with the rest of the budget.
#[test]
fn receivers_that_stall_or_go_away_hold_up_nobody() {
    in_virtual_time(2, async |runtime| {
        let cluster = Cluster::open(runtime.clone()).await;
        cluster.put("source", &noise(40_000, 0)).await.unwrap();
        let mut stalled = Vec::new();
        for _ in 0..5 {
            let mut object = cluster.client.get(get(BUCKET, "source")).await.unwrap();
            object.body.next().await.unwrap().unwrap();
            stalled.push(object.body);
        }
        let others = async {
            cluster.put("other", &noise(40_000, 1)).await.unwrap();
            cluster.read("other").await.unwrap()
        };
        assert_eq!(runtime.timeout(Duration::from_secs(60), others).await.unwrap(), noise(40_000, 1));
        drop(stalled);
        let many = (0..16).map(|_| cluster.read("source"));
        let all = runtime.timeout(Duration::from_secs(60), join_all(many)).await.unwrap();
        assert!(all.into_iter().all(|bytes| bytes.unwrap() == noise(40_000, 0)));
    });
}

#[test]
fn an_object_that_is_replaced_under_its_reader_is_read_whole_or_breaks_off_with_an_error() {
    in_virtual_time(3, async |runtime| {
        let cluster = Cluster::open(runtime).await;
        let old = noise(40_000, 1);
        cluster.put("key", &old).await.unwrap();
        let mut object = cluster.client.get(get(BUCKET, "key")).await.unwrap();
        let mut got = object.body.next().await.unwrap().unwrap().to_vec();
        cluster.put("key", &noise(100, 2)).await.unwrap();
        let mut error = None;
        while let Some(piece) = object.body.next().await {
            match piece {
                Ok(piece) => got.extend_from_slice(&piece),
                Err(broken) => error = Some(broken),
            }
        }
        assert!(old.starts_with(&got), "never bytes of another version");
        assert!(error.is_some() || got.len() == old.len(), "never short");
        assert_eq!(cluster.read("key").await.unwrap(), noise(100, 2));
    });
}

#[test]
fn overwriting_releases_what_was_there() {
    in_virtual_time(4, async |runtime| {
        let cluster = Cluster::open(runtime).await;
        for (round, len) in [2_500, 7_500, 40_000, 10, 0, 2_500].into_iter().enumerate() {
            cluster.put("key", &noise(len, round as u64)).await.unwrap();
            invariants::check(&cluster).await;
        }
        cluster.client.delete(BUCKET, "key", Default::default()).await.unwrap();
        let named = cluster.meta.scan(striate_meta::ScanRange::prefix(b"o/"), 10).await.unwrap();
        assert!(named.is_empty());
        invariants::check(&cluster).await;
    });
}

#[test]
fn conditions_of_reads_and_copies_are_answered_as_s3_does() {
    in_virtual_time(5, async |runtime| {
        let cluster = Cluster::open(runtime).await;
        let info: ObjectInfo = cluster.put("key", b"bytes").await.unwrap();
        let none_match = ReadCondition { if_none_match: Some(vec![info.etag.clone()]), ..Default::default() };
        let mut request = get(BUCKET, "key");
        request.condition = none_match.clone();
        let error = cluster.client.get(request).await.err().unwrap();
        assert!(matches!(error, ClientError::NotModified(found) if found.etag == info.etag));
        let copy = CopyRequest {
            source_bucket: BUCKET.to_owned(),
            source_key: "key".to_owned(),
            source_condition: none_match,
            bucket: BUCKET.to_owned(),
            key: "copy".to_owned(),
            ..CopyRequest::default()
        };
        let error = cluster.client.copy(copy).await.unwrap_err();
        assert!(matches!(error, ClientError::PreconditionFailed(_)), "{error}");
        let mut request = get(BUCKET, "key");
        request.range = ReadRange::Bytes { first: 5, last: None };
        assert!(matches!(cluster.client.head(request).await, Err(ClientError::InvalidRange { size: 5 })));
    });
}

/// S3 copies a source's metadata, but never its storage class and website redirect.
#[test]
fn a_copy_has_the_storage_class_that_it_asks_for() {
    in_virtual_time(7, async |runtime| {
        let cluster = Cluster::open(runtime).await;
        let mut request = crate::cluster::put("key", b"bytes");
        request.attributes.storage_class = "STANDARD_IA".to_owned();
        request.attributes.website_redirect = "/elsewhere".to_owned();
        request.attributes.content_type = "text/x".to_owned();
        cluster.client.put(request).await.unwrap();
        let copy = |key: &str, storage_class: Option<&str>| CopyRequest {
            source_bucket: BUCKET.to_owned(),
            source_key: "key".to_owned(),
            bucket: BUCKET.to_owned(),
            key: key.to_owned(),
            storage_class: storage_class.map(str::to_owned),
            ..CopyRequest::default()
        };
        for (key, class) in
            [("copy", None), ("other", Some("ONEZONE_IA")), ("key", Some("REDUCED_REDUNDANCY"))]
        {
            let attributes = cluster.client.copy(copy(key, class)).await.unwrap().attributes;
            assert_eq!(attributes.storage_class, class.unwrap_or_default(), "{key}");
            assert_eq!(
                (attributes.content_type.as_str(), attributes.website_redirect.as_str()),
                ("text/x", "")
            );
            assert_eq!(&cluster.read(key).await.unwrap()[..], b"bytes");
        }
        let error = cluster.client.copy(copy("key", None)).await.unwrap_err();
        assert!(matches!(error, ClientError::InvalidRequest(_)), "{error}");
        invariants::check(&cluster).await;
    });
}

#[test]
fn keys_that_cannot_be_are_refused() {
    in_virtual_time(6, async |runtime| {
        let cluster = Cluster::open(runtime).await;
        assert!(matches!(cluster.put(&"x".repeat(1_025), b"").await, Err(ClientError::KeyTooLong(1_025))));
        for key in ["", "a\0b"] {
            assert!(matches!(cluster.put(key, b"").await, Err(ClientError::InvalidArgument(_))));
        }
        cluster.put(&"x".repeat(1_024), b"").await.unwrap();
        let mut too_large = put("key", b"");
        too_large.content_len = Some(striate_client::MAX_PUT_LEN + 1);
        assert!(matches!(cluster.client.put(too_large).await, Err(ClientError::EntityTooLarge { .. })));
    });
}
