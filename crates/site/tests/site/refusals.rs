//! What a site refuses: requests before a hello, beyond the rights of a role, malformed, too long or damaged.

use std::sync::Arc;
use std::time::Duration;

use striate_core::ClusterId;
use striate_runtime::Runtime;
use striate_site::protocol::frame::{READ_HEAD_LEN, WriteHead};
use striate_site::protocol::hello::encode_hello;
use striate_site::protocol::limits::{MAX_CANCELLED, MAX_REQUEST_LEN, ServiceLimits};
use striate_site::transport_conformance::chunk;
use striate_site::{Priority, Site, SiteError};
use striate_trust::Role;
use tokio::net::TcpListener;

use super::fixture::{Open, remote, serve_on, served_memory_site, write_request};
use super::raw_requests::{CANCEL, CHUNK, READ, Raw, read_body};

#[tokio::test]
async fn nothing_is_answered_before_a_hello_nor_beyond_a_roles_rights() {
    let runtime = Runtime::real();
    let (site, served) = served_memory_site(&runtime, ServiceLimits::default()).await;
    let paths =
        [("POST", READ), ("POST", CANCEL), ("PUT", CHUNK), ("POST", "/striate/v1/combine"), ("GET", "/")];
    for (method, path) in paths {
        assert_eq!(Raw::open(&served.address).await.send(method, path, &read_body()).await.0, 428);
    }
    let head = WriteHead {
        chunk: chunk(5),
        priority: Priority::Foreground,
        len: 10,
        granule_crcs: vec![striate_codec::crc32c(&[7; 10])],
    };
    let write = [&head.encode()[..], &[7; 10]].concat();
    let mut raw = Raw::greeted(&served.address).await;
    assert_eq!(raw.send("POST", READ, &read_body()).await.0, 200);
    let hello = encode_hello(ClusterId(5));
    assert_eq!(Raw::open(&served.address).await.send("POST", "/striate/v1/hello", &hello).await.0, 403);

    // Another site may ask only for its part of a combination.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (gate, limits) = (Open(Role::Site), ServiceLimits::default());
    let served = serve_on(&runtime, listener, gate, site.clone(), limits);
    for (method, path, body) in
        [("POST", READ, read_body().to_vec()), ("PUT", CHUNK, write), ("POST", CANCEL, vec![7; 8])]
    {
        assert_eq!(Raw::greeted(&served.address).await.send(method, path, &body).await.0, 403, "{path}");
    }
    let control = "/striate.site.v1.SiteControl/Delete";
    assert_eq!(Raw::greeted(&served.address).await.send("POST", control, b"").await.0, 403);
    assert_eq!(Raw::greeted(&served.address).await.send("POST", "/striate/v1/combine", b"\xff").await.0, 400);
    assert_eq!(site.status().await.unwrap().store.chunks, 1, "nothing was written");
}

#[tokio::test]
async fn malformed_and_oversized_requests_are_refused_and_touch_nothing() {
    let runtime = Runtime::real();
    let limits = ServiceLimits { handshake: Duration::from_millis(200), ..ServiceLimits::default() };
    let (site, served) = served_memory_site(&runtime, limits).await;
    let address = &served.address;
    let garbage: [&[u8]; 3] =
        [b"\0\0\0\0\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\nxxxxxxxx"];
    for bytes in garbage {
        let status = Raw::open(address).await.send_bytes(bytes).await.0;
        assert!(status == 0 || status == 400, "{status}");
    }
    // A peer that sends nothing, or only a part, is disconnected after the handshake timeout.
    assert_eq!(Raw::open(address).await.send_bytes(b"POST /striate").await.0, 0);
    let many: String = (0..200).map(|i| format!("x-{i}: y\r\n")).collect();
    let status =
        Raw::open(address).await.send_bytes(format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes()).await.0;
    assert!(status == 431 || status == 400, "{status}");
    let long = vec![0; 1 << 16];
    assert_eq!(Raw::open(address).await.send("POST", "/striate/v1/hello", &long).await.0, 413);

    let send = async |method: &str, path: &str, body: &[u8]| {
        Raw::greeted(address).await.send(method, path, body).await
    };
    let body = read_body();
    let mut none = body[..READ_HEAD_LEN].to_vec();
    none[4] = 0;
    let mut many = body.to_vec();
    many[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    for bad in [&body[..10], &body[..body.len() - 1], &none, &many] {
        assert_eq!(send("POST", READ, bad).await.0, 400);
    }
    assert_eq!(send("POST", READ, &vec![0; MAX_REQUEST_LEN + 1]).await.0, 413);
    for bad in [&[][..], &[0; 7], &[0; 9], &[0; 8 * (MAX_CANCELLED + 1)]] {
        assert_eq!(send("POST", CANCEL, bad).await.0, 400);
    }
    assert_eq!(send("POST", CANCEL, &[7; 8]).await.0, 200, "a read that is not known may have ended");
    assert_eq!(send("POST", "/striate/v1/combine", b"\xff\xff").await.0, 400);
    assert_eq!(send("GET", "/striate/v1/other", b"").await.0, 400);
    let mut head =
        WriteHead { chunk: chunk(5), priority: Priority::Foreground, len: 10, granule_crcs: vec![0] };
    assert_eq!(send("PUT", CHUNK, &head.encode()[..20]).await.0, 400);
    assert_eq!(send("PUT", CHUNK, &head.encode()).await.0, 400, "the chunk's bytes are missing");
    head.len = u32::MAX;
    assert_eq!(send("PUT", CHUNK, &head.encode()).await.0, 400, "too long a chunk");
    assert_eq!(site.status().await.unwrap().store.chunks, 1);
}

#[tokio::test]
async fn a_chunk_that_was_damaged_on_its_way_is_not_stored() {
    let runtime = Runtime::real();
    let (site, served) = served_memory_site(&runtime, ServiceLimits::default()).await;
    let remote = remote(&runtime, 1, &served.address);
    let mut request = write_request(2, 70_000);
    request.granule_crcs = Some(Arc::new([1, 2]));
    let error = remote.write(request).await.unwrap_err();
    assert!(matches!(&error, SiteError::BadRequest(reason) if reason.contains("damaged")), "{error}");
    assert_eq!(site.status().await.unwrap().store.chunks, 1);
}
