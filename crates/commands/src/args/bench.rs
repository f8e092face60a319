//! Arguments of `striate bench`.

use std::path::PathBuf;

use bytesize::ByteSize;
use clap::{Args, ValueEnum};

use super::EndpointArgs;

/// `striate bench`.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Examples:\n  \
        striate bench --bucket bench --workload ycsb-b --objects 10000 --size 100KB --load\n  \
        striate bench --bucket bench --workload ycsb-c --rate 500 --duration 60 --json result.json\n  \
        striate bench --bucket bench --workload ycsb-c --objects 200 --size 32MiB --range 4KiB --load\n  \
        striate bench --bucket bench --workload pages --objects 50 --size-scale 0.1 --load --verify --clean\n  \
        striate bench --bucket bench --workload trace --trace day.csv.gz --time-scale 10 --load\n  \
        striate bench --endpoint http://127.0.0.1:9000 --bucket bench --workload ec-store --clients 100")]
pub struct BenchArgs {
    /// The bucket. --load makes it if it is missing.
    #[arg(long, value_name = "NAME")]
    pub bucket: String,
    /// The workload to run.
    #[arg(long, value_enum)]
    pub workload: WorkloadName,
    /// Prefix of all keys. Default: striate-bench/WORKLOAD/SEED/.
    #[arg(long)]
    pub prefix: Option<String>,
    /// Seed of all random choices: sizes, contents, and the order of operations.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Number of objects (pages: number of pages).
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub objects: Option<u64>,
    /// Size of each object of ycsb-* and ec-store, such as 10KB, 100KB or 1MiB.
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Read this many bytes at a random offset of an object, such as 4KiB, instead of all of it.
    #[arg(long, value_name = "BYTES", value_parser = parse_range)]
    pub range: Option<u64>,
    /// Factor by which the sizes of pages and analytics are multiplied.
    #[arg(long, value_name = "FACTOR", value_parser = parse_positive)]
    pub size_scale: Option<f64>,
    /// Exponent of the Zipf distribution, where the workload has one.
    #[arg(long, value_name = "EXPONENT", value_parser = parse_positive)]
    pub zipf: Option<f64>,
    /// The CDN's histogram of sizes, in the format of CacheLib's cachebench.
    #[arg(long, value_name = "FILE")]
    pub cdn_sizes: Option<PathBuf>,
    /// The CDN's histogram of popularity, in the same format.
    #[arg(long, value_name = "FILE")]
    pub cdn_popularity: Option<PathBuf>,
    /// Trace file: CSV with the columns `time_s,op,key,size[,group]`, optionally compressed by gzip.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Replay the trace this many times as fast as it was recorded.
    #[arg(long, value_name = "FACTOR", value_parser = parse_positive)]
    pub time_scale: Option<f64>,
    /// Which of the trace's objects --load writes: those that it reads before it writes them, or all.
    #[arg(long, value_enum)]
    pub preload: Option<PreloadName>,

    /// Closed loop: number of clients, each with one operation at a time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub clients: u32,
    /// Open loop: operations per second, at the times of a Poisson process, instead of a closed loop.
    #[arg(long, value_name = "PER_SECOND", value_parser = parse_positive, conflicts_with = "clients")]
    pub rate: Option<f64>,
    /// Open loop: maximum number of operations in flight. Later ones queue, and their time in the queue
    /// counts.
    #[arg(long, value_name = "COUNT", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_in_flight: u32,
    /// Warm-up, in seconds, that is not measured.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = parse_seconds)]
    pub warm_up: f64,
    /// Length of the measurement, in seconds; 0 measures nothing. Default: 30, or unlimited for a trace and
    /// with --operations.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub duration: Option<f64>,
    /// End after this many operations.
    #[arg(long, value_name = "COUNT")]
    pub operations: Option<u64>,
    /// Timeout of a request, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = parse_positive)]
    pub timeout: f64,

    /// First write the objects that are missing or have another size. May be interrupted and repeated.
    #[arg(long)]
    pub load: bool,
    /// Finally remove all objects that the workload may have written.
    #[arg(long)]
    pub clean: bool,
    /// Check that every read returns what was written.
    #[arg(long)]
    pub verify: bool,
    /// Sign the bodies of writes too, which costs this machine a SHA-256 of each.
    #[arg(long)]
    pub sign_bodies: bool,
    /// Write the results here too, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Show no progress.
    #[arg(long, short)]
    pub quiet: bool,
    /// Which endpoint.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
}

/// The workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WorkloadName {
    /// Half reads, half updates.
    YcsbA,
    /// 95% reads, 5% updates.
    YcsbB,
    /// Reads only.
    YcsbC,
    /// 95% reads of the latest, 5% inserts.
    YcsbD,
    /// 95% reads of 1 to 100 neighbours at once, 5% inserts.
    YcsbE,
    /// Half reads, half read-modify-writes.
    YcsbF,
    /// EC-Store's scans: 1 to 20 neighbours at once, warmed up uniformly, then from a Zipf(1) start.
    EcStore,
    /// Pages of about 10 images of about 500 KB, all read at once.
    Pages,
    /// Small objects in partitions, read one by one.
    Partitions,
    /// Objects of 1 to 100 MB.
    Analytics,
    /// A CDN (--cdn-sizes and --cdn-popularity).
    Cdn,
    /// The operations of a trace, at its times (--trace).
    Trace,
}

/// Which objects of a trace are loaded before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PreloadName {
    /// Those that the trace reads or deletes before it writes them.
    Missing,
    /// All.
    All,
}

const ONE_GIB: u64 = 1 << 30;

/// Parses a size as [`parse_size`] does, and requires at least one byte.
fn parse_range(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("a range has at least one byte".to_owned()),
        len => Ok(len),
    }
}

/// Parses a size of at most 1 GiB: `10KB`, `1MiB` or a plain number.
fn parse_size(text: &str) -> Result<u64, String> {
    let ByteSize(size) =
        text.parse().map_err(|error| format!("{error}; write a size such as 100KB or 1MiB"))?;
    match size {
        0..=ONE_GIB => Ok(size),
        _ => Err("objects are written in one request, of at most 1 GiB".to_owned()),
    }
}

fn parse_positive(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number
        .filter(|number| *number > 0.0 && number.is_finite())
        .ok_or_else(|| "write a number above 0".to_owned())
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number.filter(|number| (0.0..1e9).contains(number)).ok_or_else(|| "write a number of seconds".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let sizes = ["10KB", "1MiB", "7", "100kb"].map(|text| parse_size(text).unwrap());
        assert_eq!(sizes, [10_000, 1 << 20, 7, 100_000]);
        for wrong in ["", "KB", "10GBs", "2000MiB", "-1"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
        assert!(parse_positive("0").is_err() && parse_positive("NaN").is_err() && parse_seconds("0").is_ok());
    }
}
