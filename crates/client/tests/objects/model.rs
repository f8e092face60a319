//! The object API compared with a map from keys to bytes.

use std::collections::BTreeMap;

use futures::StreamExt;
use proptest::prelude::*;
use striate_client::{
    ClientError, CompleteUpload, CompletedPart, CopyPartRequest, CopyRequest, CreateUpload, GetRequest,
    ListRequest, ObjectAttributes, PutRequest, ReadOrder, ReadRange, UploadPartRequest, WriteCondition,
};
use striate_control::collection::parts::{abandoned_parts, take_down};

use crate::cluster::{BUCKET, Cluster, Frames, get, if_absent, if_match, in_virtual_time, noise, put};
use crate::invariants;

#[derive(Clone, Debug)]
enum Op {
    Put { key: usize, len: usize, frame_len: usize, announced: bool, condition: Condition },
    Get { key: usize, range: ReadRange },
    Delete { key: usize, condition: Condition },
    Copy { from: usize, to: usize },
    Describe { key: usize },
    Tag { key: usize },
    Upload { key: usize, len: usize, copied_from: usize, end: End },
    List { prefix: &'static str, delimiter: &'static str, max: usize },
}

#[derive(Clone, Copy, Debug)]
enum Condition {
    None,
    IfAbsent,
    IfMatchCurrent,
    IfMatchOther,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Complete,
    Abort,
    Leave,
}

/// Keys that look like paths, sort in unexpected ways and are prefixes of each other.
const KEYS: [&str; 8] = ["a", "a/b", "a/b/c", "a//", "a0", "ä/ö", "..", "z/"];

#[derive(Clone, Debug, PartialEq)]
struct Object {
    bytes: Vec<u8>,
    etag: String,
    tags: BTreeMap<String, String>,
    content_type: String,
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        4 => Just(Condition::None),
        1 => Just(Condition::IfAbsent),
        1 => Just(Condition::IfMatchCurrent),
        1 => Just(Condition::IfMatchOther),
    ]
}

fn range() -> impl Strategy<Value = ReadRange> {
    prop_oneof![
        2 => Just(ReadRange::Whole),
        3 => (0u64..9_000, prop::option::of(0u64..12_000))
            .prop_map(|(first, last)| ReadRange::Bytes { first, last }),
        1 => (0u64..12_000).prop_map(|len| ReadRange::Suffix { len }),
        1 => (0u32..3).prop_map(ReadRange::Part),
    ]
}

/// Lengths of inline objects, of one block, a few blocks, a segment of one batch, and a segment of many rows.
fn len() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0usize),
        2 => 1usize..700,
        2 => 700usize..3_000,
        1 => Just(1_000usize),
        2 => 5_000usize..8_000,
        1 => 30_000usize..40_000,
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..KEYS.len();
    prop_oneof![
        6 => (key.clone(), len(), 1usize..5_000, any::<bool>(), condition()).prop_map(
            |(key, len, frame_len, announced, condition)| Op::Put { key, len, frame_len, announced, condition }
        ),
        6 => (key.clone(), range()).prop_map(|(key, range)| Op::Get { key, range }),
        2 => (key.clone(), condition()).prop_map(|(key, condition)| Op::Delete { key, condition }),
        2 => (key.clone(), key.clone()).prop_map(|(from, to)| Op::Copy { from, to }),
        1 => key.clone().prop_map(|key| Op::Describe { key }),
        1 => key.clone().prop_map(|key| Op::Tag { key }),
        2 => (key.clone(), len(), key, prop_oneof![Just(End::Complete), Just(End::Abort), Just(End::Leave)])
            .prop_map(|(key, len, copied_from, end)| Op::Upload { key, len, copied_from, end }),
        2 => (
            prop::sample::select(vec!["", "a", "a/", "ä"]),
            prop::sample::select(vec!["", "/", "//"]),
            0usize..5,
        )
            .prop_map(|(prefix, delimiter, max)| Op::List { prefix, delimiter, max }),
    ]
}

struct Run {
    cluster: Cluster,
    model: BTreeMap<String, Object>,
    step: u64,
}

