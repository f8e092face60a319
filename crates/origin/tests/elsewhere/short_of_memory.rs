//! Reads while the memory for bodies is taken.

use striate_stripe::{ByteBudget, Share};

use super::*;

impl Gateway {
    fn budget(&self) -> &ByteBudget {
        self.client.stripes().budget()
    }

    /// Takes all of the memory for bodies.
    fn take_memory(&self) -> Share {
        self.budget().try_acquire(self.budget().total()).unwrap()
    }
}

#[tokio::test]
async fn what_there_is_no_memory_to_read_into_comes_from_the_origin_and_is_not_lost() {
    let world = World::new(6).await;
    let gateway = world.gateway(LONG).await;
    let whole = noise(MIB, 1);
    world.store.put("k", whole.clone());
    assert!(gateway.get("k").await == whole);
    world.settle().await;
    let all = gateway.take_memory();
    // The read waits for memory in vain. Nothing else waits meanwhile.
    let pass_time = async {
        while gateway.budget().view().waiting == 0 {
            tokio::task::yield_now().await;
        }
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(6)).await;
        tokio::time::resume();
    };
    let (read, ()) = futures::future::join(gateway.get("k"), pass_time).await;
    assert!(read == whole);
    assert_eq!(world.store.sent(), 2 * MIB as u64);
    drop(all);
    assert!(Gateway::was_hit(&gateway.open("k").await), "it is known to be in memory");
    assert_eq!(world.store.sent(), 2 * MIB as u64);
}
