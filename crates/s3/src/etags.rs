//! Lists of ETags, as `If-Match` and `If-None-Match` carry them (RFC 9110, 13.1.1); s3s parses a single one only,
//! and no text that could not be an ETag of S3, which matches no object.

/// Headers that carry ETags.
pub(crate) const CONDITIONS: [&str; 4] =
    ["if-match", "if-none-match", "x-amz-copy-source-if-match", "x-amz-copy-source-if-none-match"];

/// Returns the values of the ETags in `text`, without their quotes, or `*`; `None` if it is malformed or empty. As in
/// S3, quotes may lack, and a weak ETag counts as the strong one.
pub(crate) fn parse_etags(text: &str) -> Option<Vec<String>> {
    let mut etags = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (etag, after) = first_etag(rest)?;
        etags.push(etag.to_owned());
        rest = after.trim_start();
        rest = match rest.strip_prefix(',') {
            Some(next) => next.trim_start_matches([',', ' ', '\t']),
            None if rest.is_empty() => rest,
            None => return None,
        };
    }
    (!etags.is_empty()).then_some(etags)
}

/// Splits off the first ETag.
fn first_etag(text: &str) -> Option<(&str, &str)> {
    let strong = text.strip_prefix("W/").unwrap_or(text);
    if let Some(quoted) = strong.strip_prefix('"') {
        return quoted.split_once('"');
    }
    let len = text.find([',', ' ', '\t']).unwrap_or(text.len());
    let (etag, rest) = text.split_at(len);
    let is_bare = |byte: u8| byte.is_ascii_graphic() && byte != b'"';
    (!etag.is_empty() && etag.bytes().all(is_bare)).then_some((etag, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_may_be_weak_bare_and_untidy() {
        let parse = |text| parse_etags(text).map(|etags| etags.join("|"));
        for (text, etags) in [
            ("\"a\"", "a"),
            ("\"x\", \"a-2\"", "x|a-2"),
            ("W/\"a\",\"b,c\" ,, d", "a|b,c|d"),
            ("*", "*"),
            ("\"\"", ""),
            ("not_an-etag", "not_an-etag"),
        ] {
            assert_eq!(parse(text).as_deref(), Some(etags), "{text}");
        }
        for malformed in ["", " ", "\"a", "\"a\" \"b\"", "a b", "\"a\"b", "é"] {
            assert_eq!(parse(malformed), None, "{malformed}");
        }
    }

    proptest! {
        #[test]
        fn no_list_panics(text in "[W/\", a*é]{0,20}") {
            let _ = parse_etags(&text);
        }
    }
}
