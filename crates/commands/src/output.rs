//! What commands print: names that clients chose and texts that another server sent, which no terminal may obey.
//!
//! The macros here replace those of [`striate_runtime::output`], and so the standard library's: they print through them,
//! and escape control characters. [`printable`] also escapes line ends, for a name within a line.

use std::fmt;

/// Escapes the characters of a name that a terminal would obey, or that would reorder or end the line it stands in.
pub fn printable(name: &str) -> String {
    let mut shown = String::with_capacity(name.len());
    name.chars().for_each(|character| push_printable(&mut shown, character));
    shown
}

fn push_printable(shown: &mut String, character: char) {
    // Besides control characters: separators of lines and paragraphs, and what changes the direction of writing.
    let reorders =
        matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}');
    match character.is_control() || reorders {
        true => shown.extend(character.escape_default()),
        false => shown.push(character),
    }
}

/// Formats a text of several lines, with its control characters escaped.
#[doc(hidden)]
pub fn printable_lines(text: fmt::Arguments<'_>) -> String {
    let text = text.to_string();
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => shown.push(character),
            character => push_printable(&mut shown, character),
        }
    }
    shown
}

/// As [`striate_runtime::print!`], with control characters escaped.
#[macro_export]
macro_rules! print {
    ($($text:tt)*) => {
        ::striate_runtime::print!("{}", $crate::output::printable_lines(::std::format_args!($($text)*)))
    };
}

/// As [`striate_runtime::println!`], with control characters escaped.
#[macro_export]
macro_rules! println {
    () => {
        ::striate_runtime::println!()
    };
    ($($text:tt)*) => {
        ::striate_runtime::println!("{}", $crate::output::printable_lines(::std::format_args!($($text)*)))
    };
}

/// As [`striate_runtime::eprintln!`], with control characters escaped.
#[macro_export]
macro_rules! eprintln {
    ($($text:tt)*) => {
        ::striate_runtime::eprintln!("{}", $crate::output::printable_lines(::std::format_args!($($text)*)))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_moves_the_cursor_and_no_text_does() {
        assert_eq!(printable("a\u{1b}[2Jb\r\nc"), "a\\u{1b}[2Jb\\r\\nc");
        assert_eq!(printable("x\u{9b}31m\u{202e}gnp.exe"), "x\\u{9b}31m\\u{202e}gnp.exe");
        assert_eq!(printable("größe ✓ \\ \"quoted\""), "größe ✓ \\ \"quoted\"");
        assert_eq!(printable_lines(format_args!("{}\tb\n{}\n", "a", "\u{7}")), "a\tb\n\\u{7}\n");
    }
}
