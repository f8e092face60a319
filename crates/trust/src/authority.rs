//! The authority of a cluster: a certificate that every process trusts, and the key that signs the processes'
//! certificates.
//!
//! ```text
//! DIR/ca.crt    the authority's certificate; it names the cluster (striate://CLUSTER/ca)    PEM
//! DIR/ca.key    its private key, mode 0600: keep it away from the cluster's machines        PEM
//! ```
//!
//! Keys are ECDSA on P-256, which every TLS library supports. An operator with an existing authority can use that
//! instead: only the name in the certificates matters (see [`crate::PeerName`]).

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use striate_core::ClusterId;
use striate_runtime::Runtime;
use time::OffsetDateTime;
use zeroize::Zeroizing;

use crate::files::{AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE};
use crate::peer::{PeerName, Role};

/// File of the authority's private key.
pub const AUTHORITY_KEY_FILE: &str = "ca.key";
const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Certificates are valid from this long before they are made, for clocks that are behind.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// Why an authority could not be created, read or used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct AuthorityError {
    path: PathBuf,
    reason: String,
}

fn fail(path: impl Into<PathBuf>, reason: impl ToString) -> AuthorityError {
    AuthorityError { path: path.into(), reason: reason.to_string() }
}

/// An authority and its private key.
pub struct Authority {
    directory: PathBuf,
    cluster: ClusterId,
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A process's certificate and private key, in PEM.
pub struct IssuedCertificate {
    authority: String,
    certificate: String,
    key: Zeroizing<String>,
}

impl Authority {
    /// Creates the authority of a new cluster in a directory. Creates the directory if needed.
    ///
    /// # Errors
    /// If the directory already has an authority, or cannot be written.
    pub fn create(runtime: &Runtime, directory: &Path, cluster: ClusterId) -> Result<Self, AuthorityError> {
        std::fs::create_dir_all(directory).map_err(|error| fail(directory, error))?;
        let (certificate_path, key_path) =
            (directory.join(AUTHORITY_FILE), directory.join(AUTHORITY_KEY_FILE));
        let key = KeyPair::generate().map_err(|error| fail(&key_path, error))?;
        let mut params = params(cluster).map_err(|error| fail(&certificate_path, error))?;
        (params.not_before, params.not_after) =
            life(runtime, AUTHORITY_LIFE).map_err(|error| fail(&certificate_path, error))?;
        let signed = params.self_signed(&key).map_err(|error| fail(&certificate_path, error))?;
        write_new(&key_path, 0o600, key.serialize_pem().as_bytes())?;
        write_new(&certificate_path, 0o644, signed.pem().as_bytes())?;
        let (directory, issuer) = (directory.to_owned(), Issuer::new(params, key));
        Ok(Self { directory, cluster, certificate_pem: signed.pem(), issuer })
    }

    /// Reads an authority that [`Authority::create`] created.
    ///
    /// # Errors
    /// If a file is missing or is not that of an authority.
    pub fn read(directory: &Path) -> Result<Self, AuthorityError> {
        let (certificate_path, key_path) =
            (directory.join(AUTHORITY_FILE), directory.join(AUTHORITY_KEY_FILE));
        let read = |path: &Path| std::fs::read_to_string(path).map_err(|error| fail(path, error));
        let certificate_pem = read(&certificate_path)?;
        let key = Zeroizing::new(read(&key_path)?);
        let key = KeyPair::from_pem(&key).map_err(|error| fail(&key_path, error))?;
        let cluster = cluster_in(&certificate_pem).map_err(|reason| fail(&certificate_path, reason))?;
        let params = params(cluster).map_err(|error| fail(&certificate_path, error))?;
        let (directory, issuer) = (directory.to_owned(), Issuer::new(params, key));
        Ok(Self { directory, cluster, certificate_pem, issuer })
    }

    /// The cluster of the authority.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Issues a certificate for the process `name` that is valid for `life_time`.
    ///
    /// # Errors
    /// If the name or the time is invalid.
    pub fn issue(
        &self,
        runtime: &Runtime,
        role: Role,
        name: &str,
        life_time: Duration,
    ) -> Result<IssuedCertificate, AuthorityError> {
        let here = |reason: String| fail(&self.directory, reason);
        let name = PeerName::new(self.cluster, role, name).map_err(here)?;
        let make = || -> Result<IssuedCertificate, String> {
            let key = KeyPair::generate().map_err(|error| error.to_string())?;
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, format!("{} {}", name.role, name.name));
            let uri = name.to_string().try_into().map_err(|error: rcgen::Error| error.to_string())?;
            params.subject_alt_names = vec![SanType::URI(uri)];
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages =
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            params.use_authority_key_identifier_extension = true;
            (params.not_before, params.not_after) = life(runtime, life_time)?;
            let signed = params.signed_by(&key, &self.issuer).map_err(|error| error.to_string())?;
            Ok(IssuedCertificate {
                authority: self.certificate_pem.clone(),
                certificate: signed.pem(),
                key: Zeroizing::new(key.serialize_pem()),
            })
        };
        make().map_err(here)
    }
}

impl IssuedCertificate {
    /// Writes the identity into a directory. Creates the directory if needed. Replaces an existing identity file by
    /// file; a running process adopts the new one once all three files belong together.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn write(&self, directory: &Path) -> Result<(), AuthorityError> {
        std::fs::create_dir_all(directory).map_err(|error| fail(directory, error))?;
        for (name, mode, text) in [
            (AUTHORITY_FILE, 0o644, self.authority.as_str()),
            (CERTIFICATE_FILE, 0o644, &self.certificate),
            (KEY_FILE, 0o600, &self.key),
        ] {
            let (path, temporary) = (directory.join(name), directory.join(format!("{name}.new")));
            // An interrupted attempt may have left this file.
            let _ = std::fs::remove_file(&temporary);
            write_new(&temporary, mode, text.as_bytes())?;
            std::fs::rename(&temporary, &path).map_err(|error| fail(path, error))?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

fn authority_uri(cluster: ClusterId) -> String {
    format!("striate://{cluster}/ca")
}

/// The authority's certificate except for its validity. It must be the same at every start: certificates refer to their
/// issuer by these fields.
fn params(cluster: ClusterId) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("striate cluster {cluster}"));
    params.subject_alt_names = vec![SanType::URI(authority_uri(cluster).try_into()?)];
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// Returns the cluster that an authority's certificate names.
fn cluster_in(pem: &str) -> Result<ClusterId, String> {
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| error.to_string())?;
    let parsed = webpki::EndEntityCert::try_from(&certificate).map_err(|error| error.to_string())?;
    let cluster = parsed.valid_uri_names().find_map(|uri| {
        let cluster: ClusterId = uri.strip_prefix("striate://")?.strip_suffix("/ca")?.parse().ok()?;
        Some(cluster)
    });
    cluster.ok_or_else(|| {
        "it names no cluster: `striate admin init` makes authorities that do; use the tools of your own for others"
            .to_owned()
    })
}

fn life(runtime: &Runtime, length: Duration) -> Result<(OffsetDateTime, OffsetDateTime), String> {
    let now = runtime.wall_time();
    let at = |since_epoch: Duration| {
        let seconds = i64::try_from(since_epoch.as_secs()).map_err(|error| error.to_string())?;
        OffsetDateTime::from_unix_timestamp(seconds).map_err(|error| error.to_string())
    };
    Ok((at(now.saturating_sub(CLOCK_SKEW))?, at(now.saturating_add(length))?))
}

fn write_new(path: &Path, mode: u32, bytes: &[u8]) -> Result<(), AuthorityError> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|error: std::io::Error| fail(path, error))
}
