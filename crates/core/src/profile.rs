//! Profiles: a code, its layout, its spread over racks and its tier.
//!
//! ```text
//! profile = [ "cache" ] [ "split" | "packed" | "wide" ] code [ "spread" ( "tolerance" | "flat" | "racks(" c ")" ) ]
//! code    = "none" | "replica(" n ")" | "rs(" k "," r ")" | "lrc(" k "," l "," g ")" | "wide(" k "," r "," f ")"
//! ```
//! A wide code is also read as `wide(k=128,f=4,redundancy=1.063)`, and written as `wide(128,27,4)`. Objects can also be
//! written under these codes without combined locality: `lrc-r(128,15,3) spread flat` is Azure's LRC, with r data
//! chunks and a parity in each group and g global parities, and is written as `split wide(128,15,4) spread flat`.
//!
//! Omitted parts have their defaults: disks, split (wide for `wide(…)`), spread by tolerance. [`Profile`]'s `Display`
//! omits defaults, so every profile has exactly one text, and the profiles of release 0.1.0 keep the texts they had
//! there.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use striate_codec::{CodeSpec, CodecError};

use crate::formats::{Formats, NOT_ON_DISKS, PACKED, WIDE};

/// How objects become chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// One block is one stripe, cut into k data chunks (self-coding, EC-Store and EC-Cache).
    #[default]
    Split,
    /// Objects are appended to partitions; k partitions and their parities form a stripe (SoCC'17).
    Packed,
    /// Cold partitions of many packed stripes under one code (ECWide).
    Wide,
}

/// How many chunks of a stripe one rack may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Spread {
    /// As many as the code can lose, so that any rack may fail.
    #[default]
    Tolerance,
    /// At most c chunks (ECWide's c).
    Racks(usize),
    /// Any number: racks are ignored.
    Flat,
}

/// Where chunks live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tier {
    /// Durable sites.
    #[default]
    Disk,
    /// Memory sites (EC-Cache), in front of an origin or as the only storage. In rs(k,r), k is the maximum number of
    /// splits of a block.
    Memory,
}

/// A code, a layout, a spread and a tier. Written like `rs(4,2)`, `packed rs(6,3)`, `rs(128,4) spread racks(4)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Profile {
    /// The code.
    pub code: CodeSpec,
    /// The layout.
    pub layout: Layout,
    /// The spread over racks.
    pub spread: Spread,
    /// The tier.
    pub tier: Tier,
}

/// Why a text is not a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a profile: {reason}; write rs(4,2), lrc(6,2,2), replica(3) or none, or wide(42,15,4) for cold data"
)]
pub struct ProfileError {
    text: String,
    reason: String,
}

/// A valid profile under which this program cannot store objects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this program cannot store objects as {profile}: {reason}; it stores split blocks on disks, with profiles such as \
     rs(4,2), lrc(6,2,2), replica(3) or none"
)]
pub struct UnsupportedProfile {
    profile: String,
    reason: &'static str,
}

impl Profile {
    /// Returns the default profile of a cluster of `directories` directories.
    ///
    /// | directories | profile | may lose | stored per byte |
    /// |--|--|--|--|
    /// | 1 | `none` | 0 | 1.00 |
    /// | 2 | `replica(2)` | 1 | 2.00 |
    /// | 3 | `rs(2,1)` | 1 | 1.50 |
    /// | 4 | `rs(2,2)` | 2 | 2.00 |
    /// | 5 to 7 | `rs(n−2,2)` | 2 | 1.67 to 1.40 |
    /// | 8 to 11 | `rs(n−3,3)` | 3 | 1.60 to 1.38 |
    /// | 12 to 14 | `rs(n−4,4)` | 4 | 1.50 to 1.40 |
    /// | more | `rs(10,4)` | 4 | 1.40 |
    pub fn for_directories(directories: usize) -> Self {
        let rs = |parity| CodeSpec::Rs { data: directories - parity, parity };
        let code = match directories {
            0 | 1 => CodeSpec::Replica { copies: 1 },
            2 => CodeSpec::Replica { copies: 2 },
            3 => rs(1),
            4..=7 => rs(2),
            8..=11 => rs(3),
            12..=14 => rs(4),
            _ => CodeSpec::Rs { data: 10, parity: 4 },
        };
        Self::from(code)
    }

