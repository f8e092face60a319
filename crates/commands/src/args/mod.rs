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
    InitArgs, KeysCommand, MetaCommand, ProfileArgs, ServerCommand, SiteCommand, StatusArgs, UpgradeCommand,
    VerifyArgs,
};
pub use pack::PackCommand;
pub use peers::{HandshakeArgs, PeerArgs};
pub use plan::{PlanCommand, WideArgs};
pub use serve::{
    AuditOverflow, ConfigArgs, ControlArgs, GatewayArgs, HostPort, ListenArgs, ServerArgs, SiteArgs,
};
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
    #[command(long_about = "Run a store over directories of this machine.\n\n\
            Give one directory for each disk; three dots stand for a range, so quote nothing: /mnt/disk{1...6} \
            means /mnt/disk1 to /mnt/disk6. On the first start the directories must be empty (they are made if \
            they do not exist); Striate writes an identity into each and prints an access key and secret once. \
            STRIATE_ACCESS_KEY and STRIATE_SECRET_KEY choose them instead.\n\n\
            At a restart the directories may come in another order, and empty ones may be added. A missing or \
            empty directory in place of a known one does not stop the store while enough are left: it starts, \
            says what is missing, and `striate disk replace PATH` brings the redundancy back. When too many are \
            missing it refuses to start, changes nothing, and names them.\n\n\
            How objects are coded depends on the number of directories at the first start:\n  \
            1 none (no redundancy)   2 replica(2)   3 rs(2,1)   4 to 7 rs(n-2,2)\n  \
            8 to 11 rs(n-3,3)   12 to 14 rs(n-4,4)   more rs(10,4)\n\
            `striate bucket create --profile` chooses another code for a bucket.\n\n\
            SIGTERM or Ctrl-C finishes the requests in flight and stops; a second one stops at once.")]
    Server(ServerArgs),
    /// Run storage sites of a cluster, one for each directory.
    #[command(long_about = "Run storage sites of a cluster, one for each directory.\n\n\
            A site keeps chunks and knows nothing of objects. It asks a control process for its number and tells it where it \
            listens; gateways then find it automatically. A site may join at any time: start it on an empty directory.\n\n\
            With --memory-mib it is a memory site, alone or beside its disks: it keeps blocks that are read again in memory, and nothing \
            that matters. It may be stopped or killed at any time.\n\n\
            Processes know each other by certificates: see `striate admin init` and `striate admin certificate`.")]
    Site(SiteArgs),
    /// Run a gateway of a cluster.
    #[command(long_about = "Run a gateway of a cluster.\n\n\
            A gateway speaks S3. It keeps nothing itself: metadata is on the engine, chunks are on the sites, which it finds in \
            the metadata. Any number of gateways serve the same buckets.")]
    Gateway(GatewayArgs),
    /// Run a control process of a cluster.
    #[command(long_about = "Run a control process of a cluster.\n\n\
            It admits sites, rebuilds what is lost, verifies chunks and collects what nothing names any more. Run two or three \
            on different machines: each of them admits sites, one of them at a time does the rest. The first one that starts on an empty engine makes the cluster \
            there, and its first access key.")]
    Control(ControlArgs),
    /// Use or operate a store.
    #[command(flatten)]
    Client(ClientCommand),
    /// Manage access keys, metadata and upgrades; of a cluster also certificates, sites and migration.
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
            access key. S3 clients can create buckets too, and choose the profile by the header x-striate-profile."
    )]
    Bucket(Box<BucketCommand>),
    /// Copy files to and from a store.
    #[command(long_about = "Copy files to and from a store.\n\n\
            One side is s3://BUCKET/KEY, the other a path, or both are in the store; `-` is the standard input or output. Files over 16 MiB go \
            up in parts and come down in ranges, several at a time, and a file appears under its name only when \
            it is complete. Works with any S3 store (--endpoint).\n\n\
            The key is taken from STRIATE_ACCESS_KEY and STRIATE_SECRET_KEY, else from AWS_ACCESS_KEY_ID and \
            AWS_SECRET_ACCESS_KEY.")]
    Cp(CpArgs),
    /// List buckets or objects.
    #[command(long_about = "List buckets, or the objects of a bucket below a prefix.")]
    Ls(LsArgs),
    /// Delete objects.
    #[command(long_about = "Delete an object, or with --recursive everything below a prefix.")]
    Rm(RmArgs),
    /// Write an object to the standard output.
    Cat(CatArgs),
    /// Show sites, capacity, debt and metadata mirrors.
    #[command(long_about = "Show sites, capacity, debt, repair, scrub, packing and metadata mirrors.\n\n\
            Debt is what acknowledged writes still lack: chunks that could not be written while a disk was away, or were found \
            damaged. The repair service restores them; `striate heal` does so at once. The exit status is 0 when everything is whole, 1 when something needs attention.")]
    Status(StatusArgs),
    /// Read and check every chunk.
    #[command(long_about = "Read and check every chunk.\n\n\
            Reads every chunk from its disk, past the page cache, and compares it with the checksums taken when \
            it was written. It names what is damaged or missing and queues it for repair. It deletes nothing, except, with \
            --remove-orphans, chunks that belong to no object. The exit status is 0 when all is well, 1 when something was found.")]
    Verify(VerifyArgs),
    /// Show how objects would be read, and why.
    #[command(long_about = "Show how objects would be read, and why.\n\n\
            Plans the read of these objects together, in one query, as the server would at this moment: which chunks it \
            would ask of which sites, what asking each site costs now (o_j, where an idle site costs 1) and what that is \
            made of, the plan's cost, and a lower bound on the cost of every plan with as many chunks. Of a packed object it shows \
            what it can be read from: the chunk that has it (normal), the rest of that chunk's local group (of an lrc), or \
            chunks of the whole stripe (global); with the sites, the bytes that they send, what that costs now, and how long \
            it should take by recent reads. Of an object in another store it shows what this gateway knows of it. Of both it \
            shows which blocks are in memory. It reads only metadata.")]
    Explain(ExplainArgs),
    /// Rebuild what was lost and pay debt.
    #[command(long_about = "Rebuild what was lost and pay debt at once.\n\n\
            The store does the same automatically, within limits and after a wait. \
            Rebuilds the chunks of lost and replaced disks and of damaged places from the others, the most \
            endangered first, while the store keeps serving, and continues until nothing is left, including debt that \
            writes leave meanwhile. It can be stopped and restarted at any time. It names what it cannot rebuild, and ends. \
            The exit status is 0 when everything is whole afterwards, 1 when something is left.")]
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
    /// List, add, drain, remove and replace disks.
    #[command(
        subcommand,
        long_about = "List, add, drain, remove and replace disks of `striate server`.\n\n\
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
    #[command(long_about = "Run a workload against any S3 store and measure it.\n\n\
            --load first writes the objects that are missing, --clean at the end removes them; between them, after a warm-up, \
            the workload is measured. In a closed loop (--clients) each client sends its next operation when the last one is \
            answered. In an open loop (--rate, or a trace) operations are due at given times, and a response time counts from \
            when the operation was due, so that a stall is seen by all that should have happened during it. Nothing is tried \
            again: what fails is counted by kind.\n\n\
            Objects lie below s3://BUCKET/PREFIX, and only keys that the workload itself would use are ever written or \
            removed. Their contents come from key and seed, so that reads can be checked (--verify). The key is taken from \
            STRIATE_ACCESS_KEY and STRIATE_SECRET_KEY, else from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. \
            See docs/src/bench.md.")]
    Bench(Box<BenchArgs>),
}
