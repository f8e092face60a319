//! The command line. Every command's `--help` teaches: what it does, what it needs, examples.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use striate_core::Profile;

use crate::calibration::Calibration;
use crate::rack_repair::layout::Scheme;

/// Experiments on a whole Striate cluster in virtual time.
#[derive(Debug, Parser)]
#[command(
    name = "striate-lab",
    version,
    long_about = "Run experiments on a whole Striate cluster in virtual time.\n\n\
        Sites, clients and metadata are the real code; disks and networks are modelled. RUST_LOG chooses what is logged, \
        e.g. RUST_LOG=warn,striate_control=debug; by default nothing. See docs/src/lab.md."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// List the experiments that are built in.
    #[command(after_long_help = "Example:\n  striate-lab list")]
    List,
    /// Run an experiment and write its results.
    Run(RunArgs),
    /// Run what stands for one figure or table of the EC-Store paper, and draw it.
    Figure(FigureArgs),
    /// Run every experiment and write the pages of docs/src/results; goes on where it was interrupted.
    Results(ResultsArgs),
    /// Measure what encoding, decoding and planning cost on this machine.
    #[command(after_long_help = "Example:\n  striate-lab costs")]
    Costs,
    /// Hold the lab against real processes with modelled media.
    Reality(RealityArgs),
    /// Read packed objects from real processes with modelled media, by three policies.
    PackedReality(PackedRealityArgs),
    /// Measure how fast the lab is on this machine.
    Speed(SpeedArgs),
    /// Have a site die, and its chunks rebuilt beside clients' reads.
    Repair(RepairArgs),
    /// Predict Tables 1 and 2 of Hu et al. (SoCC'17) from their first rows.
    Directing(DirectingArgs),
    /// Plan batch reads of packed objects, beside least marginal load first.
    PackedBatches(PackedBatchesArgs),
    /// Reproduce the figures of EC-Cache (OSDI'16), and the store's own way beside them.
    Caching(CachingArgs),
    /// Reproduce the figures of ECWide (FAST'21) with the store's own codes and trees.
    Wide(WideArgs),
    /// Try the store under random faults.
    Faults(FaultsArgs),
    /// Repair a chunk of a wide stripe on real processes in racks.
    WideRepair(WideRepairArgs),
    /// Make a wide stripe's global parities on real processes in racks, on one node and on many.
    WideEncode(WideEncodeArgs),
    /// Change data chunks of wide stripes on real processes in racks, and the parities with them.
    WideUpdate(WideUpdateArgs),
    /// Fetch a stripe's data chunks and encode them: what `wide-encode` starts.
    #[command(hide = true)]
    EncodeNode(EncodeNodeArgs),
    /// Run one site with a modelled medium: what `reality` starts.
    #[command(hide = true)]
    Site(SiteArgs),
}

/// `striate-lab run`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Run an experiment and write its results.\n\n\
        A whole cluster runs in this process, in virtual time, with every policy of the experiment and every \
        seed. Written are NAME.json and NAME.html, with the paper's figures beside the lab's. The same seed gives \
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
    /// How many seeds to run, instead of what the experiment says.
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
    /// Where the results are written.
    #[arg(long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
}

/// How experiments are run.
#[derive(Clone, Debug, Args)]
pub struct HowArgs {
    /// What blocks, phases and reporting interval are divided by, instead of what the experiment says.
    #[arg(long)]
    pub scale: Option<f64>,
    /// Runs at the same time, each on a core of its own.
    #[arg(long, default_value_t = 1)]
    pub jobs: usize,
    /// Where finished runs are kept, so that none is made twice by the same program.
    #[arg(long, value_name = "DIR", default_value = "lab-results/cells")]
    pub cells: PathBuf,
}

