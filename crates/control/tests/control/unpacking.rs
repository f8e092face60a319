//! Unpacking: packed objects become split ones again; a change of a row wins, and a process that dies at any moment
//! loses nothing.

use std::ops::ControlFlow;
use std::time::Duration;

use striate_client::WriteCondition;
use striate_control::{UnpackReport, collect_abandoned, repack_marked, unpack_bucket, verify};
use striate_core::Packing as Setting;
use striate_meta::records::{self, Object, object::Body};
use striate_meta::{Commit, keys};
use striate_stripe::StripeError;

use crate::cluster::{BUCKET, go_on};
use crate::packing::{OBJECTS, Packing, len, name, options};

impl Packing {
    /// Packs objects, and then turns off the packing of their bucket.
    async fn packed(profile: &str) -> Self {
        let packing = Self::start(profile).await;
        let row = packing.cluster.meta.get(&keys::cluster()).await.unwrap().unwrap();
        let record = records::Cluster { profile: profile.to_owned(), ..row.record().unwrap() };
        let mut tx = packing.cluster.client.stripes().transaction();
        tx.put(row.key, records::encode(&record));
        assert!(matches!(packing.cluster.meta.commit(tx).await, Ok(Commit::Done(_))));
        packing.pack().await;
        packing.collect().await;
        packing.cluster.client.set_packing(BUCKET, Some(Setting::Off)).await.unwrap();
        packing
    }

    async fn unpack(&self) -> Result<UnpackReport, StripeError> {
        unpack_bucket(self.cluster.client.stripes(), BUCKET, 8, go_on).await
    }

    async fn object(&self, key: usize) -> Object {
        let row = self.cluster.meta.get(&keys::object(BUCKET, &name(key))).await.unwrap();
        row.unwrap().record().unwrap()
    }

    async fn packed_count(&self) -> usize {
        let mut count = 0;
        for key in 0..OBJECTS {
            count += usize::from(self.extent(key).await.is_some());
        }
        count
    }

