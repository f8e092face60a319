//! The first exchange of a connection, which settles protocol, cluster and site.
//!
//! ```text
//! hello    0         4         20
//!          | version | cluster |
//! welcome  0         4      8         24     72  74
//!          | version | site | cluster | load | n | rack label, n bytes
//! ```
//!
//! The certificates of both ends have already authenticated the peer ([`striate_trust`]). Here the two ends find out
//! whether they understand each other, and the client whether it has reached the right site.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use striate_core::{ClusterId, LoadReport, RackId, SiteId};
use striate_trust::Role;

use super::PROTOCOL_VERSION;
use super::frame::{LOAD_LEN, get_load, put_load};
use super::limits::MAX_RACK_LEN;
use crate::identity::SiteIdentity;

/// Length of a hello in bytes.
pub(crate) const HELLO_LEN: usize = 20;
const WELCOME_FIXED_LEN: usize = 24 + LOAD_LEN + 2;
/// Maximum length of a welcome in bytes.
pub(crate) const MAX_WELCOME_LEN: usize = WELCOME_FIXED_LEN + MAX_RACK_LEN;

/// Why a hello, welcome or request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is malformed.
    #[error("{0}")]
    Malformed(String),
    /// The peer speaks another version.
    #[error(
        "protocol version {theirs} is not supported, only version {PROTOCOL_VERSION} is: run the same release of striate on all machines"
    )]
    Version {
        /// The peer's version.
        theirs: u32,
    },
    /// The peer belongs to another cluster.
    #[error("the peer belongs to another cluster: check the address and the certificates")]
    OtherCluster,
    /// The connection did not begin with a hello.
    #[error("a connection begins with a hello")]
    NoHello,
    /// The peer's role does not permit the request.
    #[error("a {role} may not ask for {path}")]
    Forbidden {
        /// Role of the peer.
        role: Role,
        /// Path that it requested.
        path: String,
    },
    /// It is larger than allowed.
    #[error("{0}")]
    TooLarge(String),
}

/// Encodes the first message of a connection, from a member of `cluster`.
pub fn encode_hello(cluster: ClusterId) -> Bytes {
    let mut out = BytesMut::with_capacity(HELLO_LEN);
    out.put_u32_le(PROTOCOL_VERSION);
    out.put_u128(cluster.0);
    out.freeze()
}

/// Checks a message that [`encode_hello`] made.
///
/// # Errors
/// The reason for which the hello is refused.
pub(crate) fn accept_hello(mut bytes: &[u8], cluster: ClusterId) -> Result<(), Refusal> {
    check_version(bytes)?;
    if bytes.len() != HELLO_LEN {
        return Err(Refusal::Malformed(format!("a hello of {} bytes", bytes.len())));
    }
    bytes.advance(4);
    if bytes.get_u128() == cluster.0 { Ok(()) } else { Err(Refusal::OtherCluster) }
}

/// Checks the version before the length, so that another version is not taken for a malformed message.
fn check_version(bytes: &[u8]) -> Result<(), Refusal> {
    let theirs = bytes.first_chunk().map(|version| u32::from_le_bytes(*version));
    match theirs.filter(|version| *version != PROTOCOL_VERSION) {
        Some(theirs) => Err(Refusal::Version { theirs }),
        None => Ok(()),
    }
}

/// The reply to a hello.
#[derive(Clone, Debug)]
pub struct HelloReply {
    /// Identity of the site.
    pub identity: SiteIdentity,
    /// Load of the site.
    pub load: LoadReport,
}

impl HelloReply {
    /// Encodes the welcome.
    pub fn encode(&self) -> Bytes {
        let rack = self.identity.rack.0.as_bytes();
        let rack = &rack[..rack.len().min(MAX_RACK_LEN)];
        let mut out = BytesMut::with_capacity(WELCOME_FIXED_LEN + rack.len());
        out.put_u32_le(PROTOCOL_VERSION);
        out.put_u32_le(self.identity.site.0);
        out.put_u128(self.identity.cluster.0);
        put_load(&mut out, &self.load);
        out.put_u16_le(rack.len() as u16);
        out.put_slice(rack);
        out.freeze()
    }

    /// The inverse of [`HelloReply::encode`], for a member of `cluster`.
    ///
    /// # Errors
    /// The reason for which the welcome is refused.
    pub fn accept(mut bytes: &[u8], cluster: ClusterId) -> Result<Self, Refusal> {
        check_version(bytes)?;
        let malformed = || Refusal::Malformed("the welcome has a wrong length".to_owned());
        if bytes.len() < WELCOME_FIXED_LEN {
            return Err(malformed());
        }
        bytes.advance(4);
        let site = SiteId(bytes.get_u32_le());
        if bytes.get_u128() != cluster.0 {
            return Err(Refusal::OtherCluster);
        }
        let load = get_load(&mut bytes);
        if usize::from(bytes.get_u16_le()) != bytes.len() {
            return Err(malformed());
        }
        let rack = RackId(String::from_utf8_lossy(bytes).into_owned());
        Ok(Self { identity: SiteIdentity { cluster, site, rack }, load })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: ClusterId = ClusterId(7);

    #[test]
    fn hello_and_welcome_are_read_as_they_are_written() {
        assert_eq!(accept_hello(&encode_hello(CLUSTER), CLUSTER), Ok(()));
        let identity = SiteIdentity { cluster: CLUSTER, site: SiteId(3), rack: RackId("r1".to_owned()) };
        let load = LoadReport { sequence: 5, queue_bytes: 9, ..LoadReport::default() };
        let bytes = HelloReply { identity: identity.clone(), load }.encode();
        let welcome = HelloReply::accept(&bytes, CLUSTER).unwrap();
        assert_eq!((welcome.identity, welcome.load), (identity, load));
        for cut in 0..bytes.len() {
            assert!(
                matches!(HelloReply::accept(&bytes[..cut], CLUSTER), Err(Refusal::Malformed(_))),
                "{cut}"
            );
        }
    }

    #[test]
    fn other_versions_and_clusters_are_refused_by_name() {
        let bytes = encode_hello(CLUSTER);
        assert_eq!(accept_hello(&bytes, ClusterId(8)), Err(Refusal::OtherCluster));
        assert!(matches!(accept_hello(&bytes[..9], CLUSTER), Err(Refusal::Malformed(_))));
        let mut older = bytes.to_vec();
        older[0] = 1;
        assert_eq!(accept_hello(&older, CLUSTER), Err(Refusal::Version { theirs: 1 }));
        assert_eq!(HelloReply::accept(&older, CLUSTER).unwrap_err(), Refusal::Version { theirs: 1 });
    }
}
