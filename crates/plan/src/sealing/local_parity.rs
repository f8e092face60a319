//! In which rack of its group a local parity belongs once its wide stripe is sealed.
//!
//! A change of a member is sent to the rack of its local parity, unless the member is in it (ECWide §4.3). So the
//! parity belongs in the rack that will change most. It gets there by swapping places with a member of that rack. The
//! swap sends two chunks across racks, and the member's own changes cross racks from then on.

use std::collections::BTreeMap;

use striate_core::RackId;

/// Chunks that cross racks when a local parity and a member swap places.
const CHUNKS_A_SWAP: f64 = 2.0;

/// A member of a local group, with the expected amount of change.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangingMember {
    /// Its position in the wide stripe.
    pub position: usize,
    /// The member's rack.
    pub rack: RackId,
    /// Share of the chunk that is expected to change, 0 to 1: its dead part, which will be rewritten or removed.
    pub share: f64,
}

/// Returns the position of the member with which the local parity of a group should swap places: the member that
/// changes least in the rack that saves most. `None` if no swap saves more than it sends, or if the parity's rack,
/// `local`, receives all changes anyway because it is one of the racks of the global parities, `globals`.
///
/// Cost: O(members · log members).
pub fn swap_due(local: &RackId, globals: &[RackId], members: &[ChangingMember]) -> Option<usize> {
    if globals.contains(local) {
        return None;
    }
    let mut racks: BTreeMap<&RackId, Vec<&ChangingMember>> = BTreeMap::new();
    members.iter().for_each(|member| racks.entry(&member.rack).or_default().push(member));
    let expected = |members: &[&ChangingMember]| members.iter().map(|member| member.share).sum::<f64>();
    let beside_local = racks.remove(local).map_or(0.0, |members| expected(&members));
    let saving = |members: Vec<&ChangingMember>| {
        let least = *members.iter().min_by(|a, b| a.share.total_cmp(&b.share))?;
        Some((expected(&members) - least.share - beside_local, least.position))
    };
    let savings = racks.into_values().filter_map(saving).filter(|&(chunks, _)| chunks > CHUNKS_A_SWAP);
    // The first of racks that save equally much.
    let best = savings.reduce(|best, next| if next.0 > best.0 { next } else { best });
    best.map(|(_, position)| position)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rack(number: usize) -> RackId {
        RackId(format!("rack{number:02}"))
    }

    /// Members in the order of their positions, by rack; the first rack has the local parity.
    fn group(racks: &[&[f64]]) -> Vec<ChangingMember> {
        let of_rack = |(number, shares): (usize, &&[f64])| {
            shares.iter().map(|&share| (rack(number), share)).collect::<Vec<_>>()
        };
        let all = racks.iter().enumerate().flat_map(of_rack).enumerate();
        all.map(|(position, (rack, share))| ChangingMember { position, rack, share }).collect()
    }

    fn due(racks: &[&[f64]]) -> Option<usize> {
        swap_due(&rack(0), &[rack(90)], &group(racks))
    }

    #[test]
    fn a_parity_goes_to_a_rack_that_changes_more_by_two_chunks() {
        assert_eq!(due(&[&[0.0; 3], &[1.0, 1.0, 0.9, 0.0]]), Some(6));
        assert_eq!(due(&[&[0.0; 3], &[1.0, 0.5, 0.5, 0.0]]), None, "as much as the swap sends");
        assert_eq!(due(&[&[0.0; 3], &[1.0; 3]]), None, "the member that comes out changes too");
        assert_eq!(due(&[&[0.0; 3], &[1.0; 4]]), Some(3));
        assert_eq!(due(&[&[0.5, 0.5, 0.0], &[1.0; 4]]), None, "it would leave changes behind");
        assert_eq!(due(&[&[1.0; 3], &[0.0; 4]]), None);
        assert_eq!(due(&[&[], &[0.0; 4]]), None);
        assert_eq!(due(&[&[0.0; 3], &[0.8; 4], &[0.9, 1.0, 1.0, 1.0]]), Some(7), "the one that saves most");
        assert_eq!(due(&[&[0.0; 3], &[1.0; 4], &[1.0; 4]]), Some(3), "the first of equals");
    }

    #[test]
    fn a_parity_beside_the_global_ones_stays() {
        let members = group(&[&[], &[1.0; 4]]);
        assert_eq!(swap_due(&rack(0), &[rack(90)], &members), Some(0));
        assert_eq!(swap_due(&rack(0), &[rack(90), rack(0)], &members), None);
    }

    /// Returns the chunks that cross racks for the local parity when all expected changes happen with the parity in
    /// `local`.
    fn crossing(local: &RackId, members: &[ChangingMember]) -> f64 {
        members.iter().filter(|of| of.rack != *local).map(|of| of.share).sum()
    }

    proptest! {
        #[test]
        fn what_is_due_saves_more_than_it_sends_and_all_else_does_not(
            racks in prop::collection::vec(prop::collection::vec(0.0f64..1.0, 0..5), 1..7),
        ) {
            let racks: Vec<&[f64]> = racks.iter().map(Vec::as_slice).collect();
            let (members, local) = (group(&racks), rack(0));
            let saved = |position: usize| {
                let mut swapped = members.clone();
                let to = std::mem::replace(&mut swapped[position].rack, local.clone());
                crossing(&local, &members) - crossing(&to, &swapped)
            };
            let others = members.iter().filter(|of| of.rack != local).map(|of| saved(of.position));
            let most = others.fold(f64::NEG_INFINITY, f64::max);
            match due(&racks) {
                Some(position) => {
                    prop_assert!(members[position].rack != local && saved(position) > 2.0 - 1e-9);
                    prop_assert!(saved(position) > most - 1e-9);
                }
                None => prop_assert!(most < 2.0 + 1e-9, "{most} would be saved"),
            }
        }
    }
}
