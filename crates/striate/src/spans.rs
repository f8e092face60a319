//! Spans of requests, sent to an OpenTelemetry collector with OTLP over HTTP.
//!
//! ```text
//! request                     an S3 request, until its answer has ended
//! └ get                       the object that it reads
//!   ├ object                  the look-up of its row
//!   └ read_block              for each block, or part of one
//!     ├ metadata              where its chunks are
//!     ├ plan                  which of them are asked for
//!     ├ retrieve              from asking the sites to the last chunk that was needed
//!     └ decode                where data is computed from other chunks
//! ```
//!
//! A query of several blocks is `read_blocks`. A batch read is `read_many`, with an `object` for each look-up of rows,
//! a `read_blocks` for each group of small objects, and a `get` for each object that is read alone. Without an endpoint
//! no span is made. Spans wait in a bounded queue, and are dropped when the collector is slow or unreachable: they
//! never delay a request.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Limited};
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::HttpError;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use striate_commands::args::OtlpEndpoint;
use striate_commands::failure::{Failure, Outcome};
use striate_s3_client::{HttpClient, client_config, whole};
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

/// Maximum number of bytes read of a collector's answer.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Timeout for a collector to accept a batch.
const SEND_WITHIN: Duration = Duration::from_secs(10);
/// Timeout for the last batch when the process stops.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Sends spans until it is stopped.
pub struct Spans {
    provider: SdkTracerProvider,
}

impl Spans {
    /// Starts sending spans of a `share` of the requests. Call it in the runtime that sends.
    ///
    /// # Errors
    /// If the system's certificates or the endpoint cannot be used.
    pub fn start(endpoint: &OtlpEndpoint, share: f64) -> Outcome<Self> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new(endpoint)?)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint.as_str())
            .with_timeout(SEND_WITHIN)
            .build()
            .map_err(|error| Failure::refused(format!("--otlp-endpoint {}: {error}", endpoint.as_str())))?;
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(share)));
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(sampler)
            .with_resource(Resource::builder().with_service_name("striate").build())
            .build();
        Ok(Self { provider })
    }

    /// Creates the layer that makes spans of the S3 gateway and the client service.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        let of_requests = Targets::new()
            .with_target("striate_s3", LevelFilter::DEBUG)
            .with_target("striate_stripe", LevelFilter::DEBUG)
            .with_target("striate_client", LevelFilter::DEBUG);
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("striate"))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_filter(of_requests)
    }

    /// Sends the remaining spans. Blocks, and needs the runtime that sends.
    pub fn stop(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(STOP_WITHIN) {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// Posts batches. The exporter calls it from its own thread, so it holds a handle of the runtime with the network.
struct Collector {
    http: HttpClient,
    network: tokio::runtime::Handle,
    endpoint: String,
    /// Whether a warning about lost spans was logged.
    said: Arc<AtomicBool>,
}

impl Collector {
    fn new(endpoint: &OtlpEndpoint) -> Outcome<Self> {
        let http = HttpClient::new(client_config(None).map_err(Failure::failed)?);
        let network = tokio::runtime::Handle::current();
        Ok(Self { http, network, endpoint: endpoint.as_str().to_owned(), said: Arc::default() })
    }

    /// Logs once that spans are lost, and again after some were accepted.
    fn note(&self, outcome: Result<http::StatusCode, &HttpError>) {
        let reason = match outcome {
            Ok(status) if status.is_success() => return self.said.store(false, Ordering::Relaxed),
            Ok(status) => format!("it answers {status}"),
            Err(error) => error.to_string(),
        };
        if !self.said.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                endpoint = self.endpoint,
                reason,
                "the collector does not accept spans; they are dropped until it does"
            );
        }
    }
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl opentelemetry_http::HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let http = self.http.clone();
        let posted = self.network.spawn(async move {
            let answer = http.request(request.map(whole)).await?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(head, body))
        });
        let answer = posted.await.map_err(HttpError::from).and_then(|answer| answer);
        self.note(answer.as_ref().map(Response::status));
        answer
    }
}
