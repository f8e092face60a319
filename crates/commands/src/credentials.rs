//! The first access key: shown once, on a terminal or in a file that only its owner can read.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
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

/// Shows a key and its secret: on the terminal if the standard output is one and no file is named, otherwise in a new
/// file with mode 0600.
///
/// # Errors
/// If the file exists or cannot be written.
pub fn show(credentials: &Credentials, file: Option<&Path>, folder: &Path) -> io::Result<SecretOutput> {
    let text = Zeroizing::new(format!(
        "export STRIATE_ACCESS_KEY={}\nexport STRIATE_SECRET_KEY={}\n",
        credentials.access_key,
        credentials.secret.as_str()
    ));
    if file.is_none() && io::stdout().is_terminal() {
        io::stdout().lock().write_all(text.as_bytes())?;
        return Ok(SecretOutput::Terminal);
    }
    let path = match file {
        Some(path) => path.to_owned(),
        None => folder.join(format!("striate-key-{}.sh", credentials.access_key)),
    };
    let mut output = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    output.write_all(text.as_bytes())?;
    output.sync_all()?;
    Ok(SecretOutput::File(path))
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

    #[test]
    fn a_secret_goes_into_a_file_of_its_owner_and_never_over_another_file() {
        let folder = tempfile::tempdir().unwrap();
        let credentials =
            Credentials { access_key: "KEY".to_owned(), secret: Zeroizing::new("hush-hush".to_owned()) };
        let file = folder.path().join("key.sh");
        let shown = show(&credentials, Some(&file), folder.path()).unwrap();
        assert_eq!(shown, SecretOutput::File(file.clone()));
        assert!(std::fs::read_to_string(&file).unwrap().contains("STRIATE_SECRET_KEY=hush-hush"));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(show(&credentials, Some(&file), folder.path()).is_err());
        assert!(next_steps("http://h:1", Some(&shown)).contains("mc alias set striate http://h:1"));
    }
}
