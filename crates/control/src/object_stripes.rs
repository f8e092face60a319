//! The blocks of an object, wherever its row keeps them: in itself, in segments, or in the rows of its parts.

use bytes::Bytes;
use striate_core::StripeId;
use striate_meta::records::{Block, ManifestSegment, UploadPart, UploadedParts, object::Body, upload_part};
use striate_meta::{ScanRange, keys};
use striate_stripe::{StripeError, Stripes, id16, stripe_id};

use crate::rows::Rows;

/// Part rows read together.
const PAGE: usize = 256;

/// Calls `tell` for each stripe that an object's body names, with the number of the object's bytes in it. Skips rows
/// that have been deleted meanwhile.
///
/// # Errors
/// When the metadata store fails, or a row is damaged.
pub(crate) async fn stripes_of(
    stripes: &Stripes,
    body: &Body,
    tell: &mut (dyn FnMut(StripeId, u32) + Send),
) -> Result<(), StripeError> {
    match body {
        Body::Extent(extent) => tell(stripe_id(&extent.stripe)?, extent.len),
        Body::Blocks(list) => tell_blocks(&list.blocks, tell)?,
        Body::Manifest(manifest) => {
            for segment in &manifest.segments {
                of_segment(stripes, segment, tell).await?;
            }
        }
        Body::Uploaded(parts) => of_parts(stripes, parts, tell).await?,
        Body::Inline(_) | Body::Memory(_) => {}
    }
    Ok(())
}

fn tell_blocks(blocks: &[Block], tell: &mut (dyn FnMut(StripeId, u32) + Send)) -> Result<(), StripeError> {
    blocks.iter().try_for_each(|block| {
        tell(stripe_id(&block.stripe)?, block.len);
        Ok(())
    })
}

async fn of_segment(
    stripes: &Stripes,
    segment: &ManifestSegment,
    tell: &mut (dyn FnMut(StripeId, u32) + Send),
) -> Result<(), StripeError> {
    let id = id16(&segment.id, "a segment")?;
    let range = ScanRange { start: keys::block(&id, 0), end: keys::block(&id, segment.block_count) };
    let mut rows = Rows::over(range);
    while let Some(page) = rows.next(stripes).await? {
        let blocks: Vec<Block> = page.iter().map(|row| row.record()).collect::<Result<_, _>>()?;
        tell_blocks(&blocks, tell)?;
    }
    Ok(())
}

async fn of_parts(
    stripes: &Stripes,
    parts: &UploadedParts,
    tell: &mut (dyn FnMut(StripeId, u32) + Send),
) -> Result<(), StripeError> {
    let upload = id16(&parts.upload, "an upload")?;
    let numbers = parts.runs.iter().flat_map(|run| run.first_number..run.first_number + run.count);
    let keys: Vec<Bytes> = numbers.map(|number| keys::part(&upload, number)).collect();
    for page in keys.chunks(PAGE) {
        for row in stripes.meta().get_many(page).await?.into_iter().flatten() {
            match row.record::<UploadPart>()?.body {
                Some(upload_part::Body::Blocks(list)) => tell_blocks(&list.blocks, tell)?,
                Some(upload_part::Body::Segment(segment)) => of_segment(stripes, &segment, tell).await?,
                Some(upload_part::Body::Memory(_)) | None => {}
            }
        }
    }
    Ok(())
}
