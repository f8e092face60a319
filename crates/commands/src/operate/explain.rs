//! Formats the explanation of a read.

use std::fmt::Write;

use crate::output::printable;
use bytesize::ByteSize;
use striate_client::{ObjectExplanation, ReadExplanation};
use striate_core::SiteId;
use striate_stripe::{
    BlockExplanation, ChunkChoice, OWN_MEMORY, OptionExplanation, OptionKind, QueryExplanation,
    SiteExplanation,
};

use super::report::{cells, counted, table};
use crate::admin::messages::{Explanation, RemoteExplanation};

/// Formats the output of `striate explain`.
pub fn text(explained: &Explanation) -> String {
    let Explanation { read, elsewhere } = explained;
    let mut text = if read.objects.is_empty() { String::new() } else { of_read(read) };
    for object in elsewhere {
        write!(text, "{}", of_elsewhere(object)).expect("writing to a string");
    }
    text
}

fn of_elsewhere(object: &RemoteExplanation) -> String {
    let cached_head = match &object.etag {
        None => "nothing is known of it".to_owned(),
        Some(etag) => format!(
            "{etag}, {}, known for {:.1} s of the {:.0} s for which it is used",
            ByteSize(object.size),
            object.known_for_ms as f64 / 1e3,
            object.ttl_ms as f64 / 1e3
        ),
    };
    let mut rows = vec![
        cells(["object", &format!("s3://{}/{}", object.bucket, object.key)]),
        cells(["at", &object.origin]),
        cells(["known", &cached_head]),
    ];
    if object.etag.is_some() {
        let RemoteExplanation { blocks_in_memory, blocks, .. } = object;
        let known = format!("{blocks_in_memory} of {blocks} in memory, as far as this gateway knows");
        rows.push(cells(["blocks", &known]));
    }
    rows.push(cells(["a read", &object.would]));
    let mut text = table(&rows);
    text.push_str(&of_cached(object.first_blocks.iter().enumerate()));
    text
}

/// Formats what is in memory of blocks, each with its number.
fn of_cached<'a>(blocks: impl Iterator<Item = (usize, &'a String)>) -> String {
    blocks.map(|(number, cached)| format!("block {number} is {cached}\n")).collect()
}

fn of_read(explained: &ReadExplanation) -> String {
    let mut text = summary(explained);
    if !explained.query.blocks.is_empty() {
        write!(text, "\n{}", sites(&explained.query.sites)).expect("writing to a string");
    }
    for object in &explained.objects {
        write!(text, "\n{}", of_object(object, &explained.query)).expect("writing to a string");
    }
    text
}

fn summary(explained: &ReadExplanation) -> String {
    let query = &explained.query;
    let count = |counts: fn(ChunkChoice) -> bool| {
        query.blocks.iter().flat_map(|block| &block.chunks).filter(|chunk| counts(chunk.choice)).count()
    };
    let computed = match count(|choice| choice == ChunkChoice::Computed) {
        0 => String::new(),
        chunks => format!(", {chunks} computed from wide stripes, of which the cost says nothing"),
    };
    let sites_read = query.sites.iter().filter(|site| site.chunks_read > 0).count();
    let quality = match query.gap {
        gap if gap < 1e-9 => "no plan costs less".to_owned(),
        gap => {
            format!("no plan costs less than {:.2}: at most {:.1}% to save", query.lower_bound, gap * 100.0)
        }
    };
    format!(
        "policy {}: {} of {}, {} from {}{computed}\n\
         cost {:.2}; {quality}\n\
         looked up in {:.0} µs, planned in {:.1} µs\n",
        query.policy,
        counted(query.blocks.len() as u64, "block"),
        counted(explained.objects.len() as u64, "object"),
        counted(count(ChunkChoice::is_read) as u64, "chunk"),
        counted(sites_read as u64, "site"),
        query.cost,
        query.metadata_us,
        query.planning_us,
    )
}

fn sites(sites: &[SiteExplanation]) -> String {
    let mut rows = vec![cells(["SITE", "RACK", "COST", "WHICH IS", "OF 64 KIB", "QUEUE", "CHUNKS READ"])];
    for site in sites {
        let parts: Vec<_> =
            site.parts.iter().map(|part| format!("{:.2} {}", part.value, part.name)).collect();
        let (cost, parts) = match site.cost {
            Some(cost) => (format!("{cost:.2}"), parts.join(" + ")),
            None => ("-".to_owned(), "does not answer".to_owned()),
        };
        let transfer = site.transfer.map_or_else(|| "-".to_owned(), |transfer| format!("{transfer:.2}"));
        let (number, read) = (site_name(site.site), site.chunks_read.to_string());
        let queue = ByteSize(site.queue_bytes).to_string();
        rows.push(vec![number, site.rack.clone(), cost, parts, transfer, queue, read]);
    }
    table(&rows)
}

