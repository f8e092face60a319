//! The first access key: shown once, on a terminal or in a file that only its owner can read.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use striate_s3::Credentials;
use zeroize::Zeroizing;

/// Access key that `--dev` accepts.
pub const DEV_ACCESS_KEY: &str = "striate";
/// Secret of the access key that `--dev` accepts.
pub const DEV_SECRET: &str = "striate-dev-secret";

/// Returns the key from the environment or `--dev`; `None` if neither gives one.
///
/// # Errors
/// If only one half of the key is set.
pub fn given(dev: bool) -> Result<Option<Credentials>, String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    match (variable("STRIATE_ACCESS_KEY"), variable("STRIATE_SECRET_KEY")) {
        (Some(access_key), Some(secret)) => {
            Ok(Some(Credentials { access_key, secret: Zeroizing::new(secret) }))
        }
        (None, None) if dev => {
            let secret = Zeroizing::new(DEV_SECRET.to_owned());
            Ok(Some(Credentials { access_key: DEV_ACCESS_KEY.to_owned(), secret }))
        }
        (None, None) => Ok(None),
        _ => Err("set both STRIATE_ACCESS_KEY and STRIATE_SECRET_KEY, or neither".to_owned()),
    }
}

/// The place where a secret was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretOutput {
    /// On the terminal.
    Terminal,
    /// In this file.
    File(PathBuf),
}

/// A place for a secret that does not exist yet: the terminal, or a new file with mode 0600 that has room for it. Find
/// the place before the secret is made: a secret that cannot be shown is lost, and so is the one that it replaced. A
/// file that is not used is removed.
#[derive(Debug)]
pub struct SecretPlace {
    /// The new file; `None` for the terminal.
    file: Option<(File, PathBuf)>,
    /// Folder of a file that is named after the key.
    folder: Option<PathBuf>,
}

/// Bytes that a new file holds until its secret is written, so that a full disk is noticed before.
const ROOM: usize = 1024;

impl SecretPlace {
    /// Finds a place: `file` if it is named; the terminal if the standard output is one; or else a file in the first of
    /// `folders` that takes one.
    ///
    /// # Errors
    /// If `file` exists, or no file can be written.
    pub fn find(file: Option<&Path>, folders: &[PathBuf]) -> io::Result<Self> {
        if let Some(path) = file {
            return Ok(Self { file: Some((reserve(path)?, path.to_owned())), folder: None });
        }
        if io::stdout().is_terminal() {
            return Ok(Self { file: None, folder: None });
        }
        Self::in_folders(folders)
    }

    fn in_folders(folders: &[PathBuf]) -> io::Result<Self> {
        let mut refused = io::Error::from(io::ErrorKind::NotFound);
        for folder in folders {
            let path = folder.join(format!(".striate-key-{}.new", std::process::id()));
            match reserve(&path) {
                Ok(file) => return Ok(Self { file: Some((file, path)), folder: Some(folder.clone()) }),
                Err(error) => {
                    refused = io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
                }
            }
        }
        Err(refused)
    }

    /// Shows a key and its secret. A file that was not named by the caller gets the first free name for the key.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn show(mut self, credentials: &Credentials) -> io::Result<SecretOutput> {
        let text = Zeroizing::new(format!(
            "export STRIATE_ACCESS_KEY={}\nexport STRIATE_SECRET_KEY={}\n",
            credentials.access_key,
            credentials.secret.as_str()
        ));
        let Some((file, path)) = &self.file else {
            let mut terminal = io::stdout().lock();
            return match terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush()) {
                Ok(()) => Ok(SecretOutput::Terminal),
                Err(_) => Self::in_folders(&[std::env::temp_dir()])?.show(credentials),
            };
        };
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)?;
        file.sync_all()?;
        let path = match &self.folder {
            Some(folder) => named_after(path, folder, &credentials.access_key),
            None => path.clone(),
        };
        self.file = None;
        Ok(SecretOutput::File(path))
    }
}

