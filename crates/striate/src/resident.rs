//! What this process takes of the machine's memory.

/// Resident bytes of this process; `None` where the system does not say.
pub(crate) fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_written_to_is_resident() {
        const LEN: usize = 64 << 20;
        let before = resident_bytes().unwrap();
        let written = vec![1_u8; LEN];
        let after = resident_bytes().unwrap();
        assert!(after >= before + LEN as u64 * 9 / 10, "{before} and {after} for {} bytes", written.len());
    }
}
