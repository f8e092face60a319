//! Access keys: rows of the metadata store with sealed secrets, and a cache of decrypted ones.
//!
//! SigV4 needs the secret itself, so secrets are sealed, not hashed (design.md §10.14). A secret is decrypted when its
//! row is first used, and wiped from memory when it is dropped. Every row is read again after [`REVALIDATE_AFTER`], and
//! decrypted again only if it changed: a revoked key works no longer than that. Keys that do not exist are refused from
//! memory ([`names`]).
//!
//! There are no policies. Every valid key acts for the one account (see [`crate::authorize`]).

mod names;
mod seal;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::RwLock;
use striate_meta::records::{self, AccessKey};
use striate_meta::{
    Commit, MetaError, MetaStore, Precondition, Revision, Row, RowPages, ScanRange, Transaction, TxId,
    keys as rows,
};
use striate_runtime::{Instant, Runtime};
use zeroize::Zeroizing;

use names::{AcceptedNames, MOST_NAMES};
pub use seal::SealingKey;

/// Time after which the row of a cached key is read again, and after which a key that another process made works here at
/// the latest.
pub const REVALIDATE_AFTER: Duration = Duration::from_secs(1);
/// Minimum and maximum length of a chosen access key, in characters.
pub const ACCESS_KEY_LEN: std::ops::RangeInclusive<usize> = 3..=128;
/// Minimum and maximum length of a chosen secret, in characters.
pub const SECRET_LEN: std::ops::RangeInclusive<usize> = 8..=128;
/// Number of rows in one scan.
const PAGE: usize = 1_000;

/// Why an operation on access keys failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum KeyError {
    /// The access key does not exist.
    #[error("there is no access key {0:?}; `striate admin keys list` shows those that exist")]
    NoSuchKey(String),
    /// The access key already exists.
    #[error("the access key {0:?} exists already; rotate it or choose another name")]
    AlreadyExists(String),
    /// The access key was revoked.
    #[error("the access key {0:?} is revoked; create a new one")]
    Revoked(String),
    /// The text cannot be an access key or secret.
    #[error("{0}")]
    Invalid(String),
    /// The secret was sealed with another sealing key, or its row is damaged.
    #[error(
        "the secret of {0:?} does not open with this cluster's sealing key; restore the key file that it was created with"
    )]
    Unsealable(String),
    /// The key given at start cannot be changed here.
    #[error("the access key {0:?} was given by STRIATE_ACCESS_KEY; change it there and restart")]
    Static(String),
    /// Another caller changed the key at the same time.
    #[error("the access key {0:?} was changed by somebody else at the same time; try again")]
    Conflict(String),
    /// The metadata store failed.
    #[error(transparent)]
    Meta(#[from] MetaError),
}

/// A key with its plain secret, to be shown once or taken from the environment. Wiped when dropped.
#[derive(Clone)]
pub struct Credentials {
    /// The access key.
    pub access_key: String,
    /// The secret.
    pub secret: Zeroizing<String>,
}

/// The public part of an access key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// The access key.
    pub access_key: String,
    /// Description given by its creator.
    pub description: String,
    /// Time of creation, in milliseconds since the Unix epoch.
    pub created_unix_ms: u64,
    /// Whether it is no longer accepted.
    pub revoked: bool,
    /// End of the time in which the secret before the last rotation is accepted, in milliseconds since the Unix epoch.
    pub previous_until_unix_ms: Option<u64>,
    /// Whether it is the key given at start, which has no row.
    pub is_static: bool,
}

/// The accepted secrets of a key. Wiped when dropped.
pub struct Secrets {
    /// The current secret.
    pub current: Zeroizing<String>,
    /// The secret before the last rotation, and the end of its acceptance (Unix milliseconds).
    pub previous: Option<(Zeroizing<String>, u64)>,
}

/// The access keys of a cluster. Share it in an `Arc`.
pub struct KeyStore {
    runtime: Runtime,
    meta: Arc<dyn MetaStore>,
    sealing: SealingKey,
    root: Option<(String, Arc<Secrets>)>,
    opened: RwLock<HashMap<String, OpenedSecrets>>,
    names: AcceptedNames,
}

struct OpenedSecrets {
    version: Revision,
    read_at: Instant,
    secrets: Arc<Secrets>,
}

