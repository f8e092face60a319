//! Repacking: reclaims the space of dead objects from partitions in which others still live.
//!
//! *Rows decide what lives.* A mark says that something in a stripe may be dead. The repacker follows it: it reads
//! the directories, then the rows that they name. An entry lives while the row under its key names exactly this
//! extent. Once the group's reservation is seen to be gone, nothing in it can come to life, so that “dead when read”
//! stays true (R1 to R4 of the protocol in design.md §10.15).

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde::Serialize;
use striate_core::StripeId;
use striate_meta::records::{Extent, Stripe};
use striate_meta::{Commit, Precondition, Row, keys};
use striate_stripe::partition::{FOOTER_LEN, PartitionEntry, PartitionFooter};
use striate_stripe::{Packer, Span, StoredBytes, StripeError, Stripes, release_stripe};

use crate::packing::refilling::{QuietPeriods, WornGroupAction};
use crate::packing::rewriting::RewriteQueue;
use crate::packing::{Candidate, PackOptions, extent_in};
use crate::rows::{Rows, find_record};

/// Object rows of a stripe read together.
const PAGE: usize = 500;

/// Outcome for a marked stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepackOutcome {
    /// Its group is being written, its record changed, or something in it still lives: the next pass looks again.
    Later,
    /// It is dense enough: the mark was removed.
    Kept,
    /// Nothing lived: it is garbage, or will be once it has left its wide stripes.
    Released,
    /// A directory cannot be read: the stripe stays until that is repaired.
    Unreadable,
}

/// Living and dead objects of packed stripes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Liveness {
    /// Living objects.
    pub live_objects: u64,
    /// Bytes of the living objects.
    pub live_bytes: u64,
    /// Dead objects.
    pub dead_objects: u64,
    /// Bytes of the dead objects.
    pub dead_bytes: u64,
}

impl Liveness {
    /// Returns the share of the objects' bytes that is dead.
    pub fn dead_share(&self) -> f64 {
        self.dead_bytes as f64 / (self.dead_bytes + self.live_bytes).max(1) as f64
    }
}

/// Progress callback, called after each marked stripe with all outcomes so far; `Break` ends the pass.
pub(crate) type RepackCallback<'a> =
    &'a mut (dyn FnMut(&[(StripeId, RepackOutcome)]) -> ControlFlow<()> + Send);

/// Result of looking at a marked stripe (R1).
pub(crate) struct Inspection {
    pub(crate) mark: Row,
    pub(crate) row: Row,
    pub(crate) record: Stripe,
    /// Living objects in the order of the directories, and dead entries, each with its partition.
    pub(crate) live: Vec<Candidate>,
    pub(crate) dead: Vec<(u32, PartitionEntry)>,
    pub(crate) found: Liveness,
}

/// Follows marks repeatedly. It remembers since when nothing has died in a group, and so which groups may be refilled
/// in place.
#[derive(Debug, Default)]
pub struct Repacker {
    quiet: QuietPeriods,
}

impl Repacker {
    /// Like [`repack_marked`], but living objects of other groups refill worn sealed groups in which nothing has died
    /// for the grace.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn repack(
        &mut self,
        stripes: &Stripes,
        packer: &Packer,
        options: &PackOptions,
    ) -> Result<Vec<(StripeId, RepackOutcome)>, StripeError> {
        self.repack_while(stripes, packer, options, &mut |_| ControlFlow::Continue(())).await
    }

    /// Like [`Repacker::repack`]; calls `tell` like [`follow_marks`].
    ///
    /// # Errors
    /// When the metadata store fails, or living objects cannot be rewritten.
    pub(crate) async fn repack_while(
        &mut self,
        stripes: &Stripes,
        packer: &Packer,
        options: &PackOptions,
        tell: RepackCallback<'_>,
    ) -> Result<Vec<(StripeId, RepackOutcome)>, StripeError> {
        let mut is_whole = true;
        let mut tell = |done: &_| {
            let flow = tell(done);
            is_whole &= flow.is_continue();
            flow
        };
        let done = follow_marks(stripes, packer, options, Some(&mut self.quiet), &mut tell).await?;
        if is_whole {
            let marked: BTreeSet<StripeId> = done.iter().map(|&(id, _)| id).collect();
            self.quiet.retain(|id| marked.contains(&id));
        }
        Ok(done)
    }
}

/// Looks at all marked stripes and reclaims the space of dead objects. Returns the outcome for each stripe.
///
/// # Errors
/// When the metadata store fails.
pub async fn repack_marked(
    stripes: &Stripes,
    packer: &Packer,
    options: &PackOptions,
) -> Result<Vec<(StripeId, RepackOutcome)>, StripeError> {
    follow_marks(stripes, packer, options, None, &mut |_| ControlFlow::Continue(())).await
}

