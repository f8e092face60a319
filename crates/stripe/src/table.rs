//! Stripe records as reads, writes and changes use them: looked up, parsed, with their code.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use striate_codec::{Code, CodeSpec};
use striate_core::{ChunkId, Generation, Profile, SiteId, StripeId};
use striate_meta::records::{Location, Stripe, WideState};
use striate_meta::{MetaStore, Row, Transaction, keys};
use striate_runtime::Runtime;
use striate_site::SiteError;

use crate::error::StripeError;
use crate::locations::Locations;

/// Attempts to read two records that agree.
const LOOKED_UP: usize = 8;
/// Maximum number of codes, and of profile texts, cached.
const MOST_KNOWN: usize = 256;

/// The stripes of the metadata store, and the codes of their profiles.
pub struct StripeTable {
    runtime: Runtime,
    meta: Arc<dyn MetaStore>,
    codes: RwLock<HashMap<CodeSpec, Code>>,
    profiles: ProfileTexts,
    locations: Locations,
}

/// Caches what a text or a code parses to. Requests may bring ever new ones, so a full cache is cleared.
fn remember<K: Eq + Hash, V>(cache: &mut HashMap<K, V>, key: K, value: V) {
    if cache.len() >= MOST_KNOWN {
        cache.clear();
    }
    cache.insert(key, value);
}

/// A stripe's record with everything derived from it.
#[derive(Clone)]
pub struct OpenedStripe {
    /// Name of the stripe.
    pub id: StripeId,
    /// Row that the record was read from.
    pub row: Row,
    /// The stripe's record.
    pub record: Stripe,
    /// Profile of the stripe.
    pub profile: Profile,
    /// Code of the profile.
    pub code: Code,
}

/// Cache of profiles by their texts.
#[derive(Debug, Default)]
pub struct ProfileTexts {
    profiles: RwLock<HashMap<String, Profile>>,
}

impl ProfileTexts {
    /// Parses a profile, or returns the cached one.
    ///
    /// # Errors
    /// [`StripeError::InvalidArgument`]; the message says what is wrong with the text.
    pub fn parse(&self, text: &str) -> Result<Profile, StripeError> {
        if let Some(profile) = self.profiles.read().get(text) {
            return Ok(*profile);
        }
        let profile: Profile =
            text.parse().map_err(|error| StripeError::InvalidArgument(format!("{error}")))?;
        remember(&mut self.profiles.write(), text.to_owned(), profile);
        Ok(profile)
    }
}

impl StripeTable {
    pub(crate) fn new(runtime: Runtime, meta: Arc<dyn MetaStore>, known_stripes: usize) -> Self {
        let (codes, profiles) = (RwLock::default(), ProfileTexts::default());
        Self { runtime, meta, codes, profiles, locations: Locations::new(known_stripes) }
    }

    pub(crate) fn meta(&self) -> &Arc<dyn MetaStore> {
        &self.meta
    }

    pub(crate) fn profiles(&self) -> &ProfileTexts {
        &self.profiles
    }

    /// Returns the code of a profile; built once.
    ///
    /// # Errors
    /// [`StripeError::InvalidArgument`] for parameters that describe no code.
    pub fn code(&self, profile: &Profile) -> Result<Code, StripeError> {
        if let Some(code) = self.codes.read().get(&profile.code) {
            return Ok(code.clone());
        }
        let code = profile.code.build().map_err(|error| StripeError::InvalidArgument(error.to_string()))?;
        remember(&mut self.codes.write(), profile.code, code.clone());
        Ok(code)
    }

    /// Returns the code of a stripe's profile; built once.
    ///
    /// # Errors
    /// [`StripeError::InvalidArgument`] for a profile that describes no code.
    pub fn code_of(&self, stripe: &Stripe) -> Result<Code, StripeError> {
        self.code(&self.profiles.parse(&stripe.profile)?)
    }

    /// Creates an empty transaction with a new id.
    pub fn transaction(&self) -> Transaction {
        Transaction::with_random_id(&self.runtime)
    }

    /// Creates a transaction that requires the stripe's record as it was read.
    pub(crate) fn transaction_on(&self, stripe: &OpenedStripe) -> Transaction {
        let mut tx = self.transaction();
        tx.require_unchanged(keys::stripe(stripe.id), Some(&stripe.row));
        tx
    }

