//! A compaction job: which segments it copies, and the segment that it fills.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;

use striate_core::ChunkId;

use super::form::{Form, PAGE};
use super::index::Location;
use super::layout;
use super::record::{ChunkRecord, Record};
use super::scan::Scanner;
use super::segment::{Segment, SegmentHeader, SegmentName};
use super::victims::Part;
use crate::filesystem::File;

/// Copies the live records of some segments, or of the end of one, into a new segment.
#[derive(Debug)]
pub(super) struct Job {
    pub name: SegmentName,
    pub temporary_path: PathBuf,
    pub file: Arc<dyn File>,
    pub len: u64,
    pub header: SegmentHeader,
    /// Parts still to be copied, in reverse order.
    pub waiting: Vec<Part>,
    pub current: Option<Victim>,
    pub done: Vec<Victim>,
    pub moved: Vec<MovedRecord>,
    /// Segments that the copied tombstones name.
    pub tombstones: Vec<u32>,
}

/// A segment, or the end of one, that is being copied.
#[derive(Debug)]
pub(super) struct Victim {
    pub part: Part,
    /// Tombstones found in the part, by the segment whose copy they cover.
    pub tombstones: BTreeMap<u32, u32>,
    pub segment: Arc<Segment>,
    pub file: Arc<dyn File>,
    pub scanner: Scanner,
}

/// A copied record.
#[derive(Clone, Copy, Debug)]
pub(super) struct MovedRecord {
    pub chunk: ChunkId,
    pub sequence: u64,
    pub from: Location,
    pub to: Location,
}

impl Job {
    /// Appends a chunk's record for its new place, with `stored` after the header; returns its offset. The pages of a
    /// paged chunk are aligned to pages of the file.
    pub fn append_chunk(&mut self, chunk: ChunkRecord, stored: &[u8]) -> io::Result<u32> {
        if chunk.form == Form::Paged
            && let Some(gap) = layout::gap(self.len, PAGE - chunk.header_len() % PAGE)
        {
            self.append(gap, &[])?;
        }
        self.append(Record::Chunk(chunk), stored)
    }

    /// Appends a record for its new place; returns its offset.
    pub fn append(&mut self, record: Record, payload: &[u8]) -> io::Result<u32> {
        let mut header = Vec::new();
        record.encode(self.name.place(self.len), &mut header);
        let padding = vec![0; record.len() as usize - header.len() - payload.len()];
        let mut parts = [IoSlice::new(&header), IoSlice::new(payload), IoSlice::new(&padding)];
        self.file.write_all_at(&mut parts, self.len)?;
        let offset = self.len as u32;
        self.len += record.len();
        Ok(offset)
    }
}
