//! Limits wrong sign-ins, so that nobody can try secrets quickly.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use striate_listen::networks::counted;
use striate_runtime::Instant;

/// Wrong sign-ins of one address in [`WINDOW`] after which its others are refused unseen.
const MOST_WRONG: u32 = 10;
/// Time in which wrong sign-ins are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of addresses that are counted. The one that began first is forgotten for the next.
const MOST_ADDRESSES: usize = 4_096;
/// How long the answer to a wrong sign-in is held back.
pub(super) const DELAY: Duration = Duration::from_secs(1);

/// The wrong sign-ins of the last minute, by address.
#[derive(Default)]
pub(super) struct WrongSignIns(Mutex<HashMap<IpAddr, Count>>);

struct Count {
    began: Instant,
    wrong: u32,
    was_refused: bool,
}

/// Whether a sign-in is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Admitted,
    /// Refused; `first` for the first one in the window, which alone is worth a line in the log.
    Refused {
        first: bool,
    },
}

impl WrongSignIns {
    /// Decides on a sign-in that comes at `now`.
    pub(super) fn admit(&self, address: IpAddr, now: Instant) -> Verdict {
        let mut counts = self.0.lock();
        counts.retain(|_, count| now.saturating_duration_since(count.began) < WINDOW);
        match counts.get_mut(&counted(address)) {
            Some(count) if count.wrong >= MOST_WRONG => {
                Verdict::Refused { first: !std::mem::replace(&mut count.was_refused, true) }
            }
            _ => Verdict::Admitted,
        }
    }

    /// Counts a wrong sign-in.
    pub(super) fn add(&self, address: IpAddr, now: Instant) {
        let mut counts = self.0.lock();
        let address = counted(address);
        if counts.len() >= MOST_ADDRESSES
            && !counts.contains_key(&address)
            && let Some(oldest) =
                counts.iter().min_by_key(|(_, count)| count.began).map(|(address, _)| *address)
        {
            counts.remove(&oldest);
        }
        let count = counts.entry(address).or_insert(Count { began: now, wrong: 0, was_refused: false });
        count.wrong += 1;
    }
}

#[cfg(test)]
mod tests {
    use striate_runtime::Runtime;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_wrong_too_often_waits_and_others_do_not() {
        let (wrong, now) = (WrongSignIns::default(), Runtime::deterministic(1, Duration::ZERO).now());
        let [guesser, neighbour, user]: [IpAddr; 3] =
            ["2001:db8::1", "2001:db8::ffff", "10.0.0.1"].map(|text| text.parse().unwrap());
        for _ in 0..MOST_WRONG {
            assert_eq!(wrong.admit(guesser, now), Verdict::Admitted);
            wrong.add(guesser, now);
        }
        assert_eq!(wrong.admit(neighbour, now), Verdict::Refused { first: true }, "the same network");
        assert_eq!(wrong.admit(guesser, now), Verdict::Refused { first: false });
        assert_eq!(wrong.admit(user, now), Verdict::Admitted);
        assert_eq!(wrong.admit(guesser, now + WINDOW), Verdict::Admitted);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_addresses_is_bounded() {
        let (wrong, now) = (WrongSignIns::default(), Runtime::deterministic(1, Duration::ZERO).now());
        (0..5_000_u32).for_each(|number| wrong.add(IpAddr::V4(number.into()), now));
        assert_eq!(wrong.0.lock().len(), MOST_ADDRESSES);
    }
}
