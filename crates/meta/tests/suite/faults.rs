//! Mirrors that fail, hang, vanish or fill up under the running engine.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use striate_core::ClusterId;
use striate_meta::conformance::fresh_id;
use striate_meta::embedded::simulated::{Fault, Machine};
use striate_meta::embedded::{
    EmbeddedStore, Layout, MIRROR_FILE, MetaDirectory, MirrorEvent, Options, Storage, Volume,
};
use striate_meta::{Commit, MetaError, MetaStore, ScanRange, Transaction};
use striate_runtime::Runtime;

use crate::cluster::{Cluster, get, put, virtual_runtime};

/// Writes rows until `stop` is set; returns the number of acknowledged rows.
fn start_writer(
    runtime: &Runtime,
    store: &EmbeddedStore,
    name: u32,
    stop: &Arc<AtomicBool>,
) -> striate_runtime::JoinHandle<u32> {
    let (store, stop) = (store.clone(), stop.clone());
    runtime.spawn(async move {
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            put(&store, &format!("{name}/{count:06}"), &format!("value {count}"))
                .await
                .expect("a put is acknowledged");
            count += 1;
        }
        count
    })
}

async fn check_writers(store: &EmbeddedStore, counts: &[u32]) {
    for (name, &count) in counts.iter().enumerate() {
        let rows = store.scan(ScanRange::prefix(format!("{name}/").as_bytes()), usize::MAX).await.unwrap();
        assert_eq!(
            rows.len() as u32,
            count,
            "every acknowledged row of writer {name} is there, and no other"
        );
        for (number, row) in rows.iter().enumerate() {
            assert_eq!(row.key, format!("{name}/{number:06}"));
            assert_eq!(row.value, format!("value {number}"));
        }
    }
}