/// `striate-lab figure`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Run what stands for one figure or table of the EC-Store paper, and draw it.\n\n\
        4a to 4d and table-2 are five views of the same runs, 4e has blocks of 1 MB, 4f failed sites, 4g and 4h pages of \
        images. Runs that are finished are not made again. Written are FIGURE-CALIBRATION.svg and the whole report. \
        table-3 is what statistics and planning take; it has no policies, seeds or calibrations.",
    after_long_help = "Examples:\n  striate-lab figure 4c\n  striate-lab figure table-3\n  striate-lab figure table-2 --calibration A --scale 100"
)]
pub struct FigureArgs {
    /// 4a to 4h, table-2 or table-3.
    pub figure: String,
    /// P, A or D.
    #[arg(long, default_value = "P")]
    pub calibration: String,
    /// How many seeds to run, instead of what the experiment says.
    #[arg(long, value_name = "COUNT")]
    pub seeds: Option<u32>,
    /// How it is run.
    #[command(flatten)]
    pub how: HowArgs,
    /// Where the results are written.
    #[arg(long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
}

/// `striate-lab results`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Run every experiment and write the pages of docs/src/results.\n\n\
        Each built-in experiment with all its seeds, and one unscaled run for each calibration, which validates the \
        scale. It takes a night. Whatever ends it, Ctrl-C or a power cut, the same command goes on with what is \
        missing: every finished run is kept.",
    after_long_help = "Examples:\n  striate-lab results --jobs 2\n  striate-lab results --scale 1000 --seeds 2 --out /tmp/results"
)]
pub struct ResultsArgs {
    /// Only these experiments; without it all, and the unscaled runs.
    #[arg(long, value_name = "NAME")]
    pub experiment: Vec<String>,
    /// How many seeds to run, instead of what the experiments say.
    #[arg(long, value_name = "COUNT")]
    pub seeds: Option<u32>,
    /// Leave the unscaled runs out.
    #[arg(long)]
    pub no_unscaled: bool,
    /// How they are run.
    #[command(flatten)]
    pub how: HowArgs,
    /// Where the pages are written.
    #[arg(long, value_name = "DIR", default_value = "docs/src/results")]
    pub out: PathBuf,
}

/// `striate-lab reality`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Hold the lab against real processes.\n\n\
        Starts processes of sites on this machine whose stores are as slow as the lab's model of a disk, runs a \
        small workload on them with the real client over the network, runs the same in the lab, and compares means \
        and 99th percentiles. Written are reality.json and reality.html, with both curves of response times. Times \
        are real here, so the machine should have nothing else to do; the share of the processors that others took is \
        reported.",
    after_long_help = "Examples:\n  striate-lab reality\n  striate-lab reality --calibration D --length 20"
)]
pub struct RealityArgs {
    /// Only the cases of this name: R, EC, EC+LB, default; can be given several times.
    #[arg(long, value_name = "NAME")]
    pub case: Vec<String>,
    /// Only the cases of this calibration, P or D.
    #[arg(long, value_name = "CALIBRATION")]
    pub calibration: Option<String>,
    /// Sites, each a process.
    #[arg(long, default_value_t = 8)]
    pub sites: u32,
    /// Closed-loop clients.
    #[arg(long, default_value_t = 2)]
    pub clients: u32,
    /// Blocks of 100 KB.
    #[arg(long, default_value_t = 500)]
    pub blocks: u32,
    /// Seconds of each real run, after a warm-up of a tenth of it; virtual seconds of each run in the lab.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    pub length: f64,
    /// Real runs of each case, each with other media and places.
    #[arg(long, default_value_t = 2)]
    pub rounds: u32,
    /// Runs of each case in the lab.
    #[arg(long, default_value_t = 10)]
    pub lab_seeds: u32,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where the sites' directories are made, and removed at the end. Default: the system's temporary folder.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Where the report is written.
    #[arg(long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
}

