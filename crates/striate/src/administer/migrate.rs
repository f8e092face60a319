//! `striate admin migrate`.

use std::sync::Arc;

use striate_commands::args::{MigrateArgs, Source};
use striate_commands::failure::{Failure, Outcome};
use striate_commands::transfer::progress::spinner;
use striate_meta::migration::{MigrationEnd, MigrationError, Progress, Step, cancel, migrate};
use striate_meta::{EngineUrl, MetaError, MetaStore};
use striate_runtime::Runtime;

use crate::start::offline::OfflineStore;

/// An open engine, and its name for display.
struct OpenedEngine {
    store: Arc<dyn MetaStore>,
    name: String,
    /// Lock on a stopped server, held while the engine is open.
    offline: Option<OfflineStore>,
}

impl OpenedEngine {
    async fn url(runtime: &Runtime, url: &EngineUrl) -> Outcome<Self> {
        let store = striate_meta::open(runtime, url).await;
        let store = store.map_err(|error| Failure::refused(format!("{url}: {error}")))?;
        Ok(Self { store, name: url.to_string(), offline: None })
    }

    async fn source(runtime: &Runtime, args: &MigrateArgs) -> Outcome<Self> {
        match &args.from {
            Source::Engine(url) if args.directories.is_empty() => Self::url(runtime, url).await,
            Source::Engine(_) => Err(Failure::refused("directories belong to --from embedded only")),
            Source::Embedded if args.directories.is_empty() => Err(Failure::refused(
                "name the directories of the stopped server, as it is started with them",
            )),
            Source::Embedded => {
                let offline = OfflineStore::open(runtime, &args.directories).await?;
                let name = format!("the embedded engine of cluster {}", offline.cluster);
                Ok(Self { store: Arc::new(offline.store.clone()), name, offline: Some(offline) })
            }
        }
    }

    async fn close(self) {
        if let Some(offline) = &self.offline {
            offline.store.close().await;
        }
    }
}

/// Moves metadata from one engine to another.
///
/// # Errors
/// If an engine cannot be opened or fails, or the copy cannot be proved equal. The source then remains the metadata in
/// use, but fenced; running the same command again resumes the migration.
pub async fn run(runtime: Runtime, args: MigrateArgs) -> Outcome {
    let source = OpenedEngine::source(&runtime, &args).await?;
    let ended = match &args.to {
        Some(to) => to_engine(&runtime, &source, to, args.quiet).await,
        None => cancel(&runtime, &*source.store)
            .await
            .map(|()| println!("{} is in use again", source.name))
            .map_err(|error| Failure::failed(format!("{}: {error}", source.name))),
    };
    source.close().await;
    ended
}

async fn to_engine(runtime: &Runtime, source: &OpenedEngine, to: &EngineUrl, quiet: bool) -> Outcome {
    let target = OpenedEngine::url(runtime, to).await?;
    if target.name == source.name {
        return Err(Failure::refused("the source and the target are the same"));
    }
    let bar = spinner(quiet);
    let mut on_progress = |progress: Progress| {
        let doing = match progress.step {
            Step::Copying => "copied",
            Step::Comparing => "compared",
        };
        bar.set_message(format!("{doing} {} rows, {} differed", progress.rows, progress.different));
    };
    let ends = (&source.store, &target.store);
    let end = |store, name| MigrationEnd { store, name };
    let (from, to) = (end(&**ends.0, &source.name), end(&**ends.1, &target.name));
    let moved = migrate(runtime, from, to, &mut on_progress).await;
    bar.finish_and_clear();
    let rows = moved.map_err(|error| explain(error, source))?;
    println!("{rows} rows moved and compared: start with {}", target.name);
    Ok(())
}

fn explain(error: MigrationError, source: &OpenedEngine) -> Failure {
    let failure = Failure::failed(&error);
    match error {
        MigrationError::Meta(
            MetaError::NoSpace(_) | MetaError::Unavailable(_) | MetaError::UnknownOutcome(_),
        ) => failure.with_hint(&format!(
            "run the same command again to go on, or with --cancel instead of --to to use {} again",
            source.name
        )),
        _ => failure,
    }
}
