//! Changes of members: admitting a directory, replacing a lost one, raising the tolerance.
//!
//! The order of a change, each step of which may be the last before a crash: the new directory gets key, roster and
//! identity; the new roster is written everywhere else; the metadata records it; the rows follow; the client's sites
//! change. A crash before the second step leaves a directory whose roster is newest and complete, and which the next
//! start uses.

use std::path::{Path, PathBuf};

use striate_commands::failure::{Failure, Outcome};
use striate_core::{Profile, SiteId, Tier};
use striate_meta::MetaError;

use super::open::{layout, meta_directories, new_disk, write_rosters};
use super::{Cluster, LiveMember};
use crate::start::directories::{DirectoryContents, InspectedDirectory, inspect};
use crate::start::lock::{DirectoryLock, LockedFolder};
use crate::start::remains::set_aside;
use crate::start::roster::{Member, Roster};
use crate::start::sealing;
use crate::start::site::DiskSite;

/// The outcome of a replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// Site that was given up.
    pub old: SiteId,
    /// Site that replaced it.
    pub new: SiteId,
    /// Path to which remains of a store in the directory were moved, if there were any.
    pub aside: Option<PathBuf>,
}

impl Cluster {
    /// Admits a blank directory as a further member.
    ///
    /// # Errors
    /// If it cannot be used, or the metadata does not accept the change.
    pub async fn admit(&self, path: &Path) -> Outcome<SiteId> {
        let _one_change = self.inner.changing.lock().await;
        let inspected = self.inspect(path).await?;
        refuse_occupied(&inspected)?;
        self.join_directory(inspected.path, None).await
    }

    /// Admits the blank directory at `path` in place of the member that was lost there. Remains of this very cluster in
    /// it, or remains that hold nothing, are moved out of the way first (see [`crate::start::remains`]).
    ///
    /// # Errors
    /// If the directory holds anything else, if no member was lost, or if it is not clear which one is meant.
    pub async fn replace(&self, path: &Path) -> Outcome<Replacement> {
        let _one_change = self.inner.changing.lock().await;
        self.refuse_without_directories()?;
        self.look_at_directories().await;
        let inspected = self.inspect(path).await?;
        self.refuse_healthy(&inspected.path)?;
        self.refuse_own(&inspected)?;
        if !matches!(inspected.found, DirectoryContents::Remains(_)) {
            refuse_occupied(&inspected)?;
        }
        let old = self.lost_member(&inspected.path)?;
        let aside = self.make_room(&inspected, &old).await?;
        let new = self.join_directory(inspected.path, Some(old.clone())).await?;
        Ok(Replacement { old: old.site, new, aside })
    }

    /// Inspects a directory on a thread of its own: its disk may hang.
    async fn inspect(&self, path: &Path) -> Outcome<InspectedDirectory> {
        let path = path.to_owned();
        self.inner.runtime.run_blocking(move || inspect(&path)).await.map_err(Failure::refused)
    }

    /// Locks a directory on a thread of its own: its disk may hang.
    pub(super) async fn lock(&self, path: &Path) -> Outcome<DirectoryLock> {
        let path = path.to_owned();
        let taken = self.inner.runtime.run_blocking(move || DirectoryLock::take(&path)).await;
        taken.map_err(Failure::refused)
    }

    /// As [`Cluster::lock`], unless the directory's state folder is the one that is `locked` already.
    pub(super) async fn lock_again(
        &self,
        path: &Path,
        locked: Option<LockedFolder>,
    ) -> Outcome<Option<DirectoryLock>> {
        let path = path.to_owned();
        let taken = self.inner.runtime.run_blocking(move || DirectoryLock::take_again(&path, locked)).await;
        taken.map_err(Failure::refused)
    }

