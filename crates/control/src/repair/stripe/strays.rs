//! Strays: chunks in a rack that their group does not need. A group gets such a rack when another one comes back that
//! it was leaving. Scrub and verify put the stripe in debt, and its repair moves the strays to the group's other racks.

use std::collections::BTreeSet;

use striate_core::{RackId, SiteId, StripeId};
use striate_meta::records::{Location, Stripe};
use striate_plan::movement::ChunkMove;
use striate_plan::{Candidate, LeavingRacks, Stray};
use striate_site::Priority;
use striate_stripe::{SiteView, StripeChange, StripeError, Stripes, wide_of};

use super::{Findings, Job};
use crate::movement::{
    MoveOutcome, WideSearch, move_of, move_while_leaving, other_places, own_room, owner_of, places_of,
};

/// Returns the strays of a stripe while chunks leave the racks in `leaving`.
///
/// # Errors
/// When the profile is one that no version of this program writes.
pub(crate) fn strays(
    stripes: &Stripes,
    record: &Stripe,
    leaving: &LeavingRacks,
) -> Result<Vec<Stray>, StripeError> {
    let is_bound = match record.members.is_empty() {
        true => !record.dropped && !record.dead,
        false => record.is_sealed(),
    };
    if !is_bound {
        return Ok(Vec::new());
    }
    let profile = stripes.profiles().parse(&record.profile)?;
    let rack = |at: &Location| stripes.site(SiteId(at.site)).map(|site| site.rack());
    let racks: Vec<Option<RackId>> = record.locations.iter().map(rack).collect();
    Ok(stripes.placement_rule(&profile)?.leaving(leaving).strays(&racks))
}

/// A stray with the stripe that it was written in.
struct OwnedStray<'a> {
    /// Where it is in the wide stripe.
    position: usize,
    /// Racks with room for it.
    racks: Vec<RackId>,
    /// Racks of its group without room.
    full: Vec<RackId>,
    own: StripeChange<'a>,
    /// Its index in that stripe.
    index: usize,
}

/// A move that brings a group together.
struct GatheringMove {
    chunk_move: ChunkMove,
    /// Whether the chunk is not a stray, but in the way of one.
    makes_room: bool,
}

