//! Arguments of the commands that operate a running server through its admin socket.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use striate_core::Profile;
use striate_plan::ReadPolicy;
use striate_trust::Role;

use super::HostPort;

use super::migrate::MigrateArgs;
use crate::transfer::location::ObjectLocation;

/// Which server to talk to.
#[derive(Clone, Debug, Default, Args)]
pub struct AdminArgs {
    /// Any directory of the running server. Default: the only server that this user runs on this machine.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// The server's admin socket itself.
    #[arg(long, value_name = "SOCKET", env = "STRIATE_ADMIN", conflicts_with = "dir")]
    pub admin_socket: Option<PathBuf>,
}

/// `striate status`.
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  striate status\n  striate status --watch\n  striate status --dir /mnt/disk1\n  striate status --json | jq .sites"
)]
pub struct StatusArgs {
    /// Show it again every two seconds, until Ctrl-C.
    #[arg(long, conflicts_with = "json")]
    pub watch: bool,
    /// Write JSON.
    #[arg(long)]
    pub json: bool,
    /// Which server.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// `striate verify`.
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  striate verify\n  striate verify || striate heal\n  striate verify --unreadable"
)]
pub struct VerifyArgs {
    /// Remove chunks that nothing names, left by writes and repairs that died at the wrong moment. After metadata was restored
    /// from an export, this loses for good what was written since the export.
    #[arg(long)]
    pub remove_orphans: bool,
    /// Read no chunks, and list the objects that cannot be read now because too many of their chunks are on sites that do not
    /// answer.
    #[arg(long, conflicts_with = "remove_orphans")]
    pub unreadable: bool,
    /// Show no progress.
    #[arg(long, short)]
    pub quiet: bool,
    /// Write the report as JSON.
    #[arg(long)]
    pub json: bool,
    /// Which server.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// `striate explain`.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Examples:\n  \
        striate explain s3://photos/2026/a.jpg\n  \
        striate explain s3://photos/a.jpg s3://photos/b.jpg --read-policy cost-model\n  \
        striate explain s3://photos/a.jpg --json | jq .query.gap")]
pub struct ExplainArgs {
    /// The objects, each as s3://BUCKET/KEY.
    #[arg(required = true, value_name = "OBJECT", value_parser = ObjectLocation::parse_object)]
    pub objects: Vec<ObjectLocation>,
    /// Plan by another policy than the server's: adaptive, adaptive(W), normal, cost-model or cost-model(D), where W is the share of
    /// the load that a read adds and D the number of extra chunks.
    #[arg(long, value_name = "POLICY")]
    pub read_policy: Option<ReadPolicy>,
    /// Write JSON.
    #[arg(long)]
    pub json: bool,
    /// Which server.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// `striate heal`.
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  striate disk replace /mnt/disk3 && striate heal\n  striate heal --quiet --dir /mnt/disk1"
)]
pub struct HealArgs {
    /// Show no progress.
    #[arg(long, short)]
    pub quiet: bool,
    /// Write the report as JSON.
    #[arg(long)]
    pub json: bool,
    /// Which server.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// `striate disk …`.
#[derive(Clone, Debug, Subcommand)]
pub enum DiskCommand {
    /// List disks: path, site, state.
    #[command(after_long_help = "Example:\n  striate disk list")]
    List {
        /// Write JSON.
        #[arg(long)]
        json: bool,
        /// Which server.
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Admit an empty directory in place of a lost disk.
    #[command(
        long_about = "Admit an empty directory in place of a lost disk.\n\n\
            PATH is the path of the lost disk, and must now hold an empty directory (a new disk, formatted \
            and mounted). It gets an identity and a site number of its own; the old site is given up for \
            good. The store keeps running and rebuilds the lost chunks; `striate heal` does it at once.\n\n\
            Files of this very store without an identity, which a wipe may leave, are moved to \
            PATH/.striate.aside-1 (or -2, …) first; nothing is deleted. Anything else in the directory is refused.",
        after_long_help = "Example:\n  \
            mkfs.ext4 /dev/sdc && mount /dev/sdc /mnt/disk3\n  \
            striate disk replace /mnt/disk3 && striate heal"
    )]
    Replace {
        /// The path of the lost disk.
        path: PathBuf,
        /// Which server.
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Admit an empty directory as a further disk.
    #[command(
        long_about = "Admit an empty directory as a further disk.\n\n\
            The store keeps running. The directory gets an identity and a site number; new chunks go to it, and \
            chunks move to it until the disks are about equally full. Name it in the server's command from the next \
            start on.",
        after_long_help = "Example:\n  mkfs.ext4 /dev/sdd && mount /dev/sdd /mnt/disk7\n  striate disk add /mnt/disk7"
    )]
    Add {
        /// The path of the new disk.
        path: PathBuf,
        /// Which server.
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Move everything off a disk, so that it can be removed.
    #[command(
        long_about = "Move everything off a disk, so that it can be removed.\n\n\
            The disk takes no new chunks, is read as before, and what it has moves to the others while the store \
            keeps running. The command shows what is left until the disk is empty; interrupting it does not stop the \
            drain, which also outlasts a restart. `striate disk resume` stops it. Refused if fewer disks would then \
            take chunks than a profile in use needs.",
        after_long_help = "Example:\n  striate disk drain /mnt/disk2 && striate disk remove /mnt/disk2"
    )]
    Drain {
        /// The path of the disk.
        path: PathBuf,
        /// Return at once.
        #[arg(long)]
        no_wait: bool,
        /// Which server.
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Let a disk that drains take chunks again.
    #[command(after_long_help = "Example:\n  striate disk resume /mnt/disk2")]
    Resume {
        /// The path of the disk.
        path: PathBuf,
        /// Which server.
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Take a drained or lost disk out of the store for good.
    #[command(
        long_about = "Take a drained or lost disk out of the store for good.\n\n\
            The store keeps running and counts on one disk less. Refused while the metadata names chunks on the disk: \
            those of a disk that works move away by `striate disk drain`, those of a lost one are rebuilt elsewhere by \
            repair or `striate heal`. The directory itself is left as it is. Take it out of the server's command \
            before the next start.",
        after_long_help = "Example:\n  striate disk remove /mnt/disk2"
    )]
    Remove {
        /// The path of the disk.
        path: PathBuf,
        /// Which server.
        #[command(flatten)]
        admin: AdminArgs,
    },
}