    /// Puts a stripe in debt, so that repair examines it, when `found` says that one of its chunks is missing
    /// or damaged.
    ///
    /// # Errors
    /// When the metadata store fails.
    pub(crate) async fn report_damage(&self, found: &StripeError) -> Result<(), StripeError> {
        let StripeError::Site(SiteError::Missing(chunk) | SiteError::Corrupt { chunk, .. }) = found else {
            return Ok(());
        };
        let Some(row) = self.meta.get(&keys::stripe(chunk.stripe)).await? else { return Ok(()) };
        let mut tx = self.transaction();
        tx.require_unchanged(row.key.clone(), Some(&row)).put(keys::debt(chunk.stripe), Bytes::new());
        // If the commit conflicts, the stripe was changed meanwhile and may be repaired already.
        self.meta.commit(tx).await?;
        Ok(())
    }

    /// Looks a stripe up in the metadata store. Returns `None` when it has no row.
    ///
    /// # Errors
    /// When the metadata store fails, or the record is one that no version of this program writes.
    pub async fn find(&self, id: StripeId) -> Result<Option<OpenedStripe>, StripeError> {
        let row = self.meta.get(&keys::stripe(id)).await?;
        row.map(|row| self.opened(id, row)).transpose()
    }

    /// As [`StripeTable::find`], for a read: replaces the cached record.
    pub(crate) async fn find_again(&self, id: StripeId) -> Result<Option<Arc<OpenedStripe>>, StripeError> {
        self.locations.forget(id);
        let found = self.find(id).await?.map(Arc::new);
        found.iter().for_each(|stripe| self.locations.insert(stripe));
        Ok(found)
    }

    /// Returns the cached record of a stripe, if any. It may be out of date.
    pub(crate) fn remembered(&self, id: StripeId) -> Option<Arc<OpenedStripe>> {
        self.locations.get(id)
    }

    /// Forgets a record that has changed, or may have.
    pub(crate) fn forget(&self, id: StripeId) {
        self.locations.forget(id);
    }

    /// Looks up stripes that metadata names, all together, and returns them in the order of `ids`.
    ///
    /// # Errors
    /// Also [`StripeError::Inconsistent`] when a stripe has no row.
    pub(crate) async fn open_many(&self, ids: &[StripeId]) -> Result<Vec<Arc<OpenedStripe>>, StripeError> {
        let rows = match ids {
            [] => return Ok(Vec::new()),
            &[id] => vec![self.meta.get(&keys::stripe(id)).await?],
            _ => {
                let keys: Vec<Bytes> = ids.iter().map(|id| keys::stripe(*id)).collect();
                self.meta.get_many(&keys).await?
            }
        };
        let opened = ids.iter().zip(rows).map(|(&id, row)| {
            let stripe = Arc::new(self.opened(id, row.ok_or_else(|| gone(id))?)?);
            self.locations.insert(&stripe);
            Ok(stripe)
        });
        opened.collect()
    }

    /// See [`crate::Stripes::wide_stripe_of`].
    pub(crate) async fn wide_stripe_of(
        &self,
        stripe: StripeId,
        index: usize,
    ) -> Result<Option<(OpenedStripe, usize)>, StripeError> {
        for _ in 0..LOOKED_UP {
            let own = self.find(stripe).await?.ok_or_else(|| gone(stripe))?;
            let Some((id, position)) = own.wide_of(index) else { return Ok(None) };
            let Some(wide) = self.find(id).await? else { continue };
            if !wide.record.is_sealed() {
                // A member may have gone to another wide stripe since its row was read.
                match self.find(stripe).await? {
                    Some(now) if now.wide_of(index) != Some((id, position)) => continue,
                    _ => return Ok(None),
                }
            }
            let (copy, chunk) = (&wide.record.locations[position], &own.record.locations[index]);
            let is_same = (copy.site, copy.content_version) == (chunk.site, chunk.content_version);
            if is_same && wide.file(position) == own.file(index) {
                return Ok(Some((wide, position)));
            }
        }
        Err(StripeError::Busy)
    }

    fn opened(&self, id: StripeId, row: Row) -> Result<OpenedStripe, StripeError> {
        let inconsistent = |reason: String| inconsistent(id, reason);
        let record: Stripe = row.record()?;
        let profile =
            self.profiles.parse(&record.profile).map_err(|error| inconsistent(error.to_string()))?;
        let code = self.code(&profile)?;
        let (locations, members) = (record.locations.len(), record.members.len());
        if locations != code.n() || record.chunk_len == 0 || ![0, code.k()].contains(&members) {
            return Err(inconsistent(format!(
                "it has {locations} locations and {members} members for {profile}"
            )));
        }
        Ok(OpenedStripe { id, row, record, profile, code })
    }
}

