//! Open-loop replay of trace files: each operation runs when the file says.
//!
//! A trace is a CSV file, plain or compressed with gzip, with a header line. Lines that start with `#` are skipped;
//! unknown columns are ignored.
//!
//! | column | what |
//! |--|--|
//! | `time_s` | when the row is due, in seconds; never less than in the row before. The first row is due at the start. |
//! | `op` | `GET`, `PUT` or `DELETE` |
//! | `key` | any text |
//! | `size` | in bytes; a `GET` may leave it out if an earlier row gives it |
//! | `group` | may be missing or empty; rows of a group must be consecutive |
//!
//! A group is one request, due when its first row is. Its `GET`s form one read of many objects; its writes are
//! separate operations.
//!
//! All of the above is checked: a trace either replays to its end, or is refused with the number of the offending
//! line.

mod reading;
mod replay;
mod rows;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

pub use replay::{Preload, Replay, ReplayOptions};

use rows::Rows;

/// Errors in a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A line is invalid.
    #[error("line {line}: {reason}")]
    Line {
        /// Line number, from 1, including the header.
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
/// If the file cannot be read or a line is invalid.
pub fn open(path: &Path, options: ReplayOptions) -> Result<Replay, TraceError> {
    let file = File::open(path).map_err(|error| TraceError::File(error.to_string()))?;
    read(file, options)
}

/// Reads a trace. The first bytes show whether it is compressed.
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
