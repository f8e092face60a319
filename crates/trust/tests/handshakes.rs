//! Which peers are admitted, which are refused, and how certificates are renewed.

use std::path::Path;
use std::time::Duration;

use striate_core::ClusterId;
use striate_runtime::Runtime;
use striate_trust::{Authority, ExpectedPeer, Role, Trust};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

const CLUSTER: ClusterId = ClusterId(0xc1);
const DAY: Duration = Duration::from_secs(24 * 3600);
const CALLERS: &[Role] = &[Role::Gateway, Role::Site];

/// A folder with an authority and the identities that it issues.
struct Folder {
    root: tempfile::TempDir,
    runtime: Runtime,
    authority: Authority,
}

impl Folder {
    fn new(cluster: ClusterId) -> Self {
        let (root, runtime) = (tempfile::tempdir().unwrap(), Runtime::real());
        let authority = Authority::create(&runtime, &root.path().join("ca"), cluster).unwrap();
        Self { root, runtime, authority }
    }

    fn path(&self) -> &Path {
        self.root.path()
    }

    fn trust(&self, role: Role, name: &str) -> Trust {
        let directory = self.path().join(format!("{role}-{name}"));
        self.authority.issue(&self.runtime, role, name, DAY).unwrap().write(&directory).unwrap();
        Trust::load(&self.runtime, &directory).unwrap()
    }
}

/// Connects two processes and sends a byte. Returns the results of both ends. The caller reads, because that is where a
/// refusal reaches it.
async fn meet(
    caller: &Trust,
    expected: ExpectedPeer,
    site: &Trust,
) -> (Result<u8, String>, Result<String, String>) {
    let (near, far): (DuplexStream, DuplexStream) = duplex(1 << 16);
    let calling = async {
        let mut stream = caller.connect(near, &expected).await.map_err(|error| error.to_string())?;
        stream.read_u8().await.map_err(|error| error.to_string())
    };
    let answering = async {
        let (mut stream, peer) = site.accept(far, CALLERS).await.map_err(|error| error.to_string())?;
        stream.write_u8(7).await.map_err(|error| error.to_string())?;
        stream.flush().await.map_err(|error| error.to_string())?;
        Ok(peer.to_string())
    };
    tokio::join!(calling, answering)
}

#[tokio::test]
async fn peers_of_one_cluster_learn_each_others_names() {
    let folder = Folder::new(CLUSTER);
    let (gateway, site) = (folder.trust(Role::Gateway, "g1"), folder.trust(Role::Site, "s1"));
    for expected in [ExpectedPeer::any(Role::Site), ExpectedPeer::named(Role::Site, "s1")] {
        let (called, answered) = meet(&gateway, expected, &site).await;
        assert_eq!(called, Ok(7));
        assert_eq!(answered, Ok(format!("striate://{CLUSTER}/gateway/g1")));
    }
}

