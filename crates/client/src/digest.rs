//! Digests of a body: the MD5 that becomes the ETag, and S3's additional checksums. They are computed as the bytes
//! arrive and compared with those that the sender announced in headers or trailers.
//!
//! Also digests of multipart objects: checksums of checksums (COMPOSITE), and CRCs of a whole from the CRCs of its
//! parts (FULL_OBJECT). SHA-1 and SHA-256 cannot be combined and CRC-64/NVME is never composite, as in S3.

use crc_fast::CrcAlgorithm;
use md5::{Digest as _, Md5};
use sha1::Sha1;
use sha2::Sha256;
use striate_meta::records::{Checksum, checksum::Algorithm};

use crate::error::ClientError;
use crate::object::{EtagSource, ExpectedDigests};

/// The checksum of an object or a part that is sent with none, as in S3. It takes a small part of the time of the MD5
/// that is computed in the same pass.
pub const DEFAULT_CHECKSUM: Algorithm = Algorithm::Crc64nvme;

/// Running state of an algorithm.
enum State {
    Crc(crc_fast::Digest),
    Sha1(Sha1),
    Sha256(Sha256),
}

/// One checksum of bytes as they arrive.
pub struct RunningChecksum {
    algorithm: Algorithm,
    state: State,
}

/// Digests of a body that is still arriving.
pub(crate) struct Digests {
    /// `None` if no MD5 is needed.
    md5: Option<Md5>,
    running: Vec<RunningChecksum>,
    expected: ExpectedDigests,
}

/// Digests of a whole body, verified against the announced ones.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BodyDigests {
    /// `None` if the ETag is not made from it.
    pub(crate) md5: Option<[u8; 16]>,
    pub(crate) checksums: Vec<Checksum>,
}

/// Returns the name of an algorithm, as S3 writes it.
pub(crate) fn algorithm_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::None => "no algorithm",
        Algorithm::Crc32 => "CRC32",
        Algorithm::Crc32c => "CRC32C",
        Algorithm::Crc64nvme => "CRC64NVME",
        Algorithm::Sha1 => "SHA1",
        Algorithm::Sha256 => "SHA256",
    }
}

/// Returns the CRC and its width in bytes; `None` for hashes.
fn crc_of(algorithm: Algorithm) -> Option<(CrcAlgorithm, usize)> {
    match algorithm {
        Algorithm::Crc32 => Some((CrcAlgorithm::Crc32IsoHdlc, 4)),
        Algorithm::Crc32c => Some((CrcAlgorithm::Crc32Iscsi, 4)),
        Algorithm::Crc64nvme => Some((CrcAlgorithm::Crc64Nvme, 8)),
        Algorithm::None | Algorithm::Sha1 | Algorithm::Sha256 => None,
    }
}

/// Returns the length of a checksum's value in bytes.
fn value_len(algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::None => 0,
        Algorithm::Crc32 | Algorithm::Crc32c => 4,
        Algorithm::Crc64nvme => 8,
        Algorithm::Sha1 => 20,
        Algorithm::Sha256 => 32,
    }
}

fn crc_value(crc: u64, width: usize) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(&crc.to_be_bytes()[8 - width..])
}