    /// Checks that this program stores objects with this profile while `formats` are in force. Callers check before
    /// they give a profile to a bucket, an object or a cluster; recorded profiles were checked then.
    ///
    /// # Errors
    /// [`UnsupportedProfile`] with the part that is not implemented, or that older programs of the store could not
    /// read.
    pub fn check_supported(&self, formats: Formats) -> Result<(), UnsupportedProfile> {
        let reason = match self {
            Self { tier: Tier::Memory, .. } if formats.records < NOT_ON_DISKS => {
                "older programs do not read objects in memory; run `striate admin upgrade finalize` first"
            }
            Self {
                code: CodeSpec::Rs { .. },
                layout: Layout::Split,
                spread: Spread::Tolerance,
                tier: Tier::Memory,
            } => return Ok(()),
            Self { tier: Tier::Memory, .. } => "memory sites keep what is written as cache rs(k,r)",
            Self { layout: Layout::Packed, code: CodeSpec::Replica { .. }, .. } => "it packs coded data only",
            Self { layout: Layout::Packed, .. } if formats.records < PACKED => {
                "older programs do not read packed objects; run `striate admin upgrade finalize` first"
            }
            Self { layout: Layout::Wide, .. } => {
                "wide stripes are made of cold data (`striate bucket create --cold-profile`)"
            }
            Self { layout: Layout::Packed, code: CodeSpec::Wide { .. }, .. } => {
                "what is packed comes under a wide code when it is cold"
            }
            Self { code: CodeSpec::Wide { .. }, .. } if formats.records < WIDE => {
                "older programs do not know its code; run `striate admin upgrade finalize` first"
            }
            Self { spread: Spread::Racks(_) | Spread::Flat, .. } if formats.records < 2 => {
                "release 0.1 does not read its spread; run `striate admin upgrade finalize` first"
            }
            Self { code: _, layout: Layout::Split | Layout::Packed, spread: _, tier: Tier::Disk } => {
                return Ok(());
            }
        };
        Err(UnsupportedProfile { profile: self.to_string(), reason })
    }
}

impl Profile {
    /// As [`Profile::check_supported`], for the default profile of buckets, which must be on disks.
    ///
    /// # Errors
    /// [`UnsupportedProfile`] if the tier is memory, or as [`Profile::check_supported`].
    pub fn check_default(&self, formats: Formats) -> Result<(), UnsupportedProfile> {
        if self.tier == Tier::Memory {
            let reason = "it is for buckets that say so (`striate bucket create --volatile`)";
            return Err(UnsupportedProfile { profile: self.to_string(), reason });
        }
        self.check_supported(formats)
    }
}

/// The layout of a code whose text names none.
fn usual_layout(code: CodeSpec) -> Layout {
    match code {
        CodeSpec::Wide { .. } => Layout::Wide,
        CodeSpec::Replica { .. } | CodeSpec::Rs { .. } | CodeSpec::Lrc { .. } => Layout::Split,
    }
}

impl From<CodeSpec> for Profile {
    /// Returns the profile whose text is the code's name alone.
    fn from(code: CodeSpec) -> Self {
        Self { code, layout: usual_layout(code), spread: Spread::default(), tier: Tier::default() }
    }
}

impl Layout {
    fn word(self) -> &'static str {
        match self {
            Self::Split => "split",
            Self::Packed => "packed",
            Self::Wide => "wide",
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tolerance => f.write_str("tolerance"),
            Self::Racks(chunks) => write!(f, "racks({chunks})"),
            Self::Flat => f.write_str("flat"),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tier == Tier::Memory {
            f.write_str("cache ")?;
        }
        if self.layout != usual_layout(self.code) {
            write!(f, "{} ", self.layout.word())?;
        }
        self.code.fmt(f)?;
        if self.spread != Spread::default() {
            write!(f, " spread {}", self.spread)?;
        }
        Ok(())
    }
}

impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, ProfileError> {
        parse(&text.to_ascii_lowercase()).map_err(|reason| ProfileError { text: text.to_owned(), reason })
    }
}

/// Parses a profile's text in lower case.
fn parse(text: &str) -> Result<Profile, String> {
    let (before, spread) = match text.split_once(" spread") {
        Some((before, spread)) => (before, parse_spread(spread.trim())?),
        None => (text, Spread::default()),
    };
    let (tier, rest) = match strip_word(before.trim(), "cache") {
        Some(rest) => (Tier::Memory, rest),
        None => (Tier::Disk, before),
    };
    let layout = [Layout::Split, Layout::Packed, Layout::Wide]
        .into_iter()
        .find_map(|layout| Some((layout, strip_word(rest, layout.word())?)));
    let code: CodeSpec = layout.map_or(rest, |(_, code)| code).parse().map_err(|error| match error {
        CodecError::Syntax { reason, .. } => reason,
        other => other.to_string(),
    })?;
    let usual = if rest.trim_start().starts_with("lrc-r") { Layout::Split } else { usual_layout(code) };
    let layout = layout.map_or(usual, |(layout, _)| layout);
    Ok(Profile { code, layout, spread, tier })
}

