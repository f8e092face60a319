//! `striate cp`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use futures::stream::{self, StreamExt};
use indicatif::ProgressBar;
use striate_runtime::Runtime;

use super::download::{download_file, download_to_standard_output, path_below};
use super::location::{Location, ObjectLocation};
use super::progress::bytes_bar;
use super::store::ObjectStore;
use super::upload::{upload_file, upload_standard_input};
use crate::args::CpArgs;
use crate::failure::{Failure, Outcome};
use crate::interruption::Interruption;

/// The result of a recursive copy.
#[derive(Default)]
struct Tally {
    files: u64,
    bytes: u64,
    failures: Vec<String>,
}

struct Copier {
    runtime: Runtime,
    store: ObjectStore,
    parallel: usize,
    bar: ProgressBar,
}

/// Copies as `args` say.
///
/// # Errors
/// If the arguments contradict each other, or something could not be copied.
pub async fn cp(runtime: Runtime, args: CpArgs) -> Outcome {
    let source = Location::parse(&args.source).map_err(Failure::refused)?;
    let destination = Location::parse(&args.destination).map_err(Failure::refused)?;
    let store = ObjectStore::connect(runtime.clone(), &args.endpoint)?;
    let bar = bytes_bar(0, args.quiet);
    let copier = Copier { runtime: runtime.clone(), store, parallel: usize::from(args.parallel), bar };
    let to_standard_output = destination == Location::Standard;
    let started = runtime.now();
    let tally = match (source, destination, args.recursive) {
        (Location::Path(from), Location::Object(to), true) => copier.upload_tree(&from, &to).await?,
        (Location::Object(from), Location::Path(to), true) => copier.download_tree(&from, &to).await?,
        (source, destination, false) => copier.copy_one(source, destination).await?,
        (_, _, true) => {
            let reason =
                "--recursive copies a directory to s3://BUCKET/PREFIX, or s3://BUCKET/PREFIX to a directory";
            return Err(Failure::refused(reason));
        }
    };
    copier.bar.finish_and_clear();
    if copier.store.interruption().has_happened() {
        return Err(Interruption::failure());
    }
    if !args.quiet && !to_standard_output {
        let files = if tally.files == 1 { "file" } else { "files" };
        println!(
            "{} {files}, {}{}",
            tally.files,
            ByteSize(tally.bytes),
            pace(tally.bytes, runtime.now() - started)
        );
    }
    tally.failures.iter().for_each(|failure| eprintln!("striate: {failure}"));
    match tally.failures.len() {
        0 => Ok(()),
        failed => Err(Failure::failed(format!("{failed} files were not copied"))),
    }
}

/// Returns how long a copy took and how fast it was.
fn pace(bytes: u64, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    match seconds >= 0.1 {
        true => format!(", in {seconds:.1} s, {}/s", ByteSize((bytes as f64 / seconds) as u64)),
        false => String::new(),
    }
}

impl Copier {
    async fn copy_one(&self, source: Location, destination: Location) -> Outcome<Tally> {
        let (runtime, store, bar) = (&self.runtime, &self.store, &self.bar);
        let bytes = match (source, destination) {
            (Location::Path(from), Location::Object(to)) => {
                let size = file_len(&from)?;
                bar.set_length(size);
                let to = to.for_file(&file_name(&from)?);
                upload_file(runtime, store, &from, &to, self.parallel, bar).await?
            }
            (Location::Standard, Location::Object(to)) if !to.key.is_empty() => {
                upload_standard_input(runtime, store, &to, self.parallel, bar).await?
            }
            (Location::Object(from), Location::Path(to)) => {
                bar.set_length(store.head(&from).await?.size);
                let to = match to.is_dir() {
                    true => path_below(&to, &last_component(&from)?).ok_or_else(|| no_file_name(&from))?,
                    false => to,
                };
                download_file(runtime, store, &from, &to, self.parallel, bar).await?
            }
            (Location::Object(from), Location::Standard) => {
                bar.set_length(store.head(&from).await?.size);
                download_to_standard_output(runtime, store, &from, self.parallel, bar).await?
            }
            (Location::Object(from), Location::Object(to)) => {
                let size = store.head(&from).await?.size;
                let to = to.for_file(&last_component(&from)?);
                store.copy(&from, &to).await?;
                size
            }
            _ => return Err(Failure::refused("one side must be s3://BUCKET/KEY, the other a path or -")),
        };
        Ok(Tally { files: 1, bytes, failures: Vec::new() })
    }