/// `striate-lab packed-reality`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Read packed objects from real processes with modelled media, by three policies.\n\n\
        Sites are processes of this program whose disks take as long as a calibration says; gateways are in this \
        one. Objects are asked for as if by many users: at times that do not wait for answers, some much more often than \
        others. Normal reads, LMLF-PW2 (with real probes) and the store's default serve the same requests from the same sites, one \
        after the other.",
    after_long_help = "Examples:\n  striate-lab packed-reality\n  striate-lab packed-reality --profile 'packed lrc(6,2,2)' --load 0.9"
)]
pub struct PackedRealityArgs {
    /// Code of the coding groups.
    #[arg(long, value_name = "PROFILE", default_value = "packed rs(4,2)")]
    pub profile: String,
    /// What the media are like: P, A or D.
    #[arg(long, value_name = "CALIBRATION", default_value = "D")]
    pub calibration: String,
    /// Sites, each a process.
    #[arg(long, default_value_t = 12)]
    pub sites: u32,
    /// Gateways, each with what it knows of the sites itself.
    #[arg(long, default_value_t = 3)]
    pub gateways: usize,
    /// Load of the hottest site under normal reads.
    #[arg(long, default_value_t = 0.8)]
    pub load: f64,
    /// Seconds of each run, after a warm-up of a fifth of it.
    #[arg(long, value_name = "SECONDS", default_value_t = 15.0)]
    pub length: f64,
    /// Rounds, each with other media, places and requests.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where the sites' directories are made, and removed at the end. Default: the system's temporary folder.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Print what was found as JSON.
    #[arg(long)]
    pub json: bool,
}

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
    long_about = "Have a site die, and its chunks rebuilt beside clients' reads.\n\n\
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

/// `striate-lab directing`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Predict Tables 1 and 2 of Hu et al. (SoCC'17) from their first rows, and hold the store's default against \
        their policies.\n\n\
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
    /// How many loads and placements that give Normal's row.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    pub placements: usize,
    /// How many are tried for it at most.
    #[arg(long, value_name = "COUNT", default_value_t = 1_000)]
    pub tries: u64,
    /// Instead, compare Normal's time-outs on A1 to A4.
    #[arg(long, conflicts_with_all = ["fit", "jointly", "default"])]
    pub time_outs: bool,
    /// Only loads that give Normal's row of both tables, on one placement.
    #[arg(long)]
    pub jointly: bool,
    /// How near Normal's mean, median and 95th percentile must be to the paper's, as a share of them.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub within: f64,
    /// Seconds of each run, in the model's time.
    #[arg(long, value_name = "SECONDS", default_value_t = 800.0)]
    pub length: f64,
    /// What a probe takes a front end. The paper's least response times say 1.25 ms.
    #[arg(long, value_name = "MS", default_value_t = 1.25)]
    pub probe_ms: f64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Only these seeds: the ones that an earlier run named.
    #[arg(long, value_name = "SEED,…", value_delimiter = ',', conflicts_with = "seed")]
    pub seeds: Vec<u64>,
    /// Instead, hold the store's default against the best of the seven.
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
    /// Writes what was found into this file.
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
    /// The share of its time that the hottest site would be busy if all were read from their own chunks.
    #[arg(long, default_value_t = 0.8)]
    pub load: f64,
    /// w: what the load that a read adds counts against its latency.
    #[arg(long, value_name = "W", default_value_t = striate_plan::makespan::USUAL_WEIGHT)]
    pub load_weight: f64,
    /// Copies of the hottest partitions, as a share of all bytes.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    pub copies: f64,
    /// The first placement. 1 to 199 were looked at while this was written.
    #[arg(long, default_value_t = 201)]
    pub seed: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

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