impl Run {
    fn write_condition(&self, key: &str, condition: Condition) -> WriteCondition {
        match condition {
            Condition::None => WriteCondition::default(),
            Condition::IfAbsent => if_absent(),
            Condition::IfMatchCurrent => {
                if_match(self.model.get(key).map_or("*", |object| object.etag.as_str()))
            }
            Condition::IfMatchOther => if_match("0123"),
        }
    }

    /// Returns whether the condition allows a write, by the model.
    fn allowed(&self, key: &str, condition: Condition) -> Result<(), &'static str> {
        match (condition, self.model.contains_key(key)) {
            (Condition::None, _) | (Condition::IfAbsent, false) | (Condition::IfMatchCurrent, true) => Ok(()),
            (Condition::IfAbsent, true) | (Condition::IfMatchOther, true) => Err("412"),
            (Condition::IfMatchCurrent | Condition::IfMatchOther, false) => Err("404"),
        }
    }

    async fn apply(&mut self, op: Op) {
        self.step += 1;
        match op {
            Op::Put { key, len, frame_len, announced, condition } => {
                self.put(KEYS[key], len, frame_len, announced, condition).await;
            }
            Op::Get { key, range } => self.get(KEYS[key], range).await,
            Op::Delete { key, condition } => self.delete(KEYS[key], condition).await,
            Op::Copy { from, to } => self.copy(KEYS[from], KEYS[to]).await,
            Op::Describe { key } => self.describe(KEYS[key]).await,
            Op::Tag { key } => self.tag(KEYS[key]).await,
            Op::Upload { key, len, copied_from, end } => {
                self.upload(KEYS[key], len, KEYS[copied_from], end).await;
            }
            Op::List { prefix, delimiter, max } => self.list(prefix, delimiter, max).await,
        }
    }

    async fn put(&mut self, key: &str, len: usize, frame_len: usize, announced: bool, condition: Condition) {
        let bytes = noise(len, self.step);
        let request = PutRequest {
            condition: self.write_condition(key, condition),
            content_len: announced.then_some(len as u64),
            body: Frames::cut(&bytes, frame_len),
            ..put(key, &bytes)
        };
        let result = self.cluster.client.put(request).await;
        match self.allowed(key, condition) {
            Ok(()) => {
                let info = result.unwrap();
                assert_eq!(info.size, len as u64);
                let (tags, content_type) = (BTreeMap::new(), String::new());
                self.model.insert(key.to_owned(), Object { bytes, etag: info.etag, tags, content_type });
            }
            Err(expected) => assert_status(result, expected),
        }
    }

    async fn get(&self, key: &str, range: ReadRange) {
        let result = self.cluster.read_range(BUCKET, key, range).await;
        let Some(object) = self.model.get(key) else { return assert_status(result, "404") };
        let size = object.bytes.len();
        let expected = match range {
            ReadRange::Whole => Some(0..size),
            ReadRange::Bytes { first, last } => {
                let end = last.map_or(size, |last| (last as usize + 1).min(size));
                (first as usize).lt(&end).then_some(first as usize..end)
            }
            ReadRange::Suffix { len } => {
                (len > 0 && size > 0).then_some(size.saturating_sub(len as usize)..size)
            }
            // Multipart objects of this test have part 1 and, if copied, part 2: see `Run::upload`.
            ReadRange::Part(_) => return self.get_part(key, range, result).await,
        };
        match expected {
            Some(expected) => assert_eq!(&result.unwrap()[..], &object.bytes[expected]),
            None => assert!(matches!(result, Err(ClientError::InvalidRange { .. })), "{result:?}"),
        }
    }

    async fn get_part(&self, key: &str, range: ReadRange, result: Result<bytes::Bytes, ClientError>) {
        let ReadRange::Part(number) = range else { unreachable!() };
        let object = &self.model[key];
        let (info, _) = self.cluster.client.head(get(BUCKET, key)).await.unwrap();
        let whole = [(1, info.size)];
        let parts: Vec<(u32, u64)> = match info.parts.is_empty() {
            true => whole.to_vec(),
            false => info.parts.iter().map(|part| (part.number, part.size)).collect(),
        };
        let mut at = 0;
        for (candidate, size) in parts {
            let end = at + size as usize;
            if candidate == number {
                assert_eq!(&result.unwrap()[..], &object.bytes[at..end]);
                return;
            }
            at = end;
        }
        assert!(matches!(result, Err(ClientError::InvalidRange { .. })), "{result:?}");
    }

    async fn delete(&mut self, key: &str, condition: Condition) {
        let result = self.cluster.client.delete(BUCKET, key, self.write_condition(key, condition)).await;
        // A delete's If-Match is ignored when there is no object.
        let existed = self.model.contains_key(key);
        match self.allowed(key, condition) {
            Err("412") => assert_status(result, "412"),
            _ => {
                assert_eq!(result.unwrap(), existed);
                self.model.remove(key);
            }
        }
    }

    async fn copy(&mut self, from: &str, to: &str) {
        let request = CopyRequest {
            source_bucket: BUCKET.to_owned(),
            source_key: from.to_owned(),
            bucket: BUCKET.to_owned(),
            key: to.to_owned(),
            ..CopyRequest::default()
        };
        let result = self.cluster.client.copy(request).await;
        if from == to {
            assert!(matches!(result, Err(ClientError::InvalidRequest(_))), "{result:?}");
            return;
        }
        let Some(source) = self.model.get(from).cloned() else { return assert_status(result, "404") };
        let info = result.unwrap();
        assert!(!info.etag.contains('-'), "a copy is a single put");
        assert_eq!(info.attributes.tags, source.tags);
        self.model.insert(to.to_owned(), Object { etag: info.etag, ..source });
    }

    async fn describe(&mut self, key: &str) {
        let content_type = format!("type/{}", self.step);
        let attributes =
            ObjectAttributes { content_type: content_type.clone(), ..ObjectAttributes::default() };
        let request = CopyRequest {
            source_bucket: BUCKET.to_owned(),
            source_key: key.to_owned(),
            bucket: BUCKET.to_owned(),
            key: key.to_owned(),
            attributes: Some(attributes),
            ..CopyRequest::default()
        };
        let before = self.cluster.chunk_count();
        let result = self.cluster.client.copy(request).await;
        let Some(object) = self.model.get_mut(key) else { return assert_status(result, "404") };
        assert_eq!(result.unwrap().etag, object.etag);
        assert_eq!(self.cluster.chunk_count(), before, "only metadata changes");
        object.content_type = content_type;
    }

    async fn tag(&mut self, key: &str) {
        let tags = BTreeMap::from([("step".to_owned(), self.step.to_string())]);
        let result = self.cluster.client.set_object_tags(BUCKET, key, tags.clone()).await;
        match self.model.get_mut(key) {
            Some(object) => {
                result.unwrap();
                object.tags = tags;
            }
            None => assert_status(result, "404"),
        }
    }

    /// Creates an upload whose only part is put, replaced, or copied from another object.
    async fn upload(&mut self, key: &str, len: usize, copied_from: &str, end: End) {
        let client = &self.cluster.client;
        let create =
            CreateUpload { bucket: BUCKET.to_owned(), key: key.to_owned(), ..CreateUpload::default() };
        let upload = client.create_upload(create).await.unwrap().id;
        let bytes = noise(len, self.step);
        let part = |bytes: &[u8], number| UploadPartRequest {
            bucket: BUCKET.to_owned(),
            key: key.to_owned(),
            upload: upload.clone(),
            number,
            content_len: None,
            digests: Default::default(),
            body: Frames::cut(bytes, 700),
        };
        let mut number = 1;
        let mut etag = client.upload_part(part(&bytes, 1)).await.unwrap().etag;
        let mut bytes = bytes;
        if let Some(source) = self.model.get(copied_from) {
            let copy = CopyPartRequest {
                bucket: BUCKET.to_owned(),
                key: key.to_owned(),
                upload: upload.clone(),
                number: 2,
                source_bucket: BUCKET.to_owned(),
                source_key: copied_from.to_owned(),
                ..CopyPartRequest::default()
            };
            etag = client.copy_part(copy).await.unwrap().etag;
            (number, bytes) = (2, source.bytes.clone());
        }
        let listed = client.list_parts(BUCKET, key, &upload, 0, 10).await.unwrap();
        assert_eq!(listed.items.last().unwrap().etag, etag);
        match end {
            End::Leave => {}
            End::Abort => client.abort_upload(BUCKET, key, &upload).await.unwrap(),
            End::Complete => {
                let complete = CompleteUpload {
                    bucket: BUCKET.to_owned(),
                    key: key.to_owned(),
                    upload: upload.clone(),
                    parts: vec![CompletedPart { number, etag, checksums: Vec::new() }],
                    ..CompleteUpload::default()
                };
                let info = client.complete_upload(complete.clone()).await.unwrap();
                assert!(info.etag.ends_with("-1"));
                assert_eq!(
                    client.complete_upload(complete).await.unwrap(),
                    info,
                    "a repeated completion succeeds"
                );
                let (tags, content_type) = (BTreeMap::new(), String::new());
                self.model.insert(key.to_owned(), Object { bytes, etag: info.etag, tags, content_type });
            }
        }
    }

    async fn list(&self, prefix: &str, delimiter: &str, max: usize) {
        let request = ListRequest {
            bucket: BUCKET.to_owned(),
            prefix: prefix.to_owned(),
            delimiter: delimiter.to_owned(),
            after: String::new(),
            max_keys: max,
        };
        let page = self.cluster.client.list(request).await.unwrap();
        let names: Vec<&str> = page.objects.iter().map(|object| object.key.as_str()).collect();
        let expected = crate::listing::naive(self.model.keys(), prefix, delimiter, "", max);
        assert_eq!(names, expected.keys);
        assert_eq!(page.common_prefixes, expected.common_prefixes);
        assert_eq!(page.next.is_some(), expected.more);
        for object in &page.objects {
            assert_eq!(object.size as usize, self.model[&object.key].bytes.len());
            assert_eq!(object.etag, self.model[&object.key].etag);
        }
    }

    async fn check_all(&self) {
        for (key, object) in &self.model {
            assert_eq!(&self.cluster.read(key).await.unwrap()[..], &object.bytes);
            let (info, _) = self.cluster.client.head(get(BUCKET, key)).await.unwrap();
            assert_eq!((&info.etag, &info.attributes.tags), (&object.etag, &object.tags));
            assert_eq!(info.attributes.content_type, object.content_type);
        }
        let requests: Vec<GetRequest> = self.model.keys().map(|key| get(BUCKET, key)).collect();
        for order in [ReadOrder::Completion, ReadOrder::Requests] {
            let many = self.cluster.read_many(requests.clone(), order).await;
            for (result, object) in many.into_iter().zip(self.model.values()) {
                assert_eq!(result.unwrap().1, object.bytes);
            }
        }
    }
}