fn crc_number(value: &[u8]) -> u64 {
    value.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

impl RunningChecksum {
    /// Starts a checksum of no bytes; `None` if there is no algorithm.
    pub fn new(algorithm: Algorithm) -> Option<Self> {
        let state = match (crc_of(algorithm), algorithm) {
            (Some((crc, _)), _) => State::Crc(crc_fast::Digest::new(crc)),
            (None, Algorithm::Sha1) => State::Sha1(Sha1::new()),
            (None, Algorithm::Sha256) => State::Sha256(Sha256::new()),
            _ => return None,
        };
        Some(Self { algorithm, state })
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.state {
            State::Crc(digest) => digest.update(bytes),
            State::Sha1(digest) => digest.update(bytes),
            State::Sha256(digest) => digest.update(bytes),
        }
    }

    /// Returns the checksum of all bytes.
    pub fn finish(self) -> Checksum {
        let value = match self.state {
            State::Crc(digest) => crc_value(digest.finalize(), value_len(self.algorithm)),
            State::Sha1(digest) => bytes::Bytes::copy_from_slice(&digest.finalize()),
            State::Sha256(digest) => bytes::Bytes::copy_from_slice(&digest.finalize()),
        };
        Checksum { algorithm: self.algorithm.into(), value, composite: false }
    }
}

impl Digests {
    /// Starts the digests of an empty body. `expected` says what to compute besides MD5 and what to compare with.
    ///
    /// # Errors
    /// [`ClientError::InvalidRequest`] for a checksum whose length does not fit its algorithm.
    pub(crate) fn new(expected: ExpectedDigests) -> Result<Self, ClientError> {
        let named = expected.checksums.iter().map(Checksum::algorithm);
        let mut running: Vec<RunningChecksum> = Vec::new();
        for algorithm in named.chain(expected.compute.iter().copied()) {
            if running.iter().all(|other| other.algorithm != algorithm) {
                running.extend(RunningChecksum::new(algorithm));
            }
        }
        for checksum in &expected.checksums {
            check_form(checksum)?;
        }
        let wants_md5 = expected.etag == EtagSource::Md5 || expected.md5.is_some();
        Ok(Self { md5: wants_md5.then(Md5::new), running, expected })
    }

    /// Adds the next bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        if let Some(md5) = &mut self.md5 {
            md5.update(bytes);
        }
        self.running.iter_mut().for_each(|running| running.update(bytes));
    }

    /// Returns the digests of the whole, if they match those announced in headers and `trailing`.
    ///
    /// # Errors
    /// [`ClientError::BadDigest`] naming the digest that differs, [`ClientError::InvalidRequest`] for a trailing
    /// checksum that is malformed or was not announced.
    pub(crate) fn finish(self, trailing: &[Checksum]) -> Result<BodyDigests, ClientError> {
        let md5: Option<[u8; 16]> = self.md5.map(|md5| md5.finalize().into());
        if self.expected.md5.is_some() && self.expected.md5 != md5 {
            return Err(ClientError::BadDigest("Content-MD5".to_owned()));
        }
        let checksums: Vec<Checksum> = self.running.into_iter().map(RunningChecksum::finish).collect();
        for checksum in trailing {
            check_form(checksum)?;
        }
        for expected in self.expected.checksums.iter().chain(trailing) {
            verify(expected, &checksums)?;
        }
        Ok(BodyDigests { md5, checksums })
    }
}

fn check_form(checksum: &Checksum) -> Result<(), ClientError> {
    let algorithm = checksum.algorithm();
    let (len, expected_len) = (checksum.value.len(), value_len(algorithm));
    if algorithm == Algorithm::None || len != expected_len {
        let name = algorithm_name(algorithm);
        return Err(ClientError::InvalidRequest(format!(
            "a {name} checksum has {expected_len} bytes, this one has {len}"
        )));
    }
    Ok(())
}

impl BodyDigests {
    /// Returns the ETag of a new version.
    pub(crate) fn etag(&self, version: &[u8]) -> String {
        match self.md5 {
            Some(md5) => hex::encode(md5),
            None => format!("{}-0", hex::encode(version)),
        }
    }
}

/// Compares `expected` with the computed checksum of its algorithm.
fn verify(expected: &Checksum, computed: &[Checksum]) -> Result<(), ClientError> {
    let name = algorithm_name(expected.algorithm());
    match computed.iter().find(|checksum| checksum.algorithm == expected.algorithm) {
        Some(checksum) if checksum.value == expected.value => Ok(()),
        Some(_) => Err(ClientError::BadDigest(name.to_owned())),
        None => Err(ClientError::InvalidRequest(format!("a {name} checksum came that was not announced"))),
    }
}

/// Digests of a multipart object, computed from those of its parts in order.
pub(crate) struct MultipartDigests {
    md5s: Md5,
    parts: usize,
    whole: Option<MultipartChecksum>,
    /// Whether the whole has no checksum if a part lacks it.
    is_optional: bool,
}

/// The additional checksum of a multipart object under construction.
enum MultipartChecksum {
    Composite(Box<RunningChecksum>),
    Full { algorithm: Algorithm, crc: Option<u64> },
}

impl MultipartDigests {
    /// Starts the digests of an upload with `algorithm`; `full` for a FULL_OBJECT checksum.
    pub(crate) fn new(algorithm: Algorithm, full: bool) -> Self {
        let whole = match full || algorithm == Algorithm::Crc64nvme {
            true => crc_of(algorithm).map(|_| MultipartChecksum::Full { algorithm, crc: None }),
            false => {
                RunningChecksum::new(algorithm).map(|running| MultipartChecksum::Composite(Box::new(running)))
            }
        };
        Self { md5s: Md5::new(), parts: 0, whole, is_optional: false }
    }

