//! The wide profile under which a stripe's data chunks are sealed, and when: the objects that live in it decide.
//!
//! An object of a class with a wide profile is sealed at once; any other object follows the cold profile, once it has
//! neither changed nor been read for the time that the bucket sets. If the objects of a stripe disagree, all of them
//! follow the cold profile.

use striate_core::Profile;
use striate_meta::records::Object;

use super::SealOptions;

/// Destination of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target<'a> {
    /// The wide profile; `None` if the object is not sealed.
    profile: Option<&'a Profile>,
    /// Time from which the object is cold, in milliseconds since the Unix epoch.
    cold_at_ms: u64,
    /// Whether that follows from its age, not from its class.
    by_age: bool,
}

/// How a cold stripe's data chunks are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ColdTarget {
    /// The wide profile that they come under; `None`: only what is sealed stays so.
    pub(super) profile: Option<Profile>,
    /// Time from which the stripe is cold, in milliseconds since the Unix epoch.
    pub(super) since_ms: u64,
    /// Whether it is cold by its age: reads keep it warm.
    pub(super) by_age: bool,
}

impl<'a> Target<'a> {
    pub(super) fn of(object: &Object, options: &'a SealOptions) -> Self {
        let modified_ms = object.modified_unix_ms;
        if let Some(profile) = options.classes.get(&object.class()) {
            return Self { profile: Some(profile), cold_at_ms: modified_ms, by_age: false };
        }
        Self::by_age(modified_ms, options)
    }

    /// Returns the destination of objects that have last changed at `modified_ms` and follow the cold profile.
    fn by_age(modified_ms: u64, options: &'a SealOptions) -> Self {
        let cold_at_ms = modified_ms.saturating_add(options.cold_after.as_millis() as u64);
        Self { profile: options.cold_profile.as_ref(), cold_at_ms, by_age: true }
    }

    fn is_cold(&self, now_ms: u64) -> bool {
        self.cold_at_ms <= now_ms
    }

    /// Returns whether the object is cold and sealed for that.
    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        self.profile.is_some() && self.is_cold(now_ms)
    }
}

/// Living data of a stripe.
#[derive(Clone, Copy, Debug)]
pub(super) struct LiveData<'a> {
    /// Bytes of the living objects.
    pub(super) bytes: u64,
    newest_ms: u64,
    /// Common destination of all objects, and when the last of them is cold; `None` if their destinations differ.
    target: Option<Target<'a>>,
}

impl<'a> LiveData<'a> {
    pub(super) fn new(len: u32, object: &Object, target: Target<'a>) -> Self {
        Self { bytes: len.into(), newest_ms: object.modified_unix_ms, target: Some(target) }
    }

    /// Adds another object of the stripe, or another part of the same one.
    pub(super) fn add(&mut self, len: u32, object: &Object, target: Target<'a>) {
        self.bytes += u64::from(len);
        self.newest_ms = self.newest_ms.max(object.modified_unix_ms);
        self.target = self.target.filter(|common| common.profile == target.profile).map(|common| Target {
            cold_at_ms: common.cold_at_ms.max(target.cold_at_ms),
            by_age: common.by_age || target.by_age,
            ..common
        });
    }

