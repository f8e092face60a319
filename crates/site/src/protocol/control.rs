//! Converts the Protobuf messages of the control protocol and of combinations to and from the types of [`crate::api`].

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use striate_core::{ChunkId, ClusterId, Formats, LoadReport, RackId, SiteId, StripeId};

use super::PROTOCOL_VERSION;
use super::frame::{decode_error, decode_priority, encode_error, encode_priority};
use super::limits::{MAX_CHUNK_LEN, MAX_TREE_DEPTH};
use crate::api::{
    AssembleRequest, CachedBlockState, CombineRequest, CombineSource, LocalTerm, Priority, SiteError,
    SiteStatus, Tend, TendEvent, Tended, Window,
};
use crate::cache::{CacheView, MOST_PARITIES};
use crate::store::{ChunkInfo, StoreStatus};

/// The generated messages, client and server.
#[allow(missing_docs, clippy::all, reason = "generated from proto/site.proto, which documents it")]
pub mod generated {
    include!("../../proto/site.rs");
}

pub use generated as messages;

/// Encodes a load report as a message.
pub(crate) fn load_message(load: LoadReport) -> messages::Load {
    messages::Load {
        sequence: load.sequence,
        queue_requests: load.queue_requests,
        queue_bytes: load.queue_bytes,
        cpu_permille: load.cpu_permille.into(),
        io_permille: load.io_permille.into(),
        chunks: load.chunks,
        used_bytes: load.used_bytes,
        free_bytes: load.free_bytes,
        workers: load.workers,
    }
}

/// The inverse of [`load_message`].
pub(crate) fn load_report(load: messages::Load) -> LoadReport {
    LoadReport {
        sequence: load.sequence,
        queue_requests: load.queue_requests,
        queue_bytes: load.queue_bytes,
        cpu_permille: load.cpu_permille.min(1000) as u16,
        io_permille: load.io_permille.min(1000) as u16,
        chunks: load.chunks,
        used_bytes: load.used_bytes,
        free_bytes: load.free_bytes,
        workers: load.workers,
    }
}

/// Encodes an error as a message.
pub(crate) fn error_message(error: &SiteError) -> messages::Error {
    let (status, detail) = encode_error(error);
    messages::Error { status: status.into(), detail }
}

/// The inverse of [`error_message`]; an unknown error becomes [`SiteError::Unavailable`].
pub(crate) fn site_error(error: messages::Error) -> SiteError {
    let decoded = u8::try_from(error.status).ok().and_then(|status| decode_error(status, &error.detail));
    decoded
        .unwrap_or_else(|| SiteError::Unavailable(format!("it answered with unknown error {}", error.status)))
}

/// Returns a chunk's name as bytes.
pub fn chunk_bytes(chunk: ChunkId) -> Bytes {
    Bytes::copy_from_slice(&chunk.to_bytes())
}

/// The inverse of [`chunk_bytes`].
///
/// # Errors
/// [`SiteError::BadRequest`] for any other length.
pub fn chunk_id(bytes: &[u8]) -> Result<ChunkId, SiteError> {
    let wrong = || SiteError::BadRequest(format!("a chunk's name of {} bytes", bytes.len()));
    ChunkId::from_bytes(bytes).ok_or_else(wrong)
}

/// Encodes a stored chunk as a message.
pub(crate) fn chunk_message(info: ChunkInfo) -> messages::Chunk {
    messages::Chunk { chunk: chunk_bytes(info.chunk), len: info.len, crc32c: info.crc32c }
}

/// The inverse of [`chunk_message`].
///
/// # Errors
/// As [`chunk_id`].
pub(crate) fn chunk_info(chunk: messages::Chunk) -> Result<ChunkInfo, SiteError> {
    Ok(ChunkInfo { chunk: chunk_id(&chunk.chunk)?, len: chunk.len, crc32c: chunk.crc32c })
}

/// Encodes notices on cached blocks as a request.
pub(crate) fn tend_message(blocks: &[Tend]) -> messages::TendRequest {
    let message = |tend: &Tend| {
        let (matter, parities) = match tend.matter {
            TendEvent::Look => (messages::tend::Matter::Look, 0),
            TendEvent::Filled { parities } => (messages::tend::Matter::Filled, parities),
            TendEvent::GaveUp => (messages::tend::Matter::GaveUp, 0),
            TendEvent::Lost => (messages::tend::Matter::Lost, 0),
        };
        messages::Tend {
            name: Bytes::copy_from_slice(&tend.name.to_bytes()),
            split_len: tend.split_len,
            reads: tend.reads,
            matter: matter.into(),
            parities: parities.into(),
            grant: tend.grant,
        }
    };
    messages::TendRequest { blocks: blocks.iter().map(message).collect() }
}

