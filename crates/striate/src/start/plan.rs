//! Plans a start, as a pure function of the contents of the directories.
//!
//! | contents | the start |
//! |--|--|
//! | nothing, in all of them | creates a new cluster |
//! | an unfinished first start | finishes it |
//! | all members | opens the cluster; admits blank directories at other paths |
//! | all but at most r members | opens it degraded, admits no directory, and reports what is missing |
//! | a member that cannot be used (read-only, not permitted, damaged, a file, silent) | counts it as missing, and leaves it as it is |
//! | fewer | refuses, and names what is missing |
//! | members of two clusters, a copy, a disk that was replaced | refuses |
//! | remains of an unknown store, or anything that cannot be used | refuses, unless it is where a member was, which then is missing |
//!
//! A directory that cannot be used may hold good data. It is never taken for blank, so it never begins a cluster, never
//! finishes a first start, and is never admitted. Nor does it count as present: a start needs n − r directories that it
//! can read and write, or the newest epoch of the metadata could be overlooked (design.md §10.9).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use striate_core::ClusterId;
use striate_meta::embedded::DiskId;

use super::directories::{DirectoryContents, InspectedDirectory, Unusable};
use super::remains::FolderRemains;
use super::roster::{Member, Roster};

/// The plan of a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartPlan {
    /// Create a new cluster in these directories, in this order.
    First {
        /// Directories of the cluster; those that do not exist are created.
        paths: Vec<PathBuf>,
    },
    /// Open a cluster.
    Open(OpenPlan),
}

/// The plan of opening a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenPlan {
    /// Roster in force, with the paths where its members were found now.
    pub roster: Roster,
    /// Members that are present.
    pub present: Vec<Member>,
    /// Blank directories in which an interrupted first start had not yet written an identity.
    pub unfinished: Vec<Member>,
    /// Members that are missing.
    pub missing: Vec<MissingMember>,
    /// Blank directories to admit.
    pub admit: Vec<PathBuf>,
    /// Blank directories to leave alone.
    pub ignored: Vec<PathBuf>,
}

/// A member that a start goes on without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingMember {
    /// The member, at the path where it was last seen.
    pub member: Member,
    /// What was found there.
    pub found: String,
    /// What the operator can do, if its directory is there and cannot be used: it may hold good data.
    pub excluded: Option<&'static str>,
}

/// Why a start is refused. The message names the remedy; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The directories belong to two clusters.
    #[error(
        "{first} belongs to cluster {first_cluster}, {second} to cluster {second_cluster}; give the directories of one \
         cluster only"
    )]
    TwoClusters {
        /// A directory of one cluster.
        first: PathBuf,
        /// Cluster of the first directory.
        first_cluster: ClusterId,
        /// A directory of another cluster.
        second: PathBuf,
        /// Cluster of the second directory.
        second_cluster: ClusterId,
    },
    /// Two directories have the same identity.
    #[error(
        "{first} and {second} have the same identity: one is a copy of the other; remove the copy from the command"
    )]
    Copy {
        /// One of the directories.
        first: PathBuf,
        /// The other directory.
        second: PathBuf,
    },
    /// A disk that was replaced has come back.
    #[error(
        "{path} is a disk that was replaced or given up; leave it out, or empty it to add it as a new one (its data is not \
         needed any more)"
    )]
    Replaced {
        /// Path of the directory.
        path: PathBuf,
    },
    /// Too few members are present.
    #[error("{}", describe_missing(.present, .needed, .total, .missing))]
    TooManyMissing {
        /// Number of members present.
        present: usize,
        /// Number of members needed.
        needed: usize,
        /// Number of all members.
        total: usize,
        /// Paths of the missing members, and what was found there.
        missing: Vec<(PathBuf, String)>,
    },
    /// A directory that should be blank holds remains of a store.
    #[error(
        "{path} holds remains of a store (for example {example}) but nothing that says of which; leave it out, or \
         remove {path}/.striate if nobody misses it"
    )]
    Remains {
        /// Path of the directory.
        path: PathBuf,
        /// One of its entries.
        example: String,
    },
    /// A directory that is no member's cannot be used.
    #[error("{path}: {reason}; {way_out}")]
    Unusable {
        /// Path of the directory.
        path: PathBuf,
        /// Why it cannot be used.
        reason: String,
        /// What the operator can do about it.
        way_out: &'static str,
    },
    /// A directory does not exist and is not a member's.
    #[error(
        "{path} does not exist; is the disk mounted? To add it to the cluster make it first: mkdir {path}"
    )]
    Absent {
        /// Missing path.
        path: PathBuf,
    },
}

