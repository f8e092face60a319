//! What each end requires of the other's certificate.
//!
//! The chain must lead to the cluster's authority and be valid now (rustls checks both). The certificate must contain
//! one [`PeerName`] of this cluster, and its role (and name, if one is expected) must be the expected one. Host names
//! play no part: a process may move to another address.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};
use striate_core::ClusterId;

use crate::peer::{ExpectedPeer, PeerName, Role};

/// Why a certificate signed by the authority is not accepted.
struct CertificateRefusal(String);

/// Prints the reason only: rustls puts the debug form into its errors.
impl fmt::Debug for CertificateRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for CertificateRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CertificateRefusal {}

fn stranger(reason: String) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(CertificateRefusal(reason)))))
}

/// Returns the name in a certificate.
///
/// # Errors
/// If it has none, or more than one.
pub(crate) fn name_in(certificate: &CertificateDer<'_>) -> Result<PeerName, String> {
    let parsed = webpki::EndEntityCert::try_from(certificate).map_err(|error| error.to_string())?;
    let mut names = parsed.valid_uri_names().filter_map(|uri| uri.parse::<PeerName>().ok());
    let name = names.next().ok_or(
        "the certificate names no process of a cluster: it needs one subject alternative name \
         URI:striate://CLUSTER/ROLE/NAME",
    )?;
    match names.next() {
        None => Ok(name),
        Some(_) => Err("the certificate names more than one process".to_owned()),
    }
}

fn check_cluster(certificate: &CertificateDer<'_>, cluster: ClusterId) -> Result<PeerName, Error> {
    let name = name_in(certificate).map_err(stranger)?;
    match name.cluster == cluster {
        true => Ok(name),
        false => Err(stranger(format!("the certificate is of cluster {}, not {cluster}", name.cluster))),
    }
}

/// What a connecting process requires of the one that answers.
#[derive(Debug)]
pub(crate) struct AnswerVerifier {
    pub(crate) provider: Arc<CryptoProvider>,
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) cluster: ClusterId,
    pub(crate) expected: ExpectedPeer,
}

impl ServerCertVerifier for AnswerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        let name = check_cluster(end_entity, self.cluster)?;
        match self.expected.is_met_by(&name) {
            true => Ok(ServerCertVerified::assertion()),
            false => {
                Err(stranger(format!("the {} {} answers there, not {}", name.role, name.name, self.expected)))
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// What a listening process requires of its callers.
#[derive(Debug)]
pub(crate) struct CallerVerifier {
    /// Checks chain and signatures.
    pub(crate) chain: Arc<dyn ClientCertVerifier>,
    pub(crate) cluster: ClusterId,
    pub(crate) welcome: &'static [Role],
}

impl CallerVerifier {
    /// Builds the verifier of chains up to `roots`.
    pub(crate) fn chain(
        provider: Arc<CryptoProvider>,
        roots: Arc<RootCertStore>,
    ) -> Result<Arc<dyn ClientCertVerifier>, String> {
        let builder = WebPkiClientVerifier::builder_with_provider(roots, provider);
        builder.build().map_err(|error| error.to_string())
    }
}

impl ClientCertVerifier for CallerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A stranger should not learn whose cluster this is.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        let name = check_cluster(end_entity, self.cluster)?;
        match self.welcome.contains(&name.role) {
            true => Ok(verified),
            false => Err(stranger(format!("the {} {} has no business here", name.role, name.name))),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
