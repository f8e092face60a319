//! A batch read's response as frames, in order of completion.
//!
//! Integers are big-endian:
//!
//! ```text
//! offset  bytes
//! 0       4     "STR1"
//! 4       4     item: its position in the request; in the end frame the number of items
//! 8       2     status: 200, 206 (a range), 404, 412, 416 …; in the end frame 200
//! 10      1     flags: 1 first frame of its item, 2 last frame of its item, 4 end of the answer
//! 11      1     0
//! 12      4     head length h
//! 16      4     body length b, at most 1 MiB
//! 20      4     CRC-32 (ISO-HDLC, as in zlib) of bytes 0–19, the head and the body
//! 24      h     head: JSON
//! 24+h    b     body
//! ```
//!
//! A response may break off anywhere. A receiver detects that by the missing end frame, and a truncated or altered
//! frame by its length and checksum. An item counts only once its last frame came with a status below 400.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use crc_fast::{CrcAlgorithm, Digest};
use futures::{Stream, StreamExt};
use s3s::dto::TimestampFormat;
use serde::Serialize;
use striate_client::{ObjectHead, ObjectPart, PartStream};

use super::{Failure, Item};
use crate::refusal::Refusal;
use crate::translate::{content_range, timestamp};

/// Content-Type of the response.
pub(crate) const CONTENT_TYPE: &str = "application/vnd.striate.frames";

pub(super) const MAGIC: [u8; 4] = *b"STR1";
pub(super) const FIRST: u8 = 1;
pub(super) const LAST: u8 = 2;
pub(super) const END: u8 = 4;
/// Maximum length of a frame's body in bytes.
const MAX_BODY: usize = 1 << 20;
/// Length of a frame in bytes before its head.
pub(super) const HEADER_LEN: usize = 24;
/// Maximum length of frames that are gathered, so that small objects are not sent one by one.
const GATHERED: usize = 64 << 10;

/// The frames of a response.
pub(crate) struct Frames {
    items: Vec<Item>,
    parts: PartStream,
    /// Position in the batch of each request in `parts`.
    positions: Vec<usize>,
    /// Whether frames of an item were sent, by item.
    begun: Vec<bool>,
    /// Small frames, gathered; sent after `out`.
    gathered: BytesMut,
    /// Buffers to send, in order.
    out: VecDeque<Bytes>,
    ended: bool,
}

/// The head of an item's first frame.
#[derive(Serialize)]
struct SuccessHead<'a> {
    key: &'a str,
    etag: String,
    size: u64,
    last_modified: String,
    content_type: &'a str,
    content_length: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_range: Option<String>,
}

/// The head of an item that failed.
#[derive(Serialize)]
struct FailureHead<'a> {
    key: &'a str,
    code: &'a str,
    message: &'a str,
}

/// The fields of a frame before its lengths.
struct Prefix {
    item: usize,
    status: u16,
    flags: u8,
}

impl Frames {
    /// Creates the frames of `items`: first of those that were refused at once, then of the others, which come from
    /// `parts` in the order of `positions`.
    pub fn new(
        items: Vec<Item>,
        refused: &[(usize, Refusal)],
        parts: PartStream,
        positions: Vec<usize>,
    ) -> Self {
        let begun = vec![false; items.len()];
        let (gathered, out) = (BytesMut::new(), VecDeque::new());
        let mut frames = Self { items, parts, positions, begun, gathered, out, ended: false };
        for (item, refusal) in refused {
            frames.fail(*item, &Failure::from(refusal));
        }
        frames
    }

    fn part(&mut self, item: usize, part: ObjectPart) {
        let status = if self.items[item].is_range { 206 } else { 200 };
        let mut head = part.head.map(|head| success_head(&self.items[item], &head)).unwrap_or_default();
        let mut bodies = split(part.pieces).into_iter().peekable();
        // An empty object has a frame too.
        let mut body = bodies.next().unwrap_or_default();
        loop {
            let is_last = part.is_last && bodies.peek().is_none();
            let flags = self.first(item) | if is_last { LAST } else { 0 };
            self.frame(&Prefix { item, status, flags }, &std::mem::take(&mut head), body);
            match bodies.next() {
                Some(next) => body = next,
                None => return,
            }
        }
    }

