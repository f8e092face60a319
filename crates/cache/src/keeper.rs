//! The home's side of the tier: who fills a block, and how many parities it should have.
//!
//! A home keeps no list of cached blocks: a block is cached if its first split is in the home's own memory. The home
//! remembers which gateway fills which block, so that one gateway in the cluster does, and how often gateways report
//! that the more popular blocks were read. All of this may be lost; at worst a block is filled once more. So the home
//! forgets as much as its bound demands.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use striate_core::{ChunkId, StripeId, cached};
use striate_plan::cache::parities::parities;
use striate_plan::{ParityBudget, PopularBlock};
use striate_runtime::Instant;
use striate_site::{
    BlockKeeper, CacheStore, CacheView, CachedBlockState, MOST_PARITIES, Tend, TendEvent, Tended,
};

/// Lifetime of a grant that its holder does not renew. A gateway that has not filled the block by then will not.
const FILL_WITHIN: Duration = Duration::from_secs(10);
/// Minimum interval between plans of the parities.
const PLAN_EVERY: Duration = Duration::from_secs(5);
/// Half-life of a block's popularity.
const HALF_LIFE: Duration = Duration::from_secs(60);
/// Maximum number of popularities, and of grants, per MiB of memory.
const KNOWN_FOR_MIB: u64 = 4;

/// Decides who fills the blocks whose home is this site, and how many parities they get.
#[derive(Debug)]
pub struct Keeper {
    store: Arc<CacheStore>,
    budget: ParityBudget,
    most_known: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    filling: BTreeMap<StripeId, Grant>,
    /// Number of grants so far; they are numbered from 1.
    grants: u64,
    blocks: BTreeMap<StripeId, BlockRecord>,
    planned_at: Option<Instant>,
    /// Bytes of the budget for first parities that are still free.
    first_left: u64,
}

/// A gateway's right to fill a block, ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Grant {
    /// When it was made or last renewed.
    since: Instant,
    number: u64,
    /// Whether the first split is here, and others were lost: readers use what is left meanwhile.
    is_refill: bool,
}

/// Popularity and parities of a block.
#[derive(Clone, Copy, Debug, Default)]
struct BlockRecord {
    popularity: f64,
    split_len: u32,
    /// Parities reported as written.
    parities: u8,
    wanted_parities: u8,
}

impl Keeper {
    /// Creates the keeper of the blocks whose home has `store`. Homes share all blocks evenly, so each plans for its
    /// own memory.
    pub fn new(store: Arc<CacheStore>) -> Self {
        let bytes = store.view().bound_bytes;
        let budget = ParityBudget { most: MOST_PARITIES, ..ParityBudget::of_memory(bytes) };
        let most_known = ((bytes >> 20) * KNOWN_FOR_MIB).max(64) as usize;
        let state = State { first_left: budget.first_bytes, ..State::default() };
        Self { store, budget, most_known, state: Mutex::new(state) }
    }

    fn is_there(&self, name: StripeId) -> bool {
        self.store.has(cached::chunk(name, 0))
    }
}

impl BlockKeeper for Keeper {
    fn view(&self) -> CacheView {
        let mut view = self.store.view();
        let records: Vec<(StripeId, u8)> =
            self.state.lock().blocks.iter().map(|(name, record)| (*name, record.parities)).collect();
        for (_, parities) in records.into_iter().filter(|(name, _)| self.is_there(*name)) {
            view.blocks_by_parities[usize::from(parities).min(MOST_PARITIES)] += 1;
        }
        view
    }

    fn has(&self, chunks: &[ChunkId]) -> Vec<bool> {
        chunks.iter().map(|chunk| self.store.has(*chunk)).collect()
    }

    fn tend(&self, blocks: &[Tend], now: Instant) -> Vec<Tended> {
        let mut state = self.state.lock();
        let answer = |tend| {
            let answer = self.tend_one(&mut state, tend, now);
            state.trim(self.most_known);
            answer
        };
        let answers = blocks.iter().map(answer).collect();
        if state.planned_at.is_none_or(|planned| now - planned >= PLAN_EVERY) {
            self.plan(&mut state, now);
        }
        answers
    }
}

