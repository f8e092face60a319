//! XML as clients write and read it, beyond what s3s's reader and writer do.
//!
//! Requests: s3s drops CDATA sections, compares names with their prefix, and refuses character references above U+FFFF.
//! [`plain`] rewrites a document that has any of them, so that nothing is lost on the way.
//!
//! Answers: XML 1.0 has no C0 characters but tab, LF and CR, and no U+FFFE or U+FFFF, not even as references; expat,
//! libxml2 and Go's reader refuse the whole document for one. A parser reads a CR as LF. [`escape_into`] and [`legible`]
//! write `&#13;` for CR, and U+FFFD for what no parser takes, as other stores do. A listing with `encoding-type=url` has
//! the exact keys.

use bytes::Bytes;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesEnd, BytesStart, Event};
use quick_xml::{Reader, Writer};

use crate::refusal::Refusal;

/// Stands for a character that XML cannot write.
const REPLACEMENT: &str = "\u{fffd}";
const CARRIAGE_RETURN: &str = "&#13;";

/// A request's document, beside what s3s parsed of it.
#[derive(Clone, Debug)]
pub(crate) struct Document(pub Bytes);

/// Returns the refusal of a document that is not well-formed or not of its schema.
pub(crate) fn malformed() -> Refusal {
    Refusal::bad(
        "MalformedXML",
        "The XML you provided was not well-formed or did not validate against our published schema",
    )
}

/// Returns a request's document with its CDATA sections and character references as text, and its elements' names
/// without prefixes. Other documents stay as they are.
///
/// # Errors
/// MalformedXML for a document that must be rewritten and is not well-formed.
pub(crate) fn plain(document: Bytes) -> Result<Bytes, Refusal> {
    if !needs_rewriting(&document) {
        return Ok(document);
    }
    let mut reader = Reader::from_reader(&document[..]);
    let mut writer = Writer::new(Vec::with_capacity(document.len()));
    loop {
        let event = reader.read_event().map_err(|_| malformed())?;
        let written = match event {
            Event::Eof => break,
            Event::Start(start) => Event::Start(without_prefix(&start)?),
            Event::Empty(start) => Event::Empty(without_prefix(&start)?),
            Event::End(end) => Event::End(BytesEnd::new(name_of(end.local_name().as_ref())?)),
            Event::CData(text) => Event::Text(text.escape().map_err(|_| malformed())?),
            Event::GeneralRef(reference) => {
                let name = std::str::from_utf8(&reference).map_err(|_| malformed())?;
                let text = resolve(name).ok_or_else(malformed)?;
                Event::Text(quick_xml::events::BytesText::new(&text).into_owned())
            }
            // Says nothing that a document of S3 needs.
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => continue,
            text @ Event::Text(_) => text,
        };
        writer.write_event(written).map_err(|_| malformed())?;
    }
    Ok(writer.into_inner().into())
}

fn needs_rewriting(document: &[u8]) -> bool {
    let text = document.strip_prefix(b"\xef\xbb\xbf").unwrap_or(document);
    // Policies and batches are JSON.
    if text.trim_ascii_start().first() != Some(&b'<') {
        return false;
    }
    let has = |text: &[u8]| memchr::memmem::find(document, text).is_some();
    has(b"<![CDATA[") || has(b"&#") || has(b"xmlns:")
}

fn name_of(name: &[u8]) -> Result<String, Refusal> {
    std::str::from_utf8(name).map(str::to_owned).map_err(|_| malformed())
}

/// Returns an element without the prefix of its name. Its attributes stay: `xsi:type` is read with its prefix.
fn without_prefix(start: &BytesStart<'_>) -> Result<BytesStart<'static>, Refusal> {
    let mut plain = BytesStart::new(name_of(start.local_name().as_ref())?);
    for attribute in start.attributes() {
        plain.push_attribute(attribute.map_err(|_| malformed())?);
    }
    Ok(plain)
}

/// Returns the text of a reference, as `amp` or `#x1F600`; `None` for an unknown one.
fn resolve(name: &str) -> Option<String> {
    let Some(number) = name.strip_prefix('#') else { return resolve_xml_entity(name).map(str::to_owned) };
    let code = match number.strip_prefix('x') {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => number.parse().ok()?,
    };
    // Keys may have characters that XML does not: SDKs write them as references in DeleteObjects.
    char::from_u32(code).map(String::from)
}

/// Appends `text` with XML's special characters escaped, and those that XML cannot write replaced.
pub(crate) fn escape_into(xml: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '&' => xml.push_str("&amp;"),
            '"' => xml.push_str("&quot;"),
            '\r' => xml.push_str(CARRIAGE_RETURN),
            '\u{fffe}' | '\u{ffff}' => xml.push_str(REPLACEMENT),
            '\t' | '\n' | ' '.. => xml.push(character),
            _ => xml.push_str(REPLACEMENT),
        }
    }
}

