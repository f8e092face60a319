//! Formats what may still be lost, and the default profile.

use super::report::{cells, counted, table};
use crate::admin::messages::{LossState, ProfileLosses, ProfileState, SiteState};

/// Returns what a site is to the operator: a server's sites are disks, those of a cluster are processes.
pub fn thing(sites: &[SiteState]) -> &'static str {
    if sites.iter().all(|site| site.address.starts_with('/')) { "disk" } else { "site" }
}

/// Formats what may still be lost, one line for each profile if several are in use.
pub(super) fn lines(losses: &LossState, sites: &[SiteState]) -> String {
    let thing = thing(sites);
    let mut text = match (losses.sites_left, losses.racks_left) {
        (None, _) => format!("losses more {thing}s are lost than some objects may survive"),
        (Some(0), _) => format!("losses no further {thing} may be lost"),
        (Some(left), Some(racks)) if losses.racks => format!(
            "losses any {} may still be lost{}",
            further(left, thing),
            match racks {
                0 => ", but no rack".to_owned(),
                racks => format!(", or {}", further(racks, "rack")),
            }
        ),
        (Some(left), _) => format!("losses any {} may still be lost", further(left, thing)),
    };
    let is_away = sites.iter().any(|site| !matches!(&*site.state, "ok" | "draining"));
    if is_away && !losses.has_losses {
        text.push_str("; all is whole again without what was lost");
    }
    text.push('\n');
    if losses.profiles.len() > 1 {
        let of_profile = |losses: &ProfileLosses| {
            let left = match losses.sites_left {
                None => "too many are lost".to_owned(),
                Some(left) => further(left, thing),
            };
            format!("  {} ({}): {left}\n", losses.profile, counted(losses.buckets, "bucket"))
        };
        text.extend(losses.profiles.iter().map(of_profile));
    }
    text
}

fn further(number: usize, thing: &str) -> String {
    format!("{number} more {thing}{}", if number == 1 { "" } else { "s" })
}

/// Formats the output of `striate admin profile`.
pub fn profile(state: &ProfileState) -> String {
    let number =
        |survived: Option<usize>| survived.map_or("no place".to_owned(), |number| number.to_string());
    let row = |losses: &ProfileLosses| {
        vec![
            format!("{}{}", losses.profile, if losses.is_default { " (default)" } else { "" }),
            number(losses.sites_of_whole),
            number(losses.racks_of_whole),
            format!("{:.2}", losses.stored_per_byte),
        ]
    };
    let mut rows = vec![cells(["PROFILE", "SITES THAT MAY BE LOST", "RACKS", "STORED PER BYTE"])];
    rows.extend(state.choices.iter().map(row));
    table(&rows)
}
