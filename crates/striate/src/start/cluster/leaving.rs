//! Disks that leave while the server runs: draining, and removal for good.
//!
//! A drained disk takes no new chunks, and what it has moves to the others; that it drains is in its site's row, so it
//! outlasts a restart. It can be removed once the metadata names nothing on it: its site is retired first
//! ([`striate_control::Members::retire`] says what fences writers), then it leaves the roster. A crash in between
//! leaves a retired member, and the next start finishes its removal. A lost disk is removed in the same way, once what
//! it had is rebuilt elsewhere.
//!
//! Neither begins if fewer disks would then take chunks than a profile in use needs.

use std::path::{Path, PathBuf};

use striate_commands::admin::find::{SOCKET_NAME, STATE_FOLDER};
use striate_commands::failure::{Failure, Outcome};
use striate_control::Members;
use striate_core::{Layout, Profile, SiteId, Tier};
use striate_meta::records::Bucket;
use striate_meta::records::site::State;

use super::Cluster;
use super::open::meta_directories;
use crate::start::roster::Member;

/// A disk that was drained or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeavingDisk {
    /// Its site.
    pub site: SiteId,
    /// Its directory.
    pub path: PathBuf,
}

impl Cluster {
    fn members(&self) -> Members<'_> {
        Members::new(&self.inner.runtime, &*self.inner.services.meta)
    }

    /// Lets the disk at `path` take no new chunks, so that what it has moves to the others; or lets it take them again.
    ///
    /// # Errors
    /// If no disk of the store is there, or too few would be left to take chunks.
    pub async fn set_disk_draining(&self, path: &Path, draining: bool) -> Outcome<LeavingDisk> {
        let _one_change = self.inner.changing.lock().await;
        let member = self.member_at(path).await?;
        if draining {
            self.refuse_too_few_without(&member).await?;
        }
        self.members().set_draining(member.site, draining).await.map_err(Failure::failed)?;
        self.client().stripes().set_draining(member.site, draining);
        tracing::info!(directory = %member.path.display(), site = %member.site, draining, "a disk's drain was changed");
        Ok(LeavingDisk { site: member.site, path: member.path })
    }

    /// Returns what the metadata names on a site, as text; `None` if nothing.
    ///
    /// # Errors
    /// If the metadata cannot be read.
    pub async fn contents_of(&self, site: SiteId) -> Outcome<Option<String>> {
        self.members().contents_of(site).await.map_err(Failure::failed)
    }

    /// Removes the disk at `path` for good, which must be empty.
    ///
    /// # Errors
    /// If no disk of the store is there, while it takes chunks or holds any that are needed, or if too few disks would be
    /// left.
    pub async fn remove_disk(&self, path: &Path) -> Outcome<LeavingDisk> {
        let _one_change = self.inner.changing.lock().await;
        let member = self.member_at(path).await?;
        self.refuse_too_few_without(&member).await?;
        let answers = {
            let state = self.inner.state.lock();
            state.live.get(&member.site).is_some_and(|live| live.suspect().is_none())
        };
        let takes_chunks = self
            .members()
            .sites()
            .await
            .map_err(Failure::failed)?
            .iter()
            .any(|site| site.id == member.site.0 && site.state() == State::Active);
        if answers && takes_chunks {
            return Err(Failure::refused(format!(
                "{path} takes chunks. Drain it first: `striate disk drain {path}`",
                path = member.path.display()
            )));
        }
        self.members().retire(member.site, answers).await.map_err(Failure::failed)?;
        self.finish_removal(&member).await?;
        Ok(LeavingDisk { site: member.site, path: member.path })
    }

    /// Takes a member whose site is retired out of the roster and of this process.
    async fn finish_removal(&self, member: &Member) -> Outcome {
        self.mirror_elsewhere(member).await?;
        let (next, given_up) = {
            let mut state = self.inner.state.lock();
            let next =
                state.roster.changed(|roster| roster.members.retain(|other| other.disk != member.disk));
            (next, state.live.remove(&member.site))
        };
        self.publish(next.clone()).await?;
        let Some(given_up) = given_up else { return Ok(()) };
        given_up.site.close().await;
        let member = member.clone();
        let leave = move || {
            // The disk learns, too, that it belongs to the store no more, so that a start with it says so.
            if let Err(error) = next.write(&member.path, member.disk) {
                tracing::debug!(directory = %member.path.display(), %error, "a removed disk keeps its old roster");
            }
            let _ = std::fs::remove_file(member.path.join(STATE_FOLDER).join(SOCKET_NAME));
            drop(given_up);
        };
        self.inner.runtime.run_blocking(leave).await;
        // The mirrors that are missing are restored in the background, too.
        if let Err(error) = self.restore_mirrors().await {
            tracing::warn!(%error, "the metadata is not mirrored again yet");
        }
        Ok(())
    }

    /// Adds a metadata mirror in another directory, if the member's holds one and another has room for it: there are never
    /// fewer than before.
    async fn mirror_elsewhere(&self, member: &Member) -> Outcome {
        let embedded = self.embedded()?;
        let mirrors = embedded.mirrors().await.map_err(Failure::failed)?;
        let holds = |disk| mirrors.iter().any(|mirror| mirror.in_sync && mirror.disk_id == disk);
        if !holds(member.disk) {
            return Ok(());
        }
        let spare: Vec<Member> = {
            let state = self.inner.state.lock();
            let spare =
                state.live.values().filter(|live| !holds(live.member.disk) && live.suspect().is_none());
            spare.map(|live| live.member.clone()).collect()
        };
        // One of the disks may hang.
        let spare = self.inner.runtime.run_blocking(move || meta_directories(spare.iter())).await;
        let _one_at_a_time = self.inner.restoring.lock().await;
        for directory in spare {
            match embedded.add_mirror(directory).await {
                Ok(()) => return Ok(()),
                Err(error) => tracing::warn!(%error, "a metadata mirror was not added"),
            }
        }
        Ok(())
    }

    /// Lets the sites drain whose rows say so, and finishes removals that a crash interrupted.
    pub(super) async fn resume_leaving(&self) -> Outcome {
        self.follow_drains().await?;
        for site in self.members().sites().await.map_err(Failure::failed)? {
            if site.state() != State::Retired {
                continue;
            }
            let member = {
                let state = self.inner.state.lock();
                state.roster.members.iter().find(|member| member.site.0 == site.id).cloned()
            };
            if let Some(member) = member {
                tracing::info!(directory = %member.path.display(), "the removal of a disk is finished");
                self.finish_removal(&member).await?;
            }
        }
        Ok(())
    }

    /// Tells the stripe service which sites drain, as their rows say.
    pub(super) async fn follow_drains(&self) -> Outcome {
        let stripes = self.client().stripes();
        for site in self.members().sites().await.map_err(Failure::failed)? {
            stripes.set_draining(SiteId(site.id), site.state() == State::Draining);
        }
        Ok(())
    }

    /// Returns the member whose directory is `path`, present or lost.
    async fn member_at(&self, path: &Path) -> Outcome<Member> {
        self.refuse_without_directories()?;
        let find = |path: &Path| {
            let state = self.inner.state.lock();
            let live = state.live.values().map(|live| &live.member);
            live.chain(&state.roster.members).find(|member| member.path == path).cloned()
        };
        if let Some(member) = find(path) {
            return Ok(member);
        }
        // Its disk may hang.
        let given = path.to_owned();
        let resolved = self.inner.runtime.run_blocking(move || std::fs::canonicalize(given)).await;
        resolved.ok().and_then(|resolved| find(&resolved)).ok_or_else(|| {
            let state = self.inner.state.lock();
            let paths = state.roster.members.iter().map(|member| member.path.display().to_string());
            Failure::refused(format!(
                "{} is no disk of this store; its disks are {}",
                path.display(),
                paths.collect::<Vec<_>>().join(", ")
            ))
        })
    }

    /// Refuses if fewer disks would take chunks without `leaving` than a profile in use needs.
    async fn refuse_too_few_without(&self, leaving: &Member) -> Outcome {
        let rows = self.members().sites().await.map_err(Failure::failed)?;
        let is_active =
            |site: SiteId| rows.iter().any(|row| row.id == site.0 && row.state() == State::Active);
        let stripes = self.client().stripes();
        let takes = |view: &striate_stripe::SiteView| {
            let site = view.site.id();
            site != leaving.site && view.writable && is_active(site)
        };
        let left = stripes.sites().iter().filter(|view| takes(view)).count();
        let buckets = self.client().list_buckets("", usize::MAX).await.map_err(Failure::failed)?;
        let here = buckets.iter().filter(|bucket| bucket.origin.is_none());
        let mut needs = vec![(self.profile(), "the default profile".to_owned())];
        needs.extend(here.flat_map(written_under));
        match too_few(left, &needs) {
            None => Ok(()),
            Some((profile, whose)) => Err(Failure::refused(format!(
                "{whose}, {profile}, needs {} disks that take chunks; without {} there are {left}. Add a disk first \
                 (`striate disk add PATH`), or choose a smaller profile",
                profile.code.chunk_count(),
                leaving.path.display()
            ))),
        }
    }
}

