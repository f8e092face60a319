//! Prepares a request for s3s: verifies its signature, and holds or wraps its body.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use s3s::Body;

use super::Gateway;
use super::head::{host_of, set_apart, strip_signature, text, unframe};
use crate::address::Address;
use crate::auth::{self, Payload, SignatureContext};
use crate::authorize::Identity;
use crate::batch::Kind;
use crate::body::{ArrivingBody, RequestBody, RequestPermits, collect};
use crate::checksum;
use crate::documents::{Hold, PoolUser, batch_footprint};
use crate::form::{self, AcceptedForm, FormAnswer, FormContext};
use crate::operations::{self, Asked, Operation, check_conditions, resolve};
use crate::options::Limits;
use crate::peers::{InFlight, Peer};
use crate::refusal::Refusal;
use crate::remote_buckets::{self, ForwardedAddress};
use crate::trace::Trace;
use crate::translate::{BatchMark, RequestContext};
use crate::xml::{self, Document};

/// A request that is ready for s3s.
pub(super) struct PreparedRequest {
    pub(super) request: Request<Body>,
    pub(super) held: RequestPermits,
    /// Set if the request is a form: its response.
    pub(super) form: Option<FormAnswer>,
}

/// Message for a batch put with one hash of its whole body.
const HASHED_BATCH: &str = "The items of a batch put are stored one by one as they arrive, before a hash of the whole body \
                            could be verified: send x-amz-content-sha256: UNSIGNED-PAYLOAD (each frame has a checksum), or \
                            sign the chunks.";

/// How long a request waits until it can be recorded.
const AUDIT_WAIT: Duration = Duration::from_secs(5);
/// Message for a request that cannot be recorded.
const NOT_RECORDED: &str =
    "The audit log takes no entries, and requests that it does not record are refused.";

impl Gateway {
    /// Verifies the request's signature and prepares the request for s3s.
    pub(super) async fn prepare(
        &self,
        parts: Parts,
        incoming: ArrivingBody,
        trace: &Arc<Trace>,
        peer: &Arc<Peer>,
        bucket: &mut Option<String>,
    ) -> Result<PreparedRequest, Refusal> {
        let shared = &self.shared;
        let limits = &shared.options.limits;
        if parts.headers.len() > limits.header_count {
            let message = format!("A request has at most {} headers.", limits.header_count);
            return Err(Refusal::bad("RequestHeaderSectionTooLarge", message));
        }
        let address = Address::of(&shared.domains, host_of(&parts), parts.uri.path());
        let address = address
            .ok_or_else(|| Refusal::bad("InvalidURI", "The request's path is not UTF-8 when decoded."))?;
        trace.set_address(&address, text(&parts.headers, header::USER_AGENT).unwrap_or_default());
        *bucket = (!address.bucket.is_empty()).then(|| address.bucket.clone());
        match form::is_form(&parts) {
            true => self.prepare_form(&parts, incoming, trace, peer, address).await,
            false => self.prepare_signed(parts, incoming, trace, peer, address).await,
        }
    }

    /// Prepares a request that is signed in a header or in its query.
    async fn prepare_signed(
        &self,
        mut parts: Parts,
        incoming: ArrivingBody,
        trace: &Arc<Trace>,
        peer: &Arc<Peer>,
        address: Address,
    ) -> Result<PreparedRequest, Refusal> {
        if !auth::is_signed(&parts) {
            return Err(unsigned(&parts, &address, trace));
        }
        let (identity, payload, in_flight) = self.verify_signature(&mut parts, trace).await?;
        peer.recognise();
        let payer = peer.payer(&identity.access_key);
        let documents = self.shared.documents.used_by(payer, peer);
        let operation = resolved(&parts, &address, false, trace)?;
        check_frames(operation, &payload)?;
        self.mark_elsewhere(operation, &mut parts, &address, &identity)?;
        let headers = set_apart(&mut parts);
        if let Some(source) = parts.headers.get("x-amz-copy-source").and_then(|source| source.to_str().ok()) {
            trace.set_copy_source(source);
        }
        let batch = mark_batch(operation, &mut parts, &address, &documents);
        let is_document = operation.body == operations::RequestBody::Document;
        if batch == Some(Kind::Put) && matches!(payload, Payload::Sha256(_)) {
            return Err(Refusal::bad("InvalidRequest", HASHED_BATCH));
        }
        if is_document {
            check_held_len(&parts, &self.shared.options.limits)?;
        }
        let decoded_len = unframe(&mut parts, &payload)?;
        let trailers = announced_trailers(&parts.headers, &payload);
        let trace = Arc::clone(trace);
        let body =
            RequestBody::new(incoming, payload, decoded_len, trailers, Arc::clone(peer), trace.clone());
        let mut carried = RequestContext {
            trace,
            identity,
            operation,
            trailers: None,
            headers,
            by_form: false,
            taken_bytes: peer.taken_bytes(),
            payer,
        };
        let (body, document) = match is_document {
            true => self.hold_document(operation, &mut parts, body, &documents).await?,
            false => {
                carried.trailers = Some(body.trailers());
                (Body::from(Box::pin(body) as s3s::stream::DynByteStream), None)
            }
        };
        parts.extensions.insert(carried);
        let request = Request::from_parts(parts, body);
        Ok(PreparedRequest { request, held: (document, Some(in_flight)), form: None })
    }