/// The inverse of [`tend_message`].
///
/// # Errors
/// [`SiteError::BadRequest`] for a malformed request.
pub(crate) fn tend_blocks(request: messages::TendRequest) -> Result<Vec<Tend>, SiteError> {
    let malformed = || SiteError::BadRequest("what is told of a cached block is malformed".to_owned());
    let tend = |tend: messages::Tend| {
        let parities = u8::try_from(tend.parities).map_err(|_| malformed())?;
        let matter = match messages::tend::Matter::try_from(tend.matter).map_err(|_| malformed())? {
            messages::tend::Matter::Look => TendEvent::Look,
            messages::tend::Matter::Filled => TendEvent::Filled { parities },
            messages::tend::Matter::GaveUp => TendEvent::GaveUp,
            messages::tend::Matter::Lost => TendEvent::Lost,
        };
        let name: [u8; 16] = tend.name[..].try_into().map_err(|_| malformed())?;
        let (name, split_len, reads) = (StripeId::from_bytes(name), tend.split_len, tend.reads);
        Ok(Tend { name, split_len, reads, matter, grant: tend.grant })
    };
    request.blocks.into_iter().map(tend).collect()
}

/// Encodes the states of cached blocks as messages.
pub(crate) fn tended_messages(blocks: Vec<Tended>) -> Vec<messages::Tended> {
    let message = |tended: Tended| {
        let (standing, parities) = match tended.standing {
            CachedBlockState::Filled { parities } => (messages::tended::Standing::Filled, parities),
            CachedBlockState::Granted => (messages::tended::Standing::Granted, 0),
            CachedBlockState::Filling => (messages::tended::Standing::Filling, 0),
        };
        messages::Tended {
            standing: standing.into(),
            parities: parities.into(),
            wanted_parities: tended.wanted_parities.into(),
            grant: tended.grant,
        }
    };
    blocks.into_iter().map(message).collect()
}

/// The inverse of [`tended_messages`]; an unknown state becomes [`CachedBlockState::Filling`].
pub(crate) fn tended_blocks(blocks: Vec<messages::Tended>) -> Vec<Tended> {
    let most = |number: u32| number.min(u8::MAX.into()) as u8;
    let tended = |tended: messages::Tended| {
        let standing = match tended.standing() {
            messages::tended::Standing::Filled => {
                CachedBlockState::Filled { parities: most(tended.parities) }
            }
            messages::tended::Standing::Granted => CachedBlockState::Granted,
            messages::tended::Standing::Filling => CachedBlockState::Filling,
        };
        Tended { standing, wanted_parities: most(tended.wanted_parities), grant: tended.grant }
    };
    blocks.into_iter().map(tended).collect()
}

/// Encodes a status as a reply.
pub(crate) fn status_message(status: SiteStatus) -> messages::StatusReply {
    let store = status.store;
    messages::StatusReply {
        load: Some(load_message(status.load)),
        error: None,
        protocol_version: PROTOCOL_VERSION,
        cluster: Bytes::copy_from_slice(&status.cluster.0.to_be_bytes()),
        site: status.site.0,
        rack: status.rack.0,
        store: Some(messages::Store {
            chunks: store.chunks,
            payload_bytes: store.payload_bytes,
            disk_bytes: store.disk_bytes,
            capacity_bytes: store.capacity_bytes,
            free_bytes: store.free_bytes,
            medium: store.medium,
            suspect: store.suspect,
            silent_ms: store.silent.map(|silence| silence.as_millis() as u64),
            vanished: store.vanished,
        }),
        read_bytes_per_s: status.read_bytes_per_s,
        record_format: status.reads.records,
        chunk_format: status.reads.chunks,
        program: status.program,
        cache: status.cache.map(cache_message),
    }
}

/// Encodes the contents of a cache as a message.
fn cache_message(view: CacheView) -> messages::Cache {
    messages::Cache {
        bound_bytes: view.bound_bytes,
        charged_bytes: view.charged_bytes,
        index_bytes: view.index_bytes,
        chunks: view.chunks,
        payload_bytes: view.payload_bytes,
        data_bytes: view.data_bytes,
        parity_bytes: view.parity_bytes,
        hits: view.hits,
        read_bytes: view.read_bytes,
        misses: view.misses,
        added: view.added,
        evicted_data: view.evicted_data,
        evicted_parities: view.evicted_parities,
        deleted: view.deleted,
        damaged: view.damaged,
        refused: view.refused,
        other_bytes: view.other_bytes,
        blocks_by_parities: view.blocks_by_parities.into(),
    }
}

