//! A gateway: a process with a client service, which can be killed at any await.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use striate_client::Client;
use striate_runtime::{Process, Runtime};

use super::cluster::Cluster;
use super::mutation;
use crate::network::Machine;

/// Pause between two attempts to start.
const RETRY: Duration = Duration::from_millis(200);

/// A gateway.
#[derive(Debug)]
pub struct Gateway {
    /// Where it is.
    pub machine: Machine,
    running: Mutex<Option<Running>>,
}

/// A gateway's process.
#[derive(Clone, Debug)]
pub struct Running {
    /// Its client service.
    pub client: Client,
    /// What its tasks are started by.
    pub runtime: Runtime,
    process: Process,
}

impl Gateway {
    /// A gateway that is not started.
    pub fn new(machine: Machine) -> Self {
        Self { machine, running: Mutex::new(None) }
    }

    /// Starts it; goes on trying until the metadata answers.
    pub async fn start(&self, cluster: &Cluster) {
        loop {
            let (runtime, process) = cluster.runtime.process();
            let metadata =
                mutation::metadata(cluster.mutation, cluster.metadata_from(self.machine), cluster, self);
            let sites = cluster.sites_from(self.machine);
            let options = cluster.client_options();
            if let Ok(client) = Client::open(runtime.clone(), metadata, sites, options).await {
                *self.running.lock() = Some(Running { client, runtime, process });
                // Its disks may have changed while it started.
                self.tell_sites(cluster);
                return;
            }
            process.kill();
            cluster.runtime.sleep(RETRY).await;
        }
    }

    /// Fault: the process dies.
    pub fn kill(&self) {
        if let Some(running) = self.running.lock().take() {
            running.process.kill();
        }
    }

    /// Fault: the wall clock of its process jumps ahead by so many milliseconds, or back.
    pub fn set_clock_ahead(&self, by_ms: i64) {
        if let Some(running) = self.running() {
            running.process.set_clock_ahead(by_ms);
        }
    }

    /// The process, if it runs.
    pub fn running(&self) -> Option<Running> {
        self.running.lock().clone()
    }

    /// The client service, if it runs.
    pub fn client(&self) -> Option<Client> {
        self.running().map(|running| running.client)
    }

    /// Tells it of the sites as they are now.
    pub fn tell_sites(&self, cluster: &Cluster) {
        if let Some(client) = self.client() {
            client.set_sites(cluster.sites_from(self.machine));
        }
    }
}

impl Running {
    /// Runs a task in the process; `None` when the process is killed meanwhile.
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

/// A gateway for checks at the end, on a machine of its own.
pub async fn start_another(cluster: &Cluster) -> Arc<Gateway> {
    let last = cluster.gateways.last().expect("there are gateways").machine;
    let gateway = Gateway::new(Machine { number: last.number + 1, rack: last.rack + 1 });
    gateway.start(cluster).await;
    Arc::new(gateway)
}
