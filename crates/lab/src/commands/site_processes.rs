//! Sites as processes of their own, `striate-lab site`, and the connections to them.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use striate_core::{ClusterId, RackId, SiteId};
use striate_runtime::Runtime;
use striate_site::remote::{RemoteOptions, RemoteSite};
use striate_site::{SecureConnector, Site, SiteIdentity};
use striate_trust::{Authority, Role, Trust};

use crate::failure::{Failure, Outcome};

/// How long the processes may take to answer.
const START: Duration = Duration::from_secs(30);
const CLUSTER: ClusterId = ClusterId(1);
/// Longer than any run.
const CERTIFICATE_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
const POLL: Duration = Duration::from_millis(50);

/// Where a site's process listens.
struct Address {
    site: SiteId,
    rack: RackId,
    address: String,
}

/// Sites as processes on directories of a folder; all of it is gone when this is dropped.
pub(super) struct SiteProcesses {
    folder: PathBuf,
    children: Vec<Child>,
    addresses: Vec<Address>,
}

impl Drop for SiteProcesses {
    fn drop(&mut self) {
        for child in &mut self.children {
            // One that has ended by itself is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("striate-lab: {} is left behind: {error}", self.folder.display());
        }
    }
}

impl SiteProcesses {
    /// Sites whose media are as slow as a calibration's, with a seed, or no slower than they are. Their directories are made in
    /// `dir`, or in the system's temporary folder.
    pub(super) async fn start(
        runtime: &Runtime,
        sites: u32,
        medium: Option<(&str, u64)>,
        dir: Option<&Path>,
    ) -> Outcome<Self> {
        let base = dir.map_or_else(std::env::temp_dir, Path::to_owned);
        let folder = base.join(format!("striate-reality-{}", std::process::id()));
        let fail = |error: std::io::Error| Failure::failed(format!("{}: {error}", folder.display()));
        fs::create_dir_all(&folder).map_err(fail)?;
        let mut processes = Self { folder: folder.clone(), children: Vec::new(), addresses: Vec::new() };
        let program = std::env::current_exe().map_err(fail)?;
        let authority = Authority::create(runtime, &folder.join("ca"), CLUSTER).map_err(Failure::failed)?;
        for (role, name) in [(Role::Gateway, "lab"), (Role::Site, "site")] {
            let issued = authority.issue(runtime, role, name, CERTIFICATE_LIFE).map_err(Failure::failed)?;
            issued.write(&folder.join(name)).map_err(Failure::failed)?;
        }
        for number in 1..=sites {
            let address = format!("127.0.0.1:{}", free_port()?);
            let (site, rack) = (SiteId(number), RackId(format!("rack-{number}")));
            let mut command = Command::new(&program);
            command.args(["site", "--number", &number.to_string(), "--address", &address, "--rack", &rack.0]);
            if let Some((calibration, seed)) = medium {
                command.args(["--medium", calibration]);
                command.args(["--medium-seed", &(seed << 16 | u64::from(number)).to_string()]);
            }
            command.arg("--identity").arg(folder.join("site"));
            command.arg("--data").arg(folder.join(format!("disk{number}")));
            let log = fs::File::create(processes.log(number)).map_err(fail)?;
            // On a machine of its own a site has its cores; here all of them share a few.
            command.env("TOKIO_WORKER_THREADS", "1");
            command.stdin(Stdio::null()).stdout(log.try_clone().map_err(fail)?).stderr(log);
            processes.children.push(command.spawn().map_err(fail)?);
            processes.addresses.push(Address { site, rack, address });
        }
        processes.wait_until_ready(runtime).await?;
        Ok(processes)
    }

    fn log(&self, number: u32) -> PathBuf {
        self.folder.join(format!("site{number}.log"))
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    /// The sites, over connections of their own.
    pub(super) fn connect(&self, runtime: &Runtime) -> Outcome<Vec<Arc<dyn Site>>> {
        let trust = Trust::load(runtime, &self.folder.join("lab")).map_err(Failure::failed)?;
        let connect = |Address { site, rack, address }: &Address| {
            let identity = SiteIdentity { cluster: CLUSTER, site: *site, rack: rack.clone() };
            let connector = Arc::new(SecureConnector::new(trust.clone(), Some("site")));
            let site =
                RemoteSite::new(runtime.clone(), connector, address, identity, RemoteOptions::default());
            Arc::new(site) as Arc<dyn Site>
        };
        Ok(self.addresses.iter().map(connect).collect())
    }

    async fn wait_until_ready(&mut self, runtime: &Runtime) -> Outcome {
        let ends = runtime.now() + START;
        for (number, site) in (1..).zip(self.connect(runtime)?) {
            while let Err(error) = site.status().await {
                let ended = self.children[number as usize - 1].try_wait().map_err(Failure::failed)?;
                if ended.is_some() || runtime.now() >= ends {
                    let log = last_line(&self.log(number));
                    return Err(Failure::failed(format!("site {number} does not answer: {error}; {log}")));
                }
                runtime.sleep(POLL).await;
            }
        }
        Ok(())
    }
}

/// A port that was free a moment ago. Another program may take it first; then the site says so and ends.
fn free_port() -> Outcome<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(Failure::failed)
}

fn last_line(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().last().unwrap_or("it said nothing").to_owned()
}
