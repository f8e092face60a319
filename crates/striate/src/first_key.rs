//! The first access key of a store. Its secret is shown once, so it is shown before the key is stored: a start that cannot
//! show it has made none, and the next one tries again.

use striate_commands::credentials::{SecretOutput, SecretPlace, usual_folders};
use striate_commands::failure::{Failure, Outcome};
use striate_s3::KeyStore;

/// Finds the place where the first key will be shown.
///
/// # Errors
/// If there is none.
pub fn find_place() -> Outcome<SecretPlace> {
    SecretPlace::find(None, &usual_folders()).map_err(|error| {
        Failure::refused(format!(
            "the first access key could not be shown, and nothing was made: {error}; start in a directory that this user \
             may write to, or set STRIATE_ACCESS_KEY and STRIATE_SECRET_KEY"
        ))
    })
}

/// Makes an access key if there is none, and shows it at `place`, or else at a place that is found now. Returns where.
///
/// # Errors
/// If it can be neither shown nor stored.
pub async fn provide(
    keys: &KeyStore,
    place: Option<SecretPlace>,
    description: &str,
) -> Outcome<Option<SecretOutput>> {
    if !keys.list().await.map_err(Failure::failed)?.is_empty() {
        return Ok(None);
    }
    let place = place.map_or_else(find_place, Ok)?;
    let key = keys.draft();
    let shown = place.show(&key).map_err(|error| {
        Failure::failed(format!("the first access key could not be shown, so it was not made: {error}"))
    })?;
    keys.import(&key, description).await.map_err(|error| {
        Failure::failed(format!("the first access key that was just shown could not be stored: {error}"))
    })?;
    Ok(Some(shown))
}

/// Says where the first key was shown.
pub fn describe(shown: &SecretOutput) -> String {
    match shown {
        SecretOutput::Terminal => "These are the first access key and its secret, shown once.".to_owned(),
        SecretOutput::File(path) => {
            format!("The first access key and its secret are in {} (mode 0600).", path.display())
        }
    }
}
