//! Bodies of replies: frames that are made as the site replies, without copying the chunk bytes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use crate::api::{ReadStream, SliceStream};
use crate::local::LocalSite;
use crate::protocol::frame::encode_frame;
use crate::protocol::hello::Refusal;

/// The body of a reply.
pub(super) enum ReplyBody {
    /// One buffer, and possibly another after it.
    Whole(Option<Bytes>, Option<Bytes>),
    /// A frame for each range.
    Ranges(ReadStream, Option<Bytes>),
    /// A frame for each slice, with the number of the next one.
    Slices(SliceStream, Arc<LocalSite>, u32, Option<Bytes>),
    /// A reply of the control protocol.
    Control(tonic::body::Body),
}

impl ReplyBody {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self::Whole(Some(bytes), None)
    }

    pub(super) fn frame((header, bytes): (Bytes, Bytes)) -> Self {
        Self::Whole(Some(header), Some(bytes).filter(|bytes| !bytes.is_empty()))
    }
}

/// Returns the reply to a request that is refused before it reaches the site.
pub(super) fn refuse(refusal: &Refusal) -> Response<ReplyBody> {
    let status = match refusal {
        Refusal::Malformed(_) => StatusCode::BAD_REQUEST,
        Refusal::Version { .. } => StatusCode::UPGRADE_REQUIRED,
        Refusal::OtherCluster | Refusal::Forbidden { .. } => StatusCode::FORBIDDEN,
        Refusal::NoHello => StatusCode::PRECONDITION_REQUIRED,
        Refusal::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
    };
    let mut response = Response::new(ReplyBody::whole(refusal.to_string().into()));
    *response.status_mut() = status;
    response
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let piece = match self.get_mut() {
            Self::Whole(first, second) => first.take().or_else(|| second.take()),
            Self::Ranges(_, payload @ Some(_)) | Self::Slices(_, _, _, payload @ Some(_)) => payload.take(),
            Self::Ranges(replies, payload) => ready!(replies.as_mut().poll_next(context)).map(|reply| {
                let (header, bytes) = encode_frame(reply.item as u32, reply.result, reply.load);
                *payload = Some(bytes).filter(|bytes| !bytes.is_empty());
                header
            }),
            Self::Slices(slices, site, number, payload) => {
                ready!(slices.as_mut().poll_next(context)).map(|slice| {
                    let (header, bytes) = encode_frame(*number, slice, site.report_load());
                    *number += 1;
                    *payload = Some(bytes).filter(|bytes| !bytes.is_empty());
                    header
                })
            }
            Self::Control(body) => {
                return Pin::new(body).poll_frame(context).map_err(Into::into);
            }
        };
        Poll::Ready(piece.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(first, second) => first.is_none() && second.is_none(),
            Self::Control(body) => body.is_end_stream(),
            Self::Ranges(..) | Self::Slices(..) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(first, second) => {
                let len = |piece: &Option<Bytes>| piece.as_ref().map_or(0, |bytes| bytes.len() as u64);
                SizeHint::with_exact(len(first) + len(second))
            }
            Self::Control(body) => body.size_hint(),
            Self::Ranges(..) | Self::Slices(..) => SizeHint::default(),
        }
    }
}
