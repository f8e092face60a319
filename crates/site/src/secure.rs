//! TLS under the site protocol: who may connect to a site, and how to reach one.
//!
//! Both are traits: [`Gate`] at the listening end and [`Connector`] at the calling one. Between processes [`Trust`]
//! implements both; tests and benchmarks may use something else.

use std::fmt;
use std::io;

use async_trait::async_trait;
use striate_trust::{ExpectedPeer, PeerName, Role, Trust};
use tokio::net::TcpStream;

use crate::transport::{ByteStream, Connector};

/// Roles that may connect to a site: readers and writers, collection and repair, and other sites for combinations.
const CALLERS: &[Role] = &[Role::Gateway, Role::Control, Role::Site];

/// Turns an accepted connection into that of an authenticated peer.
#[async_trait]
pub trait Gate: Send + Sync + fmt::Debug {
    /// Returns the connection to use from now on, and the name of the peer.
    async fn admit(&self, stream: Box<dyn ByteStream>) -> io::Result<(Box<dyn ByteStream>, PeerName)>;
}

#[async_trait]
impl Gate for Trust {
    async fn admit(&self, stream: Box<dyn ByteStream>) -> io::Result<(Box<dyn ByteStream>, PeerName)> {
        let (stream, peer) = self.accept(stream, CALLERS).await?;
        Ok((Box::new(stream), peer))
    }
}

/// Connects to one site with TLS over TCP.
#[derive(Clone, Debug)]
pub struct SecureConnector {
    trust: Trust,
    expected: ExpectedPeer,
}

impl SecureConnector {
    /// Creates a connector to the site with this name in its certificate; without a name, to any site of the cluster.
    pub fn new(trust: Trust, name: Option<&str>) -> Self {
        let expected =
            name.map_or(ExpectedPeer::any(Role::Site), |name| ExpectedPeer::named(Role::Site, name));
        Self { trust, expected }
    }
}

#[async_trait]
impl Connector for SecureConnector {
    async fn connect(&self, address: &str) -> io::Result<Box<dyn ByteStream>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(self.trust.connect(stream, &self.expected).await?))
    }
}
