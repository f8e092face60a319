//! How far repair, moves and scrub are, as whoever does them has written down.

use striate_core::StripeId;
use striate_meta::{MetaError, keys, records};

use super::Cluster;
use crate::admin::messages::{
    GiverState, HotBlockState, ImbalanceSample, MovementState, MovesState, RepairState, ScrubCounts,
    ScrubState, SilentState,
};

/// What the store does by itself. Nothing is known of it as long as no process has begun.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) repair: Option<RepairState>,
    pub(super) movement: Option<MovementState>,
    pub(super) scrub: Option<ScrubState>,
}

impl Cluster {
    /// How far it is.
    ///
    /// # Errors
    /// When the metadata cannot be read.
    pub(super) async fn work(&self) -> Result<Work, MetaError> {
        let keys = [keys::repair_work(), keys::movement_work(), keys::scrub_work()];
        let rows = self.inner.meta.get_many(&keys).await?;
        let [repair, movement, scrub] = [0, 1, 2].map(|index| rows.get(index).and_then(Option::as_ref));
        Ok(Work {
            repair: repair.map(|row| row.record()).transpose()?.map(repair_state),
            movement: movement.map(|row| row.record()).transpose()?.map(movement_state),
            scrub: scrub.map(|row| row.record()).transpose()?.map(scrub_state),
        })
    }
}

fn repair_state(work: records::RepairWork) -> RepairState {
    let movable = work.left.saturating_sub(work.waiting);
    // What waits for a site takes no time, and nobody knows when it comes.
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
