//! Which blocks are requested together, over all gateways.
//!
//! Every gateway samples its own requests and reports them. This module keeps the last report of each gateway and
//! merges them on demand, once per set of reports. They are hints: a control process that has just started knows
//! nothing until gateways report again, and a gateway that is gone is forgotten after [`KEPT`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use striate_core::StripeId;
use striate_plan::{CoAccess, CoAccessLimits, CoAccessSnapshot, Partition, PartitionReads, SnapshotError};
use striate_runtime::Instant;
use striate_stripe::HotBlock;

/// Lifetime of a report.
pub const KEPT: Duration = Duration::from_secs(60 * 60);
/// Requests of all gateways together that moves are judged by. EC-Store keeps 5,000 (§V-A), which says little about
/// any block but the hottest.
pub const REQUESTS_TOGETHER: usize = 40_000;
/// Maximum number of reporting gateways; each takes about 2 MB at most.
const MOST_GATEWAYS: usize = 256;

/// The reports of all gateways. Cheap to clone.
#[derive(Clone, Debug)]
pub struct GatheredAccess {
    limits: CoAccessLimits,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    reports: BTreeMap<String, Report>,
    /// Requests since each gateway's first report, summed over all gateways.
    requests: u64,
    /// The merged reports; `None` after a report has changed.
    together: Option<Arc<CoAccess>>,
}

#[derive(Clone, Debug)]
struct Report {
    at: Instant,
    snapshot: Arc<CoAccessSnapshot>,
    requests: u64,
    objects: Vec<(StripeId, Arc<str>)>,
    partitions: Vec<PartitionReads>,
}

/// A gateway's report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccessReport {
    /// The gateway's sampled statistics.
    pub snapshot: CoAccessSnapshot,
    /// Requests since the gateway started, sampled or not.
    pub requests: u64,
    /// Objects of the gateway's hottest blocks, as `bucket/key`.
    pub objects: Vec<(StripeId, Arc<str>)>,
    /// The partitions that the gateway reads most.
    pub partitions: Vec<PartitionReads>,
}

/// The report of one gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportView {
    /// Name of the gateway.
    pub gateway: String,
    /// Requests in the report.
    pub requests: usize,
    /// Time since the report.
    pub age: Duration,
}

/// Why a report was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// The report is malformed.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Too many gateways report.
    #[error("{MOST_GATEWAYS} gateways report already")]
    TooMany,
}

impl Default for GatheredAccess {
    fn default() -> Self {
        Self::new(CoAccessLimits::of_requests(REQUESTS_TOGETHER))
    }
}

impl GatheredAccess {
    /// Creates an empty collection; `limits` bounds the merged reports.
    pub fn new(limits: CoAccessLimits) -> Self {
        Self { limits, state: Arc::default() }
    }

    /// Stores the report of `gateway`, replacing an earlier one.
    ///
    /// # Errors
    /// [`ReportError`]; the earlier report stays.
    pub fn report(&self, gateway: &str, report: AccessReport, now: Instant) -> Result<(), ReportError> {
        let AccessReport { snapshot, requests, objects, partitions } = report;
        snapshot.check()?;
        let mut state = self.state.lock();
        state.forget_old(now);
        if state.reports.len() >= MOST_GATEWAYS && !state.reports.contains_key(gateway) {
            return Err(ReportError::TooMany);
        }
        let report = Report { at: now, snapshot: Arc::new(snapshot), requests, objects, partitions };
        let before = state.reports.insert(gateway.to_owned(), report);
        // A gateway that is new or has restarted counts from its next report: when its earlier requests happened is
        // unknown.
        state.requests += before.map_or(0, |before| requests.saturating_sub(before.requests));
        state.together = None;
        Ok(())
    }

    /// Returns the requests of all gateways since the first report of each.
    pub fn requests(&self) -> u64 {
        self.state.lock().requests
    }

    /// Returns the valid reports at `now`, in the order of the gateways' names.
    pub fn view(&self, now: Instant) -> Vec<ReportView> {
        let mut state = self.state.lock();
        state.forget_old(now);
        let view = |(gateway, report): (&String, &Report)| ReportView {
            gateway: gateway.clone(),
            requests: report.snapshot.requests.len(),
            age: now.saturating_duration_since(report.at),
        };
        state.reports.iter().map(view).collect()
    }