/// `striate admin …`.
#[derive(Clone, Debug, Subcommand)]
pub enum AdminCommand {
    /// Make the authority of a new cluster.
    #[command(
        long_about = "Make the authority of a new cluster.\n\nThe authority signs the certificates by which the processes \
            of the cluster know each other. Keep its directory where none of them runs: whoever has ca.key can join \
            the cluster as anything. An authority of your own serves as well; see docs/src/cluster.md.",
        after_long_help = "Example:\n  striate admin init ca"
    )]
    Init(InitArgs),
    /// Issue a certificate for a process of a cluster.
    #[command(
        long_about = "Issue a certificate for a process of a cluster.\n\nWrites ca.crt, tls.crt and tls.key into the \
            directory that the process is given with --identity. Run again to renew it: the process takes the new \
            one without a restart.",
        after_long_help = "Examples:\n  \
            striate admin certificate site s1 --authority ca --to s1\n  \
            striate admin certificate gateway g1 --authority ca --to g1 --days 90"
    )]
    Certificate(CertificateArgs),
    /// List, drain, resume and retire the sites of a cluster.
    #[command(subcommand)]
    Site(SiteCommand),
    /// Show the hottest blocks across all gateways, and which blocks are read together with them.
    #[command(after_long_help = "Example:\n  striate admin access --control c1:9300 --identity admin")]
    Access(AccessArgs),
    /// Commands that talk to a running server.
    #[command(flatten)]
    Server(ServerCommand),
    /// Move all metadata to another engine.
    #[command(long_about = "Move all metadata to another engine.\n\n\
            Copies every row to an empty prefix of an etcd or an empty schema of a PostgreSQL database, then compares all of \
            them, then puts the source out of use and the target into use. Chunks stay where they are.\n\n\
            Nothing may write meanwhile, and nothing can: a mark in the source has every commit of every process refused \
            from the first moment, and the target carries one until it is complete. The embedded engine is opened from the \
            directories themselves, with their locks: stop the server first, and name the directories as it is started with \
            them.\n\n\
            When it is interrupted, run the same command again; what has been copied is not copied again. To give up \
            instead, run it with --cancel in place of --to: the source is in use again.")]
    Migrate(Box<MigrateArgs>),
}

