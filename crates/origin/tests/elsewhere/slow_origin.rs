//! An origin that takes long to send a block.

use super::*;

/// Time passes in small steps, since a step may pass while the kernel delivers what was sent.
async fn pass_time(runtime: &Runtime) {
    loop {
        runtime.sleep(Duration::from_millis(10)).await;
    }
}

/// Returns why the answer to a request fails, or breaks off, as time passes.
async fn failure_of(world: &World, gateway: &Gateway, method: Method, query: &str) -> String {
    let (bucket, key, query) = (BUCKET.to_owned(), "k".to_owned(), query.to_owned());
    let request = RemoteRequest { bucket, key, method, query, headers: HeaderMap::new(), body: none() };
    let failing = async {
        match gateway.origins.answer(request).await {
            Ok(answer) => try_bytes_of(answer).await.unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    };
    tokio::select! {
        failure = failing => failure,
        () = pass_time(&world.runtime) => String::new(),
    }
}

#[tokio::test]
async fn what_comes_past_the_cache_ends_when_its_origin_falls_silent() {
    let world = World::new(0).await;
    let gateway = world.gateway(LONG).await;
    world.store.put("k", noise(MIB, 1));
    world.store.set_faults(Faults { pause: Duration::from_secs(3_600), ..Faults::default() });
    tokio::time::pause();
    for (what, query) in [("a version", "versionId=1"), ("a document", "uploadId=1")] {
        let failure = failure_of(&world, &gateway, Method::GET, query).await;
        assert!(failure.contains("has sent nothing for 30 s"), "{what}: {failure}");
    }
}

#[tokio::test]
async fn a_write_that_an_origin_takes_and_never_answers_fails_in_the_end() {
    let world = World::new(0).await;
    let gateway = world.gateway(LONG).await;
    world.store.set_faults(Faults { slow_write: Duration::from_secs(3_600), ..Faults::default() });
    tokio::time::pause();
    for (what, query) in [("an object", ""), ("a part of one", "partNumber=1&uploadId=1")] {
        let failure = failure_of(&world, &gateway, Method::PUT, query).await;
        assert!(failure.contains("neither taken nor sent anything for 15 minutes"), "{what}: {failure}");
    }
}

#[tokio::test]
async fn sixty_four_clients_at_once_fetch_a_block_once_although_it_takes_long() {
    let world = World::new(6).await;
    let gateways = [world.gateway(LONG).await, world.gateway(LONG).await];
    let whole = noise(MIB, 1);
    world.store.put("k", whole.clone());
    // The block takes 32 s.
    world.store.set_faults(Faults { pause: Duration::from_secs(2), ..Faults::default() });
    tokio::time::pause();
    let reads = join_all((0..64).map(|number: usize| gateways[number % 2].get("k")));
    let answers = tokio::select! {
        answers = reads => answers,
        () = pass_time(&world.runtime) => Vec::new(),
    };
    assert!(answers.len() == 64 && answers.iter().all(|bytes| *bytes == whole));
    assert!(world.store.sent() < (MIB + MIB / 2) as u64, "one fetch: {} bytes", world.store.sent());
}
