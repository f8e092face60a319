//! Metadata operations per second of each engine, with 1, 16 and 64 clients.
//!
//! - *put*: the transaction of a small PUT: two preconditions (an absent row, a row of known version) and three puts
//!   of 200 to 300 bytes;
//! - *get* of one of 100,000 rows;
//! - *scan* of 1,000 of those rows;
//! - *shared put*: the same puts by 64 clients over the handles of 1, 3 and 8 processes, for the engines that
//!   processes share. It shows the cost of ordering commits across processes.
//!
//! The engines take turns within each round, so ratios mean more than absolute figures.

mod servers;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use striate_meta::{Commit, MetaStore, Precondition, Row, ScanRange, Transaction, TxId};
use striate_runtime::Runtime;

use servers::{Engines, Outcome};

/// Rows that gets and scans read.
const ROWS: u64 = 100_000;

/// Rows per scan.
const PAGE: usize = 1_000;

/// What to measure, and how long.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Rounds over all engines.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Where the engines keep their data; a new directory is made in it and removed at the end.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Measures and prints a table.
pub fn run(options: &Options) -> ExitCode {
    let tokio = tokio::runtime::Runtime::new();
    let measured =
        tokio.map_err(|error| error.to_string()).and_then(|tokio| tokio.block_on(measure(options)));
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("striate-bench: {reason}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(options: &Options) -> Outcome<()> {
    let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let root = parent.join(format!("striate-meta-bench-{}", std::process::id()));
    std::fs::create_dir_all(&root).map_err(|error| format!("{}: {error}", root.display()))?;
    let measured = measure_in(options, &root).await;
    std::fs::remove_dir_all(&root).map_err(|error| format!("{}: {error}", root.display()))?;
    measured
}

async fn measure_in(options: &Options, root: &std::path::Path) -> Outcome<()> {
    let runtime = Runtime::real();
    let engines = servers::start(&runtime, root).await?;
    for (_, store) in &engines.stores {
        fill(store).await?;
    }
    let patience = Duration::from_secs(options.seconds);
    println!("| operations/s (medians, range of rounds) | clients | {} |", names(&engines));
    println!("|--|--|{}", "--|".repeat(engines.stores.len()));
    for work in [Work::Put, Work::Get, Work::Scan] {
        for clients in [1, 16, 64] {
            let mut rates = vec![Vec::new(); engines.stores.len()];
            for _ in 0..options.rounds {
                for ((_, store), rates) in engines.stores.iter().zip(&mut rates) {
                    rates.push(rate(std::slice::from_ref(store), work, clients, patience).await?);
                }
            }
            let cells: Vec<_> = rates.into_iter().map(cell).collect();
            println!("| {} | {clients} | {} |", work.name(), cells.join(" | "));
        }
    }
    println!("\n| shared puts/s, 64 clients | 1 process | 3 processes | 8 processes |\n|--|--|--|--|");
    for (name, url) in &engines.shared {
        let mut cells = Vec::new();
        for processes in [1, 3, 8] {
            let mut stores = Vec::new();
            for _ in 0..processes {
                stores.push(striate_meta::open(&runtime, url).await.map_err(|error| error.to_string())?);
            }
            let mut rates = Vec::new();
            for _ in 0..options.rounds {
                rates.push(rate(&stores, Work::Put, 64, patience).await?);
            }
            cells.push(cell(rates));
        }
        println!("| {name} | {} |", cells.join(" | "));
    }
    Ok(())
}

fn names(engines: &Engines) -> String {
    let names: Vec<_> = engines.stores.iter().map(|(name, _)| *name).collect();
    names.join(" | ")
}

/// Formats the median and the range of some rates.
fn cell(mut rates: Vec<f64>) -> String {
    rates.sort_by(f64::total_cmp);
    let (first, last) = (rates[0], rates[rates.len() - 1]);
    format!("{:.0} ({first:.0}–{last:.0})", rates[rates.len() / 2])
}

/// Operation of the clients.
#[derive(Clone, Copy)]
enum Work {
    Put,
    Get,
    Scan,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::Put => "put: 2 preconditions, 3 puts",
            Self::Get => "get of one row",
            Self::Scan => "scan of 1,000 rows",
        }
    }

    async fn once(self, store: &Arc<dyn MetaStore>, client: &mut Client) -> Outcome<()> {
        match self {
            Self::Put => client.put(store).await,
            Self::Get => {
                let row = store.get(&key(client.draw() % ROWS)).await.map_err(|error| error.to_string())?;
                row.map(drop).ok_or_else(|| "a row is missing".to_owned())
            }
            Self::Scan => {
                let start = key(client.draw() % (ROWS - PAGE as u64)).into();
                let range = ScanRange { start, end: b"p".to_vec().into() };
                let rows = store.scan(range, PAGE).await.map_err(|error| error.to_string())?;
                (rows.len() == PAGE).then_some(()).ok_or_else(|| "a scan is short".to_owned())
            }
        }
    }
}

