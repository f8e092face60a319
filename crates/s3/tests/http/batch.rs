//! Batch requests through the gateway: rights, limits, and the audit log.

use std::sync::Arc;

use futures::StreamExt;
use striate_client::{ClientError, GetRequest, ObjectInfo, PartStream, PutRequest, ReadOrder};
use striate_s3::{Limits, RemoteBuckets, RemoteRequest};

use crate::fixture::{ACCESS, Fixture, limits};
use crate::wire::{Request, Signer};

fn request(document: &str) -> Request {
    Request::new("POST", "/bucket?batch").header("content-type", "application/json").body(document.as_bytes())
}

/// Decodes the body of a chunked response; `None` if it broke off.
fn dechunked(answer: &[u8]) -> Option<Vec<u8>> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let (mut rest, mut body) = (&answer[end..], Vec::new());
    loop {
        let line = rest.windows(2).position(|window| window == b"\r\n")?;
        let len = usize::from_str_radix(std::str::from_utf8(&rest[..line]).ok()?, 16).ok()?;
        rest = rest.get(line + 2..)?;
        body.extend_from_slice(rest.get(..len)?);
        rest = rest.get(len + 2..)?;
        if len == 0 {
            return Some(body);
        }
    }
}

/// Returns the body of a successful response.
async fn body_of(fixture: &Fixture, mut request: Request) -> Vec<u8> {
    request.set("connection", "close");
    let mut connection = fixture.connect().await;
    connection.write(&[request.head().as_bytes(), &request.body].concat()).await;
    let answer = connection.until_closed().await;
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    dechunked(&answer).expect("the answer is whole")
}

/// Returns item, status and flags of each frame.
fn frames(mut bytes: &[u8]) -> Vec<(u8, u16, u8)> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let len = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        frames.push((bytes[7], u16::from_be_bytes([bytes[8], bytes[9]]), bytes[10]));
        bytes = &bytes[24 + len(12) + len(16)..];
    }
    frames
}

const THREE: &str = r#"{"items": [{"key": "a"}, {"key": "none"}, {"key": "b", "range": "bytes=1-2"}]}"#;

#[tokio::test]
async fn items_are_answered_in_frames_and_the_request_is_audited() {
    let fixture = Fixture::open().await;
    fixture.put("a", &[7; 200_000]).await;
    fixture.put("b", b"0123").await;
    let mut asked = request(THREE);
    fixture.signer().sign(&mut asked);
    let mut found = frames(&body_of(&fixture, asked).await);
    assert_eq!(found.pop(), Some((3, 200, 4)));
    found.sort_unstable();
    assert_eq!(found, [(0, 200, 3), (1, 404, 3), (2, 206, 3)]);
    let entries = fixture.audit.0.lock();
    let entry = entries.iter().find(|entry| entry.operation == "BatchRead").unwrap();
    assert_eq!((entry.status, entry.bucket.as_str(), entry.complete), (200, "bucket", true));
    assert!(entry.access_key.as_deref() == Some(ACCESS) && entry.bytes_out > 200_000);
}

#[tokio::test]
async fn presigned_urls_and_virtual_hosts_are_answered_too() {
    let fixture = Fixture::open_with(limits(), &["s3.test"]).await;
    fixture.put("a", b"x").await;
    let mut presigned = request(THREE);
    fixture.signer().presign(&mut presigned, 60);
    assert_eq!(frames(&body_of(&fixture, presigned).await).len(), 4);
    let mut by_host = request(THREE);
    by_host.path = "/".to_owned();
    by_host.set("host", "bucket.s3.test");
    fixture.signer().sign(&mut by_host);
    assert_eq!(frames(&body_of(&fixture, by_host).await).len(), 4);
}

#[tokio::test]
async fn what_is_not_signed_touches_no_storage() {
    let fixture = Fixture::open().await;
    fixture.put("a", b"x").await;
    let before = fixture.metadata_calls();
    let mut forged = request(THREE);
    Signer::new(ACCESS, "wrong", fixture.runtime.wall_time().as_secs()).sign(&mut forged);
    assert_eq!(fixture.raw(forged).await.error(), (403, "SignatureDoesNotMatch"));
    assert_eq!(fixture.raw(request(THREE)).await.error(), (403, "AccessDenied"));
    let mut altered = request(THREE);
    fixture.signer().sign(&mut altered);
    altered.body = br#"{"items": [{"key": "secret"}]}"#.to_vec();
    assert_eq!(fixture.raw(altered).await.error(), (400, "XAmzContentSHA256Mismatch"));
    let mut expired = request(THREE);
    fixture.signer().presign(&mut expired, -1);
    assert_eq!(fixture.raw(expired).await.status, 400);
    assert_eq!(fixture.metadata_calls(), before);
}