impl KeyStore {
    /// Seals a secret for the name `name`, which is authenticated with it.
    ///
    /// # Errors
    /// [`KeyError::Unsealable`].
    pub fn seal(&self, name: &str, secret: &str) -> Result<Bytes, KeyError> {
        self.sealing.seal(&self.runtime, name, secret)
    }

    /// The inverse of [`KeyStore::seal`].
    ///
    /// # Errors
    /// [`KeyError::Unsealable`].
    pub fn open_sealed(&self, name: &str, sealed: &[u8]) -> Result<Zeroizing<String>, KeyError> {
        self.sealing.open(name, sealed)
    }

    /// Creates a store of the keys in `meta`, sealed with `sealing`; `root` is accepted in addition.
    ///
    /// # Errors
    /// [`KeyError::Invalid`] if `root` is not a valid key and secret.
    pub fn new(
        runtime: Runtime,
        meta: Arc<dyn MetaStore>,
        sealing: SealingKey,
        root: Option<Credentials>,
    ) -> Result<Self, KeyError> {
        let root = match root {
            Some(root) => {
                check(&root)?;
                Some((root.access_key, Arc::new(Secrets { current: root.secret, previous: None })))
            }
            None => None,
        };
        Ok(Self { runtime, meta, sealing, root, opened: RwLock::default(), names: AcceptedNames::default() })
    }

    /// Returns the secrets of `access_key`; `None` if it does not exist or is revoked.
    ///
    /// # Errors
    /// When the metadata store fails or the secret does not open.
    pub async fn secrets(&self, access_key: &str) -> Result<Option<Arc<Secrets>>, KeyError> {
        if let Some((root, secrets)) = &self.root
            && root == access_key
        {
            return Ok(Some(Arc::clone(secrets)));
        }
        let now = self.runtime.now();
        if let Some(opened) = self.opened.read().get(access_key)
            && now.saturating_duration_since(opened.read_at) < REVALIDATE_AFTER
        {
            return Ok(Some(Arc::clone(&opened.secrets)));
        }
        if !is_plausible(access_key) || self.names.exclude(access_key, now, REVALIDATE_AFTER) {
            return Ok(None);
        }
        let secrets = self.read_again(access_key, now).await?;
        if secrets.is_none() {
            self.read_names(now).await?;
        }
        Ok(secrets)
    }

    /// Reads which keys are accepted, unless another caller does so already.
    async fn read_names(&self, now: Instant) -> Result<(), MetaError> {
        let Some(reading) = self.names.begin(now) else { return Ok(()) };
        let mut names = HashSet::new();
        let mut pages = RowPages::new(ScanRange::prefix(rows::ACCESS_KEYS), PAGE);
        while let Some(page) = pages.next(&*self.meta).await? {
            for row in &page {
                let record = row.record::<AccessKey>()?;
                if !record.revoked {
                    names.insert(record.access_key);
                }
            }
            if names.len() > MOST_NAMES {
                break;
            }
        }
        reading.finish(names);
        Ok(())
    }

    async fn read_again(&self, access_key: &str, now: Instant) -> Result<Option<Arc<Secrets>>, KeyError> {
        let row = self.meta.get(&rows::access_key(access_key)).await?;
        let record = row.as_ref().map(Row::record::<AccessKey>).transpose()?;
        let (Some(row), Some(record)) = (row, record.filter(|record| !record.revoked)) else {
            self.opened.write().remove(access_key);
            return Ok(None);
        };
        let mut opened = self.opened.write();
        if let Some(cached) = opened.get_mut(access_key)
            && cached.version == row.version
        {
            cached.read_at = now;
            return Ok(Some(Arc::clone(&cached.secrets)));
        }
        let secrets = Arc::new(self.open(&record)?);
        let entry = OpenedSecrets { version: row.version, read_at: now, secrets: Arc::clone(&secrets) };
        opened.insert(access_key.to_owned(), entry);
        Ok(Some(secrets))
    }

    fn open(&self, record: &AccessKey) -> Result<Secrets, KeyError> {
        let open = |sealed: &[u8]| self.sealing.open(&record.access_key, sealed);
        let current = open(&record.sealed_secret)?;
        let previous = match record.previous_sealed_secret.is_empty() {
            true => None,
            false => Some((open(&record.previous_sealed_secret)?, record.previous_until_unix_ms)),
        };
        Ok(Secrets { current, previous })
    }