/// `striate-lab wide`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Reproduce the figures of ECWide (FAST'21) with the store's own codes and trees.\n\n\
        A model of flows over disks, cards and the links of racks. Two rates were fitted, each on one repair time of topology \
        locality; values that the paper's text states are beside what comes out, and misses are shown. See docs/src/ecwide.md.",
    after_long_help = "Examples:\n  striate-lab wide\n  striate-lab wide --rounds 3 --chunks 600 --json"
)]
pub struct WideArgs {
    /// Seeds of what is random.
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub rounds: u64,
    /// Chunks of 64 MiB of the node that fails in a cluster of 1,000 sites; 5,960 are 400 GB.
    #[arg(long, value_name = "COUNT", default_value_t = 5_960)]
    pub chunks: usize,
    /// Updates and reads of each workload.
    #[arg(long, value_name = "COUNT", default_value_t = 20_000)]
    pub operations: usize,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `striate-lab faults`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Try the store under random faults.\n\n\
        Every seed is a cluster in virtual time with the real chunk stores and the real metadata engine on simulated \
        disks: clients work on few contended keys while machines crash, disks lose, damage and refuse data, and \
        messages get lost; afterwards every answer and every stored byte is judged. Prints how often each operation \
        met each fault; a cell without a hit is a failure, and so is a seed that broke an invariant. It is named with \
        the commit, and --seed shows it again. With --out, the next call goes on after the last seed.",
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

/// `striate-lab site`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Run one site with a modelled medium.\n\n\
        The site of `striate site`, over a store that takes as long as the lab's model of a disk, whatever the real disk can \
        do. It has its number from its caller, registers with nobody, and serves until it is killed. `striate-lab reality` starts \
        its sites with it.",
    after_long_help = "Example:\n  \
        striate-lab site --number 1 --rack a --address 127.0.0.1:9201 --identity s1 --data /tmp/disk1 --medium P"
)]
pub struct SiteArgs {
    /// Its number, from 1.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub number: u32,
    /// Its failure domain.
    #[arg(long)]
    pub rack: String,
    /// Where it listens.
    #[arg(long, value_name = "HOST:PORT")]
    pub address: String,
    /// The directory of its certificate.
    #[arg(long, value_name = "DIR")]
    pub identity: PathBuf,
    /// The directory of its chunks.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// A file with the other sites: a number, a rack and an address in each line.
    #[arg(long, value_name = "FILE")]
    pub peers: Option<PathBuf>,
    /// The calibration, P, A or D, whose disk it is as slow as; without it, no slower than it is.
    #[arg(long, value_name = "CALIBRATION", value_parser = calibration)]
    pub medium: Option<Calibration>,
    /// What the medium's times are drawn from.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub medium_seed: u64,
    /// Keep chunks in memory, in place of the directory.
    #[arg(long, conflicts_with = "medium")]
    pub memory: bool,
}

/// `striate-lab wide-repair`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Repair a chunk of a wide stripe on real processes in racks.\n\n\
        Each rack is a network namespace that was made before, with all its sites in it. One stripe is written; then its first chunk \
        is lost and made anew in its rack, by the store's own repair, again and again. Told are the time of each \
        repetition and what racks have sent and were sent meanwhile, as the links count it.",
    after_long_help = "Example:\n  \
        striate-lab wide-repair --code 'wide(20,5,3)' --scheme combined --host rack0,10.77.0.10,veth0 --host …"
)]
pub struct WideRepairArgs {
    /// The code, as a profile is written.
    #[arg(long, value_name = "PROFILE")]
    pub code: Profile,
    /// How chunks are spread over racks.
    #[arg(long, value_enum)]
    pub scheme: Scheme,
    /// The racks.
    #[command(flatten)]
    pub racks: RacksArgs,
    /// KiB of a chunk.
    #[arg(long, value_name = "KIB", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub chunk_kib: u32,
    /// How often the chunk is lost.
    #[arg(long, default_value_t = 3)]
    pub repetitions: u32,
    /// Beside each repetition, measure what its bytes take when they are only moved, and its sums when they are only added up. This
    /// process must then run in the lost chunk's rack, the first.
    #[arg(long, conflicts_with = "stripes")]
    pub apart: bool,
    /// In place of one chunk, lose one of each of so many stripes on a site, and repair all of them at once.
    #[arg(long, value_name = "COUNT")]
    pub stripes: Option<usize>,
    /// Sites of each rack, for --stripes.
    #[arg(long, value_name = "COUNT", default_value_t = 6)]
    pub rack_sites: usize,
    /// For --stripes: requestors by chance and the first repairer of a rack, in place of those selected longest ago.
    #[arg(long)]
    pub any: bool,
    /// For --stripes: what places are drawn from.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Racks for sites as processes.
#[derive(Clone, Debug, Args)]
pub struct RacksArgs {
    /// A rack: its namespace, its address, and the end of its link that counts bytes here. Given for each, and more may be.
    #[arg(long = "host", value_name = "NAMESPACE,ADDRESS,LINK", value_parser = rack_host)]
    pub hosts: Vec<RackHost>,
    /// Where the sites' directories are made, and removed at the end. Default: the system's temporary folder.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Sites keep chunks in memory, and nothing on disk.
    #[arg(long)]
    pub memory: bool,
}

/// `striate-lab wide-encode`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Make the global parities of a wide stripe on real processes in racks.\n\n\
        The data chunks lie on sites in racks. Two ways take turns: one node in the global parities' rack fetches all data chunks and \
        encodes them on one core; or sites add the parities up along trees, all parities at the same time, as the store seals. Told are \
        the time of each and what racks have sent and were sent meanwhile, as the links count it.",
    after_long_help = "Example:\n  \
        striate-lab wide-encode --code 'wide(20,5,3)' --chunk-kib 1024 --host rack0,10.77.0.10,veth0 --host …"
)]
pub struct WideEncodeArgs {
    /// The wide code.
    #[arg(long, value_name = "PROFILE")]
    pub code: Profile,
    /// The racks.
    #[command(flatten)]
    pub racks: RacksArgs,
    /// KiB of a chunk.
    #[arg(long, value_name = "KIB", default_value_t = 4_096, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub chunk_kib: u32,
    /// How often each way makes the parities.
    #[arg(long, default_value_t = 3)]
    pub repetitions: u32,
}

