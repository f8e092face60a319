//! Results that the paper does not show: a node fails in a cluster of 1,000 sites in 40 racks, and a stripe is sealed
//! there.
//!
//! If a lost chunk's group fills its racks, with f chunks in each, the chunk may only be made in its own rack. All
//! sums of all repairs then come down one downlink, whichever sites are chosen. A chain brings one sum down it
//! instead of one for each rack.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use striate_codec::CodecError;
use striate_core::SiteId;
use striate_plan::{Scheme, TreeShape};

use super::cluster::{Cluster, GBIT, Setting};
use super::figures::SLICES;
use super::layout::Layout;
use super::repair::{Repairs, Selection};
use super::rows::Table;
use super::sealing;
use super::simulation::{self, SimulationResult};

/// Number of racks of the large cluster, and of sites in each.
const RACKS: usize = 40;
const SITES_PER_RACK: usize = 25;
/// Number of concurrent repairs.
const AT_ONCE: usize = 128;

/// A node of 400 GB in a cluster of 1,000 sites, with slices: disks of 200 MB/s, cards and rack links of 10 Gb/s.
pub fn large_setting() -> Setting {
    Setting { disk: 200e6, gateway: 10.0 * GBIT, slices: SLICES, writes: true, ..Setting::cold(10.0) }
}

/// Repairs all chunks of a node of the large cluster, each where the store's rule admits it.
pub fn repair_large(
    layout: &Layout,
    shape: TreeShape,
    selection: Selection,
    chunks: usize,
    seed: u64,
) -> Result<(Cluster, SimulationResult), CodecError> {
    let setting = large_setting();
    let cluster = Cluster::new(RACKS, SITES_PER_RACK, &setting);
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut repairs = Repairs::new(&cluster, layout, &setting, shape, selection);
    let failed = SiteId(1);
    let mut failure = None;
    let jobs = std::iter::from_fn(|| {
        let lost = rng.random_range(0..layout.code.n());
        let sites = layout.around(&cluster, lost, failed, &mut rng);
        let admitted = repairs.admitted(&sites, lost);
        repairs.job(&sites, lost, &admitted).map_err(|error| failure = Some(error)).ok()
    });
    let result = simulation::run(&cluster.links, jobs.take(chunks), AT_ONCE);
    match failure {
        Some(error) => Err(error),
        None => Ok((cluster, result)),
    }
}

/// Time, traffic and balance of a node's repair, and the sums for a stripe that is sealed.
pub(super) fn figures(table: &mut Table<'_>) -> Result<(), CodecError> {
    let combined = Layout::combined("wide(128,27,4)")?;
    let topology = Layout::topology(128, 4)?;
    let seed = table.extent.seed;
    for (name, layout, shape) in [
        ("CL, racks", &combined, TreeShape::Racks),
        ("CL, chains", &combined, TreeShape::Chain),
        ("TL, racks", &topology, TreeShape::Racks),
        ("TL, chains", &topology, TreeShape::Chain),
    ] {
        for (order, selection) in
            [("LRS", Selection::least_recently()), ("no LRS", Selection::at_random(!seed))]
        {
            repaired(table, &format!("{name}, {order}"), layout, shape, selection)?;
        }
    }
    sealed(table, &combined)
}

fn repaired(
    table: &mut Table<'_>,
    name: &str,
    layout: &Layout,
    shape: TreeShape,
    selection: Selection,
) -> Result<(), CodecError> {
    let (chunks, seed) = (table.extent.chunks, table.extent.seed);
    let bytes = chunks as f64 * large_setting().chunk;
    let set = format!("1,000 sites, {:.0} GB: {name}", bytes / 1e9);
    let (cluster, result) = repair_large(layout, shape, selection, chunks, seed)?;
    let of_racks = |link: fn(&Cluster, usize) -> usize| -> (f64, f64) {
        let loads = (0..RACKS).map(|rack| result.carried[link(&cluster, rack)]);
        let (sum, most) = loads.fold((0.0, 0.0f64), |(sum, most), load| (sum + load, most.max(load)));
        (sum, most * RACKS as f64 / sum)
    };
    let (across, uplinks) = of_racks(Cluster::uplink);
    let (_, downlinks) = of_racks(Cluster::downlink);
    table.add(("beyond", &set, "full node", "min"), &[result.all_s / 60.0], None);
    table.add(("beyond", &set, "sums across racks a chunk", ""), &[across / bytes], None);
    table.add(("beyond", &set, "uplinks, max/mean", ""), &[uplinks], None);
    table.add(("beyond", &set, "downlinks, max/mean", ""), &[downlinks], None);
    Ok(())
}

fn sealed(table: &mut Table<'_>, layout: &Layout) -> Result<(), CodecError> {
    let Scheme::Combined(geometry) = &layout.scheme else { return Ok(()) };
    let cluster = Cluster::new(RACKS, SITES_PER_RACK, &large_setting());
    let plan = sealing::plan(geometry, &cluster);
    let sums = plan.map_or(f64::NAN, |plan| {
        let rack_of = |site| cluster.rack_id(site).clone();
        sealing::sums_across_racks(layout, &plan.sites(), rack_of) as f64
    });
    table.add(("beyond", "wide(128,27,4) sealed", "chunks across racks", ""), &[sums], None);
    table.add(
        ("beyond", "wide(128,27,4) sealed", "chunks across racks, by arithmetic", ""),
        &[geometry.sealing_chunks() as f64],
        None,
    );
    Ok(())
}
