//! Checks what is sent with independent code.

use std::io::Read;

use bytes::Bytes;
use futures::{StreamExt, stream};
use s3s::StdError;
use striate_client::{
    ClientError, ObjectAttributes, ObjectHead, ObjectInfo, ObjectPart, PartStream, PutBody,
};

use super::archive::archive;
use super::frames::Frames;
use super::incoming::{BodyTurns, ItemBody, Reader, RequestBytes, RequestFault};
use super::{Failure, Item};
use crate::refusal::Refusal;

type Part = (usize, Result<ObjectPart, ClientError>);

fn head(size: u64) -> Option<Box<ObjectHead>> {
    let info = ObjectInfo {
        key: "unused".to_owned(),
        version: [0; 16],
        size,
        modified_unix_ms: 1_369_353_600_123,
        etag: "e".to_owned(),
        attributes: ObjectAttributes::default(),
        checksums: Vec::new(),
        parts: Vec::new(),
        profile: None,
    };
    Some(Box::new(ObjectHead { info, range: 0..size }))
}

fn part(head: Option<Box<ObjectHead>>, pieces: &[usize], is_last: bool) -> Result<ObjectPart, ClientError> {
    let pieces = pieces.iter().map(|&len| Bytes::from(vec![len as u8; len])).collect();
    Ok(ObjectPart { head, pieces, is_last })
}

fn items(keys: &[&str]) -> Vec<Item> {
    keys.iter().map(|key| Item { key: (*key).to_owned(), is_range: key.starts_with("range") }).collect()
}

fn parts(parts: Vec<Part>) -> PartStream {
    stream::iter(parts).boxed()
}

/// A frame: item, status, flags, head, body.
type Frame = (u32, u16, u8, serde_json::Value, Vec<u8>);

fn read_frames(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    let be = |bytes: &[u8]| bytes.iter().fold(0u32, |value, byte| value << 8 | u32::from(*byte));
    while !bytes.is_empty() {
        let (prefix, rest) = bytes.split_at(24);
        let (head_len, body_len) = (be(&prefix[12..16]) as usize, be(&prefix[16..20]) as usize);
        let (content, rest) = rest.split_at(head_len + body_len);
        let (head, body) = content.split_at(head_len);
        assert_eq!((&prefix[..4], prefix[11]), (&b"STR1"[..], 0));
        // Bit by bit, so that a wrong polynomial cannot agree with itself.
        let crc = !prefix[..20].iter().chain(content).fold(!0u32, |crc, byte| {
            (0..8)
                .fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1)))
        });
        assert_eq!(crc, be(&prefix[20..24]));
        assert!(body_len <= 1 << 20);
        let head =
            if head.is_empty() { serde_json::Value::Null } else { serde_json::from_slice(head).unwrap() };
        frames.push((be(&prefix[4..8]), be(&prefix[8..10]) as u16, prefix[10], head, body.to_vec()));
        bytes = rest;
    }
    frames
}

async fn frames_of(
    keys: &[&str],
    refused: &[(usize, Refusal)],
    sent: Vec<Part>,
    positions: Vec<usize>,
) -> Vec<Frame> {
    let pieces: Vec<Bytes> = Frames::new(items(keys), refused, parts(sent), positions).collect().await;
    read_frames(&pieces.concat())
}

#[tokio::test]
async fn items_come_in_frames_of_at_most_a_mebibyte_and_the_end_is_marked() {
    let sent = vec![
        (1, part(head(3_000_000), &[1_500_000, 900_000], false)),
        (0, part(head(2), &[1, 1], true)),
        (1, part(None, &[600_000], true)),
        (2, part(head(0), &[], true)),
    ];
    let frames = frames_of(&["range-a", "large", "empty"], &[], sent, vec![0, 1, 2]).await;
    let shape: Vec<_> =
        frames.iter().map(|(item, status, flags, _, body)| (*item, *status, *flags, body.len())).collect();
    let rest = 2_400_000 - 2 * (1 << 20);
    assert_eq!(
        shape,
        [
            (1, 200, 1, 1 << 20),
            (1, 200, 0, 1 << 20),
            (1, 200, 0, rest),
            (0, 206, 3, 2),
            (1, 200, 2, 600_000),
            (2, 200, 3, 0),
            (3, 200, 4, 0),
        ]
    );
    let large = serde_json::json!({
        "key": "large", "etag": "\"e\"", "size": 3_000_000, "last_modified": "2013-05-24T00:00:00.123Z",
        "content_type": "binary/octet-stream", "content_length": 3_000_000,
    });
    assert_eq!((&frames[0].3, &frames[1].3), (&large, &serde_json::Value::Null));
    assert_eq!(frames[3].3["content_range"], "bytes 0-1/2");
}

