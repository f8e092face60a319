//! Bodies: payload hashes, aws-chunked frames, trailers, checksums. A refused body must leave nothing behind.

use sha2::{Digest, Sha256};

use crate::fixture::Fixture;
use crate::wire::{Request, Signer};

const UNSIGNED_TRAILER: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
const SIGNED: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const SIGNED_TRAILER: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";
/// CRC32 of "123456789".
const CRC32: &str = "y/Q5Jg==";

async fn stores_nothing(fixture: &Fixture, request: Request, expected: (u16, &str)) {
    let answer = fixture.raw(request).await;
    assert_eq!(answer.error(), expected, "{}", answer.text());
    assert_eq!(fixture.get("k").await.error(), (404, "NoSuchKey"));
}

fn streamed(payload: &str, decoded: usize) -> Request {
    Request::new("PUT", "/bucket/k")
        .payload(payload)
        .header("content-encoding", "aws-chunked")
        .header("x-amz-decoded-content-length", &decoded.to_string())
}

fn with_trailer(decoded: usize, body: &str) -> Request {
    streamed(UNSIGNED_TRAILER, decoded)
        .header("x-amz-trailer", "x-amz-checksum-crc32")
        .header("x-amz-sdk-checksum-algorithm", "CRC32")
        .body(body.as_bytes())
}

fn signed(fixture: &Fixture, mut request: Request) -> Request {
    fixture.signer().sign(&mut request);
    request
}

/// Frames and signs chunks, with a signed trailer if `trailer` is given.
fn signed_chunks(
    fixture: &Fixture,
    mut request: Request,
    chunks: &[&[u8]],
    trailer: Option<&str>,
) -> Request {
    let signer = fixture.signer();
    // Only that the header is among the signed ones matters here, not yet its value.
    request.set("content-length", "1");
    let frame = |request: &Request, seed: String| frames(&signer, request, seed, chunks, trailer);
    // The frames' length does not depend on the seed, and is signed with the other headers.
    let len = frame(&request, "0".repeat(64)).len();
    request.set("content-length", &len.to_string());
    let seed = signer.sign(&mut request);
    request.body = frame(&request, seed);
    request
}

fn frames(signer: &Signer, _: &Request, seed: String, chunks: &[&[u8]], trailer: Option<&str>) -> Vec<u8> {
    let hash = |bytes: &[u8]| hex::encode(Sha256::digest(bytes));
    let (date, scope) = (&signer.date, signer.scope());
    let mut previous = seed;
    let mut body = Vec::new();
    for chunk in chunks.iter().copied().chain([&b""[..]]) {
        let (empty, data) = (hash(b""), hash(chunk));
        let text = format!("AWS4-HMAC-SHA256-PAYLOAD\n{date}\n{scope}\n{previous}\n{empty}\n{data}");
        previous = signer.signature(&text);
        body.extend_from_slice(format!("{:x};chunk-signature={previous}\r\n", chunk.len()).as_bytes());
        body.extend_from_slice(chunk);
        if !chunk.is_empty() {
            body.extend_from_slice(b"\r\n");
        }
    }
    if let Some(trailer) = trailer {
        let lines = hash(format!("{trailer}\n").as_bytes());
        let text = format!("AWS4-HMAC-SHA256-TRAILER\n{date}\n{scope}\n{previous}\n{lines}");
        let signature = signer.signature(&text);
        body.extend_from_slice(format!("{trailer}\r\nx-amz-trailer-signature:{signature}\r\n").as_bytes());
    }
    body.extend_from_slice(b"\r\n");
    body
}

#[tokio::test]
async fn the_signed_hash_of_a_body_is_verified() {
    let fixture = Fixture::open().await;
    let mut request = signed(&fixture, Request::new("PUT", "/bucket/k").body(b"123456789"));
    request.body = b"12345678X".to_vec();
    stores_nothing(&fixture, request, (400, "XAmzContentSHA256Mismatch")).await;
    let mut delete =
        Request::new("POST", "/bucket?delete").body(b"<Delete><Object><Key>k</Key></Object></Delete>");
    fixture.signer().sign(&mut delete);
    delete.body[18] = b'K';
    assert_eq!(fixture.raw(delete).await.error(), (400, "XAmzContentSHA256Mismatch"));
}

