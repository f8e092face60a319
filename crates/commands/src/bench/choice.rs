//! Chooses a workload by the arguments. An argument that does not apply is refused, not ignored.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use striate_workload::trace::{self, Preload, ReplayOptions};
use striate_workload::{
    Analytics, Cdn, DEFAULT_SIZE, EcStoreScans, KeyDistribution, Keys, Pages, Partitions, Workload, Ycsb,
    YcsbWorkload, analytics, partitions, ycsb,
};

use crate::args::{BenchArgs, PreloadName, WorkloadName};
use crate::failure::{Failure, Outcome};

/// The chosen workload.
pub struct ChosenWorkload {
    /// Workload of the warm-up, if it differs from the measured one.
    pub warm_up: Option<Box<dyn Workload>>,
    /// Workload to measure.
    pub measured: Box<dyn Workload>,
}

/// Returns a workload's name on the command line.
pub fn name(workload: WorkloadName) -> String {
    workload.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}

/// Creates the workload that the arguments describe.
///
/// # Errors
/// If an argument is missing or does not apply, or a file cannot be used.
pub fn choose(args: &BenchArgs) -> Outcome<ChosenWorkload> {
    check(args)?;
    let (seed, scale) = (args.seed, args.size_scale.unwrap_or(1.0));
    let objects = |default| args.objects.unwrap_or(default);
    let zipf = |default| args.zipf.unwrap_or(default);
    let size = args.size.unwrap_or(DEFAULT_SIZE);
    let mut warm_up: Option<Box<dyn Workload>> = None;
    let measured: Box<dyn Workload> = match args.workload {
        WorkloadName::EcStore => {
            warm_up = Some(Box::new(EcStoreScans::warm_up(objects(10_000)).with_size(size)));
            Box::new(EcStoreScans::measured(objects(10_000), zipf(1.0)).with_size(size))
        }
        WorkloadName::Pages => Box::new(Pages::new(objects(100), zipf(1.0), scale, seed)),
        WorkloadName::Partitions => {
            let per_partition = partitions::OBJECTS_PER_PARTITION;
            Box::new(Partitions::new(objects(10_000), per_partition, zipf(1.0), seed))
        }
        WorkloadName::Analytics => {
            Box::new(Analytics::new(objects(50), zipf(analytics::EXPONENT), scale, seed))
        }
        WorkloadName::Cdn => Box::new(cdn(args, objects(10_000))?),
        WorkloadName::Trace => Box::new(replay(args)?),
        WorkloadName::YcsbA => ycsb(args, YcsbWorkload::A),
        WorkloadName::YcsbB => ycsb(args, YcsbWorkload::B),
        WorkloadName::YcsbC => ycsb(args, YcsbWorkload::C),
        WorkloadName::YcsbD => ycsb(args, YcsbWorkload::D),
        WorkloadName::YcsbE => ycsb(args, YcsbWorkload::E),
        WorkloadName::YcsbF => ycsb(args, YcsbWorkload::F),
    };
    Ok(ChosenWorkload { warm_up, measured })
}

fn ycsb(args: &BenchArgs, workload: YcsbWorkload) -> Box<dyn Workload> {
    let exponent = args.zipf.unwrap_or(ycsb::EXPONENT);
    let distribution = match workload {
        YcsbWorkload::D => KeyDistribution::Latest { exponent },
        _ => KeyDistribution::ScrambledZipf { exponent },
    };
    let keys = Keys::new(distribution, args.objects.unwrap_or(10_000));
    Box::new(Ycsb::with_keys(workload, keys).with_size(args.size.unwrap_or(DEFAULT_SIZE)))
}

fn cdn(args: &BenchArgs, objects: u64) -> Outcome<Cdn> {
    let text = |option: &str, path: &Option<PathBuf>| {
        let path = path.as_ref().ok_or_else(|| {
            Failure::refused(format!(
                "the workload cdn needs {option} FILE, in the format of CacheLib's cachebench; \
                 facebook/CacheLib has such files in cachebench/test_configs/hit_ratio/cdn"
            ))
        })?;
        std::fs::read_to_string(path).map_err(|error| unusable(path, error))
    };
    let sizes = text("--cdn-sizes", &args.cdn_sizes)?;
    let popularity = text("--cdn-popularity", &args.cdn_popularity)?;
    Cdn::new(objects, &sizes, &popularity, args.seed).map_err(Failure::refused)
}

fn replay(args: &BenchArgs) -> Outcome<trace::Replay> {
    let path = args.trace.as_ref().ok_or_else(|| {
        Failure::refused("the workload trace needs --trace FILE, a CSV file with time_s,op,key,size[,group]")
    })?;
    let preload = match args.preload {
        None | Some(PreloadName::Missing) => Preload::Missing,
        Some(PreloadName::All) => Preload::All,
    };
    let options = ReplayOptions { time_scale: args.time_scale.unwrap_or(1.0), preload };
    trace::open(path, options).map_err(|error| unusable(path, error))
}

fn unusable(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::refused(format!("{}: {error}", path.display()))
}

/// Refuses arguments that do not apply to the workload.
fn check(args: &BenchArgs) -> Outcome {
    use WorkloadName::{Analytics, Cdn, Pages, Partitions, Trace};
    let workload = args.workload;
    let is_fixed_size = !matches!(workload, Analytics | Cdn | Pages | Partitions | Trace);
    let is_trace = workload == Trace;
    let options = [
        ("--size", args.size.is_some(), is_fixed_size, "ycsb-* and ec-store"),
        (
            "--size-scale",
            args.size_scale.is_some(),
            matches!(workload, Pages | Analytics),
            "pages and analytics",
        ),
        ("--zipf", args.zipf.is_some(), !matches!(workload, Cdn | Trace), "all but cdn and trace"),
        ("--objects", args.objects.is_some(), !is_trace, "all but trace"),
        ("--range", args.range.is_some(), !is_trace, "all but trace, which may read objects of any size"),
        ("--cdn-sizes", args.cdn_sizes.is_some(), workload == Cdn, "cdn"),
        ("--cdn-popularity", args.cdn_popularity.is_some(), workload == Cdn, "cdn"),
        ("--trace", args.trace.is_some(), is_trace, "trace"),
        ("--time-scale", args.time_scale.is_some(), is_trace, "trace"),
        ("--preload", args.preload.is_some(), is_trace, "trace"),
        ("--rate", args.rate.is_some(), !is_trace, "all but trace, which has times of its own"),
        ("--warm-up", args.warm_up > 0.0, !is_trace, "all but trace"),
    ];
    match options.into_iter().find(|(_, is_given, applies, _)| *is_given && !applies) {
        Some((option, _, _, to)) => Err(Failure::refused(format!(
            "{option} does not apply to the workload {}, only to {to}; leave it out",
            name(workload)
        ))),
        None => Ok(()),
    }
}
