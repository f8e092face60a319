//! What may still be lost now: for each profile in use, by the placement rule, and for the stripes in debt, by their
//! records.
//!
//! Lost sites count until repair has rebuilt what was on them. That is known when the repair service reports that
//! nothing is left to do, and lists the site as one whose chunks are elsewhere. The rule gives a bound: no stripe has
//! lost more chunks than the rule allows on the lost sites. A stripe that has lost as many exists as soon as there are
//! some thousand stripes.

use std::collections::{BTreeMap, BTreeSet};

use striate_commands::admin::messages::{LossState, ProfileLosses, RepairState, SiteState};
use striate_core::{Layout, Profile, Tier};
use striate_meta::records::{Bucket, Stripe};
use striate_meta::{MetaError, Row, ScanRange, keys};
use striate_plan::{PlacementRule, RackSizes, default_profile};

use super::Cluster;
use super::health::{Refused, sites_by_rack};

/// Maximum number of stripes in debt whose records are read.
const MOST_STRIPES: usize = 500;
/// Stripe records read together.
const BATCH: usize = 64;

/// Sites that answer and those that do not, by rack.
struct Layouts {
    all: RackSizes,
    /// Lost sites whose chunks may not have been rebuilt.
    lost: RackSizes,
    /// Sites that take chunks.
    taking: RackSizes,
}

impl Cluster {
    /// Returns what may still be lost, and whether what was lost can be rebuilt.
    ///
    /// # Errors
    /// If the metadata cannot be read.
    pub(super) async fn losses(
        &self,
        sites: &[SiteState],
        debt: u64,
        repair: Option<&RepairState>,
    ) -> Result<LossState, MetaError> {
        let lost = lost_sites(sites, debt, repair);
        let layouts = Layouts {
            all: sites_by_rack(sites, |_| true),
            lost: sites_by_rack(sites, |site| lost.contains(&site.site)),
            taking: sites_by_rack(sites, |site| site.state == "ok"),
        };
        let profiles: Vec<ProfileLosses> =
            self.profiles_in_use().await?.into_iter().filter_map(|used| losses_of(used, &layouts)).collect();
        let in_debt = if debt == 0 { None } else { self.worst_in_debt(&lost).await? };
        let worst = |of: fn(&ProfileLosses) -> Option<usize>| profiles.iter().map(of).min().flatten();
        let sites_left = match (worst(|losses| losses.sites_left), in_debt) {
            (Some(by_rule), Some(in_debt)) => usize::try_from(in_debt).ok().map(|left| left.min(by_rule)),
            (by_rule, _) => by_rule,
        };
        let racks_left = worst(|losses| losses.racks_left).map(|racks| match in_debt {
            Some(..=0) => 0,
            // A rack may hold several chunks of a stripe that lacks some already.
            Some(_) => racks.min(1),
            None => racks,
        });
        Ok(LossState {
            refused: self.write_refusal(sites).as_ref().map(Refused::to_string),
            sites_left,
            racks_left: sites_left.and(racks_left),
            racks: layouts.all.len() != layouts.all.sites(),
            has_losses: !lost.is_empty() || debt > 0,
            no_place: lost_and_homeless(&profiles, &lost, debt),
            better: self.better_default(&layouts),
            one_disk: self.shared_file_systems(),
            profiles,
        })
    }

    /// Returns the profiles of durable data, each with the number of buckets that have it; the default's comes first.
    async fn profiles_in_use(&self) -> Result<Vec<(Profile, bool, u64)>, MetaError> {
        let default = self.profile();
        let mut buckets_by_profile: BTreeMap<String, (Profile, u64)> = BTreeMap::new();
        let mut of_default = 0;
        let rows = self.inner.services.meta.scan(ScanRange::prefix(keys::BUCKETS), MOST_STRIPES).await?;
        for row in &rows {
            let bucket: Bucket = row.record()?;
            if bucket.origin.is_some() {
                continue;
            }
            let own = std::iter::once(&bucket.profile).filter(|text| !text.is_empty());
            of_default += u64::from(bucket.profile.is_empty());
            for text in own.chain(bucket.classes.iter().map(|class| &class.profile)) {
                if let Ok(profile) = text.parse::<Profile>() {
                    buckets_by_profile.entry(profile.to_string()).or_insert((profile, 0)).1 += 1;
                }
            }
        }
        of_default += buckets_by_profile.remove(&default.to_string()).map_or(0, |(_, buckets)| buckets);
        let others = buckets_by_profile.into_values().map(|(profile, buckets)| (profile, false, buckets));
        // Wide stripes survive as much as the stripes that they are made of, or more, until these drop their parities.
        let counts = |(profile, ..): &(Profile, bool, u64)| {
            profile.tier == Tier::Disk && profile.layout != Layout::Wide
        };
        Ok(std::iter::once((default, true, of_default)).chain(others.filter(counts)).collect())
    }

