//! Memory for cached bytes, exact to the page.
//!
//! A general allocator keeps what it may need again and cannot be told what to release, so the resident memory of a
//! cache of mixed sizes is unpredictable. Here every payload has whole pages of its own. They come from one range of
//! addresses several times as long as what may be resident, so it does not matter how scattered the free runs are.
//! Freed pages stay resident for the next payload as long as the bound allows; then they return to the system.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::runs::FreeRuns;

/// Length of a page in bytes.
pub(super) const PAGE_LEN: usize = 4096;

/// A range of addresses whose pages are allocated in runs.
#[derive(Debug)]
pub(super) struct Arena {
    base: NonNull<u8>,
    /// Length in bytes.
    len: usize,
    state: Mutex<State>,
}

// SAFETY: the range belongs to the arena alone. It is written only through a run that was just taken and that nothing
// else holds, and read only through runs that are no longer written.
unsafe impl Send for Arena {}
// SAFETY: as above; runs are taken under a lock.
unsafe impl Sync for Arena {}

#[derive(Debug, Default)]
struct State {
    /// Free and resident.
    warm: FreeRuns,
    warm_pages: u32,
    /// Free and not resident.
    cold: FreeRuns,
    used_pages: u32,
}

/// A payload in pages of its own. They return to the arena when the cache and the last reader have dropped it.
#[derive(Clone, Debug)]
pub(super) struct Payload(Arc<Run>);

#[derive(Debug)]
struct Run {
    arena: Arc<Arena>,
    start: u32,
    len: usize,
}

/// Returns the number of pages of a payload of `len` bytes.
pub(super) fn pages_of(len: usize) -> u32 {
    len.div_ceil(PAGE_LEN) as u32
}

impl Arena {
    /// Reserves `len` bytes of addresses, but no memory.
    ///
    /// # Errors
    /// When the system refuses the addresses.
    pub(super) fn new(len: usize) -> io::Result<Self> {
        let pages = u32::try_from(len / PAGE_LEN).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let len = pages as usize * PAGE_LEN;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the system chooses touches no existing memory.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE | MapFlags::NORESERVE)?
        };
        // A huge page would make memory resident that was not asked for. The call may fail
        // on systems without huge pages.
        // SAFETY: the range was mapped just now.
        let _ = unsafe { madvise(base, len, Advice::LinuxNoHugepage) };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut state = State::default();
        state.cold.insert(0, pages);
        Ok(Self { base, len, state: Mutex::new(state) })
    }

    /// Copies `payload` into pages of its own, if at most `most_pages` are then resident;
    /// `None` if that needs pages in use.
    pub(super) fn copy(self: &Arc<Self>, payload: &[u8], most_pages: u32) -> Option<Payload> {
        let pages = pages_of(payload.len());
        let start = self.take(pages, most_pages)?;
        let run = Run { arena: Arc::clone(self), start, len: payload.len() };
        // SAFETY: the run has at least as many bytes, and nothing else holds it.
        unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), self.at(start).as_ptr(), payload.len()) };
        Some(Payload(Arc::new(run)))
    }

    /// Returns the bytes of resident pages: those in use, including by readers of evicted payloads, and those kept for
    /// the next payload.
    pub(super) fn resident_bytes(&self) -> u64 {
        let state = self.state.lock();
        u64::from(state.used_pages + state.warm_pages) * PAGE_LEN as u64
    }

    fn take(&self, pages: u32, most_pages: u32) -> Option<u32> {
        let mut state = self.state.lock();
        if state.used_pages.saturating_add(pages) > most_pages {
            return None;
        }
        if let Some(start) = state.warm.take(pages) {
            state.warm_pages -= pages;
            state.used_pages += pages;
            return Some(start);
        }
        if !self.chill(&mut state, most_pages - pages) {
            return None;
        }
        let start = state.cold.take(pages)?;
        state.used_pages += pages;
        Some(start)
    }

    /// Releases unused pages until at most `most_pages` are resident. Returns false if more are in use.
    pub(super) fn trim(&self, most_pages: u32) -> bool {
        self.chill(&mut self.state.lock(), most_pages)
    }

    fn chill(&self, state: &mut State, most_pages: u32) -> bool {
        while state.used_pages + state.warm_pages > most_pages {
            let excess = state.used_pages + state.warm_pages - most_pages;
            let Some((start, freed)) = state.warm.take_from_longest(excess) else { return false };
            self.give_back(start, freed);
            state.warm_pages -= freed;
            state.cold.insert(start, freed);
        }
        true
    }

    /// Returns pages to the system, so that they are no longer resident.
    fn give_back(&self, start: u32, pages: u32) {
        // SAFETY: the pages are in the range, free, and removed from the free runs by the
        // caller, so nothing reads them.
        let advised = unsafe {
            madvise(self.at(start).as_ptr().cast(), pages as usize * PAGE_LEN, Advice::LinuxDontNeed)
        };
        if let Err(error) = advised {
            tracing::warn!(%error, "memory of the cache could not be given back");
        }
    }

    /// Returns the address of a page.
    fn at(&self, page: u32) -> NonNull<u8> {
        debug_assert!((page as usize) < self.len / PAGE_LEN);
        // SAFETY: the page is in the range.
        unsafe { self.base.add(page as usize * PAGE_LEN) }
    }
}

