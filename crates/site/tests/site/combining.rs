//! Sums and chunks that a site makes out of the chunks of several sites.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use proptest::prelude::*;
use striate_codec::{accumulate, crc32c};
use striate_core::{ChunkId, SiteId};
use striate_runtime::Runtime;
use striate_site::protocol::limits::ServiceLimits;
use striate_site::transport_conformance::{chunk, payload, term};
use striate_site::{
    AssembleRequest, CombineRequest, CombineSource, LocalTerm, MemoryStore, Priority, QueueLimits, Site,
    SiteDirectory, SiteError, Window, WriteRequest,
};

use super::fixture::{Served, local, remote, serve, write_request};

#[derive(Debug, Default)]
struct Directory(Mutex<BTreeMap<SiteId, Arc<dyn Site>>>);

impl SiteDirectory for Directory {
    fn site(&self, site: SiteId) -> Option<Arc<dyn Site>> {
        self.0.lock().get(&site).cloned()
    }
}

async fn combined(site: &dyn Site, request: CombineRequest) -> Result<Vec<u8>, SiteError> {
    let mut sum = Vec::new();
    let mut slices = site.combine(request);
    while let Some(slice) = slices.next().await {
        sum.extend_from_slice(&slice?);
    }
    Ok(sum)
}

/// Serves sites 1 to 3, each with the chunk of its number, which can reach each other.
async fn three_remote_sites(runtime: &Runtime) -> (Arc<Directory>, Vec<Served>) {
    let directory = Arc::new(Directory::default());
    let mut served = Vec::new();
    for number in 1..=3u32 {
        let site = local(runtime, number, Arc::new(MemoryStore::default()), QueueLimits::default());
        let known: Weak<dyn SiteDirectory> = Arc::downgrade(&(Arc::clone(&directory) as _));
        site.set_directory(known);
        site.write(write_request(number.into(), 300_000)).await.unwrap();
        let listening = serve(runtime, site, ServiceLimits::default()).await;
        let remote: Arc<dyn Site> = Arc::new(remote(runtime, number, &listening.address));
        directory.0.lock().insert(SiteId(number), remote);
        served.push(listening);
    }
    (directory, served)
}

#[tokio::test]
async fn a_combine_tree_over_remote_sites_gives_the_sum_and_names_the_site_that_fails() {
    let runtime = Runtime::real();
    let (directory, _served) = three_remote_sites(&runtime).await;
    let request = |number: u64, upstream: Vec<CombineSource>| CombineRequest {
        offset: 11,
        len: 250_000,
        slice_len: 64 << 10,
        local: vec![term(number as u8 + 4, number, 300_000)],
        upstream,
        priority: Priority::Repair,
    };
    let source = |site: u32, request| CombineSource { site: SiteId(site), request };
    let chain = request(1, vec![source(2, request(2, vec![source(3, request(3, Vec::new()))]))]);
    let root = directory.site(SiteId(1)).unwrap();
    let mut expected = vec![0; 250_000];
    for number in 1..=3u64 {
        accumulate(number as u8 + 4, &payload(number, 300_000)[11..250_011], &mut expected);
    }
    assert_eq!(combined(root.as_ref(), chain).await, Ok(expected));

    let lost = request(1, vec![source(2, request(9, Vec::new()))]);
    assert_eq!(combined(root.as_ref(), lost).await, Err(SiteError::Missing(chunk(9))));
    directory.0.lock().remove(&SiteId(3));
    let unknown = request(1, vec![source(2, request(2, vec![source(3, request(3, Vec::new()))]))]);
    let error = combined(root.as_ref(), unknown).await.unwrap_err().to_string();
    assert!(error.contains("site 2") && error.contains("site 3"), "{error}");
}

/// The bytes go from site to site, not through the caller.
#[tokio::test]
async fn a_chunk_is_made_at_one_remote_site_out_of_those_of_others() {
    let runtime = Runtime::real();
    let (directory, _served) = three_remote_sites(&runtime).await;
    let sum = |local, upstream| CombineRequest {
        offset: 0,
        len: 300_000,
        slice_len: 64 << 10,
        local,
        upstream,
        priority: Priority::Repair,
    };
    let source = |number: u32| {
        let term = term(number as u8, number.into(), 300_000);
        CombineSource { site: SiteId(number), request: sum(vec![term], Vec::new()) }
    };
    let mut expected = vec![0; 300_000];
    for number in 1..=2u64 {
        accumulate(number as u8, &payload(number, 300_000), &mut expected);
    }
    let request = AssembleRequest {
        chunk: chunk(7),
        crc32c: crc32c(&expected),
        combination: sum(Vec::new(), vec![source(1), source(2)]),
        windows: Vec::new(),
    };
    let third = directory.site(SiteId(3)).unwrap();
    third.assemble(request.clone()).await.unwrap();
    assert_eq!(third.verify(chunk(7)).await.unwrap().crc32c, request.crc32c);

    directory.0.lock().remove(&SiteId(2));
    let again = AssembleRequest { chunk: chunk(8), ..request };
    let error = third.assemble(again).await.unwrap_err().to_string();
    assert!(error.contains("site 2"), "{error}");
}

