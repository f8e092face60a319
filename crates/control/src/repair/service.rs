//! Automatic repair (EC-Store §V-C): repays debt as soon as it is seen, and rebuilds the chunks of sites that are
//! silent for the wait, or retired.
//!
//! Three loops. One watches the sites ([`crate::repair::absence`]), and one counts what wide stripes lack
//! ([`crate::repair::wide_losses`]). The third takes the most endangered stripes ([`crate::repair::work_list`]) and
//! repairs several concurrently at the pace that the sites allow ([`crate::repair::pace`]). After a while it takes the list again, so that stripes that have become more endangered
//! come first. Stripes that cannot be repaired now are put off, for longer each time, until the set of sites changes.
//!
//! None of this state must survive: the next process finds in the metadata what is left. Only the wait starts again.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, Either, select};
use futures::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use striate_core::{SiteId, StripeId};
use striate_meta::{keys, records};
use striate_runtime::Instant;
use striate_stripe::{StripeError, Stripes};

use crate::repair::absence::{AbsentSites, SilenceTracker};
use crate::repair::pace::{RepairLimits, RepairPace};
use crate::repair::progress::Progress;
use crate::repair::wide_losses::{Ranks, WideLosses};
use crate::repair::work_list::{ListLimits, ListScope, WorkList};
use crate::repair::{RepairOutcome, repair_stripe};

/// Poll interval for the sites, and for new debt.
const PASS_EVERY: Duration = Duration::from_secs(5);
/// Time after which the list is taken again.
const REVIEW_EVERY: Duration = Duration::from_secs(30);
/// Interval between two counts of the remaining stripes; in between, repaired ones are subtracted.
const COUNT_EVERY: Duration = Duration::from_secs(600);
/// Time for which lists wait for the first count of what wide stripes lack after the sites have changed.
const RANKED_WITHIN: Duration = Duration::from_secs(30);
/// Interval between two checks whether that is to be counted, or was.
const RANK_POLL: Duration = Duration::from_secs(1);
/// Maximum number of stripes in a list.
const LISTED: usize = 1_000;
/// Concurrent repairs per site: more than one, since a repair keeps some sites waiting for others.
const AT_ONCE_PER_SITE: usize = 2;
/// Bounds of the number of concurrent repairs.
const AT_ONCE: std::ops::RangeInclusive<usize> = 8..=64;
/// Time after which a stripe that cannot be repaired is tried again; doubled after each failure.
const PUT_OFF: Duration = Duration::from_secs(60);
/// Maximum time between two tries.
const PUT_OFF_AT_MOST: Duration = Duration::from_secs(3_600);
/// Maximum number of stripes put off, which take some megabytes. At this number repair waits until one of them is
/// due.
const MOST_PUT_OFF: usize = 200_000;

/// Configuration of the repair service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairOptions {
    /// Time after which a silent site counts as lost.
    pub after: Duration,
    /// Rate limits; `None` disables repair.
    pub limits: Option<RepairLimits>,
}

impl Default for RepairOptions {
    fn default() -> Self {
        Self { after: Duration::from_secs(15 * 60), limits: Some(RepairLimits::default()) }
    }
}

/// The repair service. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RepairService {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: RepairOptions,
    pace: RepairPace,
    /// Result of the last poll of the sites; `None` before the first.
    absent: Mutex<Option<AbsentSites>>,
    /// Last count of what wide stripes lack.
    wide: Mutex<WideLosses>,
    progress: Mutex<Progress>,
    /// Number of current holds.
    holds: AtomicUsize,
}

/// A hold on the service: while it exists, no further repair is started.
#[derive(Debug)]
pub struct RepairHold(Arc<Shared>);

impl Drop for RepairHold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stripe that could not be repaired.
#[derive(Clone, Copy, Debug)]
struct DeferredRepair {
    until: Instant,
    pause: Duration,
}

/// State of the repair loop.
#[derive(Default)]
struct RepairLoop {
    put_off: HashMap<StripeId, DeferredRepair>,
    /// The absent sites and the sites that take chunks, as of the stripes that were put off.
    sites: (Arc<AbsentSites>, BTreeSet<SiteId>),
    counted: Option<Instant>,
    /// Time until which lists wait for the ranks.
    ranked_by: Option<Instant>,
    in_work: BTreeSet<StripeId>,
}

/// A repaired stripe, whether it was in debt, and the outcome.
type RepairResult = (StripeId, bool, Result<RepairOutcome, StripeError>);