    /// Verifies the signature and removes it from the request. Returns who signed, how the body is verified, and the
    /// request's place among those of the same key.
    async fn verify_signature(
        &self,
        parts: &mut Parts,
        trace: &Trace,
    ) -> Result<(Identity, Payload, InFlight), Refusal> {
        let by_host = self.shared.domains.bucket_of(host_of(parts));
        if let Some(claimed) = auth::claimed_key(parts) {
            trace.set_claimed_key(&claimed);
        }
        let verified = auth::verify(parts, &self.signature_context(by_host.as_deref())).await?;
        trace.set_access_key(&verified.access_key);
        let in_flight = self.begin_of_key(&verified.access_key).await?;
        strip_signature(parts, verified.presigned);
        Ok((Identity { access_key: verified.access_key }, verified.payload, in_flight))
    }

    /// `bucket_host` is the bucket that the host names.
    fn signature_context<'a>(&'a self, bucket_host: Option<&'a str>) -> SignatureContext<'a> {
        let shared = &self.shared;
        SignatureContext {
            keys: &shared.keys,
            region: &shared.options.region,
            bucket_host,
            now: shared.runtime.wall_time().as_secs(),
            allow_version_2: shared.options.allow_signature_v2,
        }
    }

    /// Refuses what nobody serves. Marks a request that another store answers, and checks that its sender may make it.
    fn mark_elsewhere(
        &self,
        operation: &'static Operation,
        parts: &mut Parts,
        address: &Address,
        identity: &Identity,
    ) -> Result<(), Refusal> {
        let is_elsewhere = self.shared.hooks.remote_buckets.has(&address.bucket);
        operation.check_served(is_elsewhere)?;
        if is_elsewhere && operation.forwarded {
            remote_buckets::allow(operation.action, parts, address, identity)?;
            parts.extensions.insert(ForwardedAddress { address: address.clone() });
        }
        Ok(())
    }

