//! Formats replies of the server for display.

use std::fmt::Write;
use std::time::Duration;

use crate::output::printable;
use bytesize::ByteSize;
use serde_json::Value;
use striate_core::Layout;
use time::OffsetDateTime;

use super::number;
use crate::admin::messages::{
    BucketInfo, ClassOfBucket, ImbalanceSample, KeySummary, MovementState, MovesState, OriginInfo,
    PlacementState, RepairState, ScrubState, SiteState, Status,
};

/// Formats columns of text, each as wide as its widest entry.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        writeln!(text, "{}", line.trim_end()).expect("writing to a string");
    }
    text
}

pub(crate) fn cells<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// Formats a number of things: `1 group`, `2 groups`.
pub(super) fn counted(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Formats a date: `2026-11-20`.
fn date(unix_ms: u64) -> String {
    match OffsetDateTime::from_unix_timestamp((unix_ms / 1_000) as i64) {
        Ok(time) if unix_ms > 0 => time.date().to_string(),
        _ => "-".to_owned(),
    }
}

/// Formats the output of `striate status`.
pub fn status(status: &Status) -> String {
    let capacity = &status.capacity;
    let mut text = format!(
        "cluster {}, striate {}, {}\nprofile {}, {} in {} chunks, {} free of {}\n",
        status.cluster,
        status.version,
        status.endpoint,
        status.profile,
        ByteSize(capacity.payload_bytes),
        capacity.chunks,
        ByteSize(capacity.free_bytes),
        ByteSize(capacity.total_bytes),
    );
    if let Some(placement) = &status.placement {
        writeln!(text, "racks {}", placement_line(placement)).expect("writing to a string");
    }
    if let Some(losses) = &status.losses {
        text.push_str(&super::losses::lines(losses, &status.sites));
    }
    if let Some(formats) = &status.formats {
        writeln!(text, "formats {}", super::upgrade::summary(formats)).expect("writing to a string");
    }
    text.push('\n');
    text.push_str(&disks(&status.sites));
    if let Some(cache) = &status.cache {
        write!(text, "\n{}", super::cache::sites(cache)).expect("writing to a string");
    }
    text.push_str(&work(status));
    text.push('\n');
    // A cluster's metadata engine replicates its rows itself.
    if !status.mirrors.is_empty() {
        writeln!(text, "{}", mirrors(status)).expect("writing to a string");
    }
    if status.warnings.is_empty() && status.notes.is_empty() {
        text.push_str("all is well\n");
    }
    for (mark, lines) in [("!", &status.warnings), ("-", &status.notes)] {
        lines.iter().for_each(|line| writeln!(text, "{mark} {line}").expect("writing to a string"));
    }
    text
}

/// Formats the table of metadata mirrors.
fn mirrors(status: &Status) -> String {
    let mut rows = vec![cells(["METADATA MIRROR", "STATE", "SIZE"])];
    for mirror in &status.mirrors {
        let state = match (&mirror.in_sync, &mirror.reason) {
            (true, _) => "in sync".to_owned(),
            (false, Some(reason)) => format!("ejected: {reason}"),
            (false, None) => "ejected".to_owned(),
        };
        rows.push(vec![mirror.directory.display().to_string(), state, ByteSize(mirror.bytes).to_string()]);
    }
    table(&rows)
}

/// Formats the placement: `6, each with at most 2 chunks of a stripe`.
fn placement_line(placement: &PlacementState) -> String {
    format!(
        "{}, each with at most {} of a stripe",
        placement.racks,
        counted(placement.chunks_in_a_rack as u64, "chunk")
    )
}

/// Formats the progress of repair, moves, scrub and packing, one per line.
fn work(status: &Status) -> String {
    let mut rows = Vec::new();
    if let Some(repair) = &status.repair {
        rows.push(vec!["repair".to_owned(), repair_line(repair)]);
    }
    if let Some(movement) = &status.movement {
        rows.push(vec!["levelling".to_owned(), levelling_line(movement)]);
        rows.push(vec!["moves for reads".to_owned(), moves_line(&movement.optimising)]);
        if let Some(line) = balance_line(&movement.imbalance) {
            rows.push(vec!["balance".to_owned(), line]);
        }
    }
    if let Some(scrub) = &status.scrub {
        rows.push(vec!["scrub".to_owned(), scrub_line(scrub)]);
    }
    if let Some(packing) = &status.packing {
        rows.push(vec!["packing".to_owned(), super::pack::line(packing)]);
    }
    if let Some(sealed) = &status.sealed {
        rows.push(vec!["cold data".to_owned(), super::pack::sealed_line(sealed)]);
    }
    if let Some(cache) = &status.cache {
        rows.push(vec!["cache".to_owned(), super::cache::line(cache)]);
        rows.push(vec!["its memory".to_owned(), super::cache::memory(cache)]);
        let further = [
            ("its parities", super::cache::parities(cache)),
            ("gone from it", super::cache::gone(cache)),
            ("volatile buckets", super::cache::volatile(cache)),
        ];
        rows.extend(further.into_iter().filter_map(|(name, line)| Some(vec![name.to_owned(), line?])));
    }
    if let Some(origins) = &status.origins {
        rows.push(vec!["origins".to_owned(), super::cache::origins(origins)]);
        let failing = super::cache::failing(origins);
        rows.extend(failing.map(|line| vec!["failing origins".to_owned(), line]));
    }
    if let Some(copies) = status.copies.filter(|copies| copies.budget_bytes > 0 || copies.copies > 0) {
        rows.push(vec!["hot copies".to_owned(), super::pack::copies_line(&copies)]);
    }
    let hottest = status.movement.as_ref().map(hottest).unwrap_or_default();
    if rows.is_empty() { String::new() } else { format!("\n{}{hottest}", table(&rows)) }
}

fn moves_line(moves: &MovesState) -> String {
    match moves {
        MovesState { off: true, .. } => "off".to_owned(),
        MovesState { chunks: 0, .. } => "nothing moved".to_owned(),
        MovesState { chunks, bytes, chunks_per_s, bytes_per_s, .. } => format!(
            "{chunks_per_s:.1} chunks/s, {}/s; {chunks} chunks ({}) moved",
            ByteSize(*bytes_per_s),
            ByteSize(*bytes)
        ),
    }
}

fn levelling_line(movement: &MovementState) -> String {
    let mut line = moves_line(&movement.levelling);
    if !movement.givers.is_empty() {
        let left: u64 = movement.givers.iter().map(|giver| giver.bytes).sum();
        let sites: Vec<_> = movement.givers.iter().map(|giver| giver.site.to_string()).collect();
        let time = movement
            .seconds_left
            .map_or("no time known yet".to_owned(), |left| format!("{} to go", time(left)));
        write!(line, "; {} to take from site {}, {time}", ByteSize(left), sites.join(", "))
            .expect("writing to a string");
    }
    line
}

/// Formats the current load imbalance of the sites and its history, with one column per change.
fn balance_line(samples: &[ImbalanceSample]) -> Option<String> {
    const COLUMNS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    const SHOWN: usize = 30;
    let shown = &samples[samples.len().saturating_sub(SHOWN)..];
    let last = shown.last()?;
    let most = shown.iter().map(|sample| sample.percent).fold(1.0, f64::max);
    let column = |sample: &ImbalanceSample| COLUMNS[(sample.percent / most * 7.0).round() as usize];
    let history: String = shown.iter().map(column).collect();
    Some(format!("{history} the most loaded site bears {:.0}% more than the mean", last.percent))
}

/// Formats the most requested blocks.
fn hottest(movement: &MovementState) -> String {
    const SHOWN: usize = 5;
    if movement.hottest.is_empty() {
        return String::new();
    }
    let mut rows = vec![cells(["HOTTEST BLOCK", "OF REQUESTS", "OBJECT"])];
    for block in movement.hottest.iter().take(SHOWN) {
        let object = block.object.as_deref().map(printable).unwrap_or_default();
        rows.push(vec![block.stripe.clone(), format!("{:.1}%", block.percent), object]);
    }
    format!("\n{}", table(&rows))
}

fn repair_line(repair: &RepairState) -> String {
    if repair.off {
        return "off".to_owned();
    }
    let mut parts = Vec::new();
    let movable = repair.stripes_left.saturating_sub(repair.waiting);
    if movable > 0 {
        let time = repair
            .seconds_left
            .map_or("no time known yet".to_owned(), |left| format!("{} to go", time(left)));
        parts.push(format!("{movable} stripes left, {}/s, {time}", ByteSize(repair.bytes_per_s)));
    }
    if repair.waiting > 0 {
        parts.push(format!("{} stripes wait for a site", repair.waiting));
    }
    for silent in &repair.silent {
        parts.push(match silent.rebuilt_after_s {
            0 => format!("site {} counts as lost", silent.site),
            left => format!("site {} is silent, rebuilt elsewhere in {}", silent.site, time(left)),
        });
    }
    if parts.is_empty() {
        parts.push("nothing to do".to_owned());
    }
    parts.join("; ")
}

fn scrub_line(scrub: &ScrubState) -> String {
    let part = 100 * scrub.now.chunks / scrub.total_chunks.max(1);
    let damage = match scrub.now.damaged {
        0 => "nothing damaged".to_owned(),
        damaged => format!("{damaged} chunks damaged or missing"),
    };
    let mut line = format!(
        "cycle {}: {}% ({}), {damage}, ends in {}",
        scrub.cycle,
        part.min(100),
        ByteSize(scrub.now.bytes),
        time(scrub.seconds_left)
    );
    if let Some(last) = scrub.last.filter(|last| last.orphans + last.unexplained > 0) {
        let unnamed = last.orphans + last.unexplained;
        write!(line, "; {unnamed} chunks belong to no object").expect("writing to a string");
    }
    line
}

/// Formats a time in the unit that fits.
pub(super) fn time(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Formats the output of `striate disk list`, by rack.
///
/// A server's sites are directories, each in a rack of its own that is named after it. Those of a cluster are processes,
/// at addresses.
pub fn disks(sites: &[SiteState]) -> String {
    let are_directories = sites.iter().all(|site| site.address.starts_with('/'));
    let names: &[&str] =
        if are_directories { &["SITE", "DIRECTORY"] } else { &["RACK", "SITE", "PROCESS", "ADDRESS"] };
    let figures = ["STATE", "CHUNKS", "STORED", "FREE", "FILL", "CPU", "DISK", "QUEUE"];
    let mut rows = vec![names.iter().chain(&figures).map(|&text| text.to_owned()).collect()];
    let mut sites: Vec<_> = sites.iter().collect();
    sites.sort_by(|a, b| a.rack.cmp(&b.rack).then(a.site.cmp(&b.site)));
    if are_directories {
        sites.sort_by_key(|site| site.site);
    }
    for site in sites {
        let (total, free) = (site.capacity.total_bytes, site.capacity.free_bytes);
        let fill = 100 * total.saturating_sub(free) / total.max(1);
        let number = site.site.to_string();
        let mut row = match are_directories {
            true => vec![number, site.address.clone()],
            false => vec![site.rack.clone(), number, site.process.clone(), site.address.clone()],
        };
        row.extend([
            site.state.clone(),
            site.capacity.chunks.to_string(),
            ByteSize(site.capacity.disk_bytes).to_string(),
            ByteSize(site.capacity.free_bytes).to_string(),
            format!("{fill}%"),
            format!("{}%", site.load.cpu_permille / 10),
            format!("{}%", site.load.io_permille / 10),
            format!("{} ({})", site.load.queue_requests, ByteSize(site.load.queue_bytes)),
        ]);
        rows.push(row);
    }
    table(&rows)
}

/// Formats the output of `striate heal`.
pub fn heal(report: &Value, took: Duration) -> String {
    let progress = &report["progress"];
    let rounds = match number(progress, "round") {
        0 | 1 => String::new(),
        rounds => format!(", in {rounds} rounds"),
    };
    let mut text = format!(
        "{} checked{rounds}, {} ({}) rebuilt in {:.1} s\n",
        counted(number(progress, "stripes_done"), "stripe"),
        counted(number(progress, "chunks"), "chunk"),
        ByteSize(number(progress, "bytes")),
        took.as_secs_f64()
    );
    if number(report, "left") > 0 {
        writeln!(text, "! {} not whole", counted(number(report, "left"), "stripe"))
            .expect("writing to a string");
    }
    for (name, what) in [
        (
            "still_lost",
            "chunks are still missing for want of a disk: `striate disk replace PATH` adds one; in a cluster, start a new `striate site`",
        ),
        ("unknown", "chunks are on disks that did not answer; heal again when they do"),
        ("unrepairable", "stripes cannot be rebuilt now: bring lost disks back"),
    ] {
        if number(report, name) > 0 {
            writeln!(text, "! {} {what}", number(report, name)).expect("writing to a string");
        }
    }
    examples(report, &mut text);
    if text.lines().count() == 1 {
        text.push_str("everything is whole\n");
    }
    text
}

/// Formats the output of `striate verify`.
pub fn verification(report: &Value) -> String {
    let progress = &report["progress"];
    let mut text = format!(
        "{} stripes, {} good chunks, {} read\n",
        number(progress, "stripes"),
        number(progress, "chunks"),
        ByteSize(number(progress, "bytes"))
    );
    let damaged = number(progress, "damaged");
    if damaged > 0 {
        writeln!(
            text,
            "! {damaged} chunks are damaged or missing; {} stripes are queued for repair, `striate heal` rebuilds them at once",
            number(report, "queued")
        )
        .expect("writing to a string");
    }
    if number(report, "unknown") > 0 {
        writeln!(text, "! {} chunks are on disks that did not answer", number(report, "unknown"))
            .expect("writing to a string");
    }
    if number(report, "orphans") > 0 {
        writeln!(
            text,
            "{} chunks belong to no object; they do no harm, `striate verify --remove-orphans` removes them",
            number(report, "orphans")
        )
        .expect("writing to a string");
    }
    if number(report, "unexplained") > 0 {
        writeln!(
            text,
            "! {} chunks are newer than the metadata; they were left alone. Was older metadata restored?",
            number(report, "unexplained")
        )
        .expect("writing to a string");
    }
    examples(report, &mut text);
    text
}

fn examples(report: &Value, text: &mut String) {
    for example in report["examples"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        writeln!(text, "  {example}").expect("writing to a string");
    }
}

/// Formats the output of `striate bucket list`.
pub fn buckets(buckets: &[BucketInfo]) -> String {
    let mut rows = vec![cells(["BUCKET", "PROFILE", "CREATED"])];
    for bucket in buckets {
        let profile = if let Some(origin) = &bucket.origin {
            format!("s3://{} at {}", origin.bucket, origin.endpoint)
        } else if bucket.volatile {
            format!("{} (volatile: in memory only)", bucket.profile)
        } else {
            let default = if bucket.default_profile { " (default)" } else { "" };
            let cold =
                bucket.cold.as_ref().map_or_else(String::new, |cold| format!(", cold {}", cold.profile));
            format!("{}{default}{cold}", bucket.profile)
        };
        rows.push(vec![bucket.name.clone(), profile, date(bucket.created_unix_ms)]);
    }
    table(&rows)
}

/// Formats a bucket's setting of cold data.
fn cold(bucket: &BucketInfo) -> String {
    match &bucket.cold {
        None => "stays as it is".to_owned(),
        Some(cold) => format!("sealed as {} when not changed for {}", cold.profile, time(cold.after_s)),
    }
}

/// Formats a bucket's setting of a storage class.
fn class_of(class: &ClassOfBucket) -> Option<Vec<String>> {
    let profile = class.profile?;
    let description = match profile.layout {
        Layout::Wide => format!("sealed as {profile} at once"),
        Layout::Split | Layout::Packed => format!("written as {profile}"),
    };
    Some(vec![class.class.to_string(), description])
}

/// Formats a bucket in front of another store.
fn in_front(bucket: &BucketInfo, origin: &OriginInfo) -> String {
    let ttl = match origin.ttl_ms {
        0 => "the origin is asked for every read".to_owned(),
        ms => format!("{} s", ms as f64 / 1_000.0),
    };
    let signs = if origin.access_key.is_empty() { "nobody: not signed" } else { &origin.access_key };
    table(&[
        cells(["bucket", &bucket.name]),
        cells(["origin", &format!("s3://{} at {}", origin.bucket, origin.endpoint)]),
        cells(["asked by", signs]),
        cells(["ttl", &ttl]),
        cells(["cached block", &ByteSize(origin.block_len.into()).to_string()]),
        cells(["created", &date(bucket.created_unix_ms)]),
    ])
}

/// Formats the output of `striate bucket info`.
pub fn bucket(bucket: &BucketInfo) -> String {
    if let Some(origin) = &bucket.origin {
        return in_front(bucket, origin) + &bucket_warnings(bucket);
    }
    let block = match bucket.block_len {
        0 => "default".to_owned(),
        len => ByteSize(len.into()).to_string(),
    };
    let group = match bucket.group_len {
        0 => "default".to_owned(),
        1 => "none".to_owned(),
        len => format!("{len} neighbouring blocks on the same sites"),
    };
    let profile = match bucket.volatile {
        true => format!("{} (volatile: in memory only)", bucket.profile),
        false => bucket.profile.clone(),
    };
    let mut rows =
        vec![cells(["bucket", &bucket.name]), cells(["profile", &profile]), cells(["largest block", &block])];
    if !bucket.volatile {
        let packing = bucket.packing.as_deref().unwrap_or("as its profile and the store say");
        rows.extend([
            cells(["groups", &group]),
            cells(["packing", packing]),
            cells(["cold data", &cold(bucket)]),
        ]);
    }
    rows.extend(bucket.classes.iter().filter_map(class_of));
    let owner =
        if bucket.owner.is_empty() { "nobody: made by `striate bucket create`" } else { &bucket.owner };
    rows.push(cells(["owner", owner]));
    rows.push(cells(["created", &date(bucket.created_unix_ms)]));
    table(&rows) + &bucket_warnings(bucket)
}

/// Formats the warnings about a bucket's profiles, one per line.
pub fn bucket_warnings(bucket: &BucketInfo) -> String {
    bucket.warnings.iter().map(|warning| format!("warning: {warning}\n")).collect()
}

/// Formats the output of `striate admin keys list`.
pub fn keys(keys: &[KeySummary]) -> String {
    let mut rows = vec![cells(["ACCESS KEY", "STATE", "CREATED", "DESCRIPTION"])];
    for key in keys {
        let state = match (key.revoked, key.is_static) {
            (true, _) => "revoked",
            (false, true) => "given at the start",
            (false, false) => "active",
        };
        rows.push(vec![
            key.access_key.clone(),
            state.to_owned(),
            date(key.created_unix_ms),
            key.description.clone(),
        ]);
    }
    table(&rows)
}

#[cfg(test)]
mod tests {
    use striate_core::LoadReport;

    use super::*;
    use crate::admin::messages::{Capacity, ColdBucket};

    #[test]
    fn sites_are_listed_by_their_directories_or_addresses() {
        let listed = |address: &str| {
            disks(&[SiteState {
                site: 1,
                rack: "rack1".to_owned(),
                address: address.to_owned(),
                process: "site6".to_owned(),
                state: "ok".to_owned(),
                reason: None,
                capacity: Capacity::default(),
                load: LoadReport::default(),
            }])
        };
        let server = listed("/mnt/disk1");
        assert!(server.starts_with("SITE  DIRECTORY ") && !server.contains("rack1"), "{server}");
        let cluster = listed("10.0.0.7:9201");
        assert!(cluster.starts_with("RACK   SITE  PROCESS  ADDRESS "), "{cluster}");
        assert!(cluster.contains("rack1  1     site6    10.0.0.7:9201"), "{cluster}");
    }

    #[test]
    fn tables_line_up() {
        let rows = [cells(["A", "LONG"]), cells(["wide", "x"])];
        assert_eq!(table(&rows), "A     LONG\nwide  x\n");
    }

    #[test]
    fn a_bucket_shows_the_settings_that_it_has() {
        let mut shown = BucketInfo {
            name: "archive".to_owned(),
            profile: "rs(4,2)".to_owned(),
            default_profile: false,
            created_unix_ms: 0,
            owner: String::new(),
            block_len: 0,
            group_len: 0,
            packing: None,
            volatile: false,
            origin: None,
            cold: None,
            classes: Vec::new(),
            warnings: Vec::new(),
        };
        let text = bucket(&shown);
        assert!(text.contains("cold data") && text.contains("nobody: made by"), "{text}");
        let profile = "wide(10,5,3)".parse().unwrap();
        shown.cold = Some(ColdBucket { profile, after_s: 60, without_spare_rack: false });
        let text = buckets(std::slice::from_ref(&shown));
        assert!(text.contains("rs(4,2), cold wide(10,5,3)"), "{text}");
        shown.volatile = true;
        let text = bucket(&shown);
        assert!(!["cold data", "packing", "groups"].iter().any(|row| text.contains(row)), "{text}");
    }

    #[test]
    fn reports_say_what_is_left_and_how_to_go_on() {
        let whole =
            serde_json::json!({ "progress": { "round": 2, "stripes_done": 3, "chunks": 4, "bytes": 2048 } });
        let text = heal(&whole, Duration::from_secs(2));
        assert!(text.contains("4 chunks (2.0 KiB)") && text.contains("everything is whole"), "{text}");
        assert!(text.contains("in 2 rounds"), "{text}");
        let left =
            serde_json::json!({ "progress": {}, "left": 1, "still_lost": 2, "examples": ["stripe 1-2: …"] });
        let text = heal(&left, Duration::ZERO);
        assert!(
            text.contains("1 stripe not whole")
                && text.contains("disk replace")
                && text.contains("stripe 1-2")
                && !text.contains("everything"),
            "{text}"
        );
        let damaged = serde_json::json!({ "progress": { "damaged": 1 }, "queued": 1 });
        assert!(verification(&damaged).contains("striate heal"));
    }

    #[test]
    fn dates_are_written_for_people() {
        assert_eq!((date(0), date(1_795_132_800_000)), ("-".to_owned(), "2026-11-20".to_owned()));
    }
}
