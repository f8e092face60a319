//! `striate-lab site`: one site as its own process, as slow as a modelled medium. `striate-lab reality` starts it.

use std::future;
use std::sync::Arc;

use striate_core::{Formats, FormatsInForce, RackId, SiteId};
use striate_runtime::Runtime;
use striate_site::disk::{DiskStore, DiskStoreOptions};
use striate_site::filesystem::RealFileSystem;
use striate_site::protocol::limits::ServiceLimits;
use striate_site::service::serve_site;
use striate_site::{ChunkStore, LocalSite, MemoryStore, QueueLimits, SiteDirectory, SiteIdentity};
use striate_trust::Trust;
use tokio::net::TcpListener;

use super::site_processes::Peers;
use crate::args::SiteArgs;
use crate::failure::{Failure, Outcome};
use crate::medium::DelayedStore;

/// Serves until the process is killed.
///
/// # Errors
/// If the identity, the directory or the address cannot be used.
pub(super) async fn run(runtime: &Runtime, args: SiteArgs) -> Outcome {
    let trust = Trust::load(runtime, &args.identity).map_err(Failure::refused)?;
    let listener = TcpListener::bind(&args.address)
        .await
        .map_err(|error| Failure::refused(format!("{}: {error}", args.address)))?;
    let identity = SiteIdentity {
        cluster: trust.own_name().cluster,
        site: SiteId(args.number),
        rack: RackId(args.rack.clone()),
    };
    let peers = args.peers.as_deref().map(|file| Peers::open(runtime, &trust, file)).transpose()?;
    let peers = peers.map(|peers| Arc::new(peers) as Arc<dyn SiteDirectory>);
    let (store, limits) = open(runtime, args).await?;
    let site = Arc::new(LocalSite::new(runtime.clone(), identity, store, limits));
    if let Some(peers) = &peers {
        site.set_directory(Arc::downgrade(peers));
    }
    let (gate, limits) = (Arc::new(trust), ServiceLimits::default());
    serve_site(runtime.clone(), listener, gate, site, limits, future::pending()).await;
    Ok(())
}

async fn open(runtime: &Runtime, args: SiteArgs) -> Outcome<(Arc<dyn ChunkStore>, QueueLimits)> {
    if args.memory {
        return Ok((Arc::new(MemoryStore::default()), QueueLimits::default()));
    }
    let of_store = runtime.clone();
    let opened = runtime.run_blocking(move || {
        std::fs::create_dir_all(&args.data)
            .map_err(|error| Failure::refused(format!("{}: {error}", args.data.display())))?;
        let formats = FormatsInForce::new(Formats::NEWEST);
        let options = DiskStoreOptions { formats, ..DiskStoreOptions::default() };
        let store = DiskStore::open(&of_store, Arc::new(RealFileSystem), &args.data, options);
        store.map_err(Failure::refused)
    });
    let store = Arc::new(opened.await?);
    Ok(match args.medium {
        None => (store, QueueLimits::default()),
        Some(calibration) => {
            let model = calibration.site;
            let delayed = DelayedStore::new(runtime.clone(), store, model, args.medium_seed);
            (Arc::new(delayed), QueueLimits { workers: model.workers, ..QueueLimits::default() })
        }
    })
}
