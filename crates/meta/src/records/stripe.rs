//! Accessors of a stripe's record: the stripe, its chunks and their files.

use striate_core::{ChunkId, Generation, SiteId, StripeId};

use super::{Copy, GarbageChunk, Location, Member, Stripe, WideState};

impl Stripe {
    /// Returns true for a wide stripe that has all of its parities, and so protects its members.
    pub fn is_sealed(&self) -> bool {
        matches!(self.wide_state(), WideState::Sealed | WideState::Complete)
    }

    /// Returns the members of a wide stripe without the holes: position, own stripe, and index in it.
    pub fn member_chunks(&self) -> impl Iterator<Item = (usize, StripeId, usize)> {
        let member_chunk = |(position, member): (usize, &Member)| {
            Some((position, member.stripe_id()?, member.index as usize))
        };
        self.members.iter().enumerate().filter_map(member_chunk)
    }

    /// Returns true if the member at `position` of a wide stripe is the chunk `index` of `stripe`.
    pub fn has_member(&self, position: usize, stripe: StripeId, index: usize) -> bool {
        let is_it = |member: &Member| member.stripe_id() == Some(stripe) && member.index as usize == index;
        self.members.get(position).is_some_and(is_it)
    }

    /// Removes copies from the record and returns their files.
    pub fn drop_copies(&mut self, is_dropped: impl Fn(&Copy) -> bool) -> Vec<GarbageChunk> {
        self.copies.extract_if(.., |copy| is_dropped(copy)).map(|copy| copy.to_garbage()).collect()
    }
}

impl Member {
    /// Returns the stripe in which the member was written; `None` for a hole.
    pub fn stripe_id(&self) -> Option<StripeId> {
        id_of(&self.stripe)
    }
}

impl Location {
    /// Returns the wide stripe of which the chunk is a member.
    pub fn wide_stripe(&self) -> Option<StripeId> {
        id_of(&self.wide)
    }

    /// Records that the chunk is the member at a position of a wide stripe.
    pub fn claim(&mut self, wide: StripeId, position: usize) {
        (self.wide, self.position) = (wide.to_bytes().to_vec().into(), position as u32);
    }

    /// Returns the file of the chunk, which has this index in its stripe.
    pub fn to_garbage(&self, index: usize) -> GarbageChunk {
        GarbageChunk { index: index as u32, site: self.site, generation: self.generation }
    }
}

impl Copy {
    /// Returns the file of the copy.
    pub fn to_garbage(&self) -> GarbageChunk {
        GarbageChunk { index: self.index, site: self.site, generation: self.generation }
    }
}

impl GarbageChunk {
    /// Creates the name of a chunk's file at a site, under a generation.
    pub fn new(index: usize, site: SiteId, generation: Generation) -> Self {
        Self { index: index as u32, site: site.0, generation: generation.0 }
    }

    /// Creates the name of the file of `chunk` at a site.
    pub fn of(chunk: ChunkId, site: SiteId) -> Self {
        Self::new(chunk.index.into(), site, chunk.generation)
    }
}

fn id_of(bytes: &[u8]) -> Option<StripeId> {
    bytes.try_into().ok().map(StripeId::from_bytes)
}