/// Repairs in progress. They advance only while this is polled.
#[derive(Default)]
struct ActiveRepairs {
    repairs: FuturesUnordered<BoxFuture<'static, RepairResult>>,
    /// Repairs that ended during other work, and whose outcome has not been taken yet.
    ended: VecDeque<RepairResult>,
}

impl ActiveRepairs {
    /// Waits for the next repair to end; `None` if none is in progress.
    async fn next(&mut self) -> Option<RepairResult> {
        match self.ended.pop_front() {
            Some(ended) => Some(ended),
            None => self.repairs.next().await,
        }
    }

    /// Drives the repairs while doing other work. A repair that stood still would run into its deadlines, and keep
    /// resources that the work may wait for.
    async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        while !self.repairs.is_empty() {
            match select(work.as_mut(), self.repairs.next()).await {
                Either::Left((output, _)) => return output,
                Either::Right((ended, _)) => self.ended.extend(ended),
            }
        }
        work.await
    }
}

impl RepairService {
    /// Creates a service without starting it.
    pub fn new(options: RepairOptions) -> Self {
        let pace = RepairPace::limited(options.limits.unwrap_or_default());
        let (absent, wide, progress) = (Mutex::default(), Mutex::default(), Mutex::default());
        let shared = Shared { options, pace, absent, wide, progress, holds: AtomicUsize::new(0) };
        Self { shared: Arc::new(shared) }
    }

    /// Stops further repairs from starting while the returned hold exists, for a process that repairs beside the
    /// service.
    pub fn hold(&self) -> RepairHold {
        self.shared.holds.fetch_add(1, Ordering::Relaxed);
        RepairHold(Arc::clone(&self.shared))
    }

    /// Returns the progress so far.
    pub fn progress(&self) -> records::RepairWork {
        self.shared.progress.lock().record()
    }

