//! EC-Store (ICDCS'18): its experiments, figures and tables.

use std::path::PathBuf;

use clap::Args;

/// `striate-lab run`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Run an experiment and write its results.\n\n\
        A whole cluster runs in this process, in virtual time, with every policy of the experiment and every \
        seed. It writes NAME.json and NAME.html, with the paper's figures beside the lab's. The same seed gives \
        the same trace; a run that fails prints its seed and commit.",
    after_long_help = "Examples:\n  \
        striate-lab run --experiment ec-store-ycsb-p\n  \
        striate-lab run --experiment ec-store-ycsb-p --scale 200 --seeds 2\n  \
        striate-lab run --experiment my.toml --seed 77 --seeds 1 --out /tmp/results"
)]
pub struct RunArgs {
    /// A built-in experiment (`striate-lab list`) or a file in the format of `lab/experiments/`.
    #[arg(long, value_name = "NAME|FILE")]
    pub experiment: String,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Number of seeds; overrides the experiment.
    #[arg(long, value_name = "COUNT")]
    pub seeds: Option<u32>,
    /// Only this policy, by its name; can be given several times.
    #[arg(long, value_name = "NAME")]
    pub policy: Vec<String>,
    /// The trace file that an experiment replays: CSV with time_s, op, key, size and group, as it is or gzipped.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// How it is run.
    #[command(flatten)]
    pub how: HowArgs,
    /// Directory of the results.
    #[arg(long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
}

/// How experiments are run.
#[derive(Clone, Debug, Args)]
pub struct HowArgs {
    /// Factor by which blocks, phases and the reporting interval are divided; overrides the experiment.
    #[arg(long)]
    pub scale: Option<f64>,
    /// Runs at the same time, each on a core of its own.
    #[arg(long, default_value_t = 1)]
    pub jobs: usize,
    /// Directory of finished runs, so that none is repeated by the same program.
    #[arg(long, value_name = "DIR", default_value = "lab-results/cells")]
    pub cells: PathBuf,
}

/// `striate-lab figure`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Run what stands for one figure or table of the EC-Store paper, and draw it.\n\n\
        4a to 4d and table-2 are five views of the same runs, 4e has blocks of 1 MB, 4f failed sites, 4g and 4h pages of \
        images. Runs that are finished are not made again. It writes FIGURE-CALIBRATION.svg and the whole report. \
        table-3 is what statistics and planning take; it has no policies, seeds or calibrations.",
    after_long_help = "Examples:\n  striate-lab figure 4c\n  striate-lab figure table-3\n  striate-lab figure table-2 --calibration A --scale 100"
)]
pub struct FigureArgs {
    /// 4a to 4h, table-2 or table-3.
    pub figure: String,
    /// P, A or D.
    #[arg(long, default_value = "P")]
    pub calibration: String,
    /// Number of seeds; overrides the experiment.
    #[arg(long, value_name = "COUNT")]
    pub seeds: Option<u32>,
    /// How it is run.
    #[command(flatten)]
    pub how: HowArgs,
    /// Directory of the results.
    #[arg(long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
}

/// `striate-lab results`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Run every experiment and write the pages of docs/src/results.\n\n\
        Each built-in experiment with all its seeds, and one unscaled run for each calibration, which validates the \
        scale. It takes a night. After Ctrl-C or a power cut the same command continues with what is \
        missing: every finished run is kept.",
    after_long_help = "Examples:\n  striate-lab results --jobs 2\n  striate-lab results --scale 1000 --seeds 2 --out /tmp/results"
)]
pub struct ResultsArgs {
    /// Only these experiments; without it all, and the unscaled runs.
    #[arg(long, value_name = "NAME")]
    pub experiment: Vec<String>,
    /// Number of seeds; overrides the experiments.
    #[arg(long, value_name = "COUNT")]
    pub seeds: Option<u32>,
    /// Leave the unscaled runs out.
    #[arg(long)]
    pub no_unscaled: bool,
    /// How they are run.
    #[command(flatten)]
    pub how: HowArgs,
    /// Directory of the pages.
    #[arg(long, value_name = "DIR", default_value = "docs/src/results")]
    pub out: PathBuf,
}