/// Returns the operations per second of `clients` clients, spread over `stores`.
async fn rate(stores: &[Arc<dyn MetaStore>], work: Work, clients: usize, patience: Duration) -> Outcome<f64> {
    let begun = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|number| {
            let store = stores[number % stores.len()].clone();
            tokio::spawn(async move {
                let (mut client, mut count) = (Client::new(&store).await?, 0_u64);
                while begun.elapsed() < patience {
                    work.once(&store, &mut client).await?;
                    count += 1;
                }
                Outcome::Ok(count)
            })
        })
        .collect();
    let mut total = 0;
    for task in tasks {
        total += task.await.map_err(|error| error.to_string())??;
    }
    Ok(total as f64 / begun.elapsed().as_secs_f64())
}

/// State of one client.
struct Client {
    number: u64,
    random: u64,
    sequence: u64,
    bucket: Option<Row>,
}

impl Client {
    async fn new(store: &Arc<dyn MetaStore>) -> Outcome<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let bucket = store.get(b"b/bucket").await.map_err(|error| error.to_string())?;
        Ok(Self { number, random: number, sequence: 0, bucket })
    }

    fn draw(&mut self) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random >> 33
    }

    /// Commits what a small PUT does: the bucket is unchanged, the object is new; object, stripe and reverse index
    /// are written.
    async fn put(&mut self, store: &Arc<dyn MetaStore>) -> Outcome<()> {
        self.sequence += 1;
        let mut tx = Transaction::new(TxId(u128::from(self.number) << 64 | u128::from(self.sequence)));
        let (client, number) = (self.number.to_be_bytes(), self.sequence.to_be_bytes());
        let named = |kind: &[u8]| [kind, &client, &number].concat();
        tx.require_unchanged(b"b/bucket".to_vec(), self.bucket.as_ref());
        tx.require(Precondition::Absent(named(b"n/bucket\0").into()));
        tx.put(named(b"n/bucket\0"), vec![7; 300])
            .put(named(b"s/"), vec![8; 250])
            .put(named(b"r/"), vec![9; 200]);
        match store.commit(tx).await {
            Ok(Commit::Done(_)) => Ok(()),
            Ok(conflict) => Err(format!("a put was refused: {conflict:?}")),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("o/bucket\0path/to/object-{number:010}").into_bytes()
}

async fn fill(store: &Arc<dyn MetaStore>) -> Outcome<()> {
    const EACH: u64 = 90;
    let mut tx = Transaction::new(TxId(1 << 120));
    tx.put(b"b/bucket".to_vec(), vec![1; 100]);
    store.commit(tx).await.map_err(|error| error.to_string())?;
    for first in (0..ROWS).step_by(EACH as usize) {
        let mut tx = Transaction::new(TxId(1 << 120 | u128::from(first + 1)));
        for number in first..(first + EACH).min(ROWS) {
            tx.put(key(number), vec![9; 200]);
        }
        store.commit(tx).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}
