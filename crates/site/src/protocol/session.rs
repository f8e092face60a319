//! Who is at the other end: a shared secret of the cluster, a key for each connection.
//!
//! Both ends prove that they know the cluster's secret without sending it, and every request is bound to its
//! connection:
//!
//! ```text
//! hello    0         4   8         24             56      88
//!          | version | 0 | cluster | client nonce | proof |
//! welcome  0         4      8         24             56      88     136   138
//!          | version | site | cluster | server nonce | proof | load | n   | rack label, n bytes
//!
//! hello proof   = HMAC-SHA256(secret, "striate hello"   ‖ hello[0..56])
//! welcome proof = HMAC-SHA256(secret, "striate welcome" ‖ client nonce ‖ welcome[0..56] ‖ rack)
//! key           = HMAC-SHA256(secret, "striate session" ‖ client nonce ‖ server nonce)
//! striate-auth  = sequence ":" HMAC-SHA256(key, "striate request" ‖ sequence ‖ method ‖ path ‖ body length ‖ head)
//! ```
//!
//! (Texts that precede others carry their length.) The server's nonce makes each connection's key new, and
//! sequence numbers are taken once, so that nothing recorded can be replayed, on this connection or another:
//! no clocks are compared and no table of nonces is kept. `head` is the whole body, except for a write, where
//! it is everything before the chunk's bytes: name, length and the CRC-32C of every granule.
//!
//! What it does not do: it hides nothing, and who can alter packets on their way can alter chunk bytes
//! together with their checksums. Against that the connection itself must be protected; TLS takes the place
//! of the byte stream below ([`crate::service::Listener`], [`crate::remote::Connector`]) and leaves this as
//! it is.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hmac::{Hmac, Mac};
use parking_lot::Mutex;
use sha2::Sha256;
use striate_core::{ClusterId, LoadReport, RackId, SiteId};
use striate_runtime::Runtime;
use zeroize::Zeroizing;

use super::PROTOCOL_VERSION;
use super::frame::{LOAD_LEN, get_load, put_load};
use super::limits::MAX_RACK_LEN;
use crate::local::SiteIdentity;

const NONCE_LEN: usize = 32;
const PROOF_LEN: usize = 32;
const SIGNED_LEN: usize = 56;
/// Length of a hello in bytes.
pub const HELLO_LEN: usize = SIGNED_LEN + PROOF_LEN;
const WELCOME_FIXED_LEN: usize = HELLO_LEN + LOAD_LEN + 2;
/// Longest welcome in bytes.
pub const MAX_WELCOME_LEN: usize = WELCOME_FIXED_LEN + MAX_RACK_LEN;
/// How far requests of one connection may overtake each other.
const REPLAY_WINDOW: u64 = 128;

type Nonce = [u8; NONCE_LEN];

/// The secret that the sites and gateways of one cluster share. Never printed; wiped when dropped.
#[derive(Clone)]
pub struct ClusterSecret(Zeroizing<[u8; 32]>);

impl ClusterSecret {
    /// From 32 random bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// A new secret.
    pub fn generate(runtime: &Runtime) -> Self {
        let mut bytes = Zeroizing::new([0; 32]);
        runtime.fill_secret(&mut *bytes);
        Self(bytes)
    }

    /// From 64 hexadecimal digits, as a secret file holds them; surrounding white space is ignored.
    ///
    /// # Errors
    /// A text that says what is expected, without the text that was given.
    pub fn from_hex(text: &str) -> Result<Self, String> {
        let mut bytes = Zeroizing::new([0; 32]);
        hex::decode_to_slice(text.trim(), &mut *bytes)
            .map_err(|_| "a cluster secret is 64 hexadecimal digits".to_owned())?;
        Ok(Self(bytes))
    }

    /// As [`ClusterSecret::from_hex`] reads it.
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(hex::encode(*self.0))
    }
}

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecret(…)")
    }
}

fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

fn digest(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    hmac(key, parts).finalize().into_bytes().into()
}

