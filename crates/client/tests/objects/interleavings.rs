//! Operations that race, in virtual time over a slow metadata engine: each seed gives another order of events.

use std::sync::Arc;

use futures::future::join_all;
use md5::{Digest, Md5};
use proptest::prelude::*;
use striate_client::{
    ClientError, CompleteUpload, CompletedPart, CopyPartRequest, CreateBucket, CreateUpload, ExpectedDigests,
    ListUploads, PutRequest, UploadPartRequest,
};
use striate_control::collection::parts::{abandoned_parts, take_down};
use striate_runtime::Runtime;

use crate::cluster::{BUCKET, Cluster, Frames, get, in_virtual_time, noise, options, put};
use crate::engine::Unreliable;
use crate::invariants;

const KEY: &str = "key";

async fn open(runtime: Runtime) -> Cluster {
    let meta = Arc::new(Unreliable::slow(runtime.clone()));
    Cluster::open_with(runtime, meta, options()).await
}

/// Starts after a random pause.
async fn late<T>(runtime: &Runtime, work: impl Future<Output = T>) -> T {
    runtime.sleep(std::time::Duration::from_millis(runtime.random_u64() % 40)).await;
    work.await
}

async fn upload_part(cluster: &Cluster, upload: &str, bytes: &[u8]) -> Result<String, ClientError> {
    let request = UploadPartRequest {
        bucket: BUCKET.to_owned(),
        key: KEY.to_owned(),
        upload: upload.to_owned(),
        number: 1,
        content_len: None,
        digests: ExpectedDigests::default(),
        body: Frames::whole(bytes),
    };
    Ok(cluster.client.upload_part(request).await?.etag)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_bucket_goes_only_when_no_put_came_through(seed: u64) {
        in_virtual_time(seed, async |runtime| {
            let cluster = open(runtime.clone()).await;
            let puts = (0..3).map(|n| {
                let request = put(&format!("key-{n}"), &noise(1_200, n));
                late(&runtime, cluster.client.put(PutRequest { ..request }))
            });
            let delete = late(&runtime, cluster.client.delete_bucket(BUCKET));
            let (puts, delete) = futures::join!(join_all(puts), delete);
            let stored = puts.iter().filter(|result| result.is_ok()).count();
            assert_eq!(cluster.client.bucket(BUCKET).await.is_ok(), stored > 0, "{delete:?}");
            assert_eq!(delete.is_ok(), stored == 0, "{delete:?}");
            let rows = cluster.meta.scan(striate_meta::ScanRange::prefix(b"o/"), 10).await.unwrap();
            assert_eq!(rows.len(), stored);
            invariants::check(&cluster).await;
        });
    }

    /// The ends of an upload race with the end of its bucket, and with clients that start again.
    #[test]
    fn a_bucket_goes_with_its_uploads_or_stays_with_the_object_that_one_became(seed: u64) {
        in_virtual_time(seed, async |runtime| {
            let cluster = open(runtime.clone()).await;
            let client = &cluster.client;
            let create = || CreateUpload { bucket: BUCKET.to_owned(), key: KEY.to_owned(), ..CreateUpload::default() };
            let upload = client.create_upload(create()).await.unwrap().id;
            upload_part(&cluster, &upload, &noise(2_000, 1)).await.unwrap();
            let complete = CompleteUpload {
                bucket: BUCKET.to_owned(),
                key: KEY.to_owned(),
                upload: upload.clone(),
                parts: vec![CompletedPart { number: 1, etag: String::new(), checksums: Vec::new() }],
                ..CompleteUpload::default()
            };
            let bytes = noise(3_000, 2);
            let again = async {
                let mut bucket = Err(ClientError::Conflict);
                for _ in 0..8 {
                    let create = CreateBucket { name: BUCKET.to_owned(), ..CreateBucket::default() };
                    bucket = late(&runtime, client.create_bucket(create)).await;
                    if bucket.is_ok() {
                        break;
                    }
                }
                (bucket, client.create_upload(create()).await)
            };
            let (first, second, complete, part, (bucket, begun)) = futures::join!(
                late(&runtime, client.delete_bucket(BUCKET)),
                late(&runtime, client.delete_bucket(BUCKET)),
                late(&runtime, client.complete_upload(complete)),
                late(&runtime, upload_part(&cluster, &upload, &bytes)),
                again,
            );
            invariants::check(&cluster).await;
            for abandoned in abandoned_parts(client.stripes(), None, 10).await.unwrap() {
                take_down(client.stripes(), &abandoned).await.unwrap();
            }
            invariants::check(&cluster).await;
            let story = format!("{first:?} {second:?} {complete:?} {part:?} {bucket:?} {begun:?}");
            for error in [complete.as_ref().err(), part.as_ref().err(), begun.as_ref().err()].into_iter().flatten() {
                let lost = matches!(error, ClientError::NoSuchUpload(_) | ClientError::NoSuchBucket(_));
                assert!(lost, "{story}");
            }
            assert_ne!(complete.is_ok(), first.is_ok() || second.is_ok(), "{story}");
            if complete.is_ok() {
                assert!(cluster.read(KEY).await.is_ok(), "{story}");
            }
            // Only uploads begun in the present bucket still exist.
            let exists = client.bucket(BUCKET).await.is_ok();
            let list = ListUploads { bucket: BUCKET.to_owned(), max: 10, ..ListUploads::default() };
            let left = client.list_uploads(list).await.map(|page| page.items).unwrap_or_default();
            let left: Vec<String> = left.into_iter().map(|upload| upload.id).collect();
            let expected: Vec<String> = begun.iter().filter(|_| exists).map(|begun| begun.id.clone()).collect();
            assert_eq!(left, expected, "{story}");
        });
    }

    /// Replacing a source while it is read makes the rest of its old bytes unavailable.
    #[test]
    fn a_part_is_copied_from_one_version_of_its_source(seed: u64) {
        in_virtual_time(seed, async |runtime| {
            let cluster = open(runtime.clone()).await;
            let client = &cluster.client;
            let create = CreateUpload { bucket: BUCKET.to_owned(), key: KEY.to_owned(), ..CreateUpload::default() };
            let upload = client.create_upload(create).await.unwrap().id;
            let versions = [noise(5_900, 1), noise(5_500, 2)];
            cluster.put("source", &versions[0]).await.unwrap();
            let copy = CopyPartRequest {
                bucket: BUCKET.to_owned(),
                key: KEY.to_owned(),
                upload,
                number: 1,
                source_bucket: BUCKET.to_owned(),
                source_key: "source".to_owned(),
                ..CopyPartRequest::default()
            };
            let (part, put) = futures::join!(
                late(&runtime, client.copy_part(copy)),
                late(&runtime, cluster.put("source", &versions[1])),
            );
            put.unwrap();
            let etag = part.unwrap().etag;
            assert!(versions.iter().any(|bytes| hex::encode(Md5::digest(bytes)) == etag));
            invariants::check(&cluster).await;
        });
    }

    #[test]
    fn an_upload_has_one_end_and_its_object_is_what_its_etag_says(seed: u64) {
        in_virtual_time(seed, async |runtime| {
            let cluster = open(runtime.clone()).await;
            let client = &cluster.client;
            let create = CreateUpload { bucket: BUCKET.to_owned(), key: KEY.to_owned(), ..CreateUpload::default() };
            let upload = client.create_upload(create).await.unwrap().id;
            upload_part(&cluster, &upload, &noise(2_000, 1)).await.unwrap();
            let complete = || CompleteUpload {
                bucket: BUCKET.to_owned(),
                key: KEY.to_owned(),
                upload: upload.clone(),
                // An empty ETag matches any: the part may be replaced before or after.
                parts: vec![CompletedPart { number: 1, etag: String::new(), checksums: Vec::new() }],
                ..CompleteUpload::default()
            };
            let bytes = noise(3_000, 2);
            let (first, second, abort, part) = futures::join!(
                late(&runtime, client.complete_upload(complete())),
                late(&runtime, client.complete_upload(complete())),
                late(&runtime, client.abort_upload(BUCKET, KEY, &upload)),
                late(&runtime, upload_part(&cluster, &upload, &bytes)),
            );
            invariants::check(&cluster).await;
            for abandoned in abandoned_parts(client.stripes(), None, 10).await.unwrap() {
                take_down(client.stripes(), &abandoned).await.unwrap();
            }
            invariants::check(&cluster).await;
            assert_ne!(abort.is_ok(), first.is_ok() || second.is_ok(), "{abort:?} {first:?} {second:?}");
            if abort.is_ok() {
                let error = cluster.read(KEY).await.unwrap_err();
                assert!(matches!(error, ClientError::NoSuchKey(_)), "{error}");
                return;
            }
            let bytes = cluster.read(KEY).await.unwrap();
            let etag = client.head(get(BUCKET, KEY)).await.unwrap().0.etag;
            let md5 = Md5::digest(Md5::digest(&bytes));
            assert_eq!(etag, format!("{}-1", hex::encode(md5)), "{part:?}");
            for info in [first, second].into_iter().flatten() {
                assert_eq!(info.etag, etag);
            }
        });
    }
}
