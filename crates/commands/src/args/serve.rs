//! Options of the long-running commands: `server`, `site`, `gateway`, `control`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use striate_core::Profile;
use striate_meta::EngineUrl;
use striate_plan::{Adaptive, ReadPolicy};
use striate_site::cache::LEAST_CACHE_BYTES;
use striate_site::{CacheOptions, Eviction};
use striate_stripe::StripeOptions;

use super::{HandshakeArgs, OtlpEndpoint, PeerArgs, UpkeepArgs};

/// An address to listen on: `HOST:PORT`, `[IPV6]:PORT`, or `:PORT` for all interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// Host name or address; empty for all interfaces.
    pub host: String,
    /// Port; 0 lets the operating system choose.
    pub port: u16,
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hint = "write HOST:PORT, or :PORT for every interface";
        let (host, port) = text.rsplit_once(':').ok_or_else(|| format!("{text:?} has no port; {hint}"))?;
        let port = port.parse().map_err(|_| format!("{port:?} is not a port (0 to 65535); {hint}"))?;
        let is_bracketed = host.starts_with('[') && host.ends_with(']');
        if host.contains(':') && !is_bracketed {
            return Err(format!("{text:?}: an IPv6 address needs brackets, as in [::1]:{port}"));
        }
        Ok(Self { host: host.trim_start_matches('[').trim_end_matches(']').to_owned(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Parses a share from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("{text:?} is not a share; write a number from 0 to 1"))
}

/// The file of a service.
#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    /// A TOML file with options in the table of this command, e.g. `[gateway]`. Variables and options go before it.
    #[arg(long, value_name = "FILE", env = "STRIATE_CONFIG")]
    pub config: Option<PathBuf>,
}

/// What happens to entries for which the audit log has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AuditOverflow {
    /// They are dropped and counted.
    #[default]
    Drop,
    /// Signed requests wait until there is room, or are refused.
    Wait,
}

/// What every S3 front listens on and how it behaves.
#[derive(Clone, Debug, Args)]
pub struct ListenArgs {
    /// Where the S3 endpoint listens: HOST:PORT, or :PORT for every interface.
    #[arg(long, value_name = "HOST:PORT", default_value = ":9000", env = "STRIATE_ADDRESS")]
    pub address: HostPort,

    /// Where the status page, metrics and health checks listen. Health is open to everybody; status and
    /// metrics are open to programs on this machine only, others sign in or send the metrics token.
    #[arg(long, value_name = "HOST:PORT", default_value = ":9001", env = "STRIATE_CONSOLE_ADDRESS")]
    pub console_address: HostPort,

    /// Serve TLS with `public.crt` and `private.key` (PEM) of this directory. Changed files are picked up
    /// without a restart.
    #[arg(long, value_name = "DIR", env = "STRIATE_CERTS")]
    pub certs: Option<PathBuf>,

    /// Region that the endpoint reports to clients.
    #[arg(long, default_value = "us-east-1", env = "STRIATE_REGION")]
    pub region: String,

    /// A domain whose first label is a bucket (virtual-hosted style): with `--domain s3.example.org`,
    /// photos.s3.example.org is the bucket photos. May be given several times.
    #[arg(long = "domain", value_name = "DOMAIN", env = "STRIATE_DOMAIN", value_delimiter = ',')]
    pub domains: Vec<String>,

    /// Accept presigned URLs and forms that are signed with Signature Version 2, which boto3 still makes unless it is
    /// told `signature_version='s3v4'`. It uses SHA-1 and signs less than Version 4.
    #[arg(long, env = "STRIATE_ALLOW_SIGNATURE_V2")]
    pub allow_signature_v2: bool,

    /// Append one JSON line for every S3 request to this file.
    #[arg(long, value_name = "FILE", env = "STRIATE_AUDIT_LOG")]
    pub audit_log: Option<PathBuf>,

