//! Sites as separate processes (`striate-lab site`), and the connections to them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use striate_core::{ClusterId, RackId, SiteId};
use striate_runtime::Runtime;
use striate_site::remote::{RemoteOptions, RemoteSite};
use striate_site::{SecureConnector, Site, SiteDirectory, SiteIdentity};
use striate_trust::{Authority, Role, Trust};

use super::processors;
use crate::failure::{Failure, Outcome};

/// Timeout for the processes to answer.
const START: Duration = Duration::from_secs(30);
const CLUSTER: ClusterId = ClusterId(1);
/// Validity of the certificates: longer than any run.
const CERTIFICATE_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
const POLL: Duration = Duration::from_millis(50);

/// Port of site 0 in a namespace.
const FIRST_PORT: u32 = 7_000;
/// Name in the certificate that all sites share.
const SITE_PEER: &str = "site";

/// Address of a site's process.
#[derive(Debug)]
struct Address {
    site: SiteId,
    rack: RackId,
    address: String,
}

impl Address {
    fn connect(&self, runtime: &Runtime, trust: &Trust) -> Arc<dyn Site> {
        let Self { site, rack, address } = self;
        let identity = SiteIdentity { cluster: CLUSTER, site: *site, rack: rack.clone() };
        let connector = Arc::new(SecureConnector::new(trust.clone(), Some(SITE_PEER)));
        Arc::new(RemoteSite::new(runtime.clone(), connector, address, identity, RemoteOptions::default()))
    }
}

/// Where a site runs.
pub(super) enum Host {
    /// On this machine's own addresses, in its own rack.
    Here,
    /// In a network namespace, which names the rack, at this address.
    Space(String, String),
}

/// Where sites keep their chunks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Media<'a> {
    /// In directories, at the disk's own speed.
    Directories,
    /// In directories, as slow as a calibration's disk, with a seed.
    Modelled(&'a str, u64),
    /// In memory.
    Memory,
}

/// The sites listed in a file; each line has number, rack and address.
#[derive(Debug)]
pub(super) struct Peers(HashMap<SiteId, Arc<dyn Site>>);

impl Peers {
    /// Reads the file.
    pub(super) fn open(runtime: &Runtime, trust: &Trust, file: &Path) -> Outcome<Self> {
        let fail = |reason: &dyn std::fmt::Display| Failure::refused(format!("{}: {reason}", file.display()));
        let text = fs::read_to_string(file).map_err(|error| fail(&error))?;
        let site = |line: &str| {
            let mut words = line.split(' ');
            let (number, rack, address) = (words.next()?, words.next()?, words.next()?);
            let site = SiteId(number.parse().ok()?);
            let address = Address { site, rack: RackId(rack.to_owned()), address: address.to_owned() };
            Some((site, address.connect(runtime, trust)))
        };
        let sites: Option<HashMap<_, _>> = text.lines().map(site).collect();
        Ok(Self(sites.ok_or_else(|| fail(&"write NUMBER RACK ADDRESS in each line"))?))
    }

    /// Returns the sites in the order of their numbers.
    pub(super) fn in_order(self) -> Vec<Arc<dyn Site>> {
        let mut sites: Vec<_> = self.0.into_values().collect();
        sites.sort_by_key(|site| site.id());
        sites
    }
}

impl SiteDirectory for Peers {
    fn site(&self, site: SiteId) -> Option<Arc<dyn Site>> {
        self.0.get(&site).cloned()
    }
}

/// Site processes on directories of a temporary folder. Dropping this kills the processes and removes the folder.
pub(super) struct SiteProcesses {
    folder: PathBuf,
    children: Vec<Child>,
    addresses: Vec<Address>,
}

impl Drop for SiteProcesses {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("striate-lab: {} is left behind: {error}", self.folder.display());
        }
    }
}

impl SiteProcesses {
    /// Starts sites with these media. Their directories are made in `dir`, or in the system's temporary folder.
    pub(super) async fn start(
        runtime: &Runtime,
        sites: u32,
        media: Media<'_>,
        dir: Option<&Path>,
    ) -> Outcome<Self> {
        let hosts: Vec<Host> = (0..sites).map(|_| Host::Here).collect();
        Self::start_on(runtime, &hosts, media, dir).await
    }