    /// Returns the `most` hottest blocks over all gateways, the hottest first. Costs as much as
    /// [`GatheredAccess::together`].
    pub fn hottest(&self, now: Instant, most: usize) -> Vec<HotBlock> {
        let together = self.together(now);
        let state = self.state.lock();
        let named = |block: StripeId| {
            let mut objects = state.reports.values().flat_map(|report| &report.objects);
            objects.find(|(named, _)| *named == block).map(|(_, object)| Arc::clone(object))
        };
        let hot = |block| HotBlock { block, popularity: together.popularity(block), object: named(block) };
        together.hottest(most).into_iter().map(hot).collect()
    }

    /// Returns the `most` partitions that all gateways together read most, the hottest first.
    pub fn hottest_partitions(&self, now: Instant, most: usize) -> Vec<PartitionReads> {
        let mut state = self.state.lock();
        state.forget_old(now);
        let mut counts = BTreeMap::<Partition, u64>::new();
        for reads in state.reports.values().flat_map(|report| &report.partitions) {
            *counts.entry(reads.partition).or_default() += reads.count;
        }
        let reads = |(partition, count)| PartitionReads { partition, count };
        let mut hottest: Vec<PartitionReads> = counts.into_iter().map(reads).collect();
        hottest.sort_by_key(|reads| std::cmp::Reverse(reads.count));
        hottest.truncate(most);
        hottest
    }

    /// Returns the merged statistics of all gateways. If a report has changed since the last call, this costs as much
    /// as observing their requests, up to 800,000 blocks.
    pub fn together(&self, now: Instant) -> Arc<CoAccess> {
        let reports: Vec<Arc<CoAccessSnapshot>> = {
            let mut state = self.state.lock();
            state.forget_old(now);
            if let Some(together) = &state.together {
                return Arc::clone(together);
            }
            state.reports.values().map(|report| Arc::clone(&report.snapshot)).collect()
        };
        // Reports were checked on arrival, so the merge does not fail.
        let merged = CoAccess::merged(self.limits, reports.iter().map(Arc::as_ref));
        let together = Arc::new(merged.unwrap_or_default());
        let mut state = self.state.lock();
        let are_same = state.reports.len() == reports.len()
            && state.reports.values().zip(&reports).all(|(now, then)| Arc::ptr_eq(&now.snapshot, then));
        if are_same {
            state.together = Some(Arc::clone(&together));
        }
        together
    }
}

