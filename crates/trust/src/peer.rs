//! The name that a certificate gives a process.
//!
//! The certificate contains it as a subject alternative name of type URI:
//!
//! ```text
//! striate://<cluster, 32 hexadecimal digits>/<role>/<name>
//! ```

use std::fmt;
use std::str::FromStr;

use striate_core::ClusterId;

/// Maximum length of a process's name in bytes.
const MAX_NAME_LEN: usize = 63;
const SCHEME: &str = "striate://";

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Stores chunks.
    Site,
    /// Serves S3.
    Gateway,
    /// Knows the sites, and does the work that must happen in one place.
    Control,
    /// An operator's command.
    Admin,
}

impl Role {
    /// All roles.
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

/// The identity of a process in a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerName {
    /// The cluster of the process.
    pub cluster: ClusterId,
    /// The role of the process.
    pub role: Role,
    /// The name of the process among those of its role: letters, digits, dots, hyphens and underscores, at most 63.
    pub name: String,
}

impl PeerName {
    /// Checks a name.
    ///
    /// # Errors
    /// The rule that the name violates.
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

/// The process that a connection is meant for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedPeer {
    /// The role of the process.
    pub role: Role,
    /// The name of the process; `None` accepts any of that role.
    pub name: Option<String>,
}

impl ExpectedPeer {
    /// Accepts any process of a role.
    pub fn any(role: Role) -> Self {
        Self { role, name: None }
    }

    /// Accepts one process.
    pub fn named(role: Role, name: &str) -> Self {
        Self { role, name: Some(name.to_owned()) }
    }

    /// Whether `peer` is the expected process.
    pub(crate) fn is_met_by(&self, peer: &PeerName) -> bool {
        self.role == peer.role && self.name.as_ref().is_none_or(|name| *name == peer.name)
    }
}

impl fmt::Display for ExpectedPeer {
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
