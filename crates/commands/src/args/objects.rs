//! Arguments of the commands on buckets and objects.

use std::str::FromStr;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use striate_client::{ColdChange, USUAL_COLD_AFTER};
use striate_core::{Packing, PackingError, Profile, ProfileError, StorageClass, StorageClassError};

use super::AdminArgs;
use super::upkeep::time;
use crate::admin::messages::{ClassOfBucket, ColdBucket};

/// `striate bucket …`.
#[derive(Clone, Debug, Subcommand)]
pub enum BucketCommand {
    /// Make a bucket, with a profile of its own if you like.
    #[command(
        long_about = "Make a bucket, with a profile of its own if you like.\n\n\
            A profile says how objects are coded: rs(k,r) keeps k data and r parity chunks and survives any r \
            lost disks; lrc(k,l,g) repairs single losses from fewer chunks; replica(n) keeps n copies; none \
            keeps one. It needs as many disks as it has chunks. With `packed` before the code the bucket's small objects are \
            packed into shared partitions when they have settled, whatever the store's --pack says; the bucket's own --pack \
            decides it without a profile, and takes precedence over the profile.\n\n\
            With --origin the bucket stands in front of a bucket in another S3 store, which Striate caches in memory: reads come \
            from the memory sites as far as they have the bytes, everything else is passed on. Writes through Striate are seen at once, \
            what others write there within --ttl. The key for the other store is read from STRIATE_ORIGIN_ACCESS_KEY and \
            STRIATE_ORIGIN_SECRET_KEY; without them requests are not signed.\n\n\
            With --volatile the bucket's objects are in memory only, as in a cache: an eviction, or the restart or loss of a memory \
            site, removes them. Memory sites are `striate server --cache-mib` or `striate site --memory-mib`.\n\n\
            With --class a storage class has a profile, which clients choose with `x-amz-storage-class`; every S3 tool \
            sends that. Objects of a class with a profile such as rs(6,2) are written under it. Objects of a class with a wide profile are \
            written as others are and are cold at once: they are sealed into wide stripes of that profile at the next look. The \
            other objects wait for --cold-after. To move an object to another class, copy it onto itself with the new class.",
        after_long_help = "Examples:\n  \
            striate bucket create photos\n  \
            striate bucket create --profile 'rs(4,2)' archive\n  \
            striate bucket create --profile 'packed lrc(6,2,2)' thumbnails\n  \
            striate bucket create --pack 8MiB logs\n  \
            striate bucket create --pack off sessions\n  \
            striate bucket create --origin s3://their-photos --origin-endpoint https://s3.eu-central-1.amazonaws.com \
            --origin-region eu-central-1 photos\n  \
            striate bucket create --volatile kv-cache\n  \
            striate bucket create --pack auto --cold-profile 'wide(42,15,4)' --cold-after 30d archive\n  \
            striate bucket create --class STANDARD_IA='wide(42,15,4)' --class REDUCED_REDUNDANCY='rs(6,2)' backups"
    )]
    Create {
        /// The bucket's name: 3 to 63 characters, lower case, digits, dots and hyphens.
        name: String,
        /// How its objects are coded; quote the brackets for your shell.
        #[arg(long, value_name = "PROFILE")]
        profile: Option<Profile>,
        /// The largest block in KiB; larger objects become several blocks.
        #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u32).range(64..=65_536))]
        block_kib: Option<u32>,
        /// Number of neighbouring blocks that go to the same sites: blocks of one object, and of keys in one
        /// folder that are written one after the other. Reads of neighbours then use fewer sites. 1 disables
        /// grouping [default: 8]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
        group: Option<u32>,
        /// Whether its small objects are packed: `auto` (where the store has six sites), `off`, or the longest partition (8MiB;
        /// a power of two from 1 to 64 MiB). Default: as the profile says, or else the store's --pack.
        #[arg(long, value_name = "off|auto|SIZE")]
        pack: Option<Packing>,
        /// Cold data and storage classes.
        #[command(flatten)]
        cold: ColdArgs,
        /// With --cold-profile: objects unchanged for this long are cold (12h, 90d) [default: 30d]
        #[arg(long, value_name = "TIME", value_parser = time, requires = "cold_profile")]
        cold_after: Option<Duration>,
        /// Keep its objects in memory only.
        #[arg(long, conflicts_with_all = ["profile", "pack", "origin", "cold_profile", "class"])]
        volatile: bool,
        /// With --volatile: parities for each block of an object; as many memory sites may then be lost, if there are more.
        #[arg(long, value_name = "R", default_value_t = 0, requires = "volatile", value_parser = clap::value_parser!(u8).range(0..=10))]
        parities: u8,
        /// The bucket in another S3 store.
        #[command(flatten)]
        origin: OriginArgs,
        /// Which server.
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// List buckets.
    #[command(
        after_long_help = "Examples:\n  striate bucket list\n  striate bucket list --json | jq -r '.[].name'"
    )]
    List {
        /// Write JSON.
        #[arg(long)]
        json: bool,
        /// Which server.
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Delete an empty bucket.
    #[command(after_long_help = "Example:\n  striate rm --recursive s3://old/ && striate bucket delete old")]
    Delete {
        /// The bucket's name.
        name: String,
        /// Which server.
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Change a bucket's settings of packing, cold data and storage classes.
    #[command(
        group = ArgGroup::new("change").required(true).multiple(true)
            .args(["pack", "cold_profile", "cold_after", "keep_cold_as_it_is", "class"]),
        long_about = "Change a bucket's settings of packing, cold data and storage classes.\n\n\
            With `off` no more of the bucket is packed; packed objects stay packed and readable (`striate pack undo` \
            splits them). `default` removes the bucket's own setting: its profile and the store's --pack decide.\n\n\
            --cold-profile and --cold-after can be changed each alone. All that is named is changed, or nothing.\n\n\
            --class NAME=PROFILE gives a storage class a profile, --class NAME= takes it away; classes that are not named stay \
            as they are. Existing objects keep their code until they are copied onto themselves with the class. What has a \
            wide profile is sealed at the next look, and what is sealed stays sealed.",
        after_long_help = "Examples:\n  \
            striate bucket set photos --pack auto\n  \
            striate bucket set sessions --pack off\n  \
            striate bucket set photos --pack default\n  \
            striate bucket set archive --cold-profile 'wide(42,15,4)' --cold-after 90d\n  \
            striate bucket set archive --cold-after 10d\n  \
            striate bucket set archive --keep-cold-as-it-is\n  \
            striate bucket set backups --class GLACIER_IR='wide(128,27,4)' --class STANDARD_IA="
    )]
    Set {
        /// The bucket's name.
        name: String,
        /// `auto`, `off`, the longest partition (8MiB), or `default`.
        #[arg(long, value_name = "off|auto|SIZE|default")]
        pack: Option<BucketPacking>,
        /// Cold data and storage classes.
        #[command(flatten)]
        cold: ColdArgs,
        /// Objects unchanged for this long are cold (12h, 30d). Without it the time stays as it is; it is 30d where
        /// the bucket had no cold profile.
        #[arg(long, value_name = "TIME", value_parser = time)]
        cold_after: Option<Duration>,
        /// Stop sealing cold data; sealed data stays sealed.
        #[arg(long, conflicts_with_all = ["cold_profile", "cold_after"])]
        keep_cold_as_it_is: bool,
        /// Which server.
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Show a bucket's profile, owner and age.
    #[command(visible_alias = "show", after_long_help = "Example:\n  striate bucket info photos")]
    Info {
        /// The bucket's name.
        name: String,
        /// Write JSON.
        #[arg(long)]
        json: bool,
        /// Which server.
        #[command(flatten)]
        admin: AdminArgs,
    },
}

