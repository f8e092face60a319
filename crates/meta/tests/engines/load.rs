//! Load for an engine while its servers fail, and comparisons.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
pub use striate_meta::conformance::fresh_id;
use striate_meta::conformance::model::Model;
use striate_meta::{
    Commit, MetaError, MetaStore, Precondition, Revision, Row, Transaction, WATCH_BUFFER_EVENTS,
};
use striate_runtime::{JoinHandle, Runtime};
use tokio::sync::watch;

/// Tasks that increment one row, each increment once, whatever errors they see.
pub struct Counting {
    counted: watch::Receiver<u64>,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Counting {
    pub fn start(store: &Arc<dyn MetaStore>, tasks: usize) -> Self {
        let (sender, counted) = watch::channel(0);
        let (sender, total, stop) =
            (Arc::new(sender), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let task = |_| {
            let (store, sender, total, stop) = (store.clone(), sender.clone(), total.clone(), stop.clone());
            Runtime::real().spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    increment(&store).await;
                    sender.send_replace(total.fetch_add(1, Ordering::Relaxed) + 1);
                }
            })
        };
        let tasks = (0..tasks).map(task).collect();
        Self { counted, stop, tasks }
    }

    /// Waits for this many more increments.
    pub async fn wait_for_more(&self, increments: u64) {
        let mut counted = self.counted.clone();
        let goal = *counted.borrow() + increments;
        counted.wait_for(|counted| *counted >= goal).await.expect("the tasks go on");
    }

    /// Ends the tasks and compares their count with the stored value.
    pub async fn end(self, store: &Arc<dyn MetaStore>) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("a task does not panic");
        }
        let total = *self.counted.borrow();
        let row = store.get(b"counter").await.expect("a get is answered").expect("there is a counter");
        assert_eq!(number(&row), total, "every acknowledged increment counts once");
        total
    }
}

fn number(row: &Row) -> u64 {
    String::from_utf8_lossy(&row.value).parse().expect("the counter is a number")
}

/// Adds one. After an unknown outcome, submits the same transaction again.
async fn increment(store: &Arc<dyn MetaStore>) {
    loop {
        let row = match store.get(b"counter").await {
            Ok(row) => row,
            Err(MetaError::Unavailable(_)) => continue,
            Err(error) => panic!("a get fails: {error}"),
        };
        let mut tx = Transaction::new(fresh_id());
        tx.require(match &row {
            Some(row) => Precondition::Version(row.key.clone(), row.version),
            None => Precondition::Absent("counter".into()),
        });
        tx.put("counter", (row.as_ref().map_or(0, number) + 1).to_string());
        loop {
            match store.commit(tx.clone()).await {
                Ok(Commit::Done(_)) => return,
                Ok(Commit::Conflict { failed }) => {
                    assert_eq!(failed, 0);
                    break;
                }
                Err(MetaError::Unavailable(_) | MetaError::UnknownOutcome(_)) => {}
                Err(error) => panic!("an increment fails: {error}"),
            }
        }
    }
}

/// Runs several sequences of operations on fresh stores and on the model.
pub async fn compare_with_the_model(open: impl AsyncFn() -> Arc<dyn MetaStore>) {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    for _ in 0..8 {
        let operations = crate::strategy::operations(60).new_tree(&mut runner).expect("a sequence").current();
        let (store, mut model) = (open().await, Model::default());
        for operation in &operations {
            model.step(&store, operation).await;
        }
        model.compare(&store).await;
    }
}

/// Does not read a watch until its buffer would have overflowed twice, then reads every event.
pub async fn rest_and_watch_everything(store: &Arc<dyn MetaStore>) {
    let mut watch = store.watch(b"").await.expect("a watch begins");
    let numbers: Vec<u32> = (0..2 * WATCH_BUFFER_EVENTS as u32 + 10).collect();
    for some in numbers.chunks(50) {
        let mut tx = Transaction::new(fresh_id());
        for number in some {
            tx.put(number.to_be_bytes().to_vec(), "");
        }
        done(store.commit(tx).await);
    }
    // The engine must find the buffer full: it needs time to deliver the events, not only to commit them.
    Runtime::real().sleep(Duration::from_millis(500)).await;
    for number in numbers {
        let event = watch.recv().await.expect("the server keeps the events");
        assert_eq!(event.key[..], number.to_be_bytes());
    }
}

/// Returns a transaction that sets one row.
pub fn put(key: &'static str, value: &'static str) -> Transaction {
    let mut tx = Transaction::new(fresh_id());
    tx.put(key, value);
    tx
}

/// Returns the revision of a transaction that must have committed.
pub fn done(commit: Result<Commit, MetaError>) -> Revision {
    match commit {
        Ok(Commit::Done(revision)) => revision,
        other => panic!("not committed: {other:?}"),
    }
}

/// Reads a row's value as text.
pub async fn value(store: &Arc<dyn MetaStore>, key: &str) -> Option<String> {
    let row = store.get(key.as_bytes()).await.expect("a get is answered");
    row.map(|row| String::from_utf8_lossy(&row.value).into_owned())
}
