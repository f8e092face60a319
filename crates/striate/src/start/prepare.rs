//! Prepares a start: inspects and locks the directories, and plans. Everything that a start may refuse for the sake of
//! its directories is refused here, before anything is written.

use std::collections::BTreeMap;
use std::path::PathBuf;

use striate_commands::failure::{Failure, Outcome};
use striate_runtime::Runtime;

use super::directories::{Inspection, inspect_all};
use super::lock::DirectoryLock;
use super::plan::{StartPlan, plan_start};

/// A planned start, whose members are locked.
#[derive(Debug)]
pub struct PreparedStart {
    /// The plan.
    pub plan: StartPlan,
    /// Locks of the members that are present, by their paths.
    pub(super) locks: BTreeMap<PathBuf, DirectoryLock>,
}

impl PreparedStart {
    /// Returns true if it begins a store, or finishes a first start that was interrupted.
    pub fn is_first(&self) -> bool {
        match &self.plan {
            StartPlan::First { .. } => true,
            StartPlan::Open(plan) => !plan.unfinished.is_empty(),
        }
    }

    /// Prepares a start on the directories at these paths.
    ///
    /// # Errors
    /// If it must be refused. The message names the remedy; nothing was changed.
    pub async fn new(runtime: &Runtime, paths: &[String]) -> Outcome<Self> {
        let Inspection { directories, locks } =
            inspect_all(runtime, paths).await.map_err(Failure::refused)?;
        Ok(Self { plan: plan_start(&directories).map_err(Failure::refused)?, locks })
    }
}
