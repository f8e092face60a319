//! `striate pack …`.

use std::fmt::Write;

use bytesize::ByteSize;
use serde_json::Value;
use striate_runtime::Runtime;

use crate::output::printable;

use super::report::{cells, counted, table, time};
use super::{number, show};
use crate::admin::client::AdminClient;
use crate::admin::messages::{
    CopiesState, PackFigures, PackNow, PackedBucket, PackingState, PackingStatus, SealedState, SealedTotals,
};
use crate::args::PackCommand;
use crate::failure::{Failure, Outcome};
use crate::interruption::Interruption;
use crate::transfer::progress::spinner;

/// Runs `striate pack …`.
///
/// # Errors
/// If no server answers or it refuses; status 1 if something needs attention.
pub async fn run(runtime: Runtime, command: PackCommand) -> Outcome {
    match command {
        PackCommand::Status { bucket, json, admin } => {
            let path = bucket.map_or("/v1/packing".to_owned(), |name| format!("/v1/packing/{name}"));
            let status: PackingStatus = AdminClient::find(runtime, &admin)?.get(&path).await?;
            show(&status, json, text)?;
            let is_well = status.packing.is_none_or(|packing| packing.unreadable_groups == 0);
            if is_well { Ok(()) } else { Err(Failure::attention()) }
        }
        PackCommand::Run { bucket, now, cold, quiet, json, admin } => {
            let server = AdminClient::find(runtime.clone(), &admin)?;
            let wish = PackNow { bucket, now, cold };
            let answer = pack_now(&runtime, &server, &wish, quiet).await?;
            match json {
                true => println!("{answer}"),
                false => print!("{}{}", packed(&answer["report"]), nothing_cold(&wish, &answer["report"])),
            }
            Ok(())
        }
        PackCommand::Undo { bucket, quiet, json, admin } => {
            let server = AdminClient::find(runtime.clone(), &admin)?;
            let answer = unpack(&runtime, &server, &bucket, quiet).await?;
            match json {
                true => println!("{answer}"),
                false => print!("{}", unpacked(&bucket, &answer)),
            }
            if answer["whole"] == true { Ok(()) } else { Err(Failure::attention()) }
        }
    }
}

/// Packs, and shows the progress. Returns the reply.
async fn pack_now(runtime: &Runtime, server: &AdminClient, wish: &PackNow, quiet: bool) -> Outcome<Value> {
    let bar = spinner(quiet);
    let packing = server.follow_with("/v1/packing/run", wish, |progress| {
        bar.set_message(pack_progress(&progress));
    });
    let stopped = "stopped; what was packed or sealed stays so. Run it again to continue";
    let answer = interruptible(runtime, packing, stopped).await;
    bar.finish_and_clear();
    answer
}

/// Undoes the packing of a bucket, and shows the progress. Returns the reply.
async fn unpack(runtime: &Runtime, server: &AdminClient, bucket: &str, quiet: bool) -> Outcome<Value> {
    let bar = spinner(quiet);
    let path = format!("/v1/packing/undo/{bucket}");
    let undoing = server.follow(&path, |progress| {
        bar.set_message(format!(
            "{} checked, {} ({}) split again",
            counted(number(&progress, "seen"), "object"),
            number(&progress, "objects"),
            ByteSize(number(&progress, "bytes")),
        ));
    });
    let stopped =
        "stopped; what is split stays split, and the bucket stays at --pack off. Run it again to continue";
    let answer = interruptible(runtime, undoing, stopped).await;
    bar.finish_and_clear();
    answer
}

/// Runs a long operation until Ctrl-C: its server notices that the command is gone and ends the operation cleanly.
async fn interruptible(
    runtime: &Runtime,
    operation: impl Future<Output = Outcome<Value>>,
    stopped: &str,
) -> Outcome<Value> {
    let interruption = Interruption::listen(runtime);
    tokio::select! {
        () = interruption.happens() => Err(Failure::interrupted(stopped)),
        answer = operation => answer,
    }
}

