//! Moving metadata from one engine to another: `striate admin migrate`.
//!
//! The mark: while there is a row under [`keys::migration`], every engine commits only transactions that write this
//! row, and refuses all others with [`MetaError::Moved`]. So a running gateway is fenced at its next transaction, and a
//! new one when it registers; neither has to check for the mark.
//!
//! ```text
//!             source               target
//! 1           leaving (fenced)     arriving (fenced)
//! 2           leaving              rows made equal: those that differ are written, those that are too many removed
//! 3           leaving              every row compared
//! 4           left                 arriving
//! 5           left                 (no mark: in use)
//! ```
//!
//! Every step can be repeated. An interrupted migration is run again and finds what is already done. An abandoned
//! migration is undone by removing the mark from the source ([`cancel`]); the next migration makes the rows at the
//! target equal again, whatever was written to the source in between.
//!
//! What it does not do: leases are not rows, and stay behind. Their holders are gone when metadata is moved, and what
//! they left is collected, because their leases do not live in the target.

use bytes::Bytes;
use striate_runtime::Runtime;

use crate::keys;
use crate::records::{self, Migration, migration::State};
use crate::store::{Commit, MetaError, MetaStore, Row, ScanRange, Transaction, limits};

/// Rows per read.
const PAGE_ROWS: usize = 1_000;

/// Why a migration stopped.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    /// An engine failed.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The target holds metadata that did not come from this source.
    #[error("the target holds metadata already; give an empty one (another prefix or schema)")]
    NotEmpty,
    /// An end holds the mark of another migration.
    #[error("{0}")]
    Other(String),
    /// The copy differs from the original: another process writes.
    #[error(
        "after copying, {0} rows differ: something writes to the source or the target beside this migration; find it, \
         and run the migration again"
    )]
    Differs(u64),
}

/// The current step of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Making the target's rows equal to the source's.
    Copying,
    /// Comparing all rows.
    Comparing,
}

/// Progress of a migration within a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Current step.
    pub step: Step,
    /// Rows of the source read so far.
    pub rows: u64,
    /// Rows that differed so far.
    pub different: u64,
}

/// One end of a migration.
#[derive(Clone, Copy, Debug)]
pub struct MigrationEnd<'e> {
    /// Engine at this end.
    pub store: &'e dyn MetaStore,
    /// Name for display and for the other end's mark, without secrets.
    pub name: &'e str,
}

/// Describes a mark for display.
pub(crate) fn describe(mark: &Bytes) -> String {
    let Ok(mark) = records::decode::<Migration>(mark) else {
        return "it holds the mark of a migration by a newer striate".to_owned();
    };
    let other = &mark.other;
    match mark.state() {
        State::Leaving => format!(
            "it is being moved to {other}; let `striate admin migrate` finish, or end it with --cancel"
        ),
        State::Left => format!("it was moved to {other}; start with that"),
        State::Arriving => {
            format!("it is still arriving from {other}; let `striate admin migrate` finish")
        }
    }
}

/// Moves all metadata from `source` to `target`. Returns the number of rows.
///
/// # Errors
/// [`MigrationError`]; the source stays fenced until the migration is run again or cancelled.
pub async fn migrate(
    runtime: &Runtime,
    source: MigrationEnd<'_>,
    target: MigrationEnd<'_>,
    on_progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<u64, MigrationError> {
    let mut run = Run { runtime, source, target, on_progress };
    run.begin().await?;
    run.pass(Step::Copying).await?;
    let compared = run.pass(Step::Comparing).await?;
    if compared.different > 0 {
        return Err(MigrationError::Differs(compared.different));
    }
    run.end().await?;
    Ok(compared.rows)
}

/// Cancels a migration of `source` that has not completed, so that the source can be used again.
///
/// # Errors
/// If the source fails, or has no mark of a migration.
pub async fn cancel(runtime: &Runtime, source: &dyn MetaStore) -> Result<(), MigrationError> {
    let row = source.get(&keys::migration()).await?;
    let Some(row) = row else {
        return Err(MigrationError::Other("no migration of these metadata has begun".to_owned()));
    };
    let mut tx = Transaction::with_random_id(runtime);
    tx.require_unchanged(keys::migration(), Some(&row)).delete(keys::migration());
    committed(source.commit(tx).await?)
}

fn committed(commit: Commit) -> Result<(), MigrationError> {
    match commit {
        Commit::Done(_) => Ok(()),
        Commit::Conflict { .. } => {
            Err(MigrationError::Other("another migration of these metadata runs; wait for it".to_owned()))
        }
    }
}

/// A migration in progress.
struct Run<'r> {
    runtime: &'r Runtime,
    source: MigrationEnd<'r>,
    target: MigrationEnd<'r>,
    on_progress: &'r mut (dyn FnMut(Progress) + Send),
}

