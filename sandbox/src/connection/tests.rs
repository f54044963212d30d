//! The engine against a [fake guest](super::fake_guest): what happens when a guest dies, lies, floods or sleeps.

mod boot;
mod ending;
mod files;
mod hostile;
mod named;
mod pool;
mod runs;
mod shelf;
mod unsafe_fork;
mod watches;

use std::future::Future;
use std::time::Duration;

use super::fake_guest::TestEngine;
use crate::{Language, Sandbox, SandboxOptions};

/// Runs a test's future on the engine's runtime, for at most 20 s.
fn block_on<T>(engine: &TestEngine, future: impl Future<Output = T>) -> T {
    engine.runtime().block_on(async {
        tokio::time::timeout(Duration::from_secs(20), future).await.expect("the test hangs")
    })
}

fn python() -> SandboxOptions {
    SandboxOptions::new(Language::Python)
}

async fn create(engine: &TestEngine) -> Sandbox {
    engine.create(python()).await.unwrap()
}