/// Waits until a mirror is ejected.
async fn ejected(events: &mut tokio::sync::broadcast::Receiver<MirrorEvent>) -> MirrorEvent {
    loop {
        let event = events.recv().await.expect("events are not missed");
        if matches!(event, MirrorEvent::Ejected { .. }) {
            return event;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_r_directories_may_be_wiped_under_the_running_engine_and_after_mirroring_again_r_more() {
    let (runtime, cluster) = (Runtime::real(), Cluster::new(6, 2));
    let mut store = cluster.create(&runtime).await;
    let mut counts = vec![0; 4];
    for lost in [[0, 1], [2, 3]] {
        let mut events = store.events();
        let stop = Arc::new(AtomicBool::new(false));
        // The writers continue with new names, so that counts stay those of one writer.
        let base = counts.len() as u32 - 4;
        let writers: Vec<_> =
            (base..base + 4).map(|name| start_writer(&runtime, &store, name, &stop)).collect();
        put(&store, "before", "1").await.unwrap();
        for directory in lost {
            cluster.wipe(directory);
        }
        for _ in lost {
            ejected(&mut events).await;
        }
        let added = store.restore_mirrors().await.unwrap();
        assert_eq!(added.len(), 2, "two healthy directories take mirrors while the writers write");
        stop.store(true, Ordering::Relaxed);
        for (writer, name) in writers.into_iter().zip(base..) {
            counts[name as usize] = writer.await.unwrap();
        }
        check_writers(&store, &counts).await;
        store.close().await;
        store = cluster.open(&runtime, &[]).await.expect("four of six directories are enough");
        check_writers(&store, &counts).await;
        for directory in lost {
            cluster.replace(directory);
        }
        store.set_directories(cluster.layout, cluster.present(&[])).await.unwrap();
        counts.extend([0; 4]);
    }
    let status = store.mirrors().await.unwrap();
    assert_eq!(
        status.iter().filter(|mirror| mirror.in_sync && mirror.file_bytes > Some(0)).count(),
        3,
        "{status:?}"
    );
}

#[tokio::test]
async fn a_mirror_whose_files_are_removed_or_replaced_is_ejected_before_the_next_acknowledgement() {
    for replace in [false, true] {
        let (runtime, cluster) = (Runtime::real(), Cluster::new(3, 2));
        let store = cluster.create(&runtime).await;
        let path = cluster.path(0).join(MIRROR_FILE);
        std::fs::remove_file(&path).unwrap();
        if replace {
            std::fs::copy(cluster.path(1).join(MIRROR_FILE), &path).unwrap();
        }
        std::fs::remove_file(cluster.path(1).join("meta.epoch")).unwrap();
        put(&store, "a", "1").await.unwrap();
        let status = store.mirrors().await.unwrap();
        for mirror in &status {
            assert_eq!(mirror.in_sync, mirror.disk_id == Cluster::disk(2), "{status:?}");
            assert_eq!(mirror.last_error.is_none(), mirror.in_sync);
        }
        store.close().await;
        // Only the mirror in force may be used.
        let store = cluster.open(&runtime, &[]).await.unwrap();
        assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("1"));
    }
}

/// `rm -rf` reads the names in a directory, removes them, then the directory: a name that appears in between makes it
/// fail, even one that it has already removed.
#[tokio::test]
async fn nothing_is_written_into_a_directory_that_is_being_wiped() {
    let (runtime, cluster) = (Runtime::real(), Cluster::new(4, 1));
    let store = cluster.create(&runtime).await;
    put(&store, "a", "1").await.unwrap();
    std::fs::remove_file(cluster.path(0).join(MIRROR_FILE)).unwrap();
    put(&store, "a", "2").await.unwrap();
    let status = store.mirrors().await.unwrap();
    assert_eq!(status.iter().filter(|mirror| mirror.in_sync).count(), 1, "it was ejected: {status:?}");
    let names: Vec<_> =
        std::fs::read_dir(cluster.path(0)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["meta.reserve"], "the old record was taken away and no new one was written");
    cluster.wipe(0);
    // The other directories record the events; nothing is written at the wiped path, even after it is created again.
    cluster.replace(0);
    assert_eq!(store.restore_mirrors().await.unwrap(), [Cluster::disk(2)]);
    assert_eq!(std::fs::read_dir(cluster.path(0)).unwrap().count(), 0);
}

#[tokio::test]
async fn a_directory_whose_witness_is_gone_is_no_mirror_and_takes_none() {
    let (runtime, cluster) = (Runtime::real(), Cluster::new(4, 1));
    let witness = |number: usize| cluster.path(number).with_extension("lock");
    let watched = |number: usize| {
        std::fs::write(witness(number), "").unwrap();
        MetaDirectory::open_with_witness(Cluster::disk(number), cluster.path(number), witness(number))
            .unwrap()
    };
    let present: Vec<_> = (0..4).map(watched).collect();
    let store =
        EmbeddedStore::open_or_create(&runtime, cluster.options, cluster.layout, &present).await.unwrap();
    put(&store, "a", "1").await.unwrap();
    // A wipe missed the metadata: the next start finds no disk of the cluster there.
    std::fs::remove_file(witness(0)).unwrap();
    store.check_mirrors().await.unwrap();
    assert_eq!(store.restore_mirrors().await.unwrap(), [Cluster::disk(2)]);
    std::fs::remove_file(witness(1)).unwrap();
    put(&store, "a", "2").await.unwrap();
    assert_eq!(store.restore_mirrors().await.unwrap(), [Cluster::disk(3)]);
    store.add_mirror(present[0].clone()).await.unwrap_err();
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("2"));
}

#[tokio::test]
async fn an_ejected_mirror_is_listed_until_another_has_taken_its_place() {
    let (runtime, cluster) = (Runtime::real(), Cluster::new(3, 1));
    let store = cluster.create(&runtime).await;
    cluster.wipe(0);
    store.check_mirrors().await.unwrap();
    let ejected = |status: &striate_meta::embedded::MirrorStatus| !status.in_sync;
    assert_eq!(store.mirrors().await.unwrap().iter().filter(|status| ejected(status)).count(), 1);
    assert_eq!(store.restore_mirrors().await.unwrap(), [Cluster::disk(2)]);
    let status = store.mirrors().await.unwrap();
    assert!(status.len() == 2 && !status.iter().any(ejected), "{status:?}");
}

#[tokio::test]
async fn a_mirror_that_was_left_behind_is_ignored_when_it_returns() {
    let (runtime, cluster) = (Runtime::real(), Cluster::new(3, 1));
    let store = cluster.create(&runtime).await;
    put(&store, "a", "old").await.unwrap();
    let aside = cluster.path(7);
    std::fs::rename(cluster.path(0), &aside).unwrap();
    put(&store, "a", "new").await.unwrap();
    store.close().await;
    std::fs::rename(&aside, cluster.path(0)).unwrap();
    let refused = cluster.open(&runtime, &[1, 2]).await.unwrap_err();
    assert!(matches!(refused, MetaError::Unavailable(_)), "the stale directory alone is not enough");
    let refused = cluster.open(&runtime, &[1]).await.unwrap_err().to_string();
    assert!(refused.contains(&Cluster::disk(1).to_string()), "the one in force is wanted: {refused}");
    let store = cluster.open(&runtime, &[]).await.unwrap();
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("new"));
    assert_eq!(store.restore_mirrors().await.unwrap(), [Cluster::disk(0)]);
    store.close().await;
    let store = cluster.open(&runtime, &[1]).await.unwrap();
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("new"), "it was levelled");
}