fn assert_status<T: std::fmt::Debug>(result: Result<T, ClientError>, status: &str) {
    match (&result, status) {
        (Err(ClientError::PreconditionFailed(_)), "412") | (Err(ClientError::NoSuchKey(_)), "404") => {}
        _ => panic!("expected {status}, got {result:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_object_api_behaves_as_a_map_and_nothing_leaks(ops in prop::collection::vec(op(), 1..40), seed: u64) {
        in_virtual_time(seed, async |runtime| {
            let cluster = Cluster::open(runtime).await;
            let mut run = Run { cluster, model: BTreeMap::new(), step: 0 };
            for op in ops {
                run.apply(op).await;
            }
            run.check_all().await;
            invariants::check(&run.cluster).await;
            for abandoned in abandoned_parts(run.cluster.client.stripes(), None, usize::MAX).await.unwrap() {
                take_down(run.cluster.client.stripes(), &abandoned).await.unwrap();
            }
            run.check_all().await;
            invariants::check(&run.cluster).await;
        });
    }
}

#[tokio::test]
async fn streams_end_after_their_last_piece() {
    let cluster = Cluster::open(striate_runtime::Runtime::real()).await;
    cluster.put("key", &noise(2_500, 1)).await.unwrap();
    let mut body = cluster.client.get(get(BUCKET, "key")).await.unwrap().body;
    while let Some(piece) = body.next().await {
        assert!(!piece.unwrap().is_empty());
    }
}
