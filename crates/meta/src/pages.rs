//! Reading a range of rows page by page.

use crate::{MetaError, MetaStore, Row, ScanRange};

/// A walk over the rows of a range. It may or may not see rows written meanwhile.
#[derive(Debug)]
pub struct RowPages {
    /// Keys that were not read yet.
    range: ScanRange,
    page_len: usize,
    has_ended: bool,
}

impl RowPages {
    /// Walks a range in pages of at most `page_len` rows.
    pub fn new(range: ScanRange, page_len: usize) -> Self {
        Self { range, page_len, has_ended: false }
    }

    /// Returns the next page; `None` after the last.
    ///
    /// # Errors
    /// When the engine fails. The next call tries again.
    pub async fn next(&mut self, meta: &dyn MetaStore) -> Result<Option<Vec<Row>>, MetaError> {
        if self.has_ended {
            return Ok(None);
        }
        let rows = meta.scan(self.range.clone(), self.page_len).await?;
        self.has_ended = rows.len() < self.page_len;
        if let Some(last) = rows.last() {
            self.range.start = [&last.key[..], b"\0"].concat().into();
        }
        Ok((!rows.is_empty()).then_some(rows))
    }
}
