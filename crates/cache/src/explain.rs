//! Explains as text what a read would find in memory, or why it would find nothing.

use std::time::Duration;

use futures::future::join_all;
use striate_core::{SiteId, cached};
use striate_site::SiteError;
use striate_stripe::{CachedExplanation, OpenedStripe, Span, StoredBytes};

use crate::cache::Inner;
use crate::homes::HomeQuery;
use crate::known_blocks::Sites;
use crate::miss_reasons::MissReason;
use crate::volatile::recorded;

/// Maximum number of blocks to verify at memory sites, which read a whole split for each reply. Further blocks are
/// explained from what this gateway knows.
const MOST_ASKED: usize = 64;
/// Timeout for a memory site's reply.
const ASK_WITHIN: Duration = Duration::from_secs(2);

/// Splits and parities of a block found at memory sites.
struct CachedChunks {
    /// Number of splits and parities that exist.
    present: usize,
    /// Number of splits and parities that were asked for.
    total: usize,
    /// Whether all sites answered.
    is_certain: bool,
}

impl Inner {
    /// See [`BlockCache::explain`](striate_stripe::BlockCache::explain).
    pub(crate) async fn explain(&self, spans: &[Span]) -> Vec<CachedExplanation> {
        let explain = |(number, span): (usize, &Span)| {
            let (stored, is_asked) = (span.of.clone(), number < MOST_ASKED);
            async move { self.explain_one(&stored, is_asked).await }
        };
        join_all(spans.iter().enumerate().map(explain)).await
    }

    async fn explain_one(&self, stored: &StoredBytes, is_asked: bool) -> CachedExplanation {
        let Some(stripes) = self.stripes.upgrade() else { return absent("the service ends".to_owned()) };
        let live = self.live(&stripes);
        if let Some((block, placed)) = recorded(stored) {
            let form = format!("in memory only: {}", splits_and_parities(placed.splits, placed.sites.len()));
            let Ok(opened) = self.known_blocks.recorded(block, placed, self.runtime.now()) else {
                return absent(form);
            };
            return self.compared(form, &opened, is_asked).await;
        }
        let Some(question) = self.question(stored, &live) else {
            return absent("not in memory: no memory site answers".to_owned());
        };
        match self.known_blocks.form(question.name, &live) {
            Some(opened) => {
                let form = form_of(&question, &opened, &live);
                self.compared(form, &opened, is_asked).await
            }
            None => absent(self.explain_absent(&question, &live)),
        }
    }

    /// Explains a block that this process does not know to be in memory.
    fn explain_absent(&self, question: &HomeQuery, live: &Sites) -> String {
        let state = if self.ended(question.name).is_some() {
            "being written to memory".to_owned()
        } else if let Some(reason) = self.miss_reasons.of(question.name) {
            format!("not in memory: {}", reason.reason())
        } else {
            "not in memory, as far as this gateway knows, which has not read it recently".to_owned()
        };
        match live.sites.len() {
            1 => state,
            _ => format!("{state}; its home is memory site {}", question.home),
        }
    }

    /// Explains a block by `form`, or by what is missing of it according to the memory sites.
    async fn compared(&self, form: String, opened: &OpenedStripe, is_asked: bool) -> CachedExplanation {
        if !is_asked {
            return CachedExplanation { is_in_memory: true, text: form };
        }
        let found = self.look_for_splits(opened).await;
        let text = match found {
            CachedChunks { is_certain: false, .. } => format!("{form}; not all of their sites answer"),
            CachedChunks { present: 0, .. } => {
                format!("not in memory any more: {}", MissReason::Gone.reason())
            }
            CachedChunks { present, total, .. } if present < total => {
                format!("{form}; {present} of {total} are still there")
            }
            CachedChunks { .. } => form,
        };
        CachedExplanation { is_in_memory: found.present >= opened.code.k(), text }
    }

    /// Asks memory sites for the splits and parities of a block. This does not count as reading them.
    async fn look_for_splits(&self, opened: &OpenedStripe) -> CachedChunks {
        let ask = |(index, site): (usize, SiteId)| async move {
            let site = self.site(site)?;
            match self.runtime.timeout(ASK_WITHIN, site.verify(cached::chunk(opened.id, index))).await.ok()? {
                Ok(_) => Some(true),
                Err(SiteError::Missing(_) | SiteError::Corrupt { .. }) => Some(false),
                Err(_) => None,
            }
        };
        let sites = opened.record.locations.iter().map(|at| SiteId(at.site)).enumerate();
        let queries = sites.filter(|(_, site)| site.0 > 0).map(ask);
        let answers = join_all(queries).await;
        CachedChunks {
            present: answers.iter().filter(|answer| **answer == Some(true)).count(),
            total: answers.len(),
            is_certain: answers.iter().all(Option::is_some),
        }
    }
}

/// Explains a block that is not in memory, or too little of it.
fn absent(text: String) -> CachedExplanation {
    CachedExplanation { is_in_memory: false, text }
}

/// Describes a block that is in memory.
fn form_of(question: &HomeQuery, opened: &OpenedStripe, live: &Sites) -> String {
    if live.sites.len() == 1 {
        return "in memory, whole".to_owned();
    }
    let at = opened.record.locations.iter().map(|at| at.site).filter(|site| *site != 0);
    let sites: Vec<String> = at.map(|site| site.to_string()).collect();
    format!(
        "in memory: {}, on memory sites {}",
        splits_and_parities(question.splits(), sites.len()),
        sites.join(", ")
    )
}

/// Describes `chunks` chunks of a cached block, the first `splits` of which hold data.
fn splits_and_parities(splits: usize, chunks: usize) -> String {
    let parities = chunks.saturating_sub(splits);
    let data = if splits == 1 { "split" } else { "splits" };
    let coded = if parities == 1 { "parity" } else { "parities" };
    format!("{splits} data {data} and {parities} {coded}")
}
