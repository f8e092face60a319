//! Failed bodies and unknown outcomes, and what they leave behind.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use striate_client::{ClientError, ExpectedDigests, PutRequest};
use striate_meta::records::{Checksum, checksum::Algorithm};
use striate_meta::{MetaError, keys};

use crate::cluster::{Cluster, Frames, if_absent, in_virtual_time, noise, options, put};
use crate::engine::{Fault, Unreliable};
use crate::invariants;

fn with_faults(fault: Fault, every: u64, forgetful: bool, test: impl AsyncFnOnce(Cluster)) {
    in_virtual_time(1, async |runtime| {
        let meta = Arc::new(Unreliable::with_faults(runtime.clone(), fault, every, forgetful));
        test(Cluster::open_with(runtime, meta, options()).await).await;
    });
}

#[test]
fn a_creation_whose_answer_was_lost_recognises_that_it_had_won() {
    for fault in [Fault::AnswerLost, Fault::RequestLost, Fault::Unavailable, Fault::None] {
        for forgetful in [false, true] {
            with_faults(fault, 2, forgetful, async |cluster| {
                for round in 0..8 {
                    let (key, bytes) = (format!("key-{round}"), noise(1_700, round));
                    cluster.put_if(&key, &bytes, if_absent()).await.unwrap();
                    assert_eq!(cluster.read(&key).await.unwrap(), bytes);
                    let again = cluster.put_if(&key, b"other", if_absent()).await;
                    assert!(matches!(again, Err(ClientError::PreconditionFailed(_))), "{again:?}");
                }
                invariants::check(&cluster).await;
            });
        }
    }
}

/// Every reply is lost. The put fails; its chunks stay, since metadata may name them, and here it does.
#[test]
fn after_an_unknown_outcome_nothing_is_deleted() {
    with_faults(Fault::AnswerLost, 1, false, async |cluster| {
        let bytes = noise(2_500, 1);
        let error = cluster.put("key", &bytes).await.unwrap_err();
        assert!(matches!(error, ClientError::Meta(MetaError::UnknownOutcome(_))), "{error}");
        assert_eq!(cluster.read("key").await.unwrap(), bytes);
        invariants::check(&cluster).await;
    });
}

/// The engine crashes during the commit and stays away for longer than the writer retries. That the last attempt
/// certainly failed says nothing about the first one.
#[test]
fn a_commit_that_may_have_happened_is_not_answered_as_failed_because_its_retries_did() {
    with_faults(Fault::LostThenUnavailable, 1, false, async |cluster| {
        let bytes = noise(2_500, 1);
        let error = cluster.put("key", &bytes).await.unwrap_err();
        assert!(matches!(error, ClientError::Meta(MetaError::UnknownOutcome(_))), "{error}");
        assert_eq!(cluster.read("key").await.unwrap(), bytes);
        invariants::check(&cluster).await;
    });
}

/// Whether something names the blocks of a large object, of which the put does not know, decides whether they stay.
#[test]
fn a_large_put_without_a_known_outcome_leaves_no_segment_pending() {
    for fault in [Fault::AnswerLost, Fault::RequestLost] {
        with_faults(fault, 1, false, async |cluster| {
            let bytes = noise(30_000, 1);
            let error = cluster.put("key", &bytes).await.unwrap_err();
            assert!(matches!(error, ClientError::Meta(MetaError::UnknownOutcome(_))), "{error}");
            cluster.client.stripes().runtime().sleep(Duration::from_secs(1)).await;
            let read = cluster.read("key").await;
            match fault {
                Fault::AnswerLost => assert_eq!(read.unwrap(), bytes),
                _ => assert!(matches!(read, Err(ClientError::NoSuchKey(_)))),
            }
            invariants::check(&cluster).await;
        });
    }
}

#[test]
fn a_put_that_certainly_failed_leaves_no_chunks() {
    with_faults(Fault::Unavailable, 1, false, async |cluster| {
        for len in [100, 2_500, 30_000] {
            let error = cluster.put("key", &noise(len, 1)).await.unwrap_err();
            assert!(matches!(error, ClientError::Meta(MetaError::Unavailable(_))), "{error}");
        }
        assert!(matches!(cluster.read("key").await, Err(ClientError::NoSuchKey(_))));
        invariants::check(&cluster).await;
    });
}