fn pack_progress(progress: &Value) -> String {
    let packed = &progress["packed"];
    match progress["bucket"].as_str().unwrap_or_default() {
        "" => format!(
            "{} with dead objects checked, {} released",
            counted(number(progress, "marked"), "group"),
            number(progress, "released")
        ),
        bucket => format!(
            "{}: {} checked, {} ({}) packed into {}{}",
            printable(bucket),
            counted(number(progress, "seen"), "object"),
            number(packed, "objects"),
            ByteSize(number(packed, "bytes")),
            counted(number(packed, "groups"), "group"),
            seal_progress(progress),
        ),
    }
}

/// Formats the progress of sealing, if there is cold data.
fn seal_progress(progress: &Value) -> String {
    match (number(progress, "cold"), number(progress, "sealed")) {
        (0, 0) => String::new(),
        (cold, sealed) => {
            format!("; {} found, {} sealed", counted(cold, "cold stripe"), counted(sealed, "wide stripe"))
        }
    }
}

/// Formats the output of `striate pack status`.
fn text(status: &PackingStatus) -> String {
    let Some(packing) = &status.packing else {
        return "nothing is known yet: the service that packs has not begun, or packs nothing before the formats are \
                finalized (`striate admin upgrade status`)\n"
            .to_owned();
    };
    let mut text = format!(
        "the store's --pack is {}, for objects that have not changed for {}\n",
        packing.setting,
        time(packing.settled_after_s)
    );
    if packing.objects_packed > 0 || packing.groups_released > 0 {
        writeln!(
            text,
            "{} ({}) packed into {} and {} released since the service began; {}/s now",
            counted(packing.objects_packed, "object"),
            ByteSize(packing.bytes_packed),
            counted(packing.groups_written, "group"),
            counted(packing.groups_released, "group"),
            ByteSize(packing.bytes_per_s)
        )
        .expect("writing to a string");
    }
    if status.buckets.is_empty() {
        text.push_str(match packing.counted_s_ago {
            None => "nothing was counted yet: the service looks every minute\n",
            Some(_) => "no bucket has anything packed or waiting\n",
        });
    } else {
        text.push('\n');
        text.push_str(&buckets(status));
    }
    if packing.unreadable_groups > 0 {
        writeln!(
            text,
            "! {} cannot be released: too many chunks of directories are lost; bring lost disks back\n  {}",
            counted(packing.unreadable_groups, "group"),
            packing.unreadable_stripes.join("\n  ")
        )
        .expect("writing to a string");
    }
    text
}

fn buckets(status: &PackingStatus) -> String {
    let head = [
        "BUCKET",
        "PACKS INTO",
        "A GROUP",
        "GROUPS",
        "PACKED",
        "LIVE",
        "DEAD",
        "WAITING",
        "SETTLED",
        "COUNTED",
    ];
    let mut rows = vec![cells(head)];
    for bucket in &status.buckets {
        let into = bucket.partition_len.map_or("off".to_owned(), |len| ByteSize(len.into()).to_string());
        let group = bucket.group_bytes.map(|bytes| ByteSize(bytes).to_string()).unwrap_or_default();
        rows.push(bucket_row(&bucket.bucket, [&into, &group], &bucket.figures, bucket.counted_s_ago));
    }
    let total = status.packing.as_ref().filter(|_| status.buckets.len() > 1);
    if let Some((packing, ago)) = total.and_then(|packing| Some((packing, packing.counted_s_ago?))) {
        rows.push(bucket_row("all", ["", ""], &packing.figures, ago));
    }
    let mut text = table(&rows);
    let why = |bucket: &PackedBucket| {
        let reason = bucket.reason.as_ref()?;
        Some(format!("{} is not packed: {reason}\n", printable(&bucket.bucket)))
    };
    status.buckets.iter().filter_map(why).for_each(|line| text.push_str(&line));
    status.buckets.iter().filter_map(sealed).for_each(|line| text.push_str(&line));
    text
}