    /// Moves the remains of a store out of a directory that is to replace `old`, if they are certainly not needed.
    async fn make_room(&self, inspected: &InspectedDirectory, old: &Member) -> Outcome<Option<PathBuf>> {
        let path = &inspected.path;
        let (cluster, locked) = {
            let state = self.inner.state.lock();
            (state.roster.cluster, state.live.get(&old.site).map(|live| live.lock.locked()))
        };
        // Another server may be about to use it.
        let is_held = self.lock_again(path, locked).await?.is_none();
        if let DirectoryContents::Remains(remains) = &inspected.found
            && let Some(reason) = remains.refusal(cluster, is_held)
        {
            return Err(Failure::refused(format!(
                "{} is not blank: {reason}. If nobody misses it, move {0}/{} away and try again",
                path.display(),
                striate_commands::admin::find::STATE_FOLDER
            )));
        }
        let moved = path.clone();
        self.inner.runtime.run_blocking(move || set_aside(&moved)).await.map_err(|error| {
            Failure::failed(format!("{}: what is left in it cannot be moved: {error}", path.display()))
        })
    }

    /// Makes the metadata survive as many losses as `profile` does.
    ///
    /// # Errors
    /// If there are too few directories for it, or the metadata does not accept the change.
    pub async fn support(&self, profile: &Profile) -> Outcome {
        if profile.tier == Tier::Memory {
            return Ok(());
        }
        let _one_change = self.inner.changing.lock().await;
        let (old, sites) = {
            let state = self.inner.state.lock();
            (state.roster.clone(), state.site_rows().len())
        };
        let chunks = profile.code.chunk_count();
        if chunks > sites {
            let more = match self.inner.services.embedded {
                Some(_) => "add directories to `striate server`",
                None => "start more sites",
            };
            return Err(Failure::failed(format!(
                "{profile} needs {chunks} disks, the store has {sites}; choose a smaller profile or {more}"
            )));
        }
        // A separate engine is as safe as its operators have made it.
        if profile.code.tolerance() <= old.tolerance || self.inner.services.embedded.is_none() {
            return Ok(());
        }
        let next = old.changed(|roster| roster.tolerance = profile.code.tolerance());
        self.publish(next).await?;
        self.restore_mirrors().await.map_err(Failure::failed)?;
        Ok(())
    }

    pub(super) fn refuse_without_directories(&self) -> Outcome {
        match &self.inner.services.embedded {
            Some(_) => Ok(()),
            None => Err(Failure::refused(
                "the disks of this cluster belong to its sites: start a new `striate site` on an empty directory, and \
                 set a site that is to go to drain with `striate admin site drain`",
            )),
        }
    }

    fn refuse_healthy(&self, path: &Path) -> Outcome {
        let state = self.inner.state.lock();
        let here = state.live.values().find(|live| live.member.path == path);
        let is_healthy = here.is_some_and(|live| live.suspect().is_none() && live.is_there());
        match is_healthy {
            true => Err(Failure::refused(format!(
                "{} is a healthy disk of this store; only a lost one can be replaced. To exchange it, \
                 add another (`striate disk add PATH`), then `striate disk drain {0}` and `striate disk remove {0}`",
                path.display()
            ))),
            false => Ok(()),
        }
    }

    /// Refuses a directory that holds a disk of this store: what is on it is needed, and it is taken back by itself.
    fn refuse_own(&self, inspected: &InspectedDirectory) -> Outcome {
        let DirectoryContents::Member { disk, .. } = &inspected.found else { return Ok(()) };
        let own = self.inner.state.lock().roster.member(*disk).cloned();
        let Some(own) = own else { return Ok(()) };
        let reason = self.why_not_taken_back(own.site);
        let reason = reason.map_or(String::new(), |reason| format!(" The last attempt failed: {reason}."));
        Err(Failure::refused(format!(
            "{} holds the disk of site {} with its chunks, which are good. It is taken back by itself as soon as it works; \
             do not empty it.{reason} To give it up all the same, unmount it, and replace it by another disk",
            inspected.path.display(),
            own.site
        )))
    }

    /// Returns the lost member that a blank directory at `path` replaces.
    fn lost_member(&self, path: &Path) -> Outcome<Member> {
        let lost = self.lost_members();
        if let Some(member) = lost.iter().find(|member| member.path == path) {
            return Ok(member.clone());
        }
        match lost.as_slice() {
            [only] => Ok(only.clone()),
            [] => {
                Err(Failure::refused("no disk of this store is lost; to add a disk: `striate disk add PATH`"))
            }
            several => {
                let list: Vec<_> = several.iter().map(|member| member.path.display().to_string()).collect();
                Err(Failure::refused(format!(
                    "{} is not the path of a lost disk, and several are lost: {}; mount the new disk at one of these",
                    path.display(),
                    list.join(", ")
                )))
            }
        }
    }