#[tokio::test]
async fn the_sdks_default_upload_is_stored_with_its_checksum_and_without_its_framing() {
    let fixture = Fixture::open().await;
    let body = format!("9\r\n123456789\r\n0\r\nx-amz-checksum-crc32:{CRC32}\r\n\r\n");
    let answer = fixture.raw(signed(&fixture, with_trailer(9, &body))).await;
    assert_eq!(
        (answer.status, answer.header("x-amz-checksum-crc32")),
        (200, Some(CRC32)),
        "{}",
        answer.text()
    );
    let answer =
        fixture.send(Request::new("GET", "/bucket/k").header("x-amz-checksum-mode", "ENABLED")).await;
    assert_eq!((answer.text(), answer.header("x-amz-checksum-crc32")), ("123456789", Some(CRC32)));
    assert_eq!(answer.header("content-encoding"), None);
    assert_eq!(answer.header("x-amz-checksum-type"), Some("FULL_OBJECT"));
}

#[tokio::test]
async fn trailers_that_are_wrong_missing_or_unannounced_store_nothing() {
    let fixture = Fixture::open().await;
    let good = format!("x-amz-checksum-crc32:{CRC32}\r\n");
    for (decoded, body, expected) in [
        (9, "9\r\n123456789\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n".to_owned(), (400, "BadDigest")),
        (9, "9\r\n123456789\r\n0\r\n\r\n".to_owned(), (400, "MalformedTrailerError")),
        (9, format!("9\r\n123456789\r\n0\r\n{good}x-amz-meta-a:b\r\n\r\n"), (400, "MalformedTrailerError")),
        (8, format!("9\r\n123456789\r\n0\r\n{good}\r\n"), (400, "IncompleteBody")),
        (10, format!("9\r\n123456789\r\n0\r\n{good}\r\n"), (400, "IncompleteBody")),
        (9, "9\r\n123456789\r\n".to_owned(), (400, "IncompleteBody")),
        (9, format!("g\r\n123456789\r\n0\r\n{good}\r\n"), (400, "IncompleteBody")),
        (9, format!("8\r\n123456789\r\n0\r\n{good}\r\n"), (400, "IncompleteBody")),
        (9, format!("9\n123456789\r\n0\r\n{good}\r\n"), (400, "IncompleteBody")),
        (9, "9\r\n123456789\r\n0\r\n".to_owned(), (400, "IncompleteBody")),
        (9, format!("9\r\n123456789\r\n0\r\n{good}"), (400, "IncompleteBody")),
        (9, "9\r\n123456789\r\n0\r\nno trailer\r\n\r\n".to_owned(), (400, "MalformedTrailerError")),
    ] {
        stores_nothing(&fixture, signed(&fixture, with_trailer(decoded, &body)), expected).await;
    }
    let unknown = with_trailer(9, "").header("x-amz-trailer", "x-amz-checksum-xxh3");
    stores_nothing(&fixture, signed(&fixture, unknown), (400, "InvalidRequest")).await;
}

#[tokio::test]
async fn signed_chunks_are_stored_and_a_forged_one_is_not() {
    let fixture = Fixture::open().await;
    let chunks: [&[u8]; 2] = [b"12345", b"6789"];
    let good = signed_chunks(&fixture, streamed(SIGNED, 9), &chunks, None);
    for at in [5, 100, 190] {
        // Flips a bit in the first chunk's signature, in its data or in the second chunk's head.
        let mut forged = good.clone();
        let position = if at == 100 { 85 } else { at };
        forged.body[position + 20] ^= 1;
        let answer = fixture.raw(forged).await;
        assert!(matches!(answer.status, 400 | 403), "{at}: {}", answer.text());
        assert_eq!(fixture.get("k").await.status, 404);
    }
    let mut truncated = good.clone();
    truncated.body.truncate(good.body.len() - 92);
    truncated.set("content-length", &truncated.body.len().to_string());
    stores_nothing(&fixture, truncated, (403, "SignatureDoesNotMatch")).await;
    assert_eq!(fixture.raw(good).await.status, 200);
    assert_eq!(fixture.get("k").await.text(), "123456789");
}

