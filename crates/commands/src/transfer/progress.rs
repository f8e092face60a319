//! Progress on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Returns a bar that counts bytes. It draws only on a terminal, and not if `quiet`.
pub fn bytes_bar(total: u64, quiet: bool) -> ProgressBar {
    let style = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    bar(total, quiet, style)
}

/// Returns a bar for work of unknown length, which shows a message.
pub fn spinner(quiet: bool) -> ProgressBar {
    let bar = bar(0, quiet, "{spinner} {msg}");
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn bar(total: u64, quiet: bool, template: &str) -> ProgressBar {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let style = ProgressStyle::with_template(template).expect("the templates are constant and valid");
    ProgressBar::with_draw_target(Some(total), target).with_style(style)
}

/// Formats a number of bytes, in powers of 1,024.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1_024.0 && unit + 1 < UNITS.len() {
        value /= 1_024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_for_people() {
        assert_eq!(human_bytes(1_023), "1023 B");
        assert_eq!(human_bytes(1_536), "1.5 KiB");
        assert_eq!(human_bytes(u64::MAX), "16384.0 PiB");
    }
}
