//! The name that a certificate gives a process.
//!
//! It stands in the certificate as a subject alternative name of the kind URI:
//!
//! ```text
//! striate://<cluster, 32 hexadecimal digits>/<role>/<name>
//! ```

use std::fmt;
use std::str::FromStr;

use striate_core::ClusterId;

/// Longest name of a process, in bytes.
const MAX_NAME_LEN: usize = 63;
const SCHEME: &str = "striate://";

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Keeps chunks.
    Site,
    /// Speaks S3.
    Gateway,
    /// Knows the sites, and does the work that must happen in one place.
    Control,
    /// An operator's command.
    Admin,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Site, Self::Gateway, Self::Control, Self::Admin];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Site => "site",
            Self::Gateway => "gateway",
            Self::Control => "control",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let role = Self::ALL.into_iter().find(|role| role.as_str() == text);
        role.ok_or_else(|| format!("there is no role {text:?}: write site, gateway, control or admin"))
    }
}

/// A process of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerName {
    /// Its cluster.
    pub cluster: ClusterId,
    /// What it is.
    pub role: Role,
    /// Its name among those of its role: letters, digits, dots, hyphens and underscores, at most 63.
    pub name: String,
}

impl PeerName {
    /// A name, checked.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn new(cluster: ClusterId, role: Role, name: &str) -> Result<Self, String> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        match (1..=MAX_NAME_LEN).contains(&name.len()) && name.bytes().all(is_plain) {
            true => Ok(Self { cluster, role, name: name.to_owned() }),
            false => Err(format!(
                "{name:?} cannot be the name of a process: 1 to {MAX_NAME_LEN} letters, digits, dots, hyphens and \
                 underscores can"
            )),
        }
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}/{}", self.cluster, self.role, self.name)
    }
}

impl FromStr for PeerName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || format!("{text:?} is not {SCHEME}CLUSTER/ROLE/NAME");
        let mut parts = text.strip_prefix(SCHEME).ok_or_else(malformed)?.splitn(3, '/');
        let mut part = || parts.next().ok_or_else(malformed);
        let cluster = part()?.parse().map_err(|_| malformed())?;
        Self::new(cluster, part()?.parse()?, part()?)
    }
}

/// Whom a connection is meant for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The role.
    pub role: Role,
    /// The name; none accepts any of that role.
    pub name: Option<String>,
}

impl Expected {
    /// Any process of a role.
    pub fn any(role: Role) -> Self {
        Self { role, name: None }
    }

    /// One process.
    pub fn named(role: Role, name: &str) -> Self {
        Self { role, name: Some(name.to_owned()) }
    }

    /// True when `peer` is meant.
    pub(crate) fn is_met_by(&self, peer: &PeerName) -> bool {
        self.role == peer.role && self.name.as_ref().is_none_or(|name| *name == peer.name)
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "the {} {name}", self.role),
            None => write!(f, "a {}", self.role),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for role in Role::ALL {
            let name = PeerName::new(ClusterId(7), role, "rack-1.a_2").unwrap();
            assert_eq!(name.to_string().parse(), Ok(name));
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let good = PeerName::new(ClusterId(7), Role::Site, "a").unwrap().to_string();
        for bad in [
            String::new(),
            good.replace("striate:", "spiffe:"),
            good.replace("site", "king"),
            good.replace("/a", ""),
            good.replace("/a", "/"),
            format!("{good}/b"),
            format!("{good}{}", "x".repeat(63)),
            good.replacen('0', "g", 1),
        ] {
            assert!(bad.parse::<PeerName>().is_err(), "{bad}");
        }
    }
}
