//! Arguments of `striate pack …`.

use clap::Subcommand;

use super::AdminArgs;

/// `striate pack …`.
#[derive(Clone, Debug, Subcommand)]
pub enum PackCommand {
    /// Show packed, waiting and dead objects.
    #[command(
        long_about = "Show packed, waiting and dead objects, bucket by bucket.\n\n\
            PACKS INTO is the length of partitions, as far as memory allows, and A GROUP what must settle before one is written. \
            LIVE are objects in packed groups that can be read; DEAD are those that were overwritten or deleted since, whose \
            space is reclaimed when a group has too many of them; WAITING are small objects that packing would take, of which \
            some have SETTLED: they have not changed for --pack-after. The figures are those of the service's last pass \
            (every minute, and every hour for a bucket that is not packed); COUNTED says how old they are. Below the table each \
            bucket with a wide profile has a line: how many of its cold stripes are sealed into wide stripes, how many partitions wait, \
            and why. The exit status is 1 when a group cannot be released because too many chunks of its directory are lost.",
        after_long_help = "Examples:\n  \
            striate pack status\n  \
            striate pack status photos\n  \
            striate pack status --json | jq '.buckets[] | {bucket, reason}'"
    )]
    Status {
        /// This bucket alone.
        bucket: Option<String>,
        /// Write JSON.
        #[arg(long)]
        json: bool,
        /// Which server or gateway.
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Pack now, whatever the store's --pack says.
    #[command(
        long_about = "Pack now, whatever the store's --pack says.\n\n\
            Reclaims dead space, then packs small objects that have settled, at full speed, in one bucket or in \
            all but those that say `off` themselves. With --now it takes objects of any age, and makes smaller groups of \
            what would otherwise wait a day for its neighbours. Less than the smallest group (1 MiB for each data chunk of \
            the code) stays as it is. The store keeps serving, and a client that changes an object meanwhile wins. Ctrl-C \
            stops it after the current group or wide stripe; what was packed or sealed stays so.",
        after_long_help = "Examples:\n  \
            striate pack run\n  \
            striate pack run photos --now\n  \
            striate pack run --cold"
    )]
    Run {
        /// This bucket alone, also when its own setting is off.
        bucket: Option<String>,
        /// Also pack objects that have not settled, into smaller groups where needed.
        #[arg(long)]
        now: bool,
        /// Then seal cold data into wide stripes, in buckets with a wide profile (`striate bucket create
        /// --cold-profile`), also in those that are not packed.
        #[arg(long)]
        cold: bool,
        /// Show no progress.
        #[arg(long, short)]
        quiet: bool,
        /// Write the report as JSON.
        #[arg(long)]
        json: bool,
        /// Which server or gateway.
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Split a bucket's packed objects again.
    #[command(
        long_about = "Split a bucket's packed objects again.\n\n\
            First it sets the bucket to `--pack off`, because it would be packed again otherwise, and says so; `striate bucket \
            set NAME --pack default` takes that back. Then every packed object gets a stripe of its own. Each is readable at \
            every moment, and a client that changes one meanwhile wins. The groups' space comes back when nothing in them \
            lives any more and the grace has passed; until then both take space. Ctrl-C stops it; run it again to continue.",
        after_long_help = "Example:\n  striate pack undo photos"
    )]
    Undo {
        /// The bucket.
        bucket: String,
        /// Show no progress.
        #[arg(long, short)]
        quiet: bool,
        /// Write the report as JSON.
        #[arg(long)]
        json: bool,
        /// Which server or gateway.
        #[command(flatten)]
        admin: AdminArgs,
    },
}
