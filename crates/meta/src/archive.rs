//! Exports all rows to a portable file and imports them: `striate admin meta export` and `import`.
//!
//! ```text
//! {"striate_metadata":1,"cluster":"<32 hex>"}        version of this format, whose rows these are
//! {"k":"<hex>","v":"<hex>"}                          a row, in key order
//! …
//! {"rows":<count>,"crc32c":"<8 hex>"}                checksum of all bytes before this line
//! ```
//!
//! The file is text, one JSON value per line, so any tool can read, filter and compare it. The last line proves that
//! the file is complete: a reader refuses a file that is truncated, altered or of a newer version. Row versions are
//! left out, because every engine counts its own.
//!
//! Crash argument: an import is many transactions. If an import into an empty store fails, it removes what it wrote.
//! After a crash the store is not empty, so no later import mistakes a half-imported store for a complete one.
//!
//! What it does not do: it does not interpret the rows. An export of a running store shows one state when it reads an
//! [`embedded view`](crate::embedded::View); otherwise only each page shows one state.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use striate_codec::crc32c_append;
use striate_core::ClusterId;
use striate_runtime::Runtime;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::store::{MetaError, MetaStore, Row, ScanRange, Transaction, limits};

/// Newest version of the format that this program understands.
pub const ARCHIVE_VERSION: u32 = 1;

/// Rows per read.
const PAGE_ROWS: usize = 1000;

/// Maximum number of rows written in one transaction.
const IMPORT_ROWS: usize = limits::MAX_OPERATIONS;

/// Maximum number of bytes of keys and values written in one transaction.
const IMPORT_BYTES: usize = limits::MAX_TRANSACTION_BYTES;

/// Maximum length of a line in bytes: the largest row in hexadecimal, and its JSON.
const MAX_LINE_BYTES: u64 = 2 * (limits::MAX_KEY_BYTES + limits::MAX_VALUE_BYTES) as u64 + 64;

/// Why an export or import failed.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The file could not be read or written.
    #[error("the metadata archive: {0}")]
    Io(#[from] std::io::Error),
    /// The file is not a complete archive.
    #[error("the metadata archive is damaged: {0}")]
    Damaged(String),
    /// A newer program wrote the file.
    #[error(
        "the metadata archive has version {0}, this program knows {ARCHIVE_VERSION}; use a newer striate"
    )]
    Newer(u32),
    /// The file holds the metadata of another cluster.
    #[error("the metadata archive is of cluster {found}, this is {expected}")]
    OtherCluster {
        /// The archive's cluster.
        found: ClusterId,
        /// The store's cluster.
        expected: ClusterId,
    },
    /// The store already holds rows.
    #[error("the store is not empty; import into a new one, or force it to overwrite rows of the same keys")]
    NotEmpty,
    /// The store failed.
    #[error(transparent)]
    Meta(#[from] MetaError),
}

/// Progress of an export or import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rows written or read.
    pub rows: u64,
    /// Bytes of the archive written or read.
    pub bytes: u64,
}

/// Called after every page or transaction.
pub type OnProgress<'a> = &'a mut (dyn FnMut(Progress) + Send);

/// A read of one page of rows.
pub type PageFuture<'a> = Pin<Box<dyn Future<Output = Result<Vec<Row>, MetaError>> + Send + 'a>>;

/// A source whose rows can be read in key order.
pub trait Pages: Sync {
    /// Returns at most `limit` rows of `range` in key order.
    fn page(&self, range: ScanRange, limit: usize) -> PageFuture<'_>;
}

impl<S: MetaStore + ?Sized> Pages for S {
    fn page(&self, range: ScanRange, limit: usize) -> PageFuture<'_> {
        self.scan(range, limit)
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    striate_metadata: u32,
    cluster: Option<ClusterId>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Row { k: String, v: String },
    End { rows: u64, crc32c: String },
}