#[tokio::test]
async fn documents_are_bounded_in_size_one_by_one_and_together() {
    let small = Limits { xml_bytes: 300, buffered_bytes: 1_024, ..limits() };
    let fixture = Fixture::open_with(small, &[]).await;
    let long = format!("{{\"items\": [{{\"key\": \"{}\"}}]}}", "k".repeat(300));
    assert_eq!(fixture.send(request(&long)).await.error(), (400, "MaxMessageLengthExceeded"));
    // Its memory is held until the response has ended; meanwhile there is none for another one.
    let mut sending = request(THREE);
    fixture.signer().sign(&mut sending);
    let (head, body) = (sending.head(), sending.body.clone());
    let mut first = fixture.connect().await;
    first.write(head.as_bytes()).await;
    first.write(&body[..10]).await;
    while fixture.send(request(THREE)).await.status != 503 {
        tokio::task::yield_now().await;
    }
    first.write(&body[10..]).await;
}

#[tokio::test]
async fn only_post_on_a_bucket_is_a_batch_read() {
    let fixture = Fixture::open().await;
    fixture.put("a", b"x").await;
    for (method, target) in [("POST", "/bucket/a?batch"), ("POST", "/?batch"), ("PUT", "/bucket?batch")] {
        let mut other = request(THREE);
        (other.method, other.path) = (method.to_owned(), target.split('?').next().unwrap().to_owned());
        let answer = fixture.send(other).await;
        assert!(answer.header("content-type") != Some("application/vnd.striate.frames"), "{method} {target}");
    }
    let missing = Request::new("POST", "/no-bucket?batch").body(THREE.as_bytes());
    assert_eq!(fixture.send(missing).await.error(), (404, "NoSuchBucket"));
    let refused = fixture.send(request("{\"items\": []}")).await;
    assert_eq!(refused.error(), (400, "InvalidRequest"));
    assert!(refused.element("Message").contains("1 to 4096 items"));
}

/// Returns the body of a batch put of these keys and bytes.
fn put_body(items: &[(&str, &[u8])]) -> Vec<u8> {
    let frame = |item: usize, flags: u8, head: &[u8], body: &[u8]| {
        let mut bytes = b"STR1".to_vec();
        bytes.extend((item as u32).to_be_bytes());
        bytes.extend([0, 0, flags, 0]);
        bytes.extend((head.len() as u32).to_be_bytes());
        bytes.extend((body.len() as u32).to_be_bytes());
        let whole = [&bytes, head, body].concat();
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, &whole) as u32;
        bytes.extend(crc.to_be_bytes());
        [&bytes, head, body].concat()
    };
    let named: Vec<String> = items
        .iter()
        .map(|(key, body)| format!("{{\"key\": \"{key}\", \"content_length\": {}}}", body.len()))
        .collect();
    let mut all = frame(items.len(), 8, format!("{{\"items\": [{}]}}", named.join(",")).as_bytes(), b"");
    for (item, (_, body)) in items.iter().enumerate() {
        all.extend(frame(item, 3, b"", body));
    }
    all.extend(frame(items.len(), 4, b"", b""));
    all
}

fn put_request(body: &[u8]) -> Request {
    Request::new("POST", "/bucket?batch=put").payload("UNSIGNED-PAYLOAD").body(body)
}

fn json(answer: &crate::wire::Answer) -> serde_json::Value {
    serde_json::from_slice(&answer.body).unwrap()
}

