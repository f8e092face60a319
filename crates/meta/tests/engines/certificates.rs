//! An authority, and certificates of a server at 127.0.0.1 and of the client `striate`, created with openssl.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::program::{installed, run};

/// PEM files in a temporary directory.
pub struct Certificates(TempDir);

impl Certificates {
    pub fn new() -> Self {
        let certificates = Self(TempDir::new().expect("a temporary directory can be made"));
        let root = ["-x509", "-days", "2", "-subj", "/CN=authority"];
        run(certificates.openssl("req", "ca").args(root).arg("-out").arg(certificates.path("ca.pem")));
        certificates.sign("server", "/CN=server", "subjectAltName=IP:127.0.0.1");
        certificates.sign("client", "/CN=striate", "extendedKeyUsage=clientAuth");
        certificates
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns a command that creates a key.
    fn openssl(&self, what: &str, name: &str) -> Command {
        let mut command = Command::new(installed("openssl", &[]));
        command.arg(what).args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
        command.arg("-keyout").arg(self.path(&format!("{name}.key")));
        command
    }

    fn sign(&self, name: &str, subject: &str, extension: &str) {
        let request = self.path(&format!("{name}.csr"));
        run(self.openssl("req", name).args(["-subj", subject]).arg("-out").arg(&request));
        let extensions = self.path(&format!("{name}.ext"));
        std::fs::write(&extensions, extension).expect("a file can be written");
        let mut sign = Command::new(installed("openssl", &[]));
        sign.args(["x509", "-req", "-days", "2", "-CAcreateserial", "-CA"]).arg(self.path("ca.pem"));
        sign.arg("-CAkey").arg(self.path("ca.key")).arg("-extfile").arg(extensions);
        run(sign.arg("-in").arg(request).arg("-out").arg(self.path(&format!("{name}.pem"))));
    }
}
