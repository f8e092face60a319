//! multipart/form-data (RFC 7578) as S3 forms use it: small fields, then one file, which streams.
//!
//! ```text
//! [preamble] --boundary CRLF
//!            headers CRLF CRLF value CRLF --boundary CRLF      for each field
//!            headers CRLF CRLF file  CRLF --boundary-- [rest]
//! ```
//!
//! The fields are held in memory, within [`MAX_FIELDS_BYTES`]. Anything after the file is ignored, as in S3.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use futures::Stream;
use memchr::memmem;
use s3s::StdError;
use s3s::stream::{ByteStream, RemainingLength};

use crate::address::percent_decode;
use crate::body::RequestBody;
use crate::refusal::Refusal;
use crate::trace::Trace;

/// Maximum number of bytes before the file.
pub(super) const MAX_FIELDS_BYTES: usize = 64 << 10;
/// Maximum length of a boundary in bytes, as in RFC 2046.
const MAX_BOUNDARY_BYTES: usize = 70;
/// The name of the file's field.
const FILE: &str = "file";

/// A form's fields in order, with names in lower case.
#[derive(Debug, Default)]
pub(super) struct Fields(Vec<(String, String)>);

/// A form whose file is still to be read.
pub(super) struct Form {
    pub fields: Fields,
    /// Last component of the file's name; empty if it has none.
    pub file_name: String,
    pub file: File,
}

/// Content of a part's headers.
#[derive(Debug, Default, PartialEq, Eq)]
struct PartHead {
    name: String,
    file_name: String,
}

/// The body up to the file.
struct Head<R> {
    body: RequestBody,
    /// Called with the number of bytes so far as they arrive, to reserve memory.
    reserve: R,
    buffer: BytesMut,
    /// Number of bytes taken from the buffer.
    consumed: usize,
}

/// A form's file, which streams into the store.
pub(super) struct File {
    body: RequestBody,
    /// Bytes read and not yet searched.
    held: Bytes,
    /// CRLF, two hyphens and the boundary.
    delimiter: memmem::Finder<'static>,
    state: State,
    size: u64,
    /// Minimum and maximum size that the policy allows.
    sizes: (u64, u64),
    trace: Arc<Trace>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    File,
    /// Behind the file, with the number of bytes ignored so far.
    Rest(usize),
    Ended,
}

pub(super) fn malformed(reason: &str) -> Refusal {
    let message = format!("The body of your POST request is not well-formed multipart/form-data: {reason}.");
    Refusal::bad("MalformedPOSTRequest", message)
}

fn too_large() -> Refusal {
    let message = format!(
        "Your POST request fields preceding the upload file were too large: {MAX_FIELDS_BYTES} bytes are allowed."
    );
    Refusal::bad("MaxPostPreDataLengthExceededError", message)
}

impl Fields {
    /// Returns the value of a field; the first one if it is repeated.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(field_name, _)| *field_name == name).map(|(_, value)| value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Replaces a field's value.
    pub fn set(&mut self, name: &str, value: String) {
        if let Some((_, old)) = self.0.iter_mut().find(|(field_name, _)| field_name == name) {
            *old = value;
        }
    }

    /// Returns whether several fields have this name.
    pub fn is_repeated(&self, name: &str) -> bool {
        self.iter().filter(|(field_name, _)| *field_name == name).nth(1).is_some()
    }
}