/// The commands of `striate admin` that talk to a running server.
#[derive(Clone, Debug, Subcommand)]
pub enum ServerCommand {
    /// Manage access keys.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Save and restore the metadata.
    #[command(subcommand)]
    Meta(MetaCommand),
    /// Show which formats are in force, and put newer ones in force after an upgrade.
    #[command(subcommand)]
    Upgrade(UpgradeCommand),
    /// Show the default profile and what others would survive here, or choose one.
    #[command(
        long_about = "Show the default profile and what others would survive here, or choose one.\n\n\
            The default profile is that of objects in buckets without a profile of their own. It follows the sites and their \
            racks until the first object is stored; from then on only this command changes it (and `striate control \
            --profile`). Objects that are stored already keep theirs.",
        after_long_help = "Examples:\n  striate admin profile\n  striate admin profile 'rs(6,3)'"
    )]
    Profile(ProfileArgs),
}

/// `striate admin profile`.
#[derive(Clone, Debug, Args)]
pub struct ProfileArgs {
    /// The profile to choose, such as rs(6,3). Without one, the command changes nothing.
    pub profile: Option<Profile>,
    /// Write JSON.
    #[arg(long)]
    pub json: bool,
    /// Which server.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// `striate admin upgrade …`.
#[derive(Clone, Debug, Subcommand)]
pub enum UpgradeCommand {
    /// Show the formats in force, those that every process reads, and which processes block newer ones.
    #[command(
        long_about = "Show the formats in force, those that every process reads, and which processes block newer ones.\n\n\
            A newer program keeps writing the formats of the release before until the upgrade is finalized, so that \
            going back is possible. The exit status is 1 while newer formats are not in force.",
        after_long_help = "Examples:\n  striate admin upgrade status\n  striate admin upgrade status --json | jq .holding"
    )]
    Status {
        /// Write JSON.
        #[arg(long)]
        json: bool,
        /// Which server or gateway.
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Put the newest formats in force.
    #[command(
        long_about = "Put the newest formats in force.\n\nRefused until every process of the store reads them. There is \
            no way back: programs of earlier releases refuse to start on this store from then on, and say why.",
        after_long_help = "Example:\n  striate admin upgrade finalize"
    )]
    Finalize {
        /// Which server or gateway.
        #[command(flatten)]
        admin: AdminArgs,
    },
}

/// `striate admin init`.
#[derive(Clone, Debug, Args)]
pub struct InitArgs {
    /// The directory for the authority's certificate and key; made if it is not there.
    pub directory: PathBuf,
}

/// `striate admin certificate`.
#[derive(Clone, Debug, Args)]
pub struct CertificateArgs {
    /// What the process is: site, gateway, control or admin.
    pub role: Role,
    /// Its name, unique among those of its role.
    pub name: String,
    /// The authority's directory, as `striate admin init` made it.
    #[arg(long, value_name = "DIR")]
    pub authority: PathBuf,
    /// The directory to write to; made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// Validity of the certificate, in days.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub days: u32,
}

/// How to reach a control process.
#[derive(Clone, Debug, Args)]
pub struct ControlTarget {
    /// Where the control processes listen.
    #[arg(long, value_name = "HOST:PORT", env = "STRIATE_CONTROL", value_delimiter = ',', required = true)]
    pub control: Vec<HostPort>,
    /// The directory with a certificate of the role admin.
    #[arg(long, value_name = "DIR", env = "STRIATE_IDENTITY")]
    pub identity: PathBuf,
}

/// `striate admin access`.
#[derive(Clone, Debug, Args)]
pub struct AccessArgs {
    /// Number of hottest blocks to show.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=1_000))]
    pub hottest: u32,
    /// Which cluster.
    #[command(flatten)]
    pub target: ControlTarget,
}

