//! Streams an object to a receiver: blocks from memory, and the rest from the origin.
//!
//! Bytes that are not in memory are requested in one request up to the end of the range (a *run*). So an object that is
//! replaced during the read still arrives as it was: the origin finishes the response that it began. The run is opened
//! before the receiver gets anything, even if it begins with a later block. Each block on the way that no other process
//! fills is put into memory whole ([`crate::run`]). A run that breaks off is resumed where it broke, if the object is
//! still the same.
//!
//! A receiver that takes nothing loses what was read or gathered for it ([`ParkedStream`]). When it resumes, that is
//! read from memory, a little at a time at first. The run then goes on.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use hyper::body::Incoming;
use striate_cache::{BlockFill, BlockLookup, PartialRead, ReadOutcome};
use striate_client::{ClientError, ObjectStream};
use striate_stripe::{ByteBudget, MemoryBlock, ParkedStream, PinnedShare, Share, Shrink};

use crate::head::Head;
use crate::origin_bucket::{Blocks, OriginBucket};
use crate::run::{BlockReceiver, Run, claimed};
use crate::service::Shared;
use crate::upstream::{OriginRequest, explanation, failed, has_changed};

/// Maximum length in bytes of a read from memory while the memory for bodies is small.
const LONGEST_READ: u64 = 4 << 20;
/// If it is large, reads may be as long as this fraction (one over it) of it.
const READ_PART: u64 = 16;
/// Maximum length in bytes of the next read from memory for a receiver that was idle, or not known yet while memory is
/// tight. Pieces up to this length are left to the connection's buffers.
const SHORTEST_READ: u64 = 64 << 10;
/// Maximum number of blocks that are looked up before the first bytes are read from memory. The first one that is
/// missing is requested before these are handed out.
const LOOKED_UP_FIRST: u64 = 16;
/// Factor by which the next read from memory grows when the receiver has taken one.
const GROWTH: u64 = 4;

/// One version of an object.
#[derive(Clone)]
pub(crate) struct Object {
    pub(crate) origin: Arc<OriginBucket>,
    pub(crate) key: Arc<str>,
    pub(crate) head: Arc<Head>,
    pub(crate) blocks: Blocks,
}

/// Why the bytes of an object are not available.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The object was replaced or deleted.
    Changed,
    Failed(ClientError),
}

impl From<ClientError> for ReadError {
    fn from(error: ClientError) -> Self {
        Self::Failed(error)
    }
}

/// State of a read: what the receiver has yet to get, and where the next bytes come from.
pub(crate) struct ReadState {
    shared: Arc<Shared>,
    object: Object,
    /// Range that the receiver has not got yet.
    remaining: Range<u64>,
    run: Option<Run>,
    /// A block that is being gathered: the receiver's next one that is not in memory. Until its end, the gathering task
    /// has its run.
    gathered: Option<BlockReceiver>,
    pieces: VecDeque<Bytes>,
    last_piece: usize,
    /// Bytes of the current block that the receiver gets from the origin.
    from_origin: u64,
    /// Maximum length of the next read from memory.
    read_len: u64,
    /// Memory of the pieces, if some of them came from the tier.
    share: Option<Share>,
    /// Memory of the last piece handed out, set when the receiver is found idle.
    pinned: Option<PinnedShare>,
    has_failed: bool,
    /// How the first bytes were served, once they have arrived.
    outcome: Option<ReadOutcome>,
}

impl Object {
    pub(crate) fn new(origin: &Arc<OriginBucket>, key: Arc<str>, head: &Arc<Head>) -> Self {
        let blocks = origin.blocks(&key, &head.etag, head.size);
        Self { origin: origin.clone(), key, head: head.clone(), blocks }
    }