fn describe_missing(present: &usize, needed: &usize, total: &usize, missing: &[(PathBuf, String)]) -> String {
    let list: Vec<_> =
        missing.iter().map(|(path, what)| format!("\n  {} ({what})", path.display())).collect();
    format!(
        "{present} of the cluster's {total} directories are here, {needed} are needed. Missing:{}\nNothing was changed. \
         Bring the missing disks back (mount them, or name them in the command) and start again; everything on \
         them is still good",
        list.concat()
    )
}

/// Plans a start.
///
/// # Errors
/// If it must be refused.
pub fn plan_start(inspected: &[InspectedDirectory]) -> Result<StartPlan, StartError> {
    let Some(newest) = newest_roster(inspected)? else {
        let blank = |directory: &InspectedDirectory| match &directory.found {
            DirectoryContents::Remains(remains) => Err(refuse_remains(directory, remains)),
            DirectoryContents::Unusable(why) => Err(refuse_unusable(directory, why)),
            _ => Ok(directory.path.clone()),
        };
        return Ok(StartPlan::First { paths: inspected.iter().map(blank).collect::<Result<_, _>>()? });
    };
    let present = present_members(inspected, &newest)?;
    let is_present = |member: &Member| present.iter().any(|found| found.disk == member.disk);
    let absent: Vec<Member> = newest.members.iter().filter(|member| !is_present(member)).cloned().collect();
    let is_blank = |directory: &InspectedDirectory| {
        matches!(directory.found, DirectoryContents::Blank | DirectoryContents::Absent)
    };
    let blank_at =
        |path: &Path| inspected.iter().any(|directory| directory.path == path && is_blank(directory));
    // An interrupted first start: nothing was ever served, and directories without a roster are still blank.
    let served = inspected
        .iter()
        .any(|directory| matches!(directory.found, DirectoryContents::Member { served: true, .. }));
    let is_unfinished = !served && absent.iter().all(|member| blank_at(&member.path));
    let (unfinished, missing) = if is_unfinished { (absent, Vec::new()) } else { (Vec::new(), absent) };
    let missing: Vec<_> = missing.into_iter().map(|member| describe(member, inspected, &newest)).collect();
    refuse_too_few(&newest, &present, &missing, unfinished.len())?;
    let claimed = |path: &Path| newest.members.iter().any(|member| member.path == path);
    let somewhere_else = missing.iter().any(|missing| missing.found.starts_with(NOT_NAMED));
    let mut spare = Vec::new();
    for directory in inspected.iter().filter(|directory| !claimed(&directory.path)) {
        match &directory.found {
            DirectoryContents::Remains(remains) => return Err(refuse_remains(directory, remains)),
            DirectoryContents::Absent => return Err(StartError::Absent { path: directory.path.clone() }),
            DirectoryContents::Blank => spare.push(directory.path.clone()),
            DirectoryContents::Unusable(why) if why.member.is_none() && !somewhere_else => {
                return Err(refuse_unusable(directory, why));
            }
            DirectoryContents::Unusable(_) | DirectoryContents::Member { .. } => {}
        }
    }
    let (admit, ignored) = if missing.is_empty() { (spare, Vec::new()) } else { (Vec::new(), spare) };
    let mut roster = newest;
    for found in &present {
        let member = roster.members.iter_mut().find(|member| member.disk == found.disk);
        member.expect("present members are in the roster").path.clone_from(&found.path);
    }
    Ok(StartPlan::Open(OpenPlan { roster, present, unfinished, missing, admit, ignored }))
}