    /// Starts a site on each of these hosts, numbered from 1. They know each other.
    pub(super) async fn start_on(
        runtime: &Runtime,
        hosts: &[Host],
        media: Media<'_>,
        dir: Option<&Path>,
    ) -> Outcome<Self> {
        let base = dir.map_or_else(std::env::temp_dir, Path::to_owned);
        let folder = base.join(format!("striate-reality-{}", std::process::id()));
        let fail = |error: std::io::Error| Failure::failed(format!("{}: {error}", folder.display()));
        fs::create_dir_all(&folder).map_err(fail)?;
        let addresses = addresses(hosts)?;
        let mut processes = Self { folder: folder.clone(), children: Vec::new(), addresses };
        let authority = Authority::create(runtime, &folder.join("ca"), CLUSTER).map_err(Failure::failed)?;
        for (role, name) in [(Role::Gateway, "lab"), (Role::Control, "control"), (Role::Site, SITE_PEER)] {
            let issued = authority.issue(runtime, role, name, CERTIFICATE_LIFE).map_err(Failure::failed)?;
            issued.write(&folder.join(name)).map_err(Failure::failed)?;
        }
        let mut peers = String::new();
        for Address { site, rack, address } in &processes.addresses {
            let _ = writeln!(peers, "{site} {} {address}", rack.0);
        }
        fs::write(folder.join("peers"), peers).map_err(fail)?;
        for (number, host) in hosts.iter().enumerate() {
            let mut command = processes.command(number, host).map_err(fail)?;
            match media {
                Media::Directories => {}
                Media::Modelled(calibration, seed) => {
                    command.args(["--medium", calibration]);
                    command.args(["--medium-seed", &(seed << 16 | (number as u64 + 1)).to_string()]);
                }
                Media::Memory => {
                    command.arg("--memory");
                }
            }
            processes.children.push(command.spawn().map_err(fail)?);
        }
        processes.wait_until_ready(runtime).await?;
        Ok(processes)
    }

    /// Returns the command of a site's process, by its index among the addresses.
    fn command(&self, number: usize, host: &Host) -> std::io::Result<Command> {
        let Address { site, rack, address } = &self.addresses[number];
        let mut command = program_on(host)?;
        command.args(["site", "--number", &site.to_string(), "--address", address, "--rack", &rack.0]);
        command.arg("--identity").arg(self.folder.join(SITE_PEER));
        command.arg("--peers").arg(self.peers());
        command.arg("--data").arg(self.folder.join(format!("disk{site}")));
        let log = fs::File::create(self.log(site.0))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    /// Returns a command that runs this program on a host as a client with the rights of a control process. Identity
    /// and sites are set; the other arguments are still to be added.
    pub(super) fn client(&self, host: &Host, what: &str) -> std::io::Result<Command> {
        let mut command = program_on(host)?;
        command.arg(what).arg("--identity").arg(self.folder.join("control"));
        command.arg("--peers").arg(self.peers()).stdin(Stdio::null());
        Ok(command)
    }

    fn peers(&self) -> PathBuf {
        self.folder.join("peers")
    }

    fn log(&self, number: u32) -> PathBuf {
        self.folder.join(format!("site{number}.log"))
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    /// Returns the processor seconds of each process.
    pub(super) fn processor_s(&self) -> Outcome<Vec<f64>> {
        self.children.iter().map(|child| processors::seconds_of(child.id())).collect()
    }

    /// Opens new connections to the sites.
    pub(super) fn connect(&self, runtime: &Runtime) -> Outcome<Vec<Arc<dyn Site>>> {
        self.connect_as(runtime, "lab")
    }

    /// Opens connections as a control process, which may have sites make chunks.
    pub(super) fn connect_as_control(&self, runtime: &Runtime) -> Outcome<Vec<Arc<dyn Site>>> {
        self.connect_as(runtime, "control")
    }

    fn connect_as(&self, runtime: &Runtime, name: &str) -> Outcome<Vec<Arc<dyn Site>>> {
        let trust = Trust::load(runtime, &self.folder.join(name)).map_err(Failure::failed)?;
        Ok(self.addresses.iter().map(|address| address.connect(runtime, &trust)).collect())
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

/// Returns a command that runs this program on a host.
fn program_on(host: &Host) -> std::io::Result<Command> {
    let program = std::env::current_exe()?;
    let mut command = match host {
        Host::Here => Command::new(program),
        Host::Space(space, _) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", space]).arg(program);
            command
        }
    };
    // On its own machine a process has all cores; here all processes share a few.
    command.env("TOKIO_WORKER_THREADS", "1");
    Ok(command)
}

/// Chooses the address of each host's site. Another program may take a port that was free a moment ago; the site then
/// reports that and exits.
fn addresses(hosts: &[Host]) -> Outcome<Vec<Address>> {
    let mut listeners = Vec::new();
    let mut address = |(number, host): (u32, &Host)| {
        let (rack, address) = match host {
            Host::Space(space, address) => (space.clone(), format!("{address}:{}", FIRST_PORT + number)),
            Host::Here => {
                let listener = TcpListener::bind("127.0.0.1:0").map_err(Failure::failed)?;
                let address = listener.local_addr().map_err(Failure::failed)?;
                // Keep the listeners open, so that no port is chosen twice.
                listeners.push(listener);
                (format!("rack-{number}"), address.to_string())
            }
        };
        Ok(Address { site: SiteId(number), rack: RackId(rack), address })
    };
    (1..).zip(hosts).map(&mut address).collect()
}

fn last_line(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().last().unwrap_or("it said nothing").to_owned()
}