/// Formats the number of a site: `own` is the memory of the process that was asked, `-` is none.
fn site_name(number: u32) -> String {
    match SiteId(number) {
        SiteId(0) => "-".to_owned(),
        OWN_MEMORY => "own".to_owned(),
        SiteId(number) => number.to_string(),
    }
}

fn of_object(object: &ObjectExplanation, query: &QueryExplanation) -> String {
    let name = printable(&format!("s3://{}/{}", object.bucket, object.key));
    let size = ByteSize(object.size);
    if object.is_inline {
        return format!("{name}: {size}, kept in the metadata: no site is asked\n");
    }
    let blocks = || query.blocks.iter().skip(object.first_block).take(object.block_count);
    let mut text = match blocks().find_map(|block| block.extent) {
        Some(extent) => format!("{name}: {size}, packed: at {} of chunk {}\n", extent.offset, extent.chunk),
        None => format!("{name}: {size} in {}\n", counted(object.block_count as u64, "block")),
    };
    let mut rows = vec![cells(["BLOCK", "STRIPE", "CODE", "CHUNK", "SITE", "CHOICE"])];
    for (number, block) in blocks().enumerate() {
        rows.extend(of_block(number, block));
    }
    text.push_str(&table(&rows));
    let cached = blocks().enumerate().filter_map(|(number, block)| Some((number, block.cached.as_ref()?)));
    text.push_str(&of_cached(cached));
    let options: Vec<_> = blocks().flat_map(|block| &block.options).collect();
    if !options.is_empty() {
        write!(text, "\n{}", options_table(&options)).expect("writing to a string");
    }
    text
}

/// Formats the ways to read a packed object, and the current cost of each.
fn options_table(options: &[&OptionExplanation]) -> String {
    let mut rows = vec![cells(["READ", "CHUNKS", "SITES", "BYTES", "COST", "PREDICTED", ""])];
    for option in options {
        let kind = match option.kind {
            OptionKind::Normal => "normal",
            OptionKind::Copy => "copy",
            OptionKind::Local => "local group",
            OptionKind::Global => "global",
        };
        let list = |numbers: &mut dyn Iterator<Item = String>| numbers.collect::<Vec<_>>().join(",");
        let (cost, time) = match (option.cost, option.predicted_ms) {
            (None, _) => ("a site does not answer".to_owned(), "-".to_owned()),
            (Some(cost), None) => (format!("{cost:.2}"), "not known yet".to_owned()),
            (Some(cost), Some(ms)) => (format!("{cost:.2}"), format!("{ms:.2} ms")),
        };
        rows.push(vec![
            kind.to_owned(),
            list(&mut option.chunks.iter().map(usize::to_string)),
            list(&mut option.sites.iter().map(u32::to_string)),
            ByteSize(option.bytes).to_string(),
            cost,
            time,
            if option.is_chosen { "is read".to_owned() } else { String::new() },
        ]);
    }
    table(&rows)
}

