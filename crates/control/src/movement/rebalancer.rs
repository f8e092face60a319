//! Drain and rebalance: empties drained sites and fills new ones automatically.
//!
//! It checks periodically how full the sites are, whether or not anything is read, and moves the chunks that
//! [`striate_plan::movement::Levelling`] chooses, within its own budget of bytes per second. The reverse index, read
//! page by page, says what is on a site. The service keeps no state between two passes, so it may die at any time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use serde::Serialize;
use striate_core::{SiteId, StripeId};
use striate_meta::keys;
use striate_meta::records::{Garbage, Placement, Stripe};
use striate_plan::LeavingRacks;
use striate_plan::movement::{ChunkMove, Levelling, SiteFill};
use striate_runtime::Instant;
use striate_stripe::{StripeError, Stripes, own_locations, stripe_id, wide_of};

use super::mover::{MoveOutcome, move_while_leaving};
use super::room::find_clearing_move;
use super::throttle::Throttle;
use crate::rows::{Rows, leaving_racks};

/// Timeout for a site's report of how full it is.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Number of sites polled concurrently, and of chunks moved concurrently.
const AT_ONCE: usize = 4;
/// Stripe rows that are read together.
const BATCH: usize = 64;
/// Length of a pass in seconds of the budget: all sites together give at most this much in one pass.
const PASS_S: u64 = 60;
/// Exponent of the longest back-off: if nothing can be moved, 1 in 2⁶ passes looks for moves.
const MOST_FRUITLESS: u32 = 6;

/// Configuration of the rebalancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebalanceOptions {
    /// Bytes of chunks moved per second.
    pub bytes_per_s: u64,
    /// Interval between two passes.
    pub look_every: Duration,
}

impl Default for RebalanceOptions {
    /// 32 MiB/s: an eighth of what a slow disk writes, or a terabyte in nine hours.
    fn default() -> Self {
        Self { bytes_per_s: 32 << 20, look_every: Duration::from_secs(20) }
    }
}

/// Progress since the process started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RebalanceProgress {
    /// Passes over the sites.
    pub looks: u64,
    /// Chunks moved.
    pub chunks: u64,
    /// Bytes of the moved chunks.
    pub bytes: u64,
    /// Moves that other changes made needless.
    pub outdated: u64,
    /// Chunks found missing or damaged, and left to repair.
    pub left_to_repair: u64,
    /// Moves that a site refused, or that other changes of the stripe prevented.
    pub refused: u64,
    /// Reason of the last refusal, as text.
    pub last_refusal: Option<String>,
    /// Sites that had chunks to give in the last pass, and how many bytes.
    pub givers: Vec<(SiteId, u64)>,
}

/// Drains and rebalances sites. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Rebalancer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: RebalanceOptions,
    throttle: Throttle,
    progress: Mutex<RebalanceProgress>,
    is_paused: AtomicBool,
    /// Old chunks that may not have been deleted yet.
    recent_moves: Mutex<Vec<RecentMove>>,
}

/// A chunk that has moved off a site.
#[derive(Clone, Copy, Debug)]
struct RecentMove {
    at: Instant,
    stripe: StripeId,
    from: SiteId,
    bytes: u64,
}

impl Default for Rebalancer {
    fn default() -> Self {
        Self::new(RebalanceOptions::default())
    }
}

impl Rebalancer {
    /// Creates a rebalancer with these options.
    pub fn new(options: RebalanceOptions) -> Self {
        let throttle = Throttle::new(options.bytes_per_s);
        let (progress, is_paused, recent_moves) = (Mutex::default(), AtomicBool::default(), Mutex::default());
        Self { shared: Arc::new(Shared { options, throttle, progress, is_paused, recent_moves }) }
    }

    /// Returns the progress so far.
    pub fn progress(&self) -> RebalanceProgress {
        self.shared.progress.lock().clone()
    }

    /// Pauses, so that no further move starts, or resumes. Moves in progress are finished.
    pub fn set_paused(&self, is_paused: bool) {
        self.shared.is_paused.store(is_paused, Ordering::Relaxed);
    }

    /// Returns whether it is paused.
    pub fn is_paused(&self) -> bool {
        self.shared.is_paused.load(Ordering::Relaxed)
    }

