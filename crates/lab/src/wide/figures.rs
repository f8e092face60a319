//! The paper's figures beside our values, and figures that the paper does not show.
//!
//! Only values that the paper's text states are compared; bars of its plots are not read off.

use striate_codec::CodecError;
use striate_plan::TreeShape;

use super::cluster::{Cluster, Setting};
use super::encoding::{Encoding, OWN_LOSS, PUBLISHED_LOSS};
use super::full_node;
use super::large;
use super::layout::Layout;
use super::repair::{Repairs, Selection};
use super::rows::{Extent, Row, Table};
use super::simulation;
use super::updates::{self, Load};
use crate::data_updates::UpdateMethod;

/// Slices in which the store sends a chunk of 64 MiB.
pub const SLICES: usize = 256;

/// Runs all figures; calls `done` for each row.
///
/// # Errors
/// None with the codes used here.
pub fn run(extent: Extent, mut done: impl FnMut(&Row)) -> Result<Vec<Row>, CodecError> {
    let mut table = Table { extent, rows: Vec::new(), done: &mut done };
    single_chunks_of_cold_data(&mut table)?;
    full_node::panel(&mut table, "9f", &Setting::cold(1.0), 11, 0)?;
    faster_gateways(&mut table)?;
    encoding(&mut table);
    single_chunks_of_hot_data(&mut table)?;
    full_node::panel(&mut table, "12f", &Setting::hot(20.0), 7, 8)?;
    changes(&mut table)?;
    large::figures(&mut table)?;
    Ok(table.rows)
}

/// Returns the percentage by which `one` is less than `other`.
fn less(one: f64, other: f64) -> f64 {
    100.0 * (1.0 - one / other)
}

/// Returns the mean seconds to repair one data chunk in its old place, on a quiet network.
pub fn single_chunk_s(layout: &Layout, setting: &Setting) -> Result<f64, CodecError> {
    let cluster = Cluster::new(layout.parts(), layout.rule.rack_limit(), setting);
    let sites = layout.fixed(&cluster);
    let mut repairs = Repairs::new(&cluster, layout, setting, TreeShape::Racks, Selection::least_recently());
    let k = layout.code.k();
    let jobs = (0..k).map(|lost| repairs.job(&sites, lost, &[])).collect::<Result<Vec<_>, _>>()?;
    Ok(simulation::run(&cluster.links, jobs.into_iter(), 1).job_s.iter().sum::<f64>() / k as f64)
}

/// Seconds of each scheme with the same k and f: CL and LRC for each r, then TL.
struct SchemeTimes {
    combined: Vec<f64>,
    lrc: Vec<f64>,
    topology: f64,
}

fn rivals(k: usize, f: usize, localities: &[usize], setting: &Setting) -> Result<SchemeTimes, CodecError> {
    let combined = |r: &usize| single_chunk_s(&Layout::combined(&format!("wide({k},{r},{f})"))?, setting);
    let lrc = |r: &usize| single_chunk_s(&Layout::lrc(k, *r, f)?, setting);
    Ok(SchemeTimes {
        combined: localities.iter().map(combined).collect::<Result<_, _>>()?,
        lrc: localities.iter().map(lrc).collect::<Result<_, _>>()?,
        topology: single_chunk_s(&Layout::topology(k, f)?, setting)?,
    })
}

/// Adds one row for each scheme.
fn add_rivals(
    table: &mut Table<'_>,
    figure: &'static str,
    set: &str,
    localities: &[usize],
    times: &SchemeTimes,
    unit: &'static str,
) {
    let scale = if unit == "ms" { 1e3 } else { 1.0 };
    for (at, r) in localities.iter().enumerate() {
        table.add((figure, set, &format!("CL r={r}"), unit), &[scale * times.combined[at]], None);
        table.add((figure, set, &format!("LRC r={r}"), unit), &[scale * times.lrc[at]], None);
    }
    table.add((figure, set, "TL", unit), &[scale * times.topology], None);
}

