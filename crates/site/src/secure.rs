//! TLS under the site protocol: who may come in, and how to reach a site.
//!
//! Both are seams: [`Gate`] for the listening end and [`Connector`] for the calling one. [`Trust`] stands behind both
//! wherever processes speak to each other; tests and benchmarks may put something else there.

use std::fmt;
use std::io;

use async_trait::async_trait;
use striate_trust::{Expected, PeerName, Role, Trust};
use tokio::net::TcpStream;

use crate::transport::{ByteStream, Connector};

/// Who has business with a site: those who read and write, who collect and repair, and other sites for combinations.
const CALLERS: &[Role] = &[Role::Gateway, Role::Control, Role::Site];

/// What turns an accepted connection into that of a known peer.
#[async_trait]
pub trait Gate: Send + Sync + fmt::Debug {
    /// The connection to go on with, and who is at its other end.
    async fn admit(&self, stream: Box<dyn ByteStream>) -> io::Result<(Box<dyn ByteStream>, PeerName)>;
}

#[async_trait]
impl Gate for Trust {
    async fn admit(&self, stream: Box<dyn ByteStream>) -> io::Result<(Box<dyn ByteStream>, PeerName)> {
        let (stream, peer) = self.accept(stream, CALLERS).await?;
        Ok((Box::new(stream), peer))
    }
}

/// TLS over TCP, to one site.
#[derive(Clone, Debug)]
pub struct SecureConnector {
    trust: Trust,
    expected: Expected,
}

impl SecureConnector {
    /// To a site by its certificate's name; without one, to any site of the cluster.
    pub fn new(trust: Trust, name: Option<&str>) -> Self {
        let expected = name.map_or(Expected::any(Role::Site), |name| Expected::named(Role::Site, name));
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
