//! Arguments of `striate lab`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `striate lab …`.
#[derive(Clone, Debug, Subcommand)]
pub enum LabCommand {
    /// List the experiments that are built in.
    #[command(after_long_help = "Example:\n  striate lab list")]
    List,
    /// Run an experiment and write its results.
    Run(LabRunArgs),
    /// Measure how fast the lab is on this machine.
    Speed(LabSpeedArgs),
}

/// `striate lab run`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Run an experiment and write its results.\n\n\
        A whole cluster runs in this process, in virtual time, with every policy of the experiment and every \
        seed. Written are NAME.json and NAME.html, with the paper's figures beside the lab's. The same seed gives \
        the same trace; a run that fails prints its seed and commit.",
    after_long_help = "Examples:\n  \
        striate lab run --experiment ec-store-ycsb-p\n  \
        striate lab run --experiment ec-store-ycsb-p --scale 200 --seeds 2\n  \
        striate lab run --experiment my.toml --seed 77 --seeds 1 --out /tmp/results"
)]
pub struct LabRunArgs {
    /// A built-in experiment (`striate lab list`) or a file in the format of `lab/experiments/`.
    #[arg(long, value_name = "NAME|FILE")]
    pub experiment: String,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many seeds to run, instead of what the experiment says.
    #[arg(long, value_name = "COUNT")]
    pub seeds: Option<u32>,
    /// What blocks, phases and reporting interval are divided by, instead of what the experiment says.
    #[arg(long)]
    pub scale: Option<f64>,
    /// Where the results are written.
    #[arg(long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
}

/// `striate lab speed`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Measure how fast the lab is on this machine.\n\n\
        Runs EC-Store's scans over RS(2,2) with 100 closed-loop clients, first on a cluster of 32 sites, then on \
        one of many, and prints chunk reads per minute of real time, on one core, and the memory taken.",
    after_long_help = "Examples:\n  striate lab speed\n  striate lab speed --sites 1000 --blocks 1000000"
)]
pub struct LabSpeedArgs {
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
