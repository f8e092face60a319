//! TLS: certificates from a directory, and their reload without a restart. The certificates belong to these tests
//! alone; their authority's key was thrown away.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use striate_s3::Certificates;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::fixture::{Fixture, limits};
use crate::wire::Request;

const AUTHORITY: &[u8] = include_bytes!("certificates/authority.crt");
const FIRST: (&[u8], &[u8]) =
    (include_bytes!("certificates/first.crt"), include_bytes!("certificates/first.key"));
const SECOND: (&[u8], &[u8]) =
    (include_bytes!("certificates/second.crt"), include_bytes!("certificates/second.key"));

fn write(directory: &Path, (public, private): (&[u8], &[u8])) {
    std::fs::write(directory.join("public.crt"), public).unwrap();
    std::fs::write(directory.join("private.key"), private).unwrap();
}

async fn connect(fixture: &Fixture) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(AUTHORITY).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(fixture.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

/// Requests the health path over TLS. Returns the status line and the server's certificate.
async fn ask(fixture: &Fixture) -> (String, Vec<u8>) {
    let mut stream = connect(fixture).await;
    stream.write_all(b"GET /minio/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = [0; 15];
    stream.read_exact(&mut answer).await.unwrap();
    let certificate = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    (String::from_utf8(answer.into()).unwrap(), certificate)
}

#[tokio::test]
async fn certificates_are_served_and_reloaded_and_broken_ones_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    assert!(Certificates::load(directory.path()).unwrap_err().to_string().contains("public.crt"));
    write(directory.path(), FIRST);
    let certificates = Certificates::load(directory.path()).unwrap();
    let fixture = Fixture::open_secure(limits(), certificates.clone()).await;
    let der = |pem: &[u8]| CertificateDer::from_pem_slice(pem).unwrap().to_vec();
    assert_eq!(ask(&fixture).await, ("HTTP/1.1 200 OK".to_owned(), der(FIRST.0)));
    assert!(!certificates.reload().unwrap());

    // A key that belongs to another certificate, as between the copies of two files.
    std::fs::write(directory.path().join("public.crt"), SECOND.0).unwrap();
    assert!(certificates.reload().unwrap_err().to_string().contains("private.key"));
    assert_eq!(ask(&fixture).await.1, der(FIRST.0));
    write(directory.path(), SECOND);
    assert!(certificates.reload().unwrap());
    assert_eq!(ask(&fixture).await.1, der(SECOND.0));
}

/// As without TLS: a connection that is closed over unread bytes is reset, and the response lost.
#[tokio::test]
async fn an_answer_reaches_a_client_that_sends_all_of_its_body_first() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), FIRST);
    let fixture = Fixture::open_secure(limits(), Certificates::load(directory.path()).unwrap()).await;
    let mut stream = connect(&fixture).await;
    let head = b"PUT /bucket/k HTTP/1.1\r\nhost: localhost\r\ncontent-length: 33554432\r\n\r\n";
    stream.write_all(head).await.unwrap();
    stream.write_all(&vec![7; 32 << 20]).await.expect("the server reads while the client sends");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("the answer is not reset");
    let answer = String::from_utf8(answer).unwrap().to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 403") && answer.contains("connection: close"), "{answer}");
    assert!(answer.ends_with("</error>"), "{answer}");
}

#[tokio::test]
async fn an_object_that_was_completed_over_tls_is_named_with_https() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), FIRST);
    let fixture = Fixture::open_secure(limits(), Certificates::load(directory.path()).unwrap()).await;
    let send = async |mut request: Request| {
        fixture.signer().sign(&mut request);
        let mut stream = connect(&fixture).await;
        stream.write_all(request.head().as_bytes()).await.unwrap();
        stream.write_all(&request.body).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        // The server may close without a notice of TLS.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    };
    let element = |answer: &str, name: &str| {
        let (_, text) = answer.split_once(&format!("<{name}>")).unwrap_or_else(|| panic!("{answer}"));
        text.split('<').next().unwrap_or_default().to_owned()
    };
    send(Request::new("PUT", "/bucket")).await;
    let upload = element(&send(Request::new("POST", "/bucket/k?uploads")).await, "UploadId");
    send(Request::new("PUT", &format!("/bucket/k?partNumber=1&uploadId={upload}")).body(b"x")).await;
    // MD5 of "x".
    let part = "<PartNumber>1</PartNumber><ETag>9dd4e461268c8034f5c8564e155c67a6</ETag>";
    let parts = format!("<CompleteMultipartUpload><Part>{part}</Part></CompleteMultipartUpload>");
    let complete = Request::new("POST", &format!("/bucket/k?uploadId={upload}")).body(parts.as_bytes());
    let completed = send(complete).await;
    let location = element(&completed, "Location");
    assert!(location.starts_with("https://") && location.ends_with("/bucket/k"), "{location}");
}
