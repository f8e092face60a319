//! The body of a batch put: incoming frames in the format of a response ([`super::frames`]).
//!
//! The opening frame has flag 8, the number of items in place of an item, and the document as its head. The frames of
//! the items follow in the items' order, without heads: one or more for each item, of at most [`MAX_BODY`] bytes. The
//! end frame closes the body as it closes a response. The status is 0 throughout.
//!
//! ```text
//!  ┌─────────┬──────────┐ ┌────────┬──────┐ ┌────────┬──────┐ ┌────────┬──────┐ ┌─────────┐
//!  │ item 2  │ document │ │ item 0 │ body │ │ item 1 │ body │ │ item 1 │ body │ │ item 2  │
//!  │ flag 8  │          │ │ 1 + 2  │      │ │ 1      │      │ │ 2      │      │ │ flag 4  │
//!  └─────────┴──────────┘ └────────┴──────┘ └────────┴──────┘ └────────┴──────┘ └─────────┘
//! ```
//!
//! Bodies are handed on piece by piece as they arrive, without a copy, so a frame's checksum is verified only after its
//! last piece. A body ends ([`ItemBody`] returns `None`) when its last frame was verified, and nothing is committed
//! before. An item that is not wanted is skipped. A fault in a frame fails the whole request, because nothing after it
//! can be trusted; items whose bodies had ended by then may be stored.

use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use crc_fast::{CrcAlgorithm, Digest};
use futures::stream::{BoxStream, StreamExt};
use parking_lot::Mutex;
use s3s::StdError;
use striate_client::{ClientError, PutBody};
use tokio::sync::Notify;

use super::frames::{END, FIRST, HEADER_LEN, LAST, MAGIC};
use crate::refusal::Refusal;

const OPENING: u8 = 8;
/// Maximum length of the document in bytes.
const MAX_DOCUMENT: usize = 4 << 20;
/// Maximum length of one frame's body in bytes.
pub(crate) const MAX_BODY: usize = 64 << 20;

/// The bytes of a request, in order.
pub(crate) type RequestBytes = BoxStream<'static, Result<Bytes, StdError>>;

/// Why the rest of a request cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RequestFault {
    /// It did not arrive, or its signature is wrong; the trace has the details.
    Transport(String),
    /// It violates the protocol.
    Refused(Refusal),
}

/// The fields of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix {
    item: usize,
    flags: u8,
    head_len: usize,
    body_len: usize,
}

/// Reads the frames of a request.
pub(crate) struct Reader {
    arriving: RequestBytes,
    /// Bytes that arrived and were not yet taken.
    rest: Bytes,
    /// The current frame.
    frame: Frame,
    /// The item whose frames come next.
    item: usize,
    /// Whether frames of this item have come.
    begun: bool,
    broken: Option<RequestFault>,
}

/// A frame whose body was not yet taken to its end.
struct Frame {
    left: usize,
    is_last: bool,
    digest: Digest,
    crc: u32,
}

impl Frame {
    fn none() -> Self {
        Self { left: 0, is_last: false, digest: Digest::new(CrcAlgorithm::Crc32IsoHdlc), crc: 0 }
    }
}

impl From<Refusal> for RequestFault {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

fn malformed(message: impl Into<String>) -> RequestFault {
    Refusal::bad("InvalidRequest", message).into()
}

impl Reader {
    pub(crate) fn new(arriving: RequestBytes) -> Self {
        Self { arriving, rest: Bytes::new(), frame: Frame::none(), item: 0, begun: false, broken: None }
    }

    /// Reads the opening frame. Returns the number of items that it announces, and the document. `reserve` is called
    /// with the document's length before the document is read, to reserve memory.
    pub(crate) async fn open(
        &mut self,
        reserve: impl FnOnce(usize) -> Result<(), Refusal>,
    ) -> Result<(usize, Bytes), RequestFault> {
        let (prefix, digest, crc) = self.prefix().await?;
        if prefix.flags != OPENING || prefix.body_len != 0 {
            return Err(malformed(
                "The first frame must be the opening frame, with the document as its head.",
            ));
        }
        if prefix.head_len > MAX_DOCUMENT {
            let message = format!("The document has {} bytes, {MAX_DOCUMENT} are allowed.", prefix.head_len);
            return Err(Refusal::bad("MaxMessageLengthExceeded", message).into());
        }
        reserve(prefix.head_len)?;
        let document = self.exactly(prefix.head_len).await?;
        self.verify(digest, &document, crc)?;
        Ok((prefix.item, document))
    }

