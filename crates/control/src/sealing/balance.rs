//! Whether racks suit a wide profile: what `pack status` warns of, since sealing cannot mend it.

use std::collections::BTreeMap;

use striate_core::RackId;
use striate_plan::WideGeometry;

/// Cold data chunks by the racks that they are in.
pub(super) type InRacks = BTreeMap<RackId, u64>;

/// What is amiss, in words. `racks` is how many racks there are.
///
/// A wide stripe takes at most c of its k members from a rack. Where one holds a larger share of what is cold, the rest of it waits for
/// ever, however much is sealed.
pub(super) fn warnings(geometry: &WideGeometry, racks: usize, in_racks: &InRacks) -> Vec<String> {
    let mut warnings = Vec::new();
    if racks == geometry.z() {
        warnings.push(format!(
            "{} uses all {racks} racks: what a lost rack held is rebuilt only when that is back; add a rack",
            geometry.profile()
        ));
    }
    let all: u64 = in_racks.values().sum();
    let most = geometry.c() as f64 / geometry.k() as f64;
    // A few chunks say nothing of how racks are filled.
    if all < 4 * geometry.k() as u64 {
        return warnings;
    }
    for (rack, &count) in in_racks {
        let share = count as f64 / all as f64;
        if share > most {
            warnings.push(format!(
                "{rack} holds {:.1}% of what is cold, and {} takes {:.1}% from a rack at most: the rest waits; move chunks to other \
                 racks, or choose a code with fewer data chunks",
                100.0 * share,
                geometry.profile(),
                100.0 * most
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn racks(counts: &[u64]) -> InRacks {
        (1..).zip(counts).map(|(rack, &count)| (RackId(format!("rack{rack}")), count)).collect()
    }

    #[test]
    fn racks_that_hold_too_much_and_a_missing_spare_one_are_named() {
        let geometry = WideGeometry::new("wide(10,5,3)".parse().unwrap()).unwrap();
        assert_eq!((geometry.z(), geometry.c()), (5, 3));
        assert!(warnings(&geometry, 6, &racks(&[20, 20, 20, 20, 20, 20])).is_empty());
        let few = warnings(&geometry, 5, &racks(&[3, 1]));
        assert!(few.len() == 1 && few[0].contains("all 5 racks"), "{few:?}");
        let uneven = warnings(&geometry, 6, &racks(&[50, 10, 10, 10, 10, 10]));
        assert!(uneven.len() == 1 && uneven[0].starts_with("rack1 holds 50.0%"), "{uneven:?}");
    }
}