fn refuse_remains(directory: &InspectedDirectory, remains: &FolderRemains) -> StartError {
    StartError::Remains { path: directory.path.clone(), example: remains.example.clone() }
}

fn refuse_unusable(directory: &InspectedDirectory, why: &Unusable) -> StartError {
    let (path, reason) = (directory.path.clone(), why.reason.clone());
    StartError::Unusable { path, reason, way_out: why.way_out }
}

/// Returns the roster with the greatest generation; `None` if there is none.
fn newest_roster(inspected: &[InspectedDirectory]) -> Result<Option<Roster>, StartError> {
    let mut newest: Option<(&PathBuf, &Roster)> = None;
    for directory in inspected {
        let Some((_, roster)) = directory.found.identity() else { continue };
        match newest {
            Some((first, other)) if other.cluster != roster.cluster => {
                return Err(StartError::TwoClusters {
                    first: first.clone(),
                    first_cluster: other.cluster,
                    second: directory.path.clone(),
                    second_cluster: roster.cluster,
                });
            }
            Some((_, other)) if other.generation >= roster.generation => {}
            _ => newest = Some((&directory.path, roster)),
        }
    }
    Ok(newest.map(|(_, roster)| roster.clone()))
}

/// Returns the members that are present, with the paths where they were found, in the roster's order.
fn present_members(inspected: &[InspectedDirectory], newest: &Roster) -> Result<Vec<Member>, StartError> {
    let mut by_disk: BTreeMap<DiskId, &PathBuf> = BTreeMap::new();
    for directory in inspected {
        let Some((disk, _)) = directory.found.identity() else { continue };
        if newest.member(disk).is_none() {
            return Err(StartError::Replaced { path: directory.path.clone() });
        }
        if let Some(first) = by_disk.insert(disk, &directory.path) {
            return Err(StartError::Copy { first: first.clone(), second: directory.path.clone() });
        }
    }
    let is_usable = |path: &Path| {
        let mut at_path = inspected.iter().filter(|directory| directory.path == path);
        at_path.any(|directory| matches!(directory.found, DirectoryContents::Member { .. }))
    };
    by_disk.retain(|_, path| is_usable(path));
    let here = |member: &Member| {
        let path = by_disk.get(&member.disk)?;
        Some(Member { path: (*path).clone(), ..member.clone() })
    };
    Ok(newest.members.iter().filter_map(here).collect())
}

/// Says what was found in place of a missing member.
fn describe(member: Member, inspected: &[InspectedDirectory], newest: &Roster) -> MissingMember {
    let is_it = |directory: &&InspectedDirectory| match directory.found.identity() {
        Some((disk, _)) => disk == member.disk,
        None => directory.path == member.path,
    };
    let is_at_its_path = |directory: &&InspectedDirectory| directory.path == member.path;
    let found = inspected.iter().find(is_it).or_else(|| inspected.iter().find(is_at_its_path));
    let unknown = |directory: &&InspectedDirectory| {
        let is_unusable = matches!(directory.found, DirectoryContents::Unusable(_));
        let is_known = newest.members.iter().any(|member| member.path == directory.path);
        is_unusable && directory.found.identity().is_none() && !is_known
    };
    let mut excluded = None;
    let found = match found.map(|directory| &directory.found) {
        None => match inspected.iter().find(unknown) {
            None => NOT_NAMED.to_owned(),
            Some(other) => {
                format!("{NOT_NAMED}, unless it is {}, which cannot be used", other.path.display())
            }
        },
        Some(DirectoryContents::Absent) => "does not exist".to_owned(),
        Some(DirectoryContents::Blank) => "empty: another or an unmounted disk".to_owned(),
        Some(DirectoryContents::Member { .. }) => "another disk of the cluster is there".to_owned(),
        Some(DirectoryContents::Remains(_)) => "only remains, without roster and identity".to_owned(),
        Some(DirectoryContents::Unusable(why)) => {
            excluded = Some(why.way_out);
            why.reason.clone()
        }
    };
    MissingMember { member, found, excluded }
}