/// `striate admin site …`.
#[derive(Clone, Debug, Subcommand)]
pub enum SiteCommand {
    /// List sites: number, state, rack, address, process.
    #[command(after_long_help = "Example:\n  striate admin site list --control c1:9300 --identity admin")]
    List {
        /// Which cluster.
        #[command(flatten)]
        target: ControlTarget,
    },
    /// Keep new chunks off a site, and move its chunks to other sites. They stay readable meanwhile.
    #[command(after_long_help = "Example:\n  striate admin site drain 3 --control c1:9300 --identity admin")]
    Drain {
        /// The site's number.
        site: u32,
        /// Which cluster.
        #[command(flatten)]
        target: ControlTarget,
    },
    /// Retire a drained site, or a lost one whose chunks were rebuilt elsewhere, for good.
    #[command(
        long_about = "Retire a drained site, or a lost one whose chunks were rebuilt elsewhere, for good.\n\n\
            Until then a site that is gone stays a member: `striate status` warns of it, and it blocks `striate admin upgrade \
            finalize`, because nobody knows which formats its program reads.\n\n\
            Drain a site that is here first; leave one that is lost to repair. The command is refused, and says \
            why, while the site takes chunks, and while a chunk of a stripe, or a copy of one, is on it. Writes that had \
            begun on it fail with 503, and clients send them again.\n\n\
            There is no way back. The number is never given out again, and the disk is refused if it returns, because \
            its chunks are stale: objects that were deleted since would reappear. To use the disk again, empty \
            it; it then joins as a new site, under the same certificate if you like.",
        after_long_help = "Examples:\n  \
            striate admin site drain 3 --control c1:9300 --identity admin\n  \
            striate status                # until no chunks are left on site 3\n  \
            striate admin site retire 3 --control c1:9300 --identity admin"
    )]
    Retire {
        /// The site's number.
        site: u32,
        /// Which cluster.
        #[command(flatten)]
        target: ControlTarget,
    },
    /// Resume a drained site: it takes new chunks again.
    #[command(after_long_help = "Example:\n  striate admin site resume 3 --control c1:9300 --identity admin")]
    Resume {
        /// The site's number.
        site: u32,
        /// Which cluster.
        #[command(flatten)]
        target: ControlTarget,
    },
}

/// `striate admin keys …`.
#[derive(Clone, Debug, Subcommand)]
pub enum KeysCommand {
    /// List access keys; secrets are never shown.
    #[command(after_long_help = "Example:\n  striate admin keys list")]
    List {
        /// Write JSON.
        #[arg(long)]
        json: bool,
        /// Which server.
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Make a random access key and secret.
    #[command(
        long_about = "Make a random access key and secret.\n\nThe secret is shown once: on a terminal, or \
            else in a new file with mode 0600 whose path is printed.",
        after_long_help = "Examples:\n  \
            striate admin keys create --description laptop\n  \
            striate admin keys create --secret-file backup.key"
    )]
    Create {
        /// What the key is for.
        #[arg(long, default_value = "")]
        description: String,
        /// Write key and secret to this new file (mode 0600).
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
        /// Which server.
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Give an access key a new secret.
    #[command(
        long_about = "Give an access key a new secret.\n\nThe old secret stays valid for --grace-minutes, so that \
            its users can change over.",
        after_long_help = "Example:\n  striate admin keys rotate STRIABCDEFGHIJKLMNOP --grace-minutes 60"
    )]
    Rotate {
        /// The access key.
        access_key: String,
        /// Accept the old secret for this many more minutes.
        #[arg(long, value_name = "MINUTES", default_value_t = 0)]
        grace_minutes: u32,
        /// Write key and secret to this new file (mode 0600).
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
        /// Which server.
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Make an access key unusable, within a second.
    #[command(after_long_help = "Example:\n  striate admin keys revoke STRIABCDEFGHIJKLMNOP")]
    Revoke {
        /// The access key.
        access_key: String,
        /// Which server.
        #[command(flatten)]
        admin: AdminArgs,
    },
}

/// `striate admin meta …`.
#[derive(Clone, Debug, Subcommand)]
pub enum MetaCommand {
    /// Write all metadata to a file.
    #[command(
        long_about = "Write all metadata to a file, one JSON row on each line.\n\nThe export is of one state, \
            however long it takes. The secrets of access keys are in it, sealed with the cluster's key.",
        after_long_help = "Example:\n  striate admin meta export meta.jsonl"
    )]
    Export {
        /// The file; `-` is the standard output.
        file: PathBuf,
        /// Which server.
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Read all metadata from a file into an empty store of the same cluster.
    #[command(
        long_about = "Read all metadata from a file into an empty store of the same cluster.\n\nRefused while \
            the store has buckets, and for the export of another cluster. Let nobody write meanwhile; the \
            server stops afterwards, start it again.",
        after_long_help = "Example:\n  striate admin meta import meta.jsonl"
    )]
    Import {
        /// The file; `-` is the standard input.
        file: PathBuf,
        /// Which server.
        #[command(flatten)]
        admin: AdminArgs,
    },
}