/// Formats a row of the table of buckets. `into` has the lengths of a partition and of a group.
fn bucket_row(name: &str, into: [&str; 2], figures: &PackFigures, ago: u64) -> Vec<String> {
    let cell = |objects: u64, bytes: u64| format!("{} ({objects})", ByteSize(bytes));
    vec![
        printable(name),
        into[0].to_owned(),
        into[1].to_owned(),
        figures.groups.to_string(),
        ByteSize(figures.packed_bytes).to_string(),
        cell(figures.live_objects, figures.live_bytes),
        cell(figures.dead_objects, figures.dead_bytes),
        cell(figures.waiting_objects, figures.waiting_bytes),
        cell(figures.settled_objects, figures.settled_bytes),
        format!("{} ago", time(ago)),
    ]
}

/// Formats the line on a bucket's wide stripes. `None` if there are none, also before the first look has ended.
fn sealed(bucket: &PackedBucket) -> Option<String> {
    let state = bucket.sealed.as_ref().filter(|state| **state != SealedState::default())?;
    let SealedState { profile, cold_stripes, sealed_stripes, half_sealed, waiting, held_up, .. } = state;
    let name = printable(&bucket.bucket);
    let how = if profile.is_empty() { "stay sealed".to_owned() } else { format!("sealed as {profile}") };
    let mut line = format!(
        "{name}: {sealed_stripes} of {} {how}, {half_sealed} in part; {} waiting",
        counted(*cold_stripes, "cold stripe"),
        counted(*waiting, "partition")
    );
    if let Some(reason) = held_up {
        write!(line, ": {}", printable(reason)).expect("writing to a string");
    }
    if state.not_packed > 0 {
        let bytes = ByteSize(state.not_packed_bytes);
        write!(line, "; too short to be sealed: {} ({bytes})", counted(state.not_packed, "cold stripe"))
            .expect("writing to a string");
    }
    if state.swapped > 0 {
        write!(line, "; local parities moved to the racks that change most: {}", state.swapped)
            .expect("writing to a string");
    }
    if state.emptied > 0 {
        write!(line, "; sparse wide stripes emptied into others: {}", state.emptied)
            .expect("writing to a string");
    }
    for warning in &state.warnings {
        write!(line, "\n  warning: {}", printable(warning)).expect("writing to a string");
    }
    Some(line + "\n")
}

/// Formats the line of `striate status` on copies of hot partitions.
pub(super) fn copies_line(copies: &CopiesState) -> String {
    let (bytes, most) = (ByteSize(copies.bytes), ByteSize(copies.budget_bytes));
    format!("{} of hot partitions, {bytes} of at most {most}", copies.copies)
}

/// Formats the line of `striate status` on packing.
pub(super) fn line(packing: &PackingState) -> String {
    let figures = &packing.figures;
    let Some(ago) = packing.counted_s_ago else { return format!("{}; not counted yet", packing.setting) };
    let mut line = match figures.groups {
        0 => format!("{}: nothing is packed", packing.setting),
        groups => format!(
            "{}: {} ({}), {} live in {}, {} dead",
            packing.setting,
            counted(groups, "group"),
            ByteSize(figures.packed_bytes),
            ByteSize(figures.live_bytes),
            counted(figures.live_objects, "object"),
            ByteSize(figures.dead_bytes),
        ),
    };
    if figures.waiting_objects > 0 {
        write!(
            line,
            "; {} in {} waiting, {} of them settled",
            ByteSize(figures.waiting_bytes),
            counted(figures.waiting_objects, "object"),
            figures.settled_objects
        )
        .expect("writing to a string");
    }
    if packing.unreadable_groups > 0 {
        write!(line, "; {} cannot be released", counted(packing.unreadable_groups, "group"))
            .expect("writing to a string");
    }
    if packing.bytes_per_s > 0 {
        write!(line, "; {}/s now", ByteSize(packing.bytes_per_s)).expect("writing to a string");
    }
    write!(line, " ({} ago)", time(ago)).expect("writing to a string");
    line
}