    /// What happens when the audit log is slower than the requests or cannot be written: `drop` leaves entries out and
    /// counts them in it; `wait` lets signed requests wait, and refuses them with 503 after five seconds.
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "drop|wait",
        hide_possible_values = true,
        requires = "audit_log",
        env = "STRIATE_AUDIT_OVERFLOW"
    )]
    pub audit_overflow: AuditOverflow,

    /// A file with the token that lets programs on other machines read /metrics and /api/status, sent as
    /// `Authorization: Bearer TOKEN`.
    #[arg(long, value_name = "FILE", env = "STRIATE_METRICS_TOKEN_FILE")]
    pub metrics_token_file: Option<PathBuf>,

    /// Send spans of requests (look-up, plan, retrieval, decoding) to an OpenTelemetry collector, by OTLP over HTTP with
    /// Protobuf: the collector's URL, e.g. http://localhost:4318; /v1/traces is added where it has no path.
    #[arg(long, value_name = "URL", env = "STRIATE_OTLP_ENDPOINT", value_parser = OtlpEndpoint::parse)]
    pub otlp_endpoint: Option<OtlpEndpoint>,

    /// The share of requests whose spans are sent.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = share, env = "STRIATE_OTLP_SAMPLING")]
    pub otlp_sampling: f64,

    /// Memory for the bodies of requests in flight, in MiB; requests beyond it wait. What is held for clients that do not
    /// take or send is taken back for those that do.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(16..),
          env = "STRIATE_BODY_MEMORY_MIB")]
    pub body_memory_mib: u32,

    /// What a client may occupy.
    #[command(flatten)]
    pub peers: PeerArgs,

    /// Number of further losses that a block must survive when its write is acknowledged although sites are
    /// lost. If the stored chunks could not survive that many more, the write fails with 503. While all n
    /// sites are up, a write waits for all of them. With 1, rs(4,2) accepts writes with 5 or 6 sites, and
    /// what was acknowledged survives one more loss before `striate heal`. With 0 it also accepts them with
    /// 4, and the next loss before a heal can destroy what was written then. With the number of parities of
    /// the profile or more, writes fail as soon as one site is lost. A `none` bucket survives no loss: its
    /// one chunk is enough.
    #[arg(long, value_name = "LOSSES", default_value_t = 1, value_parser = clap::value_parser!(u8),
          env = "STRIATE_WRITE_SURPLUS")]
    pub write_surplus: u8,

    /// Which chunks reads ask for.
    ///
    /// `adaptive` follows the sites' queues, asks for an extra chunk while nobody waits, and for others when some are late. Packed
    /// objects and ranges are read around queues; `adaptive(0.3)` does so less often than with the usual 0.06.
    /// `normal` asks for the data chunks, so that nothing is decoded. The manual's page on read plans has all of them.
    #[arg(long, value_name = "POLICY", default_value_t = ReadPolicy::new(Adaptive::default()), env = "STRIATE_READ_POLICY")]
    pub read_policy: ReadPolicy,

    /// Cache writes as well as repeated reads. For buckets in other S3 stores this covers objects of up to 16
    /// MiB that are written by a single PUT or in a batch. It has no effect without memory sites.
    #[arg(long, env = "STRIATE_CACHE_WRITES")]
    pub cache_writes: bool,

    /// Size of the splits into which cached blocks are cut, in KiB; the splits of a block go to different
    /// memory sites. 0 caches whole blocks and copies popular ones (selective replication). Use the same
    /// value on all gateways of a cluster.
    #[arg(long, value_name = "KIB", default_value_t = 1_024, env = "STRIATE_CACHE_SPLIT_KIB")]
    pub cache_split_kib: u32,

    /// Rate at which cached blocks are refilled after a memory site has lost splits, for example by a
    /// restart, in MiB a second. A block is refilled when it is read, from its splits on other memory sites.
    /// 0 disables refilling: reads decode around the lost splits.
    #[arg(long, value_name = "MIB", default_value_t = 64, env = "STRIATE_CACHE_REFILL_MIB")]
    pub cache_refill_mib: u32,

    /// A PEM file with certificates of authorities to trust for other S3 stores (`striate bucket create --origin`), besides those that
    /// the system trusts.
    #[arg(long, value_name = "FILE", env = "STRIATE_ORIGIN_CA")]
    pub origin_ca: Option<PathBuf>,

    /// For trying things out: accept the well-known access key `striate` with the secret
    /// `striate-dev-secret`. Whoever can reach the port can then read and delete everything.
    #[arg(long, env = "STRIATE_DEV")]
    pub dev: bool,
}

impl ListenArgs {
    /// Returns the options of the stripe service.
    pub fn stripe_options(&self) -> StripeOptions {
        StripeOptions {
            in_flight_bytes: (self.body_memory_mib as usize) << 20,
            memory_wait: self.peers.memory_wait,
            write_surplus: self.write_surplus.into(),
            read_policy: self.read_policy.clone(),
            ..StripeOptions::default()
        }
    }
}

/// `striate server`.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Examples:\n  \
        striate server /mnt/disk{1...6}\n  \
        striate server --address 127.0.0.1:9000 --console-address 127.0.0.1:9001 /data/a /data/b /data/c\n  \
        STRIATE_ACCESS_KEY=me STRIATE_SECRET_KEY=a-long-secret striate server /mnt/disk{01...12}\n  \
        striate server --certs /etc/striate/certs --audit-log /var/log/striate/audit.jsonl /mnt/disk{1...6}")]
