//! Limits wrong sign-ins, so that nobody can try secrets quickly.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use http::HeaderMap;
use parking_lot::Mutex;
use striate_listen::Networks;
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

/// Returns the address of the client of a request from `peer`. A trusted proxy adds the address of its own client to the
/// header X-Forwarded-For, at the end; what stands before the first address that is no trusted proxy's, anybody may have
/// written.
pub(super) fn client_of(headers: &HeaderMap, peer: IpAddr, proxies: &Networks) -> IpAddr {
    let forwarded = headers.get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok());
    let addresses = forwarded.flat_map(|value| value.split(',')).map(|text| text.trim().parse().ok());
    let chain = addresses.chain([Some(peer)]).collect::<Vec<Option<IpAddr>>>();
    let client = chain.into_iter().rev().find(|address| !address.is_some_and(|it| proxies.contains(it)));
    client.flatten().unwrap_or(peer)
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

    #[test]
    fn behind_a_trusted_proxy_each_client_counts_and_no_client_can_pass_for_another() {
        let proxies =
            ["10.0.0.1", "10.0.0.2"].map(|text| text.parse::<striate_listen::networks::Network>().unwrap());
        let proxies = proxies.into_iter().collect();
        let client = |peer: &str, forwarded: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in forwarded {
                headers.append("x-forwarded-for", value.parse().unwrap());
            }
            client_of(&headers, peer.parse().unwrap(), &proxies).to_string()
        };
        assert_eq!(client("10.0.0.1", &["192.0.2.7"]), "192.0.2.7");
        assert_eq!(
            client("10.0.0.1", &["198.51.100.1, 192.0.2.7"]),
            "192.0.2.7",
            "the client invented the first"
        );
        assert_eq!(client("10.0.0.1", &["192.0.2.7", "10.0.0.2"]), "192.0.2.7", "two proxies");
        assert_eq!(client("192.0.2.9", &["192.0.2.7"]), "192.0.2.9", "it is no proxy");
        for (peer, forwarded) in [("10.0.0.1", vec![]), ("10.0.0.1", vec!["192.0.2.7, unknown"])] {
            assert_eq!(client(peer, &forwarded), peer, "nothing that can be used");
        }
    }

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
