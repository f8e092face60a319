//! The workload's objects: written before it runs, removed after it.

use std::collections::VecDeque;

use bytesize::ByteSize;
use futures::stream::{self, StreamExt, TryStreamExt};
use striate_workload::Workload;

use super::contents::Contents;
use crate::args::BenchArgs;
use crate::failure::{Failure, Outcome};
use crate::transfer::progress::{bytes_bar, spinner};
use crate::transfer::{ObjectLocation, ObjectStore};

/// Maximum number of concurrent requests.
const PARALLEL: usize = 16;
/// Approximate maximum of bytes of bodies in flight: large objects are sent with fewer others beside them.
const BYTES_UNDER_WAY: u64 = 256 << 20;
/// Maximum size in bytes of an object written in one request.
const MAX_SIZE: u64 = 1 << 30;

/// The objects of a workload in a store.
pub struct ObjectSet<'a> {
    /// Store of the objects.
    pub store: &'a ObjectStore,
    /// Bucket, and prefix of all keys.
    pub place: &'a ObjectLocation,
    /// Contents of the objects.
    pub contents: &'a Contents,
    /// Arguments, which say whether to show progress.
    pub args: &'a BenchArgs,
}

impl ObjectSet<'_> {
    /// Writes the objects that are missing or have another size.
    ///
    /// # Errors
    /// If the store refuses or cannot be reached, or an object is too large. Objects already written stay, and the same
    /// command continues with the rest.
    pub async fn load(&self, workload: &dyn Workload) -> Outcome {
        let count = workload.objects();
        if let Some(large) = (0..count).find(|&object| workload.size(object) > MAX_SIZE) {
            let (key, size) = (workload.key(large), ByteSize(workload.size(large)));
            return Err(Failure::refused(format!(
                "{key} would have {size}; objects are written in one request, of at most 1 GiB"
            )));
        }
        if self.store.ensure_bucket(&self.place.bucket).await? {
            eprintln!("made the bucket {}", self.place.bucket);
        }
        let missing = self.missing(workload).await?;
        let bytes: u64 = missing.iter().map(|&object| workload.size(object)).sum();
        let bar = bytes_bar(bytes, self.args.quiet);
        bar.set_message(format!("loading {} of {count} objects", missing.len()));
        let largest = missing.iter().map(|&object| workload.size(object)).max().unwrap_or(0).max(1);
        let parallel = PARALLEL.min((BYTES_UNDER_WAY / largest).max(1) as usize);
        let writes = missing.iter().map(|&object| {
            let (key, size) = (workload.key(object), workload.size(object));
            let bar = &bar;
            async move {
                self.store.put(&self.at(&key), self.contents.body(&key, size)).await?;
                bar.inc(size);
                Ok::<_, Failure>(())
            }
        });
        let written = stream::iter(writes).buffer_unordered(parallel).try_collect::<()>().await;
        bar.finish_and_clear();
        written.map_err(|failure| {
            failure.with_hint("the objects loaded so far are kept; run the same command again to continue")
        })?;
        let others = if missing.len() as u64 == count { "" } else { "; the others were there" };
        eprintln!("loaded {} of {count} objects, {}{others}", missing.len(), ByteSize(bytes));
        Ok(())
    }

    /// Returns the objects that are missing or have another size.
    async fn missing(&self, workload: &dyn Workload) -> Outcome<Vec<u64>> {
        let mut is_there = vec![false; workload.objects() as usize];
        let mut listing = Listing::new(self);
        while let Some((key, size)) = listing.next().await? {
            if let Some(object) = workload.object(&key).filter(|&object| object < workload.objects()) {
                is_there[object as usize] = workload.size(object) == size;
            }
        }
        Ok((0..workload.objects()).filter(|&object| !is_there[object as usize]).collect())
    }

    /// Removes all objects whose keys the workload could have written; others under the prefix stay.
    ///
    /// # Errors
    /// If the store refuses or cannot be reached.
    pub async fn clean(&self, workload: &dyn Workload) -> Outcome {
        let line = spinner(self.args.quiet);
        let (mut removed, mut left) = (0u64, 0u64);
        let mut listing = Listing::new(self);
        let mut page = Vec::new();
        loop {
            let next = listing.next().await?;
            let is_end = next.is_none();
            if let Some((key, _)) = next {
                match workload.object(&key) {
                    Some(_) => page.push(self.at(&key)),
                    None => left += 1,
                }
            }
            if page.len() == 1_000 || is_end {
                let deletes = page.drain(..).map(|at| async move { self.store.delete(&at).await });
                removed += stream::iter(deletes)
                    .buffer_unordered(PARALLEL)
                    .try_fold(0, |count, ()| std::future::ready(Ok(count + 1)))
                    .await?;
                line.set_message(format!("removed {removed} objects"));
            }
            if is_end {
                break;
            }
        }
        line.finish_and_clear();
        let others =
            if left == 0 { String::new() } else { format!("; {left} others under the prefix were left") };
        eprintln!("removed {removed} objects{others}");
        Ok(())
    }

    fn at(&self, key: &str) -> ObjectLocation {
        ObjectLocation { bucket: self.place.bucket.clone(), key: format!("{}{key}", self.place.key) }
    }
}

/// All objects below the prefix, page by page.
struct Listing<'a> {
    set: &'a ObjectSet<'a>,
    page: VecDeque<(String, u64)>,
    next: Option<String>,
    is_begun: bool,
}

impl<'a> Listing<'a> {
    fn new(set: &'a ObjectSet<'a>) -> Self {
        Self { set, page: VecDeque::new(), next: None, is_begun: false }
    }

    /// Returns the next object: its key without the prefix, and its size.
    async fn next(&mut self) -> Outcome<Option<(String, u64)>> {
        while self.page.is_empty() {
            if self.is_begun && self.next.is_none() {
                return Ok(None);
            }
            self.is_begun = true;
            let page = self.set.store.list(self.set.place, "", self.next.as_deref()).await?;
            self.next = page.next;
            let prefix = self.set.place.key.as_str();
            self.page.extend(
                page.objects
                    .into_iter()
                    .filter_map(|object| Some((object.key.strip_prefix(prefix)?.to_owned(), object.size))),
            );
        }
        Ok(self.page.pop_front())
    }
}
