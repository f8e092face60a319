//! EC-Cache (OSDI'16).

use clap::Args;

/// `striate-lab caching`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Reproduce the figures of EC-Cache (OSDI'16), and the store's own way beside them.\n\n\
        A model of flows: blocks in the memory of 25 servers, read by 30 clients, over cards that flows share fairly. Its constants \
        were fitted on the paper's figures for selective replication. See docs/src/ec-cache.md.",
    after_long_help = "Examples:\n  striate-lab caching\n  striate-lab caching --placements 5 --reads 20000 --json"
)]
pub struct CachingArgs {
    /// Placements of each point.
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    pub placements: u64,
    /// Placements of points of which λ is shown: it is luck to a large part.
    #[arg(long, value_name = "COUNT", default_value_t = 40)]
    pub placements_of_balance: u64,
    /// Reads of each run that count.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pub reads: u64,
    /// The first placement.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
