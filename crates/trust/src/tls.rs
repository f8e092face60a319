//! Connections on which both ends present certificates, and reloading of this process's own.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};
use striate_runtime::Runtime;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector, client};

/// A connection that a peer has opened and both ends have secured.
pub use tokio_rustls::server::TlsStream;

use crate::files::{Files, Material, TrustError};
use crate::peer::{ExpectedPeer, PeerName, Role};
use crate::verify::{AnswerVerifier, CallerVerifier, name_in};

/// Interval between checks of the files.
pub const RELOAD_EVERY: Duration = Duration::from_secs(10);
/// TLS requires a name; the verifier checks the one in the certificate instead.
const UNUSED_NAME: &str = "striate.invalid";

/// A process's identity, and the authorities that it trusts. Cheap to clone; clones see reloads.
#[derive(Clone)]
pub struct Trust {
    shared: Arc<Shared>,
}

struct Shared {
    runtime: Runtime,
    directory: PathBuf,
    provider: Arc<CryptoProvider>,
    current: RwLock<CurrentFiles>,
}

struct CurrentFiles {
    files: Files,
    material: Material,
}

/// Checks the validity of certificates by the runtime's wall clock.
struct WallClock(Runtime);

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WallClock")
    }
}

impl TimeProvider for WallClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(self.0.wall_time()))
    }
}

fn refused(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, error)
}

impl Trust {
    /// Loads the identity in a directory.
    ///
    /// # Errors
    /// If a file is missing or is not PEM, others can read the key, or the certificate names no process.
    pub fn load(runtime: &Runtime, directory: &Path) -> Result<Self, TrustError> {
        let provider = Arc::new(ring::default_provider());
        let files = Files::read(directory)?;
        let material = files.parse(directory, &provider)?;
        let current = RwLock::new(CurrentFiles { files, material });
        let shared = Shared { runtime: runtime.clone(), directory: directory.to_owned(), provider, current };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The name of this process.
    pub fn own_name(&self) -> PeerName {
        self.shared.current.read().material.name.clone()
    }

    /// Checks the files once. Returns `true` if they changed; new connections then use them. A certificate may be
    /// renewed, but not replaced by another process's.
    ///
    /// # Errors
    /// As [`Trust::load`]; the identity in use stays in use.
    pub fn reload(&self) -> Result<bool, TrustError> {
        let Shared { directory, provider, current, .. } = &*self.shared;
        let files = Files::read(directory)?;
        if files == current.read().files {
            return Ok(false);
        }
        let material = files.parse(directory, provider)?;
        let (old, new) = (self.own_name(), material.name.clone());
        if old != new {
            return Err(TrustError::other_process(directory, &old, &new));
        }
        *current.write() = CurrentFiles { files, material };
        Ok(true)
    }

    /// Checks the files periodically until the task is dropped.
    pub async fn watch(self) {
        let runtime = self.shared.runtime.clone();
        loop {
            runtime.sleep(RELOAD_EVERY).await;
            let watched = self.clone();
            match runtime.run_blocking(move || watched.reload()).await {
                Ok(true) => tracing::info!("the process's certificate was reloaded"),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "the certificate was not reloaded; the old one stays in use")
                }
            }
        }
    }

    fn material(&self) -> Material {
        self.shared.current.read().material.clone()
    }

    /// Secures a connection that this process has opened to the process `expected`.
    ///
    /// # Errors
    /// If another process answers, or the connection fails. A refusal by the other end may only show in the first read.
    pub async fn connect<S>(&self, stream: S, expected: &ExpectedPeer) -> io::Result<client::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Material { name, roots, own } = self.material();
        let (provider, clock) = (self.shared.provider.clone(), WallClock(self.shared.runtime.clone()));
        let verifier = AnswerVerifier {
            provider: provider.clone(),
            roots,
            cluster: name.cluster,
            expected: expected.clone(),
        };
        let mut config = ClientConfig::builder_with_details(provider, Arc::new(clock))
            .with_protocol_versions(&[&TLS13])
            .map_err(refused)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        let name = ServerName::try_from(UNUSED_NAME).map_err(refused)?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// Secures a connection that a peer has opened to this process, and returns the peer's name. Only the roles in
    /// `welcome` are admitted.
    ///
    /// # Errors
    /// If the peer is not admitted, or the connection fails.
    pub async fn accept<S>(&self, stream: S, welcome: &'static [Role]) -> io::Result<(TlsStream<S>, PeerName)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Material { name, roots, own } = self.material();
        let (provider, clock) = (self.shared.provider.clone(), WallClock(self.shared.runtime.clone()));
        let chain = CallerVerifier::chain(provider.clone(), roots).map_err(refused)?;
        let verifier = CallerVerifier { chain, cluster: name.cluster, welcome };
        let mut config = ServerConfig::builder_with_details(provider, Arc::new(clock))
            .with_protocol_versions(&[&TLS13])
            .map_err(refused)?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let peer = name_in(shown.ok_or_else(|| refused("the peer has shown no certificate"))?);
        Ok((stream, peer.map_err(refused)?))
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").field("name", &self.own_name().to_string()).finish_non_exhaustive()
    }
}