    /// Repairs until the task is dropped. Run it in one process of a cluster at a time, though more do no harm.
    pub fn run(self, stripes: Stripes) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.shared.progress.lock().begin(stripes.runtime().now(), self.shared.options.limits.is_none());
            if self.shared.options.limits.is_none() {
                return self.publish(&stripes).await;
            }
            let (watching, ranking) = (self.watch(&stripes), self.keep_ranking(&stripes));
            futures::future::join3(watching, ranking, self.repair(&stripes)).await;
        })
    }

    /// Watches the sites, and publishes the progress.
    async fn watch(&self, stripes: &Stripes) {
        let mut silences = SilenceTracker::default();
        loop {
            match silences.observe(stripes, self.shared.options.after).await {
                Ok(absent) => *self.shared.absent.lock() = Some(absent),
                Err(error) => tracing::warn!(%error, "cannot determine which sites are lost; will retry"),
            }
            let silent = silences.view(stripes.runtime().now(), self.shared.options.after);
            self.shared.progress.lock().sites(silent);
            self.publish(stripes).await;
            stripes.runtime().sleep(PASS_EVERY).await;
        }
    }

    /// Publishes the progress if it has changed, so that other processes see it.
    async fn publish(&self, stripes: &Stripes) {
        let Some(record) = self.shared.progress.lock().unpublished(stripes.runtime().now()) else { return };
        let mut tx = stripes.transaction();
        tx.put(keys::repair_work(), records::encode(&record));
        if let Err(error) = stripes.meta().commit(tx).await {
            tracing::debug!(%error, "how far repair is could not be told");
        }
    }

    /// Counts what wide stripes lack, again and again. Meanwhile lists are taken by the last count: with much lost, a
    /// count takes long.
    async fn keep_ranking(&self, stripes: &Stripes) {
        loop {
            if let Some(gone) = self.due_for_ranking(stripes.runtime().now()) {
                match WideLosses::count(stripes, &gone).await {
                    Ok(losses) => *self.shared.wide.lock() = losses,
                    Err(error) => {
                        tracing::warn!(%error, "cannot count what wide stripes lack; will retry");
                        stripes.runtime().sleep(PASS_EVERY).await;
                    }
                }
            }
            stripes.runtime().sleep(RANK_POLL).await;
        }
    }

    /// Returns the sites that are gone if a count is due.
    fn due_for_ranking(&self, now: Instant) -> Option<BTreeSet<SiteId>> {
        let gone = self.shared.absent.lock().as_ref()?.gone.clone();
        self.shared.wide.lock().is_due(&gone, now).then_some(gone)
    }

    /// Returns the ranks for the sites of this round, as far as they are known.
    async fn ranks(&self, stripes: &Stripes, repairing: &RepairLoop) -> Ranks {
        let (gone, runtime) = (&repairing.sites.0.gone, stripes.runtime());
        let may_wait = || repairing.ranked_by.is_some_and(|by| runtime.now() < by);
        while may_wait() && !self.shared.wide.lock().is_for(gone) {
            runtime.sleep(RANK_POLL).await;
        }
        self.shared.wide.lock().ranks(gone)
    }

    async fn repair(&self, stripes: &Stripes) {
        let (mut repairing, mut active_repairs) = (RepairLoop::default(), ActiveRepairs::default());
        loop {
            let absent = self.shared.absent.lock().clone();
            let is_held = self.shared.holds.load(Ordering::Relaxed) > 0;
            let worked = match absent {
                Some(absent) if !is_held => {
                    self.round(stripes, absent, &mut repairing, &mut active_repairs).await
                }
                _ => Ok(false),
            };
            if let Err(error) = &worked {
                tracing::warn!(%error, "a round of repair failed; will retry");
            }
            if !matches!(worked, Ok(true)) {
                active_repairs.beside(stripes.runtime().sleep(PASS_EVERY)).await;
            }
        }
    }

    /// Takes a list and works on it for a while. Returns `false` if there was nothing to do.
    async fn round(
        &self,
        stripes: &Stripes,
        absent: AbsentSites,
        repairing: &mut RepairLoop,
        active_repairs: &mut ActiveRepairs,
    ) -> Result<bool, StripeError> {
        let now = stripes.runtime().now();
        let candidates = stripes.candidates().into_iter().map(|candidate| candidate.site);
        let takers = candidates.filter(|&site| !absent.contains(site)).collect();
        repairing.meet(absent, takers, now);
        let list = match repairing.is_full(now) {
            true => WorkList::default(),
            false => active_repairs.beside(self.take_list(stripes, repairing, now)).await?,
        };
        if list.stripes.is_empty() && repairing.in_work.is_empty() {
            return Ok(false);
        }
        self.work(stripes, list, repairing, active_repairs).await?;
        Ok(true)
    }

    async fn take_list(
        &self,
        stripes: &Stripes,
        repairing: &mut RepairLoop,
        now: Instant,
    ) -> Result<WorkList, StripeError> {
        let total = repairing.counted.is_none_or(|counted| now - counted >= COUNT_EVERY);
        let ranks = self.ranks(stripes, repairing).await;
        let list = {
            let put_off = |stripe| repairing.put_off.get(&stripe).is_some_and(|put_off| put_off.until > now);
            let (absent, takers) = &repairing.sites;
            let (put_off, in_work): (&(dyn Fn(StripeId) -> bool + Sync), _) = (&put_off, &repairing.in_work);
            let most = ListLimits { count: LISTED, in_work, put_off, takers, total };
            WorkList::take(stripes, absent, &ranks, ListScope::Most(most)).await?
        };
        // A list that is not full is complete.
        let is_all = total || list.stripes.len() < LISTED;
        if is_all {
            repairing.counted = Some(now);
        }
        self.shared.progress.lock().found(is_all.then_some(list.found), list.waiting);
        Ok(list)
    }

    /// Repairs the stripes of a list until it is time to take the next one. Repairs in progress then continue, so
    /// that sites are not left idle; if no more may start, they are finished.
    async fn work(
        &self,
        stripes: &Stripes,
        list: WorkList,
        repairing: &mut RepairLoop,
        active_repairs: &mut ActiveRepairs,
    ) -> Result<(), StripeError> {
        let review_at = stripes.runtime().now() + REVIEW_EVERY;
        let at_once = (AT_ONCE_PER_SITE * stripes.sites().len()).clamp(*AT_ONCE.start(), *AT_ONCE.end());
        let has_more = list.stripes.len() == LISTED;
        let mut waiting = list.stripes.into_iter();
        let mut failed = None;
        loop {
            let may_begin = failed.is_none() && self.shared.holds.load(Ordering::Relaxed) == 0;
            while may_begin && repairing.in_work.len() < at_once {
                let Some((stripe, in_debt)) = waiting.next() else { break };
                active_repairs.repairs.push(repairing.begin(&self.shared, stripes, stripe, in_debt));
            }
            let is_over = stripes.runtime().now() >= review_at || (has_more && waiting.len() == 0);
            if may_begin && is_over {
                return Ok(());
            }
            let Some((stripe, in_debt, outcome)) = active_repairs.next().await else { break };
            repairing.in_work.remove(&stripe);
            match outcome {
                Err(StripeError::Meta(error)) => failed = Some(error),
                outcome => {
                    let whole = self.note(stripes, stripe, outcome).filter(RepairOutcome::is_whole);
                    if whole.is_some() {
                        self.shared.wide.lock().forget(stripe);
                    }
                    // A stripe that is whole although nothing was done and no debt repaid would be listed again at
                    // once.
                    match whole.is_some_and(|outcome| in_debt || outcome.chunks > 0) {
                        true => drop(repairing.put_off.remove(&stripe)),
                        false => repairing.put_off(stripe, stripes.runtime().now()),
                    }
                }
            }
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Records the outcome of a stripe.
    fn note(
        &self,
        stripes: &Stripes,
        stripe: StripeId,
        outcome: Result<RepairOutcome, StripeError>,
    ) -> Option<RepairOutcome> {
        match outcome {
            Ok(outcome) => {
                self.shared.progress.lock().repaired(stripes.runtime().now(), &outcome);
                Some(outcome)
            }
            Err(error) => {
                tracing::warn!(%stripe, %error, "a stripe cannot be repaired now");
                None
            }
        }
    }
}

impl RepairLoop {
    fn begin(
        &mut self,
        shared: &Arc<Shared>,
        stripes: &Stripes,
        stripe: StripeId,
        in_debt: bool,
    ) -> BoxFuture<'static, RepairResult> {
        let (shared, stripes, absent) = (Arc::clone(shared), stripes.clone(), Arc::clone(&self.sites.0));
        self.in_work.insert(stripe);
        Box::pin(async move {
            (stripe, in_debt, repair_stripe(&stripes, stripe, &absent, &shared.pace, in_debt).await)
        })
    }

    /// Takes over the sites of this round. If they have changed, stripes that were put off are due.
    fn meet(&mut self, absent: AbsentSites, takers: BTreeSet<SiteId>, now: Instant) {
        let sites = (Arc::new(absent), takers);
        if sites != self.sites {
            self.put_off.clear();
            self.counted = None;
            self.ranked_by = Some(now + RANKED_WITHIN);
            self.sites = sites;
        }
        // A stripe that was due and not found again is whole, or gone.
        self.put_off.retain(|_, put_off| put_off.until + PUT_OFF_AT_MOST > now);
    }

    fn is_full(&self, now: Instant) -> bool {
        let are_put_off = || self.put_off.values().filter(|put_off| put_off.until > now).count();
        self.put_off.len() >= MOST_PUT_OFF && are_put_off() >= MOST_PUT_OFF
    }

    fn put_off(&mut self, stripe: StripeId, now: Instant) {
        let before = self.put_off.get(&stripe).map(|put_off| put_off.pause);
        let pause = before.map_or(PUT_OFF, |pause| (pause * 2).min(PUT_OFF_AT_MOST));
        self.put_off.insert(stripe, DeferredRepair { until: now + pause, pause });
    }
}

#[cfg(test)]
mod tests {
    use striate_runtime::run_in_virtual_time;

    use super::*;

    #[test]
    fn repairs_go_on_beside_other_work_and_their_end_is_not_lost() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let began = runtime.now();
            let mut active_repairs = ActiveRepairs::default();
            for (sequence, seconds) in [(1, 1), (2, 9)] {
                let runtime = runtime.clone();
                active_repairs.repairs.push(Box::pin(async move {
                    runtime.sleep(Duration::from_secs(seconds)).await;
                    assert_eq!(runtime.now() - began, Duration::from_secs(seconds));
                    (StripeId::new(1, sequence), true, Ok(RepairOutcome::default()))
                }));
            }
            active_repairs.beside(runtime.sleep(Duration::from_secs(5))).await;
            assert_eq!(active_repairs.ended.len(), 1);
            for sequence in [1, 2] {
                let (stripe, ..) = active_repairs.next().await.expect("both end");
                assert_eq!(stripe, StripeId::new(1, sequence));
            }
            assert!(active_repairs.next().await.is_none());
            active_repairs.beside(runtime.sleep(Duration::from_secs(1))).await;
        });
    }
}
