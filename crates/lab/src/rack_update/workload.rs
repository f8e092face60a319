//! Which chunks are changed, in which ways, and where they and their parities are.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use striate_codec::Code;
use striate_plan::WideGeometry;

use crate::data_updates::{DataChunk, DataChunks, Way, count, hottest_rack};
use crate::rack_repair::RackRepairError;

/// So many changes for each that is made show which rack of a group is changed most.
const OBSERVED: usize = 100;

/// All ways, with their names. It is the client that reads and writes parities.
pub const WAYS: [(&str, Way); 5] = [
    ("rewrite", Way { reads_parities: true, ..Way::DELTAS }),
    ("deltas", Way::DELTAS),
    ("global", Way { inner_global: true, ..Way::DELTAS }),
    ("local", Way { inner_local: true, ..Way::DELTAS }),
    ("both", Way { inner_global: true, inner_local: true, ..Way::DELTAS }),
];

/// A change of a range of a data chunk.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The chunk.
    pub data: DataChunk,
    pub(super) offset: u32,
}

/// What is changed.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of a chunk.
    pub chunk_len: u32,
    /// Bytes of a range.
    pub range_len: u32,
    /// Stripes.
    pub stripes: usize,
    /// Changes of each way.
    pub changes: usize,
    /// What they are drawn from.
    pub seed: u64,
}

/// The changes that are made. All ways have the same ones.
///
/// # Errors
/// [`RackRepairError::Unfit`] where a range is longer than a chunk.
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

/// The site of each chunk of each stripe: racks as combined locality says, each stripe beginning in another, and local parities where a
/// way has them.
pub(super) fn places(geometry: &WideGeometry, load: &Load, way: Way) -> Vec<Vec<usize>> {
    let rack_of = geometry.parts_of_chunks();
    let mut used = vec![0; geometry.z()];
    let slots: Vec<(usize, usize)> = rack_of
        .iter()
        .map(|&rack| {
            used[rack] += 1;
            (rack, used[rack] - 1)
        })
        .collect();
    // Changes before those that are made.
    let before = Load { seed: !load.seed, ..*load };
    let before = drawn(geometry.k(), &before).take(load.changes * OBSERVED);
    let counts = count(before.map(|change| change.data));
    let of_stripe = |stripe: usize| {
        let place = |&(rack, slot): &(usize, usize)| (rack + stripe) % geometry.z() * geometry.c() + slot;
        let mut places: Vec<usize> = slots.iter().map(place).collect();
        for group in (0..geometry.groups()).filter(|_| way.inner_local) {
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
