//! `striate-lab reality`: the lab's workload on processes of sites with modelled media, and both beside each other.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use striate_core::{ClusterId, Profile, RackId, SiteId};
use striate_runtime::Runtime;
use striate_site::remote::{RemoteOptions, RemoteSite};
use striate_site::{SecureConnector, Site, SiteIdentity};
use striate_trust::{Authority, Role, Trust};

use super::awake::Awake;
use super::processors::Usage;
use super::write_file;
use crate::args::RealityArgs;
use crate::calibration::Calibration;
use crate::failure::{Failure, Outcome};
use crate::latency::Latencies;
use crate::reality::outcome::{self, Outcome as Compared, Processors};
use crate::reality::way::{self, Way};
use crate::reality::{CASES, Setting, prepare, run_lab, run_real};

/// How long the processes may take to answer.
const START: Duration = Duration::from_secs(30);
const CLUSTER: ClusterId = ClusterId(1);
const BLOCK_LEN: u32 = 100_000;
/// Longer than any run.
const CERTIFICATE_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
const POLL: Duration = Duration::from_millis(50);

/// Runs every case on both sides and writes `reality.json` and `reality.html`.
///
/// # Errors
/// When a process does not start, a run fails, or the report cannot be written. That the two sides do not agree is
/// said, and is no error.
pub async fn run(runtime: &Runtime, args: &RealityArgs) -> Outcome {
    let awake = Awake::start().map_err(|error| {
        Failure::failed(format!("chrt (util-linux), which keeps the processors awake: {error}"))
    })?;
    let mut outcomes = Vec::new();
    for (name, calibration, profile, policy) in CASES {
        let is_of_calibration = args.calibration.as_deref().is_none_or(|only| only == calibration);
        if !is_of_calibration || !(args.case.is_empty() || args.case.iter().any(|case| case == name)) {
            continue;
        }
        let profile: Profile = profile.parse().map_err(Failure::failed)?;
        let setting = Setting {
            way: measure_way(runtime, BLOCK_LEN / profile.code.data_count() as u32, args).await?,
            calibration: Calibration::named(calibration).expect("the cases name calibrations"),
            profile,
            policy: striate_baselines::read_policy(policy).map_err(Failure::failed)?,
            sites: args.sites,
            clients: args.clients,
            blocks: args.blocks,
            block_len: BLOCK_LEN,
            warm_up: Duration::from_secs_f64(args.length / 10.0),
            length: Duration::from_secs_f64(args.length),
        };
        let compared = compare(runtime, name, setting, args, &awake).await?;
        println!("{}", line(&compared));
        outcomes.push(compared);
    }
    if outcomes.is_empty() {
        return Err(Failure::refused(
            "there is no such case; there are R, EC, EC+LB and default of P, and EC of D",
        ));
    }
    let json = serde_json::to_string_pretty(&outcomes).map_err(Failure::failed)?;
    write_file(&args.out.join("reality.json"), &json)?;
    write_file(&args.out.join("reality.html"), &outcome::html(&outcomes))
}

/// To sites like those of the runs, without media.
async fn measure_way(runtime: &Runtime, chunk_len: u32, args: &RealityArgs) -> Outcome<Way> {
    let processes = SiteProcesses::start(runtime, args.sites, None, args).await?;
    let sites = processes.connect(runtime)?;
    way::measure(runtime, &sites, chunk_len).await.map_err(Failure::failed)
}

async fn compare(
    runtime: &Runtime,
    name: &str,
    setting: Setting,
    args: &RealityArgs,
    awake: &Awake,
) -> Outcome<Compared> {
    let (mut real, mut usage) = (Vec::new(), Usage::default());
    for seed in args.seed..args.seed + u64::from(args.rounds) {
        let medium = Some((setting.calibration.name, seed));
        let sites = SiteProcesses::start(runtime, setting.sites, medium, args).await?;
        let prepared =
            prepare(runtime, &setting, seed, sites.connect(runtime)?).await.map_err(Failure::failed)?;
        let before = Usage::read(&sites.pids(), &awake.pids())?;
        real.push(run_real(runtime, &setting, seed, &prepared).await.map_err(Failure::failed)?);
        usage = usage + (Usage::read(&sites.pids(), &awake.pids())? - before);
    }
    let seeds = args.seed..args.seed + u64::from(args.lab_seeds);
    let of_lab = setting.clone();
    let lab = runtime.run_blocking(move || {
        seeds.map(|seed| run_lab(&of_lab, seed)).collect::<Result<Vec<_>, _>>().map_err(Failure::failed)
    });
    let lab = lab.await?;
    let operations = real.iter().map(|run: &Latencies| run.summary().count).sum::<u64>();
    // The warm-up's operations, a tenth as many, took their part.
    let processors = Processors {
        count: usage.processors,
        own_share: usage.own_share(),
        other_share: usage.other_share(),
        own_ms_per_operation: 1e3 * usage.own_s / (1.1 * operations.max(1) as f64),
    };
    Ok(Compared::of(name, &setting, &real, &lab, processors))
}

fn line(compared: &Compared) -> String {
    format!(
        "{} on {} (a round trip of {:.2} ms and {:.0} MB/s between processes): mean {} ms on processes, {} in the lab ({:+.1}%); p99 {} and {} ({:+.1}%); {} and {} requests; \
         processors: {:.0}% ours, {:.0}% others'; {}",
        compared.name,
        compared.calibration,
        compared.way.round_trip_ms,
        compared.way.card_bytes_per_s / 1e6,
        compared.real_mean_ms,
        compared.lab_mean_ms,
        100.0 * compared.mean_error,
        compared.real_p99_ms,
        compared.lab_p99_ms,
        100.0 * compared.p99_error,
        compared.real.count,
        compared.lab.count,
        100.0 * compared.processors.own_share,
        100.0 * compared.processors.other_share,
        if compared.agrees() { "they agree" } else { "they do not agree" },
    )
}

/// Where a site's process listens.
struct Address {
    site: SiteId,
    rack: RackId,
    address: String,
}

/// Sites as processes on directories of a folder; all of it is gone when this is dropped.
struct SiteProcesses {
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
    /// Sites whose media are as slow as a calibration's, or no slower than they are.
    async fn start(
        runtime: &Runtime,
        sites: u32,
        medium: Option<(&str, u64)>,
        args: &RealityArgs,
    ) -> Outcome<Self> {
        let base = args.dir.clone().unwrap_or_else(std::env::temp_dir);
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

    fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    fn connect(&self, runtime: &Runtime) -> Outcome<Vec<Arc<dyn Site>>> {
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
