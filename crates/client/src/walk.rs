//! Reads one page of names under a prefix, with common prefixes rolled up.
//!
//! A page costs one page of metadata: the walk starts right after the end of the last page, and seeks past every
//! common prefix instead of reading through it. Names sort by their UTF-8 bytes, as S3 lists them. Used for objects
//! and for multipart uploads, whose rows carry their id after the name.

use bytes::Bytes;
use striate_meta::store::prefix_end;
use striate_meta::{Row, ScanRange};

use crate::{Client, ClientError};

/// Number of rows of the first scan when names are rolled up, and of the first one after a seek. Doubled while
/// nothing is skipped.
const SEEK_BATCH: usize = 8;
/// Maximum number of rows of one scan.
const MAX_BATCH: usize = 1_001;

/// Parameters of a walk.
pub(crate) struct Walk<'a> {
    /// Prefix of the rows' keys, before the name.
    pub(crate) space: Bytes,
    /// Length of a row's key after the name, in bytes.
    pub(crate) tail_len: usize,
    pub(crate) prefix: &'a str,
    /// Delimiter at which names are rolled up; empty for none.
    pub(crate) delimiter: &'a str,
    /// Name after which the walk starts; empty for all.
    pub(crate) after: &'a str,
    /// Key, after `space`, at which to start instead of right after all rows of the name `after`.
    pub(crate) after_row: Option<Vec<u8>>,
    pub(crate) max: usize,
}

/// One item of a page.
#[derive(Debug)]
pub(crate) enum Item {
    /// A row and its name.
    Row(String, Row),
    /// A common prefix.
    Prefix(String),
}

/// A page of items.
pub(crate) struct WalkPage {
    pub(crate) items: Vec<Item>,
    /// True if items follow the last one.
    pub(crate) more: bool,
}

impl Walk<'_> {
    /// Returns the common prefix that `name` is rolled up into.
    fn common_prefix<'n>(&self, name: &'n str) -> Option<&'n str> {
        if self.delimiter.is_empty() {
            return None;
        }
        let rest = name.strip_prefix(self.prefix)?;
        let at = rest.find(self.delimiter)?;
        Some(&name[..self.prefix.len() + at + self.delimiter.len()])
    }

    /// Returns the key, after `space`, at which the first row may be.
    fn start(&self) -> Vec<u8> {
        if self.after.is_empty() || self.after < self.prefix {
            return self.prefix.as_bytes().to_vec();
        }
        if let Some(prefix) = self.common_prefix(self.after) {
            return prefix_end(prefix.as_bytes()).to_vec();
        }
        match &self.after_row {
            Some(row) => row.clone(),
            // Names contain no NUL: start after all rows of this name, before any longer one.
            None if self.tail_len > 0 => [self.after.as_bytes(), b"\x01"].concat(),
            None => [self.after.as_bytes(), b"\0"].concat(),
        }
    }

    fn name<'r>(&self, row: &'r Row) -> Result<&'r str, ClientError> {
        let name = row.key.get(self.space.len()..row.key.len().saturating_sub(self.tail_len));
        name.and_then(|name| std::str::from_utf8(name).ok()).ok_or_else(|| ClientError::Inconsistent {
            what: format!("row {:?}", row.key),
            reason: "its key holds no name in UTF-8".to_owned(),
        })
    }
}

impl Client {
    /// Reads one page.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(crate) async fn walk(&self, walk: &Walk<'_>) -> Result<WalkPage, ClientError> {
        let mut items = Vec::new();
        if walk.max == 0 {
            return Ok(WalkPage { items, more: false });
        }
        let end = prefix_end(&[&walk.space, walk.prefix.as_bytes()].concat());
        let mut start: Bytes = [&walk.space[..], &walk.start()].concat().into();
        let mut batch = if walk.delimiter.is_empty() { MAX_BATCH } else { SEEK_BATCH };
        let mut rolled_up: Option<String> = None;
        loop {
            let limit = batch.min(walk.max - items.len() + 1);
            if start >= end {
                return Ok(WalkPage { items, more: false });
            }
            let rows = self.inner.meta.scan(ScanRange { start, end: end.clone() }, limit).await?;
            for row in &rows {
                let name = walk.name(row)?;
                if rolled_up.as_ref().is_some_and(|prefix| name.starts_with(prefix.as_str())) {
                    continue;
                }
                if items.len() == walk.max {
                    return Ok(WalkPage { items, more: true });
                }
                rolled_up = walk.common_prefix(name).map(str::to_owned);
                items.push(match &rolled_up {
                    Some(prefix) => Item::Prefix(prefix.clone()),
                    None => Item::Row(name.to_owned(), row.clone()),
                });
            }
            let Some(last) = rows.last().filter(|_| rows.len() == limit) else {
                return Ok(WalkPage { items, more: false });
            };
            (start, batch) = match &rolled_up {
                Some(prefix) => (prefix_end(&[&walk.space, prefix.as_bytes()].concat()), SEEK_BATCH),
                None => ([&last.key[..], b"\0"].concat().into(), (batch * 2).min(MAX_BATCH)),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_starts_after_the_whole_common_prefix_that_it_ended_in() {
        let walk = |prefix, after| Walk {
            space: Bytes::from_static(b"o/b\0"),
            tail_len: 0,
            prefix,
            delimiter: "/",
            after,
            after_row: None,
            max: 1,
        };
        assert_eq!(walk("", "").start(), b"");
        assert_eq!(walk("p", "a").start(), b"p");
        assert_eq!(walk("", "a/").start(), b"a0");
        assert_eq!(walk("", "a/b").start(), b"a0");
        assert_eq!(walk("a/", "a/b").start(), b"a/b\0");
        assert_eq!(walk("a/", "a/b/").start(), b"a/b0");
    }
}
