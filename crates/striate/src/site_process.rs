//! `striate site`: the storage sites on this process's directories, one per directory, and a site of the memory tier.
//!
//! A site knows no metadata. It registers its disk, address and rack with a control process, which replies with its
//! number and the addresses of the other sites. It registers again periodically, which propagates changes of addresses.
//! A site that has a number serves before control answers.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use striate_cache::Keeper;
use striate_commands::args::{HostPort, SiteArgs};
use striate_commands::failure::{Failure, Outcome};
use striate_core::{ClusterId, Formats, FormatsInForce, RackId, SiteId};
use striate_listen::descriptors::{DescriptorNeeds, divide};
use striate_meta::embedded::DiskId;
use striate_runtime::Runtime;
use striate_site::protocol::limits::ServiceLimits;
use striate_site::service::serve_site;
use striate_site::{CacheOptions, CacheStore, LocalSite, QueueLimits, SiteDirectory, SiteIdentity};
use striate_trust::{Role, Trust};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};

use crate::identity::identify;
use crate::membership::client::{Channel, ControlClient, ControlError};
use crate::membership::messages::cluster_control_client::ClusterControlClient;
use crate::membership::messages::{RegisterMemoryRequest, RegisterReply, RegisterRequest};
use crate::remote_sites::{RemoteSites, SiteAddress};
use crate::resident::ResidentMemory;
use crate::server::{listen, watch_hangups, watch_signals};
use crate::start::attempts::{Attempt, Ending, find_member};
use crate::start::directories::{ANSWER_WITHIN, DirectoryContents, DirectoryError, inspect};
use crate::start::lock::DirectoryLock;
use crate::start::roster::{Member, RequiredFormats, Roster};
use crate::start::site::DiskSite;

/// Connections that the process opens to control processes and to sites whose chunks it combines.
const OWN_CONNECTIONS: usize = 256;
/// Interval between registrations of a site that has its number.
const REGISTER_EVERY: Duration = Duration::from_secs(10);
/// Time for a disk to be closed in good order when the process stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between attempts of a site that has no number.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// Site number in the roster of a directory that control has not numbered yet.
const NO_NUMBER: SiteId = SiteId(0);

/// Runs the sites until SIGTERM or SIGINT.
///
/// # Errors
/// If one cannot start. The message names the cause and the remedy.
pub async fn run(runtime: Runtime, args: SiteArgs) -> Outcome {
    let mut listeners = Vec::new();
    for index in 0..args.sites() as u16 {
        let port = if args.address.port == 0 { 0 } else { args.address.port.saturating_add(index) };
        listeners.push(listen(&HostPort { port, ..args.address.clone() }, "--address").await?);
    }
    let (draining, drain) = watch::channel(false);
    let stop = Arc::new(Notify::new());
    runtime.spawn(watch_hangups(stop.clone(), None));
    runtime.spawn(watch_signals(stop, draining));
    serve(runtime, &args, listeners, drain).await
}

/// State that the sites of one process share.
struct Process {
    runtime: Runtime,
    trust: Trust,
    control: ControlClient,
    rack: String,
    host: String,
    neighbours: Arc<RemoteSites>,
    /// What the peers of each site may occupy.
    limits: ServiceLimits,
}

/// Divides the descriptors of the process, and returns what the peers of each site may occupy.
fn service_limits(args: &SiteArgs) -> Outcome<ServiceLimits> {
    let usual = ServiceLimits::default();
    let (sites, asked) = (args.sites(), usual.connections + usual.handshakes);
    let needs = DescriptorNeeds {
        disks: args.data.len(),
        own: OWN_CONNECTIONS,
        main: sites * asked,
        ..DescriptorNeeds::default()
    };
    let connections = divide(needs).map_err(Failure::refused)?.main / sites;
    let handshakes = (connections * usual.handshakes / asked).max(1);
    Ok(ServiceLimits {
        connections: (connections - handshakes.min(connections)).max(1),
        handshakes,
        handshakes_per_address: args.handshakes.max_handshakes_per_address as usize,
        trusted_proxies: args.handshakes.trusted(),
        ..usual
    })
}

