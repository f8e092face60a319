//! Commands that operate a running server through its admin socket: `status`, `verify`, `explain`, `heal`, `pack`,
//! `disk`, `bucket`, `admin keys|meta|upgrade`.

mod cache;
mod explain;
mod keys;
pub mod losses;
mod metadata;
mod pack;
pub mod report;
mod screen;
mod upgrade;

use std::path::Path;
use std::time::Duration;

use bytesize::ByteSize;
use futures::future::LocalBoxFuture;
use serde::Serialize;
use serde_json::Value;
use striate_client::SettingChange;
use striate_control::UnreadableReport;
use striate_core::{CodeSpec, Profile, Tier};
use striate_plan::cache::splits::MOST_DATA_SPLITS;
use striate_runtime::Runtime;

use crate::admin::client::AdminClient;
use crate::admin::messages::{
    BucketInfo, ChooseProfile, DiskOutcome, DiskPath, DrainDisk, DrainProgress, Explain, Explanation,
    NewBucket, NewOrigin, ProfileState, ReplaceOutcome, SetBucket, Status,
};
use crate::args::{
    AdminArgs, BucketCommand, BucketPacking, ColdArgs, DiskCommand, ExplainArgs, HealArgs, MetaCommand,
    OriginArgs, PackCommand, ProfileArgs, ServerCommand, StatusArgs, VerifyArgs,
};
use crate::failure::{Failure, Outcome};
use crate::interruption::Interruption;
use crate::output::printable;
use crate::transfer::progress::{bytes_bar, spinner};

/// Refresh interval of `striate status --watch`.
const WATCH_EVERY: Duration = Duration::from_secs(2);

/// Runs `striate status`.
///
/// # Errors
/// If no server answers; status 1 if something needs attention.
pub async fn status(runtime: Runtime, args: StatusArgs) -> Outcome {
    if args.watch {
        return watch_status(runtime, &args).await;
    }
    let server = AdminClient::find(runtime, &args.admin)?;
    let status: Status = server.get("/v1/status").await?;
    show(&status, args.json, report::status)?;
    if status.warnings.is_empty() { Ok(()) } else { Err(Failure::attention()) }
}

/// Runs `striate status --watch`, which waits for a server that does not answer.
async fn watch_status(runtime: Runtime, args: &StatusArgs) -> Outcome {
    let interruption = Interruption::listen(&runtime);
    let watching = async {
        loop {
            let shown = async {
                let server = AdminClient::find(runtime.clone(), &args.admin)?;
                let status: Status = server.get("/v1/status").await?;
                Ok::<_, Failure>(report::status(&status))
            };
            let text = shown.await.unwrap_or_else(|failure| format!("{failure}\n"));
            screen::show(&text)?;
            runtime.sleep(WATCH_EVERY).await;
        }
    };
    tokio::select! {
        () = interruption.happens() => Ok(()),
        never = watching => never,
    }
}

/// Runs `striate verify`.
///
/// # Errors
/// If no server answers or the verification fails; status 1 if damage was found.
pub async fn verify(runtime: Runtime, args: VerifyArgs) -> Outcome {
    let server = AdminClient::find(runtime, &args.admin)?;
    if args.unreadable {
        return list_unreadable(&server, args.json).await;
    }
    name_troubled_sites(&server, args.quiet || args.json).await?;
    let bar = spinner(args.quiet);
    let path = if args.remove_orphans { "/v1/verify/remove-orphans" } else { "/v1/verify" };
    let answer = server
        .follow(path, |progress| {
            let number = |name: &str| progress[name].as_u64().unwrap_or(0);
            bar.set_message(format!(
                "{} stripes, {} chunks, {} read, {} damaged",
                number("stripes"),
                number("chunks"),
                ByteSize(number("bytes")),
                number("damaged")
            ));
        })
        .await;
    bar.finish_and_clear();
    let answer = answer?;
    match args.json {
        true => println!("{answer}"),
        false => {
            print!("{}", report::verification(&answer["report"]));
            if args.remove_orphans {
                println!("{} of those chunks are being removed", number(&answer, "orphans_removed"));
            }
            println!("{} rows of metadata read in every mirror", number(&answer, "metadata_rows"));
        }
    }
    if answer["clean"] == true { Ok(()) } else { Err(Failure::attention()) }
}

/// Names the sites that do not answer as they should, before an operation that may wait for them.
async fn name_troubled_sites(server: &AdminClient, is_quiet: bool) -> Outcome {
    if !is_quiet {
        let status: Status = server.get("/v1/status").await?;
        for site in status.sites.iter().filter(|site| !matches!(&*site.state, "ok" | "draining")) {
            let reason = site.reason.as_deref().unwrap_or("not known why");
            eprintln!("! site {} on {} is {}: {reason}", site.site, site.address, site.state);
        }
    }
    Ok(())
}