/// Returns an answer's document, which is escaped already, so that every parser reads it.
pub(crate) fn legible(document: Bytes) -> Bytes {
    // U+FFFE and U+FFFF are EF BF BE and EF BF BF.
    let is_fine = |at: usize| match document[at] {
        b'\t' | b'\n' => true,
        0x00..=0x1f => false,
        0xbe | 0xbf => at < 2 || document[at - 2..at] != [0xef, 0xbf],
        _ => true,
    };
    if (0..document.len()).all(is_fine) {
        return document;
    }
    let mut legible = Vec::with_capacity(document.len() + 64);
    for at in 0..document.len() {
        match document[at] {
            byte if is_fine(at) => legible.push(byte),
            b'\r' => legible.extend(CARRIAGE_RETURN.as_bytes()),
            // The first two bytes are those of U+FFFD.
            0xbe | 0xbf => legible.push(0xbd),
            _ => legible.extend(REPLACEMENT.as_bytes()),
        }
    }
    legible.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rewritten(document: &str) -> Result<String, &'static str> {
        let plain = plain(Bytes::copy_from_slice(document.as_bytes())).map_err(|refusal| refusal.code)?;
        Ok(String::from_utf8(plain.to_vec()).unwrap())
    }

    #[test]
    fn sections_references_and_prefixes_become_plain_text_and_names() {
        for (document, plain) in [
            ("<a><b>x</b></a>", "<a><b>x</b></a>"),
            ("<V><![CDATA[v&w]]></V>", "<V>v&amp;w</V>"),
            ("<V>a<![CDATA[<b>]]>c</V>", "<V>a&lt;b&gt;c</V>"),
            ("<K>&#128512;&#x1F600;&#1;&amp;</K>", "<K>\u{1f600}\u{1f600}\u{1}&amp;</K>"),
            (
                "<s:D xmlns:s='u'><s:O a=\"1\"><s:K>k</s:K></s:O><s:E/></s:D>",
                "<D xmlns:s=\"u\"><O a=\"1\"><K>k</K></O><E/></D>",
            ),
            (
                "<G xmlns:xsi=\"u\" xsi:type=\"Group\"><ID>1</ID></G>",
                "<G xmlns:xsi=\"u\" xsi:type=\"Group\"><ID>1</ID></G>",
            ),
        ] {
            assert_eq!(rewritten(document).as_deref(), Ok(plain), "{document}");
        }
        for broken in ["<a><![CDATA[x", "<a>&#xD800;</a>", "<a>&#1;&nbsp;</a>", "<a><![CDATA[x]]></b>"] {
            assert_eq!(rewritten(broken), Err("MalformedXML"), "{broken}");
        }
    }

    #[test]
    fn an_answer_has_no_character_that_a_parser_refuses_or_changes() {
        let document = "<K>a\rb\u{1}c\u{fffe}\u{ffff}d\te\nf\u{7f}\u{bf}</K>";
        let plain = "<K>a&#13;b\u{fffd}c\u{fffd}\u{fffd}d\te\nf\u{7f}\u{bf}</K>";
        assert_eq!(legible(Bytes::from(document)), plain);
        let mut xml = String::new();
        escape_into(&mut xml, "a\rb\u{1}<c\u{fffe}\u{ffff}\t\n");
        assert_eq!(xml, "a&#13;b\u{fffd}&lt;c\u{fffd}\u{fffd}\t\n");
    }

    proptest! {
        #[test]
        fn legible_answers_stay_utf8_and_say_what_escaping_says(text: String) {
            let mut escaped = String::new();
            escape_into(&mut escaped, &text);
            prop_assert_eq!(&legible(Bytes::from(escaped.clone())), &escaped);
            let legible = legible(Bytes::from(text.clone()));
            let legible = std::str::from_utf8(&legible).unwrap();
            let has_any = legible.contains(['\r', '\u{1}', '\u{fffe}', '\u{ffff}']);
            prop_assert!(!has_any);
        }

        #[test]
        fn no_document_panics(text in "[<>/!\\[\\]CDAT&#x0-9;a:s\u{fffe}\\r ]{0,60}") {
            let _ = plain(Bytes::from(text));
        }
    }
}
