//! The load reports that a site pushes: one stream on a connection of its own.
//!
//! The connection is separate for two reasons. Its window holds only a few reports, so that a client that stalls
//! afterwards finds the newest state and no backlog, whatever is between it and the site. And a long list on the
//! control connection must not delay a report.
//!
//! While nothing changes, only a ping is sent every [`PING_INTERVAL`]. Without it, a site that lost its power would
//! look like one whose queue has not changed.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt, TryStreamExt};
use striate_core::LoadReport;

use super::Inner;
use super::control::{ControlChannel, error_of};
use crate::api::{LoadStream, SiteError};
use crate::protocol::control::{self as convert, messages};

/// Bytes of reports that the site may send before they are taken: five to ten reports.
pub(super) const WINDOW: u32 = 256;
/// Interval between pings, and timeout for their answer.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Streams the reports of a site, from the first poll on.
pub(super) fn watch(site: Arc<Inner>) -> LoadStream {
    stream::once(open(site)).try_flatten().boxed()
}

async fn open(site: Arc<Inner>) -> Result<impl Stream<Item = Result<LoadReport, SiteError>>, SiteError> {
    let channel = ControlChannel::for_reports(Arc::clone(site.pool.endpoint()));
    let reports = channel.client().watch(messages::WatchRequest {}).await;
    let reports = reports.map_err(|status| error_of(status, site.endpoint()))?.into_inner();
    let next = |(mut reports, channel, site, is_first): (tonic::Streaming<_>, _, Arc<Inner>, bool)| async move {
        let report = match reports.next().await? {
            Ok(report) => convert::load_report(report),
            Err(status) => {
                let error = error_of(status, site.endpoint());
                return Some((Err(error), (reports, channel, site, false)));
            }
        };
        match is_first {
            // The site may have been restarted: its sequence numbers then begin again at 1.
            true => *site.load.lock() = report,
            false => drop(site.note_load(report)),
        }
        // Holding the channel keeps the connection open.
        Some((Ok(report), (reports, channel, site, false)))
    };
    Ok(stream::unfold((reports, channel, site, true), next))
}
