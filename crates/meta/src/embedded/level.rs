//! Levelling: after a crash, all in-sync mirrors are made equal before anything is served.
//!
//! A crash can leave the last group on some mirrors and not on others. It was not acknowledged, so it may stay or go,
//! but on all of them. The mirror with the highest revision is the source: any group that it has beyond the others is
//! complete, and every acknowledged group is on every mirror. The differences are written in one transaction per
//! mirror, so a second crash changes nothing.

use super::mirror::MirrorDb;
use super::snapshot::Failure;

/// Makes all mirrors equal to the one with the highest revision. Failed mirrors stay failed.
pub(super) fn level(mut mirrors: Vec<Result<MirrorDb, Failure>>) -> Vec<Result<MirrorDb, Failure>> {
    loop {
        let revision = |mirror: &Result<MirrorDb, Failure>| mirror.as_ref().ok().map(MirrorDb::revision);
        let Some(best) = (0..mirrors.len()).max_by_key(|&position| revision(&mirrors[position])) else {
            return mirrors;
        };
        let Ok(leader) = &mirrors[best] else { return mirrors };
        let highest = leader.revision();
        let source = match leader.snapshot() {
            Ok(source) => source,
            Err(failure) => {
                mirrors[best] = Err(failure);
                continue;
            }
        };
        for mirror in &mut mirrors {
            if let Ok(behind) = mirror
                && behind.revision() < highest
                && let Err(failure) = behind.level(&source, true)
            {
                *mirror = Err(failure);
            }
        }
        return mirrors;
    }
}