    async fn upload_tree(&self, from: &Path, to: &ObjectLocation) -> Outcome<Tally> {
        // Otherwise every file would fail for the same reason.
        self.store.check_bucket(&to.bucket).await?;
        let root = from.to_owned();
        let (files, skipped) = self.runtime.run_blocking(move || walk(&root)).await?;
        self.bar.set_length(files.iter().map(|(_, size)| size).sum());
        let prefix = to.as_prefix();
        let interrupted = self.store.interruption().happens();
        let copies = stream::iter(files).take_until(interrupted).map(|(path, _)| {
            let prefix = &prefix;
            async move {
                let below = path.strip_prefix(from).unwrap_or(&path);
                let name = below.to_str().ok_or_else(|| {
                    Failure::failed(format!("{}: the name is not UTF-8, S3 keys are", path.display()))
                })?;
                let to = ObjectLocation { bucket: to.bucket.clone(), key: format!("{prefix}{name}") };
                upload_file(&self.runtime, &self.store, &path, &to, 2, &self.bar).await
            }
        });
        let mut tally = Tally { failures: skipped, ..Tally::default() };
        tally.count(copies.buffer_unordered(self.parallel)).await;
        Ok(tally)
    }

    async fn download_tree(&self, from: &ObjectLocation, to: &Path) -> Outcome<Tally> {
        let mut tally = Tally::default();
        let mut next = None;
        loop {
            let page = self.store.list(from, "", next.as_deref()).await?;
            self.bar.inc_length(page.objects.iter().map(|object| object.size).sum());
            let interrupted = self.store.interruption().happens();
            let copies = stream::iter(page.objects).take_until(interrupted).map(|object| async move {
                let cut = from.key.rfind('/').map_or(0, |slash| slash + 1);
                let object_at = ObjectLocation { bucket: from.bucket.clone(), key: object.key };
                let name = object_at.key.get(cut..).unwrap_or(&object_at.key);
                let path = path_below(to, name).ok_or_else(|| no_file_name(&object_at))?;
                download_file(&self.runtime, &self.store, &object_at, &path, 2, &self.bar).await
            });
            tally.count(copies.buffer_unordered(self.parallel)).await;
            match page.next {
                Some(token) => next = Some(token),
                None => return Ok(tally),
            }
        }
    }
}

impl Tally {
    async fn count(&mut self, copies: impl stream::Stream<Item = Outcome<u64>>) {
        let mut copies = std::pin::pin!(copies);
        while let Some(copied) = copies.next().await {
            match copied {
                Ok(bytes) => {
                    self.files += 1;
                    self.bytes += bytes;
                }
                Err(failure) => self.failures.push(failure.to_string()),
            }
        }
    }
}

/// The files below a directory with their sizes, and what was skipped.
type Tree = (Vec<(PathBuf, u64)>, Vec<String>);

/// Returns all regular files below `root` with their sizes, following links, and what could not be read.
fn walk(root: &Path) -> Outcome<Tree> {
    if !root.is_dir() {
        let reason = format!("{} is not a directory; leave out --recursive for a file", root.display());
        return Err(Failure::refused(reason));
    }
    let (mut files, mut skipped, mut open) = (Vec::new(), Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = open.pop() {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) => {
                skipped.push(format!("{}: {error}", directory.display()));
                continue;
            }
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            match std::fs::metadata(&path) {
                Ok(metadata) if metadata.is_file() => files.push((path, metadata.len())),
                // A link to a directory may form a cycle.
                Ok(metadata) if metadata.is_dir() && !is_link => open.push(path),
                Ok(metadata) if metadata.is_dir() => {
                    skipped.push(format!("{}: a link to a directory", path.display()));
                }
                Ok(_) => skipped.push(format!("{}: not a regular file", path.display())),
                Err(error) => skipped.push(format!("{}: {error}", path.display())),
            }
        }
    }
    files.sort();
    Ok((files, skipped))
}

fn file_len(path: &Path) -> Outcome<u64> {
    let metadata = std::fs::metadata(path);
    let metadata = metadata.map_err(|error| Failure::refused(format!("{}: {error}", path.display())))?;
    match metadata.is_dir() {
        true => Err(Failure::refused(format!("{} is a directory; add --recursive", path.display()))),
        false => Ok(metadata.len()),
    }
}

fn file_name(path: &Path) -> Outcome<String> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.map(str::to_owned).ok_or_else(|| Failure::refused(format!("{} has no name to use", path.display())))
}

fn no_file_name(object: &ObjectLocation) -> Failure {
    Failure::failed(format!("{object}: the key cannot be a file's name; fetch it with `striate cat`"))
}

fn last_component(object: &ObjectLocation) -> Outcome<String> {
    let name = object.key.rsplit('/').next().filter(|name| !name.is_empty());
    name.map(str::to_owned).ok_or_else(|| Failure::refused(format!("{object} is a prefix; add --recursive")))
}
