//! Multipart uploads: the rules of completion, 10,000 parts, and races for the end.

use bytes::Bytes;
use striate_client::{
    Client, ClientError, CompleteUpload, CompletedPart, CreateUpload, ExpectedDigests, GetRequest,
    MAX_PART_NUMBER, MIN_PART_LEN, PartInfo, ReadRange, UploadPartRequest,
};
use striate_control::collection::parts::{abandoned_parts, take_down};
use striate_meta::records::{Checksum, UploadPart, checksum::Algorithm, encode};
use striate_meta::{Transaction, TxId, keys};
use striate_runtime::Runtime;

use crate::cluster::{BUCKET, Cluster, Frames, get, if_absent, in_virtual_time, noise, options};
use crate::invariants;

const KEY: &str = "key";
const PART_LEN: usize = MIN_PART_LEN as usize;

/// Opens a store with blocks large enough for parts of 5 MiB.
async fn open(runtime: Runtime) -> Cluster {
    let meta = std::sync::Arc::new(striate_meta::MemoryStore::new(runtime.clone()));
    let options = {
        let mut options = striate_client::ClientOptions { block_len: 1 << 20, ..options() };
        options.stripes.in_flight_bytes = 8 << 20;
        options
    };
    Cluster::open_with(runtime, meta, options).await
}

async fn create(client: &Client, checksum: Option<Algorithm>, full: bool) -> Result<String, ClientError> {
    let request = CreateUpload {
        bucket: BUCKET.to_owned(),
        key: KEY.to_owned(),
        checksum,
        full_object_checksum: full,
        ..CreateUpload::default()
    };
    Ok(client.create_upload(request).await?.id)
}

async fn upload(client: &Client, upload: &str, number: u32, bytes: &[u8]) -> Result<PartInfo, ClientError> {
    upload_with(client, upload, number, bytes, Vec::new()).await
}

/// Uploads a part that is followed by these checksums.
async fn upload_with(
    client: &Client,
    upload: &str,
    number: u32,
    bytes: &[u8],
    compute: Vec<Algorithm>,
) -> Result<PartInfo, ClientError> {
    let request = UploadPartRequest {
        bucket: BUCKET.to_owned(),
        key: KEY.to_owned(),
        upload: upload.to_owned(),
        number,
        content_len: Some(bytes.len() as u64),
        digests: ExpectedDigests { compute, ..ExpectedDigests::default() },
        body: Frames::cut(bytes, 1 << 16),
    };
    client.upload_part(request).await
}

fn completion(upload: &str, parts: &[&PartInfo]) -> CompleteUpload {
    let parts = parts.iter().map(|part| CompletedPart {
        number: part.number,
        etag: part.etag.clone(),
        checksums: part.checksums.clone(),
    });
    CompleteUpload {
        bucket: BUCKET.to_owned(),
        key: KEY.to_owned(),
        upload: upload.to_owned(),
        parts: parts.collect(),
        ..CompleteUpload::default()
    }
}

async fn take_down_all(cluster: &Cluster) -> usize {
    let mut taken = 0;
    for abandoned in abandoned_parts(cluster.client.stripes(), None, usize::MAX).await.unwrap() {
        taken += take_down(cluster.client.stripes(), &abandoned).await.unwrap();
    }
    taken
}

