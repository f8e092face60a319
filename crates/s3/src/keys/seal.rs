//! Sealing of secrets: AES-256-GCM under the cluster's sealing key (design.md §10.14).
//!
//! ```text
//! sealed secret:  | format: 1 byte = 1 | nonce: 12 | ciphertext … | tag: 16 |
//! ```
//!
//! The access key is authenticated with the ciphertext, so that a sealed secret that was moved to another row does not
//! open. Nonces are random; with 96 bits and fewer than 2³² secrets, a collision is negligible.

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use bytes::Bytes;
use striate_runtime::Runtime;
use zeroize::Zeroizing;

use super::KeyError;

const FORMAT: u8 = 1;
const NONCE_LEN: usize = 12;

/// The key that seals secrets.
pub struct SealingKey {
    cipher: Aes256Gcm,
}

impl SealingKey {
    /// Creates a sealing key from 32 random bytes. The caller wipes its own copy.
    pub fn new(bytes: &[u8; 32]) -> Self {
        Self { cipher: Aes256Gcm::new(bytes.into()) }
    }

    pub(super) fn seal(&self, runtime: &Runtime, access_key: &str, secret: &str) -> Result<Bytes, KeyError> {
        let mut nonce = [0; NONCE_LEN];
        runtime.fill_secret(&mut nonce);
        let payload = Payload { msg: secret.as_bytes(), aad: access_key.as_bytes() };
        let ciphertext = self.cipher.encrypt(&Nonce::from(nonce), payload);
        let ciphertext = ciphertext.map_err(|_| KeyError::Unsealable(access_key.to_owned()))?;
        Ok([&[FORMAT][..], &nonce, &ciphertext].concat().into())
    }

    pub(super) fn open(&self, access_key: &str, sealed: &[u8]) -> Result<Zeroizing<String>, KeyError> {
        let fail = || KeyError::Unsealable(access_key.to_owned());
        let (&format, rest) = sealed.split_first().ok_or_else(fail)?;
        if format != FORMAT || rest.len() < NONCE_LEN {
            return Err(fail());
        }
        let (nonce, ciphertext) = rest.split_at(NONCE_LEN);
        let nonce: [u8; NONCE_LEN] = nonce.try_into().map_err(|_| fail())?;
        let payload = Payload { msg: ciphertext, aad: access_key.as_bytes() };
        let secret = self.cipher.decrypt(&Nonce::from(nonce), payload).map_err(|_| fail())?;
        String::from_utf8(secret).map(Zeroizing::new).map_err(|_| fail())
    }
}

impl std::fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealingKey")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_sealed_secret_opens_only_unaltered_under_its_own_name_and_key(
            secret in "[ -~]{1,64}", name in "[A-Z]{3,20}", at: prop::sample::Index, bit in 0u8..8,
        ) {
            let rt = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let _guard = rt.enter();
            let runtime = Runtime::deterministic(1, Duration::ZERO);
            let key = SealingKey::new(&[7; 32]);
            let sealed = key.seal(&runtime, &name, &secret).unwrap();
            prop_assert_eq!(&**key.open(&name, &sealed).unwrap(), &secret);
            prop_assert!(key.open("OTHER", &sealed).is_err() || name == "OTHER");
            prop_assert!(SealingKey::new(&[8; 32]).open(&name, &sealed).is_err());
            let mut altered = sealed.to_vec();
            let at = at.index(sealed.len());
            altered[at] ^= 1 << bit;
            prop_assert!(key.open(&name, &altered).is_err());
            prop_assert!(key.open(&name, &sealed[..at]).is_err());
        }
    }
}
