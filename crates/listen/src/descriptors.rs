//! Who may have how many of the process's descriptors.
//!
//! Files and connections take descriptors from one number, the soft limit of the process (`ulimit -n`). It is often
//! 1,024, which few programs mean: it protects programs that use `select`. A process raises it to the hard limit, which
//! the system's owner sets ([`raise_limit`]), and then divides what there is ([`DescriptorPlan`]): the files of its
//! disks and its own connections come first, and connections of others get the rest. So a peer that opens connections
//! never takes the descriptor that a write needs.
//!
//! When the limit is too small for what the options ask for, fewer connections are admitted, and status says so
//! ([`shortage`]). When it is too small to work at all, the process refuses to start.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for standard streams, event queues, logs, the admin sockets and files that are open for a moment.
const OF_PROCESS: u64 = 32;
/// Descriptors that every disk takes besides its sealed segments: two locks, the directory and the metadata's directory,
/// the metadata mirror, the active segment three times (plain, direct, without read-ahead), a compaction's new file, and
/// one file that is replaced.
const OF_DISK: u64 = 12;
/// Descriptors of one open segment: plain, direct, without read-ahead.
const OF_SEGMENT: u64 = 3;
/// Fewest open segments of a disk.
const LEAST_SEGMENTS: u64 = 4;
/// Most open segments of a disk.
const MOST_SEGMENTS: u64 = 512;
/// Fewest connections of a port with which a process starts.
const LEAST_CONNECTIONS: u64 = 8;
/// Most connections that have made room for others and still end in order.
const MOST_ENDING: usize = 64;

/// Returns how many of a port's connections, beside those that are admitted, may be ending: they have made room for
/// others, and send a last response or finish a request that had just begun.
pub fn ending(connections: usize) -> usize {
    (connections / 16).clamp(1, MOST_ENDING)
}

/// What the options ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DescriptorNeeds {
    /// Number of disks of the process.
    pub disks: usize,
    /// Connections that this process opens itself: to sites, to a metadata engine, to other stores.
    pub own: usize,
    /// Connections of others on the main port.
    pub main: usize,
    /// Connections of others on the console's port; 0 without one.
    pub console: usize,
}

/// How descriptors are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorPlan {
    /// Number of open segments of each disk.
    pub segments: usize,
    /// Connections on the main port.
    pub main: usize,
    /// Connections on the console's port.
    pub console: usize,
    /// The limit that gives everything that was asked for.
    pub wanted: u64,
}

/// The limit is too small to work at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process may open {limit} files and connections (ulimit -n); with its disks it needs at least {least}, and \
     {wanted} for all connections that its options admit: raise the limit, with LimitNOFILE= in a systemd unit, \
     --ulimit nofile= of a container, or ulimit -Hn in a shell"
)]
pub struct TooFewDescriptors {
    limit: u64,
    least: u64,
    wanted: u64,
}

impl DescriptorPlan {
    /// Divides `limit` descriptors.
    ///
    /// # Errors
    /// If they do not suffice for the disks and a few connections.
    pub fn new(limit: u64, needs: DescriptorNeeds) -> Result<Self, TooFewDescriptors> {
        let DescriptorNeeds { disks, own, main, console } = needs;
        let [disks, own, main, console] = [disks, own, main, console].map(|number| number as u64);
        let ending = ending(needs.main) as u64;
        let fixed = OF_PROCESS + disks * OF_DISK + own.min(limit / 4) + ending.min(limit / 32);
        let ports = if console > 0 { 2 } else { 1 };
        let least = fixed + disks * LEAST_SEGMENTS * OF_SEGMENT + ports * LEAST_CONNECTIONS;
        let wanted =
            OF_PROCESS + own + main + ending + console + disks * (OF_DISK + MOST_SEGMENTS * OF_SEGMENT);
        if limit < least {
            return Err(TooFewDescriptors { limit, least, wanted });
        }
        let left = limit - fixed;
        // Half of it for segments: a closed one is opened again when it is read, but a connection cannot wait.
        let segments = match disks {
            0 => MOST_SEGMENTS,
            disks => (left / 2 / disks / OF_SEGMENT).clamp(LEAST_SEGMENTS, MOST_SEGMENTS),
        };
        let connections = left - (disks * segments * OF_SEGMENT).min(left);
        let console = console.min((connections / 4).max(LEAST_CONNECTIONS));
        let main = main.min(connections - console.min(connections));
        let [segments, main, console] = [segments, main, console].map(|number| number as usize);
        Ok(Self { segments, main, console, wanted })
    }
}