    /// Returns how the stripe's data chunks are sealed; `None` if the stripe is not cold now.
    pub(super) fn sealed_as(&self, options: &'a SealOptions, now_ms: u64) -> Option<ColdTarget> {
        let target = self.target.unwrap_or_else(|| Target::by_age(self.newest_ms, options));
        let Target { profile, cold_at_ms: since_ms, by_age } = target;
        target.is_cold(now_ms).then_some(ColdTarget { profile: profile.copied(), since_ms, by_age })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use striate_core::StorageClass;

    use super::*;

    const COLD: &str = "wide(42,15,4)";
    const ARCHIVE: &str = "wide(128,27,4)";

    fn options() -> SealOptions {
        let classes = [(StorageClass::GlacierIr, ARCHIVE), (StorageClass::StandardIa, COLD)];
        let classes = classes.map(|(class, profile)| (class, profile.parse::<Profile>().unwrap())).into();
        SealOptions { classes, ..SealOptions::new(COLD.parse().unwrap(), Duration::from_millis(100)) }
    }

    /// Returns how a stripe with objects of these classes and times is sealed at time 1000.
    fn cold_target(options: &SealOptions, objects: &[(&str, u64)]) -> Option<ColdTarget> {
        let object = |&(class, modified_unix_ms): &(&str, u64)| {
            let object = Object { storage_class: class.to_owned(), modified_unix_ms, ..Object::default() };
            (Target::of(&object, options), object)
        };
        let mut objects = objects.iter().map(object);
        let (target, first) = objects.next().unwrap();
        let mut living = LiveData::new(10, &first, target);
        objects.for_each(|(target, object)| living.add(10, &object, target));
        living.sealed_as(options, 1_000)
    }

    fn sealed_as(options: &SealOptions, objects: &[(&str, u64)]) -> Option<(String, u64)> {
        let target = cold_target(options, objects)?;
        Some((target.profile?.to_string(), target.since_ms))
    }

    #[test]
    fn a_stripe_is_cold_by_age_if_one_of_its_objects_is() {
        let by_age = |objects: &[(&str, u64)]| cold_target(&options(), objects).unwrap().by_age;
        assert!(!by_age(&[("GLACIER_IR", 5), ("GLACIER_IR", 6)]));
        assert!(by_age(&[("", 5)]));
        assert!(
            by_age(&[("STANDARD_IA", 5), ("", 5)]) && by_age(&[("", 5), ("STANDARD_IA", 5)]),
            "one profile"
        );
        assert!(
            by_age(&[("STANDARD_IA", 5), ("GLACIER_IR", 5)]),
            "the cold profile is for those that differ"
        );
    }

    #[test]
    fn a_class_is_cold_at_once_and_the_rest_by_its_age() {
        let of = |objects: &[(&str, u64)]| sealed_as(&options(), objects);
        let as_cold = |since| Some((COLD.to_owned(), since));
        let as_archive = |since| Some((ARCHIVE.to_owned(), since));
        assert_eq!(of(&[("", 900)]), as_cold(1_000));
        assert_eq!(of(&[("", 901)]), None);
        assert_eq!(of(&[("ONEZONE_IA", 901)]), None, "a class without a profile is no class");
        assert_eq!(of(&[("GLACIER_IR", 999)]), as_archive(999));
        assert_eq!(of(&[("GLACIER_IR", 5), ("GLACIER_IR", 999)]), as_archive(999));
        // Objects with the same destination are sealed when the last of them is cold.
        assert_eq!(of(&[("STANDARD_IA", 999), ("", 850)]), as_cold(999));
        assert_eq!(of(&[("STANDARD_IA", 5), ("", 901)]), None);
    }

    #[test]
    fn objects_that_differ_follow_the_cold_profile_or_stay() {
        let mixed = [("GLACIER_IR", 5), ("", 850), ("GLACIER_IR", 6)];
        assert_eq!(sealed_as(&options(), &mixed), Some((COLD.to_owned(), 950)));
        // The age of all objects counts.
        assert_eq!(sealed_as(&options(), &[("GLACIER_IR", 950), ("", 850)]), None);
        assert_eq!(sealed_as(&options(), &[("GLACIER_IR", 5), ("STANDARD_IA", 5)]).unwrap().0, COLD);
        let classes_alone = SealOptions { cold_profile: None, ..options() };
        assert_eq!(sealed_as(&classes_alone, &mixed), None);
        assert_eq!(sealed_as(&classes_alone, &mixed[1..2]), None);
        assert_eq!(sealed_as(&classes_alone, &mixed[..1]), Some((ARCHIVE.to_owned(), 5)));
        assert_eq!(sealed_as(&classes_alone, &[("GLACIER_IR", 5), ("STANDARD_IA", 5)]), None);
    }
}
