//! The progress of repair, moves, scrub and packing, as recorded by the processes that do them.

use striate_commands::admin::messages::{
    CopiesState, GiverState, HotBlockState, ImbalanceSample, MovementState, MovesState, PackFigures,
    PackedBucket, PackingState, PackingStatus, RepairState, ScrubCounts, ScrubState, SealedState,
    SealedTotals, SilentState,
};
use striate_core::StripeId;
use striate_meta::{MetaError, RowPages, ScanRange, keys, records};

use super::Cluster;

/// Rows per scan.
const PAGE: usize = 1_000;

/// Background work of the store. A part is `None` until a process has started it.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) repair: Option<RepairState>,
    pub(super) movement: Option<MovementState>,
    pub(super) scrub: Option<ScrubState>,
    pub(super) packing: Option<PackingState>,
    pub(super) copies: Option<CopiesState>,
}

impl Cluster {
    /// Reads the progress of all background work.
    ///
    /// # Errors
    /// If the metadata cannot be read.
    pub(super) async fn work(&self) -> Result<Work, MetaError> {
        let keys = [
            keys::repair_work(),
            keys::movement_work(),
            keys::scrub_work(),
            keys::packing_work(),
            keys::copies_work(),
        ];
        let rows = self.inner.services.meta.get_many(&keys).await?;
        let [repair, movement, scrub, packing, copies] =
            [0, 1, 2, 3, 4].map(|index| rows.get(index).and_then(Option::as_ref));
        let now = self.inner.runtime.wall_time().as_millis() as u64;
        Ok(Work {
            repair: repair.map(|row| row.record()).transpose()?.map(repair_state),
            movement: movement.map(|row| row.record()).transpose()?.map(movement_state),
            scrub: scrub.map(|row| row.record()).transpose()?.map(scrub_state),
            packing: packing.map(|row| row.record()).transpose()?.map(|work| packing_state(work, now)),
            copies: copies.map(|row| row.record()).transpose()?.map(copies_state),
        })
    }

    /// Returns the packing status of all buckets, or of one.
    ///
    /// # Errors
    /// If the metadata cannot be read.
    pub async fn packing(&self, bucket: Option<&str>) -> Result<PackingStatus, MetaError> {
        let packing = self.work().await?.packing;
        let range = match bucket {
            Some(name) => {
                let start = keys::packed_bucket(name);
                let end = [&start[..], b"\0"].concat().into();
                ScanRange { start, end }
            }
            None => ScanRange::prefix(keys::PACKED_BUCKETS),
        };
        Ok(PackingStatus { packing, buckets: self.packed_buckets(range).await? })
    }

    /// Returns the cold data of all buckets; `None` if nothing is cold.
    ///
    /// # Errors
    /// If the metadata cannot be read.
    pub(super) async fn sealed_totals(&self) -> Result<Option<SealedTotals>, MetaError> {
        let buckets = self.packed_buckets(ScanRange::prefix(keys::PACKED_BUCKETS)).await?;
        Ok(SealedTotals::of(buckets.iter().filter_map(|bucket| bucket.sealed.as_ref())))
    }

    async fn packed_buckets(&self, range: ScanRange) -> Result<Vec<PackedBucket>, MetaError> {
        let now = self.inner.runtime.wall_time().as_millis() as u64;
        let (mut pages, mut buckets) = (RowPages::new(range, PAGE), Vec::new());
        while let Some(page) = pages.next(&*self.inner.services.meta).await? {
            for row in &page {
                let name = String::from_utf8_lossy(&row.key[keys::PACKED_BUCKETS.len()..]).into_owned();
                buckets.push(packed_bucket(name, row.record()?, now));
            }
        }
        Ok(buckets)
    }
}

fn repair_state(work: records::RepairWork) -> RepairState {
    let movable = work.left.saturating_sub(work.waiting);
    // Stripes that wait for a site take no time, and it is unknown when one comes.
    let seconds_left = match (movable, work.rate_stripes_per_ks) {
        (0, _) => Some(0),
        (_, 0) => None,
        (stripes, rate) => Some((stripes as f64 * 1_000.0 / rate as f64).ceil() as u64),
    };
    let silent = work
        .silent
        .iter()
        .map(|silent| SilentState { site: silent.site, rebuilt_after_s: silent.rebuilt_after_s });
    RepairState {
        off: work.off,
        stripes_left: work.left,
        waiting: work.waiting,
        chunks: work.chunks,
        bytes: work.bytes,
        bytes_per_s: work.rate_bytes_per_s,
        seconds_left,
        silent: silent.collect(),
    }
}