/// Formats one row per chunk; the first row names the block.
fn of_block(number: usize, block: &BlockExplanation) -> impl Iterator<Item = Vec<String>> + '_ {
    let chunk_len = ByteSize(block.chunk_len.into());
    block.chunks.iter().map(move |chunk| {
        let of_block = match chunk.index {
            0 => [number.to_string(), block.stripe.clone(), block.profile.clone()],
            _ => [const { String::new() }; 3],
        };
        let kind = if chunk.index < block.data_chunks { "data" } else { "parity" };
        let chunk_name = format!("{} {kind} {chunk_len}", chunk.index);
        of_block
            .into_iter()
            .chain([chunk_name, site_name(chunk.site), chunk.choice.reason().to_owned()])
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use striate_stripe::{ChunkExplanation, CostPart, ExtentExplanation};

    use super::*;

    fn explained() -> ReadExplanation {
        let chunk = |index, site, choice| ChunkExplanation { index, site, choice };
        let block = BlockExplanation {
            cached: Some("in memory, whole".to_owned()),
            stripe: "1-2".to_owned(),
            len: 2_000,
            profile: "rs(2,1)".to_owned(),
            chunk_len: 1_000,
            data_chunks: 2,
            chunks: vec![
                chunk(0, 1, ChunkChoice::SharedSite),
                chunk(1, 2, ChunkChoice::NoAnswer),
                chunk(2, 0, ChunkChoice::InDebt),
            ],
            extent: None,
            options: Vec::new(),
        };
        let part = CostPart { name: "reported".to_owned(), value: 2.0 };
        let site = |site, cost: Option<f64>, chunks_read| SiteExplanation {
            site,
            rack: format!("rack-{site}"),
            cost,
            transfer: cost.map(|_| 0.25),
            parts: cost.map(|_| part.clone()).into_iter().collect(),
            queue_bytes: 3_000,
            chunks_read,
        };
        let object = |key: &str, is_inline, block_count| ObjectExplanation {
            bucket: "b".to_owned(),
            key: key.to_owned(),
            size: 2_000,
            is_inline,
            first_block: 0,
            block_count,
        };
        ReadExplanation {
            objects: vec![object("k", false, 1), object("small", true, 0)],
            query: QueryExplanation {
                policy: "cost-model".to_owned(),
                blocks: vec![block],
                sites: vec![site(1, Some(3.0), 1), site(2, None, 0)],
                cost: 4.0,
                lower_bound: 3.0,
                gap: 0.25,
                metadata_us: 120.0,
                planning_us: 3.25,
            },
        }
    }

    #[test]
    fn every_chunk_has_its_reason_and_every_site_its_cost() {
        let text = of_read(&explained());
        for part in [
            "policy cost-model: 1 block of 2 objects, 1 chunk from 1 site",
            "no plan costs less than 3.00: at most 25.0% to save",
            "3.00  2.00 reported",
            "OF 64 KIB",
            "0.25",
            "does not answer",
            "0 data 1000 B",
            "2 parity 1000 B",
            "its site is asked anyway",
            "never written (debt)",
            "s3://b/small: 2.0 KiB, kept in the metadata",
            "block 0 is in memory, whole",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    #[test]
    fn the_memory_of_the_process_itself_has_no_number() {
        let mut explained = explained();
        explained.query.sites[0].site = OWN_MEMORY.0;
        explained.query.blocks[0].chunks[0].site = OWN_MEMORY.0;
        let text = of_read(&explained);
        assert!(text.contains("\nown ") && !text.contains(&OWN_MEMORY.0.to_string()), "{text}");
    }

    #[test]
    fn a_packed_object_shows_what_it_can_be_read_from_and_what_that_costs() {
        let mut explained = explained();
        let option = |kind, chunks: Vec<usize>, cost, predicted_ms, is_chosen| OptionExplanation {
            kind,
            sites: chunks.iter().map(|&chunk| chunk as u32 + 1).collect(),
            bytes: 2_048 * chunks.len() as u64,
            chunks,
            cost,
            predicted_ms,
            is_chosen,
        };
        let block = &mut explained.query.blocks[0];
        block.extent = Some(ExtentExplanation { chunk: 1, offset: 4_096 });
        block.options = vec![
            option(OptionKind::Normal, vec![1], None, None, false),
            option(OptionKind::Local, vec![0, 2], Some(2.5), Some(1.25), true),
            option(OptionKind::Global, vec![0, 3], Some(3.5), None, false),
        ];
        let text = of_read(&explained);
        for part in [
            "s3://b/k: 2.0 KiB, packed: at 4096 of chunk 1",
            "normal       1       2      2.0 KiB  a site does not answer  -",
            "local group  0,2     1,3    4.0 KiB  2.50                    1.25 ms        is read",
            "global       0,3     1,4    4.0 KiB  3.50                    not known yet",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        let json = serde_json::to_string(&explained).unwrap();
        assert_eq!(serde_json::from_str::<ReadExplanation>(&json).unwrap(), explained);
    }

    #[test]
    fn what_is_in_memory_of_an_object_in_another_store_is_said_for_each_block() {
        let first_blocks = ["in memory, whole", "not in memory: evicted"].map(str::to_owned).to_vec();
        let object = RemoteExplanation {
            etag: Some("\"e\"".to_owned()),
            blocks: 2,
            blocks_in_memory: 1,
            first_blocks,
            ..RemoteExplanation::default()
        };
        let text = of_elsewhere(&object);
        for part in ["1 of 2 in memory", "\nblock 0 is in memory, whole\nblock 1 is not in memory: evicted\n"]
        {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        let text = of_elsewhere(&RemoteExplanation::default());
        assert!(text.contains("nothing is known of it") && !text.contains("blocks"), "{text}");
    }

    #[test]
    fn what_the_server_says_survives_the_way() {
        let json = serde_json::to_string(&explained()).unwrap();
        assert!(json.contains("\"choice\":\"shared_site\""), "{json}");
        assert_eq!(serde_json::from_str::<ReadExplanation>(&json).unwrap(), explained());
    }
}