    /// Runs until the task is dropped. Run it in one process of a cluster at a time; more than one would do no harm.
    pub fn run(self, stripes: Stripes) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let (mut patience, mut is_fruitful) = (Backoff::default(), false);
            loop {
                if !is_fruitful {
                    stripes.runtime().sleep(self.shared.options.look_every).await;
                }
                is_fruitful = false;
                let levelled = match self.levelling(&stripes).await {
                    Ok(levelling) if self.is_paused() || !patience.is_due(&levelling) => continue,
                    Ok(levelling) => self.level(&stripes, levelling).await,
                    Err(error) => Err(error),
                };
                match levelled {
                    Ok(chunks) => {
                        // If no site has anything to give, a pass costs nothing.
                        patience.note(chunks > 0 || self.progress().givers.is_empty());
                        is_fruitful = chunks > 0;
                        if is_fruitful {
                            tracing::info!(chunks, "moved chunks off drained sites, or to level sites");
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "moving chunks off drained and full sites failed; will retry")
                    }
                }
            }
        })
    }

    /// Checks how full the sites are and makes the moves that are due. Returns how many chunks it moved.
    ///
    /// # Errors
    /// When the metadata store fails; the next pass continues.
    pub async fn run_pass(&self, stripes: &Stripes) -> Result<u64, StripeError> {
        if self.is_paused() {
            return Ok(0);
        }
        let levelling = self.levelling(stripes).await?;
        self.level(stripes, levelling).await
    }

    /// Returns how full the sites are. A moved chunk stays on its old site until the deleter removes it, but counts
    /// as gone.
    async fn levelling(&self, stripes: &Stripes) -> Result<Levelling, StripeError> {
        let mut fills = fills(stripes).await;
        self.forget_deleted(stripes).await?;
        let mut gone: BTreeMap<SiteId, u64> = BTreeMap::new();
        self.shared
            .recent_moves
            .lock()
            .iter()
            .for_each(|moved| *gone.entry(moved.from).or_default() += moved.bytes);
        for fill in &mut fills {
            let bytes = gone.get(&fill.site).map_or(0, |&bytes| bytes.min(fill.used_bytes));
            fill.used_bytes -= bytes;
            fill.free_bytes += bytes;
        }
        Ok(Levelling::new(fills))
    }

    /// Forgets old chunks that have been deleted: no garbage row names them any more. Deletion takes longer than the
    /// grace; how much longer depends on how much else is to be deleted.
    async fn forget_deleted(&self, stripes: &Stripes) -> Result<(), StripeError> {
        let (now, grace) = (stripes.runtime().now(), stripes.options().garbage_grace);
        let may_be_deleted = |moved: &RecentMove| now.duration_since(moved.at) >= grace;
        if !self.shared.recent_moves.lock().iter().any(may_be_deleted) {
            return Ok(());
        }
        let mut garbage = BTreeSet::new();
        let mut rows = Rows::with_prefix(keys::GARBAGE);
        while let Some(page) = rows.next(stripes).await? {
            for row in page {
                let record: Garbage = row.record()?;
                let Ok(stripe) = stripe_id(&record.stripe) else { continue };
                garbage.extend(record.chunks.iter().map(|chunk| (stripe, SiteId(chunk.site))));
            }
        }
        let may_remain =
            |moved: &RecentMove| !may_be_deleted(moved) || garbage.contains(&(moved.stripe, moved.from));
        self.shared.recent_moves.lock().retain(may_remain);
        Ok(())
    }

    async fn level(&self, stripes: &Stripes, levelling: Levelling) -> Result<u64, StripeError> {
        let givers = levelling.givers();
        let before = {
            let mut progress = self.shared.progress.lock();
            progress.looks += 1;
            progress.givers.clone_from(&givers);
            progress.chunks
        };
        // A site that does not answer may come back: its rack is left only if it drains too.
        let leaving = leaving_racks(stripes, &BTreeSet::new()).await?;
        let mut pass = Pass { rebalancer: self, stripes, levelling, leaving, rng: stripes.runtime().rng() };
        // Each pass takes a part of what every giver has, so that the takers' space is shared by all of them and the
        // sites' reports are not too old.
        let most = (self.shared.options.bytes_per_s * PASS_S / givers.len().max(1) as u64).max(1);
        for (giver, bytes) in givers {
            let part = if pass.levelling.is_drained(giver) { bytes } else { bytes.div_ceil(4) };
            pass.relieve(giver, part.min(most)).await?;
        }
        Ok(self.progress().chunks - before)
    }

    fn count(&self, outcome: MoveOutcome) {
        let mut progress = self.shared.progress.lock();
        match outcome {
            MoveOutcome::Moved { bytes } => {
                progress.chunks += 1;
                progress.bytes += bytes;
            }
            MoveOutcome::Outdated => progress.outdated += 1,
            MoveOutcome::LeftToRepair => progress.left_to_repair += 1,
            MoveOutcome::Contended => progress.refused += 1,
            MoveOutcome::Refused(reason) => {
                progress.refused += 1;
                progress.last_refusal = Some(reason);
            }
        }
    }
}