impl Keeper {
    fn tend_one(&self, state: &mut State, tend: &Tend, now: Instant) -> Tended {
        state.renew_grant(tend, now);
        let record = state.blocks.entry(tend.name).or_default();
        record.popularity += f64::from(tend.reads);
        record.split_len = tend.split_len;
        if let TendEvent::Filled { parities } = tend.matter {
            record.parities = parities;
        }
        let filled = CachedBlockState::Filled { parities: record.parities };
        let (standing, grant) = match tend.matter {
            TendEvent::Filled { .. } | TendEvent::GaveUp => {
                state.end_grant(tend);
                (filled, 0)
            }
            TendEvent::Look if self.is_there(tend.name) && !state.is_first_fill(tend.name, now) => {
                (filled, 0)
            }
            TendEvent::Look | TendEvent::Lost => self.grant(state, tend, now),
        };
        let wanted_parities = state.blocks.get(&tend.name).map_or(0, |record| record.wanted_parities);
        Tended { standing, wanted_parities, grant }
    }

    /// Grants the caller the fill and numbers the grant, unless another gateway is filling the block. A new block
    /// starts with one parity if memory allows.
    fn grant(&self, state: &mut State, tend: &Tend, now: Instant) -> (CachedBlockState, u64) {
        if state.grant_of(tend.name, now).is_some() {
            return (CachedBlockState::Filling, 0);
        }
        state.grants += 1;
        let number = state.grants;
        let is_refill = self.is_there(tend.name);
        state.filling.insert(tend.name, Grant { since: now, number, is_refill });
        let record = state.blocks.entry(tend.name).or_default();
        record.parities = 0;
        if record.wanted_parities == 0
            && let Some(remaining) = state.first_left.checked_sub(tend.split_len.into())
        {
            (state.first_left, record.wanted_parities) = (remaining, 1);
        }
        (CachedBlockState::Granted, number)
    }

    /// Lets popularity decay and plans how many parities each block should have.
    fn plan(&self, state: &mut State, now: Instant) {
        let since = state.planned_at.replace(now).map_or(Duration::ZERO, |planned| now - planned);
        let fade = 0.5f64.powf(since.as_secs_f64() / HALF_LIFE.as_secs_f64());
        state.filling.retain(|_, grant| now - grant.since < FILL_WITHIN);
        state.blocks.values_mut().for_each(|record| record.popularity *= fade);
        let popular = |(name, record): (&StripeId, &BlockRecord)| PopularBlock {
            splits: cached::splits(*name),
            split_bytes: record.split_len.into(),
            popularity: record.popularity,
        };
        let blocks: Vec<PopularBlock> = state.blocks.iter().map(popular).collect();
        let planned = parities(&blocks, self.budget);
        let mut first_bytes = 0;
        for (record, planned) in state.blocks.values_mut().zip(planned) {
            record.wanted_parities = planned.min(u8::MAX.into()) as u8;
            first_bytes += u64::from(record.split_len) * u64::from(record.wanted_parities.min(1));
        }
        state.first_left = self.budget.first_bytes.saturating_sub(first_bytes);
    }
}

impl State {
    /// Returns the grant of a block that is being filled.
    fn grant_of(&self, name: StripeId, now: Instant) -> Option<&Grant> {
        self.filling.get(&name).filter(|grant| now - grant.since < FILL_WITHIN)
    }

    /// Whether a block is being filled of which nothing was there before. Its first split arrives before others do.
    fn is_first_fill(&self, name: StripeId, now: Instant) -> bool {
        self.grant_of(name, now).is_some_and(|grant| !grant.is_refill)
    }

    /// Renews a grant that its holder names.
    fn renew_grant(&mut self, tend: &Tend, now: Instant) {
        let held = self.filling.get_mut(&tend.name).filter(|grant| grant.number == tend.grant);
        if let Some(grant) = held {
            grant.since = now;
        }
    }

    /// Ends a grant that its holder reports as over. Reports under other numbers end nothing: any gateway may write
    /// parities.
    fn end_grant(&mut self, tend: &Tend) {
        if self.filling.get(&tend.name).is_some_and(|grant| grant.number == tend.grant) {
            self.filling.remove(&tend.name);
        }
    }

    /// Forgets the least popular blocks and the oldest grants when there are more than `most`. Between two plans, a
    /// scan can touch more blocks than memory has room for, so this does not wait for the next plan.
    fn trim(&mut self, most: usize) {
        trim(&mut self.blocks, most, |a, b| a.popularity.total_cmp(&b.popularity));
        trim(&mut self.filling, most, Grant::cmp);
    }
}

