//! A gateway's side of the tier.
//!
//! A block that this process knows to be there is read from the tier without a question. Of any other its home is asked: it is there;
//! or nobody has it and this process is to fill it; or somebody fills it, and the reader waits a little. Who has read a block that it
//! is to fill hands the bytes on, and writes them in the background.
//!
//! Nothing here can fail a read. A home that does not answer in time costs that time, once.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use striate_codec::ChunkSet;
use striate_core::{SiteId, StripeId, cached};
use striate_meta::records::Block;
use striate_plan::MemorySite;
use striate_plan::splits::{SPLIT_BYTES, data_splits, places};
use striate_runtime::{Instant, Runtime};
use striate_site::{Priority, Site, Standing, Tend, TendMatter, Tended};
use striate_stripe::{
    BlockCache, MemoryBlock, OpenedStripe, ServedFrom, Span, Stored, StripeError, Stripes, WeakStripes,
};
use tokio::sync::{Semaphore, watch};

use crate::answer::Answer;
use crate::fill::{self, split_len};
use crate::known::{Due, KnownBlocks, NameHasher, Sites, code};
use crate::names::name;
use crate::refill::Pace;
use crate::view::{CacheCounts, Served};

/// A home that has not answered by then is not waited for.
const ASK_WITHIN: Duration = Duration::from_millis(50);
/// For so long a reader waits for a block that somebody else fills.
const WAIT_FOR_FILL: Duration = Duration::from_millis(500);
/// Pause before the first further question to the home of a block that is being filled; each one after it is twice as long.
const ASK_AGAIN: Duration = Duration::from_millis(1);
/// And the longest one.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// What was to be filled by a read that came to nothing is forgotten after this time.
const FORGET_FILL: Duration = Duration::from_secs(10);

/// How a gateway uses the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// Bytes that blocks on their way into the tier take at once, as they were read and as splits; further ones are not filled.
    pub fill_bytes: usize,
    /// Bytes of a split: longer blocks are cut into more.
    pub split_bytes: u64,
    /// Whether writes fill the cache, as reads do.
    pub fills_writes: bool,
    /// Bytes of blocks a second of which lost splits are written again; 0: none.
    pub refill_bytes_per_s: u64,
}

impl Default for CacheSettings {
    /// 16 MiB on their way, splits of 1 MiB, of what is read; 64 MiB a second are filled again.
    fn default() -> Self {
        Self {
            fill_bytes: 16 << 20,
            split_bytes: SPLIT_BYTES,
            fills_writes: false,
            refill_bytes_per_s: 64 << 20,
        }
    }
}

/// The tier, as one process sees it. A cheap handle.
#[derive(Clone)]
pub struct Cache {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) runtime: Runtime,
    /// The stripe service holds this cache.
    pub(crate) stripes: WeakStripes,
    sites: Mutex<Tier>,
    pub(crate) known: KnownBlocks,
    filling: Mutex<Filling>,
    /// KiB that may be on their way, and what is left of them.
    kib_on_the_way: u32,
    pub(crate) on_the_way: Semaphore,
    pub(crate) split_bytes: u64,
    pub(crate) fills_writes: bool,
    pub(crate) refill_pace: Pace,
    pub(crate) counts: CacheCounts,
}

type Filling = HashMap<StripeId, Fill, BuildHasherDefault<NameHasher>>;

/// The sites of the tier.
#[derive(Default)]
struct Tier {
    /// Bytes that each may hold.
    bytes: HashMap<SiteId, u64>,
    /// Those that answered last.
    live: Arc<Sites>,
}

/// A block that this process is to fill.
struct Fill {
    since: Instant,
    has_begun: bool,
    parities: usize,
    /// Dropped when it is filled, or will not be.
    _done: watch::Sender<()>,
    ended: watch::Receiver<()>,
}

/// A block of a query whose home is asked.
#[derive(Clone, Copy)]
pub(crate) struct Question {
    pub(crate) name: StripeId,
    pub(crate) len: u32,
    pub(crate) home: SiteId,
}

impl Question {
    pub(crate) fn tend(&self, reads: u32, matter: TendMatter) -> Tend {
        let split_len = split_len(self.len, cached::splits(self.name));
        Tend { name: self.name, split_len, reads, matter }
    }
}

