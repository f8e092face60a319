//! Downloads: fetches ranges of one version of an object, several at a time, into a file that gets its name last.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use indicatif::ProgressBar;
use striate_runtime::Runtime;
use striate_runtime::output::StandardOutput;

use super::location::ObjectLocation;
use super::store::{Head, ObjectStore};
use crate::failure::{Failure, Outcome};

/// Bytes per request.
const RANGE_LEN: u64 = 8 << 20;

/// Returns the ranges (offset, length) that cover `size` bytes.
fn ranges(size: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..size.div_ceil(RANGE_LEN)).map(move |index| {
        let offset = index * RANGE_LEN;
        (offset, RANGE_LEN.min(size - offset))
    })
}

/// Returns the file below `directory` that the rest of a key names; `None` for a name that would leave the directory or
/// is not a valid file name.
pub fn path_below(directory: &Path, name: &str) -> Option<PathBuf> {
    let is_plain = !name.is_empty() && !name.ends_with('/') && !name.contains("//") && !name.contains('\0');
    let mut components = Path::new(name).components();
    (is_plain && components.all(|part| matches!(part, Component::Normal(_)))).then(|| directory.join(name))
}

/// Fetches an object into `path`, with at most `parallel` requests at once.
///
/// # Errors
/// If the object changes meanwhile, the file cannot be written, or the store refuses or cannot be reached. The file
/// then does not appear.
pub async fn download_file(
    runtime: &Runtime,
    store: &ObjectStore,
    from: &ObjectLocation,
    path: &Path,
    parallel: usize,
    bar: &ProgressBar,
) -> Outcome<u64> {
    let head = store.head(from).await?;
    let fail = |error: std::io::Error| Failure::failed(format!("{}: {error}", path.display()));
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(fail)?;
    }
    let Some(name) = path.file_name() else {
        return Err(Failure::refused(format!("{} is no name for a file", path.display())));
    };
    let name = name.to_string_lossy();
    let partial = path.with_file_name(format!(".{name}.{:016x}.partial", runtime.random_u64()));
    let fetched = fetch(runtime, store, from, &head, &partial, parallel, bar).await;
    let named = fetched.and_then(|()| std::fs::rename(&partial, path).map_err(fail));
    if named.is_err() {
        // Best effort: the first failure is the one to report.
        let _ = std::fs::remove_file(&partial);
    }
    named.map(|()| head.size)
}

async fn fetch(
    runtime: &Runtime,
    store: &ObjectStore,
    from: &ObjectLocation,
    head: &Head,
    partial: &Path,
    parallel: usize,
    bar: &ProgressBar,
) -> Outcome {
    let fail = |error: std::io::Error| Failure::failed(format!("{}: {error}", partial.display()));
    let file = Arc::new(create_new(partial).map_err(fail)?);
    let piece = |(offset, len): (u64, u64)| {
        let file = Arc::clone(&file);
        async move {
            let bytes = store.get_range(from, &head.etag, offset, len).await?;
            let write = move || file.write_all_at(&bytes, offset);
            runtime.run_blocking(write).await.map_err(fail)?;
            bar.inc(len);
            Ok::<_, Failure>(())
        }
    };
    stream::iter(ranges(head.size)).map(piece).buffer_unordered(parallel).try_collect::<()>().await
}

fn create_new(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Writes an object to the standard output.
///
/// # Errors
/// As for [`download_file`]; bytes already written stay written.
pub async fn download_to_standard_output(
    runtime: &Runtime,
    store: &ObjectStore,
    from: &ObjectLocation,
    parallel: usize,
    bar: &ProgressBar,
) -> Outcome<u64> {
    let head = store.head(from).await?;
    let etag = &head.etag;
    let fetch = |(offset, len)| store.get_range(from, etag, offset, len);
    let mut pieces = stream::iter(ranges(head.size)).map(fetch).buffered(parallel);
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        let len = piece.len() as u64;
        let write = move || StandardOutput.write_all(&piece);
        let written = runtime.run_blocking(write).await;
        written.map_err(|error| Failure::failed(format!("the standard output: {error}")))?;
        bar.inc(len);
    }
    let flushed = StandardOutput.flush();
    flushed.map_err(|error| Failure::failed(format!("the standard output: {error}")))?;
    Ok(head.size)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_never_lead_out_of_the_directory() {
        let below = |name| path_below(Path::new("/d"), name);
        assert_eq!(below("a/b.txt"), Some(PathBuf::from("/d/a/b.txt")));
        for name in ["", "..", "../x", "a/../../x", "/etc/passwd", "a//b", "a/", "a\0b"] {
            assert_eq!(below(name), None, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_the_key_the_path_is_below_the_directory(name in "[a./\\\\ ]{0,12}") {
            if let Some(path) = path_below(Path::new("/d"), &name) {
                prop_assert!(path.starts_with("/d"));
                prop_assert!(!path.components().any(|part| part == Component::ParentDir));
            }
        }

        #[test]
        fn ranges_cover_every_byte_once(size in 0u64..200_000_000) {
            let end = ranges(size).fold(0, |at, (offset, len)| {
                assert_eq!(at, offset);
                assert!(len > 0 && len <= RANGE_LEN);
                at + len
            });
            prop_assert_eq!(end, size);
        }
    }
}
