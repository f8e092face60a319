//! The upgrade gate of a running store: its state, and opening it (`striate admin upgrade`).
//!
//! The cluster's row decides which formats are in force. In a store on directories the rosters follow it: programs that
//! do not read these formats read the roster first, and refuse before they open anything.

use striate_commands::admin::messages::{FormatsState, ReaderState};
use striate_commands::failure::{Failure, Outcome};
use striate_control::{FinalizeError, Gate, GateView, Reader};
use striate_core::Formats;
use striate_site::SiteStatus;

use super::Cluster;
use super::health::LOOK_TIMEOUT;
use super::report::RemoteAnswers;
use crate::start::roster::RequiredFormats;

impl Cluster {
    /// Returns the state of the gate.
    ///
    /// # Errors
    /// If the metadata cannot be read.
    pub async fn formats(&self) -> Outcome<FormatsState> {
        let answers = self.ask_remote_sites(LOOK_TIMEOUT).await;
        self.formats_seen(&answers).await
    }

    /// Returns the state of the gate, using the answers that sites have already given.
    pub(super) async fn formats_seen(&self, answers: &RemoteAnswers) -> Outcome<FormatsState> {
        let view = self.gate().view(self.readers_without_rows(answers)).await.map_err(Failure::failed)?;
        Ok(state(&view))
    }

    /// Puts the newest formats in force if every process reads them. Returns the formats then in force.
    ///
    /// # Errors
    /// The error lists all processes that do not read them.
    pub async fn finalize_upgrade(&self) -> Outcome<Formats> {
        let before = self.client().stripes().formats();
        let others = || async { self.readers_without_rows(&self.ask_remote_sites(LOOK_TIMEOUT).await) };
        let formats = self.gate().finalize(others).await.map_err(|error| match error {
            FinalizeError::Held(_) | FinalizeError::NeedsNewer(_) => Failure::refused(error),
            error => Failure::failed(error),
        })?;
        let required = RequiredFormats { in_force: formats, needs: formats.release().to_owned() };
        self.require_formats(required).await?;
        self.client().stripes().options().formats.raise(formats);
        if before != formats {
            tracing::info!(
                was = %before,
                now = %formats,
                "newer formats are in force: programs before striate {} refuse this store now",
                formats.release()
            );
        }
        Ok(formats)
    }

    /// Records in the rosters of all directories which formats programs must read to start there.
    pub(super) async fn require_formats(&self, required: RequiredFormats) -> Outcome {
        if self.inner.services.embedded.is_none() {
            return Ok(());
        }
        let _one_change = self.inner.changing.lock().await;
        let roster = self.inner.state.lock().roster.clone();
        if roster.formats.in_force.covers(required.in_force) {
            return Ok(());
        }
        self.publish(roster.changed(|next| next.formats = required)).await
    }

    fn gate(&self) -> Gate<'_> {
        let lease = self.client().stripes().writer_lease();
        Gate::new(&self.inner.runtime, self.inner.services.meta.as_ref()).with_writer(lease)
    }

    /// Returns the sites in other processes, or this process if it is the only one.
    fn readers_without_rows(&self, answers: &RemoteAnswers) -> Vec<Reader> {
        if self.inner.services.embedded.is_some() {
            return vec![Reader {
                who: "this server".to_owned(),
                program: env!("CARGO_PKG_VERSION").to_owned(),
                reads: Ok(Formats::NEWEST),
            }];
        }
        let reader = |(site, answer): (_, &Result<SiteStatus, String>)| Reader {
            who: format!("site {site}"),
            program: answer.as_ref().map(|status| status.program.clone()).unwrap_or_default(),
            reads: answer.as_ref().map(|status| status.reads).map_err(Clone::clone),
        };
        answers.iter().map(reader).collect()
    }
}

fn state(view: &GateView) -> FormatsState {
    let reader = |reader: &Reader| ReaderState {
        who: reader.who.clone(),
        program: reader.program.clone(),
        reads: reader.reads.clone().ok(),
    };
    FormatsState {
        in_force: view.in_force,
        target: view.target,
        needs_release: view.target.release().to_owned(),
        brings: view.in_force.brings(view.target).into_iter().map(str::to_owned).collect(),
        holding: view.holding(),
        readers: view.readers.iter().map(reader).collect(),
    }
}