/// Runs the sites on open ports, one per directory, until `stop` is true.
///
/// # Errors
/// If one cannot start. The message names the cause and the remedy.
pub async fn serve(
    runtime: Runtime,
    args: &SiteArgs,
    listeners: Vec<TcpListener>,
    stop: watch::Receiver<bool>,
) -> Outcome {
    if args.control.is_empty() {
        return Err(Failure::refused("give --control HOST:PORT, where control processes listen"));
    }
    if args.sites() == 0 {
        return Err(Failure::refused(
            "give --data DIR for each disk, or --memory-mib for a memory site, or both",
        ));
    }
    let trust = identify(&runtime, &args.identity, Role::Site)?;
    let host = advertised_host(args)?;
    let process = Process {
        limits: service_limits(args)?,
        control: ControlClient::new(runtime.clone(), trust.clone(), args.control.clone()),
        rack: args.rack.clone().unwrap_or_else(|| host.clone()),
        neighbours: Arc::new(RemoteSites::new(runtime.clone(), trust.clone())),
        runtime,
        trust,
        host,
    };
    let mut listeners = listeners.into_iter();
    let sites = args.data.iter().zip(listeners.by_ref());
    let mut serving: Vec<BoxFuture<'_, Outcome>> = sites
        .map(|(directory, listener)| {
            let tell = move |outcome: &Outcome| {
                if let Err(reason) = outcome {
                    let directory = directory.display();
                    tracing::error!(%directory, %reason, "a site does not serve; others of this process do");
                }
            };
            process.serve(directory, listener, stop.clone()).inspect(tell).boxed()
        })
        .collect();
    if let Some((options, listener)) = args.memory().zip(listeners.next()) {
        serving.push(process.serve_memory(options, listener, stop.clone()).boxed());
    }
    join_all(serving).await.into_iter().collect::<Outcome<Vec<()>>>()?;
    tracing::info!("stopped");
    Ok(())
}

/// Returns the host by which other processes reach this one.
fn advertised_host(args: &SiteArgs) -> Outcome<String> {
    match (&args.advertise, args.address.host.as_str()) {
        (Some(host), _) => Ok(host.clone()),
        (None, "" | "0.0.0.0" | "::") => {
            let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
            match name.is_empty() {
                false => Ok(name),
                true => Err(Failure::refused("this machine has no name; give --advertise HOST")),
            }
        }
        (None, host) => Ok(host.to_owned()),
    }
}

impl Process {
    /// Runs one site.
    async fn serve(
        &self,
        directory: &Path,
        listener: TcpListener,
        mut stop: watch::Receiver<bool>,
    ) -> Outcome {
        let cluster = self.trust.own_name().cluster;
        let port = listener.local_addr().map_err(Failure::failed)?.port();
        let address = HostPort { host: self.host.clone(), port }.to_string();
        let AdmittedDirectory { mut member, mut formats, lock } = self.admit(directory, cluster).await?;
        let mut stopped = stop.clone();
        if member.site == NO_NUMBER {
            let (number, required) = tokio::select! {
                obtained = self.obtain_number(&member, &address) => obtained?,
                _ = stopped.wait_for(|&stop| stop) => return Ok(()),
            };
            (member.site, formats) = (number, required);
            write_roster(cluster, &member, &formats)?;
        }
        let rack = RackId(self.rack.clone());
        let in_force = FormatsInForce::new(formats.in_force);
        let site = DiskSite::open_in(&self.runtime, cluster, &member, rack, &in_force).await;
        let site = site.map_err(Failure::refused)?;
        let neighbours: Arc<dyn SiteDirectory> = self.neighbours.clone();
        site.set_directory(Arc::downgrade(&neighbours));
        tracing::info!(site = %member.site, address, rack = self.rack, directory = %member.path.display(), %cluster, "the site serves");
        let gate = Arc::new(self.trust.clone());
        let shutdown = async move {
            // A closed channel means that nothing can stop it any more: stop as well.
            let _ = stop.wait_for(|&stop| stop).await;
        };
        let (runtime, limits) = (self.runtime.clone(), self.limits.clone());
        let serving = serve_site(runtime, listener, gate, site.local(), limits, shutdown);
        tokio::select! {
            () = serving => {}
            () = self.keep_registered(&member, &site, &address, formats, &in_force) => {}
            () = self.keep_open(&member, &site, lock) => {}
        }
        if self.runtime.timeout(CLOSE_TIMEOUT, site.close()).await.is_err() {
            tracing::error!("the disk does not answer; it is left as it is");
            // Nobody must wait for what hangs, as whoever drops the last handle would.
            std::mem::forget(site);
        }
        drop(neighbours);
        Ok(())
    }

