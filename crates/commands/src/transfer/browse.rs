//! `striate ls`, `rm` and `cat`.

use crate::output::printable;
use bytesize::ByteSize;
use futures::stream::{self, StreamExt};
use serde::Serialize;
use striate_runtime::Runtime;

use super::download::download_to_standard_output;
use super::location::ObjectLocation;
use super::progress::bytes_bar;
use super::store::{ListedPage, ObjectStore};
use crate::args::{CatArgs, LsArgs, RmArgs};
use crate::failure::{Failure, Outcome};

/// Maximum number of buckets queried at the same time.
const PARALLEL_LOOKS: usize = 16;
/// Maximum number of deletes at the same time.
const PARALLEL_DELETES: usize = 16;

/// Lists buckets or objects.
///
/// # Errors
/// If the store refuses or cannot be reached.
pub async fn ls(runtime: Runtime, args: LsArgs) -> Outcome {
    let store = ObjectStore::connect(runtime, &args.endpoint)?;
    let Some(location) = args.location else {
        let looked_at = store.buckets().await?.into_iter().map(|bucket| {
            let store = &store;
            async move { (store.is_volatile(&bucket.name).await, bucket) }
        });
        let mut looked_at = stream::iter(looked_at).buffered(PARALLEL_LOOKS);
        while let Some((is_volatile, bucket)) = looked_at.next().await {
            if args.json {
                let line = BucketLine {
                    bucket: &bucket.name,
                    created: &bucket.creation_date,
                    volatile: is_volatile,
                };
                println!("{}", serde_json::to_string(&line).map_err(Failure::failed)?);
                continue;
            }
            let volatile = if is_volatile { "  (volatile: in memory only)" } else { "" };
            println!("{}  {}{volatile}", bucket.creation_date, printable(&bucket.name));
        }
        return Ok(());
    };
    let at = ObjectLocation::parse(&location).map_err(Failure::refused)?;
    let delimiter = if args.recursive { "" } else { "/" };
    let mut next = None;
    loop {
        let page = store.list(&at, delimiter, next.as_deref()).await?;
        match args.json {
            true => show_json(&page)?,
            false => show(&page),
        }
        match page.next {
            Some(token) => next = Some(token),
            None => return Ok(()),
        }
    }
}

fn show(page: &ListedPage) {
    page.prefixes.iter().for_each(|prefix| println!("{:>24}  {:>10}  {}", "", "", printable(prefix)));
    for object in &page.objects {
        println!("{:>24}  {:>10}  {}", object.modified, ByteSize(object.size), printable(&object.key));
    }
}

/// A bucket in the JSON of a listing.
#[derive(Serialize)]
struct BucketLine<'a> {
    bucket: &'a str,
    created: &'a str,
    volatile: bool,
}

/// An object or a prefix in the JSON of a listing. Names are exact there: nothing is escaped but what JSON escapes.
#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Prefix { prefix: &'a str },
    Object { key: &'a str, size: u64, modified: &'a str },
}

fn show_json(page: &ListedPage) -> Outcome {
    let prefixes = page.prefixes.iter().map(|prefix| Line::Prefix { prefix });
    let objects = page.objects.iter().map(|object| Line::Object {
        key: &object.key,
        size: object.size,
        modified: &object.modified,
    });
    for line in prefixes.chain(objects) {
        println!("{}", serde_json::to_string(&line).map_err(Failure::failed)?);
    }
    Ok(())
}

/// Deletes an object, or everything below a prefix.
///
/// # Errors
/// If the store refuses or cannot be reached.
pub async fn rm(runtime: Runtime, args: RmArgs) -> Outcome {
    let store = ObjectStore::connect(runtime, &args.endpoint)?;
    let at = ObjectLocation::parse(&args.location).map_err(Failure::refused)?;
    if !args.recursive {
        if at.key.is_empty() {
            return Err(Failure::refused(format!(
                "{at} is a whole bucket; add --recursive to delete all that is in it"
            )));
        }
        store.head(&at).await?;
        return store.delete(&at).await;
    }
    let mut deleted = 0_u64;
    // Deleting moves later objects to the front, so each round lists from the beginning.
    loop {
        let page = store.list(&at, "", None).await?;
        if page.objects.is_empty() {
            println!("{deleted} {} deleted", if deleted == 1 { "object" } else { "objects" });
            return Ok(());
        }
        let deletes = stream::iter(page.objects).map(|object| {
            let object = ObjectLocation { bucket: at.bucket.clone(), key: object.key };
            let store = &store;
            async move { store.delete(&object).await }
        });
        let mut deletes = deletes.buffer_unordered(PARALLEL_DELETES);
        while let Some(done) = deletes.next().await {
            done?;
            deleted += 1;
        }
    }
}

/// Writes an object to the standard output.
///
/// # Errors
/// If the store refuses or cannot be reached.
pub async fn cat(runtime: Runtime, args: CatArgs) -> Outcome {
    let store = ObjectStore::connect(runtime.clone(), &args.endpoint)?;
    let at = ObjectLocation::parse(&args.location).map_err(Failure::refused)?;
    let hidden = bytes_bar(0, true);
    download_to_standard_output(&runtime, &store, &at, 4, &hidden).await.map(drop)
}