/// `striate-lab encode-node`.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example, as `striate-lab wide-encode` starts it:\n  \
        striate-lab encode-node --identity DIR --peers FILE --code 'wide(20,5,3)' --chunk-len 1048576 --generation 1")]
pub struct EncodeNodeArgs {
    /// The directory of its certificate.
    #[arg(long, value_name = "DIR")]
    pub identity: PathBuf,
    /// A file with the sites: a number, a rack and an address in each line.
    #[arg(long, value_name = "FILE")]
    pub peers: PathBuf,
    /// The wide code.
    #[arg(long, value_name = "PROFILE")]
    pub code: Profile,
    /// Bytes of a chunk.
    #[arg(long)]
    pub chunk_len: u32,
    /// The generation that it makes.
    #[arg(long)]
    pub generation: u32,
}

/// `striate-lab wide-update`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Change ranges of a wide stripe's data chunks on real processes in racks, and the parities with them.\n\n\
        Each change is made in five ways, one after the other, each on stripes of its own: once to open connections, and once \
        measured. This process is the client, in the last of the racks. Told are the time of each change, the bytes that must cross racks, and those that the links have counted.",
    after_long_help = "Example:\n  \
        striate-lab wide-update --code 'wide(20,5,3)' --update-kib 4 --host rack0,10.77.0.10,veth0 --host …"
)]
pub struct WideUpdateArgs {
    /// The wide code.
    #[arg(long, value_name = "PROFILE")]
    pub code: Profile,
    /// The racks: those of a stripe, and this process's own.
    #[command(flatten)]
    pub racks: RacksArgs,
    /// KiB of a chunk.
    #[arg(long, value_name = "KIB", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub chunk_kib: u32,
    /// KiB that a change replaces.
    #[arg(long, value_name = "KIB", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub update_kib: u32,
    /// Stripes whose chunks are changed.
    #[arg(long, default_value_t = 8)]
    pub stripes: usize,
    /// How many changes each way makes.
    #[arg(long, default_value_t = 20)]
    pub updates: usize,
    /// What changes are drawn from.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// A rack whose sites share a network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RackHost {
    /// The namespace.
    pub space: String,
    /// The address of everything in it.
    pub address: String,
    /// The end of its link outside.
    pub link: String,
}

fn rack_host(text: &str) -> Result<RackHost, String> {
    let words: Vec<String> = text.split(',').map(str::to_owned).collect();
    match <[String; 3]>::try_from(words) {
        Ok([space, address, link]) => Ok(RackHost { space, address, link }),
        Err(_) => Err("write NAMESPACE,ADDRESS,LINK".to_owned()),
    }
}

fn calibration(name: &str) -> Result<Calibration, String> {
    Calibration::named(name).ok_or_else(|| format!("there is no calibration {name:?}: write P, A or D"))
}
