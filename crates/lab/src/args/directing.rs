//! Load direction (Hu et al., SoCC'17), and batch reads beside it.

use std::path::PathBuf;

use clap::Args;

/// `striate-lab directing`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Predict Tables 1 and 2 of Hu et al. (SoCC'17) from their first rows, and compare the store's default \
        with their policies.\n\n\
        A queueing model of the paper's cluster, 90 nodes and 2,004 partitions, directed by the seven policies that also run on \
        the real engine. Loads and placements are tried until enough of them give Normal's row as the paper has it; \
        printed is what the other policies do on these, beside the paper's figures. --default runs the store's own rule on \
        such loads and tells its mean and 99th percentile over the best of the seven. See docs/src/load-direction.md for \
        what is fitted and what is predicted.",
    after_long_help = "Examples:\n  striate-lab directing\n  striate-lab directing --table 2 --fit A3 --placements 5\n  \
        striate-lab directing --probe-ms 0\n  striate-lab directing --default --case charged --placements 5 --length 400\n  \
        striate-lab directing --default --case trace --trace requests.csv.gz"
)]
pub struct DirectingArgs {
    /// Only this table, 1 or 2.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=2))]
    pub table: Option<u32>,
    /// The load: A1, A2, A3 or A4; without it, any of the family of short bursts on hot objects.
    #[arg(long, value_name = "NAME")]
    pub fit: Option<String>,
    /// Number of loads and placements that give Normal's row.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    pub placements: usize,
    /// Maximum number of loads to try for it.
    #[arg(long, value_name = "COUNT", default_value_t = 1_000)]
    pub tries: u64,
    /// Instead, compare Normal's time-outs on A1 to A4.
    #[arg(long, conflicts_with_all = ["fit", "jointly", "default"])]
    pub time_outs: bool,
    /// Only loads that give Normal's row of both tables, on one placement.
    #[arg(long)]
    pub jointly: bool,
    /// How near the mean, median and 95th percentile of Normal must be to the paper's: a share of them.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub within: f64,
    /// Seconds of each run, in the model's time.
    #[arg(long, value_name = "SECONDS", default_value_t = 800.0)]
    pub length: f64,
    /// Latency of a probe at a front end. The paper's least response times suggest 1.25 ms.
    #[arg(long, value_name = "MS", default_value_t = 1.25)]
    pub probe_ms: f64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Only these seeds: the ones that an earlier run named.
    #[arg(long, value_name = "SEED,…", value_delimiter = ',', conflicts_with = "seed")]
    pub seeds: Vec<u64>,
    /// Instead, compare the store's default with the best of the seven.
    #[arg(long)]
    pub default: bool,
    /// With --default: only this case. Without it, all that need no files.
    #[arg(long = "case", value_name = "CASE", requires = "default",
        value_parser = ["charged", "free", "slow", "skews", "load", "cdn", "trace"])]
    pub cases: Vec<String>,
    /// With --default: only what has a bar.
    #[arg(long, requires = "default")]
    pub brief: bool,
    /// For --case cdn: a histogram of sizes (CacheLib's format).
    #[arg(long, value_name = "FILE", requires = "cdn_popularity")]
    pub cdn_sizes: Option<PathBuf>,
    /// For --case cdn: a histogram of popularity.
    #[arg(long, value_name = "FILE", requires = "cdn_sizes")]
    pub cdn_popularity: Option<PathBuf>,
    /// For --case trace: the trace, CSV with time_s, op, key, size and group.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Writes Figures 5 to 8 of these loads into this folder.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["default", "time_outs"])]
    pub figures: Option<PathBuf>,
    /// Write the results into this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes problems of load direction tables, with the shares and values that the solver finds and what it takes, into this
    /// file instead.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["default", "time_outs", "figures"])]
    pub write_problems: Option<PathBuf>,
}

/// `striate-lab packed-batches`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Plan batch reads of packed objects, beside least marginal load first.\n\n\
        A queueing model of 90 sites that serve one request after the other, and 8 gateways with the real planners: queries of 10 to \
        20 objects of 16 KiB, by Zipf's law with exponent 1.1 over 200,000, as one plan of the default policy and, for each \
        object by itself, by Hu et al.'s least marginal load first, with the same knowledge of the sites: exact, or pushed at \
        every change. See docs/src/read-plans.md.",
    after_long_help = "Examples:\n  striate-lab packed-batches\n  striate-lab packed-batches --placements 8 --load 0.5 --json"
)]
pub struct PackedBatchesArgs {
    /// Placements, each with queries of its own.
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub placements: u64,
    /// Queries of each run that count.
    #[arg(long, value_name = "COUNT", default_value_t = 18_000)]
    pub queries: usize,
    /// Share of its time for which the hottest site would be busy if every object were read from its own
    /// chunk.
    #[arg(long, default_value_t = 0.8)]
    pub load: f64,
    /// w: weight of the load that a read adds, against its latency.
    #[arg(long, value_name = "W", default_value_t = striate_plan::solver::makespan::USUAL_WEIGHT)]
    pub load_weight: f64,
    /// Copies of the hottest partitions, as a share of all bytes.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    pub copies: f64,
    /// Seed of the first placement. 1 to 199 were used to choose the rules.
    #[arg(long, default_value_t = 201)]
    pub seed: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