    /// Starts the digests of an upload that promised no checksum: the default one, if all parts have it.
    pub(crate) fn with_default() -> Self {
        Self { is_optional: true, ..Self::new(DEFAULT_CHECKSUM, true) }
    }

    /// Adds the next part: its ETag, length in bytes, and checksums.
    ///
    /// # Errors
    /// A text that says what is wrong with the part.
    pub(crate) fn add(&mut self, etag: &str, len: u64, checksums: &[Checksum]) -> Result<(), String> {
        self.md5s.update(hex::decode(etag).map_err(|_| format!("its ETag {etag:?} is not an MD5"))?);
        self.parts += 1;
        let Some(whole) = &mut self.whole else { return Ok(()) };
        let algorithm = match whole {
            MultipartChecksum::Composite(running) => running.algorithm,
            MultipartChecksum::Full { algorithm, .. } => *algorithm,
        };
        let checksum = checksums.iter().find(|checksum| checksum.algorithm() == algorithm);
        if checksum.is_none() && self.is_optional {
            self.whole = None;
            return Ok(());
        }
        let checksum = checksum.ok_or_else(|| format!("it has no {} checksum", algorithm_name(algorithm)))?;
        match whole {
            MultipartChecksum::Composite(running) => running.update(&checksum.value),
            MultipartChecksum::Full { algorithm, crc } => {
                let next = crc_number(&checksum.value);
                *crc = Some(match (*crc, crc_of(*algorithm)) {
                    (Some(crc), Some((combine, _))) => crc_fast::checksum_combine(combine, crc, next, len),
                    _ => next,
                });
            }
        }
        Ok(())
    }

    /// Returns the ETag `md5(md5s)-N` and the checksum of the whole.
    pub(crate) fn finish(self) -> (String, Option<Checksum>) {
        let etag = format!("{}-{}", hex::encode(self.md5s.finalize()), self.parts);
        let checksum = self.whole.and_then(|whole| match whole {
            MultipartChecksum::Composite(running) => Some(Checksum { composite: true, ..running.finish() }),
            MultipartChecksum::Full { algorithm, crc } => Some(Checksum {
                algorithm: algorithm.into(),
                value: crc_value(crc?, value_len(algorithm)),
                composite: false,
            }),
        });
        (etag, checksum)
    }
}

