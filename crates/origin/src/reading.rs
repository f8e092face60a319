//! An object's bytes on their way to a receiver: blocks from memory, and the rest from the origin.
//!
//! What is not in memory is asked for in one request up to the end of what is wanted (a *run*), so that an object which is replaced while
//! it is read is still answered as it was: the origin sends on what it has begun. On its way through, each block that nobody else
//! fills is put into memory, whole. A run that breaks off is taken up again where it broke, if the object is still the same.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use striate_cache::{BlockFill, Looked, Missed};
use striate_client::{ClientError, ObjectStream};
use striate_runtime::Runtime;
use striate_stripe::{BlocksRead, Share};

use crate::counts::add;
use crate::head::Head;
use crate::opened::{Blocks, Opened};
use crate::service::Shared;
use crate::upstream::{Ask, explanation, failed, has_changed};

/// Blocks whose filling is asked for at once.
const CLAIMED_AHEAD: u64 = 4;
/// How often a run is taken up again.
const MOST_BREAKS: u32 = 3;
/// An origin that is asked for bytes and sends none for so long is asked again for the rest.
const SILENT_FOR: Duration = Duration::from_secs(30);
/// A block that is half there when its receiver leaves is fetched to its end within this time, or given up.
const FINISH_WITHIN: Duration = Duration::from_secs(30);

/// One version of an object.
#[derive(Clone)]
pub(crate) struct Object {
    pub(crate) origin: Arc<Opened>,
    pub(crate) key: Arc<str>,
    pub(crate) head: Arc<Head>,
    pub(crate) blocks: Blocks,
}

/// Why bytes cannot be had.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The object is another one by now, or gone.
    Changed,
    Failed(ClientError),
}

impl From<ClientError> for ReadError {
    fn from(error: ClientError) -> Self {
        Self::Failed(error)
    }
}

/// What the origin sends.
pub(crate) struct Run {
    body: Incoming,
    /// Where in the object its next byte is, and where it ends.
    at: u64,
    until: u64,
    /// Blocks that are to be filled, by their numbers, ascending; blocks before `looked_to` were looked at.
    claims: VecDeque<(u64, BlockFill)>,
    looked_to: u64,
    filling: Option<Filling>,
    /// Bytes of the current block that the receiver gets.
    wanted: u64,
    breaks: u32,
}

/// A block that is gathered to be put into memory.
struct Filling {
    fill: BlockFill,
    pieces: Vec<Bytes>,
    end: u64,
    share: Share,
}

/// See the module's documentation.
pub(crate) struct Reading {
    shared: Arc<Shared>,
    object: Object,
    /// What the receiver has not got yet.
    left: Range<u64>,
    run: Option<Run>,
    pieces: VecDeque<Bytes>,
    /// The memory of these, where they came out of the tier,
    read: Option<BlocksRead>,
    /// and where parts of a block did.
    share: Option<Share>,
    /// Whether the first bytes came from memory, once they are there.
    is_hit: Option<bool>,
}

impl Run {
    pub(crate) fn new(body: Incoming, range: Range<u64>) -> Self {
        Self {
            body,
            at: range.start,
            until: range.end,
            claims: VecDeque::new(),
            looked_to: 0,
            filling: None,
            wanted: 0,
            breaks: 0,
        }
    }
}

impl Object {
    /// Asks the origin for a range of this version.
    async fn ask(&self, shared: &Shared, range: Range<u64>) -> Result<Incoming, ReadError> {
        let mut headers = HeaderMap::new();
        let value = |text: String| {
            HeaderValue::try_from(text).map_err(|error| failed(&self.origin, error.to_string()))
        };
        headers.insert(header::RANGE, value(format!("bytes={}-{}", range.start, range.end - 1))?);
        headers.insert(header::IF_MATCH, value(self.head.etag.clone())?);
        let ask = Ask { method: Method::GET, key: &self.key, query: "", headers };
        let answer = shared.upstream.read(&self.origin, ask).await?;
        match answer.status() {
            StatusCode::PARTIAL_CONTENT if !begins_at(answer.headers(), range.start) => {
                return Err(failed(&self.origin, "it answers another range".to_owned()).into());
            }
            StatusCode::PARTIAL_CONTENT => {}
            StatusCode::OK if range == (0..self.head.size) => {}
            StatusCode::OK => return Err(failed(&self.origin, "it does not answer ranges".to_owned()).into()),
            status if has_changed(status) => return Err(ReadError::Changed),
            _ => return Err(failed(&self.origin, explanation(answer).await).into()),
        }
        // Not every store knows If-Match.
        match is_of(&answer, &self.head.etag) {
            true => Ok(answer.into_body()),
            false => Err(ReadError::Changed),
        }
    }
}