/// Returns what follows `word` and whitespace. A word followed by a bracket is the name of a code and does not match.
fn strip_word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let rest = text.trim_start().strip_prefix(word)?;
    let code = rest.trim_start();
    (rest.starts_with(char::is_whitespace) && !code.starts_with('(')).then_some(code)
}

fn parse_spread(text: &str) -> Result<Spread, String> {
    let wrong = || format!("{text:?} is no spread: write flat, racks(4) or tolerance");
    match text {
        "tolerance" => Ok(Spread::Tolerance),
        "flat" => Ok(Spread::Flat),
        _ => {
            let chunks = text.strip_prefix("racks").and_then(|rest| rest.trim_start().strip_prefix('('));
            let chunks = chunks.and_then(|rest| rest.strip_suffix(')')).ok_or_else(wrong)?;
            match chunks.trim().parse() {
                Ok(0) | Err(_) => Err(wrong()),
                Ok(chunks) => Ok(Spread::Racks(chunks)),
            }
        }
    }
}

impl From<Profile> for String {
    fn from(profile: Profile) -> Self {
        profile.to_string()
    }
}

impl TryFrom<String> for Profile {
    type Error = ProfileError;

    fn try_from(text: String) -> Result<Self, ProfileError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_code() -> impl Strategy<Value = CodeSpec> {
        let numbers = || (1..130usize, 1..40usize, 1..8usize);
        let code = prop_oneof![
            (1..=256usize).prop_map(|copies| CodeSpec::Replica { copies }),
            (1..=200usize, 0..=56usize).prop_map(|(data, parity)| CodeSpec::Rs { data, parity }),
            numbers().prop_map(|(size, local, global)| CodeSpec::Lrc { data: size * local, local, global }),
            numbers().prop_map(|(data, locality, tolerance)| CodeSpec::Wide { data, locality, tolerance }),
        ];
        code.prop_filter("its numbers are those of a code", |code| code.check().is_ok())
    }

    fn any_profile() -> impl Strategy<Value = Profile> {
        let spread =
            prop_oneof![Just(Spread::Tolerance), (1..300usize).prop_map(Spread::Racks), Just(Spread::Flat)];
        let layout = prop_oneof![Just(Layout::Split), Just(Layout::Packed), Just(Layout::Wide)];
        let tier = prop_oneof![Just(Tier::Disk), Just(Tier::Memory)];
        (any_code(), layout, spread, tier).prop_map(|(code, layout, spread, tier)| Profile {
            code,
            layout,
            spread,
            tier,
        })
    }

    proptest! {
        #[test]
        fn every_profile_parses_back_from_its_text(profile in any_profile()) {
            let text = profile.to_string();
            prop_assert_eq!(text.parse(), Ok(profile));
            prop_assert_eq!(text.to_ascii_uppercase().parse(), Ok(profile));
            prop_assert_eq!(format!(" {} ", text.replace(' ', "   ")).parse(), Ok(profile));
        }

        #[test]
        fn split_and_packed_profiles_on_disks_and_split_ones_in_memory_are_stored(profile in any_profile()) {
            let is_one_of_0_1_0 = profile == Profile {
                layout: Layout::Split,
                spread: Spread::Tolerance,
                tier: Tier::Disk,
                ..profile
            } && !matches!(profile.code, CodeSpec::Wide { .. });
            prop_assert_eq!(profile.check_supported(Formats::OLDEST).is_ok(), is_one_of_0_1_0);
            let on_disks = Profile { tier: Tier::Disk, ..profile };
            let is_packed = profile.layout == Layout::Packed
                && !matches!(profile.code, CodeSpec::Replica { .. } | CodeSpec::Wide { .. });
            let is_stored = profile == on_disks && (profile.layout == Layout::Split || is_packed);
            let in_memory = Profile { tier: Tier::Memory, ..Profile::from(profile.code) };
            let is_kept = profile == in_memory && matches!(profile.code, CodeSpec::Rs { .. });
            prop_assert_eq!(profile.check_supported(Formats::NEWEST).is_ok(), is_stored || is_kept);
        }
    }

    #[test]
    fn texts_of_release_0_1_0_mean_what_they_meant_and_stay_as_they_are() {
        let codes = [
            ("none", CodeSpec::Replica { copies: 1 }),
            ("replica(3)", CodeSpec::Replica { copies: 3 }),
            ("rs(4,2)", CodeSpec::Rs { data: 4, parity: 2 }),
            ("rs(10,4)", CodeSpec::Rs { data: 10, parity: 4 }),
            ("lrc(6,2,2)", CodeSpec::Lrc { data: 6, local: 2, global: 2 }),
        ];
        for (text, code) in codes {
            let profile =
                Profile { code, layout: Layout::Split, spread: Spread::Tolerance, tier: Tier::Disk };
            assert_eq!(text.parse(), Ok(profile));
            assert_eq!(profile.to_string(), text);
            assert_eq!(profile.check_supported(Formats::OLDEST), Ok(()));
        }
        assert_eq!("replica(1)".parse::<Profile>().unwrap().to_string(), "none");
        assert_eq!(" RS( 4 , 2 ) ".parse::<Profile>().unwrap().to_string(), "rs(4,2)");
    }