/// Runs `striate verify --unreadable`.
async fn list_unreadable(server: &AdminClient, as_json: bool) -> Outcome {
    let mut last = None;
    server
        .get_lines("/v1/unreadable", |line| {
            match serde_json::from_str::<(String, String)>(line) {
                Ok(_) if as_json => println!("{line}"),
                Ok((bucket, key)) => {
                    println!("s3://{}/{}", printable(&bucket), printable(&key))
                }
                Err(_) => last = serde_json::from_str::<UnreadableReport>(line).ok(),
            }
            Ok(())
        })
        .await?;
    let found = last.ok_or_else(|| Failure::failed("the list is cut short; the server's log says why"))?;
    match as_json {
        true => println!("{}", serde_json::json!(found)),
        false => println!("{} of {} objects cannot be read now", found.unreadable, found.objects),
    }
    if found.unreadable == 0 { Ok(()) } else { Err(Failure::attention()) }
}

/// Runs `striate admin profile`.
async fn profile(runtime: Runtime, args: ProfileArgs) -> Outcome {
    let server = AdminClient::find(runtime, &args.admin)?;
    let state: ProfileState = match args.profile {
        Some(profile) => server.post("/v1/profile", &ChooseProfile { profile }).await?,
        None => server.get("/v1/profile").await?,
    };
    show(&state, args.json, losses::profile)
}

/// Runs `striate explain`.
///
/// # Errors
/// If no server answers, an object does not exist, or too few of its chunks are available.
pub async fn explain(runtime: Runtime, args: ExplainArgs) -> Outcome {
    let server = AdminClient::find(runtime, &args.admin)?;
    let objects = args.objects.into_iter().map(|object| (object.bucket, object.key)).collect();
    let wish = Explain { objects, policy: args.read_policy.map(|policy| policy.to_string()) };
    let explained: Explanation = server.post("/v1/explain", &wish).await?;
    show(&explained, args.json, explain::text)
}

/// Runs `striate heal`.
///
/// # Errors
/// If no server answers or the heal fails; status 1 if something is left.
pub async fn heal(runtime: Runtime, args: HealArgs) -> Outcome {
    let server = AdminClient::find(runtime.clone(), &args.admin)?;
    name_troubled_sites(&server, args.quiet || args.json).await?;
    let bar = bytes_bar(0, args.quiet);
    let style = "{msg} {wide_bar} {pos}/{len} stripes {eta}";
    bar.set_style(indicatif::ProgressStyle::with_template(style).map_err(Failure::failed)?);
    let started = runtime.now();
    let answer = server
        .follow("/v1/heal", |progress| {
            let number = |name: &str| progress[name].as_u64().unwrap_or(0);
            bar.set_length(number("stripes_total"));
            bar.set_position(number("stripes_done"));
            let round = match number("round") {
                0 | 1 => String::new(),
                round => format!("round {round}, "),
            };
            bar.set_message(format!("{round}{} chunks, {}", number("chunks"), ByteSize(number("bytes"))));
        })
        .await;
    bar.finish_and_clear();
    let answer = answer?;
    match args.json {
        true => println!("{answer}"),
        false => print!("{}", report::heal(&answer["report"], runtime.now() - started)),
    }
    if answer["whole"] == true { Ok(()) } else { Err(Failure::attention()) }
}

/// Runs `striate pack …`.
///
/// # Errors
/// If no server answers or it refuses; status 1 if something needs attention.
pub async fn pack(runtime: Runtime, command: PackCommand) -> Outcome {
    pack::run(runtime, command).await
}