    /// Requests a range of this version from the origin.
    pub(crate) async fn ask(&self, shared: &Shared, range: Range<u64>) -> Result<Incoming, ReadError> {
        let mut headers = HeaderMap::new();
        let value = |text: String| {
            HeaderValue::try_from(text).map_err(|error| failed(&self.origin, error.to_string()))
        };
        headers.insert(header::RANGE, value(format!("bytes={}-{}", range.start, range.end - 1))?);
        headers.insert(header::IF_MATCH, value(self.head.etag.clone())?);
        let ask = OriginRequest { method: Method::GET, key: &self.key, query: "", headers };
        let answer = shared.upstream.read(&self.origin, ask).await?;
        match answer.status() {
            StatusCode::PARTIAL_CONTENT if !begins_at(answer.headers(), range.start) => {
                return Err(failed(&self.origin, "it answers another range".to_owned()).into());
            }
            StatusCode::PARTIAL_CONTENT => {}
            StatusCode::OK if range == (0..self.head.size) => {}
            StatusCode::OK => return Err(failed(&self.origin, "it does not answer ranges".to_owned()).into()),
            status if has_changed(status) => return Err(ReadError::Changed),
            StatusCode::FORBIDDEN => {
                let endpoint = self.origin.endpoint.clone();
                return Err(ClientError::OriginDenied { endpoint, reason: explanation(answer).await }.into());
            }
            _ => return Err(failed(&self.origin, explanation(answer).await).into()),
        }
        // Not every store supports If-Match.
        match is_of(&answer, &self.head.etag) {
            true => Ok(answer.into_body()),
            false => Err(ReadError::Changed),
        }
    }
}

/// Whether a partial response begins at `start`.
pub(crate) fn begins_at(headers: &HeaderMap, start: u64) -> bool {
    let range = headers.get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
    range.is_some_and(|range| range.trim_start().starts_with(&format!("bytes {start}-")))
}

fn is_of(answer: &Response<Incoming>, etag: &str) -> bool {
    answer.headers().get(header::ETAG).is_some_and(|found| found.as_bytes() == etag.as_bytes())
}

impl ReadState {
    /// Reads `range`. A `run` that is already open begins at a block.
    pub(crate) fn new(shared: Arc<Shared>, object: Object, range: Range<u64>, run: Option<Run>) -> Self {
        let budget = shared.client.stripes().budget();
        let read_len = if budget.is_tight() { SHORTEST_READ } else { longest_read(budget) };
        Self {
            shared,
            object,
            remaining: range,
            run,
            gathered: None,
            pieces: VecDeque::new(),
            last_piece: 0,
            from_origin: 0,
            read_len,
            share: None,
            pinned: None,
            has_failed: false,
            outcome: None,
        }
    }

    /// Returns the stream of the bytes, once the first of them have arrived, and how these were served.
    ///
    /// # Errors
    /// If the first bytes are not available.
    pub(crate) async fn open(mut self) -> Result<(ObjectStream, ReadOutcome), ReadError> {
        let first = self.next_piece().await?;
        let outcome = self.outcome.unwrap_or_else(|| self.shared.cache.missed());
        let Some(first) = first else { return Ok((stream::empty().boxed(), outcome)) };
        let client = self.shared.client.clone();
        let parked = ParkedStream::new(client.runtime().clone(), client.stripes().budget(), self);
        let rest = stream::unfold(parked, ParkedStream::step);
        Ok((stream::iter([Ok(first)]).chain(rest).boxed(), outcome))
    }

    async fn next_piece(&mut self) -> Result<Option<Bytes>, ReadError> {
        let next = self.take_next().await;
        if let Err(ReadError::Failed(_)) = next {
            let end = self.object.blocks.end(self.remaining.start / self.object.blocks.len);
            self.shared.cache.failed(self.remaining.end.min(end).saturating_sub(self.remaining.start));
        }
        next
    }

