//! Rules of gets and scans.

use bytes::Bytes;

use super::{Store, delete, get, keys, put, transaction};
use crate::store::{Row, ScanRange};

pub(super) async fn acknowledged_writes_are_read(store: Store) {
    assert_eq!(get(&store, b"a").await, None);
    for round in 0..10_u8 {
        let version = put(&store, "a", vec![round]).await;
        let expected = Row { key: "a".into(), value: vec![round].into(), version };
        assert_eq!(get(&store, b"a").await, Some(expected.clone()));
        let asked: [Bytes; 3] = ["a".into(), "none".into(), "a".into()];
        let many = store.get_many(&asked).await.unwrap();
        assert_eq!(many, [Some(expected.clone()), None, Some(expected.clone())]);
        assert_eq!(store.scan(ScanRange::prefix(b"a"), 5).await.unwrap(), [expected]);
    }
    delete(&store, "a").await;
    delete(&store, "a").await;
    assert_eq!(get(&store, b"a").await, None);
    assert_eq!(store.get_many(&[]).await.unwrap(), []);
}

pub(super) async fn scans_go_both_ways_and_stop_at_the_limit(store: Store) {
    for key in ["d", "b", "c/1", "a", "c", "c/2", "e"] {
        put(&store, key, key).await;
    }
    let scan = async |range: ScanRange, limit: usize| {
        let forward = store.scan(range.clone(), limit).await.unwrap();
        let back = store.scan_back(range, limit).await.unwrap();
        let text = |rows: &[Row]| {
            rows.iter()
                .map(|row| String::from_utf8_lossy(&row.key).into_owned())
                .collect::<Vec<_>>()
                .join(" ")
        };
        (text(&forward), text(&back))
    };
    let between = |start: &'static str, end: &'static str| ScanRange { start: start.into(), end: end.into() };
    let expect = |forward: &str, back: &str| (forward.to_owned(), back.to_owned());
    assert_eq!(scan(between("", ""), 9).await, expect("a b c c/1 c/2 d e", "e d c/2 c/1 c b a"));
    assert_eq!(scan(between("b", "d"), 9).await, expect("b c c/1 c/2", "c/2 c/1 c b"));
    assert_eq!(scan(between("bb", "c/11"), 9).await, expect("c c/1", "c/1 c"));
    assert_eq!(scan(between("b", ""), 2).await, expect("b c", "e d"));
    assert_eq!(scan(between("", ""), 0).await, expect("", ""));
    assert_eq!(scan(ScanRange::prefix(b"c/"), 9).await, expect("c/1 c/2", "c/2 c/1"));
    assert_eq!(scan(ScanRange::prefix(b"c"), 1).await, expect("c", "c/2"));
}

pub(super) async fn any_bytes_are_keys_and_values(store: Store) {
    let all: Vec<Bytes> =
        [&[0][..], &[0, 0], &[0, 0xff], &[1], &[0x7f], &[0x80], &[0xff], &[0xff, 0], &[0xff, 0xff]]
            .into_iter()
            .map(Bytes::from_static)
            .collect();
    let mut tx = transaction();
    for key in all.iter().rev() {
        tx.put(key.clone(), key.clone());
    }
    store.commit(tx).await.unwrap();
    put(&store, "empty", "").await;
    assert!(get(&store, b"empty").await.unwrap().value.is_empty());
    delete(&store, "empty").await;

    let rows = store.scan(ScanRange::prefix(b""), 100).await.unwrap();
    assert_eq!(keys(&rows), all, "keys sort as unsigned bytes");
    assert!(rows.iter().all(|row| row.key == row.value));
    let rows = store.scan(ScanRange::prefix(&[0xff]), 100).await.unwrap();
    assert_eq!(keys(&rows), all[6..], "a prefix of 0xff bytes has no end");
    let rows = store.scan_back(ScanRange::prefix(&[0]), 2).await.unwrap();
    assert_eq!(keys(&rows), [&[0, 0xff][..], &[0, 0]]);
}

pub(super) async fn inverted_and_empty_ranges_hold_nothing(store: Store) {
    for key in ["a", "b", "c"] {
        put(&store, key, "").await;
    }
    for (start, end) in [("b", "b"), ("c", "a"), ("bb", "c"), ("d", "")] {
        let range = ScanRange { start: start.into(), end: end.into() };
        assert_eq!(store.scan(range.clone(), 9).await.unwrap(), [], "{start}..{end}");
        assert_eq!(store.scan_back(range, 9).await.unwrap(), [], "{start}..{end}");
    }
}

/// More rows than an engine is likely to read at once.
pub(super) async fn a_long_scan_is_in_order_and_complete(store: Store) {
    const ROWS: u32 = 4_500;
    for first in (0..ROWS).step_by(90) {
        let mut tx = transaction();
        for number in first..first + 90 {
            tx.put(number.to_be_bytes().to_vec(), number.to_string());
        }
        store.commit(tx).await.unwrap();
    }
    let rows = store.scan(ScanRange::prefix(b""), usize::MAX).await.unwrap();
    assert_eq!(rows.len() as u32, ROWS);
    assert!((0..).zip(&rows).all(|(number, row): (u32, _)| row.key[..] == number.to_be_bytes()));
    let mut back = store.scan_back(ScanRange::prefix(b""), 4_200).await.unwrap();
    back.reverse();
    assert_eq!(back, rows[300..]);
    let keys: Vec<Bytes> = rows.iter().rev().step_by(7).map(|row| row.key.clone()).collect();
    let many = store.get_many(&keys).await.unwrap();
    assert!(many.iter().zip(rows.iter().rev().step_by(7)).all(|(found, row)| found.as_ref() == Some(row)));
}