/// True when `proof` is the HMAC of `parts`; takes the same time for any wrong proof.
fn is_proof(key: &[u8; 32], parts: &[&[u8]], proof: &[u8]) -> bool {
    hmac(key, parts).verify_slice(proof).is_ok()
}

/// Why a hello, welcome or request is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not of the expected form.
    #[error("{0}")]
    Malformed(String),
    /// The peer speaks another version.
    #[error(
        "protocol version {theirs} is not spoken here, version {PROTOCOL_VERSION} is: run the same release of striate on all machines"
    )]
    Version {
        /// The peer's.
        theirs: u32,
    },
    /// The peer belongs to another cluster.
    #[error(
        "the peer belongs to another cluster: check the address, or the cluster id and secret it was started with"
    )]
    OtherCluster,
    /// The proof is wrong.
    #[error("the peer does not have this cluster's secret")]
    Forged,
    /// The connection did not begin with a hello.
    #[error("the connection has not been authenticated")]
    NoSession,
    /// The number was used before, or is too old.
    #[error("the request was seen before")]
    Replayed,
    /// Larger than allowed.
    #[error("{0}")]
    TooLarge(String),
}

/// The first message of a connection.
#[derive(Clone, Debug)]
pub struct Hello {
    cluster: ClusterId,
    nonce: Nonce,
}

impl Hello {
    /// A new one.
    pub fn new(runtime: &Runtime, cluster: ClusterId) -> Self {
        Self { cluster, nonce: fresh_nonce(runtime) }
    }

    /// Its bytes.
    pub fn encode(&self, secret: &ClusterSecret) -> Bytes {
        let mut out = BytesMut::with_capacity(HELLO_LEN);
        put_signed(&mut out, 0, self.cluster, &self.nonce);
        let proof = digest(&secret.0, &[b"striate hello", &out]);
        out.put_slice(&proof);
        out.freeze()
    }

    /// The inverse of [`Hello::encode`], for a member of `cluster` with its secret.
    ///
    /// # Errors
    /// The refusal.
    pub fn accept(bytes: &[u8], cluster: ClusterId, secret: &ClusterSecret) -> Result<Self, Refusal> {
        let (signed, proof) = check_signed(bytes, HELLO_LEN, cluster)?;
        if !is_proof(&secret.0, &[b"striate hello", signed], proof) {
            return Err(Refusal::Forged);
        }
        Ok(Self { cluster, nonce: nonce_of(signed) })
    }
}

/// The answer to a hello.
#[derive(Clone, Debug)]
pub struct Welcome {
    /// Who answers.
    pub identity: SiteIdentity,
    /// Its load.
    pub load: LoadReport,
    nonce: Nonce,
}

impl Welcome {
    /// A new one.
    pub fn new(runtime: &Runtime, identity: SiteIdentity, load: LoadReport) -> Self {
        Self { identity, load, nonce: fresh_nonce(runtime) }
    }

    /// Its bytes, as the answer to `hello`.
    pub fn encode(&self, hello: &Hello, secret: &ClusterSecret) -> Bytes {
        let rack = self.identity.rack.0.as_bytes();
        let rack = &rack[..rack.len().min(MAX_RACK_LEN)];
        let mut out = BytesMut::with_capacity(WELCOME_FIXED_LEN + rack.len());
        put_signed(&mut out, self.identity.site.0, self.identity.cluster, &self.nonce);
        let proof = digest(&secret.0, &[b"striate welcome", &hello.nonce, &out, rack]);
        out.put_slice(&proof);
        put_load(&mut out, &self.load);
        out.put_u16_le(rack.len() as u16);
        out.put_slice(rack);
        out.freeze()
    }