    /// Returns the flag of an item's first frame, once.
    fn first(&mut self, item: usize) -> u8 {
        if std::mem::replace(&mut self.begun[item], true) { 0 } else { FIRST }
    }

    /// Writes the last frame of an item that failed, before or after its first frame.
    fn fail(&mut self, item: usize, failure: &Failure) {
        let Failure { status, code, message } = failure;
        let head = json(&FailureHead { key: &self.items[item].key, code, message });
        let flags = self.first(item) | LAST;
        self.frame(&Prefix { item, status: *status, flags }, &head, Vec::new());
    }

    fn end(&mut self) {
        let prefix = Prefix { item: self.items.len(), status: 200, flags: END };
        self.frame(&prefix, &[], Vec::new());
        self.flush();
        self.ended = true;
    }

    fn frame(&mut self, prefix: &Prefix, head: &[u8], body: Vec<Bytes>) {
        let header = prefix.encode(head, &body);
        self.gathered.extend_from_slice(&header);
        self.gathered.extend_from_slice(head);
        if len_of(&body) <= GATHERED {
            body.iter().for_each(|piece| self.gathered.extend_from_slice(piece));
        } else {
            self.flush();
            self.out.extend(body);
        }
        if self.gathered.len() > GATHERED {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if !self.gathered.is_empty() {
            self.out.push_back(self.gathered.split().freeze());
        }
    }
}

impl Prefix {
    fn encode(&self, head: &[u8], body: &[Bytes]) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&(self.item as u32).to_be_bytes());
        bytes[8..10].copy_from_slice(&self.status.to_be_bytes());
        bytes[10] = self.flags;
        bytes[12..16].copy_from_slice(&(head.len() as u32).to_be_bytes());
        bytes[16..20].copy_from_slice(&(len_of(body) as u32).to_be_bytes());
        let mut crc = Digest::new(CrcAlgorithm::Crc32IsoHdlc);
        crc.update(&bytes[..20]);
        crc.update(head);
        body.iter().for_each(|piece| crc.update(piece));
        bytes[20..].copy_from_slice(&(crc.finalize() as u32).to_be_bytes());
        bytes
    }
}

impl Stream for Frames {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let this = &mut *self;
        loop {
            if let Some(bytes) = this.out.pop_front() {
                return Poll::Ready(Some(bytes));
            }
            if this.ended {
                return Poll::Ready(None);
            }
            match this.parts.poll_next_unpin(cx) {
                Poll::Ready(Some((request, Ok(part)))) => this.part(this.positions[request], part),
                Poll::Ready(Some((request, Err(error)))) => {
                    this.fail(this.positions[request], &Failure::from(&error));
                }
                Poll::Ready(None) => this.end(),
                Poll::Pending if this.gathered.is_empty() => return Poll::Pending,
                Poll::Pending => this.flush(),
            }
        }
    }
}

fn success_head(item: &Item, head: &ObjectHead) -> Vec<u8> {
    let ObjectHead { info, range } = head;
    let stored_type = info.attributes.content_type.as_str();
    json(&SuccessHead {
        key: &item.key,
        etag: format!("\"{}\"", info.etag),
        size: info.size,
        last_modified: rfc_3339(info.modified_unix_ms),
        content_type: if stored_type.is_empty() { "binary/octet-stream" } else { stored_type },
        content_length: range.end - range.start,
        content_range: item.is_range.then(|| content_range(range, info.size)),
    })
}

fn json(head: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(head).expect("structures of texts and numbers are JSON")
}

fn rfc_3339(unix_ms: u64) -> String {
    let mut text = Vec::new();
    // Writing to memory does not fail, and whole milliseconds can always be formatted.
    let _ = timestamp(unix_ms).format(TimestampFormat::DateTime, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn len_of(pieces: &[Bytes]) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

/// Splits pieces into bodies of frames.
fn split(pieces: Vec<Bytes>) -> Vec<Vec<Bytes>> {
    let mut bodies: Vec<Vec<Bytes>> = Vec::new();
    let mut room = 0;
    for mut piece in pieces {
        while !piece.is_empty() {
            if room == 0 {
                bodies.push(Vec::new());
                room = MAX_BODY;
            }
            let part = piece.split_to(piece.len().min(room));
            room -= part.len();
            bodies.last_mut().expect("one was pushed above").push(part);
        }
    }
    bodies
}