    #[test]
    fn parts_of_a_profile_are_read_as_written() {
        let parse = |text: &str| text.parse::<Profile>().unwrap();
        let rs = |data, parity| Profile::from(CodeSpec::Rs { data, parity });
        assert_eq!(parse("packed rs(6,3)"), Profile { layout: Layout::Packed, ..rs(6, 3) });
        assert_eq!(parse("cache rs(10,1)"), Profile { tier: Tier::Memory, ..rs(10, 1) });
        assert_eq!(parse("rs(128,4) spread racks(4)"), Profile { spread: Spread::Racks(4), ..rs(128, 4) });
        assert_eq!(parse("rs(4,2) spread flat"), Profile { spread: Spread::Flat, ..rs(4, 2) });
        assert_eq!(parse("split rs(4,2) spread tolerance"), rs(4, 2));
        let wide = parse("wide(128,27,4)");
        assert_eq!(wide.code, CodeSpec::Wide { data: 128, locality: 27, tolerance: 4 });
        assert_eq!((wide.layout, wide.code.chunk_count()), (Layout::Wide, 136));
        assert_eq!(parse("wide wide (128,27,4)"), wide);
        assert_eq!(parse("wide( K = 128, f=4, redundancy=1.063 )"), wide);
        assert_eq!(
            parse("wide(f=4,redundancy=1.063,k=128) spread racks(4)").to_string(),
            "wide(128,27,4) spread racks(4)"
        );
        assert_eq!(parse("wide rs(128,4)"), Profile { layout: Layout::Wide, ..rs(128, 4) });
        let flat = parse("lrc-r(128,15,3) spread flat");
        assert_eq!(flat.to_string(), "split wide(128,15,4) spread flat");
        assert_eq!((flat.layout, flat.spread, flat.code.tolerance()), (Layout::Split, Spread::Flat, 4));
    }

    #[test]
    fn what_is_not_stored_is_refused_with_what_would_be() {
        let reasons = [
            ("packed rs(6,3)", "pack"),
            ("wide(128,27,4)", "wide"),
            ("cache rs(10,1)", "memory"),
            ("rs(128,4) spread racks(4)", "spread"),
            ("split wide(128,32,4)", "wide"),
        ];
        for (text, reason) in reasons {
            let error =
                text.parse::<Profile>().unwrap().check_supported(Formats::OLDEST).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains(reason) && error.contains("rs(4,2)"), "{error}");
        }
    }

    #[test]
    fn every_default_profile_uses_at_most_the_directories_it_has_and_survives_its_text() {
        for directories in 1..40 {
            let profile = Profile::for_directories(directories);
            assert!(profile.code.chunk_count() <= directories.max(1));
            assert_eq!(profile.to_string().parse(), Ok(profile));
            assert_eq!(profile.code.build().unwrap().n(), profile.code.chunk_count());
        }
    }

    #[test]
    fn the_documented_table_holds() {
        let table = [(1, "none"), (2, "replica(2)"), (3, "rs(2,1)"), (4, "rs(2,2)"), (6, "rs(4,2)")];
        for (directories, text) in
            table.into_iter().chain([(8, "rs(5,3)"), (12, "rs(8,4)"), (30, "rs(10,4)")])
        {
            assert_eq!(Profile::for_directories(directories).to_string(), text);
        }
    }

    #[test]
    fn errors_name_the_text_the_reason_and_the_way_out() {
        let texts = [
            "",
            "rs",
            "rs(4,2",
            "rs(4)",
            "rs(a,2)",
            "raid(5)",
            "rs(0,2)",
            "rs(250,10)",
            "wide",
            "packed",
            "cache",
            "packed packed rs(6,3)",
            "packedrs(6,3)",
            "rs(4,2) spread",
            "rs(4,2) spread racks(0)",
            "rs(4,2) spread flat flat",
            "packed cache rs(6,3)",
            "wide(128,27)",
            "wide(128,1,4)",
            "wide(128,27,1)",
            "wide(128,0,4)",
            "wide(300,27,4)",
            "wide(128,27,18446744073709551615)",
        ];
        for text in texts {
            let error = text.parse::<Profile>().unwrap_err().to_string();
            assert!(error.contains("write rs(4,2)") && error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
