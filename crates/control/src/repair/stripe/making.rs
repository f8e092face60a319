//! Steps 2 and 3 of a repair: lost chunks are made, at their new site or in this process, and written.

use bytes::{Bytes, BytesMut};
use futures::future::join_all;
use striate_codec::crc32c;
use striate_core::{Generation, SiteId, StripeId};
use striate_meta::records::Stripe;
use striate_plan::{ChunkState, CombineTree, StripeRepair};
use striate_site::SiteError;
use striate_stripe::{OpenedStripe, StripeError, file_of};

use super::{Findings, Job};

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
        findings.note_failure(site, &error);
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

    /// Performs step 2 for the one lost chunk of a plan, slice by slice. Returns the chunk, or nothing; `findings`
    /// then has the bad sources.
    pub(super) async fn sum_locally(
        &self,
        plan: &StripeRepair,
        costs: &[f64],
        findings: &mut Findings,
    ) -> Result<Vec<Bytes>, StripeError> {
        let (index, target) = plan.targets[0];
        let sum = self.change.sum_locally(&self.terms(index, target, costs)).await;
        self.take_sum(index, sum, (self.change.id, &self.change.record), findings)
    }

    /// As [`Job::sum_locally`], for a lost member, from what a tree over its wide stripe would add up.
    pub(super) async fn sum_in_wide(
        &self,
        index: usize,
        wide: &OpenedStripe,
        tree: &CombineTree,
        findings: &mut Findings,
    ) -> Result<Vec<Bytes>, StripeError> {
        let sum = self.change.sum_over(wide, &tree.terms()).await;
        self.take_sum(index, sum, (wide.id, &wide.record), findings)
    }

    /// Evaluates a sum over a stripe's chunks that was added up here.
    fn take_sum(
        &self,
        index: usize,
        sum: Result<Bytes, Vec<(usize, SiteError)>>,
        (summed, record): (StripeId, &Stripe),
        findings: &mut Findings,
    ) -> Result<Vec<Bytes>, StripeError> {
        match sum {
            Ok(sum) if crc32c(&sum) == self.change.record.locations[index].crc32c => Ok(vec![sum]),
            Ok(_) => Err(self.no_match(index)),
            Err(bad) => {
                for (at, error) in bad {
                    let site = SiteId(record.locations[at].site);
                    findings.note_bad_source(file_of(summed, record, at), site, &error);
                }
                Ok(Vec::new())
            }
        }
    }

    fn no_match(&self, index: usize) -> StripeError {
        let reason = format!("the rebuilt chunk {index} does not match the original encoding's checksum");
        StripeError::Inconsistent { what: format!("stripe {}", self.change.id), reason }
    }

    /// Performs step 2: returns the payloads of the plan's targets, or nothing; `findings` then has the bad sources.
    pub(super) async fn rebuild(
        &self,
        plan: &StripeRepair,
        findings: &mut Findings,
    ) -> Result<Vec<Bytes>, StripeError> {
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
            let (chunk, location) = (self.change.chunk(index), &self.change.record.locations[index]);
            let error = match read {
                Ok(bytes) if crc32c(&bytes) == location.crc32c => {
                    inputs.push(filled_up(bytes, self.change.record.chunk_len));
                    continue;
                }
                Ok(_) => SiteError::Corrupt { chunk, reason: "it is not what was encoded".to_owned() },
                Err(error) => error,
            };
            findings.note_bad_source(chunk, SiteId(location.site), &error);
        }
        if inputs.len() < plan.decode.sources().len() {
            return Ok(Vec::new());
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
        Ok(outputs.into_iter().map(BytesMut::freeze).collect())
    }

    /// Performs step 3: writes the new chunks. Returns those that are durable; `findings` has the sites that refused
    /// theirs.
    pub(super) async fn write(
        &mut self,
        targets: &[(usize, SiteId)],
        generation: Generation,
        chunks: Vec<Bytes>,
        findings: &mut Findings,
    ) -> Vec<(usize, SiteId)> {
        let writes = targets.iter().zip(chunks);
        let writes =
            writes.map(|(&(index, site), payload)| self.change.write_chunk(index, site, generation, payload));
        let results = join_all(writes).await;
        let mut written = Vec::new();
        for (&(index, site), result) in targets.iter().zip(results) {
            match result {
                Ok(()) => written.push((index, site)),
                Err(error) => {
                    self.change.note_refusal(index, site, generation, &error);
                    findings.note_failure(site, &error);
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