impl Job<'_> {
    /// Moves a stray to another rack of its group, or a chunk that is in its way there; where a site takes no chunk,
    /// another one is tried. Returns whether another round may do more. This ends: a stray brings its group closer
    /// together, and a chunk that was to make room, or is to be repaired first, stays where it is.
    pub(super) async fn gather_stray(&self, findings: &mut Findings) -> Result<bool, StripeError> {
        let leaving = &self.absent.leaving;
        while let Some(GatheringMove { chunk_move, makes_room }) = self.gathering_move(findings).await? {
            let outcome = move_while_leaving(self.stripes, &chunk_move, leaving.clone()).await?;
            tracing::debug!(wanted = ?chunk_move, ?outcome, "moving a chunk to the racks of its group");
            if makes_room || outcome == MoveOutcome::LeftToRepair {
                findings.stays.insert((chunk_move.stripe, chunk_move.index));
            }
            let refusal = match outcome {
                MoveOutcome::Moved { .. } => {
                    findings.gathered += 1;
                    return Ok(true);
                }
                MoveOutcome::Outdated | MoveOutcome::Contended => return Ok(true),
                MoveOutcome::LeftToRepair => "what it was to take is to be repaired first".to_owned(),
                MoveOutcome::Refused(reason) => reason,
            };
            findings.refusals.insert(chunk_move.to, refusal);
        }
        Ok(false)
    }

    /// Returns how many strays wait: some move was refused, or a site of their groups' racks takes no chunks now.
    /// Those that may go nowhere although all these sites are well do not count: another try would not help them.
    pub(super) fn waiting_strays(&self, findings: &Findings) -> Result<u64, StripeError> {
        let is_well =
            |view: &SiteView| view.draining || view.writable && !self.absent.contains(view.site.id());
        let views = self.stripes.sites();
        let unwell = views.iter().filter(|view| !is_well(view)).map(|view| view.site.rack());
        let unwell: BTreeSet<RackId> = unwell.collect();
        let waits = |stray: &&Stray| {
            !findings.refusals.is_empty() || stray.racks.iter().any(|rack| unwell.contains(rack))
        };
        let strays = strays(self.stripes, &self.change.record, &self.absent.leaving)?;
        Ok(strays.iter().filter(waits).count() as u64)
    }

    /// Returns a move of a stray to another rack of its group. If their own stripes bar all of them from there, returns
    /// a move of a chunk that is in the way of one, of its own stripe or else of the group. `None` if there is no such
    /// move.
    async fn gathering_move(&self, findings: &Findings) -> Result<Option<GatheringMove>, StripeError> {
        let strays = self.open_strays(findings).await?;
        let takers = self.takers(&[], findings);
        let order = self.pace.order(self.stripes, &takers);
        let homeward = strays.iter().find_map(|stray| stray.move_home(&order));
        if let Some(chunk_move) = homeward {
            return Ok(Some(GatheringMove { chunk_move, makes_room: false }));
        }
        let wide = self.change.id;
        let mut clearing = strays.iter().find_map(|stray| stray.move_out_of_its_way(wide, &order, findings));
        for stray in &strays {
            if clearing.is_none() {
                clearing = self.move_within_group(stray, &order, findings).await?;
            }
        }
        Ok(clearing.map(|chunk_move| GatheringMove { chunk_move, makes_room: true }))
    }

    /// Returns the move of another chunk of the wide stripe to one of a stray's racks with room, after which the stray may
    /// go to a rack of its group. If no such move suffices, returns the move of a chunk of the stray's own stripe after
    /// which one does.
    async fn move_within_group(
        &self,
        stray: &OwnedStray<'_>,
        order: &[&Candidate],
        findings: &Findings,
    ) -> Result<Option<ChunkMove>, StripeError> {
        let stays = |chunk: &(StripeId, usize)| findings.stays.contains(chunk);
        let (own, wide) = (&stray.own, self.change.id);
        let room = own_room(own, stray.index, order, |index| own.id != wide && !stays(&(own.id, index)));
        let is_home = |to: &&Candidate| stray.is_home(&to.rack);
        let destinations: Vec<&Candidate> = order.iter().copied().filter(is_home).collect();
        let is_of_group = |to: &&Candidate| is_home(to) || stray.full.contains(&to.rack);
        let takers: Vec<&Candidate> = order.iter().copied().filter(is_of_group).collect();
        let search = WideSearch {
            stripes: self.stripes,
            leaving: &self.absent.leaving,
            takers: &takers,
            destinations: &destinations,
        };
        let may_move = |chunk, from| !stays(&chunk) && !self.absent.contains(from);
        search.find(own, &room, (wide, stray.position), may_move).await
    }

    /// Opens the strays' own stripes, except for those that stay.
    async fn open_strays(&self, findings: &Findings) -> Result<Vec<OwnedStray<'_>>, StripeError> {
        let (record, leaving) = (&self.change.record, &self.absent.leaving);
        let mut opened = Vec::new();
        for Stray { chunk: position, racks, full } in strays(self.stripes, record, leaving)? {
            let owner = owner_of(self.change.id, record, position);
            let Some((stripe, index)) = owner.filter(|owner| !findings.stays.contains(owner)) else {
                continue;
            };
            let Some(mut own) = self.stripes.change(stripe, Priority::Repair).await? else { continue };
            own.leave(leaving);
            opened.push(OwnedStray { position, racks, full, own, index });
        }
        Ok(opened)
    }
}

impl OwnedStray<'_> {
    /// Returns whether a rack has room for it.
    fn is_home(&self, rack: &RackId) -> bool {
        self.racks.contains(rack)
    }

    /// Returns its move to another rack of its group.
    fn move_home(&self, order: &[&Candidate]) -> Option<ChunkMove> {
        let places = other_places(&self.own, self.index, order);
        let (to, _) = places.into_iter().find(|(_, rack)| self.is_home(rack))?;
        Some(move_of(&self.own, self.index, to))
    }

    /// Returns the move of another chunk of its own stripe after which that stripe no longer bars it from the racks of
    /// its group. A chunk of the wide stripe `wide` itself moves only if no other can.
    fn move_out_of_its_way(
        &self,
        wide: StripeId,
        order: &[&Candidate],
        findings: &Findings,
    ) -> Option<ChunkMove> {
        let own = &self.own;
        if own.id == wide {
            return None;
        }
        let is_open = |to: &&Candidate| self.is_home(&to.rack) && own.wide_admits(self.index, to.site);
        let homes: Vec<&Candidate> = order.iter().copied().filter(is_open).collect();
        let homes = places_of(&homes);
        let is_of_wide =
            |index: usize| wide_of(&own.record.locations[index]).is_some_and(|(of, _)| of == wide);
        [false, true].into_iter().find_map(|of_wide| {
            let may_move =
                |index: usize| is_of_wide(index) == of_wide && !findings.stays.contains(&(own.id, index));
            let (index, to) = own_room(own, self.index, order, may_move).clearing_move(&homes)?;
            Some(move_of(own, index, to))
        })
    }
}