impl Cache {
    /// Of the reads of `stripes`. They look for cached blocks from when there are memory sites ([`Cache::set_sites`]).
    pub fn new(stripes: &Stripes, settings: CacheSettings) -> Self {
        let kib_on_the_way =
            (settings.fill_bytes >> 10).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize)) as u32;
        let inner = Inner {
            runtime: stripes.runtime().clone(),
            stripes: stripes.downgrade(),
            sites: Mutex::default(),
            known: KnownBlocks::new(),
            filling: Mutex::default(),
            kib_on_the_way,
            on_the_way: Semaphore::new(kib_on_the_way as usize),
            split_bytes: settings.split_bytes,
            fills_writes: settings.fills_writes,
            refill_pace: Pace::new(settings.refill_bytes_per_s),
            counts: CacheCounts::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The sites of the tier, and the bytes that each may hold.
    pub fn set_sites(&self, sites: Vec<(Arc<dyn Site>, u64)>) {
        let Some(stripes) = self.inner.stripes.upgrade() else { return };
        self.inner.sites.lock().bytes = sites.iter().map(|(site, bytes)| (site.id(), *bytes)).collect();
        if !sites.is_empty() {
            stripes.set_cache(Arc::new(self.clone()));
        }
        stripes.set_memory_sites(sites.into_iter().map(|(site, _)| site).collect());
    }

    /// What it did for reads.
    pub fn counts(&self) -> &CacheCounts {
        &self.inner.counts
    }

    /// Blocks that this process is to fill, or is filling.
    pub fn filling(&self) -> usize {
        self.inner.filling.lock().len()
    }
}

impl BlockCache for Cache {
    fn find<'a>(&'a self, spans: &'a [Span]) -> BoxFuture<'a, Vec<Option<Arc<OpenedStripe>>>> {
        self.inner.find(spans).boxed()
    }

    fn explain(&self, of: &Stored) -> String {
        self.inner.explain(of)
    }

    fn written(&self, block: &Block, bytes: &Bytes) {
        self.inner.written(block, bytes);
    }

    fn keep(
        &self,
        bytes: Bytes,
        most_splits: usize,
        parities: usize,
    ) -> BoxFuture<'_, Result<MemoryBlock, StripeError>> {
        self.inner.keep(bytes, most_splits, parities).boxed()
    }

    fn forget(&self, block: MemoryBlock) {
        self.inner.forget(block);
    }

    fn served(&self, span: &Span, bytes: &[Bytes], from: ServedFrom) {
        self.inner.served(span, bytes, from);
    }
}

impl Inner {
    /// The sites that answer now.
    pub(crate) fn live(&self, stripes: &Stripes) -> Arc<Sites> {
        let answering = stripes.memory_sites();
        let mut tier = self.sites.lock();
        let bytes = |site: SiteId| tier.bytes.get(&site).copied().unwrap_or(1);
        let now = answering.iter().map(|site| MemorySite { site: site.id(), bytes: bytes(site.id()) });
        // A site that comes back with another size is the home of other blocks.
        if !now.clone().eq(tier.live.sites.iter().copied()) {
            let (sites, version) = (now.collect(), tier.live.version + 1);
            tier.live = Arc::new(Sites { sites, version });
        }
        tier.live.clone()
    }

    pub(crate) fn site(&self, site: SiteId) -> Option<Arc<dyn Site>> {
        let stripes = self.stripes.upgrade()?;
        stripes.memory_sites().into_iter().find(|live| live.id() == site)
    }

    /// What a span's block or extent is called, cut as the live sites suggest, and its home.
    pub(crate) fn question(&self, of: &Stored, live: &Sites) -> Option<Question> {
        let splits = data_splits(of.len().into(), self.split_bytes, live.sites.len());
        let name = name(of, splits).ok()?;
        let home = *places(name, &live.sites, 1).first()?;
        Some(Question { name, len: of.len(), home })
    }

    fn explain(&self, of: &Stored) -> String {
        if let Stored::Memory(MemoryBlock { placed: Some(placed), .. }) = of {
            return format!("in memory only: {}", splits_and_parities(placed.splits, placed.sites.len()));
        }
        let Some(stripes) = self.stripes.upgrade() else { return "the service ends".to_owned() };
        let live = self.live(&stripes);
        let Some(question) = self.question(of, &live) else { return "no memory site answers".to_owned() };
        let Some(form) = self.known.form(question.name, &live) else {
            let is_on_its_way = self.ended(question.name).is_some();
            let state = if is_on_its_way {
                "being written to memory"
            } else {
                "not in memory, as far as this gateway knows"
            };
            return match live.sites.len() {
                1 => state.to_owned(),
                _ => format!("{state}; its home is memory site {}", question.home),
            };
        };
        let splits = cached::splits(question.name);
        if live.sites.len() == 1 {
            return "in memory, whole".to_owned();
        }
        let sites: Vec<String> =
            form.record.locations.iter().filter(|at| at.site != 0).map(|at| at.site.to_string()).collect();
        format!(
            "in memory: {}, on memory sites {}",
            splits_and_parities(splits, sites.len()),
            sites.join(", ")
        )
    }