#[test]
fn parts_become_an_object_and_those_left_out_are_released() {
    in_virtual_time(1, async |runtime| {
        let cluster = open(runtime).await;
        let client = &cluster.client;
        let id = create(client, None, false).await.unwrap();
        let (first, last) = (noise(PART_LEN + 7, 1), noise(100, 2));
        let replaced = upload(client, &id, 2, &noise(PART_LEN, 3)).await.unwrap();
        let two = upload(client, &id, 2, &first).await.unwrap();
        assert_ne!(replaced.etag, two.etag);
        let left_out = upload(client, &id, 5, &noise(PART_LEN, 4)).await.unwrap();
        let nine = upload(client, &id, 9, &last).await.unwrap();
        let listed = client.list_parts(BUCKET, KEY, &id, 2, 1).await.unwrap();
        assert_eq!((listed.items.as_slice(), listed.truncated), (&[left_out][..], true));
        let info = client.complete_upload(completion(&id, &[&two, &nine])).await.unwrap();
        assert!(info.etag.ends_with("-2"));
        assert_eq!(info.parts.iter().map(|part| part.number).collect::<Vec<_>>(), [2, 9]);
        assert_eq!(cluster.read(KEY).await.unwrap(), [&first[..], &last].concat());
        let second = cluster.read_range(BUCKET, KEY, ReadRange::Part(9)).await.unwrap();
        assert_eq!(&second[..], &last);
        let asked = GetRequest { range: ReadRange::Part(9), ..get(BUCKET, KEY) };
        let (described, _) = client.head(asked).await.unwrap();
        assert_eq!(described.parts[1].etag, nine.etag);
        let parts = client.object_parts(BUCKET, KEY, 0, 10).await.unwrap();
        assert_eq!(parts.items, [two, nine]);
        assert_eq!(take_down_all(&cluster).await, 1);
        invariants::check(&cluster).await;
        cluster.put(KEY, b"over it").await.unwrap();
        assert_eq!(take_down_all(&cluster).await, 2);
        invariants::check(&cluster).await;
    });
}

#[test]
fn completion_checks_its_parts_and_leaves_the_upload_when_they_do_not_fit() {
    in_virtual_time(2, async |runtime| {
        let cluster = open(runtime).await;
        let client = &cluster.client;
        let id = create(client, None, false).await.unwrap();
        let small = upload(client, &id, 1, b"small").await.unwrap();
        let large = upload(client, &id, 2, &noise(PART_LEN, 1)).await.unwrap();
        let last = upload(client, &id, 3, b"last").await.unwrap();
        let complete =
            async |parts: &[&PartInfo]| client.complete_upload(completion(&id, parts)).await.unwrap_err();
        assert!(matches!(complete(&[&last, &large]).await, ClientError::InvalidPartOrder));
        assert!(matches!(complete(&[&large, &large]).await, ClientError::InvalidPartOrder));
        assert!(matches!(complete(&[]).await, ClientError::InvalidRequest(_)));
        let error = complete(&[&small, &large]).await;
        assert!(matches!(error, ClientError::EntityTooSmall { number: 1, size: 5 }), "{error}");
        for wrong in [
            PartInfo { etag: last.etag.clone(), ..large.clone() },
            PartInfo { number: 4, ..last.clone() },
            PartInfo {
                checksums: vec![Checksum {
                    value: Bytes::from_static(b"12345678"),
                    ..large.checksums[0].clone()
                }],
                ..large.clone()
            },
        ] {
            let error = complete(&[&wrong]).await;
            assert!(
                matches!(&error, ClientError::InvalidPart { number, .. } if *number == wrong.number),
                "{error}"
            );
        }
        let foreign = Checksum { algorithm: 1, value: Bytes::from_static(b"1234"), composite: false };
        let error = complete(&[&PartInfo { checksums: vec![foreign], ..large.clone() }]).await;
        assert!(matches!(error, ClientError::BadDigest(_)), "the part has no such checksum: {error}");
        for number in [0, MAX_PART_NUMBER + 1] {
            let error = upload(client, &id, number, b"x").await.unwrap_err();
            assert!(matches!(error, ClientError::InvalidArgument(_)), "{error}");
        }
        cluster.put(KEY, b"there").await.unwrap();
        let conditional = CompleteUpload { condition: if_absent(), ..completion(&id, &[&large, &last]) };
        let error = client.complete_upload(conditional).await.unwrap_err();
        assert!(matches!(error, ClientError::PreconditionFailed(_)), "{error}");
        let sized = CompleteUpload { size: Some(1), ..completion(&id, &[&large, &last]) };
        assert!(matches!(client.complete_upload(sized).await.unwrap_err(), ClientError::InvalidRequest(_)));
        client.complete_upload(completion(&id, &[&large, &last])).await.unwrap();
        let error = upload(client, &id, 4, b"too late").await.unwrap_err();
        assert!(matches!(error, ClientError::NoSuchUpload(_)), "{error}");
        invariants::check(&cluster).await;
    });
}

