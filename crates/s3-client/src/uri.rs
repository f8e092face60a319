//! Paths and queries in the form that Signature Version 4 signs: everything except the unreserved characters of RFC
//! 3986 is encoded.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// As [`COMPONENT`], but keeps the slashes of a path.
const PATH: &AsciiSet = &COMPONENT.remove(b'/');

/// Encodes a path.
pub fn encode_path(path: &str) -> String {
    utf8_percent_encode(path, PATH).to_string()
}

/// Encodes a query, without the `?`.
pub fn encode_query(parameters: &[(&str, &str)]) -> String {
    let encode = |text| utf8_percent_encode(text, COMPONENT).to_string();
    let pairs = parameters.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value)));
    pairs.collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_unreserved_characters_is_encoded() {
        let query = encode_query(&[("prefix", "a b/ü"), ("list-type", "2"), ("delimiter", "")]);
        assert_eq!(query, "prefix=a%20b%2F%C3%BC&list-type=2&delimiter=");
        assert_eq!(encode_path("/b/a b/~x+y/../z//"), "/b/a%20b/~x%2By/../z//");
    }
}
