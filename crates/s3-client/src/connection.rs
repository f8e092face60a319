//! Connections to S3 stores: HTTP/1.1 over TCP or TLS, with reuse.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, ResponseFuture};
use hyper_util::rt::TokioExecutor;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Time after which an idle connection is not reused. Servers close idle connections after some 20 s or more, and a
/// request that crosses with the close would fail.
const IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for a connection attempt to an address.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Idle time after which TCP probes a silent peer.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The body of a request.
pub type RequestBody = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// Makes a body of bytes in memory.
pub fn whole(bytes: Bytes) -> RequestBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// Sends requests over `http` and `https`. Cheap to clone; clones share connections.
///
/// There is one type of body, so the HTTP client is compiled here, once.
#[derive(Clone, Debug)]
pub struct HttpClient(Client<HttpsConnector<HttpConnector>, RequestBody>);

impl HttpClient {
    /// Creates a client that trusts what `tls` trusts.
    pub fn new(tls: ClientConfig) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_WITHIN));
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Self(
            Client::builder(TokioExecutor::new()).pool_idle_timeout(IDLE_CONNECTION_TIMEOUT).build(connector),
        )
    }

    /// Sends a request once. Only a reused connection that turns out to be closed before anything was sent is replaced.
    /// Fails with the client's error if there is no response.
    pub fn request(&self, request: Request<RequestBody>) -> ResponseFuture {
        self.0.request(request)
    }
}

/// A certificate file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct CaFileError {
    path: PathBuf,
    reason: String,
}

/// Returns a TLS configuration that trusts the system's roots and the certificates in `ca_file` (PEM).
///
/// # Errors
/// If the file cannot be read or contains no certificate.
pub fn client_config(ca_file: Option<&Path>) -> Result<ClientConfig, CaFileError> {
    let mut roots = RootCertStore::empty();
    // A machine without root certificates can still use plain HTTP, or a certificate file.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        add_certificates(&mut roots, path)
            .map_err(|error| CaFileError { path: path.to_owned(), reason: error.to_string() })?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions");
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn add_certificates(roots: &mut RootCertStore, path: &Path) -> Result<(), Box<dyn Error>> {
    let before = roots.len();
    for certificate in CertificateDer::pem_file_iter(path)? {
        roots.add(certificate?)?;
    }
    if roots.len() == before { Err("it holds no certificate".into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use rcgen::CertifiedKey;
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    #[test]
    fn a_file_without_certificates_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = client_config(Some(file.path())).unwrap_err();
        assert_eq!(error.to_string(), format!("{}: it holds no certificate", file.path().display()));
        assert!(client_config(Some(Path::new("/nonexistent.pem"))).is_err());
        assert!(client_config(None).is_ok());
    }

    /// Answers every request with an empty 200 response.
    async fn serve(listener: TcpListener, tls: TlsAcceptor) {
        loop {
            let Ok(mut stream) = tls.accept(listener.accept().await.unwrap().0).await else { continue };
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            stream.flush().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_servers_certificate_is_trusted_when_it_was_given_and_else_not() {
        let CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri: http::Uri =
            format!("https://localhost:{}/", listener.local_addr().unwrap().port()).parse().unwrap();
        let ask = async |ca_file| {
            let request = Request::get(uri.clone()).body(whole(Bytes::new())).unwrap();
            HttpClient::new(client_config(ca_file).unwrap()).request(request).await
        };
        tokio::select! {
            () = serve(listener, TlsAcceptor::from(Arc::new(config))) => unreachable!("it serves for ever"),
            () = async {
                assert!(ask(None).await.is_err());
                assert!(ask(Some(file.path())).await.unwrap().status().is_success());
            } => {}
        }
    }
}