/// Back-off after passes that moved nothing: the interval doubles each time, unless the sites change.
#[derive(Debug, Default)]
struct Backoff {
    members: Vec<(SiteId, bool, bool)>,
    /// Passes left to skip.
    skip: u32,
    /// Consecutive passes without a move.
    fruitless: u32,
}

impl Backoff {
    fn is_due(&mut self, levelling: &Levelling) -> bool {
        let members = levelling.members();
        if members != self.members {
            *self = Self { members, ..Self::default() };
        }
        let is_due = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        is_due
    }

    fn note(&mut self, is_fruitful: bool) {
        self.fruitless = if is_fruitful { 0 } else { (self.fruitless + 1).min(MOST_FRUITLESS) };
        self.skip = (1 << self.fruitless) - 1;
    }
}

/// One pass and its moves.
struct Pass<'a> {
    rebalancer: &'a Rebalancer,
    stripes: &'a Stripes,
    levelling: Levelling,
    /// Racks of which all sites drain or are retired.
    leaving: LeavingRacks,
    rng: SmallRng,
}

/// A move and the chunk's length.
type SizedMove = (ChunkMove, u32);

impl Pass<'_> {
    /// Moves about `bytes` off a site.
    async fn relieve(&mut self, giver: SiteId, bytes: u64) -> Result<(), StripeError> {
        let mut remaining = bytes;
        let mut placements = Rows::with_prefix(&keys::placements(giver));
        while let Some(page) = placements.next(self.stripes).await? {
            for row in page {
                let Some(placement) = keys::placement_number(&row.key) else { continue };
                let sites = row.record::<Placement>()?.sites.into_iter().map(SiteId).collect::<Vec<_>>();
                if !self.levelling.has_taker(giver, &sites) {
                    continue;
                }
                let mut reverse = Rows::with_prefix(&keys::reverses(placement));
                while let Some(page) = reverse.next(self.stripes).await? {
                    let stripes: Vec<StripeId> =
                        page.iter().filter_map(|row| keys::reverse_stripe(&row.key)).collect();
                    for batch in stripes.chunks(BATCH) {
                        if remaining == 0 || self.rebalancer.is_paused() {
                            return Ok(());
                        }
                        let moves = self.plan(giver, batch, &mut remaining).await?;
                        remaining += self.run(moves).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Plans where the chunks of these stripes on `giver` go, and subtracts their lengths from `remaining`.
    async fn plan(
        &mut self,
        giver: SiteId,
        stripes: &[StripeId],
        remaining: &mut u64,
    ) -> Result<Vec<SizedMove>, StripeError> {
        let mut moves = Vec::new();
        for (stripe, record) in self.stripes.records_of(stripes).await? {
            if *remaining == 0 {
                break;
            }
            match self.plan_one(giver, stripe, &record).await {
                Ok(None) => {}
                Ok(Some((chunk_move, len))) => {
                    self.levelling.note(chunk_move.from, chunk_move.to, len);
                    *remaining = remaining.saturating_sub(u64::from(len));
                    moves.push((chunk_move, len));
                }
                Err(error) => self.rebalancer.count(refusal(error)?),
            }
        }
        Ok(moves)
    }

    /// Returns `None` if the stripe has no chunk on `giver`, or no site may take one. A stripe without parities may have
    /// several there: the first one that may go moves.
    async fn plan_one(
        &mut self,
        giver: SiteId,
        stripe: StripeId,
        record: &Stripe,
    ) -> Result<Option<SizedMove>, StripeError> {
        let on_giver = own_locations(record).filter(|(_, at)| at.site == giver.0);
        let indices: Vec<usize> = on_giver.map(|(index, _)| index).collect();
        for index in indices {
            let planned = self.plan_chunk(giver, (stripe, index), record).await?;
            if planned.is_some() {
                return Ok(planned);
            }
        }
        Ok(None)
    }

    /// Returns `None` if no site may take the chunk, which is on `giver`.
    async fn plan_chunk(
        &mut self,
        giver: SiteId,
        (stripe, index): (StripeId, usize),
        record: &Stripe,
    ) -> Result<Option<SizedMove>, StripeError> {
        let profile = self.stripes.profiles().parse(&record.profile)?;
        let rule = self.stripes.placement_rule(&profile)?.leaving(&self.leaving);
        let len = record.chunk_len;
        let holders: Vec<SiteId> = record.locations.iter().map(|at| SiteId(at.site)).collect();
        let (own_rack, leaving) = (self.levelling.rack(giver).cloned(), &self.leaving);
        let mut draw_beside = |holders: &[SiteId], may_go: &dyn Fn(&SiteFill) -> bool| {
            self.levelling.draw_taker(giver, holders, &rule, len, may_go, &mut self.rng)
        };
        let mut draw = |may_go: &dyn Fn(&SiteFill) -> bool| draw_beside(&holders, may_go);
        let is_near = |to: &SiteFill| Some(&to.rack) == own_rack.as_ref();
        let to = match wide_of(&record.locations[index]) {
            None => draw(&|_| true),
            // Within its rack a member may usually be anywhere. A chunk that must leave asks its wide stripe, and
            // goes farther if need be.
            Some((wide, position)) if self.levelling.is_drained(giver) => {
                let Some(opened) = self.stripes.find(wide).await? else { return Ok(None) };
                let admits = |to: &SiteFill| self.stripes.admits_in_wide(&opened, position, to.site, leaving);
                let to = draw(&|to| is_near(to) && admits(to)).or_else(|| draw(&admits));
                // The only site open to it may hold another chunk of the stripe. That does not matter if the stripe
                // has no parities or is dead.
                let is_bound = !record.dropped && !record.dead;
                let to = to.or_else(|| (!is_bound).then(|| draw_beside(&[giver], &admits)).flatten());
                if to.is_none() && is_bound {
                    let wide = (wide, position);
                    let first = find_clearing_move(self.stripes, stripe, index, wide, leaving).await?;
                    return Ok(first.map(|chunk_move| (chunk_move, len)));
                }
                to
            }
            Some(_) => draw(&is_near),
        };
        Ok(to.map(|to| (ChunkMove { stripe, index, from: giver, to }, len)))
    }

    /// Moves chunks concurrently, within the budget. Returns the bytes of those that were not moved.
    async fn run(&mut self, moves: Vec<SizedMove>) -> Result<u64, StripeError> {
        let mut refused = 0;
        let (rebalancer, stripes, leaving) = (self.rebalancer, self.stripes, &self.leaving);
        let outcomes = moves.into_iter().map(|(chunk_move, len)| async move {
            rebalancer.shared.throttle.wait_for(stripes.runtime(), u64::from(len)).await;
            let outcome = match rebalancer.is_paused() {
                true => None,
                false => Some(move_while_leaving(stripes, &chunk_move, leaving.clone()).await),
            };
            (chunk_move, len, outcome)
        });
        let mut outcomes = stream::iter(outcomes.collect::<Vec<_>>()).buffer_unordered(AT_ONCE);
        while let Some((chunk_move, len, outcome)) = outcomes.next().await {
            let outcome = outcome.map(|moved| moved.or_else(refusal)).transpose()?;
            match outcome {
                Some(MoveOutcome::Moved { bytes }) => {
                    let at = stripes.runtime().now();
                    let moved = RecentMove { at, stripe: chunk_move.stripe, from: chunk_move.from, bytes };
                    rebalancer.shared.recent_moves.lock().push(moved);
                }
                _ => {
                    refused += u64::from(len);
                    self.levelling.note(chunk_move.to, chunk_move.from, len);
                }
            }
            outcome.into_iter().for_each(|outcome| rebalancer.count(outcome));
        }
        Ok(refused)
    }
}

/// Counts an error that concerns only one stripe as a refusal, so that it holds up no others.
fn refusal(error: StripeError) -> Result<MoveOutcome, StripeError> {
    match error {
        StripeError::Meta(error) => Err(error.into()),
        error => Ok(MoveOutcome::Refused(error.to_string())),
    }
}

/// Returns how full the sites that answer are.
async fn fills(stripes: &Stripes) -> Vec<SiteFill> {
    let views: Vec<_> = stripes.sites().into_iter().filter(|view| view.readable).collect();
    let asks = views.into_iter().map(|view| async move {
        let status = stripes.runtime().timeout(ANSWER_WITHIN, view.site.status()).await.ok()?.ok()?;
        Some(SiteFill {
            site: view.site.id(),
            rack: view.site.rack(),
            used_bytes: status.load.used_bytes,
            free_bytes: status.load.free_bytes,
            takes_chunks: view.writable,
            is_drained: view.draining,
        })
    });
    let asks = stream::iter(asks.collect::<Vec<_>>()).buffer_unordered(AT_ONCE);
    asks.filter_map(std::future::ready).collect().await
}
