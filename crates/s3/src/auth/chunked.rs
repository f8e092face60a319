//! Decodes bodies in aws-chunked encoding. It buffers no more than one line: a chunk's head or a trailer.
//!
//! ```text
//! chunk:    <size in hex>[;chunk-signature=<64 hex>]\r\n <data> \r\n
//! last:     0[;chunk-signature=<64 hex>]\r\n [trailers] \r\n
//! trailer:  <name>:<value>\r\n …  [x-amz-trailer-signature:<64 hex>\r\n]
//! ```
//!
//! Data is passed on while its chunk's hash is still being computed; a bad signature is an error at the end of the
//! chunk. A receiver must therefore commit the data only after [`ChunkDecoder::finish`]. The decoded length must be
//! exactly what `x-amz-decoded-content-length` announced.

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::canonical::{Scope, hmac};

/// Maximum length of a chunk's head in bytes: size, signature, line end.
const MAX_HEAD_BYTES: usize = 128;
/// Maximum length of all trailers together in bytes.
const MAX_TRAILER_BYTES: usize = 4 << 10;
const EMPTY_HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Why a chunked body is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChunkError {
    #[error("the signature of a chunk or of the trailer does not match")]
    Signature,
    #[error("the aws-chunked framing is broken: {0}")]
    Framing(&'static str),
    #[error("the body has {got} bytes, x-amz-decoded-content-length announced {announced}")]
    Length { got: u64, announced: u64 },
    #[error("the trailers are malformed: {0}")]
    Trailer(&'static str),
    #[error("the trailer {0} was announced and did not come")]
    MissingTrailer(String),
    #[error("the body ended before its last chunk")]
    Truncated,
}

/// Computes the signatures of chunks, each over the previous one.
pub(crate) struct ChunkSigner {
    key: Zeroizing<[u8; 32]>,
    prefix: String,
    previous: String,
}

impl ChunkSigner {
    /// Creates a signer. `seed` is the request's own signature.
    pub fn new(key: Zeroizing<[u8; 32]>, amz_date: &str, scope: &Scope, seed: String) -> Self {
        Self { key, prefix: format!("{amz_date}\n{}", scope.text()), previous: seed }
    }

    fn check(&mut self, text: &str, claimed: &[u8]) -> Result<(), ChunkError> {
        let signature = hex::encode(hmac(&*self.key, text.as_bytes()));
        match bool::from(signature.as_bytes().ct_eq(claimed)) {
            true => {
                self.previous = signature;
                Ok(())
            }
            false => Err(ChunkError::Signature),
        }
    }

    fn check_chunk(&mut self, hash: [u8; 32], claimed: &[u8]) -> Result<(), ChunkError> {
        let (prefix, previous, hash) = (&self.prefix, &self.previous, hex::encode(hash));
        let text = format!("AWS4-HMAC-SHA256-PAYLOAD\n{prefix}\n{previous}\n{EMPTY_HASH}\n{hash}");
        self.check(&text, claimed)
    }

    fn check_trailer(&mut self, lines: &str, claimed: &[u8]) -> Result<(), ChunkError> {
        let hash = hex::encode(Sha256::digest(lines));
        let text = format!("AWS4-HMAC-SHA256-TRAILER\n{}\n{}\n{hash}", self.prefix, self.previous);
        self.check(&text, claimed)
    }
}

/// Decodes one body: call `ChunkDecoder::decode` with what arrives, then [`ChunkDecoder::finish`].
pub(crate) struct ChunkDecoder {
    signer: Option<Box<ChunkSigner>>,
    /// Names of the announced trailers, in lower case.
    announced_trailers: Vec<String>,
    announced_len: u64,
    decoded: u64,
    state: State,
    line: Vec<u8>,
    hasher: Sha256,
    claimed: Vec<u8>,
    trailers: HeaderMap,
    trailer_lines: String,
    trailer_signature: Option<Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    Data { left: u64 },
    DataEnd,
    Trailers { bytes: usize },
    Done,
}

impl ChunkDecoder {
    /// Creates a decoder for a body of `announced_len` decoded bytes. With `signer`, every chunk must be signed, and so
    /// must the trailers.
    pub fn new(
        signer: Option<Box<ChunkSigner>>,
        announced_len: u64,
        announced_trailers: Vec<String>,
    ) -> Self {
        Self {
            signer,
            announced_trailers,
            announced_len,
            decoded: 0,
            state: State::Head,
            line: Vec::new(),
            hasher: Sha256::new(),
            claimed: Vec::new(),
            trailers: HeaderMap::new(),
            trailer_lines: String::new(),
            trailer_signature: None,
        }
    }

    /// Consumes `input` up to the next piece of data, which it returns; `None` when `input` is used up.
    pub fn decode(&mut self, input: &mut Bytes) -> Result<Option<Bytes>, ChunkError> {
        while !input.is_empty() {
            match self.state {
                State::Data { left } => {
                    let len = left.min(input.len() as u64);
                    let data = input.split_to(len as usize);
                    self.take_data(&data, left - len)?;
                    return Ok(Some(data));
                }
                State::Done => return Err(ChunkError::Framing("bytes follow the last chunk")),
                State::Head | State::DataEnd | State::Trailers { .. } => self.take_line(input)?,
            }
        }
        Ok(None)
    }

    /// Returns the trailers, once the body has ended.
    pub fn finish(&mut self) -> Result<HeaderMap, ChunkError> {
        match self.state {
            State::Done => {}
            // Some clients without trailers omit the empty line after the last chunk.
            State::Trailers { bytes: 0 } if self.line.is_empty() && self.announced_trailers.is_empty() => {
                self.end_trailers()?;
            }
            _ => return Err(ChunkError::Truncated),
        }
        if self.decoded != self.announced_len {
            return Err(ChunkError::Length { got: self.decoded, announced: self.announced_len });
        }
        Ok(std::mem::take(&mut self.trailers))
    }

    fn take_data(&mut self, data: &Bytes, left: u64) -> Result<(), ChunkError> {
        self.decoded += data.len() as u64;
        if self.decoded > self.announced_len {
            return Err(ChunkError::Length { got: self.decoded, announced: self.announced_len });
        }
        if self.signer.is_some() {
            self.hasher.update(data);
        }
        self.state = State::Data { left };
        if left == 0 {
            self.end_chunk()?;
            self.state = State::DataEnd;
        }
        Ok(())
    }

    fn end_chunk(&mut self) -> Result<(), ChunkError> {
        match &mut self.signer {
            Some(signer) => signer.check_chunk(self.hasher.finalize_reset().into(), &self.claimed),
            None => Ok(()),
        }
    }

    /// Collects one line from `input` and processes it when it is complete.
    fn take_line(&mut self, input: &mut Bytes) -> Result<(), ChunkError> {
        let end = input.iter().position(|&byte| byte == b'\n');
        let consumed = end.map_or(input.len(), |end| end + 1);
        let limit = match self.state {
            State::Trailers { bytes } => MAX_TRAILER_BYTES.saturating_sub(bytes),
            _ => MAX_HEAD_BYTES,
        };
        if self.line.len() + consumed > limit {
            return Err(ChunkError::Framing("a line is too long"));
        }
        self.line.extend_from_slice(&input[..consumed]);
        input.advance(consumed);
        if end.is_none() {
            return Ok(());
        }
        let line = std::mem::take(&mut self.line);
        let text =
            line.strip_suffix(b"\r\n").ok_or(ChunkError::Framing("a line does not end with CR and LF"))?;
        match self.state {
            State::DataEnd if text.is_empty() => self.state = State::Head,
            State::DataEnd => return Err(ChunkError::Framing("a chunk is longer than its size says")),
            State::Trailers { .. } if text.is_empty() => self.end_trailers()?,
            State::Trailers { bytes } => {
                self.take_trailer(text)?;
                self.state = State::Trailers { bytes: bytes + line.len() };
            }
            _ => self.take_head(text)?,
        }
        Ok(())
    }

    fn take_head(&mut self, text: &[u8]) -> Result<(), ChunkError> {
        let text =
            std::str::from_utf8(text).map_err(|_| ChunkError::Framing("a chunk's head is not text"))?;
        let (size, signature) = match text.split_once(';') {
            Some((size, extension)) => (size, extension.strip_prefix("chunk-signature=")),
            None => (text, None),
        };
        let is_size = (1..=16).contains(&size.len()) && size.bytes().all(|byte| byte.is_ascii_hexdigit());
        let size = is_size.then(|| u64::from_str_radix(size, 16).ok()).flatten();
        let size = size.ok_or(ChunkError::Framing("a chunk's size is not hexadecimal"))?;
        if self.signer.is_some() {
            let signature = signature.filter(|signature| is_signature(signature));
            let signature = signature.ok_or(ChunkError::Framing("a chunk is not signed"))?;
            self.claimed = signature.as_bytes().to_vec();
        }
        if size > self.announced_len - self.decoded {
            let got = self.decoded.saturating_add(size);
            return Err(ChunkError::Length { got, announced: self.announced_len });
        }
        self.state = State::Data { left: size };
        if size == 0 {
            self.end_chunk()?;
            self.state = State::Trailers { bytes: 0 };
        }
        Ok(())
    }

    fn take_trailer(&mut self, line: &[u8]) -> Result<(), ChunkError> {
        if line.contains(&b'\r') {
            return Err(ChunkError::Framing("a line ends with CR alone"));
        }
        let broken = || ChunkError::Trailer("a trailer is not `name:value`");
        let line = std::str::from_utf8(line).map_err(|_| broken())?;
        let (name, value) = line.split_once(':').ok_or_else(broken)?;
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
        if name == "x-amz-trailer-signature" {
            if !is_signature(value) {
                return Err(ChunkError::Framing(
                    "the signature of the trailers is not 64 hexadecimal digits",
                ));
            }
            self.trailer_signature = Some(value.as_bytes().to_vec());
            return Ok(());
        }
        if !self.announced_trailers.contains(&name) {
            return Err(self.unannounced());
        }
        let header = HeaderName::try_from(&name).map_err(|_| broken())?;
        self.trailer_lines.extend([&name, ":", value, "\n"]);
        if self.trailers.insert(header, HeaderValue::from_str(value).map_err(|_| broken())?).is_some() {
            return Err(ChunkError::Trailer("a trailer came twice"));
        }
        Ok(())
    }

    /// Returns why a trailer that was not announced is refused: if all that were have come, a signed body must go on with
    /// their signature.
    fn unannounced(&self) -> ChunkError {
        let is_complete = !self.announced_trailers.is_empty()
            && self.announced_trailers.iter().all(|name| self.trailers.contains_key(name.as_str()));
        match is_complete && self.signer.is_some() {
            true => ChunkError::Framing("the trailers are not followed by their signature"),
            false => ChunkError::Trailer("a trailer was not announced in x-amz-trailer"),
        }
    }

    fn end_trailers(&mut self) -> Result<(), ChunkError> {
        let missing = self.announced_trailers.iter().find(|name| !self.trailers.contains_key(name.as_str()));
        if let Some(name) = missing {
            return Err(ChunkError::MissingTrailer(name.clone()));
        }
        if let (Some(signer), false) = (&mut self.signer, self.announced_trailers.is_empty()) {
            let claimed = self.trailer_signature.as_deref().ok_or(ChunkError::Signature)?;
            signer.check_trailer(&self.trailer_lines, claimed)?;
        }
        self.state = State::Done;
        Ok(())
    }
}

/// Whether a text has the form of a signature.
fn is_signature(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
