//! Batch reads through the gateway: who may, how much, and what is told of them.

use striate_s3::Limits;

use crate::fixture::{ACCESS, Fixture, limits};
use crate::wire::{Request, Signer};

fn request(document: &str) -> Request {
    Request::new("POST", "/bucket?batch").header("content-type", "application/json").body(document.as_bytes())
}

/// The body of a chunked answer; `None` when it broke off.
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

/// The body of an answer that succeeds.
async fn body_of(fixture: &Fixture, mut request: Request) -> Vec<u8> {
    request.set("connection", "close");
    let mut connection = fixture.connect().await;
    connection.write(&[request.head().as_bytes(), &request.body].concat()).await;
    let answer = connection.until_closed().await;
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    dechunked(&answer).expect("the answer is whole")
}

/// Item, status and flags of each frame.
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
    // Its room is held until the answer has ended; meanwhile there is none for another one.
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