impl Run<'_> {
    /// Fences both ends, after checking that this is allowed.
    async fn begin(&self) -> Result<(), MigrationError> {
        let (leaving, arriving) = (self.mark_of(self.source).await?, self.mark_of(self.target).await?);
        let ours = |mark: &Migration| mark.state() != State::Arriving && mark.other == self.target.name;
        if let Some((row, mark)) = &leaving
            && (!ours(mark) || (mark.state() == State::Left && arriving.is_none()))
        {
            return Err(MigrationError::Other(format!("the source: {}", describe(&row.value))));
        }
        match &arriving {
            Some((_, mark)) if mark.state() == State::Arriving && mark.other == self.source.name => {}
            Some((row, _)) => {
                return Err(MigrationError::Other(format!("the target: {}", describe(&row.value))));
            }
            None if self.target.store.scan(ScanRange::prefix(b""), 1).await?.is_empty() => {}
            None => return Err(MigrationError::NotEmpty),
        }
        if arriving.is_none() {
            self.set_mark(self.target, None, State::Arriving, self.source.name).await?;
        }
        if leaving.is_none() {
            self.set_mark(self.source, None, State::Leaving, self.target.name).await?;
        }
        Ok(())
    }

    /// Takes the source out of use, then puts the target into use.
    async fn end(&self) -> Result<(), MigrationError> {
        let leaving = self.mark_of(self.source).await?.map(|(row, _)| row);
        self.set_mark(self.source, leaving.as_ref(), State::Left, self.target.name).await?;
        let arriving = self.mark_of(self.target).await?.map(|(row, _)| row);
        let mut tx = Transaction::with_random_id(self.runtime);
        tx.require_unchanged(keys::migration(), arriving.as_ref()).delete(keys::migration());
        committed(self.target.store.commit(tx).await?)
    }

    async fn mark_of(&self, end: MigrationEnd<'_>) -> Result<Option<(Row, Migration)>, MigrationError> {
        let Some(row) = end.store.get(&keys::migration()).await? else { return Ok(None) };
        let mark = row.record()?;
        Ok(Some((row, mark)))
    }

    async fn set_mark(
        &self,
        end: MigrationEnd<'_>,
        before: Option<&Row>,
        state: State,
        other: &str,
    ) -> Result<(), MigrationError> {
        let mark = Migration { state: state.into(), other: other.to_owned() };
        let mut tx = Transaction::with_random_id(self.runtime);
        tx.require_unchanged(keys::migration(), before).put(keys::migration(), records::encode(&mark));
        committed(end.store.commit(tx).await?)
    }

    /// Reads both ends in key order. `Copying` corrects the differences.
    async fn pass(&mut self, step: Step) -> Result<Progress, MigrationError> {
        let (mut from, mut to) = (Pages::new(self.source.store), Pages::new(self.target.store));
        let mut progress = Progress { step, rows: 0, different: 0 };
        let mut tx = self.batch().await?;
        loop {
            let (source_row, target_row) = (from.peek().await?.cloned(), to.peek().await?.cloned());
            let key = match (&source_row, &target_row) {
                (None, None) => break,
                (Some(source_row), None) => source_row.key.clone(),
                (None, Some(target_row)) => target_row.key.clone(),
                (Some(source_row), Some(target_row)) => source_row.key.clone().min(target_row.key.clone()),
            };
            let source_row = source_row.filter(|row| row.key == key);
            let target_row = target_row.filter(|row| row.key == key);
            if source_row.is_some() {
                from.next();
                progress.rows += 1;
            }
            if target_row.is_some() {
                to.next();
            }
            let value = |row: &Option<Row>| row.as_ref().map(|row| row.value.clone());
            if key != keys::migration() && value(&source_row) != value(&target_row) {
                progress.different += 1;
                if step == Step::Copying {
                    self.put_right(&mut tx, key, value(&source_row)).await?;
                }
            }
            if progress.rows.is_multiple_of(PAGE_ROWS as u64) {
                (self.on_progress)(progress);
            }
        }
        if tx.writes.len() > 1 {
            committed(self.target.store.commit(tx).await?)?;
        }
        // The mark is a row of either end, but is not copied.
        progress.rows = progress.rows.saturating_sub(1);
        (self.on_progress)(progress);
        Ok(progress)
    }

    /// Adds the write or removal of a row to a batch, and commits the batch when it is full.
    async fn put_right(
        &self,
        tx: &mut Transaction,
        key: Bytes,
        value: Option<Bytes>,
    ) -> Result<(), MigrationError> {
        let bytes = key.len() + value.as_ref().map_or(0, Bytes::len);
        let full = tx.preconditions.len() + tx.writes.len() == limits::MAX_OPERATIONS;
        if full || tx.size() + bytes > limits::MAX_TRANSACTION_BYTES {
            let batch = std::mem::replace(tx, Transaction::with_random_id(self.runtime));
            committed(self.target.store.commit(batch).await?)?;
            *tx = self.batch().await?;
        }
        match value {
            Some(value) => tx.put(key, value),
            None => tx.delete(key),
        };
        Ok(())
    }

    /// Creates an empty batch for the target. It rewrites the mark, without which the batch would be refused, and
    /// requires that the mark has not changed.
    async fn batch(&self) -> Result<Transaction, MigrationError> {
        let mut tx = Transaction::with_random_id(self.runtime);
        if let Some((row, _)) = self.mark_of(self.target).await? {
            tx.require_unchanged(keys::migration(), Some(&row)).put(keys::migration(), row.value.clone());
        }
        Ok(tx)
    }
}

/// The rows of a store in order, read page by page.
struct Pages<'s> {
    store: &'s dyn MetaStore,
    rows: std::iter::Peekable<std::vec::IntoIter<Row>>,
    /// Key at which the next page begins; `None` after the last page.
    next: Option<Bytes>,
}

impl<'s> Pages<'s> {
    fn new(store: &'s dyn MetaStore) -> Self {
        Self { store, rows: Vec::new().into_iter().peekable(), next: Some(Bytes::new()) }
    }

    async fn peek(&mut self) -> Result<Option<&Row>, MetaError> {
        if self.rows.peek().is_none()
            && let Some(start) = self.next.take()
        {
            let page = self.store.scan(ScanRange { start, end: Bytes::new() }, PAGE_ROWS).await?;
            if page.len() == PAGE_ROWS {
                // The next key is the last one followed by a zero byte.
                self.next = page.last().map(|last| [&last.key[..], &[0]].concat().into());
            }
            self.rows = page.into_iter().peekable();
        }
        Ok(self.rows.peek())
    }

    fn next(&mut self) {
        self.rows.next();
    }
}