    /// Reads a document into memory and verifies its checksums. Returns it with the memory that it holds.
    async fn hold_document(
        &self,
        operation: &Operation,
        parts: &mut Parts,
        body: RequestBody,
        documents: &PoolUser,
    ) -> Result<(Body, Option<Hold>), Refusal> {
        let (limit, trailers) = (self.shared.options.limits.xml_bytes, body.trailers());
        let mut permit = None;
        let held = collect(body, limit, |len| documents.reserve(&mut permit, len)).await?;
        if operation.batch().is_some() {
            documents.reserve(&mut permit, batch_footprint(held.len()))?;
        }
        let trailers = trailers.lock().take().unwrap_or_default();
        checksum::check_headers(&parts.headers)?;
        // The checksum headers of CompleteMultipartUpload are the object's.
        match operation.name == "CompleteMultipartUpload" {
            true => checksum::verify_held(&checksum::without_checksums(&parts.headers), &trailers, &held)?,
            false => checksum::verify_held(&parts.headers, &trailers, &held)?,
        }
        let held = xml::plain(held)?;
        documents.reserve(&mut permit, held.len())?;
        parts.extensions.insert(Document(held.clone()));
        parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(held.len()));
        Ok((Body::from(held), permit))
    }

    /// Prepares the put that a POST form describes.
    async fn prepare_form(
        &self,
        parts: &Parts,
        incoming: ArrivingBody,
        trace: &Arc<Trace>,
        peer: &Arc<Peer>,
        mut address: Address,
    ) -> Result<PreparedRequest, Refusal> {
        let shared = &self.shared;
        form::check_address(&address)?;
        let operation = resolved(parts, &address, true, trace)?;
        let unsigned = shared.peers.unsigned().used_by(peer.payer(""), peer);
        let body =
            RequestBody::new(incoming, Payload::Unsigned, 0, Vec::new(), Arc::clone(peer), Arc::clone(trace));
        let by_host = shared.domains.bucket_of(host_of(parts));
        let front = FormContext {
            signatures: self.signature_context(by_host.as_deref()),
            trace,
            unsigned: &unsigned,
        };
        let AcceptedForm { access_key, put, answer } = form::accept(parts, body, &mut address, front).await?;
        trace.set_address(&address, text(&parts.headers, header::USER_AGENT).unwrap_or_default());
        if shared.hooks.remote_buckets.has(&address.bucket) {
            let reason = "Forms are not forwarded to another store; use PutObject.";
            return Err(Refusal::not_implemented(reason));
        }
        peer.recognise();
        let (payer, mut document) = (peer.payer(&access_key), None);
        shared.documents.used_by(payer, peer).reserve(&mut document, form::HELD_BYTES)?;
        let held = (document, Some(self.begin_of_key(&access_key).await?));
        let (mut parts, body) = put.into_parts();
        let headers = set_apart(&mut parts);
        let (trace, identity) = (Arc::clone(trace), Identity { access_key });
        parts.extensions.insert(RequestContext {
            trace,
            identity,
            operation,
            trailers: None,
            headers,
            by_form: true,
            taken_bytes: 0,
            payer,
        });
        Ok(PreparedRequest { request: Request::from_parts(parts, body), held, form: Some(answer) })
    }

    /// Counts a request whose signature was verified against its key's limit, and waits until it can be recorded.
    async fn begin_of_key(&self, access_key: &str) -> Result<InFlight, Refusal> {
        let hooks = &self.shared.hooks;
        let in_flight = self.shared.requests_of_keys.begin(access_key).ok_or_else(|| {
            hooks.metrics.refused("requests_of_key");
            Refusal::slow_down()
        })?;
        if let Some(room) = hooks.audit.await_room() {
            self.shared.runtime.timeout(AUDIT_WAIT, room).await.map_err(|_| {
                hooks.metrics.refused("audit");
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", NOT_RECORDED)
            })?;
        }
        Ok(in_flight)
    }
}

/// Marks a batch request. Returns its kind.
fn mark_batch(
    operation: &Operation,
    parts: &mut Parts,
    address: &Address,
    documents: &PoolUser,
) -> Option<Kind> {
    let kind = operation.batch()?;
    let (bucket, documents) = (address.bucket.clone(), documents.clone());
    parts.extensions.insert(BatchMark { bucket, kind, documents });
    Some(kind)
}

/// Refuses unsigned frames around a document. S3 knows them for objects and parts only.
fn check_frames(operation: &Operation, payload: &Payload) -> Result<(), Refusal> {
    let is_framed = matches!(payload, Payload::Chunked { signer: None, .. });
    match is_framed && operation.body != operations::RequestBody::Stream {
        false => Ok(()),
        true => Err(Refusal::bad("InvalidRequest", "The value of x-amz-content-sha256 header is invalid.")),
    }
}

/// Returns the names of the trailers that follow the body.
fn announced_trailers(headers: &HeaderMap, payload: &Payload) -> Vec<String> {
    match payload {
        Payload::Chunked { trailer: true, .. } => checksum::trailer_names(headers),
        _ => Vec::new(),
    }
}

/// Returns the operation that a request asks for, and names it for the audit log. Refuses conditions that it does not
/// evaluate.
fn resolved(
    parts: &Parts,
    address: &Address,
    is_form: bool,
    trace: &Trace,
) -> Result<&'static Operation, Refusal> {
    let query = parts.uri.query().unwrap_or_default();
    let operation =
        resolve(&Asked { method: &parts.method, address, query, headers: &parts.headers, is_form })?;
    trace.set_operation(operation.name);
    check_conditions(operation, &parts.headers)?;
    Ok(operation)
}

/// Returns the refusal of a request without a signature. What is no operation is refused as such, as in S3: that follows
/// from the request alone.
fn unsigned(parts: &Parts, address: &Address, trace: &Trace) -> Refusal {
    match resolved(parts, address, false, trace) {
        Ok(_) => Refusal::anonymous(),
        Err(refusal) => refusal,
    }
}

/// Checks the declared length of a body that is to be held in memory.
fn check_held_len(parts: &Parts, limits: &Limits) -> Result<(), Refusal> {
    let most = limits.xml_bytes as u64;
    let announced = text(&parts.headers, header::CONTENT_LENGTH).and_then(|len| len.parse::<u64>().ok());
    match announced {
        Some(len) if len > most => {
            let message = format!("Your request was too big: {most} bytes are allowed here.");
            Err(Refusal::bad("MaxMessageLengthExceeded", message))
        }
        _ => Ok(()),
    }
}