pub(crate) fn inconsistent(id: StripeId, reason: String) -> StripeError {
    StripeError::Inconsistent { what: format!("stripe {id}"), reason }
}

pub(crate) fn gone(id: StripeId) -> StripeError {
    inconsistent(id, "its record is gone; the object was replaced meanwhile".to_owned())
}

/// Parses the stripe id in a block record.
///
/// # Errors
/// [`StripeError::Inconsistent`] when it does not have 16 bytes.
pub fn stripe_id(bytes: &Bytes) -> Result<StripeId, StripeError> {
    id16(bytes, "a block").map(StripeId::from_bytes)
}

/// Parses the 16-byte id of a stripe, an upload or a segment.
///
/// # Errors
/// [`StripeError::Inconsistent`] for any other length.
pub fn id16(bytes: &Bytes, what: &str) -> Result<[u8; 16], StripeError> {
    bytes.as_ref().try_into().map_err(|_| StripeError::Inconsistent {
        what: what.to_owned(),
        reason: format!("its id has {} bytes instead of 16", bytes.len()),
    })
}

impl OpenedStripe {
    /// Returns the file of a chunk, as the record has it.
    pub fn file(&self, index: usize) -> ChunkId {
        file_of(self.id, &self.record, index)
    }

    /// See [`has_place`].
    pub fn has_place(&self, index: usize) -> bool {
        has_place(&self.record, self.code.k(), index)
    }

    /// Length of a chunk in bytes.
    pub fn len_of(&self, index: usize) -> u32 {
        len_of(&self.record, index)
    }

    /// Returns the wide stripe that protects a chunk, and the chunk's position there.
    pub fn wide_of(&self, index: usize) -> Option<(StripeId, usize)> {
        wide_of(self.record.locations.get(index)?)
    }
}

/// Whether a chunk should be stored somewhere. False for parities that a stripe of `k` data chunks has dropped,
/// parities that a wide stripe does not have yet, holes of a wide stripe, and chunks of a dead stripe that no
/// wide stripe needs.
pub fn has_place(stripe: &Stripe, k: usize, index: usize) -> bool {
    let is_unsealed = matches!(stripe.wide_state(), WideState::Building | WideState::Aborting);
    let is_dropped = (stripe.dropped || is_unsealed) && index >= k;
    let is_unneeded = stripe.dead && wide_of(&stripe.locations[index]).is_none();
    !is_dropped && !is_unneeded && !is_hole(stripe, index)
}

/// Returns the length of a stripe's chunk in bytes. A member of a wide stripe may be shorter than its parities.
pub fn len_of(stripe: &Stripe, index: usize) -> u32 {
    match stripe.members.get(index) {
        Some(member) if member.len != 0 => member.len,
        _ => stripe.chunk_len,
    }
}

/// Returns the wide stripe of which a chunk is a member, and the chunk's position there.
pub fn wide_of(location: &Location) -> Option<(StripeId, usize)> {
    Some((location.wide_stripe()?, location.position as usize))
}

/// Returns the file of a chunk. A data chunk of a wide stripe keeps its name in the stripe it was written in.
pub fn file_of(id: StripeId, stripe: &Stripe, index: usize) -> ChunkId {
    let generation = Generation(stripe.locations[index].generation);
    let member =
        stripe.members.get(index).and_then(|member| Some((member.stripe_id()?, member.index as usize)));
    let (stripe, index) = member.unwrap_or((id, index));
    ChunkId { stripe, index: index as u8, generation }
}

/// Whether a position of a wide stripe has no member. A hole counts as zeros.
pub fn is_hole(stripe: &Stripe, index: usize) -> bool {
    stripe.members.get(index).is_some_and(|member| member.stripe.is_empty())
}

/// Returns the chunks whose files belong to the stripe itself, with their indices: all but the members of a
/// wide stripe.
pub fn own_locations(stripe: &Stripe) -> impl Iterator<Item = (usize, &Location)> + Clone {
    stripe.locations.iter().enumerate().skip(stripe.members.len())
}

/// Returns the sites that hold a file of the stripe itself.
pub fn holders(stripe: &Stripe) -> Vec<SiteId> {
    let own = own_locations(stripe).filter(|(_, location)| location.site != 0);
    own.map(|(_, location)| SiteId(location.site)).collect()
}
