//! Sizes that follow the disk: the reserve, the length of segments, and what compaction may use.
//!
//! A compaction copies before it removes, so it needs room, and on a full disk the reserve is all the room there is.
//! Two segments fit into it. Segments that are longer, because an earlier release made them or the disk has shrunk, are
//! compacted in parts (module `victims`).

const MIB: u64 = 1024 * 1024;

/// Longest segment in bytes, unless an option says otherwise.
const MAX_SEGMENT_LEN: u64 = 256 * MIB;
/// Shortest segment in bytes, unless an option says otherwise.
const MIN_SEGMENT_LEN: u64 = MIB / 16;

/// Share of dead bytes, in thousandths, from which segments of a full disk are compacted. Below it, a byte won costs
/// more than thirty copied.
const FULL_DEAD_PERMILLE: u64 = 30;
/// Share of the disk, in thousandths, below which its free bytes count as scarce.
const SCARCE_PERMILLE: u64 = 100;

/// Returns the bytes of a disk of `capacity` bytes that writes leave free.
pub(super) fn default_reserve(capacity: u64) -> u64 {
    (capacity / 100).clamp(64 * MIB, 8 * 1024 * MIB).min(capacity / 8)
}

/// Returns the length in bytes of the segments of a disk with this reserve: a power of two of which two fit into the
/// reserve.
pub(super) fn default_segment_len(reserve: u64) -> u64 {
    let half = (reserve / 2).clamp(MIN_SEGMENT_LEN, MAX_SEGMENT_LEN);
    1 << half.ilog2()
}

/// Returns the share of dead bytes, in thousandths, from which a segment is compacted: `relaxed` while enough of the
/// disk is free, and ever less the fuller it is. `free` are the bytes above the reserve.
pub(super) fn dead_permille(relaxed: u32, free: u64, capacity: u64) -> u32 {
    let scarce = capacity / 1000 * SCARCE_PERMILLE;
    if free >= scarce {
        return relaxed;
    }
    let full = FULL_DEAD_PERMILLE.min(u64::from(relaxed));
    // In kibibytes, so that the product stays below 2⁶⁴.
    let rise = (u64::from(relaxed) - full) * (free >> 10) / (scarce >> 10).max(1);
    (full + rise) as u32
}

/// Returns the bytes that one compaction may write while `available` bytes are left on the disk. The other half is for
/// deletes, metadata, and the compactions of other stores on the same disk. After `refusals` of the file system in a
/// row for want of space it is halved as often.
pub(super) fn compaction_room(available: u64, refusals: u32) -> u64 {
    available >> (1 + refusals.min(62))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1024 * MIB;

    #[test]
    fn two_segments_fit_into_the_reserve_of_every_disk_and_large_disks_have_long_ones() {
        for shift in 23..50 {
            for capacity in [1 << shift, (1 << shift) + (1 << (shift - 1))] {
                let reserve = default_reserve(capacity);
                let segment = default_segment_len(reserve);
                assert!(2 * segment <= reserve, "{capacity}: {segment} of {reserve}");
                assert!(reserve <= capacity / 8);
            }
        }
        let len_of = |capacity| default_segment_len(default_reserve(capacity));
        assert_eq!(len_of(GIB), 32 * MIB);
        assert_eq!(len_of(30 * GIB), 128 * MIB);
        assert_eq!(len_of(100 * GIB), 256 * MIB);
        assert_eq!(len_of(100_000 * GIB), 256 * MIB);
    }

    #[test]
    fn the_fuller_a_disk_the_smaller_a_dead_share_is_compacted() {
        for capacity in [60_000, GIB, 100_000 * GIB] {
            assert_eq!(dead_permille(350, capacity, capacity), 350);
            assert_eq!(dead_permille(350, 0, capacity), 30);
            let shares: Vec<_> = (0..=12).map(|i| dead_permille(350, capacity / 100 * i, capacity)).collect();
            assert!(shares.is_sorted(), "{shares:?}");
            assert_eq!(dead_permille(10, 0, capacity), 10, "an option below is respected");
        }
    }

    #[test]
    fn room_shrinks_with_each_refusal_and_never_takes_the_last_byte() {
        assert_eq!(compaction_room(100, 0), 50);
        assert_eq!(compaction_room(100, 2), 12);
        assert_eq!(compaction_room(u64::MAX, u32::MAX), 1);
        assert_eq!(compaction_room(0, 0), 0);
    }
}
