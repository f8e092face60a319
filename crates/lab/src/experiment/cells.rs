//! Finished runs, kept on disk, so that an interrupted experiment goes on where it was.
//!
//! A *cell* is one run: an experiment, a policy, a seed. It is a file of its own, written whole or not at all, and
//! its name holds a hash of everything that decides its contents: the experiment's text as far as it concerns the
//! cell, the policy, the seed, and the program itself. So a cell is found again only by the program that made it,
//! under the same description; what cannot be read is run again.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::file::{Experiment, PolicyUnderTest};
use super::results::SeedResult;
use crate::latency::Latencies;

/// What is kept of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// Its figures.
    pub result: SeedResult,
    /// Its response times.
    pub latencies: Latencies,
}

/// A folder of cells.
#[derive(Clone, Debug)]
pub struct Cells {
    folder: PathBuf,
    program: String,
}

impl Cells {
    /// The cells in `folder` that were made by `program`, a text that differs between programs that may compute
    /// different results.
    pub fn new(folder: &Path, program: &str) -> Self {
        Self { folder: folder.to_owned(), program: program.to_owned() }
    }

    /// The cell, if it was finished.
    pub fn load(&self, experiment: &Experiment, policy: &PolicyUnderTest, seed: u64) -> Option<Cell> {
        let text = fs::read(self.path(experiment, policy, seed)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Keeps a cell.
    ///
    /// # Errors
    /// When it cannot be written.
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

/// Writes a file, making its folder, so that whoever is interrupted leaves the old file or the new one.
///
/// # Errors
/// When it cannot be written.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Two programs that write the same file at once do not share the unfinished one.
    let unfinished = path.with_extension(format!("unfinished-{}", std::process::id()));
    let mut file = fs::File::create(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)
}
