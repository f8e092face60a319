//! Combine trees: `Σ coefficient · local range + Σ upstream`, slice by slice (design.md §4.2).
//!
//! One primitive evaluates the partial sums of a repair inside a rack, chains of repairers and server-side
//! degraded reads (ECWide §4.1): each inner node of the tree adds its own chunks to what its children stream
//! in, and streams the sum on. Sums over GF(2⁸) may be grouped in any way, so any tree gives the same bytes.
//!
//! A node holds at most [`LOCAL_SLICES_AHEAD`] computed local slices and one slice of each child; it reads the
//! next local slices while the children's slices arrive. Dropping the stream drops the children's streams,
//! which cancels the whole tree.
//!
//! An *assembled* chunk is the sum of a tree, modified in *windows*: ranges to which the sum of another tree is added,
//! or whose bytes came with the request. A window's tree is evaluated when the chunk's own slices reach its range.
//!
//! Errors: a missing or damaged chunk is reported unchanged. Site errors (unreachable, full queue) are prefixed with
//! the site's number. The stream ends with the first error.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::future::join_all;
use futures::stream::{self, BoxStream, StreamExt};
use striate_codec::{accumulate, crc32c_append};
use striate_core::{ChunkId, ChunkRange, LoadReport, SiteId};

use crate::api::{
    AssembleRequest, CombineRequest, CombineSource, LocalTerm, Priority, ReadRequest, Site, SiteDirectory,
    SiteError, SliceStream, Window, WriteRequest,
};
use crate::protocol::limits::{MAX_CHUNK_LEN, MAX_TREE_DEPTH};

/// Number of local slices that are read and summed ahead of the one being sent.
pub(crate) const LOCAL_SLICES_AHEAD: usize = 2;
/// Maximum length of a slice in bytes.
pub(crate) const MAX_SLICE_LEN: u32 = 4 << 20;
/// Maximum number of chunks and inner nodes in one tree.
pub(crate) const MAX_TREE_SIZE: usize = 1024;
/// Maximum number of windows in one chunk.
pub(crate) const MAX_WINDOWS: usize = 1024;

/// Checks the limits above and that all nodes agree on offset, length and slice length.
///
/// # Errors
/// [`SiteError::BadRequest`] with what is wrong.
pub fn check(request: &CombineRequest) -> Result<(), SiteError> {
    let wrong = |reason: String| Err(SiteError::BadRequest(reason));
    if request.len == 0 || request.offset.checked_add(request.len).is_none() {
        return wrong(format!("a combination of {} bytes from {}", request.len, request.offset));
    }
    if request.slice_len == 0 || request.slice_len > MAX_SLICE_LEN {
        return wrong(format!("slices of {} bytes; allowed are 1 to {MAX_SLICE_LEN}", request.slice_len));
    }
    let mut size = 0;
    let mut level = vec![request];
    for _ in 0..MAX_TREE_DEPTH {
        let mut next = Vec::new();
        for node in level {
            size += node.local.len() + node.upstream.len();
            if size > MAX_TREE_SIZE {
                return wrong(format!("a combine tree of more than {MAX_TREE_SIZE} terms"));
            }
            if node.local.is_empty() && node.upstream.is_empty() {
                return wrong("a combination of nothing".to_owned());
            }
            if (node.offset, node.len, node.slice_len) != (request.offset, request.len, request.slice_len) {
                return wrong("the nodes of a combine tree differ in offset, length or slices".to_owned());
            }
            next.extend(node.upstream.iter().map(|source| &source.request));
        }
        if next.is_empty() {
            return Ok(());
        }
        level = next;
    }
    wrong(format!("a combine tree of more than {MAX_TREE_DEPTH} levels"))
}

/// Evaluates the tree whose root is `site`.
pub fn evaluate(
    site: Arc<dyn Site>,
    directory: Option<Arc<dyn SiteDirectory>>,
    request: CombineRequest,
) -> SliceStream {
    match start(site, directory, request) {
        Ok(node) => stream::unfold(Some(node), |node| async move {
            let mut node = node?;
            match node.next_slice().await? {
                Ok(slice) => Some((Ok(slice), Some(node))),
                Err(error) => Some((Err(error), None)),
            }
        })
        .boxed(),
        Err(error) => stream::once(async move { Err(error) }).boxed(),
    }
}

