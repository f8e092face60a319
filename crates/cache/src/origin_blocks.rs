//! Blocks of objects in another S3 store, which only their reader can fetch.
//!
//! As with blocks of this store, one process in the cluster fills a block and the others wait for it. They wait for as
//! long as its bytes arrive, because the alternative is to fetch the same bytes from far away: the process that fetches
//! the block renews its grant. If it does not, the grant passes to one of those that wait.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use striate_core::{StripeId, cached};
use striate_runtime::Instant;
use striate_site::{CachedBlockState, TendEvent, Tended};
use striate_stripe::{BlocksRead, MemoryBlock, Share, Span, StoredBytes, StripeError, Stripes};

use crate::Cache;
use crate::cache::Inner;
use crate::homes::{HomeAnswer, HomeQuery};
use crate::known_blocks::Sites;
use crate::miss_reasons::MissReason;
use crate::splits::split_len;
use crate::view::ReadOutcome;

/// Time after which a reader that waits for a block asks its home whether the block is still being fetched.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Minimum interval at which the grant of a block that is being fetched is renewed.
const RENEW_EVERY: Duration = Duration::from_secs(3);
/// Maximum time that a fetched block waits for fill memory before its fill is given up.
const WAIT_FOR_ROOM: Duration = Duration::from_secs(1);
/// A block that its reader fills may take this fraction (one over it) of the memory for bodies, which holds it until
/// it is whole.
const FETCHED_PART: usize = 4;

/// State of a block whose object is in another S3 store.
#[derive(Debug)]
pub enum BlockLookup {
    /// As far as this process knows, the block is in memory.
    There,
    /// The block is not in memory. The caller must fetch it and fill the tier.
    Granted(BlockFill),
    /// Another process is fetching the block.
    OnItsWay,
    /// The block is not in memory, or its state is unknown. The caller fetches the bytes that it wants and fills
    /// nothing.
    Absent,
}

/// Permission and duty to fill a block. Dropped before the fill has begun, it lets another process fill the block. The
/// fill counts as given up only if the block was being read.
pub struct BlockFill {
    cache: Arc<Inner>,
    question: HomeQuery,
    parities: usize,
    live: Arc<Sites>,
    /// When the fill was granted or last renewed.
    renewed_at: Instant,
    has_begun: bool,
    /// Why the block is not in memory if this is dropped; `None` if it is not needed.
    given_up: Option<MissReason>,
}

/// Result of a read that did not find all of its bytes in memory.
#[derive(Debug, Default)]
pub struct PartialRead {
    /// Bytes that were in memory, by their ranges in the block, ascending.
    pub parts: Vec<(Range<u32>, Vec<Bytes>)>,
    /// Memory of the whole block; `None` if there are no parts.
    pub share: Option<Share>,
    /// Set if the caller is to fetch the rest of the block and fill the tier.
    pub fill: Option<BlockFill>,
}

impl Cache {
    /// Returns the state of each block, and grants the caller the fills that it is to do. With `waits`, waits for the
    /// first block if another process is fetching it. A block that is more than a quarter of the memory for bodies is
    /// not to be filled: it counts as absent.
    pub async fn look_up(&self, blocks: &[MemoryBlock], waits: bool) -> Vec<BlockLookup> {
        let Some(stripes) = self.inner.stripes.upgrade() else { return Vec::new() };
        let live = self.inner.live(&stripes);
        let mut lookups = Vec::with_capacity(blocks.len());
        let mut queries = Vec::new();
        for (position, block) in blocks.iter().enumerate() {
            let question = self.inner.question(&StoredBytes::Memory(block.clone()), &live);
            let is_there =
                question.is_some_and(|question| self.inner.known_blocks.form(question.name, &live).is_some());
            lookups.push(if is_there { BlockLookup::There } else { BlockLookup::Absent });
            queries.extend(question.filter(|_| !is_there).map(|question| (position, question)));
        }
        let questions: Vec<HomeQuery> = queries.iter().map(|(_, question)| *question).collect();
        let answers = self.inner.ask_once(&questions, &live).await;
        for ((position, question), answer) in queries.into_iter().zip(answers) {
            lookups[position] = match answer {
                Some(HomeAnswer::There(_)) => BlockLookup::There,
                // Begin the fill before the grant is dropped.
                Some(HomeAnswer::Granted(_expected)) => {
                    self.grant_fetch(question, &live).map_or(BlockLookup::Absent, BlockLookup::Granted)
                }
                Some(HomeAnswer::Absent) => BlockLookup::Absent,
                None => BlockLookup::OnItsWay,
            };
        }
        if waits && matches!(lookups[..], [BlockLookup::OnItsWay, ..]) {
            lookups[0] = self.wait_for_fetch(questions[0], &live).await;
        }
        lookups
    }