#[test]
fn a_body_that_fails_at_its_end_stores_nothing_and_leaves_no_chunks() {
    in_virtual_time(2, async |runtime| {
        let cluster = Cluster::open(runtime).await;
        cluster.put("key", b"before").await.unwrap();
        for len in [0, 10, 1_000, 2_500, 7_000, 60_000] {
            let bytes = noise(len, 1);
            for content_len in [None, Some(len as u64)] {
                let body = Frames::failing(&bytes, 300);
                let request = PutRequest { content_len, body, ..put("key", &bytes) };
                let error = cluster.client.put(request).await.unwrap_err();
                assert!(matches!(error, ClientError::Body(_)), "{error}");
            }
            let mut cases = vec![
                (Some(len as u64 + 1), ExpectedDigests::default(), "announced"),
                (None, ExpectedDigests { md5: Some([7; 16]), ..Default::default() }, "Content-MD5"),
            ];
            if len > 0 {
                cases.push((Some(len as u64 - 1), ExpectedDigests::default(), "announced"));
            }
            for (content_len, digests, expected) in cases {
                let body = Frames::cut(&bytes, 300);
                let request = PutRequest { content_len, digests, body, ..put("key", &bytes) };
                let error = cluster.client.put(request).await.unwrap_err();
                assert!(error.to_string().contains(expected), "{error}");
            }
            // The blocks of a large body are named by an abandoned segment, and wait for the deleter.
            if len < 7_000 {
                assert_eq!(cluster.chunk_count(), 0);
            }
            invariants::check(&cluster).await;
        }
        assert_eq!(&cluster.read("key").await.unwrap()[..], b"before");
    });
}

#[test]
fn trailing_checksums_are_verified_after_the_body() {
    in_virtual_time(3, async |runtime| {
        let cluster = Cluster::open(runtime).await;
        let bytes = b"123456789";
        let checksum = |value: &'static [u8]| Checksum {
            algorithm: Algorithm::Crc32.into(),
            value: Bytes::from_static(value),
            composite: false,
        };
        let request = |value| PutRequest {
            digests: ExpectedDigests { compute: vec![Algorithm::Crc32], ..ExpectedDigests::default() },
            body: Frames::of(bytes, 4).with_trailers(vec![checksum(value)]),
            ..put("key", bytes)
        };
        let error = cluster.client.put(request(b"\0\0\0\0")).await.unwrap_err();
        assert!(matches!(&error, ClientError::BadDigest(name) if name == "CRC32"), "{error}");
        let info = cluster.client.put(request(b"\xcb\xf4\x39\x26")).await.unwrap();
        assert_eq!(info.checksums, [checksum(b"\xcb\xf4\x39\x26")]);
    });
}

#[test]
fn a_put_whose_caller_goes_away_leaves_no_chunks() {
    in_virtual_time(4, async |runtime| {
        let cluster = Cluster::open(runtime.clone()).await;
        let bytes = noise(9_000, 1);
        for polls in 1..120 {
            let request = PutRequest { body: Frames::cut(&bytes, 500), ..put("key", &bytes) };
            let mut doomed = Box::pin(cluster.client.put(request));
            for _ in 0..polls {
                if futures::poll!(&mut doomed).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(doomed);
        }
        // Virtual time advances only when all tasks are idle.
        runtime.sleep(Duration::from_secs(1)).await;
        invariants::check(&cluster).await;
    });
}

/// The caller may go away while the last blocks are being named.
#[test]
fn a_large_put_whose_caller_goes_away_leaves_no_segment_pending() {
    in_virtual_time(5, async |runtime| {
        let meta = Arc::new(Unreliable::slow(runtime.clone()));
        let cluster = Cluster::open_with(runtime.clone(), meta, options()).await;
        let bytes = noise(9_000, 1);
        for patience in (0..900).step_by(3) {
            let doomed = cluster.client.put(put("key", &bytes));
            // Whether it was in time does not matter.
            let _ended = runtime.timeout(Duration::from_millis(patience), doomed).await;
        }
        runtime.sleep(Duration::from_secs(30)).await;
        assert!(invariants::rows(&cluster, keys::PENDING).await.is_empty());
    });
}
