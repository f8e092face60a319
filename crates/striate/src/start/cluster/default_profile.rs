//! The default profile: what others would survive here, and changing it.

use striate_commands::admin::messages::{ProfileLosses, ProfileState};
use striate_commands::failure::{Failure, Outcome};
use striate_control::Members;
use striate_core::Profile;

use super::Cluster;
use super::losses::losses_when_whole;

/// Maximum number of other profiles that are offered.
const MOST_OFFERED: usize = 6;

impl Cluster {
    /// Returns the default profile, and others that these sites have places for, those of most sites first.
    pub fn profile_state(&self) -> ProfileState {
        let (current, racks) = (self.profile(), self.client().stripes().rack_sizes());
        let mut choices: Vec<ProfileLosses> = losses_when_whole(current, true, &racks).into_iter().collect();
        let usual = (1..=racks.sites()).rev().map(Profile::for_directories);
        for profile in usual.filter(|profile| *profile != current) {
            let is_new = choices.iter().all(|choice| choice.profile != profile);
            let losses = losses_when_whole(profile, false, &racks);
            choices.extend(losses.filter(|losses| is_new && losses.sites_of_whole.is_some()));
            if choices.len() > MOST_OFFERED {
                break;
            }
        }
        ProfileState { choices }
    }

    /// Changes the default profile. Stored objects stay as they are.
    ///
    /// # Errors
    /// If this program does not store objects under it, or the sites have no place for all of its chunks.
    pub async fn choose_profile(&self, profile: &Profile) -> Outcome {
        let racks = self.client().stripes().rack_sizes();
        if racks.survivable(profile).is_none() {
            return Err(Failure::refused(format!(
                "{profile} needs {} sites, and these {} sites in {} racks have no place for all of its chunks; `striate admin \
                 profile` lists profiles that have",
                profile.code.chunk_count(),
                racks.sites(),
                racks.len()
            )));
        }
        self.support(profile).await?;
        let meta = self.client().stripes().meta();
        let members = Members::new(&self.inner.runtime, &**meta);
        members.set_default_profile(profile).await.map_err(Failure::refused)?;
        // Other processes of a cluster read the row within seconds.
        self.client().set_default_profile(*profile);
        tracing::info!(%profile, "the default profile was chosen");
        Ok(())
    }
}
