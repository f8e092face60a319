//! Reads columns of a data chunk that its own stripe cannot provide, as a sum of other chunks of its wide stripe.
//!
//! All terms come from one version of one row, the wide stripe's, whose copy of the chunk's location must match the
//! chunk's own stripe: two versions are never mixed. The sum is added up in the racks (by the trees of a repair), so
//! that one slice per rack crosses, and this process receives only the sum. If a chunk turns out to be missing, both
//! rows are read again and another tree leaves it out.

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use futures::stream::{FuturesUnordered, StreamExt};
use striate_codec::accumulate;
use striate_core::{ChunkId, ChunkRange, RackId, SiteId, StripeId};
use striate_plan::CombineTree;
use striate_site::{Priority, SiteError};

use super::reads::Reads;
use crate::error::StripeError;
use crate::table::OpenedStripe;
use crate::trees::{SLICE_LEN, combination, costs_in_wide, equation_in_wide, files_of, terms};

/// Maximum number of trees tried. Each failure reveals at least one more unavailable chunk, or a newer record.
const ATTEMPTS: usize = 6;
/// Part of the grace after which a read gives up: until the grace ends, no other object's bytes can be where it reads.
const PART_OF_GRACE: u32 = 2;
/// Maximum number of chunks read at the same time to add them up in this process.
const READS_AT_ONCE: usize = 8;

/// Chunks and sites that failed trees have shown to be unavailable.
#[derive(Default)]
struct UnavailableChunks {
    missing: BTreeSet<ChunkId>,
    /// Sites that failed to answer.
    silent: BTreeSet<SiteId>,
    last_error: Option<String>,
}

impl Reads {
    /// Reads columns of a data chunk from the wide stripe that it is a member of.
    ///
    /// # Errors
    /// [`StripeError::Unreadable`] when too few of the other chunks are available in time; also when the metadata
    /// store fails.
    pub(super) async fn read_around(
        &self,
        stripe: StripeId,
        index: usize,
        columns: Range<u32>,
    ) -> Result<Bytes, StripeError> {
        let mut unavailable = UnavailableChunks::default();
        let deadline = self.shared.options.garbage_grace / PART_OF_GRACE;
        let attempts = self.try_trees(stripe, index, &columns, &mut unavailable);
        if let Some(sum) = self.shared.runtime.timeout(deadline, attempts).await.unwrap_or(Ok(None))? {
            return Ok(sum);
        }
        let reason = unavailable.last_error.unwrap_or_else(|| "their records kept changing".to_owned());
        Err(StripeError::Unreadable {
            stripe,
            needed: 1,
            available: 0,
            reason: format!("chunk {index} cannot be computed from its wide stripe: {reason}"),
        })
    }

    /// Returns `None` if no tree provides the columns.
    async fn try_trees(
        &self,
        stripe: StripeId,
        index: usize,
        columns: &Range<u32>,
        unavailable: &mut UnavailableChunks,
    ) -> Result<Option<Bytes>, StripeError> {
        for attempt in 0..ATTEMPTS {
            let found = self.shared.table.wide_stripe_of(stripe, index).await?;
            let (wide, position) = found.ok_or_else(|| StripeError::Unreadable {
                stripe,
                needed: 1,
                available: 0,
                reason: format!("chunk {index} is lost, and in no sealed wide stripe"),
            })?;
            let equation = self.equation(&wide, position, unavailable)?;
            let summed = match attempt {
                // The error of a tree does not always name the culprit. Read by itself, each chunk answers for itself.
                1 => self.sum_locally(&wide, &equation, columns, unavailable).await,
                _ => self.sum_by_tree(&wide, position, &equation, columns, unavailable).await,
            };
            if summed.is_some() {
                return Ok(summed);
            }
        }
        Ok(None)
    }

    /// Expresses the chunk at a position as a sum of available chunks: (coefficient, position).
    fn equation(
        &self,
        wide: &OpenedStripe,
        position: usize,
        unavailable: &UnavailableChunks,
    ) -> Result<Vec<(u8, usize)>, StripeError> {
        let sites = self.shared.sites.snapshot();
        let cost = |at: usize| {
            let site = SiteId(wide.record.locations[at].site);
            let is_available = sites.is_readable(site)
                && !unavailable.silent.contains(&site)
                && !unavailable.missing.contains(&wide.file(at));
            is_available.then_some(1.0)
        };
        let costs = costs_in_wide(wide, position, cost);
        let rack = |site: SiteId| sites.rack(site).unwrap_or_else(|| RackId::of_unknown(site));
        let home_rack = rack(SiteId(wide.record.locations[position].site));
        equation_in_wide(wide, position, &costs, &home_rack, rack).map_err(|error| StripeError::Unreadable {
            stripe: wide.id,
            needed: wide.code.k(),
            available: costs.iter().flatten().count(),
            reason: format!("{error}; {}", unavailable.last_error.clone().unwrap_or_default()),
        })
    }

