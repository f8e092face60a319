//! Requests of handmade bytes, which no client of ours would send.

use bytes::Bytes;
use striate_core::ChunkRange;
use striate_site::Priority;
use striate_site::protocol::frame::ReadBody;
use striate_site::protocol::hello::encode_hello;
use striate_site::transport_conformance::chunk;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::fixture::CLUSTER;

/// A connection for handmade bytes.
pub(super) struct Raw(TcpStream);

impl Raw {
    pub(super) async fn open(address: &str) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    pub(super) async fn greeted(address: &str) -> Self {
        let mut raw = Self::open(address).await;
        assert_eq!(raw.send("POST", "/striate/v1/hello", &encode_hello(CLUSTER)).await.0, 200);
        raw
    }

    pub(super) async fn send(&mut self, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let len = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: site\r\ncontent-length: {len}\r\n\r\n");
        self.send_bytes(&[head.as_bytes(), body].concat()).await
    }

    /// Sends bytes and reads one answer: its status, and its body if it has a length. Status 0 means closed.
    pub(super) async fn send_bytes(&mut self, bytes: &[u8]) -> (u16, Vec<u8>) {
        // The site may refuse and close before it has taken everything.
        let _ = self.0.write_all(bytes).await;
        let mut answer = Vec::new();
        let head_len = loop {
            if let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            match self.0.read_buf(&mut answer).await {
                Ok(0) | Err(_) => return (0, answer),
                Ok(_) => {}
            }
        };
        let mut body = answer.split_off(head_len);
        let head = String::from_utf8(answer).unwrap().to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let len =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
        while body.len() < len {
            self.0.read_buf(&mut body).await.unwrap();
        }
        (status, body)
    }
}

pub(super) fn read_body() -> Bytes {
    let ranges = vec![ChunkRange { chunk: chunk(1), offset: 0, len: 100 }];
    ReadBody { id: 1, ranges, priority: Priority::Foreground, time_left: None }.encode()
}

pub(super) const READ: &str = "/striate/v1/read";
pub(super) const CHUNK: &str = "/striate/v1/chunk";
pub(super) const CANCEL: &str = "/striate/v1/cancel";
