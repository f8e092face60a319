//! Certificates of the TLS listener, which are reloaded without a restart.
//!
//! A directory holds `public.crt` (the chain, the server's own certificate first) and `private.key`, both PEM, in the
//! layout that MinIO uses. The files are checked every [`RELOAD_EVERY`]. If they have changed and are valid together,
//! new handshakes use them; if they are not valid, the old ones stay in use and a warning is logged.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use striate_runtime::Runtime;

/// Interval between checks of the files.
pub const RELOAD_EVERY: Duration = Duration::from_secs(10);

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}; --certs needs a directory with public.crt and private.key in PEM")]
pub struct CertificateError {
    path: PathBuf,
    reason: String,
}

/// The certificates of a directory. Cheap to clone; clones see reloads.
#[derive(Clone)]
pub struct Certificates {
    shared: Arc<Shared>,
}

struct Shared {
    directory: PathBuf,
    current: RwLock<LoadedCertificate>,
    config: std::sync::OnceLock<Arc<ServerConfig>>,
}

/// Name of the private key's file.
const PRIVATE_FILE: &str = "private.key";

#[derive(Clone)]
struct LoadedCertificate {
    public: Vec<u8>,
    key: Arc<CertifiedKey>,
    private_digest: [u8; 32],
}

impl Certificates {
    /// Loads the certificates of a directory.
    ///
    /// # Errors
    /// When a file is missing or not PEM, or the key does not belong to the certificate.
    pub fn load(directory: &Path) -> Result<Self, CertificateError> {
        let current = RwLock::new(LoadedCertificate::read(directory)?);
        let shared = Shared { directory: directory.to_owned(), current, config: Default::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Checks the files once. Returns whether they have changed and are now in use.
    ///
    /// # Errors
    /// As [`Certificates::load`]; the old certificates stay in use.
    pub fn reload(&self) -> Result<bool, CertificateError> {
        let read = LoadedCertificate::read(&self.shared.directory)?;
        let mut current = self.shared.current.write();
        let changed = current.public != read.public || current.private_digest != read.private_digest;
        if changed {
            *current = read;
        }
        Ok(changed)
    }

    /// Returns a warning if everybody on this machine may read the private key. Its group may: servers with a certificate
    /// in common, and secrets of Kubernetes, need that.
    pub fn exposed_key(&self) -> Option<String> {
        use std::os::unix::fs::PermissionsExt;
        let path = self.shared.directory.join(PRIVATE_FILE);
        let mode = std::fs::metadata(&path).ok()?.permissions().mode() & 0o777;
        (mode & 0o007 != 0).then(|| {
            format!("every user of this machine can read {} (mode {mode:04o}): chmod 600 it", path.display())
        })
    }

    /// Checks the files until the task is dropped. The gateway runs it beside its TLS listener.
    pub(crate) async fn watch(&self, runtime: &Runtime) {
        loop {
            runtime.sleep(RELOAD_EVERY).await;
            let this = self.clone();
            match runtime.run_blocking(move || this.reload()).await {
                Ok(true) => tracing::info!("certificates reloaded"),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "certificates not reloaded; the old ones stay in use"),
            }
        }
    }

    pub(crate) fn server_config(&self) -> Arc<ServerConfig> {
        let make = || {
            let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("ring supports the default protocol versions")
                .with_no_client_auth();
            let mut config = builder.with_cert_resolver(Arc::new(self.clone()));
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Arc::new(config)
        };
        Arc::clone(self.shared.config.get_or_init(make))
    }
}

impl LoadedCertificate {
    fn read(directory: &Path) -> Result<Self, CertificateError> {
        let file = |name: &str| {
            let path = directory.join(name);
            let bytes = std::fs::read(&path);
            let bytes = bytes.map_err(|e| CertificateError { path: path.clone(), reason: e.to_string() })?;
            Ok((path, zeroize::Zeroizing::new(bytes)))
        };
        let (public_path, public) = file("public.crt")?;
        let (private_path, private) = file(PRIVATE_FILE)?;
        let fail = |path: &Path, reason: String| CertificateError { path: path.to_owned(), reason };
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&public)
            .collect::<Result<_, _>>()
            .map_err(|error| fail(&public_path, error.to_string()))?;
        if chain.is_empty() {
            return Err(fail(&public_path, "it holds no certificate".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(&private)
            .map_err(|error| fail(&private_path, format!("it holds no private key ({error})")))?;
        let key = CertifiedKey::from_der(chain, key, &ring::default_provider())
            .map_err(|error| fail(&private_path, error.to_string()))?;
        let private_digest = <sha2::Sha256 as sha2::Digest>::digest(&private[..]).into();
        Ok(Self { public: public.to_vec(), key: Arc::new(key), private_digest })
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.shared.current.read().key))
    }
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").field("directory", &self.shared.directory).finish_non_exhaustive()
    }
}
