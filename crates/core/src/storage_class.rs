//! Storage classes: S3's names for how an object is kept (`x-amz-storage-class`). A bucket may give each class a
//! profile.
//!
//! Only classes whose objects S3 can read at once are listed. Objects in `GLACIER` or `DEEP_ARCHIVE` must be restored
//! before a read, and S3's tools skip them; our objects are always readable.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A storage class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum StorageClass {
    /// `STANDARD`: the class of objects whose writer names none.
    #[default]
    Standard,
    /// `REDUCED_REDUNDANCY`.
    ReducedRedundancy,
    /// `STANDARD_IA`: infrequent access.
    StandardIa,
    /// `ONEZONE_IA`: infrequent access, in one zone.
    OnezoneIa,
    /// `INTELLIGENT_TIERING`.
    IntelligentTiering,
    /// `GLACIER_IR`: archived, but readable at once.
    GlacierIr,
}

/// A text that is not a storage class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a storage class; use one of {}", StorageClass::ALL.map(StorageClass::name).join(", "))]
pub struct StorageClassError {
    text: String,
}

impl StorageClass {
    /// All classes.
    pub const ALL: [Self; 6] = [
        Self::Standard,
        Self::ReducedRedundancy,
        Self::StandardIa,
        Self::OnezoneIa,
        Self::IntelligentTiering,
        Self::GlacierIr,
    ];

    /// Returns S3's name of the class.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Standard => "STANDARD",
            Self::ReducedRedundancy => "REDUCED_REDUNDANCY",
            Self::StandardIa => "STANDARD_IA",
            Self::OnezoneIa => "ONEZONE_IA",
            Self::IntelligentTiering => "INTELLIGENT_TIERING",
            Self::GlacierIr => "GLACIER_IR",
        }
    }

    /// Returns the class named in an object's row. An empty or unknown text is `STANDARD`.
    pub fn of_row(text: &str) -> Self {
        text.parse().unwrap_or_default()
    }
}

impl fmt::Display for StorageClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for StorageClass {
    type Err = StorageClassError;

    fn from_str(text: &str) -> Result<Self, StorageClassError> {
        let named = Self::ALL.into_iter().find(|class| class.name() == text);
        named.ok_or_else(|| StorageClassError { text: text.to_owned() })
    }
}

impl From<StorageClass> for String {
    fn from(class: StorageClass) -> Self {
        class.name().to_owned()
    }
}

impl TryFrom<String> for StorageClass {
    type Error = StorageClassError;

    fn try_from(text: String) -> Result<Self, StorageClassError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_read_by_their_names_and_no_name_is_standard() {
        for class in StorageClass::ALL {
            assert_eq!(class.name().parse(), Ok(class));
            assert_eq!(StorageClass::of_row(class.name()), class);
        }
        assert_eq!(StorageClass::of_row(""), StorageClass::Standard);
        let error = "DEEP_ARCHIVE".parse::<StorageClass>().unwrap_err().to_string();
        assert!(error.contains("DEEP_ARCHIVE") && error.contains("GLACIER_IR"), "{error}");
    }
}