    /// The inverse of [`Welcome::encode`], for the sender of `hello`.
    ///
    /// # Errors
    /// The refusal.
    pub fn accept(bytes: &[u8], hello: &Hello, secret: &ClusterSecret) -> Result<Self, Refusal> {
        // Another version's welcome may have another length.
        check_version(bytes)?;
        let cut_off = || Refusal::Malformed("the welcome has a wrong length".to_owned());
        let (fixed, rack) = bytes.split_at_checked(WELCOME_FIXED_LEN).ok_or_else(cut_off)?;
        let (signed, proof) = check_signed(&fixed[..HELLO_LEN], HELLO_LEN, hello.cluster)?;
        let mut rest = &fixed[HELLO_LEN..];
        let load = get_load(&mut rest);
        if usize::from(rest.get_u16_le()) != rack.len() {
            return Err(cut_off());
        }
        if !is_proof(&secret.0, &[b"striate welcome", &hello.nonce, signed, rack], proof) {
            return Err(Refusal::Forged);
        }
        let site = SiteId((&signed[4..]).get_u32_le());
        let rack = RackId(String::from_utf8_lossy(rack).into_owned());
        let identity = SiteIdentity { cluster: hello.cluster, site, rack };
        Ok(Self { identity, load, nonce: nonce_of(signed) })
    }
}

fn fresh_nonce(runtime: &Runtime) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    runtime.fill_secret(&mut nonce);
    nonce
}

fn put_signed(out: &mut BytesMut, site: u32, cluster: ClusterId, nonce: &Nonce) {
    out.put_u32_le(PROTOCOL_VERSION);
    out.put_u32_le(site);
    out.put_u128(cluster.0);
    out.put_slice(nonce);
}

/// Every version begins with its number; all behind it may be different.
fn check_version(bytes: &[u8]) -> Result<(), Refusal> {
    let theirs = bytes.first_chunk().map(|version| u32::from_le_bytes(*version));
    match theirs.filter(|version| *version != PROTOCOL_VERSION) {
        Some(theirs) => Err(Refusal::Version { theirs }),
        None => Ok(()),
    }
}

/// Splits into what is signed and its proof, after a look at version and cluster, which are told apart from
/// a wrong secret so that the error names the cause.
fn check_signed(bytes: &[u8], len: usize, cluster: ClusterId) -> Result<(&[u8], &[u8]), Refusal> {
    check_version(bytes)?;
    if bytes.len() != len {
        return Err(Refusal::Malformed(format!("a hello of {} bytes", bytes.len())));
    }
    if (&bytes[8..]).get_u128() != cluster.0 {
        return Err(Refusal::OtherCluster);
    }
    Ok(bytes.split_at(SIGNED_LEN))
}

fn nonce_of(signed: &[u8]) -> Nonce {
    signed[SIGNED_LEN - NONCE_LEN..].try_into().expect("the length is right")
}

/// What a request's authentication covers.
#[derive(Clone, Copy, Debug)]
pub struct Signed<'a> {
    /// The method.
    pub method: &'a str,
    /// The path.
    pub path: &'a str,
    /// Length of the body in bytes.
    pub body_len: u64,
    /// The body, or what precedes a chunk's bytes.
    pub head: &'a [u8],
}

/// The key of one connection and the numbers of its requests.
pub struct Session {
    key: Zeroizing<[u8; 32]>,
    numbers: Mutex<Numbers>,
}

#[derive(Default)]
struct Numbers {
    /// The highest number given out or accepted.
    highest: u64,
    /// Bit i: the number `highest - i` was accepted.
    accepted: u128,
}

impl Session {
    /// The session that a hello and its welcome began; the same at both ends.
    pub fn new(hello: &Hello, welcome: &Welcome, secret: &ClusterSecret) -> Self {
        let key = digest(&secret.0, &[b"striate session", &hello.nonce, &welcome.nonce]);
        Self { key: Zeroizing::new(key), numbers: Mutex::default() }
    }

    /// The authentication of the next request.
    pub fn sign(&self, request: Signed<'_>) -> String {
        let number = {
            let mut numbers = self.numbers.lock();
            numbers.highest += 1;
            numbers.highest
        };
        let mut mac = [0; 64];
        hex::encode_to_slice(self.mac(number, request).finalize().into_bytes(), &mut mac).expect("it fits");
        format!("{number}:{}", std::str::from_utf8(&mac).expect("hexadecimal digits are ASCII"))
    }