pub struct ServerArgs {
    /// The directories, one for each disk. {1...6} stands for six of them.
    #[arg(required = true, value_name = "DIR")]
    pub directories: Vec<String>,

    /// Further options.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// Default profile of buckets. It takes effect at the first start only; afterwards the store remembers
    /// it. Default: chosen by the number of directories.
    #[arg(long, value_name = "PROFILE", env = "STRIATE_PROFILE")]
    pub profile: Option<Profile>,

    /// Put the newest formats in force, as `striate admin upgrade finalize` does. Programs of earlier releases refuse the
    /// store then.
    #[arg(long, env = "STRIATE_FINALIZE")]
    pub finalize: bool,

    /// Memory for cached blocks, in MiB, including all overhead. 0: no cache.
    #[arg(long, value_name = "MIB", default_value_t = 0, value_parser = memory_mib, env = "STRIATE_CACHE_MIB")]
    pub cache_mib: u64,

    /// Which cached blocks are evicted first.
    #[command(flatten)]
    pub eviction: EvictionArgs,

    /// Background work.
    #[command(flatten)]
    pub upkeep: UpkeepArgs,

    /// Move chunks of blocks that are read together to common sites, and off loaded ones: at most a hundredth of the
    /// blocks' bytes that are asked for. The manual's page on movement says when that is worth it.
    #[arg(long, env = "STRIATE_OPTIMISE_PLACEMENT")]
    pub optimise_placement: bool,

    /// Listeners.
    #[command(flatten)]
    pub listen: ListenArgs,
}

impl ServerArgs {
    /// Returns the options of the cache in memory; `None` without one.
    pub fn cache(&self) -> Option<CacheOptions> {
        self.eviction.options(self.cache_mib)
    }
}

/// Which cached blocks are evicted first.
#[derive(Clone, Copy, Debug, Args)]
pub struct EvictionArgs {
    /// Which cached blocks go first when memory is full: `lru`, those that were read longest ago (best for blocks of language models);
    /// `s3-fifo`, those that were read once (best where a few are popular, and beside scans).
    #[arg(long = "cache-eviction", value_name = "ORDER", default_value_t, env = "STRIATE_CACHE_EVICTION")]
    pub order: Eviction,
}

impl EvictionArgs {
    fn options(self, mib: u64) -> Option<CacheOptions> {
        let eviction = self.order;
        (mib > 0).then(|| CacheOptions { eviction, ..CacheOptions::with_bound(mib << 20) })
    }
}

/// Maximum size of a cache in MiB: 16 TiB.
const MOST_CACHE_MIB: u64 = 1 << 24;

/// Parses memory for cached blocks in MiB: 0, or enough for some blocks.
fn memory_mib(text: &str) -> Result<u64, String> {
    let least = LEAST_CACHE_BYTES >> 20;
    match text.parse() {
        Ok(0) => Ok(0),
        Ok(mib) if (least..=MOST_CACHE_MIB).contains(&mib) => Ok(mib),
        _ => Err(format!("write 0 for none, or a number of MiB from {least} to {MOST_CACHE_MIB}")),
    }
}

/// `striate site`.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Examples:\n  \
        striate site --memory-mib 8192 --rack a --identity /etc/striate/m1 --control 10.0.0.1:9300\n  \
        striate site --data /mnt/disk1 --rack a --identity /etc/striate/s1 --control 10.0.0.1:9300\n  \
        striate site --data /mnt/disk1 /mnt/disk2 --rack a --identity s1 --control c1:9300,c2:9300 --address 10.0.0.4:9100")]
pub struct SiteArgs {
    /// Further options.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// The directories, one for each disk; empty at the first start. Each is a site of its own; they listen on ports one
    /// after the other. Needed unless it is a memory site only.
    #[arg(long, value_name = "DIR", num_args = 1.., env = "STRIATE_DATA", value_delimiter = ',')]
    pub data: Vec<PathBuf>,

    /// Memory of this machine for cached blocks, in MiB, including all overhead. This site listens on the port after those of the
    /// directories.
    #[arg(long, value_name = "MIB", value_parser = memory_mib, env = "STRIATE_MEMORY_MIB")]
    pub memory_mib: Option<u64>,

    /// Which cached blocks are evicted first.
    #[command(flatten)]
    pub eviction: EvictionArgs,

    /// The failure domain that the sites stand in: what fails together. Default: the machine.
    #[arg(long, value_name = "RACK", env = "STRIATE_RACK")]
    pub rack: Option<String>,

