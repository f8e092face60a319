//! Uploads: sends small files in one request, larger files and streams in parts.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use indicatif::ProgressBar;
use striate_runtime::Runtime;
use striate_s3_client::xml::Part;

use super::location::ObjectLocation;
use super::store::ObjectStore;
use crate::failure::{Failure, Outcome};

/// Minimum length of a part in bytes; larger files are sent in parts.
const PART_LEN: u64 = 16 << 20;
/// Maximum number of parts that S3 allows.
const MAX_PARTS: u64 = 10_000;

/// Returns the length of the parts of a file of `size` bytes: a whole number of MiB that needs at most [`MAX_PARTS`].
fn part_len(size: u64) -> u64 {
    PART_LEN.max(size.div_ceil(MAX_PARTS).next_multiple_of(1 << 20))
}

/// Stores the file at `path`, with at most `parallel` concurrent requests.
///
/// # Errors
/// If the file cannot be read, or the store refuses or cannot be reached. Nothing then becomes visible.
pub async fn upload_file(
    runtime: &Runtime,
    store: &ObjectStore,
    path: &Path,
    to: &ObjectLocation,
    parallel: usize,
    bar: &ProgressBar,
) -> Outcome<u64> {
    let fail = |error: std::io::Error| Failure::failed(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(fail)?;
    let size = file.metadata().map_err(fail)?.len();
    let source = Source { runtime, file: Arc::new(file), path };
    if size <= PART_LEN {
        store.put(to, source.read(0, size).await?).await?;
        bar.inc(size);
        return Ok(size);
    }
    let part = part_len(size);
    let parts =
        (0..size.div_ceil(part)).map(|index| (index as u32 + 1, index * part, part.min(size - index * part)));
    let upload = store.create_upload(to).await?;
    let send = |(number, offset, len): (u32, u64, u64)| {
        let (source, upload) = (&source, &upload);
        async move {
            let sent = store.put_part(to, upload, number, source.read(offset, len).await?).await?;
            bar.inc(len);
            Ok::<_, Failure>(sent)
        }
    };
    let sent = stream::iter(parts).map(send).buffered(parallel).try_collect::<Vec<_>>().await;
    finish(store, to, &upload, sent).await?;
    Ok(size)
}

/// Stores the contents of the standard input.
///
/// # Errors
/// As for [`upload_file`].
pub async fn upload_standard_input(
    runtime: &Runtime,
    store: &ObjectStore,
    to: &ObjectLocation,
    parallel: usize,
    bar: &ProgressBar,
) -> Outcome<u64> {
    let first = read_standard_input(runtime).await?;
    if (first.len() as u64) < PART_LEN {
        let size = first.len() as u64;
        store.put(to, first).await?;
        bar.inc(size);
        return Ok(size);
    }
    let upload = store.create_upload(to).await?;
    let parts = stream::try_unfold((1u32, Some(first)), |(number, piece)| async move {
        let Some(piece) = piece.filter(|piece| !piece.is_empty()) else { return Ok(None) };
        let is_last = (piece.len() as u64) < PART_LEN;
        let next = if is_last { None } else { Some(read_standard_input(runtime).await?) };
        Ok::<_, Failure>(Some(((number, piece), (number + 1, next))))
    });
    let upload_id = &upload;
    let send = |part: Outcome<(u32, Bytes)>| async move {
        let (number, piece) = part?;
        let len = piece.len() as u64;
        let sent = store.put_part(to, upload_id, number, piece).await?;
        bar.inc(len);
        Ok::<_, Failure>(sent)
    };
    let sent = parts.map(send).buffered(parallel).try_collect::<Vec<_>>().await;
    finish(store, to, &upload, sent).await?;
    Ok(bar.position())
}

/// Completes an upload if all parts were sent, and aborts it otherwise.
async fn finish(store: &ObjectStore, to: &ObjectLocation, upload: &str, sent: Outcome<Vec<Part>>) -> Outcome {
    match sent {
        Ok(parts) => store.complete_upload(to, upload, parts).await,
        Err(failure) => {
            // The first failure is the one that matters; the store collects what a failed abort leaves behind.
            let _ = store.abort_upload(to, upload).await;
            Err(failure)
        }
    }
}

/// A file, read at offsets.
struct Source<'a> {
    runtime: &'a Runtime,
    file: Arc<File>,
    path: &'a Path,
}

impl Source<'_> {
    async fn read(&self, offset: u64, len: u64) -> Outcome<Bytes> {
        let file = Arc::clone(&self.file);
        let read = move || {
            let mut piece = vec![0; len as usize];
            file.read_exact_at(&mut piece, offset).map(|()| Bytes::from(piece))
        };
        self.runtime.run_blocking(read).await.map_err(|error| {
            Failure::failed(format!("{}: {error} (was it changed while it was read?)", self.path.display()))
        })
    }
}

/// Reads the next [`PART_LEN`] bytes of the standard input, or fewer at its end.
async fn read_standard_input(runtime: &Runtime) -> Outcome<Bytes> {
    let read = || {
        let mut piece = Vec::new();
        std::io::stdin().lock().take(PART_LEN).read_to_end(&mut piece).map(|_| Bytes::from(piece))
    };
    runtime.run_blocking(read).await.map_err(|error| Failure::failed(format!("the standard input: {error}")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_object_needs_more_parts_than_s3_allows(size in 1u64..(5 << 40)) {
            let part = part_len(size);
            prop_assert!(size.div_ceil(part) <= MAX_PARTS);
            prop_assert!((5 << 20..=5 << 30).contains(&part));
        }
    }
}
