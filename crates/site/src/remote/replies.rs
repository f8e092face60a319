//! Reads frames from the body of a reply.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use striate_codec::crc32c;

use super::connection::{Endpoint, Exchange};
use crate::api::SiteError;
use crate::protocol::frame::{FRAME_HEADER_LEN, FrameHeader, decode_error};
use crate::protocol::limits::MAX_ERROR_LEN;

/// The unread part of a reply. Dropping it before its end closes the connection.
pub(super) struct Frames {
    exchange: Exchange,
    body: Incoming,
    /// Bytes received and not yet taken.
    buffered: Bytes,
}

/// A received frame.
pub(super) struct ReceivedFrame {
    pub(super) header: FrameHeader,
    pub(super) result: Result<Bytes, SiteError>,
}

impl Frames {
    pub(super) fn new(exchange: Exchange, body: Incoming) -> Self {
        Self { exchange, body, buffered: Bytes::new() }
    }

    /// Returns the next frame, whose length must be `expected_len` of its item; `None` at the end.
    pub(super) async fn next(
        &mut self,
        endpoint: &Endpoint,
        expected_len: impl FnOnce(u32) -> Option<u32>,
    ) -> Result<Option<ReceivedFrame>, SiteError> {
        if !self.wait_for_bytes(endpoint).await? {
            return Ok(None);
        }
        let header = self.exactly(endpoint, FRAME_HEADER_LEN).await?;
        let header = FrameHeader::decode(header[..].try_into().expect("the length is right"));
        let fits = match (header.status, expected_len(header.item)) {
            (_, None) => false,
            (0, Some(expected)) => header.len == expected,
            (_, Some(_)) => header.len as usize <= MAX_ERROR_LEN,
        };
        if !fits {
            let FrameHeader { item, status, len, .. } = header;
            let reason = format!("a frame that does not fit (item {item}, status {status}, {len} bytes)");
            return Err(endpoint.unavailable(reason));
        }
        let bytes = self.exactly(endpoint, header.len as usize).await?;
        let result = if crc32c(&bytes) != header.crc32c {
            Err(endpoint.unavailable("the reply was damaged on its way"))
        } else if header.status == 0 {
            Ok(bytes)
        } else {
            let unknown = || endpoint.unavailable(format!("unknown error {}", header.status));
            Err(decode_error(header.status, &bytes).unwrap_or_else(unknown))
        };
        Ok(Some(ReceivedFrame { header, result }))
    }

    /// Returns the connection to the pool after the last frame, if the reply ends here as it should.
    pub(super) async fn finish(mut self, endpoint: &Endpoint) {
        if let Ok(false) = self.wait_for_bytes(endpoint).await {
            self.exchange.finish();
        }
    }

    /// Discards the rest of the reply, and returns the connection to the pool.
    pub(super) async fn drain(mut self, endpoint: &Endpoint) -> Result<(), SiteError> {
        while self.wait_for_bytes(endpoint).await? {
            self.buffered.clear();
        }
        self.exchange.finish();
        Ok(())
    }

    /// Waits for more bytes; returns false at the end.
    async fn wait_for_bytes(&mut self, endpoint: &Endpoint) -> Result<bool, SiteError> {
        while self.buffered.is_empty() {
            let frame = async { self.body.frame().await.transpose() };
            match endpoint.within(endpoint.options.reply_timeout, frame).await? {
                Some(frame) => self.buffered = frame.into_data().unwrap_or_default(),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Returns the next `len` bytes in one buffer, without a copy if they arrived in one.
    async fn exactly(&mut self, endpoint: &Endpoint, len: usize) -> Result<Bytes, SiteError> {
        if self.buffered.len() >= len {
            return Ok(self.buffered.split_to(len));
        }
        let mut all = BytesMut::with_capacity(len);
        while all.len() < len {
            if !self.wait_for_bytes(endpoint).await? {
                return Err(endpoint.unavailable("the reply ended early"));
            }
            let part_len = self.buffered.len().min(len - all.len());
            all.extend_from_slice(&self.buffered.split_to(part_len));
        }
        Ok(all.freeze())
    }
}
