//! `striate site`: one storage site as a process, and the cluster secret that sites and gateways share.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use striate_core::{ClusterId, RackId, SiteId};
use striate_meta::embedded::DiskId;
use striate_runtime::Runtime;
use striate_site::SiteDirectory;
use striate_site::protocol::limits::ServiceLimits;
use striate_site::protocol::session::ClusterSecret;
use striate_site::service::serve_site;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};

use crate::args::SiteArgs;
use crate::failure::{Failure, Outcome};
use crate::server::{listen, watch_signals};
use crate::site_list::{ListedSites, SiteList};
use crate::start::directories::{DirectoryError, Found, inspect};
use crate::start::lock::DirectoryLock;
use crate::start::roster::{Member, Roster};
use crate::start::site::{DiskSite, Medium};

/// The cluster of those who share a secret: the first half of a hash of it, so that it need not be configured.
pub fn cluster_of(secret: &ClusterSecret) -> ClusterId {
    let digest =
        Sha256::new().chain_update(b"striate cluster").chain_update(secret.to_hex().as_bytes()).finalize();
    ClusterId(u128::from_be_bytes(digest[..16].try_into().expect("half of a SHA-256 has 16 bytes")))
}

/// Reads a cluster's secret.
///
/// # Errors
/// When the file cannot be read, others can read it, or it holds no secret.
pub fn read_secret(path: &Path) -> Outcome<ClusterSecret> {
    let fail = |reason: String| Failure::refused(format!("--secret {}: {reason}", path.display()));
    let metadata = std::fs::metadata(path).map_err(|error| fail(error.to_string()))?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(fail("others can read it; chmod 600 it".to_owned()));
    }
    let text =
        zeroize::Zeroizing::new(std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?);
    ClusterSecret::from_hex(&text)
        .map_err(|reason| fail(format!("{reason}; make one with `striate site --make-secret`")))
}