    /// Waits for a block that another process is fetching. If that process gives up or stands still, the caller may be
    /// granted the fill.
    async fn wait_for_fetch(&self, question: HomeQuery, live: &Arc<Sites>) -> BlockLookup {
        loop {
            let answer = self.inner.wait_for_fill(&question, live, LOOK_AGAIN).await;
            if matches!(answer, HomeAnswer::There(_)) {
                return BlockLookup::There;
            }
            // The home may have granted the fill to this process meanwhile.
            if let Some(fill) = self.grant_fetch(question, live) {
                return BlockLookup::Granted(fill);
            }
            let HomeAnswer::Absent = answer else { return BlockLookup::Absent };
            let Some(Some(tended)) = self.inner.tend(&[question], 0, TendEvent::Look).await.pop() else {
                return BlockLookup::Absent;
            };
            match self.inner.learn(&question, tended, live) {
                HomeAnswer::There(_) => return BlockLookup::There,
                HomeAnswer::Granted(_expected) => {
                    return self
                        .grant_fetch(question, live)
                        .map_or(BlockLookup::Absent, BlockLookup::Granted);
                }
                HomeAnswer::Absent if tended.standing == CachedBlockState::Filling => {}
                HomeAnswer::Absent => return BlockLookup::Absent,
            }
        }
    }

    /// Whether any memory site answers.
    pub fn has_sites(&self) -> bool {
        self.inner.stripes.upgrade().is_some_and(|stripes| self.inner.live(&stripes).any_answers())
    }

    /// Whether objects written to other S3 stores are to be cached: the cache takes writes, and a memory site answers.
    pub fn fills_writes(&self) -> bool {
        self.inner.fills_writes && self.has_sites()
    }

    /// Requests the fills of blocks that the caller has just written. The result is `None` for blocks that are in
    /// memory or that another process is filling. The request does not count as a read.
    pub async fn claim(&self, blocks: &[MemoryBlock]) -> Vec<Option<BlockFill>> {
        let Some(stripes) = self.inner.stripes.upgrade() else { return Vec::new() };
        let live = self.inner.live(&stripes);
        let query_of = |block: &MemoryBlock| self.inner.question(&StoredBytes::Memory(block.clone()), &live);
        // If one block has no home, no memory site is live and no block has one.
        let questions: Vec<HomeQuery> = blocks.iter().filter_map(query_of).collect();
        let answers = self.inner.tend(&questions, 0, TendEvent::Look).await;
        let granted = |(question, tended): (&HomeQuery, Option<Tended>)| {
            let tended = tended.filter(|tended| tended.standing == CachedBlockState::Granted)?;
            let _expected = self.inner.learn(question, tended, &live);
            self.grant(*question, &live)
        };
        questions.iter().zip(answers).map(granted).collect()
    }

    fn grant(&self, question: HomeQuery, live: &Arc<Sites>) -> Option<BlockFill> {
        let parities = self.inner.begin_fill(question.name)?;
        Some(BlockFill {
            cache: self.inner.clone(),
            question,
            parities,
            live: live.clone(),
            renewed_at: self.inner.runtime.now(),
            has_begun: false,
            given_up: None,
        })
    }

