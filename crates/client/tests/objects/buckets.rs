//! Buckets.

use striate_client::{
    ClientError, CreateBucket, CreateUpload, ExpectedDigests, ListUploads, PartInfo, UploadPartRequest,
    WriteCondition,
};
use striate_control::collection::parts::{abandoned_parts, take_down};
use striate_meta::keys;
use striate_meta::records::{Bucket, encode};

use crate::cluster::{BUCKET, Cluster, Frames, in_virtual_time, noise};
use crate::invariants;

fn create(name: &str, owner: &str) -> CreateBucket {
    CreateBucket { name: name.to_owned(), owner: owner.to_owned(), ..CreateBucket::default() }
}

#[test]
fn buckets_are_created_once_listed_in_order_and_deleted_when_empty() {
    in_virtual_time(1, async |runtime| {
        let cluster = Cluster::open(runtime).await;
        let client = &cluster.client;
        for name in ["zebra", "abc", "a-b"] {
            client.create_bucket(create(name, "me")).await.unwrap();
        }
        let error = client.create_bucket(create("abc", "me")).await.unwrap_err();
        assert!(matches!(error, ClientError::BucketAlreadyOwned(_)), "{error}");
        let error = client.create_bucket(create("abc", "you")).await.unwrap_err();
        assert!(matches!(error, ClientError::BucketAlreadyOwned(_)), "{error}");
        assert!(matches!(
            client.create_bucket(create("No", "me")).await,
            Err(ClientError::InvalidBucketName { .. })
        ));
        let names = async |after: &str, limit| -> Vec<String> {
            client.list_buckets(after, limit).await.unwrap().into_iter().map(|bucket| bucket.name).collect()
        };
        assert_eq!(names("", 10).await, ["a-b", "abc", BUCKET, "zebra"]);
        assert_eq!(names("abc", 1).await, [BUCKET]);
        cluster.put("key", b"x").await.unwrap();
        assert!(matches!(client.delete_bucket(BUCKET).await, Err(ClientError::BucketNotEmpty(_))));
        client.delete(BUCKET, "key", WriteCondition::default()).await.unwrap();
        client.delete_bucket(BUCKET).await.unwrap();
        for error in [
            client.delete_bucket(BUCKET).await.unwrap_err(),
            cluster.put("key", b"x").await.map(|_| ()).unwrap_err(),
            cluster.read("key").await.map(|_| ()).unwrap_err(),
        ] {
            assert!(matches!(error, ClientError::NoSuchBucket(_)), "{error}");
        }
    });
}

async fn begin_upload(cluster: &Cluster, key: &str) -> String {
    let create = CreateUpload { bucket: BUCKET.to_owned(), key: key.to_owned(), ..CreateUpload::default() };
    cluster.client.create_upload(create).await.unwrap().id
}

async fn upload_part(cluster: &Cluster, key: &str, upload: &str) -> Result<PartInfo, ClientError> {
    let request = UploadPartRequest {
        bucket: BUCKET.to_owned(),
        key: key.to_owned(),
        upload: upload.to_owned(),
        number: 1,
        content_len: None,
        digests: ExpectedDigests::default(),
        body: Frames::whole(&noise(2_000, 1)),
    };
    cluster.client.upload_part(request).await
}