    /// Accepts a request's authentication, once.
    ///
    /// # Errors
    /// The refusal.
    pub fn accept(&self, auth: &str, request: Signed<'_>) -> Result<(), Refusal> {
        let malformed = || Refusal::Malformed("the authentication header is malformed".to_owned());
        let (number, mac) = auth.split_once(':').ok_or_else(malformed)?;
        let number: u64 = number.parse().map_err(|_| malformed())?;
        let mut proof = [0; 32];
        hex::decode_to_slice(mac, &mut proof).map_err(|_| malformed())?;
        self.mac(number, request).verify_slice(&proof).map_err(|_| Refusal::Forged)?;
        if self.numbers.lock().take(number) { Ok(()) } else { Err(Refusal::Replayed) }
    }

    fn mac(&self, number: u64, request: Signed<'_>) -> Hmac<Sha256> {
        let Signed { method, path, body_len, head } = request;
        let lens = [method.len() as u64, path.len() as u64].map(u64::to_le_bytes);
        let (number, body_len) = (number.to_le_bytes(), body_len.to_le_bytes());
        let (method, path) = (method.as_bytes(), path.as_bytes());
        hmac(&self.key, &[b"striate request", &number, &lens[0], method, &lens[1], path, &body_len, head])
    }
}

impl Numbers {
    /// True when `number` was not accepted before and is not older than the window.
    fn take(&mut self, number: u64) -> bool {
        if number > self.highest {
            let ahead = number - self.highest;
            self.accepted = if ahead < REPLAY_WINDOW { self.accepted << ahead | 1 } else { 1 };
            self.highest = number;
            return true;
        }
        let behind = self.highest - number;
        let fresh = number > 0 && behind < REPLAY_WINDOW && self.accepted >> behind & 1 == 0;
        if fresh {
            self.accepted |= 1 << behind;
        }
        fresh
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session(…)")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const CLUSTER: ClusterId = ClusterId(7);

    fn identity() -> SiteIdentity {
        SiteIdentity { cluster: CLUSTER, site: SiteId(3), rack: RackId("r1".to_owned()) }
    }

    fn pair(runtime: &Runtime, secret: &ClusterSecret) -> (Session, Session) {
        let hello = Hello::new(runtime, CLUSTER);
        let seen = Hello::accept(&hello.encode(secret), CLUSTER, secret).unwrap();
        let welcome = Welcome::new(runtime, identity(), LoadReport::default());
        let accepted = Welcome::accept(&welcome.encode(&seen, secret), &hello, secret).unwrap();
        assert_eq!(accepted.identity, identity());
        (Session::new(&hello, &accepted, secret), Session::new(&seen, &welcome, secret))
    }

    const REQUEST: Signed<'static> = Signed { method: "PUT", path: "/a", body_len: 9, head: b"head" };

    #[tokio::test]
    async fn both_ends_agree_and_any_change_of_a_request_is_refused() {
        let runtime = Runtime::deterministic(1, Duration::ZERO);
        let (client, server) = pair(&runtime, &ClusterSecret::generate(&runtime));
        let auth = client.sign(REQUEST);
        for altered in [
            Signed { method: "POST", ..REQUEST },
            Signed { path: "/b", ..REQUEST },
            Signed { body_len: 8, ..REQUEST },
            Signed { head: b"heaD", ..REQUEST },
        ] {
            assert_eq!(server.accept(&auth, altered), Err(Refusal::Forged));
        }
        let renumbered = auth.replacen('1', "2", 1);
        assert!(matches!(server.accept(&renumbered, REQUEST), Err(Refusal::Forged)));
        assert_eq!(server.accept(&auth, REQUEST), Ok(()));
        assert_eq!(server.accept(&auth, REQUEST), Err(Refusal::Replayed));
    }

    #[tokio::test]
    async fn a_request_of_one_connection_is_refused_on_another() {
        let runtime = Runtime::deterministic(2, Duration::ZERO);
        let secret = ClusterSecret::generate(&runtime);
        let ((client, _), (_, other)) = (pair(&runtime, &secret), pair(&runtime, &secret));
        assert_eq!(other.accept(&client.sign(REQUEST), REQUEST), Err(Refusal::Forged));
    }

    /// A peer of another release is told so, whatever its messages look like behind the version.
    #[tokio::test]
    async fn hello_and_welcome_of_another_version_are_refused_by_their_number() {
        let runtime = Runtime::deterministic(4, Duration::ZERO);
        let secret = ClusterSecret::generate(&runtime);
        let hello = Hello::new(&runtime, CLUSTER);
        let welcome = Welcome::new(&runtime, identity(), LoadReport::default()).encode(&hello, &secret);
        for theirs in [0, PROTOCOL_VERSION + 1, u32::MAX] {
            for missing in [0, 4, LOAD_LEN, HELLO_LEN - 4] {
                let of_version =
                    |bytes: &Bytes| [&theirs.to_le_bytes(), &bytes[4..bytes.len() - missing]].concat();
                let refused = Refusal::Version { theirs };
                let (shorter, answer) = (of_version(&hello.encode(&secret)), of_version(&welcome));
                assert_eq!(Hello::accept(&shorter, CLUSTER, &secret).unwrap_err(), refused);
                assert_eq!(Welcome::accept(&answer, &hello, &secret).unwrap_err(), refused);
                let (longer, answer) =
                    ([&shorter[..], &[7; 200]].concat(), [&answer[..], &[7; 200]].concat());
                assert_eq!(Hello::accept(&longer, CLUSTER, &secret).unwrap_err(), refused);
                assert_eq!(Welcome::accept(&answer, &hello, &secret).unwrap_err(), refused);
            }
        }
    }

    #[tokio::test]
    async fn hello_and_welcome_of_strangers_are_refused_by_name() {
        let runtime = Runtime::deterministic(3, Duration::ZERO);
        let (secret, other) = (ClusterSecret::generate(&runtime), ClusterSecret::generate(&runtime));
        let hello = Hello::new(&runtime, CLUSTER);
        let bytes = hello.encode(&secret);
        let refusal = |bytes: &[u8], cluster, secret| Hello::accept(bytes, cluster, secret).unwrap_err();
        assert_eq!(refusal(&bytes, CLUSTER, &other), Refusal::Forged);
        assert_eq!(refusal(&bytes, ClusterId(8), &secret), Refusal::OtherCluster);
        let mut newer = bytes.to_vec();
        newer[0] = 2;
        assert_eq!(refusal(&newer, CLUSTER, &secret), Refusal::Version { theirs: 2 });
        assert!(matches!(refusal(&bytes[..60], CLUSTER, &secret), Refusal::Malformed(_)));

        let welcome = Welcome::new(&runtime, identity(), LoadReport::default());
        let forged = welcome.encode(&hello, &other);
        assert_eq!(Welcome::accept(&forged, &hello, &secret).unwrap_err(), Refusal::Forged);
        let stale = welcome.encode(&Hello::new(&runtime, CLUSTER), &secret);
        assert_eq!(Welcome::accept(&stale, &hello, &secret).unwrap_err(), Refusal::Forged);
    }

    proptest! {
        #[test]
        fn a_number_is_taken_once_and_only_inside_the_window(asked in prop::collection::vec(0u64..400, 1..200)) {
            let (mut numbers, mut taken) = (Numbers::default(), HashSet::new());
            for number in asked {
                let highest = taken.iter().max().copied().unwrap_or(0);
                let expected = number > 0 && number + REPLAY_WINDOW > highest && taken.insert(number);
                prop_assert_eq!(numbers.take(number), expected);
            }
        }
    }
}