    async fn find(self: &Arc<Self>, spans: &[Span]) -> Vec<Option<Arc<OpenedStripe>>> {
        let Some(stripes) = self.stripes.upgrade() else { return Vec::new() };
        let live = self.live(&stripes);
        if live.sites.is_empty() {
            return Vec::new();
        }
        let mut forms = vec![None; spans.len()];
        let mut unknown: HashMap<StripeId, (Question, Vec<usize>)> = HashMap::new();
        for (position, span) in spans.iter().enumerate() {
            let Some(question) = self.question(&span.of, &live) else { continue };
            if let Stored::Memory(MemoryBlock { placed: Some(placed), .. }) = &span.of {
                let now = self.runtime.now();
                forms[position] = self.known.placed(question.name, question.len, placed, now).ok();
                continue;
            }
            match self.known.form(question.name, &live) {
                Some(form) => forms[position] = Some(form),
                None => unknown.entry(question.name).or_insert((question, Vec::new())).1.push(position),
            }
        }
        let mut unknown: Vec<(Question, Vec<usize>)> = unknown.into_values().collect();
        unknown.sort_unstable_by_key(|(_, positions)| positions[0]);
        let questions: Vec<Question> = unknown.iter().map(|(question, _)| *question).collect();
        for (form, (_, positions)) in self.ask(&questions, &live).await.into_iter().zip(unknown) {
            positions.into_iter().for_each(|position| forms[position].clone_from(&form));
        }
        forms
    }

    /// The forms of blocks that are not known: those that their homes have, those that are filled meanwhile.
    async fn ask(
        self: &Arc<Self>,
        questions: &[Question],
        live: &Arc<Sites>,
    ) -> Vec<Option<Arc<OpenedStripe>>> {
        let is_own = |question: &Question| self.ended(question.name).is_some();
        let (own, others): (Vec<Question>, Vec<Question>) =
            questions.iter().partition(|question| is_own(question));
        let mut found: HashMap<StripeId, Option<Arc<OpenedStripe>>> = HashMap::new();
        let mut waiting = own;
        for (question, tended) in others.iter().zip(self.tend(&others, 1, TendMatter::Look).await) {
            match tended {
                Some(Tended { standing: Standing::Filling, .. }) => waiting.push(*question),
                Some(tended) => drop(found.insert(question.name, self.learn(question, tended, live))),
                None => {}
            }
        }
        let wait = |question| self.wait_for_fill(question, live, WAIT_FOR_FILL);
        let waited = join_all(waiting.iter().map(wait)).await;
        found.extend(waiting.iter().map(|question| question.name).zip(waited));
        questions.iter().map(|question| found.remove(&question.name).flatten()).collect()
    }

    /// Tells homes the same of blocks, each of its own, that were read `reads` times; `None` for those that did not answer in time.
    pub(crate) async fn tend(
        &self,
        questions: &[Question],
        reads: u32,
        matter: TendMatter,
    ) -> Vec<Option<Tended>> {
        let mut homes: Vec<(SiteId, Vec<usize>)> = Vec::new();
        for (position, question) in questions.iter().enumerate() {
            match homes.iter_mut().find(|(home, _)| *home == question.home) {
                Some((_, positions)) => positions.push(position),
                None => homes.push((question.home, vec![position])),
            }
        }
        let ask = |(home, positions): (SiteId, Vec<usize>)| async move {
            let tends = positions.iter().map(|&position| questions[position].tend(reads, matter)).collect();
            (positions, self.ask_home(home, tends).await)
        };
        let mut answers = vec![None; questions.len()];
        for (positions, answer) in join_all(homes.into_iter().map(ask)).await {
            let tended = answer.map(Answer::take).unwrap_or_default();
            for (position, tended) in positions.into_iter().zip(tended) {
                answers[position] = Some(tended);
            }
        }
        answers
    }

    /// Tells a home of blocks. Nothing, if it does not answer in time.
    pub(crate) async fn tell(&self, home: SiteId, tends: Vec<Tend>) -> Vec<Tended> {
        self.ask_home(home, tends).await.map(Answer::take).unwrap_or_default()
    }

