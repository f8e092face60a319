//! Compares listings with a naive computation.

use std::collections::BTreeSet;

use proptest::prelude::*;
use striate_client::{CreateUpload, ListRequest, ListUploads};

use crate::cluster::{BUCKET, Cluster, in_virtual_time};

pub struct Expected {
    pub keys: Vec<String>,
    pub common_prefixes: Vec<String>,
    pub more: bool,
}

/// Filters, rolls up, sorts and cuts.
pub fn naive<'a>(
    keys: impl Iterator<Item = &'a String>,
    prefix: &str,
    delimiter: &str,
    after: &str,
    max: usize,
) -> Expected {
    let roll_up = |key: &String| {
        let rest = key.strip_prefix(prefix)?;
        match rest.find(delimiter).filter(|_| !delimiter.is_empty()) {
            Some(at) => Some((key[..prefix.len() + at + delimiter.len()].to_owned(), true)),
            None => Some((key.clone(), false)),
        }
    };
    let items: BTreeSet<(String, bool)> =
        keys.filter_map(roll_up).filter(|(name, _)| name.as_str() > after).collect();
    let more = max > 0 && items.len() > max;
    let (mut keys, mut common_prefixes) = (Vec::new(), Vec::new());
    for (name, is_prefix) in items.into_iter().take(max) {
        if is_prefix { &mut common_prefixes } else { &mut keys }.push(name);
    }
    Expected { keys, common_prefixes, more }
}

fn name() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "/", "//", "ä", "\u{10ffff}", "-"]), 1..6)
        .prop_map(|pieces| pieces.concat())
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![1 => Just(String::new()), 2 => name()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn listings_equal_the_naive_computation(
        keys in prop::collection::btree_set(name(), 0..40),
        prefix in text(),
        delimiter in prop::sample::select(vec!["", "/", "//", "a", "ä"]),
        after in text(),
        max in 0usize..8,
    ) {
        in_virtual_time(1, async |runtime| {
            let cluster = Cluster::open(runtime).await;
            for key in &keys {
                cluster.put(key, b"").await.unwrap();
            }
            let request = |after: &str| ListRequest {
                bucket: BUCKET.to_owned(),
                prefix: prefix.clone(),
                delimiter: delimiter.to_owned(),
                after: after.to_owned(),
                max_keys: max,
            };
            let mut after = after.clone();
            loop {
                let page = cluster.client.list(request(&after)).await.unwrap();
                let expected = naive(keys.iter(), &prefix, delimiter, &after, max);
                let names: Vec<String> = page.objects.into_iter().map(|object| object.key).collect();
                assert_eq!(names, expected.keys);
                assert_eq!(page.common_prefixes, expected.common_prefixes);
                assert_eq!(page.next.is_some(), expected.more);
                match page.next {
                    Some(next) => after = next,
                    None => break,
                }
            }
        });
    }

    #[test]
    fn listings_of_uploads_equal_the_naive_computation(
        keys in prop::collection::vec(name(), 0..20),
        prefix in text(),
        delimiter in prop::sample::select(vec!["", "/", "a"]),
        max in 1usize..5,
    ) {
        in_virtual_time(1, async |runtime| {
            let cluster = Cluster::open(runtime).await;
            let mut uploads = BTreeSet::new();
            for key in &keys {
                let create = CreateUpload { bucket: BUCKET.to_owned(), key: key.clone(), ..CreateUpload::default() };
                uploads.insert((key.clone(), cluster.client.create_upload(create).await.unwrap().id));
            }
            let names: BTreeSet<&String> = keys.iter().collect();
            let expected = naive(names.into_iter(), &prefix, delimiter, "", usize::MAX);
            let uploads: Vec<_> =
                uploads.into_iter().filter(|(key, _)| expected.keys.contains(key)).collect();
            let (mut listed, mut common_prefixes) = (Vec::new(), Vec::new());
            let (mut after_key, mut after_upload) = (String::new(), String::new());
            loop {
                let request = ListUploads {
                    bucket: BUCKET.to_owned(),
                    prefix: prefix.clone(),
                    delimiter: delimiter.to_owned(),
                    after_key: after_key.clone(),
                    after_upload: after_upload.clone(),
                    max,
                };
                let page = cluster.client.list_uploads(request).await.unwrap();
                assert!(page.items.len() + page.common_prefixes.len() <= max);
                let last_upload = page.items.last().map(|upload| (upload.key.clone(), upload.id.clone()));
                let last_prefix = page.common_prefixes.last().map(|prefix| (prefix.clone(), String::new()));
                listed.extend(page.items.into_iter().map(|upload| (upload.key, upload.id)));
                common_prefixes.extend(page.common_prefixes);
                if !page.truncated {
                    break;
                }
                (after_key, after_upload) = last_upload.max(last_prefix).unwrap();
            }
            assert_eq!(listed, uploads);
            assert_eq!(common_prefixes, expected.common_prefixes);
        });
    }
}
