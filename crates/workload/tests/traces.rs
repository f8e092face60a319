//! Traces replay as written, and errors name the offending line.

use std::io::Write;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use striate_workload::trace::{self, Preload, Replay, ReplayOptions, TraceError};
use striate_workload::{Due, Objects, Operation, Workload};

/// The first requests of the conversation trace of kvcache-ai/Mooncake (see the file).
const EXCERPT: &[u8] = include_bytes!("data/llm-kvcache-excerpt.csv");

fn parse(text: &str) -> Result<Replay, TraceError> {
    trace::read(text.as_bytes(), ReplayOptions::default())
}

/// All operations with the milliseconds at which they are due; objects are given by key.
fn replayed(mut replay: Replay) -> Vec<(u128, String)> {
    let mut rng = SmallRng::seed_from_u64(1);
    let mut all = Vec::new();
    while let Due::After(due) = replay.due() {
        let operation = replay.next(&mut rng);
        let text = match &operation {
            Operation::Read(objects) => {
                format!(
                    "read {}",
                    objects.iter().map(|object| replay.key(object)).collect::<Vec<_>>().join(" ")
                )
            }
            Operation::Insert(object) => format!("insert {} {}", replay.key(*object), replay.size(*object)),
            Operation::Update(object) => format!("update {} {}", replay.key(*object), replay.size(*object)),
            Operation::Delete(object) => format!("delete {}", replay.key(*object)),
            Operation::ReadModifyWrite(_) => panic!("no trace says this"),
        };
        all.push((due.as_millis(), text));
    }
    assert_eq!(replay.due(), Due::Never);
    all
}

fn expect(replay: Replay, expected: &[(u128, &str)]) {
    let found = replayed(replay);
    assert!(found.iter().map(|(due, text)| (*due, text.as_str())).eq(expected.iter().copied()), "{found:#?}");
}

#[test]
fn rows_become_operations_and_groups_one_read() {
    let text = "# a remark\ntime_s,op,key,size,group\n\
                100.0,GET,a,10,1\n100.0,get,b,20,1\n100.1,PUT,c,5,1\n100.1,GET,a,,1\n\
                101.5,GET,a,10,\n101.5,GET,c,,\n102,PUT,c,7,2\n102,DELETE,b,,2\n102,PUT,b,1,2\n";
    let replay = parse(text).unwrap();
    // a and b are read before they are written, so they must exist; c is written by the trace.
    assert_eq!((replay.objects(), replay.len(), replay.length()), (2, 7, Duration::from_secs(2)));
    assert_eq!([replay.key(0), replay.key(1), replay.key(2)], ["a", "b", "c"]);
    assert_eq!([replay.size(0), replay.size(1), replay.size(2)], [10, 20, 5]);
    assert!(replay.may_have_size(2, 5) && replay.may_have_size(2, 7) && !replay.may_have_size(2, 6));
    assert!(replay.may_have_size(0, 10) && !replay.may_have_size(0, 20));
    assert_eq!((replay.object("c"), replay.object("d")), (Some(2), None));
    let expected = [
        (0, "read a b"),
        (0, "insert c 5"),
        (1_500, "read a"),
        (1_500, "read c"),
        (2_000, "update c 7"),
        (2_000, "delete b"),
        (2_000, "insert b 1"),
    ];
    expect(replay, &expected);
}

#[test]
fn everything_can_be_loaded_before_and_time_runs_as_fast_as_asked() {
    let text = "op,key,size,time_s,more\nPUT,new,3,0,x\nGET,old,4,0.5,x\nGET,new,3,1,x\n";
    let options = ReplayOptions { time_scale: 10.0, preload: Preload::All };
    let replay = trace::read(text.as_bytes(), options).unwrap();
    assert_eq!(replay.objects(), 2);
    expect(replay, &[(0, "update new 3"), (50, "read old"), (100, "read new")]);
    let replay = parse(text).unwrap();
    assert_eq!((replay.objects(), replay.key(0)), (1, "old".to_owned()));
    expect(replay, &[(0, "insert new 3"), (500, "read old"), (1_000, "read new")]);
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let head = "time_s,op,key,size,group\n0,PUT,a,5,\n";
    let cases = [
        ("1,GET,b,,\n", 3, "size of \"b\" is missing"),
        ("1,PUT,a,,\n", 3, "size that \"a\" gets"),
        ("1,GET,a,6,\n", 3, "has 5 by then"),
        ("1,GET,a,5,\n0.5,GET,a,5,\n", 4, "sort by time_s"),
        ("soon,GET,a,5,\n", 3, "not a time"),
        ("NaN,GET,a,5,\n", 3, "not a time"),
        ("1,POST,a,5,\n", 3, "GET, PUT or DELETE"),
        ("1,GET,,5,\n", 3, "no key"),
        ("1,GET,a,-5,\n", 3, "not a size"),
        ("1,GET,a,5\n", 3, "4 columns"),
        ("1e300,GET,a,5,\n", 3, "too many"),
        ("1,GET,a,5,g\n1,GET,a,5,h\n# between\n1,GET,a,5,g\n", 6, "follow one another"),
    ];
    for (rows, expected_line, expected) in cases {
        match parse(&format!("{head}{rows}")) {
            Err(TraceError::Line { line, reason }) => {
                assert!(line == expected_line && reason.contains(expected), "{rows}: line {line}: {reason}");
            }
            other => panic!("{rows}: {other:?}"),
        }
    }
    assert!(parse("time,op,key,size\n").unwrap_err().to_string().contains("no column \"time_s\""));
    assert!(parse("time_s,op,key,size\n").unwrap_err().to_string().contains("no rows"));
    assert!(parse("").unwrap_err().to_string().contains("no column"));
}