/// The inverse of [`cache_message`].
fn cache_view(cache: messages::Cache) -> CacheView {
    let mut blocks_by_parities = [0; MOST_PARITIES + 1];
    blocks_by_parities.iter_mut().zip(&cache.blocks_by_parities).for_each(|(of, told)| *of = *told);
    CacheView {
        bound_bytes: cache.bound_bytes,
        charged_bytes: cache.charged_bytes,
        index_bytes: cache.index_bytes,
        chunks: cache.chunks,
        payload_bytes: cache.payload_bytes,
        data_bytes: cache.data_bytes,
        parity_bytes: cache.parity_bytes,
        hits: cache.hits,
        read_bytes: cache.read_bytes,
        misses: cache.misses,
        added: cache.added,
        evicted_data: cache.evicted_data,
        evicted_parities: cache.evicted_parities,
        deleted: cache.deleted,
        damaged: cache.damaged,
        refused: cache.refused,
        other_bytes: cache.other_bytes,
        blocks_by_parities,
    }
}

/// The inverse of [`status_message`].
///
/// # Errors
/// [`SiteError::Unavailable`] when a part is missing or malformed.
pub(crate) fn site_status(reply: messages::StatusReply) -> Result<SiteStatus, SiteError> {
    let malformed = || SiteError::Unavailable("its status is malformed".to_owned());
    let cluster: [u8; 16] = reply.cluster[..].try_into().map_err(|_| malformed())?;
    let store = reply.store.ok_or_else(malformed)?;
    Ok(SiteStatus {
        site: SiteId(reply.site),
        cluster: ClusterId(u128::from_be_bytes(cluster)),
        rack: RackId(reply.rack),
        load: load_report(reply.load.ok_or_else(malformed)?),
        read_bytes_per_s: reply.read_bytes_per_s,
        reads: Formats::from_numbers(reply.record_format, reply.chunk_format),
        program: reply.program,
        cache: reply.cache.map(cache_view),
        store: StoreStatus {
            chunks: store.chunks,
            payload_bytes: store.payload_bytes,
            disk_bytes: store.disk_bytes,
            capacity_bytes: store.capacity_bytes,
            free_bytes: store.free_bytes,
            medium: store.medium,
            suspect: store.suspect,
            silent: store.silent_ms.map(Duration::from_millis),
            vanished: store.vanished,
        },
    })
}

/// Encodes the request for a combination as bytes. Offset, length, slices and priority are those of the root: all nodes
/// of the tree agree on them ([`crate::combine::check`]).
pub(crate) fn encode_combine(request: &CombineRequest) -> Bytes {
    combine_message(request).encode_to_vec().into()
}

fn combine_message(request: &CombineRequest) -> messages::Combine {
    messages::Combine {
        offset: request.offset,
        len: request.len,
        slice_len: request.slice_len,
        priority: encode_priority(request.priority).into(),
        root: Some(node_message(request)),
    }
}

fn node_message(request: &CombineRequest) -> messages::CombineNode {
    let term = |term: &LocalTerm| messages::Term {
        coefficient: term.by.into(),
        chunk: chunk_bytes(term.chunk),
        len: term.len,
    };
    let upstream = |source: &CombineSource| messages::Upstream {
        site: source.site.0,
        node: Some(node_message(&source.request)),
    };
    messages::CombineNode {
        local: request.local.iter().map(term).collect(),
        upstream: request.upstream.iter().map(upstream).collect(),
    }
}

/// The inverse of [`encode_combine`].
///
/// # Errors
/// A text that describes the fault.
pub(crate) fn decode_combine(bytes: &[u8]) -> Result<CombineRequest, String> {
    combine_request(messages::Combine::decode(bytes).map_err(|error| error.to_string())?)
}

fn combine_request(message: messages::Combine) -> Result<CombineRequest, String> {
    let priority = u8::try_from(message.priority).map_err(|_| "the priority is out of range".to_owned())?;
    let frame = CombineRequest {
        offset: message.offset,
        len: message.len,
        slice_len: message.slice_len,
        local: Vec::new(),
        upstream: Vec::new(),
        priority: decode_priority(priority)?,
    };
    decode_node(message.root.ok_or("the tree has no root")?, &frame, MAX_TREE_DEPTH)
}

