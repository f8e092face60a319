//! Options of the background work that keeps a store whole, for `server` and `control`.

use std::time::Duration;

use clap::Args;
use striate_control::{
    HotCopiesOptions, PackOptions, PackingOptions, RepairLimits, RepairOptions, UpkeepOptions,
};
use striate_core::Packing;

/// Background work that keeps a store whole.
#[derive(Clone, Debug, Args)]
pub struct UpkeepArgs {
    /// How long a site may be unreachable (90s, 15m, 12h, 2d) before its chunks are rebuilt on other sites. Restarting
    /// the process resets the timer.
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = time, env = "STRIATE_REPAIR_AFTER")]
    pub repair_after: Duration,

    /// Repair bandwidth of each site, sent and received, while no requests are queued there, in MiB a second.
    /// With 0 only `striate heal` repairs.
    #[arg(long, value_name = "MIB", default_value_t = 64, env = "STRIATE_REPAIR_RATE_MIB")]
    pub repair_rate_mib: u32,

    /// Repair bandwidth of each site while requests are queued there, in MiB a second.
    #[arg(long, value_name = "MIB", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..),
          env = "STRIATE_REPAIR_FLOOR_MIB")]
    pub repair_floor_mib: u32,

    /// Read and verify every chunk once within this time (12h, 30d). 0 disables the scrub; `striate verify`
    /// still works.
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = time, env = "STRIATE_SCRUB_CYCLE")]
    pub scrub_cycle: Duration,

    /// Rewrite small objects (up to 256 KiB) that have not changed for an hour into shared partitions: `off`,
    /// `auto`, or the longest partition (8MiB, 32MiB; a power of two from 1 to 64 MiB). `auto` packs where
    /// the store has at least six sites and the bucket's code is rs or lrc, into partitions of 32 MiB. A
    /// bucket may have its own setting (`striate bucket create --pack`). Packed objects stay readable with
    /// `off`.
    #[arg(long, value_name = "off|auto|SIZE", default_value_t, env = "STRIATE_PACK")]
    pub pack: Packing,

    /// How long an object must be unchanged before it is packed (10m, 1h, 7d).
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time, env = "STRIATE_PACK_AFTER")]
    pub pack_after: Duration,

    /// Share of all packed bytes that copies of the most-read partitions may use, in percent. Copies are
    /// placed on the sites that reads load least. They speed up reads of hot objects, and add no redundancy.
    /// 0 disables them.
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent, env = "STRIATE_HOT_COPIES")]
    pub hot_copies: f64,
}

impl From<&UpkeepArgs> for UpkeepOptions {
    fn from(args: &UpkeepArgs) -> Self {
        let bytes = |mib: u32| u64::from(mib) << 20;
        let limits = RepairLimits {
            rate_bytes_per_s: bytes(args.repair_rate_mib),
            floor_bytes_per_s: bytes(args.repair_floor_mib),
        };
        let limits = (args.repair_rate_mib > 0).then_some(limits);
        let scrub_cycle = Some(args.scrub_cycle).filter(|cycle| !cycle.is_zero());
        let pack = PackOptions { settled_after: args.pack_after, ..PackOptions::default() };
        let packing = PackingOptions { setting: args.pack, pack, ..PackingOptions::default() };
        let copies = HotCopiesOptions { share: args.hot_copies / 100.0 };
        Self { repair: RepairOptions { after: args.repair_after, limits }, scrub_cycle, packing, copies }
    }
}

/// Parses a number from 0 to 100.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=100.0).contains(number));
    number.ok_or_else(|| format!("{text:?} is not a percentage; write a number from 0 to 100"))
}

/// Parses a time of whole seconds: 90s, 15m, 12h, 30d, 1h 30m or 0.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).ok();
    time.filter(|time| time.subsec_nanos() == 0 && time.as_secs() < 1 << 40).ok_or_else(|| {
        format!("{text:?} is not a time; write whole seconds or more with a unit, as in 90s, 15m, 12h or 30d")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let seconds = |text| time(text).map(|time| time.as_secs());
        assert_eq!((seconds("90s"), seconds("15m"), seconds("2h")), (Ok(90), Ok(900), Ok(7_200)));
        assert_eq!((seconds("30d"), seconds("1h 30m"), seconds("0")), (Ok(2_592_000), Ok(5_400), Ok(0)));
        for wrong in ["", "15", "m", "-1s", "500ms", "é", "99999999999999999999s", "99999999999999d"] {
            assert!(time(wrong).unwrap_err().contains("15m"), "{wrong}");
        }
    }
}
