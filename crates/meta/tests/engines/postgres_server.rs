//! A real PostgreSQL server.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use striate_meta::{EngineUrl, MetaStore};
use striate_runtime::Runtime;
use tempfile::TempDir;

use crate::certificates::Certificates;
use crate::program::{Program, free_port, installed, is_root, run};

/// A running PostgreSQL server. Its programs refuse to run as root, so root runs them as nobody.
pub struct Postgres {
    root: TempDir,
    port: u16,
    program: Option<Program>,
    settings: Vec<String>,
}

/// A server that all tests of this process share, each with its own schema.
pub static SHARED: LazyLock<Postgres> = LazyLock::new(Postgres::start);

const NOBODY: u32 = 65_534;

/// Folders in which Debian installs the server's programs.
fn folders() -> Vec<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions.map(|version| version.path().join("bin")).collect()
}

impl Postgres {
    pub fn start() -> Self {
        let root = TempDir::new().expect("a temporary directory can be made");
        if is_root() {
            chown(root.path(), Some(NOBODY), Some(NOBODY)).expect("root can give a directory away");
        }
        let mut initdb = match is_root() {
            true => {
                let mut setpriv = Command::new("setpriv");
                setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
                setpriv.arg(installed("initdb", &folders()));
                setpriv
            }
            false => Command::new(installed("initdb", &folders())),
        };
        run(initdb
            .args(["--auth=trust", "--username=striate", "--encoding=UTF8", "--locale=C", "--no-sync"])
            .arg(root.path().join("data"))
            .current_dir(root.path()));
        let mut postgres = Self { root, port: free_port(), program: None, settings: Vec::new() };
        postgres.start_again();
        postgres
    }

    fn log(&self) -> PathBuf {
        self.root.path().join("log")
    }

    /// Starts the server, and waits until it accepts connections.
    pub fn start_again(&mut self) {
        let data = self.root.path().join("data");
        let mut command = vec![installed("postgres", &folders()).display().to_string()];
        command.extend(["-D".to_owned(), data.display().to_string(), "-p".to_owned(), self.port.to_string()]);
        for setting in ["listen_addresses=127.0.0.1", "unix_socket_directories=", "shared_buffers=32MB"] {
            command.extend(["-c".to_owned(), setting.to_owned()]);
        }
        for setting in &self.settings {
            command.extend(["-c".to_owned(), setting.clone()]);
        }
        // It listens before it has recovered, and refuses all clients until then.
        let log = self.log();
        let times_ready = || read(&log).matches("is ready to accept connections").count();
        let before = times_ready();
        // On SIGQUIT, the server shuts down at once and cleans up itself.
        self.program = Some(Program::start(&command, "QUIT", true, &log));
        while times_ready() == before {
            let ended = self.program.as_mut().is_none_or(Program::has_ended);
            assert!(!ended, "PostgreSQL does not start: {}", read(&log));
            std::thread::yield_now();
        }
    }

    /// Starts a server that accepts only clients with a certificate that its authority issued to their user.
    pub fn start_with(certificates: &Certificates) -> Self {
        let mut postgres = Self::start();
        postgres.crash();
        let data = postgres.root.path().join("data");
        let access = "hostssl all all 127.0.0.1/32 cert\n";
        std::fs::write(data.join("pg_hba.conf"), access).expect("the configuration can be written");
        postgres.settings.push("ssl=on".to_owned());
        for (setting, name) in
            [("ssl_ca_file", "ca.pem"), ("ssl_cert_file", "server.pem"), ("ssl_key_file", "server.key")]
        {
            // The server must own the key.
            let copy = data.join(name);
            std::fs::copy(certificates.path(name), &copy).expect("a file can be copied");
            if is_root() {
                chown(&copy, Some(NOBODY), Some(NOBODY)).expect("root can give a file away");
            }
            postgres.settings.push(format!("{setting}={}", copy.display()));
        }
        postgres.start_again();
        postgres
    }

    /// Stops the server without a checkpoint, as a crash would.
    pub fn crash(&mut self) {
        if let Some(mut program) = self.program.take() {
            program.signal("QUIT");
            program.wait();
        }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn url(&self, options: &str) -> EngineUrl {
        url(&self.address(), options)
    }

    pub async fn open(&self, options: &str) -> Arc<dyn MetaStore> {
        striate_meta::open(&Runtime::real(), &self.url(options)).await.expect("the engine opens")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.crash();
    }
}

fn read(log: &Path) -> String {
    std::fs::read_to_string(log).unwrap_or_default()
}

pub fn url(address: &str, options: &str) -> EngineUrl {
    format!("postgres://striate@{address}/postgres?{options}").parse().expect("the test's URL is one")
}

/// Returns the option for a schema that no other test uses.
pub fn fresh_schema() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("schema=test_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