/// Formats the line of `striate status` on cold data: `62 of 64 cold stripes sealed, 1 in part; 8 partitions waiting: rack7
/// can supply 2 of 4`
pub(super) fn sealed_line(totals: &SealedTotals) -> String {
    let SealedTotals { cold_stripes, sealed_stripes, half_sealed, waiting, waiting_buckets, held_up } =
        totals;
    let mut line = format!(
        "{sealed_stripes} of {} sealed, {half_sealed} in part; {} waiting",
        counted(*cold_stripes, "cold stripe"),
        counted(*waiting, "partition")
    );
    if let Some(reason) = held_up {
        write!(line, ": {}", printable(reason)).expect("writing to a string");
    }
    if *waiting_buckets > 1 {
        write!(line, "; in {waiting_buckets} buckets (`striate pack status`)").expect("writing to a string");
    }
    line
}

/// Formats the output of `striate pack run`.
fn packed(report: &Value) -> String {
    let progress = &report["progress"];
    let done = &progress["packed"];
    let mut text = format!(
        "{} ({}) packed into {}\n",
        counted(number(done, "objects"), "object"),
        ByteSize(number(done, "bytes")),
        counted(number(done, "groups"), "group")
    );
    let mut say = |line: String| writeln!(text, "{line}").expect("writing to a string");
    if number(progress, "marked") > 0 {
        say(format!(
            "{} with dead objects checked, {} released: their space returns after the grace",
            counted(number(progress, "marked"), "group"),
            number(progress, "released")
        ));
    }
    if number(done, "overtaken") > 0 {
        say(format!("{} changed meanwhile", counted(number(done, "overtaken"), "object")));
    }
    if number(done, "unreadable") > 0 {
        say(format!(
            "! {} could not be read; `striate verify` names damage",
            counted(number(done, "unreadable"), "object")
        ));
    }
    if let Some(reason) = report["held_up"].as_str() {
        say(format!("! nothing more is packed now: {reason}"));
    }
    bucket_lines(report).into_iter().for_each(&mut say);
    if number(report, "unreadable") > 0 {
        say(format!(
            "! {} cannot be released: too many chunks of directories are lost",
            counted(number(report, "unreadable"), "group")
        ));
    }
    text
}

/// Formats why `--cold` sealed nothing, where no bucket says what is cold.
fn nothing_cold(wish: &PackNow, report: &Value) -> String {
    let is_looked_for = report["sealed"].as_array().is_some_and(|sealed| !sealed.is_empty());
    if !wish.cold || is_looked_for {
        return String::new();
    }
    let who = wish
        .bucket
        .as_ref()
        .map_or("no bucket has a".to_owned(), |name| format!("{} has no", printable(name)));
    format!("nothing is sealed: {who} wide profile; `striate bucket set NAME --cold-profile` gives it one\n")
}

/// Formats a line for each bucket that was sealed, waits or was skipped.
fn bucket_lines(report: &Value) -> Vec<String> {
    let all_sealed = || report["sealed"].as_array().into_iter().flatten();
    let mut lines = Vec::new();
    for sealed in all_sealed() {
        lines.push(was_sealed(printable(sealed[0].as_str().unwrap_or_default()).as_ref(), &sealed[1]));
    }
    for bucket in report["waiting"].as_array().into_iter().flatten() {
        lines.push(waiting(bucket));
    }
    for skipped in report["skipped"].as_array().into_iter().flatten() {
        let text = |place: usize| skipped[place].as_str().unwrap_or_default();
        let is_sealed = all_sealed().any(|sealed| sealed[0] == skipped[0]);
        let outcome = if is_sealed { "not packed" } else { "left alone" };
        lines.push(format!("{} is {outcome}: {}", printable(text(0)), text(1)));
    }
    lines
}

