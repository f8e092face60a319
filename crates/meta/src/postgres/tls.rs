//! TLS for connections to PostgreSQL, with rustls. The server's certificate is always verified.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

use crate::engine_url::TlsFiles;

/// A connector that encrypts connections and verifies the server.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl Tls {
    /// Creates a connector that uses the certificates in `files`.
    ///
    /// # Errors
    /// If one of them cannot be read or used.
    pub(super) fn new(files: &TlsFiles) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?.with_root_certificates(roots(files)?);
        let config = match &files.identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let fail = |error: &dyn std::fmt::Display| format!("{}: {error}", cert.display());
                let chain =
                    CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
                let chain = chain.map_err(|error| fail(&error))?;
                let key = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| format!("{}: {error}", key.display()))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| fail(&error))?
            }
        };
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }
}

/// Returns the root certificates that the operator configured, or else those of the system.
fn roots(files: &TlsFiles) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(ca) = &files.ca else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    let fail = |error: &dyn std::fmt::Display| format!("{}: {error}", ca.display());
    for certificate in CertificateDer::pem_file_iter(ca).map_err(|error| fail(&error))? {
        roots.add(certificate.map_err(|error| fail(&error))?).map_err(|error| fail(&error))?;
    }
    Ok(roots)
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Stream;
    type TlsConnect = Connect;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Connect, InvalidDnsNameError> {
        Ok(Connect { connector: self.0.clone(), name: ServerName::try_from(host.to_owned())? })
    }
}

/// A connection before its TLS handshake.
pub(super) struct Connect {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl TlsConnect<Socket> for Connect {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move { Ok(Stream(self.connector.connect(self.name, socket).await?)) })
    }
}

/// A connection over TLS.
pub(super) struct Stream(tokio_rustls::client::TlsStream<Socket>);

impl TlsStream for Stream {
    /// None: the certificate has authenticated the server.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
