//! Blocks of objects that are kept elsewhere, which only their reader can fetch.
//!
//! As for blocks of this store, one process in the cluster fills a block and the others wait for it. They wait longer: what they
//! would do instead is to fetch the same bytes from far away.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use striate_core::{StripeId, cached};
use striate_site::{Standing, TendMatter, Tended};
use striate_stripe::{BlocksRead, MemoryBlock, Span, Stored, Stripes};

use crate::Cache;
use crate::cache::Inner;
use crate::fates::Fate;
use crate::homes::{Learned, Question};
use crate::known::Sites;
use crate::splits::split_len;
use crate::view::ReadOutcome;

/// For so long a reader waits for a block that somebody else fetches.
const WAIT_FOR_FETCH: Duration = Duration::from_secs(10);
/// For so long a fetched block waits until there is memory for it on its way into the tier.
const WAIT_FOR_ROOM: Duration = Duration::from_secs(1);

/// How a block that is kept elsewhere stands.
#[derive(Debug)]
pub enum Looked {
    /// It is in memory, as far as is known.
    There,
    /// It is not, and the caller is to fetch it and fill the tier.
    Granted(BlockFill),
    /// Somebody else fetches it.
    OnItsWay,
    /// It is not, or nobody knows; the caller fetches what it wants of it.
    Absent,
}

/// The right and the duty to fill a block. Dropped before its end, it makes way for another.
pub struct BlockFill {
    cache: Arc<Inner>,
    question: Question,
    parities: usize,
    live: Arc<Sites>,
    has_begun: bool,
}

/// What a read of a block found in memory that is not all there.
#[derive(Debug, Default)]
pub struct Missed {
    /// Bytes, by their places in the block, ascending.
    pub parts: Vec<(Range<u32>, Vec<Bytes>)>,
    /// The caller is to fetch the rest of the block, and to fill it.
    pub fill: Option<BlockFill>,
}

impl Cache {
    /// How blocks stand, and which of them the caller is to fill. With `waits`, it waits for the first where another process
    /// fetches it.
    pub async fn look(&self, blocks: &[MemoryBlock], waits: bool) -> Vec<Looked> {
        let Some(stripes) = self.inner.stripes.upgrade() else { return Vec::new() };
        let live = self.inner.live(&stripes);
        let mut all = Vec::with_capacity(blocks.len());
        let mut asked = Vec::new();
        for (position, block) in blocks.iter().enumerate() {
            let question = self.inner.question(&Stored::Memory(block.clone()), &live);
            let is_there =
                question.is_some_and(|question| self.inner.known.form(question.name, &live).is_some());
            all.push(if is_there { Looked::There } else { Looked::Absent });
            asked.extend(question.filter(|_| !is_there).map(|question| (position, question)));
        }
        let (own, others): (Vec<_>, Vec<_>) =
            asked.into_iter().partition(|(_, question)| self.inner.ended(question.name).is_some());
        let questions: Vec<Question> = others.iter().map(|(_, question)| *question).collect();
        let mut under_way = own;
        let answers = self.inner.tend(&questions, 1, TendMatter::Look).await;
        for ((position, question), tended) in others.into_iter().zip(answers) {
            let Some(tended) = tended else { continue };
            match self.inner.learn(&question, tended, &live) {
                Learned::There(_) => all[position] = Looked::There,
                // The fill begins before the grant is dropped.
                Learned::Granted(_expected) => {
                    all[position] = self.grant(question, &live).map_or(Looked::Absent, Looked::Granted);
                }
                Learned::Absent if tended.standing == Standing::Filling => {
                    under_way.push((position, question))
                }
                Learned::Absent => {}
            }
        }
        for (position, question) in under_way {
            let is_awaited = waits && position == 0;
            all[position] = match is_awaited {
                true => self.wait_for_fetch(question, &live).await,
                false => Looked::OnItsWay,
            };
        }
        all
    }

    /// Waits for a block that somebody else fetches. Where that one gives it up, the caller may get its turn.
    async fn wait_for_fetch(&self, question: Question, live: &Arc<Sites>) -> Looked {
        let until = self.inner.runtime.now() + WAIT_FOR_FETCH;
        loop {
            let left = until.saturating_duration_since(self.inner.runtime.now());
            let waited = self.inner.wait_for_fill(&question, live, left).await;
            if matches!(waited, Learned::There(_)) {
                return Looked::There;
            }
            // Its home may have passed the turn to this process.
            if let Some(fill) = self.grant(question, live) {
                return Looked::Granted(fill);
            }
            drop(waited);
            let Some(Some(tended)) = self.inner.tend(&[question], 0, TendMatter::Look).await.pop() else {
                return Looked::Absent;
            };
            match self.inner.learn(&question, tended, live) {
                Learned::There(_) => return Looked::There,
                Learned::Granted(_expected) => {
                    return self.grant(question, live).map_or(Looked::Absent, Looked::Granted);
                }
                Learned::Absent if tended.standing == Standing::Filling && !left.is_zero() => {}
                Learned::Absent => return Looked::Absent,
            }
        }
    }

    /// Whether there are memory sites.
    pub fn has_sites(&self) -> bool {
        self.inner.stripes.upgrade().is_some_and(|stripes| !self.inner.live(&stripes).sites.is_empty())
    }

    /// Whether blocks that are written elsewhere are to be cached: writes are, and there are memory sites.
    pub fn fills_writes(&self) -> bool {
        self.inner.fills_writes && self.has_sites()
    }

