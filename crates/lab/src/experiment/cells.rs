//! Finished runs, kept on disk so that an interrupted experiment can resume.
//!
//! A *cell* is one run: an experiment, a policy, a seed. It is a file that is written atomically. Its name contains a
//! hash of everything that determines its contents: the parts of the experiment's text that concern the cell, the
//! policy, the seed, and the program itself. So a cell is found only by the program that made it, under the same
//! description. An unreadable cell is run again.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::file::{Experiment, PolicyUnderTest};
use super::results::SeedResult;
use crate::latency::Latencies;

/// Stored results of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// Figures of the run.
    pub result: SeedResult,
    /// Response times of the run.
    pub latencies: Latencies,
}

/// A folder of cells.
#[derive(Clone, Debug)]
pub struct Cells {
    folder: PathBuf,
    program: String,
}

impl Cells {
    /// Opens the cells in `folder` that were made by `program`, a text that differs between programs that may compute
    /// different results.
    pub fn new(folder: &Path, program: &str) -> Self {
        Self { folder: folder.to_owned(), program: program.to_owned() }
    }

    /// Loads a cell, if it is finished.
    pub fn load(&self, experiment: &Experiment, policy: &PolicyUnderTest, seed: u64) -> Option<Cell> {
        let text = fs::read(self.path(experiment, policy, seed)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Stores a cell.
    ///
    /// # Errors
    /// If the cell cannot be written.
    pub fn store(
        &self,
        experiment: &Experiment,
        policy: &PolicyUnderTest,
        seed: u64,
        cell: &Cell,
    ) -> io::Result<()> {
        let path = self.path(experiment, policy, seed);
        write_atomically(&path, &serde_json::to_vec(cell)?)
    }

    fn path(&self, experiment: &Experiment, policy: &PolicyUnderTest, seed: u64) -> PathBuf {
        let decisive = Experiment {
            title: String::new(),
            source: String::new(),
            seeds: 0,
            policies: vec![policy.clone()],
            figures: Vec::new(),
            paper: Vec::new(),
            ..experiment.clone()
        };
        let mut hasher = DefaultHasher::new();
        (format!("{decisive:?}"), &self.program).hash(&mut hasher);
        let is_plain = |c: char| c.is_ascii_alphanumeric();
        let name: String = policy.name.chars().map(|c| if is_plain(c) { c } else { '-' }).collect();
        let file = format!("{name}-{seed}-{:016x}.json", hasher.finish());
        self.folder.join(&experiment.name).join(file)
    }
}

/// Writes a file atomically, creating its folder: an interruption leaves either the old file or the new one.
///
/// # Errors
/// If the file cannot be written.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Two programs that write the same file at once must not share the unfinished one.
    let unfinished = path.with_extension(format!("unfinished-{}", std::process::id()));
    let mut file = fs::File::create(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)
}
