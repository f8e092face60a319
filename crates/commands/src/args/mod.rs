//! The command line. Every command's `--help` explains what it does and what it needs, and gives examples.

mod bench;
mod collector;
mod migrate;
mod objects;
mod operate;
mod pack;
mod peers;
mod plan;
mod serve;
mod upkeep;

use clap::{Parser, Subcommand, ValueEnum};

pub use bench::{BenchArgs, PreloadName, WorkloadName};
pub use collector::OtlpEndpoint;
pub use migrate::{MigrateArgs, Source};
pub use objects::{
    BucketCommand, BucketPacking, CatArgs, ColdArgs, CpArgs, EndpointArgs, LsArgs, OriginArgs, RmArgs,
};
pub use operate::{
    AccessArgs, AdminArgs, AdminCommand, CertificateArgs, ControlTarget, DiskCommand, ExplainArgs, HealArgs,
    InitArgs, KeysCommand, MetaCommand, ServerCommand, SiteCommand, StatusArgs, UpgradeCommand, VerifyArgs,
};
pub use pack::PackCommand;
pub use peers::PeerArgs;
pub use plan::{PlanCommand, WideArgs};
pub use serve::{ConfigArgs, ControlArgs, GatewayArgs, HostPort, ListenArgs, ServerArgs, SiteArgs};
pub use upkeep::UpkeepArgs;

/// An S3-compatible, erasure-coded object store.
#[derive(Debug, Parser)]
#[command(
    name = "striate",
    version,
    long_about = "Striate is an S3-compatible, erasure-coded object store in one binary.\n\n\
        Start it over a few directories, one for each disk, and point any S3 client at it: objects are cut \
        into chunks, coded, and spread over the directories, so that losing some of them loses nothing.",
    after_long_help = "Begin here:\n  \
        striate server /tmp/striate/disk{1...6}     start a store over six directories\n  \
        striate bucket create photos                make a bucket (in another terminal)\n  \
        striate cp --recursive ~/Pictures s3://photos/\n  \
        striate status                              show the state of the store\n\n\
        `striate COMMAND --help` explains every command."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// How log lines are written: `text` for people, `json` for machines. RUST_LOG chooses what is logged,
    /// e.g. RUST_LOG=debug or RUST_LOG=warn,striate_site=debug.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        env = "STRIATE_LOG_FORMAT",
        hide_env_values = true
    )]
    pub log_format: LogFormat,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object on each line.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a store over directories of this machine.
    Server(ServerArgs),
    /// Run storage sites of a cluster, one for each directory.
    Site(SiteArgs),
    /// Run a gateway of a cluster.
    Gateway(GatewayArgs),
    /// Run a control process of a cluster.
    Control(ControlArgs),
    /// Use or operate a store.
    #[command(flatten)]
    Client(ClientCommand),
    /// Manage access keys and metadata.
    #[command(subcommand)]
    Admin(AdminCommand),
    /// Moved to the separate program `striate-lab`.
    #[command(hide = true, disable_help_flag = true, after_long_help = "Example:\n  striate-lab list")]
    Lab {
        /// Arguments of `striate-lab`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Show the version.
    Version,
}

/// The commands that talk to a store that runs.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Create, list, show, set and delete buckets.
    #[command(
        subcommand,
        long_about = "Create, list, show, set and delete buckets.\n\n\
            These commands talk to a running server on this machine through its admin socket, so they need no \
            access key. S3 clients can create buckets too, but cannot choose a profile."
    )]
    Bucket(Box<BucketCommand>),
    /// Copy files to and from a store.
    Cp(CpArgs),
    /// List buckets or objects.
    Ls(LsArgs),
    /// Delete objects.
    Rm(RmArgs),
    /// Write an object to the standard output.
    Cat(CatArgs),
    /// Show sites, capacity, debt and metadata mirrors.
    Status(StatusArgs),
    /// Read and check every chunk.
    Verify(VerifyArgs),
    /// Show how objects would be read, and why.
    Explain(ExplainArgs),
    /// Rebuild what was lost and pay debt.
    Heal(HealArgs),
    /// Show, begin and undo the packing of small objects.
    #[command(
        subcommand,
        long_about = "Show, begin and undo the packing of small objects.\n\n\
            A small object of its own takes a chunk on every site of its code and three rows of metadata. Packing rewrites \
            objects that have settled into partitions that many of them share: a tenth of the chunks and rows, one site \
            asked for a read. The store does it by itself where `--pack` (of the server, the control process or the \
            bucket) says so. See docs/src/packing.md."
    )]
    Pack(PackCommand),
    /// List disks and replace lost ones.
    #[command(
        subcommand,
        long_about = "List disks and replace lost ones.\n\n\
            When a disk is lost the store goes on without it: reads are decoded from the other chunks, and \
            writes leave debt. To bring the redundancy back: put an empty directory (a new disk) at the old \
            path, `striate disk replace PATH`, then `striate heal`. See docs/src/disks.md."
    )]
    Disk(DiskCommand),
    /// Compare codes for a cluster before there is one.
    #[command(
        subcommand,
        long_about = "Compare codes for a cluster before there is one.\n\n\
            What a code costs in space and repair traffic, how long it keeps data, and the racks it needs: from formulas alone, \
            no server is asked. See docs/src/wide-stripes.md."
    )]
    Plan(PlanCommand),
    /// Run a workload against any S3 store and measure it.
    Bench(Box<BenchArgs>),
}