/// Receives a sum slice by slice.
#[async_trait]
pub(crate) trait Sink: Send {
    /// Appends the next slice.
    fn append(&mut self, slice: &[u8]);

    /// Stores the sum, whose checksum was verified.
    async fn store(self: Box<Self>) -> Result<LoadReport, SiteError>;
}

/// Gathers the whole sum in memory and then writes it.
struct BufferedSum {
    site: Arc<dyn Site>,
    chunk: ChunkId,
    payload: BytesMut,
    priority: Priority,
}

#[async_trait]
impl Sink for BufferedSum {
    fn append(&mut self, slice: &[u8]) {
        self.payload.extend_from_slice(slice);
    }

    async fn store(self: Box<Self>) -> Result<LoadReport, SiteError> {
        let Self { site, chunk, payload, priority } = *self;
        site.write(WriteRequest { chunk, payload: payload.freeze(), granule_crcs: None, priority }).await
    }
}

/// Evaluates the tree whose root is `site`, and stores the sum there if it has the expected checksum.
///
/// # Errors
/// The errors of the tree and of [`Site::write`]; [`SiteError::BadRequest`] when the sum has another checksum or a
/// length that no chunk has.
pub async fn assemble(
    site: Arc<dyn Site>,
    directory: Option<Arc<dyn SiteDirectory>>,
    request: AssembleRequest,
) -> Result<LoadReport, SiteError> {
    check_assembled(&request)?;
    let CombineRequest { len, priority, .. } = request.combination;
    let payload = BytesMut::with_capacity(len as usize);
    let sink = BufferedSum { site: Arc::clone(&site), chunk: request.chunk, payload, priority };
    assemble_into(site, directory, request, Box::new(sink)).await
}

/// Checks a request for an assembled chunk.
pub(crate) fn check_assembled(request: &AssembleRequest) -> Result<(), SiteError> {
    let CombineRequest { offset, len, .. } = request.combination;
    if offset != 0 || len > MAX_CHUNK_LEN {
        let reason = format!("a chunk of {len} bytes from {offset}; allowed are 1 to {MAX_CHUNK_LEN} from 0");
        return Err(SiteError::BadRequest(reason));
    }
    if request.windows.len() > MAX_WINDOWS {
        return Err(SiteError::BadRequest(format!("more than {MAX_WINDOWS} windows")));
    }
    let mut end = 0;
    for (offset, window_len) in request.windows.iter().map(Window::place) {
        let window_end =
            offset.checked_add(window_len).filter(|&window_end| window_len > 0 && window_end <= len);
        end = window_end.filter(|_| offset >= end).ok_or_else(|| {
            SiteError::BadRequest(format!(
                "a window of {window_len} bytes from {offset}, behind {end} of {len}"
            ))
        })?;
    }
    Ok(())
}

/// As [`assemble`], for a request that was checked, into `sink`.
pub(crate) async fn assemble_into(
    site: Arc<dyn Site>,
    directory: Option<Arc<dyn SiteDirectory>>,
    request: AssembleRequest,
    mut sink: Box<dyn Sink>,
) -> Result<LoadReport, SiteError> {
    let AssembleRequest { chunk, crc32c: expected, combination, windows } = request;
    let (mut crc32c, mut at) = (0, 0);
    let opened = windows.into_iter().map(|window| OpenWindow::new(window, &site, directory.as_ref()));
    let mut windows: VecDeque<OpenWindow> = opened.collect();
    let mut slices = evaluate(Arc::clone(&site), directory.clone(), combination);
    while let Some(slice) = slices.next().await {
        let slice = apply(&mut windows, at, slice?).await?;
        at += slice.len() as u32;
        crc32c = crc32c_append(crc32c, &slice);
        sink.append(&slice);
    }
    if crc32c != expected {
        return Err(SiteError::BadRequest(format!(
            "the sum for chunk {chunk} does not have the expected checksum"
        )));
    }
    sink.store().await
}

/// A window whose bytes are taken in order.
struct OpenWindow {
    /// The part of its range that was not taken yet.
    remaining: Range<u32>,
    is_added: bool,
    pieces: SliceStream,
    /// The part of the last piece that was not taken yet.
    buffered: Bytes,
}