/// Runs `striate disk …`.
///
/// # Errors
/// If no server answers or it refuses.
pub async fn disk(runtime: Runtime, command: DiskCommand) -> Outcome {
    match command {
        DiskCommand::List { json, admin } => {
            let status: Status = AdminClient::find(runtime, &admin)?.get("/v1/status").await?;
            show(&status.sites, json, |sites| report::disks(sites))
        }
        DiskCommand::Replace { path, admin } => {
            let server = AdminClient::find(runtime, &admin)?;
            let path = std::path::absolute(&path).map_err(Failure::refused)?;
            let replaced: ReplaceOutcome =
                server.post("/v1/disks/replace", &DiskPath { path: path.clone() }).await?;
            println!(
                "{} is site {} now, in place of site {}",
                path.display(),
                replaced.new_site,
                replaced.old_site
            );
            replaced.notes.iter().for_each(|note| println!("{note}"));
            Ok(())
        }
        DiskCommand::Add { path, admin } => {
            let DiskOutcome { site, path, .. } = change_disk(runtime, &admin, "add", &path).await?;
            println!(
                "{0} is site {site} now; chunks move to it. Name it in the server's command from the next start on",
                path.display()
            );
            Ok(())
        }
        DiskCommand::Drain { path, no_wait, admin } => drain(runtime, &admin, &path, !no_wait).await,
        DiskCommand::Resume { path, admin } => {
            let DiskOutcome { site, path, .. } = change_disk(runtime, &admin, "resume", &path).await?;
            println!("{} (site {site}) takes new chunks again", path.display());
            Ok(())
        }
        DiskCommand::Remove { path, admin } => {
            let DiskOutcome { site, path, .. } = change_disk(runtime, &admin, "remove", &path).await?;
            println!(
                "{0} was site {site} and belongs to the store no more; what is on it is not needed. Take it out of the \
                 server's command before the next start",
                path.display()
            );
            Ok(())
        }
    }
}

async fn change_disk(runtime: Runtime, admin: &AdminArgs, change: &str, path: &Path) -> Outcome<DiskOutcome> {
    let path = std::path::absolute(path).map_err(Failure::refused)?;
    AdminClient::find(runtime, admin)?.post(&format!("/v1/disks/{change}"), &DiskPath { path }).await
}

/// Drains a disk, and shows what is left on it until it is empty if `wait` is set.
async fn drain(runtime: Runtime, admin: &AdminArgs, path: &Path, wait: bool) -> Outcome {
    let path = std::path::absolute(path).map_err(Failure::refused)?;
    let server = AdminClient::find(runtime, admin)?;
    let mut shown = String::new();
    let progress = |value: serde_json::Value| {
        let Ok(DrainProgress { left }) = serde_json::from_value(value) else { return };
        if left != shown {
            eprintln!("{} still has {left}", path.display());
            shown = left;
        }
    };
    let report =
        server.follow_with("/v1/disks/drain", &DrainDisk { path: path.clone(), wait }, progress).await?;
    let DiskOutcome { site, is_empty, .. } = serde_json::from_value(report).map_err(Failure::failed)?;
    match is_empty {
        true => println!(
            "{0} (site {site}) is empty; `striate disk remove {0}` takes it out of the store",
            path.display()
        ),
        false => println!(
            "{} (site {site}) takes no new chunks, and what it has moves to the others; `striate status` shows how much is left",
            path.display()
        ),
    }
    Ok(())
}

/// Runs `striate bucket …`.
///
/// # Errors
/// If no server answers or it refuses.
pub async fn bucket(runtime: Runtime, command: BucketCommand) -> Outcome {
    match command {
        BucketCommand::Create {
            name,
            profile,
            block_kib,
            group,
            pack,
            volatile,
            parities,
            cold,
            cold_after,
            origin,
            admin,
        } => {
            let wish = NewBucket {
                name,
                profile: profile.or_else(|| volatile.then(|| in_memory(parities))),
                block_len: block_kib.map(|kib| kib << 10),
                group_len: group,
                packing: pack,
                origin: new_origin(origin)?,
                cold: cold.setting(cold_after),
                classes: cold.classes(),
            };
            create_bucket(&AdminClient::find(runtime, &admin)?, &wish).await?;
        }
        BucketCommand::List { json, admin } => {
            let buckets: Vec<BucketInfo> = AdminClient::find(runtime, &admin)?.get("/v1/buckets").await?;
            show(&buckets, json, |buckets| report::buckets(buckets))?;
        }
        BucketCommand::Delete { name, admin } => {
            AdminClient::find(runtime, &admin)?.delete(&format!("/v1/buckets/{name}")).await?;
        }
        BucketCommand::Set { name, pack, cold, cold_after, keep_cold_as_it_is, admin } => {
            let wish = bucket_change(pack, &cold, cold_after, keep_cold_as_it_is);
            let server = AdminClient::find(runtime, &admin)?;
            let bucket: BucketInfo = server.post(&format!("/v1/buckets/{name}"), &wish).await?;
            print!("{}", report::bucket(&bucket));
        }
        BucketCommand::Info { name, json, admin } => {
            let server = AdminClient::find(runtime, &admin)?;
            let bucket: BucketInfo = server.get(&format!("/v1/buckets/{name}")).await?;
            show(&bucket, json, report::bucket)?;
        }
    }
    Ok(())
}

