//! A batch read's response as a TAR (POSIX `ustar` with `pax` records), in order of the items.
//!
//! Keys are written into `pax` records, which take any text and length, and truncated into the older field for a name.
//! `..` and leading slashes in keys are left alone, because every reader of archives handles them itself. An item that
//! failed is an empty entry that states the reason; one that fails after its entry began breaks the response off,
//! because an archive cannot take back what it announced.

use std::collections::VecDeque;
use std::io::{self, Write};

use bytes::BufMut;
use bytes::buf::Writer;
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, stream};
use s3s::StdError;
use striate_client::{ObjectHead, ObjectPart, PartStream};

use super::{Failure, Item};
use crate::refusal::Refusal;

/// Content-Type of the response.
pub(crate) const CONTENT_TYPE: &str = "application/x-tar";

/// Length of an archive's blocks in bytes.
const BLOCK: u64 = 512;
/// The two blocks that end an archive.
static ZEROS: [u8; 2 * BLOCK as usize] = [0; 2 * BLOCK as usize];
/// Maximum size of an entry that fits into the size field; readers take larger ones from the `pax` record.
const MAX_FIELD: u64 = (1 << 33) - 1;

/// An archive being sent.
struct Archive {
    items: std::vec::IntoIter<Item>,
    /// Position of the next item.
    position: usize,
    /// Items that were refused at once, in order.
    refused: VecDeque<(usize, Refusal)>,
    /// Parts of the other items.
    parts: PartStream,
    /// Bytes of the current entry that are still to come.
    left: u64,
    /// Padding of the current entry's last block, in bytes.
    padding: usize,
    /// Buffers to send, in order.
    out: VecDeque<Bytes>,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    Between,
    InEntry,
    Ended,
}

/// Streams the archive of `items`, of which `refused` are known to fail; `parts` has the others in order.
pub(crate) fn archive(
    items: Vec<Item>,
    refused: Vec<(usize, Refusal)>,
    parts: PartStream,
) -> impl Stream<Item = Result<Bytes, StdError>> + Send {
    let (items, refused) = (items.into_iter(), refused.into());
    let (out, state) = (VecDeque::new(), State::Between);
    let archive = Archive { items, position: 0, refused, parts, left: 0, padding: 0, out, state };
    stream::try_unfold(archive, |mut archive| async move {
        let bytes = archive.next().await?;
        Ok(bytes.map(|bytes| (bytes, archive)))
    })
}

impl Archive {
    async fn next(&mut self) -> Result<Option<Bytes>, StdError> {
        loop {
            if let Some(bytes) = self.out.pop_front() {
                return Ok(Some(bytes));
            }
            match self.state {
                State::Ended => return Ok(None),
                State::InEntry => self.go_on().await?,
                State::Between => match self.items.next() {
                    Some(item) => self.begin(&item).await?,
                    None => {
                        self.out.push_back(Bytes::from_static(&ZEROS));
                        self.state = State::Ended;
                    }
                },
            }
        }
    }

    /// Begins the next item's entry, with its first bytes.
    async fn begin(&mut self, item: &Item) -> Result<(), StdError> {
        let position = self.position;
        self.position += 1;
        if let Some((_, refusal)) = self.refused.pop_front_if(|(refused, _)| *refused == position) {
            return Ok(self.fail(position, item, &Failure::from(&refusal))?);
        }
        match self.parts.next().await {
            None => Err("the read ended before its items did".into()),
            Some((_, Err(error))) => Ok(self.fail(position, item, &Failure::from(&error))?),
            Some((_, Ok(part))) => {
                let head = part.head.as_ref().ok_or("an item began without its head")?;
                self.left = head.range.end - head.range.start;
                self.padding = (self.left.next_multiple_of(BLOCK) - self.left) as usize;
                self.out.push_back(entry(position, &item.key, head)?);
                self.state = State::InEntry;
                self.part(part)
            }
        }
    }

    async fn go_on(&mut self) -> Result<(), StdError> {
        match self.parts.next().await {
            Some((_, part)) => self.part(part?),
            None => Err("the read ended within an item".into()),
        }
    }

    fn part(&mut self, part: ObjectPart) -> Result<(), StdError> {
        let len: usize = part.pieces.iter().map(Bytes::len).sum();
        let left = self.left.checked_sub(len as u64).ok_or("an item is longer than its head says")?;
        self.left = left;
        self.out.extend(part.pieces.into_iter().filter(|piece| !piece.is_empty()));
        if part.is_last {
            if left > 0 {
                return Err(format!("{left} bytes of an item are missing").into());
            }
            self.out.push_back(Bytes::from_static(&ZEROS).slice(..self.padding));
            self.state = State::Between;
        }
        Ok(())
    }

    fn fail(&mut self, position: usize, item: &Item, failure: &Failure) -> io::Result<()> {
        let name = format!("__errors__/{position}");
        let status = failure.status.to_string();
        let records = [
            ("path", name.as_str()),
            ("STRIATE.key", &item.key),
            ("STRIATE.status", &status),
            ("STRIATE.code", failure.code),
            ("STRIATE.message", &failure.message),
        ];
        self.out.push_back(header(&name, 0, 0, &records)?);
        Ok(())
    }
}

/// Returns what precedes an item's bytes.
fn entry(position: usize, key: &str, head: &ObjectHead) -> io::Result<Bytes> {
    let (position, etag) = (position.to_string(), format!("\"{}\"", head.info.etag));
    let len = head.range.end - head.range.start;
    let size = len.to_string();
    let mut records = vec![("path", key), ("STRIATE.position", &position), ("STRIATE.etag", &etag)];
    if len > MAX_FIELD {
        records.push(("size", &size));
    }
    header(key, len, head.info.modified_unix_ms / 1_000, &records)
}

/// Returns an entry's `pax` records and its own header. Times are in Unix seconds.
fn header(name: &str, len: u64, modified: u64, records: &[(&str, &str)]) -> io::Result<Bytes> {
    let mut archive = tar::Builder::new(BytesMut::new().writer());
    archive.append_pax_extensions(records.iter().map(|(name, value)| (*name, value.as_bytes())))?;
    let mut header = tar::Header::new_ustar();
    let field = &mut header.as_old_mut().name;
    let cut = name.floor_char_boundary(field.len());
    field[..cut].copy_from_slice(&name.as_bytes()[..cut]);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(len.min(MAX_FIELD));
    header.set_mtime(modified);
    header.set_cksum();
    let bytes: &mut Writer<BytesMut> = archive.get_mut();
    bytes.write_all(header.as_bytes())?;
    // This module writes the end of the archive, so the builder is emptied and not finished.
    Ok(bytes.get_mut().split().freeze())
}
