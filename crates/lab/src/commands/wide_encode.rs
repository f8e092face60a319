//! `striate-lab wide-encode`: encodes the global parities of a wide stripe on real processes in racks, on one node
//! and on many.

use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use striate_codec::Code;
use striate_core::Profile;
use striate_runtime::Runtime;
use striate_trust::Trust;

use super::processors::Usage;
use super::racks::{Meter, Metered, first_racks, host, print, start};
use super::site_processes::{Peers, SiteProcesses};
use crate::args::{EncodeNodeArgs, RackHost, WideEncodeArgs};
use crate::failure::{Failure, Outcome};
use crate::rack_encode::RackEncode;
use crate::rack_repair::layout::{self, Scheme};

/// Results of the command.
#[derive(Debug, Serialize)]
struct EncodeReport {
    code: String,
    racks: usize,
    sites: usize,
    chunk_bytes: u64,
    data: usize,
    /// Sums that the trees send across racks for all parities, and the maximum number that arrive at one rack.
    sums: usize,
    most_sums: usize,
    /// Measurements in pairs: equally many of each.
    one: Vec<Metered>,
    trees: Vec<Metered>,
}

/// Output of the single node.
#[derive(Debug, Serialize, Deserialize)]
struct EncodeTimes {
    seconds: f64,
    processor_s: f64,
}

/// Runs both methods in turn and prints the results as JSON.
///
/// # Errors
/// If there are too few racks, a process does not start, or a parity is not made.
pub(super) async fn run(runtime: &Runtime, args: &WideEncodeArgs) -> Outcome {
    let rack_of = layout::racks_of(args.code.code, Scheme::Combined).map_err(Failure::refused)?;
    let hosts = first_racks(&args.racks, 1 + rack_of.iter().max().expect("a stripe has chunks"))?;
    let processes = start(runtime, &args.racks, hosts, &rack_of).await?;
    let (code, chunk_len) = (code(&args.code)?, args.chunk_kib << 10);
    let sites = processes.connect_as_control(runtime)?;
    let trial = RackEncode::new(runtime, code.clone(), sites, chunk_len).map_err(Failure::failed)?;
    let checksums = trial.write_data().await.map_err(Failure::failed)?;
    let destination = &hosts[rack_of[code.n() - 1]];
    let (sums, most_sums) = trial.sums();
    let (mut one, mut trees) = (Vec::new(), Vec::new());
    for repetition in 0..args.repetitions {
        let [of_one, of_trees] = [2, 3].map(|which| 2 * repetition + which);
        let meter = Meter::start(hosts, &processes)?;
        let encoded = on_one_node(runtime, &processes, destination, args, of_one).await?;
        let mut metered = meter.stop(Duration::from_secs_f64(encoded.seconds))?;
        metered.processor_s += encoded.processor_s;
        one.push(metered);
        trial.verify(of_one, &checksums).await.map_err(Failure::failed)?;
        let meter = Meter::start(hosts, &processes)?;
        let took = trial.by_trees(of_trees, &checksums).await.map_err(Failure::failed)?;
        trees.push(meter.stop(took)?);
        trial.verify(of_trees, &checksums).await.map_err(Failure::failed)?;
    }
    print(&EncodeReport {
        code: args.code.to_string(),
        racks: hosts.len(),
        sites: rack_of.len(),
        chunk_bytes: chunk_len.into(),
        data: code.k(),
        sums,
        most_sums,
        one,
        trees,
    })
}

/// Runs the single encoding node in a rack, as a separate process.
async fn on_one_node(
    runtime: &Runtime,
    processes: &SiteProcesses,
    rack: &RackHost,
    args: &WideEncodeArgs,
    generation: u32,
) -> Outcome<EncodeTimes> {
    let mut command = processes.client(&host(rack), "encode-node").map_err(Failure::failed)?;
    command.args(["--code", &args.code.to_string()]);
    command.args([
        "--chunk-len",
        &(args.chunk_kib << 10).to_string(),
        "--generation",
        &generation.to_string(),
    ]);
    let done = runtime.run_blocking(move || Command::output(&mut command)).await.map_err(Failure::failed)?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        return Err(Failure::failed(format!("the encoding node failed: {said}")));
    }
    serde_json::from_slice(&done.stdout).map_err(Failure::failed)
}

/// `striate-lab encode-node`: encodes once and prints its cost.
///
/// # Errors
/// If a site does not return or accept a chunk.
pub(super) async fn encode_node(runtime: &Runtime, args: &EncodeNodeArgs) -> Outcome {
    let trust = Trust::load(runtime, &args.identity).map_err(Failure::refused)?;
    let sites = Peers::open(runtime, &trust, &args.peers)?.in_order();
    let trial =
        RackEncode::new(runtime, code(&args.code)?, sites, args.chunk_len).map_err(Failure::failed)?;
    let took = trial.here(args.generation).await.map_err(Failure::failed)?;
    print(&EncodeTimes { seconds: took.as_secs_f64(), processor_s: Usage::read(&[], &[])?.own_s })
}

fn code(profile: &Profile) -> Outcome<Code> {
    profile.code.build().map_err(Failure::refused)
}
