//! Ellipses: `DIR{1...6}` stands for six arguments, as in MinIO.
//!
//! Shells do not expand three dots, so we do. A pattern is `{first...last}` with decimal numbers; both ends are
//! included. If an end is written with a leading zero, all numbers are padded to its width: `{01...16}` gives `01` to
//! `16`. Several patterns in one argument give all combinations, the rightmost counting fastest. Any other brace is an
//! error, because it is nearly always a mistyped pattern (two dots, a comma) that would otherwise silently become one
//! oddly named directory.

use std::ops::RangeInclusive;

/// Maximum number of arguments that one pattern may stand for.
pub const MAX_EXPANSION: usize = 1_024;

/// Why an argument cannot be expanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{argument:?}: {reason}; write three dots between two numbers, as in /data/disk{{1...6}}")]
pub struct EllipsisError {
    argument: String,
    reason: String,
}

/// A piece of an argument: literal text, or a range of numbers padded to a width.
enum Piece<'a> {
    Text(&'a str),
    Numbers { range: RangeInclusive<u32>, width: usize },
}

/// Returns what `argument` stands for, in order; the argument itself if it has no braces.
///
/// # Errors
/// For braces that are not a pattern, ranges that run backwards, and patterns for more than [`MAX_EXPANSION`]
/// arguments.
pub fn expand(argument: &str) -> Result<Vec<String>, EllipsisError> {
    let fail = |reason: String| EllipsisError { argument: argument.to_owned(), reason };
    let mut expanded = vec![String::new()];
    for piece in pieces(argument).map_err(fail)? {
        match piece {
            Piece::Text(text) => expanded.iter_mut().for_each(|prefix| prefix.push_str(text)),
            Piece::Numbers { range, width } => {
                let count = (range.end() - range.start()) as usize + 1;
                if expanded.len().saturating_mul(count) > MAX_EXPANSION {
                    return Err(fail(format!("it stands for more than {MAX_EXPANSION} directories")));
                }
                let numbers = |prefix: String| {
                    range.clone().map(move |number| format!("{prefix}{number:0width$}")).collect::<Vec<_>>()
                };
                expanded = expanded.into_iter().flat_map(numbers).collect();
            }
        }
    }
    Ok(expanded)
}

/// Returns what all `arguments` stand for, in order.
///
/// # Errors
/// As for [`expand`], for the first argument that is invalid.
pub fn expand_all<S: AsRef<str>>(
    arguments: impl IntoIterator<Item = S>,
) -> Result<Vec<String>, EllipsisError> {
    let mut all = Vec::new();
    for argument in arguments {
        all.extend(expand(argument.as_ref())?);
    }
    Ok(all)
}

fn pieces(argument: &str) -> Result<Vec<Piece<'_>>, String> {
    let mut pieces = Vec::new();
    let mut rest = argument;
    while let Some(open) = rest.find(['{', '}']) {
        if rest.as_bytes()[open] == b'}' {
            return Err("there is a closing brace without an opening one".to_owned());
        }
        pieces.push(Piece::Text(&rest[..open]));
        let after = &rest[open + 1..];
        let close = after.find('}').ok_or("the closing brace is missing")?;
        pieces.push(parse_range(&after[..close])?);
        rest = &after[close + 1..];
    }
    pieces.push(Piece::Text(rest));
    Ok(pieces)
}

fn parse_range(text: &str) -> Result<Piece<'static>, String> {
    let Some((first, last)) = text.split_once("...") else {
        return Err(match text.contains("..") {
            true => format!("{{{text}}} has two dots"),
            false => format!("{{{text}}} is not a range"),
        });
    };
    let number = |end: &str| {
        let digits = !end.is_empty() && end.bytes().all(|byte| byte.is_ascii_digit());
        let parsed = digits.then(|| end.parse::<u32>().ok()).flatten();
        parsed.ok_or_else(|| format!("{end:?} in {{{text}}} is not a number"))
    };
    let range = number(first)?..=number(last)?;
    if range.is_empty() {
        return Err(format!("{{{text}}} runs backwards"));
    }
    let padded = |end: &str| if end.len() > 1 && end.starts_with('0') { end.len() } else { 0 };
    Ok(Piece::Numbers { range, width: padded(first).max(padded(last)) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expanded(argument: &str) -> Vec<String> {
        expand(argument).unwrap()
    }

    #[test]
    fn patterns_expand_as_minio_users_know_them() {
        assert_eq!(expanded("/d{1...3}"), ["/d1", "/d2", "/d3"]);
        assert_eq!(expanded("/d{09...11}/x"), ["/d09/x", "/d10/x", "/d11/x"]);
        assert_eq!(expanded("/a{1...2}/b{0...1}"), ["/a1/b0", "/a1/b1", "/a2/b0", "/a2/b1"]);
        assert_eq!(expanded("/plain"), ["/plain"]);
        assert_eq!(expanded("{0...0}"), ["0"]);
    }

    #[test]
    fn errors_name_the_argument_the_cause_and_the_way_out() {
        let cases = [
            ("/d{1..6}", "two dots"),
            ("/d{1,2}", "not a range"),
            ("/d{1...", "closing brace is missing"),
            ("/d1}", "without an opening"),
            ("/d{6...1}", "backwards"),
            ("/d{a...f}", "not a number"),
            ("/d{...}", "not a number"),
            ("/d{1...99999999999}", "not a number"),
            ("/d{1...100}{1...100}", "more than 1024"),
            ("/d{{1...2}}", "not a number"),
        ];
        for (argument, cause) in cases {
            let error = expand(argument).unwrap_err().to_string();
            assert!(error.contains(cause) && error.contains("{1...6}"), "{argument}: {error}");
            assert!(error.contains(&format!("{argument:?}")), "{error}");
        }
    }

    proptest! {
        /// The model: nested loops over the ranges, written the slow way.
        #[test]
        fn expansion_is_the_product_of_the_ranges(
            head in "[a-z/]{0,5}", middle in "[a-z/]{0,5}", tail in "[a-z/]{0,5}",
            first in 0u32..200, count in 1u32..12, other in 0u32..30, others in 1u32..12, width in 1usize..5,
        ) {
            let (last, other_last) = (first + count - 1, other + others - 1);
            let padded = format!("{first:0width$}");
            let is_padded = padded.len() > 1 && padded.starts_with('0');
            let argument = format!("{head}{{{padded}...{last}}}{middle}{{{other}...{other_last}}}{tail}");
            let mut model = Vec::new();
            for outer in first..=last {
                for inner in other..=other_last {
                    let outer = if is_padded { format!("{outer:0width$}") } else { outer.to_string() };
                    model.push(format!("{head}{outer}{middle}{inner}{tail}"));
                }
            }
            prop_assert_eq!(expand(&argument).unwrap(), model);
        }

        #[test]
        fn no_argument_panics_and_text_without_braces_stays(argument in "\\PC{0,30}") {
            let result = expand(&argument);
            if !argument.contains(['{', '}']) {
                prop_assert_eq!(result, Ok(vec![argument]));
            }
        }
    }
}