impl Drop for SecretPlace {
    fn drop(&mut self) {
        if let Some((_, path)) = &self.file {
            // A file that stays holds nothing.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Creates a file that has room for a secret.
fn reserve(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let filled = file.write_all_at(&[b'\n'; ROOM], 0).and_then(|()| file.sync_all());
    match filled {
        Ok(()) => Ok(file),
        Err(error) => {
            // It holds nothing.
            let _ = std::fs::remove_file(path);
            Err(error)
        }
    }
}

/// Renames the file at `path` to the first free name for the key, and returns its path. Keeps the old name where the file
/// system cannot rename without replacing.
fn named_after(path: &Path, folder: &Path, access_key: &str) -> PathBuf {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let names = std::iter::once(format!("striate-key-{access_key}.sh"))
        .chain((2..1_000).map(|number| format!("striate-key-{access_key}-{number}.sh")));
    for fresh in names.map(|name| folder.join(name)) {
        match renameat_with(CWD, path, CWD, &fresh, RenameFlags::NOREPLACE) {
            Ok(()) => return fresh,
            Err(rustix::io::Errno::EXIST) => {}
            Err(_) => break,
        }
    }
    path.to_owned()
}

/// Returns the folders in which a secret may be written if no file is named: the current one, and the temporary one.
pub fn usual_folders() -> Vec<PathBuf> {
    std::env::current_dir().into_iter().chain([std::env::temp_dir()]).collect()
}

/// Returns the next three commands to try.
pub fn next_steps(endpoint: &str, shown: Option<&SecretOutput>) -> String {
    let load = match shown {
        Some(SecretOutput::Terminal) => "paste the two export lines above, then:".to_owned(),
        Some(SecretOutput::File(path)) => format!("run `. {}`, then:", path.display()),
        None => "with STRIATE_ACCESS_KEY and STRIATE_SECRET_KEY set:".to_owned(),
    };
    format!(
        "Use it from another terminal; {load}\n  \
         striate bucket create photos && striate cp --recursive ~/Pictures s3://photos/\n  \
         AWS_ACCESS_KEY_ID=$STRIATE_ACCESS_KEY AWS_SECRET_ACCESS_KEY=$STRIATE_SECRET_KEY aws --endpoint-url {endpoint} s3 ls\n  \
         mc alias set striate {endpoint} $STRIATE_ACCESS_KEY $STRIATE_SECRET_KEY"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn credentials() -> Credentials {
        Credentials { access_key: "KEY".to_owned(), secret: Zeroizing::new("hush-hush".to_owned()) }
    }

    #[test]
    fn a_secret_goes_into_a_file_of_its_owner_and_never_over_another_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key.sh");
        let shown = SecretPlace::find(Some(&file), &[]).unwrap().show(&credentials()).unwrap();
        assert_eq!(shown, SecretOutput::File(file.clone()));
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text, "export STRIATE_ACCESS_KEY=KEY\nexport STRIATE_SECRET_KEY=hush-hush\n");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(SecretPlace::find(Some(&file), &[]).is_err(), "before a secret is made");
        assert!(next_steps("http://h:1", Some(&shown)).contains("mc alias set striate http://h:1"));
    }

    #[test]
    fn a_file_that_was_not_named_gets_a_free_name_and_an_unused_one_goes() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [folder.path().join("absent"), folder.path().to_owned()];
        for name in ["striate-key-KEY.sh", "striate-key-KEY-2.sh", "striate-key-KEY-3.sh"] {
            let shown = SecretPlace::in_folders(&folders).unwrap().show(&credentials()).unwrap();
            assert_eq!(shown, SecretOutput::File(folder.path().join(name)));
        }
        drop(SecretPlace::in_folders(&folders).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
        assert!(SecretPlace::in_folders(&folders[..1]).is_err());
    }
}
