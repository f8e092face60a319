//! Repairs of a full node (Figs. 9f, 10b, 12f): 64 chunks at once, each of a different stripe that lies on all nodes
//! in the same way.
//!
//! The paper's clusters have exactly n nodes, so none is free for a lost chunk. The paper does not say which nodes
//! may rebuild it, except in a figure that shows a node of the chunk's own rack (Fig. 5). With such a node all sums
//! come down one link, whichever node is selected, and LRS cannot reach the paper's gain. So nodes of all racks that
//! are read from may rebuild chunks, and the result of the other interpretation is shown beside it.

use striate_codec::CodecError;
use striate_core::SiteId;
use striate_plan::TreeShape;

use super::cluster::{Cluster, Setting};
use super::layout::Layout;
use super::repair::{Repairs, Selection};
use super::rows::Table;
use super::simulation;

/// Lost chunks of the node: one of each of 64 stripes (§6.1).
const ERASED: usize = 64;

/// Sites that may make lost chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requestors {
    /// Number of otherwise idle sites without chunks in each rack, which make lost chunks; with 0, the sites with
    /// chunks do.
    pub clients: usize,
    /// True if only sites in the lost chunk's rack may.
    pub is_at_home: bool,
}

/// Returns the bytes repaired per second.
///
/// # Errors
/// None with codes that can repair a chunk.
pub fn rate(
    layout: &Layout,
    setting: &Setting,
    selection: Selection,
    requestors: Requestors,
) -> Result<f64, CodecError> {
    let servers = layout.rule.rack_limit();
    let cluster = Cluster::new(layout.parts(), servers + requestors.clients, setting);
    let sites = layout.fixed(&cluster);
    let mut repairs = Repairs::new(&cluster, layout, setting, TreeShape::Racks, selection);
    let first = if requestors.clients == 0 { 0 } else { servers };
    let mut near = repairs.near(&sites, 0, first)?;
    near.retain(|&site: &SiteId| {
        !requestors.is_at_home || cluster.rack_of(site) == cluster.rack_of(sites[0])
    });
    let jobs = (0..ERASED).map(|_| repairs.job(&sites, 0, &near)).collect::<Result<Vec<_>, _>>()?;
    let result = simulation::run(&cluster.links, jobs.into_iter(), ERASED);
    Ok(ERASED as f64 * setting.chunk / result.all_s)
}

/// Adds the rates of a panel for f = 2, 3, 4.
pub(super) fn panel(
    table: &mut Table<'_>,
    figure: &'static str,
    setting: &Setting,
    r: usize,
    clients: usize,
) -> Result<(), CodecError> {
    let stated = if clients == 0 { 14.1 } else { 29.7 };
    for f in [2, 3, 4] {
        let set = format!("k=64 r={r} f={f}");
        of_code(table, (figure, &set), setting, [64, r, f], clients, (f == 4).then_some(stated))?;
    }
    Ok(())
}

/// Adds the rates of all schemes with these k, r and f, and the gain of LRS.
pub(super) fn of_code(
    table: &mut Table<'_>,
    (figure, set): (&'static str, &str),
    setting: &Setting,
    [k, r, f]: [usize; 3],
    clients: usize,
    stated: Option<f64>,
) -> Result<(), CodecError> {
    let anywhere = Requestors { clients, is_at_home: false };
    let at_home = Requestors { is_at_home: true, ..anywhere };
    let seeds = table.seeds();
    let with = |layout: &Layout, requestors| {
        rate(layout, setting, Selection::least_recently(), requestors).map(|rate| rate / 1e6)
    };
    let without = |layout: &Layout, requestors| -> Result<Vec<f64>, CodecError> {
        let rate_of =
            |seed| rate(layout, setting, Selection::at_random(seed), requestors).map(|rate| rate / 1e6);
        seeds.clone().map(rate_of).collect()
    };
    let combined = Layout::combined(&format!("wide({k},{r},{f})"))?;
    for (name, layout) in
        [("CL", &combined), ("LRC", &Layout::lrc(k, r, f)?), ("TL", &Layout::topology(k, f)?)]
    {
        table.add((figure, set, &format!("{name}, LRS"), "MB/s"), &[with(layout, anywhere)?], None);
        table.add((figure, set, name, "MB/s"), &without(layout, anywhere)?, None);
    }
    let in_one_list = rate(&combined, setting, Selection::least_recently_in_one_list(), anywhere)? / 1e6;
    table.add((figure, set, "CL, LRS, one list", "MB/s"), &[in_one_list], None);
    for (name, requestors, stated) in
        [("LRS over none", anywhere, stated), ("LRS over none, requestors at home", at_home, None)]
    {
        let with = with(&combined, requestors)?;
        let gain = |without: f64| 100.0 * (with / without - 1.0);
        let gains: Vec<f64> = without(&combined, requestors)?.into_iter().map(gain).collect();
        table.add((figure, set, name, "%"), &gains, stated);
    }
    Ok(())
}
