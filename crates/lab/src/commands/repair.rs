//! `striate-lab repair`.

use crate::repair::{self, RepairTrial, variation};

use crate::args::RepairArgs;
use crate::failure::{Failure, Outcome};

/// Runs the trial and prints the results.
pub(super) fn run(args: &RepairArgs) -> Outcome {
    if args.sites < 2 || args.blocks == 0 || args.card <= 0.0 || args.share <= 0.0 || args.reads <= 0.0 {
        return Err(Failure::refused(
            "sites, blocks, --card, --share and --reads must be above 0 (sites: above 1)",
        ));
    }
    let trial = RepairTrial {
        sites: args.sites,
        profile: args.profile,
        blocks: args.blocks,
        block_len: args.block_len,
        card_bytes_per_s: args.card * 1e9 / 8.0,
        share: args.share,
        reads_per_s: args.reads,
        seed: args.seed,
    };
    let report = repair::run(trial).map_err(Failure::refused)?;
    let [before, beside] = report.mean_ms;
    let [p99_before, p99_beside] = report.p99_ms;
    let sources = report.sent.iter().filter(|&&bytes| bytes > 0).count();
    let targets = report.stored.iter().filter(|&&bytes| bytes > 0).count();
    println!(
        "{} chunks rebuilt in {:.1} s of virtual time, {:.0}% of what was allowed\n\
         {sources} sites sent, {targets} stored; coefficient of variation {:.3} and {:.3}\n\
         reads: mean {before:.2} ms before, {beside:.2} ms meanwhile; p99 {p99_before:.1} ms and {p99_beside:.1} ms; {} failed",
        report.chunks,
        report.took_s,
        100.0 * report.used,
        variation(&report.sent),
        variation(&report.stored),
        report.failed,
    );
    Ok(())
}