/// Formats what was sealed of a bucket, and what waits.
fn was_sealed(bucket: &str, report: &Value) -> String {
    let mut line = format!(
        "{bucket}: {} made of {} ({}); {} of {} sealed, {} in part; {} waiting",
        counted(number(report, "sealed"), "wide stripe"),
        counted(number(report, "members"), "partition"),
        ByteSize(number(report, "bytes")),
        number(report, "sealed_stripes"),
        counted(number(report, "cold_stripes"), "cold stripe"),
        number(report, "half_sealed"),
        counted(number(report, "waiting"), "partition")
    );
    let mut add = |part: String| line.push_str(&part);
    if let Some(reason) = report["held_up"].as_str() {
        add(format!(": {}", printable(reason)));
    }
    if number(report, "given_up") > 0 {
        add(format!("; {} given up", number(report, "given_up")));
    }
    if number(report, "replaced") > 0 {
        add(format!("; {} of dead chunks taken", counted(number(report, "replaced"), "place")));
    }
    if number(report, "emptied") > 0 {
        add(format!("; {} emptied into others", counted(number(report, "emptied"), "sparse wide stripe")));
    }
    for warning in report["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        add(format!("\n  warning: {}", printable(warning)));
    }
    line
}

/// Formats what is not packed of a bucket, and what it waits for.
fn waiting(report: &Value) -> String {
    let young = number(report, "objects").saturating_sub(number(report, "settled_objects"));
    let settled = number(report, "settled_objects");
    let mut parts = Vec::new();
    if young > 0 {
        parts.push(format!("{young} not settled (--now takes them)"));
    }
    if settled > 0 {
        let (has, needs) = (number(report, "settled_bytes"), number(report, "group_bytes"));
        parts.push(match has < needs {
            true => format!("{settled} too few for the smallest group, which has {}", ByteSize(needs)),
            false => format!("{settled} waiting until a group is full, or for a day (--now takes them)"),
        });
    }
    let bucket = printable(report["bucket"].as_str().unwrap_or_default());
    format!(
        "{bucket}: {} ({}) still split: {}",
        counted(number(report, "objects"), "small object"),
        ByteSize(number(report, "bytes")),
        parts.join("; ")
    )
}

