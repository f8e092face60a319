//! The transport between a site and its clients: accepted connections, outgoing connections, and the executor of their
//! streams. Both ends of the [`protocol`](crate::protocol) use these traits, so that tests and the lab can put another
//! network under them.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::IpAddr;

use async_trait::async_trait;
use striate_runtime::Runtime;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

/// Bytes of a reply that the kernel takes before it has sent them. What waits for a slow network should wait at the
/// site, which counts it.
const UNSENT_BYTES: u32 = 256 << 10;

/// A bidirectional byte stream: one connection.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// An accepted connection.
pub struct Accepted {
    /// The connection.
    pub stream: Box<dyn ByteStream>,
    /// Address of the peer, if the network has addresses.
    pub address: Option<IpAddr>,
}

/// Accepts connections.
#[async_trait]
pub trait Listener: Send + Sync {
    /// Returns the next connection. An error concerns that connection only, not the listener.
    async fn accept(&self) -> io::Result<Accepted>;
}

#[async_trait]
impl Listener for TcpListener {
    async fn accept(&self) -> io::Result<Accepted> {
        let (stream, peer) = TcpListener::accept(self).await?;
        // A peer that is gone already refuses them; its first read tells.
        let _ = stream.set_nodelay(true);
        let _ = socket2::SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES);
        Ok(Accepted { stream: Box::new(stream), address: Some(peer.ip()) })
    }
}

/// Makes connections.
#[async_trait]
pub trait Connector: Send + Sync + fmt::Debug {
    /// Connects to `address` (`HOST:PORT`).
    async fn connect(&self, address: &str) -> io::Result<Box<dyn ByteStream>>;
}

/// Plain TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpConnector;

#[async_trait]
impl Connector for TcpConnector {
    async fn connect(&self, address: &str) -> io::Result<Box<dyn ByteStream>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}

/// Runs the tasks of hyper's HTTP/2 streams on the runtime.
#[derive(Clone, Debug)]
pub struct RuntimeExecutor(pub Runtime);

impl<F> hyper::rt::Executor<F> for RuntimeExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}
