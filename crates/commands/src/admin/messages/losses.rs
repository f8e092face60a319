//! What may still be lost.

use serde::{Deserialize, Serialize};
use striate_core::Profile;

/// What may still be lost now, and whether what was lost can be rebuilt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossState {
    /// Why new objects are refused, if they are.
    pub refused: Option<String>,
    /// Number of further sites that may be lost, whichever they are, without losing data: of the profile or the stripe
    /// that survives least. `None` if more may be lost already than something survives.
    pub sites_left: Option<usize>,
    /// The same for racks, each with all of its sites.
    pub racks_left: Option<usize>,
    /// Whether any rack has several sites.
    pub racks: bool,
    /// Whether something is lost that is not rebuilt yet.
    pub has_losses: bool,
    /// Profiles of which lost chunks have no place to be rebuilt.
    pub no_place: Vec<Profile>,
    /// The default profile that these sites would get if the store were new, if it is another and survives as much.
    pub better: Option<ProfileLosses>,
    /// Sites that are on one disk, by their addresses.
    pub one_disk: Vec<Vec<String>>,
    /// The profiles in use; the first is the default.
    pub profiles: Vec<ProfileLosses>,
}

/// What stripes of a profile survive.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileLosses {
    /// The profile.
    pub profile: Profile,
    /// Whether it is the default.
    pub is_default: bool,
    /// Number of buckets that have it.
    pub buckets: u64,
    /// Bytes stored for each byte of an object.
    pub stored_per_byte: f64,
    /// Number of sites that may be lost while all are there; `None` if its chunks have no place.
    pub sites_of_whole: Option<usize>,
    /// The same for racks.
    pub racks_of_whole: Option<usize>,
    /// Number of further sites that may be lost now; `None` if more may be lost already than it survives.
    pub sites_left: Option<usize>,
    /// The same for racks.
    pub racks_left: Option<usize>,
    /// Whether the sites that take chunks now have places for all chunks of a stripe.
    pub has_place: bool,
}

impl LossState {
    /// Returns the warnings, most urgent first. `thing` is what a site is to the operator: a disk, or a site.
    pub fn warnings(&self, thing: &str) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(reason) = &self.refused {
            warnings.push(format!("new objects are refused: {reason}"));
        }
        match self.sites_left {
            None => warnings.push(format!(
                "more {thing}s are lost than some objects may survive: bring them back; `striate verify --unreadable` lists what cannot be read"
            )),
            Some(0) if self.has_losses => {
                warnings.push(format!("the next lost {thing} may lose data"));
            }
            Some(_) => {}
        }
        for losses in self.profiles.iter().filter(|losses| losses.sites_of_whole.is_none()) {
            warnings.push(format!(
                "{} has no place for all of its chunks here; `striate admin profile` lists profiles that have",
                losses.profile
            ));
        }
        if !self.no_place.is_empty() {
            let profiles: Vec<String> = self.no_place.iter().map(Profile::to_string).collect();
            warnings.push(format!(
                "what is lost of {} has no place to be rebuilt: bring lost {thing}s back, or add {thing}s",
                profiles.join(", ")
            ));
        }
        warnings
    }

    /// Returns what an operator may want to know although nothing is wrong.
    pub fn notes(&self, thing: &str) -> Vec<String> {
        let mut notes = Vec::new();
        let survived = self.profiles.iter().filter_map(|losses| losses.sites_of_whole).max().unwrap_or(0);
        for shared in self.one_disk.iter().filter(|_| survived > 0) {
            notes.push(format!(
                "{} {thing}s are on one disk ({}): losing it loses all of them at once",
                shared.len(),
                shared.join(", ")
            ));
        }
        if let Some(better) = &self.better {
            notes.push(format!(
                "{}: `striate admin profile {}` makes it the default",
                better.offer(),
                better.profile
            ));
        }
        notes
    }
}

impl ProfileLosses {
    /// Describes what the profile costs and survives: `rs(6,3) would survive 3 sites and 1 rack, for 1.50 bytes a byte`.
    pub fn offer(&self) -> String {
        let survives = match (self.sites_of_whole, self.racks_of_whole) {
            (Some(sites), Some(racks)) => format!("would survive {sites} lost sites and {racks} lost racks"),
            _ => "has no place here".to_owned(),
        };
        format!("{} {survives}, and stores {:.2} bytes for each", self.profile, self.stored_per_byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(sites_left: Option<usize>) -> LossState {
        let profile = ProfileLosses {
            profile: "rs(4,2)".parse().unwrap(),
            is_default: true,
            buckets: 1,
            stored_per_byte: 1.5,
            sites_of_whole: Some(2),
            racks_of_whole: Some(1),
            sites_left,
            racks_left: sites_left,
            has_place: true,
        };
        LossState { sites_left, racks_left: sites_left, profiles: vec![profile], ..LossState::default() }
    }

    #[test]
    fn warnings_name_what_is_at_risk_and_only_that() {
        assert!(losses(Some(2)).warnings("disk").is_empty());
        assert!(
            losses(Some(0)).warnings("disk").is_empty(),
            "a profile without redundancy has a warning of its own"
        );
        let last = LossState { has_losses: true, ..losses(Some(0)) };
        assert_eq!(last.warnings("disk"), ["the next lost disk may lose data"]);
        let homeless = LossState {
            has_losses: true,
            refused: Some("4 of 7 disks take writes".to_owned()),
            no_place: vec!["rs(4,2)".parse().unwrap()],
            ..losses(None)
        };
        let warnings = homeless.warnings("site");
        let [refused, lost, no_place] = warnings.as_slice() else { panic!("{warnings:?}") };
        assert!(refused.contains("4 of 7") && lost.contains("more sites are lost"), "{warnings:?}");
        assert!(no_place.contains("rs(4,2) has no place to be rebuilt"), "{no_place}");
    }

    #[test]
    fn directories_on_one_disk_and_a_better_default_are_noted() {
        let mut state = losses(Some(2));
        assert!(state.notes("disk").is_empty());
        state.one_disk = vec![vec!["/a".to_owned(), "/b".to_owned()]];
        let better = ProfileLosses { profile: "rs(6,3)".parse().unwrap(), ..state.profiles[0] };
        state.better = Some(better);
        let notes = state.notes("disk");
        let [shared, offer] = notes.as_slice() else { panic!("{notes:?}") };
        assert!(shared.contains("2 disks are on one disk (/a, /b)"), "{shared}");
        assert!(offer.contains("striate admin profile rs(6,3)") && offer.contains("1.50 bytes"), "{offer}");
    }
}
