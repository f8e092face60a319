//! Defects planted on purpose: the fault run must find each of them.
//!
//! Each is a wrapper at a trait seam, so the code under test is the code that ships. The wrapper does what the code
//! would do if it had the defect.

mod blurred;
mod disk;
mod entries;
mod generation;
mod metadata;
mod mirror;
mod only_locals;
mod packing;
mod wide;

use std::fmt;
use std::sync::Arc;

use striate_codec::{ChunkSet, Code};
use striate_meta::MetaStore;
use striate_meta::embedded::MetaDirectory;
use striate_meta::embedded::simulated;
use striate_plan::{DurabilityRule, is_durable};
use striate_site::filesystem::{FileSystem, SimulatedFileSystem};
use striate_site::{ChunkStore, Site};
use striate_stripe::StripeOptions;
use striate_virtual_network::Machine;

use super::cluster::Cluster;
use super::site::SiteMachine;

/// A planted defect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutation {
    /// No defect.
    #[default]
    None,
    /// Chunks are acknowledged without an fsync.
    SkipFsync,
    /// Chunks are deleted before the transaction commits that turns them into garbage.
    DeleteBeforeCommit,
    /// The checksum of a chunk covers its header only, not its bytes.
    WrongChecksumScope,
    /// A write is acknowledged when it tolerates one loss less than it should.
    WriteQuorumOffByOne,
    /// A put whose commit has an unknown outcome removes its chunks.
    CleanUpAfterUnknownOutcome,
    /// The collector of abandoned puts mistakes a live writer for a dead one, and does not fence it.
    CollectorIgnoresLiveUpload,
    /// A write's condition is checked before the transaction instead of inside it.
    ConditionOutsideTransaction,
    /// A stale metadata mirror is mistaken for the newest at a start.
    StaleMirrorWins,
    /// Recovery of a segment ends at the first damaged record.
    RecoveryStopsAtHole,
    /// Object records are served from a cache for 100 ms.
    RecordCache,
    /// A site mistakes a chunk of another generation for the requested one.
    ForgetGeneration,
    /// A write is acknowledged with k + 1 chunks, whether or not they decode.
    AcknowledgeByCount,
    /// Packing switches rows without checking that they are unchanged since it read them.
    SwitchWithoutVersion,
    /// Packing switches rows and forgets the stripes that they named.
    SwitchForgetsGarbage,
    /// A coding group's record is committed without a mark.
    BornUnmarked,
    /// A packed object is overwritten or deleted without a mark.
    DeathUnmarked,
    /// Overwriting or deleting a packed object releases the group.
    OverwriteReleases,
    /// A settled group loses its mark, whatever has died meanwhile.
    SettleBlindly,
    /// A marked group is released, whatever lives in it.
    ReleaseOnMark,
    /// A group is released and its mark remains.
    ReleaseLeavesMark,
    /// A repair or a move writes a stripe's record without comparing it.
    SwapWithoutComparing,
    /// The file of a copy becomes garbage while the stripe's record still names it.
    CopyDroppedButNamed,
    /// Memory sites mistake a cached block for another one.
    StaleCache,
    /// Own stripes drop their parities while their wide stripe is being built.
    DropWhileBuilding,
    /// A wide stripe is sealed when its local parities are complete, even if the global ones are not.
    SealWithoutGlobals,
    /// A member is claimed without checking that its own stripe is unchanged.
    ClaimIgnoresMember,
    /// Members are claimed without checking that the wide stripe is unchanged.
    ClaimIgnoresWide,
    /// An aborted wide stripe is deleted before its claims are released.
    AbortDeletesAtOnce,
    /// A restarted seal writes under the generation of the previous attempt.
    SealKeepsGeneration,
    /// A move or repair of a member does not update the wide stripe.
    MoveForgetsCopy,
    /// The places that a member may have are checked when its move or repair begins, but not when it ends.
    RuleAtOpenOnly,
    /// A change commits although another process has cancelled it.
    CloseWithoutEntry,
    /// The files that a cancelled change has written are forgotten.
    CancelForgetsGarbage,
    /// Gateways read with the first version of a wide stripe's record that they saw.
    OldWideRow,
    /// Gateways read chunks that have changed in place from the files that they were in before.
    OldContent,
    /// A stripe without live data is released, although its chunks are members of wide stripes.
    ReleaseIgnoresMembers,
    /// A member leaves or joins without a check that its own stripe is unchanged.
    ExchangeIgnoresMembers,
    /// When a member leaves or joins, the local parity is recomputed and the global ones are not.
    ExchangeForgetsGlobals,
    /// When a member is updated in place, the local parity is recomputed and the global ones are not.
    UpdateForgetsGlobals,
    /// When a member is updated in place, the parities that its own stripe has dropped keep the checksums that they had.
    UpdateForgetsOwnParities,
    /// A local parity and a member swap places in two transactions.
    SwapInTwoTransactions,
    /// A wide stripe is dissolved when dead members leave it, although others live.
    DissolveWhileOneLives,
    /// The parities of a dissolved wide stripe are forgotten.
    DissolveForgetsGarbage,
    /// A wide stripe is given up before its members belong to others.
    TransferInTwoTransactions,
}