/// There are more uploads than one transaction aborts.
#[test]
fn a_bucket_with_nothing_but_uploads_is_deleted_with_them_and_leaks_nothing() {
    in_virtual_time(4, async |runtime| {
        let cluster = Cluster::open(runtime).await;
        let client = &cluster.client;
        let mut uploads = Vec::new();
        for number in 0..70 {
            let key = format!("key-{number:02}");
            let upload = begin_upload(&cluster, &key).await;
            if number % 10 == 0 {
                upload_part(&cluster, &key, &upload).await.unwrap();
            }
            uploads.push((key, upload));
        }
        cluster.put("key", b"x").await.unwrap();
        assert!(matches!(client.delete_bucket(BUCKET).await, Err(ClientError::BucketNotEmpty(_))));
        let (key, upload) = &uploads[5];
        upload_part(&cluster, key, upload).await.expect("a refused deletion leaves the uploads");
        client.delete(BUCKET, "key", WriteCondition::default()).await.unwrap();

        client.delete_bucket(BUCKET).await.unwrap();
        let error = upload_part(&cluster, key, upload).await.unwrap_err();
        assert!(matches!(error, ClientError::NoSuchBucket(_)), "{error}");
        invariants::check(&cluster).await;
        cluster.create_bucket(BUCKET).await;
        let error = upload_part(&cluster, key, upload).await.unwrap_err();
        assert!(matches!(error, ClientError::NoSuchUpload(_)), "{error}");
        let list = ListUploads { bucket: BUCKET.to_owned(), max: 10, ..ListUploads::default() };
        assert!(client.list_uploads(list).await.unwrap().items.is_empty());
        let mut parts = 0;
        for abandoned in abandoned_parts(client.stripes(), None, 100).await.unwrap() {
            parts += take_down(client.stripes(), &abandoned).await.unwrap();
        }
        assert_eq!(parts, 8);
        invariants::check(&cluster).await;
    });
}

/// The first deleter died after setting its mark.
#[test]
fn a_deletion_that_was_left_behind_is_finished_by_whoever_comes_next() {
    in_virtual_time(2, async |runtime| {
        let cluster = Cluster::open(runtime).await;
        let mark = async |name: &str| {
            let record = Bucket { deleting: true, ..cluster.client.bucket(name).await.unwrap() };
            let mut tx = cluster.client.stripes().transaction();
            tx.put(keys::bucket(name), encode(&record));
            cluster.meta.commit(tx).await.unwrap();
        };
        cluster.put("key", b"x").await.unwrap();
        mark(BUCKET).await;
        cluster.put("other", b"y").await.unwrap();
        assert!(!cluster.client.bucket(BUCKET).await.unwrap().deleting, "a bucket with objects lives on");
        cluster.create_bucket("empty").await;
        mark("empty").await;
        assert!(
            cluster.client.list_buckets("", 10).await.unwrap().iter().all(|bucket| bucket.name != "empty")
        );
        cluster.create_bucket("empty").await;
    });
}

#[test]
fn sub_resources_change_atomically() {
    in_virtual_time(3, async |runtime| {
        let cluster = Cluster::open(runtime).await;
        let add = |name: &'static str| {
            cluster.client.update_bucket(BUCKET, move |bucket| {
                bucket.tags.insert(name.to_owned(), String::new());
            })
        };
        let results = futures::future::join_all(["a", "b", "c", "d"].map(add)).await;
        assert!(results.iter().all(Result::is_ok));
        assert_eq!(cluster.client.bucket(BUCKET).await.unwrap().tags.len(), 4);
        let missing = cluster.client.update_bucket("missing", |_| {}).await;
        assert!(matches!(missing, Err(ClientError::NoSuchBucket(_))));
    });
}

/// Such profiles can be parsed, and must not be mistaken for supported ones.
#[test]
fn profiles_that_are_not_stored_are_refused_for_buckets_and_objects() {
    in_virtual_time(5, async |runtime| {
        let cluster = Cluster::open(runtime).await;
        for text in ["packed rs(2,1)", "wide(4,2,2)", "cache rs(2,1)", "rs(2,1) spread flat"] {
            let profile = Some(text.parse().unwrap());
            let request = CreateBucket { name: "other".to_owned(), profile, ..CreateBucket::default() };
            let error = cluster.client.create_bucket(request).await.unwrap_err();
            let says_so = error.to_string().contains(&format!("as {text}"));
            assert!(says_so && matches!(error, ClientError::InvalidArgument(_)), "{error}");
            let create = CreateUpload {
                bucket: BUCKET.to_owned(),
                key: "key".to_owned(),
                profile,
                ..CreateUpload::default()
            };
            let error = cluster.client.create_upload(create).await.unwrap_err();
            assert!(matches!(error, ClientError::InvalidArgument(_)), "{error}");
        }
        let error = cluster.client.bucket("other").await.unwrap_err();
        assert!(matches!(error, ClientError::NoSuchBucket(_)), "{error}");
    });
}