#[tokio::test]
async fn a_failed_item_has_one_last_frame_whether_or_not_it_had_begun() {
    let refused = [(1, Refusal::denied("AccessDenied", "no"))];
    let sent = vec![
        (0, part(head(10), &[4], false)),
        (1, Err(ClientError::NoSuchKey("c".to_owned()))),
        (0, Err(ClientError::Busy)),
    ];
    let frames = frames_of(&["a", "b", "c"], &refused, sent, vec![0, 2]).await;
    let shape: Vec<_> = frames
        .iter()
        .map(|(item, status, flags, head, _)| (*item, *status, *flags, head["code"].as_str().unwrap_or("")))
        .collect();
    assert_eq!(
        shape,
        [
            (1, 403, 3, "AccessDenied"),
            (0, 200, 1, ""),
            (2, 404, 3, "NoSuchKey"),
            (0, 503, 2, "SlowDown"),
            (3, 200, 4, ""),
        ]
    );
    assert_eq!(frames[2].3["key"], "c");
}

/// A receiver does not wait for ready frames while others are not ready.
#[tokio::test]
async fn what_is_gathered_goes_out_when_nothing_more_is_ready() {
    let sent = stream::iter(vec![(0, part(head(1), &[1], true))]).chain(stream::pending()).boxed();
    let mut frames = Frames::new(items(&["a", "b"]), &[], sent, vec![0, 1]);
    assert_eq!(read_frames(&frames.next().await.unwrap()).len(), 1);
}

async fn archive_of(
    keys: &[&str],
    refused: Vec<(usize, Refusal)>,
    sent: Vec<Part>,
) -> Result<Vec<u8>, StdError> {
    let pieces: Vec<Result<Bytes, StdError>> = archive(items(keys), refused, parts(sent)).collect().await;
    Ok(pieces.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
}

#[tokio::test]
async fn an_archive_is_read_by_others_with_any_key_and_says_what_failed() {
    let long = "ä".repeat(400);
    let keys = ["../up", "b", &long, "d", "e\tf"];
    let refused = vec![(1, Refusal::bad("InvalidArgument", "why"))];
    let sent = vec![
        (0, part(head(512), &[500], false)),
        (0, part(None, &[12], true)),
        (1, part(head(1_000), &[1_000], true)),
        (2, Err(ClientError::NoSuchKey("d".to_owned()))),
        (3, part(head(0), &[], true)),
    ];
    let bytes = archive_of(&keys, refused, sent).await.unwrap();
    assert!(bytes.len() % 512 == 0 && bytes.ends_with(&[0; 1024]));
    let mut archive = tar::Archive::new(&bytes[..]);
    let mut found = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        let records = entry.pax_extensions().unwrap().unwrap();
        let records: Vec<String> = records
            .map(|record| record.unwrap())
            .filter(|record| record.key().unwrap() != "path")
            .map(|record| format!("{}={}", record.key().unwrap(), record.value().unwrap()))
            .collect();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        found.push((name, records.join(" "), content.len()));
    }
    let of = |position: usize| format!("STRIATE.position={position} STRIATE.etag=\"e\"");
    let failed = |key: &str, status: u16, code: &str, message: &str| {
        format!("STRIATE.key={key} STRIATE.status={status} STRIATE.code={code} STRIATE.message={message}")
    };
    assert_eq!(
        found,
        [
            ("../up".to_owned(), of(0), 512),
            ("__errors__/1".to_owned(), failed("b", 400, "InvalidArgument", "why"), 0),
            (long.clone(), of(2), 1_000),
            ("__errors__/3".to_owned(), failed("d", 404, "NoSuchKey", "there is no object \"d\""), 0),
            ("e\tf".to_owned(), of(4), 0),
        ]
    );
}

#[tokio::test]
async fn an_archive_breaks_off_where_an_object_does() {
    for broken in [Err(ClientError::Busy), part(None, &[5], true)] {
        let sent = vec![(0, part(head(100), &[50], false)), (0, broken)];
        assert!(archive_of(&["a", "b"], Vec::new(), sent).await.is_err());
    }
    assert!(archive_of(&["a"], Vec::new(), Vec::new()).await.is_err());
}

/// Encodes a frame of a batch put: item, flags, head, body.
fn incoming(item: u32, flags: u8, head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = b"STR1".to_vec();
    bytes.extend(item.to_be_bytes());
    bytes.extend([0, 0, flags, 0]);
    bytes.extend((head.len() as u32).to_be_bytes());
    bytes.extend((body.len() as u32).to_be_bytes());
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, &[&bytes, head, body].concat()) as u32;
    bytes.extend(crc.to_be_bytes());
    [&bytes, head, body].concat()
}

fn opening(items: u32) -> Vec<u8> {
    incoming(items, 8, b"document", b"")
}

/// Returns two frames of item 0, an empty item 1, item 2.
fn three() -> Vec<u8> {
    [
        opening(3),
        incoming(0, 1, b"", b"abc"),
        incoming(0, 2, b"", b"de"),
        incoming(1, 3, b"", b""),
        incoming(2, 3, b"", b"xyz"),
        incoming(3, 4, b"", b""),
    ]
    .concat()
}

fn in_pieces(bytes: &[u8], len: usize) -> RequestBytes {
    let pieces: Vec<_> = bytes.chunks(len).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    stream::iter(pieces).boxed()
}