/// Compares the announced checksums of a whole with the computed one.
///
/// # Errors
/// [`ClientError::BadDigest`] when it differs, [`ClientError::InvalidRequest`] when the upload has another
/// algorithm.
pub(crate) fn verify_whole(expected: &[Checksum], computed: Option<&Checksum>) -> Result<(), ClientError> {
    for checksum in expected {
        check_form(checksum)?;
        verify(checksum, computed.map(std::slice::from_ref).unwrap_or_default())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Algorithm; 5] =
        [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64nvme, Algorithm::Sha1, Algorithm::Sha256];

    fn digests_of(body: &[u8], compute: &[Algorithm]) -> BodyDigests {
        let expected = ExpectedDigests { compute: compute.to_vec(), ..ExpectedDigests::default() };
        let mut digests = Digests::new(expected).unwrap();
        digests.update(body);
        digests.finish(&[]).unwrap()
    }

    /// Check values from the algorithms' standards and catalogues.
    #[test]
    fn digests_match_the_published_vectors() {
        let digests = digests_of(b"123456789", &ALL);
        assert_eq!(hex::encode(digests.md5.unwrap()), "25f9e794323b453885f5181f1b624d0b");
        let values: Vec<String> =
            digests.checksums.iter().map(|checksum| hex::encode(&checksum.value)).collect();
        assert_eq!(
            values,
            [
                "cbf43926",
                "e3069283",
                "ae8b14860a799888",
                "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
                "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
            ]
        );
        assert_eq!(hex::encode(digests_of(b"", &[]).md5.unwrap()), "d41d8cd98f00b204e9800998ecf8427e");
    }

    #[test]
    fn a_digest_that_differs_is_named() {
        for algorithm in ALL {
            let right = digests_of(b"body", &[algorithm]).checksums.remove(0);
            let mut wrong = right.value.to_vec();
            wrong[0] ^= 1;
            let wrong = Checksum { value: wrong.into(), ..right.clone() };
            let outcome = |header: &Checksum, trailer: &Checksum| {
                let expected = ExpectedDigests { checksums: vec![header.clone()], ..Default::default() };
                let mut digests = Digests::new(expected).unwrap();
                digests.update(b"body");
                digests.finish(std::slice::from_ref(trailer))
            };
            assert!(outcome(&right, &right).is_ok());
            for result in [outcome(&wrong, &right), outcome(&right, &wrong)] {
                let error = result.unwrap_err();
                let name = algorithm_name(algorithm);
                assert!(matches!(&error, ClientError::BadDigest(which) if which == name), "{error}");
            }
        }
        let expected = ExpectedDigests { md5: Some([0; 16]), ..Default::default() };
        let error = Digests::new(expected).unwrap().finish(&[]).unwrap_err();
        assert!(matches!(error, ClientError::BadDigest(which) if which == "Content-MD5"));
    }

    #[test]
    fn trailers_that_were_not_announced_or_have_the_wrong_length_are_refused() {
        let crc = digests_of(b"", &[Algorithm::Crc32]).checksums.remove(0);
        let digests = Digests::new(ExpectedDigests::default()).unwrap();
        assert!(matches!(digests.finish(std::slice::from_ref(&crc)), Err(ClientError::InvalidRequest(_))));
        let short = Checksum { value: crc.value.slice(1..), ..crc };
        let expected = ExpectedDigests { checksums: vec![short], ..Default::default() };
        assert!(matches!(Digests::new(expected), Err(ClientError::InvalidRequest(_))));
    }

    proptest! {
        #[test]
        fn pieces_do_not_change_digests(body in prop::collection::vec(any::<u8>(), 0..4_000), cut: usize) {
            let cut = cut % (body.len() + 1);
            let expected = ExpectedDigests { compute: ALL.to_vec(), ..ExpectedDigests::default() };
            let mut digests = Digests::new(expected).unwrap();
            digests.update(&body[..cut]);
            digests.update(&body[cut..]);
            prop_assert_eq!(digests.finish(&[]).unwrap(), digests_of(&body, &ALL));
        }

        #[test]
        fn crcs_of_parts_combine_to_the_crc_of_the_whole(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..500), 1..8),
        ) {
            for algorithm in [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64nvme] {
                let mut whole = MultipartDigests::new(algorithm, true);
                for part in &parts {
                    let digests = digests_of(part, &[algorithm]);
                    whole.add(&hex::encode(digests.md5.unwrap()), part.len() as u64, &digests.checksums).unwrap();
                }
                let (_, checksum) = whole.finish();
                let expected = digests_of(&parts.concat(), &[algorithm]).checksums.remove(0);
                prop_assert_eq!(checksum, Some(expected));
            }
        }

        #[test]
        fn composites_digest_the_digests(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..500), 1..8),
        ) {
            for algorithm in [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Sha1, Algorithm::Sha256] {
                let mut whole = MultipartDigests::new(algorithm, false);
                let (mut md5s, mut checksums) = (Vec::new(), Vec::new());
                for part in &parts {
                    let digests = digests_of(part, &[algorithm]);
                    md5s.extend_from_slice(&digests.md5.unwrap());
                    checksums.extend_from_slice(&digests.checksums[0].value);
                    whole.add(&hex::encode(digests.md5.unwrap()), part.len() as u64, &digests.checksums).unwrap();
                }
                let (etag, checksum) = whole.finish();
                let of_md5s = hex::encode(digests_of(&md5s, &[]).md5.unwrap());
                prop_assert_eq!(etag, format!("{of_md5s}-{}", parts.len()));
                let checksum = checksum.unwrap();
                prop_assert!(checksum.composite);
                prop_assert_eq!(checksum.value, digests_of(&checksums, &[algorithm]).checksums.remove(0).value);
            }
        }
    }

    #[test]
    fn an_etag_of_the_version_costs_no_md5_unless_one_is_to_be_verified() {
        let of = |md5| {
            let expected = ExpectedDigests { md5, etag: EtagSource::Version, ..ExpectedDigests::default() };
            let mut digests = Digests::new(expected).unwrap();
            digests.update(b"abc");
            digests.finish(&[])
        };
        let digests = of(None).unwrap();
        assert_eq!((digests.md5, digests.etag(&[0xab; 16])), (None, format!("{}-0", "ab".repeat(16))));
        assert!(matches!(of(Some([0; 16])), Err(ClientError::BadDigest(_))));
    }
}