impl Payload {
    /// Returns the bytes, for a reader.
    pub(super) fn bytes(&self) -> Bytes {
        Bytes::from_owner(self.clone())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len
    }

    pub(super) fn pages(&self) -> u32 {
        pages_of(self.0.len)
    }

    /// Returns whether there is no other reference to it.
    pub(super) fn is_idle(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the range was mapped in `new`, and every run holds a reference to the
        // arena, so no run exists any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        let run = &self.0;
        // SAFETY: the run's pages have at least `len` bytes, written before the run was shared and not afterwards.
        unsafe { std::slice::from_raw_parts(run.arena.at(run.start).as_ptr(), run.len) }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let pages = pages_of(self.len);
        let mut state = self.arena.state.lock();
        state.used_pages -= pages;
        state.warm_pages += pages;
        state.warm.insert(self.start, pages);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// Counts the resident pages of the range, as the system sees them. `smaps` may merge the range with its
    /// neighbours, which belong to other tests.
    fn resident_by_the_system(arena: &Arena) -> usize {
        const IS_RESIDENT: u64 = 0b11 << 62;
        let mut pages = vec![0; arena.len / PAGE_LEN * 8];
        let at = (arena.base.as_ptr() as usize / PAGE_LEN * 8) as u64;
        File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut pages, at).unwrap();
        let is_resident = |page: &&[u8]| u64::from_ne_bytes((*page).try_into().unwrap()) & IS_RESIDENT != 0;
        pages.chunks_exact(8).filter(is_resident).count()
    }

    #[test]
    fn what_is_resident_is_what_is_counted_whatever_is_allocated_and_freed() {
        const MOST: u32 = 512;
        let arena = Arc::new(Arena::new(4 * MOST as usize * PAGE_LEN).unwrap());
        let (mut state, mut held, mut refused) = (1u64, Vec::new(), 0);
        for turn in 0..3_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let len = (state >> 33) as usize % (40 * PAGE_LEN) + 1;
            let payload = vec![turn as u8; len];
            match arena.copy(&payload, MOST) {
                Some(payload) => held.push((turn as u8, payload)),
                None => {
                    refused += 1;
                    let at = (state >> 20) as usize % held.len();
                    held.swap_remove(at);
                }
            }
            assert!(arena.resident_bytes() <= u64::from(MOST) * PAGE_LEN as u64);
            if turn % 500 == 0 {
                let counted = arena.resident_bytes() as usize / PAGE_LEN;
                assert_eq!(resident_by_the_system(&arena), counted, "in turn {turn}");
            }
        }
        assert!(refused > 100);
        assert!(
            held.iter().all(|(byte, payload)| payload.bytes().iter().all(|it| it == byte)),
            "nobody wrote into another's pages"
        );
    }

    #[test]
    fn a_reader_keeps_what_it_reads() {
        let arena = Arc::new(Arena::new(4 * PAGE_LEN).unwrap());
        let payload = arena.copy(&[7; 100], 1).unwrap();
        let part = payload.bytes().slice(10..20);
        assert!(!payload.is_idle());
        drop(payload);
        assert!(arena.copy(&[8; 100], 1).is_none(), "its page is still in use");
        assert_eq!(part[..], [7; 10]);
        drop(part);
        assert_eq!(arena.copy(&[8; 100], 1).unwrap().as_ref(), [8; 100]);
    }
}
