//! Steps 2 and 3 of a repair: lost chunks are made, at their new site or in this process, and written.

use bytes::{Bytes, BytesMut};
use futures::future::join_all;
use striate_codec::crc32c;
use striate_core::{Generation, SiteId};
use striate_plan::{ChunkState, CombineTree, StripeRepair};
use striate_site::SiteError;
use striate_stripe::StripeError;

use super::{Findings, Job, state_after};

impl Job<'_> {
    /// Performs steps 2 and 3 at the site that takes the one lost chunk. Returns the chunk, or nothing; `findings`
    /// then has the reason.
    pub(super) async fn assemble(
        &mut self,
        index: usize,
        tree: &CombineTree,
        generation: Generation,
        findings: &mut Findings,
    ) -> Vec<(usize, SiteId)> {
        let result = self.change.assemble_chunk(index, generation, tree).await;
        self.take_made(index, tree.site, generation, result, findings)
    }

    /// Evaluates a site's attempt to make a chunk.
    pub(super) fn take_made(
        &mut self,
        index: usize,
        site: SiteId,
        generation: Generation,
        result: Result<(), SiteError>,
        findings: &mut Findings,
    ) -> Vec<(usize, SiteId)> {
        let Err(error) = result else { return vec![(index, site)] };
        self.change.note_stray(index, site, generation, &error);
        tracing::debug!(stripe = %self.change.id, %site, %error, "a lost chunk could not be made at its new site");
        match error {
            SiteError::Missing(chunk) | SiteError::Corrupt { chunk, .. } => {
                findings.chunks.insert(chunk, ChunkState::Lost);
            }
            SiteError::NoSpace | SiteError::Busy | SiteError::Suspect(_) => {
                findings.refusals.insert(site, error.to_string());
            }
            // The next round shows whose fault it is.
            _ => findings.is_made_here = true,
        }
        Vec::new()
    }

    /// Performs step 2 for the one lost chunk of a plan, slice by slice. `None` if a source was bad; `findings` then
    /// has it.
    pub(super) async fn sum_locally(
        &self,
        plan: &StripeRepair,
        costs: &[f64],
        findings: &mut Findings,
    ) -> Result<Option<Vec<Bytes>>, StripeError> {
        let (index, target) = plan.targets[0];
        let error = match self.change.sum_locally(&self.terms(index, target, costs)).await {
            Ok(sum) if crc32c(&sum) == self.change.record.locations[index].crc32c => {
                return Ok(Some(vec![sum]));
            }
            Ok(_) => return Err(self.no_match(index)),
            Err(error) => error,
        };
        tracing::warn!(stripe = %self.change.id, index, %error, "a lost chunk cannot be computed now");
        if let SiteError::Missing(chunk) | SiteError::Corrupt { chunk, .. } = error {
            findings.chunks.insert(chunk, ChunkState::Lost);
        }
        Ok(None)
    }

    fn no_match(&self, index: usize) -> StripeError {
        let reason = format!("the rebuilt chunk {index} does not match the original encoding's checksum");
        StripeError::Inconsistent { what: format!("stripe {}", self.change.id), reason }
    }

    /// Performs step 2: returns the payloads of the plan's targets. `None` if a source was bad; `findings` then has
    /// it.
    pub(super) async fn rebuild(
        &self,
        plan: &StripeRepair,
        findings: &mut Findings,
    ) -> Result<Option<Vec<Bytes>>, StripeError> {
        let chunk_len = self.change.record.chunk_len as usize;
        let read = async |index: usize| match self.states[index] {
            ChunkState::Zero => None,
            _ => Some(self.change.read_chunk(index).await),
        };
        let reads = join_all(plan.decode.sources().iter().map(|&index| read(index))).await;
        let mut inputs = Vec::with_capacity(reads.len());
        for (&index, read) in plan.decode.sources().iter().zip(reads) {
            let Some(read) = read else {
                inputs.push(Bytes::from(vec![0; chunk_len]));
                continue;
            };
            let bad = match read {
                Ok(bytes) if crc32c(&bytes) == self.change.record.locations[index].crc32c => {
                    inputs.push(filled_up(bytes, self.change.record.chunk_len));
                    continue;
                }
                Ok(_) => ChunkState::Lost,
                Err(error) => state_after(&error),
            };
            tracing::warn!(chunk = %self.change.chunk(index), state = ?bad, "a source of a repair cannot be used");
            findings.chunks.insert(self.change.chunk(index), bad);
        }
        if inputs.len() < plan.decode.sources().len() {
            return Ok(None);
        }
        let mut outputs: Vec<BytesMut> = plan.targets.iter().map(|_| BytesMut::zeroed(chunk_len)).collect();
        let sources: Vec<&[u8]> = inputs.iter().map(Bytes::as_ref).collect();
        let mut refs: Vec<&mut [u8]> = outputs.iter_mut().map(BytesMut::as_mut).collect();
        plan.decode.apply(&sources, &mut refs).expect("whole chunks of one stripe have one length");
        for (&(index, _), output) in plan.targets.iter().zip(&outputs) {
            if crc32c(output) != self.change.record.locations[index].crc32c {
                return Err(self.no_match(index));
            }
        }
        Ok(Some(outputs.into_iter().map(BytesMut::freeze).collect()))
    }

    /// Performs step 3: writes the new chunks. Returns those that are durable; `findings` has the sites that refused
    /// theirs.
    pub(super) async fn write(
        &mut self,
        plan: &StripeRepair,
        generation: Generation,
        chunks: Vec<Bytes>,
        findings: &mut Findings,
    ) -> Vec<(usize, SiteId)> {
        let writes = plan.targets.iter().zip(chunks);
        let writes =
            writes.map(|(&(index, site), payload)| self.change.write_chunk(index, site, generation, payload));
        let results = join_all(writes).await;
        let mut written = Vec::new();
        for (&(index, site), result) in plan.targets.iter().zip(results) {
            match result {
                Ok(()) => written.push((index, site)),
                Err(error) => {
                    self.change.note_refusal(index, site, generation, &error);
                    findings.refusals.insert(site, error.to_string());
                }
            }
        }
        written
    }
}

/// Pads a chunk with zeros to `len` bytes.
fn filled_up(bytes: Bytes, len: u32) -> Bytes {
    if bytes.len() >= len as usize {
        return bytes;
    }
    let mut filled = BytesMut::from(&bytes[..]);
    filled.resize(len as usize, 0);
    filled.freeze()
}
