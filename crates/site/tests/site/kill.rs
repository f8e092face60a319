//! The store on the real file system, in a process that is killed repeatedly.
//!
//! The child writes and deletes, and prints what was acknowledged on its standard output. The parent kills it after
//! some number of lines, opens the store and compares.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use striate_core::{ChunkId, ChunkRange, FencingEpoch, Formats, FormatsInForce};
use striate_runtime::Runtime;
use striate_site::conformance::{chunk_id, payload};
use striate_site::{ChunkStore, DiskStore, DiskStoreOptions, RealFileSystem, SiteError};

const DIRECTORY: &str = "STRIATE_TEST_KILL_DIRECTORY";
const ROUND: &str = "STRIATE_TEST_KILL_ROUND";
const ROUNDS: u64 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fact {
    Stored,
    Deleted,
    Either,
}

/// Opens the store. From the fifth round on, chunk format 2 is in force.
fn open(directory: &Path, round: u64) -> DiskStore {
    let options = DiskStoreOptions {
        segment_len: Some(200_000),
        reserve_bytes: Some(0),
        formats: FormatsInForce::new(if round < 5 { Formats::OLDEST } else { Formats::NEWEST }),
        paged_from: 5000,
        ..DiskStoreOptions::default()
    };
    DiskStore::open(&Runtime::real(), Arc::new(RealFileSystem), directory, options).expect("opens")
}

fn name(number: u64) -> ChunkId {
    chunk_id(number, (number % 7) as u8, 1)
}

fn len(number: u64) -> usize {
    1 + (number as usize * 7919) % 9000
}

/// Prints a line at once, so that the parent has it even if this process ends here.
fn say(what: char, number: u64) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what} {number}").and_then(|()| out.flush()).expect("the parent listens");
}

/// The child process; does nothing in a normal test run.
#[tokio::test(flavor = "multi_thread")]
async fn child_process() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let round: u64 = std::env::var(ROUND).expect("set").parse().expect("a number");
    let store = Arc::new(open(&directory, round));
    let compacting = store.clone();
    let runtime = Runtime::real();
    runtime.spawn_thread("compact", move || {
        loop {
            compacting.compact_step();
            std::thread::yield_now();
        }
    });
    let writers = (0..8).map(|writer| {
        let store = store.clone();
        runtime.spawn(async move {
            for i in 0.. {
                let number = round << 32 | writer << 24 | i;
                store.write(name(number), payload(number, len(number)), None).await.expect("written");
                say('w', number);
                if i % 3 == 2 {
                    say('t', number - 1);
                    store.delete(&[name(number - 1)], FencingEpoch(round)).await.expect("deleted");
                    say('d', number - 1);
                }
            }
        })
    });
    futures::future::join_all(writers).await;
}

fn run_child(directory: &Path, round: u64, facts: &mut BTreeMap<u64, Fact>) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "kill::child_process", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut left = 50 + round * 97 % 900;
    for line in lines {
        let line = line.expect("a line");
        let Some((what, number)) = line.split_once(' ') else { continue };
        let Ok(number) = number.parse() else { continue };
        let fact = match what {
            "w" => Fact::Stored,
            "t" => Fact::Either,
            "d" => Fact::Deleted,
            _ => continue,
        };
        facts.insert(number, fact);
        left = left.saturating_sub(1);
        if left == 0 {
            child.kill().expect("killed");
        }
    }
    child.wait().expect("ended");
}

async fn check(store: &DiskStore, facts: &BTreeMap<u64, Fact>) {
    for (number, fact) in facts {
        let bytes = payload(*number, len(*number));
        let result =
            store.read(ChunkRange { chunk: name(*number), offset: 0, len: bytes.len() as u32 }).await;
        match (fact, result) {
            (Fact::Stored | Fact::Either, Ok(read)) => assert_eq!(read, bytes, "chunk {number}"),
            (Fact::Deleted | Fact::Either, Err(SiteError::Missing(_))) => {}
            (fact, result) => panic!("chunk {number} is {fact:?}, and reading it gives {result:?}"),
        }
    }
    for info in store.list(None, usize::MAX).await.expect("a list").chunks {
        assert_eq!(store.verify(info.chunk).await, Ok(info), "everything listed is whole");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_killed_again_and_again_keeps_what_it_acknowledged() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut facts = BTreeMap::new();
    for round in 1..=ROUNDS {
        run_child(directory.path(), round, &mut facts);
        let store = open(directory.path(), round);
        check(&store, &facts).await;
        if round % 4 == 0 {
            store.close().await.expect("closed");
        }
    }
    assert!(facts.len() > 500, "the children did something");
}