fn make_secret(runtime: &Runtime, path: &Path) -> Outcome {
    let fail = |error: std::io::Error| Failure::refused(format!("{}: {error}", path.display()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(fail)?;
    writeln!(file, "{}", ClusterSecret::generate(runtime).to_hex().as_str()).map_err(fail)?;
    println!("The secret of a new cluster is in {}; give a copy to every site and gateway", path.display());
    Ok(())
}

/// Runs a site until SIGTERM or SIGINT, or makes a secret.
///
/// # Errors
/// When it cannot start, with the cause and the way out.
pub async fn run(runtime: Runtime, args: SiteArgs) -> Outcome {
    if let Some(path) = &args.make_secret {
        return make_secret(&runtime, path);
    }
    let listener = listen(&args.address, "--address").await?;
    let (draining, mut drain) = watch::channel(false);
    runtime.spawn(watch_signals(Arc::new(Notify::new()), draining));
    let shutdown = async move {
        // A closed channel means that the watcher is gone: stop as well.
        let _ = drain.wait_for(|&draining| draining).await;
    };
    serve(runtime, &args, listener, shutdown).await
}

/// Runs a site on an open port until `shutdown`.
///
/// # Errors
/// When it cannot start, with the cause and the way out.
pub async fn serve(
    runtime: Runtime,
    args: &SiteArgs,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send,
) -> Outcome {
    let missing = || Failure::refused("give DIR, --id and --secret; `striate site --help` shows an example");
    let (directory, id, secret) = match (&args.directory, args.id, &args.secret) {
        (Some(directory), Some(id), Some(secret)) => (directory, SiteId(id), read_secret(secret)?),
        _ => return Err(missing()),
    };
    let list = args.sites.as_deref().map(SiteList::read).transpose()?;
    let address = listener.local_addr().map_err(Failure::failed)?;
    let cluster = cluster_of(&secret);
    let (member, lock) = admit(&runtime, directory, cluster, id)?;
    let rack = args.rack.clone().map(RackId);
    let medium = args.medium.map(|calibration| Medium { model: calibration.site, seed: args.medium_seed });
    if let Some(medium) = &medium {
        tracing::warn!(?medium, "the site is made as slow as a modelled medium: for experiments only");
    }
    let site = DiskSite::open_as(&runtime, cluster, &member, rack, medium).await.map_err(Failure::refused)?;
    let around = |list| ListedSites::around(site.site(), &list, &runtime, &secret, cluster);
    // The site holds the directory weakly, for the directory holds the site.
    let others =
        list.map(around).transpose().map_err(|reason| Failure::refused(format!("--sites: {reason}")))?;
    let others: Option<Arc<dyn SiteDirectory>> = others.map(|others| Arc::new(others) as _);
    if let Some(others) = &others {
        site.set_directory(Arc::downgrade(others));
    }
    tracing::info!(site = %id, %address, directory = %member.path.display(), %cluster, "the site serves");
    serve_site(runtime, listener, site.local(), secret, ServiceLimits::default(), shutdown).await;
    site.close().await;
    drop((others, lock));
    tracing::info!("stopped");
    Ok(())
}

/// The site's directory as the only member of a roster of its own; made at the first start.
fn admit(
    runtime: &Runtime,
    directory: &Path,
    cluster: ClusterId,
    id: SiteId,
) -> Outcome<(Member, DirectoryLock)> {
    std::fs::create_dir_all(directory)
        .map_err(|error| Failure::refused(format!("{}: {error}", directory.display())))?;
    let inspected = inspect(directory).map_err(|error: DirectoryError| Failure::refused(error))?;
    let path = inspected.path;
    let lock = DirectoryLock::take(&path).map_err(Failure::refused)?;
    let refuse = |reason: String| Failure::refused(format!("{}: {reason}", path.display()));
    let member = match inspected.found {
        Found::Member { disk, roster, .. } => {
            if roster.cluster != cluster {
                return Err(refuse(format!(
                    "it belongs to cluster {}, the secret is of {cluster}; use that cluster's secret or another directory",
                    roster.cluster
                )));
            }
            let known = roster
                .member(disk)
                .cloned()
                .ok_or_else(|| refuse("its roster does not name it".to_owned()))?;
            if known.site != id {
                return Err(refuse(format!("it is site {}; start it with --id {}", known.site, known.site)));
            }
            Member { path: path.clone(), ..known }
        }
        Found::Remains(remains) => {
            return Err(refuse(format!(
                "it holds remains of a store ({}) but no roster; remove {} if nobody misses it, or give another directory",
                remains.example,
                path.join(crate::admin::find::STATE_FOLDER).display()
            )));
        }
        Found::Blank | Found::Absent => {
            let mut disk = [0; 16];
            runtime.fill_secret(&mut disk);
            let member = Member { disk: DiskId(disk), site: id, path: path.clone() };
            let roster = Roster {
                generation: 1,
                cluster,
                tolerance: 0,
                next_site: id.0.saturating_add(1),
                members: vec![member.clone()],
            };
            roster.write(&path, member.disk).map_err(|error| refuse(error.to_string()))?;
            member
        }
    };
    Ok((member, lock))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_secret_is_made_once_and_read_only_where_others_cannot() {
        let runtime = Runtime::deterministic(1, Duration::ZERO);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        make_secret(&runtime, &path).unwrap();
        let secret = read_secret(&path).unwrap();
        assert_eq!(cluster_of(&secret), cluster_of(&read_secret(&path).unwrap()));
        assert!(make_secret(&runtime, &path).is_err());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read_secret(&path).unwrap_err().to_string().contains("chmod 600"));
    }

    #[tokio::test]
    async fn a_site_keeps_its_number_and_its_cluster() {
        let runtime = Runtime::deterministic(1, Duration::ZERO);
        let folder = tempfile::tempdir().unwrap();
        let (cluster, id) = (ClusterId(7), SiteId(3));
        let (member, lock) = admit(&runtime, folder.path(), cluster, id).unwrap();
        drop(lock);
        assert_eq!(admit(&runtime, folder.path(), cluster, id).unwrap().0, member);
        let wrong = admit(&runtime, folder.path(), cluster, SiteId(4)).unwrap_err().to_string();
        assert!(wrong.contains("--id 3"), "{wrong}");
        assert!(admit(&runtime, folder.path(), ClusterId(8), id).is_err());
    }
}