#[test]
fn an_excerpt_of_a_real_trace_replays() {
    let mut replay = trace::read(EXCERPT, ReplayOptions::default()).unwrap();
    assert_eq!(replay.objects(), 0, "it writes all that it reads");
    let mut rng = SmallRng::seed_from_u64(1);
    let (mut reads, mut written) = (0, Vec::new());
    while replay.due() != Due::Never {
        match replay.next(&mut rng) {
            Operation::Insert(object) => written.push(object),
            Operation::Read(Objects::List(list)) => {
                assert!(list.iter().all(|object| written.contains(object)));
                reads += list.len();
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((written.len(), reads), (684, 24));
}

/// A row of the model: milliseconds since the previous row, operation, key, optional group.
type ModelRow = (u32, u8, u8, Option<u8>);

fn model_text(rows: &[ModelRow]) -> String {
    let mut text = "time_s,op,key,size,group\n".to_owned();
    let (mut at_ms, mut groups, mut last) = (0u64, 0, None);
    for (wait_ms, op, key, group) in rows {
        at_ms += u64::from(*wait_ms);
        // A row of the same group continues it. A different group gets a new number, as a group must not recur.
        groups += usize::from(last != Some(*group));
        last = Some(*group);
        let group = group.map_or(String::new(), |_| groups.to_string());
        let op = ["GET", "PUT", "DELETE"][usize::from(*op)];
        text += &format!(
            "{}.{:03},{op},k{key},{},{group}\n",
            at_ms / 1_000,
            at_ms % 1_000,
            100 + u32::from(*key)
        );
    }
    text
}

proptest! {
    /// No operation is lost, duplicated or moved in time, compressed or not.
    #[test]
    fn a_replay_does_what_the_rows_say(
        rows in prop::collection::vec((0u32..2_000, 0u8..3, 0u8..6, prop::option::of(0u8..2)), 1..60)
    ) {
        let text = model_text(&rows);
        let found = replayed(parse(&text).unwrap());
        let mut zipped = GzEncoder::new(Vec::new(), Compression::fast());
        zipped.write_all(text.as_bytes()).unwrap();
        let zipped = zipped.finish().unwrap();
        prop_assert_eq!(&found, &replayed(trace::read(&zipped[..], ReplayOptions::default()).unwrap()));

        // The reads of a group happen together at its first read; everything else stays in order.
        let mut expected: Vec<(u128, String)> = Vec::new();
        let (mut at, mut group_due, mut last, mut read_at) = (0u128, 0, None, None::<usize>);
        let mut there = std::collections::HashSet::new();
        rows.iter().filter(|row| row.1 != 1).for_each(|row| {
            let first = rows.iter().find(|other| other.2 == row.2).unwrap();
            if first.1 != 1 { there.insert(row.2); }
        });
        for (wait_ms, op, key, group) in &rows {
            at += u128::from(*wait_ms);
            if group.is_none() || last != Some(*group) {
                (group_due, read_at) = (at, None);
            }
            last = Some(*group);
            match op {
                0 => match read_at {
                    Some(index) => {
                        let name = format!(" k{key}");
                        let text: &mut String = &mut expected[index].1;
                        if !text.split_inclusive(' ').any(|part| format!(" {}", part.trim()) == name) {
                            *text += &name;
                        }
                    }
                    None => {
                        read_at = Some(expected.len());
                        expected.push((group_due, format!("read k{key}")));
                    }
                },
                1 => {
                    let kind = if there.insert(*key) { "insert" } else { "update" };
                    expected.push((group_due, format!("{kind} k{key} {}", 100 + u32::from(*key))));
                }
                _ => {
                    there.remove(key);
                    expected.push((group_due, format!("delete k{key}")));
                }
            }
        }
        let first_due = u128::from(rows[0].0);
        expected.iter_mut().for_each(|(due, _)| *due -= first_due);
        prop_assert_eq!(found, expected);
    }

    /// After a cell is replaced by junk, the trace either still replays or is refused with a line of the file.
    #[test]
    fn damage_is_found_where_it_is(
        rows in prop::collection::vec((0u32..2_000, 0u8..3, 0u8..6, prop::option::of(0u8..2)), 1..20),
        at in any::<prop::sample::Index>(), cell in 0usize..5, junk in "\\PC{0,8}",
    ) {
        let text = model_text(&rows);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let line = 1 + at.index(rows.len());
        let mut cells: Vec<String> = lines[line].split(',').map(str::to_owned).collect();
        cells[cell] = junk;
        lines[line] = cells.join(",");
        if let Err(error) = parse(&lines.join("\n")) {
            match error {
                TraceError::Line { line, .. } => prop_assert!((1..=lines.len() as u64).contains(&line)),
                // The only row may have become a comment.
                TraceError::File(reason) => prop_assert!(rows.len() == 1 && reason.contains("no rows"), "{}", reason),
            }
        }
    }
}