/// A bucket of another S3 store.
#[derive(Clone, Debug, Args)]
pub struct OriginArgs {
    /// The bucket of another S3 store that this one stands in front of, as s3://NAME.
    #[arg(long, value_name = "S3-URL", requires = "origin_endpoint", conflicts_with_all = ["profile", "pack", "block_kib", "group", "cold_profile", "class"])]
    pub origin: Option<String>,
    /// The URL of that store.
    #[arg(long, value_name = "URL", requires = "origin")]
    pub origin_endpoint: Option<String>,
    /// Its region.
    #[arg(long, value_name = "REGION", default_value = "us-east-1", requires = "origin")]
    pub origin_region: String,
    /// How long the gateway uses what it knows of an object before it asks the origin again (10s, 5m, 1h; at most
    /// 24h). 0s asks on every read.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = ttl, requires = "origin")]
    pub ttl: Duration,
    /// Size of cached blocks in MiB. Reading a range of an object that is not cached fetches every block that
    /// the range touches. A gateway caches no block of more than a quarter of its --body-memory-mib when it reads it.
    #[arg(long, value_name = "MIB", default_value_t = 4, requires = "origin", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cache_block_mib: u32,
}

/// Parses the ttl of an origin. A server accepts no longer one.
fn ttl(text: &str) -> Result<Duration, String> {
    const LONGEST_HOURS: u64 = 24;
    let ttl = time(text)?;
    match ttl <= Duration::from_secs(LONGEST_HOURS * 3_600) {
        true => Ok(ttl),
        false => Err(format!("the ttl of an origin is at most {LONGEST_HOURS}h")),
    }
}