/// Writes all rows of `source`.
///
/// # Errors
/// If the source cannot be read or the file cannot be written.
pub async fn export(
    source: &(impl Pages + ?Sized),
    cluster: ClusterId,
    file: &mut (impl AsyncWrite + Unpin),
    on_progress: OnProgress<'_>,
) -> Result<Progress, ArchiveError> {
    let header = Header { striate_metadata: ARCHIVE_VERSION, cluster: Some(cluster) };
    let mut text = json_line(&header);
    let (mut progress, mut checksum) = (Progress::default(), 0);
    let mut range = ScanRange { start: Bytes::new(), end: Bytes::new() };
    loop {
        let rows = source.page(range.clone(), PAGE_ROWS).await?;
        for row in &rows {
            text += &json_line(&Line::Row { k: hex::encode(&row.key), v: hex::encode(&row.value) });
        }
        checksum = crc32c_append(checksum, text.as_bytes());
        file.write_all(text.as_bytes()).await?;
        progress.rows += rows.len() as u64;
        progress.bytes += text.len() as u64;
        on_progress(progress);
        text.clear();
        match rows.last() {
            // The next key is the last one followed by a zero byte.
            Some(last) => range.start = [&last.key[..], &[0]].concat().into(),
            None => break,
        }
    }
    let end = json_line(&Line::End { rows: progress.rows, crc32c: format!("{checksum:08x}") });
    file.write_all(end.as_bytes()).await?;
    file.flush().await?;
    progress.bytes += end.len() as u64;
    Ok(progress)
}

fn json_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("strings and numbers are JSON") + "\n"
}

/// Requirements of an import.
#[derive(Clone, Copy, Debug)]
pub struct ImportOptions {
    /// Cluster that the archive must belong to; `None` accepts any.
    pub cluster: Option<ClusterId>,
    /// Accepts a store that already holds rows, and overwrites those whose keys are in the archive.
    pub force: bool,
}

/// Reads a whole archive without importing it, to check whether [`import`] would find it undamaged.
///
/// # Errors
/// If the archive is damaged, newer than this program, or cannot be read.
pub async fn check(file: &mut (impl AsyncBufRead + Unpin + Send)) -> Result<Progress, ArchiveError> {
    let (mut reader, _) = Reader::open(file).await?;
    while reader.row().await?.is_some() {}
    Ok(reader.progress)
}

/// Writes all rows of an archive into `store`.
///
/// # Errors
/// If the store is not empty and `force` is not set, if the archive is damaged, newer or of another cluster, or if the
/// store fails. Rows written to an empty store are then removed.
pub async fn import(
    runtime: &Runtime,
    store: &dyn MetaStore,
    options: ImportOptions,
    file: &mut (impl AsyncBufRead + Unpin + Send),
    on_progress: OnProgress<'_>,
) -> Result<Progress, ArchiveError> {
    let (mut reader, header) = Reader::open(file).await?;
    if let (Some(expected), Some(found)) = (options.cluster, header.cluster)
        && expected != found
    {
        return Err(ArchiveError::OtherCluster { found, expected });
    }
    let was_empty = store.scan(ScanRange::prefix(b""), 1).await?.is_empty();
    if !was_empty && !options.force {
        return Err(ArchiveError::NotEmpty);
    }
    let imported = import_rows(runtime, store, &mut reader, on_progress).await;
    if imported.is_err() && was_empty {
        remove_all(runtime, store).await?;
    }
    imported
}

async fn import_rows(
    runtime: &Runtime,
    store: &dyn MetaStore,
    reader: &mut Reader<'_, impl AsyncBufRead + Unpin + Send>,
    on_progress: OnProgress<'_>,
) -> Result<Progress, ArchiveError> {
    let (mut tx, mut bytes) = (Transaction::with_random_id(runtime), 0);
    while let Some((key, value)) = reader.row().await? {
        bytes += key.len() + value.len();
        if tx.writes.len() == IMPORT_ROWS || bytes > IMPORT_BYTES {
            bytes = key.len() + value.len();
            store.commit(std::mem::replace(&mut tx, Transaction::with_random_id(runtime))).await?;
            on_progress(reader.progress);
        }
        tx.put(key, value);
    }
    store.commit(tx).await?;
    on_progress(reader.progress);
    Ok(reader.progress)
}