impl OpenWindow {
    /// Opens a window. It requests nothing before the first byte is taken.
    fn new(window: Window, site: &Arc<dyn Site>, directory: Option<&Arc<dyn SiteDirectory>>) -> Self {
        let (offset, len) = window.place();
        let remaining = offset..offset + len;
        match window {
            Window::Bytes { bytes, .. } => {
                Self { remaining, is_added: false, pieces: stream::empty().boxed(), buffered: bytes }
            }
            Window::Sum(request) => {
                let (site, directory) = (Arc::clone(site), directory.cloned());
                let evaluated = stream::once(async move { evaluate(site, directory, request) }).flatten();
                Self { remaining, is_added: true, pieces: evaluated.boxed(), buffered: Bytes::new() }
            }
        }
    }

    /// Returns its next bytes, at most `most`.
    async fn take(&mut self, most: usize) -> Result<Bytes, SiteError> {
        while self.buffered.is_empty() {
            let piece = self.pieces.next().await;
            self.buffered =
                piece.ok_or_else(|| SiteError::Unavailable("a window ended early".to_owned()))??;
        }
        let bytes = self.buffered.split_to(self.buffered.len().min(most));
        self.remaining.start += bytes.len() as u32;
        Ok(bytes)
    }
}

/// Applies the windows to the slice of a chunk that begins at `at`, and removes those that end in it.
async fn apply(windows: &mut VecDeque<OpenWindow>, at: u32, slice: Bytes) -> Result<Bytes, SiteError> {
    let end = at + slice.len() as u32;
    if windows.front().is_none_or(|window| window.remaining.start >= end) {
        return Ok(slice);
    }
    let mut assembled = slice.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    while let Some(window) = windows.front_mut().filter(|window| window.remaining.start < end) {
        let from = window.remaining.start;
        let bytes = window.take((end.min(window.remaining.end) - from) as usize).await?;
        let place = &mut assembled[(from - at) as usize..][..bytes.len()];
        match window.is_added {
            true => accumulate(1, &bytes, place),
            false => place.copy_from_slice(&bytes),
        }
        if window.remaining.is_empty() {
            windows.pop_front();
        }
    }
    Ok(assembled.freeze())
}

/// Returns the number of bytes of chunks and sums that the busiest site of a request reads or receives, at most.
pub(crate) fn most_bytes(request: &AssembleRequest) -> u64 {
    let tree_bytes = |request: &CombineRequest| most_terms(request) as u64 * u64::from(request.len);
    let windows = request.windows.iter().map(|window| match window {
        Window::Sum(sum) => tree_bytes(sum),
        Window::Bytes { bytes, .. } => bytes.len() as u64,
    });
    tree_bytes(&request.combination) + windows.sum::<u64>()
}

/// Returns the largest number of sums and chunks that one site of a tree reads or receives.
fn most_terms(request: &CombineRequest) -> usize {
    let own_terms = request.local.len() + request.upstream.len();
    request.upstream.iter().map(|source| most_terms(&source.request)).fold(own_terms, usize::max)
}

fn start(
    site: Arc<dyn Site>,
    directory: Option<Arc<dyn SiteDirectory>>,
    request: CombineRequest,
) -> Result<Node, SiteError> {
    check(&request)?;
    let CombineRequest { offset, len, slice_len, local, upstream, priority } = request;
    let children = upstream
        .into_iter()
        .map(|source| open(directory.as_deref(), source))
        .collect::<Result<Vec<_>, _>>()?;
    let terms: Arc<[LocalTerm]> = local.into();
    let slices = Slices { offset, end: offset + len, slice_len };
    let local_sums = (!terms.is_empty()).then(|| {
        let read =
            move |(offset, len)| sum_local(Arc::clone(&site), Arc::clone(&terms), offset, len, priority);
        stream::iter(slices).map(read).buffered(LOCAL_SLICES_AHEAD).boxed()
    });
    Ok(Node { slices, local_sums, children })
}

fn open(directory: Option<&dyn SiteDirectory>, source: CombineSource) -> Result<Child, SiteError> {
    let site = directory.and_then(|directory| directory.site(source.site));
    let site =
        site.ok_or_else(|| SiteError::Unavailable(format!("site {} is not known here", source.site)))?;
    Ok(Child { site: source.site, slices: site.combine(source.request) })
}

/// The slices of a combination: offset and length of each.
#[derive(Clone, Copy, Debug)]
struct Slices {
    offset: u32,
    end: u32,
    slice_len: u32,
}

impl Iterator for Slices {
    type Item = (u32, u32);

