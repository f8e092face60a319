//! The stripes of a query while their chunks arrive.
//!
//! Requests to a stripe, and the bytes that arrived, are kept by chunk and columns, so that its pieces share them: a
//! chunk that was requested whole serves every piece that needs columns of it.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use striate_codec::{ChunkSet, crc32c_append};
use striate_core::{ChunkRange, Generation, SiteId};
use striate_meta::records::Copy;
use striate_plan::QueryPiece;
use striate_runtime::{Buffer, BufferPool};
use striate_site::SiteError;

use super::span::{PieceShape, StoredBytes};
use crate::error::StripeError;
use crate::table::OpenedStripe;

/// A stripe of a query.
pub(super) struct StripeRead {
    pub(super) stripe: Arc<OpenedStripe>,
    /// True if the record was not read for this query: it may be out of date.
    pub(super) is_remembered: bool,
    sites: Vec<SiteId>,
    /// Copies of the chunks, ordered by chunk.
    copies: Vec<Copy>,
    /// Sites of `copies`; 0 for a copy that must not be requested again.
    copy_sites: Vec<SiteId>,
    /// Counts restarts with a new record. Replies to requests of an earlier turn are ignored.
    pub(super) turn: u32,
    pub(super) requests: Vec<ChunkRequest>,
    /// True while the record is looked up again.
    pub(super) is_looked_up: bool,
    /// Durable copy of a cached form that cannot be completed, once it is found and until it is read.
    pub(super) durable: Option<Arc<OpenedStripe>>,
}

/// A request for columns of a chunk.
pub(super) struct ChunkRequest {
    index: usize,
    /// Position of the requested copy among the stripe's copies; `None` for the chunk itself.
    copy: Option<usize>,
    /// True if no site was asked: the columns are computed from the chunk's wide stripe.
    is_computed: bool,
    columns: Range<u32>,
    state: State,
}

/// How to obtain chunks that their stripe does not determine; each with its position in the stripe's `requests`.
pub(super) struct DetourRequests {
    /// Requests to sites.
    pub(super) requests: Vec<(SiteId, usize, ChunkRange)>,
    /// Chunks to compute from wide stripes.
    pub(super) computed: Vec<(usize, usize)>,
}

enum State {
    /// In flight.
    Awaited,
    /// In flight; replacement requests were already sent.
    Late,
    Arrived(Bytes),
    Failed(SiteError),
}

/// A piece of a query.
pub(super) struct Piece {
    /// Position of the piece's stripe in the query.
    pub(super) stripe: usize,
    pub(super) shape: PieceShape,
    /// Columns of the wanted chunks, in order, once determined.
    pub(super) chunks: Option<Vec<Bytes>>,
    /// Position of the span whose whole block or extent this piece is.
    pub(super) whole_of: Option<usize>,
    /// Why the piece is unavailable.
    pub(super) error: Option<StripeError>,
    /// True for a piece of a cached form that other pieces have replaced.
    pub(super) is_replaced: bool,
}

impl StripeRead {
    /// Creates the state of a stripe without any requests.
    pub(super) fn new(stripe: Arc<OpenedStripe>, is_remembered: bool) -> Self {
        let sites = stripe.record.locations.iter().map(|location| SiteId(location.site)).collect();
        let copies = true_copies(&stripe);
        let copy_sites = copies.iter().map(|copy| SiteId(copy.site)).collect();
        Self {
            stripe,
            is_remembered,
            sites,
            copies,
            copy_sites,
            turn: 0,
            requests: Vec::new(),
            is_looked_up: false,
            durable: None,
        }
    }

    /// Starts again with another record.
    pub(super) fn restart(&mut self, stripe: Arc<OpenedStripe>) {
        *self = Self { turn: self.turn + 1, ..Self::new(stripe, false) };
    }

