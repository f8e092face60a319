//! A stripe whose data chunks are in more wide stripes than one transaction can name.

use bytes::Bytes;
use striate_control::resume_wide;
use striate_core::StripeId;
use striate_meta::records::{self, Location, Member, Stripe, WideState};
use striate_meta::{Commit, keys};
use striate_site::Site;
use striate_stripe::WideStep;

use crate::cluster::Cluster;
use crate::sealed::WIDE;

/// Wide stripes that a transaction can name.
const MOST: usize = 90;
const DATA: usize = 128;

async fn write(cluster: &Cluster, id: StripeId, record: &Stripe) {
    let mut tx = cluster.client.stripes().transaction();
    tx.put(keys::stripe(id), records::encode(record));
    if !record.members.is_empty() {
        tx.put(keys::change(id), Bytes::new());
    }
    assert!(matches!(cluster.meta.commit(tx).await.unwrap(), Commit::Done(_)));
}

/// Writes the records of a stripe, and of this many sealed wide stripes that its data chunks are members of, one after
/// the other.
async fn write_scattered(cluster: &Cluster, wides: usize) -> StripeId {
    let at = |chunk: usize| Location { site: cluster.sites[chunk % 30].id().0, ..Location::default() };
    let (id, chunk_len) = (StripeId::new(1_000 + wides as u64, 0), 64 << 10);
    let stripe = |profile: &str| Stripe { profile: profile.to_owned(), chunk_len, ..Stripe::default() };
    let mut own = Stripe { locations: (0..DATA + 4).map(at).collect(), ..stripe("rs(128,4)") };
    for number in 0..wides {
        let wide = StripeId::new(id.writer(), 1 + number as u64);
        let mut record = Stripe { members: vec![Member::default(); 10], ..stripe(WIDE) };
        record.locations =
            (0..14).map(|chunk| if chunk < 10 { Location::default() } else { at(chunk) }).collect();
        for (position, index) in (number..DATA).step_by(wides).enumerate() {
            record.locations[position] = at(index);
            record.members[position] =
                Member { stripe: id.to_bytes().to_vec().into(), index: index as u32, len: chunk_len };
            own.locations[index].claim(wide, position);
        }
        record.set_wide_state(WideState::Sealed);
        write(cluster, wide, &record).await;
    }
    write(cluster, id, &own).await;
    id
}

#[tokio::test(start_paused = true)]
async fn a_stripe_in_too_many_wide_stripes_keeps_its_parities_and_holds_up_none_of_them() {
    let cluster = Cluster::start(30, "rs(4,2)").await;
    let stripes = cluster.client.stripes();
    for wides in [MOST, MOST + 1, DATA] {
        let id = write_scattered(&cluster, wides).await;
        let done = resume_wide(stripes).await.unwrap();
        assert!(done.len() == wides && done.iter().all(|(_, step)| *step == WideStep::Complete), "{done:?}");
        assert_eq!(stripes.find(id).await.unwrap().unwrap().record.dropped, wides <= MOST, "{wides}");
    }
}