fn movement_state(work: records::MovementWork) -> MovementState {
    let moves = |moves: Option<records::movement_work::Moves>| {
        let moves = moves.unwrap_or_default();
        MovesState {
            off: moves.off,
            chunks: moves.chunks,
            bytes: moves.bytes,
            chunks_per_s: moves.rate_chunks_per_ks as f64 / 1_000.0,
            bytes_per_s: moves.rate_bytes_per_s,
        }
    };
    let levelling = moves(work.levelling);
    let left: u64 = work.givers.iter().map(|giver| giver.bytes).sum();
    let seconds_left = match (left, levelling.bytes_per_s) {
        (0, _) => Some(0),
        (_, 0) => None,
        (bytes, rate) => Some(bytes.div_ceil(rate)),
    };
    let giver = |giver: &records::movement_work::Giver| GiverState { site: giver.site, bytes: giver.bytes };
    let sample = |sample: &records::movement_work::Sample| ImbalanceSample {
        unix_ms: sample.unix_ms,
        percent: f64::from(sample.permille) / 10.0,
    };
    let hot = |hot: records::movement_work::HotBlock| HotBlockState {
        stripe: hot.stripe[..].try_into().map(StripeId::from_bytes).unwrap_or_default().to_string(),
        percent: f64::from(hot.popularity_ppm) / 1e4,
        object: Some(hot.object).filter(|object| !object.is_empty()),
    };
    MovementState {
        levelling,
        optimising: moves(work.optimising),
        givers: work.givers.iter().map(giver).collect(),
        seconds_left,
        imbalance: work.imbalance.iter().map(sample).collect(),
        hottest: work.hottest.into_iter().map(hot).collect(),
    }
}

fn scrub_state(work: records::ScrubWork) -> ScrubState {
    let counts = |count: records::ScrubCount| ScrubCounts {
        chunks: count.chunks,
        bytes: count.bytes,
        damaged: count.damaged,
        unknown: count.unknown,
        orphans: count.orphans,
        unexplained: count.unexplained,
    };
    ScrubState {
        cycle: work.cycle,
        now: counts(work.count.unwrap_or_default()),
        total_chunks: work.total_chunks,
        seconds_left: work.cycle_s.saturating_sub(work.elapsed_s),
        last: work.last.map(counts),
    }
}

fn packing_state(work: records::PackingWork, now_unix_ms: u64) -> PackingState {
    let name =
        |id: &bytes::Bytes| id[..].try_into().map(StripeId::from_bytes).unwrap_or_default().to_string();
    PackingState {
        counted_s_ago: (work.counted_unix_ms > 0).then(|| seconds_ago(work.counted_unix_ms, now_unix_ms)),
        figures: pack_figures(work.figures),
        settled_after_s: work.settled_after_s,
        groups_written: work.groups,
        objects_packed: work.objects,
        bytes_packed: work.bytes,
        bytes_per_s: work.rate_bytes_per_s,
        groups_released: work.released,
        unreadable_groups: work.unreadable,
        unreadable_stripes: work.unreadable_stripes.iter().map(name).collect(),
        setting: work.setting,
    }
}

fn copies_state(work: records::CopiesWork) -> CopiesState {
    let records::CopiesWork { copies, bytes, budget_bytes, made, dropped, .. } = work;
    CopiesState { copies, bytes, budget_bytes, made, dropped }
}

fn packed_bucket(bucket: String, record: records::PackedBucket, now_unix_ms: u64) -> PackedBucket {
    PackedBucket {
        bucket,
        partition_len: Some(record.partition_len).filter(|&len| len > 0),
        group_bytes: Some(record.group_bytes).filter(|&bytes| bytes > 0),
        reason: Some(record.reason).filter(|reason| !reason.is_empty()),
        figures: pack_figures(record.figures),
        counted_s_ago: seconds_ago(record.counted_unix_ms, now_unix_ms),
        sealed: record.sealed.map(sealed_state),
    }
}

fn sealed_state(figures: records::SealedFigures) -> SealedState {
    SealedState {
        profile: figures.profile,
        cold_stripes: figures.cold_stripes,
        sealed_stripes: figures.sealed_stripes,
        half_sealed: figures.half_sealed,
        waiting: figures.waiting,
        held_up: Some(figures.held_up).filter(|reason| !reason.is_empty()),
        not_packed: figures.not_packed,
        not_packed_bytes: figures.not_packed_bytes,
        warnings: figures.warnings,
        swapped: figures.swapped,
        emptied: figures.emptied,
    }
}

fn seconds_ago(then_unix_ms: u64, now_unix_ms: u64) -> u64 {
    now_unix_ms.saturating_sub(then_unix_ms) / 1_000
}

fn pack_figures(figures: Option<records::PackingFigures>) -> PackFigures {
    let figures = figures.unwrap_or_default();
    PackFigures {
        live_objects: figures.live_objects,
        live_bytes: figures.live_bytes,
        dead_objects: figures.dead_objects,
        dead_bytes: figures.dead_bytes,
        waiting_objects: figures.waiting_objects,
        waiting_bytes: figures.waiting_bytes,
        settled_objects: figures.settled_objects,
        settled_bytes: figures.settled_bytes,
        groups: figures.groups,
        packed_bytes: figures.partition_bytes,
    }
}
