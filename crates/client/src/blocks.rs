//! Walks the blocks that hold a range of an object, in order, page by page.
//!
//! Small objects list their blocks in their own record. Larger ones keep them in rows: a segment's block rows, or the
//! part rows of a multipart object, each of which lists blocks or names a segment. However large the object, only one
//! page of rows is in memory.

use std::collections::VecDeque;
use std::ops::Range;

use striate_meta::records::{
    Block, ManifestSegment, MemoryBlocks, PartRun, UploadPart, UploadedParts, object::Body, upload_part,
};
use striate_meta::{ScanRange, keys};
use striate_stripe::{Span, StoredBytes, StripeError, id16};

use crate::record::{self, ShowParts};
use crate::{Client, ClientError};

/// Number of block rows read at once.
const BLOCK_PAGE: u32 = 64;
/// Number of part rows read at once.
const PART_PAGE: usize = 32;

/// Work left to be turned into spans.
#[derive(Debug)]
enum Work {
    Span(Span),
    Segment {
        segment: ManifestSegment,
        range: Range<u64>,
    },
    /// Parts from the first of `runs` on; `range` is relative to the start of `runs`.
    Parts {
        upload: [u8; 16],
        runs: VecDeque<PartRun>,
        range: Range<u64>,
    },
}

/// Walks over the blocks of a range.
pub(crate) struct BlockWalk {
    client: Client,
    /// Remaining work, in order.
    work: VecDeque<Work>,
}

/// Returns the error for a row that a record names and that is gone.
pub(crate) fn gone(what: String) -> ClientError {
    ClientError::Inconsistent {
        what,
        reason: "its row is gone; the object was replaced meanwhile".to_owned(),
    }
}

/// Returns the blocks among `blocks` that overlap `range`, as spans.
pub(crate) fn spans(blocks: Vec<Block>, range: Range<u64>) -> impl Iterator<Item = Span> {
    overlapping(blocks.into_iter().map(StoredBytes::from), range)
}

/// Returns the blocks in memory that overlap `range`, as spans.
///
/// # Errors
/// [`ClientError::Inconsistent`] for malformed names.
pub(crate) fn memory_spans(
    list: &MemoryBlocks,
    range: Range<u64>,
) -> Result<impl Iterator<Item = Span> + use<>, ClientError> {
    let blocks = list.blocks.iter().map(|block| Ok(StoredBytes::Memory(block.try_into()?)));
    Ok(overlapping(blocks.collect::<Result<Vec<_>, StripeError>>()?.into_iter(), range))
}

fn overlapping(blocks: impl Iterator<Item = StoredBytes>, range: Range<u64>) -> impl Iterator<Item = Span> {
    let mut at = 0;
    blocks.filter_map(move |stored| {
        let (start, end) = (at, at + u64::from(stored.len()));
        at = end;
        let (from, to) = (range.start.max(start), range.end.min(end));
        (from < to).then(|| Span { of: stored, range: (from - start) as u32..(to - start) as u32 })
    })
}

impl Client {
    /// Returns the blocks of an object in order, or its extent, as [`Client::read_blocks`] takes them; all of them
    /// are in memory. Empty if the object is kept inline in its record.
    ///
    /// # Errors
    /// [`ClientError::NoSuchKey`], [`ClientError::NoSuchBucket`], or when the metadata cannot be read.
    pub async fn blocks_of(&self, bucket: &str, key: &str) -> Result<Vec<StoredBytes>, ClientError> {
        let object = self.current_object(bucket, key).await?;
        let (info, body) =
            record::open(key.to_owned(), object, self.inner.stripes.profiles(), ShowParts::No)?;
        let mut walk = BlockWalk::new(self.clone(), body, 0..info.size)?;
        let mut blocks = Vec::new();
        while let Some(span) = walk.next().await? {
            blocks.push(span.of);
        }
        Ok(blocks)
    }
}

impl BlockWalk {
    /// Walks over `range` of an object's body, which is not inline.
    ///
    /// # Errors
    /// [`ClientError::Inconsistent`] for malformed ids.
    pub(crate) fn new(client: Client, body: Body, range: Range<u64>) -> Result<Self, ClientError> {
        let mut walk = Self { client, work: VecDeque::new() };
        match body {
            Body::Inline(_) => {}
            Body::Blocks(list) => walk.work.extend(spans(list.blocks, range).map(Work::Span)),
            Body::Memory(list) => walk.work.extend(memory_spans(&list, range)?.map(Work::Span)),
            Body::Manifest(manifest) => walk.add_segments(manifest.segments, range),
            Body::Uploaded(UploadedParts { upload, runs }) => {
                let upload = id16(&upload, "an upload")?;
                walk.work.push_back(Work::Parts { upload, runs: runs.into(), range });
            }
            Body::Extent(extent) => {
                let range = range.start as u32..range.end.min(u64::from(extent.len)) as u32;
                walk.work.push_back(Work::Span(Span { of: extent.into(), range }));
            }
        }
        Ok(walk)
    }