#[tokio::test]
async fn without_any_mirror_every_operation_names_the_cause() {
    let (runtime, cluster) = (Runtime::real(), Cluster::new(2, 1));
    let store = cluster.create(&runtime).await;
    cluster.wipe(0);
    put(&store, "a", "1").await.unwrap();
    cluster.wipe(1);
    assert!(matches!(put(&store, "b", "1").await, Err(MetaError::UnknownOutcome(_))));
    for error in [put(&store, "c", "1").await.err(), get(&store, "a").await.err()] {
        assert!(matches!(error, Some(MetaError::Unavailable(reason)) if reason.contains("vanished")));
    }
    assert!(matches!(store.grant_lease(Duration::from_secs(1)).await, Err(MetaError::Unavailable(_))));
}

/// A wrapper of a volume that can be made to hang.
#[derive(Debug)]
struct Hanging {
    inner: Arc<dyn Volume>,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut closed = self.closed.lock();
        while *closed {
            self.opened.wait(&mut closed);
        }
    }

    fn set(&self, closed: bool) {
        *self.closed.lock() = closed;
        self.opened.notify_all();
    }
}

impl Volume for Hanging {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn read_file(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.inner.read_file(name)
    }
    fn replace_file(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.gate.pass();
        self.inner.replace_file(name, bytes)
    }
    fn remove_file(&self, name: &str) -> io::Result<()> {
        self.inner.remove_file(name)
    }
    fn open_storage(&self, name: &str, create: bool) -> io::Result<Arc<dyn Storage>> {
        let inner = self.inner.open_storage(name, create)?;
        Ok(Arc::new(HangingFile { inner, gate: self.gate.clone() }))
    }
    fn verify(&self) -> io::Result<()> {
        self.inner.verify()
    }
    fn file_len(&self, name: &str) -> io::Result<u64> {
        self.inner.file_len(name)
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.inner.free_bytes()
    }
    fn reserve(&self, name: &str, len: u64) -> io::Result<()> {
        self.inner.reserve(name, len)
    }
}

#[derive(Debug)]
struct HangingFile {
    inner: Arc<dyn Storage>,
    gate: Arc<Gate>,
}

