//! One update: the client reads a range and writes it, and the parities follow.

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::future::try_join_all;
use striate_codec::{ChecksumChange, MultipleChecksums, accumulate, gf256};
use striate_core::{ChunkId, ChunkRange, Generation, RackId};
use striate_site::{
    AssembleRequest, CombineRequest, CombineSource, LocalTerm, Priority, ReadRequest, SiteError, Window,
};
use striate_stripe::SLICE_LEN;

use super::workload::Change;
use super::{File, RackUpdate};
use crate::rack_repair::RackRepairError;

/// A running update.
pub(super) struct Step<'a> {
    trial: &'a RackUpdate,
    at: Change,
    old: Bytes,
    new: Bytes,
    checksums: ChecksumChange,
    /// New files, by chunk index.
    pub(super) new_files: Vec<(usize, File)>,
    pub(super) crossed: u64,
}

impl<'a> Step<'a> {
    /// Reads, as the client, the range to be replaced.
    pub(super) async fn new(trial: &'a RackUpdate, at: Change, new: Bytes) -> Result<Self, RackRepairError> {
        let mut step = Self {
            trial,
            at,
            old: Bytes::new(),
            new,
            checksums: ChecksumChange::default(),
            new_files: Vec::new(),
            crossed: 0,
        };
        step.old = step.read(at.data.chunk).await?;
        step.crossed += step.len();
        let behind = trial.load.chunk_len - at.offset - trial.load.range_len;
        let [before, after] = [&step.old, &step.new].map(|bytes| MultipleChecksums::of(bytes));
        step.checksums.replace(&before, &after, behind.into());
        Ok(step)
    }

    fn len(&self) -> u64 {
        self.trial.load.range_len.into()
    }

    /// The client writes the chunk and the parities, which it has read.
    pub(super) async fn by_client(&mut self) -> Result<(), RackRepairError> {
        let parities = self.trial.parities(self.at.data.chunk);
        let read = try_join_all(parities.iter().map(|&parity| self.read(parity))).await?;
        self.crossed += self.len() * parities.len() as u64;
        let mut difference = BytesMut::from(&self.old[..]);
        accumulate(1, &self.new, &mut difference);
        let mut windows = vec![(self.at.data.chunk, 1, self.written(self.new.clone()))];
        for (&parity, old) in parities.iter().zip(read) {
            let (factor, mut bytes) = (self.factor(parity), BytesMut::from(&old[..]));
            accumulate(factor, &difference, &mut bytes);
            windows.push((parity, factor, self.written(bytes.freeze())));
        }
        self.crossed += self.len() * windows.len() as u64;
        self.new_files = try_join_all(
            windows.into_iter().map(|(index, factor, window)| self.amend(index, factor, window)),
        )
        .await?;
        Ok(())
    }

    /// The client writes the chunk, whose site forwards the difference.
    pub(super) async fn by_sites(&mut self) -> Result<(), RackRepairError> {
        let data = self.at.data.chunk;
        let written = self.amend(data, 1, self.written(self.new.clone())).await?;
        self.crossed += self.len();
        self.new_files.push(written);
        let parities = self.trial.parities(data);
        let (direct, following) =
            parities.split_at(if self.trial.method.inner_global { 2 } else { parities.len() });
        let sent = try_join_all(direct.iter().map(|&parity| self.follow(parity, data, written.1))).await?;
        self.add(sent);
        if let [_, first] = *direct {
            let first_made = self.new_files.iter().find(|(index, _)| *index == first).expect("it was made").1;
            let sent =
                try_join_all(following.iter().map(|&parity| self.follow(parity, first, first_made))).await?;
            self.add(sent);
        }
        Ok(())
    }

    fn add(&mut self, sent: Vec<((usize, File), u64)>) {
        for (new_file, crossed) in sent {
            self.new_files.push(new_file);
            self.crossed += crossed;
        }
    }

    /// Makes a parity follow a change of another chunk. Also returns the bytes that crossed racks.
    async fn follow(
        &self,
        parity: usize,
        source: usize,
        new_file: File,
    ) -> Result<((usize, File), u64), RackRepairError> {
        let (file, old) = (self.file(parity), self.file(source));
        let factor = self.factor(parity);
        let of_source = if source == self.at.data.chunk { 1 } else { self.factor(source) };
        let by = gf256::div(factor, of_source);
        let len = self.trial.load.chunk_len;
        let local = [old, new_file].map(|file| LocalTerm { by, chunk: file.chunk, len });
        let from = self.request(local.to_vec());
        let to = CombineRequest {
            local: Vec::new(),
            upstream: vec![CombineSource { site: self.trial.sites[old.site].id(), request: from.clone() }],
            ..from
        };
        let new_file = self.amend(parity, factor, Window::Sum(to)).await?;
        let crosses = self.rack(old.site) != self.rack(file.site);
        Ok((new_file, if crosses { self.len() } else { 0 }))
    }

    fn rack(&self, site: usize) -> RackId {
        self.trial.sites[site].rack()
    }

    fn file(&self, index: usize) -> File {
        self.trial.files[&(self.at.data.stripe, index)]
    }

    fn factor(&self, parity: usize) -> u8 {
        self.trial.code.coefficient(parity, self.at.data.chunk)
    }

    fn written(&self, bytes: Bytes) -> Window {
        Window::Bytes { offset: self.at.offset, bytes }
    }

    /// Returns a request for a sum over the updated range.
    fn request(&self, local: Vec<LocalTerm>) -> CombineRequest {
        CombineRequest {
            offset: self.at.offset,
            len: self.trial.load.range_len,
            slice_len: SLICE_LEN,
            local,
            upstream: Vec::new(),
            priority: Priority::Foreground,
        }
    }

    async fn read(&self, index: usize) -> Result<Bytes, RackRepairError> {
        let file = self.file(index);
        let ranges =
            vec![ChunkRange { chunk: file.chunk, offset: self.at.offset, len: self.trial.load.range_len }];
        let request = ReadRequest { ranges, priority: Priority::Foreground, deadline: None };
        let reply = self.trial.sites[file.site].read(request).next().await;
        let unanswered = || SiteError::Unavailable("its answer ended early".to_owned());
        let bytes = reply.ok_or_else(unanswered).and_then(|reply| reply.result);
        bytes.map_err(|reason| self.trial.failed(file.site, reason))
    }

    /// Has a site make the next generation of a chunk.
    async fn amend(
        &self,
        index: usize,
        factor: u8,
        window: Window,
    ) -> Result<(usize, File), RackRepairError> {
        let old = self.file(index);
        let generation = Generation(old.chunk.generation.0 + 1);
        let new_file = File {
            chunk: ChunkId { generation, ..old.chunk },
            crc32c: self.checksums.apply(old.crc32c, factor),
            ..old
        };
        let len = self.trial.load.chunk_len;
        let whole = CombineRequest {
            offset: 0,
            len,
            ..self.request(vec![LocalTerm { by: 1, chunk: old.chunk, len }])
        };
        let request = AssembleRequest {
            chunk: new_file.chunk,
            crc32c: new_file.crc32c,
            combination: whole,
            windows: vec![window],
        };
        let stored = self.trial.sites[old.site].assemble(request).await;
        stored.map(|_| (index, new_file)).map_err(|reason| self.trial.failed(old.site, reason))
    }
}
