//! The walk over a bucket's rows that finds cold stripes, in steps that each find enough for some wide stripes: however
//! large a bucket is, few partitions are in memory at a time.
//!
//! A stripe of a large object holds that object alone, so a single row says whether it is cold. A packed stripe is
//! shared by many objects with rows anywhere in the bucket, so whether it is cold is known only after all rows. Until
//! then the walk keeps a few figures for each packed stripe, about 80 bytes: 10 TiB in partitions of 32 MiB under rs(6,3)
//! are 55,000 packed stripes and 4 MB, in partitions of 1 MiB 1.7 million and 140 MB. Of the stripes of a large object it
//! keeps a page.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;

use striate_core::StripeId;
use striate_meta::records::{Object, object::Body};
use striate_meta::{Row, keys};
use striate_stripe::{StripeError, Stripes, stripe_id};

use super::SealOptions;
use super::cold::ColdData;
use super::target::{ColdTarget, LiveData, Target};
use crate::object_stripes::ObjectStripes;
use crate::rows::Rows;

/// Records of stripes read together.
const PAGE: usize = 300;

/// A cold stripe.
#[derive(Clone, Copy)]
pub(super) struct ColdStripe {
    pub(super) id: StripeId,
    pub(super) living_bytes: u64,
    pub(super) target: ColdTarget,
}

/// Progress of a walk over a bucket's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalkProgress {
    /// Enough was found, and more may follow.
    Further,
    /// Nothing is left.
    ToTheEnd,
    /// The callback ended the walk.
    Stopped,
}

/// Progress callback with what was found so far; `Break` ends the walk.
type SurveyCallback<'a> = &'a mut (dyn FnMut(&ColdData) -> ControlFlow<()> + Send);

/// A walk over a bucket's rows, and stripes whose records it has not read yet.
pub(super) struct Survey<'a> {
    stripes: &'a Stripes,
    options: &'a SealOptions,
    now_ms: u64,
    rows: Rows,
    /// Remaining rows of the current page.
    page: VecDeque<Row>,
    /// Remaining stripes of a cold object that is not packed, and how they are sealed.
    large: Option<(ObjectStripes, ColdTarget)>,
    /// Living data of packed stripes in the rows read so far; after all rows, of those that are still to be examined.
    packed: BTreeMap<StripeId, LiveData<'a>>,
    /// Cold stripes whose records have not been read yet.
    found: VecDeque<ColdStripe>,
    /// Whether all rows have been read, and all packed stripes examined.
    ended: bool,
}

impl<'a> Survey<'a> {
    pub(super) fn new(stripes: &'a Stripes, bucket: &str, options: &'a SealOptions) -> Self {
        Self {
            stripes,
            options,
            now_ms: stripes.runtime().wall_time().as_millis() as u64,
            rows: Rows::with_prefix(&keys::objects(bucket)),
            page: VecDeque::new(),
            large: None,
            packed: BTreeMap::new(),
            found: VecDeque::new(),
            ended: false,
        }
    }

    /// Adds cold stripes to `cold` until it has `enough` more partitions. Calls `tell` after each page of rows and of
    /// stripes.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(super) async fn advance(
        &mut self,
        cold: &mut ColdData,
        enough: usize,
        tell: SurveyCallback<'_>,
    ) -> Result<WalkProgress, StripeError> {
        let mut added = 0;
        while added < enough {
            while self.found.len() < PAGE && !self.ended {
                if self.page.is_empty() && tell(cold).is_break() {
                    return Ok(WalkProgress::Stopped);
                }
                self.step().await?;
            }
            if self.found.is_empty() {
                return Ok(WalkProgress::ToTheEnd);
            }
            if tell(cold).is_break() {
                return Ok(WalkProgress::Stopped);
            }
            let most = PAGE.min(enough - added).min(self.found.len());
            let page: Vec<ColdStripe> = self.found.drain(..most).collect();
            added += cold.consider(self.stripes, &page, self.options, self.now_ms).await?;
        }
        Ok(WalkProgress::Further)
    }

    /// Finds some more stripes of a large object, or processes one more row, or some packed stripes after the last.
    async fn step(&mut self) -> Result<(), StripeError> {
        if let Some((walk, target)) = &mut self.large {
            match walk.next(self.stripes).await? {
                Some(page) => self.found.extend(page.into_iter().map(|(id, len)| ColdStripe {
                    id,
                    living_bytes: len.into(),
                    target: *target,
                })),
                None => self.large = None,
            }
            return Ok(());
        }
        if self.page.is_empty() {
            self.page.extend(self.rows.next(self.stripes).await?.unwrap_or_default());
        }
        match self.page.pop_front() {
            Some(row) => self.see(&row),
            None => {
                self.ended = self.packed.is_empty();
                let packed = std::iter::from_fn(|| self.packed.pop_first()).take(PAGE);
                let is_cold = |(id, live)| cold_stripe(id, &live, self.options, self.now_ms);
                self.found.extend(packed.filter_map(is_cold));
                Ok(())
            }
        }
    }

    fn see(&mut self, row: &Row) -> Result<(), StripeError> {
        let object: Object = row.record()?;
        let Some(body) = &object.body else { return Ok(()) };
        let target = Target::of(&object, self.options);
        if let Body::Extent(extent) = body {
            let (id, len) = (stripe_id(&extent.stripe)?, extent.len);
            // An object that is not cold keeps the others in its stripe warm.
            let entry = self.packed.entry(id).and_modify(|live| live.add(len, &object, target));
            entry.or_insert_with(|| LiveData::new(len, &object, target));
        } else if let Some(target) = LiveData::new(0, &object, target).sealed_as(self.options, self.now_ms) {
            self.large = Some((ObjectStripes::of(body)?, target));
        }
        Ok(())
    }
}

fn cold_stripe<'a>(
    id: StripeId,
    live: &LiveData<'a>,
    options: &'a SealOptions,
    now_ms: u64,
) -> Option<ColdStripe> {
    let target = live.sealed_as(options, now_ms)?;
    Some(ColdStripe { id, living_bytes: live.bytes, target })
}
