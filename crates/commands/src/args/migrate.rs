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
#[command(after_long_help = "Examples:\n  \
        striate admin migrate --from embedded --to etcd://e1,e2,e3/photos /mnt/disk{1...6}\n  \
        striate admin migrate --from etcd://e1,e2,e3/photos --to 'postgres://striate@db/meta?schema=photos'\n  \
        striate admin migrate --from embedded --cancel /mnt/disk{1...6}")]
pub struct MigrateArgs {
    /// Where the metadata are: `embedded`, or the URL of an engine. Put a URL with a password into the environment, where
    /// other users do not see it.
    #[arg(long, value_name = "embedded|URL", env = "STRIATE_MIGRATE_FROM", hide_env_values = true)]
    pub from: Source,
    /// Where they go: the URL of an engine.
    #[arg(
        long,
        value_name = "URL",
        required_unless_present = "cancel",
        env = "STRIATE_MIGRATE_TO",
        hide_env_values = true
    )]
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
