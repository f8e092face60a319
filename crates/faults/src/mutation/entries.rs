//! A planted defect of stripe changes, between them and the metadata store: a change is closed although its entry is
//! gone.

use std::collections::BTreeMap;

use bytes::Bytes;
use parking_lot::Mutex;
use striate_meta::records::{self, Entry, Stripe, WideState};
use striate_meta::{MetaStore, Row, Transaction, Write, keys};

use super::wide::{record_now, rewrite, written};

/// Entries that a process has opened and not closed. Without R1 it believes that they still exist.
#[derive(Debug, Default)]
pub(super) struct OpenedEntries(Mutex<BTreeMap<Bytes, Vec<Entry>>>);

impl OpenedEntries {
    /// Returns a stripe's row as the process believes it to be.
    pub(super) fn believed(&self, row: Row) -> Row {
        let opened = self.0.lock();
        let (Some(opened), Ok(mut record)) = (opened.get(&row.key), row.record::<Stripe>()) else {
            return row;
        };
        let is_known =
            |entry: &Entry, known: &[Entry]| known.iter().any(|other| other.generation == entry.generation);
        let lacking: Vec<Entry> =
            opened.iter().filter(|entry| !is_known(entry, &record.entries)).cloned().collect();
        record.entries.extend(lacking);
        Row { value: records::encode(&record), ..row }
    }

    /// Removes from the transaction the entries that only the process believes in. Records the entries that it opens
    /// and closes.
    pub(super) async fn submit(&self, store: &dyn MetaStore, mut tx: Transaction) -> Transaction {
        for (key, mut record) in written(&tx) {
            let before = record_now(store, &key).await.map(|(_, before)| before.entries).unwrap_or_default();
            let mut all = self.0.lock();
            let opened = all.entry(key.clone()).or_default();
            let has = |entries: &[Entry], entry: &Entry| {
                entries.iter().any(|other| other.generation == entry.generation)
            };
            let entries = std::mem::take(&mut record.entries);
            let (known, new): (Vec<Entry>, Vec<Entry>) =
                entries.iter().cloned().partition(|entry| has(opened, entry) || has(&before, entry));
            opened.retain(|entry| has(&entries, entry));
            opened.extend(new.iter().cloned());
            record.entries = known.into_iter().filter(|entry| has(&before, entry)).chain(new).collect();
            drop(all);
            rewrite(&mut tx, &key, &record);
            let is_at_rest =
                !record.dead && matches!(record.wide_state(), WideState::Narrow | WideState::Complete);
            if let Some(id) = keys::stripe_of(&key).filter(|_| record.entries.is_empty() && is_at_rest) {
                let row = keys::change(id);
                tx.writes.retain(|write| !matches!(write, Write::Put(key, _) if *key == row));
                tx.delete(row);
            }
        }
        tx
    }
}
