//! Random faults.

use std::path::PathBuf;

use clap::Args;

/// `striate-lab faults`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Try the store under random faults.\n\n\
        Every seed is a cluster in virtual time with the real chunk stores and the real metadata engine on simulated \
        disks: clients work on few contended keys while machines crash, disks lose, damage and refuse data, and \
        messages get lost; afterwards every answer and every stored byte is judged. Prints how often each operation \
        met each fault; a cell without a hit is a failure, and so is a seed that broke an invariant. It is named with \
        the commit, and --seed shows it again. With --out, the next call resumes after the last seed.",
    after_long_help = "Examples:\n  \
        striate-lab faults\n  \
        striate-lab faults --seeds 10000 --out lab-results\n  \
        striate-lab faults --seed 77\n  \
        striate-lab faults --mutation skip-fsync"
)]
pub struct FaultsArgs {
    /// How many seeds.
    #[arg(long, value_name = "COUNT", default_value_t = 320)]
    pub seeds: u64,
    /// The first seed.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub from: u64,
    /// Only this seed, with every operation and fault on standard error.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Only those seeds whose clusters have such profiles: rs, lrc, replica, none, or wide.
    #[arg(long)]
    pub family: Option<String>,
    /// Only those seeds whose clusters have memory sites.
    #[arg(long)]
    pub memory: bool,
    /// Plants a defect, which the first seeds must find; `all` for one after the other.
    #[arg(long)]
    pub mutation: Option<String>,
    /// Operations of a seed, at least.
    #[arg(long, value_name = "COUNT", default_value_t = 500)]
    pub operations: u64,
    /// Faults of a seed.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    pub faults: u64,
    /// Seeds at the same time, each on a core of its own; as many as there are cores, unless set.
    #[arg(long, value_name = "COUNT")]
    pub jobs: Option<usize>,
    /// Keeps the state in this directory.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}