#[tokio::test]
async fn a_signed_trailer_is_verified() {
    let fixture = Fixture::open().await;
    let request = || streamed(SIGNED_TRAILER, 9).header("x-amz-trailer", "x-amz-checksum-crc32");
    let trailer = format!("x-amz-checksum-crc32:{CRC32}");
    let good = signed_chunks(&fixture, request(), &[b"123456789"], Some(&trailer));
    let mut forged = good.clone();
    let at = forged.body.len() - 10;
    forged.body[at] = if forged.body[at] == b'0' { b'1' } else { b'0' };
    stores_nothing(&fixture, forged, (403, "SignatureDoesNotMatch")).await;
    let answer = fixture.raw(good).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test]
async fn digests_in_headers_are_verified() {
    let fixture = Fixture::open().await;
    let put =
        |name: &str, value: &str| Request::new("PUT", "/bucket/k").body(b"123456789").header(name, value);
    for (name, value, expected) in [
        ("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==", (400, "BadDigest")),
        ("content-md5", "short", (400, "InvalidDigest")),
        ("x-amz-checksum-crc32", "AAAAAA==", (400, "BadDigest")),
        ("x-amz-checksum-crc32", "AAAA", (400, "InvalidRequest")),
        ("x-amz-checksum-md4", "AAAA", (400, "InvalidRequest")),
        ("x-amz-sdk-checksum-algorithm", "SHA256", (400, "InvalidRequest")),
    ] {
        stores_nothing(&fixture, signed(&fixture, put(name, value)), expected).await;
    }
    assert_eq!(fixture.send(put("content-md5", "JfnnlDI7RTiF9RgfG2JNCw==")).await.status, 200);
    assert_eq!(fixture.send(put("x-amz-checksum-crc32", CRC32)).await.status, 200);
}

#[tokio::test]
async fn expect_continue_is_answered_and_bodies_may_come_without_their_length() {
    let fixture = Fixture::open().await;
    let mut request = Request::new("PUT", "/bucket/k").body(b"bytes").header("expect", "100-continue");
    fixture.signer().sign(&mut request);
    let mut connection = fixture.connect().await;
    connection.write(request.head().as_bytes()).await;
    connection.write(&request.body).await;
    assert_eq!(connection.answer(false).await.status, 200);
    let mut unsized_put = Request::new("PUT", "/bucket/l").payload("UNSIGNED-PAYLOAD");
    unsized_put.set("transfer-encoding", "chunked");
    unsized_put.body = b"5\r\nbytes\r\n0\r\n\r\n".to_vec();
    assert_eq!(fixture.send(unsized_put).await.status, 200);
    assert_eq!(fixture.get("l").await.text(), "bytes");
    let mut framed = Request::new("PUT", "/bucket/m").payload("STREAMING-UNSIGNED-PAYLOAD-TRAILER");
    framed.set("transfer-encoding", "chunked");
    framed.body = b"5\r\nbytes\r\n0\r\n\r\n".to_vec();
    assert_eq!(fixture.send(framed).await.error(), (411, "MissingContentLength"));
}

#[tokio::test]
async fn xml_that_is_huge_deep_or_unknown_is_refused() {
    let fixture = Fixture::open().await;
    let tagging = |body: &[u8]| Request::new("PUT", "/bucket?tagging").body(body);
    let deep = [b"<Tagging>".repeat(10_000), b"</Tagging>".repeat(10_000)].concat();
    assert_eq!(fixture.send(tagging(&deep)).await.error(), (400, "MalformedXML"));
    assert_eq!(fixture.send(tagging(b"<Unknown/>")).await.error(), (400, "MalformedXML"));
    assert_eq!(fixture.send(tagging(b"<Tagging><TagSet>")).await.error(), (400, "MalformedXML"));
    let huge = vec![b' '; (4 << 20) + 1];
    assert_eq!(fixture.send(tagging(&huge)).await.error(), (400, "MaxMessageLengthExceeded"));
}
