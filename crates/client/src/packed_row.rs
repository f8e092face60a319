//! Where a packed object's bytes are while their receiver takes them slowly.
//!
//! Bytes that no row names any more may be overwritten, by those of other objects, once the grace has passed. A part of
//! an extent has no checksum of its own that would show it. So a read that begins long after the object's row was
//! looked up looks it up again.

use bytes::Bytes;
use striate_meta::Row;
use striate_meta::records::{Object, object::Body};
use striate_runtime::Instant;
use striate_stripe::StoredBytes;

use crate::blocks::gone;
use crate::{Client, ClientError};

/// A row counts for one part in this many of the grace. Rows of a read of many objects may be half a grace old before,
/// and the read itself needs time.
const PART_OF_GRACE: u32 = 4;

/// A packed object's row, as it was last looked up.
pub(crate) struct PackedRow {
    key: Bytes,
    version: [u8; 16],
    stored: StoredBytes,
    looked_up: Instant,
}

impl PackedRow {
    /// Remembers a row that was just looked up; `None` unless its object is packed.
    pub(crate) fn of(client: &Client, row: &Row, version: [u8; 16], body: &Body) -> Option<Self> {
        let Body::Extent(extent) = body else { return None };
        let (key, looked_up) = (row.key.clone(), client.inner.runtime.now());
        Some(Self { key, version, stored: extent.clone().into(), looked_up })
    }

    /// Returns where the object's bytes are now. Looks up a row that does not count any more.
    ///
    /// # Errors
    /// [`ClientError::Inconsistent`] if the object was replaced, or is in several pieces now.
    pub(crate) async fn place(&mut self, client: &Client) -> Result<StoredBytes, ClientError> {
        let (now, grace) = (client.inner.runtime.now(), client.inner.stripes.options().garbage_grace);
        if now.saturating_duration_since(self.looked_up) > grace / PART_OF_GRACE {
            let row = client.inner.meta.get(&self.key).await?;
            let object: Option<Object> = row.map(|row| row.record()).transpose()?;
            let stored = object.and_then(|object| self.stored_now(object));
            self.stored = stored.ok_or_else(|| gone("a packed object".to_owned()))?;
            self.looked_up = now;
        }
        Ok(self.stored.clone())
    }

    /// Returns the bytes of the same object: its version stays when it moves, and its place when only its description
    /// changes.
    fn stored_now(&self, object: Object) -> Option<StoredBytes> {
        let stored: StoredBytes = match object.body? {
            Body::Extent(extent) => extent.into(),
            Body::Blocks(list) => match <[_; 1]>::try_from(list.blocks) {
                Ok([block]) => block.into(),
                Err(_) => return None,
            },
            Body::Inline(_) | Body::Manifest(_) | Body::Uploaded(_) | Body::Memory(_) => return None,
        };
        (object.version == self.version[..] || stored == self.stored).then_some(stored)
    }
}