/// Returns the profile of a volatile bucket: the widest split of a block, with this many parities, in memory.
fn in_memory(parities: u8) -> Profile {
    let code = CodeSpec::Rs { data: MOST_DATA_SPLITS, parity: parities.into() };
    Profile { tier: Tier::Memory, ..Profile::from(code) }
}

/// Creates a bucket, and prints what it is and what it still lacks.
async fn create_bucket(server: &AdminClient, wish: &NewBucket) -> Outcome {
    let bucket: BucketInfo = server.post("/v1/buckets", wish).await?;
    match &bucket.origin {
        Some(origin) => {
            println!("bucket {} is s3://{} at {}", bucket.name, origin.bucket, origin.endpoint)
        }
        None if bucket.volatile => {
            println!("bucket {} is volatile: its objects are in memory only", bucket.name);
            let status: Status = server.get("/v1/status").await?;
            if status.cache.is_none_or(|cache| cache.sites.is_empty()) {
                println!(
                    "there are no memory sites yet, and it takes no objects until there are; start `striate server \
                     --cache-mib` or `striate site --memory-mib`"
                );
            }
        }
        None => println!("bucket {} with profile {}", bucket.name, bucket.profile),
    }
    print!("{}", report::bucket_warnings(&bucket));
    Ok(())
}

/// Returns the change of a bucket that the arguments name.
fn bucket_change(
    pack: Option<BucketPacking>,
    cold: &ColdArgs,
    cold_after: Option<Duration>,
    keep_cold_as_it_is: bool,
) -> SetBucket {
    SetBucket {
        packing: pack.map(|BucketPacking(packing)| packing.into()),
        cold: match keep_cold_as_it_is {
            true => Some(SettingChange::Clear),
            false => cold.change(cold_after).map(SettingChange::Set),
        },
        classes: cold.classes(),
    }
}

/// Returns the origin of a new bucket, if the arguments name one.
fn new_origin(args: OriginArgs) -> Outcome<Option<NewOrigin>> {
    let OriginArgs { origin, origin_endpoint, origin_region, ttl, cache_block_mib } = args;
    let (Some(origin), Some(endpoint)) = (origin, origin_endpoint) else { return Ok(None) };
    let bucket = origin.strip_prefix("s3://").unwrap_or(&origin).trim_end_matches('/');
    if bucket.is_empty() || bucket.contains('/') {
        let reason =
            format!("--origin {origin}: a whole bucket stands behind a bucket; write it as s3://NAME");
        return Err(Failure::refused(reason));
    }
    let is_url = endpoint.starts_with("http://") || endpoint.starts_with("https://");
    if !is_url {
        return Err(Failure::refused(format!(
            "--origin-endpoint {endpoint}: it begins with http:// or https://"
        )));
    }
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let (access_key, secret) = (variable("STRIATE_ORIGIN_ACCESS_KEY"), variable("STRIATE_ORIGIN_SECRET_KEY"));
    if access_key.is_empty() != secret.is_empty() {
        let reason = "STRIATE_ORIGIN_ACCESS_KEY and STRIATE_ORIGIN_SECRET_KEY go together; set both, or none for requests that are not signed";
        return Err(Failure::refused(reason));
    }
    Ok(Some(NewOrigin {
        endpoint,
        bucket: bucket.to_owned(),
        region: origin_region,
        access_key,
        secret,
        ttl_ms: ttl.as_millis() as u64,
        block_len: cache_block_mib << 20,
    }))
}

/// Runs `striate admin keys|meta|upgrade …`, and returns the command's outcome.
// Boxed, so that the crate that awaits it does not compile these commands again.
pub fn administer(runtime: Runtime, command: ServerCommand) -> LocalBoxFuture<'static, Outcome> {
    Box::pin(async move {
        match command {
            ServerCommand::Keys(command) => keys::run(runtime, command).await,
            ServerCommand::Meta(MetaCommand::Export { file, admin }) => {
                metadata::export(AdminClient::find(runtime, &admin)?, &file).await
            }
            ServerCommand::Meta(MetaCommand::Import { file, admin }) => {
                metadata::import(AdminClient::find(runtime, &admin)?, &file).await
            }
            ServerCommand::Upgrade(command) => upgrade::run(runtime, command).await,
            ServerCommand::Profile(args) => profile(runtime, args).await,
        }
    })
}

/// Prints a reply, as JSON or as text.
fn show<T: Serialize>(reply: &T, json: bool, text: fn(&T) -> String) -> Outcome {
    match json {
        true => println!("{}", serde_json::to_string_pretty(reply).map_err(Failure::failed)?),
        false => print!("{}", text(reply)),
    }
    Ok(())
}

/// Returns a number in a reply; 0 if it is missing.
fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}