/// The wide profile of cold data, and the profiles of storage classes.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("further_profiles").multiple(true).args(["cold_profile", "class"]))]
pub struct ColdArgs {
    /// Seal cold partitions into wide stripes of this profile: wide(k,r,f), or
    /// wide(k=128,f=4,redundancy=1.063). It needs one rack more than its chunks fill, and f + 1 sites in each
    /// (`striate plan wide` shows what fits).
    #[arg(long, value_name = "PROFILE")]
    pub cold_profile: Option<Profile>,
    /// Profile of a storage class (repeatable): objects with `x-amz-storage-class: NAME` are written with
    /// PROFILE. With a wide PROFILE they are cold at once, and are sealed into its wide stripes. NAME is
    /// STANDARD, REDUCED_REDUNDANCY, STANDARD_IA, ONEZONE_IA, INTELLIGENT_TIERING or GLACIER_IR.
    #[arg(long, value_name = "NAME=PROFILE")]
    pub class: Vec<ClassArg>,
    /// Allow wide profiles that use every rack: a lost rack then cannot be rebuilt until it is back.
    #[arg(long, requires = "further_profiles")]
    pub allow_no_spare_rack: bool,
}

/// A storage class, and its new profile; `None` removes the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassArg {
    class: StorageClass,
    profile: Option<Profile>,
}

impl FromStr for ClassArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((class, profile)) = text.split_once('=') else {
            return Err("write NAME=PROFILE, as in STANDARD_IA='wide(42,15,4)'".to_owned());
        };
        let class = class.parse().map_err(|error: StorageClassError| error.to_string())?;
        let profile = match profile {
            "" => None,
            text => Some(text.parse().map_err(|error: ProfileError| error.to_string())?),
        };
        Ok(Self { class, profile })
    }
}

impl ColdArgs {
    /// Returns a new bucket's setting of cold data.
    pub fn setting(&self, after: Option<Duration>) -> Option<ColdBucket> {
        let after_s = after.unwrap_or(USUAL_COLD_AFTER).as_secs();
        let without_spare_rack = self.allow_no_spare_rack;
        self.cold_profile.map(|profile| ColdBucket { profile, after_s, without_spare_rack })
    }

    /// Returns the change of an existing bucket's setting of cold data, if there is one.
    pub fn change(&self, after: Option<Duration>) -> Option<ColdChange> {
        let (profile, after_s) = (self.cold_profile, after.map(|after| after.as_secs()));
        let without_spare_rack = self.allow_no_spare_rack;
        (profile.is_some() || after_s.is_some()).then_some(ColdChange {
            profile,
            after_s,
            without_spare_rack,
        })
    }

    /// Returns the bucket's new profiles of storage classes.
    pub fn classes(&self) -> Vec<ClassOfBucket> {
        let without_spare_rack = self.allow_no_spare_rack;
        let class_setting =
            |&ClassArg { class, profile }: &ClassArg| ClassOfBucket { class, profile, without_spare_rack };
        self.class.iter().map(class_setting).collect()
    }
}

/// A bucket's new setting of packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketPacking(pub Option<Packing>);

impl FromStr for BucketPacking {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "default" => Ok(Self(None)),
            _ => text.parse().map(|packing| Self(Some(packing))).map_err(|error: PackingError| {
                format!("{error}; `default` removes the bucket's own setting")
            }),
        }
    }
}

/// Which S3 endpoint, and with which key.
#[derive(Clone, Debug, Args)]
pub struct EndpointArgs {
    /// The S3 endpoint, of Striate or any other store. Default: the server that runs on this machine.
    #[arg(long, value_name = "URL", env = "STRIATE_ENDPOINT")]
    pub endpoint: Option<String>,

    /// The access key. The secret is read from STRIATE_SECRET_KEY (or AWS_SECRET_ACCESS_KEY), never from the
    /// command line, where other users could see it.
    #[arg(long, value_name = "KEY", env = "STRIATE_ACCESS_KEY")]
    pub access_key: Option<String>,

    /// The region to sign for.
    #[arg(long, default_value = "us-east-1", env = "STRIATE_REGION")]
    pub region: String,

    /// Trust the certificates of this PEM file besides the system's.
    #[arg(long, value_name = "FILE", env = "STRIATE_CA_FILE")]
    pub ca_file: Option<std::path::PathBuf>,
}