    /// Returns the state of a piece, as the input of a plan for the rest of it.
    pub(super) fn for_plan(&self, shape: &PieceShape) -> QueryPiece<'_> {
        let (mut requested, mut awaited) = (ChunkSet::EMPTY, ChunkSet::EMPTY);
        for request in self.covering(&shape.columns) {
            let counts = matches!(request.state, State::Awaited | State::Arrived(_));
            if counts {
                awaited.insert(request.index);
            }
            // When a copy does not arrive, the chunk itself may still be requested.
            if counts || request.copy.is_none() {
                requested.insert(request.index);
            }
        }
        let copies = match shape.wanted.len() {
            1 => shape.wanted.iter().next().map_or(0..0, |index| self.copies_of(index)),
            _ => 0..0,
        };
        QueryPiece {
            stripe: self.stripe.id,
            code: &self.stripe.code,
            sites: &self.sites,
            copies: &self.copy_sites[copies],
            len: shape.columns.end - shape.columns.start,
            wanted: shape.wanted,
            requested,
            awaited,
        }
    }

    /// Whether a chunk was written and its site can be asked.
    pub(super) fn has(&self, index: usize, can_be_asked: &impl Fn(SiteId) -> bool) -> bool {
        self.sites[index].0 != 0 && can_be_asked(self.sites[index])
    }

    /// Returns the positions of a chunk's copies.
    fn copies_of(&self, index: usize) -> Range<usize> {
        let index_of = |copy: &Copy| copy.index as usize;
        self.copies.partition_point(|copy| index_of(copy) < index)
            ..self.copies.partition_point(|copy| index_of(copy) <= index)
    }

    fn covering(&self, columns: &Range<u32>) -> impl Iterator<Item = &ChunkRequest> {
        let columns = columns.clone();
        self.requests.iter().filter(move |request| request.covers(&columns))
    }

    /// Registers a request for a piece's columns of a chunk; from n on, of a copy of the wanted chunk. Returns the
    /// request's position in `requests` and the range, or `None` if the columns are already in flight or present.
    pub(super) fn ask(&mut self, index: usize, shape: &PieceShape) -> Option<(usize, ChunkRange)> {
        let (index, copy) = match index.checked_sub(self.sites.len()) {
            None => (index, None),
            Some(place) => {
                let wanted_index = shape.wanted.iter().next()?;
                (wanted_index, Some(self.copies_of(wanted_index).start + place))
            }
        };
        let columns = &shape.columns;
        if self.covering(columns).any(|request| request.index == index && request.stands_for_chunk()) {
            return None;
        }
        let mut chunk = self.stripe.file(index);
        if let Some(copy) = copy {
            chunk.generation = Generation(self.copies[copy].generation);
        }
        let range = ChunkRange { chunk, offset: columns.start, len: columns.end - columns.start };
        let (columns, state) = (columns.clone(), State::Awaited);
        self.requests.push(ChunkRequest { index, copy, is_computed: false, columns, state });
        Some((self.requests.len() - 1, range))
    }

    /// Plans how to obtain each wanted chunk of a piece that its own stripe does not determine. Returns `None` if
    /// nothing is left to try: all chunks have arrived or are in flight, one is in no wide stripe, or computing one
    /// has already failed.
    pub(super) fn plan_detour(
        &mut self,
        shape: &PieceShape,
        can_be_asked: &impl Fn(SiteId) -> bool,
    ) -> Option<DetourRequests> {
        let awaited = self.covering(&shape.columns).filter(|request| request.is_on_its_way());
        let awaited: ChunkSet = awaited.map(|request| request.index).collect();
        let was_requested = |index| {
            self.covering(&shape.columns).any(|request| request.index == index && request.copy.is_none())
        };
        let missing = shape.wanted.difference(&awaited);
        // A chunk that its site can provide is requested there: the lost chunk's wide stripe does not yield it.
        let (to_request, to_compute): (Vec<usize>, Vec<usize>) =
            missing.iter().partition(|&index| self.has(index, can_be_asked) && !was_requested(index));
        let is_in_vain = |request: &ChunkRequest| request.is_computed && to_compute.contains(&request.index);
        let is_hopeless = self.covering(&shape.columns).any(is_in_vain)
            || to_compute.iter().any(|&index| self.stripe.wide_of(index).is_none());
        if is_hopeless || missing.is_empty() {
            return None;
        }
        let requests = to_request.into_iter().filter_map(|index| {
            let (position, range) = self.ask(index, shape)?;
            Some((self.sites[index], position, range))
        });
        let requests = requests.collect();
        let first_position = self.requests.len();
        self.requests.extend(to_compute.iter().map(|&index| ChunkRequest {
            index,
            copy: None,
            is_computed: true,
            columns: shape.columns.clone(),
            state: State::Awaited,
        }));
        Some(DetourRequests { requests, computed: to_compute.into_iter().zip(first_position..).collect() })
    }

    /// Records a reply, and returns its error. Bytes of the wrong length count as an error.
    pub(super) fn answer(&mut self, position: usize, result: Result<Bytes, SiteError>) -> Option<&SiteError> {
        let request = &mut self.requests[position];
        request.state = match result {
            Ok(bytes) if bytes.len() == request.columns.len() => State::Arrived(bytes),
            Ok(bytes) => {
                let reason = format!("it sent {} of {} bytes", bytes.len(), request.columns.len());
                State::Failed(SiteError::Unavailable(reason))
            }
            Err(error) => State::Failed(error),
        };
        if let (Some(copy), State::Failed(_)) = (request.copy, &request.state) {
            self.copy_sites[copy] = SiteId(0);
        }
        match &request.state {
            State::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// Marks a request as late, so that replacements are planned.
    pub(super) fn give_up(&mut self, position: usize) {
        if let State::Awaited = self.requests[position].state {
            self.requests[position].state = State::Late;
        }
    }

    /// Counts late requests as awaited again, because a piece is unavailable without them.
    pub(super) fn await_late(&mut self, shape: &PieceShape) {
        for request in self.requests.iter_mut().filter(|request| request.covers(&shape.columns)) {
            if let State::Late = request.state {
                request.state = State::Awaited;
            }
        }
    }

    /// Marks arrived bytes of suspect chunks, and all computed ones, as failed: they led to wrong bytes.
    pub(super) fn distrust(&mut self, is_suspect: impl Fn(usize) -> bool) {
        let is_suspect = |request: &&mut ChunkRequest| request.is_computed || is_suspect(request.index);
        for request in self.requests.iter_mut().filter(is_suspect) {
            if let State::Arrived(_) = request.state {
                if let Some(copy) = request.copy {
                    // Otherwise the copy would be requested again.
                    self.copy_sites[copy] = SiteId(0);
                }
                let reason = "the bytes that it led to do not match their checksum".to_owned();
                request.state = State::Failed(SiteError::Unavailable(reason));
            }
        }
    }

    /// Returns the chunk that a request is for.
    pub(super) fn chunk_of(&self, position: usize) -> usize {
        self.requests[position].index
    }

    /// Whether a request was for a copy.
    pub(super) fn is_of_copy(&self, position: usize) -> bool {
        self.requests[position].copy.is_some()
    }

    pub(super) fn is_awaited(&self, position: usize) -> bool {
        matches!(self.requests[position].state, State::Awaited)
    }

    /// Whether requests in flight, including late ones, may still complete a piece.
    pub(super) fn may_complete(&self, shape: &PieceShape) -> bool {
        let pending = self.covering(&shape.columns).filter(|request| !request.has_failed());
        let pending: ChunkSet = pending.map(|request| request.index).collect();
        self.stripe.code.determines(&pending, &shape.wanted)
    }

    /// Whether a piece can use the reply to a request.
    pub(super) fn serves(&self, position: usize, shape: &PieceShape) -> bool {
        self.requests[position].covers(&shape.columns)
    }

    /// Returns the failed chunks and their errors. A failed copy or computation is not damage.
    pub(super) fn failures(&self) -> impl Iterator<Item = (usize, &SiteError)> {
        let is_chunk = |request: &&ChunkRequest| request.copy.is_none() && !request.is_computed;
        self.requests.iter().filter(is_chunk).filter_map(|request| match &request.state {
            State::Failed(error) => Some((request.index, error)),
            _ => None,
        })
    }

    /// Whether so many chunks are missing or damaged, as their sites report, that the rest cannot determine the data.
    pub(super) fn is_gone(&self) -> bool {
        let is_unwritten = |index: &usize| self.sites[*index] == SiteId(0);
        let missing = self
            .failures()
            .filter(|(_, error)| matches!(error, SiteError::Missing(_) | SiteError::Corrupt { .. }));
        let n = self.stripe.code.n();
        let missing: ChunkSet = missing.map(|(index, _)| index).chain((0..n).filter(is_unwritten)).collect();
        n - missing.len() < self.stripe.code.k()
    }

    /// Returns the data chunks that their sites report missing.
    pub(super) fn missing_data(&self) -> ChunkSet {
        let missing = self.failures().filter(|(_, error)| matches!(error, SiteError::Missing(_)));
        missing.map(|(index, _)| index).filter(|index| *index < self.stripe.code.k()).collect()
    }

    /// Returns the chunks whose columns have arrived.
    pub(super) fn arrived(&self, shape: &PieceShape) -> ChunkSet {
        let arrived =
            self.covering(&shape.columns).filter(|request| matches!(request.state, State::Arrived(_)));
        arrived.map(|request| request.index).collect()
    }

    /// Whether the arrived chunks determine the wanted ones.
    pub(super) fn is_determined(&self, shape: &PieceShape) -> bool {
        self.stripe.code.determines(&self.arrived(shape), &shape.wanted)
    }

    /// Whether wanted chunks that did not arrive must be computed from others. With k = 1 every chunk is the block.
    pub(super) fn must_decode(&self, shape: &PieceShape) -> bool {
        self.stripe.code.k() > 1 && !shape.wanted.difference(&self.arrived(shape)).is_empty()
    }

    /// Whether a piece uses columns computed from wide stripes.
    pub(super) fn has_computed(&self, shape: &PieceShape) -> bool {
        let has_arrived =
            |request: &ChunkRequest| request.is_computed && matches!(request.state, State::Arrived(_));
        self.covering(&shape.columns).any(has_arrived)
    }

    /// Splits the bytes `range` of the data into parts that arrived and parts that did not, in order. An arrived part
    /// lies inside one chunk; missing parts are merged.
    pub(super) fn arrived_parts(&self, range: &Range<u32>) -> Vec<(Range<u32>, Option<Bytes>)> {
        let len = self.stripe.record.chunk_len;
        let mut parts: Vec<(Range<u32>, Option<Bytes>)> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let (chunk, end) = (at / len, range.end.min((at / len + 1) * len));
            let columns = at - chunk * len..end - chunk * len;
            let arrived = self.covering(&columns).find_map(|request| match &request.state {
                State::Arrived(bytes) if request.index == chunk as usize => {
                    let from = (columns.start - request.columns.start) as usize;
                    Some(bytes.slice(from..from + columns.len()))
                }
                _ => None,
            });
            match parts.last_mut() {
                Some((last_range, None)) if arrived.is_none() => last_range.end = end,
                _ => parts.push((at..end, arrived)),
            }
            at = end;
        }
        parts
    }

    /// Returns the wanted columns of a determined piece, in the order of the chunks.
    pub(super) fn complete(&self, shape: &PieceShape, buffers: &BufferPool) -> Option<Vec<Bytes>> {
        let mut arrived: Vec<(usize, Bytes)> = Vec::with_capacity(self.requests.len());
        for request in self.covering(&shape.columns) {
            if let State::Arrived(bytes) = &request.state
                && arrived.iter().all(|(index, _)| *index != request.index)
            {
                let from = (shape.columns.start - request.columns.start) as usize;
                arrived.push((request.index, bytes.slice(from..from + shape.columns.len())));
            }
        }
        if self.stripe.code.k() == 1 {
            return arrived.pop().map(|(_, bytes)| vec![bytes]);
        }
        let indices: ChunkSet = arrived.iter().map(|(index, _)| *index).collect();
        let missing: Vec<usize> = shape.wanted.difference(&indices).iter().collect();
        if !missing.is_empty() {
            let decoded = self.decode(&arrived, &missing, buffers)?;
            arrived.extend(missing.iter().copied().zip(decoded));
        }
        arrived.retain(|(index, _)| shape.wanted.contains(*index));
        arrived.sort_unstable_by_key(|(index, _)| *index);
        Some(arrived.into_iter().map(|(_, bytes)| bytes).collect())
    }

    /// Computes the chunks `missing` from those that arrived.
    fn decode(
        &self,
        arrived: &[(usize, Bytes)],
        missing: &[usize],
        buffers: &BufferPool,
    ) -> Option<Vec<Bytes>> {
        let available: Vec<usize> = arrived.iter().map(|(index, _)| *index).collect();
        let plan = self.stripe.code.decode_plan(&available, missing).ok()?;
        let input = |index: &usize| {
            arrived.iter().find(|(arrived_index, _)| arrived_index == index).map(|(_, bytes)| &bytes[..])
        };
        let inputs: Vec<&[u8]> = plan.sources().iter().map(input).collect::<Option<_>>()?;
        let len = inputs.first().map_or(0, |input| input.len());
        let mut outputs: Vec<Buffer> = missing.iter().map(|_| buffers.take(len)).collect();
        let mut refs: Vec<&mut [u8]> = outputs.iter_mut().map(|output| &mut output[..]).collect();
        plan.apply(&inputs, &mut refs).ok()?;
        Some(outputs.into_iter().map(Buffer::freeze).collect())
    }

    /// Returns the error of an unavailable piece: the missing chunks, and the reasons. A chunk that was not requested,
    /// because too few others are left, is missing only if its site does not answer (`answers`).
    pub(super) fn unreadable(&self, shape: &PieceShape, answers: impl Fn(SiteId) -> bool) -> StripeError {
        let mut arrived = ChunkSet::EMPTY;
        let mut reasons = vec![None; self.stripe.code.n()];
        for request in self.covering(&shape.columns) {
            match &request.state {
                State::Arrived(_) => {
                    arrived.insert(request.index);
                }
                State::Failed(error) => reasons[request.index] = Some(error.to_string()),
                State::Awaited | State::Late => reasons[request.index] = Some("late".to_owned()),
            }
        }
        for (index, (site, reason)) in self.sites.iter().zip(&reasons).enumerate() {
            if *site != SiteId(0) && reason.is_none() && answers(*site) {
                arrived.insert(index);
            }
        }
        let missing =
            (0..self.stripe.code.n()).filter(|index| !arrived.contains(*index)).map(|index| {
                match (self.sites[index], &reasons[index]) {
                    (SiteId(0), _) => format!("chunk {index} was never written"),
                    (site, Some(reason)) => format!("chunk {index} on site {site}: {reason}"),
                    (site, None) => format!("chunk {index} on site {site}: it does not answer"),
                }
            });
        StripeError::Unreadable {
            stripe: self.stripe.id,
            needed: self.stripe.code.k(),
            available: arrived.len(),
            reason: missing.collect::<Vec<_>>().join("; "),
        }
    }
}