impl Mutation {
    /// All defects.
    pub const ALL: &'static [Self] = &[
        Self::SkipFsync,
        Self::DeleteBeforeCommit,
        Self::WrongChecksumScope,
        Self::WriteQuorumOffByOne,
        Self::CleanUpAfterUnknownOutcome,
        Self::CollectorIgnoresLiveUpload,
        Self::ConditionOutsideTransaction,
        Self::StaleMirrorWins,
        Self::RecoveryStopsAtHole,
        Self::RecordCache,
        Self::ForgetGeneration,
        Self::AcknowledgeByCount,
        Self::SwitchWithoutVersion,
        Self::SwitchForgetsGarbage,
        Self::BornUnmarked,
        Self::DeathUnmarked,
        Self::OverwriteReleases,
        Self::SettleBlindly,
        Self::ReleaseOnMark,
        Self::ReleaseLeavesMark,
        Self::SwapWithoutComparing,
        Self::CopyDroppedButNamed,
        Self::StaleCache,
        Self::DropWhileBuilding,
        Self::SealWithoutGlobals,
        Self::ClaimIgnoresMember,
        Self::ClaimIgnoresWide,
        Self::AbortDeletesAtOnce,
        Self::SealKeepsGeneration,
        Self::MoveForgetsCopy,
        Self::RuleAtOpenOnly,
        Self::CloseWithoutEntry,
        Self::CancelForgetsGarbage,
        Self::OldWideRow,
        Self::OldContent,
        Self::ReleaseIgnoresMembers,
        Self::ExchangeIgnoresMembers,
        Self::ExchangeForgetsGlobals,
        Self::UpdateForgetsGlobals,
        Self::UpdateForgetsOwnParities,
        Self::SwapInTwoTransactions,
        Self::DissolveWhileOneLives,
        Self::DissolveForgetsGarbage,
        Self::TransferInTwoTransactions,
    ];

    /// Returns the mutation's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::SkipFsync => "skip-fsync",
            Self::DeleteBeforeCommit => "delete-before-commit",
            Self::WrongChecksumScope => "wrong-checksum-scope",
            Self::WriteQuorumOffByOne => "write-quorum-off-by-one",
            Self::CleanUpAfterUnknownOutcome => "clean-up-after-unknown-outcome",
            Self::CollectorIgnoresLiveUpload => "collector-ignores-live-upload",
            Self::ConditionOutsideTransaction => "condition-outside-transaction",
            Self::StaleMirrorWins => "stale-mirror-wins",
            Self::RecoveryStopsAtHole => "recovery-stops-at-hole",
            Self::RecordCache => "record-cache",
            Self::ForgetGeneration => "forget-generation",
            Self::AcknowledgeByCount => "acknowledge-by-count",
            Self::SwitchWithoutVersion => "switch-without-version",
            Self::SwitchForgetsGarbage => "switch-forgets-garbage",
            Self::BornUnmarked => "born-unmarked",
            Self::DeathUnmarked => "death-unmarked",
            Self::OverwriteReleases => "overwrite-releases",
            Self::SettleBlindly => "settle-blindly",
            Self::ReleaseOnMark => "release-on-mark",
            Self::ReleaseLeavesMark => "release-leaves-mark",
            Self::SwapWithoutComparing => "swap-without-comparing",
            Self::CopyDroppedButNamed => "copy-dropped-but-named",
            Self::StaleCache => "stale-cache",
            Self::DropWhileBuilding => "drop-while-building",
            Self::SealWithoutGlobals => "seal-without-globals",
            Self::ClaimIgnoresMember => "claim-ignores-member",
            Self::ClaimIgnoresWide => "claim-ignores-wide",
            Self::AbortDeletesAtOnce => "abort-deletes-at-once",
            Self::SealKeepsGeneration => "seal-keeps-generation",
            Self::MoveForgetsCopy => "move-forgets-copy",
            Self::RuleAtOpenOnly => "rule-at-open-only",
            Self::CloseWithoutEntry => "close-without-entry",
            Self::CancelForgetsGarbage => "cancel-forgets-garbage",
            Self::OldWideRow => "old-wide-row",
            Self::OldContent => "old-content",
            Self::ReleaseIgnoresMembers => "release-ignores-members",
            Self::ExchangeIgnoresMembers => "exchange-ignores-members",
            Self::ExchangeForgetsGlobals => "exchange-forgets-globals",
            Self::UpdateForgetsGlobals => "update-forgets-globals",
            Self::UpdateForgetsOwnParities => "update-forgets-own-parities",
            Self::SwapInTwoTransactions => "swap-in-two-transactions",
            Self::DissolveWhileOneLives => "dissolve-while-one-lives",
            Self::DissolveForgetsGarbage => "dissolve-forgets-garbage",
            Self::TransferInTwoTransactions => "transfer-in-two-transactions",
        }
    }
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Mutation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // With a list known at compile time, the optimiser unrolls all of this, which takes more than ten minutes.
        let all = std::hint::black_box(Self::ALL);
        let known = || std::iter::once(&Self::None).chain(all);
        known().copied().find(|mutation| mutation.name() == text).ok_or_else(|| {
            let names: Vec<_> = known().map(|mutation| mutation.name()).collect();
            format!("{text:?} is no mutation; there are {}", names.join(", "))
        })
    }
}

