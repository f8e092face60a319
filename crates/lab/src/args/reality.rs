//! Real processes whose media are as slow as the lab's.

use std::path::PathBuf;

use clap::Args;

use crate::calibration::Calibration;

/// `striate-lab reality`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Compare the lab with real processes.\n\n\
        Starts processes of sites on this machine whose stores are as slow as the lab's model of a disk, runs a \
        small workload on them with the real client over the network, runs the same in the lab, and compares means \
        and 99th percentiles. It writes reality.json and reality.html, with both curves of response times. Times \
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

fn calibration(name: &str) -> Result<Calibration, String> {
    Calibration::named(name).ok_or_else(|| format!("there is no calibration {name:?}: write P, A or D"))
}
