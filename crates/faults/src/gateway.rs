//! A gateway: a process with a client service, which can be killed at any await.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use striate_client::{Client, ClientError};
use striate_runtime::{Process, Runtime};
use striate_virtual_network::Machine;

use super::cluster::Cluster;
use super::following::{KnownSites, follow};
use super::mutation;

/// Pause between two attempts to start.
const RETRY: Duration = Duration::from_millis(200);

/// A gateway.
#[derive(Debug)]
pub struct Gateway {
    /// The gateway's machine.
    pub machine: Machine,
    running: Mutex<Option<RunningGateway>>,
}

/// A gateway's process.
#[derive(Clone, Debug)]
pub struct RunningGateway {
    /// Client service of the process.
    pub client: Client,
    /// Runtime that spawns the tasks of the process.
    pub runtime: Runtime,
    process: Process,
}

impl Gateway {
    /// Creates a stopped gateway.
    pub fn new(machine: Machine) -> Self {
        Self { machine, running: Mutex::new(None) }
    }

    /// Starts the process; retries until the metadata answers.
    pub async fn start(&self, cluster: &Arc<Cluster>) {
        loop {
            let (runtime, process) = cluster.runtime.process();
            if let Ok((client, known_sites)) = self.open(cluster, &runtime).await {
                let (of_task, cluster) = (client.clone(), Arc::clone(cluster));
                runtime.spawn(async move { follow(&cluster, &of_task, known_sites).await });
                *self.running.lock() = Some(RunningGateway { client, runtime, process });
                return;
            }
            process.kill();
            cluster.runtime.sleep(RETRY).await;
        }
    }

    async fn open(&self, cluster: &Cluster, runtime: &Runtime) -> Result<(Client, KnownSites), ClientError> {
        let here = self.machine;
        let metadata =
            mutation::metadata(cluster.mutation, cluster.metadata_from(here), cluster, here, false);
        let client = Client::open(runtime.clone(), metadata, Vec::new(), cluster.client_options()).await?;
        let known_sites = KnownSites::new(here, None);
        known_sites.follow(cluster, &client).await?;
        // The gateway of the final checks has no memory sites, so it reads from the disks.
        let is_first = cluster.gateways.iter().any(|gateway| gateway.machine == here);
        if let Some(tier) = cluster.memory.as_ref().filter(|_| is_first) {
            tier.serve(&cluster.network, here, &client);
        }
        Ok((client, known_sites))
    }

    /// Fault: the process dies.
    pub fn kill(&self) {
        if let Some(running) = self.running.lock().take() {
            running.process.kill();
        }
    }

    /// Fault: the wall clock of the process jumps ahead by `by_ms` milliseconds, or back.
    pub fn set_clock_ahead(&self, by_ms: i64) {
        if let Some(running) = self.running() {
            running.process.set_clock_ahead(by_ms);
        }
    }

    /// Fault: the process is paused or resumed.
    pub fn set_paused(&self, is_paused: bool) {
        if let Some(running) = self.running() {
            running.process.set_paused(is_paused);
        }
    }

    /// Returns the process, if it runs.
    pub fn running(&self) -> Option<RunningGateway> {
        self.running.lock().clone()
    }

    /// Returns the client service, if it runs.
    pub fn client(&self) -> Option<Client> {
        self.running().map(|running| running.client)
    }
}

impl RunningGateway {
    /// Runs a task in the process; returns `None` if the process is killed meanwhile.
    pub async fn run<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> Option<T> {
        match self.runtime.spawn(task).await {
            Ok(output) => Some(output),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => None,
            },
        }
    }
}

/// Starts a gateway for the final checks, on its own machine.
pub async fn start_another(cluster: &Arc<Cluster>) -> Arc<Gateway> {
    let last = cluster.gateways.last().expect("there are gateways").machine;
    let gateway = Gateway::new(Machine { number: last.number + 1, rack: last.rack + 1 });
    gateway.start(cluster).await;
    Arc::new(gateway)
}