/// Encodes the request for an assembled chunk as bytes, followed by the bytes of its windows in order.
pub(crate) fn encode_assemble(request: &AssembleRequest) -> (Bytes, Bytes) {
    let (mut windows, mut payload) = (Vec::with_capacity(request.windows.len()), Vec::new());
    for window in &request.windows {
        let (offset, len) = window.place();
        windows.push(match window {
            Window::Sum(sum) => messages::Window { sum: Some(combine_message(sum)), offset: 0, len: 0 },
            Window::Bytes { .. } => messages::Window { sum: None, offset, len },
        });
        if let Window::Bytes { bytes, .. } = window {
            payload.push(bytes.clone());
        }
    }
    let message = messages::Assemble {
        chunk: chunk_bytes(request.chunk),
        crc32c: request.crc32c,
        combination: Some(combine_message(&request.combination)),
        windows,
    };
    let payload = match payload.len() {
        // Long windows mostly come alone.
        1 => payload.remove(0),
        _ => payload.concat().into(),
    };
    (message.encode_to_vec().into(), payload)
}

/// A request for an assembled chunk whose windows' bytes are still to come.
#[derive(Clone, Debug)]
pub struct AnnouncedAssemble {
    request: AssembleRequest,
    announced: Vec<messages::Window>,
}

impl AnnouncedAssemble {
    /// The inverse of [`encode_assemble`], without the bytes of windows.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let message = messages::Assemble::decode(bytes).map_err(|error| error.to_string())?;
        let request = AssembleRequest {
            chunk: ChunkId::from_bytes(&message.chunk).ok_or("a chunk's name has a wrong length")?,
            crc32c: message.crc32c,
            combination: combine_request(message.combination.ok_or("there is no combination")?)?,
            windows: Vec::new(),
        };
        // Memory is reserved for this length, and as many bytes may follow, before anything else is checked.
        if request.combination.len > MAX_CHUNK_LEN {
            return Err(format!("a chunk of more than {MAX_CHUNK_LEN} bytes"));
        }
        Ok(Self { request, announced: message.windows })
    }

    /// Returns the length of the chunk in bytes, and the priority of the request.
    pub fn chunk(&self) -> (u32, Priority) {
        (self.request.combination.len, self.request.combination.priority)
    }

    /// Returns the number of bytes of windows that are still to come.
    pub fn payload_len(&self) -> u64 {
        let of_bytes = self.announced.iter().filter(|window| window.sum.is_none());
        of_bytes.map(|window| u64::from(window.len)).sum()
    }

    /// Completes the request with the bytes that came.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub(crate) fn with_payload(self, mut payload: Bytes) -> Result<AssembleRequest, String> {
        let Self { mut request, announced } = self;
        for messages::Window { sum, offset, len } in announced {
            request.windows.push(match sum {
                Some(sum) => Window::Sum(combine_request(sum)?),
                None if len as usize > payload.len() => return Err("a window lacks bytes".to_owned()),
                None => Window::Bytes { offset, bytes: payload.split_to(len as usize) },
            });
        }
        Ok(request)
    }
}

fn decode_node(
    node: messages::CombineNode,
    frame: &CombineRequest,
    levels_left: usize,
) -> Result<CombineRequest, String> {
    let levels_left = levels_left.checked_sub(1).ok_or("the tree is too deep")?;
    let term = |term: messages::Term| {
        let by = u8::try_from(term.coefficient).map_err(|_| "a coefficient is out of range")?;
        let chunk = ChunkId::from_bytes(&term.chunk).ok_or("a chunk's name has a wrong length")?;
        let len = if term.len == 0 { frame.offset.saturating_add(frame.len) } else { term.len };
        Ok::<_, String>(LocalTerm { by, chunk, len })
    };
    let upstream = |source: messages::Upstream| {
        let node = source.node.ok_or("an upstream site has nothing to do")?;
        let request = decode_node(node, frame, levels_left)?;
        Ok::<_, String>(CombineSource { site: SiteId(source.site), request })
    };
    Ok(CombineRequest {
        local: node.local.into_iter().map(term).collect::<Result<_, _>>()?,
        upstream: node.upstream.into_iter().map(upstream).collect::<Result<_, _>>()?,
        ..frame.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::chunk_id;

    #[test]
    fn a_chunk_to_be_made_is_no_longer_than_any_other() {
        let announce = |len| {
            let local = vec![LocalTerm { by: 1, chunk: chunk_id(1, 0, 1), len }];
            let (offset, slice_len, upstream, priority) = (0, 4096, Vec::new(), Priority::Repair);
            let combination = CombineRequest { offset, len, slice_len, local, upstream, priority };
            let (chunk, crc32c, windows) = (chunk_id(2, 0, 1), 0, Vec::new());
            AnnouncedAssemble::decode(
                &encode_assemble(&AssembleRequest { chunk, crc32c, combination, windows }).0,
            )
        };
        assert_eq!(announce(MAX_CHUNK_LEN).expect("as long as a chunk").chunk().0, MAX_CHUNK_LEN);
        for len in [MAX_CHUNK_LEN + 1, u32::MAX] {
            assert!(announce(len).is_err(), "{len} bytes would be reserved and taken");
        }
    }
}