async fn whole(mut body: Box<ItemBody>) -> Result<Vec<u8>, ClientError> {
    let mut all = Vec::new();
    while let Some(piece) = body.next().await {
        all.extend_from_slice(&piece?);
    }
    Ok(all)
}

/// Returns what the opening frame says, the items' bodies where they are wanted, and how the request ended.
async fn taken(
    arriving: RequestBytes,
    wanted: &[bool],
) -> (Result<(usize, Bytes), RequestFault>, Vec<Option<Result<Vec<u8>, ClientError>>>, Result<(), RequestFault>)
{
    let mut reader = Reader::new(arriving);
    let opened = reader.open(|_| Ok(())).await;
    let turns = BodyTurns::new(reader, wanted.len());
    let bodies = wanted.iter().enumerate().map(|(item, is_wanted)| (turns.body(item), *is_wanted));
    // All are read at the same time, the last one first.
    let mut bodies: Vec<_> = bodies.map(|(body, is_wanted)| is_wanted.then(|| whole(body))).collect();
    bodies.reverse();
    let bodies = bodies.into_iter().map(|body| async { Some(body?.await) });
    let mut bodies = futures::future::join_all(bodies).await;
    bodies.reverse();
    (opened, bodies, turns.end().await)
}

#[tokio::test]
async fn bodies_arrive_one_after_the_other_whatever_the_pieces_and_unwanted_ones_are_read_over() {
    let expected: [&[u8]; 3] = [b"abcde", b"", b"xyz"];
    for len in [1, 3, 24, 1_000] {
        for mask in 0..8u8 {
            let wanted: Vec<bool> = (0..3).map(|item| mask & 1 << item != 0).collect();
            let (opened, bodies, ended) = taken(in_pieces(&three(), len), &wanted).await;
            assert_eq!((opened.unwrap(), ended), ((3, Bytes::from_static(b"document")), Ok(())));
            for (item, body) in bodies.into_iter().enumerate() {
                assert_eq!(body.map(Result::unwrap).as_deref(), wanted[item].then_some(expected[item]));
            }
        }
    }
}

/// No body ends before its frames were verified, and nothing after the damage reaches a body.
#[tokio::test]
async fn a_flipped_bit_or_a_cut_anywhere_ends_no_body_that_it_touches() {
    let good = three();
    let ends = [24 + 8 + 24 + 3 + 24 + 2, 24 + 8 + 24 + 3 + 24 + 2 + 24, good.len() - 24];
    for at in 24 + 8..good.len() {
        let mut flipped = good.clone();
        flipped[at] ^= 4;
        for bytes in [&flipped[..], &good[..at]] {
            let (_, bodies, ended) = taken(in_pieces(bytes, 7), &[true; 3]).await;
            assert!(ended.is_err(), "{at}");
            for (item, body) in bodies.into_iter().enumerate() {
                assert_eq!(body.unwrap().is_ok(), at >= ends[item], "{at} {item}");
            }
        }
    }
}

#[tokio::test]
async fn what_is_no_batch_put_is_refused_and_too_long_documents_are_not_read() {
    let code = |broken| match broken {
        RequestFault::Refused(refusal) => refusal.code,
        RequestFault::Transport(_) => "Transport",
    };
    for (bytes, expected) in [
        (b"{\"items\": [{\"key\": \"a\"}]}".to_vec(), "InvalidRequest"),
        (incoming(0, 3, b"", b"abc"), "InvalidRequest"),
        (incoming(1, 8, &vec![b' '; (4 << 20) + 1], b""), "MaxMessageLengthExceeded"),
        (Vec::new(), "InvalidRequest"),
    ] {
        let opened = Reader::new(in_pieces(&bytes, 1_000)).open(|_| Ok(())).await;
        assert_eq!(code(opened.unwrap_err()), expected);
    }
    let refused = Reader::new(in_pieces(&three(), 9)).open(|_| Err(Refusal::slow_down())).await;
    assert_eq!(code(refused.unwrap_err()), "SlowDown");
    for wrong in [
        [opening(1), incoming(0, 2, b"", b"abc")].concat(),
        [opening(1), incoming(1, 3, b"", b"abc")].concat(),
        [opening(1), incoming(0, 3, b"head", b"abc")].concat(),
        [opening(1), incoming(0, 3, b"", b"abc"), incoming(0, 3, b"", b"abc")].concat(),
        [opening(1), incoming(0, 3, b"", b"abc"), incoming(1, 4, b"", b""), b"more".to_vec()].concat(),
        [opening(1), incoming(0, 1, b"", b"abc"), incoming(1, 4, b"", b"")].concat(),
    ] {
        let (_, _, ended) = taken(in_pieces(&wrong, 50), &[true]).await;
        assert_eq!(ended.map_err(code), Err("InvalidRequest"));
    }
}

#[test]
fn failures_have_the_codes_of_s3() {
    let failure = Failure::from(&ClientError::InvalidRange { size: 3 });
    assert_eq!((failure.status, failure.code), (416, "InvalidRange"));
}