impl ChunkRequest {
    fn covers(&self, columns: &Range<u32>) -> bool {
        self.columns.start <= columns.start && columns.end <= self.columns.end
    }

    /// Whether the request makes another one for the chunk unnecessary.
    fn stands_for_chunk(&self) -> bool {
        match self.state {
            State::Failed(_) => false,
            State::Late => self.copy.is_none(),
            State::Awaited | State::Arrived(_) => true,
        }
    }

    fn is_on_its_way(&self) -> bool {
        matches!(self.state, State::Awaited | State::Arrived(_))
    }

    fn has_failed(&self) -> bool {
        matches!(self.state, State::Failed(_))
    }
}

/// Returns the copies of a stripe's chunks that have the chunks' current content, ordered by chunk.
fn true_copies(stripe: &OpenedStripe) -> Vec<Copy> {
    let location = |copy: &Copy| stripe.record.locations.get(copy.index as usize);
    let is_true = |copy: &&Copy| location(copy).is_some_and(|at| at.content_version == copy.content_version);
    let mut copies: Vec<Copy> = stripe.record.copies.iter().filter(is_true).copied().collect();
    copies.sort_by_key(|copy| copy.index);
    copies
}

impl Piece {
    pub(super) fn new(stripe: usize, shape: PieceShape, whole_of: Option<usize>) -> Self {
        Self { stripe, shape, whole_of, chunks: None, error: None, is_replaced: false }
    }

    /// Whether the piece is neither complete nor given up.
    pub(super) fn is_open(&self) -> bool {
        self.chunks.is_none() && self.error.is_none() && !self.is_replaced
    }
}

/// Cuts the padding off the chunks of a block or an extent.
pub(super) fn trim(chunks: Vec<Bytes>, len: u32) -> Vec<Bytes> {
    let mut remaining = len as usize;
    let mut pieces = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        let kept_len = remaining.min(chunk.len());
        remaining -= kept_len;
        if kept_len > 0 {
            pieces.push(chunk.slice(..kept_len));
        }
    }
    pieces
}

/// Whether bytes match the checksum in their row.
pub(super) fn matches_checksum(stored: &StoredBytes, pieces: &[Bytes]) -> bool {
    let crc = || pieces.iter().fold(0, |crc, piece| crc32c_append(crc, piece));
    stored.crc32c().is_none_or(|expected| crc() == expected)
}
