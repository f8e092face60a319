//! The operations of the control protocol.

use std::sync::Arc;

use futures::stream::{BoxStream, StreamExt};
use striate_core::FencingEpoch;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::api::{DeleteRequest, Site, SiteError};
use crate::local::LocalSite;
use crate::protocol::control::messages::site_control_server::SiteControl;
use crate::protocol::control::{self, messages};
use crate::protocol::limits::{
    MAX_ASKED_CHUNKS, MAX_CHUNK_LEN, MAX_DELETED_CHUNKS, MAX_LISTED_CHUNKS, MAX_TENDED_BLOCKS,
};

/// The server of [`messages`]. Requests reach it only from peers that are authorised for them.
pub(super) struct Control {
    site: Arc<LocalSite>,
    /// Whether the site is stopping, which would otherwise wait for its watchers.
    stopping: watch::Receiver<bool>,
}

impl Control {
    pub(super) fn new(site: Arc<LocalSite>, stopping: watch::Receiver<bool>) -> Self {
        Self { site, stopping }
    }

    fn load(&self) -> Option<messages::Load> {
        Some(control::load_message(self.site.report_load()))
    }

    async fn remove(&self, request: messages::DeleteRequest) -> Result<(), SiteError> {
        if request.chunks.len() > MAX_DELETED_CHUNKS {
            let reason = format!("a delete of more than {MAX_DELETED_CHUNKS} chunks");
            return Err(SiteError::BadRequest(reason));
        }
        let chunks = request.chunks.iter().map(|chunk| control::chunk_id(chunk)).collect::<Result<_, _>>()?;
        self.site.delete(DeleteRequest { chunks, epoch: FencingEpoch(request.epoch) }).await.map(drop)
    }

    async fn page(&self, request: messages::ListRequest) -> Result<messages::ListReply, SiteError> {
        let from = request.from.map(|chunk| control::chunk_id(&chunk)).transpose()?;
        let page = self.site.list(from, (request.limit as usize).min(MAX_LISTED_CHUNKS)).await?;
        Ok(messages::ListReply {
            load: self.load(),
            error: None,
            chunks: page.chunks.into_iter().map(control::chunk_message).collect(),
            next: page.next.map(control::chunk_bytes),
        })
    }

    async fn tend_to(&self, request: messages::TendRequest) -> Result<messages::TendReply, SiteError> {
        if request.blocks.len() > MAX_TENDED_BLOCKS {
            let reason = format!("more than {MAX_TENDED_BLOCKS} cached blocks in one message");
            return Err(SiteError::BadRequest(reason));
        }
        let blocks = self.site.tend(control::tend_blocks(request)?).await?;
        Ok(messages::TendReply { load: self.load(), error: None, blocks: control::tended_messages(blocks) })
    }

    async fn has_which(&self, request: messages::HasRequest) -> Result<messages::HasReply, SiteError> {
        if request.chunks.len() > MAX_ASKED_CHUNKS {
            let reason = format!("more than {MAX_ASKED_CHUNKS} chunks in one question");
            return Err(SiteError::BadRequest(reason));
        }
        let chunks = request.chunks.iter().map(|chunk| control::chunk_id(chunk)).collect::<Result<_, _>>()?;
        let has = self.site.has(chunks).await?;
        Ok(messages::HasReply { load: self.load(), error: None, has })
    }

    async fn check(&self, request: messages::VerifyRequest) -> Result<messages::VerifyReply, SiteError> {
        let info = self.site.verify(control::chunk_id(&request.chunk)?).await?;
        let chunk = Some(control::chunk_message(info));
        Ok(messages::VerifyReply { load: self.load(), error: None, chunk })
    }
}

impl Control {
    async fn products_of(
        &self,
        request: messages::ProductsRequest,
    ) -> Result<messages::ProductsReply, SiteError> {
        let chunk = control::chunk_id(&request.chunk)?;
        let products = self.site.products(chunk, request.len.min(MAX_CHUNK_LEN)).await?;
        Ok(messages::ProductsReply { load: self.load(), error: None, crc32c: products.0.to_vec() })
    }
}

#[tonic::async_trait]
impl SiteControl for Control {
    async fn status(
        &self,
        _request: Request<messages::StatusRequest>,
    ) -> Result<Response<messages::StatusReply>, Status> {
        let reply = match self.site.status().await {
            Ok(status) => control::status_message(status),
            Err(error) => messages::StatusReply {
                load: self.load(),
                error: Some(control::error_message(&error)),
                ..Default::default()
            },
        };
        Ok(Response::new(reply))
    }

    async fn delete(
        &self,
        request: Request<messages::DeleteRequest>,
    ) -> Result<Response<messages::DeleteReply>, Status> {
        let error = self.remove(request.into_inner()).await.err().as_ref().map(control::error_message);
        Ok(Response::new(messages::DeleteReply { load: self.load(), error }))
    }

    async fn list(
        &self,
        request: Request<messages::ListRequest>,
    ) -> Result<Response<messages::ListReply>, Status> {
        let reply = self.page(request.into_inner()).await.unwrap_or_else(|error| messages::ListReply {
            load: self.load(),
            error: Some(control::error_message(&error)),
            ..Default::default()
        });
        Ok(Response::new(reply))
    }

    async fn verify(
        &self,
        request: Request<messages::VerifyRequest>,
    ) -> Result<Response<messages::VerifyReply>, Status> {
        let reply = self.check(request.into_inner()).await.unwrap_or_else(|error| messages::VerifyReply {
            load: self.load(),
            error: Some(control::error_message(&error)),
            ..Default::default()
        });
        Ok(Response::new(reply))
    }

    async fn has(
        &self,
        request: Request<messages::HasRequest>,
    ) -> Result<Response<messages::HasReply>, Status> {
        let reply = self.has_which(request.into_inner()).await.unwrap_or_else(|error| messages::HasReply {
            load: self.load(),
            error: Some(control::error_message(&error)),
            ..Default::default()
        });
        Ok(Response::new(reply))
    }

    async fn products(
        &self,
        request: Request<messages::ProductsRequest>,
    ) -> Result<Response<messages::ProductsReply>, Status> {
        let products = self.products_of(request.into_inner()).await;
        let reply = products.unwrap_or_else(|error| messages::ProductsReply {
            load: self.load(),
            error: Some(control::error_message(&error)),
            ..Default::default()
        });
        Ok(Response::new(reply))
    }

    async fn tend(
        &self,
        request: Request<messages::TendRequest>,
    ) -> Result<Response<messages::TendReply>, Status> {
        let reply = self.tend_to(request.into_inner()).await.unwrap_or_else(|error| messages::TendReply {
            load: self.load(),
            error: Some(control::error_message(&error)),
            ..Default::default()
        });
        Ok(Response::new(reply))
    }

    type WatchStream = BoxStream<'static, Result<messages::Load, Status>>;

    async fn watch(
        &self,
        _request: Request<messages::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let reports = self.site.watch().map(|report| match report {
            Ok(report) => Ok(control::load_message(report)),
            Err(error) => Err(Status::unavailable(error.to_string())),
        });
        let mut stopping = self.stopping.clone();
        let stop = async move {
            // An error means that the sender is gone, which also means stop.
            let _ = stopping.wait_for(|stop| *stop).await;
        };
        Ok(Response::new(reports.take_until(Box::pin(stop)).boxed()))
    }
}
