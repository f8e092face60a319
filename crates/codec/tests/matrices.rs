//! The matrices of codes that stores hold data in: they must never change.

use striate_codec::{Code, crc32c};

/// The CRC-32C of a code's parity rows, one after the other.
fn checksum_of_parities(name: &str) -> u32 {
    let code: Code = name.parse().unwrap();
    let rows: Vec<u8> = (code.k()..code.n()).flat_map(|parity| code.row(parity)).collect();
    crc32c(&rows)
}

#[test]
fn the_parity_rows_of_codes_that_stores_hold_data_in_do_not_change() {
    let pinned = [
        ("none", 0),
        ("replica(3)", 0x10a8_6ca6),
        ("rs(2,1)", 0x10a8_6ca6),
        ("rs(4,2)", 0x6f2a_bb29),
        ("rs(6,3)", 0x4066_2dd9),
        ("rs(10,4)", 0x1df6_3b54),
        ("rs(128,8)", 0xbf4c_9af3),
        ("lrc(4,2,2)", 0x82f7_fdc3),
        ("lrc(6,2,2)", 0x3cb0_039b),
        ("lrc(6,3,3)", 0x053d_95b1),
        ("lrc(10,2,4)", 0xa21d_1b91),
        ("lrc(12,2,2)", 0xe5a8_679b),
        ("lrc(12,3,2)", 0x2bd1_a609),
        ("lrc(16,2,2)", 0x5caa_39d8),
        ("lrc(60,5,2)", 0x64be_b4c9),
        ("lrc(128,16,4)", 0x9d52_640a),
        ("lrc(240,8,3)", 0xa505_f849),
    ];
    let found = pinned.map(|(name, _)| (name, checksum_of_parities(name)));
    assert_eq!(found, pinned);
}
