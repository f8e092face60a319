//! The transport between a site and its clients: accepted connections, outgoing connections, and the executor of their
//! streams. Both ends of the [`protocol`](crate::protocol) use these traits, so that tests and the lab can put another
//! network under them.

use std::fmt;
use std::future::Future;
use std::io;

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

/// Accepts connections.
#[async_trait]
pub trait Listener: Send {
    /// Returns the next connection. An error concerns that connection only, not the listener.
    async fn accept(&mut self) -> io::Result<Box<dyn ByteStream>>;
}

#[async_trait]
impl Listener for TcpListener {
    async fn accept(&mut self) -> io::Result<Box<dyn ByteStream>> {
        let (stream, _) = TcpListener::accept(self).await?;
        stream.set_nodelay(true)?;
        socket2::SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES)?;
        Ok(Box::new(stream))
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
