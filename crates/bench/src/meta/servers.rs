//! The measured engines: the embedded one on directories, and etcd and PostgreSQL as programs on this machine. All
//! keep their data below one directory.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use striate_core::ClusterId;
use striate_meta::embedded::{DiskId, EmbeddedStore, Layout, MetaDirectory, Options};
use striate_meta::{EngineUrl, MetaStore};
use striate_runtime::Runtime;

/// A result whose error is a human-readable message.
pub type Outcome<T> = Result<T, String>;

const NOBODY: u32 = 65_534;

/// A program that is killed on drop.
pub struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The engines by name, and their server programs.
pub struct Engines {
    /// Engines to measure.
    pub stores: Vec<(&'static str, Arc<dyn MetaStore>)>,
    /// URLs of the engines that processes share.
    pub shared: Vec<(&'static str, EngineUrl)>,
    _servers: Vec<Server>,
}

/// Starts all engines.
///
/// # Errors
/// If a program is not installed or does not start.
pub async fn start(runtime: &Runtime, root: &Path) -> Outcome<Engines> {
    let embedded = embedded(runtime, &root.join("embedded")).await?;
    let (etcd, etcd_url) = etcd(&root.join("etcd"))?;
    let (postgres, postgres_url) = postgres(&root.join("postgres"))?;
    let mut stores: Vec<(&'static str, Arc<dyn MetaStore>)> = vec![("embedded", embedded)];
    let mut shared = Vec::new();
    for (name, url) in [("etcd", etcd_url), ("PostgreSQL", postgres_url)] {
        let url: EngineUrl = url.parse().map_err(|error| format!("{error}"))?;
        let store = striate_meta::open(runtime, &url).await.map_err(|error| format!("{name}: {error}"))?;
        stores.push((name, store));
        shared.push((name, url));
    }
    Ok(Engines { stores, shared, _servers: vec![etcd, postgres] })
}

async fn embedded(runtime: &Runtime, folder: &Path) -> Outcome<Arc<dyn MetaStore>> {
    let layout = Layout { cluster: ClusterId(1), total_directories: 3, tolerance: 2 };
    let mut present = Vec::new();
    for number in 0..3_u8 {
        let path = folder.join(format!("disk{number}"));
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        present.push(MetaDirectory::open(DiskId([number; 16]), path).map_err(|error| error.to_string())?);
    }
    let store = EmbeddedStore::open_or_create(runtime, Options::default(), layout, &present).await;
    Ok(Arc::new(store.map_err(|error| format!("embedded: {error}"))?))
}

fn etcd(folder: &Path) -> Outcome<(Server, String)> {
    let (client, peer) = (free_port()?, free_port()?);
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let mut command = Command::new(installed("etcd")?);
    command.arg("--data-dir").arg(folder).args(["--logger=zap", "--log-level=error"]);
    command.arg("--quota-backend-bytes=8589934592");
    for (name, value) in [
        ("listen-client-urls", url(client)),
        ("advertise-client-urls", url(client)),
        ("listen-peer-urls", url(peer)),
        ("initial-advertise-peer-urls", url(peer)),
        ("initial-cluster", format!("default={}", url(peer))),
    ] {
        command.arg(format!("--{name}={value}"));
    }
    let server = spawn(command, &folder.with_extension("log"), client)?;
    Ok((server, format!("etcd://127.0.0.1:{client}/bench?timeout=60")))
}

fn postgres(folder: &Path) -> Outcome<(Server, String)> {
    std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        chown(folder, Some(NOBODY), Some(NOBODY)).map_err(|error| error.to_string())?;
    }
    // PostgreSQL's programs refuse to run as root.
    let program = |name: &str| -> Outcome<Command> {
        let program = installed(name)?;
        if !is_root {
            return Ok(Command::new(program));
        }
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
        Ok(setpriv)
    };
    let data = folder.join("data");
    let mut initdb = program("initdb")?;
    initdb.args(["--auth=trust", "--username=striate", "--encoding=UTF8", "--locale=C", "-D"]).arg(&data);
    let made = initdb.current_dir(folder).output().map_err(|error| error.to_string())?;
    if !made.status.success() {
        return Err(format!("initdb: {}", String::from_utf8_lossy(&made.stderr)));
    }
    let port = free_port()?;
    let mut command = program("postgres")?;
    command.arg("-D").arg(&data).args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
    command.args(["-c", "unix_socket_directories=", "-c", "shared_buffers=256MB", "-c", "max_wal_size=4GB"]);
    let server = spawn(command, &folder.with_extension("log"), port)?;
    Ok((server, format!("postgres://striate@127.0.0.1:{port}/postgres?schema=bench&timeout=60")))
}

fn spawn(mut command: Command, log: &Path, port: u16) -> Outcome<Server> {
    let output = File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
    let errors = output.try_clone().map_err(|error| error.to_string())?;
    command.stdin(Stdio::null()).stdout(output).stderr(errors);
    let mut server = Server(command.spawn().map_err(|error| format!("{command:?}: {error}"))?);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if server.0.try_wait().is_ok_and(|ended| ended.is_some()) {
            return Err(format!("{command:?} ended; its log is {}", log.display()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(server)
}

fn free_port() -> Outcome<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    Ok(listener.map_err(|error| error.to_string())?.port())
}

fn installed(name: &str) -> Outcome<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let folders = std::env::split_paths(&path).chain(versions.map(|version| version.path().join("bin")));
    let found = folders.map(|folder| folder.join(name)).find(|program| program.is_file());
    found.ok_or_else(|| format!("{name} is not installed; run: tools/install.sh engines"))
}