    /// The directory with the process's certificate and key (ca.crt, tls.crt, tls.key). Changed files are picked up
    /// without a restart.
    #[arg(long, value_name = "DIR", env = "STRIATE_IDENTITY")]
    pub identity: PathBuf,

    /// Where the control processes listen.
    #[arg(long, value_name = "HOST:PORT", env = "STRIATE_CONTROL", value_delimiter = ',')]
    pub control: Vec<HostPort>,

    /// Where the first site listens, for gateways and other sites.
    #[arg(long, value_name = "HOST:PORT", default_value = ":9100", env = "STRIATE_SITE_ADDRESS")]
    pub address: HostPort,

    /// What unknown peers may occupy.
    #[command(flatten)]
    pub handshakes: HandshakeArgs,

    /// The name or address of this machine, as others reach it. Default: the host of --address, or this machine's name.
    #[arg(long, value_name = "HOST", env = "STRIATE_ADVERTISE")]
    pub advertise: Option<String>,
}

impl SiteArgs {
    /// Returns the options of its memory site; `None` without one.
    pub fn memory(&self) -> Option<CacheOptions> {
        self.eviction.options(self.memory_mib.unwrap_or(0))
    }

    /// Returns the number of sites in this process.
    pub fn sites(&self) -> usize {
        self.data.len() + usize::from(self.memory().is_some())
    }
}

/// `striate gateway`.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example:\n  \
        striate gateway --metadata etcd://10.0.0.1,10.0.0.2,10.0.0.3/striate --identity /etc/striate/g1")]
pub struct GatewayArgs {
    /// Further options.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// The engine that keeps the cluster's metadata: `etcd://HOST[:PORT],…/PREFIX` or `postgres://…`
    #[arg(long, value_name = "URL", env = "STRIATE_METADATA", hide_env_values = true)]
    pub metadata: EngineUrl,

    /// The directory with the gateway's certificate and key (ca.crt, tls.crt, tls.key, sealing.key). Changed files are
    /// picked up without a restart.
    #[arg(long, value_name = "DIR", env = "STRIATE_IDENTITY")]
    pub identity: PathBuf,

    /// Addresses of the control processes, which combine what all gateways observe of requests. Without them,
    /// the requests of this gateway do not influence where chunks are moved.
    #[arg(long, value_name = "HOST:PORT", env = "STRIATE_CONTROL", value_delimiter = ',')]
    pub control: Vec<HostPort>,

    /// Listeners.
    #[command(flatten)]
    pub listen: ListenArgs,
}

/// `striate control`.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example:\n  \
        striate control --metadata etcd://10.0.0.1,10.0.0.2,10.0.0.3/striate --identity /etc/striate/c1")]
pub struct ControlArgs {
    /// Further options.
    #[command(flatten)]
    pub config: ConfigArgs,

    /// The engine that keeps the cluster's metadata: `etcd://HOST[:PORT],…/PREFIX` or `postgres://…`
    #[arg(long, value_name = "URL", env = "STRIATE_METADATA", hide_env_values = true)]
    pub metadata: EngineUrl,

    /// The directory with the process's certificate and key (ca.crt, tls.crt, tls.key, sealing.key). Changed files are
    /// picked up without a restart.
    #[arg(long, value_name = "DIR", env = "STRIATE_IDENTITY")]
    pub identity: PathBuf,

    /// Where it listens, for sites and operators.
    #[arg(long, value_name = "HOST:PORT", default_value = ":9300", env = "STRIATE_CONTROL_ADDRESS")]
    pub address: HostPort,

    /// What unknown peers may occupy.
    #[command(flatten)]
    pub handshakes: HandshakeArgs,

    /// Change the default profile of buckets. Default: it follows the sites and their racks until the first object, then it stays.
    #[arg(long, value_name = "PROFILE", env = "STRIATE_PROFILE")]
    pub profile: Option<Profile>,

    /// The region of a new cluster.
    #[arg(long, default_value = "us-east-1", env = "STRIATE_REGION")]
    pub region: String,

    /// Background work while it leads.
    #[command(flatten)]
    pub upkeep: UpkeepArgs,

    /// Memory for packing, repairs and moves while this process leads, in MiB. Partitions use at most half of
    /// it.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(16..),
          env = "STRIATE_BODY_MEMORY_MIB")]
    pub body_memory_mib: u32,

    /// While it leads, move chunks of blocks that gateways report to be read together (`gateway --control`) to common
    /// sites, and off loaded ones: at most a hundredth of the blocks' bytes that are asked for. The manual's page on
    /// movement says when that is worth it.
    #[arg(long, env = "STRIATE_OPTIMISE_PLACEMENT")]
    pub optimise_placement: bool,
}