    /// A home's answer, if it comes in time. One that comes later gives up what it grants.
    async fn ask_home(&self, home: SiteId, tends: Vec<Tend>) -> Option<Answer> {
        let site = self.site(home)?;
        let answered = Answer::wait_for(self.runtime.clone(), site, tends);
        match self.runtime.timeout(ASK_WITHIN, answered).await {
            Ok(Ok(Ok(answer))) => Some(answer),
            failed => {
                let error = failed.map(|answered| answered.map(|answer| answer.err()));
                tracing::debug!(site = %home, ?error, "a home of cached blocks was asked in vain");
                self.counts.unanswered.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Records a home's answer about a block, and returns the block's form if the block is cached.
    pub(crate) fn learn(
        &self,
        question: &Question,
        tended: Tended,
        live: &Sites,
    ) -> Option<Arc<OpenedStripe>> {
        let (name, now) = (question.name, self.runtime.now());
        let wanted = self.parities_within(usize::from(tended.wanted_parities), name, live);
        match tended.standing {
            Standing::Filled { parities } => {
                let split_len = split_len(question.len, cached::splits(name));
                let parities = self.parities_within(usize::from(parities), name, live);
                self.known.add(name, split_len, (parities, wanted), live, now).ok()
            }
            Standing::Granted => {
                let mut filling = self.filling.lock();
                filling.retain(|_, fill| fill.has_begun || now - fill.since < FORGET_FILL);
                let (done, ended) = watch::channel(());
                filling.insert(
                    name,
                    Fill { since: now, has_begun: false, parities: wanted, _done: done, ended },
                );
                None
            }
            Standing::Filling => None,
        }
    }

    /// More parities than there are further sites spread nothing.
    fn parities_within(&self, parities: usize, name: StripeId, live: &Sites) -> usize {
        parities.min(live.sites.len().saturating_sub(cached::splits(name)))
    }

    /// When this process has filled a block, if it is about to.
    pub(crate) fn ended(&self, name: StripeId) -> Option<watch::Receiver<()>> {
        let filling = self.filling.lock();
        let fill = filling.get(&name).filter(|fill| self.runtime.now() - fill.since < FORGET_FILL);
        fill.map(|fill| fill.ended.clone())
    }

    /// Waits until a block that is being filled is there, as long as `patience` lasts.
    pub(crate) async fn wait_for_fill(
        &self,
        question: &Question,
        live: &Sites,
        patience: Duration,
    ) -> Option<Arc<OpenedStripe>> {
        let waiting = async {
            if let Some(mut ended) = self.ended(question.name) {
                // The sender never sends: this ends when it is dropped.
                let _ = ended.changed().await;
                return self.known.form(question.name, live);
            }
            let mut pause = ASK_AGAIN;
            loop {
                self.runtime.sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                let tended = self.tell(question.home, vec![question.tend(0, TendMatter::Look)]).await;
                match tended.first() {
                    Some(Tended { standing: Standing::Filling, .. }) => {}
                    Some(tended) => return self.learn(question, *tended, live),
                    None => return None,
                }
            }
        };
        self.runtime.timeout(patience, waiting).await.ok().flatten()
    }

    fn served(self: &Arc<Self>, span: &Span, bytes: &[Bytes], from: ServedFrom) {
        let len: u64 = bytes.iter().map(|piece| piece.len() as u64).sum();
        if matches!(&span.of, Stored::Memory(MemoryBlock { placed: Some(_), .. })) {
            return self.counts.served(Served::Hit, len, len);
        }
        let Some(stripes) = self.stripes.upgrade() else { return };
        let live = self.live(&stripes);
        let Some(question) = self.question(&span.of, &live) else {
            return self.counts.served(Served::Bypass, len, 0);
        };
        match from {
            ServedFrom::Cache { missing } => {
                self.counts.served(Served::Hit, len, len);
                if !missing.is_empty() {
                    let (of, whole) = (span.of.clone(), span.is_whole().then(|| bytes.to_vec()));
                    let live = live.clone();
                    self.spawn(|this| async move {
                        this.refill(question, of, whole, missing, &live).await;
                    });
                }
                let due = self.known.note_read(question.name, self.runtime.now());
                if due != Due::default() {
                    let (of, whole) = (span.of.clone(), span.is_whole().then(|| bytes.to_vec()));
                    self.spawn(|this| async move { this.follow(question, of, due, whole, &live).await });
                }
            }
            ServedFrom::Both { cached } => {
                let served = if cached > 0 { Served::Partial } else { Served::Miss };
                self.counts.served(served, len, cached);
                // Of all who find it missing at the same time one asks.
                if self.known.forget(question.name) {
                    let (of, whole) = (span.of.clone(), span.is_whole().then(|| bytes.to_vec()));
                    // A home knows whether a whole block is there by now; of splits others are missing than its own.
                    let is_whole = cached::splits(question.name) == 1;
                    let matter = if is_whole { TendMatter::Look } else { TendMatter::Lost };
                    self.spawn(|this| async move {
                        this.fill_if_granted(question, of, whole, matter, &live).await;
                    });
                }
            }
            ServedFrom::Store => {
                self.counts.served(Served::Miss, len, 0);
                if let Some(parities) = self.begin_fill(question.name) {
                    let whole = span.is_whole().then(|| bytes.to_vec());
                    let of = span.of.clone();
                    self.spawn(|this| async move { this.fill(question, of, whole, parities, &live).await });
                }
            }
        }
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F) {
        self.runtime.spawn(work(self.clone()));
    }

    /// The parities of a block that this process is to fill and has not begun to.
    pub(crate) fn begin_fill(&self, name: StripeId) -> Option<usize> {
        let mut filling = self.filling.lock();
        let fill = filling.get_mut(&name).filter(|fill| !fill.has_begun)?;
        fill.has_begun = true;
        Some(fill.parities)
    }

    /// Tells a block's home of reads, and makes it as many parities as the home says.
    async fn follow(
        &self,
        question: Question,
        of: Stored,
        due: Due,
        whole: Option<Vec<Bytes>>,
        live: &Sites,
    ) {
        let name = question.name;
        if let Some(reads) = due.tell {
            let tended = self.tell(question.home, vec![question.tend(reads, TendMatter::Look)]).await;
            match tended.first() {
                Some(tended) if tended.standing == Standing::Granted => {
                    // Its home does not have the first split. The others may be there; if not, the next read fills the block again.
                    self.tell(question.home, vec![question.tend(0, TendMatter::GaveUp)]).await;
                    if !self.refill(question, of, whole, ChunkSet::first(1), live).await {
                        self.known.forget(name);
                    }
                    return;
                }
                Some(tended) => {
                    let wanted = self.parities_within(tended.wanted_parities.into(), name, live);
                    self.known.asked(name, wanted);
                }
                None => {}
            }
        }
        let Some(parities) = due.parities else { return };
        let has = self.known.parities(name).unwrap_or(parities);
        let written = match whole {
            Some(pieces) if parities > has => {
                self.add_parities(&question, &pieces, (has, parities), live).await
            }
            // Readers ignore the surplus parities; their sites evict them in time.
            _ if parities < has => parities,
            _ => return,
        };
        let split_len = split_len(question.len, cached::splits(name));
        let now = self.runtime.now();
        let known = self.known.add(name, split_len, (written, written), live, now);
        if known.is_ok() {
            let parities = written as u8;
            self.tell(question.home, vec![question.tend(0, TendMatter::Filled { parities })]).await;
        }
    }

    /// Writes the parities `from` to `to` of a block. Answers how many it has then.
    async fn add_parities(
        &self,
        question: &Question,
        pieces: &[Bytes],
        (from, to): (usize, usize),
        live: &Sites,
    ) -> usize {
        let (name, splits) = (question.name, cached::splits(question.name));
        let Ok(of) = self.known.code(code(splits, to)) else { return from };
        let data = fill::cut(pieces, question.len, splits);
        let Ok(parities) = fill::encode(&of, &data, from, self.runtime.buffers()) else { return from };
        let places = places(name, &live.sites, splits + to);
        let written =
            fill::write(name, splits + from, parities, &places, Priority::Background, |site| self.site(site))
                .await;
        let more = written.iter().take_while(|written| written.is_ok()).count();
        self.counts.parities.fetch_add(more as u64, Ordering::Relaxed);
        from + more
    }

    /// A block was written: fills it, where writes are cached.
    fn written(self: &Arc<Self>, block: &Block, bytes: &Bytes) {
        let Some(stripes) = self.fills_writes.then(|| self.stripes.upgrade()).flatten() else { return };
        let (of, live) = (Stored::from(block.clone()), self.live(&stripes));
        if let Some(question) = self.question(&of, &live) {
            let (whole, matter) = (Some(vec![bytes.clone()]), TendMatter::Look);
            self.spawn(|this| async move { this.fill_if_granted(question, of, whole, matter, &live).await });
        }
    }

    /// Fills a block that is not there, or of which splits are missing, unless somebody else does.
    async fn fill_if_granted(
        &self,
        question: Question,
        of: Stored,
        whole: Option<Vec<Bytes>>,
        matter: TendMatter,
        live: &Sites,
    ) {
        let tended = self.tell(question.home, vec![question.tend(0, matter)]).await;
        let Some(tended) = tended.first().filter(|tended| tended.standing == Standing::Granted) else {
            return;
        };
        self.learn(&question, *tended, live);
        if let Some(parities) = self.begin_fill(question.name) {
            self.fill(question, of, whole, parities, live).await;
        }
    }

    /// Splits, codes and writes a block, which is read first where it is not at hand.
    async fn fill(
        &self,
        question: Question,
        of: Stored,
        whole: Option<Vec<Bytes>>,
        parities: usize,
        live: &Sites,
    ) {
        let filled = self.read_and_write(&question, of, whole, parities, live).await;
        self.end_fill(question, filled, live).await;
    }

    /// Tells the home of a block how its fill ended: with so many parities, or not at all.
    pub(crate) async fn end_fill(&self, question: Question, filled: Option<usize>, live: &Sites) {
        let (name, counts) = (question.name, &self.counts);
        let matter = match filled {
            Some(parities) => {
                counts.fills.fetch_add(1, Ordering::Relaxed);
                counts.filled_bytes.fetch_add(question.len.into(), Ordering::Relaxed);
                let split_len = split_len(question.len, cached::splits(name));
                let _ = self.known.add(name, split_len, (parities, parities), live, self.runtime.now());
                TendMatter::Filled { parities: parities as u8 }
            }
            None => {
                counts.given_up.fetch_add(1, Ordering::Relaxed);
                TendMatter::GaveUp
            }
        };
        self.filling.lock().remove(&name);
        self.tell(question.home, vec![question.tend(0, matter)]).await;
    }

    /// What is in memory of a block on its way: the bytes as they were read, and its splits. One that is larger than all that may be on
    /// the way is there alone.
    pub(crate) fn kib_of_fill(&self, question: &Question, parities: usize) -> u32 {
        let splits = cached::splits(question.name);
        let bytes =
            u64::from(question.len) + u64::from(split_len(question.len, splits)) * (splits + parities) as u64;
        bytes.div_ceil(1 << 10).min(self.kib_on_the_way.into()) as u32
    }

    /// How many parities a block has, now that it is read and written; `None` where its data are not there.
    async fn read_and_write(
        &self,
        question: &Question,
        of: Stored,
        whole: Option<Vec<Bytes>>,
        parities: usize,
        live: &Sites,
    ) -> Option<usize> {
        let _on_the_way = self.on_the_way.try_acquire_many(self.kib_of_fill(question, parities)).ok()?;
        let read;
        let pieces = match &whole {
            Some(pieces) => pieces,
            None => {
                let stripes = self.stripes.upgrade()?.past_cache();
                read = stripes.read_spans(&[Span::whole(of)]).await.ok()?;
                &read.blocks[0]
            }
        };
        self.write(question, pieces, parities, live).await
    }

    /// How many parities a block has, now that it is written; `None` where its data are not there.
    pub(crate) async fn write(
        &self,
        question: &Question,
        pieces: &[Bytes],
        parities: usize,
        live: &Sites,
    ) -> Option<usize> {
        let splits = cached::splits(question.name);
        let of_block = self.known.code(code(splits, parities)).ok()?;
        let mut all = fill::cut(pieces, question.len, splits);
        if parities > 0 {
            all.extend(fill::encode(&of_block, &all, 0, self.runtime.buffers()).ok()?);
        }
        let places = places(question.name, &live.sites, splits + parities);
        let written =
            fill::write(question.name, 0, all, &places, Priority::Background, |site| self.site(site)).await;
        let has_data = written.iter().take(splits).all(Result::is_ok);
        has_data.then(|| written.iter().skip(splits).take_while(|written| written.is_ok()).count())
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("filling", &self.filling()).finish_non_exhaustive()
    }
}

/// What `chunks` of a cached block are, the first `splits` of which are its data.
fn splits_and_parities(splits: usize, chunks: usize) -> String {
    let parities = chunks.saturating_sub(splits);
    let data = if splits == 1 { "split" } else { "splits" };
    let coded = if parities == 1 { "parity" } else { "parities" };
    format!("{splits} data {data} and {parities} {coded}")
}