impl Storage for HangingFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.gate.pass();
        self.inner.write(offset, data)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
    fn sync(&self) -> io::Result<()> {
        self.gate.pass();
        self.inner.sync()
    }
    fn verify(&self) -> io::Result<()> {
        self.inner.verify()
    }
    fn allocated_bytes(&self) -> io::Result<u64> {
        self.inner.allocated_bytes()
    }
    fn release(&self) -> io::Result<()> {
        self.inner.release()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_mirror_is_ejected_by_the_deadline_and_nothing_waits_for_it_again() {
    let (runtime, mut cluster) = (Runtime::real(), Cluster::new(3, 1));
    cluster.options.deadline = Duration::from_millis(400);
    let gate = Arc::new(Gate::default());
    let mut present = cluster.present(&[]);
    present[0].volume = Arc::new(Hanging { inner: present[0].volume.clone(), gate: gate.clone() });
    let store =
        EmbeddedStore::open_or_create(&runtime, cluster.options, cluster.layout, &present).await.unwrap();
    put(&store, "a", "1").await.unwrap();
    let mut events = store.events();
    gate.set(true);
    put(&store, "a", "2").await.expect("the other mirror goes on");
    let event = ejected(&mut events).await;
    assert!(matches!(event, MirrorEvent::Ejected { disk_id, reason }
        if disk_id == Cluster::disk(0) && reason.contains("did not answer")));
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("2"));
    assert_eq!(store.restore_mirrors().await.unwrap(), [Cluster::disk(2)]);
    put(&store, "a", "3").await.unwrap();
    // What the hung disk does after waking changes nothing, and it may become a mirror again.
    gate.set(false);
    put(&store, "a", "4").await.unwrap();
    while store.add_mirror(present[0].clone()).await.is_err() {
        tokio::task::yield_now().await;
    }
    put(&store, "a", "5").await.unwrap();
    store.close().await;
    for without in 0..3 {
        let store = cluster.open(&runtime, &[without]).await.unwrap();
        assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("5"));
        store.restore_mirrors().await.unwrap();
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_everything_hangs_the_engine_waits_and_then_goes_on() {
    let (runtime, mut cluster) = (Runtime::real(), Cluster::new(3, 1));
    cluster.options.deadline = Duration::from_millis(400);
    // The first directory can be blocked alone, the others together.
    let gates: Vec<Arc<Gate>> = vec![Arc::default(), Arc::default()];
    let mut present = cluster.present(&[]);
    for (number, directory) in present.iter_mut().enumerate() {
        let gate = gates[number.min(1)].clone();
        directory.volume = Arc::new(Hanging { inner: directory.volume.clone(), gate });
    }
    let store =
        EmbeddedStore::open_or_create(&runtime, cluster.options, cluster.layout, &present).await.unwrap();
    let mut events = store.events();
    // No mirror answers: none is ejected, and pending writes complete afterwards.
    gates.iter().for_each(|gate| gate.set(true));
    let (writer, hung) = (store.clone(), cluster.options.deadline * 4);
    let written = runtime.spawn(async move { put(&writer, "a", "1").await });
    runtime.sleep(hung).await;
    assert!(!written.is_finished() && events.try_recv().is_err());
    assert_eq!(get(&store, "a").await.unwrap(), None, "reads go on");
    gates.iter().for_each(|gate| gate.set(false));
    written.await.unwrap().unwrap();
    assert_eq!(store.mirrors().await.unwrap().iter().filter(|mirror| mirror.in_sync).count(), 2);
    // One mirror answers, but the smaller set can be recorded in only one of the two directories that are needed.
    gates[1].set(true);
    let writer = store.clone();
    let written = runtime.spawn(async move { put(&writer, "a", "2").await });
    runtime.sleep(hung).await;
    assert!(!written.is_finished() && events.try_recv().is_err());
    gates[1].set(false);
    written.await.unwrap().unwrap();
    assert!(
        matches!(ejected(&mut events).await, MirrorEvent::Ejected { disk_id, .. } if disk_id == Cluster::disk(1))
    );
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("2"));
    store.close().await;
}