    /// Grants the fill of a block that is yet to be fetched. Gives it up if the block is too large for that.
    fn grant_fetch(&self, question: HomeQuery, live: &Arc<Sites>) -> Option<BlockFill> {
        let stripes = self.inner.stripes.upgrade()?;
        let fill = self.grant(question, live)?;
        if may_be_held(&stripes, question.len) {
            return Some(fill);
        }
        fill.give_up(MissReason::TooLarge);
        None
    }

    /// Reads a range of a block from memory.
    ///
    /// # Errors
    /// The parts that are in memory, if some are missing. Nothing, if the block cannot be read now, for lack of memory
    /// to read it into: it counts as in memory as before.
    pub async fn read(&self, block: &MemoryBlock, range: Range<u32>) -> Result<BlocksRead, PartialRead> {
        let Some(stripes) = self.inner.stripes.upgrade() else { return Err(PartialRead::default()) };
        let stored = StoredBytes::Memory(block.clone());
        match stripes.read_spans(&[Span { of: stored.clone(), range }]).await {
            Ok(read) => return Ok(read),
            Err(StripeError::NotInMemory | StripeError::Unreadable { .. }) => {}
            Err(error) => {
                tracing::debug!(%error, "a block in memory cannot be read now");
                return Err(PartialRead::default());
            }
        }
        let live = self.inner.live(&stripes);
        let Some(question) = self.inner.question(&stored, &live) else { return Err(PartialRead::default()) };
        // Read the splits that are present first: once the block is forgotten, its home must be asked again.
        let Ok(mut missed) = splits_of(&stripes, question.name, stored).await else {
            return Err(PartialRead::default());
        };
        let is_all_there =
            missed.parts.iter().map(|(range, _)| range.len()).sum::<usize>() == block.len as usize;
        if is_all_there {
            // A busy site did not answer in time before.
            return Err(missed);
        }
        if self.inner.known_blocks.forget(question.name) {
            self.inner.miss_reasons.note(question.name, MissReason::Gone);
        }
        let tended = self.inner.tend(&[question], 1, TendEvent::Lost).await;
        if let [Some(tended @ Tended { standing: CachedBlockState::Granted, .. })] = tended[..] {
            let _expected = self.inner.learn(&question, tended, &live);
            missed.fill = self.grant_fetch(question, &live);
        }
        Err(missed)
    }

    /// Whether this process knows the block to be in memory. Sends no request.
    pub fn knows(&self, block: &MemoryBlock) -> bool {
        let Some(stripes) = self.inner.stripes.upgrade() else { return false };
        let live = self.inner.live(&stripes);
        let question = self.inner.question(&StoredBytes::Memory(block.clone()), &live);
        question.is_some_and(|question| self.inner.known_blocks.form(question.name, &live).is_some())
    }

    /// Outcome of a read that found nothing in memory.
    pub fn missed(&self) -> ReadOutcome {
        if self.has_sites() { ReadOutcome::Miss } else { ReadOutcome::Bypass }
    }

    /// Counts a read of `len` bytes of a block in another S3 store, `cached` of which came from memory.
    pub fn fetched(&self, len: u64, cached: u64) {
        let outcome = if cached > 0 { ReadOutcome::Partial } else { self.missed() };
        self.inner.counts.count(outcome, len, cached);
    }

    /// Counts a failed read of `len` bytes of a block in another S3 store.
    pub fn failed(&self, len: u64) {
        self.inner.counts.count(ReadOutcome::Error, len, 0);
    }

    /// Counts a read of `len` bytes that bypassed the tier.
    pub fn passed_by(&self, len: u64) {
        self.inner.counts.count(ReadOutcome::Bypass, len, 0);
    }
}

/// Whether a block is small enough to be held until all of it has come.
fn may_be_held(stripes: &Stripes, len: u32) -> bool {
    len as usize <= longest_fetched(stripes.budget().total())
}

/// Returns the length of the longest block that is held until all of it has come, by a process with this memory for
/// bodies. Longer ones are not filled when they are read.
pub fn longest_fetched(body_memory: usize) -> usize {
    body_memory / FETCHED_PART
}