    /// Lets a site near the lost chunk add up the sum. Returns `None` on failure, with the reason in `unavailable`.
    async fn sum_by_tree(
        &self,
        wide: &OpenedStripe,
        position: usize,
        equation: &[(u8, usize)],
        columns: &Range<u32>,
        unavailable: &mut UnavailableChunks,
    ) -> Option<Bytes> {
        if equation.is_empty() {
            return Some(BytesMut::zeroed(columns.len()).freeze());
        }
        let sites = self.shared.sites.snapshot();
        let cost =
            |at: usize| sites.cost(SiteId(wide.record.locations[at].site)).map_or(1.0, |cost| cost.asking);
        let terms = terms(&wide.record, equation, cost, |site| sites.rack(site));
        let home_rack = sites.rack(SiteId(wide.record.locations[position].site));
        let root = terms.iter().min_by(|a, b| {
            let is_away = |term: &striate_plan::CombineTerm| Some(&term.rack) != home_rack.as_ref();
            (is_away(a), a.cost).partial_cmp(&(is_away(b), b.cost)).unwrap_or(std::cmp::Ordering::Equal)
        })?;
        let len = columns.end - columns.start;
        let tree = CombineTree::quickest(&terms, root.site, &root.rack, len, SLICE_LEN);
        let request = combination(&tree, &files_of(wide.id, &wide.record), columns, Priority::Foreground);
        let site = self.shared.sites.get(root.site)?;
        let reading = async {
            let (mut slices, mut sum) = (site.combine(request), BytesMut::with_capacity(columns.len()));
            while let Some(slice) = slices.next().await {
                sum.extend_from_slice(&slice?);
            }
            Ok::<_, SiteError>(sum.freeze())
        };
        let read = self.shared.runtime.timeout(self.shared.options.read_deadline, reading).await;
        match read.unwrap_or(Err(SiteError::Deadline)) {
            Ok(sum) if sum.len() == columns.len() => return Some(sum),
            Ok(sum) => unavailable.last_error = Some(format!("a sum of {} bytes", sum.len())),
            Err(error) => unavailable.note(&error, None),
        }
        None
    }

    /// Adds up the sum in this process, chunk by chunk. Returns `None` on failure, with the reasons in `unavailable`.
    async fn sum_locally(
        &self,
        wide: &OpenedStripe,
        equation: &[(u8, usize)],
        columns: &Range<u32>,
        unavailable: &mut UnavailableChunks,
    ) -> Option<Bytes> {
        let (mut sum, mut is_whole) = (BytesMut::zeroed(columns.len()), true);
        for terms in equation.chunks(READS_AT_ONCE) {
            let read = |&(coefficient, at): &(u8, usize)| async move {
                (coefficient, at, self.read_member(wide, at, columns).await)
            };
            let mut reads: FuturesUnordered<_> = terms.iter().map(read).collect();
            while let Some((coefficient, at, read)) = reads.next().await {
                match read {
                    Ok(bytes) => accumulate(coefficient, &bytes, &mut sum[..bytes.len()]),
                    Err(error) => {
                        unavailable.note(&error, Some(SiteId(wide.record.locations[at].site)));
                        is_whole = false;
                    }
                }
            }
        }
        is_whole.then(|| sum.freeze())
    }

    /// Reads columns of a member, up to its end: past it a member counts as zeros.
    async fn read_member(
        &self,
        wide: &OpenedStripe,
        at: usize,
        columns: &Range<u32>,
    ) -> Result<Bytes, SiteError> {
        let columns = columns.start..columns.end.min(wide.len_of(at));
        if columns.is_empty() {
            return Ok(Bytes::new());
        }
        let range =
            ChunkRange { chunk: wide.file(at), offset: columns.start, len: columns.end - columns.start };
        let (site, deadline) = (SiteId(wide.record.locations[at].site), self.shared.options.read_deadline);
        self.shared.sites.read_range(site, range, Priority::Foreground, deadline).await
    }
}

impl UnavailableChunks {
    /// Records an error: of the chunk that it names, or of `site` if it alone was asked.
    fn note(&mut self, error: &SiteError, site: Option<SiteId>) {
        self.last_error = Some(error.to_string());
        match (error, site) {
            (SiteError::Missing(chunk) | SiteError::Corrupt { chunk, .. }, _) => {
                self.missing.insert(*chunk);
            }
            (_, Some(site)) => {
                self.silent.insert(site);
            }
            (_, None) => {}
        }
    }
}