impl State {
    fn forget_old(&mut self, now: Instant) {
        let before = self.reports.len();
        self.reports.retain(|_, report| now.saturating_duration_since(report.at) < KEPT);
        if self.reports.len() < before {
            self.together = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use striate_core::StripeId;
    use striate_runtime::run_in_virtual_time;

    use super::*;

    fn block(sequence: u64) -> StripeId {
        StripeId::new(1, sequence)
    }

    fn snapshot(requests: &[&[u64]]) -> CoAccessSnapshot {
        let mut statistics = CoAccess::default();
        requests.iter().for_each(|request| statistics.observe(request.iter().map(|&id| block(id))));
        statistics.snapshot()
    }

    fn report(requests: &[&[u64]], all: u64) -> AccessReport {
        AccessReport { snapshot: snapshot(requests), requests: all, ..AccessReport::default() }
    }

    #[test]
    fn what_gateways_saw_counts_together_and_once() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let gathered = GatheredAccess::default();
            gathered.report("g1", report(&[&[1, 2]], 0), runtime.now()).unwrap();
            gathered.report("g2", report(&[&[1, 3], &[1, 2]], 0), runtime.now()).unwrap();
            // A second report replaces the first one.
            gathered.report("g1", report(&[&[1, 2], &[4, 5]], 0), runtime.now()).unwrap();
            let together = gathered.together(runtime.now());
            assert_eq!(together.totals().requests, 4);
            assert_eq!((together.count(block(1)), together.count_together(block(1), block(2))), (3, 2));
            let names: Vec<_> = gathered.view(runtime.now()).into_iter().map(|view| view.gateway).collect();
            assert_eq!(names, ["g1", "g2"]);
        });
    }

    #[test]
    fn requests_count_from_the_first_report_of_a_gateway_and_of_its_next_life() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let gathered = GatheredAccess::default();
            for (gateway, requests, all) in [
                ("g1", 1_000, 0),
                ("g1", 1_300, 300),
                ("g2", 50, 300),
                ("g2", 60, 310),
                ("g1", 10, 310),
                ("g1", 15, 315),
            ] {
                gathered.report(gateway, report(&[&[1]], requests), runtime.now()).unwrap();
                assert_eq!(gathered.requests(), all, "{gateway} has had {requests}");
            }
        });
    }

    #[test]
    fn the_same_reports_are_brought_together_once() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let limits = CoAccessLimits { requests: 3, ..CoAccessLimits::default() };
            let gathered = GatheredAccess::new(limits);
            gathered.report("g1", report(&[&[1, 2], &[3, 4]], 0), runtime.now()).unwrap();
            let first = gathered.together(runtime.now());
            assert!(Arc::ptr_eq(&first, &gathered.together(runtime.now())));
            gathered.report("g2", report(&[&[5], &[6]], 0), runtime.now()).unwrap();
            assert_eq!(gathered.together(runtime.now()).totals().requests, 3, "no more than the limit");
        });
    }

    #[test]
    fn the_hottest_blocks_have_names_where_a_gateway_told_them() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let gathered = GatheredAccess::default();
            let objects = vec![(block(2), Arc::from("photos/cat"))];
            let named = AccessReport { objects, ..report(&[&[1, 2], &[2]], 2) };
            gathered.report("g1", named, runtime.now()).unwrap();
            gathered.report("g2", report(&[&[2, 1], &[3]], 2), runtime.now()).unwrap();
            let hot = gathered.hottest(runtime.now(), 2);
            let names: Vec<_> = hot.iter().map(|hot| (hot.block, hot.object.as_deref())).collect();
            assert_eq!(names, [(block(2), Some("photos/cat")), (block(1), None)]);
            assert_eq!(hot[0].popularity, 0.75);
        });
    }

    #[test]
    fn reads_of_partitions_by_all_gateways_are_added_up() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let gathered = GatheredAccess::default();
            let reads =
                |sequence, chunk, count| PartitionReads { partition: (block(sequence), chunk), count };
            for (gateway, partitions) in
                [("g1", vec![reads(1, 0, 5), reads(1, 1, 4)]), ("g2", vec![reads(1, 1, 3), reads(2, 0, 1)])]
            {
                let report = AccessReport { partitions, ..report(&[&[1]], 0) };
                gathered.report(gateway, report, runtime.now()).unwrap();
            }
            let hottest = gathered.hottest_partitions(runtime.now(), 2);
            assert_eq!(hottest, [reads(1, 1, 7), reads(1, 0, 5)]);
        });
    }

    #[test]
    fn a_gateway_that_is_gone_is_forgotten() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let gathered = GatheredAccess::default();
            gathered.report("gone", report(&[&[1, 2]], 0), runtime.now()).unwrap();
            runtime.sleep(KEPT / 2).await;
            gathered.report("here", report(&[&[3]], 0), runtime.now()).unwrap();
            runtime.sleep(KEPT / 2).await;
            assert_eq!(gathered.view(runtime.now()).len(), 1);
            assert_eq!(gathered.together(runtime.now()).count(block(1)), 0);
        });
    }

    #[test]
    fn a_malformed_report_is_refused_and_the_earlier_one_stays() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let gathered = GatheredAccess::default();
            gathered.report("g", report(&[&[1]], 0), runtime.now()).unwrap();
            let malformed = CoAccessSnapshot { requests: vec![vec![7]], ..CoAccessSnapshot::default() };
            assert!(
                gathered
                    .report(
                        "g",
                        AccessReport { snapshot: malformed, ..AccessReport::default() },
                        runtime.now()
                    )
                    .is_err()
            );
            assert_eq!(gathered.together(runtime.now()).count(block(1)), 1);
        });
    }

    #[test]
    fn there_are_bounds() {
        run_in_virtual_time(1, Duration::ZERO, |runtime| async move {
            let gathered = GatheredAccess::default();
            let tell = |name: String| gathered.report(&name, report(&[&[1]], 0), runtime.now());
            (0..MOST_GATEWAYS).for_each(|number| tell(number.to_string()).unwrap());
            assert_eq!(tell("another".to_owned()), Err(ReportError::TooMany));
            assert_eq!(tell("0".to_owned()), Ok(()));
        });
    }
}