    /// Reads the end frame, after `items`, and the end of the body.
    pub(crate) async fn end(&mut self, items: usize) -> Result<(), RequestFault> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        while self.item < items {
            self.skip_to(self.item + 1).await?;
        }
        let (prefix, digest, crc) = self.prefix().await?;
        let Prefix { item, flags, head_len, body_len } = prefix;
        if (item, flags, head_len, body_len) != (items, END, 0, 0) {
            return Err(malformed("The frames of the items must be followed by the end frame."));
        }
        self.verify(digest, &[], crc)?;
        // Reading to the end verifies a signature of the whole body.
        match self.more().await? {
            false => Ok(()),
            true => Err(malformed("Bytes follow the end frame.")),
        }
    }

    /// Returns the next bytes of an item; `None` at its end, when all of its frames were verified.
    async fn piece(&mut self, item: usize) -> Result<Option<Bytes>, RequestFault> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let piece = self.next_piece(item).await;
        if let Err(broken) = &piece {
            self.broken = Some(broken.clone());
        }
        piece
    }

    async fn next_piece(&mut self, item: usize) -> Result<Option<Bytes>, RequestFault> {
        self.skip_to(item).await?;
        self.next_bytes().await
    }

    /// Skips items before this one that were not wanted.
    async fn skip_to(&mut self, item: usize) -> Result<(), RequestFault> {
        while self.item < item {
            while self.next_bytes().await?.is_some() {}
        }
        Ok(())
    }

    /// Returns the next bytes of the current item. After its last bytes, the next item becomes current.
    async fn next_bytes(&mut self) -> Result<Option<Bytes>, RequestFault> {
        loop {
            if self.frame.left > 0 {
                if self.rest.is_empty() && !self.more().await? {
                    return Err(malformed("The body ends within a frame."));
                }
                let piece = self.rest.split_to(self.rest.len().min(self.frame.left));
                self.frame.left -= piece.len();
                self.frame.digest.update(&piece);
                if self.frame.left == 0 {
                    self.end_frame()?;
                }
                return Ok(Some(piece));
            }
            if std::mem::take(&mut self.frame.is_last) {
                (self.item, self.begun) = (self.item + 1, false);
                return Ok(None);
            }
            self.begin_frame().await?;
        }
    }

    async fn begin_frame(&mut self) -> Result<(), RequestFault> {
        let (prefix, digest, crc) = self.prefix().await?;
        let Prefix { item, flags, head_len, body_len } = prefix;
        let is_first = flags & FIRST != 0;
        if item != self.item || flags & !(FIRST | LAST) != 0 || is_first == self.begun || head_len != 0 {
            return Err(malformed(format!("A frame of item {} was expected here.", self.item)));
        }
        if body_len > MAX_BODY {
            return Err(malformed(format!("A frame has {body_len} bytes, {MAX_BODY} are allowed.")));
        }
        self.begun = true;
        self.frame = Frame { left: body_len, is_last: flags & LAST != 0, digest, crc };
        if body_len == 0 { self.end_frame() } else { Ok(()) }
    }

    fn end_frame(&mut self) -> Result<(), RequestFault> {
        let Frame { digest, crc, .. } = &mut self.frame;
        let (digest, crc) = (std::mem::replace(digest, Digest::new(CrcAlgorithm::Crc32IsoHdlc)), *crc);
        self.verify(digest, &[], crc)
    }

    fn verify(&self, mut digest: Digest, more: &[u8], crc: u32) -> Result<(), RequestFault> {
        digest.update(more);
        match digest.finalize() as u32 == crc {
            true => Ok(()),
            false => {
                let message = format!("The checksum of a frame of item {} does not fit.", self.item);
                Err(Refusal::bad("BadDigest", message).into())
            }
        }
    }

    /// Reads a frame's fields; returns them with the digest over them and the frame's checksum.
    async fn prefix(&mut self) -> Result<(Prefix, Digest, u32), RequestFault> {
        let mut bytes = self.exactly(HEADER_LEN).await?;
        let mut digest = Digest::new(CrcAlgorithm::Crc32IsoHdlc);
        digest.update(&bytes[..20]);
        let magic = bytes.split_to(4);
        let item = bytes.get_u32() as usize;
        let (status, flags, zero) = (bytes.get_u16(), bytes.get_u8(), bytes.get_u8());
        if magic[..] != MAGIC || status != 0 || zero != 0 {
            return Err(malformed("This is not the beginning of a frame."));
        }
        let (head_len, body_len) = (bytes.get_u32() as usize, bytes.get_u32() as usize);
        Ok((Prefix { item, flags, head_len, body_len }, digest, bytes.get_u32()))
    }

    /// Returns the next `len` bytes in one buffer.
    async fn exactly(&mut self, len: usize) -> Result<Bytes, RequestFault> {
        if self.rest.len() >= len {
            return Ok(self.rest.split_to(len));
        }
        let mut gathered = BytesMut::new();
        while gathered.len() < len {
            if self.rest.is_empty() && !self.more().await? {
                return Err(malformed("The body ends before its end frame."));
            }
            let piece = self.rest.split_to(self.rest.len().min(len - gathered.len()));
            gathered.extend_from_slice(&piece);
        }
        Ok(gathered.freeze())
    }

    /// Waits for bytes; returns false at the end of the body.
    async fn more(&mut self) -> Result<bool, RequestFault> {
        while self.rest.is_empty() {
            match self.arriving.next().await {
                None => return Ok(false),
                Some(Ok(bytes)) => self.rest = bytes,
                Some(Err(error)) => return Err(RequestFault::Transport(error.to_string())),
            }
        }
        Ok(true)
    }
}

