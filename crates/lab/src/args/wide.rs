//! ECWide (FAST'21): its figures, and wide stripes on real processes in racks.

use std::path::PathBuf;

use clap::Args;
use striate_core::Profile;

use crate::rack_repair::layout::Scheme;

/// `striate-lab wide`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Reproduce the figures of ECWide (FAST'21) with the store's own codes and trees.\n\n\
        A model of flows over disks, cards and the links of racks. Two rates were fitted, each on one repair time of topology \
        locality; values that the paper's text states are beside what comes out, and misses are shown. See docs/src/ecwide.md.",
    after_long_help = "Examples:\n  striate-lab wide\n  striate-lab wide --rounds 3 --chunks 600 --json"
)]
pub struct WideArgs {
    /// Number of seeds.
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

/// `striate-lab wide-codes`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Compute what ECWide (FAST'21) says of codes, beside the paper's values.\n\n\
        Which losses four locally repairable codes tolerate, by every erasure (Table 3); redundancy and chunks across racks (Table 4, \
        Figs. 2 and 3); mean times to data loss (Tables 5 and 6).",
    after_long_help = "Example:\n  striate-lab wide-codes"
)]
pub struct WideCodesArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `striate-lab wide-repair`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Repair a chunk of a wide stripe on real processes in racks.\n\n\
        Each rack is a network namespace that was made before, with all its sites in it. One stripe is written; then its first chunk \
        is lost and rebuilt in its rack, by the store's own repair, again and again. It reports the time of each \
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
    /// Number of times that the chunk is lost.
    #[arg(long, default_value_t = 3)]
    pub repetitions: u32,
    /// For each repetition, also measure how long its bytes take when they are only moved, and its sums when
    /// they are only added up. This process must then run in the rack of the lost chunk, the first.
    #[arg(long, conflicts_with = "stripes")]
    pub apart: bool,
    /// Lose one chunk of each of this many stripes on one site, instead of one chunk, and repair all of them
    /// at once.
    #[arg(long, value_name = "COUNT")]
    pub stripes: Option<usize>,
    /// Sites of each rack, for --stripes.
    #[arg(long, value_name = "COUNT", default_value_t = 6)]
    pub rack_sites: usize,
    /// With --stripes: choose requestors at random and the first repairer of a rack, instead of those
    /// selected longest ago.
    #[arg(long)]
    pub any: bool,
    /// With --stripes: seed of the placements.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// `striate-lab wide-encode`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Make the global parities of a wide stripe on real processes in racks.\n\n\
        The data chunks lie on sites in racks. Two ways take turns: one node in the global parities' rack fetches all data chunks and \
        encodes them on one core; or sites add the parities up along trees, all parities at the same time, as the store seals. It reports \
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
    /// Number of times that each method makes the parities.
    #[arg(long, default_value_t = 3)]
    pub repetitions: u32,
}

/// `striate-lab wide-update`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Change ranges of a wide stripe's data chunks on real processes in racks, and the parities with them.\n\n\
        Each change is made in five ways, one after the other, each on stripes of its own: once to open connections, and once \
        measured. This process is the client, in the last of the racks. It reports the time of each change, the bytes that \
        must cross racks, and those that the links have counted.",
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
    /// Number of changes that each method makes.
    #[arg(long, default_value_t = 20)]
    pub updates: usize,
    /// Seed of the changes.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
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
