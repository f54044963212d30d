//! Files up and down with real guests.
#![allow(missing_docs, clippy::unwrap_used)] // tests

mod common;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use common::{block_on, create, engine, out, run};
use hayfork_sandbox::{FileKind, Language, SandboxOptions};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// So many bytes of a pattern, and their digest.
struct Source {
    left: u64,
    position: u64,
    hasher: blake3::Hasher,
}

impl Source {
    fn new(bytes: u64) -> Self {
        Self { left: bytes, position: 0, hasher: blake3::Hasher::new() }
    }
}

impl AsyncRead for Source {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let take = usize::try_from(self.left).unwrap().min(buffer.remaining());
        let bytes: Vec<u8> = (0..take as u64)
            .map(|n| u8::try_from((self.position + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56).unwrap())
            .collect();
        self.hasher.update(&bytes);
        self.left -= take as u64;
        self.position += take as u64;
        buffer.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

/// The digest of what is written.
#[derive(Default)]
struct Sink(blake3::Hasher);

impl AsyncWrite for Sink {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.update(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
#[ignore = "needs the image set"]
fn a_hundred_megabytes_up_and_down_have_equal_digests() {
    const SIZE: u64 = 100_000_000;
    let engine = engine();
    block_on(&engine, async {
        let options = SandboxOptions { memory_mib: Some(512), ..SandboxOptions::new(Language::Python) };
        let sandbox = engine.create(options).await.unwrap();
        let mut source = Source::new(SIZE);
        let started = Instant::now();
        assert_eq!(sandbox.write_file("big", 0o644, &mut source).await.unwrap(), SIZE);
        let up = started.elapsed();
        let mut sink = Sink::default();
        let started = Instant::now();
        assert_eq!(sandbox.read_file("big", &mut sink).await.unwrap(), SIZE);
        let down = started.elapsed();
        assert_eq!(source.hasher.finalize(), sink.0.finalize());
        #[allow(clippy::cast_precision_loss)]
        let rate = |time: std::time::Duration| SIZE as f64 / 1e6 / time.as_secs_f64();
        println!("up {:.1} MB/s, down {:.1} MB/s", rate(up), rate(down));
        let stats = sandbox.stats().await.unwrap();
        println!("agent: {} KiB", stats.agent_pss_bytes / 1024);
        assert!(stats.agent_pss_bytes > 0);
    });
}

#[test]
#[ignore = "needs the image set"]
fn odd_sizes_and_names_come_back() {
    let engine = engine();
    block_on(&engine, async {
        let sandbox = create(&engine, Language::Python).await;
        for (size, name) in [
            (0, "empty".to_owned()),
            (1, "with a space".to_owned()),
            (65_535, "ünïcödé ☃".to_owned()),
            (65_536, ".hidden".to_owned()),
            (65_537, "a/b/c/deep".to_owned()),
            (1_000_000, "n".repeat(255)),
        ] {
            let mut source = Source::new(size);
            assert_eq!(sandbox.write_file(&name, 0o640, &mut source).await.unwrap(), size);
            let mut sink = Sink::default();
            assert_eq!(sandbox.read_file(&name, &mut sink).await.unwrap(), size);
            assert_eq!(source.hasher.finalize(), sink.0.finalize(), "{name}");
            let info = sandbox.stat(&name).await.unwrap();
            assert_eq!((info.kind, info.bytes, info.mode & 0o777), (FileKind::File, size, 0o640));
        }
        let names: Vec<String> = sandbox.list(".").await.unwrap().into_iter().map(|info| info.name).collect();
        let mut sorted = names.clone();
        sorted.sort();
        assert_eq!(names, sorted);
        assert!(names.iter().any(|name| name == "with a space"), "{names:?}");
        // A parent that was made on the way belongs to the user.
        assert_eq!(out(&run(&sandbox, "import os\nprint(os.stat('a/b').st_uid)").await), "1000\n");

        sandbox.rename("empty", "moved").await.unwrap();
        sandbox.make_dir("x/y").await.unwrap();
        sandbox.remove("a").await.unwrap();
        assert_eq!(sandbox.stat("empty").await.unwrap_err().code(), "not_found");
        assert_eq!(sandbox.stat("a/b").await.unwrap_err().code(), "not_found");
        assert_eq!(sandbox.stat("x/y").await.unwrap().kind, FileKind::Directory);
        assert_eq!(sandbox.list("none").await.unwrap_err().code(), "not_found");
        assert_eq!(sandbox.stat(&"n".repeat(256)).await.unwrap_err().code(), "bad_path");
        for path in ["../../etc/passwd", "a\0b"] {
            let error = sandbox.write_file(path, 0o644, &b"x"[..]).await.unwrap_err();
            assert!(["bad_path", "permission_denied"].contains(&error.code()), "{path:?}: {error:?}");
        }
        run(&sandbox, "print('alive')").await;
    });
}

#[test]
#[ignore = "needs the image set"]
fn an_upload_that_is_given_up_leaves_nothing() {
    let engine = engine();
    block_on(&engine, async {
        let sandbox = create(&engine, Language::Python).await;
        let endless = tokio::io::repeat(7).take(1 << 40);
        let given_up = tokio::time::timeout(
            std::time::Duration::from_millis(500),
            sandbox.write_file("half", 0o644, endless),
        );
        // The home is in memory: it may be full before the time is over.
        match given_up.await {
            Err(_) => {}
            Ok(result) => assert_eq!(result.unwrap_err().code(), "no_space"),
        }
        let left =
            run(&sandbox, "import os\nprint([n for n in os.listdir('.') if not n.startswith('.c')])").await;
        assert_eq!(out(&left), "[]\n");
    });
}
