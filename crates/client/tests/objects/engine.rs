//! A metadata engine that is slow, forgets transactions, and loses replies.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use striate_meta::{
    Commit, Lease, LeaseId, MemoryStore, MetaError, MetaStore, Row, ScanRange, Transaction, TxId, Watch,
};
use striate_runtime::Runtime;

/// Fault of a commit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    None,
    /// The transaction is committed, and the reply is lost.
    AnswerLost,
    /// The request is lost before it is committed.
    RequestLost,
    /// Nothing is written, and the caller is told so.
    Unavailable,
    /// The first commit hit succeeds and its reply is lost; from then on the engine is unavailable, as after a crash.
    LostThenUnavailable,
}

/// The engine in memory with faults.
#[derive(Debug)]
pub struct Unreliable {
    runtime: Runtime,
    inner: MemoryStore,
    fault: Fault,
    every: u64,
    forgetful: bool,
    slow: bool,
    commits: AtomicU64,
    ids: AtomicU64,
    /// Transaction to commit right after the next read of a row.
    overtaking: Mutex<Option<(Bytes, Transaction)>>,
}

impl Unreliable {
    fn new(runtime: Runtime) -> Self {
        Self {
            inner: MemoryStore::new(runtime.clone()),
            runtime,
            fault: Fault::None,
            every: 1,
            forgetful: false,
            slow: false,
            commits: AtomicU64::new(0),
            ids: AtomicU64::new(1),
            overtaking: Mutex::default(),
        }
    }

    /// Creates an engine that hits every n-th commit of an object's row with `fault`. A `forgetful` one does not
    /// remember committed transactions.
    pub fn with_faults(runtime: Runtime, fault: Fault, every: u64, forgetful: bool) -> Self {
        Self { fault, every, forgetful, ..Self::new(runtime) }
    }

    /// Creates an engine without faults; see [`Unreliable::overtake`].
    pub fn punctual(runtime: Runtime) -> Self {
        Self::new(runtime)
    }

    /// Commits `transaction` right after the next read of the row `key`: the reader then continues with an outdated
    /// row.
    pub fn overtake(&self, key: Bytes, transaction: Transaction) {
        *self.overtaking.lock() = Some((key, transaction));
    }

    /// Creates an engine whose requests and replies take random times, some of them long, so that operations
    /// interleave and overtake each other.
    pub fn slow(runtime: Runtime) -> Self {
        Self { slow: true, ..Self::new(runtime) }
    }

    async fn delay(&self) {
        if self.slow {
            let factor = if self.runtime.random_u64().is_multiple_of(8) { 20 } else { 1 };
            self.runtime.sleep(Duration::from_millis(self.runtime.random_u64() % 8 * factor)).await;
        }
    }

    async fn slowed<T>(&self, request: impl Future<Output = T>) -> T {
        self.delay().await;
        let answer = request.await;
        self.delay().await;
        answer
    }
}

#[async_trait]
impl MetaStore for Unreliable {
    async fn get(&self, key: &[u8]) -> Result<Option<Row>, MetaError> {
        let row = self.slowed(self.inner.get(key)).await?;
        let due = self.overtaking.lock().take_if(|(of, _)| *of == key);
        if let Some((_, transaction)) = due {
            self.inner.commit(transaction).await?;
        }
        Ok(row)
    }

    async fn get_many(&self, keys: &[Bytes]) -> Result<Vec<Option<Row>>, MetaError> {
        self.slowed(self.inner.get_many(keys)).await
    }

    async fn scan(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.slowed(self.inner.scan(range, limit)).await
    }

    async fn scan_back(&self, range: ScanRange, limit: usize) -> Result<Vec<Row>, MetaError> {
        self.inner.scan_back(range, limit).await
    }

    async fn commit(&self, mut transaction: Transaction) -> Result<Commit, MetaError> {
        let is_object = transaction.writes.iter().any(|write| match write {
            striate_meta::Write::Put(key, _) | striate_meta::Write::Delete(key) => key.starts_with(b"o/"),
        });
        if self.forgetful {
            transaction.id = TxId(u128::from(self.ids.fetch_add(1, Ordering::SeqCst)) << 64);
        }
        let number = if is_object { self.commits.fetch_add(1, Ordering::SeqCst) } else { 0 };
        let hit = is_object && number.is_multiple_of(self.every);
        let lost = || MetaError::UnknownOutcome("the answer was lost".to_owned());
        match self.fault {
            Fault::LostThenUnavailable if hit && number > 0 => {
                Err(MetaError::Unavailable("it crashed".to_owned()))
            }
            Fault::AnswerLost | Fault::LostThenUnavailable if hit => {
                self.inner.commit(transaction).await?;
                Err(lost())
            }
            Fault::RequestLost if hit => Err(lost()),
            Fault::Unavailable if hit => Err(MetaError::Unavailable("a pause".to_owned())),
            _ => self.slowed(self.inner.commit(transaction)).await,
        }
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Lease, MetaError> {
        self.inner.grant_lease(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.inner.keep_alive(lease).await
    }

    async fn is_alive(&self, lease: LeaseId) -> Result<bool, MetaError> {
        self.inner.is_alive(lease).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.inner.revoke_lease(lease).await
    }

    async fn watch(&self, prefix: &[u8]) -> Result<Watch, MetaError> {
        self.inner.watch(prefix).await
    }
}