/// Reads the splits of a block that are still in memory, each on its own. The caller counts them as one read.
///
/// # Errors
/// [`StripeError::Overloaded`] when no memory becomes free for the block.
async fn splits_of(
    stripes: &Stripes,
    name: StripeId,
    stored: StoredBytes,
) -> Result<PartialRead, StripeError> {
    let splits = cached::splits(name);
    // A block of one split has no other parts.
    if splits == 1 || !may_be_held(stripes, stored.len()) {
        return Ok(PartialRead::default());
    }
    let share = stripes.budget().acquire(stored.len() as usize).await?;
    let split_len = split_len(stored.len(), splits);
    let split = |number: usize| {
        let (start, end) = (number as u32 * split_len, (number as u32 + 1) * split_len);
        Span { of: stored.clone(), range: start..end.min(stored.len()) }
    };
    let spans: Vec<Span> = (0..splits).map(split).filter(|span| !span.range.is_empty()).collect();
    let mut parts = Vec::new();
    let hand_out = |span: usize, bytes| parts.push((spans[span].range.clone(), bytes));
    // The error is that of a missing split.
    let _ = stripes.untold().read_ahead(&spans, hand_out).await;
    parts.sort_unstable_by_key(|(range, _)| range.start);
    let share = (!parts.is_empty()).then_some(share);
    Ok(PartialRead { parts, share, fill: None })
}

impl BlockFill {
    /// Records that the block is being read.
    pub fn begin_read(&mut self) {
        self.given_up = Some(MissReason::NotRead);
    }

    /// Renews the grant now and then. Call whenever bytes of the object have arrived.
    pub fn renew(&mut self) {
        let now = self.cache.runtime.now();
        if now - self.renewed_at >= RENEW_EVERY {
            self.renewed_at = now;
            let question = self.question;
            self.cache.spawn(|cache| async move { cache.renew_grant(question).await });
        }
    }

    /// Gives the fill up because there is no memory for the block.
    pub fn give_up_for_room(self) {
        self.give_up(MissReason::TooMuchOnTheWay);
    }

    fn give_up(mut self, reason: MissReason) {
        self.given_up = Some(reason);
    }

    /// Writes the block into the tier in the background. `shares` accounts for the memory of its bytes until then.
    pub fn fill(mut self, pieces: Vec<Bytes>, shares: impl Send + 'static) {
        let len: usize = pieces.iter().map(Bytes::len).sum();
        if len != self.question.len as usize {
            tracing::error!(len, of = self.question.len, "what was fetched of a block is not the block");
            return;
        }
        self.has_begun = true;
        let runtime = self.cache.runtime.clone();
        runtime.spawn(async move {
            let filled = self.write(&pieces).await;
            drop((pieces, shares));
            self.cache.end_fill(self.question, filled, &self.live).await;
        });
    }

    async fn write(&self, pieces: &[Bytes]) -> Result<usize, MissReason> {
        let kib = self.cache.kib_of_fill(&self.question, self.parities);
        let room = self.cache.runtime.timeout(WAIT_FOR_ROOM, self.cache.on_the_way.acquire_many(kib)).await;
        let Ok(Ok(_on_the_way)) = room else { return Err(MissReason::TooMuchOnTheWay) };
        self.cache.write_block(&self.question, pieces, self.parities, &self.live).await
    }
}

impl Drop for BlockFill {
    fn drop(&mut self) {
        if self.has_begun {
            return;
        }
        let (question, live, given_up) = (self.question, self.live.clone(), self.given_up);
        self.cache.spawn(|cache| async move {
            match given_up {
                Some(reason) => cache.end_fill(question, Err(reason), &live).await,
                None => cache.end_grant(question, TendEvent::GaveUp).await,
            }
        });
    }
}

impl std::fmt::Debug for BlockFill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockFill").field("name", &self.question.name).finish_non_exhaustive()
    }
}