#[test]
fn checksums_of_the_whole_are_made_from_those_of_the_parts() {
    in_virtual_time(3, async |runtime| {
        let cluster = open(runtime).await;
        let client = &cluster.client;
        let bytes = noise(PART_LEN + 1_000, 1);
        for (algorithm, full) in [
            (Algorithm::Crc32, true),
            (Algorithm::Crc32c, true),
            (Algorithm::Crc64nvme, false),
            (Algorithm::Crc32, false),
            (Algorithm::Sha256, false),
        ] {
            let id = create(client, Some(algorithm), full).await.unwrap();
            let sent = if full { Vec::new() } else { vec![algorithm] };
            let one = upload_with(client, &id, 1, &bytes[..PART_LEN], sent.clone()).await.unwrap();
            let two = upload_with(client, &id, 2, &bytes[PART_LEN..], sent).await.unwrap();
            let mut complete = completion(&id, &[&one, &two]);
            complete.checksums = vec![Checksum { composite: false, ..one.checksums[0].clone() }];
            let error = client.complete_upload(complete).await.unwrap_err();
            assert!(matches!(error, ClientError::BadDigest(_)), "{error}");
            let info = client.complete_upload(completion(&id, &[&one, &two])).await.unwrap();
            let composite = !full && algorithm != Algorithm::Crc64nvme;
            assert_eq!(info.checksums[0].composite, composite);
            if !composite {
                let digests = ExpectedDigests { compute: vec![algorithm], ..ExpectedDigests::default() };
                let put = striate_client::PutRequest { digests, ..crate::cluster::put("other", &bytes) };
                assert_eq!(client.put(put).await.unwrap().checksums, info.checksums);
            }
        }
        // An upload begun without an algorithm uses the parts' checksums, if all have one.
        let id = create(client, None, false).await.unwrap();
        let digests = ExpectedDigests { compute: vec![Algorithm::Crc32c], ..ExpectedDigests::default() };
        let request = |number, bytes: &[u8], digests: ExpectedDigests| UploadPartRequest {
            bucket: BUCKET.to_owned(),
            key: KEY.to_owned(),
            upload: id.clone(),
            number,
            content_len: None,
            digests,
            body: Frames::whole(bytes),
        };
        let one = client.upload_part(request(1, &bytes[..PART_LEN], digests.clone())).await.unwrap();
        let two = client.upload_part(request(2, &bytes[PART_LEN..], digests.clone())).await.unwrap();
        let put = striate_client::PutRequest { digests, ..crate::cluster::put("other", &bytes) };
        let whole = client.put(put).await.unwrap().checksums;
        let mut complete = completion(&id, &[&one, &two]);
        complete.checksums = one.checksums.clone();
        let error = client.complete_upload(complete.clone()).await.unwrap_err();
        assert!(matches!(error, ClientError::BadDigest(_)), "{error}");
        complete.checksums = vec![Checksum { algorithm: Algorithm::Crc32.into(), ..whole[0].clone() }];
        let error = client.complete_upload(complete.clone()).await.unwrap_err();
        assert!(matches!(error, ClientError::InvalidPart { number: 1, .. }), "{error}");
        (complete.checksums, complete.full_object_checksum) = (whole.clone(), Some(false));
        let error = client.complete_upload(complete.clone()).await.unwrap_err();
        assert!(matches!(error, ClientError::InvalidRequest(_)), "{error}");
        complete.full_object_checksum = Some(true);
        assert_eq!(client.complete_upload(complete).await.unwrap().checksums, whole);
        assert!(matches!(
            create(client, Some(Algorithm::Sha1), true).await,
            Err(ClientError::InvalidRequest(_))
        ));
    });
}