/// Like [`repack_marked`]; calls `tell` after each stripe with all outcomes so far. `Break` ends the pass. With `quiet`,
/// also refills groups.
///
/// # Errors
/// When the metadata store fails, or living objects cannot be rewritten.
pub(crate) async fn follow_marks(
    stripes: &Stripes,
    packer: &Packer,
    options: &PackOptions,
    mut quiet: Option<&mut QuietPeriods>,
    tell: RepackCallback<'_>,
) -> Result<Vec<(StripeId, RepackOutcome)>, StripeError> {
    let (mut done, mut rewriting) = (Vec::new(), RewriteQueue::new(stripes, packer, options));
    let mut rows = Rows::with_prefix(keys::MARKS);
    while let Some(page) = rows.next(stripes).await? {
        for id in page.iter().filter_map(|row| keys::stripe_of(&row.key)) {
            let rewritten = match inspect_marked(stripes, id, options).await? {
                InspectOutcome::Done(outcome) => {
                    done.push((id, outcome));
                    Vec::new()
                }
                InspectOutcome::Worn(inspection) => {
                    let judge = |quiet: &mut &mut QuietPeriods| quiet.judge(stripes, id, &inspection);
                    match quiet.as_mut().map_or(WornGroupAction::Rewritten, judge) {
                        WornGroupAction::Refilled => rewriting.add_refillable(id, inspection).await?,
                        WornGroupAction::Rewritten => {
                            rewriting.add(id, &inspection.record.profile, inspection.live).await?
                        }
                        WornGroupAction::Waits => {
                            done.push((id, RepackOutcome::Later));
                            Vec::new()
                        }
                    }
                }
            };
            inspect_again(stripes, rewritten, options, &mut done).await?;
            if tell(&done).is_break() {
                return Ok(done);
            }
        }
    }
    let rewritten = rewriting.finish().await?;
    inspect_again(stripes, rewritten, options, &mut done).await?;
    let _ended = tell(&done);
    Ok(done)
}

/// Looks again at groups whose living objects were written elsewhere.
async fn inspect_again(
    stripes: &Stripes,
    rewritten: Vec<StripeId>,
    options: &PackOptions,
    done: &mut Vec<(StripeId, RepackOutcome)>,
) -> Result<(), StripeError> {
    for id in rewritten {
        done.push(match inspect_marked(stripes, id, options).await? {
            InspectOutcome::Done(outcome) => (id, outcome),
            // Some objects were overtaken, or did not fit.
            InspectOutcome::Worn(_) => (id, RepackOutcome::Later),
        });
    }
    Ok(())
}

/// Outcome of looking at a marked stripe.
enum InspectOutcome {
    Done(RepackOutcome),
    /// The living objects must be rewritten.
    Worn(Box<Inspection>),
}

/// Looks at one marked stripe, and does what takes one transaction.
fn inspect_marked<'a>(
    stripes: &'a Stripes,
    id: StripeId,
    options: &'a PackOptions,
) -> BoxFuture<'a, Result<InspectOutcome, StripeError>> {
    Box::pin(async move {
        let inspection = match inspect(stripes, id).await {
            Ok(Some(inspection)) => inspection,
            Ok(None) => return Ok(InspectOutcome::Done(RepackOutcome::Later)),
            Err(error @ (StripeError::Unreadable { .. } | StripeError::Inconsistent { .. })) => {
                tracing::warn!(stripe = %id, %error, "what lives in a packed stripe cannot be seen");
                return Ok(InspectOutcome::Done(RepackOutcome::Unreadable));
            }
            Err(error) => return Err(error),
        };
        if inspection.live.is_empty() {
            return release(stripes, id, inspection).await.map(InspectOutcome::Done);
        }
        if inspection.found.dead_share() > options.dead_share {
            return Ok(InspectOutcome::Worn(Box::new(inspection)));
        }
        let mut tx = stripes.transaction();
        // Entries written into it since may be dead.
        tx.require_unchanged(inspection.row.key.clone(), Some(&inspection.row));
        tx.require_unchanged(inspection.mark.key.clone(), Some(&inspection.mark)).delete(inspection.mark.key);
        Ok(InspectOutcome::Done(match stripes.meta().commit(tx).await? {
            Commit::Done(_) => RepackOutcome::Kept,
            Commit::Conflict { .. } => RepackOutcome::Later,
        }))
    })
}

/// Returns how much of a packed stripe lives; `None` if the stripe is gone.
///
/// # Errors
/// When the metadata store fails, or a directory cannot be read.
pub async fn liveness(stripes: &Stripes, id: StripeId) -> Result<Option<Liveness>, StripeError> {
    let Some(record) = find_record(stripes, &keys::stripe(id)).await? else { return Ok(None) };
    Ok(Some(find_live(stripes, id, &record).await?.found))
}

