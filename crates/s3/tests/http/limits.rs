//! What an unknown peer may occupy, and for how long. Timeouts are short here, and only the gateway waits for a clock:
//! a test reads until the other side closes.

use std::time::Duration;

use crate::fixture::{Fixture, limits};
use crate::wire::{Connection, Request};
use striate_s3::Limits;

const SOON: Duration = Duration::from_millis(200);

#[tokio::test]
async fn a_slow_head_is_cut_off() {
    let fixture = Fixture::open_with(Limits { header_timeout: SOON, ..limits() }, &[]).await;
    let mut connection = fixture.connect().await;
    connection.write(b"GET / HTTP/1.1\r\nhost: x\r\nx-slow: ").await;
    let rest = connection.until_closed().await;
    assert!(!rest.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn a_slow_body_is_cut_off_and_nothing_is_stored() {
    let fixture = Fixture::open_with(Limits { rate_window: SOON, ..limits() }, &[]).await;
    let mut request = Request::new("PUT", "/bucket/k").body(b"123456789");
    fixture.signer().sign(&mut request);
    let mut connection = fixture.connect().await;
    connection.write(request.head().as_bytes()).await;
    connection.write(b"1234").await;
    assert_eq!(connection.answer(false).await.error(), (400, "RequestTimeout"));
    assert_eq!(fixture.get("k").await.status, 404);
}

#[tokio::test]
async fn a_body_that_breaks_off_stores_nothing() {
    let fixture = Fixture::open().await;
    let mut request = Request::new("PUT", "/bucket/k").body(b"123456789");
    fixture.signer().sign(&mut request);
    let mut connection = fixture.connect().await;
    connection.write(request.head().as_bytes()).await;
    connection.write(b"1234").await;
    drop(connection);
    assert_eq!(fixture.get("k").await.status, 404);
}

/// Begins a put of eight bytes of which the gateway has read four.
async fn begun_put(fixture: &Fixture) -> Connection {
    let mut request = Request::new("PUT", "/bucket/k").body(b"12345678").header("expect", "100-continue");
    fixture.signer().sign(&mut request);
    let mut connection = fixture.connect().await;
    connection.write(request.head().as_bytes()).await;
    assert!(connection.until(b"100 Continue\r\n\r\n").await, "the body is awaited");
    connection.write(b"1234").await;
    connection
}

#[tokio::test]
async fn connections_heads_and_headers_are_bounded() {
    let bounded = Limits { connections: 2, header_bytes: 8 << 10, header_count: 20, ..limits() };
    let fixture = Fixture::open_with(bounded, &[]).await;
    let huge = Request::new("GET", "/bucket/k").header("x-huge", &"v".repeat(9 << 10));
    assert_eq!(fixture.raw(huge).await.status, 431);
    let mut many = Request::new("GET", "/bucket/k");
    (0..19).for_each(|number| many.set(&format!("x-many-{number}"), "v"));
    assert_eq!(fixture.raw(many.clone()).await.error(), (400, "RequestHeaderSectionTooLarge"));
    (0..19).for_each(|number| many.set(&format!("x-more-{number}"), "v"));
    assert_eq!(fixture.raw(many).await.status, 431);

    let mut idle = fixture.connect().await;
    assert_eq!(idle.ask(&Request::new("GET", "/minio/health/live")).await.status, 200);
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(begun_put(&fixture).await);
    }
    assert!(idle.until_closed().await.is_empty(), "an idle connection makes room");
    let refused = fixture.connect().await.until_closed().await;
    assert!(refused.starts_with(b"HTTP/1.1 503"), "{refused:?}");
    held[0].write(b"5678").await;
    assert_eq!(held[0].answer(false).await.status, 200, "those at work are left alone");
}

#[tokio::test]
async fn large_documents_in_memory_are_bounded_together() {
    let fixture = Fixture::open_with(Limits { buffered_bytes: 1 << 20, ..limits() }, &[]).await;
    let document = |len: usize| Request::new("PUT", "/bucket?tagging").body(&vec![b' '; len]);
    assert_eq!(fixture.send(document(2 << 20)).await.error(), (503, "SlowDown"));
    assert_eq!(fixture.send(document(1 << 10)).await.error(), (400, "MalformedXML"));
}

#[tokio::test]
async fn a_shutdown_finishes_requests_in_flight_and_accepts_no_more() {
    let mut fixture = Fixture::open().await;
    let mut request = Request::new("PUT", "/bucket/k").body(b"123456789").header("expect", "100-continue");
    fixture.signer().sign(&mut request);
    let mut busy = fixture.connect().await;
    busy.write(request.head().as_bytes()).await;
    // The 100 shows that the request is being served when the shutdown begins.
    busy.write(b"1234").await;
    let mut idle = fixture.connect().await;
    assert_eq!(idle.ask(&Request::new("GET", "/minio/health/live")).await.status, 200);
    fixture.begin_shutdown();
    assert!(idle.until_closed().await.is_empty());
    busy.write(b"56789").await;
    assert_eq!(busy.answer(false).await.status, 200);
    fixture.served().await;
}

#[tokio::test]
async fn a_connection_is_kept_for_many_requests() {
    let fixture = Fixture::open().await;
    let mut connection = fixture.connect().await;
    for number in 0..5 {
        let mut put = Request::new("PUT", &format!("/bucket/{number}")).body(b"x");
        fixture.signer().sign(&mut put);
        assert_eq!(connection.ask(&put).await.status, 200);
    }
}

#[tokio::test]
async fn while_the_audit_log_has_no_room_signed_requests_wait_and_strangers_are_refused_as_ever() {
    let fixture = Fixture::open().await;
    let full = &fixture.audit.1;
    full.is_full.send_replace(true);
    let before = fixture.metadata_calls();
    let put = fixture.put("k", b"recorded");
    let meanwhile = async {
        full.waits.notified().await;
        let stranger = fixture.raw(Request::new("GET", "/bucket/k")).await;
        let calls = fixture.metadata_calls() - before;
        full.is_full.send_replace(false);
        (stranger.status, calls)
    };
    let (put, meanwhile) = futures::join!(put, meanwhile);
    assert_eq!(meanwhile, (403, 0), "nothing is done before it can be recorded");
    assert_eq!((put.status, &*fixture.get("k").await.body), (200, &b"recorded"[..]));
}
