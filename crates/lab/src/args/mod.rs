//! The command line. Every command's `--help` teaches: what it does, what it needs, examples.

use clap::{Parser, Subcommand};

mod caching;
mod cluster;
mod directing;
mod ec_store;
mod faults;
mod reality;
mod wide;

pub use caching::CachingArgs;
pub use cluster::{RepairArgs, SpeedArgs};
pub use directing::{DirectingArgs, PackedBatchesArgs};
pub use ec_store::{FigureArgs, HowArgs, ResultsArgs, RunArgs};
pub use faults::FaultsArgs;
pub use reality::{PackedRealityArgs, RealityArgs, SiteArgs};
pub use wide::{
    EncodeNodeArgs, RackHost, RacksArgs, WideArgs, WideCodesArgs, WideEncodeArgs, WideRepairArgs,
    WideUpdateArgs,
};

/// Experiments on a whole Striate cluster in virtual time.
#[derive(Debug, Parser)]
#[command(
    name = "striate-lab",
    version,
    long_about = "Run experiments on a whole Striate cluster in virtual time.\n\n\
        Sites, clients and metadata are the real code; disks and networks are modelled. RUST_LOG chooses what is logged, \
        e.g. RUST_LOG=warn,striate_control=debug; by default nothing. See docs/src/lab.md."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// List the experiments that are built in.
    #[command(after_long_help = "Example:\n  striate-lab list")]
    List,
    /// Run an experiment and write its results.
    Run(RunArgs),
    /// Run what stands for one figure or table of the EC-Store paper, and draw it.
    Figure(FigureArgs),
    /// Run every experiment and write the pages of docs/src/results; resumes where it was interrupted.
    Results(ResultsArgs),
    /// Measure what encoding, decoding and planning cost on this machine.
    #[command(after_long_help = "Example:\n  striate-lab costs")]
    Costs,
    /// Compare the lab with real processes with modelled media.
    Reality(RealityArgs),
    /// Read packed objects from real processes with modelled media, by three policies.
    PackedReality(PackedRealityArgs),
    /// Measure how fast the lab is on this machine.
    Speed(SpeedArgs),
    /// Fail a site and rebuild its chunks while clients read.
    Repair(RepairArgs),
    /// Predict Tables 1 and 2 of Hu et al. (SoCC'17) from their first rows.
    Directing(DirectingArgs),
    /// Plan batch reads of packed objects, beside least marginal load first.
    PackedBatches(PackedBatchesArgs),
    /// Reproduce the figures of EC-Cache (OSDI'16), and the store's own way beside them.
    Caching(CachingArgs),
    /// Reproduce the figures of ECWide (FAST'21) with the store's own codes and trees.
    Wide(WideArgs),
    /// Compute what ECWide (FAST'21) says of codes, beside the paper's values.
    WideCodes(WideCodesArgs),
    /// Try the store under random faults.
    Faults(FaultsArgs),
    /// Repair a chunk of a wide stripe on real processes in racks.
    WideRepair(WideRepairArgs),
    /// Make a wide stripe's global parities on real processes in racks, on one node and on many.
    WideEncode(WideEncodeArgs),
    /// Change data chunks of wide stripes on real processes in racks, and the parities with them.
    WideUpdate(WideUpdateArgs),
    /// Fetch a stripe's data chunks and encode them: what `wide-encode` starts.
    #[command(hide = true)]
    EncodeNode(EncodeNodeArgs),
    /// Run one site with a modelled medium: what `reality` starts.
    #[command(hide = true)]
    Site(SiteArgs),
}
