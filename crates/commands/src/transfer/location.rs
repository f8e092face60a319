//! Locations of objects and files: `s3://BUCKET/KEY`, a path, or `-`.

use std::path::PathBuf;

use crate::output::printable;

/// One side of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// An object or a prefix.
    Object(ObjectLocation),
    /// A file or directory.
    Path(PathBuf),
    /// Standard input or output.
    Standard,
}

/// A bucket and a key or prefix in it, which may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectLocation {
    /// Name of the bucket.
    pub bucket: String,
    /// Key or prefix in the bucket.
    pub key: String,
}

impl Location {
    /// Parses a location.
    ///
    /// # Errors
    /// If it starts with `s3://` and has no bucket.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "-" => Ok(Self::Standard),
            _ if text.starts_with("s3://") => ObjectLocation::parse(text).map(Self::Object),
            _ => Ok(Self::Path(PathBuf::from(text))),
        }
    }
}

impl ObjectLocation {
    /// Parses `s3://BUCKET/KEY`.
    ///
    /// # Errors
    /// If it has another form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let hint = || format!("{text:?} names no bucket; write s3://BUCKET/KEY");
        let rest = text.strip_prefix("s3://").ok_or_else(hint)?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(hint());
        }
        Ok(Self { bucket: bucket.to_owned(), key: key.to_owned() })
    }

    /// Parses a location as [`ObjectLocation::parse`] does, and requires a key.
    ///
    /// # Errors
    /// If it has another form.
    pub fn parse_object(text: &str) -> Result<Self, String> {
        let location = Self::parse(text)?;
        match location.key.is_empty() {
            true => Err(format!("{text:?} names no object; write s3://BUCKET/KEY")),
            false => Ok(location),
        }
    }

    /// Returns the location of a file called `name` that is copied here: below it if it is a prefix, otherwise itself.
    pub fn for_file(&self, name: &str) -> Self {
        let is_prefix = self.key.is_empty() || self.key.ends_with('/');
        let key = if is_prefix { format!("{}{name}", self.key) } else { self.key.clone() };
        Self { bucket: self.bucket.clone(), key }
    }

    /// Returns the prefix under which a directory's contents go: ends with `/` unless it is empty.
    pub fn as_prefix(&self) -> String {
        match self.key.is_empty() || self.key.ends_with('/') {
            true => self.key.clone(),
            false => format!("{}/", self.key),
        }
    }
}

impl std::fmt::Display for ObjectLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&printable(&format!("s3://{}/{}", self.bucket, self.key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_told_apart() {
        let object = |bucket: &str, key: &str| {
            Ok(Location::Object(ObjectLocation { bucket: bucket.to_owned(), key: key.to_owned() }))
        };
        assert_eq!(Location::parse("s3://b/a/c"), object("b", "a/c"));
        assert_eq!(Location::parse("s3://b"), object("b", ""));
        assert_eq!(Location::parse("s3://b//x/"), object("b", "/x/"));
        assert_eq!(Location::parse("-"), Ok(Location::Standard));
        assert_eq!(Location::parse("./s3"), Ok(Location::Path("./s3".into())));
        assert!(Location::parse("s3:///x").unwrap_err().contains("s3://BUCKET/KEY"));
    }

    #[test]
    fn a_key_is_shown_on_one_line_and_moves_no_cursor() {
        let location = ObjectLocation::parse("s3://b/a\n\u{1b}[2Kk").unwrap();
        assert_eq!(location.to_string(), "s3://b/a\\n\\u{1b}[2Kk");
    }

    #[test]
    fn a_trailing_slash_keeps_the_files_name() {
        let name = |text: &str| ObjectLocation::parse(text).unwrap().for_file("f").key;
        assert_eq!([name("s3://b"), name("s3://b/d/"), name("s3://b/d")], ["f", "d/f", "d"]);
    }
}
