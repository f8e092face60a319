//! `striate admin keys …`.

use std::path::Path;

use striate_runtime::Runtime;
use striate_s3::Credentials;
use zeroize::Zeroizing;

use super::report;
use crate::admin::client::AdminClient;
use crate::admin::messages::{KeySummary, MakeKey, NewKey, RotateKey};
use crate::args::KeysCommand;
use crate::credentials::{SecretOutput, SecretPlace, usual_folders};
use crate::failure::{Failure, Outcome};

/// Runs one of the commands.
///
/// # Errors
/// If no server answers, it refuses, or the secret cannot be shown.
pub async fn run(runtime: Runtime, command: KeysCommand) -> Outcome {
    match command {
        KeysCommand::List { json, admin } => {
            let keys: Vec<KeySummary> = AdminClient::find(runtime, &admin)?.get("/v1/keys").await?;
            super::show(&keys, json, |keys| report::keys(keys))
        }
        KeysCommand::Create { description, secret_file, admin } => {
            let server = AdminClient::find(runtime, &admin)?;
            let place = place_for_secret(secret_file.as_deref())?;
            show_once(server.post("/v1/keys", &MakeKey { description }).await?, place)
        }
        KeysCommand::Rotate { access_key, grace_minutes, secret_file, admin } => {
            let server = AdminClient::find(runtime, &admin)?;
            let place = place_for_secret(secret_file.as_deref())?;
            let wish = RotateKey { grace_s: u64::from(grace_minutes) * 60 };
            show_once(server.post(&format!("/v1/keys/{access_key}/rotate"), &wish).await?, place)
        }
        KeysCommand::Revoke { access_key, admin } => {
            let server = AdminClient::find(runtime, &admin)?;
            let path = format!("/v1/keys/{access_key}/revoke");
            let _: serde_json::Value = server.post(&path, &serde_json::json!({})).await?;
            println!("{access_key} is revoked");
            Ok(())
        }
    }
}

/// Finds the place for a secret before it is made: the old one may die with it.
fn place_for_secret(file: Option<&Path>) -> Outcome<SecretPlace> {
    SecretPlace::find(file, &usual_folders()).map_err(|error| match file {
        Some(path) => Failure::refused(format!("{}: {error}; name a new file", path.display())),
        None => Failure::refused(format!(
            "the secret could not be shown, and nothing was changed: {error}; name a file with --secret-file"
        )),
    })
}

fn show_once(key: NewKey, place: SecretPlace) -> Outcome {
    let credentials = Credentials { access_key: key.access_key, secret: Zeroizing::new(key.secret) };
    match place.show(&credentials) {
        Ok(SecretOutput::Terminal) => println!("This secret is shown once."),
        Ok(SecretOutput::File(path)) => {
            println!("{} and its secret are in {}", credentials.access_key, path.display())
        }
        Err(error) => {
            return Err(Failure::failed(format!(
                "{} was made, but its secret could not be shown: {error}; rotate it",
                credentials.access_key
            )));
        }
    }
    Ok(())
}