/// Adds the schemes of a panel whose values the text states: CL, LRC and TL with the first r, and the reductions by
/// CL.
fn add_stated(
    table: &mut Table<'_>,
    figure: &'static str,
    set: &str,
    times: &SchemeTimes,
    unit: &'static str,
    stated: [f64; 5],
    fits: bool,
) {
    let scale = if unit == "ms" { 1e3 } else { 1.0 };
    let (combined, lrc, topology) = (times.combined[0], times.lrc[0], times.topology);
    table.add((figure, set, "CL", unit), &[scale * combined], Some(stated[0]));
    table.add((figure, set, "LRC", unit), &[scale * lrc], Some(stated[1]));
    table.push((figure, set, "TL", unit), &[scale * topology], Some(stated[2]), fits);
    table.add((figure, set, "CL below LRC", "%"), &[less(combined, lrc)], Some(stated[3]));
    table.add((figure, set, "CL below TL", "%"), &[less(combined, topology)], Some(stated[4]));
}

fn single_chunks_of_cold_data(table: &mut Table<'_>) -> Result<(), CodecError> {
    let stated = rivals(64, 4, &[7], &Setting::cold(1.0))?;
    add_stated(table, "9c", "k=64 f=4 r=7, 1 Gb/s", &stated, "s", [0.8, 3.9, 9.0, 79.5, 91.1], false);
    let slower = rivals(64, 4, &[7], &Setting::cold(0.5))?;
    let reduction = less(slower.combined[0], slower.lrc[0]);
    table.add(("9c", "k=64 f=4 r=7, 0.5 Gb/s", "CL below LRC", "%"), &[reduction], Some(82.1));
    let localities = [7, 11];
    for (k, f) in
        [(16, 4), (32, 4), (64, 4), (96, 4), (128, 4), (64, 3), (16, 2), (32, 2), (64, 2), (96, 2), (128, 2)]
    {
        for gbit in [1.0, 0.5] {
            let set = format!("k={k} f={f}, {gbit} Gb/s");
            let times = rivals(k, f, &localities, &Setting::cold(gbit))?;
            add_rivals(table, "9a–e", &set, &localities, &times, "s");
        }
    }
    let pipelined = Setting { slices: SLICES, ..Setting::cold(1.0) };
    let times = rivals(64, 4, &localities, &pipelined)?;
    add_rivals(table, "beyond", "k=64 f=4, 1 Gb/s, 256 slices", &localities, &times, "s");
    Ok(())
}

fn faster_gateways(table: &mut Table<'_>) -> Result<(), CodecError> {
    let fastest = rivals(64, 4, &[7], &Setting::cold(10.0))?;
    add_stated(table, "10a", "k=64 f=4 r=7, 10 Gb/s", &fastest, "s", [0.34, 0.49, 1.11, 30.6, 69.4], true);
    for gbit in [1.0, 2.0, 5.0, 10.0] {
        let set = format!("k=64 f=4, {gbit} Gb/s");
        add_rivals(table, "10a", &set, &[7], &rivals(64, 4, &[7], &Setting::cold(gbit))?, "s");
        full_node::of_code(
            table,
            ("10b", &format!("{set}, r=11")),
            &Setting::cold(gbit),
            [64, 11, 4],
            0,
            None,
        )?;
    }
    Ok(())
}

fn single_chunks_of_hot_data(table: &mut Table<'_>) -> Result<(), CodecError> {
    let heavy = rivals(128, 4, &[27], &Setting::hot(80.0))?;
    add_stated(table, "12c", "k=128 f=4 r=27, heavy", &heavy, "ms", [10.3, 85.5, 108.4, 87.9, 90.5], true);
    for (k, f, r) in [(64, 4, 7), (96, 4, 15), (128, 4, 27), (128, 3, 26), (128, 2, 27)] {
        for (load, clients) in [("light", 20.0), ("heavy", 80.0)] {
            let set = format!("k={k} f={f}, {load}");
            add_rivals(table, "12a–e", &set, &[r], &rivals(k, f, &[r], &Setting::hot(clients))?, "ms");
        }
    }
    Ok(())
}

