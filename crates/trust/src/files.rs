//! The files of a process's identity.
//!
//! ```text
//! DIR/ca.crt    trusted authorities: the cluster's certificate, several during a replacement   PEM
//! DIR/tls.crt   this process's certificate, then those between it and the authority            PEM
//! DIR/tls.key   its private key; others must not be able to read it                            PEM
//! ```
//!
//! The names are those of a Kubernetes TLS secret, as written by certificate managers.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use zeroize::Zeroizing;

use crate::peer::PeerName;
use crate::verify::name_in;

/// File of the authority's certificates.
pub const AUTHORITY_FILE: &str = "ca.crt";
/// File of the process's certificate.
pub const CERTIFICATE_FILE: &str = "tls.crt";
/// File of the process's private key.
pub const KEY_FILE: &str = "tls.key";

/// Why an identity cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "{path}: {reason}; an identity is a directory with {AUTHORITY_FILE}, {CERTIFICATE_FILE} and {KEY_FILE}, as \
     `striate admin certificate` makes it"
)]
pub struct TrustError {
    path: PathBuf,
    reason: String,
}

impl TrustError {
    pub(crate) fn other_process(directory: &Path, old: &PeerName, new: &PeerName) -> Self {
        let reason = format!("it is now {new}, and this process is {old}; restart the process to change it");
        Self { path: directory.join(CERTIFICATE_FILE), reason }
    }
}

/// Contents of the three files.
#[derive(PartialEq, Eq)]
pub(crate) struct Files {
    authority: Vec<u8>,
    certificate: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
}

/// Parsed contents of the three files.
#[derive(Clone)]
pub(crate) struct Material {
    pub(crate) name: PeerName,
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) own: Arc<CertifiedKey>,
}

impl Files {
    pub(crate) fn read(directory: &Path) -> Result<Self, TrustError> {
        let read = |name: &str| {
            let path = directory.join(name);
            std::fs::read(&path).map_err(|error| TrustError { path, reason: error.to_string() })
        };
        let path = directory.join(KEY_FILE);
        if let Ok(metadata) = std::fs::metadata(&path)
            && metadata.permissions().mode() & 0o007 != 0
        {
            return Err(TrustError { path, reason: "everybody can read it; chmod 600 it".to_owned() });
        }
        Ok(Self {
            authority: read(AUTHORITY_FILE)?,
            certificate: read(CERTIFICATE_FILE)?,
            key: Zeroizing::new(read(KEY_FILE)?),
        })
    }

    pub(crate) fn parse(&self, directory: &Path, provider: &CryptoProvider) -> Result<Material, TrustError> {
        let fail = |name: &str, reason: String| TrustError { path: directory.join(name), reason };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.authority).map_err(|e| fail(AUTHORITY_FILE, e))? {
            roots.add(certificate).map_err(|error| fail(AUTHORITY_FILE, error.to_string()))?;
        }
        let chain = certificates(&self.certificate).map_err(|e| fail(CERTIFICATE_FILE, e))?;
        let name = name_in(&chain[0]).map_err(|reason| fail(CERTIFICATE_FILE, reason))?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| fail(KEY_FILE, format!("it holds no private key ({error})")))?;
        let own = CertifiedKey::from_der(chain, key, provider);
        let own = own.map_err(|error| fail(KEY_FILE, error.to_string()))?;
        Ok(Material { name, roots: Arc::new(roots), own: Arc::new(own) })
    }
}

/// Parses at least one certificate.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| error.to_string())?;
    if all.is_empty() { Err("it holds no certificate".to_owned()) } else { Ok(all) }
}