    /// Returns the members that are missing, or whose directory is gone.
    pub fn lost_members(&self) -> Vec<Member> {
        let state = self.inner.state.lock();
        let is_lost = |member: &&Member| match state.live.get(&member.site) {
            Some(live) => !live.is_there(),
            None => true,
        };
        state.roster.members.iter().filter(is_lost).cloned().collect()
    }

    /// Makes the blank directory a member, and replaces `old` if given.
    async fn join_directory(&self, path: PathBuf, old: Option<Member>) -> Outcome<SiteId> {
        let lock = self.lock(&path).await?;
        let roster_before = self.inner.state.lock().roster.clone();
        let member =
            Member { disk: new_disk(&self.inner.runtime), site: SiteId(roster_before.next_site), path };
        let next = roster_before.changed(|roster| {
            roster.next_site += 1;
            roster.members.retain(|other| old.as_ref().is_none_or(|old| old.disk != other.disk));
            roster.members.push(member.clone());
        });
        let (key, roster, newcomer) = (self.inner.services.sealing.clone(), next.clone(), member.clone());
        let write = move || {
            sealing::write(&newcomer.path, &key)?;
            roster.write(&newcomer.path, newcomer.disk)
        };
        let written = self.inner.runtime.run_blocking(write).await;
        written.map_err(|error| Failure::failed(format!("{}: {error}", member.path.display())))?;
        let formats = &self.client().stripes().options().formats;
        let site = DiskSite::open(&self.inner.runtime, next.cluster, &member, formats).await;
        let site = site.map_err(Failure::failed)?;
        self.introduce(&site);
        let site_id = member.site;
        let given_up = {
            let mut state = self.inner.state.lock();
            let live = LiveMember { member, site, lock };
            state.live.insert(site_id, live);
            old.and_then(|old| state.live.remove(&old.site))
        };
        self.publish(next).await?;
        if let Some(given_up) = given_up {
            // Its disk is gone: nothing needs to be saved, and its threads end with it.
            self.inner.runtime.run_blocking(move || drop(given_up)).await;
        }
        self.restore_mirrors().await.map_err(Failure::failed)?;
        Ok(site_id)
    }

    /// Puts a roster in force: in every directory, in the metadata and its rows, and in the client.
    pub(super) async fn publish(&self, next: Roster) -> Outcome {
        let (layout, directories) = {
            let present: Vec<Member> = {
                let mut state = self.inner.state.lock();
                state.roster = next.clone();
                state.live.values().filter(|live| live.answers()).map(|live| live.member.clone()).collect()
            };
            let written = next.clone();
            let write = move || {
                write_rosters(&written, &present);
                meta_directories(present.iter())
            };
            (layout(&next), self.inner.runtime.run_blocking(write).await)
        };
        self.embedded()?.set_directories(layout, directories).await.map_err(Failure::failed)?;
        self.follow_roster().await.map_err(|error: MetaError| Failure::failed(error))?;
        let sites = self.inner.state.lock().sites();
        self.inner.services.client.stripes().set_sites(sites);
        self.follow_drains().await
    }
}

/// Refuses a directory that is not blank.
fn refuse_occupied(inspected: &InspectedDirectory) -> Outcome {
    let path = &inspected.path;
    match &inspected.found {
        DirectoryContents::Blank => Ok(()),
        DirectoryContents::Remains(remains) => Err(Failure::refused(format!(
            "{} is not blank: it holds {}. If nobody misses it, remove it and try again",
            path.display(),
            remains.example
        ))),
        DirectoryContents::Absent => Err(Failure::refused(format!(
            "{} does not exist; mount the new disk there, or make the directory: mkdir {0}",
            path.display()
        ))),
        DirectoryContents::Unusable(why) => {
            Err(Failure::refused(format!("{}: {}; {}", path.display(), why.reason, why.way_out)))
        }
        DirectoryContents::Member { roster, .. } => Err(Failure::refused(format!(
            "{} is not blank: it belongs to cluster {}. If its data is not needed, empty it (also {}) and try again",
            path.display(),
            roster.cluster,
            striate_commands::admin::find::STATE_FOLDER
        ))),
    }
}
