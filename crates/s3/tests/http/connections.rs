//! Connections after a response that came before the request's body. Either they can be used again, or the response
//! says that they close, and can be read by a client that is still sending.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{Fixture, SECRET};
use crate::wire::{Answer, Connection, Request, Signer};

const SMALL: usize = 100;
const LARGE: usize = 8 << 20;

fn refused_put(fixture: &Fixture, len: usize) -> Request {
    let mut request = Request::new("PUT", "/bucket/refused").body(&vec![7; len]).payload("UNSIGNED-PAYLOAD");
    let now = fixture.runtime.wall_time().as_secs();
    Signer::new("NOBODY", SECRET, now).sign(&mut request);
    request
}

fn good_get(fixture: &Fixture) -> Request {
    let mut request = Request::new("GET", "/bucket/k");
    fixture.signer().sign(&mut request);
    request
}

fn closes(answer: &Answer) -> bool {
    answer.header("connection").is_some_and(|value| value == "close")
}

/// Sends another request on the same connection, or sees it closed as announced.
async fn goes_on_as_announced(fixture: &Fixture, connection: &mut Connection, answer: &Answer) {
    if closes(answer) {
        assert!(connection.until_closed().await.is_empty(), "nothing follows the last answer");
    } else {
        let answer = connection.ask(&good_get(fixture)).await;
        assert_eq!((answer.status, answer.text()), (200, "bytes"));
    }
}

#[tokio::test]
async fn a_refused_put_leaves_a_connection_that_is_usable_or_says_that_it_closes() {
    let fixture = Fixture::open().await;
    fixture.put("k", b"bytes").await;
    for len in [0, SMALL, 200 << 10, 1 << 20, (1 << 20) + 1, LARGE] {
        let mut connection = fixture.connect().await;
        for round in 0..3 {
            let answer = connection.ask(&refused_put(&fixture, len)).await;
            assert_eq!(answer.error(), (403, "InvalidAccessKeyId"), "{len} bytes, round {round}");
            assert_eq!(closes(&answer), len > 1 << 20, "{len} bytes");
            goes_on_as_announced(&fixture, &mut connection, &answer).await;
            if closes(&answer) {
                connection = fixture.connect().await;
            }
        }
    }
}

/// The body is longer than the socket's buffers, and all of it is sent before anything is read. If the connection were
/// closed over it, it would be reset, and the response lost.
#[tokio::test]
async fn an_answer_reaches_a_client_that_sends_all_of_its_body_first() {
    let fixture = Fixture::open().await;
    for _ in 0..10 {
        let request = refused_put(&fixture, 4 * LARGE);
        let mut stream = TcpStream::connect(fixture.address).await.unwrap();
        stream.write_all(request.head().as_bytes()).await.unwrap();
        stream.write_all(&request.body).await.expect("the server reads while the client sends");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("the answer is not reset");
        let answer = String::from_utf8(answer).unwrap().to_ascii_lowercase();
        assert!(answer.starts_with("http/1.1 403") && answer.contains("connection: close"), "{answer}");
        assert!(answer.ends_with("</error>"), "{answer}");
    }
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_is_told_that_the_connection_closes() {
    let fixture = Fixture::open().await;
    fixture.put("k", b"bytes").await;
    for len in [SMALL, LARGE] {
        let request = refused_put(&fixture, len).header("expect", "100-continue");
        let mut connection = fixture.connect().await;
        connection.write(request.head().as_bytes()).await;
        let answer = connection.answer(false).await;
        assert_eq!(answer.error(), (403, "InvalidAccessKeyId"));
        assert!(closes(&answer), "nobody knows whether the body follows");
        // Some clients send it nevertheless after waiting for a second.
        connection.write(&request.body).await;
        goes_on_as_announced(&fixture, &mut connection, &answer).await;
    }
}

/// A chunked body has no length; what arrives of it is read.
#[tokio::test]
async fn a_refused_body_without_a_length_is_read_within_bounds() {
    let fixture = Fixture::open().await;
    fixture.put("k", b"bytes").await;
    for chunks in [1, 1_000] {
        let mut request = refused_put(&fixture, 0).header("transfer-encoding", "chunked");
        request.body = [b"2000\r\n".to_vec(), vec![7; 0x2000], b"\r\n".to_vec()].concat().repeat(chunks);
        request.body.extend_from_slice(b"0\r\n\r\n");
        let mut connection = fixture.connect().await;
        let answer = connection.ask(&request).await;
        assert_eq!(answer.error(), (403, "InvalidAccessKeyId"));
        assert_eq!(closes(&answer), chunks == 1_000);
        goes_on_as_announced(&fixture, &mut connection, &answer).await;
    }
}

/// Puts that are refused in the middle of their body, by a condition or a missing bucket.
#[tokio::test]
async fn puts_that_fail_after_their_signature_leave_usable_connections_too() {
    let fixture = Fixture::open().await;
    fixture.put("k", b"bytes").await;
    let mut connection = fixture.connect().await;
    for (target, header, code) in [
        ("/missing/k", ("x-amz-meta-a", "1"), (404, "NoSuchBucket")),
        ("/bucket/k", ("if-none-match", "*"), (412, "PreconditionFailed")),
        ("/bucket/k", ("x-amz-acl", "public-read"), (400, "AccessControlListNotSupported")),
        ("/bucket/k", ("content-md5", "AAAAAAAAAAAAAAAAAAAAAA=="), (400, "BadDigest")),
    ] {
        for len in [SMALL, LARGE] {
            let mut request = Request::new("PUT", target).body(&vec![7; len]).header(header.0, header.1);
            fixture.signer().sign(&mut request);
            let answer = connection.ask(&request).await;
            assert_eq!(answer.error(), code);
            assert!(len == LARGE || !closes(&answer), "{code:?}");
            goes_on_as_announced(&fixture, &mut connection, &answer).await;
            if closes(&answer) {
                connection = fixture.connect().await;
            }
        }
    }
}
