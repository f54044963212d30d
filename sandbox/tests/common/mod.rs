//! What the tests with real guests share.
#![allow(dead_code)] // each test file uses a part of it

use std::future::Future;
use std::time::Duration;

use hayfork_sandbox::{
    CommandOptions, Engine, EngineOptions, ExecuteOptions, Execution, Language, Sandbox, SandboxOptions,
};

/// An engine with the image set that `HAYFORK_IMAGES_DIR`, or the cache, holds, on the backend that `HAYFORK_BACKEND`
/// names. Without images the tests fail: they would prove nothing.
pub(crate) fn engine() -> Engine {
    engine_on(std::env::var("HAYFORK_BACKEND").ok())
}

/// An engine on QEMU, for what is about its process.
pub(crate) fn qemu() -> Engine {
    engine_on(Some("qemu".into()))
}

fn engine_on(backend: Option<String>) -> Engine {
    let options = EngineOptions { backend, ..EngineOptions::default() };
    let engine = Engine::new(options).expect("an engine needs no more than threads");
    if let Err(error) = engine.images() {
        panic!("these tests need an image set (make images, or HAYFORK_IMAGES_DIR): {error}");
    }
    engine
}

/// Runs a test's future on the engine's runtime, for at most five minutes (a guest whose instructions are
/// translated is slow on a busy host), then kills what is left.
pub(crate) fn block_on<T>(engine: &Engine, future: impl Future<Output = T>) -> T {
    let result =
        engine.runtime().block_on(async { tokio::time::timeout(Duration::from_secs(300), future).await });
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