#[tokio::test]
async fn a_batch_put_creates_and_never_overwrites() {
    let fixture = Fixture::open().await;
    fixture.put("old", b"as it was").await;
    let large = vec![7; 9 << 20];
    let body = put_body(&[
        ("a", b"small"),
        ("old", b"another"),
        ("large", &large),
        ("", b"x"),
        ("a", b"again"),
        ("e", b""),
    ]);
    let answer = fixture.send(put_request(&body)).await;
    assert_eq!(answer.status, 200);
    let outcomes = json(&answer);
    let statuses: Vec<u64> =
        outcomes["items"].as_array().unwrap().iter().map(|item| item["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [200, 412, 200, 400, 412, 200]);
    assert_eq!(
        (&outcomes["created"], &outcomes["existing"], &outcomes["failed"]),
        (&3.into(), &2.into(), &1.into())
    );
    for (key, expected) in [("a", &b"small"[..]), ("old", b"as it was"), ("large", &large), ("e", b"")] {
        let got = fixture.get(key).await;
        assert!((got.status, &got.body[..]) == (200, expected), "{key}");
    }
    let etag = fixture.get("a").await.header("etag").unwrap().to_owned();
    assert_eq!(outcomes["items"][0]["etag"].as_str().unwrap(), etag);
    let entries = fixture.audit.0.lock();
    let entry = entries.iter().find(|entry| entry.operation == "BatchPut").unwrap();
    assert!(entry.status == 200 && entry.bytes_in > 9 << 20);
}

#[tokio::test]
async fn a_batch_put_that_breaks_is_refused_and_stores_nothing_of_what_follows() {
    let fixture = Fixture::open().await;
    let mut body = put_body(&[("a", b"first"), ("b", b"second")]);
    let at = body.windows(6).position(|window| window == b"second").unwrap();
    body[at] ^= 1;
    assert_eq!(fixture.send(put_request(&body)).await.error(), (400, "BadDigest"));
    assert_eq!(fixture.get("b").await.status, 404);
    let whole = put_body(&[("c", b"third")]);
    let hashed = Request::new("POST", "/bucket?batch=put").body(&whole);
    assert_eq!(fixture.send(hashed).await.error(), (400, "InvalidRequest"));
    let unsigned = put_request(&whole);
    assert_eq!(fixture.raw(unsigned).await.error(), (403, "AccessDenied"));
    let nowhere = Request { path: "/no-bucket".to_owned(), ..put_request(&whole) };
    assert_eq!(fixture.send(nowhere).await.error(), (404, "NoSuchBucket"));
    let unknown = Request { query: "batch=delete".to_owned(), ..put_request(&whole) };
    assert_eq!(fixture.send(unknown).await.error(), (400, "InvalidArgument"));
    assert_eq!(fixture.get("c").await.status, 404);
}

#[tokio::test]
async fn existence_is_answered_for_all_keys_or_for_the_first_without_a_gap() {
    let fixture = Fixture::open().await;
    fixture.put("a", b"one").await;
    fixture.put("b", &[1; 100_000]).await;
    fixture.put("d", b"").await;
    let ask = async |document: &str, path: &str| {
        fixture.send(Request::new("POST", path).body(document.as_bytes())).await
    };
    let all = ask(r#"{"keys": ["a", "b", "c", "d", ""]}"#, "/bucket?batch=exists").await;
    assert_eq!(json(&all), serde_json::json!({"prefix": 2, "sizes": [3, 100_000, null, 0, null]}));
    let first = ask(r#"{"keys": ["a", "b", "c", "d"], "until_gap": true}"#, "/bucket?batch=exists").await;
    assert_eq!(json(&first), serde_json::json!({"prefix": 2, "sizes": [3, 100_000]}));
    let none = ask(r#"{"keys": ["x"]}"#, "/bucket?batch=exists").await;
    assert_eq!(json(&none), serde_json::json!({"prefix": 0, "sizes": [null]}));
    assert_eq!(ask(r#"{"keys": ["a"]}"#, "/no-bucket?batch=exists").await.error(), (404, "NoSuchBucket"));
    assert_eq!(ask(r#"{"items": []}"#, "/bucket?batch=exists").await.error(), (400, "InvalidRequest"));
}

/// A `RemoteBuckets` that has the bucket: it denies reads, and answers sizes with the lengths of the keys.
struct Far;

#[async_trait::async_trait]
impl RemoteBuckets for Far {
    fn has(&self, bucket: &str) -> bool {
        bucket == "bucket"
    }

    async fn answer(&self, _: RemoteRequest) -> Result<http::Response<s3s::Body>, ClientError> {
        panic!("a batch is no request to be passed on")
    }

    fn read_many(&self, _: &str, requests: Vec<GetRequest>, _: ReadOrder) -> PartStream {
        let error = |reason| ClientError::OriginDenied { endpoint: "far".to_owned(), reason };
        let denied = requests.into_iter().map(move |request| Err(error(request.key))).enumerate();
        futures::stream::iter(denied.collect::<Vec<_>>()).boxed()
    }

    async fn sizes_of(
        &self,
        _: &str,
        keys: Vec<String>,
        until_gap: bool,
    ) -> Result<Vec<Option<u64>>, ClientError> {
        assert!(until_gap);
        Ok(keys.iter().map(|key| Some(key.len() as u64)).collect())
    }

    async fn create_many(&self, _: &str, requests: Vec<PutRequest>) -> Vec<Result<ObjectInfo, ClientError>> {
        let mut outcomes = Vec::new();
        for mut request in requests {
            while request.body.next().await.is_some() {}
            outcomes.push(Err(ClientError::PreconditionFailed("If-None-Match")));
        }
        outcomes
    }
}

#[tokio::test]
async fn batches_on_a_bucket_elsewhere_are_answered_from_there_item_by_item() {
    let fixture = Fixture::open_before(Arc::new(Far)).await;
    let mut asked = request(THREE);
    fixture.signer().sign(&mut asked);
    let found = frames(&body_of(&fixture, asked).await);
    assert_eq!(found, [(0, 403, 3), (1, 403, 3), (2, 403, 3), (3, 200, 4)]);
    let ask =
        Request::new("POST", "/bucket?batch=exists").body(br#"{"keys": ["a", "bb"], "until_gap": true}"#);
    assert_eq!(fixture.send(ask).await.body, br#"{"prefix":2,"sizes":[1,2]}"#);
    let answer = fixture.send(put_request(&put_body(&[("a", b"0123")]))).await;
    let outcomes = json(&answer);
    assert_eq!((&outcomes["existing"], &outcomes["items"][0]["status"]), (&1.into(), &412.into()));
}
