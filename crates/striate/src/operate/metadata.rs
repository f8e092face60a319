//! `striate admin meta export` and `import`.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::admin::client::AdminClient;
use crate::failure::{Failure, Outcome};

/// Writes all metadata into a new file (mode 0600), or onto the standard output.
///
/// # Errors
/// When no server answers, the file exists or cannot be written, or the export is cut short.
pub async fn export(server: AdminClient, file: &Path) -> Outcome {
    let fail = |error: std::io::Error| Failure::failed(format!("{}: {error}", file.display()));
    let is_standard = file == Path::new("-");
    let mut output: Box<dyn Write> = match is_standard {
        true => Box::new(std::io::stdout().lock()),
        false => {
            let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
            Box::new(BufWriter::new(created.map_err(fail)?))
        }
    };
    let (mut rows, mut last) = (0_u64, String::new());
    server
        .get_lines("/v1/meta", |line| {
            rows += 1;
            line.clone_into(&mut last);
            writeln!(output, "{line}").map_err(fail)
        })
        .await?;
    output.flush().map_err(fail)?;
    if !last.contains("\"rows\"") {
        return Err(Failure::failed("the export is cut short; the server's log says why"));
    }
    if !is_standard {
        println!("{} rows in {}", rows - 2, file.display());
    }
    Ok(())
}

/// Reads all metadata from a file or the standard input.
///
/// # Errors
/// When no server answers, the file cannot be read, or the server refuses it.
pub async fn import(server: AdminClient, file: &Path) -> Outcome {
    let fail = |error: std::io::Error| Failure::failed(format!("{}: {error}", file.display()));
    let mut text = Vec::new();
    match file == Path::new("-") {
        true => std::io::stdin().lock().read_to_end(&mut text).map_err(fail)?,
        false => File::open(file).and_then(|mut file| file.read_to_end(&mut text)).map_err(fail)?,
    };
    let answer: serde_json::Value = server.post_bytes("/v1/meta", text.into()).await?;
    println!("{} rows imported. The server stops now; start it again", super::number(&answer, "rows"));
    Ok(())
}
