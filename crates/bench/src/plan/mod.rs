//! Compares the planners with HiGHS. For the access planner: whether its optima agree, how much faster it is, and how
//! good its plans are where no optimum is proved. For queries over packed objects: the gap to the optimum, and the
//! planning time.
//!
//! Times are processor time of one thread, the best of five runs per instance; the 99th percentile is over instances.
//! HiGHS runs in this process with one thread, after a warm-up call.

mod alternatives;
mod beyond;
mod highs;
mod makespan;
mod options;
mod race;
mod speed;

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::claims::Claims;

/// Options of `striate-bench plan`.
#[derive(clap::Args)]
pub struct Options {
    /// More instances, and 60 s of HiGHS for each that is hard: hours.
    #[arg(long)]
    full: bool,
    /// Only queries over packed objects.
    #[arg(long)]
    packed: bool,
    /// Where to write the figures, one JSON object for each line.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Only write the optima that HiGHS finds for 2,000 seeds, the table that the planner's tests hold it against.
    #[arg(long, value_name = "FILE")]
    write_optima: Option<PathBuf>,
}

/// Work units that suffice to prove the optimum of small requests.
const AMPLE: u64 = 1_000_000_000;
/// Number of lines in the table of optima.
const OPTIMA: u64 = 2_000;

/// Extent of the measurements.
struct Extent {
    race_instances: u64,
    speed_instances: u64,
    ratio_instances: u64,
    gap_instances: u64,
    makespan_instances: u64,
    /// HiGHS's time limit, in seconds, for each instance of the gap measurements.
    gap_limit_s: f64,
    /// Work units that take about 200 µs.
    budget: u64,
}

impl Extent {
    fn short() -> Extent {
        let budget = striate_plan::solver::access::BUDGET_OF_200_US;
        Extent {
            race_instances: 1_500,
            speed_instances: 1_000,
            ratio_instances: 100,
            gap_instances: 5,
            makespan_instances: 8,
            gap_limit_s: 10.0,
            budget,
        }
    }

    fn full() -> Extent {
        let short = Extent::short();
        Extent {
            race_instances: 5_000,
            speed_instances: 5_000,
            ratio_instances: 500,
            gap_instances: 20,
            makespan_instances: 60,
            gap_limit_s: 60.0,
            ..short
        }
    }
}

/// Runs the measurements and prints the claims; fails if one does not hold.
pub fn run(options: &Options) -> ExitCode {
    let done = match &options.write_optima {
        Some(path) => race::write_optima(path, OPTIMA).map(|()| true),
        None => measure(options),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("striate-bench plan: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> io::Result<bool> {
    let json: Box<dyn Write> = match &options.out {
        Some(path) => Box::new(File::create(path)?),
        None => Box::new(io::sink()),
    };
    let extent = if options.full { Extent::full() } else { Extent::short() };
    let mut claims = Claims::new(json);
    makespan::claim_speeds(&mut claims, &extent)?;
    makespan::claim_gaps(&mut claims, &extent)?;
    alternatives::claim_gaps(&mut claims, &extent)?;
    if options.packed {
        return Ok(claims.all_hold());
    }
    speed::claim_speeds(&mut claims, &extent)?;
    speed::state_heuristic(&mut claims, &extent)?;
    race::claim_optima(&mut claims, &extent)?;
    speed::claim_ratios(&mut claims, &extent)?;
    beyond::claim_gaps(&mut claims, &extent)?;
    Ok(claims.all_hold())
}
