//! `striate admin meta export` and `import`.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use striate_runtime::output::StandardOutput;

use crate::admin::client::AdminClient;
use crate::failure::{Failure, Outcome};

/// Writes all metadata into a new file (mode 0600), or onto the standard output. The file gets its name when it is
/// complete and durable: an interrupted export leaves `.NAME.partial`, which the next export overwrites.
///
/// # Errors
/// If no server answers, the file exists or cannot be written, or the export is truncated.
pub async fn export(server: AdminClient, file: &Path) -> Outcome {
    if file == Path::new("-") {
        return copy_rows(&server, &mut StandardOutput, file).await.map(drop);
    }
    let fail = |error: std::io::Error| Failure::failed(format!("{}: {error}", file.display()));
    if file.exists() {
        return Err(fail(ErrorKind::AlreadyExists.into()));
    }
    let name = file.file_name().ok_or_else(|| fail(ErrorKind::InvalidFilename.into()))?;
    let partial = file.with_file_name(format!(".{}.partial", name.to_string_lossy()));
    let exported = export_into(&server, &partial).await;
    // Unlike a rename, a link does not replace a file that has appeared meanwhile.
    let named = exported.and_then(|rows| std::fs::hard_link(&partial, file).map(|()| rows).map_err(fail));
    let removed = std::fs::remove_file(&partial);
    let rows = named?;
    removed.map_err(fail)?;
    println!("{rows} rows in {}", file.display());
    Ok(())
}

async fn export_into(server: &AdminClient, partial: &Path) -> Outcome<u64> {
    let fail = |error: std::io::Error| Failure::failed(format!("{}: {error}", partial.display()));
    let mut options = OpenOptions::new();
    let created = options.write(true).create(true).truncate(true).mode(0o600).open(partial);
    let mut output = BufWriter::new(created.map_err(fail)?);
    let rows = copy_rows(server, &mut output, partial).await?;
    output.into_inner().map_err(|error| fail(error.into_error()))?.sync_all().map_err(fail)?;
    Ok(rows)
}

/// Copies the rows; returns their number, without the first and the last line of the export.
async fn copy_rows(server: &AdminClient, output: &mut impl Write, file: &Path) -> Outcome<u64> {
    let fail = |error: std::io::Error| Failure::failed(format!("{}: {error}", file.display()));
    let (mut lines, mut last) = (0_u64, String::new());
    server
        .get_lines("/v1/meta", |line| {
            lines += 1;
            line.clone_into(&mut last);
            writeln!(output, "{line}").map_err(fail)
        })
        .await?;
    output.flush().map_err(fail)?;
    if !last.contains("\"rows\"") {
        return Err(Failure::failed("the export is cut short; the server's log says why"));
    }
    Ok(lines.saturating_sub(2))
}

/// Reads all metadata from a file or the standard input.
///
/// # Errors
/// If no server answers, the file cannot be read, or the server refuses it.
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