#[tokio::test]
async fn strangers_are_refused_in_the_handshake() {
    let (folder, other) = (Folder::new(CLUSTER), Folder::new(ClusterId(9)));
    let site = folder.trust(Role::Site, "s1");
    let any = || ExpectedPeer::any(Role::Site);
    // Signed by another authority, although it names the same cluster.
    let forger = Folder::new(CLUSTER).trust(Role::Gateway, "g1");
    let (called, answered) = meet(&forger, any(), &site).await;
    assert!(called.is_err() && answered.is_err(), "{called:?} {answered:?}");
    // From another cluster, whose authority is trusted by mistake.
    let elsewhere = other.trust(Role::Gateway, "g1");
    let both =
        [&folder, &other].map(|folder| std::fs::read_to_string(folder.path().join("ca/ca.crt")).unwrap());
    for (folder, identity, trust) in [(&folder, "site-s1", &site), (&other, "gateway-g1", &elsewhere)] {
        std::fs::write(folder.path().join(identity).join("ca.crt"), both.concat()).unwrap();
        assert!(trust.reload().unwrap());
    }
    let (called, answered) = meet(&elsewhere, any(), &site).await;
    let reason = called.unwrap_err();
    assert!(reason.contains(&format!("of cluster {CLUSTER}")) && answered.is_err(), "{reason}");
    // A role that is not admitted.
    let control = folder.trust(Role::Control, "c");
    let (called, answered) = meet(&control, any(), &site).await;
    assert!(called.is_err() && answered.unwrap_err().contains("no business here"));
    // A peer that presents no certificate.
    let (near, far) = duplex(1 << 16);
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    let pem = std::fs::read(folder.path().join("ca/ca.crt")).unwrap();
    let certificate =
        <rustls::pki_types::CertificateDer<'_> as rustls::pki_types::pem::PemObject>::from_pem_slice(&pem);
    roots.add(certificate.unwrap()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let name = rustls::pki_types::ServerName::try_from("x.invalid").unwrap();
    let (called, answered) = tokio::join!(connector.connect(name, near), site.accept(far, CALLERS));
    assert!(called.is_err() && answered.is_err());
}

#[tokio::test]
async fn another_process_than_the_one_meant_is_named() {
    let folder = Folder::new(CLUSTER);
    let (gateway, site) = (folder.trust(Role::Gateway, "g1"), folder.trust(Role::Site, "s1"));
    let (called, _) = meet(&gateway, ExpectedPeer::named(Role::Site, "s2"), &site).await;
    let reason = called.unwrap_err();
    assert!(reason.contains("the site s1 answers there, not the site s2"), "{reason}");
    let (called, _) = meet(&gateway, ExpectedPeer::any(Role::Control), &site).await;
    assert!(called.unwrap_err().contains("not a control"));
}

#[tokio::test]
async fn certificates_end_by_the_runtimes_clock() {
    let mut folder = Folder::new(CLUSTER);
    let (gateway, site) = (folder.trust(Role::Gateway, "g1"), folder.trust(Role::Site, "s1"));
    let later = Runtime::deterministic(1, folder.runtime.wall_time() + 2 * DAY);
    folder.runtime = later.clone();
    let site_later = Trust::load(&later, &folder.path().join("site-s1")).unwrap();
    let (called, answered) = meet(&gateway, ExpectedPeer::any(Role::Site), &site_later).await;
    assert!(called.is_err() && answered.unwrap_err().contains("expired"));
    assert_eq!(meet(&gateway, ExpectedPeer::any(Role::Site), &site).await.0, Ok(7));
}

#[tokio::test]
async fn a_renewed_certificate_is_taken_and_another_processs_is_not() {
    let folder = Folder::new(CLUSTER);
    let (gateway, site) = (folder.trust(Role::Gateway, "g1"), folder.trust(Role::Site, "s1"));
    let directory = folder.path().join("site-s1");
    assert!(!site.reload().unwrap(), "nothing has changed");
    // A whole new authority: its certificate is added beside the old one first.
    let new = Authority::create(&folder.runtime, &folder.path().join("new"), CLUSTER).unwrap();
    new.issue(&folder.runtime, Role::Site, "s1", DAY).unwrap().write(&directory).unwrap();
    let both =
        ["ca/ca.crt", "new/ca.crt"].map(|file| std::fs::read_to_string(folder.path().join(file)).unwrap());
    std::fs::write(directory.join("ca.crt"), both.concat()).unwrap();
    assert!(site.reload().unwrap());
    let (called, _) = meet(&gateway, ExpectedPeer::any(Role::Site), &site).await;
    assert!(called.is_err(), "the gateway does not know the new authority yet");
    std::fs::write(folder.path().join("gateway-g1/ca.crt"), both.concat()).unwrap();
    assert!(gateway.reload().unwrap());
    assert_eq!(meet(&gateway, ExpectedPeer::any(Role::Site), &site).await.0, Ok(7));

    std::fs::write(directory.join("tls.crt"), "not a certificate").unwrap();
    site.reload().unwrap_err();
    folder.authority.issue(&folder.runtime, Role::Site, "s2", DAY).unwrap().write(&directory).unwrap();
    let error = site.reload().unwrap_err().to_string();
    assert!(error.contains("site/s2") && error.contains("restart"), "{error}");
    assert_eq!(
        meet(&gateway, ExpectedPeer::any(Role::Site), &site).await.0,
        Ok(7),
        "the old one stays in use"
    );
}

#[test]
fn an_authority_is_made_once_and_its_key_is_nobody_elses() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new(CLUSTER);
    let directory = folder.path().join("ca");
    assert!(Authority::create(&folder.runtime, &directory, CLUSTER).is_err());
    assert_eq!(Authority::read(&directory).unwrap().cluster(), CLUSTER);
    let mode = std::fs::metadata(directory.join("ca.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    folder.trust(Role::Site, "s1");
    let key = folder.path().join("site-s1/tls.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = Trust::load(&folder.runtime, &folder.path().join("site-s1")).unwrap_err().to_string();
    assert!(error.contains("chmod 600"), "{error}");
    let issue = |name: &str| folder.authority.issue(&folder.runtime, Role::Site, name, DAY);
    assert!(issue("a/b").is_err() && issue("").is_err());
}
