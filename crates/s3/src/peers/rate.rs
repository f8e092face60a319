//! The rate of a peer, over a sliding window of the time in which it was waited for.

use std::collections::VecDeque;

/// The bytes that a peer moved in each of the last ticks in which the gateway waited for it. Ticks in which the gateway
/// waited for the store do not count against the peer; bytes that moved in them count for it.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    /// Bytes of each awaited tick, oldest first.
    window: VecDeque<u64>,
    /// The peer's byte counter at the last tick.
    moved: u64,
    /// Bytes that moved since the last awaited tick.
    credit: u64,
}

impl Rate {
    /// Ends a tick. `moved` is the number of bytes since the connection began, `is_awaited` whether the gateway waits
    /// for the peer. At most `window` ticks are kept.
    pub fn tick(&mut self, moved: u64, is_awaited: bool, window: usize) {
        self.credit += moved - self.moved;
        self.moved = moved;
        if !is_awaited {
            return;
        }
        self.window.push_back(std::mem::take(&mut self.credit));
        while self.window.len() > window {
            self.window.pop_front();
        }
    }

    /// Clears the window when another request begins. `moved` is as in [`Rate::tick`].
    pub fn restart(&mut self, moved: u64) {
        self.window.clear();
        (self.moved, self.credit) = (moved, 0);
    }

    /// Returns the bytes of the last `ticks` awaited ticks; `None` if there were fewer.
    pub fn of_last(&self, ticks: usize) -> Option<u64> {
        let skipped = self.window.len().checked_sub(ticks)?;
        Some(self.window.iter().skip(skipped).sum())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_awaited_ticks_count_and_bytes_of_the_others_are_credited() {
        let mut rate = Rate::default();
        rate.tick(100, true, 3);
        rate.tick(100, true, 3);
        assert_eq!(rate.of_last(3), None);
        for _ in 0..10 {
            rate.tick(150, false, 3);
        }
        assert_eq!(rate.of_last(3), None, "the store was waited for");
        rate.tick(160, true, 3);
        assert_eq!(rate.of_last(3), Some(160));
        assert_eq!(rate.of_last(1), Some(60));
        rate.tick(160, true, 3);
        rate.tick(160, true, 3);
        assert_eq!(rate.of_last(3), Some(60), "the window slides");
        rate.restart(160);
        assert_eq!(rate.of_last(1), None);
    }

    proptest! {
        /// A peer that moves `lump` bytes every `every` ticks is never below its mean rate by more than one lump.
        #[test]
        fn lumps_are_averaged(lump in 1_u64..1_000_000, every in 1_usize..20, phase in 0_usize..20) {
            let (mut rate, mut moved) = (Rate::default(), 0);
            for tick in 0..200 {
                if (tick + phase) % every == 0 {
                    moved += lump;
                }
                rate.tick(moved, true, 30);
                if let Some(bytes) = rate.of_last(30) {
                    prop_assert!(bytes >= lump * (30 / every as u64));
                }
            }
        }
    }
}