    async fn take_next(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                self.remaining.start += piece.len() as u64;
                self.last_piece = piece.len();
                return Ok(Some(piece));
            }
            (self.share, self.pinned) = (None, None);
            if self.remaining.is_empty() {
                return Ok(None);
            }
            let at = self.remaining.start;
            match (&self.gathered, &self.run) {
                (Some(gathered), _) if gathered.at <= at => self.take_gathered().await?,
                (_, Some(run)) if run.at <= at && run.at < run.until => self.take_frame().await?,
                // A run that is ahead waits until what comes before it has come from memory.
                _ => self.open_block().await?,
            }
        }
    }

    /// Opens a run that begins with the first block from `next` on that is neither in memory nor on its way there.
    async fn open_ahead(&mut self, next: u64) -> Result<(), ReadError> {
        let (len, end) = (self.object.blocks.len, self.remaining.end);
        for number in (next..next + LOOKED_UP_FIRST).take_while(|number| number * len < end) {
            // One by one: each missing one of several would be granted.
            let block = [self.object.blocks.block(number)];
            match self.shared.cache.look_up(&block, false).await.pop() {
                Some(BlockLookup::There) => {}
                // The reader that fetches it fetches the next ones too.
                Some(BlockLookup::OnItsWay) => return Ok(()),
                Some(BlockLookup::Granted(fill)) => {
                    self.open_run(number * len, Some(fill)).await?;
                    // Its memory must not wait for this receiver, which waits for memory itself.
                    self.gather_block(false).await;
                    return Ok(());
                }
                Some(BlockLookup::Absent) | None => return self.open_run(number * len, None).await,
            }
        }
        Ok(())
    }

    /// Reads bytes of the next block from memory, or opens a run that begins with it.
    async fn open_block(&mut self) -> Result<(), ReadError> {
        self.count_fetched();
        self.run.take_if(|run| run.at <= self.remaining.start);
        let is_run_ahead = self.run.is_some();
        let (number, len) = (self.remaining.start / self.object.blocks.len, self.object.blocks.len);
        let (start, from) = (number * len, self.remaining.start);
        let to = self.object.blocks.end(number).min(self.remaining.end).min(from + self.read_len);
        let range_in_block = (from - start) as u32..(to - start) as u32;
        let block = self.object.blocks.block(number);
        match self.shared.cache.look_up(std::slice::from_ref(&block), true).await.pop() {
            Some(BlockLookup::There) => {
                if self.outcome.is_none() {
                    self.open_ahead(number + 1).await?;
                }
                self.read_block(&block, start, range_in_block).await
            }
            // Memory did not keep a block of a run that is ahead. It is not gathered again for the same receiver.
            Some(BlockLookup::Granted(fill)) if !is_run_ahead => self.open_run(start, Some(fill)).await,
            Some(BlockLookup::Granted(_) | BlockLookup::Absent | BlockLookup::OnItsWay) | None => {
                self.open_run(from, None).await
            }
        }
    }

    /// Reads a range of a block from memory, and fetches what memory lacks of it.
    async fn read_block(
        &mut self,
        block: &MemoryBlock,
        start: u64,
        range_in_block: Range<u32>,
    ) -> Result<(), ReadError> {
        match self.shared.cache.read(block, range_in_block.clone()).await {
            Ok(mut read) => {
                self.pieces.extend(std::mem::take(&mut read.blocks[0]));
                self.share = Some(read.into_share());
                let longest = longest_read(self.shared.client.stripes().budget());
                self.read_len = (self.read_len * GROWTH).min(longest);
                self.outcome.get_or_insert(ReadOutcome::Hit);
                Ok(())
            }
            Err(missed) => self.take_parts(start, range_in_block, missed).await,
        }
    }

    /// Requests the rest of the range from `from` on, up to the first of the next blocks that is in memory. If the
    /// first block is to be filled, the request extends to the end of the last block.
    async fn open_run(&mut self, from: u64, fill: Option<BlockFill>) -> Result<(), ReadError> {
        let blocks = &self.object.blocks;
        let last = blocks.end((self.remaining.end - 1) / blocks.len);
        let mut until = if fill.is_some() { last } else { self.remaining.end };
        let number = from / blocks.len;
        let mut lookups = self.shared.cache.look_up(&claimed(&self.object, number + 1, until), false).await;
        if let Some(in_memory) = lookups.iter().position(|lookup| matches!(lookup, BlockLookup::There)) {
            lookups.truncate(in_memory);
            until = (number + 1 + in_memory as u64) * blocks.len;
        }
        let body = self.object.ask(&self.shared, from..until).await?;
        let mut run = Run::new(body, from..until);
        if let Some(fill) = fill {
            run.claim(number, vec![BlockLookup::Granted(fill)]);
            run.claim(number + 1, lookups);
        }
        self.run = Some(run);
        Ok(())
    }

    /// Fetches the missing parts of a block of which memory has some.
    async fn take_parts(
        &mut self,
        start: u64,
        range_in_block: Range<u32>,
        missed: PartialRead,
    ) -> Result<(), ReadError> {
        let PartialRead { parts, share, mut fill } = missed;
        let Some(mut share) = share else {
            return match fill {
                Some(fill) => self.open_run(start, Some(fill)).await,
                None => self.open_run(self.remaining.start, None).await,
            };
        };
        let number = start / self.object.blocks.len;
        let all = match fill {
            Some(_) => 0..(self.object.blocks.end(number) - start) as u32,
            None => range_in_block.clone(),
        };
        let cached: u64 = parts.iter().map(|(range, _)| overlap(range, &range_in_block)).sum();
        let pieces = self.complete(start, all.clone(), parts, &mut fill).await?;
        self.shared.cache.fetched(range_in_block.len() as u64, cached);
        self.pieces.extend(cut(&pieces, (range_in_block.start - all.start) as usize, range_in_block.len()));
        self.outcome.get_or_insert(ReadOutcome::Miss);
        match fill {
            // From here on the block is in memory twice: for the receiver until it has the bytes, and for the tier.
            Some(fill) => {
                self.share = self.shared.client.stripes().budget().try_acquire(range_in_block.len());
                fill.fill(pieces, share);
            }
            None => {
                share.shrink_to(range_in_block.len());
                self.share = Some(share);
            }
        }
        Ok(())
    }

    /// Fetches what `parts` of a block lack of its range `all`.
    async fn complete(
        &self,
        start: u64,
        all: Range<u32>,
        parts: Vec<(Range<u32>, Vec<Bytes>)>,
        fill: &mut Option<BlockFill>,
    ) -> Result<Vec<Bytes>, ReadError> {
        let (mut pieces, mut at) = (Vec::new(), all.start);
        let parts = parts.into_iter().filter(|(range, _)| overlap(range, &all) > 0);
        for (range, bytes) in parts.chain([(all.end..all.end, Vec::new())]) {
            let inside = range.start.max(all.start)..range.end.min(all.end);
            if at < inside.start {
                let missing = start + u64::from(at)..start + u64::from(inside.start);
                pieces.extend(self.fetch(missing, fill).await?);
            }
            pieces.extend(cut(&bytes, (inside.start - range.start) as usize, inside.len()));
            at = inside.end;
        }
        Ok(pieces)
    }

    /// Fetches a range of the object into memory, for the receiver and for this fill.
    async fn fetch(&self, range: Range<u64>, fill: &mut Option<BlockFill>) -> Result<Vec<Bytes>, ReadError> {
        let body = self.object.ask(&self.shared, range.clone()).await?;
        let (mut run, mut pieces) = (Run::new(body, range), Vec::new());
        while run.at < run.until {
            match run.next_bytes(&self.shared, run.until).await {
                Ok(bytes) => {
                    pieces.push(bytes);
                    fill.iter_mut().for_each(BlockFill::renew);
                }
                Err(reason) => run.take_up_again(&self.shared, &self.object, reason).await?,
            }
        }
        Ok(pieces)
    }

    /// Takes the next bytes that the origin sends, or has a block gathered.
    async fn take_frame(&mut self) -> Result<(), ReadError> {
        self.gather_block(true).await;
        let Some(mut run) = self.run.take() else { return Ok(()) };
        let (at, end) = (run.at, self.object.blocks.end(run.at / self.object.blocks.len));
        match run.next_bytes(&self.shared, end.min(run.until)).await {
            Ok(piece) => self.hand_on(at, piece),
            Err(reason) => run.take_up_again(&self.shared, &self.object, reason).await?,
        }
        self.run = Some(run);
        Ok(())
    }

    /// Has the block gathered that the run has reached, if its fill is granted and memory is free. The gathering task
    /// then has the run. Unless the receiver takes the block as it comes, it will read it from memory.
    async fn gather_block(&mut self, is_taken: bool) {
        let Some(mut run) = self.run.take() else { return };
        run.claim_ahead(&self.shared, &self.object).await;
        let number = run.at / self.object.blocks.len;
        let block = number * self.object.blocks.len..self.object.blocks.end(number);
        if run.at == block.start {
            run.begin_block(&self.shared, number, block);
        }
        match run.gather(&self.shared, &self.object, is_taken) {
            Ok(gathered) => self.gathered = Some(gathered),
            Err(run) => self.run = Some(*run),
        }
    }

    /// Takes the next piece of the block that is being gathered, or the run after its last piece.
    async fn take_gathered(&mut self) -> Result<(), ReadError> {
        let Some(gathered) = &mut self.gathered else { return Ok(()) };
        match gathered.next().await {
            Some((at, piece)) => self.hand_on(at, piece),
            None => {
                self.run = Some(gathered.run().await?);
                self.gathered = None;
            }
        }
        Ok(())
    }

    /// Passes on the part of a piece from the origin that the receiver wants.
    fn hand_on(&mut self, at: u64, piece: Bytes) {
        let piece_end = at + piece.len() as u64;
        let (from, to) = (at.max(self.remaining.start), piece_end.min(self.remaining.end));
        if from < to {
            self.pieces.push_back(piece.slice((from - at) as usize..(to - at) as usize));
            self.from_origin += to - from;
            self.outcome.get_or_insert_with(|| self.shared.cache.missed());
        }
        if piece_end.is_multiple_of(self.object.blocks.len) || piece_end >= self.remaining.end {
            self.count_fetched();
        }
    }

    /// Counts what the receiver got of the current block from the origin.
    fn count_fetched(&mut self) {
        if self.from_origin > 0 {
            self.shared.cache.fetched(std::mem::take(&mut self.from_origin), 0);
        }
    }
}

