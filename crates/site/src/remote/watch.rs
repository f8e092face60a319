//! The load reports that a site pushes: one stream on a connection of its own.
//!
//! A connection of its own, because its window holds a few reports only: who stalls then finds the newest state afterwards, and no
//! backlog, whatever is between here and the site. And because a long list on the control connection must not hold a report up.
//!
//! While nothing changes nothing is sent but a ping every [`PING_INTERVAL`], without which a site that lost its power would count
//! as one whose queue has not changed.

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
/// Pause between pings, and the time for their answer.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(5);

/// The reports of a site, from when it is first polled.
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
            // The site may have been restarted: its reports then begin again at 1.
            true => *site.load.lock() = report,
            false => drop(site.note_load(report)),
        }
        // The channel holds the connection.
        Some((Ok(report), (reports, channel, site, false)))
    };
    Ok(stream::unfold((reports, channel, site, true), next))
}
