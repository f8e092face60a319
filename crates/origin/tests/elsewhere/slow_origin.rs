//! An origin that takes long to send a block.

use super::*;

/// Time passes in small steps, since a step may pass while the kernel delivers what was sent.
async fn pass_time(runtime: &Runtime) {
    loop {
        runtime.sleep(Duration::from_millis(10)).await;
    }
}

/// Returns why an answer fails, or breaks off.
async fn failure_of(gateway: &Gateway, request: RemoteRequest) -> String {
    match gateway.origins.answer(request).await {
        Ok(answer) => try_bytes_of(answer).await.unwrap_err().to_string(),
        Err(error) => error.to_string(),
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
        let request = RemoteRequest {
            bucket: BUCKET.to_owned(),
            key: "k".to_owned(),
            method: Method::GET,
            query: query.to_owned(),
            headers: HeaderMap::new(),
            body: none(),
        };
        let failure = tokio::select! {
            failure = failure_of(&gateway, request) => failure,
            () = pass_time(&world.runtime) => String::new(),
        };
        assert!(failure.contains("has sent nothing for 30 s"), "{what}: {failure}");
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