/// An update of a chunk sends only what has changed, which may be all of a chunk of maximum length.
#[tokio::test]
async fn windows_come_from_other_sites_and_with_the_request_up_to_a_whole_chunk() {
    let runtime = Runtime::real();
    let (directory, _served) = three_remote_sites(&runtime).await;
    let sum = |offset, len, local, upstream| CombineRequest {
        offset,
        len,
        slice_len: 64 << 10,
        local,
        upstream,
        priority: Priority::Background,
    };
    // A parity at site 3 is updated in a range by the difference of two chunks at other sites.
    let (offset, len) = (70_001, 100_000);
    let source = |number: u32| {
        let term = term(9, number.into(), 300_000);
        CombineSource { site: SiteId(number), request: sum(offset, len, vec![term], Vec::new()) }
    };
    let mut expected = payload(3, 300_000).to_vec();
    for number in 1..=2u64 {
        let range = offset as usize..(offset + len) as usize;
        accumulate(9, &payload(number, 300_000)[range.clone()], &mut expected[range]);
    }
    let third = directory.site(SiteId(3)).unwrap();
    let request = AssembleRequest {
        chunk: chunk(7),
        crc32c: crc32c(&expected),
        combination: sum(0, 300_000, vec![term(1, 3, 300_000)], Vec::new()),
        windows: vec![Window::Sum(sum(offset, len, Vec::new(), vec![source(1), source(2)]))],
    };
    third.assemble(request.clone()).await.unwrap();
    assert_eq!(third.verify(chunk(7)).await.unwrap().crc32c, request.crc32c);
    // Without its windows it is a different chunk and is refused. So is the result of a site that ignores windows.
    let without = AssembleRequest { chunk: chunk(8), windows: Vec::new(), ..request };
    assert!(matches!(third.assemble(without).await, Err(SiteError::BadRequest(_))));

    let longest = Bytes::from(vec![7; 64 << 20]);
    let (payload, priority) = (Bytes::from(vec![1; 64 << 20]), Priority::Background);
    third.write(WriteRequest { chunk: chunk(20), payload, granule_crcs: None, priority }).await.unwrap();
    let replaced = AssembleRequest {
        chunk: chunk(21),
        crc32c: crc32c(&longest),
        combination: sum(0, 64 << 20, vec![term(1, 20, 64 << 20)], Vec::new()),
        windows: vec![Window::Bytes { offset: 0, bytes: longest.clone() }],
    };
    third.assemble(replaced).await.unwrap();
    assert_eq!(third.verify(chunk(21)).await.unwrap().crc32c, crc32c(&longest));
}

/// Builds a tree over `terms`; `choices` decide which terms a node keeps, and which go to which child.
fn tree(terms: &[(SiteId, u8, ChunkId)], choices: &mut impl Iterator<Item = u8>) -> CombineSource {
    let (site, _, _) = terms[0];
    let mut groups: BTreeMap<u8, Vec<(SiteId, u8, ChunkId)>> = BTreeMap::new();
    let own = |by, chunk| LocalTerm { by, chunk, len: 1_000 };
    let mut local = vec![own(terms[0].1, terms[0].2)];
    let rest = &terms[1..];
    for term in rest {
        match choices.next().unwrap_or(0) % 4 {
            0 if term.0 == site => local.push(own(term.1, term.2)),
            group => groups.entry(group).or_default().push(*term),
        }
    }
    let upstream = groups.values().map(|group| tree(group, choices)).collect();
    let (offset, len, slice_len, priority) = (3, 900, 256, Priority::Repair);
    CombineSource { site, request: CombineRequest { offset, len, slice_len, local, upstream, priority } }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_grouping_of_a_sum_over_a_tree_of_sites_equals_the_direct_sum(
        terms in prop::collection::vec((1u32..5, any::<u8>(), 1u64..9), 1..14),
        choices in prop::collection::vec(any::<u8>(), 64),
    ) {
        let paused = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        paused.block_on(async {
            let runtime = Runtime::deterministic(1, Duration::ZERO);
            let directory = Arc::new(Directory::default());
            for number in 1..5 {
                let site = local(&runtime, number, Arc::new(MemoryStore::default()), QueueLimits::default());
                let known: Weak<dyn SiteDirectory> = Arc::downgrade(&(Arc::clone(&directory) as _));
                site.set_directory(known);
                for chunk in 1..9 {
                    site.write(write_request(chunk, 1_000)).await.unwrap();
                }
                directory.0.lock().insert(SiteId(number), Arc::new(site));
            }
            let mut expected = vec![0; 900];
            for (_, coefficient, number) in &terms {
                accumulate(*coefficient, &payload(*number, 1_000)[3..903], &mut expected);
            }
            let terms: Vec<_> = terms.iter().map(|(site, c, number)| (SiteId(*site), *c, chunk(*number))).collect();
            let root = tree(&terms, &mut choices.into_iter());
            let site = directory.site(root.site).unwrap();
            prop_assert_eq!(combined(site.as_ref(), root.request).await, Ok(expected));
            Ok(())
        })?;
    }
}
