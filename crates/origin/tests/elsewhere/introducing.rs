//! Refusals of a new origin, and knowledge of objects under little memory.

use super::*;

async fn refusal(world: &World, origin: Origin) -> String {
    let gateway = world.gateway(LONG).await;
    tokio::time::pause();
    gateway.origins.introduce(origin, "the secret").await.unwrap_err().to_string()
}

#[tokio::test]
async fn an_origin_that_says_nothing_is_given_up_soon() {
    let world = World::new(0).await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let reason = refusal(&world, Origin { endpoint, ..world.origin(LONG) }).await;
    assert!(reason.contains("has not answered within 10 s; look at --origin-endpoint"), "{reason}");
}

#[tokio::test]
async fn a_refusal_names_the_settings_that_may_be_wrong() {
    let world = World::new(0).await;
    world.store.set_faults(Faults { denied: Some("closed"), ..Faults::default() });
    let gateway = world.gateway(LONG).await;
    for (bucket, settings) in [
        ("missing", "look at --origin and --origin-endpoint"),
        ("closed", "look at --origin, --origin-region and the key"),
    ] {
        let origin = Origin { bucket: bucket.to_owned(), ..world.origin(LONG) };
        let reason = gateway.origins.introduce(origin, "the secret").await.unwrap_err().to_string();
        assert!(reason.contains(settings), "{reason}");
    }
}

#[tokio::test]
async fn a_ttl_is_a_day_at_most() {
    let world = World::new(0).await;
    let day = Duration::from_secs(24 * 3_600);
    world.gateway(day).await;
    let reason = refusal(&world, world.origin(day + Duration::from_millis(1))).await;
    assert!(reason.contains("at most 24h"), "{reason}");
}

#[tokio::test]
async fn of_what_had_to_make_room_the_origin_is_asked_for_no_bytes() {
    const OBJECTS: usize = 300;
    let world = World::new(1).await;
    let gateway = world.gateway(LONG).await;
    gateway.cache.set_sites(world.memory.iter().map(|site| (site.clone(), 64 << 20)).collect());
    // Each known object takes so much memory that not all fit.
    world.store.set_faults(Faults { header_len: 100 << 10, ..Faults::default() });
    let read_all = async || {
        for number in 0..OBJECTS {
            assert_eq!(gateway.get(&number.to_string()).await, noise(100, number as u64));
        }
        world.settle().await;
    };
    (0..OBJECTS).for_each(|number| world.store.put(&number.to_string(), noise(100, number as u64)));
    read_all().await;
    let (sent, asked) = (world.store.sent(), world.store.asked());
    assert_eq!(asked, (OBJECTS as u64, 0));
    read_all().await;
    let (gets, heads) = world.store.asked();
    assert_eq!((world.store.sent(), gets), (sent, asked.0), "all of it is in memory");
    assert!((50..=OBJECTS as u64).contains(&heads), "{heads}");
}