/// Formats the output of `striate pack undo`.
fn unpacked(bucket: &str, answer: &Value) -> String {
    let (report, progress) = (&answer["report"], &answer["report"]["progress"]);
    let bucket = printable(bucket);
    let mut text = String::new();
    if answer["setting_before"] != "off" {
        writeln!(
            text,
            "{bucket} is set to --pack off, or it would be packed again; `striate bucket set {bucket} --pack default` \
             undoes that"
        )
        .expect("writing to a string");
    }
    writeln!(
        text,
        "{} ({}) split again",
        counted(number(progress, "objects"), "object"),
        ByteSize(number(progress, "bytes"))
    )
    .expect("writing to a string");
    if number(progress, "failed") > 0 {
        writeln!(text, "! {} still packed; run it again", counted(number(progress, "failed"), "object"))
            .expect("writing to a string");
        for example in report["examples"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            writeln!(text, "  {}", printable(example)).expect("writing to a string");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> PackingState {
        let figures = PackFigures {
            live_objects: 3,
            live_bytes: 3_072,
            dead_objects: 1,
            dead_bytes: 1_024,
            waiting_objects: 5,
            waiting_bytes: 5_120,
            settled_objects: 2,
            settled_bytes: 2_048,
            groups: 1,
            packed_bytes: 4 << 20,
        };
        PackingState {
            setting: "auto".to_owned(),
            settled_after_s: 3_600,
            figures,
            counted_s_ago: Some(40),
            unreadable_groups: 1,
            unreadable_stripes: vec!["7-1".to_owned()],
            ..PackingState::default()
        }
    }

    #[test]
    fn the_status_says_what_lives_is_dead_and_waits_and_what_cannot_be_released() {
        let line = line(&state());
        for part in
            ["auto", "1 group (4.0 MiB)", "3.0 KiB live", "1.0 KiB dead", "5.0 KiB in 5 objects waiting"]
        {
            assert!(line.contains(part), "{part:?} is not in {line}");
        }
        assert!(line.contains("2 of them settled") && line.contains("1 group cannot be released"), "{line}");
        assert!(line.contains("40 s ago"), "{line}");
        let bucket = |name: &str, partition_len, reason: Option<&str>| PackedBucket {
            bucket: name.to_owned(),
            partition_len,
            group_bytes: partition_len.map(|len| 4 * u64::from(len)),
            reason: reason.map(str::to_owned),
            figures: state().figures,
            counted_s_ago: 40,
            sealed: Some(SealedState {
                profile: "wide(42,15,4)".to_owned(),
                cold_stripes: 9,
                sealed_stripes: 7,
                half_sealed: 1,
                waiting: 8,
                held_up: Some("rack7 can supply 2 of 4".to_owned()),
                warnings: vec!["wide(42,15,4) uses all 12 racks".to_owned()],
                swapped: 3,
                emptied: 5,
                not_packed: 2,
                not_packed_bytes: 3 << 10,
            }),
        };
        let buckets = vec![bucket("photos", Some(32 << 20), None), bucket("logs", None, Some("it is off"))];
        let text = text(&PackingStatus { packing: Some(state()), buckets });
        for part in [
            "60 min",
            "32.0 MiB    128.0 MiB",
            "1.0 KiB (1)",
            "logs is not packed: it is off",
            "photos: 7 of 9 cold stripes sealed as wide(42,15,4), 1 in part; 8 partitions waiting: rack7 can supply 2 of 4; \
             too short to be sealed: 2 cold stripes (3.0 KiB); \
             local parities moved to the racks that change most: 3; sparse wide stripes emptied into others: 5\n  \
             warning: wide(42,15,4) uses all 12 racks\n",
            "all  ",
            "7-1",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    #[test]
    fn the_status_says_what_is_sealed_of_all_buckets_and_why_most_of_the_rest_waits() {
        let bucket = |sealed_stripes, waiting, reason: &str| SealedState {
            cold_stripes: 32,
            sealed_stripes,
            half_sealed: 1,
            waiting,
            held_up: (waiting > 0).then(|| reason.to_owned()),
            ..SealedState::default()
        };
        let line = |buckets: &[SealedState]| SealedTotals::of(buckets).map(|totals| sealed_line(&totals));
        assert_eq!(line(&[SealedState::default()]), None);
        let one = [bucket(30, 8, "rack7 can supply 2 of 4"), bucket(32, 0, "")];
        let text = "62 of 64 cold stripes sealed, 2 in part; 8 partitions waiting: rack7 can supply 2 of 4";
        assert_eq!(line(&one).unwrap(), text);
        let two = line(&[bucket(31, 4, "too few racks"), one[0].clone()]).unwrap();
        assert!(two.contains("12 partitions waiting: rack7 can supply 2 of 4; in 2 buckets"), "{two}");
    }

    #[test]
    fn the_status_of_a_bucket_that_seals_no_more_says_what_stays_sealed() {
        let kept =
            SealedState { cold_stripes: 9, sealed_stripes: 7, half_sealed: 2, ..SealedState::default() };
        let bucket =
            PackedBucket { bucket: "photos".to_owned(), sealed: Some(kept), ..PackedBucket::default() };
        let line = "photos: 7 of 9 cold stripes stay sealed, 2 in part; 0 partitions waiting\n";
        assert_eq!(sealed(&bucket).unwrap(), line);
        let nothing = PackedBucket { sealed: Some(SealedState::default()), ..bucket };
        assert_eq!(sealed(&nothing), None);
    }

    #[test]
    fn a_run_says_what_it_left_and_why() {
        let left = |settled: u64, settled_bytes: u64| {
            serde_json::json!({ "bucket": "photos", "objects": 10, "bytes": 10_240, "settled_objects": settled,
                "settled_bytes": settled_bytes, "group_bytes": 4 << 20 })
        };
        let report = serde_json::json!({ "progress": { "packed": { "objects": 4, "bytes": 4_096, "groups": 1 } },
            "waiting": [left(3, 3_072), left(0, 0)], "skipped": [["logs", "its own setting is off"]] });
        let text = packed(&report);
        assert!(text.contains("4 objects (4.0 KiB) packed into 1 group\n"), "{text}");
        assert!(
            text.contains("7 not settled (--now takes them); 3 too few for the smallest group"),
            "{text}"
        );
        assert!(text.contains("logs is left alone: its own setting is off"), "{text}");
    }

    #[test]
    fn a_run_says_what_it_sealed_and_what_waits() {
        let sealed = serde_json::json!({ "sealed": 2, "members": 20, "bytes": 20 << 20, "cold_stripes": 9, "sealed_stripes": 4, "half_sealed": 1,
            "waiting": 7, "given_up": 1, "replaced": 0, "emptied": 1, "held_up": "rack7 can supply 2 of 4", "warnings": ["add a rack"] });
        let mut report = serde_json::json!({ "progress": { "packed": {} }, "sealed": [["photos", sealed]] });
        let mut text = packed(&report);
        let line = "photos: 2 wide stripes made of 20 partitions (20.0 MiB); 4 of 9 cold stripes sealed, 1 in part; \
                    7 partitions waiting: rack7 can supply 2 of 4; 1 given up; 1 sparse wide stripe emptied into others\n  \
                    warning: add a rack\n";
        assert!(text.contains(line), "{text}");
        // A bucket that is not packed is sealed all the same.
        report["skipped"] = serde_json::json!([["photos", "it is off"], ["logs", "it is off"]]);
        text = packed(&report);
        assert!(text.contains("photos is not packed: it is off\nlogs is left alone: it is off\n"), "{text}");
    }

    #[test]
    fn a_run_says_where_nothing_is_ever_cold() {
        let wish =
            |bucket: Option<&str>, cold| PackNow { bucket: bucket.map(str::to_owned), now: false, cold };
        let mut report = serde_json::json!({ "sealed": [] });
        assert_eq!(nothing_cold(&wish(None, false), &report), "");
        assert!(nothing_cold(&wish(None, true), &report).contains("no bucket has a wide profile; "));
        assert!(nothing_cold(&wish(Some("photos"), true), &report).contains("photos has no wide profile; "));
        report["sealed"] = serde_json::json!([["photos", {}]]);
        assert_eq!(nothing_cold(&wish(Some("photos"), true), &report), "");
    }

    #[test]
    fn progress_says_what_is_sealed_as_soon_as_something_is_cold() {
        let mut progress =
            serde_json::json!({ "bucket": "photos", "seen": 10, "packed": {}, "cold": 0, "sealed": 0 });
        assert!(!pack_progress(&progress).contains("sealed"));
        progress["cold"] = 30.into();
        assert!(pack_progress(&progress).ends_with("; 30 cold stripes found, 0 wide stripes sealed"));
        progress["sealed"] = 2.into();
        assert!(pack_progress(&progress).ends_with("; 30 cold stripes found, 2 wide stripes sealed"));
    }

    #[test]
    fn undoing_says_that_it_switched_packing_off() {
        let answer = |before: &str, failed: u64| {
            serde_json::json!({ "setting_before": before, "report": { "progress": { "objects": 2, "bytes": 2_048,
                "failed": failed }, "examples": ["key: why"] } })
        };
        let text = unpacked("photos", &answer("", 1));
        assert!(
            text.contains("bucket set photos --pack default") && text.contains("2 objects (2.0 KiB)"),
            "{text}"
        );
        assert!(text.contains("1 object still packed") && text.contains("key: why"), "{text}");
        let text = unpacked("photos", &answer("off", 0));
        assert!(!text.contains("--pack") && !text.contains('!'), "{text}");
    }
}
