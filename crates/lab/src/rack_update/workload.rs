//! The updated chunks, the methods, and the places of chunks and parities.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use striate_codec::Code;
use striate_plan::WideGeometry;

use crate::data_updates::{DataChunk, DataChunks, UpdateMethod, count, hottest_rack};
use crate::rack_repair::RackRepairError;

/// Observed updates per update made; they show which rack of a group is updated most.
const OBSERVED: usize = 100;

/// All methods with their names. In `rewrite`, the client reads and writes the parities.
pub const WAYS: [(&str, UpdateMethod); 5] = [
    ("rewrite", UpdateMethod { reads_parities: true, ..UpdateMethod::DELTAS }),
    ("deltas", UpdateMethod::DELTAS),
    ("global", UpdateMethod { inner_global: true, ..UpdateMethod::DELTAS }),
    ("local", UpdateMethod { inner_local: true, ..UpdateMethod::DELTAS }),
    ("both", UpdateMethod { inner_global: true, inner_local: true, ..UpdateMethod::DELTAS }),
];

/// An update of a range of a data chunk.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The updated chunk.
    pub data: DataChunk,
    pub(super) offset: u32,
}

/// Parameters of the updates.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes per chunk.
    pub chunk_len: u32,
    /// Bytes per range.
    pub range_len: u32,
    /// Number of stripes.
    pub stripes: usize,
    /// Number of updates for each method.
    pub changes: usize,
    /// Seed of the updates.
    pub seed: u64,
}

/// Returns the updates to make, which are the same for all methods.
///
/// # Errors
/// [`RackRepairError::Unfit`] if a range is longer than a chunk.
pub fn changes(code: &Code, load: &Load) -> Result<Vec<Change>, RackRepairError> {
    if load.range_len > load.chunk_len || load.stripes == 0 {
        return Err(RackRepairError::Unfit(
            "a range is longer than a chunk, or there is no stripe".to_owned(),
        ));
    }
    Ok(drawn(code.k(), load).take(load.changes).collect())
}

fn drawn(k: usize, load: &Load) -> impl Iterator<Item = Change> + use<> {
    let chunks = DataChunks::new(load.stripes, k);
    let mut rng = SmallRng::seed_from_u64(load.seed);
    let ranges = load.chunk_len / load.range_len;
    let range_len = load.range_len;
    std::iter::repeat_with(move || {
        let data = chunks.draw(&mut rng);
        Change { data, offset: rng.random_range(0..ranges) * range_len }
    })
}

/// Returns the site of each chunk of each stripe: racks by combined locality, each stripe beginning in another rack,
/// and local parities where the method has them.
pub(super) fn places(geometry: &WideGeometry, load: &Load, method: UpdateMethod) -> Vec<Vec<usize>> {
    let rack_of = geometry.parts_of_chunks();
    let mut used = vec![0; geometry.z()];
    let slots: Vec<(usize, usize)> = rack_of
        .iter()
        .map(|&rack| {
            used[rack] += 1;
            (rack, used[rack] - 1)
        })
        .collect();
    // Updates before those that are made.
    let before = Load { seed: !load.seed, ..*load };
    let before = drawn(geometry.k(), &before).take(load.changes * OBSERVED);
    let counts = count(before.map(|change| change.data));
    let of_stripe = |stripe: usize| {
        let place = |&(rack, slot): &(usize, usize)| (rack + stripe) % geometry.z() * geometry.c() + slot;
        let mut places: Vec<usize> = slots.iter().map(place).collect();
        for group in (0..geometry.groups()).filter(|_| method.inner_local) {
            let count = |chunk: usize| counts.get(&DataChunk { stripe, chunk }).copied().unwrap_or_default();
            let (chunks, local) = (geometry.group_data(group), geometry.local_parity(group));
            let hottest = hottest_rack(chunks.clone(), count, |chunk| rack_of[chunk]);
            if hottest != rack_of[local] {
                let in_rack = chunks.filter(|&chunk| rack_of[chunk] == hottest);
                let coldest = in_rack.min_by_key(|&chunk| count(chunk));
                places.swap(local, coldest.expect("the rack has data"));
            }
        }
        places
    };
    (0..load.stripes).map(of_stripe).collect()
}