impl Shrink for ReadState {
    type Item = Result<Bytes, ClientError>;

    async fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let piece = self.next_piece().await.map_err(|error| broken_off(&self.object, error));
        self.has_failed = piece.is_err();
        piece.transpose()
    }

    /// Drops what was not handed out. The piece handed out last still counts, unless it is small enough to be left to
    /// the connection's buffers.
    fn shrink(&mut self) {
        let budget = self.shared.client.stripes().budget();
        let share = self.share.take().filter(|_| self.last_piece as u64 > SHORTEST_READ);
        self.pinned = share.map(|share| budget.pin(share, self.last_piece)).or(self.pinned.take());
        self.pieces.clear();
        self.run.iter_mut().for_each(Run::let_go);
        self.gathered.iter_mut().for_each(BlockReceiver::let_go);
        self.read_len = SHORTEST_READ;
    }
}

/// Maximum length of a read from memory, so that a few receivers do not take all of the memory for bodies.
fn longest_read(budget: &ByteBudget) -> u64 {
    LONGEST_READ.max(budget.total() as u64 / READ_PART)
}

/// Number of bytes that are in both ranges.
fn overlap(one: &Range<u32>, other: &Range<u32>) -> u64 {
    one.end.min(other.end).saturating_sub(one.start.max(other.start)).into()
}

/// Returns `len` bytes of the pieces, after the first `skipped`.
fn cut(pieces: &[Bytes], skipped: usize, len: usize) -> Vec<Bytes> {
    let (mut at, mut cut) = (0, Vec::new());
    for piece in pieces {
        let (from, to) = (at.max(skipped), (at + piece.len()).min(skipped + len));
        if from < to {
            cut.push(piece.slice(from - at..to - at));
        }
        at += piece.len();
    }
    cut
}

/// The error of a response that has begun.
fn broken_off(object: &Object, error: ReadError) -> ClientError {
    match error {
        ReadError::Failed(error) => error,
        ReadError::Changed => failed(&object.origin, "the object was replaced while it was read".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_where_they_are_wanted() {
        let pieces = [Bytes::from_static(b"abc"), Bytes::from_static(b"defg")];
        let cut = |skipped, len| super::cut(&pieces, skipped, len).concat();
        assert_eq!(cut(0, 7), b"abcdefg");
        assert_eq!(cut(2, 3), b"cde");
        assert_eq!(cut(3, 4), b"defg");
        assert_eq!(cut(5, 0), b"");
    }
}
