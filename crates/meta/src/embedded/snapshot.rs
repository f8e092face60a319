//! A committed state of one mirror, which many readers share.
//!
//! ```text
//! row value:  | crc32c of key, revision, value: 4 | revision: 8 | value … |      (big-endian)
//! ```
//!
//! redb checks its pages only when it repairs, so each row carries its own checksum, which every read verifies: a
//! flipped bit is an error that ejects the mirror, and is never returned as data.

use std::io;
use std::ops::Bound;

use bytes::{BufMut, Bytes};
use redb::{ReadOnlyTable, ReadableTable, ReadableTableMetadata};
use striate_codec::{crc32c, crc32c_append};

use crate::store::{Revision, Row, ScanRange};

/// Bytes before the value.
const HEADER_LEN: usize = 12;

/// Why an operation of a mirror failed.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// Its disk is full.
    NoSpace(String),
    /// Another process uses its file.
    Busy(String),
    /// It did not answer in time; the operation may still take effect.
    Hung(String),
    /// Its files are no longer at their paths: its directory is being wiped, was unmounted or swapped.
    Vanished(String),
    /// Anything else: the mirror cannot be trusted any more.
    Broken(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoSpace(reason)
            | Self::Busy(reason)
            | Self::Hung(reason)
            | Self::Vanished(reason)
            | Self::Broken(reason) => f.write_str(reason),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace(error.to_string()),
            io::ErrorKind::ResourceBusy => Self::Busy(error.to_string()),
            _ => Self::Broken(error.to_string()),
        }
    }
}

/// Converts an error of any redb operation.
pub(super) fn failure(error: impl Into<redb::Error>) -> Failure {
    match error.into() {
        redb::Error::Io(error) => error.into(),
        error => Failure::Broken(error.to_string()),
    }
}

/// The rows as stored; the module has the drawing.
pub(super) type RowTable = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// Encodes a row's version and value.
pub(super) fn encode_value(key: &[u8], version: Revision, value: &[u8], into: &mut Vec<u8>) {
    into.clear();
    into.reserve(HEADER_LEN + value.len());
    let version = version.0.to_be_bytes();
    into.put_u32(crc32c_append(crc32c_append(crc32c(key), &version), value));
    into.put_slice(&version);
    into.put_slice(value);
}

/// Decodes a stored row into its version and value.
fn decode_value<'a>(key: &[u8], stored: &'a [u8]) -> Result<(Revision, &'a [u8]), Failure> {
    let damaged = || Failure::Broken(format!("the row {:?} is damaged", String::from_utf8_lossy(key)));
    let (checksum, rest) = stored.split_first_chunk::<4>().ok_or_else(damaged)?;
    let (version, value) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
    if u32::from_be_bytes(*checksum) != crc32c_append(crc32c(key), rest) {
        return Err(damaged());
    }
    Ok((Revision(u64::from_be_bytes(*version)), value))
}

/// A mirror's state after a group.
pub(super) struct Snapshot {
    rows: RowTable,
    transactions: RowTable,
    revision: Revision,
    run: u32,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("revision", &self.revision).finish_non_exhaustive()
    }
}

impl Snapshot {
    pub(super) fn new(rows: RowTable, transactions: RowTable, revision: Revision, run: u32) -> Self {
        Self { rows, transactions, revision, run }
    }

    /// Returns the number of the engine's run that made the state.
    pub(super) fn run(&self) -> u32 {
        self.run
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns the tables to copy: rows and remembered transactions.
    pub(super) fn tables(&self) -> [&RowTable; 2] {
        [&self.rows, &self.transactions]
    }

    pub(super) fn row_count(&self) -> Result<u64, Failure> {
        self.rows.len().map_err(failure)
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Row>, Failure> {
        let Some(stored) = self.rows.get(key).map_err(failure)? else { return Ok(None) };
        let (version, value) = decode_value(key, stored.value())?;
        let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        Ok(Some(Row { key, value, version }))
    }

    pub(super) fn version(&self, key: &[u8]) -> Result<Option<Revision>, Failure> {
        let Some(stored) = self.rows.get(key).map_err(failure)? else { return Ok(None) };
        Ok(Some(decode_value(key, stored.value())?.0))
    }

    pub(super) fn scan(&self, range: &ScanRange, limit: usize, back: bool) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        if limit == 0 || (!range.end.is_empty() && range.start >= range.end) {
            return Ok(rows);
        }
        let end = match range.end.is_empty() {
            true => Bound::Unbounded,
            false => Bound::Excluded(&range.end[..]),
        };
        let bounds = (Bound::Included(&range.start[..]), end);
        let mut stored = self.rows.range::<&[u8]>(bounds).map_err(failure)?;
        while rows.len() < limit {
            let Some(next) = (if back { stored.next_back() } else { stored.next() }) else { break };
            let (key, value) = next.map_err(failure)?;
            let (version, bytes) = decode_value(key.value(), value.value())?;
            let value = Bytes::copy_from_slice(bytes);
            rows.push(Row { key: Bytes::copy_from_slice(key.value()), value, version });
        }
        Ok(rows)
    }

    /// Reads all rows and returns their number and a checksum of them all.
    pub(super) fn sum(&self) -> Result<(u64, u32), Failure> {
        let (mut rows, mut checksum) = (0, 0);
        for row in self.rows.iter().map_err(failure)? {
            let (key, stored) = row.map_err(failure)?;
            decode_value(key.value(), stored.value())?;
            checksum = crc32c_append(crc32c_append(checksum, key.value()), stored.value());
            rows += 1;
        }
        Ok((rows, checksum))
    }
}
