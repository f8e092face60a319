//! The walk over a bucket's rows that finds what is cold, as much at a time as fills some wide stripes: a bucket of any size is sealed
//! within bounded memory.
//!
//! A stripe of a large object is that object's alone: whether it is cold is known at once. A packed stripe is shared by many objects, whose
//! rows may be anywhere in the bucket: whether it is cold is known when all rows have been seen, and a few figures for each are kept until
//! then.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;

use striate_core::{Profile, StripeId};
use striate_meta::records::{Object, object::Body};
use striate_meta::{Row, keys};
use striate_stripe::{StripeError, Stripes};

use super::SealOptions;
use super::cold::Cold;
use super::target::{Living, Target};
use crate::object_stripes::stripes_of;
use crate::rows::Rows;

/// Records of stripes read together.
const PAGE: usize = 300;

/// A stripe that is cold: the wide profile that its data chunks come under, and since when it is cold.
#[derive(Clone, Copy)]
pub(super) struct ColdStripe {
    pub(super) id: StripeId,
    pub(super) living_bytes: u64,
    pub(super) profile: Profile,
    pub(super) since_ms: u64,
}

/// How far a walk over a bucket's rows has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walked {
    /// Enough was found, and there may be more.
    Further,
    /// There is nothing left.
    ToTheEnd,
    /// It was told to stop.
    Stopped,
}

/// Told what was found until then; ends the walk by `Break`.
type TellFound<'a> = &'a mut (dyn FnMut(&Cold) -> ControlFlow<()> + Send);

/// A walk over a bucket's rows, and what was learnt of stripes that were not looked at yet.
pub(super) struct Survey<'a> {
    stripes: &'a Stripes,
    options: &'a SealOptions,
    now_ms: u64,
    rows: Rows,
    /// Of the page of rows that the walk is at.
    page: VecDeque<Row>,
    /// What lives in packed stripes, as far as rows have been seen.
    packed: BTreeMap<StripeId, Living>,
    /// Stripes that are known to be cold.
    found: VecDeque<ColdStripe>,
    /// All rows have been seen.
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
            packed: BTreeMap::new(),
            found: VecDeque::new(),
            ended: false,
        }
    }

    /// Adds what is cold to `cold` until `enough` partitions more are there. `tell` is told after each page of rows and of stripes.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(super) async fn go_on(
        &mut self,
        cold: &mut Cold,
        enough: usize,
        tell: TellFound<'_>,
    ) -> Result<Walked, StripeError> {
        let mut added = 0;
        while added < enough {
            while self.found.len() < PAGE && !self.ended {
                if self.page.is_empty() && tell(cold).is_break() {
                    return Ok(Walked::Stopped);
                }
                self.step().await?;
            }
            if self.found.is_empty() {
                return Ok(Walked::ToTheEnd);
            }
            if tell(cold).is_break() {
                return Ok(Walked::Stopped);
            }
            let most = PAGE.min(enough - added).min(self.found.len());
            let page: Vec<ColdStripe> = self.found.drain(..most).collect();
            added += cold.look_at(self.stripes, &page, self.options, self.now_ms).await?;
        }
        Ok(Walked::Further)
    }

    /// Sees one row more.
    async fn step(&mut self) -> Result<(), StripeError> {
        if self.page.is_empty() {
            self.page.extend(self.rows.next(self.stripes).await?.unwrap_or_default());
        }
        match self.page.pop_front() {
            Some(row) => self.see(&row).await,
            None => {
                self.ended = true;
                let packed = std::mem::take(&mut self.packed).into_iter();
                let is_cold = |(id, of)| cold_stripe(id, &of, self.options, self.now_ms);
                self.found.extend(packed.filter_map(is_cold));
                Ok(())
            }
        }
    }

    async fn see(&mut self, row: &Row) -> Result<(), StripeError> {
        let object: Object = row.record()?;
        let Some(body) = &object.body else { return Ok(()) };
        let target = Target::of(&object, self.options);
        if let Body::Extent(_) = body {
            // What is not cold keeps the others warm that share its stripe.
            return stripes_of(self.stripes, body, &mut |id, len| {
                let of = self.packed.entry(id).and_modify(|of| of.add(len, &object, target));
                of.or_insert_with(|| Living::new(len, &object, target));
            })
            .await;
        }
        if !target.is_cold(self.now_ms) {
            return Ok(());
        }
        stripes_of(self.stripes, body, &mut |id, len| {
            let living = Living::new(len, &object, target);
            self.found.extend(cold_stripe(id, &living, self.options, self.now_ms));
        })
        .await
    }
}

fn cold_stripe(id: StripeId, of: &Living, options: &SealOptions, now_ms: u64) -> Option<ColdStripe> {
    let (profile, since_ms) = of.sealed_as(options, now_ms)?;
    Some(ColdStripe { id, living_bytes: of.bytes, profile, since_ms })
}