    /// Returns how many further chunks a stripe in debt survives at least; negative if one has lost too many. `None` if none
    /// is in debt any more.
    async fn worst_in_debt(&self, lost: &BTreeSet<u32>) -> Result<Option<i64>, MetaError> {
        let meta = &self.inner.services.meta;
        let rows = meta.scan(ScanRange::prefix(keys::DEBTS), MOST_STRIPES).await?;
        let stripes: Vec<_> = rows.iter().filter_map(|row| keys::stripe_of(&row.key)).collect();
        let mut worst = None;
        for ids in stripes.chunks(BATCH) {
            let keys: Vec<_> = ids.iter().map(|id| keys::stripe(*id)).collect();
            for row in meta.get_many(&keys).await?.iter().flatten() {
                let left = self.chunks_left_to_lose(row, lost)?;
                worst = worst.into_iter().chain(left).min();
            }
        }
        Ok(worst)
    }

    /// `None` for a stripe that holds nothing, or that its wide stripe protects.
    fn chunks_left_to_lose(&self, row: &Row, lost: &BTreeSet<u32>) -> Result<Option<i64>, MetaError> {
        let stripe: Stripe = row.record()?;
        if stripe.dropped || stripe.dead {
            return Ok(None);
        }
        let Ok(profile) = stripe.profile.parse::<Profile>() else { return Ok(None) };
        let lacking = stripe.locations.iter().filter(|at| at.site == 0 || lost.contains(&at.site)).count();
        Ok(Some(profile.code.tolerance() as i64 - lacking as i64))
    }

    /// Returns the default profile that the present sites would get if the store were new, if it is another.
    fn better_default(&self, layouts: &Layouts) -> Option<ProfileLosses> {
        let current = self.profile();
        let better = default_profile(&current, &layouts.all);
        let chosen = (better != current).then_some(better)?;
        let survives_more = layouts.all.survivable(&chosen)?.covers(layouts.all.survivable(&current)?);
        survives_more.then(|| losses_of((chosen, false, 0), layouts)).flatten()
    }
}

/// Returns the lost sites whose chunks may not have been rebuilt.
fn lost_sites(sites: &[SiteState], debt: u64, repair: Option<&RepairState>) -> BTreeSet<u32> {
    let is_done =
        |repair: &&RepairState| !repair.off && repair.stripes_left == 0 && repair.waiting == 0 && debt == 0;
    let rebuilt: BTreeSet<u32> = repair.filter(is_done).map_or_else(BTreeSet::new, |repair| {
        let elsewhere = repair.silent.iter().filter(|silent| silent.rebuilt_after_s == 0);
        elsewhere.map(|silent| silent.site).collect()
    });
    let is_lost = |site: &&SiteState| !matches!(&*site.state, "ok" | "draining");
    sites.iter().filter(is_lost).map(|site| site.site).filter(|site| !rebuilt.contains(site)).collect()
}

/// Returns what stripes of a profile survive with all sites, and now.
fn losses_of(
    (profile, is_default, buckets): (Profile, bool, u64),
    layouts: &Layouts,
) -> Option<ProfileLosses> {
    let code = profile.code.build().ok()?;
    let limit = PlacementRule::new(&profile, &code, layouts.all.clone()).rack_limit();
    let whole = layouts.all.survivable_with(&profile, &code);
    let now = layouts.all.survivable_after(&profile, &code, &layouts.lost);
    Some(ProfileLosses {
        profile,
        is_default,
        buckets,
        stored_per_byte: code.n() as f64 / code.k() as f64,
        sites_of_whole: whole.map(|whole| whole.sites),
        racks_of_whole: whole.map(|whole| whole.racks),
        sites_left: now.map(|now| now.sites),
        racks_left: now.map(|now| now.racks),
        has_place: layouts.taking.room(limit) >= code.n(),
    })
}

/// Returns what stripes of a profile survive on these racks while all sites are there.
pub(super) fn losses_when_whole(
    profile: Profile,
    is_default: bool,
    racks: &RackSizes,
) -> Option<ProfileLosses> {
    let layouts = Layouts { all: racks.clone(), lost: RackSizes::default(), taking: racks.clone() };
    losses_of((profile, is_default, 0), &layouts)
}

/// Returns the profiles whose lost chunks have no place to be rebuilt.
fn lost_and_homeless(profiles: &[ProfileLosses], lost: &BTreeSet<u32>, debt: u64) -> Vec<Profile> {
    let homeless = profiles.iter().filter(|losses| !losses.has_place).map(|losses| losses.profile);
    if lost.is_empty() && debt == 0 { Vec::new() } else { homeless.collect() }
}
