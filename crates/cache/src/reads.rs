//! Before and after a read: which blocks of a query are in memory, and the work that is due for a block that was read.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use striate_codec::ChunkSet;
use striate_core::StripeId;
use striate_site::TendEvent;
use striate_stripe::{CachedForms, MemoryBlock, ServedFrom, Span, StoredBytes, StripeError};

use crate::cache::Inner;
use crate::homes::{HomeAnswer, HomeQuery};
use crate::known_blocks::{FollowUp, Sites};
use crate::miss_reasons::MissReason;
use crate::view::ReadOutcome;
use crate::volatile::recorded;

impl Inner {
    /// See [`BlockCache::find`](striate_stripe::BlockCache::find).
    pub(crate) async fn find(self: &Arc<Self>, spans: &[Span]) -> CachedForms {
        let Some(stripes) = self.stripes.upgrade() else { return CachedForms::default() };
        let live = self.live(&stripes);
        if !live.any_answers() {
            return CachedForms::default();
        }
        let mut forms = vec![None; spans.len()];
        let mut unknown: HashMap<StripeId, (HomeQuery, Vec<usize>)> = HashMap::new();
        for (position, span) in spans.iter().enumerate() {
            if let Some((block, placed)) = recorded(&span.of) {
                forms[position] = self.known_blocks.recorded(block, placed, self.runtime.now()).ok();
                continue;
            }
            let Some(question) = self.question(&span.of, &live) else { continue };
            match self.known_blocks.form(question.name, &live) {
                Some(form) => forms[position] = Some(form),
                None => unknown.entry(question.name).or_insert((question, Vec::new())).1.push(position),
            }
        }
        let mut unknown: Vec<(HomeQuery, Vec<usize>)> = unknown.into_values().collect();
        unknown.sort_unstable_by_key(|(_, positions)| positions[0]);
        let questions: Vec<HomeQuery> = unknown.iter().map(|(question, _)| *question).collect();
        let answers = self.ask(&questions, &live).await;
        for (answer, (_, positions)) in answers.iter().zip(unknown) {
            positions.into_iter().for_each(|position| forms[position] = answer.form());
        }
        let is_granted = |answer: &HomeAnswer| matches!(answer, HomeAnswer::Granted(_));
        let granted: Vec<HomeAnswer> = answers.into_iter().filter(is_granted).collect();
        let expected = (!granted.is_empty()).then(|| Box::new(granted) as Box<dyn Send>);
        CachedForms { forms, expected }
    }

    /// Counts a span that was read, and does the work that is due for its block in the background.
    pub(crate) fn after_read(self: &Arc<Self>, span: &Span, bytes: &[Bytes], from: ServedFrom) {
        let len: u64 = bytes.iter().map(|piece| piece.len() as u64).sum();
        if recorded(&span.of).is_some() {
            return self.counts.count(ReadOutcome::Hit, len, len);
        }
        let Some(stripes) = self.stripes.upgrade() else { return };
        let live = self.live(&stripes);
        let Some(question) = self.question(&span.of, &live) else {
            return self.counts.count(ReadOutcome::Bypass, len, 0);
        };
        let whole = || span.is_whole().then(|| bytes.to_vec());
        match from {
            ServedFrom::Cache { missing } => {
                self.counts.count(ReadOutcome::Hit, len, len);
                self.after_hit(question, span, bytes, missing, live);
            }
            ServedFrom::Both { cached } => {
                let outcome = if cached > 0 { ReadOutcome::Partial } else { ReadOutcome::Miss };
                self.counts.count(outcome, len, cached);
                // Of the readers that find it missing at the same time, one asks.
                if self.known_blocks.forget(question.name) {
                    self.miss_reasons.note(question.name, MissReason::Gone);
                    // A home knows whether a whole block is in memory by now. Of a split block, it knows its own split
                    // only.
                    let is_whole = question.splits() == 1;
                    let matter = if is_whole { TendEvent::Look } else { TendEvent::Lost };
                    let (stored, whole) = (span.of.clone(), whole());
                    self.spawn(|inner| async move {
                        inner.fill_if_granted(question, stored, whole, matter, &live).await;
                    });
                }
            }
            ServedFrom::Store => {
                self.counts.count(ReadOutcome::Miss, len, 0);
                if let Some(parities) = self.begin_fill(question.name) {
                    let (stored, whole) = (span.of.clone(), whole());
                    self.spawn(
                        |inner| async move { inner.fill(question, stored, whole, parities, &live).await },
                    );
                }
            }
        }
    }

    /// Counts a span that could not be read. An evicted object that was in memory only is a miss. A block of another S3
    /// store has yet to be requested there.
    pub(crate) fn after_failure(&self, span: &Span, error: &StripeError) {
        let len = u64::from(span.range.end - span.range.start);
        match (&span.of, error) {
            (StoredBytes::Memory(MemoryBlock { placed: None, .. }), _) => {}
            (StoredBytes::Memory(_), StripeError::NotInMemory) => {
                self.counts.count(ReadOutcome::Miss, len, 0)
            }
            _ => self.counts.count(ReadOutcome::Error, len, 0),
        }
    }

    /// Writes the missing splits of a block that was read from memory, and follows its popularity.
    fn after_hit(
        self: &Arc<Self>,
        question: HomeQuery,
        span: &Span,
        bytes: &[Bytes],
        missing: ChunkSet,
        live: Arc<Sites>,
    ) {
        let whole = || span.is_whole().then(|| bytes.to_vec());
        if !missing.is_empty() {
            let (stored, whole, live) = (span.of.clone(), whole(), live.clone());
            self.spawn(|inner| async move {
                inner.refill(question, stored, whole, missing, &live).await;
            });
        }
        let due = self.known_blocks.note_read(question.name, self.runtime.now());
        if due != FollowUp::default() {
            let (stored, whole) = (span.of.clone(), whole());
            self.spawn(|inner| async move { inner.follow(question, stored, due, whole, &live).await });
        }
    }
}
