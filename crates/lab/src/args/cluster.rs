//! The whole cluster in virtual time: how fast it is simulated, and how it repairs.

use clap::Args;
use striate_core::Profile;

/// `striate-lab speed`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Measure how fast the lab is on this machine.\n\n\
        Runs EC-Store's scans over RS(2,2) with 100 closed-loop clients, first on a cluster of 32 sites, then on \
        one of many, and prints chunk reads per minute of real time, on one core, and the memory taken.",
    after_long_help = "Examples:\n  striate-lab speed\n  striate-lab speed --sites 1000 --blocks 1000000"
)]
pub struct SpeedArgs {
    /// Sites of the large cluster.
    #[arg(long, default_value_t = 1_000)]
    pub sites: u32,
    /// Blocks in each of the two clusters.
    #[arg(long, default_value_t = 100_000)]
    pub blocks: u32,
    /// Virtual seconds that each of them runs.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub length: f64,
    /// The seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// `striate-lab repair`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Fail a site and rebuild its chunks while clients read.\n\n\
        The real repair service in a cluster in virtual time, calibration P, allowed a share of each network card, while \
        clients send EC-Store's scans in open loop. Prints how much of the share was used, how evenly the sites sent and \
        took chunks, and what the clients noticed.",
    after_long_help = "Examples:\n  striate-lab repair\n  striate-lab repair --profile 'rs(6,3)' --share 0.2"
)]
pub struct RepairArgs {
    /// Sites, of which one dies.
    #[arg(long, default_value_t = 32)]
    pub sites: u32,
    /// Code of the blocks.
    #[arg(long, default_value = "rs(2,2)")]
    pub profile: Profile,
    /// Blocks of one object each.
    #[arg(long, default_value_t = 20_000)]
    pub blocks: u32,
    /// Length of a block in bytes; the code's k divides it.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000_000)]
    pub block_len: u32,
    /// Bandwidth of each network card, in Gbit/s and each direction.
    #[arg(long, value_name = "GBIT", default_value_t = 10.0)]
    pub card: f64,
    /// The share of it that repair may use, sent and received together.
    #[arg(long, default_value_t = 0.1)]
    pub share: f64,
    /// Scans that clients send in a second.
    #[arg(long, value_name = "RATE", default_value_t = 100.0)]
    pub reads: f64,
    /// The seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}