    /// Creates a random key and secret.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn create(&self, description: &str) -> Result<Credentials, KeyError> {
        let credentials = self.draft();
        self.import(&credentials, description).await?;
        Ok(credentials)
    }

    /// Returns a random key and secret that nothing accepts until [`KeyStore::import`] stores them.
    pub fn draft(&self) -> Credentials {
        let access_key = format!("STRI{}", self.random_text(16, b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"));
        Credentials { access_key, secret: self.random_secret() }
    }

    /// Returns the name of an accepted key whose secret this store's sealing key does not open, if there is one among the
    /// first keys: the sealing key is then another cluster's.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn unopenable(&self) -> Result<Option<String>, KeyError> {
        let page = RowPages::new(ScanRange::prefix(rows::ACCESS_KEYS), PAGE).next(&*self.meta).await?;
        for row in page.unwrap_or_default() {
            let record: AccessKey = row.record()?;
            if !record.revoked && self.open(&record).is_err() {
                return Ok(Some(record.access_key));
            }
        }
        Ok(None)
    }

    /// Stores a key and secret that the caller chose.
    ///
    /// # Errors
    /// [`KeyError::Invalid`], [`KeyError::AlreadyExists`], or when the metadata store fails.
    pub async fn import(&self, credentials: &Credentials, description: &str) -> Result<(), KeyError> {
        check(credentials)?;
        let access_key = &credentials.access_key;
        self.refuse_static(access_key)?;
        let record = AccessKey {
            access_key: access_key.clone(),
            sealed_secret: self.sealing.seal(&self.runtime, access_key, &credentials.secret)?,
            created_unix_ms: self.unix_ms(),
            description: description.to_owned(),
            ..AccessKey::default()
        };
        let key = rows::access_key(access_key);
        match self.write(Precondition::Absent(key), &record).await? {
            true => Ok(()),
            false => Err(KeyError::AlreadyExists(access_key.clone())),
        }
    }

    /// Returns all keys in order of their names, including revoked ones, with the static one first.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub async fn list(&self) -> Result<Vec<KeyInfo>, KeyError> {
        let mut keys: Vec<KeyInfo> = self.root.iter().map(|(name, _)| KeyInfo::of_static(name)).collect();
        let mut pages = RowPages::new(ScanRange::prefix(rows::ACCESS_KEYS), PAGE);
        while let Some(page) = pages.next(&*self.meta).await? {
            for row in &page {
                keys.push(KeyInfo::from(row.record::<AccessKey>()?));
            }
        }
        Ok(keys)
    }

    /// Gives a key a new random secret; the old one is accepted for another `grace`.
    ///
    /// # Errors
    /// [`KeyError::NoSuchKey`], [`KeyError::Revoked`], [`KeyError::Static`], [`KeyError::Conflict`], or when
    /// the metadata store fails.
    pub async fn rotate(&self, access_key: &str, grace: Duration) -> Result<Credentials, KeyError> {
        let (row, mut record) = self.existing(access_key).await?;
        if record.revoked {
            return Err(KeyError::Revoked(access_key.to_owned()));
        }
        let secret = self.random_secret();
        let sealed = self.sealing.seal(&self.runtime, access_key, &secret)?;
        let old = std::mem::replace(&mut record.sealed_secret, sealed);
        (record.previous_sealed_secret, record.previous_until_unix_ms) = match grace.is_zero() {
            true => (Bytes::new(), 0),
            false => (old, self.unix_ms().saturating_add(grace.as_millis() as u64)),
        };
        self.replace(&row, &record).await?;
        Ok(Credentials { access_key: access_key.to_owned(), secret })
    }

    /// Revokes a key. Its row stays, without secrets, so that the name is never used again.
    /// Revoking it twice is not an error.
    ///
    /// # Errors
    /// [`KeyError::NoSuchKey`], [`KeyError::Static`], [`KeyError::Conflict`], or when the metadata store
    /// fails.
    pub async fn revoke(&self, access_key: &str) -> Result<(), KeyError> {
        let (row, mut record) = self.existing(access_key).await?;
        record.revoked = true;
        record.sealed_secret = Bytes::new();
        record.previous_sealed_secret = Bytes::new();
        record.previous_until_unix_ms = 0;
        self.replace(&row, &record).await
    }

    async fn existing(&self, access_key: &str) -> Result<(Row, AccessKey), KeyError> {
        self.refuse_static(access_key)?;
        let row = self.meta.get(&rows::access_key(access_key)).await?;
        let row = row.ok_or_else(|| KeyError::NoSuchKey(access_key.to_owned()))?;
        let record = row.record()?;
        Ok((row, record))
    }

    async fn replace(&self, row: &Row, record: &AccessKey) -> Result<(), KeyError> {
        let unchanged = Precondition::Version(row.key.clone(), row.version);
        let done = self.write(unchanged, record).await?;
        self.opened.write().remove(&record.access_key);
        if done { Ok(()) } else { Err(KeyError::Conflict(record.access_key.clone())) }
    }

    /// Writes a record; returns false if the precondition does not hold. After an unknown outcome the commit is retried
    /// with the same id (design.md §10.2).
    async fn write(&self, precondition: Precondition, record: &AccessKey) -> Result<bool, KeyError> {
        let mut id = [0; 16];
        self.runtime.fill_secret(&mut id);
        let mut transaction = Transaction::new(TxId(u128::from_be_bytes(id)));
        transaction.require(precondition);
        transaction.put(rows::access_key(&record.access_key), records::encode(record));
        let commit = match self.meta.commit(transaction.clone()).await {
            Err(MetaError::UnknownOutcome(_)) => self.meta.commit(transaction).await?,
            answered => answered?,
        };
        self.names.forget();
        Ok(matches!(commit, Commit::Done(_)))
    }

    fn refuse_static(&self, access_key: &str) -> Result<(), KeyError> {
        match &self.root {
            Some((root, _)) if root == access_key => Err(KeyError::Static(access_key.to_owned())),
            _ => Ok(()),
        }
    }

    fn random_secret(&self) -> Zeroizing<String> {
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        Zeroizing::new(self.random_text(40, alphabet))
    }

    /// Returns `len` characters of `alphabet`, whose length divides 256, so that all are equally likely.
    fn random_text(&self, len: usize, alphabet: &[u8]) -> String {
        assert_eq!(256 % alphabet.len(), 0, "the alphabet would not be drawn evenly");
        let mut bytes = Zeroizing::new(vec![0; len]);
        self.runtime.fill_secret(&mut bytes);
        bytes.iter().map(|&byte| char::from(alphabet[usize::from(byte) % alphabet.len()])).collect()
    }

    fn unix_ms(&self) -> u64 {
        self.runtime.wall_time().as_millis() as u64
    }
}