/// R1: reads the mark, the reservation and the record from one state; then the directories, then their rows. `None`
/// while the reservation exists, or if the mark or the record is gone.
async fn inspect(stripes: &Stripes, id: StripeId) -> Result<Option<Inspection>, StripeError> {
    let row_keys = [keys::mark(id), keys::intent(id.writer(), id.sequence()), keys::stripe(id)];
    let mut rows = stripes.meta().get_many(&row_keys).await?.into_iter();
    let (mark, intent, row) = (rows.next().flatten(), rows.next().flatten(), rows.next().flatten());
    let (Some(mark), None, Some(row)) = (mark, intent, row) else { return Ok(None) };
    let record: Stripe = row.record()?;
    let StripeObjects { live, dead, found } = find_live(stripes, id, &record).await?;
    Ok(Some(Inspection { mark, row, record, live, dead, found }))
}

/// Living and dead objects of a stripe, in the order of its directories.
#[derive(Default)]
struct StripeObjects {
    live: Vec<Candidate>,
    dead: Vec<(u32, PartitionEntry)>,
    found: Liveness,
}

async fn find_live(stripes: &Stripes, id: StripeId, record: &Stripe) -> Result<StripeObjects, StripeError> {
    let k = stripes.code_of(record)?.k();
    let StripeObjects { mut live, mut dead, mut found } = StripeObjects::default();
    for index in 0..k as u32 {
        for page in directory(stripes, id, index, record).await?.chunks(PAGE) {
            let keys: Vec<Bytes> = page.iter().map(|entry| entry.key.clone()).collect();
            let mut rows = HashMap::with_capacity(keys.len());
            for row in stripes.meta().get_many(&keys).await?.into_iter().flatten() {
                rows.insert(row.key.clone(), row);
            }
            for entry in page {
                let extent = rows.get(&entry.key).map(|row| extent_in(row, id)).transpose()?.flatten();
                let extent = extent.filter(|(named, _)| (named.index, named.offset) == (index, entry.offset));
                let Some((extent, class)) = extent else {
                    found.dead_objects += 1;
                    found.dead_bytes += u64::from(entry.len);
                    dead.push((index, entry.clone()));
                    continue;
                };
                found.live_objects += 1;
                found.live_bytes += u64::from(entry.len);
                live.push(Candidate { key: entry.key.clone(), stored: extent.into(), class });
            }
        }
    }
    Ok(StripeObjects { live, dead, found })
}

/// Reads the directory of one partition, with the record's content version or a later one: a cached location may lead
/// to an older file.
async fn directory(
    stripes: &Stripes,
    id: StripeId,
    index: u32,
    record: &Stripe,
) -> Result<Vec<PartitionEntry>, StripeError> {
    let (len, content_version) = (record.chunk_len, record.locations[index as usize].content_version);
    let damaged = |error: striate_stripe::partition::PartitionError| StripeError::Inconsistent {
        what: format!("chunk {index} of stripe {id}"),
        reason: error.to_string(),
    };
    let stripe = id.to_bytes().to_vec().into();
    let payload: StoredBytes = Extent { stripe, index, len, content_version, ..Extent::default() }.into();
    let read = async |from: u32, to: u32| -> Result<Vec<u8>, StripeError> {
        if from == to {
            return Ok(Vec::new());
        }
        let pieces = stripes.read_span(Span { of: payload.clone(), range: from..to }).await?;
        Ok(pieces.concat())
    };
    let footer = read(len.saturating_sub(FOOTER_LEN), len).await?;
    let footer = PartitionFooter::parse(&footer, len).map_err(damaged)?;
    let directory = read(footer.dir_offset, footer.dir_offset + footer.dir_len).await?;
    footer.entries(&directory).map_err(damaged)
}

/// R4: releases a stripe in which nothing lives. Its record must be as it was read, and nothing may have died since:
/// a row may have moved meanwhile.
async fn release(
    stripes: &Stripes,
    id: StripeId,
    inspection: Inspection,
) -> Result<RepackOutcome, StripeError> {
    let mut tx = stripes.transaction();
    tx.require_unchanged(inspection.row.key.clone(), Some(&inspection.row));
    tx.require_unchanged(inspection.mark.key.clone(), Some(&inspection.mark));
    tx.require(Precondition::Absent(keys::intent(id.writer(), id.sequence())));
    release_stripe(&mut tx, id, &inspection.record);
    tx.delete(inspection.mark.key);
    Ok(match stripes.meta().commit(tx).await? {
        Commit::Done(_) => RepackOutcome::Released,
        Commit::Conflict { .. } => RepackOutcome::Later,
    })
}