/// `striate cp`.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Examples:\n  \
        striate cp holiday.mp4 s3://photos/2026/\n  \
        striate cp --recursive ~/Pictures s3://photos/\n  \
        striate cp --recursive s3://photos/2026/ ./restored\n  \
        tar c /etc | striate cp - s3://backup/etc.tar")]
pub struct CpArgs {
    /// What to copy: a path, `-`, or s3://BUCKET/KEY.
    pub source: String,
    /// Where to: a path, `-`, or s3://BUCKET/KEY; a trailing slash keeps the file's name.
    pub destination: String,
    /// Copy everything below a directory or prefix.
    #[arg(long, short)]
    pub recursive: bool,
    /// Requests at the same time.
    #[arg(long, short = 'j', default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub parallel: u16,
    /// Show no progress.
    #[arg(long, short)]
    pub quiet: bool,
    /// Which endpoint.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
}

/// `striate ls`.
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  striate ls\n  striate ls s3://photos/2026/\n  striate ls --recursive s3://photos"
)]
pub struct LsArgs {
    /// s3://BUCKET/PREFIX; nothing lists the buckets.
    pub location: Option<String>,
    /// List everything below the prefix instead of one level.
    #[arg(long, short)]
    pub recursive: bool,
    /// Write one JSON document a line, with the exact names.
    #[arg(long)]
    pub json: bool,
    /// Which endpoint.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
}

/// `striate rm`.
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  striate rm s3://photos/old.jpg\n  striate rm --recursive s3://photos/2019/"
)]
pub struct RmArgs {
    /// s3://BUCKET/KEY.
    pub location: String,
    /// Delete everything below the prefix.
    #[arg(long, short)]
    pub recursive: bool,
    /// Which endpoint.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
}

/// `striate cat`.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = "Example:\n  striate cat s3://backup/etc.tar | tar t")]
pub struct CatArgs {
    /// s3://BUCKET/KEY.
    pub location: String,
    /// Which endpoint.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(subcommand)]
        _command: BucketCommand,
    }

    #[test]
    fn options_of_an_origin_need_one() {
        let parse =
            |options: &[&str]| Command::try_parse_from([&["striate", "create", "b"], options].concat());
        let origin = ["--origin", "s3://theirs", "--origin-endpoint", "http://there"];
        for option in [["--ttl", "5s"], ["--origin-region", "eu-1"], ["--cache-block-mib", "8"]] {
            let error = parse(&option).unwrap_err().to_string();
            assert!(error.contains("--origin <S3-URL>"), "{error}");
            parse(&[&origin[..], &option[..]].concat()).unwrap();
        }
        parse(&[]).unwrap();
        parse(&origin).unwrap();
        parse(&[&origin[..], &["--ttl", "24h"]].concat()).unwrap();
        let error = parse(&[&origin[..], &["--ttl", "24h 1s"]].concat()).unwrap_err().to_string();
        assert!(error.contains("at most 24h"), "{error}");
    }

    #[test]
    fn a_time_after_which_objects_are_cold_needs_a_profile_in_a_new_bucket() {
        let parse = |command: &str, further: &[&str]| {
            let line = ["striate", command, "b", "--cold-after", "1h"];
            Command::try_parse_from([&line[..], further].concat())
        };
        let error = parse("create", &[]).unwrap_err().to_string();
        assert!(error.contains("--cold-profile <PROFILE>"), "{error}");
        for command in ["create", "set"] {
            parse(command, &["--cold-profile", "wide(42,15,4)"]).unwrap();
        }
        parse("set", &[]).unwrap();
        let error = parse("set", &["--keep-cold-as-it-is"]).unwrap_err().to_string();
        assert!(error.contains("cannot be used with"), "{error}");
    }

    #[test]
    fn a_class_is_given_a_profile_or_loses_it() {
        let of = |text: &str| text.parse::<ClassArg>();
        let wide = ClassArg { class: StorageClass::StandardIa, profile: "wide(42,15,4)".parse().ok() };
        assert_eq!(of("STANDARD_IA=wide(42,15,4)"), Ok(wide));
        // A profile may contain equals signs itself.
        assert_eq!(of("STANDARD_IA=wide(k=42,f=4,redundancy=1.15)").unwrap().class, StorageClass::StandardIa);
        assert_eq!(of("STANDARD_IA="), Ok(ClassArg { profile: None, ..wide }));
        for (text, reason) in [
            ("STANDARD_IA", "NAME=PROFILE"),
            ("GLACIER=rs(4,2)", "is not a storage class"),
            ("STANDARD=raid(5)", "or wide(42,15,4) for cold data"),
        ] {
            assert!(of(text).unwrap_err().contains(reason), "{text}");
        }
    }
}
