//! The stripes of an object, wherever its row keeps its blocks: in itself, in segments, or in the rows of its parts.

use std::collections::VecDeque;

use bytes::Bytes;
use striate_core::StripeId;
use striate_meta::records::{Block, ManifestSegment, UploadPart, UploadedParts, object::Body, upload_part};
use striate_meta::{ScanRange, keys};
use striate_stripe::{StripeError, Stripes, id16, stripe_id};

use crate::rows::Rows;

/// Part rows read together.
const PAGE: usize = 256;

/// A stripe, and the number of the object's bytes in it.
type StripePart = (StripeId, u32);

/// A walk over the stripes that an object's body names, page by page: there may be millions. It skips rows that have
/// been deleted meanwhile.
pub(crate) struct ObjectStripes {
    pending: VecDeque<Source>,
}

/// Where the names of stripes are.
enum Source {
    /// Here.
    Known(Vec<StripePart>),
    /// In the rows of a segment.
    Segment(Rows),
    /// In rows of parts with these keys, or in segments that these rows name.
    Parts(VecDeque<Bytes>),
}

impl ObjectStripes {
    /// Begins a walk.
    ///
    /// # Errors
    /// When the row is damaged.
    pub(crate) fn of(body: &Body) -> Result<Self, StripeError> {
        let pending: VecDeque<Source> = match body {
            Body::Extent(extent) => [Source::Known(vec![(stripe_id(&extent.stripe)?, extent.len)])].into(),
            Body::Blocks(list) => [Source::Known(named(&list.blocks)?)].into(),
            Body::Manifest(manifest) => {
                manifest.segments.iter().map(of_segment).collect::<Result<_, StripeError>>()?
            }
            Body::Uploaded(parts) => [Source::Parts(part_keys(parts)?)].into(),
            Body::Inline(_) | Body::Memory(_) => VecDeque::new(),
        };
        Ok(Self { pending })
    }

    /// Returns the next stripes; `None` after the last.
    ///
    /// # Errors
    /// When the metadata store fails, or a row is damaged.
    pub(crate) async fn next(&mut self, stripes: &Stripes) -> Result<Option<Vec<StripePart>>, StripeError> {
        while let Some(source) = self.pending.pop_front() {
            match source {
                Source::Known(parts) => return Ok(Some(parts)),
                Source::Segment(mut rows) => {
                    let Some(page) = rows.next(stripes).await? else { continue };
                    self.pending.push_front(Source::Segment(rows));
                    let blocks: Vec<Block> = page.iter().map(|row| row.record()).collect::<Result<_, _>>()?;
                    return named(&blocks).map(Some);
                }
                Source::Parts(mut keys) => {
                    let rest = keys.split_off(keys.len().min(PAGE));
                    if !rest.is_empty() {
                        self.pending.push_front(Source::Parts(rest));
                    }
                    let found = of_parts(stripes, keys.make_contiguous()).await?;
                    found.into_iter().rev().for_each(|source| self.pending.push_front(source));
                }
            }
        }
        Ok(None)
    }
}

fn named(blocks: &[Block]) -> Result<Vec<StripePart>, StripeError> {
    blocks.iter().map(|block| Ok((stripe_id(&block.stripe)?, block.len))).collect()
}

fn of_segment(segment: &ManifestSegment) -> Result<Source, StripeError> {
    let id = id16(&segment.id, "a segment")?;
    let range = ScanRange { start: keys::block(&id, 0), end: keys::block(&id, segment.block_count) };
    Ok(Source::Segment(Rows::over(range)))
}

fn part_keys(parts: &UploadedParts) -> Result<VecDeque<Bytes>, StripeError> {
    let upload = id16(&parts.upload, "an upload")?;
    let numbers = parts.runs.iter().flat_map(|run| run.first_number..run.first_number + run.count);
    Ok(numbers.map(|number| keys::part(&upload, number)).collect())
}

/// Reads part rows.
async fn of_parts(stripes: &Stripes, keys: &[Bytes]) -> Result<Vec<Source>, StripeError> {
    let mut found = Vec::new();
    for row in stripes.meta().get_many(keys).await?.into_iter().flatten() {
        match row.record::<UploadPart>()?.body {
            Some(upload_part::Body::Blocks(list)) => found.push(Source::Known(named(&list.blocks)?)),
            Some(upload_part::Body::Segment(segment)) => found.push(of_segment(&segment)?),
            Some(upload_part::Body::Memory(_)) | None => {}
        }
    }
    Ok(found)
}