/// Returns the file system as the chunk store sees it.
pub fn file_system(mutation: Mutation, fs: &SimulatedFileSystem) -> Arc<dyn FileSystem> {
    match mutation {
        Mutation::SkipFsync => Arc::new(disk::UnsyncedFileSystem(fs.clone())),
        _ => Arc::new(fs.clone()),
    }
}

/// Returns the chunk store as the site sees it.
pub fn chunk_store(mutation: Mutation, store: Arc<dyn ChunkStore>) -> Arc<dyn ChunkStore> {
    match mutation {
        Mutation::WrongChecksumScope => Arc::new(disk::UncheckedStore::new(store)),
        Mutation::ForgetGeneration => Arc::new(generation::ForgetfulStore(store)),
        _ => store,
    }
}

/// Returns a cache as its memory site sees it.
pub fn cache_store(mutation: Mutation, store: Arc<dyn ChunkStore>) -> Arc<dyn ChunkStore> {
    match mutation {
        Mutation::StaleCache => Arc::new(blurred::BlurredCache(store)),
        _ => store,
    }
}

/// Returns the directories as the metadata engine sees them at a start.
pub fn metadata_directories(mutation: Mutation, disks: &simulated::Machine) -> Vec<MetaDirectory> {
    match mutation {
        Mutation::StaleMirrorWins => mirror::favour_the_stale(disks.directories()),
        _ => disks.directories(),
    }
}

/// Returns the metadata as a process on a machine sees it.
pub fn metadata(
    mutation: Mutation,
    store: Arc<dyn MetaStore>,
    cluster: &Cluster,
    here: Machine,
    is_collector: bool,
) -> Arc<dyn MetaStore> {
    let distant =
        |site: Arc<SiteMachine>| Some(Arc::new(cluster.site_from(here, site.id())?) as Arc<dyn Site>);
    let sites: Vec<Arc<dyn Site>> = match mutation {
        Mutation::DeleteBeforeCommit => cluster.sites().into_iter().filter_map(distant).collect(),
        _ => Vec::new(),
    };
    let is_planted = match mutation {
        Mutation::CollectorIgnoresLiveUpload => is_collector,
        Mutation::OldWideRow | Mutation::OldContent => !is_collector,
        Mutation::None
        | Mutation::SkipFsync
        | Mutation::WrongChecksumScope
        | Mutation::WriteQuorumOffByOne
        | Mutation::StaleMirrorWins
        | Mutation::RecoveryStopsAtHole
        | Mutation::ForgetGeneration
        | Mutation::AcknowledgeByCount
        | Mutation::SealWithoutGlobals
        | Mutation::StaleCache => false,
        _ => true,
    };
    match is_planted {
        true => Arc::new(metadata::DefectiveMeta::new(mutation, store, cluster.runtime.clone(), sites)),
        false => store,
    }
}

/// Returns a site as the services of a control process see it.
pub fn site(mutation: Mutation, site: Arc<dyn Site>, cluster: &Cluster) -> Arc<dyn Site> {
    match mutation {
        Mutation::SealWithoutGlobals => Arc::new(only_locals::LocalParitySite::new(site, cluster)),
        _ => site,
    }
}

/// Returns how many further losses an acknowledged write tolerates.
pub fn write_surplus(mutation: Mutation) -> usize {
    let right = StripeOptions::default().write_surplus;
    if mutation == Mutation::WriteQuorumOffByOne { right - 1 } else { right }
}

/// Returns the rule for acknowledging a write.
pub fn durability_rule(mutation: Mutation) -> DurabilityRule {
    if mutation == Mutation::AcknowledgeByCount { has_enough } else { is_durable }
}

/// The rule of 0.1.0, which is right only for MDS codes.
fn has_enough(code: &Code, held: &ChunkSet, surplus: usize) -> bool {
    held.len() >= (code.k() + surplus).min(code.n())
}