fn simulated(disks: usize, tolerance: usize) -> (Machine, Layout, Options) {
    let layout = Layout { cluster: ClusterId(7), total_directories: disks, tolerance };
    let options = Options {
        cache_bytes: 8 << 20,
        min_free_bytes: 256 << 10,
        reserve_bytes: 256 << 10,
        ..Options::default()
    };
    (Machine::new(1, disks), layout, options)
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_fails_is_ejected_whatever_fails_first() {
    let runtime = virtual_runtime();
    for fault in [Fault::Writes, Fault::Syncs] {
        for disk in [0, 1] {
            let (machine, layout, options) = simulated(3, 1);
            let store = EmbeddedStore::open_or_create(&runtime, options, layout, &machine.directories())
                .await
                .unwrap();
            put(&store, "a", "1").await.unwrap();
            machine.set_fault(disk, Some(fault));
            put(&store, "a", "2").await.unwrap();
            assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("2"), "{fault:?} on {disk}");
            assert_eq!(store.restore_mirrors().await.unwrap(), [Machine::disk_id(2)]);
            store.close().await;
            machine.wipe(1 - disk);
            machine.set_fault(disk, None);
            let store = EmbeddedStore::open(&runtime, options, layout, &machine.directories()).await.unwrap();
            assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("2"), "the new mirror has it");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn flipped_bits_are_never_served_and_cost_the_mirror() {
    let (runtime, (machine, layout, options)) = (virtual_runtime(), simulated(3, 1));
    let store =
        EmbeddedStore::open_or_create(&runtime, options, layout, &machine.directories()).await.unwrap();
    put(&store, "a", "precious value").await.unwrap();
    put(&store, "b", "other value").await.unwrap();
    store.close().await;
    assert!(machine.corrupt(0, b"precious value", b"precious valve") > 0);
    let store = EmbeddedStore::open(&runtime, options, layout, &machine.directories()).await.unwrap();
    assert_eq!(
        get(&store, "a").await.unwrap().as_deref(),
        Some("precious value"),
        "the other mirror answers"
    );
    assert_eq!(get(&store, "b").await.unwrap().as_deref(), Some("other value"));
    let status = store.mirrors().await.unwrap();
    let ejected = status.iter().find(|mirror| !mirror.in_sync).expect("the damaged mirror was ejected");
    assert_eq!(ejected.disk_id, Machine::disk_id(0));
    assert_eq!(store.restore_mirrors().await.unwrap().len(), 1);
    store.close().await;

    // Damage in the only mirror is an error that names the place; other rows are still served.
    let (machine, layout, options) = simulated(1, 0);
    let store =
        EmbeddedStore::open_or_create(&runtime, options, layout, &machine.directories()).await.unwrap();
    put(&store, "a", "precious value").await.unwrap();
    put(&store, "b", "other value").await.unwrap();
    store.close().await;
    machine.corrupt(0, b"precious value", b"precious valve");
    let store = EmbeddedStore::open(&runtime, options, layout, &machine.directories()).await.unwrap();
    assert!(matches!(get(&store, "a").await, Err(MetaError::Corrupt(_))));
    assert_eq!(get(&store, "b").await.unwrap().as_deref(), Some("other value"));
}

/// Fills the store until it refuses; returns the number of filling rows.
async fn fill(store: &EmbeddedStore) -> u32 {
    for number in 0.. {
        let mut tx = Transaction::new(fresh_id());
        tx.put(format!("fill/{number:06}"), vec![7; 20_000]);
        match store.commit(tx).await {
            Ok(Commit::Done(_)) => {}
            Err(MetaError::NoSpace(_)) => return number,
            other => panic!("{other:?}"),
        }
    }
    unreachable!("a disk fills up")
}

async fn rows(store: &EmbeddedStore) -> u32 {
    store.scan(ScanRange::prefix(b"fill/"), usize::MAX).await.unwrap().len() as u32
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_refuses_cleanly_accepts_deletes_and_recovers() {
    let (runtime, (machine, layout, options)) = (virtual_runtime(), simulated(2, 1));
    let store =
        EmbeddedStore::open_or_create(&runtime, options, layout, &machine.directories()).await.unwrap();
    for disk in 0..2 {
        machine.set_capacity(disk, Some(machine.used_bytes(disk) + (8 << 20)));
    }
    let written = fill(&store).await;
    assert!(written > 50);
    assert_eq!(rows(&store).await, written, "what was refused left nothing");
    assert!(store.mirrors().await.unwrap().iter().all(|mirror| mirror.in_sync), "nobody was ejected");
    let mut both = Transaction::new(fresh_id());
    both.delete("fill/000000").put("fill/more", vec![7; 100_000]);
    assert!(matches!(store.commit(both).await, Err(MetaError::NoSpace(_))));
    for number in 0..written {
        let mut tx = Transaction::new(fresh_id());
        tx.delete(format!("fill/{number:06}")).put(format!("garbage/{number:06}"), vec![7; 100]);
        assert!(matches!(store.commit(tx).await, Ok(Commit::Done(_))), "deletes work");
    }
    assert_eq!(rows(&store).await, 0);
    for disk in 0..2 {
        machine.set_capacity(disk, None);
    }
    put(&store, "a", "again").await.expect("with space it accepts all");
    store.close().await;
    let store = EmbeddedStore::open(&runtime, options, layout, &machine.directories()).await.unwrap();
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("again"));
}

/// A starting process registers with such a transaction.
#[tokio::test(start_paused = true)]
async fn a_full_disk_takes_a_row_in_the_place_of_another_also_after_a_restart() {
    let (runtime, (machine, layout, options)) = (virtual_runtime(), simulated(2, 1));
    let store =
        EmbeddedStore::open_or_create(&runtime, options, layout, &machine.directories()).await.unwrap();
    put(&store, "a", "1").await.unwrap();
    for disk in 0..2 {
        machine.set_capacity(disk, Some(machine.used_bytes(disk) + (8 << 20)));
    }
    fill(&store).await;
    put(&store, "a", "2").await.expect("it takes no space");
    // That freed the reserve.
    fill(&store).await;
    assert!(matches!(put(&store, "b", "1").await, Err(MetaError::NoSpace(_))), "a row more");
    assert!(matches!(put(&store, "a", &"2".repeat(300)).await, Err(MetaError::NoSpace(_))), "a longer row");
    store.close().await;
    let store = EmbeddedStore::open(&runtime, options, layout, &machine.directories()).await.unwrap();
    put(&store, "a", "3").await.expect("it takes no space");
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("3"));
}

/// Other programs have filled the disks completely, or all but a few pages: only the reserve of an earlier process is
/// left.
#[tokio::test(start_paused = true)]
async fn what_was_set_aside_is_found_again_after_a_restart() {
    for free in [0, 8 << 10, 32 << 10, 300 << 10] {
        let (runtime, (machine, layout, options)) = (virtual_runtime(), simulated(2, 1));
        let directories = machine.directories();
        let store = EmbeddedStore::open_or_create(&runtime, options, layout, &directories).await.unwrap();
        for number in 0..300 {
            put(&store, &format!("row{number}"), &"x".repeat(1_000)).await.unwrap();
        }
        store.close().await;
        for disk in 0..2 {
            machine.set_capacity(disk, Some(machine.used_bytes(disk) + free));
        }
        let store = EmbeddedStore::open(&runtime, options, layout, &machine.directories()).await.unwrap();
        let row = |number: usize| format!("{number:01000}");
        for number in 0..500 {
            let written = put(&store, "row7", &row(number)).await;
            written.unwrap_or_else(|error| panic!("{free}, {number}: {error}"));
        }
        assert_eq!(get(&store, "row7").await.unwrap().as_deref(), Some(row(499).as_str()));
    }
}

/// Free space is checked before a group, but other programs may take it meanwhile.
#[tokio::test(start_paused = true)]
async fn disks_that_fill_up_in_the_middle_of_a_group_take_it_back() {
    let (runtime, (machine, layout, mut options)) = (virtual_runtime(), simulated(2, 1));
    options.min_free_bytes = 0;
    let store =
        EmbeddedStore::open_or_create(&runtime, options, layout, &machine.directories()).await.unwrap();
    for disk in 0..2 {
        machine.set_capacity(disk, Some(machine.used_bytes(disk) + (3 << 20)));
    }
    let written = fill(&store).await;
    assert_eq!(rows(&store).await, written, "what was refused left nothing");
    assert!(store.mirrors().await.unwrap().iter().all(|mirror| mirror.in_sync), "nobody was ejected");
    for disk in 0..2 {
        machine.set_capacity(disk, None);
    }
    put(&store, "a", "again").await.expect("with space it goes on");
    assert_eq!(rows(&store).await, written);
}

#[tokio::test(start_paused = true)]
async fn one_full_disk_is_left_for_another_when_there_is_one() {
    let (runtime, (machine, layout, options)) = (virtual_runtime(), simulated(3, 1));
    let store =
        EmbeddedStore::open_or_create(&runtime, options, layout, &machine.directories()).await.unwrap();
    put(&store, "a", "1").await.unwrap();
    machine.set_capacity(0, Some(machine.used_bytes(0)));
    put(&store, "a", "2").await.unwrap();
    assert_eq!(store.restore_mirrors().await.unwrap(), [Machine::disk_id(2)]);
    put(&store, "a", "3").await.unwrap();
    let in_sync: Vec<_> = store.mirrors().await.unwrap();
    let in_sync: Vec<_> =
        in_sync.iter().filter(|mirror| mirror.in_sync).map(|mirror| mirror.disk_id).collect();
    assert_eq!(in_sync, [Machine::disk_id(1), Machine::disk_id(2)]);
}

#[tokio::test]
async fn a_directory_of_nobody_takes_no_mirror() {
    let (runtime, cluster) = (Runtime::real(), Cluster::new(2, 0));
    let store = cluster.create(&runtime).await;
    let stranger = MetaDirectory { disk_id: Cluster::disk(9), ..cluster.directory(1) };
    assert!(matches!(store.add_mirror(stranger).await, Err(MetaError::Unavailable(_))));
    assert!(matches!(store.add_mirror(cluster.directory(0)).await, Err(MetaError::Unavailable(_))));
    store.add_mirror(cluster.directory(1)).await.expect("one more than needed is allowed");
    put(&store, "a", "1").await.unwrap();
}

#[tokio::test]
async fn a_mirror_that_vanishes_while_nobody_writes_is_found_by_a_check() {
    let (runtime, cluster) = (Runtime::real(), Cluster::new(3, 1));
    let store = cluster.create(&runtime).await;
    put(&store, "a", "1").await.unwrap();
    store.check_mirrors().await.unwrap();
    assert!(store.mirrors().await.unwrap().iter().all(|mirror| mirror.in_sync));
    cluster.wipe(0);
    store.check_mirrors().await.unwrap();
    assert_eq!(store.restore_mirrors().await.unwrap(), [Cluster::disk(2)]);
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("1"));
    put(&store, "a", "2").await.unwrap();
    assert_eq!(store.scrub().await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_scrub_finds_damage_in_mirrors_that_nobody_reads() {
    let (runtime, (machine, layout, options)) = (virtual_runtime(), simulated(3, 1));
    let store =
        EmbeddedStore::open_or_create(&runtime, options, layout, &machine.directories()).await.unwrap();
    put(&store, "a", "precious value").await.unwrap();
    assert_eq!(store.scrub().await.unwrap(), 1);
    store.close().await;
    assert!(machine.corrupt(1, b"precious value", b"precious valve") > 0);
    let store = EmbeddedStore::open(&runtime, options, layout, &machine.directories()).await.unwrap();
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("precious value"));
    assert_eq!(store.scrub().await.unwrap(), 1);
    let status = store.mirrors().await.unwrap();
    assert!(
        status.iter().any(|mirror| !mirror.in_sync && mirror.disk_id == Machine::disk_id(1)),
        "{status:?}"
    );
    assert_eq!(store.restore_mirrors().await.unwrap().len(), 1);
    assert_eq!(store.scrub().await.unwrap(), 1);
}