/// Returns the profiles under which a bucket's objects are written, its own and its storage classes', each with whose it
/// is. (Objects of a class with a wide profile are written under the bucket's, and sealed later.)
fn written_under(bucket: &Bucket) -> Vec<(Profile, String)> {
    let own = (&bucket.profile, format!("the profile of bucket {}", bucket.name));
    let classes = bucket.classes.iter();
    let classes =
        classes.map(|class| (&class.profile, format!("the class {} of bucket {}", class.class, bucket.name)));
    let parsed = |(text, whose): (&String, String)| Some((text.parse::<Profile>().ok()?, whose));
    let all = std::iter::once(own).chain(classes).filter_map(parsed);
    all.filter(|(profile, _)| profile.layout != Layout::Wide).collect()
}

/// Returns the profile on disks that needs most chunks, if it needs more than `left`.
fn too_few(left: usize, needs: &[(Profile, String)]) -> Option<&(Profile, String)> {
    let on_disks = needs.iter().filter(|(profile, _)| profile.tier == Tier::Disk);
    on_disks
        .filter(|(profile, _)| profile.code.chunk_count() > left)
        .max_by_key(|(profile, _)| profile.code.chunk_count())
}

#[cfg(test)]
mod tests {
    use striate_meta::records::ClassProfile;