    /// Asks for the filling of blocks whose bytes the caller has, because it wrote them. None for those that are there, or that somebody
    /// else fills. Nobody has read them, so they count as not read.
    pub async fn claim(&self, blocks: &[MemoryBlock]) -> Vec<Option<BlockFill>> {
        let Some(stripes) = self.inner.stripes.upgrade() else { return Vec::new() };
        let live = self.inner.live(&stripes);
        let of = |block: &MemoryBlock| self.inner.question(&Stored::Memory(block.clone()), &live);
        // Without a memory site no block has a home.
        let questions: Vec<Question> = blocks.iter().filter_map(of).collect();
        let answers = self.inner.tend(&questions, 0, TendMatter::Look).await;
        let granted = |(question, tended): (&Question, Option<Tended>)| {
            let tended = tended.filter(|tended| tended.standing == Standing::Granted)?;
            let _expected = self.inner.learn(question, tended, &live);
            self.grant(*question, &live)
        };
        questions.iter().zip(answers).map(granted).collect()
    }

    fn grant(&self, question: Question, live: &Arc<Sites>) -> Option<BlockFill> {
        let parities = self.inner.begin_fill(question.name)?;
        Some(BlockFill {
            cache: self.inner.clone(),
            question,
            parities,
            live: live.clone(),
            has_begun: false,
        })
    }

    /// Reads a part of a block out of memory.
    ///
    /// # Errors
    /// What is there, where not all is.
    pub async fn read(&self, block: &MemoryBlock, range: Range<u32>) -> Result<BlocksRead, Missed> {
        let Some(stripes) = self.inner.stripes.upgrade() else { return Err(Missed::default()) };
        let of = Stored::Memory(block.clone());
        if let Ok(read) = stripes.read_spans(&[Span { of: of.clone(), range }]).await {
            return Ok(read);
        }
        let live = self.inner.live(&stripes);
        let Some(question) = self.inner.question(&of, &live) else { return Err(Missed::default()) };
        // First read the splits that are there: once the block is forgotten, its home must be asked again.
        let parts = splits_of(&stripes, question.name, of).await;
        if self.inner.known.forget(question.name) {
            self.inner.fates.note(question.name, Fate::Gone);
        }
        let fill = match self.inner.tend(&[question], 1, TendMatter::Lost).await[..] {
            [Some(tended @ Tended { standing: Standing::Granted, .. })] => {
                let _expected = self.inner.learn(&question, tended, &live);
                self.grant(question, &live)
            }
            _ => None,
        };
        Err(Missed { parts, fill })
    }

    /// Whether a block is in memory, as far as this process knows. Asks nobody.
    pub fn knows(&self, block: &MemoryBlock) -> bool {
        let Some(stripes) = self.inner.stripes.upgrade() else { return false };
        let live = self.inner.live(&stripes);
        let question = self.inner.question(&Stored::Memory(block.clone()), &live);
        question.is_some_and(|question| self.inner.known.form(question.name, &live).is_some())
    }

    /// What a read is that finds nothing in memory.
    pub fn missed(&self) -> ReadOutcome {
        if self.has_sites() { ReadOutcome::Miss } else { ReadOutcome::Bypass }
    }

    /// Counts a read of `len` bytes of a block that is kept elsewhere, of which `cached` came from memory.
    pub fn fetched(&self, len: u64, cached: u64) {
        let outcome = if cached > 0 { ReadOutcome::Partial } else { self.missed() };
        self.inner.counts.count(outcome, len, cached);
    }

    /// Counts a read of `len` bytes of a block that is kept elsewhere and could not be had.
    pub fn failed(&self, len: u64) {
        self.inner.counts.count(ReadOutcome::Error, len, 0);
    }

    /// Counts a read of `len` bytes that passed by the tier.
    pub fn passed_by(&self, len: u64) {
        self.inner.counts.count(ReadOutcome::Bypass, len, 0);
    }
}

/// What there is of a block's splits, each read by itself.
async fn splits_of(stripes: &Stripes, name: StripeId, of: Stored) -> Vec<(Range<u32>, Vec<Bytes>)> {
    let splits = cached::splits(name);
    let split_len = split_len(of.len(), splits);
    let split = |number: usize| {
        let (start, end) = (number as u32 * split_len, (number as u32 + 1) * split_len);
        Span { of: of.clone(), range: start..end.min(of.len()) }
    };
    let spans: Vec<Span> = (0..splits).map(split).filter(|span| !span.range.is_empty()).collect();
    let mut parts = Vec::new();
    // Of one split all is missing.
    if splits > 1 {
        let hand_out = |span: usize, bytes| parts.push((spans[span].range.clone(), bytes));
        // The error is that of a split that is missing.
        let _ = stripes.read_ahead(&spans, hand_out).await;
    }
    parts.sort_unstable_by_key(|(range, _)| range.start);
    parts
}

impl BlockFill {
    /// Writes the block into the tier, in the background. `shares` are the memory that its bytes count in until then.
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

    async fn write(&self, pieces: &[Bytes]) -> Result<usize, Fate> {
        let kib = self.cache.kib_of_fill(&self.question, self.parities);
        let room = self.cache.runtime.timeout(WAIT_FOR_ROOM, self.cache.on_the_way.acquire_many(kib)).await;
        let Ok(Ok(_on_the_way)) = room else { return Err(Fate::TooMuchOnTheWay) };
        self.cache.write_block(&self.question, pieces, self.parities, &self.live).await
    }
}

impl Drop for BlockFill {
    fn drop(&mut self) {
        if self.has_begun {
            return;
        }
        let (cache, question, live) = (self.cache.clone(), self.question, self.live.clone());
        self.cache.runtime.spawn(async move { cache.end_fill(question, Err(Fate::NotRead), &live).await });
    }
}

impl std::fmt::Debug for BlockFill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockFill").field("name", &self.question.name).finish_non_exhaustive()
    }
}
