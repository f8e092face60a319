//! `striate-lab wide-update`: updates data chunks of wide stripes on real processes in racks, and the parities with
//! them.

use serde::Serialize;
use striate_runtime::Runtime;

use super::racks::{Meter, Metered, first_racks, print, start};
use crate::args::WideUpdateArgs;
use crate::failure::{Failure, Outcome};
use crate::rack_update::{Load, RackUpdate, WAYS, changes, shape};

/// Results of the command.
#[derive(Debug, Serialize)]
struct UpdateReport {
    code: String,
    /// Racks of a stripe; the client has another one.
    racks: usize,
    sites: usize,
    chunk_bytes: u32,
    range_bytes: u32,
    ways: Vec<MethodReport>,
}

#[derive(Debug, Serialize)]
struct MethodReport {
    name: &'static str,
    changes: Vec<ChangeReport>,
}

#[derive(Debug, Serialize)]
struct ChangeReport {
    /// Index of the data chunk in its stripe.
    chunk: usize,
    /// Racks of the chunk and of the parities that follow it, the local one first.
    racks_of: Vec<usize>,
    /// Chunk bytes that had to cross racks.
    crossed: u64,
    #[serde(flatten)]
    metered: Metered,
}

/// Makes all changes by every method in turn, and prints the results as JSON.
///
/// # Errors
/// If there are too few racks, a process does not start, or a change fails.
pub(super) async fn run(runtime: &Runtime, args: &WideUpdateArgs) -> Outcome {
    let code = args.code.code.build().map_err(Failure::refused)?;
    let (racks, of_rack) = shape(&code).map_err(Failure::refused)?;
    let hosts = first_racks(&args.racks, racks + 1)?;
    let rack_of: Vec<usize> = (0..racks * of_rack).map(|site| site / of_rack).collect();
    let load = Load {
        chunk_len: args.chunk_kib << 10,
        range_len: args.update_kib << 10,
        stripes: args.stripes,
        changes: args.updates,
        seed: args.seed,
    };
    let changes = changes(&code, &load).map_err(Failure::refused)?;
    let processes = start(runtime, &args.racks, hosts, &rack_of).await?;
    let mut trials = Vec::new();
    for (_, method) in WAYS {
        let sites = processes.connect_as_control(runtime)?;
        let prepared = RackUpdate::prepare(runtime, &code, sites, load, method, &changes).await;
        trials.push(prepared.map_err(Failure::failed)?);
    }
    // Warm up, since otherwise the first methods would open the connections between sites for the later ones.
    for &change in &changes {
        for trial in &mut trials {
            trial.change(change).await.map_err(Failure::failed)?;
        }
    }
    let mut ways: Vec<MethodReport> = WAYS.map(|(name, _)| MethodReport { name, changes: Vec::new() }).into();
    for &change in &changes {
        for (trial, report) in trials.iter_mut().zip(&mut ways) {
            let meter = Meter::start(hosts, &processes)?;
            let changed = trial.change(change).await.map_err(Failure::failed)?;
            let metered = meter.stop(changed.took)?;
            let (chunk, racks_of, crossed) = (change.data.chunk, trial.racks(change), changed.crossed);
            report.changes.push(ChangeReport { chunk, racks_of, crossed, metered });
        }
    }
    print(&UpdateReport {
        code: args.code.to_string(),
        racks,
        sites: rack_of.len(),
        chunk_bytes: load.chunk_len,
        range_bytes: load.range_len,
        ways,
    })
}
