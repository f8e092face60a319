//! A text that is shown again and again: in place on a terminal, and one after the other in a file or pipe.

use std::io::{self, IsTerminal, Write};

use striate_runtime::output::StandardOutput;

use crate::failure::{Failure, Outcome};
use crate::output::printable;

/// Shows `text`, over the one before if the standard output is a terminal.
///
/// # Errors
/// If the standard output cannot be written.
pub(super) fn show(text: &str) -> Outcome {
    if !io::stdout().is_terminal() {
        println!("{text}");
        return Ok(());
    }
    let size = rustix::termios::tcgetwinsize(io::stdout());
    // A terminal that does not know its size reports 0.
    let size = size.ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
    let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row.into(), size.ws_col.into()));
    let written = StandardOutput.write_all(frame(text, rows, columns).as_bytes());
    let written = written.and_then(|()| StandardOutput.flush());
    written.map_err(|error| Failure::failed(format!("the standard output: {error}")))
}

/// Returns what draws `text` on a terminal of this size. A line that is too long is cut, and so is a text: either would
/// scroll the head out of sight and leave copies behind.
fn frame(text: &str, rows: usize, columns: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let most = rows.saturating_sub(1);
    let hidden = lines.len().saturating_sub(most);
    let shown = if hidden == 0 { lines.len() } else { most.saturating_sub(1) };
    let mut frame = String::from("\x1b[H");
    let mut draw = |line: &str| {
        // Clear each line behind its end.
        frame.extend(printable(line).chars().take(columns));
        frame.push_str("\x1b[K\r\n");
    };
    lines.iter().take(shown).for_each(|line| draw(line));
    if hidden > 0 {
        draw(&format!("… {} more lines: enlarge the terminal", lines.len() - shown));
    }
    // Clear everything below the last line.
    frame.push_str("\x1b[J");
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_never_scrolls_its_terminal() {
        let text = "cluster\n".to_owned() + &"a line that is too long for it\n".repeat(20);
        let drawn = frame(&text, 8, 10);
        let lines: Vec<&str> = drawn.split("\x1b[K\r\n").collect();
        assert_eq!(lines.len(), 8, "seven lines, and what clears the rest");
        assert_eq!(lines[0], "\x1b[Hcluster");
        assert_eq!(lines[1], "a line tha");
        assert!(lines[6].starts_with("… 15 more"));
        assert_eq!(frame("a\nb\n", 24, 80), "\x1b[Ha\x1b[K\r\nb\x1b[K\r\n\x1b[J");
    }
}