/// 10,000 parts of 5 MiB: one is stored, and its row is repeated under the other numbers. The engine enforces the
/// limits of every transaction.
#[test]
fn ten_thousand_parts_complete_and_read_back() {
    in_virtual_time(4, async |runtime| {
        let cluster = open(runtime).await;
        let client = &cluster.client;
        let id = create(client, Some(Algorithm::Crc32c), true).await.unwrap();
        let bytes = noise(PART_LEN, 1);
        let part = upload(client, &id, 1, &bytes).await.unwrap();
        let upload_id: [u8; 16] = hex::decode(&id).unwrap().try_into().unwrap();
        let row = cluster.meta.get(&keys::part(&upload_id, 1)).await.unwrap().unwrap();
        let record: UploadPart = row.record().unwrap();
        for first in (2..=MAX_PART_NUMBER).step_by(90) {
            let mut tx = Transaction::new(TxId(u128::from(first)));
            for number in first..(first + 90).min(MAX_PART_NUMBER + 1) {
                tx.put(keys::part(&upload_id, number), encode(&UploadPart { number, ..record.clone() }));
            }
            cluster.meta.commit(tx).await.unwrap();
        }
        let parts: Vec<PartInfo> =
            (1..=MAX_PART_NUMBER).map(|number| PartInfo { number, ..part.clone() }).collect();
        let request = completion(&id, &parts.iter().collect::<Vec<_>>());
        let info = client.complete_upload(request.clone()).await.unwrap();
        assert_eq!(info.size, u64::from(MAX_PART_NUMBER) * PART_LEN as u64);
        assert!(info.etag.ends_with("-10000"));
        assert_eq!(client.complete_upload(request).await.unwrap().etag, info.etag);
        let row = cluster.meta.get(&keys::object(BUCKET, KEY)).await.unwrap().unwrap();
        assert!(row.value.len() < 200, "equal parts are one run, not {} bytes", row.value.len());
        let part_len = PART_LEN as u64;
        for first in [0, part_len - 10, 4_999 * part_len - 1, 9_999 * part_len + 77, 10_000 * part_len - 20] {
            let last = (first + 19).min(info.size - 1);
            let range = ReadRange::Bytes { first, last: Some(last) };
            let read = cluster.read_range(BUCKET, KEY, range).await.unwrap();
            let expected: Vec<u8> = (first..=last).map(|at| bytes[(at % part_len) as usize]).collect();
            assert_eq!(&read[..], &expected, "from {first}");
        }
        let whole_part = cluster.read_range(BUCKET, KEY, ReadRange::Part(10_000)).await.unwrap();
        assert_eq!(&whole_part[..], &bytes);
        let page = client.object_parts(BUCKET, KEY, 9_990, 5).await.unwrap();
        assert_eq!((page.items[0].number, page.items.len(), page.truncated), (9_991, 5, true));
    });
}

#[test]
fn parts_have_the_checksum_that_their_upload_promised() {
    in_virtual_time(4, async |runtime| {
        let cluster = open(runtime).await;
        let client = &cluster.client;
        let refused = async |id: &str, compute: Vec<Algorithm>| {
            let error = upload_with(client, id, 1, b"x", compute).await.unwrap_err();
            assert!(matches!(error, ClientError::InvalidRequest(_)), "{error}");
        };
        let composite = create(client, Some(Algorithm::Sha256), false).await.unwrap();
        refused(&composite, Vec::new()).await;
        refused(&composite, vec![Algorithm::Crc32]).await;
        let full = create(client, Some(Algorithm::Crc32), true).await.unwrap();
        refused(&full, vec![Algorithm::Sha256]).await;
        assert_eq!(upload(client, &full, 1, b"x").await.unwrap().checksums[0].algorithm(), Algorithm::Crc32);

        // The list of parts has the checksums of all or of none.
        let bytes = noise(PART_LEN, 1);
        let one = upload_with(client, &composite, 1, &bytes, vec![Algorithm::Sha256]).await.unwrap();
        let two = upload_with(client, &composite, 2, b"x", vec![Algorithm::Sha256]).await.unwrap();
        let bare = |part: &PartInfo| PartInfo { checksums: Vec::new(), ..part.clone() };
        let error = client.complete_upload(completion(&composite, &[&one, &bare(&two)])).await.unwrap_err();
        assert!(matches!(error, ClientError::InvalidRequest(_)), "{error}");
        let info = client.complete_upload(completion(&composite, &[&bare(&one), &bare(&two)])).await.unwrap();
        assert!(info.checksums[0].composite);

        // An upload that promised nothing has the default checksum, unless a part of an older program lacks it.
        let plain = create(client, None, false).await.unwrap();
        let part = upload(client, &plain, 1, b"x").await.unwrap();
        let info = client.complete_upload(completion(&plain, &[&part])).await.unwrap();
        assert_eq!(info.checksums, part.checksums);
        assert_eq!(info.checksums[0].algorithm(), striate_client::DEFAULT_CHECKSUM);
    });
}