/// Whether the bytes of a partial answer begin where they are to.
pub(crate) fn begins_at(headers: &HeaderMap, start: u64) -> bool {
    let range = headers.get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
    range.is_some_and(|range| range.trim_start().starts_with(&format!("bytes {start}-")))
}

fn is_of(answer: &Response<Incoming>, etag: &str) -> bool {
    answer.headers().get(header::ETAG).is_some_and(|found| found.as_bytes() == etag.as_bytes())
}

impl Reading {
    /// Of `range`; a run that is open already begins at a block.
    pub(crate) fn new(shared: Arc<Shared>, object: Object, range: Range<u64>, run: Option<Run>) -> Self {
        Self {
            shared,
            object,
            left: range,
            run,
            pieces: VecDeque::new(),
            read: None,
            share: None,
            is_hit: None,
        }
    }

    /// The stream of its bytes, the first of which are at hand. Answers too whether these came from memory.
    ///
    /// # Errors
    /// When they cannot be had.
    pub(crate) async fn open(mut self) -> Result<(ObjectStream, bool), ReadError> {
        let Some(first) = self.next().await? else { return Ok((stream::empty().boxed(), false)) };
        let is_hit = self.is_hit == Some(true);
        let rest = stream::unfold(Some(self), |reading| async move {
            let mut reading = reading?;
            match reading.next().await {
                Ok(piece) => piece.map(|piece| (Ok(piece), Some(reading))),
                Err(error) => Some((Err(broken_off(&reading.object, error)), None)),
            }
        });
        Ok((stream::iter([Ok(first)]).chain(rest).boxed(), is_hit))
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        let next = self.take_next().await;
        if let Err(ReadError::Failed(_)) = next {
            let end = self.object.blocks.end(self.left.start / self.object.blocks.len);
            self.shared.cache.failed(self.left.end.min(end).saturating_sub(self.left.start));
        }
        next
    }

