//! Whose certificates our S3 client trusts: the system's, and those of a file.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::failure::{Failure, Outcome};

/// A TLS configuration that trusts the system's roots and the certificates in `ca_file` (PEM).
///
/// # Errors
/// When the file cannot be read or holds no certificate.
pub fn client_config(ca_file: Option<&Path>) -> Outcome<ClientConfig> {
    let mut roots = RootCertStore::empty();
    // A machine without root certificates can still use plain HTTP and `--ca-file`.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        let fail = |reason: String| Failure::refused(format!("--ca-file {}: {reason}", path.display()));
        let certificates = CertificateDer::pem_file_iter(path).map_err(|error| fail(error.to_string()))?;
        let before = roots.len();
        for certificate in certificates {
            let certificate = certificate.map_err(|error| fail(error.to_string()))?;
            roots.add(certificate).map_err(|error| fail(error.to_string()))?;
        }
        if roots.len() == before {
            return Err(fail("it holds no certificate".to_owned()));
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions");
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
