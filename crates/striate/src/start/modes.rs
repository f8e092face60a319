//! Files that releases before 0.5.1 left readable for other users: their modes are tightened once.
//!
//! The state folder is tightened last. Once only its owner may enter it, nobody else reaches what is in it, and every later
//! start ends after one look. Files that are made since are private from the start (the process's umask is 077).

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use striate_commands::admin::find::STATE_FOLDER;

use super::remains::ASIDE_PREFIX;

/// Permissions of the group and of others.
const OF_OTHERS: u32 = 0o077;

/// Makes the files of stores in a directory private to their owner: those in the state folder, and those that `disk
/// replace` moved aside.
///
/// # Errors
/// If something cannot be read or changed. The next start tries again.
pub fn tighten_directory(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_ours = name == STATE_FOLDER || name.to_string_lossy().starts_with(ASIDE_PREFIX);
        if is_ours && entry.file_type()?.is_dir() {
            tighten(&entry.path())?;
        }
    }
    Ok(())
}

/// Makes everything in the state folder `folder`, two levels deep, private to its owner.
///
/// # Errors
/// As for [`tighten_directory`].
fn tighten(folder: &Path) -> io::Result<()> {
    if fs::metadata(folder)?.permissions().mode() & OF_OTHERS == 0 {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            for inner in fs::read_dir(entry.path())? {
                make_private(&inner?)?;
            }
        }
        make_private(&entry)?;
    }
    restrict(folder)
}

/// Restricts a file or folder. What vanishes meanwhile, and links, are skipped.
fn make_private(entry: &fs::DirEntry) -> io::Result<()> {
    if entry.file_type()?.is_symlink() {
        return Ok(());
    }
    match restrict(&entry.path()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn restrict(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    match mode & OF_OTHERS {
        0 => Ok(()),
        _ => fs::set_permissions(path, Permissions::from_mode(mode & 0o7777 & !OF_OTHERS)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_and_what_is_in_it_become_private_and_a_private_folder_is_not_entered() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("state");
        let at = |name: &str| folder.join(name);
        fs::create_dir_all(at("chunks")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        for (name, bits) in [("cluster", 0o644), ("chunks/1.seg", 0o664), ("chunks/2.seg", 0o600)] {
            fs::write(at(name), b"x").unwrap();
            set(&at(name), bits);
        }
        set(&at("chunks"), 0o755);
        set(&folder, 0o755);
        tighten(&folder).unwrap();
        for (name, bits) in
            [("cluster", 0o600), ("chunks/1.seg", 0o600), ("chunks/2.seg", 0o600), ("chunks", 0o700)]
        {
            assert_eq!(mode(&at(name)), bits, "{name}");
        }
        assert_eq!(mode(&folder), 0o700);
        set(&at("cluster"), 0o644);
        tighten(&folder).unwrap();
        assert_eq!(mode(&at("cluster")), 0o644, "nobody else can reach it");
    }

    #[test]
    fn what_was_moved_aside_becomes_private_too_and_what_is_not_of_a_store_stays() {
        let root = tempfile::tempdir().unwrap();
        let mode = |name: &str| fs::metadata(root.path().join(name)).unwrap().permissions().mode() & 0o777;
        let names = [STATE_FOLDER, ".striate.aside-1", "lost+found"];
        for name in names {
            fs::create_dir(root.path().join(name)).unwrap();
            fs::set_permissions(root.path().join(name), Permissions::from_mode(0o755)).unwrap();
        }
        tighten_directory(root.path()).unwrap();
        assert_eq!(names.map(mode), [0o700, 0o700, 0o755]);
    }
}