    async fn take_next(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                self.left.start += piece.len() as u64;
                return Ok(Some(piece));
            }
            (self.read, self.share) = (None, None);
            if self.left.is_empty() {
                return Ok(None);
            }
            match &self.run {
                Some(run) if run.at < run.until => self.take_frame().await?,
                _ => self.open_block().await?,
            }
        }
    }

    /// Reads the next block out of memory, or opens a run from there.
    async fn open_block(&mut self) -> Result<(), ReadError> {
        self.run = None;
        let (number, len) = (self.left.start / self.object.blocks.len, self.object.blocks.len);
        let (start, end) = (number * len, self.object.blocks.end(number));
        let wanted = (self.left.start - start) as u32..(self.left.end.min(end) - start) as u32;
        let block = self.object.blocks.block(number);
        match self.shared.cache.look(std::slice::from_ref(&block), true).await.pop() {
            Some(Looked::There) => match self.shared.cache.read(&block, wanted.clone()).await {
                Ok(mut read) => {
                    self.pieces.extend(std::mem::take(&mut read.blocks[0]));
                    self.is_hit.get_or_insert(true);
                    self.read = Some(read);
                    Ok(())
                }
                Err(missed) => self.take_parts(start, wanted, missed).await,
            },
            Some(Looked::Granted(fill)) => self.open_run(start, Some(fill)).await,
            Some(Looked::Absent | Looked::OnItsWay) | None => self.open_run(self.left.start, None).await,
        }
    }

    /// Asks the origin for all that is wanted from `from` on, up to a block that is in memory, if one of the next ones is; and to the end
    /// of the last block where it begins with one that is to be filled.
    async fn open_run(&mut self, from: u64, fill: Option<BlockFill>) -> Result<(), ReadError> {
        let blocks = &self.object.blocks;
        let last = blocks.end((self.left.end - 1) / blocks.len);
        let mut until = if fill.is_some() { last } else { self.left.end };
        let number = from / blocks.len;
        let mut looked = self.shared.cache.look(&claimed(&self.object, number + 1, until), false).await;
        if let Some(there) = looked.iter().position(|looked| matches!(looked, Looked::There)) {
            looked.truncate(there);
            until = (number + 1 + there as u64) * blocks.len;
        }
        let body = self.object.ask(&self.shared, from..until).await?;
        let mut run = Run::new(body, from..until);
        run.claim(number, fill.map(Looked::Granted).into_iter().collect());
        run.claim(number + 1, looked);
        self.run = Some(run);
        Ok(())
    }

    /// Fetches what is missing of a block of which memory has parts.
    async fn take_parts(&mut self, start: u64, wanted: Range<u32>, missed: Missed) -> Result<(), ReadError> {
        let Missed { parts, fill } = missed;
        if parts.is_empty() {
            return match fill {
                Some(fill) => self.open_run(start, Some(fill)).await,
                None => self.open_run(self.left.start, None).await,
            };
        }
        let number = start / self.object.blocks.len;
        let all = match fill {
            Some(_) => 0..(self.object.blocks.end(number) - start) as u32,
            None => wanted.clone(),
        };
        let budget = self.shared.client.stripes().budget();
        let share = budget.acquire(all.len()).await.map_err(ClientError::from)?;
        let (mut pieces, mut at, mut cached) = (Vec::new(), all.start, 0);
        let overlaps = |(range, _): &(Range<u32>, Vec<Bytes>)| range.start < all.end && all.start < range.end;
        let parts = parts.into_iter().filter(overlaps);
        for (range, had) in parts.chain([(all.end..all.end, Vec::new())]) {
            let inside = range.start.max(all.start)..range.end.min(all.end);
            if at < inside.start {
                pieces.extend(self.fetch(start + u64::from(at)..start + u64::from(inside.start)).await?);
            }
            pieces.extend(cut(&had, (inside.start - range.start) as usize, inside.len()));
            at = inside.end;
            cached += inside.len() as u64;
        }
        self.shared.cache.fetched(wanted.len() as u64, cached.min(wanted.len() as u64 - 1));
        self.pieces.extend(cut(&pieces, (wanted.start - all.start) as usize, wanted.len()));
        self.is_hit.get_or_insert(false);
        match fill {
            // The block is in memory twice as it were: for the receiver as long as that takes, and for the tier.
            Some(fill) => {
                self.share = budget.try_acquire(wanted.len());
                fill.fill(pieces, share);
            }
            None => self.share = Some(share),
        }
        Ok(())
    }

    /// A range of the object, all of it in memory.
    async fn fetch(&self, range: Range<u64>) -> Result<Vec<Bytes>, ReadError> {
        let body = self.object.ask(&self.shared, range.clone()).await?;
        let (mut run, mut pieces) = (Run::new(body, range), Vec::new());
        while run.at < run.until {
            let bytes = next_bytes(self.shared.client.runtime(), &mut run).await;
            let mut bytes = bytes.map_err(|reason| failed(&self.object.origin, reason))?;
            add(&self.shared.upstream.counts.bytes, bytes.len() as u64);
            bytes.truncate(usize::try_from(run.until - run.at).unwrap_or(usize::MAX));
            run.at += bytes.len() as u64;
            pieces.push(bytes);
        }
        Ok(pieces)
    }

    /// Takes what the origin has sent.
    async fn take_frame(&mut self) -> Result<(), ReadError> {
        self.claim_ahead().await;
        let Some(run) = &mut self.run else { return Ok(()) };
        let mut bytes = match next_bytes(self.shared.client.runtime(), run).await {
            Ok(bytes) => bytes,
            Err(reason) => return self.take_up_again(reason).await,
        };
        add(&self.shared.upstream.counts.bytes, bytes.len() as u64);
        bytes.truncate(usize::try_from(run.until - run.at).unwrap_or(usize::MAX));
        while !bytes.is_empty() {
            let number = run.at / self.object.blocks.len;
            let (start, end) = (number * self.object.blocks.len, self.object.blocks.end(number));
            if run.at == start {
                run.begin_block(&self.shared, number, start..end);
            }
            let piece = bytes.split_to(bytes.len().min((end - run.at) as usize));
            let at = run.at..run.at + piece.len() as u64;
            run.at = at.end;
            let (from, to) = (at.start.max(self.left.start), at.end.min(self.left.end));
            if from < to {
                self.pieces.push_back(piece.slice((from - at.start) as usize..(to - at.start) as usize));
                run.wanted += to - from;
                self.is_hit.get_or_insert(false);
            }
            if run.wanted > 0 && (at.end == end || at.end >= self.left.end) {
                self.shared.cache.fetched(std::mem::take(&mut run.wanted), 0);
            }
            run.gather(piece);
        }
        Ok(())
    }

    /// Asks for the right to fill the next blocks of a run, before it reaches the first of them.
    async fn claim_ahead(&mut self) {
        let Some(run) = &mut self.run else { return };
        let len = self.object.blocks.len;
        let next = run.at.div_ceil(len);
        if run.at == next * len && next >= run.looked_to {
            let looked = self.shared.cache.look(&claimed(&self.object, next, run.until), false).await;
            run.claim(next, looked);
        }
    }

    /// Asks for the rest of a run that has broken off.
    async fn take_up_again(&mut self, reason: String) -> Result<(), ReadError> {
        let Some(run) = &mut self.run else { return Ok(()) };
        run.breaks += 1;
        if run.breaks > MOST_BREAKS {
            return Err(failed(&self.object.origin, reason).into());
        }
        tracing::debug!(
            key = &*self.object.key,
            at = run.at,
            reason,
            "an answer of an origin broke off; asking for the rest"
        );
        run.body = self.object.ask(&self.shared, run.at..run.until).await?;
        Ok(())
    }
}