    fn add_segments(&mut self, segments: Vec<ManifestSegment>, range: Range<u64>) {
        let mut at = 0;
        for segment in segments {
            let (start, end) = (at, at + segment.size);
            at = end;
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                self.work.push_back(Work::Segment { segment, range: from - start..to - start });
            }
        }
    }

    /// Returns the next block; `None` after the last.
    ///
    /// # Errors
    /// [`ClientError::Inconsistent`] when rows are gone because the object was replaced.
    pub(crate) async fn next(&mut self) -> Result<Option<Span>, ClientError> {
        loop {
            match self.work.pop_front() {
                None => return Ok(None),
                Some(Work::Span(span)) => return Ok(Some(span)),
                Some(Work::Segment { segment, range }) => self.open_segment(segment, range).await?,
                Some(Work::Parts { upload, runs, range }) => self.open_parts(upload, runs, range).await?,
            }
        }
    }

    /// Reads the next page of a segment's blocks.
    async fn open_segment(&mut self, segment: ManifestSegment, range: Range<u64>) -> Result<(), ClientError> {
        let id = id16(&segment.id, "a segment")?;
        let block_len = u64::from(segment.block_len.max(1));
        let first = (range.start / block_len) as u32;
        let last = range.end.div_ceil(block_len) as u32;
        let page_end = last.min(first.saturating_add(BLOCK_PAGE));
        let count = (page_end - first) as usize;
        let scan = ScanRange { start: keys::block(&id, first), end: keys::block(&id, page_end) };
        let rows = self.client.inner.meta.scan(scan, count).await?;
        if rows.len() != count {
            return Err(gone(format!("segment {}", hex::encode(id))));
        }
        let blocks = rows.iter().map(|row| row.record()).collect::<Result<Vec<Block>, _>>()?;
        let (base, page_end_at) = (u64::from(first) * block_len, u64::from(page_end) * block_len);
        let range_in_page = range.start - base..range.end.min(page_end_at) - base;
        if page_end < last {
            self.work.push_front(Work::Segment { segment, range: page_end_at..range.end });
        }
        self.put_in_front(spans(blocks, range_in_page));
        Ok(())
    }

    /// Reads the next page of a multipart object's parts.
    async fn open_parts(
        &mut self,
        upload: [u8; 16],
        mut runs: VecDeque<PartRun>,
        mut range: Range<u64>,
    ) -> Result<(), ClientError> {
        let page = part_page(&mut runs, &mut range);
        if page.is_empty() {
            return Ok(());
        }
        let keys: Vec<_> = page.iter().map(|(number, _)| keys::part(&upload, *number)).collect();
        let rows = self.client.inner.meta.get_many(&keys).await?;
        if range.start < range.end && !runs.is_empty() {
            self.work.push_front(Work::Parts { upload, runs, range });
        }
        for ((number, part_range), row) in page.into_iter().zip(rows).rev() {
            let row = row.ok_or_else(|| gone(format!("part {number} of upload {}", hex::encode(upload))))?;
            self.open_part(row.record()?, part_range)?;
        }
        Ok(())
    }

    /// Puts the blocks of a part in front of the remaining work.
    fn open_part(&mut self, part: UploadPart, range: Range<u64>) -> Result<(), ClientError> {
        match part.body {
            Some(upload_part::Body::Blocks(list)) => self.put_in_front(spans(list.blocks, range)),
            Some(upload_part::Body::Memory(list)) => self.put_in_front(memory_spans(&list, range)?),
            Some(upload_part::Body::Segment(segment)) if range.start < range.end => {
                self.work.push_front(Work::Segment { segment, range });
            }
            _ => {}
        }
        Ok(())
    }

    fn put_in_front(&mut self, spans: impl Iterator<Item = Span>) {
        for span in spans.collect::<Vec<_>>().into_iter().rev() {
            self.work.push_front(Work::Span(span));
        }
    }
}

/// Takes the next page of parts off the front of `runs` and of `range`: their numbers, and the range wanted of each.
fn part_page(runs: &mut VecDeque<PartRun>, range: &mut Range<u64>) -> Vec<(u32, Range<u64>)> {
    let mut page = Vec::new();
    while page.len() < PART_PAGE && range.start < range.end {
        let Some(run) = runs.front_mut() else { break };
        let skipped = range.start.checked_div(run.size).unwrap_or(0).min(u64::from(run.count));
        run.first_number += skipped as u32;
        run.count -= skipped as u32;
        *range = range.start - skipped * run.size..range.end - skipped * run.size;
        if run.count == 0 {
            runs.pop_front();
            continue;
        }
        page.push((run.first_number, range.start..range.end.min(run.size)));
        run.first_number += 1;
        run.count -= 1;
        *range = 0..range.end.saturating_sub(run.size);
    }
    page
}