/// The worst record: no two neighbouring parts have the same size.
#[test]
fn ten_thousand_parts_of_different_sizes_fit_into_one_record() {
    in_virtual_time(5, async |runtime| {
        let cluster = open(runtime).await;
        let client = &cluster.client;
        let id = create(client, None, false).await.unwrap();
        let part = upload(client, &id, 1, b"x").await.unwrap();
        let upload_id: [u8; 16] = hex::decode(&id).unwrap().try_into().unwrap();
        let mut parts = Vec::new();
        for first in (1..=MAX_PART_NUMBER).step_by(90) {
            let mut tx = Transaction::new(TxId(u128::from(first)));
            for number in first..(first + 90).min(MAX_PART_NUMBER + 1) {
                let size = (500 << 20) + u64::from(number);
                parts.push(PartInfo { number, size, checksums: Vec::new(), ..part.clone() });
                let record = UploadPart { number, size, etag: part.etag.clone(), ..UploadPart::default() };
                tx.put(keys::part(&upload_id, number), encode(&record));
            }
            cluster.meta.commit(tx).await.unwrap();
        }
        let info = client.complete_upload(completion(&id, &parts.iter().collect::<Vec<_>>())).await.unwrap();
        assert_eq!(info.size, parts.iter().map(|part| part.size).sum::<u64>());
        assert_eq!(info.checksums, [], "the parts have none, as those of older programs");
        let range = ReadRange::Part(7_000);
        let (_, range) = client.head(GetRequest { range, ..get(BUCKET, KEY) }).await.unwrap();
        assert_eq!(range.end - range.start, parts[6_999].size);
        let row = cluster.meta.get(&keys::object(BUCKET, KEY)).await.unwrap().unwrap();
        assert!(row.value.len() < 200 << 10, "{} bytes", row.value.len());
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_aborts_and_parts_that_race_leave_one_consistent_end() {
    for round in 0..20 {
        let cluster = Cluster::open(Runtime::real()).await;
        let client = &cluster.client;
        let id = create(client, None, false).await.unwrap();
        let bytes = noise(3_000, round);
        let part = upload(client, &id, 1, &bytes).await.unwrap();
        let complete = || client.complete_upload(completion(&id, &[&part]));
        let replacement = noise(2_000, round + 100);
        let (a, b, abort, late) = futures::join!(
            complete(),
            complete(),
            client.abort_upload(BUCKET, KEY, &id),
            upload(client, &id, 1, &replacement),
        );
        match client.get(get(BUCKET, KEY)).await {
            Ok(object) => {
                assert!(a.is_ok() || b.is_ok(), "{a:?} {b:?}");
                assert!(matches!(abort, Err(ClientError::NoSuchUpload(_))), "{abort:?}");
                assert_eq!(object.info.etag.split('-').nth(1), Some("1"));
                assert_eq!(cluster.read(KEY).await.unwrap(), bytes);
            }
            Err(ClientError::NoSuchKey(_)) => {
                // Aborted, or the part was replaced first, so that its old ETag no longer matched.
                assert!(a.is_err() && b.is_err() && (abort.is_ok() || late.is_ok()));
            }
            Err(other) => panic!("{other}"),
        }
        invariants::check(&cluster).await;
        take_down_all(&cluster).await;
        invariants::check(&cluster).await;
    }
}