    /// Opens the site's store anew when its disk is back, or to try it again after it failed. Holds the directory's lock.
    async fn keep_open(&self, member: &Member, site: &DiskSite, mut lock: DirectoryLock) {
        let mut attempt = Attempt::default();
        loop {
            self.runtime.sleep(RETRY_EVERY).await;
            if site.failure().is_none() || !attempt.begin(self.runtime.now()) {
                continue;
            }
            let ending = match self.reopen(member, site, &mut lock).await {
                Ok(()) => Ending::TakenBack,
                Err(ending) => ending,
            };
            attempt.end(member, ending, self.runtime.now());
        }
    }

    async fn reopen(&self, member: &Member, site: &DiskSite, lock: &mut DirectoryLock) -> Result<(), Ending> {
        let cluster = self.trust.own_name().cluster;
        let (looked_for, locked) = (member.clone(), lock.locked());
        let find = move || {
            find_member(&looked_for, cluster, u64::MAX)?;
            DirectoryLock::take_again(&looked_for.path, Some(locked))
                .map_err(|error| Ending::Failed(error.to_string()))
        };
        let taken = self.runtime.run_blocking(find).await?;
        site.reopen(&self.runtime, cluster, member).await.map_err(Ending::Failed)?;
        if let Some(taken) = taken {
            *lock = taken;
        }
        Ok(())
    }

    /// Admits and locks the directory of a site, without holding up the others. Waits for a disk that does not answer.
    async fn admit(&self, directory: &Path, cluster: ClusterId) -> Outcome<AdmittedDirectory> {
        let (runtime, own) = (self.runtime.clone(), directory.to_owned());
        let mut admitting = pin!(self.runtime.run_blocking(move || admit(&runtime, &own, cluster)));
        match self.runtime.timeout(ANSWER_WITHIN, &mut admitting).await {
            Ok(admitted) => admitted,
            Err(_) => {
                let directory = directory.display();
                tracing::error!(%directory, "its disk does not answer; the site serves as soon as it does");
                admitting.await
            }
        }
    }

    /// Runs the site of the memory tier.
    async fn serve_memory(
        &self,
        options: CacheOptions,
        listener: TcpListener,
        mut stop: watch::Receiver<bool>,
    ) -> Outcome {
        let process = Arc::new(ResidentMemory::new(self.runtime.clone()));
        let store = CacheStore::within_process(options, process);
        let store = Arc::new(store.map_err(|error| Failure::refused(format!("--memory-mib: {error}")))?);
        let port = listener.local_addr().map_err(Failure::failed)?.port();
        let announcement = RegisterMemoryRequest {
            address: HostPort { host: self.host.clone(), port }.to_string(),
            rack: self.rack.clone(),
            bytes: options.bound_bytes,
            site: 0,
        };
        let mut stopped = stop.clone();
        let number = tokio::select! {
            number = self.obtain_memory_number(&announcement) => number?,
            _ = stopped.wait_for(|&stop| stop) => return Ok(()),
        };
        let cluster = self.trust.own_name().cluster;
        let identity = SiteIdentity { cluster, site: number, rack: RackId(self.rack.clone()) };
        let site = LocalSite::new(self.runtime.clone(), identity, store.clone(), QueueLimits::default());
        site.set_keeper(Arc::new(Keeper::new(store)));
        tracing::info!(
            site = %number, address = announcement.address, rack = self.rack, mib = options.bound_bytes >> 20, %cluster,
            "the memory site serves"
        );
        let shutdown = async move {
            // A closed channel means that nothing can stop it any more: stop as well.
            let _ = stop.wait_for(|&stop| stop).await;
        };
        let (runtime, gate) = (self.runtime.clone(), Arc::new(self.trust.clone()));
        let limits = ServiceLimits { receiving_bytes: options.on_the_way_bytes / 2, ..self.limits.clone() };
        tokio::select! {
            () = serve_site(runtime, listener, gate, Arc::new(site), limits, shutdown) => Ok(()),
            () = self.keep_memory_registered(RegisterMemoryRequest { site: number.0, ..announcement }) => Ok(()),
        }
    }

    /// Obtains the number of a site of the memory tier, and retries until control assigns one.
    async fn obtain_memory_number(&self, announcement: &RegisterMemoryRequest) -> Outcome<SiteId> {
        let mut said = None;
        loop {
            match self.register_memory(announcement).await {
                Ok(number) => return Ok(number),
                Err(ControlError::Refused(reason)) => {
                    return Err(Failure::refused(format!("the memory site: {reason}")));
                }
                Err(error) => {
                    if said.as_ref() != Some(&error) {
                        tracing::warn!(%error, "the memory site waits for its number");
                    }
                    said = Some(error);
                }
            }
            self.runtime.sleep(RETRY_EVERY).await;
        }
    }