/// The next bytes of a run; an error where there should be some and are none.
async fn next_bytes(runtime: &Runtime, run: &mut Run) -> Result<Bytes, String> {
    loop {
        let Ok(frame) = runtime.timeout(SILENT_FOR, run.body.frame()).await else {
            return Err(format!("it has sent nothing for {} s", SILENT_FOR.as_secs()));
        };
        match frame {
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(bytes);
                }
            }
            Some(Err(error)) => return Err(format!("its answer broke off: {error}")),
            None => return Err("its answer ended early".to_owned()),
        }
    }
}

impl Run {
    /// The run, if it is wanted: who fills its first block reads it; a block that is in memory, or on its way, is read there.
    pub(crate) async fn settle(mut self, shared: &Shared, object: &Object) -> Option<Self> {
        let number = self.at / object.blocks.len;
        let looked = shared.cache.look(&claimed(object, number, self.until), false).await;
        match looked.first() {
            Some(Looked::There | Looked::OnItsWay) => None,
            Some(Looked::Granted(_) | Looked::Absent) | None => {
                self.claim(number, looked);
                Some(self)
            }
        }
    }

    /// Records what was found out about the blocks from `number` on: some of them are to be filled.
    fn claim(&mut self, number: u64, looked: Vec<Looked>) {
        self.looked_to = number + looked.len() as u64;
        for (number, looked) in (number..).zip(looked) {
            if let Looked::Granted(fill) = looked {
                self.claims.push_back((number, fill));
            }
        }
    }

    /// The next byte is the first of a block: gathers it, if it is to be filled and there is memory for it.
    fn begin_block(&mut self, shared: &Shared, number: u64, block: Range<u64>) {
        self.filling = None;
        while self.claims.front().is_some_and(|(claimed, _)| *claimed < number) {
            self.claims.pop_front();
        }
        let is_claimed = |(claimed, _): &mut (u64, BlockFill)| *claimed == number && block.end <= self.until;
        let Some((_, fill)) = self.claims.pop_front_if(is_claimed) else { return };
        let share = shared.client.stripes().budget().try_acquire((block.end - block.start) as usize);
        self.filling = share.map(|share| Filling { fill, pieces: Vec::new(), end: block.end, share });
    }

    fn gather(&mut self, piece: Bytes) {
        let Some(filling) = &mut self.filling else { return };
        filling.pieces.push(piece);
        if self.at == filling.end
            && let Some(Filling { fill, pieces, share, .. }) = self.filling.take()
        {
            fill.fill(pieces, share);
        }
    }

    /// Takes the rest of the block that is being gathered.
    async fn finish_block(mut self, runtime: Runtime) {
        // Of the next blocks others may have the right.
        self.claims.clear();
        while let Some(filling) = &self.filling {
            let end = filling.end;
            let Ok(mut bytes) = next_bytes(&runtime, &mut self).await else { return };
            bytes.truncate((end - self.at) as usize);
            self.at += bytes.len() as u64;
            self.gather(bytes);
        }
    }
}

impl Drop for Reading {
    /// A block that is half there is fetched to its end: the next reader will want it.
    fn drop(&mut self) {
        let Some(run) = self.run.take().filter(|run| run.filling.is_some()) else { return };
        let runtime = self.shared.client.runtime().clone();
        let finishing = run.finish_block(runtime.clone());
        // What is not there in time is fetched again by whoever wants it.
        self.shared.client.runtime().spawn(async move { runtime.timeout(FINISH_WITHIN, finishing).await });
    }
}

/// The blocks from `number` on whose filling is asked for: those that a run up to `until` has all of.
fn claimed(object: &Object, number: u64, until: u64) -> Vec<striate_stripe::MemoryBlock> {
    let numbers = (number..number + CLAIMED_AHEAD)
        .take_while(|number| number * object.blocks.len < until && object.blocks.end(*number) <= until);
    numbers.map(|number| object.blocks.block(number)).collect()
}

/// `len` bytes of pieces, after the first `skipped`.
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

/// The error of an answer that has begun.
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
