//! Replay of trace files, in open loop: what the file says, when it says so.
//!
//! A trace is a CSV file, as it is or compressed by gzip, with a line of headings. Lines that start with `#` are skipped,
//! columns of other names ignored.
//!
//! | column | what |
//! |--|--|
//! | `time_s` | when the row is due, in seconds; never less than in the row before. The first row is due at the start. |
//! | `op` | `GET`, `PUT` or `DELETE` |
//! | `key` | any text |
//! | `size` | in bytes; a `GET` may leave it out if an earlier row says it |
//! | `group` | may be missing or empty; rows of a group follow one another |
//!
//! A group is one request, due when its first row is: its `GET`s are one read of many objects. Its writes are operations
//! of their own.
//!
//! What is checked: everything above. A trace either replays to its end or is refused with the line that is wrong.

mod reading;
mod replay;
mod rows;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

pub use replay::{Preload, Replay, ReplayOptions};

use rows::Rows;

/// Why a trace is refused.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A line is wrong.
    #[error("line {line}: {reason}")]
    Line {
        /// Counted from 1, the headings included.
        line: u64,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// The file cannot be read, or has no rows.
    #[error("{0}")]
    File(String),
}

impl TraceError {
    fn line(line: u64, reason: impl Into<String>) -> Self {
        Self::Line { line, reason: reason.into() }
    }
}

/// Reads a trace from a file.
///
/// # Errors
/// When it cannot be read, or a line is wrong.
pub fn open(path: &Path, options: ReplayOptions) -> Result<Replay, TraceError> {
    let file = File::open(path).map_err(|error| TraceError::File(error.to_string()))?;
    read(file, options)
}

/// Reads a trace. Whether it is compressed shows in its first bytes.
///
/// # Errors
/// As [`open`].
pub fn read(source: impl Read, options: ReplayOptions) -> Result<Replay, TraceError> {
    let mut source = BufReader::new(source);
    let start = source.fill_buf().map_err(|error| TraceError::File(error.to_string()))?;
    if start.starts_with(&[0x1f, 0x8b]) {
        Replay::new(Rows::new(MultiGzDecoder::new(source))?, options)
    } else {
        Replay::new(Rows::new(source)?, options)
    }
}