    fn next(&mut self) -> Option<(u32, u32)> {
        let (offset, len) = (self.offset, self.slice_len.min(self.end - self.offset));
        self.offset += len;
        (len > 0).then_some((offset, len))
    }
}

/// The state of an inner node.
struct Node {
    /// The slices still to be sent.
    slices: Slices,
    local_sums: Option<BoxStream<'static, Result<Bytes, SiteError>>>,
    children: Vec<Child>,
}

struct Child {
    site: SiteId,
    slices: SliceStream,
}

impl Child {
    async fn next_slice(&mut self, len: u32) -> Result<Bytes, SiteError> {
        let site = self.site;
        match self.slices.next().await {
            Some(Ok(slice)) if slice.len() == len as usize => Ok(slice),
            Some(Ok(slice)) => Err(SiteError::Unavailable(format!(
                "site {site}: a slice of {} bytes instead of {len}",
                slice.len()
            ))),
            Some(Err(error)) => Err(error_from(site, error)),
            None => Err(SiteError::Unavailable(format!("site {site}: the combination ended early"))),
        }
    }
}

impl Node {
    /// Returns the next slice of the sum; `None` after the last.
    async fn next_slice(&mut self) -> Option<Result<Bytes, SiteError>> {
        let (_, len) = self.slices.next()?;
        let local_sum = async {
            match &mut self.local_sums {
                Some(sums) => sums.next().await.expect("one sum for each slice").map(Some),
                None => Ok(None),
            }
        };
        let children = join_all(self.children.iter_mut().map(|child| child.next_slice(len)));
        let (local_sum, children) = futures::future::join(local_sum, children).await;
        Some(local_sum.and_then(|sum| add(sum.into_iter().map(Ok).chain(children))))
    }
}

/// Adds slices of equal length, in the buffer of the first if it is not shared.
fn add(mut slices: impl Iterator<Item = Result<Bytes, SiteError>>) -> Result<Bytes, SiteError> {
    let first = slices.next().expect("a node has at least one term")?;
    let Some(second) = slices.next() else { return Ok(first) };
    let mut sum = first.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    accumulate(1, &second?, &mut sum);
    for slice in slices {
        accumulate(1, &slice?, &mut sum);
    }
    Ok(sum.freeze())
}

/// Returns Σ coefficient · range over the site's own chunks, read through its queue. A chunk is zero beyond its end.
async fn sum_local(
    site: Arc<dyn Site>,
    terms: Arc<[LocalTerm]>,
    offset: u32,
    len: u32,
    priority: Priority,
) -> Result<Bytes, SiteError> {
    let range_of = |term: &LocalTerm| {
        let len = term.len.saturating_sub(offset).min(len);
        (len > 0).then_some((term.by, ChunkRange { chunk: term.chunk, offset, len }))
    };
    let (factors, ranges): (Vec<u8>, Vec<ChunkRange>) = terms.iter().filter_map(range_of).unzip();
    if ranges.is_empty() {
        return Ok(BytesMut::zeroed(len as usize).freeze());
    }
    let (first, count) = (ranges[0], ranges.len());
    let mut replies = site.read(ReadRequest { ranges, priority, deadline: None });
    if factors == [1] && first.len == len {
        return replies.next().await.map_or_else(|| Err(unanswered(first.chunk)), |reply| reply.result);
    }
    let mut sum = BytesMut::zeroed(len as usize);
    let mut answered_count = 0;
    while let Some(reply) = replies.next().await {
        let bytes = reply.result?;
        accumulate(factors[reply.item], &bytes, &mut sum[..bytes.len()]);
        answered_count += 1;
    }
    if answered_count == count { Ok(sum.freeze()) } else { Err(unanswered(first.chunk)) }
}

fn unanswered(chunk: ChunkId) -> SiteError {
    SiteError::Unavailable(format!("no answer for chunk {chunk}"))
}

/// Converts the error of an upstream site for the node below it.
fn error_from(site: SiteId, error: SiteError) -> SiteError {
    match error {
        named @ (SiteError::Missing(_) | SiteError::Corrupt { .. }) => named,
        SiteError::BadRequest(reason) => SiteError::BadRequest(format!("site {site}: {reason}")),
        SiteError::Unavailable(reason) => SiteError::Unavailable(format!("site {site}: {reason}")),
        other => SiteError::Unavailable(format!("site {site}: {other}")),
    }
}
