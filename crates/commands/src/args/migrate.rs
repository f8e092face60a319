//! Arguments of `striate admin migrate`.

use std::str::FromStr;

use clap::Args;
use striate_meta::{EngineUrl, InvalidUrl};

/// The source of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The directories of a stopped server.
    Embedded,
    /// A separate engine.
    Engine(EngineUrl),
}

impl FromStr for Source {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        match text {
            "embedded" => Ok(Self::Embedded),
            url => Ok(Self::Engine(url.parse()?)),
        }
    }
}

/// `striate admin migrate`.
#[derive(Clone, Debug, Args)]
#[command(
    long_about = "Move all metadata to another engine.\n\n\
        Copies every row to an empty prefix of an etcd or an empty schema of a PostgreSQL database, then compares all of \
        them, then puts the source out of use and the target into use. Chunks stay where they are.\n\n\
        Nothing may write meanwhile, and nothing can: a mark in the source has every commit of every process refused \
        from the first moment, and the target carries one until it is complete. The embedded engine is opened from the \
        directories themselves, with their locks: stop the server first, and name the directories as it is started with \
        them.\n\n\
        When it is interrupted, run the same command again; what has been copied is not copied again. To give up \
        instead, run it with --cancel in the place of --to: the source is in use again.",
    after_long_help = "Examples:\n  \
        striate admin migrate --from embedded --to etcd://e1,e2,e3/photos /mnt/disk{1...6}\n  \
        striate admin migrate --from etcd://e1,e2,e3/photos --to 'postgres://striate@db/meta?schema=photos'\n  \
        striate admin migrate --from embedded --cancel /mnt/disk{1...6}"
)]
pub struct MigrateArgs {
    /// Where the metadata are: `embedded`, or the URL of an engine.
    #[arg(long, value_name = "embedded|URL")]
    pub from: Source,
    /// Where they go: the URL of an engine.
    #[arg(long, value_name = "URL", required_unless_present = "cancel")]
    pub to: Option<EngineUrl>,
    /// Give up a migration that was interrupted.
    #[arg(long, conflicts_with = "to")]
    pub cancel: bool,
    /// Show no progress.
    #[arg(long, short)]
    pub quiet: bool,
    /// With --from embedded: the directories of the stopped server.
    #[arg(value_name = "DIRECTORY")]
    pub directories: Vec<String>,
}