/// Raises the soft limit on descriptors to the hard one, and returns the limit in force.
pub fn raise_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        // The soft limit of before stays in force.
        Err(_) => limit.current,
    };
    current.unwrap_or(u64::MAX)
}

/// The division of this process, which has one limit, and what is short.
static DIVISION: OnceLock<(DescriptorPlan, Option<String>)> = OnceLock::new();

/// Divides the descriptors of this process once its limit is raised. What is less than asked for is logged, and reported
/// by [`shortage`].
///
/// # Errors
/// If they do not suffice for the disks and a few connections.
pub fn divide(needs: DescriptorNeeds) -> Result<DescriptorPlan, TooFewDescriptors> {
    let limit = raise_limit();
    let plan = DescriptorPlan::new(limit, needs)?;
    let shortage = describe_shortage(limit, needs, plan);
    if let Some(text) = &shortage {
        tracing::warn!("{text}");
    }
    // Tests run several processes in one; the first one's division then counts for all.
    let _ = DIVISION.set((plan, shortage));
    Ok(plan)
}

/// Returns the number of segments that each disk of this process may keep open.
pub fn segments_of_disk() -> usize {
    DIVISION.get().map_or(MOST_SEGMENTS as usize, |(plan, _)| plan.segments)
}

fn describe_shortage(limit: u64, needs: DescriptorNeeds, plan: DescriptorPlan) -> Option<String> {
    let (admitted, asked) = (plan.main + plan.console, needs.main + needs.console);
    (admitted < asked).then(|| {
        format!(
            "the limit of {limit} open files and connections (ulimit -n) leaves {admitted} of the {asked} connections \
             that the options admit; a limit of {} admits all",
            plan.wanted
        )
    })
}

/// Returns the warning that the process has fewer descriptors than its options ask for, if so.
pub fn shortage() -> Option<String> {
    DIVISION.get().and_then(|(_, shortage)| shortage.clone())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SERVER: DescriptorNeeds = DescriptorNeeds { disks: 6, own: 16, main: 4_096, console: 256 };

    #[test]
    fn a_usual_hard_limit_gives_everything_and_a_small_one_still_serves() {
        let all = DescriptorPlan::new(1 << 20, SERVER).unwrap();
        assert_eq!((all.segments, all.main, all.console), (512, 4_096, 256));
        assert_eq!(describe_shortage(1 << 20, SERVER, all), None);
        let few = DescriptorPlan::new(256, SERVER).unwrap();
        assert!(few.main >= 8 && few.console >= 8 && few.segments == 4, "{few:?}");
        assert!(describe_shortage(256, SERVER, few).unwrap().contains("256"));
        let refused = DescriptorPlan::new(128, SERVER).unwrap_err();
        assert!(refused.to_string().contains("LimitNOFILE"), "{refused}");
        let gateway = DescriptorNeeds { disks: 0, ..SERVER };
        assert!(DescriptorPlan::new(128, gateway).is_ok());
    }

    proptest! {
        #[test]
        fn what_is_divided_is_there(limit in 0_u64..100_000, disks in 0_usize..64, own in 0_usize..500,
                                    main in 1_usize..10_000, console in 0_usize..500) {
            let needs = DescriptorNeeds { disks, own, main, console };
            if let Ok(plan) = DescriptorPlan::new(limit, needs) {
                let disks = disks as u64;
                let taken = OF_PROCESS + disks * (OF_DISK + OF_SEGMENT * plan.segments as u64)
                    + (own as u64).min(limit / 4) + (plan.main + ending(plan.main) + plan.console) as u64;
                prop_assert!(taken <= limit, "{taken} of {limit}: {plan:?}");
                prop_assert!(plan.main >= main.min(LEAST_CONNECTIONS as usize));
                prop_assert!(plan.console >= console.min(LEAST_CONNECTIONS as usize));
                prop_assert!(plan.main <= main && plan.console <= console);
            }
        }

        #[test]
        fn more_descriptors_give_no_fewer_connections(limit in 300_u64..50_000) {
            let (less, more) = (DescriptorPlan::new(limit, SERVER), DescriptorPlan::new(limit + 1_000, SERVER));
            prop_assert!(more.unwrap().main >= less.unwrap().main);
        }
    }
}
