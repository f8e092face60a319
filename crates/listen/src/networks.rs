//! Sets of networks: the addresses of trusted proxies.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// One network: an address and the number of leading bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// As IPv6; IPv4 addresses are mapped.
    first: u128,
    bits: u32,
}

/// A set of networks. Empty by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<Network>);

fn as_v6(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn mask(bits: u32) -> u128 {
    u128::MAX.checked_shl(128 - bits).unwrap_or(0)
}

impl FromStr for Network {
    type Err = String;

    /// Parses `10.0.0.7`, `10.0.0.0/8`, `2001:db8::/32`.
    fn from_str(text: &str) -> Result<Self, String> {
        let hint = "write an address or a network, such as 10.0.0.7, 10.1.0.0/16 or 2001:db8::/32";
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.trim().parse().map_err(|_| format!("{text:?}: {hint}"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits =
            match bits {
                None => most,
                Some(bits) => bits.trim().parse().ok().filter(|bits| *bits <= most).ok_or_else(|| {
                    format!("{text:?}: a network of this kind has 0 to {most} bits; {hint}")
                })?,
            };
        let bits = bits + 128 - most;
        Ok(Self { first: as_v6(address) & mask(bits), bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Ipv6Addr::from_bits(self.first).to_canonical() {
            IpAddr::V4(address) if self.bits >= 96 => write!(f, "{address}/{}", self.bits - 96),
            _ => write!(f, "{}/{}", Ipv6Addr::from_bits(self.first), self.bits),
        }
    }
}

impl Networks {
    /// Returns whether an address lies in one of the networks. An IPv4 address in IPv6 form is an IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = as_v6(address);
        self.0.iter().any(|network| address & mask(network.bits) == network.first)
    }

    /// Returns what counts as the peer's address where these are the trusted proxies; `None` for one of them, which stands
    /// for many peers.
    pub fn counted(&self, address: IpAddr) -> Option<IpAddr> {
        (!self.contains(address)).then(|| counted(address))
    }
}

impl FromIterator<Network> for Networks {
    fn from_iter<I: IntoIterator<Item = Network>>(networks: I) -> Self {
        Self(networks.into_iter().collect())
    }
}

/// Returns what counts as one address: for IPv6 the network, because a host has 2⁶⁴ addresses there.
pub fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(text: &str) -> Networks {
        text.split(',').map(|network| network.parse::<Network>().unwrap()).collect()
    }

    #[test]
    fn addresses_lie_in_their_networks_in_either_form() {
        let set = networks("10.0.0.7,192.168.0.0/16,2001:db8::/32");
        for inside in ["10.0.0.7", "::ffff:10.0.0.7", "192.168.255.1", "2001:db8:ffff::1"] {
            assert!(set.contains(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["10.0.0.8", "192.169.0.1", "2001:db9::1", "::1"] {
            assert!(!set.contains(outside.parse().unwrap()), "{outside}");
        }
        assert!(!Networks::default().contains("127.0.0.1".parse().unwrap()));
        assert!(networks("0.0.0.0/0").contains("8.8.8.8".parse().unwrap()));
        assert!(!networks("0.0.0.0/0").contains("2001:db8::1".parse().unwrap()));
        assert!(networks("::/0").contains("8.8.8.8".parse().unwrap()));
    }

    #[test]
    fn what_is_no_network_is_refused_and_what_is_one_is_written_back() {
        for wrong in ["", "10.0.0", "10.0.0.0/33", "::/129", "10.0.0.0/x", "proxy.example.org"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
        for (given, shown) in [("10.1.2.3/8", "10.0.0.0/8"), ("10.1.2.3", "10.1.2.3/32"), ("::1", "::1/128")]
        {
            assert_eq!(given.parse::<Network>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let counted = |text: &str| counted(text.parse().unwrap());
        assert_eq!(counted("2001:db8::1"), counted("2001:db8::2:3"));
        assert_ne!(counted("2001:db8::1"), counted("2001:db8:0:1::1"));
        assert_eq!(counted("::ffff:10.0.0.1"), counted("10.0.0.1"));
    }
}