#[cfg(test)]
impl From<&[(&str, &str)]> for Fields {
    fn from(fields: &[(&str, &str)]) -> Self {
        Self(fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }
}

/// Returns the boundary that a Content-Type names.
pub(super) fn boundary_of(content_type: &str) -> Result<&str, Refusal> {
    let parameters = content_type.split(';').skip(1).filter_map(|parameter| parameter.trim().split_once('='));
    let found = parameters.into_iter().find(|(name, _)| name.trim().eq_ignore_ascii_case("boundary"));
    let boundary = found.map(|(_, value)| value.trim().trim_matches('"'));
    let usable = |text: &&str| !text.is_empty() && text.len() <= MAX_BOUNDARY_BYTES;
    boundary
        .filter(usable)
        .ok_or_else(|| malformed("its Content-Type names no boundary of 1 to 70 characters"))
}

impl Form {
    /// Reads a form up to its file. `reserve` is called with the number of bytes so far as they arrive, to reserve
    /// memory.
    ///
    /// # Errors
    /// Those of `reserve`, the body's own refusal, MalformedPOSTRequest, or MaxPostPreDataLengthExceededError.
    pub async fn read(
        body: RequestBody,
        boundary: &str,
        trace: Arc<Trace>,
        reserve: impl FnMut(usize) -> Result<(), Refusal>,
    ) -> Result<Self, Refusal> {
        let delimiter = format!("\r\n--{boundary}");
        // The first delimiter has no line end of its own.
        let mut head = Head { body, reserve, buffer: BytesMut::from("\r\n"), consumed: 0 };
        let mut fields = Fields::default();
        head.until(delimiter.as_bytes()).await?;
        loop {
            head.end_line().await?;
            let part = head.part_head().await?;
            if part.name.eq_ignore_ascii_case(FILE) {
                let file = File {
                    body: head.body,
                    held: head.buffer.freeze(),
                    delimiter: memmem::Finder::new(delimiter.as_bytes()).into_owned(),
                    state: State::File,
                    size: 0,
                    sizes: (0, u64::MAX),
                    trace,
                };
                return Ok(Self { fields, file_name: part.file_name, file });
            }
            let value = head.until(delimiter.as_bytes()).await?;
            let value = String::from_utf8(value.into()).map_err(|_| malformed("a field is not UTF-8"))?;
            fields.0.push((part.name.to_ascii_lowercase(), value));
        }
    }
}

impl<R: FnMut(usize) -> Result<(), Refusal>> Head<R> {
    /// Takes the bytes before `mark`, and the mark itself.
    async fn until(&mut self, mark: &[u8]) -> Result<Bytes, Refusal> {
        let mut searched = 0;
        loop {
            if let Some(at) = memmem::find(&self.buffer[searched..], mark) {
                let before = self.buffer.split_to(searched + at).freeze();
                self.buffer.advance(mark.len());
                self.consumed += before.len() + mark.len();
                return if self.consumed > MAX_FIELDS_BYTES { Err(too_large()) } else { Ok(before) };
            }
            searched = self.buffer.len().saturating_sub(mark.len() - 1);
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Result<(), Refusal> {
        if self.consumed + self.buffer.len() > MAX_FIELDS_BYTES {
            return Err(too_large());
        }
        match self.body.next().await? {
            Some(data) => {
                (self.reserve)(self.consumed + self.buffer.len() + data.len())?;
                self.buffer.extend_from_slice(&data);
            }
            None => return Err(malformed("it ends before its file")),
        }
        Ok(())
    }

    /// Takes the end of a delimiter's line, unless it is the last delimiter.
    async fn end_line(&mut self) -> Result<(), Refusal> {
        match &self.until(b"\r\n").await?[..] {
            padding if padding.iter().all(|byte| matches!(byte, b' ' | b'\t')) => Ok(()),
            b"--" => {
                Err(Refusal::bad("InvalidArgument", "POST requires exactly one file upload per request."))
            }
            _ => Err(malformed("a boundary is followed by other bytes")),
        }
    }

    async fn part_head(&mut self) -> Result<PartHead, Refusal> {
        let mut part = None;
        loop {
            let line = self.until(b"\r\n").await?;
            if line.is_empty() {
                return part.ok_or_else(|| malformed("a part has no Content-Disposition with a name"));
            }
            let line = std::str::from_utf8(&line).map_err(|_| malformed("a part's header is not UTF-8"))?;
            match line.split_once(':') {
                Some((name, value)) if name.trim().eq_ignore_ascii_case("content-disposition") => {
                    part = parse_disposition(value);
                }
                _ => {}
            }
        }
    }
}

/// Parses `form-data; name="key"; filename="a.txt"`
fn parse_disposition(text: &str) -> Option<PartHead> {
    let (kind, mut rest) = text.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("form-data") {
        return None;
    }
    let (mut name, mut file_name, mut encoded) = (None, None, None);
    while let Some((parameter, after)) = rest.split_once('=') {
        let (value, next) = parse_value(after.trim_start());
        match parameter.trim().to_ascii_lowercase().as_str() {
            "name" => name = Some(value),
            "filename" => file_name = Some(value),
            "filename*" => encoded = decode_extended(&value),
            _ => {}
        }
        rest = next.trim_start().strip_prefix(';').unwrap_or("");
    }
    let file_name = encoded.or(file_name).unwrap_or_default();
    // Some browsers send the whole path.
    let file_name = file_name.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
    Some(PartHead { name: name?, file_name })
}

/// Parses a parameter's value, quoted or not; returns it and what follows it. In a quoted value only a quote can be
/// escaped: any other backslash may belong to a path.
fn parse_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        return (text[..end].trim_end().to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut rest = quoted;
    while let Some(at) = rest.find('"') {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        match before.strip_suffix('\\') {
            Some(before) => value.extend([before, "\""]),
            None => {
                value.push_str(before);
                return (value, after);
            }
        }
        rest = after;
    }
    value.push_str(rest);
    (value, "")
}

/// Decodes `UTF-8''na%C3%AFve`
fn decode_extended(text: &str) -> Option<String> {
    let (charset, rest) = text.split_once('\'')?;
    let (_language, value) = rest.split_once('\'')?;
    charset.eq_ignore_ascii_case("utf-8").then(|| percent_decode(value)).flatten()
}

impl File {
    /// Accepts only a file of `least` to `most` bytes.
    pub fn bound(&mut self, (least, most): (u64, u64)) {
        self.sizes = (least, most);
    }

    fn refuse(&mut self, refusal: Refusal) -> Poll<Option<Result<Bytes, StdError>>> {
        self.state = State::Ended;
        let error = StdError::from(refusal.message.clone());
        self.trace.set_body_refusal(refusal);
        Poll::Ready(Some(Err(error)))
    }

    /// Takes the next piece of the file from the bytes held; `None` when more must be read.
    fn take_piece(&mut self) -> Option<Bytes> {
        if let Some(at) = self.delimiter.find(&self.held) {
            let piece = self.held.split_to(at);
            self.held.clear();
            self.state = State::Rest(0);
            return Some(piece);
        }
        let piece = self.held.split_to(self.held.len() - begun(&self.held, self.delimiter.needle()));
        (!piece.is_empty()).then_some(piece)
    }

    fn count(&mut self, piece: Bytes) -> Poll<Option<Result<Bytes, StdError>>> {
        self.size += piece.len() as u64;
        if self.size > self.sizes.1 {
            let message = "Your proposed upload exceeds the maximum allowed size of its policy.";
            return self.refuse(Refusal::bad("EntityTooLarge", message));
        }
        Poll::Ready(Some(Ok(piece)))
    }

    /// Handles the end of the body.
    fn end(&mut self) -> Poll<Option<Result<Bytes, StdError>>> {
        if self.state == State::File {
            let message = "The form ended before the boundary behind its file.";
            return self.refuse(Refusal::bad("IncompleteBody", message));
        }
        if self.size < self.sizes.0 {
            let message = "Your proposed upload is smaller than the minimum allowed size of its policy.";
            return self.refuse(Refusal::bad("EntityTooSmall", message));
        }
        self.state = State::Ended;
        Poll::Ready(None)
    }
}

/// Returns how many bytes at the end of `text` may be the beginning of `delimiter`.
fn begun(text: &[u8], delimiter: &[u8]) -> usize {
    let longest = text.len().min(delimiter.len() - 1);
    (1..=longest).rev().find(|&len| text.ends_with(&delimiter[..len])).unwrap_or(0)
}

impl Stream for File {
    type Item = Result<Bytes, StdError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let file = self.get_mut();
        loop {
            if file.state == State::Ended {
                return Poll::Ready(None);
            }
            if file.state == State::File
                && let Some(piece) = file.take_piece()
                && !piece.is_empty()
            {
                return file.count(piece);
            }
            let data = match ready!(file.body.poll_data(cx)) {
                None => return file.end(),
                Some(Err(error)) => {
                    file.state = State::Ended;
                    return Poll::Ready(Some(Err(error.into())));
                }
                Some(Ok(data)) => data,
            };
            match &mut file.state {
                State::Rest(ignored) if *ignored + data.len() > MAX_FIELDS_BYTES => {
                    return file.refuse(malformed("the file must be the last field"));
                }
                State::Rest(ignored) => *ignored += data.len(),
                _ if file.held.is_empty() => file.held = data,
                _ => file.held = [&file.held[..], &data].concat().into(),
            }
        }
    }
}

impl ByteStream for File {
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::unknown()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dispositions_name_fields_and_files() {
        let of = |text: &str| parse_disposition(text).map(|part| (part.name, part.file_name));
        let pair = |name: &str, file: &str| Some((name.to_owned(), file.to_owned()));
        assert_eq!(of(r#" form-data; name="key""#), pair("key", ""));
        assert_eq!(of(r#"form-data; filename="a;b=\"c\".txt"; name=file"#), pair("file", "a;b=\"c\".txt"));
        assert_eq!(of(r#"form-data; name="file"; filename="C:\dir\ü.txt""#), pair("file", "ü.txt"));
        assert_eq!(of(r#"form-data; name="file"; filename="a/b/../c""#), pair("file", "c"));
        let both = r#"form-data; name="file"; filename="x"; filename*=UTF-8''na%C3%AFve"#;
        assert_eq!(of(both), pair("file", "naïve"));
        assert_eq!(of("attachment; name=\"key\""), None);
        assert_eq!(of("form-data; filename=\"key\""), None);
    }

    #[test]
    fn boundaries_are_quoted_or_not_and_bounded() {
        assert_eq!(boundary_of("multipart/form-data; charset=utf-8; Boundary=\"a b\""), Ok("a b"));
        assert_eq!(boundary_of("multipart/form-data;boundary=abc"), Ok("abc"));
        for wrong in [
            "multipart/form-data",
            "multipart/form-data; boundary=",
            &format!("m; boundary={}", "b".repeat(71)),
        ] {
            assert_eq!(boundary_of(wrong).unwrap_err().code, "MalformedPOSTRequest");
        }
    }

    proptest! {
        #[test]
        fn no_disposition_panics(text in "form-data;[ a-z=\"\\\\;*'%é]{0,40}") {
            let _ = parse_disposition(&text);
        }

        /// Against the definition: the longest suffix of the text that is a prefix of the delimiter.
        #[test]
        fn a_delimiter_that_has_begun_is_found(text in "[-\r\nx]{0,12}") {
            let delimiter = b"\r\n--x";
            let expected = (0..delimiter.len()).rev().find(|&len| text.as_bytes().ends_with(&delimiter[..len]));
            prop_assert_eq!(Some(begun(text.as_bytes(), delimiter)), expected);
        }
    }
}
