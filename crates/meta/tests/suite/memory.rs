//! The memory engine against the conformance suite and the model.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use striate_meta::conformance::{self, Store, model::Model};
use striate_meta::memory::MemoryStore;
use striate_runtime::Runtime;

#[tokio::test(start_paused = true)]
async fn the_memory_engine_conforms_in_virtual_time() {
    let runtime = Runtime::deterministic(1, Duration::ZERO);
    let factory = || -> std::pin::Pin<Box<dyn Future<Output = Store> + Send>> {
        let runtime = runtime.clone();
        Box::pin(async move { Arc::new(MemoryStore::new(runtime)) as Store })
    };
    conformance::run_all(&runtime, &factory).await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn the_memory_engine_is_an_ordered_map(operations in crate::strategy::operations(60)) {
        crate::cluster::in_virtual_time(async move {
            let store: Store = Arc::new(MemoryStore::new(Runtime::deterministic(1, Duration::ZERO)));
            let mut model = Model::default();
            for operation in &operations {
                model.step(&store, operation).await;
            }
            model.compare(&store).await;
        });
    }
}
