//! Peers that are too slow, or too many. Windows are short here; a test waits for the gateway to report what it did.

use std::time::Duration;

use crate::fixture::{ACCESS, Fixture, SECRET, limits};
use crate::wire::{Connection, Request, Signer};
use striate_s3::Limits;

const WINDOW: Duration = Duration::from_millis(300);
/// More bytes than all buffers between the gateway and a peer that does not read.
const LARGE: usize = 24 << 20;

fn short() -> Limits {
    Limits { rate_window: WINDOW, pressed_window: WINDOW / 3, ..limits() }
}

async fn begun(fixture: &Fixture, mut request: Request, is_presigned: bool) -> Connection {
    match is_presigned {
        true => fixture.signer().presign(&mut request, 600),
        false => drop(fixture.signer().sign(&mut request)),
    }
    let mut connection = fixture.connect().await;
    connection.write(request.head().as_bytes()).await;
    connection
}

/// Creates an object that is larger than all buffers.
async fn large_object(fixture: &Fixture) {
    assert_eq!(fixture.put("large", &vec![7; LARGE]).await.status, 200);
}

#[tokio::test]
async fn a_receiver_that_takes_nothing_is_cut_off_and_others_are_served() {
    let fixture = Fixture::open_with(short(), &[]).await;
    large_object(&fixture).await;
    for is_presigned in [false, true] {
        let get = Request::new("GET", "/bucket/large");
        let mut stalled = begun(&fixture, get, is_presigned).await;
        let cuts = 1 + usize::from(is_presigned);
        assert_eq!(fixture.metrics.reasons(cuts).await, vec!["rate"; cuts]);
        assert!(stalled.until_closed().await.len() < LARGE, "the answer broke off");
        assert!(stalled.is_reset, "after an orderly end the kernel would keep for minutes what it holds");
        assert_eq!(fixture.get("large").await.body.len(), LARGE);
    }
}

#[tokio::test]
async fn a_sender_that_stalls_is_answered_and_its_connection_closed() {
    let fixture = Fixture::open_with(short(), &[]).await;
    for is_presigned in [false, true] {
        let put = Request::new("PUT", "/bucket/k").body(&[7; 1 << 20]);
        let mut stalled = begun(&fixture, put, is_presigned).await;
        stalled.write(&[7; 1000]).await;
        let answer = stalled.answer(false).await;
        assert_eq!(answer.error(), (400, "RequestTimeout"));
        assert_eq!(answer.header("connection"), Some("close"));
        assert_eq!(fixture.get("k").await.status, 404);
    }
}

/// Documents are held as they arrive: one that is only announced takes no memory from others.
#[tokio::test]
async fn documents_that_are_announced_take_no_memory() {
    let fixture = Fixture::open_with(Limits { buffered_bytes: 1 << 20, ..limits() }, &[]).await;
    let mut stalled = Vec::new();
    for _ in 0..20 {
        let document = Request::new("PUT", "/bucket?tagging").body(&vec![b' '; 900 << 10]);
        let mut connection = begun(&fixture, document, false).await;
        connection.write(&[b' '; 100]).await;
        stalled.push(connection);
    }
    let document = Request::new("PUT", "/bucket?tagging").body(&vec![b' '; 900 << 10]);
    assert_eq!(fixture.send(document.clone()).await.error(), (400, "MalformedXML"));
    // Those that have arrived do take memory.
    let mut begun = begun(&fixture, document.clone(), false).await;
    begun.write(&[b' '; 800 << 10]).await;
    loop {
        let answer = fixture.send(document.clone()).await;
        if answer.error() == (503, "SlowDown") {
            assert_eq!(answer.header("retry-after"), Some("1"));
            break;
        }
        // The gateway has not read the other one yet.
        assert_eq!(answer.error(), (400, "MalformedXML"));
    }
    assert!(fixture.metrics.reasons(1).await.contains(&"documents"));
}

#[tokio::test]
async fn connections_of_one_address_are_bounded() {
    let fixture = Fixture::open_with(Limits { connections_per_address: 2, ..limits() }, &[]).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let put = Request::new("PUT", "/bucket/k").body(b"12345678").header("expect", "100-continue");
        let mut connection = begun(&fixture, put, false).await;
        assert!(connection.until(b"100 Continue\r\n\r\n").await, "it is at work");
        held.push(connection);
    }
    let refused = fixture.connect().await.until_closed().await;
    let refused = String::from_utf8(refused).unwrap();
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("retry-after: 1"), "{refused}");
    assert!(fixture.metrics.reasons(1).await.contains(&"connections_of_address"));
}

/// When all connections are taken by forms that nobody has signed yet, the oldest makes room for the next connection.
#[tokio::test]
async fn unsigned_forms_make_room_for_others() {
    let fixture = Fixture::open_with(Limits { connections: 3, ..limits() }, &[]).await;
    let mut forms = Vec::new();
    while forms.len() < 3 {
        let form = Request::new("POST", "/bucket")
            .header("content-type", "multipart/form-data; boundary=xyz")
            .header("expect", "100-continue")
            .body(&[b'x'; 1 << 10]);
        let mut connection = fixture.connect().await;
        connection.write(form.head().as_bytes()).await;
        assert!(connection.until(b"100 Continue\r\n\r\n").await, "its fields are awaited");
        forms.push(connection);
    }
    assert_eq!(fixture.put("k", b"bytes").await.status, 200);
    assert!(fixture.metrics.reasons(1).await.contains(&"room"));
    assert_eq!(fixture.get("k").await.body, b"bytes");
}

#[tokio::test]
async fn requests_of_one_key_are_bounded_presigned_ones_included() {
    let fixture = Fixture::open_with(Limits { requests_per_key: 2, ..limits() }, &[]).await;
    let other = fixture.keys.create("test").await.unwrap();
    let mut held = Vec::new();
    for is_presigned in [false, true] {
        let put = Request::new("PUT", "/bucket/k").body(b"12345678").header("expect", "100-continue");
        let mut connection = begun(&fixture, put, is_presigned).await;
        assert!(connection.until(b"100 Continue\r\n\r\n").await, "the body is awaited");
        held.push(connection);
    }
    let answer = fixture.get("k").await;
    assert_eq!((answer.error(), answer.header("retry-after")), ((503, "SlowDown"), Some("1")));
    assert_eq!(fixture.metrics.reasons(1).await, ["requests_of_key"]);

    let get = |access: &str, secret: &str| {
        let mut request = Request::new("GET", "/bucket/k");
        Signer::new(access, secret, fixture.runtime.wall_time().as_secs()).sign(&mut request);
        fixture.raw(request)
    };
    assert_eq!(get(&other.access_key, &other.secret).await.status, 404, "another key");
    assert_eq!(get(ACCESS, "forged").await.status, 403, "only verified requests count");
    held[0].write(b"12345678").await;
    assert_eq!(held[0].answer(false).await.status, 200);
    assert_eq!(get(ACCESS, SECRET).await.status, 200, "one has ended");
}
