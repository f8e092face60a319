//! The little XML that an S3 client reads and writes.

use quick_xml::escape::escape;
use quick_xml::events::Event;

/// The deepest nesting that is read; S3's answers need four levels.
const MAX_DEPTH: usize = 16;

/// An element with its text and children; attributes are dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// The local name.
    pub name: String,
    /// The text in it.
    pub text: String,
    /// The elements in it.
    pub children: Vec<Element>,
}

impl Element {
    /// The document's root element.
    ///
    /// # Errors
    /// For what is no well-formed XML, or nested too deeply.
    pub fn parse(document: &str) -> Result<Self, String> {
        let mut reader = quick_xml::Reader::from_str(document);
        let mut open = vec![Self::default()];
        loop {
            match reader.read_event().map_err(|error| format!("the answer is no XML: {error}"))? {
                Event::Start(start) if open.len() <= MAX_DEPTH => {
                    let name = String::from_utf8_lossy(start.local_name().as_ref()).into_owned();
                    open.push(Self { name, ..Self::default() });
                }
                Event::Start(_) => return Err("the answer is nested too deeply".to_owned()),
                Event::Empty(empty) => {
                    let name = String::from_utf8_lossy(empty.local_name().as_ref()).into_owned();
                    let parent = open.last_mut().expect("the document is always open");
                    parent.children.push(Self { name, ..Self::default() });
                }
                Event::Text(text) => {
                    let text = text.decode().map_err(|error| error.to_string())?;
                    open.last_mut().expect("the document is always open").text.push_str(&text);
                }
                Event::GeneralRef(reference) => {
                    let character = resolve(&reference)?;
                    open.last_mut().expect("the document is always open").text.push(character);
                }
                Event::End(_) => {
                    let closed = open.pop().expect("the reader matches ends to starts");
                    open.last_mut().ok_or("an element ends twice")?.children.push(closed);
                }
                Event::Eof => break,
                _ => {}
            }
        }
        let mut document = open.pop().filter(|_| open.is_empty()).ok_or("the answer is cut short")?;
        document.children.pop().ok_or_else(|| "the answer is empty".to_owned())
    }

    /// The first child called `name`.
    pub fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }

    /// The text of the first child called `name`; empty when there is none.
    pub fn text_of(&self, name: &str) -> &str {
        self.child(name).map_or("", |child| &child.text)
    }

    /// All children called `name`.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        self.children.iter().filter(move |child| child.name == name)
    }
}

fn resolve(reference: &quick_xml::events::BytesRef<'_>) -> Result<char, String> {
    if let Some(character) = reference.resolve_char_ref().map_err(|error| error.to_string())? {
        return Ok(character);
    }
    match reference.decode().map_err(|error| error.to_string())?.as_ref() {
        "amp" => Ok('&'),
        "lt" => Ok('<'),
        "gt" => Ok('>'),
        "quot" => Ok('"'),
        "apos" => Ok('\''),
        other => Err(format!("unknown entity &{other};")),
    }
}

/// The body of CompleteMultipartUpload.
pub fn complete_upload(parts: &[(u32, String)]) -> String {
    let part = |(number, etag): &(u32, String)| {
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag></Part>", escape(etag))
    };
    let parts: String = parts.iter().map(part).collect();
    format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn answers_become_trees() {
        let text = "<?xml version=\"1.0\"?>\n<R xmlns=\"x\"><K>a&amp;b&#x20;c</K><K>d</K><E/></R>";
        let root = Element::parse(text).unwrap();
        assert_eq!(root.name, "R");
        assert_eq!(root.text_of("K"), "a&b c");
        assert_eq!(root.all("K").count(), 2);
        assert_eq!(root.text_of("E"), "");
    }

    #[test]
    fn cut_and_deep_answers_are_refused() {
        assert!(Element::parse("<a><b>").is_err());
        assert!(Element::parse("").is_err());
        assert!(Element::parse(&"<a>".repeat(1_000)).is_err());
    }

    proptest! {
        #[test]
        fn escaped_text_survives_and_nothing_panics(text in "[ -~äé]{0,40}", junk in "\\PC{0,60}") {
            let root = Element::parse(&format!("<a><b>{}</b></a>", escape(&text))).unwrap();
            prop_assert_eq!(root.text_of("b"), text);
            let _ = Element::parse(&junk);
        }
    }
}