/// What is said of a member whose path is not in the command.
const NOT_NAMED: &str = "not named in the command";

fn refuse_too_few(
    newest: &Roster,
    present: &[Member],
    missing: &[MissingMember],
    unfinished: usize,
) -> Result<(), StartError> {
    if present.len() + unfinished >= newest.needed() {
        return Ok(());
    }
    let missing = missing.iter().map(|missing| (missing.member.path.clone(), missing.found.clone()));
    Err(StartError::TooManyMissing {
        present: present.len(),
        needed: newest.needed(),
        total: newest.members.len(),
        missing: missing.collect(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use striate_core::SiteId;

    use super::*;
    use crate::start::roster::RequiredFormats;

    fn path(number: u8) -> PathBuf {
        format!("/d{number}").into()
    }

    fn roster(members: u8, tolerance: usize) -> Roster {
        let member =
            |number| Member { disk: DiskId([number; 16]), site: SiteId(number.into()), path: path(number) };
        Roster {
            generation: 1,
            cluster: ClusterId(5),
            tolerance,
            next_site: u32::from(members) + 1,
            members: (1..=members).map(member).collect(),
            formats: RequiredFormats::default(),
        }
    }

    fn member_at(number: u8, at: PathBuf, roster: &Roster) -> InspectedDirectory {
        let found =
            DirectoryContents::Member { disk: DiskId([number; 16]), roster: roster.clone(), served: true };
        InspectedDirectory { path: at, found }
    }

    fn blank(number: u8) -> InspectedDirectory {
        InspectedDirectory { path: path(number), found: DirectoryContents::Blank }
    }

    fn opened(inspected: &[InspectedDirectory]) -> OpenPlan {
        match plan_start(inspected).unwrap() {
            StartPlan::Open(plan) => plan,
            first => panic!("{first:?}"),
        }
    }

    fn missing(plan: &OpenPlan) -> Vec<u32> {
        plan.missing.iter().map(|missing| missing.member.site.0).collect()
    }

    fn unusable(number: u8, member: Option<(DiskId, Roster)>) -> InspectedDirectory {
        let (reason, way_out) = ("Read-only file system".to_owned(), "check the disk");
        let found = DirectoryContents::Unusable(Unusable { reason, way_out, member });
        InspectedDirectory { path: path(number), found }
    }

    #[test]
    fn a_member_that_cannot_be_used_is_missing_with_its_reason_and_counts_against_the_tolerance() {
        let roster = roster(6, 2);
        let others = |numbers: &[u8]| -> Vec<_> {
            numbers.iter().map(|&number| member_at(number, path(number), &roster)).collect()
        };
        let known = |number: u8| unusable(number, Some((DiskId([number; 16]), roster.clone())));
        for bad in [unusable(6, None), known(6)] {
            let plan = opened(&[&others(&[1, 2, 3, 4, 5]), &[bad.clone()][..]].concat());
            assert_eq!((missing(&plan), &*plan.missing[0].found), (vec![6], "Read-only file system"));
            assert_eq!((plan.missing[0].excluded, plan.unfinished.len()), (Some("check the disk"), 0));
            let plan = opened(&[&others(&[1, 2, 3, 4]), &[bad.clone(), blank(5)][..]].concat());
            assert_eq!(missing(&plan), [5, 6]);
            let refused = plan_start(&[&others(&[1, 2, 3]), &[bad, blank(5)][..]].concat()).unwrap_err();
            assert!(refused.to_string().contains("/d6 (Read-only file system)"), "{refused}");
        }
        // Known by its identity at another path; unknown, it may be the one that is not named.
        let moved = InspectedDirectory { path: path(9), ..known(6) };
        assert_eq!(
            opened(&[&others(&[1, 2, 3, 4, 5]), &[moved][..]].concat()).missing[0].excluded,
            Some("check the disk")
        );
        let plan = opened(&[&others(&[1, 2, 3, 4, 5]), &[unusable(9, None)][..]].concat());
        assert!(plan.missing[0].found.contains("unless it is /d9"), "{:?}", plan.missing);
        let whole = plan_start(&[&others(&[1, 2, 3, 4, 5, 6]), &[unusable(9, None)][..]].concat());
        assert!(matches!(whole, Err(StartError::Unusable { .. })), "it would be a new member: {whole:?}");
    }

    #[test]
    fn what_cannot_be_used_never_begins_a_cluster_and_still_tells_of_copies_and_other_clusters() {
        let refused = plan_start(&[blank(1), unusable(2, None)]);
        assert!(matches!(refused, Err(StartError::Unusable { .. })), "{refused:?}");
        let (mine, mut other) = (roster(3, 1), roster(3, 1));
        let begun = DirectoryContents::Member { disk: DiskId([1; 16]), roster: mine.clone(), served: false };
        let begun = InspectedDirectory { path: path(1), found: begun };
        let plan = plan_start(&[begun, blank(2), unusable(3, None)]);
        assert!(
            matches!(plan, Err(StartError::TooManyMissing { .. })),
            "it does not finish a first start: {plan:?}"
        );
        other.cluster = ClusterId(6);
        let others = [1, 2].map(|number| member_at(number, path(number), &mine));
        let with = |number: u8, roster: &Roster| {
            let bad = unusable(3, Some((DiskId([number; 16]), roster.clone())));
            plan_start(&[&others[..], &[bad]].concat())
        };
        assert!(matches!(with(3, &other), Err(StartError::TwoClusters { .. })));
        assert!(matches!(with(1, &mine), Err(StartError::Copy { .. })));
        assert!(matches!(with(8, &mine), Err(StartError::Replaced { .. })));
    }

    #[test]
    fn blank_and_absent_directories_make_a_new_cluster() {
        let inspected = [blank(1), InspectedDirectory { path: path(2), found: DirectoryContents::Absent }];
        assert_eq!(plan_start(&inspected), Ok(StartPlan::First { paths: vec![path(1), path(2)] }));
    }

    #[test]
    fn members_may_come_at_other_paths_and_blank_directories_join_a_whole_cluster() {
        let roster = roster(3, 1);
        let swapped = [
            member_at(2, path(1), &roster),
            member_at(1, path(2), &roster),
            member_at(3, path(9), &roster),
            blank(4),
        ];
        let plan = opened(&swapped);
        assert_eq!(plan.roster.member(DiskId([1; 16])).unwrap().path, path(2));
        assert_eq!((plan.present.len(), plan.missing.len(), plan.admit), (3, 0, vec![path(4)]));
    }

    #[test]
    fn a_blank_disk_in_a_members_place_is_missing_and_nobody_is_admitted_meanwhile() {
        let roster = roster(4, 2);
        let plan = opened(&[
            member_at(1, path(1), &roster),
            blank(2),
            member_at(3, path(3), &roster),
            member_at(4, path(4), &roster),
            blank(5),
        ]);
        assert_eq!(missing(&plan), [2]);
        assert_eq!(plan.missing[0].excluded, None);
        assert_eq!((plan.admit, plan.ignored), (vec![], vec![path(5)]));
    }

    #[test]
    fn too_many_missing_is_refused_and_names_them() {
        let roster = roster(4, 2);
        let error = plan_start(&[member_at(1, path(1), &roster), blank(2)]).unwrap_err().to_string();
        for word in ["/d2 (empty", "/d3 (not named", "/d4", "2 are needed", "Nothing was changed"] {
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn remains_in_a_members_place_are_a_missing_disk_and_elsewhere_refused() {
        let roster = roster(4, 2);
        let remains = |number| InspectedDirectory {
            path: path(number),
            found: DirectoryContents::Remains(FolderRemains::default()),
        };
        let others = [1, 2, 3].map(|number| member_at(number, path(number), &roster));
        let plan = opened(&[&others[..], &[remains(4)]].concat());
        assert_eq!((missing(&plan), plan.unfinished), (vec![4], vec![]));
        let refused = plan_start(&[&others[..], &[remains(9)]].concat());
        assert!(matches!(refused, Err(StartError::Remains { .. })), "{refused:?}");
        let refused = plan_start(&[blank(1), remains(2)]);
        assert!(matches!(refused, Err(StartError::Remains { .. })), "{refused:?}");
        let begun =
            DirectoryContents::Member { disk: DiskId([1; 16]), roster: roster.clone(), served: false };
        let plan =
            plan_start(&[InspectedDirectory { path: path(1), found: begun }, blank(2), blank(3), remains(4)]);
        assert!(
            matches!(plan, Err(StartError::TooManyMissing { .. })),
            "no first start leaves remains: {plan:?}"
        );
    }

    #[test]
    fn an_interrupted_first_start_is_finished() {
        let roster = roster(3, 1);
        let begun =
            DirectoryContents::Member { disk: DiskId([1; 16]), roster: roster.clone(), served: false };
        let plan = opened(&[InspectedDirectory { path: path(1), found: begun }, blank(2), blank(3)]);
        assert_eq!((plan.unfinished.len(), plan.missing.len(), plan.admit.len()), (2, 0, 0));
    }

    #[test]
    fn other_clusters_copies_and_replaced_disks_are_refused() {
        let (mine, mut other) = (roster(3, 1), roster(3, 1));
        other.cluster = ClusterId(6);
        let refusal = |inspected: &[InspectedDirectory]| plan_start(inspected).unwrap_err();
        let two = refusal(&[member_at(1, path(1), &mine), member_at(2, path(2), &other)]);
        assert!(matches!(two, StartError::TwoClusters { .. }));
        let copy = refusal(&[member_at(1, path(1), &mine), member_at(1, path(2), &mine)]);
        assert!(matches!(copy, StartError::Copy { .. }));
        let newer = mine.changed(|roster| drop(roster.members.remove(0)));
        let replaced = refusal(&[
            member_at(1, path(1), &mine),
            member_at(2, path(2), &newer),
            member_at(3, path(3), &newer),
        ]);
        assert_eq!(replaced, StartError::Replaced { path: path(1) });
        let absent = InspectedDirectory { path: path(8), found: DirectoryContents::Absent };
        let whole = [1, 2, 3].map(|number| member_at(number, path(number), &mine));
        let added = refusal(&[&whole[..], &[absent]].concat());
        assert_eq!(added, StartError::Absent { path: path(8) });
    }

    proptest! {
        /// For any present members in any order, the plan accounts for every member once, starts exactly if at most r
        /// are missing, and admits no directory while a member is missing.
        #[test]
        fn every_member_is_accounted_for(
            members in 1u8..10, tolerance in 0usize..4, here: [bool; 10], bad: [bool; 10], spare in 0u8..3, seed: u64,
        ) {
            let tolerance = tolerance.min(usize::from(members) - 1);
            let roster = roster(members, tolerance);
            let mut inspected: Vec<_> = (1..=members)
                .map(|number| match here[usize::from(number)] {
                    true => member_at(number, path(number), &roster),
                    false if bad[usize::from(number)] => unusable(number, None),
                    false => blank(number),
                })
                .chain((100..100 + spare).map(blank))
                .collect();
            let order = seed as usize % inspected.len().max(1);
            inspected.rotate_left(order);
            let present = (1..=members).filter(|&number| here[usize::from(number)]).count();
            match plan_start(&inspected) {
                Ok(StartPlan::First { .. }) => prop_assert_eq!(present, 0),
                Ok(StartPlan::Open(plan)) => {
                    prop_assert!(present + tolerance >= usize::from(members));
                    prop_assert_eq!(plan.present.len(), present);
                    prop_assert_eq!(plan.present.len() + plan.missing.len(), usize::from(members));
                    prop_assert_eq!(plan.admit.len() + plan.ignored.len(), usize::from(spare));
                    prop_assert!(plan.missing.is_empty() || plan.admit.is_empty());
                }
                Err(StartError::Unusable { .. }) => prop_assert_eq!(present, 0),
                Err(error) => {
                    prop_assert!(present + tolerance < usize::from(members), "{}", error);
                }
            }
        }
    }
}