    /// Renews the registration, because a row that is not renewed is removed. Errors are logged once; the site keeps
    /// serving.
    async fn keep_memory_registered(&self, announcement: RegisterMemoryRequest) {
        let mut said = None;
        loop {
            self.runtime.sleep(REGISTER_EVERY).await;
            let error = self.register_memory(&announcement).await.err();
            if let Some(error) = error.as_ref().filter(|_| said != error) {
                tracing::warn!(site = announcement.site, %error, "the memory site could not register; will try again");
            }
            said = error;
        }
    }

    async fn register_memory(&self, announcement: &RegisterMemoryRequest) -> Result<SiteId, ControlError> {
        let ask = |mut control: ClusterControlClient<Channel>| {
            let request = announcement.clone();
            async move { control.register_memory(request).await }
        };
        Ok(SiteId(self.control.ask(ask).await?.site))
    }

    async fn register(
        &self,
        member: &Member,
        address: &str,
        capacity_bytes: u64,
    ) -> Result<RegisterReply, ControlError> {
        let request = RegisterRequest {
            disk: member.disk.0.to_vec(),
            site: member.site.0,
            address: address.to_owned(),
            rack: self.rack.clone(),
            capacity_bytes,
            record_format: Formats::NEWEST.records,
            chunk_format: Formats::NEWEST.chunks,
        };
        let ask = |mut control: ClusterControlClient<Channel>| {
            let request = request.clone();
            async move { control.register(request).await }
        };
        let reply = self.control.ask(ask).await?;
        self.neighbours.update(reply.sites.iter().cloned().map(SiteAddress::from));
        Ok(reply)
    }

    /// Obtains the number that control assigns to a site that has none, and the formats that programs must read there.
    async fn obtain_number(&self, member: &Member, address: &str) -> Outcome<(SiteId, RequiredFormats)> {
        let mut said = None;
        loop {
            match self.register(member, address, 0).await {
                Ok(reply) => return Ok((SiteId(reply.site), RequiredFormats::from(&reply))),
                Err(ControlError::Refused(reason)) => {
                    return Err(Failure::refused(format!("{}: {reason}", member.path.display())));
                }
                Err(error) => {
                    if said.as_ref() != Some(&error) {
                        tracing::warn!(%error, "the site waits for its number");
                    }
                    said = Some(error);
                }
            }
            self.runtime.sleep(RETRY_EVERY).await;
        }
    }

    /// Renews the registration, and records the formats in force, so that programs that do not read them refuse to
    /// start here. Only then does the site write these formats. Errors are logged once; the site keeps serving.
    async fn keep_registered(
        &self,
        member: &Member,
        site: &DiskSite,
        address: &str,
        mut formats: RequiredFormats,
        in_force: &FormatsInForce,
    ) {
        let mut said = None;
        loop {
            let registered = self.register(member, address, site.status().capacity_bytes).await;
            if let Ok(reply) = &registered
                && let required = RequiredFormats::from(reply)
                && !formats.in_force.covers(required.in_force)
            {
                match write_roster(self.trust.own_name().cluster, member, &required) {
                    Ok(()) => {
                        in_force.raise(required.in_force);
                        formats = required;
                    }
                    Err(error) => {
                        tracing::warn!(site = %member.site, %error, "the formats in force were not written down")
                    }
                }
            }
            let error = registered.err();
            if let Some(error) = error.as_ref().filter(|_| said != error) {
                tracing::warn!(site = %member.site, %error, "the site could not register; will try again");
            }
            said = error;
            self.runtime.sleep(REGISTER_EVERY).await;
        }
    }
}

/// Writes the roster of a directory whose only member is its own site.
fn write_roster(cluster: ClusterId, member: &Member, formats: &RequiredFormats) -> Outcome {
    let roster = Roster {
        generation: 1,
        cluster,
        tolerance: 0,
        next_site: member.site.0.saturating_add(1),
        members: vec![member.clone()],
        formats: formats.clone(),
    };
    let written = roster.write(&member.path, member.disk);
    written.map_err(|error| Failure::refused(format!("{}: {error}", member.path.display())))
}