/// Keeps the greatest `most / 2` entries when there are more than `most`, so that few calls select. Ties are broken by
/// name.
fn trim<V>(entries: &mut BTreeMap<StripeId, V>, most: usize, cmp: impl Fn(&V, &V) -> Ordering) {
    if entries.len() <= most {
        return;
    }
    let mut all: Vec<(StripeId, V)> = std::mem::take(entries).into_iter().collect();
    all.select_nth_unstable_by(most / 2, |(a, of_a), (b, of_b)| cmp(of_b, of_a).then(a.cmp(b)));
    all.truncate(most / 2);
    entries.extend(all);
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use striate_runtime::Runtime;
    use striate_site::{CacheOptions, ChunkStore};

    use super::*;

    const SPLIT_LEN: u32 = 1 << 20;

    fn tend(number: u64, reads: u32, matter: TendEvent) -> Tend {
        Tend {
            name: cached::name(u128::from(number) << 64, 4),
            split_len: SPLIT_LEN,
            reads,
            matter,
            grant: 0,
        }
    }

    fn of_grant(number: u64, matter: TendEvent, granted: Tended) -> Tend {
        Tend { grant: granted.grant, ..tend(number, 0, matter) }
    }

    struct Home {
        keeper: Keeper,
        store: Arc<CacheStore>,
        runtime: Runtime,
    }

    impl Home {
        fn new(mib: u64) -> Self {
            let store = Arc::new(CacheStore::new(CacheOptions::with_bound(mib << 20)).unwrap());
            let runtime = Runtime::deterministic(1, Duration::ZERO);
            Self { keeper: Keeper::new(store.clone()), store, runtime }
        }

        fn ask(&self, tend: Tend) -> Tended {
            self.keeper.tend(&[tend], self.runtime.now())[0]
        }

        async fn write(&self, number: u64, index: u8) {
            let split = cached::chunk(tend(number, 0, TendEvent::Look).name, index.into());
            self.store.write(split, Bytes::from_static(b"bytes"), None).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_gateway_fills_a_block_and_the_others_are_told_so() {
        let home = Home::new(64);
        let look = || home.ask(tend(1, 1, TendEvent::Look)).standing;
        let granted = home.ask(tend(1, 1, TendEvent::Look));
        assert_eq!(granted.standing, CachedBlockState::Granted);
        assert_eq!(look(), CachedBlockState::Filling);
        home.write(1, 0).await;
        assert_eq!(look(), CachedBlockState::Filling, "other splits are on their way");
        let filled = CachedBlockState::Filled { parities: 1 };
        assert_eq!(home.ask(of_grant(1, TendEvent::Filled { parities: 1 }, granted)).standing, filled);
        assert_eq!(look(), filled);
        assert_eq!(home.ask(tend(1, 1, TendEvent::Lost)).standing, CachedBlockState::Granted);
        assert_ne!(look(), CachedBlockState::Filling, "most of it is there");
    }

    #[tokio::test(start_paused = true)]
    async fn blocks_that_are_there_count_by_their_parities() {
        let home = Home::new(64);
        for (number, parities) in [(1, 0), (2, 2), (3, 2), (4, 200), (5, 1)] {
            home.ask(tend(number, 1, TendEvent::Look));
            home.ask(tend(number, 0, TendEvent::Filled { parities }));
            if number < 5 {
                home.write(number, 0).await;
            }
        }
        assert_eq!(home.keeper.view().blocks_by_parities, [1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_or_dies_makes_way_for_another() {
        let home = Home::new(64);
        let look = |number| home.ask(tend(number, 1, TendEvent::Look)).standing;
        let granted = home.ask(tend(1, 1, TendEvent::Look));
        assert_eq!(granted.standing, CachedBlockState::Granted);
        home.ask(of_grant(1, TendEvent::GaveUp, granted));
        assert_eq!(look(1), CachedBlockState::Granted);
        home.runtime.sleep(FILL_WITHIN - Duration::from_millis(1)).await;
        assert_eq!(look(1), CachedBlockState::Filling);
        home.runtime.sleep(Duration::from_millis(1)).await;
        assert_eq!(look(1), CachedBlockState::Granted);
    }

    #[tokio::test(start_paused = true)]
    async fn a_grant_lives_as_long_as_its_holder_renews_it() {
        let home = Home::new(64);
        let granted = home.ask(tend(1, 1, TendEvent::Look));
        let renew = || home.ask(of_grant(1, TendEvent::Look, granted)).standing;
        for _ in 0..5 {
            home.runtime.sleep(FILL_WITHIN - Duration::from_millis(1)).await;
            assert_eq!(renew(), CachedBlockState::Filling);
            assert_eq!(home.ask(tend(1, 1, TendEvent::Lost)).standing, CachedBlockState::Filling);
        }
        home.runtime.sleep(FILL_WITHIN).await;
        assert_eq!(home.ask(tend(1, 1, TendEvent::Look)).standing, CachedBlockState::Granted);
        home.runtime.sleep(FILL_WITHIN / 2).await;
        assert_eq!(renew(), CachedBlockState::Filling, "it is too late");
        home.runtime.sleep(FILL_WITHIN / 2).await;
        assert_eq!(renew(), CachedBlockState::Granted, "under another number");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_ends_the_grant_of_another() {
        let home = Home::new(64);
        let lost = || home.ask(tend(1, 1, TendEvent::Lost));
        let first = lost();
        home.runtime.sleep(FILL_WITHIN).await;
        let second = lost();
        assert_eq!((first.standing, second.standing), (CachedBlockState::Granted, CachedBlockState::Granted));
        // The first gateway is too late, and a third has written a parity.
        home.ask(of_grant(1, TendEvent::Filled { parities: 1 }, first));
        home.ask(tend(1, 0, TendEvent::GaveUp));
        assert_eq!(lost().standing, CachedBlockState::Filling);
        home.ask(of_grant(1, TendEvent::GaveUp, second));
        assert_eq!(lost().standing, CachedBlockState::Granted);
    }

    #[tokio::test(start_paused = true)]
    async fn one_gateway_fills_what_another_has_missed_splits_of() {
        let home = Home::new(64);
        home.write(1, 0).await;
        assert_eq!(home.ask(tend(1, 1, TendEvent::Lost)).standing, CachedBlockState::Granted);
        assert_eq!(home.ask(tend(1, 1, TendEvent::Lost)).standing, CachedBlockState::Filling);
        assert!(matches!(home.ask(tend(1, 1, TendEvent::Look)).standing, CachedBlockState::Filled { .. }));
    }

    #[tokio::test(start_paused = true)]
    async fn parities_follow_popularity_as_it_changes() {
        // 6.4 MiB for first parities, 3.2 MiB for more.
        let home = Home::new(64);
        for number in 0..10 {
            home.ask(tend(number, if number == 0 { 1_000 } else { 10 }, TendEvent::Look));
        }
        home.runtime.sleep(PLAN_EVERY).await;
        home.ask(tend(99, 0, TendEvent::GaveUp));
        let wanted = |number| home.ask(tend(number, 0, TendEvent::Look)).wanted_parities;
        assert_eq!((wanted(0), (1..10).map(wanted).sum::<u8>()), (4, 5), "three more for the popular one");
        home.runtime.sleep(HALF_LIFE * 10).await;
        for _ in 0..3 {
            home.ask(tend(5, 1_000, TendEvent::Look));
            home.runtime.sleep(PLAN_EVERY).await;
        }
        home.ask(tend(99, 0, TendEvent::GaveUp));
        assert_eq!((wanted(0), wanted(5)), (1, 4));
    }

    /// The second case is a scan: it reads each block once, so all are equally popular.
    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_never_exceeds_its_bound() {
        let reads: [fn(u64) -> u32; 2] = [|number| 1 + number as u32 % 7, |_| 1];
        for reads in reads {
            let home = Home::new(16);
            for number in 0..1_000 {
                assert_eq!(
                    home.ask(tend(number, reads(number), TendEvent::Look)).standing,
                    CachedBlockState::Granted
                );
                assert_eq!(home.ask(tend(number, 0, TendEvent::Look)).standing, CachedBlockState::Filling);
                let (known, filling) = {
                    let state = home.keeper.state.lock();
                    (state.blocks.len(), state.filling.len())
                };
                assert!(known <= 64 && filling <= 64, "{number}: {known} blocks, {filling} fills");
                home.runtime.sleep(Duration::from_millis(1)).await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_scan_does_not_make_a_home_forget_popular_blocks() {
        let home = Home::new(16);
        for number in 0..1_000 {
            home.ask(tend(number, if number < 32 { 2 } else { 1 }, TendEvent::Look));
        }
        let state = home.keeper.state.lock();
        assert!((0..32).all(|number| state.blocks.contains_key(&tend(number, 0, TendEvent::Look).name)));
    }
}
