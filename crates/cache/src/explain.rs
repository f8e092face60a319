//! What a read would find in memory, in words.

use striate_stripe::Stored;

use crate::cache::Inner;
use crate::volatile::recorded;

impl Inner {
    /// See [`BlockCache::explain`](striate_stripe::BlockCache::explain).
    pub(crate) fn explain(&self, of: &Stored) -> String {
        if let Some((_, placed)) = recorded(of) {
            return format!("in memory only: {}", splits_and_parities(placed.splits, placed.sites.len()));
        }
        let Some(stripes) = self.stripes.upgrade() else { return "the service ends".to_owned() };
        let live = self.live(&stripes);
        let Some(question) = self.question(of, &live) else { return "no memory site answers".to_owned() };
        let Some(form) = self.known.form(question.name, &live) else {
            let is_on_its_way = self.ended(question.name).is_some();
            let state = if is_on_its_way {
                "being written to memory"
            } else {
                "not in memory, as far as this gateway knows"
            };
            return match live.sites.len() {
                1 => state.to_owned(),
                _ => format!("{state}; its home is memory site {}", question.home),
            };
        };
        if live.sites.len() == 1 {
            return "in memory, whole".to_owned();
        }
        let sites: Vec<String> =
            form.record.locations.iter().filter(|at| at.site != 0).map(|at| at.site.to_string()).collect();
        format!(
            "in memory: {}, on memory sites {}",
            splits_and_parities(question.splits(), sites.len()),
            sites.join(", ")
        )
    }
}

/// What `chunks` of a cached block are, the first `splits` of which are its data.
fn splits_and_parities(splits: usize, chunks: usize) -> String {
    let parities = chunks.saturating_sub(splits);
    let data = if splits == 1 { "split" } else { "splits" };
    let coded = if parities == 1 { "parity" } else { "parities" };
    format!("{splits} data {data} and {parities} {coded}")
}