fn encoding(table: &mut Table<'_>) {
    let (setting, nodes) = (Setting::cold(1.0), 4);
    let published = Encoding { data: 64, parities: 3, nodes, loss: PUBLISHED_LOSS };
    let single = Encoding { nodes: 1, ..published };
    let seconds = |encoding: Encoding| encoding.seconds(&setting);
    table.add(("11a", "k=64 f=4", "single node", "s"), &[seconds(single)], None);
    table.add(("11a", "k=64 f=4", "four nodes", "s"), &[seconds(published)], None);
    table.add(
        ("11a", "k=64 f=4", "four nodes below one", "%"),
        &[less(seconds(published), seconds(single))],
        Some(84.0),
    );
    for data in [4, 8, 16, 32, 64] {
        let set = format!("k={data} f=4");
        table.add(
            ("11b", &set, "single node", "MB/s"),
            &[Encoding { data, ..single }.rate(&setting) / 1e6],
            None,
        );
        table.add(
            ("11b", &set, "four nodes", "MB/s"),
            &[Encoding { data, ..published }.rate(&setting) / 1e6],
            None,
        );
    }
    let sliced = Setting { slices: SLICES, ..setting };
    let memory = |setting: Setting| Setting { disk: 100e9, ..setting };
    let own = Encoding { loss: OWN_LOSS, ..published };
    for (set, encoding, setting) in [
        ("whole chunks", published, setting),
        ("256 slices, our coder", own, sliced),
        ("256 slices, data in memory, our coder", own, memory(sliced)),
    ] {
        let gain = less(encoding.seconds(&setting), Encoding { nodes: 1, ..encoding }.seconds(&setting));
        table.add(("beyond", set, "four nodes below one, k=64", "%"), &[gain], None);
        let from = encoding.pays_from(&setting).map_or(f64::INFINITY, |from| from as f64);
        table.add(("beyond", set, "four nodes pay from k", ""), &[from], None);
    }
}

fn changes(table: &mut Table<'_>) -> Result<(), CodecError> {
    let layout = Layout::combined("wide(128,27,4)")?;
    let setting = Setting::hot(20.0);
    let inner =
        |inner_global, inner_local| UpdateMethod { inner_global, inner_local, ..UpdateMethod::DELTAS };
    let ways = [
        ("global in the rack", inner(true, false), 33.2),
        ("local in the rack", inner(false, true), 14.4),
        ("both in the rack", inner(true, true), 47.6),
    ];
    let mut best = ways.map(|_| Vec::new());
    for (set, updates) in [("95:5", 0.05), ("50:50", 0.5)] {
        let operations = table.extent.operations;
        let means = |method| -> Vec<f64> {
            let load = |seed| Load { stripes: 1_000, operations, clients: 20, updates, seed };
            let ms = |seed| 1e3 * updates::mean_update_s(&layout, &setting, method, &load(seed));
            table.seeds().map(ms).collect()
        };
        let (deltas, rewritten) = (
            means(UpdateMethod::DELTAS),
            means(UpdateMethod { reads_parities: true, ..UpdateMethod::DELTAS }),
        );
        let reduced = ways.map(|(_, method, _)| means(method));
        table.add(("13", set, "each parity rewritten", "ms"), &rewritten, None);
        table.add(("13", set, "each parity its delta", "ms"), &deltas, None);
        for (((name, ..), means_ms), best) in ways.iter().zip(&reduced).zip(&mut best) {
            table.add(("13", set, name, "ms"), means_ms, None);
            let reductions = means_ms.iter().zip(&deltas).map(|(one, other)| less(*one, *other));
            let reductions: Vec<f64> = reductions.collect();
            if mean(&reductions) > mean(best) {
                *best = reductions;
            }
        }
    }
    for ((name, _, stated), reductions) in ways.iter().zip(&best) {
        table.add(("13", "up to", &format!("{name}, below deltas"), "%"), reductions, Some(*stated));
    }
    Ok(())
}

/// Returns the mean; 0 if there are no values.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}