    use super::*;

    #[test]
    fn the_profiles_of_storage_classes_need_disks_too_but_wide_ones_do_not() {
        let class =
            |name: &str, profile: &str| ClassProfile { class: name.to_owned(), profile: profile.to_owned() };
        let bucket = Bucket {
            name: "backups".to_owned(),
            profile: "rs(4,2)".to_owned(),
            classes: vec![class("REDUCED_REDUNDANCY", "rs(6,2)"), class("STANDARD_IA", "wide(42,15,4)")],
            ..Bucket::default()
        };
        let needs = written_under(&bucket);
        assert_eq!(needs.len(), 2);
        let (profile, whose) = too_few(7, &needs).expect("eight chunks");
        assert_eq!(
            (profile.to_string(), &**whose),
            ("rs(6,2)".to_owned(), "the class REDUCED_REDUNDANCY of bucket backups")
        );
    }

    #[test]
    fn the_widest_profile_that_has_too_few_disks_is_named() {
        let needs = ["rs(2,1)", "rs(4,2)", "rs(4,1)", "cache rs(10,4)"]
            .map(|text| (text.parse::<Profile>().expect("a profile"), text.to_owned()));
        let named = |left| too_few(left, &needs).map(|(_, text)| text.as_str());
        assert_eq!(named(6), None, "what is in memory needs no disks");
        assert_eq!(named(5), Some("rs(4,2)"));
        assert_eq!(named(2), Some("rs(4,2)"));
    }
}