async fn remove_all(runtime: &Runtime, store: &dyn MetaStore) -> Result<(), MetaError> {
    loop {
        let rows = store.scan(ScanRange::prefix(b""), limits::MAX_OPERATIONS).await?;
        if rows.is_empty() {
            return Ok(());
        }
        let mut tx = Transaction::with_random_id(runtime);
        for row in rows {
            tx.delete(row.key);
        }
        store.commit(tx).await?;
    }
}

/// Reads an archive line by line and verifies its checksum at the end.
struct Reader<'a, F> {
    file: &'a mut F,
    line: Vec<u8>,
    last_key: Bytes,
    checksum: u32,
    progress: Progress,
}

impl<'a, F: AsyncBufRead + Unpin + Send> Reader<'a, F> {
    async fn open(file: &'a mut F) -> Result<(Self, Header), ArchiveError> {
        let (line, last_key) = (Vec::new(), Bytes::new());
        let mut reader = Self { file, line, last_key, checksum: 0, progress: Progress::default() };
        reader.read_line().await?;
        let header: Header = serde_json::from_slice(&reader.line).map_err(|_| {
            ArchiveError::Damaged("its first line is not that of a metadata archive".to_owned())
        })?;
        if header.striate_metadata > ARCHIVE_VERSION {
            return Err(ArchiveError::Newer(header.striate_metadata));
        }
        reader.checksum = crc32c_append(0, &reader.line);
        Ok((reader, header))
    }

    /// Reads the next line, newline included.
    async fn read_line(&mut self) -> Result<(), ArchiveError> {
        self.line.clear();
        (&mut *self.file).take(MAX_LINE_BYTES).read_until(b'\n', &mut self.line).await?;
        self.progress.bytes += self.line.len() as u64;
        match self.line.last() {
            Some(b'\n') => Ok(()),
            Some(_) => Err(self.damaged("a line is too long or cut short")),
            None => Err(self.damaged("it is cut short")),
        }
    }

    fn damaged(&self, problem: &str) -> ArchiveError {
        ArchiveError::Damaged(format!("{problem}, after {} rows", self.progress.rows))
    }

    /// Returns the next row, or `None` after the last one if the archive is complete.
    async fn row(&mut self) -> Result<Option<(Bytes, Bytes)>, ArchiveError> {
        self.read_line().await?;
        let line = serde_json::from_slice(&self.line).map_err(|_| self.damaged("a line is no row"))?;
        match line {
            Line::Row { k, v } => {
                self.checksum = crc32c_append(self.checksum, &self.line);
                let decode =
                    |text: &str| hex::decode(text).map_err(|_| self.damaged("a row is not hexadecimal"));
                let (key, value): (Bytes, Bytes) = (decode(&k)?.into(), decode(&v)?.into());
                if key <= self.last_key {
                    return Err(self.damaged("rows are not in order"));
                }
                self.last_key = key.clone();
                self.progress.rows += 1;
                Ok(Some((key, value)))
            }
            Line::End { rows, .. } if rows != self.progress.rows => {
                Err(self.damaged(&format!("it should have {rows} rows")))
            }
            Line::End { crc32c, .. } if crc32c != format!("{:08x}", self.checksum) => {
                Err(self.damaged("its checksum is wrong"))
            }
            Line::End { .. } if !self.file.fill_buf().await?.is_empty() => {
                Err(self.damaged("something follows its last line"))
            }
            Line::End { .. } => Ok(None),
        }
    }
}