    /// Asserts that everything is split, every byte can be read, and nothing else is left.
    async fn assert_split(&self, what: &str) {
        let stripes = self.cluster.client.stripes();
        assert_eq!(self.packed_count().await, 0, "{what}");
        repack_marked(stripes, &stripes.packer(), &options()).await.unwrap();
        self.collect().await;
        self.assert_reads(0..OBJECTS).await;
        assert_eq!(self.rows(keys::STRIPES).await, OBJECTS, "{what}: the groups were released");
        assert_eq!(self.rows(keys::MARKS).await, 0, "{what}");
        let verified = verify(stripes, go_on).await.unwrap();
        let left = (verified.orphans, verified.unexplained);
        assert!(verified.is_clean() && left == (0, 0), "{what}: {verified:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn packed_objects_are_split_again_and_their_groups_released() {
    for profile in ["rs(4,2)", "lrc(4,2,2)"] {
        let packing = Packing::packed(profile).await;
        let client = &packing.cluster.client;
        client.set_object_tags(BUCKET, &name(5), [("a".to_owned(), "b".to_owned())].into()).await.unwrap();
        let (before, packed) = (packing.object(7).await, packing.packed_count().await);
        let report = packing.unpack().await.unwrap();
        assert!(report.is_whole(), "{report:?}");
        assert_eq!(report.progress.objects, packed as u64);
        let after = packing.object(7).await;
        let Some(Body::Blocks(blocks)) = &after.body else { panic!("{after:?}") };
        assert_eq!(blocks.blocks.len(), 1);
        assert_eq!(
            Object { body: None, profile: profile.to_owned(), ..before },
            Object { body: None, ..after }
        );
        assert_eq!(client.object_tags(BUCKET, &name(5)).await.unwrap().len(), 1);
        packing.assert_split(profile).await;
        let row = packing.cluster.meta.get(&keys::packed_bucket(BUCKET)).await.unwrap().unwrap();
        let figures = row.record::<records::PackedBucket>().unwrap().figures.unwrap();
        assert_eq!((figures.live_objects, figures.waiting_objects), (0, OBJECTS as u64));
    }
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_may_be_packed_again_is_not_unpacked() {
    let packing = Packing::packed("rs(4,2)").await;
    for setting in [None, Some(Setting::Auto), Some(Setting::Partitions(1 << 20))] {
        packing.cluster.client.set_packing(BUCKET, setting).await.unwrap();
        let refused = packing.unpack().await.unwrap_err().to_string();
        assert!(refused.contains("striate bucket set bucket --pack off"), "{refused}");
    }
    assert!(packing.packed_count().await > 30);
    let absent = unpack_bucket(packing.cluster.client.stripes(), "absent", 8, go_on).await;
    assert!(absent.unwrap_err().to_string().contains("no bucket"));
}

#[tokio::test(start_paused = true)]
async fn unpacking_that_is_stopped_goes_on_where_it_was() {
    let packing = Packing::packed("rs(4,2)").await;
    let packed = packing.packed_count().await;
    let stripes = packing.cluster.client.stripes();
    let stopped = unpack_bucket(stripes, BUCKET, 8, |progress| match progress.objects {
        0..10 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    });
    let report = stopped.await.unwrap();
    assert!(report.stopped && !report.is_whole());
    packing.assert_reads(0..OBJECTS).await;
    let left = packing.packed_count().await;
    assert_eq!(report.progress.objects, (packed - left) as u64);
    assert!(left > 0 && report.progress.objects >= 16, "those under way were finished: {left} of {packed}");
    let report = packing.unpack().await.unwrap();
    assert_eq!(report.progress.objects, left as u64);
    packing.assert_split("after the second run").await;
}

/// Sites take a while for each chunk: rows change after their objects were read and before they are switched.
#[tokio::test(start_paused = true)]
async fn a_change_of_an_object_wins_over_its_unpacking() {
    let packing = Packing::packed("rs(4,2)").await;
    let client = &packing.cluster.client;
    let set_lag = |ms| {
        packing.cluster.sites.iter().for_each(|site| *site.lag.lock() = Duration::from_millis(ms));
    };
    set_lag(50);
    let change = async {
        packing.cluster.runtime.sleep(Duration::from_millis(75)).await;
        set_lag(0);
        packing.cluster.put(&name(1), b"another").await.unwrap();
        client.delete(BUCKET, &name(2), WriteCondition::default()).await.unwrap();
        client.set_object_tags(BUCKET, &name(3), [("a".to_owned(), "b".to_owned())].into()).await.unwrap();
        set_lag(50);
    };
    let (report, ()) = tokio::join!(packing.unpack(), change);
    let report = report.unwrap();
    assert_eq!((report.progress.overtaken, report.progress.failed), (2, 0), "{report:?}");
    set_lag(0);
    assert_eq!(packing.cluster.get(&name(1)).await.unwrap(), b"another");
    assert!(packing.cluster.get(&name(2)).await.is_err());
    assert_eq!(client.object_tags(BUCKET, &name(3)).await.unwrap().len(), 1);
    packing.assert_reads(3..OBJECTS).await;
    assert_eq!(packing.packed_count().await, 0);
    packing.repack().await;
    packing.collect().await;
    packing.assert_reads(3..OBJECTS).await;
    let verified = verify(client.stripes(), go_on).await.unwrap();
    assert!(verified.is_clean() && (verified.orphans, verified.unexplained) == (0, 0), "{verified:?}");
}

#[tokio::test(start_paused = true)]
async fn unpacking_that_dies_at_any_moment_loses_nothing_and_leaves_nothing() {
    for moment in 0..16 {
        let packing = Packing::packed("rs(4,2)").await;
        let set_lag = |ms| {
            packing.cluster.sites.iter().for_each(|site| *site.lag.lock() = Duration::from_millis(ms));
        };
        set_lag(20);
        let dying = packing.cluster.runtime.timeout(Duration::from_millis(23 * moment), packing.unpack());
        let died = dying.await.is_err();
        set_lag(0);
        packing.assert_reads(0..OBJECTS).await;
        packing.cluster.runtime.sleep(Duration::from_secs(90)).await;
        collect_abandoned(packing.cluster.client.stripes()).await.unwrap();
        packing.assert_reads(0..OBJECTS).await;
        let report = packing.unpack().await.unwrap();
        assert!(report.is_whole(), "moment {moment}: {report:?}");
        packing.assert_split(&format!("moment {moment}, died {died}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_stays_packed_and_is_named() {
    let packing = Packing::packed("rs(4,2)").await;
    packing.cluster.put(&name(0), &vec![7; len(0)]).await.unwrap();
    packing.cluster.sites.iter().take(7).for_each(|site| *site.down.lock() = true);
    let report = packing.unpack().await.unwrap();
    assert!(!report.is_whole() && report.progress.failed > 0, "{report:?}");
    assert!(report.examples[0].contains("folder/object"), "{report:?}");
    packing.cluster.sites.iter().for_each(|site| *site.down.lock() = false);
    packing.cluster.runtime.sleep(Duration::from_secs(5)).await;
    packing.cluster.put(&name(0), &crate::cluster::content(0, len(0))).await.unwrap();
    assert!(packing.unpack().await.unwrap().is_whole());
    packing.assert_split("when sites are back").await;
}