/// Makes the bodies of a request be read one after the other.
pub(crate) struct BodyTurns {
    reader: tokio::sync::Mutex<Reader>,
    ended: Mutex<FinishedBodies>,
    /// One notification for each item, and one for the task that waits for all of them.
    calls: Vec<Notify>,
}

/// Which bodies have been read or given up.
struct FinishedBodies {
    items: Vec<bool>,
    /// The first body that is still to be read.
    next: usize,
}

impl BodyTurns {
    pub(crate) fn new(reader: Reader, items: usize) -> Arc<Self> {
        let calls: Vec<Notify> = (0..=items).map(|_| Notify::new()).collect();
        calls[0].notify_one();
        let ended = Mutex::new(FinishedBodies { items: vec![false; items], next: 0 });
        Arc::new(Self { reader: tokio::sync::Mutex::new(reader), ended, calls })
    }

    /// Returns the body of an item. Must be called once for each item.
    pub(crate) fn body(self: &Arc<Self>, item: usize) -> Box<ItemBody> {
        Box::new(ItemBody { turns: Some(Arc::clone(self)), item, is_called: false })
    }

    /// Waits until all bodies were read or given up, and reads the request to its end.
    pub(crate) async fn end(&self) -> Result<(), RequestFault> {
        let items = self.calls.len() - 1;
        self.calls[items].notified().await;
        self.reader.lock().await.end(items).await
    }

    /// Ends the turn of an item, and notifies the next one.
    fn pass(&self, item: usize) {
        let mut ended = self.ended.lock();
        ended.items[item] = true;
        let before = ended.next;
        while ended.items.get(ended.next) == Some(&true) {
            ended.next += 1;
        }
        if ended.next > before {
            self.calls[ended.next].notify_one();
        }
    }
}

/// An item's bytes as they arrive, after those of the items before it.
pub(crate) struct ItemBody {
    /// `None` after the end.
    turns: Option<Arc<BodyTurns>>,
    item: usize,
    is_called: bool,
}

#[async_trait::async_trait]
impl PutBody for ItemBody {
    async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        let turns = self.turns.as_ref()?;
        if !self.is_called {
            turns.calls[self.item].notified().await;
            self.is_called = true;
        }
        match turns.reader.lock().await.piece(self.item).await {
            Ok(Some(piece)) => return Some(Ok(piece)),
            Ok(None) => {}
            Err(RequestFault::Transport(message)) => return Some(Err(ClientError::Body(message))),
            Err(RequestFault::Refused(refusal)) => return Some(Err(ClientError::Body(refusal.message))),
        }
        turns.pass(self.item);
        self.turns = None;
        None
    }
}

impl Drop for ItemBody {
    /// Passes the turn to the next item, whether or not the body was read.
    fn drop(&mut self) {
        if let Some(turns) = &self.turns {
            turns.pass(self.item);
        }
    }
}
