//! What the tests with real guests share.
#![allow(dead_code)] // each test file uses a part of it

#[path = "../../../vmm/tests/host/program.rs"]
pub(crate) mod program;

use std::future::Future;
use std::time::Duration;

use hayfork_sandbox::{
    CommandOptions, Engine, EngineOptions, ExecuteOptions, Execution, Language, Sandbox, SandboxOptions,
};

/// An engine with the image set that `HAYFORK_IMAGES_DIR`, or the cache, holds, on the backend that `HAYFORK_BACKEND`
/// names. Without images the tests fail: they would prove nothing.
pub(crate) fn engine() -> Engine {
    engine_of(options())
}

/// Options of such an engine: backend and isolation are those that `HAYFORK_BACKEND` and `HAYFORK_ISOLATION` name.
pub(crate) fn options() -> EngineOptions {
    let isolation = std::env::var("HAYFORK_ISOLATION").ok().filter(|name| !name.is_empty());
    EngineOptions {
        backend: std::env::var("HAYFORK_BACKEND").ok(),
        worker: (isolation.as_deref() == Some("worker")).then(program::worker),
        isolation,
        // No machine but those that a test asks for.
        templates: false,
        ..EngineOptions::default()
    }
}

/// An engine on QEMU, for what is about its process.
pub(crate) fn qemu() -> Engine {
    engine_of(EngineOptions { backend: Some("qemu".into()), templates: false, ..EngineOptions::default() })
}

fn engine_of(options: EngineOptions) -> Engine {
    let engine = Engine::new(options).expect("an engine needs no more than threads");
    if let Err(error) = engine.images() {
        panic!("these tests need an image set (make images, or HAYFORK_IMAGES_DIR): {error}");
    }
    engine
}

/// Runs a test's future on the engine's runtime, for at most five minutes (a guest whose instructions are
/// translated is slow on a busy host), then kills what is left.
pub(crate) fn block_on<T>(engine: &Engine, future: impl Future<Output = T>) -> T {
    block_on_at_most(engine, Duration::from_secs(300), future)
}

/// The same, for longer or shorter.
pub(crate) fn block_on_at_most<T>(engine: &Engine, limit: Duration, future: impl Future<Output = T>) -> T {
    let result = engine.runtime().block_on(async { tokio::time::timeout(limit, future).await });
    engine.shutdown();
    result.expect("the test hangs")
}

pub(crate) async fn create(engine: &Engine, language: Language) -> Sandbox {
    engine.create(SandboxOptions::new(language)).await.expect("a sandbox")
}

pub(crate) async fn run(sandbox: &Sandbox, code: &str) -> Execution {
    sandbox.execute(ExecuteOptions::new(code)).collect().await.expect("an execution")
}

pub(crate) async fn shell(sandbox: &Sandbox, command: &str) -> Execution {
    sandbox.command(CommandOptions::new(["sh", "-c", command])).collect().await.expect("a command")
}

/// Standard output as text.
pub(crate) fn out(execution: &Execution) -> String {
    String::from_utf8(execution.stdout.clone()).expect("text")
}

/// Standard error as text.
pub(crate) fn err(execution: &Execution) -> String {
    String::from_utf8(execution.stderr.clone()).expect("text")
}