impl KeyInfo {
    fn of_static(name: &str) -> Self {
        Self {
            access_key: name.to_owned(),
            description: "given at the start".to_owned(),
            created_unix_ms: 0,
            revoked: false,
            previous_until_unix_ms: None,
            is_static: true,
        }
    }
}

impl From<AccessKey> for KeyInfo {
    fn from(record: AccessKey) -> Self {
        let has_previous = !record.previous_sealed_secret.is_empty();
        Self {
            access_key: record.access_key,
            description: record.description,
            created_unix_ms: record.created_unix_ms,
            revoked: record.revoked,
            previous_until_unix_ms: has_previous.then_some(record.previous_until_unix_ms),
            is_static: false,
        }
    }
}

impl fmt::Debug for KeyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyStore").field("static", &self.root.is_some()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

fn is_plausible(access_key: &str) -> bool {
    ACCESS_KEY_LEN.contains(&access_key.len())
        && access_key.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/' && byte != b',')
}

/// Checks a key and a secret that somebody chose.
///
/// # Errors
/// [`KeyError::Invalid`].
pub fn check(credentials: &Credentials) -> Result<(), KeyError> {
    if !is_plausible(&credentials.access_key) {
        let rule = "an access key has 3 to 128 printable ASCII characters without space, `/` and `,`";
        return Err(KeyError::Invalid(rule.to_owned()));
    }
    let secret = &credentials.secret;
    if !SECRET_LEN.contains(&secret.len()) || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        let rule = "a secret has 8 to 128 printable ASCII characters without spaces";
        return Err(KeyError::Invalid(rule.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use striate_meta::MemoryStore;

    use super::*;

    fn store(root: Option<Credentials>) -> KeyStore {
        let runtime = Runtime::deterministic(1, Duration::from_secs(1_000_000));
        let meta = Arc::new(MemoryStore::new(runtime.clone()));
        KeyStore::new(runtime, meta, SealingKey::new(&[1; 32]), root).unwrap()
    }

    async fn current(keys: &KeyStore, name: &str) -> Option<String> {
        keys.secrets(name).await.unwrap().map(|secrets| secrets.current.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn a_created_key_opens_and_its_row_does_not_hold_the_secret() {
        let keys = store(None);
        let made = keys.create("laptop").await.unwrap();
        assert_eq!(current(&keys, &made.access_key).await.as_deref(), Some(made.secret.as_str()));
        let row = keys.meta.get(&rows::access_key(&made.access_key)).await.unwrap().unwrap();
        assert!(!row.value.windows(made.secret.len()).any(|window| window == made.secret.as_bytes()));
        assert_eq!(keys.list().await.unwrap()[0].description, "laptop");
        assert_eq!(current(&keys, "STRIUNKNOWN").await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn invented_keys_are_refused_from_memory_and_new_ones_work() {
        let here = store(None);
        let there =
            KeyStore::new(here.runtime.clone(), Arc::clone(&here.meta), SealingKey::new(&[1; 32]), None)
                .unwrap();
        assert_eq!(current(&here, "INVENTED1").await, None);
        assert!(here.names.exclude("INVENTED2", here.runtime.now(), REVALIDATE_AFTER), "without a look-up");
        let mine = here.create("").await.unwrap();
        assert!(current(&here, &mine.access_key).await.is_some(), "at once");
        assert_eq!(current(&here, "INVENTED3").await, None);
        assert!(current(&here, &mine.access_key).await.is_some());
        let others = there.create("").await.unwrap();
        here.runtime.sleep(REVALIDATE_AFTER).await;
        assert!(current(&here, &others.access_key).await.is_some(), "after the revalidation time");
    }

    #[tokio::test(start_paused = true)]
    async fn a_rotated_key_keeps_its_old_secret_for_the_grace_and_no_grace_keeps_none() {
        let keys = store(None);
        let old = keys.create("").await.unwrap();
        let new = keys.rotate(&old.access_key, Duration::from_secs(60)).await.unwrap();
        let secrets = keys.secrets(&old.access_key).await.unwrap().unwrap();
        assert_eq!(*secrets.current, *new.secret);
        assert_eq!(secrets.previous, Some((old.secret.clone(), 1_000_060_000)));
        keys.rotate(&old.access_key, Duration::ZERO).await.unwrap();
        assert!(keys.secrets(&old.access_key).await.unwrap().unwrap().previous.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_revoked_elsewhere_stops_working_after_the_revalidation_time() {
        let here = store(None);
        let made = here.create("").await.unwrap();
        assert!(current(&here, &made.access_key).await.is_some());
        let sealing = SealingKey::new(&[1; 32]);
        let there = KeyStore::new(here.runtime.clone(), Arc::clone(&here.meta), sealing, None).unwrap();
        there.revoke(&made.access_key).await.unwrap();
        assert_eq!(current(&there, &made.access_key).await, None);
        here.runtime.sleep(REVALIDATE_AFTER).await;
        assert_eq!(current(&here, &made.access_key).await, None);
        let refused = here.rotate(&made.access_key, Duration::ZERO).await;
        assert!(matches!(refused, Err(KeyError::Revoked(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn the_static_key_needs_no_row_and_cannot_be_changed() {
        let root = Credentials { access_key: "root".into(), secret: Zeroizing::new("rootsecret".into()) };
        let keys = store(Some(root.clone()));
        assert_eq!(current(&keys, "root").await.as_deref(), Some("rootsecret"));
        assert!(matches!(keys.revoke("root").await, Err(KeyError::Static(_))));
        assert!(matches!(keys.import(&root, "").await, Err(KeyError::Static(_))));
        assert!(keys.list().await.unwrap()[0].is_static);
    }

    #[tokio::test(start_paused = true)]
    async fn names_and_secrets_that_break_the_rules_are_refused() {
        let keys = store(None);
        for (name, secret) in
            [("ab", "longenough"), ("a/b", "longenough"), ("abc", "short"), ("a b", "longenough")]
        {
            let chosen = Credentials { access_key: name.into(), secret: Zeroizing::new(secret.into()) };
            assert!(matches!(keys.import(&chosen, "").await, Err(KeyError::Invalid(_))), "{name} {secret}");
        }
    }
}