/// A site's directory, admitted and locked.
struct AdmittedDirectory {
    member: Member,
    /// Formats that programs must read there, by its roster.
    formats: RequiredFormats,
    lock: DirectoryLock,
}

impl From<&RegisterReply> for RequiredFormats {
    fn from(reply: &RegisterReply) -> Self {
        Self {
            in_force: Formats::from_numbers(reply.record_format, reply.chunk_format),
            needs: reply.needs_release.clone(),
        }
    }
}

/// Locks the directory of a site. At the first start, the site gets an identity, but no number yet.
fn admit(runtime: &Runtime, directory: &Path, cluster: ClusterId) -> Outcome<AdmittedDirectory> {
    std::fs::create_dir_all(directory)
        .map_err(|error| Failure::refused(format!("{}: {error}", directory.display())))?;
    let inspected = inspect(directory).map_err(|error: DirectoryError| Failure::refused(error))?;
    let path: PathBuf = inspected.path;
    let lock = DirectoryLock::take(&path).map_err(Failure::refused)?;
    let refuse = |reason: String| Failure::refused(format!("{}: {reason}", path.display()));
    let (member, formats) = match inspected.found {
        DirectoryContents::Member { disk, roster, .. } => {
            if roster.cluster != cluster {
                return Err(refuse(format!(
                    "it belongs to cluster {}, the certificate is of {cluster}; use that cluster's or another directory",
                    roster.cluster
                )));
            }
            let member = roster
                .member(disk)
                .cloned()
                .ok_or_else(|| refuse("its roster does not name it".to_owned()))?;
            (Member { path: path.clone(), ..member }, roster.formats)
        }
        DirectoryContents::Remains(remains) => {
            return Err(refuse(format!(
                "it holds remains of a store ({}) but no roster; remove {} if nobody misses it, or give another directory",
                remains.example,
                path.join(striate_commands::admin::find::STATE_FOLDER).display()
            )));
        }
        DirectoryContents::Unusable(why) => {
            return Err(refuse(format!("{}; {}", why.reason, why.way_out)));
        }
        DirectoryContents::Blank | DirectoryContents::Absent => {
            let mut disk = [0; 16];
            runtime.fill_secret(&mut disk);
            let member = Member { disk: DiskId(disk), site: NO_NUMBER, path: path.clone() };
            let formats = RequiredFormats::default();
            write_roster(cluster, &member, &formats)?;
            (member, formats)
        }
    };
    Ok(AdmittedDirectory { member, formats, lock })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use striate_commands::args::{Cli, Command};

    use super::*;

    #[tokio::test]
    async fn a_process_without_any_site_is_told_which_there_are() {
        let line = ["striate", "site", "--identity", "i", "--control", "c:9300"];
        let Ok(Cli { command: Command::Site(args), .. }) = Cli::try_parse_from(line) else {
            panic!("no site")
        };
        let (_stop, stopped) = watch::channel(false);
        let refused = serve(Runtime::deterministic(1, Duration::ZERO), &args, Vec::new(), stopped).await;
        let reason = refused.unwrap_err().to_string();
        assert!(reason.contains("--data") && reason.contains("--memory-mib"), "{reason}");
    }

    #[tokio::test]
    async fn a_directory_keeps_its_identity_and_its_cluster() {
        let runtime = Runtime::deterministic(1, Duration::ZERO);
        let folder = tempfile::tempdir().unwrap();
        let cluster = ClusterId(7);
        let AdmittedDirectory { mut member, lock, .. } = admit(&runtime, folder.path(), cluster).unwrap();
        assert_eq!(member.site, NO_NUMBER);
        drop(lock);
        let AdmittedDirectory { member: again, lock, .. } = admit(&runtime, folder.path(), cluster).unwrap();
        assert_eq!(
            again, member,
            "a start that ended before control answered has not lost the disk's identity"
        );
        drop(lock);
        member.site = SiteId(3);
        write_roster(cluster, &member, &RequiredFormats::newest()).unwrap();
        let AdmittedDirectory { member: numbered, formats, lock } =
            admit(&runtime, folder.path(), cluster).unwrap();
        assert_eq!((numbered, formats), (member, RequiredFormats::newest()));
        assert!(admit(&runtime, folder.path(), cluster).is_err(), "it is locked");
        drop(lock);
        assert!(admit(&runtime, folder.path(), ClusterId(8)).is_err());
    }
}
